"""Low-pass filters of a user-item matrix, from noisy counts and one noisy moment of its rows.

Notation: m users, n items, q the noisy count of each item, K the n' kept (most popular) items,
G a released moment of the rows on K. All arrays here are public.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skdp._limits import FloatArray
from skdp.answer import Answer
from skdp.solvers.item_filter import ItemFilter, list_length
from skdp.solvers.linalg import Directions, PairMoment, leading_pairs, wigner, without_direction
from skdp.solvers.one_shot import Flipped, history_pairs
from skdp.solvers.spectral import averaged, n_kept_columns

# Latent factors from a noisy moment of pairs of items, and their reliability.
#
# Notation: m users, n' kept items, G the released moment on them without its diagonal; `own` is
# about what the diagonal would be, from the counts. All arrays here are public.
#
# There are two kinds of noise, and each is shrunk in the metric in which its entries have equal
# variance. For the noise of privacy that is G itself. For the noise of sampling (the m users are a
# sample) items are divided by the roots of `own`: a pair of independent items has variance 1/m.


# In noise levels of the moment: what is added to the size of each item when items are weighted,
# and to the diagonal that is estimated from the pairs. Larger ones turn chance into factors.
_FLOOR, _OWN = 0.3, 0.1


class Items(NamedTuple):
    """What is known of the kept items next to their pairs.

    Attributes
    ----------
    kept : ndarray of int
    popularity : ndarray of shape (n_items,)
        Of all items, positive, in the order of the noisy counts.
    own : ndarray of shape (n',)
        About what the diagonal of the moment would be.
    n_users : float
    """

    kept: NDArray[np.intp]
    popularity: FloatArray
    own: FloatArray
    n_users: float

    @property
    def popular(self) -> FloatArray:
        """The direction of popularity on the kept items, of norm 1."""
        counts = self.popularity[self.kept]
        return np.asarray(counts / np.linalg.norm(counts))


def own_of(counts: FloatArray, n_users: float) -> FloatArray:
    """Return about the diagonal of the moment, if rows have a norm of at most 1."""
    return counts * min(1.0, n_users / max(float(counts.sum()), 1e-300))


def residual_factors(
    moment: PairMoment | None, items: Items, n_components: int, exponent: float
) -> ItemFilter:
    """Return the filter of the factors above the noise of a moment; None has no factors.

    The mean count is added to each item (Amini, Chen, Bickel, Levina 2013), because pairs of rare
    items are chance.
    """
    least = items.own.mean() + (_FLOOR * moment.edge if moment else 0.0)
    weights = (items.own + least) ** -exponent
    found = _NOTHING if moment is None else _reading(moment, items, n_components)
    first = items.popularity[items.kept] * weights
    length = float(np.linalg.norm(first))
    first = first / length
    factors, gains = _factors(found, weights, first, n_components, _chance(items, weights))
    inward = np.ascontiguousarray(np.column_stack([first, factors]) * weights[:, None])
    outward = (factors * gains).T / weights
    return ItemFilter(items.kept, items.popularity, inward, outward, 1 / length)


_NOTHING = Directions(np.zeros((1, 0)), np.zeros(0), np.zeros(0))


def _reading(moment: PairMoment, items: Items, k: int) -> Directions:
    """Return the factors of pairs without popularity, with a diagonal estimated from them.

    Popularity is known from the counts. The diagonal follows the k first directions, once: more
    rounds change little.
    """
    v, others = items.popular, without_direction(moment.off, items.popular)
    found = moment.shrink(*leading_pairs(others, k, rough=True))
    values = found.values * found.cosines
    share = (found.vectors**2) @ np.where(values > _chance(items), values, 0.0)
    own = np.minimum(share + _OWN * moment.edge, items.own)
    M = without_direction(np.diag(own), v) + others
    return moment.shrink(*leading_pairs(M, 2 * k, rough=True))


def _chance(items: Items, weights: Any = 1.0) -> float:
    """Return where the spectrum of the pairs of independent items ends, if items are weighted.

    Entries have variances s_i s_j / n. By the quadratic vector equation (Ajanki, Erdos, Krueger
    2017), which has one unknown here; the smallest value over it is the edge.
    """
    sizes = items.own * weights**2
    u = np.linspace(0.01, 0.99, 99)[:, None] / sizes.max()
    squares = (sizes / (1 - u * sizes)).sum(axis=1, keepdims=True) / u
    return math.sqrt(float(squares.min()) / items.n_users)


def _factors(
    directions: Directions, weights: FloatArray, first: FloatArray, n_components: int, edge: float
) -> tuple[FloatArray, FloatArray]:
    """Return orthonormal factors without popularity, and the reliability of each.

    The shrunk moment is brought to the metric of the weights, and shrunk by the noise of sampling,
    whose spectrum ends at `edge`. A factor counts by its reliability, the mean squared cosine of
    what it is made of.
    """
    V, theta, cosines = directions
    if not V.shape[1]:
        return np.zeros((len(first), 0)), np.zeros(0)
    roots = V * np.sqrt(theta * np.maximum(cosines, 0.0)) * weights[:, None]
    U, s, M = np.linalg.svd(roots - np.outer(first, first @ roots), full_matrices=False)
    U = U[:, s > 1e-6 * s[0]]
    U, values, clear = wigner(s[: U.shape[1]] ** 2, U, edge / (2 * math.sqrt(len(first))))
    r = min(n_components - 1, len(values))
    return U[:, :r], clear[:r] * ((M[:r] ** 2) @ np.minimum(cosines, 1.0))


_UNRESOLVED = 2e-4  # what noise costs the list (`Route._unresolved`) where counts get half of all


class Route(NamedTuple):
    """The public sizes that determine how a moment is released.

    Attributes
    ----------
    name : {"gram", "one_shot", "popularity"}
    signal : callable
        (mean kept degree, kept items, share of the budget) -> users over the noise of one pair.
    most : callable
        share of the budget -> items that may be kept at most.
    least : float
        Share of the counts next to a moment, at least.
    pairs : bool
        Whether a moment is released without the direction of popularity.
    """

    name: str
    signal: Callable[[float, int, float], float]
    most: Callable[[float], int]
    least: float = 1.0
    pairs: bool = False

    def counts(self, first: Answer) -> float:
        """Return the share of the counts for a reliable list, from the first counts."""
        total = float(first.value.sum())
        if total <= first.noise_scale * math.sqrt(len(first.value)):  # nothing but noise
            return 1.0
        unresolved = self._unresolved(first, total)
        share = max(self.least, unresolved / (unresolved + _UNRESOLVED))
        return share if share <= 1.0 - self.least else 1.0

    def _unresolved(self, first: Answer, total: float) -> float:
        """Return what noise would cost the list of popular items if counts had the whole budget.

        Noise s swaps items near the end of the list. With `density` items to a unit of counts
        there, the list loses s^2/2 times the density, as a part of all counts. This is weighted by
        the part of the counts that the list contains, because factors may find the others.
        """
        ordered, size = np.sort(first.value)[::-1], list_length(len(first.value))
        start, end = size // 2, min(2 * size, len(ordered)) - 1
        density = (end - start) / max(float(ordered[start] - ordered[end]), 1e-300)
        held = max(float(ordered[:size].sum()), 0.0) / total
        return min(density * self.least * first.noise_scale**2 / (2 * total) * held, 1e6)


def _sized(route: Route, ordered: FloatArray, n_users: float, share: float) -> tuple[int, int]:
    """Return how many items to keep, and the mean number of them of a user.

    If pairs are released without the popularity, their signal counts half, so that fewer items are
    kept: more of them would dilute the factors.
    """
    degrees = np.cumsum(np.maximum(np.append(0.0, ordered), 0.0)) / max(n_users, 1.0)
    most = route.most(share)
    first = min(1000, most, len(ordered))
    signal = max(route.signal(max(degrees[first], 1.0), first, share), 0.0) / (1 + route.pairs)
    n_kept = min(n_kept_columns(signal, len(ordered), 0), most)
    return n_kept, max(1, round(degrees[n_kept]))


def _positive(counts: FloatArray) -> FloatArray:
    """Return counts at least 0, in their order also where noise made them negative."""
    spread = float(np.ptp(counts)) or 1.0
    order = (counts - counts.min() + spread / 2) / spread
    return np.asarray(np.maximum(counts, 0.0) + 1e-6 * order)


def fit_filter(
    ask: Any,
    route: Route,
    n_users: float,
    available: float,
    n_components: int,
    exponent: float,
    floor: int | None = None,
) -> tuple[ItemFilter, Answer, Flipped | None]:
    """Release counts, and the moment of the most popular items; return flipped histories, too.

    The first counts decide how much more of the budget counts get: all of it if no factor would
    exceed the noise. With a pure budget ("one_shot") they get all of it, or nothing more.
    """
    first = available * route.least
    counts, rest = ask.counts(share=first), available - first
    wanted = available * route.counts(counts)
    more = rest if wanted == available else 0.0 if route.name == "one_shot" else wanted - first
    if more > 0:
        counts, rest = averaged(counts, ask.counts(share=more)), rest - more
    order, moment, flipped = np.argsort(-counts.value, kind="stable"), None, None
    n_kept, usual = _sized(route, counts.value[order], n_users, rest) if rest else (1, 1)
    kept = np.sort(order[:n_kept])
    if rest and route.name == "one_shot":
        flipped = Flipped(*ask.cells(kept, share=rest))
        of_kept, value = counts._replace(value=counts.value[kept]), counts.value.copy()
        value[kept] = averaged(of_kept, flipped.counts).value
        counts = counts._replace(value=value)
    clear = np.maximum(counts.value[kept], 2 * counts.noise_scale or 1e-100)
    items = Items(kept, _positive(counts.value), own_of(clear, n_users), n_users)
    if flipped:
        moment = history_pairs(flipped.rows, flipped.noise_scale, floor or usual)
    elif rest:
        off, deviation = ask.moment(kept, floor or usual, items.popular, share=rest)
        shrink = partial(wigner, noise_scale=deviation / math.sqrt(2))
        moment = PairMoment(off, shrink, deviation * math.sqrt(2 * n_kept))
    return residual_factors(moment, items, n_components, exponent), counts, flipped
