"""The exceptions iceform raises. Each message names the value, the limit and the fix."""

from __future__ import annotations

__all__ = [
    "BoundError",
    "CapacityError",
    "CompileError",
    "DeviceError",
    "DtypeError",
    "FormulaError",
    "IceformError",
    "IntegrityError",
    "ParameterError",
    "PrecisionError",
    "PrecisionWarning",
    "ProgramError",
    "ShapeError",
    "TargetError",
]


class IceformError(Exception):
    """Base class of everything iceform raises on purpose."""


class BoundError(IceformError, ValueError):
    """Data outside the certified domain (NaN and infinity included)."""


class PrecisionWarning(UserWarning):
    """Something is less precise than was asked for; the message says where, and what mends it."""


class PrecisionError(IceformError, ValueError):
    """An eps that cannot be certified; ``best`` is the smallest error that can."""

    def __init__(self, message: str, best: float | None = None) -> None:
        super().__init__(message)
        self.best = best


class ShapeError(IceformError, ValueError):
    """A tensor of the wrong shape."""


class DtypeError(IceformError, ValueError, TypeError):
    """A tensor of the wrong dtype, or tensors of different dtypes."""


class DeviceError(IceformError, ValueError):
    """Tensors on different devices."""


class CapacityError(IceformError, MemoryError):
    """Something that would not fit: what it needs, what there is, what to change."""


class ProgramError(IceformError, ValueError):
    """A function, loss or option that cannot be turned into a prompt."""


class ParameterError(IceformError, ValueError, TypeError):
    """A parameter of another library that has no meaning here: which, why, and what to do."""


class CompileError(ProgramError):
    """An algorithm that cannot be compiled; the message quotes the line that asks for it.

    ``file``, ``line`` and ``source`` are that line's file, number and text; None where it is all of
    the algorithm.
    """

    def __init__(
        self,
        message: str,
        file: str | None = None,
        line: int | None = None,
        source: str | None = None,
    ) -> None:
        super().__init__(message)
        self.file, self.line, self.source = file, line, source


class FormulaError(ProgramError):
    """A formula that cannot be read or used.

    ``position`` is the place in the text that was typed, from 0; None where it is all of it.

    Examples
    --------
    >>> try:
    ...     Formula("z + * 2")
    ... except FormulaError as error:
    ...     print(error.position)
    4
    """

    def __init__(self, message: str, position: int | None = None) -> None:
        super().__init__(message)
        self.position = position


class IntegrityError(IceformError, ValueError):
    """What was changed: a saved file, frozen weights, or data between two passes over them."""


class TargetError(IceformError, ValueError):
    """Something that a stock architecture cannot do: what, why, and which one can."""
