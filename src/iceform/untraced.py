"""What a compiler must not look into, marked without loading the compiler.

``torch.compiler.disable`` loads torch._dynamo as soon as it decorates something, which takes as
long as importing the rest of torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar, cast

__all__ = ["untraced"]

P = ParamSpec("P")
R = TypeVar("R")


def untraced(function: Callable[P, R]) -> Callable[P, R]:
    """As ``torch.compiler.disable``; the compiler is loaded by whoever compiles."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        run = function if "torch._dynamo" not in sys.modules else _disabled(function)
        return run(*args, **kwargs)

    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    return call


@cache
def _disabled(function: Callable[P, R]) -> Callable[P, R]:
    import torch

    return cast("Callable[P, R]", torch.compiler.disable(cast("Any", function)))
