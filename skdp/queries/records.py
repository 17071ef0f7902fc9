"""Records of a trace regression as integers: dense, CSR and factored measurement matrices.

Notation: record i is a matrix X_i (d1 x d2) and a target y_i. It is written as g Z with g a power
of two and Z integers, both from the record alone; X_i - g Z is covered by a margin. All sums below
stay under 2**53 in exact integers, so their bits depend on no order, block size or thread count
(BLAS included). U and V are public bases (d x r), on a grid of 2**-26.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from skdp.data.blocks import cuts
from skdp.data.exact import GRID_BITS, on_grid, reduced

__all__ = [
    "LOOSE",
    "MAX_ROWS",
    "Block",
    "DenseRecords",
    "Frame",
    "Records",
    "Survey",
    "inverse_units",
    "record_bits",
    "record_units",
    "rounded",
    "tangent_sizes",
]

FloatArray = NDArray[np.float64]
LOOSE = 1 + 1e-5  # bases are orthonormal to 1e-6 on their grids
_BLOCK = 2**18  # numbers of a dense block: about the second-level cache
MAX_ROWS = 2**12
_SMALLEST, _LARGEST = 2.0**-80, 2.0**80  # records outside contribute nothing


class Frame(NamedTuple):
    """A public tangent space, on grids: U'W1, W2 V, V, the core S of M = U S V', the unit of S."""

    left: FloatArray
    right: FloatArray
    basis: FloatArray
    core: FloatArray
    core_unit: float


class Block(NamedTuple):
    """Records start to stop and what holds them."""

    start: int
    stop: int
    data: Any

    @property
    def shape(self) -> tuple[int]:
        """Number of records, as `sum_rows` asks for it."""
        return (self.stop - self.start,)


class Survey(NamedTuple):
    """Units g and upper bounds of the norms of records; 0 where a record contributes nothing."""

    units: FloatArray
    norms: FloatArray


class Records(Protocol):
    """Records in blocks, and the exact sums over them."""

    shape: tuple[int, int]
    n_features: int
    outer: tuple[FloatArray, FloatArray] | None

    def whitened(self, W1: FloatArray, W2: FloatArray) -> Records:
        """Return the records W1 X W2, for public symmetric matrices of norm at most 1."""
        ...

    def n_rows(self) -> int:
        """Return the private number of records."""
        ...

    def parts(self, n: int) -> list[Any]:
        """Cut into about `n` sets of records."""
        ...

    def blocks(self) -> Iterator[Block]:
        """Yield blocks."""
        ...

    def survey(self, block: Block) -> Survey:
        """Return unit and norm of each (whitened) record."""
        ...

    def coordinates(self, rank: int) -> int:
        """Return how many numbers of each record are worth keeping during a step; 0: none."""
        ...

    def tangent(
        self, block: Block, units: FloatArray, frame: Frame, kept: NDArray[Any] | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Return an upper bound of ||P_T X|| and <X, M> of each record."""
        ...

    def weighted(self, block: Block, units: FloatArray, weights: FloatArray) -> FloatArray:
        """Return the sum of weights Z, exact for integer weights."""
        ...

    def moment_sizes(self, block: Block, units: FloatArray) -> FloatArray:
        """Return an upper bound of the norm of one of the two second moments of each record."""
        ...

    def moments(self, block: Block, units: FloatArray, scales: FloatArray) -> FloatArray:
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


def rounded(rows: NDArray[Any], units: FloatArray) -> FloatArray:
    """Round rows to multiples of their units (exact integers times a unit), as float64."""
    if not units.all():
        rows = np.where((units > 0)[:, None], rows, rows.dtype.type(0))
    single = rows.dtype == np.float32
    shift = (units * (1.5 * 2.0 ** (23 if single else 52))).astype(rows.dtype)[:, None]
    out = rows + shift  # rounds to a multiple of the unit
    out -= shift
    return np.asarray(out, np.float64)


