"""Each row of the table on one run, by itself: against fractions and 50 digits, from both sides."""

import itertools
import math
from fractions import Fraction

import mpmath
import pytest
import torch

from iceform.expressions import ScalarFunction
from iceform.expressions.formulas import Formula
from iceform.program import AffineMap, Moving, NodeOperation, Tape
from tests.program.rules import Rule

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
    operation = Rule("add", factor)
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


def test_rounding_of_products():
    a, b = drawn(40, seed=2), drawn(40, seed=3)
    for operation, op in ((Rule("mul"), lambda p, q: p * q),):
        out = operation.accurate(a, b)
        want = [op(p, q) for p, q in zip(exact(a), exact(b), strict=True)]
        bound = torch.as_tensor(operation.rounding(out, a, b))
        for value, w, found in zip(exact(out), want, exact(bound), strict=True):
            assert abs(value - w) <= found
            assert U * abs(w) * (1 - 2 * U) <= found <= U * abs(w) * (1 + 4 * U)
    infinite = torch.tensor([-math.inf], dtype=F64)
    assert float(Rule("mul").rounding(infinite, infinite, infinite)) == 0.0


@pytest.mark.parametrize("n", [1, 5, 40])
def test_rounding_of_matrices(n):
    a, b = drawn(3, n, seed=4), drawn(n, 2, seed=5)
    out = Rule("matmul").accurate(a, b)
    bound = torch.as_tensor(Rule("matmul").rounding(out, a, b))
    for value, found, (size, want) in zip(exact(out), exact(bound), products(a, b), strict=True):
        assert abs(value - want) <= found
        # Any order of n products and n - 1 sums, and the bound's own sums; twice at most.
        assert n * U / (1 - n * U) * size * (1 + n * U) <= found <= 2 * (n + 3) * U * size


@pytest.mark.parametrize("n", [1, 7, 16, 17, 100, 400])
@pytest.mark.parametrize("unit", [0.0, 2.0**-24])
def test_rounding_of_affine_maps(n, unit):
    """Halves down to 16 terms: no more than 16 + log2 n roundings; weights off by their unit."""
    weight, x, bias = drawn(3, n, seed=6), drawn(2, n, seed=7), drawn(3, seed=8)
    for added in (torch.zeros(3, dtype=F64), bias):
        operation = Rule("affine", AffineMap(weight, added, unit))
        out = operation.accurate(x)
        bound = torch.as_tensor(operation.rounding(out, x))
        of_bias = exact(added)
        depth = min(n, 16 + max(0, math.ceil(math.log2(n / 16)) if n > 16 else 0)) + 1
        shown = zip(exact(out), exact(bound), products(x, weight.T), of_bias * 2, strict=True)
        for value, found, (terms, total), more in shown:
            size = terms + abs(more)
            assert abs(value - total - more) <= found
            least = (depth * U + Fraction(unit)) * size
            assert least <= found <= 2 * ((depth + 8) * U + (n + 3) * Fraction(unit)) * size
    carried = Rule("affine", AffineMap(weight, bias)).moved(out, [x], [x.abs()])
    torch.testing.assert_close(carried.first, x.abs() @ weight.abs().T, rtol=1e-14, atol=0)


@pytest.mark.parametrize(("shape", "dims", "keep", "mean"), [
    ((3, 7), (-1,), True, True), ((3, 7), (-1,), False, True), ((4, 5), (0, 1), True, True),
    ((3, 64), (-1,), True, False), ((1, 3), (0,), True, True),
])  # fmt: skip
def test_means_and_sums_over_axes(shape, dims, keep, mean):
    x = drawn(*shape, seed=9)
    operation = Rule("mean" if mean else "sum", (dims, keep))
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
    carried = operation.moved(out, [x], [x.abs()]).first
    want = x.abs().mean(dims, keep) if mean else x.abs().sum(dims, keep)
    torch.testing.assert_close(carried, want, rtol=1e-13, atol=0)


CURVES = {
    "sqrt(z)": mpmath.sqrt, "1/sqrt(z)": lambda v: 1 / mpmath.sqrt(v), "1/z": lambda v: 1 / v,
    "exp(z) - z*z": lambda v: mpmath.exp(v) - v * v, "tanh(z)": mpmath.tanh,
}  # fmt: skip


