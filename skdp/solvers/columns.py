"""Location and scale of columns from released counts and sums. All of it is free."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from skdp.answer import Answer, released_count
from skdp.solvers.scales import find_scales

FloatArray = NDArray[np.float64]
_BLUR, _NEAREST, _FARTHEST = 0.2, 4.0, 64.0  # scales from the centre at which entries are cut
_CLEAR = 3.0  # deviations of its noise from which a variance is seen
_OUTSIDE = 2.0  # scales from 0 at which entries are cut for a first mean


class AsksOctaves(Protocol):
    """Ranks of powers of two, for each column."""

    def ranks(self, thresholds: FloatArray, *, share: float) -> Answer:
        """Return half of the entries below minus half of those above each threshold."""
        ...


class AsksColumns(Protocol):
    """What is asked of columns."""

    def octaves(self, center: FloatArray) -> AsksOctaves:
        """Narrow the question to distances from a centre."""
        ...

    def moments(
        self, center: FloatArray, size: FloatArray, count_weight: float, *, share: float
    ) -> Answer:
        """Return sums of w, b (w^2 - 1/2) and c, w = (x - center)/size cut to [-1, 1]."""
        ...


class MomentWeights(NamedTuple):
    """What squares and the count are multiplied by in the sums of columns."""

    square: float
    rows: float


class Columns(NamedTuple):
    """Where the entries of columns lie, and how far about there.

    Attributes
    ----------
    center : array of shape (d,)
        Released means.
    spread : array of shape (d,)
        Powers of two, about the median distance from the centre.
    found : array of bool, shape (d,)
        Whether the released ranks leave little doubt.
    deviation : array of shape (d,)
        What the standard deviation is at least, as far as the first moments show it.
    n : float
        Number of rows, public or released.
    noise : float
        Of a first moment, in units of one row.
    needed : int
        About how many entries that differ from 0 and from the centre show the scale of a column.
    """

    center: FloatArray
    spread: FloatArray
    found: NDArray[np.bool_]
    deviation: FloatArray
    n: float
    noise: float
    needed: int

    def reach(self, noise: float, nearest: float = _NEAREST) -> FloatArray:
        """Return how far from the centre entries should count, where sums have this noise.

        As far as the noise of a variance stays below a tenth of the variance of normal entries; and
        where a column is mostly one value, far enough for the others.
        """
        widest = math.sqrt(_BLUR * self.n / max(noise, 1e-12))
        octave = math.floor(math.log2(min(max(widest, nearest), _FARTHEST)))
        return np.asarray(np.maximum(2.0**octave * self.spread, 3 * self.deviation))


class ColumnMoments(NamedTuple):
    """Released means and variances, the noise on the variances, and the number of rows."""

    mean: FloatArray
    variance: FloatArray
    noise: FloatArray
    n: float


def find_columns(
    ask: AsksColumns, d: int, shares: Sequence[float], weights: MomentWeights, n: float | None
) -> Columns:
    """Find where the entries of each column lie, and how far they reach about there.

    Three steps, each with its share: the scale of the entries about 0, means of entries cut to it,
    and the scale about these means. `n` is the number of rows, where it is public.
    """
    zero = np.zeros(d)
    first = find_scales(ask.octaves(zero).ranks, d, shares[0])
    reach = _OUTSIDE * first.value
    sums = ask.moments(zero, reach, weights.rows, share=shares[1])
    moments = column_moments(sums.value, sums.noise_scale, zero, reach, weights=weights, n=n)
    center = np.where(first.found, moments.mean, 0.0)  # else a little noise beside many zeros
    about = ask.octaves(center).ranks
    spread = find_scales(about, d, shares[2], near=first.value)
    deviation = np.sqrt(np.maximum(moments.variance - _CLEAR * moments.noise, 0.0))
    found, needed = first.found & spread.found, max(first.needed, spread.needed)
    return Columns(center, spread.value, found, deviation, moments.n, sums.noise_scale, needed)


def find_center(
    ask: AsksColumns, share: float, weights: MomentWeights, n: float
) -> tuple[float, bool]:
    """Return the centre of a single column, and whether its scale was found.

    A first mean has noise in proportion to its distance from 0, a second one, about the first, in
    proportion to the spread: numbers may lie a thousand deviations from 0.
    """
    part = share / 4
    found = find_columns(ask, 1, [part] * 3, weights, n)
    reach = found.reach(found.noise)
    sums = ask.moments(found.center, reach, weights.rows, share=part)
    about = column_moments(
        sums.value, sums.noise_scale, found.center, reach, weights=weights, n=found.n
    )
    center = np.where(found.found, about.mean, found.center)
    return float(center[0]), bool(found.found[0])


def column_moments(
    sums: FloatArray,
    noise_scale: float,
    center: FloatArray,
    size: FloatArray,
    *,
    weights: MomentWeights,
    n: float | None,
) -> ColumnMoments:
    """Read means and variances from the sums of w, b (w^2 - 1/2) and c of the query.

    The number of rows is kept above two deviations of its noise, a mean in its bounds, and a
    variance above one deviation of its noise: a column that shows no spread is not blown up.
    """
    d = len(center)
    unit = np.where(np.isfinite(size), size, 1.0)
    if n is None:
        n_noise = noise_scale / weights.rows
        n = released_count(sums[-1] / weights.rows, n_noise)
    else:
        n_noise = 0.0
    w = sums[:d] / n
    if noise_scale > 0:
        w = np.clip(w, -1.0, 1.0)
    square = sums[d : 2 * d] / weights.square / n + np.where(np.isfinite(size), 0.5, 0.0)
    spread = np.hypot(noise_scale / weights.square, n_noise / 2) / n
    variance = np.maximum(square - w * w, spread)
    return ColumnMoments(center + unit * w, unit**2 * variance, unit**2 * spread, n)
