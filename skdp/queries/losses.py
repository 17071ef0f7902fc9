"""Sums of bounded losses: how well a released model does, one number for each unit.

The losses are a closure that must give each row a value that depends on that row alone, bit by
bit (`skdp.model_selection` sees to that): a batched product does not, and one row more could move
the last bits of all others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp.privacy.gate.bounds import Bounded
from skdp.queries.sums import SumQuery

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class _Losses:
    """Losses of rows, and the units that own them; both are computed when they are asked for."""

    losses: Callable[[], FloatArray]
    rows: Callable[[], int]
    owners: NDArray[np.intp] | None

    def n_rows(self) -> int:
        if self.owners is None:
            return self.rows()
        return int(np.count_nonzero(np.bincount(self.owners)))

    def of_units(self) -> FloatArray:
        losses = self.losses()
        if losses.shape != (self.rows(),):  # more than one loss a row breaks the bounds below
            raise ValueError("the losses must be one number for each row.")
        if self.owners is None:
            return losses
        sizes = np.bincount(self.owners)  # sums over a user's rows, in their order: of these alone
        kept = sizes > 0
        return np.asarray(np.bincount(self.owners, weights=losses)[kept] / sizes[kept])


class LossQuery(SumQuery):
    """Losses of rows (or mean losses of users), clipped to public bounds, about their middle.

    Parameters
    ----------
    losses : callable
        () -> ndarray of shape (n_rows,), called when an answer is read.
    n_rows : callable
        () -> number of rows, called when the count is read.
    bounds : tuple of two floats
        (a, b): a loss counts as min(max(loss, a), b); NaN as (a + b)/2.
    adjacency : {"add_remove", "replace"}
        Whether neighbours differ in a unit that is there or not, or in its values.
    owners : ndarray or None
        Users of the rows as integers, where the unit is the user.
    """

    units, count_name = "units", "loss_count"

    def __init__(
        self,
        losses: Callable[[], FloatArray],
        n_rows: Callable[[], int],
        bounds: tuple[float, float],
        *,
        adjacency: str,
        owners: NDArray[np.intp] | None = None,
    ) -> None:
        super().__init__(_Losses(losses, n_rows, owners), adjacency=adjacency)
        self._low, self._high = bounds

    def _centred(self) -> FloatArray:
        """Return one number for each unit, in [-(b - a)/2, (b - a)/2]."""
        losses = self._source.of_units()
        middle = self._low + (self._high - self._low) / 2
        clipped = np.clip(losses, self._low, self._high) - middle
        return np.where(np.isnan(losses), 0.0, clipped)

    def total(self) -> Bounded:
        """Return the sum of clipped losses less (a + b)/2.

        A unit more or less: (b - a)/2, reached at either end. Other values: b - a, from end to
        end. Each unit's integer is rounded by itself and cut a step beyond the largest; the middle
        of the bounds is a float, which moves the ends by less than 2^-50 of what they are, and its
        own rounding is covered by the factor below.
        """
        reach = (self._high - self._low) / 2 + 2.0**-50 * max(abs(self._low), abs(self._high))

        def answer(step: float) -> NDArray[Any]:
            centred = self._centred()
            if step == 0.0:
                return np.asarray(centred.sum())
            limit = np.floor(reach / step) + 1  # rint of the largest, whatever float division did
            whole = np.clip(np.rint(centred / step), -limit, limit)
            return np.asarray(whole.astype(np.int64).sum())

        return self._number("loss_sum", -reach, reach, answer, rounding=1.0)
