"""Measurement matrices as integers: dense, CSR, rank-one factors, single entries.

Notation: record i is a matrix X_i (d1 x d2). It is written as g Z with g a power of two (its unit)
and Z integers, both computed from the record alone; a margin covers X_i - g Z. All sums below are
integers under 2**53. So their bits depend on no order, block size or thread count (BLAS included).
U and V are public bases (d x r), on a grid of 2**-26. A "form" (a class below) holds no records:
its methods take blocks of records, whose columns hold numbers of each record (units, weights,
scales).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp._limits import CACHED, FloatArray, IntArray
from skdp.data.blocks import BLOCK_ROWS, ScratchOfThread, entrywise, largest_entries, rint
from skdp.data.factorisations import row_squares
from skdp.data.integers import GRID_BITS, exact_map, off_grid, on_grid, reduced
from skdp.data.views import Zipped

Pair = tuple[FloatArray, FloatArray]
Transform = Callable[[FloatArray], FloatArray]
LOOSE = 1 + 1e-5  # covers that bases on their grids are orthonormal to 1e-6 only
MAX_ROWS = 2**12  # rows of a block, but of CSR rows, and entries of mixed records: exact sums
_SMALL = 2**7  # up to this size of a record, one matrix product for all records is faster
# Records and targets larger than this contribute nothing, nor do records smaller than its inverse.
LARGEST_RECORD = 2.0**80


class TangentSpace(NamedTuple):
    """A public tangent space at M = U S V', on grids: U'W1, W2 V, V, S and the unit of S."""

    left: FloatArray
    right: FloatArray
    basis: FloatArray
    core: FloatArray
    core_unit: float


def record_bits(size: int) -> int:
    """Bits of the largest entry of a record of `size` entries: squares of norms below 2**51."""
    return min(18, math.floor(25.5 - math.log2(max(1, size)) / 2))


def record_units(largest: FloatArray, bits: int) -> FloatArray:
    """Return the unit of each record, 0 for those that are not finite or out of range."""
    good = (largest > 1 / LARGEST_RECORD) & (largest < LARGEST_RECORD)
    exponents = np.frexp(np.where(good, largest, 1.0))[1]
    return np.where(good, np.ldexp(1.0, exponents - bits), 0.0)


def inverse_units(units: FloatArray) -> FloatArray:
    """Return 1/unit, exactly, and 0 for 0."""
    return np.asarray(np.divide(1.0, units, out=np.zeros_like(units), where=units > 0))


def from_left(W: FloatArray, A: FloatArray) -> FloatArray:
    """Return W A for the d x r matrix A of each record, flattened."""
    m, size = A.shape
    r = size // len(W)
    if size <= _SMALL:
        return A @ np.kron(W.T, np.eye(r))
    return np.asarray(np.matmul(W, A.reshape(m, -1, r))).reshape(m, size)


_SCRATCH = ScratchOfThread()


def rounded(rows: FloatArray, units: FloatArray) -> FloatArray:
    """Return rows divided by their units and rounded; the thread's next call overwrites them."""
    if not units.all():
        rows = np.where((units > 0)[:, None], rows, 0.0)
    inverse = inverse_units(units)[:, None]
    return rint(np.multiply(rows, inverse, out=_SCRATCH.rows.shaped(rows.shape)))


def tangent_sizes(
    squares: tuple[NDArray[Any], ...], units: FloatArray, margin: float | FloatArray
) -> FloatArray:
    """Return the norm of (t1, t2 (I - VV')) from exact squares of t1, t2, t2 V."""
    t1, t2, core = squares
    return np.asarray(units * (np.sqrt(np.maximum(t1 + t2 - core, 0.0)) * LOOSE + margin))


