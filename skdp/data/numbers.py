"""Numbers of single rows and counts of entries, computed and kept where the rows are.

Rows may live elsewhere: what travels is a function of public values (to where the rows are) and an
integer sum (back). Narrowed views of such rows are here too.

Entries of columns are counted at public grid points.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from operator import itemgetter
from typing import Any, Protocol, TypeGuard, cast

import numpy as np
import scipy.sparse as sp
from joblib import effective_n_jobs
from numpy.typing import NDArray

from skdp._limits import MEMORY
from skdp.data import views
from skdp.data.blocks import (
    BLOCK_ROWS,
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
class _CachedHere:
    made: list[tuple[RowSource, Any]]

    def sum_parts(self, work: Callable[[Any], NDArray[Any]]) -> NDArray[Any]:
        return np.asarray(sum(in_threads(work, [made for _, made in self.made])))


def is_remote(source: AnyRows) -> TypeGuard[RemoteRows]:
    """Whether the rows can only be summed where they are."""
    return hasattr(source, "sum_parts")


def _keep(source: AnyRows, make: Callable[[RowSource], Any], n_jobs: int | None = None) -> Kept:
    if not is_remote(source):
        return _CachedHere(each_part(cast(RowSource, source), make, n_jobs))
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
        return isinstance(self._kept, _CachedHere)

    def with_columns(self) -> AnyRows:
        """Return the rows with these columns (blocks `Zipped`), wherever they are."""
        kept = self._made()
        if isinstance(kept, _CachedHere):
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
        if isinstance(kept, _CachedHere):
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


class RowNumbers(Numbers):
    """A private number of each row, kept where the rows are for the steps of one search."""

    def __init__(
        self,
        source: AnyRows,
        compute: Callable[[Block], FloatArray],
        n_jobs: int | None = None,
    ) -> None:
        alone = partial(_alone, compute=compute)
        columns = RowColumns(source, alone, "numbers", n_jobs=n_jobs)
        super().__init__(columns, itemgetter("numbers"))


# Counts of the entries of columns at public grid points.


WHOLE = 2**30  # what an entry of a row counts; those of a group of m rows the m-th part each


@dataclass
class _Entries:
    """Entries of some rows, column by column.

    Attributes
    ----------
    columns : sequence of arrays
        The stored entries of each column.
    not_stored : array
        How many entries of each column are zeros that are not stored.
    each : int
        How many rows each group has: of rows, 1.
    ordered : bool
        Whether each column goes upwards.
    """

    columns: Sequence[FloatArray] | FloatArray
    not_stored: NDArray[np.int64]
    each: int
    ordered: bool = False

    def order(self) -> None:
        """Sort the columns, once."""
        if not self.ordered:
            for column in self.columns:
                column.sort()
            self.ordered = True


def _entries(blocks: Sequence[Any]) -> _Entries:
    """Join alike blocks; rows and groups with a value that is not finite are left out."""
    whole = [views.whole_groups(block) for block in blocks]
    rows: Any = [views.rows_of(block) for block in whole]
    d, n = rows[0].shape[1], sum(block.shape[0] for block in rows)
    if sp.issparse(rows[0]):
        stored = sp.vstack(rows, format="csc")
        pieces = [stored.data[a:b] for a, b in itertools.pairwise(stored.indptr)]
        return _Entries(pieces, n - np.diff(stored.indptr), 1)
    numbers, start = np.empty((d, n)), 0
    for block in rows:
        numbers[:, start : start + len(block)] = block.T
        start += len(block)
    return _Entries(numbers, np.zeros(d, np.int64), views.rows_each(whole[0]))


@dataclass
class _ColumnPart:
    """The columns of a part, of its first rows kept: as many as memory allows."""

    part: RowSource
    room: int  # numbers

    def __post_init__(self) -> None:
        self.kept: list[_Entries] = []
        self.n_blocks, blocks = 0, pieces_of(self.part)
        while self.room > 0 and (first := next(blocks, None)) is not None:
            alike = [first]
            if not isinstance(first, views.Groups):  # few stored numbers are many rows: a loop less
                most, stored = min(BLOCK_ROWS * first.shape[1], self.room), first.size
                while stored < most and (block := next(blocks, None)) is not None:
                    alike.append(block)
                    stored += block.size
            self.kept.append(_entries(alike))
            self.n_blocks += len(alike)
            self.room -= sum(map(len, self.kept[-1].columns))

    @property
    def long(self) -> bool:
        """Whether all rows are kept, in columns that take longer to sort than to compare."""
        first = self.kept[0].columns if self.kept and self.room > 0 else ()
        return isinstance(first, np.ndarray) and first.shape[1] >= BLOCK_ROWS

    def blocks(self) -> Iterator[_Entries]:
        """Yield the columns of all rows; those that were not kept are made again."""
        yield from self.kept
        if self.room > 0:
            return
        for block in itertools.islice(pieces_of(self.part), self.n_blocks, None):
            yield _entries([block])


def kept_columns(source: AnyRows, n_jobs: int | None) -> Kept:
    """Keep the columns of rows where they are, for counts at public points (`CountsAt`)."""
    room = MEMORY // 8 // effective_n_jobs(n_jobs)
    return _keep(source, partial(_ColumnPart, room=room), n_jobs)


def are_long(columns: Kept) -> bool:
    """Whether columns are kept here, and points are best counted one by one."""
    return isinstance(columns, _CachedHere) and all(part.long for _, part in columns.made)


@dataclass(frozen=True)
class CountsAt:
    """Counts of the entries of columns, from public numbers alone, so that it can travel.

    `points` holds numbers for each column, `center` what distances are taken from: of each
    column, or nothing for the entries themselves.
    """

    points: FloatArray
    center: FloatArray | None

    def __call__(self, part: _ColumnPart) -> NDArray[np.int64]:
        """Return how many entries, or distances, are at most each point, by column."""
        total = np.zeros(self.points.shape, np.int64)
        low, high = self._ends
        for block in part.blocks():
            if self.points.shape[1] > 1:
                block.order()
            of_column = _in_order if block.ordered else _one_by_one
            counts = np.array([of_column(*of) for of in zip(block.columns, low, high, strict=True)])
            if block.not_stored.any():
                counts += block.not_stored[:, None] * ((low <= 0) & (high >= 0))
            total += counts * (WHOLE // block.each)
        return total

    @cached_property
    def _ends(self) -> tuple[FloatArray, FloatArray]:
        if self.center is None:
            return np.full(self.points.shape, -np.inf), self.points
        center = self.center[:, None]
        with np.errstate(over="ignore"):
            return center - self.points, center + self.points


def _in_order(column: FloatArray, low: FloatArray, high: FloatArray) -> NDArray[np.intp]:
    return np.asarray(column.searchsorted(high, "right") - column.searchsorted(low, "left"))


def _one_by_one(column: FloatArray, low: FloatArray, high: FloatArray) -> list[int]:
    below = [np.count_nonzero(column < a) if a > -np.inf else 0 for a in low]
    most = [np.count_nonzero(column <= b) if b < np.inf else len(column) for b in high]
    return [int(b - a) for a, b in zip(below, most, strict=True)]
