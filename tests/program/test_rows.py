"""Each rule of the adjoint tape by itself, against fractions and 50 digits, from both sides."""

import itertools
import math
from fractions import Fraction

import mpmath
import pytest
import torch
from iceform.certificates.adjoint import (
    Affine,
    EntrywiseProduct,
    Floor,
    Matmul,
    Mean,
    Pointwise,
    Power,
    Quotient,
    Rearrangement,
    Softmax,
    Sum,
    Tape,
)

F64 = torch.float64
U = Fraction(2) ** -53


def drawn(*shape, seed, positive=False):
    g = torch.Generator().manual_seed(seed)
    found = torch.randn(*shape, generator=g, dtype=F64)
    return found.abs() + 0.5 if positive else found


def exact(t):
    return [Fraction(v) for v in t.flatten().tolist()]


def between(low, found, high, what):
    """``low <= found <= high``, entry by entry."""
    for i, (a, b, c) in enumerate(zip(low, exact(found), high, strict=True)):
        assert a <= b <= c, (what, i, float(a), float(b), float(c))


def products(a, b):
    """|a| |b| and a b, as lists of exact numbers."""
    rows = [exact(row) for row in a]
    columns = [exact(column) for column in b.T]
    for row, column in itertools.product(rows, columns):
        terms = [p * q for p, q in zip(row, column, strict=True)]
        yield sum(map(abs, terms)), sum(terms)


# ------------------------------------------------------------------------------------- rounding


@pytest.mark.parametrize("factor", [1.0, -1.0, 0.3, -3.0])
def test_rounding_of_sums(factor):
    a, b = drawn(40, seed=0), drawn(40, seed=1)
    a[:4], b[4:8] = 0.0, 0.0
    operation = Sum(factor)
    out = operation.accurate(a, b)
    bound = torch.as_tensor(operation.rounding(out, a, b))
    pairs = list(zip(exact(a), exact(b), strict=True))
    off = [abs(Fraction(v) - p - Fraction(factor) * q)
           for v, (p, q) in zip(out.tolist(), pairs, strict=True)]  # fmt: skip
    assert all(x <= y for x, y in zip(off, exact(bound), strict=True))
    single = factor in (1.0, -1.0)  # one rounding, none where a term is 0; else one more
    for found, (p, q) in zip(exact(bound), pairs, strict=True):
        size = abs(p) + abs(Fraction(factor) * q)
        if single and not (p and q):
            assert found == 0
        else:
            assert (
                (U if single else 2 * U) * size * (1 - 4 * U) <= found <= 2 * U * size * (1 + 4 * U)
            )


def test_rounding_of_products_and_quotients():
    a, b = drawn(40, seed=2), drawn(40, seed=3)
    for operation, op in (
        (EntrywiseProduct(), lambda p, q: p * q),
        (Quotient(), lambda p, q: p / q),
    ):
        out = operation.accurate(a, b)
        want = [op(p, q) for p, q in zip(exact(a), exact(b), strict=True)]
        bound = torch.as_tensor(operation.rounding(out, a, b))
        for value, w, found in zip(exact(out), want, exact(bound), strict=True):
            assert abs(value - w) <= found
            assert U * abs(w) * (1 - 2 * U) <= found <= U * abs(w) * (1 + 4 * U)
    infinite = torch.tensor([-math.inf], dtype=F64)
    assert float(EntrywiseProduct().rounding(infinite, infinite, infinite)) == 0.0


@pytest.mark.parametrize("n", [1, 5, 40])
def test_rounding_of_matrices(n):
    a, b = drawn(3, n, seed=4), drawn(n, 2, seed=5)
    out = Matmul().accurate(a, b)
    bound = torch.as_tensor(Matmul().rounding(out, a, b))
    for value, found, (size, want) in zip(exact(out), exact(bound), products(a, b), strict=True):
        assert abs(value - want) <= found
        # Any order of n products and n - 1 sums, and the bound's own sums; twice at most.
        assert n * U / (1 - n * U) * size * (1 + n * U) <= found <= 2 * (n + 3) * U * size


