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

__all__ = [
    "gram_loss",
    "iteration_error",
    "iteration_threshold",
    "moment_edge",
    "power_loss",
]

_GRAM, _POWER, _ITERATION = 1.4, 1.75, 1.4
_CLIP_SHARE = 0.03  # of each release, for its clip level
_CORE_SCALE = 3.0
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


def moment_edge(psd: float, d: int, share: float) -> float:
    """Edge of the spectrum of the noise of a released moment: sigma sqrt(2 d)."""
    return psd * math.sqrt(2 * d / share)


def gram_loss(
    n: float,
    d: int,
    k: int,
    captured: float,
    *,
    psd: float,
    rect: float,
    share: float,
    refined: bool = True,
) -> float:
    """Return the expected loss of the "gram" route: moment, then two tangent rounds.

    Parameters
    ----------
    n : float
        Number of rows.
    d, k : int
        Features and components.
    captured : float
        Share of the squared length that the components hold.
    psd, rect : float
        Noise scale of a moment, and of a sum of general matrices, per unit of sensitivity.
    share : float
        Share of the budget.
    refined : bool
        Whether tangent rounds follow (else the moment takes the whole share).

    Returns
    -------
    float
        Share of the best captured squared length that is lost.
    """
    if k >= d:
        return 0.0
    spike, _, theta = _spikes(n, d, k, captured)
    first = (0.6 if refined else 1.0) * share * (1 - _CLIP_SHARE)
    precision = 2 * first / psd**2
    if refined:
        seen = max(0.0, 1 - d / (precision * theta**2))
        length = min(0.5, math.sqrt(captured * (1 - captured)))  # of a tangent term a r'
        rounds = 0.2 * share * (1 - _CLIP_SHARE) + 0.2 * share
        precision += seen * rounds / (rect * max(length, 1e-6)) ** 2
    return _loss(d, k, spike, theta, _GRAM * d / (precision * theta**2))


def power_loss(
    n: float,
    d: int,
    k: int,
    captured: float,
    *,
    rect: float,
    shares: Sequence[float],
    extra: int,
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
    rect : float
        Noise scale of a sum of general matrices, per unit of sensitivity.
    shares : sequence of float
        Shares of the steps.
    extra : int
        Columns beyond k.

    Returns
    -------
    float
        Share of the best captured squared length that is lost.
    """
    if k >= d:
        return 0.0
    spike, bulk, theta = _spikes(n, d, k, captured)
    width = min(d, k + extra)
    overlap, ratios, leaks = width / d, [], []
    for share in shares:
        inside = min(1.0, captured * overlap + (1 - captured) * width / d)
        length = math.sqrt(inside * (1 - inside) + (inside / _CORE_SCALE) ** 2)
        length = min(length, 0.5 / math.sqrt(1 - _CORE_SCALE**-2))
        noise = (rect * length) ** 2 / (share * (1 - _CLIP_SHARE)) * d
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
    if value < iteration_threshold(noise_scale, size, laplace=laplace):
        return 1.0
    factor = _ITERATION_LAPLACE if laplace else _ITERATION
    return min(1.0, factor * noise_scale**2 / n_answers * size / value**2)


def iteration_threshold(noise_scale: float, size: float, *, laplace: bool = False) -> float:
    """Return the singular value from which the iteration rises out of the noise of one answer."""
    factor = _STANDS_OUT_LAPLACE if laplace else _STANDS_OUT
    return factor * noise_scale * math.sqrt(size)
