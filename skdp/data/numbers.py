"""Numbers of single rows and counts of entries, computed and cached on the machine of the rows.

Rows may be on other machines. Then a function of public values is sent to the rows, and an integer
sum comes back. Views of remote rows on fewer columns are here too.

Entries of columns are counted below public grid points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from operator import itemgetter
from typing import Any, Protocol, TypeGuard, cast

import numpy as np
import scipy.sparse as sp
from joblib import effective_n_jobs
from numpy.typing import NDArray

from skdp._limits import CACHED, MEMORY, FloatArray
from skdp.data import views
from skdp.data.blocks import (
    AnyRows,
    Block,
    RemoteRows,
    RowSource,
    checked_total,
    each_part,
    finite_only,
    in_threads,
    pieces_of,
)


class CachedParts(Protocol):
    """Arrays, one for each part, cached on the machines of the parts."""

    def sum_parts(self, work: Callable[[Any], NDArray[Any]]) -> NDArray[Any]:
        """Return the sum of ``work(array)``."""


Numbers = Callable[..., NDArray[Any]]  # see `RowColumns.numbers`


def _composed(part: Any, *, outer: Callable[[Any], Any], inner: Callable[[Any], Any]) -> Any:
    """Return outer(inner(part)); a partial of this function holds no rows, so it may be sent."""
    return outer(inner(part))


@dataclass(frozen=True)
class CachedHere:
    """Arrays of parts that are here."""

    made: list[tuple[RowSource, Any]]

    def sum_parts(self, work: Callable[[Any], NDArray[Any]]) -> NDArray[Any]:
        """Return the sum of ``work(array)``."""
        return np.asarray(sum(in_threads(work, [made for _, made in self.made])))


def is_remote(source: AnyRows) -> TypeGuard[RemoteRows]:
    """Whether the rows are elsewhere, so that only sums of them are available."""
    return hasattr(source, "sum_parts")


def _keep(
    source: AnyRows, make: Callable[[RowSource], Any], n_jobs: int | None = None
) -> CachedParts:
    if not is_remote(source):
        return CachedHere(each_part(cast(RowSource, source), make, n_jobs))
    # Sources that cannot cache compute it again for each sum.
    keep: Callable[..., CachedParts] = getattr(source, "keep", partial(RemoteView, source))
    return keep(make)


class RemoteView:
    """Remote rows behind a public function, which runs on the machine of each part."""

    def __init__(
        self, source: RemoteRows, change: Callable[[RowSource], Any], n_features: int = 0
    ) -> None:
        self._source, self._change, self.n_features = source, change, n_features

    def n_rows(self) -> int:
        """Return the private number of rows."""
        return self._source.n_rows()

    def sum_parts(self, work: Callable[[Any], NDArray[Any]]) -> NDArray[Any]:
        """Return the sum of ``work(change(part))`` over the parts."""
        return self._source.sum_parts(partial(_composed, outer=work, inner=self._change))

    def keep(self, make: Callable[[Any], Any]) -> CachedParts:
        """Cache ``make(change(part))`` on the machine of each part."""
        return _keep(self._source, partial(_composed, outer=make, inner=self._change))

    def zipped(self, kept: Any) -> RemoteView:
        """Return the rows with columns that were cached of them."""
        source: Any = self._source
        return RemoteView(source.zipped(kept), self._change, self.n_features)


def restricted(source: AnyRows, view: views.RowView, n_features: int) -> AnyRows:
    """Return the rows under a public view, computed on the machine of the rows."""
    if is_remote(source):
        wrap = partial(views.ViewedRows, view=view, n_features=n_features)
        return RemoteView(source, wrap, n_features)
    return views.ViewedRows(cast(RowSource, source), view, n_features)


def _columns_of_part(
    part: RowSource, *, compute: Callable[[Block], Sequence[NDArray[Any]]], names: tuple[str, ...]
) -> views.Columns:
    """Make columns of one part: from each block one array for each name."""
    with np.errstate(all="ignore"):
        found = [compute(block) for block in pieces_of(part)]
    found = found or [[np.zeros(0)] * len(names)]
    return dict(zip(names, map(np.concatenate, zip(*found, strict=True)), strict=True))


class RowColumns:
    """Private numbers of each row, computed once and cached on the machine of the rows.

    Parameters
    ----------
    source : AnyRows
        The rows, or what returns them; nothing is computed before a sum is asked for.
    compute : callable
        From a block to arrays of one entry for each row, from that row alone; it may be sent.
    names : str
        Names of the columns.
    n_jobs : int or None
        Threads, for rows that are here.
    """

    def __init__(
        self,
        source: AnyRows | Callable[[], AnyRows],
        compute: Callable[[Block], Sequence[NDArray[Any]]],
        *names: str,
        n_jobs: int | None = None,
    ) -> None:
        self._given: Any = source
        self._make = partial(_columns_of_part, compute=compute, names=names)
        self._names, self._n_jobs = names, n_jobs

    @cached_property
    def _source(self) -> AnyRows:
        return cast(AnyRows, self._given() if callable(self._given) else self._given)

    @cached_property
    def _kept(self) -> Any:
        return _keep(self._source, self._make, self._n_jobs)

    def sum(
        self, work: Callable[[views.Columns], NDArray[Any]], shape: tuple[int, ...] = ()
    ) -> NDArray[Any]:
        """Return the sum of the int64 ``work(columns)`` over all parts."""
        return checked_total(self._kept.sum_parts(work), shape, "int64")

    def numbers(self, of: Callable[[views.Columns], FloatArray]) -> Numbers:
        """Return a sum over numbers that a public function computes from the columns of a row.

        ``numbers(work, shape)`` is the sum of the int64 ``work(numbers)`` over all parts.
        """
        return lambda work, shape=(): self.sum(partial(_composed, outer=work, inner=of), shape)

    @cached_property
    def _with_nan_columns(self) -> AnyRows:
        """The rows with these columns filled with NaN, if in memory: a pass can write to them."""
        if not isinstance(self._source, views.ZippedRows):
            return self._source
        n = self._source.n_rows()
        return views.ZippedRows(self._source, {name: np.full(n, np.nan) for name in self._names})

    def with_columns_or_nan(self) -> AnyRows:
        """Return the rows with these columns, or with NaN columns if they are not computed yet."""
        made = isinstance(vars(self).get("_kept"), CachedHere)
        return self.with_columns() if made else self._with_nan_columns

    def with_columns(self) -> AnyRows:
        """Return the rows with these columns (blocks `Zipped`), wherever they are."""
        if isinstance(self._kept, CachedHere):
            parts = [partial(views.ZippedRows, part, made) for part, made in self._kept.made]
            return views.InTurn(parts, self._source.n_features)
        return cast(AnyRows, cast(Any, self._source).zipped(self._kept))

    def then(self, compute: Callable[[Block], Sequence[NDArray[Any]]], *names: str) -> RowColumns:
        """Return further columns, computed from the rows and these columns."""
        return RowColumns(self.with_columns, compute, *names, n_jobs=self._n_jobs)

    def median(self, name: str) -> float:
        """Return the median of the nonzero entries of a public column, or 0 if there are none."""
        if isinstance(self._kept, CachedHere):
            return _median(np.concatenate([made[name] for _, made in self._kept.made]))
        return float(self._kept.reduce(itemgetter(name), np.append, _median))


def _median(values: NDArray[Any]) -> float:
    return float(np.median(values[values != 0])) if values.any() else 0.0


def row_numbers(
    source: AnyRows, compute: Callable[[Block], FloatArray], n_jobs: int | None = None
) -> Numbers:
    """Return a private number for each row, cached with the rows for all steps of a search."""
    alone = RowColumns(source, lambda block: (compute(block),), "numbers", n_jobs=n_jobs)
    return alone.numbers(itemgetter("numbers"))


# Counts of the entries of columns at public grid points.


KeyArray = NDArray[np.int32]
WHOLE = 2**30  # an entry of a single row counts as this; one in a group of m rows as WHOLE / m
_PIECES = 8  # pieces of a part that exceeds the memory; each is cached whole or not at all
_JOINED = 2**17  # rows whose columns are stored in one array: fewer, longer columns count faster
_CODE = 16  # low bits of a key that a code omits: int16 codes sort ten times as fast as keys
_TABLE = 2**15  # rows from which on a cumulative table of all codes is faster than sorting them


def _keys(numbers: NDArray[Any]) -> KeyArray:
    """Return int32 keys that sort like the numbers rounded to float32; 0 and -0 share a key."""
    bits = numbers.astype(np.float32).view(np.int32)
    sign = bits >> 31
    bits += ~sign
    return np.asarray(np.bitwise_xor(bits, sign & 2**31 - 1, out=bits))


@dataclass(frozen=True)
class _Columns:
    """The `_keys` of the columns of finite rows, or of groups that have `each` rows."""

    keys: KeyArray  # of shape (d, rows)
    each: int = 1

    @cached_property
    def _codes(self) -> list[NDArray[Any]]:
        """The sorted codes of each column; for many rows, the cumulative count of each code."""
        if self.keys.shape[1] < _TABLE:
            return [np.sort((k >> _CODE).astype(np.int16), kind="stable") for k in self.keys]
        # Fresh memory for each column, as `bincount` takes it, would cost as much as counting.
        code, most = np.empty(self.keys.shape[1], np.intp), 2 ** (32 - _CODE)
        table = np.zeros((len(self.keys), most), np.min_scalar_type(code.size))
        for keys, counts in zip(self.keys, table, strict=True):
            np.add.at(counts, np.add(keys >> _CODE, most // 2, out=code), table.dtype.type(1))
        return list(np.cumsum(table, axis=1, dtype=table.dtype, out=table))

    def below(self, keys: KeyArray) -> NDArray[np.int64]:
        """Count the entries of each column below keys (d, m)."""
        at, few = keys >> _CODE, self.keys.shape[1] < _TABLE
        at = at.astype(np.int16) if few else at + 2 ** (31 - _CODE) - 1
        look_up = np.ndarray.searchsorted if few else np.ndarray.take
        found = [look_up(codes, k) for codes, k in zip(self._codes, at, strict=True)]
        counts = np.array(found, np.int64).reshape(keys.shape)
        for i, j in zip(*(keys & 2**_CODE - 1).nonzero(), strict=True):
            counts[i, j] = np.count_nonzero(self.keys[i] < keys[i, j])
        return counts * (WHOLE // self.each)


@dataclass(frozen=True)
class _Entries:
    """The columns of sparse rows: one sorted integer (column, key) for each stored entry."""

    keys: NDArray[np.int64]
    zeros: NDArray[np.int64]  # that are not stored, of shape (d, 1)

    def below(self, keys: KeyArray) -> NDArray[np.int64]:
        """Count the entries below keys (d, m); counts include all stored entries of columns before.

        `CountsIn` takes differences of two counts, in which the columns before cancel.
        """
        found = self.keys.searchsorted((np.arange(len(keys))[:, None] << 32) + keys)
        return np.asarray((found + (keys >= 0) * self.zeros) * WHOLE)


def _columns_of(block: Any, space: KeyArray) -> KeyArray:
    """Return the columns of a block of arrays as keys, in `space`."""
    rows = views.rows_of(views.whole_groups(block))
    size = max(16, CACHED // (4 * max(1, rows.shape[1])))  # several passes over each, in the cache
    with np.errstate(all="ignore"):
        for i in range(0, len(rows), size):
            keys = _keys(rows[i : i + size])
            space[:, i : i + len(keys)] = keys.T
    return space[:, : len(rows)]


def _in_order(block: Any) -> _Columns | _Entries:
    if sp.issparse(block):
        good = finite_only(block)
        with np.errstate(all="ignore"):
            keys = (good.indices.astype(np.int64) << 32) + _keys(good.data)
        stored = np.bincount(good.indices, minlength=good.shape[1])[:, None]
        return _Entries(np.sort(keys), good.shape[0] - stored)
    space = np.empty(views.rows_of(block).shape[::-1], np.int32)
    return _Columns(_columns_of(block, space), views.rows_each(block))


class _ColumnsPart:
    """The sorted columns of one part of the rows, cached as far as memory allows.

    A piece is cached as a whole or not at all: a later pass may yield its rows in another order, so
    that some row could be counted twice.
    """

    def __init__(self, part: RowSource, room: int) -> None:
        self.part, self.room = part, room  # how many numbers may be cached
        self._kept, self._others = list[_Columns | _Entries](), list[RowSource]()
        many = self.part.n_rows() * self.part.n_features > self.room
        for piece in (self.part.parts(_PIECES) if many else ()) or [self.part]:
            self._kept += self._columns(piece) if self.room >= 0 else []
            self._others += [piece] if self.room < 0 else []

    def _columns(self, piece: RowSource) -> list[_Columns | _Entries]:
        """Return the columns of a piece, or an empty list if they do not fit into `room`."""
        arrays, kept = list[KeyArray](), list[_Columns | _Entries]()
        space, end, most = np.empty((0, 0), np.int32), 0, min(_JOINED, piece.n_rows())
        for block in pieces_of(piece):
            n, d = block.shape
            self.room -= views.rows_of(block).size + d
            if self.room < 0:
                return []  # all or none
            if not isinstance(block, np.ndarray):
                kept.append(_in_order(block))
            else:
                if not arrays or end + n > space.shape[1]:
                    space, end = np.empty((d, max(n, most)), np.int32), 0
                    arrays.append(space)
                end += _columns_of(block, space[:, end:]).shape[1]
                arrays[-1] = space[:, :end]
        return kept + [_Columns(keys) for keys in arrays]

    def columns(self, kept: bool | None) -> Iterator[_Columns | _Entries]:
        """Yield the columns of cached rows (True), of rows read again (False), or of all (None)."""
        yield from self._kept if kept is not False else ()
        for piece in self._others if not kept else ():
            yield from map(_in_order, pieces_of(piece))


def stored_columns(source: AnyRows, n_jobs: int | None) -> CachedParts:
    """Cache the columns with the rows, so that `CountsIn` can count them about any centre."""
    room = MEMORY // 6 // effective_n_jobs(n_jobs)
    return _keep(source, partial(_ColumnsPart, room=room), n_jobs)


@dataclass(frozen=True)
class CountsIn:
    """The function that counts, for each column, its entries in m half-open intervals of keys.

    `kept` says which rows are counted: those that the parts cache (True), the others (False), or
    all (None). The object holds public numbers alone, so it may be sent to other machines.
    """

    ends: KeyArray  # lower ends (included) and upper ends (excluded), of shape (d, 2, m)
    kept: bool | None = None

    @classmethod
    def of(cls, points: FloatArray, center: FloatArray | None) -> CountsIn:
        """Count the entries at most each point, or within that distance of the centre, as float32.

        Counts at keys whose last 16 bits are zero are fast, because they need only the codes. So an
        end of an interval about a centre is moved to such a key if that moves it by less than a
        16th of the distance. This does not concern privacy, as all ends are public, and hardly the
        search, as distances are rough grid points. Two points are appended: one counts all entries,
        one those equal to the centre (none without a centre).
        """
        high = np.hstack([points, np.full((len(points), 2), (math.inf, 0.0))])
        low, far = np.full_like(high, math.inf), np.zeros_like(high)
        with np.errstate(all="ignore"):
            if center is not None:
                far = np.maximum(high, 0.0)
                low, high = far - center[:, None], far + center[:, None]
            ends = np.stack([low, high], axis=1)
            keys = _keys(ends) + np.array([[2], [1]], np.int32)
            exact = np.isfinite(ends) & (np.abs(ends) > 8 * far[:, None])
            keys += np.where(exact, 0, -keys & 2**_CODE - 1)
        return cls(keys * np.array([[-1], [1]], np.int32))

    def at(self, which: NDArray[np.intp]) -> CountsIn:
        """Restrict to the points `which` (d, j) of each column, and to cached rows."""
        rows, sides = np.arange(len(which))[:, None, None], np.arange(2)[:, None]
        return CountsIn(self.ends[rows, sides, which[:, None]], kept=True)

    def codes(self) -> tuple[CountsIn, NDArray[np.bool_]]:
        """Return the fast counts of cached rows, with ends rounded down to codes.

        Also return which points were changed by that, and so have to be counted exactly when they
        are asked for. The last two points are not rounded; on a large grid only these two are
        counted, and all others are marked.
        """
        ends, many = self.ends & -(2**_CODE), self.ends.size > CACHED
        ends[:, :, -2:] = self.ends[:, :, -2:]
        compared = (self.ends != ends).any(axis=1)
        return CountsIn(ends[:, :, -2:] if many else ends, kept=True), compared | many

    def __call__(self, part: _ColumnsPart) -> NDArray[np.int64]:
        """Return the counts, of shape (d, m)."""
        ends, m = self.ends.reshape(len(self.ends), -1), self.ends.shape[2]
        below = sum((c.below(ends) for c in part.columns(self.kept)), np.int64(0) * ends)
        return np.asarray(below[:, m:] - below[:, :m])
