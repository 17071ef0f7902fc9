"""What users share, and how a public model sees the rows of one user.

Notation: user j has m rows X_j (m x d) and targets Y_j (m x p), d features, p outputs, k
components. The whitener W (d x d) and the subspace U (d x k, orthonormal, in whitened features) are
public; user j's coefficients are about W U V_j. Each step asks for a message: a public function of
one user's rows, which `ask` bounds before it releases the noisy sum. A message is made of public
numbers alone, so that it can be sent to devices.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from skdp.answer import Answer
from skdp.solvers.global_models import GlobalModel
from skdp.solvers.local_fits import (
    Basis,
    RidgePath,
    centred,
    moments,
    own_scale,
    own_spread,
)
from skdp.solvers.local_losses import LOSSES, ConvexLoss, CountLoss, RowLoss, convex_loss
from skdp.solvers.user_batches import ChangedUsers, TakenUsers, UserBatch

FloatArray = NDArray[np.float64]
_TINY = 1e-100
PENALTIES: FloatArray = 10.0 ** np.linspace(-4, 1.5, 8)


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


# -- what users send -------------------------------------------------------------------------------


class GramMessage(ABC):
    """Factors F (users, p, width) of a batch; the unit matrix of F'JF is what a user adds."""

    name: ClassVar[str]
    signed: ClassVar[bool] = False

    @property
    @abstractmethod
    def width(self) -> int:
        """Order of the matrix."""

    @abstractmethod
    def __call__(self, batch: Any) -> FloatArray:
        """Return the factors."""

    def asked(self, users: Any, **share: float) -> Any:
        """Ask users (or an `ask` about them) for the sum."""
        return users.grams(self.name, self, self.width, self.signed, **share)


class SumMessage(ABC):
    """An array of a batch, made of parts that are clipped to their levels."""

    name: ClassVar[str]

    @property
    @abstractmethod
    def parts(self) -> tuple[tuple[Any, ...], ...]:
        """Shape, level and sign of each part; see `skdp.queries.users.Part`."""

    @abstractmethod
    def __call__(self, batch: Any) -> FloatArray:
        """Return the array, one row for each user."""

    def asked(self, users: Any, **share: float) -> Any:
        """Ask users (or an `ask` about them) for the sum."""
        return users.sums(self.name, self, self.parts, **share)


class NumberMessage(ABC):
    """One number for each user, which is only ever compared with public thresholds."""

    name: ClassVar[str]

    @abstractmethod
    def __call__(self, batch: Any) -> FloatArray:
        """Return the numbers."""

    def asked(self, users: Any) -> Any:
        """Return what ranks thresholds among the numbers."""
        return users.numbers(self.name, self)


# -- what a user sees of its own rows --------------------------------------------------------------


