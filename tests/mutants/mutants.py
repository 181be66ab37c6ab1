"""The wrong programs: attention taken out, weights or prompt not read, terms of bounds dropped."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_SEEN = ("tests/backends/test_interventions.py",)
_ROWS = ("tests/backends/test_rows.py",)
_RUNS = ("tests/machine/test_problem.py", "tests/backends/test_interventions.py")
_CONFORMS = ("tests/constructions/test_residual.py", "tests/backends/test_interventions.py")

MUTANTS: tuple[Mutant, ...] = (
    # ------------------------------------------------------------------ attention is not there
    Mutant(
        "look-ups return the exact function instead of attending",
        "backends/fused.py",
        "        return primitives.interpolate(self.reading.residuals(prompt), table, self.name)",
        "        z = self.reading.residuals(prompt)\n"
        "        f = prompt.table.function\n"
        "        return primitives.interpolate(z, table, self.name) if f is None else f(z)",
        _SEEN,
    ),
    Mutant(
        "sums over samples use the exact function instead of attending",
        "backends/fused.py",
        "        x, y, w = prompt.x, prompt.y, prompt.w\n",
        "        x, y, w = prompt.x, prompt.y, prompt.w\n"
        "        f = prompt.table.function\n"
        "        if f is not None:\n"
        "            looked = f(prompt.residuals())\n"
        "            looked = looked if prompt.offsets is None else looked - prompt.offsets\n"
        "            total = (looked.double()[..., None, :] @ x.double())[..., 0, :]\n"
        "            return prompt.gain * total + prompt.count * prompt.keep * w.double()\n",
        _SEEN,
    ),
    Mutant(
        "attention is the identity: a look-up returns its argument",
        "backends/fused.py",
        "        return primitives.interpolate(self.reading.residuals(prompt), table, self.name)",
        "        return self.reading.residuals(prompt)",
        _CONFORMS,
    ),
    Mutant(
        "attention is a constant: every token has the same weight",
        "attention/layers.py",
        "        weights = torch.softmax(queries @ (tokens @ self.w_k.mT).mT, -1)",
        "        weights = torch.softmax(0 * (queries @ (tokens @ self.w_k.mT).mT), -1)",
        _SEEN,
    ),
    Mutant(
        "averages are taken without softmax",
        "backends/fused.py",
        "        out = torch.softmax(logits, -1) @ prompt.values if few is None else few",
        "        out = logits @ prompt.values / len(keys) if few is None else few",
        ("tests/machine/test_stream.py", "-k", "average"),
    ),
    Mutant(
        "tokens that are hidden from a point are seen",
        "backends/fused.py",
        "mul_(reading.free_bias * HIDDEN)",
        "mul_(0.0)",
        ("tests/backends/test_interventions.py", "-k", "average"),
    ),
    Mutant(
        "a read that mixes samples counts as a read of one",
        "algorithms/places.py",
        "        clear = (spread <= 1 / (32 * self.digits)).all(1)",
        "        clear = (spread == spread).all(1)",
        ("tests/algorithms/test_neighbours.py", "-k", "ties"),
    ),
    Mutant(
        "another program on the same weights holds no eps",
        "constructions/residual.py",
        'held, room = self._asked["eps"] if eps == SAME else eps, self.layout.tokens',
        "held, room = None, self.layout.tokens",
        ("tests/constructions/test_residual.py", "-k", "reprogramming"),
    ),
    # ---------------------------------------------------------------- weights are not read
    Mutant(
        "W_K is not read: features are met in their own order",
        "backends/reading.py",
        "        form=unless_identity(meets[:, x] / scale),",
        "        form=None,",
        _SEEN,
    ),
    Mutant(
        "the temperature in W_K is not read",
        "backends/reading.py",
        "        scale=scale,\n        bias=float(of_block[b]),",
        "        scale=1.0,\n        bias=1.0,",
        _SEEN,
    ),
    Mutant(
        "W_V is not read",
        "backends/reading.py",
        "        values=unless_identity(values[:, v]),",
        "        values=None,",
        _SEEN,
    ),
    Mutant(
        "W_O is not read",
        "backends/reading.py",
        "        readout=unless_identity(last[:m, :m]),",
        "        readout=None,",
        _SEEN,
    ),
    Mutant(
        "the embedding is not read",
        "backends/reading.py",
        "    keys, queries, values = w_k @ a, w_q @ a, w_v @ a",
        "    a = torch.eye(*a.shape, dtype=torch.float64)\n"
        "    keys, queries, values = w_k @ a, w_q @ a, w_v @ a",
        _SEEN,
    ),
    Mutant(
        "a network that is not recognised runs all the same",
        "backends/reading.py",
        "    for part in parts:",
        "    for part in ():",
        _SEEN,
    ),
    Mutant(
        "a margin that is too small is not noticed",
        "backends/reading.py",
        "    if others.numel() and not float(others.max()) <= -MARGIN / 2:",
        "    if False:",
        _SEEN,
    ),
    Mutant(
        "readings are kept by network, not by its bytes",
        "backends/reading.py",
        "    return _readings.get(digest, lambda: _read(holding(network, digest)))",
        "    return _readings.get(str(len(network.features.names())), lambda: _read(network))",
        _SEEN,
    ),
    # ---------------------------------------------- the same, of prompts that are in memory
    Mutant(
        "tables are taken as they were written, whatever the weights hold",
        "backends/reading.py",
        "        if _holds(table, slopes, biases, values, dtype):",
        "        if table.tokens == len(slopes):",
        _ROWS,
    ),
    Mutant(
        "rows: W_K and W_Q are not read",
        "backends/rows/lifted.py",
        "        return cls(scale, unless_identity(products / scale), unless_zero(line / scale))",
        "        return cls(scale, None, None)",
        _ROWS,
    ),
    Mutant(
        "rows: W_V is not read",
        "backends/rows/lifted.py",
        "    return read, unless_identity(outputs)",
        "    return read, None",
        _ROWS,
    ),
    Mutant(
        "rows: padding is left out, whatever it weighs",
        "backends/reading.py",
        " == 0 and bool((biases[kept:] <= floor).all()):",
        " == 0:",
        _ROWS,
    ),
    Mutant(
        "embedding: the prompt's ramp and positions are taken on trust",
        "backends/rows/embedded.py",
        "        if not self._is_table(tokens):",
        "        if False:",
        _ROWS,
    ),
    Mutant(
        "stored patterns: the constant one is taken on trust",
        "backends/rows/memory.py",
        "        if not _end_with_one(tokens):",
        "        if False:",
        _ROWS,
    ),
    Mutant(
        "entries of layers are run again and not compared",
        "certificates/witness.py",
        "        off = float((carried + entry.value - self.got).abs())",
        "        off = 0.0",
        _ROWS,
    ),
    # -------------------------------------------------------------------- integrity
    Mutant(
        "the digest is kept from the first time",
        "attention/network.py",
        "        found = self.digest\n",
        "        found = self.__dict__.setdefault('_kept', self.digest)\n",
        ("tests/attention/test_network.py", "-k", "move"),
    ),
    Mutant(
        "changed weights run",
        "attention/network.py",
        "found != self.expected and is_checked():",
        "False:",
        _SEEN,
    ),
    Mutant(
        "the digest leaves out the last weight",
        "attention/network.py",
        "    for name, buffer in sorted(module.named_buffers(remove_duplicate=False)):",
        "    for name, buffer in sorted(module.named_buffers(remove_duplicate=False))[:-1]:",
        ("tests/constructions/test_residual.py", "-k", "refused"),
    ),
    # ------------------------------------------------------------------ prompt is not read
    Mutant(
        "the table in the prompt is not read",
        "backends/reading.py",
        "    if all(a is b or torch.equal(a, b) for a, b in found):",
        "    if True:",
        _SEEN,
    ),
    Mutant(
        "program tokens depend on the data",
        "attention/lookups.py",
        '        own[..., at["key_bias"]] = biases[:, None]',
        '        own[..., at["key_bias"]] = biases[:, None] + 1e-3 * x.mean()',
        ("tests/machine/test_prompts.py",),
    ),
    Mutant(
        "what is written for data is not affine in them",
        "attention/lookups.py",
        '        own[..., at["key_x"]][..., :d] = slopes[:, None] * x[..., None, :]',
        '        own[..., at["key_x"]][..., :d] = slopes[:, None] * x.sin()[..., None, :]',
        _SEEN,
    ),
    Mutant(
        "no margin between blocks",
        "attention/lookups.py",
        "MARGIN = 2.0**50  # of another block's tokens",
        "MARGIN = 2.0**-50  # of another block's tokens",
        _SEEN,
    ),
    # ------------------------------------------------------------------- terms of certificates
    Mutant(
        "the certificate leaves out the look-up's error",
        "constructions/residual.py",
        '            "interpolation": rates.gain * d.x * it.error,',
        '            "interpolation": 0.0,',
        ("tests/constructions/test_residual.py",),
    ),
    Mutant(
        "the certificate leaves out rounding",
        "constructions/residual.py",
        "rates.gain * d.x * looked + carried + sums,",
        "0.0,",
        ("tests/properties", "tests/constructions/test_residual.py"),
    ),
    Mutant(
        "an attestation allows nothing and compares nothing",
        "certificates/witness.py",
        "        again = self._run_again()",
        "        again = Compared()",
        ("tests/certificates/test_witness.py",),
    ),
    Mutant(
        "an attestation compares the fast rows with themselves",
        "certificates/witness.py",
        "        return Literal(self.network)\n",
        "        return self.inner\n",
        ("tests/certificates/test_witness.py",),
    ),
    Mutant(
        "an attestation's disagreement is let go",
        "certificates/witness.py",
        "        if not found.within and is_checked():",
        "        if False:",
        ("tests/certificates/test_witness.py",),
    ),
    Mutant(
        "a gradient does not pass through the network",
        "machine/problem.py",
        "        return [self.machine.total(prompt), beyond]",
        "        f = prompt.table.function\n"
        "        looked = f(prompt.residuals())\n"
        "        looked = looked if prompt.offsets is None else looked - prompt.offsets\n"
        "        return [looked @ prompt.x, beyond]",
        ("tests/machine/test_weights_run.py",),
    ),
    Mutant(
        "the host turns the gradient, and the samples in the prompt stay correlated",
        "machine/problem.py",
        "        return self._mean(encoding, u, trial) + penalty",
        "        found = self._mean(self.encoding, within.back(u), trial)\n"
        "        return within.turned.mT @ found + penalty",
        ("tests/machine/test_coordinates.py",),
    ),
    Mutant(
        "soft thresholds do not pass through the network",
        "algorithms/sparse.py",
        "    left = u[active] - tau[active] * machine.look_up(table, ratio)",
        "    left = u[active] - tau[active] * ratio.clamp(-1, 1)",
        ("tests/machine/test_weights_run.py",),
    ),
    # ------------------------------------------------------------------ proofs
    Mutant(
        "a table's proof leaves out the remainder of the expansion",
        "interpolation/posterior.py",
        "below + (a.largest[m - 1] + on[m].magnitude) * power)",
        "below + 0 * on[m].magnitude * power)",
        ("tests/interpolation/test_attacks.py", "tests/interpolation/test_posterior.py"),
    ),
    Mutant(
        "a table from disk is believed",
        "interpolation/storage.py",
        "    if f is None:\n        return it\n",
        '    return replace(it, kind="proven", function=f)\n',
        ("tests/interpolation/test_cache.py", "tests/test_save_load.py"),
    ),
    Mutant(
        "a table whose function is lost is called proven",
        "interpolation/storage.py",
        '        kind="claimed",',
        '        kind="proven",',
        ("tests/test_save_load.py",),
    ),
    Mutant(
        "a result from a file is called proven",
        "certificates/result.py",
        'kind="claimed",',
        'kind=said["kind"],',
        ("tests/test_save_load.py::test_a_result_comes_back_with_all_that_is_known_of_it",),
    ),
    Mutant(
        "a result from a file is verified on other data",
        "certificates/result.py",
        "if inputs and self._data is not None and _digest(*inputs) != self._data:",
        "if False:",
        (
            "tests/test_save_load.py::test_a_result_from_a_file_is_verified_on_its_data_and_on_no_others",
        ),
    ),
    Mutant(
        "originals of networks are switched over in the middle of another thread's run",
        "networks/capture.py",
        "with _WRITTEN:",
        "with contextlib.nullcontext():",
        ("tests/networks/test_in_context.py::test_originals_run_as_written_in_every_thread",),
    ),
    Mutant(
        "a file's seal is not looked at",
        "store.py",
        "    if digest.hexdigest().encode() != data[at : at + 64]:",
        "    if False:",
        ("tests/test_store.py",),
    ),
    Mutant(
        "a view is renamed into place without its commit",
        "store.py",
        "            for (draft, _), path in zip(made, contents, strict=True):",
        "            for (draft, _), path in list(zip(made, contents, strict=True))[::-1]:",
        ("tests/test_store.py", "tests/test_save_load.py"),
    ),
    Mutant(
        "a line through some samples is taken for the optimum, whatever the dual says",
        "algorithms/pinball.py",
        "    if not room > 0:\n        return None\n",
        "",
        ("tests/algorithms/test_quantile.py",),
    ),
    Mutant(
        "features are said to depend on each other without proof",
        "machine/proofs.py",
        'else cls((DEPENDENT,), "estimated")',
        "else cls()",
        ("tests/machine/test_proofs.py", "-k", "told_apart"),
    ),
    Mutant(
        "whitened coordinates are not checked for rounding",
        "machine/whitening.py",
        "        return 1 - noise, 1 + noise",
        "        return 100.0, 1.0",
        ("tests/machine/test_proofs.py",),
    ),
    # ------------------------------------------------------------------ loops of the computer
    Mutant(
        "a soft threshold below 0 counts as not pushing errors apart",
        "computer/euclidean.py",
        "        return low < high or not any(on)\n",
        "        return sum(on) <= 1\n",
        ("tests/computer/test_growth.py", "-k", "pushes"),
    ),
    Mutant(
        "powers of a loop's matrices are bounded without their basis",
        "computer/spectral.py",
        "            bound = self.conditions * self.rates**k\n",
        "            bound = self.rates**k\n",
        ("tests/computer/test_growth.py", "-k", "drift"),
    ),
    Mutant(
        "a turn's own error is counted once, not every turn",
        "computer/growth.py",
        "left, made = float(powers.max()), float(powers[:-1].sum())",
        "left, made = float(powers.max()), float(powers[0])",
        ("tests/computer/test_growth.py", "-k", "every_turn"),
    ),
    Mutant(
        "sides of a kink are looked up once",
        "computer/bends.py",
        "            Step(0.0, min(2.0**enough, _STEEP), math.inf, offset, height, off),\n",
        "            Step(0.0, 2.0, math.inf, offset, height, off),\n",
        ("tests/computer/test_bends.py",),
    ),
    Mutant(
        "values of a comparison are rounded to float32 when its table is made",
        "computer/tables.py",
        "    values = torch.tensor([float(end) for end in ends], dtype=torch.float64)\n",
        "    values = torch.tensor([float(end) for end in ends]).double()\n",
        ("tests/computer/test_bends.py", "-k", "worst"),
    ),
    Mutant(
        "kinks and slopes count as exact",
        "computer/bends.py",
        "    return replace(made, off=_apart(made, lines, kinks, low, high))\n",
        "    return made\n",
        ("tests/computer/test_bends.py", "-k", "charged"),
    ),
    Mutant(
        "a branch that may be decided wrongly costs nothing before the fact",
        "computer/budget.py",
        "    if errors.undecided:\n",
        "    if False:\n",
        ("tests/computer/test_growth.py", "-k", "before_the_fact"),
    ),
    Mutant(
        "errors of a loop count as settled while they grow",
        "computer/budget.py",
        "        if all(self.off[state] <= error for state, error in room.items()):\n",
        "        if room:\n",
        ("tests/computer/test_growth.py", "-k", "before_the_fact"),
    ),
    Mutant(
        "a stretch does not tell of arguments beyond a closed form",
        "computer/stretches.py",
        "        fused.watched.also.append(self.left)\n",
        "",
        ("tests/computer/test_stretches.py", "-k", "beyond"),
    ),
    Mutant(
        "what a stretch has written is not copied out before the next launch",
        "computer/stretches.py",
        "            return leaf if id(leaf) in fixed else copy(leaf)\n",
        "            return leaf\n",
        ("tests/computer/test_stretches.py", "-k", "long_data"),
    ),
    Mutant(
        "eigenvalues are believed of whoever computes them",
        "arithmetic/eigenvalues.py",
        "    off = 2 * (apart + skew * size)\n",
        "    off = rounded * size\n",
        ("tests/arithmetic/test_eigenvalues.py", "-k", "wrong"),
    ),
    Mutant(
        "a Hessian that is given is not looked for in the data",
        "constructions/descent.py",
        "        if not (alpha <= bottom and above <= top):\n",
        "        if False:\n",
        ("tests/constructions/test_descent.py", "-k", "do_not_have"),
    ),
    Mutant(
        "labels of odd size are averaged as they are",
        "machine/stream.py",
        "        units = torch.where(usual, 0, exponent_of(largest))\n",
        "        units = torch.zeros_like(exponent_of(largest))\n",
        ("tests/algorithms/test_distance_weights.py", "-k", "any_size"),
    ),
    Mutant(
        "a table that float32 has no room for is looked up",
        "interpolation/local.py",
        "    if model.unit < _SINGLE:\n        return\n",
        "    return\n",
        ("tests/constructions/test_magnitudes.py", "-k", "any_size"),
    ),
    Mutant(
        "what underflows is left out of sums of either sign",
        "backends/triton/sums.py",
        "unsure * size + more * under",
        "unsure * size",
        ("tests/tolerance/test_walking.py", "-k", "underflows"),
    ),
)
