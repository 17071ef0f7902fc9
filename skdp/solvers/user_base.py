"""The private model of all users together, which each user's own model starts from.

A user speaks by one mean of its moments, scaled to norm 1: neither its rows nor its targets need a
bound, and a user with one row counts like one with a hundred. What users are apart from this model
is left to `skdp.solvers.personalization`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from skdp.answer import Answer
from skdp.solvers.columns import Columns
from skdp.solvers.global_models import Doubt, GlobalModel
from skdp.solvers.likely import FARTHEST
from skdp.solvers.local_fits import times_powers
from skdp.solvers.personalization import GramMessage, Local, NumberMessage
from skdp.solvers.readout import readout_moments, solve_readout
from skdp.solvers.scales import AsksRank, find_places, find_scale
from skdp.solvers.user_batches import UserBatch

FloatArray = NDArray[np.float64]
_WIDEST = 4.0  # scales from 0 within which the median target is looked for
_ZOOMS, _ZOOM = 2, 4  # searches for it, and how many steps of one the next one spans to each side
_REACH = 4.0  # scales from the centre at which targets are cut
_ROW_REACH = 2.0  # length of a row, in units of that of an ordinary one, from which it is shortened
_ALIKE = 2.0  # octaves that scales of columns may differ by without harm
_SEEN = 2.0  # deviations of its noise
_CORNER, _TARGET = 0.5, 0.6  # weights of the intercept and of a target of one scale


class AsksBase(Protocol):
    """What the solver asks for; see `skdp.queries.users.UserQuery`."""

    def numbers(self, name: str, local: Local) -> Any:
        """Narrow the question to one number of each user."""
        ...

    def grams(self, name: str, local: Local, width: int, *, share: float) -> Answer:
        """Return the noisy sum of unit-norm matrices F'F."""
        ...


class TargetUnit(NamedTuple):
    """Where the targets of users lie, and how far about there.

    Attributes
    ----------
    center : array of shape (p,)
        Released mean over users, or 0.
    size : float
        About the median distance of a user's targets from it.
    found : bool
        Whether the released ranks leave little doubt.
    needed : int
        About how many users would show it.
    far : bool
        Whether the last steps were too wide to tell the spread of targets from how far they lie.
    """

    center: FloatArray
    size: float
    found: bool
    needed: int
    far: bool = False


@dataclass(frozen=True)
class TargetLengths(NumberMessage):
    """The root mean square of each user's targets about a public centre."""

    center: FloatArray

    name = "target"

    @property
    def public(self) -> tuple[FloatArray]:
        """Its arrays."""
        return (self.center,)

    def __call__(self, batch: UserBatch) -> FloatArray:
        """Return the lengths."""
        gaps = times_powers(batch.Y, batch.y_exponent) - self.center
        largest = np.abs(gaps).max(axis=(1, 2))
        shape = gaps / np.where(largest > 0, largest, 1.0)[:, None, None]
        return np.asarray(largest * np.sqrt((shape * shape).mean(axis=(1, 2))))


@dataclass(frozen=True)
class TargetMeans(NumberMessage):
    """The mean target of each user."""

    name = "target_mean"
    public = ()

    def __call__(self, batch: UserBatch) -> FloatArray:
        """Return the means."""
        return np.asarray(np.ldexp(batch.Y.mean(axis=1)[:, 0], batch.y_exponent))


def find_target_unit(ask: AsksBase, share: float, *, centered: bool) -> TargetUnit:
    """Find where the targets of users lie: the median of their means, and the scale about it."""
    steps = 2 + _ZOOMS if centered else 1
    part, center, placed, step = share / steps, np.zeros(1), True, 0.0
    first = scale = find_scale(TargetLengths(center).asked(ask).kept_below, part)
    if centered:
        rank = TargetMeans().asked(ask).kept_below
        middle, placed, step = _middle(rank, _WIDEST * float(first.value), part)
        center = np.full(1, middle if first.found else 0.0)
        about = TargetLengths(center).asked(ask).kept_below
        scale = find_scale(about, part, near=float(first.value))
    found = bool(first.found and placed and scale.found)
    far = bool(scale.value <= step)
    return TargetUnit(center, float(scale.value), found, max(first.needed, scale.needed), far)


