"""Ranks of public thresholds among the entries of columns, one row at a time: the unit is a row."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp.data.blocks import Block, row_source
from skdp.privacy.gate.bounds import Bounded
from skdp.queries.sums import SumQuery

FloatArray = NDArray[np.float64]
_LOWEST, _HIGHEST = -60, 60  # octaves told apart; what lies outside counts for the outermost
<<<<<<< HEAD
_PARTS = 4  # equal parts of an octave
_SIZE = _PARTS * (_HIGHEST - _LOWEST + 1)
_FARTHEST = 64  # steps told apart, to each side
# The leading bits of a float that is not negative, less one in the last of all bits, count the
# parts of octaves; what is equal to the centre wraps, and goes into a bin of its own.
_SHIFT = 52 - (_PARTS.bit_length() - 1)
_ONE, _BIN_OF_ONE = 1023 * _PARTS - 1, (1 - _LOWEST) * _PARTS - 1  # leading bits of 1; its bin
_BINS = np.clip(np.arange(2 ** (64 - _SHIFT)) - _ONE + _BIN_OF_ONE, 0, _SIZE - 1)
_BINS[-1] = _SIZE
=======
_SIZE = _HIGHEST - _LOWEST + 1
# Bin of each value of the leading twelve bits of a float that is not negative, after one was taken
# off all of its bits; what is equal to the centre goes into a bin of its own.
_BINS = np.clip(np.arange(4096) - 1022, _LOWEST, _HIGHEST) - _LOWEST
_BINS[-1] = NOWHERE = _SIZE


@dataclass(frozen=True)
class OctavesOfBlock:
    """The counts of one block, from public numbers alone, so that it can travel."""

    center: FloatArray

    def __call__(self, block: Block) -> FloatArray:
        """Return how many entries of the block lie in each octave of each column."""
        rows = block.toarray() if sp.issparse(block) else block
        good = np.isfinite(rows).all(axis=1)
        return counted(octaves_of(rows if good.all() else rows[good], self.center))
>>>>>>> main


def _bins(sizes: FloatArray) -> NDArray[np.intp]:
    """Return the bin of each size: that of the threshold which ends it, the last but one for 0."""
    return np.asarray(_BINS[(sizes.view(np.uint64) - np.uint64(1)) >> np.uint64(_SHIFT)])


class _RankQuery(SumQuery):
    """Ranks of thresholds on a public grid, column by column.

    One pass over the rows counts the entries between thresholds; the counts stay in here, and
    answer all questions of a search. A row with a value that is not finite adds nothing.
    """

    def __init__(
        self, rows: Any, bins: _Bins, *, adjacency: str, n_jobs: int | None = None
    ) -> None:
        super().__init__(any_rows(rows), adjacency=adjacency, n_jobs=n_jobs)
        self._bins = bins
        self._counts: NDArray[np.int64] | None = None

    def _ranks(self, last: NDArray[np.intp]) -> Bounded:
        """Return half of the entries in bins up to `last` minus half of those above.

        An entry adds 1/2, -1/2 or nothing to its column; a row an array of norm sqrt(d)/2.
        """
        d = self._source.n_features

        def answer(step: float) -> NDArray[Any]:
            counts = self._cumulated()
            below = counts[np.arange(d), last]
            excess = 2 * below - counts[:, -1]
            if step == 0.0:
                return np.asarray(excess / 2)
            half = round(0.5 / step)
            return np.asarray(np.clip(excess, -(2**62 // half), 2**62 // half) * half)

        return self._array("column_ranks", (d,), math.sqrt(d) / 2, answer)

    def _cumulated(self) -> NDArray[np.int64]:
        """Return how many entries of each column lie in each bin or below."""
        if self._counts is None:
            shape = self._source.n_features, self._bins.size
            self._counts = self._sum(self._bins, shape, 1.0).astype(np.int64).cumsum(axis=1)
        return self._counts


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

<<<<<<< HEAD
    def __init__(self, rows: Any, center: FloatArray, **options: Any) -> None:
        super().__init__(rows, _Octaves(center), **options)
=======
    _of_block: Callable[[FloatArray], Callable[[Any], FloatArray]] = staticmethod(OctavesOfBlock)

    def __init__(
        self, rows: Any, center: FloatArray, *, adjacency: str, n_jobs: int | None = None
    ) -> None:
        super().__init__(row_source(rows), adjacency=adjacency, n_jobs=n_jobs)
        self._center = center
        self._counts: NDArray[np.int64] | None = None
>>>>>>> main

    def ranks(self, thresholds: FloatArray) -> Bounded:
        """Return, for each column, half of the entries at most a threshold minus half of others.

        Thresholds are powers of two and quarters between them. An entry that equals the centre is
        left out.
        """
        return self._ranks(_bins(np.asarray(thresholds, np.float64)))


<<<<<<< HEAD
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

    def __init__(self, rows: Any, center: FloatArray, step: FloatArray, **options: Any) -> None:
        super().__init__(rows, _Places(center, step), **options)

    def ranks(self, steps: FloatArray) -> Bounded:
        """Return, for each column, half of the entries up to so many steps minus half of others."""
        return self._ranks(np.clip(steps, -_FARTHEST, _FARTHEST).astype(np.intp) + _FARTHEST)


class _Bins(Protocol):
    """Counts entries of one block, from public numbers alone, so that it can travel."""

    @property
    def size(self) -> int:
        """Number of bins."""
        ...

    def __call__(self, block: Block) -> FloatArray:
        """Return the counts of each column."""
        ...


@dataclass(frozen=True)
class _Octaves:
    center: FloatArray
    size: int = _SIZE

    def __call__(self, block: Block) -> FloatArray:
        gaps = np.abs(_finite(block) - self.center, dtype=np.float64)
        return _histogram(_bins(gaps), _SIZE + 1)[:, :_SIZE]


@dataclass(frozen=True)
class _Places:
    center: FloatArray
    step: FloatArray
    size: int = 2 * _FARTHEST + 2

    def __call__(self, block: Block) -> FloatArray:
        with np.errstate(over="ignore"):
            steps = np.ceil((_finite(block) - self.center) / self.step)
        bins = np.clip(steps, -_FARTHEST, _FARTHEST + 1).astype(np.intp) + _FARTHEST
        return _histogram(bins, self.size)


def _finite(block: Block) -> FloatArray:
    """Return the rows that have finite values only."""
    rows = np.asarray(block.toarray() if sp.issparse(block) else block)
    good = np.isfinite(rows).all(axis=1)
    return rows if good.all() else rows[good]


def _histogram(bins: NDArray[np.intp], size: int) -> FloatArray:
    d = bins.shape[1]
    counts = np.bincount((bins + size * np.arange(d)).ravel(), minlength=d * size)
    return counts.reshape(d, size).astype(np.float64)
=======
        change = self.neighbours.array(math.sqrt(d) / 2)
        return self._array("column_ranks", (d,), change, answer)

    def _octave_counts(self) -> NDArray[np.int64]:
        if self._counts is None:
            term, shape = self._of_block(self._center), (self._source.n_features, _SIZE)
            self._counts = self._sum(term, shape, 1.0).astype(np.int64)
        return self._counts


def octaves_of(rows: FloatArray, center: FloatArray) -> NDArray[np.intp]:
    """Return the number of the octave of each |x - center|, `NOWHERE` for 0."""
    gaps = np.abs(rows - center, dtype=np.float64)
    # The bits of a float, less one, begin with the octave that it lies in or ends; 0 wraps.
    return np.asarray(_BINS[(gaps.view(np.uint64) - np.uint64(1)) >> np.uint64(52)])


def counted(octaves: NDArray[np.intp]) -> FloatArray:
    """Return how many numbers of each column lie in each octave."""
    d = octaves.shape[1]
    places = (octaves + (_SIZE + 1) * np.arange(d)).ravel()
    counts = np.bincount(places, minlength=d * (_SIZE + 1))
    return np.asarray(counts.reshape(-1, _SIZE + 1)[:, :_SIZE].astype(np.float64))
>>>>>>> main
