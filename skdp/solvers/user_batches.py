"""What the solvers of personal models ask of a batch of users; see `skdp.data.users.Batch`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from skdp.solvers.local_fits import times_powers

FloatArray = NDArray[np.float64]
_LARGEST = float(np.finfo(np.float64).max)


class UserBatch(Protocol):
    """Users with equally many rows; see `skdp.data.users.Batch`."""

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

    def keep(
        self, key: Hashable, make: Callable[[], tuple[NDArray[Any], ...]], *, large: bool = False
    ) -> tuple[NDArray[Any], ...]:
        """Return what `make` returned for these users under a public key, or call it."""
        ...

    def own_rows(self) -> FloatArray:
        """Return the rows in an array that may be written to."""
        ...


class TakenUsers(NamedTuple):
    """Some users of a batch."""

    X: FloatArray
    Y: FloatArray
    x_exponent: NDArray[np.intc]
    y_exponent: NDArray[np.intc]

    @classmethod
    def of(cls, batch: UserBatch, users: NDArray[np.intp]) -> TakenUsers:
        """Take them."""
        exponents = batch.x_exponent[users], batch.y_exponent[users]
        return cls(batch.X[users], batch.Y[users], *exponents)

    @classmethod
    def together(cls, batches: Sequence[UserBatch]) -> TakenUsers:
        """Return the users of some batches as one: what is computed for each is the same."""
        parts = zip(*[(b.X, b.Y, b.x_exponent, b.y_exponent) for b in batches], strict=True)
        return cls(*map(np.concatenate, parts))

    def keep(
        self, key: Hashable, make: Callable[[], tuple[NDArray[Any], ...]], *, large: bool = False
    ) -> tuple[NDArray[Any], ...]:
        """Keep nothing."""
        return make()

    def own_rows(self) -> FloatArray:
        """Return a copy of the rows."""
        return self.X.copy()


def _beyond(X: FloatArray, exponents: NDArray[np.intc], bounds: FloatArray) -> NDArray[np.bool_]:
    low, high = (times_powers(A, exponents) for A in (X.min(1), X.max(1)))
    return np.asarray(((low < bounds[0]) | (high > bounds[1])).any(axis=1))


def beyond(batch: UserBatch, bounds: FloatArray) -> NDArray[np.intp]:
    """Return which users have an entry beyond the bounds (2, d) of its column.

    Who has none beyond the bounds that were asked about first is not looked at for wider ones.
    """

    def made() -> tuple[NDArray[Any], ...]:
        return bounds, np.flatnonzero(_beyond(batch.X, batch.x_exponent, bounds))

    first, users = batch.keep(("beyond",), made)
    if first is bounds:
        return users
    if not ((first[0] >= bounds[0]) & (first[1] <= bounds[1])).all():
        return np.flatnonzero(_beyond(batch.X, batch.x_exponent, bounds))
    return users[_beyond(batch.X[users], batch.x_exponent[users], bounds)]


def _own_exponents(flat: FloatArray) -> NDArray[np.intc]:
    """Return the power of two above the largest entry of each user; 0 of zeros."""
    largest = np.maximum(flat.max(axis=1, initial=0.0), -flat.min(axis=1, initial=0.0))
    return np.where(largest > 0, np.frexp(largest)[1], 0).astype(np.intc)


def _cut(batch: UserBatch, bounds: FloatArray) -> tuple[NDArray[Any], ...]:
    """Return users with far entries, their new powers of two, and where entries change to what."""
    some = beyond(batch, bounds)
    (_, m, d), rows = batch.X.shape, times_powers(batch.X[some], batch.x_exponent[some])
    flat = rows.reshape(len(rows), m * d)
    changed = np.flatnonzero((rows < bounds[0]) | (rows > bounds[1]))
    column, (user, place) = changed % d, np.divmod(changed, m * d)
    values = np.clip(flat[user, place], bounds[0, column], bounds[1, column])
    flat[user, place] = values
    exponents = _own_exponents(flat)
    values = times_powers(values, -exponents[user])
    return some, exponents, some[user] * (m * d) + place, values


class ChangedUsers(NamedTuple):
    """A batch whose rows are seen otherwise, by a public change that `name` names."""

    X: FloatArray
    Y: FloatArray
    x_exponent: NDArray[np.intc]
    y_exponent: NDArray[np.intc]
    whole: UserBatch
    name: Hashable

    @classmethod
    def about(cls, batch: UserBatch, center: FloatArray, digest: Hashable) -> ChangedUsers:
        """Return the users of a batch about a public centre, of this digest.

        A column that lies a thousand of its scales from 0 hides what all others say.
        """
        name = ("about", digest)

        def made() -> tuple[NDArray[Any], ...]:
            rows = times_powers(batch.X, batch.x_exponent) - center
            np.clip(rows, -_LARGEST, _LARGEST, out=rows)  # at 1e308 on both sides of 0
            exponents = _own_exponents(rows.reshape(len(rows), -1))
            return times_powers(rows, -exponents, out=rows), exponents

        X, exponents = batch.keep(name, made, large=True)
        return cls(X, batch.Y, exponents, batch.y_exponent, batch, name)

    @classmethod
    def within(cls, batch: UserBatch, bounds: FloatArray, digest: Hashable) -> UserBatch:
        """Return the users with entries cut to public bounds (2, d) of the columns, of this digest.

        They are cut before their own power of two. Of users who have nothing beyond the bounds all
        bits are as they were.
        """
        name = ("within", digest)
        if isinstance(batch, cls) and batch.name == name:
            return batch
        some, own, places, values = batch.keep(name, lambda: _cut(batch, bounds))
        if not some.size:
            return batch
        X, exponents = batch.own_rows(), batch.x_exponent.copy()
        moved = np.flatnonzero(own != exponents[some])
        X[some[moved]] = times_powers(X[some[moved]], (exponents[some] - own)[moved])
        X.reshape(-1)[places] = values
        exponents[some] = own
        return cls(X, batch.Y, exponents, batch.y_exponent, batch, name)

    def keep(
        self, key: Hashable, make: Callable[[], tuple[NDArray[Any], ...]], *, large: bool = False
    ) -> tuple[NDArray[Any], ...]:
        """Keep it beside what belongs to the rows as they are."""
        return self.whole.keep((self.name, key), make, large=large)

    def own_rows(self) -> FloatArray:
        """Return a copy of the rows."""
        return self.X.copy()
