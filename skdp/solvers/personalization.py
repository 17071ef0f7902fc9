"""The structure that users share: a whitener and a subspace, learned from one vote of each user.

Notation: user j has m rows X_j (m x d) and targets Y_j (m x p), d features, p outputs, k
components. The whitener W (d x d) and the subspace U (d x k, orthonormal, in whitened features) are
public; user j's coefficients are about W U V_j. Each step hands a public function of one user's
rows to `ask`, which bounds what the user adds and releases the noisy sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from skdp.answer import Answer
from skdp.solvers.linalg import orthonormal, symmetric_noise_edge, top_eigenpairs
from skdp.solvers.local_fits import (
    LOSSES,
    ConvexLoss,
    RidgePath,
    RowLoss,
    centred,
    convex_loss,
    moments,
    own_scale,
    transposed,
)

FloatArray = NDArray[np.float64]
_TINY = 1e-100
_FAR = 1e9  # a prediction beyond this many times a user's own scale says nothing
PENALTIES: FloatArray = 10.0 ** np.linspace(-4, 1.5, 8)


class UserBatch(Protocol):
    """Users with equally many rows; see `skdp.queries.users.Batch`."""

    @property
    def X(self) -> FloatArray:
        """Rows, (n, m, d)."""
        ...

    @property
    def Y(self) -> FloatArray:
        """Targets, (n, m, p)."""
        ...

    @property
    def x_exponent(self) -> NDArray[np.intc]:
        """Power of two of the rows."""
        ...

    @property
    def y_exponent(self) -> NDArray[np.intc]:
        """Power of two of the targets."""
        ...


Local = Callable[[Any], FloatArray]


class AsksUsers(Protocol):
    """What the solver asks for; see `skdp.queries.users.UserQuery`."""

    def grams(
        self, name: str, local: Local, width: int, signed: bool = False, *, share: float
    ) -> Answer:
        """Return the noisy sum of unit-norm matrices F'JF."""
        ...

    def sums(
        self, name: str, local: Local, parts: tuple[tuple[Any, ...], ...], *, share: float
    ) -> Answer:
        """Return the noisy sum of contributions, each part clipped to its level."""
        ...


# -- what a user sees of its own rows --------------------------------------------------------------


class GlobalModel(NamedTuple):
    """A released linear model of all users.

    Attributes
    ----------
    coef : array of shape (d, p)
        Coefficients.
    intercept : array of shape (p,)
        Intercepts.
    noise : float
        Norm of the noise in it relative to its bound, where it is a mean of bounded heads.
    """

    coef: FloatArray
    intercept: FloatArray
    noise: float = 0.0

    def predictions(self, batch: UserBatch) -> FloatArray:
        """Predictions of a batch, in the unit of each user's targets."""
        shift = (batch.x_exponent - batch.y_exponent)[:, None, None]
        values = np.ldexp(np.matmul(batch.X, self.coef), shift)
        values = values + np.ldexp(self.intercept[None, None], -batch.y_exponent[:, None, None])
        return np.asarray(np.clip(np.nan_to_num(values, nan=0.0), -_FAR, _FAR))


@dataclass(frozen=True)
class Seen:
    """Rows of a batch in public coordinates, and targets in the user's own scale."""

    X: FloatArray
    Y: FloatArray
    scale: FloatArray


@dataclass(frozen=True)
class View:
    """How users look at their rows: public whitener, own scale, the loss.

    Attributes
    ----------
    whitener : array of shape (d, d) or (d,), or None
        Public.
    intercept : bool
        Whether users have their own intercept.
    loss_name : str or RowLoss
        A key of `LOSSES`, or a loss of residuals.
    base : GlobalModel or None
        What users subtract from their targets first: they then learn how they differ from it.
    """

    whitener: FloatArray | None
    intercept: bool
    loss_name: str | RowLoss
    base: GlobalModel | None = None

    @property
    def loss(self) -> ConvexLoss:
        """The loss."""
        return convex_loss(self.loss_name)

    @property
    def variance(self) -> float:
        """Prior variance of an intercept: free, or none."""
        return math.inf if self.intercept else 0.0

    def whitened(self, X: FloatArray) -> FloatArray:
        """Apply the whitener to the last axis."""
        if self.whitener is None:
            return X
        return X * self.whitener if self.whitener.ndim == 1 else np.matmul(X, self.whitener)

    def coefficients(self, theta: FloatArray) -> FloatArray:
        """Return coefficients of raw rows from those (n, d, p) of whitened ones."""
        if self.whitener is None:
            return theta
        if self.whitener.ndim == 1:
            return theta * self.whitener[:, None]
        return np.asarray(np.matmul(self.whitener, theta))

    def __call__(self, batch: UserBatch) -> Seen:
        """Whiten a batch and bring each user to mean square 1."""
        X = self.whitened(batch.X)
        scale = own_scale(centred(X) if self.intercept else X)
        Y = batch.Y if self.base is None else batch.Y - self.base.predictions(batch)
        return Seen(X / scale[:, None, None], Y, scale)

    def tells(self, batch: UserBatch) -> NDArray[np.bool_]:
        """Whether a user's rows tell of a direction: exact, whatever the order of the rows.

        Beside an intercept equal rows or equal targets say nothing, and the direction of what a
        float fit finds in them is that of its rounding.
        """
        if not self.intercept or batch.X.shape[1] < 2:
            return np.ones(len(batch.X), bool)
        moves = [(A.max(axis=1) > A.min(axis=1)).any(axis=1) for A in (batch.X, batch.Y)]
        return np.asarray(moves[0] & moves[1])

    def linear_targets(self, Y: FloatArray) -> FloatArray:
        """Targets for a least-squares fit: labels become centred indicators."""
        if self.loss_name == "logistic":
            return Y - 0.5
        return Y - 1.0 / Y.shape[2] if self.loss_name == "softmax" else Y

    def ridge(self, batch: UserBatch) -> FloatArray:
        """Coefficients (n, d, p) by least squares, with each user's best leave-one-out penalty."""
        seen = self(batch)
        path, Y = RidgePath.of(seen.X), self.linear_targets(seen.Y)
        offset, loss = np.zeros_like(Y), LOSSES["squared"]
        errors = path.grid_errors(Y, PENALTIES, np.array([self.variance]))
        best = PENALTIES[np.argmin(errors[:, :, 0].sum(axis=2), axis=1)]
        found = path.coefficients(path.fit(Y, offset, loss, best, self.variance))
        return np.where(self.tells(batch)[:, None, None], found, 0.0)

    def moment(self, batch: UserBatch) -> FloatArray:
        """The moments X'Y (n, d, p): cheaper than `ridge`, and worse when m is near d."""
        seen = self(batch)
        Y = self.linear_targets(seen.Y)
        if self.intercept:
            return moments(centred(seen.X), centred(Y))
        return moments(seen.X, Y)


