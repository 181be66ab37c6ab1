"""Forty-eight more, written by a new user from the docs alone, as they were written first.

``WHEN_NEW`` says what became of those that were not right at once when they were new: 31 were. They
belong to the same registry; ``python -m tests.computer.new_users_algorithms`` runs all of them.
"""

# ruff: noqa: B008, B905, E501, E731, E741, F841, PLW2901, RUF015
from __future__ import annotations

import math
import sys

import numpy as np
import torch

import iceform as ice
from tests.computer import more_algorithms  # noqa: F401
from tests.computer.forty_algorithms import CASES, PEERS, main

WHEN_NEW = {
    "adam_poisson": "off by 1.5e-7, and warned: the 1e-8 of the textbook under a root",
    "backtracking": "off by 0.02, and warned: log(1 + exp(z)) over a wide range",
    "em": "off by 3.7e-8, and warned: densities",
    "levenberg": "refused as a tie of two losses",
    "gauss": "refused: a pivot of either sign",
    "spearman": "refused as a tie: a gap of 1e-6",
    "auc": "refused as a tie: a gap of 1e-6",
    "viterbi": "off by 1, and warned",
    "edit_distance": "a ValueError: a number of an outer loop that an inner one carries",
    "knapsack_again": "refused as a tie of whole numbers",
    "collatz": "did not halt: a tie of the largest value",
    "k_means": "refused: max in a comprehension, and then torch.stack of vectors",
    "brackets": "values beyond what masks cover: a loop's comparison of whole numbers",
    "spectrum": "refused: cos over a wide range",
    "cubic_root": "off by 1.2e-8 in an entry of 0.1 without a warning",
    "primes_again": "refused as a tie of whole numbers",
    "mlp_again": "off by 8e-8, and warned",
}


def case(name, made, data, peer):
    """Note an algorithm with its first data."""
    X, y = data(np.random.default_rng(0))
    X = torch.as_tensor(np.asarray(X, dtype=float))
    y = torch.zeros(len(X)) if y is None else torch.as_tensor(np.asarray(y, dtype=float))
    name += "_again" if name in CASES else ""
    CASES[name] = (made, X, y.double())
    PEERS[name] = peer


# ---------------------------------------------------------------- 1 FISTA for the lasso
@ice.algorithm
def fista(x, y, *, lr=0.5, alpha=0.05, steps=15):
    w = ice.zeros_like(x)
    v = ice.zeros_like(x)
    t = ice.constant(1.0)
    for _ in ice.repeat(steps):
        new = ice.soft_threshold(v - lr * ice.mean(x * ((x * v).sum() - y)), lr * alpha)
        t_new = (1 + torch.sqrt(1 + 4 * t**2)) / 2
        v = new + (t - 1) / t_new * (new - w)
        w, t = new, t_new
    return w


def fista_np(X, y):
    w = v = np.zeros(X.shape[1])
    t = 1.0
    for _ in range(15):
        g = X.T @ (X @ v - y) / len(y)
        z = v - 0.5 * g
        new = np.sign(z) * np.maximum(abs(z) - 0.025, 0)
        tn = (1 + math.sqrt(1 + 4 * t * t)) / 2
        v = new + (t - 1) / tn * (new - w)
        w, t = new, tn
    return w


def linear(r, n=12, d=3):
    X = r.uniform(-1, 1, (n, d))
    return X, X @ np.array([0.8, -0.5, 0.1, 0.3])[:d] + 0.1 * r.normal(size=n)


case("fista", fista, linear, fista_np)


# ---------------------------------------------------------------- 2 Adam on Poisson regression
@ice.algorithm
def adam_poisson(x, y, *, lr=0.1, steps=20):
    w = ice.zeros_like(x)
    m = ice.zeros_like(x)
    s = ice.zeros_like(x)
    for i in ice.repeat(steps):
        g = ice.mean(x * (torch.exp((x * w).sum()) - y))
        m = 0.9 * m + 0.1 * g
        s = 0.999 * s + 0.001 * g**2
        m_hat = m / (1 - 0.9 ** (i + 1))
        s_hat = s / (1 - 0.999 ** (i + 1))
        w = w - lr * m_hat / (torch.sqrt(s_hat) + 1e-8)
    return w


def adam_np(X, y):
    w = np.zeros(X.shape[1])
    m = 0 * w
    s = 0 * w
    for i in range(1, 21):
        g = X.T @ (np.exp(X @ w) - y) / len(y)
        m = 0.9 * m + 0.1 * g
        s = 0.999 * s + 0.001 * g * g
        w = w - 0.1 * (m / (1 - 0.9**i)) / (np.sqrt(s / (1 - 0.999**i)) + 1e-8)
    return w


def poisson_data(r):
    X = np.c_[np.ones(12), r.normal(size=12)]
    return X, r.poisson(np.exp(X @ [0.5, 0.6])).astype(float)


case("adam_poisson", adam_poisson, poisson_data, adam_np)


# ---------------------------------------------------------------- 3 BFGS, two parameters
@ice.algorithm
def bfgs(x, y, *, alpha=0.1, steps=6):
    def gradient(w):
        return ice.mean(x * (torch.sigmoid((x * w).sum()) - y)) + alpha * w

    w = ice.zeros_like(x)
    h0 = ice.constant([1.0, 0.0])
    h1 = ice.constant([0.0, 1.0])
    g = gradient(w)
    for _ in ice.repeat(steps):
        s = -torch.stack([h0 @ g, h1 @ g])
        w = w + s
        g_new = gradient(w)
        v = g_new - g
        rho = 1 / (v @ s + 1e-12)
        hv = torch.stack([h0 @ v, h1 @ v])
        c = rho * (1 + rho * (v @ hv))
        h0 = h0 - rho * (hv[0] * s + s[0] * hv) + c * s[0] * s
        h1 = h1 - rho * (hv[1] * s + s[1] * hv) + c * s[1] * s
        g = g_new
    return w


def bfgs_np(X, y):
    gr = lambda w: X.T @ (1 / (1 + np.exp(-X @ w)) - y) / len(y) + 0.1 * w
    w = np.zeros(2)
    H = np.eye(2)
    g = gr(w)
    for _ in range(6):
        s = -H @ g
        w = w + s
        gn = gr(w)
        v = gn - g
        rho = 1 / (v @ s + 1e-12)
        V = np.eye(2) - rho * np.outer(s, v)
        H = V @ H @ V.T + rho * np.outer(s, s)
        g = gn
    return w


