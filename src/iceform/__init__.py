"""iceform: in-context emulation with frozen transformers."""

from iceform import interpolation, programs, testing, tolerances, zoo
from iceform.attention import (
    Features,
    FrozenNetwork,
    HopfieldLayer,
    Lift,
    LiftedAttention,
    SoftmaxAttention,
)
from iceform.certificates import Certificate, Verification
from iceform.constructions import (
    LOSSES,
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
    Loss,
    Plan,
    Prompt,
    ResidualMap,
    RidgeRegression,
    SampleGradients,
    TruncatedLinear,
    loss_named,
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
from iceform.formulas import Formula
from iceform.interpolation import GradedGrid, Grid, Interpolant, ScalarFunction
from iceform.machine import Machine
from iceform.networks import InContext, in_context
from iceform.streaming import ArraySource, StreamMachine
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
    "RidgeRegression",
    "SampleGradients",
    "ScalarFunction",
    "ShapeError",
    "SoftmaxAttention",
    "StreamMachine",
    "TruncatedLinear",
    "Verification",
    "__version__",
    "export",
    "in_context",
    "interpolation",
    "load",
    "loss_named",
    "programs",
    "testing",
    "tolerance",
    "tolerances",
    "zoo",
]
