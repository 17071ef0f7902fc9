"""The moments that a linear regression needs, in one release; and sums of bounded losses.

Notation: x is a row of norm at most C, v the q targets of the record, cut to public bounds and
scaled to norm at most t, c the bias of the intercept. A record with |x| > C is weighted down as a
whole: f = min(1, C/|x|), u = f (x, c), f v. This is least squares with weights f^2, which keeps a
linear relation between x and y; scaling down the row alone would break it. A
group of m records is weighted down as a whole, where the mean square of its (x, c) exceeds
U^2 = C^2 + c^2; its records count 1/sqrt(m) each (see `skdp.queries.sums`). Products of rows with
targets scale down rows alone, and leave targets and biases unchanged, because no squares must match
them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp._limits import FloatArray
from skdp.data import blocks, views
from skdp.data.integers import length_unit
from skdp.data.numbers import RowColumns, restricted
from skdp.privacy.gate.bounds import Bound, Bounded
from skdp.queries.columns import ColumnQuery, mean_of_groups
from skdp.queries.sums import Compute, GroupQuery, NumberQuery, SumQuery, bias_units, exact_bias

_LENGTH = "length"  # name of the column with the norms of rows in their units


def _lengths(
    block: Any, scale: views.RowScale | None, kept: views.PublicColumns | None
) -> tuple[FloatArray]:
    (rows,) = views.rows_of_records([block], kept)
    if scale is not None:
        good = None if isinstance(block, views.Groups) else views.good_records(block)
        rows = views.with_rows(rows, scale(views.rows_of(rows), good))
    return (_norms(rows, scale),)


def _target_distances(block: Any, which: int, center: float) -> tuple[FloatArray]:
    distances = np.abs(block.targets[:, [which]] - center)
    distances[~views.good_records(block)] = np.nan
    return (views.group_lengths(views.with_rows(block, distances)),)


def _norms(block: Any, scale: views.RowScale | None) -> FloatArray:
    """Return the norms of rows, computed in the same way in all passes."""
    near = scale is not None and not isinstance(block, views.Groups)
    return views.group_lengths(block, length_unit(block.shape[1]) if near else math.inf)


class RegressionQuery(GroupQuery):
    """Second moments of records (x, y): private rows and private targets.

    Parameters
    ----------
    records : RowSource or RemoteRows of blocks `Zipped`, or `Groups`
        The private rows and targets, wherever they are.
    clip_norm : float
        Records with larger row norms are weighted down; groups, by their root mean square norm.
    scale : TargetScale
        Public bounds of the targets.
    row_scale : RowScale or None
        Public units of the (kept) columns; None takes the rows as they are.
    kept : array of int, Mapped or None
        Public columns; the others are not used, not even in norms.
    by_group : bool
        Whether all records of a group are one unit.
    adjacency : {"add_remove", "replace"}
        What neighbours differ in.
    n_jobs : int or None
        Threads for the pass over the rows; it never changes a result.
    """

    def __init__(
        self, records: blocks.AnyRows, *, clip_norm: float, scale: views.TargetScale,
        row_scale: views.RowScale | None = None, kept: views.PublicColumns | None = None,
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(records, **options)
        self.clip_norm = float(clip_norm)
        self.scale, self.row_scale, self.kept = scale, row_scale, kept
        d = records.n_features if kept is None else len(kept)
        self._rows = restricted(records, partial(views.rows_of_records, kept=kept), d)
        measure = partial(_lengths, scale=row_scale, kept=kept)
        self._lengths = RowColumns(records, measure, _LENGTH)

    def columns(self) -> ColumnQuery:
        """Return the query over the columns of the rows, without units."""
        return self._alike(ColumnQuery, self._rows)

    def targets(self) -> ColumnQuery:
        """Return the query over the columns of the targets minus a public centre."""
        view = partial(views.targets_of_records, center=self.scale.nearest)
        targets = restricted(self._source, view, len(self.scale.size))
        return self._alike(ColumnQuery, targets)

    def places(self) -> ColumnQuery:
        """Return the query over the columns of rows and targets together.

        A record, or a group, that is not finite in one column adds nothing to any column.
        """
        view = partial(views.rows_and_targets, kept=self.kept, center=self.scale.nearest)
        size = self._rows.n_features + len(self.scale.size)
        return self._alike(ColumnQuery, restricted(self._source, view, size))

    def lengths(self) -> NumberQuery:
        """Return the query over the norms of the rows in the units of `row_scale`."""
        return NumberQuery(
            self._lengths.numbers(itemgetter(_LENGTH)), "norm", adjacency=self.adjacency
        )

    def target_distances(self, which: int, center: float) -> NumberQuery:
        """Return the query over how far one target of each record lies from a public centre.

        Of a group it is the root mean square of the distances. As in `targets`, the centre is
        measured from the point of the bounds that is nearest to 0.
        """
        center += float(self.scale.nearest[which])
        measure = partial(_target_distances, which=which, center=center)
        distances = RowColumns(self._source, measure, "distance", n_jobs=self.n_jobs)
        numbers = distances.numbers(itemgetter("distance"))
        return NumberQuery(numbers, "target", adjacency=self.adjacency)

    def scaled(self, row_scale: views.RowScale) -> RegressionQuery:
        """Return the same records with rows in other units; clipping comes after it."""
        return self._restricted(row_scale=row_scale)

    def measured(self, row_scale: views.RowScale) -> RegressionQuery:
        """Return the same records with CSR rows in units about 0, of which columns may be kept."""
        view = partial(views.records_in_units, scale=row_scale)
        records = restricted(self._source, view, self.n_features)
        return self._alike(RegressionQuery, records, clip_norm=self.clip_norm, scale=self.scale)

    def gains(self, cuts: Any, model: Any) -> RegressionQuery:
        """Return records whose target is the gain of a second column clipping (`gains_of_records`).

        Gains are clipped to [-1, 1]. Rows may have any norm, so that no weight is below 1:
        `target_sums(0)` moves by 1, replace 2.
        """
        view = partial(views.gains_of_records, cuts=cuts, model=model, scale=self.scale)
        public = {"clip_norm": math.inf, "scale": views.TargetScale.in_ball(1.0, 1)}
        records = restricted(self._source, view, self.n_features)
        return self._alike(RegressionQuery, records, **public)

    def of_group_means(self) -> RegressionQuery:
        """Return the records with the mean target of their group; records of no group as they are.

        Which numbers a group has does not matter to any bound.
        """
        if not self.by_group:
            return self
        records = restricted(self._source, views.mean_targets, self.n_features)
        return self._alike(RegressionQuery, records, clip_norm=self.clip_norm, scale=self.scale)

    def selected(self, kept: views.PublicColumns) -> RegressionQuery:
        """Return the same records on public columns, without units."""
        return self._restricted(kept=kept, row_scale=None)

    def within(self, clip_norm: float, scale: views.TargetScale) -> RegressionQuery:
        """Return the same records under public bounds; the cached norms of rows are used again."""
        return self._with(clip_norm=float(clip_norm), scale=scale)

    def _restricted(self, **changed: Any) -> RegressionQuery:
        names = ("clip_norm", "scale", "row_scale", "kept")
        public = {name: getattr(self, name) for name in names}
        return self._alike(RegressionQuery, self._source, **(public | changed))

    def regression(self, bias: float, target_norm: float) -> Bounded:
        """Return the moment [X, Y, c]'[X, Y, c] of the weighted records, without its block Y'Y.

        One record adds uu' and, twice, uv', with |u|^2 <= U^2 = C^2 + c^2 and |v| <= t:
        U^4 + 2 U^2 t^2. (The block Y'Y, of which no regression makes use, would add t^4.) Replace
        (u, v) by (p, q) of full norms and let r = u.p: |uu' - pp'|^2 + 2 |uv' - pq'|^2 =
        2 U^4 - 2 r^2 + 4 U^2 t^2 - 4 r v.q, largest at v.q = -t^2 sign(r), a parabola in |r| with
        its top at t^2: 2 (U^2 + t^2)^2 for t <= U, else 8 U^2 t^2 at |r| = U^2. It grows with each
        norm, so smaller records move less; it is reached for c <= C, which rows of any angle
        need. Zeros in place of Y'Y keep the matrix symmetric.
        One group adds sum uu' and, twice, sum uv', with sum |u|^2 <= U^2 and sum |v|^2 <= t^2: by
        Cauchy-Schwarz the norms of one record. Replace, with G and H the matrices of the products
        of both groups' u and v: <sum uu', sum pp'> = |G|^2 and <sum uv', sum pq'> = <G, H>, so
        that |G| <= U^2 and |H| <= t^2 stand for r and v.q in the bound of one record.
        """
        d, q = self._rows.n_features, len(self.scale.size)
        size = d + q + (1 if bias else 0)
        answer = self._answer(bias, target_norm, (size, size))
        U, t = math.hypot(self.clip_norm, bias), float(target_norm)
        l2 = U * math.sqrt(U * U + 2 * t * t)
        if self.neighbours.replace:
            l2 = math.sqrt(2) * (U * U + t * t if t <= U else 2 * U * t)
        bounded = self._square("regression_moments", size, l2, answer)
        if not bias or self.by_group:
            return bounded
        return bounded._replace(decode=partial(exact_bias, bias=bias))

    def products(self, bias: float, target_norm: float) -> Bounded:
        """Return [X, c]'[V, c] of rows scaled down to C, with targets and biases unchanged.

        A row of norm L > C keeps the norm C here; weights of least squares would leave C^2 / L.
        One record adds z w' with z = (f x, c), w = (v, c), |z| <= U, |w| <= T = (t^2 + c^2)^.5: at
        most U T. Replace: let x, y be the two clipped rows and v, s their targets. The squared
        change is convex in each of them, so it is largest at norms C and t. With m = c^2 it is then
        2 U^2 T^2 - 2 (x.y + m) (v.s + m), largest in a corner of |x.y| <= C^2, |v.s| <= t^2. For
        c <= max(C, t) that is one of two: opposite rows with one target, (2 C T)^2, or one row with
        opposite targets, (2 t U)^2. Else the bound is 2 U T. (Rounding may make the biases l, k <=
        c differ, which lowers it: the first corner is then 4 C^2 t^2 + C^2 (l + k)^2 + t^2 (l -
        k)^2 + (l^2 - k^2)^2.)
        A group is scaled down as a whole, (x, c) to norm U. By Cauchy-Schwarz it adds U T at most;
        replace 2 U T.
        """
        C, c, t = self.clip_norm, float(bias), float(target_norm)
        shape = (self._rows.n_features + 1, len(self.scale.size) + 1)
        l2 = self.neighbours.array(math.hypot(C, c) * math.hypot(t, c))
        if self.neighbours.replace and c <= max(C, t) and not self.by_group:
            l2 = 2 * max(C * math.hypot(t, c), t * math.hypot(C, c))
        bound = Bound("regression_products", shape, l2, slack=0.0)
        decode = None if self.by_group else partial(exact_bias, bias=c)
        return Bounded(bound, self._answer(c, t, shape, "products"), decode)

    def target_sums(self, bias: float, name: str = "target_sums") -> Bounded:
        """Return the sums of targets, weighted as in `regression` of this bias.

        One record, or the mean of a group, adds f^2 v with |v| <= 1 and f <= 1: 1, checked in
        integers; replace 2. A product of rounded factors would have an error in proportion to n.
        """
        q = len(self.scale.size)
        bound = Bound(name, (q,), self.neighbours.array(), slack=0.0)
        return Bounded(bound, self._answer(float(bias), 1.0, (q,), "targets"))

    def _answer(self, c: float, t: float, shape: tuple[int, ...], part: str = "moment") -> Compute:
        def answer(step: float) -> NDArray[Any]:
            public = (self.clip_norm, self.scale, self.row_scale, float(c), float(t), step)
            kind = _MomentOfGroups if self.by_group else _MomentOfBlock
            term = kind(*public, self.kept, part)
            records = self._source if self.by_group else self._lengths.with_columns_or_nan()
            return blocks.sum_rows(records, term, shape, exact=step != 0.0, n_jobs=self.n_jobs)

        return answer


@dataclass(frozen=True)
class _MomentOfBlock:
    """The term of one block, from public numbers alone, so that it may be sent."""

    clip_norm: float
    scale: views.TargetScale
    row_scale: views.RowScale | None
    bias: float
    target_norm: float
    step: float
    kept: views.PublicColumns | None = None
    part: str = "moment"  # or "products" of rows with targets, or "targets" alone

    def __call__(self, block: Any) -> FloatArray:
        """Return the moment of rows, targets and biases in units, each norm checked exactly."""
        norms = block.columns.get(_LENGTH, np.full(block.shape[0], np.nan))
        measured = not np.isnan(norms).any()
        if self.part == "targets":
            if self.clip_norm == math.inf:  # all records count in full
                norms = np.zeros(block.shape[0])
            elif not measured:
                norms[:] = _lengths(block, self.row_scale, self.kept)[0]
            f = self._factors(norms, views.good_records(block), self.clip_norm)
            return self._target_sums(block, f)
        rows, good = self._rows(block)
        if not measured:
            norms[:] = _norms(rows, self.row_scale)
        f = self._factors(norms, good, self.clip_norm)
        Z = views.GroupMap(self.clip_norm, math.sqrt(self.step))(rows)
        V = self._targets(block, good, f)
        last = f * bias_units(self.bias, self.step)
        last = np.rint(last) if self.step else last  # f <= 1: no larger norm
        if self.part == "moment":
            return moment_of(Z, V, last if self.bias else None)
        W = np.column_stack([V, last])
        return np.vstack([blocks.cross_product(blocks.unpacked(Z), W), last @ W])

    def _factors(self, norms: FloatArray, good: NDArray[np.bool_], longest: float) -> FloatArray:
        """Return the root of each record's weight; products scale down rows alone."""
        with np.errstate(divide="ignore", invalid="ignore"):
            f = np.where((norms > longest) & (self.part != "products"), longest / norms, 1.0)
        return np.where(good & np.isfinite(norms), f, 0.0)

    def _rows(self, block: Any) -> tuple[blocks.Block, NDArray[np.bool_]]:
        """Return rows in their units, and whether a record is finite, in all of its columns.

        A group with a bad record is bad as a whole. Zeros stand for the rows of bad ones.
        """
        good, rows = views.good_records(block), block.rows
        if self.kept is not None:
            rows = views.kept_columns(rows, self.kept)
        if self.row_scale is not None:
            rows = self.row_scale(rows, good)
        if self.row_scale is None or not self.row_scale.keeps_finite:
            good = good & blocks.finite_rows(rows)
        each = views.rows_each(block)
        good = np.repeat(good.reshape(-1, each).all(axis=1), each)
        return blocks.where_rows(good, rows), good

    def _targets(self, block: Any, good: NDArray[np.bool_], f: FloatArray) -> FloatArray:
        """Return weighted targets in units."""
        bounded = np.isfinite(self.scale.high - self.scale.low).all()
        length = self.target_norm if bounded else math.inf
        to_units = views.GroupMap(length, math.sqrt(self.step), reuse=False)
        return np.asarray(to_units(views.with_rows(block, self._bounded(block, good, f))))

    def _target_sums(self, block: Any, f: FloatArray) -> FloatArray:
        """Return the sums of f^2 v, rounded once a record, or group; bad ones have no weight."""
        V = self._bounded(block, f > 0, f * f)
        means = mean_of_groups(V, block, 1.0 if self.step else 0.0)
        return np.asarray(views.GroupMap(1.0, self.step, reuse=False)(means).sum(axis=0))

    def _bounded(self, block: Any, good: NDArray[np.bool_], f: FloatArray) -> FloatArray:
        y = np.where(good[:, None], block.targets, 0.0)
        return np.where(good[:, None], self.scale(y), 0.0) * f[:, None] * self.target_norm


class _MomentOfGroups(_MomentOfBlock):
    """The term of one batch of groups, each weighted down as a whole."""

    def __call__(self, block: views.Groups) -> FloatArray:
        """Return the moment of rows, targets and biases in units, each norm checked exactly."""
        rows, good = self._rows(block)
        records = block._replace(rows=rows)
        if self.bias or self.part == "products":  # these arrays have a column for it
            records = views.with_bias(records, self.bias)
            records = records._replace(rows=blocks.where_rows(good, records.rows))
        length = math.hypot(self.clip_norm, self.bias)
        norms = np.repeat(views.group_lengths(records), block.each)
        f = self._factors(norms, good, length)
        if self.part == "targets":
            return self._target_sums(block, f)
        Z = blocks.unpacked(views.GroupMap(length, math.sqrt(self.step))(records))
        if self.part == "moment":
            V, Z = self._targets(block, good, f), blocks.dense(Z)
            return moment_of(Z[:, :-1], V, Z[:, -1]) if self.bias else moment_of(Z, V, None)
        V = np.column_stack([self._bounded(block, good, f), f * self.bias])
        length = math.hypot(self.target_norm, self.bias)
        W = views.GroupMap(length, math.sqrt(self.step), reuse=False)(views.with_rows(block, V))
        return blocks.cross_product(Z, W)


def moment_of(rows: blocks.Block, V: FloatArray, last: FloatArray | None) -> FloatArray:
    """[rows, V, last]'[rows, V, last] of one block, with zeros in place of V'V."""
    d, q = rows.shape[1], V.shape[1]
    with_bias = V if last is None else np.column_stack([V, last])
    out, rows = np.zeros((d + with_bias.shape[1],) * 2), blocks.unpacked(rows)
    out[:d, :d] = blocks.block_gram(rows)
    cross = blocks.cross_product(rows, with_bias)
    out[:d, d:], out[d:, :d] = cross, cross.T
    if last is not None:
        out[d : d + q, -1] = out[-1, d : d + q] = V.T @ last
        out[-1, -1] = last @ last
    return out


# Sums of bounded losses of a released model, one number for each unit.
#
# The losses are a closure. Each loss must depend on its row alone, bit by bit, which
# `skdp.model_selection` ensures: in a batched product, one more row could change the last bits of
# all others.


@dataclass(frozen=True)
class _Losses:
    """The losses of rows and the privacy units that own the rows, computed on demand."""

    losses: Callable[[], FloatArray]
    rows: Callable[[], int]
    owners: NDArray[np.intp] | None

    def n_rows(self) -> int:
        if self.owners is None:
            return self.rows()
        return int(np.count_nonzero(np.bincount(self.owners)))

    def of_units(self) -> FloatArray:
        losses = self.losses()
        if losses.shape != (self.rows(),):  # more than one loss a row breaks the bounds below
            raise ValueError("the losses must be one number for each row.")
        if self.owners is None:
            return losses
        sizes = np.bincount(self.owners)  # bincount adds each user's rows apart from all others
        kept = sizes > 0
        return np.asarray(np.bincount(self.owners, weights=losses)[kept] / sizes[kept])


class LossQuery(SumQuery):
    """Losses of rows (or mean losses of users), clipped to public bounds, minus their midpoint.

    Parameters
    ----------
    losses : callable
        () -> ndarray of shape (n_rows,), called when an answer is read.
    n_rows : callable
        () -> number of rows, called when the count is read.
    bounds : tuple of two floats
        (a, b): a loss counts as min(max(loss, a), b); NaN as (a + b)/2.
    adjacency : {"add_remove", "replace"}
        Whether neighbours differ in the presence of a unit, or in its values.
    owners : ndarray or None
        Users of the rows as integers, where the unit is the user.
    """

    units, count_name, rounding = "units", "loss_count", 0.0  # it is asked once

    def __init__(
        self, losses: Callable[[], FloatArray], n_rows: Callable[[], int],
        bounds: tuple[float, float], *, adjacency: str, owners: NDArray[np.intp] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(_Losses(losses, n_rows, owners), adjacency=adjacency)
        self._low, self._high = bounds

    def total(self) -> Bounded:
        """Return the sum of clipped losses less (a + b)/2.

        A unit more or less: (b - a)/2, reached at either end. Other values: b - a, from end to
        end. Each unit's integer is rounded by itself and clipped a step beyond the largest. The
        midpoint is a float, which moves the ends by less than 2^-50 of their size; the factor below
        covers its rounding.
        """
        half = (self._high - self._low) / 2
        middle, radius = self._low + half, half + 2.0**-50 * max(abs(self._low), abs(self._high))

        def answer(step: float) -> NDArray[Any]:
            losses = self._source.of_units()
            clipped = np.clip(losses, self._low, self._high) - middle
            centred = np.where(np.isnan(losses), 0.0, clipped)  # one number for each unit
            if step == 0.0:
                return np.asarray(centred.sum())
            limit = np.floor(radius / step) + 1  # rint of the largest, whatever float division did
            whole = np.clip(np.rint(centred / step), -limit, limit)
            return np.asarray(whole.astype(np.int64).sum())

        return self._number("loss_sum", -radius, radius, answer, rounding=1.0)
