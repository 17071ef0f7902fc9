"""Ranks of public thresholds among the entries of columns, one row at a time: the unit is a row."""

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

from skdp.data.block_rows import finite_only
from skdp.data.blocks import Block, row_source
from skdp.data.scratch import Repeated, Scratch
from skdp.privacy.gate.bounds import Bounded
from skdp.queries.sums import SumQuery

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


class _ScratchOfThread(threading.local):
    """What lies between a block and its counts."""

    def __init__(self) -> None:
        self.numbers = Scratch()
        self.center, self.octaves = Repeated(), Repeated()
        self.per_step, self.places = Repeated(), Repeated()


_SCRATCH = _ScratchOfThread()

OfBlock = Callable[[Any], NDArray[np.int64]]


@dataclass(frozen=True)
class OctavesOfBlock:
    """The counts of one block, from public numbers alone, so that it can travel."""

    center: FloatArray

    def __call__(self, block: Block) -> NDArray[np.int64]:
        """Return how many entries of the block lie in each part of an octave, by column."""
        rows = finite_only(block)
        if sp.issparse(rows):
            return _counted_stored(rows, self._bins_at, _OCTAVE_BINS + 1)[:, :_OCTAVE_BINS]
        numbers = _SCRATCH.numbers.shaped(rows.shape)
        about = _about(rows, _center_of(rows, self.center), numbers)
        distances = np.abs(about, out=numbers)
        bins = _leading_bits(distances, distances)
        np.clip(bins, _BEFORE_FIRST, _BEFORE_FIRST + _OCTAVE_BINS, out=bins)
        n, d = rows.shape
        first = (_OCTAVE_BINS + 1) * np.arange(d) - _BEFORE_FIRST
        bins += _SCRATCH.octaves.rows(first, n)
        counts = _by_column(bins, _OCTAVE_BINS + 1)
        below = counts[:, 0]
        if below.any():  # numbers below the first bin count for it, those at the centre do not
            counts[:, 1] += below - np.count_nonzero(rows == self.center, axis=0)
        return counts[:, 1:]

    def _bins_at(self, values: FloatArray, columns: NDArray[Any]) -> NDArray[np.intp]:
        return octaves_of(values, self.center[columns])


@dataclass(frozen=True)
class PlacesOfBlock:
    """The counts of one block, from public numbers alone, so that it can travel."""

    center: FloatArray
    step: FloatArray

    def __call__(self, block: Block) -> NDArray[np.int64]:
        """Return how many entries of the block lie in each step, by column."""
        rows = finite_only(block)
        if sp.issparse(rows):
            return _counted_stored(rows, self._bins_at, _PLACE_BINS)
        n, d = rows.shape
        center, numbers = _center_of(rows, self.center), _SCRATCH.numbers.shaped(rows.shape)
        exact = _are_powers_of_two(self.step)  # then a product is as good as the quotient
        inverse = _SCRATCH.per_step.rows(1 / self.step, n) if exact else None
        steps = _places(rows, center, self.step, numbers, inverse=inverse)
        first = _SHIFTED + _COUNTED + _PLACE_BINS * np.arange(d)
        steps += _SCRATCH.places.rows(first, n)
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

    def __call__(self, block: Block) -> NDArray[np.int64]:
        return self.of_block(finite_only(block)[:, self.which])


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
    of_block : type
        From the centre to what counts a block.
    adjacency : {"add_remove", "replace"}
        What neighbours differ in.
    n_jobs : int or None
        Threads for the pass over the rows; it never changes a result.
    """

    def __init__(
        self,
        rows: Any,
        center: FloatArray,
        of_block: Callable[[FloatArray], OfBlock] = OctavesOfBlock,
        **options: Any,
    ) -> None:
        self._center = center
        super().__init__(rows, lambda which: of_block(center[which]), _OCTAVE_BINS, **options)

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
    of_block : type
        From centre and step to what counts a block.
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
        of_block: Callable[[FloatArray, FloatArray], OfBlock] = PlacesOfBlock,
        **options: Any,
    ) -> None:
        self._center, self._step = center, step
        super().__init__(
            rows, lambda which: of_block(center[which], step[which]), _PLACE_BINS, **options
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
    return _SCRATCH.center.rows(center, len(rows)) if center.any() else center


def counted_octaves(octaves: NDArray[np.intp]) -> NDArray[np.int64]:
    """Return how many numbers of each column lie in each part of an octave."""
    return _counted(octaves, _OCTAVE_BINS + 1)[:, :_OCTAVE_BINS]


def counted_places(places: NDArray[np.intp]) -> NDArray[np.int64]:
    """Return how many numbers of each column lie in each step."""
    return _counted(places, _PLACE_BINS)


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
