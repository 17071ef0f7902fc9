"""Integers wider than int64: exact sums over rows, products with public matrices, one rounding.

A number is held in limbs of 20 bits, the lowest first; the last one carries the sign. Public
matrices are on the grid of `skdp.data.exact`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
_LIMB = 20
_MASK = 2**_LIMB - 1
_FACTOR_BITS = 40  # of a public factor: a limb times it, and a carry, stay below 2**63
_GROWTH = 2  # limbs that a product with a grid adds: 26 bits, and 6 for a sum over 4096 terms


@dataclass(frozen=True)
class Wide:
    """An array of exact integers of any width.

    Attributes
    ----------
    limbs : tuple of int64 arrays
        The lowest first; all but the last lie in [0, 2**20).
    """

    limbs: tuple[IntArray, ...]

    @classmethod
    def joined(cls, high: IntArray, low: IntArray) -> Wide:
        """Return ``2**20 high + low`` for any int64."""
        zero = np.zeros_like(low)
        return _carried([low, high, zero, zero, zero])

    @property
    def T(self) -> Wide:
        """The transposed matrix."""
        return Wide(tuple(limb.T for limb in self.limbs))

    def __add__(self, other: Wide) -> Wide:
        return self._with(other, 1)

    def __sub__(self, other: Wide) -> Wide:
        return self._with(other, -1)

    def _with(self, other: Wide, sign: int) -> Wide:
        width = max(len(self.limbs), len(other.limbs)) + 1
        zero = np.zeros_like(self.limbs[0])
        pairs = zip(
            _padded(self.limbs, width, zero), _padded(other.limbs, width, zero), strict=True
        )
        return _carried([a + sign * b for a, b in pairs])

    def shifted(self, bits: int) -> Wide:
        """Return the numbers times ``2**bits``."""
        whole, rest = divmod(bits, _LIMB)
        zero = np.zeros_like(self.limbs[0])
        return _carried([zero] * whole + [limb << rest for limb in self.limbs] + [zero])

    def mapped(self, grid: FloatArray) -> Wide:
        """Return ``grid @ self`` for a grid of at most 4096 columns whose rows are below 2**27.

        Products with a limb stay below 2**53 by Cauchy-Schwarz, and are exact.
        """
        parts = [(grid @ limb.astype(np.float64)).astype(np.int64) for limb in self.limbs]
        zero = np.zeros_like(parts[0])
        return _carried(parts + [zero] * _GROWTH)

    def in_steps(self, scales: FloatArray | float, bits: int) -> IntArray:
        """Return the floor of the numbers times ``scales / 2**bits``, modulo 2**64.

        Scales, one for each column, are cut to 40 bits of the largest: what they multiply never
        grows by it.
        """
        exponent = math.frexp(float(np.max(scales)))[1]
        factors = np.floor(np.ldexp(scales, _FACTOR_BITS - exponent)).astype(np.int64)
        zero = np.zeros_like(self.limbs[0])
        scaled = _carried([limb * factors for limb in self.limbs] + [zero] * 3)
        return scaled._floored(bits + _FACTOR_BITS - exponent)

    def _floored(self, bits: int) -> IntArray:
        if bits < 0:
            return self.shifted(-bits)._floored(0)
        first, rest = divmod(bits, _LIMB)
        total = np.zeros_like(self.limbs[0])
        for place, limb in enumerate(self.limbs[first:]):
            shift = place * _LIMB - rest
            if shift < 64:
                total += limb >> -shift if shift < 0 else limb << shift
        return total


def _padded(limbs: tuple[IntArray, ...], width: int, zero: IntArray) -> list[IntArray]:
    return [*limbs, *[zero] * (width - len(limbs))]


def _carried(parts: list[IntArray]) -> Wide:
    """Return the number whose limbs, of any size and sign, are given."""
    limbs = []
    carry = np.zeros_like(parts[0])
    for part in parts[:-1]:
        total = part + carry
        limbs.append(total & _MASK)
        carry = total >> _LIMB
    return Wide((*limbs, parts[-1] + carry))
