"""The whole library by one frozen machine, beside the usual libraries.

The data are a few patients and measurements of scikit-learn's diabetes set. Every program is
compared with its own exact algorithm, which its certificate is about, and with what scikit-learn,
SciPy or PyTorch answer to the same question.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.optimize import root
from scipy.special import expit, softmax
from sklearn.datasets import load_diabetes
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor
from sklearn.linear_model import Ridge as SklearnRidge
from sklearn.metrics.pairwise import rbf_kernel
from torch import Tensor

from iceform import algorithms
from iceform.demo.patients.report import ProgramRow
from iceform.errors import IntegrityError, PrecisionError
from iceform.functions import loss_named
from iceform.machine import Machine, Rows

__all__ = [
    "PATIENTS",
    "Job",
    "Patients",
    "Tick",
    "literal_difference",
    "load_patients",
    "machine_for",
    "programs_for",
    "run_programs",
    "targets_of",
]

PATIENTS = 16
FEATURES = ("bmi", "bp", "s5", "s6")

_ROUNDED = 1e-13  # what references in float64 are off by themselves, at most
_L2 = 0.1
_WIDTH = 0.25  # of the rounded corners
_DELTA = 0.25  # the Huber loss's corners: inside the range of the scores
_QUANTILE = 0.75
_ALPHA = 1.0
_BANDWIDTH = 0.5
_BETA = 8.0
_RECALLS = 3  # updates of the Hopfield memory
_HIDDEN = 0.7  # how much of a pattern the memory is shown

Tick = Callable[[str], None]
Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class _Descent:
    """Gradient descent for one loss: steps to the optimum, and how it looks f up."""

    label: str
    steps: int
    w_bound: float
    tokens: int | None
    parameters: tuple[tuple[str, float], ...] = ()


# Steps: enough to come within about 1e-6 of the optimum. Tokens: enough for a certificate below
# 1e-2, and no more than that where the table would grow large: every program pays for the largest.
# With 41 tokens the look-up of the rounded hinge is exact.
_DESCENTS = {
    "squared": _Descent("squared loss", 20, 0.75, None),
    "absolute": _Descent("absolute, rounded", 32, 0.75, 57, (("width", _WIDTH),)),
    "huber": _Descent("Huber loss", 30, 0.75, 57, (("delta", _DELTA),)),
    "quantile": _Descent(
        "quartile, rounded", 24, 0.75, 57, (("quantile", _QUANTILE), ("width", _WIDTH))
    ),
    "logistic": _Descent("logistic regression", 15, 1.2, 41),
    "logistic_margin": _Descent("logistic, labels ±1", 15, 1.2, 41),
    "hinge": _Descent("hinge, rounded", 28, 1.6, 41, (("width", _WIDTH),)),
    "squared_hinge": _Descent("squared hinge", 28, 1.5, 41),
    "poisson": _Descent("Poisson regression", 100, 0.5, 13),
}

# The derivatives once more, by hand: SciPy's answers owe nothing to this library.
_BY_HAND: dict[str, Callable[[Array], Array]] = {
    "absolute": lambda z: np.tanh(z / _WIDTH),
    "huber": lambda z: np.clip(z, -_DELTA, _DELTA),
    "quantile": lambda z: expit(z / _WIDTH) - _QUANTILE,
    "logistic_margin": lambda m: -expit(-m),
    "hinge": lambda m: -expit((1 - m) / _WIDTH),
    "squared_hinge": lambda m: -np.maximum(1 - m, 0),
}


@dataclass(frozen=True)
class Patients:
    """Scaled measurements, and what can be asked about the score."""

    x: Tensor  # (n, 4), entries in [-1, 1]
    targets: dict[str, Tensor]  # as of ``targets_of``, each (n,)


@dataclass(frozen=True, eq=False)
class Job:
    """A program, its second input, and somebody else who knows the answer."""

    program: algorithms.Algorithm
    label: str
    library: str
    y: Tensor | None
    answer: Callable[[], Any]
    same: bool = True  # whether the library computes the same thing


def targets_of(score: Tensor) -> dict[str, Tensor]:
    """The score in [-1, 1], above or below the median as 0/1 and as -1/+1, and its quartile."""
    centred = score - score.mean()
    above = (score > score.median()).double()
    quarters = torch.tensor([0.25, 0.5, 0.75], dtype=score.dtype)
    count = torch.bucketize(score, score.quantile(quarters)).double() / len(quarters)
    return {
        "score": centred / centred.abs().max(),
        "above": above,
        "side": 2 * above - 1,
        "count": count,
    }


def load_patients(samples: int = PATIENTS) -> Patients:
    """Patients spread evenly over the set, four measurements each."""
    data = load_diabetes()
    x = torch.from_numpy(data.data[:, [data.feature_names.index(name) for name in FEATURES]])
    rows = torch.linspace(0, len(x) - 1, samples).long()
    targets = targets_of(torch.from_numpy(data.target))
    return Patients((x / x.abs().amax(0))[rows], {k: t[rows] for k, t in targets.items()})


# ---------------------------------------------------------------------------------------------
# the programs, and who else computes them
# ---------------------------------------------------------------------------------------------


def programs_for(data: Patients) -> list[Job]:
    """The whole library on these data."""
    with _one_thread():
        return [*_descents(data), *_solvers(data), *_looks(data)]


def _descents(data: Patients) -> list[Job]:
    x, n = data.x.numpy(), len(data.x)
    regressions = {
        "squared": SklearnRidge(alpha=n * _L2, fit_intercept=False),
        "logistic": LogisticRegression(
            C=1 / (n * _L2), fit_intercept=False, tol=1e-12, solver="newton-cholesky"
        ),
        "poisson": PoissonRegressor(
            alpha=_L2, fit_intercept=False, tol=1e-12, solver="newton-cholesky"
        ),
    }
    jobs = []
    for name, how in _DESCENTS.items():
        loss = loss_named(name, **dict(how.parameters))
        y = data.targets[_target(name, loss.kind)]
        program = algorithms.Descent(
            loss, how.steps, l2=_L2, w_bound=how.w_bound, tokens=how.tokens
        )
        # The step that contracts fastest, for errors as well as for distances.
        program = replace(program, lr=2 / sum(program.plan(data.x)[1]))
        if name in regressions:
            jobs.append(_regression(program, how.label, regressions[name], x, y))
        else:
            samples = x * y.numpy()[:, None] if loss.kind == "margin" else x
            labels = 0 * y.numpy() if loss.kind == "margin" else y.numpy()
            answer = _stationary(_BY_HAND[name], samples, labels)
            jobs.append(Job(program, how.label, "scipy root", y, answer))
    return jobs


def _target(loss: str, kind: str) -> str:
    return "count" if loss == "poisson" else {"margin": "side", "glm": "above"}.get(kind, "score")


def _regression(
    program: algorithms.Algorithm, label: str, estimator: Any, x: Array, y: Tensor
) -> Job:
    """A linear model of scikit-learn's."""

    def answer() -> Any:
        return estimator.fit(x, y.numpy()).coef_.ravel()

    return Job(program, label, f"sklearn {type(estimator).__name__}", y, answer)


