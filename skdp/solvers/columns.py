"""Location and scale of columns from released counts and sums. All of it is free."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from skdp._limits import CLEAR
from skdp.answer import Answer
from skdp.solvers.median_search import SMALLEST, AsksGrid, Likelihood, log2_bins, roundest, steps
from skdp.solvers.postprocess import drawn, released_count

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]
_SUMS = 2.8  # noise of moments of columns, in that of ranks
# Noise of a variance, in that of the column, and the share of entries that may lie far outside;
# scales from the centre up to which none are cut, which say that units differ, too, and from
# which all are.
_BLUR, _FAR, FARTHEST = 0.05, 4.0, 64.0
CUT = 6.0  # the same, of what a model is fitted to: 4 lose .01 of heavy tails
# Share and number of questions: a count; the log2 bin of distances from 0; the median among these,
# and once more where it was; the log2 bin of distances from it, where there, and if many lie out.
_PARTS = {
    "count": (0.05, 1), "octave": (0.3, 6), "near": (0.13, 6), "nearer": (0.13, 5),
    "scale": (0.3, 6), "part": (0.06, 1), "raise": (0.06, 4),
}  # fmt: skip
# Factors of scales, as many as questions after that of the total tell apart: fewer or smaller ones
# lose .4 of heavy tails, and coarser ones a dummy of which half are 1.
_RAISES = np.power(_FAR, np.arange(2 ** (_PARTS["raise"][1] - 1)))
_MEDIANS = ("octave", "near", "nearer")


class AsksColumns(Protocol):
    """What is asked of columns."""

    def count(self, *, share: float) -> Answer:
        """Return the noisy number of rows."""

    def grid(self, points: FloatArray) -> AsksGrid:
        """Narrow the question to a public grid of numbers for each column."""

    def distances(self, center: FloatArray, points: FloatArray) -> AsksGrid:
        """Narrow the question to a public grid of distances from a centre."""

    def weighted(self, weights: FloatArray) -> AsksColumns:
        """Multiply ranks by public weights."""

    def moments(
        self, center: FloatArray, size: FloatArray, count_weight: float, *, share: float
    ) -> Answer:
        """Return sums of w, b (w^2 - 1/2) and c, w = (x - center)/size cut to [-1, 1]."""


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
        Whether the middle half of what is likely of the median reaches no farther than a spread.
    deviation : array of shape (d,)
        About the deviation: the median of what is likely of a spread, times the root of the share
        of entries that differ from the centre (a deviation of its noise more: less than 1 only
        where that is clear). Columns about 0 whose scale was not found have a common one.
    within : array of shape (d,)
        How far from 0 the median was looked for.
    """

    center: FloatArray
    spread: FloatArray
    found: NDArray[np.bool_]
    n: float
    noise: float
    needed: int
    placed: NDArray[np.bool_]
    deviation: FloatArray
    within: FloatArray | None = None

    def sums_noise(self, part: float) -> float:
        """Return about the noise of sums of columns that have this multiple of the share."""
        return _SUMS * self.noise / math.sqrt(part)

    def radius(self, noise: float, nearest: float = _FAR) -> FloatArray:
        """Return how far from the centre entries should count, where sums have this noise.

        As far as the noise of a variance stays small next to that of the column, which is small
        where most entries are alike.
        """
        widest = np.sqrt(_BLUR * self.n / max(noise, 1e-12)) * self.deviation
        return np.asarray(np.clip(widest, nearest * self.spread, FARTHEST * self.spread))

    def units(self) -> tuple[FloatArray, float]:
        """Return what takes columns clearly in other units to the usual deviation, and that.

        All others stay as they are, so that rows of one length keep it.
        """
        usual = float(np.exp(np.median(np.log(self.deviation))))
        far = self.found & (np.abs(np.log(self.spread / usual)) > math.log(_FAR))
        return np.where(far, self.spread / usual, 1.0), usual

    def mean_radius(self, noise: float) -> FloatArray:
        """Return how far entries should count in a mean, whose noise is smaller: half does."""
        return np.asarray(np.clip(_BLUR * self.n / noise, _FAR / 2, FARTHEST) * self.spread)


class ColumnMoments(NamedTuple):
    """Released means and variances, the noise on the variances, and the number of rows."""

    mean: FloatArray
    variance: FloatArray
    noise: FloatArray
    n: float


def find_columns(
    ask: AsksColumns, d: int, share: float, n: float | None, *, far: bool = False, **how: Any
) -> Columns:
    """Find where the entries of each column lie, and how far they reach about there.

    A mean would have noise in proportion to the distance from 0. `n` is the number of rows, where
    it is public. Medians may lie `far`, 100,000 scales from 0: two more looks narrow them.
    Models without an intercept have columns about 0, that are not `centered`.
    """
    return find_kinds(ask, (d,), (share,), n, _MEDIANS + far * 2 * ("nearer",), **how)[0]


