"""Queries for the location and scale of columns; the unit is a row or a group.

Notation: d is the number of columns. A row, or a group, with a value that is not finite adds
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp._limits import SQUARE_WEIGHT, FloatArray
from skdp.data.blocks import ScratchOfThread, checked_total, finite_only
from skdp.data.numbers import WHOLE, CachedHere, CachedParts, CountsIn, stored_columns
from skdp.data.views import group_sums, rows_each, rows_of, whole_groups
from skdp.privacy.gate.bounds import Bound, Bounded
from skdp.queries.sums import GroupQuery, SumQuery, summed

# Ranks of public grid points among the entries of columns, one row or one group at a time.


class RankQuery(SumQuery):
    """Ranks of the points of a public grid, column by column.

    Entries and points are compared as float32. A row with a value that is not finite adds nothing.

    Parameters
    ----------
    rows : RowSource or RemoteRows
        The private rows, or batches of groups of them.
    columns : callable
        Returns their columns.
    points : array of shape (d, m)
        Public, for each column.
    center : array of shape (d,) or None
        Public: distances from it are ranked, and what equals it is left out. None ranks the entries
        themselves.
    weights : array of shape (d,) or None
        Public: what the ranks of each column are multiplied by, if not by 1.
    adjacency : {"add_remove", "replace"}
        What neighbours differ in.
    n_jobs : int or None
        Threads for the pass over the rows; it never changes a result.
    """

    def __init__(
        self, rows: Any, columns: Callable[[], CachedParts], points: FloatArray,
        center: FloatArray | None = None, weights: FloatArray | None = None, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(rows, **options)
        self._weights = np.ones(len(points)) if weights is None else weights
        self._columns = columns
        self._work, self._about = CountsIn.of(points, center), center is not None
        self._known: NDArray[np.int64] | None = None

    def ranks(self, which: NDArray[np.intp]) -> Bounded:
        """Return, for each column, half of the entries at most a point minus half of those above.

        `which` holds the index of a grid point for each column. An entry adds w/2, -w/2 or 0 to its
        column of weight w. So a row adds an array of norm |w|/2 at most, for the vector w of
        weights; a group adds the mean over its rows: no larger norm. Replace: the new row may
        lie on the other side of the points in all columns, which gives |w|. A weight is rounded to
        steps, by 1/2 at most. What a group adds is an integer multiple of 2^-30 of a weight, so
        only the sum is rounded: by 1/2 for each of two neighbours.
        """
        which = np.minimum(np.maximum(which, 0), self._work.ends.shape[2] - 3)
        if which.shape != self._weights.shape:  # numpy would take numbers of other columns
            which = np.broadcast_to(which, len(self._weights))

        def answer(step: float) -> NDArray[Any]:
            near, both = self._counts(which)
            excess = 2 * near - both
            if step == 0.0:
                return np.asarray(self._weights * excess / (2 * WHOLE))
            half = np.rint(0.5 / step * self._weights).astype(np.int64)
            most = 2**61 // np.maximum(half, 1)
            whole, part = np.divmod(excess, WHOLE)
            whole = np.minimum(np.maximum(whole, -most), most) * half
            return np.asarray(whole + np.rint(part / WHOLE * half).astype(np.int64))

        return Bounded(self._bound, answer)

    def _counts(self, which: NDArray[np.intp]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the counts at the points `which`, and those of all entries and of the centre.

        The first call counts all points and caches the result. Cached rows are counted exactly only
        at the points of `which`, if the grid is large or a point has no fast count (`CountsIn`).
        """
        columns, work, each = self._columns(), self._work, np.arange(len(which))
        if self._known is None:
            here, shape = isinstance(columns, CachedHere), work.ends.shape[::2]
            others = columns.sum_parts(replace(work, kept=False if here else None))
            known = checked_total(others, shape, "int64")
            codes, compared = work.codes()
            self._coded, self._compared = known.copy(), compared & here
            if here:
                self._coded[:, -codes.ends.shape[2] :] += columns.sum_parts(codes)
            self._known = known  # last: a pass that failed is made again
        near, total = self._coded[each, which], self._coded[:, -2]
        if np.count_nonzero(self._compared[each, which]):
            near = self._known[each, which] + columns.sum_parts(work.at(which[:, None]))[:, 0]
        return near, total + self._coded[:, -1] * self._about

    @cached_property
    def _bound(self) -> Bound:
        """The bound of one release of ranks; its proof is in `ranks`."""
        d, slack = len(self._weights), self.neighbours.units / 2 + _ROUNDED
        l2 = self.neighbours.array(float(np.linalg.norm(self._weights)) / 2)
        l1 = self.neighbours.array(float(np.abs(self._weights).sum()) / 2)
        name = "column_centered_ranks"
        return Bound(name, (d,), l2, slack=slack * math.sqrt(d), l1=l1, l1_slack=slack * d)


_ROUNDED = 1.01  # rounding of a sum in two neighbours (1/2 each), and float errors


# What a group adds is rounded to multiples of 1 / WHOLE, which raises the bound by less than this.
_WIDER = 1 + 1e-8


