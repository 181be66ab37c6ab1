"""Fits in which the host only writes prompts and adds answers up, beside the fast ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from iceform.arithmetic import at_most
from iceform.certificates import Ledger
from iceform.errors import PrecisionError
from iceform_estimators import algorithms
from iceform_estimators.demo.algorithms import Tick, proven
from iceform_estimators.demo.houses import Houses
from iceform_estimators.machine import Machine, MachineProgram

COLUMNS = ("Overall.Qual", "area", "Garage.Cars", "Year.Built", "Total.Bsmt.SF")
_BOUND, _LABELS = 16.0, 4.0  # what is stated of the columns, in deviations, and of log prices
_PASSES = 1000
_ALPHA, _LASSO, _C = 1000.0, 0.05, 1e-3  # how many steps are planned grows with 1/penalty


@dataclass(frozen=True)
class Planned:
    """One algorithm by ``solver="inside"`` and by the default."""

    name: str
    passes: int
    fast_passes: int
    difference: float  # of the two answers, relative to the largest coefficient
    certified: float  # of the planned one, on the same scale
    ledger: Ledger
    fast_ledger: Ledger
    digest: str


def planned(data: Houses, machine: Machine, tick: Tick) -> list[Planned]:
    """Ridge, lasso and logistic regression on a few columns, each both ways."""
    chosen = [data.names.index(name) for name in COLUMNS]
    x = torch.from_numpy(np.ascontiguousarray(data.x[:, chosen]))
    y = torch.from_numpy(np.log(data.price) - np.log(data.price).mean())
    dear = (y > y.median()).double()
    stated: dict[str, Any] = {"solver": "inside", "bound": _BOUND, "max_passes": _PASSES}
    labelled = {**stated, "label_bound": _LABELS}
    ways: list[tuple[str, MachineProgram, MachineProgram, Tensor]] = [
        ("ridge", algorithms.Ridge(_ALPHA), algorithms.Ridge(_ALPHA, **labelled), y),
        ("lasso", algorithms.Lasso(_LASSO), algorithms.Lasso(_LASSO, **labelled), y),
        ("logistic", algorithms.Logistic(_C), algorithms.Logistic(_C, **stated), dear),
    ]
    out = []
    for name, fast, slow, labels in ways:
        out.append(_both(name, fast, slow, x, labels, machine))
        tick(f"{name}, planned by stated bounds")
    return out


def _both(
    name: str, fast: MachineProgram, slow: MachineProgram, x: Tensor, y: Tensor, machine: Machine
) -> Planned:
    one, other = machine.run(slow, x, y), machine.run(fast, x, y)
    apart = float((one.coef - other.coef).abs().max())
    if not apart <= one.certificate.error + other.certificate.error:
        raise PrecisionError(
            f"{name} by solver='inside' is {apart:.3g} from the default's, certified are "
            f"{at_most(one.certificate.error, '.3g')} and "
            f"{at_most(other.certificate.error, '.3g')}"
        )
    size = float(other.coef.abs().max())
    return Planned(
        name, one.passes, other.passes, apart / size, proven(one.certificate, size), one.ledger,
        other.ledger, one.digest,
    )  # fmt: skip
