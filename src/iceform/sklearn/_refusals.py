"""Parameters of scikit-learn that have no meaning here: refused by name, with the reason.

A peer's parameter that an estimator does not have is taken where its value asks for nothing (the
peer's own default, or a hint about how to compute), and refused otherwise.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
from sklearn.utils._param_validation import make_constraint

from iceform.algorithms import Algorithm
from iceform.errors import ParameterError

__all__ = ["REASONS", "peer_constraints", "peer_parameters", "refuse"]

_ONE_SOLVER = "passes of the frozen machine are the only solver; precondition says how they step"
_EUCLID = "attention compares samples by inner products, which tell Euclidean distances alone"
_SEARCH = "a prompt holds all samples and attends to them; there is no search tree"
_ALL_AT_ONCE = "every pass takes all samples at once, in no order"
_SVD = "directions are found by passes of the frozen machine, not by a decomposition"

# By name: why it has no meaning, beside the values that ask for nothing.
REASONS: Mapping[str, tuple[str, tuple[Any, ...]]] = MappingProxyType(
    {
        "algorithm": (_SEARCH, ()),
        "alpha": ("there is no penalty", ()),
        "copy": ("samples are never written to", ()),
        "copy_X": ("samples are never written to", ()),
        "dual": (_ONE_SOLVER, ()),
        "early_stopping": ("no samples are set aside; passes end where there are no mistakes", ()),
        "eta0": ("one step size is as good as another: it multiplies all coefficients", ()),
        "intercept_scaling": ("the intercept is not penalised, so that no scale is needed", ()),
        "iterated_power": (_SVD, ()),
        "l1_ratio": ("the penalty is |w|^2; absolute values are Lasso's and ElasticNet's", (None,)),
        "leaf_size": (_SEARCH, ()),
        "loss": ("the prompt's table is of the squared hinge", ()),
        "metric": (_EUCLID, ("euclidean", "l2")),
        "metric_params": (_EUCLID, ()),
        "multi_class": ("how several classes are fitted is the objective's", ()),
        "n_iter_no_change": ("passes end where there are no mistakes", ()),
        "n_jobs": ("a pass is one loop; torch's threads and device say where it runs", ()),
        "n_oversamples": (_SVD, ()),
        "p": (_EUCLID, ()),
        "penalty": ("the penalty is |w|^2, or none where the record has none", ("l2",)),
        "power_iteration_normalizer": (_SVD, ()),
        "precompute": ("passes read the samples themselves, in the prompt", ()),
        "random_state": ("nothing is drawn at random", ()),
        "selection": (_ALL_AT_ONCE, ()),
        "shuffle": (_ALL_AT_ONCE, (False,)),
        "solver": (_ONE_SOLVER, ()),
        "solver_options": (_ONE_SOLVER, ()),
        "svd_solver": (_SVD, ()),
        "tol": ("it ends where there are no mistakes, or nothing changes", (None,)),
        "validation_fraction": ("no samples are set aside", ()),
        "verbose": ("nothing is printed; history and ledger_ tell of the passes", ()),
    }
)
# How to compute, not what: the answer is the same whatever they are, of what the peer takes,
# but for these values.
_HINTS: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "algorithm": (),
        "copy": (),
        "copy_X": (),
        "dual": (),
        "iterated_power": (),
        "leaf_size": (),
        "n_jobs": (),
        "n_oversamples": (),
        "power_iteration_normalizer": (),
        "precompute": (),
        "random_state": (),
        "selection": (),
        # It penalises the intercept; the others are gone from SciPy.
        "solver": ("liblinear", "interior-point", "revised simplex"),
        "solver_options": (),
        "svd_solver": (),
        "verbose": (),
    }
)


@cache
def _peer(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


@cache
def _parameters(path: str) -> Mapping[str, inspect.Parameter]:
    found = _peer(path)
    return inspect.signature(found).parameters if inspect.isclass(found) else {}


def peer_parameters(kind: type[Algorithm]) -> Mapping[str, inspect.Parameter]:
    """What the peer's class takes; nothing where there is no such class."""
    return _parameters(kind.peer.path) if kind.peer is not None else {}


def peer_constraints(kind: type[Algorithm]) -> Mapping[str, Any]:
    """What the peer's parameters may be, in scikit-learn's form."""
    found = _peer(kind.peer.path) if kind.peer is not None else None
    return getattr(found, "_parameter_constraints", {})


def refuse(kind: type[Algorithm], name: str, value: Any) -> None:
    """Raise where a parameter that the estimator does not have asks for something."""
    theirs = peer_parameters(kind).get(name)
    if name == "multi_class" and kind.family == "separator":
        return _refuse_classes(kind, value)
    if theirs is None:
        raise ParameterError(
            f"{kind.estimator} has no parameter {name!r}, nor has what it stands beside; it has "
            f"{', '.join(o.estimator for o in kind.options().values())}"
        )
    why, nothing = REASONS.get(name, ("it has no counterpart here", ()))
    if any(_same(value, v) for v in (theirs.default, *nothing)) or _is_hint(kind, name, value):
        return
    raise ParameterError(f"{kind.estimator} refuses {name}={value!r}: {why}; leave {name} out")


def _same(value: Any, other: Any) -> bool:
    """Equal, where True is no 1."""
    plain = isinstance(value, bool | float | int | str | None)
    return plain and isinstance(value, bool) == isinstance(other, bool) and value == other


def _is_hint(kind: type[Algorithm], name: str, value: Any) -> bool:
    """Whether it only says how to compute, in a way that the peer knows."""
    hints = _HINTS if kind.family != "components" else {**_HINTS, "tol": ()}  # of ARPACK
    if name not in hints or any(_same(value, v) for v in hints[name]):
        return False
    return not isinstance(value, np.ndarray) and any(
        make_constraint(one).is_satisfied_by(value) for one in peer_constraints(kind)[name]
    )


def _refuse_classes(kind: type[Algorithm], value: Any) -> None:
    """How several classes are fitted is the algorithm's."""
    at_once = hasattr(kind, "classes")
    if value not in ("auto", "multinomial" if at_once else "ovr"):
        how = "all at once" if at_once else "one against the rest"
        fix = "wrap it in OneVsRestClassifier" if at_once else "leave it out"
        raise ParameterError(
            f"{kind.estimator} refuses multi_class={value!r}: several classes are fitted {how}; "
            f"{fix}"
        )
