"""Queries whose privacy unit is one row: the sensitivities of moments, products, sums and counts.

Notation: x is a row with ||x|| <= C (clipped inside the query), z its integer image with
z.z <= C**2/h**2 in exact integers, h the unit. Neighbours: `add_remove` (a row is present or
absent, n private) or `replace` (any other row, n public).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp.data.blocks import (
    AnyRows,
    Block,
    CenteredRows,
    SelectedRows,
    is_source,
    row_source,
    sum_rows,
)
from skdp.data.remote import RowNumbers, narrowed
from skdp.privacy.gate.bounds import Bound, Bounded, PrivateQuery
from skdp.queries.integers import (
    FINEST_UNIT,
    IntegerRows,
    as_int64,
    clip_rows,
    count_above,
    row_norms,
    square_norms,
)
from skdp.queries.tangent import TangentQuery

__all__ = ["ADJACENCIES", "RowQuery"]

ADJACENCIES = ("add_remove", "replace")
_V_BITS = 26  # bits of a public matrix beside integer rows: their products stay below 2**53
_SUM_UNIT = 2.0**-20  # unit of a row in clipped sums, in units of the clip norm

FloatArray = NDArray[np.float64]


def _dense(matrix: Any) -> FloatArray:
    return np.asarray(matrix.toarray() if sp.issparse(matrix) else matrix)


def _block_gram(Z: Block) -> FloatArray:
    """Z'Z; sparse rows are multiplied as sparse rows unless they are nearly full."""
    if sp.issparse(Z) and Z.nnz > 0.1 * Z.shape[0] * Z.shape[1]:
        Z = Z.toarray()
    return _dense(Z.T @ Z)


