"""Sums of clipped contributions of a trace regression, in tangent coordinates.

Notation as in `skdp.queries.records`: a record adds e_i P_T X_i, cut to length C.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp.data.exact import exact_map, joined, limbs_of, off_grid, on_grid
from skdp.data.mixed_records import MixedRecords
from skdp.data.record_forms import MAX_ROWS, Frame
from skdp.data.remote import RowColumns
from skdp.data.zipped import Zipped
from skdp.privacy.gate.bounds import Bound, Bounded, PrivateQuery
from skdp.queries.record_passes import Columns, Form, RecordPasses, centred

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BELOW = 1 - 1e-12  # float errors of a factor
_FLOOR = 2.0**-6  # a size counts for at least this share of the norm: sums stay below 2**53
_HEADROOM = 35  # log2 of the clip level in units of a sum: 12 bits of rows, 6 of the floor


# -- what is computed where the records are: public values alone, so that it can travel ------------


def _masked(
    units: FloatArray, residuals: FloatArray, sizes: FloatArray, corner: float
) -> tuple[FloatArray, FloatArray]:
    if corner:
        sizes = np.hypot(sizes, corner) * (1 + 1e-12)
    return np.where(units > 0, residuals, 0.0), np.where(units > 0, sizes, 0.0)


@dataclass(frozen=True)
class _OfProducts:
    """Residuals and sizes of contributions y X, from the survey of the records."""

    center: float
    corner: float

    def __call__(self, columns: Columns) -> tuple[FloatArray, FloatArray]:
        return _masked(
            columns["units"], centred(columns, self.center), columns["norms"], self.corner
        )


def _of_tangent(columns: Columns) -> tuple[FloatArray, FloatArray]:
    return columns["residuals"], columns["sizes"]


Lengths = Callable[[Columns], tuple[FloatArray, FloatArray]]


def _scores(columns: Columns, lengths: Lengths) -> FloatArray:
    residuals, sizes = lengths(columns)
    return np.abs(residuals) * sizes


@dataclass(frozen=True)
class _Tangent:
    """Makes residuals and sizes at a public matrix and, of large records, coordinates."""

    form: Form
    frame: Frame
    center: float
    corner: float
    intercept: float
    n_kept: int

    def __call__(self, block: Zipped) -> tuple[NDArray[Any], ...]:
        columns = block.columns
        units = columns["units"]
        kept = np.empty((len(units), self.n_kept), np.float32)
        more = {"kept": kept} if self.n_kept else {}
        sizes, inner = self.form.tangent(block.beside(**more), self.frame)
        residuals = inner + self.corner * self.intercept - centred(columns, self.center)
        sizes = np.maximum(sizes, _FLOOR * columns["norms"])
        return units, *_masked(units, residuals, sizes, self.corner), kept


@dataclass(frozen=True)
class _Weights:
    """Weights of the records in a sum: contributions of length at most `level`, over `unit`."""

    lengths: Lengths
    level: float
    unit: float

    def __call__(self, columns: Columns) -> FloatArray:
        residuals, sizes = self.lengths(columns)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            shrink = np.minimum(1.0, self.level * BELOW / (np.abs(residuals) * sizes))
        return np.where(residuals == 0, 0.0, residuals * shrink) / self.unit


@dataclass(frozen=True)
class _Sum:
    """The sum of weighted records of a block, exact in limbs of 20 bits, and of corners; flat."""

    form: Form
    weights: _Weights
    corner: float
    exact: bool

    def __call__(self, block: Zipped) -> FloatArray:
        weights = self.weights(block.columns)
        whole, corners = weights * block.columns["units"], weights * self.corner
        if not self.exact:
            return np.append(self.form.weighted(block.beside(weights=whole)), np.sum(corners))
        limbs = limbs_of(self.form.weighted(block.beside(weights=np.trunc(whole))))
        return np.append(limbs, np.sum(np.trunc(corners)))


@dataclass(frozen=True)
class _ExactSumOfKept:
    """The same of coordinates that were kept: without the records."""

    weights: _Weights
    corner: float
    n_kept: int

    def __call__(self, columns: Columns) -> IntArray:
        weights = self.weights(columns)
        whole = np.trunc(weights * columns["units"])
        limbs = np.zeros((2, self.n_kept), np.int64)
        for i in range(0, len(weights), MAX_ROWS):
            rows = columns["kept"][i : i + MAX_ROWS].astype(np.float64)
            limbs += limbs_of(whole[i : i + MAX_ROWS] @ rows).astype(np.int64)
        corners = np.trunc(weights * self.corner).astype(np.int64)
        return np.append(limbs, np.sum(corners))


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
        self.query = query
        self._matrix = matrix
        self._intercept = intercept
        d1, d2 = query.shape
        r = 0 if matrix is None else matrix[0].shape[1]
        self._core_size = d1 * d2 if matrix is None else r * (d1 + d2)
        # Sums are floored once (and again when they are mixed), products with public matrices
        # twice: each moves an entry by 1.
        self._slack = (
            math.sqrt(d1 * d2) * (1 + isinstance(query.form, MixedRecords))
            + 1
            + 2 * (math.sqrt(d1 * d2) if matrix is None else math.sqrt(r * d1) + math.sqrt(r * d2))
        )

    @property
    def n_coordinates(self) -> int:
        """How many numbers the total has."""
        return self._core_size + (1 if self.query.corner else 0)

    def frames(self) -> tuple[Frame, FloatArray]:
        """Return the public tangent space, and W2 (I - VV') on the grid."""
        return self._frame(), self._beside()

    # -- per-record numbers ------------------------------------------------------------------

    def _frame(self) -> Frame:
        assert self._matrix is not None
        U, S, V = self._matrix
        outer = self.query.form.outer
        left, right = U.T, V
        if outer is not None:
            left, right = U.T @ off_grid(outer[0]), off_grid(outer[1]) @ V
        size = float(np.linalg.norm(S))
        unit = size * 2.0**-26 if size > 0 else 1.0
        return Frame(on_grid(left), on_grid(right), on_grid(V), np.rint(S / unit), unit)

    @cached_property
    def _n_kept(self) -> int:
        return 0 if self._matrix is None else self.query.form.coordinates(len(self._matrix[1]))

    @cached_property
    def _columns(self) -> RowColumns:
        """Residuals and sizes, kept for the search and the sum."""
        query = self.query
        if self._matrix is None:
            return query.survey
        make = _Tangent(
            query.form, self._frame(), query.center, query.corner, self._intercept, self._n_kept
        )
        return query.survey.then(make, "units", "residuals", "sizes", "kept")

    @property
    def _lengths(self) -> Lengths:
        if self._matrix is None:
            return _OfProducts(self.query.center, self.query.corner)
        return _of_tangent

    def scores_below(self, threshold: float) -> Bounded:
        """Return the rank of a threshold among the lengths of the contributions."""
        scores = self._columns.numbers(partial(_scores, lengths=self._lengths))
        withheld = self.query.privacy_unit == "label"  # such a record is there, and adds nothing
        return self.query._below(scores, threshold, "clip_median", kept_only=withheld)

    # -- the total ---------------------------------------------------------------------------

    def total(self, clip_level: float) -> Bounded:
        """Return the sum of the contributions, each of length at most C, in tangent coordinates.

        One record: C; replace and label: 2 C (X, y and -X, y are antipodal). In integers a record
        adds trunc(w) Z, with an upper bound of |w| ||P_T Z|| at most C: truncation only shortens.
        Coordinates: (W1 K W2 V, (U'W1 K W2)(I - VV')) of the exact sum K, an isometry of T; then
        the intercept. The public map is exact and floors (`slack`).
        """
        C, query = float(clip_level), self.query
        corner = query.corner

        def answer(step: float) -> NDArray[Any]:
            if step == 0.0:
                return self._float_total(C)
            shift = _HEADROOM - math.ceil(math.log2(C / step))
            total = self._exact(_Weights(self._lengths, C, step * 2.0**-shift))
            high, low = total[:-1].reshape(2, -1)
            last = [int(total[-1]) >> shift] if corner else []
            return np.concatenate([self._map(joined(high, low, shift)), np.array(last, np.int64)])

        first = getattr(query.form, "total_name", "spectral_sum")
        name = first if self._matrix is None else "gradient_sum"
        change = query.neighbours.array(C)
        bound = Bound(name, (self.n_coordinates,), change, slack=1.01 * self._slack)
        return Bounded(bound, answer)

    def _float_total(self, level: float) -> FloatArray:
        query, size = self.query, math.prod(self.query.shape)
        term = _Sum(query.form, _Weights(self._lengths, level, 1.0), 1.0, exact=False)
        total = query.sum_over(self._columns, term, (size + 1,), 0.0)
        last = [float(total[-1]) * query.corner] if query.corner else []
        return np.concatenate([self._map_float(total[:-1]), last])

    def _exact(self, weights: _Weights) -> IntArray:
        """Return the exact sum over records, from kept coordinates if there are any; flat."""
        query = self.query
        if self._n_kept:
            kept = _ExactSumOfKept(weights, query.corner, self._n_kept)
            return self._columns.sum(kept, (2 * self._n_kept + 1,))
        term = _Sum(query.form, weights, query.corner, exact=True)
        shape = (2 * math.prod(query.shape) + 1,)
        return query.sum_over(self._columns, term, shape, 1.0)

    def _map_kept(self, flat: IntArray) -> IntArray:
        """Project the sums of U'W1 Z W2 beside V; those of W1 Z W2 V stay."""
        assert self._matrix is not None
        V, size = self._matrix[2], self.query.shape[0] * self._matrix[0].shape[1]
        left = flat[size:].reshape(-1, len(V))
        beside = exact_map(on_grid(np.eye(len(V)) - V @ V.T), np.ascontiguousarray(left.T))
        return np.concatenate([flat[:size], beside.T.ravel()])

    def _map(self, flat: IntArray) -> IntArray:
        if self._n_kept:
            return self._map_kept(flat)
        form = self.query.form
        flat = form.mapped(flat) if isinstance(form, MixedRecords) else flat
        K, outer = flat.reshape(self.query.shape), form.outer
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
        outer = self.query.form.outer
        return on_grid(beside if outer is None else off_grid(outer[1]) @ beside)

    def _map_float(self, flat: FloatArray) -> FloatArray:
        form = self.query.form
        flat = form.mapped_float(flat) if isinstance(form, MixedRecords) else flat
        K, outer = flat.reshape(self.query.shape), form.outer
        if outer is not None:
            K = off_grid(outer[0]) @ K @ off_grid(outer[1])
        if self._matrix is None:
            return K.ravel()
        U, _, V = self._matrix
        left = U.T @ K
        return np.concatenate([(K @ V).ravel(), (left - left @ V @ V.T).ravel()])
