"""What private searches share: everything but where candidates come from."""

from __future__ import annotations

import math
from typing import Any, Self

from sklearn.base import MetaEstimatorMixin, is_classifier
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from skdp._validation import check_option, check_real
from skdp.base import BaseDPEstimator, atomic
from skdp.exceptions import PrivacyError
from skdp.model_selection._parts import (
    candidate_of,
    dp_parts,
    meaning_of,
)
from skdp.model_selection._pipelines import check_searchable
from skdp.model_selection._runs import Runs
from skdp.model_selection._scorers import PrivateScorer, own_scorer
from skdp.model_selection.selection_laws import plan_selection
from skdp.model_selection.stopping import LAWS
from skdp.privacy.accounting.receipts import PrivacySpent
from skdp.privacy.gate.budget import SAMPLER_DISTANCE
from skdp.privacy.ledger.fits import LedgerFit
from skdp.privacy.ledger.reservations import RunLimit
from skdp.privacy.ledger.routes import prepaid


def _has(name):
    def check(self):
        model = getattr(self, "best_estimator_", None)
        return hasattr(self.estimator if model is None else model, name)

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
        for params in candidates:  # which of them will be run is drawn later
            for part in dp_parts(candidate_of(self.estimator, params)):
                unit, adjacency = meaning_of(part, with_groups="groups" in fit_params)
                if (unit, adjacency) != meaning:
                    raise PrivacyError(
                        f"{type(part).__name__} protects one {unit} ({adjacency}), and the search "
                        f"one {meaning[0]} ({meaning[1]}). Use one privacy unit and adjacency."
                    )
        return meaning

    _publish = "Publish what released() of the private estimator in best_estimator_ returns."

    @property
    def _fit_keeps(self):
        return "; ".join(part._fit_keeps for part in dp_parts(self.estimator) if part._fit_keeps)

    @property
    def holds_private(self) -> Any:
        """What of private data `best_estimator_` holds, in words; empty if it may be published."""
        parts = dp_parts(getattr(self, "best_estimator_", None))
        return "; ".join(part.holds_private for part in parts if part.holds_private)

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
        plan = self._plan(len(candidates))
        unit, adjacency = self._checked_meaning(candidates, fit_params)
        limit = RunLimit(unit, adjacency, plan.run)
        seeded = self.random_state is not None
        fit = LedgerFit(
            type(self).__name__, unit, adjacency, plan.losses, seeded,
            sessions=math.ceil(plan.expected_runs) * self._sessions(),
        )  # fmt: skip
        runs = Runs(self, plan, candidates, limit)
        with prepaid(fit, self._ledger_ticket, limit):
            self._warn_if_weak(self.epsilon, seeded)
            results = runs.run(X, y, fit_params)
        return self._finish(plan, fit, results)

    def _checked(self):
        """Check all parameters, and return the candidates."""
        check_real(self, "epsilon", 0, math.inf, closed="right")
        check_real(self, "delta", 0, 1, closed="left")
        check_real(self, "score_share", 0, 1)
        check_option(self, "strategy", ("auto", "random_stopping", "compose"))
        check_option(self, "law", ("auto", *LAWS))
        if not (isinstance(self.expected_runs, str) and self.expected_runs == "auto"):
            check_real(self, "expected_runs", 1, 1e6)
        if self.cv is not None:
            raise ValueError(
                f"{type(self).__name__} has no folds: each candidate is fitted and scored on all "
                "rows, which costs less noise than to split them, and a private model cannot adapt "
                f"to single rows by much. Leave 'cv' at None. Got {self.cv!r}."
            )
        if not isinstance(self._scorer, PrivateScorer):
            raise ValueError(
                f"The 'scoring' parameter of {type(self).__name__} must come from "
                f"skdp.model_selection.make_private_scorer. Got {self.scoring!r} instead. None "
                "takes the estimator's own: a regressor has one with public 'target_bounds'; "
                "'accuracy' is for classifiers; other losses need public bounds."
            )
        check_searchable(self.estimator, self.trusted)
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
        for params in candidates:  # a candidate may put another step in the place of one
            check_searchable(candidate_of(self.estimator, params), self.trusted)
        return candidates

    @property
    def _scorer(self):
        """The scorer that was given, or the estimator's own."""
        accuracy = isinstance(self.scoring, str) and self.scoring == "accuracy"
        if self.scoring is None or (accuracy and is_classifier(self.estimator)):
            return own_scorer(self.estimator)
        return self.scoring

    def _sessions(self):
        return len(dp_parts(self.estimator)) + 1

    def _plan(self, n_candidates):
        return plan_selection(
            float(self.epsilon),
            float(self.delta),
            n_candidates,
            strategy=self.strategy,
            law=self.law,
            expected_runs=None if self.expected_runs == "auto" else float(self.expected_runs),
            sessions=self._sessions(),
        )

    def plan(self) -> Any:
        """Say how the budget will be spent; no data are touched.

        Returns
        -------
        plan : Selection
            Strategy, what one run may spend, and the chance that the best candidate is run.
        """
        return self._plan(len(self._checked()))

    def planned_losses(self) -> Any:
        """Return what one call of fit spends: a tuple of losses."""
        return self.plan().losses

    def _finish(self, plan, fit, results):
        spent = PrivacySpent(
            float(self.epsilon),
            float(self.delta),
            plan.losses,
            fit.adjacency,
            fit.unit,
            fit.seeded,
            _distance(plan, fit.sessions),
            "this search alone",
        )
        attributes = results.attributes(spent)
        self._released_names = (*getattr(self, "_released_names", ()), *attributes)
        for name, value in attributes.items():
            setattr(self, name, value)
        self.privacy_spent_ = spent
        self.ledger_ = results.ledger()
        return self

    # -- the model -------------------------------------------------------------------------------

    @property
    def n_features_in_(self) -> Any:
        """Number of features seen by fit."""
        return self._fitted("n_features_in_")

    @property
    def classes_(self) -> Any:
        """Class labels of a classifier."""
        return self._fitted("classes_")

    def _fitted(self, name):
        if not hasattr(self, "best_estimator_"):
            raise AttributeError(f"{type(self).__name__} object has no {name} attribute.")
        return getattr(self.best_estimator_, name)

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
        model = self.fit(X, y, **fit_params).best_estimator_
        return getattr(model, "_transform_each", model.transform)(X)  # bit by bit, for a next step

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

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.
        y : array-like of shape (n_samples,), default=None
            Targets.
        """
        check_is_fitted(self)
        return self.best_estimator_.score(X, y)

    def __sklearn_is_fitted__(self):
        return hasattr(self, "best_estimator_")

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        inner = get_tags(self.estimator)
        for name in ("estimator_type", "classifier_tags", "regressor_tags", "transformer_tags"):
            setattr(tags, name, getattr(inner, name))
        tags.target_tags = inner.target_tags
        tags.input_tags = inner.input_tags
        tags.non_deterministic = inner.non_deterministic
        return tags


def _distance(plan, sessions):
    """Total variation of the noise of all runs; random stopping has it in its losses."""
    drawn = plan.strategy == "compose" and plan.run.kind == "gaussian"
    return sessions * SAMPLER_DISTANCE if drawn else 0.0
