"""The GPU kernels against dense torch, in Triton's interpreter where there is no GPU."""

import math
import os
import subprocess
import sys
import tempfile
import textwrap

import pytest
import torch

import iceform as ice
from iceform.networks.frozen import identity_table
from iceform.networks.pieces.norms import _root_table
from iceform.run import loops, primitives
from iceform.run.primitives import SampleMaxima
from iceform.tables import Interpolant
from tests.run.tables import points, rounding_bound, table

pytest.importorskip("triton", reason="the gpu extra is not installed")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = (torch.float64, torch.float32)


@pytest.fixture(scope="module")
def kernels():
    from iceform.run import triton

    if DEVICE == "cpu" and not triton.interpreted():
        pytest.skip("Triton was imported before its interpreter was asked for")
    return triton


def test_bfloat16_look_ups_are_rounded_once(kernels):
    it = table("line")
    z = points(it, torch.bfloat16, 200).to(DEVICE)
    off = (kernels.interpolate(z, it).double() - z.double()).abs()
    unit = torch.finfo(torch.bfloat16).eps / 2
    # Half a unit for the result, twice a unit for the tokens left out.
    assert off.max() <= 3 * unit * 5


def _data(n, d, dtype, batch=()):
    x = ((torch.rand(*batch, n, d) * 2 - 1) / d**0.5).to(dtype)
    wide = torch.float32 if dtype == torch.bfloat16 else dtype
    y, w = (torch.rand(s, dtype=wide) * 2 - 1 for s in ((n,), (*batch, d)))
    return x.to(DEVICE), y.to(DEVICE), w.to(DEVICE)


def _exact(x, y, w, it, labels=None):
    x, y, w = x.double(), y.double(), w.double()
    looked = primitives.plain_interpolate((x @ w[..., None])[..., 0] - y, it)
    if labels is not None:
        looked = looked - labels.double()
    return (looked[..., None, :] @ x)[..., 0, :]


def test_wide_samples_are_tiled(kernels):
    it = table("fitted")
    x, y, w = _data(40, 150, torch.float64)
    launch = kernels.Launch(32, 64)
    labels = torch.rand(40, dtype=torch.float64, device=DEVICE)
    found = kernels.residual_sum(x, y, w, it, labels, launch)
    allowed = 40 * rounding_bound(it, x.dtype)
    assert (found - _exact(x, y, w, it, labels)).abs().max() <= allowed


@pytest.mark.parametrize("ahead", [False, True])
def test_several_programs_and_early_loads_agree(kernels, ahead):
    it = table("line")
    x, y, w = _data(300, 5, torch.float64)
    found = kernels.residual_sum(x, y, w, it, None, kernels.Launch(16, 8, 1, 2, ahead))
    assert (found - _exact(x, y, w, it)).abs().max() <= 300 * rounding_bound(it, x.dtype)
    again = kernels.residual_sum(x, y, w, it, None, kernels.Launch(16, 8, 1, 2, ahead))
    assert torch.equal(found, again)


def test_many_samples_are_summed_in_blocks(kernels):
    from iceform.run import rounding_of

    it = table("line")
    x, y, w = _data(4500, 4, torch.float32)
    found, expected = kernels.residual_sum(x, y, w, it), _exact(x, y, w, it)
    error = rounding_of("fused").sum_error(torch.float32, len(x)) * it.size
    error += rounding_bound(it, torch.float32) + 8 * 6e-8 * 3
    assert (found - expected).abs().max() / len(x) <= error


