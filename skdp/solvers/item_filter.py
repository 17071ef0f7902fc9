"""The public map from the items of a user to scores of all items."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp._limits import FloatArray

_LIST = 20  # items of a list that a user reads


def list_length(n_items: int) -> int:
    """Return how many items a list has: few next to the catalogue, or it would find all of them."""
    return max(1, min(_LIST, n_items // 4))


@dataclass(frozen=True)
class ItemFilter:
    """A public map from the items of a user to scores of all items.

    With W = q^-a on the diagonal, v0 the direction of popularity and V of factors in that metric:
    scores of a history r are r W [(1 + 2/|r|) v0 v0' + V g V'] W^-1; the part of v0 reaches all.
    Without factors the order is that of the noisy counts.
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

    def scores(self, rows: Any) -> FloatArray:
        """Return the scores of all items (CSR rows over all items)."""
        return self.scorer()(rows)

    def scorer(self, flips: tuple[float, float] = (1.0, 0.0)) -> Callable[[Any], FloatArray]:
        """Return a map from CSR histories to scores of all items, for block after block of rows.

        `flips` are the gain and the offset of flipped histories: gain y - offset is unbiased.
        """
        gain, offset = flips
        factors = np.zeros((1 + self.rank, len(self.popularity)))
        factors[0], factors[1:, self.kept] = self.popularity, self.outward

        def score(rows: Any) -> FloatArray:
            kept = rows[:, self.kept]
            projected = gain * np.asarray(kept @ self.inward) - offset * self.inward.sum(axis=0)
            sizes = np.maximum(gain * np.diff(kept.indptr) - offset * kept.shape[1], 1.0)
            # A history counts as if it had one item more, of average factor.
            projected[:, 0] = np.maximum(projected[:, 0], 1e-9) * (1 + 1 / sizes) * self.scale
            return np.asarray(projected @ factors)

        return score
