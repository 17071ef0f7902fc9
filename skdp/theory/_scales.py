"""What a plan says of learnt scales: how likely a search sees nothing, and what that costs."""

from __future__ import annotations

from collections.abc import Callable

from scipy.special import expit

_HALF, _WIDTH = 3.0, 0.45  # numbers in deviations of a rank's noise: measured, as is the curve


def scale_doubt(n: float, noise_scale: float) -> float:
    """Return how likely a search for the scale of n numbers ends in doubt.

    Measured, for numbers that spread by less than an octave about their median: one half at three
    deviations of the noise of one rank, one in a hundred at five.

    Examples
    --------
    >>> round(scale_doubt(300, 100.0), 2), round(scale_doubt(500, 100.0), 2)
    (0.5, 0.01)
    """
    return float(expit((_HALF - n / noise_scale) / _WIDTH)) if noise_scale > 0 else 0.0


def searched_error(
    n: float, error: Callable[[float], float], nothing: float, noise_scale: float
) -> float:
    """Return an error that becomes `nothing` (what no release gives) where the search doubts."""
    doubt = scale_doubt(n, noise_scale)
    return (1 - doubt) * error(n) + doubt * nothing
