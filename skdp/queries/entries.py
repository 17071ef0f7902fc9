"""Queries on a matrix whose privacy unit is one entry, one edge, or a bounded perturbation.

Notation: A is m x n with entries clipped to [lo, hi], which holds 0; both shapes are public.
X (n x k) and U (m x k) are public; r1 >= r2 are the largest row norms of the matrix multiplied.
alpha is the largest change of an entry: max(|lo|, |hi|) against 0 (add_remove), hi - lo (replace);
entry_change and edge_change are entry and edge with alpha = s, and entries without bounds.

| unit | A X | X'A X (symmetric A) | U'A X |
|---|---|---|---|
| entry | alpha r1 | | alpha r1(U) r1(X) |
| edge (no loops) | alpha sqrt(r1^2 + r2^2) | alpha p(X, X) | alpha p(U, X) |
| mixed (symmetric A), sum_i ||(A - A')_i||_1^2 <= s^2 | s r1 | s r1 ||X||_2 | |
| frobenius, ||A - A'||_F <= s | s ||X||_2 | s ||X||_2^2 | s ||U||_2 ||X||_2 |
| spectral, ||A - A'||_2 <= s | s ||X||_F | s ||X||_F ||X||_2 | s min(||U||_F ||X||_2, ...) |

One changed entry changes row i of A X by a X_j; a pair changes rows i and j by a X_j and a X_i, and
U'A X by a (U_i' X_j + U_j' X_i), of which p is the largest norm over all pairs of rows. Row i of
E X is a sum of rows of X with weights E_i, so that its norm is at most ||E_i||_1 r1 (mixed). The
last two lines are ||E X||_F <= ||E||_F ||X||_2 and <= ||E||_2 ||X||_F. Entries without bounds: see
below.
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

from skdp._limits import NEGLIGIBLE, ROUNDING, WIDER, FloatArray
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

    def core(self, U: FloatArray, X: FloatArray, order: int = 2, error: float = 0.0) -> float:
        """Largest norm of the change of U'A X: one entry gives a rank-one matrix.

        The change of A X is multiplied by U', or that of A'U by X: no side is always shorter.
        `error` is what rounding of both matrices may add to the norm for a pair.
        """
        if self.kind.pair:
            return self.alpha * (_largest_of_pairs(U, X, order) + error)
        if self.kind.single:
            first = [largest_two(_row_norms(side, order))[0] for side in (U, X)]
            return self.alpha * first[0] * first[1]
        if order != 2:
            return math.inf
        spectral = _DUALS["spectral"]
        return min(self.product(X) * spectral(U), self.product(U) * spectral(X))


_PAIRED = 1000  # numbers of the longest rows, of which all pairs are tried


def _largest_of_pairs(U: FloatArray, X: FloatArray, order: int) -> float:
    """Return the largest norm of U_i' X_j + U_j' X_i over pairs i < j, or a bound close to it.

    In the Frobenius norm its square is |U_i|^2 |X_j|^2 + |U_j|^2 |X_i|^2 + 2 (U_i.U_j)(X_i.X_j).
    With rows sorted by the longer of both, in parts of the longest ones, a pair with a row beyond
    the first m has at most 2 a_1 a_(m + 1) for their lengths a.
    """
    longest = [max(float(_row_norms(side, order).max(initial=0.0)), 1e-300) for side in (U, X)]
    U, X = U / longest[0], X / longest[1]
    lengths = np.maximum(_row_norms(U, order), _row_norms(X, order))
    ranked = np.argsort(-lengths, kind="stable")
    m = min(len(X), max(2, _PAIRED // max(U.shape[1], X.shape[1])))
    U, X = U[ranked[:m]], X[ranked[:m]]
    sizes = np.outer(_row_norms(U, order), _row_norms(X, order)) ** order
    rounding = NEGLIGIBLE * (sizes + sizes.T)  # also where two terms cancel
    if order == 1:
        both = np.einsum("ia,jb->ijab", U, X)
        found = np.abs(both + both.swapaxes(0, 1)).sum(axis=(2, 3)) + rounding
    else:
        squares = sizes + sizes.T + 2 * (U @ U.T) * (X @ X.T) + rounding
        found = np.sqrt(np.maximum(squares, 0.0))
    np.fill_diagonal(found, 0.0)  # there are no loops
    rest = 2 * lengths[ranked[0]] * lengths[ranked[m]] if m < len(lengths) else 0.0
    return longest[0] * longest[1] * max(float(found.max(initial=0.0)), rest)


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
        l2, l1 = self.unit.core(X, X), self.unit.core(X, X, 1)
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


def _rounded_rows(X: FloatArray, order: int) -> tuple[float, float]:
    """Return the norm of the longest row, and what rounding to 26 bits may add to it."""
    added = 2.0**-25 * X.shape[1] * np.linalg.norm(X, axis=0).max(initial=0.0)
    return float(_row_norms(X, order).max(initial=0.0)), float(added)


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

    def _cores(self, U: FloatArray, X: FloatArray) -> tuple[float, float]:
        """Return the l2 and l1 bounds of the change of U'A X, of matrices rounded to 26 bits."""

        def of(order: int) -> float:
            (u, du), (x, dx) = (_rounded_rows(side, order) for side in (U, X))
            bound = self.unit.core(U, X, order, 2 * (u * dx + du * x + du * dx))
            return bound * _moved(U, order) * _moved(X, order)

        return of(2), of(1)

    def core(self, U: FloatArray, X: FloatArray) -> Bounded:
        """Return U'A X: a factor ||U||_2 more, or the norms of U and X the other way round."""
        U, X = np.asarray(U, np.float64), np.asarray(X, np.float64)
        bound = self._bound("projected_matrix", (U.shape[1], X.shape[1]), *self._cores(U, X))
        return Bounded(bound, self._answer(X, U, transpose=False))

    def ritz(self, X: FloatArray) -> Bounded:
        """Return X'A X of a symmetric A, of which the symmetric part is used."""
        X = np.asarray(X, np.float64)
        l2, l1 = self._cores(X, X)
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
# Change of A'A by one entry: a row has u outside of it and v or -w in it; x and y are the clipped
# rows. The square is D = |x|^4 + |y|^4 - 2 (x.y)^2. An entry that is moved to 0 from the same sign
# moves the rows apart, so let v >= w >= 0, s = v + w, z = |u|^2, d = v^2 - w^2 and C = 1.
#
# * No row is clipped: s^2 (2z + (v - w)^2), which grows up to z = 1 - v^2.
# * Both are: 2 z s^2/((z + v^2)(z + w^2)), which falls beyond z = vw. If w s < 1, that is before it
#   begins at z = 1 - w^2. Else it is 2 at z = vw: no PSD matrices of norm 1 lie farther apart.
# * One is: with q = |y|^2 and b = w s, D(q) = 1 + q^2 - 2 (q - b)^2/(q + d). There D(1) - D(q) is
#   (1 - q)(2 v^2 s^2/((1 + d)(q + d)) - (1 - q)): once positive it remains so, and for v >= 1 it is
#   positive. If it is negative at the other end, q = 1 - d, then v^2 s^2 < d and D falls there; as
#   its second derivative grows, it rises at most once. So D is largest at one of both ends.
#
# The ends give s^2 (2 (1 - v^2) + (v - w)^2) for v <= 1, and 2 (1 - w^2) s^2/(1 + d). The second
# grows in v and w while w s < 1. So does the first where it is larger: for v - w >= s (s^2 - 2
# w^2). So the bounds of entries are the worst v and w; add_remove has w = 0.


