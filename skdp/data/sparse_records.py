"""Measurement matrices that are not dense, as integers: CSR rows, and rank-one factors (A, B).

Notation and exactness as in `skdp.data.record_forms`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp.data.block_rows import entrywise, largest_entries
from skdp.data.exact import off_grid, on_grid, reduced
from skdp.data.record_forms import (
    LOOSE,
    MAX_ROWS,
    Frame,
    Pair,
    inverse_units,
    record_bits,
    record_units,
    rounded,
    tangent_sizes,
)
from skdp.data.zipped import Zipped

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
_FACTORS = 2**16  # numbers of a block of factors


def _margins(block: Zipped, record: IntArray) -> FloatArray:
    """Roots of the numbers of entries that are rounded: a stored zero is not."""
    return np.sqrt(np.bincount(record, block.rows.data != 0, block.shape[0]))


@dataclass(frozen=True)
class SparseRecords:
    """Records in CSR rows; whitening is diagonal, so that they stay sparse."""

    shape: tuple[int, int]
    scales: Pair | None = None

    outer = None
    at_once = MAX_ROWS

    def whitened(self, W1: FloatArray, W2: FloatArray) -> SparseRecords:
        """Return the form of records with entry (a, b) times W1[a, a] W2[b, b]."""
        return replace(self, scales=(np.diagonal(W1).copy(), np.diagonal(W2).copy()))

    def coordinates(self, rank: int) -> int:
        """Return 0: nothing is kept."""
        return 0

    def _entries(self, block: Zipped) -> tuple[IntArray, IntArray, FloatArray]:
        """Return (record, flat index, value) of the entries; blocks hold no duplicates."""
        rows = block.rows
        record = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
        index = rows.indices.astype(np.int64)
        values = rows.data
        if self.scales is not None:
            a, b = np.divmod(index, self.shape[1])
            values = values * self.scales[0][a] * self.scales[1][b]
        return record, index, values

    def _integers(self, block: Zipped, units: FloatArray) -> tuple[IntArray, IntArray, FloatArray]:
        record, index, values = self._entries(block)
        scaled = np.where(units[record] > 0, values, 0.0) * inverse_units(units)[record]
        return record, index, np.rint(scaled)

    def _norms(self, block: Zipped, units: FloatArray) -> Pair:
        """Return norms in units, and of what rounding may change."""
        record, _, Z = self._integers(block, units)
        m = block.shape[0]
        return np.sqrt(np.bincount(record, Z * Z, m)), _margins(block, record)

    def survey(self, block: Zipped) -> Pair:
        """Return units and upper bounds of the norms."""
        rows = entrywise(lambda _: self._entries(block)[2], block.rows)
        units = record_units(largest_entries(rows), record_bits(math.prod(self.shape)))
        norms, margin = self._norms(block, units)
        return units, units * (norms * LOOSE + margin)

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

    def tangent(self, block: Zipped, frame: Frame) -> Pair:
        """Return an upper bound of ||P_T X|| and <X, M> of each record."""
        (d1, d2), r, m = self.shape, frame.basis.shape[1], block.shape[0]
        units = block.columns["units"]
        record, index, Z = self._integers(block, units)
        a, b = np.divmod(index, d2)
        keys_a, A = self._grouped(record * d1 + a, Z[:, None] * frame.right[b])
        keys_b, B = self._grouped(record * d2 + b, Z[:, None] * frame.left.T[a])
        A, B = reduced(A), reduced(B)
        owners = keys_b // d2
        products = (B[:, :, None] * frame.basis[keys_b % d2][:, None, :]).reshape(len(B), r * r)
        columns = [np.bincount(owners, product, m) for product in products.T]
        K = reduced(np.stack(columns, axis=1, dtype=np.float64))
        a2, b2, k2 = (np.einsum("ij,ij->i", part, part) for part in (A, B, K))
        squares = np.bincount(keys_a // d1, a2, m), np.bincount(owners, b2, m), k2
        counts = _margins(block, record)
        margin = counts * (0.5 + 2 * math.sqrt(r)) + r
        inner = K @ frame.core.ravel()
        return tangent_sizes(squares, units, margin), units * frame.core_unit * inner

    def sides(self, block: Zipped, frame: Frame, beside: FloatArray) -> Pair:
        """Return X V and U'X beside of each record (after whitening), as floats."""
        (d1, d2), r, m = self.shape, frame.basis.shape[1], block.shape[0]
        record, index, values = self._entries(block)
        a, b = np.divmod(index, d2)
        right, left = np.zeros((m, d1, r)), np.zeros((m, d2, r))
        np.add.at(right, (record, a), values[:, None] * off_grid(frame.right)[b])
        np.add.at(left, (record, b), values[:, None] * off_grid(frame.left).T[a])
        return right, left.swapaxes(1, 2) @ beside

    def weighted(self, block: Zipped) -> FloatArray:
        """Return the sum of weights Z, flat."""
        record, index, Z = self._integers(block, block.columns["units"])
        total = np.bincount(index, Z * block.columns["weights"][record], math.prod(self.shape))
        return np.asarray(total, np.float64)

    def moment_sizes(self, block: Zipped) -> FloatArray:
        """Return an upper bound of the norm of the row (or column) sums of squares."""
        units = block.columns["units"]
        norms, margin = self._norms(block, units)
        return np.asarray(units**2 * (norms + margin) ** 2)

    def moments(self, block: Zipped) -> FloatArray:
        """Return row sums and column sums of trunc((scale X)^2)."""
        units, scales = block.columns["units"], block.columns["scales"]
        record, index, values = self._entries(block)
        kept = np.where(units[record] > 0, values, 0.0)
        squares = np.trunc((kept * scales[record]) ** 2)
        a, b = np.divmod(index, self.shape[1])
        d1, d2 = self.shape
        return np.concatenate([np.bincount(a, squares, d1), np.bincount(b, squares, d2)])

    def moment_slack(self) -> tuple[float, float]:
        """Truncated squares only shrink non-negative sums."""
        return 0.0, 0.0