@dataclass(frozen=True)
class View:
    """How users look at their rows: public whitener, own scale, the loss.

    Attributes
    ----------
    whitener : array of shape (d, d) or (d,), or None
        Public.
    intercept : bool
        Whether users have their own intercept.
    loss_name : str, RowLoss or CountLoss
        A key of `LOSSES`, or a loss of residuals or of counts.
    base : GlobalModel or None
        What users subtract from their targets first: they then learn how they differ from it.
    bounds : array of shape (2, d) or None
        Lowest and highest entry of each column: users cut their rows to them.
    center : array of shape (d,) or None
        Where users see their rows from: about where columns lie that are far from 0.
    """

    whitener: FloatArray | None
    intercept: bool
    loss_name: str | RowLoss | CountLoss
    base: GlobalModel | None = None
    bounds: FloatArray | None = None
    center: FloatArray | None = None

    @property
    def public(self) -> tuple[FloatArray | None, ...]:
        """Its arrays: whitener, the model's coefficients and intercepts, bounds and centre."""
        base = (None, None) if self.base is None else (self.base.coef, self.base.intercept)
        return (self.whitener, *base, self.bounds, self.center)

    def within(self, batch: UserBatch) -> UserBatch:
        """Return the batch with entries cut to the bounds."""
        bounds = self.bounds
        return batch if bounds is None else ChangedUsers.within(batch, bounds, self._cut)

    def about(self, batch: UserBatch) -> UserBatch:
        """Return a batch that was cut as it is seen from the centre."""
        return batch if self.center is None else ChangedUsers.about(batch, self.center, self._moved)

    @cached_property
    def _moved(self) -> Hashable:
        return _digest(self.center)

    @cached_property
    def _cut(self) -> Hashable:
        return _digest(self.bounds)

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

    def whitened_moments(self, A: FloatArray) -> FloatArray:
        """Return moments (n, d, p) of whitened rows from those of raw ones."""
        if self.whitener is None:
            return A
        if self.whitener.ndim == 1:
            return A * self.whitener[:, None]
        return np.asarray(np.matmul(self.whitener.T, A))

    def coefficients(self, theta: FloatArray) -> FloatArray:
        """Return coefficients (..., d, p) of raw rows from those of whitened ones."""
        if self.whitener is None:
            return theta
        if self.whitener.ndim == 1:
            return theta * self.whitener[:, None]
        return np.asarray(np.matmul(self.whitener, theta))

    @cached_property
    def of_rows(self) -> tuple[Hashable, ...]:
        """What a user's rows are seen by, as a key."""
        return self.intercept, _digest(self.whitener)

    def __call__(self, batch: UserBatch) -> Seen:
        """Cut, move and whiten a batch and bring each user to mean square 1."""
        batch = self.within(batch)
        return Seen(self, self.about(batch), self.beside(batch))

    def beside(self, batch: UserBatch) -> FloatArray:
        """Return what the user, whose rows were cut, fits beside the model of all."""
        if self.base is None:
            return batch.Y
        base, beside = self.base, self.loss.beside
        if beside is not None:
            return beside(batch.Y, base.predictions(batch))
        key = ("targets", _digest(base.coef), _digest(base.intercept))
        return batch.keep(key, lambda: (batch.Y - base.predictions(batch),))[0]

    def tells(self, batch: UserBatch) -> NDArray[np.bool_]:
        """Whether a user's rows tell of a direction: exact, whatever the order of the rows.

        Beside an intercept equal rows or equal targets say nothing, and the direction of what a
        float fit finds in them is that of its rounding.
        """
        if not self.intercept or batch.Y.shape[1] < 2:
            return np.ones(len(batch.Y), bool)

        def made() -> tuple[NDArray[np.bool_]]:
            return (_moving(self.within(batch).X) & _moving(batch.Y),)

        return batch.keep(("moves", self._cut), made)[0]

    def linear_targets(self, Y: FloatArray) -> FloatArray:
        """Targets for a least-squares fit: labels become centred indicators, counts changes."""
        if self.loss.beside is not None:
            return Y - 1.0
        if self.loss_name == "logistic":
            return Y - 0.5
        return Y - 1.0 / Y.shape[2] if self.loss_name == "softmax" else Y

    def ridge(self, batch: UserBatch) -> FloatArray:
        """Coefficients (n, d, p) by least squares, with each user's best leave-one-out penalty."""
        batch = self.within(batch)
        seen = self(batch)
        path, Y = seen.path, self.linear_targets(seen.Y)
        offset, loss = np.zeros_like(Y), LOSSES["squared"]
        errors = path.grid_errors(Y, PENALTIES, np.array([self.variance]))
        best = PENALTIES[np.argmin(errors[:, :, 0].sum(axis=2), axis=1)]
        found = seen.moments(path.fit(Y, offset, loss, best, self.variance).dual)
        return np.where(self.tells(batch)[:, None, None], found, 0.0)

    def moment(self, batch: UserBatch) -> FloatArray:
        """The moments X'Y (n, d, p): cheaper than `ridge`, and worse when m is near d."""
        seen = self(batch)
        Y = self.linear_targets(seen.Y)
        if self.intercept:
            return moments(centred(seen.X), centred(Y))
        return moments(seen.X, Y)


