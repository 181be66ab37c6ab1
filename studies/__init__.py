"""The paper's numerical studies: as published, as we read them, our own, constructed."""

from studies.study import COLUMNS, SCALES, Plan, Record, Spec, Study
from studies.sweeps import STUDIES, Request, load_records, run
from studies.training import Stack, Trainer, Training

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
