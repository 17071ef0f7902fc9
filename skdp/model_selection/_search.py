"""Grid and randomized search with one total budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sklearn.model_selection import ParameterGrid, ParameterSampler

from skdp._types import Seed
from skdp._validation import check_int
from skdp.model_selection._search_base import PrivateSearch
from skdp.model_selection.stopping import draw_below
from skdp.privacy.noise.words import make_source


class DPGridSearchCV(PrivateSearch):
    """Exhaustive search for parameters with one (epsilon, delta) for tuning and final model.

    What fit sets satisfies (`epsilon`, `delta`)-differential privacy as a whole, in the unit and
    adjacency of the estimator, for all data: candidates are fitted and scored privately, and the
    choice looks at private scores only. There are no folds: a run is fitted and scored on all
    rows (a private model cannot adapt to single rows by much), and is not refitted. Not covered:
    how long a search with random stopping takes, which tells of the number of runs; predictions
    and scores on private rows.

    Parameters
    ----------
    estimator : estimator
        A private estimator, or a Pipeline whose other steps `check_pipeline` calls proven. Several
        private steps share a run as their own budgets compare.
    param_grid : dict or list of dicts
        Parameters to try, as in `~sklearn.model_selection.GridSearchCV`; no budgets.
    scoring : PrivateScorer, "accuracy" or None, default=None
        From `make_private_scorer`; its budget is not used, the search sets one. None is minus the
        share of wrong labels of a classifier ("accuracy"), of the squared length of a row that a
        projection loses, or of hidden items that a recommender misses, and minus the squared error
        of a regressor with public `target_bounds`.
    cv : None, default=None
        There are no folds; anything else is an error that says why.
    epsilon, delta : float, default=1.0, 1e-6
        Total budget of one call of fit, for the tuning and the model. With ``delta=0`` estimators
        that offer it are tuned with pure differential privacy.
    strategy : {"auto", "random_stopping", "compose"}, default="auto"
        "compose" runs every candidate once and publishes all scores. "random_stopping" runs
        candidates drawn at random, a random and secret number of times, and publishes the best
        run alone; a run then has more to spend if there are many candidates. "auto" compares what
        a run may spend times the chance that the best candidate is run.
    law : {"auto", "geometric", "logarithmic", "poisson"}, default="auto"
        Law of the number of runs. A Poisson number may be zero (with the probability exp(-mean)):
        the model is then one of the first candidate on rows of zeros.
    expected_runs : float or "auto", default="auto"
        Mean number of runs, above 1; "auto" is the number of candidates.
    score_share : float, default=0.1
        Share of a run (of its mu squared, or epsilon) for its score.
    trusted : sequence of str or type, default=()
        Names (or exact classes) of steps that you vouch for: each output row depends on its own
        input row and on public parameters alone. Other steps that are neither private nor in the
        table of `check_pipeline` are refused.
    random_state : int, Generator, RandomState or None, default=None
        None draws from the operating system. Anything else makes a search reproducible, which is
        not private: it warns and is flagged in the receipt.

    Attributes
    ----------
    best_estimator_ : estimator
        The chosen model, as it was fitted in its run. Its receipt is that of the search. Models
        with a head for each user say in `holds_private` what of them must not be published.
    best_params_ : dict
        Its parameters.
    best_score_ : float
        Its private score, minus the mean loss.
    best_index_ : int
        Its place in `cv_results_`.
    cv_results_ : dict
        Released scores: of all candidates for "compose", of the chosen run alone otherwise.
    plan_ : Selection
        How the budget was spent: public, and fixed before the data were touched.
    privacy_spent_ : PrivacySpent
        The receipt, for everything above together.
    ledger_ : tuple of LedgerEntry
        Lines of the receipt.
    n_features_in_ : int
        Number of features.
    classes_ : ndarray
        Class labels, of a classifier.

    See Also
    --------
    search_cost : What scikit-learn's searches spend with private estimators.

    Notes
    -----
    *Proof.* A run Q draws a candidate, fits it and scores its model through the gate, adaptively,
    with budgets fixed beforehand: mu^2 = mu_fit^2 + mu_score^2, or the sum of epsilons with
    ``delta=0``. A reservation refuses every fit beyond that before it reads.

    "compose": n runs are mu sqrt(n)-GDP, or n epsilon-DP. The choice is post-processing.

    "random_stopping": the best of K runs, K independent of the data and all else dropped. By
    Papernot and Steinke [1]_, if Q is (l, e(l))-RDP for all orders l, the search is (l, e'(l))-RDP:
    for the truncated negative binomials of eta = 1 (geometric) and 0 (logarithmic), for any k >= 1,
    ``e'(l) = e(l) + (1 + eta)(1 - 1/k) e(k) + (1 + eta) log(1/gamma)/k + log E[K]/(l - 1)``
    and for Poisson of mean m, with d = delta of Q at log(1 + 1/(l - 1)),
    ``e'(l) = e(l) + m d + log(m)/(l - 1)``. Here e(l) = l mu^2/2. The largest mu whose search is
    (epsilon, delta)-DP is taken. With ``delta=0`` a run has epsilon/3 (geometric) or epsilon/2
    (logarithmic). Drawing the candidate is a part of Q: neighbours draw alike, so Q loses no more
    than its worst candidate. K is drawn exactly; that noise is not exactly Gaussian is charged to
    delta. Such a search has no mu; it composes as an epsilon-DP
    mechanism beside one that fails with probability delta, which dominates it.

    References
    ----------
    .. [1] Papernot and Steinke, "Hyperparameter tuning with Renyi differential privacy",
       ICLR 2022.
    .. [2] Liu and Talwar, "Private selection from private candidates", STOC 2019.

    Examples
    --------
    >>> import numpy as np
    >>> from skdp import DPTraceRegressor
    >>> from skdp.model_selection import DPGridSearchCV, make_private_scorer
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((20000, 6))
    >>> y = X[:, 0] - X[:, 1] + 0.1 * rng.standard_normal(20000)
    >>> scorer = make_private_scorer("squared_error", (0.0, 4.0))
    >>> grid = {"max_iter": [1, 8]}
    >>> search = DPGridSearchCV(DPTraceRegressor(1), grid, scorer, epsilon=2.0).fit(X, y)
    >>> search.privacy_spent_
    (ε=2, δ=1e-06) row
    >>> len(search.cv_results_["mean_test_score"])
    2
    """

    def __init__(
        self,
        estimator: Any,
        param_grid: Any,
        scoring: Any = None,
        *,
        cv: None = None,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        strategy: str = "auto",
        law: str = "auto",
        expected_runs: float | str = "auto",
        score_share: float = 0.1,
        trusted: Sequence[Any] = (),
        random_state: Seed = None,
    ) -> None:
        self.estimator = estimator
        self.param_grid = param_grid
        self.scoring = scoring
        self.cv = cv
        self.epsilon = epsilon
        self.delta = delta
        self.strategy = strategy
        self.law = law
        self.expected_runs = expected_runs
        self.score_share = score_share
        self.trusted = trusted
        self.random_state = random_state

    def _candidates(self):
        return ParameterGrid(self.param_grid)


class DPRandomizedSearchCV(PrivateSearch):
    """Search over drawn parameters with one (epsilon, delta) for tuning and final model.

    What fit sets satisfies (`epsilon`, `delta`)-differential privacy as a whole, as in
    `DPGridSearchCV`, whose notes have the proof; the candidates are drawn first, without looking
    at the data.

    Parameters
    ----------
    estimator : estimator
        A private estimator, or a Pipeline whose other steps `check_pipeline` calls proven.
    param_distributions : dict or list of dicts
        Distributions or lists, as in `~sklearn.model_selection.RandomizedSearchCV`; no budgets.
    scoring : PrivateScorer, "accuracy" or None, default=None
        From `make_private_scorer`; its budget is not used, the search sets one. None is minus the
        share of wrong labels of a classifier ("accuracy"), of the squared length of a row that a
        projection loses, or of hidden items that a recommender misses, and minus the squared error
        of a regressor with public `target_bounds`.
    cv : None, default=None
        There are no folds; anything else is an error that says why.
    n_iter : int, default=10
        Number of candidates that are drawn.
    epsilon, delta : float, default=1.0, 1e-6
        Total budget of one call of fit, for the tuning and the model. With ``delta=0`` estimators
        that offer it are tuned with pure differential privacy.
    strategy : {"auto", "random_stopping", "compose"}, default="auto"
        "compose" runs every candidate once and publishes all scores. "random_stopping" runs
        candidates drawn at random, a random and secret number of times, and publishes the best
        run alone; a run then has more to spend if there are many candidates. "auto" compares what
        a run may spend times the chance that the best candidate is run.
    law : {"auto", "geometric", "logarithmic", "poisson"}, default="auto"
        Law of the number of runs. A Poisson number may be zero (with the probability exp(-mean)):
        the model is then one of the first candidate on rows of zeros.
    expected_runs : float or "auto", default="auto"
        Mean number of runs, above 1; "auto" is the number of candidates.
    score_share : float, default=0.1
        Share of a run (of its mu squared, or epsilon) for its score.
    trusted : sequence of str or type, default=()
        Names (or exact classes) of steps that you vouch for: each output row depends on its own
        input row and on public parameters alone. Other steps that are neither private nor in the
        table of `check_pipeline` are refused.
    random_state : int, Generator, RandomState or None, default=None
        None draws from the operating system. Anything else makes a search reproducible, which is
        not private: it warns and is flagged in the receipt.

    Attributes
    ----------
    best_estimator_ : estimator
        The chosen model, as it was fitted in its run. Its receipt is that of the search. Models
        with a head for each user say in `holds_private` what of them must not be published.
    best_params_ : dict
        Its parameters.
    best_score_ : float
        Its private score, minus the mean loss.
    best_index_ : int
        Its place in `cv_results_`.
    cv_results_ : dict
        Released scores: of all candidates for "compose", of the chosen run alone otherwise.
    plan_ : Selection
        How the budget was spent: public, and fixed before the data were touched.
    privacy_spent_ : PrivacySpent
        The receipt, for everything above together.
    ledger_ : tuple of LedgerEntry
        Lines of the receipt.
    n_features_in_ : int
        Number of features.
    classes_ : ndarray
        Class labels, of a classifier.

    See Also
    --------
    DPGridSearchCV : All combinations of listed values.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.stats import randint
    >>> from skdp import DPPCA
    >>> from skdp.model_selection import DPRandomizedSearchCV, make_private_scorer
    >>> X = np.random.default_rng(0).standard_normal((5000, 4)) / 4
    >>> scorer = make_private_scorer("reconstruction", (0.0, 1.0))
    >>> pca = DPPCA(clip_norm=1.0)
    >>> search = DPRandomizedSearchCV(pca, {"n_components": randint(1, 5)}, scorer, n_iter=3)
    >>> search.fit(X).privacy_spent_.epsilon
    1.0
    """

    def __init__(
        self,
        estimator: Any,
        param_distributions: Any,
        scoring: Any = None,
        *,
        cv: None = None,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        n_iter: int = 10,
        strategy: str = "auto",
        law: str = "auto",
        expected_runs: float | str = "auto",
        score_share: float = 0.1,
        trusted: Sequence[Any] = (),
        random_state: Seed = None,
    ) -> None:
        self.estimator = estimator
        self.param_distributions = param_distributions
        self.scoring = scoring
        self.cv = cv
        self.n_iter = n_iter
        self.epsilon = epsilon
        self.delta = delta
        self.strategy = strategy
        self.law = law
        self.expected_runs = expected_runs
        self.score_share = score_share
        self.trusted = trusted
        self.random_state = random_state

    def _candidates(self):
        """Draw candidates; they are public and no noise, so any generator will do."""
        check_int(self, "n_iter", 1)
        seed = draw_below(make_source(self.random_state, "candidates").words("seed"), 2**32)
        return ParameterSampler(self.param_distributions, self.n_iter, random_state=seed)
