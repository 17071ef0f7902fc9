"""Queries on a matrix whose neighbours differ by a bounded change: exact for entries of any size.

Notation: A is m x n; E = A - A' is one entry (or pair) of at most s, or has norm at most s, by the
caller's contract, which `EntryUnit` turns into bounds of products; s' is the power of two above s.
Floats are no help here: entries of 1e15 s would leave rounding errors of more than s in A X. So
everything is in integers.

* An entry beyond 2**53 s' has float neighbours 2 s' away at least: there E is zero. Entries are cut
  at +-2**53 s', in both neighbours alike, and E is what it was. (A cut that moves E, as at s, does
  not contract the spectral norm.)
* Entries are rounded to multiples of a power of two, u = 2**-f s'. That moves each entry of E by at
  most u, and none where it is 0: E has norm s + sqrt(m n) u <= (1 + 2**-13) s for
  2**f >= 2**14 sqrt(m n). (A sum of n entries moves by n u, norms of n sums by n**1.5 u: mixed.)
* X over the step of the release is rounded to 26 bits of its longest column. That is free, as X is
  public, but moves its norms by a factor of at most 1 + 2**-25 sqrt(size of X): the longest row
  is no shorter than the longest column over sqrt(n), and its k entries move by 2**-26 of that
  column each. A second row may be far shorter: there the error is added (pairs).
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
from skdp.exceptions import PrivacyError
from skdp.privacy.gate.bounds import Bound, Bounded, PrivateQuery
from skdp.queries.entries import EntryUnit, cleaned

FloatArray = NDArray[np.float64]
_FLOAT_BITS = 53
_WIDER = (1 + 2.0**-13) * (1 + 1e-9)  # rounded entries, and norms of public matrices


def _moved(X: FloatArray, order: int = 2) -> float:
    """Return by what factor rounding to 26 bits may move the norms of a public matrix.

    Sums of absolute values of a row grow by as much times sqrt(k) at most.
    """
    columns = X.shape[1] if order == 1 else 1
    return 1 + 2.0**-25 * math.sqrt(X.size * columns)


def _row_error(X: FloatArray) -> float:
    """Return what rounding to 26 bits may add to the sum of absolute values of a row."""
    longest = float(np.linalg.norm(X, axis=0).max(initial=0.0))
    return float(2.0**-25 * X.shape[1] * longest)


class NormQuery(PrivateQuery):
    """Products of a private matrix with public ones.

    Parameters
    ----------
    A : array or sparse matrix of shape (m, n)
        The private matrix. Entries that are not numbers count as zero.
    unit : EntryUnit
        A unit whose entries have no bounds.
    """

    def __init__(self, A: Any, unit: EntryUnit) -> None:
        if unit.bounded:
            raise PrivacyError(f"{unit!r} has bounds of entries; use EntryQuery.")
        if unit.symmetric and A.shape[0] != A.shape[1]:
            raise ValueError(f"{unit.name!r} needs a square matrix. Got shape {A.shape} instead.")
        self._raw = A
        self._digits: list[Any] = []
        self.unit = unit
        self.shape: tuple[int, int] = A.shape
        self.n_features = self.shape[1]
        self._bits = digit_bits(max(self.shape))
        above = math.frexp(unit.sensitivity)[1]  # s' = 2**above
        self._largest = _power_of_two(_FLOAT_BITS + above)
        summed = math.log2(math.prod(self.shape)) * (0.75 if unit.name == "mixed" else 0.5)
        self._grid = above - 14 - math.ceil(summed)  # u = 2**grid

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
        l2, l1 = (self.unit.product(X, order) * _moved(X, order) for order in (2, 1))
        return Bounded(self._bound(name, shape, l2, l1), self._answer(X, None, transpose=transpose))

    def _bound(
        self, name: str, shape: tuple[int, int], l2: float, l1: float, symmetric: bool = False
    ) -> Bound:
        """Return a bound; an array of `size` numbers has an l1 norm of at most sqrt(size) l2."""
        l1 = min(l1, math.sqrt(math.prod(shape)) * l2)
        return Bound(name, shape, l2 * _WIDER, symmetric=symmetric, l1=l1 * _WIDER)

    def right(self, X: FloatArray) -> Bounded:
        """Return A X: see the table of `skdp.queries.entries`."""
        return self._product("right_product", X, transpose=False)

    def left(self, U: FloatArray) -> Bounded:
        """Return A'U: the same bounds, as E' has the norms of E (mixed: it is E)."""
        return self._product("left_product", U, transpose=True)

    def core(self, U: FloatArray, X: FloatArray) -> Bounded:
        """Return U'A X: a factor ||U||_2 more, or the norms of U and X the other way round."""
        U, X = np.asarray(U, np.float64), np.asarray(X, np.float64)
        l2, l1 = (
            self.unit.core(U, X, order) * _moved(U, order) * _moved(X, order) for order in (2, 1)
        )
        bound = self._bound("core", (U.shape[1], X.shape[1]), l2, l1)
        return Bounded(bound, self._answer(X, U, transpose=False))

    def ritz(self, X: FloatArray) -> Bounded:
        """Return X'A X of a symmetric A, of which the symmetric part is used."""
        X = np.asarray(X, np.float64)
        l2, l1 = (
            self.unit.ritz(X, order, _row_error(X)) * _moved(X, order) ** 2 for order in (2, 1)
        )
        bound = self._bound("ritz", (X.shape[1], X.shape[1]), l2, l1, symmetric=True)
        return Bounded(bound, self._answer(X, X, transpose=False))

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
