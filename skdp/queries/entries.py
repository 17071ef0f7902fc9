"""Queries on a matrix whose privacy unit is one entry, one edge, or a bounded perturbation.

Notation: A is m x n with entries clipped to [lo, hi], which holds 0; both shapes are public.
X (n x k) and U (m x k) are public; r1 >= r2 are the largest row norms of the matrix multiplied.
alpha is the largest change of an entry: max(|lo|, |hi|) against 0 (add_remove), hi - lo (replace);
entry_change and edge_change are entry and edge with alpha = s, and entries without bounds.

| unit | A X | X'A X (symmetric A) | U'A X |
|---|---|---|---|
| entry | alpha r1 | | alpha r1(U) r1(X) |
| edge (no loops) | alpha sqrt(r1^2 + r2^2) | 2 alpha r1 r2 | |
| mixed (symmetric A), sum_i ||(A - A')_i||_1^2 <= s^2 | s r1 | s r1 ||X||_2 | |
| frobenius, ||A - A'||_F <= s | s ||X||_2 | s ||X||_2^2 | s ||U||_2 ||X||_2 |
| spectral, ||A - A'||_2 <= s | s ||X||_F | s ||X||_F ||X||_2 | s min(||U||_F ||X||_2, ...) |

One changed entry changes row i of A X by a X_j; a pair changes rows i and j by a X_j and a X_i; and
X'(x_i x_j' + x_j x_i')X has Frobenius norm at most 2 ||x_i|| ||x_j||. Row i of E X is a sum of rows
of X with weights E_i, so that its norm is at most ||E_i||_1 r1 (mixed). The last two lines are
||E X||_F <= ||E||_F ||X||_2 and <= ||E||_2 ||X||_F. Entries without bounds: `skdp.queries.norms`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp.data.block_rows import dense, entrywise, without_duplicates
from skdp.exceptions import PrivacyError
from skdp.privacy.gate.bounds import Bound, Bounded, PrivateQuery
from skdp.queries.sums import Neighbours

FloatArray = NDArray[np.float64]
_ULP = 2.0**-53
_WIDER = 1 + 1e-9  # above the rounding of norms of public matrices


def to_grid(values: Any, step: float) -> NDArray[Any]:
    """Round a float statistic to int64 in units of `step`, saturated; exact floats at step 0."""
    values = np.asarray(values, np.float64)
    if step == 0.0:
        return np.asarray(values)
    return np.asarray(np.clip(np.rint(values / step), -(2.0**62), 2.0**62), dtype=np.int64)


def rounded_release(
    name: str,
    shape: tuple[int, ...],
    l2: float,
    error: float,
    compute: Callable[[], Any],
    *,
    l1: float = math.inf,
    symmetric: bool = False,
) -> Bounded:
    """Bound a float statistic, widened by its float error in both neighbours, on the grid."""
    size = math.prod(shape)
    bound = Bound(
        name, shape, l2 * _WIDER + error, symmetric=symmetric,
        l1=None if math.isinf(l1) else l1 * _WIDER + error * math.sqrt(size),
    )  # fmt: skip
    return Bounded(bound, lambda step: to_grid(compute(), step))


def largest_two(values: FloatArray) -> tuple[float, float]:
    """Return the largest and the second largest of non-negative values (0 where there is none)."""
    padded = np.concatenate([values, np.zeros(2)])
    second, first = np.partition(padded, len(padded) - 2)[-2:]
    return float(first), float(second)


def _row_norms(X: FloatArray, order: int) -> FloatArray:
    return np.asarray(np.linalg.norm(X, ord=order, axis=1))


@dataclass(frozen=True)
class EntryUnit:
    """What one neighbour differs in.

    Attributes
    ----------
    name : {"entry", "edge", "entry_change", "edge_change", "mixed", "frobenius", "spectral"}
        The unit.
    adjacency : {"add_remove", "replace"}
        Against zero, or any value in the bounds.
    low, high : float
        Bounds of an entry (entry, edge), enforced by clipping; infinite elsewhere.
    sensitivity : float
        Bound on the change of an entry or of a norm: the caller's contract.
    """

    name: str
    adjacency: str = "add_remove"
    low: float = 0.0
    high: float = 1.0
    sensitivity: float = 1.0

    def __post_init__(self) -> None:
        if not self.bounded:  # entries have no bounds of their own
            object.__setattr__(self, "low", -math.inf)
            object.__setattr__(self, "high", math.inf)

    @property
    def alpha(self) -> float:
        """Largest change of one entry (entry, edge), or of the norm of the matrix."""
        if not self.bounded:
            return self.sensitivity
        return Neighbours(self.adjacency).number(self.low, self.high)

    @property
    def single(self) -> bool:
        """Whether one entry, or one symmetric pair, is what changes."""
        return self.kind in ("entry", "edge")

    @property
    def bounded(self) -> bool:
        """Whether entries are clipped to bounds; elsewhere a contract bounds the change."""
        return self.name in ("entry", "edge")

    @property
    def kind(self) -> str:
        """What changes: an entry, an edge, or a matrix of this norm."""
        return self.name.removesuffix("_change")

    @property
    def symmetric(self) -> bool:
        """Whether the matrix is symmetric: its upper triangle counts."""
        return self.kind in ("edge", "mixed")

    def product(self, X: FloatArray, order: int = 2) -> float:
        """Largest norm (of this order) of the change of A X; inf where there is no bound."""
        if self.single:
            first, second = largest_two(_row_norms(X, order))
            both = math.hypot(first, second) if order == 2 else first + second
            return self.alpha * (both if self.kind == "edge" else first)
        if order != 2:
            return math.inf
        if self.name == "mixed":
            return self.alpha * largest_two(_row_norms(X, 2))[0]
        return self.alpha * float(np.linalg.norm(X, 2 if self.name == "frobenius" else None))

    def core(self, U: FloatArray, X: FloatArray, order: int = 2) -> float:
        """Largest norm of the change of U'A X: one entry gives a rank-one matrix."""
        if self.single and (self.kind == "entry" or order == 1):
            first = [largest_two(_row_norms(side, order))[0] for side in (U, X)]
            return self.alpha * first[0] * first[1] * (2 if self.kind == "edge" else 1)
        if order != 2:
            return math.inf
        change = self.product(X, order) * float(np.linalg.norm(U, 2))
        if self.name != "spectral":
            return change
        return min(change, self.alpha * float(np.linalg.norm(U)) * float(np.linalg.norm(X, 2)))

    def ritz(self, X: FloatArray, order: int = 2, error: float = 0.0) -> float:
        """Largest norm of the change of X'A X, for a symmetric A (without loops: edges).

        `error` is what rounding may add to the norm of a row of X.
        """
        if self.kind == "edge":
            first, second = largest_two(_row_norms(X, order))
            return 2 * self.alpha * (first + error) * (second + error)
        return self.core(X, X, order)


