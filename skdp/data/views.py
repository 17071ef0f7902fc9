"""Views of rows: minus a centre, on some columns, next to targets or groups.

A view maps the blocks of a pass to blocks. Each row of the result depends on one row alone.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp._limits import MEMORY, FloatArray
from skdp.data.blocks import (
    Block,
    RowSource,
    Scratch,
    ScratchOfThread,
    as_array,
    cuts,
    dense,
    entrywise,
    finite_only,
    finite_rows,
    plain_blocks,
    row_source,
    rows_at_once,
)
from skdp.data.integers import row_map, row_norms
from skdp.data.products import row_products

# Rows with their columns (targets, groups, numbers) in blocks of the same rows; rows by group.
#
# Rows and targets are matched by their position. So the order of the rows must be known, as it is
# for arrays, files and Dask arrays, but not for a user-defined `RowSource`.
#
# Notation: a batch holds groups of m rows each. Laid flat, a group is one row of m d entries, whose
# squared norm is the sum of the squared norms of its rows. Without groups each row is a group of
# one row, with the same integers.


Columns = Mapping[str, NDArray[Any]]
# A column that remembers which records are finite: 0 not looked at yet, 1 finite, -1 not.
CHECKED = "checked"


class Zipped(NamedTuple):
    """Rows of one block, and the columns next to them by name."""

    rows: Block
    columns: Columns

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the rows, as `sum_rows` asks for it."""
        return tuple(self.rows.shape)

    @property
    def targets(self) -> NDArray[np.float64]:
        """The targets of the rows."""
        return self.columns["y"]

    def with_columns(self, **columns: NDArray[Any]) -> Zipped:
        """Return the same rows with more columns."""
        return Zipped(self.rows, {**self.columns, **columns})

    def __getitem__(self, part: Any) -> Any:
        return Zipped(self.rows[part], {name: c[part] for name, c in self.columns.items()})


class Groups(NamedTuple):
    """Rows of groups with equally many rows, one group after the other.

    Attributes
    ----------
    rows : array or CSR array of shape (groups * each, n_features)
        The rows.
    each : int
        How many rows each group has.
    columns : mapping of arrays
        What belongs to the rows, by name.
    """

    rows: Block
    each: int
    columns: Columns

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the batch: groups first."""
        return self.rows.shape[0] // self.each, self.rows.shape[1]

    @property
    def targets(self) -> NDArray[np.float64]:
        """The targets of the rows."""
        return self.columns["y"]


def rows_each(block: Any) -> int:
    """Return how many rows each group of a block has."""
    return block.each if isinstance(block, Groups) else 1


def laid_flat(block: Any) -> Block:
    """Return each group as one row of all its entries."""
    if not isinstance(block, Groups):
        return block
    (n, d), m = block.shape, block.each
    if not sp.issparse(block.rows):
        return block.rows.reshape(n, m * d)
    starts = np.repeat(np.arange(n * m) % m * d, np.diff(block.rows.indptr))
    parts = (block.rows.data, block.rows.indices + starts, block.rows.indptr[::m])
    return sp.csr_array(parts, shape=(n, m * d))


def by_group(change: Callable[[Block], Block], block: Any) -> Block:
    """Return the rows of what a map of rows makes of each group, laid flat.

    Sparse ones hold entries where those of the block do.
    """
    flat = change(laid_flat(block))
    if not isinstance(block, Groups):
        return flat
    if not sp.issparse(flat):
        return flat.reshape(block.rows.shape[0], -1)
    parts = (flat.data, block.rows.indices, block.rows.indptr)
    return sp.csr_array(parts, shape=block.rows.shape)


def with_rows(block: Any, rows: Block) -> Any:
    """Return the same groups with other rows."""
    return block._replace(rows=rows) if isinstance(block, Groups) else rows


def rows_of(block: Any) -> Block:
    """Return the rows of a block."""
    return block.rows if isinstance(block, (Groups, Zipped)) else block


def whole_groups(block: Any) -> Any:
    """Return the groups whose values are all finite, with dense rows; of rows, those that are."""
    if not isinstance(block, Groups):
        return finite_only(block)
    rows = dense(block.rows)
    good = finite_rows(rows).reshape(-1, block.each).all(axis=1)
    return block._replace(rows=rows if good.all() else rows[np.repeat(good, block.each)])


def group_sums(rows: Block, block: Any) -> Block:
    """Return the sum over the rows of each group; exact where they are integers."""
    m = rows_each(block)
    if m == 1:
        return rows
    numbers = dense(rows)
    return numbers.reshape(len(numbers) // m, m, numbers.shape[1]).sum(axis=1)


class ZippedRows:
    """A source that yields its rows and their columns in the same order.

    Parameters
    ----------
    source : RowSource
        Rows, or rows that have columns already.
    columns : dict of arrays
        One entry for each row.
    start : int
        Place of the first row of the source in the columns.
    at_once : int or None
        Public: blocks of more rows are cut.
    """

    def __init__(
        self, source: RowSource, columns: Columns, start: int = 0, at_once: int | None = None
    ) -> None:
        self._source, self._columns = source, columns
        self._start, self._at_once = start, at_once
        self.n_features = source.n_features

    def n_rows(self) -> int:
        """Return the private number of rows."""
        return self._source.n_rows()

    def parts(self, n: int) -> list[RowSource]:
        """Split like the rows."""
        out: list[RowSource] = []
        start = self._start
        for part in self._source.parts(n):
            out.append(ZippedRows(part, self._columns, start, self._at_once))
            start += part.n_rows()
        return out

    def blocks(self) -> Iterator[Any]:
        """Yield blocks of rows with their columns."""
        start = self._start
        for given in plain_blocks(self._source):
            block = given if isinstance(given, Zipped) else Zipped(given, {})
            stop = start + block.shape[0]
            here = {name: column[start:stop] for name, column in self._columns.items()}
            if any(len(column) != block.shape[0] for column in here.values()):
                # a file that was changed: no sizes in the message
                raise ValueError("a block has more rows than targets")
            block, rows = block.with_columns(**here), self._at_once or max(1, block.shape[0])
            for i in range(0, block.shape[0], rows):
                yield block if rows >= block.shape[0] else block[i : i + rows]
            start = stop


class InTurn:
    """Sources one after the other, each opened when it is read; a part is a range of them."""

    def __init__(self, opens: Sequence[Callable[[], RowSource]], n_features: int) -> None:
        self._opens, self.n_features = opens, n_features

    def n_rows(self) -> int:
        """Return the private number of rows."""
        return sum(open_one().n_rows() for open_one in self._opens)

    def parts(self, n: int) -> list[RowSource]:
        """Split between sources."""
        return [InTurn(self._opens[a:b], self.n_features) for a, b in cuts(0, len(self._opens), n)]

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks of one source after the other."""
        for open_one in self._opens:
            yield from open_one().blocks()


