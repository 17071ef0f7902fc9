"""The runs of a private search, and what may be published of them."""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import OneToOneFeatureMixin

from skdp._limits import LARGEST
from skdp._validation import check_rank
from skdp.decomposition._base import LinearTransformMixin
from skdp.exceptions import HELD, PartialSignalWarning, unheard, warn_caller
from skdp.model_selection._cost import budget_for, candidate_of, dp_parts, set_budget
from skdp.model_selection._scorers import SHARES
from skdp.model_selection.selection_laws import draw_below, draw_runs
from skdp.privacy.accounting.receipts import LedgerEntry
from skdp.privacy.gate.bounds import PrivacyBudget
from skdp.privacy.gate.session import PrivacySession, no_warnings
from skdp.privacy.ledger.routes import Account
from skdp.privacy.noise.words import make_source
from skdp.regression._personalized_base import PersonalizedBase


class Run(NamedTuple):
    """One run: a candidate, its model, its private score. Secret until it is chosen."""

    params: dict
    model: Any
    total: float  # orders the runs: the noisy sum of losses, without the noise of the count
    n: float  # of units, as it was released for this run
    noise: float  # standard deviation of the noise of the total
    warnings: list


def _silence(model):
    """Switch off callbacks and printed lines, which would reveal the number of runs."""
    for part in [model, *model.get_params(deep=True).values()]:
        if hasattr(part, "_skl_callbacks"):
            part.set_callbacks()
        if hasattr(part, "verbose"):
            part.verbose = False


def _all_parts(model):
    """Yield a model, the private parts in it, and the models that searches among them chose."""
    yield model
    for part in dp_parts(model):
        if part is not model:
            yield part
        if hasattr(part, "best_estimator_"):
            yield from _all_parts(part.best_estimator_)


def _column(values):
    column = np.fromiter(values, object, len(values))
    return np.ma.MaskedArray(column, mask=[value is None for value in values])


