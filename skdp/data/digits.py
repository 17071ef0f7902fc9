"""Matrices of wide integers in digits, and their products with public matrices: all exact.

Notation: Z = sum_i 2**(b i) Z_i, with digits of at most 2**(b - 1) in absolute value. A public
matrix W of integers stands for W / 2**g. Products of digits are float64 matrix products whose
partial sums are all below 2**53, so that their bits depend on no order.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp.data.block_rows import dense, entrywise
from skdp.data.blocks import Block
from skdp.data.exact import GRID_BITS

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
_LARGEST = 2**62


def stored(Z: Block) -> FloatArray:
    """Return the entries that are stored."""
    return np.asarray(Z.data if sp.issparse(Z) else Z)


def digit_bits(longest: int) -> int:
    """Return b such that sums over `longest` products of a digit and a public number are exact.

    A column of W has norm 2**26, and absolute values of sum 2**26 sqrt(longest), at most; 2**(b-1)
    times that is below 2**52, where a hundredth more, for the rounding of W, does not matter.
    """
    return 53 - GRID_BITS - math.ceil(math.log2(longest) / 2)


def on_column_grid(V: FloatArray) -> tuple[FloatArray, int]:
    """Return a public matrix as integers W and g: its longest column has norm 2**25 to 2**26."""
    e = math.frexp(float(np.abs(V).max(initial=0.0)))[1]
    V = np.ldexp(V, -e)  # squares of entries are floats then
    g = GRID_BITS - math.frexp(float(np.linalg.norm(V, axis=0).max(initial=0.0)))[1]
    return np.rint(np.ldexp(V, g)), g - e


def split(Z: Block, bits: int) -> list[Block]:
    """Return the digits of integers that floats hold, the lowest first; as many as they need."""
    digits = []
    while np.abs(stored(Z)).max(initial=0.0) > 2.0 ** (bits - 1):
        digits.append(entrywise(partial(_lowest, bits=bits), Z))
        Z = entrywise(partial(_above, bits=bits), Z)
    return [*digits, Z]


def _above(x: FloatArray, bits: int) -> FloatArray:
    x = x * 2.0**-bits
    return np.rint(x, out=x)


def _lowest(x: FloatArray, bits: int) -> FloatArray:
    high = _above(x, bits)
    high *= 2.0**bits
    return np.subtract(x, high, out=high)


def products(digits: list[Any], W: FloatArray) -> list[IntArray]:
    """Return the products of all digits with W."""
    return [dense(digit @ W).astype(np.int64) for digit in digits]


def digits_of(parts: list[IntArray], bits: int) -> list[IntArray]:
    """Return the digits of sum_i 2**(bits i) parts_i: what exceeds its place is carried."""
    half = 1 << (bits - 1)
    digits, carry = [], np.zeros_like(parts[0])
    for part in parts:
        carry = carry + part
        digits.append(((carry + half) & (2 * half - 1)) - half)
        carry = (carry - digits[-1]) >> bits
    return digits + (digits_of([carry], bits) if carry.any() else [])


def floored(parts: list[IntArray], bits: int, shift: int) -> IntArray:
    """Return floor(sum_i 2**(bits i - shift) parts_i), cut at +-2**62."""
    digits = digits_of(parts, bits)  # sums of digits do not cancel: floats know how large they are
    drop, rest = divmod(shift, bits) if shift > 0 else (0, shift)
    for _ in range(drop):
        low = digits.pop(0)
        digits = digits or [np.zeros_like(low)]
        digits[0] = digits[0] + (low >> bits)
    size, total = np.zeros(parts[0].shape), np.zeros_like(parts[0])
    for place, digit in enumerate(digits):
        e = bits * place - rest
        with np.errstate(over="ignore"):
            size += np.ldexp(digit.astype(np.float64), e)
        total += digit << e if e >= 0 else digit >> -e
    near = np.abs(size) < 1.25 * _LARGEST  # then nothing was lost modulo 2**64
    return np.where(near, np.clip(total, -_LARGEST, _LARGEST), np.where(size < 0, -1, 1) * _LARGEST)
