"""How many hidden items of a history a public filter finds: a number in [0, 1] for each row.

Some items of some histories are hidden (`skdp.data.histories`), and a filter scores the others; the
recall is the share of hidden items among the 20 best. Neighbours of both units, one row or one
interaction, differ in the recall of one row; with c filters its recalls lie in a cube of c
dimensions.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp.data.blocks import AnyRows
from skdp.data.recalls import WHOLE, Tastes, judged
from skdp.privacy.gate.bounds import Bound, Bounded
from skdp.queries.sums import SumQuery

FloatArray = NDArray[np.float64]


class RecallQuery(SumQuery):
    """Recalls of filters that differ in the weight of their tastes.

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
        self._judge = partial(judged, tastes=tastes, weights=weights)
        self._n = len(weights)

    def recalls(self) -> Bounded:
        """Return the sum over rows of recall - 1/2, for each filter.

        One row more adds a point of the cube [-1/2, 1/2]^c: l2 sqrt(c)/2, l1 c/2. A row that
        changes moves from one point of it to another: twice that. Rounded once for each number.
        """
        size = self.neighbours.number(-0.5, 0.5)
        c, shape = self._n, (self._n,)

        def answer(step: float) -> NDArray[Any]:
            total = self._sum(self._judge, shape, 1.0)
            exact = total / WHOLE
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
        c, range_ = self._n, self.neighbours.units
        exact = self.recalls().answer

        def answer(step: float) -> NDArray[Any]:
            if step == 0.0:
                return exact(0.0) + bonus
            return exact(step) + np.rint(bonus / step).astype(np.int64)

        bound = Bound("best_recall", (c,), range_ * math.sqrt(c), linf=range_)
        return Bounded(bound, answer)
