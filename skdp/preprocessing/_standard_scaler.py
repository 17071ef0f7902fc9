"""Standardisation of columns with differential privacy."""

from __future__ import annotations

from functools import partial
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from sklearn.base import OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_array, check_is_fitted

from skdp import _inputs, _validation, base
from skdp._limits import CLEAR
from skdp.data import blocks
from skdp.preprocessing._public_steps import Standardisation
from skdp.queries.columns import ColumnQuery
from skdp.solvers.columns import FAR, find_columns, release_moments
from skdp.solvers.median_search import SMALLEST
from skdp.theory import PlanData, PlansMixin
from skdp.theory._made import bare_copy, drawn_normal, skewed
from skdp.theory._plan import check_share, fit_rows, rows_drawn


def around_zero(center, size):
    """Widen intervals until 0 lies in them."""
    beyond = np.abs(center) - size  # how far 0 is from the nearer end, if it is outside
    half = np.where(beyond > 0, beyond / 2, 0.0)
    return center - np.sign(center) * half, size + half * (1 + 2.0**-40)


def found_columns(ask, d, shares, n, **how):
    """Return the columns that a search finds, and the radius about their centres for moments."""
    found = find_columns(ask, d, shares["columns"], n, **how)
    return found, found.radius(found.sums_noise(shares["moments"] / shares["columns"]))


def with_group_column(attributes, place):
    """Extend attributes by the group column, which is left unchanged."""
    low, high = attributes["feature_bounds_"]
    bounds = np.insert(low, place, -np.inf), np.insert(high, place, np.inf)
    unchanged = {"mean_": 0.0, "var_": 1.0, "scale_": 1.0}
    found = {name: attributes[name] for name in unchanged if attributes[name] is not None}
    found = {name: np.insert(value, place, unchanged[name]) for name, value in found.items()}
    return attributes | found | {"feature_bounds_": bounds}


class ScalerPlans(PlansMixin):
    """Plans of private scales.

    Facts: `signal`, the deviation of a column in units of the half-width of bounds that are given,
    and `skew`, the skewness of each column.
    """

    @property
    def _measure(self):
        means = "1 - mean error of the means, in standard deviations"
        return "1 - mean relative error of the scales" if self.with_std else means

    def _made(self, rng, n, d, signal=0.25, skew=None):
        rows, signal = rows_drawn(n, d), check_share(signal)
        size = np.exp(rng.standard_normal(d))
        center = size * rng.standard_normal(d)
        said = "skewed columns, some standard deviations from 0"
        if (bounds := bare_copy(self)._public_bounds(d)) is not None:
            size = signal * (bounds[1] - bounds[0]) / 2
            center = (bounds[0] + bounds[1]) / 2
            said = f"skewed columns, whose deviation is {signal:g} of the half-width of the bounds"
        X = center + size * skewed(rng, drawn_normal(rng, rows, d), skew)
        mean, deviation = X.mean(axis=0), X.std(axis=0)

        def score(model):
            of_scale = model.scale_ is not None
            off = model.scale_ / deviation - 1 if of_scale else (model.mean_ - mean) / deviation
            return 1 - float(np.mean(np.minimum(np.abs(off), 1.0)))

        return PlanData(partial(fit_rows, X=X), score, (said,), n / rows)


