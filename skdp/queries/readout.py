"""The moments that a linear read-out needs, for one record (x, y), in one release.

Notation: x is a row of norm at most C, v the q targets of the record, cut to public bounds and
scaled to norm at most t, c the corner of the intercept. A record longer than C is weighted down as
a whole: f = min(1, C/|x|), u = f (x, c), f v. This is least squares with weights f^2, which keeps a
linear relation between x and y; a row that is shortened beside an unchanged target breaks it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp.data.block_rows import block_gram, cross_product, finite_rows, unpacked, where_rows
from skdp.data.blocks import AnyRows, Block, sum_rows
from skdp.data.integer_rows import length_unit, row_map, row_norms
from skdp.data.record_scales import RowScale, TargetScale
from skdp.data.remote import Columns, RowColumns, narrowed
from skdp.data.views import good_records, rows_of_records, targets_of_records
from skdp.data.zipped import Zipped
from skdp.privacy.gate.bounds import Bounded
from skdp.queries.columns import ColumnQuery
from skdp.queries.rows import RowQuery, corner_units, exact_corner
from skdp.queries.sums import Neighbours, NumberQuery, SumQuery

FloatArray = NDArray[np.float64]
_LENGTH = "length"  # of rows in their units, beside the records


def _lengths(
    block: Zipped, scale: RowScale | None, kept: NDArray[np.intp] | None
) -> tuple[FloatArray]:
    (rows,) = rows_of_records([block], kept)
    return (_norms(rows if scale is None else scale(rows, good_records(block)), scale),)


def _norms(rows: Block, scale: RowScale | None) -> FloatArray:
    """Return the norms of rows, measured alike in all passes; entries in units are about 1."""
    return row_norms(rows, math.inf if scale is None else length_unit(rows.shape[1]))


def _length(columns: Columns) -> FloatArray:
    return columns[_LENGTH]


class ReadoutQuery(SumQuery):
    """Second moments of records (x, y): private rows and private targets.

    Parameters
    ----------
    records : RowSource or RemoteRows of blocks `Zipped`
        The private rows and targets, wherever they are.
    clip_norm : float
        Records with longer rows are weighted down.
    scale : TargetScale
        Public bounds of the targets.
    row_scale : RowScale or None
        Public units of the (kept) columns; None takes the rows as they are.
    kept : array of int or None
        Public selection of columns; the others play no part, in lengths neither.
    adjacency : {"add_remove", "replace"}
        What neighbours differ in.
    n_jobs : int or None
        Threads for the pass over the rows; it never changes a result.
    """

    def __init__(
        self,
        records: AnyRows,
        *,
        clip_norm: float,
        scale: TargetScale,
        row_scale: RowScale | None = None,
        kept: NDArray[np.intp] | None = None,
        adjacency: str,
        n_jobs: int | None = None,
    ) -> None:
        super().__init__(records, adjacency=adjacency, n_jobs=n_jobs)
        self.clip_norm = float(clip_norm)
        self.scale = scale
        self.row_scale = row_scale
        self.kept = kept
        d = records.n_features if kept is None else len(kept)
        self._rows = narrowed(records, partial(rows_of_records, kept=kept), d)
        measure = partial(_lengths, scale=row_scale, kept=kept)
        self._lengths = RowColumns(records, measure, _LENGTH)

    def rows(self, clip_norm: float) -> RowQuery:
        """Return the query over the rows alone, clipped, as they came."""
        return self._beside(RowQuery, self._rows, clip_norm=clip_norm)

    def columns(self) -> ColumnQuery:
        """Return the query over the columns of the rows as they came."""
        return ColumnQuery(self._rows, adjacency=self.adjacency, n_jobs=self.n_jobs)

    def targets(self) -> ColumnQuery:
        """Return the query over the columns of the targets as they came."""
        targets = narrowed(self._source, targets_of_records, len(self.scale.size))
        return ColumnQuery(targets, adjacency=self.adjacency, n_jobs=self.n_jobs)

    def lengths(self) -> NumberQuery:
        """Return the query over the norms of the rows in the units of `row_scale`."""
        return NumberQuery(self._lengths.numbers(_length), "norm", adjacency=self.adjacency)

    def scaled(self, row_scale: RowScale) -> ReadoutQuery:
        """Return the same records with rows in other units; clipping comes after it."""
        return self._narrowed(row_scale=row_scale)

    def selected(self, kept: NDArray[np.intp]) -> ReadoutQuery:
        """Return the same records on a public selection of columns; clipping comes after it."""
        units = None if self.row_scale is None else self.row_scale.selected(kept)
        return self._narrowed(kept=kept if self.kept is None else self.kept[kept], row_scale=units)

    def within(self, clip_norm: float, scale: TargetScale) -> ReadoutQuery:
        """Return the same records under public bounds; lengths are measured once."""
        query = self._narrowed(clip_norm=clip_norm, scale=scale)
        query._lengths = self._lengths
        return query

    def _narrowed(self, **changed: Any) -> ReadoutQuery:
        names = ("clip_norm", "scale", "row_scale", "kept")
        public = {name: getattr(self, name) for name in names}
        return self._beside(ReadoutQuery, self._source, **(public | changed))

    def readout(self, corner: float, target_norm: float) -> Bounded:
        """Return the moment [X, Y, c]'[X, Y, c] of the weighted records, without its block Y'Y.

        One record adds uu' and, twice, uv', with |u|^2 <= U^2 = C^2 + c^2 and |v| <= t:
        U^4 + 2 U^2 t^2. (The block Y'Y, of which no read-out makes use, would add t^4.) Replace
        (u, v) by (p, q) of full lengths and let r = u.p: |uu' - pp'|^2 + 2 |uv' - pq'|^2 =
        2 U^4 - 2 r^2 + 4 U^2 t^2 - 4 r v.q, largest at v.q = -t^2 sign(r), a parabola in |r| with
        its top at t^2: 2 (U^2 + t^2)^2 for t <= U, else 8 U^2 t^2 at |r| = U^2. It grows with each
        length, so shorter records move less; it is reached for c <= C, which rows of any angle
        need. Zeros in place of Y'Y keep the matrix symmetric.
        """
        d, q = self._rows.n_features, len(self.scale.size)
        C, c, t = self.clip_norm, float(corner), float(target_norm)
        size = d + q + (1 if c else 0)

        def answer(step: float) -> NDArray[Any]:
            term = _MomentOfBlock(C, self.scale, self.row_scale, c, t, step, self.kept)
            records = self._lengths.beside() if self._lengths.kept_here else self._source
            shape, exact = (size, size), step != 0.0
            return sum_rows(records, term, shape, exact=exact, n_jobs=self.n_jobs)

        l2 = largest_change(math.hypot(C, c), t, self.neighbours)
        bounded = self._square("readout", size, l2, answer)
        return replace(bounded, decode=partial(exact_corner, corner=c)) if c else bounded


@dataclass(frozen=True)
class _MomentOfBlock:
    """The term of one block, from public numbers alone, so that it can travel."""

    clip_norm: float
    scale: TargetScale
    row_scale: RowScale | None
    corner: float
    target_norm: float
    step: float
    kept: NDArray[np.intp] | None = None

    def __call__(self, block: Zipped) -> FloatArray:
        """Return the moment of rows, targets and corners in units, each norm checked exactly."""
        whole = good_records(block)
        if self.kept is not None:
            block = block._replace(rows=block.rows[:, self.kept])
        if self.row_scale is not None:
            block = block._replace(rows=self.row_scale(block.rows, whole))
        unit, t = math.sqrt(self.step), self.target_norm
        f, good = self._weights(block, whole)
        rows = row_map(self.clip_norm, unit)(where_rows(good, block.rows))
        bounded = np.isfinite(self.scale.high - self.scale.low).all()
        to_units = row_map(t if bounded else math.inf, unit, reuse=False)
        V = to_units(self._scaled_targets(block, f, good) * t)
        last = f * corner_units(self.corner, self.step) if self.corner else None
        if last is not None and self.step:
            last = np.rint(last)  # f <= 1: no longer
        return moment_of(rows, V, last)

    def _weights(
        self, block: Zipped, whole: NDArray[np.bool_]
    ) -> tuple[FloatArray, NDArray[np.bool_]]:
        """Return f and whether a record is finite, in columns that are left out too."""
        norms = block.columns.get(_LENGTH)
        norms = _norms(block.rows, self.row_scale) if norms is None else norms
        keeps = self.row_scale is not None and self.row_scale.keeps_finite
        good = whole if keeps else whole & finite_rows(block.rows)
        with np.errstate(divide="ignore"):
            f = np.where(norms > self.clip_norm, self.clip_norm / norms, 1.0)
        return np.where(good, f, 0.0), good

    def _scaled_targets(self, block: Zipped, f: FloatArray, good: Any) -> FloatArray:
        y = np.where(good[:, None], block.targets, 0.0)
        return np.where(good[:, None], self.scale(y), 0.0) * f[:, None]


def largest_change(U: float, t: float, neighbours: Neighbours) -> float:
    """Return the sup over neighbours, see `ReadoutQuery.readout`."""
    if not neighbours.replace:
        return U * math.sqrt(U * U + 2 * t * t)
    return neighbours.positive(U * U + t * t) if t <= U else 2 * math.sqrt(2) * U * t


def moment_of(rows: Block, V: FloatArray, last: FloatArray | None) -> FloatArray:
    """[rows, V, last]'[rows, V, last] of one block, with zeros in place of V'V."""
    d, q = rows.shape[1], V.shape[1]
    beside = V if last is None else np.column_stack([V, last])
    out, rows = np.zeros((d + beside.shape[1],) * 2), unpacked(rows)
    out[:d, :d] = block_gram(rows)
    cross = cross_product(rows, beside)
    out[:d, d:], out[d:, :d] = cross, cross.T
    if last is not None:
        out[d : d + q, -1] = out[-1, d : d + q] = V.T @ last
        out[-1, -1] = last @ last
    return out
