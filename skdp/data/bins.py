"""Counts of the entries of columns in public bins: parts of octaves, and steps from a centre.

A block is counted from public numbers alone, so that the work can travel. A row with a value that
is not finite adds nothing, nor does a group with one. A group has one number in each column: the
mean over its rows of what their entries count for, rounded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp.data.blocks import Repeated, Scratch
from skdp.data.views import Groups, group_sums, whole_groups

FloatArray = NDArray[np.float64]
_LOWEST, _HIGHEST = -60, 60  # octaves told apart; what lies outside counts for the outermost
_PARTS = 4  # equal parts of an octave
OCTAVE_BINS = _PARTS * (_HIGHEST - _LOWEST + 1)
FARTHEST = 64  # steps from the centre, to each side, that may be asked about
COUNTED = 2 * FARTHEST  # and that are told apart: a centre may move
PLACE_BINS = 2 * COUNTED + 2
# The leading bits of a float that is not negative, after one was taken off all of its bits, count
# the parts of octaves; what is equal to the centre wraps, and goes into a bin of its own.
_SHIFT = 52 - (_PARTS.bit_length() - 1)
_ONE, _BIN_OF_ONE = 1023 * _PARTS - 1, (1 - _LOWEST) * _PARTS - 1  # leading bits of 1; its bin
_BINS = np.clip(np.arange(2 ** (64 - _SHIFT)) - _ONE + _BIN_OF_ONE, 0, OCTAVE_BINS - 1)
_BINS[-1] = NOWHERE = OCTAVE_BINS
_BEFORE_FIRST = _ONE - _BIN_OF_ONE - 1  # leading bits just below the first bin
# Added to a whole number that is a float, it leaves that number in the low bits.
_SHIFTED = 1.5 * 2.0**52
_BITS_OF_SHIFTED = int(np.array(_SHIFTED).view(np.int64))


class _OctaveScratch(threading.local):
    """What lies between a block and its counts."""

    def __init__(self) -> None:
        self.numbers = Scratch()
        self.center, self.octaves = Repeated(), Repeated()
        self.per_step, self.places = Repeated(), Repeated()


_OCTAVE_SCRATCH = _OctaveScratch()


@dataclass(frozen=True)
class OctavesOfBlock:
    """The counts of one block, from public numbers alone, so that it can travel."""

    center: FloatArray

    def __call__(self, block: Any) -> NDArray[np.int64]:
        """Return how many entries of the block lie in each part of an octave, by column."""
        rows = whole_groups(block)
        if isinstance(rows, Groups):
            return self._of_groups(rows)
        if sp.issparse(rows):
            return _counted_stored(rows, self._bins_at, OCTAVE_BINS + 1)[:, :OCTAVE_BINS]
        numbers = _OCTAVE_SCRATCH.numbers.shaped(rows.shape)
        about = _about(rows, _center_of(rows, self.center), numbers)
        distances = np.abs(about, out=numbers)
        bins = _leading_bits(distances, distances)
        np.clip(bins, _BEFORE_FIRST, _BEFORE_FIRST + OCTAVE_BINS, out=bins)
        n, d = rows.shape
        first = (OCTAVE_BINS + 1) * np.arange(d) - _BEFORE_FIRST
        bins += _OCTAVE_SCRATCH.octaves.rows(first, n)
        counts = _by_column(bins, OCTAVE_BINS + 1)
        below = counts[:, 0]
        if below.any():  # numbers below the first bin count for it, those at the centre do not
            counts[:, 1] += below - np.count_nonzero(rows == self.center, axis=0)
        return counts[:, 1:]

    def _of_groups(self, groups: Groups) -> NDArray[np.int64]:
        octaves = octaves_of(groups.rows, self.center)
        somewhere = octaves < NOWHERE
        totals = group_sums(np.where(somewhere, octaves, 0), groups)
        counts = group_sums(somewhere.astype(np.int64), groups)
        mean = np.rint(totals / np.maximum(counts, 1)).astype(np.intp)
        counted = _counted(np.where(counts > 0, mean, NOWHERE), OCTAVE_BINS + 1)
        return counted[:, :OCTAVE_BINS]

    def _bins_at(self, values: FloatArray, columns: NDArray[Any]) -> NDArray[np.intp]:
        return octaves_of(values, self.center[columns])


@dataclass(frozen=True)
class PlacesOfBlock:
    """The counts of one block, from public numbers alone, so that it can travel."""

    center: FloatArray
    step: FloatArray

    def __call__(self, block: Any) -> NDArray[np.int64]:
        """Return how many entries of the block lie in each step, by column."""
        rows = whole_groups(block)
        if isinstance(rows, Groups):
            totals = group_sums(places_of(rows.rows, self.center, self.step), rows)
            return _counted(np.rint(totals / rows.each).astype(np.intp), PLACE_BINS)
        if sp.issparse(rows):
            return _counted_stored(rows, self._bins_at, PLACE_BINS)
        n, d = rows.shape
        center, numbers = _center_of(rows, self.center), _OCTAVE_SCRATCH.numbers.shaped(rows.shape)
        exact = _are_powers_of_two(self.step)  # then a product is as good as the quotient
        inverse = _OCTAVE_SCRATCH.per_step.rows(1 / self.step, n) if exact else None
        steps = _places(rows, center, self.step, numbers, inverse=inverse)
        first = _SHIFTED + COUNTED + PLACE_BINS * np.arange(d)
        steps += _OCTAVE_SCRATCH.places.rows(first, n)
        bins = steps.view(np.int64)
        bins -= _BITS_OF_SHIFTED
        return _by_column(bins, PLACE_BINS)

    def _bins_at(self, values: FloatArray, columns: NDArray[Any]) -> NDArray[np.intp]:
        return places_of(values, self.center[columns], self.step[columns], COUNTED)


def octaves_of(rows: FloatArray, center: FloatArray) -> NDArray[np.intp]:
    """Return the number of the part of an octave of each |x - center|, `NOWHERE` for 0."""
    return bins_of(np.abs(rows - center, dtype=np.float64))


def places_of(
    rows: FloatArray, center: FloatArray, step: FloatArray, farthest: int = FARTHEST
) -> NDArray[np.intp]:
    """Return the number of the step that each entry lies in; entries beyond lie in the outermost.

    To each side `farthest` are told apart.
    """
    steps = _places(rows, center, step, np.empty(rows.shape), farthest)
    return np.asarray(steps + COUNTED, np.intp)


def _places(
    rows: FloatArray,
    center: FloatArray,
    step: FloatArray,
    out: FloatArray,
    farthest: int = COUNTED,
    inverse: FloatArray | None = None,
) -> FloatArray:
    """Return the steps from the centre in which entries lie.

    `inverse` is 1/step, where products are as exact as quotients.
    """
    with np.errstate(over="ignore"):
        about = _about(rows, center, out)
        if inverse is None:
            steps = np.divide(about, step, out=out)
        else:
            steps = np.multiply(about, inverse, out=out)
    return np.clip(np.ceil(steps, out=steps), -farthest, farthest + 1, out=steps)


def _are_powers_of_two(step: FloatArray) -> bool:
    """Whether all are, and so far from the ends of the range that their inverses are, too."""
    digits, exponents = np.frexp(step)
    return bool(np.all(digits == 0.5) and np.all(np.abs(exponents) < 1000))


def _about(rows: FloatArray, center: FloatArray, out: FloatArray) -> FloatArray:
    """Return rows minus a public centre: as they are, where it is 0."""
    return np.subtract(rows, center, out=out) if center.any() else rows


def _center_of(rows: FloatArray, center: FloatArray) -> FloatArray:
    """Return a centre for each of the rows, or for all if it is 0."""
    return _OCTAVE_SCRATCH.center.rows(center, len(rows)) if center.any() else center


def bins_of(sizes: FloatArray) -> NDArray[np.intp]:
    """Return the bin of each size: that of the threshold which ends it."""
    return np.asarray(_BINS.take(_leading_bits(sizes, np.empty(sizes.shape))))


def _leading_bits(sizes: FloatArray, out: FloatArray) -> NDArray[np.int64]:
    """Return what stands for a size in the table of bins, in the memory of `out`: -1 for 0."""
    bits = np.subtract(sizes.view(np.int64), 1, out=out.view(np.int64))
    bits >>= _SHIFT
    return bits


def _counted(bins: NDArray[np.intp], size: int) -> NDArray[np.int64]:
    """Count each column by itself."""
    return _by_column(bins + size * np.arange(bins.shape[1]), size)


def _by_column(numbers: NDArray[np.intp], size: int) -> NDArray[np.int64]:
    """Count numbers, of which each column has so many of its own."""
    d = numbers.shape[1]
    counts = np.bincount(numbers.ravel(), minlength=d * size)
    return np.asarray(counts.reshape(d, size), np.int64)


def _counted_stored(
    rows: Any, bins_at: Callable[[FloatArray, NDArray[Any]], NDArray[np.intp]], size: int
) -> NDArray[np.int64]:
    """Count the stored entries of each column by their bins, and all others as zeros."""
    n, d = rows.shape
    columns = np.asarray(rows.indices, np.intp)
    counts = np.bincount(columns * size + bins_at(rows.data, columns), minlength=d * size)
    counts = counts.reshape(d, size)
    every = np.arange(d)
    counts[every, bins_at(np.zeros(d), every)] += n - np.bincount(columns, minlength=d)
    return np.asarray(counts, np.int64)
