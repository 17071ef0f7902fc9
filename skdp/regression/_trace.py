"""Low-rank matrix regression with differential privacy."""

from __future__ import annotations

import math
from functools import partial
from numbers import Integral
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from skdp._validation import Seed, Split, check_split
from skdp.base import BaseDPEstimator, atomic
from skdp.data.units import in_memory
from skdp.exceptions import PrivacyWarning, warn_caller
from skdp.queries.records import RecordQuery
from skdp.queries.sums import Neighbours
from skdp.regression._measurements import (
    SEARCH_ALONE,
    TOO_FEW,
    check_design,
    check_measurements,
    check_parameters,
    default_shares,
    descent_facts,
    doubt_of,
    first_shares,
    has_means,
    look_at_means,
    pay_the_rest,
    predictions,
    public_steps,
    release_center,
    remedy_of,
    unspent,
)
from skdp.regression._scores import ScoredRegressorMixin
from skdp.solvers.columns import Center
from skdp.solvers.postprocess import released_count
from skdp.solvers.trace import READABLE, UnreadableError, clip_multiplier, fit_trace, zero_fit
from skdp.solvers.whitening import (
    Place,
    release_place,
    release_whitening,
    through_design,
    trace_attributes,
    whitening,
)
from skdp.theory import (
    Expectation,
    FitPlan,
    check_counts,
    expected_error,
    records_needed,
    rehearse,
    zero_rows,
)
from skdp.units import offered, unit_of


def shape_of(given, parameter):
    """Return (d1, d2) from what was given, or from the parameter `matrix_shape`."""
    if isinstance(given, Integral) and parameter is not None:
        if given != math.prod(parameter):
            raise ValueError(
                f"n_features={given} does not fit matrix_shape={parameter!r}; leave it out."
            )
        given = None
    shape = parameter if given is None else given
    if shape is None:
        raise ValueError("plan needs the shape of the matrix: set 'matrix_shape'. Got None.")
    return (int(shape), 1) if isinstance(shape, Integral) else tuple(map(int, shape))


# -- records: a matrix -------------------------------------------------------------------------


def plan_trace(estimator, n_samples, n_features, nnz, signal):
    """Return the plan of a trace regression of dense records; with `nnz`, of CSR rows."""
    shape = shape_of(n_features, estimator.matrix_shape)
    check_counts(estimator, n_samples=n_samples)
    estimator._check_parameters()
    if nnz is not None and (
        not isinstance(nnz, Integral) or not 1 <= nnz <= n_samples * math.prod(shape)
    ):
        raise ValueError(
            f"'nnz' must be a number of entries of X, at least 1. Got {nnz!r} instead."
        )
    known, sparse = unit_of(estimator).of_targets, nnz is not None
    rows = n_samples if known or estimator.adjacency == "replace" else 1  # else nobody asks
    records = planned_records(rows, shape, known=known, sparse=sparse)
    planned = estimator if sparse else clone(estimator).set_params(fit_means=False)
    moments = single_moments(shape) if sparse else ordinary_moments(shape)
    rehearsal = rehearse(planned, n_samples, records, shape, design_moments=moments)
    unit_noise = Neighbours(estimator.adjacency).units / rehearsal.mu
    facts = descent_facts(estimator, shape, n_samples, unit_noise)
    needed = 0.0
    if has_means(planned, shape, sparse=sparse):
        facts, needed = first_shares(facts)[1], TOO_FEW * estimator._records_needed(shape).useful
    expected = expect_trace(facts, signal, needed)
    return rehearsal.plan(n_samples, math.prod(shape), expected, "1; sums: the median length")


def planned_records(n, shape, *, known, sparse=False):
    """Return records of a public shape; where X is public, those of an even design."""
    size, y = math.prod(shape), np.broadcast_to(np.zeros(()), (n,))
    if not known:
        return in_memory(zero_rows(n, size, sparse=sparse), y=y)
    places = np.arange(n) % size
    values = np.full(n, math.sqrt(size))
    rows = sp.csr_array((values, places, np.arange(n + 1)), shape=(n, size))
    return in_memory(rows, y=y)


def ordinary_moments(shape):
    """Return the moments of records whose entries are alike and whose moments have norm 1."""
    d1, d2 = shape

    def moments(n, noise, _clip_level):
        diagonal = len(noise.value) == d1 + d2
        parts = [np.ones(d) if diagonal else np.eye(d) for d in shape]
        length = math.sqrt(d1 * d2 * (d1 + d2))
        return n / length * np.concatenate([d2 * parts[0].ravel(), d1 * parts[1].ravel()])

    return moments


