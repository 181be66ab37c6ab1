"""A benchmark of circuit discovery with exact effects: networks whose every edge is known.

``cases()`` names them, ``load`` makes or reads one, ``score`` says what a method's answer is worth.
"""

from iceform.bench.board import leaderboard
from iceform.bench.building import CaseSpec, Pairs, Truth
from iceform.bench.case import Case
from iceform.bench.catalogue import cases, load, nearest_reference, score
from iceform.bench.methods import METHODS
from iceform.bench.programs import BenchProgram, program, programs
from iceform.bench.scoring import Scores
from iceform.bench.subspaces import SUBSPACE_METHODS, Site, score_subspace, sites

__all__ = [
    "METHODS",
    "SUBSPACE_METHODS",
    "BenchProgram",
    "Case",
    "CaseSpec",
    "Pairs",
    "Scores",
    "Site",
    "Truth",
    "cases",
    "leaderboard",
    "load",
    "nearest_reference",
    "program",
    "programs",
    "score",
    "score_subspace",
    "sites",
]
