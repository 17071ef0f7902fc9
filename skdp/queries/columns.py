"""Location and spread of columns, one row at a time: the unit is a row.

Notation: d columns; a row with a value that is not finite adds nothing.
"""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp.data.block_rows import finite_only
from skdp.data.blocks import Block, row_source
from skdp.data.scratch import Repeated, Scratch
from skdp.privacy.gate.bounds import Bound, Bounded
from skdp.queries.octaves import OctaveQuery, PlaceQuery
from skdp.queries.sums import Neighbours, SumQuery, summed

FloatArray = NDArray[np.float64]
# Weight of a square beside a value: the largest for which a replaced value moves both together by
# no more than it moves the value alone.
SQUARE_WEIGHT = 1.66


class ColumnQuery(SumQuery):
    """Sums over private rows of what each entry says of its column.

    Parameters
    ----------
    rows : array, CSR matrix, memory map, RowSource or RemoteRows
        The private rows.
    adjacency : {"add_remove", "replace"}
        What neighbours differ in.
    n_jobs : int or None
        Threads for the passes over the rows; it never changes a result.
    """

    def __init__(self, rows: Any, *, adjacency: str, n_jobs: int | None = None) -> None:
        super().__init__(row_source(rows), adjacency=adjacency, n_jobs=n_jobs)
        self.n_features: int = self._source.n_features
        self._octaves: OctaveQuery | None = None
        self._places: PlaceQuery | None = None

    def octaves(self, center: FloatArray) -> OctaveQuery:
        """Return how entries compare with powers of two about a public centre."""
        query = self._beside(OctaveQuery, self._source, center).after(self._octaves)
        self._octaves = query
        return query

    def places(self, center: FloatArray, step: FloatArray) -> PlaceQuery:
        """Return how entries compare with public places: whole steps from a public centre."""
        query = self._beside(PlaceQuery, self._source, center, step).after(self._places)
        self._places = query
        return query

    def moments(self, center: FloatArray, size: FloatArray, count_weight: float) -> Bounded:
        """Return sums of w, of b (w^2 - 1/2) and of c, for w = (x - center)/size cut to [-1, 1].

        c is `count_weight`. Where nothing is protected `size` may be infinite: w = x - center, and
        w^2 is not shifted. Entries that are not stored are counted, and add what 0 adds.
        One row: a column adds w^2 + b^2 (w^2 - 1/2)^2 <= 1 + b^2/4, largest at |w| = 1. Replace,
        with p = w - w' and s = w + w', |p| + |s| <= 2: p^2 (1 + b^2 s^2) <= 4 for b = 1.66, as
        (1 - s/2)^2 (1 + b^2 s^2) <= 1 on [0, 2]; the count does not change, unless one of the two
        rows is not finite: then the other one comes or goes alone.
        """
        d, c = self.n_features, float(count_weight)

        def answer(step: float) -> NDArray[Any]:
            def of_piece(rows: FloatArray) -> NDArray[Any]:
                w, squares = _standard(finite_only(rows), center, size)
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

            def term(block: Block) -> NDArray[Any]:
                return of_stored(block) if sp.issparse(block) else of_piece(block)

            return self._sum(term, (2 * d + 1,), step)

        # Two rows that are replaced have one count.
        slack = math.sqrt(2 * d) if self.neighbours.replace else math.sqrt(2 * d + 1) / 2
        l2 = moments_change(self.neighbours, d, c)
        return Bounded(Bound("moments", (2 * d + 1,), l2, slack=slack), answer)


def moments_change(neighbours: Neighbours, d: int, count_weight: float) -> float:
    """Return the largest change of the moments of d columns; the proof is in `ColumnQuery`."""
    alone = math.sqrt((1 + SQUARE_WEIGHT**2 / 4) * d + count_weight**2)
    return max(alone, math.sqrt(4.0 * d)) if neighbours.replace else alone


def standard_parts(
    rows: FloatArray, center: FloatArray, size: FloatArray, count_weight: float
) -> FloatArray:
    """Return what each row adds to the moments of its columns, from that row alone."""
    w, squares = _standard(rows, center, size)
    return np.hstack([w, squares, np.full((len(w), 1), count_weight)])


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


class _ScratchOfThread(threading.local):
    def __init__(self) -> None:
        self.values, self.squares = Scratch(), Scratch()
        self.center, self.size = Repeated(), Repeated()


_SCRATCH = _ScratchOfThread()
