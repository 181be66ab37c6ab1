"""Forty-five more, of other kinds, with plain Python and NumPy beside them.

Written from README.md, docs/write_your_own.md and docs/computer.md alone, and kept as they were
written first. ``python -m tests.computer.more_algorithms`` runs these and the forty.
"""

from __future__ import annotations

import math
import sys

import numpy as np
import torch

import iceform as ice
from tests.computer.forty_algorithms import case, main

G = torch.Generator().manual_seed(42)


def uniform(*shape, low=-1.0, high=1.0):
    return low + (high - low) * torch.rand(*shape, dtype=torch.float64, generator=G)


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=G)


def tensor(*v):
    return torch.tensor(v, dtype=torch.float64)


def nothing(n):
    return torch.zeros(n, 1, dtype=torch.float64)


# ------------------------------------------------------------------ least squares and fitting
T = torch.linspace(0, 2, 10, dtype=torch.float64)
DECAY = 1.3 * torch.exp(-0.7 * T) + 0.02 * normal(10)


def _lm(X, y, steps=5):
    t = X[:, 0]
    a, b, damping = 1.0, 0.0, 0.1
    for _ in range(steps):
        e = np.exp(b * t)
        r = y - a * e
        J = np.stack([e, a * t * e], 1)
        H = J.T @ J + damping * np.eye(2)
        na, nb = np.array([a, b]) + np.linalg.solve(H, J.T @ r)
        if ((y - na * np.exp(nb * t)) ** 2).sum() < (r**2).sum():
            a, b, damping = na, nb, damping / 4
        else:
            damping *= 4
    return [a, b]


@case(T[:, None], DECAY, _lm)
def levenberg_marquardt(x, y, *, steps=5):
    a, b, damping = ice.constant(1.0), ice.constant(0.0), ice.constant(0.1)
    t = x[0]
    for _ in ice.repeat(steps):
        e = torch.exp(b * t)
        r = y - a * e
        slope = a * t * e
        haa, hab, hbb = (
            ice.sum(e * e) + damping,
            ice.sum(e * slope),
            ice.sum(slope * slope) + damping,
        )
        ga, gb = ice.sum(e * r), ice.sum(slope * r)
        det = haa * hbb - hab * hab
        new_a = a + (hbb * ga - hab * gb) / det
        new_b = b + (haa * gb - hab * ga) / det
        better = ice.sum((y - new_a * torch.exp(new_b * t)) ** 2) < ice.sum(r * r)
        a = ice.where(better, new_a, a)
        b = ice.where(better, new_b, b)
        damping = ice.where(better, damping / 4, damping * 4)
    return a, b


def _welford(X, y):
    mean, m2 = 0.0, 0.0
    for n, v in enumerate(y, 1):
        d = v - mean
        mean += d / n
        m2 += d * (v - mean)
    return [mean, m2 / len(y)]


@case(nothing(10), 3 + normal(10), _welford)
def welford_variance(x, y):
    mean, m2 = ice.constant(0.0), ice.constant(0.0)
    for t in ice.repeat(ice.count()):
        v = ice.at(y, t)
        d = v - mean
        mean = mean + d / (t + 1)
        m2 = m2 + d * (v - mean)
    return mean, m2 / ice.count()


def _mixture(X, y, steps=6):
    t = X[:, 0]
    a, b = 1.0, -1.0
    for _ in range(steps):
        pa, pb = np.exp(-8 * (y - a * t) ** 2), np.exp(-8 * (y - b * t) ** 2)
        r = pa / (pa + pb)
        a = (r * t * y).sum() / (r * t * t).sum()
        b = ((1 - r) * t * y).sum() / ((1 - r) * t * t).sum()
    return [a, b]


MT = uniform(12, 1)
MY = torch.where(torch.arange(12) % 2 == 0, 0.8, -0.6).double() * MT[:, 0] + 0.05 * normal(12)


@case(MT, MY, _mixture)
def mixture_of_regressions(x, y, *, steps=6):
    a, b = ice.constant(1.0), ice.constant(-1.0)
    t = x[0]
    for _ in ice.repeat(steps):
        near_a = torch.exp(-8 * (y - a * t) ** 2)
        near_b = torch.exp(-8 * (y - b * t) ** 2)
        r = near_a / (near_a + near_b)
        a = ice.sum(r * t * y) / ice.sum(r * t * t)
        b = ice.sum((1 - r) * t * y) / ice.sum((1 - r) * t * t)
    return a, b


def _kaczmarz(X, y, sweeps=4):
    w = np.zeros(X.shape[1])
    for _ in range(sweeps):
        for a, v in zip(X, y, strict=False):
            w = w + (v - a @ w) / (a @ a) * a
    return w


KX = uniform(6, 3)


@case(KX, KX @ tensor(0.5, -0.4, 0.3), _kaczmarz)
def kaczmarz(x, y, *, sweeps=4):
    w = ice.zeros_like(x)
    for _ in ice.repeat(sweeps):
        for t in ice.repeat(ice.count()):
            row = ice.at(x, t)
            w = w + (ice.at(y, t) - row @ w) / (row @ row) * row
    return w


