"""Sums by a kernel: never below what float64 says, and hardly above it."""

import os
import subprocess
import sys
import tempfile
import textwrap

import pytest
import torch

from iceform.tolerances import attention, walking
from iceform.tolerances.attention import bound
from iceform.tolerances.cases import CASES, Shape, draw
from iceform.tolerances.kind import Kind

pytest.importorskip("triton")

SHAPES = (Shape(1, 2, 37, 24, kv_heads=1, keys=83), Shape(1, 1, 70, 16))
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def both(monkeypatch, problem, kind):
    """The bound by the kernel, whether it ran, and the bound in float64."""
    ran = []

    def watched(*given):
        out = walking.walked(*given)
        ran.append(out is not None)
        return out

    monkeypatch.setattr(walking, "_on_device", lambda q: True)
    monkeypatch.setattr(attention, "walked", watched)
    fast = bound(problem, kind)
    monkeypatch.setattr(attention, "walked", lambda *given: None)
    return fast, ran[0], bound(problem, kind)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_kernels_bound_is_that_of_float64(monkeypatch, dtype):
    generator = torch.Generator().manual_seed(5)
    walks = 0
    for shape in SHAPES:
        for case in CASES:
            inputs = draw(case, shape, dtype, generator, DEVICE)
            kind = Kind.of(dtype, device="cuda")
            fast, ran, slow = both(monkeypatch, inputs.problem(), kind)
            assert bool((fast >= slow).all()), case
            assert bool((fast <= 1.06 * slow).all()), case
            walks += ran
    assert walks >= len(CASES)


def test_causal_rows(monkeypatch):
    generator = torch.Generator().manual_seed(6)
    inputs = draw("random", SHAPES[0], torch.bfloat16, generator, DEVICE)
    for causal in (True, "lower_right"):
        problem = attention.problem_of(inputs.q, inputs.k, inputs.v, causal=causal)
        fast, ran, slow = both(monkeypatch, problem, Kind.of(torch.bfloat16, device="cuda"))
        assert ran
        assert bool((fast >= slow).all())
        assert bool((fast <= 1.06 * slow).all())


def test_what_underflows_is_added_to_sums_of_either_sign():
    """Weights that round up from below the least number make a sum of nothing of what is there."""
    from iceform.backends.triton.sums import finished

    def rows(number):
        return torch.full((1, 3, 1), number, dtype=torch.float64, device=DEVICE)

    def columns(number):
        return torch.full((1, 1, 2), number, dtype=torch.float64, device=DEVICE)

    by = dict.fromkeys(
        ("under", "more", "unsure", "k", "longest", "k_away", "away", "size", "coarse", "output",
         "lost", "stray", "spilt", "drained", "own"), 0.0,
    )  # fmt: skip
    by |= {"under": 0.25, "more": 2.0, "output": 3.0, "own": 1.0}
    sums = torch.zeros(1, 3, 8, device=DEVICE)
    of = [columns(number) for number in (0.0, 1.0, 0.0, 1e9, 0.0)]
    found = finished(
        sums, torch.zeros(1, 3, device=DEVICE), [rows(n) for n in by.values()], of,
        probability_unit=0.0, output_unit=0.0,
    )  # fmt: skip
    assert torch.equal(found, torch.full_like(found, 3.0 * 2.0 * 0.25))


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
    problem = attention.problem_of(q, k, v)
    fast, ran, slow = both(monkeypatch, problem, Kind.of(torch.float16, device="cuda"))
    assert not ran
    assert torch.equal(fast, slow)


def test_the_kernels_compile_for_gpus():
    """To machine code for two generations, with no GPU at hand."""
    code = textwrap.dedent("""
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource
        from iceform.backends.triton.sums import _finish_kernel, _fitting, _sums_kernel

        halves = dict.fromkeys(("q_ptr", "k_ptr", "c_ptr"), "*bf16")
        singles = dict.fromkeys(("w_ptr", "out_ptr", "mean_ptr", "top_ptr"), "*fp32")
        sizes = dict.fromkeys(("rows", "queries", "keys", "dim", "values", "diagonal"), "i32")
        fixed = dict(CAUSAL=True, DIM=64, VALUES=256, ROWS=128, KEYS=64, WIDEN=False, BLOCKS=0)
        divisible = {(i,): [["tt.divisibility", 16]] for i in range(12)}  # loads are in flight
        most = {80: 163 * 1024, 90: 227 * 1024}  # bytes of shared memory for a program
        kinds = {**halves, **singles, **sizes, "scale": "fp32", **dict.fromkeys(fixed, "constexpr")}
        doubles = dict.fromkeys(("by_ptr", "of_ptr", "out_ptr"), "*fp64")
        ends = {"sums_ptr": "*fp32", "top_ptr": "*fp32", **doubles}
        ends |= dict.fromkeys(("rows", "values", "all_rows"), "i32")
        ends |= dict.fromkeys(("p_unit", "out_unit"), "fp32") | {"VALUES": "constexpr"}
        last = ASTSource(
            fn=_finish_kernel, signature=ends | {"ROWS": "constexpr"},
            constexprs={"VALUES": 64, "ROWS": 16},
        )
        for capability in (80, 90):
            assert triton.compile(last, GPUTarget("cuda", capability, 32)).asm["cubin"]
            target = GPUTarget("cuda", capability, 32)
            for dim, values in ((64, 256), (128, 512)):
                rows, stages = _fitting(dim, values, most[capability])
                own = fixed | {"DIM": dim, "VALUES": values, "ROWS": rows}
                source = ASTSource(
                    fn=_sums_kernel, signature=kinds, constexprs=own, attrs=divisible
                )
                asked = {"num_warps": 8, "num_stages": stages}
                made = triton.compile(source, target, options=asked)
                assert made.asm["cubin"]
                assert made.metadata.shared <= most[capability]
    """)
    with tempfile.TemporaryDirectory() as cache:
        given = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": cache}
        done = subprocess.run(
            [sys.executable, "-c", code], env=given, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr[-2000:]
