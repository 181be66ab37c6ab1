"""Algorithm: everything about one algorithm, once.

A subclass with a ``name`` is a record: what it minimises and looks up, its options with their
ranges, who else computes it, an example worth a picture, and how a machine runs it. Estimators,
the command line, the playground, the documentation and the tests are derived from records, so
that a file anywhere that defines one is all that a new algorithm takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import cache
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any, ClassVar

from torch import Tensor

from iceform.errors import BoundError, IntegrityError, ProgramError
from iceform.expressions import Loss
from iceform.validation import check_choice
from iceform_estimators.algorithms.examples import ExampleTable, flats
from iceform_estimators.machine.program import MachineProgram

TASKS = ("regression", "classification", "decomposition")
_GROUP = "iceform_estimators.algorithms"  # entry points by which installed packages add algorithms


@dataclass(frozen=True)
class Option:
    """A setting of an algorithm.

    Attributes
    ----------
    name
        As a field.
    says
        What it does, in one line.
    kind
        float, int, bool or str.
    default
        Where it is not given.
    low, high, open
        The range of a number, and which ends it does not contain ("low", "high", "low high").
    choices
        Names that may be given, beside numbers where ``kind`` is one.
    optional
        Whether None may be given.
    estimator
        What scikit-learn calls it.
    command
        Whether the command line has it.
    slider
        The range that a page offers; None where it offers none.

    Examples
    --------
    >>> print(Ridge.options()["alpha"].flag, Ridge.options()["alpha"].within)
    --alpha [0, inf)
    """

    name: str
    says: str
    kind: type
    default: Any
    low: float = -math.inf
    high: float = math.inf
    open: str = ""
    choices: tuple[str, ...] = ()
    optional: bool = False
    estimator: str = ""
    command: bool = True
    slider: tuple[float, float] | None = None

    @property
    def flag(self) -> str:
        """As on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def within(self) -> str:
        """The range, as mathematicians write it."""
        if self.kind not in (float, int):
            return ", ".join(self.choices)
        left = "(" if "low" in self.open or self.low == -math.inf else "["
        closed = self.high < math.inf or "infinite" in self.open
        right = "]" if closed and "high" not in self.open else ")"
        numbers = f"{left}{self.low:g}, {self.high:g}{right}"
        return " or ".join([numbers, *self.choices])

    def parse(self, text: Any) -> Any:
        """A value that was typed: a number where it is one."""
        if isinstance(text, str) and self.kind in (float, int):
            try:
                return self.kind(text)
            except ValueError:
                return text
        return text

    def check(self, value: Any) -> None:
        """Refuse what is out of range."""
        if (value is None and self.optional) or (isinstance(value, str) and value in self.choices):
            return
        if self.kind is str:
            check_choice(self.name, value, self.choices)
        elif self.kind is bool:
            if not isinstance(value, bool):
                raise BoundError(f"{self.name} must be True or False, got {value!r}")
        else:
            self._check_number(value)

    def _check_number(self, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BoundError(f"{self.name} must be a number in {self.within}, got {value!r}")
        whole = self.kind is not int or float(value).is_integer()
        above = value > self.low if "low" in self.open else value >= self.low
        below = value < self.high if "high" in self.open else value <= self.high
        finite = math.isfinite(value) or ("infinite" in self.open and value == math.inf)
        if not (finite and whole and above and below):
            what = "a whole number" if self.kind is int else "a number"
            raise BoundError(f"{self.name} must be {what} in {self.within}, got {value!r}")


def option(
    says: str,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    open: str = "",
    choices: tuple[str, ...] = (),
    optional: bool = False,
    kind: type | None = None,
    estimator: str = "",
    command: bool = True,
    slider: tuple[float, float] | None = None,
) -> dict[str, Any]:
    """The metadata that makes a dataclass field an :class:`Option`.

    ``kind`` is the default's type unless given.

    Examples
    --------
    >>> option("The penalty.", low=0)["option"]["low"]
    0
    """
    told = {
        "says": says, "kind": kind, "low": low, "high": high, "open": open, "choices": choices,
        "optional": optional, "estimator": estimator, "command": command, "slider": slider,
    }  # fmt: skip
    return {"option": told}


def setting(default: Any, says: str, **about: Any) -> Any:
    """A field of an algorithm that is an :class:`Option`.

    Parameters
    ----------
    default, says
        Where it is not given, and what it does, in one line.
    about
        What :func:`option` takes: its range, choices, names.

    Examples
    --------
    >>> from iceform_estimators.algorithms import setting
    >>> setting(1.0, "The penalty's weight.", low=0).metadata["option"]["low"]
    0
    """
    return field(default=default, metadata=option(says, **about))


@dataclass(frozen=True)
class Peer:
    """Who else computes the same.

    Attributes
    ----------
    path
        Dotted name of the class.
    options
        What its parameters are called there where the names differ, None where it has none.
    settings
        Its other parameters: tolerances at which it is a reference.
    differs
        What it does differently; empty where it is the same problem.
    made
        What builds it from the options, where calling the class does not.

    Examples
    --------
    >>> Lasso.peer.name
    'Lasso'
    """

    path: str
    options: Mapping[str, str | None] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    differs: str = ""
    made: Callable[..., Any] | None = None

    @property
    def name(self) -> str:
        """The class alone."""
        return self.path.rpartition(".")[2]


@dataclass(frozen=True, eq=False)  # a subclass whose fields are compared says so
class EstimationAlgorithm(MachineProgram, kept_as="Program"):
    """An algorithm with its record.

    A subclass sets the class attributes below, declares its options as fields by
    :func:`setting`, and supplies ``stream`` and ``opening``.

    Attributes
    ----------
    name, title
        As on the command line, and in print.
    task
        One of :data:`TASKS`; empty where its input is not a table.
    says, objective, lookup
        What it is in one line, what it minimises or returns in symbols, and what its prompts look
        up in words.
    estimator
        The class in ``iceform_estimators``; empty where there is none.
    family
        How that class predicts: see ``iceform_estimators``.
    peer
        Who else computes it; None where nobody does.
    penalised
        Whether coefficients are determined however the columns depend on each other.
    example
        Data worth a picture.

    Examples
    --------
    >>> print(Ridge.title, "|", Ridge.objective, "|", list(Ridge.options())[:2])
    Ridge regression | min |Xw + b - y|^2 + alpha |w|^2 | ['alpha', 'fit_intercept']
    """

    kinds: ClassVar[dict[str, type[EstimationAlgorithm]]] = {}

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    task: ClassVar[str] = ""
    says: ClassVar[str] = ""
    objective: ClassVar[str] = ""
    lookup: ClassVar[str] = ""
    estimator: ClassVar[str] = ""
    family: ClassVar[str] = ""
    peer: ClassVar[Peer | None] = None
    penalised: ClassVar[bool] = True
    example: ClassVar[Callable[[], ExampleTable]] = staticmethod(flats)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in vars(cls) and cls.name:
            EstimationAlgorithm.kinds[cls.name] = cls

    def __post_init__(self) -> None:
        for one in self.options().values():
            one.check(getattr(self, one.name))

    @classmethod
    def options(cls) -> Mapping[str, Option]:
        """Its settings by name, own ones first."""
        return _options(cls)  # type: ignore[arg-type]

    @classmethod
    def needs_target(cls) -> bool:
        """Whether it needs a target column."""
        return cls.task != "decomposition"

    @classmethod
    def check_options(cls, given: Iterable[str]) -> None:
        """Refuse options that this algorithm does not have on the command line."""
        has = {name: o for name, o in cls.options().items() if o.command}
        for name in given:
            if name in has:
                continue
            flag = "--" + name.replace("_", "-")
            owners = ", ".join(
                k.name for k in kinds() if name in k.options() and k.options()[name].command
            )
            listed = ", ".join(o.flag for o in has.values())
            raise ProgramError(
                f"{cls.name} has no {flag}; it has {listed} ({flag} belongs to {owners})"
            )

    @classmethod
    def record(cls) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": cls.name,
            "title": cls.title,
            "task": cls.task,
            "says": cls.says,
            "objective": cls.objective,
            "lookup": cls.lookup,
            "options": [o.flag for o in cls.options().values() if o.command],
            "estimator": f"iceform_estimators.{cls.estimator}" if cls.estimator else None,
            "program": f"{cls.__module__.rpartition('.')[0]}.{cls.__name__}",
            "scikit_learn": cls.peer and cls.peer.path,
            "differs": (cls.peer and cls.peer.differs) or None,
        }

    # ---------------------------------------------------------------------------------- files

    def card(self) -> tuple[str, dict[str, str]]:
        return f"An algorithm as a prompt for a frozen machine: {type(self).__name__}.", {}

    def pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        plain: dict[str, Any] = {}
        tensors: dict[str, Tensor] = {}
        for one in fields(self):
            if not one.init:
                continue
            value = getattr(self, one.name)
            if isinstance(value, Tensor):
                tensors[one.name] = value
            elif isinstance(value, Loss):
                plain[one.name] = {"loss": _described(value)}
            else:
                plain[one.name] = value
        return {"program": self.name, "arguments": plain}, tensors

    @classmethod
    def unpack(
        cls, content: dict[str, Any], tensors: dict[str, Tensor], **_: Any
    ) -> EstimationAlgorithm:
        kind = EstimationAlgorithm.kinds.get(content["program"])
        if kind is None:
            raise IntegrityError(f"{content['program']!r} is not a program of this library")
        arguments = {
            k: Loss.from_config(v["loss"]) if isinstance(v, dict) else v
            for k, v in content["arguments"].items()
        }
        return kind(**arguments, **tensors)

    def scores(self, y: Tensor, predicted: Tensor) -> dict[str, float]:
        """Scores by the algorithm's own loss; none where that is a squared or absolute error."""
        return {}

    def reference(self, x: Tensor, y: Tensor | None) -> Tensor:
        """What ``run(...).value`` approximates, by a plain float64 computation."""
        raise ProgramError(
            f"{self.label} has no closed reference; its certificate bounds its error"
        )


