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
||E X||_F <= ||E||_F ||X||_2 and <= ||E||_2 ||X||_F. Entries without bounds: see below.
"""

from __future__ import annotations

import math
import sys
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp._limits import ROUNDING, WIDER, FloatArray
from skdp.data import integers
from skdp.data.blocks import dense, entrywise, scale_rows, without_duplicates
from skdp.data.factorisations import of_public
from skdp.exceptions import PrivacyError
from skdp.privacy.gate.bounds import Bound, Bounded, PrivateQuery
from skdp.queries.sums import Neighbours, NumberQuery, to_grid
from skdp.units import INTERVAL, UNITS, Unit


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
        name, shape, l2 * WIDER + error, symmetric=symmetric,
        l1=None if math.isinf(l1) else l1 * WIDER + error * math.sqrt(size),
    )  # fmt: skip
    return Bounded(bound, lambda step: to_grid(compute(), step))


def projected_gram(rows: Callable[[], Any], X: FloatArray, l2: float, error: float) -> Bounded:
    """Bound X'R'R X of private rows R and a public X."""

    def compute() -> Any:
        P = rows() @ X
        return P.T @ P

    square = (X.shape[1], X.shape[1])
    return rounded_release("projected_gram", square, l2, error, compute, symmetric=True)


def largest_two(values: FloatArray) -> tuple[float, float]:
    """Return the largest and the second largest of non-negative values (0 where there is none)."""
    padded = np.concatenate([values, np.zeros(2)])
    second, first = np.partition(padded, len(padded) - 2)[-2:]
    return float(first), float(second)


def _row_norms(X: FloatArray, order: int) -> FloatArray:
    return np.asarray(np.linalg.norm(X, ord=order, axis=1))


@dataclass(frozen=True)
class MatrixUnit:
    """A unit of a matrix of a public shape under its adjacency and bounds, and what it changes.

    Attributes
    ----------
    name : str
        The unit, by its registered name.
    adjacency : {"add_remove", "replace"}
        Against zero, or any value in the bounds.
    low, high : float
        Bounds of an entry of units that have them, enforced by clipping; infinite elsewhere.
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
    def kind(self) -> Unit:
        """The registered unit."""
        return UNITS[self.name]

    @property
    def bounded(self) -> bool:
        """Whether entries are clipped to bounds; elsewhere a contract bounds the change."""
        return self.kind.bound is INTERVAL

    @property
    def largest(self) -> float:
        """Largest absolute value of an entry."""
        return max(abs(self.low), abs(self.high))

    @property
    def alpha(self) -> float:
        """Largest change of one entry, or of the norm of the matrix."""
        if not self.bounded:
            return self.sensitivity
        return Neighbours(self.adjacency).number(self.low, self.high)

    def product(self, X: FloatArray, order: int = 2) -> float:
        """Largest norm (of this order) of the change of A X; inf where there is no bound."""
        if self.kind.single:
            first, second = largest_two(_row_norms(X, order))
            both = math.hypot(first, second) if order == 2 else first + second
            return self.alpha * (both if self.kind.pair else first)
        return self.alpha * _DUALS[self.kind.dual](X) if order == 2 else math.inf

    def core(self, U: FloatArray, X: FloatArray, order: int = 2) -> float:
        """Largest norm of the change of U'A X: one entry gives a rank-one matrix.

        The change of A X is multiplied by U', or that of A'U by X: no side is always shorter.
        """
        if self.kind.single and (order == 1 or not self.kind.pair):
            first = [largest_two(_row_norms(side, order))[0] for side in (U, X)]
            return self.alpha * first[0] * first[1] * (2 if self.kind.pair else 1)
        if order != 2:
            return math.inf
        spectral = _DUALS["spectral"]
        return min(self.product(X) * spectral(U), self.product(U) * spectral(X))

    def ritz(self, X: FloatArray, order: int = 2, error: float = 0.0) -> float:
        """Largest norm of the change of X'A X, for a symmetric A (without loops: edges).

        `error` is what rounding may add to the norm of a row of X.
        """
        if self.kind.pair:
            first, second = largest_two(_row_norms(X, order))
            return 2 * self.alpha * (first + error) * (second + error)
        return self.core(X, X, order)


# Of a public matrix, by what the change is bounded in.
_DUALS: dict[str, Callable[[FloatArray], float]] = {
    "longest row": lambda X: largest_two(_row_norms(X, 2))[0],
    "spectral": lambda X: float(of_public(np.linalg.norm, X, 2)),
    "frobenius": lambda X: float(np.linalg.norm(X)),
}


