"""Tolerances by kernels: the theorem's own numbers, never below what float64 says, few launches."""

import math
import os
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from row_walks import norms_of

from iceform.errors import BoundError
from iceform_tolerance import attention, gpu, tolerance
from iceform_tolerance.attention import bound, problem_of
from iceform_tolerance.cases import CASES, Shape, draw
from iceform_tolerance.kind import KernelKind
from iceform_tolerance.reading import HeadStatistics, QueryStatistics, RowSums
from iceform_tolerance.theorem import own_error, sums_error

pytest.importorskip("triton")
# Infinite factors are an answer; Triton's interpreter is NumPy, which mentions them.
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value):RuntimeWarning")

SHAPES = (Shape(1, 2, 37, 24, kv_heads=1, keys=83), Shape(1, 1, 70, 16))
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LAUNCHES = 8  # four kernels, a maximum, and what a caller's layout may need
BF16, FP16 = torch.bfloat16, torch.float16  # of which the latter's underflow shows
KINDS = (
    (BF16, False, {}),
    (FP16, True, {}),
    (BF16, True, {"accumulate": FP16, "block": 16}),
    (FP16, "lower_right", {"probabilities": torch.float32, "output": torch.float32}),
    (FP16, False, {"online": False, "exp_ulps": 1024.0}),
)


def by_the_theorem(problem, kind, shared, walk):
    """What the last kernel says, by the functions that define it."""
    sums, mean, top = walk
    longest, empty = shared.heads[:, :1, None], (top == -math.inf)[..., None]
    norms = norms_of(problem, longest, top)
    own_kind = gpu.walks_kind(kind)
    own, lost = sums_error(own_kind, norms)
    names = ("centre", "largest", "total", "spread")
    of = SimpleNamespace(**dict(zip(names, shared.values[:, :, None].unbind(1), strict=True)))
    spilt = 2 * own_kind.probability_underflow * (of.total + problem.keys * of.centre.abs())
    under = spilt + lost * (1 + 2 * (of.largest + of.centre.abs()))
    value, size, away, k_away = sums.double().split(problem.v.shape[-1], -1)
    k = (mean[..., None].double() + 4 * lost) * longest
    found = RowSums(value, size + under, away + under, (k_away + under) * longest, k, own)
    whole = found.sums(of, slice(None))
    # A sum of either sign is off by what underflows as it is.
    more = torch.exp(own) * under
    whole = replace(
        whole, output=whole.output + more, away=whole.away + more,
        k_away=whole.k_away + more * whole.k,
    )  # fmt: skip
    row = QueryStatistics(norms, whole, value, empty, own_error(norms))
    return row.bound(kind), own.amax(), norms.q.amax()


