"""Rows as integers, and exact arithmetic with them: what one unit adds never depends on the others.

The row map converts a row to integers, from that row alone, and checks their norm exactly. Products
and sums of integers are exact in float64 below 2**53, and in limbs or digits beyond it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp._limits import EXACT, LARGEST, MOST_DENSE, WIDER, FloatArray, IntArray
from skdp.data.blocks import (
    LIMB,
    Block,
    ScratchOfThread,
    dense,
    entrywise,
    finite_rows,
    largest_entries,
    per_row,
    rint,
    rows_times_powers,
    scale_rows,
    scaled_to_integers,
    square_norms,
    where_rows,
)
from skdp.data.factorisations import of_public

# The row map: a row becomes integers that depend on that row alone, with a norm checked exactly.
#
# Nothing here may depend on the position of a row. So norms are not computed by BLAS, whose
# rounding depends on it, and sums of squares are compared only while they are exact integers.


GRID_BITS = 26  # of a public matrix next to integers of 26 bits: products stay below 2**53
# Finest unit of a row, in units of its largest norm: products with a public matrix of 26 bits, and
# sums of squares, then stay exact.
FINEST_UNIT = math.ldexp(2.0, -GRID_BITS)
_ROUGH = 2.0**20  # squared norms in units, per column, below which rounding is no longer negligible
_LENGTH_BITS = 19


_SCRATCH = ScratchOfThread()


def _mantissas(rows: Block) -> tuple[Block, FloatArray, NDArray[np.intc]]:
    """Write rows as 2**e times integers: (integers, exact squared norms, e). Bad rows become 0.

    The largest entry, the power of two and the integers depend on the row alone, and the squared
    norm of the integers stays below 2**53: nothing here depends on summation order. The next call
    of this thread overwrites dense integers.
    """
    bits = max(4, (51 - math.ceil(math.log2(max(2, rows.shape[1])))) // 2)
    out = None if sp.issparse(rows) else _SCRATCH.values.shaped(rows.shape)
    largest = largest_entries(rows, out)
    good = np.isfinite(largest) & (largest > 0)
    exponents = np.where(good, np.frexp(np.where(good, largest, 1.0))[1], 0).astype(np.intc)
    integers = entrywise(rint, rows_times_powers(where_rows(good, rows), bits - exponents, out))
    return integers, square_norms(integers), exponents - bits


def length_unit(n_features: int) -> float:
    """Return a unit of rounding for the norms of rows with entries of about 1.

    The unit is a power of two, so that norms such as 1, at the edge of a log2 bin, stay exact.
    """
    return math.ldexp(1.0, math.frexp(math.sqrt(n_features))[1] - _LENGTH_BITS)


def row_norms(rows: Block, unit: float = math.inf) -> FloatArray:
    """Return the norm of each row to a relative error of 1e-3, and 0 for rows that are not finite.

    A norm depends on its row alone. Most norms are those of the row rounded to multiples of `unit`,
    which is fast. Rows whose norm is too small for that, or too large for an exact sum of squares,
    are rounded to a multiple of a power of two that depends on the row.
    """
    if not math.isfinite(unit):
        return _own_norms(rows)
    squares = IntegerRows(math.inf, unit, reuse=True).unclipped(rows)[1]
    norms = np.sqrt(squares) * unit
    hard = np.flatnonzero(~((squares > _ROUGH * rows.shape[1]) & (squares < EXACT)))
    if hard.size:
        norms[hard] = _own_norms(rows if hard.size == rows.shape[0] else rows[hard])
    return np.asarray(norms)


def _own_norms(rows: Block) -> FloatArray:
    _, squares, exponents = _mantissas(rows)
    with np.errstate(over="ignore"):  # a norm beyond the largest float exceeds every threshold
        return np.asarray(np.ldexp(np.sqrt(squares), exponents))


@dataclass(frozen=True)
class IntegerRows:
    """The row map: clip to `clip_norm`, write in units of `unit`, keep the integer norm in bound.

    A row x becomes z = rint(min(1, C/|x|) x / unit). If z.z exceeds (C/unit)**2 in exact integers,
    the row is scaled down a little and rounded again, then truncated, then dropped: each step is
    checked exactly and depends on that row alone. Rows that are not finite become zero.

    With ``reuse`` dense results share one array of the thread, which the next such call overwrites.
    """

    clip_norm: float
    unit: float
    reuse: bool = False

    @property
    def square_bound(self) -> float:
        """Largest squared integer norm that a row may have."""
        return math.floor((self.clip_norm / self.unit) ** 2 * (1 - 1e-14))

    def __call__(self, rows: Block) -> Block:
        """Return the integer rows as float64."""
        return self.with_squares(rows)[0]

    def with_squares(self, rows: Block) -> tuple[Block, FloatArray]:
        """Return the integer rows and their exact squared norms."""
        return self._clipped(rows, *self.unclipped(rows))

    def unclipped(self, rows: Block) -> tuple[Block, FloatArray]:
        """Return rows of any norm in whole units, and their squared norms."""
        with np.errstate(over="ignore", invalid="ignore"):
            Z = entrywise(self._rounded, rows)
            return Z, square_norms(Z)

    def _clipped(self, rows: Block, Z: Block, squares: FloatArray) -> tuple[Block, FloatArray]:
        bound = self.square_bound
        over = np.flatnonzero(~(squares <= bound))  # NaN counts as too large
        if over.size:
            known = squares[over] < EXACT  # else the sum of squares was not exact
            easy, hard = over[known], over[~known]
            lengths = np.sqrt(squares[easy]) * self.unit
            shrunk, squares[easy] = self._shrunk(rows[easy], lengths)
            self._replace(Z, easy, shrunk)
            if hard.size:
                integers, exact, _ = _mantissas(rows[hard])
                lengths = np.sqrt(np.maximum(exact, 1.0))
                shrunk, squares[hard] = self._shrunk(integers, lengths)
                self._replace(Z, hard, shrunk)
        return Z, squares

    def _rounded(self, x: FloatArray) -> FloatArray:
        out = _SCRATCH.rows.shaped(x.shape) if self.reuse and x.ndim == 2 else None
        scaled = np.multiply(x, 1.0 / self.unit, out=out)
        return np.asarray(np.rint(scaled, out=scaled))

    def _shrunk(self, rows: Block, lengths: FloatArray) -> tuple[Block, FloatArray]:
        """Scale rows of given norms (each from its row alone) down to the bound, in place.

        Returns integer rows and their exact squared norms.
        """
        bound, radius = self.square_bound, math.sqrt(self.square_bound)
        # Rounding moves a norm by .6 of a unit, twice, and its square by d/12: aim below the
        # bound, so that few rows need truncation, which shrinks every entry.
        aim = max(radius - 2.5 - rows.shape[1] / (24 * max(radius, 1.0)), 0.875 * radius)
        Z = scaled_to_integers(rows, per_row(aim / lengths, rows))
        squares = square_norms(Z)
        over = np.flatnonzero(squares > bound)
        if over.size:
            smaller = radius / np.sqrt(squares[over]) * (1 - 2.0**-40)
            truncated = entrywise(np.trunc, scale_rows(Z[over], smaller))
            kept = (square_norms(truncated) <= bound).astype(np.float64)
            self._replace(Z, over, scale_rows(truncated, kept))
            squares[over] = square_norms(truncated) * kept
        return Z, squares

    @staticmethod
    def _replace(Z: Block, which: NDArray[np.intp], rows: Block) -> None:
        if isinstance(Z, np.ndarray):
            Z[which] = rows
            return
        counts = Z.indptr[which + 1] - Z.indptr[which]
        starts = np.repeat(Z.indptr[which] - rows.indptr[:-1], counts)
        Z.data[starts + np.arange(rows.data.size)] = rows.data


def clip_rows(rows: Block, clip_norm: float) -> Block:
    """Scale float rows to norm at most `clip_norm` (epsilon is infinite); 0 if not finite."""
    rows = where_rows(finite_rows(rows), rows)
    if math.isinf(clip_norm):
        return rows
    norms = np.sqrt(square_norms(rows))
    return scale_rows(rows, np.minimum(1.0, clip_norm / np.maximum(norms, 1e-300)))


def row_map(clip_norm: float, unit: float, *, reuse: bool = True) -> Callable[[Block], Block]:
    """Return a map of rows clipped to `clip_norm`: integers in `unit`, or floats at unit 0."""
    if unit == 0.0:
        return partial(clip_rows, clip_norm=clip_norm)
    return IntegerRows(clip_norm, unit, reuse)


def rows_and_squares(rows: Block, clip_norm: float, unit: float) -> tuple[Block, FloatArray]:
    """Return clipped rows as `row_map` makes them, and their squared norms."""
    if unit == 0.0:
        clipped = clip_rows(rows, clip_norm)
        return clipped, square_norms(clipped)
    return IntegerRows(clip_norm, unit, reuse=True).with_squares(rows)


# Products and sums of integers that are exact: in float64 below 2**53, and in limbs beyond it.
#
# The bits of such results do not depend on order, block size or thread count (BLAS included). A
# public matrix is rounded to a grid of 2**-26 first, which costs no budget.


def _exponent(norm: Any) -> int:
    """Return e with 2**(e-1) <= norm < 2**e; a norm of 1 up to BLAS rounding counts as below 1."""
    return math.frexp(float(norm) * (1 - 2.0**-40))[1]


class PublicMatrix:
    """A public matrix on a grid, so that products with integer rows are exact.

    `integers` are its entries in multiples of `unit`, `norms` its two largest singular values.
    """

    def __init__(self, V: FloatArray) -> None:
        V = np.asarray(V, np.float64)
        self._bits = GRID_BITS - _exponent(of_public(np.linalg.norm, V, 2))
        self.unit = math.ldexp(1.0, -self._bits)
        self.integers: FloatArray = np.rint(np.ldexp(V, self._bits))
        largest = np.zeros(2)
        values = of_public(np.linalg.svd, self.integers, compute_uv=False)[:2]
        largest[: len(values)] = np.ldexp(values, -self._bits) * WIDER
        self.norms: FloatArray = largest

    def multiply(self, Z: Block) -> FloatArray:
        """Return Z V for integer rows Z, without rounding."""
        product = dense(Z @ self.integers)
        product *= self.unit
        return product

    @property
    def rounding(self) -> tuple[float, float]:
        """Bounds of the rounding of `projected`: relative to the change of V'G V, and in steps."""
        d, k = self.integers.shape
        return (2.0**-26 * (math.sqrt(d * k) + k), k) if d <= MOST_DENSE else (0.0, 0.0)

    def projected(self, G: IntArray, ratio: float, longest: float) -> IntArray | None:
        """Return ratio V'G V up to rounding, for a sum G of PSD integer matrices in two limbs.

        The high limb comes first. One unit adds a matrix of trace at most `longest`; G is scaled so
        that this trace is about 2**32. The result is a function of G alone while G is below 2**65,
        which no number of rows in memory reaches. V = c W with |W| in [1/2, 1). Rounding down twice
        moves W'G W / 8 by sqrt(d k) + k, the last rounding moves the result by k. Return None if V
        has too many rows or the ratio is too large for this.
        """
        bits = max(0, 32 - math.frexp(longest)[1])
        W, ratio = self.integers.T, ratio * math.ldexp(self.unit**2, 2 * (GRID_BITS + 1) - bits)
        if not (ratio <= 16 and self.rounding[1]):
            return None
        high, low = G[0] + (G[1] >> LIMB), _low_limb(G[1])
        half = exact_map(W, np.ascontiguousarray(wide_map(W, high << bits, low << bits, drop=3).T))
        return scaled_down(half + half.T, ratio)