class Seen:
    """Rows of a batch in public coordinates, and targets in the user's own scale.

    Rows are whitened when all of their coordinates are looked at, and not before.

    Parameters
    ----------
    view : View
        How users look at their rows.
    batch : UserBatch
        The users.
    Y : array of shape (n, m, p)
        What users fit.
    scale : array of shape (n,) or None
        What whitened rows are divided by; None: the root mean square of each user.
    """

    def __init__(
        self, view: View, batch: UserBatch, Y: FloatArray, scale: FloatArray | None = None
    ) -> None:
        self._view, self._batch, self.Y = view, batch, Y
        self._whitened: FloatArray | None = None
        if scale is None:
            scale = batch.keep(("scale", *view.of_rows), self._measured)[0]
        self.scale = scale

    def take(self, users: NDArray[np.intp]) -> Seen:
        """Return some of the users."""
        batch = TakenUsers.of(self._batch, users)
        return Seen(self._view, batch, self.Y[users], self.scale[users])

    def _measured(self) -> tuple[FloatArray]:
        """Return the root mean square of whitened rows, own means taken off."""
        self._whitened = self._view.whitened(self._batch.X)
        return ((own_spread if self._view.intercept else own_scale)(self._whitened),)

    @cached_property
    def X(self) -> FloatArray:
        """The rows, (n, m, d)."""
        X, self._whitened = self._whitened, None
        if X is None:
            X = self._view.whitened(self._batch.X)
        return X / self.scale[:, None, None]

    def times(self, B: FloatArray) -> FloatArray:
        """Return the rows times a public matrix of few columns."""
        rows = np.matmul(self._batch.X, self._view.coefficients(B))
        return np.asarray(rows / self.scale[:, None, None])

    def moments(self, R: FloatArray) -> FloatArray:
        """Return X'R of each user, for few columns."""
        found = self._view.whitened_moments(moments(self._batch.X, R))
        return np.asarray(found / self.scale[:, None, None])

    def undone(self, V: FloatArray, intercept: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return coefficients (n, ..., p) and intercepts (n, p) without the user's own scale.

        The intercept stays that at the centre.
        """
        batch = self._batch
        V = V / self.scale[:, None, None]
        V = np.ldexp(V, (batch.y_exponent - batch.x_exponent)[:, None, None])
        return V, np.ldexp(intercept, batch.y_exponent[:, None])

    @cached_property
    def path(self) -> RidgePath:
        """Ridge fits to all coordinates; their decomposition is made once for a view.

        It is rounded to 24 bits, kept or not: twice as many users find room, and of penalties from
        1e-4 of the mean square of rows on that changes little.
        """

        def made() -> tuple[NDArray[Any], ...]:
            path = RidgePath.of(self.X)
            relative = path.s / path.size[:, None]  # far from the largest float32
            return path.size, path.basis.P.astype(np.float32), relative.astype(np.float32)

        size, P, s = self._batch.keep(("path", *self._view.of_rows), made, large=True)
        return RidgePath(size, Basis(P.astype(np.float64)), s.astype(np.float64) * size[:, None])


def _moving(A: FloatArray) -> NDArray[np.bool_]:
    """Return whose rows are not all alike: nearly always the first two show it."""
    out = np.asarray((A[:, 0] != A[:, 1]).any(axis=1))
    rest = np.flatnonzero(~out)
    out[rest] = (A[rest, :1] != A[rest]).any(axis=(1, 2))
    return out


def _digest(array: FloatArray | None) -> Hashable:
    if array is None:
        return None
    return array.shape, blake2b(array.tobytes(), digest_size=16).digest()


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