@pytest.mark.parametrize("curve", CURVES)
def test_scalar_functions(curve):
    """Values to a few units, slopes to rounding, and remainders that hold and are reached."""
    x, exact_value = drawn(60, seed=10, positive=True), CURVES[curve]
    for attr in (Formula(curve).tree, ScalarFunction(Formula(curve).__call__, curve)):
        operation = Rule("apply", attr)
        out = operation.accurate(x)
        bound = torch.as_tensor(operation.rounding(out, x))
        with mpmath.workdps(50):
            for v, value, found in zip(*(t.tolist() for t in (x, out, bound)), strict=True):
                want = exact_value(mpmath.mpf(v))
                assert abs(value - want) <= found <= 64 * U * max(1, abs(want), v * v)
        for share in (0.01, 0.5):
            carried = operation.moved(out, [x], [share * x])
            with mpmath.workdps(50):
                for v, first, rest in zip(
                    x.tolist(), carried.first.tolist(), carried.rest.tolist(), strict=True
                ):
                    steep = mpmath.diff(exact_value, v)
                    assert abs(first - abs(steep) * share * v) <= 1e-13 * (1 + first)
                    left = [
                        abs(exact_value(v - e) - exact_value(mpmath.mpf(v)) + steep * e)
                        for e in (-share * v, share * v)
                    ]
                    assert max(left) <= rest * (1 + 1e-9) + 1e-13
                    assert rest <= (8 if share < 0.1 else 20) * max(left) + 8 * (share * v) ** 2
    inner = Rule("apply", Formula("sqrt(z)").tree)
    zero = torch.zeros(1, dtype=F64)
    for at, radius, least in (
        (x[:1], x[:1], math.inf),
        (zero, zero, 0.0),
        (zero, zero + 1, math.inf),
    ):
        assert float(inner.moved(inner.accurate(at), [at], [radius]).rest) == least


def test_softmax_is_within_its_rounding():
    x = torch.cat([drawn(4, 9, seed=11), 30 * drawn(4, 9, seed=12)])
    out = Rule("softmax").accurate(x)
    bound = torch.as_tensor(Rule("softmax").rounding(out, x))
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
    x = drawn(3, 5, seed=13)
    out = Rule("softmax").accurate(x)
    jacobian = torch.autograd.functional.jacobian(lambda v: torch.softmax(v, -1), x)
    for size in (0.01, 0.3):
        carried = Rule("softmax").moved(out, [x], [torch.full_like(x, size)])
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
    away = Rule("softmax").moved(
        Rule("softmax").accurate(far), [far], [torch.tensor([[0.01, 500.0]])]
    )
    assert float(away.rest.max()) < 1e-3  # what certainly weighs nothing does not grow the others
    near = Rule("softmax").moved(
        Rule("softmax").accurate(far), [far], [torch.tensor([[0.01, 1500.0]])]
    )
    assert not bool((near.rest < 1e10).any())  # what is no number bounds nothing


def test_remainders_of_products_are_reached():
    a, b, p, q = (torch.tensor([v], dtype=F64) for v in (3.0, -2.0, 0.25, 0.5))
    assert float(Rule("mul").moved(a * b, [a, b], [p, q]).rest) == float(p * q)


def test_kinks_and_jumps_are_counted_where_they_can_be_crossed():
    relu = Rule("apply", ScalarFunction(torch.relu, "relu"))
    x = torch.tensor([-0.25, -0.125, 0.0, 0.0625, 0.125, 0.25], dtype=F64)
    radius = torch.full_like(x, 0.125)
    carried = relu.moved(relu.accurate(x), [x], [radius])
    # All of the slope may be missed on the other side of the kink, half of it at the kink.
    assert carried.first.tolist() == pytest.approx([0.0, 0.0, 0.0625, 0.125, 0.125, 0.125])
    assert carried.rest.tolist() == pytest.approx([0.0, 0.125, 0.0625, 0.125, 0.125, 0.0])
    least = torch.tensor([0.5], dtype=F64)
    x = torch.tensor([0.25, 0.375, 0.5, 0.5625, 0.75], dtype=F64)
    for sign, op in ((1.0, "maximum"), (-1.0, "minimum")):
        given = [sign * x, (sign * least).expand(5)]
        radii = [torch.full_like(x, 0.125), torch.zeros(5, dtype=F64)]
        found = Rule(op).moved(Rule(op).accurate(*given), given, radii)
        assert found.first.tolist() == [0.0, 0.0, 0.0625, 0.125, 0.125]
        assert found.rest.tolist() == [0.0, 0.0, 0.125, 0.0625, 0.0]
    step, whole = Rule("step", False), Rule("whole", ("nearest", 0.25))
    x = torch.tensor([-0.25, 0.0625, 0.4375, 1.0], dtype=F64)
    radius = torch.full_like(x, 0.125)
    assert step.moved(step.accurate(x), [x], [radius]).rest.tolist() == [0.0, 1.0, 0.0, 0.0]
    assert whole.moved(whole.accurate(x), [x], [radius]).rest.tolist() == [0.0, 0.0, 1.125, 0.0]
    below = torch.tensor([0.5 - 2.0**-54], dtype=F64)  # torch.floor(z + 0.5) is 1
    assert abs(float(whole.accurate(below)) - 0.0) <= float(whole.rounding(below, below))


