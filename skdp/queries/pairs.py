"""Pairs of items that are in one history: the moment of non-negative rows without its diagonal.

What an item has with itself says nothing of tastes, and its count is known; nor does what follows
from how popular items are, a public direction v. Without them a row may be longer: what is left of
its product with itself has norm 1. A history of two items is worth twice as much in squares, one of
d items d / (d - 1) times, and more where much of it is popular.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp.data.block_rows import (
    block_gram,
    entrywise,
    largest_entries,
    scale_rows,
    where_rows,
)
from skdp.data.blocks import Block
from skdp.data.exact import exact_map, off_grid, on_grid
from skdp.privacy.gate.bounds import Bound, Bounded
from skdp.queries.sums import SumQuery

FloatArray = NDArray[np.float64]
_LONGEST = 2.0  # squared length of a row at most
_MARGIN = 1 - 2.0**-20  # v on its grid has length 1 to 2**-24, sums of a row are nearer
_LESS = (1 - 2.0**-12, 1 - 2.0**-6, 0.5, 0.0)
_BAND = 256  # columns that are mapped together


class PairQuery(SumQuery):
    """The pairs of non-negative CSR rows, each row scaled so that its pairs have norm 1.

    Parameters
    ----------
    rows : RowSource or RemoteRows
        The private rows.
    adjacency : {"add_remove", "replace"}
        What neighbours differ in.
    n_jobs : int or None
        Threads for the passes over the rows; it never changes a result.
    """

    def __init__(self, rows: Any, *, adjacency: str, n_jobs: int | None = None) -> None:
        super().__init__(rows, adjacency=adjacency, n_jobs=n_jobs)
        self.n_features = int(rows.n_features)

    def moment(self, popular: FloatArray) -> Bounded:
        """Return P A P, A = X'X without its diagonal, P = I - vv' for the public unit vector v.

        One row adds P A_z P, whose norm is at most 1 in integers too (`_scaled`). Floors: each P
        rounds n + sqrt(n) numbers' worth, and P stretches nothing; the mean of both triangles n
        more. Replace: two non-negative arrays, sqrt(2), and v is not used, as P mixes signs (a
        single pair is a number in [0, 1]).
        """
        d, v = self.n_features, np.asarray(popular, np.float64)
        if v.shape != (d,) or not np.linalg.norm(v) <= 1 + 1e-6:
            raise ValueError(f"'popular' must be a vector of {d} numbers, of length 1 at most.")
        grid = np.zeros(d) if self.neighbours.replace else on_grid(v / (1 + 1e-6))

        def answer(step: float) -> NDArray[Any]:
            term = partial(_pairs, unit=math.sqrt(step), popular=off_grid(grid))
            total = self._sum(term, (d, d), step)
            if not grid.any():
                return total
            return _deflated(total, grid[:, None]) if step else _projected(total, off_grid(grid))

        l2 = self.neighbours.positive(1.0, d * (d - 1) // 2)
        slack = 5.0 * d if grid.any() else 0.0
        return Bounded(Bound("pairs", (d, d), l2, symmetric=True, slack=slack), answer)


def _pairs(rows: Block, unit: float, popular: FloatArray) -> FloatArray:
    gram = block_gram(_scaled(rows, unit, popular))
    np.fill_diagonal(gram, 0.0)
    return gram


def _projected(A: FloatArray, v: FloatArray) -> FloatArray:
    image = A @ v
    return np.asarray(
        A - np.outer(v, image) - np.outer(image, v) + float(v @ image) * np.outer(v, v)
    )


def _deflated(K: NDArray[np.int64], grid: FloatArray) -> NDArray[np.int64]:
    """Return P K P, floored, for a symmetric K and v on the grid: the same bits everywhere."""
    for _ in range(2):
        bands = [slice(i, i + _BAND) for i in range(0, len(K), _BAND)]
        image = np.hstack([exact_map(grid.T, K[:, band]) for band in bands])
        for band in bands:
            K[band] -= exact_map(grid[band], image)
        K = np.ascontiguousarray(K.T)
    return np.asarray((K + K.T) >> 1)


def _scaled(rows: Any, unit: float, popular: FloatArray) -> Any:
    """Scale each row, from itself alone, to pairs of norm 1; in whole units, or floats at 0.

    Its largest entry comes first, so that no square is too large; a row that is not finite is
    empty. What rounding made too long is shortened, a little more each time, or left out.
    """
    largest = largest_entries(rows)
    good = np.isfinite(largest) & (largest > 0)
    rows = scale_rows(where_rows(good, rows), 1 / np.where(good, largest, 1.0))
    rows = entrywise(lambda x: np.maximum(x, 0.0), rows)
    squares, norms = _lengths(rows, popular)
    least = np.maximum(norms, squares / _LONGEST)
    grown = 1 / np.sqrt(np.where(least > 0, least, 1.0))
    if unit == 0.0:
        return scale_rows(rows, grown)
    Z = entrywise(np.rint, scale_rows(rows, grown / unit))
    most = _MARGIN / unit**2
    for less in _LESS:
        norms = _lengths(Z, popular)[1]
        over = norms > most
        if not over.any():
            break
        shorter = np.sqrt(most / np.maximum(norms, most)) * less
        Z = entrywise(np.trunc, scale_rows(Z, np.where(over, shorter, 1.0)))
    return Z


def _lengths(rows: Any, v: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the squared length of each row x and the norm of P A P, added up in order.

    With c = v'x, A v has the entries y_i = x_i (c - x_i v_i) on the row, and the squared norm is
    |A|^2 - 2 |y|^2 + (v'y)^2, where |A|^2 is the sum of x_i^2 (|x|^2 - x_i^2). For s = |v|^2 < 1 it
    is smaller by (1 - s)^2 (2 - s) |y|^2 at least.
    """
    m, x, own = rows.shape[0], rows.data, v[rows.indices]
    owner = np.repeat(np.arange(m), np.diff(rows.indptr))

    def total(values: FloatArray) -> FloatArray:
        return np.asarray(np.bincount(owner, values, m))

    squares = total(x**2)
    pairs = total(x**2 * np.maximum(squares[owner] - x**2, 0.0))
    image = x * (total(x * own)[owner] - x * own)
    left = pairs - 2 * total(image**2) + total(image * own) ** 2
    return squares, np.sqrt(np.maximum(left, 0.0))
