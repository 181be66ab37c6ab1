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
    """Base class of everything iceform raises on purpose.

    Examples
    --------
    >>> try:
    ...     ice.bench.load("lion")
    ... except ice.errors.IceformError as refused:
    ...     print(refused)
    no case is called 'lion', and no folder; there are ...
    """


class BoundError(IceformError, ValueError):
    """Data outside the certified domain (NaN and infinity included).

    Examples
    --------
    >>> try:
    ...     ice.targets.LinearDescent(dim=1, steps=2, reach=-1.0)
    ... except ice.errors.BoundError as refused:
    ...     print(refused)
    reach must be positive and finite, got -1.0
    """


class PrecisionWarning(UserWarning):
    """Something is less precise than was asked for; the message says where, and what mends it."""


class PrecisionError(IceformError, ValueError):
    """An eps that cannot be certified; ``best`` is the smallest error that can.

    Examples
    --------
    >>> try:
    ...     ice.Interpolant.fit(torch.tanh, -1, 1, eps=0.0)
    ... except ice.errors.PrecisionError as refused:
    ...     print(refused)
    eps must be positive (or None for the best there is), got 0.0
    """

    def __init__(self, message: str, best: float | None = None) -> None:
        super().__init__(message)
        self.best = best


class ShapeError(IceformError, ValueError):
    """A tensor of the wrong shape.

    Examples
    --------
    >>> try:
    ...     ice.targets.LinearDescent(dim=0, steps=2)
    ... except ice.errors.ShapeError as refused:
    ...     print(refused)
    dim must be a whole number of at least 1, got 0
    """


class DtypeError(IceformError, ValueError, TypeError):
    """A tensor of the wrong dtype, or tensors of different dtypes.

    Examples
    --------
    >>> try:
    ...     ice.targets.LinearDescent(dim=1, steps=2, dtype="float33")
    ... except ice.errors.DtypeError as refused:
    ...     print(refused)
    dtype is "float64" or "float32", got 'float33'
    """


class DeviceError(IceformError, ValueError):
    """Tensors on different devices."""


class CapacityError(IceformError, MemoryError):
    """Something that would not fit: what it needs, what there is, what to change."""


class ProgramError(IceformError, ValueError):
    """A function, loss or option that cannot be turned into a prompt.

    Examples
    --------
    >>> try:
    ...     ice.paper.GradientStep("hubber", dim=1, samples=2)
    ... except ice.errors.ProgramError as refused:
    ...     print(refused)
    no loss is called 'hubber'; the library has ...
    """


class ParameterError(IceformError, ValueError, TypeError):
    """A parameter of another library that has no meaning here: which, why, and what to do.

    Examples
    --------
    >>> try:
    ...     ice.targets.LinearDescent(dim="two", steps=2)
    ... except ice.errors.ParameterError as refused:
    ...     print(refused)
    LinearDescent: dim is 'two', not a whole number
    """


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
    ...     ice.Formula.parse("tanh(q)")
    ... except ice.errors.FormulaError as refused:
    ...     print(refused)
    unknown name `q`; ...
    """

    def __init__(self, message: str, position: int | None = None) -> None:
        super().__init__(message)
        self.position = position


class IntegrityError(IceformError, ValueError):
    """What was changed: a saved file, frozen weights, or data between two passes over them.

    Examples
    --------
    >>> try:
    ...     ice.load("no such folder")
    ... except ice.errors.IntegrityError as refused:
    ...     print(refused)
    no such folder cannot be read: there is no such folder
    """


class TargetError(IceformError, ValueError):
    """Something that a stock architecture cannot do: what, why, and which one can.

    Examples
    --------
    >>> try:
    ...     ice.targets.write("gpt3", ice.targets.LinearDescent(1, 1), "folder")
    ... except ice.errors.TargetError as refused:
    ...     print(refused)
    no target is called 'gpt3'; there are albert, bert, gpt2, gpt_neox, llama
    """
