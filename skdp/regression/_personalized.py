"""Personalised regression with differential privacy for one user."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score

from skdp._types import Seed, Split
from skdp._validation import check_option
from skdp.regression._global_model import learn_base, warn_unseen
from skdp.regression._personalized_base import PersonalizedBase
from skdp.regression._row_losses import (
    PoissonLoss,
    QuantileLoss,
    check_poisson_loss,
    check_row_loss,
)


class DPPersonalizedRegressor(RegressorMixin, PersonalizedBase):
    """Linear models of many users that share a subspace, with privacy for all rows of one user.

    The public attributes satisfy (`epsilon`, `delta`)-differential privacy for adding or removing
    (or replacing, see `adjacency`) all rows of one user, whatever the data are: each user sends a
    few messages of bounded norm, and only their noisy sums are seen. Each user's own model, its
    head, is fitted from the public attributes and the user's rows, and is shown to that user alone
    (joint differential privacy): **the fitted object holds private heads; publish** ``released()``.
    Not covered: ``predict`` for a fitted user, ``score``, and whether a user is known.

    Parameters
    ----------
    n_components : int or "auto", default=2
        Dimension of the shared subspace. "auto" counts the released eigenvalues above their noise
        (needs ``init="votes"``).
    epsilon : float, default=1.0
        Budget of one call of fit, for all rows of one user together; ``inf`` adds no noise.
    delta : float, default=1e-6
        Probability that the bound fails; well below one over the number of users. 0 (pure privacy)
        needs ``init="random"`` or ``"exponential"`` and ``whiten=False`` or ``"diag"``.
    adjacency : {"add_remove", "replace"}, default="add_remove"
        With "add_remove" the number of users is private too; with "replace" it is public.
    n_rounds : int, default=2
        Rounds that improve the subspace; they share one part of the budget.
    budget_split : dict or "auto", default="auto"
        Shares of the releases; its keys depend on the other parameters and are named in the error.
    clip_level : float, default=0.5
        Largest norm of a user's message in a round.
    target_bounds : pair (low, high) or "auto", default="auto"
        Public bounds of the targets in the released global model. "auto" spends a share on where
        targets lie and how far they reach, and warns if that is not seen.
    local : {"ridge", "moment"}, default="ridge"
        How a user finds the direction of its vote.
    refine : {"residual", "cross", "gram"}, default="residual"
        What a round releases: residual moments, directions times heads, or the noisy normal
        equations of [1]_ (for comparison: of order n_features times n_components).
    init : {"votes", "pairs", "random", "exponential"}, default="votes"
        The start: directions of the users, pairs of rows [1]_, a random subspace (use 10 rounds or
        more), or the exponential mechanism over `candidates` [1]_, which takes half of epsilon.
    candidates : array of shape (n, n_features, n_components) or None, default=None
        Public candidates for ``init="exponential"``. None is a net of lines, for one component and
        at most four features.
    whiten : bool or "diag", default=True
        Release a second moment and whiten the features with it; needed unless features have equal
        variances and no correlations. "diag" releases variances only.
    head : {"voted", "subspace", "hybrid"}, default="voted"
        How users fit their heads: by a rule elected by noisy votes, inside the subspace, or each by
        its own leave-one-out error.
    loss : {"squared", "huber", "absolute"} or object, default="squared"
        What rounds and heads minimise: a convex function of the residual. An object has the
        methods ``value(residual)`` and ``derivative(residual)`` of arrays and declares ``bounds``
        of its derivative, or ``curvature``, a bound of its second one: `QuantileLoss`, or your
        own. `PoissonLoss` is for counts: the logarithms of their means are linear, and `predict`
        returns means. A loss is tried on public numbers before anything is paid. Messages are cut
        to their bounds whatever it says, so that the guarantee needs none of it but that each
        residual counts by itself. The global model stays one of means (of logarithms of counts).
    fit_intercept : bool, default=True
        Whether users have intercepts of their own; the elected rule may shrink them.
    user_column : int, str or None, default=None
        Column of X that holds the users, instead of `groups`.
    require_users : bool, default=False
        Make it an error to fit or predict without users.
    random_state : int, Generator, RandomState or None, default=None
        None draws noise from the operating system. Anything else makes the noise reproducible,
        which is not private: it warns and is flagged in the receipt.
    n_jobs : int or None, default=None
        Threads for the passes over the users; it never changes the result.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Orthonormal rows that span the shared subspace, in whitened features.
    whitener_ : ndarray of shape (n_features, n_features) or (n_features,), or None
        Public map of the features: a user's coefficients are ``whitener_ @ components_.T @ v``.
    n_components_ : int
        Dimension of the subspace.
    eigenvalues_ : ndarray of shape (n_features,) or None
        Released eigenvalues of the votes (or pairs), in descending order.
    global_coef_ : ndarray of shape (n_features,)
        The linear model of all users together, where heads start and which users without one get.
    global_intercept_ : float
        Its intercept.
    entry_bounds_ : ndarray of shape (2, n_features) or None
        Lowest and highest entry of each column, which rows are cut to, in `predict` too: elected by
        noisy votes on what users would have predicted for rows of their own. None cuts nothing.
    entry_center_ : ndarray of shape (n_features,) or None
        Where heads see rows from: about the released medians of columns that lie far from 0.
    head_penalty_ : HeadRule or None
        The elected rule; None if each user takes its own best one.
    head_choice_ : Choice
        All rules that users choose from, and the released leaning of all.
    n_users_ : int
        Number of users: released under "add_remove", exact under "replace".
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
    DPPersonalizedClassifier : The same for labels.

    Notes
    -----
    Users come as ``groups=`` or as `user_column`; the latter is the only form that works with
    scorers of scikit-learn, which never pass users to ``predict``. Pickling the fitted object
    pickles the heads: keep it as secret as the data.

    References
    ----------
    .. [1] Jain, Rush, Smith, Song, Thakurta, "Differentially private model personalization",
       NeurIPS 2021.

    Examples
    --------
    >>> import numpy as np
    >>> from skdp.regression import DPPersonalizedRegressor
    >>> rng = np.random.default_rng(0)
    >>> users = np.repeat(np.arange(2000), 10)
    >>> X = rng.standard_normal((20000, 8))
    >>> taste = rng.standard_normal((2000, 1)) * [1.0, 1.0, 0, 0, 0, 0, 0, 0]
    >>> y = np.sum(X * taste[users], axis=1)
    >>> model = DPPersonalizedRegressor(n_components=1, epsilon=2.0).fit(X, y, groups=users)
    >>> bool(model.score(X, y, groups=users) > 0.9)
    True
    >>> model.released().privacy_spent_
    (ε=2, δ=1e-06) group
    """

    _y_numeric = True
    _starts_from_a_model = True

    def __init__(
        self,
        n_components: int | str = 2,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        adjacency: str = "add_remove",
        n_rounds: int = 2,
        budget_split: Split = "auto",
        clip_level: float = 0.5,
        target_bounds: ArrayLike | str = "auto",
        local: str = "ridge",
        refine: str = "residual",
        init: str = "votes",
        candidates: ArrayLike | None = None,
        whiten: bool | str = True,
        head: str = "voted",
        loss: Any = "squared",
        fit_intercept: bool = True,
        user_column: int | str | None = None,
        require_users: bool = False,
        random_state: Seed = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.n_rounds = n_rounds
        self.budget_split = budget_split
        self.clip_level = clip_level
        self.target_bounds = target_bounds
        self.local = local
        self.refine = refine
        self.init = init
        self.candidates = candidates
        self.whiten = whiten
        self.head = head
        self.loss = loss
        self.fit_intercept = fit_intercept
        self.user_column = user_column
        self.require_users = require_users
        self.random_state = random_state
        self.n_jobs = n_jobs

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.regressor_tags.poor_score = True  # without users there is little to learn
        return tags

    def _loss_name(self):
        if isinstance(self.loss, str):
            name = check_option(self, "loss", ("squared", "huber", "absolute"))
            return QuantileLoss() if name == "absolute" else name
        check = check_poisson_loss if self._counts else check_row_loss
        check(type(self).__name__, self.loss)
        if self._counts and not isinstance(self.target_bounds, str):
            raise ValueError(
                "PoissonLoss has its own public bound 'largest'; use target_bounds='auto'. Got "
                f"{self.target_bounds!r}."
            )
        return self.loss

    @property
    def _counts(self):
        return isinstance(self.loss, PoissonLoss)

    def _scales_targets(self):
        loss = self._loss_name()
        return isinstance(loss, str) or getattr(loss, "homogeneous", False)

    def _base_model(self, ask, query, shares):
        base = learn_base(self, ask, query, shares)
        warn_unseen(self, base)
        return base.model, base.sight

    def _loss_of_reach(self):
        return "squared"  # of what the model of all leaves

    def _encoded(self, y, *, reset):
        return self._block_encoding()[0](y)

    def _block_encoding(self):
        encode = partial(_logs, loss=self.loss) if self._counts else _column
        return encode, 1, self._scales_targets()

    def predict(self, X: Any, groups: Any = None) -> Any:
        """Predict: a known user by its own head, others by the global model.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows to predict.
        groups : array-like of shape (n_samples,), default=None
            The user of each row; None takes the global model for all.

        Returns
        -------
        y : ndarray of shape (n_samples,)
            Predictions. Those of a fitted user's head are for that user's eyes.
        """
        eta = self._linear(X, groups)[:, 0]
        return self.loss.mean(eta) if self._counts else eta

    def score(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> float:
        """Return the coefficient of determination; on private rows it is not covered.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows.
        y : array-like of shape (n_samples,)
            Targets.
        groups : array-like of shape (n_samples,), default=None
            The user of each row.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows.

        Returns
        -------
        score : float
            R squared.
        """
        return r2_score(y, self.predict(X, groups), sample_weight=sample_weight)


def _column(y):
    return np.asarray(y, np.float64).reshape(-1, 1)


def _logs(y, loss):
    """Return the logarithms of counts; NaN stays NaN."""
    return loss.counts(_column(y))
