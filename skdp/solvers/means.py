"""Means of the rows and columns of a matrix of coefficients, from released sums; all of it is free.

Notation: y = centre + <X, a 1' + 1 b'> + the rest, for CSR records X: ratings of products (columns)
by people (rows), one entry each. A sum of residuals beside known means, times the entries of column
j, is w_j (what b_j lacks), w_j the sum of squares of these entries. Each mean is drawn to 0 by its
own noise: means have a variance t, whose likelihood what was released tells.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from skdp.answer import Answer
from skdp.solvers.design import Whitening

FloatArray = NDArray[np.float64]
_REACH = 2.0  # deviations of residuals at which they are cut
_VARIANCES = np.append(0.0, np.geomspace(1e-4, 0.5, 31))  # of means, in that of targets
_NONE = 0.2  # chance beforehand that there are none; other variances are alike
_BY_CHANCE = 4.0  # times what means explain of any matrix, one over the number in each
_OVERSHOT = 0.5  # of a step: from here on entries of records move together
_PARTS = np.linspace(0.0, 1.0, 11)  # of a share, for the columns
_ROUNDS = 2  # what is left of one is seen in the next
_LEFT = 0.25  # of the variance of targets, that means leave at least


class AsksMeans(Protocol):
    """Records whose targets are seen beside public means."""

    def beside_means(self, rows: FloatArray, columns: FloatArray) -> Any:
        """Take public means off the targets."""
        ...


class MeansFacts(NamedTuple):
    """Public numbers of what means are learnt from.

    Attributes
    ----------
    rows, columns : array of shape (d1,), (d2,)
        Sums of squares of the entries of each row and column over records, released or public.
    n : float
        Number of records, public or released.
    centre, sd : float
        Where targets lie, and how far they vary about there.
    unit_noise : float
        Noise scale of a sum clipped at 1 that has the whole budget.
    """

    rows: FloatArray
    columns: FloatArray
    n: float
    centre: float
    sd: float
    unit_noise: float


def energies(design: Whitening, shape: tuple[int, int], n: float) -> tuple[FloatArray, FloatArray]:
    """Return sums of squares of the entries of rows and columns over n records of a design."""
    rows, columns = (
        np.ones(d) if W is None else np.diagonal(W) ** -2.0
        for W, d in zip(design[:2], shape, strict=True)
    )
    whole = n * design.lam
    return whole * rows * columns.sum(), whole * columns * rows.sum()


class _Side:
    """Means of rows, or of columns, and the sums that tell of them."""

    def __init__(self, weights: FloatArray) -> None:
        self.weights = weights
        self.means = np.zeros(len(weights))
        self.released: list[tuple[FloatArray, FloatArray, float]] = []  # beside which, sums, noise
        others = len(_VARIANCES) - 1
        self.prior = np.append(_NONE, np.full(others, (1 - _NONE) / others))
        self.chances = self.prior

    @property
    def precision(self) -> float:
        """One over the squared noise of all sums together."""
        return math.fsum(noise**-2.0 for _, _, noise in self.released)

    def add(self, answer: Answer, sd: float) -> None:
        """Take in released sums of residuals beside the means so far; estimate them anew."""
        noise = max(answer.noise_scale, 1e-9 * sd * math.sqrt(float(self.weights.mean())))
        self._look_back(answer.value, noise)
        self.released.append((self.means, answer.value, noise))
        w, variance = self.weights, 1 / self.precision
        whole = variance * np.sum([(w * b + g) / s**2 for b, g, s in self.released], axis=0)
        t = _VARIANCES[:, None] * sd**2
        spread = w**2 * t + variance + sd**2 * w
        likely = -0.5 * np.sum(whole**2 / spread + np.log(spread), axis=1)
        chances = self.prior * np.exp(likely - likely.max())
        self.chances = chances / chances.sum()
        self.means = whole * w * (self.chances @ (t / spread)) * (self.chances[0] < 0.5)

    def _look_back(self, sums: FloatArray, noise: float) -> None:
        """Take shorter steps where the one that led here was too long, beyond the noise."""
        moved = float(self.means @ (self.weights * self.means))
        back = -float(sums @ self.means)
        if back > _OVERSHOT * moved + 2 * noise * float(np.linalg.norm(self.means)):
            self.weights = (1 + back / moved) * self.weights

    def explained(self) -> float:
        """Return the sum of squares of <X, M> over records, M these means."""
        return float(self.means @ (self.weights * self.means))

    def left(self, noise: float, sd: float) -> float:
        """Return the sum of squares that these means will miss, after sums with more noise."""
        w, t = self.weights, _VARIANCES[:, None] * sd**2
        precision = self.precision + (noise**-2.0 if math.isfinite(noise) else 0.0)
        rest = sd**2 * w + (1 / precision if precision else math.inf)
        return float(self.chances @ np.sum(w * t / (1 + w**2 * t / rest), axis=1))


class Means:
    """Means of rows and columns as they become known, round by round."""

    def __init__(self, facts: MeansFacts) -> None:
        self.facts = facts
        self.rows, self.columns = _Side(facts.rows), _Side(facts.columns)
        self.length = math.sqrt(float(facts.columns.sum()) / facts.n)  # of records
        self.levels: list[float] = []

    @property
    def found(self) -> bool:
        """Whether any mean differs from 0."""
        return bool(self.rows.means.any() or self.columns.means.any())

    def drop_what_is_low_rank(self) -> None:
        """Forget means that explain about what those of a matrix without means do."""
        whole = self.facts.n * self.facts.sd**2
        for side, other in ((self.columns, self.rows), (self.rows, self.columns)):
            if side.explained() * len(other.means) < _BY_CHANCE * whole:
                side.means = np.zeros(len(side.means))

    @property
    def sd(self) -> float:
        """About how far targets vary beside the means."""
        seen = (self.rows.explained() + self.columns.explained()) / self.facts.n
        return math.sqrt(max(self.facts.sd**2 - seen, _LEFT * self.facts.sd**2))

    def release(self, ask: AsksMeans, share: float) -> None:
        """Learn from rounds of sums of columns and of rows; what promises more has more of each."""
        part = min(_PARTS, key=lambda part: self._left(part, share))
        for _ in range(_ROUNDS):
            for side, of_share in ((self.columns, part), (self.rows, 1 - part)):
                if of_share > 0:
                    self._round(ask, side, of_share * share / _ROUNDS)

    def _round(self, ask: AsksMeans, side: _Side, share: float) -> None:
        known = ask.beside_means(self.rows.means, self.columns.means)
        sums = (
            known.single_entries(side is self.columns).augmented(self.facts.centre, 0.0).products()
        )
        sd = self.sd
        self.levels.append(_REACH * sd * self.length)
        side.add(sums.total(self.levels[-1], share=share), sd)

    def _left(self, part: float, share: float) -> float:
        sd, left = self.sd, 0.0
        for side, of_share in ((self.columns, part), (self.rows, 1 - part)):
            noise = math.inf
            if of_share > 0:
                clip = _REACH * sd * self.length
                noise = clip * max(self.facts.unit_noise, 1e-12) / math.sqrt(of_share * share)
            left += side.left(noise, sd)
        return left
