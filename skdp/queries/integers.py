"""The row map: a row becomes integers that depend on that row alone, with a norm checked exactly.

Nothing here may depend on where a row stands: norms never go through BLAS, whose bits do, and
sums of squares are compared only where they are exact integers.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp.data.blocks import Block, Scratch

__all__ = [
    "FINEST_UNIT",
    "IntegerRows",
    "as_int64",
    "clip_rows",
    "dense",
    "rint",
    "row_map",
    "row_norms",
    "scaled_to_integers",
    "square_norms",
]

FloatArray = NDArray[np.float64]
# Finest unit of a row, in units of its largest norm: products with a public matrix of 26 bits, and
# sums of squares, then stay exact.
FINEST_UNIT = 2.0**-25
_EXACT = 2.0**52  # sums of squares of integers below this are exact in any order


class _ScratchOfThread(threading.local):
    """Arrays that each thread uses again: for whole blocks, and for their long rows."""

    def __init__(self) -> None:
        self.block = Scratch()
        self.long_rows = Scratch()


_SCRATCH = _ScratchOfThread()


def square_norms(rows: Block) -> FloatArray:
    """Squared norm of each row. Exact, in any order, where entries are integers and it is < 2**53.

    Never through BLAS, whose bits depend on where a row stands in the block.
    """
    if not sp.issparse(rows):
        return np.asarray(np.einsum("ij,ij->i", rows, rows))
    return _sums_by_row(rows.data * rows.data, rows.indptr)


def _sums_by_row(values: FloatArray, indptr: NDArray[Any]) -> FloatArray:
    out = np.zeros(len(indptr) - 1)
    filled = np.flatnonzero(indptr[1:] > indptr[:-1])
    if filled.size:
        out[filled] = np.add.reduceat(values, indptr[filled])
    return out


def _take(rows: Block, which: NDArray[np.intp]) -> Block:
    return rows[which]


def _scale_rows(rows: Block, factors: FloatArray) -> Block:
    if not sp.issparse(rows):
        return rows * factors[:, None]
    spread = np.repeat(factors, np.diff(rows.indptr))
    return sp.csr_array((rows.data * spread, rows.indices, rows.indptr), shape=rows.shape)


def _scale_in_place(rows: Block, factors: FloatArray) -> Block:
    if sp.issparse(rows):
        return _scale_rows(rows, factors)
    rows *= factors[:, None]
    return rows


def rint(x: FloatArray) -> FloatArray:
    """Round in place."""
    return np.asarray(np.rint(x, out=x))


def dense(matrix: Any) -> FloatArray:
    """Return a matrix as an array."""
    return np.asarray(matrix.toarray() if sp.issparse(matrix) else matrix)


def scaled_to_integers(rows: Block, scale: float) -> Block:
    """Scale rows and round them, in place."""
    values = rows.data if sp.issparse(rows) else rows
    values *= scale
    rint(values)
    return rows


def _apply(function: Callable[..., Any], rows: Block) -> Block:
    if not sp.issparse(rows):
        return function(rows)
    return sp.csr_array((function(rows.data), rows.indices, rows.indptr), shape=rows.shape)


def _largest(rows: Block) -> FloatArray:
    if not sp.issparse(rows):
        return np.asarray(np.abs(rows).max(axis=1, initial=0.0))
    out = np.zeros(rows.shape[0])
    filled = np.flatnonzero(rows.indptr[1:] > rows.indptr[:-1])
    if filled.size:
        out[filled] = np.maximum.reduceat(np.abs(rows.data), rows.indptr[filled])
    return out


def _mantissas(rows: Block) -> tuple[Block, FloatArray, NDArray[np.intc]]:
    """Write rows as 2**e times integers: (integers, exact squared norms, e). Bad rows become 0.

    The largest entry, the power of two and the integers depend on the row alone, and the squared
    norm of the integers stays below 2**53: nothing here depends on summation order.
    """
    bits = max(4, (51 - math.ceil(math.log2(max(2, rows.shape[1])))) // 2)
    largest = _largest(rows)
    good = np.isfinite(largest) & (largest > 0)
    exponents = np.where(good, np.frexp(np.where(good, largest, 1.0))[1], 0).astype(np.intc)
    shift = bits - exponents
    if sp.issparse(rows):
        counts = np.diff(rows.indptr)
        data = np.where(np.repeat(good, counts), rows.data, 0.0)
        data = np.rint(np.ldexp(data, np.repeat(shift, counts)))
        integers = sp.csr_array((data, rows.indices, rows.indptr), shape=rows.shape)
    else:
        integers = np.rint(np.ldexp(np.where(good[:, None], rows, 0.0), shift[:, None]))
    return integers, square_norms(integers), exponents - bits


def row_norms(rows: Block, unit: float = math.inf) -> FloatArray:
    """Norm of each row to a relative 1e-3 or better, from that row alone; bad rows have norm 0.

    Rows of many units are measured in whole units, which is faster; rows of few units, and rows
    too long for an exact sum of squares, in units of their own.
    """
    squares = np.zeros(rows.shape[0])
    if math.isfinite(unit):
        with np.errstate(over="ignore", invalid="ignore"):
            squares = square_norms(_apply(IntegerRows(math.inf, unit, reuse=True)._rounded, rows))
    norms = np.sqrt(squares) * unit if math.isfinite(unit) else squares
    hard = np.flatnonzero(~((squares > 2.0**32) & (squares < _EXACT)))
    if hard.size:
        _, own, exponents = _mantissas(_take(rows, hard))
        with np.errstate(over="ignore"):  # a norm beyond the largest float is above everything
            norms[hard] = np.ldexp(np.sqrt(own), exponents)
    return np.asarray(norms)


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
        bound = self.square_bound
        with np.errstate(over="ignore", invalid="ignore"):
            Z = _apply(self._rounded, rows)
            squares = square_norms(Z)
        over = np.flatnonzero(~(squares <= bound))  # NaN counts as over
        if over.size:
            known = squares[over] < _EXACT  # else the sum of squares was not exact
            easy, hard = over[known], over[~known]
            lengths = np.sqrt(squares[easy]) * self.unit
            shrunk, squares[easy] = self._shrunk(self._copied(rows, easy), lengths)
            self._replace(Z, easy, shrunk)
            if hard.size:
                integers, exact, _ = _mantissas(_take(rows, hard))
                lengths = np.sqrt(np.maximum(exact, 1.0))
                shrunk, squares[hard] = self._shrunk(integers, lengths)
                self._replace(Z, hard, shrunk)
        return Z, squares

    def _copied(self, rows: Block, which: NDArray[np.intp]) -> Block:
        if not self.reuse or sp.issparse(rows):
            return _take(rows, which)
        out = _SCRATCH.long_rows.shaped((which.size, rows.shape[1]))
        return np.take(rows, which, axis=0, out=out, mode="clip")  # else it takes a buffer

    def _rounded(self, x: FloatArray) -> FloatArray:
        out = _SCRATCH.block.shaped(x.shape) if self.reuse and x.ndim == 2 else None
        scaled = np.multiply(x, 1.0 / self.unit, out=out)
        return np.asarray(np.rint(scaled, out=scaled))

    def _shrunk(self, rows: Block, lengths: FloatArray) -> tuple[Block, FloatArray]:
        """Scale rows of given lengths (each from its row alone) down to the bound, in place.

        Returns integer rows and their exact squared norms.
        """
        bound, radius = self.square_bound, math.sqrt(self.square_bound)
        # Rounding moves a length by .6 of a unit, twice, and its square by d/12: aim below the
        # bound, so that few rows need truncation, which shrinks every entry.
        aim = max(radius - 2.5 - rows.shape[1] / (24 * max(radius, 1.0)), 0.875 * radius)
        Z = _apply(rint, _scale_in_place(rows, aim / lengths))
        squares = square_norms(Z)
        over = np.flatnonzero(squares > bound)
        if over.size:
            smaller = radius / np.sqrt(squares[over]) * (1 - 2.0**-40)
            truncated = _apply(np.trunc, _scale_rows(_take(Z, over), smaller))
            kept = (square_norms(truncated) <= bound).astype(np.float64)
            self._replace(Z, over, _scale_rows(truncated, kept))
            squares[over] = square_norms(truncated) * kept
        return Z, squares

    @staticmethod
    def _replace(Z: Block, which: NDArray[np.intp], rows: Block) -> None:
        if not sp.issparse(Z):
            Z[which] = rows
            return
        counts = Z.indptr[which + 1] - Z.indptr[which]
        starts = np.repeat(Z.indptr[which] - rows.indptr[:-1], counts)
        Z.data[starts + np.arange(rows.data.size)] = rows.data


def as_int64(values: FloatArray) -> NDArray[np.int64]:
    """Round to int64, saturated: a deterministic map of one row's contribution."""
    return np.asarray(np.clip(np.rint(values), -(2.0**62), 2.0**62), dtype=np.int64)


def clip_rows(rows: Block, clip_norm: float) -> Block:
    """Scale float rows to norm at most `clip_norm` (epsilon is infinite: nothing is protected)."""
    if math.isinf(clip_norm):
        return rows
    norms = np.sqrt(square_norms(rows))
    return _scale_rows(rows, np.minimum(1.0, clip_norm / np.maximum(norms, 1e-300)))


def row_map(clip_norm: float, unit: float) -> Callable[[Block], Block]:
    """Return what clips rows to `clip_norm`: integers in units of `unit`, or floats at unit 0."""
    if unit == 0.0:
        return partial(clip_rows, clip_norm=clip_norm)
    return IntegerRows(clip_norm, unit, reuse=True)
