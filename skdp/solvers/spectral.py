"""Leading subspaces of a second moment X'X from row-private answers.

Notation: rows x of norm at most C, d features, V (d x k) the public subspace so far, and noise
scales per unit of sensitivity for the whole budget: `psd` for a sum of x x' (1/mu, sqrt(2)/mu under
replace), `rect` for a sum of rank-one terms (1/mu, 2/mu under replace).

Three routes for rows:

- `gram_subspace`: the symmetric moment of clipped rows;
- `power_subspace`: power steps on the core and tangent parts in one release, no d x d array;
- `screened_subspace`: the mean and a moment of columns chosen by their noisy sums, then the second
  route from there, on all columns.

Rows may be persons, whose rows are bounded together: bounds and answers are those of one row.

Clip levels aim at a number of clipped rows in proportion to the noise (`private_clip_level`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from skdp._limits import CLEAR, CORE_SCALE, MOST_DENSE, NEGLIGIBLE, FloatArray, tangent_bound
from skdp.answer import NOTHING, Answer
from skdp.solvers.linalg import (
    leading_pairs,
    orthonormal,
    signal_share,
    symmetric_noise_edge,
    top_eigenpairs,
    wigner,
)
from skdp.solvers.median_search import private_clip_level
from skdp.solvers.postprocess import denoised, held_by_eigenvectors, shares_shown, shrunk_mean


def averaged(first: Answer, second: Answer) -> Answer:
    """Average two answers to one question by their precision."""
    if second.noise_scale == 0.0:
        return second
    weights = first.noise_scale**-2, second.noise_scale**-2
    value = (weights[0] * first.value + weights[1] * second.value) / sum(weights)
    return Answer(value, sum(weights) ** -0.5)


# Choices from a noisy moment by data thinning, which costs no budget.
#
# Notation: A = M + noise is a released symmetric moment, s the deviation of its diagonal (s/sqrt(2)
# off it). With Z of the same law, A + c Z and A - Z/c have uncorrelated noises: what is fitted on
# the first is evaluated without bias on the second, tr(V'(A - Z/c)V) = tr(V'M V) + noise of mean
# zero. All of it is post-processing: privacy does not depend on Z, which is the same in every fit.


_THINNING = 0.6  # c: most of the signal stays in the half that is fitted


class _Noisy(NamedTuple):
    """A moment with noise of known scale.

    Eigenpairs that only serve an evaluation may be computed in single precision.
    """

    moment: FloatArray
    noise_scale: float
    kind: type = np.float64

    def pairs_of(self, moment: FloatArray, k: int) -> tuple[FloatArray, FloatArray]:
        """Return k eigenpairs of a moment in this precision, descending."""
        # A power of two divides a moment before it is read, as it may be extreme: single precision
        # overflows, and the tolerance of ARPACK has a floor.
        power = math.frexp(max(moment.max(), -moment.min()))[1]
        unit = math.ldexp(1.0, min(max(power, -1000), 1000))
        values, vectors = leading_pairs((moment / unit).astype(self.kind), k, rough=True)
        return unit * values.astype(np.float64), vectors.astype(np.float64)


Candidate = Callable[[_Noisy, int], FloatArray]
Draw = Callable[[np.random.Generator, float], FloatArray] | None


def chosen_subspace(
    A: FloatArray, noise_scale: float, k: int, known: FloatArray | None = None, part: Draw = None
) -> FloatArray:
    """Return the candidate subspace of a moment of sparse rows with the best score by thinning.

    Candidates: the leading eigenvectors; those of the shrunk part off the diagonal with the
    diagonal; a known subspace. That must not depend on the noise of A (one by popularity does not),
    or its score is too high. For dense rows it gains nothing.

    Where each row has noise of its own, whose law in A is not that of Z, ``part(rng, share)`` is A
    of a random share of the rows: it is fitted in place of A + c Z, and evaluated on the other
    rows.
    """
    released = _Noisy(A, noise_scale)
    if noise_scale == 0.0:
        return _leading(released, k)
    candidates: list[Candidate] = [_leading, _without_diagonal]
    if known is not None:
        candidates.append(lambda *_: known)
    scores = _scores(released, candidates, k, np.random.default_rng(20240229), part)
    # The second must be better than the others by one noise scale: the best score is too high.
    scores[1] -= noise_scale * math.sqrt(k)
    return candidates[int(np.argmax(scores))](released, k)


def _scores(
    released: _Noisy, candidates: list[Candidate], k: int, rng: np.random.Generator, part: Draw
) -> FloatArray:
    """Return the score of each candidate: fitted on one thinned moment, evaluated on the other."""
    A, noise_scale, ratio = released.moment, released.noise_scale, 1 + _THINNING**2
    if part is None:
        Z = rng.standard_normal(A.shape) * noise_scale
        moment = A + _THINNING * (Z + Z.T) / 2
    else:
        moment = ratio * part(rng, 1 / ratio)
    half = _Noisy(moment, noise_scale * math.sqrt(ratio), np.float32)
    other = A - (moment - A) / _THINNING**2
    return np.array([np.sum(V * (other @ V)) for V in (fit(half, k) for fit in candidates)])


def _leading(A: _Noisy, k: int) -> FloatArray:
    return A.pairs_of(A.moment, k)[1]


def _without_diagonal(A: _Noisy, k: int) -> FloatArray:
    """Leading subspace of the shrunk spectrum off the diagonal, and the diagonal as it is.

    Sums of squares of columns are large next to their products where rows are sparse; they are no
    direction, and their noise is that of one entry.
    """
    diagonal = np.maximum(np.diag(A.moment), 0.0)
    off = A.moment.copy()
    np.fill_diagonal(off, 0.0)
    found = wigner(*A.pairs_of(off, k), A.noise_scale / math.sqrt(2))
    sizes = found.values * np.maximum(found.cosines, 0.0)
    estimate = (found.vectors * sizes) @ found.vectors.T
    np.fill_diagonal(estimate, diagonal)
    return A.pairs_of(estimate, k)[1]


def axes(sizes: FloatArray, k: int) -> FloatArray:
    """Return the unit vectors of the k largest sizes, as columns."""
    V = np.zeros((len(sizes), k))
    V[np.argsort(-sizes, kind="stable")[:k], np.arange(k)] = 1.0
    return V


CLIP_SHARE = 0.03  # of each release, for its clip level
DIRECTION_LEVEL = 24.0  # deviations of the noise of a moment: how many rows may be shortened


@dataclass(frozen=True)
class RowNoise:
    """Public facts on the noise of a fit.

    Attributes
    ----------
    psd, rect : float
        Noise scale per unit of sensitivity at the whole budget; 0 without noise.
    n : float
        Number of rows, public or released.
    clip_norm : float
        Largest norm of a row.
    n_noise : float
        Standard deviation of the noise on a released `n`.
    mean_noise_bias : Answer
        What the error of a released mean adds to their moment in one direction.
    """

    psd: float
    rect: float
    n: float
    clip_norm: float
    n_noise: float = 0.0
    mean_noise_bias: Answer = NOTHING

    def goal(self, level: float, factor: float, width: float, share: float) -> float:
        """Return how many rows a clip norm may scale down: those that the noise of sums hides.

        `level` is a number of deviations, `factor` either `psd` or `rect`, `width` how many sums a
        row enters, `share` their part of the budget.
        """
        return min(level * factor * math.sqrt(width / share), self.n)


def suited_rows(
    ask: Any, width: float, share: float, noise: RowNoise, level: float
) -> tuple[Any, float]:
    """Return rows clipped to suit the noise of `width` sums, and the share that is left.

    A high `level` clips more, which suits directions; a low one preserves norms.
    """
    if noise.psd == 0.0:
        return ask, share
    part = min(CLIP_SHARE, 0.1 * share)
    goal = noise.goal(level, noise.psd, width, share - part)

    def count(threshold: float, *, share: float) -> Any:
        return ask.norms_above(math.sqrt(threshold), share=share)

    clip_norm = math.sqrt(private_clip_level(count, noise.clip_norm**2, goal, part))
    return ask.clipped(clip_norm), share - part


def _tangent_product(ask: Any, V: FloatArray, share: float, noise: RowNoise) -> Any:
    """Release the product at V, its terms clipped to suit the noise."""
    query = ask.tangent(V)
    goal = noise.goal(DIRECTION_LEVEL, noise.rect, len(V), share)
    largest = tangent_bound(noise.clip_norm)  # of a row's term, at any V
    clip = private_clip_level(query.sizes_above, largest, goal, CLIP_SHARE * share)
    return query.product(clip, share=(1 - CLIP_SHARE) * share)


class Shown(NamedTuple):
    """The variance in a subspace, from a noisy moment.

    Attributes
    ----------
    shares : ndarray
        Which share of the total each direction holds; 0 for what noise reaches.
    inside, total : Answer
        The moment in the subspace and its trace (None if it is not known), without bias.
    """

    shares: FloatArray
    inside: Answer
    total: Answer | None


def gram_subspace(
    ask: Any, d: int, k: int, share: float, noise: RowNoise
) -> tuple[FloatArray, Shown]:
    """Return the leading k directions of a moment, and what it shows of them."""
    rows, share = suited_rows(ask, 2 * d, share, noise, DIRECTION_LEVEL)
    block, scale = rows.gram(share=share)
    values, V = top_eigenpairs(block, k)
    trace = float(np.trace(block))
    held, error = held_by_eigenvectors(np.linalg.eigvalsh(block)[::-1], k, scale)
    inside = Answer(np.diag(held), error / math.sqrt(k))
    total = Answer(np.asarray(trace), scale * math.sqrt(d))
    return V, Shown(shares_shown(values, trace, scale, d), inside, total)


# Column sums alone capture more than other routes if the detection limit of these exceeds this
# fraction of the singular value that the sums show: for one component, for several.
SUMS_ALONE = 1 / 3, 0.8


def by_sums(
    ask: Any, sums: Answer, columns: int, k: int, share: float, noise: RowNoise, spare: float = 0.0
) -> tuple[tuple[FloatArray, Answer, Shown] | None, float]:
    """Spend a share on column sums alone, if they show more than a moment of so many columns would.

    Return a subspace of them, the sums, and what they show; or None and the share that is left. The
    noise of the moment is compared with the sums known so far, with the mean square of a column,
    and with the largest square of one direction of independent entries. Sums are near the first
    direction only if entries are not negative, so rows with negative entries are counted first. The
    count takes little of the share; `spare` is the part of it that others need after None.
    """
    n, d, least = noise.n, len(sums.value), CLEAR * math.sqrt(2 * len(sums.value))
    edge = symmetric_noise_edge(noise.psd * noise.clip_norm**2 / math.sqrt(share), columns)
    square = float(sums.value @ sums.value) - (d + least) * sums.noise_scale**2
    # Independent entries scatter: the largest square of one direction exceeds its mean by so much.
    scatter = n * noise.clip_norm**2 * (1 + 2 * math.sqrt(max(n, 0.0) / d))
    shown = SUMS_ALONE[k > 1] ** 2 * max(square, (n * noise.clip_norm / 2) ** 2 / d, scatter)
    if not noise.psd or n * edge <= shown:
        return None, share
    part = min(share * min(CLIP_SHARE, (8 * noise.psd / n) ** 2), (share - spare) / 4)
    share -= part
    if ask.negative().norms_above(0.1 * noise.clip_norm, share=part).value > n / 2:
        return None, share
    sums = averaged(sums, ask.sums(share=share))
    V = mean_and_axes(*sums, k)
    mean = np.maximum(shrunk_mean(*sums, n, math.inf)[0], 0.0)
    high = noise.clip_norm**2 / max(float(mean.sum()), sums.noise_scale / n)
    values, error = held_by_sums(mean, sums.noise_scale, n, high, V)
    total = Answer(np.asarray(n * noise.clip_norm**2), sums.noise_scale * high * math.sqrt(d))
    clear = np.eye(k)[0] * (values[0] - total.value / d > CLEAR * error)
    return (V, sums, Shown(clear, Answer(np.diag(values), error), total)), share


def mean_and_axes(sums: FloatArray, noise_scale: float, k: int) -> FloatArray:
    """Return an orthonormal basis of the mean row and of the columns with the largest sums."""
    common = about_common(sums, noise_scale)
    return orthonormal(np.column_stack([common, axes(np.abs(sums), k - 1)]))


def held_by_sums(
    mean: FloatArray, noise_scale: float, n: float, high: float, V: FloatArray, *,
    graph: bool = False,
) -> tuple[FloatArray, float]:  # fmt: skip
    """Return the squares that n rows of a known mean have along directions, and their error.

    Entries are taken as 0 or `high`, so that their squares are `high` times as large; and columns
    as uncorrelated about the means of a row, which are the same for all rows. In a graph they are
    in proportion to the degree of the row, too.
    """
    uneven = n * float(mean @ mean) / max(float(mean.sum()), 1e-150) ** 2 if graph else 1.0
    variances = mean * np.maximum(high - uneven * mean, 0.0)
    values = n * (variances @ V**2 + uneven * (mean @ V) ** 2)
    return values, noise_scale * max(high, 2 * float(np.linalg.norm(mean)))


def power_subspace(
    ask: Any, start: FloatArray, k: int, shares: Sequence[float], noise: RowNoise
) -> FloatArray:
    """Return the leading k-dimensional subspace by power steps from a public start.

    Each step releases core (divided by 3) and tangent part together, and takes the leading left
    singular vectors of what they make: the two last steps have k of them. The tangent part of a
    direction is shortened by what its noise adds (James and Stein), so that a step which shows
    nothing keeps the start.
    """
    V = orthonormal(start)
    for i, share in enumerate(shares):
        released, scale = _tangent_product(ask, V, share, noise)
        core = CORE_SCALE * (V.T @ released)
        tangent = released - V @ (V.T @ released)
        values, Q = np.linalg.eigh((core + core.T) / 2)
        tangent = tangent @ Q
        least = max(len(V) * scale**2, 1e-300)
        tangent = tangent * (1 - least / np.maximum(np.sum(tangent**2, axis=0), least))
        # Below the noise a direction keeps a weight, so that the product keeps its rank.
        product = (V @ Q) * np.maximum(values, CORE_SCALE * scale) + tangent
        left = np.linalg.svd(product, full_matrices=False)[0]
        V = left[:, : k if i >= len(shares) - 2 else start.shape[1]]
    return V


# Leading subspaces of wide rows: few columns are kept, and the mean is always included.
#
# Notation as above. Each column adds noise, even without signal, so the number of kept columns
# follows the signal: n' = 2 x^(2/3) for x rows over the noise of one entry of the moment.


_SIZE, FEWEST_KEPT = 2.0, 100
ONE_MOMENT = 3  # times as many columns are best in one moment that nothing follows
_SCREENED_LEVEL = 60.0  # DIRECTION_LEVEL of sparse rows: their directions bear more clipping
# Budget fractions: of the subspace, for column sums; of the remainder, for the moment. The signal
# times _FEWER sets the number of its columns, because the products reach all other columns.
_SUMS, _MOMENT, _FEWER = 0.1, 0.55, 2 / 3


def n_kept_columns(signal: float, d: int, k: int) -> int:
    """Return how many columns to keep: rows over the noise of an entry, to the power 2/3."""
    return int(min(max(min(_SIZE * signal ** (2 / 3), MOST_DENSE), FEWEST_KEPT, 4 * k), d))


def moment_columns(signal: float, d: int, k: int) -> int:
    """Return the best number of columns of one moment, more than if power steps follow."""
    return min(ONE_MOMENT * n_kept_columns(signal, d, k), MOST_DENSE, d)


def screened_subspace(
    ask: Any, d: int, k: int, share: float, noise: RowNoise, spare: float = 0.0
) -> tuple[FloatArray, Answer, Shown | None]:
    """Return (V, noisy column sums, None) of wide rows, mostly of one sign.

    With a `spare` share, which sums alone may have too, `by_sums` may take its place.

    The mean, and the moment of the columns with the largest sums, are where products with all
    columns start. A row moves a product by much less than a moment where the start explains little
    of it. The subspace of the moment is chosen by thinning, with the largest columns among the
    candidates.
    """
    sums = ask.sums(share=_SUMS * share)
    first, last = _MOMENT * (1 - _SUMS) * share, (1 - _MOMENT) * (1 - _SUMS) * share
    n = n_kept_columns(_FEWER * noise.n * math.sqrt(first) / noise.psd, d, k)
    if spare:
        found, left = by_sums(ask, sums, n, k, first + last + spare, noise, spare)
        if found:
            return found
        last = left - first - spare
    order = np.argsort(-np.abs(sums.value), kind="stable")[:n]
    rows, first = suited_rows(ask.columns(order), 2 * n, first, noise, _SCREENED_LEVEL)
    moment, scale = rows.gram(share=first)
    start = np.zeros((d, k + 1))
    start[:, 0] = about_common(sums.value, sums.noise_scale)
    start[order, 1:] = chosen_subspace(moment, scale, k, np.eye(n, k))
    return power_subspace(ask, start[:, : min(k + 1, d)], k, [last], noise), sums, None


def about_common(values: FloatArray, noise_scale: float) -> FloatArray:
    """Return noisy numbers, shrunk to their mean as noise demands (James, Stein).

    The result is a unit vector: if noise hides all differences, a constant one of the sign found.
    """
    mean = float(np.mean(values))
    deviations = values - mean
    noise = max(len(values) - 3, 0) * noise_scale**2
    shrunk = mean + signal_share(float(deviations @ deviations), noise) * deviations
    return np.asarray(shrunk / max(float(np.linalg.norm(shrunk)), 1e-300))


MOMENT_SIGNAL = 150.0  # rows over noise, times root k, at which counts have half of the budget


def screened_moment(
    ask: Any, count: Callable[..., Answer], k: int, share: float, signal: float, most: float
) -> FloatArray:
    """Return a subspace of one moment of the columns with the largest counts, and of these counts.

    `signal` is rows over the noise of an entry of the moment, at the whole share; `most` is what a
    `count` may be. Popularity is added, as for rows, if the subspace lacks a part of it. All
    columns are used if the edge of their noise, over the fraction of the counts that they have, is
    lower: they are then about equally popular. The less signal a moment may have, the more of the
    budget the counts get, which give one direction. A moment of dense rows has that direction, too:
    by the first counts c, it holds at least c'c/(most sum c) of all squares.
    """
    strength = signal * math.sqrt(k) / MOMENT_SIGNAL
    part = min(0.9, 1 / (1 + strength)) * _SUMS
    counts = count(share=part * share)
    d, mean, noise = len(counts.value), counts.value / most, counts.noise_scale / most
    square = max(float(mean @ mean) - d * noise * noise, 0.0)
    dense = square / max(float(mean.sum()), square, noise * math.sqrt(d), 1e-300)
    ratio = dense * signal * math.sqrt(2 / moment_columns(signal, d, k))  # over half of the edge
    extra = min(0.9, 1 / (1 + strength + dense * ratio * ratio)) - part
    if extra > 0:
        counts, part = averaged(counts, count(share=extra * share)), part + extra
    size = moment_columns(signal * math.sqrt(1 - part), d, k)
    order = np.argsort(-counts.value, kind="stable")
    total = max(float(counts.value.sum()), 1e-300)
    keeps_all = d <= MOST_DENSE and counts.value[order[:size]].sum() < math.sqrt(size / d) * total
    order = order if keeps_all else order[:size]
    moment, V = ask.columns(order).gram(share=(1 - part) * share), np.zeros((d, k))
    common = about_common(counts.value, counts.noise_scale)
    popular = orthonormal(np.column_stack([common[order], np.eye(len(order), k - 1)]))
    V[order] = chosen_subspace(moment.value, moment.noise_scale, k, popular)
    remainder = common - V @ (V.T @ common)
    return orthonormal(np.column_stack([V, remainder])) if remainder @ remainder > _SUMS else V


# Directions of regression in more columns than a moment can hold.


class RegressionDirections(NamedTuple):
    """Directions of the sums of products with the targets.

    Attributes
    ----------
    basis : array of shape (d, k)
        Orthonormal columns.
    along : array of shape (k, q)
        What maps them to the products, up to one factor: a linear map by these alone.
    center : array of shape (k,)
        The mean of the rows in them.
    near : array of shape (k,)
        About how far rows are from there along each.
    share : array of shape (q,)
        Fraction of the variance along them, for each target, that is not noise.
    contrasts : array of shape (d,)
        Squares of the products of each column with the targets, about the means.
    chance : float
        What products of the same rows hold in the basis for a target of variance 1.
    """

    basis: FloatArray
    along: FloatArray
    center: FloatArray
    near: FloatArray
    share: FloatArray
    contrasts: FloatArray
    chance: float


def product_directions(
    products: FloatArray, noise: float, alpha: float, bias: float, clip_norm: float, centered: bool
) -> RegressionDirections:
    """Return directions of regression in all columns, from a released [X, c]'[V, c].

    If rows fill few of many columns, the squares of a column sum to about its sum, and products of
    two columns to nearly 0, so the sums replace X'X. Columns whose sums clearly exceed their noise
    share the squares of all rows about their mean, of norm `clip_norm` about 0; the penalty is what
    this noise is in them. Columns with similar sums (within a factor of 2) share a Wiener weight,
    the fraction of their products that is not clearly noise, which does not fall as sums grow. With
    many targets, rare columns would be favoured without it. Sums are shrunk to 0 before products
    with the means are subtracted, because their noise is larger.
    """
    weight = max(products[-1, -1], 2 * noise) / bias**2
    sums, means = products[:-1, -1] / bias, centered * products[-1, :-1] / (bias * weight)
    size, unit = np.abs(sums), noise / bias
    # In units of the noise no square of it is extreme.
    cross = (products[:-1, :-1] - np.outer(denoised(sums, unit), means)) / noise
    clear = np.maximum(size - unit, 0.0) if (size > unit).any() else np.full_like(sums, unit)
    # A lower bound of the share of the mean in the squares of rows up to `clip_norm`, below 1.
    length = float(np.linalg.norm(sums))
    mean_share = length**2 - len(sums) * unit**2 - 2 * CLEAR * unit * length
    mean_share = centered * min(max(mean_share, 0.0) / (weight * clip_norm) ** 2, 1 - 1 / 64)
    per_sum = (1 - mean_share) * weight * clip_norm**2 / float(clear.sum())
    squares = per_sum * clear
    noises, contrasts = 1 + (means / bias) ** 2, np.sum(cross**2, axis=1)
    group = np.log2(2 * np.maximum(size / unit, 0.5)).astype(int)
    error = CLEAR * np.sqrt(2 / np.maximum(np.bincount(group) * len(noises), 1))
    noisy = np.bincount(group, np.where(group > 0, noises.sum(), len(noises)))
    part = noisy * np.maximum(1 - error, 0.0) / np.maximum(np.bincount(group, contrasts), 1e-300)
    wiener = np.maximum.accumulate(np.maximum(1 - part, 0.0))[group]
    filters = (wiener if wiener.any() else 1.0) / (1 + squares / (alpha + per_sum * unit))
    # Columns whose sums are below the noise count for nothing here.
    along = filters**2 * squares * (size > CLEAR * unit)
    share = 1 - 1 / np.maximum(along @ cross**2 / (along.sum() * noises + 1e-300), 1.0)
    shrunk = filters[:, None] * cross
    left, sizes, _ = np.linalg.svd(shrunk, full_matrices=False)
    basis = left[:, sizes > NEGLIGIBLE * sizes[0]] if sizes[0] else left[:, :1]
    near = np.sqrt(squares @ basis**2 / weight)
    # Noise is the same in sums and products: its square would be the centre of the others.
    center = np.where(size > 2 * CLEAR * unit, sums, 0.0) @ basis / weight
    chance = float(filters @ squares) * clip_norm / noise
    return RegressionDirections(basis, basis.T @ shrunk, center, near, share, contrasts, chance)
