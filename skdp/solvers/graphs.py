"""Directions and scalings of a graph from its released degrees."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from skdp.answer import Answer
from skdp.solvers.iterate import AsksProducts

FloatArray = NDArray[np.float64]


def released_degrees(ask: AsksProducts, n: int, share: float) -> FloatArray:
    """Release the degrees A 1, shrunk to their mean as far as they are noise."""
    answer = ask.right(np.full((n, 1), 1 / math.sqrt(n)), share=share)
    degrees = answer.value[:, 0] * math.sqrt(n)
    noise = answer.noise_scale * math.sqrt(n)
    mean, variance = float(degrees.mean()), float(degrees.var())
    signal = max(0.0, 1 - noise**2 / variance) if variance > 0 else 0.0
    return np.asarray(mean + signal * (degrees - mean))


def degree_direction(degrees: FloatArray) -> FloatArray:
    """Return the unit vector along the degrees: the direction of size, not of structure."""
    length = float(np.linalg.norm(degrees))
    n = len(degrees)
    return degrees / length if length > 0 else np.full(n, 1 / math.sqrt(n))


def degree_scale(degrees: FloatArray) -> FloatArray:
    """Return 1/sqrt of the released degrees, each with a mean one added: none is near 0."""
    floored = np.maximum(degrees, 0.0) + max(float(degrees.mean()), 1.0)
    return np.asarray(1 / np.sqrt(floored))


class ScaledGraph:
    """Products with S A S for a public diagonal S: the query is sent as S X, the answer scaled."""

    def __init__(self, ask: AsksProducts, scale: FloatArray) -> None:
        self._ask = ask
        self._scale = scale[:, None]

    def right(self, X: FloatArray, *, share: float) -> Answer:
        """Return S A S X plus noise (of scale S s: its average is reported)."""
        answer = self._ask.right(self._scale * X, share=share)
        mean = float(np.sqrt(np.mean(self._scale**2)))
        return Answer(self._scale * answer.value, answer.noise_scale * mean)

    def left(self, U: FloatArray, *, share: float) -> Answer:
        """Return the same product: A is symmetric."""
        return self.right(U, share=share)

    def ritz(self, X: FloatArray, *, share: float) -> Answer:
        """Return X'S A S X plus symmetric noise."""
        answer: Answer = self._ask.ritz(self._scale * X, share=share)  # type: ignore[attr-defined]
        return answer


def angular_rows(X: FloatArray, direction: FloatArray) -> FloatArray:
    """Divide each row of X by the norm of (direction_i, X_i): what is left is an angle.

    Nodes of one group differ in degree far more than in angle.
    """
    n = len(X)
    both = np.hypot(np.abs(direction) * math.sqrt(n), np.linalg.norm(X, axis=1) * math.sqrt(n))
    return np.asarray(X * (math.sqrt(n) / np.maximum(both, 1e-12))[:, None])
