"""Location and scale of columns from released counts and sums. All of it is free."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from skdp.answer import Answer
from skdp.solvers.place import (
    FARTHEST,
    QUESTIONS,
    Scale,
    find_places,
    find_scales,
    finer_scales,
    raised_scales,
)
from skdp.solvers.postprocess import released_count

FloatArray = NDArray[np.float64]
_SUMS = 2.8  # noise of moments of columns, in that of ranks
_BLUR, _NEAREST, _FARTHEST = 0.05, 4.0, 64.0  # scales from the centre at which entries are cut
# Of a share: scales about 0, medians, scales about these, parts of octaves, raises, a count.
_PARTS = (0.2, 0.4, 0.2, 0.06, 0.12, 0.02)
_SCALES_ALONE = 0.4  # of the share, where medians alone follow
# Half of the grid for a median reaches 6 scales from 0 (one may be two octaves off), and then 1.4
# steps of the one before. Wide steps reach 11 (three octaves): a third look makes up for them.
_STEP, _WIDE_STEP, _FINER, _LOOKS = 2.0**-3, 2.0**-2, 2.0**-5, 2
# Of what is left for parts of octaves and raises, where columns are looked at once more: a median,
# and the scale about it.
_CLOSER = (0.25, 0.25)
# Of a scale: half of the entries of a column lie farther than half its scale from 0. So where the
# median lies nearer than this, half of them lie at least as far from it: no finer steps are needed.
_ASIDE = 0.25
_CENTER_LOOKS = 4  # for medians alone
_OF_SPREAD = 2.0  # a deviation is at most: 1.5 where entries are normal
_CLEAR = 8.0  # times the noise of a rank: with fewer rows they are of more use where they are
_CLOSER_LOOKS = 5  # of what is left each takes half: 2^-32 of the distance from 0 is told apart
_EDGE = FARTHEST - 2  # steps: a median beyond is looked for once more from there
_FAR_RAISES = 4  # bits: a scale within the smallest step may belong to most entries alike


class AsksOctaves(Protocol):
    """Ranks of powers of two, for each column."""

    def ranks(self, thresholds: FloatArray, *, share: float) -> Answer:
        """Return half of the entries below minus half of those above each threshold."""
        ...


class AsksColumns(Protocol):
    """What is asked of columns."""

    def count(self, *, share: float) -> Answer:
        """Return the noisy number of rows."""
        ...

    def octaves(self, center: FloatArray) -> AsksOctaves:
        """Narrow the question to distances from a centre."""
        ...

    def places(self, center: FloatArray, step: FloatArray) -> AsksOctaves:
        """Narrow the question to whole steps from a centre."""
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
        About the medians.
    spread : array of shape (d,)
        Powers of two, about the median distance from the centre of what differs from it; more where
        many entries lie far outside.
    found : array of bool, shape (d,)
        Whether the released ranks leave little doubt.
    n : float
        Number of rows, public or released.
    noise : float
        Of a rank that has all of the share.
    needed : int
        About how many entries that differ from 0 and from the centre show the scale of a column.
    placed : array of bool, shape (d,)
        Whether clear ranks enclose the median.
    coarse : array of bool, shape (d,)
        Whether the entries lie within a single one of the last steps, so that the spread may be
        nothing but their distance from its middle.
    """

    center: FloatArray
    spread: FloatArray
    found: NDArray[np.bool_]
    n: float
    noise: float
    needed: int
    placed: NDArray[np.bool_]
    coarse: NDArray[np.bool_]

    def sums_noise(self, part: float) -> float:
        """Return about the noise of sums of columns that have this multiple of the share."""
        return _SUMS * self.noise / math.sqrt(part)

    def reach(self, noise: float, nearest: float = _NEAREST) -> FloatArray:
        """Return how far from the centre entries should count, where sums have this noise.

        As far as the noise of a variance stays small beside the variance of normal entries.
        """
        widest = math.sqrt(_BLUR * self.n / max(noise, 1e-12))
        return np.asarray(min(max(widest, nearest), _FARTHEST) * self.spread)


