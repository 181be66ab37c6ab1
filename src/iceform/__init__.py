"""iceform: real-valued algorithms compiled into transformers, with a proven error.

This file is the table of contents. A name is imported when it is first used, so that ``import
iceform`` is quick and loads nothing that the caller does not need::

    import iceform as ice

    step = ice.paper.GradientStep("squared", dim=2, samples=8)
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from iceform import old_names

__version__ = "0.2.0"

# The public names, by the module that defines them.
_CONTENTS = {
    "iceform": "bench errors lab paper plots targets",
    "iceform.certificates": "Certificate Enclosure Result",
    "iceform.computer": "Computer Program",
    "iceform.computer.compile": "compile",
    "iceform.computer.language": (
        "algorithm attend bounded concat constant maximum mean minimum one_hot reciprocal repeat "
        "soft_threshold stored vector where while_ zeros_like"
    ),
    "iceform.computer.samples": ("argmax argmin at count index max min previous running_sum sum"),
    "iceform.errors": "IceformError",
    "iceform.export": "load",
    "iceform.expressions": "Loss",
    "iceform.expressions.formulas": "Formula",
    "iceform.networks": "in_context",
    "iceform.tables": "Interpolant",
    "iceform.targets": "check",
    "iceform.targets.text": "TextComputer",
}
_MODULE_OF = {name: module for module, names in _CONTENTS.items() for name in names.split()}

__all__ = sorted(["__version__", *_MODULE_OF])

if TYPE_CHECKING:
    # The same for type checkers, which read no tables, and the modules one level down.
    # tests/test_surface.py compares both.
    from iceform import arithmetic as arithmetic
    from iceform import bench as bench
    from iceform import certificates as certificates
    from iceform import computer as computer
    from iceform import errors as errors
    from iceform import export as export
    from iceform import expressions as expressions
    from iceform import heads as heads
    from iceform import lab as lab
    from iceform import networks as networks
    from iceform import paper as paper
    from iceform import plots as plots
    from iceform import program as program
    from iceform import run as run
    from iceform import tables as tables
    from iceform import targets as targets
    from iceform.certificates import Certificate as Certificate
    from iceform.certificates import Enclosure as Enclosure
    from iceform.certificates import Result as Result
    from iceform.computer import Computer as Computer
    from iceform.computer import Program as Program
    from iceform.computer.compile import compile as compile
    from iceform.computer.language import algorithm as algorithm
    from iceform.computer.language import attend as attend
    from iceform.computer.language import bounded as bounded
    from iceform.computer.language import concat as concat
    from iceform.computer.language import constant as constant
    from iceform.computer.language import maximum as maximum
    from iceform.computer.language import mean as mean
    from iceform.computer.language import minimum as minimum
    from iceform.computer.language import one_hot as one_hot
    from iceform.computer.language import reciprocal as reciprocal
    from iceform.computer.language import repeat as repeat
    from iceform.computer.language import soft_threshold as soft_threshold
    from iceform.computer.language import stored as stored
    from iceform.computer.language import vector as vector
    from iceform.computer.language import where as where
    from iceform.computer.language import while_ as while_
    from iceform.computer.language import zeros_like as zeros_like
    from iceform.computer.samples import argmax as argmax
    from iceform.computer.samples import argmin as argmin
    from iceform.computer.samples import at as at
    from iceform.computer.samples import count as count
    from iceform.computer.samples import index as index
    from iceform.computer.samples import max as max
    from iceform.computer.samples import min as min
    from iceform.computer.samples import previous as previous
    from iceform.computer.samples import running_sum as running_sum
    from iceform.computer.samples import sum as sum
    from iceform.errors import IceformError as IceformError
    from iceform.export import load as load
    from iceform.expressions import Loss as Loss
    from iceform.expressions.formulas import Formula as Formula
    from iceform.networks import in_context as in_context
    from iceform.tables import Interpolant as Interpolant
    from iceform.targets import check as check
    from iceform.targets.text import TextComputer as TextComputer


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name) or old_names.module_of(name)
    if module is None and find_spec(f"{__name__}.{name}") is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if module in (None, __name__):
        value = _imported(f"{__name__}.{name}")
    else:
        value = getattr(_imported(module), name)
    globals()[name] = value
    return value


def _imported(module: str) -> Any:
    """The module, its constants made on the CPU in float64 whatever the caller's defaults are."""
    from iceform.validation import full_precision

    return full_precision(import_module)(module)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


old_names.install()
