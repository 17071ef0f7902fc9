"""Searches over parameters with differential privacy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from inspect import signature
from typing import Any, Self

from sklearn.base import MetaEstimatorMixin, is_classifier
from sklearn.model_selection import ParameterGrid, ParameterSampler
from sklearn.utils import get_tags
from sklearn.utils.metadata_routing import get_routing_for_object
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, column_or_1d

from skdp._inputs import refuse_blocks
from skdp._validation import Seed, check_int, check_option, check_real
from skdp.base import BaseDPEstimator, atomic
from skdp.data.blocks import is_dask_array
from skdp.decomposition._base import each_by_itself
from skdp.exceptions import PrivacyError, PrivacyWarning, warn_caller
from skdp.model_selection._cost import candidate_of, dp_parts, meaning_of, planned_fit
from skdp.model_selection._pipelines import check_searchable
from skdp.model_selection._runs import Runs
from skdp.model_selection._scorers import PrivateScorer, own_scorer, scored_unit
from skdp.model_selection.selection_laws import draw_below, plan_selection
from skdp.privacy.accounting.receipts import PrivacySpent
from skdp.privacy.gate.bounds import SAMPLER_DISTANCE
from skdp.privacy.ledger.fits import LedgerFit
from skdp.privacy.ledger.routes import RunLimit, prepaid
from skdp.privacy.noise.words import make_source

# The base class of private searches; subclasses define the candidates.


def _has(name):
    def check(self):
        return hasattr(getattr(self, "best_estimator_", self.estimator), name)

    return check


class PrivateSearch(MetaEstimatorMixin, BaseDPEstimator):
    """A search whose cost, tuning and final model together, is one (epsilon, delta)."""

    @property
    def adjacency(self) -> Any:
        """Adjacency of the estimator that is tuned."""
        return self._meaning()[1]

    @property
    def privacy_unit(self) -> Any:
        """Privacy unit of the estimator that is tuned."""
        return self._meaning()[0]

    def _meaning(self, fit_params=()):
        """Return unit and adjacency of the first private part; all parts must agree."""
        parts = dp_parts(self.estimator)
        if not parts:
            raise ValueError(
                f"the 'estimator' of {type(self).__name__} must be a private estimator, or a "
                f"Pipeline that ends in one. Got {self.estimator!r} instead."
            )
        return meaning_of(parts[0], with_groups="groups" in fit_params)

    def _checked_meaning(self, candidates, fit_params):
        """Return what the search protects, if each part of each candidate protects the same."""
        meaning = self._meaning(fit_params)
        if scored_unit(meaning[0]).of_groups and fit_params.get("groups") is None:
            raise ValueError(
                f"{type(self).__name__} scores groups: pass 'groups' to fit, and no group_column."
            )
        for params in candidates:  # all of them: the candidates that run are drawn later
            for part in dp_parts(candidate_of(self.estimator, params)):
                unit, adjacency = meaning_of(part, with_groups="groups" in fit_params)
                if (unit, adjacency) != meaning:
                    raise PrivacyError(
                        f"{type(part).__name__} protects one {unit} ({adjacency}), and the search "
                        f"one {meaning[0]} ({meaning[1]}). Use one privacy unit and adjacency."
                    )
        return meaning

    def get_metadata_routing(self) -> Any:
        """Return what metadata `fit` takes: `groups`, if a private part takes them.

        Returns
        -------
        routing : MetadataRequest
            The requests of this search.
        """
        request = super().get_metadata_routing()
        routes = map(get_routing_for_object, dp_parts(self.estimator))
        taken = any(route.consumes("fit", ["groups"]) for route in routes)
        request.fit.add_request(param="groups", alias=taken)
        return request

    _publish = "Publish what public_copy() of the private estimator in best_estimator_ returns."

    @property
    def _fit_keeps(self):
        return "; ".join(part._fit_keeps for part in dp_parts(self.estimator) if part._fit_keeps)

    @property
    def private_state(self) -> Any:
        """What of private data `best_estimator_` holds, in words; empty if it may be published."""
        parts = dp_parts(getattr(self, "best_estimator_", None))
        return "; ".join(part.private_state for part in parts if part.private_state)

    # -- fit -----------------------------------------------------------------------------------

    @atomic
    def fit(self, X: Any, y: Any = None, **fit_params: Any) -> Self:
        """Search and fit, spending (`epsilon`, `delta`) once for both.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Private rows.
        y : array-like of shape (n_samples,), default=None
            Private targets.
        **fit_params : dict
            Further arguments of the estimator's fit, for instance ``groups``.

        Returns
        -------
        self : object
            The fitted search.
        """
        candidates = self._checked()
        if not is_dask_array(X):  # a score reads its blocks as one array
            refuse_blocks(self, X, "to score each row")
        if getattr(y, "ndim", 1) == 2 and not get_tags(self).target_tags.multi_output:
            y = column_or_1d(y, warn=True)  # here: warnings inside a run are not shown
        self._warn_of_other_budgets(candidates)
        plan = self._plan(candidates)
        meaning = self._checked_meaning(candidates, fit_params)
        limit, seeded = RunLimit(*meaning, plan.run), self.random_state is not None
        fit = LedgerFit(type(self).__name__, *meaning, plan.losses, seeded, sessions=plan.sessions)
        n, d = (*getattr(X, "shape", ()), math.inf, math.inf)[:2]
        unit = scored_unit(meaning[0])
        public = not unit.of_groups and (meaning[1] == "replace" or not unit.by_rows)
        runs = Runs(self, plan, candidates, limit, (n if public and n > 0 else math.inf, d))
        with prepaid(fit, self._reservation_key, limit):
            self._warn_if_weak(self, seeded)
            published = runs.run(X, y, fit_params)
        return self._finish(fit, runs, published)

    def _checked(self):
        """Check all parameters, and return the candidates."""
        check_real(self, "epsilon", 0, math.inf, closed="right")
        check_real(self, "delta", 0, 1, closed="left")
        check_real(self, "score_budget_fraction", 0, 1)
        check_option(self, "strategy", ("auto", "random_stopping", "compose"))
        if not (isinstance(self.mean_n_runs, str) and self.mean_n_runs == "auto"):
            check_real(self, "mean_n_runs", 1, 1e6)
        if self.cv is not None:
            raise ValueError(
                f"{type(self).__name__} has no folds: it fits and scores each candidate on all "
                f"rows, which needs less noise. Leave 'cv' at None. Got {self.cv!r}."
            )
        check_searchable(self.estimator, self.assume_rowwise)
        scorer = self._scorer
        if not (isinstance(scorer, PrivateScorer) and scorer.suits(self.estimator)):
            raise ValueError(
                f"{type(self).__name__} has no private score for this estimator with "
                f"scoring={self.scoring!r}. For a regressor set public 'target_bounds' and no "
                "'scoring', or scoring=make_private_scorer('squared_error', (0, largest)) with a "
                "public bound 'largest'. 'accuracy' is for classifiers alone. Losses of "
                "predictions need 'predict'; losses of projections need 'inverse_transform' of "
                "every step."
            )
        if any(part.random_state is not None for part in dp_parts(self.estimator)):
            raise ValueError(
                "the estimator inside a search has a 'random_state': all runs would share their "
                "noise. Set the search's own 'random_state', for tests."
            )
        candidates = list(self._candidates())
        for name in {name for params in candidates for name in params}:
            if name.rpartition("__")[2] in ("epsilon", "delta", "random_state", "adjacency"):
                raise ValueError(
                    f"{name!r} cannot be searched: a private search splits its own 'epsilon' and "
                    "'delta' over the runs, equally. Give fixed values to the search."
                )
        if not candidates:
            raise ValueError("there is no candidate to try: the grid is empty.")
        for params in candidates:  # a candidate may replace a step of the pipeline
            check_searchable(candidate_of(self.estimator, params), self.assume_rowwise)
        return candidates

    def _warn_of_other_budgets(self, candidates):
        """Warn of a budget of a single private step: it looks like a promise, and is not used."""
        for part, *others in (dp_parts(candidate_of(self.estimator, each)) for each in candidates):
            for name in () if others else ("epsilon", "delta"):
                own, taken = check_real(part, name, 0, math.inf, closed="both"), getattr(self, name)
                if own not in (signature(type(part)).parameters[name].default, taken):
                    said = f"the search's {name}={taken:g} takes the place of {name}={own:g} of its"
                    how = f"give {name} to {type(self).__name__} alone."
                    warn_caller(f"{said} {type(part).__name__}: {how}", PrivacyWarning)
                    return

    @property
    def _scorer(self):
        """The scorer that was given, or the estimator's own."""
        accuracy = isinstance(self.scoring, str) and self.scoring == "accuracy"
        own = self.scoring is None or (accuracy and is_classifier(self.estimator))
        return own_scorer(self.estimator) if own else self.scoring

    def _plan(self, candidates):
        runs = (dp_parts(candidate_of(self.estimator, params)) for params in candidates)
        sessions = 1 + max(sum(planned_fit(part).sessions for part in parts) for parts in runs)
        mean = None if self.mean_n_runs == "auto" else float(self.mean_n_runs)
        options = {"strategy": self.strategy, "mean_n_runs": mean, "sessions": sessions}
        return plan_selection(float(self.epsilon), float(self.delta), len(candidates), **options)

    def plan(self) -> Any:
        """Say how the budget will be spent; no data are touched.

        Returns
        -------
        plan : Selection
            Strategy, what one run may spend, and the chance that the best candidate is run.
        """
        return self._plan(self._checked())

    def planned_losses(self) -> Any:
        """Return what one call of fit spends: a tuple of losses."""
        return self.plan().losses

    def _finish(self, fit, runs, published):
        # The total variation of the sampled noise of all runs; random stopping includes it.
        distance = fit.sessions * SAMPLER_DISTANCE * (fit.losses[0].kind == "gaussian")
        spent = PrivacySpent(
            float(self.epsilon), float(self.delta), fit.losses, fit.adjacency, fit.unit,
            fit.seeded, distance, "this search alone",
        )  # fmt: skip
        attributes = runs.attributes(published, spent)
        self._released_names = (*getattr(self, "_released_names", ()), *attributes)
        vars(self).update(attributes, privacy_spent_=spent, releases_=runs.ledger())
        return self

    # -- the model -------------------------------------------------------------------------------

    def _call(self, name, X, **params):
        check_is_fitted(self)
        return getattr(self.best_estimator_, name)(X, **params)

    @available_if(_has("predict"))
    def predict(self, X: Any, **params: Any) -> Any:
        """Call predict of the best model; not covered by epsilon for private rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.
        **params : dict
            Further arguments.
        """
        return self._call("predict", X, **params)

    @available_if(_has("predict_proba"))
    def predict_proba(self, X: Any, **params: Any) -> Any:
        """Call predict_proba of the best model; not covered by epsilon for private rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.
        **params : dict
            Further arguments.
        """
        return self._call("predict_proba", X, **params)

    @available_if(_has("decision_function"))
    def decision_function(self, X: Any, **params: Any) -> Any:
        """Call decision_function of the best model; not covered by epsilon for private rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.
        **params : dict
            Further arguments.
        """
        return self._call("decision_function", X, **params)

    @available_if(_has("transform"))
    def transform(self, X: Any) -> Any:
        """Call transform of the best model; not covered by epsilon for private rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.
        """
        return self._call("transform", X)

    @available_if(_has("transform"))
    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """Fit, and project the private rows; the result is not covered by epsilon.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Private rows.
        y : array-like of shape (n_samples,), default=None
            Private targets.
        **fit_params : dict
            Further arguments of fit.
        """
        return each_by_itself(self.fit(X, y, **fit_params).transform, X)

    @available_if(_has("inverse_transform"))
    def inverse_transform(self, X: Any) -> Any:
        """Call inverse_transform of the best model.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_components)
            Projected rows.
        """
        return self._call("inverse_transform", X)

    @available_if(_has("score"))
    def score(self, X: Any, y: Any = None) -> Any:
        """Score the best model without noise: not covered by epsilon for private rows.

        This is the estimator's own score, such as R^2 or the accuracy. `best_score_` is minus a
        mean loss: the two are not comparable.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.
        y : array-like of shape (n_samples,), default=None
            Targets.
        """
        return self._call("score", X, y=y)

    def __sklearn_is_fitted__(self):
        return hasattr(self, "best_estimator_")

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        inner = get_tags(self.estimator)
        for name in (
            "estimator_type", "classifier_tags", "regressor_tags", "transformer_tags",
            "target_tags", "input_tags", "non_deterministic",
        ):  # fmt: skip
            setattr(tags, name, getattr(inner, name))
        return tags


