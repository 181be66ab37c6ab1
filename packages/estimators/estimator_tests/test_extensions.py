"""A new algorithm, a new loss, a new backend: one file each, from outside the package."""

import json
import pickle
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from sklearn.base import clone

import iceform_estimators
from iceform_estimators.algorithms import EstimationAlgorithm

ALGORITHM = '''
"""A line by the loss ln cosh: squares near it, straight lines far off, no corner between."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from iceform_estimators import LineEstimator
from iceform_estimators.algorithms import LinearModel, option
from iceform.expressions import Loss, ScalarFunction
from iceform.expressions import Curvature

# The third derivative is -2 tanh times the second.
_FACTS = Curvature(
    lambda z: 1 / torch.cosh(z).square(), torch.ones_like, (0.0, 1.0), concordance=2.0, level=1.0
)
_LOSS = Loss("log-cosh", "residual", ScalarFunction(torch.tanh, "tanh"), _FACTS)


@dataclass(frozen=True)
class LogCosh(LinearModel):
    """The line of least ln cosh of the residuals."""

    name: ClassVar[str] = "log-cosh"
    title: ClassVar[str] = "Smooth absolute deviations"
    task: ClassVar[str] = "regression"
    says: ClassVar[str] = "A line that outliers pull no more than others."
    objective: ClassVar[str] = "min mean_i ln cosh r_i + alpha |w|^2 / 2"
    lookup: ClassVar[str] = "a hyperbolic tangent"
    estimator: ClassVar[str] = "InContextLogCoshRegressor"

    alpha: float = field(
        default=0.1, metadata=option("The penalty's weight.", low=0, slider=(1e-3, 10))
    )

    def loss(self) -> Loss:
        return _LOSS

    def l2(self, rows: int) -> float:
        return self.alpha


class InContextLogCoshRegressor(LineEstimator):
    """The line of least ln cosh of the residuals."""

    algorithm = LogCosh

    alpha: float = 0.1
'''


@pytest.fixture
def log_cosh(tmp_path, monkeypatch):
    """The algorithm of a file that is not part of the package, forgotten afterwards."""
    (tmp_path / "log_cosh_module.py").write_text(ALGORITHM, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    import log_cosh_module

    yield log_cosh_module.LogCosh
    del EstimationAlgorithm.kinds["log-cosh"]
    del iceform_estimators.InContextEstimator.classes[log_cosh_module.LogCosh]
    del sys.modules["log_cosh_module"]


def table(rows=40):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 3))
    return x, x @ [1.0, -2.0, 0.5] + 0.2 * rng.normal(size=rows)


def test_an_algorithm_runs_and_is_certified(log_cosh):
    x, y = (torch.from_numpy(a) for a in table())
    results = [
        iceform_estimators.Machine(4, layout="stream", backend=b).run(log_cosh(), x, y)
        for b in ("literal", "fused")
    ]
    off = float((results[0].value - results[1].value).abs().max())
    assert off <= sum(r.certificate.error for r in results) < 1e-4
    assert all(r.attestation.ok for r in results)
    assert results[0].without_attention() > 1e-3


def test_an_algorithm_is_an_estimator(log_cosh):
    x, y = table()
    kind = iceform_estimators.estimator_of(log_cosh)
    model = kind(alpha=0.2).fit(x, y)
    assert clone(model).get_params() == {
        "alpha": 0.2, "fit_intercept": True, "tol": 1e-9, "max_iter": 1000,
        "precondition": "whiten", "device": None, "backend": "auto",
    }  # fmt: skip
    assert model.score(x, y) > 0.9
    assert np.array_equal(pickle.loads(pickle.dumps(model)).predict(x), model.predict(x))
    with pytest.raises(ValueError, match="The 'alpha' parameter"):
        kind(alpha=-1.0).fit(x, y)


def test_an_algorithm_is_on_the_command_line(log_cosh, tmp_path, capsys):
    from iceform_estimators.command.app import command

    assert command(["list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["algorithms"]
    (record,) = [one for one in listed if one["name"] == "log-cosh"]
    assert record["estimator"] == "iceform_estimators.InContextLogCoshRegressor"
    x, y = table()
    rows = "\n".join(",".join(map(str, [*a, b])) for a, b in zip(x, y, strict=True))
    (tmp_path / "data.csv").write_text("a,b,c,y\n" + rows, encoding="utf-8")
    words = ["run", "log-cosh", "--data", str(tmp_path / "data.csv"), "--target", "y", "--json"]
    assert command([*words, "--alpha", "0.3", "--backend", "literal"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["options"] == {"alpha": 0.3}
    assert found["attestation"]["backend"] == "literal"
    assert found["certified_error"] < 1e-3


def test_an_installed_package_adds_its_algorithms(tmp_path):
    """By the entry point that its metadata name, without anybody importing it."""
    (tmp_path / "log_cosh_module.py").write_text(ALGORITHM, encoding="utf-8")
    meta = tmp_path / "log_cosh-1.0.dist-info"
    meta.mkdir()
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: log-cosh\nVersion: 1.0\n")
    (meta / "entry_points.txt").write_text(
        "[iceform_estimators.algorithms]\nlog-cosh = log_cosh_module\n"
    )
    code = textwrap.dedent(
        f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import iceform_estimators
        from iceform_estimators.algorithms import named
        print(named("log-cosh").title)
        """
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "Smooth absolute deviations\n", done.stderr


def test_a_backend_of_ones_own_is_used_everywhere():
    from iceform.run import Backend, LiteralBackend, Rounding
    from iceform_estimators import InContextRidge

    seen = []

    class Spoken(LiteralBackend):
        """The literal matrices, and a note of every prompt."""

        name = "spoken"
        rounding = Rounding(literal=True)

        def run(self, prompt):
            seen.append(type(prompt).__name__)
            return super().run(prompt)

    try:
        x, y = table(12)
        model = InContextRidge(backend="spoken").fit(x, y)
        assert seen
        assert model.attestation_.backend == "spoken"
        assert model.attestation_.ok
        usual = InContextRidge().fit(x, y)
        allowed = usual.certificate_.error + model.certificate_.error
        assert np.abs(usual.coef_ - model.coef_).max() <= allowed
    finally:
        del Backend.kinds["spoken"]
