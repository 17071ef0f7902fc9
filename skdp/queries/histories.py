"""Queries on histories (which items each user has), in the unit of a user or of an interaction.

Both units answer the same questions, so that one solver serves them: how popular items are, the
moment of the histories on some items, and how well a public filter finds hidden items.

| one ... more or less | counts | moment | recalls of c filters |
|---|---|---|---|
| row: user of d items, scaled | 1 (rows of length 1) | 1 (pairs of norm 1) | sqrt(c) / 2 |
| interaction | 1 (raw counts) | `gram_change` | sqrt(c) |
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp.data.blocks import AnyRows
from skdp.data.histories import HistoryRows, JudgedCells, binary_rows, without_hidden
from skdp.data.remote import narrowed
from skdp.privacy.gate.bounds import Bounded, PrivateQuery
from skdp.queries.interactions import InteractionQuery
from skdp.queries.pairs import PairQuery
from skdp.queries.recalls import RecallQuery
from skdp.queries.rows import RowQuery
from skdp.queries.sums import SumQuery
from skdp.solvers.item_filter import ItemFilter

FloatArray = NDArray[np.float64]
_MOST_SHARED = 2000  # items of a moment that is added up by threads: each needs one of its own


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
        Public: entries count by min(x, cap), then rows have length 1. None: all alike.
    """

    def __init__(
        self,
        rows: AnyRows,
        *,
        adjacency: str,
        n_jobs: int | None = None,
        cap: float | None = None,
    ) -> None:
        super().__init__(rows, adjacency=adjacency, n_jobs=n_jobs)
        self.n_features = rows.n_features
        self._cap = cap

    def counts(self) -> Bounded:
        """Return the sums of the rows, each of length 1 and not negative."""
        rows = narrowed(self._source, partial(HistoryRows, cap=self._cap), self.n_features)
        return self._beside(RowQuery, rows, clip_norm=1.0).positive_sums()

    def moment(
        self, kept: NDArray[np.intp], floor: int, judged: float, popular: FloatArray
    ) -> Bounded:
        """Return the pairs of the known parts of the rows, off a direction: see `PairQuery`."""
        wrap = partial(HistoryRows, kept=kept, form="known", judged=judged, cap=self._cap)
        query = self._beside(PairQuery, narrowed(self._source, wrap, len(kept)))
        if len(kept) > _MOST_SHARED:
            query.n_jobs = 1
        return query.moment(popular)

    def judge(
        self,
        kept: NDArray[np.intp],
        popularity: FloatArray,
        inward: FloatArray,
        outward: FloatArray,
        scale: float,
        weights: FloatArray,
        judged: float,
    ) -> RecallQuery:
        """Return the recalls of the public filter of these arrays: see `RecallQuery`."""
        tastes = checked_filter(self.n_features, kept, popularity, inward, outward, scale, weights)
        wrap = partial(HistoryRows, kept=kept, form="both", judged=judged, cap=self._cap)
        rows = narrowed(self._source, wrap, len(kept))
        return self._beside(RecallQuery, rows, tastes, weights)


class InteractionHistories(PrivateQuery):
    """Histories whose privacy unit is one interaction; the numbers of users and items are public.

    Parameters
    ----------
    R : CSR matrix of shape (n_users, n_items)
        Positive entries are items.
    adjacency : {"add_remove", "replace"}
        An interaction appears or goes, or moves to another item.
    n_jobs : int or None
        Threads; it never changes a result.
    """

    def __init__(self, R: Any, *, adjacency: str, n_jobs: int | None = None) -> None:
        self._R = R
        self._all = InteractionQuery(R, degree_floor=1, adjacency=adjacency)
        self._known = partial(InteractionQuery, R, adjacency=adjacency)
        self.n_jobs = n_jobs

    def counts(self) -> Bounded:
        """Return how many users have each item."""
        return self._all.counts()

    def moment(
        self, kept: NDArray[np.intp], floor: int, judged: float, popular: FloatArray
    ) -> Bounded:
        """Return R'R of the known cells of the kept items, with a degree floor."""
        prepare = partial(_known_cells, judged=judged)
        return self._known(degree_floor=floor, prepare=prepare).columns(kept).gram()

    def cells(self, kept: NDArray[np.intp], judged: float) -> Bounded:
        """Return the known cells of the kept items, to be flipped."""
        prepare = partial(_known_cells, judged=judged)
        return self._known(degree_floor=1, prepare=prepare).columns(kept).cells()

    def judge(
        self,
        kept: NDArray[np.intp],
        popularity: FloatArray,
        inward: FloatArray,
        outward: FloatArray,
        scale: float,
        weights: FloatArray,
        judged: float,
    ) -> RecallQuery:
        """Return the recalls of the public filter of these arrays: see `RecallQuery`."""
        n_features = int(self._R.shape[1])
        tastes = checked_filter(n_features, kept, popularity, inward, outward, scale, weights)
        rows = JudgedCells(self._R, kept, judged)
        # One interaction changes what is found of one row, whether it comes, goes or moves.
        return RecallQuery(rows, tastes, weights, adjacency="replace", n_jobs=self.n_jobs)


def checked_filter(
    n_features: int,
    kept: NDArray[np.intp],
    popularity: FloatArray,
    inward: FloatArray,
    outward: FloatArray,
    scale: float,
    weights: FloatArray,
) -> ItemFilter:
    """Return a filter whose arrays fit together: one that fails would fail on some data only."""
    rank = inward.shape[1] - 1
    shapes = (popularity.shape, inward.shape, outward.shape)
    fitting = (n_features,), (len(kept), rank + 1), (rank, len(kept))
    if shapes != fitting or weights.shape[1:] != (rank,):
        raise ValueError(f"these arrays are no filter of {n_features} items: shapes {shapes}.")
    return ItemFilter(kept, popularity, inward, outward, float(scale))


def _known_cells(R: Any, judged: float) -> Any:
    return without_hidden(binary_rows(R), judged, by_cell=True)