def matrix_query(A: Any, unit: MatrixUnit) -> EntryQuery | NormQuery:
    """Return the query over a matrix whose unit is an entry in bounds, or a change of some norm."""
    return EntryQuery(A, unit) if unit.bounded else NormQuery(A, unit)


def moment_change(unit: MatrixUnit, clip_norm: float) -> float:
    """Return the largest Frobenius norm of the change of A'A: see the module."""
    w, v = (end / clip_norm for end in sorted((abs(unit.low), abs(unit.high))))
    if unit.adjacency != "replace":
        w = 0.0
    s, square = v + w, 2.0
    if w * s < 1:
        square = 2 * (1 - w * w) * (s / math.hypot(v, math.sqrt(1 - w * w))) ** 2
        if v <= 1:
            square = max(square, s * s * (2 * (1 - v * v) + (v - w) ** 2))
    return clip_norm * clip_norm * math.sqrt(square)


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
        """Return V'A'A V: ||V'E V||_F <= ||V||_2^2 ||E||_F for the change E of A'A.

        And V'E V is pp' - qq' for the images p, q of a clipped row in both neighbours: at most
        |p - q| |p + q|, of which |p + q| <= 2 C ||V||_2. With f, g <= 1 what clips them, p - q has
        at most alpha r1, for the entry, and |f - g| |V'u| for the other entries u. That is largest
        where the row is clipped by the largest entry alone: C (1 - cos) ||V||_2 for the angle
        whose tangent is largest / C.
        """
        V = np.asarray(V, np.float64)
        spectral, C = float(of_public(np.linalg.norm, V, 2)), self.clip_norm
        most, length = self.unit.largest, math.hypot(C, self.unit.largest)
        others = C * (most / length) * (most / (length + C)) * spectral
        apart = self.unit.alpha * largest_two(_row_norms(V, 2))[0] + others
        l2 = min(moment_change(self.unit, C) * spectral, 2 * C * apart) * spectral
        error = self._error() * float(np.linalg.norm(V)) ** 2
        return projected_gram(self._clipped_rows, V, l2, error)
