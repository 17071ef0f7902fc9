"""Private rows by user, handed out in batches of users with equally many rows.

Which batch a user is in, and beside whom, never changes what is computed for it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp.data.block_rows import finite_rows
from skdp.data.blocks import RemoteRows, RowSource
from skdp.data.groups import GroupedRows, check_apart
from skdp.data.memory import Arrays, Memory
from skdp.data.places import Placed

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
_ODD = np.uint64(0x9E3779B97F4A7C15)  # spreads the bits of entries that differ little


class _Units(NamedTuple):
    """The power of two of each user's rows and targets, and whether all of it is finite."""

    x_exponent: NDArray[np.intc]
    y_exponent: NDArray[np.intc]
    good: NDArray[np.bool_]


class Batch:
    """Users with equally many rows, each with its own power of two taken off.

    Rows are gathered when they are looked at: some messages are about targets alone.

    Parameters
    ----------
    source : UserRows
        All users.
    users : int array
        Which of them.

    Attributes
    ----------
    x_exponent, y_exponent : int arrays of shape (users,)
        The powers of two (0 for targets without a free scale).
    good : bool array of shape (users,)
        Whether all that a user brought is finite; zeros stand for what others brought.
    shape : tuple of int
        Shape of the rows: users first.
    """

    def __init__(self, source: UserRows, users: IntArray) -> None:
        self._source, self._users = source, users
        self.x_exponent, self.y_exponent, self.good = source._units(users)
        self.shape = (users.size, int(source._sort().sizes[users[0]]), source.n_features)

    @cached_property
    def _at(self) -> NDArray[np.intp]:
        """Where the rows of each user stand in its own order, (users, rows)."""
        return self._source._at(self._users)

    @cached_property
    def X(self) -> FloatArray:
        """Rows (users, rows, features), entries at most 1: the true ones are X * 2**x_exponent."""
        return _scaled(self._source._rows_of(self._at, self.good), self.x_exponent)

    @cached_property
    def Y(self) -> FloatArray:
        """Targets (users, rows, outputs), likewise with `y_exponent`."""
        return _scaled(self._source._targets_of(self._at, self.good), self.y_exponent)

    @property
    def first_rows(self) -> FloatArray:
        """The first row of each user in its own order, in the units of the data."""
        return self._source._rows_of(self._at[:, :1], self.good)[:, 0]

    def own_rows(self) -> FloatArray:
        """Return `X` in an array that may be written to: who looks at it again gathers it again."""
        X = self.X
        del self.X
        return X

    def keep(self, key: Hashable, make: Callable[[], Arrays], *, large: bool = False) -> Arrays:
        """Return what `make` returned for these users under a public key, or call it."""
        return self._source.memory((int(self._users[0]), key), make, large=large)


def _exponents(values: FloatArray) -> NDArray[np.intc]:
    """Return the power of two of each user, which brings its largest entry to [1/2, 1)."""
    flat = values.reshape(len(values), -1)
    largest = np.maximum(flat.max(axis=1, initial=0.0), -flat.min(axis=1, initial=0.0))
    return np.where(largest > 0, np.frexp(largest)[1], 0).astype(np.intc)


def _scaled(values: FloatArray, exponents: NDArray[np.intc]) -> FloatArray:
    """Take a power of two off each user, in place."""
    if np.all(np.abs(exponents) < 1022):  # a product with a normal power is rounded as by ldexp
        values *= np.ldexp(1.0, -exponents)[:, None, None]
        return values
    return np.ldexp(values, -exponents[:, None, None])


def _hashes(rows: FloatArray, first: int) -> NDArray[np.uint64]:
    """Return a public hash of each row: its bits, folded, times odd numbers that spread them."""
    bits = np.ascontiguousarray(rows).view(np.uint64)
    steps = np.arange(first, first + rows.shape[2], dtype=np.uint64)
    return np.asarray((bits ^ (bits >> np.uint64(32))) @ (steps * _ODD | np.uint64(1)))


def _own_order(X: FloatArray, Y: FloatArray) -> NDArray[np.intp]:
    """Return each user's rows in an order that depends on what they are, not on how they came.

    Float sums then have the same bits for every order in which rows came. The order is that of a
    public hash: sorted by value, rows that are alike would become pairs.
    """
    keys = _hashes(X, 1) + _hashes(Y, 1 + X.shape[2])
    return np.argsort(keys, axis=1, kind="stable")


