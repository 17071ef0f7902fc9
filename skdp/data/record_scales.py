"""Public units of records: what is taken off rows and targets, what divides them, where they end.

A query clips what comes out to its own norms, exactly: no bound rests on these units.
"""

from __future__ import annotations

import math
import threading
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp.data.block_rows import finite_rows
from skdp.data.blocks import Block
from skdp.data.scratch import Repeated, Scratch

FloatArray = NDArray[np.float64]


class _ScratchOfThread(threading.local):
    def __init__(self) -> None:
        self.rows = Scratch()
        self.center, self.size = Repeated(), Repeated()


_SCRATCH = _ScratchOfThread()


class TargetScale(NamedTuple):
    """Public bounds of the targets: cut to [low, high], subtract `center`, divide by `size`.

    The scaled targets of one record have norm at most 1; `size` has one number a target.
    """

    low: FloatArray
    high: FloatArray
    center: FloatArray
    size: FloatArray

    @classmethod
    def in_box(cls, low: FloatArray, high: FloatArray, *, centered: bool) -> TargetScale:
        """Each target in its own interval; q of them have norm sqrt(q) before scaling."""
        bounded = np.isfinite(low) & np.isfinite(high)  # else there is no noise to scale for
        a, b = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
        center = a + (b - a) / 2 if centered else np.zeros_like(a)
        half = np.maximum(b - center, center - a) * (1 + 1e-12)
        return cls(low, high, center, half * math.sqrt(len(low)))

    @classmethod
    def in_ball(cls, radius: float, n_targets: int) -> TargetScale:
        """All targets of a record in a ball about 0 (the query cuts the norm)."""
        edge = np.full(n_targets, float(radius))
        size = edge if math.isfinite(radius) else np.ones(n_targets)
        return cls(-edge, edge, np.zeros(n_targets), size)

    def __call__(self, y: FloatArray) -> FloatArray:
        """Return the scaled targets of some records, each from its record alone."""
        return np.asarray((np.clip(y, self.low, self.high) - self.center) / self.size)


class RowScale(NamedTuple):
    """Public units of the columns: subtract `center`, divide by `size`, cut to [-reach, reach].

    An infinite size leaves zeros.
    """

    center: FloatArray
    size: FloatArray
    reach: float

    def __call__(self, rows: Block, good: NDArray[np.bool_] | None = None) -> FloatArray:
        """Return rows in these units, each from that row alone; a bad entry is not a number.

        `good` says which rows are known to be finite. The next call of this thread overwrites them.
        """
        dense: FloatArray = np.asarray(rows.toarray() if sp.issparse(rows) else rows)
        n, scratch = len(dense), _SCRATCH
        scaled = scratch.rows.shaped(dense.shape)
        about = dense
        if self.center.any():
            about = np.subtract(dense, scratch.center.rows(self.center, n), out=scaled)
        np.divide(about, scratch.size.rows(self.size, n), out=scaled)
        np.clip(scaled, -self.reach, self.reach, out=scaled)
        bad = np.flatnonzero(~(finite_rows(dense) if good is None else good))
        if bad.size:
            scaled[bad] = np.where(np.isfinite(dense[bad]), scaled[bad], np.nan)
        return scaled

    @property
    def keeps_finite(self) -> bool:
        """Whether rows that are finite stay so, whatever overflows on the way."""
        usable = np.isfinite(self.center) & np.isfinite(self.size) & (self.size > 0.0)
        return math.isfinite(self.reach) and bool(usable.all())

    def selected(self, kept: NDArray[np.intp]) -> RowScale:
        """Return the units of some columns."""
        return RowScale(self.center[kept], self.size[kept], self.reach)

    def bounds(self) -> tuple[FloatArray, FloatArray]:
        """Return the entries at which columns are cut; any, where they have no size."""
        width = np.where(np.isfinite(self.size), self.reach * self.size, np.inf)
        return self.center - width, self.center + width
