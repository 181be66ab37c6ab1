"""Bounds of a run, attacked: random computations of inputs that are off, against 50 digits."""

import math

import mpmath
import numpy as np
import pytest
import torch

from iceform.expressions import ScalarFunction
from iceform.expressions.formulas import Formula
from iceform.program import AffineMap, Moving, Tape
from tests.program.rules import Rule

F64 = torch.float64
TANH, RELU = ScalarFunction(torch.tanh, "tanh"), ScalarFunction(torch.relu, "relu")
ROOT, INVERSE = Formula("1/sqrt(z)").tree, Formula("1/z").tree
TURNED = Moving(lambda t: t.mT)
mpmath.mp.dps = 50
exact_of = np.vectorize(lambda v: mpmath.mpf(float(v)), otypes=[object])
MP = {
    "tanh": np.vectorize(mpmath.tanh, otypes=[object]),
    "relu": np.vectorize(lambda v: max(v, mpmath.mpf(0)), otypes=[object]),
    "root": np.vectorize(lambda v: 1 / mpmath.sqrt(v), otypes=[object]),
    "exp": np.vectorize(mpmath.exp, otypes=[object]),
}


def softmax(z):
    weights = MP["exp"](z)
    return weights / weights.sum(-1, keepdims=True)


class Twice:
    """One computation on a tape, and in 50 digits of what was meant: leaves are off by noise."""

    def __init__(self, generator, noise):
        self.tape, self.generator, self.noise = Tape(), generator, noise
        self.exact = []

    def given(self, value, noise=0.0):
        sign = torch.randint(0, 2, value.shape, generator=self.generator).double() * 2 - 1
        off = 0.9 * noise * sign
        self.exact.append(exact_of(value.numpy()) + exact_of(off.numpy()))
        return self.tape.leaf(value, noise)

    def step(self, op, exact, *reads, attr=None, state=False):
        index = self.tape.apply(op, *reads, attr=attr, state=state)
        self.exact.append(exact(*(self.exact[i] for i in reads)))
        return index

    def random(self, *shape, scale=1.0):
        return scale * torch.randn(*shape, generator=self.generator, dtype=F64)

    def noisy(self, x):
        """x and something small that is known roughly."""
        small = self.given(torch.zeros_like(self.tape.value(x)), self.noise)
        return self.add(x, small)

    # ------------------------------------------------------------------------------------ layers

    def affine(self, x, rows, columns):
        w, b = self.random(rows, columns, scale=columns**-0.5), self.random(rows)
        mw, mb = exact_of(w.numpy()), exact_of(b.numpy())
        mapped = self.step("affine", lambda v: v.dot(mw.T) + mb, x, attr=AffineMap(w, b))
        return self.noisy(mapped)

    def activation(self, x, name):
        return self.step("apply", MP[name], x, attr=TANH if name == "tanh" else RELU)

    def norm(self, x):
        axes = (-1,), True
        mean = self.step("mean", lambda v: v.mean(-1, keepdims=True), x, attr=axes)
        centred = self.step("add", lambda a, b: a - b, x, mean, attr=-1.0)
        squares = self.step("mul", lambda a, b: a * b, centred, centred)
        spread = self.step("mean", lambda v: v.mean(-1, keepdims=True), squares, attr=axes)
        spread = self.step("add", lambda a, b: a + b, spread, self.given(torch.tensor(1e-3)))
        root = self.step("apply", MP["root"], spread, attr=ROOT)
        return self.step("mul", lambda a, b: a * b, centred, root, state=True)

    def attention(self, x, width):
        q, k, v = (self.affine(x, width, width) for _ in range(3))
        turned = self.step("move", lambda a: a.T, k, attr=TURNED)
        logits = self.step("matmul", lambda a, b: a.dot(b), q, turned)
        weights = self.step("softmax", softmax, logits)
        return self.step("matmul", lambda a, b: a.dot(b), weights, v)

    def add(self, a, b):
        return self.step("add", lambda p, q: p + q, a, b, state=True)

    def largest(self, a, b):
        return self.step("maximum", np.maximum, a, b)

    def ratio(self, a, b):
        squares = self.step("mul", lambda u, v: u * v, b, b)
        below = self.step("add", lambda p, q: p + q, squares, self.given(torch.tensor(0.5)))
        inverse = self.step("apply", lambda v: 1 / v, below, attr=INVERSE)
        return self.step("mul", lambda p, q: p * q, a, inverse)


