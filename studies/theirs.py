"""The authors' own code, run where a copy of it is given; nothing of it is in this package.

A copy is taken only if its files are those of the commit that
:mod:`studies.script` names. What runs is theirs as far as it can be called with sizes:
data, networks and tests of all studies, and the training of studies 1 and 2. The loops of studies
3 and 4 stand in their ``main`` beside a path of one computer, so they are written down here once
more. Study 4's table comes from the package instead of the network, and its 8 heads, which the
code refuses, are 4.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import random
import re
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from iceform.errors import IntegrityError
from studies.house_prices import raw_house_prices
from studies.script import COMMIT, REPOSITORY
from studies.study import Plan, Record, Spec

__all__ = ["check_copy", "run_theirs"]

# SHA-256 of the files at the commit, the first half.
FILES = {
    "att_sim_f.py": "c4dd5cb03c6f25106025d78c39fb4020",
    "att_sim_statistical.py": "eb7bc3f43184b6b5ad9bf12005ce2806",
    "att_sim_statistical_ames_data.py": "6250bb0a1f84ca8a29dd294af9a706bf",
    "attention_model.py": "6db480abac56b6c94adfa44addc8b378",
    "attn_sim_attn.py": "02fdf5788cebde08eb76db38ac0dbacc",
    "interpolation.py": "9bab6c8248a57f46aa7c2b813591e61f",
}
_ALGORITHMS = ("lasso", "ridge", "linear")
_SEED = 1234  # of study 2's first training; the others follow it
_LOSS = re.compile(r"Test Loss: ([0-9.]+)")


def check_copy(folder: Path) -> Path:
    """The folder, if it holds the files of the commit."""
    for name, digest in FILES.items():
        path = folder / name
        if not path.is_file():
            raise IntegrityError(f"{folder} has no {name}; clone {REPOSITORY} at {COMMIT}")
        found = sha256(path.read_bytes()).hexdigest()[: len(digest)]
        if found != digest:
            raise IntegrityError(
                f"{path} is not the file of commit {COMMIT[:12]} (SHA-256 {found[:12]}, wanted "
                f"{digest[:12]}); check that commit out"
            )
    return folder


def run_theirs(plan: Plan, folder: Path) -> list[Record]:
    """The records of a plan of the column ``their_script``."""
    run = {"residual": _residual, "heads": _heads, "statistics": _statistics, "housing": _housing}
    with _importable(check_copy(folder)):
        return [
            Record(plan, seed, *run[plan.spec.study](plan, seed), notes={"commit": COMMIT})
            for seed in plan.seeds
        ]


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Their modules by name, for as long as they are needed."""
    names = [name.removesuffix(".py") for name in FILES]
    held = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(held)


def _module(name: str) -> ModuleType:
    """A script of theirs, without a display for its plots."""
    importlib.import_module("matplotlib").use("Agg")
    return importlib.import_module(name)


def _start(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)


_Numbers = tuple[dict[str, float], dict[str, list[float]]]


def _residual(plan: Plan, seed: int) -> _Numbers:
    theirs: Any = _module("att_sim_f")
    spec: Any = plan.spec
    _start(seed)
    data = theirs.SimFDataset(spec.samples, spec.tokens, spec.dim)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        theirs.train_model(
            spec.points, data, spec.epochs, spec.batch, spec.lr, spec.tokens, spec.hidden
        )
    losses = [float(value) for value in _LOSS.findall(said.getvalue())]
    variance = float((data.targets - data.targets.mean(0)).square().mean())
    return {"mse": losses[-1], "trivial mse": variance}, {"test": losses}


def _heads(plan: Plan, seed: int) -> _Numbers:
    theirs: Any = _module("attn_sim_attn")
    spec: Any = plan.spec
    _start(0)  # the script draws one data set and target, before any seed is set
    data = theirs.SimAttentionDataset(spec.samples, spec.tokens, spec.dim, spec.hidden)
    _start(_SEED + seed)
    with contextlib.redirect_stdout(io.StringIO()):
        mse = theirs.train_model(
            int(plan.labels["heads"]), spec.points, data, spec.epochs, spec.batch, spec.lr,
            spec.tokens, spec.hidden,
        )  # fmt: skip
    return {"mse": float(mse)}, {}


def _statistics(plan: Plan, seed: int) -> _Numbers:
    theirs: Any = _module("att_sim_statistical")
    spec: Any = plan.spec
    _start(seed)
    data = theirs.SimStatsDataset(
        spec.samples, spec.tokens, spec.dim, spec.dim, "mixed", spec.noise
    )
    model = theirs.OneLayerAttention(
        spec.dim, spec.hidden, spec.dim, spec.tokens, spec.heads, spec.points
    )
    curve = _trained(model, data, spec)
    with contextlib.redirect_stdout(io.StringIO()):
        found = {
            f"{name}: frozen mse": theirs.evaluate_on_task(
                model.eval(), name, spec.fresh, spec.dim, spec.dim, spec.tokens
            )
            for name in _ALGORITHMS
        }
    return found, {"train": curve}


def _housing(plan: Plan, seed: int) -> _Numbers:
    theirs: Any = _module("att_sim_statistical_ames_data")
    spec: Any = plan.spec
    theirs.fetch_openml = lambda **_: SimpleNamespace(frame=raw_house_prices())
    _start(seed)
    data = theirs.AmesStatsData(algorithm="mixed")
    order = torch.randperm(len(data)).tolist()
    train, test = order[: spec.train], order[spec.train :]
    model = theirs.OneLayerAttention(
        spec.dim, spec.hidden, spec.dim, spec.tokens, spec.heads, spec.points
    )
    curve = _trained(model, torch.utils.data.Subset(data, train), spec)
    with contextlib.redirect_stdout(io.StringIO()):
        found = {
            f"{name}: frozen mse": theirs.evaluate_on_task(model.eval(), name, test)
            for name in _ALGORITHMS
        }
    return found, {"train": curve}


def _trained(model: torch.nn.Module, data: Any, spec: Spec) -> list[float]:
    """The loop of studies 3 and 4: Adam, shuffled batches, mean squared error; loss by epoch."""
    adam = torch.optim.Adam(model.parameters(), lr=spec.lr)
    loader = torch.utils.data.DataLoader(data, batch_size=spec.batch, shuffle=True)
    curve = []
    for _ in range(spec.epochs):
        losses = []
        for x, y, w in loader:
            adam.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x, w), y)
            loss.backward()
            adam.step()
            losses.append(float(loss.detach()))
        curve.append(sum(losses) / len(losses))
    return curve