# Rows under public views: minus a centre, or on some columns.


RowView: TypeAlias = Callable[[Iterable[Any]], Iterator[Any]]


# The cache of users' numbers for later passes. It has one public limit of memory, and never changes
# a result.


Arrays = tuple[NDArray[Any], ...]


class Memory:
    """A cache of arrays by public key, up to a public number of bytes.

    Arrays that do not fit are computed anew from the same rows, so that the cache never changes a
    result. Arrays marked `large` are quick to compute: they may take a quarter of the memory, and
    are dropped to make room for others.
    """

    def __init__(self) -> None:
        self._arrays: dict[Hashable, Arrays] = {}
        self._taken, self._large = 0, list[Hashable]()
        self._lock = threading.Lock()

    def __call__(self, key: Hashable, make: Callable[[], Arrays], *, large: bool = False) -> Arrays:
        """Return the cached value of the key, or the result of `make`."""
        found = self._arrays.get(key)
        if found is None:
            found = make()
            size = sum(array.nbytes for array in found)
            with self._lock:
                while self._large and not (large or self._taken + size <= MEMORY):
                    self._taken -= sum(A.nbytes for A in self._arrays.pop(self._large.pop()))
                if (self._taken + size) * (4 if large else 1) <= MEMORY:
                    self._taken += size
                    self._arrays[key] = found
                    self._large += [key] * large
        return found


class ViewedRows:
    """A source of rows behind a public view."""

    _plain = True  # a view of plain blocks yields plain blocks

    def __init__(self, source: RowSource, view: RowView, n_features: int) -> None:
        self.source, self._view, self.n_features = source, view, n_features

    def n_rows(self) -> int:
        """Return the private number of rows."""
        return self.source.n_rows()

    def parts(self, n: int) -> list[RowSource]:
        """Split like the source."""
        return [ViewedRows(part, self._view, self.n_features) for part in self.source.parts(n)]

    def blocks(self) -> Iterator[Block]:
        """Yield the view of each block."""
        return self._view(plain_blocks(self.source))


