"""Numbers of single rows and counts of entries, computed and kept where the rows are.

Rows may live elsewhere: what travels is a function of public values (to where the rows are) and an
integer sum (back). Narrowed views of such rows are here too.

Entries of columns are counted at public grid points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from operator import itemgetter
from typing import Any, Literal, Protocol, TypeGuard, cast

import numpy as np
import scipy.sparse as sp
from joblib import effective_n_jobs
from numpy.typing import NDArray

from skdp._limits import MEMORY
from skdp.data import views
from skdp.data.blocks import (
    AnyRows,
    Block,
    RemoteRows,
    RowSource,
    SparseRows,
    checked_total,
    each_part,
    finite_only,
    in_threads,
    pieces_of,
    plain_block,
)

FloatArray = NDArray[np.float64]
Side = Literal["left", "right"]


class Kept(Protocol):
    """Arrays, one for each part, kept where the parts are."""

    def sum_parts(self, work: Callable[[Any], NDArray[Any]]) -> NDArray[Any]:
        """Return the sum of ``work(array)``."""


def _composed(part: Any, *, outer: Callable[[Any], Any], inner: Callable[[Any], Any]) -> Any:
    """First `inner`, then `outer`: as a partial function it holds no rows, and can travel."""
    return outer(inner(part))


@dataclass(frozen=True)
class CachedHere:
    """Arrays of parts that are here."""

    made: list[tuple[RowSource, Any]]

    def sum_parts(self, work: Callable[[Any], NDArray[Any]]) -> NDArray[Any]:
        """Return the sum of ``work(array)``."""
        return np.asarray(sum(in_threads(work, [made for _, made in self.made])))


def is_remote(source: AnyRows) -> TypeGuard[RemoteRows]:
    """Whether the rows can only be summed where they are."""
    return hasattr(source, "sum_parts")


def _keep(source: AnyRows, make: Callable[[RowSource], Any], n_jobs: int | None = None) -> Kept:
    if not is_remote(source):
        return CachedHere(each_part(cast(RowSource, source), make, n_jobs))
    # Sources that cannot keep anything compute it again for each sum.
    keep: Callable[..., Kept] = getattr(source, "keep", partial(RemoteView, source))
    return keep(make)


class RemoteView:
    """What a public function makes of each part of remote rows, where it is."""

    def __init__(
        self, source: RemoteRows, change: Callable[[RowSource], Any], n_features: int = 0
    ) -> None:
        self._source, self._change, self.n_features = source, change, n_features

    def n_rows(self) -> int:
        """Return the private number of rows."""
        return self._source.n_rows()

    def sum_parts(self, work: Callable[[Any], NDArray[Any]]) -> NDArray[Any]:
        """Return the sum of ``work`` over what is made of the parts."""
        return self._source.sum_parts(partial(_composed, outer=work, inner=self._change))

    def keep(self, make: Callable[[Any], Any]) -> Kept:
        """Keep arrays of what is made of the parts, where they are."""
        return _keep(self._source, partial(_composed, outer=make, inner=self._change))


def restricted(source: AnyRows, view: views.View, n_features: int) -> AnyRows:
    """Return the rows behind a public view, here or where they are."""
    if is_remote(source):
        wrap = partial(views.ViewedRows, view=view, n_features=n_features)
        return RemoteView(source, wrap, n_features)
    return views.ViewedRows(cast(RowSource, source), view, n_features)


def selected_columns(source: AnyRows, kept: NDArray[np.intp]) -> AnyRows:
    """Return the rows on a public selection of columns; a row with a bad value stays one."""
    if isinstance(source, (SparseRows, views.ColumnRows)):
        return views.ColumnRows(source, kept)
    return restricted(source, partial(views.selected, kept=kept), len(kept))


def _columns_of_part(
    part: RowSource, *, compute: Callable[[Block], Sequence[NDArray[Any]]], names: tuple[str, ...]
) -> views.Columns:
    """Make columns of one part: from each block one array for each name."""
    with np.errstate(all="ignore"):
        return _joined([compute(plain_block(block)) for block in part.blocks()], names)


def _joined(found: Sequence[Sequence[NDArray[Any]]], names: tuple[str, ...]) -> views.Columns:
    """Return the columns of all blocks as one, by name."""
    if not found:
        return {name: np.zeros(0) for name in names}
    arrays = [np.concatenate(column) for column in zip(*found, strict=True)]
    return dict(zip(names, arrays, strict=True))


class RowColumns:
    """Private numbers of each row, kept where the rows are: columns made of the blocks once.

    Parameters
    ----------
    source : AnyRows
        The rows, or what returns them; nothing is computed before a sum is asked for.
    compute : callable
        From a block to arrays of one entry a row, each of that row alone; it travels.
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
        self._n_jobs = n_jobs
        self._kept: Kept | None = None

    @cached_property
    def _source(self) -> AnyRows:
        source: AnyRows = self._given() if callable(self._given) else self._given
        return source

    def _made(self) -> Any:
        if self._kept is None:
            self._kept = _keep(self._source, self._make, self._n_jobs)
        return self._kept

    def sum(
        self, work: Callable[[views.Columns], NDArray[Any]], shape: tuple[int, ...] = ()
    ) -> NDArray[Any]:
        """Return the sum of the int64 ``work(columns)`` over all parts."""
        return checked_total(self._made().sum_parts(work), shape, "int64")

    def numbers(self, of: Callable[[views.Columns], FloatArray]) -> Numbers:
        """Return one number of each row, a public function of its columns."""
        return Numbers(self, of)

    @property
    def cached_here(self) -> bool:
        """Whether they were made, and lie here."""
        return isinstance(self._kept, CachedHere)

    def with_columns(self) -> AnyRows:
        """Return the rows with these columns (blocks `Zipped`), wherever they are."""
        kept = self._made()
        if isinstance(kept, CachedHere):
            parts = [partial(views.ZippedRows, part, made) for part, made in kept.made]
            return views.InTurn(parts, self._source.n_features)
        zipped: AnyRows = cast(Any, self._source).zipped(kept)
        return zipped

    def then(self, compute: Callable[[Block], Sequence[NDArray[Any]]], *names: str) -> RowColumns:
        """Return columns that are made of the rows next to these columns."""
        return RowColumns(self.with_columns, compute, *names, n_jobs=self._n_jobs)

    def median(self, name: str) -> float:
        """Return the median of a public column (0 of none), computed where the rows are."""
        kept = self._made()
        if isinstance(kept, CachedHere):
            return _median(np.concatenate([made[name] for _, made in kept.made]))
        return float(kept.reduce(itemgetter(name), np.append, _median))


