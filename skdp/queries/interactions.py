"""Queries whose privacy unit is one interaction of a binary user-item matrix.

Notation: user u with the set S of d items gives the row 1_S / sqrt(max(d, d0)); d0, the degree
floor, is a public integer. Neighbours: one 1 appears or goes (add_remove), or one 1 of a user moves
to another item (replace: the degree stays). The numbers of users and of items are public.
X (n x k) is public; r1 >= r2 are its largest row norms, c_j the sum of its j largest (no sum of j
rows of X is longer than min(c_j, sqrt(j) ||X||_2)).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp.privacy.gate.bounds import Bound, Bounded, PrivateQuery
from skdp.queries.entries import largest_two, rounded_release, to_grid
from skdp.queries.sums import Neighbours

FloatArray = NDArray[np.float64]
_ULP = 2.0**-53


def gram_change(n_items: int, degree_floor: int, adjacency: str) -> float:
    """Return the largest Frobenius norm of the change of the Gram matrix.

    add_remove: with d items after adding one, (2d - 1)/d0^2 while d <= d0 (one new row and column
    of 1/d0), and 2/d beyond it (1/d^2 + 2(d-1)/d^2 + the (d-1)^2 entries that fall from 1/(d-1)
    to 1/d). replace: d - 1 pairs leave and enter beside two diagonal entries, each
    1/max(d, d0): sqrt(2 (2d - 1))/max(d, d0), largest at d = d0.
    """
    d0 = degree_floor
    if adjacency == "replace":
        return math.sqrt(2 * (2 * d0 - 1)) / d0
    d = np.arange(1, n_items + 1, dtype=np.float64)
    return math.sqrt(float(np.where(d <= d0, (2 * d - 1) / d0**2, 2.0 / d).max()))


def product_change(X: FloatArray, degree_floor: int, adjacency: str) -> float:
    """Return the largest Frobenius norm of the change of R'R X, for all degrees at once.

    add_remove, with m the sum of the rows of X over the d - 1 other items: beyond the floor the new
    row is (m + X_k)/d and the others lose m/(d(d-1)) and gain X_k/d: in total
    ||X_k||^2/d + ||m||^2/(d(d-1)); under the floor (||m + X_k||^2 + (d-1) ||X_k||^2)/d0^2.
    replace (item k for l, m the sum over the d - 1 kept items, s = X_k + X_l, t = X_l - X_k): the
    change has squared norm (2 ||m||^2 + 2 m.s + s^2/2 + (d - 1/2) t^2)/max(d, d0)^2, where
    s^2 + t^2 = 2 (||X_k||^2 + ||X_l||^2); the worst s is m/(d - 1).
    """
    n, d0 = len(X), degree_floor
    norms = np.sort(np.linalg.norm(X, axis=1))[::-1]
    spectral = float(np.linalg.norm(X, 2))
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
    d = np.arange(1, n + 1, dtype=np.float64)
    beyond = first**2 / d + longest[:-1] ** 2 / (d * np.maximum(d - 1, 1))
    under = ((d - 1) * first**2 + longest[1:] ** 2) / d0**2
    return min(math.sqrt(float(np.where(d > d0, beyond, under).max())), cap)


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

    def columns(self, kept: NDArray[np.intp]) -> InteractionQuery:
        """Return the same users on a public selection of items, normalised by what is kept."""
        narrow = copy.copy(self)
        narrow._rows = None
        narrow._kept = kept if self._kept is None else self._kept[kept]
        narrow.n_features = len(kept)
        narrow.shape = (self.shape[0], len(kept))
        return narrow

    def _normalised(self) -> Any:
        """Binary rows over sqrt(max(degree, floor)): inside the gate, once."""
        if self._rows is None:
            raw = self._raw if self._prepare is None else self._prepare(self._raw)
            R = sp.csr_array(raw, dtype=np.float64, copy=True)
            R.has_canonical_format = R.has_sorted_indices = False
            R.sum_duplicates()
            R.data = np.where(np.isnan(R.data), 0.0, R.data)
            R.eliminate_zeros()
            R = R if self._kept is None else R[:, self._kept]
            degrees = np.diff(R.indptr)
            scale = 1 / np.sqrt(np.maximum(degrees, self.degree_floor))
            R.data = np.repeat(scale, degrees)
            self._rows = R
        return self._rows

    def _error(self, X_norm: float) -> float:
        """Bound the float error of R'(R X) in two neighbours: rows are shorter than 1."""
        terms = self.shape[0] + self.shape[1] + 8
        return 2 * terms * _ULP * self.shape[0] * X_norm

    def sums(self) -> Bounded:
        """Return the column sums of the normalised rows.

        add_remove: beyond the floor 1/d + (d-1)(1/sqrt(d-1) - 1/sqrt(d))^2 <= 1/d0, under it
        1/d0: 1/sqrt(d0). replace: two entries of 1/sqrt(max(d, d0)): sqrt(2/d0).
        """
        m, n = self.shape
        l2 = math.sqrt(self._units / self.degree_floor)
        return rounded_release(
            "sums", (n,), l2, 2 * (m + 2) * _ULP * m,
            lambda: np.asarray(self._normalised().sum(axis=0)).reshape(-1),
        )  # fmt: skip

    def counts(self) -> Bounded:
        """Return how many users have each item: one count moves by 1, or two under replace.

        Each moved count is rounded by itself.
        """
        moved = self._units

        def answer(step: float) -> NDArray[Any]:
            return to_grid(np.bincount(self._normalised().indices, minlength=self.n_features), step)

        bound = Bound(
            "counts", (self.n_features,), math.sqrt(moved), slack=math.sqrt(moved), l1=moved,
            l1_slack=moved,
        )  # fmt: skip
        return Bounded(bound, answer)

    def cells(self) -> Bounded:
        """Return the places of the ones, to be flipped: one cell differs, two under replace."""
        shape = (self.shape[0], self.n_features)
        moved = int(self._units)

        def answer(_: float) -> NDArray[Any]:
            rows = self._normalised()
            rows.sort_indices()
            users = np.repeat(np.arange(shape[0], dtype=np.int64), np.diff(rows.indptr))
            return np.asarray(users * shape[1] + rows.indices)

        return Bounded(Bound("cells", shape, math.sqrt(moved), cells=moved), answer)

    def gram(self) -> Bounded:
        """Return R'R: see `gram_change`."""
        n = self.n_features

        l2 = gram_change(n, self.degree_floor, self.adjacency)
        return rounded_release(
            "gram", (n, n), l2, self._error(1.0),
            lambda: (self._normalised().T @ self._normalised()).toarray(), symmetric=True,
        )  # fmt: skip

    def right(self, X: FloatArray) -> Bounded:
        """Return R'(R X), the Gram matrix times X: see `product_change`."""
        X = np.asarray(X, np.float64)

        l2, error = (
            product_change(X, self.degree_floor, self.adjacency),
            self._error(float(np.linalg.norm(X))),
        )
        return rounded_release(
            "gram_product", (self.n_features, X.shape[1]), l2, error,
            lambda: self._normalised().T @ (self._normalised() @ X),
        )  # fmt: skip

    def ritz(self, X: FloatArray) -> Bounded:
        """Return X'R'R X. ||X' E X||_F <= ||X||_2 ||E X||_F for the change E of R'R."""
        X = np.asarray(X, np.float64)
        spectral, k = float(np.linalg.norm(X, 2)), X.shape[1]

        def compute() -> Any:
            P = self._normalised() @ X
            return P.T @ P

        l2 = product_change(X, self.degree_floor, self.adjacency) * spectral
        error = self._error(float(np.linalg.norm(X))) * spectral
        return rounded_release("ritz", (k, k), l2, error, compute, symmetric=True)

    def square_sum(self) -> Bounded:
        """Return the sum of ||row||^2 = min(d, d0)/d0 over users: one interaction, 1/d0 or 0."""
        error = 2 * (self.shape[0] + self.shape[1]) * _ULP * self.shape[0]

        def answer(step: float) -> NDArray[Any]:
            return to_grid(float((self._normalised().data ** 2).sum()), step)

        return Bounded(Bound("trace", (), 1 / self.degree_floor + error), answer)