def _largest(rows: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(np.maximum(rows.max(axis=1, initial=0), -rows.min(axis=1, initial=0)))


def tangent_sizes(
    t1: FloatArray, t2: FloatArray, core: FloatArray, units: FloatArray, margin: float | FloatArray
) -> FloatArray:
    """Return the norm of (t1, t2 (I - VV')) from exact squares; ||core|| <= ||t1||."""
    squares = np.maximum(t1 + t2 - core, 0.0)
    return np.asarray(units * (np.sqrt(squares) * LOOSE + margin))


class DenseRecords:
    """Records in the rows of a dense array (n, d1 d2); optionally whitened to W1 X W2.

    Whitening is never applied to the records: it enters through the public matrices.
    """

    def __init__(
        self,
        X: NDArray[Any],
        shape: tuple[int, int],
        outer: tuple[FloatArray, FloatArray] | None = None,
        start: int = 0,
        stop: int | None = None,
    ) -> None:
        self._X = X
        self._range = (start, len(X) if stop is None else stop)
        self.shape = shape
        self.n_features = math.prod(shape)
        self.outer = outer
        self._bits = record_bits(shape[0] * shape[1])

    def n_rows(self) -> int:
        """Return the private number of records."""
        return self._range[1] - self._range[0]

    def whitened(self, W1: FloatArray, W2: FloatArray) -> DenseRecords:
        """Return the records W1 X W2, for public matrices of norm at most 1."""
        return DenseRecords(self._X, self.shape, (on_grid(W1), on_grid(W2)), *self._range)

    def parts(self, n: int) -> list[DenseRecords]:
        """Cut into `n` ranges of records."""
        return [
            DenseRecords(self._X, self.shape, self.outer, a, b) for a, b in cuts(*self._range, n)
        ]

    def blocks(self) -> Iterator[Block]:
        """Yield blocks that fit a cache."""
        start, stop = self._range
        rows = int(np.clip(_BLOCK // self._X.shape[1], 16, MAX_ROWS))
        for i in range(start, stop, rows):
            j = min(i + rows, stop)
            yield Block(i, j, np.asarray(self._X[i:j]))

    def coordinates(self, rank: int) -> int:
        """Return r (d1 + d2) if that is at most a quarter of a record: it saves a pass over X."""
        kept = rank * sum(self.shape)
        return kept if 4 * kept <= self.n_features else 0

    def _left(self, matrix: FloatArray, Z: FloatArray) -> FloatArray:
        return np.asarray(np.matmul(matrix, Z.reshape(len(Z), *self.shape)))

    def survey(self, block: Block) -> Survey:
        """Return units and norms; a whitened norm is that of W1 X W2."""
        d1, d2 = self.shape
        with np.errstate(invalid="ignore", over="ignore"):
            units = record_units(_largest(block.data), self._bits)
        Z = rounded(block.data, units)
        margin = math.sqrt(d1 * d2)
        if self.outer is not None:
            W1, W2 = self.outer
            Y = reduced(self._left(W1, Z), inverse_units(units)[:, None, None])
            Z = reduced(Y.reshape(-1, d2) @ W2).reshape(len(Z), -1) * units[:, None]
            margin *= 2
        norms = np.sqrt(np.einsum("ij,ij->i", Z, Z)) * LOOSE + units * margin
        return Survey(units, np.where(units > 0, norms, 0.0))

    def tangent(
        self, block: Block, units: FloatArray, frame: Frame, kept: NDArray[Any] | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Return an upper bound of ||P_T X|| and <X, M> of each record.

        `kept`, if given, receives W1 Z W2 V and U'W1 Z W2, rounded to integers below 2**24.
        """
        (d1, d2), r, m = self.shape, frame.basis.shape[1], len(block.data)
        inverse = inverse_units(units)[:, None, None]
        Z = rounded(block.data, units)
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

    def weighted(self, block: Block, units: FloatArray, weights: FloatArray) -> FloatArray:
        """Return the sum of weights Z, flat."""
        return np.asarray((weights * inverse_units(units)) @ rounded(block.data, units))

    def moment_sizes(self, block: Block, units: FloatArray) -> FloatArray:
        """Return an upper bound of ||X X'||_F = ||X'X||_F."""
        Z = (rounded(block.data, units) * inverse_units(units)[:, None]).reshape(-1, *self.shape)
        if self.shape[0] > self.shape[1]:
            Z = np.ascontiguousarray(Z.transpose(0, 2, 1))
        G = reduced(np.matmul(Z, Z.transpose(0, 2, 1)))
        size = math.prod(self.shape)
        norm = np.sqrt(np.einsum("ij,ij->i", Z.reshape(len(Z), -1), Z.reshape(len(Z), -1)))
        grams = (np.sqrt(np.einsum("ijk,ijk->i", G, G)) + min(self.shape)) * 2.0**GRID_BITS
        return np.asarray(units**2 * (grams + norm * math.sqrt(size) + size))

    def moments(self, block: Block, units: FloatArray, scales: FloatArray) -> FloatArray:
        """Return Z Z' and Z'Z for Z = rint(scale X)."""
        d1, d2 = self.shape
        rows = np.where((units > 0)[:, None], block.data, 0.0)
        Z = np.rint(rows * scales[:, None])
        right = Z.reshape(-1, d2)
        left = Z.reshape(-1, d1, d2).transpose(1, 0, 2).reshape(d1, -1)
        return np.concatenate([(left @ left.T).ravel(), (right.T @ right).ravel()])

    def moment_slack(self) -> tuple[float, float]:
        """||(Z+E)(Z+E)'|| <= ||ZZ'|| + 2 ||Z||_2 ||E||_F + ||E||_F^2 with ||E||_F <= sqrt(p)/2."""
        size = math.prod(self.shape)
        return math.sqrt(size), size / 4
