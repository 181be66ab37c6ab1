"""Pictures of what a softmax look-up does, as matplotlib figures.

Each function draws what it is given and returns a new :class:`matplotlib.figure.Figure`; nothing
touches pyplot or a display. ``python -m iceform.plots FOLDER`` writes the README's picture.
"""

from iceform.plots.attention_maps import attention
from iceform.plots.descents import trajectories
from iceform.plots.error_study import ErrorCurve, error_against_tokens, error_curves
from iceform.plots.lab_tables import lab_table
from iceform.plots.lookups import lookup_weights
from iceform.plots.margin_bars import margins
from iceform.plots.memory_maps import memory
from iceform.plots.prompt_maps import features
from iceform.plots.themes import DARK, LIGHT, Theme, png

__all__ = [
    "DARK",
    "LIGHT",
    "ErrorCurve",
    "Theme",
    "attention",
    "error_against_tokens",
    "error_curves",
    "features",
    "lab_table",
    "lookup_weights",
    "margins",
    "memory",
    "png",
    "trajectories",
]
