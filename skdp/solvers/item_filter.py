"""The public map from the items of a user to scores of all items."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
_LIST = 20  # items that are looked at
_NARROW = 4  # times as many items as are kept: factors are then added to these alone
_PRIOR = 2.0  # a history counts as if it had this many items more, of average factor


def list_length(n_items: int) -> int:
    """Return how many items a list has: few next to the catalogue, or it would find all of them."""
    return max(1, min(_LIST, n_items // 4))


@dataclass(frozen=True)
class ItemFilter:
    """A public map from the items of a user to scores of all items.

    With W = q^-a on the diagonal, v0 the direction of popularity and V of factors in that metric:
    scores of a history r are r W [(1 + 2/|r|) v0 v0' + V g V'] W^-1, and the part of v0
    reaches all items. Without factors the order is that of the noisy counts.
    """

    kept: NDArray[np.intp]
    popularity: FloatArray  # of all items, positive, in the order of the noisy counts
    inward: FloatArray  # (n', 1 + r): W [v0, V]
    outward: FloatArray  # (r, n'): g V' W^-1
    scale: float  # of the popularity part

    @property
    def rank(self) -> int:
        """Number of factors."""
        return len(self.outward)

    @property
    def list_length(self) -> int:
        """How many items a list of it has."""
        return list_length(len(self.popularity))

    def item_factors(self) -> FloatArray:
        """Return the factors of the kept items (r, n'): sqrt(g) V', which makes V g V'."""
        inward = self.inward[:, 1:].T
        return np.asarray(np.sign(inward) * np.sqrt(np.abs(inward * self.outward)))

    def coordinates(self, rows: Any) -> FloatArray:
        """Return the weight of popularity and the factors of histories (CSR, kept columns)."""
        sizes = np.maximum(np.diff(rows.indptr), 1)
        return self.weighed(np.asarray(rows @ self.inward), sizes)

    def weighed(self, projected: FloatArray, sizes: NDArray[Any]) -> FloatArray:
        """Return projected histories of given sizes with their weight of popularity (in place)."""
        projected[:, 0] = np.maximum(projected[:, 0], 1e-9) * (1 + _PRIOR / sizes) * self.scale
        return projected

    def flipped_coordinates(
        self, rows: Any, inward: FloatArray, gain: float, offset: float
    ) -> FloatArray:
        """Return the same of unbiased histories gain y - offset on the items of `inward`."""
        projected = gain * np.asarray(rows @ inward) - offset * inward.sum(axis=0)
        sizes = gain * np.diff(rows.indptr) - offset * rows.shape[1]
        return self.weighed(projected, np.maximum(sizes, 1.0))

    def scores(self, rows: Any) -> FloatArray:
        """Return the scores of all items (CSR rows over all items)."""
        return self.scores_of(self.coordinates(rows[:, self.kept]))

    def flipped_scores(self, rows: Any, gain: float, offset: float) -> FloatArray:
        """Return the scores of all items for flipped histories (CSR rows over all items)."""
        kept = rows[:, self.kept]
        return self.scores_of(self.flipped_coordinates(kept, self.inward, gain, offset))

    def scorer(self, flips: tuple[float, float] | None = None) -> Callable[[Any], FloatArray]:
        """Return `scores` for block after block of rows: what they share is made once.

        `flips` are the gain and the offset of flipped histories.
        """
        if not self.rank or len(self.kept) * _NARROW < len(self.popularity):
            return self.scores if flips is None else lambda rows: self.flipped_scores(rows, *flips)
        factors = np.zeros((1 + self.rank, len(self.popularity)))
        factors[0], factors[1:, self.kept] = self.popularity, self.outward

        def score(rows: Any) -> FloatArray:
            kept = rows[:, self.kept]
            if flips is None:
                return np.asarray(self.coordinates(kept) @ factors)
            return np.asarray(self.flipped_coordinates(kept, self.inward, *flips) @ factors)

        return score

    def scores_of(self, coordinates: FloatArray) -> FloatArray:
        """Return the scores of all items from the coordinates of histories."""
        scores = coordinates[:, :1] * self.popularity
        if self.rank:
            personal = coordinates[:, 1:] @ self.outward
            if len(self.kept) == scores.shape[1]:
                scores += personal  # all in order: adding by number is slow
            else:
                scores[:, self.kept] += personal
        return np.asarray(scores)
