"""Level 2: one theorem per file, all subclasses of Emulator."""

from iceform.constructions import verification as verification  # makes itself known
from iceform.constructions.attention_head import AttentionHead
from iceform.constructions.base import Emulator, Plan
from iceform.constructions.compact_step import CompactStep
from iceform.constructions.descent import GradientDescent
from iceform.constructions.domain import Domain
from iceform.constructions.gradient_step import GradientStep
from iceform.constructions.hopfield import HopfieldMap, HopfieldResidual, HopfieldStep
from iceform.constructions.least_squares import LeastSquares, RidgeRegression
from iceform.constructions.linear import LinearLayer
from iceform.constructions.mlp import MLP
from iceform.constructions.residual import Rates, ResidualEmulator, plan_look_ups, room_for
from iceform.constructions.sample_gradients import ResidualMap, SampleGradients
from iceform.constructions.schedules import SCHEDULES, Schedule, chebyshev_steps, steps_needed
from iceform.constructions.split_head import SplitAttentionHead
from iceform.constructions.truncated_linear import TruncatedLinear

__all__ = [
    "MLP",
    "SCHEDULES",
    "AttentionHead",
    "CompactStep",
    "Domain",
    "Emulator",
    "GradientDescent",
    "GradientStep",
    "HopfieldMap",
    "HopfieldResidual",
    "HopfieldStep",
    "LeastSquares",
    "LinearLayer",
    "Plan",
    "Rates",
    "ResidualEmulator",
    "ResidualMap",
    "RidgeRegression",
    "SampleGradients",
    "Schedule",
    "SplitAttentionHead",
    "TruncatedLinear",
    "chebyshev_steps",
    "plan_look_ups",
    "room_for",
    "steps_needed",
]
