"""The whitener and the subspace that users share, learned from one vote of each user.

Notation as in `skdp.solvers.personalization`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skdp.answer import Answer
from skdp.data.factorisations import of_public
from skdp.solvers.linalg import symmetric_noise_edge, top_eigenpairs
from skdp.solvers.local_fits import UserBatch, centred, transposed
from skdp.solvers.personalization import (
    AsksUsers,
    Count,
    GramMessage,
    Shared,
    View,
)

FloatArray = NDArray[np.float64]


def whitener_of(released: Answer) -> FloatArray:
    """Return M^(-1/2) of a released second moment M, mean 1.

    What differs from a multiple of the identity is shrunk by the share of it that noise explains
    (three standard deviations of it), and eigenvalues stay above the edge of the noise that is
    left: with few users nothing is whitened.
    """
    M, noise = released.value, released.noise_scale
    d = len(M)
    middle = float(np.trace(M) / d)
    change = M - middle * np.eye(d)
    terms = d * (d + 1) / 2
    total = float((change * change).sum())
    explained = noise**2 * terms * (1 + 3 * math.sqrt(2 / terms))
    kept = max(0.0, 1 - explained / total) if total > 0 else 0.0
    if kept == 0.0 or middle <= 0.0:
        return np.eye(d)
    edge = max(kept * symmetric_noise_edge(noise, d), 1e-3 * middle)
    values, vectors = of_public(np.linalg.eigh, middle * np.eye(d) + kept * (change + change.T) / 2)
    W = (vectors * np.maximum(values, edge) ** -0.5) @ vectors.T
    return np.asarray(W / (np.trace(W) / d))


@dataclass(frozen=True)
class SecondMoment(GramMessage):
    """A user's rows, own means taken off."""

    d: int
    intercept: bool

    name = "feature_second_moment"
    public = ()

    @property
    def width(self) -> int:
        """Number of features."""
        return self.d

    def __call__(self, batch: UserBatch) -> FloatArray:
        """Return the rows."""
        return centred(batch.X) if self.intercept else batch.X


def count_components(values: FloatArray, noise_scale: float, n: float) -> int:
    """Count eigenvalues of votes above the edge of their noise and of n random directions."""
    d = len(values)
    edge = symmetric_noise_edge(noise_scale, d) + 2 * math.sqrt(n / d)
    return max(1, int(np.count_nonzero(values > np.median(values) + 1.1 * edge)))


def _error_of_directions(values: FloatArray, k: int, noise_scale: float, n: float) -> float:
    """Squared sine of the top-k eigenvectors, per component.

    Symmetric noise with spectral edge R moves a spike t to t + R^2/(4t) and tilts its eigenvector
    by R^2/(4 t^2); a spike that does not leave the edge says nothing. R counts the noise and the
    votes' own spread.
    """
    d = len(values)
    if d == k:
        return 0.0
    top = values[:k]
    rest = max(0.0, (n - float(top.sum())) / (d - k))
    spread = np.maximum(top, 0.0) * rest / n
    edge = symmetric_noise_edge(1.0, d) * np.sqrt(noise_scale**2 + 2 * spread)
    gaps = np.maximum(top - rest, 0.0)
    seen = np.maximum(gaps**2 - edge**2, 0.0)
    spikes = np.where(seen > 0, gaps + np.sqrt(seen), np.inf) / 2
    tilt = np.where(seen > 0, edge**2 / (4 * spikes**2), 1.0)
    return float(np.mean(np.minimum(tilt, (d - k) / d)))


@dataclass(frozen=True)
class UserDirections(GramMessage):
    """A user's own direction, from its rows alone."""

    view: View
    d: int

    name = "user_direction_gram"

    @property
    def public(self) -> tuple[FloatArray | None, ...]:
        """Its arrays."""
        return self.view.public

    @property
    def width(self) -> int:
        """Number of features."""
        return self.d

    def __call__(self, batch: UserBatch) -> FloatArray:
        """Return the direction, of any length."""
        return transposed(self.view.ridge(batch))


def direction_start(ask: AsksUsers, view: View, d: int, k: int | str, share: float) -> Shared:
    """Each user votes with its own direction u: the sum of u u' shows the subspace."""
    return _spectral(UserDirections(view, d).asked(ask, share=share), k)


def _spectral(released: Answer, k: int | str) -> Shared:
    values, vectors = top_eigenpairs(released.value)
    d, noise = len(values), released.noise_scale
    count = Count().also(float(values.sum()), noise * math.sqrt(d))
    if isinstance(k, str):
        k = count_components(values, noise, count.value)
    error = _error_of_directions(values, k, noise, count.value)
    return Shared(vectors[:, :k], error, count, values)
