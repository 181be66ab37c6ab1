"""The loops in C against tensor operations, and against what is proven of either."""

import concurrent.futures
import math
import os
from functools import cache

import pytest
import torch

import iceform as ice
from iceform.run import primitives, rounding_of, windowed
from iceform.run.primitives import SampleMaxima
from iceform.tables.local import tail_mass
from tests.run.tables import UNIFORM, points, rounding_bound, table

DTYPES = (torch.float64, torch.float32)
BOTH = pytest.mark.parametrize("dtype", DTYPES, ids=str)
pytestmark = pytest.mark.skipif(
    windowed._compiler() is None, reason="there is no C compiler on this machine"
)


def window_of(it, dtype):
    window = windowed.window_of(it, dtype)
    assert window is not None
    assert windowed._library() is not None
    return window, window.operands(dtype, torch.device("cpu"))


@BOTH
@pytest.mark.parametrize("kind", UNIFORM)
def test_look_ups_are_within_the_declared_rounding(kind, dtype):
    it = table(kind)
    window, operands = window_of(it, dtype)
    z = points(it, dtype, 5001)  # no multiple of what is looked up together
    off = windowed.looped("look_up", z, window.kind, operands).double()
    off = (off - primitives.plain_interpolate(z.double(), it)).abs()
    assert off.max() <= rounding_bound(it, dtype), (kind, float(z[off.argmax()]))


@BOTH
@pytest.mark.parametrize("kind", UNIFORM)
def test_they_are_the_formula_operation_by_operation(kind, dtype):
    """Contracted products aside, and an exponential of its own, it is the same computation.

    Half way between tokens either may be the nearest, and what the window leaves out differs.
    """
    it = table(kind)
    window, operands = window_of(it, dtype)
    z = points(it, dtype, 3000)
    unit, left_out = torch.finfo(dtype).eps, 2 * tail_mass(it.sharpness, window.half) * it.swing
    for name, scale in (("look_up", 1.0), ("derivative", 2 * it.sharpness / it.grid.spacing)):
        want = windowed._formula(name, window.kind)(z, *operands)
        found = windowed.looped(name, z, window.kind, operands)
        allowed = 200 * (1 + it.sharpness) * unit * it.size + left_out
        allowed *= scale * (1 if name == "look_up" else it.tokens)
        assert (found - want).abs().max() <= allowed, (name, kind)


@BOTH
def test_the_exponential_is_within_an_ulp(dtype):
    """Of a table of two tokens the value is 1/(1 + e^t): t is read back from it."""
    unit = torch.finfo(dtype).eps
    t = torch.linspace(-80.0, 0.0, 100001, dtype=dtype)
    # center 0, one cell a unit, two tokens at -1/2 and 1/2, c = 1, values 0 and 1: with z <= -1/2
    # the nearest is the left one, and the right one weighs e^(2 u - 1) = e^(2 z), z = t/2.
    numbers = torch.tensor([0.0, 1.0, 0.5, 1.0, 1.0, 0.0, 0.0], dtype=dtype)
    values = torch.tensor([0.0, 0.0, 1.0, 0.0], dtype=dtype)
    operands = (numbers, torch.ones(1, dtype=dtype), values)
    assert windowed._library() is not None
    found = windowed.looped("look_up", t / 2 - 0.5, (1, False, True), operands)
    u = (t / 2 - 0.5).double() + 0.5
    weight = torch.exp(2 * u - 1)
    exact = weight / (1 + weight)
    assert ((found.double() - exact).abs() <= 6 * unit * exact * (1 + t.double().abs())).all()
    deep = windowed.looped(
        "look_up", torch.full((3,), -1e6, dtype=dtype), (1, False, True), operands
    )
    assert torch.equal(deep, torch.zeros(3, dtype=dtype))


@BOTH
@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize(("n", "d"), [(1, 1), (127, 3), (5000, 17), (70000, 5)])
@pytest.mark.parametrize("kind", ["line", "fitted"])
def test_a_pass_over_samples(kind, n, d, labelled, dtype):
    it = table(kind)
    x, y, w = (torch.rand(s, dtype=dtype) - 0.5 for s in ((n, d), (n,), (d,)))
    w = w / d
    labels = torch.rand(n, dtype=dtype) if labelled else None
    seen = SampleMaxima(10.0)
    found = primitives.residual_sum(x, y, w, it, labels, watch=seen)
    z = x.double() @ w.double() - y.double()
    looked = primitives.plain_interpolate(z, it) - (0 if labels is None else labels.double())
    expected = looked @ x.double()
    unit = torch.finfo(dtype).eps
    allowed = n * (rounding_bound(it, dtype) + 200 * unit * (it.size + 1))
    assert (found - expected).abs().max() <= allowed
    assert float(seen.sizes[0]) == float(x.abs().max())
    length = float(x.double().norm(dim=-1).max())
    assert float(seen.sizes[1]) == pytest.approx(length, rel=(d + 4) * unit)