class RowQuery(PrivateQuery):
    """Statistics of private rows, each with its bound. Nothing is computed before the gate asks.

    Parameters
    ----------
    rows : array, CSR matrix, memory map, RowSource or RemoteRows
        The private rows.
    clip_norm : float
        Rows longer than this are scaled down to it.
    adjacency : {"add_remove", "replace"}
        What neighbours differ in.
    n_jobs : int or None
        Threads for the passes over the rows; it never changes a result.
    """

    def __init__(
        self, rows: Any, *, clip_norm: float, adjacency: str, n_jobs: int | None = None
    ) -> None:
        if adjacency not in ADJACENCIES:
            raise ValueError(
                f"'adjacency' must be one of {ADJACENCIES}. Got {adjacency!r} instead."
            )
        self._source: AnyRows = rows if is_source(rows) else row_source(rows)
        self.clip_norm = float(clip_norm)
        near = self.clip_norm * _SUM_UNIT
        self._norms = RowNumbers(self._source, partial(row_norms, unit=near))
        self.adjacency = adjacency
        self.n_jobs = n_jobs
        self.n_features = self._source.n_features

    # -- narrowed queries (public arguments) -----------------------------------------------

    def _narrowed(self, source: AnyRows, clip_norm: float) -> RowQuery:
        return RowQuery(source, clip_norm=clip_norm, adjacency=self.adjacency, n_jobs=self.n_jobs)

    def clipped(self, clip_norm: float) -> RowQuery:
        """Return the same rows under a public clip norm."""
        return self._narrowed(self._source, clip_norm)

    def columns(self, kept: NDArray[np.intp]) -> RowQuery:
        """Return the rows on a public selection of columns."""
        rows = narrowed(self._source, partial(SelectedRows, kept=kept), len(kept))
        return self._narrowed(rows, self.clip_norm)

    def centered(self, center: FloatArray) -> RowQuery:
        """Return the rows minus a public centre; clipping comes after it."""
        rows = narrowed(self._source, partial(CenteredRows, center=center), self.n_features)
        return self._narrowed(rows, self.clip_norm)

    @property
    def n_rows(self) -> int:
        """Number of rows, public under adjacency="replace" only."""
        if not self._replace:
            raise ValueError("the number of rows is private under adjacency='add_remove'")
        return self._source.n_rows()

    def tangent(
        self, V: FloatArray, scale: float, weights: FloatArray | None = None
    ) -> TangentQuery:
        """Return the query that splits X'X V at the public subspace V."""
        return TangentQuery(
            self._source,
            V,
            scale,
            weights,
            clip_norm=self.clip_norm,
            adjacency=self.adjacency,
            n_jobs=self.n_jobs,
        )

    # -- factors of the two adjacencies ----------------------------------------------------

    @property
    def _replace(self) -> bool:
        return self.adjacency == "replace"

    @property
    def _rows_changed(self) -> float:
        """How many contributions differ: one row comes or goes, or one goes and one comes."""
        return 2.0 if self._replace else 1.0

    def _psd(self, order: int = 2) -> float:
        """||P - Q||_F <= sqrt(2) max(||P||, ||Q||) for P, Q >= 0, as <P, Q> >= 0; 1 for 1 x 1."""
        return math.sqrt(2.0) if self._replace and order > 1 else 1.0

    def _sum(
        self, term: Callable[[Block], Any], shape: tuple[int, ...], *, exact: bool
    ) -> NDArray[Any]:
        return sum_rows(self._source, term, shape, exact=exact, n_jobs=self.n_jobs)

    # -- counts and sums -------------------------------------------------------------------

    def count(self) -> Bounded:
        """Return the number of rows. One row changes it by 1."""
        if self._replace:
            raise ValueError("the number of rows is public under adjacency='replace': `n_rows`")

        def answer(step: float) -> NDArray[Any]:
            n = self._source.n_rows()
            if step == 0.0:
                return np.asarray(float(n))
            return np.asarray(min(n * round(1 / step), 2**62), np.int64)

        return Bounded(Bound("count", (), 1.0, slack=0.5, l1=1.0, l1_slack=0.5), answer)

    def norms_below(self, threshold: float, quantile: float) -> Bounded:
        """Return the sum over rows of (1[||x|| <= threshold] - quantile).

        One row adds a number in [-q, 1 - q]: max(q, 1 - q); replace: 1. Negative when the
        threshold lies below the q-quantile of the norms.
        """
        q = float(quantile)
        size = 1.0 if self._replace else max(q, 1 - q)

        def answer(step: float) -> NDArray[Any]:
            below, _, n = self._norms.count(threshold)
            if step == 0.0:
                return np.asarray(below - q * n)
            total = below * round((1 - q) / step) + (n - below) * round(-q / step)
            return np.asarray(max(-(2**62), min(2**62, total)), np.int64)

        rounding = self._rows_changed / 2
        bound = Bound("norm_quantile", (), size, slack=rounding, l1=size, l1_slack=rounding)
        return Bounded(bound, answer)

    def norms_above(self, threshold: float) -> Bounded:
        """Return how many rows are longer than a threshold. One row: 1, under both adjacencies."""
        return count_above(self._norms, threshold, "norm_rank", self._rows_changed)

    def square_sum(self) -> Bounded:
        """Return the sum of ||x||^2, a number in [0, C^2] for each row: C^2 under both."""
        C = self.clip_norm

        def answer(step: float) -> NDArray[Any]:
            if step == 0.0:
                total = self._sum(
                    lambda rows: square_norms(clip_rows(rows, C)).sum(), (), exact=False
                )
                return np.asarray(total)
            return self._norms.sum(partial(_square_units, clip_norm=C, step=step))

        slack = self._rows_changed / 2
        return Bounded(Bound("trace", (), C * C, slack=slack, l1=C * C, l1_slack=slack), answer)

    def sums(self) -> Bounded:
        """Return the column sums. ||x|| <= C; replace ||x - y|| <= 2C; each row is rounded once."""
        d, C = self.n_features, self.clip_norm

        def answer(step: float) -> NDArray[Any]:
            if step == 0.0:
                return self._sum(lambda rows: _column_sums(clip_rows(rows, C)), (d,), exact=False)
            rows_to_integers = IntegerRows(C, C * _SUM_UNIT, reuse=True)
            scale = C * _SUM_UNIT / step

            def term(rows: Block) -> NDArray[np.int64]:
                Z = rows_to_integers(rows)
                if sp.issparse(Z):
                    Z.data = np.rint(Z.data * scale)
                else:
                    Z *= scale
                    np.rint(Z, out=Z)
                return _column_sums(Z).astype(np.int64)

            return self._sum(term, (d,), exact=True)

        one = self._rows_changed
        bound = Bound(
            "sums", (d,), one * C, slack=one * math.sqrt(d) / 2,
            l1=one * C * math.sqrt(d), l1_slack=one * d / 2,
        )  # fmt: skip
        return Bounded(bound, answer)

    # -- second moments: PSD, symmetric, no rounding beyond the rows -----------------------

    def gram(self) -> Bounded:
        """Return X'X. One row: ||x x'||_F = ||x||^2 <= C^2; replace: PSD pair, sqrt(2) C^2."""
        d, C = self.n_features, self.clip_norm

        def answer(step: float) -> NDArray[Any]:
            if step == 0.0:
                return self._sum(lambda rows: _block_gram(clip_rows(rows, C)), (d, d), exact=False)
            rows_to_integers = IntegerRows(C, math.sqrt(step), reuse=True)
            return self._sum(lambda rows: _block_gram(rows_to_integers(rows)), (d, d), exact=True)

        l2 = C * C * self._psd(d)
        return Bounded(Bound("gram", (d, d), l2, symmetric=True, slack=0.0), answer)

    def moment(self, corner: float) -> Bounded:
        """Return [X, c]'[X, c]: X'X, c times the column sums and c^2 n in one release.

        A row of it has squared norm ||x||^2 + c^2 <= C^2 + c^2. Replace: with s = x.y in
        [-C^2, C^2], ||P - Q||^2 <= 2 (C^2 + c^2)^2 - 2 (s + c^2)^2, largest at s = -c^2 when
        c <= C: sqrt(2) (C^2 + c^2); beyond, at s = -C^2: 2 sqrt(2) C c.
        """
        d, C, c = self.n_features, self.clip_norm, float(corner)

        def answer(step: float) -> NDArray[Any]:
            if step == 0.0:
                return self._sum(
                    lambda rows: _augmented(clip_rows(rows, C), c), (d + 1, d + 1), exact=False
                )
            rows_to_integers = IntegerRows(C, math.sqrt(step), reuse=True)
            last = _corner_units(c, step)
            return self._sum(
                lambda rows: _augmented(rows_to_integers(rows), last), (d + 1, d + 1), exact=True
            )

        l2 = C * C + c * c
        if self._replace:
            l2 = math.sqrt(2) * l2 if c <= C else 2 * math.sqrt(2) * C * c
        bound = Bound("moment", (d + 1, d + 1), l2, symmetric=True, slack=0.0)
        return Bounded(bound, answer, lambda value, step: _exact_corner(value, c, step))

    def projected_gram(self, V: FloatArray) -> Bounded:
        """Return V'X'XV, for a public V with largest singular values s1 >= s2.

        One row: p = V'x has ||p||^2 <= C^2 s1^2, before and after rounding. Replace: a pair of PSD
        matrices of that norm, sqrt(2) C^2 s1^2.
        """
        k, C = V.shape[1], self.clip_norm
        grid = PublicMatrix(V)
        radius = C * grid.norms[0]

        def answer(step: float) -> NDArray[Any]:
            if step == 0.0:
                return self._sum(
                    lambda rows: _block_gram(_dense(clip_rows(rows, C) @ V)), (k, k), exact=False
                )
            unit = C * _SUM_UNIT
            project = IntegerRows(radius, math.sqrt(step))
            rows_to_integers = IntegerRows(C, unit, reuse=True)

            def term(rows: Block) -> FloatArray:
                return _block_gram(project(grid.multiply(rows_to_integers(rows)) * unit))

            return self._sum(term, (k, k), exact=True)

        l2 = radius * radius * self._psd(k)
        return Bounded(Bound("projected_gram", (k, k), l2, symmetric=True, slack=0.0), answer)

    # -- products --------------------------------------------------------------------------

    def gram_product(self, V: FloatArray) -> Bounded:
        """Return X'(X V) for a public V.

        One row: ||x x'V||_F <= C^2 s1 with s1 >= s2 the largest singular values of V. Replace:
        xx' - yy' = a uu' - b ww' with u, w orthonormal and a, b in [0, C^2], so at most
        C^2 sqrt(|V'u|^2 + |V'w|^2) <= C^2 sqrt(s1^2 + s2^2) (Ky Fan). In integers a row gives z p'
        with p = rint(V'z): rounding p moves it by at most ||z|| sqrt(k)/2, for each row changed.
        """
        d, (_, k), C = self.n_features, V.shape, self.clip_norm
        grid = PublicMatrix(V)

        def answer(step: float) -> NDArray[Any]:
            if step == 0.0:
                return self._sum(lambda rows: _product(clip_rows(rows, C), V), (d, k), exact=False)
            rows_to_integers = IntegerRows(C, math.sqrt(step), reuse=True)

            def term(rows: Block) -> FloatArray:
                Z = rows_to_integers(rows)
                P = grid.multiply(Z)
                return _dense(Z.T @ np.rint(P, out=P))

            return self._sum(term, (d, k), exact=True)

        bound = Bound(
            "gram_product",
            (d, k),
            C * C * (math.hypot(*grid.norms) if self._replace else grid.norms[0]),
            slack=0.0,
            cross=self._rows_changed * C * math.sqrt(k) / 2,
            min_step=(C * FINEST_UNIT) ** 2,
        )
        return Bounded(bound, answer)


