"""How much of a subspace noise takes away: closed forms for equal spikes.

Model of a second moment: n rows of norm 1 (in units of the clip norm), d features, k directions
that hold a share `captured` of the squared length in equal parts, the rest spread evenly. Then
lambda = captured n / k, the bulk is (1 - captured) n / (d - k), theta is their difference. A
symmetric estimate whose off-diagonal entries have noise tau tilts a spike by
sin^2 = tau^2 d / theta^2 (Benaych-Georges, Nadakuditi 2011), until it is lost in the noise.

The constants `_GRAM`, `_POWER`, `_ITERATION` are measured: what clip levels and their search cost
beyond the formula. With them the expected loss is within a factor of two of the mean over fits
where it is between 0.01 and 0.5 (tests compare); smaller losses of the power route can be several
times larger, where the bulk has not died out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from skdp.theory._plan import PlannedRelease

_GRAM, _POWER, _ITERATION = 1.4, 1.75, 1.6
_STANDS_OUT = 1.7
# Laplace noise is averaged by its likelihood, which has more to say than the mean.
_ITERATION_LAPLACE, _STANDS_OUT_LAPLACE = 0.87, 1.15


def _spikes(n: float, d: int, k: int, captured: float) -> tuple[float, float, float]:
    """Return (lambda, bulk, theta)."""
    spike = captured * n / k
    bulk = (1 - captured) * n / (d - k) if d > k else 0.0
    return spike, bulk, max(spike - bulk, 1e-300)


def _loss(d: int, k: int, spike: float, theta: float, tilt: float) -> float:
    """Share of the best captured length that is lost when sin^2 = tilt."""
    return theta / spike * min(tilt, 1 - k / d)


def moment_edge(noise: float, d: int) -> float:
    """Edge of the spectrum of the noise of a released moment: noise sqrt(2 d)."""
    return noise * math.sqrt(2 * d)


def gram_loss(
    n: float,
    d: int,
    k: int,
    captured: float,
    *,
    moment: float,
    tangents: Sequence[float] = (),
) -> float:
    """Return the expected loss of the "gram" route: a moment, then tangent rounds.

    Parameters
    ----------
    n : float
        Number of rows.
    d, k : int
        Features and components.
    captured : float
        Share of the squared length that the components hold.
    moment : float
        Noise scale of the moment, in squared clip norms.
    tangents : sequence of float
        Noise scale of each tangent round, per unit of its clip level.

    Returns
    -------
    float
        Share of the best captured squared length that is lost.
    """
    if k >= d or moment == 0.0:
        return 0.0
    spike, _, theta = _spikes(n, d, k, captured)
    precision = 2 / moment**2
    seen = max(0.0, 1 - d / (precision * theta**2))
    length = min(0.5, math.sqrt(captured * (1 - captured)))  # of a tangent term a r'
    precision += seen * sum(1 / (noise * max(length, 1e-6)) ** 2 for noise in tangents)
    return _loss(d, k, spike, theta, _GRAM * d / (precision * theta**2))


def power_loss(
    n: float,
    d: int,
    k: int,
    captured: float,
    *,
    width: int,
    noises: Sequence[float],
    core_scale: float,
) -> float:
    """Return the expected loss of the "power" route, step by step from a random start.

    Parameters
    ----------
    n : float
        Number of rows.
    d, k : int
        Features and components.
    captured : float
        Share of the squared length that the components hold.
    width : int
        Columns of the iterate.
    noises : sequence of float
        Noise scale of each step, per unit of its clip level.
    core_scale : float
        What divides the core of a term beside its tangent part; 1 if terms are not clipped.

    Returns
    -------
    float
        Share of the best captured squared length that is lost.
    """
    if k >= d:
        return 0.0
    spike, bulk, theta = _spikes(n, d, k, captured)
    overlap, ratios, leaks = width / d, [], []
    for scale in noises:
        inside = min(1.0, captured * overlap + (1 - captured) * width / d)
        length = math.sqrt(inside * (1 - inside) + (inside / core_scale) ** 2)
        length = min(length, 0.5 / math.sqrt(1 - core_scale**-2)) if core_scale > 1 else 1.0
        noise = (scale * length) ** 2 * d
        ratios.append(spike**2 * overlap / noise)
        leaks.append(bulk / spike * math.sqrt((1 - overlap) / overlap))  # of the bulk, not noise
        overlap = 1 / (1 + 1 / ratios[-1] + leaks[-1] ** 2)
    together = sum(ratios[-2:])
    leak = sum(r * x for r, x in zip(ratios[-2:], leaks[-2:], strict=True)) / together
    return _loss(d, k, spike, theta, min(1.0, _POWER / (1 + together) + leak**2))


def iteration_error(
    noise_scale: float, n_answers: int, size: float, value: float, *, laplace: bool = False
) -> float:
    """Return sin^2 per direction after a back-projected iteration.

    All `n_answers` answers, each of `size` rows with noise `noise_scale`, average; a singular
    value below `iteration_threshold` is not found at all.

    Parameters
    ----------
    noise_scale : float
        Of an entry of one answer.
    n_answers : int
        Number of answers on this side.
    size : float
        Number of rows of an answer.
    value : float
        Singular value (eigenvalue) to be found.
    laplace : bool, default=False
        Laplace noise, for one eigenvector (pure differential privacy).

    Returns
    -------
    float
    """
    return IteratedSide(noise_scale, n_answers, size, laplace).error(value)


def iteration_threshold(noise_scale: float, size: float, *, laplace: bool = False) -> float:
    """Return the singular value from which the iteration rises out of the noise of one answer."""
    factor = _STANDS_OUT_LAPLACE if laplace else _STANDS_OUT
    return factor * noise_scale * math.sqrt(size)


@dataclass(frozen=True)
class IteratedSide:
    """One side of a rehearsed iteration: its answers average.

    Attributes
    ----------
    noise_scale : float
        Of an entry of one answer.
    n_answers : int
        Number of answers.
    size : int
        Number of rows of an answer.
    laplace : bool
        Laplace noise, for one eigenvector.

    Examples
    --------
    >>> from skdp.theory import IteratedSide
    >>> side = IteratedSide(noise_scale=5.0, n_answers=6, size=400)
    >>> side.threshold, side.error(150.0), round(side.error(300.0), 3)
    (170.0, 1.0, 0.03)
    """

    noise_scale: float
    n_answers: int
    size: int
    laplace: bool = False

    @classmethod
    def of(
        cls, answers: Sequence[PlannedRelease], size: int, *, laplace: bool = False
    ) -> IteratedSide:
        """Return the side of some releases, whose noise differs by what was asked."""
        scales = [answer.noise_scale for answer in answers]
        mean = math.sqrt(math.fsum(scale * scale for scale in scales) / len(scales))
        return cls(mean, len(scales), size, laplace)

    @property
    def threshold(self) -> float:
        """The smallest singular value that is found."""
        return iteration_threshold(self.noise_scale, self.size, laplace=self.laplace)

    def tilt(self, value: float) -> float:
        """Return the squared tangent per direction, of a singular value that is found."""
        factor = _ITERATION_LAPLACE if self.laplace else _ITERATION
        return factor * self.noise_scale**2 / self.n_answers * self.size / max(value, 1e-300) ** 2

    def error(self, value: float) -> float:
        """Return sin^2 per direction for a singular value."""
        return 1.0 if value < self.threshold else min(1.0, self.tilt(value))
