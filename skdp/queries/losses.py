"""Sums of bounded losses: how well a released model does, one number for each unit.

The losses are a closure that must give each row a value that depends on that row alone, bit by
bit (`skdp.model_selection` sees to that): a batched product does not, and one row more could move
the last bits of all others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp.privacy.gate.bounds import Bound, Bounded, PrivateQuery

__all__ = ["LossQuery"]

FloatArray = NDArray[np.float64]


class LossQuery(PrivateQuery):
    """Losses of rows (or mean losses of users), clipped to public bounds, about their middle.

    Parameters
    ----------
    losses : callable
        () -> ndarray of shape (n_rows,), called when an answer is read.
    n_rows : callable
        () -> number of rows, called when the count is read.
    bounds : tuple of two floats
        (a, b): a loss counts as min(max(loss, a), b); NaN as (a + b)/2.
    private_count : bool
        Whether neighbours differ in a unit that is there or not (else in its values).
    owners : ndarray or None
        Users of the rows as integers, where the unit is the user.
    """

    def __init__(
        self,
        losses: Callable[[], FloatArray],
        n_rows: Callable[[], int],
        bounds: tuple[float, float],
        *,
        private_count: bool,
        owners: NDArray[np.intp] | None = None,
    ) -> None:
        self._losses = losses
        self._n_rows = n_rows
        self._low, self._high = bounds
        self._private_count = private_count
        self._owners = owners

    def _centred(self) -> FloatArray:
        """Return one number for each unit, in [-(b - a)/2, (b - a)/2]."""
        losses = self._losses()
        if losses.shape != (self._n_rows(),):  # more than one loss a row breaks the bounds below
            raise ValueError("the losses must be one number for each row.")
        if self._owners is not None:  # sums over a user's rows, in their order: of these rows alone
            sizes = np.bincount(self._owners)
            losses = np.bincount(self._owners, weights=losses)[sizes > 0] / sizes[sizes > 0]
        middle = self._low + (self._high - self._low) / 2
        clipped = np.clip(losses, self._low, self._high) - middle
        return np.where(np.isnan(losses), 0.0, clipped)

    def total(self) -> Bounded:
        """Return the sum of clipped losses less (a + b)/2.

        A unit more or less: (b - a)/2, reached at either end. Other values: b - a, from end to
        end. Each unit's integer is rounded by itself, which adds a half step for each unit that
        differs; the middle of the bounds is a float, which moves the ends by less than 2^-50 of
        what they are, and its own rounding is covered by the factor below.
        """
        units = 1 if self._private_count else 2
        reach = (self._high - self._low) / 2 + 2.0**-50 * max(abs(self._low), abs(self._high))

        def answer(step: float) -> NDArray[Any]:
            centred = self._centred()
            if step == 0.0:
                return np.asarray(centred.sum())
            limit = np.floor(reach / step) + 1  # rint of the largest, whatever float division did
            whole = np.clip(np.rint(centred / step), -limit, limit)
            return np.asarray(whole.astype(np.int64).sum())

        change = units * reach
        return Bounded(
            Bound("loss_sum", (), change, slack=units, l1=change, l1_slack=units), answer
        )

    def count(self) -> Bounded:
        """Return the number of units: one more or less, 1."""

        def answer(step: float) -> NDArray[Any]:
            if self._owners is None:
                n = self._n_rows()
            else:
                n = int(np.count_nonzero(np.bincount(self._owners)))
            if step == 0.0:
                return np.asarray(float(n))
            return np.asarray(min(n * round(1 / step), 2**62), np.int64)

        return Bounded(Bound("loss_count", (), 1.0, slack=0.5, l1=1.0, l1_slack=0.5), answer)