def find_kinds(
    ask: AsksColumns, sizes: Sequence[int], shares: Sequence[float], n: float | None,
    passes: Sequence[str] = _MEDIANS, *, centered: bool = True, within: FloatArray | None = None,
) -> list[Columns]:  # fmt: skip
    """Find where columns of several kinds lie in one search; each shows what it would alone.

    Alone, the noise of d columns is in proportion to (d / share)^(1/2). Ranks that are multiplied
    by w = (share / d)^(1/2), so that d w^2 adds up to the shares, have noise in proportion to 1 at
    all shares together: over w, that of each kind alone. (Laplace noise would need w^2.) The first
    kind pays for the count; columns about 0, of models without an intercept, need none. `within`
    is how far from 0 medians lie, where an earlier search told.
    """
    passes = passes if within is None else passes[1:]
    if centered and n is None:
        count = _PARTS["count"][0] * shares[0]
        n, shares = released_count(*ask.count(share=count)), (shares[0] - count, *shares[1:])
    weights = np.sqrt(np.divide(shares, shares[0]) / np.divide(sizes, sizes[0]))
    if len(sizes) > 1:
        ask = ask.weighted(np.repeat(weights, sizes))
    names = *(passes if centered else ()), "scale", "part", "raise"
    unit = math.fsum(shares) / math.fsum(_PARTS[name][0] for name in names)
    zero = np.zeros(sum(sizes))
    first = log2_bins(zero + 1.0, sizes)
    if n is not None and centered:
        return _about(ask, _medians(ask, first, unit, passes, within), unit, n, weights)
    seen = _Medians(zero, zero + SMALLEST, first, zero)
    return [found._replace(n=math.inf) for found in _about(ask, seen, unit, 1.0, weights)]


class _Medians(NamedTuple):
    """About the median of each column.

    Attributes
    ----------
    center : array of shape (d,)
        A round number in the middle half of what is likely.
    near : array of shape (d,)
        How far that half reaches, with the centre.
    about_zero : Likelihood
        The scales about 0.
    within : array
        How far from 0 they were looked for.
    """

    center: FloatArray
    near: FloatArray
    about_zero: Likelihood
    within: FloatArray


def _asked(ask: AsksGrid, name: str, unit: float) -> tuple[AsksGrid, int, float]:
    part, questions = _PARTS[name]
    return ask, questions, part * unit


def _medians(
    ask: AsksColumns, first: Likelihood, unit: float, passes: Sequence[str], within: Any
) -> _Medians:
    """Return about the median of each column; entries may be alike, and far from 0."""
    if within is None:
        about = ask.distances(np.zeros(len(first.points)), first.points)
        first.search(*_asked(about, passes[0], unit))
        # A scale that nobody saw may be anything: medians are looked for where it would mostly be.
        within = np.where(first.found(), first.high_end(0.75), first.high_end(0.5))
    likelihood = steps(within)
    for name in (each for each in passes if each != "octave"):
        last = likelihood
        last.search(*_asked(ask.grid(last.points), name, unit))
        likelihood = last.zoomed()
    a, b = last.low_end(0.25), last.high_end(0.75)
    # What spans log2 bins says no more than its end next to 0.
    ends = np.where(b < 0, np.maximum(a, 2 * b), a), np.where(a > 0, np.minimum(b, 2 * a), b)
    center = np.where((a <= 0) & (b >= 0), 0.0, roundest(*ends))
    near = np.maximum(b, center) - np.minimum(a, center)
    near = np.maximum(near, np.abs(center) * 2.0**-16 + SMALLEST)
    return _Medians(center, near, first, within)


