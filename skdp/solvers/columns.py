"""Location and scale of columns from released ranks and sums; all of it is post-processing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from skdp._limits import CLEAR, COUNT_WEIGHT, SQUARE_WEIGHT, FloatArray, IndexArray
from skdp.answer import Answer
from skdp.solvers.median_search import SMALLEST, AsksGrid, Likelihood, log2_bins, roundest, steps
from skdp.solvers.postprocess import denoised, released_count

_Asks = Callable[[FloatArray], AsksGrid]
_SUMS = 2.8  # noise of the sums of `moments`, relative to that of ranks with the same share
# _BLUR: largest noise of a variance relative to the variance, and the largest fraction of entries
# that may lie far outside. FAR: entries within so many scales of the centre are never clipped, and
# columns whose scales differ by this factor have different units. FARTHEST: all beyond are clipped.
_BLUR, FAR, FARTHEST = 0.05, 4.0, 64.0
CUT = 6.0  # scales beyond which columns are clipped for a model: 4 loses .01 with heavy tails
# Budget fraction and number of rank queries of each stage: the count; the log2 bin of distances
# from 0 ("bin"); the median within that range ("near"), and again within the range that is left
# ("nearer"); the log2 bin of distances from the median ("scale"), a finer scale within it ("part"),
# and a larger one if many entries lie far outside ("raise").
_PARTS = {
    "count": (0.05, 1), "bin": (0.3, 6), "near": (0.13, 6), "nearer": (0.13, 5),
    "scale": (0.3, 6), "part": (0.06, 1), "raise": (0.06, 4),
}  # fmt: skip
# Factors that a scale may be raised by: as many as the queries of "raise", all but one, can tell
# apart. Fewer or smaller ones lose .4 with heavy tails, coarser ones lose a dummy of half ones.
_RAISES = np.power(FAR, np.arange(2 ** (_PARTS["raise"][1] - 1)))
# Sizes of ranks, relative to half of the rows: if the mean of a stage is larger than _ONE_SIDED, a
# column may be narrower than a cell; a point with less than _BALANCED is about its median. A random
# interval holds a multiple of _ROUNDNESS times its width with probability 1 / _ROUNDNESS. Very
# round numbers are searched for between the posterior quantiles _TAIL and 1 - _TAIL.
_ONE_SIDED, _BALANCED, _ROUNDNESS, _TAIL = 0.9, 0.1, 16, 0.1
_MEDIANS, _SCALES = ("bin", "near", "nearer"), ("scale", "part", "raise")


class AsksColumns(Protocol):
    """The queries that a search for the location and scale of columns makes."""

    def count(self, *, share: float) -> Answer:
        """Return the noisy number of rows."""

    def grid(self, points: FloatArray) -> AsksGrid:
        """Return the rank queries of a public grid of numbers for each column."""

    def distances(self, center: FloatArray, points: FloatArray) -> AsksGrid:
        """Return the rank queries of a public grid of distances from a centre."""

    def weighted(self, weights: FloatArray) -> AsksColumns:
        """Multiply ranks by public weights."""

    def moments(
        self, center: FloatArray, size: FloatArray, count_weight: float, *, share: float
    ) -> Answer:
        """Return sums of w, b (w^2 - 1/2) and c, w = (x - center)/size cut to [-1, 1]."""


class FoundColumns(NamedTuple):
    """The released location and scale of each column.

    Attributes
    ----------
    center : array of shape (d,)
        About the medians.
    scale : array of shape (d,)
        About the median distance from the centre, among entries that differ from it. It is
        larger if many entries lie far outside.
    found : array of bool, shape (d,)
        Whether the scale was found (see `Likelihood.found`).
    n : float
        Number of rows, public or released.
    noise : float
        Noise scale of a rank query that has the whole share.
    needed : int
        About how many entries that differ from 0 and from the centre it takes to find a scale.
    center_found : array of bool, shape (d,)
        Whether the middle half of the posterior of the median is no wider than the scale, or the
        rank of the centre is clearly small, so that it lies among the entries.
    deviation : array of shape (d,)
        About the standard deviation: the posterior median of the scale, times the root of the
        fraction of entries that differ from the centre (the released fraction plus its noise
        scale, at most 1). Columns about 0 whose scale was not found share one value.
    within : array of shape (d,)
        How far from 0 the median was searched for.
    filled : array of shape (d,)
        At most about what fraction of entries differs from the centre.
    located : array of bool, shape (d,)
        Whether the scale was found, and the centre is known well enough: it is found or, with many
        rows, uncertain by up to `FAR` scales. A longer search would cost a model more than that
        error does.
    """

    center: FloatArray
    scale: FloatArray
    found: NDArray[np.bool_]
    n: float
    noise: float
    needed: int
    center_found: NDArray[np.bool_]
    deviation: FloatArray
    within: FloatArray | None = None
    filled: FloatArray | None = None
    located: NDArray[np.bool_] | None = None

    def sums_noise(self, part: float) -> float:
        """Return about the noise scale of column sums released with `part` times the share."""
        return _SUMS * self.noise / math.sqrt(part)

    def count_noise(self) -> float:
        """Return about the noise scale of `n`, where it was released."""
        return 2 * self.noise / math.sqrt(len(self.center) * _PARTS["count"][0])

    def radius(self, noise: float) -> FloatArray:
        """Return the clip radius about the centre for sums of this noise scale.

        It is as large as the noise of the released variance stays small next to the variance of the
        column. That variance is small if most entries are equal.
        """
        widest = np.sqrt(_BLUR * self.n / max(noise, 1e-12)) * self.deviation
        return np.asarray(np.clip(widest, FAR * self.scale, FARTHEST * self.scale))

    def units(self) -> tuple[FloatArray, float]:
        """Return a divisor for each column, and the usual (median) deviation of the columns.

        Columns clearly in other units are divided to have about the usual deviation. All others
        stay as they are (1), so that rows of equal norm keep equal norms.
        """
        typical = float(np.exp(np.median(np.log(self.deviation))))
        other = self.found & (np.abs(np.log(self.scale / typical)) > math.log(FAR))
        return np.where(other, self.scale / typical, 1.0), typical

    def mean_radius(self, noise: float) -> FloatArray:
        """Return the clip radius for a mean; the least is half of `FAR`, as noise is smaller."""
        return np.asarray(np.clip(_BLUR * self.n / noise, FAR / 2, FARTHEST) * self.scale)


class ColumnMoments(NamedTuple):
    """Released means and variances, their noise, and the number of rows.

    Attributes
    ----------
    mean, variance : array of shape (d,)
    noise : array of shape (d,)
        Of the variances.
    n : float
    noise_scale : float
        Of the sums that means were computed from.
    """

    mean: FloatArray
    variance: FloatArray
    noise: FloatArray
    n: float
    noise_scale: float

    def replaced(self, which: NDArray[np.bool_], by: ColumnMoments) -> ColumnMoments:
        """Return these moments, but those of another release for some columns."""
        mean, variance, noise = (np.where(which, by[i], self[i]) for i in range(3))
        return self._replace(mean=mean, variance=variance, noise=noise)


def find_columns(
    ask: AsksColumns, d: int, share: float, n: float | None, **how: Any
) -> FoundColumns:
    """Find the location and scale of each column, by rank queries.

    Ranks find a median far from 0, where a released mean would have noise in proportion to its
    distance from 0. `n` is the number of rows if it is public. Models without an intercept have
    columns about 0 (not `centered`).
    """
    return find_kinds(ask, (d,), (share,), n, **how)[0]


def find_kinds(
    ask: AsksColumns, sizes: Sequence[int], shares: Sequence[float], n: float | None,
    *, centered: bool = True, within: FloatArray | None = None, far: bool = False,
    tails: bool = True, near: FloatArray | float = 1.0,
) -> list[FoundColumns]:  # fmt: skip
    """Find columns of several kinds (rows and targets, say) in one search, as well as each alone.

    In a search of its own, a kind of d columns has noise in proportion to (d / share)^(1/2). Here
    the ranks of a kind are multiplied by w = (share / d)^(1/2). The squares of all weights sum to
    the sum of the shares, so the noise is in proportion to 1, and divided by w it is that of each
    kind alone. (Laplace noise would need w^2.) The first kind pays for the count; columns about 0,
    of models without an intercept, need none. `within` bounds the distance of the medians from 0,
    if an earlier search found it. A search that goes `far` makes all stages in any case. Without
    `tails`, up to a tenth of the entries may lie far outside, however small the noise is. `near`
    holds public guesses of the scales.
    """
    if centered and n is None:
        n, shares = count_rows(ask, shares)
    weights = np.sqrt(np.divide(shares, shares[0]) / np.divide(sizes, sizes[0]))
    if len(sizes) > 1:
        ask = ask.weighted(np.repeat(weights, sizes))
    names = (*_MEDIANS[within is not None :], *_SCALES) if centered else _SCALES
    unit = math.fsum(shares) / _part(*names)
    zero = np.zeros(sum(sizes))
    first = log2_bins(zero + np.exp2(np.rint(np.log2(near))), sizes)
    if n is not None and centered:
        half = np.repeat(weights, sizes) * n / 2
        medians = _medians(ask, first, unit, half, within, far)
        return _scales_about(ask, *medians, n, weights, tails)
    at_zero = _Medians(zero, zero + SMALLEST, first, zero, zero > 0, zero > 0)
    return [found._replace(n=math.inf) for found in _scales_about(ask, at_zero, unit, 1.0, weights)]


def count_rows(ask: AsksColumns, shares: Sequence[float]) -> tuple[float, list[float]]:
    """Release the number of rows; return it, and what is left of the shares: the first one pays."""
    count = _PARTS["count"][0] * shares[0]
    return released_count(*ask.count(share=count)), [shares[0] - count, *shares[1:]]


def rows_for_scales(d: int, noise: float) -> float:
    """Return about how many rows show the scales of d columns; `noise` is that of one count.

    See `Likelihood.enough`: a rank moves by half for each column.
    """
    part, questions = _PARTS["scale"]
    return CLEAR * math.sqrt(d * questions / part) * noise


class _Medians(NamedTuple):
    """What the search found about the median of each column.

    Attributes
    ----------
    center : array of shape (d,)
        A round number in the middle half of the posterior, or a point there of small rank; or a
        very round number in its middle four fifths.
    near : array of shape (d,)
        Width of the smallest interval that holds that half and the centre; infinite where the
        median lies beyond the range that was searched.
    about_zero : Likelihood
        The posterior of the scales about 0.
    within : array
        How far from 0 the medians were searched for.
    even : array of bool
        Whether the rank of the centre says that it is the median; then it is nearer than `near`.
    sure : array of bool
        Whether that is so beyond the noise of the rank.
    """

    center: FloatArray
    near: FloatArray
    about_zero: Likelihood
    within: FloatArray
    even: NDArray[np.bool_]
    sure: NDArray[np.bool_]


def _part(*names: str) -> float:
    return math.fsum(_PARTS[name][0] for name in names)


def _search(likelihood: Likelihood, ask: _Asks, name: str, unit: float) -> Likelihood:
    part, questions = _PARTS[name]
    return likelihood.search(ask(likelihood.points), questions, part * unit)


def _medians(
    ask: AsksColumns, first: Likelihood, unit: float, half: FloatArray, within: Any, far: bool
) -> tuple[_Medians, float]:
    """Search for the median of each column; many entries may be equal, and all far from 0.

    If nearly all entries lie on one side of every grid point, the column may be far narrower than a
    cell of the grid: it may lie 100,000 of its scales from 0. Up to two more stages then refine the
    grid. They and the search for scales share the remaining budget, whose new unit is returned.
    Around a very round number nothing is refined, because many entries probably equal it, as in a
    dummy. It must be rounder than to become a centre, because a column that is narrow after all is
    lost without refinement. `half` is what half of the rows add to a rank.
    """
    if within is None:
        _search(first, partial(ask.distances, np.zeros(len(half))), "bin", unit)
        # A scale about 0 that was not found is the posterior median. Between clear ranks it may lie
        # anywhere.
        within = np.where(first.found(), first.high_end(0.75), first.high_end(0.5))
        within = np.where(first.faintest > 2 * CLEAR, first.high_end(0.99), within)
    grid = _search(steps(within), ask.grid, "near", unit)
    for n_left in (2, 1, 0):
        grid = _search(grid.zoomed(), ask.grid, "nearer", unit)
        a, b, half_snr = grid.low_end(0.25), grid.high_end(0.75), half / grid.noise_scale
        low, high = grid.low_end(_TAIL), grid.high_end(1 - _TAIL)
        number, width = roundest(low, high), np.exp2(np.ceil(np.log2(high - low + SMALLEST)))
        one_sided = (grid.faintest > CLEAR) & (number % (8 * _ROUNDNESS * width) != 0)
        one_sided &= grid.total > _ONE_SIDED * _PARTS["nearer"][1] * half_snr
        if not n_left or not (far or one_sided.any()):
            break
        unit *= _part(*_SCALES) / _part("nearer", *_SCALES)
    # Near 0 a point between the two values of a dummy has a small rank, too.
    even = (a <= grid.nearest) & (grid.nearest <= b) & (8 * (b - a) < np.abs(a + b))
    even &= grid.faintest < _BALANCED * half_snr + CLEAR
    # An interval wider than a factor of two is cut to that factor at its end next to 0.
    ends = np.where(b < 0, np.maximum(a, 2 * b), a), np.where(a > 0, np.minimum(b, 2 * a), b)
    center = np.where(even, grid.nearest, roundest(*ends))
    # A number far rounder than chance puts into such an interval is one that many entries have.
    repeated = (number != 0) & (number % (_ROUNDNESS * width) == 0)
    even &= ~repeated | (grid.nearest == number)
    center = np.where(a * b > 0, np.where(repeated, number, center), 0.0)
    near = np.maximum(b, center) - np.minimum(a, center) + SMALLEST
    # A median beyond the range that was searched may lie anywhere; ones of dummies lie at its end.
    least, largest = np.sort(np.abs((a, b)), axis=0)
    beyond = np.where(repeated, least, largest) > within
    near, within = np.where(beyond, (near + math.inf, 2 * within), (near, within))
    return _Medians(center, near, first, within, even, even & (half_snr > 3 * CLEAR)), unit


def _scales_about(
    ask: AsksColumns, medians: _Medians, unit: float, n: float, weights: FloatArray,
    tails: bool = True,
) -> list[FoundColumns]:  # fmt: skip
    """Search for the scales about released centres, and return the columns of each kind.

    A scale starts as the median distance from the centre. That is far too small if one half of the
    entries is nearly equal and the other is not. So if significantly many entries lie beyond FAR
    scales, the scale is raised by the smallest factor that leaves few of them outside; with less
    noise, fewer may be. The deviation grows with the fraction that lies far outside.
    """
    center, d, kinds = medians.center, len(medians.center), medians.about_zero.kinds
    near = np.where(np.isfinite(medians.near), medians.near, medians.within)
    near /= np.where(medians.even, 16, 1)
    # The scale lies between these two.
    middle = np.sqrt(np.abs(center) * np.maximum(near, np.abs(center) * 2.0**-16))
    base = np.exp2(np.rint(np.log2(np.where(center == 0, 1.0, middle))))
    base = np.where(center == 0, medians.about_zero.points[:, 0] / SMALLEST, base)
    likelihood = log2_bins(base, kinds)
    likelihood.follow(medians.about_zero, center == 0)
    # A scale is taken to lie at most six log2 bins below the uncertainty of the median.
    likelihood.exclude(np.log2(near / base) - 6)
    _search(likelihood, partial(ask.distances, center), "scale", unit)
    found, size = likelihood.found(), likelihood.zoomed(16)
    # The last point, infinity, counts all entries that differ from the centre.
    points = [size.points, *(FAR * factor * size.points for factor in _RAISES[:-1])]
    about = ask.distances(center, np.hstack([*points, np.full((d, 1), math.inf)]))
    _search(size, lambda _: about, "part", unit)
    middle = np.minimum(np.where(found, size.cell(0.5), size.cell(0.25)), size.points.shape[1] - 1)
    half = np.repeat(weights, kinds) * n / 2
    limit = half if n > 1.0 else half + math.inf  # n = 1 means that n is unknown
    cells = size.points.shape[1]
    raised, far, differ = _raised(about, middle, cells, *_PARTS["raise"], unit, limit, tails)
    factor = np.take(_RAISES, raised)
    scale = size.points[np.arange(d), middle] * factor
    noise = likelihood.noise_scale * math.sqrt(np.divide(*_PARTS["scale"]))
    # `center_found`: a scale smaller than the uncertainty of the centre may be an offset from it.
    least = differ.noise_scale / half
    filled = np.clip(differ.value / half + least, np.minimum(least, 1.0), 1.0)
    wider = np.minimum(factor**2, 1 + far * (FAR * factor / 2) ** 2)
    deviation = size.high_end(0.5) * np.sqrt(filled * wider)
    # Half of the entries should lie within `within` of 0. A scale larger than this allows shows
    # that `within` was noise, unless rows are many (then entries have two clusters).
    off = scale > factor * (medians.within + np.abs(center))
    off &= half < 4 * CLEAR * medians.about_zero.noise_scale
    medians.within[off] = (scale + np.abs(center))[off]
    not_found = ~found & (center == 0)
    center_found = ~off & (medians.sure | (medians.near <= scale))
    out, end = [], 0
    for size_of_kind, weight in zip(kinds, weights.tolist(), strict=True):
        at = slice(end, end := end + size_of_kind)
        if not_found[at].any():  # rare dummies: single estimates vary more than the columns do
            alike = deviation[at]
            guesses = np.maximum(alike[not_found[at]], SMALLEST)
            alike[not_found[at]] = np.exp(np.median(np.log(guesses)))
        enough = likelihood.enough(weight)
        widest = min(max(n / enough, 1.0), FAR) * scale[at]
        located = found[at] & (center_found[at] | ~off[at] & (medians.near[at] <= widest))
        scales, facts = (scale[at], found[at]), (n, noise / weight, enough)
        others = deviation[at], medians.within[at], filled[at]
        columns = FoundColumns(center[at], *scales, *facts, center_found[at], *others)
        out.append(columns._replace(located=located))
    return out


def _raised(
    about: AsksGrid, at: IndexArray, cells: int, part: float, questions: int, unit: float,
    most: FloatArray, tails: bool,
) -> tuple[IndexArray, FloatArray, Answer]:  # fmt: skip
    """Search for the factor that raises each scale; return its index and two released numbers.

    The first is the fraction of entries beyond the next smaller factor, among those that differ
    from the centre. The second is half of the number of entries that differ from the centre. It is
    limited to half of all rows (`most`), because its noise would otherwise raise the scale of one
    column in 300, by a factor of up to 4^7. For the same reason a factor above 4 or 16 needs counts
    that exceed their noise by more.
    """
    share = part * unit / questions
    total = about.ranks(np.full(len(at), len(_RAISES) * cells), share=share)
    total = Answer(np.minimum(total.value, most), total.noise_scale)
    clear = 2 * CLEAR * total.noise_scale
    extra, beyond = 2 * clear if tails else math.inf, np.zeros(len(at))
    allowed = clear + np.minimum(2 * _BLUR * total.value, extra)
    low, high = np.zeros(len(at), np.intp), np.full(len(at), len(_RAISES) - 1)
    for _ in range(questions - 1):
        middle = (low + high) // 2
        near = about.ranks(at + cells * (middle + 1), share=share)
        least = np.maximum(allowed, clear * (1 + np.minimum(middle, 2) / 3))
        few = total.value - near.value <= least
        beyond = np.where(few, beyond, total.value - near.value)
        low, high = np.where(few, low, np.minimum(middle + 1, high)), np.where(few, middle, high)
    return high, beyond / np.maximum(2 * total.value, beyond + 1e-9), total


class Center(NamedTuple):
    """The centre and standard deviation of a single column, and whether its scale was found."""

    value: float
    sd: float
    found: bool


def find_center(ask: AsksColumns, share: float, n: float, *, far: bool, cut: float) -> Center:
    """Return the centre and the standard deviation of a single column, robust to far entries.

    A rank search finds a first centre; the mean about it has noise in proportion to the scale of
    the column, not to its distance from 0, which may be a thousand standard deviations. However
    small the noise is, up to a tenth of the entries that differ from the centre count as far, and
    are cut at `cut` scales: they may be broken.
    """
    found = find_columns(ask, 1, 0.75 * share, n, far=far, tails=False)
    radius = np.minimum(found.radius(found.sums_noise(1 / 3)), cut * found.scale)
    about = release_moments(ask, found.center, radius, found.n, 0.25 * share)
    noise = np.where(found.found, radius * about.noise_scale / about.n, math.inf)
    value = float((found.center + denoised(about.mean - found.center, noise))[0])
    return Center(value, math.sqrt(float(about.variance[0])), bool(found.found[0]))


def release_moments(
    ask: AsksColumns, center: FloatArray, size: FloatArray, n: float | None, share: float
) -> ColumnMoments:
    """Release sums of w, b (w^2 - 1/2) and c; return the means and variances of columns.

    The number of rows is at least two standard deviations of its noise, a mean lies in its bounds,
    and a variance is at least one standard deviation of its noise: a column of no visible variance
    would otherwise be divided by almost 0.
    """
    d = len(center)
    count_weight = COUNT_WEIGHT * math.sqrt(d)
    sums, noise_scale = ask.moments(center, size, count_weight, share=share)
    unit = np.where(np.isfinite(size), size, 1.0)
    n_noise = 0.0
    if n is None:
        n_noise = noise_scale / count_weight
        n = released_count(sums[-1] / count_weight, n_noise)
    w = sums[:d] / n
    if noise_scale > 0:
        w = np.clip(w, -1.0, 1.0)
    square = sums[d : 2 * d] / SQUARE_WEIGHT / n + np.where(np.isfinite(size), 0.5, 0.0)
    noise = np.hypot(noise_scale / SQUARE_WEIGHT, n_noise / 2) / n
    variance = np.maximum(square - w * w, noise)
    return ColumnMoments(center + unit * w, unit**2 * variance, unit**2 * noise, n, noise_scale)
