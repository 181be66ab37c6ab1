"""Machine: one frozen two-layer module that runs every program by prompt alone."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from iceform.attention import Features, FrozenNetwork, SoftmaxAttention
from iceform.attention.inspection import Trace
from iceform.backends import Backend
from iceform.certificates import Certificate, Witness
from iceform.constructions import AttentionHead, Plan
from iceform.constructions.base import Emulator, write_whole
from iceform.errors import IntegrityError, PrecisionError, ProgramError
from iceform.machine.program import Program, Result, Sizes, Target, library
from iceform.pretrained import Pretrained
from iceform.validation import check_bound, check_eps, check_size, check_tensors, unit_roundoff

__all__ = ["Machine"]

_LEAK_BITS = 8  # padding tokens' mass is kept this many bits below rounding
_PADDING = 2  # features the machine adds to every token: "is padding" and "one"


class Machine(Pretrained):
    """One frozen module, many programs (thm:attn_sim_stats_methods).

    The machine is an :class:`AttentionHead` in row form, sized once for a class of programs. A
    program turns data into tokens and itself into a target head; the machine runs that head from
    the prompt. Its weights depend on the sizes and bounds only.

    Parameters
    ----------
    dim, samples
        The largest data its programs will see.
    eps
        What one pass may be off by. Every pass is certified on its own inputs, and one that does
        not hold eps is refused; None accepts what comes out.
    programs
        The class it is sized for; :func:`library` by default.
    dtype, backend
        As for an emulator.
    """

    def __init__(
        self,
        dim: int = 8,
        samples: int = 16,
        eps: float | None = None,
        *,
        programs: Sequence[Program] | None = None,
        dtype: torch.dtype = torch.float64,
        backend: str = "auto",
    ) -> None:
        check_size("dim", dim)
        check_size("samples", samples)
        chosen = list(library() if programs is None else programs)
        if not chosen:
            raise ProgramError("a machine needs at least one program to be sized for")
        sizes = chosen[0].sizes(dim, samples)
        for program in chosen[1:]:
            sizes = sizes.cover(program.sizes(dim, samples))
        # Any head on dim features may be asked for as well.
        sizes = replace(sizes, nonzeros=max(sizes.nonzeros, dim))
        self.eps = check_eps(eps)
        self._build(dim, samples, sizes, dtype, backend)

    @classmethod
    def for_programs(
        cls,
        programs: Sequence[Program],
        dim: int,
        samples: int,
        eps: float | None = None,
        *,
        dtype: torch.dtype = torch.float64,
        backend: str = "auto",
    ) -> Machine:
        """A machine sized for just these programs."""
        return cls(dim, samples, eps, programs=programs, dtype=dtype, backend=backend)

    def _size(self, dim: int, samples: int, sizes: Sizes, dtype: torch.dtype) -> None:
        self.dim, self.samples, self.sizes, self.dtype = dim, samples, sizes, dtype
        # Padding tokens must lose against any logit a program can make.
        target = math.log(sizes.tokens) - math.log(unit_roundoff(dtype)) + _LEAK_BITS * math.log(2)
        # As the dtype holds it: the grid's range must cover what stands in the prompt.
        self._root = float(torch.tensor(math.sqrt(2 * sizes.logits + target), dtype=dtype))

    def _build(
        self, dim: int, samples: int, sizes: Sizes, dtype: torch.dtype, backend: str
    ) -> None:
        self._size(dim, samples, sizes, dtype)
        self.head = AttentionHead(
            sizes.features + _PADDING,
            sizes.head_dim + 1,
            sizes.value_dim,
            sizes.tokens,
            bound=max(sizes.bound, 1.0),
            weight_bound=max(sizes.weight_bound, self._root),
            reach=max(sizes.reach, self._root),
            nonzeros=sizes.nonzeros,
            eps=None,
            dtype=dtype,
            backend=backend,
        )

    # ----------------------------------------------------------------------------------- run

    @property
    def network(self) -> FrozenNetwork:
        """The literal frozen weights."""
        return self.head.network

    @property
    def digest(self) -> str:
        """SHA-256 of the frozen weights."""
        return self.head.digest

    @property
    def plan(self) -> Plan:
        """Sizes of the literal network."""
        return self.head.plan

    def run(self, program: Program, x: Tensor, y: Tensor | None = None) -> Result:
        """Run a program on data; the answer comes with its certificate.

        Raises
        ------
        ProgramError
            If the program does not fit, naming the dimension that is short.
        """
        self._check(program, x, y)
        witness = Witness(self._bind())
        outcome = program.run(partial(self.attend, backend=witness), x, y)
        attestation = witness.attest()
        certificate = Certificate.total(
            outcome.terms,
            domain=outcome.domain,
            dtype=self.dtype,
            backend=self.head.backend,
            derivation=self.head.certificate.derivation,
            assumptions=outcome.assumptions,
        )
        predict = outcome.predict
        return Result(
            outcome.value,
            certificate,
            outcome.passes,
            attestation.weights,
            None if predict is None else lambda points: predict(self.attend, points),
            attestation,
            witness.ledger,
        )

    def _check(self, program: Program, x: Tensor, y: Tensor | None) -> None:
        if not isinstance(program, Program):
            where = "it runs on a StreamMachine" if hasattr(program, "stream") else ""
            raise ProgramError(f"not a program: {program!r}; {where or 'see iceform.algorithms'}")
        device = x.device if isinstance(x, Tensor) else torch.device("cpu")
        shape = tuple(x.shape[-2:]) if isinstance(x, Tensor) else ()
        check_tensors({"x": (x, shape)}, self.dtype, device)
        if x.ndim != 2:
            raise ProgramError(f"data must be (samples, dim), got shape {tuple(x.shape)}")
        check_bound("x", x, self.sizes.bound, "scale the data")
        if y is not None:
            check_tensors({"y": (y, program.label_shape(x))}, self.dtype, device)
            check_bound("y", y, math.inf, "remove what is not a number")
            if y.ndim != 1:
                raise ProgramError(f"the second input must be a vector, got {tuple(y.shape)}")
        self.sizes.check_fits(program.sizes(x.shape[1], x.shape[0]), program.name)

    def attend(self, target: Target, backend: Backend | None = None) -> tuple[Tensor, float]:
        """One pass: the target head's outputs at its queries, and their certified error.

        A run passes the backend that it bound to the weights, and that is under watch.
        """
        padded = self.padded(target)
        inputs = (padded.tokens, padded.w_k, padded.w_q, padded.w_v)
        value_dim = len(target.w_v)
        certificate = self.head.certify(*inputs, queries=padded.queries)
        if self.eps is not None and not certificate.error <= self.eps:
            raise PrecisionError(
                f"this pass is certified to {certificate.error:.3g}, not to the machine's eps = "
                f"{self.eps:.3g}; use a larger eps, or a machine sized for fewer programs",
                best=certificate.error,
            )
        out = self.head.through(self._bind() if backend is None else backend, *inputs)
        # Padding tokens are masked by a margin, not by nothing; their values are zero.
        values = float((target.tokens @ target.w_v.mT).abs().max())
        stray = 2 * values * unit_roundoff(self.dtype) * 2.0**-_LEAK_BITS
        return out[padded.queries, :value_dim], certificate.error + stray

    def _bind(self) -> Backend:
        """The backend on the machine's weights, which are checked now."""
        return self.head.bind()

    def padded(self, target: Target) -> Target:
        """The same head on this machine's sizes, with padding tokens masked."""
        sizes, count = self.sizes, len(target.tokens)
        tokens = target.tokens.new_zeros(sizes.tokens, sizes.features + _PADDING)
        tokens[:count, : target.tokens.shape[1]] = target.tokens
        tokens[count:, -2], tokens[:, -1] = 1.0, 1.0

        def wide(w: Tensor, rows: int) -> Tensor:
            out = w.new_zeros(rows, sizes.features + _PADDING)
            out[: len(w), : w.shape[1]] = w
            return out

        w_k, w_q = wide(target.w_k, sizes.head_dim + 1), wide(target.w_q, sizes.head_dim + 1)
        w_k[-1, -2], w_q[-1, -1] = -self._root, self._root
        start, stop, _ = target.queries.indices(count)
        return Target(tokens, w_k, w_q, wide(target.w_v, sizes.value_dim), slice(start, stop))

    def prompt(self, program: Program, x: Tensor, y: Tensor | None = None) -> Tensor:
        """The tokens of the program's first pass, as the frozen network reads them."""
        self._check(program, x, y)
        padded = self.padded(program.targets(x, y))
        return self.head.prompt(padded.tokens, padded.w_k, padded.w_q, padded.w_v).tokens

    def trace(self, program: Program, x: Tensor, y: Tensor | None = None) -> Trace:
        """What both layers do in the program's first pass."""
        self._check(program, x, y)
        padded = self.padded(program.targets(x, y))
        return self.head.trace(padded.tokens, padded.w_k, padded.w_q, padded.w_v)

    def specialize(
        self, program: Program, x: Tensor | None = None, y: Tensor | None = None
    ) -> FrozenNetwork:
        """Bake the prompt into weights: the task-specific module of the same algorithm.

        The target head of the program's first pass as a frozen layer of its own; it reads the same
        tokens as the machine. Data are needed only where a program's prompt depends on them, as
        the temperature of several neighbours does, or for data smaller than the machine's.
        """
        if x is None:
            x = torch.zeros(self.samples, self.dim, dtype=self.dtype)
            y = torch.zeros(program.label_shape(x), dtype=self.dtype)
        self._check(program, x, y)
        padded = self.padded(program.targets(x, y))
        eye = torch.eye(self.sizes.tokens).to(padded.tokens)
        layer = SoftmaxAttention(
            padded.w_k[None], padded.w_q[None], padded.w_v[None], eye[None], labels=[program.name]
        )
        return FrozenNetwork([layer], Features.of(tokens=padded.tokens.shape[1]))

    # ---------------------------------------------------------------------------------- files

    def save(self, path: str | Path) -> Path:
        """Write ``config.json``, ``model.safetensors`` and the sizes as ``machine.json``.

        Programs are not part of a machine.
        """
        folder = self.head.save(path)
        write_whole(folder / "machine.json", json.dumps(self.describe(), indent=2))
        return folder

    def describe(self) -> dict[str, Any]:
        """What the machine is sized for, JSON-ready."""
        return {
            "dim": self.dim,
            "samples": self.samples,
            "eps": self.eps,
            "sizes": asdict(self.sizes),
        }

    @classmethod
    def load(cls, path: str | Path) -> Machine:
        """Read a machine back; a changed byte raises ``IntegrityError``."""
        head = Emulator.load(path)
        try:
            saved = json.loads((Path(path) / "machine.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as broken:
            raise IntegrityError(f"{path} cannot be read as a machine: {broken}") from None
        return cls.around(head, saved, str(path))

    @classmethod
    def around(cls, head: Emulator, saved: dict[str, Any], path: str) -> Machine:
        """A machine around its head, from what :meth:`describe` says; messages name ``path``."""
        try:
            machine = cls.__new__(cls)
            machine.eps = check_eps(saved["eps"])
            machine._size(saved["dim"], saved["samples"], Sizes(**saved["sizes"]), head.dtype)
        except (ValueError, KeyError, TypeError) as broken:
            raise IntegrityError(f"{path} cannot be read as a machine: {broken}") from None
        if not isinstance(head, AttentionHead) or head.samples != machine.sizes.tokens:
            raise IntegrityError(f"{path} holds weights that are not this machine's")
        machine.head = head
        return machine
