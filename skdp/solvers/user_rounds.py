"""Rounds that improve a shared subspace: alternate heads (private) and a released step.

Notation as in `skdp.solvers.personalization`. "residual" is alternating minimisation for any convex
loss; "cross" compares directions with heads; "gram" is the paper's noisy normal equations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp.answer import Answer
from skdp.solvers.linalg import orthonormal, symmetric_noise_edge
from skdp.solvers.local_fits import RidgePath, centred, transposed, unit
from skdp.solvers.local_losses import LOSSES
from skdp.solvers.personalization import AsksUsers, GramMessage, Shared, SumMessage, View
from skdp.solvers.user_batches import UserBatch
from skdp.solvers.user_starts import floored_eigen

FloatArray = NDArray[np.float64]
_HEAD_PENALTY = 0.01  # of the heads inside a round
_GLM_PENALTY = 0.2  # logistic heads have no finite maximum without one
GAIN = 0.6  # a full step takes this part of the error away: messages are clipped
_CORE = 1 / 3  # weight of the k x k part of a round's message, in units of the clip level


@dataclass(frozen=True)
class ResidualRound(SumMessage):
    """Residual moments times unit head, and the head's square.

    With the head V fitted on X U, w = V/|V| and the residual r: X'r w' / ((m - k) |V|), and w w'
    times a public weight. The head fits k of the m degrees of freedom away, hence m - k.
    """

    view: View
    U: FloatArray
    clip_level: float

    name = "round"

    @property
    def public(self) -> tuple[FloatArray | None, ...]:
        """Its arrays."""
        return (*self.view.public, self.U)

    @property
    def parts(self) -> tuple[tuple[Any, ...], ...]:
        """The moments, and the square."""
        k = self.U.shape[1]
        weight = core_weight(self.clip_level)
        return (self.U.shape, self.clip_level, False), ((k, k), weight, True)

    def __call__(self, batch: UserBatch) -> FloatArray:
        """Return both, of any length."""
        view, k = self.view, self.U.shape[1]
        penalty = _HEAD_PENALTY if view.loss.mean is None else _GLM_PENALTY
        batch = view.within(batch)
        seen = view(batch)
        n, m, _ = seen.Y.shape
        path = RidgePath.of(seen.times(self.U))
        zero, everyone = np.zeros_like(seen.Y), np.full(n, penalty)
        fit = path.fit(seen.Y, zero, view.loss, everyone, view.variance)
        V = path.coefficients(fit)
        lengths = np.sqrt((V * V).sum(axis=(1, 2)))[:, None, None]
        w = V / np.where(lengths > 0, lengths, np.inf)
        spare = max(m - k - int(view.intercept), 1)
        residual = (fit.target - fit.eta) / (spare * np.where(lengths > 0, lengths, np.inf))
        D = np.matmul(seen.moments(residual), transposed(w))
        C = core_weight(self.clip_level) * np.matmul(w, transposed(w))
        sent = np.concatenate([D.reshape(n, -1), C.reshape(n, -1)], axis=1)
        return np.where(view.tells(batch)[:, None], sent, 0.0)


def core_weight(clip_level: float) -> float:
    """Scale of w w' in a round's message."""
    return _CORE * clip_level


def residual_step(shared: Shared, released: Answer, clip_level: float) -> Shared:
    """Take the step U + D C^-1 from one released message: Newton's for whitened features.

    Eigenvalues of C that drown in its noise are raised, and the step is shorter there. The new
    error is what the step leaves of the old one, and the noise that it brings.
    """
    U = shared.U
    d, k = U.shape
    weight, noise = core_weight(clip_level), released.noise_scale
    D = released.value[: d * k].reshape(d, k)
    C = released.value[d * k :].reshape(k, k) / weight
    values, R = floored_eigen(C, 2 * math.sqrt(2 * k) * noise / weight)
    count = shared.count.also(float(np.trace(C)), noise / weight * math.sqrt(k))
    true = np.minimum(values, count.value / k)  # w w' has trace 1
    left = (1 - GAIN * true / values) ** 2 * shared.error
    brought = (d - k) * (noise**2 + true * clip_level**2 / (2 * d)) / values**2
    error = float(np.mean(np.minimum(left + brought, (d - k) / d)))
    return replace(shared, U=orthonormal(U + (D @ R / values) @ R.T), error=error, count=count)


@dataclass(frozen=True)
class CrossRound(SumMessage):
    """A user's own unit direction times its unit head."""

    view: View
    U: FloatArray

    name = "cross_round"

    @property
    def public(self) -> tuple[FloatArray | None, ...]:
        """Its arrays."""
        return (*self.view.public, self.U)

    @property
    def parts(self) -> tuple[tuple[Any, ...], ...]:
        """One matrix."""
        return ((self.U.shape, 1.0, False),)

    def __call__(self, batch: UserBatch) -> FloatArray:
        """Return the matrix."""
        view = self.view
        theta = unit(view.ridge(batch))
        seen = view(batch)
        path, Y = RidgePath.of(seen.times(self.U)), view.linear_targets(seen.Y)
        everyone = np.full(len(Y), _HEAD_PENALTY)
        head = path.fit(Y, np.zeros_like(Y), LOSSES["squared"], everyone, view.variance)
        w = unit(path.coefficients(head))
        return np.asarray(np.matmul(theta, transposed(w)).reshape(len(Y), -1))


