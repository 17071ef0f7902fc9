"""Products of rows with a public matrix in which a row's result depends on that row alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp.data.block_rows import largest_entries, rint, times_powers

FloatArray = NDArray[np.float64]
_BLOCK = 2**18  # numbers of a block: about the second-level cache


def row_products(X: NDArray[Any], V: NDArray[Any]) -> FloatArray:
    """Return X V, each row of it a function of that row of X and of V, bit by bit.

    BLAS adds up in an order that depends on where a row stands, so with one row less the last bit
    of many rows of X @ V changes. A private step that is fitted on them would then see neighbours
    that differ in more than one row. Here rows and V are cut into high and low integers of b bits,
    d 4**b <= 2**53: a sum of d products is exact in every order. What is dropped is about d 4**-b
    of |x| |v| at most, 1e-11 for a thousand columns, and far less on average.
    """
    n, d = X.shape
    bits = (53 - math.ceil(math.log2(max(2, d)))) // 2
    V = np.asarray(V, np.float64)
    unit = np.frexp(np.linalg.norm(V, axis=0))[1]
    high, low = _halves(np.ldexp(V, bits - unit), bits)
    both = np.hstack([high, low])
    k = V.shape[1]
    out = np.empty((n, k))
    size = max(16, _BLOCK // max(1, d))
    # Fresh memory for each block costs as much as the products.
    scaled, whole = np.empty((2, min(n, size), d))
    with np.errstate(all="ignore"):  # as BLAS does
        for i in range(0, n, size):
            rows = np.asarray(X[i : i + size], np.float64)
            memory = scaled[: len(rows)]
            exponents = np.frexp(largest_entries(rows, memory))[1]
            values = times_powers(rows, bits - exponents, memory)
            first, second = _halves(values, bits, whole[: len(rows)])
            products = first @ both
            total = products[:, :k] + (products[:, k:] + second @ high) * 2.0**-bits
            _scaled(total, exponents, unit - 2 * bits, out[i : i + size])
    return out


def _scaled(
    values: FloatArray, rows: NDArray[np.intc], columns: NDArray[Any], out: FloatArray
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
