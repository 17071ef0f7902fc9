"""What many fits cost together when each is chosen after the answers of those before.

A curve of what was spent on one path of choices need not bound the whole tree of choices: who
looks at an answer and then takes a Laplace fit or a Gaussian one, whichever fits its luck, gets the
best of two curves. What is summed here bounds every tree.

*Gaussian parts.* If the squares of the mu on every path sum to at most M^2, with each mu fixed by
the answers so far, the whole is M-GDP (Smith and Thakurta, Koskela et al. 2022), also where
answers of several fits and streams alternate (Haney et al. 2023: filters of f-DP and of Renyi
divergences of one fixed order hold for interactive mechanisms side by side).

*Pure parts.* The trade-off of an epsilon-DP part has two straight pieces that meet at (t, t),
t = 1/(1 + e^epsilon). That of mu-GDP is convex with the same ends, so it lies below both where it
lies below the corner: mu = -2 Phi^-1(t) dominates. A part of bounded range eta is dominated like a
pure part of eta/2: each of its corners (one for each place of the range) asks for no more.

*The first fit* is known before there is any answer, so that its own curve stays exact: the part of
it that is not Gaussian is one fixed mechanism beside a Gaussian filter.

*Sums of epsilons.* A path of pure parts whose epsilons sum to at most epsilon adds nothing to
delta(epsilon), whatever else other paths do: cut the tree where a path leaves the Gaussian rule,
and its other leaves are as they were. So whichever of the two rules is met will do.

*Random sketches* are Gaussian DP for no mu. Where the first fit has them, Renyi divergences of one
order are added, the best one for the first fit beside Gaussian ones: it is fixed before any
answer. A path may not choose its order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
from scipy.special import erfinv, log_expit, ndtri_exp

from skdp.exceptions import PrivacyError
from skdp.privacy.accounting import losses as accounting
from skdp.privacy.accounting.losses import Loss
from skdp.privacy.accounting.sketch_laws import orders, renyi_delta

Losses: TypeAlias = tuple[Loss, ...]

_UP = 1 + 2.0**-40  # above the rounding of the special functions
_LATE = (
    "{} beside earlier fits cannot be added up, since what is charged may depend on their answers. "
    "Fit it first in its PrivacyLedger, or in a ledger of its own."
)
_LATE_KINDS = {
    "delta": "a search with random stopping (it may fail with some probability)",
    "sketch": "a random sketch",
}


def late_kind(losses: Iterable[Loss]) -> str:
    """Say why parts that came too late cannot be added up; empty if they can."""
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


def spent_losses(first: Losses, later: Sequence[Losses]) -> Losses:
    """Return what composes: all parts, later ones as Gaussians unless nothing is Gaussian."""
    every = [*first, *(loss for fit in later for loss in fit)]
    kinds = {loss.kind for loss in every}
    if not later or "sketch" in kinds or kinds <= {"pure", "range"}:
        return accounting.compose(every)
    return accounting.compose(_covered(first, later))


def spent_delta(
    first: Losses, later: Sequence[Losses], epsilon: float, budget: tuple[float, float]
) -> float:
    """Return a delta for which all fits together are (epsilon, delta)-DP.

    Parameters
    ----------
    first : tuple of Loss
        The first fit: fixed before there was any answer.
    later : sequence of tuples of Loss
        The others, each chosen after answers of those before it.
    epsilon : float
        Where to evaluate.
    budget : tuple of two floats
        The whole (epsilon, delta), which fixes the order of Renyi divergences.
    """
    later = [fit for fit in later if fit]
    if not later:
        return accounting.delta_from_losses(first, epsilon)
    if any(loss.kind == "sketch" for loss in first):
        i = _order(first, budget)
        divergence = np.full(orders().shape, math.inf)
        divergence[i] = _renyi([*first, *_plain(later, "delta")])[i]
        return min(1.0, _failure(first) + renyi_delta(divergence, epsilon))
    if (total := _sum(first, later)) is not None and total <= epsilon:
        return _failure(first)
    return accounting.delta_from_losses(_covered(first, later), epsilon)


def spent_epsilon(
    first: Losses, later: Sequence[Losses], delta: float, budget: tuple[float, float]
) -> float:
    """Return an epsilon for which all fits together are (epsilon, delta)-DP; see `spent_delta`."""
    later = [fit for fit in later if fit]
    if not later:
        return accounting.epsilon_from_losses(first, delta)
    if any(loss.kind == "sketch" for loss in first):
        i, left = _order(first, budget), delta - _failure(first)
        if not left > 0:
            return math.inf
        alpha, divergence = orders()[i], _renyi([*first, *_plain(later, "delta")])[i]
        logs = np.log(alpha) + math.log(left) - 1e-8
        return max(0.0, float(divergence + np.log1p(-1 / alpha) - logs / (alpha - 1)))
    covered = accounting.epsilon_from_losses(_covered(first, later), delta)
    total = _sum(first, later) if _failure(first) <= delta else None
    return covered if total is None else min(covered, total)


def _covered(first: Losses, later: Iterable[Losses]) -> list[Loss]:
    rest = _plain(later, "delta", "sketch")
    return [*first, *(Loss("gaussian", dominating_mu(loss)) for loss in rest)]


def _plain(later: Iterable[Losses], *refused: str) -> list[Loss]:
    parts = [loss for fit in later for loss in fit]
    if why := late_kind(loss for loss in parts if loss.kind in refused):
        raise PrivacyError(why)
    return parts


def _sum(first: Losses, later: Sequence[Losses]) -> float | None:
    """Return the sum of all epsilons where there is nothing else but a delta of the first fit."""
    parts = [*(loss for loss in first if loss.kind != "delta"), *(p for fit in later for p in fit)]
    if any(loss.kind not in ("pure", "range") for loss in parts):
        return None
    return math.fsum(loss.value for loss in parts)


def _failure(losses: Losses) -> float:
    return math.fsum(loss.value for loss in losses if loss.kind == "delta")


def _renyi(losses: Iterable[Loss]) -> np.ndarray:
    """Return the sum of Renyi divergences at all orders; deltas are left out."""
    alpha = orders()
    total = np.zeros(alpha.shape)
    for kind, value in accounting.compose(losses):
        if kind == "sketch":
            total = total + value.renyi(alpha)
        elif kind == "gaussian":
            total = total + alpha * (value**2 / 2)
        elif kind != "delta":  # epsilon-DP: at most epsilon, and at most alpha epsilon^2 / 2
            total = total + np.minimum(value, alpha * (value**2 / 2))
    return total


def _order(first: Losses, budget: tuple[float, float]) -> int:
    """Return the index of the best order for the first fit and as much Gaussian noise as goes."""
    epsilon, delta = budget
    alpha, own = orders(), _renyi(first)
    left = delta - _failure(first)
    low, high = 0.0, epsilon + 1.0
    for _ in range(50):
        middle = (low + high) / 2
        enough = renyi_delta(own + alpha * (middle**2 / 2), epsilon) <= left
        low, high = (middle, high) if enough else (low, middle)
    logs = (alpha - 1) * (own + alpha * (low**2 / 2) - epsilon + np.log1p(-1 / alpha))
    return int(np.argmin(np.where(np.isfinite(own), logs - np.log(alpha), math.inf)))
