"""Estimators that run on one frozen attention layer, for people with a table.

One for every algorithm that runs on a table, made from its record. ``fit`` writes prompts and loops
the frozen machine, ``predict`` runs it. After ``fit`` every estimator has ``certificate_`` (how far
its numbers can be from the exact algorithm's), ``attestation_`` (which weights ran), ``ledger_``
(what was computed where), ``digest_`` and ``n_passes_``. Parameters have scikit-learn's names and
meaning. An algorithm defined elsewhere has its estimator here too.

Beneath them: :class:`Machine`, the frozen network that every prompt runs on, ``algorithms`` with
their records, and :func:`certify_minimiser`, which proves how far any coefficients are from the
minimiser of a loss.
"""

from typing import TYPE_CHECKING, Any

from iceform_estimators import algorithms
from iceform_estimators.algorithms import kinds
from iceform_estimators.machine import ArraySource, Machine
from iceform_estimators.minimiser import certify_minimiser

if TYPE_CHECKING:
    from iceform_estimators._generate import estimator_of as estimator_of

__version__ = "0.3.0"

ESTIMATORS = sorted(kind.estimator for kind in kinds() if kind.estimator)
__all__ = [
    "ArraySource", "Machine", "algorithms", "certify_minimiser", *ESTIMATORS
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """The estimator of this name."""
    if name == "estimator_of":
        from iceform_estimators._generate import estimator_of

        return estimator_of
    for kind in kinds():
        if kind.estimator == name:
            from iceform_estimators._generate import estimator_of

            return estimator_of(kind)
    raise AttributeError(f"module 'iceform_estimators' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
