"""Numbers of single rows and counts of entries, computed and kept where the rows are.

Rows may live elsewhere: what travels is a function of public values (to where the rows are) and an
integer sum (back). Narrowed views of such rows are here too.

Entries of columns are counted at public grid points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from operator import itemgetter
from typing import Any, Protocol, TypeGuard, cast

import numpy as np
import scipy.sparse as sp
from joblib import effective_n_jobs
from numpy.typing import NDArray

from skdp._limits import CACHED, MEMORY
from skdp.data import views
from skdp.data.blocks import (
    AnyRows,
    Block,
    RemoteRows,
    RowSource,
    SparseRows,
    checked_total,
    each_part,
    in_threads,
    pieces_of,
    plain_block,
)

FloatArray = NDArray[np.float64]


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
            parts = [views.ZippedRows(part, made) for part, made in kept.made]
            return views.sources_in_turn(parts, self._source.n_features)
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


ShortArray = NDArray[np.int16]
WHOLE = 2**30  # what an entry of a row counts; those of a group of m rows the m-th part each
HIGHEST = 2**15 - 1  # beyond all codes; its negative is below them
_PIECES = 8  # of a part that does not fit into memory: what is kept of it, or not
_JOINED = 2**17  # rows whose codes lie in one array: long columns are counted in fewer steps


def codes_of(numbers: NDArray[Any], about: FloatArray) -> ShortArray:
    """Return where numbers lie on a public grid of floats about a public centre, in order.

    Numbers and centre count as float32, and so does their difference, whose upper half is the code:
    it stands for a point of 8 significant bits and all that lies between it and the next one away
    from the centre. 0 is the centre, and the code of a negative distance is that of the positive
    one, negated.
    """
    with np.errstate(all="ignore"):
        far = numbers.astype(np.float32, copy=False) - about.astype(np.float32)
    codes = np.right_shift(far.view(np.int32), 16, out=far.view(np.int32)).astype(np.int16)
    sign = codes >> 15
    codes &= HIGHEST
    codes ^= sign
    codes -= sign
    return codes


# Columns of rows, or groups, whose values are all finite: an array of shape (d, rows), or sparse
# ones as a CSC array; and how many rows each group has, which is 1 of rows.
Stored = tuple[Any, int]


def _columns_of(block: Any, space: NDArray[np.float32] | None = None) -> Stored:
    """Return the columns of a block as float32, in `space` if given; it may be overwritten then."""
    whole = views.whole_groups(block)
    rows = views.rows_of(whole)
    with np.errstate(all="ignore"):
        if sp.issparse(rows):
            return sp.csc_array(rows.astype(np.float32)), 1
        columns = np.empty(rows.shape[::-1], np.float32) if space is None else space[:, : len(rows)]
        step = max(1, CACHED // rows.shape[1])
        for i in range(0, len(rows), step):
            columns[:, i : i + step] = rows[i : i + step].astype(np.float32).T
    return columns, views.rows_each(whole)


def _coded(stored: Stored, about: FloatArray, space: Any = None) -> Stored:
    """Return the codes of columns, in `space` if given, some at a time: they stay in a cache."""
    columns, each = stored
    if sp.issparse(columns):
        codes = codes_of(columns.data, np.repeat(about, np.diff(columns.indptr)))
        return sp.csc_array((codes, columns.indices, columns.indptr), columns.shape), each
    codes = np.empty(columns.shape, np.int16) if space is None else space
    step = max(1, CACHED // max(1, columns.shape[1]))
    for i in range(0, len(columns), step):
        some = slice(i, i + step)
        codes[some] = codes_of(columns[some], about[some, None])
    return codes, each


@dataclass
class _ColumnsPart:
    """The columns of a part, kept as far as memory allows.

    All of a piece or none: another pass may yield its rows in another order, and one counted twice.
    """

    part: RowSource
    room: int  # numbers

    def __post_init__(self) -> None:
        self._kept: list[Stored] = []
        self._about: FloatArray | None = None
        self._others: list[RowSource] = []
        many = self.part.n_rows() * self.part.n_features > self.room
        for piece in (self.part.parts(_PIECES) if many else ()) or [self.part]:
            self._kept += self._columns(piece) if self.room >= 0 else []
            self._others += [piece] if self.room < 0 else []
        self._codes: list[Stored] = [(None, 1)] * len(self._kept)  # about one centre

    def _columns(self, piece: RowSource) -> list[Stored]:
        """Return the columns of a piece, or nothing if they take more than the room."""
        kept: list[Stored] = []
        space, end, most = np.empty((0, 0), np.float32), 1, min(_JOINED, piece.n_rows())
        for block in pieces_of(piece):
            n, d = block.shape
            self.room -= views.rows_of(block).size + d
            if self.room < 0:
                return []  # all or none
            if not isinstance(block, np.ndarray):
                kept.append(_columns_of(block))
                end = space.shape[1] + 1  # the last one kept is no part of the space
                continue
            if end + n > space.shape[1]:
                space, end = np.empty((d, max(n, most)), np.float32), 0
                kept.append((space, 1))
            end += _columns_of(block, space[:, end:])[0].shape[1]
            kept[-1] = space[:, :end], 1
        return kept

    def codes(self, about: FloatArray, kept: bool | None) -> Iterator[Stored]:
        """Yield the codes of the rows that are kept, of those read again, or of both."""
        if kept is not False:
            if self._about is None or not np.array_equal(self._about, about):
                self._about = None  # of what is written over, also if that fails on the way
                each = zip(self._kept, self._codes, strict=True)
                self._codes, self._about = [_coded(one, about, at) for one, (at, _) in each], about
            yield from self._codes
        for piece in self._others if not kept else ():
            yield from (_coded(_columns_of(block), about) for block in pieces_of(piece))


def stored_columns(source: AnyRows, n_jobs: int | None) -> Kept:
    """Keep columns where the rows are, to be counted about any centre (`CountsIn`)."""
    room = MEMORY // 3 // effective_n_jobs(n_jobs)
    return _keep(source, partial(_ColumnsPart, room=room), n_jobs)


@dataclass(frozen=True)
class CountsIn:
    """Counts of the entries of columns with codes up to `high` (d, m), or of distances up to it.

    Codes are those about a centre (d,). `kept` says whether the rows that parts keep are counted,
    the others, or both (None). It holds public numbers alone, so that it can travel.
    """

    about: FloatArray
    high: ShortArray
    distances: bool
    kept: bool | None = None

    @classmethod
    def of(cls, points: FloatArray, about: FloatArray, *, distances: bool) -> CountsIn:
        """Count what is at most each point, or no farther from the centre.

        Two points more count all entries, and those that equal the centre, if distances count.
        """
        center = np.zeros((len(about), 1)) if distances else about[:, None]
        codes = codes_of(points, center)
        with np.errstate(all="ignore"):
            far = points.astype(np.float32) - center.astype(np.float32)
        seen = (np.abs(codes).astype(np.int32) << 16).view(np.float32)
        codes -= (codes < 0) & (seen < -far)  # what begins below a point is above it
        beyond = np.full((len(about), 2), (HIGHEST, 0 if distances else -HIGHEST), np.int16)
        return cls(about, np.hstack([codes, beyond]), distances)

    def at(self, which: NDArray[np.intp]) -> CountsIn:
        """Return the same at some points of each column (d, j), for the rows that are kept."""
        high = self.high[np.arange(len(which))[:, None], which]
        return CountsIn(self.about, high, self.distances, kept=True)

    def __call__(self, part: _ColumnsPart) -> NDArray[np.int64]:
        """Return the counts, of shape (d, m)."""
        total = np.zeros(self.high.shape, np.int64)
        for codes, each in part.codes(self.about, self.kept):
            count = self._of_stored if sp.issparse(codes) else self._of_columns
            total += count(codes) * (WHOLE // each)
        return total

    def _of_columns(self, codes: ShortArray) -> NDArray[np.int64]:
        """Compare what is kept with the few points of one question; sort others, in linear time."""
        out = np.empty(self.high.shape, np.int64)
        step = max(1, CACHED // max(1, codes.shape[1]))
        for some in (slice(i, i + step) for i in range(0, len(codes), step)):
            columns, high = codes[some], self.high[some]
            columns = np.abs(columns) if self.distances else columns
            if self.kept:
                for counts, points in zip(out[some].T, high.T, strict=True):
                    counts[:] = [np.count_nonzero(row) for row in columns <= points[:, None]]
            else:
                columns = np.sort(columns, axis=1, kind="stable")
                out[some] = [c.searchsorted(h, "right") for c, h in zip(columns, high, strict=True)]
        return out

    def _of_stored(self, codes: Any) -> NDArray[np.int64]:
        """Count stored entries point by point, and the zeros that are not stored."""
        stored, zero = codes.data, codes_of(np.zeros(len(self.about)), self.about)
        if self.distances:
            zero, stored = np.abs(zero), np.abs(stored)
        lengths, reached = np.diff(codes.indptr), np.zeros(len(stored) + 1, np.int64)
        out = (zero[:, None] <= self.high) * (codes.shape[0] - lengths[:, None].astype(np.int64))
        for counts, high in zip(out.T, self.high.T, strict=True):
            np.cumsum(stored <= np.repeat(high, lengths), out=reached[1:])
            counts += np.diff(reached[codes.indptr])
        return np.asarray(out)