class _MatrixQuery(PrivateQuery):
    """Products of a private matrix with public ones."""

    def __init__(self, A: Any, unit: MatrixUnit) -> None:
        if unit.kind.symmetric and A.shape[0] != A.shape[1]:
            raise ValueError(f"{unit.name!r} needs a square matrix. Got shape {A.shape} instead.")
        self._raw, self.unit = A, unit
        self.shape: tuple[int, int] = A.shape
        self.n_features = self.shape[1]

    @abstractmethod
    def _product(self, name: str, X: FloatArray, *, transpose: bool) -> Bounded:
        """Return a product with its bound."""

    def right(self, X: FloatArray) -> Bounded:
        """Return A X: see the table of the module."""
        return self._product("right_product", X, transpose=False)

    def left(self, U: FloatArray) -> Bounded:
        """Return A'U: the same bounds, as E' has the norms of E (mixed: it is E)."""
        return self._product("left_product", U, transpose=True)


class EntryQuery(_MatrixQuery):
    """Products of a private matrix with public ones.

    Shapes are public and answers are float products rounded to the grid, so each bound is widened
    by twice a public bound on the float error of the product.

    Parameters
    ----------
    A : array or sparse matrix of shape (m, n)
        The private matrix. For the edge unit its upper triangle is the graph; loops are dropped.
    unit : MatrixUnit
        "entry" or "edge" with bounds, which are enforced by clipping.
    """

    def __init__(self, A: Any, unit: MatrixUnit) -> None:
        if not unit.bounded:
            raise PrivacyError(f"float products have no bound for {unit!r}; use NormQuery.")
        super().__init__(A, unit)
        self._clean: Any = None

    def _matrix(self) -> Any:
        """Clip entries, and for a graph symmetrise: inside the gate, once."""
        if self._clean is None:
            self._clean = cleaned(self._raw, self.unit)
        return self._clean

    @property
    def symmetric(self) -> bool:
        """Whether the matrix is symmetric by construction."""
        return self.unit.kind.symmetric

    def _error(self, terms: int, mass: float) -> float:
        """Bound the float error of sums of entries, `terms` of them, times weights of this mass."""
        return 2 * terms * ROUNDING * self.unit.largest * mass

    def _product(self, name: str, X: FloatArray, *, transpose: bool) -> Bounded:
        X = np.asarray(X, np.float64)
        rows = self.shape[1] if transpose else self.shape[0]
        mass = math.sqrt(rows) * float(np.linalg.norm(np.abs(X).sum(axis=0)))
        error = self._error(len(X) + 2, mass)

        def compute() -> Any:
            return (self._matrix().T if transpose else self._matrix()) @ X

        l2, l1 = self.unit.product(X), self.unit.product(X, 1)
        return rounded_release(name, (rows, X.shape[1]), l2, error, compute, l1=l1)

    def core(self, U: FloatArray, X: FloatArray) -> Bounded:
        """Return U'A X, with full noise (its change is not symmetric)."""
        U, X = np.asarray(U, np.float64), np.asarray(X, np.float64)
        l2, l1 = self.unit.core(U, X), self.unit.core(U, X, 1)
        name, shape, error = "projected_matrix", (U.shape[1], X.shape[1]), self._core_error(U, X)
        return rounded_release(name, shape, l2, error, lambda: U.T @ (self._matrix() @ X), l1=l1)

    def ritz(self, X: FloatArray) -> Bounded:
        """Return X'A X of a symmetric A, with symmetric noise."""
        X = np.asarray(X, np.float64)

        def compute() -> Any:
            M = X.T @ (self._matrix() @ X)
            return (M + M.T) / 2

        k, error = X.shape[1], self._core_error(X, X)
        l2, l1 = self.unit.ritz(X), self.unit.ritz(X, 1)
        name, square = "rayleigh_quotient", (k, k)
        return rounded_release(name, square, l2, error, compute, l1=l1, symmetric=True)

    def _core_error(self, U: FloatArray, X: FloatArray) -> float:
        columns = np.outer(np.abs(U).sum(axis=0), np.abs(X).sum(axis=0))
        return self._error(sum(self.shape) + 4, float(np.linalg.norm(columns)))

    def square_sum(self) -> Bounded:
        """Return ||A||_F^2: one entry moves it by at most max(lo^2, hi^2), a pair by twice that."""
        largest = self.unit.largest**2
        error = 2 * (math.prod(self.shape) + 2) * ROUNDING * largest * math.prod(self.shape)

        def answer(step: float) -> NDArray[Any]:
            A = self._matrix()
            return to_grid(float(np.square(A.data if sp.issparse(A) else A).sum()), step)

        change = largest * (2.0 if self.symmetric else 1.0) + error
        return Bounded(Bound("squared_norm_sum", (), change, l1=change), answer)

    def cells(self, dither: int) -> Bounded:
        """Return the positions of the ones (for a graph: pairs), for randomized response.

        A unit is one position. An entry x in [0, high] becomes a one if x/high exceeds a public
        pseudo-random threshold in [0, 1) of its position, so that weights are kept on average, and
        0 and `high` exactly. `dither` is the seed of the thresholds.
        """
        high = self.unit.high
        if not self.unit.low == 0 < high:
            raise ValueError(f"cells are flipped in bounds (0, high). Got {self.unit!r}.")
        shape = (1, math.comb(self.shape[0], 2)) if self.symmetric else self.shape

        def answer(_: float) -> NDArray[Any]:
            A = sp.coo_array(self._matrix())
            rows, columns = A.row.astype(np.int64), A.col.astype(np.int64)
            places = rows * self.shape[1] + columns
            if self.symmetric:
                places = rows * (2 * self.shape[0] - rows - 1) // 2 + columns - rows - 1
            ones = A.data / high > _thresholds(places, dither)
            return np.sort(places[(ones & (rows < columns)) if self.symmetric else ones])

        return Bounded(Bound("randomized_entries", shape, 1.0, cells=1), answer)

    def rounding_variance(self) -> Bounded:
        """Return the sums of x (high - x), 0 if all entries are 0 or `high`, and of x high.

        Let an entry change from x to y, by D high. The second sum changes by D high^2. The first
        changes by |x - y| |high - x - y| <= D (1 - D) high^2, as x + y lies in [D high, (2 - D)
        high]. So the l1 norm of both is at most D (2 - D) high^2 <= high^2: a change from 0 to
        `high`. Each pair of a graph is counted once.
        """
        if not self.unit.low == 0 < self.unit.high:
            raise ValueError(f"a rounding variance needs entries in (0, high). Got {self.unit!r}.")
        high = self.unit.high
        error = 2 * (math.prod(self.shape) + 4) * ROUNDING * high**2 * math.prod(self.shape)

        def answer(step: float) -> NDArray[Any]:
            A = self._matrix()
            x = A.data if sp.issparse(A) else A
            sums = np.array([(x * (high - x)).sum(), (x * high).sum()])
            return to_grid(sums / (2 if self.symmetric else 1), step)

        change = high**2 + 2 * error
        return Bounded(Bound("rounding_variance", (2,), change, l1=change), answer)

    def whole(self) -> Bounded:
        """Return A itself, of a graph its pairs i < j: a unit is one number, and changes alpha."""
        n = self.shape[0]
        shape = (math.comb(n, 2),) if self.symmetric else self.shape

        def answer(step: float) -> NDArray[Any]:
            A = dense(self._matrix())
            return to_grid(A[np.triu_indices(n, 1)] if self.symmetric else A, step)

        alpha = self.unit.alpha
        bound = Bound("full_matrix", shape, alpha, slack=1.0, l1=alpha, l1_slack=1.0)
        return Bounded(bound, answer)