def centered(
    blocks: Iterable[Any], center: FloatArray, between: tuple[FloatArray, ...] = (),
    unit: FloatArray | None = None,
) -> Iterator[Any]:  # fmt: skip
    """Yield rows minus a centre, in a unit, in dense blocks of bounded memory; groups stay whole.

    Entries are clipped to bounds first, if these are given.
    """
    rows = rows_at_once(len(center))
    scratch = Scratch()  # not shared: the thread may be inside another pass
    for block in blocks:
        if isinstance(block, Groups):
            given = dense(block.rows)
            given = _inside(given, between) if between else given
            yield block._replace(rows=np.asarray(given - center))
            continue
        for i in range(0, block.shape[0], rows):
            part = block[i : i + rows]
            part = part.toarray() if sp.issparse(part) else as_array(part)
            out = scratch.shaped(part.shape)
            part = _inside(part, between, out) if between else part
            np.subtract(part, center, out=out)
            yield out if unit is None else np.divide(out, unit, out=out)


def _inside(rows: FloatArray, between: tuple[FloatArray, ...], out: Any = None) -> FloatArray:
    """Return rows clipped to bounds; a row that is not finite stays so."""
    low, high = between
    cut = _in_range(rows, low, high, out)
    cut[~finite_rows(rows)] = np.nan
    return cut


def _in_range(rows: FloatArray, low: Any, high: Any, out: Any) -> FloatArray:
    """Return rows with clipped columns; `np.clip` is fast for numbers, and slow for arrays."""
    one = (np.max(end, initial=-math.inf) for end in (low, high))  # there may be no columns
    ends = [x if np.all(end == x) else end for end, x in zip((low, high), one, strict=True)]
    if np.ndim(ends[0]) == np.ndim(ends[1]) == 0:
        return np.asarray(np.clip(rows, *ends, out=out))
    return np.asarray(np.minimum(np.maximum(rows, ends[0], out=out), ends[1], out=out))


def negative(blocks: Iterable[Any]) -> Iterator[Any]:
    """Yield the negative parts of rows; what is not a number stays so."""
    for given in blocks:
        yield with_rows(given, entrywise(partial(np.minimum, 0.0), rows_of(given)))


def selected(blocks: Iterable[Any], kept: NDArray[np.intp]) -> Iterator[Any]:
    """Yield rows on some columns; a row that is not finite in any column gets a NaN there."""
    for given in blocks:
        rows = rows_of(given)
        yield with_rows(given, _on_columns(rows, kept, ~finite_rows(rows)))


def rows_of_records(blocks: Iterable[Zipped | Groups], kept: PublicColumns | None) -> Iterator[Any]:
    """Yield the rows of records, on some columns; those of bad records hold a NaN."""
    for block in blocks:
        yield with_rows(block, _on_columns(block.rows, kept, ~good_records(block)))


def records_in_units(blocks: Iterable[Zipped | Groups], scale: RowScale) -> Iterator[Any]:
    """Yield records with CSR rows in units about 0; a bad entry is not a number."""
    for block in blocks:
        rows = sp.csr_array(block.rows)
        data = np.clip(rows.data / scale.size[rows.indices], scale.low, scale.high)
        parts = np.where(np.isfinite(rows.data), data, np.nan), rows.indices, rows.indptr
        yield block._replace(rows=sp.csr_array(parts, shape=rows.shape))


def targets_of_records(blocks: Iterable[Zipped | Groups], center: FloatArray) -> Iterator[Any]:
    """Yield the targets of records minus a centre; those of bad records are NaN.

    Batches of groups stay batches, as queries weight the rows of a group together.
    """
    for block in blocks:
        good = good_records(block)[:, None]
        yield with_rows(block, np.where(good, block.targets - center, np.nan))


def rows_and_targets(
    blocks: Iterable[Any], kept: PublicColumns | None, center: FloatArray
) -> Iterator[Any]:
    """Yield rows and targets in one array: those of `rows_of_records` and `targets_of_records`."""
    scratch = Scratch()  # not shared: the thread may be inside another pass
    for block in blocks:
        (rows,), (targets,) = rows_of_records([block], kept), targets_of_records([block], center)
        parts = dense(rows_of(rows)), rows_of(targets)
        out = scratch.shaped((len(parts[0]), len(center) + rows.shape[1]))
        yield with_rows(rows, np.concatenate(parts, axis=1, out=out))


def mean_targets(blocks: Iterable[Groups]) -> Iterator[Groups]:
    """Yield groups whose rows all have the mean target of their group."""
    for block in blocks:
        parts = block.targets.reshape(block.shape[0], block.each, -1)
        y = np.broadcast_to(means_of(parts), parts.shape).reshape(block.targets.shape)
        yield block._replace(columns={**block.columns, "y": y})


