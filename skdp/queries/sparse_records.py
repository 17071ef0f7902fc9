"""Records of a trace regression that are not dense: CSR rows, and rank-one factors (A, B).

Notation and exactness as in `skdp.queries.records`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp.data.blocks import SparseRows, cuts
from skdp.data.exact import off_grid, on_grid, reduced
from skdp.queries.records import (
    LOOSE,
    MAX_ROWS,
    Block,
    DenseRecords,
    Frame,
    Records,
    Survey,
    inverse_units,
    record_bits,
    record_units,
    rounded,
    tangent_sizes,
)

__all__ = ["FactoredRecords", "SparseRecords", "make_records"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
_FACTORS = 2**16  # numbers of a block of factors


class SparseRecords:
    """Records in the rows of a CSR matrix; whitening is diagonal, so that they stay sparse."""

    def __init__(
        self,
        X: Any,
        shape: tuple[int, int],
        scales: tuple[FloatArray, FloatArray] | None = None,
        start: int = 0,
        stop: int | None = None,
    ) -> None:
        self._X = X
        self._range = (start, X.shape[0] if stop is None else stop)
        self._scales = scales
        self.shape = shape
        self.n_features = math.prod(shape)
        self.outer: tuple[FloatArray, FloatArray] | None = None
        self._bits = record_bits(shape[0] * shape[1])

    def n_rows(self) -> int:
        """Return the private number of records."""
        return self._range[1] - self._range[0]

    def whitened(self, W1: FloatArray, W2: FloatArray) -> SparseRecords:
        """Return the records with entry (a, b) times W1[a, a] W2[b, b]."""
        scales = (np.diagonal(W1).copy(), np.diagonal(W2).copy())
        return SparseRecords(self._X, self.shape, scales, *self._range)

    def parts(self, n: int) -> list[SparseRecords]:
        """Cut into `n` ranges of records."""
        return [
            SparseRecords(self._X, self.shape, self._scales, a, b) for a, b in cuts(*self._range, n)
        ]

    def blocks(self) -> Iterator[Block]:
        """Yield canonical CSR blocks: duplicates are summed before anything is computed."""
        start, stop = self._range
        for i in range(start, stop, MAX_ROWS):
            position = i
            for rows in SparseRows(self._X, i, min(i + MAX_ROWS, stop)).blocks():
                yield Block(position, position + rows.shape[0], self._entries(rows))
                position += rows.shape[0]

    def _entries(self, rows: Any) -> Any:
        """Return (record, flat index, value, number of records), in order of the flat index."""
        rows = sp.csr_array(rows)
        if not rows.has_sorted_indices:
            rows = rows.sorted_indices()
        kept = rows.data != 0  # a stored zero is no entry
        record = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))[kept]
        index, values = rows.indices[kept].astype(np.int64), rows.data[kept]
        if self._scales is not None:
            a, b = np.divmod(index, self.shape[1])
            values = values * self._scales[0][a] * self._scales[1][b]
        return record, index, values, rows.shape[0]

    def _integers(self, block: Block, units: FloatArray) -> tuple[IntArray, IntArray, FloatArray]:
        record, index, values, _ = block.data
        good = units[record] > 0
        scaled = np.where(good, values, 0.0) * inverse_units(units)[record]
        return record, index, np.rint(scaled)

    def survey(self, block: Block) -> Survey:
        """Return units and norms."""
        record, _, values, m = block.data
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
        self, block: Block, units: FloatArray, frame: Frame, kept: NDArray[Any] | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Return an upper bound of ||P_T X|| and <X, M> of each record."""
        (d1, d2), r, m = self.shape, frame.basis.shape[1], block.data[3]
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

    def weighted(self, block: Block, units: FloatArray, weights: FloatArray) -> FloatArray:
        """Return the sum of weights Z, flat."""
        record, index, Z = self._integers(block, units)
        total = np.bincount(index, Z * weights[record], math.prod(self.shape))
        return np.asarray(total, np.float64)

    def moment_sizes(self, block: Block, units: FloatArray) -> FloatArray:
        """Return an upper bound of the norm of the row (or column) sums of squares."""
        record, _, Z = self._integers(block, units)
        squares = np.bincount(record, Z * Z, block.data[3])
        counts = np.bincount(record, minlength=block.data[3])
        return np.asarray(units**2 * (np.sqrt(squares) + np.sqrt(counts)) ** 2)

    def moments(self, block: Block, units: FloatArray, scales: FloatArray) -> FloatArray:
        """Return row sums and column sums of trunc((scale X)^2)."""
        record, index, values, _ = block.data
        good = units[record] > 0
        squares = np.trunc((np.where(good, values, 0.0) * scales[record]) ** 2)
        a, b = np.divmod(index, self.shape[1])
        d1, d2 = self.shape
        return np.concatenate([np.bincount(a, squares, d1), np.bincount(b, squares, d2)])

    def moment_slack(self) -> tuple[float, float]:
        """Truncated squares only shrink non-negative sums."""
        return 0.0, 0.0