def attack(seed):
    """(certified, actual) of every entry of one random computation."""
    generator = torch.Generator().manual_seed(seed)
    draw = np.random.default_rng(seed)
    noise = float(10.0 ** draw.uniform(-15, -3)) if draw.random() < 0.8 else 0.0
    net = Twice(generator, noise)
    tokens, width = int(draw.integers(1, 4)), int(draw.integers(2, 4))
    x = net.given(net.random(tokens, width), noise)
    for _ in range(int(draw.integers(1, 6))):
        kind = draw.choice(["tanh", "relu", "norm", "attention", "product", "ratio", "skip", "max"])
        if kind in ("tanh", "relu"):
            x = net.activation(net.affine(x, width, width), kind)
        elif kind == "norm":
            x = net.norm(x)
        elif kind == "attention":
            x = net.attention(x, width)
        elif kind == "product":
            gate = net.affine(x, width, width)
            x = net.step("mul", lambda a, b: a * b, x, gate)
        elif kind == "max":
            x = net.largest(x, net.affine(x, width, width))
        elif kind == "ratio":
            x = net.ratio(x, net.affine(x, width, width))
        else:
            x = net.add(x, net.activation(net.affine(x, width, width), "tanh"))
    bounds = net.tape.bound(x).numpy()
    off = abs(exact_of(net.tape.value(x).numpy()) - net.exact[x])
    return bounds, off, net, x


def hold(seeds):
    ratios = []
    for seed in seeds:
        bounds, off, *_ = attack(seed)
        held = (off <= bounds) | np.isinf(bounds)  # what is no number is bounded by infinity
        assert held.all(), seed
        if np.isfinite(bounds).all() and float(off.max()) > 1e-18:
            ratios.append(float(bounds.max() / off.max()))
    return ratios