@pytest.mark.parametrize(("dtype", "causal", "given"), KINDS, ids=str)
def test_the_last_kernel_is_the_theorem(dtype, causal, given):
    from iceform_tolerance.sums import finished, read, weighted_sums

    generator = torch.Generator().manual_seed(3)
    for case in ("random", "large logits", "subnormals", "outliers"):
        inputs = draw(case, SHAPES[0], dtype, generator, DEVICE)
        problem = problem_of(inputs.q, inputs.k, inputs.v, causal=causal)
        kind = KernelKind.of(dtype, **{"device": "cuda", **given})
        q, diagonal, keys = problem.q.flatten(1, 2).contiguous(), problem.diagonal, problem.keys
        rows = {"queries": problem.q.shape[2], "diagonal": diagonal}
        shared = read(
            problem.k, problem.v, seen=min(keys, 37 + (diagonal or 0)) if causal else keys
        )
        walk = weighted_sums(
            q, problem.k, shared.columns, shared.weights, scale=problem.scale, **rows
        )
        numbers = gpu.tables(kind, problem.scale, problem.dim, keys, bool(causal), q.device)
        out, asked = finished(q, walk, shared, *numbers, **rows)
        exact, own, longest_q = by_the_theorem(problem, kind, shared, walk)
        torch.testing.assert_close(out, exact, rtol=1e-12, atol=0.0, msg=case)
        torch.testing.assert_close(asked[1], own, rtol=1e-12, atol=0.0)
        far = shared.values[:, 0].abs() + shared.values[:, 1]
        most = [longest_q * shared.heads[0, 0], shared.values[:, 1].amax(), far.amax()]
        torch.testing.assert_close(asked[2:], torch.stack(most), rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", ["random", "subnormals", "offset values", "causal"])
def test_what_is_read_of_keys_and_values(dtype, case):
    """Against the definition; columns that stand for more than they are would void the bound."""
    from iceform_tolerance.sums import read

    if (dtype, case, DEVICE.type) == (torch.bfloat16, "subnormals", "cpu"):
        pytest.skip("Triton's interpreter has no subnormal bfloat16")
    shape = Shape(1, 2, 30, 24, kv_heads=1, keys=2100)  # more than one block for a program
    inputs = draw(case, shape, dtype, torch.Generator().manual_seed(4), DEVICE)
    problem = inputs.problem()
    seen = 30 if case == "causal" else 2100
    shared, told = (
        read(problem.k, problem.v, seen=seen),
        HeadStatistics.of(problem, KernelKind.of(dtype)),
    )
    of = torch.cat([told.centre, told.largest, told.total, told.spread], 1)
    torch.testing.assert_close(shared.values, of, rtol=1e-14, atol=0.0)
    longest = told.norms.amax(-1)
    torch.testing.assert_close(shared.heads[:, 0], longest, rtol=1e-14, atol=0.0)
    share = told.norms / longest[:, None]
    v, size, away, k_away = shared.columns.double().split(24, -1)
    assert torch.equal(v, told.v)
    assert torch.equal(size, told.v.abs())
    unit, least = KernelKind.of(dtype).low.u, 4 * KernelKind.of(dtype).low.subnormal
    for found, exact in (
        (away, told.away),
        (k_away, share[..., None] * told.away),
        (shared.weights.double(), share),
    ):
        assert bool((found >= exact).all())
        assert bool((found <= exact * (1 + 8 * unit) + least).all())


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_entries_that_are_no_numbers_are_named(monkeypatch, name, bad):
    """The kernels find them; the message has the caller's own place."""
    monkeypatch.setattr(gpu, "_on_device", lambda q: True)
    given = {n: torch.randn(1, 2, 20, 16).bfloat16().to(DEVICE) for n in "qkv"}
    given[name][0, 1, 19, 3] = bad
    with pytest.raises(BoundError, match=rf"{name} has 1 entries .* \(0, 1, 19, 3\)"):
        tolerance(*given.values(), dtype=torch.bfloat16, causal=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.filterwarnings("ignore:Warning. Profiler clears:UserWarning")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [64, 128])
def test_a_tolerance_is_a_few_launches(causal, dim):
    from torch.profiler import ProfilerActivity, profile

    q, k, v = (torch.randn(2, 4, 256, dim, device="cuda").bfloat16() for _ in range(3))
    tolerance(q, k, v, dtype=torch.bfloat16, causal=causal)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        tolerance(q, k, v, dtype=torch.bfloat16, causal=causal)
        torch.cuda.synchronize()
    launches = sum(e.count for e in seen.key_averages() if "LaunchKernel" in e.key)
    assert 0 < launches <= LAUNCHES


def both(monkeypatch, problem, kind):
    """The bound by the kernel, whether it ran, and the bound in float64."""
    ran = []

    def watched(*given):
        out = gpu.walked(*given)
        ran.append(out is not None)
        return out

    monkeypatch.setattr(gpu, "_on_device", lambda q: True)
    monkeypatch.setattr(attention, "walked", watched)
    fast = bound(problem, kind)
    monkeypatch.setattr(attention, "walked", lambda *given: None)
    return fast, any(ran), bound(problem, kind)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_kernels_bound_is_that_of_float64(monkeypatch, dtype):
    generator = torch.Generator().manual_seed(5)
    walks = 0
    cases = list(CASES) if DEVICE.type == "cuda" else list(CASES)[dtype == FP16 :: 2]
    for at, case in enumerate(cases):
        inputs = draw(case, SHAPES[at % 2], dtype, generator, DEVICE)
        kind = KernelKind.of(dtype, device="cuda")
        fast, ran, slow = both(monkeypatch, inputs.problem(), kind)
        assert bool((fast >= slow).all()), case
        assert bool((fast <= 1.06 * slow).all()), case
        walks += ran
    assert walks >= len(cases) - 3  # masks, and logits that are too large


def test_causal_rows(monkeypatch):
    generator = torch.Generator().manual_seed(6)
    inputs = draw("random", SHAPES[0], torch.bfloat16, generator, DEVICE)
    for causal in (True, "lower_right"):
        problem = problem_of(inputs.q, inputs.k, inputs.v, causal=causal)
        fast, ran, slow = both(monkeypatch, problem, KernelKind.of(torch.bfloat16, device="cuda"))
        assert ran
        assert bool((fast >= slow).all())
        assert bool((fast <= 1.06 * slow).all())


@pytest.mark.parametrize(
    "change",
    [
        lambda q, k, v: (q * 300, k * 300, v),  # logits that nothing but float64 can tell apart
        lambda q, k, v: (q, k, (v + 0.99).sign() * 6e4),  # |v - mean| beyond float16
    ],
)
def test_what_is_not_sharp_is_left_to_float64(monkeypatch, change):
    inputs = draw("random", SHAPES[1], torch.float16, torch.Generator().manual_seed(7))
    q, k, v = (x.half().to(DEVICE) for x in change(inputs.q, inputs.k, inputs.v))
    problem = problem_of(q, k, v)
    fast, ran, slow = both(monkeypatch, problem, KernelKind.of(torch.float16, device="cuda"))
    assert not ran
    assert torch.equal(fast, slow)


def test_the_kernels_compile_for_gpus():
    """To machine code for two generations, with no GPU at hand."""
    code = textwrap.dedent("""
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource
        from iceform_tolerance import sums

        def made(kernel, capability, kinds, fixed, **options):
            names = kernel.arg_names
            # Pointers and sizes are multiples of 16, so that loads are in flight.
            even = [n for n in names if kinds.get(n, "").startswith(("*", "i32"))]
            source = ASTSource(
                fn=kernel,
                signature={n: kinds.get(n, "constexpr") for n in names},
                constexprs=fixed,
                attrs={(names.index(n),): [["tt.divisibility", 16]] for n in even},
            )
            return triton.compile(source, GPUTarget("cuda", capability, 32), options=options)

        def typed(**of):
            return {name: kind for kind, names in of.items() for name in names.split()}

        half, single, double = "*bf16", "*fp32", "*fp64"
        sizes = typed(i32="rows queries keys dim values diagonal seen shares counts")
        gathered = sizes | dict(
            k_ptr=half, v_ptr=half, norm_ptr=double, part_ptr=double, whole_ptr=double
        )
        columns = gathered | dict(
            c_ptr=half, w_ptr=single, of_ptr=double, head_ptr=double, wider="fp32", floor="fp32"
        )
        walk = sizes | dict(
            q_ptr=half, k_ptr=half, c_ptr=half, w_ptr=single, out_ptr=single, mean_ptr=single,
            top_ptr=single, scale="fp32",
        )
        ends = sizes | dict(
            q_ptr=half, sums_ptr=single, mean_ptr=single, top_ptr=single, of_ptr=double,
            head_ptr=double, fixed_ptr=double, by_n_ptr=double, out_ptr=double, asked_ptr=double,
        )
        most = {80: 163 * 1024, 90: 227 * 1024}  # bytes of shared memory for a program
        found = []
        for capability, dim in ((80, 128), (90, 64), (90, 128)):
            rows, stages = sums._fitting(dim, 4 * dim, most[capability])
            whole = dict(
                CAUSAL=True, DIM=dim, VALUES=4 * dim, ROWS=rows, KEYS=64, WIDEN=False, BLOCKS=0
            )
            found.append((capability, made(
                sums._sums_kernel, capability, walk, whole, num_warps=8, num_stages=stages
            )))
        # The others ask for little: once, at their widest.
        at, wide = dict(DIM=128, VALUES=128), dict(VALUES=128, KEYS=64, SHARES=32)
        for kernel, kinds, fixed in (
            (sums._gather_kernel, gathered, at | dict(KEYS=64, BLOCKS=2)),
            (sums._columns_kernel, columns, wide),
            (sums._finish_kernel, ends, at | dict(CAUSAL=True, ROWS=32)),
        ):
            found.append((80, made(kernel, 80, kinds, fixed)))
        for capability, kernel in found:
            assert kernel.asm["cubin"]
            assert kernel.metadata.shared <= most[capability]
    """)
    with tempfile.TemporaryDirectory() as cache:
        given = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": cache}
        done = subprocess.run(
            [sys.executable, "-c", code], env=given, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr[-2000:]
