"""Private selection: the random number of runs, the privacy cost of a search, and the runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar
from sklearn.base import OneToOneFeatureMixin

from skdp._limits import LARGEST
from skdp._validation import check_rank
from skdp.decomposition._base import LinearTransformMixin
from skdp.exceptions import HELD, PartialSignalWarning, unheard, warn_caller
from skdp.model_selection._cost import budget_for, candidate_of, dp_parts, set_budget
from skdp.model_selection._scorers import SHARES
from skdp.privacy.accounting import losses as accounting
from skdp.privacy.accounting.losses import Loss, mu_from_epsilon_delta
from skdp.privacy.accounting.receipts import LedgerEntry, aligned, html_table
from skdp.privacy.gate.bounds import SAMPLER_DISTANCE, PrivacyBudget, calibration_epsilon
from skdp.privacy.gate.session import PrivacySession, no_warnings
from skdp.privacy.ledger.routes import Account
from skdp.privacy.noise.words import Words, make_source
from skdp.regression._personalized_base import PersonalizedBase

# The random number of runs of a private search: geometric, with a mean that depends on the number
# of candidates.
#
# Wherever random stopping beats running all candidates, other distributions leave less budget for
# each run. Words are uniform 64-bit integers (`skdp.privacy.noise.words`).


def last_chance(mean: float) -> float:
    """Return the chance that a run is the last: a multiple of 2^-53, which is drawn exactly.

    Its inverse is the mean of what `draw_runs` draws; the formulas of the loss use it too.
    """
    return max(1, round(2**53 / mean)) / 2**53


def chance_drawn(mean: float, n: int) -> float:
    """Chance that one given candidate of n is among those drawn: 1 - E[(1 - 1/n)^K]."""
    miss, last = 1 - 1 / n, last_chance(mean)
    return 1 - last * miss / (1 - (1 - last) * miss)


def draw_below(words: Words, n: int) -> int:
    """Draw a uniform integer in [0, n), exactly; n < 2^64."""
    limit = 2**64 - 2**64 % n
    while (word := int(words(1)[0])) >= limit:
        pass
    return word % n


def draw_runs(words: Words, mean: float) -> int:
    """Draw the number of runs, exactly: at least 1.

    Parameters
    ----------
    words : Words
        Source of random words.
    mean : float
        Its mean.
    """
    runs = 1
    while int(words(1)[0]) >> 11 >= 2**53 * last_chance(mean):
        runs += 1
    return runs


# Private selection: only the best of a random number of private runs is published.
#
# A run Q draws a candidate, fits it and scores it, all privately. The search repeats Q a random
# number K of times, K independent of the data, and publishes the best run and nothing else: not K,
# not the other runs. What that costs grows with log E[K] at most, not with the number of runs
# (Liu and Talwar, 2019; Papernot and Steinke, 2022).
#
# Proof of each formula: Theorems 2 and 6 and Corollary 3 of Papernot and Steinke, "Hyperparameter
# tuning with Renyi differential privacy", ICLR 2022. Drawing the candidate is part of Q: its law is
# the same for neighbours, so the divergence of Q is at most that of the worst candidate, and all
# candidates are run at the same budget. A tie goes to the earlier run, which has the law of a fair
# coin since runs are exchangeable; with the coin the order is total, as the theorems suppose.


PURE_FACTOR = 3.0  # of the epsilon of a run: 2 + eta


def random_stopping_rdp(mu: float, mean_n_runs: float, order: float) -> float:
    """Renyi divergence bound of the published run, for runs that are mu-GDP.

    Parameters
    ----------
    mu : float
        Gaussian-DP parameter of one run: (order, order mu^2 / 2)-RDP.
    mean_n_runs : float
        Mean number of runs, above 1. Its law is the truncated negative binomial of eta = 1.
    order : float
        Above 1.

    Returns
    -------
    float
        With l the order and m the mean,
        ``l mu^2/2 + 2 min_k ((k - 1) mu^2/2 + log(m)/k) + log(m)/(l - 1)``, where the minimum over
        k >= 1 is at ``k = sqrt(2 log(m)) / mu``.
    """
    tail = -math.log(last_chance(mean_n_runs))
    k = max(1.0, math.sqrt(2 * tail) / mu)
    return order * mu * mu / 2 + 2 * ((k - 1) * mu * mu / 2 + tail / k) + tail / (order - 1)


def epsilon_from_rdp(curve: Callable[[float], float], delta: float) -> float:
    """Smallest epsilon >= 0 that (order, curve(order))-RDP implies at delta, over all orders.

    ``curve(l) + log((l - 1)/l) - (log delta + log l)/(l - 1)`` (Canonne, Kamath and Steinke, 2020,
    Proposition 12). Every order gives a valid epsilon: the search for the best one may stop early.
    """

    def at(log_order: float) -> float:
        extra = math.exp(log_order)
        order = 1 + extra
        # log((l - 1)/l) in a form that does not cancel for large orders
        return curve(order) - math.log1p(1 / extra) - (math.log(delta) + math.log(order)) / extra

    best = min((i / 2 - 12 for i in range(61)), key=at)  # from -12 to 18
    found = minimize_scalar(at, bounds=(best - 0.5, best + 0.5), method="bounded")
    return max(0.0, min(at(best), float(found.fun)) * (1 + 1e-10))  # above the formulas' rounding


def random_stopping_epsilon(mu: float, mean_n_runs: float, delta: float) -> float:
    """Epsilon at delta of the best of a random number of mu-GDP runs."""
    return epsilon_from_rdp(lambda order: random_stopping_rdp(mu, mean_n_runs, order), delta)


@cache
def largest_mu(mean_n_runs: float, epsilon: float, delta: float) -> float:
    """Largest mu of a run for which the search is (epsilon, delta)-DP, on the safe side."""
    high = mu_from_epsilon_delta(epsilon, delta)  # a search is never cheaper than one run
    low = high / 2
    while random_stopping_epsilon(low, mean_n_runs, delta) > epsilon:
        low, high = low / 2, low
        if low < 1e-12:
            raise ValueError(
                f"epsilon={epsilon!r} at delta={delta!r} is too little for {mean_n_runs:g} "
                "expected runs. Use a larger 'epsilon', or fewer candidates."
            )
    while high - low > 1e-7 * high:
        middle = (low + high) / 2
        enough = random_stopping_epsilon(middle, mean_n_runs, delta) <= epsilon
        low, high = (middle, high) if enough else (low, middle)
    return low


@dataclass(frozen=True, repr=False)
class Selection:
    """How a search spends one (epsilon, delta): every field is public, and fixed before it starts.

    Attributes
    ----------
    strategy : {"random_stopping", "compose"}
        Publish the best of a random number of runs, or run every candidate and publish all scores.
    mean_n_runs : float
        Mean number of runs (geometric); the number of candidates for "compose".
    run : Loss
        What one run (fit and score together) may spend.
    chance : float
        Chance that the best candidate is among those that are run.
    losses : tuple of Loss
        What the whole search spends.
    sessions : int
        Mean number of fits and scores of all runs, rounded up.
    """

    strategy: str
    mean_n_runs: float
    run: Loss
    chance: float
    losses: tuple[Loss, ...]
    sessions: int

    def _facts(self) -> list[tuple[str, str]]:
        if self.strategy == "compose":
            runs = f"{self.mean_n_runs:.0f}, one of each candidate; all scores are published"
        else:
            runs = f"{self.mean_n_runs:.4g} on average (geometric); the best one is published"
        return [
            ("Plan", f"a search, strategy {self.strategy}; no data was touched"),
            ("Runs", runs),
            ("One run", f"{accounting.as_text((self.run,))}: a fit and its score"),
            ("The search", f"{accounting.as_text(self.losses)}: all runs and the final model"),
            ("Chance", f"{self.chance:.0%} for each candidate to be run at all"),
        ]

    def __str__(self) -> str:
        """Return the plan as aligned text."""
        return "\n".join(aligned(self._facts()))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(self._facts())


def ideal_budget(epsilon: float, delta: float, runs: float, sessions: int) -> tuple[float, float]:
    """Return (epsilon, delta) without what the samplers of noise cost in all runs together.

    Real noise can be coupled with ideal noise so that they differ with probability at most runs x
    sessions x `SAMPLER_DISTANCE`; K is drawn exactly, and is independent of both,
    so `runs` is its mean. A difference of t in total variation costs (1 + e^epsilon) t. Beyond
    the epsilon where that is half of delta, the noise stays as it is: a smaller epsilon implies
    every larger one.
    """
    distance = math.ceil(runs) * sessions * SAMPLER_DISTANCE
    epsilon = calibration_epsilon(epsilon, delta, distance)
    return epsilon, math.nextafter(delta - (1 + math.exp(epsilon)) * distance, 0.0)


def _composed(epsilon: float, delta: float, n: int, sessions: int) -> Selection:
    """All candidates are run: n equal parts of mu^2, or of epsilon where delta is 0."""
    if epsilon == math.inf:
        run = Loss("gaussian", math.inf)
        return Selection("compose", float(n), run, 1.0, (run,), n * sessions)
    if delta == 0:
        run, total = Loss("pure", epsilon / n), [Loss("pure", epsilon / n)] * n
    else:
        mu = mu_from_epsilon_delta(*ideal_budget(epsilon, delta, n, sessions))
        run, total = Loss("gaussian", mu / math.sqrt(n)), [Loss("gaussian", mu)]
    return Selection("compose", float(n), run, 1.0, accounting.compose(total), n * sessions)


def _stopped(epsilon: float, delta: float, n: int, sessions: int, mean: float) -> Selection:
    """The best of a random number of runs, as one (epsilon, delta)-DP mechanism.

    Such a mechanism is dominated by an epsilon-DP one next to one that shows everything with
    probability delta (Kairouz, Oh and Viswanath, 2015): two losses, which compose with others.
    """
    if delta == 0:
        run, losses = Loss("pure", epsilon / PURE_FACTOR), [Loss("pure", epsilon)]
    else:
        ideal = ideal_budget(epsilon, delta, mean, sessions)
        run = Loss("gaussian", largest_mu(mean, *ideal))
        losses = [Loss("pure", epsilon), Loss("delta", delta)]
    runs, whole = math.ceil(mean), accounting.compose(losses)
    return Selection("random_stopping", mean, run, chance_drawn(mean, n), whole, runs * sessions)


def plan_selection(
    epsilon: float,
    delta: float,
    n_candidates: int,
    *,
    strategy: str = "auto",
    mean_n_runs: float | None = None,
    sessions: int = 2,
) -> Selection:
    """Split one (epsilon, delta) over a search.

    "auto" takes random stopping if it runs more than three different candidates on average: with
    ``delta=0`` it costs three runs, and with Gaussian noise it was measured to pay from there on.
    Nothing here depends on data.

    Parameters
    ----------
    epsilon, delta : float
        Total, for tuning and the final model; delta may be 0.
    n_candidates : int
        Number of candidates.
    strategy : {"auto", "random_stopping", "compose"}
        See `Selection`.
    mean_n_runs : float or None
        Mean number of runs, above 1; None is the number of candidates (2 for one candidate).
    sessions : int
        Fits and scores in one run.
    """
    mean = float(max(n_candidates, 2) if mean_n_runs is None else mean_n_runs)
    if not 1 < mean <= 1e6:
        raise ValueError(
            f"'mean_n_runs' (expected number of runs) must be in (1, 1e6]. Got {mean!r}."
        )
    few = n_candidates * chance_drawn(mean, n_candidates) <= PURE_FACTOR  # are run on average
    if epsilon == math.inf or strategy == "compose" or (strategy == "auto" and few):
        return _composed(epsilon, delta, n_candidates, sessions)
    return _stopped(epsilon, delta, n_candidates, sessions, mean)


# The runs of a private search, and what may be published of them.


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
        """Fit and score one candidate; nobody hears its warnings, whatever other threads do."""
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
