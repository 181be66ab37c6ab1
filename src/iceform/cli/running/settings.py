"""What was asked for, refused where it cannot be had."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from iceform.algorithms import Algorithm
from iceform.backends import resolve
from iceform.errors import DeviceError
from iceform.validation import check_eps

__all__ = ["Settings", "check_device"]


@dataclass(frozen=True)
class Settings:
    """What was asked for.

    Attributes
    ----------
    entry
        The algorithm.
    options
        Its options that were given.
    device
        Where the passes run.
    eps
        The certified error to reach; None takes what the tolerance gives.
    test_share, seed
        The split.
    unknown, scale, strict
        As for :class:`iceform.tables.Preparation`.
    compare
        Whether scikit-learn runs beside.
    backend
        How passes are evaluated.
    """

    entry: type[Algorithm]
    options: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    eps: float | None = None
    test_share: float = 0.2
    seed: int = 0
    unknown: str = "error"
    scale: bool = True
    strict: bool = False
    compare: bool = True
    backend: str = "auto"

    def __post_init__(self) -> None:
        self.entry.check_options(self.options)
        for name, value in self.options.items():
            one = self.entry.options()[name]
            one.check(one.parse(value))
        resolve(self.backend)
        check_eps(self.eps)
        check_device(self.device)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        names = ("device", "eps", "test_share", "seed", "unknown", "scale", "strict", "backend")
        return {
            "algorithm": self.entry.name,
            "options": dict(self.options),
            **{name: getattr(self, name) for name in names},
        }


def check_device(name: str) -> torch.device:
    """A device that is there and has float64."""
    try:
        device = torch.device(name)
        torch.zeros(1, dtype=torch.float64, device=device)
    except (RuntimeError, AssertionError, TypeError) as refused:
        reason = " ".join(str(refused).split("\n")[0].split())
        raise DeviceError(f"device {name!r} cannot be used: {reason}; use cpu") from None
    if device.type == "meta":
        raise DeviceError("the meta device holds no numbers; use cpu")
    return device
