"""What the fits of a ledger cost together, and whether there is room for one more."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from skdp.exceptions import PrivacyError
from skdp.privacy.accounting.curves import as_number
from skdp.privacy.accounting.receipts import PrivacySpent
from skdp.privacy.gate.budget import PrivacyBudget
from skdp.privacy.ledger.caps import Cap, Concentrated, EpsilonDelta, Gaussian, Seen
from skdp.privacy.ledger.disjoint import one_part_each
from skdp.privacy.ledger.filters import spent_losses
from skdp.privacy.ledger.fits import NORM_UNITS, LedgerFit, Part, planned

ADJACENCIES = ("add_remove", "replace")
# A replacement is a removal and an addition in these units, so it costs at most twice as much.
_REPLACEABLE = ("row", "group", "interaction", "entry", "edge", "label")
UNITS = (*_REPLACEABLE, *NORM_UNITS)
_DRAWN = ("gaussian", "sketch")  # kinds whose noise comes from the table
_COVERS = "all fits of this ledger together"
_BUDGETS = ("epsilon", "delta", "mu", "rho")


@dataclass(frozen=True)
class Terms:
    """The parameters of a PrivacyLedger, checked: one budget in one of three measures."""

    epsilon: float | None = None
    delta: float | None = None
    adjacency: str | None = None
    unit: str | None = None
    allow_seeded: bool = False
    mu: float | None = None
    rho: float | None = None

    def __post_init__(self) -> None:
        given = {name for name in _BUDGETS if getattr(self, name) is not None}
        if given not in ({"epsilon", "delta"}, {"mu"}, {"rho"}):
            raise ValueError(
                "the budget of a PrivacyLedger is 'epsilon' and 'delta', or 'mu', or 'rho'. Got "
                f"{sorted(given)}."
            )
        for name, options in (("adjacency", ADJACENCIES), ("unit", UNITS)):
            value = getattr(self, name)
            if value is not None and value not in options:
                raise ValueError(f"{name!r} must be None or one of {options}. Got {value!r}.")
        if not isinstance(self.allow_seeded, bool):
            raise ValueError(
                f"'allow_seeded' must be True or False. Got {self.allow_seeded!r} instead."
            )
        self._budget()  # raises if it is none
        for name in given:
            object.__setattr__(self, name, float(getattr(self, name)))

    def _budget(self) -> Cap:
        if self.mu is not None:
            return Gaussian(self.mu)
        if self.rho is not None:
            return Concentrated(self.rho)
        return EpsilonDelta(PrivacyBudget(self.epsilon, self.delta))  # type: ignore[arg-type]

    @cached_property
    def cap(self) -> Cap:
        """What may be spent."""
        return self._budget()


@dataclass(frozen=True)
class Balance:
    """The fits of a ledger under its terms, oldest first."""

    terms: Terms
    entries: Mapping[int, LedgerFit]

    def _seen(self, *more: LedgerFit) -> Iterator[Seen]:
        """Yield the fits of a unit, for each way in which it can lie in disjoint parts."""
        fits = [*self.entries.values(), *more]
        drawn = _drawn(fits)
        for mine in one_part_each(fits):
            fixed = bool(fits) and fits[0].part is None  # before there was any answer
            first, rest = (mine[:1], mine[1:]) if fixed else ([], mine)
            later = [fit.losses for fit in rest if fit.losses]
            losses = [fit.fixed() if later else fit.losses for fit in first]
            yield Seen(losses[0] if losses else (), later, drawn)

    def affords(self, *more: LedgerFit) -> bool:
        """Whether everything, and `more` beside it, stays within the budget."""
        return all(map(self.terms.cap.affords, self._seen(*more)))

    def remaining(self, delta: float | None = None, part: Part | None = None) -> float:
        """Return the largest epsilon that one more fit can have; see `PrivacyLedger.remaining`."""
        delta = self.terms.cap.delta if delta is None else delta
        low, middle, high = 0.0, self.terms.cap.ceiling, self.terms.cap.ceiling
        while high - low > 1e-12 * self.terms.cap.ceiling:
            losses = planned(PrivacyBudget(middle, delta))
            enough = self.affords(LedgerFit("", "", "", losses, False, part=part))
            low, high = (middle, high) if enough else (low, middle)
            middle = (low + high) / 2
        return low

    def spent(self, delta: float | None = None) -> PrivacySpent:
        """Return the receipt of everything so far, open fits with their whole budget."""
        cap = self.terms.cap
        delta = cap.delta if delta is None else as_number("'delta'", delta, high=1.0)
        priced = ((cap.epsilon(seen, delta), seen) for seen in self._seen())
        epsilon, seen = max(priced, key=_epsilon)
        unit, adjacency = self._meaning()
        seeded = any(fit.seeded for fit in self.entries.values())
        meaning = adjacency or ADJACENCIES[0], unit or UNITS[0]
        losses = spent_losses(seen.first, seen.later)
        return PrivacySpent(epsilon, delta, losses, *meaning, seeded, seen.distance(), _COVERS)

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


def _drawn(fits: Iterable[LedgerFit]) -> int:
    """Count the fits and scores that draw Gaussian noise: of one rule, those of the largest part.

    In the other parts the same noise answers for both neighbours.
    """
    outside, rules = 0, dict[str, Counter[str]]()
    for fit in fits:
        drawn = fit.sessions if any(kind in _DRAWN for kind, _ in fit.losses) else 0
        if fit.part is None:
            outside += drawn
        else:
            rules.setdefault(fit.part.key, Counter())[fit.part.name] += drawn
    return outside + sum(max(parts.values()) for parts in rules.values())


def _epsilon(priced: tuple[float, Seen]) -> float:
    return priced[0]
