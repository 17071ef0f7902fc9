"""What a fit will cost and bring, said before any data are touched."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from skdp._tables import aligned
from skdp.privacy.gate.bounds import Bound
from skdp.privacy.gate.session import PrivacySession

__all__ = ["FitPlan", "PlannedRelease", "planned"]


@dataclass(frozen=True)
class PlannedRelease:
    """One kind of release of a planned fit.

    Attributes
    ----------
    name : str
        Name of the release.
    times : int
        How many there are, at most.
    share : float
        Share of the budget that they take together.
    sensitivity, noise_scale : float
        Of one of them, in the unit of the plan; where the fit learns a clip level these are the
        largest values that it can take.
    size : int
        Numbers in one answer.
    """

    name: str
    times: int
    share: float
    sensitivity: float
    noise_scale: float
    size: int


def planned(
    session: PrivacySession, bound: Bound, share: float, *, times: int = 1, name: str = ""
) -> PlannedRelease:
    """Return a release as the gate would grant it: paid in a session of its own, never read."""
    grant = session.grant(bound, share / times)
    session.forfeit(share - share / times) if times > 1 else None
    label = name or bound.name
    return PlannedRelease(label, times, share, bound.l2, grant.noise_scale, bound.size)


@dataclass(frozen=True)
class FitPlan:
    """What a fit will add as noise and lose by it, from public numbers alone.

    Attributes
    ----------
    estimator : str
        Name of the class.
    n_samples, n_features : int
        The assumed shape of the data.
    guarantee : str
        What the fit would satisfy.
    mu : float
        Gaussian-DP parameter of the budget; 0 where the fit is not made of Gaussians.
    unit : str
        What noise scales are multiples of ("1", or "clip_norm" where it is not known yet).
    error : float
        Expected error, in the sense of `meaning`; nan where theory has nothing to say.
    meaning : str
        What `error` is a share of.
    found : float
        The smallest signal that stands out of the noise, in the sense of `signal`.
    signal : str
        What `found` measures.
    assumptions : tuple of str
        What was assumed of the data.
    releases : tuple of PlannedRelease
        What would be released.
    needed : int
        Number of samples from which `error` would be below one half of the worst; 0 if unknown.
    """

    estimator: str
    n_samples: int
    n_features: int
    guarantee: str
    mu: float
    unit: str
    error: float
    meaning: str
    found: float
    signal: str
    assumptions: tuple[str, ...]
    releases: tuple[PlannedRelease, ...] = field(repr=False)
    needed: int = 0

    def __str__(self) -> str:
        """Return the plan as aligned text."""
        shape = f"{self.n_samples} samples, {self.n_features} features"
        error = "theory has no value" if math.isnan(self.error) else f"about {self.error:.2g}"
        facts = [
            ("Plan", f"{self.estimator}, {shape}; no data was touched"),
            ("Guarantee", self.guarantee),
            ("Expected error", f"{error} ({self.meaning})"),
            ("Found from", f"{self.found:.2g} ({self.signal})"),
        ]
        if self.needed:
            facts.append(("Samples needed", f"about {self.needed} for half of the signal"))
        facts += [("Assumed", text) for text in self.assumptions]
        table = [("release", "share", "sensitivity", f"noise scale (unit: {self.unit})")]
        table += [
            (
                r.name if r.times == 1 else f"{r.name} ({r.times} times)",
                f"{r.share:.1%}",
                f"{r.sensitivity:.4g}",
                f"{r.noise_scale:.4g}",
            )
            for r in self.releases
        ]
        return "\n".join([*aligned(facts), *aligned(table)])
