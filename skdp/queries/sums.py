"""Sums over units: what one unit adds bounds how far neighbours can move the sum.

Only this module derives the change of a sum over units from an adjacency. Neighbours: `add_remove`
(one unit is added or removed; their number is private) or `replace` (one unit is replaced by
another; their number is public).

| one unit adds | add_remove | replace |
|---|---|---|
| a number in [a, b] | max(-a, b) | b - a |
| an array of norm L | L | 2 L |
| one that is PSD or non-negative, of norm L | L | sqrt(2) L, as <P, Q> >= 0 (a number: L) |

Each unit's integers are rounded by themselves: half a step for each coordinate and unit changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp._limits import BLOCK, CORE_SCALE, LARGEST, WIDER, FloatArray, tangent_bound
from skdp.data import blocks, integers
from skdp.data.numbers import Numbers, row_numbers
from skdp.data.units import GroupRows
from skdp.data.views import GroupMap, rows_each
from skdp.exceptions import PrivacyError
from skdp.privacy.gate.bounds import Bound, Bounded, PrivateQuery
from skdp.units import ADJACENCIES

Q = TypeVar("Q")
Compute = Callable[[float], NDArray[Any]]


@dataclass(frozen=True)
class Neighbours:
    """What neighbours can change in a sum, by what one unit adds to it."""

    adjacency: str

    @property
    def replace(self) -> bool:
        """Whether one unit is replaced by another, so that their number is public."""
        return self.adjacency == "replace"

    @property
    def units(self) -> float:
        """How many contributions differ: one is added or removed, or one is replaced (two)."""
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

    def _derived(self, kind: Callable[..., Q], *public: Any, **bounds: Any) -> Q:
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
        return blocks.sum_rows(self._source, term, shape, exact=step != 0.0, n_jobs=self.n_jobs)

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

        `widen` is the factor by which float errors may raise the norm of an array above its bound.
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

    def _below(self, numbers: Numbers, threshold: float, name: str) -> Bounded:
        """Return the sum over units of (1[number <= threshold] - 1/2): negative below the median.

        Each unit adds -1/2 or 1/2; 0 if its number is zero or not a number.
        """

        def answer(step: float) -> NDArray[Any]:
            low, high = _counts(numbers, threshold)
            return whole_steps(step, (low, 0.5), (high, -0.5))

        return self._number(name, -0.5, 0.5, answer)

    def _above(self, numbers: Numbers, threshold: float, name: str) -> Bounded:
        """Return how many nonzero numbers are above a threshold: each unit adds 0 or 1."""

        def answer(step: float) -> NDArray[Any]:
            return whole_steps(step, (_counts(numbers, threshold)[1], 1.0))

        return self._number(name, 0.0, 1.0, answer)


class NumberQuery(SumQuery):
    """Counts and ranks of public thresholds among private numbers, one for each unit.

    Parameters
    ----------
    numbers : Numbers
        A sum over functions of the numbers, wherever they are.
    name : str
        First word of the releases.
    adjacency : {"add_remove", "replace"}
        What neighbours differ in.
    """

    def __init__(self, numbers: Any, name: str, *, adjacency: str) -> None:
        super().__init__(numbers, adjacency=adjacency)
        self._name = name

    def kept_below(self, threshold: float) -> Bounded:
        """Return how many nonzero numbers are at most the threshold, minus half of them all."""
        return self._below(self._source, threshold, f"{self._name}_centered_rank")

    def above(self, threshold: float) -> Bounded:
        """Return how many nonzero numbers are above a threshold."""
        return self._above(self._source, threshold, f"{self._name}_count_above")


def whole_steps(step: float, *parts: tuple[int, float]) -> NDArray[Any]:
    """Return the sum of n units that each add a value, in steps and saturated; floats at step 0."""
    if step == 0.0:
        return np.asarray(float(sum(n * value for n, value in parts)))
    total = sum(n * round(value / step) for n, value in parts)
    return np.asarray(max(-LARGEST, min(LARGEST, total)), np.int64)


def to_grid(values: Any, step: float) -> NDArray[Any]:
    """Round floats to int64 in units of `step`, saturated; as they are at step 0."""
    values = np.asarray(values, np.float64)
    if step == 0.0:
        return np.asarray(values)
    return np.asarray(np.clip(np.rint(values / step), -LARGEST, LARGEST), np.int64)


def summed(rows: FloatArray, step: float) -> NDArray[Any]:
    """Return the sum of the rows of an array, each rounded to steps; as they are at step 0."""
    if step == 0.0:
        return np.asarray(rows.sum(axis=0))
    return np.asarray(np.rint(rows / step).astype(np.int64).sum(axis=0))


def _counts(numbers: Numbers, point: float) -> list[int]:
    """Return how many numbers that are not 0 are at most a point, and above it."""
    work = partial(_counted, point=point)  # contains no data, so that it may be sent
    counts: list[int] = numbers(work, (2,)).tolist()
    return counts


def _counted(values: FloatArray, point: float) -> NDArray[np.int64]:
    low, high = np.count_nonzero(values <= point), np.count_nonzero(values > point)
    zeros = values.size - np.count_nonzero(values)
    return np.array((low - zeros, high) if point >= 0 else (low, high - zeros), np.int64)


# Rows by group: the row map of a group, and the common part of its queries.
#
# A row is a group of one row. Notation: a group has m rows. A group adds to a sum the mean of what
# its rows would add. This is a convex combination, so that no bound of single rows is exceeded. Two
# quantities are no means of bounded rows, and are bounded for the group as a whole: C bounds the
# root mean square of its rows' norms, and a size the norm of a sum over its rows. Then rows count
# 1/sqrt(m) each, and their squared norms sum to at most C^2. Laid flat they are one row, so that
# the row map and its exact check work for groups too, and the integers depend on the group's rows
# alone, in any order. Neighbours: all rows of one group are added or removed (`add_remove`), or
# replaced by any rows of another (`replace`: the number of groups is public, their numbers of rows
# never are).


GROUP_UNIT = 2.0**-24  # unit of a group in sums and projections, relative to the bound of its norm


class GroupQuery(SumQuery):
    """Sums over private rows, alone or by group.

    Parameters
    ----------
    rows : array, CSR matrix, memory map, RowSource or RemoteRows
        The private rows, or batches `Groups` of them.
    by_group : bool
        Whether all rows of a group are one unit. Rows in no batches are groups of one row.
    adjacency : {"add_remove", "replace"}
        What neighbours differ in.
    n_jobs : int or None
        Threads for the passes over the rows; it never changes a result.
    """

    def __init__(
        self, rows: Any, *, by_group: bool = False, adjacency: str, n_jobs: int | None = None
    ) -> None:
        if isinstance(rows, GroupRows) and not by_group:
            raise PrivacyError("the bounds of single rows do not hold for groups: 'by_group'")
        super().__init__(blocks.row_source(rows), adjacency=adjacency, n_jobs=n_jobs)
        self.n_features: int = self._source.n_features
        self.by_group = by_group
        self.units = "groups" if by_group else "rows"

    def _alike(self, kind: Callable[..., Q], *public: Any, **bounds: Any) -> Q:
        """Return a query of the same units, neighbours and threads."""
        return self._derived(kind, *public, by_group=self.by_group, **bounds)


# The split of a second moment at a public subspace: core and tangent part in one release.
#
# Notation: V is d x p, public, with orthonormal columns; a row x (||x|| <= C) splits into a = V'x
# and t = x - V a. It adds (V a + t) a' to X'X V: the core V a a' and the tangent part t a'. The
# core is divided by s = CORE_SCALE before the release, so that the row adds b a', of norm
# ||a|| ||b||, with b = t + V a / s. That is at most .53 C^2, against C^2 for the whole product. A
# group, whose rows Z have squared norms of sum C^2 at most, adds one array: M = (Z - r A V')'A with
# A = ZV and r = 1 - 1/s. It is summed over the group's rows first and then clipped as a whole, so
# that parts which cancel between rows need no noise.


ROW_UNIT = 2.0**-20  # unit of a row in clipped sums and of its size, in units of the clip norm


@dataclass(frozen=True)
class TangentSplit:
    """The public part of the split: what a machine with rows needs; it contains no rows."""

    grid: FloatArray
    removed: float
    gap: float
    rounding: float
    bits: int

    def __call__(self, Z: blocks.Block, lengths: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return V'z and the size ||V'z|| ||b|| of integer rows (||z||^2 given)."""
        A = blocks.dense(Z @ self.grid)
        A *= 2.0**-self.bits
        squares = blocks.square_norms(A)
        kept = self.removed * (2 - self.removed) - self.gap
        b = np.sqrt(lengths - kept * squares) + self.rounding * np.sqrt(squares)
        return A, np.sqrt(squares) * b

    def sizes(self, rows: blocks.Block, clip_norm: float, unit: float) -> FloatArray:
        """Return the sizes of rows that become integers of a unit."""
        return np.asarray(self(*integers.rows_and_squares(rows, clip_norm, unit))[1] * unit**2)


