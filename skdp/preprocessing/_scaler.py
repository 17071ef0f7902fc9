"""Standardisation of columns with differential privacy."""

import math
from functools import partial
from typing import NamedTuple

import numpy as np
from sklearn.base import OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_array, check_is_fitted

from skdp._inputs import as_blocks, as_source, check_rows, checked, map_blocks
from skdp._scales import column_weights, warn_unclear_columns
from skdp._validation import (
    FLOATS,
    check_bool,
    check_n_jobs,
    check_range,
    check_split,
    spread_range,
)
from skdp.base import BaseDPEstimator, atomic
from skdp.data.products import saturated
from skdp.queries.columns import ColumnQuery
from skdp.solvers.columns import column_moments, find_columns
from skdp.theory import Expectation, check_counts, deviation_error, rehearse, zero_rows


class DPStandardScaler(OneToOneFeatureMixin, TransformerMixin, BaseDPEstimator):
    """Centre and scale columns with (epsilon, delta)-differential privacy for one row.

    The fitted attributes satisfy (`epsilon`, `delta`)-differential privacy for adding or removing
    (or replacing, see `adjacency`) one row of X, whatever the data are: entries are cut to bounds
    before anything is computed from them. Not covered: ``transform`` of private rows.

    Parameters
    ----------
    with_mean : bool, default=True
        Whether ``transform`` centres the columns.
    with_std : bool, default=True
        Whether ``transform`` scales the columns.
    entry_bounds : (low, high) or "auto", default="auto"
        Public bounds of the entries, numbers or arrays of one number for each column; entries are
        cut to them, by ``transform`` too. They make the fit much more accurate. "auto" learns a
        power of two for each column, first about 0, then about a first mean: almost half of the
        budget. Where a column does not show its scale, a warning says so.
    epsilon : float, default=1.0
        Budget of one call of fit; ``inf`` adds no noise (and warns).
    delta : float, default=1e-6
        Probability that the bound fails; well below one over the number of rows.
    adjacency : {"add_remove", "replace"}, default="add_remove"
        With "add_remove" the number of rows is private too; with "replace" it is public.
    budget_split : dict or "auto", default="auto"
        Shares of the releases; its keys depend on the other parameters and are named in the error.
    random_state : int, Generator, RandomState or None, default=None
        None draws noise from the operating system. Anything else makes the noise reproducible,
        which is not private: it warns and is flagged in the receipt.
    n_jobs : int or None, default=None
        Threads for the passes over the rows; it never changes the result.

    Attributes
    ----------
    mean_ : ndarray of shape (n_features,)
        Released means of the cut entries.
    var_ : ndarray of shape (n_features,) or None
        Released variances of the cut entries, kept above their noise; None if with_std=False.
    scale_ : ndarray of shape (n_features,) or None
        Their square roots, 1 for a variance of 0.
    n_samples_seen_ : int
        Number of rows: released under "add_remove", exact under "replace".
    entry_bounds_ : tuple of two ndarrays of shape (n_features,)
        The bounds that were used last: given, or released.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, when X has names that are all strings.
    privacy_spent_ : PrivacySpent
        The receipt.
    ledger_ : tuple of LedgerEntry
        Each release with its sensitivity and noise scale.

    See Also
    --------
    RowClipper : Costs nothing.
    sklearn.preprocessing.StandardScaler : The estimator without privacy.

    Notes
    -----
    Every column pays: the noise grows with the square root of the number of columns.

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
        with_mean=True,
        with_std=True,
        entry_bounds="auto",
        epsilon=1.0,
        delta=1e-6,
        adjacency="add_remove",
        budget_split="auto",
        random_state=None,
        n_jobs=None,
    ):
        self.with_mean = with_mean
        self.with_std = with_std
        self.entry_bounds = entry_bounds
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.budget_split = budget_split
        self.random_state = random_state
        self.n_jobs = n_jobs

    @atomic
    def fit(self, X, y=None):
        """Learn means and scales; spends (`epsilon`, `delta`) once.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or blocks
            The private rows; blocks as in `DPPCA`, dense.
        y : Ignored
            Not used.

        Returns
        -------
        self : DPStandardScaler
            The fitted estimator.
        """
        self._check_parameters()
        session = self._open_session()
        X = check_rows(self, X, accept_sparse=False)
        return self._close_session(session, self._fit_session(session, X))

    def _fit_session(self, session, X):
        """Make all releases; X itself is read by the session alone."""
        shares, bounds = self._check_parameters()
        X = as_source(X)
        bounds = spread_range(self, "entry_bounds", bounds, X.n_features, "columns")
        query = ColumnQuery(X, adjacency=self.adjacency, n_jobs=self.n_jobs)
        n = float(query.n_rows) if self.adjacency == "replace" else None
        ask = session.ask(query)
        center, size = self._range(session, ask, X.n_features, bounds, shares, n)
        found = self._moments(ask, center, size, n, shares["moments"])
        scale = np.sqrt(found.variance)
        scale[is_constant(found)] = 1.0
        return {
            "mean_": found.mean,
            "var_": found.variance if self.with_std else None,
            "scale_": scale if self.with_std else None,
            "n_samples_seen_": round(found.n),
            "entry_bounds_": (center - size, center + size),
        }

    def plan(self, n_samples, n_features, *, signal=0.25):
        """Say what a fit would release, and what error to expect; no data is touched.

        Costs nothing: the fit is rehearsed on the shape alone. Pass a guess for a
        number of samples that is private.

        Parameters
        ----------
        n_samples, n_features : int
            Shape of the data.
        signal : float, default=0.25
            Assumed standard deviation of a column, in units of the half-width of its bounds.

        Returns
        -------
        plan : FitPlan
            ``print(plan)`` shows it; ``plan.error`` and ``plan.releases`` are numbers.
        """
        check_counts(self, n_samples=n_samples, n_features=n_features)
        if not 0 < signal <= 1:
            raise ValueError(f"'signal' must be in the range (0, 1]. Got {signal!r} instead.")
        self._check_parameters()
        rehearsal = rehearse(self, n_samples, zero_rows(n_samples, n_features))
        expected = self._expected(rehearsal, n_samples, n_features, float(signal))
        return rehearsal.plan(n_samples, n_features, expected)

    def _expected(self, rehearsal, n, d, signal):
        """Expect the error of scales, from the noise of the last moments."""
        noise, weights = rehearsal.lines[-1].noise_scale, column_weights(d)
        count_noise = 0.0 if self.adjacency == "replace" else noise / weights.rows
        square = noise / weights.square
        return Expectation(
            error=partial(deviation_error, noise=square, count_noise=count_noise, deviation=signal),
            meaning="mean relative error of a standard deviation",
            found=min(1.0, math.sqrt(math.hypot(square, count_noise / 2) / n)),
            signal="standard deviation, in units of the half-width of the bounds",
            assumptions=(
                f"columns with a standard deviation of {signal:g} times the half-width of their "
                "bounds",
                "means in the middle of the bounds; all records are finite",
            ),
            goal=0.5,
        )

    def _check_parameters(self):
        """Return the shares of the releases, and the public bounds if there are any."""
        check_bool(self, "with_mean")
        check_bool(self, "with_std")
        check_n_jobs(self)
        return check_split(self, self._default_shares()), check_range(self, "entry_bounds")

    def _default_shares(self):
        if isinstance(self.entry_bounds, str):
            return {"scales": 0.15, "means": 0.15, "spreads": 0.15, "moments": 0.55}
        return {"moments": 1.0}

    def _range(self, session, ask, d, bounds, shares, n):
        """Return centre and half-width of each column: public, or learnt."""
        if bounds is not None and np.isfinite(bounds).all():
            low, high = bounds
            center = low + (high - low) / 2
            return center, np.maximum(high - center, center - low)
        if session.budget.exact:  # nothing is cut, and a first mean makes the second accurate
            center, shares["moments"] = np.zeros(d), shares["moments"] / 2
            size = np.full(d, np.inf)
            return self._moments(ask, center, size, n, shares["moments"]).mean, size
        parts = [shares[name] for name in ("scales", "means", "spreads")]
        found = find_columns(ask, d, parts, column_weights(d), n)
        warn_unclear_columns(
            self,
            ~found.found,
            found.needed,
            outcome="and took a low guess",
            remedy="'entry_bounds'",
        )
        noise = found.noise * math.sqrt(shares["means"] / shares["moments"])
        return found.center, found.reach(noise)

    def _moments(self, ask, center, size, n, share):
        weights = column_weights(len(center))
        sums = ask.moments(center, size, weights.rows, share=share)
        return column_moments(sums.value, sums.noise_scale, center, size, weights=weights, n=n)

    def transform(self, X):
        """Centre and scale rows. The map is public; private rows stay private.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or blocks
            Rows.

        Returns
        -------
        X_new : ndarray of shape (n_samples, n_features)
            Standardised rows, of entries cut to `entry_bounds_`. For a Dask array a lazy Dask
            array; for a list of files and for a row source a generator of arrays, one for each
            block.
        """
        check_is_fitted(self)
        scale = Standardisation(
            self.entry_bounds_,
            self.mean_ if self.with_mean else None,
            self.scale_ if self.with_std else None,
        )
        source = as_blocks(X)
        if source is None:
            return scale(checked(self, X, reset=False))
        return map_blocks(self, X, source, scale, source.n_features)

    def inverse_transform(self, X):
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
        X = check_array(X, dtype=FLOATS, copy=True, input_name="X")
        if self.with_std:
            X *= self.scale_.astype(X.dtype)
        if self.with_mean:
            X += self.mean_.astype(X.dtype)
        return X

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


class Standardisation(NamedTuple):
    """The public map of `transform`, for blocks of rows wherever they are."""

    bounds: tuple[np.ndarray, np.ndarray]
    mean: np.ndarray | None
    scale: np.ndarray | None

    def __call__(self, X):
        """Return standardised copies of rows; those of another dtype than float32 in float64."""
        dtype = X.dtype if X.dtype in FLOATS else np.float64
        X = np.array(np.clip(X, *self.bounds), dtype=dtype)
        with np.errstate(over="ignore"):
            if self.mean is not None:
                X -= self.mean.astype(X.dtype)
            if self.scale is not None:
                X /= self.scale.astype(X.dtype)
        return saturated(X)


def is_constant(found):
    """Whether a variance is nothing but rounding, as scikit-learn decides it."""
    eps = np.finfo(np.float64).eps
    return found.variance <= found.n * eps * found.variance + (found.n * found.mean * eps) ** 2