def _stationary(f: Callable[[Array], Array], x: Array, y: Array) -> Callable[[], Any]:
    """Where the gradient of mean l(w.x - y) + l2/2 ||w||^2 is zero."""

    def gradient(w: Array) -> Array:
        return f(x @ w - y) @ x / len(y) + _L2 * w

    def answer() -> Any:
        found = root(gradient, np.zeros(x.shape[1]), tol=1e-13)
        if not np.abs(gradient(found.x)).max() <= 1e-10:
            raise PrecisionError(f"scipy found no root of the gradient: {found.message}")
        return found.x

    return answer


def _solvers(data: Patients) -> list[Job]:
    x, y = data.x.numpy(), data.targets["score"]
    plain, ridge = LinearRegression(fit_intercept=False), SklearnRidge(_ALPHA, fit_intercept=False)
    component = algorithms.PCA(1)

    def leading() -> Any:
        found = PCA(1, svd_solver="full").fit(x).components_
        return found * np.sign((found * component.reference(data.x, None).numpy()).sum())

    least, penalised = (
        algorithms.LinearRegression(w_bound=2.0, fit_intercept=False),
        algorithms.Ridge(_ALPHA, w_bound=2.0, fit_intercept=False),
    )
    return [
        _regression(least, "least squares", plain, x, y),
        _regression(penalised, "ridge regression", ridge, x, y),
        Job(component, "leading component", "sklearn PCA", None, leading),
    ]


