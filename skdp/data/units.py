"""Rows by unit: the rows of one group or user are adjacent, and units are handed out in batches.

The result for a unit never depends on its batch, or on the other units in the batch.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from itertools import pairwise
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp._limits import CACHED, FloatArray, IntArray
from skdp.data import blocks, stored_rows
from skdp.data.factorisations import exponents, times_powers
from skdp.data.integers import mixed_words
from skdp.data.views import Arrays, Columns, Groups, InTurn, Memory, means_of

# Rows with their columns (targets, labels), whether in memory, in files or on Dask workers.
#
# A partition is one such store. A public function builds a source from the rows and columns of one
# partition, and runs on the machine of the partition.


Build = Callable[..., blocks.RowSource]


def _built(
    rows: Any, *columns: Any, build: Build, names: tuple[str, ...], n_features: int
) -> blocks.RowSource:
    """Build the source of one partition from its blocks, on the machine that holds them."""
    source = stored_rows.rows_of_block(rows, n_features)
    if any(len(column) != source.n_rows() for column in columns):
        raise ValueError("a block and its columns differ in length")
    return build(source, **dict(zip(names, columns, strict=True)))


@dataclass(frozen=True)
class Placed:
    """Rows and columns of the same records, in memory, in files, or in blocks of Dask.

    Attributes
    ----------
    rows : DenseRows, SparseRows, BlockFiles or DaskRows
        The rows; their order is known.
    columns : dict
        What belongs to them, by name: arrays, or (next to DaskRows) Dask arrays in the same blocks.
    """

    rows: Any
    columns: Mapping[str, Any]

    def known_rows(self) -> float:
        """Return the number of records, NaN where it is not known before the rows are read."""
        known = getattr(self.rows, "known_rows", None)
        return float(self.rows.n_rows() if known is None else known)

    def joined(self, build: Build, *, whole_files: bool = False) -> blocks.AnyRows:
        """Return the source of ``build(rows, **columns)`` over all places.

        Files may be cut into ranges of rows unless they are to stay whole.
        """
        if isinstance(self.rows, stored_rows.DaskRows):
            parts = [list(part) for part in zip(*self._items(self.columns), strict=True)]
            items = [[rows, *part] for rows, part in zip(self.rows.items(), parts, strict=True)]
            d = self.rows.n_features
            built = partial(_built, build=build, names=tuple(self.columns), n_features=d)
            return stored_rows.DaskParts(items, built, d)
        if isinstance(self.rows, stored_rows.BlockFiles):
            files = self.rows.files() if whole_files else self.rows.chunks()
            opens = [
                partial(build, file, **{name: c[a:b] for name, c in self.columns.items()})
                for file, (a, b) in zip(files, _ranges(f.n_rows() for f in files), strict=True)
            ]
            return InTurn(opens, self.rows.n_features)
        return build(self.rows, **self.columns)

    def column(
        self, name: str, build: Callable[[Any], blocks.RowSource], width: int
    ) -> blocks.AnyRows:
        """Return the source of ``build(column)`` over all places, without the rows."""
        column = self.columns[name]
        if not isinstance(self.rows, stored_rows.DaskRows):
            return build(column)
        (items,) = self._items({name: column})
        return stored_rows.DaskParts([[item] for item in items], build, width)

    def reduced(
        self,
        name: str,
        work: Callable[[Any], Any],
        combine: Callable[[Any, Any], Any],
        finish: Callable[[Any], Any],
    ) -> Any:
        """Combine ``work(column)`` of all places; workers send back ``finish`` of the result."""
        column = self.columns[name]
        if isinstance(self.rows, stored_rows.DaskRows):
            there: Any = self.column(name, stored_rows.same, 0)
            return there.reduce(work, combine, finish)
        files = self.rows.files() if isinstance(self.rows, stored_rows.BlockFiles) else [self.rows]
        ranges = _ranges(file.n_rows() for file in files)
        return finish(reduce(combine, [work(column[a:b]) for a, b in ranges]))

    def _items(self, columns: Mapping[str, Any]) -> list[list[Any]]:
        """Return the blocks of each column; those in memory are cut as the rows are."""
        out = []
        for name, column in columns.items():
            lazy = blocks.is_dask_array(column)
            items = stored_rows.lazy_blocks(column) if lazy else _slices(column, self.rows.lengths)
            if len(items) != len(self.rows.items()):
                raise ValueError(
                    f"X and {name} need the same blocks: rechunk {name} to the rows of X. Their "
                    "numbers of blocks are not shown: they may reveal the number of rows."
                )
            out.append(items)
        return out


def in_memory(rows: Any, **columns: Any) -> Placed:
    """Return the records of an array or CSR matrix, with their columns."""
    return Placed(blocks.row_source(rows), columns)


def _ranges(lengths: Iterable[float]) -> list[tuple[int, int]]:
    """Return which rows of all each of some parts has."""
    return list(pairwise(np.cumsum([0, *lengths]).astype(int).tolist()))


def _slices(column: Any, lengths: tuple[float, ...]) -> list[Any]:
    """Cut a column in memory; each slice travels, sealed, with its task."""
    return [stored_rows.Sealed(column[a:b]) for a, b in _ranges(lengths)]


# Private rows by group, handed out in batches of groups with equally many rows.
#
# The result for a group never depends on the other groups in its batch.


class _Sorted(NamedTuple):
    """Rows in the order of their groups: group i has ``rows[ends[i] - sizes[i]:ends[i]]``."""

    rows: NDArray[np.intp]
    sizes: IntArray
    ends: IntArray


class GroupRows:
    """Private rows by group: a `RowSource` of batches `Groups`, whose rows are groups.

    Parameters
    ----------
    X : array or CSR matrix of shape (n_rows, n_features), or a source of one
        The private rows.
    columns : mapping of arrays
        What belongs to the rows, by name.
    codes : int array of shape (n_rows,)
        Number of the group of each row, 0, 1, 2, ...
    """

    sparse = False  # whatever the rows are: centred ones are not

    def __init__(self, X: Any, columns: Columns, codes: NDArray[Any]) -> None:
        self._source: Any = blocks.row_source(X)
        self.dtype = getattr(self._source, "dtype", np.dtype(np.float64))
        self._columns, self._codes = columns, codes
        self._sorted: _Sorted | None = None
        self._chosen: list[IntArray] | None = None
        self.n_features: int = self._source.n_features

    @cached_property
    def _X(self) -> Any:
        X = self._source.whole()  # of a file: read when a batch is asked for
        # Rows of other arrays, as of a frame, lie apart, and `take` copies all of them each time.
        return np.ascontiguousarray(X) if type(X) is np.ndarray else X

    def _sort(self) -> _Sorted:
        """Sort rows by group; done once, inside the gate, and shared by all parts."""
        codes = self._codes  # read first: another thread deletes them after it has sorted the rows
        if self._sorted is None:
            sizes = np.bincount(codes)
            rows = np.argsort(codes, kind="stable")
            self._sorted = _Sorted(rows, sizes, np.cumsum(sizes))
            self._codes = np.zeros(0, np.intp)  # not needed again
        return self._sorted

    def _batches(self) -> list[IntArray]:
        """Groups in batches of equal size; the batch of a group never changes a result."""
        if self._chosen is None:
            sizes = self._sort().sizes
            by_size = np.argsort(sizes, kind="stable")
            edges = np.flatnonzero(np.diff(sizes[by_size])) + 1
            numbers = sum(math.prod(column.shape[1:]) for column in self._columns.values())
            width = self.n_features + numbers
            self._chosen = []
            for groups in np.split(by_size, edges):
                if groups.size == 0 or sizes[groups[0]] == 0:
                    continue
                n = int(
                    np.clip(2 * CACHED // (int(sizes[groups[0]]) * width), 1, blocks.BLOCK_ROWS)
                )
                self._chosen += [groups[i : i + n] for i in range(0, groups.size, n)]
        return self._chosen

    def n_rows(self) -> int:
        """Return the private number of groups."""
        return sum(groups.size for groups in self._batches())

    def parts(self, n: int) -> list[blocks.RowSource]:
        """Cut into `n` sources of the same groups."""
        batches, out, _ = self._batches(), [], self._X  # which the parts share
        for i in range(n):
            part = copy.copy(self)
            part._chosen = batches[i::n]
            out.append(part)
        return list(out)

    def blocks(self) -> Iterator[Any]:
        """Yield the batches."""
        for groups in self._batches():
            yield self._batch(groups)

    def _batch(self, groups: IntArray) -> Any:
        """Return some groups with equally many rows, as one block."""
        places = self._places_of(groups)
        rows = self._sort().rows[places.ravel()]
        columns = {name: column[rows] for name, column in self._columns.items()}
        return Groups(blocks.plain_block(self._X[rows]), places.shape[1], columns)

    def _places_of(self, groups: IntArray) -> IntArray:
        """Return the positions, among the sorted rows, of the rows of groups of equal size."""
        order = self._sort()
        m = int(order.sizes[groups[0]])
        return np.asarray((order.ends[groups] - m)[:, None] + np.arange(m))


@dataclass(frozen=True)
class GroupForm:
    """How labels and columns of groups are read; it is public, and may be sent to workers.

    Attributes
    ----------
    check : callable
        From the labels of a block to labels of one kind (it raises for a missing one).
    encode : callable or None
        From targets to float64 columns, each row from its target alone.
    scale_targets : bool or None
        As in `UserRows`; None: groups, whose targets stay as they are.
    """

    check: Callable[[Any], NDArray[Any]]
    encode: Callable[[Any], FloatArray] | None = None
    scale_targets: bool | None = None

    def __call__(self, rows: blocks.RowSource, groups: Any, y: Any = None) -> GroupRows:
        """Return the groups of one place."""
        codes = np.unique(self.check(groups), return_inverse=True)[1]
        columns = {} if self.encode is None else {"y": self.encode(y)}
        if self.scale_targets is None:
            return GroupRows(rows, columns, codes)
        return UserRows(rows, columns["y"], codes, self.scale_targets)


def groups_of(placed: Placed, form: GroupForm) -> blocks.AnyRows:
    """Return the groups of rows, wherever they are, with the column `groups` next to them.

    All rows of a group must lie in one place, else this raises: a group in two would send two
    contributions, each clipped alone, and count twice. No label comes to the driver.
    """
    labels = partial(_labels_of, check=form.check)
    if not placed.reduced("groups", labels, _merged, attrgetter("apart")):
        raise ValueError(_SPREAD)
    return placed.joined(form, whole_files=True)


_SPREAD = (
    "The rows of a group lie in more than one block, where they would count as two. Sort the "
    "rows by group and cut the blocks between groups."
)


class _Labels(NamedTuple):
    """The groups of some blocks, sorted, and whether no two of these blocks share one."""

    labels: NDArray[Any]
    apart: bool


def _labels_of(labels: Any, check: Callable[[Any], NDArray[Any]]) -> _Labels:
    return _Labels(np.unique(check(labels)), True)


def _merged(a: _Labels, b: _Labels) -> _Labels:
    """Merge two sets of labels, and note whether they share one.

    Labels of different types may become equal when they are cast to one type. Then valid data are
    refused, which is safe. So is text next to numbers: as text, 5 and 5.0 would differ.
    """
    labels = np.unique(np.concatenate([a.labels, b.labels]))
    apart = a.apart and b.apart and len(labels) == len(a.labels) + len(b.labels)
    forms = {part.dtype.kind in "SU" for part in (a.labels, b.labels) if part.size}
    return _Labels(labels, apart and len(forms) < 2)


# Private rows by user, handed out in batches of users with equally many rows.
#
# The result for a user never depends on the other users in its batch.


class _Units(NamedTuple):
    """The power of two of each user's rows and targets, and whether all of it is finite."""

    x_exponent: NDArray[np.intc]
    y_exponent: NDArray[np.intc]
    good: NDArray[np.bool_]


