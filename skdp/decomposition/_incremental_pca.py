"""Principal components of rows that arrive in batches, with differential privacy."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.metadata_routing import UNUSED

from skdp._groups import GroupUnitMixin
from skdp._streaming import StreamingMixin
from skdp._types import Seed, Split
from skdp._validation import (
    check_bool,
    check_center_option,
    check_clip_norm,
    check_int,
    check_option,
)
from skdp.base import BaseDPEstimator, atomic
from skdp.data.blocks import row_source
from skdp.decomposition._base import LinearTransformMixin, warn_of_outcome
from skdp.decomposition._incremental_facts import FactsMixin
from skdp.decomposition._moments import (
    below_edge,
    decoded,
    fitted,
    statistics,
)
from skdp.decomposition._probabilistic import ProbabilisticModelMixin
from skdp.decomposition._stream_planning import IncrementalPlanMixin
from skdp.exceptions import PrivacyError, PrivacyWarning, warn_caller


class DPIncrementalPCA(
    FactsMixin,
    GroupUnitMixin,
    IncrementalPlanMixin,
    StreamingMixin,
    ProbabilisticModelMixin,
    LinearTransformMixin,
    BaseDPEstimator,
):
    """Incremental PCA with (epsilon, delta)-differential privacy for one row, over all releases.

    All releases of a run together satisfy (`epsilon`, `delta`)-differential privacy for adding or
    removing (or replacing, see `adjacency`) one row, or all rows of one person (see
    `privacy_unit`), whatever the data are. `fit` releases once. Each `partial_fit` is a release of
    the components of all rows so far, up to `max_releases` calls: the noise is correlated over
    time, and grows with the logarithm of `max_releases` only.

    Each person's rows come once, as one row of one batch: a person with a row in each of ten
    batches is ten units. With ``privacy_unit="group"`` they come in one batch, as many as there
    are: a person who comes again is an error, before anything of that batch is used. How many calls
    there are, and when, is public: call `partial_fit` on a schedule, with the rows that arrived
    (none is fine), not whenever a thousand rows are there.

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
        Largest norm of a row (after subtracting a public `center`). "auto" spends 7% of the budget
        on a private scale of the norms, in the first batch, and warns where it does not show. With
        ``center="dp"`` and dense rows it spends up to 11% more on where they lie, if that is far
        from 0: all rows to come are cut about there. A number is free.
    adjacency : {"add_remove", "replace"}, default="add_remove"
        With "add_remove" the number of rows is private too; with "replace" the size of each batch
        is public.
    privacy_unit : {"row", "group"}, default="row"
        What is protected: one row, or all rows of one person ("group", see `groups` of ``fit``).
        Then persons are clipped: the root mean square length of their rows.
    user_column : int, str or None, default=None
        The column of X that names the person of each row, in place of `groups`; it is no feature.
    group_weight : {"equal", "rows"} or int, default="equal"
        What a person counts: "equal" once, by the mean over its rows; an int as many rows as it
        has, up to this public number; "rows" learns that number, for 4% of the budget.
    whiten : bool, default=False
        Divide the projections by the released standard deviations.
    copy : bool, default=True
        Kept for compatibility; X is never modified.
    batch_size : int or None, default=None
        Kept for compatibility: `fit` accumulates exactly, so that batches change nothing, and
        releases once.
    center : {"dp", "none"} or array of shape (n_features,), default="dp"
        "dp" releases the mean with the second moment; "none" takes the rows as centred; an array is
        a public centre, subtracted for free.
    max_releases : int, default=100
        How many calls of `partial_fit` the budget is for. Each closes one step; a further call
        raises before the rows are looked at.
    mechanism : {"auto", "sqrt", "tree"}, default="auto"
        How noise is correlated over time. "sqrt" has less (3.1 against 7.4 times that of a single
        release, for 1024 releases), and keeps the exact moment of every step in memory. "tree"
        keeps about log2(`max_releases`) of them. "auto" takes "sqrt" while that needs less than
        256 MB.
    budget_split : dict or "auto", default="auto"
        Shares of the releases; its keys depend on the other parameters and are named in the error.
    random_state : int, Generator, RandomState or None, default=None
        None draws noise from the operating system. Anything else makes the noise reproducible,
        which is not private: it warns and is flagged in the receipt.
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
        Released mean of all rows so far, public centre, or zeros.
    var_ : ndarray of shape (n_features,)
        Released variance of each feature; not set beyond 3000 features.
    noise_variance_ : float
        Variance outside the components, per direction.
    n_components_ : int
        Number of components.
    n_samples_seen_ : int
        Number of rows so far: released under "add_remove", exact under "replace".
    n_releases_ : int
        Number of releases so far; set by `partial_fit` only.
    batch_size_ : int
        `batch_size`, or five times the number of features.
    clip_norm_ : float
        The clip norm that was used: given, or released (about where the first rows were found).
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, when X has names that are all strings.
    privacy_spent_ : PrivacySpent
        The receipt of all releases, made or to come.
    ledger_ : tuple of LedgerEntry
        Each stream with its sensitivity and noise scale.

    See Also
    --------
    sklearn.decomposition.IncrementalPCA : The estimator without privacy.
    DPPCA : Rows that are all there at once, with less noise.

    Notes
    -----
    While more releases are to come, the estimator holds exact sums of private rows: it refuses to
    be pickled. `released` gives a copy to publish, `checkpoint` keeps the stream in a secret file.
    After the last release, and after `fit`, it can be pickled like any other.

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
    (ε=1, δ=1e-06) row
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
        user_column: Any = None,
        group_weight: str | int = "equal",
        whiten: bool = False,
        copy: bool = True,
        batch_size: int | None = None,
        center: ArrayLike | str | None = "dp",
        max_releases: int = 100,
        mechanism: str = "auto",
        budget_split: Split = "auto",
        random_state: Seed = None,
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
        self.user_column = user_column
        self.group_weight = group_weight
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
        self._close_session(session, self._fit_session(session, X))
        self._drop_stream()
        return self

    def _fit_session(self, session, X):
        """Make the releases of one fit; X itself is read by the session alone."""
        X = row_source(X)
        facts, shares = self._facts(session, X)
        answers = {
            name: session.release(bounded, shares[name])
            for name, bounded in statistics(X, facts, self.n_jobs).items()
        }
        attributes = self._fitted(answers, facts)
        part = facts["beyond"] / max(1, attributes["n_samples_seen_"])
        warn_of_outcome(self, attributes, 0.0, part, below_edge(attributes, answers, facts))
        return attributes

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
            Kept for compatibility; X is always checked.
        groups : array-like of shape (n_samples,), default=None
            The person of each row, for ``privacy_unit="group"``; X is in memory then.

        Returns
        -------
        self : DPIncrementalPCA
            The fitted estimator.
        """
        self._check_parameters()
        running = self._running_stream()
        ended = running is None and hasattr(self, "n_releases_")  # which fit does not set
        session = None if running or ended else self._open_session()
        seen = running.notes["seen"] if running else []
        options = {"accept_sparse": "csr", "reset": session is not None, "ensure_min_samples": 0}
        X, seen = self._batch(X, groups, seen, **options)
        if ended:
            raise PrivacyError(
                f"the stream of this DPIncrementalPCA ended after {self.n_releases_} releases: its "
                "budget is spent. Use a larger 'max_releases', or start anew with "
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
        before = self._below(running) if running and running.steps else 0
        group.advance(statistics(X, facts, self.n_jobs), facts=facts | {"n": n}, seen=seen)
        self._keep_stream(group)
        below = self._below(group)
        if below > before:  # what was said of an earlier release stands
            warn_of_outcome(self, vars(self), 0.0, 0.0, below)
        return self

    # -- parameters ------------------------------------------------------------------------

    def _check_parameters(self):
        self._check_unit()
        check_bool(self, "whiten")
        check_bool(self, "copy")
        check_int(self, "n_components", 1, none=True)
        check_int(self, "batch_size", 1, none=True)
        check_int(self, "max_releases", 1)
        check_option(self, "mechanism", ("auto", "sqrt", "tree"))
        check_clip_norm(self)
        check_center_option(self)

    # -- releases --------------------------------------------------------------------------

    def _first_step(self, session, X):
        X = row_source(X)
        facts, shares = self._facts(session, X)
        facts["n"] = None if facts["n"] is None else 0
        bounds = {name: b.bound for name, b in statistics(X, facts).items()}
        return self._start_stream(
            session,
            bounds,
            shares,
            {"facts": facts, "seen": []},
            mechanism=self.mechanism,
            touches=1,
        )

    def _below(self, group):
        """Return how many variances of the last release may be noise alone."""
        facts = group.notes["facts"]
        steps = {name: stream.step for name, stream in group.streams.items()}
        below = below_edge(vars(self), decoded(group.answers(), steps, facts), facts)
        return int(np.count_nonzero(self.singular_values_ == 0)) if below is None else below

    def _publish(self, group):
        """Set the attributes of the last release."""
        facts = group.notes["facts"]
        if not hasattr(self, "n_features_in_"):  # after a restore
            if facts["names"]:
                self.feature_names_in_ = np.asarray(facts["names"], dtype=object)
            self.n_features_in_ = facts["d"]
        steps = {name: stream.step for name, stream in group.streams.items()}
        answers = decoded(group.answers(), steps, facts)
        attributes = self._fitted(answers, facts) | {"n_releases_": group.steps}
        self._close_session(group.session, attributes)

    def _fitted(self, answers, facts):
        batch_size = 5 * facts["d"] if self.batch_size is None else int(self.batch_size)
        return fitted(answers, facts) | {"batch_size_": batch_size}
