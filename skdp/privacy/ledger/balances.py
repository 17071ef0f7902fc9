"""What the fits of a ledger cost together, and whether there is room for one more."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from skdp.exceptions import PrivacyError
from skdp.privacy.accounting import losses as accounting
from skdp.privacy.accounting.losses import Loss
from skdp.privacy.accounting.receipts import PrivacySpent
from skdp.privacy.gate.budget import MAX_DRAWS, PrivacyBudget
from skdp.privacy.ledger.filters import spent_delta, spent_epsilon, spent_losses
from skdp.privacy.ledger.fits import NORM_UNITS, LedgerFit, planned
from skdp.privacy.noise import integers as noise

Losses: TypeAlias = tuple[Loss, ...]

ADJACENCIES = ("add_remove", "replace")
# A replacement is a removal and an addition in these units, so it costs at most twice as much.
_REPLACEABLE = ("row", "group", "interaction", "entry", "edge")
UNITS = (*_REPLACEABLE, "label", *NORM_UNITS)
_DRAWN = ("gaussian", "sketch")  # kinds whose noise comes from the table


@dataclass(frozen=True)
class Terms:
    """The parameters of a PrivacyLedger, checked."""

    epsilon: float
    delta: float
    adjacency: str | None = None
    unit: str | None = None
    allow_seeded: bool = False

    def __post_init__(self) -> None:
        budget = PrivacyBudget(self.epsilon, self.delta)
        if budget.exact:
            raise ValueError("'epsilon' of a PrivacyLedger must be finite. Got inf instead.")
        for name, options in (("adjacency", ADJACENCIES), ("unit", UNITS)):
            value = getattr(self, name)
            if value is not None and value not in options:
                raise ValueError(f"{name!r} must be None or one of {options}. Got {value!r}.")
        if not isinstance(self.allow_seeded, bool):
            raise ValueError(
                f"'allow_seeded' must be True or False. Got {self.allow_seeded!r} instead."
            )
        object.__setattr__(self, "epsilon", budget.epsilon)
        object.__setattr__(self, "delta", budget.delta)

    def budget_text(self) -> str:
        """Say the budget, for messages."""
        return f"epsilon={self.epsilon:.4g}, delta={self.delta:.3g}"


@dataclass(frozen=True)
class Balance:
    """The fits of a ledger under its terms, oldest first."""

    terms: Terms
    entries: Mapping[int, LedgerFit]

    def limits(self, fits: int) -> tuple[float, float]:
        """Largest epsilon to claim after Gaussian fits, and the delta left by the sampler."""
        epsilon, delta = self.terms.epsilon, self.terms.delta
        if fits == 0 or delta == 0:
            return epsilon, delta
        draws = fits * MAX_DRAWS  # total variations add up; their price is set by the total epsilon
        room = delta / (2 * draws * noise.DELTA_PER_DRAW) - 1
        limit = min(epsilon, math.log(room)) if room > 1 else 0.0
        return limit, math.nextafter(delta - noise.sampler_delta(limit, draws), -1.0)

    def _total(self, more: Losses = (), sessions: int = 1) -> tuple[Losses, list[Losses], int]:
        """Losses of the first fit, of each later one, and how many draw Gaussian noise."""
        fits = [*((fit.losses, fit.sessions) for fit in self.entries.values()), (more, sessions)]
        drawn = sum(n for losses, n in fits if any(kind in _DRAWN for kind, _ in losses))
        (first, _), *rest = fits
        later = [losses for losses, _ in rest if losses]
        oldest = next(iter(self.entries.values()), None)
        return (oldest.fixed() if oldest and later else first), later, drawn

    def affords(self, more: Losses = (), sessions: int = 1) -> bool:
        """Whether everything, and `more` beside it, stays within the budget."""
        first, later, fits = self._total(more, sessions)
        limit, left = self.limits(fits)
        if self.terms.delta == 0:  # the epsilons of pure fits add up in floats
            losses = [*first, *(loss for fit in later for loss in fit)]
            return accounting.epsilon_from_losses(losses, 0.0) <= limit * (1 + 2.0**-48)
        return spent_delta(first, later, limit, (self.terms.epsilon, self.terms.delta)) <= left

    def remaining(self) -> float:
        """Return the largest epsilon that one more fit can have; see `PrivacyLedger.remaining`."""
        low, middle, high = 0.0, self.terms.epsilon, self.terms.epsilon
        while high - low > 1e-12 * self.terms.epsilon:
            enough = self.affords(planned(PrivacyBudget(middle, self.terms.delta)))
            low, high = (middle, high) if enough else (low, middle)
            middle = (low + high) / 2
        return low

    def spent(self) -> PrivacySpent:
        """Return the receipt of everything so far, open fits with their whole budget."""
        first, later, fits = self._total()
        limit, left = self.limits(fits)
        epsilon = spent_epsilon(first, later, left, (self.terms.epsilon, self.terms.delta))
        if self.affords():
            epsilon = min(epsilon, limit)
        unit, adjacency = self._meaning()
        seeded = any(fit.seeded for fit in self.entries.values())
        meaning = adjacency or ADJACENCIES[0], unit or UNITS[0]
        losses = spent_losses(first, later)
        return PrivacySpent(epsilon, self.terms.delta, losses, *meaning, seeded)

    # -- what a fit protects ---------------------------------------------------------------
    def check_kind(self, fit: LedgerFit) -> None:
        """Refuse fits without noise, or with noise that somebody knows."""
        if any(math.isinf(loss.value) for loss in fit.losses):
            raise PrivacyError(
                f"{fit.estimator} has epsilon=inf: it adds no noise, which no PrivacyLedger can "
                "pay. Use a finite 'epsilon', or fit it outside."
            )
        if fit.seeded and not self.terms.allow_seeded:
            raise PrivacyError(
                f"{fit.estimator} was given a random_state: whoever knows it can remove the "
                "noise. Use random_state=None, or PrivacyLedger(..., allow_seeded=True) for tests."
            )

    def _meaning(self) -> tuple[str | None, str | None]:
        """Unit and adjacency: as given, else those of the oldest fit that was charged."""
        first = next(iter(self.entries.values()), None)
        given = self.terms.adjacency
        if first is None:
            return self.terms.unit, given
        return first.unit, given or ("replace" if first.factor > 1 else first.adjacency)

    def factor(self, fit: LedgerFit) -> float:
        """How many neighbours of the fit one neighbour of the ledger is; an error if unknown."""
        unit, adjacency = self._meaning()
        if unit is not None and unit not in (fit.unit, fit.unit.partition(" ")[0]):
            raise PrivacyError(
                f"{fit.estimator} protects one {fit.unit}, and this PrivacyLedger one {unit}: the "
                "two do not add up. Use one privacy unit, or one ledger for each."
            )
        if fit.adjacency == (adjacency or fit.adjacency):
            return 1.0
        one_way = fit.adjacency in ("add_remove", "zero_out")
        if one_way and adjacency == "replace" and fit.unit in _REPLACEABLE:
            return 2.0
        raise PrivacyError(
            f"{fit.estimator} has adjacency={fit.adjacency!r}, and this PrivacyLedger "
            f"{adjacency!r}. Use one adjacency, or PrivacyLedger(..., adjacency='replace'), which "
            "takes add_remove fits at twice their loss."
        )