@pytest.mark.parametrize("n", [1, 7, 16, 17, 100, 400])
@pytest.mark.parametrize("unit", [0.0, 2.0**-24])
def test_rounding_of_affine_maps(n, unit):
    """Halves down to 16 terms: no more than 16 + log2 n roundings; weights off by their unit."""
    weight, x, bias = drawn(3, n, seed=6), drawn(2, n, seed=7), drawn(3, seed=8)
    for added in (None, bias):
        operation = Affine(weight, added, unit)
        out = operation.accurate(x)
        bound = torch.as_tensor(operation.rounding(out, x))
        of_bias = [Fraction(0)] * 3 if added is None else exact(added)
        depth = min(n, 16 + max(0, math.ceil(math.log2(n / 16)) if n > 16 else 0)) + 1
        shown = zip(exact(out), exact(bound), products(x, weight.T), of_bias * 2, strict=True)
        for value, found, (terms, total), more in shown:
            size = terms + abs(more)
            assert abs(value - total - more) <= found
            least = (depth * U + Fraction(unit)) * size
            assert least <= found <= 2 * ((depth + 8) * U + (n + 3) * Fraction(unit)) * size
    pushed = Affine(weight, bias).pushed(out, [x], [x])
    torch.testing.assert_close(pushed, x @ weight.T, rtol=1e-12, atol=1e-13)
    carried = Affine(weight, bias).carried(out, [x], [x.abs()])
    torch.testing.assert_close(carried.first, x.abs() @ weight.abs().T, rtol=1e-14, atol=0)


