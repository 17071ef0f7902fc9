"""Principal components of rows that arrive in batches, with differential privacy."""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.metadata_routing import UNUSED

from skdp import _inputs, _validation
from skdp._limits import MOST_DENSE
from skdp.base import BaseDPEstimator, as_input_dtype, atomic
from skdp.data.blocks import row_source
from skdp.data.units import GroupRows
from skdp.decomposition import _base, _centres
from skdp.decomposition._pca import RowComponentsMixin
from skdp.decomposition._planning import IncrementalPlans
from skdp.decomposition._streaming import StreamingMixin
from skdp.exceptions import PrivacyError, PrivacyWarning, warn_caller
from skdp.queries.rows import RowQuery
from skdp.solvers import postprocess
from skdp.solvers.linalg import orthonormal

# What DPIncrementalPCA releases, and how released moments become attributes.
#
# `facts` is a dict of what is public from the first batch on; a checkpoint keeps it.


_NO_MOMENTS = ("clip_norm", "start")


def default_shares(d, centers, n_is_public, starts=False):
    """Shares of the releases, from public sizes; `starts` says whether a centre is learnt first."""
    if d > MOST_DENSE:
        shares = {"sketch": 0.9, "total_variance": 0.01, "count": 0.01}
        shares |= {"center": 0.08} if centers else {}
    else:
        shares = {"moment": 1.0} if centers else {"gram": 0.99, "count": 0.01}
    if n_is_public:
        shares.pop("count", None)
    return _base.with_learnt(shares, {"clip_norm": 0.07} | ({"start": 0.25} if starts else {}))


def with_rest(shares, left):
    """Return budget fractions in which the moments, or their substitutes, get the remainder."""
    more = 1 + left / of_moments(shares)
    return {name: s if name in _NO_MOMENTS else more * s for name, s in shares.items()}


def of_moments(shares):
    """Return the share of all moments, or of what stands for them."""
    return math.fsum(share for name, share in shares.items() if name not in _NO_MOMENTS)


def statistics(X, facts, n_jobs=None):
    """Return name -> `Bounded` of some rows: each row, or group, is clipped by itself, once."""
    clip_norm = facts["clip_norm"]
    unit = {"by_group": facts["persons"], "adjacency": facts["adjacency"]}
    query = RowQuery(X, clip_norm=clip_norm, n_jobs=n_jobs, **unit)
    if facts["center"] is not None:
        query = query.centered(facts["center"])
    if facts["sketch"] is not None:
        out = {"sketch": query.gram_product(facts["sketch"]), "total_variance": query.square_sum()}
        out |= {"center": query.sums()} if facts["centers"] else {}
    elif facts["centers"]:
        return {"moment": query.moment(_base.bias_of(clip_norm))}
    else:
        out = {"gram": query.gram()}
    if facts["n"] is None:
        out["count"] = query.count()
    return out


def decoded(group):
    """Return the answers of the streams, decoded by the queries: public maps that read no row."""
    facts = group.notes["facts"]
    no_rows = np.zeros((0, facts["d"]))
    if facts["persons"]:
        no_rows = GroupRows(no_rows, {}, np.arange(0))
    queries = statistics(no_rows, facts)
    return {
        name: queries[name].decoded(answer, group.streams[name].step)
        for name, answer in group.answers().items()
    }


def fitted(answers, facts):
    """Return attributes of released moments, and how many components exceed the noise."""
    d, k = facts["d"], facts["k"]
    released = _released(answers, facts)
    if facts["sketch"] is None:
        attributes, found = postprocess.pca_attributes(
            released, k, k, d if facts["persons"] else min(released.n, d)
        )
        attributes["var_"] = np.maximum(np.diag(released.scatter) / released.n, 0.0)
    else:
        n, Q = released.n, facts["sketch"]
        Y = released.scatter - n * np.outer(released.mean, released.mean @ Q)
        total = float(answers["total_variance"].value) - n * float(released.mean @ released.mean)
        attributes = postprocess.sketch_attributes(Y, Q, released.noise_scale, total, n, k)
        found = int(np.count_nonzero(attributes["singular_values_"]))
    center = facts["center"]
    attributes["mean_"] = released.mean if center is None else center + released.mean
    attributes["n_samples_seen_"] = round(released.n)
    attributes["clip_norm_"] = facts["clip_norm"]
    return as_input_dtype(attributes, np.dtype(facts["dtype"])), found


