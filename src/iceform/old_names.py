"""Names of the last release: those that moved within iceform warn, those that left raise an error.

They are here for one release. Nothing else in the package uses this file, so that afterwards it is
deleted together with the three lines of ``__init__.py`` that name it.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_loader
from types import FrameType, ModuleType
from typing import Any

# Names that were offered at the top level, by the module that offers them now.
NAMES = {
    "certificates": "Attestation Ledger Verification",
    "errors": (
        "BoundError CapacityError CompileError DeviceError DtypeError IntegrityError "
        "ParameterError PrecisionError ProgramError ShapeError TargetError"
    ),
    "expressions": "LOSSES ScalarFunction loss_named",
    "heads": (
        "Features FrozenNetwork HopfieldLayer Lift LiftedAttention Prompt SoftmaxAttention "
        "unchecked"
    ),
    "networks": "InContext",
    "paper": (
        "MLP AttentionHead CompactStep Emulator GradientDescent GradientStep HopfieldMap "
        "HopfieldResidual HopfieldStep LeastSquares LinearLayer Plan ResidualMap RidgeRegression "
        "SampleGradients SplitAttentionHead TruncatedLinear"
    ),
    "tables": "GradedGrid Grid",
}
# Modules with a new name.
MODULES = {
    "attention": "heads",
    "backends": "run",
    "constructions": "paper",
    "functions": "expressions",
    "interpolation": "tables",
}
# Things of a module with a new name.
RENAMED = {
    "certificates": {"Step": "DerivationStep", "Witness": "RecordingBackend"},
    "computer": {"Prompt": "ProgramPrompt", "Sizes": "ComputerSizes"},
    "computer.library": {"Example": "LibraryExample"},
    "heads": {"Average": "SoftmaxAverage", "Layout": "LookUpLayout"},
    "networks": {"Row": "ReportRow"},
    "run": {
        "Ablated": "AblatedBackend",
        "Fused": "FusedBackend",
        "Literal": "LiteralBackend",
        "Triton": "TritonBackend",
    },
    "targets": {"Domain": "DataDomain"},
}
# What is in a package of its own now: the distribution to install, and what to import.
PACKAGES = {
    "ArraySource": ("iceform-estimators", "iceform_estimators"),
    "Machine": ("iceform-estimators", "iceform_estimators"),
    "algorithms": ("iceform-estimators", "iceform_estimators.algorithms"),
    "demo": ("iceform-estimators", "iceform_estimators.demo"),
    "machine": ("iceform-estimators", "iceform_estimators.machine"),
    "sklearn": ("iceform-estimators", "iceform_estimators"),
    "testing": ("iceform-tolerance", "iceform_tolerance.testing"),
    "tolerance": ("iceform-tolerance", "iceform_tolerance"),
    "tolerances": ("iceform-tolerance", "iceform_tolerance"),
    "web": ("iceform-playground", "iceform_playground"),
}
# What is gone, and what does it now.
GONE = {
    "zoo": "iceform.bench has networks with the exact effect of every edge, and a construction's "
    "design.ground_truth() says what each of its heads reads and writes",
}
_MODULE_OF = {name: module for module, names in NAMES.items() for name in names.split()}


def module_of(name: str) -> str | None:
    """The module of which ``iceform.name`` is today; None if it was never offered.

    Warns if it moved within iceform; raises an ``AttributeError`` that names the package if it
    left.
    """
    if name in PACKAGES or name in GONE:
        raise AttributeError(_left(name))
    if name not in _MODULE_OF:
        return None
    _warn(name, f"{_MODULE_OF[name]}.{name}")
    return f"iceform.{_MODULE_OF[name]}"


def _left(name: str) -> str:
    if name in GONE:
        return f"iceform.{name} is gone: {GONE[name]}"
    distribution, module = PACKAGES[name]
    return (
        f"iceform.{name} is in a package of its own now: pip install {distribution}, then "
        f"import {module}"
    )


def _warn(old: str, new: str) -> None:
    """Warn at the line outside of this package that names the old thing."""
    frame = sys._getframe()
    while frame.f_back and _is_ours(frame):
        frame = frame.f_back
    warnings.warn_explicit(
        f"iceform.{old} is iceform.{new} now; the old name goes with the next release",
        DeprecationWarning,
        filename=frame.f_code.co_filename,
        lineno=frame.f_lineno,
        module=frame.f_globals.get("__name__"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )


def _is_ours(frame: FrameType) -> bool:
    """Whether it belongs to this package or to Python's import."""
    return frame.f_globals.get("__name__", "").partition(".")[0] in ("iceform", "importlib")


class _Finder:
    """Finds modules by their old names, before Python looks into their new folders."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, rest = name.partition(".")
        first, _, below = rest.partition(".")
        if package != "iceform":
            return None
        if rest in PACKAGES or rest in GONE:
            raise ModuleNotFoundError(_left(rest), name=name)
        if rest in RENAMED:
            return _with_old_names(PathFinder.find_spec(name, path), rest)
        if first not in MODULES:
            return None
        return spec_from_loader(name, _Alias(first, below))


def _with_old_names(spec: ModuleSpec | None, module: str) -> ModuleSpec | None:
    """A module that answers to the old names of what it holds, each with a warning."""
    if spec is None or spec.loader is None:
        return spec
    execute = spec.loader.exec_module

    def answer(loaded: ModuleType, own: Any, name: str) -> object:
        if name not in RENAMED[module]:
            if own is not None:
                return own(name)
            raise AttributeError(f"module {loaded.__name__!r} has no attribute {name!r}")
        new = RENAMED[module][name]
        _warn(f"{module}.{name}", f"{module}.{new}")
        return getattr(loaded, new)

    def exec_module(loaded: ModuleType) -> None:
        execute(loaded)
        loaded.__dict__["__getattr__"] = partial(answer, loaded, vars(loaded).get("__getattr__"))

    spec.loader.exec_module = exec_module  # type: ignore[method-assign, assignment]
    return spec


class _Alias(Loader):
    """Loads the module of another name: the same object, so that a class exists once."""

    def __init__(self, first: str, below: str) -> None:
        self.first, self.below = first, below

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        new = MODULES[self.first]
        if not self.below:
            _warn(self.first, new)
        module = import_module(".".join(filter(None, ("iceform", new, self.below))))
        self.own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.own  # Python has put the alias's in its place


def install() -> None:
    """Let ``import`` know the old names."""
    sys.meta_path.insert(0, _Finder())
