"""Sums over units: what one unit adds bounds how far neighbours can move the sum.

The only home of what an adjacency costs. Neighbours: `add_remove` (one unit more or less; their
number is private) or `replace` (one unit gives way to another; their number is public).

| one unit adds | add_remove | replace |
|---|---|---|
| a number in [a, b] | max(-a, b) | b - a |
| an array of norm L | L | 2 L |
| one that is PSD or non-negative, of norm L | L | sqrt(2) L, as <P, Q> >= 0 (a number: L) |

Each unit's integers are rounded by themselves: half a step for each coordinate and unit changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from skdp.data.blocks import sum_rows
from skdp.privacy.gate.bounds import Bound, Bounded, PrivateQuery

FloatArray = NDArray[np.float64]
Q = TypeVar("Q")
Compute = Callable[[float], NDArray[Any]]
ADJACENCIES = ("add_remove", "replace")
_LIMIT = 2**62


@dataclass(frozen=True)
class Neighbours:
    """What neighbours can change in a sum, by what one unit adds to it."""

    adjacency: str

    @property
    def replace(self) -> bool:
        """Whether one unit gives way to another, so that their number is public."""
        return self.adjacency == "replace"

    @property
    def units(self) -> float:
        """How many contributions differ: one comes or goes, or one goes and one comes."""
        return 2.0 if self.replace else 1.0

    def number(self, low: float, high: float) -> float:
        """Return the change where each unit adds a number in [low, high]."""
        return high - low if self.replace else max(-low, high)

    def array(self, level: float = 1.0) -> float:
        """Return the change where each unit adds an array of norm at most `level`."""
        return self.units * level

    def positive(self, level: float = 1.0, size: int = 2) -> float:
        """Return the change where arrays are PSD (of order `size`) or non-negative besides."""
        return math.sqrt(self.units) * level if size > 1 else level


class SumQuery(PrivateQuery):
    """Statistics that are sums over private units, each with its bound.

    A subclass says what one unit adds (`_number`, `_array`, `_square`) and sums it over blocks
    (`_sum`); bounds for each adjacency, rounding, counts and ranks come with it.

    Parameters
    ----------
    source : RowSource or RemoteRows
        The private units, in blocks.
    adjacency : {"add_remove", "replace"}
        What neighbours differ in.
    n_jobs : int or None
        Threads for the passes over the data; it never changes a result.
    """

    units, count_name = "rows", "count"

    def __init__(self, source: Any, *, adjacency: str, n_jobs: int | None = None) -> None:
        if adjacency not in ADJACENCIES:
            raise ValueError(
                f"'adjacency' must be one of {ADJACENCIES}. Got {adjacency!r} instead."
            )
        self._source = source
        self.adjacency = adjacency
        self.neighbours = Neighbours(adjacency)
        self.n_jobs = n_jobs

    def _beside(self, kind: Callable[..., Q], *public: Any, **bounds: Any) -> Q:
        """Return a query of the same units, neighbours and threads."""
        return kind(*public, adjacency=self.adjacency, n_jobs=self.n_jobs, **bounds)

    @property
    def _counted(self) -> bool:
        """Whether the number of units is public."""
        return self.neighbours.replace

    @property
    def n_rows(self) -> int:
        """Number of units, where it is public: not if a neighbour has one more."""
        if not self._counted:
            raise ValueError(f"the number of {self.units} is private under adjacency='add_remove'")
        return int(self._source.n_rows())

    def _sum(self, term: Callable[[Any], Any], shape: tuple[int, ...], step: float) -> NDArray[Any]:
        """Add ``term(block)`` over the blocks: exact integers, or floats at step 0."""
        return sum_rows(self._source, term, shape, exact=step != 0.0, n_jobs=self.n_jobs)

    # -- bounds, by what one unit adds --------------------------------------------------------

    def _number(
        self, name: str, low: float, high: float, answer: Compute, rounding: float = 0.5
    ) -> Bounded:
        """Bound a sum of numbers in [low, high], each rounded by itself."""
        size, slack = self.neighbours.number(low, high), self.neighbours.units * rounding
        return Bounded(Bound(name, (), size, slack=slack, l1=size, l1_slack=slack), answer)

    def _array(
        self, name: str, shape: tuple[int, ...], change: float, answer: Compute, widen: float = 1.0
    ) -> Bounded:
        """Bound a sum of arrays, each rounded by itself, that neighbours move by `change`.

        `widen` is what float norms may exceed their levels by.
        """
        size, units = math.prod(shape), self.neighbours.units
        root = math.sqrt(size)
        bound = Bound(
            name, shape, change * widen, slack=units * root / 2,
            l1=change * root * widen, l1_slack=units * size / 2,
        )  # fmt: skip
        return Bounded(bound, answer)

    def _square(self, name: str, order: int, l2: float, answer: Compute) -> Bounded:
        """Bound a sum of symmetric integer matrices whose norms are checked after rounding."""
        return Bounded(Bound(name, (order, order), l2, symmetric=True, slack=0.0), answer)

    # -- counts and ranks ---------------------------------------------------------------------

    def count(self) -> Bounded:
        """Return the number of units: each adds 1."""
        if self._counted:
            raise ValueError(f"the number of {self.units} is public here: `n_rows`")

        def answer(step: float) -> NDArray[Any]:
            return whole_steps(step, (int(self._source.n_rows()), 1.0))

        return self._number(self.count_name, 1.0, 1.0, answer)

    def _below(self, numbers: Any, threshold: float, name: str, kept_only: bool = False) -> Bounded:
        """Return the sum over units of (1[number <= threshold] - 1/2): negative below the median.

        Each unit adds -1/2 or 1/2; with `kept_only`, 0 if its number is zero or not a number.
        """

        def answer(step: float) -> NDArray[Any]:
            low, _, n = _counts(numbers, threshold, kept_only)
            return whole_steps(step, (low, 0.5), (n - low, -0.5))

        return self._number(name, -0.5, 0.5, answer)

    def _above(self, numbers: Any, threshold: float, name: str) -> Bounded:
        """Return how many units have a number above a threshold: each adds 0 or 1."""

        def answer(step: float) -> NDArray[Any]:
            return whole_steps(step, (_counts(numbers, threshold)[1], 1.0))

        return self._number(name, 0.0, 1.0, answer)


class NumberQuery(SumQuery):
    """How one private number for each unit compares with public thresholds.

    Parameters
    ----------
    numbers : RowNumbers, or an object with its method `sum`
        The numbers, wherever they are.
    name : str
        First word of the releases.
    adjacency : {"add_remove", "replace"}
        What neighbours differ in.
    """

    def __init__(self, numbers: Any, name: str, *, adjacency: str) -> None:
        super().__init__(numbers, adjacency=adjacency)
        self._name = name

    def kept_below(self, threshold: float) -> Bounded:
        """Return how many numbers are at most the threshold, minus half of those not zero."""
        return self._below(self._source, threshold, f"{self._name}_median", kept_only=True)


def whole_steps(step: float, *parts: tuple[int, float]) -> NDArray[Any]:
    """Return the sum of n units that each add a value, in steps and saturated; floats at step 0."""
    if step == 0.0:
        return np.asarray(float(sum(n * value for n, value in parts)))
    total = sum(n * round(value / step) for n, value in parts)
    return np.asarray(max(-_LIMIT, min(_LIMIT, total)), np.int64)


def summed(rows: FloatArray, step: float) -> NDArray[Any]:
    """Return the sum of the rows of an array, each rounded to steps; as they are at step 0."""
    if step == 0.0:
        return np.asarray(rows.sum(axis=0))
    return np.asarray(np.rint(rows / step).astype(np.int64).sum(axis=0))


def _counts(numbers: Any, threshold: float, kept_only: bool = False) -> list[int]:
    """Return how many numbers are at most a threshold, above it, and in all."""
    ordered = getattr(numbers, "ordered", None)
    if ordered is not None:
        return _ordered_counts(ordered, threshold, kept_only)
    counts: list[int] = numbers.sum(_Counts(threshold, kept_only), (3,)).tolist()
    return counts


def _ordered_counts(ordered: FloatArray, threshold: float, kept_only: bool) -> list[int]:
    """Count numbers in order: a search asks of the same ones many times."""
    low, n = np.searchsorted(ordered, [threshold, np.inf], "right").tolist()
    high = n - low
    if not kept_only:
        return [low, high, ordered.size]
    zeros = int(np.searchsorted(ordered, 0.0, "right") - np.searchsorted(ordered, 0.0))
    return [low - zeros, high, n - zeros] if threshold >= 0 else [low, high - zeros, n - zeros]


@dataclass(frozen=True)
class _Counts:
    """Numbers at most a threshold, above it, and all; holds no data, so that it can travel."""

    threshold: float
    kept_only: bool

    def __call__(self, values: FloatArray) -> NDArray[np.int64]:
        if self.kept_only:
            values = values[~(np.isnan(values) | (values == 0))]
        low = np.count_nonzero(values <= self.threshold)
        return np.array([low, np.count_nonzero(values > self.threshold), values.size], np.int64)
