"""Whitening of measurement matrices from released second moments.

Notation: X = R0^(1/2) G C0^(1/2) with G of iid entries; the sums of X X' and X'X over n records
are about n tr(C0) R0 and n tr(R0) C0. W1 X W2 has entries of variance `lam`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from skdp.answer import Answer
from skdp.solvers.trace import TraceFit, private_median

FloatArray = NDArray[np.float64]
_SMALLEST = 0.02  # of the mean eigenvalue, for learnt moments
_SMALLEST_PUBLIC = 1e-8
_BELOW_ONE = 1 - 1e-6  # norm of a mix: its grid adds less
_CLIP = 1.5  # of second moments, in medians


class AsksDesign(Protocol):
    """What a design is learnt from."""

    def moment_sizes_below(self, threshold: float, *, share: float) -> Answer:
        """Return a negative number when the threshold is below the median size."""
        ...

    def design_moments(self, clip_level: float, *, share: float) -> Answer:
        """Return the two second moments (or their diagonals), flat."""
        ...


class AsksPrecision(Protocol):
    """What is asked of records with covariances of their own."""

    def precisions_below(self, threshold: float, *, share: float) -> Answer:
        """Return a negative number when the threshold is below the median precision."""
        ...

    def spreads_below(self, threshold: float, *, share: float) -> Answer:
        """Return a negative number when the threshold is below the median spread."""
        ...


class Whitening(NamedTuple):
    """Public symmetric W1, W2 of norm 1 (None: identity), and the variance of W1 X W2.

    Or a public `mix` A, `lam` times the inverse of the covariance L of vec(X): E <x, H> A x = lam H
    for every H. Then `variance` is that of an entry of A x, and `spread` its square times the mean
    variance of an entry of x, over lam^2: 1 if L is a multiple of the identity. Or records that
    have covariances L_i of their own, and contribute `gain` L_i^-1 x: lam is the gain.
    """

    left: FloatArray | None
    right: FloatArray | None
    lam: float
    mix: FloatArray | None = None
    variance: float | None = None
    spread: float = 1.0
    gain: float | None = None


def _signal(spread: float, expected: float) -> float:
    """Return the share of a squared spread that is not noise (Ledoit, Wolf 2004; error known)."""
    return max(0.0, 1 - expected / spread) if spread > 0 else 0.0


def _shrunk(moment: FloatArray, noise: float, mean: float) -> tuple[FloatArray, FloatArray]:
    """Return eigenvalues and vectors of a noisy moment, drawn to its mean as the noise demands.

    (G + G')/2 with scale s has mean squared size s^2 d (d + 1)/2 and spectral edge s sqrt(2 d).
    """
    d = len(moment)
    centred = (moment + moment.T) / 2 - mean * np.eye(d)
    signal = _signal(float(np.sum(centred**2)), noise**2 * d * (d + 1) / 2)
    values, vectors = np.linalg.eigh(mean * np.eye(d) + signal * centred)
    return _floored(values, signal * noise * math.sqrt(2 * d), noise, mean), vectors


def _floored(values: FloatArray, edge: float, noise: float, mean: float) -> FloatArray:
    smallest = _SMALLEST if noise else _SMALLEST_PUBLIC
    return np.maximum(values, min(max(smallest * mean, edge), mean))


def _shrunk_diagonal(part: FloatArray, noise: float, mean: float) -> tuple[FloatArray, FloatArray]:
    centred = part - mean
    signal = _signal(float(np.sum(centred**2)), noise**2 * len(part))
    return _floored(mean + signal * centred, signal * noise, noise, mean), np.eye(len(part))


def whitening(
    moments: FloatArray, shape: tuple[int, int], n: float, noise: float
) -> Whitening | None:
    """Return the whitening for sums of X X' and X'X or their diagonals; None if all is noise."""
    d1, d2 = shape
    diagonal = len(moments) == d1 + d2
    shrunk: Callable[..., tuple[FloatArray, FloatArray]] = _shrunk
    if diagonal:
        shrunk, parts = _shrunk_diagonal, (moments[:d1], moments[d1:])
        trace = float(moments.sum()) / 2
    else:
        parts = (moments[: d1 * d1].reshape(d1, d1), moments[d1 * d1 :].reshape(d2, d2))
        trace = float(np.trace(parts[0]) + np.trace(parts[1])) / 2
    if trace <= 2 * noise * math.sqrt((d1 + d2) / 4):
        return None
    (r, P), (c, Q) = shrunk(parts[0], noise, trace / d1), shrunk(parts[1], noise, trace / d2)
    left, right = (P * np.sqrt(r.min() / r)) @ P.T, (Q * np.sqrt(c.min() / c)) @ Q.T
    return Whitening(left, right, float(r.min() * c.min() / (trace * n)))


def mixing(covariance: FloatArray) -> Whitening:
    """Return the mix for a public covariance of vec(X), positive definite."""
    values, vectors = np.linalg.eigh(covariance)
    lam = float(values[0]) * _BELOW_ONE
    mix = (vectors * (lam / values)) @ vectors.T
    variance = lam * lam * float(np.mean(1 / values))
    spread = variance * float(np.mean(values)) / lam**2
    return Whitening(None, None, lam, (mix + mix.T) / 2, variance, spread)


def through_design(ask: Any, design: Whitening) -> Any:
    """Return what is asked of records that are seen through a design."""
    if design.gain is not None:
        return ask.gained(design.gain)
    if design.mix is not None:
        return ask.mixed(design.mix)
    return ask if design.left is None else ask.whitened(design.left, design.right)


def known_design(precision: float, spread: float) -> Whitening:
    """Return what records contribute that have covariances of their own.

    `precision` is about the mean of tr(L^-1)/p, `spread` that times tr(L)/p.
    """
    gain = 2.0 ** round(-math.log2(min(max(precision, 2.0**-60), 2.0**60)))
    return Whitening(
        None, None, gain, variance=gain**2 * precision, spread=max(spread, 1.0), gain=gain
    )


def release_known_design(ask: AsksPrecision, n: float, rank_share: float) -> Whitening:
    """Learn how large contributions of records with covariances are: two private medians."""
    precision = private_median(ask.precisions_below, rank_share, n)
    return known_design(precision, private_median(ask.spreads_below, rank_share, n))


def release_whitening(
    ask: AsksDesign, shape: tuple[int, int], n: float, rank_share: float, share: float
) -> Whitening | None:
    """Learn the design: a private median of the sizes, and one release of both moments."""
    median = private_median(ask.moment_sizes_below, rank_share, n)
    answer = ask.design_moments(_CLIP * median, share=share)
    return whitening(answer.value, shape, n, answer.noise_scale)


def trace_attributes(
    fit: TraceFit,
    left: FloatArray | None,
    right: FloatArray | None,
    means: tuple[FloatArray, FloatArray] | None = None,
) -> dict[str, FloatArray | float | tuple[float, ...]]:
    """Return the fitted attributes for M = left (U s V') right + a 1' + 1 b' (None: identity)."""
    A = (fit.U if left is None else left @ fit.U) * fit.values
    B = fit.V if right is None else right @ fit.V
    if means is not None:
        ones = np.ones(len(means[0])), np.ones(len(means[1]))
        A = np.column_stack([A, means[0], ones[0]])
        B = np.column_stack([B, ones[1], means[1]])
    Q1, R1 = np.linalg.qr(A)
    Q2, R2 = np.linalg.qr(B)
    P, values, Qt = np.linalg.svd(R1 @ R2.T, full_matrices=False)
    U, V = Q1 @ P, Q2 @ Qt.T
    signs = np.where(V[np.argmax(np.abs(V), axis=0), np.arange(V.shape[1])] < 0, -1.0, 1.0)
    return {
        "coef_": (U * values) @ V.T,
        "U_": U * signs,
        "singular_values_": values,
        "V_": V * signs,
        "noise_sd_": fit.noise_sd if math.isfinite(fit.noise_sd) else 0.0,
        "clip_levels_": fit.clip_levels,
    }
