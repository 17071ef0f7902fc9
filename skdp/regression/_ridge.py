"""Ridge regression with differential privacy."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import MultiOutputMixin
from sklearn.utils.validation import check_is_fitted

from skdp._inputs import as_columns, float_dtype, n_columns
from skdp._limits import CLEAR
from skdp._validation import ColumnBounds, Seed, Split, check_range, spread_range
from skdp.base import atomic
from skdp.data.views import RecordForm, TargetScale
from skdp.regression import _linear
from skdp.regression._plans import RidgePlans
from skdp.regression._scores import ScoredRegressorMixin
from skdp.solvers.columns import find_columns
from skdp.solvers.postprocess import solve_normal_equations, steadied

_TARGET_RADIUS = 3.0  # scales from the median at which a target is cut, at least


class DPRidge(MultiOutputMixin, ScoredRegressorMixin, RidgePlans, _linear.LinearBase):
    """Linear least squares with (epsilon, delta)-differential privacy for one record (x, y).

    The fitted attributes satisfy (`epsilon`, `delta`)-differential privacy for adding or removing
    (or replacing, see `adjacency`) one row of X together with its targets, or all rows of one
    person (see `privacy_unit`), whatever the data are: targets are cut to `target_bounds`, records
    whose row is longer than `clip_norm` are weighted down as a whole. The second moments of the
    records are released once, with noise; the solution is computed from them. Of more columns than
    that can show (sparse rows, or more than 1500 columns) products with the targets are released
    before: the moments are those of columns where these are largest, and of directions of all.
    It is the private last step of a pipeline. Not covered: ``predict`` and ``score`` on private
    rows.

    Parameters
    ----------
    alpha : float, default=1.0
        Penalty on the squared norm of the coefficients, as in `sklearn.linear_model.Ridge`.
        Whatever it is, directions that do not stand clear of the noise are shrunk further (free).
    epsilon : float, default=1.0
        Budget of one call of fit; ``inf`` adds no noise (and warns).
    delta : float, default=1e-6
        Probability that the bound fails; well below one over the number of records.
    clip_norm : float or "auto", default="auto"
        A record with a row longer than this has weight ``(clip_norm / norm)**2``. "auto" spends 20%
        of the budget on a private centre and unit of each column (at most 1500), so that shifts and
        units of columns do not matter, and the usual length of a row follows from their number;
        `alpha` then belongs to columns in these units, a column that does not show its scale has
        the likeliest one. Sparse rows of many columns stay sparse: columns in clearly other units
        than most are taken to theirs, and 5% find the scale of the norms. A number is an upper
        bound, right for normalised rows: 5% of the budget lower it to about the median norm, or
        what the noise allows above that.
    adjacency : {"add_remove", "replace"}, default="add_remove"
        What neighbours differ in.
    privacy_unit : {"row", "group"}, default="row"
        What is protected: one row, or all rows of one person ("group", see `groups` of ``fit``).
        Then persons are weighted down: by the root mean square length of their rows.
    group_column : int, str or None, default=None
        The column of X that names the person of each row, in place of `groups`; it is no feature.
    fit_intercept : bool, default=True
        Whether to fit an intercept, which has no penalty.
    target_bounds : (low, high) or "auto", default="auto"
        Public bounds of the targets, numbers or arrays of one number for each; targets are cut to
        them. 8% of the budget find a private centre and scale of each target, within bounds that
        are given; where it does not see them these are taken. If it does not see them, and "auto"
        gives none, it goes on with the budget of the model, up to all of it; then their centre
        alone is predicted, and a warning says so.
    bounds : pair, two arrays, list of tuples, dict or None, default=None
        Public bounds of the columns, in the forms of `PublicScaler`; entries are cut to them. Next
        to ``clip_norm="auto"`` 10% of the budget find centres and units within them; a column that
        is not found, or fills its bounds, has those of its bounds. Next to a number they are the
        units, for free: it and `alpha` belong to columns in [-1, 1] then.
    budget_split : dict or "auto", default="auto"
        Shares of the releases; its keys depend on the other parameters and are named in the error.
    random_state : int, Generator, RandomState or None, default=None
        None draws noise from the operating system. Anything else makes the noise reproducible,
        which is not private: it warns and is flagged in the receipt.
    n_jobs : int or None, default=None
        Threads for the passes over the rows; it never changes the result.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,) or (n_targets, n_features)
        Coefficients; next to zero where nothing stands clear of the noise, zero of columns that
        were not kept.
    intercept_ : float or ndarray of shape (n_targets,)
        Intercept, 0.0 if it is not fitted.
    clip_norm_ : float
        The clip norm that was used: released, at most the one given ("auto": standardised rows).
    center_, scale_ : ndarray of shape (n_features,)
        What was taken off each column, and the unit it was measured in: 0 and 1, released, or those
        of `bounds`.
    feature_bounds_ : tuple of two ndarrays of shape (n_features,)
        Where entries are cut in predictions: 6 units from a released centre, or farther out, as in
        the fit, where predictions of the private targets are clearly better so; within `bounds`; or
        nowhere (infinite). Then rows that are longer than twice `clip_norm_` are predicted as rows
        of that length.
    target_bounds_ : tuple of two ndarrays of shape (n_targets,)
        The bounds that were used: given, or released.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, when X has names that are all strings.
    privacy_spent_ : PrivacySpent
        The receipt.
    releases_ : tuple of LedgerEntry
        Each release with its sensitivity and noise scale.

    See Also
    --------
    DPRidgeClassifier : Classes in place of numbers.
    skdp.DPTruncatedSVD : Fewer features before it, hence less noise in it.
    sklearn.linear_model.Ridge : The estimator without privacy.

    References
    ----------
    .. [1] Vu, Slavkovic, "Differential privacy for clinical trial data", ICDM Workshops 2009.
    .. [2] Wang, "Revisiting differentially private linear regression", UAI 2018.
    .. [3] Bun, Allez, Bouchaud, Potters, "Rotational invariant estimator for general noisy
       matrices", IEEE Trans. Inf. Theory, 2016.

    Examples
    --------
    >>> import numpy as np
    >>> from skdp import DPRidge
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (20000, 3))
    >>> y = X @ [1.0, -2.0, 0.0] + 0.1 * rng.standard_normal(20000)
    >>> model = DPRidge(epsilon=1.0, clip_norm=1.8, target_bounds=(-3, 3)).fit(X, y)
    >>> bool(np.linalg.norm(model.coef_ - [1.0, -2.0, 0.0]) < 0.2)
    True
    """

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
        target_bounds: ArrayLike | str = "auto",
        bounds: ColumnBounds | None = None,
        budget_split: Split = "auto",
        random_state: Seed = None,
        n_jobs: int | None = None,
    ) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.epsilon = epsilon
        self.delta = delta
        self.clip_norm = clip_norm
        self.target_bounds = target_bounds
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
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            The private targets, in the order of the rows; next to Dask rows also a Dask array in
            the same blocks.
        groups : array-like of shape (n_samples,), default=None
            The person of each row, for ``privacy_unit="group"``.

        Returns
        -------
        self : DPRidge
            The fitted estimator.
        """
        self._check_parameters()
        session = self._open_session()
        placed = self._checked_records(X, y, groups, numbers=True)
        return self._close_session(session, self._fit_session(session, placed))

    def _check_parameters(self):
        check_range(self, "target_bounds")
        return super()._check_parameters()

    def _fit_session(self, session, placed):
        """Make all releases; the records are read by the session alone."""
        q = n_columns(placed.columns["y"])
        bounds = spread_range(
            self, "target_bounds", check_range(self, "target_bounds"), q, "targets"
        )
        scale = bounds and TargetScale.in_box(*bounds, centered=self.fit_intercept)
        form = RecordForm(as_columns, q)
        released = _linear.Releases(self, session, placed, form, scale).make()
        moments = released.moments and steadied(released.moments, released.mean)
        solution = moments and solve_normal_equations(moments, float(self.alpha))
        W, b, attributes = self._fitted(session, released, solution)
        single = q == 1  # a column counts as one target, as in scikit-learn
        intercept = b + released.scale.center if self.fit_intercept else np.zeros_like(b)
        return attributes | {
            "coef_": (W[:, 0] if single else W.T).astype(float_dtype(placed.rows), order="C"),
            "intercept_": float(intercept[0]) if single else intercept,
            "target_bounds_": (released.scale.low, released.scale.high),
        }

    def _target_scale(self, fit):
        """Return learnt bounds about the medians of the targets (about 0 without an intercept).

        They were found with the columns, or are searched for here. They lie within public ones, if
        these are given; targets are counted from where these are nearest to 0. Next to them what
        the search leaves for the model, and wider bounds, of the mean.
        A row of d columns is as long as sqrt(d) of their units, so that products with targets have
        about d times the noise of sums.
        """
        shares, given, centered = fit.shares, fit.scale, self.fit_intercept
        share, rest = shares["target_bounds"], _linear.model_share(shares)
        if fit.exact:
            return given or TargetScale.in_ball(math.inf, fit.q), rest, None
        find = partial(find_columns, fit.ask.targets(), fit.q, n=fit.n, centered=centered)
        alone = fit.ask if centered and given is None else None
        found = fit.targets or find(share)
        columns, share, rest = _linear.find_targets(found, find, alone, share, rest)
        if given is None:
            _linear.warn_undetected_targets(self, columns, rest)
        if not rest:
            return _linear.target_scale(columns, columns.spread, centered=True), 0.0, None
        left = _linear.left_for_model(shares, rest)
        part = max(left["regression_moments"], shares["target_bounds"]) / share
        radius = columns.radius(fit.d * columns.sums_noise(part), _TARGET_RADIUS)
        scale = _linear.target_scale(columns, radius, given, centered=centered)
        if not centered:
            return scale, rest, None
        radius = columns.mean_radius(columns.sums_noise(left["target_mean"] / share))
        wide = _linear.target_scale(columns, radius, given, centered=True)
        return scale, rest, (wide, columns)

    def _chosen_cuts(self, fit, wider, coefficients, intercepts):
        """Return the wider cuts where predictions are clearly better with them, else the usual.

        Long rows hardly count in the fit: only they tell whether its slopes go on so far.
        """
        scale, cuts = fit.scale, fit.cuts
        seen = {"center": scale.center, "size": scale.size / _TARGET_RADIUS}
        ask = fit.ask.within(math.inf, (wider[0] if wider else scale)._replace(**seen))
        at_zero = intercepts + scale.center + cuts[0].center @ coefficients
        model = coefficients * cuts[0].size[:, None], at_zero
        gain = ask.gains(tuple(cuts), model).target_sums(0.0, "cut_gain", share=fit.of_cuts)
        return cuts[int(gain.value[0] > CLEAR * gain.noise_scale)]

    def predict(self, X: Any) -> Any:
        """Predict targets; for private rows they are not covered by epsilon.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features), or blocks
            Rows. A Dask array gives a lazy Dask array, a list of files a generator of arrays.

        Returns
        -------
        y : ndarray of shape (n_samples,) or (n_samples, n_targets)
            Predicted targets.
        """
        check_is_fitted(self)
        return self._linear(X, np.asarray, None if self.coef_.ndim == 1 else len(self.coef_))