def _thresholds(places: NDArray[np.int64], dither: int) -> FloatArray:
    """Return a public pseudo-random number in [0, 1) for each position, from a 64-bit hash."""
    words = integers.mixed_words(places.astype(np.uint64), dither)
    return np.asarray(words >> np.uint64(11), np.float64) * ROUNDING


def cleaned(A: Any, unit: MatrixUnit) -> Any:
    """Return float64 A with clipped entries; entries that are not numbers count as zero."""
    A = without_duplicates(A) if sp.issparse(A) else np.asarray(A, dtype=np.float64)
    A = entrywise(partial(_clipped, unit=unit), A)
    if not unit.kind.symmetric:
        return A
    triu = sp.triu if sp.issparse(A) else np.triu
    both = triu(A, 1 if unit.kind.pair else 0) + triu(A, 1).T
    return sp.csr_array(both) if sp.issparse(both) else both


def _clipped(values: FloatArray, unit: MatrixUnit) -> FloatArray:
    return np.clip(np.where(np.isnan(values), 0.0, values), unit.low, unit.high)


# Queries on a matrix whose neighbours differ by a bounded change: exact for entries of any size.
#
# Notation: A is m x n; E = A - A' is one entry (or pair) of at most s, or has norm at most s, by
# the caller's contract, which `MatrixUnit` turns into bounds of products; s' is the power of two
# above s. Floats cannot be used: with entries of 1e15 s, rounding errors in A X exceed s. So all
# arithmetic is in integers.
#
# * An entry beyond 2**53 s' has float neighbours 2 s' away at least: there E is zero. Entries are
#   clipped at +-2**53 s' in both neighbours, which does not change E. (Clipping that changes E, as
#   at s, does not contract the spectral norm.)
# * Entries are rounded to multiples of a power of two, u = 2**-f s'. That moves each entry of E by
#   at most u, and none where it is 0: E has norm s + sqrt(m n) u <= (1 + 2**-13) s for 2**f >=
#   2**14 sqrt(m n). (A sum of n entries moves by n u, norms of n sums by n**1.5 u: mixed.)
# * X over the step of the release is rounded to 26 bits of its largest column norm. That costs no
#   budget, as X is public, but changes its norms by a factor of at most 1 + 2**-25 sqrt(size of X):
#   the largest row norm is at least the largest column norm over sqrt(n), and its k entries move by
#   2**-26 of that column norm each. The second row norm may be far smaller: there the error is
#   added (pairs).
# * Products are exact (see `skdp.data.integers`), and rounded down to whole steps at the end.


