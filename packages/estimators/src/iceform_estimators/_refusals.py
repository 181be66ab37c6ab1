"""What parameters may be; those of scikit-learn that have no meaning here are refused by name.

A peer's parameter that an estimator does not have is taken where its value asks for nothing (the
peer's own default, or a hint about how to compute), and refused otherwise.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any

import numpy as np
from sklearn.utils._param_validation import (
    Interval,
    Options,
    RealNotInt,
    StrOptions,
    make_constraint,
)

from iceform.errors import ParameterError
from iceform_estimators.algorithms import EstimationAlgorithm, Option

_ONE_SOLVER = "passes of the frozen machine are the only solver; precondition says how they step"
_EUCLID = "attention compares samples by inner products, which tell Euclidean distances alone"
_SEARCH = "a prompt holds all samples and attends to them; there is no search tree"
_ALL_AT_ONCE = "every pass takes all samples at once, in no order"
_SVD = "directions are found by passes of the frozen machine, not by a decomposition"


@dataclass(frozen=True)
class Reason:
    """Why a parameter has no meaning.

    Attributes
    ----------
    why
        In words.
    nothing
        Values that ask for nothing, beside the peer's default.
    hint
        Whether it says how to compute, not what: the answer is the same whatever it is, of what the
        peer takes.
    but
        Hints that are none.
    """

    why: str
    nothing: tuple[Any, ...] = ()
    hint: bool = False
    but: tuple[Any, ...] = ()


_COPY, _SOLVER = "samples are never written to", Reason(_ONE_SOLVER, hint=True)
REASONS: Mapping[str, Reason] = MappingProxyType(
    {
        "algorithm": Reason(_SEARCH, hint=True),
        "alpha": Reason("there is no penalty"),
        "copy": Reason(_COPY, hint=True),
        "copy_X": Reason(_COPY, hint=True),
        "dual": _SOLVER,
        "early_stopping": Reason("no samples are set aside; passes end without mistakes"),
        "eta0": Reason("one step size is as good as another: it multiplies all coefficients"),
        "intercept_scaling": Reason("the intercept is not penalised, so that no scale is needed"),
        "iterated_power": Reason(_SVD, hint=True),
        "l1_ratio": Reason("absolute values are Lasso's and ElasticNet's penalty", (None,)),
        "leaf_size": Reason(_SEARCH, hint=True),
        "loss": Reason("the prompt's table is of the squared hinge"),
        "metric": Reason(_EUCLID, ("euclidean", "l2")),
        "metric_params": Reason(_EUCLID),
        "multi_class": Reason("how several classes are fitted is the objective's"),
        "n_iter_no_change": Reason("passes end where there are no mistakes"),
        "n_jobs": Reason("torch's threads and device say where a pass runs", hint=True),
        "n_oversamples": Reason(_SVD, hint=True),
        "p": Reason(_EUCLID),
        "penalty": Reason("the penalty is |w|^2, or none where the record has none", ("l2",)),
        "power_iteration_normalizer": Reason(_SVD, hint=True),
        "precompute": Reason("passes read the samples themselves, in the prompt", hint=True),
        "random_state": Reason("nothing is drawn at random", hint=True),
        "selection": Reason(_ALL_AT_ONCE, hint=True),
        "shuffle": Reason(_ALL_AT_ONCE, (False,)),
        # The first penalises the intercept; the others are gone from SciPy.
        "solver": replace(_SOLVER, but=("liblinear", "interior-point", "revised simplex")),
        "solver_options": _SOLVER,
        "svd_solver": Reason(_SVD, hint=True),
        "tol": Reason("it ends where there are no mistakes, or nothing changes", (None,)),
        "validation_fraction": Reason("no samples are set aside"),
        "verbose": Reason("nothing is printed; ledger_ tells of the passes", hint=True),
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


def peer_parameters(kind: type[EstimationAlgorithm]) -> Mapping[str, inspect.Parameter]:
    """What the peer's class takes; nothing where there is no such class."""
    return _parameters(kind.peer.path) if kind.peer is not None else {}


def peer_constraints(kind: type[EstimationAlgorithm]) -> Mapping[str, Any]:
    """What the peer's parameters may be, in scikit-learn's form."""
    found = _peer(kind.peer.path) if kind.peer is not None else None
    return getattr(found, "_parameter_constraints", {})