def _irls(X, y, steps=12):
    w = np.zeros(X.shape[1])
    for _ in range(steps):
        weight = 1 / np.maximum(np.abs(y - X @ w), 0.01)
        A = (X * weight[:, None]).T @ X
        w = np.linalg.solve(A, X.T @ (weight * y))
    return w


IX = torch.stack([torch.ones(9, dtype=torch.float64), uniform(9)], 1)
IY = IX @ tensor(0.4, -0.7) + 0.1 * normal(9)


@case(IX, IY, _irls)
def least_absolute_deviations(x, y, *, steps=12):
    w = ice.zeros_like(x)
    for _ in ice.repeat(steps):
        weight = 1 / ice.maximum(abs(y - x @ w), 0.01)
        a = ice.sum(weight * x[0] * x[0])
        b = ice.sum(weight * x[0] * x[1])
        d = ice.sum(weight * x[1] * x[1])
        p = ice.sum(weight * x[0] * y)
        q = ice.sum(weight * x[1] * y)
        det = a * d - b * b
        w = ice.concat((d * p - b * q) / det, (a * q - b * p) / det)
    return w


def _loess(X, y, query=0.3, width=0.5):
    t = X[:, 0]
    d = np.abs(t - query) / width
    k = np.where(d < 1, (1 - d**3) ** 3, 0)
    A = np.stack([np.ones_like(t), t - query], 1)
    return np.linalg.solve((A * k[:, None]).T @ A, A.T @ (k * y))[0]


@case(uniform(14, 1), uniform(14), _loess)
def loess(x, y, *, query=0.3, width=0.5):
    d = abs(x[0] - query) / width
    k = ice.where(d < 1, (1 - d**3) ** 3, 0.0)
    s = x[0] - query
    s0, s1, s2 = ice.sum(k), ice.sum(k * s), ice.sum(k * s * s)
    return (s2 * ice.sum(k * y) - s1 * ice.sum(k * s * y)) / (s0 * s2 - s1 * s1)


def _isotonic(X, y):
    n = len(y)
    return [
        max(min(y[i : j + 1].mean() for j in range(k, n)) for i in range(k + 1)) for k in range(n)
    ]


@case(nothing(8), torch.linspace(-0.8, 0.8, 8, dtype=torch.float64) + 0.4 * normal(8), _isotonic)
def isotonic_regression(x, y):
    """max over i <= k of min over j >= k of the mean of y[i..j]."""
    sums = ice.running_sum(y)
    best = y * 0.0 - 10.0
    k = ice.index()
    for i in ice.repeat(ice.count()):
        before = ice.at(sums, i) - ice.at(y, i)
        least = y * 0.0 + 10.0
        for j in ice.repeat(ice.count()):
            mean = (ice.at(sums, j) - before) / ice.maximum(j - i + 1, 1)
            least = ice.where((j >= k) & (j >= i), ice.minimum(least, mean), least)
        best = ice.where(k >= i, ice.maximum(best, least), best)
    return best


def _omp(X, y, atoms=2):
    np.zeros(X.shape[1])
    r = y.copy()
    w = np.zeros(X.shape[1])
    for _ in range(atoms):
        k = np.argmax(np.abs(X.T @ r))
        w[k] += (X[:, k] @ r) / (X[:, k] @ X[:, k])
        r = y - X @ w
    return w


PX = uniform(8, 4)


@case(PX, PX @ tensor(0.0, 0.9, 0.0, -0.5), _omp)
def matching_pursuit(x, y, *, atoms=2):
    w = ice.zeros_like(x)
    norms = ice.sum(x * x)
    for _ in ice.repeat(atoms):
        gain = ice.sum(x * (y - x @ w))
        size = abs(gain)
        chosen = size > size.max() - 1e-4
        w = w + chosen * gain / norms
    return w


# ------------------------------------------------------------------ linear algebra
A3 = [[4.0, 1.0, 0.5], [1.0, 3.0, -1.0], [0.5, -1.0, 5.0]]


def _sor(X, y, omega=1.2, steps=10):
    A, v = np.array(A3), np.zeros(3)
    for _ in range(steps):
        for i in range(3):
            v[i] += omega * (y[i] - A[i] @ v) / A[i][i]
    return v


@case(nothing(3), uniform(3), _sor)
def over_relaxation(x, y, *, omega=1.2, steps=10):
    v = ice.constant([0.0, 0.0, 0.0])
    for _ in ice.repeat(steps):
        for i in range(3):
            r = ice.at(y, i) - ice.constant(A3[i]) @ v
            v = v + ice.one_hot(i, 3) * (omega * r / A3[i][i])
    return v


def _givens(X, y):
    R = X.copy()
    for j in range(2):
        for i in range(j + 1, 3):
            a, b = R[j, j], R[i, j]
            r = math.hypot(a, b)
            c, s = a / r, b / r
            R[j], R[i] = c * R[j] + s * R[i], c * R[i] - s * R[j]
    return R[0], R[1], R[2]


@case(uniform(3, 3), torch.zeros(3, dtype=torch.float64), _givens)
def givens_qr(x, y):
    rows = [ice.at(x, 0), ice.at(x, 1), ice.at(x, 2)]
    for j in range(2):
        for i in range(j + 1, 3):
            a, b = rows[j][j], rows[i][j]
            r = torch.sqrt(a * a + b * b)
            c, s = a / r, b / r
            rows[j], rows[i] = c * rows[j] + s * rows[i], c * rows[i] - s * rows[j]
    return rows


