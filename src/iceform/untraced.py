"""What a compiler must not look into, marked without loading the compiler.

``torch.compiler.disable`` loads torch._dynamo as soon as it decorates something, which takes as
long as importing the rest of torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

__all__ = ["untraced"]

P = ParamSpec("P")
R = TypeVar("R")


def untraced(function: Callable[P, R]) -> Callable[P, R]:
    """As ``torch.compiler.disable``; the compiler is loaded by whoever compiles."""
    disabled: list[Callable[P, R]] = []

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        compiler = sys.modules.get("torch._dynamo")
        if compiler is None:
            return function(*args, **kwargs)
        if not disabled:
            disabled.append(compiler.disable(function))
        return disabled[0](*args, **kwargs)

    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    return call
