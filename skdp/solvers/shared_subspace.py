"""The subspace that users share: a first one, and the rounds that improve it.

Notation as in `skdp.solvers.personalization`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from skdp.answer import Answer
from skdp.data.factorisations import of_public
from skdp.solvers.linalg import orthonormal, symmetric_noise_edge, top_eigenpairs
from skdp.solvers.local_fits import RidgePath, UserBatch, centred, moments, transposed
from skdp.solvers.personalization import (
    AsksUsers,
    Count,
    GramMessage,
    Local,
    Shared,
    SumMessage,
    View,
)

# The first whitener and subspace that users share, learned from one vote of each user.
#
# Notation as in `skdp.solvers.personalization`.


FloatArray = NDArray[np.float64]
_TINY = 1e-100


def floored_eigen(M: FloatArray, floor: float) -> tuple[FloatArray, FloatArray]:
    """Eigenvalues (not below a positive floor) and eigenvectors of a symmetric matrix."""
    values, vectors = of_public(np.linalg.eigh, (M + M.T) / 2)
    return np.maximum(values, max(floor, _TINY)), vectors


def whitener_of(released: Answer, diagonal: bool) -> FloatArray:
    """Return M^(-1/2) of a released second moment M, mean 1.

    What differs from a multiple of the identity is shrunk by the share of it that noise explains
    (three standard deviations of it), and eigenvalues stay above the edge of the noise that is
    left: with few users nothing is whitened.
    """
    M, noise = released.value, released.noise_scale
    d = len(M)
    middle = float(M.mean() if diagonal else np.trace(M) / d)
    change = M - middle if diagonal else M - middle * np.eye(d)
    terms = d if diagonal else d * (d + 1) / 2
    total = float((change * change).sum())
    explained = noise**2 * terms * (1 + 3 * math.sqrt(2 / terms))
    kept = max(0.0, 1 - explained / total) if total > 0 else 0.0
    least = 1e-3 * abs(middle)
    if diagonal:
        values = np.maximum(middle + kept * change, max(kept * 2 * noise, least, 1e-300))
        return np.asarray(values**-0.5 / np.mean(values**-0.5))
    edge = max(kept * symmetric_noise_edge(noise, d), least)
    values, vectors = floored_eigen(middle * np.eye(d) + kept * change, edge)
    W = (vectors * values**-0.5) @ vectors.T
    return np.asarray(W / (np.trace(W) / d))


@dataclass(frozen=True)
class SecondMoment(GramMessage):
    """A user's rows within public bounds, own means taken off, in public units."""

    units: FloatArray
    intercept: bool
    bounds: FloatArray | None = None
    center: FloatArray | None = None

    name = "second_moment"

    @property
    def public(self) -> tuple[FloatArray | None, ...]:
        """Its arrays."""
        return (self.units, self.bounds, self.center)

    @property
    def width(self) -> int:
        """Number of features."""
        return len(self.units)

    def __call__(self, batch: UserBatch) -> FloatArray:
        """Return the rows."""
        view = View(None, self.intercept, "squared", bounds=self.bounds, center=self.center)
        X = view.about(view.within(batch)).X
        X = centred(X) if self.intercept else X
        return X if np.all(self.units == 1.0) else X / self.units


@dataclass(frozen=True)
class Variances(SumMessage):
    """Sums of squares of a user's columns, own means taken off, in public units."""

    units: FloatArray
    intercept: bool
    bounds: FloatArray | None = None
    center: FloatArray | None = None

    name = "variances"

    @property
    def public(self) -> tuple[FloatArray | None, ...]:
        """Its arrays."""
        return (self.units, self.bounds, self.center)

    @property
    def parts(self) -> tuple[tuple[Any, ...], ...]:
        """One nonnegative vector."""
        return (((len(self.units),), 1.0, True),)

    def __call__(self, batch: UserBatch) -> FloatArray:
        """Return the sums of squares."""
        X = SecondMoment(self.units, self.intercept, self.bounds, self.center)(batch)
        return np.asarray((X * X).sum(axis=1))


def learn_whitener(
    ask: AsksUsers,
    units: FloatArray,
    kind: bool | str,
    intercept: bool,
    share: float,
    bounds: FloatArray | None = None,
    center: FloatArray | None = None,
) -> FloatArray | None:
    """Release the users' unit second moments (own means taken off) and return their whitener.

    `units`, `bounds` and `center` are public: what rows are divided by, cut to and seen from first.
    """
    if kind is False:
        return None
    sight = units, intercept, bounds, center
    if kind is True:
        released = SecondMoment(*sight).asked(ask, share=share)
        return np.asarray(whitener_of(released, False) / units[:, None])
    released = Variances(*sight).asked(ask, share=share)
    return np.asarray(whitener_of(released, True) / units)


def count_components(values: FloatArray, noise_scale: float, n: float) -> int:
    """Count eigenvalues of votes above the edge of their noise and of n random directions."""
    d = len(values)
    edge = symmetric_noise_edge(noise_scale, d) + 2 * math.sqrt(n / d)
    return max(1, int(np.count_nonzero(values > np.median(values) + 1.1 * edge)))


def _error_of_votes(values: FloatArray, k: int, noise_scale: float, n: float) -> float:
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
    spikes = np.maximum((gaps + np.sqrt(seen)) / 2, _TINY)
    tilt = np.where(seen > 0, edge**2 / (4 * spikes**2), 1.0)
    return float(np.mean(np.minimum(tilt, (d - k) / d)))


@dataclass(frozen=True)
class Votes(GramMessage):
    """A user's own direction, from its rows alone."""

    view: View
    d: int

    name = "votes"

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


def vote_start(ask: AsksUsers, view: View, d: int, k: int | str, share: float) -> Shared:
    """Each user votes with its own direction u: the sum of u u' shows the subspace."""
    return _spectral(Votes(view, d).asked(ask, share=share), k)


def _spectral(released: Answer, k: int | str) -> Shared:
    values, vectors = top_eigenpairs(released.value)
    d, noise = len(values), released.noise_scale
    count = Count().also(float(values.sum()), noise * math.sqrt(d))
    if isinstance(k, str):
        k = count_components(values, noise, count.value)
    error = _error_of_votes(values, k, noise, count.value)
    return Shared(vectors[:, :k], error, count, values)


def random_start(signs: FloatArray) -> Shared:
    """A random public subspace, from independent signs of shape (d, k)."""
    d, k = signs.shape
    return Shared(orthonormal(signs), (d - k) / d, Count())


# Rounds that improve a shared subspace: alternate heads (private) and a released step.
#
# Notation as in `skdp.solvers.personalization`. A round is one of alternating minimisation, for any
# convex loss.


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
    return np.asarray(of_public(np.linalg.solve, whitener, coef))


def refine(
    ask: AsksUsers, view: View, shared: Shared, n_rounds: int, clip: float, share: float
) -> Shared:
    """Improve the subspace in rounds that share the budget equally.

    Each takes a model of all from the view that suits the subspace so far.
    """
    first = view
    for _ in range(n_rounds):
        part, view = share / n_rounds, settled(first, shared.U)
        released = ResidualRound(view, shared.U, clip).asked(ask, share=part)
        shared = residual_step(shared, released, clip)
    return shared


# A start by the exponential mechanism: choose one of many public subspaces, with pure privacy.
#
# The score of a candidate is the sum over users of the share of their squares that it explains, a
# number in [0, 1] for each user and candidate: no scale, no constants of the loss.


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