class ExactProduct:
    """The product Z'(Z V) of integer rows Z and a public V on a grid, exact but for one rounding.

    The rows of one privacy unit must have a Frobenius norm of at most 2**18. V is written as
    `scale` times a matrix of norm in [1/2, 1]: if Z is in units of sqrt(step / scale), the product
    is in steps.
    """

    def __init__(self, V: FloatArray) -> None:
        V = np.asarray(V, np.float64)
        self.scale = math.ldexp(1.0, _exponent(of_public(np.linalg.norm, V, 2)))
        self._matrix = PublicMatrix(V / self.scale)

    def in_limbs(self, Z: Block) -> list[FloatArray]:
        """Return Z V as three integer arrays, in units of 1, of 2**-13 and of 2**-26."""
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
    """Return the float matrix that these grid integers stand for."""
    return np.asarray(grid * 2.0**-GRID_BITS)


def reduced(values: FloatArray) -> FloatArray:
    """Round exact products with a grid to integers, in place."""
    values *= 2.0**-GRID_BITS
    return rint(values)


def _floored(grid: FloatArray, *limbs: IntArray, drop: int = 0) -> IntArray:
    """Return floor(grid K / 2**(26 + drop)) modulo 2**64; K in limbs of 20 bits, the lowest first.

    Only the last limb is signed. Rows of the grid have norms below 2**27. So by Cauchy-Schwarz
    their products with a limb stay below 2**53, and hence exact, for up to 2**12 rows of K.
    """
    low, middle, *rest = ((grid @ limb.astype(np.float64)).astype(np.int64) for limb in limbs)
    total = ((low >> LIMB) + middle) >> (GRID_BITS + drop - LIMB)
    for place, part in enumerate(rest):
        total += part << (2 * LIMB - GRID_BITS - drop + place * LIMB)
    return np.asarray(total)