def single_moments(shape):
    """Return the moments of records of a single 1, all places alike."""

    def moments(n, _noise, _clip_level):
        return np.concatenate([np.full(d, n / d) for d in shape])

    return moments


def expect_trace(facts, signal, needed=0.0):
    """Expect the error of the matrix; the noise of y has standard deviation 1, <X, M> `signal`.

    `facts` are those of the fit, for entries of variance 1. With fewer records than `needed` no
    matrix is looked for.
    """
    readable = max(READABLE * facts.unit_noise / math.sqrt(facts.rank_share), needed)
    size = facts.tangent_size
    level = clip_multiplier(facts, size, facts.gradients or facts.init)
    return Expectation(
        error=partial(matrix_error, facts=facts, readable=readable, signal=float(signal)),
        meaning="relative error of the matrix, 1 is the zero matrix",
        found=math.ceil(readable),
        signal="records from which medians can be read",
        assumptions=(
            f"<X_i, M> has {signal:g} times the standard deviation of the noise of y",
            f"entries of X have equal variances; clip levels near {level:g} medians",
        ),
        goal=0.5,
    )


def matrix_error(n, facts, readable, signal):
    """Return the expected error for another number of records."""
    if n < readable:
        return 1.0
    return expected_error(facts._replace(n=n), noise_sd=1.0, signal_sd=signal)


# Low-rank matrix regression with differential privacy.


# Of the deviation of an entry, where records are not centred: these see their mean and the
# intercept together, so that at 1 a step would go as far beyond the minimum as it began before it.
_CORNER = 0.5
_MOST = (
    0.5  # of the budget: a fit that stops with more has no matrix, and says where y lies at least
)