def _expm(X, y):
    A = X / 8
    E = np.eye(2)
    term = np.eye(2)
    for k in range(1, 7):
        term = term @ A / k
        E = E + term
    for _ in range(3):
        E = E @ E
    return [E[0], E[1]]


@case(uniform(2, 2), tensor(0.0, 0.0), _expm)
def matrix_exponential(x, y):
    a, b = ice.at(x, 0) / 8, ice.at(x, 1) / 8
    t0, t1 = ice.constant([1.0, 0.0]), ice.constant([0.0, 1.0])
    e0, e1 = t0, t1
    for k in range(1, 7):
        t0, t1 = (t0[0] * a + t0[1] * b) / k, (t1[0] * a + t1[1] * b) / k
        e0, e1 = e0 + t0, e1 + t1
    for _ in ice.repeat(3):
        e0, e1 = e0[0] * e0 + e0[1] * e1, e1[0] * e0 + e1[1] * e1
    return e0, e1


def _jacobi_eigen(X, y, sweeps=5):
    C = X.T @ X / len(X)
    a, b, d = C[0, 0], C[0, 1], C[1, 1]
    theta = 0.5 * math.atan2(2 * b, a - d)
    c, s = math.cos(theta), math.sin(theta)
    return [c * c * a + 2 * c * s * b + s * s * d, s * s * a - 2 * c * s * b + c * c * d]


@case(uniform(9, 2), torch.zeros(9, dtype=torch.float64), _jacobi_eigen)
def jacobi_rotation(x, y):
    a, b, d = ice.mean(x[0] * x[0]), ice.mean(x[0] * x[1]), ice.mean(x[1] * x[1])
    theta = 0.5 * torch.atan2(2 * b, a - d)
    c, s = torch.cos(theta), torch.sin(theta)
    return c * c * a + 2 * c * s * b + s * s * d, s * s * a - 2 * c * s * b + c * c * d


# ------------------------------------------------------------------ signals and sequences
def _fft(X, y):
    F = np.fft.fft(y)
    return F.real, F.imag


