"""Queries whose privacy unit is one row: the sensitivities of moments, products, sums and counts.

Notation: x is a row with ||x|| <= C (clipped inside the query), z its integer image with
z.z <= C**2/h**2 in exact integers, h the unit. Neighbours: `add_remove` (a row is present or
absent, n private) or `replace` (any other row, n public).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp.data.block_rows import (
    block_gram,
    column_sums,
    cross_product,
    dense,
    entrywise,
    rint,
    scaled_to_integers,
    square_norms,
)
from skdp.data.blocks import Block, row_source
from skdp.data.exact import PublicMatrix
from skdp.data.integer_rows import (
    FINEST_UNIT,
    IntegerRows,
    as_int64,
    clip_rows,
    length_unit,
    row_map,
    row_norms,
)
from skdp.data.remote import RowNumbers, narrowed, selected_columns
from skdp.data.views import centered
from skdp.privacy.gate.bounds import Bound, Bounded
from skdp.queries.moments import MOST_FEATURES, KeptMoment
from skdp.queries.sums import SumQuery
from skdp.queries.tangent import TangentQuery

_SUM_UNIT = 2.0**-20  # unit of a row in clipped sums, in units of the clip norm

FloatArray = NDArray[np.float64]


class RowQuery(SumQuery):
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
        super().__init__(row_source(rows), adjacency=adjacency, n_jobs=n_jobs)
        self.clip_norm = float(clip_norm)
        self.n_features: int = self._source.n_features
        finite = math.isfinite(self.clip_norm)
        near = self.clip_norm * _SUM_UNIT if finite else length_unit(self.n_features)
        self._norms = RowNumbers(self._source, partial(row_norms, unit=near))
        self._moment: KeptMoment | None = None
        self._tangents = False  # whether products at subspaces are made of it, too
        self._exact_sums: dict[float, NDArray[Any]] = {}

    # -- narrowed queries (public arguments) -----------------------------------------------

    def clipped(self, clip_norm: float) -> RowQuery:
        """Return the same rows under a public clip norm; norms are measured once.

        Their unit follows from the calls alone, here and where they are made again.
        """
        query = self._beside(RowQuery, self._source, clip_norm=clip_norm)
        query._norms = self._norms
        if self._moment is not None and self._moment.serves(clip_norm):
            query._moment, query._tangents = self._moment, self._tangents
        return query

    def kept(self, tangents: bool = True) -> RowQuery:
        """Return the same rows; their exact second moment is made once, for several releases.

        Also for products at a subspace, with `tangents`: these take the moment of the long rows
        off it, which pays where they are few. Else all rows are passed over.
        """
        query = self.clipped(self.clip_norm)
        query._tangents = tangents
        if math.isfinite(self.clip_norm) and self.n_features <= MOST_FEATURES:
            query._moment = self._beside(
                KeptMoment, self._source, query._norms, clip_norm=self.clip_norm
            )
            query._norms = query._moment.norms
        return query

    def columns(self, kept: NDArray[np.intp]) -> RowQuery:
        """Return the rows on a public selection of columns; bad rows stay bad."""
        rows = selected_columns(self._source, kept)
        return self._beside(RowQuery, rows, clip_norm=self.clip_norm)

    def centered(self, center: FloatArray) -> RowQuery:
        """Return the rows minus a public centre; clipping comes after it."""
        rows = narrowed(self._source, partial(centered, center=center), self.n_features)
        return self._beside(RowQuery, rows, clip_norm=self.clip_norm)

    def tangent(
        self, V: FloatArray, scale: float, weights: FloatArray | None = None
    ) -> TangentQuery:
        """Return the query that splits X'X V at the public subspace V."""
        C = self.clip_norm
        if self._moment is not None and self._tangents and scale == math.inf:
            return self._moment.tangent(V, weights, C)
        return self._beside(TangentQuery, self._source, V, scale, weights, clip_norm=C)

    # -- norms and sums --------------------------------------------------------------------

    def kept_below(self, threshold: float) -> Bounded:
        """Return how many norms are at most the threshold, minus half of those that are not 0.

        Rows that are not finite count as rows of zeros.
        """
        return self._below(self._lengths, threshold, "norm_median", kept_only=True)

    def norms_above(self, threshold: float) -> Bounded:
        """Return how many rows are longer than a threshold."""
        return self._above(self._lengths, threshold, "norm_rank")

    @property
    def _lengths(self) -> RowNumbers | KeptMoment:
        """The norms; of rows whose moment is kept they are measured beside it."""
        return self._norms if self._moment is None else self._moment

    def square_sum(self) -> Bounded:
        """Return the sum of ||x||^2, a number in [0, C^2] for each row: C^2 under both."""
        C = self.clip_norm

        def answer(step: float) -> NDArray[Any]:
            if step == 0.0:
                return self._sum(lambda rows: square_norms(clip_rows(rows, C)).sum(), (), step)
            return self._norms.sum(partial(_square_units, clip_norm=C, step=step))

        return self._number("trace", 0.0, C * C, answer)

    def sums(self) -> Bounded:
        """Return the column sums. ||x|| <= C; replace ||x - y|| <= 2C; each row is rounded once.

        Exact sums in the same unit are made once: noise is drawn for each release of them.
        """
        bounded = self._sums(self.neighbours.array(self.clip_norm), lambda rows: rows)

        def answer(step: float) -> NDArray[Any]:
            if step not in self._exact_sums:
                self._exact_sums = {step: bounded.answer(step)}
            return self._exact_sums[step].copy()

        return replace(bounded, answer=answer)

    def positive_sums(self) -> Bounded:
        """Return the column sums of positive parts: replace ||x - y|| <= sqrt(2) C, as x.y >= 0.

        Negative entries count as zeros after clipping, so that the bound needs no promise.
        """
        change = self.neighbours.positive(self.clip_norm, self.n_features)
        return self._sums(change, partial(entrywise, partial(np.maximum, 0.0)))

    def _sums(self, change: float, of_rows: Callable[[Block], Block]) -> Bounded:
        d, C = self.n_features, self.clip_norm

        def answer(step: float) -> NDArray[Any]:
            if step == 0.0:
                return self._sum(lambda rows: column_sums(of_rows(clip_rows(rows, C))), (d,), step)
            integers, scale = row_map(C, C * _SUM_UNIT), C * _SUM_UNIT / step

            def term(rows: Block) -> NDArray[np.int64]:
                whole = scaled_to_integers(of_rows(integers(rows)), scale)
                return column_sums(whole).astype(np.int64)

            return self._sum(term, (d,), step)

        return self._array("sums", (d,), change, answer)

    # -- second moments: PSD, symmetric, no rounding beyond the rows -----------------------

    def gram(self) -> Bounded:
        """Return X'X. One row: ||x x'||_F = ||x||^2 <= C^2; replace: PSD pair, sqrt(2) C^2."""
        d, C = self.n_features, self.clip_norm

        def answer(step: float) -> NDArray[Any]:
            rows_to_units = row_map(C, math.sqrt(step))
            return self._sum(lambda rows: block_gram(rows_to_units(rows)), (d, d), step)

        if self._moment is not None:
            return self._moment.gram(C, answer)
        return self._square("gram", d, self.neighbours.positive(C * C, d), answer)

    def moment(self, corner: float) -> Bounded:
        """Return [X, c]'[X, c]: X'X, c times the column sums and c^2 n in one release.

        A row of it has squared norm ||x||^2 + c^2 <= C^2 + c^2. Replace: with s = x.y in
        [-C^2, C^2], ||P - Q||^2 <= 2 (C^2 + c^2)^2 - 2 (s + c^2)^2, largest at s = -c^2 when
        c <= C: sqrt(2) (C^2 + c^2); beyond, at s = -C^2: 2 sqrt(2) C c.
        """
        d, C, c = self.n_features, self.clip_norm, float(corner)

        def answer(step: float) -> NDArray[Any]:
            rows_to_units, last = row_map(C, math.sqrt(step)), corner_units(c, step)
            return self._sum(
                lambda rows: _augmented(rows_to_units(rows), last), (d + 1, d + 1), step
            )

        l2 = self.neighbours.positive(C * C + c * c)
        if self.neighbours.replace and c > C:
            l2 = 2 * math.sqrt(2) * C * c
        bounded = self._square("moment", d + 1, l2, answer)
        return replace(bounded, decode=partial(exact_corner, corner=c))

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
                    lambda rows: block_gram(dense(clip_rows(rows, C) @ V)), (k, k), step
                )
            unit = C * _SUM_UNIT
            integers, project = row_map(C, unit), IntegerRows(radius, math.sqrt(step))
            return self._sum(
                lambda rows: block_gram(project(grid.multiply(integers(rows)) * unit)), (k, k), step
            )

        if self._moment is not None:
            return self._moment.projected_gram(V, C, answer)
        return self._square(
            "projected_gram", k, self.neighbours.positive(radius * radius, k), answer
        )

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
            rows_to_units = row_map(C, math.sqrt(step))

            def term(rows: Block) -> FloatArray:
                Z = rows_to_units(rows)
                P = dense(Z @ V) if step == 0.0 else rint(grid.multiply(Z))
                return cross_product(Z, P)

            return self._sum(term, (d, k), step)

        bound = Bound(
            "gram_product",
            (d, k),
            C * C * (math.hypot(*grid.norms) if self.neighbours.replace else grid.norms[0]),
            slack=0.0,
            cross=self.neighbours.units * C * math.sqrt(k) / 2,
            min_step=(C * FINEST_UNIT) ** 2,
        )
        return Bounded(bound, answer)


def _square_units(norms: FloatArray, clip_norm: float, step: float) -> NDArray[np.int64]:
    """Return the sum of min(norm, C)^2 in steps, each rounded."""
    clipped = np.minimum(norms, clip_norm)
    return np.asarray(as_int64(clipped * clipped / step).sum())


def _augmented(rows: Block, corner: float) -> FloatArray:
    """[rows, corner]'[rows, corner] of one block."""
    d = rows.shape[1]
    out = np.empty((d + 1, d + 1))
    out[:d, :d] = block_gram(rows)
    out[:d, d] = out[d, :d] = column_sums(rows) * corner
    out[d, d] = rows.shape[0] * corner * corner
    return out


def corner_units(corner: float, step: float) -> float:
    """Return a public corner rounded down to whole units; itself at step 0."""
    return math.floor(corner / math.sqrt(step)) if step else corner


def exact_corner(moment: FloatArray, step: float, corner: float) -> FloatArray:
    """Undo that the corner was rounded down to whole units (both are public)."""
    scale = np.ones(len(moment))
    scale[-1] = corner / (max(1, corner_units(corner, step)) * math.sqrt(step))
    return moment * scale[:, None] * scale[None, :]