# -- the shared structure --------------------------------------------------------------------------


@dataclass(frozen=True)
class Count:
    """Several released estimates of the number of users, as one."""

    total: float = 0.0
    weight: float = 0.0

    def also(self, value: float, noise_scale: float) -> Count:
        """Add an estimate, weighted by the inverse of its variance."""
        weight = 1.0 / max(noise_scale, 1e-9) ** 2
        return Count(self.total + weight * value, self.weight + weight)

    @property
    def value(self) -> float:
        """At least 1 and at least the standard deviation of its own noise."""
        if self.weight == 0:
            return 1.0
        return float(max(1.0, self.total / self.weight, self.weight**-0.5))


@dataclass(frozen=True)
class Shared:
    """What has been learned so far; everything in it is public.

    Attributes
    ----------
    U : array of shape (d, k)
        Orthonormal, in whitened features.
    error : float
        Estimated squared sine between U and the users' subspace, per component.
    count : Count
        Released number of users.
    eigenvalues : array or None
        Of the released votes, in descending order.
    """

    U: FloatArray
    error: float
    count: Count
    eigenvalues: FloatArray | None = None


def floored_eigen(M: FloatArray, floor: float) -> tuple[FloatArray, FloatArray]:
    """Eigenvalues (not below a positive floor) and eigenvectors of a symmetric matrix."""
    values, vectors = np.linalg.eigh((M + M.T) / 2)
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


def learn_whitener(
    ask: AsksUsers, units: FloatArray, kind: bool | str, intercept: bool, share: float
) -> FloatArray | None:
    """Release the users' unit second moments (own means taken off) and return their whitener.

    `units` are public: what rows are divided by first.
    """
    d = len(units)
    if kind is False:
        return None

    def rows(batch: UserBatch) -> FloatArray:
        return (centred(batch.X) if intercept else batch.X) / units

    if kind is True:
        released = ask.grams("second_moment", rows, d, share=share)
        return np.asarray(whitener_of(released, False) / units[:, None])

    def squares(batch: UserBatch) -> FloatArray:
        X = rows(batch)
        return np.asarray((X * X).sum(axis=1))

    released = ask.sums("variances", squares, (((d,), 1.0, True),), share=share)
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


def vote_start(
    ask: AsksUsers, view: View, d: int, k: int | str, local: str, share: float
) -> Shared:
    """Each user votes with its own direction u: the sum of u u' shows the subspace."""
    fit = view.ridge if local == "ridge" else view.moment
    released = ask.grams("votes", lambda batch: transposed(fit(batch)), d, share=share)
    return _spectral(released, k, counts=True)


def pair_start(ask: AsksUsers, view: View, d: int, k: int, share: float) -> Shared:
    """The paper's start: pairs of rows, x x' y y' with unit rows, averaged over a user's pairs.

    A symmetric pair is [(a + b)(a + b)' - (a - b)(a - b)'] / 4: signed factors.
    """

    def factors(batch: UserBatch) -> FloatArray:
        seen = view(batch)
        Y = view.linear_targets(seen.Y)
        pairs = Y.shape[1] // 2
        lengths = np.sqrt((seen.X * seen.X).sum(axis=2, keepdims=True))
        X = seen.X / np.where(lengths > 0, lengths, np.inf)
        a, b = X[:, 0 : 2 * pairs : 2], X[:, 1 : 2 * pairs : 2]
        product = (Y[:, 0 : 2 * pairs : 2] * Y[:, 1 : 2 * pairs : 2]).sum(axis=2, keepdims=True)
        size, sign = np.sqrt(np.abs(product)), np.where(product < 0, -1.0, 1.0)
        return np.concatenate([size * (a + sign * b), size * (a - sign * b)], axis=1)

    return _spectral(ask.grams("pairs", factors, d, True, share=share), k, counts=False)


def _spectral(released: Answer, k: int | str, *, counts: bool) -> Shared:
    values, vectors = top_eigenpairs(released.value)
    d, noise = len(values), released.noise_scale
    count = Count()
    if counts:
        count = count.also(float(values.sum()), noise * math.sqrt(d))
    if isinstance(k, str):
        k = count_components(values, noise, count.value)
    error = _error_of_votes(values, k, noise, count.value) if counts else 0.5
    return Shared(vectors[:, :k], error, count, values)


def random_start(signs: FloatArray) -> Shared:
    """A random public subspace, from independent signs of shape (d, k)."""
    d, k = signs.shape
    return Shared(orthonormal(signs), (d - k) / d, Count())
