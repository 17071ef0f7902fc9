"""Queries on a matrix whose neighbours differ by a matrix of bounded norm: exact for any entries.

Notation: A is m x n; E = A - A' has norm at most s (frobenius, spectral), which `EntryUnit` turns
into bounds of products; s' is the power of two above s. Floats are no help here: entries of 1e15 s
would leave rounding errors of more than s in A X. So everything is in integers.

* An entry beyond 2**53 s' has float neighbours 2 s' away at least: there E is zero. Entries are cut
  at +-2**53 s', in both neighbours alike, and E is what it was. (A cut that moves E, as at s, does
  not contract the spectral norm.)
* Entries are rounded to multiples of a power of two, u = 2**-f s'. That moves each entry of E by at
  most u: E has norm s + sqrt(m n) u <= (1 + 2**-13) s for 2**f >= 2**14 sqrt(m n).
* X over the step of the release is rounded to 26 bits of its longest column. That is free, as X is
  public, but moves the norms of X by a factor of at most 1 + 2**-25 sqrt(size of X).
* Products are exact (see `skdp.data.digits`), and rounded down to whole steps at the end.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp.data.block_rows import entrywise
from skdp.data.digits import digit_bits, digits_of, floored, on_column_grid, products, split, stored
from skdp.privacy.gate.bounds import Bound, Bounded, PrivateQuery
from skdp.queries.entries import EntryUnit, cleaned

FloatArray = NDArray[np.float64]
_FLOAT_BITS = 53
_WIDER = (1 + 2.0**-13) * (1 + 1e-9)  # rounded entries, and norms of public matrices


def _moved(X: FloatArray) -> float:
    """Return by what factor rounding to 26 bits may move the norms of a public matrix."""
    return 1 + 2.0**-25 * math.sqrt(X.size)


class NormQuery(PrivateQuery):
    """Products of a private matrix with public ones.

    Parameters
    ----------
    A : array or sparse matrix of shape (m, n)
        The private matrix. Entries that are not numbers count as zero.
    unit : EntryUnit
        "frobenius" or "spectral".
    """

    def __init__(self, A: Any, unit: EntryUnit) -> None:
        self._raw = A
        self._digits: list[Any] = []
        self.unit = unit
        self.shape: tuple[int, int] = A.shape
        self._bits = digit_bits(max(self.shape))
        above = math.frexp(unit.sensitivity)[1]  # s' = 2**above
        self._largest = _power_of_two(_FLOAT_BITS + above)
        self._grid = above - 14 - math.ceil(math.log2(math.prod(self.shape)) / 2)  # u = 2**grid

    def _integers(self, values: FloatArray) -> FloatArray:
        """Return entries in multiples of u, as floats, which hold them exactly."""
        values = np.clip(values, -self._largest, self._largest)
        values *= 2.0 ** (-self._grid // 2)  # in two steps: 2**-grid may be beyond floats
        values *= 2.0 ** (-self._grid - -self._grid // 2)
        return np.asarray(np.rint(values, out=values))

    def _products(self, W: FloatArray, *, transpose: bool) -> list[Any]:
        """Return the products of the digits of A (or of A') with public integers."""
        if not self._digits:
            integers = entrywise(self._integers, cleaned(self._raw, self.unit))
            self._digits = split(integers, self._bits)
        return products([Z.T if transpose else Z for Z in self._digits], W)

    def _answer(
        self, X: FloatArray, U: FloatArray | None, *, transpose: bool
    ) -> Callable[[float], NDArray[Any]]:
        """Return what computes A X (or A'X), or U'A X, in whole steps."""

        def answer(step: float) -> NDArray[Any]:
            if step == 0.0:
                A = cleaned(self._raw, self.unit)
                product = (A.T if transpose else A) @ X
                return np.asarray(product if U is None else U.T @ product)
            mantissa, exponent = math.frexp(step)
            W, shift = on_column_grid(X / mantissa)
            shift += exponent - self._grid
            parts = self._products(W, transpose=transpose)
            if U is not None:
                left, bits = on_column_grid(U)
                shift += bits
                parts = [left.T @ digit for digit in digits_of(parts, self._bits)]
                parts = [part.astype(np.int64) for part in parts]
            return floored(parts, self._bits, shift)

        return answer

    def _product(self, name: str, X: FloatArray, *, transpose: bool) -> Bounded:
        X = np.asarray(X, np.float64)
        shape = (self.shape[1] if transpose else self.shape[0], X.shape[1])
        bound = Bound(name, shape, self.unit.product(X) * _moved(X) * _WIDER)
        return Bounded(bound, self._answer(X, None, transpose=transpose))

    def right(self, X: FloatArray) -> Bounded:
        """Return A X: ||E X||_F <= ||E||_F ||X||_2, and <= ||E||_2 ||X||_F."""
        return self._product("right_product", X, transpose=False)

    def left(self, U: FloatArray) -> Bounded:
        """Return A'U: the same bounds, as E' has the norms of E."""
        return self._product("left_product", U, transpose=True)

    def core(self, U: FloatArray, X: FloatArray) -> Bounded:
        """Return U'A X: a factor ||U||_2 more, or the norms of U and X the other way round."""
        U, X = np.asarray(U, np.float64), np.asarray(X, np.float64)
        l2 = self.unit.core(U, X) * _moved(U) * _moved(X) * _WIDER
        bound = Bound("core", (U.shape[1], X.shape[1]), l2)
        return Bounded(bound, self._answer(X, U, transpose=False))

    def square_sum(self) -> Bounded:
        """Return ||A||_F^2, which has no bound: for an infinite epsilon alone."""

        def answer(_: float) -> NDArray[Any]:
            return np.asarray(np.square(stored(cleaned(self._raw, self.unit))).sum())

        return Bounded(Bound("trace", (), math.inf), answer)


def _power_of_two(exponent: int) -> float:
    """Return 2**exponent, or the largest float where that is beyond them."""
    if exponent >= sys.float_info.max_exp:
        return sys.float_info.max
    return math.ldexp(1.0, exponent)