class TangentQuery(SumQuery):
    """Core and tangent parts of X'X V for a public V, each row clipped to a public size.

    Parameters
    ----------
    source : RowSource
        The private rows.
    V : array of shape (n_features, p)
        Public, with orthonormal columns.
    clip_norm, adjacency, n_jobs
        As in `RowQuery`.
    """

    def __init__(
        self,
        source: blocks.AnyRows,
        V: FloatArray,
        *,
        clip_norm: float,
        adjacency: str,
        n_jobs: int | None,
    ) -> None:
        super().__init__(source, adjacency=adjacency, n_jobs=n_jobs)
        self._V = np.asarray(V, np.float64)
        self._grid = integers.on_grid(self._V)
        self._removed = 1 - 1 / CORE_SCALE
        # The grid is not quite orthonormal, and its scaled copy is rounded once more.
        unit = np.eye(self._V.shape[1])
        gap = (
            float(np.linalg.norm(self._grid.T @ self._grid * 4.0**-integers.GRID_BITS - unit))
            + 1e-9
        )
        if not gap < 1e-3:
            raise ValueError("'V' must have orthonormal columns.")
        rounding = math.sqrt(self._V.size) * 2.0**-integers.GRID_BITS
        self._split = TangentSplit(self._grid, self._removed, gap, rounding, integers.GRID_BITS)
        self._float_split = TangentSplit(self._V, self._removed, 0.0, 0.0, 0)
        self.clip_norm = clip_norm
        self._sizes = row_numbers(source, self._measured())
        self.largest = tangent_bound(clip_norm) * (1 + gap)
        self._together = clip_norm * clip_norm * (1 + 3 * gap + 2 * rounding)

    def _measured(self) -> Callable[[Any], FloatArray]:
        """Return what makes sizes of a block, from public numbers alone."""
        unit = self.clip_norm * ROW_UNIT
        return partial(self._split.sizes, clip_norm=self.clip_norm, unit=unit)

    def sizes_above(self, threshold: float) -> Bounded:
        """Return how many rows have a size above a threshold."""
        return self._above(self._sizes, threshold, "tangent_norm_count_above")

    def product(self, clip_level: float) -> Bounded:
        """Return the sum of w b a', w = min(1, clip_level / (||a|| ||b||)).

        One row: at most L = min(clip_level, largest size). Replace: 2 L, which mirror images in
        the tangent part attain if L is small, or C^2: |w b a' - v d c'| is convex in w and v, so
        largest where they are 0 or 1. Let C = 1, x = |a|^2, y = |c|^2, u = x + y and z = |a.c| <=
        u/2. The square is at most x (1 - x) + y (1 - y) + (2 - u) z + (x^2 + y^2 - 2 z^2)/s^2,
        where x^2 + y^2 >= u^2/2. If that is largest at z = u/2, it is 2 u - u^2 <= 1. Else u is
        above 2/(1 + 2/s^2), and it is convex in u there, and below 1 at both ends. A V that is not
        quite orthonormal stretches a change by 1 + 3 gap at most, and its scaled copy is rounded.
        Rounding: in integers a row z adds (z - r V rint(a)) times rint(w a)', with a = V'z,
        r = 1 - 1/s and b = z - r V a. Let f and e be the changes of a and of w a by rint, which
        moves no number by more than 1/2, nor by more than its size: ||f|| <= min(||a||,
        sqrt(p)/2), and e likewise. The left factor has at most the norm of z, as its part in V is
        (1 - r) V a - r V f, and at most that of b plus r ||f||. So the norm exceeds ||b|| ||w a||
        by at most r ||f|| ||a|| + ||z|| ||e|| <= ||z|| sqrt(p), which includes r ||f|| ||e||. So
        far, at most, the array of integers lies from b (w a)', too.
        Rounding the d x p result costs sqrt(d p).
        """
        d, p = self._V.shape
        level = min(float(clip_level), self.largest)
        clip_norm = self.clip_norm  # `term` is sent to the rows, so it must not contain `self`

        def answer(step: float) -> NDArray[Any]:
            split, unit = self._split if step else self._float_split, math.sqrt(step)
            longest = level / step if step else level

            def term(rows: blocks.Block) -> FloatArray:
                Z, lengths = integers.rows_and_squares(rows, clip_norm, unit)
                A, sizes = split(Z, lengths)
                with np.errstate(divide="ignore", invalid="ignore"):
                    P = A * np.fmin(1.0, longest / sizes)[:, None]
                if step == 0.0:
                    return blocks.cross_product(Z, P)
                P = np.rint(P)
                return np.vstack([blocks.cross_product(Z, P), *blocks.limbs_of(np.rint(A).T @ P)])

            total = self._sum(term, (d + 2 * p, p) if step else (d, p), step)
            if step == 0.0:
                return np.asarray(total - self._removed * self._V @ (self._V.T @ total))
            removed = np.rint(self._grid * self._removed)
            return total[:d] - integers.wide_map(removed, total[d : d + p], total[d + p :])

        change, slack = self.neighbours.array(level), math.sqrt(d * p)
        l2 = (min(change, self._together) if self.neighbours.replace else change) * WIDER
        cross = self.neighbours.array(self.clip_norm) * math.sqrt(p)
        finest = (self.clip_norm * integers.FINEST_UNIT) ** 2
        bound = Bound("tangent_product", (d, p), l2, slack=slack, cross=cross, min_step=finest)
        return Bounded(bound, answer)


