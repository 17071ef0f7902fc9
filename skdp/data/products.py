"""Products of rows with a public matrix in which a row's result depends on that row alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp.data.block_rows import largest_entries, rint, square_norms, times_powers

FloatArray = NDArray[np.float64]
_BLOCK = 2**16  # numbers of a block: what is made of it fits the second-level cache
_HIGH = 26  # bits of the norm of the first integers
_EVERY = 4  # exponents of rows are rounded up to a multiple
_LEAST = 1e-270  # of a square that is far from losing bits


def row_products(X: NDArray[Any], V: NDArray[Any]) -> FloatArray:
    """Return X V, each row of it a function of that row of X and of V, bit by bit.

    BLAS adds up in an order that depends on where a row stands, so with one row less the last bit
    of many rows of X @ V changes. A private step that is fitted on them would then see neighbours
    that differ in more than one row. Here rows x and columns v are scaled by powers of two to
    norms below 2**26, and cut into integers and b more bits, 2**b <= 2**27/sqrt(d): by
    Cauchy-Schwarz any part of a sum of products lies below 2**53, so that it is exact in every
    order. What is dropped is about d 2**-49 of |x| |v| at most, and far less on average.
    """
    n, d = X.shape
    bits = _HIGH + 1 - math.ceil(math.log2(max(1, d)) / 2)
    V = np.ascontiguousarray(V, np.float64)  # which a product of few columns likes better
    unit = _powers_of_columns(V)
    high, low = _halves(np.ldexp(V, _HIGH - unit), bits)
    out = np.empty((n, V.shape[1]))
    size = max(16, _BLOCK // max(1, d))
    # Fresh memory for each block costs as much as the products.
    scaled, whole = np.empty((2, min(n, size), d))
    with np.errstate(all="ignore"):  # as BLAS does
        for i in range(0, n, size):
            rows = np.ascontiguousarray(X[i : i + size], np.float64)  # norms add up in one order
            memory = scaled[: len(rows)]
            exponents = _powers(rows)
            values = times_powers(rows, _HIGH - exponents, memory)
            first, second = _halves(values, bits, whole[: len(rows)])
            total = first @ low  # by themselves: BLAS is faster with little
            total += second @ high
            total *= 2.0**-bits
            total += first @ high
            _scaled(total, exponents, unit - 2 * _HIGH, out[i : i + size])
    return out


def _powers_of_columns(V: FloatArray) -> NDArray[np.intc]:
    """Return for each column a power of two beyond its norm, also where squares overflow."""
    largest = np.frexp(np.abs(V).max(axis=0, initial=0.0))[1]
    return np.asarray(largest + np.frexp(np.linalg.norm(np.ldexp(V, -largest), axis=0))[1])


def _powers(rows: FloatArray) -> NDArray[np.intp]:
    """Return for each row a power of two beyond its norm.

    Only every fourth: rows of one block often have the same, and one number scales them all.
    """
    squares = square_norms(rows)
    powers = np.asarray((np.frexp(squares)[1] + 1) // 2, np.intp)
    hard = np.flatnonzero(~((squares > _LEAST) & (squares < 1 / _LEAST)))
    if hard.size:  # too small or too large to be squared
        beyond = math.ceil(math.log2(max(1, rows.shape[1])) / 2)
        powers[hard] = np.frexp(largest_entries(rows[hard]))[1] + beyond
    powers += -powers % _EVERY
    return powers[:1] if (powers == powers[:1]).all() else powers


def _scaled(
    values: FloatArray, rows: NDArray[np.intp], columns: NDArray[Any], out: FloatArray
) -> None:
    """Write values times the powers of two of their rows and columns: what `ldexp` returns."""
    most = sum(int(np.abs(powers).max(initial=0)) for powers in (rows, columns))
    if most < 1022:  # a product with a normal float is rounded once, as there
        np.multiply(values, np.ldexp(1.0, rows)[:, None] * np.ldexp(1.0, columns), out=out)
    else:
        np.ldexp(values, rows[:, None] + columns, out=out)


def _halves(values: FloatArray, bits: int, out: Any = None) -> tuple[FloatArray, FloatArray]:
    """Return integers h, l with values = h + 2**-bits l + rounding; l is written in `values`."""
    high = np.rint(values, out=out)
    values -= high
    values *= 2.0**bits
    return high, rint(values)


def saturated(values: NDArray[Any]) -> NDArray[Any]:
    """Return values with the largest float in place of infinity.

    A finite row that overflows on its way would be an error in the next step, hence visible.
    """
    largest = np.finfo(values.dtype).max
    return np.asarray(np.clip(values, -largest, largest, out=values))