def test_sums_of_blocks_that_always_round_one_way_are_within_their_bound():
    """A large number at the head of a block, then numbers of some 32nds of its last place."""
    n, unit = 8192, 2.0**-24
    x = torch.ones(n, 64)
    x[:, 1:] = unit * torch.arange(1, 64) / 32
    x[::128, 1:] = 1.0
    w = torch.zeros(64)
    w[0] = 0.5
    found = primitives.residual_sum(x, torch.zeros(n), w, table("line"))
    # The first column's sum is exact, up to what was looked up: so that drops out.
    off = float((found / found[0] / x.double().mean(0) - 1).abs().max())
    allowed = rounding_of("fused").sum_error(torch.float32, n)
    assert 16 * unit < off <= allowed + 2 * unit


def test_what_is_not_a_number_is_seen():
    it = table("fitted")
    for bad in (math.nan, -math.nan, math.inf):
        x = torch.zeros(300, 4, dtype=torch.float64)
        x[123, 2] = bad
        seen = SampleMaxima(None)
        primitives.residual_sum(
            x, torch.zeros(300).double(), torch.ones(4).double(), it, watch=seen
        )
        assert not float(seen.sizes[0]) <= 1e300
    z = torch.zeros(1000, dtype=torch.float64)
    z[7] = math.nan
    window, operands = window_of(it, torch.float64)
    out = windowed.looped("look_up", z, window.kind, operands)
    assert out[7].isnan()
    assert out.isnan().sum() == 1


def test_neither_threads_nor_callers_change_a_bit():
    it = table("fitted")
    x, y, w = (torch.rand(s) - 0.5 for s in ((100000, 3), (100000,), (3,)))
    before = torch.get_num_threads()
    try:
        sums = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            sums.append(primitives.residual_sum(x, y, w, it))
    finally:
        torch.set_num_threads(before)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        sums += pool.map(lambda _: primitives.residual_sum(x, y, w, it), range(8))
    assert all(torch.equal(one, sums[0]) for one in sums)


def test_without_a_compiler_it_says_so_once_and_goes_on(monkeypatch):
    monkeypatch.setattr(windowed, "_library", cache(windowed._library.__wrapped__))
    monkeypatch.setattr(windowed, "_compiler", lambda: None)
    it = table("fitted")
    z = points(it, torch.float64, 5000)
    with pytest.warns(RuntimeWarning, match="no C compiler was found.*several times slower"):
        found = primitives.interpolate(z, it)
    again = primitives.interpolate(z, it)  # a second warning would be an error
    assert torch.equal(found, again)
    exact = primitives.plain_interpolate(z, it)
    assert (found - exact).abs().max() <= rounding_bound(it, torch.float64)


def test_a_compiler_that_fails_is_named(monkeypatch, tmp_path):
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho not today >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(windowed, "_library", cache(windowed._library.__wrapped__))
    monkeypatch.setenv("CC", str(broken))
    monkeypatch.setenv("ICEFORM_CACHE", str(tmp_path))
    with pytest.warns(RuntimeWarning, match="not today"):
        assert windowed._library() is None
    assert not list(tmp_path.glob("*.so"))


def test_asked_to_do_without_it_is_quiet(monkeypatch):
    monkeypatch.setattr(windowed, "_library", cache(windowed._library.__wrapped__))
    monkeypatch.setenv("ICEFORM_COMPILE", "off")
    assert not windowed.ready(torch.zeros(10, dtype=torch.float64))


def test_a_fork_compiles_or_loads_for_itself():
    it = table("fitted")
    x, y, w = (torch.rand(s) - 0.5 for s in ((100000, 3), (100000,), (3,)))
    want = primitives.residual_sum(x, y, w, it)
    child = os.fork()
    if child == 0:
        same = torch.equal(primitives.residual_sum(x, y, w, it), want)
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_step_refuses_what_its_pass_has_seen():
    """The check of the data rides on the pass, and still refuses."""
    n = 5000
    em = ice.paper.GradientStep("absolute", 0.1, dim=3, samples=n, eps=1e-3, x_norm=1.2, w_norm=1.0)
    x, y, w = torch.zeros(n, 3).double(), torch.zeros(n).double(), torch.zeros(3).double()
    em(x, y, w)
    for entry, named in ((1.5, "max .x. is 1.5"), (math.nan, "NaN")):
        bad = x.clone()
        bad[4321, 1] = entry
        with pytest.raises(ice.errors.BoundError, match=named):
            em(bad, y, w)
    long = x.clone()
    long[17] = 0.9
    with pytest.raises(ice.errors.BoundError, match="x_norm"):
        em(long, y, w)
