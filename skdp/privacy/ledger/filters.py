"""Privacy filters: the total cost of fits that are chosen after the results of earlier ones."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
from scipy.special import erfinv, log_expit, ndtri_exp

from skdp.exceptions import PrivacyError
from skdp.privacy.accounting import losses as accounting
from skdp.privacy.accounting.losses import ORDERS, Loss, Losses, as_number, renyi_delta
from skdp.privacy.accounting.receipts import joint_epsilon, rho_of
from skdp.privacy.gate.bounds import MAX_DRAWS, MAX_EPSILON, SAMPLER_DISTANCE, PrivacyBudget
from skdp.privacy.noise import integers as noise

# Fully adaptive composition: each fit is chosen after the results of earlier ones.
#
# The privacy curve of the fits that were made need not bound the whole tree of possible choices: a
# user who looks at a result and then takes a Laplace fit or a Gaussian one, depending on it, mixes
# two curves. The sums below bound every tree.
#
# *Gaussian parts.* If the squares of the mu on every path sum to at most M^2, with each mu fixed by
# the answers so far, the whole is M-GDP (Smith and Thakurta, Koskela et al. 2022), also where
# answers of several fits and streams alternate (Haney et al. 2023: filters of f-DP and of Renyi
# divergences of one fixed order hold for interactive mechanisms side by side).
#
# *Pure parts.* The trade-off of an epsilon-DP part has two straight pieces that meet at (t, t), t =
# 1/(1 + e^epsilon). That of mu-GDP is convex with the same ends, so it lies below both pieces if it
# lies below their corner: mu = -2 Phi^-1(t) dominates. A part of bounded range eta is dominated
# like a pure part of eta/2: each of its corners (one for each position of the range) needs no
# larger mu.
#
# *The first fit* is known before there is any answer, so that its own curve stays exact: the part
# of it that is not Gaussian is one fixed mechanism next to a Gaussian filter.
#
# *Sums of epsilons.* A path of pure parts whose epsilons sum to at most epsilon adds nothing to
# delta(epsilon), whatever else other paths do: cut the tree at each node where a path violates the
# Gaussian rule. The other leaves are unchanged, and that rule covers them. So each path may satisfy
# either rule.
#
# *Random sketches* are Gaussian DP for no mu. Where the first fit has them, Renyi divergences of
# one order are added, the best one for the first fit next to Gaussian ones: it is fixed before any
# answer. The order may not depend on the path.


_UP = 1 + 2.0**-40  # factor that covers the float error of the special functions
_LATE = (
    "{} after other fits cannot be added up, since its charge may depend on their results. "
    "Fit it first in its PrivacyLedger, or in a ledger of its own."
)
_LATE_KINDS = {
    "delta": "a search with random stopping (it may fail with some probability)",
    "sketch": "a random sketch",
}


def late_kind(losses: Iterable[Loss]) -> str:
    """Return why these losses cannot be added unless they come first; "" if they can."""
    kinds = {loss.kind for loss in losses}
    return next((_LATE.format(text) for kind, text in _LATE_KINDS.items() if kind in kinds), "")


def dominating_mu(loss: Loss) -> float:
    """Return the mu whose Gaussian mechanism dominates a Gaussian, pure or bounded-range part."""
    kind, value = loss
    if kind == "gaussian":
        return float(value)
    epsilon = value / 2 if kind == "range" else value
    if epsilon < 2.0:  # 1/(1 + e^epsilon) would round too near to 1/2
        return float(_UP * 2 * math.sqrt(2) * erfinv(math.tanh(epsilon / 2)))
    return float(_UP * -2 * ndtri_exp(log_expit(-epsilon)))


class Sum(NamedTuple):
    """The sum of the losses of fits, in exact arithmetic, so that a fit can be subtracted again.

    Attributes
    ----------
    fits, charged : int
        How many there are, and how many of them cost anything.
    drawn : int
        How many fits and scores of them draw Gaussian noise.
    gaussian, dominated : int
        Squares of the mu of Gaussian parts, and of those that dominate pure and bounded-range
        ones, in units of 2^-2148.
    others : dict of Loss to int
        Parts that are not Gaussian, and how often.
    """

    fits: int = 0
    charged: int = 0
    drawn: int = 0
    gaussian: int = 0
    dominated: int = 0
    others: Mapping[Loss, int] = {}

    @classmethod
    def of(cls, losses: Iterable[Loss], drawn: int = 0) -> Sum:
        """Return the sum of one fit."""
        parts = [Loss(*loss) for loss in losses if float(loss[1]) > 0.0]
        others = Counter(loss for loss in parts if loss.kind != "gaussian")
        plain = [loss for loss in parts if loss.kind in ("pure", "range")]
        drawn = drawn if any(loss.kind in ("gaussian", "sketch") for loss in parts) else 0
        gaussian = sum(_square(loss.value) for loss in parts if loss.kind == "gaussian")
        dominated = sum(_square(dominating_mu(loss)) for loss in plain)
        return cls(1, bool(parts), drawn, gaussian, dominated, others)

    def plus(self, other: Sum, times: int = 1) -> Sum:
        """Return the sum of both; `times=-1` takes the other one out."""
        others = Counter(self.others)
        others.update({loss: times * count for loss, count in other.others.items()})
        numbers = (a + times * b for a, b in zip(self[:5], other[:5], strict=True))
        return Sum._make((*numbers, +others))  # without those that are gone

    @property
    def kinds(self) -> set[str]:
        """The kinds of its parts."""
        return {loss.kind for loss in self.others} | ({"gaussian"} if self.gaussian else set())

    def mu(self) -> float:
        """Return the mu of all parts as Gaussians: deltas and sketches have none."""
        return _root(self.gaussian + self.dominated)

    def epsilon(self) -> float:
        """Return the sum of all epsilons; inf if there are parts without one."""
        if not self.kinds <= {"pure", "range"}:
            return math.inf
        total = sum(count * _exact(loss.value) for loss, count in self.others.items())
        return total / (1 << _PLACES)

    def losses(self) -> Losses:
        """Return losses with this sum, in which all Gaussian ones are merged."""
        others = (loss for loss, count in self.others.items() for _ in range(count))
        return (Loss("gaussian", _root(self.gaussian)), *others)


# Every float is a whole number of 2^-1074.
_PLACES = sys.float_info.mant_dig - sys.float_info.min_exp


def _exact(value: float) -> int:
    numerator, denominator = value.as_integer_ratio()
    return numerator << (_PLACES + 1 - denominator.bit_length())


def _square(value: float) -> int:
    return _exact(value) ** 2


def _root(squares: int) -> float:
    return math.isqrt(squares) / (1 << _PLACES)


def spent_losses(first: Losses, later: Sum) -> Losses:
    """Return what composes: all parts, later ones as Gaussians unless nothing is Gaussian."""
    whole = later.plus(Sum.of(first))
    if not later.charged or "sketch" in whole.kinds or whole.kinds <= {"pure", "range"}:
        return accounting.compose(whole.losses())
    return accounting.compose(_covered(first, later))


def spent_delta(first: Losses, later: Sum, epsilon: float, budget: tuple[float, float]) -> float:
    """Return a delta for which all fits together are (epsilon, delta)-DP.

    Parameters
    ----------
    first : tuple of Loss
        The first fit: fixed before there was any answer.
    later : Sum
        The others, each chosen after answers of those before it.
    epsilon : float
        Where to evaluate.
    budget : tuple of two floats
        The whole (epsilon, delta), which fixes the order of Renyi divergences.
    """
    if not later.charged:
        return accounting.delta_from_losses(first, epsilon)
    if any(loss.kind == "sketch" for loss in first):
        i = _order(first, budget)
        divergence = np.full(ORDERS.shape, math.inf)
        divergence[i] = _with_sketches(first, later)[i]
        return min(1.0, _failure(first) + renyi_delta(divergence, epsilon))
    if _sum(first, later) <= epsilon:
        return _failure(first)
    return accounting.delta_from_losses(_covered(first, later), epsilon)


def spent_epsilon(first: Losses, later: Sum, delta: float, budget: tuple[float, float]) -> float:
    """Return an epsilon for which all fits together are (epsilon, delta)-DP; see `spent_delta`."""
    if not later.charged:
        return accounting.epsilon_from_losses(first, delta)
    if any(loss.kind == "sketch" for loss in first):
        i, left = _order(first, budget), delta - _failure(first)
        if not left > 0:
            return math.inf
        alpha, divergence = ORDERS[i], _with_sketches(first, later)[i]
        logs = np.log(alpha) + math.log(left) - 1e-8
        return max(0.0, float(divergence + np.log1p(-1 / alpha) - logs / (alpha - 1)))
    covered = accounting.epsilon_from_losses(_covered(first, later), delta)
    return min(covered, _sum(first, later)) if _failure(first) <= delta else covered


def _covered(first: Losses, later: Sum) -> list[Loss]:
    """Return the first fit next to later ones as one Gaussian."""
    _check_plain(later, "delta", "sketch")
    own = Sum.of(first)
    squares = own.gaussian + later.gaussian + later.dominated
    return [*own.losses()[1:], Loss("gaussian", _root(squares))]


def _check_plain(later: Sum, *refused: str) -> None:
    if why := late_kind(loss for loss in later.others if loss.kind in refused):
        raise PrivacyError(why)


def _sum(first: Losses, later: Sum) -> float:
    """Return the sum of all epsilons where there is nothing else but a delta of the first fit."""
    return later.plus(Sum.of(loss for loss in first if loss.kind != "delta")).epsilon()


def _failure(losses: Losses) -> float:
    return math.fsum(loss.value for loss in losses if loss.kind == "delta")


def _with_sketches(first: Losses, later: Sum) -> np.ndarray:
    _check_plain(later, "delta")
    return accounting.renyi_divergence(later.plus(Sum.of(first)).losses())


def _order(first: Losses, budget: tuple[float, float]) -> int:
    """Return the index of the best order for the first fit and as much Gaussian noise as goes."""
    epsilon, delta = budget
    alpha, own = ORDERS, accounting.renyi_divergence(first)
    left = delta - _failure(first)
    low, high = 0.0, epsilon + 1.0
    for _ in range(50):
        middle = (low + high) / 2
        enough = renyi_delta(own + alpha * (middle**2 / 2), epsilon) <= left
        low, high = (middle, high) if enough else (low, middle)
    logs = (alpha - 1) * (own + alpha * (low**2 / 2) - epsilon + np.log1p(-1 / alpha))
    return int(np.argmin(np.where(np.isfinite(own), logs - np.log(alpha), math.inf)))


# What a ledger may spend: an (epsilon, delta), a mu of Gaussian DP, or a rho of zCDP.
#
# Each cap is a filter: fits may be chosen by earlier answers, as long as it affords them.
#
# *mu.* Parts of each fit count as the Gaussian that dominates them; squares of mu add up
# (see `filters`).
#
# *rho.* A fit is rho-zCDP if its Renyi divergence of every order alpha > 1 is at most rho alpha. At
# each order divergences add up under adaptive choices with a fixed cap (Feldman and Zrnic 2021), so
# rho does (Whitehouse et al. 2023). mu-GDP is mu^2/2-zCDP, epsilon-DP is epsilon^2/2-zCDP (Bun and
# Steinke 2016), bounded range eta is eta^2/8-zCDP (Cesar and Rogers 2021).


_ROUND = 1 + 2.0**-48  # sums of floats
USUAL_DELTA = 1e-6  # of estimators, and of a report whose cap has no delta


class UnitFits(NamedTuple):
    """The fits that one unit is in: the first, the sum of later ones, and how many draw noise."""

    first: Losses
    later: Sum
    drawn: int

    def distance(self) -> float:
        """Return the total variation between the sampled noise of all fits and its distribution."""
        return self.drawn * SAMPLER_DISTANCE

    def whole(self) -> Sum:
        """Return the sum of all of them."""
        return self.later.plus(Sum.of(self.first))


class EpsilonDelta:
    """A budget (epsilon, delta).

    No fit has an epsilon above its `ceiling`. Its `delta` is the default one of reports, and of the
    next fit in `remaining`.
    """

    def __init__(self, budget: PrivacyBudget) -> None:
        if budget.exact:
            raise ValueError("'epsilon' of a PrivacyLedger must be finite. Got inf instead.")
        self.ceiling, self.delta = self._whole = budget.epsilon, budget.delta

    def limits(self, fits: int) -> tuple[float, float]:
        """Return the epsilon and delta left for the fits themselves after the sampler's error."""
        epsilon, delta = self._whole
        if fits == 0 or delta == 0:
            return epsilon, delta
        distance = fits * SAMPLER_DISTANCE  # total variations add up
        room = delta / (2 * distance) - 1  # a distance costs (1 + e^epsilon) times itself in delta
        limit = min(epsilon, math.log(room)) if room > 1 else 0.0
        return limit, math.nextafter(delta - noise.sampler_delta(limit, fits * MAX_DRAWS), -1.0)

    def affords(self, fits: UnitFits) -> bool:
        """Whether (epsilon, delta) covers the fits."""
        limit, left = self.limits(fits.drawn)
        if self.delta == 0:  # the epsilons of pure fits add up in floats
            return fits.whole().epsilon() <= limit * _ROUND
        return spent_delta(fits.first, fits.later, limit, self._whole) <= left

    def epsilon(self, fits: UnitFits, delta: float) -> float:
        """Return the epsilon of fits at a delta."""
        if delta != self.delta:
            return _epsilon_at(fits, delta, self._whole)
        limit, left = self.limits(fits.drawn)
        epsilon = spent_epsilon(fits.first, fits.later, left, self._whole)
        return min(epsilon, limit) if self.affords(fits) else epsilon

    def text(self) -> str:
        """Return the budget as text."""
        return f"epsilon={self.ceiling:.4g}, delta={self.delta:.3g}"


