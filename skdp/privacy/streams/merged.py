"""One receipt for noisy states that several servers opened, and receipts as plain data.

A change E that lies on several servers is made of parts E_s. Where the squares of their norms sum
to one squared bound (the contract of a merge), the loss given the sketches is a weighted mean of
the servers' losses, with weights |E_s|^2 that sum to 1. Both delta, by its convex majorant (see
`skdp.privacy.accounting.sketch_laws`), and Renyi divergences then are at most those of the largest
server. So the receipt is the largest one; the servers' own epsilons never add up.

A row that each server clips on its own breaks that contract when servers hold parts of it: there
the squares of the losses of all of them sum, and in one secure sum, where the noise is there only
once, the losses themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from skdp.exceptions import PrivacyError
from skdp.privacy.accounting import losses as accounting
from skdp.privacy.accounting.losses import Loss
from skdp.privacy.accounting.receipts import LedgerEntry, PrivacySpent, epsilon_beside
from skdp.privacy.accounting.sketch_laws import SketchMixture
from skdp.privacy.accounting.states import loss_from_state, loss_state
from skdp.privacy.gate.budget import SAMPLER_DISTANCE

Receipt = Mapping[str, Any]

_MAX_EPSILON, _ROUNDING = 64.0, 1e-9

_UNKNOWN = (
    "the servers paid for random sketches of different sizes (or some for a sketch and some for "
    "exact norms), so no receipt of their sum is known. Use one 'sensitivity_mode', and one "
    "'sketch_size' and 'core_size', on all servers."
)
_PARTS = (
    "servers with different budgets hold parts of the same rows, which each clips on its own: no "
    "receipt of their sum is known. Use one 'epsilon' and 'delta' on all servers."
)


def receipt_state(spent: PrivacySpent, ledger: Iterable[LedgerEntry]) -> dict[str, Any]:
    """Return a receipt with its ledger as plain data, to be sent to who merges."""
    return {
        "epsilon": spent.epsilon,
        "delta": spent.delta,
        "adjacency": spent.adjacency,
        "unit": spent.unit,
        "seeded": spent.seeded,
        "ledger": [[*line[:4], *loss_state(line.loss)] for line in ledger],
    }


def _lines(receipt: Receipt) -> list[LedgerEntry]:
    return [
        LedgerEntry(name, mechanism, sensitivity, scale, loss_from_state(kind, value))
        for name, mechanism, sensitivity, scale, kind, value in receipt["ledger"]
    ]


def _losses(receipt: Receipt) -> tuple[Loss, ...]:
    return accounting.compose(line.loss for line in _lines(receipt))


def merged_receipt(
    blocks: Sequence[Sequence[Sequence[Receipt]]], *, clipped_rows: bool
) -> tuple[PrivacySpent, tuple[LedgerEntry, ...]]:
    """Return what all opened states together spent, and their ledger lines.

    Parameters
    ----------
    blocks : sequence of sequence of sequence of dict
        For each range of rows, the states that were opened there; each is the receipts of its
        servers: one, or those of all servers of a secure sum.
    clipped_rows : bool
        Each server clips rows on its own, so that parts of a row on several servers are not held
        together by the caller's contract.

    Returns
    -------
    spent : PrivacySpent
    ledger : tuple of LedgerEntry

    Raises
    ------
    PrivacyError
        If no bound is known; nothing was opened for it.
    """
    receipts = [receipt for block in blocks for state in block for receipt in state]
    first = receipts[0]
    covers = [_block_losses(block, clipped_rows) for block in blocks]
    losses = _largest(covers)
    delta = max(float(receipt["delta"]) for receipt in receipts)
    spent = PrivacySpent(
        epsilon=_epsilon(losses, delta, receipts, sum(map(len, blocks))),
        delta=delta,
        losses=losses,
        adjacency=str(first["adjacency"]),
        unit=str(first["unit"]),
        seeded=any(bool(receipt["seeded"]) for receipt in receipts),
        distance=sum(map(len, blocks)) * SAMPLER_DISTANCE,
        covers="the streams of all servers together",
    )
    return spent, tuple(line for receipt in receipts for line in _lines(receipt))


def _block_losses(block: Sequence[Sequence[Receipt]], clipped_rows: bool) -> tuple[Loss, ...]:
    """Return the losses of a unit whose data lie in one range of rows."""
    each = [_losses(receipt) for state in block for receipt in state]
    factor = math.hypot(*map(len, block)) if clipped_rows else 1.0
    if factor > 1.0 and any(losses != each[0] for losses in each):
        raise PrivacyError(_PARTS)
    return tuple(loss.times(factor) for loss in _largest(each))


def _largest(parts: Sequence[tuple[Loss, ...]]) -> tuple[Loss, ...]:
    """Return losses that cover each of several."""
    if all(part == parts[0] for part in parts):
        return parts[0]
    parts = [part for part in parts if part]
    if any(loss.kind == "gaussian" and math.isinf(loss.value) for part in parts for loss in part):
        return (Loss("gaussian", math.inf),)
    kinds = {tuple(loss.kind for loss in part) for part in parts}
    if kinds == {("gaussian",)}:
        return max(parts, key=lambda part: float(part[0].value))
    if kinds != {("sketch",)}:
        raise PrivacyError(_UNKNOWN)
    terms = [part[0].value.terms for part in parts]
    if len({tuple(degrees for _, degrees in term) for term in terms}) != 1:
        raise PrivacyError(_UNKNOWN)
    largest = tuple((max(mu for mu, _ in same), same[0][1]) for same in zip(*terms, strict=True))
    return (Loss("sketch", SketchMixture(largest)),)


def _epsilon(
    losses: tuple[Loss, ...], delta: float, receipts: Sequence[Receipt], states: int
) -> float:
    """Return epsilon at delta; every opened state adds the error of its own noise sampler."""
    claimed = max(float(receipt["epsilon"]) for receipt in receipts)
    epsilon = epsilon_beside(
        lambda left: accounting.epsilon_from_losses(losses, left),
        delta,
        states * SAMPLER_DISTANCE,
        start=min(claimed, _MAX_EPSILON),
    )
    near = epsilon <= claimed * (1 + _ROUNDING)  # the last bits depend on the order of sums
    return claimed if near else epsilon
