"""What is measured. Every suite prints the native algorithm beside the emulated one."""

from __future__ import annotations

import math
import resource
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from unittest import mock

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

import iceform as ice
from benchmarks.timing import Bench, busy, replayed, wall_ms
from iceform.certificates import RecordingBackend
from iceform.paper.residual import Rates
from iceform.run import loops, primitives, windowed
from iceform.tables import regimes

__all__ = ["SUITES"]

_PART = 1 << 20  # rows of a float64 reference computed at once
_BYTES = 1 << 31  # of samples read in one step on a GPU


def _uniform(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers in [-1, 1), made a part at a time so that wide types need no second copy."""
    out = torch.empty(shape, dtype=dtype, device=device)
    for part in out.split(_PART):
        part.copy_(torch.rand(part.shape, device=device) * 2 - 1)
    return out


def _exact_sum(x: Tensor, y: Tensor, w: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    parts = zip(x.split(_PART), y.split(_PART), strict=True)
    total = x.new_zeros(x.shape[1], dtype=torch.float64)
    for rows, labels in parts:
        wide = rows.double()
        total += f(wide @ w.double() - labels.double()) @ wide
    return total


def _off(value: Tensor, exact: Tensor) -> float:
    return float((value.double() - exact).abs().max() / exact.abs().max())


def _native_sum(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    return x.T @ torch.tanh((x @ w.to(x.dtype)).to(w.dtype) - y).to(x.dtype)


def _solve(x: Tensor, y: Tensor, l2: float) -> Tensor:
    n, d = x.shape
    gram = x.mT @ x / n + l2 * torch.eye(d, dtype=x.dtype, device=x.device)
    solution: Tensor = torch.linalg.solve(gram, x.mT @ y / n)
    return solution


def step(bench: Bench) -> None:
    """A gradient step's sum over samples of tanh(w.x - y) x, against X.T @ tanh(X @ w - y)."""
    device = bench.device
    table = ice.Interpolant.fit(torch.tanh, -10, 10, tokens=64)
    line = ice.Interpolant.identity(-10, 10, 1e-5)
    f32, bf16, f64 = torch.float32, torch.bfloat16, torch.float64
    if device.type == "cuda":
        cases = [(f32, 64), (f32, 16), (f32, 256), (f32, 1024), (bf16, 64), (bf16, 256), (f64, 64)]
        sizes = [(t, _BYTES // (d * torch.finfo(t).bits // 8), d) for t, d in cases]
    else:
        sizes = [(f32, 10**6, 50), (f64, 10**6, 50)]
    for dtype, n, d in sizes:
        wide = f32 if dtype == bf16 else dtype
        case = f"n={n} d={d} {str(dtype).removeprefix('torch.')}"
        x, y = _uniform((n, d), dtype, device), _uniform((n,), wide, device)
        w = _uniform((d,), wide, device) / math.sqrt(d)
        exact = _exact_sum(x, y, w, torch.tanh)

        native = partial(_native_sum, x, y, w)
        read = min(bench.time(x.sum), bench.time(x.amax))
        gigabytes = x.numel() * x.element_size() * 1e-9
        bench.add("step", case, "read x once", read, note=f"{gigabytes / read:.2f} TB/s")
        tables = (("tanh, 64 tokens", table), ("line", line))
        emulated = [partial(primitives.residual_sum, x, y, w, it) for _, it in tables]
        base, *taken = bench.side_by_side(native, *emulated)
        bench.add("step", case, "native", base, 1.0, _off(native(), exact))
        _native_compiled(bench, "step", case, native, base, exact)
        for (name, it), took in zip(tables, taken, strict=True):
            reference = exact if it is table else _exact_sum(x, y, w, lambda z: z)
            off = _off(primitives.residual_sum(x, y, w, it), reference)
            half = windowed.window_of(it, wide)
            note = f"{read / took:.1%} of the read rate, window {2 * half.half + 1}" if half else ""
            bench.add("step", case, f"emulated, {name}", took, took / base, off, note)
        del x, y


def emulator(bench: Bench) -> None:
    """``GradientStep`` as people call it: defaults, checks included, nothing warmed up before."""
    cuda = bench.device.type == "cuda"
    sizes, d = ((1 << 22, 1 << 23), 64) if cuda else ((10**6,), 50)
    for dtype in (torch.float32, torch.float64):
        for n in sizes:
            _as_called(bench, n, d, dtype)
    if not cuda:
        with busy():
            _as_called(bench, sizes[0], d, torch.float32, "both cores busy, ")


def _as_called(bench: Bench, n: int, d: int, dtype: torch.dtype, load: str = "") -> None:
    device = bench.device
    x, y, w = (_uniform(s, dtype, device) for s in ((n, d), (n,), (d,)))
    case = f"{load}n={n} d={d} {str(dtype).removeprefix('torch.')}"

    def native() -> Tensor:
        return w - 0.1 / n * (x.T @ torch.tanh(x @ w - y))

    began = time.perf_counter()
    em = ice.paper.GradientStep(torch.tanh, 0.1, dim=d, samples=n, bound=1.0, eps=None, dtype=dtype)
    built = 1e3 * (time.perf_counter() - began)
    called = partial(em, x, y, w)
    native()
    first = wall_ms(called, device)
    base, took = bench.side_by_side(native, called)
    exact = em.reference(x, y, w)
    bench.add("emulator", case, "native", base, 1.0, float((native() - exact).abs().max()))
    bench.add("emulator", case, "GradientStep, built", built, note="a table, and its proof")
    bench.add("emulator", case, "GradientStep, first call", first, first / base)
    off = float((called().double() - exact).abs().max())
    note = f"certified {em.certificate:.1e}, checks included"
    bench.add("emulator", case, "GradientStep, called again", took, took / base, off, note)
    if not load:
        _native_compiled(bench, "emulator", case, native, base, exact)
        _literally(bench, case, em, (x, y, w), base)


def _native_compiled(
    bench: Bench, suite: str, case: str, native: Callable[[], Tensor], base: float, exact: Tensor
) -> None:
    size = float(exact.abs().max()) if suite == "step" else 1.0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled = torch.compile(native)
            best = bench.time(compiled)
        off = float((compiled().double() - exact).abs().max()) / size
        bench.add(suite, case, "native, compiled", best, best / base, off)
    except RuntimeError as failed:
        print(f"native code is not compiled here: {str(failed).splitlines()[0]}")


def _literally(
    bench: Bench, case: str, em: ice.paper.GradientStep, data: tuple[Tensor, ...], base: float
) -> None:
    """The same step by the matrices themselves, on some of the samples."""
    x, y, w = data
    some = min(len(x), 4096)
    literal = ice.paper.GradientStep(
        torch.tanh, 0.1, dim=x.shape[1], samples=some, bound=1.0, eps=None, dtype=em.dtype,
        backend="literal",
    )  # fmt: skip
    took = wall_ms(partial(literal, x[:some], y[:some], w), bench.device) * len(x) / some
    note = f"every entry of attention; {some} samples, scaled up"
    bench.add("emulator", case, "GradientStep, literal", took, took / base, note=note)


def head(bench: Bench) -> None:
    """An attention head given in the prompt, against the same head run natively."""
    device, cuda = bench.device, bench.device.type == "cuda"
    d, d_h = 512, 64
    cases = (
        [(t, n, 16) for t in (torch.float32, torch.bfloat16) for n in (4096, 1024)]
        if cuda
        else [(torch.float32, 1024, 1), (torch.float64, 1024, 1)]
    )
    tables = {"": ice.Interpolant.identity(-12, 12, 1e-3)}
    exact_table = regimes.spectral(-12, 12, 1e-8, cells=16)  # where float32 rounds least
    for dtype, n, batch in cases:
        tables = {"": tables[""]}
        if dtype != torch.bfloat16:  # at the error of the head itself
            tables[", as exact as native"] = exact_table
        case = f"batch={batch} n={n} d={d} d_h={d_h} {str(dtype).removeprefix('torch.')}"
        inputs = [torch.randn(batch, n, d, device=device).to(dtype) / 8 for _ in range(3)]
        w_k, w_q, w_v = (torch.randn(d_h, d, device=device).to(dtype) / 16 for _ in range(3))

        def native(x: Tensor, q: Tensor = w_q, k: Tensor = w_k, v: Tensor = w_v) -> Tensor:
            parts = ((x @ w.mT)[:, None] for w in (q, k, v))
            return sdpa(*parts, scale=1.0)[:, 0]

        def emulated(
            table: ice.Interpolant, x: Tensor, q: Tensor = w_q, k: Tensor = w_k, v: Tensor = w_v
        ) -> Tensor:
            keys, queries, values = primitives.project(x, [k, q, v], table)
            return primitives.attention(queries, keys, values)

        x = inputs[0][:1].double()
        exact = sdpa(*((x @ w.double().mT)[:, None] for w in (w_q, w_k, w_v)), scale=1.0)[:, 0]
        base = bench.time(*(replayed(partial(native, x), device) for x in inputs))
        bench.add("head", case, "native", base, 1.0, _off(native(inputs[0])[:1], exact))
        for how, table in tables.items():
            took = bench.time(*(replayed(partial(emulated, table, x), device) for x in inputs))
            off = _off(emulated(table, inputs[0])[:1], exact)
            note = f"{table.tokens} tokens"
            bench.add("head", case, f"emulated{how}", took, took / base, off, note)
        if cuda:
            base = bench.time(*(partial(native, x) for x in inputs))
            bench.add("head", case, "native, no graph", base, 1.0)
            for how, table in tables.items():
                took = bench.time(*(partial(emulated, table, x) for x in inputs))
                bench.add("head", case, f"emulated{how}, no graph", took, took / base)


def loop(bench: Bench) -> None:
    """Many passes of ridge and lasso, against single passes and against a direct solution."""
    device, cuda = bench.device, bench.device.type == "cuda"
    n, d, steps, dtype = (1 << 22 if cuda else 1 << 16), 64, 200, torch.float32
    case = f"n={n} d={d} float32, {steps} passes"
    x = _uniform((n, d), dtype, device)
    truth = _uniform((d,), dtype, device) / d
    y = (x @ truth + 0.1 * _uniform((n,), dtype, device)).clamp(-1, 1)
    em = ice.paper.RidgeRegression(
        1.0, dim=d, samples=n, largest=0.36, smallest=0.3, radius=0.5, steps=steps,
        schedule="constant", eps=None, dtype=dtype,
    )  # fmt: skip
    descent, start = em.descent, torch.zeros(d, dtype=dtype, device=device)
    exact = em.reference(x, y)
    backend, one = descent.bind(), descent.step._look_ups(x, y, start, Rates())

    def sums(w: Tensor) -> Tensor:
        return backend.total(replace(one, w=w, gain=1.0, keep=0.0))

    def whole() -> Tensor:
        return descent._on_device(backend, x, y, start)

    single = bench.time(lambda: sums(start))
    bench.add("loop", case, f"{steps} single passes", steps * single, 1.0)
    took = bench.time(whole)
    off = float((whole().double() - exact).abs().max())
    bench.add("loop", case, "ridge, all passes", took, took / (steps * single), off)
    took = bench.time(lambda: em(x, y))
    bench.add("loop", case, "ridge, checks included", took, took / (steps * single), off)
    for name, wide in (("float32", x), ("float64", x.double())):
        solve = partial(_solve, wide, y.to(wide.dtype), em.l2)
        base = bench.time(solve)
        off = float((solve().double() - exact).abs().max())
        bench.add("loop", case, f"torch.linalg, {name}", base, base / (steps * single), off)
    rates = [(1.0, 0.0, 0.0)] * steps
    took = bench.time(lambda: loops.descend(sums, start, n, rates, 1e-3))

    def native_lasso(x: Tensor = x, y: Tensor = y) -> Tensor:
        w = torch.zeros(d, dtype=x.dtype, device=device)
        for _ in range(steps):
            moved = w - (x.mT @ (x @ w - y)) / n
            w = torch.sign(moved) * (moved.abs() - 1e-3).clamp(min=0)
        return w

    exact = native_lasso(x.double(), y.double())
    base = bench.time(native_lasso)
    bench.add("loop", case, "lasso, native", base, 1.0, _off(native_lasso(), exact))
    off = _off(loops.descend(sums, start, n, rates, 1e-3)[0], exact)
    bench.add("loop", case, "lasso, emulated", took, took / base, off)


def scaling(bench: Bench) -> None:
    """Cost against n; the exponent is fitted on the emulated times."""
    device = bench.device
    # Narrow samples show what a call costs beside its work; on a CPU also those of the step suite.
    for d in (16, 50) if device.type == "cpu" else (16,):
        _cost_against_samples(bench, d)
    if device.type == "cpu":
        for n in (4, 8, 16, 32):
            em = ice.paper.GradientStep("absolute", dim=4, samples=n, eps=1e-3, backend="literal")
            data = [_uniform(s, torch.float64, device) / 2 for s in ((n, 4), (n,), (4,))]
            took = bench.time(partial(em, *data))
            bench.add("scaling", f"n={n} d=4 float64", "literal", took)


def _cost_against_samples(bench: Bench, d: int) -> None:
    device, dtype = bench.device, torch.float32
    table = ice.Interpolant.fit(torch.tanh, -10, 10, tokens=64)
    times: list[tuple[float, float]] = []
    sizes = [10**4, 10**5, 10**6, 10**7]
    if device.type == "cuda":
        sizes += [3 * 10**7, 10**8]
    for n in sizes:
        x, y = _uniform((n, d), dtype, device), _uniform((n,), dtype, device)
        w = _uniform((d,), dtype, device) * (4 / d)
        case = f"n={n} d={d} float32"
        before = _memory(device)
        primitives.residual_sum(x, y, w, table)
        held = _memory(device, peak=True) - before
        calls = partial(_native_sum, x, y, w), partial(primitives.residual_sum, x, y, w, table)
        base, took = bench.side_by_side(*(replayed(call, device) for call in calls))
        bench.add("scaling", case, "native", base, 1.0)
        note = f"{held / 2**20:.1f} MiB held beside the data"
        bench.add("scaling", case, "emulated", took, took / base, note=note)
        times.append((math.log(n), math.log(took)))
    # Below some 10^7 samples a GPU's step is mostly its launches, native or not.
    for first in range(len(times) - 2):
        span = f"{sizes[first]:.0e}..{sizes[-1]:.0e}"
        slope = statistics.linear_regression(*zip(*times[first:], strict=True)).slope
        what = f"exponent over n={span}, d={d}"
        bench.add("scaling", what, "emulated", slope, note="not milliseconds")


def _memory(device: torch.device, *, peak: bool = False) -> float:
    """Bytes held now, or at most since the last call."""
    if device.type != "cuda":
        return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if peak:
        return float(torch.cuda.max_memory_allocated(device))
    torch.cuda.reset_peak_memory_stats(device)
    return float(torch.cuda.memory_allocated(device))


def accuracy(bench: Bench) -> None:
    """Error against cost of one look-up, and the paper's hard regime at the same eps."""
    device, dtype = bench.device, torch.float64
    count = 1 << (24 if device.type == "cuda" else 20)
    z = _uniform((count,), dtype, device) * 5
    base = bench.time(lambda: torch.tanh(z))
    case = f"{count} look-ups of tanh, float64"
    bench.add("accuracy", case, "native", base, 1.0, 0.0)
    for eps in (1e-2, 1e-3, 1e-4, 1e-6, 1e-8, 1e-10):
        tables = {"spectral": ice.Interpolant.fit(torch.tanh, -5, 5, eps)}
        if eps >= 1e-3:
            cells = math.ceil(10 / eps)
            tables["hard"] = ice.Interpolant.hard(torch.tanh, -5, 5, cells=cells)
        for name, it in tables.items():
            took = bench.time(partial(primitives.interpolate, z, it))
            off = float((primitives.interpolate(z, it) - torch.tanh(z)).abs().max())
            note = f"{it.tokens} tokens"
            bench.add("accuracy", f"eps={eps:.0e}", name, took, took / base, off, note)
            if it.tokens <= 256:
                part = z[: 1 << 18]
                took = bench.time(partial(primitives.plain_interpolate, part, it))
                took *= count / len(part)
                note = f"{it.tokens} tokens, one exponential each"
                bench.add(
                    "accuracy", f"eps={eps:.0e}", f"{name}, plain", took, took / base, off, note
                )


def networks(bench: Bench) -> None:
    """An encoder of MiniLM's shape, 6 layers of width 384, with random weights."""
    on_gpu = bench.device.type == "cuda"
    batches = ((256, 64), (32, 64)) if on_gpu else ((25, 20),)
    layer = torch.nn.TransformerEncoderLayer(
        384, 12, 1536, dropout=0.0, activation="gelu", batch_first=True
    )
    plain = torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    for dtype in (torch.float32, torch.float64):
        model = plain.to(bench.device, dtype).eval().requires_grad_(False)
        few = torch.randn(4, batches[0][1], 384, dtype=dtype)
        network = ice.in_context(model.cpu(), calibration=[few], headroom=4.0).to(bench.device)
        model = model.to(bench.device)
        for batch in batches:
            x = torch.randn(*batch, 384, dtype=dtype, device=bench.device)
            case = f"{batch[0]} x {batch[1]} tokens, {str(dtype).removeprefix('torch.')}"
            with torch.no_grad():
                exact = network.reference(x)
                native, ours = bench.side_by_side(partial(model, x), partial(network, x))
                off = _off(network(x), exact)
            bench.add("networks", case, "torch", native)
            bench.add("networks", case, "in context", ours, ratio=ours / native, error=off)


def attestation(bench: Bench) -> None:
    """What attesting a run costs: weights hashed at its end, rows run again literally."""
    import iceform_estimators  # the other suites need the core alone

    spent: list[float] = []
    plain = RecordingBackend.attest

    def timed(self: RecordingBackend) -> ice.certificates.Attestation:
        begun = time.perf_counter()
        try:
            return plain(self)
        finally:
            spent.append(time.perf_counter() - begun)

    dim = 10
    machine = iceform_estimators.Machine(dim + 1, layout="stream")
    programs = {
        "ridge": iceform_estimators.algorithms.Ridge(1.0),
        "lasso": iceform_estimators.algorithms.Lasso(0.01),
        "huber": iceform_estimators.algorithms.Huber(),
        "logistic": iceform_estimators.algorithms.Logistic(),
    }
    with mock.patch.object(RecordingBackend, "attest", timed):
        for name, program in programs.items():
            for n in (200, 10_000, 100_000):
                x = _uniform((n, dim), torch.float64, bench.device)
                y = x.sum(1) + 0.1 * _uniform((n,), torch.float64, bench.device)
                labels = (y > 0).double() if name == "logistic" else y
                run = partial(machine.run, program, x, labels)
                ms = bench.time(run)
                spent.clear()
                run()
                part = 1e3 * sum(spent)
                bench.add("attest", f"{name}, n={n}", "run, attestation included", ms)
                note = "at most 10 % of the run or 30 ms, and one prompt at least"
                bench.add(
                    "attest", f"{name}, n={n}", "attestation", part, ratio=part / ms, note=note
                )


SUITES: dict[str, Callable[[Bench], None]] = {
    "step": step,
    "emulator": emulator,
    "head": head,
    "loop": loop,
    "scaling": scaling,
    "accuracy": accuracy,
    "networks": networks,
    "attestation": attestation,
}
