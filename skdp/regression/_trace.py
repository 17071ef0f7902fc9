"""Low-rank matrix regression with differential privacy."""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from skdp._limits import GRAM_FEATURES
from skdp._validation import Seed, Split, check_split
from skdp.base import BaseDPEstimator, atomic
from skdp.exceptions import NoSignalWarning, PartialSignalWarning, warn_caller
from skdp.queries.records import DenseRecords, FactoredRecords, RecordQuery, SparseRecords
from skdp.regression import _measurements, _trace_steps
from skdp.regression._plans import TracePlans, matrix_shape_of
from skdp.regression._scores import ScoredRegressorMixin
from skdp.solvers.columns import Center
from skdp.solvers.postprocess import released_count
from skdp.solvers.trace import NoSignalError, fit_trace, zero_fit
from skdp.solvers.whitening import (
    Place,
    release_place,
    release_whitening,
    through_design,
    whitening,
)
from skdp.theory import required_samples
from skdp.units import offered

# Value of the bias column of the intercept, in standard deviations of an entry, if records are not
# centred. Then M and the intercept both fit the mean: with 1, a gradient step would overshoot the
# minimum by its distance before the step.
_BIAS = 0.5
# Fraction of the budget of the gradients for a second search for the targets, as in DPRidge.
_SECOND_SEARCH = 0.3


