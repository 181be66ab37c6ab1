"""The primitives as Triton kernels, for GPUs (``iceform[gpu]``).

One file per primitive; :mod:`~iceform.run.triton.look_up` is the look-up that they share.
Tables with graded tokens are read whole. With ``TRITON_INTERPRET=1`` in the environment the
kernels run on the CPU, slowly.
"""

from iceform.run.triton.extremes import extremes as extremes
from iceform.run.triton.heads import attend as attend
from iceform.run.triton.heads import can_attend as can_attend
from iceform.run.triton.interpolation import interpolate as interpolate
from iceform.run.triton.projection import project as project
from iceform.run.triton.reading import can_norm as can_norm
from iceform.run.triton.reading import count_nonzero as count_nonzero
from iceform.run.triton.reading import longest as longest
from iceform.run.triton.reading import norm as norm
from iceform.run.triton.reading import read as read
from iceform.run.triton.reading import seen_together as seen_together
from iceform.run.triton.residuals import Launch as Launch
from iceform.run.triton.residuals import residual_sum as residual_sum
from iceform.run.triton.steps import advance as advance
from iceform.run.triton.support import can_look_up as can_look_up
from iceform.run.triton.support import can_run as can_run
from iceform.run.triton.support import can_sum as can_sum
from iceform.run.triton.support import interpreted as interpreted
from iceform.run.triton.support import require as require
from iceform.run.triton.support import should_project as should_project
