"""Every option of every estimator, drawn at random, on data that nobody would choose.

``python -m estimator_tests.attacks.surface --seconds 60 --workers 2 --out found.json`` draws fits,
and compares what their certificates say of coefficients, intercepts and objectives with the optimum
in balls of 256 bits. Settings are bad on purpose: too few passes, a start from another fit, weights
that are tiny or 0, rows and columns twice, sizes of 1e-60 and 1e60.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import time
import traceback
import warnings
from concurrent.futures import ProcessPoolExecutor
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import iceform_estimators as estimators
from estimator_tests.exact import verify
from estimator_tests.exact.balls import dot
from estimator_tests.exact.lines import DependentError, line_of, objective_of, solved
from iceform.arithmetic.balls import balls_of, uppermost
from iceform.errors import IceformError, PrecisionError
from iceform_estimators._base import as_tensor
from iceform_estimators.machine import ArraySource

# What the loss of a sample is, on balls: z = a.v - b and the offset o, over all.
_VALUES = {
    "squared": lambda z, o: z * z / 2,
    "logistic": lambda z, o: (1 + z.exp()).log() - o * z,
    "poisson": lambda z, o: z.exp() - o * z,
    "squared_hinge": lambda z, o: (1 - z) * (1 - z) / 2 if z < 1 else 0 * z,
}
_PATIENCE = 20  # seconds for a case: balls take their time where nothing settles
_NAMES = [n for n in estimators.ESTIMATORS if n not in ("InContextPCA",)]


def _drawn_data(draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    n, d = int(draw.integers(1, 25)), int(draw.integers(1, 5))
    x = draw.normal(size=(n, d))
    y = x @ draw.normal(size=d) + draw.choice([0.0, 0.1, 1.0]) * draw.normal(size=n)
    for _ in range(draw.integers(0, 4)):
        j = int(draw.integers(d))
        match draw.integers(12):
            case 0:
                x[:, j] = 0.0 if draw.random() < 0.3 else 3.7
            case 1:
                x[:, j] = x[:, 0] + draw.choice([0.0, 1e-7, 1e-12]) * draw.normal(size=n)
            case 2:
                x[:, j] *= 10.0 ** draw.integers(-60, 60)
            case 3:
                x, y = np.concatenate([x, x[:2]]), np.concatenate([y, y[:2]])
                n = len(x)
            case 4:
                y[:] = y[0]
            case 5:
                y *= 10.0 ** draw.integers(-60, 60)
            case 6:
                x[:, j] += 10.0 ** draw.integers(1, 9)
            case 7:
                x, y = np.round(x), np.round(y)
            case 8:
                y[0] += 10.0 ** draw.integers(1, 8)
            case 9:
                x[draw.random(x.shape) < 0.5] = 0.0
            case 10:
                y += 10.0 ** draw.integers(1, 9)
            case 11:
                x *= 10.0 ** draw.integers(-20, 20)
    return x, y


def _labels(name: str, y: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    if "Poisson" in name:
        return np.round(np.abs(y - np.median(y)) / (np.std(y) + 1e-300)).clip(0, 1e3)
    if any(word in name for word in ("Logistic", "SVC", "Perceptron", "Classifier")):
        cuts = np.quantile(y, [0.5] if draw.random() < 0.7 else [0.3, 0.6])
        return np.searchsorted(cuts, y).astype(np.int64)
    return y


def _options(name: str, draw: np.random.Generator) -> dict[str, Any]:
    kind = getattr(estimators, name)
    known = kind().get_params()
    pick: dict[str, Any] = {
        "alpha": lambda: float(10.0 ** draw.integers(-8, 4)) * (draw.random() < 0.8),
        "C": lambda: float(10.0 ** draw.integers(-4, 6)),
        "l1_ratio": lambda: float(draw.choice([0.0, 0.01, 0.5, 1.0])),
        "fit_intercept": lambda: bool(draw.random() < 0.6),
        "tol": lambda: float(draw.choice([1e-9, 1e-3, 0.1, 1e-12])),
        "max_iter": lambda: int(draw.choice([1, 2, 3, 5, 20, 1000])),
        "precondition": lambda: str(draw.choice(["whiten", "whiten", "diagonal", "none"])),
        "positive": lambda: bool(draw.random() < 0.3),
        "backend": lambda: str(draw.choice(["auto", "fused"])),
        "epsilon": lambda: float(draw.choice([1.0, 1.01, 1.35, 5.0])),
        "quantile": lambda: float(draw.choice([0.1, 0.5, 0.9, 0.01])),
        "width": lambda: draw.choice([None, 0.05, 0.25, 1.0]),
        "expectile": lambda: float(draw.choice([0.1, 0.5, 0.99])),
        "n_neighbors": lambda: int(draw.integers(1, 4)),
        "weights": lambda: str(draw.choice(["uniform", "distance"])),
        "gamma": lambda: float(10.0 ** draw.integers(-3, 3)),
        "warm_start": lambda: bool(draw.random() < 0.5),
        "class_weight": lambda: draw.choice([None, "balanced"]),
    }
    return {key: pick[key]() for key in known if key in pick and draw.random() < 0.6}


def _chunked(chunk: int, x: Any, y: Any, weights: Any) -> ArraySource:
    weights = None if weights is None else as_tensor(weights)
    return ArraySource(as_tensor(x), as_tensor(y), chunk, weights=weights)


def _fit(seed: int) -> tuple[Any, str]:
    draw = np.random.default_rng(seed)
    name = str(draw.choice(_NAMES))
    x, y = _drawn_data(draw)
    y = _labels(name, y, draw)
    options = _options(name, draw)
    if "n_neighbors" in getattr(estimators, name)().get_params():
        options["n_neighbors"] = min(options.get("n_neighbors", 1), len(x))
    model = getattr(estimators, name)(**options)
    dtype = draw.choice([np.float64, np.float64, np.float32])
    weights = None
    if draw.random() < 0.4:
        weights = draw.choice([0.0, 1.0, 1e-9, 1e9, 0.3, 7.0, 1e-25, 1e25], size=len(x))
    told = f"{seed} {name} {options} {x.shape} {dtype.__name__} {weights is not None}"
    with np.errstate(over="ignore"):
        x = x.astype(dtype)
    given = {} if weights is None else {"sample_weight": weights}
    if draw.random() < 0.3:  # in several chunks
        model._arrays = partial(_chunked, int(draw.integers(1, 9)))
    if options.get("warm_start"):
        model.fit(x * 1.1, y, **given)
    if hasattr(model, "partial_fit") and draw.random() < 0.3:
        half = len(x) // 2
        if half and not given:
            more = {"classes": np.unique(y)} if hasattr(model, "predict_proba") else {}
            model.partial_fit(x[:half], y[:half], **more)
            model.partial_fit(x[half:], y[half:])
            return model, told + " partial"
    try:
        model.fit(x, y, **given)
    except TypeError:
        model.fit(x, y)
    return model, told


def _objective_off(objective: Any, loss: str, found: list[Any], exact: list[Any]) -> Any:
    """F(found) - F(exact), a ball."""
    total = []
    for v in (found, exact):
        terms = [
            w * _VALUES[loss](dot(row, v) - b, o)
            for row, b, o, w in zip(
                objective.rows, objective.labels, objective.offsets, objective.weights, strict=True
            )
        ]
        heavy = sum(objective.weights)
        ridge = sum(q * a * a for q, a in zip(objective.l2, v, strict=True)) / 2
        steep = sum(q * abs(a) for q, a in zip(objective.l1, v, strict=True))
        total.append(sum(terms) / heavy + ridge + steep)
    return total[0] - total[1]


def attack(seed: int) -> tuple[str, str]:
    """What came of a fit, and what it was."""
    told = str(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model, told = _fit(seed)
        except (IceformError, ValueError) as error:
            return f"refused: {type(error).__name__}", f"{told} {error}"[:300]
        certificate = model.certificate_
        if certificate.kind != "proven":
            return certificate.kind, told
        try:
            verdict = verify(certificate)
        except (PrecisionError, IceformError) as error:
            return f"open: {str(error)[:60]}", told
        if not verdict:
            return "VIOLATED", f"{told} {verdict}"
        verifier = certificate.verifier
        program, found, given = verifier.program, verifier.found, verifier.given
        simple = type(program).__name__ in (
            "Ridge", "LinearRegression", "Lasso", "ElasticNet", "Logistic", "LinearSVM", "Poisson"
        )  # fmt: skip
        if not simple or given is None or found.coef is None or found.coef.dim() != 1:
            return "held" if math.isfinite(certificate.error) else "infinite", told
        with balls_of(256):
            l1 = Fraction(getattr(program, "alpha", 0)) * Fraction(getattr(program, "l1_ratio", 0))
            objective = objective_of(program, given, l1=l1)
            start = line_of(found, program.fit_intercept)
            try:
                exact = solved(objective, start)
            except (PrecisionError, DependentError):
                return "held, open", told
            if "what" not in certificate.domain and program.fit_intercept:
                off = uppermost(abs(start[-1] - exact[-1]))
                if off > found.errors["intercept"]:
                    return "VIOLATED intercept", f"{told} {off} {found.errors['intercept']}"
            excess = certificate.excess
            if excess is not None and not excess.over:
                gap = _objective_off(objective, program.loss().name, start, exact)
                if float(gap.lower()) > excess.bound:
                    return "VIOLATED excess", f"{told} {gap} {excess.bound}"
                return "held, excess", told
        return "held" if math.isfinite(certificate.error) else "infinite", told


def _enough(*_: Any) -> None:
    raise TimeoutError


def _share(task: tuple[int, int, float]) -> tuple[dict[str, int], list[str]]:
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _enough)
    first, step, until = task
    counts: dict[str, int] = {}
    kept: list[str] = []
    seed = first
    while time.time() < until:
        signal.alarm(_PATIENCE)
        try:
            word, told = attack(seed)
        except TimeoutError:
            word, told = "slow", str(seed)
        except Exception:
            word, told = "RAW", f"{seed} {traceback.format_exc()[-600:]}"
        signal.alarm(0)
        counts[word] = counts.get(word, 0) + 1
        if word.isupper() or word.startswith(("VIOLATED", "RAW")):
            kept.append(f"{word}: {told}")
        seed += step
    return counts, kept


def main() -> None:
    """Print counts; what was violated, seed by seed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    until = time.time() + asked.seconds
    shares = [(asked.first + k, asked.workers, until) for k in range(asked.workers)]
    total: dict[str, int] = {}
    kept: list[str] = []
    with ProcessPoolExecutor(asked.workers) as pool:
        for counts, found in pool.map(_share, shares):
            kept += found
            for word, count in counts.items():
                total[word] = total.get(word, 0) + count
    print(json.dumps(dict(sorted(total.items())), indent=1))
    print("\n".join(kept[:40]))
    if asked.out:
        asked.out.write_text(json.dumps({"counts": total, "kept": kept[:200]}, indent=1))


if __name__ == "__main__":
    main()