def classes(r, n=14, d=2):
    X = r.normal(size=(n, d))
    y = (X @ np.array([1.0, -1.5, 0.5])[:d] + 0.8 * r.normal(size=n) > 0).astype(float)
    return X, y


case("bfgs", bfgs, classes, bfgs_np)


# ---------------------------------------------------------------- 4 Frank-Wolfe on the simplex
@ice.algorithm
def frank_wolfe(x, y, *, steps=15):
    w = ice.zeros_like(x) + 1 / 3
    for k in ice.repeat(steps):
        g = ice.mean(x * ((x * w).sum() - y))
        s = ice.one_hot((-g).argmax(), 3)
        w = w + 2 / (k + 2) * (s - w)
    return w


def frank_wolfe_np(X, y):
    w = np.ones(3) / 3
    for k in range(15):
        g = X.T @ (X @ w - y) / len(y)
        w = w + 2 / (k + 2) * (np.eye(3)[np.argmin(g)] - w)
    return w


case("frank_wolfe", frank_wolfe, linear, frank_wolfe_np)


# ---------------------------------------------------------------- 5 backtracking line search
@ice.algorithm
def backtracking(x, y, *, steps=6):
    def loss(w):
        z = (x * w).sum()
        return ice.mean(torch.log(1 + torch.exp(z)) - y * z)

    w = ice.zeros_like(x)
    for _ in ice.repeat(steps):
        g = ice.mean(x * (torch.sigmoid((x * w).sum()) - y))
        t = ice.constant(8.0)
        while ice.while_(loss(w - t * g) > loss(w) - 0.5 * t * (g @ g)):
            t = t / 2
        w = w - t * g
    return w


def backtracking_np(X, y):
    loss = lambda w: np.mean(np.log(1 + np.exp(X @ w)) - y * (X @ w))
    w = np.zeros(2)
    for _ in range(6):
        g = X.T @ (1 / (1 + np.exp(-X @ w)) - y) / len(y)
        t = 8.0
        while loss(w - t * g) > loss(w) - 0.5 * t * g @ g:
            t /= 2
        w = w - t * g
    return w


case("backtracking", backtracking, classes, backtracking_np)


# ---------------------------------------------------------------- 6 mirror descent
@ice.algorithm
def mirror_descent(x, y, *, eta=0.7, steps=15):
    w = ice.zeros_like(x) + 1 / len(x)
    for _ in ice.repeat(steps):
        g = ice.mean(x * ((x * w).sum() - y))
        w = w * torch.exp(-eta * g)
        w = w / w.sum()
    return w


def mirror_np(X, y):
    w = np.ones(3) / 3
    for _ in range(15):
        w = w * np.exp(-0.7 * X.T @ (X @ w - y) / len(y))
        w /= w.sum()
    return w


case("mirror_descent", mirror_descent, linear, mirror_np)


# ---------------------------------------------------------------- 7 EM of two Gaussians
@ice.algorithm
def em(x, *, steps=8):
    v = x[0]
    m0, m1 = ice.min(v), ice.max(v)
    s0, s1 = ice.constant(1.0), ice.constant(1.0)
    p = ice.constant(0.5)

    def density(m, s):
        return torch.exp(-((v - m) ** 2) / (2 * s)) / torch.sqrt(2 * math.pi * s)

    for _ in ice.repeat(steps):
        a = (1 - p) * density(m0, s0)
        b = p * density(m1, s1)
        r = b / (a + b)
        p = ice.mean(r)
        m0 = ice.mean((1 - r) * v) / (1 - p)
        m1 = ice.mean(r * v) / p
        s0 = ice.mean((1 - r) * (v - m0) ** 2) / (1 - p)
        s1 = ice.mean(r * (v - m1) ** 2) / p
    return torch.stack([p, m0, m1, s0, s1])


def em_np(X, _):
    v = X[:, 0]
    m0, m1, s0, s1, p = v.min(), v.max(), 1.0, 1.0, 0.5
    f = lambda m, s: np.exp(-((v - m) ** 2) / (2 * s)) / np.sqrt(2 * np.pi * s)
    for _ in range(8):
        a, b = (1 - p) * f(m0, s0), p * f(m1, s1)
        r = b / (a + b)
        p = r.mean()
        m0 = ((1 - r) * v).mean() / (1 - p)
        m1 = (r * v).mean() / p
        s0 = ((1 - r) * (v - m0) ** 2).mean() / (1 - p)
        s1 = (r * (v - m1) ** 2).mean() / p
    return [p, m0, m1, s0, s1]


def two_groups(r):
    return np.r_[r.normal(-1.5, 0.6, 7), r.normal(1.5, 0.8, 7)][:, None], None


case("em", em, two_groups, em_np)


# ---------------------------------------------------------------- 8 IRLS, logistic
@ice.algorithm
def irls(x, y, *, alpha=0.1, steps=6):
    w = ice.zeros_like(x)
    for _ in ice.repeat(steps):
        p = torch.sigmoid(x @ w)
        r = p * (1 - p)
        g = ice.mean(x * (p - y)) + alpha * w
        a = ice.mean(r * x[0] * x[0]) + alpha
        b = ice.mean(r * x[0] * x[1])
        c = ice.mean(r * x[1] * x[1]) + alpha
        det = a * c - b * b
        w = w - torch.stack([c * g[0] - b * g[1], a * g[1] - b * g[0]]) / det
    return w


def irls_np(X, y):
    w = np.zeros(2)
    for _ in range(6):
        p = 1 / (1 + np.exp(-X @ w))
        H = (X.T * (p * (1 - p))) @ X / len(y) + 0.1 * np.eye(2)
        w = w - np.linalg.solve(H, X.T @ (p - y) / len(y) + 0.1 * w)
    return w


case("irls", irls, classes, irls_np)


# ---------------------------------------------------------------- 9 normalised LMS, in the given order
@ice.algorithm
def lms(x, y, *, mu=0.5):
    w = ice.zeros_like(x)
    for t in ice.repeat(ice.count()):
        xt = ice.at(x, t)
        error = ice.at(y, t) - w @ xt
        w = w + mu * error * xt / (0.1 + xt @ xt)
    return w


def lms_np(X, y):
    w = np.zeros(3)
    for a, b in zip(X, y):
        w = w + 0.5 * (b - w @ a) * a / (0.1 + a @ a)
    return w


