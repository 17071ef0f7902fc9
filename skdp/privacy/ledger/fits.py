"""The record of one fit in a PrivacyLedger, and tokens that name ledgers and their processes."""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from skdp.privacy.accounting import losses as accounting
from skdp.privacy.accounting.losses import Loss
from skdp.privacy.gate.bounds import PrivacyBudget
from skdp.units import unit_named


@dataclass(frozen=True)
class Part:
    """One part of the data, by a public rule with a name; see `skdp.privacy.ledger.balances`."""

    key: str
    parts: tuple[str, ...]
    name: str
    whole_groups: bool = False

    def rule(self) -> tuple[object, ...]:
        """Return what all parts of one rule have in common."""
        return self.key, self.parts, self.whole_groups


@dataclass(frozen=True)
class LedgerFit:
    """The record of one fit in a ledger; every field is public.

    `losses` is what is charged, `factor` included: the whole budget while `state` is "open", what
    was granted once it is "fitted" or "failed" (failing before the first release costs nothing).
    `unit` names the sensitivity where that is part of what a neighbour is. `part` is the part of
    the data that it was fitted to, None for all of them.
    """

    estimator: str
    unit: str
    adjacency: str
    losses: tuple[Loss, ...]
    seeded: bool
    state: str = "open"
    factor: float = 1.0  # 2 for an add_remove fit in a replace ledger
    sessions: int = 1  # fits and scores that it is made of: each draws noise of its own
    promised: tuple[Loss, ...] = ()  # what was charged at first: a filter may not depend on answers
    parts: float = 1.0  # above 1 if several servers hold parts of one unit (`charge_parts`)
    part: Part | None = None
    note: str = ""  # the ledger's note: who fits, and for what purpose

    def costs(self, granted: Iterable[Loss]) -> tuple[Loss, ...]:
        """Return what a ledger is charged for what the fit was granted."""
        return tuple(loss.times(self.parts) for loss in multiplied(granted, self.factor))

    def fixed(self) -> tuple[Loss, ...]:
        """Return the losses, but with the original charge of pure, range and delta parts.

        In a filter these may not become smaller because of what a fit released.
        """
        kept = ("gaussian", "sketch")
        others = (loss for loss in self.promised if loss.kind not in kept)
        return accounting.compose([*others, *(loss for loss in self.losses if loss.kind in kept)])


def budget_losses(budget: PrivacyBudget) -> tuple[Loss, ...]:
    """Everything that a budget may grant: bounded-range parts count as pure."""
    return accounting.compose([("gaussian", budget.mu), ("pure", budget.pure_epsilon)])


def multiplied(losses: Iterable[Loss], factor: float) -> tuple[Loss, ...]:
    """Losses for data sets that are `factor` neighbours apart: mu, epsilon and range all add up.

    (epsilon, delta)-DP between neighbours is (2 epsilon, (1 + e^epsilon) delta) between theirs.
    """
    if factor == 1.0:
        return tuple(losses)
    parts = accounting.compose(losses)
    kinds = {part.kind for part in parts}
    growth = math.inf  # no fit has a delta next to Gaussian or sketch losses
    if factor == 2.0 and not kinds & {"gaussian", "sketch"}:
        epsilon = math.fsum(part.value for part in parts if part.kind in ("pure", "range"))
        growth = 1.0 + math.exp(min(epsilon, 700.0))
    return tuple(part.times(growth if part.kind == "delta" else factor) for part in parts)


def unit_name(unit: str, sensitivity: object) -> str:
    """Name a unit; the caller's `sensitivity` is part of what a neighbour is for a norm."""
    contract = unit_named(unit).contract
    return f"{unit} change of norm at most {sensitivity!r}" if contract else unit


_MADE: dict[str, int] = {}  # token -> process


def new_token() -> str:
    """Return the name of a ledger or a reservation that is made here."""
    return adopt(secrets.token_hex(16))


def adopt(token: str) -> str:
    """Register the name of a ledger as made by this process; the ledger itself may be older."""
    _MADE[token] = os.getpid()
    return token


def is_ours(token: str) -> bool:
    """Return whether this process made or adopted the name, not one that it was forked from."""
    return _MADE.get(token) == os.getpid()
