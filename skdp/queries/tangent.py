"""The split of a second moment at a public subspace: core and tangent part in one release.

Notation: V is d x p, public, with orthonormal columns; a row x (||x|| <= C) splits into a = V'x and
r = x - V a. Its share of X'X V is (V a + r) a'. Scaling the core V a a' by 1/scale before the
release leaves b a' with b = r + V a / scale, of Frobenius norm ||a|| ||b||: half of C^2 at most
where the core is scaled away, against C^2 for the whole product. Public weights D <= 1 of the
columns make it b (D a)', of norm ||D a|| ||b||.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp.data.block_rows import cross_product, narrow_product
from skdp.data.blocks import AnyRows, Block
from skdp.data.exact import GRID_BITS, limbs_of, on_grid, wide_map
from skdp.data.integer_rows import FINEST_UNIT, rows_and_squares
from skdp.data.remote import RowNumbers
from skdp.privacy.gate.bounds import Bound, Bounded
from skdp.queries.sums import SumQuery

FloatArray = NDArray[np.float64]
_SIZE_UNIT = 2.0**-20  # unit of a row when only its sizes are asked for: fine enough to search
LOOSE = 1 + 1e-9  # float errors of sizes
# ||b|| counts as at least ||a||/8. Rows inside the span of V then send no long core vectors, whose
# sums could overflow, for tangent parts that they do not have.
_SMALLEST_B = 8.0


def tangent_bound(clip_norm: float, scale: float) -> float:
    """Return the largest ||a|| ||b|| over rows of norm `clip_norm`.

    With t = ||a||^2 / C^2 it is C^2 sqrt(t (1 - t + t/scale^2)), largest at t = 1/(2(1 - 1/s^2)),
    inside [0, 1] for scale >= sqrt(2): C^2 / (2 sqrt(1 - 1/scale^2)). Below, at t = 1: C^2/scale.
    """
    if scale < math.sqrt(2):
        return clip_norm**2 / scale
    return clip_norm**2 / (2 * math.sqrt(1 - scale**-2))


@dataclass(frozen=True)
class Split:
    """The public side of the split: all that is needed where the rows are, and no rows."""

    grid: FloatArray
    weights: FloatArray
    removed: float
    gap: float
    rounding: float
    bits: int

    def __call__(self, Z: Block, lengths: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return V'z, D V'z and the size ||D V'z|| ||b|| of integer rows (||z||^2 given)."""
        A = narrow_product(Z, self.grid)
        A *= 2.0**-self.bits
        squares = np.einsum("ij,ij->i", A, A)
        kept = self.removed * (2 - self.removed) - self.gap
        b = np.sqrt(np.maximum(lengths - kept * squares, 0.0)) + self.rounding * np.sqrt(squares)
        b = np.maximum(b, np.sqrt(squares) / _SMALLEST_B)
        weighted = A * self.weights
        return A, weighted, np.sqrt(np.einsum("ij,ij->i", weighted, weighted)) * b

    def sizes(self, rows: Block, clip_norm: float, unit: float) -> FloatArray:
        """Return the sizes of rows that become integers of a unit."""
        return np.asarray(self(*rows_and_squares(rows, clip_norm, unit))[2] * unit**2)


