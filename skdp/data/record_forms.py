"""Measurement matrices as integers: dense arrays of them; other forms in `sparse_records`.

Notation: record i is a matrix X_i (d1 x d2). It is written as g Z with g a power of two (its unit)
and Z integers, both from the record alone; X_i - g Z is covered by a margin. All sums below stay
under 2**53 in exact integers, so their bits depend on no order, block size or thread count (BLAS
included). U and V are public bases (d x r), on a grid of 2**-26. A form holds no records: it maps
blocks of them, with numbers of each record (units, weights, scales) in the columns of the block.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skdp.data.block_rows import largest_entries, rint
from skdp.data.exact import GRID_BITS, off_grid, on_grid, reduced
from skdp.data.scratch import Scratch
from skdp.data.zipped import Zipped

FloatArray = NDArray[np.float64]
Pair = tuple[FloatArray, FloatArray]
LOOSE = 1 + 1e-5  # bases are orthonormal to 1e-6 on their grids
_BLOCK = 2**18  # numbers of a dense block: about the second-level cache
MAX_ROWS = 2**12
_SMALL = 2**7  # numbers of a record that one product of all records takes less time for
_SMALLEST, _LARGEST = 2.0**-80, 2.0**80  # records outside contribute nothing


class Frame(NamedTuple):
    """A public tangent space, on grids: U'W1, W2 V, V, the core S of M = U S V', the unit of S."""

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
    good = (largest > _SMALLEST) & (largest < _LARGEST)
    exponents = np.frexp(np.where(good, largest, 1.0))[1]
    return np.where(good, np.ldexp(1.0, exponents - bits), 0.0)


def inverse_units(units: FloatArray) -> FloatArray:
    """Return 1/unit, exactly, and 0 for 0."""
    return np.asarray(np.divide(1.0, units, out=np.zeros_like(units), where=units > 0))


def from_left(W: FloatArray, A: FloatArray) -> FloatArray:
    """Return W times the d x r matrix of each record, flat: small ones in a single product."""
    m, size = A.shape
    r = size // len(W)
    if size <= _SMALL:
        return A @ np.kron(W.T, np.eye(r))
    return np.asarray(np.matmul(W, A.reshape(m, -1, r))).reshape(m, size)


class _ScratchOfThread(threading.local):
    def __init__(self) -> None:
        self.rows = Scratch()


_SCRATCH = _ScratchOfThread()


def rounded(rows: FloatArray, units: FloatArray) -> FloatArray:
    """Return rows as integers: how many of their units; the next call of this thread overwrites."""
    if not units.all():
        rows = np.where((units > 0)[:, None], rows, 0.0)
    inverse = inverse_units(units)[:, None]
    return rint(np.multiply(rows, inverse, out=_SCRATCH.rows.shaped(rows.shape)))


def _as_floats(whole: NDArray[np.float32]) -> FloatArray:
    """Return integers that were kept; the next call of this thread overwrites them."""
    out = _SCRATCH.rows.shaped(whole.shape)
    np.copyto(out, whole)
    return out


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
    surveyed: ClassVar[tuple[str, ...]] = ()  # further numbers of each record in a survey

    @property
    def at_once(self) -> int:
        """Records that fit a cache."""
        return int(np.clip(_BLOCK // max(1, math.prod(self.shape)), 16, MAX_ROWS))

    def whitened(self, W1: FloatArray, W2: FloatArray) -> DenseRecords:
        """Return the form of W1 X W2, for public symmetric matrices of norm at most 1."""
        return replace(self, outer=(on_grid(W1), on_grid(W2)))

    def coordinates(self, rank: int) -> int:
        """Return r (d1 + d2) if that is at most a quarter of a record: it saves a pass over X."""
        kept = rank * sum(self.shape)
        return kept if 4 * kept <= math.prod(self.shape) else 0

    @staticmethod
    def whole(block: Zipped, form: DenseRecords) -> tuple[FloatArray, NDArray[np.float32]]:
        """Return the units of rows and their integers, of 18 bits at most, for later passes."""
        units, Z = form.integers(block)
        return units, Z.astype(np.float32)

    def integers(self, block: Zipped) -> Pair:
        """Return the units of rows and their integers, which the next call overwrites."""
        kept = block.columns.get("whole")
        if kept is None:
            units = record_units(largest_entries(block.rows), record_bits(math.prod(self.shape)))
            return units, rounded(block.rows, units)
        return block.columns["row_units"], _as_floats(kept)

    def counted(self, block: Zipped) -> FloatArray:
        """Return the integers of rows whose units are known."""
        kept = block.columns.get("whole")
        return rounded(block.rows, block.columns["units"]) if kept is None else _as_floats(kept)

    def _left(self, matrix: FloatArray, Z: FloatArray) -> FloatArray:
        return np.asarray(np.matmul(matrix, Z.reshape(len(Z), *self.shape)))

    def inner(self, Z: FloatArray, units: FloatArray, frame: Frame) -> FloatArray:
        """Return <x, M> of records in integers of their units."""
        seen = reduced(self._left(frame.left, Z))
        seen = reduced((seen.reshape(-1, self.shape[1]) @ frame.basis).reshape(len(Z), -1))
        return np.asarray(units * frame.core_unit * np.einsum("ij,j->i", seen, frame.core.ravel()))

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
        norms = units * np.sqrt(np.einsum("ij,ij->i", Z, Z)) * LOOSE + units * margin
        return units, np.where(units > 0, norms, 0.0)

    def tangent(self, block: Zipped, frame: Frame) -> Pair:
        """Return an upper bound of ||P_T X|| and <X, M> of each record.

        A column `kept` receives W1 Z W2 V and U'W1 Z W2, rounded to integers below 2**24.
        """
        (d1, d2), r, m = self.shape, frame.basis.shape[1], len(block.rows)
        units, kept = block.columns["units"], block.columns.get("kept")
        Z = self.counted(block)
        A = reduced(Z.reshape(-1, d2) @ frame.right).reshape(m, d1 * r)
        B = reduced(self._left(frame.left, Z))
        if self.outer is not None:
            W1, W2 = self.outer
            A = reduced(from_left(W1, A))
            B = reduced(B.reshape(-1, d2) @ W2).reshape(m, r, d2)
        K = reduced((B.reshape(-1, d2) @ frame.basis).reshape(m, r * r))
        B = B.reshape(m, -1)
        if kept is not None:
            kept[:, : r * d1], kept[:, r * d1 :] = A, B
        squares = tuple(np.einsum("ij,ij->i", part, part) for part in (A, B, K))
        margin = 0.5 * math.sqrt(d1 * d2) + 2 * math.sqrt(r) * (math.sqrt(d1) + math.sqrt(d2)) + r
        inner = np.einsum("ij,j->i", K, frame.core.ravel())
        return tangent_sizes(squares, units, margin), units * frame.core_unit * inner

    def sides(self, block: Zipped, frame: Frame, beside: FloatArray) -> Pair:
        """Return W1 X W2 V and U'W1 X beside of each record, as floats."""
        rows = np.where((block.columns["units"] > 0)[:, None], block.rows, 0.0)
        X = np.asarray(rows, np.float64).reshape(-1, *self.shape)
        right, left = X @ off_grid(frame.right), off_grid(frame.left) @ X @ beside
        return (right if self.outer is None else off_grid(self.outer[0]) @ right), left

    def weighted(self, block: Zipped) -> FloatArray:
        """Return the sum of weights Z, flat: exact for integer weights."""
        return np.asarray(block.columns["weights"] @ self.counted(block))

    def moment_sizes(self, block: Zipped) -> FloatArray:
        """Return an upper bound of ||X X'||_F = ||X'X||_F of each record."""
        units, size = block.columns["units"], math.prod(self.shape)
        Z = self.counted(block).reshape(-1, *self.shape)
        if self.shape[0] > self.shape[1]:
            Z = np.ascontiguousarray(Z.transpose(0, 2, 1))
        G = reduced(np.matmul(Z, Z.copy().transpose(0, 2, 1)))  # of one array it takes longer
        flat = Z.reshape(len(Z), size)
        norm = np.sqrt(np.einsum("ij,ij->i", flat, flat))
        grams = (np.sqrt(np.einsum("ijk,ijk->i", G, G)) + min(self.shape)) * 2.0**GRID_BITS
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
        """Return what rounding adds: (a, b) for a size of size + a sqrt(size) + b.

        ||(Z+E)(Z+E)'|| <= ||ZZ'|| + 2 ||Z||_2 ||E||_F + ||E||_F^2 with ||E||_F <= sqrt(p)/2.
        """
        size = math.prod(self.shape)
        return math.sqrt(size), size / 4
