"""Modes that a caller has switched on do not reach into fits: answers are the same bits."""

import subprocess
import sys

import pytest
import torch

import iceform_estimators
from iceform_estimators import InContextKNeighborsRegressor, InContextLogisticRegression, algorithms
from tests.test_modes import F32, data, unchanged


@pytest.mark.parametrize("dtype", [F32, torch.float64])
def test_a_machine_that_streams(dtype):
    x, y = data(40, 3, torch.float64)

    def run():
        machine = iceform_estimators.Machine(4, layout="stream", dtype=dtype)
        found = machine.run(algorithms.Ridge(0.1), x, y)
        return found.value, found.certificate.error, found.intercept, found.predict(x)

    unchanged(run)


def test_estimators():
    x, y = data(30, 2, torch.float64)
    classes = (y > 0).numpy()

    def run():
        line = InContextLogisticRegression().fit(x.numpy(), classes)
        near = InContextKNeighborsRegressor(3).fit(x.numpy(), y.numpy())
        return (
            line.coef_, line.certificate_.error, line.predict_proba(x.numpy()),
            near.predict(x.numpy() + 0.01), near.certificate_.error,
        )  # fmt: skip

    unchanged(run)


_BEFORE_ANYTHING = """
import numpy as np, torch
torch.set_default_device("meta")
from iceform_estimators import InContextHuberRegressor, InContextKNeighborsRegressor
rng = np.random.default_rng(0)
x = rng.normal(size=(20, 3))
y = x.sum(1) + 0.1 * rng.normal(size=20)
assert InContextHuberRegressor().fit(x, y).certificate_.kind == "proven"
InContextKNeighborsRegressor(2).fit(x, y).predict(x)
assert torch.get_default_device().type == "meta"
"""


def test_a_default_device_from_before_anything_was_imported(tmp_path):
    """Constants of modules are made when they are first used."""
    program = tmp_path / "first.py"
    program.write_text(_BEFORE_ANYTHING)
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
