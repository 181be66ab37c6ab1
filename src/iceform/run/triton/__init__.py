"""The primitives as Triton kernels, for GPUs (``iceform[gpu]``).

One file per primitive; :mod:`~iceform.run.triton.look_up` is the look-up that they share.
Tables with graded tokens are read whole. With ``TRITON_INTERPRET=1`` in the environment the
kernels run on the CPU, slowly.
"""

from iceform.run.triton.extremes import extremes
from iceform.run.triton.heads import attend, can_attend
from iceform.run.triton.interpolation import interpolate
from iceform.run.triton.projection import project
from iceform.run.triton.reading import (
    can_norm,
    count_nonzero,
    longest,
    norm,
    read,
    seen_together,
)
from iceform.run.triton.residuals import Launch, residual_sum
from iceform.run.triton.steps import advance
from iceform.run.triton.support import (
    can_look_up,
    can_run,
    can_sum,
    interpreted,
    require,
    should_project,
)

__all__ = [
    "Launch",
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
