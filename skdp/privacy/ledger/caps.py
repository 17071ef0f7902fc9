"""What a ledger may spend: an (epsilon, delta), a mu of Gaussian DP, or a rho of zCDP.

Each cap is a filter: fits may be chosen by earlier answers, as long as it affords them.

*mu.* Parts of each fit count as the Gaussian that dominates them; squares of mu add up
(see `filters`).

*rho.* A fit is rho-zCDP if its Renyi divergence of every order alpha > 1 is at most rho alpha. At
each order divergences add up under adaptive choices with a fixed cap (Feldman and Zrnic 2021), so
rho does (Whitehouse et al. 2023). mu-GDP is mu^2/2-zCDP, epsilon-DP is epsilon^2/2-zCDP (Bun and
Steinke 2016), bounded range eta is eta^2/8-zCDP (Cesar and Rogers 2021).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from skdp.exceptions import PrivacyError
from skdp.privacy.accounting import losses as accounting
from skdp.privacy.accounting.curves import as_number
from skdp.privacy.accounting.losses import Loss
from skdp.privacy.accounting.receipts import epsilon_beside, rho_of
from skdp.privacy.gate.budget import MAX_DRAWS, SAMPLER_DISTANCE, PrivacyBudget
from skdp.privacy.ledger.filters import dominating_mu, spent_delta, spent_epsilon
from skdp.privacy.noise import integers as noise

Losses: TypeAlias = tuple[Loss, ...]

_ROUND = 1 + 2.0**-48  # sums of floats
_MOST = 64.0  # noise does not shrink beyond this epsilon
USUAL_DELTA = 1e-6  # of estimators, and of a report whose cap has no delta


class Seen(NamedTuple):
    """The fits that one unit is in: the first, later ones, and how many draw Gaussian noise."""

    first: Losses
    later: Sequence[Losses]
    drawn: int

    def distance(self) -> float:
        """Return the total variation between all their noise and its law."""
        return self.drawn * SAMPLER_DISTANCE

    def losses(self) -> Losses:
        """Return every part of every fit."""
        return (*self.first, *(loss for fit in self.later for loss in fit))


class Cap(Protocol):
    """The budget of a ledger."""

    @property
    def delta(self) -> float:
        """The delta of a report, and of one more fit, where nobody says another one."""

    @property
    def ceiling(self) -> float:
        """No fit has a larger epsilon."""

    def affords(self, seen: Seen) -> bool:
        """Whether fits stay within it, however each was chosen."""

    def epsilon(self, seen: Seen, delta: float) -> float:
        """Return the epsilon of fits at a delta."""

    def text(self) -> str:
        """Say it."""


@dataclass(frozen=True)
class EpsilonDelta:
    """A budget (epsilon, delta)."""

    budget: PrivacyBudget

    def __post_init__(self) -> None:
        if self.budget.exact:
            raise ValueError("'epsilon' of a PrivacyLedger must be finite. Got inf instead.")

    @property
    def delta(self) -> float:
        """The delta of the budget."""
        return self.budget.delta

    @property
    def ceiling(self) -> float:
        """The epsilon of the budget."""
        return self.budget.epsilon

    @property
    def _whole(self) -> tuple[float, float]:
        return self.budget.epsilon, self.budget.delta

    def limits(self, fits: int) -> tuple[float, float]:
        """Largest epsilon to claim after Gaussian fits, and the delta left by the sampler."""
        epsilon, delta = self._whole
        if fits == 0 or delta == 0:
            return epsilon, delta
        distance = fits * SAMPLER_DISTANCE  # total variations add up
        room = delta / (2 * distance) - 1  # their price is set by the total epsilon
        limit = min(epsilon, math.log(room)) if room > 1 else 0.0
        return limit, math.nextafter(delta - noise.sampler_delta(limit, fits * MAX_DRAWS), -1.0)

    def affords(self, seen: Seen) -> bool:
        """Whether (epsilon, delta) covers the fits."""
        limit, left = self.limits(seen.drawn)
        if self.delta == 0:  # the epsilons of pure fits add up in floats
            return accounting.epsilon_from_losses(seen.losses(), 0.0) <= limit * _ROUND
        return spent_delta(seen.first, seen.later, limit, self._whole) <= left

    def epsilon(self, seen: Seen, delta: float) -> float:
        """Return the epsilon of fits at a delta."""
        if delta != self.delta:
            return _epsilon_at(seen, delta, self._whole)
        limit, left = self.limits(seen.drawn)
        epsilon = spent_epsilon(seen.first, seen.later, left, self._whole)
        return min(epsilon, limit) if self.affords(seen) else epsilon

    def text(self) -> str:
        """Say it."""
        return f"epsilon={self.ceiling:.4g}, delta={self.delta:.3g}"


@dataclass(frozen=True)
class _Divergence(ABC):
    """A budget that has no delta of its own."""

    limit: float
    delta = USUAL_DELTA
    ceiling = _MOST
    name = ""

    def __post_init__(self) -> None:
        value = as_number(f"{self.name!r}", self.limit)
        if not 0 < value < math.inf:
            raise ValueError(
                f"{self.name!r} of a PrivacyLedger must be in (0, inf). Got {self.limit!r}."
            )

    @abstractmethod
    def _total(self, losses: Iterable[Loss]) -> float:
        """Return what losses sum to, in the budget's own measure."""

    def affords(self, seen: Seen) -> bool:
        """Whether the fits sum to at most the limit."""
        return self._total(seen.losses()) <= self.limit * _ROUND

    def epsilon(self, seen: Seen, delta: float) -> float:
        """Return the epsilon of fits at a delta."""
        return _epsilon_at(seen, delta, (self.ceiling, delta))  # it has no sketches

    def text(self) -> str:
        """Say it."""
        return f"{self.name}={self.limit:.4g}"


class Gaussian(_Divergence):
    """A budget mu: everything is mu-GDP, but for the distance of the sampler."""

    name = "mu"

    def _total(self, losses: Iterable[Loss]) -> float:
        losses = tuple(losses)
        _check_plain(losses, "mu")
        return math.hypot(*map(dominating_mu, losses))


class Concentrated(_Divergence):
    """A budget rho: everything is rho-zCDP, but for the distance of the sampler."""

    name = "rho"

    def _total(self, losses: Iterable[Loss]) -> float:
        losses = tuple(losses)
        _check_plain(losses, "rho")
        return rho_of(losses) or 0.0


def _check_plain(losses: Iterable[Loss], name: str) -> None:
    for loss in losses:
        if loss.kind in ("sketch", "delta"):
            raise PrivacyError(
                f"a PrivacyLedger with a budget {name!r} takes no losses of kind {loss.kind!r}, "
                "which have none. Use PrivacyLedger(epsilon, delta)."
            )


def _epsilon_at(seen: Seen, delta: float, budget: tuple[float, float]) -> float:
    """Return the epsilon of fits at any delta; `budget` fixes an order of Renyi divergences."""
    return epsilon_beside(
        lambda left: spent_epsilon(seen.first, seen.later, left, budget), delta, seen.distance()
    )
