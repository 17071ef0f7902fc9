"""Products and sums of integers that are exact: in float64 below 2**53, and in limbs beyond it.

Bits of such results depend on no order, block size or thread count (BLAS included). A public matrix
is put on a grid of 2**-26 first, which is free: everybody knows it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from skdp.data.block_rows import dense, rint
from skdp.data.blocks import Block

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
GRID_BITS = 26  # of a public matrix beside integers of 26 bits: products stay below 2**53
_LIMB = 20
_MASK = 2**_LIMB - 1


class PublicMatrix:
    """A public matrix on a grid, so that products with integer rows are exact.

    `integers` are its entries in multiples of `unit`, `norms` its two largest singular values.
    """

    def __init__(self, V: FloatArray) -> None:
        V = np.asarray(V, np.float64)
        self._bits = GRID_BITS - math.frexp(float(np.linalg.norm(V, 2)))[1]
        self.unit = math.ldexp(1.0, -self._bits)
        self.integers: FloatArray = np.rint(np.ldexp(V, self._bits))
        largest = np.zeros(2)
        values = np.linalg.svd(self.integers, compute_uv=False)[:2]
        largest[: len(values)] = np.ldexp(values, -self._bits) * (1 + 1e-9)
        self.norms: FloatArray = largest

    def multiply(self, Z: Block) -> FloatArray:
        """Return Z V for integer rows Z, without rounding."""
        product = dense(Z @ self.integers)
        product *= self.unit
        return product


class ExactProduct:
    """The product Z'(Z V) for a public V on a grid and integers Z, exact until it is rounded once.

    Rows of Z may be at most 2**18 long together, for one unit. V counts as `scale` times a matrix
    of norm in [1/2, 1], so that Z is in units of sqrt(step / scale) for answers in steps.
    """

    def __init__(self, V: FloatArray) -> None:
        V = np.asarray(V, np.float64)
        self.scale = math.ldexp(1.0, math.frexp(float(np.linalg.norm(V, 2)))[1])
        self._matrix = PublicMatrix(V / self.scale)
        self.norms: FloatArray = self._matrix.norms * self.scale

    def in_limbs(self, Z: Block) -> list[FloatArray]:
        """Return Z V in three parts: whole numbers, units of 2**-13 and of 2**-26 of them."""
        rest = self._matrix.multiply(Z)
        parts = [np.trunc(rest)]
        for _ in range(2):
            rest = (rest - parts[-1]) * 2.0 ** (GRID_BITS // 2)
            parts.append(np.trunc(rest))
        return parts

    @staticmethod
    def whole(high: IntArray, middle: IntArray, low: IntArray) -> IntArray:
        """Return the floor of products with the three parts, summed over all rows."""
        bits = GRID_BITS // 2
        return np.asarray(high + ((middle + (low >> bits)) >> bits))


def on_grid(matrix: FloatArray) -> FloatArray:
    """Write a public matrix of norm at most 1 in units of 2**-26."""
    return rint(np.asarray(matrix, np.float64) * 2.0**GRID_BITS)


def off_grid(grid: FloatArray) -> FloatArray:
    """Return a matrix on the grid as what it stands for."""
    return np.asarray(grid * 2.0**-GRID_BITS)


def reduced(values: FloatArray, scale: float | FloatArray = 1.0) -> FloatArray:
    """Round exact products with a grid (times powers of two) to integers, in place."""
    values *= scale * 2.0**-GRID_BITS
    return rint(values)


def _floored(grid: FloatArray, *limbs: IntArray) -> IntArray:
    """Return floor(grid K / 2**26) modulo 2**64 for K in limbs of 20 bits, the lowest first.

    The last limb has a sign. By Cauchy-Schwarz products of a limb with a row of the grid of norm
    below 2**27 stay below 2**53 for up to 2**12 rows of K.
    """
    low, middle, *rest = ((grid @ limb.astype(np.float64)).astype(np.int64) for limb in limbs)
    total = ((low >> _LIMB) + middle) >> (GRID_BITS - _LIMB)
    for place, part in enumerate(rest):
        total += part << (2 * _LIMB - GRID_BITS + place * _LIMB)
    return np.asarray(total)


def exact_map(grid: FloatArray, K: IntArray) -> IntArray:
    """Return floor(grid K / 2**26) for any int64 K, exactly."""
    return _floored(grid, K & _MASK, (K >> _LIMB) & _MASK, K >> (2 * _LIMB))


def wide_map(grid: FloatArray, high: IntArray, low: IntArray) -> IntArray:
    """Return floor(grid K / 2**26) for K = 2**20 high + low (below 2**83), modulo 2**64.

    K modulo 2**64 would not do: the quotient is not a function of it.
    """
    high = high + (low >> _LIMB)
    return _floored(grid, low & _MASK, high & _MASK, (high >> _LIMB) & _MASK, high >> (2 * _LIMB))


def limbs_of(exact: FloatArray) -> FloatArray:
    """Return floor(x / 2**20) and the rest, exactly: sums of either fit int64."""
    high = np.floor(exact * 2.0**-_LIMB)
    return np.stack([high, exact - high * 2.0**_LIMB])


def joined(high: IntArray, low: IntArray, shift: int) -> IntArray:
    """Return floor((high 2**20 + low) / 2**shift)."""
    if shift <= _LIMB:
        return np.asarray((high << (_LIMB - shift)) + (low >> shift))
    return np.asarray((high + (low >> _LIMB)) >> (shift - _LIMB))
