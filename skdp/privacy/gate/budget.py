"""What one fit may spend: a validated (epsilon, delta), and the numbers that noise needs.

*Copies.* The sampler's own error is priced e^epsilon, so that one draw serves epsilons up to 37 or
so (delta 1e-6). A budget beyond it may be split into r copies, each (epsilon/r, delta/r) with its
sampler's error: a release is then the mean of r releases of one integer answer, which all copies
choose together. Interactive mechanisms that run side by side compose as if one came after the
other (Lyu 2022; Vadhan and Zhang 2023), and basic composition gives (epsilon, delta). As a law it
is Gaussian of sqrt(r) times the mu of a copy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache

from skdp.privacy.accounting import losses as accounting
from skdp.privacy.accounting.curves import as_number
from skdp.privacy.noise import integers as noise

# Every fit is charged for this many noise draws, whatever it uses: a public constant that no
# fit reaches (half a terabyte of noise), so the charge depends on nothing.
MAX_DRAWS = 2**36
SAMPLER_DISTANCE = MAX_DRAWS * noise.DELTA_PER_DRAW  # of all its noise from its law

# Beyond this epsilon the noise stays as it is: a smaller epsilon implies every larger one.
_MAX_EPSILON = 64.0
_MOST_COPIES = 32


def _calibration_epsilon(epsilon: float, delta: float) -> float:
    """Return the epsilon to calibrate to: the largest whose sampler charge leaves half of delta."""
    half = delta / (2 * SAMPLER_DISTANCE) - 1
    if half <= 1:
        raise ValueError(
            f"'delta' must be 0 or at least {4 * SAMPLER_DISTANCE:.0e}, the sampler's own error "
            f"over a fit. Got {delta!r} instead."
        )
    return min(epsilon, math.log(half), _MAX_EPSILON)


@lru_cache(maxsize=64)  # the fits of a search have few budgets
def _best_copies(epsilon: float, delta: float) -> int:
    """Return into how many copies a budget is split for the least noise: 1 unless it is huge."""
    whole = _calibration_epsilon(epsilon, delta)
    if epsilon <= whole:
        return 1
    # The delta of a copy has to cover the sampler's error.
    covered = math.ceil(delta / (4 * SAMPLER_DISTANCE) * (1 - 1e-9)) - 1
    most = max(1, min(math.ceil(min(epsilon / whole + 1, _MOST_COPIES)), covered))
    numbers = range(1, most + 1)
    return max(numbers, key=lambda r: math.sqrt(r) * _mu_of_copy(epsilon, delta, 0.0, r)[0])


def _mu_of_copy(
    epsilon: float, delta: float, pure: float, copies: int
) -> tuple[float, float, float]:
    """Return (mu, sampler's charge, pure part) of one of equal copies of a budget."""
    epsilon, delta = epsilon / copies, delta / copies
    calibrated = _calibration_epsilon(epsilon, delta)
    charge = noise.sampler_delta(calibrated, MAX_DRAWS)
    pure = min(pure, calibrated / 2)
    return accounting.mu_beside_pure(calibrated, delta - charge, pure), charge, pure


@dataclass(frozen=True)
class PrivacyBudget:
    """An (epsilon, delta) budget of one fit, split into a Gaussian and a pure part.

    Parameters
    ----------
    epsilon : float
        In (0, inf]. ``inf`` means that no noise is added at all.
    delta : float
        In [0, 1). With 0 every release is a Laplace release.
    pure_epsilon : float, default=0.0
        Epsilon set aside for pure parts (exponential mechanism) beside Gaussian releases.
    split : bool, default=False
        Whether a huge budget is split into copies, for sessions whose noise all comes from grants.

    Attributes
    ----------
    mu : float
        Gaussian-DP parameter of all Gaussian releases of the fit together.
    sampler_delta : float
        What the noise sampler itself costs; taken off `delta` before calibrating.
    copies : int
        Number of releases whose mean is one release of the session.
    """

    epsilon: float
    delta: float
    pure_epsilon: float = 0.0
    split: bool = False
    mu: float = field(init=False, default=0.0)
    sampler_delta: float = field(init=False, default=0.0)
    copies: int = field(init=False, default=1)

    def __post_init__(self) -> None:
        epsilon = as_number("'epsilon'", self.epsilon)
        delta = as_number("'delta'", self.delta, high=1.0)
        pure = as_number("'pure_epsilon'", self.pure_epsilon)
        if epsilon == 0:
            raise ValueError(f"'epsilon' must be in the range (0, inf]. Got {self.epsilon!r}.")
        if delta == 1:
            raise ValueError(f"'delta' must be in the range [0, 1). Got {self.delta!r} instead.")
        if not pure < epsilon and not (pure == epsilon == math.inf):
            raise ValueError(f"'pure_epsilon' must be below epsilon. Got {self.pure_epsilon!r}.")
        mu, charge, copies = 0.0, 0.0, 1
        if math.isinf(epsilon):
            mu = pure = math.inf
        elif delta == 0:
            pure = min(epsilon, _MAX_EPSILON)
        else:
            copies = _best_copies(epsilon, delta) if self.split and pure == 0.0 else 1
            mu, charge, pure = _mu_of_copy(epsilon, delta, pure, copies)
            mu, charge = math.sqrt(copies) * mu, copies * charge
        names = ("epsilon", "delta", "pure_epsilon", "mu", "sampler_delta", "copies")
        for name, value in zip(names, (epsilon, delta, pure, mu, charge, copies), strict=True):
            object.__setattr__(self, name, value)

    @property
    def calibration(self) -> tuple[float, float]:
        """The (epsilon, delta) that noise is calibrated to, the sampler's cost taken off."""
        return _calibration_epsilon(self.epsilon, self.delta), self.delta - self.sampler_delta

    @property
    def exact(self) -> bool:
        """Whether nothing is protected (epsilon is infinite)."""
        return math.isinf(self.epsilon)

    @property
    def pure(self) -> bool:
        """Whether delta is 0, so that every release must be pure."""
        return self.delta == 0 and not self.exact

    @property
    def kind(self) -> str:
        """Of the losses of releases: "pure", or "gaussian"."""
        return "pure" if self.pure else "gaussian"