class Batch:
    """Users with equally many rows; the data of each are divided by a power of two of their own.

    Rows are read when `X` is first used: some contributions need the targets alone.

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
        Whether all rows and targets of a user are finite; zeros replace those of a bad user.
    shape : tuple of int
        Shape of the rows: users first.
    """

    def __init__(self, source: UserRows, users: IntArray) -> None:
        self._source, self.users, self._keeps = source, users, True
        self.x_exponent, self.y_exponent, self.good = source._units(users)
        self.shape = (users.size, int(source._sort().sizes[users[0]]), source.n_features)

    @cached_property
    def _at(self) -> NDArray[np.intp]:
        """Positions of the rows of each user, in the user's own order: (users, rows)."""
        return self._source._at(self.users)

    @cached_property
    def X(self) -> FloatArray:
        """Rows (users, rows, features), entries at most 1: the true ones are X * 2**x_exponent."""
        return times_powers(self.true_rows, -self.x_exponent)

    @cached_property
    def Y(self) -> FloatArray:
        """Targets (users, rows, outputs), likewise with `y_exponent`."""
        Y = self._source._targets_of(self._at, self.good)
        return times_powers(Y, -self.y_exponent, out=Y)

    @property
    def true_rows(self) -> FloatArray:
        """Rows in the units of the data, in an array of their own."""
        return self._source._rows_of(self._at, self.good)

    def alone(self, i: int) -> Batch:
        """Return a batch of user `i` alone, which caches nothing."""
        one, mine = copy.copy(self), slice(i, i + 1)
        for name in ("_at", "X", "Y"):
            one.__dict__.pop(name, None)
        one.users, one._keeps = self.users[mine], False
        one.x_exponent, one.y_exponent = self.x_exponent[mine], self.y_exponent[mine]
        one.good, one.shape = self.good[mine], (1, *self.shape[1:])
        return one

    def keep(self, key: Hashable, make: Callable[[], Arrays], *, large: bool = False) -> Arrays:
        """Return the arrays cached for these users under a public key, or call `make`."""
        if not self._keeps:
            return make()
        return self._source.memory((int(self.users[0]), key), make, large=large)