def refuse(kind: type[EstimationAlgorithm], name: str, value: Any) -> None:
    """Raise where a parameter that the estimator does not have asks for something."""
    if name == "peer":  # scikit-learn's checks give every name of a signature a value
        return
    theirs = peer_parameters(kind).get(name)
    if name == "multi_class" and kind.family == "separator":
        return _refuse_classes(kind, value)
    if theirs is None:
        beside = "" if kind.peer is None else f", nor has {kind.peer.path}"
        raise ParameterError(
            f"{kind.estimator} has no parameter {name!r}{beside}; it has "
            f"{', '.join(o.estimator for o in kind.options().values())}"
        )
    reason = REASONS.get(name, Reason("it has no counterpart here"))
    if name == "tol" and kind.family == "components":
        reason = Reason(_SVD, hint=True)  # ARPACK's
    if any(_same(value, v) for v in (theirs.default, *reason.nothing)):
        return
    if not (reason.hint and _is_known(kind, name, value)) or value in reason.but:
        raise ParameterError(
            f"{kind.estimator} refuses {name}={value!r}: {reason.why}; leave {name} out"
        )


# Parameters that are the estimators' own, and no options of an algorithm.
OF_ESTIMATORS: Mapping[str, list[Any]] = MappingProxyType(
    {
        "device": [None, str],
        "backend": [str],  # which there are is known when it is asked for
        "warm_start": ["boolean"],
        "class_weight": [dict, StrOptions({"balanced"}), None],
        "whiten": ["boolean"],
    }
)
# What estimators take beside what an algorithm does.
_ALSO: Mapping[str, list[Any]] = MappingProxyType(
    {
        "weights": [callable],
        "n_components": [
            Interval(RealNotInt, 0, 1, closed="neither"),
            Options(Integral, {0}),
            StrOptions({"mle"}),
        ],
        "random_state": ["random_state"],
    }
)


def constraints(kind: type[EstimationAlgorithm], one: Option) -> list[Any]:
    """scikit-learn's form of an option's range, None and arrays beside it where the peer has."""
    if one.kind is bool:
        return ["boolean"]
    found: list[Any] = [StrOptions(set(one.choices))] if one.choices else []
    if one.kind in (float, int):
        low = None if one.low == -math.inf else one.low
        high = None if one.high == math.inf else one.high
        infinite = "infinite" in one.open  # scikit-learn's None leaves infinity out
        high = math.inf if infinite else high
        closed = {
            (True, True): "neither", (True, False): "right", (False, True): "left",
            (False, False): "both",
        }["low" in one.open, "high" in one.open or (high is None and not infinite)]  # fmt: skip
        whole = one.kind is int and one.estimator != "max_iter"
        found.append(Interval(Integral if whole else Real, low, high, closed=closed))
    if one.optional or one.estimator in ("random_state", "weights"):
        found.append(None)
    theirs = peer_constraints(kind).get(one.estimator, [])
    found += [also for also in (None, "array-like") if also in theirs]
    return found + _ALSO.get(one.estimator, [])


def _same(value: Any, other: Any) -> bool:
    """Equal, where True is no 1."""
    plain = isinstance(value, bool | float | int | str | None)
    return plain and isinstance(value, bool) == isinstance(other, bool) and value == other


def _is_known(kind: type[EstimationAlgorithm], name: str, value: Any) -> bool:
    """Whether the peer takes it, and it is no array."""
    takes = (make_constraint(one) for one in peer_constraints(kind)[name])
    return not isinstance(value, np.ndarray) and any(one.is_satisfied_by(value) for one in takes)


def _refuse_classes(kind: type[EstimationAlgorithm], value: Any) -> None:
    """How several classes are fitted is the algorithm's."""
    at_once = hasattr(kind, "classes")
    if value not in ("auto", "multinomial" if at_once else "ovr"):
        how = "all at once" if at_once else "one against the rest"
        fix = "wrap it in OneVsRestClassifier" if at_once else "leave it out"
        raise ParameterError(
            f"{kind.estimator} refuses multi_class={value!r}: several classes are fitted {how}; "
            f"{fix}"
        )
