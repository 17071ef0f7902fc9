"""Principal component analysis with differential privacy."""

import math

from skdp._bounds import check_column_bounds
from skdp._groups import GroupUnitMixin
from skdp._validation import (
    check_bool,
    check_clip_norm,
    check_int,
    check_option,
    check_real,
)
from skdp.base import BaseDPEstimator, atomic
from skdp.decomposition._base import (
    LinearTransformMixin,
    as_input_dtype,
    check_in_range,
)
from skdp.decomposition._pca_releases import PCAReleases
from skdp.decomposition._planning import PlansMixin
from skdp.decomposition._probabilistic import ProbabilisticModelMixin
from skdp.decomposition._spectral import (
    check_normalizer,
)

_SOLVERS = (
    "auto",
    "full",
    "covariance_eigh",
    "arpack",
    "randomized",
    "gram",
    "power",
    "screened",
)


class DPPCA(
    PCAReleases,
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
    Not covered: ``transform`` of private
    rows, and scores on private rows.

    Parameters
    ----------
    n_components : int, float, "mle", "auto" or None, default=None
        Number of components. An int is public; None is the number of features. A float in (0, 1)
        is a share of the variance, "mle" is Minka's choice, "auto" counts the eigenvalues above
        the edge of the noise (maybe none, with a warning): these three cost nothing.
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
    center : {"dp", "none"} or array of shape (n_features,), default="dp"
        "dp" releases the mean; "none" takes the rows as centred (and keeps sparse rows sparse); an
        array is a public centre, subtracted for free.
    bounds : pair, two arrays, list of tuples, dict or None, default=None
        Public bounds of the columns, in the forms of `PublicScaler`. Their middle is subtracted
        for free before the mean is released, and ``clip_norm="auto"`` is half their diagonal, for
        free. Entries outside are not cut; their rows are scaled down.
    budget_split : dict or "auto", default="auto"
        Shares of the releases; its keys depend on the other parameters and are named in the error.
    privacy_unit : {"row", "group"}, default="row"
        What is protected: one row, or all rows of one person ("group", see `groups` of ``fit``).
        Then clipping is of persons: the root mean square length of one's rows is bounded.
    user_column : int, str or None, default=None
        The column of X that names the person of each row, in place of `groups`; it is no feature.
    group_weight : {"equal", "rows"} or int, default="equal"
        What a person counts: "equal" once, by the mean over its rows; an int as many rows as it
        has, up to this public number; "rows" learns that number, for 4% of the budget.
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

    def __init__(
        self,
        n_components=None,
        *,
        copy=True,
        whiten=False,
        svd_solver="auto",
        tol=0.0,
        iterated_power="auto",
        n_oversamples=10,
        power_iteration_normalizer="auto",
        random_state=None,
        epsilon=1.0,
        delta=1e-6,
        clip_norm="auto",
        adjacency="add_remove",
        center="dp",
        bounds=None,
        budget_split="auto",
        privacy_unit="row",
        user_column=None,
        group_weight="equal",
        n_jobs=None,
    ):
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
        self.center = center
        self.bounds = bounds
        self.budget_split = budget_split
        self.privacy_unit = privacy_unit
        self.user_column = user_column
        self.group_weight = group_weight
        self.n_jobs = n_jobs

    @atomic
    def fit(self, X, y=None, groups=None):
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

    def fit_transform(self, X, y=None, groups=None):
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

    # -- parameters ------------------------------------------------------------------------

    def _check_parameters(self):
        self._check_unit()
        check_bool(self, "copy")
        check_bool(self, "whiten")
        check_option(self, "svd_solver", _SOLVERS)
        check_normalizer(self)
        check_real(self, "tol", 0, math.inf, closed="left")
        check_int(self, "iterated_power", 0, also=("auto",))
        check_int(self, "n_oversamples", 1)
        check_clip_norm(self)
        if isinstance(self.center, str | bool):
            check_option(self, "center", ("dp", "none"))
        if self.bounds is not None:
            check_column_bounds(self, "bounds")
            if not isinstance(self.center, str):
                raise ValueError("DPPCA takes 'bounds' or an array for 'center', not both.")

    def _check_n_components(self, source, n_features):
        rule = self.n_components
        public_rows = self.adjacency == "replace" or self.epsilon == math.inf
        n_samples = source.n_rows() if public_rows and not self._by_group else math.inf
        if isinstance(rule, str) and rule == "mle" and n_samples < n_features:
            raise ValueError("n_components='mle' is only supported if n_samples >= n_features")
        if isinstance(rule, str) and rule in ("mle", "auto"):
            return
        if isinstance(rule, float) and 0 < rule < 1:
            return
        if rule is not None:
            check_int(self, "n_components", 0, also=("mle", "auto"), none=True)
            check_in_range(self, rule, n_samples, n_features)