class UserRows(GroupedRows):
    """Private rows and targets, handed out in batches of users (a `RowSource` of batches).

    Parameters
    ----------
    X : array or CSR matrix of shape (n_rows, n_features), or a source of one
        The private rows.
    Y : array of shape (n_rows, n_outputs)
        The private targets.
    codes : int array of shape (n_rows,)
        Number of the user of each row, 0, 1, 2, ...
    scale_targets : bool
        Whether the target has a free scale, which is then taken off each user.
    """

    def __init__(self, X: Any, Y: FloatArray, codes: NDArray[Any], scale_targets: bool) -> None:
        super().__init__(X, {"Y": Y}, codes)
        self._scale_targets = scale_targets
        self.n_outputs = int(Y.shape[1])
        self.memory = Memory()
        self._known: dict[int, _Units] = {}

    def _bytes_of_row(self) -> int:
        return 8 * (self.n_features + self.n_outputs)

    def labelled_blocks(self) -> Iterator[tuple[IntArray, Batch]]:
        """Yield (numbers of the users, batch)."""
        for users in self._batches():
            yield users, self._batch(users)

    def _batch(self, users: IntArray) -> Batch:
        return Batch(self, users)

    def _units(self, users: IntArray) -> _Units:
        """Return the units of users; the first time their rows are brought to their own order."""
        known = self._known.get(int(users[0]))
        if known is None:
            known = self._known[int(users[0])] = self._first_look(users)
        return known

    def _first_look(self, users: IntArray) -> _Units:
        everyone, at = np.ones(users.size, bool), self._at(users)
        X, Y = self._rows_of(at, everyone), self._targets_of(at, everyone)
        good = finite_rows(X.reshape(len(X), -1)) & finite_rows(Y.reshape(len(Y), -1))
        if not good.all():
            X, Y = (np.where(good[:, None, None], A, 0.0) for A in (X, Y))
        if X.shape[1] > 1:
            order = np.take_along_axis(at, _own_order(X, Y), axis=1)
            self._sort().rows[self._places_of(users)] = order
        none = np.zeros(users.size, np.intc)
        return _Units(_exponents(X), _exponents(Y) if self._scale_targets else none, good)

    def _at(self, users: IntArray) -> NDArray[np.intp]:
        """Return where the rows of users stand, (users, rows)."""
        return np.asarray(self._sort().rows[self._places_of(users)])

    def _rows_of(self, at: NDArray[np.intp], good: NDArray[np.bool_]) -> FloatArray:
        """Return rows of users, in an array of their own; zeros stand for bad users."""
        X, flat = self._X, at.ravel()  # an array takes in half of the time of an index
        block: Any = X.take(flat, axis=0) if isinstance(X, np.ndarray) else X[flat]
        if sp.issparse(block):
            block = block.toarray()  # duplicates are summed
        X = np.asarray(block, np.float64).reshape(*at.shape, self.n_features)
        return X if good.all() else np.where(good[:, None, None], X, 0.0)

    def _targets_of(self, at: NDArray[np.intp], good: NDArray[np.bool_]) -> FloatArray:
        taken = self._columns["Y"].take(at.ravel(), axis=0)
        Y = np.asarray(taken, np.float64).reshape(*at.shape, self.n_outputs)
        return Y if good.all() else np.where(good[:, None, None], Y, 0.0)


def one_row_each(batches: Iterable[Batch]) -> Iterator[FloatArray]:
    """Yield one row of each user, the first in the user's own order, in the units of the data.

    That of a bad user is a bad row.
    """
    for batch in batches:
        yield np.where(batch.good[:, None], batch.first_rows, np.nan)


@dataclass(frozen=True)
class UserForm:
    """How targets and labels are read; public, so that it can travel.

    Attributes
    ----------
    encode : callable
        From the targets of a block to float64 columns.
    check : callable
        From the labels of a block to labels of one kind (it raises for a missing one).
    scale_targets : bool
        As in `UserRows`.
    """

    encode: Callable[[Any], FloatArray]
    check: Callable[[Any], NDArray[Any]]
    scale_targets: bool

    def __call__(self, rows: RowSource, y: Any, groups: Any) -> UserRows:
        """Return the users of one place."""
        codes = np.unique(self.check(groups), return_inverse=True)[1]
        return UserRows(rows, self.encode(y), codes, self.scale_targets)


def users_of(placed: Placed, form: UserForm, n_outputs: int) -> AnyUsers:
    """Return users whose rows lie in files or on workers, read one place at a time.

    All rows of a user must lie in one place, else this raises: a user in two would send two
    contributions, each clipped alone, and count twice. No label comes to the driver.
    """
    check_apart(placed, form.check)
    users: Any = placed.joined(form, whole_files=True)
    users.n_outputs = n_outputs
    return cast(AnyUsers, users)


class RemoteUsers(RemoteRows, Protocol):
    """Users that live elsewhere, in parts of whole users."""

    n_outputs: int


class UsersInTurn(RowSource, Protocol):
    """Users of one place after the other."""

    n_outputs: int


AnyUsers = UserRows | UsersInTurn | RemoteUsers