@pytest.mark.parametrize("tiled", [False, True])
def test_the_backward_of_sums_agrees_with_autograd(kernels, tiled, monkeypatch):
    if tiled:
        monkeypatch.setattr(kernels.residuals, "TILE", 8)
    it = table("line")
    x, y, w = _data(20, 40, torch.float64)
    labels = torch.rand(20, dtype=torch.float64, device=DEVICE)
    inputs = [t.clone().requires_grad_() for t in (x, y, w, labels)]
    towards = torch.rand(40, dtype=torch.float64, device=DEVICE)
    found = torch.autograd.grad(kernels.residual_sum(*inputs[:3], it, inputs[3]), inputs, towards)
    expected = torch.autograd.grad(_exact(*inputs[:3], it, inputs[3]), inputs, towards)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours - theirs).abs().max() <= 1e-12 * theirs.abs().max()


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16], ids=str)
def test_projections_are_looked_up_as_they_are_made(kernels, dtype):
    it = table("line")
    x = (torch.rand(2, 20, 37) - 0.5).to(dtype).to(DEVICE)
    weights = (torch.rand(3, 9, 37) - 0.5).to(dtype).to(DEVICE)
    found = kernels.project(x, weights, it)
    expected = x.double() @ weights.double().mT[:, None]
    wide = torch.float32 if dtype == torch.bfloat16 else dtype
    allowed = rounding_bound(it, wide) + 40 * torch.finfo(wide).eps * 10
    if dtype == torch.bfloat16:
        allowed += 3 * torch.finfo(dtype).eps / 2 * 5
    assert (found.double() - expected).abs().max() <= allowed


@pytest.mark.parametrize("size", [(1, 1), (300, 5), (40, 64), (7, 3000)], ids=str)
@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16], ids=str)
def test_the_largest_entry_and_the_longest_row(kernels, size, dtype):
    x = (torch.rand(*size, dtype=torch.float64) * 2 - 1).to(dtype).to(DEVICE)
    largest, longest = kernels.extremes(x)
    assert largest == x.abs().max()
    exact = x.double().norm(dim=-1).max()
    unit = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps / 2
    assert abs(longest - exact) <= (size[1] + 2) * unit * exact


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("row", [0, 150, 299])
def test_what_is_not_finite_is_among_the_extremes(kernels, bad, row):
    x = torch.rand(300, 5, device=DEVICE)
    x[row, 3] = bad
    largest, longest = kernels.extremes(x).tolist()
    seen = abs(bad)
    assert largest == seen or (math.isnan(largest) and math.isnan(seen))
    assert longest == seen or (math.isnan(longest) and math.isnan(seen))


@pytest.mark.parametrize("l1", [0.0, 0.02])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_step_on_the_device_is_the_plain_one(kernels, l1, dtype):
    gram = torch.rand(5, 5, dtype=torch.float64, device=DEVICE)
    moment = torch.rand(3, 5, dtype=torch.float64, device=DEVICE)
    start = torch.rand(3, 5, dtype=dtype, device=DEVICE)
    rates = [(0.1, 0.01, 0.3), (0.2, 0.0, 0.1), (0.1, 0.02, 0.0), (0.3, 0.0, 0.0)]

    def sums(w):
        return w.double() @ gram - moment

    kernel = loops.descend(sums, start, 2, rates, l1, backend="triton")
    if DEVICE == "cuda":
        kernel = tuple(t.cpu() for t in kernel)
    plain = loops.descend(lambda w: sums(w.to(DEVICE)).cpu(), start.cpu(), 2, rates, l1)
    for ours, theirs in zip(kernel, plain, strict=True):
        assert (ours - theirs).abs().max() <= 8 * torch.finfo(dtype).eps


def test_an_emulator_insists_on_the_kernels(kernels):
    options = {"dim": 3, "samples": 6, "eps": None, "dtype": torch.float32}
    em = ice.paper.GradientStep("absolute", 0.5, backend="triton", **options)
    same = ice.paper.GradientStep("absolute", 0.5, backend="literal", **options)
    x, y, w = (torch.rand(s, device=DEVICE) - 0.5 for s in ((6, 3), (6,), (3,)))
    assert em.certificate.backend == "triton"
    assert (em(x, y, w).double() - em.reference(x, y, w)).abs().max() <= em.certificate.error
    assert em.digest == same.digest
    fused_error = ice.paper.GradientStep("absolute", 0.5, **options).certificate.error
    assert em.certificate.error == fused_error


def test_heads_run_on_the_kernels(kernels):
    em = ice.paper.AttentionHead(4, 2, 2, 5, eps=None, dtype=torch.float32, backend="triton")
    x = torch.rand(2, 5, 4, device=DEVICE) - 0.5
    weights = [torch.rand(2, 4, device=DEVICE) - 0.5 for _ in range(3)]
    off = (em(x, *weights).double() - em.reference(x, *weights)).abs().max()
    assert off <= em.certificate.error