class DPStandardScaler(
    ScalerPlans,
    _inputs.GroupUnitMixin,
    OneToOneFeatureMixin,
    TransformerMixin,
    base.BaseDPEstimator,
):
    """Centre and scale columns with (epsilon, delta)-differential privacy for one row.

    The fitted attributes satisfy (`epsilon`, `delta`)-differential privacy for adding or removing
    (or replacing, see `adjacency`) one row of X, or all rows of one person (see `privacy_unit`),
    whatever the data are: entries are truncated to bounds before anything is computed from them.
    Not covered: ``transform`` of private rows.

    Parameters
    ----------
    epsilon : float, default=1.0
        Budget of one call of fit; ``inf`` adds no noise (and warns).
    delta : float, default=1e-6
        Probability that the bound fails; well below one over the number of rows.
    adjacency : {"add_remove", "replace"}, default="add_remove"
        With "add_remove" the number of rows is private too; with "replace" it is public.
    privacy_unit : {"row", "group"}, default="row"
        What is protected: one row, or all rows of one person ("group", see `groups` of ``fit``).
        Then the contribution of a person is the mean over that person's rows.
    group_column : int, str or None, default=None
        The column of X with the person of each row, as numbers, in place of `groups`. ``transform``
        passes it on unchanged, and `bounds` do not include it.
    with_mean : bool, default=True
        Whether ``transform`` centres the columns.
    with_std : bool, default=True
        Whether ``transform`` scales the columns.
    bounds : pair, two arrays, list of tuples, dict or "auto", default="auto"
        Public bounds of the entries, in the forms of `PublicScaler`; entries are truncated to them,
        by ``transform`` too. Almost half of the budget is for a private centre and scale of each
        column; with "auto", a warning names those that were not found. Narrow bounds make the fit
        more accurate: a column that has clearly more variance in its bounds than near its centre
        takes the bounds.
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
    mean_ : ndarray of shape (n_features,)
        Released means of the truncated entries; within public bounds, perhaps truncated further.
    var_ : ndarray of shape (n_features,) or None
        Released variances of the same entries, at least their noise; None if with_std=False.
    scale_ : ndarray of shape (n_features,) or None
        Their square roots, 1 for a variance of 0.
    n_samples_seen_ : int
        Number of rows: released under "add_remove", exact under "replace". With groups, their
        total weight.
    feature_bounds_ : tuple of two ndarrays of shape (n_features,)
        The bounds that ``transform`` uses: given, or released.
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
    PublicScaler : Costs no budget, with public bounds.
    sklearn.preprocessing.StandardScaler : The estimator without privacy.

    Notes
    -----
    The noise of each column grows with the square root of the number of columns.

    Examples
    --------
    >>> import numpy as np
    >>> from skdp.preprocessing import DPStandardScaler
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((20000, 3)) * [1.0, 10.0, 0.1] + [0.0, 50.0, 1.0]
    >>> scaler = DPStandardScaler(epsilon=1.0).fit(X)
    >>> bool(np.all(np.abs(scaler.scale_ / [1.0, 10.0, 0.1] - 1) < 0.3))
    True
    """

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        adjacency: str = "add_remove",
        privacy_unit: str = "row",
        group_column: Any = None,
        with_mean: bool = True,
        with_std: bool = True,
        bounds: _validation.ColumnBounds | str = "auto",
        budget_split: _validation.Split = "auto",
        random_state: _validation.Seed = None,
        n_jobs: int | None = None,
    ) -> None:
        self.with_mean = with_mean
        self.with_std = with_std
        self.bounds = bounds
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.privacy_unit = privacy_unit
        self.group_column = group_column
        self.budget_split = budget_split
        self.random_state = random_state
        self.n_jobs = n_jobs

    @base.atomic
    def fit(self, X: Any, y: Any = None, groups: Any = None) -> Self:
        """Learn means and scales; spends (`epsilon`, `delta`) once.

        Parameters
        ----------
        X : array-like or CSR matrix of shape (n_samples, n_features), or blocks
            The private rows; blocks as in `DPPCA`. Sparse ones for
            the unit "row" with ``with_mean=False`` only.
        y : Ignored
            Not used.
        groups : array-like of shape (n_samples,), default=None
            The person of each row, for ``privacy_unit="group"``.

        Returns
        -------
        self : DPStandardScaler
            The fitted estimator.
        """
        self._check_parameters()
        session = self._open_session()
        self._refuse_text_labels(X)
        accepted = False if self._by_group else self._accepted(X)
        X = self._checked_rows(X, groups, accept_sparse=accepted)
        attributes = self._fit_session(session, X)
        if self.group_column is not None:
            attributes = with_group_column(attributes, _validation.column_number(self))
        return self._close_session(session, attributes)

    def _refuse_text_labels(self, X):
        """Refuse text in the column of groups: as floats, "7" and "07" are one person."""
        numbers = getattr(getattr(X, "dtype", None), "kind", "O") in "biuf"
        if self.group_column is None or numbers or _inputs.as_blocks(X) is not None:
            return
        X = X if hasattr(X, "shape") else np.asarray(X, dtype=object)
        labels = _inputs.split_users(X, self.group_column)[1]
        if any(isinstance(label, str | bytes) for label in labels.tolist()):
            raise ValueError(
                "DPStandardScaler passes 'group_column' on as a column of floats, which may merge "
                "labels that are text: number the groups first (pandas.factorize), or leave out "
                "'group_column' and pass 'groups'."
            )

    def _fit_session(self, session, X):
        """Make all releases; X itself is read by the session alone."""
        shares, X = self._shares(), blocks.row_source(X)
        bounds, sparse = self._public_bounds(X.n_features), getattr(X, "sparse", False)
        if sparse and bounds is not None and not ((bounds[0] <= 0) & (bounds[1] >= 0)).all():
            raise ValueError(
                "a sparse X needs 'bounds' with 0 between them: zeros are not stored, and "
                f"stay zeros. Got {self.bounds!r}."
            )
        query = self._asked(ColumnQuery, X)
        n = float(query.n_rows) if self._total_is_public() else None
        ask = session.ask(query)
        if bounds is None or not np.isfinite(bounds).all():
            center, size, columns = self._learnt_range(session, ask, X.n_features, shares, n)
            if sparse:  # what is not stored is left as it is
                center, size = around_zero(center, size)
            found = release_moments(ask, center, size, n, shares["moments"])
        else:
            (center, size), columns = _validation.middle_and_radius(*bounds), None
            found = self._within(session, ask, center, size, shares, n)
        if self.with_std and not sparse:
            base.warn_unresolved_scales(self, columns, found)
        scale, eps = np.sqrt(found.variance), np.finfo(np.float64).eps
        rounding = found.n * eps * found.variance + (found.n * found.mean * eps) ** 2
        scale[found.variance <= rounding] = 1.0  # as scikit-learn decides what is constant
        return {
            "mean_": found.mean,
            "var_": found.variance if self.with_std else None,
            "scale_": scale if self.with_std else None,
            "n_samples_seen_": round(found.n),
            "feature_bounds_": (center - size, center + size),
        }

    def _check_parameters(self):
        self._check_unit()
        _validation.check_bool(self, "with_mean", "with_std")
        if not self._learns_bounds():
            _validation.check_column_bounds(self)
        self._shares()

    def _public_bounds(self, d):
        """Return the bounds of each column, or None where they are learnt."""
        if self._learns_bounds():
            return None
        return _validation.column_bounds(self, d, _validation.feature_names(self))

    def _accepted(self, X):
        """Return the sparse format that is accepted: means would fill in what is not stored."""
        if self.with_mean and sp.issparse(X):
            raise ValueError("Cannot center sparse matrices: pass 'with_mean=False' instead.")
        return False if self.with_mean else "csr"

    def _learns_bounds(self):
        return isinstance(self.bounds, str) and self.bounds == "auto"

    def _shares(self):
        learnt = {"columns": 0.45, "moments": 0.55}
        public = {"columns": 0.4, "moments": 0.5, "bounds": 0.1}
        return _validation.check_split(self, learnt if self._learns_bounds() else public)

    def _learnt_range(self, session, ask, d, shares, n):
        """Return centre and half-width of each column, and what was found."""
        if session.budget.exact:  # nothing is cut, and a first mean makes the second accurate
            size = np.full(d, np.inf)
            mean = release_moments(ask, np.zeros(d), size, n, shares["columns"]).mean
            return mean, size, None
        found, radius = found_columns(ask, d, shares, n)
        base.warn_undetected_columns(
            self, ~found.found, found.needed, outcome="and used a guess", remedy="'bounds'"
        )
        return found.center, radius, found

    def _within(self, session, ask, middle, half, shares, n):
        """Return the moments of columns within public bounds.

        Bounds are often far wider than the columns, and so is their noise. So columns are searched
        for, and cut to what is found. If the bounds show clearly more variance, their moments are
        kept: many squares lie far from most entries.
        """
        whole = release_moments(ask, middle, half, n, shares["bounds"])
        if session.budget.exact:
            return whole
        near = np.clip((np.abs(middle) + half) / FAR, SMALLEST, 1 / SMALLEST)
        columns, radius = found_columns(ask, len(middle), shares, n, near=near)
        low, high = middle - half, middle + half
        inside = (low <= columns.center) & (columns.center <= high)
        low = np.where(inside, np.maximum(low, columns.center - radius), low)
        high = np.where(inside, np.minimum(high, columns.center + radius), high)
        center, size = _validation.middle_and_radius(low, high)
        size = np.where(size > 0, size, half)  # next to a large centre it may be rounded to 0
        found = release_moments(ask, center, size, n, shares["moments"])
        return found.replaced(whole.variance > found.variance + 2 * CLEAR * whole.noise, whole)

    def transform(self, X: Any) -> Any:
        """Centre and scale rows. The output for private rows is not covered.

        Parameters
        ----------
        X : array-like or CSR matrix of shape (n_samples, n_features), or blocks
            Rows; sparse ones with ``with_mean=False`` only.

        Returns
        -------
        X_new : ndarray or CSR matrix of shape (n_samples, n_features)
            Scaled rows, of entries truncated to `feature_bounds_`; zeros of a CSR matrix stay. For
            a Dask array a lazy Dask array; for a list of files and for a row source a generator of
            arrays, one for each block.
        """
        check_is_fitted(self)
        self._refuse_text_labels(X)
        scale, source = self._map(), _inputs.as_blocks(X)
        if source is None:
            return scale(_inputs.checked(self, X, accept_sparse=self._accepted(X), reset=False))
        return _inputs.map_blocks(self, X, source, scale, source.n_features)

    def _map(self):
        mean, size = self.mean_ if self.with_mean else None, self.scale_ if self.with_std else None
        return Standardisation(self.feature_bounds_, mean, size)

    def inverse_transform(self, X: Any) -> Any:
        """Undo the scaling and the centring.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Standardised rows.

        Returns
        -------
        X_original : ndarray of shape (n_samples, n_features)
            Rows in the units of the data.
        """
        check_is_fitted(self)
        X = _inputs.advised(
            self, check_array, X, accept_sparse=self._accepted(X), copy=True, input_name="X"
        )
        return self._map().undone(X)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = not self.with_mean and not self._by_group
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
