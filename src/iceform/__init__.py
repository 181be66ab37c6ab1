"""iceform: in-context emulation with frozen transformers.

Every name is imported when it is first asked for.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from iceform import export, interpolation, targets, zoo
    from iceform.attention import (
        Features,
        FrozenNetwork,
        HopfieldLayer,
        Lift,
        LiftedAttention,
        Prompt,
        SoftmaxAttention,
        unchecked,
    )
    from iceform.certificates import (
        Attestation,
        Certificate,
        Enclosure,
        Ledger,
        Result,
        Verification,
    )
    from iceform.computer import Computer
    from iceform.computer.compile import Program, compile
    from iceform.computer.language import (
        algorithm,
        attend,
        bounded,
        concat,
        constant,
        maximum,
        mean,
        minimum,
        reciprocal,
        repeat,
        soft_threshold,
        stored,
        vector,
        where,
        while_,
        zeros_like,
    )
    from iceform.constructions import (
        MLP,
        AttentionHead,
        CompactStep,
        Emulator,
        GradientDescent,
        GradientStep,
        HopfieldMap,
        HopfieldResidual,
        HopfieldStep,
        LeastSquares,
        LinearLayer,
        Plan,
        ResidualMap,
        RidgeRegression,
        SampleGradients,
        SplitAttentionHead,
        TruncatedLinear,
    )
    from iceform.errors import (
        BoundError,
        CapacityError,
        CompileError,
        DeviceError,
        DtypeError,
        IceformError,
        IntegrityError,
        ParameterError,
        PrecisionError,
        ProgramError,
        ShapeError,
        TargetError,
    )
    from iceform.export import load
    from iceform.functions import LOSSES, Loss, ScalarFunction, loss_named
    from iceform.functions.formulas import Formula
    from iceform.interpolation import GradedGrid, Grid, Interpolant
    from iceform.networks import InContext, in_context
    from iceform.targets import check
    from iceform.targets.text import TextComputer

__version__ = "0.2.0"

# The rooms of the public names, for whoever asks; what a type checker reads stands above.
_WHERE = {
    "iceform": "export interpolation targets zoo",
    "iceform.attention": (
        "Features FrozenNetwork HopfieldLayer Lift LiftedAttention Prompt SoftmaxAttention "
        "unchecked"
    ),
    "iceform.certificates": "Attestation Certificate Enclosure Ledger Result Verification",
    "iceform.computer": "Computer",
    "iceform.computer.compile": "Program compile",
    "iceform.computer.language": (
        "algorithm attend bounded concat constant maximum mean minimum reciprocal repeat "
        "soft_threshold stored vector where while_ zeros_like"
    ),
    "iceform.constructions": (
        "MLP AttentionHead CompactStep Emulator GradientDescent GradientStep HopfieldMap "
        "HopfieldResidual HopfieldStep LeastSquares LinearLayer Plan ResidualMap RidgeRegression "
        "SampleGradients SplitAttentionHead TruncatedLinear"
    ),
    "iceform.errors": (
        "BoundError CapacityError CompileError DeviceError DtypeError IceformError "
        "IntegrityError ParameterError PrecisionError ProgramError ShapeError TargetError"
    ),
    "iceform.export": "load",
    "iceform.functions": "LOSSES Loss ScalarFunction loss_named",
    "iceform.functions.formulas": "Formula",
    "iceform.interpolation": "GradedGrid Grid Interpolant",
    "iceform.networks": "InContext in_context",
    "iceform.targets": "check",
    "iceform.targets.text": "TextComputer",
}
# A level below those rooms that makes itself known to them: what writes programs as checkpoints.
_BESIDE = {
    "Program": "iceform.targets",
    "compile": "iceform.targets",
}
# What lives in a package of its own now, by its old name: the distribution, and what to import.
_MOVED = {
    "ArraySource": ("iceform-estimators", "iceform_estimators"),
    "Machine": ("iceform-estimators", "iceform_estimators"),
    "algorithms": ("iceform-estimators", "iceform_estimators.algorithms"),
    "demo": ("iceform-estimators", "iceform_estimators.demo"),
    "machine": ("iceform-estimators", "iceform_estimators.machine"),
    "sklearn": ("iceform-estimators", "iceform_estimators"),
    "tables": ("iceform-estimators", "iceform_estimators.tables"),
    "testing": ("iceform-tolerance", "iceform_tolerance.testing"),
    "tolerance": ("iceform-tolerance", "iceform_tolerance"),
    "tolerances": ("iceform-tolerance", "iceform_tolerance"),
    "web": ("iceform-playground", "iceform_playground"),
}
_ROOM = {name: room for room, names in _WHERE.items() for name in names.split()}

__all__ = [
    "LOSSES",
    "MLP",
    "AttentionHead",
    "Attestation",
    "BoundError",
    "CapacityError",
    "Certificate",
    "CompactStep",
    "CompileError",
    "Computer",
    "DeviceError",
    "DtypeError",
    "Emulator",
    "Enclosure",
    "Features",
    "Formula",
    "FrozenNetwork",
    "GradedGrid",
    "GradientDescent",
    "GradientStep",
    "Grid",
    "HopfieldLayer",
    "HopfieldMap",
    "HopfieldResidual",
    "HopfieldStep",
    "IceformError",
    "InContext",
    "IntegrityError",
    "Interpolant",
    "LeastSquares",
    "Ledger",
    "Lift",
    "LiftedAttention",
    "LinearLayer",
    "Loss",
    "ParameterError",
    "Plan",
    "PrecisionError",
    "Program",
    "ProgramError",
    "Prompt",
    "ResidualMap",
    "Result",
    "RidgeRegression",
    "SampleGradients",
    "ScalarFunction",
    "ShapeError",
    "SoftmaxAttention",
    "SplitAttentionHead",
    "TargetError",
    "TextComputer",
    "TruncatedLinear",
    "Verification",
    "__version__",
    "algorithm",
    "attend",
    "bounded",
    "check",
    "compile",
    "concat",
    "constant",
    "export",
    "in_context",
    "interpolation",
    "load",
    "loss_named",
    "maximum",
    "mean",
    "minimum",
    "reciprocal",
    "repeat",
    "soft_threshold",
    "stored",
    "targets",
    "unchecked",
    "vector",
    "where",
    "while_",
    "zeros_like",
    "zoo",
]


def _moved(name: str) -> str:
    distribution, module = _MOVED[name]
    return (
        f"iceform.{name} is in a package of its own now: pip install {distribution}, then "
        f"import {module}"
    )


class _MovedModules:
    """Asked for modules that nobody has found: an import that has moved says where to."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        package, _, rest = name.partition(".")
        if package == __name__ and rest in _MOVED:
            raise ModuleNotFoundError(_moved(rest), name=name)


sys.meta_path.append(_MovedModules())


def __getattr__(name: str) -> Any:
    room = _ROOM.get(name)
    if room is None:
        if name in _MOVED:
            raise AttributeError(_moved(name))
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from iceform.validation import full_precision

    brought = full_precision(import_module)  # its constants, whatever the default device is
    found = brought(f"iceform.{name}") if room == __name__ else getattr(brought(room), name)
    if name in _BESIDE:
        brought(_BESIDE[name])
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
