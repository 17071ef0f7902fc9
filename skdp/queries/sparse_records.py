"""Records of a trace regression that are not dense: CSR rows, and rank-one factors (A, B).

Notation and exactness as in `skdp.queries.records`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp.data.places import Placed
from skdp.data.zipped import Zipped
from skdp.queries.records import (
    LOOSE,
    MAX_ROWS,
    DenseRecords,
    Frame,
    Records,
    Survey,
    inverse_units,
    on_grid,
    record_bits,
    record_units,
    reduced,
    rounded,
    tangent_sizes,
)

__all__ = ["FactoredRecords", "SparseRecords", "records_like"]

FloatArray = NDArray[np.float64]
_Factor = tuple[FloatArray, FloatArray, float]
IntArray = NDArray[np.int64]


class SparseRecords:
    """Records in rows of a CSR matrix; whitening is diagonal, so that they stay sparse."""

    outer: tuple[FloatArray, FloatArray] | None = None

    def __init__(
        self, shape: tuple[int, int], scales: tuple[FloatArray, FloatArray] | None = None
    ) -> None:
        self._scales = scales
        self.shape = shape
        self.at_once = MAX_ROWS
        self._bits = record_bits(math.prod(shape))

    def whitened(self, W1: FloatArray, W2: FloatArray) -> SparseRecords:
        """Return the same for entries (a, b) times W1[a, a] W2[b, b]."""
        return SparseRecords(self.shape, (np.diagonal(W1).copy(), np.diagonal(W2).copy()))

    def _entries(self, block: Zipped) -> tuple[IntArray, IntArray, FloatArray]:
        """Return (record, flat index, value), in order of the flat index."""
        rows = sp.csr_array(block.rows)
        if not rows.has_sorted_indices:
            rows = rows.sorted_indices()
        record = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
        index = rows.indices.astype(np.int64)
        values = rows.data
        if self._scales is not None:
            a, b = np.divmod(index, self.shape[1])
            values = values * self._scales[0][a] * self._scales[1][b]
        return record, index, values

    def _integers(self, block: Zipped, units: FloatArray) -> tuple[IntArray, IntArray, FloatArray]:
        record, index, values = self._entries(block)
        good = units[record] > 0
        scaled = np.where(good, values, 0.0) * inverse_units(units)[record]
        return record, index, np.rint(scaled)

    def survey(self, block: Zipped) -> Survey:
        """Return units and norms."""
        (record, _, values), m = self._entries(block), block.shape[0]
        largest = np.zeros(m)
        np.maximum.at(largest, record, np.abs(values))
        units = record_units(largest, self._bits)
        Z = self._integers(block, units)[2]
        squares = np.bincount(record, Z * Z, m)
        counts = np.bincount(record, minlength=m)
        return Survey(units, units * (np.sqrt(squares) * LOOSE + np.sqrt(counts)))

    @staticmethod
    def _grouped(key: IntArray, terms: FloatArray) -> tuple[IntArray, FloatArray]:
        """Sum exact terms by key: (sorted keys, sums)."""
        if key.size == 0:
            return key, terms
        if (np.diff(key) < 0).any():
            order = np.argsort(key, kind="stable")
            key, terms = key[order], terms[order]
        firsts = np.flatnonzero(np.diff(key, prepend=key[0] - 1))
        return key[firsts], np.add.reduceat(terms, firsts, axis=0)

    def coordinates(self, rank: int) -> int:
        """Return 0: nothing is kept."""
        return 0

    def tangent(
        self, block: Zipped, units: FloatArray, frame: Frame, kept: NDArray[Any] | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Return an upper bound of ||P_T X|| and <X, M> of each record."""
        (d1, d2), r, m = self.shape, frame.basis.shape[1], block.shape[0]
        record, index, Z = self._integers(block, units)
        a, b = np.divmod(index, d2)
        keys_a, A = self._grouped(record * d1 + a, Z[:, None] * frame.right[b])
        keys_b, B = self._grouped(record * d2 + b, Z[:, None] * frame.left.T[a])
        A, B = reduced(A), reduced(B)
        products = (B[:, :, None] * frame.basis[keys_b % d2][:, None, :]).reshape(len(B), r * r)
        owners = keys_b // d2
        K: FloatArray = np.zeros((m, r * r))
        for i in range(r * r):
            K[:, i] = np.bincount(owners, products[:, i], m)
        K = reduced(K)
        squares = [
            np.bincount(keys_a // d1, np.einsum("ij,ij->i", A, A), m),
            np.bincount(owners, np.einsum("ij,ij->i", B, B), m),
            np.einsum("ij,ij->i", K, K),
        ]
        counts = np.sqrt(np.bincount(record, minlength=m))
        margin = counts * (0.5 + 2 * math.sqrt(r)) + r
        sizes = tangent_sizes(squares[0], squares[1], squares[2], units, margin)
        return sizes, units * frame.core_unit * (K @ frame.core.ravel())

    def weighted(self, block: Zipped, units: FloatArray, weights: FloatArray) -> FloatArray:
        """Return the sum of weights Z, flat."""
        record, index, Z = self._integers(block, units)
        total = np.bincount(index, Z * weights[record], math.prod(self.shape))
        return np.asarray(total, np.float64)

    def moment_sizes(self, block: Zipped, units: FloatArray) -> FloatArray:
        """Return an upper bound of the norm of the row (or column) sums of squares."""
        record, _, Z = self._integers(block, units)
        squares = np.bincount(record, Z * Z, block.shape[0])
        counts = np.bincount(record, minlength=block.shape[0])
        return np.asarray(units**2 * (np.sqrt(squares) + np.sqrt(counts)) ** 2)

    def moments(self, block: Zipped, units: FloatArray, scales: FloatArray) -> FloatArray:
        """Return row sums and column sums of trunc((scale X)^2)."""
        record, index, values = self._entries(block)
        good = units[record] > 0
        squares = np.trunc((np.where(good, values, 0.0) * scales[record]) ** 2)
        a, b = np.divmod(index, self.shape[1])
        d1, d2 = self.shape
        return np.concatenate([np.bincount(a, squares, d1), np.bincount(b, squares, d2)])

    def moment_slack(self) -> tuple[float, float]:
        """Truncated squares only shrink non-negative sums."""
        return 0.0, 0.0


class FactoredRecords:
    """Records X_i = a_i b_i', the b_i in the column `right`; whitening acts on the factors."""

    outer: tuple[FloatArray, FloatArray] | None = None

    def __init__(
        self, shape: tuple[int, int], whitening: tuple[FloatArray, FloatArray] | None = None
    ) -> None:
        self._whitening = whitening
        self.shape = shape
        self.at_once = int(np.clip(2**16 // sum(shape), 16, MAX_ROWS))

    def whitened(self, W1: FloatArray, W2: FloatArray) -> FactoredRecords:
        """Return the same for (W1 a)(W2 b)', for public symmetric matrices of norm at most 1."""
        return FactoredRecords(self.shape, (on_grid(W1), on_grid(W2)))

    def _factors(self, block: Zipped) -> list[_Factor]:
        """Return both factors as exact integers, with their units and margins."""
        sides = block.rows, np.asarray(block.columns["right"], np.float64)
        return [self._integers(rows, side) for side, rows in enumerate(sides)]

    def _integers(self, rows: FloatArray, side: int) -> _Factor:
        """Return (integers, units, norm of the rounding) of one factor, whitened."""
        d = rows.shape[1]
        with np.errstate(invalid="ignore", over="ignore"):
            units = record_units(np.abs(rows).max(axis=1, initial=0), self._factor_bits(d))
        Z = rounded(rows, units) * inverse_units(units)[:, None]
        if self._whitening is None:
            return Z, units, math.sqrt(d) / 2
        return reduced(Z @ self._whitening[side]), units, math.sqrt(d)

    @staticmethod
    def _factor_bits(d: int) -> int:
        """Bits of a factor: the norm of the integers stays below 2**13, of a product 2**26."""
        return math.floor(13 - math.log2(max(1, d)) / 2)

    @staticmethod
    def _norms(A: FloatArray, B: FloatArray) -> tuple[FloatArray, FloatArray]:
        return np.sqrt(np.einsum("ij,ij->i", A, A)), np.sqrt(np.einsum("ij,ij->i", B, B))

    def survey(self, block: Zipped) -> Survey:
        """Return units and norms of the products; a bad factor makes a record zero."""
        (A, ga, ea), (B, gb, eb) = self._factors(block)
        a, b = self._norms(A, B)
        units = ga * gb
        return Survey(units, units * (a + ea) * (b + eb) * LOOSE)

    def coordinates(self, rank: int) -> int:
        """Return 0: nothing is kept."""
        return 0

    def tangent(
        self, block: Zipped, units: FloatArray, frame: Frame, kept: NDArray[Any] | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Return an upper bound of ||P_T X|| and <X, M> of each record."""
        (A, _, ea), (B, _, eb) = self._factors(block)
        a, b = self._norms(A, B)
        u, v = (np.ldexp(part, -26) for part in (A @ frame.left.T, B @ frame.basis))
        uu, vv = (np.einsum("ij,ij->i", part, part) for part in (u, v))
        margin = (a * eb + b * ea + ea * eb) * LOOSE
        sizes = tangent_sizes(a * a * vv, uu * b * b, uu * vv, units, margin)
        inner = np.zeros(len(A))
        for j, k in np.ndindex(*frame.core.shape):
            inner += u[:, j] * v[:, k] * frame.core[j, k]
        return sizes, units * frame.core_unit * inner

    def weighted(self, block: Zipped, units: FloatArray, weights: FloatArray) -> FloatArray:
        """Return the sum of weights Z, flat."""
        (A, _, _), (B, _, _) = self._factors(block)
        return np.asarray((A * weights[:, None]).T @ B).ravel()

    def moment_sizes(self, block: Zipped, units: FloatArray) -> FloatArray:
        """Return an upper bound of ||X X'||_F = ||a||^2 ||b||^2."""
        return np.asarray(self.survey(block).norms ** 2)

    def moments(self, block: Zipped, units: FloatArray, scales: FloatArray) -> FloatArray:
        """Return the sums of z z' for z = rint(scale ||b|| a) and z = rint(scale ||a|| b)."""
        (A, ga, _), (B, gb, _) = self._factors(block)
        a, b = self._norms(A, B)
        f = scales * ga * gb
        left, right = np.rint(A * (f * b)[:, None]), np.rint(B * (f * a)[:, None])
        return np.concatenate([(left.T @ left).ravel(), (right.T @ right).ravel()])

    def moment_slack(self) -> tuple[float, float]:
        """||(z+e)(z+e)'|| <= ||z||^2 + 2 ||z|| ||e|| + ||e||^2 with ||e|| <= sqrt(d)/2."""
        d = max(self.shape)
        return math.sqrt(d), d / 4


def records_like(placed: Placed, shape: tuple[int, int]) -> Records:
    """Return how the records of a place are computed with: dense, CSR, or factors."""
    if "right" in placed.columns:
        return FactoredRecords(shape)
    if getattr(placed.rows, "sparse", False):
        return SparseRecords(shape)
    return DenseRecords(shape)
