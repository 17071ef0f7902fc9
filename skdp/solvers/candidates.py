"""A start by the exponential mechanism: choose one of many public subspaces, with pure privacy.

The score of a candidate is the sum over users of the share of their squares that it explains, a
number in [0, 1] for each user and candidate: no scale, no constants of the loss.
"""

from __future__ import annotations

from functools import cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from skdp.solvers.linalg import orthonormal
from skdp.solvers.local_fits import RidgePath, centred, moments, transposed
from skdp.solvers.personalization import Count, Local, Shared, View
from skdp.solvers.user_batches import UserBatch

FloatArray = NDArray[np.float64]


class AsksScores(Protocol):
    """What the solver asks for; see `skdp.queries.users.UserQuery`."""

    def scores(self, name: str, local: Local, n: int, *, share: float) -> int:
        """Return the index that the exponential mechanism chose."""
        ...


@cache
def line_net(d: int, n: int) -> FloatArray:
    """A public net of about n lines in d <= 4 dimensions, as (n, d, 1): fixed for all time."""
    points = np.random.default_rng(0).standard_normal((n, d))  # a fixed set, not noise
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    for _ in range(20 if n <= 2000 else 0):  # lines repel each other: fewer holes
        closeness = points @ points.T
        np.fill_diagonal(closeness, 0.0)
        weights = np.sign(closeness) * np.maximum(np.abs(closeness) - 0.8, 0.0) ** 3
        points -= (
            weights @ points / np.maximum(np.abs(weights).sum(axis=1, keepdims=True), 1e-9) / 9
        )
        points /= np.linalg.norm(points, axis=1, keepdims=True)
    points.flags.writeable = False
    return points[:, :, None]


def candidate_scores(view: View, candidates: FloatArray) -> Local:
    """Return the share of its squares that each user explains in each candidate subspace."""

    def scores(batch: UserBatch) -> FloatArray:
        seen = view(batch)
        X, Y = seen.X, view.linear_targets(seen.Y)
        if view.intercept:
            X, Y = centred(X), centred(Y)
        total = (Y * Y).reshape(len(Y), -1).sum(axis=1)[:, None]
        if candidates.shape[2] == 1:
            Z = np.matmul(X, candidates[:, :, 0].T)
            products, squares = moments(Z, Y), (Z * Z).sum(axis=1)
            explained = (products * products).sum(axis=2) / np.where(squares > 0, squares, np.inf)
        else:
            explained = np.stack([_explained(np.matmul(X, U), Y) for U in candidates], axis=1)
        return np.asarray(explained / np.where(total > 0, total, np.inf))

    return scores


def _explained(Z: FloatArray, Y: FloatArray) -> FloatArray:
    path = RidgePath.of(Z)
    fitted = np.matmul(transposed(path.basis.P), Y) * (path.s > 1e-12 * path.s[:, -1:])[:, :, None]
    return np.asarray((fitted * fitted).reshape(len(Y), -1).sum(axis=1))


def choose_subspace(ask: AsksScores, view: View, candidates: FloatArray, share: float) -> Shared:
    """Choose a candidate by the exponential mechanism, exactly."""
    local = candidate_scores(view, candidates)
    index = ask.scores("subspace", local, len(candidates), share=share)
    return Shared(orthonormal(candidates[index]), 0.5, Count())