case("lms", lms, linear, lms_np)


# ---------------------------------------------------------------- 10 Levenberg-Marquardt: y = a exp(-b x)
@ice.algorithm
def levenberg(x, y, *, steps=10):
    t = x[0]
    a, b, damp = ice.constant(1.0), ice.constant(1.0), ice.constant(0.1)
    for _ in ice.repeat(steps):
        e = torch.exp(-b * t)
        r = y - a * e
        ja, jb = e, -a * t * e
        h00 = ice.mean(ja * ja) + damp
        h01 = ice.mean(ja * jb)
        h11 = ice.mean(jb * jb) + damp
        g0, g1 = ice.mean(ja * r), ice.mean(jb * r)
        det = h00 * h11 - h01 * h01
        a_new = a + (h11 * g0 - h01 * g1) / det
        b_new = b + (h00 * g1 - h01 * g0) / det
        r_new = y - a_new * torch.exp(-b_new * t)
        better = ice.mean(r_new**2) < ice.mean(r**2)
        a = ice.where(better, a_new, a)
        b = ice.where(better, b_new, b)
        damp = ice.where(better, damp / 3, damp * 2)
    return torch.stack([a, b])


def levenberg_np(X, y):
    t = X[:, 0]
    p = np.ones(2)
    lam = 0.1
    for _ in range(10):
        e = np.exp(-p[1] * t)
        r = y - p[0] * e
        J = np.c_[e, -p[0] * t * e]
        q = p + np.linalg.solve(J.T @ J / len(t) + lam * np.eye(2), J.T @ r / len(t))
        if np.mean((y - q[0] * np.exp(-q[1] * t)) ** 2) < np.mean(r**2):
            p, lam = q, lam / 3
        else:
            lam *= 2
    return p


def decay(r):
    t = np.linspace(0, 3, 12)
    return t[:, None], 2.0 * np.exp(-0.7 * t) + 0.05 * r.normal(size=12)


case("levenberg", levenberg, decay, levenberg_np)


# ---------------------------------------------------------------- 11 QR by Gram-Schmidt
@ice.algorithm
def qr(x):
    q, r = [], []
    for j in range(3):
        v = x[j]
        for u in q:
            c = ice.sum(u * v)
            r.append(c)
            v = v - c * u
        length = torch.sqrt(ice.sum(v * v))
        r.append(length)
        q.append(v / length)
    return torch.stack(q), torch.stack(r)


def qr_np(X, _):
    Q, R = np.linalg.qr(X)
    s = np.sign(np.diag(R))
    Q = Q * s
    R = R * s[:, None]
    return [Q, [R[0, 0], R[0, 1], R[1, 1], R[0, 2], R[1, 2], R[2, 2]]]


case("qr", qr, lambda r: (r.normal(size=(8, 3)), None), qr_np)


# ---------------------------------------------------------------- 12 Gauss elimination with pivots
@ice.algorithm
def gauss(x, y):
    a, b = x, y
    for k in ice.repeat(ice.count()):
        pivot = ice.argmax(ice.where(ice.index() >= k, abs(a[k]), -1.0))
        row, other = ice.at(a, pivot), ice.at(a, k)
        rhs, other_rhs = ice.at(b, pivot), ice.at(b, k)
        here, there = ice.index() == k, ice.index() == pivot
        a = ice.where(here, row, ice.where(there, other, a))
        b = ice.where(here, rhs, ice.where(there, other_rhs, b))
        factor = ice.where(here, 0.0, a[k] / row[k])
        a = a - factor * row
        b = b - factor * rhs
    return b / (a * ice.one_hot(ice.index(), 4)).sum()


def gauss_np(X, y):
    return np.linalg.solve(X, y)


case("gauss", gauss, lambda r: (r.normal(size=(4, 4)), r.normal(size=4)), gauss_np)


# ---------------------------------------------------------------- 13 Gauss-Seidel
@ice.algorithm
def gauss_seidel(x, y, *, sweeps=6):
    w = ice.zeros_like(x)
    for _ in ice.repeat(sweeps):
        for i in ice.repeat(ice.count()):
            row = ice.at(x, i)
            w = w + ice.one_hot(i, 4) * (ice.at(y, i) - row @ w) / row[i]
    return w


def gauss_seidel_np(X, y):
    w = np.zeros(4)
    for _ in range(6):
        for i in range(4):
            w[i] += (y[i] - X[i] @ w) / X[i, i]
    return w


case(
    "gauss_seidel",
    gauss_seidel,
    lambda r: (4 * np.eye(4) + r.uniform(-1, 1, (4, 4)), r.uniform(-2, 2, 4)),
    gauss_seidel_np,
)


# ---------------------------------------------------------------- 14 conjugate gradients on the normal equations
@ice.algorithm
def conjugate(x, y, *, steps=3):
    w = ice.zeros_like(x)
    r = ice.mean(x * y)
    p = r
    rr = r @ r
    for _ in ice.repeat(steps):
        q = ice.mean(x * (x @ p))
        a = rr / (p @ q)
        w = w + a * p
        r = r - a * q
        new = r @ r
        p = r + new / rr * p
        rr = new
    return w


def conjugate_np(X, y):
    return np.linalg.lstsq(X, y, rcond=None)[0]


case("conjugate", conjugate, linear, conjugate_np)


# ---------------------------------------------------------------- 15 Cholesky, 3 x 3, and a solve
@ice.algorithm
def cholesky(x, y):
    a = [[ice.mean(x[i] * x[j]) for j in range(3)] for i in range(3)]
    b = [ice.mean(x[i] * y) for i in range(3)]
    L = [[None] * 3 for _ in range(3)]
    for i in range(3):
        for j in range(i + 1):
            s = a[i][j]
            for k in range(j):
                s = s - L[i][k] * L[j][k]
            L[i][j] = torch.sqrt(s) if i == j else s / L[j][j]
    z = []
    for i in range(3):
        s = b[i]
        for k in range(i):
            s = s - L[i][k] * z[k]
        z.append(s / L[i][i])
    w = [None] * 3
    for i in (2, 1, 0):
        s = z[i]
        for k in range(i + 1, 3):
            s = s - L[k][i] * w[k]
        w[i] = s / L[i][i]
    return torch.stack(w)


case("cholesky", cholesky, linear, conjugate_np)