POSITIVE = torch.rand(2, 3, 4, dtype=F64, generator=torch.Generator().manual_seed(3)) + 0.5
RULES = {
    "sum": (Rule("add", -0.3), 2), "product": (Rule("mul"), 2), "matmul": (Rule("matmul"), 2),
    "mean": (Rule("mean", ((-1,), True)), 1), "softmax": (Rule("softmax"), 1),
    "maximum": (Rule("maximum"), 2), "minimum": (Rule("minimum"), 2),
    **{f: (Rule("apply", Formula(f).tree), 1) for f in
       ("tanh(z)", "max(z, 0)", "1/sqrt(z)", "sqrt(z)", "1/z", "z*z", "abs(z - 1)")},
    "gelu": (Rule("apply", ScalarFunction(torch.nn.functional.gelu, "gelu")), 1),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_first_order_and_remainder_of_every_rule(name):
    """f(x - e) = f(x) - J e + r, for e on the corners of the box and inside it."""
    operation, count = RULES[name]
    draw = torch.Generator().manual_seed(4)
    signed = "sqrt" not in name and name != "1/z"
    x = [(POSITIVE[i] - (1.0 if signed else 0.0)) for i in range(count)]
    x = [x[0], x[1].T.contiguous() if name == "matmul" else x[1]] if count == 2 else x
    for size in (0.3, 0.03, 1e-3):
        radii = [size * torch.rand(t.shape, generator=draw, dtype=F64) for t in x]
        out = operation.call(*x)
        slopes = torch.autograd.functional.jacobian(operation.tangent(*x), tuple(x))
        carried = operation.moved(out, x, radii)
        # Neither more nor less than the slopes times the radii; a softmax's mean counts e_i twice.
        want = sum(torch.tensordot(j.abs(), r, r.ndim) for j, r in zip(slopes, radii, strict=True))
        most = 2.0 if name == "softmax" else 1 + 1e-12
        assert bool((want <= carried.first * (1 + 1e-12)).all())
        assert bool((carried.first <= most * want).all())
        worst = 0.0
        for corner in range(400):
            unit = [2 * torch.rand(t.shape, generator=draw, dtype=F64) - 1 for t in x]
            e = [r * (u.sign() if corner % 2 else u) for r, u in zip(radii, unit, strict=True)]
            first = sum(torch.tensordot(j, d, d.ndim) for j, d in zip(slopes, e, strict=True))
            rest = operation.call(*(a - b for a, b in zip(x, e, strict=True))) - out + first
            assert bool((rest.abs() <= torch.as_tensor(carried.rest) + 1e-12).all())
            worst = max(worst, float(rest.abs().max()))
        assert float(torch.as_tensor(carried.rest).max()) <= 200 * worst + 1e-11  # and no looser


def test_no_random_computation_is_off_by_more_than_certified():
    ratios = hold(range(80))
    assert len(ratios) >= 60
    assert float(np.median(ratios)) <= 30


@pytest.mark.slow
def test_thousands_of_random_computations():
    ratios = hold(range(1000, 4000))
    assert float(np.median(ratios)) <= 30


def test_a_functional_is_bounded_by_one_reverse_pass():
    bounds, off, net, x = attack(7)
    del off
    weights = torch.randn(2, *bounds.shape, dtype=F64)
    found = net.tape.bound(x, weights)
    apart = exact_of(net.tape.value(x).numpy()) - net.exact[x]
    for row, bound in zip(weights, found.tolist(), strict=True):
        assert abs((exact_of(row.numpy()) * apart).sum()) <= bound
        assert bound <= 1.001 * float((row.abs() * torch.from_numpy(bounds)).sum())


def test_first_order_is_sharp_where_a_chain_of_norms_is_not():
    """W and its inverse: the error of the first step comes out as it went in."""
    torch.manual_seed(0)
    w = torch.linalg.qr(torch.randn(6, 6, dtype=F64))[0] * torch.logspace(0, 3, 6, dtype=F64)
    tape, zero = Tape(), torch.zeros(6, dtype=F64)
    x = tape.leaf(torch.randn(6, dtype=F64), 1e-9)
    for _ in range(4):
        x = tape.apply("affine", x, attr=AffineMap(w, zero))
        x = tape.apply("affine", x, attr=AffineMap(torch.linalg.inv(w), zero))
    assert float(tape.bound(x).max()) <= 2e-9


def test_what_cannot_be_bounded_is_infinite():
    tape = Tape()
    x = tape.leaf(torch.tensor([1e-4]), 1e-3)
    for curve in (INVERSE, ROOT, Formula("sqrt(z)").tree):
        assert float(tape.bound(tape.apply("apply", x, attr=curve))) == math.inf
    one = tape.leaf(torch.ones(1))
    assert 1e-3 <= float(tape.bound(tape.apply("maximum", x, one))) * 2**60 + 1e-3 <= 2e-3


def test_masks_forbid_without_harm():
    tape = Tape()
    logits = tape.leaf(torch.randn(2, 4, dtype=F64), 1e-9)
    for never in (-math.inf, torch.finfo(F64).min):
        mask = torch.zeros(2, 4, dtype=F64)
        mask[:, 2:] = never
        weights = tape.apply("softmax", tape.apply("add", logits, tape.leaf(mask)))
        assert float(tape.bound(weights).max()) <= 2e-9
        assert float(tape.bound(weights)[:, 2:].max()) <= 1e-20


@pytest.mark.parametrize("seed", range(20))
def test_an_affine_map_rounds_by_the_sizes_of_its_terms_not_by_their_sum(seed):
    """Weights of both signs cancel, what they were rounded by does not."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(3, 40, generator=generator, dtype=F64).exp()
    x = torch.randn(40, generator=generator, dtype=F64).exp()
    weight[:, 1::2] = -weight[:, ::2] * (x[::2] / x[1::2])  # terms in pairs that cancel
    bias = -torch.rand(3, generator=generator, dtype=F64)
    affine = Rule("affine", AffineMap(weight, bias))
    got = affine.accurate(x)
    allowed = affine.rounding(got, x)
    exact = (exact_of(weight.numpy()) * exact_of(x.numpy())).sum(-1) + exact_of(bias.numpy())
    off = np.abs(exact_of(got.numpy()) - exact).astype(float)
    assert (off > 0).any()
    assert (off <= allowed.numpy()).all()
    # Signs of weights and of what is multiplied do not matter to either bound.
    plain = Rule("affine", AffineMap(weight.abs(), bias.abs()))
    assert torch.equal(allowed, plain.rounding(got, -x))
    radii = torch.rand(40, generator=generator, dtype=F64)
    assert torch.equal(affine.moved(got, [x], [radii]).first, plain.moved(got, [x], [radii]).first)


@pytest.mark.parametrize(("op", "value"), [("mul", 1e200), ("add", 1.5e308)])
def test_what_overflows_is_off_by_infinity_and_what_is_masked_by_nothing(op, value):
    """tanh of it times 1e-300 is 1 in float64, whatever it should be."""
    tape = Tape()
    twice = tape.leaf(torch.tensor([value, -math.inf], dtype=F64))
    large = tape.apply(op, twice, tape.leaf(torch.tensor([value, 1.0], dtype=F64)))
    assert tape.bound(large).tolist()[0] == math.inf
    assert tape.bound(large).tolist()[1] <= 1e-299
    small = tape.apply("mul", large, tape.leaf(torch.tensor([1e-308, 1.0], dtype=F64)))
    assert tape.bound(tape.apply("apply", small, attr=TANH)).tolist()[0] >= 0.01
