"""scikit-learn estimators that run on one frozen attention layer (needs ``iceform[sklearn]``).

One for every algorithm that runs on a table, made from its record. ``fit`` writes prompts and loops
the frozen machine, ``predict`` runs it. After ``fit`` every estimator has ``certificate_`` (how far
its numbers can be from the exact algorithm's), ``attestation_`` (which weights ran), ``ledger_``
(what was computed where), ``digest_`` and ``n_passes_``. Parameters have scikit-learn's names and
meaning. An algorithm defined elsewhere has its estimator here too.
"""

from typing import Any

try:
    import sklearn  # noqa: F401
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "iceform.sklearn needs scikit-learn: pip install 'iceform[sklearn]'", name=missing.name
    ) from missing

from iceform.algorithms import kinds
from iceform.sklearn._generate import estimator_of as estimator_of

__all__ = sorted(kind.estimator for kind in kinds())


def __getattr__(name: str) -> Any:
    """The estimator of this name."""
    for kind in kinds():
        if kind.estimator == name:
            return estimator_of(kind)
    raise AttributeError(f"module 'iceform.sklearn' has no attribute {name!r}")
