"""Fifty-six algorithms, as many turns as one would ask for: what is known before the fact?

``python -m tests.computer.before_the_fact`` compiles each as the documentation has it, the data as
the example, prints its certificate, and says of one that is infinite which line it hangs on;
``--run`` runs each as well. ``FIRST`` are those that run at once as they stand here.
"""

# ruff: noqa: B008
from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

import iceform as ice

USEFUL = 1e-3
NARROW = {"margin": 1.5, "eps": 1e-12}  # what is known before the fact hangs on ranges
PHI = 0.6180339887498949


@dataclass(frozen=True)
class Case:
    """An algorithm, data, and what ``compile`` is told of it."""

    algorithm: Any
    X: torch.Tensor
    y: torch.Tensor
    told: Mapping[str, Any] = field(default_factory=dict)

    def compile(self) -> Any:
        """With the data as the example."""
        return ice.compile(self.algorithm, example=(self.X, self.y), **{**NARROW, **self.told})


CASES: dict[str, Case] = {}


def uniform(*shape: int, seed: int = 0, low: float = -1.0, high: float = 1.0) -> torch.Tensor:
    """Random numbers."""
    draw = torch.Generator().manual_seed(seed)
    return low + (high - low) * torch.rand(*shape, dtype=torch.float64, generator=draw)


def numbers(values: Any) -> torch.Tensor:
    """A tensor of numbers."""
    return torch.tensor(values, dtype=torch.float64)


X3, X2 = uniform(12, 3), uniform(12, 2)
LINE3, LINE2 = X3 @ numbers([0.6, -0.3, 0.2]), X2 @ numbers([0.6, -0.3])
LABELS3, SIGNS2 = (LINE3 > 0).double(), torch.sign(LINE2)
LABELS2 = (SIGNS2 + 1) / 2
SERIES, BITS = uniform(10, seed=4), (uniform(10, seed=3) > 0).double()
UNIT = {"domain": 1.0}


