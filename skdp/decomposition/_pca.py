"""Principal component analysis with differential privacy."""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from skdp._groups import GroupUnitMixin
from skdp._types import ColumnBounds, Seed, Split
from skdp._validation import (
    check_split,
)
from skdp.answer import Answer, released_count
from skdp.base import BaseDPEstimator, atomic
from skdp.data.blocks import row_source
from skdp.decomposition._base import (
    LinearTransformMixin,
    as_input_dtype,
    is_sparse,
    public_range,
    warn_of_outcome,
)
from skdp.decomposition._centring import Centre, centred
from skdp.decomposition._pca_parameters import PCAParametersMixin
from skdp.decomposition._planning import PlansMixin
from skdp.decomposition._probabilistic import ProbabilisticModelMixin
from skdp.decomposition._spectral import (
    DIRECTION_LEVEL,
    SPECTRUM_LEVEL,
    in_rows,
    kept_rows,
    rotate_by_ritz,
    row_clip_norm,
    row_noise,
    row_route,
    row_subspace,
)
from skdp.solvers.postprocess import (
    ReleasedMoment,
    pca_attributes,
    split_moment,
    subspace_attributes,
    variance_doubt,
)
from skdp.solvers.scales import Level
from skdp.solvers.spectral import clipped_gram

_CORNER = 0.5  # of the clip norm: balances the noise of the mean against that of the moment


