"""Queries on user-item matrices, in the units interaction and user.

Notation: user u with the set S of d items gives the row 1_S / sqrt(max(d, d0)); d0, the degree
floor, is a public integer. Neighbours: one 1 appears or goes (add_remove), or one 1 of a user moves
to another item (replace: the degree stays). The numbers of users and of items are public.
X (n x k) is public; r1 >= r2 are its largest row norms, c_j the sum of its j largest (a sum of j
rows of X has a norm of at most min(c_j, sqrt(j) ||X||_2)).

Both units offer the same two releases, so that one solver serves both: the item counts, and the
Gram matrix of the user rows without its diagonal (pairs), on selected items.

| one unit more or less | counts | pairs | Gram matrix |
|---|---|---|---|
| row: user of d items, scaled | 1 (rows of norm 1) | 1 (pairs of norm 1) | |
| row, counts for pure noise | 1 (rows of sum 1) | | |
| interaction | 1 (long histories weigh less) | `pair_change` | `gram_change` |
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp._limits import BLOCK, GRAM_FEATURES, ROUNDING, FloatArray
from skdp.data.blocks import AnyRows, Block, block_gram, column_sums, entrywise, plain_block
from skdp.data.factorisations import of_public
from skdp.data.histories import MARGIN, binary_rows, history_rows, with_unit_pairs
from skdp.data.integers import exact_map, off_grid, on_grid
from skdp.data.numbers import restricted
from skdp.privacy.gate.bounds import Bound, Bounded, PrivateQuery
from skdp.queries.entries import largest_two, projected_gram, rounded_release
from skdp.queries.rows import RowQuery
from skdp.queries.sums import Neighbours, SumQuery, to_grid
from skdp.solvers.linalg import without_direction


def gram_change(n_items: int, degree_floor: int, adjacency: str) -> float:
    """Return the largest Frobenius norm of the change of the Gram matrix.

    add_remove: with d items after adding one, (2d - 1)/d0^2 while d <= d0 (one new row and column
    of 1/d0), and 2/d beyond it (1/d^2 + 2(d-1)/d^2 + the (d-1)^2 entries that fall from 1/(d-1)
    to 1/d), which is no more than at d = d0. replace: d - 1 pairs leave and enter next to two
    diagonal entries, each 1/max(d, d0): sqrt(2 (2d - 1))/max(d, d0), largest at d = d0, or with one
    item left to move to; an item that is not kept is one that appears or goes.
    """
    d0 = degree_floor
    square = 2 * min(d0, n_items) - 1
    if adjacency == "replace":
        square = max(square, 2 * (2 * min(d0, max(1, n_items - 1)) - 1))
    return math.sqrt(square) / d0


def pair_change(degree_floor: int, adjacency: str) -> float:
    """Return the largest Frobenius norm of the change of the pairs: sqrt(2/d0), d0 >= 2.

    add_remove, d items after adding one, a pair weighs w = 1/sqrt(e (e - 1)), e = max(d, d0): up to
    the floor 2 (d - 1) w^2 <= 2/d0. Beyond it old pairs lose too: with x = 2/d, in total
    x + (1 - sqrt(1 - x))^2 <= x + x^2/(2 - x) = 2/(d - 1) <= 2/d0, as (1 + sqrt(1 - x))^2 >= 2 - x.
    replace: 2 (d - 1) pairs leave and enter, on both sides: 4 (d - 1) w^2 <= 4/d0.
    """
    return math.sqrt((4 if adjacency == "replace" else 2) / max(degree_floor, 2))


def product_change(X: FloatArray, degree_floor: int, adjacency: str) -> float:
    """Return the largest Frobenius norm of the change of R'R X, for all degrees at once.

    add_remove, with m the sum of the rows of X over the d - 1 other items: beyond the floor the new
    row is (m + X_k)/d and the others lose m/(d(d-1)) and gain X_k/d: in total
    ||X_k||^2/d + ||m||^2/(d(d-1)); under the floor (||m + X_k||^2 + (d-1) ||X_k||^2)/d0^2, which
    grows with d and is the larger one at the floor, as bounds of sums of j rows grow at most as j.
    replace (item k for l, m the sum over the d - 1 kept items, s = X_k + X_l, t = X_l - X_k): the
    change has squared norm (2 ||m||^2 + 2 m.s + s^2/2 + (d - 1/2) t^2)/max(d, d0)^2, where
    s^2 + t^2 = 2 (||X_k||^2 + ||X_l||^2); the worst s is m/(d - 1).
    """
    n, d0 = len(X), degree_floor
    norms = np.sort(np.linalg.norm(X, axis=1))[::-1]
    spectral = float(of_public(np.linalg.norm, X, 2))
    sums = np.concatenate([[0.0], np.cumsum(norms)])
    longest = np.minimum(sums, np.sqrt(np.arange(n + 1)) * spectral)
    first, second = largest_two(norms)
    cap = gram_change(n, d0, adjacency) * spectral
    if adjacency == "replace":
        d = np.arange(2, n + 1, dtype=np.float64)
        pair = first**2 + second**2
        swaps = (2 + 1 / (d - 1)) * longest[1:n] ** 2 + (2 * d - 1) * pair
        squares = np.append(swaps / np.maximum(d, d0) ** 2, pair / d0**2)
        return min(math.sqrt(float(squares.max())), cap)
    most = min(d0, n)
    return min(math.sqrt((most - 1) * first**2 + float(longest[most]) ** 2) / d0, cap)


class InteractionQuery(PrivateQuery):
    """Second moments of degree-normalised binary rows.

    Parameters
    ----------
    R : array or sparse matrix of shape (n_users, n_items)
        Interactions: what is stored and not zero (nor NaN) counts as a 1.
    degree_floor : int
        Users with fewer items are normalised as if they had this many.
    adjacency : {"add_remove", "replace"}
        One interaction appears or goes, or moves to another item.
    prepare : callable or None
        A map of the matrix that takes each cell by itself, run inside the gate.
    """

    def __init__(
        self,
        R: Any,
        *,
        degree_floor: int,
        adjacency: str,
        prepare: Callable[[Any], Any] | None = None,
    ) -> None:
        if isinstance(degree_floor, bool) or not isinstance(degree_floor, int | np.integer):
            raise TypeError(f"'degree_floor' must be an integer. Got {degree_floor!r} instead.")
        if degree_floor < 1:
            raise ValueError(f"'degree_floor' must be at least 1. Got {degree_floor!r} instead.")
        self._raw = R
        self._prepare = prepare
        self._rows: Any = None
        self._kept: NDArray[np.intp] | None = None
        self.degree_floor = int(degree_floor)
        self.adjacency = adjacency
        self._units = Neighbours(adjacency).units
        self.shape: tuple[int, int] = R.shape
        self.n_features = int(R.shape[1])

    def floored(self, degree_floor: int) -> InteractionQuery:
        """Return the same users with another degree floor."""
        return self._with(_rows=None, degree_floor=int(degree_floor))

    def columns(self, kept: NDArray[np.intp]) -> InteractionQuery:
        """Return the same users on a public selection of items, normalised by what is kept."""
        shape, whole = (self.shape[0], len(kept)), self._kept
        kept = kept if whole is None else whole[kept]
        return self._with(_rows=None, _kept=kept, shape=shape, n_features=shape[1])

    def _normalised(self) -> Any:
        """Binary rows over sqrt(max(degree, floor)): inside the gate, once."""
        if self._rows is None:
            raw = self._raw if self._prepare is None else self._prepare(self._raw)
            R = sp.csr_array(plain_block(raw)).copy()
            R.data = np.where(np.isnan(R.data), 0.0, R.data)
            R.eliminate_zeros()
            R = R if self._kept is None else R[:, self._kept]
            degrees = np.diff(R.indptr)
            scale = 1 / np.sqrt(np.maximum(degrees, self.degree_floor))
            R.data = np.repeat(scale, degrees)
            self._rows = R
        return self._rows

    def _error(self, X_norm: float) -> float:
        """Bound the float error of R'(R X) in two neighbours: row norms are at most 1."""
        terms = self.shape[0] + self.shape[1] + 8
        return 2 * terms * ROUNDING * self.shape[0] * X_norm

    def counts(self) -> Bounded:
        """Return the number of users of each item; a user of d > d0 items counts sqrt(d0/d).

        That is sqrt(d0) times the sums of normalised rows. add_remove: beyond d0
        1/d + (d-1)(1/sqrt(d-1) - 1/sqrt(d))^2 <= 1/d0, under it 1/d0: 1 in l2; in l1
        sqrt(d0) (1/sqrt(d) + (d-1)(1/sqrt(d-1) - 1/sqrt(d))), which falls with d, and 1. replace:
        two entries of 1 at most.
        """
        (m, n), floor = self.shape, min(self.degree_floor, self.n_features)
        beyond = floor - (floor - 1) * math.sqrt(floor / (floor + 1)) if floor < n else 1.0

        def weighted() -> FloatArray:
            degrees = np.diff((rows := self._normalised()).indptr)
            weights = np.repeat(np.sqrt(floor / np.maximum(degrees, floor)), degrees)
            return np.asarray(np.bincount(rows.indices, weights, minlength=n), np.float64)

        return rounded_release(
            "item_counts", (n,), math.sqrt(self._units),
            2 * (m + 4) * ROUNDING * m * math.sqrt(floor), weighted,
            l1=2.0 if self.adjacency == "replace" else beyond,
        )  # fmt: skip

    def cells(self) -> Bounded:
        """Return the positions of the ones, for randomized response: 1 differs, 2 under replace."""
        shape = (self.shape[0], self.n_features)
        moved = int(self._units)

        def answer(_: float) -> NDArray[Any]:
            rows = self._normalised()
            rows.sort_indices()
            users = np.repeat(np.arange(shape[0], dtype=np.int64), np.diff(rows.indptr))
            return np.asarray(users * shape[1] + rows.indices)

        return Bounded(Bound("randomized_entries", shape, math.sqrt(moved), cells=moved), answer)

    def gram(self) -> Bounded:
        """Return R'R: see `gram_change`."""
        n = self.n_features
        return rounded_release(
            "gram", (n, n), gram_change(n, self.degree_floor, self.adjacency), self._error(1.0),
            lambda: (self._normalised().T @ self._normalised()).toarray(), symmetric=True,
        )  # fmt: skip

    def pairs(self) -> Bounded:
        """Return R'R without its diagonal, users of the floor scaled to a norm of 1: `pair_change`.

        Two items of a user of d add 1/sqrt(e (e - 1)) for e = max(d, d0, 2): row norms are below
        2**(1/4).
        """

        def compute() -> Any:
            rows = self.floored(1)._normalised()
            e = np.maximum(np.diff(rows.indptr), max(self.degree_floor, 2))
            rows.data = np.repeat((e * (e - 1.0)) ** -0.25, np.diff(rows.indptr))
            total = (rows.T @ rows).toarray()
            return total - np.diag(np.diag(total))

        n, change = self.n_features, pair_change(self.degree_floor, self.adjacency)
        error = 2 * self._error(1.0)
        return rounded_release("pairs", (n, n), change, error, compute, symmetric=True)

    def right(self, X: FloatArray) -> Bounded:
        """Return R'(R X), the Gram matrix times X: see `product_change`."""
        X = np.asarray(X, np.float64)

        l2 = product_change(X, self.degree_floor, self.adjacency)
        error = self._error(float(np.linalg.norm(X)))
        return rounded_release(
            "gram_product", (self.n_features, X.shape[1]), l2, error,
            lambda: self._normalised().T @ (self._normalised() @ X),
        )  # fmt: skip

    def ritz(self, X: FloatArray) -> Bounded:
        """Return X'R'R X. ||X' E X||_F <= ||X||_2 ||E X||_F for the change E of R'R."""
        X = np.asarray(X, np.float64)
        spectral = float(of_public(np.linalg.norm, X, 2))
        l2 = product_change(X, self.degree_floor, self.adjacency) * spectral
        error = self._error(float(np.linalg.norm(X))) * spectral
        return projected_gram(self._normalised, X, l2, error)

    def square_sum(self) -> Bounded:
        """Return the sum of ||row||^2 = min(d, d0)/d0 over users: one interaction, 1/d0 or 0."""
        error = 2 * (self.shape[0] + self.shape[1]) * ROUNDING * self.shape[0]

        def answer(step: float) -> NDArray[Any]:
            return to_grid(float((self._normalised().data ** 2).sum()), step)

        most = 1 / self.degree_floor + error
        return Bounded(Bound("squared_norm_sum", (), most, l1=most), answer)