def means_of(values: NDArray[Any]) -> NDArray[Any]:
    """Return means along axis 1, summed in order of size: no bit depends on other units."""
    with np.errstate(all="ignore"):  # a warning would reveal the largest float
        parts = np.sort(values / values.shape[1], axis=1)
        return np.asarray(np.add.accumulate(parts, axis=1)[:, -1:])


def gains_of_records(blocks: Iterable[Any], cuts: Any, model: Any, scale: Any) -> Iterator[Any]:
    """Yield records whose target is replaced by the gain of a second column clipping over a first.

    The gain of a record is its squared error (targets and predictions in `scale`) with rows clipped
    by the first of `cuts`, minus that with the second. The public model is a pair: coefficients for
    dense rows in units, and the prediction at 0.
    """
    for block in blocks:
        y, (coefficients, at_zero) = scale(block.targets), model
        good = good_records(block)
        found = (row_products(dense(cut(block.rows, good)), coefficients) for cut in cuts)
        errors = (scale(predicted + at_zero) - y for predicted in found)
        first, second = (np.sum(each**2, axis=1) for each in errors)
        gains = np.where(good, first - second, np.nan)
        yield block._replace(columns={**block.columns, "y": gains[:, None]})


def good_records(block: Zipped | Groups) -> NDArray[np.bool_]:
    """Return whether row and targets are finite; the column `CHECKED`, if any, caches it."""
    seen = block.columns.get(CHECKED)
    if seen is None or not seen.all():
        good = np.asarray(finite_rows(block.rows) & finite_rows(block.targets))
        if seen is None:
            return good
        seen[:] = np.where(good, 1, -1)  # each thread writes its own rows
    return np.asarray(seen > 0)


def _on_columns(rows: Block, kept: PublicColumns | None, bad: NDArray[np.bool_]) -> Block:
    """Return rows on the public columns `kept` (None: all); the first entry of bad rows is NaN."""
    rows = rows if kept is None else kept_columns(rows, kept)
    if bad.any():
        if sp.issparse(rows):
            at = np.flatnonzero(bad)
            return rows + sp.csr_array((np.full(len(at), np.nan), (at, 0 * at)), shape=rows.shape)
        rows = rows.copy()
        rows[bad, 0] = np.nan
    return rows


class Mapped(NamedTuple):
    """Public columns: selected ones (`places`), then projections on `directions` minus `center`."""

    places: NDArray[np.intp]
    directions: NDArray[np.float64]
    center: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.places) + len(self.center)


PublicColumns: TypeAlias = NDArray[np.intp] | Mapped


def kept_columns(rows: Block, kept: PublicColumns) -> Block:
    """Return rows on public columns.

    SciPy adds up the entries of each row by itself: no bit of a product depends on the rows next to
    it, as it would for dense rows.
    """
    if not isinstance(kept, Mapped):
        return rows[:, kept]
    with np.errstate(invalid="ignore", over="ignore"):  # bad rows are known to be bad
        along = sp.csr_array(rows) @ kept.directions - kept.center
    return _columns_joined([rows[:, kept.places], along])


def _columns_joined(parts: list[Block]) -> Block:
    """Return columns next to each other, CSR where the first are."""
    return sp.hstack(parts, format="csr") if sp.issparse(parts[0]) else np.hstack(parts)


# Records (x, y): rows with their targets as numbers, wherever they are.


@dataclass(frozen=True)
class RecordForm:
    """How the targets of a place are read; it is public, and may be sent to workers.

    Attributes
    ----------
    encode : callable
        From targets to float64 columns, each row from its target alone.
    n_targets : int
        Number of columns.
    """

    encode: Callable[[Any], FloatArray]
    n_targets: int

    def __call__(self, rows: RowSource, y: Any) -> RowSource:
        """Return the records of one place."""
        columns = self.columns(y)
        return ZippedRows(rows, {"y": columns, CHECKED: np.zeros(len(columns), np.int8)})

    def alone(self, y: Any) -> RowSource:
        """Return the targets of one place as rows."""
        return row_source(self.columns(y))

    def columns(self, y: Any) -> FloatArray:
        """Return the targets of one place as float64 columns."""
        columns = np.asarray(self.encode(y), np.float64)
        if columns.ndim != 2 or columns.shape[1] != self.n_targets:
            raise ValueError("the targets of a block have another shape")
        return columns


# Rows by group as integers. A row counts as a group of one.


