"""Sums of clipped contributions of a trace regression, in tangent coordinates.

Notation as in `skdp.queries.records`: a record adds e_i P_T X_i, cut to length C.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp.data.exact import exact_map, joined, limbs_of, off_grid, on_grid
from skdp.privacy.gate.bounds import Bound, Bounded, PrivateQuery
from skdp.queries.record_forms import MAX_ROWS, Frame
from skdp.queries.record_passes import RecordPasses

__all__ = ["BELOW", "ClippedSum"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BELOW = 1 - 1e-12  # float errors of a factor
_FLOOR = 2.0**-6  # a size counts for at least this share of the norm: sums stay below 2**53
_HEADROOM = 35  # log2 of the clip level in units of a sum: 12 bits of rows, 6 of the floor


class ClippedSum(PrivateQuery):
    """Sums of clipped contributions e_i P_T X_i (or y_i X_i): private sizes, and the total.

    With an intercept the record is (X, corner), and its size sqrt(||P_T X||^2 + corner^2): one
    contribution, clipped as a whole.
    """

    def __init__(
        self,
        query: RecordPasses,
        matrix: tuple[FloatArray, FloatArray, FloatArray] | None,
        intercept: float,
    ) -> None:
        self._query = query
        self._matrix = matrix
        self._intercept = intercept
        self._parts: tuple[FloatArray, FloatArray] | None = None
        self._kept: NDArray[np.float32] | None = None
        d1, d2 = query.shape
        r = 0 if matrix is None else matrix[0].shape[1]
        self._core_size = d1 * d2 if matrix is None else r * (d1 + d2)
        # Sums are floored once, products with public matrices twice (each moves an entry by 1).
        self._slack = (
            math.sqrt(d1 * d2)
            + 1
            + 2 * (math.sqrt(d1 * d2) if matrix is None else math.sqrt(r * d1) + math.sqrt(r * d2))
        )

    # -- per-record numbers ------------------------------------------------------------------

    def _frame(self) -> Frame:
        assert self._matrix is not None
        U, S, V = self._matrix
        outer = self._query.form.outer
        left, right = (
            (U.T, V) if outer is None else (U.T @ off_grid(outer[0]), off_grid(outer[1]) @ V)
        )
        size = float(np.linalg.norm(S))
        unit = size * 2.0**-26 if size > 0 else 1.0
        return Frame(on_grid(left), on_grid(right), on_grid(V), np.rint(S / unit), unit)

    def _residuals(self) -> tuple[FloatArray, FloatArray]:
        """Return e_i and the size of each record, kept for the search and the sum."""
        if self._parts is None:
            query = self._query
            units, norms = query.survey()
            if self._matrix is None:
                sizes, residuals = norms, query.targets()
            else:
                frame = self._frame()
                beside: dict[str, NDArray[Any]] = {"units": units}
                if size := query.form.coordinates(frame.basis.shape[1]):
                    self._kept = np.empty((len(units), size), np.float32)
                    beside["kept"] = self._kept
                tangent = partial(query.form.tangent, frame=frame)
                sizes, inner = query.collect(tangent, 2, **beside)
                residuals = inner + query.corner * self._intercept - query.targets()
                sizes = np.maximum(sizes, _FLOOR * norms)
            if query.corner:
                sizes = np.hypot(sizes, query.corner) * (1 + 1e-12)
            good = units > 0
            self._parts = np.where(good, residuals, 0.0), np.where(good, sizes, 0.0)
        return self._parts

    def _scores(self) -> FloatArray:
        residuals, sizes = self._residuals()
        return np.abs(residuals) * sizes

    def scores_below(self, threshold: float) -> Bounded:
        """Return the rank of a threshold among the lengths of the contributions."""
        return self._query.rank(self._scores, threshold, "clip_median")

    # -- the total ---------------------------------------------------------------------------

    def _weights(self, level: float, unit: float) -> FloatArray:
        residuals, sizes = self._residuals()
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            shrink = np.minimum(1.0, level * BELOW / (np.abs(residuals) * sizes))
        return np.where(residuals == 0, 0.0, residuals * shrink) / unit

    def total(self, clip_level: float) -> Bounded:
        """Return the sum of the contributions, each of length at most C, in tangent coordinates.

        One record: C; replace and label: 2 C (X, y and -X, y are antipodal). In integers a record
        adds trunc(w) Z, with an upper bound of |w| ||P_T Z|| at most C: truncation only shortens.
        Coordinates: (W1 K W2 V, (U'W1 K W2)(I - VV')) of the exact sum K, an isometry of T; then
        the intercept. The public map is exact and floors (`slack`).
        """
        C, query = float(clip_level), self._query
        corner = query.corner
        size = self._core_size + (1 if corner else 0)

        def answer(step: float) -> NDArray[Any]:
            units = query.survey()[0]
            if step == 0.0:
                weights = self._weights(C, 1.0)
                K = query.sum_weighted(weights * units, step)
                last = [float(np.sum(weights)) * corner] if corner else []
                return np.concatenate([self._map_float(K), last])
            shift = _HEADROOM - math.ceil(math.log2(C / step))
            weights = self._weights(C, step * 2.0**-shift)
            high, low = self._limbs(np.trunc(weights * units))
            outer = np.sum(np.trunc(weights * corner).astype(np.int64))
            last = [int(outer) >> shift] if corner else []
            return np.concatenate([self._map(joined(high, low, shift)), np.array(last, np.int64)])

        name = "spectral_sum" if self._matrix is None else "gradient_sum"
        bound = Bound(name, (size,), query.neighbours.array(C), slack=1.01 * self._slack)
        return Bounded(bound, answer)

    def _limbs(self, weights: FloatArray) -> NDArray[Any]:
        """Return the exact sum over records, from kept coordinates if there are any."""
        if self._kept is None:
            return self._query.sum_weighted(weights, 1.0)
        total = np.zeros((2, self._kept.shape[1]), np.int64)
        for i in range(0, len(weights), MAX_ROWS):
            rows = self._kept[i : i + MAX_ROWS].astype(np.float64)
            total += limbs_of(weights[i : i + MAX_ROWS] @ rows).astype(np.int64)
        return total

    def _map_kept(self, flat: IntArray) -> IntArray:
        """Project the sums of U'W1 Z W2 beside V; those of W1 Z W2 V stay."""
        assert self._matrix is not None
        V, size = self._matrix[2], self._query.shape[0] * self._matrix[0].shape[1]
        left = flat[size:].reshape(-1, len(V))
        beside = exact_map(on_grid(np.eye(len(V)) - V @ V.T), np.ascontiguousarray(left.T))
        return np.concatenate([flat[:size], beside.T.ravel()])

    def _map(self, flat: IntArray) -> IntArray:
        if self._kept is not None:
            return self._map_kept(flat)
        K = flat.reshape(self._query.shape)
        outer = self._query.form.outer
        if self._matrix is None:
            if outer is None:
                return flat
            return exact_map(outer[1].T, exact_map(outer[0], K).T).T.ravel()
        frame = self._frame()
        right = exact_map(frame.right.T, np.ascontiguousarray(K.T)).T
        left = exact_map(frame.left, K).T
        if outer is not None:
            right = exact_map(outer[0], np.ascontiguousarray(right))
        left = exact_map(self._beside().T, np.ascontiguousarray(left)).T
        return np.concatenate([right.ravel(), left.ravel()])

    def _beside(self) -> FloatArray:
        """Return W2 (I - VV') on the grid."""
        assert self._matrix is not None
        V = self._matrix[2]
        beside = np.eye(len(V)) - V @ V.T
        outer = self._query.form.outer
        return on_grid(beside if outer is None else off_grid(outer[1]) @ beside)

    def _map_float(self, flat: FloatArray) -> FloatArray:
        K = flat.reshape(self._query.shape)
        outer = self._query.form.outer
        if outer is not None:
            K = off_grid(outer[0]) @ K @ off_grid(outer[1])
        if self._matrix is None:
            return K.ravel()
        U, _, V = self._matrix
        left = U.T @ K
        return np.concatenate([(K @ V).ravel(), (left - left @ V @ V.T).ravel()])
