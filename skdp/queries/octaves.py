"""How entries of columns compare with powers of two, one row at a time: the unit is a row."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp.data.blocks import Block, row_source
from skdp.data.dense_pieces import dense_pieces
from skdp.privacy.gate.bounds import Bounded
from skdp.queries.sums import SumQuery

FloatArray = NDArray[np.float64]
_LOWEST, _HIGHEST = -60, 60  # octaves told apart; what lies outside counts for the outermost
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
        return np.asarray(sum(map(self._of_piece, dense_pieces(block))))

    def _of_piece(self, rows: FloatArray) -> FloatArray:
        good = np.isfinite(rows).all(axis=1)
        return counted(octaves_of(rows if good.all() else rows[good], self.center))


class OctaveQuery(SumQuery):
    """Ranks of public powers of two among |x - center|, column by column.

    One pass over the rows counts the entries of each octave; the counts stay in here, and answer
    all questions of a search. A row with a value that is not finite adds nothing.

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

    _of_block: Callable[[FloatArray], Callable[[Any], FloatArray]] = staticmethod(OctavesOfBlock)

    def __init__(
        self, rows: Any, center: FloatArray, *, adjacency: str, n_jobs: int | None = None
    ) -> None:
        super().__init__(row_source(rows), adjacency=adjacency, n_jobs=n_jobs)
        self._center = center
        self._counts: NDArray[np.int64] | None = None

    def ranks(self, thresholds: FloatArray) -> Bounded:
        """Return, for each column, half of the entries at most 2**e minus half of those above.

        An entry that equals the centre is left out. A row adds 0, 1/2 or -1/2 to each of d
        columns: an array of norm sqrt(d)/2.
        """
        d = self._source.n_features
        last = np.clip(np.frexp(thresholds)[1] - 1, _LOWEST, _HIGHEST) - _LOWEST

        def answer(step: float) -> NDArray[Any]:
            counts = self._octave_counts()
            below = np.take_along_axis(np.cumsum(counts, axis=1), last[:, None], axis=1)[:, 0]
            excess = 2 * below - counts.sum(axis=1)
            if step == 0.0:
                return np.asarray(excess / 2)
            half = round(0.5 / step)
            return np.asarray(np.clip(excess, -(2**62 // half), 2**62 // half) * half)

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
