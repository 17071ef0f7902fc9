"""One fit, as a PrivacyLedger sees it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from skdp.privacy import accounting
from skdp.privacy.accounting import Loss
from skdp.privacy.budget import PrivacyBudget

__all__ = ["LedgerFit", "as_text", "multiplied", "planned"]


@dataclass(frozen=True)
class LedgerFit:
    """One fit, as its ledger sees it: every field is public.

    `losses` is what is charged, `factor` included: the whole budget while `state` is "open", what
    was granted once it is "fitted" or "failed" (failing before the first release costs nothing).
    `unit` names the sensitivity where that is part of what a neighbour is.
    """

    estimator: str
    unit: str
    adjacency: str
    losses: tuple[Loss, ...]
    seeded: bool
    state: str = "open"
    factor: float = 1.0  # 2 for an add_remove fit in a replace ledger


def planned(budget: PrivacyBudget) -> tuple[Loss, ...]:
    """Everything that a budget may grant: bounded-range parts count as pure."""
    return accounting.compose([("gaussian", budget.mu), ("pure", budget.pure_epsilon)])


def multiplied(losses: Iterable[Loss], factor: float) -> tuple[Loss, ...]:
    """Losses for data sets that are `factor` neighbours apart: mu, epsilon and range all add up."""
    return tuple(loss.times(factor) for loss in losses)


def as_text(losses: Iterable[Loss]) -> str:
    return ", ".join(f"{kind} {value:.4g}" for kind, value in losses) or "nothing"
