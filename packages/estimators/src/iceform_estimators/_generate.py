"""Estimators from records: each a class with its own signature, ranges and docstring."""

from __future__ import annotations

import inspect
import math
import textwrap
from numbers import Integral, Real
from typing import Any

from sklearn.utils._param_validation import Interval, Options, RealNotInt, StrOptions

from iceform.errors import ProgramError
from iceform_estimators._base import Batches, Chances, InContext, Sparse
from iceform_estimators._families import FAMILIES
from iceform_estimators._refusals import peer_constraints, peer_parameters, refuse
from iceform_estimators.algorithms import Algorithm, Option

_SHARED: dict[str, Any] = {"device": None, "backend": "auto"}
_SHARED_SAYS = {
    "device": "Where passes run; where the samples lie, if they are tensors, by default.",
    "backend": 'How passes are evaluated: "auto", "literal" (every matrix multiplied), ...',
    "warm_start": "Whether a fit begins where the last one ended.",
    "class_weight": (
        "Factors of the samples' weights: a dict from classes, or "
        '"balanced", n_samples / (n_classes * number of the class).'
    ),
    "whiten": "Whether coordinates along components are divided by their deviations.",
}
_CONSTRAINTS: dict[str, list[Any]] = {
    "device": [None, str],
    "backend": [str],  # which there are is known when it is asked for
    "warm_start": ["boolean"],
    "class_weight": [dict, StrOptions({"balanced"}), None],
    "whiten": ["boolean"],
}
# What estimators take beside what an algorithm does.
_ALSO: dict[str, list[Any]] = {
    "weights": [callable],
    "n_components": [
        Interval(RealNotInt, 0, 1, closed="neither"),
        Options(Integral, {0}),
        StrOptions({"mle"}),
    ],
    "random_state": ["random_state"],
}
_ATTRIBUTES = """Attributes
----------
certificate_
    Proven distance of the answer from the exact one.
attestation_
    Which weights ran, and what running rows again literally has shown.
ledger_
    What was computed where.
digest_
    SHA-256 of the frozen weights.
n_passes_
    Passes of the frozen machine over the data."""


_MADE: dict[type[Algorithm], type[InContext]] = {}


def estimator_of(kind: type[Algorithm]) -> type[InContext]:
    """The estimator that a record describes; the same class every time."""
    if kind not in _MADE:
        _MADE[kind] = _made(kind)
    return _MADE[kind]


def _made(kind: type[Algorithm]) -> type[InContext]:
    base = _base(kind)
    options = kind.options()
    members = {
        "__init__": _init(kind),
        "__module__": "iceform_estimators",
        "algorithm": kind,
        "_parameter_constraints": {
            **{o.estimator: _constraints(kind, o) for o in options.values()},
            **{name: _CONSTRAINTS[name] for name in _shared(kind)},
        },
        "__doc__": _docstring(kind),
    }
    return type(kind.estimator, (base,), members)


def _base(kind: type[Algorithm]) -> type[InContext]:
    if kind.family not in FAMILIES:
        raise ProgramError(
            f"{kind.name} is of the family {kind.family!r}; estimators are made for "
            f"{', '.join(FAMILIES)}"
        )
    base = FAMILIES[kind.family]
    if kind.family == "line" and getattr(kind, "batches", None) is not None:
        return Batches
    if kind.family == "line" and hasattr(kind, "thresholds"):
        return Sparse
    if kind.family == "separator" and hasattr(kind, "chances"):
        return Chances
    return base


def _shared(kind: type[Algorithm]) -> dict[str, Any]:
    """Parameters that are the estimator's, and no options of the algorithm."""
    has = dict(_SHARED)
    if "warm_start" in peer_parameters(kind) and kind.family in ("line", "separator"):
        has["warm_start"] = False
    if kind.family == "separator":
        has["class_weight"] = None
    if kind.family == "components":
        has["whiten"] = False
    return has


def _init(kind: type[Algorithm]) -> Any:
    """An ``__init__`` that stores its parameters, with the signature that scikit-learn reads."""
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    first: Any = inspect.Parameter.POSITIONAL_OR_KEYWORD
    for one in kind.options().values():
        parameters.append(inspect.Parameter(one.estimator, first, default=_default(one)))
        first = inspect.Parameter.KEYWORD_ONLY
    for name, default in _shared(kind).items():
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default))
    signature = inspect.Signature(parameters)

    def store(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in [name for name in kwargs if name not in signature.parameters]:
            refuse(kind, name, kwargs.pop(name))
        given = signature.bind(self, *args, **kwargs)
        given.apply_defaults()
        for name, value in list(given.arguments.items())[1:]:
            setattr(self, name, value)

    store.__signature__ = signature  # type: ignore[attr-defined]
    store.__name__ = "__init__"
    return store


def _default(one: Option) -> Any:
    """A seed that is not given is scikit-learn's None."""
    return None if one.estimator == "random_state" else one.default


def _constraints(kind: type[Algorithm], one: Option) -> list[Any]:
    """scikit-learn's form of a range, None and arrays beside it where the peer takes them."""
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


def _docstring(kind: type[Algorithm]) -> str:
    """The record's own words, its options, and what every fit leaves behind."""
    own = inspect.cleandoc(kind.__doc__ or kind.says)
    lines = [own.split("\nParameters\n")[0].rstrip(), "", "Parameters", "----------"]
    for one in kind.options().values():
        lines += [one.estimator, textwrap.indent(_says(one), "    ")]
    for name in _shared(kind):
        lines += [name, f"    {_SHARED_SAYS[name]}"]
    return "\n".join([*lines, "", _ATTRIBUTES])


def _says(one: Option) -> str:
    within = one.within if one.kind in (float, int) else ""
    return f"{one.says} In {within}." if within else one.says
