"""scikit-learn estimators that run on one frozen attention layer (needs ``iceform[sklearn]``).

``fit`` writes prompts and loops the frozen machine, ``predict`` runs it. After ``fit`` every
estimator has ``certificate_`` (how far its numbers can be from the exact algorithm's), ``digest_``
(SHA-256 of the frozen weights) and ``n_passes_``. Parameters have scikit-learn's names and meaning.
"""

try:
    import sklearn  # noqa: F401
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "iceform.sklearn needs scikit-learn: pip install 'iceform[sklearn]'", name=missing.name
    ) from missing

from iceform.sklearn._components import InContextPCA
from iceform.sklearn._linear import (
    InContextElasticNet,
    InContextHuberRegressor,
    InContextLasso,
    InContextLinearRegression,
    InContextLogisticRegression,
    InContextRidge,
)
from iceform.sklearn._neighbors import (
    InContextKernelRegressor,
    InContextKNeighborsClassifier,
    InContextKNeighborsRegressor,
)

__all__ = [
    "InContextElasticNet",
    "InContextHuberRegressor",
    "InContextKNeighborsClassifier",
    "InContextKNeighborsRegressor",
    "InContextKernelRegressor",
    "InContextLasso",
    "InContextLinearRegression",
    "InContextLogisticRegression",
    "InContextPCA",
    "InContextRidge",
]