# Co-occurrences of items: the Gram matrix of non-negative rows without its diagonal.
#
# The diagonal (an item with itself) does not depend on latent factors, and item counts are known.
# The same holds for the direction v of item popularity, which is public. If both are removed from x
# x' before it is scaled to norm 1, rows count more: the squared signal is twice as large for a row
# of two items, d / (d - 1) times for one of d items, and still larger for rows of popular items.


class PairQuery(SumQuery):
    """The pairs of non-negative CSR rows, each row scaled so that its pairs have norm 1.

    Parameters
    ----------
    rows : RowSource or RemoteRows
        The private rows.
    adjacency : {"add_remove", "replace"}
        What neighbours differ in.
    n_jobs : int or None
        Threads for the passes over the rows; it never changes a result.
    """

    def moment(self, popular: FloatArray) -> Bounded:
        """Return P A P, A = X'X without its diagonal, P = I - vv' for the public unit vector v.

        One row adds P A_z P, whose norm is at most 1 in integers too (`with_unit_pairs`). Floors:
        each P rounds n + sqrt(n) numbers' worth, and P stretches nothing; the mean of both
        triangles n more. Replace: two non-negative arrays, sqrt(2), and v is not used, as P mixes
        signs (a single pair is a number in [0, 1]).
        """
        d, v = int(self._source.n_features), np.asarray(popular, np.float64)
        if v.shape != (d,) or not np.linalg.norm(v) <= 1 + 1e-6:
            raise ValueError(f"'popular' must be a vector of {d} numbers, of length 1 at most.")
        grid = np.zeros(d) if self.neighbours.replace else on_grid(v / (1 + 1e-6))

        def answer(step: float) -> NDArray[Any]:
            term = partial(_pairs, unit=math.sqrt(step), popular=off_grid(grid))
            total = self._sum(term, (d, d), step)
            if not grid.any():
                return total
            if step:
                return _deflated(total, grid[:, None])
            return np.asarray(without_direction(total, off_grid(grid)))

        l2 = self.neighbours.positive(1.0, d * (d - 1) // 2)
        slack = 5.0 * d if grid.any() else 0.0
        return Bounded(Bound("pairs", (d, d), l2, symmetric=True, slack=slack), answer)


def _pairs(rows: Block, unit: float, popular: FloatArray) -> FloatArray:
    gram = block_gram(with_unit_pairs(rows, unit, popular))
    np.fill_diagonal(gram, 0.0)
    return gram


def _deflated(K: NDArray[np.int64], grid: FloatArray) -> NDArray[np.int64]:
    """Return P K P rounded down, for a symmetric integer K, P = I - vv' and v on the grid.

    Everything is integer arithmetic, so the bits do not depend on the machine.
    """
    for _ in range(2):
        width = max(1, BLOCK // len(K))
        bands = [slice(i, i + width) for i in range(0, len(K), width)]
        image = np.hstack([exact_map(grid.T, K[:, band]) for band in bands])
        for band in bands:
            K[band] -= exact_map(grid[band], image)
        K = np.ascontiguousarray(K.T)
    return np.asarray((K + K.T) >> 1)


class RowHistories(SumQuery):
    """Histories whose privacy unit is a row: all items of one user.

    Parameters
    ----------
    rows : RowSource or RemoteRows
        The private rows; positive entries are items.
    adjacency : {"add_remove", "replace"}
        What neighbours differ in.
    n_jobs : int or None
        Threads for the passes over the rows; it never changes a result.
    cap : float or None
        Public: entries count by min(x, cap), then rows have norm 1. None: all alike.
    pure : bool
        Whether counts are for pure noise: sums of rows whose entries sum to 1.
    """

    def __init__(
        self,
        rows: AnyRows,
        *,
        adjacency: str,
        n_jobs: int | None = None,
        cap: float | None = None,
        pure: bool = False,
    ) -> None:
        super().__init__(rows, adjacency=adjacency, n_jobs=n_jobs)
        self.n_features = rows.n_features
        self._cap = cap
        self._pure = pure

    def counts(self) -> Bounded:
        """Return the sums of the rows, each of norm 1 (of sum 1 if `pure`) and not negative."""
        if self._pure:
            return self._shares()
        rows = restricted(self._source, partial(history_rows, cap=self._cap), self.n_features)
        return self._derived(RowQuery, rows, clip_norm=1.0).positive_sums()

    def _shares(self) -> Bounded:
        """Return the sums of rows of sum 1: l1 and l2 of one row are 1 at most, in integers too.

        Entries are rounded down and MARGIN covers what floats add to the sum of a row. Replace:
        rows are not negative, so they differ by sqrt(2) in l2 and by 2 in l1.
        """
        n, units = self.n_features, self.neighbours.units
        rows = restricted(self._source, partial(history_rows, cap=self._cap, shares=True), n)
        query = self._derived(SumQuery, rows)

        def answer(step: float) -> NDArray[Any]:
            def term(block: Any) -> NDArray[Any]:
                if step == 0.0:
                    return column_sums(block)
                whole = entrywise(lambda x: np.floor(x * (MARGIN / step)), block)
                return column_sums(whole).astype(np.int64)

            return query._sum(term, (n,), step)

        l2 = self.neighbours.positive(1.0, n)
        bound = Bound("item_frequency_sum", (n,), l2, slack=0.0, l1=units, l1_slack=0.0)
        return Bounded(bound, answer)

    def moment(self, kept: NDArray[np.intp], floor: int, popular: FloatArray) -> Bounded:
        """Return the co-occurrences without the popularity direction: see `PairQuery.moment`."""
        view = partial(history_rows, kept=kept, cap=self._cap)
        query = self._derived(PairQuery, restricted(self._source, view, len(kept)))
        if len(kept) > GRAM_FEATURES:  # each thread needs its own array
            query.n_jobs = 1
        return query.moment(popular)


class InteractionHistories(PrivateQuery):
    """Histories whose privacy unit is one interaction; the numbers of users and items are public.

    Parameters
    ----------
    R : CSR matrix of shape (n_users, n_items)
        Positive entries are items.
    adjacency : {"add_remove", "replace"}
        An interaction appears or goes, or moves to another item.
    usual : int
        Users of more items have smaller weights in the counts.
    """

    def __init__(self, R: Any, *, adjacency: str, usual: int) -> None:
        self.n_features, self._usual = int(R.shape[1]), usual
        self._at = partial(InteractionQuery, R, adjacency=adjacency, prepare=binary_rows)

    def counts(self) -> Bounded:
        """Return the weighted number of users of each item."""
        return self._at(degree_floor=self._usual).counts()

    def moment(self, kept: NDArray[np.intp], floor: int, popular: FloatArray) -> Bounded:
        """Return the pairs of the kept items, with a degree floor."""
        return self._at(degree_floor=floor).columns(kept).pairs()

    def cells(self, kept: NDArray[np.intp]) -> Bounded:
        """Return the cells of the kept items, for randomized response."""
        return self._at(degree_floor=1).columns(kept).cells()
