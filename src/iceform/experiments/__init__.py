"""The paper's numerical studies: as published, as we read them, our own, constructed."""

from iceform.experiments.study import COLUMNS, SCALES, Plan, Record, Spec, Study
from iceform.experiments.sweeps import STUDIES, Request, load_records, run
from iceform.experiments.training import Stack, Trainer, Training

__all__ = [
    "COLUMNS",
    "SCALES",
    "STUDIES",
    "Plan",
    "Record",
    "Request",
    "Spec",
    "Stack",
    "Study",
    "Trainer",
    "Training",
    "load_records",
    "run",
]