@case(nothing(8), uniform(8), _fft)
def fast_fourier_transform(x, y):
    k = ice.index()
    # bit reversal of 0..7
    place = (k % 2) * 4 + ((k // 2) % 2) * 2 + k // 4
    re, im = ice.at(y, place), 0.0 * y
    for size in (1, 2, 4):
        inside = k % (2 * size)
        top = inside < size
        partner_top = ice.where(top, k, k - size)
        partner_low = partner_top + size
        angle = -math.pi * (k % size) / size
        c, s = torch.cos(angle), torch.sin(angle)
        ur, ui = ice.at(re, partner_top), ice.at(im, partner_top)
        vr, vi = ice.at(re, partner_low), ice.at(im, partner_low)
        tr, ti = c * vr - s * vi, c * vi + s * vr
        re = ice.where(top, ur + tr, ur - tr)
        im = ice.where(top, ui + ti, ui - ti)
    return re, im


def _dtw(X, y):
    a, b = X[:, 0], y
    n = len(a)
    D = np.full((n + 1, n + 1), 100.0)
    D[0, 0] = 0
    for i in range(n):
        for j in range(n):
            D[i + 1, j + 1] = abs(a[i] - b[j]) + min(D[i, j], D[i, j + 1], D[i + 1, j])
    return D[n, n]


@case(uniform(6, 1), uniform(6), _dtw)
def dynamic_time_warping(x, y):
    n = ice.count()
    k = ice.index()
    row = 0.0 * y + 100.0  # D[i, j + 1] of the row before
    corner = ice.constant(0.0)
    for i in ice.repeat(n):
        left = ice.constant(100.0)
        diagonal = corner
        new = row
        for j in ice.repeat(n):
            above = ice.at(row, j)
            d = abs(ice.at(x[0], i) - ice.at(y, j)) + min(diagonal, above, left)
            new = ice.where(k == j, d, new)
            diagonal = above
            left = d
        row = new
        corner = ice.constant(100.0)
    return ice.at(row, n - 1)


def _lis(X, y):
    best = []
    for i, v in enumerate(y):
        best.append(1 + max([best[j] for j in range(i) if y[j] < v], default=0))
    return max(best)


@case(nothing(9), uniform(9), _lis)
def longest_increasing_subsequence(x, y):
    length = 0 * ice.index()
    for t in ice.repeat(ice.count()):
        v = ice.at(y, t)
        before = ice.max(ice.where((ice.index() < t) & (y < v - 1e-4), length, 0))
        length = ice.where(ice.index() == t, torch.round(before) + 1, length)
    return ice.max(length)


def _cusum(X, y, drift=0.2, limit=2.0):
    s, alarms = 0.0, 0
    for v in y:
        s = max(0.0, s + v - drift)
        if s > limit:
            alarms += 1
            s = 0.0
    return [s, alarms]


@case(nothing(15), 0.5 + normal(15), _cusum)
def cusum(x, y, *, drift=0.2, limit=2.0):
    s, alarms = ice.constant(0.0), ice.constant(0)
    for t in ice.repeat(ice.count()):
        s = max(0.0, s + ice.at(y, t) - drift)
        alarm = s > limit
        alarms = alarms + alarm
        s = ice.where(alarm, 0.0, s)
    return s, alarms


def _crf(X, y):
    trans = np.array([[0.5, -0.3], [-0.2, 0.4]])
    f = X[0]
    for e in X[1:]:
        f = np.array([np.log(np.exp(f + trans[:, j]).sum()) + e[j] for j in range(2)])
    return np.log(np.exp(f).sum())


@case(uniform(7, 2), torch.zeros(7, dtype=torch.float64), _crf)
def crf_log_partition(x, y):
    trans = torch.tensor([[0.5, -0.3], [-0.2, 0.4]], dtype=torch.float64)
    f = ice.at(x, 0)
    for t in ice.repeat(ice.count() - 1):
        f = torch.log(torch.exp(f) @ torch.exp(trans)) + ice.at(x, t + 1)
    return torch.log(torch.exp(f).sum())


def _baum_welch(X, y):
    A = np.array([[0.7, 0.3], [0.4, 0.6]])
    B = np.array([[0.9, 0.1], [0.2, 0.8]])
    o = y.astype(int)
    n = len(o)
    al, be = np.zeros((n, 2)), np.ones((n, 2))
    al[0] = 0.5 * B[:, o[0]]
    al[0] /= al[0].sum()
    for t in range(1, n):
        al[t] = (al[t - 1] @ A) * B[:, o[t]]
        al[t] /= al[t].sum()
    for t in range(n - 2, -1, -1):
        be[t] = A @ (B[:, o[t + 1]] * be[t + 1])
        be[t] /= be[t].sum()
    g = al * be
    g /= g.sum(1, keepdims=True)
    new = (g * (o == 1)[:, None]).sum(0) / g.sum(0)
    return new


OBS = tensor(0, 0, 1, 1, 1, 0, 0, 1)


@case(nothing(8), OBS, _baum_welch)
def baum_welch_step(x, y):
    A = torch.tensor([[0.7, 0.3], [0.4, 0.6]], dtype=torch.float64)
    zero, one = ice.constant([0.9, 0.2]), ice.constant([0.1, 0.8])
    n, k = ice.count(), ice.index()
    seen = ice.where(y > 0.5, one, zero)  # B[:, o], a vector in each sample
    f = ice.constant([0.5, 0.5]) * ice.at(seen, 0)
    f = f / f.sum()
    alpha = f + 0.0 * seen
    for t in ice.repeat(n - 1):
        f = (f @ A) * ice.at(seen, t + 1)
        f = f / f.sum()
        alpha = ice.where(k == t + 1, f, alpha)
    b = ice.constant([1.0, 1.0])
    beta = b + 0.0 * seen
    for t in ice.repeat(n - 1):
        place = n - 2 - t
        b = A @ (ice.at(seen, place + 1) * b)
        b = b / b.sum()
        beta = ice.where(k == place, b, beta)
    gamma = alpha * beta
    gamma = gamma / gamma.sum()
    return ice.sum(gamma * (y > 0.5)) / ice.sum(gamma)


def _particles(X, y):
    # samples are the particles, their starts and the noise of a move; one observation, 0.3
    p = 0.8 * X[:, 0] + 0.2 * X[:, 1]
    w = np.exp(-2 * (p - 0.3) ** 2)
    w /= w.sum()
    c = np.cumsum(w)
    n = len(p)
    places = [int((c < (i + 0.37) / n).sum()) for i in range(n)]
    return p[places]


@case(uniform(8, 2), torch.zeros(8, dtype=torch.float64), _particles)
def particle_filter_step(x, y, *, seen=0.3):
    p = 0.8 * x[0] + 0.2 * x[1]
    w = torch.exp(-2 * (p - seen) ** 2)
    w = w / ice.sum(w)
    c = ice.running_sum(w)
    n = ice.count()
    wanted = (ice.index() + 0.37) / n
    place = 0 * ice.index()
    for j in ice.repeat(n):
        place = place + (ice.at(c, j) < wanted)
    return ice.at(p, place)


def _annealing(X, y):
    def f(v):
        return v**4 - v**2 + 0.3 * v

    at, T = 0.5, 0.5
    for move, u in X:
        new = at + 0.5 * move
        if u < math.exp(min(0.0, -(f(new) - f(at)) / T)):
            at = new
        T *= 0.8
    return at


MOVES = torch.stack([uniform(12), uniform(12, low=0.01, high=0.99)], 1)


@case(MOVES, torch.zeros(12, dtype=torch.float64), _annealing)
def simulated_annealing(x, y):
    def f(v):
        return v**4 - v**2 + 0.3 * v

    place, temperature = ice.constant(0.5), ice.constant(0.5)
    for t in ice.repeat(ice.count()):
        row = ice.at(x, t)
        new = place + 0.5 * row[0]
        chance = torch.exp(min(0.0, (f(place) - f(new)) / temperature))
        place = ice.where(row[1] < chance, new, place)
        temperature = 0.8 * temperature
    return place


# ------------------------------------------------------------------ whole numbers
def _mod97(X, y):
    r = 0
    for d in y.astype(int):
        r = (10 * r + d) % 97
    return r


@case(nothing(12), tensor(3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8), _mod97)
def checksum_mod_97(x, y):
    r = ice.constant(0)
    for t in ice.repeat(ice.count()):
        r = torch.round((10 * r + ice.at(y, t)) % 97)
    return r


def _luhn(X, y):
    s = 0
    for i, d in enumerate(y.astype(int)):
        twice = d * 2 if i % 2 == 0 else d
        s += twice - 9 if twice > 9 else twice
    return s % 10


@case(nothing(10), tensor(4, 5, 3, 9, 1, 4, 8, 8, 0, 3), _luhn)
def luhn_checksum(x, y):
    d = torch.round(ice.where(ice.index() % 2 == 0, 2 * y, y))
    return ice.sum(ice.where(d > 9, d - 9, d)) % 10


def _josephus(X, y):
    n, k = int(y[0]), int(y[1])
    r = 0
    for i in range(2, n + 1):
        r = (r + k) % i
    return r


@case(nothing(2), tensor(11, 3), _josephus)
def josephus(x, y):
    n, k = torch.round(ice.at(y, 0)), torch.round(ice.at(y, 1))
    r, i = ice.constant(0), ice.constant(2)
    while ice.while_(i <= n):
        total = r + k
        r = total - torch.floor((total + 0.5) / i) * i
        i = i + 1
    return r


def _nim(X, y):
    v = 0
    for a in y.astype(int):
        v ^= a
    return v


@case(nothing(4), tensor(5, 9, 12, 3), _nim)
def nim_sum(x, y):
    value = ice.constant(0)
    for bit in range(4):
        ones = ice.sum((y // 2**bit) % 2)
        value = value + (ones % 2) * 2**bit
    return value


def _modpow(X, y):
    return pow(int(y[0]), int(y[1]), 23)


@case(nothing(2), tensor(7, 13), _modpow)
def modular_power(x, y):
    base, e = torch.round(ice.at(y, 0)), torch.round(ice.at(y, 1))
    r = ice.constant(1)
    while ice.while_(e > 0):
        r = ice.where(e % 2 == 1, torch.round((r * base) % 23), r)
        base = torch.round((base * base) % 23)
        e = e // 2
    return r


def _extended(X, y):
    a, b = int(y[0]), int(y[1])
    s0, s1 = 1, 0
    while b > 0:
        q = a // b
        a, b = b, a - q * b
        s0, s1 = s1, s0 - q * s1
    return [a, s0]


@case(nothing(2), tensor(48, 18), _extended)
def extended_euclid(x, y):
    a, b = torch.round(ice.at(y, 0)), torch.round(ice.at(y, 1))
    s, s_next = ice.constant(1), ice.constant(0)
    while ice.while_(b > 0):
        q = a // b
        a, b = b, a - q * b
        s, s_next = s_next, s - q * s_next
    return a, s


def _bresenham(X, y):
    dx, dy = int(y[0]), int(y[1])
    e, row, total = 2 * dy - dx, 0, []
    for _ in range(dx):
        if e > 0:
            row += 1
            e -= 2 * dx
        e += 2 * dy
        total.append(row)
    return [row, sum(total)]


@case(nothing(2), tensor(11, 4), _bresenham)
def bresenham(x, y):
    dx, dy = torch.round(ice.at(y, 0)), torch.round(ice.at(y, 1))
    e, row, total = 2 * dy - dx, ice.constant(0), ice.constant(0)
    for _ in ice.repeat(dx):
        up = e > 0
        row = row + up
        e = e - 2 * dx * up + 2 * dy
        total = total + row
    return row, total


def _bubble(X, y):
    v, swaps = list(y), 0
    for _ in range(len(v)):
        for i in range(len(v) - 1):
            if v[i] > v[i + 1]:
                v[i], v[i + 1] = v[i + 1], v[i]
                swaps += 1
    return [*v, swaps]


@case(nothing(5), uniform(5), _bubble)
def bubble_sort(x, y):
    v = ice.concat(*[ice.at(y, i) for i in range(5)])
    swaps = ice.constant(0)
    for _ in ice.repeat(5):
        for i in ice.repeat(4):
            a, b = v[i], v[i + 1]
            wrong = a > b
            v = v + wrong * (b - a) * (ice.one_hot(i, 5) - ice.one_hot(i + 1, 5))
            swaps = swaps + wrong
    return v, swaps


# ------------------------------------------------------------------ graphs
EDGES = tensor([0, 1], [1, 2], [3, 4], [5, 3], [6, 6], [2, 0])


def _union(X, y):
    parent = list(range(7))
    for a, b in X.astype(int):
        pa, pb = parent[a], parent[b]
        parent = [pa if p == pb else p for p in parent]
    return parent


@case(EDGES, torch.zeros(6, dtype=torch.float64), _union)
def union_find(x, y):
    """Quick-find: samples are edges, the vector holds each vertex's set."""
    parent = ice.constant([0, 1, 2, 3, 4, 5, 6])
    for t in ice.repeat(ice.count()):
        edge = ice.at(x, t)
        pa, pb = parent[edge[0]], parent[edge[1]]
        parent = ice.where(parent == pb, pa, parent)
    return parent


DAG = torch.zeros(6, 6, dtype=torch.float64)
for _a, _b in [(0, 3), (1, 3), (3, 2), (2, 5), (4, 5), (1, 4)]:
    DAG[_a, _b] = 1


def _kahn(X, y):
    n = len(X)
    degree = X.sum(0).copy()
    order = np.zeros(n)
    done = np.zeros(n, bool)
    for t in range(n):
        k = next(i for i in range(n) if not done[i] and degree[i] == 0)
        done[k] = True
        order[k] = t
        degree -= X[k]
    return order


@case(DAG, torch.zeros(6, dtype=torch.float64), _kahn)
def topological_order(x, y):
    degree = ice.sum(x)  # how many edges lead to each vertex, a vector
    k = ice.index()
    order = 0 * k - 1
    for t in ice.repeat(ice.count()):
        ready = (degree[k] == 0) & (order < 0)
        chosen = ice.argmax(ready)
        order = ice.where(k == chosen, t, order)
        degree = degree - ice.at(x, chosen)
    return order


W = torch.tensor(
    [[0, 3, 9, 9, 2], [9, 0, 1, 9, 9], [9, 9, 0, 4, 9], [1, 9, 9, 0, 9], [9, 0.5, 9, 2, 0]],
    dtype=torch.float64,
)


def _floyd(X, y):
    D = X.copy()
    for k in range(len(D)):
        D = np.minimum(D, D[:, k : k + 1] + D[k : k + 1, :])
    return D


@case(W, torch.zeros(5, dtype=torch.float64), _floyd)
def floyd_warshall(x, y):
    d = x
    for k in ice.repeat(ice.count()):
        d = ice.minimum(d, d[k] + ice.at(d, k))
    return d


def _two_sat(X, y):
    # literals 0..5 (2i is x_i, 2i + 1 its negation); clauses a or b; unit propagation from x_0 true
    value = np.zeros(6)
    value[0] = 1
    for _ in range(6):
        for a, b in X.astype(int):
            if value[a ^ 1]:
                value[b] = 1
            if value[b ^ 1]:
                value[a] = 1
    return [*value, float((value[0::2] * value[1::2]).sum())]


@case(tensor([1, 2], [3, 5], [3, 4], [0, 4]), torch.zeros(4, dtype=torch.float64), _two_sat)
def two_sat_propagation(x, y):
    value = ice.constant([1, 0, 0, 0, 0, 0])
    for _ in ice.repeat(6):
        for t in ice.repeat(ice.count()):
            clause = ice.at(x, t)
            a, b = clause[0], clause[1]
            not_a = a + 1 - 2 * (a % 2)
            not_b = b + 1 - 2 * (b % 2)
            value = ice.maximum(value, value[not_a] * ice.one_hot(b, 6))
            value = ice.maximum(value, value[not_b] * ice.one_hot(a, 6))
    clashes = value[0] * value[1] + value[2] * value[3] + value[4] * value[5]
    return value, clashes


POINTS = uniform(7, 2)


def _prim(X, y):
    n = len(X)
    tree = [0]
    total = 0.0
    while len(tree) < n:
        d, j = min(
            (np.linalg.norm(X[i] - X[j]), j) for i in tree for j in range(n) if j not in tree
        )
        total += d
        tree.append(j)
    return total


@case(POINTS, torch.zeros(7, dtype=torch.float64), _prim)
def prim_spanning_tree(x, y):
    distance = (x - ice.at(x, 0)).norm()
    inside = ice.index() == 0
    total = ice.constant(0.0)
    for _ in ice.repeat(ice.count() - 1):
        key = ice.where(inside, 10.0, distance)
        chosen = ice.argmin(key)
        total = total + ice.at(key, chosen)
        inside = ice.maximum(inside, ice.index() == chosen)
        distance = ice.minimum(distance, (x - ice.at(x, chosen)).norm())
    return total


# ------------------------------------------------------------------ learning
def _medoids(X, y, steps=3):
    a, b = 0, 1
    D = np.linalg.norm(X[:, None] - X[None], axis=2)
    for _ in range(steps):
        near = D[:, a] < D[:, b]
        ca = np.where(near, D @ near, 100)
        cb = np.where(~near, D @ ~near, 100)
        a, b = int(np.argmin(ca)), int(np.argmin(cb))
    return [a, b]


MX = torch.cat([uniform(5, 2) * 0.3 + 0.5, uniform(5, 2) * 0.3 - 0.5])[
    torch.randperm(10, generator=G)
]


@case(MX, torch.zeros(10, dtype=torch.float64), _medoids)
def k_medoids(x, y, *, steps=3):
    a, b = ice.constant(0), ice.constant(1)
    for _ in ice.repeat(steps):
        near = (x - ice.at(x, a)).norm() < (x - ice.at(x, b)).norm()
        cost_a, cost_b = 0.0 * x[0], 0.0 * x[0]
        for t in ice.repeat(ice.count()):
            distance = (x - ice.at(x, t)).norm()
            mine = ice.at(near, t)
            cost_a = cost_a + mine * distance
            cost_b = cost_b + (1 - mine) * distance
        a = ice.argmin(ice.where(near, cost_a, 100.0))
        b = ice.argmin(ice.where(near, 100.0, cost_b))
    return a, b


def _sarsa(X, y, rate=0.3, discount=0.9):
    Q = np.zeros((3, 2))
    for row in X:
        s, a, s2, a2 = map(int, row[:4])
        r = row[4]
        Q[s, a] += rate * (r + discount * Q[s2, a2] - Q[s, a])
    return Q.ravel()


SARSA = tensor(
    [0, 1, 1, 0, 0.0],
    [1, 0, 2, 1, 0.5],
    [2, 1, 0, 1, 1.0],
    [0, 1, 1, 1, -0.2],
    [1, 1, 2, 0, 0.3],
    [2, 0, 0, 1, 0.7],
)


@case(SARSA, torch.zeros(6, dtype=torch.float64), _sarsa)
def sarsa(x, y, *, rate=0.3, discount=0.9):
    q = ice.constant([0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    for t in ice.repeat(ice.count()):
        row = ice.at(x, t)
        place = 2 * row[0] + row[1]
        later = 2 * row[2] + row[3]
        error = row[4] + discount * q[later] - q[place]
        q = q + rate * error * ice.one_hot(place, 6)
    return q


def _hedge(X, y, rate=0.5):
    w = np.ones(X.shape[1])
    loss = 0.0
    for row in X:
        p = w / w.sum()
        loss += p @ row
        w = w * np.exp(-rate * row)
    return loss


@case(uniform(9, 3, low=0.0), torch.zeros(9, dtype=torch.float64), _hedge)
def hedge(x, y, *, rate=0.5):
    w = torch.ones_like(x)
    loss = ice.constant(0.0)
    for t in ice.repeat(ice.count()):
        row = ice.at(x, t)
        loss = loss + (w / w.sum()) @ row
        w = w * torch.exp(-rate * row)
    return loss


def _som(X, y, rate=0.4):
    w = np.array([-0.5, 0.0, 0.5])
    for v in X[:, 0]:
        best = np.argmin(np.abs(w - v))
        near = np.exp(-((np.arange(3) - best) ** 2))
        w = w + rate * near * (v - w)
        rate *= 0.9
    return w


@case(uniform(10, 1), torch.zeros(10, dtype=torch.float64), _som)
def self_organising_map(x, y, *, rate=0.4):
    w = ice.constant([-0.5, 0.0, 0.5])
    lr = ice.constant(1.0) * rate
    places = ice.constant([0, 1, 2])
    for t in ice.repeat(ice.count()):
        v = ice.at(x[0], t)
        gap = -abs(w - v)
        best = (gap > gap.max() - 1e-4) @ places
        near = torch.exp(-((places - best) ** 2))
        w = w + lr * near * (v - w)
        lr = 0.9 * lr
    return w


def _spearman(X, y):
    def rank(v):
        return np.array([(v < u).sum() for u in v])

    a, b = rank(X[:, 0]), rank(y)
    n = len(a)
    return 1 - 6 * ((a - b) ** 2).sum() / (n * (n * n - 1))


@case(uniform(9, 1), uniform(9), _spearman)
def spearman_correlation(x, y):
    n = ice.count()
    a, b = 0 * ice.index(), 0 * ice.index()
    for t in ice.repeat(n):
        a = a + (ice.at(x[0], t) < x[0] - 1e-4)
        b = b + (ice.at(y, t) < y - 1e-4)
    return 1 - 6 * ice.sum((a - b) ** 2) / (n * (n * n - 1))


def _lda(X, y):
    a, b = X[y > 0], X[y <= 0]
    S = (a - a.mean(0)).T @ (a - a.mean(0)) + (b - b.mean(0)).T @ (b - b.mean(0))
    return np.linalg.solve(S, a.mean(0) - b.mean(0))


LX = uniform(12, 2)


@case(LX, torch.sign(LX[:, 0] + 0.5 * LX[:, 1]), _lda)
def fisher_discriminant(x, y):
    positive = y > 0
    n = ice.sum(positive)
    m = ice.count() - n
    a = ice.sum(x * positive) / n
    b = ice.sum(x * (1 - positive)) / m
    d = x - ice.where(positive, a, b)
    s00, s01, s11 = ice.sum(d[0] * d[0]), ice.sum(d[0] * d[1]), ice.sum(d[1] * d[1])
    g = a - b
    det = s00 * s11 - s01 * s01
    return (s11 * g[0] - s01 * g[1]) / det, (s00 * g[1] - s01 * g[0]) / det


# ------------------------------------------------------------------ numerics
def _simpson(X, y, n=8):
    b = float(y[0])
    h = b / n

    def f(t):
        return math.exp(-t * t)

    return (
        h
        / 3
        * (
            f(0)
            + f(b)
            + 4 * sum(f((2 * i + 1) * h) for i in range(n // 2))
            + 2 * sum(f(2 * i * h) for i in range(1, n // 2))
        )
    )


@case(nothing(1), tensor(1.3), _simpson)
def simpson(x, y, *, pieces=4):
    b = ice.at(y, 0)
    h = b / (2 * pieces)
    total = ice.constant(0.0)
    for i in ice.repeat(pieces):
        left = 2 * i * h
        total = (
            total
            + torch.exp(-(left**2))
            + 4 * torch.exp(-((left + h) ** 2))
            + torch.exp(-((left + 2 * h) ** 2))
        )
    return total * h / 3


def _adaptive(X, y):
    t, v, h = 0.0, 1.0, 0.1

    def f(t, v):
        return -3 * v + math.sin(t)

    while t < 1:
        k = f(t, v)
        e = v + h * k
        e2 = v + h * (k + f(t + h, e)) / 2
        err = abs(e - e2)
        if err < 0.02:
            t, v = t + h, e2
        h = h * min(2.0, max(0.3, 0.9 * math.sqrt(0.02 / (err + 1e-6))))
    return [t, v]


@case(nothing(1), tensor(1.0), _adaptive)
def adaptive_heun(x, y):
    t, h = ice.constant(0.0), ice.constant(0.1)
    v = ice.at(y, 0)
    while ice.while_(t < 1.0):
        k = -3 * v + torch.sin(t)
        e = v + h * k
        better = v + h * (k - 3 * e + torch.sin(t + h)) / 2
        err = abs(e - better)
        good = err < 0.02
        t = ice.where(good, t + h, t)
        v = ice.where(good, better, v)
        h = h * min(2.0, max(0.3, 0.9 * torch.sqrt(0.02 / (err + 1e-6))))
    return t, v


def _shooting(X, y):
    target = float(y[0])

    def end(s):
        u, v = 0.0, s
        for _ in range(10):
            u, v = u + 0.1 * v, v - 0.1 * math.sin(u)
        return u

    low, high = 0.0, 2.0
    for _ in range(12):
        mid = (low + high) / 2
        if end(mid) < target:
            low = mid
        else:
            high = mid
    return (low + high) / 2


@case(nothing(1), tensor(0.7), _shooting)
def shooting(x, y):
    low, high = ice.constant(0.0), ice.constant(2.0)
    for _ in ice.repeat(12):
        slope = 0.5 * (low + high)
        u, v = ice.constant(0.0), slope
        for _ in ice.repeat(10):
            u, v = u + 0.1 * v, v - 0.1 * torch.sin(u)
        short = u < ice.at(y, 0)
        low = ice.where(short, slope, low)
        high = ice.where(short, high, slope)
    return 0.5 * (low + high)


def _fractal(X, y):
    z = X[:, 0] + 1j * X[:, 1]
    for _ in range(5):
        z = z - (z**3 - 1) / (3 * z**2)
    return z.real, z.imag


@case(
    torch.tensor(
        [[1.2, 0.3], [-0.8, 0.9], [-0.5, -0.9], [0.9, -0.6], [-1.1, 0.5]], dtype=torch.float64
    ),
    torch.zeros(5, dtype=torch.float64),
    _fractal,
)
def newton_fractal(x, y, *, steps=5):
    a, b = x[0], x[1]
    for _ in ice.repeat(steps):
        # z - (z^3 - 1) / (3 z^2) = 2/3 z + conj(z^2) / (3 |z^2|^2)
        p, q = a * a - b * b, 2 * a * b
        size = p * p + q * q
        a, b = 2 * a / 3 + p / (3 * size), 2 * b / 3 - q / (3 * size)
    return a, b


def _lotka(X, y, h=0.05):
    r, f = float(X[0, 0]), float(X[0, 1])
    for _ in range(30):
        kr, kf = r * (1 - f), f * (r - 1)
        mr, mf = r + h / 2 * kr, f + h / 2 * kf
        r, f = r + h * mr * (1 - mf), f + h * mf * (mr - 1)
    return [r, f]


@case(tensor([1.5, 0.8]).reshape(1, 2), tensor(0.0), _lotka)
def lotka_volterra(x, y, *, h=0.05, steps=30):
    start = ice.at(x, 0)
    prey, hunters = start[0], start[1]
    for _ in ice.repeat(steps):
        mid = prey + h / 2 * prey * (1 - hunters)
        mid_hunters = hunters + h / 2 * hunters * (prey - 1)
        prey, hunters = prey + h * mid * (1 - mid_hunters), hunters + h * mid_hunters * (mid - 1)
    return prey, hunters


def _verlet(X, y, h=0.1):
    p, v = X[:, 0].copy(), X[:, 1].copy()

    def acc(p):
        return -p - 0.5 * p**3

    a = acc(p)
    for _ in range(15):
        p = p + h * v + h * h / 2 * a
        new = acc(p)
        v = v + h / 2 * (a + new)
        a = new
    return p, v


@case(uniform(5, 2), torch.zeros(5, dtype=torch.float64), _verlet)
def velocity_verlet(x, y, *, h=0.1, steps=15):
    p, v = x[0], x[1]
    a = -p - 0.5 * p**3
    for _ in ice.repeat(steps):
        p = p + h * v + h * h / 2 * a
        new = -p - 0.5 * p**3
        v = v + h / 2 * (a + new)
        a = new
    return p, v


if __name__ == "__main__":
    sys.exit(main())