class EntryQuery(PrivateQuery):
    """Products of a private matrix with public ones.

    Shapes are public and answers are float products rounded to the grid, so each bound is widened
    by twice a public bound on the float error of the product.

    Parameters
    ----------
    A : array or sparse matrix of shape (m, n)
        The private matrix. For the edge unit its upper triangle is the graph; loops are dropped.
    unit : EntryUnit
        "entry" or "edge" with bounds, which are enforced by clipping.
    """

    def __init__(self, A: Any, unit: EntryUnit) -> None:
        if not unit.bounded:
            raise PrivacyError(f"float products have no bound for {unit!r}; use NormQuery.")
        if unit.name == "edge" and A.shape[0] != A.shape[1]:
            raise ValueError(f"an edge needs a square matrix. Got shape {A.shape} instead.")
        self._raw = A
        self._clean: Any = None
        self.unit = unit
        self.shape: tuple[int, int] = A.shape
        self.n_features = self.shape[1]

    def _matrix(self) -> Any:
        """Clip entries, and for a graph symmetrise: inside the gate, once."""
        if self._clean is None:
            self._clean = cleaned(self._raw, self.unit)
        return self._clean

    @property
    def symmetric(self) -> bool:
        """Whether the matrix is symmetric by construction."""
        return self.unit.symmetric

    def _error(self, terms: int, mass: float) -> float:
        """Bound the float error of sums of entries, `terms` of them, times weights of this mass."""
        largest = max(abs(self.unit.low), abs(self.unit.high))
        return 2 * terms * _ULP * largest * mass

    def _product(self, name: str, X: FloatArray, *, transpose: bool) -> Bounded:
        X = np.asarray(X, np.float64)
        rows = self.shape[1] if transpose else self.shape[0]
        mass = math.sqrt(rows) * float(np.linalg.norm(np.abs(X).sum(axis=0)))
        error = self._error(len(X) + 2, mass)

        def compute() -> Any:
            return (self._matrix().T if transpose else self._matrix()) @ X

        l2, l1 = self.unit.product(X), self.unit.product(X, 1)
        return rounded_release(name, (rows, X.shape[1]), l2, error, compute, l1=l1)

    def right(self, X: FloatArray) -> Bounded:
        """Return A X: see the table of the module."""
        return self._product("right_product", X, transpose=False)

    def left(self, U: FloatArray) -> Bounded:
        """Return A'U: the same bounds, with the rows of U."""
        return self._product("left_product", U, transpose=True)

    def core(self, U: FloatArray, X: FloatArray) -> Bounded:
        """Return U'A X, with full noise (its change is not symmetric)."""
        U, X = np.asarray(U, np.float64), np.asarray(X, np.float64)
        l2, l1 = self.unit.core(U, X), self.unit.core(U, X, 1)
        shape, error = (U.shape[1], X.shape[1]), self._core_error(U, X)
        return rounded_release("core", shape, l2, error, lambda: U.T @ (self._matrix() @ X), l1=l1)

    def ritz(self, X: FloatArray) -> Bounded:
        """Return X'A X of a symmetric A, with symmetric noise."""
        X = np.asarray(X, np.float64)

        def compute() -> Any:
            M = X.T @ (self._matrix() @ X)
            return (M + M.T) / 2

        k, error = X.shape[1], self._core_error(X, X)
        l2, l1 = self.unit.ritz(X), self.unit.ritz(X, 1)
        return rounded_release("ritz", (k, k), l2, error, compute, l1=l1, symmetric=True)

    def _core_error(self, U: FloatArray, X: FloatArray) -> float:
        columns = np.outer(np.abs(U).sum(axis=0), np.abs(X).sum(axis=0))
        return self._error(sum(self.shape) + 4, float(np.linalg.norm(columns)))

    def square_sum(self) -> Bounded:
        """Return ||A||_F^2: one entry moves it by at most max(lo^2, hi^2), a pair by twice that."""
        largest = max(abs(self.unit.low), abs(self.unit.high)) ** 2
        error = 2 * (math.prod(self.shape) + 2) * _ULP * largest * math.prod(self.shape)

        def answer(step: float) -> NDArray[Any]:
            A = self._matrix()
            return to_grid(float(np.square(A.data if sp.issparse(A) else A).sum()), step)

        l2 = largest * (2.0 if self.symmetric else 1.0) + error
        return Bounded(Bound("trace", (), l2), answer)

    def cells(self, dither: int) -> Bounded:
        """Return which cells (for a graph, pairs) are one, to be flipped: a unit is one of them.

        A cell x of [0, high] is a one where x/high exceeds a public threshold of its place, in
        [0, 1) and even over `dither`: weights keep their mean, and 0 and `high` are what they are.
        """
        high = self.unit.high
        if not (self.unit.single and self.unit.low == 0 < high):
            raise ValueError(f"cells are flipped in bounds (0, high). Got {self.unit!r}.")
        shape = (1, pairs_of(self.shape[0])) if self.symmetric else self.shape

        def answer(_: float) -> NDArray[Any]:
            A = sp.coo_array(self._matrix())
            rows, columns = A.row.astype(np.int64), A.col.astype(np.int64)
            places = rows * self.shape[1] + columns
            if self.symmetric:
                places = pair_places(rows, columns, self.shape[0])
            ones = A.data / high > _thresholds(places, dither)
            return np.sort(places[(ones & (rows < columns)) if self.symmetric else ones])

        return Bounded(Bound("cells", shape, 1.0, cells=1), answer)

    def spread(self) -> Bounded:
        """Return the sum of x (high - x): how far cells are from 0 and `high`.

        A cell adds a number in [0, high^2/4], so that one entry, or pair, moves it by that much.
        """
        if self.symmetric or not self.unit.low == 0 < self.unit.high:
            raise ValueError(f"a spread needs entries in (0, high). Got {self.unit!r}.")
        high = self.unit.high
        error = 2 * (math.prod(self.shape) + 4) * _ULP * high**2 * math.prod(self.shape)

        def answer(step: float) -> NDArray[Any]:
            A = self._matrix()
            x = A.data if sp.issparse(A) else A
            return to_grid(float((x * (high - x)).sum()), step)

        change = high**2 / 4 + error
        return Bounded(Bound("spread", (), change, l1=change), answer)

    def whole(self) -> Bounded:
        """Return A itself: one entry changes alpha, a symmetric pair two of them."""

        def answer(step: float) -> NDArray[Any]:
            return to_grid(dense(self._matrix()), step)

        slack = math.sqrt(2.0) if self.symmetric else 1.0
        l2, symmetric = self.unit.alpha * slack, self.symmetric
        both = 2.0 if symmetric else 1.0
        bound = Bound(
            "matrix", self.shape, l2, symmetric=symmetric, slack=slack,
            l1=self.unit.alpha * both, l1_slack=both,
        )  # fmt: skip
        return Bounded(bound, answer)


