"""Bayesian search for the median of private numbers, from few noisy rank queries.

A rank query returns the noisy sum, over the nonzero numbers, of 1/2 below a threshold and -1/2
above it. Each threshold is near the median of the posterior, given all ranks released so far, on a
grid of log2 bins: six queries find one bin among ninety. The width of the posterior says how
certain the result is. Everything but the rank queries is post-processing. Ties go downwards: a
clip norm that is too low shrinks signal and noise alike, one that is too high lets the noise hide
the signal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from skdp._limits import CLEAR, NEGLIGIBLE, FloatArray, IndexArray
from skdp.answer import Answer

# The posterior of a median on a grid, given noisy ranks: pure functions of released numbers.


_BINS = (-46, 63)  # log2: a median of 1e-12, or of 1e18 as times in nanoseconds have
_POWERS = np.ldexp(1.0, np.arange(_BINS[0], _BINS[1] + 1))
QUESTIONS = math.ceil(math.log2(len(_POWERS)))  # rank queries that a bisection of the grid takes
_NEAR = 2  # log2 bins that the middle half of the posterior spans at most if a median was found
_SCATTER = (0.5, 2.0, 6.0)  # prior scales of columns about their common scale, in log2 bins
_ORDER = (0.5, 0.25, 0.75)  # posterior quantiles to query: the first that was not queried yet
SMALLEST = float(_POWERS[0])
_LEAST = math.log(NEGLIGIBLE)  # smaller likelihoods are rounded up: subnormal floats are slow
# A rank of so many noise deviations determines on which side of a threshold the median lies. With
# 2, the search finds medians in pure noise, and fits of barely enough rows lose .08 of R2.
_SIGNIFICANT_RANK = 3.0


def _normalised(rows: FloatArray) -> FloatArray:
    """Divide rows by their sums, in place."""
    rows /= rows.sum(axis=1, keepdims=True)
    return rows


class Likelihood:
    """The posterior of one number (a median) in each column, over the cells of a public grid.

    Parameters
    ----------
    points : array of shape (d, m)
        Upwards in each column. Cell i ends at point i; the last cell lies beyond all of them.
    prior : array of shape (m + 1,)
        Prior probabilities of the cells.
    kinds : sequence of int
        How many columns are of each kind, in their order. Columns of one kind inform each other:
        they scatter about a common value, with a scale that is estimated too.
    """

    def __init__(self, points: FloatArray, prior: FloatArray, kinds: Sequence[int] = ()) -> None:
        d = len(points)
        self.points, self._prior, self.kinds = points, prior / prior.sum(), kinds
        self._reached = np.repeat(self._prior.cumsum()[None], d, axis=0)
        self.lowest, self.highest, self.noise_scale = np.zeros(d), np.zeros(d), 0.0
        self._logs, self._possible = np.zeros(self._reached.shape), np.ones(1)
        self._columns, self._cells = np.arange(d), np.arange(len(prior))
        self._known = np.zeros(points.shape, bool)
        self._kernels: FloatArray | None = None
        if kinds and d > 1:
            self._kernels, self._to_cells = _kernels(len(prior))
            self._log_priors = np.tile(np.log(self._prior), len(_SCATTER))
            self._of_kinds = np.repeat(np.eye(len(kinds)), kinds, axis=1)

    def search(self, ask: AsksGrid, questions: int, share: float) -> Likelihood:
        """Release the rank of a point near the posterior median, a fixed number of times.

        At the true median a rank is 0 but for noise, as in an empty column. So no point is queried
        twice. If the posterior median was queried before, the quartiles follow; after these, the
        nearest point that was not queried.
        """
        # A cell that ends at a quantile but for rounding, as of a symmetric prior, lies below it.
        columns, order = self._columns, (1 + NEGLIGIBLE) * np.array(_ORDER)[:, None]
        last, asked, ranks = self.points.shape[1] - 1, [], []
        for _ in range(questions):
            near = np.minimum((self._reached[:, None] >= order).argmax(axis=2), last)
            which = near[columns, self._known[columns[:, None], near].argmin(axis=1)]
            if np.count_nonzero(again := self._known[columns, which]):
                off = np.abs(self._cells[:-1] - near[:, :1]) + self._cells[-1] * self._known
                which = np.where(again, off.argmin(axis=1), which)
            self._known[columns, which] = True
            answer = ask.ranks(which, share=share / questions)
            self.noise_scale = max(answer.noise_scale, 0.01)  # without noise we would divide by 0
            z = answer.value / self.noise_scale
            below, above = log_ndtr(np.array((z, -z))) + z**2 / 2
            self._logs += np.where(self._cells <= which[:, None], below[:, None], above[:, None])
            self._update()
            asked.append(which)
            ranks.append(z)
        ends, sizes = np.array([self.lowest, self.highest, *ranks]), np.abs(ranks)
        self.lowest, self.highest = ends.min(axis=0), ends.max(axis=0)
        self.faintest, self.total = sizes.min(axis=0), sizes.sum(axis=0)
        self.nearest = self.points[columns, np.array(asked)[sizes.argmin(axis=0), columns]]
        return self

    def _update(self) -> None:
        """Compute the posterior of all columns from their ranks so far.

        The true rank is positive or negative, depending on the cell of the median, and of any size,
        as the number of entries is unknown. Or the column has no nonzero entry, and all true ranks
        are 0: this hypothesis adds the same likelihood to every cell.
        """
        most = self._logs.max(axis=1, keepdims=True)
        likelihood = np.exp(np.maximum(self._logs - most, _LEAST))
        likelihood += np.exp(np.maximum(np.minimum(-most, 0), _LEAST))
        likelihood *= self._possible
        prior = self._prior
        if self._kernels is not None:
            totals = likelihood @ self._kernels
            logs = self._of_kinds @ np.log(totals) + self._log_priors
            weights = _normalised(np.exp(logs - logs.max(axis=1, keepdims=True)))
            seen = (weights > NEGLIGIBLE**2).any(axis=0)  # the others are lost in rounding
            weights = self._of_kinds.T @ weights[:, seen]
            prior = (weights / totals[:, seen]) @ self._to_cells[seen]
        likelihood *= prior
        self._reached = _normalised(likelihood).cumsum(axis=1)

    def follow(self, before: Likelihood, where: NDArray[np.bool_]) -> None:
        """Copy the ranks of another search with the same cells, for the columns `where`."""
        self._logs = np.where(where[:, None], before._logs, self._logs)
        self.lowest = np.where(where, before.lowest, 0.0)
        self.highest = np.where(where, before.highest, 0.0)

    def exclude(self, low: FloatArray) -> None:
        """Make the cells that lie below the log2 bin `low` nearly impossible."""
        steps = self._cells + _BINS[0]
        self._possible = np.where(steps < low[:, None], NEGLIGIBLE, 1.0)
        self._update()

    def cell(self, q: float) -> IndexArray:
        """Return the cell of each column that contains the posterior quantile q."""
        return np.asarray((self._reached >= q).argmax(axis=1))

    def low_end(self, q: float) -> FloatArray:
        """Return the lower end of that cell."""
        return np.asarray(self.points[self._columns, np.maximum(self.cell(q) - 1, 0)])

    def high_end(self, q: float) -> FloatArray:
        """Return the upper end of that cell, which belongs to the cell."""
        last = self.points.shape[1] - 1
        return np.asarray(self.points[self._columns, np.minimum(self.cell(q), last)])

    def found(self, alone: bool = False) -> NDArray[np.bool_]:
        """Return whether the posterior is narrow, or significant ranks lie on both sides.

        A narrow posterior may come from the other columns alone. So, unless `alone`, a column needs
        at least one rank well above its noise.
        """
        low, high = self.lowest < -_SIGNIFICANT_RANK, self.highest > _SIGNIFICANT_RANK
        narrow = self.cell(0.75) - self.cell(0.25) <= _NEAR
        return np.asarray(narrow & (low | high | alone) | low & high)

    def enough(self, weight: float = 1.0) -> int:
        """Return about how many numbers it takes to find their median under this noise.

        The rank of each half of them must be significant. `weight` is what ranks were multiplied
        by.
        """
        return math.ceil(2 * CLEAR * self.noise_scale / weight)

    def zoomed(self, cells: int = 64) -> Likelihood:
        """Return a new search on a finer grid: equally likely cells that end at round numbers.

        Half of a cell's probability is left out at either end, so that an end that may as well be 0
        becomes 0.
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
    """Return the search over powers of two times `unit`; half of the prior lies near the unit."""
    mild = np.exp(-np.abs(np.arange(_BINS[0], _BINS[1] + 2) - 0.5) / _SCATTER[-1])
    prior = 0.5 * mild / mild.sum() + 0.5 / len(mild)
    return Likelihood(unit[:, None] * _POWERS, prior, kinds)


