"""Records of a trace regression as integers: how each form of measurement matrix is computed with.

Notation: record i is a matrix X_i (d1 x d2) and a target y_i. It is written as g Z with g a power
of two and Z integers, both from the record alone; X_i - g Z is covered by a margin. All sums below
stay under 2**53 in exact integers, so their bits depend on no order, block size or thread count
(BLAS included). U and V are public bases (d x r), on a grid of 2**-26.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from skdp.data.zipped import Zipped

__all__ = [
    "GRID_BITS",
    "LOOSE",
    "MAX_ROWS",
    "DenseRecords",
    "Frame",
    "Records",
    "Survey",
    "exact_map",
    "inverse_units",
    "on_grid",
    "record_bits",
    "record_units",
    "reduced",
    "rounded",
    "tangent_sizes",
]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
GRID_BITS = 26
LOOSE = 1 + 1e-5  # bases are orthonormal to 1e-6 on their grids
_BLOCK = 2**18  # numbers of a dense block: about the second-level cache
MAX_ROWS = 2**12
_SMALLEST, _LARGEST = 2.0**-80, 2.0**80  # records outside contribute nothing


def on_grid(matrix: FloatArray) -> FloatArray:
    """Write a public matrix of norm at most 1 in units of 2**-26."""
    return np.asarray(np.rint(np.ldexp(np.asarray(matrix, np.float64), GRID_BITS)))


def reduced(values: FloatArray, scale: float | FloatArray = 1.0) -> FloatArray:
    """Round exact products with a grid (times powers of two) to integers, in place."""
    values *= scale * 2.0**-GRID_BITS
    return np.asarray(np.rint(values, out=values))


def exact_map(grid: FloatArray, K: IntArray) -> IntArray:
    """Return floor(grid K / 2**26) for a grid of row norms below 2**27 and any int64 K, exactly.

    K is cut into limbs of 20 bits; by Cauchy-Schwarz their products with a row of the grid stay
    below 2**53 for up to 2**12 rows of K.
    """
    limbs = (K & 0xFFFFF, (K >> 20) & 0xFFFFF, K >> 40)
    low, middle, high = ((grid @ limb.astype(np.float64)).astype(np.int64) for limb in limbs)
    return np.asarray((((low >> 20) + middle) >> 6) + (high << 14))


class Frame(NamedTuple):
    """A public tangent space, on grids: U'W1, W2 V, V, the core S of M = U S V', the unit of S."""

    left: FloatArray
    right: FloatArray
    basis: FloatArray
    core: FloatArray
    core_unit: float


class Survey(NamedTuple):
    """Units g and upper bounds of the norms of records; 0 where a record contributes nothing."""

    units: FloatArray
    norms: FloatArray


class Records(Protocol):
    """What is computed of the records in a block (`Zipped`), and exact sums over them."""

    shape: tuple[int, int]
    outer: tuple[FloatArray, FloatArray] | None
    at_once: int

    def whitened(self, W1: FloatArray, W2: FloatArray) -> Records:
        """Return the same for W1 X W2, for public symmetric matrices of norm at most 1."""
        ...

    def survey(self, block: Zipped) -> Survey:
        """Return unit and norm of each (whitened) record."""
        ...

    def coordinates(self, rank: int) -> int:
        """Return how many numbers of each record are worth keeping during a step; 0: none."""
        ...

    def tangent(
        self, block: Zipped, units: FloatArray, frame: Frame, kept: NDArray[Any] | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Return an upper bound of ||P_T X|| and <X, M> of each record."""
        ...

    def weighted(self, block: Zipped, units: FloatArray, weights: FloatArray) -> FloatArray:
        """Return the sum of weights Z, exact for integer weights."""
        ...

    def moment_sizes(self, block: Zipped, units: FloatArray) -> FloatArray:
        """Return an upper bound of the norm of one of the two second moments of each record."""
        ...

    def moments(self, block: Zipped, units: FloatArray, scales: FloatArray) -> FloatArray:
        """Return the two second moments of the records times scales, rounded; flat."""
        ...

    def moment_slack(self) -> tuple[float, float]:
        """Return what rounding adds: (a, b) for a size of size + a sqrt(size) + b."""
        ...


def record_bits(size: int) -> int:
    """Bits of the largest entry of a record of `size` entries: squares of norms below 2**51."""
    return min(18, math.floor(25.5 - math.log2(max(1, size)) / 2))


def record_units(largest: NDArray[Any], bits: int) -> FloatArray:
    """Return the unit of each record, 0 for those that are not finite or out of range."""
    largest = largest.astype(np.float64)
    good = (largest > _SMALLEST) & (largest < _LARGEST)
    exponents = np.frexp(np.where(good, largest, 1.0))[1]
    return np.where(good, np.ldexp(1.0, exponents - bits), 0.0)


def inverse_units(units: FloatArray) -> FloatArray:
    """Return 1/unit, exactly, and 0 for 0."""
    return np.asarray(np.divide(1.0, units, out=np.zeros_like(units), where=units > 0))


def rounded(rows: FloatArray, units: FloatArray) -> FloatArray:
    """Round rows to multiples of their units (exact integers times a unit)."""
    if not units.all():
        rows = np.where((units > 0)[:, None], rows, 0.0)
    shift = (units * (1.5 * 2.0**52))[:, None]
    out = rows + shift  # rounds to a multiple of the unit
    out -= shift
    return np.asarray(out)


