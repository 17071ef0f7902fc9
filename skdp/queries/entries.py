"""Queries on a matrix whose privacy unit is one entry, one edge, or a bounded perturbation.

Notation: A is m x n with entries clipped to [lo, hi], which holds 0; both shapes are public.
X (n x k) and U (m x k) are public; r1 >= r2 are the largest row norms of the matrix multiplied.
alpha is the largest change of an entry: max(|lo|, |hi|) against 0 (add_remove), hi - lo (replace).

| unit | A X | X'A X (symmetric A) | U'A X |
|---|---|---|---|
| entry | alpha r1 | | alpha r1(U) r1(X) |
| edge (no loops) | alpha sqrt(r1^2 + r2^2) | 2 alpha r1 r2 | |
| frobenius, ||A - A'||_F <= s | s ||X||_2 | s ||X||_2^2 | s ||U||_2 ||X||_2 |
| spectral, ||A - A'||_2 <= s | s ||X||_F | s ||X||_F ||X||_2 | s min(||U||_F ||X||_2, ...) |

One changed entry changes row i of A X by a X_j; a pair changes rows i and j by a X_j and a X_i; and
X'(x_i x_j' + x_j x_i')X has Frobenius norm at most 2 ||x_i|| ||x_j||. The last two lines are
||E X||_F <= ||E||_F ||X||_2 and <= ||E||_2 ||X||_F.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp.privacy.gate.bounds import Bound, Bounded, PrivateQuery
from skdp.queries.sums import Neighbours

__all__ = ["ENTRY_UNITS", "EntryQuery", "EntryUnit", "to_grid"]

ENTRY_UNITS = ("entry", "edge", "frobenius", "spectral")
FloatArray = NDArray[np.float64]
_ULP = 2.0**-53


def to_grid(values: Any, step: float) -> NDArray[Any]:
    """Round a float statistic to int64 in units of `step`, saturated; exact floats at step 0."""
    values = np.asarray(values, np.float64)
    if step == 0.0:
        return np.asarray(values)
    return np.asarray(np.clip(np.rint(values / step), -(2.0**62), 2.0**62), dtype=np.int64)


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
    name : {"entry", "edge", "frobenius", "spectral"}
        The unit.
    adjacency : {"add_remove", "replace"}
        Against zero, or any value in the bounds.
    low, high : float
        Bounds of an entry, enforced by clipping; infinite for frobenius and spectral.
    sensitivity : float
        Bound on the perturbation (frobenius, spectral): the caller's contract.
    """

    name: str
    adjacency: str = "add_remove"
    low: float = 0.0
    high: float = 1.0
    sensitivity: float = 1.0

    def __post_init__(self) -> None:
        if self.name in ("frobenius", "spectral"):  # entries have no bounds of their own
            object.__setattr__(self, "low", -math.inf)
            object.__setattr__(self, "high", math.inf)

    @property
    def alpha(self) -> float:
        """Largest change of one entry (entry, edge), or of the norm of the matrix."""
        if self.name in ("frobenius", "spectral"):
            return self.sensitivity
        return Neighbours(self.adjacency).number(self.low, self.high)

    def product_l2(self, X: FloatArray) -> float:
        """Largest Frobenius norm of the change of A X."""
        if self.name == "frobenius":
            return self.alpha * float(np.linalg.norm(X, 2))
        if self.name == "spectral":
            return self.alpha * float(np.linalg.norm(X))
        first, second = largest_two(_row_norms(X, 2))
        return self.alpha * (math.hypot(first, second) if self.name == "edge" else first)

    def product_l1(self, X: FloatArray) -> float | None:
        """Largest sum of absolute changes of A X, where there is a bound."""
        if self.name not in ("entry", "edge"):
            return None
        first, second = largest_two(_row_norms(X, 1))
        return self.alpha * (first + second if self.name == "edge" else first)

    def core_l2(self, U: FloatArray, X: FloatArray) -> float:
        """Largest Frobenius norm of the change of U'A X."""
        if self.name == "entry":
            return self.alpha * largest_two(_row_norms(U, 2))[0] * largest_two(_row_norms(X, 2))[0]
        return min(self.product_l2(X) * float(np.linalg.norm(U, 2)), self._mixed(U, X))

    def core_l1(self, U: FloatArray, X: FloatArray) -> float | None:
        """Largest sum of absolute changes of U'A X: one entry gives a rank-one matrix."""
        if self.name != "entry":
            return None
        return self.alpha * largest_two(_row_norms(U, 1))[0] * largest_two(_row_norms(X, 1))[0]

    def _mixed(self, U: FloatArray, X: FloatArray) -> float:
        if self.name != "spectral":
            return math.inf
        return self.alpha * float(np.linalg.norm(U)) * float(np.linalg.norm(X, 2))

    def ritz_l2(self, X: FloatArray) -> float:
        """Largest Frobenius norm of the change of X'A X, for a symmetric A without loops."""
        if self.name == "edge":
            first, second = largest_two(_row_norms(X, 2))
            return 2 * self.alpha * first * second
        return self.core_l2(X, X)

    def frobenius(self) -> float:
        """Largest Frobenius norm of the change of A itself."""
        if self.name == "spectral":
            return math.inf
        return self.alpha * (math.sqrt(2.0) if self.name == "edge" else 1.0)