class Runs:
    """Draws and executes runs within a reservation."""

    def __init__(self, search, plan, candidates, limit, public_shape):
        self.search, self.plan, self.candidates, self.limit = search, plan, candidates, limit
        self.source = make_source(search.random_state, type(search).__name__)
        self.words = self.source.derive("search").words("candidates and their number")
        n_rows, n_columns = public_shape
        for params in candidates:  # before anything is paid for
            candidate = candidate_of(search.estimator, params)
            parts = dp_parts(candidate)
            set_budget(parts, *self._part(1 - search.score_budget_fraction), search.delta)
            with no_warnings():  # the run that is published warns
                for part in parts:
                    part._check_parameters()
            for _, step in getattr(candidate, "steps", [("", candidate)]):
                k = getattr(step, "n_components", None)
                limited = isinstance(step, LinearTransformMixin | PersonalizedBase)
                if limited and isinstance(k, Integral):
                    check_rank(step, n_rows, n_columns or math.inf, least=min(k, 1))
                if not isinstance(step, OneToOneFeatureMixin):
                    break

    def run(self, X, y, fit_params):
        """Execute the plan; return what is published: the best run, or all if each was paid for."""
        if self.plan.strategy == "compose":
            published = [self._run(params, X, y, fit_params) for params in self.candidates]
        else:
            published = [self._best_of_random(X, y, fit_params)]
        best = max(published, key=lambda run: run.total)
        for said in best.warnings:  # warnings of other runs are private
            warn_caller(*said)
        for part in dp_parts(best.model):  # later fits of it are fits of its own
            vars(part).pop("_reservation_key", None)
        return published

    def attributes(self, published, spent):
        """Return the fitted attributes."""
        totals, counts, noise = np.transpose([run[2:5] for run in published])
        index = int(totals.argmax())
        best = published[index]
        for part in _all_parts(best.model):
            part.privacy_spent_ = spent  # the cost of the whole search, not that of the one fit
        n = counts.mean()  # the same n for all, to keep their order
        scores = np.array([self.search._scorer.score_of(total, n) for total in totals.tolist()])
        results = {
            f"param_{name}": _column([run.params.get(name) for run in published])
            for name in sorted({name for run in published for name in run.params})
        }
        results["params"] = [dict(run.params) for run in published]
        results |= {"mean_test_score": scores, "std_test_score": noise / n}
        results["rank_test_score"] = 1 + np.sum(scores[None, :] > scores[:, None], axis=1)
        self._warn_if_random(scores, noise.max() / n)
        names = ("n_features_in_", "feature_names_in_", "classes_")
        seen = {name: getattr(best.model, name) for name in names if hasattr(best.model, name)}
        return seen | {
            "best_estimator_": best.model,
            "best_params_": dict(best.params),
            "best_score_": float(scores[index]),
            "best_index_": index,
            "cv_results_": results,
            "selection_plan_": self.plan,
        }

    def _warn_if_random(self, scores, noise):
        """Warn if noise is as large as all that losses differ by, judged by what is released."""
        scorer, k = self.search._scorer, len(self.candidates)
        low, high = scorer.bounds
        widest = high - low
        if self.plan.strategy == "compose":  # how far all losses are from one end of their bounds
            widest = min(-low - scores.min(), high + scores.max())
        fine = noise < 0.01 and scorer.loss in SHARES  # candidates differ by a few in a hundred
        if k > 1 and widest < 2 * noise and not fine:
            warn_caller(
                f"the choice among {k} candidates is nearly random: losses have noise of "
                f"{noise:.3g}, and lie within twice that of an end of their bounds, ({low:.4g}, "
                f"{high:.4g}). Give better bounds of the loss (or 'target_bounds') if you know "
                "them. Fewer candidates, more data or a larger epsilon help too.",
                PartialSignalWarning,
            )

    def ledger(self):
        """Return the lines of the receipt: one for each run, or one for the search."""
        plan = self.plan
        if plan.strategy == "compose":
            return tuple(
                LedgerEntry(f"run {i}", "fit and private score", 0.0, 0.0, plan.run)
                for i in range(len(self.candidates))
            )
        mechanism = f"best of a geometric number of runs, mean {plan.mean_n_runs:g}"
        return tuple(LedgerEntry("search", mechanism, 0.0, 0.0, loss) for loss in plan.losses)

    def _best_of_random(self, X, y, fit_params):
        """Return the best of a random number of runs; all other runs are discarded."""
        n = len(self.candidates)
        n_runs = draw_runs(self.words, self.plan.mean_n_runs)
        drawn = (self.candidates[draw_below(self.words, n)] for _ in range(n_runs))
        runs = (self._run(params, X, y, fit_params) for params in drawn)
        return max(runs, key=lambda run: run.total)  # the first of equal ones

    def _run(self, *run):
        """Fit and score one candidate; its warnings are kept in the run, and shown to no thread."""
        with no_warnings():
            return unheard(self._run_here, *run)

    def _run_here(self, params, X, y, fit_params):
        """Fit and score one candidate, within the budget of a run."""
        self.limit.next_run()
        model, for_score = self._fresh(params), self.search.score_budget_fraction
        set_budget(dp_parts(model), *self._part(1 - for_score), self.search.delta)
        model.fit(X, y, **fit_params)
        scored = self._score(model, X, y, fit_params, *self._part(for_score))
        return Run(params, model, *scored, HELD.get())

    def _part(self, share):
        """Return the kind and the size of a share of one run."""
        kind, value = self.limit.run
        return kind, value * (math.sqrt(share) if kind == "gaussian" else share)

    def _fresh(self, params):
        model = candidate_of(self.search.estimator, params)
        if self.plan.strategy == "random_stopping":
            _silence(model)
        for part in dp_parts(model):
            seed = draw_below(self.words, LARGEST) if self.source.seeded else None
            part.set_params(random_state=seed)
        return model

    def _score(self, model, X, y, fit_params, kind, size):
        budget = PrivacyBudget(*budget_for(kind, size * (1 - 1e-9), self.search.delta))
        unit, adjacency = self.limit.meaning
        source = self.source.derive("score", draw_below(self.words, LARGEST))
        session = PrivacySession(
            budget, source=source, adjacency=adjacency, unit=unit, observer=Account()
        )
        return self.search._scorer.release(model, X, y, fit_params.get("groups"), session)