class ColumnMoments(NamedTuple):
    """Released means and variances, the noise on the variances, and the number of rows."""

    mean: FloatArray
    variance: FloatArray
    noise: FloatArray
    n: float


def find_columns(ask: AsksColumns, d: int, share: float, n: float | None) -> Columns:
    """Find where the entries of each column lie, and how far they reach about there.

    The scale of the entries about 0, their median, and the scale about it. A mean would have noise
    in proportion to the distance from 0. `n` is the number of rows, where it is public.
    """
    scales, places, spreads, finer, raises, count = (part * share for part in _PARTS)
    if n is None:
        n = released_count(*ask.count(share=count))
    else:
        spreads += count
    first = find_scales(ask.octaves(np.zeros(d)).ranks, d, scales)
    rest, part, looks = finer + raises, 1.0, 0
    clear = _CLEAR * first.noise_scale * math.sqrt(scales / (rest * min(_CLOSER)))
    seen = _medians(ask, first, places, step=_WIDE_STEP if n > clear else _STEP, aside=_ASIDE)
    about = ask.octaves(seen.center).ranks
    spread = find_scales(about, d, spreads, near=first.value)
    narrow = _within(seen, spread)
    while narrow.any() and looks < _CLOSER_LOOKS and n > clear / math.sqrt(part):
        shares = [some * part * rest for some in _CLOSER]
        seen, spread = _closer(ask, seen, spread, narrow, shares)
        narrow = _within(seen, spread)
        part, looks = part * (1 - sum(_CLOSER)), looks + 1
    if looks:
        about = ask.octaves(seen.center).ranks
    elif n > clear:  # as many questions, on what is there
        value = finer_scales(about, spread, sum(_CLOSER) * rest, questions=2 * QUESTIONS)
        spread, part = spread._replace(value=value), 1 - sum(_CLOSER)
    size = finer_scales(about, spread, finer * part)
    size = raised_scales(about, size, raises * part, *([_FAR_RAISES] if looks > 1 else []))
    far = seen.placed & (seen.center != 0.0)  # clear ranks have seen it, if not its scale about 0
    found, needed = (first.found | far) & spread.found, max(first.needed, spread.needed)
    noise = first.noise_scale * math.sqrt(_PARTS[0] / QUESTIONS)
    size = np.where(found, size, spread.value)
    coarse = narrow & (size <= 2 * seen.step)
    if coarse.any():
        needed = max(needed, math.ceil(clear / math.sqrt(part)))
    return Columns(seen.center, size, found, n, noise, needed, seen.placed, coarse)


def _within(seen: _Medians, spread: Scale) -> NDArray[np.bool_]:
    """Return which columns lie within a step, or near it: its middle says nothing of them."""
    return np.asarray(seen.narrow & spread.found & (spread.value <= 2 * seen.step))


def find_centers(ask: AsksColumns, d: int, share: float) -> Columns:
    """Find where the entries of each column lie, and nothing of how far they reach about there.

    Each look has half of what is left. A column that lies within the steps of one is looked at in
    finer ones; of others all looks are averaged.
    """
    scale = find_scales(ask.octaves(np.zeros(d)).ranks, d, _SCALES_ALONE * share)
    left, center, steps = (1 - _SCALES_ALONE) * share, np.zeros(d), scale.value * _STEP
    weight, placed = np.zeros(d), np.zeros(d, bool)
    for look in range(_CENTER_LOOKS):
        part = left / 2 if look < _CENTER_LOOKS - 1 else left
        left -= part
        seen = find_places(ask.places(center, steps).ranks, d, part, stay=0.5)
        placed |= seen.enclosed
        weight = np.where(np.abs(seen.at) >= _EDGE, 0.0, weight)
        center = center + steps * seen.at * part / (weight + part)
        closer = seen.narrow & (np.abs(seen.at) < _EDGE)
        weight = np.where(closer, 0.0, weight + part)
        steps = np.where(closer, _FINER * steps, steps)
    found = np.asarray(scale.found)
    noise, needed = scale.noise_scale, scale.needed
    return Columns(center, scale.value, found, 1.0, noise, needed, placed, ~found)