def pairs_of(n: int) -> int:
    """Return the number of pairs of n nodes."""
    return n * (n - 1) // 2


def pair_places(rows: NDArray[Any], columns: NDArray[Any], n: int) -> NDArray[np.int64]:
    """Return the places of pairs i < j, counted along the rows of the upper triangle."""
    return np.asarray(rows * (2 * n - rows - 1) // 2 + columns - rows - 1, np.int64)


def _thresholds(places: NDArray[np.int64], dither: int) -> FloatArray:
    """Return a number in [0, 1) for each place, the same for all data (a hash of 64 bits)."""
    x = places.astype(np.uint64) + np.uint64(dither * 0x9E3779B97F4A7C15 % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray((x ^ (x >> np.uint64(31))) >> np.uint64(11), np.float64) * _ULP


def cleaned(A: Any, unit: EntryUnit) -> Any:
    """Return float64 A with clipped entries; entries that are not numbers count as zero."""
    A = without_duplicates(A) if sp.issparse(A) else np.asarray(A, dtype=np.float64)
    A = entrywise(partial(_clipped, unit=unit), A)
    if not unit.symmetric:
        return A
    triu = sp.triu if sp.issparse(A) else np.triu
    both = triu(A, 1 if unit.kind == "edge" else 0) + triu(A, 1).T
    return sp.csr_array(both) if sp.issparse(both) else both


def _clipped(values: FloatArray, unit: EntryUnit) -> FloatArray:
    return np.clip(np.where(np.isnan(values), 0.0, values), unit.low, unit.high)