def _described(loss: Loss) -> dict[str, Any]:
    config = loss.to_config()
    if config is None:
        raise ProgramError(
            f"the loss {loss.derivative.name} is a function of your own, which files do not hold; "
            "save the prompt instead: machine.prompt(program, X, y)"
        )
    return config


@cache
def _options(cls: Hashable) -> Mapping[str, Option]:
    assert isinstance(cls, type)
    found = [f for f in fields(cls) if "option" in f.metadata]
    found.sort(key=lambda f: bool(f.kw_only))  # stable: own ones first
    made = {}
    for one in found:
        told = {**one.metadata["option"], "name": one.name, "default": one.default}
        told["estimator"] = told["estimator"] or one.name
        told["kind"] = told["kind"] or type(one.default)
        made[one.name] = Option(**told)
    return MappingProxyType(made)


@cache
def _discover() -> None:
    """Import what installed packages add."""
    for point in entry_points(group=_GROUP):
        point.load()


def kinds() -> list[type[EstimationAlgorithm]]:
    """Every algorithm that runs on a table, by task and name.

    Examples
    --------
    >>> [kind.name for kind in kinds() if kind.task == "decomposition"]
    ['pca']
    """
    _discover()
    found = [kind for kind in EstimationAlgorithm.kinds.values() if kind.estimator]
    return sorted(found, key=lambda kind: (TASKS.index(kind.task), kind.name))


def named(name: str) -> type[EstimationAlgorithm]:
    """The algorithm of this name; hyphens, underscores and case do not matter.

    Examples
    --------
    >>> named("Elastic_Net").title
    'Elastic net'
    """
    _discover()
    wanted = name.strip().lower().replace("_", "-")
    if wanted in EstimationAlgorithm.kinds:
        return EstimationAlgorithm.kinds[wanted]
    close = get_close_matches(wanted, EstimationAlgorithm.kinds, n=2)
    there = ", ".join(k.name for k in kinds())
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are {there}"
    raise ProgramError(f"no algorithm is called {name!r}; {hint}")


def labels_of(y: Tensor | None) -> Tensor:
    """Refuse data without labels."""
    if y is None:
        raise ProgramError("this algorithm needs labels: machine.run(algorithm, X, y)")
    return y