def test_a_row_that_says_nothing_bounds_nothing():
    class Silent(NodeOperation):
        name = "silent in a test"

        def value(self, run, node, *args):
            return args[0] * 2

    try:
        tape = Tape()
        step = tape.apply("silent in a test", tape.leaf(torch.ones(2)))
        assert tape.bound(step).tolist() == [math.inf] * 2
    finally:
        del NodeOperation.table["silent in a test"]


# ------------------------------------------------------------------------------------- the tape


def test_a_leaf_is_off_by_what_is_said():
    tape = Tape()
    index = tape.leaf(torch.tensor([1.0, 2.0]), torch.tensor([0.25, 0.5]))
    assert index == 0
    assert tape.bound(index).tolist() == pytest.approx([0.25, 0.5], rel=1e-8)
    assert bool((tape.bound(index) >= torch.tensor([0.25, 0.5])).all())
    given = tape.leaf(torch.tensor([3.0]))
    assert given == 1
    assert tape.bound(given).tolist() == [0.0]


def test_a_linear_chain_is_bounded_by_its_paths():
    """y = W2 (W1 x): errors of x through the absolute product of matrices."""
    w1, w2 = drawn(5, 4, seed=19), drawn(3, 5, seed=20)
    x, off = drawn(4, seed=21), 1e-3
    tape, zero = Tape(), torch.zeros((), dtype=F64)
    middle = tape.apply("affine", tape.leaf(x, off), attr=AffineMap(w1, zero))
    last = tape.apply("affine", middle, attr=AffineMap(w2, zero))
    want = off * (w2 @ w1).abs().sum(1)
    bound = tape.bound(last)
    assert bool((want <= bound).all())
    torch.testing.assert_close(bound, want, rtol=1e-8, atol=0)
    functional = drawn(2, 3, seed=22)
    want = off * (functional @ w2 @ w1).abs().sum(1)
    found = tape.bound(last, functional)
    assert bool((want <= found).all())
    torch.testing.assert_close(found, want, rtol=1e-8, atol=0)
    torch.testing.assert_close(tape.value(last), w2 @ (w1 @ x), rtol=1e-12, atol=1e-13)
    rough = tape.bound(last, enough=1.0)  # forwards alone, by absolute values
    torch.testing.assert_close(rough, off * (w2.abs() @ w1.abs()).sum(1), rtol=1e-8, atol=0)


def test_paths_that_meet_are_added_with_their_signs():
    """x - x is 0 whatever x is off by; x + x is twice as far off."""
    for factor, times in ((-1.0, 0.0), (None, 2.0), (0.5, 1.5)):
        tape = Tape()
        x = tape.leaf(torch.tensor([1.0, -2.0]), 1e-3)
        y = tape.apply("add", x, x, attr=factor)
        assert tape.bound(y).tolist() == pytest.approx([times * 1e-3] * 2, rel=1e-8, abs=1e-14)
        assert bool((tape.bound(y) >= times * 1e-3).all())


def test_moves_move_errors_and_round_nothing():
    x = torch.tensor([1.5, -2.0], dtype=F64)
    tape = Tape()
    given, off = tape.leaf(x), tape.leaf(x, torch.tensor([1e-3, 1e-5]))
    turned = Moving(lambda t: t.flip(0))
    assert tape.bound(tape.apply("move", off, attr=turned)).tolist() == pytest.approx([1e-5, 1e-3])
    assert tape.bound(tape.apply("move", given, attr=turned)).tolist() == [0.0, 0.0]
    rounded = tape.bound(tape.apply("mul", given, given))
    want = 2.0**-53 * x.square()
    assert bool((want <= rounded).all() & (rounded <= 1.001 * want).all())


def test_states_make_long_chains_sharper():
    """Rotations: the exact bound grows by steps, products of absolute values exponentially."""
    w = AffineMap(torch.linalg.qr(drawn(8, 8, seed=23))[0], torch.zeros(8, dtype=F64))
    tape = Tape()
    x = tape.leaf(drawn(8, seed=24), 1e-6)
    for _ in range(12):
        x = tape.apply(
            "apply", tape.apply("affine", x, attr=w), attr=Formula("tanh(z)").tree, state=True
        )
    assert float(tape.bound(x).max()) <= 1e-6 * 8**0.5 * (1 + 1e-3)
