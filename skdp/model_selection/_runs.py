"""The runs of a private search, and what may be published of them."""

import math
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags

from skdp.model_selection._parts import budget_for, candidate_of, dp_parts, set_budget
from skdp.model_selection.stopping import draw_below, draw_runs
from skdp.privacy.accounting.receipts import LedgerEntry
from skdp.privacy.gate.budget import PrivacyBudget
from skdp.privacy.gate.session import PrivacySession
from skdp.privacy.ledger.routes import Account
from skdp.privacy.noise.words import make_source

_SEED_BITS = 62
_COUNT_SHARE = 0.1  # of a score: runs are ordered by sums of losses, the count serves the mean


@dataclass
class Run:
    """One run: a candidate, its model, its private score. Secret until it is chosen."""

    params: dict
    model: Any
    score: float
    total: float  # orders the runs: the noisy sum of losses, without the noise of the count
    warnings: list = field(default_factory=list)


def _silence(model):
    """Let nobody count the runs: no callbacks, and nothing that a Pipeline prints."""
    deep = model.get_params(deep=True)
    for part in [model, *deep.values()]:
        if hasattr(part, "_skl_callbacks"):
            part.set_callbacks()
        if isinstance(part, Pipeline):
            part.verbose = False


def _zeros(X, n):
    """Return n rows of zeros like those of X, which may be factors: its length shows nowhere."""
    return tuple(_zeros(part, n) for part in X) if isinstance(X, tuple) else _zero_rows(X, n)


def _zero_rows(X, n):
    return np.zeros((n, *np.shape(X)[1:]))


def _public_targets(model, y, n):
    """Return n targets like those of y; of a classifier its classes, which are y's if not given."""
    if get_tags(model).estimator_type != "classifier":
        return _zero_rows(y, n)
    given = [part.classes for part in dp_parts(model) if getattr(part, "classes", None) is not None]
    return np.resize(np.unique(given[-1] if given else y), n)


@dataclass
class Results:
    """What is published: the best run, or all of them where all were paid for one by one."""

    plan: Any
    published: list
    best: int

    def attributes(self, spent):
        """Return the fitted attributes."""
        best = self.published[self.best]
        for part in _all_parts(best.model):
            part.privacy_spent_ = spent  # its own would leave the search out
        scores = np.array([run.score for run in self.published])
        totals = np.array([run.total for run in self.published])
        results = {
            f"param_{name}": _column([run.params.get(name) for run in self.published])
            for name in sorted({name for run in self.published for name in run.params})
        }
        results["params"] = [dict(run.params) for run in self.published]
        results["mean_test_score"] = scores
        results["rank_test_score"] = 1 + np.sum(totals[None, :] > totals[:, None], axis=1)
        return {
            "best_estimator_": best.model,
            "best_params_": dict(best.params),
            "best_score_": best.score,
            "best_index_": self.best,
            "cv_results_": results,
            "plan_": self.plan,
        }

    def ledger(self):
        """Return the lines of the receipt: one for each run, or one for the search."""
        plan = self.plan
        if plan.strategy == "compose":
            return tuple(
                LedgerEntry(f"run {i}", "fit and private score", 0.0, 0.0, plan.run)
                for i in range(len(self.published))
            )
        mechanism = f"best of a {plan.law} number of runs, mean {plan.expected_runs:g}"
        return tuple(LedgerEntry("search", mechanism, 0.0, 0.0, loss) for loss in plan.losses)


def _all_parts(model):
    """Yield a model, the private parts in it, and the models that searches among them chose."""
    yield model
    for part in dp_parts(model):
        if part is not model:
            yield part
        if hasattr(part, "best_estimator_"):
            yield from _all_parts(part.best_estimator_)


def _column(values):
    column = np.empty(len(values), object)
    column[:] = values
    return np.ma.MaskedArray(column, mask=[value is None for value in values])


class Runs:
    """Draws and executes runs within a reservation."""

    def __init__(self, search, plan, candidates, limit):
        self.search, self.plan, self.candidates, self.limit = search, plan, candidates, limit
        self.source = make_source(search.random_state, type(search).__name__)
        self.words = self.source.derive("search").words("candidates and their number")

    def run(self, X, y, fit_params):
        """Execute the plan; return what is published."""
        if self.plan.strategy == "compose":
            published = [self._run(params, X, y, fit_params) for params in self.candidates]
        else:
            published = [self._best_of_random(X, y, fit_params)]
        for run in published:
            for message in run.warnings:
                warnings.warn_explicit(message.message, message.category, message.filename,
                                       message.lineno)  # fmt: skip
            for part in dp_parts(run.model):  # later fits of the model are fits of its own
                vars(part).pop("_ledger_ticket", None)
        best = max(range(len(published)), key=lambda i: published[i].total)
        return Results(self.plan, published, best)

    def _best_of_random(self, X, y, fit_params):
        """Return the best of a random number of runs; nothing else of them survives."""
        best = None
        for _ in range(draw_runs(self.words, self.plan.law, self.plan.expected_runs)):
            params = self.candidates[draw_below(self.words, len(self.candidates))]
            run = self._run(params, X, y, fit_params)
            if best is None or run.total > best.total:
                best = run
        return self._public_run(X, y, fit_params) if best is None else best

    def _run(self, params, X, y, fit_params):
        """Fit and score one candidate, within the budget of a run."""
        search, limit = self.search, self.limit
        kind, value = limit.run.kind, limit.run.value
        limit.next_run()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = self._fresh(params)
            for_fit = 1 - search.score_share
            size = value * (math.sqrt(for_fit) if kind == "gaussian" else for_fit)
            set_budget(dp_parts(model), kind, size, search.delta)
            model.fit(X, y, **fit_params)
            score, total = self._score(model, X, y, fit_params, kind, value)
        return Run(params, model, score, total, caught)

    def _fresh(self, params):
        model = candidate_of(self.search.estimator, params)
        if self.plan.strategy == "random_stopping":
            _silence(model)
        for part in dp_parts(model):
            seed = None
            if self.source.seeded:
                seed = draw_below(self.words, 1 << _SEED_BITS)
            part.set_params(random_state=seed)
        return model

    def _score(self, model, X, y, fit_params, kind, value):
        share = self.search.score_share
        size = value * (math.sqrt(share) if kind == "gaussian" else share) * (1 - 1e-9)
        budget = PrivacyBudget(*budget_for(kind, size, self.search.delta))
        unit, adjacency = self.limit.meaning
        source = self.source
        if source.seeded:
            source = source.derive("score", draw_below(self.words, 1 << _SEED_BITS))
        session = PrivacySession(
            budget, source=source, adjacency=adjacency, unit=unit, observer=Account()
        )
        groups = fit_params.get("groups")
        return self.search._scorer.release(model, X, y, groups, session, _COUNT_SHARE)

    def _public_run(self, X, y, fit_params):
        """Return the first candidate fitted on rows of zeros: a function of public values."""
        n, params = 10, self.candidates[0]
        self.limit.next_run()
        rows = _zeros(X, n)
        extra = {"groups": np.arange(n)} if "groups" in fit_params else {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = self._fresh(params)
            target = None if y is None else _public_targets(model, y, n)
            size = self.limit.run.value * (1 - self.search.score_share)
            set_budget(dp_parts(model), self.limit.run.kind, size, self.search.delta)
            model.fit(rows, target, **extra)
        low, high = self.search._scorer.bounds
        return Run(params, model, -(low + high) / 2, -math.inf)
