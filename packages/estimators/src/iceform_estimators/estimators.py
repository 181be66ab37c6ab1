"""The fifteen estimators: scikit-learn's names and parameters, one frozen attention layer.

Each names its algorithm, whose record has the ranges of its parameters, and lists the parameters
that its family does not have. What all of them leave
behind after ``fit`` is in :class:`~iceform_estimators._base.InContextEstimator`.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from iceform_estimators import algorithms
from iceform_estimators._base import Batches, Chances, LinearEstimator, Separator, Sparse
from iceform_estimators._families import AveragingEstimator, Components, NeighbourAverage, Vote
from iceform_estimators.tuning import HUBER_ALPHA, HUBER_EPSILON, TOLERANCE


class InContextLinearRegression(LinearEstimator):
    r"""Least squares, :math:`\min_{w,b} \|Xw + b - y\|^2`.

    Where columns depend on each other it is the solution of least norm, and the certificate speaks
    of the fitted values.

    Parameters
    ----------
    fit_intercept
        Whether there is an intercept; it is not penalised.
    tol
        Length of the last step, relative to the coefficients.
    max_iter
        Most passes of the frozen machine over the data.
    precondition
        How steps are scaled: "whiten" (Newton's method), "diagonal" or "none" (momentum).
    positive
        Whether coefficients must not be negative.
    device
        Where passes run; where the samples lie, if they are tensors, by default.
    backend
        How passes are evaluated: "auto", "literal" (every matrix multiplied), ...
    peer
        Parameters that scikit-learn's class has beside these: taken where they ask for nothing,
        refused with the reason where they do. So for every estimator here.

    Examples
    --------
    >>> from iceform_estimators import InContextLinearRegression
    >>> model = InContextLinearRegression().fit([[0.0], [1.0], [2.0]], [1.0, 3.0, 5.0])
    >>> print(model.coef_.round(6), model.certificate_.error < 1e-9)
    [2.] True
    """

    algorithm = algorithms.LinearRegression

    fit_intercept: bool = field(default=True, kw_only=False)
    positive: bool = False


class InContextRidge(Batches):
    r"""Ridge regression, :math:`\min_{w,b} \|Xw + b - y\|^2 + \alpha \|w\|^2`.

    ``partial_fit`` takes its data in batches.

    Parameters
    ----------
    alpha
        The penalty's weight; one for each column where labels have several.
    fit_intercept, tol, max_iter, precondition, positive, device, backend, peer
        As for :class:`InContextLinearRegression`.

    Examples
    --------
    >>> from iceform_estimators import InContextRidge
    >>> model = InContextRidge(alpha=2.0).fit([[-1.0], [0.0], [1.0]], [-2.0, 0.0, 2.0])
    >>> print(model.coef_.round(6), model.attestation_.ok)
    [1.] True
    """

    algorithm = algorithms.Ridge

    alpha: Any = field(default=1.0, kw_only=False)
    positive: bool = False


class InContextLasso(Sparse):
    r"""Lasso, :math:`\min \frac{1}{2n} \|Xw + b - y\|^2 + \alpha\|w\|_1`.

    Coefficients that are 0 are proven to be. ``dual_gap_`` says how much lower the objective may
    be.

    Parameters
    ----------
    alpha
        The penalty's weight.
    warm_start
        Whether a fit begins where the last one ended.
    fit_intercept, tol, max_iter, precondition, positive, device, backend, peer
        As for :class:`InContextLinearRegression`.

    Examples
    --------
    >>> from iceform_estimators import InContextLasso
    >>> X = [[1.0, 0.1], [-1.0, 0.2], [2.0, -0.1], [-2.0, -0.2]]
    >>> InContextLasso(alpha=0.1).fit(X, [1.0, -1.0, 2.0, -2.0]).coef_.round(3)
    array([0.96, 0.  ])
    """

    algorithm = algorithms.Lasso

    alpha: float = field(default=1.0, kw_only=False)
    max_iter: int | None = 20_000
    positive: bool = False
    warm_start: bool = False


class InContextElasticNet(Sparse):
    r"""Elastic net, both penalties.

    .. math:: \min \frac1{2n} \|Xw + b - y\|^2 + \alpha\Big(\rho\|w\|_1 + \frac{1-\rho}2\|w\|^2\Big)

    Parameters
    ----------
    alpha
        The weight of both penalties.
    l1_ratio
        :math:`\rho`, the share of absolute values.
    warm_start
        Whether a fit begins where the last one ended.
    fit_intercept, tol, max_iter, precondition, positive, device, backend, peer
        As for :class:`InContextLinearRegression`.

    Examples
    --------
    >>> from iceform_estimators import InContextElasticNet
    >>> X = [[1.0, 0.1], [-1.0, 0.2], [2.0, -0.1], [-2.0, -0.2]]
    >>> InContextElasticNet(alpha=0.1).fit(X, [1.0, -1.0, 2.0, -2.0]).coef_.round(3)
    array([0.961, 0.   ])
    """

    algorithm = algorithms.ElasticNet

    alpha: float = field(default=1.0, kw_only=False)
    l1_ratio: float = 0.5
    max_iter: int | None = 20_000
    positive: bool = False
    warm_start: bool = False


class InContextHuberRegressor(LinearEstimator):
    r"""Regression that outliers do not pull, with its scale, as ``HuberRegressor`` has it.

    .. math:: \min_{w,b,\sigma} \sum_i \Big(\sigma + H_\epsilon\Big(\frac{w \cdot x_i + b -
        y_i}\sigma\Big)\sigma\Big) + \alpha\|w\|^2

    Parameters
    ----------
    epsilon
        Residuals beyond so many scales count as outliers.
    alpha
        The penalty's weight.
    warm_start
        Whether a fit begins where the last one ended.
    fit_intercept, tol, max_iter, precondition, device, backend, peer
        As for :class:`InContextLinearRegression`.

    Examples
    --------
    >>> from iceform_estimators import InContextHuberRegressor
    >>> X, y = [[float(i)] for i in range(8)], [0.1, 0.9, 2.1, 2.9, 4.1, 4.9, 6.1, 70.0]
    >>> model = InContextHuberRegressor().fit(X, y)
    >>> print(abs(model.coef_[0] - 1) < 0.1, model.outliers_[-1])
    True True
    """

    algorithm = algorithms.Huber

    epsilon: float = field(default=HUBER_EPSILON, kw_only=False)
    alpha: float = HUBER_ALPHA
    warm_start: bool = False


class InContextQuantileRegressor(Sparse):
    r"""A quantile's line.

    .. math:: \min \frac1n \sum_i \rho_q(y_i - w \cdot x_i - b) + \alpha\|w\|_1

    It is found by rounded corners, narrower and narrower, until the samples that it goes through
    are proven; where there is no such line the corner stays rounded, and the certificate says over
    what width.

    Parameters
    ----------
    quantile
        The share of samples below the line.
    alpha
        The penalty's weight.
    width
        Over which the corner is rounded, relative to the labels' spread; None for a sharp one.
    fit_intercept, tol, max_iter, precondition, device, backend, peer
        As for :class:`InContextLinearRegression`.

    Examples
    --------
    >>> from iceform_estimators import InContextQuantileRegressor
    >>> X, y = [[0.0], [1.0], [2.0], [3.0], [4.0]], [0.0, 1.0, 2.0, 3.0, 40.0]
    >>> InContextQuantileRegressor(0.5).fit(X, y).predict([[1.5]]).round(6)
    array([1.5])
    """

    algorithm = algorithms.Quantile

    quantile: float = field(default=0.5, kw_only=False)
    alpha: float = 0.0
    width: float | None = None


class InContextExpectileRegressor(LinearEstimator):
    """An expectile's line: least squares that weighs samples above it by ``expectile``.

    Where a quantile splits the samples' number, an expectile splits their distances: those above
    the line add up to ``1 - expectile`` of all. Without a penalty, of many solutions it is the one
    of least norm.

    Parameters
    ----------
    expectile
        The share of the distances below the line.
    alpha
        The penalty's weight.
    fit_intercept, tol, max_iter, precondition, device, backend, peer
        As for :class:`InContextLinearRegression`.

    Examples
    --------
    >>> from iceform_estimators import InContextExpectileRegressor
    >>> X, y = [[0.0], [0.0], [1.0], [1.0]], [0.0, 4.0, 0.0, 4.0]
    >>> InContextExpectileRegressor(0.75).fit(X, y).predict([[0.5]]).round(6)
    array([3.])
    """

    algorithm = algorithms.Expectile

    expectile: float = field(default=0.5, kw_only=False)
    alpha: float = 0.0


class InContextPoissonRegressor(LinearEstimator):
    r"""Counts, :math:`\min \frac1n \sum_i (e^{z_i} - y_i z_i) + \frac\alpha2 \|w\|^2` with
    :math:`z = w \cdot x + b`. Predictions are :math:`e^z`.

    Parameters
    ----------
    alpha
        The penalty's weight.
    warm_start
        Whether a fit begins where the last one ended.
    fit_intercept, tol, max_iter, precondition, device, backend, peer
        As for :class:`InContextLinearRegression`.

    Examples
    --------
    >>> from iceform_estimators import InContextPoissonRegressor
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [1.0, 2.0, 4.0, 8.0]
    >>> InContextPoissonRegressor(alpha=0.0).fit(X, y).predict([[4.0]]).round(3)
    array([16.])
    """

    algorithm = algorithms.Poisson

    alpha: float = field(default=1.0, kw_only=False)
    warm_start: bool = False


class InContextLogisticRegression(Chances):
    r"""Logistic regression, :math:`\min C \sum_i \ln(1 + e^{-s_i(w \cdot x_i + b)}) + \|w\|^2/2`.

    More than two classes are fitted together, a row of coefficients for each, by
    :math:`\min C \sum_i (\ln \sum_k e^{z_{ik}} - z_{i y_i}) + \sum_k \|w_k\|^2/2` with
    :math:`z_{ik} = w_k \cdot x_i + b_k`.

    Parameters
    ----------
    C
        The weight of the samples against the penalty.
    warm_start
        Whether a fit begins where the last one ended.
    class_weight
        Factors of the samples' weights: a dict from classes, or "balanced" for
        n_samples / (n_classes * number of the class).
    fit_intercept, tol, max_iter, precondition, device, backend, peer
        As for :class:`InContextLinearRegression`.

    Examples
    --------
    >>> from iceform_estimators import InContextLogisticRegression
    >>> X, y = [[-2.0], [-1.0], [1.0], [2.0]], ["no", "no", "yes", "yes"]
    >>> model = InContextLogisticRegression().fit(X, y)
    >>> print(model.predict([[3.0]]), model.predict_proba([[0.0]]).round(6))
    ['yes'] [[0.5 0.5]]
    """

    algorithm = algorithms.Logistic

    C: float = field(default=1.0, kw_only=False)
    tol: float = TOLERANCE
    precondition: str = "whiten"
    warm_start: bool = False


class InContextLinearSVC(Separator):
    r"""Support vectors, :math:`\min C \sum_i \max(0, 1 - s_i(w \cdot x_i + b))^2 + \|w\|^2/2`.

    More than two classes are fitted one against the rest. The intercept is not penalised.

    Parameters
    ----------
    C
        The weight of the samples against the penalty.
    class_weight
        As for :class:`InContextLogisticRegression`.
    fit_intercept, tol, max_iter, precondition, device, backend, peer
        As for :class:`InContextLinearRegression`.

    Examples
    --------
    >>> from iceform_estimators import InContextLinearSVC
    >>> model = InContextLinearSVC().fit([[-2.0], [-1.0], [1.0], [2.0]], [0, 0, 1, 1])
    >>> model.predict([[-3.0], [3.0]])
    array([0, 1])
    """

    algorithm = algorithms.LinearSVM

    C: float = field(default=1.0, kw_only=False)
    tol: float = TOLERANCE
    precondition: str = "whiten"


class InContextPerceptron(Separator):
    r"""Rosenblatt's perceptron on all samples at once.

    :math:`w \leftarrow w + \frac1n \sum s_i x_i` over the samples with
    :math:`s_i w \cdot x_i \le 0`, until there are none.

    On data that a plane separates the mistakes end; on others the loop ends after ``max_iter``.

    Parameters
    ----------
    warm_start
        Whether a fit begins where the last one ended.
    class_weight
        As for :class:`InContextLogisticRegression`.
    fit_intercept, max_iter, device, backend, peer
        As for :class:`InContextLinearRegression`.

    Examples
    --------
    >>> from iceform_estimators import InContextPerceptron
    >>> model = InContextPerceptron().fit([[-2.0], [-1.0], [1.0], [2.0]], [0, 0, 1, 1])
    >>> model.predict([[-3.0], [3.0]])
    array([0, 1])
    """

    algorithm = algorithms.Perceptron

    fit_intercept: bool = field(default=True, kw_only=False)
    max_iter: int = 100
    warm_start: bool = False


class InContextKernelRegressor(AveragingEstimator):
    r"""Nadaraya and Watson's average of the labels, the near ones first.

    .. math:: \hat y(q) = \sum_i y_i e^{-\gamma\|q - x_i\|^2} / \sum_i e^{-\gamma\|q - x_i\|^2}

    ``error_bounds(X)`` says what each prediction may be off by.

    Parameters
    ----------
    gamma
        A number, "scott" for a bandwidth of n^(-1/(d + 4)) deviations, or "scale" for
        1 / (n_features X.var()).
    device, backend, peer
        As for :class:`InContextLinearRegression`.

    Examples
    --------
    >>> from iceform_estimators import InContextKernelRegressor
    >>> model = InContextKernelRegressor(gamma=1.0).fit([[0.0], [1.0]], [0.0, 2.0])
    >>> model.predict([[0.5]]).round(6)
    array([1.])
    """

    algorithm = algorithms.KernelRegression

    gamma: float | str = field(default="scott", kw_only=False)


class InContextKNeighborsRegressor(NeighbourAverage):
    """The mean label of the k nearest training samples of a query.

    Samples whose squared distances differ by less than about 1e-10 of the square of the extent of
    the query and all samples in question count as equally near, and the earlier one is taken.

    Parameters
    ----------
    n_neighbors
        k.
    weights
        "uniform", "distance" for inverse distances, or a function of distances.
    device, backend, peer
        As for :class:`InContextLinearRegression`.

    Examples
    --------
    >>> from iceform_estimators import InContextKNeighborsRegressor
    >>> model = InContextKNeighborsRegressor(2).fit([[0.0], [1.0], [5.0]], [0.0, 2.0, 9.0])
    >>> model.predict([[0.4]])
    array([1.])
    """

    algorithm = algorithms.KNeighbors


class InContextKNeighborsClassifier(Vote):
    """The most frequent class among the k nearest training samples.

    Parameters
    ----------
    n_neighbors, weights
        As for :class:`InContextKNeighborsRegressor`.
    device, backend, peer
        As for :class:`InContextLinearRegression`.

    Examples
    --------
    >>> from iceform_estimators import InContextKNeighborsClassifier
    >>> X, y = [[0.0], [1.0], [5.0], [6.0]], ["low", "low", "high", "high"]
    >>> print(InContextKNeighborsClassifier(2).fit(X, y).predict([[0.4], [5.4]]))
    ['low' 'high']
    """

    algorithm = algorithms.KNeighborsVote


class InContextPCA(Components):
    r"""Principal components, :math:`\max_v \|Xv\|` over unit v, each orthogonal to those before.

    ``components_`` has them as rows whose largest entry is positive; ``certificate_`` bounds the
    distance of each from the exact one, infinite where two variances agree.

    Parameters
    ----------
    n_components
        How many; all of them for None; a share of the variance to explain, or "mle".
    random_state
        Of the random starts, on which the components do not depend beyond rounding.
    whiten
        Whether coordinates along components are divided by their deviations.
    device, backend, peer
        As for :class:`InContextLinearRegression`.

    Examples
    --------
    >>> from iceform_estimators import InContextPCA
    >>> model = InContextPCA(1).fit([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    >>> model.components_.round(4)
    array([[0.7071, 0.7071]])
    """

    algorithm = algorithms.PCA

    n_components: int | float | str | None = field(default=None, kw_only=False)
    random_state: Any = None
    whiten: bool = False