def _hashes(rows: FloatArray, first: int) -> NDArray[np.uint64]:
    """Return a public hash of each row: its bits, folded, times pseudo-random odd numbers."""
    bits = np.ascontiguousarray(rows + 0.0).view(np.uint64)  # -0 is 0
    words = mixed_words(np.arange(first, first + rows.shape[2], dtype=np.uint64))
    return np.asarray((bits ^ (bits >> np.uint64(32))) @ (words | np.uint64(1)))


def _own_order(X: FloatArray, Y: FloatArray) -> NDArray[np.intp]:
    """Return an order of each user's rows that depends on their values, not on their input order.

    Float sums then have the same bits for every input order. Rows are sorted by a public hash
    rather than by value, because an order by value would pair similar rows. Different rows with
    equal hashes, which anyone can construct, are sorted by value.
    """
    keys = _hashes(X, 1) + _hashes(Y, 1 + X.shape[2])
    order = np.argsort(keys, axis=1, kind="stable")
    tied = np.diff(np.sort(keys, axis=1)) == 0
    which = np.flatnonzero(tied.any(axis=1))
    Z = np.concatenate([X[which], Y[which]], axis=2)
    rows = np.take_along_axis(Z, order[which][:, :, None], axis=1)
    differ = (rows[:, 1:] != rows[:, :-1]).any(axis=2) & tied[which]
    for i in np.flatnonzero(differ.any(axis=1)):
        order[which[i]] = np.lexsort((*Z[i].T, keys[which[i]]))
    return order


