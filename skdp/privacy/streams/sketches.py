"""Paying for sketches of one matrix: random ones are calibrated together, before any is released.

A sketch whose bound has a `law` is no Gaussian release (`skdp.privacy.accounting.sketch_laws`). Its
group takes the whole budget of a session, so that nothing composes with it inside one fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from skdp.exceptions import BudgetExceededError, PrivacyError
from skdp.privacy.accounting import losses as accounting
from skdp.privacy.accounting.losses import Loss
from skdp.privacy.accounting.receipts import LedgerEntry
from skdp.privacy.accounting.sketch_laws import SketchMixture, largest_mixture
from skdp.privacy.gate.bounds import Bound, gaussian_step
from skdp.privacy.gate.grants import Grant
from skdp.privacy.gate.session import SHARE_SLIP, PrivacySession
from skdp.privacy.noise import integers as noise

# A part of the noise is further from a rounded normal variable than a whole draw.
_PART_COST = math.ceil(noise.PART_DELTA_PER_DRAW / noise.DELTA_PER_DRAW)


def grant_sketches(
    session: PrivacySession,
    bounds: Sequence[Bound],
    shares: Sequence[float],
    *,
    parties: int = 0,
    shared: bool = False,
    note: str = "",
    units: Sequence[int] | None = None,
) -> tuple[Grant, ...]:
    """Pay for several sketches of one matrix, calibrated together; nothing is read yet.

    Parameters
    ----------
    session : PrivacySession
        Who pays.
    bounds : sequence of Bound
        One for each sketch; the noises are independent.
    shares : sequence of float
        Shares of the (mean) squared mu, which sum to 1 if a bound has a law.
    parties : int, default=0
        0: the noise is drawn here. Else each grant draws a part, and the sum of `parties` such
        parts is the noise that the bound needs: one of them alone protects nothing.
    shared : bool, default=False
        Other fits may use the same sketch: then a ledger, which adds up sketches as independent
        ones, refuses a bound with a law.
    note : str
        Added to the mechanism's name in the ledger.
    units : sequence of int or None
        Of streams: what divides the scales in the ledger.

    Returns
    -------
    tuple of Grant
    """
    with session.lock:
        losses = _losses(session, bounds, shares)
        if any(loss.kind == "sketch" for loss in losses):
            session.observer.unplanned(accounting.compose(losses), shared=shared)
        units = [1] * len(bounds) if units is None else units
        lines = zip(bounds, shares, losses, units, strict=True)
        return tuple(_grant(session, *line, parties, note) for line in lines)


def _losses(
    session: PrivacySession, bounds: Sequence[Bound], shares: Sequence[float]
) -> list[Loss]:
    """Check the budget and calibrate: one loss for each bound."""
    budget, left = session.budget, session.left()
    if budget.pure:
        raise PrivacyError("sketches have no pure differential privacy; use delta > 0")
    if budget.copies > 1:
        raise PrivacyError("sketches are drawn once: their budget is not split into copies")
    if not min(shares) > 0 or not math.fsum(shares) <= left + SHARE_SLIP:
        raise BudgetExceededError(f"the sketches ask for {list(shares)}; {left:.3g} is left.")
    if budget.exact or all(bound.law is None for bound in bounds):
        return [Loss("gaussian", session.mu(min(share, left))) for share in shares]
    if session.ledger or not math.fsum(shares) >= 1 - SHARE_SLIP:
        raise PrivacyError("random sketches take the whole budget of a session")
    degrees = [() if bound.law is None else bound.law.degrees for bound in bounds]
    mixture = largest_mixture(zip(shares, degrees, strict=True), *budget.calibration)
    return [Loss("sketch", SketchMixture(mixture.terms, i)) for i in range(len(bounds))]


def _grant(
    session: PrivacySession,
    bound: Bound,
    share: float,
    loss: Loss,
    unit: int,
    parties: int,
    note: str,
) -> Grant:
    share = session.affordable(bound, share)
    sigma, levels = noise.EFFECTIVE_SIGMA, noise.LEVELS
    mechanism = "none (epsilon is infinite)" if session.budget.exact else "gaussian"
    if parties:
        sigma, levels = math.sqrt(parties) * noise.PART_EFFECTIVE_SIGMA, noise.PART_LEVELS
        mechanism += f", one of {parties} parts"
        session.charge_draws(int(parties * bound.size * _PART_COST))
    step = 0.0
    if not session.budget.exact:
        step = gaussian_step(bound, float(loss.value) * sigma / noise.EFFECTIVE_SIGMA)
    scale = step * sigma
    grant = Grant(session, bound, mechanism + note, step, scale, levels)
    line = LedgerEntry(bound.name, grant.mechanism, bound.l2 / unit, scale / unit, loss)
    session.pay(line, share, draws=bound.size)
    return grant