@dataclass(frozen=True)
class GramRound(GramMessage):
    """Rows [vec(x v'), y] of the paper's normal equations, for one output."""

    view: View
    U: FloatArray

    name = "gram_round"

    @property
    def public(self) -> tuple[FloatArray | None, ...]:
        """Its arrays."""
        return (*self.view.public, self.U)

    @property
    def width(self) -> int:
        """Unknowns, and the targets."""
        return self.U.size + 1

    def __call__(self, batch: UserBatch) -> FloatArray:
        """Return the rows."""
        view = self.view
        seen = view(batch)
        X, Y = seen.X, view.linear_targets(seen.Y)
        if view.intercept:
            X, Y = centred(X), centred(Y)
        path = RidgePath.of(np.matmul(X, self.U))
        everyone = np.full(len(Y), _HEAD_PENALTY)
        V = path.coefficients(path.fit(Y, np.zeros_like(Y), LOSSES["squared"], everyone, 0.0))
        n, m, _ = X.shape
        rows = np.matmul(V[:, None], X[:, :, None, :]).reshape(n, m, -1)  # (k x 1)(1 x d)
        size = np.sqrt((V * V).sum(axis=(1, 2)))[:, None, None]
        return np.concatenate([rows, Y * np.where(size > 0, 1.0, 0.0)], axis=2)


def gram_step(shared: Shared, released: Answer) -> Shared:
    """Solve the released normal equations of size d k, made positive definite."""
    d, k = shared.U.shape
    M = released.value
    blocks = M[:-1, :-1].reshape(k, d, k, d)
    blocks = blocks + blocks.transpose(0, 3, 2, 1)  # symmetric in the features too
    A = blocks.reshape(d * k, d * k) / 2
    values, vectors = floored_eigen(A, symmetric_noise_edge(released.noise_scale, d * k))
    Z = vectors @ ((vectors.T @ M[:-1, -1]) / values)
    return replace(shared, U=orthonormal(Z.reshape(k, d).T))


def settled(view: View, U: FloatArray) -> View:
    """Return the view with the part of its base outside a subspace shrunk by its noise.

    The mean of heads lies in the subspace where all of them do. Noise outside of it is the same for
    all users, and their heads cannot undo it; what stands above it stays (James and Stein).
    """
    base = view.base
    if base is None or base.doubt is None:
        return view
    inner = _of_whitened(view.whitener, base.coef)
    outside = inner - U @ (U.T @ inner)
    noise = _of_whitened(view.whitener, _of_whitened(view.whitener, base.doubt.covariance).T)
    energy, size = float(np.trace(noise) - np.sum(U * (noise @ U))), float(np.sum(outside**2))
    free = outside.size - U.shape[1] * outside.shape[1]
    if not (size > 0 and free > 2):
        return view
    lost = min(1.0, max(0.0, energy) * (free - 2) / free / size)
    change = view.coefficients(lost * outside)
    intercept = base.intercept + base.doubt.center @ change
    return replace(view, base=base._replace(coef=base.coef - change, intercept=intercept))


def _of_whitened(whitener: FloatArray | None, coef: FloatArray) -> FloatArray:
    """Return coefficients (d, p) of whitened rows from those of raw ones."""
    if whitener is None:
        return coef
    if whitener.ndim == 1:
        return coef / whitener[:, None]
    return np.asarray(np.linalg.solve(whitener, coef))


def refine(
    ask: AsksUsers, view: View, shared: Shared, kind: str, n_rounds: int, clip: float, share: float
) -> Shared:
    """Improve the subspace in rounds that share the budget equally.

    Each takes a model of all from the view that suits the subspace so far.
    """
    first = view
    for _ in range(n_rounds):
        part, view = share / n_rounds, settled(first, shared.U)
        if kind == "residual":
            released = ResidualRound(view, shared.U, clip).asked(ask, share=part)
            shared = residual_step(shared, released, clip)
        elif kind == "cross":
            released = CrossRound(view, shared.U).asked(ask, share=part)
            shared = replace(shared, U=orthonormal(released.value.reshape(shared.U.shape)))
        else:
            shared = gram_step(shared, GramRound(view, shared.U).asked(ask, share=part))
    return shared
