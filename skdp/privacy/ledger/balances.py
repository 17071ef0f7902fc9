"""The total cost of the fits of a ledger, with parallel composition over parts of the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import islice, product
from operator import attrgetter, itemgetter
from typing import TypeAlias

from skdp.exceptions import PrivacyError
from skdp.privacy.accounting.losses import as_number
from skdp.privacy.accounting.receipts import PrivacySpent
from skdp.privacy.gate.bounds import PrivacyBudget
from skdp.privacy.ledger.filters import Cap, Divergence, EpsilonDelta, Sum, UnitFits, spent_losses
from skdp.privacy.ledger.fits import LedgerFit, Part, budget_losses
from skdp.units import ADJACENCIES, UNITS, unit_named

# Parallel composition: disjoint parts of the data cost together as much as the most expensive one.
#
# *Proof.* A public rule that looks at one unit alone puts it in one part at most. Let neighbours
# differ in a unit of part p. A fit in another part gets the same rows from both, so given the
# answers so far its law is the same: it adds nothing, whatever it is chosen by. The fits with the
# unit are those of p and those outside all parts. A filter that affords them for every p affords
# all.
#
# *Where it is false.* A replaced unit may leave one part and enter another, and so changes both. An
# edge joins two nodes that may lie in two parts. A change of bounded norm may change every part.
# The rows of a group lie in one part only if the rule assigns whole groups.


class _Open:
    """The state of a ``with`` block for one part; threads started in it may outlive the block."""

    def __init__(self, ended: list[bool]) -> None:
        self.part: Part | None = None
        self.ended = ended  # becomes non-empty when the `partition` block of the rule ends
        self.at_end: list[Callable[[], object]] = []


# Token of a ledger -> the part that this context is in.
_PARTS: ContextVar[dict[str, _Open] | None] = ContextVar("skdp_parts", default=None)
Chooser: TypeAlias = Callable[[str], AbstractContextManager[None]]


def part_of(token: str) -> Part | None:
    """Return the part of a ledger that this context is in."""
    chosen = (_PARTS.get() or {}).get(token)
    return None if chosen is None or chosen.ended else chosen.part


def at_end_of_part(token: str, action: Callable[[], object]) -> None:
    """Run an action at the end of the part that this context is in, if it is in one."""
    if (chosen := (_PARTS.get() or {}).get(token)) is not None:
        chosen.at_end.append(action)


@contextmanager
def parts_of(token: str, key: str, parts: Sequence[str], whole_groups: bool) -> Iterator[Chooser]:
    """Yield a function that opens the block of one part."""
    names = tuple(parts)
    if isinstance(parts, str) or len(set(names)) != len(names) or not names:
        raise ValueError(f"'parts' must be a list of names that differ. Got {parts!r}.")
    if not all(isinstance(name, str) and name for name in (key, *names)):
        raise ValueError(f"'key' and 'parts' must be text. Got {key!r} and {parts!r}.")
    ended: list[bool] = []

    @contextmanager
    def part(name: str) -> Iterator[None]:
        if ended:
            raise PrivacyError(f"the parts of {key!r} have ended.")
        if name not in names:
            raise ValueError(f"{name!r} is no part of {key!r}; these are {names}.")
        if part_of(token) is not None:
            raise PrivacyError(
                f"{name!r}: a part has no parts of its own. End the block of the first part."
            )
        chosen = _Open(ended)
        before = _PARTS.set({**(_PARTS.get() or {}), token: chosen})
        try:  # if an interrupt skips this block, fits count as on all data, which costs more
            chosen.part = Part(key, tuple(sorted(names)), name, whole_groups)
            yield
        finally:
            chosen.part = None
            _PARTS.reset(before)
            for action in chosen.at_end:
                action()

    try:
        yield part
    finally:
        ended.append(True)


def check_part(part: Part, fit: LedgerFit, factor: float, known: Iterable[Part]) -> None:
    """Raise if parallel composition does not hold for a fit inside a part."""
    unit = unit_named(fit.unit)
    if factor != 1.0 or fit.adjacency not in unit.stays:
        raise PrivacyError(
            f"one {fit.unit} ({'replace' if factor > 1 else fit.adjacency}) may touch more than "
            f"one part of {part.key!r}, so that all parts count: fit {fit.estimator} outside of "
            "'partition', or use adjacency='add_remove' where it is offered."
        )
    if unit.of_groups and not part.whole_groups:
        raise PrivacyError(
            f"a group may have rows in several parts of {part.key!r}, which then cannot share a "
            "budget. If each group lies in one part, pass whole_groups=True to 'partition'."
        )
    for other in known:
        if other.key == part.key and other.rule() != part.rule():
            raise PrivacyError(
                f"{part.key!r} had the parts {other.parts}, and now {part.parts}: another rule "
                "needs another 'key'."
            )


def one_part_each(sums: Mapping[Part | None, Sum]) -> Iterator[Sum]:
    """Yield the total of the fits that one unit is in, for each choice of one part for each rule.

    Among parts with Gaussian fits alone, only the most expensive one is tried. The number of noise
    draws is always that of the parts that draw most, since the sampler's error in the other parts
    counts too.
    """
    rules: dict[str, list[Sum]] = {}
    for part, fits in sums.items():
        if part is not None:
            rules.setdefault(part.key, []).append(fits)
    outside = sums.get(None, Sum())
    drawn = outside.drawn + sum(max(part.drawn for part in parts) for parts in rules.values())
    for chosen in product(*map(_dear, rules.values())):
        yield reduce(Sum.plus, chosen, outside)._replace(drawn=drawn)


def _dear(parts: Iterable[Sum]) -> list[Sum]:
    """Return parts such that each other part is at most as expensive as one of these."""
    found = {(part.gaussian, frozenset(part.others.items())): part for part in parts}
    plain = [part for part in found.values() if not part.others]
    mixed = [part for part in found.values() if part.others]
    return mixed + sorted(plain, key=attrgetter("gaussian"))[-1:]


# The total cost of the fits of a ledger, and whether one more fit is within the budget.


_COVERS = "all fits of this ledger together"
BUDGETS = ("epsilon", "delta", "mu", "rho")
IS_SPENT = "The budget is spent: give earlier fits less, for instance by with_budget."


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
        given = {name for name in BUDGETS if getattr(self, name) is not None}
        if given not in ({"epsilon", "delta"}, {"mu"}, {"rho"}):
            raise ValueError(
                "PrivacyLedger needs one budget: 'epsilon' with 'delta', or 'mu', or 'rho'. Got "
                f"{sorted(given) or 'none'}."
            )
        for name, options in (("adjacency", ADJACENCIES), ("unit", tuple(UNITS))):
            value = getattr(self, name)
            if value is not None and value not in options:
                raise ValueError(f"{name!r} must be None or one of {options}. Got {value!r}.")
        if not isinstance(self.allow_seeded, bool):
            raise ValueError(
                f"'allow_seeded' must be True or False. Got {self.allow_seeded!r} instead."
            )
        _ = self.cap  # raises if it is none
        for name in given:
            object.__setattr__(self, name, float(getattr(self, name)))

    @cached_property
    def cap(self) -> Cap:
        """What may be spent."""
        if self.mu is not None:
            return Divergence("mu", self.mu)
        if self.rho is not None:
            return Divergence("rho", self.rho)
        return EpsilonDelta(PrivacyBudget(self.epsilon, self.delta))  # type: ignore[arg-type]


class Balance:
    """The fits of a ledger under its terms, oldest first, and their total cost.

    The sum of each part of the data is cached, so adding a fit takes the same time for any number
    of fits.
    """

    def __init__(self, terms: Terms, entries: Mapping[int, LedgerFit]) -> None:
        self.terms = terms
        self.entries: dict[int, LedgerFit] = {}
        self._sums: dict[Part | None, Sum] = {}
        self._before: dict[int, LedgerFit | None] | None = None
        for key, fit in entries.items():
            self.put(key, fit)

    def copy(self) -> Balance:
        """Return a copy that later changes of this balance do not affect."""
        copied = Balance(self.terms, {})
        copied.entries, copied._sums = dict(self.entries), dict(self._sums)
        return copied

    # -- changes ---------------------------------------------------------------------------
    def put(self, key: int, fit: LedgerFit | None) -> None:
        """Enter a fit, change it, or (None) take it out."""
        old = self.entries.get(key)
        if self._before is not None:
            self._before.setdefault(key, old)
        if old is not None:
            self._sums = _with(self._sums, old, -1)
        if fit is not None:
            self._sums = _with(self._sums, fit)
            self.entries[key] = fit
        else:
            self.entries.pop(key, None)

    @contextmanager
    def changing(self) -> Iterator[dict[int, LedgerFit | None]]:
        """Yield a dict of the former states of fits that the block changes; undo after an error.

        Only the fits in this dict are restored: a signal handler, or code after an interrupt, may
        have changed others meanwhile.
        """
        outer, before = self._before, dict[int, LedgerFit | None]()
        self._before = before
        try:
            yield before
        except BaseException:
            for key, fit in before.items():
                self.entries.pop(key, None) if fit is None else self.entries.update({key: fit})
            self._sums = reduce(_with, self.entries.values(), dict[Part | None, Sum]())
            raise
        finally:
            self._before = outer

    def changed(self, before: Mapping[int, LedgerFit | None]) -> dict[int, LedgerFit | None]:
        """Return what differs from before."""
        now = {key: self.entries.get(key) for key in before}
        return {key: fit for key, fit in now.items() if fit != before[key]}

    @property
    def parts(self) -> list[Part]:
        """The parts of the data that fits are in."""
        return [part for part in self._sums if part is not None]

    # -- costs -----------------------------------------------------------------------------
    def _fits_of_units(self, *more: LedgerFit) -> Iterator[UnitFits]:
        """Yield the fits that one unit is in, for each choice of one part for each rule."""
        sums = reduce(_with, more, self._sums)
        oldest = next(iter((*islice(self.entries.values(), 1), *more)), None)
        first = None if oldest is None or oldest.part is not None else oldest  # before any answer
        for whole in one_part_each(sums):
            later = whole if first is None else whole.plus(_sum_of(first), -1)
            losses = () if first is None else first.fixed() if later.charged else first.losses
            yield UnitFits(losses, later, whole.drawn)

    def affords(self, *more: LedgerFit) -> bool:
        """Return whether all fits so far and `more` stay within the budget."""
        return all(map(self.terms.cap.affords, self._fits_of_units(*more)))

    def remaining(self, delta: float | None = None, part: Part | None = None) -> float:
        """Return the largest epsilon that one more fit can have; see `PrivacyLedger.remaining`."""
        delta = self.terms.cap.delta if delta is None else delta
        low, middle, high = 0.0, self.terms.cap.ceiling, self.terms.cap.ceiling
        while high - low > 1e-12 * self.terms.cap.ceiling:
            losses = budget_losses(PrivacyBudget(middle, delta))
            enough = self.affords(LedgerFit("", "", "", losses, False, part=part))
            low, high = (middle, high) if enough else (low, middle)
            middle = (low + high) / 2
        return low

    def spent(self, delta: float | None = None) -> PrivacySpent:
        """Return the receipt of everything so far, open fits with their whole budget."""
        cap = self.terms.cap
        delta = cap.delta if delta is None else as_number("'delta'", delta, high=1.0)
        priced = ((cap.epsilon(fits, delta), fits) for fits in self._fits_of_units())
        epsilon, fits = max(priced, key=itemgetter(0))
        unit, adjacency = self._meaning()
        seeded = any(fit.seeded for fit in self.entries.values())
        meaning = adjacency or ADJACENCIES[0], unit or next(iter(UNITS))
        losses = spent_losses(fits.first, fits.later)
        return PrivacySpent(epsilon, delta, losses, *meaning, seeded, fits.distance(), _COVERS)

    # -- what a fit protects ---------------------------------------------------------------
    def check_kind(self, fit: LedgerFit) -> None:
        """Raise for fits without noise, or with seeded noise."""
        if any(math.isinf(loss.value) for loss in fit.losses):
            raise PrivacyError(
                f"{fit.estimator} has epsilon=inf: it adds no noise, and no budget covers that. "
                "Use a finite 'epsilon', or fit it outside."
            )
        if fit.seeded and not self.terms.allow_seeded:
            raise PrivacyError(
                f"{fit.estimator} was given a random_state: anyone who knows it can subtract the "
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
        """Return the factor of the fit's loss in this ledger: 2 for add_remove in a replace ledger.

        Raise if the unit or the adjacency of the fit does not go with the ledger.
        """
        unit, adjacency = self._meaning()
        if unit is not None and unit not in (fit.unit, fit.unit.partition(" ")[0]):
            remedy = "Use one PrivacyLedger for each privacy unit."
            if "group" in (unit.partition(" ")[0], fit.unit.partition(" ")[0]):
                remedy = (
                    "Use privacy_unit='group' in all fits: two ledgers bound no person's total."
                )
            raise PrivacyError(
                f"{fit.estimator} protects one {fit.unit}, and this PrivacyLedger one {unit}: "
                f"these guarantees do not compose. {remedy}"
            )
        if fit.adjacency == (adjacency or fit.adjacency):
            return 1.0
        one_way = fit.adjacency in ("add_remove", "zero_out")
        # Of a unit that may be replaced, a replacement is a removal and an addition.
        if one_way and adjacency == "replace" and adjacency in unit_named(fit.unit).adjacencies:
            return 2.0
        raise PrivacyError(
            f"{fit.estimator} has adjacency={fit.adjacency!r}, and this PrivacyLedger "
            f"{adjacency!r}. Use one adjacency, or PrivacyLedger(..., adjacency='replace'), which "
            "takes add_remove fits at twice their loss."
        )


def _sum_of(fit: LedgerFit) -> Sum:
    return Sum.of(fit.losses, fit.sessions)


def _with(sums: dict[Part | None, Sum], fit: LedgerFit, times: int = 1) -> dict[Part | None, Sum]:
    """Return sums with one more fit, or without one."""
    whole = sums.get(fit.part, Sum()).plus(_sum_of(fit), times)
    others = {part: each for part, each in sums.items() if part != fit.part}
    return others | {fit.part: whole} if whole.fits else others
