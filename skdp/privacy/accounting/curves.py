"""The curve delta(epsilon) of Gaussian DP, and roots of curves rounded to the safe side."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import erfcx, ndtr

FloatArray = NDArray[np.float64]
Curve = Callable[[float], float]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)


def as_number(name: str, value: object, low: float = 0.0, high: float = math.inf) -> float:
    """Return a real number in [low, high] as a float; anything else is a ValueError."""
    number = math.nan
    if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):
            number = float(value)
    if not low <= number <= high:
        raise ValueError(f"{name} must be a number in [{low:g}, {high:g}]. Got {value!r}.")
    return number


def as_delta(value: object) -> float:
    """Return delta in (0, 1)."""
    delta = as_number("delta", value, high=1.0)
    if delta in (0.0, 1.0):
        raise ValueError(f"delta must lie strictly between 0 and 1. Got {value!r}.")
    return delta


def mills(x: FloatArray) -> FloatArray:
    """Mills ratio R(x) = Phi(-x) / phi(x), for x > -25."""
    return np.asarray(math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2)))


def _place(mu: FloatArray, epsilon: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return x = epsilon/mu - mu/2 and the normal density there."""
    with np.errstate(over="ignore"):
        x = np.minimum(epsilon / mu, mu / 2 + 40.0) - mu / 2  # phi(40) is 0 in floats
        return x, np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def _narrow(mu: FloatArray, x: FloatArray, density: FloatArray) -> FloatArray:
    """For mu <= 1. R' = x R - 1: the integral of 1 - t R(t) > 0 does not cancel."""
    half = 0.5 * mu[:, None]
    t = x[:, None] + half * (_NODES + 1.0)
    return np.asarray(density * (half[:, 0] * ((1.0 - t * mills(t)) @ _WEIGHTS)))


def _wide(mu: FloatArray, x: FloatArray, density: FloatArray) -> FloatArray:
    near, far = mills(np.maximum(x, 0.0)), mills(x + mu)
    return np.where(x < 0.0, ndtr(-x) - density * far, density * (near - far))


def forward_curve(mu: float, epsilon: FloatArray) -> FloatArray:
    """Delta at epsilons >= 0: phi(x) (R(x) - R(x + mu)) with x = epsilon/mu - mu/2."""
    every = np.full(epsilon.shape, mu)
    return (_narrow if mu <= 1.0 else _wide)(every, *_place(every, epsilon))


def forward_mus(mu: FloatArray, epsilon: float) -> FloatArray:
    """Delta at one epsilon > 0 of many mu > 0."""
    delta = np.empty(mu.shape)
    for side, formula in ((mu <= 1.0, _narrow), (mu > 1.0, _wide)):
        some = mu[side]
        delta[side] = formula(some, *_place(some, np.full(some.shape, epsilon)))
    return delta


def gaussian_curve(mu: float, epsilon: FloatArray) -> FloatArray:
    """Delta at any epsilons; delta(-e) = (1 - e^-e) + e^-e delta(e) has no cancellation."""
    below = np.minimum(epsilon, 0.0)
    delta = -np.expm1(below)
    if mu > 0.0:
        delta = delta + np.exp(below) * forward_curve(mu, np.abs(epsilon))
    return np.minimum(delta, 1.0)


def lowered(delta: float) -> float:
    """Lower delta by more than the rounding error of its curve (1e-16 log(1/delta))."""
    return delta * (1.0 - 2.0**-48 * (4.0 - math.log(delta)))


def log_ratio(delta: float, target: float) -> float:
    """log(delta / target), finite also where delta underflows."""
    return (math.log(delta) if delta > 0.0 else -1e4) - math.log(target)


def nudge(curve: Curve, target: float, value: float, side: int) -> float:
    """Move value by ulps to the given side until the curve is at most target."""
    step = math.ulp(value)
    while curve(value) > target:
        value, step = value + side * step, 2.0 * step
    return value


def largest_mu(curve: Curve, delta: float, low: float) -> float:
    """Largest mu, rounded down, at which an increasing curve is at most delta; low: a guess."""
    target = lowered(delta)
    while curve(low) > target:
        low /= 2.0
    high = 2.0 * low
    while curve(high) <= target:
        low, high = high, 2.0 * high
    ends = math.log(low) - 1e-12, math.log(high) + 1e-12
    root = brentq(lambda t: log_ratio(curve(math.exp(t)), target), *ends, xtol=1e-15)
    return nudge(curve, target, math.exp(root), -1)