def exact_map(grid: FloatArray, K: IntArray) -> IntArray:
    """Return floor(grid K / 2**26) for any int64 K, exactly."""
    return _floored(grid, _low_limb(K), _low_limb(K >> LIMB), K >> (2 * LIMB))


def scaled_down(K: IntArray, ratio: float) -> IntArray:
    """Return floor(r K) modulo 2**64, for an r at most 2**-25 of itself below a public ratio.

    The ratio is below 2**26. No product of K itself is made, which would wrap before it is divided.
    """
    e = math.frexp(ratio)[1]
    factor, up = math.floor(math.ldexp(ratio, GRID_BITS - e)), max(e, 0)
    high, low = factor * (K >> GRID_BITS), factor * (K & 2**GRID_BITS - 1)
    return np.asarray(((high << up) + (low >> GRID_BITS - up)) >> up - e)


def _low_limb(K: IntArray) -> IntArray:
    return np.asarray(K & (2**LIMB - 1))


def wide_map(grid: FloatArray, high: IntArray, low: IntArray, drop: int = 0) -> IntArray:
    """Return floor(grid K / 2**(26 + drop)) for K = 2**20 high + low < 2**83, modulo 2**64.

    K modulo 2**64 is not enough: it does not determine the quotient.
    """
    high = high + (low >> LIMB)
    limbs = _low_limb(low), _low_limb(high), _low_limb(high >> LIMB), high >> (2 * LIMB)
    return _floored(grid, *limbs, drop=drop)


