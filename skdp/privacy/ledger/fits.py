"""One fit as a PrivacyLedger sees it, and the token that says which process made it."""

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

# One fit, as a PrivacyLedger sees it.


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
    """One fit, as its ledger sees it: every field is public.

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
    parts: float = 1.0  # above 1 for a share of a sum that holds parts of one unit
    part: Part | None = None
    note: str = ""  # of the ledger: who fits, and what for

    def costs(self, granted: Iterable[Loss]) -> tuple[Loss, ...]:
        """Return what a ledger is charged for what the fit was granted."""
        losses = multiplied(granted, self.factor)
        return losses if self.parts == 1.0 else tuple(loss.times(self.parts) for loss in losses)

    def fixed(self) -> tuple[Loss, ...]:
        """Return the losses, with all that was promised next to Gaussians, which may not shrink."""
        kept = ("gaussian", "sketch")
        others = (loss for loss in self.promised if loss.kind not in kept)
        return accounting.compose([*others, *(loss for loss in self.losses if loss.kind in kept)])


def planned(budget: PrivacyBudget) -> tuple[Loss, ...]:
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
    growth = math.inf  # a delta next to noise is never seen: a search is one or the other
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
    token = secrets.token_hex(16)
    _MADE[token] = os.getpid()
    return token


def adopt(token: str) -> None:
    """Say that this process has a ledger of this name, which may be older than the process."""
    _MADE[token] = os.getpid()


def is_ours(token: str) -> bool:
    """Whether it was made by this process, not by one that it was forked from."""
    return _MADE.get(token) == os.getpid()
