"""Queries on histories (which items each user has), in the unit of a user or of an interaction.

Both units answer the same questions, so that one solver serves them: how popular items are, the
moment of the histories on some items, and whether a public filter finds more hidden items than
popularity does.

| one ... more or less | counts | moment | votes on c filters |
|---|---|---|---|
| row: user of d items, scaled | 1 (rows of length 1) | 1 (pairs of norm 1) | sqrt(c) |
| row, counts for pure noise | 1 (rows of sum 1) | | |
| interaction | 1 (raw counts) | `gram_change` | 2 sqrt(c) |

Some items of some histories are hidden (`skdp.data.histories`), and a filter scores the others: a
row votes for a filter that has more of its hidden items in a short list than popularity has, and
against one that has fewer. Neighbours of both units, one row or one interaction, differ in the
votes of one row; on c filters they lie in a cube of c dimensions.

Votes, not recalls: between filters that find about the same, recalls of most rows are equal and
the others differ by a quarter and more, so that a sign says as much as the difference, and its
bound is smaller by far beside it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp.data.block_rows import column_sums, entrywise
from skdp.data.blocks import AnyRows
from skdp.data.histories import HIDDEN, JudgedCells, binary_rows, history_rows, without_hidden
from skdp.data.recalls import Tastes, votes
from skdp.data.remote import narrowed
from skdp.privacy.gate.bounds import Bound, Bounded, PrivateQuery
from skdp.queries.interactions import InteractionQuery
from skdp.queries.pairs import PairQuery
from skdp.queries.rows import RowQuery
from skdp.queries.sums import SumQuery
from skdp.solvers.item_filter import ItemFilter

FloatArray = NDArray[np.float64]
_LESS = 1 - 2.0**-20  # a sum of 2**32 floats has a smaller error
_MOST_SHARED = 2000  # items of a moment that is added up by threads: each needs one of its own


class VoteQuery(SumQuery):
    """Votes on filters that differ in the weight of their tastes, against popularity alone.

    Parameters
    ----------
    rows : RowSource or RemoteRows
        Histories on the kept items of the filter: known items positive, hidden ones negative.
    tastes : ItemFilter
        The public filter.
    weights : array of shape (c, rank)
        Public weights of its tastes, one row for each number that is released.
    adjacency : {"add_remove", "replace"}
        Whether a neighbour has one row more or less, or as many and another one in its place.
    n_jobs : int or None
        Threads for the passes over the rows; it never changes a result.
    """

    def __init__(
        self,
        rows: AnyRows,
        tastes: Tastes,
        weights: FloatArray,
        *,
        adjacency: str,
        n_jobs: int | None = None,
    ) -> None:
        super().__init__(rows, adjacency=adjacency, n_jobs=n_jobs)
        self._votes = partial(votes, tastes=tastes, weights=weights)
        self._n = len(weights)

    def votes(self) -> Bounded:
        """Return the sum over rows of the vote on each filter, in {-1, 0, 1}.

        One row more adds a point of the cube [-1, 1]^c: l2 sqrt(c), l1 c. A row that changes moves
        from one point of it to another: twice that. Rounded once for each number.
        """
        size = self.neighbours.number(-1.0, 1.0)
        c, shape = self._n, (self._n,)

        def answer(step: float) -> NDArray[Any]:
            exact = np.asarray(self._sum(self._votes, shape, 1.0), np.float64)
            return exact if step == 0.0 else np.rint(exact / step).astype(np.int64)

        bound = Bound(
            "votes", shape, size * math.sqrt(c), slack=math.sqrt(c), l1=size * c, l1_slack=c
        )
        return Bounded(bound, answer)

    def best(self, bonus: FloatArray) -> Bounded:
        """Score popularity by nothing and the filters by their votes, plus a public bonus for each.

        One row more moves all scores by numbers in [-1, 1]: range 2. A row that changes moves them
        by differences of two such points: range 4.
        """
        c, range_ = self._n, 2 * self.neighbours.units
        exact = self.votes().answer

        def answer(step: float) -> NDArray[Any]:
            extra = bonus if step == 0.0 else np.rint(bonus / step).astype(np.int64)
            return np.asarray(np.concatenate([[0], exact(step)]) + extra)

        bound = Bound("best_vote", (1 + c,), range_ * math.sqrt(c), linf=range_)
        return Bounded(bound, answer)


class _Histories(ABC):
    """Histories that judge public filters."""

    n_features: int

    @abstractmethod
    def _judged(
        self, kept: NDArray[np.intp], judged: float, hidden: float
    ) -> Callable[..., VoteQuery]:
        """Return what makes the query of a filter and the weights of its tastes."""

    def judge(
        self,
        kept: NDArray[np.intp],
        popularity: FloatArray,
        inward: FloatArray,
        outward: FloatArray,
        scale: float,
        weights: FloatArray,
        judged: float,
        hidden: float = HIDDEN,
    ) -> VoteQuery:
        """Return the votes on the public filter of these arrays: see `VoteQuery`.

        A share `judged` of the rows is looked at, of which a share of the items is hidden.

        Arrays that do not fit together are refused: such a filter would fail on some data only.
        """
        rank = inward.shape[1] - 1
        shapes = (popularity.shape, inward.shape, outward.shape)
        fitting = (self.n_features,), (len(kept), rank + 1), (rank, len(kept))
        if shapes != fitting or weights.shape[1:] != (rank,):
            raise ValueError(f"these are no filter of {self.n_features} items: shapes {shapes}.")
        tastes = ItemFilter(kept, popularity, inward, outward, float(scale))
        return self._judged(kept, judged, hidden)(tastes, weights)


class RowHistories(_Histories, SumQuery):
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
        """Return the sums of the rows, each of length 1 (of sum 1 if `pure`) and not negative."""
        if self._pure:
            return self._shares()
        rows = narrowed(self._source, partial(history_rows, cap=self._cap), self.n_features)
        return self._beside(RowQuery, rows, clip_norm=1.0).positive_sums()

    def _shares(self) -> Bounded:
        """Return the sums of rows of sum 1: l1 and l2 of one row are 1 at most, in integers too.

        Entries are rounded down and _LESS covers what floats add to the sum of a row. Replace:
        rows are not negative, so they differ by sqrt(2) in l2 and by 2 in l1.
        """
        n, units = self.n_features, self.neighbours.units
        rows = narrowed(self._source, partial(history_rows, form="share", cap=self._cap), n)
        query = self._beside(SumQuery, rows)

        def answer(step: float) -> NDArray[Any]:
            def term(block: Any) -> NDArray[Any]:
                if step == 0.0:
                    return column_sums(block)
                whole = entrywise(lambda x: np.floor(x * (_LESS / step)), block)
                return column_sums(whole).astype(np.int64)

            return query._sum(term, (n,), step)

        l2 = self.neighbours.positive(1.0, n)
        return Bounded(Bound("shares", (n,), l2, slack=0.0, l1=units, l1_slack=0.0), answer)

    def moment(
        self,
        kept: NDArray[np.intp],
        floor: int,
        judged: float,
        hidden: float,
        popular: FloatArray,
    ) -> Bounded:
        """Return the pairs of the known parts of the rows, off a direction: see `PairQuery`."""
        view = self._view(kept, "known", judged, hidden)
        query = self._beside(PairQuery, narrowed(self._source, view, len(kept)))
        if len(kept) > _MOST_SHARED:
            query.n_jobs = 1
        return query.moment(popular)

    def _view(
        self, kept: NDArray[np.intp], form: str, judged: float, hidden: float
    ) -> Callable[..., Any]:
        return partial(
            history_rows, kept=kept, form=form, judged=judged, share=hidden, cap=self._cap
        )

    def _judged(
        self, kept: NDArray[np.intp], judged: float, hidden: float
    ) -> Callable[..., VoteQuery]:
        view = self._view(kept, "both", judged, hidden)
        return partial(self._beside, VoteQuery, narrowed(self._source, view, len(kept)))


class InteractionHistories(_Histories, PrivateQuery):
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
        self.n_features = int(R.shape[1])
        self._all = InteractionQuery(R, degree_floor=1, adjacency=adjacency, prepare=binary_rows)
        self._known = partial(InteractionQuery, R, adjacency=adjacency)
        self.n_jobs = n_jobs

    def counts(self) -> Bounded:
        """Return how many users have each item."""
        return self._all.counts()

    def moment(
        self,
        kept: NDArray[np.intp],
        floor: int,
        judged: float,
        hidden: float,
        popular: FloatArray,
    ) -> Bounded:
        """Return R'R of the known cells of the kept items, with a degree floor."""
        prepare = partial(_known_cells, judged=judged, hidden=hidden)
        return self._known(degree_floor=floor, prepare=prepare).columns(kept).gram()

    def cells(self, kept: NDArray[np.intp], judged: float, hidden: float = HIDDEN) -> Bounded:
        """Return the known cells of the kept items, to be flipped."""
        prepare = partial(_known_cells, judged=judged, hidden=hidden)
        return self._known(degree_floor=1, prepare=prepare).columns(kept).cells()

    def _judged(
        self, kept: NDArray[np.intp], judged: float, hidden: float
    ) -> Callable[..., VoteQuery]:
        rows = JudgedCells(self._R, kept, judged, hidden)
        # One interaction changes what is found of one row, whether it comes, goes or moves.
        return partial(VoteQuery, rows, adjacency="replace", n_jobs=self.n_jobs)


def _known_cells(R: Any, judged: float, hidden: float) -> Any:
    return without_hidden(binary_rows(R), judged, hidden, by_cell=True)