def joined(high: IntArray, low: IntArray, shift: int) -> IntArray:
    """Return floor((high 2**20 + low) / 2**shift)."""
    if shift <= LIMB:
        return np.asarray((high << (LIMB - shift)) + (low >> shift))
    return np.asarray((high + (low >> LIMB)) >> (shift - LIMB))


# Matrices of wide integers in digits, and their products with public matrices: all exact.
#
# Notation: Z = sum_i 2**(b i) Z_i, with digits of at most 2**(b - 1) in absolute value. A public
# matrix W of integers stands for W / 2**g. Products of digits are float64 matrix products whose
# partial sums are all below 2**53, so that their bits depend on no order.


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
    g = GRID_BITS - _exponent(np.linalg.norm(V, axis=0).max(initial=0.0))
    return np.rint(np.ldexp(V, g)), g - e


def split(Z: Block, bits: int) -> list[Block]:
    """Split integers held in floats into digits, the lowest first, as many as the largest needs."""
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
    """Return the digits of sum_i 2**(bits i) parts_i, after carrying what exceeds a digit."""
    half = 1 << (bits - 1)
    digits, carry = [], np.zeros_like(parts[0])
    for part in parts:
        carry = carry + part
        digits.append(((carry + half) & (2 * half - 1)) - half)
        carry = (carry - digits[-1]) >> bits
    return digits + (digits_of([carry], bits) if carry.any() else [])


def floored(parts: list[IntArray], bits: int, shift: int) -> IntArray:
    """Return floor(sum_i 2**(bits i - shift) parts_i), cut at +-2**62."""
    digits = digits_of(parts, bits)  # digits do not cancel, so a float sum gives the size
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
    near = np.abs(size) < 1.25 * LARGEST  # then the total did not wrap modulo 2**64
    return np.where(near, np.clip(total, -LARGEST, LARGEST), np.where(size < 0, -1, 1) * LARGEST)


