"""Features: names for what a token holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

__all__ = ["Features"]


@dataclass(frozen=True)
class Features(Mapping[str, slice]):
    """Named, contiguous blocks of the feature axis, in order."""

    sizes: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, **sizes: int) -> Features:
        """Blocks of the given sizes, in the order given."""
        return cls(tuple(sizes.items()))

    @property
    def total(self) -> int:
        """The number of features."""
        return sum(size for _, size in self.sizes)

    def __getitem__(self, name: str) -> slice:
        start = 0
        for other, size in self.sizes:
            if other == name:
                return slice(start, start + size)
            start += size
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def names(self) -> list[str]:
        """One name per feature: ``x[0]``, ``x[1]``, ..."""
        return [
            name if size == 1 else f"{name}[{j}]" for name, size in self.sizes for j in range(size)
        ]
