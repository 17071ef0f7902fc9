"""Truncated singular value decomposition with differential privacy."""

from __future__ import annotations

import math
from typing import Any, Self

from skdp import _inputs, _validation
from skdp._limits import CLEAR
from skdp.answer import NOTHING
from skdp.base import BaseDPEstimator, FitsElsewhereMixin, as_input_dtype, atomic
from skdp.data.blocks import row_source
from skdp.decomposition import _base, _centres, _unit_fits
from skdp.decomposition._planning import DecompositionPlans
from skdp.exceptions import warn_caller
from skdp.solvers.linalg import components_of
from skdp.solvers.postprocess import svd_variances
from skdp.units import DEGREE, offered


def check_used(estimator):
    """Refuse bounds that the unit does not use; warn of steps that a named algorithm omits.

    Decided from parameters alone.
    """
    _inputs.check_clip_norm_read(estimator)
    unit, name = estimator._protects, estimator.algorithm
    steps = ("n_oversamples",) if name == "deflation" else ("n_iter", "n_oversamples")
    steps = () if name in _unit_fits._ITERATED else steps
    ignored = [key for key in steps if getattr(estimator, key) != "auto"]
    if unit.by_rows:  # where parameters of scikit-learn may have no effect
        return
    unread = unit.reads_clip_norm and name not in _unit_fits._OF_ROWS
    if unread and estimator.clip_norm not in ("auto", math.inf):
        ignored.append("clip_norm")
    if ignored:
        read = " and ".join(ignored)
        warn_caller(
            f"algorithm={name!r} of privacy_unit={unit.name!r} ignores {read}.", UserWarning
        )


_ROW_SOLVERS = ("auto", "randomized", "arpack", "gram", "power", "screened")