ODD_BITS = 0x9E3779B97F4A7C15  # of the golden section: its multiples differ in all bits


def mixed_words(words: NDArray[np.uint64], turn: int = 1) -> NDArray[np.uint64]:
    """Hash 64-bit words: a fixed public permutation of all words, a different one for each turn."""
    words = words + np.uint64(turn * ODD_BITS % 2**64)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(words ^ (words >> np.uint64(31)), np.uint64)


# Clipping the contributions of users, arrays of shape (users, ...), each by itself.
#
# A bad user (rows that are not finite, or degenerate) contributes zeros.


TAME = 2.0**-120  # fourth powers of what lies between it and its inverse are normal floats


def _finite(values: FloatArray) -> FloatArray:
    """Set the contribution of a user to zero unless all of it is finite."""
    good = np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
    if good.all():
        return values
    return np.where(good.reshape(-1, *[1] * (values.ndim - 1)), values, 0.0)


def clipped(values: FloatArray, level: float) -> FloatArray:
    """Scale each user's flat contribution to norm at most `level`; bad ones become zero."""
    values = _finite(values)
    largest = np.abs(values).max(axis=1, initial=0.0)
    safe = np.where(largest > 0, largest, 1.0)
    shape = values / safe[:, None]
    norms = np.sqrt((shape * shape).sum(axis=1))  # of entries at most 1: nothing overflows
    with np.errstate(over="ignore", divide="ignore"):
        factors = np.minimum(level / np.maximum(norms, 1e-300), safe)
    return np.asarray(shape * factors[:, None])


def _squares(F: FloatArray) -> FloatArray:
    """||F'F||_F^2 of each user, through the smaller Gram matrix."""
    n, p, d = F.shape
    # The smaller of F'F and F F', so that memory grows linearly with a user's rows. F is copied for
    # F F' because matmul is slower if both factors are the same array.
    G = np.matmul(F.swapaxes(1, 2), F) if p > d else np.matmul(F, F.copy().swapaxes(1, 2))
    squares = np.multiply(G, G, out=G).reshape(n, G.shape[1] * G.shape[2])
    return np.asarray(squares.sum(axis=1))


def unit_factors(F: FloatArray, step: float) -> FloatArray:
    """Return integer factors Z with ||Z'Z||_F <= 1/step for each user; 0 where that fails.

    Z is F, scaled so that F'F has norm 1, in units of sqrt(step); at step 0 Z holds floats.
    The entries of Z'Z are exact. The sum of their squares is compared with a bound that is lower
    by more than the rounding error of this sum, so that no matrix passes wrongly.
    """
    if step == 0.0:
        lengths = np.sqrt(np.sqrt(_squares(F)))
        return np.asarray(_finite(F) / np.where(lengths > 0, lengths, np.inf)[:, None, None])
    n, p, d = F.shape
    flat = np.ascontiguousarray(F).reshape(n, p * d)
    largest = np.maximum(flat.max(axis=1, initial=0.0), -flat.min(axis=1, initial=0.0))
    if not np.isfinite(largest).all():  # a bad entry is the largest
        F, largest = _finite(F), np.where(np.isfinite(largest), largest, 0.0)
    extreme = (largest > 0) & ~((largest > TAME) & (largest < 1 / TAME))
    if extreme.any():  # of others no product leaves the range of floats
        F = F / np.where(extreme, largest, 1.0)[:, None, None]
    sizes = np.sqrt(_squares(F))
    bound = 1.0 / step
    radius = math.sqrt(bound)
    aim = max(radius - 1.5 - math.sqrt(p) * d / (24 * radius), 0.9 * radius)
    factors = np.where(sizes > 0, aim / np.sqrt(np.where(sizes > 0, sizes, 1.0)), 0.0)
    Z = F * factors[:, None, None]
    np.rint(Z, out=Z)
    rounding = 4e-16 * (min(p, d) ** 2 + 4)
    for shrink in (0.99, 0.9, 0.0):
        over = np.flatnonzero(_squares(Z) + rounding * bound**2 > bound**2)
        if not over.size:
            break
        Z[over] = np.rint(F[over] * (shrink * factors[over])[:, None, None])
    return Z
