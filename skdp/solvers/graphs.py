"""Directions and scalings of a graph from its released degrees."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from skdp._limits import CLEAR, NEGLIGIBLE, FloatArray
from skdp.answer import Answer
from skdp.solvers.iterate import AsksProducts
from skdp.solvers.linalg import fix_signs, signal_share

_LEAST = 0.1  # of a component: it is never replaced altogether
_FEWEST = 0.25  # of the mean degree: a node counts as if it had no fewer edges


def released_degrees(ask: AsksProducts, n: int, share: float) -> Answer:
    """Release the degrees A 1, shrunk to their mean as far as they are noise."""
    answer = ask.right(np.full((n, 1), 1 / math.sqrt(n)), share=share)
    degrees = answer.value[:, 0] * math.sqrt(n)
    noise = answer.noise_scale * math.sqrt(n)
    mean, signal = float(degrees.mean()), signal_share(float(degrees.var()), noise**2)
    return Answer(np.asarray(mean + signal * (degrees - mean)), noise)


def degree_scale(degrees: Answer, weight: float, spread: float) -> FloatArray:
    """Return 1/sqrt of the noise variance of each row: that of its random edges, and of releases.

    The variance of the edges is the degree, times the `weight` of an edge. That of the released
    eigenvectors is `spread` times the variance of the released degrees. A `spread` of 0 means that
    the whole graph was released, and its rows have the noise of the degrees. Squares of scales
    have mean one, so that eigenvalues keep their units.
    """
    mean = max(float(degrees.value.mean()), weight)
    own = weight * np.maximum(degrees.value, _FEWEST * mean)
    scale = 1 / np.sqrt(own + (spread or 1.0) * degrees.noise_scale**2)
    return np.asarray(scale / math.sqrt(np.mean(scale**2)))


class ScaledGraph(NamedTuple):
    """Products with S A S for a public diagonal S: the query is sent as S X, the answer scaled."""

    ask: Any
    scale: FloatArray  # of shape (n, 1)

    def right(self, X: FloatArray, *, share: float) -> Answer:
        """Return S A S X plus noise (of scale S s: its average is reported)."""
        answer = self.ask.right(self.scale * X, share=share)
        mean = float(np.sqrt(np.mean(self.scale**2)))
        return Answer(self.scale * answer.value, answer.noise_scale * mean)

    def ritz(self, X: FloatArray, *, share: float) -> Any:
        """Return X'S A S X plus symmetric noise."""
        return self.ask.ritz(self.scale * X, share=share)


def embed_across(
    ask: AsksProducts,
    degrees: Answer,
    weight: float,
    eigenpairs: Callable[..., Any],
    spread: float,
    *,
    angles: bool = False,
) -> tuple[FloatArray, FloatArray]:
    """Embed orthogonally to the degrees: (eigenvalues, positions). Nodes of noisy rows count less.

    The norm of a column is the root of its expected cosine. If no eigenvalue exceeds the noise, the
    first column holds the degrees, if these are more unequal than by chance. `weight` and `spread`
    are those of `degree_scale`. `angles` takes the root of the noise for the direction of the
    degrees, and divides rows by their norm.
    """
    scale = degree_scale(degrees, weight, spread)
    sizes = 1 / scale if angles else scale * degrees.value  # along them lies size, not structure
    length, flat = float(np.linalg.norm(sizes)), np.full(len(sizes), 1 / math.sqrt(len(sizes)))
    direction = sizes / length if length > 0 else flat
    across = lambda Y: Y - np.outer(direction, direction @ Y)  # noqa: E731
    values, V = eigenpairs(ScaledGraph(ask, scale[:, None]), across)
    V = fix_signs(V.T).T
    if angles:  # nodes of one group differ in degree far more than in angle
        lengths = np.hypot(direction, np.linalg.norm(V, axis=1))
        return values, V / np.maximum(lengths, NEGLIGIBLE)[:, None]
    variance = (spread or 1.0) * degrees.noise_scale**2
    own, noise = (_noise_strength(degrees.value, weight, scale, v) for v in (0.0, variance))
    cos2, chance = _squared_cosines(values, own, noise), weight * float(degrees.value.mean())
    error = math.sqrt(2 / len(V)) * (chance + degrees.noise_scale**2)  # of their variance
    if cos2.max() <= _LEAST and degrees.value.var() > chance + CLEAR * error:
        V[:, 0], cos2[0] = direction, 1.0  # unequal degrees are all that is known
    return values, _adjusted_by_degrees(V, direction, cos2)


def _noise_strength(
    degrees: FloatArray, weight: float, scale: FloatArray, variance: float
) -> float:
    """Return the square of half the edge of the noise: released, and of the edges themselves.

    Cells have variance `variance`/n and w d_i d_j/sum d: of rank two, the leading eigenvalue.
    """
    degrees, squares = np.maximum(degrees, 0.0), scale**2
    released = math.sqrt(variance / len(scale)) * squares
    own = math.sqrt(weight / max(float(degrees.sum()), weight)) * squares * degrees
    both = np.column_stack([released, own])
    return float(np.linalg.eigvalsh(both.T @ both)[-1])


def _squared_cosines(values: FloatArray, own: float, noise: float) -> FloatArray:
    """Return the expected squared cosines with the true directions.

    An eigenvalue w of the graph exceeds that of its edge probabilities, t: w = t + own/t.
    """
    half = np.abs(values) / 2
    squares = (half + np.sqrt(np.maximum(half**2 - own, 0.0))) ** 2
    squares = np.maximum(squares, max(noise / 2, np.finfo(float).tiny))
    return np.asarray(np.clip(1 - noise / squares, _LEAST, 1.0))


def _adjusted_by_degrees(V: FloatArray, direction: FloatArray, cos2: FloatArray) -> FloatArray:
    """Predict each true direction from its noisy one and the degrees, where both go together.

    If groups differ in degree, degrees predict a weak direction better than its noisy estimate.
    """
    n = len(V)
    X, means = V * math.sqrt(n), V.mean(axis=0) * math.sqrt(n)
    size = direction * math.sqrt(n)
    size = size - size.mean()
    spread = float(size @ size) / n
    if spread < NEGLIGIBLE:  # by rounding
        size, spread = 0 * size, 1.0
    own = 1 - means**2
    shared = (X - means).T @ size / n
    shared = np.sign(shared) * np.sqrt(np.maximum(shared**2 - CLEAR**2 * spread / n, 0.0))
    known = np.maximum(own - (1 - cos2), _LEAST)
    rest = np.maximum(own * spread - shared**2, NEGLIGIBLE * spread)
    first = (known * spread - shared**2) / rest
    second = shared * (own - known) / rest
    adjusted = first * X + np.outer(size, second)
    lengths = np.sqrt(n * np.sqrt(cos2)) / np.maximum(np.linalg.norm(adjusted, axis=0), NEGLIGIBLE)
    return np.asarray(adjusted * lengths)
