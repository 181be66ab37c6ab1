"""The primitives as Triton kernels, for GPUs (``iceform[gpu]``).

One file per primitive; :mod:`~iceform.backends.triton.look_up` is the look-up that they share.
Tables with graded tokens are read whole. With ``TRITON_INTERPRET=1`` in the environment the
kernels run on the CPU, slowly.
"""

from iceform.backends.triton.extremes import extremes
from iceform.backends.triton.heads import attend, can_attend
from iceform.backends.triton.interpolation import interpolate
from iceform.backends.triton.projection import Tiling, project
from iceform.backends.triton.reading import (
    can_norm,
    count_nonzero,
    longest,
    norm,
    read,
    seen_together,
)
from iceform.backends.triton.residuals import Launch, residual_sum
from iceform.backends.triton.steps import advance
from iceform.backends.triton.support import (
    can_look_up,
    can_run,
    can_sum,
    interpreted,
    require,
    should_project,
)

__all__ = [
    "Launch",
    "Tiling",
    "advance",
    "attend",
    "can_attend",
    "can_look_up",
    "can_norm",
    "can_run",
    "can_sum",
    "count_nonzero",
    "extremes",
    "interpolate",
    "interpreted",
    "longest",
    "norm",
    "project",
    "read",
    "require",
    "residual_sum",
    "seen_together",
    "should_project",
]