def columns_about_zero(ask: AsksColumns, d: int, share: float) -> Columns:
    """Find how far the entries of each column reach from 0, for models without an intercept."""
    zero = np.zeros(d)
    scale = find_scales(ask.octaves(zero).ranks, d, share)
    found = np.asarray(scale.found)
    every = np.ones(d, bool)
    return Columns(zero, scale.value, found, math.inf, 1.0, scale.needed, every, ~every)


class _Medians(NamedTuple):
    """About the median of each column.

    Attributes
    ----------
    center, step : array of shape (d,)
        Where it is, and in which steps it was looked for last.
    placed, narrow : array of bool, shape (d,)
        Whether clear ranks enclosed it, and whether little doubt is left about the step.
    """

    center: FloatArray
    step: FloatArray
    placed: NDArray[np.bool_]
    narrow: NDArray[np.bool_]


def _medians(
    ask: AsksColumns,
    scale: Scale,
    share: float,
    *,
    step: float,
    aside: float,
) -> _Medians:
    """Return about the median of each column; entries may be alike, and far from 0.

    A column that lies within the steps of a first look is looked at again, in finer ones, unless
    its median lies nearer to 0 than `aside` scales.
    """
    d = len(scale.value)
    center, steps = np.zeros(d), scale.value * step
    placed, close = np.zeros(d, bool), np.zeros(d, bool)
    for _ in range(_LOOKS):
        steps = np.where(close, _FINER * steps, steps)
        seen = find_places(ask.places(center, steps).ranks, d, share / _LOOKS)
        placed |= seen.enclosed & (scale.found | seen.narrow)
        center = np.where(scale.found | placed, center + steps * seen.at, 0.0)
        close = seen.narrow & (np.abs(center) >= aside * scale.value)
    return _Medians(center, steps, placed, close & (scale.found | placed))


def _closer(
    ask: AsksColumns,
    seen: _Medians,
    spread: Scale,
    narrow: NDArray[np.bool_],
    shares: list[float],
) -> tuple[_Medians, Scale]:
    """Return centres and scales after one more look at columns that lie within a single step.

    A longitude in a city lies two thousand deviations from 0: its distance from the middle of a
    step says nothing of its spread.
    """
    places, spreads = shares
    d, step = len(narrow), np.where(narrow, _FINER, 1.0) * seen.step
    look = find_places(ask.places(seen.center, step).ranks, d, places)
    nearer = narrow & (look.narrow | look.enclosed)
    center = np.where(nearer, seen.center + step * look.at, seen.center)
    near = spread.value * np.where(nearer, _FINER, 1.0)
    again = find_scales(ask.octaves(center).ranks, d, spreads, near=near)
    better = nearer & again.found & (again.value <= spread.value)
    value = np.where(better, again.value, spread.value)
    beyond = np.abs(look.at) >= _EDGE
    closer = seen._replace(
        center=np.where(better, center, seen.center),
        step=np.where(better & ~beyond, step, seen.step),
        narrow=np.where(narrow, better, seen.narrow),
    )
    return closer, spread._replace(value=value)


class Center(NamedTuple):
    """Where a single column lies, about how far its entries reach, and whether they show it."""

    value: float
    sd: float
    found: bool


def find_center(ask: AsksColumns, share: float, weights: MomentWeights, n: float) -> Center:
    """Return the centre of a single column, and a deviation that far entries do not blow up.

    A first mean has noise in proportion to its distance from 0, a second one, about the first, in
    proportion to the spread: numbers may lie a thousand deviations from 0.
    """
    found = find_columns(ask, 1, 0.75 * share, n)
    sums_share = 0.25 * share
    reach = found.reach(found.sums_noise(sums_share / (0.75 * share)))
    sums = ask.moments(found.center, reach, weights.rows, share=sums_share)
    about = column_moments(
        sums.value, sums.noise_scale, found.center, reach, weights=weights, n=found.n
    )
    center = np.where(found.found, about.mean, found.center)
    sd = min(math.sqrt(float(about.variance[0])), _OF_SPREAD * float(found.spread[0]))
    return Center(float(center[0]), sd, bool(found.found[0]))


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