class FactoredRecords:
    """Records X_i = a_i b_i' in the rows of two dense arrays; whitening acts on the factors."""

    def __init__(
        self,
        A: NDArray[Any],
        B: NDArray[Any],
        whitening: tuple[FloatArray, FloatArray] | None = None,
        start: int = 0,
        stop: int | None = None,
    ) -> None:
        self._factors = (A, B)
        self._range = (start, len(A) if stop is None else stop)
        self._whitening = whitening
        self.shape = (int(A.shape[1]), int(B.shape[1]))
        self.n_features = math.prod(self.shape)
        self.outer: tuple[FloatArray, FloatArray] | None = None

    def n_rows(self) -> int:
        """Return the private number of records."""
        return self._range[1] - self._range[0]

    def whitened(self, W1: FloatArray, W2: FloatArray) -> FactoredRecords:
        """Return the records (W1 a)(W2 b)', for public symmetric matrices of norm at most 1."""
        return FactoredRecords(*self._factors, (on_grid(W1), on_grid(W2)), *self._range)

    def parts(self, n: int) -> list[FactoredRecords]:
        """Cut into `n` ranges of records."""
        ranges = cuts(*self._range, n)
        return [FactoredRecords(*self._factors, self._whitening, a, b) for a, b in ranges]

    def blocks(self) -> Iterator[Block]:
        """Yield blocks of factors as exact integers, with their units and margins."""
        start, stop = self._range
        rows = int(np.clip(_FACTORS // sum(self.shape), 16, MAX_ROWS))
        for i in range(start, stop, rows):
            j = min(i + rows, stop)
            factors = [np.asarray(factor[i:j]) for factor in self._factors]
            parts = [self._integers(rows, k) for k, rows in enumerate(factors)]
            yield Block(i, j, parts)

    def _integers(self, rows: NDArray[Any], side: int) -> tuple[FloatArray, FloatArray, float]:
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
    def _norms(block: Block) -> tuple[FloatArray, FloatArray]:
        (A, _, _), (B, _, _) = block.data
        return np.sqrt(np.einsum("ij,ij->i", A, A)), np.sqrt(np.einsum("ij,ij->i", B, B))

    def survey(self, block: Block) -> Survey:
        """Return units and norms of the products; a bad factor makes a record zero."""
        (_, ga, ea), (_, gb, eb) = block.data
        a, b = self._norms(block)
        units = ga * gb
        return Survey(units, units * (a + ea) * (b + eb) * LOOSE)

    def coordinates(self, rank: int) -> int:
        """Return 0: nothing is kept."""
        return 0

    def tangent(
        self, block: Block, units: FloatArray, frame: Frame, kept: NDArray[Any] | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Return an upper bound of ||P_T X|| and <X, M> of each record."""
        (A, _, ea), (B, _, eb) = block.data
        a, b = self._norms(block)
        u, v = off_grid(A @ frame.left.T), off_grid(B @ frame.basis)
        uu, vv = (np.einsum("ij,ij->i", part, part) for part in (u, v))
        margin = (a * eb + b * ea + ea * eb) * LOOSE
        sizes = tangent_sizes(a * a * vv, uu * b * b, uu * vv, units, margin)
        inner = np.zeros(len(A))
        for j, k in np.ndindex(*frame.core.shape):
            inner += u[:, j] * v[:, k] * frame.core[j, k]
        return sizes, units * frame.core_unit * inner

    def weighted(self, block: Block, units: FloatArray, weights: FloatArray) -> FloatArray:
        """Return the sum of weights Z, flat."""
        (A, _, _), (B, _, _) = block.data
        return np.asarray((A * weights[:, None]).T @ B).ravel()

    def moment_sizes(self, block: Block, units: FloatArray) -> FloatArray:
        """Return an upper bound of ||X X'||_F = ||a||^2 ||b||^2."""
        return np.asarray(self.survey(block).norms ** 2)

    def moments(self, block: Block, units: FloatArray, scales: FloatArray) -> FloatArray:
        """Return the sums of z z' for z = rint(scale ||b|| a) and z = rint(scale ||a|| b)."""
        (A, ga, _), (B, gb, _) = block.data
        a, b = self._norms(block)
        f = scales * ga * gb
        left, right = np.rint(A * (f * b)[:, None]), np.rint(B * (f * a)[:, None])
        return np.concatenate([(left.T @ left).ravel(), (right.T @ right).ravel()])

    def moment_slack(self) -> tuple[float, float]:
        """||(z+e)(z+e)'|| <= ||z||^2 + 2 ||z|| ||e|| + ||e||^2 with ||e|| <= sqrt(d)/2."""
        d = max(self.shape)
        return math.sqrt(d), d / 4


def make_records(X: Any, shape: tuple[int, int]) -> Records:
    """Wrap a dense array (n, d1 d2), a CSR matrix of that shape, or factors (A, B)."""
    if isinstance(X, tuple):
        return FactoredRecords(*X)
    if sp.issparse(X):
        return SparseRecords(X, shape)
    return DenseRecords(X, shape)