def _median(values: NDArray[Any]) -> float:
    return float(np.median(values)) if values.size else 0.0


@dataclass(frozen=True)
class Numbers:
    """One number of each row, made of kept columns for each sum."""

    columns: RowColumns
    of: Callable[[views.Columns], FloatArray]

    def sum(
        self, work: Callable[[FloatArray], NDArray[Any]], shape: tuple[int, ...] = ()
    ) -> NDArray[Any]:
        """Return the sum of the int64 ``work(numbers)`` over all parts."""
        return self.columns.sum(partial(_composed, outer=work, inner=self.of), shape)


def _alone(block: Block, *, compute: Callable[[Block], FloatArray]) -> tuple[FloatArray]:
    return (compute(block),)


def row_numbers(
    source: AnyRows, compute: Callable[[Block], FloatArray], n_jobs: int | None = None
) -> Numbers:
    """Return a private number of each row, kept where the rows are for the steps of a search."""
    alone = partial(_alone, compute=compute)
    return RowColumns(source, alone, "numbers", n_jobs=n_jobs).numbers(itemgetter("numbers"))


# Counts of the entries of columns at public grid points.


SingleArray = NDArray[np.float32]
WHOLE = 2**30  # what an entry of a row counts; those of a group of m rows the m-th part each
_PIECES = 8  # of a part that does not fit into memory: what is kept of it, or not
_JOINED = 2**17  # rows whose columns lie in one array: long columns are counted in fewer steps


