"""iceform: in-context emulation with frozen transformers."""

from iceform import algorithms, interpolation, testing, tolerances, zoo
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
from iceform.certificates import Attestation, Certificate, Ledger, Result, Verification
from iceform.constructions import (
    MLP,
    AttentionHead,
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
    TruncatedLinear,
)
from iceform.errors import (
    BoundError,
    CapacityError,
    DeviceError,
    DtypeError,
    IceformError,
    IntegrityError,
    PrecisionError,
    ProgramError,
    ShapeError,
)
from iceform.functions import LOSSES, Loss, ScalarFunction, loss_named
from iceform.functions.formulas import Formula
from iceform.interpolation import GradedGrid, Grid, Interpolant
from iceform.machine import ArraySource, Machine
from iceform.networks import InContext, in_context
from iceform.tolerances import tolerance

# Last: it keeps all of the above in files.
from iceform import export  # isort: skip

__version__ = "0.1.0"

load = Emulator.load

__all__ = [
    "LOSSES",
    "MLP",
    "ArraySource",
    "AttentionHead",
    "Attestation",
    "BoundError",
    "CapacityError",
    "Certificate",
    "DeviceError",
    "DtypeError",
    "Emulator",
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
    "Machine",
    "Plan",
    "PrecisionError",
    "ProgramError",
    "Prompt",
    "ResidualMap",
    "Result",
    "RidgeRegression",
    "SampleGradients",
    "ScalarFunction",
    "ShapeError",
    "SoftmaxAttention",
    "TruncatedLinear",
    "Verification",
    "__version__",
    "algorithms",
    "export",
    "in_context",
    "interpolation",
    "load",
    "loss_named",
    "testing",
    "tolerance",
    "tolerances",
    "unchecked",
    "zoo",
]