class DPTraceRegressor(ScoredRegressorMixin, BaseDPEstimator):
    """Low-rank matrix regression with (epsilon, delta)-differential privacy for one record.

    Fits y_i = <X_i, M> with M of size d1 x d2 and low rank. The fitted attributes satisfy
    (`epsilon`, `delta`)-differential privacy for adding or removing (or replacing, see `adjacency`)
    one record (X_i, y_i), or one y_i beside public X (``privacy_unit="label"``), whatever the data
    are: each record's share of a gradient is cut to a privately learnt length. Not covered:
    ``predict`` and ``score`` on private records.

    Parameters
    ----------
    rank : int, default=2
        Rank of the matrix; at most min(d1, d2) is used.
    epsilon : float, default=1.0
        Budget of one call of fit; ``inf`` adds no noise (and warns).
    delta : float, default=1e-6
        Probability that the bound fails; well below one over the number of records.
    adjacency : {"add_remove", "replace"}, default="add_remove"
        With "add_remove" the number of records is private too (of the unit "row"); with "replace"
        it is public.
    privacy_unit : {"row", "label"}, default="row"
        "row" protects a record, "label" its target alone. X and the number of records are then
        public, and used as they are; with "add_remove" a neighbour withholds one y_i (its record
        adds nothing), with "replace" it has another y_i, which costs twice as much noise.
    matrix_shape : tuple of two ints or None, default=None
        (d1, d2), the shape of a measurement matrix that arrives as a row of X. None means that of
        a 3-D X or of factors, else (n_features, 1): an ordinary linear regression.
    max_iter : int, default=8
        Gradient steps; each is a release, so more is not better.
    clip_level : float or "auto", default="auto"
        Where a record's share of a gradient is cut, in medians of its length (which are learnt
        privately). "auto" plans it from the budget.
    design : "private", float, (array (d1, d1), array (d2, d2)), or array (d1 d2, d1 d2)
        Second moments of X: learnt with 8% of the budget (where dense rows lie, and row and column
        covariances about there; variances only for sparse X), or the public variance of an entry,
        or public row and column covariances whose Kronecker product is the covariance of X, or that
        covariance itself (of dense rows). Where records have covariances of their own, give their
        mean.
    solver : {"riemannian", "spectral_init"}, default="riemannian"
        "spectral_init" stops after the first release, and spends everything on it.
    shrink : bool, default=True
        Shrink singular values by the known noise (free).
    budget_split : dict or "auto", default="auto"
        Shares of the releases; its keys depend on the other parameters and are named in the error.
    fit_intercept : bool, default=True
        Learn an intercept, so that a shift of y does not matter, nor one of dense X whose design is
        learnt: 3% of the budget finds a private centre of y. False is for y and X that are centred
        by public numbers.
    fit_means : bool, default=True
        Learn a mean of each row and column of the matrix as well, where X is CSR (ratings, one
        entry each) and an intercept is fitted: a first look has 6% of the gradients' share, and all
        of it where records are too few for a matrix. Dense X has none.
    random_state : int, Generator, RandomState or None, default=None
        None draws noise from the operating system. Anything else makes the noise reproducible,
        which is not private: it warns and is flagged in the receipt.
    n_jobs : int or None, default=None
        Threads for the passes over the records; it never changes the result.

    Attributes
    ----------
    coef_ : ndarray of shape (d1, d2)
        The matrix. It is zero, with a warning, if the budget is too small for the data; the
        released mean of y is predicted then.
    intercept_ : float
        The intercept, 0.0 if it is not fitted.
    U_ : ndarray of shape (d1, ``rank_``)
        Left singular vectors.
    singular_values_ : ndarray of shape (``rank_``,)
        Singular values; those lost in the noise are zero.
    V_ : ndarray of shape (d2, ``rank_``)
        Right singular vectors.
    rank_ : int
        min(rank, d1, d2), and up to 2 more where means of rows and columns were found.
    n_samples_ : int
        Number of records: released under "add_remove", exact under "replace".
    noise_sd_ : float
        Released scale of the residuals; 0 where none could be read.
    clip_levels_ : tuple of float
        Released lengths to which contributions were cut.
    n_iter_ : int
        Number of gradient steps; 1 for "spectral_init", whose only step is the start.
    n_features_in_ : int
        Number of features, d1 d2.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, when X has names that are all strings.
    privacy_spent_ : PrivacySpent
        The receipt.
    ledger_ : tuple of LedgerEntry
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
        max_iter: int = 8,
        clip_level: float | str = "auto",
        design: Any = "private",
        solver: str = "riemannian",
        shrink: bool = True,
        budget_split: Split = "auto",
        fit_intercept: bool = True,
        fit_means: bool = True,
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
        self.clip_level = clip_level
        self.design = design
        self.solver = solver
        self.shrink = shrink
        self.budget_split = budget_split
        self.fit_intercept = fit_intercept
        self.fit_means = fit_means
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
            Targets, in the order of the rows; beside Dask rows also a Dask array in the same
            blocks.

        Returns
        -------
        self : DPTraceRegressor
            The fitted estimator.
        """
        self._check_parameters()
        session = self._open_session()
        placed, shape = check_measurements(self, X, y)
        attributes = self._fit_session(session, placed, shape)
        self._warn_of(attributes.pop("doubt"), attributes["n_samples_"], shape)
        return self._close_session(session, attributes)

    def _fit_session(self, session, placed, shape):
        """Make all releases; the records are read by the session alone."""
        sparse = getattr(placed.rows, "sparse", False)
        design = check_design(self.design, shape, sparse=sparse)
        query = RecordQuery(
            placed, shape, adjacency=session.adjacency, privacy_unit=session.unit,
            n_jobs=self.n_jobs,
        )  # fmt: skip
        ask, shares = session.ask(query), self._shares()
        n = self._n_records(ask, query, shares)
        public = query.unit.of_targets
        if public or session.adjacency == "replace":
            self._warn_of_delta(n, session.unit)
        unit_noise = query.neighbours.units / session.budget.mu
        centre = Center(0.0, 0.0, True)
        if self.fit_intercept:
            centre = release_center(self, session, placed, shares["center"], n)
        means = has_means(self, shape, sparse=sparse)
        attributes = self._descend(ask, query, n, design, shares, unit_noise, centre, means)
        if self.fit_intercept and unspent(session) > _MOST:
            left = unspent(session)
            centre = release_center(self, session, placed, left, n, SEARCH_ALONE)
            attributes["intercept_"] = centre.value
        if not centre.found:
            attributes["doubt"] = "could not see where the targets lie"
        pay_the_rest(session)
        return attributes

    # -- parameters ------------------------------------------------------------------------

    def _check_parameters(self):
        check_parameters(self)
        self._shares()

    def _shares(self):
        return check_split(self, default_shares(self))

    # -- releases --------------------------------------------------------------------------

    def _n_records(self, ask, query, shares):
        if "count" not in shares:
            return float(query.n_rows)
        count = ask.count(share=shares["count"])
        return released_count(*count)

    def _descend(self, ask, query, n, design, shares, unit_noise, centre, means):
        """Learn the design, then means and the matrix; return the fitted attributes."""
        shape = query.shape
        facts = descent_facts(self, shape, n, unit_noise)
        try:
            if not centre.found:
                raise UnreadableError
            place, query, ask, design = self._look(ask, query, n, design, shares, facts.rank_share)
            if design is None:
                raise UnreadableError
        except UnreadableError:
            return self._attributes(zero_fit(shape, facts.rank), None, n, centre.value)
        corner = (1.0 if place.reach else _CORNER) * math.sqrt(design.lam) * self.fit_intercept
        learnt = {"lam": design.lam, "variance": design.variance, "spread": design.spread}
        learnt["target_sd"] = centre.sd if self.fit_intercept else 0.0
        facts = facts._replace(corner=corner, useful=self._records_needed(shape).useful, **learnt)
        looked = look_at_means(ask, facts, design, centre) if means else None
        if looked is not None and looked.alone:
            return self._attributes(looked.fit(ask), design, n, centre.value, looked)
        if looked is not None:
            facts, ask = looked.facts, looked.before(ask)
        known = public_steps(query, design, centre.value, corner)
        ask = through_design(ask, design).augmented(centre.value, corner)
        fit = fit_trace(ask, facts, known)
        at_zero = centre.value
        if place.reach or not fit.zero_because:  # an intercept about 0 belongs to its matrix
            at_zero += corner * fit.intercept
        attributes = self._attributes(fit, design, n, at_zero, looked)
        attributes["intercept_"] -= float(place.at @ attributes["coef_"].ravel())
        return attributes

    def _look(self, ask, query, n, design, shares, rank_share):
        """Learn where dense records lie and what they are like about there, unless it is known."""
        shape, place = query.shape, Place(np.zeros(math.prod(query.shape)), 0.0)
        if design is not None:
            return place, query, ask, design
        public, placed = query.unit.of_targets, self.fit_intercept and query.is_dense
        if placed and public:
            place = Place(query.public_mean(), 0.0)
        elif placed:
            place = release_place(ask, shape, n, rank_share, shares["mean"])
        if placed:
            query, ask = query.about(place.at), ask.about(place.at)
        if public:
            return place, query, ask, whitening(query.public_moments(), shape, n, 0.0)
        share = shares["covariance"] + (0.0 if placed else shares["mean"])
        design = release_whitening(ask, shape, n, rank_share, share, place.reach)
        return place, query, ask, design

    def _attributes(self, fit, design, n, intercept, looked=None):
        left, right = (None, None) if design is None else design[:2]
        means = None if looked is None else looked.beside()
        attributes = trace_attributes(fit, left, right, means)
        return attributes | {
            "doubt": doubt_of(fit, looked),
            "intercept_": intercept,
            "rank_": len(attributes["singular_values_"]),
            "n_samples_": round(n),
            "n_iter_": 1 if self.solver == "spectral_init" else self.max_iter,
        }

    def _warn_of(self, doubt, n, shape):
        """Say that a fit is of little use, from public numbers and released ones."""
        needed = self._records_needed(shape).useful
        if not doubt and n >= needed:
            return
        outcome = doubt or "expects a relative error above one half"
        warn_caller(
            f"{type(self).__name__} {outcome}. {remedy_of(n, needed)}",
            PrivacyWarning,
        )

    def plan(
        self, n_samples: int, n_features: Any = None, *, nnz: Any = None, signal: float = 1.0
    ) -> FitPlan:
        """Say what a fit would release, and what error to expect; no data is touched.

        Parameters
        ----------
        n_samples : int
            Number of records, or a guess of it where it is private.
        n_features : int, tuple of two ints or None, default=None
            Number of features, or the shape of the matrix; None takes `matrix_shape`.
        nnz : int or None, default=None
            Stored numbers of X in CSR rows (ratings: one for each record), which have means.
        signal : float, default=1.0
            Assumed standard deviation of <X_i, M>, in units of that of the noise of y.

        Returns
        -------
        plan : FitPlan
            ``print(plan)`` shows it; ``plan.error`` is the expected relative error of `coef_`.
        """
        return plan_trace(self, n_samples, n_features, nnz, signal)

    def records_needed(self, matrix_shape: Any = None) -> Any:
        """Say how many records a fit with these parameters needs; no data is touched.

        Parameters
        ----------
        matrix_shape : tuple of two ints or None, default=None
            (d1, d2); None takes the parameter `matrix_shape`.

        Returns
        -------
        needed : RecordsNeeded
            ``readable``, ``useful`` and ``accurate`` numbers of records.
        """
        self._check_parameters()
        return self._records_needed(shape_of(matrix_shape, self.matrix_shape))

    def _records_needed(self, shape):
        return records_needed(
            tuple(shape), self.rank, epsilon=self.epsilon, delta=self.delta,
            adjacency=self.adjacency, rank_share=descent_facts(self, shape, 1, 0.0).rank_share,
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
        return predictions(self, X)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.regressor_tags.poor_score = True
        return tags