class EntryQuery(PrivateQuery):
    """Products of a private matrix with public ones.

    Shapes are public and answers are float products rounded to the grid, so each bound is widened
    by twice a public bound on the float error of the product.

    Parameters
    ----------
    A : array or sparse matrix of shape (m, n)
        The private matrix. For the edge unit its upper triangle is the graph; loops are dropped.
    unit : EntryUnit
        What neighbours differ in; its bounds are enforced by clipping.
    """

    def __init__(self, A: Any, unit: EntryUnit) -> None:
        if unit.name == "edge" and A.shape[0] != A.shape[1]:
            raise ValueError(f"an edge needs a square matrix. Got shape {A.shape} instead.")
        self._raw = A
        self._clean: Any = None
        self.unit = unit
        self.shape: tuple[int, int] = A.shape

    def _matrix(self) -> Any:
        """Clip entries, and for a graph symmetrise: inside the gate, once."""
        if self._clean is None:
            self._clean = _cleaned(self._raw, self.unit)
        return self._clean

    @property
    def symmetric(self) -> bool:
        """Whether the matrix is symmetric by construction."""
        return self.unit.name == "edge"

    def _product_error(self, X: FloatArray, rows: int) -> float:
        """Bound the Frobenius norm of the float error of A X (or A'X with `rows` rows)."""
        largest = max(abs(self.unit.low), abs(self.unit.high))
        if not math.isfinite(largest):
            return 0.0  # frobenius, spectral: the contract is the caller's, errors included
        columns = np.linalg.norm(np.abs(X).sum(axis=0))
        return (len(X) + 2) * _ULP * largest * math.sqrt(rows) * float(columns)

    def _bounded_product(self, name: str, X: FloatArray, *, transpose: bool) -> Bounded:
        X = np.asarray(X, np.float64)
        rows = self.shape[1] if transpose else self.shape[0]
        error = 2 * self._product_error(X, rows)
        l1 = self.unit.product_l1(X)
        if l1 is not None:
            l1 = l1 * (1 + 1e-9) + error * math.sqrt(rows * X.shape[1])

        def answer(step: float) -> NDArray[Any]:
            A = self._matrix()
            return to_grid((A.T if transpose else A) @ X, step)

        l2 = self.unit.product_l2(X) * (1 + 1e-9) + error
        return Bounded(Bound(name, (rows, X.shape[1]), l2, l1=l1), answer)

    def right(self, X: FloatArray) -> Bounded:
        """Return A X: see the table of the module."""
        return self._bounded_product("right_product", X, transpose=False)

    def left(self, U: FloatArray) -> Bounded:
        """Return A'U: the same bounds, with the rows of U."""
        return self._bounded_product("left_product", U, transpose=True)

    def core(self, U: FloatArray, X: FloatArray) -> Bounded:
        """Return U'A X, with full noise (its change is not symmetric)."""
        U, X = np.asarray(U, np.float64), np.asarray(X, np.float64)
        error = 2 * self._core_error(U, X)

        def answer(step: float) -> NDArray[Any]:
            return to_grid(U.T @ (self._matrix() @ X), step)

        shape = (U.shape[1], X.shape[1])
        l2 = self.unit.core_l2(U, X) * (1 + 1e-9) + error
        l1 = self.unit.core_l1(U, X)
        if l1 is not None:
            l1 = l1 * (1 + 1e-9) + error * math.sqrt(math.prod(shape))
        return Bounded(Bound("core", shape, l2, l1=l1), answer)

    def ritz(self, X: FloatArray) -> Bounded:
        """Return X'A X of a symmetric A, with symmetric noise."""
        X = np.asarray(X, np.float64)

        def answer(step: float) -> NDArray[Any]:
            M = X.T @ (self._matrix() @ X)
            return to_grid((M + M.T) / 2, step)

        k = X.shape[1]
        l2 = self.unit.ritz_l2(X) * (1 + 1e-9) + 2 * self._core_error(X, X)
        l1 = l2 if k == 1 else None
        return Bounded(Bound("ritz", (k, k), l2, symmetric=True, l1=l1), answer)

    def _core_error(self, U: FloatArray, X: FloatArray) -> float:
        largest = max(abs(self.unit.low), abs(self.unit.high))
        if not math.isfinite(largest):
            return 0.0
        columns = np.outer(np.abs(U).sum(axis=0), np.abs(X).sum(axis=0))
        return (sum(self.shape) + 4) * _ULP * largest * float(np.linalg.norm(columns))

    def square_sum(self) -> Bounded:
        """Return ||A||_F^2: one entry moves it by at most max(lo^2, hi^2), a pair by twice that."""
        largest = max(abs(self.unit.low), abs(self.unit.high)) ** 2
        error = 2 * (math.prod(self.shape) + 2) * _ULP * largest * math.prod(self.shape)

        def answer(step: float) -> NDArray[Any]:
            A = self._matrix()
            data = A.data if sp.issparse(A) else A
            return to_grid(float(np.square(data).sum()), step)

        l2 = largest * (2.0 if self.symmetric else 1.0) + error
        return Bounded(Bound("trace", (), l2), answer)

    def whole(self) -> Bounded:
        """Return A itself: one entry changes alpha, a symmetric pair sqrt(2) alpha."""
        symmetric = self.symmetric

        def answer(step: float) -> NDArray[Any]:
            A = self._matrix()
            return to_grid(A.toarray() if sp.issparse(A) else A, step)

        slack = math.sqrt(2.0) if symmetric else 1.0
        slack = slack if self.unit.name in ("entry", "edge") else math.sqrt(math.prod(self.shape))
        bound = Bound("matrix", self.shape, self.unit.frobenius(), symmetric=symmetric, slack=slack)
        return Bounded(bound, answer)


