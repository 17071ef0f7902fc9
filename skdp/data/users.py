"""Private rows by user, handed out in batches of users with equally many rows.

Which batch a user is in, and beside whom, never changes what is computed for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp.data.block_rows import finite_rows
from skdp.data.blocks import RemoteRows, RowSource
from skdp.data.groups import GroupedRows, check_apart
from skdp.data.places import Placed

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
_ODD = np.uint64(0x9E3779B97F4A7C15)  # spreads the bits of entries that differ little


class Batch(NamedTuple):
    """Users with equally many rows, each with its own power of two taken off.

    Attributes
    ----------
    X : array of shape (users, rows, features)
        Finite, entries at most 1: the true rows are ``X * 2**x_exponent``.
    Y : array of shape (users, rows, outputs)
        Likewise, with `y_exponent` (0 if the target has no free scale).
    x_exponent, y_exponent : int arrays of shape (users,)
        The powers of two.
    good : bool array of shape (users,)
        Whether all that a user brought is finite; zeros stand for what others brought.
    """

    X: FloatArray
    Y: FloatArray
    x_exponent: NDArray[np.intc]
    y_exponent: NDArray[np.intc]
    good: NDArray[np.bool_]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the rows: users first."""
        return self.X.shape


def _scaled(values: FloatArray, scale: bool) -> tuple[FloatArray, NDArray[np.intc]]:
    """Take a power of two off each user, so that its largest entry lies in [1/2, 1)."""
    largest = np.abs(values).max(axis=(1, 2), initial=0.0)
    exponents = np.where(scale & (largest > 0), np.frexp(largest)[1], 0).astype(np.intc)
    if np.all(np.abs(exponents) < 1022):  # a product with a normal power is rounded as by ldexp
        return values * np.ldexp(1.0, -exponents)[:, None, None], exponents
    return np.ldexp(values, -exponents[:, None, None]), exponents


def _hashes(rows: FloatArray, first: int) -> NDArray[np.uint64]:
    """Return a public hash of each row: its bits, folded, times odd numbers that spread them."""
    bits = np.ascontiguousarray(rows).view(np.uint64)
    steps = np.arange(first, first + rows.shape[2], dtype=np.uint64)
    return np.asarray((bits ^ (bits >> np.uint64(32))) @ (steps * _ODD | np.uint64(1)))


def _in_own_order(X: FloatArray, Y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return each user's rows in an order that depends on what they are, not on how they came.

    Float sums then have the same bits for every order in which rows came. The order is that of a
    public hash: sorted by value, rows that are alike would become pairs.
    """
    if X.shape[1] < 2:
        return X, Y
    keys = _hashes(X, 1) + _hashes(Y, 1 + X.shape[2])
    order = np.argsort(keys, axis=1, kind="stable")
    first = np.arange(len(X))[:, None]
    return X[first, order], Y[first, order]


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

    def _bytes_of_row(self) -> int:
        return 8 * (self.n_features + self.n_outputs)

    def labelled_blocks(self) -> Iterator[tuple[IntArray, Batch]]:
        """Yield (numbers of the users, batch)."""
        for users in self._batches():
            yield users, self._batch(users)

    def _batch(self, users: IntArray) -> Batch:
        m, block, columns = self._gathered(users)
        if sp.issparse(block):
            block = block.toarray()  # duplicates are summed
        X = np.asarray(block, np.float64).reshape(users.size, m, self.n_features)
        Y = np.asarray(columns["Y"], np.float64).reshape(users.size, m, self.n_outputs)
        good = finite_rows(X.reshape(len(X), -1)) & finite_rows(Y.reshape(len(Y), -1))
        if not good.all():
            X = np.where(good[:, None, None], X, 0.0)
            Y = np.where(good[:, None, None], Y, 0.0)
        X, Y = _in_own_order(X, Y)
        X, x_exponent = _scaled(X, True)
        Y, y_exponent = _scaled(Y, self._scale_targets)
        return Batch(X, Y, x_exponent, y_exponent, good)


def one_row_each(batches: Iterable[Batch]) -> Iterator[FloatArray]:
    """Yield one row of each user, the first in the user's own order, in the units of the data.

    That of a bad user is a bad row.
    """
    for batch in batches:
        rows = np.ldexp(batch.X[:, 0], batch.x_exponent[:, None])
        yield np.where(batch.good[:, None], rows, np.nan)


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
