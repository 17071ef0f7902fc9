"""Numbers of single rows and counts of entries, computed and kept where the rows are.

Rows may live elsewhere: what travels is a function of public values (to where the rows are) and an
integer sum (back). Narrowed views of such rows are here too.

Entries of columns are counted in public bins: parts of octaves, and steps from a centre. A row with
a value that is not finite adds nothing, nor does a group with one. A group has one number in each
column: the mean over its rows of what their entries count for, rounded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol, TypeGuard, cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp.data.blocks import (
    AnyRows,
    Block,
    RemoteRows,
    Repeated,
    RowSource,
    Scratch,
    SparseRows,
    checked_total,
    each_part,
    plain_block,
)
from skdp.data.views import (
    ColumnRows,
    Columns,
    Groups,
    View,
    ViewedRows,
    ZippedRows,
    group_sums,
    selected,
    sources_in_turn,
    whole_groups,
)

FloatArray = NDArray[np.float64]
_MOST_ORDERED = 2**15  # more are counted faster one question after the other


class Kept(Protocol):
    """Arrays, one for each part, kept where the parts are."""

    def sum_parts(self, work: Callable[[Any], NDArray[Any]]) -> NDArray[Any]:
        """Return the sum of ``work(array)``."""
        ...


def _composed(part: Any, *, outer: Callable[[Any], Any], inner: Callable[[Any], Any]) -> Any:
    """First `inner`, then `outer`: as a partial function it holds no rows, and can travel."""
    return outer(inner(part))


@dataclass(frozen=True)
class _KeptHere:
    made: list[tuple[RowSource, Any]]

    def sum_parts(self, work: Callable[[Any], NDArray[Any]]) -> NDArray[Any]:
        return np.asarray(sum(work(made) for _, made in self.made))


def is_remote(source: AnyRows) -> TypeGuard[RemoteRows]:
    """Whether the rows can only be summed where they are."""
    return hasattr(source, "sum_parts")


def _keep(source: AnyRows, make: Callable[[RowSource], Any], n_jobs: int | None = None) -> Kept:
    if not is_remote(source):
        return _KeptHere(each_part(cast(RowSource, source), make, n_jobs))
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


def narrowed(source: AnyRows, view: View, n_features: int) -> AnyRows:
    """Return the rows behind a public view, here or where they are."""
    if is_remote(source):
        wrap = partial(ViewedRows, view=view, n_features=n_features)
        return RemoteView(source, wrap, n_features)
    return ViewedRows(cast(RowSource, source), view, n_features)


def selected_columns(source: AnyRows, kept: NDArray[np.intp]) -> AnyRows:
    """Return the rows on a public selection of columns; a row with a bad value stays one."""
    if isinstance(source, (SparseRows, ColumnRows)):
        return ColumnRows(source, kept)
    return narrowed(source, partial(selected, kept=kept), len(kept))


def _columns_of_part(
    part: RowSource, *, compute: Callable[[Block], Sequence[NDArray[Any]]], names: tuple[str, ...]
) -> Columns:
    """Make columns of one part: from each block one array for each name."""
    with np.errstate(all="ignore"):
        return _joined([compute(plain_block(block)) for block in part.blocks()], names)


def _joined(found: Sequence[Sequence[NDArray[Any]]], names: tuple[str, ...]) -> Columns:
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
        self._last: tuple[Any, Numbers] | None = None

    @cached_property
    def _source(self) -> AnyRows:
        source: AnyRows = self._given() if callable(self._given) else self._given
        return source

    def _made(self) -> Any:
        if self._kept is None:
            self._kept = _keep(self._source, self._make, self._n_jobs)
        return self._kept

    def sum(
        self, work: Callable[[Columns], NDArray[Any]], shape: tuple[int, ...] = ()
    ) -> NDArray[Any]:
        """Return the sum of the int64 ``work(columns)`` over all parts."""
        return checked_total(self._made().sum_parts(work), shape, "int64")

    def numbers(self, of: Callable[[Columns], FloatArray]) -> Numbers:
        """Return one number of each row, a public function of its columns.

        The last ones are handed out again: a search asks of the same numbers many times.
        """
        key = _key_of(of)
        if self._last is None or self._last[0] != key:
            self._last = key, Numbers(self, of)
        return self._last[1]

    @property
    def kept_here(self) -> bool:
        """Whether they were made, and lie here."""
        return isinstance(self._kept, _KeptHere)

    def beside(self) -> AnyRows:
        """Return the rows with these columns (blocks `Zipped`), wherever they are."""
        kept = self._made()
        if isinstance(kept, _KeptHere):
            parts = [ZippedRows(part, made) for part, made in kept.made]
            return sources_in_turn(parts, self._source.n_features)
        zipped: AnyRows = cast(Any, self._source).zipped(kept)
        return zipped

    def then(self, compute: Callable[[Block], Sequence[NDArray[Any]]], *names: str) -> RowColumns:
        """Return columns that are made of the rows beside these columns."""
        return RowColumns(self.beside, compute, *names, n_jobs=self._n_jobs)

    def median(self, name: str) -> float:
        """Return the median of a public column (0 of none), computed where the rows are."""
        kept = self._made()
        if isinstance(kept, _KeptHere):
            return _median(np.concatenate([made[name] for _, made in kept.made]))
        return float(kept.reduce(partial(_column, name=name), _concatenated, _median))


def _key_of(of: Callable[[Columns], FloatArray]) -> Any:
    """Return what tells a function from others: partial ones are equal in their parts alone."""
    key: Any = (of.func, of.args, tuple(of.keywords.items())) if isinstance(of, partial) else of
    try:
        hash(key)
    except TypeError:  # made with arrays, which have no one answer to whether they are equal
        return object()
    return key


def _column(columns: Columns, name: str) -> NDArray[Any]:
    return columns[name]


def _concatenated(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate([a, b])


def _median(values: NDArray[Any]) -> float:
    return float(np.median(values)) if values.size else 0.0


@dataclass(frozen=True)
class Numbers:
    """One number of each row, made of kept columns for each sum."""

    columns: RowColumns
    of: Callable[[Columns], FloatArray]

    def sum(
        self, work: Callable[[FloatArray], NDArray[Any]], shape: tuple[int, ...] = ()
    ) -> NDArray[Any]:
        """Return the sum of the int64 ``work(numbers)`` over all parts."""
        return self.columns.sum(partial(_composed, outer=work, inner=self.of), shape)

    @cached_property
    def ordered(self) -> FloatArray | None:
        """The numbers in order, what is no number last: for many counts. None where they are not.

        Numbers that are elsewhere, or too many, stay as they are.
        """
        kept = self.columns._made()
        if not isinstance(kept, _KeptHere):
            return None
        parts = [self.of(made) for _, made in kept.made]
        return np.sort(np.concatenate(parts)) if sum(map(len, parts)) <= _MOST_ORDERED else None


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
        super().__init__(columns, partial(_column, name="numbers"))


# Counts of the entries of columns in public bins.


_LOWEST, _HIGHEST = -60, 60  # octaves told apart; what lies outside counts for the outermost
_PARTS = 4  # equal parts of an octave
OCTAVE_BINS = _PARTS * (_HIGHEST - _LOWEST + 1)
FARTHEST = 64  # steps from the centre, to each side, that may be asked about
COUNTED = 2 * FARTHEST  # and that are told apart: a centre may move
PLACE_BINS = 2 * COUNTED + 2
# The leading bits of a float that is not negative, after one was taken off all of its bits, count
# the parts of octaves; what is equal to the centre wraps, and goes into a bin of its own.
_SHIFT = 52 - (_PARTS.bit_length() - 1)
_ONE, _BIN_OF_ONE = 1023 * _PARTS - 1, (1 - _LOWEST) * _PARTS - 1  # leading bits of 1; its bin
_BINS = np.clip(np.arange(2 ** (64 - _SHIFT)) - _ONE + _BIN_OF_ONE, 0, OCTAVE_BINS - 1)
_BINS[-1] = NOWHERE = OCTAVE_BINS
_BEFORE_FIRST = _ONE - _BIN_OF_ONE - 1  # leading bits just below the first bin
# Added to a whole number that is a float, it leaves that number in the low bits.
_SHIFTED = 1.5 * 2.0**52
_BITS_OF_SHIFTED = int(np.array(_SHIFTED).view(np.int64))


class _OctaveScratch(threading.local):
    """What lies between a block and its counts."""

    def __init__(self) -> None:
        self.numbers = Scratch()
        self.center, self.octaves = Repeated(), Repeated()
        self.per_step, self.places = Repeated(), Repeated()


_OCTAVE_SCRATCH = _OctaveScratch()


@dataclass(frozen=True)
class OctavesOfBlock:
    """The counts of one block, from public numbers alone, so that it can travel."""

    center: FloatArray

    def __call__(self, block: Any) -> NDArray[np.int64]:
        """Return how many entries of the block lie in each part of an octave, by column."""
        rows = whole_groups(block)
        if isinstance(rows, Groups):
            return self._of_groups(rows)
        if sp.issparse(rows):
            return _counted_stored(rows, self._bins_at, OCTAVE_BINS + 1)[:, :OCTAVE_BINS]
        numbers = _OCTAVE_SCRATCH.numbers.shaped(rows.shape)
        about = _about(rows, _center_of(rows, self.center), numbers)
        distances = np.abs(about, out=numbers)
        bins = _leading_bits(distances, distances)
        np.clip(bins, _BEFORE_FIRST, _BEFORE_FIRST + OCTAVE_BINS, out=bins)
        n, d = rows.shape
        first = (OCTAVE_BINS + 1) * np.arange(d) - _BEFORE_FIRST
        bins += _OCTAVE_SCRATCH.octaves.rows(first, n)
        counts = _by_column(bins, OCTAVE_BINS + 1)
        below = counts[:, 0]
        if below.any():  # numbers below the first bin count for it, those at the centre do not
            counts[:, 1] += below - np.count_nonzero(rows == self.center, axis=0)
        return counts[:, 1:]

    def _of_groups(self, groups: Groups) -> NDArray[np.int64]:
        octaves = octaves_of(groups.rows, self.center)
        somewhere = octaves < NOWHERE
        totals = group_sums(np.where(somewhere, octaves, 0), groups)
        counts = group_sums(somewhere.astype(np.int64), groups)
        mean = np.rint(totals / np.maximum(counts, 1)).astype(np.intp)
        counted = _counted(np.where(counts > 0, mean, NOWHERE), OCTAVE_BINS + 1)
        return counted[:, :OCTAVE_BINS]

    def _bins_at(self, values: FloatArray, columns: NDArray[Any]) -> NDArray[np.intp]:
        return octaves_of(values, self.center[columns])


@dataclass(frozen=True)
class PlacesOfBlock:
    """The counts of one block, from public numbers alone, so that it can travel."""

    center: FloatArray
    step: FloatArray

    def __call__(self, block: Any) -> NDArray[np.int64]:
        """Return how many entries of the block lie in each step, by column."""
        rows = whole_groups(block)
        if isinstance(rows, Groups):
            totals = group_sums(places_of(rows.rows, self.center, self.step), rows)
            return _counted(np.rint(totals / rows.each).astype(np.intp), PLACE_BINS)
        if sp.issparse(rows):
            return _counted_stored(rows, self._bins_at, PLACE_BINS)
        n, d = rows.shape
        center, numbers = _center_of(rows, self.center), _OCTAVE_SCRATCH.numbers.shaped(rows.shape)
        exact = _are_powers_of_two(self.step)  # then a product is as good as the quotient
        inverse = _OCTAVE_SCRATCH.per_step.rows(1 / self.step, n) if exact else None
        steps = _places(rows, center, self.step, numbers, inverse=inverse)
        first = _SHIFTED + COUNTED + PLACE_BINS * np.arange(d)
        steps += _OCTAVE_SCRATCH.places.rows(first, n)
        bins = steps.view(np.int64)
        bins -= _BITS_OF_SHIFTED
        return _by_column(bins, PLACE_BINS)

    def _bins_at(self, values: FloatArray, columns: NDArray[Any]) -> NDArray[np.intp]:
        return places_of(values, self.center[columns], self.step[columns], COUNTED)


def octaves_of(rows: FloatArray, center: FloatArray) -> NDArray[np.intp]:
    """Return the number of the part of an octave of each |x - center|, `NOWHERE` for 0."""
    return bins_of(np.abs(rows - center, dtype=np.float64))


def places_of(
    rows: FloatArray, center: FloatArray, step: FloatArray, farthest: int = FARTHEST
) -> NDArray[np.intp]:
    """Return the number of the step that each entry lies in; entries beyond lie in the outermost.

    To each side `farthest` are told apart.
    """
    steps = _places(rows, center, step, np.empty(rows.shape), farthest)
    return np.asarray(steps + COUNTED, np.intp)


def _places(
    rows: FloatArray,
    center: FloatArray,
    step: FloatArray,
    out: FloatArray,
    farthest: int = COUNTED,
    inverse: FloatArray | None = None,
) -> FloatArray:
    """Return the steps from the centre in which entries lie.

    `inverse` is 1/step, where products are as exact as quotients.
    """
    with np.errstate(over="ignore"):
        about = _about(rows, center, out)
        if inverse is None:
            steps = np.divide(about, step, out=out)
        else:
            steps = np.multiply(about, inverse, out=out)
    return np.clip(np.ceil(steps, out=steps), -farthest, farthest + 1, out=steps)


def _are_powers_of_two(step: FloatArray) -> bool:
    """Whether all are, and so far from the ends of the range that their inverses are, too."""
    digits, exponents = np.frexp(step)
    return bool(np.all(digits == 0.5) and np.all(np.abs(exponents) < 1000))


def _about(rows: FloatArray, center: FloatArray, out: FloatArray) -> FloatArray:
    """Return rows minus a public centre: as they are, where it is 0."""
    return np.subtract(rows, center, out=out) if center.any() else rows


def _center_of(rows: FloatArray, center: FloatArray) -> FloatArray:
    """Return a centre for each of the rows, or for all if it is 0."""
    return _OCTAVE_SCRATCH.center.rows(center, len(rows)) if center.any() else center


def bins_of(sizes: FloatArray) -> NDArray[np.intp]:
    """Return the bin of each size: that of the threshold which ends it."""
    return np.asarray(_BINS.take(_leading_bits(sizes, np.empty(sizes.shape))))


def _leading_bits(sizes: FloatArray, out: FloatArray) -> NDArray[np.int64]:
    """Return what stands for a size in the table of bins, in the memory of `out`: -1 for 0."""
    bits = np.subtract(sizes.view(np.int64), 1, out=out.view(np.int64))
    bits >>= _SHIFT
    return bits


def _counted(bins: NDArray[np.intp], size: int) -> NDArray[np.int64]:
    """Count each column by itself."""
    return _by_column(bins + size * np.arange(bins.shape[1]), size)


def _by_column(numbers: NDArray[np.intp], size: int) -> NDArray[np.int64]:
    """Count numbers, of which each column has so many of its own."""
    d = numbers.shape[1]
    counts = np.bincount(numbers.ravel(), minlength=d * size)
    return np.asarray(counts.reshape(d, size), np.int64)


def _counted_stored(
    rows: Any, bins_at: Callable[[FloatArray, NDArray[Any]], NDArray[np.intp]], size: int
) -> NDArray[np.int64]:
    """Count the stored entries of each column by their bins, and all others as zeros."""
    n, d = rows.shape
    columns = np.asarray(rows.indices, np.intp)
    counts = np.bincount(columns * size + bins_at(rows.data, columns), minlength=d * size)
    counts = counts.reshape(d, size)
    every = np.arange(d)
    counts[every, bins_at(np.zeros(d), every)] += n - np.bincount(columns, minlength=d)
    return np.asarray(counts, np.int64)
