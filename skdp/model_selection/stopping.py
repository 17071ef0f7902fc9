"""The random number of runs of a private search: its laws, and exact samplers of them.

Geometric and logarithmic are the truncated negative binomials of eta = 1 and eta = 0. Words are
uniform 64-bit integers (`skdp.privacy.noise.words`).
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from functools import cache

from scipy.optimize import brentq

from skdp.privacy.noise.words import Words

LAWS = ("geometric", "logarithmic", "poisson")
_UNIT = 1 << 64
_LARGEST_MEAN = 1e6


def check_mean(mean: float) -> float:
    """Return the expected number of runs if a search can have it."""
    if not 1 < mean <= _LARGEST_MEAN:
        raise ValueError(f"the expected number of runs must be in (1, 1e6]. Got {mean!r}.")
    return mean


@cache
def exact_gamma(law: str, mean: float) -> float:
    """Return the gamma of a truncated negative binomial: this float is what is drawn with.

    The formulas of the loss use it too, and the mean that belongs to it.
    """
    if law == "geometric":
        return 1 / mean
    return math.exp(-brentq(lambda t: math.expm1(t) / t - mean, 1e-9, 50.0, xtol=1e-14))


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


def _first_term(law: str, mean: float) -> tuple[int, Decimal]:
    """Return the smallest number of runs, and its probability."""
    if law == "poisson":
        return 0, (-Decimal(mean)).exp()
    gamma = Decimal(exact_gamma(law, mean))
    return 1, gamma if law == "geometric" else (1 - gamma) / -gamma.ln()


def _invert(law: str, mean: float, uniform: int, bits: int) -> int | None:
    """Return the least k with P(K <= k) > uniform / 2^bits; None if `bits` cannot tell."""
    digits = bits // 4
    with localcontext(prec=digits + 20):  # 10^17 steps stay within the margin
        margin = Decimal(10) ** -digits + Decimal(2) ** -bits
        u, total = Decimal(uniform) / Decimal(2) ** bits, Decimal(0)
        k, term = _first_term(law, mean)
        stay = 1 - Decimal(1 if law == "poisson" else exact_gamma(law, mean))
        while total < 1 - margin:
            total += term
            if u + margin < total:
                return k
            if u - margin < total:
                break
            k += 1
            if law == "poisson":
                term *= Decimal(mean) / k
            else:
                term *= stay if law == "geometric" else stay * (k - 1) / k
    return None


def draw_runs(words: Words, law: str, mean: float) -> int:
    """Draw the number of runs, exactly: at least 1, but for Poisson, where it may be 0.

    Parameters
    ----------
    words : Words
        Source of random words.
    law : {"geometric", "logarithmic", "poisson"}
        Law of the number.
    mean : float
        Its mean.
    """
    uniform, bits, drawn = 0, 0, None
    while drawn is None:  # a tie asks for more bits: with probability 2^-200
        for word in words(4):
            uniform, bits = (uniform << 64) | int(word), bits + 64
        drawn = _invert(law, mean, uniform, bits)
    return drawn