def steps(radius: FloatArray) -> Likelihood:
    """Return the search over numbers in each column within `radius` of 0, or a little beyond."""
    points = radius[:, None] * np.linspace(-1, 1, 65)
    points[:, [0, -1]] *= 33 / 32  # counts of distances may reach a 128th too far (`CountsIn.of`)
    return Likelihood(points, np.ones(66))


@lru_cache
def _kernels(cells: int) -> tuple[FloatArray, FloatArray]:
    """Return P(cell of a column | common cell) and its transpose; 1 in 10 columns lie anywhere."""
    gaps = np.abs(np.subtract.outer(np.arange(cells), np.arange(cells)))
    near = [np.exp(-gaps / spread) for spread in _SCATTER]
    kernels = np.hstack([0.9 * k / k.sum(axis=0) + 0.1 / cells for k in near])
    return kernels, np.ascontiguousarray(kernels.T)


_LEVELS, _LEVELS_PER_DOUBLING = 80, 4  # number of clip norms below the largest, and their density
# Raised clip norms, in log2 bins above the lowest: wider steps where few rows are left above.
_RAISES = (*np.arange(0, 6, 0.5), 6.5, 7.5, 9.0, 10.5)


# A function (threshold, share=...) that returns a noisy count of numbers above the threshold, or
# the noisy rank of the threshold among the nonzero numbers.
Asks = Callable[..., Answer]