def _largest(rows: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(np.maximum(rows.max(axis=1, initial=0), -rows.min(axis=1, initial=0)))


def tangent_sizes(
    t1: FloatArray, t2: FloatArray, core: FloatArray, units: FloatArray, margin: float | FloatArray
) -> FloatArray:
    """Return the norm of (t1, t2 (I - VV')) from exact squares; ||core|| <= ||t1||."""
    squares = np.maximum(t1 + t2 - core, 0.0)
    return np.asarray(units * (np.sqrt(squares) * LOOSE + margin))


class DenseRecords:
    """Records in rows of d1 d2 numbers; optionally whitened to W1 X W2.

    Whitening is never applied to the records: it enters through the public matrices.
    """

    def __init__(
        self, shape: tuple[int, int], outer: tuple[FloatArray, FloatArray] | None = None
    ) -> None:
        self.shape = shape
        self.outer = outer
        self.at_once = int(np.clip(_BLOCK // math.prod(shape), 16, MAX_ROWS))
        self._bits = record_bits(math.prod(shape))

    def whitened(self, W1: FloatArray, W2: FloatArray) -> DenseRecords:
        """Return the same for W1 X W2, for public matrices of norm at most 1."""
        return DenseRecords(self.shape, (on_grid(W1), on_grid(W2)))

    def coordinates(self, rank: int) -> int:
        """Return r (d1 + d2) if that is at most a quarter of a record: it saves a pass over X."""
        kept = rank * sum(self.shape)
        return kept if 4 * kept <= math.prod(self.shape) else 0

    def _left(self, matrix: FloatArray, Z: FloatArray) -> FloatArray:
        return np.asarray(np.matmul(matrix, Z.reshape(len(Z), *self.shape)))

    def survey(self, block: Zipped) -> Survey:
        """Return units and norms; a whitened norm is that of W1 X W2."""
        d1, d2 = self.shape
        with np.errstate(invalid="ignore", over="ignore"):
            units = record_units(_largest(block.rows), self._bits)
        Z = rounded(block.rows, units)
        margin = math.sqrt(d1 * d2)
        if self.outer is not None:
            W1, W2 = self.outer
            Y = reduced(self._left(W1, Z), inverse_units(units)[:, None, None])
            Z = reduced(Y.reshape(-1, d2) @ W2).reshape(len(Z), -1) * units[:, None]
            margin *= 2
        norms = np.sqrt(np.einsum("ij,ij->i", Z, Z)) * LOOSE + units * margin
        return Survey(units, np.where(units > 0, norms, 0.0))

    def tangent(
        self, block: Zipped, units: FloatArray, frame: Frame, kept: NDArray[Any] | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Return an upper bound of ||P_T X|| and <X, M> of each record.

        `kept`, if given, receives W1 Z W2 V and U'W1 Z W2, rounded to integers below 2**24.
        """
        (d1, d2), r, m = self.shape, frame.basis.shape[1], len(block.rows)
        inverse = inverse_units(units)[:, None, None]
        Z = rounded(block.rows, units)
        A = reduced((Z.reshape(-1, d2) @ frame.right).reshape(m, d1, r), inverse)
        B = reduced(self._left(frame.left, Z), inverse)
        if self.outer is not None:
            W1, W2 = self.outer
            A = reduced(np.matmul(W1, A))
            B = reduced(B.reshape(-1, d2) @ W2).reshape(m, r, d2)
        K = reduced((B.reshape(-1, d2) @ frame.basis).reshape(m, r * r))
        A, B = A.reshape(m, -1), B.reshape(m, -1)
        if kept is not None:
            kept[:, : r * d1], kept[:, r * d1 :] = A, B
        squares = [np.einsum("ij,ij->i", part, part) for part in (A, B, K)]
        margin = 0.5 * math.sqrt(d1 * d2) + 2 * math.sqrt(r) * (math.sqrt(d1) + math.sqrt(d2)) + r
        sizes = tangent_sizes(squares[0], squares[1], squares[2], units, margin)
        inner = np.einsum("ij,j->i", K, frame.core.ravel())
        return sizes, units * frame.core_unit * inner

    def weighted(self, block: Zipped, units: FloatArray, weights: FloatArray) -> FloatArray:
        """Return the sum of weights Z, flat."""
        return np.asarray((weights * inverse_units(units)) @ rounded(block.rows, units))

    def moment_sizes(self, block: Zipped, units: FloatArray) -> FloatArray:
        """Return an upper bound of ||X X'||_F = ||X'X||_F."""
        Z = (rounded(block.rows, units) * inverse_units(units)[:, None]).reshape(-1, *self.shape)
        if self.shape[0] > self.shape[1]:
            Z = np.ascontiguousarray(Z.transpose(0, 2, 1))
        G = reduced(np.matmul(Z, Z.transpose(0, 2, 1)))
        size = math.prod(self.shape)
        norm = np.sqrt(np.einsum("ij,ij->i", Z.reshape(len(Z), -1), Z.reshape(len(Z), -1)))
        grams = (np.sqrt(np.einsum("ijk,ijk->i", G, G)) + min(self.shape)) * 2.0**GRID_BITS
        return np.asarray(units**2 * (grams + norm * math.sqrt(size) + size))

    def moments(self, block: Zipped, units: FloatArray, scales: FloatArray) -> FloatArray:
        """Return Z Z' and Z'Z for Z = rint(scale X)."""
        d1, d2 = self.shape
        rows = np.where((units > 0)[:, None], block.rows, 0.0)
        Z = np.rint(rows * scales[:, None])
        right = Z.reshape(-1, d2)
        left = Z.reshape(-1, d1, d2).transpose(1, 0, 2).reshape(d1, -1)
        return np.concatenate([(left @ left.T).ravel(), (right.T @ right).ravel()])

    def moment_slack(self) -> tuple[float, float]:
        """||(Z+E)(Z+E)'|| <= ||ZZ'|| + 2 ||Z||_2 ||E||_F + ||E||_F^2 with ||E||_F <= sqrt(p)/2."""
        size = math.prod(self.shape)
        return math.sqrt(size), size / 4