# ---------------------------------------------------------------- 16 bootstrap with given draws
@ice.algorithm
def bootstrap(x, y):
    means = torch.stack([ice.mean(ice.at(y, x[b])) for b in range(4)])
    return means, means.std()


def bootstrap_np(X, y):
    m = y[X.astype(int)].mean(0)
    return [m, m.std(ddof=1)]


case(
    "bootstrap",
    bootstrap,
    lambda r: (r.integers(0, 10, (10, 4)).astype(float), r.normal(5, 2, 10)),
    bootstrap_np,
)


# ---------------------------------------------------------------- 17 quartiles by ranks
@ice.algorithm
def quartiles(x, y):
    rank = 0 * y
    for t in ice.repeat(ice.count()):
        rank = rank + (ice.at(y, t) < y - 1e-4)

    def at_rank(k):
        return ice.sum(ice.where(rank == k, y, 0.0))

    return torch.stack([at_rank(2), at_rank(4), at_rank(6)])


case(
    "quartiles",
    quartiles,
    lambda r: (np.zeros((9, 1)), r.normal(10, 3, 9)),
    lambda X, y: np.quantile(y, [0.25, 0.5, 0.75]),
)


# ---------------------------------------------------------------- 18 Spearman's correlation
@ice.algorithm
def spearman(x, y):
    v = x[0]
    rx, ry = 0 * v, 0 * y
    for t in ice.repeat(ice.count()):
        rx = rx + (ice.at(v, t) < v - 1e-6)
        ry = ry + (ice.at(y, t) < y - 1e-6)
    n = ice.count()
    return 1 - 6 * ice.sum((rx - ry) ** 2) / (n * (n**2 - 1))


def spearman_np(X, y):
    return np.corrcoef(np.argsort(np.argsort(X[:, 0])), np.argsort(np.argsort(y)))[0, 1]


def pairs(r):
    x = r.normal(size=10)
    return x[:, None], x + r.normal(size=10)


case("spearman", spearman, pairs, spearman_np)


# ---------------------------------------------------------------- 19 Kalman filter, position and velocity
@ice.algorithm
def kalman(x, y, *, q=0.05, r=0.5, dt=0.5):
    pos, vel = ice.constant(0.0), ice.constant(0.0)
    a, b, c = ice.constant(1.0), ice.constant(0.0), ice.constant(1.0)
    for t in ice.repeat(ice.count()):
        pos = pos + dt * vel
        a = a + 2 * dt * b + dt * dt * c + q
        b = b + dt * c
        c = c + q
        k0, k1 = a / (a + r), b / (a + r)
        e = ice.at(y, t) - pos
        pos, vel = pos + k0 * e, vel + k1 * e
        a, b, c = a - k0 * a, b - k0 * b, c - k1 * b
    return pos, vel


def kalman_np(X, y):
    F = np.array([[1, 0.5], [0, 1]])
    m = np.zeros(2)
    P = np.eye(2)
    H = np.array([1.0, 0])
    for z in y:
        m = F @ m
        P = F @ P @ F.T + 0.05 * np.eye(2)
        K = P @ H / (P[0, 0] + 0.5)
        m = m + K * (z - m[0])
        P = P - np.outer(K, H @ P)
    return m


def track(r):
    return np.zeros((12, 1)), 0.4 * np.arange(12) * 0.5 + 0.5 * r.normal(size=12)


case("kalman", kalman, track, kalman_np)


