"""Location and spread of columns: ranks, counts and sums, in the units row and group.

Notation: d columns; a row with a value that is not finite adds nothing, nor does a group with one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp.data.blocks import Repeated, ScratchOfThread, finite_only, row_source
from skdp.data.numbers import (
    COUNTED,
    FARTHEST,
    OCTAVE_BINS,
    PLACE_BINS,
    OctavesOfBlock,
    PlacesOfBlock,
    bins_of,
)
from skdp.data.views import group_sums, rows_each, rows_of, whole_groups, with_rows
from skdp.privacy.gate.bounds import Bound, Bounded
from skdp.queries.sums import GroupQuery, Neighbours, SumQuery, summed

# Ranks of public thresholds among the entries of columns, one row or one group at a time.
#
# A group has one number in each column: the mean over its rows of what their entries count for,
# rounded. It then adds what an entry adds.


FloatArray = NDArray[np.float64]
_FRESH = 0.5  # of the columns: that many are taken out of the rows rather than all counted
OfBlock = Callable[[Any], NDArray[np.int64]]


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
        super().__init__(rows, lambda which: OctavesOfBlock(center[which]), OCTAVE_BINS, **options)

    def _moved(self, before: OctaveQuery) -> FloatArray:
        return np.where(self._center == before._center, 0.0, np.nan)

    def ranks(self, thresholds: FloatArray) -> Bounded:
        """Return, for each column, half of the entries at most a threshold minus half of others.

        Thresholds are powers of two and quarters between them. An entry that equals the centre is
        left out.
        """
        return self._ranks(bins_of(np.asarray(thresholds, np.float64)))


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
            rows, lambda which: PlacesOfBlock(center[which], step[which]), PLACE_BINS, **options
        )

    def _moved(self, before: PlaceQuery) -> FloatArray:
        """Return how many whole steps the centre of each column moved, if steps are the same."""
        moved = (self._center - before._center) / self._step
        within = np.abs(before._shift + moved) <= COUNTED - FARTHEST
        same = (self._step == before._step) & (moved == np.rint(moved)) & within
        return np.where(same, moved, np.nan)

    def ranks(self, steps: FloatArray) -> Bounded:
        """Return, for each column, half of the entries up to so many steps minus half of others."""
        return self._ranks(np.clip(steps, -FARTHEST, FARTHEST).astype(np.intp) + COUNTED)


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