class DPPCA(
    PCAParametersMixin,
    GroupUnitMixin,
    ProbabilisticModelMixin,
    LinearTransformMixin,
    PlansMixin,
    BaseDPEstimator,
):
    """Principal component analysis with (epsilon, delta)-differential privacy for one row.

    The fitted attributes satisfy (`epsilon`, `delta`)-differential privacy for adding or removing
    (or replacing, see `adjacency`) one row of X, or all rows of one person (see `privacy_unit`),
    whatever the data are: rows longer than `clip_norm` are scaled down, before and after centring.
    Not covered: ``transform`` of private rows, and scores on private rows.

    Parameters
    ----------
    n_components : int, float, "mle", "auto" or None, default=None
        Number of components. An int is public; None is the number of features. A float in (0, 1)
        is a share of the variance, "mle" is Minka's choice, "auto" counts the eigenvalues above
        the edge of the noise (maybe none, with a warning): these three cost nothing.
    epsilon : float, default=1.0
        Budget of one call of fit; ``inf`` adds no noise (and warns).
    delta : float, default=1e-6
        Probability that the bound fails; well below one over the number of rows.
    clip_norm : float or "auto", default="auto"
        Largest norm of a row (after subtracting a public `center`). "auto" spends a tenth of
        the budget on a private scale, about 0 and about the released mean, and warns where the rows
        do not show it. A number is free, and right for normalised rows.
    adjacency : {"add_remove", "replace"}, default="add_remove"
        With "add_remove" the number of rows is private too; with "replace" it is public.
    privacy_unit : {"row", "group"}, default="row"
        What is protected: one row, or all rows of one person ("group", see `groups` of ``fit``).
        Then persons are clipped: the root mean square length of their rows.
    user_column : int, str or None, default=None
        The column of X that names the person of each row, in place of `groups`; it is no feature.
    group_weight : {"equal", "rows"} or int, default="equal"
        What a person counts: "equal" once, by the mean over its rows; an int as many rows as it
        has, up to this public number; "rows" learns that number, for 4% of the budget.
    copy : bool, default=True
        Kept for compatibility; X is never modified.
    whiten : bool, default=False
        Divide the projections by the released standard deviations.
    svd_solver : {"auto", "full", "covariance_eigh", "arpack", "randomized", "gram", "power", \
"screened"}, default="auto"
        "gram" (and "full", "covariance_eigh", "arpack") releases the second moment and refines the
        leading subspace; "power" (and "randomized") takes power steps; "screened" first finds the
        columns that rise above the noise. "auto" looks at public shapes. Where the whole spectrum
        is asked for (`n_components` is not an int, or more than a third of the features), one
        release of the moment pays for it.
    tol : float, default=0.0
        Kept for compatibility; nothing stops early on private values.
    iterated_power : int or "auto", default="auto"
        Power steps of the "power" route. Each is a release: more is not better.
    n_oversamples : int, default=10
        Kept for compatibility.
    power_iteration_normalizer : {"auto", "QR"}, default="auto"
        "LU" and "none" have no bounded sensitivity and are refused.
    random_state : int, Generator, RandomState or None, default=None
        None draws noise from the operating system. Anything else makes the noise reproducible,
        which is not private: it warns and is flagged in the receipt.
    center : {"dp", "none"} or array of shape (n_features,), default="dp"
        "dp" releases the mean; "none" takes the rows as centred (and keeps sparse rows sparse); an
        array is a public centre, subtracted for free.
    bounds : pair, two arrays, list of tuples, dict or None, default=None
        Public bounds of the columns, in the forms of `PublicScaler`. Their middle is subtracted
        for free before the mean is released, and ``clip_norm="auto"`` is half their diagonal, for
        free. Entries outside are not cut; their rows are scaled down.
    budget_split : dict or "auto", default="auto"
        Shares of the releases; its keys depend on the other parameters and are named in the error.
    n_jobs : int or None, default=None
        Threads for the pass over the rows; it never changes the result.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Principal axes, by decreasing variance. Signs come from the axes themselves.
    explained_variance_ : ndarray of shape (n_components,)
        Released variances, with the push of the noise taken off.
    explained_variance_ratio_ : ndarray of shape (n_components,)
        Their share of the released total variance.
    singular_values_ : ndarray of shape (n_components,)
        Singular values that belong to `explained_variance_`.
    mean_ : ndarray of shape (n_features,)
        Released mean, public centre, or zeros.
    n_components_ : int
        Number of components.
    n_samples_ : int
        Number of rows: released under "add_remove", exact under "replace". Of persons their total
        weight.
    noise_variance_ : float
        Variance outside the components, per direction.
    clip_norm_ : float
        The clip norm that was used: given, or released.
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
    sklearn.decomposition.PCA : The estimator without privacy.

    References
    ----------
    .. [1] Dwork, Talwar, Thakurta, Zhang, "Analyze Gauss: optimal bounds for privacy-preserving
       principal component analysis", STOC 2014.
    .. [2] Dong, Roth, Su, "Gaussian differential privacy", JRSS B, 2022.

    Examples
    --------
    >>> import numpy as np
    >>> from skdp import DPPCA
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((5000, 3)) @ np.diag([3.0, 1.0, 0.3])
    >>> pca = DPPCA(n_components=1, epsilon=1.0, clip_norm=5.0).fit(X)
    >>> bool(abs(pca.components_[0, 0]) > 0.9)
    True
    >>> pca.privacy_spent_
    (ε=1, δ=1e-06) row
    """

    _splits_budget = True

    def __init__(
        self,
        n_components: int | float | str | None = None,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        clip_norm: float | str = "auto",
        adjacency: str = "add_remove",
        privacy_unit: str = "row",
        user_column: Any = None,
        group_weight: str | int = "equal",
        copy: bool = True,
        whiten: bool = False,
        svd_solver: str = "auto",
        tol: float = 0.0,
        iterated_power: int | str = "auto",
        n_oversamples: int = 10,
        power_iteration_normalizer: str = "auto",
        random_state: Seed = None,
        center: ArrayLike | str | None = "dp",
        bounds: ColumnBounds | None = None,
        budget_split: Split = "auto",
        n_jobs: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.copy = copy
        self.whiten = whiten
        self.svd_solver = svd_solver
        self.tol = tol
        self.iterated_power = iterated_power
        self.n_oversamples = n_oversamples
        self.power_iteration_normalizer = power_iteration_normalizer
        self.random_state = random_state
        self.epsilon = epsilon
        self.delta = delta
        self.clip_norm = clip_norm
        self.adjacency = adjacency
        self.privacy_unit = privacy_unit
        self.user_column = user_column
        self.group_weight = group_weight
        self.center = center
        self.bounds = bounds
        self.budget_split = budget_split
        self.n_jobs = n_jobs

    @atomic
    def fit(self, X: Any, y: Any = None, groups: Any = None) -> Self:
        """Fit the model; spends (`epsilon`, `delta`) once.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features), or blocks
            The private rows. Blocks are a memory map, a list of npy or npz files, a Dask array, or
            a row source (see the user guide, "Outgrowing one machine").
        y : Ignored
            Not used.
        groups : array-like of shape (n_samples,), default=None
            The person of each row, for ``privacy_unit="group"``.

        Returns
        -------
        self : DPPCA
            The fitted estimator.
        """
        self._check_parameters()
        session = self._open_session()
        source = self._checked_rows(X, groups, accept_sparse="csr")
        attributes = self._fit_session(session, source)
        dtype = getattr(source, "dtype", None)
        return self._close_session(session, as_input_dtype(attributes, dtype))

    def _fit_session(self, session, X):
        """Make all releases; X itself is read by the session alone."""
        source = row_source(X)
        d, sparse = source.n_features, is_sparse(source)
        self._check_n_components(source, d)
        center, clip_norm = public_range(self, d, centers=self._centers())
        sparse = sparse and (center is None or not self._centers())
        shares = check_split(self, self._default_shares(d, sparse))
        query = self._unit_query(source)
        ask = session.ask(query if center is None else query.centered(center))
        ask, most = self._weighted(session, ask, shares)
        level = Level(clip_norm, 0.0)
        if clip_norm is None:
            level = self._level_of(session, ask, shares.get("clip_norm"), d)
        n = query.n_rows if self._total_is_public() else None
        if self._wants_spectrum(d):
            fit = self._fit_spectrum(session, ask, level, d, n, shares, sparse)
        else:
            route = row_route(self.svd_solver, d, self.n_components, sparse)
            fit = self._fit_subspace(session, ask, level, d, n, shares, route)
        attributes, doubt, many = fit
        warn_of_outcome(self, attributes, doubt, many / attributes["n_samples_"])
        if center is not None:
            attributes["mean_"] = center + attributes["mean_"]
        return in_rows(attributes, most)

    def fit_transform(self, X: Any, y: Any = None, groups: Any = None) -> Any:
        """Fit the model and project X. The projected private rows are not covered by epsilon.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            The private rows.
        y : Ignored
            Not used.
        groups : array-like of shape (n_samples,), default=None
            The person of each row, for ``privacy_unit="group"``.

        Returns
        -------
        X_new : ndarray of shape (n_samples, n_components)
            Projected rows.
        """
        return self.fit(X, groups=groups)._transform_each(X)

    # -- releases --------------------------------------------------------------------------

    def _level_of(self, session, ask, share, d, near=None):
        return row_clip_norm(self, session, ask, share, d, level=self._level(d), near=near)

    def _level(self, d):
        return SPECTRUM_LEVEL if self._wants_spectrum(d) else DIRECTION_LEVEL

    def _count(self, ask, n, shares):
        """Number of rows, public or released (kept above two deviations), and its noise."""
        if n is not None:
            return Answer(n, 0.0)
        count = ask.count(share=shares["count"])
        return count._replace(value=released_count(*count))

    def _center(self, session, ask, n, first, d, shares):
        """Return the rows about their released mean, or as they are."""
        if not self._centers():
            return Centre(np.zeros(d), (0.0, 0.0), ask.clipped(first.value), *first)

        def level_of(ask, share, near):
            return self._level_of(session, ask, share, d, near=near)

        noise = row_noise(session, self.adjacency, n, first.value)
        return centred(ask, noise, first.beyond, d, shares, level_of)

    def _fit_spectrum(self, session, ask, level, d, n, shares, sparse):
        """Release the whole second moment about the centre.

        Return attributes, their doubt, and how many rows may be several times as long as allowed.
        """
        clip_norm, beyond = level
        if self._centers() and sparse:  # in one release, as centred rows would not be sparse
            corner = _CORNER * clip_norm if math.isfinite(clip_norm) else 1.0
            moment = ask.clipped(clip_norm).moment(corner, share=shares["moment"])
            released = split_moment(moment.value, corner, moment.noise_scale, clip_norm, n)
            count = Answer(released.n, 0.0 if n is not None else moment.noise_scale / corner**2)
            pushes = 0.0, 0.0
        else:
            count = self._count(ask, n, shares)
            rows = float(count.value)
            centre = self._center(session, ask, rows, level, d, shares)
            mean, pushes, ask, clip_norm, beyond = centre
            noise = row_noise(session, self.adjacency, rows, clip_norm)
            gram, scale = clipped_gram(ask, d, shares["gram"], noise, level=SPECTRUM_LEVEL)
            released = ReleasedMoment(gram, mean, rows, scale, pushes[0])
        rank = self._rank(released.n, d)
        limit = int(rank) if session.budget.exact or n is not None else d
        attributes = pca_attributes(released, self.n_components, limit, rank)
        noises = released.noise_scale, pushes[1]
        doubt = variance_doubt(attributes["explained_variance_"], count, *noises)
        attributes |= {"n_samples_": round(released.n), "clip_norm_": clip_norm}
        return attributes, doubt, beyond

    def _fit_subspace(self, session, ask, level, d, n, shares, route):
        """Release count, mean, leading subspace of the centred rows, Ritz values and total.

        Return as `_fit_spectrum` does.
        """
        count = self._count(ask, n, shares)
        n_rows = float(count.value)
        centre = self._center(session, ask, n_rows, level, d, shares)
        mean, pushes, ask, clip_norm, beyond = centre
        if session.budget.exact and route == "screened":
            route = "power"
        noise = row_noise(session, self.adjacency, n_rows, clip_norm)
        ask = kept_rows(session, ask, route, d, noise)
        V, _ = row_subspace(
            session,
            ask,
            route,
            d,
            self.n_components,
            shares["subspace"],
            noise,
            n_iter=self.iterated_power,
            n_oversamples="auto",
        )
        values, V = rotate_by_ritz(ask.projected_gram, V, shares["ritz"])
        total = float(ask.square_sum(share=shares["trace"]).value)
        attributes = subspace_attributes(values, V, total, n_rows, self._rank(n_rows, d))
        attributes |= {"mean_": mean, "n_samples_": round(n_rows), "clip_norm_": clip_norm}
        scale = 0.0
        if noise.psd:
            scale = noise.psd * clip_norm**2 / math.sqrt(shares["ritz"])
        variances = attributes["explained_variance_"]
        return attributes, variance_doubt(variances, count, scale, pushes[1]), beyond