# Grid and randomized search with one total budget.


class DPGridSearchCV(PrivateSearch):
    """Exhaustive search for parameters with one (epsilon, delta) for tuning and final model.

    What fit sets satisfies (`epsilon`, `delta`)-differential privacy as a whole, in the unit and
    adjacency of the estimator, for all data: candidates are fitted and scored privately, and the
    choice uses private scores alone. There are no folds: a run is fitted and scored on all rows (a
    private model cannot adapt much to single rows), and is not refitted. Not covered: the running
    time with random stopping, which depends on the secret number of runs; predictions and scores on
    private rows.

    Parameters
    ----------
    estimator : estimator
        A private estimator, or a Pipeline whose other steps are in the table of `check_pipeline`.
        The epsilons of several private steps only set their ratio.
    param_grid : dict or list of dicts
        Parameters to try, as in `~sklearn.model_selection.GridSearchCV`; no budgets.
    scoring : PrivateScorer, "accuracy" or None, default=None
        From `make_private_scorer`; the search sets its budget. None takes minus a mean loss. It is
        the error rate of a classifier ("accuracy"), the fraction of the squared distance from the
        mean that a projection loses, the fraction of hidden items that a recommender misses, or the
        squared error of a regressor with public `target_bounds`, for errors of at most half of
        their range.
    cv : None, default=None
        A search has no folds; any other value raises an error.
    epsilon, delta : float, default=1.0, 1e-6
        Total budget of one call of fit, for the tuning and the model, whatever `estimator` has; a
        single private step with a budget of its own gives a warning. With ``delta=0`` estimators
        that offer it are tuned with pure differential privacy. An epsilon above about 35 (at the
        default delta) has the noise of 35.
    strategy : {"auto", "random_stopping", "compose"}, default="auto"
        "compose" runs every candidate once and publishes all scores. "random_stopping" runs a
        secret random number of randomly drawn candidates, and publishes the best run alone; with
        many candidates a run then has a larger budget. "auto" composes up to 5 candidates; with
        another `mean_n_runs`, unless more than 3 different ones would be run on average.
    mean_n_runs : float or "auto", default="auto"
        Mean number of runs, above 1; "auto" is the number of candidates.
    score_budget_fraction : float, default=0.1
        Fraction of the budget of a run (of its mu squared, or epsilon) for its score.
    assume_rowwise : str, type or sequence of these, default=()
        Names (or exact classes) of steps for which you state that each output row depends on its
        own input row and on public parameters alone. Other steps that are neither private nor in
        the table of `check_pipeline` raise an error.
    random_state : int, Generator, RandomState or None, default=None
        None draws from the operating system. With anything else the noise can be
        reproduced, so the search is not private: it warns, and the receipt says "SEEDED".

    Attributes
    ----------
    best_estimator_ : estimator
        The selected model, as it was fitted in its run, with the receipt of the search. If its
        `private_state` is not empty, publish its `public_copy()`.
    best_params_ : dict
        Its parameters.
    best_score_ : float
        Its private score: minus the noisy mean loss, which is not what ``score`` returns. Minus the
        squared error for regressors, not R^2; minus the error rate for "accuracy".
    best_index_ : int
        Its index in `cv_results_`.
    cv_results_ : dict
        Released scores: of all candidates for "compose", otherwise of the published run alone.
        ``std_test_score`` is the standard deviation of their noise. Scores are clipped to the
        bounds of the loss, and equal ones share a rank; noisy sums before clipping decide.
    selection_plan_ : Selection
        How the budget was divided: public, and fixed before data were read.
    privacy_spent_ : PrivacySpent
        The receipt, for everything above together.
    releases_ : tuple of LedgerEntry
        Each release with its sensitivity and noise scale.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if all names of X are strings.
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
    for a geometric K of mean m and any k >= 1,
    ``e'(l) = e(l) + 2 (1 - 1/k) e(k) + 2 log(m)/k + log(m)/(l - 1)``. Here e(l) = l mu^2/2. The
    largest mu whose search is (epsilon, delta)-DP is taken. With ``delta=0`` a run has epsilon/3.
    Drawing the candidate is a part of Q: neighbours draw alike, so Q loses no more
    than its worst candidate. K is drawn exactly; that noise is not exactly Gaussian is charged to
    delta. Such a search has no mu; it composes as an epsilon-DP
    mechanism next to one that fails with probability delta, which dominates it.

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
    (epsilon=2, delta=1e-06) row
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
        mean_n_runs: float | str = "auto",
        score_budget_fraction: float = 0.1,
        assume_rowwise: Sequence[Any] = (),
        random_state: Seed = None,
    ) -> None:
        self.estimator = estimator
        self.param_grid = param_grid
        self.scoring = scoring
        self.cv = cv
        self.epsilon = epsilon
        self.delta = delta
        self.strategy = strategy
        self.mean_n_runs = mean_n_runs
        self.score_budget_fraction = score_budget_fraction
        self.assume_rowwise = assume_rowwise
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
        A private estimator, or a Pipeline whose other steps are in the table of `check_pipeline`.
    param_distributions : dict or list of dicts
        Distributions or lists, as in `~sklearn.model_selection.RandomizedSearchCV`; no budgets.
    scoring : PrivateScorer, "accuracy" or None, default=None
        From `make_private_scorer`; the search sets its budget. None takes minus a mean loss. It is
        the error rate of a classifier ("accuracy"), the fraction of the squared distance from the
        mean that a projection loses, the fraction of hidden items that a recommender misses, or the
        squared error of a regressor with public `target_bounds`, for errors of at most half of
        their range.
    cv : None, default=None
        A search has no folds; any other value raises an error.
    epsilon, delta : float, default=1.0, 1e-6
        Total budget of one call of fit, for the tuning and the model, whatever `estimator` has; a
        single private step with a budget of its own gives a warning. With ``delta=0`` estimators
        that offer it are tuned with pure differential privacy. An epsilon above about 35 (at the
        default delta) has the noise of 35.
    n_iter : int, default=10
        Number of candidates that are drawn.
    strategy : {"auto", "random_stopping", "compose"}, default="auto"
        "compose" runs every candidate once and publishes all scores. "random_stopping" runs a
        secret random number of randomly drawn candidates, and publishes the best run alone; with
        many candidates a run then has a larger budget. "auto" composes up to 5 candidates; with
        another `mean_n_runs`, unless more than 3 different ones would be run on average.
    mean_n_runs : float or "auto", default="auto"
        Mean number of runs, above 1; "auto" is the number of candidates.
    score_budget_fraction : float, default=0.1
        Fraction of the budget of a run (of its mu squared, or epsilon) for its score.
    assume_rowwise : str, type or sequence of these, default=()
        Names (or exact classes) of steps for which you state that each output row depends on its
        own input row and on public parameters alone. Other steps that are neither private nor in
        the table of `check_pipeline` raise an error.
    random_state : int, Generator, RandomState or None, default=None
        None draws from the operating system. With anything else the noise can be
        reproduced, so the search is not private: it warns, and the receipt says "SEEDED".

    Attributes
    ----------
    best_estimator_ : estimator
        The selected model, as it was fitted in its run, with the receipt of the search. If its
        `private_state` is not empty, publish its `public_copy()`.
    best_params_ : dict
        Its parameters.
    best_score_ : float
        Its private score: minus the noisy mean loss, which is not what ``score`` returns. Minus the
        squared error for regressors, not R^2; minus the error rate for "accuracy".
    best_index_ : int
        Its index in `cv_results_`.
    cv_results_ : dict
        Released scores: of all candidates for "compose", otherwise of the published run alone.
        ``std_test_score`` is the standard deviation of their noise. Scores are clipped to the
        bounds of the loss, and equal ones share a rank; noisy sums before clipping decide.
    selection_plan_ : Selection
        How the budget was divided: public, and fixed before data were read.
    privacy_spent_ : PrivacySpent
        The receipt, for everything above together.
    releases_ : tuple of LedgerEntry
        Each release with its sensitivity and noise scale.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if all names of X are strings.
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
    >>> X = np.random.default_rng(0).standard_normal((50_000, 4)) * np.geomspace(1, 0.5, 4) / 4
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
        mean_n_runs: float | str = "auto",
        score_budget_fraction: float = 0.1,
        assume_rowwise: Sequence[Any] = (),
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
        self.mean_n_runs = mean_n_runs
        self.score_budget_fraction = score_budget_fraction
        self.assume_rowwise = assume_rowwise
        self.random_state = random_state

    def _candidates(self):
        """Draw candidates; they are public and no noise, so any generator will do."""
        check_int(self, "n_iter", 1)
        seed = draw_below(make_source(self.random_state, "candidates").words("seed"), 2**32)
        return ParameterSampler(self.param_distributions, self.n_iter, random_state=seed)