class TangentQuery(SumQuery):
    """Core and tangent parts of X'X V for a public V, each row clipped to a public size.

    Parameters
    ----------
    source : RowSource
        The private rows.
    V : array of shape (n_features, p)
        Public, with orthonormal columns.
    scale : float
        The core is divided by it (``inf``: only the tangent part is released).
    weights : array of shape (p,) or None
        Public weights in (0, 1] of the columns of V'x on the right of the product: columns that
        matter more get less noise.
    clip_norm, adjacency, n_jobs
        As in `RowQuery`.
    """

    def __init__(
        self,
        source: AnyRows,
        V: FloatArray,
        scale: float,
        weights: FloatArray | None = None,
        *,
        clip_norm: float,
        adjacency: str,
        n_jobs: int | None,
    ) -> None:
        super().__init__(source, adjacency=adjacency, n_jobs=n_jobs)
        self._V = np.asarray(V, np.float64)
        self._grid = on_grid(self._V)
        if not scale >= 1:
            raise ValueError(f"'scale' must be at least 1. Got {scale!r} instead.")
        self._removed = 1 - 1 / scale
        # The grid is not quite orthonormal, and its scaled copy is rounded once more.
        unit = np.eye(self._V.shape[1])
        gap = float(np.linalg.norm(self._grid.T @ self._grid * 4.0**-GRID_BITS - unit)) + 1e-9
        if not gap < 1e-3:
            raise ValueError("'V' must have orthonormal columns.")
        rounding = 0.0 if scale == math.inf else math.sqrt(self._V.size) * 2.0**-GRID_BITS
        self._weights = np.ones(self._V.shape[1]) if weights is None else np.asarray(weights)
        if self._weights.shape != self._V.shape[1:]:  # now: where there are no rows, none would ask
            raise ValueError("'weights' must be one for each column of 'V'.")
        if not (np.all(self._weights > 0) and np.all(self._weights <= 1)):
            raise ValueError("'weights' must lie in (0, 1].")
        self._split = Split(self._grid, self._weights, self._removed, gap, rounding, GRID_BITS)
        self._float_split = Split(self._V, self._weights, self._removed, 0.0, 0.0, 0)
        self._sizes = RowNumbers(
            source, partial(self._split.sizes, clip_norm=clip_norm, unit=clip_norm * _SIZE_UNIT)
        )
        self.clip_norm = clip_norm
        self.largest = tangent_bound(clip_norm, min(scale, _SMALLEST_B)) * (1 + gap)

    def sizes_above(self, threshold: float) -> Bounded:
        """Return how many rows have a size above a threshold."""
        return self._above(self._sizes, threshold, "size_rank")

    def product(self, clip_level: float) -> Bounded:
        """Return the sum of w b (D a)', w = min(1, clip_level / (||D a|| ||b||)).

        One row: at most L = min(clip_level, largest size); replace: 2 L (x and its mirror image in
        the tangent part are antipodal there). In integers a row z gives (z - r V rint(a)) times
        rint(w D a)', with a = V'z, r = 1 - 1/scale and b = z - r V a. Let f and e be what the two
        roundings add: ||f|| <= min(||a||, sqrt(p)/2), as no number moves by more than itself, and e
        likewise. The left factor is no longer than z (V a shrinks to (1 - r) V a - r V f), and
        longer than b by r ||f|| at most. So the product exceeds ||b|| ||w D a|| by at most
        r ||f|| ||a|| + ||z|| ||e|| <= ||z|| sqrt(p): that of both roundings (p/4) is inside.
        Rounding the d x p result costs sqrt(d p).
        """
        d, p = self._V.shape
        level = min(float(clip_level), self.largest)
        clip_norm = self.clip_norm  # `term` goes to where the rows are: it may not carry `self`

        def answer(step: float) -> NDArray[Any]:
            split, unit = self._split if step else self._float_split, math.sqrt(step)
            longest = level / step if step else level

            def term(rows: Block) -> FloatArray:
                Z, lengths = rows_and_squares(rows, clip_norm, unit)
                A, weighted, sizes = split(Z, lengths)
                with np.errstate(divide="ignore", invalid="ignore"):
                    P = weighted * np.fmin(1.0, longest / sizes)[:, None]
                if step == 0.0:
                    return cross_product(Z, P)
                P = np.rint(P)
                return np.vstack([cross_product(Z, P), *limbs_of(np.rint(A).T @ P)])

            total = self._sum(term, (d + 2 * p, p) if step else (d, p), step)
            if step == 0.0:
                return np.asarray(total - self._removed * self._V @ (self._V.T @ total))
            removed = np.rint(self._grid * self._removed)
            return total[:d] - wide_map(removed, total[d : d + p], total[d + p :])

        bound = Bound(
            "tangent_product",
            (d, p),
            self.neighbours.array(level) * LOOSE,
            slack=math.sqrt(d * p),
            cross=self.neighbours.array(self.clip_norm) * math.sqrt(p),
            min_step=(self.clip_norm * FINEST_UNIT) ** 2,
        )
        return Bounded(bound, answer)