class DPTruncatedSVD(
    _inputs.GroupUnitMixin, _base.LinearTransformMixin, FitsElsewhereMixin, DecompositionPlans,
    BaseDPEstimator,
):  # fmt: skip
    """Truncated singular value decomposition with (epsilon, delta)-differential privacy.

    The fitted attributes satisfy (`epsilon`, `delta`)-differential privacy for one unit of X: a row
    (default), an interaction of a binary user-item matrix, or an entry, whatever the data are.
    Contributions beyond the public bounds are clipped. X is not centred, and sparse X of more than
    100 columns is never densified. Not covered: ``transform`` of private rows, and models trained
    on them.

    Parameters
    ----------
    n_components : int, default=2
        Number of components.
    epsilon : float, default=1.0
        Budget of one call of fit; ``inf`` adds no noise (and warns).
    delta : float, default=1e-6
        Probability that the bound fails; well below one over the number of units. 0 (pure
        differential privacy) is available with "one_shot" and "deflation", and with one component
        for all units of entries.
    clip_norm : float or "auto", default="auto"
        Row unit, and Gram matrices of entries: largest norm of a row. Up to 11% of the budget find
        about the median norm. Rows far from 0 are clipped about their released mean, unless they
        are sparse and of more than 100 columns. A number is an upper bound; with "auto" a warning
        says if no norm was found.
    adjacency : {"add_remove", "replace"}, default="add_remove"
        What neighbours differ in; under "replace" the number of rows is public.
    privacy_unit : {"row", "group", "interaction", "entry", "edge", "entry_change", "edge_change", \
"mixed", "frobenius", "spectral"}, default="row"
        What is protected. "group": all rows of one person; the root mean square of their norms is
        clipped. "interaction": one 1 of a binary matrix. Every value except 0 counts as 1, also a
        low or negative rating. "entry": one entry. "edge": one symmetric pair of entries of a graph
        (X is square, and only its upper triangle counts). The other units need no bounds of
        entries; you ensure them, because the code cannot check them, for X as 64-bit floats.
        "entry_change" and "edge_change": one entry (pair) changes by at most `unit_bound`. "mixed"
        (equation 7 of [1]_, X symmetric): the norm of the rows' sums of absolute changes is at most
        that. "frobenius" and "spectral": any change of that norm.
    group_column : int, str or None, default=None
        Unit "group": the column of X with the person of each row, in place of `groups` of ``fit``.
        It is not a feature.
    algorithm : {"auto", "randomized", "arpack", "gram", "power", "screened", "alternating", \
"deflation", "one_shot"}, default="auto"
        "auto" takes the lowest predicted noise, from public shapes and parameters.

        - Rows: "gram" (and "arpack") releases the Gram matrix and column sums. "power" (and
          "randomized") takes power steps, which start at the sums. "screened" starts them at the
          Gram matrix of the columns with the largest sums, for wide rows that are sparse, or whose
          entries seem to have one sign. With few rows without negative entries, "auto" releases
          column sums only.
        - Interactions: "gram" (and "arpack"), "screened" (the Gram matrix of the most popular
          items), "power" (and "randomized"), "one_shot". "auto" releases the number of
          interactions first, unless `unit_bound` is given. With few users it releases item counts
          only.
        - Entries: "gram" (and "arpack") and "screened" for thin matrices, "alternating" (and
          "randomized"), "one_shot". "auto" may first release the means of columns, for entries in
          (0, high), and the variance of rounding entries to these bounds. For both signs it may
          release the sum of squares. If noise hides most other directions, it releases column sums
          only.
        - Edges: "power", "one_shot". "auto" may first release the sum of the weights, and the
          variance of rounding them. If noise hides most other directions, it releases degrees only.
        - "entry_change", "frobenius": "alternating", or "one_shot", which adds noise to the matrix.
        - "edge_change", "mixed": "power". "spectral": "alternating".

        For interactions, entries in (0, high) and edges, "one_shot" flips each cell or pair with
        probability 1/(1 + e^epsilon), with pure differential privacy for any `n_components`. It is
        rejected if it would flip more than 2e7 cells. With other bounds, it adds Laplace noise to
        entries and edges, for up to 1,500 rows or columns. "deflation" finds one component after
        the other; all units of entries have it with ``delta=0``. In a `PrivacyLedger`, "auto"
        releases nothing first.
    n_iter : int or "auto", default="auto"
        Number of power steps. Each is a release, so more are not better.
    n_oversamples : int or "auto", default="auto"
        Extra columns of algorithms with products. "auto" takes at most ten for rows and
        interactions, fewer for graphs and none for other units, because each adds noise.
    power_iteration_normalizer : {"auto", "QR"}, default="auto"
        "LU" and "none" have no bounded sensitivity and are refused.
    random_state : int, Generator, RandomState or None, default=None
        None draws noise from the operating system. With anything else the noise can be
        reproduced, so the fit is not private: it warns, and the receipt says "SEEDED".
    tol : float, default=0.0
        No effect: a fit never stops early on private values.
    unit_bound : (low, high), int, float or None, default=None
        The bound of the unit. Entries and edges: the interval to which they are clipped, which must
        contain 0; None is (0, 1). In (0, high) "one_shot" rounds x to `high` with probability
        x/high, else to 0; up to 1,500 rows or columns it uses Laplace noise instead if a released
        number shows that its error is smaller. Interactions: rows are divided by
        ``sqrt(max(degree, unit_bound))``; None is the released mean degree. Other units: the norm
        of the largest change of X as float64, which you ensure; None is 1. Rows and groups: none,
        because `clip_norm` bounds them.
    budget_split : dict or "auto", default="auto"
        Row unit: budget fraction of each release; an error for a wrong key lists the right ones.
    n_jobs : int or None, default=None
        Number of threads. It does not change the result.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Right singular vectors. The sign of each depends on that vector alone.
    explained_variance_ : ndarray of shape (n_components,)
        Released variance of the projected rows, which are scaled down to `clip_norm_` before.
    explained_variance_ratio_ : ndarray of shape (n_components,)
        Its fraction of the released total variance. Two kinds of fits release no total: products
        for a unit whose bound you ensure, and products with ``delta=0``. Then it is the fraction of
        the variance of all released components. If only column sums were released, the total is an
        upper bound.
    singular_values_ : ndarray of shape (n_components,)
        Released singular values. If `algorithm` (or a PrivacyLedger) sets "one_shot", they contain
        the variance of rounding entries to 0 and `high` in two cases: for edges at epsilon below
        about 2.5, and for more than 1,500 rows and columns.
    left_singular_vectors_ : ndarray of shape (n_samples, n_components)
        Units other than row and interaction: left singular vectors, which may be published. "gram"
        and "screened" spend 5% of the budget on them. With many rows they may be noise, without a
        warning, although `components_` are accurate. "alternating" spends as much on both. If only
        column sums were released, all rows are equal, or (in a graph) proportional to degrees.
    n_samples_seen_ : int
        Number of rows: released under "add_remove" for the row unit, otherwise exact (public).
    clip_norm_ : float
        Row unit: the clip norm that was used: released (perhaps about the mean), and at most the
        given one.
    user_level_mu_ : float
        Interaction unit: the mu that the fit implies for all interactions of a user. It is not set
        for "one_shot" or item counts alone, which imply epsilon times the number of items, nor if
        "auto" may choose them after the first release.
    algorithm_reason_ : str
        Units other than row: which algorithm was used, and why.
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
    DPPCA : With centring.
    sklearn.decomposition.TruncatedSVD : The estimator without privacy.

    References
    ----------
    .. [1] Nicolas, Sabater, Maouche, Ben Mokhtar, Coates, "Differentially private and
       decentralized randomized power method", 2024.
    .. [2] Hardt, Roth, "Beyond worst-case analysis in private singular vector computation",
       STOC 2013.

    Examples
    --------
    >>> import numpy as np
    >>> from skdp import DPTruncatedSVD
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((5000, 4)) @ np.diag([3.0, 1.0, 0.3, 0.1])
    >>> svd = DPTruncatedSVD(n_components=1, epsilon=1.0, clip_norm=5.0).fit(X)
    >>> bool(abs(svd.components_[0, 0]) > 0.9)
    True
    """

    _privacy_units = offered("row", "group", *_unit_fits.UNIT_SOLVERS)

    def __init__(
        self,
        n_components: int = 2,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        clip_norm: float | str = "auto",
        adjacency: str = "add_remove",
        privacy_unit: str = "row",
        group_column: Any = None,
        algorithm: str = "auto",
        n_iter: int | str = "auto",
        n_oversamples: int | str = "auto",
        power_iteration_normalizer: str = "auto",
        random_state: _validation.Seed = None,
        tol: float = 0.0,
        unit_bound: Any = None,
        budget_split: _validation.Split = "auto",
        n_jobs: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.algorithm = algorithm
        self.n_iter = n_iter
        self.n_oversamples = n_oversamples
        self.power_iteration_normalizer = power_iteration_normalizer
        self.random_state = random_state
        self.tol = tol
        self.epsilon = epsilon
        self.delta = delta
        self.clip_norm = clip_norm
        self.adjacency = adjacency
        self.privacy_unit = privacy_unit
        self.group_column = group_column
        self.unit_bound = unit_bound
        self.budget_split = budget_split
        self.n_jobs = n_jobs

    @atomic
    def fit(self, X: Any, y: Any = None, groups: Any = None) -> Self:
        """Fit the model; spends (`epsilon`, `delta`) once.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features), or blocks
            The private data. For the row unit also blocks, as in `DPPCA`.
        y : Ignored
            Not used.
        groups : array-like of shape (n_samples,), default=None
            The person of each row, for ``privacy_unit="group"``.

        Returns
        -------
        self : DPTruncatedSVD
            The fitted estimator.
        """
        self._check_parameters()
        self._checked_session()  # what is wrong with the budget is said before the shape
        options = {"accept_sparse": ("csr", "csc"), "ensure_min_features": 2}
        if self._protects.by_rows:
            X = self._checked_rows(X, groups, **options)
        else:
            self._check_given(groups)
            X = _inputs.check_matrix(self, X, "unless privacy_unit='row'", **options)
            self._check_shape(*X.shape)
        session = self._open_session(pure=self._is_pure(X))
        attributes = self._fit_session(session, X)
        return self._close_session(session, as_input_dtype(attributes, _inputs.float_dtype(X)))

    def _fit_session(self, session, X):
        """Make all releases; X itself is read by the session alone."""
        if self._protects.by_rows:
            X = row_source(X)
            public = self.adjacency == "replace" and not self._by_group
            self._check_shape(X.n_rows() if public else math.inf, X.n_features)
            return self._fit_rows(session, X)
        self._check_shape(*X.shape)
        counts = self._protects.bound is DEGREE
        fit = _unit_fits.fit_interactions if counts else _unit_fits.fit_entries
        name, reason = _unit_fits.unit_route(self, X.shape)
        if name == "auto" and self.delta > 0:
            session.leave_open(self.delta)
        self._warn_of_delta(*_inputs.public_units(self, X.shape, session))
        return {"algorithm_reason_": reason} | fit(self, session, X, name)

    # -- parameters ----------------------------------------------------------------------------

    _offers_pure_dp, _budget_kinds = _unit_fits.pure_units, _unit_fits.budget_kinds

    def _is_pure(self, X):
        flips = not self._protects.by_rows and not _unit_fits.whole_at_once(self._protects)
        return flips and _unit_fits.unit_route(self, X.shape)[0] in ("one_shot", "sums", "auto")

    def _check_parameters(self):
        self._check_unit()
        _validation.check_int(self, "n_components", 1)
        solvers = _unit_fits.UNIT_SOLVERS.get(self.privacy_unit, _ROW_SOLVERS)
        _validation.check_option(self, "algorithm", solvers, f" for the unit {self.privacy_unit!r}")
        _validation.check_int(self, "n_iter", 1, also=("auto",))
        _validation.check_int(self, "n_oversamples", 0, also=("auto",))
        _base.check_iteration(self)
        _validation.check_clip_norm(self)
        _inputs.check_unit_bound(self)
        if self.algorithm == "deflation" and self.delta > 0:
            raise ValueError(
                "algorithm='deflation' is for delta=0: Gaussian noise for all components at once "
                f"is no larger than for one. Use 'auto'. Got delta={self.delta!r}."
            )
        check_used(self)
        if not self._protects.by_rows and self.budget_split != "auto":
            expected = "'auto' unless privacy_unit='row' or 'group'"
            _validation.refuse_value(self, "budget_split", expected, self.budget_split)

    def _check_shape(self, n_samples, n_features):
        if self._protects.symmetric and n_samples != n_features:
            raise ValueError(
                f"privacy_unit={self.privacy_unit!r} needs a square symmetric matrix; use 'entry' "
                f"or 'entry_change' for another one. Got shape {(n_samples, n_features)} instead."
            )
        _validation.check_rank(self, n_samples, n_features)

    def _default_shares(self, route, sparse):
        shares = {"subspace": 0.91, "spectrum": 0.03, "total_variance": 0.02}
        if not self._total_is_public():
            shares["count"] = 0.01
        if route != "screened":  # which releases them on its way
            shares |= {"row_sum": 0.02} if sparse else {"center": 0.08}
        return _base.with_learnt(shares)

    # -- units -----------------------------------------------------------------------------------

    def _fit_rows(self, session, X):
        """Release count, subspace, Ritz values, total and column sums of clipped rows."""
        d, k = X.n_features, self.n_components
        sparse = _base.stays_sparse(X)
        route = _base.row_route(self.algorithm, d, k, sparse, centred=False)
        shares = _validation.check_split(self, self._default_shares(route, sparse))
        query = self._unit_query(X)
        ask = session.ask(query)
        clip_norm = _base.row_clip_norm(self, session, ask, shares["clip_norm"], d)
        public_n = query.n_rows if self._total_is_public() else None
        noise = _base.row_noise(session, ask, public_n, clip_norm, shares.get("count"))
        ask, n = ask.clipped(clip_norm), noise.n
        about_mean, sums = False, NOTHING
        if "center" in shares:
            ask, noise, shares, sums = _centres.about_zero(session, ask, noise, shares, d)
            about_mean = isinstance(ask, _centres.AboutZero)
        # The screened route releases sums on its way; without noise no rows are screened.
        elif route != "screened" or session.budget.exact:
            sums = ask.sums(share=shares.get("row_sum", shares["subspace"] / 2))
        total, total_noise = abs(float(sums.value.sum())), sums.noise_scale * math.sqrt(d)
        if self.algorithm == "auto" and total > CLEAR * total_noise > 0.0 and not about_mean:
            # Columns are of one sign, so sums show the largest.
            route = _base.row_route("auto", d, k, True, centred=False)
        V, sums, shown = _base.row_subspace(
            session, ask, route, d, k, shares, noise,
            n_iter=self.n_iter, n_oversamples=self.n_oversamples, sums=sums,
            alone=self.algorithm == "auto" and not about_mean,
        )  # fmt: skip
        added = (ask.beyond(V, V), ask.more) if about_mean else (0.0, 0.0)
        values, vectors, total = _base.held_by(self, ask, V, shares, shown, added=added)
        mean_square = max(float(total.value), total.noise_scale) / n
        facts = sums.value / n, mean_square, n, sums.noise_scale / n
        attributes = svd_variances(values, components_of(vectors), *facts)
        return attributes | {"n_samples_seen_": round(n), "clip_norm_": noise.clip_norm}
