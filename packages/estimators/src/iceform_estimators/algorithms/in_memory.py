"""What algorithms that keep all samples in one prompt share."""

from __future__ import annotations

import math
import sys

from torch import Tensor

from iceform.arithmetic import at_least
from iceform.errors import BoundError, ProgramError
from iceform_estimators.machine import ArraySource, Source
from iceform_estimators.tuning import SMALL, SMALLEST

_LARGEST = 1 / SMALLEST
_LARGEST_LABEL = sys.float_info.max / 2**60  # sums of labels stay finite
FARTHEST = 1 / SMALL  # queries are answered up to this many radii of the training samples


def unweighed(source: Source, what: str) -> Source:
    """Refuse weights that would be passed over."""
    if source.weighed:
        raise ProgramError(f"{what} takes no weights of samples; give the source none")
    return source


def in_memory(source: Source, *, weighed: bool = False) -> ArraySource:
    """Refuse data that are not there at once, and weights where they are not asked for."""
    if not weighed:
        unweighed(source, "an average of samples in one prompt")
    if not isinstance(source, ArraySource):
        raise ProgramError(
            "this needs all samples at once, as neighbours and kernels do, which keep them in one "
            "prompt; pass arrays, X.compute() of a Dask collection"
        )
    return source


def centred(x: Tensor) -> tuple[Tensor, Tensor, float]:
    """Samples less their mean, the mean, and the length of the longest.

    The mean of samples in one place is that place to the last digit.

    Raises
    ------
    BoundError
        Where squares of distances would overflow or underflow.
    """
    center = x[0].clone() if bool((x == x[0]).all()) else x.mean(0)
    moved = x - center
    extent = float(moved.abs().max())
    if not (extent == 0 or SMALLEST <= extent <= _LARGEST):
        raise BoundError(
            f"samples lie up to {extent:.3g} from their mean, squared distances need "
            f"{SMALLEST:.0e} to {_LARGEST:.0e}; multiply the samples by a power of two"
        )
    return moved, center, float(moved.norm(dim=1).max())


def check_labels(y: Tensor) -> float:
    """The largest label; refused where sums of labels would overflow."""
    size = float(y.abs().max())
    if not size <= _LARGEST_LABEL:
        raise BoundError(
            f"max |y| is {size:.3g}, averages are certified up to {_LARGEST_LABEL:.0e}; divide the "
            "labels by a power of two"
        )
    return size


def check_near(points: Tensor, center: Tensor, radius: float) -> Tensor:
    """Points less the center; refused where they are farther out than answers are certified."""
    q = points - center
    far = float(q.norm(dim=1).max()) if len(q) else 0.0
    # Samples in one place are equally near to whatever is asked.
    if not far <= (FARTHEST * radius or math.inf):
        raise BoundError(
            f"a query lies {far:.4g} from the samples' mean, answers are certified up to "
            f"{at_least(FARTHEST * radius, '.4g')}; add samples out there, or bring the query "
            "closer"
        )
    return q