@dataclass(frozen=True)
class _GroupTerms:
    """The terms of a batch of groups, from public numbers alone, so that it may be sent.

    Sums over rows are exact integers, in units of `square`, so that no bit depends on their order,
    and their squares do not underflow; floats at unit 0.
    """

    V: FloatArray
    grid: FloatArray
    removed: float
    rows: GroupMap

    @property
    def square(self) -> float:
        """The unit of the terms."""
        return self.rows.unit**2 or 1.0

    def __call__(self, batch: Any) -> Iterator[FloatArray]:
        """Yield terms of some groups at a time, one flat row each."""
        n, d = batch.shape
        some = max(1, BLOCK // (d * self.V.shape[1]))
        Z, cut = self.rows(batch), some * rows_each(batch)
        for start in range(0, n * rows_each(batch), cut):
            yield self._of(Z[start : start + cut], rows_each(batch))

    def _of(self, Z: blocks.Block, each: int) -> FloatArray:
        (n, d), p = (Z.shape[0] // each, Z.shape[1]), self.V.shape[1]
        exact = self.rows.unit != 0.0
        A = integers.reduced(blocks.dense(Z @ self.grid)) if exact else blocks.dense(Z @ self.V)
        of_groups = A.reshape(n, each, p)
        M = _products(Z, of_groups)
        cores = np.swapaxes(of_groups, 1, 2) @ of_groups
        M -= np.moveaxis(self._cores(np.moveaxis(cores, 0, 1).reshape(p, n * p), exact)
                         .reshape(d, n, p), 1, 0)  # fmt: skip
        return M.reshape(n, d * p)

    def _cores(self, cores: FloatArray, exact: bool) -> NDArray[Any]:
        if not exact:
            return np.asarray(self.removed * self.V @ cores)
        return integers.exact_map(np.rint(self.grid * self.removed), cores.astype(np.int64))

    def sizes(self, batch: Any) -> FloatArray:
        """Return the Frobenius norm of the term of each group."""
        norms = (np.sqrt(blocks.square_norms(M)) for M in self(batch))
        return np.concatenate([np.zeros(0), *norms]) * self.square


def _products(Z: blocks.Block, A: FloatArray) -> FloatArray:
    """Return Z'A of each group, for rows in turn."""
    (n, each, p), d = A.shape, Z.shape[1]
    if not sp.issparse(Z):
        return np.asarray(np.swapaxes(Z.reshape(n, each, d), 1, 2) @ A)
    owners = np.repeat(np.arange(n * each) // each * d, np.diff(Z.indptr))
    apart = sp.csr_array((Z.data, Z.indices + owners, Z.indptr), shape=(n * each, n * d))
    return blocks.dense(apart.T @ A.reshape(n * each, p)).reshape(n, d, p)


class GroupTangentQuery(TangentQuery):
    """Core and tangent parts of X'X V for a public V, each group clipped to a public size.

    Parameters
    ----------
    source : GroupRows, or a source of batches `Groups` anywhere
        The private rows, by group.
    V, clip_norm, adjacency, n_jobs
        As in `TangentQuery`.
    """

    units = "groups"

    def _measured(self) -> Callable[[Any], FloatArray]:
        return self._terms(self.clip_norm * GROUP_UNIT).sizes

    def _terms(self, unit: float) -> _GroupTerms:
        return _GroupTerms(self._V, self._grid, self._removed, GroupMap(self.clip_norm, unit))

    def product(self, clip_level: float) -> Bounded:
        """Return the sum of w M, w = min(1, clip_level / ||M||_F).

        One group: at most L = min(clip_level, largest size), as ||M|| <= ||Z - r A V'|| ||A|| in
        Frobenius norms, which is at most that of a single row; replace: 2 L (groups whose
        rows are mirrored in the tangent part are antipodal there). It is not at most C^2 as for
        rows: rounding of A adds up over the rows of a group. Each group is rounded once.
        """
        d, p = self._V.shape
        level = min(float(clip_level), self.largest)
        fine = self.clip_norm * GROUP_UNIT

        def answer(step: float) -> NDArray[Any]:
            terms = self._terms(fine if step else 0.0)
            longest = level / terms.square

            def term(batch: Any) -> NDArray[Any]:
                total: Any = 0
                for M in terms(batch):
                    M *= (longest / np.maximum(np.sqrt(blocks.square_norms(M)), longest))[:, None]
                    total = total + summed(M, step / terms.square)
                return np.asarray(total).reshape(d, p)

            return self._sum(term, (d, p), step)

        change = self.neighbours.array(level)
        return self._array("tangent_product", (d, p), change, answer, widen=WIDER)


def bias_units(bias: float, step: float) -> float:
    """Return a public bias column rounded down to whole units; itself at step 0."""
    return math.floor(bias / math.sqrt(step)) if step else bias


def exact_bias(moment: FloatArray, step: float, bias: float) -> FloatArray:
    """Undo the rounding of the bias column to whole units (both are public)."""
    exact, scale = moment.copy(), bias / (max(1, bias_units(bias, step)) * math.sqrt(step))
    exact[-1] *= scale
    exact[:, -1] *= scale
    return exact