class UserRows(GroupRows):
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
        Whether targets have a free scale, by which those of each user are divided.
    """

    def __init__(self, X: Any, Y: FloatArray, codes: NDArray[Any], scale_targets: bool) -> None:
        super().__init__(X, {"Y": Y}, codes)
        self._scale_targets = scale_targets
        self.n_outputs = int(Y.shape[1])
        self.memory = Memory()
        self._known: dict[int, _Units] = {}

    def _batch(self, users: IntArray) -> Batch:
        return Batch(self, users)

    def _units(self, users: IntArray) -> _Units:
        """Return the units of users; the first call puts their rows into their own order."""
        known = self._known.get(int(users[0]))
        if known is None:
            known = self._known[int(users[0])] = self._first_read(users)
        return known

    def _first_read(self, users: IntArray) -> _Units:
        everyone, at = np.ones(users.size, bool), self._at(users)
        X, Y = self._rows_of(at, everyone), self._targets_of(at, everyone)
        good = blocks.finite_rows(X.reshape(len(X), -1)) & blocks.finite_rows(Y.reshape(len(Y), -1))
        if not good.all():
            X, Y = (np.where(good[:, None, None], A, 0.0) for A in (X, Y))
        if X.shape[1] > 1:
            order = np.take_along_axis(at, _own_order(X, Y), axis=1)
            self._sort().rows[self._places_of(users)] = order
        none = np.zeros(users.size, np.intc)
        return _Units(exponents(X), exponents(Y) if self._scale_targets else none, good)

    def _at(self, users: IntArray) -> NDArray[np.intp]:
        """Return the positions of the rows of users, (users, rows)."""
        return np.asarray(self._sort().rows[self._places_of(users)])

    def _rows_of(self, at: NDArray[np.intp], good: NDArray[np.bool_]) -> FloatArray:
        """Return rows of users, in an array of their own; zeros stand for bad users."""
        X, flat = self._X, at.ravel()  # an array takes in half of the time of an index
        whole = isinstance(X, np.ndarray) and X.flags.c_contiguous
        block: Any = X.take(flat, axis=0) if whole else X[flat]
        if sp.issparse(block):
            block = block.toarray()  # duplicates are summed
        X = np.asarray(block, np.float64).reshape(*at.shape, self.n_features)
        return X if good.all() else np.where(good[:, None, None], X, 0.0)

    def _targets_of(self, at: NDArray[np.intp], good: NDArray[np.bool_]) -> FloatArray:
        taken = self._columns["Y"].take(at.ravel(), axis=0)
        Y = np.asarray(taken, np.float64).reshape(*at.shape, self.n_outputs)
        return Y if good.all() else np.where(good[:, None, None], Y, 0.0)


def one_each(batches: Iterable[Batch], *, targets: bool = False) -> Iterator[FloatArray]:
    """Yield one row of each user, the first in the user's own order, or its targets.

    They are in the units of the data. A bad user gets a row that is not finite.
    """
    for batch in batches:
        taken = batch._source._targets_of if targets else batch._source._rows_of
        values = taken(batch._at[:, :1], batch.good)[:, 0]
        yield np.where(batch.good[:, None], values, np.nan)


def mean_targets(batches: Iterable[Batch]) -> Iterator[FloatArray]:
    """Yield the mean of the targets of each user, in the units of the data; NaN of a bad user."""
    for batch in batches:
        values = means_of(batch._source._targets_of(batch._at, batch.good))[:, 0]
        yield np.where(batch.good[:, None], values, np.nan)
