"""How a forward pass is evaluated.

``dense`` multiplies the literal matrices: it is the definition. ``fused`` uses what the
construction knows about them, never holds more than a chunk of grid tokens, and agrees with the
definition to rounding.
"""

from iceform.backends.registry import BACKENDS, Rounding, resolve

__all__ = ["BACKENDS", "Rounding", "resolve"]