def _released(answers, facts):
    clip_norm, n = facts["clip_norm"], facts["n"]
    n = None if n is None else float(max(1, n))
    if "moment" in answers:
        value, scale = answers["moment"]
        return postprocess.split_moment(value, _base.bias_of(clip_norm), scale, clip_norm, n)
    if n is None:  # above two deviations of its noise
        n = postprocess.released_count(*answers["count"])
    mean = np.zeros(facts["d"])
    if "center" in answers:
        mean = postprocess.inside_ball(answers["center"].value / n, clip_norm)
    scatter, scale = answers["gram" if "gram" in answers else "sketch"]
    return postprocess.ReleasedMoment(scatter, mean, n, scale)


class DPIncrementalPCA(
    RowComponentsMixin,
    _inputs.GroupUnitMixin,
    IncrementalPlans,
    StreamingMixin,
    _base.ProbabilisticModelMixin,
    _base.LinearTransformMixin,
    BaseDPEstimator,
):
    """Incremental PCA with (epsilon, delta)-differential privacy for one row, over all releases.

    All releases of a run together satisfy (`epsilon`, `delta`)-differential privacy for adding or
    removing (or replacing, see `adjacency`) one row, or all rows of one person (see
    `privacy_unit`), whatever the data are. `fit` releases once, as `DPPCA` does. Each `partial_fit`
    is a release of the components of all rows so far, up to `max_releases` calls: the noise is
    correlated over time, and grows with the logarithm of `max_releases` only.

    Each person may have one row in one batch: a person with a row in each of ten batches is ten
    units. With ``privacy_unit="group"`` all rows of a person must be in one batch. A group that
    returns raises an error, and nothing of that batch is used. The number and the times of the
    calls are public: call `partial_fit` by the clock, with the rows that have arrived (perhaps
    none), and not after every thousand rows.

    Parameters
    ----------
    n_components : int or None, default=None
        Number of components; None is the number of features.
    epsilon : float, default=1.0
        Budget of one call of `fit`, or of all calls of `partial_fit` together; ``inf`` adds no
        noise (and warns).
    delta : float, default=1e-6
        Probability that the bound fails; well below one over the number of rows.
    clip_norm : float or "auto", default="auto"
        Largest norm of a row, after a public `center` is subtracted. `fit` treats it as `DPPCA`
        does. `partial_fit` spends 7% of the budget on about the median norm of the first batch.
        With ``center="private"`` and rows far from 0 (dense, or of up to 100 columns), up to 25%
        more find their centre, about which all later rows are clipped. A number is an upper bound;
        with "auto", a warning says if no norm was found.
    adjacency : {"add_remove", "replace"}, default="add_remove"
        With "add_remove" the number of rows is private too; with "replace" the size of each batch
        is public.
    privacy_unit : {"row", "group"}, default="row"
        What is protected: one row, or all rows of one person ("group", see `groups` of ``fit``).
        Then the root mean square of the norms of a person's rows is clipped.
    group_column : int, str or None, default=None
        The column of X with the person of each row, in place of `groups`. It is not a feature.
    whiten : bool, default=False
        Divide the projections by the released standard deviations. Those that the noise hides are
        0: the smallest other one stands for them.
    copy : bool, default=True
        No effect: X is never modified.
    batch_size : int or None, default=None
        No effect: `fit` adds up exactly, and releases once.
    center : {"private", "none"} or array of shape (n_features,), default="private"
        "private" releases the mean with the Gram matrix. "none" subtracts nothing. An array is a
        public centre, which costs no budget.
    max_releases : int, default=100
        Largest number of calls of `partial_fit`, which share the budget. A further call raises an
        error before it reads rows.
    mechanism : {"auto", "sqrt", "tree"}, default="auto"
        How noise is correlated over time. "sqrt" has less noise (3.1 times that of a single
        release, against 7.4, for 1024 releases), and stores the exact Gram matrix of every step.
        "tree" stores about log2(`max_releases`) of them. "auto" takes "sqrt" below 190 MB.
    budget_split : dict or "auto", default="auto"
        Budget fraction of each release. The keys depend on the other parameters, and are not those
        of `fit` for `partial_fit`; an error for a wrong key lists them.
    random_state : int, Generator, RandomState or None, default=None
        None draws noise from the operating system. With anything else the noise can be
        reproduced, so the fit is not private: it warns, and the receipt says "SEEDED".
    n_jobs : int or None, default=None
        Number of threads. It does not change the result.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Principal axes, by decreasing variance. The sign of each depends on that axis alone.
    explained_variance_ : ndarray of shape (n_components,)
        Released variances, corrected for the noise, of rows scaled down to `clip_norm_`.
    explained_variance_ratio_ : ndarray of shape (n_components,)
        Their fraction of the released total variance.
    singular_values_ : ndarray of shape (n_components,)
        Singular values that belong to `explained_variance_`.
    mean_ : ndarray of shape (n_features,)
        Released mean of all rows so far, public centre, or zeros.
    var_ : ndarray of shape (n_features,)
        Released variance of each feature; not set beyond 4000 features.
    noise_variance_ : float
        Variance outside the components, per direction: at least the noise of its estimate
        (up to 4000 features).
    n_components_ : int
        Number of components.
    n_samples_seen_ : int
        Number of rows so far: released under "add_remove", exact under "replace".
    n_stream_releases_ : int
        Number of releases so far; set by `partial_fit` only.
    batch_size_ : int
        `batch_size`, or five times the number of features.
    clip_norm_ : float
        The clip norm that was used (about the centre of the first batch): released, and at most the
        given one.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if all names of X are strings.
    privacy_spent_ : PrivacySpent
        The receipt of all releases, including later ones.
    releases_ : tuple of LedgerEntry
        Each stream with its sensitivity and noise scale.

    See Also
    --------
    sklearn.decomposition.IncrementalPCA : The estimator without privacy.
    DPPCA : For rows that all exist before the fit; a single release has less noise.

    Notes
    -----
    While releases remain, the estimator holds exact sums of private rows and cannot be pickled.
    `public_copy` returns a copy that may be published, and `checkpoint` writes the stream to a
    private file. After the last release, and after `fit`, the estimator can be pickled.

    References
    ----------
    .. [1] Henzinger, Upadhyay, Upadhyay, "Almost tight error bounds on differentially private
       continual counting", SODA 2023.
    .. [2] Denisov, McMahan, Rush, Smith, Guha Thakurta, "Improved differential privacy for SGD via
       optimal private linear operators on adaptive streams", NeurIPS 2022.
    .. [3] Upadhyay, "The price of privacy for low-rank factorization", NeurIPS 2018.

    Examples
    --------
    >>> import numpy as np
    >>> from skdp import DPIncrementalPCA
    >>> rng = np.random.default_rng(0)
    >>> pca = DPIncrementalPCA(n_components=1, epsilon=1.0, clip_norm=5.0, max_releases=24)
    >>> for hour in range(24):
    ...     X = rng.standard_normal((500, 3)) @ np.diag([3.0, 1.0, 0.3])
    ...     pca = pca.partial_fit(X)
    >>> bool(abs(pca.components_[0, 0]) > 0.9)
    True
    >>> pca.privacy_spent_
    (epsilon=1, delta=1e-06) row
    """

    __metadata_request__partial_fit = {"check_input": UNUSED}
    _free = ("whiten", "copy", "batch_size", "n_jobs")

    def __init__(
        self,
        n_components: int | None = None,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        clip_norm: float | str = "auto",
        adjacency: str = "add_remove",
        privacy_unit: str = "row",
        group_column: Any = None,
        whiten: bool = False,
        copy: bool = True,
        batch_size: int | None = None,
        center: ArrayLike | str | None = "private",
        max_releases: int = 100,
        mechanism: str = "auto",
        budget_split: _validation.Split = "auto",
        random_state: _validation.Seed = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.whiten = whiten
        self.copy = copy
        self.batch_size = batch_size
        self.epsilon = epsilon
        self.delta = delta
        self.clip_norm = clip_norm
        self.adjacency = adjacency
        self.privacy_unit = privacy_unit
        self.group_column = group_column
        self.center = center
        self.max_releases = max_releases
        self.mechanism = mechanism
        self.budget_split = budget_split
        self.random_state = random_state
        self.n_jobs = n_jobs

    @atomic
    def fit(self, X: Any, y: Any = None, groups: Any = None) -> Self:
        """Fit the model with all rows of X and release once; ends a stream that was running.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features), or blocks
            The private rows; blocks as in `DPPCA`.
        y : Ignored
            Not used.
        groups : array-like of shape (n_samples,), default=None
            The person of each row, for ``privacy_unit="group"``.

        Returns
        -------
        self : DPIncrementalPCA
            The fitted estimator.
        """
        self._check_parameters()
        session = self._open_session()
        X = self._checked_rows(X, groups, accept_sparse="csr")
        attributes = self._fit_session(session, X)
        self._close_session(session, as_input_dtype(attributes, _inputs.float_dtype(X)))
        self._drop_stream()
        return self

    def _fit_session(self, session, X):
        """Make the releases of one fit, those of `DPPCA`; X itself is read by the session alone."""
        attributes = super()._fit_session(session, X)
        seen = {"n_samples_seen_": attributes.pop("n_samples_")}
        return attributes | seen | self._sized(attributes["components_"].shape[1])

    @atomic
    def partial_fit(
        self, X: Any, y: Any = None, check_input: bool = True, groups: Any = None
    ) -> Self:
        """Add one batch of rows and release the components of all rows so far.

        The first call spends the whole budget, for all calls. After `fit` it starts anew: `fit` has
        spent its budget, so its rows cannot be released again.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features), or blocks
            The rows of this step; there may be none. Blocks as in `DPPCA`.
        y : Ignored
            Not used.
        check_input : bool, default=True
            No effect: X is always checked.
        groups : array-like of shape (n_samples,), default=None
            The person of each row, for ``privacy_unit="group"``; X is in memory then.

        Returns
        -------
        self : DPIncrementalPCA
            The fitted estimator.
        """
        self._check_parameters()
        running = self._running_stream()
        ended = running is None and hasattr(self, "n_stream_releases_")  # which fit does not set
        session = None if running or ended else self._open_session()
        seen = running.notes["seen"] if running else []
        options = {"accept_sparse": "csr", "reset": session is not None, "ensure_min_samples": 0}
        X, seen = self._batch(X, groups, seen, **options)
        if ended:
            raise PrivacyError(
                f"the stream of this DPIncrementalPCA ended after {self.n_stream_releases_} "
                "releases: its budget is spent. Use a larger 'max_releases', or start anew with "
                "sklearn.base.clone, which is a second budget for the same rows."
            )
        if session is not None and hasattr(self, "components_"):
            message = (
                "partial_fit after fit starts a stream with a budget of its own, without the rows "
                "of fit: what fit released is spent."
            )
            warn_caller(message, PrivacyWarning)
        group = running or self._first_step(session, X)
        facts = group.notes["facts"]
        n = None if facts["n"] is None else facts["n"] + X.n_rows()
        before = running.notes.get("found", math.inf) if running else math.inf
        group.advance(statistics(X, facts, self.n_jobs), facts=facts | {"n": n}, seen=seen)
        self._keep_stream(group)
        if (found := group.notes["found"]) < before:  # what was said of an earlier release stands
            _base.warn_of_found(self, found, self.explained_variance_ratio_)
        return self

    # -- parameters ------------------------------------------------------------------------

    def _check_parameters(self):
        self._check_unit()
        _validation.check_bool(self, "whiten", "copy")
        _validation.check_int(self, "n_components", 1, none=True)
        _validation.check_int(self, "batch_size", 1, none=True)
        _validation.check_int(self, "max_releases", 1)
        _validation.check_option(self, "mechanism", ("auto", "sqrt", "tree"))
        _validation.check_clip_norm(self)
        _validation.check_center_option(self)

    def _batch(self, X, groups, seen, **options):
        """Return the rows of a batch, and the groups seen so far, if the unit is the group.

        A group that comes twice raises an error. The guarantee is for streams in which none does;
        their neighbours are such streams, too.
        """
        if not self._by_group:
            return self._checked_rows(X, groups, **options), seen
        self._check_given(groups)
        if _inputs.as_blocks(X) is not None:
            raise ValueError(f"{type(self).__name__}.partial_fit takes groups in memory only.")
        X, groups = _inputs.split_rows(self, X, groups, **options)
        return _inputs.groups_of_batch(X, _inputs.labels_of(groups, X.shape[0]), seen)

    def _check_n_components(self, rows):
        """Number of components, from public sizes; an error if there are not as many."""
        public_rows = self.adjacency == "replace" or self.epsilon == math.inf
        n = rows.n_rows() if public_rows and not self._by_group else math.inf
        if self.n_components is None:
            return min(n, rows.n_features)
        _validation.check_rank(
            self, n, rows.n_features, where=" (of the first batch, for partial_fit)"
        )
        return int(self.n_components)

    def _facts(self, session, X):
        """Return what is public from the first batch on, and the shares of the releases."""
        d, public = X.n_features, self._total_is_public()
        k = self._check_n_components(X)
        center = _base.check_center(self.center, d)
        centers = center is None and self.center == "private"
        starts = centers and not _base.stays_sparse(X)
        shares = default_shares(d, centers, public, starts)
        shares = _validation.check_split(self, shares)
        query = self._unit_query(X)
        ask = session.ask(query if center is None else query.centered(center))
        n = X.n_rows() if public else None
        about, clip_norm, left = self._start(session, ask, shares, d, n)
        center = about if center is None else center
        shares = with_rest(shares, left)
        sketch = None
        if d > MOST_DENSE:
            sketch = orthonormal(session.random_signs((d, postprocess.sketch_size(k, d))))
        facts = {
            "adjacency": self.adjacency, "clip_norm": clip_norm, "center": center,
            "centers": centers, "k": k, "d": d, "n": 0 if public else None,
            "persons": self._by_group, "sketch": sketch, "dtype": _inputs.float_dtype(X).str,
            "names": list(getattr(self, "feature_names_in_", ())),
        }  # fmt: skip
        return facts, shares

    def _start(self, session, ask, shares, d, n):
        """Learn the centre of the first rows and a clip norm about it; return what is left, too."""
        level = {"d": d, "level": _base.SPECTRUM_LEVEL}
        clip_norm = _base.row_clip_norm(self, session, ask, shares["clip_norm"], **level)
        if "start" not in shares or session.budget.exact:
            return None, clip_norm, 0.0
        parts = {"count": 0.1, "center": 0.4, "center_search": 0.5}
        parts = {name: part * shares["start"] for name, part in parts.items()}
        left = 0.0 if n is None else parts["count"]
        noise = _base.row_noise(session, ask, n, clip_norm, parts["count"])
        before = parts["gram"] = of_moments(shares)
        place, clip_norm, parts, *_ = _centres.located(session, ask, noise, parts, **level)
        return place, clip_norm, left + parts["center"] + parts["gram"] - before

    # -- releases --------------------------------------------------------------------------

    def _first_step(self, session, X):
        X = row_source(X)
        facts, shares = self._facts(session, X)
        bounds = {name: b.bound for name, b in statistics(X, facts).items()}
        notes, options = {"facts": facts, "seen": []}, {"mechanism": self.mechanism, "touches": 1}
        return self._start_stream(session, bounds, shares, notes, **options)

    def _set_last_release(self, group):
        """Set the attributes of the last release."""
        facts = group.notes["facts"]
        n_columns = facts["d"] + (self.group_column is not None)
        self._name_features(facts["names"], n_columns)
        attributes, group.notes["found"] = fitted(decoded(group), facts)
        attributes |= self._sized(facts["d"])
        self._close_session(group.session, attributes | {"n_stream_releases_": group.steps})

    def _sized(self, d):
        return {"batch_size_": 5 * d if self.batch_size is None else int(self.batch_size)}

    def _wants_spectrum(self, d):
        return self.n_components is None or d <= MOST_DENSE

    def _spectrum(self, session, moment, d):
        variances = np.maximum(np.diag(moment.scatter) / moment.n, 0.0)
        return super()._spectrum(session, moment, d) | {"var_": variances}
