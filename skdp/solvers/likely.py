"""What noisy ranks leave likely of a median, step by step of a grid. Pure and public."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_ndtr

from skdp.answer import Answer

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]
QUESTIONS = 7
FARTHEST = 46  # octaves: a median of 1e-12 or 1e12, and a little more
OCTAVES = np.arange(-FARTHEST, FARTHEST + 1)
_WIDTHS = (0.1, 0.4, 1.2, 3.0)  # how far numbers spread about their median, in octaves
_FALL = 6.0  # octaves: half of the prior falls off from 1 like this, as units of measurement do
_NOTHING = 2.0  # what a column of few numbers adds to the likelihood of each octave
_NEAR = 2  # octaves that a found median may be off
_SURE = 0.88
_ASIDE = np.array([0, -1, 1, -2, 2, -3, 3, -4])  # octaves: the first that was not asked about
_APART, _GOLDEN = 0.4, (math.sqrt(5) - 1) / 2
_SCATTER = (0.5, 2.0, 6.0)  # of columns about their common scale, in octaves
_EXACT = 0.01  # of a number: stands for the noise scale where there is no noise
_LEAST = -200.0  # logarithm of a likelihood: smaller ones are slow and say no more
_BLOCK = 128  # columns at a time
_TOGETHER = 64  # numbers of at least .001 whose product is a normal float
_CLEAR_RANK = 3.0  # deviations from which a rank says on which side of a threshold the median lies
_ENOUGH = 4.2  # numbers, in deviations of the noise of one rank, from which a median is found

# Rank of a threshold among numbers whose median lies i - len(OCTAVES) octaves below it.
_GAPS = np.arange(-len(OCTAVES), len(OCTAVES) + 1) + 0.5
_RANKS = np.stack([expit(_GAPS / width) - 0.5 for width in _WIDTHS])


class _Likely:
    """What the released ranks leave likely, for each column and step of the grid."""

    _apart = 0.0

    def __init__(self, d: int, prior: FloatArray) -> None:
        self._asked: list[IntArray] = []
        self._posterior = np.tile(prior, (d, 1))

    def quantile(self, q: Any) -> IntArray:
        """Return the step of each column below which q of the posterior lies."""
        reached = self._posterior.cumsum(axis=1) >= np.reshape(q, (-1, 1)) * (1 - 1e-12)
        return np.asarray(reached.argmax(axis=1))

    def question(self) -> IntArray:
        """Return the next threshold of each column: near its median, not the same for all.

        Columns that share what they show learn more of it from different thresholds. At the very
        median an answer is that of an empty column: no threshold is asked about twice.
        """
        d, left = len(self._posterior), 1 - len(self._asked) / QUESTIONS
        apart = np.arange(d) * _GOLDEN % 1 - 0.5 if d > 1 else np.zeros(1)
        middle = self.quantile(0.5 + self._apart * left * apart)
        near = np.minimum(np.maximum(middle[:, None] + _ASIDE, 0), len(OCTAVES) - 1)
        if not self._asked:
            return np.asarray(near[:, 0])
        known = (np.stack(self._asked)[:, :, None] == near).any(axis=0)
        return np.asarray(near[np.arange(d), known.argmin(axis=1)])

    def result(self) -> tuple[IntArray, NDArray[np.bool_]]:
        """Return the median of what is likely, and whether that is narrow."""
        middle = self.quantile(0.5)
        off = np.abs(np.arange(len(OCTAVES)) - middle[:, None])
        return middle, np.asarray(np.sum(self._posterior, axis=1, where=off <= _NEAR) > _SURE)


class Bisection(_Likely):
    """Medians of columns that are known to hold numbers, whatever their distribution.

    A median lies at or below a threshold with the chance that the rank without its noise is
    positive.
    """

    def __init__(self, d: int) -> None:
        super().__init__(d, np.full(len(OCTAVES), 1 / len(OCTAVES)))
        self._logs = np.zeros((d, len(OCTAVES)))
        self._lowest, self._highest = np.zeros(d), np.zeros(d)  # ranks, in deviations

    def enclosed(self) -> NDArray[np.bool_]:
        """Return whether clear ranks lie on both sides of the median."""
        return (self._lowest < -_CLEAR_RANK) & (self._highest > _CLEAR_RANK)

    def question(self) -> IntArray:
        """Return the next threshold of each column; the last one looks for the other side.

        A median next to the first thresholds is come upon from one side alone, and seems to lie
        beyond the grid.
        """
        asked = super().question()
        if len(self._asked) < QUESTIONS - 1:
            return asked
        above = (self._highest <= _CLEAR_RANK) & (self._lowest < -_CLEAR_RANK)
        below = (self._lowest >= -_CLEAR_RANK) & (self._highest > _CLEAR_RANK)
        middle = self.quantile(0.5)
        asked = np.where(above, (middle + len(OCTAVES)) // 2, asked)
        return np.asarray(np.where(below, middle // 2, asked))

    def learn(self, asked: IntArray, answer: Answer) -> None:
        """Take in one more answer for each column."""
        self._asked.append(asked)
        ranks = np.atleast_1d(answer.value) / max(answer.noise_scale, _EXACT)
        self._lowest = np.minimum(self._lowest, ranks)
        self._highest = np.maximum(self._highest, ranks)
        z = ranks[:, None]
        below = np.arange(len(OCTAVES)) <= asked[:, None]
        self._logs += np.where(below, log_ndtr(z), log_ndtr(-z))
        self._logs -= self._logs.max(axis=1, keepdims=True)
        self._posterior = _normalised(np.exp(np.maximum(self._logs, _LEAST)))


class Search(_Likely):
    """The scales of columns, of which some may be empty, and which share what they show."""

    _apart = _APART

    def __init__(self, d: int) -> None:
        mild = np.exp(-np.abs(OCTAVES) / _FALL)
        self._base = 0.5 / len(OCTAVES) + 0.5 * mild / mild.sum()
        super().__init__(d, self._base)
        self.noise_scale = 0.0
        # Sums over the answers so far of f^2 and f a, for each width, column and octave.
        self._squares = np.zeros((len(_WIDTHS), d, len(OCTAVES)))
        self._products = np.zeros_like(self._squares)

    @property
    def needed(self) -> int:
        """Return about how many numbers that are not zero would be found under this noise."""
        return math.ceil(_ENOUGH * self.noise_scale)

    def learn(self, asked: IntArray, answer: Answer) -> None:
        """Take in one more answer for each column."""
        self.noise_scale = noise = max(answer.noise_scale, _EXACT)
        self._asked.append(asked)
        scaled = (np.atleast_1d(answer.value) / noise)[:, None]
        likelihood = np.empty_like(self._posterior)
        for some in _blocks(len(asked)):
            gaps = asked[some, None] - np.arange(len(OCTAVES)) + len(OCTAVES)
            f = _RANKS.take(gaps, axis=1)
            self._products[:, some] += f * scaled[some]
            self._squares[:, some] += np.multiply(f, f, out=f)
            logs = self._log_likelihood(some)
            logs -= logs.max(axis=1, keepdims=True)
            np.exp(np.maximum(logs, _LEAST, out=logs), out=likelihood[some])
        self._posterior = _pooled(likelihood, self._base)

    def _log_likelihood(self, columns: slice) -> FloatArray:
        """Return log P(answers | octave) of some columns, summed over widths and counts.

        An answer is N f + noise, f the logistic rank of its threshold. For N whose logarithm is
        uniform the sum over N is sqrt(2 pi) exp(z^2/2)/z with z = f'a/|f|, once that is clear; a
        column that shows nothing adds as much to every octave.
        """
        products = np.maximum(self._products[:, columns], 0.0)
        logs = products * products / self._squares[:, columns]
        roots = np.sqrt(1 + logs)
        logs *= 0.5
        largest = np.max(logs, axis=0)
        logs -= largest
        likely = np.exp(logs, out=logs)
        likely /= roots
        return np.asarray(largest + np.log(likely.sum(axis=0) + _NOTHING * np.exp(-largest)))


def _pooled(likelihood: FloatArray, base: FloatArray) -> FloatArray:
    """Return the posterior of each column, for scales that scatter about a common one.

    The common scale has the prior `base`; how far columns scatter about it is not known either.
    """
    if len(likelihood) == 1:
        return _normalised(likelihood * base)
    totals = likelihood @ _KERNELS  # (columns, spreads and common scales)
    logs = _log_product(totals).reshape(len(_SCATTER), -1) + np.log(base)
    weights = np.exp(logs - logs.max())
    weights = (weights / weights.sum()).ravel()
    posterior = likelihood
    for some in _blocks(len(likelihood)):
        posterior[some] *= np.divide(weights, totals[some], out=totals[some]) @ _KERNELS.T
    return _normalised(posterior)


def _blocks(n: int) -> list[slice]:
    return [slice(i, i + _BLOCK) for i in range(0, n, _BLOCK)]


def _log_product(rows: FloatArray) -> FloatArray:
    """Return the sum of logarithms of rows: few are taken, as products of some stay floats.

    What a kernel leaves of a likelihood with the maximum 1 is at least .1 / 93.
    """
    some = range(0, len(rows), _TOGETHER)
    return np.asarray(sum(np.log(rows[i : i + _TOGETHER].prod(axis=0)) for i in some))


def _kernel(spread: float) -> FloatArray:
    """P(octave of a column | common octave), in columns; one in ten may lie anywhere."""
    near = np.exp(-np.abs(OCTAVES[:, None] - OCTAVES) / spread)
    return np.asarray(0.9 * near / near.sum(axis=0) + 0.1 / len(OCTAVES))


_KERNELS = np.hstack([_kernel(spread) for spread in _SCATTER])


def _normalised(rows: FloatArray) -> FloatArray:
    return np.asarray(rows / rows.sum(axis=1, keepdims=True))
