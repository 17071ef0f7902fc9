"""Queries whose privacy unit is one row: the sensitivities of moments, products, sums and counts.

Notation: x is a row with ||x|| <= C (clipped inside the query), z its integer image with
z.z <= C**2/h**2 in exact integers, h the unit. A group (see `skdp.queries.sums`) has m rows that
count 1/sqrt(m) each, with squared norms of sum C**2 at most. Its second moment is PSD of trace at
most C**2: a mixture of 0 and of moments of single rows. Changes of sums are convex in what is added
and removed, so that groups move them by at most what single rows do. Neighbours:
`add_remove` (a row or group is present or absent, n private) or `replace` (any other, n public).
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp._limits import LARGEST, WIDER, FloatArray
from skdp.data import blocks, views
from skdp.data.integers import (
    FINEST_UNIT,
    ExactProduct,
    PublicMatrix,
    joined,
    length_unit,
    row_map,
    scaled_down,
)
from skdp.data.numbers import Numbers, restricted, row_numbers
from skdp.privacy.gate.bounds import Bound, Bounded
from skdp.queries.sums import (
    GROUP_UNIT,
    ROW_UNIT,
    GroupQuery,
    GroupTangentQuery,
    TangentQuery,
    bias_units,
    exact_bias,
    to_grid,
)

_POSITIVE = partial(np.maximum, 0.0)


class RowQuery(GroupQuery):
    """Statistics of private rows, each with its bound. Nothing is computed before the gate asks.

    Parameters
    ----------
    rows : array, CSR matrix, memory map, RowSource or RemoteRows
        The private rows, or batches of groups of them.
    clip_norm : float
        Rows of a larger norm are scaled down to it; of a group, its root mean square norm.
    by_group : bool
        Whether all rows of a group are one unit.
    adjacency : {"add_remove", "replace"}
        What neighbours differ in.
    n_jobs : int or None
        Threads for the passes over the rows; it never changes a result.
    """

    rounding = 1.1  # sums of columns have a hundredth of the budget, or more

    def __init__(
        self, rows: Any, *, clip_norm: float, adjacency: str, by_group: bool = False,
        n_jobs: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(rows, by_group=by_group, adjacency=adjacency, n_jobs=n_jobs)
        self.clip_norm = float(clip_norm)
        finite = math.isfinite(self.clip_norm)
        near = self.clip_norm * ROW_UNIT if finite else length_unit(self.n_features)
        measure = partial(views.group_lengths, unit=math.inf if by_group else near)
        self._norms: Numbers = row_numbers(self._source, measure, n_jobs)
        self._exact_sums: dict[bool, NDArray[Any]] = {}
        self._exact_gram: tuple[float, NDArray[Any]] | None = None
        self._given = self._source

    @property
    def _fine(self) -> float:
        """The unit of rows in sums and projections; it is finer for groups of many rows."""
        return self.clip_norm * (GROUP_UNIT if self.by_group else ROW_UNIT)

    def _map(self, unit: float) -> views.GroupMap:
        """Return the map of a block to its clipped rows: in units, or floats at unit 0."""
        return views.GroupMap(self.clip_norm, unit)

    # -- restricted queries (public arguments) -----------------------------------------------

    def clipped(self, clip_norm: float) -> RowQuery:
        """Return the same rows under a public clip norm; norms are measured once.

        Their unit depends on the calls alone, so that a client which repeats them finds the same.
        """
        return self._with(clip_norm=float(clip_norm), _exact_sums={}, _exact_gram=None)

    def columns(self, kept: NDArray[np.intp]) -> RowQuery:
        """Return the rows on a public selection of columns; bad rows stay bad."""
        rows = restricted(self._source, partial(views.selected, kept=kept), len(kept))
        return self._alike(RowQuery, rows, clip_norm=self.clip_norm)

    def negative(self) -> RowQuery:
        """Return the negative parts of the rows."""
        rows = restricted(self._source, views.negative, self.n_features)
        return self._alike(RowQuery, rows, clip_norm=self.clip_norm)

    def centered(self, center: FloatArray, between: tuple[FloatArray, ...] = ()) -> RowQuery:
        """Return the rows, truncated to public bounds if any, minus a public centre, clipped."""
        rows = self._moved(self._source, center, between)
        query = self._alike(RowQuery, rows, clip_norm=self.clip_norm)
        return query if between else query._with(_given=self._source)

    def recentered(self, center: FloatArray) -> RowQuery:
        """Return the rows minus another centre, close to the present one.

        `norms_above` and `square_sum` go on using the cached norms about the first centre: a row's
        norm depends on that row alone, so their bounds hold. All other releases clip the rows about
        the new centre.
        """
        rows = self._moved(self._given, center)
        return self._with(_source=rows, _exact_sums={}, _exact_gram=None)

    def _moved(self, rows: Any, center: FloatArray, between: tuple[FloatArray, ...] = ()) -> Any:
        view = partial(views.centered, center=center, between=between)
        return restricted(rows, view, self.n_features)

    def tangent(self, V: FloatArray) -> TangentQuery:
        """Return the query that splits X'X V at the public subspace V."""
        kind = GroupTangentQuery if self.by_group else TangentQuery
        return self._derived(kind, self._source, V, clip_norm=self.clip_norm)

    # -- norms and sums --------------------------------------------------------------------

    def kept_below(self, threshold: float) -> Bounded:
        """Return how many norms are at most the threshold, minus half of those that are not 0.

        Rows that are not finite count as rows of zeros; so do groups with a value that is not.
        """
        return self._below(self._norms, threshold, "norm_centered_rank")

    def norms_above(self, threshold: float) -> Bounded:
        """Return how many norms are above a threshold."""
        return self._above(self._norms, threshold, "norm_count_above")

    def square_sum(self) -> Bounded:
        """Return the sum of ||x||^2, a number in [0, C^2] for each row: C^2 under both.

        A group adds the mean of its rows' squares. Where X'X was read the sum is its trace, rounded
        down once.
        """
        C = self.clip_norm

        def answer(step: float) -> NDArray[Any]:
            if step == 0.0:
                rows = self._map(0.0)
                return self._sum(lambda block: blocks.square_norms(rows(block)).sum(), (), step)
            if self._exact_gram:
                before, gram = self._exact_gram
                high, low = (int(limb.trace()) for limb in gram)
                ratio, parts = (before / step).as_integer_ratio()
                total = ((high << blocks.LIMB) + low) * ratio // parts
                return np.asarray(min(total, LARGEST), np.int64)
            return self._norms(partial(_square_units, clip_norm=C, step=step))

        return self._number("squared_norm_sum", 0.0, C * C, answer, rounding=1.0)

    def sums(self) -> Bounded:
        """Return the column sums. ||x|| <= C; replace ||x - y|| <= 2C.

        A group adds its mean: by Cauchy-Schwarz |sum x| / m <= sqrt(sum |x|^2 / m) <= C.
        """
        return self._sums(self.neighbours.array(self.clip_norm), positive=False)

    def positive_sums(self) -> Bounded:
        """Return the column sums of positive parts: replace ||x - y|| <= sqrt(2) C, as x.y >= 0.

        Negative entries count as zeros after clipping, so that the bound holds for all data.
        """
        change = self.neighbours.positive(self.clip_norm, self.n_features)
        return self._sums(change, positive=True)

    def _sums(self, change: float, *, positive: bool) -> Bounded:
        """Return column sums that are exact in a fine unit and rounded down to steps at the end.

        Rounding moves an entry by less than a step in each of two neighbours. The exact sums are
        cached; each release of them draws its own noise. The sum of a group is rounded to the unit.
        """
        d, fine = self.n_features, self._fine

        def added(step: float) -> NDArray[Any]:
            rows = self._map(fine if step else 0.0)

            def term(block: blocks.Block) -> NDArray[Any]:
                whole, root = rows(block), math.sqrt(views.rows_each(block))
                whole = blocks.entrywise(_POSITIVE, whole) if positive else whole
                sums = views.group_sums(whole, block)
                if root > 1 and step:
                    sums = blocks.scaled_to_integers(sums, 1 / root)
                return blocks.column_sums(sums) / (1 if step else root)

            return self._sum(term, (d,), step)

        def answer(step: float) -> NDArray[Any]:
            if step and positive not in self._exact_sums:
                self._exact_sums[positive] = added(step)
            return scaled_down(self._exact_sums[positive], fine / step) if step else added(step)

        widen = WIDER + math.sqrt(d) * GROUP_UNIT if self.by_group else 1.0
        bound = self._array("row_sum", (d,), change, answer, widen=widen).bound
        return Bounded(bound._replace(slack=math.sqrt(d), l1_slack=float(d)), answer)

    # -- second moments: PSD, symmetric, no rounding beyond the rows -----------------------

    def gram(self) -> Bounded:
        """Return X'X. One row: ||x x'||_F = ||x||^2 <= C^2; replace: PSD pair, sqrt(2) C^2.

        One group: the mean of xx', PSD of norm at most its trace, C^2. The exact sum is kept.
        """
        d, C = self.n_features, self.clip_norm

        def answer(step: float) -> NDArray[Any]:
            rows, shape = self._map(math.sqrt(step)), (2, d, d) if step else (d, d)
            total = self._sum(lambda block: blocks.block_gram(rows(block)), shape, step)
            self._exact_gram = (step, total) if step else None
            return joined(total[0], total[1], 0) if step else total

        return self._square("gram", d, self.neighbours.positive(C * C, d), answer)

    def moment(self, bias: float) -> Bounded:
        """Return [X, c]'[X, c]: X'X, c times the column sums and c^2 n in one release.

        A row of it has squared norm ||x||^2 + c^2 <= C^2 + c^2. Replace: with s = x.y in
        [-C^2, C^2], ||P - Q||^2 <= 2 (C^2 + c^2)^2 - 2 (s + c^2)^2, largest at s = -c^2 when
        c <= C: sqrt(2) (C^2 + c^2); beyond, at s = -C^2: 2 sqrt(2) C c.
        A group is scaled down as a whole, bias included, where the mean square of (x, c) exceeds
        C^2 + c^2: that bounds its norm; replace: a PSD pair, sqrt(2) times it.
        """
        d, C, c = self.n_features, self.clip_norm, float(bias)
        l2 = self.neighbours.positive(C * C + c * c)

        def answer(step: float) -> NDArray[Any]:
            unit, shape = math.sqrt(step), (d + 1, d + 1)
            if self.by_group:
                whole = views.GroupMap(math.hypot(C, c), unit)
                return self._sum(
                    lambda block: blocks.block_gram(whole(views.with_bias(block, c))), shape, step
                )
            rows, last = self._map(unit), bias_units(c, step)
            return self._sum(lambda block: _augmented(rows(block), last), shape, step)

        if self.by_group:
            return self._square("augmented_gram", d + 1, l2, answer)
        if self.neighbours.replace and c > C:
            l2 = 2 * math.sqrt(2) * C * c
        bounded = self._square("augmented_gram", d + 1, l2, answer)
        return bounded._replace(decode=partial(exact_bias, bias=c))

    def projected_gram(self, V: FloatArray) -> Bounded:
        """Return V'X'XV, for a public V with largest singular values s1 >= s2.

        One row: p = V'x has ||p||^2 <= C^2 s1^2, before and after rounding; one group: the mean
        of ||p||^2 has. Replace: a pair of PSD matrices of that norm, sqrt(2) C^2 s1^2.
        Where X'X was read before it follows from that: the same bound, and what floors add (see
        `PublicMatrix.projected`).
        """
        k, C, unit = V.shape[1], self.clip_norm, self._fine
        grid = PublicMatrix(V)
        radius = C * grid.norms[0]

        def answer(step: float) -> NDArray[Any]:
            if step and self._exact_gram:
                before, gram = self._exact_gram
                projected = grid.projected(gram, before / step, C * C / before)
                if projected is not None:
                    return projected
            rows, checked = self._map(unit if step else 0.0), row_map(radius, math.sqrt(step))

            def term(block: blocks.Block) -> FloatArray:
                if step == 0.0:
                    return blocks.block_gram(blocks.dense(rows(block) @ V))
                projected = grid.multiply(rows(block)) * unit
                return blocks.block_gram(views.by_group(checked, views.with_rows(block, projected)))

            return self._sum(term, (k, k), step)

        wider, slack = grid.rounding
        l2 = self.neighbours.positive(radius * radius, k) * (1 + wider)
        bounded = self._square("projected_gram", k, l2, answer)
        return bounded._replace(bound=bounded.bound._replace(slack=slack))

    # -- products --------------------------------------------------------------------------

    def gram_product(self, V: FloatArray) -> Bounded:
        """Return X'(X V) for a public V.

        One row: ||x x'V||_F <= C^2 s1 with s1 >= s2 the largest singular values of V. Replace:
        xx' - yy' = a uu' - b ww' with u, w orthonormal and a, b in [0, C^2], so at most
        C^2 sqrt(|V'u|^2 + |V'w|^2) <= C^2 sqrt(s1^2 + s2^2) (Ky Fan). Groups: a mixture of those.
        In integers a row gives z p' with p = rint(V'z): rounding p moves it by at most
        ||z|| sqrt(k)/2, for each row changed. Over the rows of a group these errors would add up
        without limit: products of groups are exact, and rounding the d x k sum costs sqrt(d k).
        """
        d, (_, k), C = self.n_features, V.shape, self.clip_norm
        grid = PublicMatrix(V)
        l2 = C * C * (math.hypot(*grid.norms) if self.neighbours.replace else grid.norms[0])
        if self.by_group:
            return self._exact_gram_product(V, l2)

        def answer(step: float) -> NDArray[Any]:
            rows = self._map(math.sqrt(step))

            def term(block: blocks.Block) -> FloatArray:
                Z = rows(block)
                P = blocks.dense(Z @ V) if step == 0.0 else blocks.rint(grid.multiply(Z))
                return blocks.cross_product(Z, P)

            return self._sum(term, (d, k), step)

        cross, finest = self.neighbours.units * C * math.sqrt(k) / 2, (C * FINEST_UNIT) ** 2
        bound = Bound("gram_product", (d, k), l2, slack=0.0, cross=cross, min_step=finest)
        return Bounded(bound, answer)

    def _exact_gram_product(self, V: FloatArray, l2: float) -> Bounded:
        d, k = V.shape
        grid = ExactProduct(V)

        def answer(step: float) -> NDArray[Any]:
            rows = self._map(math.sqrt(step / grid.scale))
            if step == 0.0:
                return self._sum(lambda block: _product(rows(block), V), (d, k), step)

            def term(block: blocks.Block) -> FloatArray:
                Z = rows(block)
                return np.vstack([blocks.dense(Z.T @ part) for part in grid.in_limbs(Z)])

            return grid.whole(*self._sum(term, (3 * d, k), step).reshape(3, d, k))

        finest = grid.scale * (self.clip_norm * FINEST_UNIT) ** 2
        return Bounded(Bound("gram_product", (d, k), l2, min_step=finest), answer)


def _product(Z: blocks.Block, V: FloatArray) -> FloatArray:
    return blocks.cross_product(Z, blocks.dense(Z @ V))


def _square_units(norms: FloatArray, clip_norm: float, step: float) -> NDArray[np.int64]:
    """Return the sum of min(norm, C)^2 in steps, each rounded."""
    clipped = np.minimum(norms, clip_norm)
    return np.asarray(to_grid(clipped * clipped, step).sum())


def _augmented(rows: blocks.Block, bias: float) -> FloatArray:
    """[rows, bias column]'[rows, bias column] of one block."""
    d = rows.shape[1]
    out = np.empty((d + 1, d + 1))
    out[:d, :d] = blocks.block_gram(rows)
    out[:d, d] = out[d, :d] = blocks.column_sums(rows) * bias
    out[d, d] = rows.shape[0] * bias * bias
    return out
