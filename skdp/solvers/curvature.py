"""Steps of a low-rank regression whose records are public: what they make of a move is known.

The sum of clipped contributions answers to a move m of M by H m, H public: the inverse of H turns a
noisy gradient into a move, whatever the design is, where otherwise its mean must do.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
_DAMPING = 0.5  # of the noise, as the error is mostly smaller than it may be


class PublicCurvature(Protocol):
    """What public records make of a move of U S V': the sum of b z z' and the median length."""

    def __call__(
        self, U: FloatArray, S: FloatArray, V: FloatArray, *, reach: float
    ) -> tuple[FloatArray, float] | None:
        """Return both for contributions cut at `reach` deviations; None where it is not known."""
        ...


class Facts(Protocol):
    """What is asked of the facts of a descent, see `skdp.solvers.trace`."""

    @property
    def n(self) -> float:
        """Number of records."""
        ...

    @property
    def rank(self) -> int:
        """Rank of M."""
        ...

    @property
    def corner(self) -> float:
        """The constant of an intercept, or 0."""
        ...

    @property
    def tangent_size(self) -> int:
        """Dimension of the tangent space."""
        ...


class CurvedStep(NamedTuple):
    """A linear map of noisy gradients to moves, and the variance of a number of the move by each.

    `by_noise` is for noise of scale 1, `by_sampling` for residuals of variance 1.
    """

    matrix: FloatArray
    by_noise: float
    by_sampling: float


def curved_step(
    H: FloatArray, length: float, facts: Facts, *, noise: float, sd: float
) -> CurvedStep:
    """Return the step for a known curvature H of records that are about `length` long.

    The error of M has at most the deviation `sd` of residuals, so that its q numbers are about
    sd / length: directions in which the noise is larger are damped (Wiener). r^2 of the coordinates
    are none.
    """
    q = facts.tangent_size
    w, Q = np.linalg.eigh(H)
    stiff = np.maximum(w, 0.0) + 2 * float(np.trace(H)) / facts.n
    doubt = _DAMPING * (noise * length / sd) ** 2 if sd > 0 else 0.0
    gain = 1 / (stiff + doubt / stiff)
    size, idle = len(H) - bool(facts.corner), facts.rank**2
    seen = (Q[:size] ** 2).sum(axis=0)
    seen[:idle] = 0.0  # the smallest are those of no coordinate
    return CurvedStep(
        -(Q * gain) @ Q.T, float(seen @ gain**2) / q, float(seen @ (gain**2 * np.maximum(w, 0))) / q
    )
