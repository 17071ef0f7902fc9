"""The scale of private numbers, from few noisy ranks. Everything but the ranks is free.

A rank is the noisy sum, over the numbers that are not zero, of 1/2 below a threshold and -1/2 above
it. The threshold is always near the median of what the released ranks leave likely, log2 bin by
log2 bin: six of them find one log2 bin among ninety. What they leave likely also says how sure
that is: a doubt that is public. Ties go downwards: clipping at a level that is too low shortens
signal and noise alike, one that is too high drowns the signal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from skdp._limits import CLEAR, NEGLIGIBLE
from skdp.answer import Answer

# What noisy ranks leave likely of a median, step by step of a grid. Pure and public.


FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]
_FARTHEST = 46  # log2 bins: a median of 1e-12 or 1e12, and a little more
_POWERS = np.ldexp(1.0, np.arange(-_FARTHEST, _FARTHEST + 1))
QUESTIONS = math.ceil(math.log2(len(_POWERS)))  # as many as halving takes
_NEAR = 2  # log2 bins that hold the middle half of what is likely of a median that was found
_SCATTER = (0.5, 2.0, 6.0)  # of columns about their common scale, in log2 bins; of units about 1
_ORDER = (0.5, 0.25, 0.75)  # parts of the posterior: the first that was not asked about
SMALLEST = float(_POWERS[0])
_LEAST = math.log(NEGLIGIBLE)  # smaller likelihoods are slow and say no more
# Deviations: a rank says on which side of a threshold the median lies. At 2 the fewest rows that
# show one lose .08 of R2, by columns found where they are not.
_SIGNIFICANT_RANK = 3.0


def _normalised(rows: FloatArray) -> FloatArray:
    """Divide rows by their sums, in place."""
    rows /= rows.sum(axis=1, keepdims=True)
    return rows


class Likelihood:
    """What noisy ranks leave likely of one number in each column: cells between public points.

    Parameters
    ----------
    points : array of shape (d, m)
        Upwards in each column. Cell i ends at point i; the last cell lies beyond all of them.
    prior : array of shape (m + 1,)
        Of the cells.
    kinds : sequence of int
        How many columns are of each kind, in their order: those of one share what they show. They
        scatter about a common place, nobody knows how far.
    """

    def __init__(self, points: FloatArray, prior: FloatArray, kinds: Sequence[int] = ()) -> None:
        d = len(points)
        self.points, self._prior, self.kinds = points, prior / prior.sum(), kinds
        self._set(np.repeat(self._prior[None], d, axis=0))
        self.lowest, self.highest, self.noise_scale = np.zeros(d), np.zeros(d), 0.0
        self._logs, self._possible = np.zeros(self.posterior.shape), np.ones(1)
        self._columns, self._cells = np.arange(d), np.arange(len(prior))
        self._known = np.zeros(points.shape, bool)
        self._kernels: FloatArray | None = None
        if kinds and d > 1:
            self._kernels, self._to_cells = _kernels(len(prior))
            self._log_priors = np.tile(np.log(self._prior), len(_SCATTER))
            self._of_kinds = np.repeat(np.eye(len(kinds)), kinds, axis=1)

    def _set(self, posterior: FloatArray) -> None:
        self.posterior, self._reached = posterior, posterior.cumsum(axis=1)

    def search(self, ask: AsksGrid, questions: int, share: float) -> Likelihood:
        """Ask about the median of what is likely, a fixed number of times.

        At the very median an answer is that of an empty column: no point is asked about twice, and
        what lies next to a known one says little. Where all parts are known, the next point is.
        """
        columns, order, last = self._columns, np.array(_ORDER)[:, None], self.points.shape[1] - 1
        for _ in range(questions):
            near = np.minimum((self._reached[:, None] < order).sum(axis=2), last)
            off = np.abs(self._cells[:-1] - near[:, :1]) + self._cells[-1] * self._known
            near = np.concatenate((near, off.argmin(axis=1)[:, None]), axis=1)
            which = near[columns, self._known[columns[:, None], near].argmin(axis=1)]
            self._known[columns, which] = True
            self._learn(which, ask.ranks(which, share=share / questions))
        return self

    def _learn(self, which: IntArray, answer: Answer) -> None:
        self.noise_scale = max(answer.noise_scale, 0.01)  # of a number: no noise divides by 0
        z = answer.value / self.noise_scale
        self.lowest, self.highest = np.minimum(self.lowest, z), np.maximum(self.highest, z)
        below, above = log_ndtr((z, -z)) + z**2 / 2
        self._logs += np.where(self._cells <= which[:, None], below[:, None], above[:, None])
        self._update()

    def _update(self) -> None:
        """Of numbers that are many or few, or none to be seen: these add as much to each cell."""
        most = self._logs.max(axis=1, keepdims=True)
        likelihood = np.exp(np.maximum(self._logs - most, _LEAST))
        likelihood += np.exp(np.maximum(np.minimum(-most, 0), _LEAST))
        likelihood *= self._possible
        prior = self._prior
        if self._kernels is not None:
            totals = likelihood @ self._kernels
            logs = self._of_kinds @ np.log(totals) + self._log_priors
            weights = _normalised(np.exp(logs - logs.max(axis=1, keepdims=True)))
            prior = (self._of_kinds.T @ weights / totals) @ self._to_cells
        self._set(_normalised(likelihood * prior))

    def follow(self, before: Likelihood, where: NDArray[np.bool_]) -> None:
        """Take over what was learnt of the same cells of some columns."""
        self._logs = np.where(where[:, None], before._logs, self._logs)
        self.lowest = np.where(where, before.lowest, 0.0)
        self.highest = np.where(where, before.highest, 0.0)

    def exclude(self, low: FloatArray) -> None:
        """Take cells for next to impossible that end below a step from the middle."""
        steps = self._cells - self.points.shape[1] // 2
        self._possible = np.where(steps < low[:, None], NEGLIGIBLE, 1.0)
        self._update()

    def cell(self, q: float) -> IntArray:
        """Return the cell of each column in which q of the posterior is reached."""
        return np.asarray((self._reached < q).sum(axis=1))

    def low_end(self, q: float) -> FloatArray:
        """Return where that cell begins."""
        return np.asarray(self.points[self._columns, np.maximum(self.cell(q) - 1, 0)])

    def high_end(self, q: float) -> FloatArray:
        """Return where that cell ends: entries that equal it are counted in."""
        last = self.points.shape[1] - 1
        return np.asarray(self.points[self._columns, np.minimum(self.cell(q), last)])

    def found(self, alone: bool = False) -> NDArray[np.bool_]:
        """Return whether little doubt is left about the cell, or clear ranks lie on both sides.

        Unless it is `alone` a column without a rank clear of its noise has the doubts of others.
        """
        low, high = self.lowest < -_SIGNIFICANT_RANK, self.highest > _SIGNIFICANT_RANK
        narrow = self.cell(0.75) - self.cell(0.25) <= _NEAR
        return np.asarray(narrow & (low | high | alone) | low & high)

    def enough(self, weight: float = 1.0) -> int:
        """Return about how many numbers show their median: each half of them must be clear.

        `weight` is what ranks were multiplied by.
        """
        return math.ceil(2 * CLEAR * self.noise_scale / weight)

    def zoomed(self, cells: int = 64) -> Likelihood:
        """Return the same in cells that are about equally likely, between round numbers.

        Half of a cell is left out at either end: what may as well be 0 is 0.
        """
        q = np.arange(cells + 1) / cells
        q[-1] = 2.0
        low, high = self.low_end(0.5 / cells)[:, None], self.high_end(1 - 0.5 / cells)[:, None]
        beyond = np.hstack([self.points[:, :1], self.points, self.points[:, -1:]])
        reached = np.hstack([np.zeros((len(beyond), 1)), self._reached])
        reached += 1e-12 * np.arange(beyond.shape[1])
        between = [np.interp(q, p, edges) for p, edges in zip(reached, beyond, strict=True)]
        at = np.minimum(np.maximum(between, low), high)
        return Likelihood(roundest(at[:, :-1], at[:, 1:]), np.ones(cells + 1))


def roundest(low: FloatArray, high: FloatArray) -> FloatArray:
    """Return the number of fewest digits in (low, high]."""
    least = np.maximum(np.abs(high) * 2.0**-50, 1e-300)
    step = np.exp2(np.ceil(np.log2(np.maximum(high - low, least))))
    number = np.floor(high / step) * step
    number = np.where(number > low, number, np.floor(high / (step / 2)) * step / 2)
    return np.asarray(np.where((number > low) & (number <= high), number, high))


def log2_bins(unit: FloatArray, kinds: Sequence[int] = (1,)) -> Likelihood:
    """Return sizes in each column, powers of two in these units: half of the prior is mild."""
    mild = np.exp(-np.abs(np.arange(-_FARTHEST, _FARTHEST + 2) - 0.5) / _SCATTER[-1])
    prior = 0.5 * mild / mild.sum() + 0.5 / len(mild)
    return Likelihood(unit[:, None] * _POWERS, prior, kinds)


def steps(radius: FloatArray, cells: int = 64) -> Likelihood:
    """Return numbers in each column that are at most so far from 0, or a little farther."""
    points = radius[:, None] * np.linspace(-1, 1, cells + 1)
    points[:, [0, -1]] *= 33 / 32  # distances from 0 were counted up to a 128th farther
    return Likelihood(points, np.ones(cells + 2))


@lru_cache
def _kernels(cells: int) -> tuple[FloatArray, FloatArray]:
    """P(cell of a column | common cell), in columns and in rows; one in ten may lie anywhere."""
    gaps = np.abs(np.subtract.outer(np.arange(cells), np.arange(cells)))
    near = [np.exp(-gaps / spread) for spread in _SCATTER]
    kernels = np.hstack([0.9 * k / k.sum(axis=0) + 0.1 / cells for k in near])
    return kernels, np.ascontiguousarray(kernels.T)


_LEVELS, _LEVELS_PER_DOUBLING = 80, 4  # of a clip level, downwards
# Clip levels upwards, in log2 bins: steps are wide where few rows are left.
_RAISES = (*np.arange(0, 6, 0.5), 6.5, 7.5, 9.0, 10.5)


# (threshold, share=...) -> the noisy number above it; or half of those up to the threshold that are
# not zero, minus half of those above it.
Asks = Callable[..., Answer]


class AsksGrid(Protocol):
    """Noisy ranks of the points of a public grid, one of each column."""

    def ranks(self, which: IntArray, *, share: float) -> Answer:
        """Return half of the entries at most a point minus half of those above, by column."""


class Scale(NamedTuple):
    """A released scale.

    Attributes
    ----------
    value : float
        A number just above the median; where it was not found a low guess.
    found : bool
        Whether the released ranks leave little doubt.
    needed : int
        About how many numbers that are not zero would show it, under this noise.
    """

    value: float
    found: bool
    needed: int


class _Alone(NamedTuple):
    """Numbers whose ranks are asked for by threshold, as the only column of a grid."""

    rank: Asks
    points: FloatArray

    def ranks(self, which: IntArray, *, share: float) -> Answer:
        """Return the rank of one point."""
        answer = self.rank(float(self.points[0, which[0]]), share=share)
        return Answer(np.atleast_1d(answer.value), answer.noise_scale)


def find_scale(rank: Asks, share: float, *, near: float = 1.0) -> Scale:
    """Return the scale of some private numbers, from ranks of equal shares.

    All but one find its log2 bin, and the last one where it lies there. `near` is a public guess,
    from which half of the prior falls off by six log2 bins.
    """
    likelihood, each = log2_bins(np.exp2(np.rint(np.log2([near])))), share / QUESTIONS
    likelihood.search(_Alone(rank, likelihood.points), QUESTIONS - 1, (QUESTIONS - 1) * each)
    found = bool(likelihood.found(alone=True)[0])
    size = likelihood.zoomed(16)
    size.search(_Alone(rank, size.points), 1, each)
    return Scale(float(size.high_end(0.5 if found else 0.25)[0]), found, likelihood.enough())


def find_between(rank: Asks, between: Sequence[float], questions: int, share: float) -> float:
    """Return about the median of private numbers that lies between two public ones.

    A wrong answer leads to another part of the range, at worst: nothing has to stand clear.
    """
    low, high = between[0], between[-1]
    for _ in range(questions):
        middle = math.sqrt(low * high)
        below = rank(middle, share=share / questions).value >= 0
        low, high = (low, middle) if below else (middle, high)
    return math.sqrt(low * high)


def private_clip_level(count_above: Asks, largest: float, goal: float, share: float) -> float:
    """Return the smallest level of a public grid up to `largest` above which about `goal` rows lie.

    The rows above a level are those that clipping shortens. A goal in proportion to the noise makes
    the harm of clipping stay in proportion to the noise that it saves, and vanish with it.
    """
    return _lowest(count_above, clip_levels(largest), goal, share)


def clip_levels(largest: float) -> FloatArray:
    """Return the public grid of clip levels up to `largest`, upwards."""
    return np.asarray(largest * 2.0 ** (-np.arange(_LEVELS, -1, -1.0) / _LEVELS_PER_DOUBLING))


def raised_level(count_above: Asks, lowest: float, goal: float, share: float) -> float:
    """Return the smallest level from `lowest` upwards above which about `goal` rows lie.

    A count that does not stand twice clear of its noise raises nothing: a mistake may make the
    noise 256 times as large.
    """
    return _lowest(count_above, lowest * 2.0 ** np.array(_RAISES), goal, share, 2 * CLEAR)


def _lowest(
    count_above: Asks, grid: FloatArray, goal: float, share: float, margin: float = 0.0
) -> float:
    low, high = 0, len(grid) - 1
    steps = math.ceil(math.log2(len(grid)))
    for _ in range(steps):
        middle = (low + high) // 2
        above = count_above(float(grid[middle]), share=share / steps)
        if above.value <= goal + margin * above.noise_scale:
            high = middle
        else:
            low = min(middle + 1, high)
    return float(grid[high])