def _about(
    ask: AsksColumns, seen: _Medians, unit: float, n: float, weights: FloatArray
) -> list[Columns]:
    """Return scales about released centres, for each kind.

    A half that is nearly alike, next to others that are not, has a scale of its own: where clearly
    many entries lie far outside, it is raised by the least factor of which _FAR hold the others.
    That number falls with the noise. The deviation grows with the share that lies far outside.
    """
    center, d, kinds = seen.center, len(seen.center), seen.about_zero.kinds
    middle = np.sqrt(np.abs(center) * seen.near)  # a spread lies between these two
    base = np.exp2(np.rint(np.log2(np.where(center == 0, 1.0, middle))))
    likelihood = log2_bins(base, kinds)
    likelihood.follow(seen.about_zero, center == 0)
    # A scale lies at most three log2 bins below what is open of the median.
    likelihood.exclude(np.log2(seen.near / base) - 3)
    likelihood.search(*_asked(ask.distances(center, likelihood.points), "scale", unit))
    found, size = likelihood.found(), likelihood.zoomed(16)
    # The last point counts all.
    points = [size.points, *(_FAR * factor * size.points for factor in _RAISES[:-1])]
    about = ask.distances(center, np.hstack([*points, np.full((d, 1), math.inf)]))
    size.search(*_asked(about, "part", unit))
    middle = np.minimum(np.where(found, size.cell(0.5), size.cell(0.25)), size.points.shape[1] - 1)
    raised, far, differ = _raised(about, middle, size.points.shape[1], *_PARTS["raise"], unit)
    factor = np.take(_RAISES, raised)
    # Of a narrow column off 0 all questions may end above its scale. Where clearly many entries
    # differ from the centre, a spread beyond which few of them lie is a scale all the same.
    found |= (center != 0) & (differ.value > 4 * CLEAR * differ.noise_scale)
    spread = size.points[np.arange(d), middle] * factor
    noise = likelihood.noise_scale * math.sqrt(np.divide(*_PARTS["scale"]))
    # A spread within what is open of the centre may be nothing but a distance from the median.
    half = np.repeat(weights, kinds) * n / 2
    least = differ.noise_scale / half
    filled = np.clip(differ.value / half + least, np.minimum(least, 1.0), 1.0)
    wider = np.minimum(factor**2, 1 + far * (_FAR * factor / 2) ** 2)
    deviation = size.high_end(0.5) * np.sqrt(filled * wider)
    unseen, placed = ~found & (center == 0), seen.near <= spread
    out, stop = [], 0
    for of_kind, weight in zip(kinds, weights.tolist(), strict=True):
        at = slice(stop, stop := stop + of_kind)
        if unseen[at].any():  # many rare dummies: guesses are log2 bins apart, columns are alike
            alike = deviation[at]
            alike[unseen[at]] = np.exp(np.median(np.log(alike[unseen[at]])))
        known = n, noise / weight, likelihood.enough(weight)
        last = placed[at], deviation[at], seen.within[at]
        out.append(Columns(center[at], spread[at], found[at], *known, *last))
    return out


def _raised(
    about: AsksGrid, at: IntArray, cells: int, part: float, questions: int, unit: float
) -> tuple[IntArray, FloatArray, Answer]:
    """Return which factor raises each scale, and half of the number of entries off the centre.

    Between them the share of these that lies beyond the next smaller factor.
    """
    share = part * unit / questions
    total = about.ranks(np.full(len(at), len(_RAISES) * cells), share=share)
    clear = 2 * CLEAR * total.noise_scale
    goal, beyond = clear + np.minimum(2 * _BLUR * total.value, 2 * clear), np.zeros(len(at))
    low, high = np.zeros(len(at), np.intp), np.full(len(at), len(_RAISES) - 1)
    for _ in range(questions - 1):
        middle = (low + high) // 2
        near = about.ranks(at + cells * (middle + 1), share=share)
        few = total.value - near.value <= goal
        beyond = np.where(few, beyond, total.value - near.value)
        low, high = np.where(few, low, np.minimum(middle + 1, high)), np.where(few, middle, high)
    return high, beyond / np.maximum(2 * total.value, beyond + 1e-9), total


class Center(NamedTuple):
    """Where a single column lies, about how far its entries reach, and whether they show it."""

    value: float
    sd: float
    found: bool


def find_center(
    ask: AsksColumns, share: float, weights: MomentWeights, n: float, *, far: bool = False
) -> Center:
    """Return the centre of a single column, and a deviation that far entries do not blow up.

    A first mean has noise in proportion to its distance from 0, a second one, about the first, in
    proportion to the spread: numbers may lie a thousand deviations from 0.
    """
    found = find_columns(ask, 1, 0.75 * share, n, far=far)
    radius = found.radius(found.sums_noise(1 / 3))
    sums = ask.moments(found.center, radius, weights.rows, share=0.25 * share)
    about = column_moments(
        sums.value, sums.noise_scale, found.center, radius, weights=weights, n=found.n
    )
    noise = np.where(found.found, radius * sums.noise_scale / about.n, math.inf)
    value = float((found.center + drawn(about.mean - found.center, noise))[0])
    return Center(value, math.sqrt(float(about.variance[0])), bool(found.found[0]))


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
    n_noise = 0.0
    if n is None:
        n_noise = noise_scale / weights.rows
        n = released_count(sums[-1] / weights.rows, n_noise)
    w = sums[:d] / n
    if noise_scale > 0:
        w = np.clip(w, -1.0, 1.0)
    square = sums[d : 2 * d] / weights.square / n + np.where(np.isfinite(size), 0.5, 0.0)
    spread = np.hypot(noise_scale / weights.square, n_noise / 2) / n
    variance = np.maximum(square - w * w, spread)
    return ColumnMoments(center + unit * w, unit**2 * variance, unit**2 * spread, n)