class ColumnQuery(GroupQuery):
    """Sums over private rows for each column: ranks, counts and moments of the entries.

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

    _stored: CachedParts | None = None
    _weights: FloatArray | None = None

    def weighted(self, weights: FloatArray) -> ColumnQuery:
        """Return the same columns, whose ranks are multiplied by public weights."""
        return self._with(_weights=weights)

    def grid(self, points: FloatArray) -> RankQuery:
        """Return the query of the ranks of public grid points, of shape (d, m), among entries."""
        return self.distances(None, points)

    def distances(self, center: FloatArray | None, points: FloatArray) -> RankQuery:
        """Return the query of the ranks of public grid points among distances from a centre."""
        return self._derived(RankQuery, self._source, self._columns, points, center, self._weights)

    def _columns(self) -> CachedParts:
        """Cache the columns for all releases of this query."""
        self._stored = self._stored or stored_columns(self._source, self.n_jobs)
        return self._stored

    def moments(self, center: FloatArray, size: FloatArray, c: float) -> Bounded:
        """Return sums of w, of b (w^2 - 1/2) and of c; w is (x - center)/size clipped to [-1, 1].

        The weights b = 1.66 and c are public. Where nothing is protected `size` may be infinite:
        w = x - center, and w^2 is not shifted. Entries that are not stored are counted, and add
        what 0 adds.
        One row: a column adds w^2 + b^2 (w^2 - 1/2)^2 <= 1 + b^2/4, largest at |w| = 1. Replace,
        with p = w - w' and s = w + w', |p| + |s| <= 2: p^2 (1 + b^2 s^2) <= 4 for b <= 1.66, as
        (1 - s/2)^2 (1 + b^2 s^2) <= 1 on [0, 2]; the count does not change, unless one of the two
        rows is not finite: then only the other one is added or removed.
        A group adds the mean of what its rows would add. Norms of it and of differences are convex:
        largest for single rows.
        """
        d = self.n_features

        def answer(step: float) -> NDArray[Any]:
            sizes = np.fmin(size, np.finfo(np.float64).max) if step else size  # all are clipped

            def of_piece(block: Any) -> NDArray[Any]:
                whole = whole_groups(block)
                unit = step if rows_each(whole) == 1 else 0.0
                parts = _standard(rows_of(whole), center, sizes, unit)
                w, squares = (mean_of_groups(part, whole, step) for part in parts)
                last = summed(np.array([[c]]), step) * len(w)
                return np.hstack([_summed(w, step), _summed(squares, step), last])

            def of_stored(block: Any) -> NDArray[Any]:
                rows = finite_only(block)
                zeros = of_piece(np.zeros((1, d)))
                parts = _standard(rows.data, center[rows.indices], sizes[rows.indices], step)
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
        pair = math.sqrt(4.0 * d) if self.neighbours.replace else 0.0
        l2 = max(math.sqrt((1 + SQUARE_WEIGHT**2 / 4) * d + c**2), pair) * (
            _WIDER if self.by_group else 1.0
        )
        return Bounded(Bound("column_moments", (2 * d + 1,), l2, slack=slack), answer)


def mean_of_groups(values: FloatArray, block: Any, step: float) -> FloatArray:
    """Return the mean over the rows of each group, in steps (floats at step 0), in any order."""
    m = rows_each(block)
    if m == 1:
        return values
    if step == 0.0:
        return np.asarray(group_sums(values, block) / m)
    sums = group_sums(np.rint(values * WHOLE).astype(np.int64), block)
    return np.asarray(sums / (m * WHOLE) / step)


def _standard(rows: FloatArray, center: FloatArray, size: FloatArray, step: float) -> Any:
    """Return w and b (w^2 - 1/2) in steps (as they are at 0); the next call overwrites them."""
    unit, finite = step or 1.0, np.isfinite(size)
    cut, shift = np.where(finite, 1 / unit, np.inf), np.where(finite, SQUARE_WEIGHT / 2 / unit, 0.0)
    if finite.all():  # single numbers are faster
        cut, shift = np.array(1 / unit), np.array(SQUARE_WEIGHT / 2 / unit)
    w = _SCRATCH.values.shaped(rows.shape)
    about = rows
    if center.any():
        about = np.subtract(rows, center, out=w)
    steps, floats = np.where(finite, size, 1.0) * unit, np.finfo(np.float64)
    np.divide(about, np.clip(steps, floats.tiny, floats.max), out=w)  # not 0/0, nor inf/inf
    np.clip(w, -cut, cut, out=w)
    squares = np.multiply(w, w, out=_SCRATCH.squares.shaped(rows.shape))
    squares *= SQUARE_WEIGHT * unit
    squares -= shift
    return w, squares


def _summed(values: FloatArray, step: float) -> NDArray[Any]:
    """Return the sum of the rows of a block in steps, each rounded, which overwrites them.

    Sums of the integers of a block are exact as floats, in any order.
    """
    if step == 0.0:
        return np.asarray(values.sum(axis=0))
    return np.asarray((np.ones(len(values)) @ np.rint(values, out=values)).astype(np.int64))


def _summed_by(values: FloatArray, columns: NDArray[Any], d: int, step: float) -> NDArray[Any]:
    """Return sums by column of some entries in steps, each rounded, which overwrites them."""
    sums = np.bincount(columns, np.rint(values, out=values) if step else values, d)
    return sums.astype(np.int64) if step else sums


_SCRATCH = ScratchOfThread()
