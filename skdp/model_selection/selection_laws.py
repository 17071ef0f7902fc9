"""Private selection: the best of a random number of private runs, published alone.

A run Q draws a candidate, fits it and scores it, all privately. The search repeats Q a random
number K of times, K independent of the data, and publishes the best run and nothing else: not K,
not the other runs. What that costs grows with log E[K] at most, not with the number of runs
(Liu and Talwar, 2019; Papernot and Steinke, 2022).

Proof of each formula: Theorems 2 and 6 and Corollary 3 of Papernot and Steinke, "Hyperparameter
tuning with Renyi differential privacy", ICLR 2022. Drawing the candidate is part of Q: its law is
the same for neighbours, so the divergence of Q is at most that of the worst candidate, and all
candidates are run at the same budget. A tie goes to the earlier run, which has the law of a fair
coin since runs are exchangeable; with the coin the order is total, as the theorems suppose.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from scipy.optimize import minimize_scalar

from skdp._tables import aligned, html_table
from skdp.model_selection.stopping import LAWS, chance_drawn, check_mean, exact_gamma, true_mean
from skdp.privacy.accounting import losses as accounting
from skdp.privacy.accounting.losses import Loss, delta_from_mu_epsilon, mu_from_epsilon_delta
from skdp.privacy.gate.budget import SAMPLER_DISTANCE

_SAFE = 1 + 1e-10  # above the rounding of the formulas
_LOG_ORDERS = (-12.0, 18.0)  # range of log(order - 1)
_ALL_SCORES = 1.25  # what knowing the scores of all candidates is taken to be worth
_NEVER_ZERO = 14.0  # a Poisson number of this mean is zero once in a million searches
PURE_FACTOR = {"geometric": 3.0, "logarithmic": 2.0}  # 2 + eta


def random_stopping_rdp(mu: float, law: str, expected_runs: float, order: float) -> float:
    """Renyi divergence bound of the published run, for runs that are mu-GDP.

    Parameters
    ----------
    mu : float
        Gaussian-DP parameter of one run: (order, order mu^2 / 2)-RDP.
    law : {"geometric", "logarithmic", "poisson"}
        Law of the number of runs: truncated negative binomial of eta = 1 or 0, or Poisson.
    expected_runs : float
        Its mean, above 1.
    order : float
        Above 1.

    Returns
    -------
    float
        With l the order and m the mean: for eta = 0, 1
        ``l mu^2/2 + (1 + eta) min_k ((k - 1) mu^2/2 + log(1/gamma)/k) + log(m)/(l - 1)``, where
        the minimum over k >= 1 is at ``k = sqrt(2 log(1/gamma)) / mu``; for Poisson
        ``l mu^2/2 + m delta(log(1 + 1/(l - 1))) + log(m)/(l - 1)``.
    """
    own, spread = order * mu * mu / 2, math.log(true_mean(law, expected_runs)) / (order - 1)
    if law == "poisson":
        delta = delta_from_mu_epsilon(mu, math.log1p(1 / (order - 1)))
        return own + expected_runs * delta + spread
    eta = {"geometric": 1, "logarithmic": 0}[law]
    tail = -math.log(exact_gamma(law, expected_runs))
    k = max(1.0, math.sqrt(2 * tail) / mu)
    return own + (1 + eta) * ((k - 1) * mu * mu / 2 + tail / k) + spread


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

    low, high = _LOG_ORDERS
    grid = [low + (high - low) * i / 60 for i in range(61)]
    best = min(grid, key=at)
    width = grid[1] - grid[0]
    found = minimize_scalar(at, bounds=(best - width, best + width), method="bounded")
    return max(0.0, min(at(best), float(found.fun)) * _SAFE)


def random_stopping_epsilon(mu: float, law: str, expected_runs: float, delta: float) -> float:
    """Epsilon at delta of the best of a random number of mu-GDP runs."""
    return epsilon_from_rdp(lambda order: random_stopping_rdp(mu, law, expected_runs, order), delta)


@cache
def largest_mu(law: str, expected_runs: float, epsilon: float, delta: float) -> float:
    """Largest mu of a run for which the search is (epsilon, delta)-DP, on the safe side."""
    high = mu_from_epsilon_delta(epsilon, delta)  # a search is never cheaper than one run
    low = high / 2
    while random_stopping_epsilon(low, law, expected_runs, delta) > epsilon:
        low, high = low / 2, low
        if low < 1e-12:
            raise ValueError(
                f"epsilon={epsilon!r} at delta={delta!r} is too little for {expected_runs:g} "
                "expected runs. Use a larger 'epsilon', or fewer candidates."
            )
    while high - low > 1e-7 * high:
        middle = (low + high) / 2
        enough = random_stopping_epsilon(middle, law, expected_runs, delta) <= epsilon
        low, high = (middle, high) if enough else (low, middle)
    return low


@dataclass(frozen=True, repr=False)
class Selection:
    """How a search spends one (epsilon, delta): every field is public, and fixed before it starts.

    Attributes
    ----------
    strategy : {"random_stopping", "compose"}
        Publish the best of a random number of runs, or run every candidate and publish all scores.
    law : str or None
        Law of the number of runs.
    expected_runs : float
        Mean number of runs; the number of candidates for "compose".
    run : Loss
        What one run (fit and score together) may spend.
    chance : float
        Chance that the best candidate is among those that are run.
    losses : tuple of Loss
        What the whole search spends.
    """

    strategy: str
    law: str | None
    expected_runs: float
    run: Loss
    chance: float
    losses: tuple[Loss, ...]

    @property
    def value(self) -> float:
        """Signal over noise of a run, times the chance that the best candidate is run.

        Composing counts a quarter more: it publishes all scores.
        """
        size = float(self.run.value) * self.chance
        return size * (_ALL_SCORES if self.strategy == "compose" else 1.0)

    def _facts(self) -> list[tuple[str, str]]:
        if self.strategy == "compose":
            runs = f"{self.expected_runs:.0f}, one of each candidate; all scores are published"
        else:
            runs = f"{self.expected_runs:.4g} on average ({self.law}); the best is published"
        return [
            ("Plan", f"a search, strategy {self.strategy}; no data was touched"),
            ("Runs", runs),
            ("One run", f"{_spends((self.run,))}: a fit and its score"),
            ("The search", f"{_spends(self.losses)}: all runs and the final model"),
            ("Chance", f"{self.chance:.0%} that a given candidate is run"),
        ]

    def __str__(self) -> str:
        """Return the plan as aligned text."""
        return "\n".join(aligned(self._facts()))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(self._facts())


def _spends(losses: tuple[Loss, ...]) -> str:
    return ", ".join(f"{kind} {value:.4g}" for kind, value in losses)


def ideal_budget(epsilon: float, delta: float, runs: float, sessions: int) -> tuple[float, float]:
    """Return (epsilon, delta) without what the samplers of noise cost in all runs together.

    Real noise can be coupled with ideal noise so that they differ with probability at most runs x
    sessions x `SAMPLER_DISTANCE`; K is drawn exactly, and is independent of both,
    so `runs` is its mean. A difference of t in total variation costs (1 + e^epsilon) t. Beyond
    the epsilon where that is half of delta, the noise stays as it is: a smaller epsilon implies
    every larger one.
    """
    distance = math.ceil(runs) * sessions * SAMPLER_DISTANCE
    half = delta / (2 * distance) - 1
    if half <= 1:
        raise ValueError(
            f"'delta' must be at least {4 * distance:.0e} for so large a search: its samplers' own "
            f"error. Got {delta!r}."
        )
    epsilon = min(epsilon, math.log(half), 64.0)
    return epsilon, math.nextafter(delta - (1 + math.exp(epsilon)) * distance, 0.0)


def _composed(epsilon: float, delta: float, n: int, sessions: int) -> Selection:
    """All candidates are run: n equal parts of mu^2, or of epsilon where delta is 0."""
    if epsilon == math.inf:
        run = Loss("gaussian", math.inf)
        return Selection("compose", None, float(n), run, 1.0, (run,))
    if delta == 0:
        run, total = Loss("pure", epsilon / n), [Loss("pure", epsilon / n)] * n
    else:
        mu = mu_from_epsilon_delta(*ideal_budget(epsilon, delta, n, sessions))
        run, total = Loss("gaussian", mu / math.sqrt(n)), [Loss("gaussian", mu)]
    return Selection("compose", None, float(n), run, 1.0, accounting.compose(total))


def _stopped(
    epsilon: float, delta: float, n: int, sessions: int, law: str, mean: float
) -> Selection:
    """The best of a random number of runs, as one (epsilon, delta)-DP mechanism.

    Such a mechanism is dominated by an epsilon-DP one beside one that shows everything with
    probability delta (Kairouz, Oh and Viswanath, 2015): two losses, which compose with others.
    """
    if delta == 0:
        run, losses = Loss("pure", epsilon / PURE_FACTOR[law]), [Loss("pure", epsilon)]
    else:
        ideal = ideal_budget(epsilon, delta, mean, sessions)
        run = Loss("gaussian", largest_mu(law, mean, *ideal))
        losses = [Loss("pure", epsilon), Loss("delta", delta)]
    chance = chance_drawn(law, mean, n)
    return Selection("random_stopping", law, mean, run, chance, accounting.compose(losses))


def plan_selection(
    epsilon: float,
    delta: float,
    n_candidates: int,
    *,
    strategy: str = "auto",
    law: str = "auto",
    expected_runs: float | None = None,
    sessions: int = 2,
) -> Selection:
    """Split one (epsilon, delta) over a search.

    "auto" takes the plan with the largest `Selection.value`; nothing here depends on data.

    Parameters
    ----------
    epsilon, delta : float
        Total, for tuning and the final model; delta may be 0.
    n_candidates : int
        Number of candidates.
    strategy : {"auto", "random_stopping", "compose"}
        See `Selection`.
    law : {"auto", "geometric", "logarithmic", "poisson"}
        Law of the number of runs. Poisson has no pure guarantee; "auto" takes it for means of 14
        and more, where it is hardly ever zero.
    expected_runs : float or None
        Mean of that law, above 1; None is the number of candidates (2 for one candidate).
    sessions : int
        Fits and scores in one run.
    """
    mean = check_mean(float(max(n_candidates, 2) if expected_runs is None else expected_runs))
    laws = [law]
    if law == "auto":
        laws = [name for name in LAWS if name in PURE_FACTOR or (delta > 0 and mean >= _NEVER_ZERO)]
    if delta == 0 and law == "poisson":
        raise ValueError(
            "a Poisson number of runs has no pure guarantee; with delta=0 use 'geometric' or "
            "'logarithmic'."
        )
    if epsilon == math.inf:
        return _composed(epsilon, delta, n_candidates, sessions)
    plans = []
    if strategy != "random_stopping":
        plans.append(_composed(epsilon, delta, n_candidates, sessions))
    if strategy != "compose" and (n_candidates > 1 or strategy == "random_stopping"):
        plans += [_stopped(epsilon, delta, n_candidates, sessions, name, mean) for name in laws]
    return max(plans, key=lambda plan: plan.value)