def case(
    X: torch.Tensor, y: torch.Tensor | None = None, **told: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Note an algorithm with its data and what ``compile`` is told."""

    def note(function: Callable[..., Any]) -> Callable[..., Any]:
        targets = torch.zeros(len(X), dtype=torch.float64) if y is None else y
        CASES[function.__name__] = Case(ice.algorithm(function), X, targets, told)
        return function

    return note


def empty(count: int) -> torch.Tensor:
    """Features that nothing reads."""
    return torch.zeros(count, 1, dtype=torch.float64)


# ------------------------------------------------------------------------------- optimisers


@case(X3, LABELS3, **UNIT)
def adam(x, y, *, lr=0.1, steps=100):
    w, m, v = ice.zeros_like(x), ice.zeros_like(x), ice.zeros_like(x)
    for i in ice.repeat(steps):
        g = ice.mean(x * (torch.sigmoid(x @ w) - y))
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
        size = torch.sqrt(v / (1 - 0.99 ** (i + 1))) + 1e-3
        w = w - lr * m / (1 - 0.9 ** (i + 1)) / size
    return w


@case(X3, LINE3, **UNIT)
def rmsprop(x, y, *, lr=0.05, steps=100):
    w, v = ice.zeros_like(x), ice.zeros_like(x)
    for _ in ice.repeat(steps):
        g = ice.mean(x * (x @ w - y))
        v = 0.9 * v + 0.1 * g**2
        w = w - lr * g / torch.sqrt(v + 1e-4)
    return w


@case(X3, LINE3, **UNIT)
def adagrad_100(x, y, *, lr=0.2, steps=100):
    w, s = ice.zeros_like(x), ice.zeros_like(x)
    for _ in ice.repeat(steps):
        g = ice.mean(x * (x @ w - y))
        s = s + g * g
        w = w - lr * g / torch.sqrt(s + 1e-3)
    return w


@case(X3, LINE3, **UNIT)
def heavy_ball_200(x, y, *, lr=0.2, beta=0.8, steps=200):
    w, v = ice.zeros_like(x), ice.zeros_like(x)
    for _ in ice.repeat(steps):
        v = beta * v - lr * ice.mean(x * (x @ w - y))
        w = w + v
    return w


@case(X3, LINE3, **UNIT)
def gd_200(x, y, *, lr=0.5, steps=200):
    w = ice.zeros_like(x)
    for _ in ice.repeat(steps):
        w = w - lr * ice.mean(x * (x @ w - y))
    return w


@case(X3, LABELS3, **UNIT)
def gd_logistic_500(x, y, *, lr=0.5, steps=500):
    w = ice.zeros_like(x)
    for _ in ice.repeat(steps):
        w = w - lr * (ice.mean(x * (torch.sigmoid(x @ w) - y)) + 0.01 * w)
    return w


@case(X3, LINE3, **UNIT)
def soft_sign_gd_100(x, y, *, lr=0.05, steps=100):
    w = ice.zeros_like(x)
    for _ in ice.repeat(steps):
        w = w - lr * torch.tanh(10 * ice.mean(x * (x @ w - y)))
    return w


@case(X3, LINE3, **UNIT)
def gd_decay_120(x, y, *, lr=0.1, steps=120):
    w = ice.zeros_like(x)
    for i in ice.repeat(steps):
        w = w - lr / torch.sqrt(1 + i) * ice.mean(x * (x @ w - y))
    return w


@case(X3, torch.arange(12).double() % 3, domain={"x": (-1, 1), "y": (0, 2)})
def softmax_regression(x, y, *, lr=0.5, steps=50):
    rows = [ice.zeros_like(x) for _ in range(3)]
    for _ in ice.repeat(steps):
        p = torch.softmax(ice.concat(*[w @ x for w in rows]), -1)
        rows = [w - lr * ice.mean(x * (p[k] - (y == k))) for k, w in enumerate(rows)]
    return rows


@case(X2, SIGNS2, **UNIT, lam=(0.1, 0.1), steps=(1, 100))
def pegasos(x, y, *, lam=0.1, steps=100):
    """Their w is total / (lam t): the sum needs no division in its turns."""
    total = ice.mean(y * x)
    for t in ice.repeat(steps - 1):
        total = total + ice.mean(ice.where(y * (x @ total) < lam * (t + 1), y * x, 0.0))
    return total / (lam * steps)


@case(X2, LINE2, **UNIT, least=(0.05, 0.05), rho=(1, 1), margin=1.1)
def lasso_admm(x, y, *, least=0.05, rho=1.0, steps=50):
    """``least`` is the penalty divided by rho."""
    w, z, u = ice.zeros_like(x), ice.zeros_like(x), ice.zeros_like(x)
    a, b, c = ice.mean(x[0] ** 2) + rho, ice.mean(x[0] * x[1]), ice.mean(x[1] ** 2) + rho
    det, q = a * c - b * b, ice.mean(x * y)
    for _ in ice.repeat(steps):
        r = q + rho * (z - u)
        w = ice.concat(c * r[0] - b * r[1], a * r[1] - b * r[0]) / det
        both = w + u
        z = ice.soft_threshold(both, least)
        u = both - z
    return z


@case(X2, LABELS2, **UNIT)
def lbfgs(x, y, *, steps=8):
    def slope(w):
        return ice.mean(x * (torch.sigmoid(x @ w) - y)) + 0.1 * w

    w = ice.zeros_like(x)
    g = slope(w)
    s = -g
    for _ in ice.repeat(steps):
        new = slope(w + s)
        t = new - g
        rho = 1 / (t @ s + 1e-3)
        a = rho * (s @ new)
        r = (s @ t) / (t @ t + 1e-3) * (new - a * t)
        w, g, s = w + s, +new, -(r + (a - rho * (t @ r)) * s)
    return w


@case(X3, LINE3, **UNIT)
def cg(x, y, *, alpha=0.1, steps=3):
    w = ice.zeros_like(x)
    r = ice.mean(x * y)
    p, rr = +r, r @ r
    for _ in ice.repeat(steps):
        q = ice.mean(x * (x @ p)) + alpha * p
        a = rr / (p @ q + 1e-8)
        w, r = w + a * p, r - a * q
        new = r @ r
        p, rr = r + new / (rr + 1e-8) * p, +new
    return w


@case(X2, LINE2, **UNIT)
def mlp(x, y, *, lr=0.5, steps=50):
    """Two features, three hidden units, by backpropagation."""
    rows = [ice.constant(s) for s in ([0.5, -0.4], [-0.3, 0.6], [0.2, 0.7])]
    v = ice.constant([0.3, -0.2, 0.4])
    for _ in ice.repeat(steps):
        h = torch.tanh(ice.concat(*[w @ x for w in rows]))
        e = v @ h - y
        back = e * v * (1 - h**2)
        rows = [w - lr * ice.mean(back[k] * x) for k, w in enumerate(rows)]
        v = v - lr * ice.mean(e * h)
    return v @ torch.tanh(ice.concat(*[w @ x for w in rows]))


# ------------------------------------------------------------------------------- equations


@case(X3, LINE3, **UNIT)
def newton_root(x, y, *, steps=8):
    """The cube root of 2 + y, for every sample."""
    r = 1.5 + 0 * y
    for _ in ice.repeat(steps):
        r = r - (r * r * r - (2 + y)) / (3 * r * r)
    return r


@case(X3, LINE3, **UNIT)
def newton_1d(x, y, *, steps=8):
    b = ice.constant(0.0)
    for _ in ice.repeat(steps):
        p = torch.sigmoid(b + 0.5 * y)
        b = b - (ice.mean(p) - 0.4) / ice.mean(p * (1 - p))
    return b


@case(X3, LINE3, **UNIT)
def secant(x, y, *, steps=5):
    """cos(t) = t + mean(y)/10."""
    c = 0.1 * ice.mean(y)
    a, b = ice.constant(0.2), ice.constant(1.0)
    for _ in ice.repeat(steps):
        fa, fb = torch.cos(a) - a - c, torch.cos(b) - b - c
        far = abs(fb - fa) > 1e-3
        step = fb * (b - a) / ice.where(far, fa - fb, 1.0)
        a, b = b, ice.where(far, b + step, b)
    return b


@case(X3, LINE3, **UNIT)
def golden(x, y, *, steps=10):
    def f(t):
        return ice.mean(torch.tanh(y - t) ** 2)

    low, high = ice.constant(-1.0), ice.constant(1.0)
    for _ in ice.repeat(steps):
        c, d = high - PHI * (high - low), low + PHI * (high - low)
        less = f(c) < f(d)
        low, high = ice.where(less, low, c), ice.where(less, d, high)
    return (low + high) / 2


@case(uniform(9, 2), uniform(9, seed=5), **UNIT)
def median(x, y, *, steps=14):
    low, high = ice.constant(-1.0), ice.constant(1.0)
    for _ in ice.repeat(steps):
        middle = (low + high) / 2
        above = ice.mean(y > middle) > 0.5
        low, high = ice.where(above, middle, low), ice.where(above, high, middle)
    return (low + high) / 2


@case(X2, LINE2, **UNIT)
def knn(x, y, *, query=ice.vector(0.1), k=3.0, steps=12):
    """The mean of the k nearest, their radius by bisection."""
    d = ((x - query) ** 2).sum()
    low, high = ice.constant(0.0), ice.constant(8.0)
    for _ in ice.repeat(steps):
        r = (low + high) / 2
        few = ice.sum(d < r) < k - 0.5
        low, high = ice.where(few, r, low), ice.where(few, high, r)
    return ice.sum(ice.where(d < high, y, 0.0)) / k


# ------------------------------------------------------------------------------- matrices


def second_moments(x, ridge):
    """mean(x x') + ridge I, in rows."""
    d = len(x)
    added = [[ridge * (i == j) for j in range(d)] for i in range(d)]
    return [[ice.mean(x[i] * x[j]) + added[i][j] for j in range(d)] for i in range(d)]


@case(X3, LINE3, **UNIT)
def ridge_gauss(x, y, *, alpha=0.1):
    d = len(x)
    rows = [[*row, ice.mean(x[i] * y)] for i, row in enumerate(second_moments(x, alpha))]
    for k in range(d):
        rows[k] = [v / rows[k][k] for v in rows[k]]
        for i in range(d):
            if i != k:
                rows[i] = [u - rows[i][k] * v for u, v in zip(rows[i], rows[k], strict=True)]
    return ice.concat(*[rows[i][d] for i in range(d)])


@case(X3, LINE3, **UNIT, margin=1.1)
def newton_schulz(x, y, *, steps=12):
    """The inverse of mean(x x') + I/2, entry by entry, so that each has a range of its own."""
    d = range(len(x))
    a = second_moments(x, 0.5)
    v = [[ice.constant(0.5 * (i == j)) for j in d] for i in d]
    for _ in ice.repeat(steps):
        av = [[sum(a[i][k] * v[k][j] for k in d) for j in d] for i in d]
        v = [[2 * v[i][j] - sum(v[i][k] * av[k][j] for k in d) for j in d] for i in d]
    return [entry for row in v for entry in row]


@case(X3, LINE3, **UNIT)
def cholesky(x, y):
    d, moments = len(x), second_moments(x, 0.3)
    root = [[None] * d for _ in range(d)]
    for j in range(d):
        root[j][j] = torch.sqrt(moments[j][j] - sum(root[j][k] ** 2 for k in range(j)))
        for i in range(j + 1, d):
            rest = moments[i][j] - sum(root[i][k] * root[j][k] for k in range(j))
            root[i][j] = rest / root[j][j]
    return [root[i][j] for i in range(d) for j in range(i + 1)]


@case(X3, **UNIT, margin=1.1)
def gram_schmidt(x):
    made = []
    for j in range(len(x)):
        v = x[j]
        for u in made:
            v = v - ice.mean(u * x[j]) * u
        made.append(v / torch.sqrt(ice.mean(v * v)))
    return ice.concat(*made)


@case(X3, **UNIT)
def power_deflate(x, *, steps=30):
    rows = [ice.concat(*row) for row in second_moments(x, 0.0)]
    v = torch.ones_like(x)
    for _ in ice.repeat(steps):
        v = ice.concat(*[row @ v for row in rows])
        v = v / v.norm()
    u = torch.ones_like(x)
    for _ in ice.repeat(steps):
        u = ice.concat(*[row @ u for row in rows])
        u = u - (u @ v) * v
        u = u / u.norm()
    return v, u


@case(uniform(12, 3, low=0.2), domain={"x": (0.2, 1)})
def als_rank1(x, *, steps=20):
    v = torch.ones_like(x)
    for _ in ice.repeat(steps):
        u = (x @ v) / (v @ v)
        v = ice.mean(u * x) / ice.mean(u * u)
    return v


# ------------------------------------------------------------------------------- sequences


@case(empty(10), BITS, domain={"y": (0, 1)}, margin=1.1)
def hmm_forward(x, y):
    """Twice each factor: what is left of a is as large as one symbol in two is likely."""
    a = ice.constant([0.5, 0.5])
    for t in ice.repeat(ice.count()):
        said = [1.8, 0.4] + ice.at(y, t) * [-1.6, 1.2]
        a = said * (a @ [[0.8, 0.2], [0.3, 0.7]])
    return ice.concat(a / a.sum(), torch.log(a.sum()) - math.log(2) * ice.count())


LOG_MOVES = numbers([[0.8, 0.3], [0.2, 0.7]]).log()  # to a state, a row


@case(empty(10), BITS, domain={"y": (0, 1)})
def viterbi(x, y):
    d = ice.constant([-0.7, -0.7])
    for t in ice.repeat(ice.count()):
        o = ice.at(y, t)
        to = [(d + row).max() for row in LOG_MOVES]
        said = [math.log(0.9), math.log(0.2)] + o * [math.log(1 / 9), math.log(4)]
        d = ice.concat(*to) + said
    return d


@case(empty(10), SERIES, **UNIT, q=(0.1, 0.1), r=(0.5, 0.5))
def rts_smoother(x, y, *, q=0.1, r=0.5):
    m, p = ice.constant(0.0), ice.constant(1.0)
    filtered, spread = 0 * y, 0 * y + 1.0
    for t in ice.repeat(ice.count()):
        p = p + q
        k = 1 - r / (p + r)
        m, p = m + k * (ice.at(y, t) - m), r * k
        here = ice.index() == t
        filtered, spread = ice.where(here, m, filtered), ice.where(here, p, spread)
    smooth, s = +filtered, +m
    for t in ice.repeat(ice.count() - 1):
        place = ice.count() - 2 - t
        f, g = ice.at(filtered, place), ice.at(spread, place)
        s = f + (1 - q / (g + q)) * (s - f)
        smooth = ice.where(ice.index() == place, s, smooth)
    return smooth


@case(empty(10), SERIES, **UNIT)
def rnn(x, y):
    h = ice.constant([0.0, 0.0])
    for t in ice.repeat(ice.count()):
        h = torch.tanh(h @ [[0.5, 0.3], [-0.4, 0.6]] + ice.at(y, t) * [1.0, -0.2])
    return h


@case(empty(10), SERIES, **UNIT)
def lstm(x, y):
    h, c = ice.constant(0.0), ice.constant(0.0)
    for t in ice.repeat(ice.count()):
        u = ice.at(y, t)
        i, f, o = (
            torch.sigmoid(a * u + b * h + 0.1) for a, b in ((1.0, 0.5), (-0.5, 0.3), (0.7, -0.2))
        )
        c = f * c + i * torch.tanh(0.9 * u + 0.4 * h)
        h = o * torch.tanh(c)
    return h


@case(empty(10), SERIES, **UNIT)
def rank(x, y):
    r = 0 * y
    for j in ice.repeat(ice.count()):
        r = r + (ice.at(y, j) < y - 1e-4)
    return r


@case(empty(10), SERIES, **UNIT)
def sort(x, y):
    r, out = 0 * y, 0 * y
    for j in ice.repeat(ice.count()):
        r = r + (ice.at(y, j) < y - 1e-4)
    for j in ice.repeat(ice.count()):
        out = ice.where(ice.index() == ice.at(r, j), ice.at(y, j), out)
    return out


@case(empty(10), SERIES, **UNIT)
def prefix_sum(x, y):
    s = 0 * y
    for j in ice.repeat(ice.count()):
        s = s + ice.where(ice.index() >= j, ice.at(y, j), 0.0)
    return s


@case(empty(10), SERIES, **UNIT)
def running_max(x, y):
    s = +y
    for j in ice.repeat(ice.count()):
        s = ice.where(ice.index() > j, ice.maximum(s, ice.at(y, j)), s)
    return s


# ------------------------------------------------------------------------------- dynamics


@case(0.5 * uniform(6, 3), domain=0.5)
def lorenz(x, *, h=0.01, steps=100):
    def f(v):
        return ice.concat(
            10 * (v[1] - v[0]), v[0] * (28 - 20 * v[2]) - v[1], 20 * v[0] * v[1] - 8 / 3 * v[2]
        )

    v = +x
    for _ in ice.repeat(steps):
        a = f(v)
        b = f(v + h / 2 * a)
        c = f(v + h / 2 * b)
        v = v + h / 6 * (a + 2 * b + 2 * c + f(v + h * c))
    return v


@case(uniform(6, 2), **UNIT)
def pendulum(x, *, h=0.05, steps=100):
    def f(v):
        return ice.concat(v[1], -torch.sin(v[0]))

    v = +x
    for _ in ice.repeat(steps):
        a = f(v)
        b = f(v + h / 2 * a)
        c = f(v + h / 2 * b)
        v = v + h / 6 * (a + 2 * b + 2 * c + f(v + h * c))
    return v


@case(empty(6), uniform(6, low=0.1, high=0.9), domain={"y": (0, 1)})
def logistic_map(x, y, *, r=3.7, steps=30):
    z = +y
    for _ in ice.repeat(steps):
        z = r * z * (1 - z)
    return z


@case((uniform(4, 8) > 0).double(), domain={"x": (0, 1)})
def rule110(x, *, steps=8):
    c = +x
    for _ in ice.repeat(steps):
        n = 4 * ice.concat(c[-1:], c[:-1]) + 2 * c + ice.concat(c[1:], c[:1])
        c = ((n > 0.5) & (n < 3.5)) | ((n > 4.5) & (n < 6.5))
    return c


@case((uniform(2, 16, seed=2) > 0).double(), domain={"x": (0, 1)})
def life(x, *, steps=4):
    """A torus of 4 x 4 cells a sample."""
    c = +x
    for _ in ice.repeat(steps):
        col = c + ice.concat(c[4:], c[:4]) + ice.concat(c[-4:], c[:-4])
        left = ice.concat(*[col[i - 1 if i % 4 else i + 3] for i in range(16)])
        right = ice.concat(*[col[i + 1 if (i + 1) % 4 else i - 3] for i in range(16)])
        n = col + left + right - c
        c = ice.where(n == 3, 1.0, ice.where(n == 2, c, 0.0))
    return c


@case(uniform(12, 1, seed=7), torch.log(uniform(12, seed=8, low=0.05)),
      domain={"x": (-1, 1), "y": (-3, 0)})  # fmt: skip
def metropolis(x, y):
    """x is what is proposed, y the logarithm of a uniform number."""
    z, total = ice.constant(0.0), ice.constant(0.0)
    for t in ice.repeat(ice.count()):
        new = z + ice.at(x[0], t)
        z = ice.where(ice.at(y, t) < 0.5 * (z * z - new * new), new, z)
        total = total + z / 12
    return total


# ------------------------------------------------------------------------------- decisions

ROADS = numbers([[0, 1, 4, 9], [1, 0, 2, 6], [4, 2, 0, 3], [9, 6, 3, 0]])
LINKS = numbers([[0, 1, 1, 0], [0, 0, 1, 0], [1, 0, 0, 1], [0, 0, 1, 0]])
STATES = torch.eye(2, dtype=torch.float64)[(torch.arange(12) // 2) % 2]
PULLS = (uniform(20, 3, low=0) < numbers([0.3, 0.5, 0.8])).double()
TENTHS = {"domain": {"x": (0, 1), "y": (-1, 1)}}


@case(ROADS, domain={"x": (0, 9)})
def bellman_ford(x, *, steps=4):
    """Lane i is node i, x its edges."""
    d = 9.0 * (ice.index() > 0)
    for _ in ice.repeat(steps):
        d = ice.minimum(d, -(-(ice.concat(*[ice.at(d, j) for j in range(4)]) + x)).max())
    return d


@case(torch.cat([STATES, STATES.roll(1, 0)], 1), LINE2, **TENTHS)
def td0(x, y, *, lr=0.3, gamma=0.9, steps=50):
    """All transitions at once: features of a state and of the next, and the reward."""
    v = ice.constant([0.0, 0.0])
    for _ in ice.repeat(steps):
        v = v + lr * ice.mean((y + gamma * (x[2:] @ v) - x[:2] @ v) * x[:2])
    return v


@case(numbers([[0], [1], [1], [0]]), LINE2[:4], domain={"x": (0, 1), "y": (-1, 1)})
def q_learning(x, y, *, lr=0.5, gamma=0.9, steps=40):
    """Lane 2 s + a is action a in state s, x the state that follows, y the reward."""
    q, after = 0 * y, 2 * torch.round(x[0])
    for _ in ice.repeat(steps):
        best = max(ice.at(q, after), ice.at(q, after + 1))
        q = q + lr * (y + gamma * best - q)
    return q


@case(PULLS, torch.arange(20).double(), domain={"x": (0, 1), "y": (0, 20)}, c=(0.5, 0.5))
def ucb(x, y, *, c=0.5):
    n, mean = ice.constant([1.0] * 3), ice.constant([0.5] * 3)
    for t in ice.repeat(ice.count()):
        score = mean + c * torch.sqrt(torch.log(t + 3) / n) + [0.0, 0.01, 0.02]
        pick = score > score.max() - 1e-3
        n = n + pick
        mean = mean + pick * (ice.at(x, t) - mean) / n
    return mean


@case(LINKS, domain={"x": (0, 1)})
def pagerank(x, *, damping=0.85, steps=50):
    """Lane i is page i, x its links."""
    r = 0 * x[0] + 1 / ice.count()
    for _ in ice.repeat(steps):
        given = ice.sum(x * (r / x.sum()))
        r = (1 - damping) / ice.count() + damping * given[ice.index()]
    return r


# ------------------------------------------------------------------------------- learners


@case(X2, LABELS2, domain={"x": (-1, 1), "y": (0, 1)})
def naive_bayes(x, y, *, query=ice.vector(0.2)):
    score = []
    for label in (0, 1):
        mine = y == label
        p = ice.mean(mine)
        m = ice.mean(mine * x) / p
        v = ice.mean(mine * (x - m) ** 2) / p + 0.01
        score.append(torch.log(p) - 0.5 * (torch.log(v) + (query - m) ** 2 / v).sum())
    return score[1] - score[0]


@case(X2, SIGNS2, **UNIT)
def stump(x, y):
    """The best threshold on feature 0."""
    best, place = ice.constant(1.0), ice.constant(0.0)
    for j in ice.repeat(ice.count()):
        t = ice.at(x[0], j) + 1e-3
        err = ice.mean(((x[0] > t) & (y < 0)) | ((x[0] < t) & (y > 0)))
        better = err < best - 0.01
        best, place = ice.where(better, err, best), ice.where(better, t, place)
    return best, place


@case(X2, SIGNS2, **UNIT)
def adaboost(x, y, *, steps=6):
    w, total = 1.0 + 0 * y, 0 * y
    for _ in ice.repeat(steps):
        guess = ice.where(x > 0, 1.0, -1.0)
        e = [ice.mean(w * (guess[j] * y < 0)) for j in range(2)]
        first = e[0] < e[1]
        err = ice.where(first, e[0], e[1]) + 0.01
        a, h = 0.5 * torch.log((1 - err) / err), ice.where(first, guess[0], guess[1])
        total = total + a * h
        w = w * torch.exp(-a * y * h)
        w = w / ice.mean(w)
    return total


@case(X2, LINE2, **UNIT, margin=1.1)
def boosting(x, y, *, lr=0.5, steps=8):
    """Regression stumps at 0.1."""
    fit = 0 * y
    for _ in ice.repeat(steps):
        for j in range(2):
            up = x[j] > 0.1
            n, r = ice.mean(up), y - fit
            a, b = ice.mean(up * r) / (n + 0.01), ice.mean((1 - up) * r) / (1 - n + 0.01)
            fit = fit + lr * ice.where(up, a, b)
    return fit


@case(X2, **UNIT)
def attention(x):
    q, k = ice.concat(x[0] + 0.5 * x[1], x[1] - x[0]), ice.concat(x[1], 0.3 * x[0])
    return x + ice.attend(q, k, 0.5 * x)


@case(X2, **UNIT)
def mean_shift(x, *, beta=4.0, steps=10):
    z = +x
    for _ in ice.repeat(steps):
        z = ice.attend(2 * beta * z, x, x, -beta * (x * x).sum())
    return z


@case(X2, **UNIT)
def components(x, *, radius=0.3, steps=6):
    """Labels spread among near samples."""
    label = 1.0 * ice.index()
    for _ in ice.repeat(steps):
        for j in ice.repeat(ice.count()):
            near = ((x - ice.at(x, j)) ** 2).sum() < radius
            label = ice.where(near, min(label, ice.at(label, j)), label)
    return label


@case(X2, **UNIT)
def tsne(x, *, lr=0.5, steps=3):
    """An embedding in one dimension."""
    z = 0.1 * x[0]
    for _ in ice.repeat(steps):
        g = 0 * z
        for j in ice.repeat(ice.count()):
            apart = z - ice.at(z, j)
            p, q = torch.exp(-((x - ice.at(x, j)) ** 2).sum()), 1 / (1 + apart**2)
            g = g + (p - q) * q * apart
        z = z - lr * g / 12
    return z


# ------------------------------------------------------------------------------- whole numbers


@case(empty(2))
def collatz(x, y, *, start=7):
    n, count = ice.constant(0) + start, ice.constant(0)
    while ice.while_(n > 1):
        n = torch.round(ice.where(n % 2 == 0, n // 2, 3 * n + 1))
        count = torch.round(count + 1)
    return count


@case(empty(2))
def gcd(x, y, *, a=48, b=18):
    a, b = ice.constant(0) + a, ice.constant(0) + b
    while ice.while_(b > 0):
        a, b = b, torch.round(a % b)
    return a


# ------------------------------------------------------------------------------- the run


def flat(value: Any) -> torch.Tensor:
    """Answers as one row."""
    if isinstance(value, (tuple, list)):
        return torch.cat([flat(v) for v in value])
    return torch.as_tensor(value, dtype=torch.float64).reshape(-1)


def known(name: str) -> tuple[Any, Any]:
    """The program and its certificate."""
    program = CASES[name].compile()
    return program, program.certificate


def off(name: str, program: Any) -> tuple[float, float]:
    """How far a run is from the exact algorithm, and what its enclosure says."""
    it = CASES[name]
    result = ice.Computer.for_programs([program]).run(program, it.X, it.y, backend="fused")
    exact = flat(it.algorithm(it.X, it.y))
    return float((flat(result.value) - exact).abs().max()), result.enclosure.error


def told(name: str, run: bool) -> tuple[float, str]:
    """The certificate, and a line about it."""
    try:
        program, certificate = known(name)
        why = [k for k, v in certificate.domain.items() if str(v).startswith("perhaps")]
        text = f"{certificate.error:.1e}  {certificate.domain.get('parameters', '')} {why[:2]}"
        if run:
            text += " off by {:.1e}, enclosed {:.1e}".format(*off(name, program))
        return certificate.error, text
    except Exception as error:
        return math.inf, f"{type(error).__name__}: {str(error)[:300]}"


def main(arguments: list[str]) -> int:
    """All of them, or those that are named."""
    run, names = "--run" in arguments, [a for a in arguments if not a.startswith("-")]
    found = {}
    for name in names or CASES:
        began = time.process_time()
        found[name], text = told(name, run)
        print(f"{name:20} {time.process_time() - began:5.1f} s  {text}", flush=True)
    finite, useful = (sum(e < most for e in found.values()) for most in (math.inf, USEFUL))
    print(f"{finite} of {len(found)} finite before the fact, {useful} below {USEFUL:g}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
