"""How many hidden items of a history a public filter finds: a number in [0, 1] for each row.

Some items of some histories are hidden (`skdp.data.histories`), and a filter scores the others; the
recall is the share of hidden items among the 20 best. Neighbours of both units, one row or one
interaction, differ in the recall of one row; with c filters its recalls lie in a cube of c
dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp.data.blocks import AnyRows, sum_rows
from skdp.privacy.gate.bounds import Bound, Bounded, PrivateQuery

__all__ = ["RecallQuery"]

FloatArray = NDArray[np.float64]
_BEST = 20  # length of the list
_MOST_HIDDEN = 4  # items of a row that are judged at most
_WHOLE = 12  # recall in twelfths is an integer: 1 to 4 items are judged
_BITS = 20  # of a public factor or a weight of a taste, in exact products
_ROWS = 512  # judged together: bounded memory


class Tastes(Protocol):
    """What is used of a public filter."""

    kept: NDArray[np.intp]
    popularity: FloatArray
    outward: FloatArray

    def coordinates(self, rows: Any) -> FloatArray:
        """Return the weight of popularity and of each taste, row by row."""
        ...


class RecallQuery(PrivateQuery):
    """Recalls of filters that differ in the weight of their tastes.

    Parameters
    ----------
    rows : RowSource or RemoteRows
        Histories on the kept items of the filter: 1 for a known item, 2 for a hidden one.
    tastes : ItemFilter
        The public filter.
    blends : sequence of float
        Public weights of its tastes, one for each number that is released.
    whole_rows : bool
        Whether a neighbour has one row more or less; else rows are as many and one differs.
    """

    def __init__(
        self,
        rows: AnyRows,
        tastes: Tastes,
        blends: Sequence[float],
        *,
        whole_rows: bool,
        n_jobs: int | None = None,
    ) -> None:
        self._rows = rows
        self._judge = partial(_judged, tastes=tastes, blends=tuple(blends))
        self._n = len(blends)
        self.whole_rows = whole_rows
        self.n_jobs = n_jobs

    def recalls(self) -> Bounded:
        """Return the sum over rows of recall - 1/2, for each filter.

        One row more adds a point of the cube [-1/2, 1/2]^c: l2 sqrt(c)/2, l1 c/2. A row that
        changes moves from one point of it to another: twice that. Rounded once for each number.
        """
        size = 0.5 if self.whole_rows else 1.0
        c, shape = self._n, (self._n,)

        def answer(step: float) -> NDArray[Any]:
            total = sum_rows(self._rows, self._judge, shape, exact=True, n_jobs=self.n_jobs)
            exact = total / (2 * _WHOLE)
            return exact if step == 0.0 else np.rint(exact / step).astype(np.int64)

        bound = Bound(
            "recalls", shape, size * math.sqrt(c), slack=math.sqrt(c), l1=size * c, l1_slack=c
        )
        return Bounded(bound, answer)

    def best_recall(self, bonus: FloatArray) -> Bounded:
        """Score the filters by the same sums plus a public bonus, for the choice of one.

        One row more moves all scores by numbers in [-1/2, 1/2]: range 1. A row that changes moves
        them by differences of two such points: range 2.
        """
        c, range_ = self._n, 1.0 if self.whole_rows else 2.0
        exact = self.recalls().answer

        def answer(step: float) -> NDArray[Any]:
            if step == 0.0:
                return exact(0.0) + bonus
            return exact(step) + np.rint(bonus / step).astype(np.int64)

        bound = Bound("best_recall", (c,), range_ * math.sqrt(c), linf=range_)
        return Bounded(bound, answer)


def _judged(block: Any, *, tastes: Tastes, blends: tuple[float, ...]) -> FloatArray:
    """Return the sum over the rows of a block of 24 (recall - 1/2), a row by itself."""
    rows = sp.csr_array(block)
    rows.sort_indices()
    total = np.zeros(len(blends))
    if not rows.nnz:
        return total
    hidden = np.bincount(_owners(rows)[rows.data > 1], minlength=rows.shape[0])
    chosen = np.flatnonzero((hidden > 0) & (hidden < np.diff(rows.indptr)))
    for i in range(0, len(chosen), _ROWS):
        total += _recalls(rows[chosen[i : i + _ROWS]], tastes, blends)
    return total


def _owners(rows: Any) -> NDArray[np.intp]:
    return np.asarray(np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr)))


def _recalls(rows: Any, tastes: Tastes, blends: tuple[float, ...]) -> FloatArray:
    hidden, owner = rows.data > 1, _owners(rows)
    # The first few hidden items are judged: recall is then a number of twelfths.
    rank = np.cumsum(hidden) - (np.cumsum(hidden) - hidden)[rows.indptr[:-1]][owner]
    judged = hidden & (rank <= _MOST_HIDDEN)
    users, items = owner[judged], rows.indices[judged]
    weights = _WHOLE // np.bincount(users, minlength=rows.shape[0])[users]
    known = rows.copy()
    known.data = np.where(hidden, 0.0, 1.0)
    known.eliminate_zeros()
    coordinates = tastes.coordinates(known)
    popular = coordinates[:, :1] * tastes.popularity[tastes.kept]
    personal = _exact_product(coordinates[:, 1:], tastes.outward)
    total = np.zeros(len(blends))
    for j, blend in enumerate(blends):
        scores = popular + blend * personal
        scores[_owners(known), known.indices] = -np.inf
        above = _number_above(scores, users, items)
        total[j] = 2 * weights[above < _BEST].sum() - _WHOLE * rows.shape[0]
    return total


def _number_above(
    scores: FloatArray, users: NDArray[np.intp], items: NDArray[np.intp]
) -> NDArray[np.int64]:
    """Return how many items stand before each (user, item), ties by number."""
    above = np.empty(len(users), np.int64)
    earlier = np.arange(scores.shape[1])
    for i in range(0, len(users), _ROWS):
        u, v = users[i : i + _ROWS], items[i : i + _ROWS]
        own = scores[u, v][:, None]
        before = (scores[u] > own) | ((scores[u] == own) & (earlier < v[:, None]))
        above[i : i + _ROWS] = np.count_nonzero(before, axis=1)
    return above


def _exact_product(weights: FloatArray, factors: FloatArray) -> FloatArray:
    """Return weights @ factors, each row from itself alone: both on grids of 20 bits.

    Products of so many bits add up below 2^53, so that the order of BLAS does not matter.
    """
    if not weights.shape[1]:
        return np.zeros((len(weights), factors.shape[1]))
    unit = np.ldexp(1.0, np.frexp(np.abs(weights).max(axis=1, keepdims=True))[1] - _BITS)
    step = math.ldexp(1.0, math.frexp(float(np.abs(factors).max()))[1] - _BITS)
    products = np.rint(weights / unit) @ np.rint(factors / step)
    return np.asarray(products * (unit * step))