@dataclass(frozen=True)
class GroupMap:
    """Rows of groups in units; the squared norms of a group sum to (length/unit)^2 at most.

    Integers, checked exactly; floats at unit 0. With `reuse` the next such call overwrites them.
    """

    length: float
    unit: float
    reuse: bool = True

    def __call__(self, block: Any) -> Block:
        """Return the weighted rows of a block."""
        root = math.sqrt(rows_each(block))
        rows = by_group(row_map(self.length * root, self.unit * root, reuse=self.reuse), block)
        if self.unit == 0.0 and root != 1.0:
            return entrywise(partial(np.multiply, 1 / root), rows)
        return rows


def group_lengths(block: Any, unit: float = math.inf) -> FloatArray:
    """Return the root mean square of the norms of each group's rows, from that group alone.

    `unit` is that of `row_norms`.
    """
    return np.asarray(row_norms(laid_flat(block), unit) / math.sqrt(rows_each(block)))


def with_bias(block: Groups, bias: float) -> Groups:
    """Return groups whose rows end in a public number."""
    parts = [block.rows, np.full((block.rows.shape[0], 1), bias)]
    return block._replace(rows=_columns_joined(parts))


# Public units of records: a centre to subtract, a scale to divide by, and bounds.
#
# A query clips the result to its own norms, exactly, so that no sensitivity depends on these units.


_SCALED = ScratchOfThread()


class TargetScale(NamedTuple):
    """Public bounds of the targets: clip to [low, high], subtract `center`, divide by `size`.

    The scaled targets of one record have norm at most 1; `size` has one number a target.
    """

    low: FloatArray
    high: FloatArray
    center: FloatArray
    size: FloatArray

    @classmethod
    def in_box(cls, low: FloatArray, high: FloatArray, *, centered: bool) -> TargetScale:
        """Return the scale of targets with an interval each; `size` makes the norm of all <= 1."""
        bounded = np.isfinite(low) & np.isfinite(high)  # infinite bounds occur only without noise
        a, b = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
        center = a + (b - a) / 2 if centered else np.zeros_like(a)
        half = np.maximum(b - center, center - a) * (1 + 1e-12)
        return cls(low, high, center, half * math.sqrt(len(low)))

    @classmethod
    def in_ball(cls, radius: float, n_targets: int) -> TargetScale:
        """Return the scale of targets in a ball about 0; the query clips the norm."""
        edge = np.full(n_targets, float(radius))
        size = edge if math.isfinite(radius) else np.ones(n_targets)
        return cls(-edge, edge, np.zeros(n_targets), size)

    @property
    def nearest(self) -> FloatArray:
        """The points of the bounds nearest to 0, where a search for targets starts."""
        return np.asarray(np.clip(0.0, self.low, self.high))

    def __call__(self, y: FloatArray) -> FloatArray:
        """Return the scaled targets of some records, each from its record alone."""
        return np.asarray((np.clip(y, self.low, self.high) - self.center) / self.size)


class RowScale(NamedTuple):
    """Public units of the columns: subtract `center`, divide by `size`, clip to [`low`, `high`].

    An infinite size leaves zeros.
    """

    center: FloatArray
    size: FloatArray
    low: float | FloatArray
    high: float | FloatArray

    def __call__(self, rows: Block, good: NDArray[np.bool_] | None = None) -> FloatArray:
        """Return rows in these units, each from that row alone; a bad entry is not a number.

        `good` says which rows are known to be finite. The next call of this thread overwrites them.
        """
        dense: FloatArray = np.asarray(rows.toarray() if sp.issparse(rows) else rows)
        scaled = _SCALED.rows.shaped(dense.shape)
        about = dense
        if self.center.any():
            about = np.subtract(dense, self.center, out=scaled)
        np.divide(about, self.size, out=scaled)
        _in_range(scaled, self.low, self.high, scaled)
        bad = np.flatnonzero(~(finite_rows(dense) if good is None else good))
        if bad.size:
            scaled[bad] = np.where(np.isfinite(dense[bad]), scaled[bad], np.nan)
        return scaled

    @property
    def keeps_finite(self) -> bool:
        """Whether finite rows stay finite, even if intermediate results overflow."""
        usable = np.isfinite(self.center) & np.isfinite(self.size) & (self.size > 0.0)
        return bool((usable & np.isfinite(self.low) & np.isfinite(self.high)).all())

    def bounds(self) -> tuple[FloatArray, FloatArray]:
        """Return the entries at which columns are clipped; arbitrary for an infinite size."""
        return self.center + self.size * self.low, self.center + self.size * self.high
