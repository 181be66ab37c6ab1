"""What the estimators compute today, as values that a change of their insides must keep."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import torch

import iceform_estimators as estimators
from tests.pinned.values import Pinned, answer_of

ESTIMATORS = (
    "ElasticNet", "ExpectileRegressor", "HuberRegressor", "KernelRegressor",
    "KNeighborsClassifier", "KNeighborsRegressor", "Lasso", "LinearRegression",
    "LogisticRegression", "LinearSVC", "PCA", "Perceptron", "PoissonRegressor",
    "QuantileRegressor", "Ridge",
)  # fmt: skip


def fits() -> Iterator[tuple[str, Pinned]]:
    """Estimators on one small table: the machine's weights, the proven error and the answer."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 4, generator=generator, dtype=torch.float64)
    score = x @ torch.tensor([1.0, -2.0, 0.0, 0.5], dtype=torch.float64)
    noise = torch.randn(60, generator=generator, dtype=torch.float64)
    labels = {
        "classes": (score + noise > 0).double(),
        "counts": torch.poisson(torch.exp((score / 3).clamp(-3, 3)), generator=generator),
        "line": score + noise / 4,
    }
    classifiers = ("KNeighborsClassifier", "LogisticRegression", "LinearSVC", "Perceptron")
    kinds = {**dict.fromkeys(classifiers, "classes"), "PoissonRegressor": "counts"}
    for name in ESTIMATORS:
        y = labels[kinds.get(name, "line")]
        model = getattr(estimators, f"InContext{name}")().fit(x.numpy(), y.numpy())
        yield f"{name}: weights", Pinned("digest", model.digest_)
        yield f"{name}: certificate", Pinned("bound", model.certificate_.error)
        found = getattr(model, "coef_", None)
        found = model.transform(x.numpy()) if name == "PCA" else found
        found = model.predict(x.numpy()) if found is None else found
        yield f"{name}: answer", answer_of(torch.as_tensor(found))


def every() -> dict[str, Pinned]:
    """All values."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dict(fits())