def test_what_the_kernels_cannot_do_is_named(kernels):
    flat = ice.Interpolant.hard(torch.tanh, -5, 5, cells=200, sharpness=1e-3)
    with pytest.raises(ice.errors.DeviceError, match="sharpness"):
        primitives.interpolate(torch.zeros(3, device=DEVICE), flat, "triton")
    with pytest.raises(ice.errors.DeviceError, match="float16"):
        primitives.interpolate(torch.zeros(3, device=DEVICE).half(), table("line"), "triton")


@pytest.mark.sampled(9)
@pytest.mark.parametrize("size", [(1, 1), (70, 64), (33, 200), (5, 2000)], ids=str)
@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16], ids=str)
@pytest.mark.parametrize("length", [None, 1.0])
def test_a_pass_measures_what_it_reads(kernels, size, dtype, length):
    """The largest entry and the longest row, by the kernel of the sums or where rows are wide.

    Labels and coefficients are measured beside them, where rows are not.
    """
    it = table("fitted")
    x, y, w = _data(*size, dtype)
    wide = size[1] > 512
    for launch in [None] if wide else [kernels.Launch(16, 256, 1, 2, a) for a in (False, True)]:
        seen = SampleMaxima(length, "triton")
        found = kernels.residual_sum(x, y, w, it, None, launch, watch=seen)
        again = kernels.residual_sum(x, y, w, it, None, launch)
        torch.testing.assert_close(found, again, rtol=1e-13, atol=1e-14)
        largest, longest = seen.sizes.tolist()
        assert largest == float(x.double().abs().max())
        if length is not None:
            exact = float(x.double().norm(dim=-1).max())
            assert longest == pytest.approx(exact, rel=1e-5)
        assert (seen.whole is None) == wide
        if seen.whole is not None:
            labels, own, _, coefficients, norm = seen.whole.tolist()
            assert (labels, own) == (float(y.double().abs().max()), largest)
            assert coefficients == float(w.double().abs().max())
            assert norm == pytest.approx(float(w.double().norm()), rel=1e-14)


