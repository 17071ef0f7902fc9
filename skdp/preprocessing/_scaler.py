"""Standardisation of columns with differential privacy."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike
from sklearn.base import OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_array, check_is_fitted

from skdp._groups import GroupUnitMixin, column_number
from skdp._inputs import advised, as_blocks, checked, map_blocks
from skdp._scales import (
    column_weights,
    warn_blurred_columns,
    warn_far_columns,
    warn_unclear_columns,
)
from skdp._types import Seed, Split
from skdp._validation import (
    check_bool,
    check_n_jobs,
    check_range,
    check_split,
    spread_range,
)
from skdp.base import BaseDPEstimator, atomic
from skdp.data.blocks import row_source
from skdp.data.persons import each_alone
from skdp.preprocessing._standardisation import (
    Standardisation,
    around_zero,
    handed_on,
    is_constant,
)
from skdp.queries.columns import ColumnQuery
from skdp.queries.person_columns import PersonColumns
from skdp.solvers.columns import column_moments, find_columns
from skdp.theory import Expectation, FitPlan, check_counts, deviation_error, rehearse, zero_rows


class DPStandardScaler(GroupUnitMixin, OneToOneFeatureMixin, TransformerMixin, BaseDPEstimator):
    """Centre and scale columns with (epsilon, delta)-differential privacy for one row.

    The fitted attributes satisfy (`epsilon`, `delta`)-differential privacy for adding or removing
    (or replacing, see `adjacency`) one row of X, or all rows of one person (see `privacy_unit`),
    whatever the data are: entries are cut to bounds before anything is computed from them. Not
    covered: ``transform`` of private rows.

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
        Then the sums of a person are bounded, however many rows it has.
    user_column : int, str or None, default=None
        The column of X that names the person of each row, in place of `groups`: of numbers.
        ``transform`` hands it on as it is, and no bounds are given for it.
    group_weight : {"equal", "rows"} or int, default="equal"
        What a person counts: "equal" once, by the mean over its rows; an int as many rows as it
        has, up to this public number; "rows" learns that number, for 4% of the budget.
    with_mean : bool, default=True
        Whether ``transform`` centres the columns.
    with_std : bool, default=True
        Whether ``transform`` scales the columns.
    entry_bounds : (low, high) or "auto", default="auto"
        Public bounds of the entries, numbers or arrays of one number for each column; entries are
        cut to them, by ``transform`` too. They make the fit much more accurate. "auto" learns
        where each column lies and how far it reaches, from ranks of its entries: almost half of the
        budget. Where a column does not show its scale, a warning says so.
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
        Number of rows: released under "add_remove", exact under "replace". Of persons their total
        weight.
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
        epsilon: float = 1.0,
        delta: float = 1e-6,
        adjacency: str = "add_remove",
        privacy_unit: str = "row",
        user_column: Any = None,
        group_weight: str | int = "equal",
        with_mean: bool = True,
        with_std: bool = True,
        entry_bounds: ArrayLike | str = "auto",
        budget_split: Split = "auto",
        random_state: Seed = None,
        n_jobs: int | None = None,
    ) -> None:
        self.with_mean = with_mean
        self.with_std = with_std
        self.entry_bounds = entry_bounds
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.privacy_unit = privacy_unit
        self.user_column = user_column
        self.group_weight = group_weight
        self.budget_split = budget_split
        self.random_state = random_state
        self.n_jobs = n_jobs

    @atomic
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
        accepted = False if self._by_group else self._accepted()
        X = self._checked_rows(X, groups, accept_sparse=accepted)
        self._check_zero(X)
        attributes = self._fit_session(session, X)
        if self.user_column is not None:
            attributes = handed_on(attributes, column_number(self))
        return self._close_session(session, attributes)

    def _fit_session(self, session, X):
        """Make all releases; X itself is read by the session alone."""
        shares, bounds = self._check_parameters()
        X = row_source(X)
        bounds = spread_range(self, "entry_bounds", bounds, X.n_features, "columns")
        kind = PersonColumns if self._by_group else ColumnQuery
        query = kind(X, adjacency=self.adjacency, n_jobs=self.n_jobs)
        self._warn_of_persons(query)
        n = float(query.n_rows) if self._total_is_public() else None
        ask, most = self._weighted(session, session.ask(query), shares)
        center, size, columns = self._range(session, ask, X.n_features, bounds, shares, n)
        sparse = getattr(X, "sparse", False)
        if sparse:  # what is not stored is left as it is
            center, size = around_zero(center, size)
        found = self._moments(ask, center, size, n, shares["moments"])
        if columns is not None and not sparse and self.with_std:
            warn_blurred_columns(self, columns, found)
        scale = np.sqrt(found.variance)
        scale[is_constant(found)] = 1.0
        return {
            "mean_": found.mean,
            "var_": found.variance if self.with_std else None,
            "scale_": scale if self.with_std else None,
            "n_samples_seen_": round(found.n * most),
            "entry_bounds_": (center - size, center + size),
        }

    def plan(self, n_samples: int, n_features: int, *, signal: float = 0.25) -> FitPlan:
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
        X = zero_rows(n_samples, n_features)
        rehearsal = rehearse(self, n_samples, each_alone(X) if self._by_group else X)
        expected = self._expected(rehearsal, n_samples, n_features, float(signal))
        return rehearsal.plan(n_samples, n_features, expected)

    def _expected(self, rehearsal, n, d, signal):
        """Expect the error of scales, from the noise of the last moments."""
        noise, weights = rehearsal.lines[-1].noise_scale, column_weights(d)
        count_noise = 0.0 if self._total_is_public() else noise / weights.rows
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
        self._check_unit()
        check_bool(self, "with_mean")
        check_bool(self, "with_std")
        check_n_jobs(self)
        return check_split(self, self._default_shares()), check_range(self, "entry_bounds")

    def _accepted(self):
        """Return the sparse format that is accepted: means would fill in what is not stored."""
        return False if self.with_mean else "csr"

    def _check_zero(self, X):
        """Refuse public bounds that would cut what a sparse X does not store."""
        bounds = check_range(self, "entry_bounds")
        if not getattr(X, "sparse", False) or bounds is None:
            return
        if not ((bounds[0] <= 0) & (bounds[1] >= 0)).all():
            raise ValueError(
                "a sparse X needs 'entry_bounds' with 0 between them: zeros are not stored, and "
                f"stay zeros. Got {self.entry_bounds!r}."
            )

    def _default_shares(self):
        if isinstance(self.entry_bounds, str):
            shares = {"columns": 0.45, "moments": 0.55}
        else:
            shares = {"moments": 1.0}
        return self._with_weights(shares)

    def _range(self, session, ask, d, bounds, shares, n):
        """Return centre and half-width of each column, public or learnt, and what was learnt."""
        if bounds is not None and np.isfinite(bounds).all():
            low, high = bounds
            center = low + (high - low) / 2
            return center, np.maximum(high - center, center - low), None
        if session.budget.exact:  # nothing is cut, and a first mean makes the second accurate
            center, shares["moments"] = np.zeros(d), shares["moments"] / 2
            size = np.full(d, np.inf)
            return self._moments(ask, center, size, n, shares["moments"]).mean, size, None
        found = find_columns(ask, d, shares["columns"], n)
        warn_unclear_columns(
            self,
            ~found.found,
            found.needed,
            outcome="and took a low guess",
            remedy="'entry_bounds'",
        )
        warn_far_columns(self, found, remedy="'entry_bounds'")
        noise = found.sums_noise(shares["moments"] / shares["columns"])
        return found.center, found.reach(noise), found

    def _moments(self, ask, center, size, n, share):
        weights = column_weights(len(center))
        sums = ask.moments(center, size, weights.rows, share=share)
        return column_moments(sums.value, sums.noise_scale, center, size, weights=weights, n=n)

    def transform(self, X: Any) -> Any:
        """Centre and scale rows. The map is public; private rows stay private.

        Parameters
        ----------
        X : array-like or CSR matrix of shape (n_samples, n_features), or blocks
            Rows; sparse ones with ``with_mean=False`` only.

        Returns
        -------
        X_new : ndarray or CSR matrix of shape (n_samples, n_features)
            Standardised rows, of entries cut to `entry_bounds_`; zeros of a CSR matrix stay. For
            a Dask array a lazy Dask array; for a list of files and for a row source a generator of
            arrays, one for each block.
        """
        check_is_fitted(self)
        scale = Standardisation(
            self.entry_bounds_,
            self.mean_ if self.with_mean else None,
            self.scale_ if self.with_std else None,
        )
        source = as_blocks(X)
        if source is None:
            return scale(checked(self, X, accept_sparse=self._accepted(), reset=False))
        return map_blocks(self, X, source, scale, source.n_features)

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
        X = advised(self, check_array, X, accept_sparse=self._accepted(), copy=True, input_name="X")
        if self.with_std and sp.issparse(X):
            X.data *= self.scale_[X.indices].astype(X.dtype)
        elif self.with_std:
            X *= self.scale_.astype(X.dtype)
        if self.with_mean:
            X += self.mean_.astype(X.dtype)
        return X

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = not self.with_mean and not self._by_group
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
