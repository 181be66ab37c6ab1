"""Level 2: one theorem per file, all subclasses of Emulator."""

from iceform.paper import library as library
from iceform.paper.attention_head import AttentionHead
from iceform.paper.base import Emulator, Plan
from iceform.paper.compact_step import CompactStep
from iceform.paper.descent import GradientDescent
from iceform.paper.domain import Domain
from iceform.paper.gradients import GradientStep, ResidualMap, SampleGradients
from iceform.paper.hopfield import HopfieldMap, HopfieldResidual, HopfieldStep
from iceform.paper.least_squares import LeastSquares, RidgeRegression
from iceform.paper.library import PromptLibrary
from iceform.paper.mlp import MLP
from iceform.paper.one_layer_least_squares import OneLayerLeastSquares, OneLayerRidge
from iceform.paper.residual import Rates, ResidualEmulator, plan_look_ups, room_for
from iceform.paper.rows import LinearLayer
from iceform.paper.schedules import SCHEDULES, Schedule, chebyshev_steps, steps_needed
from iceform.paper.split_head import SplitAttentionHead
from iceform.paper.truncated_linear import TruncatedLinear

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
    "OneLayerLeastSquares",
    "OneLayerRidge",
    "Plan",
    "PromptLibrary",
    "Rates",
    "ResidualEmulator",
    "ResidualMap",
    "RidgeRegression",
    "SampleGradients",
    "Schedule",
    "SplitAttentionHead",
    "TruncatedLinear",
    "chebyshev_steps",
    "library",
    "plan_look_ups",
    "room_for",
    "steps_needed",
]