def _cleaned(A: Any, unit: EntryUnit) -> Any:
    """Return float64 A with clipped entries; entries that are not numbers count as zero."""
    if sp.issparse(A):
        A = without_duplicates(A)
        A.data = _clipped(A.data, unit)
        if unit.name == "edge":
            upper = sp.triu(A, 1)
            A = sp.csr_array(upper + upper.T)
        return A
    A = _clipped(np.array(A, dtype=np.float64), unit)
    if unit.name == "edge":
        upper = np.triu(A, 1)
        A = upper + upper.T
    return A


def without_duplicates(A: Any) -> Any:
    """Sum duplicate entries, each cell by itself in the order of its values.

    In the order of storage an entry of one cell could change the rounding of another's sum.
    """
    entries = sp.coo_array(A)
    rows, columns = entries.coords
    data = entries.data.astype(np.float64)
    order = np.lexsort((data, columns, rows))
    rows, columns, data = rows[order], columns[order], data[order]
    first = np.ones(len(data), dtype=bool)
    first[1:] = (rows[1:] != rows[:-1]) | (columns[1:] != columns[:-1])
    starts = np.flatnonzero(first)
    sums = np.add.reduceat(data, starts) if starts.size else data
    return sp.csr_array((sums, (rows[starts], columns[starts])), shape=A.shape)


def _clipped(values: FloatArray, unit: EntryUnit) -> FloatArray:
    return np.clip(np.where(np.isnan(values), 0.0, values), unit.low, unit.high)