@dataclass(frozen=True)
class DenseRecords:
    """Records in dense rows of d1 d2 numbers; optionally whitened to W1 X W2.

    Whitening is never applied to the records: it enters through the public matrices `outer`.
    """

    shape: tuple[int, int]
    outer: Pair | None = None

    @property
    def at_once(self) -> int:
        """Records that fit a cache."""
        return int(np.clip(CACHED // max(1, math.prod(self.shape)), 16, MAX_ROWS))

    def whitened(self, W1: FloatArray, W2: FloatArray) -> DenseRecords:
        """Return the form of W1 X W2, for public symmetric matrices of norm at most 1."""
        return replace(self, outer=(on_grid(np.atleast_2d(W1)), on_grid(np.atleast_2d(W2))))

    def coordinates(self, rank: int) -> int:
        """Return the coordinates to cache: r (d1 + d2) if at most a quarter of a record, else 0."""
        kept = rank * sum(self.shape)
        return kept if 4 * kept <= math.prod(self.shape) else 0

    def integers(self, block: Zipped) -> Pair:
        """Return the units of rows and their integers, which the next call overwrites."""
        units = record_units(largest_entries(block.rows), record_bits(math.prod(self.shape)))
        return units, rounded(block.rows, units)

    @staticmethod
    def counted(block: Zipped) -> FloatArray:
        """Return the integers of rows whose units are known."""
        return rounded(block.rows, block.columns["units"])

    def _left(self, matrix: FloatArray, Z: FloatArray) -> FloatArray:
        return np.asarray(np.matmul(matrix, Z.reshape(len(Z), *self.shape)))

    def inner(self, Z: FloatArray, units: FloatArray, space: TangentSpace) -> FloatArray:
        """Return <x, M> of records in integers of their units."""
        seen = reduced(self._left(space.left, Z))
        seen = reduced((seen.reshape(-1, self.shape[1]) @ space.basis).reshape(len(Z), -1))
        return np.asarray(units * space.core_unit * np.einsum("ij,j->i", seen, space.core.ravel()))

    def survey(self, block: Zipped) -> tuple[FloatArray, ...]:
        """Return units and upper bounds of the norms (of W1 X W2); 0 for what adds nothing."""
        d1, d2 = self.shape
        units, Z = self.integers(block)
        margin = math.sqrt(d1 * d2)
        if self.outer is not None:
            W1, W2 = self.outer
            Y = reduced(self._left(W1, Z))
            Z = reduced(np.matmul(Y.reshape(-1, d2), W2, out=Z.reshape(-1, d2))).reshape(len(Z), -1)
            margin *= 2
        return units, units * np.sqrt(row_squares(Z)) * LOOSE + units * margin

    def tangent(self, block: Zipped, space: TangentSpace) -> Pair:
        """Return an upper bound of ||P_T X|| and <X, M> of each record.

        A column `kept` receives W1 Z W2 V and U'W1 Z W2, rounded to integers below 2**24.
        """
        units = block.columns["units"]
        squares, K, margin = self._tangent_parts(self.counted(block), block, space, 0.5)
        inner = np.einsum("ij,j->i", K, space.core.ravel())
        return tangent_sizes(squares, units, margin), units * space.core_unit * inner

    def _tangent_parts(
        self, Z: FloatArray, block: Zipped, space: TangentSpace, steps: float
    ) -> tuple[tuple[FloatArray, ...], FloatArray, float]:
        """Return the squares of both sides and of the core, the core, and what rounding adds.

        Each entry of Z is at most that many steps away from the record's.
        """
        (d1, d2), r, m = self.shape, space.basis.shape[1], len(Z)
        A = reduced(Z.reshape(-1, d2) @ space.right).reshape(m, d1 * r)
        B = reduced(self._left(space.left, Z))
        if self.outer is not None:
            W1, W2 = self.outer
            A = reduced(from_left(W1, A))
            B = reduced(B.reshape(-1, d2) @ W2).reshape(m, r, d2)
        K = reduced((B.reshape(-1, d2) @ space.basis).reshape(m, r * r))
        B = B.reshape(m, -1)
        kept = block.columns.get("kept")
        if kept is not None:
            kept[:, : r * d1], kept[:, r * d1 :] = A, B
        squares = tuple(row_squares(part) for part in (A, B, K))
        margin = steps * math.sqrt(d1 * d2) + 2 * math.sqrt(r) * (math.sqrt(d1) + math.sqrt(d2)) + r
        return squares, K, margin

    def weighted(self, block: Zipped, split: Transform = np.atleast_2d) -> FloatArray:
        """Return the sum of weights Z, flat: exact for integer weights; `split` makes limbs."""
        return split(block.columns["weights"] @ self.counted(block)).ravel()

    def moment_sizes(self, block: Zipped) -> FloatArray:
        """Return an upper bound of ||X X'||_F = ||X'X||_F of each record."""
        units, size = block.columns["units"], math.prod(self.shape)
        Z = self.counted(block).reshape(-1, *self.shape)
        if self.shape[0] > self.shape[1]:
            Z = np.ascontiguousarray(Z.transpose(0, 2, 1))
        G = reduced(np.matmul(Z, Z.copy().transpose(0, 2, 1)))  # one array twice is slower
        flat = Z.reshape(len(Z), size)
        norm = np.sqrt(row_squares(flat))
        grams = (np.sqrt(row_squares(G.reshape(len(G), -1))) + min(self.shape)) * 2.0**GRID_BITS
        return np.asarray(units**2 * (grams + norm * math.sqrt(size) + size))

    def moments(self, block: Zipped) -> FloatArray:
        """Return Z Z' and Z'Z for Z = rint(scale X), flat."""
        d1, d2 = self.shape
        units, scales = block.columns["units"], block.columns["scales"]
        rows = block.rows if units.all() else np.where((units > 0)[:, None], block.rows, 0.0)
        Z = rint(np.multiply(rows, scales[:, None], out=_SCRATCH.rows.shaped(rows.shape)))
        right = Z.reshape(-1, d2)
        left = Z.reshape(-1, d1, d2).transpose(1, 0, 2).reshape(d1, -1)
        return np.concatenate([(left @ left.T).ravel(), (right.T @ right).ravel()])

    def moment_slack(self) -> tuple[float, float]:
        """Return (a, b): rounding raises a size to at most size + a sqrt(size) + b.

        ||(Z+E)(Z+E)'|| <= ||ZZ'|| + 2 ||Z||_2 ||E||_F + ||E||_F^2 with ||E||_F <= sqrt(p)/2.
        """
        size = math.prod(self.shape)
        return math.sqrt(size), size / 4


# Measurement matrices that are not dense, as integers: CSR rows, and rank-one factors (A, B).
#
# Notation and exactness as above.


def _margins(block: Zipped, record: IntArray) -> FloatArray:
    """Roots of the numbers of entries that are rounded: a stored zero is not."""
    return np.sqrt(np.bincount(record, block.rows.data != 0, block.shape[0]))


@dataclass(frozen=True)
class SparseRecords:
    """Records in CSR rows; whitening is diagonal, so that they stay sparse."""

    shape: tuple[int, int]
    scales: Pair | None = None

    outer = None
    at_once = BLOCK_ROWS

    def whitened(self, W1: FloatArray, W2: FloatArray) -> SparseRecords:
        """Return the form of records with entry (a, b) times W1[a] W2[b], of public vectors."""
        return replace(self, scales=(W1, W2))

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

    def tangent(self, block: Zipped, space: TangentSpace) -> Pair:
        """Return an upper bound of ||P_T X|| and <X, M> of each record."""
        (d1, d2), r, m = self.shape, space.basis.shape[1], block.shape[0]
        units = block.columns["units"]
        record, index, Z = self._integers(block, units)
        a, b = np.divmod(index, d2)
        keys_a, A = self._grouped(record * d1 + a, Z[:, None] * space.right[b])
        keys_b, B = self._grouped(record * d2 + b, Z[:, None] * space.left.T[a])
        A, B = reduced(A), reduced(B)
        owners = keys_b // d2
        products = (B[:, :, None] * space.basis[keys_b % d2][:, None, :]).reshape(len(B), r * r)
        columns = [np.bincount(owners, product, m) for product in products.T]
        K = reduced(np.stack(columns, axis=1, dtype=np.float64))
        a2, b2, k2 = (row_squares(part) for part in (A, B, K))
        squares = np.bincount(keys_a // d1, a2, m), np.bincount(owners, b2, m), k2
        counts = _margins(block, record)
        margin = counts * (0.5 + 2 * math.sqrt(r)) + r
        inner = K @ space.core.ravel()
        return tangent_sizes(squares, units, margin), units * space.core_unit * inner

    def weighted(self, block: Zipped, split: Transform = np.atleast_2d) -> FloatArray:
        """Return the sum of weights Z, flat; `split` makes limbs of each term, as records are many.

        A term is below 2**41, so MAX_ROWS of them have an exact sum, and BLOCK_ROWS in limbs, too.
        """
        record, index, Z = self._integers(block, block.columns["units"])
        parts = split(Z * block.columns["weights"][record])
        sums = [np.bincount(index, part, math.prod(self.shape)) for part in parts]
        return np.concatenate(sums, dtype=np.float64)

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
    """Records X_i = a_i b_i': rows a_i with a column `factors` of b_i; whitening acts on both."""

    shape: tuple[int, int]
    whitening: Pair | None = None

    outer = None

    @property
    def at_once(self) -> int:
        """Records that fit a cache."""
        return int(np.clip(CACHED // sum(self.shape), 16, MAX_ROWS))

    def whitened(self, W1: FloatArray, W2: FloatArray) -> FactoredRecords:
        """Return the form of (W1 a)(W2 b)', for public symmetric matrices of norm at most 1."""
        return replace(self, whitening=(on_grid(W1), on_grid(W2)))

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
        return Z, np.sqrt(row_squares(Z)), units, margin

    def survey(self, block: Zipped) -> Pair:
        """Return units and norms of the products; a bad factor makes a record zero."""
        (_, a, ga, ea), (_, b, gb, eb) = self._sides(block)
        units = ga * gb
        return units, units * (a + ea) * (b + eb) * LOOSE

    def tangent(self, block: Zipped, space: TangentSpace) -> Pair:
        """Return an upper bound of ||P_T X|| and <X, M> of each record."""
        (A, a, _, ea), (B, b, _, eb) = self._sides(block)
        units = block.columns["units"]
        u, v = off_grid(A @ space.left.T), off_grid(B @ space.basis)
        uu, vv = (row_squares(part) for part in (u, v))
        margin = (a * eb + b * ea + ea * eb) * LOOSE
        inner = np.zeros(len(A))
        for j, k in np.ndindex(*space.core.shape):
            inner += u[:, j] * v[:, k] * space.core[j, k]
        sizes = tangent_sizes((a * a * vv, uu * b * b, uu * vv), units, margin)
        return sizes, units * space.core_unit * inner

    def weighted(self, block: Zipped, split: Transform = np.atleast_2d) -> FloatArray:
        """Return the sum of weights Z, flat; `split` makes limbs."""
        (A, *_), (B, *_) = self._sides(block)
        return split((A * block.columns["weights"][:, None]).T @ B).ravel()

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


# CSR records with a single entry, summed by its row or its column, for row and column biases.
#
# A record x e_a e_b' becomes x e_b for the bias of column b, or x e_a for that of row a. Records of
# several entries contribute nothing to biases, as their entries may be correlated.


def of_means(block: Zipped, rows: FloatArray, columns: FloatArray) -> FloatArray:
    """Return <X, a 1' + 1 b'> of each record, for public a and b; NaN where it is not finite."""
    X = block.rows
    a, b = np.divmod(X.indices.astype(np.int64), len(columns))
    record = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
    with np.errstate(all="ignore"):
        terms = X.data * (rows[a] + columns[b])
        return np.asarray(np.bincount(record, terms, X.shape[0]), np.float64)


def single_entries(
    blocks: Iterable[Zipped], shape: tuple[int, int], by_column: bool, means: Pair | None
) -> Iterator[Zipped]:
    """Yield the records of one entry as vectors x e_b, or x e_a; all others as zeros.

    Public `means` of rows and columns, if any, are subtracted from the targets.
    """
    d1, d2 = shape
    for block in blocks:
        X, y = block.rows, block.columns["y"]
        m, stored = X.shape[0], X.data != 0
        record = np.repeat(np.arange(m), np.diff(X.indptr))
        single = np.bincount(record[stored], minlength=m) == 1
        kept = stored & single[record]
        index = X.indices[kept] % d2 if by_column else X.indices[kept] // d2
        parts = X.data[kept], index, np.concatenate([[0], np.cumsum(single)])
        rows = sp.csr_array(parts, (m, d2 if by_column else d1))
        y = y if means is None else y - of_means(block, *means)
        yield Zipped(rows, {**block.columns, "y": y})


# Dense records x with residuals <x, M> - y but contributions A x, for a public matrix A.
#
# Notation and exactness as above. If A is proportional to the inverse of a known covariance of x,
# the expected contribution e A x is proportional to the error of M, whatever the covariance is.


@dataclass(frozen=True)
class MixedRecords(DenseRecords):
    """Records x in dense rows of d1 d2 numbers that contribute A x, A symmetric of norm below 1.

    Like whitening, A is never applied to the records of a sum: it maps the exact sum.
    """

    mix: FloatArray = field(kw_only=True)  # A, on its grid

    @classmethod
    def of(cls, form: object, A: FloatArray) -> MixedRecords:
        """Return the form with matrix A, for records in an unwhitened `DenseRecords` form."""
        if not isinstance(form, DenseRecords) or form.outer is not None:
            raise ValueError(
                "a full 'measurement_covariance' needs measurement matrices in dense rows"
            )
        return cls(form.shape, mix=on_grid(A))

    def _mixed(self, Z: FloatArray) -> FloatArray:
        """Return A Z rounded to integers."""
        return reduced(Z @ self.mix)

    def mapped(self, flat: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return floor(A K) of an exact sum K."""
        return exact_map(self.mix, flat)

    def survey(self, block: Zipped) -> Pair:
        """Return units and upper bounds of the norms of A x; 0 for what adds nothing."""
        size = math.prod(self.shape)
        units, Z = self.integers(block)
        return units, units * (np.sqrt(row_squares(self._mixed(Z))) * LOOSE + math.sqrt(size))

    def tangent(self, block: Zipped, space: TangentSpace) -> Pair:
        """Return an upper bound of ||P_T A x|| and <x, M> of each record.

        A column `kept` receives Y V and U'Y of Y = A Z, rounded to integers below 2**24.
        """
        units, Z = block.columns["units"], self.counted(block)
        squares, _, margin = self._tangent_parts(self._mixed(Z), block, space, 1.0)
        return tangent_sizes(squares, units, margin), self.inner(Z, units, space)
