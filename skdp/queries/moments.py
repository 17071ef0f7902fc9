"""The exact second moment of rows, kept between releases: what is linear in it needs no pass.

Notation: C is the norm to which rows were clipped when the moment was made, u = C / 2**18 the unit
of their integers z; a release may clip them further, to C' <= C. The moment G of all rows is an
exact sum of integers, and so is what is taken off for the few rows that are long. A statistic is
computed from it by exact arithmetic with public matrices, and rounded down to steps once, after the
sum: each of its numbers moves by less than one step beyond the change of the exact sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp.data.block_rows import block_gram, cross_product
from skdp.data.blocks import AnyRows, Block, sum_rows
from skdp.data.exact import GRID_BITS, PublicMatrix, limbs_of
from skdp.data.integer_rows import IntegerRows, row_norms, rows_and_squares
from skdp.data.remote import RowNumbers
from skdp.data.wide import Wide
from skdp.privacy.gate.bounds import Bound, Bounded
from skdp.queries.sums import Compute, SumQuery
from skdp.queries.tangent import LOOSE, Split, TangentQuery

FloatArray = NDArray[np.float64]
_UNIT = 2.0**-18  # of a row: 2**16 rows of a block add up to less than 2**53
_FINEST = 2.0**-10  # steps may be so much finer than the square of the unit
_FURTHER = 16.0  # a clip norm that is smaller yet gets a moment of its own, in smaller units
MOST_FEATURES = 2**12  # what exact products with a grid allow
# Norms are kept to .1%; rows that may be long are looked at, and their integers decide.
_NEARLY = 0.98


class KeptMoment(SumQuery):
    """The second moment of clipped rows, made in one pass when a release first reads it.

    Parameters
    ----------
    source : RowSource or RemoteRows
        The private rows.
    norms : RowNumbers
        Their norms: measured before, or to be measured in units of this moment.
    clip_norm, adjacency, n_jobs
        As in `RowQuery`.
    """

    def __init__(
        self,
        source: AnyRows,
        norms: RowNumbers,
        *,
        clip_norm: float,
        adjacency: str,
        n_jobs: int | None,
    ) -> None:
        super().__init__(source, adjacency=adjacency, n_jobs=n_jobs)
        self.clip_norm, self._unit = clip_norm, clip_norm * _UNIT
        self.norms = norms
        if not norms.measured:
            self.norms = RowNumbers(source, partial(row_norms, unit=self._unit))
        self.n_features: int = source.n_features
        self._total: Wide | None = None

    def serves(self, clip_norm: float) -> bool:
        """Whether rows clipped to a public norm are fine enough in the units of this moment."""
        return self.clip_norm / _FURTHER <= clip_norm <= self.clip_norm

    # -- the exact moment, read inside the gate only ---------------------------------------------

    def _of_clipped(self, clip_norm: float) -> Wide:
        """Return the moment of rows clipped to a norm, in squares of the unit."""
        total = self._whole()
        if clip_norm == self.clip_norm:
            return total
        long_rows = self._rows_beyond(clip_norm)
        term = partial(_cut_off, first=self.clip_norm, then=clip_norm, unit=self._unit)
        return total - self._summed(long_rows, term, self.n_features)

    def _whole(self) -> Wide:
        """Return the moment; norms that nobody asked for yet are measured in its pass."""
        if self._total is None:
            d, rows = self.n_features, IntegerRows(self.clip_norm, self._unit, reuse=True)
            both = partial(_norms_and_gram, integers=rows)
            total = self.norms.beside_sum(both, (2 * d, d), self.n_jobs)
            self._total = Wide.joined(total[:d], total[d:])
        return self._total

    def sum(
        self, work: Callable[[FloatArray], NDArray[Any]], shape: tuple[int, ...] = ()
    ) -> NDArray[Any]:
        """Return a sum over norms, which are measured in the pass that makes the moment."""
        self._whole()
        return self.norms.sum(work, shape)

    @property
    def ordered(self) -> FloatArray | None:
        """Norms in order, which are measured in the pass that makes the moment."""
        self._whole()
        return self.norms.ordered

    def _rows_beyond(self, norm: float) -> AnyRows:
        """Return at least the rows whose integers are longer than a norm."""
        rounding = math.sqrt(self.n_features) * self._unit
        return self.norms.rows_where(partial(_above, threshold=_NEARLY * norm - rounding))

    def _summed(self, rows: AnyRows, term: Any, width: int) -> Wide:
        """Return the sum of a d x `width` matrix of integers that comes in two limbs."""
        shape = (2 * self.n_features, width)
        total = sum_rows(rows, term, shape, exact=True, n_jobs=self.n_jobs)
        return Wide.joined(total[: self.n_features], total[self.n_features :])

    def _scale(self, step: float) -> float:
        return self._unit / step * self._unit

    def _bound(self, name: str, l2: float, *shape: int, symmetric: bool = True) -> Bound:
        finest = self._unit * _FINEST * self._unit
        slack = math.sqrt(math.prod(shape))
        return Bound(name, shape, l2, symmetric=symmetric, slack=slack, min_step=finest)

    # -- releases --------------------------------------------------------------------------------

    def gram(self, clip_norm: float, floats: Compute) -> Bounded:
        """Return X'X. One row: ||x x'||_F = ||x||^2 <= C'^2; replace: PSD pair, sqrt(2) C'^2.

        `floats` computes it where there is no noise.
        """

        def answer(step: float) -> NDArray[Any]:
            if step == 0.0:
                return floats(step)
            return self._of_clipped(clip_norm).in_steps(self._scale(step), 0)

        d = self.n_features
        l2 = self.neighbours.positive(clip_norm**2, d)
        return Bounded(self._bound("gram", l2, d, d), answer)

    def projected_gram(self, V: FloatArray, clip_norm: float, floats: Compute) -> Bounded:
        """Return V'X'XV, for a public V on a grid with largest singular value s1.

        One row: p = V'x is exact, ||p p'||_F <= C'^2 s1^2; replace: a PSD pair, sqrt(2) C'^2 s1^2.
        """
        grid, k = PublicMatrix(V), V.shape[1]

        def answer(step: float) -> NDArray[Any]:
            if step == 0.0:
                return floats(step)
            half = self._of_clipped(clip_norm).mapped(grid.integers.T)
            scale = self._scale(step) * grid.unit * grid.unit
            return half.T.mapped(grid.integers.T).in_steps(scale, 0)

        l2 = self.neighbours.positive((clip_norm * grid.norms[0]) ** 2, k)
        return Bounded(self._bound("projected_gram", l2, k, k), answer)

    def tangent(
        self, V: FloatArray, weights: FloatArray | None, clip_norm: float
    ) -> KeptTangentQuery:
        """Return the query that splits X'X V at the public subspace V."""
        return self._beside(KeptTangentQuery, self, V, weights, clip_norm=clip_norm)