def _column_sums(rows: Block) -> FloatArray:
    return np.asarray(rows.sum(axis=0), dtype=np.float64).reshape(-1)


def _square_units(norms: FloatArray, clip_norm: float, step: float) -> NDArray[np.int64]:
    """Return the sum of min(norm, C)^2 in steps, each rounded."""
    clipped = np.minimum(norms, clip_norm)
    return np.asarray(as_int64(clipped * clipped / step).sum())


def _product(rows: Block, V: FloatArray) -> FloatArray:
    return _dense(rows.T @ _dense(rows @ V))


def _augmented(rows: Block, corner: float) -> FloatArray:
    """[rows, corner]'[rows, corner] of one block."""
    d = rows.shape[1]
    out = np.empty((d + 1, d + 1))
    out[:d, :d] = _block_gram(rows)
    out[:d, d] = out[d, :d] = _column_sums(rows) * corner
    out[d, d] = rows.shape[0] * corner * corner
    return out


def _corner_units(corner: float, step: float) -> int:
    return math.floor(corner / math.sqrt(step))


def _exact_corner(moment: FloatArray, corner: float, step: float) -> FloatArray:
    """Undo that the corner was rounded down to whole units (both are public)."""
    scale = np.ones(len(moment))
    scale[-1] = corner / (max(1, _corner_units(corner, step)) * math.sqrt(step))
    return moment * scale[:, None] * scale[None, :]


class PublicMatrix:
    """A public matrix on a grid (rounding it is free), so that products with integers are exact.

    `norms` holds its two largest singular values.
    """

    def __init__(self, V: FloatArray) -> None:
        V = np.asarray(V, np.float64)
        self._bits = _V_BITS - math.frexp(float(np.linalg.norm(V, 2)))[1]
        self._V = np.rint(np.ldexp(V, self._bits))
        largest = np.zeros(2)
        values = np.linalg.svd(self._V, compute_uv=False)[:2]
        largest[: len(values)] = np.ldexp(values, -self._bits) * (1 + 1e-9)
        self.norms: FloatArray = largest

    def multiply(self, Z: Block) -> FloatArray:
        """Return Z V for integer rows Z, without rounding."""
        product = _dense(Z @ self._V)
        return np.asarray(np.ldexp(product, -self._bits, out=product))