class AsksGrid(Protocol):
    """Noisy ranks of the points of a public grid, one of each column."""

    def ranks(self, which: IndexArray, *, share: float) -> Answer:
        """Return half of the entries at most a point minus half of those above, by column."""


class Scale(NamedTuple):
    """A released scale.

    Attributes
    ----------
    value : float
        A number just above the median; a low guess if the median was not found.
    found : bool
        Whether the median was found (see `Likelihood.found`).
    needed : int
        About how many nonzero numbers it takes to find it under this noise.
    """

    value: float
    found: bool
    needed: int


class _Alone(NamedTuple):
    """Adapter: a rank query by threshold, as a grid with a single column."""

    rank: Asks
    points: FloatArray

    def ranks(self, which: IndexArray, *, share: float) -> Answer:
        """Return the rank of one point."""
        answer = self.rank(float(self.points[0, which[0]]), share=share)
        return Answer(np.atleast_1d(answer.value), answer.noise_scale)


def find_scale(rank: Asks, share: float, *, near: float = 1.0) -> Scale:
    """Return the median size of some private numbers, from rank queries of equal shares.

    All queries but the last find its log2 bin; the last one halves that bin. `near` is a public
    guess: half of the prior lies within about six log2 bins of it.
    """
    likelihood, each = log2_bins(np.exp2(np.rint(np.log2([near])))), share / QUESTIONS
    likelihood.search(_Alone(rank, likelihood.points), QUESTIONS - 1, (QUESTIONS - 1) * each)
    found = bool(likelihood.found(alone=True)[0])
    size = likelihood.zoomed(16)
    size.search(_Alone(rank, size.points), 1, each)
    return Scale(float(size.high_end(0.5 if found else 0.25)[0]), found, likelihood.enough())


def find_between(rank: Asks, between: Sequence[float], questions: int, share: float) -> float:
    """Return about the median of private numbers, by bisection between two public numbers.

    At worst a rank with the wrong sign leads to another part of the range, so no rank has to be
    significant.
    """
    low, high = between[0], between[-1]
    for _ in range(questions):
        middle = math.sqrt(low * high)
        below = rank(middle, share=share / questions).value >= 0
        low, high = (low, middle) if below else (middle, high)
    return math.sqrt(low * high)


def private_clip_level(count_above: Asks, largest: float, goal: float, share: float) -> float:
    """Return the smallest level of a public grid up to `largest` above which about `goal` rows lie.

    These are the rows that clipping scales down. With a goal in proportion to the noise, the bias
    of clipping stays in proportion to the noise that it saves, and vanishes with it.
    """
    return lowest_level(count_above, clip_levels(largest), goal, share)


def clip_levels(largest: float) -> FloatArray:
    """Return the public grid of clip levels up to `largest`, upwards."""
    return np.asarray(largest * 2.0 ** (-np.arange(_LEVELS, -1, -1.0) / _LEVELS_PER_DOUBLING))


def raised_level(count_above: Asks, lowest: float, goal: float, share: float) -> float:
    """Return the smallest level from `lowest` upwards above which about `goal` rows lie.

    A level is raised only where the count exceeds its noise by twice the usual margin: a mistake
    may make the noise 256 times as large.
    """
    return lowest_level(count_above, lowest * 2.0 ** np.array(_RAISES), goal, share, 2 * CLEAR)


def lowest_level(
    count_above: Asks, grid: FloatArray, goal: float, share: float, margin: float = 0.0
) -> float:
    """Return the smallest level of a public grid above which about `goal` numbers lie.

    A level is raised only where the count exceeds the goal by `margin` times its noise.
    """
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