@dataclass(frozen=True)
class _Columns:
    """Columns of rows whose values are all finite, or of groups of as many each; sorted here."""

    columns: SingleArray  # of shape (d, rows)
    each: int = 1

    def __post_init__(self) -> None:
        self.columns.sort(axis=1)

    def below(self, points: SingleArray, side: Side) -> NDArray[np.int64]:
        """Count the entries of each column below points (d, m); those on them too, at "right"."""
        found = [c.searchsorted(p, side) for c, p in zip(self.columns, points, strict=True)]
        return np.array(found).reshape(points.shape) * (WHOLE // self.each)


@dataclass(frozen=True)
class _Entries:
    """The same of sparse rows: their stored entries as `_keys`, which this sorts."""

    keys: NDArray[np.int64]
    rows: int

    def __post_init__(self) -> None:
        self.keys.sort()

    def below(self, points: SingleArray, side: Side) -> NDArray[np.int64]:
        """Count stored entries, and the zeros that are not stored."""
        first = np.arange(len(points) + 1)[:, None]
        starts = self.keys.searchsorted((first << 32) - 2**31)
        found = self.keys.searchsorted(_keys(first[:-1], points), side) - starts[:-1]
        zeros = (points >= 0) if side == "right" else (points > 0)
        return np.asarray((found + zeros * (self.rows - np.diff(starts, axis=0))) * WHOLE)


def _keys(columns: NDArray[Any], numbers: SingleArray) -> NDArray[np.int64]:
    """Return integers in the order of the columns, and in each of the numbers."""
    bits = (numbers + np.float32(0.0)).view(np.int32)  # 0.0 is what -0.0 is
    return (columns.astype(np.int64) << 32) + (bits ^ (bits >> 31 & 2**31 - 1))


def _columns_of(block: Any, space: SingleArray) -> SingleArray:
    """Return the columns of a block of arrays as float32, in `space`."""
    end = 0
    with np.errstate(all="ignore"):
        for tile in views.tiles(block):
            whole = views.rows_of(views.whole_groups(tile))
            start, end = end, end + len(whole)
            space[:, start:end] = whole.astype(np.float32).T
    return space[:, :end]


def _in_order(block: Any) -> _Columns | _Entries:
    if sp.issparse(block):
        good = finite_only(block)
        with np.errstate(all="ignore"):
            return _Entries(_keys(good.indices, good.data.astype(np.float32)), good.shape[0])
    space = np.empty(views.rows_of(block).shape[::-1], np.float32)
    return _Columns(_columns_of(block, space), views.rows_each(block))


@dataclass
class _ColumnsPart:
    """The columns of a part in order, kept as far as memory allows.

    All of a piece or none: another pass may yield its rows in another order, and one counted twice.
    """

    part: RowSource
    room: int  # numbers

    def __post_init__(self) -> None:
        self._kept: list[_Columns | _Entries] = []
        self._others: list[RowSource] = []
        many = self.part.n_rows() * self.part.n_features > self.room
        for piece in (self.part.parts(_PIECES) if many else ()) or [self.part]:
            self._kept += self._columns(piece) if self.room >= 0 else []
            self._others += [piece] if self.room < 0 else []

    def _columns(self, piece: RowSource) -> list[_Columns | _Entries]:
        """Return the columns of a piece, or nothing if they take more than the room."""
        arrays: list[SingleArray] = []
        kept: list[_Columns | _Entries] = []
        space, end, most = np.empty((0, 0), np.float32), 0, min(_JOINED, piece.n_rows())
        for block in pieces_of(piece):
            n, d = block.shape
            self.room -= views.rows_of(block).size + d
            if self.room < 0:
                return []  # all or none
            if not isinstance(block, np.ndarray):
                kept.append(_in_order(block))
            else:
                if not arrays or end + n > space.shape[1]:
                    space, end = np.empty((d, max(n, most)), np.float32), 0
                    arrays.append(space)
                end += _columns_of(block, space[:, end:]).shape[1]
                arrays[-1] = space[:, :end]
        return kept + [_Columns(columns) for columns in arrays]

    def columns(self, kept: bool | None) -> Iterator[_Columns | _Entries]:
        """Yield the columns of the rows that are kept, of those read again, or of both."""
        yield from self._kept if kept is not False else ()
        for piece in self._others if not kept else ():
            yield from map(_in_order, pieces_of(piece))


def stored_columns(source: AnyRows, n_jobs: int | None) -> Kept:
    """Keep columns where the rows are, to be counted about any centre (`CountsIn`)."""
    room = MEMORY // 3 // effective_n_jobs(n_jobs)
    return _keep(source, partial(_ColumnsPart, room=room), n_jobs)


@dataclass(frozen=True)
class CountsIn:
    """Counts of the entries of columns up to `high` (d, m), from `low` on where it is given.

    `kept` says whether the rows that parts keep are counted, the others, or both (None). It holds
    public numbers alone, so that it can travel.
    """

    low: SingleArray | None
    high: SingleArray
    kept: bool | None = None

    @classmethod
    def of(cls, points: FloatArray, center: FloatArray | None) -> CountsIn:
        """Count what is at most each point, or no farther from the centre than that, as float32.

        Two points more count all entries, and those that equal the centre, if there is one.
        """
        far = np.hstack([points, np.full((len(points), 2), (math.inf, 0.0))])
        with np.errstate(all="ignore"):
            if center is None:
                return cls(None, far.astype(np.float32))
            ends = np.multiply.outer((-1.0, 1.0), np.maximum(far, 0.0)) + center[:, None]
            return cls(*ends.astype(np.float32))

    def at(self, which: NDArray[np.intp]) -> CountsIn:
        """Return the same at some points of each column (d, j), for the rows that are kept."""
        rows = np.arange(len(which))[:, None]
        low = None if self.low is None else self.low[rows, which]
        return CountsIn(low, self.high[rows, which], kept=True)

    def __call__(self, part: _ColumnsPart) -> NDArray[np.int64]:
        """Return the counts, of shape (d, m)."""
        total = np.zeros(self.high.shape, np.int64)
        for columns in part.columns(self.kept):
            total += columns.below(self.high, "right")
            if self.low is not None:
                total -= columns.below(self.low, "left")
        return total