_WIDER_ROUNDED = (1 + 2.0**-13) * WIDER  # rounded entries, and norms of public matrices


def _moved(X: FloatArray, order: int) -> float:
    """Return the factor by which rounding to 26 bits may change norms of a public matrix.

    With order 1 the norm is the largest l1 norm of a row, whose relative change may be sqrt(k)
    times as large.
    """
    columns = X.shape[1] if order == 1 else 1
    return 1 + 2.0**-25 * math.sqrt(X.size * columns)


class NormQuery(_MatrixQuery):
    """Products of a private matrix with public ones.

    Parameters
    ----------
    A : array or sparse matrix of shape (m, n)
        The private matrix. Entries that are not numbers count as zero.
    unit : MatrixUnit
        A unit whose entries have no bounds.
    """

    def __init__(self, A: Any, unit: MatrixUnit) -> None:
        if unit.bounded:
            raise PrivacyError(f"{unit!r} has bounds of entries; use EntryQuery.")
        super().__init__(A, unit)
        self._digits: list[Any] = []
        self._bits = integers.digit_bits(max(self.shape))
        above = math.frexp(unit.sensitivity)[1]  # s' = 2**above
        limits = sys.float_info
        most = math.ldexp(1.0, above) if above < limits.max_exp else limits.max
        self._largest = most / ROUNDING
        power = 0.75 if unit.kind.dual == "longest row" else 0.5
        summed = math.log2(math.prod(self.shape)) * power
        self._grid = above - 14 - math.ceil(summed)  # u = 2**grid

    def _integers(self, values: FloatArray) -> FloatArray:
        """Return entries in multiples of u, as floats, which hold them exactly."""
        values = np.clip(values, -self._largest, self._largest)
        values *= 2.0 ** (-self._grid // 2)  # in two steps: 2**-grid may be beyond floats
        values *= 2.0 ** (-self._grid - -self._grid // 2)
        return np.asarray(np.rint(values, out=values))

    def _products(self, W: FloatArray, *, transpose: bool) -> list[Any]:
        """Return the products of the digits of A (or of A') with public integers."""
        if not self._digits:
            whole = entrywise(self._integers, cleaned(self._raw, self.unit))
            self._digits = integers.split(whole, self._bits)
        return integers.products([Z.T if transpose else Z for Z in self._digits], W)

    def _answer(
        self, X: FloatArray, U: FloatArray | None, *, transpose: bool
    ) -> Callable[[float], NDArray[Any]]:
        """Return what computes A X (or A'X), or U'A X, in whole steps."""

        def answer(step: float) -> NDArray[Any]:
            if step == 0.0:
                A = cleaned(self._raw, self.unit)
                product = (A.T if transpose else A) @ X
                return np.asarray(product if U is None else U.T @ product)
            mantissa, exponent = math.frexp(step)
            W, shift = integers.on_column_grid(X / mantissa)
            shift += exponent - self._grid
            parts = self._products(W, transpose=transpose)
            if U is not None:
                left, bits = integers.on_column_grid(U)
                shift += bits
                parts = [left.T @ digit for digit in integers.digits_of(parts, self._bits)]
                parts = [part.astype(np.int64) for part in parts]
            return integers.floored(parts, self._bits, shift)

        return answer

    def _product(self, name: str, X: FloatArray, *, transpose: bool) -> Bounded:
        X = np.asarray(X, np.float64)
        shape = (self.shape[1] if transpose else self.shape[0], X.shape[1])
        l2, l1 = (self.unit.product(X, order) * _moved(X, order) for order in (2, 1))
        return Bounded(self._bound(name, shape, l2, l1), self._answer(X, None, transpose=transpose))

    def _bound(
        self, name: str, shape: tuple[int, int], l2: float, l1: float, symmetric: bool = False
    ) -> Bound:
        """Return a bound; an array of `size` numbers has an l1 norm of at most sqrt(size) l2."""
        l1 = min(l1, math.sqrt(math.prod(shape)) * l2)
        return Bound(name, shape, l2 * _WIDER_ROUNDED, symmetric=symmetric, l1=l1 * _WIDER_ROUNDED)

    def core(self, U: FloatArray, X: FloatArray) -> Bounded:
        """Return U'A X: a factor ||U||_2 more, or the norms of U and X the other way round."""
        U, X = np.asarray(U, np.float64), np.asarray(X, np.float64)
        l2, l1 = (
            self.unit.core(U, X, order) * _moved(U, order) * _moved(X, order) for order in (2, 1)
        )
        bound = self._bound("projected_matrix", (U.shape[1], X.shape[1]), l2, l1)
        return Bounded(bound, self._answer(X, U, transpose=False))

    def ritz(self, X: FloatArray) -> Bounded:
        """Return X'A X of a symmetric A, of which the symmetric part is used."""
        X = np.asarray(X, np.float64)
        # What rounding to 26 bits may add to the sum of absolute values of a row.
        error = float(2.0**-25 * X.shape[1] * np.linalg.norm(X, axis=0).max(initial=0.0))
        l2, l1 = (self.unit.ritz(X, order, error) * _moved(X, order) ** 2 for order in (2, 1))
        bound = self._bound("rayleigh_quotient", (X.shape[1], X.shape[1]), l2, l1, symmetric=True)
        return Bounded(bound, self._answer(X, X, transpose=False))

    def square_sum(self) -> Bounded:
        """Return ||A||_F^2, which has no bound: for an infinite epsilon alone."""

        def answer(_: float) -> NDArray[Any]:
            return np.asarray(np.square(integers.stored(cleaned(self._raw, self.unit))).sum())

        return Bounded(Bound("squared_norm_sum", (), math.inf), answer)


# Second moments of rows whose privacy unit is one entry.
#
# Notation: A is m x n with entries clipped to [lo, hi], which holds 0; both shapes are public. Rows
# are scaled down to a public clip norm C after that, so one entry moves one row.
#
# Change of A'A by one entry: let a row have u outside the entry, s in it, and F(s) be the largest
# ||x x' - y y'||_F for x the clipped (u, s) and y the clipped (u, 0). Unclipped it is |s| sqrt(2
# |u|^2 + s^2), with |u|^2 <= C^2 - s^2. If both are clipped, x and y have norm C and angle
# arctan(|s|/|u|), |u| >= C: sqrt(2) C^2 |s| / sqrt(|u|^2 + s^2), largest at |u| = C. If x alone is,
# with z = |u|^2 the square is C^4 + z^2 - 2 C^2 z^2/(z + s^2), which falls and then rises in z:
# largest at the ends of [max(C^2 - s^2, 0), C^2], which are the other cases (or y = 0: C^2). So
# F(s) = |s| sqrt(2 C^2 - s^2) for |s| <= C, and sqrt(2) C^2 |s| / sqrt(C^2 + s^2) beyond.
# add_remove is F of the larger bound; replace goes by way of 0: F(hi) + F(lo). Two PSD matrices of
# norm C^2 are sqrt(2) C^2 apart at most, which (1, 1) and (1, -1) are for C = 1.


def moment_change(unit: MatrixUnit, clip_norm: float) -> float:
    """Return the largest Frobenius norm of the change of A'A: see the module."""

    def against_zero(s: float) -> float:
        C = clip_norm
        if s <= C:
            return s * math.sqrt(2 * C * C - s * s)
        return math.sqrt(2) * C * C * s / math.hypot(C, s)

    if unit.adjacency == "replace":
        by_zero = against_zero(abs(unit.low)) + against_zero(abs(unit.high))
        return min(by_zero, math.sqrt(2) * clip_norm**2)
    return against_zero(unit.largest)


class EntryRowQuery(PrivateQuery):
    """Norms, sums and second moments of rows; neighbours differ in one entry.

    Parameters
    ----------
    A : array or sparse matrix of shape (m, n)
        The private matrix.
    unit : MatrixUnit
        "entry".
    """

    def __init__(self, A: Any, unit: MatrixUnit) -> None:
        if not (unit.bounded and unit.kind.in_one_row):
            raise ValueError(f"rows of entries have the unit 'entry'. Got {unit.name!r}.")
        self._raw, self.unit = A, unit
        self.shape: tuple[int, int] = A.shape
        self.clip_norm = unit.largest * math.sqrt(A.shape[1])
        self._kept: NDArray[np.intp] | None = None
        self._clean: dict[str, Any] = {}  # shared by restricted queries

    def clipped(self, clip_norm: float) -> EntryRowQuery:
        """Return the same rows under a public clip norm."""
        return self._with(clip_norm=min(float(clip_norm), self.clip_norm))

    def columns(self, kept: NDArray[np.intp]) -> EntryRowQuery:
        """Return the rows on a public selection of columns; they are clipped after it."""
        kept = kept if self._kept is None else self._kept[kept]
        return self._with(_kept=kept, shape=(self.shape[0], len(kept)))

    def _rows(self) -> Any:
        """Return the rows with clipped entries: inside the gate."""
        if "rows" not in self._clean:
            A = cleaned(self._raw, self.unit)
            self._clean["rows"] = sp.csr_array(A) if sp.issparse(A) else A
        A = self._clean["rows"]
        return A if self._kept is None else A[:, self._kept]

    def _norms(self) -> FloatArray:
        squares = self._rows() ** 2
        return np.sqrt(np.asarray(squares.sum(axis=1), np.float64).reshape(-1))

    def _clipped_rows(self) -> Any:
        scale = np.minimum(1.0, self.clip_norm / np.maximum(self._norms(), 1e-300))
        return scale_rows(self._rows(), scale)

    def _error(self) -> float:
        """Bound the float error of A'A in two neighbours."""
        return 2 * (sum(self.shape) + 16) * ROUNDING * self.shape[0] * self.clip_norm**2

    def _lengths(self) -> NumberQuery:
        """Return the query over the norms of the rows: one entry replaces one norm by another."""
        return NumberQuery(lambda work, _: work(self._norms()), "norm", adjacency="replace")

    def kept_below(self, threshold: float) -> Bounded:
        """Return the centred rank of a threshold among the nonzero row norms.

        A row adds -1/2, 0 or 1/2, and one entry changes one row: the rank moves by at most 1.
        """
        return self._lengths().kept_below(threshold)

    def norms_above(self, threshold: float) -> Bounded:
        """Return the number of norms above a threshold: one entry changes one row."""
        return self._lengths().above(threshold)

    def counts(self) -> Bounded:
        """Return the column sums of clipped entries: one entry changes one sum by alpha."""
        m, n = self.shape
        error = 2 * (m + 2) * ROUNDING * m * self.unit.largest
        return rounded_release(
            "item_counts", (n,), self.unit.alpha, error,
            lambda: np.asarray(self._rows().sum(axis=0)).reshape(-1), l1=self.unit.alpha,
        )  # fmt: skip

    def gram(self) -> Bounded:
        """Return A'A of rows with clipped norms: see the module."""
        n = self.shape[1]

        def compute() -> Any:
            rows = self._clipped_rows()
            M = rows.T @ rows
            return M.toarray() if sp.issparse(M) else M

        l2 = moment_change(self.unit, self.clip_norm)
        return rounded_release("gram", (n, n), l2, self._error(), compute, symmetric=True)

    def ritz(self, V: FloatArray) -> Bounded:
        """Return V'A'A V: ||V'E V||_F <= ||V||_2^2 ||E||_F for the change E of A'A."""
        V = np.asarray(V, np.float64)
        l2 = moment_change(self.unit, self.clip_norm) * float(of_public(np.linalg.norm, V, 2)) ** 2
        error = self._error() * float(np.linalg.norm(V)) ** 2
        return projected_gram(self._clipped_rows, V, l2, error)
