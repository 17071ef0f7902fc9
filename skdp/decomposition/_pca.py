"""Principal component analysis with differential privacy."""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from skdp import _validation
from skdp._inputs import GroupUnitMixin, float_dtype
from skdp.base import BaseDPEstimator, FitsElsewhereMixin, as_input_dtype, atomic
from skdp.data.blocks import row_source
from skdp.decomposition import _base, _centres
from skdp.decomposition._planning import DecompositionPlans
from skdp.solvers import postprocess, spectral

_SOLVERS = ("auto", "full", "covariance_eigh", "arpack", "randomized", "gram", "power", "screened")


class RowComponentsMixin:
    """One fit to rows: its releases, and the attributes that follow from them."""

    bounds, svd_solver, iterated_power = None, "auto", "auto"

    def _fit_session(self, session, X):
        """Make all releases; X itself is read by the session alone."""
        # Check: public facts of the rows, and the parameters that follow from them.
        source = row_source(X)
        d, centers = source.n_features, self._centers()
        self._check_n_components(source)
        center, near, between = _base.public_range(self, d, centers=centers)
        sparse = _base.stays_sparse(source) and (center is None or not centers)
        shares = _validation.check_split(self, self._default_shares(d, sparse))
        # Query: the possible releases, with their bounds; nothing is read.
        query = self._unit_query(source)
        ask = session.ask(query if center is None else query.centered(center, between))
        n = query.n_rows if self._total_is_public() else None
        # Releases: clip norm, count, mean, and the moment about it or its leading subspace.
        whole = self._wants_spectrum(d)
        level = _base.SPECTRUM_LEVEL if whole else spectral.DIRECTION_LEVEL
        clip_norm = _base.row_clip_norm(
            self, session, ask, shares["clip_norm"], d, level=level, near=near
        )
        if "moment" in shares:  # in one release, as centred rows would not be sparse
            bias = _base.bias_of(clip_norm)
            answer = ask.clipped(clip_norm).moment(bias, share=shares["moment"])
            moment = postprocess.split_moment(answer.value, bias, answer.noise_scale, clip_norm, n)
            n = moment.n
            attributes = self._spectrum(session, moment, d)
        else:
            noise = _base.row_noise(session, ask, n, clip_norm, shares.get("count"))
            n = noise.n
            if centers:
                centre = _centres.centred(session, ask, noise, shares, d, level)
            else:
                centre = _centres.Centre(np.zeros(d), ask.clipped(noise.clip_norm), noise, shares)
            noise, clip_norm, shares = centre.noise, centre.noise.clip_norm, centre.shares
            if whole:
                rows, share = spectral.suited_rows(centre.rows, 2 * d, shares["gram"], noise, level)
                gram, scale = rows.gram(share=share)
                moment = postprocess.ReleasedMoment(
                    gram, centre.mean, noise.n, scale, noise.mean_noise_bias
                )
                attributes = self._spectrum(session, moment, d)
            else:
                route = _base.row_route(self.svd_solver, d, self.n_components, sparse)
                attributes = self._subspace(session, centre, shares, route)
        # Attributes, from released numbers.
        attributes |= {"n_samples_": round(float(n)), "clip_norm_": clip_norm}
        if center is not None:
            mean = center + attributes["mean_"]
            attributes["mean_"] = np.clip(mean, *between) if between and centers else mean
        return attributes

    def _wants_spectrum(self, d):
        """Whether all eigenvalues are asked for, not a few leading components."""
        k = self.n_components
        return not isinstance(k, Integral) or k == 0 or k > d // 3

    def _default_shares(self, d, sparse):
        one_release = self._centers() and self._wants_spectrum(d) and sparse
        if one_release:
            shares = {"moment": 1.0}
        elif self._wants_spectrum(d):
            shares = {"gram": 0.91, "count": 0.01}
        else:
            shares = {"subspace": 0.86, "spectrum": 0.03, "total_variance": 0.02, "count": 0.01}
        if self._centers() and not one_release:
            shares["center"] = 0.08
        if self._total_is_public():
            shares.pop("count", None)
        return _base.with_learnt(shares)

    def _rank(self, n, d):
        """Return the largest rank of the moment: a group may have any number of rows."""
        return d if self._by_group else min(n, d)

    def _centers(self):
        return isinstance(self.center, str) and self.center == "private"

    def _spectrum(self, session, moment, d):
        """Return attributes of a released moment."""
        rank = self._rank(moment.n, d)
        limit = int(rank) if session.budget.exact or self._total_is_public() else d
        attributes, found = postprocess.pca_attributes(moment, self.n_components, limit, rank)
        _base.warn_of_found(self, found, attributes["explained_variance_ratio_"])
        return attributes

    def _subspace(self, session, centre, shares, route):
        """Release the leading subspace about the centre, its Ritz values and the total."""
        d, k = len(centre.mean), self.n_components
        ask, noise, bias = centre.rows, centre.noise, centre.noise.mean_noise_bias
        V, _, shown = _base.row_subspace(
            session, ask, route, d, k, shares, noise,
            n_iter=self.iterated_power, n_oversamples="auto",
        )  # fmt: skip
        values, vectors, total = _base.held_by(self, ask, V, shares, shown, bias, centre.beyond)
        rank = self._rank(noise.n, d)
        out = postprocess.subspace_attributes(values, vectors, total, noise.n, rank)
        return out | {"mean_": centre.mean}


