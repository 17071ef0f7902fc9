"""How far from their centres the entries of columns count, elected by the users.

A sentinel of 1e8 in one row in a hundred spoils the heads of those who have it and of nobody else,
and every prediction from such a row; an amount of which the logarithm is normal reaches as far, and
means it. Only those who have such rows can tell: each compares what it would have predicted for a
row of its own from the others, with entries cut at one reach and at another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp.solvers.columns import Columns
from skdp.solvers.global_models import GlobalModel
from skdp.solvers.personalization import PENALTIES, AsksUsers, SumMessage, View
from skdp.solvers.user_batches import TakenUsers, UserBatch, beyond

FloatArray = NDArray[np.float64]
# Scales from the centre, as in a private read-out (6) and wider; the last one cuts nothing.
REACHES = (*(6.0 * 4.0**i for i in range(5)), math.inf)
_SAYS = 1.25  # times the first reach: normal rows hardly get there, and would hardly see the cut
_FAR = 4.0  # scales from 0 beyond which a column is seen from its centre
_TRUST = 2.0  # deviations of its noise by which a vote must ask for the next reach


def bounds_at(center: FloatArray, spread: FloatArray, reach: float) -> FloatArray:
    """Return the lowest and the highest entry of each column, (2, d)."""
    return np.stack([center - reach * spread, center + reach * spread])


def far_center(center: FloatArray, spread: FloatArray) -> FloatArray | None:
    """Return the centres of columns that lie far from 0, 0 for others; None if no column does.

    Penalties are in units of the mean square of a user's rows, and that of such a column is its
    distance from 0. Columns near 0 stay where they are, which takes no time.
    """
    far = np.isfinite(spread) & (np.abs(center) > _FAR * spread)
    return np.where(far, center, 0.0) if far.any() else None


@dataclass(frozen=True)
class ReachVotes(SumMessage):
    """How much better each reach predicts rows that were left out than the one before, in octaves.

    One octave is as good as many. A user who has nothing beyond a reach, or little beyond the
    first, says nothing about it.

    Attributes
    ----------
    center, spread : array of shape (d,)
        Of the columns; one without a scale (inf) is not cut, and not looked at.
    model : GlobalModel or None
        The model of all.
    intercept : bool
        Whether users have their own intercept.
    loss : str, default="squared"
        What targets are: of classes, indicators are predicted.
    """

    center: FloatArray
    spread: FloatArray
    model: GlobalModel | None
    intercept: bool
    loss: str = "squared"

    name = "reach_votes"

    @property
    def public(self) -> tuple[Any, ...]:
        """Its arrays."""
        model = (None, None) if self.model is None else (self.model.coef, self.model.intercept)
        return self.center, self.spread, *model

    @property
    def parts(self) -> tuple[tuple[Any, ...], ...]:
        """One vector."""
        return (((len(REACHES) - 1,), 1.0, False),)

    def _bounds(self, reach: float) -> FloatArray:
        return bounds_at(self.center, self.spread, reach)

    def _view(self, reach: float) -> View:
        bounds, center = self._bounds(reach), far_center(self.center, self.spread)
        return View(1.0 / self.spread, self.intercept, self.loss, self.model, bounds, center)

    def __call__(self, batch: UserBatch) -> FloatArray:
        """Return the votes, of any length."""
        out = np.zeros((len(batch.Y), len(REACHES) - 1))
        beyond(batch, self._bounds(REACHES[0]))  # all bounds that may be elected are as wide
        some = beyond(batch, self._bounds(_SAYS * REACHES[0]))
        if some.size:
            losses = self._losses(TakenUsers.of(batch, some))
            out[some] = np.clip(-np.diff(np.log2(losses + 1e-300), axis=1), -1.0, 1.0)
        return out

    def _losses(self, batch: UserBatch) -> FloatArray:
        """Losses at each reach; at one that cuts nothing of a user, the loss without cuts."""
        far = [beyond(batch, self._bounds(reach)) for reach in REACHES[:-1]]
        cut = [
            self._view(reach).within(TakenUsers.of(batch, users))
            for reach, users in zip(REACHES, far, strict=False)
        ]
        found = _left_out(self._view(math.inf), TakenUsers.together([batch, *cut]))
        whole, *parts = np.split(found, np.cumsum([len(batch.Y), *map(len, far)])[:-1])
        losses = np.repeat(whole[:, None], len(REACHES), axis=1)
        for i, (users, part) in enumerate(zip(far, parts, strict=True)):
            losses[users, i] = part
        return losses


def _left_out(view: View, batch: UserBatch) -> FloatArray:
    """Return the mean square of each user's left-out rows, by its best penalty."""
    seen = view(batch)
    Y = view.linear_targets(seen.Y)
    errors = seen.path.grid_errors(Y, PENALTIES, np.array([view.variance]))
    return np.asarray(errors[:, :, 0].sum(axis=2).min(axis=1))


def elect_bounds(
    ask: AsksUsers,
    columns: Columns,
    model: GlobalModel | None,
    share: float,
    *,
    intercept: bool,
    loss: str = "squared",
) -> FloatArray | None:
    """Return the elected bounds of the columns (2, d), or None.

    The first reach beyond which users do not clearly ask for the next one: where few have such
    rows, or these do not tell, cutting costs little, and not cutting may cost everything.
    """
    spread = np.where(columns.found, columns.spread, math.inf)
    votes = ReachVotes(columns.center, spread, model, intercept, loss)
    released = votes.asked(ask, share=share)
    asked = released.value > _TRUST * released.noise_scale
    bounds = bounds_at(columns.center, spread, REACHES[int(np.cumprod(asked).sum())])
    return bounds if np.isfinite(bounds).any() else None
