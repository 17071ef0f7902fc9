"""Ridge classification with differential privacy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from skdp._inputs import float_dtype
from skdp._limits import CLEAR, LARGEST_SIZE, SMALLEST_SIZE
from skdp._validation import ColumnBounds, Seed, Split, check_kind, is_real, refuse_value
from skdp.base import atomic
from skdp.data.products import in_dtype
from skdp.data.views import RecordForm, TargetScale
from skdp.exceptions import PartialSignalWarning, warn_caller
from skdp.regression._linear import LinearBase, Releases
from skdp.regression._plans import RidgeClassifierPlans
from skdp.regression._scores import ScoredClassifierMixin, encode, public_classes
from skdp.solvers.linear_regression import (
    class_moments,
    reweighted,
    right_labels,
    solve_normal_equations,
)

# Weights of classes, checked and made numbers.


def check_class_weight(estimator, classes):
    """Refuse weights that are neither "balanced" nor positive numbers of public classes."""
    given = estimator.class_weight
    if given is None or (isinstance(given, str) and given == "balanced"):
        return
    known = isinstance(given, Mapping) and set(given) <= set(classes.tolist())
    weights = given.values() if known else [None]
    if not all(is_real(w) and SMALLEST_SIZE <= float(w) <= LARGEST_SIZE for w in weights):
        weights = "a dict of numbers from 1e-60 to 1e60 whose keys are among the classes"
        refuse_value(estimator, "class_weight", f"None, 'balanced' or {weights}", given)


class DPRidgeClassifier(ScoredClassifierMixin, RidgeClassifierPlans, LinearBase):
    """Classification by least squares with (epsilon, delta)-differential privacy for one record.

    The fitted attributes satisfy (`epsilon`, `delta`)-differential privacy for adding or removing
    (or replacing, see `adjacency`) one row of X together with its label, or all rows of one person
    (see `privacy_unit`), whatever the data are: a label becomes a unit vector, rows longer than
    `clip_norm` are scaled down, and their products with labels, and then their second moments, are
    released once, with noise. Sparse rows, or more than 1500 columns, are treated as in `DPRidge`.
    Not covered: ``predict`` and ``score`` on private rows.

    Parameters
    ----------
    alpha : float, default=1.0
        Penalty on the squared norm of the coefficients, as in `sklearn.linear_model.Ridge`.
        Directions that are not clearly above the noise are shrunk further in any case.
    epsilon : float, default=1.0
        Budget of one call of fit; ``inf`` adds no noise (and warns).
    delta : float, default=1e-6
        Probability that the bound fails; well below one over the number of records.
    clip_norm : float or "auto", default="auto"
        A longer row is scaled down to it. "auto" spends 20% of the budget on a private centre and
        scale of each column (at most 1500); shifts and units then do not matter, and `alpha`
        applies to scaled columns. A column whose scale was not found gets the scale of largest
        likelihood. Sparse rows of many columns are not centred: only columns whose scales clearly
        differ are rescaled, and 5% of the budget find the median norm. A number is an upper bound
        for rows that are scaled already: with 5% of the budget, the fit lowers it to about the
        median norm, or to a larger norm if the noise allows it.
    adjacency : {"add_remove", "replace"}, default="add_remove"
        With "add_remove" the number of records is private too; with "replace" it is public.
    privacy_unit : {"row", "group"}, default="row"
        What is protected: one row, or all rows of one person ("group", see `groups` of ``fit``).
        Then weights follow from the root mean square of the norms of a person's rows.
    group_column : int, str or None, default=None
        The column of X with the person of each row, in place of `groups`. It is not a feature.
    fit_intercept : bool, default=True
        Whether to fit an intercept, which has no penalty.
    classes : array-like or None, default=None
        The public list of classes. None takes the labels in y, makes them public, and warns.
        Records with a label outside the list count as zeros.
    class_weight : dict, "balanced" or None, default=None
        Weight of each class, as in `sklearn.linear_model.RidgeClassifier`. It costs no budget,
        because released products contain counts and means of the classes. "balanced" gives all
        classes the same weight. Weights apply to means; second moments remain those of all records.
    bounds : pair, two arrays, list of tuples, dict or None, default=None
        Public bounds of the columns, in the forms of `PublicScaler`; entries are truncated to them.
        With ``clip_norm="auto"``, scales are searched for near them; a column whose centre seems to
        lie outside takes the middle and the width of its bounds. With a number, columns are scaled
        from their bounds to [-1, 1], and `clip_norm` and `alpha` apply to these.
    budget_split : dict or "auto", default="auto"
        Budget fraction of each release. The keys depend on the other parameters; an error for a
        wrong key lists them.
    random_state : int, Generator, RandomState or None, default=None
        None draws noise from the operating system. With anything else the noise can be
        reproduced, so the fit is not private: it warns, and the receipt says "SEEDED".
    n_jobs : int or None, default=None
        Number of threads. It does not change the result.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The classes.
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        Coefficients of the decision function; one row for two classes. Zeros if noise and chance
        explain the released moments, and one class has more than half of the records.
    intercept_ : ndarray of shape (1,) or (n_classes,)
        Intercepts, zeros if they are not fitted.
    clip_norm_ : float
        The clip norm that was used: released, at most the given one ("auto": of scaled columns).
    center_, scale_ : ndarray of shape (n_features,)
        What was subtracted from each column, and what it was divided by: 0 and 1, released, or
        from `bounds`.
    feature_bounds_ : tuple of two ndarrays of shape (n_features,)
        Bounds of entries in the fit and in predictions: 3.5 to 4.2 scales from a released centre,
        within `bounds`. If they are infinite, rows longer than twice `clip_norm_` are scaled down
        to that norm in predictions.
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
    DPRidge : For numbers.
    sklearn.linear_model.RidgeClassifier : The estimator without privacy.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.preprocessing import normalize
    >>> from skdp import DPRidgeClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> model = DPRidgeClassifier(epsilon=4.0, clip_norm=1.0, classes=range(10))
    >>> model.fit(normalize(X), y).score(normalize(X), y) > 0.6
    True
    """

    _y_numeric = False

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        clip_norm: float | str = "auto",
        adjacency: str = "add_remove",
        privacy_unit: str = "row",
        group_column: Any = None,
        fit_intercept: bool = True,
        classes: Iterable[Any] | None = None,
        class_weight: Mapping[Any, float] | str | None = None,
        bounds: ColumnBounds | None = None,
        budget_split: Split = "auto",
        random_state: Seed = None,
        n_jobs: int | None = None,
    ) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.classes = classes
        self.class_weight = class_weight
        self.epsilon = epsilon
        self.delta = delta
        self.clip_norm = clip_norm
        self.adjacency = adjacency
        self.privacy_unit = privacy_unit
        self.group_column = group_column
        self.bounds = bounds
        self.budget_split = budget_split
        self.random_state = random_state
        self.n_jobs = n_jobs

    @atomic
    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Fit the model; spends (`epsilon`, `delta`) once.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features), or blocks
            The private rows; blocks are a memory map, a list of npy or npz files, a Dask array or
            `DaskRows` of files.
        y : array-like of shape (n_samples,)
            The private labels, in the order of the rows; next to Dask rows also a Dask array in the
            same blocks (then `classes` is needed).
        groups : array-like of shape (n_samples,), default=None
            The person of each row, for ``privacy_unit="group"``.

        Returns
        -------
        self : DPRidgeClassifier
            The fitted estimator.
        """
        self._check_parameters()
        check_kind(self, y)
        session = self._open_session()
        placed = self._checked_records(X, y, groups, numbers=False)
        classes = public_classes(self, placed.columns["y"])
        return self._close_session(session, self._fit_session(session, placed, classes))

    def _fit_session(self, session, placed, classes):
        """Make all releases; the records are read by the session alone."""
        check_class_weight(self, classes)
        codes, factor = label_codes(len(classes), centered=self.fit_intercept)
        form = RecordForm(partial(encode, classes=classes, codes=codes), codes.shape[1])
        scale = TargetScale.in_ball(1.0, codes.shape[1])
        released = Releases(self, session, placed, form, scale).make()
        solution = self._solve(released.moments, classes, codes)
        W, b, attributes = self._fitted(session, released, solution)
        shift = 2 / len(b) - 1 if len(b) > 1 else 0.0  # of centred codes: scikit-learn's are +-1
        return attributes | {
            "classes_": classes,
            "coef_": in_dtype(factor * W.T, float_dtype(placed.rows)),
            "intercept_": factor * b + shift if self.fit_intercept else np.zeros_like(b),
        }

    def _solve(self, released, classes, codes):
        """Return the solution under the weights of the classes (post-processing)."""
        solve = partial(solve_normal_equations, alpha=float(self.alpha), flat=True)
        if not self._releases_sums():
            return solve(released)
        found, weights = class_moments(released, codes), np.ones(len(classes))
        if self.class_weight is not None:
            given, weights = self.class_weight, 1 / found.totals
            if not isinstance(given, str):
                weights = np.array([float(given.get(label, 1.0)) for label in classes.tolist()])
            released = reweighted(released, found, weights, centered=self.fit_intercept)
        solution = solve(released._replace(square=found.square(weights)))
        shares = found.shares(weights)
        if not solution.likely.all() and self.fit_intercept and shares.max() > 0.5:
            # Noise scores are less accurate than the label of more than half of the records.
            none = np.zeros_like(solution.coefficients)
            return solution._replace(coefficients=none, intercepts=released.target_mean)
        if solution.above_noise.all() and released.noise:
            self._warn_one_class(found, shares, right_labels(released, found, solution, weights))
        return solution

    def _warn_one_class(self, found, shares, right):
        """Say that predictions are hardly better than a constant, from released moments alone.

        They should be right for a part of the records outside the largest class; with many records,
        a part that clearly exceeds the standard error of its fraction suffices.
        """
        top = shares.max()
        error = math.sqrt(top * (1 - top) * (shares @ (shares / found.totals)))
        if shares @ right - top <= min(CLEAR * error, 0.15 * (1 - top)) or np.sort(right)[-2] < 0.1:
            remedy = "class_weight='balanced', " if top > 0.5 else ""
            warn_caller(
                f"{type(self).__name__} may predict one class for nearly all rows (less than a "
                "tenth of each other class is found), or be hardly better than that. Released "
                "class counts, in which clipped rows have less weight: "
                f"{np.rint(found.totals).astype(int).tolist()}. "
                f"Use {remedy}more records or a larger 'epsilon'.",
                PartialSignalWarning,
            )

    def decision_function(self, X: Any) -> Any:
        """Return the confidence in each class; for private rows it is not covered by epsilon.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features), or blocks
            Rows. A Dask array gives a lazy Dask array, a list of files a generator of arrays.

        Returns
        -------
        scores : ndarray of shape (n_samples,) or (n_samples, n_classes)
            Positive scores stand for the second of two classes.
        """
        check_is_fitted(self)
        if len(self.coef_) == 1:
            return self._linear(X, partial(np.squeeze, axis=1), None)
        return self._linear(X, np.asarray, len(self.coef_))

    def predict(self, X: Any) -> Any:
        """Predict labels; for private rows they are not covered by epsilon.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features), or blocks
            Rows. A Dask array gives a lazy Dask array, a list of files a generator of arrays.

        Returns
        -------
        y : ndarray of shape (n_samples,)
            Labels.
        """
        check_is_fitted(self)
        labels = partial(best_label, classes=self.classes_)
        return self._linear(X, labels, None, self.classes_.dtype)


def label_codes(n_classes, *, centered):
    """Return the code of each class, of norm at most 1, and the factor that turns it into +-1.

    With an intercept a shift of all codes costs nothing; centred unit vectors have least norm.
    """
    if n_classes == 2:
        return np.array([[-1.0], [1.0]]), 1.0
    codes = np.eye(n_classes)
    if centered:
        length = math.sqrt(1 - 1 / n_classes)
        return (codes - 1 / n_classes) / length, 2 * length
    return (2 * codes - 1) / math.sqrt(n_classes), math.sqrt(n_classes)


def best_label(scores, classes):
    """Return the label of the best class, from one column (of the second class) or from many."""
    return classes[np.argmax(scores, axis=1) if scores.shape[1] > 1 else np.intp(scores[:, 0] > 0)]