@dataclass(frozen=True)
class FactoredRecords:
    """Records X_i = a_i b_i': rows a_i beside a column `factors` of b_i; whitening acts on both."""

    shape: tuple[int, int]
    whitening: Pair | None = None

    outer = None

    @property
    def at_once(self) -> int:
        """Records that fit a cache."""
        return int(np.clip(_FACTORS // sum(self.shape), 16, MAX_ROWS))

    def whitened(self, W1: FloatArray, W2: FloatArray) -> FactoredRecords:
        """Return the form of (W1 a)(W2 b)', for public symmetric matrices of norm at most 1."""
        return replace(self, whitening=(on_grid(W1), on_grid(W2)))

    def coordinates(self, rank: int) -> int:
        """Return 0: nothing is kept."""
        return 0

    def _sides(self, block: Zipped) -> list[tuple[FloatArray, FloatArray, FloatArray, float]]:
        """Return (integers, their norms, units, norm of the rounding) of both factors."""
        return [self._integers(block.rows, 0), self._integers(block.columns["factors"], 1)]

    def _integers(self, rows: Any, side: int) -> tuple[FloatArray, FloatArray, FloatArray, float]:
        """Round one factor: the norm of the integers stays below 2**13, of a product 2**26."""
        rows, d = np.asarray(rows, np.float64), rows.shape[1]
        bits = math.floor(13 - math.log2(max(1, d)) / 2)
        units = record_units(largest_entries(rows), bits)
        Z, margin = rounded(rows, units).copy(), math.sqrt(d) / 2
        if self.whitening is not None:
            Z, margin = reduced(Z @ self.whitening[side]), math.sqrt(d)
        return Z, np.sqrt(np.einsum("ij,ij->i", Z, Z)), units, margin

    def survey(self, block: Zipped) -> Pair:
        """Return units and norms of the products; a bad factor makes a record zero."""
        (_, a, ga, ea), (_, b, gb, eb) = self._sides(block)
        units = ga * gb
        return units, units * (a + ea) * (b + eb) * LOOSE

    def tangent(self, block: Zipped, frame: Frame) -> Pair:
        """Return an upper bound of ||P_T X|| and <X, M> of each record."""
        (A, a, _, ea), (B, b, _, eb) = self._sides(block)
        units = block.columns["units"]
        u, v = off_grid(A @ frame.left.T), off_grid(B @ frame.basis)
        uu, vv = (np.einsum("ij,ij->i", part, part) for part in (u, v))
        margin = (a * eb + b * ea + ea * eb) * LOOSE
        inner = np.zeros(len(A))
        for j, k in np.ndindex(*frame.core.shape):
            inner += u[:, j] * v[:, k] * frame.core[j, k]
        sizes = tangent_sizes((a * a * vv, uu * b * b, uu * vv), units, margin)
        return sizes, units * frame.core_unit * inner

    def sides(self, block: Zipped, frame: Frame, beside: FloatArray) -> Pair:
        """Return a (V'b)' and (U'a) (beside'b)' of each record (after whitening), as floats."""
        (A, _, f, _), (B, _, g, _) = self._sides(block)
        a, b = A * f[:, None], B * g[:, None]
        right = a[:, :, None] * (b @ off_grid(frame.right))[:, None]
        return right, (a @ off_grid(frame.left).T)[:, :, None] * (b @ beside)[:, None]

    def weighted(self, block: Zipped) -> FloatArray:
        """Return the sum of weights Z, flat."""
        (A, *_), (B, *_) = self._sides(block)
        return np.asarray((A * block.columns["weights"][:, None]).T @ B).ravel()

    def moment_sizes(self, block: Zipped) -> FloatArray:
        """Return an upper bound of ||X X'||_F = ||a||^2 ||b||^2."""
        return np.asarray(self.survey(block)[1] ** 2)

    def moments(self, block: Zipped) -> FloatArray:
        """Return the sums of z z' for z = rint(scale ||b|| a) and z = rint(scale ||a|| b)."""
        (A, a, ga, _), (B, b, gb, _) = self._sides(block)
        f = block.columns["scales"] * ga * gb
        left, right = np.rint(A * (f * b)[:, None]), np.rint(B * (f * a)[:, None])
        return np.concatenate([(left.T @ left).ravel(), (right.T @ right).ravel()])

    def moment_slack(self) -> tuple[float, float]:
        """||(z+e)(z+e)'|| <= ||z||^2 + 2 ||z|| ||e|| + ||e||^2 with ||e|| <= sqrt(d)/2."""
        d = max(self.shape)
        return math.sqrt(d), d / 4
