"""Private selection: the random number of runs, and the privacy cost of a search."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from scipy.optimize import minimize_scalar

from skdp.privacy.accounting import losses as accounting
from skdp.privacy.accounting.losses import Loss, mu_from_epsilon_delta
from skdp.privacy.accounting.receipts import aligned, html_table
from skdp.privacy.gate.bounds import SAMPLER_DISTANCE, calibration_epsilon
from skdp.privacy.noise.words import Words

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
def largest_run_mu(mean_n_runs: float, epsilon: float, delta: float) -> float:
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
        run = Loss("gaussian", largest_run_mu(mean, *ideal))
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