def test_a_pass_measures_all_of_a_batch(kernels, monkeypatch):
    """More programs than are compared at once, coefficients of their own, offsets for labels."""
    from iceform.run.triton import residuals

    monkeypatch.setattr(residuals, "_AT_ONCE", 2)
    x, y, w = _data(20, 4, torch.float32, batch=(3,))
    w[1] *= 100
    seen, offsets = SampleMaxima(1.0, "triton"), torch.full_like(y, -7.0)
    launch = kernels.Launch(4, 4, 1, 6)
    given = (x, y, w, table("fitted"), offsets, launch)
    found = kernels.residual_sum(*given, seen, (-0.1, 3.0), torch.float32)
    exact = -0.1 * kernels.residual_sum(*given) + 3.0 * w.double()
    torch.testing.assert_close(found, exact.float(), rtol=1e-6, atol=1e-7)
    labels, largest, longest, coefficients, norm = seen.whole.tolist()
    assert labels == 7.0
    assert largest == float(x.double().abs().max())
    assert longest == pytest.approx(float(x.double().norm(dim=-1).max()), rel=1e-5)
    assert coefficients == float(w.double().abs().max())
    assert norm == pytest.approx(float(w.double().norm(dim=-1).max()), rel=1e-14)


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # as it is
@pytest.mark.parametrize("where", [0, 1, 2], ids=["y", "x", "w"])
def test_a_pass_sees_what_is_not_a_number(kernels, where):
    it = table("fitted")
    x, y, w = _data(40, 3, torch.float64)
    for bad in (math.nan, math.inf):
        (y, x, w)[where].view(-1)[1] = -bad
        seen = SampleMaxima(None, "triton")
        kernels.residual_sum(x, y, w, it, watch=seen)
        assert not float(seen.whole[(0, 1, 3)[where]]) <= 1e300


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NumPy, in the interpreter
@pytest.mark.parametrize("dtype", DTYPES)
def test_readings_of_a_network(kernels, dtype):
    """The kernel against the loop: scales for every entry, tails, and what ranges are known by."""
    line, gelu = identity_table(None, dtype), Interpolant.fit(torch.tanh, -2.0, 2.0, 1e-6)
    torch.manual_seed(0)
    z = 3 * torch.randn(4, 5, 24, dtype=dtype).transpose(0, 1)
    z[0, 0, :2], z[1, 1, 1] = torch.tensor([0.0, 1e-30]), 1e15
    offset, floor, by = (torch.rand(24, dtype=dtype) for _ in range(3))
    up = torch.exp2(torch.arange(24).sub(12).to(dtype))
    for given in ((offset, 2 * floor, up, by), (None, floor[:1], None, None)):
        want, largest = primitives.read(z.clone(), line, *given[1:], offset=given[0])
        on = [None if t is None else t.to(DEVICE) for t in given]
        found, seen = kernels.read(z.to(DEVICE), line, *on, math.inf, 0.0)
        scale = want.abs().clamp(min=1e-30) if given[2] is None else 4 * up * (1 + z.abs())
        off = ((found.cpu() - want).abs() / scale).nan_to_num()
        assert float(off[want.abs() > 1e-2].max()) <= 64 * torch.finfo(dtype).eps
        assert torch.equal(seen.cpu(), largest)
    want, _ = primitives.read(z, gelu, None, None, None, 2.0, 1.0)
    found, _ = kernels.read(z.to(DEVICE), gelu, None, None, None, None, 2.0, 1.0)
    assert float(((found.cpu() - want) / want.abs().clamp(min=1)).abs().max()) <= 1e-6
    # Both readings by one kernel are, bit by bit, the one and then the other.
    first = [t.to(DEVICE) for t in (offset, 2 * floor, up, by)]
    with kernels.seen_together():  # in one memory, each what it is
        between, over = kernels.read(z.to(DEVICE), line, *first, math.inf, 0.0)
        want, largest = kernels.read(between, gelu, None, None, None, None, 2.0, 1.0)
    assert over.data_ptr() + over.element_size() == largest.data_ptr()
    found, seen = kernels.read(z.to(DEVICE), line, *first, math.inf, 0.0, (gelu, 2.0, 1.0))
    assert torch.equal(found, want)
    assert torch.equal(seen, torch.cat([over, largest]))
    z[2, 2, 2] = math.nan
    for call in (lambda t: kernels.read(t, line, None, floor[:1].to(DEVICE), None, None, math.inf,
                                        0.0)[1], kernels.longest):  # fmt: skip
        assert math.isnan(float(call(z.to(DEVICE))))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [60, 37])
def test_a_norm_by_one_kernel(kernels, dtype, centred, dim):
    """Of tokens that are held in one part or in three, more of them than one program has."""
    line, root = identity_table(None, dtype), _root_table(dtype)
    torch.manual_seed(0)
    x = 5 * torch.randn(9, 4, dim, dtype=dtype).transpose(0, 1)
    weight, bias = torch.randn(2, dim, dtype=dtype)
    wide = x.double() - x.double().mean(-1, keepdim=True) if centred else x.double()
    spread = wide.square().mean(-1, keepdim=True) + 1e-5
    for given in ((weight, bias), (None, None)):
        on = [None if t is None else t.to(DEVICE) for t in given]
        found, seen = kernels.norm(x.to(DEVICE), *on, 1e-5, 1e-3, line, root, centred=centred)
        want = wide * spread.rsqrt()
        want = want if given[0] is None else want * weight.double() + bias.double()
        off = float((found.cpu().double() - want).abs().max())
        assert off <= (1e-12 if dtype == torch.float64 else 5e-6), f"{off:.2e}"
        plus = torch.randn(4, 9, dim, dtype=dtype).to(DEVICE)
        both = kernels.norm(
            x.to(DEVICE) - plus, *on, 1e-5, 1e-3, line, root, centred=centred, plus=plus
        )
        apart = ((x.to(DEVICE) - plus) + plus, *on, 1e-5, 1e-3, line, root)
        for one, other in zip(both, kernels.norm(*apart, centred=centred), strict=True):
            assert torch.equal(one, other)  # bit by bit the norm of a sum that was stored
        length, inverse = (float(n) for n in seen)
        assert length == pytest.approx(float(x.norm(dim=-1).max()), rel=1e-6)
        assert inverse == pytest.approx(float(1 / spread.min()), rel=1e-5)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NumPy, in the interpreter