def _middle(rank: AsksRank, reach: float, share: float) -> tuple[float, bool, float]:
    """Return about the median of numbers in [-reach, reach], whether it was seen at all, a step.

    It was if released ranks enclose it: one that nothing moved may lie anywhere. Zooms that are
    finer than the numbers are apart say little, and do little. The step is that of the last zoom.
    """
    center, step, seen, last = 0.0, reach / FARTHEST, False, 0.0
    for _ in range(_ZOOMS):

        def steps(
            thresholds: FloatArray, *, share: float, c: float = center, by: float = step
        ) -> Answer:
            return rank(c + by * float(thresholds[0]), share=share)

        at, narrow, enclosed = find_places(steps, 1, share)
        seen = seen or bool(enclosed[0])
        center, last = center + step * float(at[0]), step
        step *= _ZOOM / FARTHEST if narrow[0] else 1.0
    return center, seen, last


def column_units(columns: Columns) -> FloatArray:
    """Return public units for columns of unlike scales: 1 for those near the common scale."""
    if not columns.found.any():
        return np.ones(len(columns.spread))
    ratio = columns.spread / np.median(columns.spread[columns.found])
    apart = columns.found & (np.abs(np.log2(ratio)) > _ALIKE)
    return np.where(apart, ratio, 1.0)


def level_model(unit: TargetUnit, d: int) -> GlobalModel:
    """Return the model that predicts the released mean."""
    return GlobalModel(np.zeros((d, len(unit.center))), unit.center)


@dataclass(frozen=True)
class Pooled(GramMessage):
    """Rows, targets and a corner of a user, in public units about public centres."""

    center: FloatArray
    size: FloatArray
    target_center: FloatArray
    target_size: float
    intercept: bool

    name = "pooled"

    @property
    def public(self) -> tuple[Any, ...]:
        """Its numbers."""
        return self.center, self.size, self.target_center, self.target_size

    @property
    def width(self) -> int:
        """Number of features, targets and corners."""
        return len(self.center) + len(self.target_center) + (1 if self.intercept else 0)

    def __call__(self, batch: UserBatch) -> FloatArray:
        """Return the records; long ones are shortened."""
        n, m, d = batch.X.shape
        records = np.full((n, m, self.width), _CORNER)
        X, Y = records[:, :, :d], records[:, :, d : d + batch.Y.shape[2]]
        times_powers(batch.X, batch.x_exponent, out=X)
        X -= self.center
        X /= self.size
        Y[:] = times_powers(batch.Y, batch.y_exponent)
        Y -= self.target_center
        Y[:] = _TARGET * np.clip(Y / self.target_size, -_REACH, _REACH)
        lengths = np.sqrt(np.einsum("nmd,nmd->nm", X, X))[:, :, None]
        records *= np.minimum(1.0, _ROW_REACH / np.maximum(lengths, _ROW_REACH))
        return records


def pooled_model(
    ask: AsksBase, columns: Columns, unit: TargetUnit, share: float, *, intercept: bool
) -> GlobalModel:
    """Release the users' mean moments of rows, targets and a corner; return the linear model.

    A column whose scale was not seen has no part in it.
    """
    d, p = len(columns.center), len(unit.center)
    size = np.where(columns.found, columns.spread, math.inf)
    size = size * math.sqrt(d)  # an ordinary row has length 1
    corner = _CORNER if intercept else 0.0

    message = Pooled(columns.center, size, unit.center, unit.size, intercept)
    released = message.asked(ask, share=share)
    if intercept and released.value[-1, -1] < _SEEN * released.noise_scale:
        return level_model(unit, d)  # not even the number of users is seen
    moments = readout_moments(
        released.value, released.noise_scale, np.full(p, unit.size / _TARGET),
        corner=corner, clip_norm=_ROW_REACH, target_norm=_REACH * _TARGET * math.sqrt(p),
    )  # fmt: skip
    solution = solve_readout(moments, 0.0)
    coef, axes = solution.coefficients / size[:, None], solution.axes / size[:, None]
    covariance = (axes * solution.noise.sum(axis=1)) @ axes.T
    doubt = Doubt(covariance, columns.center)
    level = solution.intercepts + unit.center - columns.center @ coef
    return GlobalModel(coef, level, doubt=doubt)
