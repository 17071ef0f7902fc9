"""Location and spread of columns: ranks, counts and sums, in the units row and group.

Notation: d columns; a row with a value that is not finite adds nothing, nor does a group with one.
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp.data.blocks import Repeated, Scratch, ScratchOfThread, finite_only, row_source
from skdp.data.views import Groups, group_sums, rows_each, rows_of, whole_groups, with_rows
from skdp.privacy.gate.bounds import Bound, Bounded
from skdp.queries.sums import GroupQuery, Neighbours, SumQuery, summed

# Ranks of public thresholds among the entries of columns, one row or one group at a time.
#
# A group has one number in each column: the mean over its rows of what their entries count for,
# rounded. It then adds what an entry adds.


FloatArray = NDArray[np.float64]
_LOWEST, _HIGHEST = -60, 60  # octaves told apart; what lies outside counts for the outermost
_PARTS = 4  # equal parts of an octave
_OCTAVE_BINS = _PARTS * (_HIGHEST - _LOWEST + 1)
_FARTHEST = 64  # steps from the centre, to each side, that may be asked about
_COUNTED = 2 * _FARTHEST  # and that are told apart: a centre may move
_PLACE_BINS = 2 * _COUNTED + 2
_FRESH = 0.5  # of the columns: that many are taken out of the rows rather than all counted
# The leading bits of a float that is not negative, after one was taken off all of its bits, count
# the parts of octaves; what is equal to the centre wraps, and goes into a bin of its own.
_SHIFT = 52 - (_PARTS.bit_length() - 1)
_ONE, _BIN_OF_ONE = 1023 * _PARTS - 1, (1 - _LOWEST) * _PARTS - 1  # leading bits of 1; its bin
_BINS = np.clip(np.arange(2 ** (64 - _SHIFT)) - _ONE + _BIN_OF_ONE, 0, _OCTAVE_BINS - 1)
_BINS[-1] = NOWHERE = _OCTAVE_BINS
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

OfBlock = Callable[[Any], NDArray[np.int64]]


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
            return _counted_stored(rows, self._bins_at, _OCTAVE_BINS + 1)[:, :_OCTAVE_BINS]
        numbers = _OCTAVE_SCRATCH.numbers.shaped(rows.shape)
        about = _about(rows, _center_of(rows, self.center), numbers)
        distances = np.abs(about, out=numbers)
        bins = _leading_bits(distances, distances)
        np.clip(bins, _BEFORE_FIRST, _BEFORE_FIRST + _OCTAVE_BINS, out=bins)
        n, d = rows.shape
        first = (_OCTAVE_BINS + 1) * np.arange(d) - _BEFORE_FIRST
        bins += _OCTAVE_SCRATCH.octaves.rows(first, n)
        counts = _by_column(bins, _OCTAVE_BINS + 1)
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
        counted = _counted(np.where(counts > 0, mean, NOWHERE), _OCTAVE_BINS + 1)
        return counted[:, :_OCTAVE_BINS]

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
            return _counted(np.rint(totals / rows.each).astype(np.intp), _PLACE_BINS)
        if sp.issparse(rows):
            return _counted_stored(rows, self._bins_at, _PLACE_BINS)
        n, d = rows.shape
        center, numbers = _center_of(rows, self.center), _OCTAVE_SCRATCH.numbers.shaped(rows.shape)
        exact = _are_powers_of_two(self.step)  # then a product is as good as the quotient
        inverse = _OCTAVE_SCRATCH.per_step.rows(1 / self.step, n) if exact else None
        steps = _places(rows, center, self.step, numbers, inverse=inverse)
        first = _SHIFTED + _COUNTED + _PLACE_BINS * np.arange(d)
        steps += _OCTAVE_SCRATCH.places.rows(first, n)
        bins = steps.view(np.int64)
        bins -= _BITS_OF_SHIFTED
        return _by_column(bins, _PLACE_BINS)

    def _bins_at(self, values: FloatArray, columns: NDArray[Any]) -> NDArray[np.intp]:
        return places_of(values, self.center[columns], self.step[columns], _COUNTED)


@dataclass(frozen=True)
class _OnColumns:
    """The counts of some columns; a row with a bad value in any of them adds nothing."""

    of_block: OfBlock
    which: NDArray[np.intp]

    def __call__(self, block: Any) -> NDArray[np.int64]:
        whole = whole_groups(block)
        return self.of_block(with_rows(whole, rows_of(whole)[:, self.which]))


class _RankQuery(SumQuery, ABC):
    """Ranks of thresholds on a public grid, column by column.

    One pass over the rows counts the entries between thresholds; the counts stay in here, and
    answer all questions of a search. A row with a value that is not finite adds nothing.
    """

    def __init__(
        self,
        rows: Any,
        of_columns: Callable[[Any], OfBlock],
        bins: int,
        *,
        adjacency: str,
        n_jobs: int | None = None,
    ) -> None:
        super().__init__(row_source(rows), adjacency=adjacency, n_jobs=n_jobs)
        self._of_columns, self._bins = of_columns, bins
        self._cumulated: NDArray[np.int64] | None = None
        self._shift = np.zeros(self._source.n_features, np.intp)  # of bins, where counts are older
        self._before: Any = None

    def after(self, before: _RankQuery | None) -> Self:
        """Return this query, which counts no column again that `before` counted: of the same rows.

        `before` has the same type.
        """
        self._before = before
        return self

    @abstractmethod
    def _moved(self, before: Any) -> FloatArray:
        """Return how many bins each column moved since the query before; no number: anew."""

    def _ranks(self, last: NDArray[np.intp]) -> Bounded:
        """Return half of the entries in bins up to `last` minus half of those above.

        An entry adds 1/2, -1/2 or nothing to its column; a row an array of norm sqrt(d)/2.
        """
        d = self._source.n_features

        def answer(step: float) -> NDArray[Any]:
            counts = self._counts()
            excess = 2 * counts[np.arange(d), last + self._shift] - counts[:, -1]
            if step == 0.0:
                return np.asarray(excess / 2)
            half = round(0.5 / step)
            most = 2**62 // half
            return np.asarray(np.minimum(np.maximum(excess, -most), most) * half)

        change = self.neighbours.array(math.sqrt(d) / 2)
        return self._array("column_ranks", (d,), change, answer)

    def _counts(self) -> NDArray[np.int64]:
        """Return how many entries of each column lie in each bin or below."""
        if self._cumulated is None:
            self._cumulated = self._made(self._before)
            self._before = None
        return self._cumulated

    def _made(self, before: Any) -> NDArray[np.int64]:
        d = self._source.n_features
        counted = before is not None and before._cumulated is not None
        moved = self._moved(before) if counted else np.full(d, np.nan)
        new = np.flatnonzero(np.isnan(moved))
        if new.size > _FRESH * d:
            return self._sum(self._of_columns(np.arange(d)), (d, self._bins), 1.0).cumsum(axis=1)
        self._shift = np.where(np.isnan(moved), 0, before._shift + moved).astype(np.intp)
        if not new.size:
            counts: NDArray[np.int64] = before._cumulated
            return counts
        counts = before._cumulated.copy()
        term = _OnColumns(self._of_columns(new), new)
        counts[new] = self._sum(term, (new.size, self._bins), 1.0).cumsum(axis=1)
        return counts


class OctaveQuery(_RankQuery):
    """Ranks of public powers of two, and quarters between them, among |x - center|.

    Parameters
    ----------
    rows : array, CSR matrix, memory map, RowSource or RemoteRows
        The private rows.
    center : array of shape (d,)
        Public.
    adjacency : {"add_remove", "replace"}
        What neighbours differ in.
    n_jobs : int or None
        Threads for the pass over the rows; it never changes a result.
    """

    def __init__(
        self,
        rows: Any,
        center: FloatArray,
        **options: Any,
    ) -> None:
        self._center = center
        super().__init__(rows, lambda which: OctavesOfBlock(center[which]), _OCTAVE_BINS, **options)

    def _moved(self, before: OctaveQuery) -> FloatArray:
        return np.where(self._center == before._center, 0.0, np.nan)

    def ranks(self, thresholds: FloatArray) -> Bounded:
        """Return, for each column, half of the entries at most a threshold minus half of others.

        Thresholds are powers of two and quarters between them. An entry that equals the centre is
        left out.
        """
        return self._ranks(_bins(np.asarray(thresholds, np.float64)))


class PlaceQuery(_RankQuery):
    """Ranks of public places among entries: of whole steps from a centre.

    Parameters
    ----------
    rows : array, CSR matrix, memory map, RowSource or RemoteRows
        The private rows.
    center, step : array of shape (d,)
        Public.
    adjacency : {"add_remove", "replace"}
        What neighbours differ in.
    n_jobs : int or None
        Threads for the pass over the rows; it never changes a result.
    """

    def __init__(
        self,
        rows: Any,
        center: FloatArray,
        step: FloatArray,
        **options: Any,
    ) -> None:
        self._center, self._step = center, step
        super().__init__(
            rows, lambda which: PlacesOfBlock(center[which], step[which]), _PLACE_BINS, **options
        )

    def _moved(self, before: PlaceQuery) -> FloatArray:
        """Return how many whole steps the centre of each column moved, if steps are the same."""
        moved = (self._center - before._center) / self._step
        within = np.abs(before._shift + moved) <= _COUNTED - _FARTHEST
        same = (self._step == before._step) & (moved == np.rint(moved)) & within
        return np.where(same, moved, np.nan)

    def ranks(self, steps: FloatArray) -> Bounded:
        """Return, for each column, half of the entries up to so many steps minus half of others."""
        return self._ranks(np.clip(steps, -_FARTHEST, _FARTHEST).astype(np.intp) + _COUNTED)


def octaves_of(rows: FloatArray, center: FloatArray) -> NDArray[np.intp]:
    """Return the number of the part of an octave of each |x - center|, `NOWHERE` for 0."""
    return _bins(np.abs(rows - center, dtype=np.float64))


def places_of(
    rows: FloatArray, center: FloatArray, step: FloatArray, farthest: int = _FARTHEST
) -> NDArray[np.intp]:
    """Return the number of the step that each entry lies in; entries beyond lie in the outermost.

    To each side `farthest` are told apart.
    """
    steps = _places(rows, center, step, np.empty(rows.shape), farthest)
    return np.asarray(steps + _COUNTED, np.intp)


def _places(
    rows: FloatArray,
    center: FloatArray,
    step: FloatArray,
    out: FloatArray,
    farthest: int = _COUNTED,
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


def _bins(sizes: FloatArray) -> NDArray[np.intp]:
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


# Weight of a square beside a value: the largest for which a replaced value moves both together by
# no more than it moves the value alone.
SQUARE_WEIGHT = 1.66
_FINE = 2.0**30  # parts of rows of a group are whole multiples of its inverse
_WIDER = 1 + 1e-8  # and so move the bound by less than this


class ColumnQuery(GroupQuery):
    """Sums over private rows of what each entry says of its column.

    Parameters
    ----------
    rows : array, CSR matrix, memory map, RowSource or RemoteRows
        The private rows, or batches of groups of them.
    by_group : bool
        Whether all rows of a group are one unit.
    adjacency : {"add_remove", "replace"}
        What neighbours differ in.
    n_jobs : int or None
        Threads for the passes over the rows; it never changes a result.
    """

    _octaves: OctaveQuery | None = None
    _places: PlaceQuery | None = None

    def octaves(self, center: FloatArray) -> OctaveQuery:
        """Return how entries compare with powers of two about a public centre.

        A group compares by the mean octave of its rows: that of their geometric mean.
        """
        query = self._beside(OctaveQuery, self._source, center).after(self._octaves)
        self._octaves = query
        return query

    def places(self, center: FloatArray, step: FloatArray) -> PlaceQuery:
        """Return how entries compare with public places: whole steps from a public centre.

        A group compares by its mean step.
        """
        query = self._beside(PlaceQuery, self._source, center, step).after(self._places)
        self._places = None if self.by_group else query  # mean steps do not move with a centre
        return query

    def moments(self, center: FloatArray, size: FloatArray, count_weight: float) -> Bounded:
        """Return sums of w, of b (w^2 - 1/2) and of c, for w = (x - center)/size cut to [-1, 1].

        c is `count_weight`. Where nothing is protected `size` may be infinite: w = x - center, and
        w^2 is not shifted. Entries that are not stored are counted, and add what 0 adds.
        One row: a column adds w^2 + b^2 (w^2 - 1/2)^2 <= 1 + b^2/4, largest at |w| = 1. Replace,
        with p = w - w' and s = w + w', |p| + |s| <= 2: p^2 (1 + b^2 s^2) <= 4 for b = 1.66, as
        (1 - s/2)^2 (1 + b^2 s^2) <= 1 on [0, 2]; the count does not change, unless one of the two
        rows is not finite: then the other one comes or goes alone.
        A group adds the mean of what its rows would add. Norms of it and of differences are convex:
        largest for single rows.
        """
        d, c = self.n_features, float(count_weight)

        def answer(step: float) -> NDArray[Any]:
            def of_piece(block: Any) -> NDArray[Any]:
                whole = whole_groups(block)
                parts = _standard(rows_of(whole), center, size)
                w, squares = (_mean(part, whole, step) for part in parts)
                last = summed(np.array([[c]]), step) * len(w)
                return np.hstack([_summed(w, step), _summed(squares, step), last])

            def of_stored(block: Any) -> NDArray[Any]:
                rows = finite_only(block)
                zeros = of_piece(np.zeros((1, d)))
                parts = _standard(rows.data, center[rows.indices], size[rows.indices])
                stored = np.bincount(rows.indices, minlength=d)
                sums = [
                    _summed_by(part, rows.indices, d, step) + (rows.shape[0] - stored) * zero
                    for part, zero in zip(parts, (zeros[:d], zeros[d:-1]), strict=True)
                ]
                return np.hstack([*sums, zeros[-1:] * rows.shape[0]])

            def term(block: Any) -> NDArray[Any]:
                return of_stored(block) if sp.issparse(block) else of_piece(block)

            return self._sum(term, (2 * d + 1,), step)

        # Two rows that are replaced have one count.
        slack = math.sqrt(2 * d) if self.neighbours.replace else math.sqrt(2 * d + 1) / 2
        l2 = moments_change(self.neighbours, d, c) * (_WIDER if self.by_group else 1.0)
        return Bounded(Bound("moments", (2 * d + 1,), l2, slack=slack), answer)


def moments_change(neighbours: Neighbours, d: int, count_weight: float) -> float:
    """Return the largest change of the moments of d columns; the proof is in `ColumnQuery`."""
    alone = math.sqrt((1 + SQUARE_WEIGHT**2 / 4) * d + count_weight**2)
    return max(alone, math.sqrt(4.0 * d)) if neighbours.replace else alone


def _mean(values: FloatArray, block: Any, step: float) -> FloatArray:
    """Return the mean over the rows of each group, in no order; floats at step 0."""
    m = rows_each(block)
    if m == 1:
        return values
    if step == 0.0:
        return np.asarray(group_sums(values, block) / m)
    return np.asarray(group_sums(np.rint(values * _FINE).astype(np.int64), block) / (m * _FINE))


def _standard(
    rows: FloatArray, center: FloatArray, size: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return w and b (w^2 - 1/2); the next call of this thread overwrites them."""
    finite = np.isfinite(size)
    cut, shift = np.where(finite, 1.0, np.inf), np.where(finite, 0.5, 0.0)
    if finite.all():  # single numbers are faster
        cut, shift = np.array(1.0), np.array(0.5)
    w = _SCRATCH.values.shaped(rows.shape)
    about = rows
    if center.any():
        about = np.subtract(rows, _for_each(_SCRATCH.center, center, rows), out=w)
    np.divide(about, _for_each(_SCRATCH.size, np.where(finite, size, 1.0), rows), out=w)
    np.clip(w, -cut, cut, out=w)
    squares = np.multiply(w, w, out=_SCRATCH.squares.shaped(rows.shape))
    squares -= shift
    squares *= SQUARE_WEIGHT
    return w, squares


def _for_each(repeated: Repeated, vector: FloatArray, rows: FloatArray) -> Any:
    """Return a vector for each row; for entries of a sparse block it holds one number each."""
    return repeated.rows(vector, len(rows)) if rows.ndim == 2 else vector


def _summed(values: FloatArray, step: float) -> NDArray[Any]:
    """Return the sum of the rows of a block, each rounded to steps, which overwrites them.

    Sums of the integers of a block are exact as floats.
    """
    if step == 0.0:
        return np.asarray(values.sum(axis=0))
    values /= step
    return np.asarray(np.rint(values, out=values).sum(axis=0).astype(np.int64))


def _summed_by(values: FloatArray, columns: NDArray[Any], d: int, step: float) -> NDArray[Any]:
    """Return sums of some entries by column, each entry rounded to steps, which overwrites them."""
    if step == 0.0:
        return np.bincount(columns, values, d)
    values /= step
    return np.bincount(columns, np.rint(values, out=values), d).astype(np.int64)


_SCRATCH = ScratchOfThread()
