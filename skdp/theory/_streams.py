"""Planned releases of streams and of sketches: paid in a session of their own, never read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from skdp.privacy.gate.bounds import Bound
from skdp.privacy.gate.session import PrivacySession
from skdp.privacy.streams.correlated import plan_stream
from skdp.privacy.streams.sketches import grant_sketches
from skdp.theory._plan import PlannedRelease

__all__ = ["planned_sketches", "planned_stream"]


def planned_stream(
    session: PrivacySession,
    bound: Bound,
    share: float,
    horizon: int,
    *,
    mechanism: str = "auto",
    touches: int | None = None,
) -> tuple[PlannedRelease, float]:
    """Return a stream as its ledger line will show it, and the noise of its last release.

    Parameters
    ----------
    session : PrivacySession
        A session that nobody is charged for.
    bound : Bound
        Of everything that one unit contributes.
    share : float
        Share of the budget, for all releases together.
    horizon : int
        Number of releases.
    mechanism : {"auto", "sqrt", "tree"}
        How the noise is correlated.
    touches : int or None
        How many steps a unit can change; None is all.
    """
    plan = plan_stream(bound.size, horizon, mechanism)
    wide = plan.widened(bound, plan.horizon if touches is None else touches)
    grant = session.grant(wide, share, openings=plan.draws, unit=plan.unit)
    line = PlannedRelease(
        bound.name, 1, share, wide.l2 / plan.unit, grant.noise_scale / plan.unit, bound.size
    )
    return line, grant.noise_scale * plan.noise_factor(horizon)


def planned_sketches(
    session: PrivacySession,
    bounds: Sequence[Bound],
    shares: Sequence[float],
    *,
    horizon: int = 1,
    mechanism: str = "auto",
    window: int | None = None,
    parties: int = 0,
) -> tuple[tuple[PlannedRelease, ...], tuple[float, ...]]:
    """Return sketches that are calibrated together, and the noise of the last release of each.

    Parameters
    ----------
    session : PrivacySession
        A session that nobody is charged for.
    bounds, shares : sequence
        One for each sketch.
    horizon : int
        Number of releases; 1 is no stream.
    mechanism, window
        Of a stream.
    parties : int
        Shares of the noise, as in a secure sum; 0 for none.
    """
    if horizon == 1:
        grants = grant_sketches(session, bounds, shares, parties=parties)
        scales = [grant.noise_scale for grant in grants]
        return _lines(bounds, shares, scales), tuple(scales)
    plans = [plan_stream(bound.size, horizon, mechanism, window) for bound in bounds]
    wide = [plan.widened(bound, horizon) for plan, bound in zip(plans, bounds, strict=True)]
    for plan, bound in zip(plans, bounds, strict=True):
        session.charge_draws((plan.draws - 1) * bound.size)
    grants = grant_sketches(session, wide, shares)
    pairs = list(zip(grants, plans, strict=True))
    units = [plan.unit for plan in plans]
    shown = [replace(b, l2=b.l2 / unit) for b, unit in zip(wide, units, strict=True)]
    scales = [grant.noise_scale / plan.unit for grant, plan in pairs]
    last = tuple(grant.noise_scale * plan.noise_factor(horizon) for grant, plan in pairs)
    return _lines(shown, shares, scales), last


def _lines(
    bounds: Sequence[Bound], shares: Sequence[float], scales: Sequence[float]
) -> tuple[PlannedRelease, ...]:
    return tuple(
        PlannedRelease(bound.name, 1, share, bound.l2, scale, bound.size)
        for bound, share, scale in zip(bounds, shares, scales, strict=True)
    )