class Divergence:
    """A budget mu (everything is mu-GDP) or rho (rho-zCDP), but for the distance of the sampler."""

    delta = USUAL_DELTA  # it has none of its own
    ceiling = MAX_EPSILON

    def __init__(self, name: str, limit: float) -> None:
        self.name, self.limit = name, as_number(f"{name!r}", limit)
        if not 0 < self.limit < math.inf:
            raise ValueError(f"{name!r} of a PrivacyLedger must be in (0, inf). Got {limit!r}.")

    def _total(self, whole: Sum) -> float:
        """Return the total of fits in the measure of the budget."""
        if self.name == "mu":
            return whole.mu()
        others = (count * (rho_of([loss]) or 0.0) for loss, count in whole.others.items())
        return math.fsum([rho_of(whole.losses()[:1]) or 0.0, *others])

    def affords(self, fits: UnitFits) -> bool:
        """Whether the fits sum to at most the limit."""
        whole = fits.whole()
        for kind in ("delta", "sketch"):
            if kind in whole.kinds:
                raise PrivacyError(
                    f"{self.name!r}, the budget of this PrivacyLedger, is not defined for losses "
                    f"of kind {kind!r}. Use PrivacyLedger(epsilon, delta)."
                )
        return self._total(whole) <= self.limit * _ROUND

    def epsilon(self, fits: UnitFits, delta: float) -> float:
        """Return the epsilon of fits at a delta."""
        return _epsilon_at(fits, delta, (self.ceiling, delta))  # it has no sketches

    def text(self) -> str:
        """Return the budget as text."""
        return f"{self.name}={self.limit:.4g}"


Cap: TypeAlias = EpsilonDelta | Divergence  # the budget of a ledger


def _epsilon_at(fits: UnitFits, delta: float, budget: tuple[float, float]) -> float:
    """Return the epsilon of fits at any delta; `budget` fixes an order of Renyi divergences."""
    return joint_epsilon(
        lambda left: spent_epsilon(fits.first, fits.later, left, budget), delta, fits.distance()
    )