def _looks(data: Patients) -> list[Job]:
    """Programs that look at the data once, or a few times."""
    x, y = data.x.numpy(), data.targets["score"]
    n, dim = data.x.shape

    def kernel() -> Any:
        weights = rbf_kernel(x, gamma=1 / (2 * _BANDWIDTH**2))
        return weights @ y.numpy() / weights.sum(1)

    shown = _HIDDEN * data.x[n // 2]

    def recalled() -> Any:
        state = shown.numpy()
        for _ in range(_RECALLS):
            state = softmax(_BETA * x @ state) @ x
        return state

    generator = torch.Generator().manual_seed(0)
    w_k, w_q, w_v = (torch.randn(dim, dim, generator=generator).double() for _ in range(3))

    def attention() -> Any:
        q, k, v = (data.x @ w.mT for w in (w_q, w_k, w_v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=1.0)

    average = algorithms.KernelRegression(1 / (2 * _BANDWIDTH**2), queries=n)
    memory = algorithms.HopfieldRetrieval(_BETA, _RECALLS)
    return [
        Job(average, "kernel regression", "sklearn rbf_kernel", y, kernel),
        Job(memory, "Hopfield memory", "scipy softmax", shown, recalled),
        Job(algorithms.Head(w_k, w_q, w_v), "a random head", "torch attention", None,
            attention),
    ]  # fmt: skip


# ---------------------------------------------------------------------------------------------
# the machine
# ---------------------------------------------------------------------------------------------


def machine_for(jobs: Sequence[Job], data: Patients) -> Rows:
    """The one frozen module, sized for all of them."""
    n, dim = data.x.shape
    return Machine.for_programs([job.program for job in jobs], dim, n)


def run_programs(
    machine: Rows, jobs: Sequence[Job], data: Patients, tick: Tick
) -> list[ProgramRow]:
    """Every program on the same weights, each checked."""
    before = machine.digest
    rows = []
    for job in jobs:
        with _one_thread():
            started = time.perf_counter()
            result = machine.run(job.program, data.x, job.y)
            seconds = time.perf_counter() - started
        row = ProgramRow(
            program=job.label,
            library=job.library,
            same=job.same,
            error=_apart(result.value, job.program.reference(data.x, job.y)),
            certified=result.certificate.error,
            difference=_apart(result.value, torch.as_tensor(job.answer())),
            passes=result.passes,
            seconds=seconds,
            digest=machine.digest,
        )
        _check(row, before)
        rows.append(row)
        tick(job.label)
    return rows


def literal_difference(machine: Rows, job: Job, data: Patients) -> float:
    """How far the first pass of the literal matrices is from the formula they amount to."""
    target = job.program.targets(data.x, job.y)
    fast, _ = machine.attend(target)
    literal = machine.network(machine.prompt(job.program, data.x, job.y).tokens)
    return _apart(literal[machine.padded(target).queries, : fast.shape[-1]], fast)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Small tensors gain nothing from more, and tables come out the same to the last bit."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _apart(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


def _check(row: ProgramRow, digest: str) -> None:
    if row.digest != digest:
        raise IntegrityError(
            f"after {row.program} the weights are {row.digest[:12]}, before {digest[:12]}"
        )
    if not row.error <= row.certified + _ROUNDED:
        raise PrecisionError(
            f"{row.program} is off by {row.error:.3g}, certified is {row.certified:.3g}"
        )
