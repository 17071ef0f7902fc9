"""Dense records x beside their own covariances L, which contribute L^-1 x; residuals are of x.

Notation and exactness as in `skdp.data.record_forms`. E <x, H> L^-1 x = H for every H, so that a
mean of contributions points to the error of M, whatever the covariances are. Each contribution is
computed from its record and covariance alone, number by number: nothing goes through LAPACK, whose
bits depend on what else is there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skdp.data.block_rows import largest_entries
from skdp.data.record_forms import (
    DenseRecords,
    Frame,
    Pair,
    record_bits,
    record_units,
    rounded,
)
from skdp.data.zipped import Zipped

FloatArray = NDArray[np.float64]
Arrays = Mapping[str, NDArray[Any]]
# Columns of a record: variances (one, or of each entry) or a covariance; or two whose product it is
COVARIANCES = ("covariance", "row_covariance", "column_covariance")
_AT_ONCE = 2**15  # numbers of covariances that fit a cache together


def inverses(covariances: FloatArray) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Return the inverse of each matrix, and which have positive pivots (all, if definite)."""
    A = np.array(covariances, np.float64)
    good = np.ones(len(A), bool)
    at_once = max(1, _AT_ONCE // max(1, A.shape[1] ** 2))
    with np.errstate(all="ignore"):
        for start in range(0, len(A), at_once):
            some = slice(start, start + at_once)
            good[some] = _invert(A[some])
    return A, good


def _invert(A: FloatArray) -> NDArray[np.bool_]:
    """Invert some matrices in place, by Gauss and Jordan without exchanges."""
    good, products = np.ones(len(A), bool), np.empty_like(A)
    for i in range(A.shape[1]):
        pivot, column, row = A[:, i, i].copy(), A[:, :, i].copy(), A[:, i].copy()
        good &= ~(pivot <= 0)
        row[:, i] = 1.0
        row /= pivot[:, None]
        A[:, :, i] = 0.0
        np.multiply(column[:, :, None], row[:, None, :], out=products)
        A -= products
        A[:, i] = row
    return good


def _traces(matrices: FloatArray) -> FloatArray:
    return np.asarray(np.einsum("ijj->i", matrices))


def read_covariances(columns: Arrays, shape: tuple[int, int]) -> Inverted:
    """Invert the covariances of some records, in the form in which they are given."""
    if "covariance" in columns:
        given = [np.asarray(columns["covariance"], np.float64)]
        sizes: tuple[int, ...] = (math.prod(shape),)
    else:
        given, sizes = [np.asarray(columns[name], np.float64) for name in COVARIANCES[1:]], shape
    with np.errstate(all="ignore"):
        if given[0].ndim < 3:
            entries = given[0].reshape(len(given[0]), -1)
            precision = np.mean(1 / entries, axis=1)
            return Inverted([1 / entries], precision, precision * np.mean(entries, axis=1))
        found = [inverses(part)[0] for part in given]
        precision = spread = np.ones(len(given[0]))
        for part, inverse, d in zip(given, found, sizes, strict=True):
            own = _traces(inverse) / d
            precision, spread = precision * own, spread * own * _traces(part) / d
        return Inverted(found, precision, spread)


class Inverted(NamedTuple):
    """Inverses of covariances L, tr(L^-1)/p, and that times tr(L)/p: 1 if all entries are alike."""

    inverses: list[FloatArray]
    precision: FloatArray
    spread: FloatArray

    def times(self, rows: FloatArray, shape: tuple[int, int]) -> FloatArray:
        """Return L^-1 x of each record."""
        first = self.inverses[0]
        if first.ndim < 3:
            return np.asarray(rows * first)
        if len(self.inverses) == 1:
            return np.asarray(np.einsum("ijk,ik->ij", first, rows))
        half = np.einsum("ijk,ikl->ijl", first, rows.reshape(-1, *shape))
        return np.asarray(np.einsum("ijk,ikl->ijl", half, self.inverses[1]).reshape(rows.shape))


@dataclass(frozen=True)
class KnownRecords(DenseRecords):
    """Records x in dense rows that contribute `gain` L^-1 x, L the covariance beside each.

    `gain` is a public power of two, so that contributions are as large as whitened records.
    """

    gain: float = 1.0
    surveyed: ClassVar[tuple[str, ...]] = ("contributed", "precision", "spread")

    def survey(self, block: Zipped) -> tuple[FloatArray, ...]:
        """Return units and norms of the contributions, and what is kept of each record."""
        rows = np.asarray(block.rows, np.float64)
        known = read_covariances(block.columns, self.shape)
        with np.errstate(all="ignore"):
            contributed = known.times(rows, self.shape)
        units, norms = super().survey(Zipped(contributed, block.columns))
        good = self._units(rows) > 0
        numbers = (contributed, known.precision, known.spread)
        return np.where(good, units, 0.0), np.where(good, norms, 0.0), *numbers

    def _units(self, rows: Any) -> FloatArray:
        return record_units(largest_entries(rows), record_bits(math.prod(self.shape)))

    def _contributed(self, block: Zipped) -> Zipped:
        return Zipped(block.columns["contributed"] * self.gain, block.columns)

    def tangent(self, block: Zipped, frame: Frame) -> Pair:
        """Return an upper bound of the norm of P_T of a contribution, and <x, M>."""
        sizes, _ = super().tangent(self._contributed(block), frame)
        units = self._units(block.rows)
        return sizes, self.inner(rounded(block.rows, units), units, frame)

    def weighted(self, block: Zipped) -> FloatArray:
        """Return the sum of weighted contributions, flat: exact for integer weights."""
        return super().weighted(self._contributed(block))