# ---------------------------------------------------------------- 20 HMM, forward likelihood
A = np.array([[0.8, 0.2], [0.3, 0.7]])
B = np.array([[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])


@ice.algorithm
def hmm_forward(x, y):
    alpha = ice.constant([0.6, 0.4])
    total = ice.constant(0.0)
    for t in ice.repeat(ice.count()):
        emitted = B @ ice.one_hot(ice.at(y, t), 3)
        alpha = alpha * emitted
        scale = alpha.sum()
        total = total + torch.log(scale)
        alpha = (alpha / scale) @ A
    return total


def hmm_np(X, y):
    a = np.array([0.6, 0.4])
    L = 1.0
    for o in y.astype(int):
        a = a * B[:, o]
        last = a
        a = a @ A
    return np.log(last.sum())


case(
    "hmm_forward",
    hmm_forward,
    lambda r: (np.zeros((10, 1)), r.integers(0, 3, 10).astype(float)),
    hmm_np,
)


# ---------------------------------------------------------------- 21 Viterbi with the path
@ice.algorithm
def viterbi(x, y):
    logA, logB = np.log(A), np.log(B)
    delta = torch.log(ice.constant([0.6, 0.4])) + logB @ ice.one_hot(ice.at(y, 0), 3)
    back = 0 * ice.concat(y, y)
    for t in ice.repeat(ice.count() - 1):
        scores = [delta + logA[:, j] for j in range(2)]
        pointers = torch.stack([s.argmax() for s in scores])
        back = ice.where(ice.index() == t + 1, pointers, back)
        delta = torch.stack([s.max() for s in scores]) + logB @ ice.one_hot(ice.at(y, t + 1), 3)
    state = delta.argmax()
    path = 0 * y
    for t in ice.repeat(ice.count()):
        place = ice.count() - 1 - t
        path = ice.where(ice.index() == place, state, path)
        state = ice.at(back, place)[state]
    return path, delta.max()


def viterbi_np(X, y):
    import itertools

    o = y.astype(int)
    best = (-np.inf, None)
    for p in itertools.product((0, 1), repeat=len(o)):
        s = np.log([0.6, 0.4][p[0]]) + np.log(B[p[0], o[0]])
        for i in range(1, len(o)):
            s += np.log(A[p[i - 1], p[i]]) + np.log(B[p[i], o[i]])
        if s > best[0]:
            best = (s, p)
    return [best[1], best[0]]


case(
    "viterbi", viterbi, lambda r: (np.zeros((8, 1)), r.integers(0, 3, 8).astype(float)), viterbi_np
)


# ---------------------------------------------------------------- 22 edit distance
@ice.algorithm
def edit_distance(x, y):
    n = ice.count()
    row = ice.index() + 1
    for i in ice.repeat(n):
        left, diagonal = i + 1, i
        letter = ice.at(x[0], i)
        for j in ice.repeat(n):
            up = ice.at(row, j)
            cost = ice.where(letter == ice.at(y, j), 0, 1)
            new = min(up + 1, left + 1, diagonal + cost)
            row = ice.where(ice.index() == j, new, row)
            left, diagonal = new, up
    return ice.at(row, n - 1)


def edit_np(X, y):
    a, b = X[:, 0], y
    n = len(a)
    D = np.zeros((n + 1, n + 1))
    D[0] = D[:, 0] = np.arange(n + 1)
    for i in range(n):
        for j in range(n):
            D[i + 1, j + 1] = min(D[i, j + 1] + 1, D[i + 1, j] + 1, D[i, j] + (a[i] != b[j]))
    return D[n, n]


case(
    "edit_distance",
    edit_distance,
    lambda r: (r.integers(0, 4, (6, 1)).astype(float), r.integers(0, 4, 6).astype(float)),
    edit_np,
)


# ---------------------------------------------------------------- 23 knapsack
@ice.algorithm
def knapsack(x, y):
    best = ice.constant([0.0] * 11)
    for t in ice.repeat(ice.count()):
        weight, worth = ice.at(x[0], t), ice.at(y, t)
        taken = torch.stack(
            [ice.where(c >= weight, best[c - weight] + worth, 0.0) for c in range(11)]
        )
        best = max(best, taken)
    return best[10]


def knapsack_np(X, y):
    import itertools

    w = X[:, 0]
    return max(
        sum(y[list(s)])
        for k in range(len(y) + 1)
        for s in itertools.combinations(range(len(y)), k)
        if sum(w[list(s)]) <= 10
    )


case(
    "knapsack",
    knapsack,
    lambda r: (r.integers(1, 7, (6, 1)).astype(float), r.uniform(1, 5, 6).round(1)),
    knapsack_np,
)


# ---------------------------------------------------------------- 24 Collatz
@ice.algorithm
def collatz(x):
    v = x[0]
    turns = 0 * v
    while ice.while_(ice.max(v) > 1):
        going = v > 1
        turns = turns + going
        v = ice.where(going, ice.where(v % 2 == 0, v // 2, 3 * v + 1), v)
    return turns


def collatz_np(X, _):
    out = []
    for v in X[:, 0]:
        k = 0
        while v > 1:
            v = v // 2 if v % 2 == 0 else 3 * v + 1
            k += 1
        out.append(k)
    return out


case("collatz", collatz, lambda r: (r.integers(1, 21, (6, 1)).astype(float), None), collatz_np)


# ---------------------------------------------------------------- 25 kernel density at the samples
@ice.algorithm
def kde(x, *, h=0.5):
    v = x[0]
    total = 0 * v
    for t in ice.repeat(ice.count()):
        total = total + torch.exp(-(((v - ice.at(v, t)) / h) ** 2) / 2)
    return total / (ice.count() * h * math.sqrt(2 * math.pi))


def kde_np(X, _):
    v = X[:, 0]
    return np.exp(-(((v[:, None] - v) / 0.5) ** 2) / 2).sum(1) / (len(v) * 0.5 * np.sqrt(2 * np.pi))


case("kde", kde, lambda r: (r.normal(size=(12, 1)), None), kde_np)


# ---------------------------------------------------------------- 26 three nearest neighbours
@ice.algorithm
def knn(x, y, *, query=ice.vector([0.3, -0.2])):
    distance = ((x - query) ** 2).sum()
    total = ice.constant(0.0)
    for _ in ice.repeat(3):
        i = ice.argmin(distance)
        total = total + ice.at(y, i)
        distance = ice.where(ice.index() == i, 100.0, distance)
    return total / 3


def knn_np(X, y):
    return y[np.argsort(((X - [0.3, -0.2]) ** 2).sum(1))[:3]].mean()


case("knn", knn, lambda r: (r.normal(size=(12, 2)), r.normal(size=12)), knn_np)


# ---------------------------------------------------------------- 27 Gaussian naive Bayes
@ice.algorithm
def naive_bayes(x, y, *, query=ice.vector([0.5, 0.5])):
    def score(member):
        n = ice.sum(member)
        mean = ice.sum(member * x) / n
        variance = ice.sum(member * (x - mean) ** 2) / n + 0.01
        fit = torch.log(2 * math.pi * variance) + (query - mean) ** 2 / variance
        return torch.log(n / ice.count()) - 0.5 * fit.sum()

    return torch.sigmoid(score(y) - score(1 - y))


def naive_bayes_np(X, y):
    s = []
    for c in (1, 0):
        Z = X[y == c]
        m, v = Z.mean(0), Z.var(0) + 0.01
        s.append(np.log(len(Z) / len(X)) - 0.5 * (np.log(2 * np.pi * v) + (0.5 - m) ** 2 / v).sum())
    return 1 / (1 + np.exp(s[1] - s[0]))


def blobs(r):
    y = r.permutation(np.repeat([0.0, 1.0], 6))
    return r.normal(size=(12, 2)) + y[:, None] * 1.5, y


case("naive_bayes", naive_bayes, blobs, naive_bayes_np)


# ---------------------------------------------------------------- 28 k-means, three centres
@ice.algorithm
def k_means(x, *, steps=6):
    c0, c1, c2 = ice.at(x, 0), ice.at(x, 1), ice.at(x, 2)
    for _ in ice.repeat(steps):
        d = torch.stack([((x - c) ** 2).sum() for c in (c0, c1, c2)])
        member = ice.one_hot((-d).argmax(), 3)
        c0, c1, c2 = [ice.sum(member[j] * x) / max(ice.sum(member[j]), 1) for j in range(3)]
    return torch.stack([c0, c1, c2])


def k_means_np(X, _):
    C = X[:3].copy()
    for _ in range(6):
        z = ((X[:, None] - C) ** 2).sum(-1).argmin(1)
        C = np.array([X[z == j].sum(0) / max((z == j).sum(), 1) for j in range(3)])
    return C


def three_blobs(r):
    return np.tile([[0, 2], [2, -1], [-2, -1]], (4, 1)) + 0.6 * r.normal(size=(12, 2)), None


case("k_means", k_means, three_blobs, k_means_np)


# ---------------------------------------------------------------- 29 decision stump
@ice.algorithm
def stump(x, y):
    n = ice.count()
    positive = y > 0.5
    best, threshold, feature = +n, ice.constant(0.0), ice.constant(0)
    for f in range(2):
        for t in ice.repeat(n):
            cut = ice.at(x[f], t)
            wrong = ice.sum(ice.where((x[f] > cut + 1e-4) == positive, 0, 1))
            wrong = min(wrong, n - wrong)
            better = wrong < best
            best = ice.where(better, wrong, best)
            threshold = ice.where(better, cut, threshold)
            feature = ice.where(better, f, feature)
    return torch.stack([best, threshold, feature])


def stump_np(X, y):
    best = (len(y), 0.0, 0)
    for f in range(2):
        for c in X[:, f]:
            w = int(((X[:, f] > c) != (y > 0.5)).sum())
            w = min(w, len(y) - w)
            if w < best[0]:
                best = (w, c, f)
    return best


case("stump", stump, blobs, stump_np)


# ---------------------------------------------------------------- 30 perceptron
@ice.algorithm
def perceptron(x, y, *, epochs=4):
    w = ice.zeros_like(x)
    for _ in ice.repeat(epochs):
        for t in ice.repeat(ice.count()):
            xt, yt = ice.at(x, t), ice.at(y, t)
            w = w + ice.where(yt * (w @ xt) < 1e-3, yt * xt, 0.0)
    return w


def perceptron_np(X, y):
    w = np.zeros(3)
    for _ in range(4):
        for a, b in zip(X, y):
            if b * (w @ a) <= 0:
                w = w + b * a
    return w


def signed(r):
    X = np.c_[np.ones(12), r.normal(size=(12, 2))]
    return X, np.sign(X @ [0.3, 1, -1])


case("perceptron", perceptron, signed, perceptron_np)


# ---------------------------------------------------------------- 31 area under the ROC curve
@ice.algorithm
def auc(x, y):
    score, positive = x[0], y > 0.5
    wins = 0 * score
    for t in ice.repeat(ice.count()):
        wins = wins + (positive & ~ice.at(positive, t) & (score > ice.at(score, t) + 1e-6))
    n = ice.sum(positive)
    return ice.sum(wins) / (n * (ice.count() - n))


def auc_np(X, y):
    s = X[:, 0]
    return (s[y == 1][:, None] > s[y == 0]).mean()


case("auc", auc, blobs, auc_np)


# ---------------------------------------------------------------- 32 brackets
@ice.algorithm
def brackets(x, y):
    depth = ice.running_sum(y)
    balanced = (ice.min(depth) > -0.5) & (ice.at(depth, ice.count() - 1) == 0)
    return balanced, ice.max(depth)


def brackets_np(X, y):
    d = np.cumsum(y)
    return [float(d.min() >= 0 and d[-1] == 0), d.max()]


def bracket_data(r):
    y = [1.0]
    while len(y) < 12:
        y.append(1.0 if sum(y) == 0 else -1.0 if sum(y) >= 12 - len(y) else r.choice([1.0, -1.0]))
    return np.zeros((12, 1)), np.array(y)


case("brackets", brackets, bracket_data, brackets_np)


# ---------------------------------------------------------------- 33 power spectrum
@ice.algorithm
def spectrum(x, y):
    n = ice.count()
    re, im = 0 * y, 0 * y
    for t in ice.repeat(n):
        angle = 2 * math.pi * ice.index() * t / n
        re = re + ice.at(y, t) * torch.cos(angle)
        im = im - ice.at(y, t) * torch.sin(angle)
    return re**2 + im**2


case(
    "spectrum",
    spectrum,
    lambda r: (np.zeros((12, 1)), np.sin(np.arange(12) * 1.3) + 0.3 * r.normal(size=12)),
    lambda X, y: abs(np.fft.fft(y)) ** 2,
)


# ---------------------------------------------------------------- 34 IIR filter, second order
@ice.algorithm
def biquad(x, y, *, b0=0.2, b1=0.4, b2=0.2, a1=-0.6, a2=0.4):
    forward = b0 * y + b1 * ice.previous(y, 1) + b2 * ice.previous(y, 2)
    out = 0 * y
    z1, z2 = ice.constant(0.0), ice.constant(0.0)
    for t in ice.repeat(ice.count()):
        z = ice.at(forward, t) - a1 * z1 - a2 * z2
        out = ice.where(ice.index() == t, z, out)
        z1, z2 = z, z1
    return out


def biquad_np(X, y):
    o = []
    g = lambda s, k: s[k] if k >= 0 else 0.0
    for t in range(len(y)):
        o.append(
            0.2 * y[t]
            + 0.4 * g(y, t - 1)
            + 0.2 * g(y, t - 2)
            + 0.6 * g(o, t - 1)
            - 0.4 * g(o, t - 2)
        )
    return o


case("biquad", biquad, lambda r: (np.zeros((14, 1)), r.normal(size=14)), biquad_np)


# ---------------------------------------------------------------- 35 Runge-Kutta, Lotka-Volterra
@ice.algorithm
def lotka(x, *, h=0.1, steps=10):
    def slope(s):
        return torch.stack([1.1 * s[0] - 0.4 * s[0] * s[1], 0.1 * s[0] * s[1] - 0.4 * s[1]])

    s = x
    for _ in ice.repeat(steps):
        k1 = slope(s)
        k2 = slope(s + h / 2 * k1)
        k3 = slope(s + h / 2 * k2)
        k4 = slope(s + h * k3)
        s = s + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return s


def lotka_np(X, _):
    f = lambda s: np.stack(
        [1.1 * s[:, 0] - 0.4 * s[:, 0] * s[:, 1], 0.1 * s[:, 0] * s[:, 1] - 0.4 * s[:, 1]], 1
    )
    s = X
    h = 0.1
    for _ in range(10):
        a = f(s)
        b = f(s + h / 2 * a)
        c = f(s + h / 2 * b)
        d = f(s + h * c)
        s = s + h / 6 * (a + 2 * b + 2 * c + d)
    return s


case("lotka", lotka, lambda r: (r.uniform(1, 6, (6, 2)), None), lotka_np)


# ---------------------------------------------------------------- 36 leapfrog, a planet
@ice.algorithm
def kepler(x, *, h=0.1, steps=12):
    q, p = x[0:2], x[2:4]
    for _ in ice.repeat(steps):
        p = p - h / 2 * q / q.norm() ** 3
        q = q + h * p
        p = p - h / 2 * q / q.norm() ** 3
    return ice.concat(q, p)


def kepler_np(X, _):
    q, p = X[:, :2], X[:, 2:]
    f = lambda q: q / np.linalg.norm(q, axis=1, keepdims=True) ** 3
    for _ in range(12):
        p = p - 0.05 * f(q)
        q = q + 0.1 * p
        p = p - 0.05 * f(q)
    return np.c_[q, p]


def orbits(r):
    a = r.uniform(0, 2 * np.pi, 6)
    s = r.uniform(0.9, 1.2, 6)
    return np.c_[np.cos(a), np.sin(a), -s * np.sin(a), s * np.cos(a)], None


case("kepler", kepler, orbits, kepler_np)


# ---------------------------------------------------------------- 37 heat equation
@ice.algorithm
def heat(x, y, *, c=0.2, steps=12):
    u = y
    for _ in ice.repeat(steps):
        left, right = ice.at(u, ice.index() - 1), ice.at(u, ice.index() + 1)
        u = u + c * (left - 2 * u + right)
    return u


def heat_np(X, y):
    u = y
    for _ in range(12):
        p = np.pad(u, 1, mode="edge")
        u = u + 0.2 * (p[:-2] - 2 * u + p[2:])
    return u


case("heat", heat, lambda r: (np.zeros((14, 1)), r.uniform(0, 100, 14)), heat_np)


# ---------------------------------------------------------------- 38 natural cubic spline
@ice.algorithm
def spline(x, y, *, query=1.6):
    t, n = x[0], ice.count()
    c, d, m = 0 * y, 0 * y, 0 * y
    for i in ice.repeat(n - 2):
        k = i + 1
        h0 = ice.at(t, k) - ice.at(t, k - 1)
        h1 = ice.at(t, k + 1) - ice.at(t, k)
        rhs = 6 * ((ice.at(y, k + 1) - ice.at(y, k)) / h1 - (ice.at(y, k) - ice.at(y, k - 1)) / h0)
        pivot = 2 * (h0 + h1) - h0 * ice.at(c, k - 1)
        here = ice.index() == k
        c = ice.where(here, h1 / pivot, c)
        d = ice.where(here, (rhs - h0 * ice.at(d, k - 1)) / pivot, d)
    for i in ice.repeat(n - 2):
        k = n - 2 - i
        m = ice.where(ice.index() == k, ice.at(d, k) - ice.at(c, k) * ice.at(m, k + 1), m)
    j = ice.sum(t < query) - 1
    t0, t1, y0, y1 = ice.at(t, j), ice.at(t, j + 1), ice.at(y, j), ice.at(y, j + 1)
    m0, m1 = ice.at(m, j), ice.at(m, j + 1)
    h = t1 - t0
    a, b = (t1 - query) / h, (query - t0) / h
    return a * y0 + b * y1 + ((a**3 - a) * m0 + (b**3 - b) * m1) * h**2 / 6


def spline_np(X, y):
    try:
        from scipy.interpolate import CubicSpline

        return CubicSpline(X[:, 0], y, bc_type="natural")(1.6)
    except ImportError:
        t = X[:, 0]
        n = len(t)
        h = np.diff(t)
        M = np.eye(n)
        r = np.zeros(n)
        for k in range(1, n - 1):
            M[k, k - 1 : k + 2] = h[k - 1], 2 * (h[k - 1] + h[k]), h[k]
            r[k] = 6 * ((y[k + 1] - y[k]) / h[k] - (y[k] - y[k - 1]) / h[k - 1])
        m = np.linalg.solve(M, r)
        j = np.searchsorted(t, 1.6) - 1
        a = (t[j + 1] - 1.6) / h[j]
        b = 1 - a
        return a * y[j] + b * y[j + 1] + ((a**3 - a) * m[j] + (b**3 - b) * m[j + 1]) * h[j] ** 2 / 6


def knots(r):
    t = np.arange(7) * 0.5 + r.uniform(-0.1, 0.1, 7)
    return t[:, None], np.sin(t) + 0.1 * r.normal(size=7)


case("spline", spline, knots, spline_np)


# ---------------------------------------------------------------- 39 Newton's method on cubics
@ice.algorithm
def cubic_root(x, y, *, steps=8):
    a = x[0]
    z = 0 * a + 1
    for _ in ice.repeat(steps):
        z = z - (z**3 + a * z - y) / (3 * z**2 + a)
    return z


def cubic_np(X, y):
    return [
        [u.real for u in np.roots([1, 0, a, -b]) if abs(u.imag) < 1e-9][0]
        for a, b in zip(X[:, 0], y)
    ]


case("cubic_root", cubic_root, lambda r: (r.uniform(0.5, 3, (8, 1)), r.uniform(-3, 3, 8)), cubic_np)


# ---------------------------------------------------------------- 40 powers modulo 17
@ice.algorithm
def modular_power(x, y):
    base, e = x[0], y
    result = 0 * y + 1
    for _ in ice.repeat(4):
        result = ice.where(e % 2 == 1, (result * base) % 17, result)
        base = (base * base) % 17
        e = e // 2
    return result


case(
    "modular_power",
    modular_power,
    lambda r: (r.integers(1, 17, (8, 1)).astype(float), r.integers(0, 16, 8).astype(float)),
    lambda X, y: [pow(int(a), int(b), 17) for a, b in zip(X[:, 0], y)],
)


# ---------------------------------------------------------------- 41 primes by trial division
@ice.algorithm
def primes(x):
    v = x[0]
    composite = 0 * v
    for i in ice.repeat(5):
        p = i + 2
        composite = max(composite, (v % p == 0) & (v > p))
    return 1 - composite, ice.sum(1 - composite)


def primes_np(X, _):
    p = [float(all(v % k for k in range(2, int(v)))) for v in X[:, 0]]
    return [p, sum(p)]


case("primes", primes, lambda r: (r.integers(2, 49, (10, 1)).astype(float), None), primes_np)


# ---------------------------------------------------------------- 42 bubble sort
@ice.algorithm
def bubble_sort(x, y):
    v, n = y, ice.count()
    for i in ice.repeat(n - 1):
        for j in ice.repeat(n - 1 - i):
            a, b = ice.at(v, j), ice.at(v, j + 1)
            v = ice.where(ice.index() == j, min(a, b), v)
            v = ice.where(ice.index() == j + 1, max(a, b), v)
    return v


case(
    "bubble_sort",
    bubble_sort,
    lambda r: (np.zeros((7, 1)), r.normal(5, 3, 7)),
    lambda X, y: np.sort(y),
)


# ---------------------------------------------------------------- 43 union-find (quick-find)
@ice.algorithm
def union_find(x):
    label = ice.constant([0, 1, 2, 3, 4, 5, 6, 7])
    for t in ice.repeat(ice.count()):
        edge = ice.at(x, t)
        a, b = label[edge[0]], label[edge[1]]
        label = ice.where(label == a, b, label)
    groups = sum(label[i] == i for i in range(8))
    return label, groups


def union_np(X, _):
    l = list(range(8))
    for a, b in X.astype(int):
        p, q = l[a], l[b]
        l = [q if v == p else v for v in l]
    return [l, len(set(l))]


case("union_find", union_find, lambda r: (r.integers(0, 8, (6, 2)).astype(float), None), union_np)


# ---------------------------------------------------------------- 44 game of life on a torus
@ice.algorithm
def life(x, *, steps=4):
    grid = x
    for _ in ice.repeat(steps):
        above = ice.at(grid, (ice.index() - 1) % ice.count())
        below = ice.at(grid, (ice.index() + 1) % ice.count())
        column = above + grid + below
        left = ice.concat(column[3], column[0:3])
        right = ice.concat(column[1:4], column[0])
        around = left + right + above + below
        grid = (around == 3) + (around == 2) * grid
    return grid


def life_np(X, _):
    g = X
    for _ in range(4):
        s = sum(np.roll(g, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1)) - g
        g = ((s == 3) | ((s == 2) & (g == 1))).astype(float)
    return g


case("life", life, lambda r: ((r.random((6, 4)) < 0.4).astype(float), None), life_np)


# ---------------------------------------------------------------- 45 training a small network by backpropagation
R = np.random.default_rng(7)
W1, W2 = R.normal(size=(4, 2)).round(2), R.normal(size=4).round(2)


@ice.algorithm
def mlp(x, y, *, lr=0.3, steps=6):
    rows = [ice.constant(list(r)) for r in W1]
    b, v, c = ice.constant([0.0] * 4), ice.constant(list(W2)), ice.constant(0.0)
    for _ in ice.repeat(steps):
        h = torch.tanh(torch.stack([x @ r for r in rows]) + b)
        error = h @ v + c - y
        back = error * v * (1 - h**2)
        v = v - lr * ice.mean(error * h)
        c = c - lr * ice.mean(error)
        b = b - lr * ice.mean(back)
        rows = [r - lr * ice.mean(back[j] * x) for j, r in enumerate(rows)]
    h = torch.tanh(torch.stack([x @ r for r in rows]) + b)
    return h @ v + c


def mlp_np(X, y):
    W, b, v, c = W1.copy(), np.zeros(4), W2.copy(), 0.0
    for _ in range(6):
        h = np.tanh(X @ W.T + b)
        e = h @ v + c - y
        k = e[:, None] * v * (1 - h**2)
        v = v - 0.3 * (e[:, None] * h).mean(0)
        c -= 0.3 * e.mean()
        b = b - 0.3 * k.mean(0)
        W = W - 0.3 * k.T @ X / len(y)
    return np.tanh(X @ W.T + b) @ v + c


def xor(r):
    X = r.uniform(-1, 1, (10, 2))
    return X, np.sign(X[:, 0] * X[:, 1])


case("mlp", mlp, xor, mlp_np)


# ---------------------------------------------------------------- 46 LSTM over the samples in their order
Wx, Wh, bias = (
    R.normal(size=(8, 2)).round(2),
    R.normal(size=(8, 2)).round(2),
    R.normal(size=8).round(2),
)


@ice.algorithm
def lstm(x):
    h, c = ice.constant([0.0, 0.0]), ice.constant([0.0, 0.0])
    for t in ice.repeat(ice.count()):
        z = Wx @ ice.at(x, t) + Wh @ h + bias
        i, f, o, g = (
            torch.sigmoid(z[0:2]),
            torch.sigmoid(z[2:4]),
            torch.sigmoid(z[4:6]),
            torch.tanh(z[6:8]),
        )
        c = f * c + i * g
        h = o * torch.tanh(c)
    return h


def lstm_np(X, _):
    s = lambda v: 1 / (1 + np.exp(-v))
    h = np.zeros(2)
    c = np.zeros(2)
    for a in X:
        z = Wx @ a + Wh @ h + bias
        c = s(z[2:4]) * c + s(z[:2]) * np.tanh(z[6:])
        h = s(z[4:6]) * np.tanh(c)
    return h


case("lstm", lstm, lambda r: (r.normal(size=(10, 2)), None), lstm_np)


# ---------------------------------------------------------------- 47 Q-learning from a log of transitions
@ice.algorithm
def q_learning(x, y, *, lr=0.5, gamma=0.9, epochs=3):
    q = ice.constant([0.0] * 6)
    for _ in ice.repeat(epochs):
        for t in ice.repeat(ice.count()):
            row = ice.at(x, t)
            here, there = 2 * row[0] + row[1], 2 * row[2]
            target = ice.at(y, t) + gamma * max(q[there], q[there + 1])
            q = q + lr * ice.one_hot(here, 6) * (target - q[here])
    return q


def q_np(X, y):
    q = np.zeros((3, 2))
    for _ in range(3):
        for (s, a, z), r in zip(X.astype(int), y):
            q[s, a] += 0.5 * (r + 0.9 * q[z].max() - q[s, a])
    return q


def log(r):
    s = r.integers(0, 3, 13)
    a = r.integers(0, 2, 12)
    return np.c_[s[:-1], a, s[1:]].astype(float), (s[1:] == 2) + 0.1 * r.normal(size=12)


case("q_learning", q_learning, log, q_np)


# ---------------------------------------------------------------- 48 an induction head
@ice.algorithm
def induction(x, y, *, sharp=8.0):
    token = ice.one_hot(y, 5)
    before = ice.previous(token)
    last = ice.at(token, ice.count() - 1)
    scores = ice.attend(sharp * last, before, token)
    return scores, scores.argmax()


def induction_np(X, y):
    E = np.eye(5)[y.astype(int)]
    K = np.r_[np.zeros((1, 5)), E[:-1]]
    p = np.exp(8 * K @ E[-1])
    p = p / p.sum() @ E
    return [p, np.argmax(p)]


def tokens(r):
    y = r.integers(0, 5, 6)
    y = np.r_[y, y[: r.integers(1, 6)]]
    return np.zeros((len(y), 1)), y.astype(float)


case("induction", induction, tokens, induction_np)


if __name__ == "__main__":
    sys.exit(main())
