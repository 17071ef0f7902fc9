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

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp.data.block_rows import (
    entrywise,
    largest_entries,
    rint,
    scale_rows,
    scaled_to_integers,
    spread,
    square_norms,
    times_powers,
    where_rows,
)
from skdp.data.blocks import Block
from skdp.data.scratch import Scratch

FloatArray = NDArray[np.float64]
# Finest unit of a row, in units of its largest norm: products with a public matrix of 26 bits, and
# sums of squares, then stay exact.
FINEST_UNIT = 2.0**-25
_EXACT = 2.0**52  # sums of squares of integers below this are exact in any order
_ROUGH = 2.0**20  # and those of fewer units than this, for each column, rounding may blur
_LENGTH_BITS = 19


class _ScratchOfThread(threading.local):
    """Arrays that each thread uses again: for whole blocks, and for their long rows."""

    def __init__(self) -> None:
        self.block = Scratch()
        self.long_rows = Scratch()
        self.mantissas = Scratch()


_SCRATCH = _ScratchOfThread()


def _mantissas(rows: Block) -> tuple[Block, FloatArray, NDArray[np.intc]]:
    """Write rows as 2**e times integers: (integers, exact squared norms, e). Bad rows become 0.

    The largest entry, the power of two and the integers depend on the row alone, and the squared
    norm of the integers stays below 2**53: nothing here depends on summation order. The next call
    of this thread overwrites dense integers.
    """
    bits = max(4, (51 - math.ceil(math.log2(max(2, rows.shape[1])))) // 2)
    out = None if sp.issparse(rows) else _SCRATCH.mantissas.shaped(rows.shape)
    largest = largest_entries(rows, out)
    good = np.isfinite(largest) & (largest > 0)
    exponents = np.where(good, np.frexp(np.where(good, largest, 1.0))[1], 0).astype(np.intc)
    integers = entrywise(rint, times_powers(where_rows(good, rows), bits - exponents, out))
    return integers, square_norms(integers), exponents - bits


def length_unit(n_features: int) -> float:
    """Return a unit in which most rows of entries about 1 are neither too long nor too short.

    A power of two, so that a row of length 1 has length 1: many lie at the end of an octave.
    """
    return math.ldexp(1.0, math.frexp(math.sqrt(n_features))[1] - _LENGTH_BITS)


def row_norms(rows: Block, unit: float = math.inf) -> FloatArray:
    """Norm of each row to a relative 1e-3 or better, from that row alone; bad rows have norm 0.

    Rows of many units are measured in whole units, which is faster; rows of few units, and rows
    too long for an exact sum of squares, in units of their own.
    """
    if not math.isfinite(unit):
        return _own_norms(rows)
    return _norms(rows, IntegerRows(math.inf, unit, reuse=True).unclipped(rows)[1], unit)


def _norms(rows: Block, squares: FloatArray, unit: float) -> FloatArray:
    """Return norms from those of integers; of rows for which these say little, from the rows."""
    norms = np.sqrt(squares) * unit
    hard = np.flatnonzero(~((squares > _ROUGH * rows.shape[1]) & (squares < _EXACT)))
    if hard.size:
        norms[hard] = _own_norms(rows if hard.size == rows.shape[0] else rows[hard])
    return np.asarray(norms)


def _own_norms(rows: Block) -> FloatArray:
    _, squares, exponents = _mantissas(rows)
    with np.errstate(over="ignore"):  # a norm beyond the largest float is above everything
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

    def with_norms(self, rows: Block) -> tuple[Block, FloatArray]:
        """Return the integer rows, and the norms of rows in this unit, as `row_norms` does."""
        Z, squares = self.unclipped(rows)
        norms = _norms(rows, squares, self.unit)
        return self._clipped(rows, Z, squares)[0], norms

    def unclipped(self, rows: Block) -> tuple[Block, FloatArray]:
        """Return rows of any length in whole units, and their squared norms."""
        with np.errstate(over="ignore", invalid="ignore"):
            Z = entrywise(self._rounded, rows)
            return Z, square_norms(Z)

    def _clipped(self, rows: Block, Z: Block, squares: FloatArray) -> tuple[Block, FloatArray]:
        bound = self.square_bound
        over = np.flatnonzero(~(squares <= bound))  # NaN counts as over
        if over.size:
            known = squares[over] < _EXACT  # else the sum of squares was not exact
            easy, hard = over[known], over[~known]
            lengths = np.sqrt(squares[easy]) * self.unit
            shrunk, squares[easy] = self._shrunk(self._copied(rows, easy), lengths)
            self._replace(Z, easy, shrunk)
            if hard.size:
                integers, exact, _ = _mantissas(rows[hard])
                lengths = np.sqrt(np.maximum(exact, 1.0))
                shrunk, squares[hard] = self._shrunk(integers, lengths)
                self._replace(Z, hard, shrunk)
        return Z, squares

    def _copied(self, rows: Block, which: NDArray[np.intp]) -> Block:
        if not self.reuse or sp.issparse(rows):
            return rows[which]
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
        Z = scaled_to_integers(rows, spread(aim / lengths, rows))
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


def as_int64(values: FloatArray) -> NDArray[np.int64]:
    """Round to int64, saturated: a deterministic map of one row's contribution."""
    return np.asarray(np.clip(np.rint(values), -(2.0**62), 2.0**62), dtype=np.int64)


def clip_rows(rows: Block, clip_norm: float) -> Block:
    """Scale float rows to norm at most `clip_norm` (epsilon is infinite: nothing is protected)."""
    if math.isinf(clip_norm):
        return rows
    norms = np.sqrt(square_norms(rows))
    return scale_rows(rows, np.minimum(1.0, clip_norm / np.maximum(norms, 1e-300)))


def row_map(clip_norm: float, unit: float, *, reuse: bool = True) -> Callable[[Block], Block]:
    """Return what clips rows to `clip_norm`: integers in units of `unit`, or floats at unit 0."""
    if unit == 0.0:
        return partial(clip_rows, clip_norm=clip_norm)
    return IntegerRows(clip_norm, unit, reuse)


def rows_and_squares(rows: Block, clip_norm: float, unit: float) -> tuple[Block, FloatArray]:
    """Return clipped rows as `row_map` makes them, and their squared norms."""
    if unit == 0.0:
        clipped = clip_rows(rows, clip_norm)
        return clipped, square_norms(clipped)
    return IntegerRows(clip_norm, unit, reuse=True).with_squares(rows)
