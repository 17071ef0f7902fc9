"""The random number of runs of a private search: its laws, and exact samplers of them.

Geometric and logarithmic are the truncated negative binomials of eta = 1 and eta = 0. Words are
uniform 64-bit integers (`skdp.privacy.random`).
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from functools import cache

from scipy.optimize import brentq

from skdp.privacy.random import Words

__all__ = [
    "LAWS",
    "LAW_ERROR",
    "chance_drawn",
    "check_mean",
    "draw_below",
    "draw_runs",
    "exact_gamma",
    "true_mean",
]

LAWS = ("geometric", "logarithmic", "poisson")
LAW_ERROR = 2.0**-100  # bound on the total variation of a drawn number from its law
_UNIT = 1 << 64
_POISSON_BITS = 128
_LARGEST_MEAN = 1e6


def check_mean(mean: float) -> float:
    """Return the expected number of runs if a search can have it."""
    if not 1 < mean <= _LARGEST_MEAN:
        raise ValueError(f"the expected number of runs must be in (1, 1e6]. Got {mean!r}.")
    return mean


@cache
def exact_gamma(law: str, mean: float) -> float:
    """Return the gamma of a truncated negative binomial: a multiple of 2^-53, to draw exactly.

    Its mean is at least `mean` by rounding gamma down; the formulas of the loss use this gamma.
    """
    if law == "geometric":
        gamma = 1 / mean
    else:
        gamma = math.exp(-brentq(lambda t: math.expm1(t) / t - mean, 1e-9, 50.0, xtol=1e-14))
    return math.floor(gamma * 2**53) / 2**53


def true_mean(law: str, mean: float) -> float:
    """Return the mean of what `draw_runs` draws: `mean` up to the rounding of gamma."""
    if law == "poisson":
        return mean
    gamma = exact_gamma(law, mean)
    return 1 / gamma if law == "geometric" else (1 / gamma - 1) / -math.log(gamma)


def chance_drawn(law: str, mean: float, n: int) -> float:
    """Chance that one given candidate of n is among those drawn: 1 - E[(1 - 1/n)^K]."""
    miss = 1 - 1 / n
    if law == "poisson":
        return -math.expm1(-mean / n)
    gamma = exact_gamma(law, mean)
    if law == "geometric":
        return 1 - gamma * miss / (1 - (1 - gamma) * miss)
    return 1 - math.log1p(-(1 - gamma) * miss) / math.log(gamma)


def draw_below(words: Words, n: int) -> int:
    """Draw a uniform integer in [0, n), exactly; n < 2^64."""
    limit = _UNIT - _UNIT % n
    while (word := int(words(1)[0])) >= limit:
        pass
    return word % n


def _geometric(words: Words, gamma: float) -> int:
    """P(k) = gamma (1 - gamma)^(k - 1): trials until the first success, exactly."""
    success = int(gamma * 2**53) << 11
    k = 1
    while int(words(1)[0]) >= success:
        k += 1
    return k


def _logarithmic(words: Words, gamma: float) -> int:
    """P(k) prop. to (1 - gamma)^k / k: a geometric k that is kept with probability 1/k, exactly."""
    while draw_below(words, k := _geometric(words, gamma)):
        pass
    return k


@cache
def _poisson_thresholds(mean: float) -> tuple[int, ...]:
    """Return the distribution function in units of 2^-128, until the rest is below 2^-120."""
    with localcontext(prec=80):
        term, total, k = (-Decimal(mean)).exp(), Decimal(0), 0
        thresholds = []
        while k < mean or term > Decimal(2) ** -124:
            total += term
            thresholds.append(int(total * (1 << _POISSON_BITS)))
            k += 1
            term = term * Decimal(mean) / k
    return tuple(thresholds)


def _poisson(words: Words, mean: float) -> int:
    """Inversion of 128 bits: a sum of roundings below `LAW_ERROR` for means up to a million."""
    first, second = (int(word) for word in words(2))
    uniform, thresholds = (first << 64) | second, _poisson_thresholds(mean)
    return sum(uniform >= threshold for threshold in thresholds)


def draw_runs(words: Words, law: str, mean: float) -> int:
    """Draw the number of runs: at least 1, but for Poisson, where it may be 0.

    Parameters
    ----------
    words : Words
        Source of random words; how many are read depends on the result, which stays secret.
    law : {"geometric", "logarithmic", "poisson"}
        Law of the number.
    mean : float
        Its mean.
    """
    if law == "poisson":
        return _poisson(words, mean)
    draw = _geometric if law == "geometric" else _logarithmic
    return draw(words, exact_gamma(law, mean))
