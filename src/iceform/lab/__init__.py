"""Trained and compiled networks of one shape: made, trained, probed and broken alike.

A network that does gradient descent in context by construction, in the shape of one that was
trained to, is what a probe or a transplant can be calibrated on::

    import iceform as ice

    shape = ice.lab.GPT2Shape(dim=2, layers=4, width=64, heads=4, positions=32)
    primal, dual = ice.lab.compiled("primal", shape), ice.lab.compiled("dual", shape)
    print(primal.distance())

Nothing here is certified: distances are measured (:class:`MeasuredDistance`).
"""

from iceform.lab.algorithms import PrefixDescent, chebyshev_steps
from iceform.lab.analysis import (
    SHIFTS,
    by_context,
    curves,
    ends,
    line,
    named,
    nearest,
    probe,
    shifted,
    transplant,
)
from iceform.lab.circuits import DescentCircuit
from iceform.lab.model import (
    MeasuredDistance,
    TrainableNetwork,
    compiled,
    load_network,
    random_network,
)
from iceform.lab.shape import GPT2Shape
from iceform.lab.starts import STARTS, TrainingStart
from iceform.lab.tables import LabTable
from iceform.lab.tasks import TASKS, InContextTask
from iceform.lab.training import BACKENDS, PRECISIONS, TrainedCell, TrainingPlan, profile, train

__all__ = [
    "BACKENDS",
    "PRECISIONS",
    "SHIFTS",
    "STARTS",
    "TASKS",
    "DescentCircuit",
    "GPT2Shape",
    "InContextTask",
    "LabTable",
    "MeasuredDistance",
    "PrefixDescent",
    "TrainableNetwork",
    "TrainedCell",
    "TrainingPlan",
    "TrainingStart",
    "by_context",
    "chebyshev_steps",
    "compiled",
    "curves",
    "ends",
    "line",
    "load_network",
    "named",
    "nearest",
    "probe",
    "profile",
    "random_network",
    "shifted",
    "train",
    "transplant",
]
