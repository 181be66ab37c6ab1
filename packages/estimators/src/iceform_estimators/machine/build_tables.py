"""The tables that ship with the library: ``make tables`` writes them.

They are what estimators ask for in a first fit, and common activations on ranges of a few powers of
two. A table is kept by :mod:`iceform.tables.storage` wherever ``ICEFORM_CACHE`` says: here,
in the library's own folder.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import torch
from torch.nn import functional as F

from iceform.errors import PrecisionError
from iceform.expressions import loss_named
from iceform.tables import SHIPPED, Interpolant
from iceform_estimators.machine.stream import CLIP, CLIP_SQUARED, Machine, ScalarTable, table_of
from iceform_estimators.tuning import CORNER

ACTIVATIONS = {
    "tanh": torch.tanh, "sigmoid": torch.sigmoid, "relu": torch.relu, "gelu": F.gelu,
    "silu": F.silu, "softplus": F.softplus, "sin": torch.sin,
}  # fmt: skip
_RANGES = (4, 8)
_EPS = (1e-6, 1e-8)
_REACHES = tuple(2.0**k for k in range(-2, 8))  # of scaled residuals and margins
_LOSSES = ("logistic", "squared_hinge", "absolute", "hinge")


def tables() -> Iterator[tuple[ScalarTable, float]]:
    """Tables of losses, and how far out."""
    tokens = Machine().tokens
    found = [CLIP, CLIP_SQUARED, *(table_of(loss_named(name), tokens) for name in _LOSSES)]
    found.append(table_of(loss_named("quantile", quantile=0.5, width=CORNER), tokens))
    for table in found:
        for reach in _REACHES:
            yield table, reach


def fits() -> Iterator[Callable[[], Interpolant]]:
    """What makes each of them, those of activations among them."""
    for table, reach in tables():
        yield partial(table.on, reach)
    for f in ACTIVATIONS.values():
        for reach in _RANGES:
            for eps in _EPS:
                yield partial(Interpolant.fit, f, -reach, reach, eps)


def main() -> None:
    """Write them anew."""
    shutil.rmtree(SHIPPED, ignore_errors=True)
    os.environ["ICEFORM_CACHE"] = str(SHIPPED)
    for fit in fits():
        with suppress(PrecisionError):  # a kink wants more tokens than there are
            fit()
    size = sum(path.stat().st_size for path in SHIPPED.iterdir())
    print(f"{len(list(SHIPPED.iterdir()))} tables, {size / 10**6:.1f} MB, in {SHIPPED}")


if __name__ == "__main__":
    main()