class KeptTangentQuery(TangentQuery):
    """The tangent part of X'X V for a public V, from a kept moment.

    Parameters
    ----------
    moment : KeptMoment
        The moment of the rows.
    V, weights, clip_norm, adjacency, n_jobs
        As in `TangentQuery`; the core is not released.
    """

    def __init__(
        self,
        moment: KeptMoment,
        V: FloatArray,
        weights: FloatArray | None = None,
        *,
        clip_norm: float,
        adjacency: str,
        n_jobs: int | None,
    ) -> None:
        source = moment._source
        super().__init__(
            source, V, math.inf, weights, clip_norm=clip_norm, adjacency=adjacency, n_jobs=n_jobs
        )
        self._moment = moment
        self._sizes = RowNumbers(
            source, partial(self._split.sizes, clip_norm=clip_norm, unit=moment._unit)
        )

    def product(self, clip_level: float) -> Bounded:
        """Return the sum of w b (D a)', w = min(1, clip_level / (||D a|| ||b||)).

        One row: at most L = min(clip_level, largest size); replace: 2 L. A row below the level adds
        (z - V V'z)(D V'z)', exactly. One above it adds (z - V V'z)(D t)' with t = w V'z cut to
        integers, whose entries are no longer than those of w V'z. So no row adds more than L;
        rounding down the d x p result costs sqrt(d p).
        """
        moment, (d, p) = self._moment, self._V.shape
        level = min(float(clip_level), self.largest)
        exact = super().product(clip_level)

        def answer(step: float) -> NDArray[Any]:
            if step == 0.0:
                return exact.answer(step)
            grid = self._grid
            short, long_products = self._at_level(level)
            product = short.mapped(grid.T).T + long_products.shifted(GRID_BITS)
            core = product.mapped(grid.T)
            tangent = product.shifted(2 * GRID_BITS) - core.mapped(grid)
            return tangent.in_steps(self._weights * moment._scale(step), 3 * GRID_BITS)

        l2 = self.neighbours.array(level) * LOOSE
        return Bounded(moment._bound("tangent_product", l2, d, p, symmetric=False), answer)

    def _at_level(self, level: float) -> tuple[Wide, Wide]:
        """Return the moment of the rows below a level, and the products of those above it."""
        moment, d = self._moment, len(self._V)
        if self._sizes.measured:
            rows = self._sizes.rows_where(partial(_above, threshold=level))
        else:  # one pass less: short rows have no large size
            rows = moment._rows_beyond(math.sqrt(level / self.largest) * self.clip_norm)
        term = partial(
            _long_terms, split=self._split, clip_norm=self.clip_norm, unit=moment._unit, level=level
        )
        found = moment._summed(rows, term, d + self._V.shape[1])
        gram, products = (
            Wide(tuple(limb[:, part] for limb in found.limbs))
            for part in (slice(d), slice(d, None))
        )
        return moment._of_clipped(self.clip_norm) - gram, products


def _above(values: FloatArray, threshold: float) -> NDArray[np.bool_]:
    return values > threshold


def _stacked(exact: FloatArray) -> FloatArray:
    """Return a matrix of integers in two limbs, one above the other."""
    return limbs_of(exact).reshape(-1, exact.shape[1])


def _norms_and_gram(rows: Block, integers: IntegerRows) -> tuple[tuple[FloatArray], NDArray[Any]]:
    """Return the norms of rows, and Z'Z of one block in limbs."""
    Z, norms = integers.with_norms(rows)
    return (norms,), _stacked(block_gram(Z))


def _cut_off(rows: Block, first: float, then: float, unit: float) -> FloatArray:
    """Return what clipping further takes off Z'Z of one block, in limbs."""
    whole = block_gram(IntegerRows(first, unit, reuse=True)(rows))
    return _stacked(whole - block_gram(IntegerRows(then, unit, reuse=True)(rows)))


def _long_terms(
    rows: Block, split: Split, clip_norm: float, unit: float, level: float
) -> FloatArray:
    """Return Z'Z and Z'T of the rows of one block that are above a level, in limbs."""
    Z, lengths = rows_and_squares(rows, clip_norm, unit)
    A, _, sizes = split(Z, lengths)
    above = np.flatnonzero(_above(sizes * unit**2, level))
    Z, T = Z[above], np.trunc(A[above] * (level / unit**2 / sizes[above])[:, None])
    return np.hstack([_stacked(block_gram(Z)), _stacked(cross_product(Z, T))])