class DPTraceRegressor(ScoredRegressorMixin, TracePlans, BaseDPEstimator):
    """Low-rank matrix regression with (epsilon, delta)-differential privacy for one record.

    Fits y_i = <X_i, M> with M of size d1 x d2 and low rank. The fitted attributes satisfy
    (`epsilon`, `delta`)-differential privacy for adding or removing (or replacing, see `adjacency`)
    one record (X_i, y_i), or one y_i next to public X (``privacy_unit="label"``), whatever the data
    are: each record's contribution to a gradient is clipped to a privately learnt norm. Not
    covered: ``predict`` and ``score`` on private records.

    Parameters
    ----------
    rank : int, default=2
        Largest rank of the matrix, at most min(d1, d2). Where the released number of records is too
        small for it, the fit uses the largest rank that it is enough for.
    epsilon : float, default=1.0
        Budget of one call of fit; ``inf`` adds no noise (and warns).
    delta : float, default=1e-6
        Probability that the bound fails; well below one over the number of records.
    adjacency : {"add_remove", "replace"}, default="add_remove"
        With "add_remove" the number of records is private too (of the unit "row"); with "replace"
        it is public.
    privacy_unit : {"row", "label"}, default="row"
        "row" protects a record, and "label" its target alone. With "label", X and the number of
        records are public. Neighbours then differ in one y_i: it is withheld ("add_remove"), or has
        another value ("replace", with twice the noise).
    matrix_shape : tuple of two ints or None, default=None
        (d1, d2), the shape of a measurement matrix that is flattened to a row of X. None takes the
        shape from a 3-D X or from factors; otherwise it means (n_features, 1), linear regression.
    max_iter : int, default=24
        Number of gradient steps. Each is a release, so few records get 8 or fewer.
    gradient_clip_factor : float or "auto", default="auto"
        Clip norm of a record's contribution to a gradient, in private medians of its norm, from
        .001 to 1e6. "auto" chooses it from the budget: larger for rare targets, if noise allows.
    measurement_covariance : "private", float, two arrays or an array, default="private"
        Second moments of X. "private" learns units of rows and columns, the mean, and row and
        column covariances, with 16% of the budget (sparse X: only variances, with 8%). Otherwise
        give a public value: the variance of an entry, row and column covariances (d1, d1) and (d2,
        d2) whose Kronecker product is the covariance of X, or that covariance itself, of shape (d1
        d2, d1 d2) (dense rows). If records have different covariances, give their mean.
    solver : {"riemannian", "spectral_init"}, default="riemannian"
        "spectral_init" makes the first estimate only, with the whole budget.
    shrink_singular_values : bool, default=True
        Whether to shrink singular values by the known noise.
    budget_split : dict or "auto", default="auto"
        Budget fraction of each release. The keys depend on the other parameters; an error for a
        wrong key lists them.
    fit_intercept : bool, default=True
        Whether to fit an intercept: 6% of the budget find a private centre of y. If they find none,
        a second search takes 30% of the budget of the gradients. False is for y and X that are
        centred by public numbers.
    fit_biases : bool, default=True
        Whether to fit a mean of each row and column of the matrix too, if X is CSR (ratings) and an
        intercept is fitted. They receive 20% of the budget of the gradients, or all of it if there
        are too few records for a matrix.
    random_state : int, Generator, RandomState or None, default=None
        None draws noise from the operating system. With anything else the noise can be
        reproduced, so the fit is not private: it warns, and the receipt says "SEEDED".
    n_jobs : int or None, default=None
        Number of threads. It does not change the result.

    Attributes
    ----------
    coef_ : ndarray of shape (d1, d2)
        The matrix. If the noise is too large, or if predictions do not clearly follow the targets,
        it is zero, a warning says so, and the released mean of y is predicted.
    intercept_ : float
        The intercept, 0.0 if it is not fitted.
    left_singular_vectors_ : ndarray of shape (d1, ``rank_``)
        Left singular vectors.
    singular_values_ : ndarray of shape (``rank_``,)
        Singular values; 0 below the noise level.
    right_singular_vectors_ : ndarray of shape (d2, ``rank_``)
        Right singular vectors.
    prediction_bounds_ : ndarray of shape (2,)
        Bounds of predictions: some standard deviations from the centre of the targets.
    rank_ : int
        The rank that was used, and up to 2 more if means of rows and columns were found.
    n_samples_ : int
        Number of records: released under "add_remove", exact under "replace".
    residual_std_ : float
        Standard deviation of the residuals; 0 if none was found. It follows from the released
        median norm of contributions, as if residuals were normal, within a confidence interval from
        released second moments.
    gradient_clip_norms_ : tuple of float
        Released norms to which contributions were clipped.
    n_iter_ : int
        Number of gradient steps; 1 for "spectral_init", whose only step is the start.
    n_features_in_ : int
        Number of features, d1 d2.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if all names of X are strings.
    privacy_spent_ : PrivacySpent
        Epsilon, delta and unit of the guarantee: the receipt of the fit.
    releases_ : tuple of LedgerEntry
        Each release with its sensitivity and noise scale.

    See Also
    --------
    sklearn.linear_model.Ridge : Regression without low rank and without privacy.

    References
    ----------
    .. [1] Zha, "Near-optimal differentially private low-rank trace regression with guaranteed
       private initialization", 2024. The method here differs: it is private for every data set.

    Examples
    --------
    >>> import numpy as np
    >>> from skdp.regression import DPTraceRegressor
    >>> rng = np.random.default_rng(0)
    >>> M = np.outer([1.0, 2.0, 0.0], [1.0, -1.0])
    >>> X = rng.standard_normal((20000, 3, 2))
    >>> y = np.einsum("ijk,jk->i", X, M) + 0.1 * rng.standard_normal(20000)
    >>> model = DPTraceRegressor(rank=1, epsilon=2.0).fit(X, y)
    >>> bool(np.linalg.norm(model.coef_ - M) < 0.1)
    True
    """

    _privacy_units = offered("row", "label")

    def __init__(
        self,
        rank: int = 2,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        adjacency: str = "add_remove",
        privacy_unit: str = "row",
        matrix_shape: tuple[int, int] | None = None,
        max_iter: int = 24,
        gradient_clip_factor: float | str = "auto",
        measurement_covariance: Any = "private",
        solver: str = "riemannian",
        shrink_singular_values: bool = True,
        budget_split: Split = "auto",
        fit_intercept: bool = True,
        fit_biases: bool = True,
        random_state: Seed = None,
        n_jobs: int | None = None,
    ) -> None:
        self.rank = rank
        self.matrix_shape = matrix_shape
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.privacy_unit = privacy_unit
        self.max_iter = max_iter
        self.gradient_clip_factor = gradient_clip_factor
        self.measurement_covariance = measurement_covariance
        self.solver = solver
        self.shrink_singular_values = shrink_singular_values
        self.budget_split = budget_split
        self.fit_intercept = fit_intercept
        self.fit_biases = fit_biases
        self.random_state = random_state
        self.n_jobs = n_jobs

    @atomic
    def fit(self, X: Any, y: Any) -> Self:
        """Fit the model; spends (`epsilon`, `delta`) once.

        Parameters
        ----------
        X : array of shape (n_samples, d1 * d2) or (n_samples, d1, d2), CSR matrix, blocks, or tuple
            The measurement matrices as rows or as matrices, or factors (A, B) of shapes
            (n_samples, d1) and (n_samples, d2) for X_i = a_i b_i'. Blocks of rows are a memory
            map, a list of npy or npz files, a Dask array or `DaskRows` of files.
        y : array-like of shape (n_samples,)
            Targets, in the order of the rows; next to Dask rows also a Dask array in the same
            blocks.

        Returns
        -------
        self : DPTraceRegressor
            The fitted estimator.
        """
        self._check_parameters()
        session = self._open_session()
        placed, shape = _measurements.check_measurements(self, X, y)
        attributes = self._fit_session(session, placed, shape)
        self._warn_of(attributes.pop("failure"), attributes["n_samples_"], shape)
        return self._close_session(session, attributes)

    def _fit_session(self, session, placed, shape):
        """Make all releases; the records are read by the session alone."""
        sparse = getattr(placed.rows, "sparse", False)
        design = _measurements.check_design(self.measurement_covariance, shape, sparse=sparse)
        unit = {"adjacency": session.adjacency, "privacy_unit": session.unit}
        query = RecordQuery(placed, shape, n_jobs=self.n_jobs, **unit)
        ask, shares = session.ask(query), self._shares()
        public_n = "count" not in shares
        n = float(query.n_rows) if public_n else released_count(*ask.count(share=shares["count"]))
        if query.unit.of_targets or session.adjacency == "replace":
            self._warn_of_delta(n, session.unit)
        unit_noise = query.neighbours.units / session.budget.mu
        centre = Center(0.0, 0.0, True)
        if self.fit_intercept:
            centre = _trace_steps.release_center(self, session, placed, shares["center"], n)
        rank = self._rank_for(n, query.shape)
        needed = self._records_needed(query.shape, rank).error_below_half
        facts = _trace_steps.descent_facts(self, query.shape, n, unit_noise, needed)
        facts = facts._replace(rank=rank)
        if not centre.found and n >= needed:  # worth a second search, and a matrix after it
            share = _SECOND_SEARCH * facts.steps_share
            centre = _trace_steps.release_center(self, session, placed, share, n, far=True)
            facts = facts.with_more(-share)
        # Row and column biases are fitted for CSR rows only, the form of single entries.
        means = self.fit_biases and self.fit_intercept and sparse and min(shape) > 1
        attributes = self._descend(ask, query, facts, design, shares, centre, means)
        unspent = 0.0 if session.budget.exact else session.remaining()
        # If no matrix is fitted, only the mean of y is predicted: the unspent budget improves it.
        if unspent > shares.get("center", math.inf) and not attributes["coef_"].any():
            centre = _trace_steps.release_center(self, session, placed, unspent, n, far=True)
            attributes["intercept_"] = centre.value
            attributes["prediction_bounds_"] = np.full(2, centre.value)
        session.charge_unused()
        return attributes | {
            "rank_": len(attributes["singular_values_"]),
            "n_samples_": round(n),
            "n_iter_": max(1, len(attributes["gradient_clip_norms_"]) - 1),
        }

    # -- parameters ------------------------------------------------------------------------

    def _check_parameters(self):
        _measurements.check_parameters(self)
        self._shares()

    def _shares(self):
        return check_split(self, _trace_steps.default_shares(self))

    # -- releases --------------------------------------------------------------------------

    def _descend(self, ask, query, facts, design, shares, centre, means):
        """Learn the covariance of X, then biases and the matrix; return the fitted attributes."""
        shape, n = query.shape, facts.n
        place = Place(np.zeros(math.prod(shape)), tuple(map(np.ones, shape)), 0.0)
        size = sum(shape) if isinstance(query.form, FactoredRecords) else math.prod(shape)
        if isinstance(query.form, SparseRecords) or size > GRAM_FEATURES:  # a search takes too long
            facts = facts.with_more(shares.get("units", 0.0))
            shares = shares | {"units": 0.0}
        unseen = self.fit_intercept and not (centre.found and centre.sd)  # 0: epsilon is infinite
        try:
            if unseen:
                raise NoSignalError
            place, query, ask, design = self._whiten(ask, query, n, design, shares, facts, place)
            if design is None:
                raise NoSignalError
        except NoSignalError:
            hidden = "the targets" if unseen else "X"
            fit = zero_fit(shape, facts.rank, f"the noise hides the scale of {hidden}")
            return _trace_steps.calibrated(None, fit, facts, None, None, centre, 0.0, place)
        bias = (1.0 if place.radius else _BIAS) * math.sqrt(design.lam) * self.fit_intercept
        facts = facts._replace(
            bias=bias, target_sd=centre.sd, lam=design.lam,
            variance=design.variance, variance_ratio=design.variance_ratio,
        )  # fmt: skip
        biases = None
        if means:
            biases, facts = _trace_steps.first_biases(ask, facts, design, centre)
        if biases and facts.n < facts.useful:  # too few for a matrix
            fit, facts = _trace_steps.biases_alone(ask, facts, biases), facts._replace(bias=0.0)
            ask = biases.residuals(ask).augmented(centre.value, 0.0)
        else:
            ask = biases.residuals(ask) if biases else ask
            ask = through_design(ask, design).augmented(centre.value, bias)
            fit = fit_trace(ask, facts)
        share = shares["calibration"]
        return _trace_steps.calibrated(ask, fit, facts, design, biases, centre, share, place)

    def _whiten(self, ask, query, n, design, shares, facts, place):
        """Learn the units and the mean of records, and the covariance of X, unless it is given."""
        (shape, rank_share), public = (query.shape, facts.rank_share), query.unit.of_targets
        if design is not None:
            return place, query, ask, design
        centered = self.fit_intercept and isinstance(query.form, DenseRecords)
        searched = not (public or isinstance(query.form, SparseRecords))
        if searched:
            factored = isinstance(query.form, FactoredRecords)
            place = release_place(ask, place, n, rank_share, shares, factored, centered)
        elif public and centered:
            place = place._replace(at=query.public_mean())
        if searched or (public and centered):
            query, ask = query.about(place.at, place.units), ask.about(place.at, place.units)
        if public:
            return place, query, ask, whitening(query.public_moments(), shape, n, 0.0)
        share = shares["covariance"] + (0.0 if centered else shares["mean"])
        return place, query, ask, release_whitening(ask, shape, n, rank_share, share, place.radius)

    def _warn_of(self, failure, n, shape):
        """Warn if a fit is of little use; the text is made from public and released numbers."""
        if failure:
            needed = self._records_needed(shape).error_below_half
            remedy = _trace_steps.remedy_of(n, needed, shape)
            category = NoSignalWarning if "learnt nothing" in failure else PartialSignalWarning
            warn_caller(f"{type(self).__name__} {failure}. {remedy}", category)

    def required_samples(self, matrix_shape: Any = None) -> Any:
        """Say how many records a fit with these parameters needs; no data is touched.

        Parameters
        ----------
        matrix_shape : tuple of two ints or None, default=None
            (d1, d2); None takes the parameter `matrix_shape`.

        Returns
        -------
        needed : RequiredSamples
            ``bounds_found``, ``error_below_half`` and ``accurate`` numbers of records.
        """
        self._check_parameters()
        return self._records_needed(matrix_shape_of(matrix_shape, self.matrix_shape))

    def _rank_for(self, n, shape):
        """Return the largest rank that n records are enough for; with a larger one all is lost.

        Noise needs a number that grows as the root of the rank. Each direction after the second
        counts one and a half times, because a rank too many loses more than one too few. And a
        matrix may have half as many degrees of freedom as there are records.
        """
        ranks = np.arange(1, min(self.rank, *shape) + 1)
        of_one = self._records_needed(shape, 1).error_below_half
        enough = of_one * np.sqrt(np.maximum(1.5 * ranks - 1, 1)) <= n
        enough &= 2 * ranks * (sum(shape) - ranks) <= n
        return int(ranks[enough].max(initial=1))

    def _records_needed(self, shape, rank=None):
        return required_samples(
            tuple(shape), rank or self.rank, epsilon=self.epsilon, delta=self.delta,
            adjacency=self.adjacency,
            rank_share=_trace_steps.descent_facts(self, shape, 1, 0.0).rank_share,
        )  # fmt: skip

    # -- the model ---------------------------------------------------------------------------

    def predict(self, X: Any) -> Any:
        """Predict targets; for private records they are not covered by epsilon.

        Parameters
        ----------
        X : array of shape (n_samples, d1 * d2) or (n_samples, d1, d2), CSR matrix, or tuple
            Measurement matrices, in any of the forms that `fit` takes. A Dask array gives a lazy
            Dask array, a list of files a generator of arrays.

        Returns
        -------
        y : ndarray of shape (n_samples,)
            Predicted targets.
        """
        check_is_fitted(self)
        return _measurements.predictions(self, X)
