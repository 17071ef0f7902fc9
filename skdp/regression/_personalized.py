"""Personalised regression with differential privacy for one user, and its losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from skdp._inputs import as_columns
from skdp._validation import Seed, Split, check_option, target_bounds
from skdp.regression._personalized_base import PersonalizedBase
from skdp.regression._scores import ScoredRegressorMixin

# Convex losses of residuals that users minimise, and what has to hold of them.


# Public residuals that a loss is tried on: two signs, sixteen decades, and ordinary sizes.
_POINTS = np.unique(
    np.concatenate([s * 10.0 ** np.arange(-6.0, 7.0) for s in (-1, 1)] + [np.linspace(-5, 5, 41)])
)
_CLOSE = np.sqrt(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class QuantileLoss:
    """Loss whose minimiser is a quantile: ``quantile * r`` above 0, ``(quantile - 1) * r`` below.

    Parameters
    ----------
    quantile : float, default=0.5
        In (0, 1); 0.5 is (half of) the absolute error.

    Examples
    --------
    >>> from skdp.regression import DPPersonalizedRegressor, QuantileLoss
    >>> model = DPPersonalizedRegressor(1, loss=QuantileLoss(0.9))
    """

    quantile: float = 0.5
    homogeneous = True  # scales with the residual, so that users may use units of their own

    @property
    def bounds(self):
        """Return the smallest and the largest derivative."""
        return self.quantile - 1.0, self.quantile

    def value(self, residual):
        """Return the loss of each residual (target minus prediction)."""
        return np.maximum(self.quantile * residual, (self.quantile - 1.0) * residual)

    def derivative(self, residual):
        """Return the derivative of the loss at each residual."""
        return np.where(residual > 0, self.quantile, self.quantile - 1.0)


def check_row_loss(name, loss):
    """Refuse a loss that is not as declared; it is tried on public residuals."""

    def fail(why):
        raise ValueError(
            f"the 'loss' parameter of {name} must be 'squared', 'huber', 'absolute', or an object "
            "with value(residual), derivative(residual) and 'bounds' of its derivative (or a bound "
            f"'curvature' of its second one): {why}. Got {loss!r}."
        )

    if not all(callable(getattr(loss, each, None)) for each in ("value", "derivative")):
        fail("it does not have both methods")
    try:
        with np.errstate(all="ignore"):
            value, slope = (_tried(each) for each in (loss.value, loss.derivative))
            curvature, bounds = _declared(loss)
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        fail(error)
    steps = np.diff(_POINTS)
    chords = np.diff(value) / steps
    tolerance = _CLOSE * np.maximum(np.abs(slope[1:]), np.abs(slope[:-1])) + 1e-12
    rough = 1e-9 * np.maximum(np.abs(value[1:]), np.abs(value[:-1])) / steps
    if value.min() < 0:
        fail("it is negative somewhere")
    if np.any(np.diff(slope) < -tolerance):
        fail("its derivative decreases, so it is not convex")
    low, high = slope[:-1] - tolerance - rough, slope[1:] + tolerance + rough
    if np.any((chords < low) | (chords > high)):
        fail("its derivative is not the derivative of its value")
    if bounds is not None and not (bounds[0] <= slope.min() and slope.max() <= bounds[1]):
        fail(f"its derivative exceeds its bounds {bounds}")
    if curvature is not None and np.any(np.diff(slope) > curvature * steps * (1 + _CLOSE) + 1e-9):
        fail(f"its derivative grows faster than curvature={curvature:g}")


def _tried(function):
    """Return a function at the points; each value must come from its own point alone."""
    found = np.asarray(function(_POINTS.reshape(1, -1, 1)), np.float64)
    if found.shape != (1, len(_POINTS), 1) or not np.isfinite(found).all():
        raise ValueError("it must return one finite number for each residual of an array")
    alone = [np.asarray(function(np.full((1, 1, 1), r)))[0, 0, 0] for r in _POINTS]
    turned = np.asarray(function(_POINTS[::-1].reshape(-1, 1, 1)), np.float64).ravel()[::-1]
    if not all(np.allclose(found.ravel(), other, rtol=1e-12, atol=0) for other in (alone, turned)):
        raise ValueError("its value depends on other residuals, of other people")
    return found.ravel()


def _declared(loss):
    """Return the declared curvature and bounds of the derivative; one is needed."""
    curvature, bounds = getattr(loss, "curvature", None), getattr(loss, "bounds", None)
    if curvature is None and bounds is None:
        raise ValueError("it declares neither 'bounds' nor 'curvature'")
    if curvature is not None and not 0 < float(curvature) < np.inf:
        raise ValueError("its 'curvature' must be a positive number")
    if bounds is not None:
        low, high = (float(end) for end in bounds)
        if not -np.inf < low < high < np.inf:
            raise ValueError("its 'bounds' must be two finite numbers, low < high")
        bounds = low, high
    return curvature, bounds


class DPPersonalizedRegressor(ScoredRegressorMixin, PersonalizedBase):
    """Linear models of many users that share a subspace, with privacy for all rows of one user.

    The public attributes satisfy (`epsilon`, `delta`)-differential privacy for adding or removing
    (or replacing, see `adjacency`) all rows of one user, whatever the data are: each user sends a
    few messages of bounded norm, and only their noisy sums are released. Each user's own model (its
    head) is fitted to the public attributes and that user's rows, for that user alone (joint
    differential privacy). **The fitted object holds these private models: publish**
    ``public_copy()``.
    Not covered: ``predict`` for a fitted user, ``score``, and whether a user is known.

    Parameters
    ----------
    n_components : int or "auto", default=2
        Largest dimension of the shared subspace. Components far below the noise level are dropped,
        except the first. "auto" counts the eigenvalues above the noise level.
    epsilon : float, default=1.0
        Budget of one call of fit, for all rows of one user together; ``inf`` adds no noise.
    delta : float, default=1e-6
        Probability that the bound fails; well below one over the number of users.
    adjacency : {"add_remove", "replace"}, default="add_remove"
        With "add_remove" the number of users is private too; with "replace" it is public.
    budget_split : dict or "auto", default="auto"
        Budget fraction of each release. The keys depend on the other parameters; an error for a
        wrong key lists them.
    target_bounds : pair (low, high) or "auto", default="auto"
        Public bounds of the targets, to which predictions are truncated. In any case, a part of the
        budget is for the centre and scale of the targets. If these are not found, a search among
        the users' means takes half of the rest; a warning says if it fails too.
    whiten : bool, default=True
        Whether to whiten the scaled features by their covariance, which the release for the global
        model holds. False is for features without correlations.
    head_selection : {"private_vote", "subspace", "per_user"}, default="private_vote"
        How users fit their models. "private_vote": by the rule that noisy votes select.
        "subspace": inside the subspace. "per_user": by a mean of all rules, which each user weights
        by its own leave-one-out errors; this also applies if the votes show no best rule.
    loss : {"squared", "huber", "absolute"} or object, default="squared"
        What the users' models minimise: a convex function of the residual. An object, such as
        `QuantileLoss`, has the methods ``value(residual)`` and ``derivative(residual)`` of arrays.
        It declares ``bounds`` of its derivative, or ``curvature``, a bound of its second one. It is
        tried on public numbers before anything is charged. The guarantee needs only that it treats
        each residual by itself. The global model always predicts means.
    fit_intercept : bool, default=True
        Whether each user has an intercept; the selected rule may shrink it.
    group_column : int, str or None, default=None
        Column of X that holds the users, instead of `groups`.
    require_groups : bool, default=False
        Whether to fit or predict without users is an error.
    random_state : int, Generator, RandomState or None, default=None
        None draws noise from the operating system. With anything else the noise can be
        reproduced, so the fit is not private: it warns, and the receipt says "SEEDED".
    n_jobs : int or None, default=None
        Number of threads. It does not change the result.

    Attributes
    ----------
    components_ : ndarray of shape (`n_components_`, n_features)
        Orthonormal rows that span the shared subspace, in whitened features.
    whitening_ : ndarray of shape (n_features, n_features)
        Public map of the features. A user's coefficients are ``whitening_ @ components_.T @ v``.
    n_components_ : int
        Dimension of the subspace.
    eigenvalues_ : ndarray of shape (n_features,)
        Released eigenvalues of the users' unit directions, in descending order.
    global_coef_ : ndarray of shape (n_features,)
        The global model: one linear model of all users. The users' models start from it, and users
        without a model of their own get it.
    global_intercept_ : float
        Its intercept.
    feature_center_, feature_scale_ : ndarray of shape (n_features,)
        Released medians and scales of the columns, which users subtract and divide by.
    feature_bounds_ : ndarray of shape (2, n_features)
        Bounds of each column, 48 scales from the centre. An entry at r times this distance, often a
        code, is replaced by one at 1/r of it, in `predict` too. Infinite if no scale was found.
    target_scale_found_ : bool
        Whether the scale of the targets was found. If not, a user's model starts from that user's
        mean.
    global_model_found_ : bool
        Whether the global model exceeds its noise: at least a fifth of it is not noise. If not,
        users without a model of their own get about the mean of all users, and models of the others
        start there.
    head_rule_ : HeadRule or None
        The selected rule; None if each user takes a mean of several.
    head_rule_scores_ : Choice
        The rules that votes kept, their log-likelihoods, and the rules for users with two rows and
        with one.
    n_groups_ : int
        Number of users: released under "add_remove", and at least two standard deviations of its
        noise; exact under "replace". With `fit_intercept=False`, users without a direction do not
        count.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if all names of X are strings.
    privacy_spent_ : PrivacySpent
        Epsilon, delta and unit of the guarantee: the receipt of the fit.
    releases_ : tuple of LedgerEntry
        Each release with its sensitivity and noise scale.

    See Also
    --------
    DPPersonalizedClassifier : The same for labels.

    Notes
    -----
    Pass users as ``groups=``, or as `group_column` for scikit-learn's scorers, which never pass
    groups to ``predict``. A pickle of the fitted object contains the users' models: protect it like
    the data.

    References
    ----------
    .. [1] Jain, Rush, Smith, Song, Thakurta, "Differentially private model personalization",
       NeurIPS 2021.

    Examples
    --------
    >>> import numpy as np
    >>> from skdp.regression import DPPersonalizedRegressor
    >>> rng = np.random.default_rng(0)
    >>> users = np.repeat(np.arange(2000), 10)
    >>> X = rng.standard_normal((20000, 8))
    >>> weights = (1 + rng.standard_normal((2000, 1))) * [1.0, 1.0, 0, 0, 0, 0, 0, 0]
    >>> y = np.sum(X * weights[users], axis=1)
    >>> model = DPPersonalizedRegressor(n_components=1, epsilon=2.0).fit(X, y, groups=users)
    >>> bool(model.score(X, y, groups=users) > 0.9)
    True
    >>> model.public_copy().privacy_spent_
    (epsilon=2, delta=1e-06) group
    """

    _y_numeric = True

    def __init__(
        self,
        n_components: int | str = 2,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        adjacency: str = "add_remove",
        budget_split: Split = "auto",
        target_bounds: ArrayLike | str = "auto",
        whiten: bool = True,
        head_selection: str = "private_vote",
        loss: Any = "squared",
        fit_intercept: bool = True,
        group_column: int | str | None = None,
        require_groups: bool = False,
        random_state: Seed = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.budget_split = budget_split
        self.target_bounds = target_bounds
        self.whiten = whiten
        self.head_selection = head_selection
        self.loss = loss
        self.fit_intercept = fit_intercept
        self.group_column = group_column
        self.require_groups = require_groups
        self.random_state = random_state
        self.n_jobs = n_jobs

    def _check_loss(self):
        if isinstance(self.loss, str):
            check_option(self, "loss", ("squared", "huber", "absolute"))
        else:
            check_row_loss(type(self).__name__, self.loss)

    def _loss_name(self):
        return QuantileLoss() if self.loss == "absolute" else self.loss

    def _scales_targets(self):
        loss = self._loss_name()
        return isinstance(loss, str) or getattr(loss, "homogeneous", False)

    def _encoding(self):
        return as_columns, 1

    def _predicted(self, linear):
        bounds = target_bounds(self, 1)
        return linear[:, 0] if bounds is None else np.clip(linear[:, 0], *bounds)

    def score(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> float:
        """Return the coefficient of determination; on private rows it is not covered.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows.
        y : array-like of shape (n_samples,)
            Targets.
        groups : array-like of shape (n_samples,), default=None
            The user of each row.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows.

        Returns
        -------
        score : float
            R squared.
        """
        return self._compared(y, self.predict(X, groups), sample_weight)