def test_heads_by_one_kernel(kernels):
    """Against the definition: tokens in any order in memory, masks, keys that come in parts."""
    torch.manual_seed(0)
    for dtype, room in ((torch.float64, 1e-14), (torch.float32, 1e-5)):
        for queries, keys, dim, values, causal in ((5, 7, 4, 6, False), (70, 70, 20, 32, True)):
            q = torch.randn(queries, 2, 3, dim, dtype=dtype).permute(1, 2, 0, 3).to(DEVICE)
            k = torch.randn(2, keys, 3, dim, dtype=dtype).transpose(1, 2).to(DEVICE)
            v = torch.randn(2, 3, keys, values, dtype=dtype).to(DEVICE)
            mask = torch.randn(2, 1, 1, keys, dtype=dtype).to(DEVICE)
            mask[0, ..., 1:3] = -math.inf
            for added in (None, mask):
                wide = [None if t is None else t.double().cpu() for t in (q, k, v, added)]
                want = primitives.heads(*wide, 0.7, causal=causal)
                assert kernels.can_attend(q, k, v)
                found = kernels.attend(q, k, v, added, 0.7, causal=causal)
                assert found.permute(2, 0, 1, 3).is_contiguous()
                assert float((found.cpu() - want).abs().max()) <= room
    never = torch.full((queries, keys), -math.inf, dtype=dtype, device=DEVICE)
    assert bool(kernels.attend(q, k, v, never, 0.7, causal=False).isnan().all())


def test_words_are_counted(kernels):
    words = torch.zeros(9001, dtype=torch.int64)
    words[[0, 17, 9000]] = torch.tensor([1, -1, torch.iinfo(torch.int64).min])
    assert int(kernels.count_nonzero(words.to(DEVICE))) == 3
    assert int(kernels.count_nonzero(words[1:17].to(torch.int32).to(DEVICE))) == 0


def test_kernels_of_a_network_compile_for_gpus():
    """To machine code with no GPU at hand: the interpreter does not mind types that change."""
    code = textwrap.dedent("""
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource
        from iceform.run.triton import heads, reading

        KERNELS = {
            heads._heads_kernel: dict(SCALE=0.5, MASKED=True, CAUSAL=True, DIM=16, VALUES=32,
                                      ROWS=16, KEYS=64),
            reading._read_kernel: dict(
                DIM=96, OFFSET=True, FLOOR=True, UP=True, BY=True, REACH=0.0, SLOPE=0.0, KIND=0,
                HALF=3, BOUNDED=2, NEXT=True, NEXT_REACH=8.0, NEXT_SLOPE=1.0, NEXT_KIND=1,
                NEXT_HALF=4, NEXT_BOUNDED=0, ROWS=4, WIDE=128),
            reading._norm_kernel: dict(
                EPSILON=1e-5, SHARE=1e-3, DIM=96, ROWS=4, WIDE=32, PARTS=3, PLUS=True,
                CENTRED=True, PLAIN=False, HALF=3, BOUNDED=2, ROOT_KIND=1, ROOT_HALF=4,
                ROOT_BOUNDED=0),
        }
        for kernel, fixed in KERNELS.items():
            for word in ("fp32", "fp64"):
                given = dict(fixed, DOUBLE=word == "fp64")
                whole = "i64" if word == "fp64" else "i32"
                kinds = {n: "constexpr" if n in given else f"*{whole}" if n == "seen_ptr"
                         else f"*{word}" if n.endswith(("_ptr", "numbers", "ratios", "biases",
                                                        "values")) and n != "values"
                         or n == "values" and kernel is not heads._heads_kernel else "i32"
                         for n in kernel.arg_names}
                source = ASTSource(fn=kernel, signature=kinds, constexprs=given)
                assert triton.compile(source, GPUTarget("cuda", 90, 32)).asm["cubin"]
    """)
    with tempfile.TemporaryDirectory() as cache:
        given = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": cache}
        done = subprocess.run(
            [sys.executable, "-c", code], env=given, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr[-2000:]