@pytest.mark.parametrize(("shape", "dims", "keep", "mean"), [
    ((3, 7), (-1,), True, True), ((3, 7), (-1,), False, True), ((4, 5), (0, 1), True, True),
    ((3, 64), (-1,), True, False), ((1, 3), (0,), True, True),
])  # fmt: skip
def test_means_and_sums_over_axes(shape, dims, keep, mean):
    x = drawn(*shape, seed=9)
    operation = Mean(dims, keep, mean)
    out = operation.accurate(x)
    count = math.prod(shape[d] for d in dims)
    assert out.shape == x.sum(dims, keep).shape
    axes = [d % 2 for d in dims]
    groups = [exact(x)] if len(axes) == 2 else [exact(g) for g in (x.T if axes == [0] else x)]
    share = count if mean else 1
    bound = torch.as_tensor(operation.rounding(out, x))
    levels = math.ceil(math.log2(count)) + (1 if mean else 0)
    for value, found, group in zip(exact(out), exact(bound), groups, strict=True):
        size = sum(map(abs, group)) / share
        assert abs(value - sum(group) / share) <= found
        assert levels * U * size <= found <= 2 * (levels + 6) * U * size
    torch.testing.assert_close(operation.call(x), out, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(operation.pushed(out, [x], [x]), out, rtol=1e-12, atol=1e-14)
    carried = operation.carried(out, [x], [x.abs()]).first
    want = x.abs().mean(dims, keep) if mean else x.abs().sum(dims, keep)
    torch.testing.assert_close(carried, want, rtol=1e-13, atol=0)


@pytest.mark.parametrize("exponent", [0.5, -0.5, -1.0, 2.0, 3.0])
def test_powers(exponent):
    x = drawn(60, seed=10, positive=True)
    operation = Power(exponent)
    out = operation.accurate(x)
    bound = torch.as_tensor(operation.rounding(out, x))
    push = operation.pushed(out, [x], [torch.ones_like(x)])
    with mpmath.workdps(50):
        for v, value, found, slope in zip(
            *(t.tolist() for t in (x, out, bound, push)), strict=True
        ):
            want = mpmath.power(v, exponent)
            assert abs(value - want) <= found <= 4.01 * U * want
            steep = exponent * mpmath.power(v, exponent - 1)
            assert abs(slope - steep) <= 1e-14 * abs(steep)
    for share in (0.01, 0.5):
        carried = operation.carried(out, [x], [share * x])
        with mpmath.workdps(50):
            for v, first, rest in zip(
                x.tolist(), carried.first.tolist(), carried.rest.tolist(), strict=True
            ):
                steep = exponent * mpmath.power(v, exponent - 1)
                assert abs(first - abs(steep) * share * v) <= 1e-13 * first
                left = []
                for e in (-share * v, share * v):
                    moved = mpmath.power(v - e, exponent) - mpmath.power(v, exponent)
                    left.append(abs(moved + steep * e))
                assert max(left) <= rest * (1 + 1e-9) <= max(left) * (1.1 if share < 0.1 else 6)
    if exponent < 2:
        for radius in (1.0, 1.5):
            assert math.isinf(
                float(operation.carried(out[:1], [torch.ones(1)], [torch.tensor([radius])]).rest)
            )
    assert float(operation.carried(out[:1], [torch.ones(1)], [torch.zeros(1)]).rest) == 0.0


def test_softmax_is_within_its_rounding():
    x = torch.cat([drawn(4, 9, seed=11), 30 * drawn(4, 9, seed=12)])
    out = Softmax().accurate(x)
    bound = torch.as_tensor(Softmax().rounding(out, x))
    with mpmath.workdps(50):
        for row, got, off in zip(x.tolist(), out.tolist(), bound.tolist(), strict=True):
            masses = [mpmath.exp(v) for v in row]
            total = mpmath.fsum(masses)
            gaps = [max(row) - v for v in row]
            worst = mpmath.fsum(m * g for m, g in zip(masses, gaps, strict=True)) / total
            for m, g, value, found in zip(masses, gaps, got, off, strict=True):
                want = m / total
                assert abs(value - want) <= found
                # exp of a gap that is rounded, above and below; 9 terms, 2 exps, a quotient.
                least = U * want * (g + worst + 9 + 4)
                assert least * (1 - 1e-12) <= found <= 2 * U * want * (g + worst + 9 + 9)


def test_softmax_to_first_order_and_what_is_left():
    x, t = drawn(3, 5, seed=13), drawn(3, 5, seed=14)
    out = Softmax().accurate(x)
    jacobian = torch.autograd.functional.jacobian(lambda v: torch.softmax(v, -1), x)
    want = torch.tensordot(jacobian, t, 2)
    torch.testing.assert_close(Softmax().pushed(out, [x], [t]), want, rtol=1e-12, atol=1e-15)
    for size in (0.01, 0.3):
        carried = Softmax().carried(out, [x], [torch.full_like(x, size)])
        # p_i (|e_i| + mean |e|), which corners reach to within their own share.
        torch.testing.assert_close(carried.first, 2 * size * out, rtol=1e-12, atol=0)
        most = torch.zeros_like(out)
        for signs in itertools.product((-1.0, 1.0), repeat=5):
            e = size * torch.tensor(signs, dtype=F64).expand(3, 5)
            first = torch.tensordot(jacobian, e, 2)
            most = torch.maximum(most, (torch.softmax(x - e, -1) - out + first).abs())
        assert bool((most <= carried.rest).all())
        assert bool((carried.rest <= (6 if size < 0.1 else 25) * most.amax(-1, keepdim=True)).all())
    far = torch.tensor([[0.0, -2000.0]], dtype=F64)
    away = Softmax().carried(Softmax().accurate(far), [far], [torch.tensor([[0.01, 500.0]])])
    assert float(away.rest.max()) < 1e-3  # what certainly weighs nothing does not grow the others
    near = Softmax().carried(Softmax().accurate(far), [far], [torch.tensor([[0.01, 1500.0]])])
    assert not bool((near.rest < 1e10).any())  # what is no number bounds nothing


def test_first_orders_are_the_slopes_times_the_radii():
    """Neither more nor less, entry by entry; and pushed forward with their signs."""
    x, y = drawn(4, 4, seed=15, positive=True), drawn(4, 4, seed=16, positive=True)
    p, q = drawn(4, 4, seed=17).abs(), drawn(4, 4, seed=18).abs()
    for operation in (Sum(-0.3), EntrywiseProduct(), Quotient(), Matmul()):
        out = operation.call(x, -y)
        radii = [0.01 * p, 0.01 * q]
        slopes = torch.autograd.functional.jacobian(operation.call, (x, -y))
        want = sum(torch.tensordot(j.abs(), r, 2) for j, r in zip(slopes, radii, strict=True))
        found = operation.carried(out, [x, -y], radii)
        torch.testing.assert_close(found.first, want, rtol=1e-12, atol=0)
        moved = sum(torch.tensordot(j, r, 2) for j, r in zip(slopes, radii, strict=True))
        torch.testing.assert_close(
            operation.pushed(out, [x, -y], radii), moved, rtol=1e-12, atol=1e-15
        )
    tanh = Pointwise(torch.tanh, 1.0, 0.77, 4.0)
    carried = tanh.carried(torch.tanh(x), [x], [0.1 * p])
    steep = 1 / torch.cosh(x) ** 2
    torch.testing.assert_close(carried.first, steep * 0.1 * p, rtol=1e-12, atol=1e-15)
    assert bool((carried.first >= steep * 0.1 * p).all())
    torch.testing.assert_close(carried.rest, 0.5 * 0.77 * (0.1 * p) ** 2, rtol=1e-14, atol=0)
    torch.testing.assert_close(tanh.pushed(x, [x], [p]), steep * p, rtol=1e-13, atol=0)
    assert carried.formula is not None
    assert bool((carried.formula >= carried.first + 0.1 * p).all())
    rounded = torch.as_tensor(tanh.rounding(x, torch.tensor([0.1, -8.0], dtype=F64)))
    assert rounded.tolist() == [4.0 * 2.0**-53, 32.0 * 2.0**-53]


def test_remainders_of_products_and_quotients_are_reached():
    a, b, p, q = (Fraction(v) for v in (3, -2, Fraction(1, 4), Fraction(1, 2)))
    numbers = [torch.tensor([float(v)], dtype=F64) for v in (a, b, p, q)]
    x, radii = numbers[:2], numbers[2:]
    assert float(EntrywiseProduct().carried(x[0] * x[1], x, radii).rest) == float(p * q)
    found = Quotient().carried(x[0] / x[1], x, radii).rest
    left = [abs((a - p * s) / (b - q * t) - a / b + (p * s - a / b * q * t) / b)
            for s in (-1, 1) for t in (-1, 1)]  # fmt: skip
    assert float(found) == pytest.approx(float(max(left)), rel=1e-14)
    for radius in (2.0, 3.0):
        assert math.isinf(
            float(Quotient().carried(x[0] / x[1], x, [radii[0], torch.tensor([radius])]).rest)
        )


def test_kinks_are_counted_where_they_can_be_crossed():
    relu = Pointwise(torch.relu, 1.0, math.inf)
    x = torch.tensor([-0.2, -0.1, 0.0, 0.1, 0.2], dtype=F64)
    radius = torch.full_like(x, 0.1)
    carried = relu.carried(torch.relu(x), [x], [radius])
    assert carried.rest.tolist() == pytest.approx([0.0, 0.2, 0.2, 0.2, 0.0])
    floor = Floor(0.5)
    x = torch.tensor([0.3, 0.4, 0.5, 0.6, 0.7], dtype=F64)
    found = floor.carried(floor.call(x), [x], [torch.full_like(x, 0.125)])
    assert found.first.tolist() == [0.0, 0.0, 0.125, 0.125, 0.125]
    assert found.rest.tolist() == [0.0, 0.25, 0.25, 0.25, 0.0]
    assert found.formula is not None
    assert found.formula.tolist() == [0.125] * 5
    assert floor.pushed(x, [x], [x]).tolist() == [0.0, 0.0, 0.5, 0.6, 0.7]
    assert floor.call(x).tolist() == [0.5, 0.5, 0.5, 0.6, 0.7]


# ------------------------------------------------------------------------------------- the tape


def test_a_leaf_is_off_by_what_is_said():
    tape = Tape()
    index = tape.leaf(torch.tensor([1.0, 2.0]), torch.tensor([0.25, 0.5]))
    assert index == 0
    assert not tape.is_given(index)
    assert tape.bound(index).tolist() == pytest.approx([0.25, 0.5], rel=1e-8)
    assert bool((tape.bound(index) >= torch.tensor([0.25, 0.5])).all())
    given = tape.leaf(torch.tensor([3.0]))
    assert given == 1
    assert tape.is_given(given)
    assert tape.bound(given).tolist() == [0.0]


def test_a_linear_chain_is_bounded_by_its_paths():
    """y = W2 (W1 x): errors of x and of each step, through the absolute product of matrices."""
    w1, w2 = drawn(5, 4, seed=19), drawn(3, 5, seed=20)
    x, off, error = drawn(4, seed=21), 1e-3, 1e-4
    tape = Tape()
    start = tape.leaf(x, off)
    middle = tape.apply(Affine(w1), start, error=error)
    last = tape.apply(Affine(w2), middle, error=error)
    want = off * (w2 @ w1).abs().sum(1) + error * w2.abs().sum(1) + error
    bound = tape.bound(last)
    assert bool((want <= bound).all())
    torch.testing.assert_close(bound, want, rtol=1e-8, atol=0)
    functional = drawn(2, 3, seed=22)
    want = off * (functional @ w2 @ w1).abs().sum(1)
    want = want + error * ((functional @ w2).abs().sum(1) + functional.abs().sum(1))
    found = tape.bound(last, functional)
    assert bool((want <= found).all())
    torch.testing.assert_close(found, want, rtol=1e-8, atol=0)
    torch.testing.assert_close(tape.value(last), w2 @ (w1 @ x), rtol=1e-12, atol=1e-13)


def test_paths_that_meet_are_added_with_their_signs():
    """x - x is 0 whatever x is off by; x + x is twice as far off."""
    for factor, times in ((-1.0, 0.0), (1.0, 2.0), (0.5, 1.5)):
        tape = Tape()
        x = tape.leaf(torch.tensor([1.0, -2.0]), 1e-3)
        y = tape.apply(Sum(factor), x, x)
        assert tape.bound(y).tolist() == pytest.approx([times * 1e-3] * 2, rel=1e-8, abs=1e-14)
        assert bool((tape.bound(y) >= times * 1e-3).all())


def test_what_was_computed_is_compared_with_what_the_step_is():
    """Without an error the distance of this run counts; with one, what is said."""
    x = torch.tensor([1.5, -2.0], dtype=F64)
    tape = Tape()
    given = tape.leaf(x)
    off = tape.apply(
        EntrywiseProduct(), given, given, computed=x * x + torch.tensor([1e-3, -1e-5]).double()
    )
    assert tape.bound(off).tolist() == pytest.approx([1e-3, 1e-5], rel=1e-6)
    assert bool((tape.bound(off) >= (tape.value(off) - x * x).abs()).all())
    said = tape.apply(EntrywiseProduct(), given, given, computed=x * x + 1e-3, error=1e-2)
    assert tape.bound(said).tolist() == pytest.approx([1e-2] * 2, rel=1e-8)
    moved = tape.apply(Rearrangement(lambda t: t.flip(0)), off)
    assert tape.bound(moved).tolist() == pytest.approx([1e-5, 1e-3], rel=1e-6)
    exactly = tape.apply(Rearrangement(lambda t: t.flip(0)), given)
    assert tape.bound(exactly).tolist() == [0.0, 0.0]
    rounded = tape.bound(tape.apply(EntrywiseProduct(), given, given))
    want = 2.0**-53 * x.square()
    assert bool((want <= rounded).all() & (rounded <= 1.001 * want).all())


def test_states_make_long_chains_sharper():
    """Rotations: the exact bound grows by steps, products of absolute values exponentially."""
    w = torch.linalg.qr(drawn(8, 8, seed=23))[0]
    tape = Tape()
    x = tape.leaf(drawn(8, seed=24), 1e-6)
    for _ in range(12):
        x = tape.apply(Affine(w), x, error=1e-9)
        x = tape.apply(Pointwise(torch.tanh, 1.0, 0.77), x, error=1e-9, state=True)
    found = float(tape.bound(x).max())
    assert found <= 12 * 2e-9 * 8**0.5 + 1e-6 * 8**0.5