class DPPCA(
    RowComponentsMixin,
    GroupUnitMixin,
    _base.ProbabilisticModelMixin,
    _base.LinearTransformMixin,
    FitsElsewhereMixin,
    DecompositionPlans,
    BaseDPEstimator,
):
    """Principal component analysis with (epsilon, delta)-differential privacy for one row.

    The fitted attributes satisfy (`epsilon`, `delta`)-differential privacy for adding or removing
    (or replacing, see `adjacency`) one row of X, or all rows of one person (see `privacy_unit`),
    whatever the data are: rows longer than `clip_norm` are scaled down, before and after the
    released mean is subtracted.
    Not covered: ``transform`` of private rows, and scores on private rows.

    Parameters
    ----------
    n_components : int, float, "mle", "auto" or None, default=None
        Number of components. None is the number of features. A float in (0, 1) is a fraction of
        the variance, "mle" is Minka's choice, and "auto" counts the eigenvalues above the noise
        level (perhaps none, with a warning). These three are decided on released values.
    epsilon : float, default=1.0
        Budget of one call of fit; ``inf`` adds no noise (and warns).
    delta : float, default=1e-6
        Probability that the bound fails; well below one over the number of rows.
    clip_norm : float or "auto", default="auto"
        Largest norm of a row, after a public `center` is subtracted. The fit spends about a tenth
        of the budget to find about the median norm, from 0 and perhaps from the released mean. A
        number is an upper bound. With "auto", a warning says if no norm was found.
    adjacency : {"add_remove", "replace"}, default="add_remove"
        With "add_remove" the number of rows is private too; with "replace" it is public.
    privacy_unit : {"row", "group"}, default="row"
        What is protected: one row, or all rows of one person ("group", see `groups` of ``fit``).
        Then the root mean square of the norms of a person's rows is clipped.
    group_column : int, str or None, default=None
        The column of X with the person of each row, in place of `groups`. It is not a feature.
    copy : bool, default=True
        No effect: X is never modified.
    whiten : bool, default=False
        Divide the projections by the released standard deviations. Those that the noise hides are
        0: the smallest other one stands for them.
    svd_solver : {"auto", "full", "covariance_eigh", "arpack", "randomized", "gram", "power", \
"screened"}, default="auto"
        "gram" (and "full", "covariance_eigh", "arpack") releases the Gram matrix. "power" (and
        "randomized") takes power steps. "screened" starts them at the mean and at the Gram matrix
        of the columns with the largest sums. "auto" chooses by public shapes. If the whole
        spectrum is needed (`n_components` is not an int, or above a third of the features), one
        Gram matrix receives the budget of subspace and spectrum.
    tol : float, default=0.0
        No effect: a fit never stops early on private values.
    iterated_power : int or "auto", default="auto"
        Number of power steps of "power". Each is a release, so more are not better.
    n_oversamples : int, default=10
        No effect.
    power_iteration_normalizer : {"auto", "QR"}, default="auto"
        "LU" and "none" have no bounded sensitivity and are refused.
    random_state : int, Generator, RandomState or None, default=None
        None draws noise from the operating system. With anything else the noise can be
        reproduced, so the fit is not private: it warns, and the receipt says "SEEDED".
    center : {"private", "none"} or array of shape (n_features,), default="private"
        "private" releases the mean. "none" subtracts nothing, and sparse rows remain sparse. An
        array is a public centre, which costs no budget.
    bounds : pair, two arrays, list of tuples, dict or None, default=None
        Public bounds of the columns, in the forms of `PublicScaler`. Entries are truncated to
        them, and their midpoints are subtracted before the mean is released.
    budget_split : dict or "auto", default="auto"
        Budget fraction of each release. The keys depend on the other parameters; an error for a
        wrong key lists them.
    n_jobs : int or None, default=None
        Number of threads. It does not change the result.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Principal axes, by decreasing variance. The sign of each depends on that axis alone.
    explained_variance_ : ndarray of shape (n_components,)
        Released variances, corrected for the noise. They are those of rows scaled down to
        `clip_norm_`, so they are smaller than those of the unclipped rows, and much smaller with
        few rows or heavy tails.
    explained_variance_ratio_ : ndarray of shape (n_components,)
        Their fraction of the released total variance. For few components, the sum is an unbiased
        estimate of the fraction that they explain.
    singular_values_ : ndarray of shape (n_components,)
        Singular values that belong to `explained_variance_`.
    mean_ : ndarray of shape (n_features,)
        Released mean, public centre, or zeros.
    n_components_ : int
        Number of components.
    n_samples_ : int
        Number of rows: released under "add_remove", exact under "replace". With groups, their
        total weight.
    noise_variance_ : float
        Variance outside the components, per direction: at least the noise of its estimate.
    clip_norm_ : float
        The clip norm that was used: released, and at most the given one.
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
    (epsilon=1, delta=1e-06) row
    """

    def __init__(
        self,
        n_components: int | float | str | None = None,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        clip_norm: float | str = "auto",
        adjacency: str = "add_remove",
        privacy_unit: str = "row",
        group_column: Any = None,
        copy: bool = True,
        whiten: bool = False,
        svd_solver: str = "auto",
        tol: float = 0.0,
        iterated_power: int | str = "auto",
        n_oversamples: int = 10,
        power_iteration_normalizer: str = "auto",
        random_state: _validation.Seed = None,
        center: ArrayLike | str | None = "private",
        bounds: _validation.ColumnBounds | None = None,
        budget_split: _validation.Split = "auto",
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
        self.group_column = group_column
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
            a row source (user guide: "Data larger than memory").
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
        rows = self._checked_rows(X, groups, accept_sparse="csr")
        attributes = self._fit_session(session, rows)
        return self._close_session(session, as_input_dtype(attributes, float_dtype(rows)))

    # -- parameters ------------------------------------------------------------------------

    def _check_parameters(self):
        self._check_unit()
        if not (isinstance(self.n_components, float) and 0 < self.n_components < 1):
            words = "mle", "auto"
            _validation.check_int(self, "n_components", 0, also=words, none=True, parts=True)
        _validation.check_bool(self, "copy", "whiten")
        _validation.check_option(self, "svd_solver", _SOLVERS)
        _base.check_iteration(self)
        _validation.check_int(self, "iterated_power", 0, also=("auto",))
        _validation.check_int(self, "n_oversamples", 1)
        _validation.check_clip_norm(self)
        _validation.check_center_option(self)
        if self.bounds is not None:
            _validation.check_column_bounds(self)
            if not isinstance(self.center, str):
                raise ValueError("DPPCA takes 'bounds' or an array for 'center', not both.")

    def _check_n_components(self, source):
        rule, n_features = self.n_components, source.n_features
        public_rows = self.adjacency == "replace" or self.epsilon == math.inf
        n_samples = source.n_rows() if public_rows and not self._by_group else math.inf
        if isinstance(rule, str) and rule == "mle" and n_samples < n_features:
            raise ValueError("n_components='mle' is only supported if n_samples >= n_features")
        least = 0 if self.svd_solver in ("full", "covariance_eigh") else 1
        if isinstance(rule, Integral):
            where = f" with svd_solver={self.svd_solver!r}"
            _validation.check_rank(self, n_samples, n_features, least=least, where=where)
