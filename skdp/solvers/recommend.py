"""Low-pass filters of a user-item matrix, from noisy counts and one noisy moment of its rows.

Notation: m users, n items, q the noisy count of each item, K the n' kept (most popular) items,
G a released moment of the rows on K. All arrays here are public.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from skdp.solvers.item_filter import ItemFilter
from skdp.solvers.one_shot import history_moment, leading_pairs
from skdp.solvers.shrinkage import Directions, pair_evidence, wigner

FloatArray = NDArray[np.float64]
_PURE_COUNTS, _PURE_CELLS = 0.15, 0.8  # shares of a pure budget
_READABLE = 50  # the count of this rank must be readable, or that of a tenth of the items
_FEWEST_KEPT, _MOST_KEPT = 100, 4000
_SIZE = 2.0  # kept items: SIZE x^(2/3) for a signal figure x
_SLOW = 1e-300
BLENDS = (0.0, 0.25, 1.0)  # weights of the tastes beside popularity, from none to all
_JUDGE = 0.05  # share of the budget that chooses among them
_MOST_JUDGED = 0.5  # of the rows, of which a fifth of the items is hidden from the moment
_JUDGED_ROWS = 10_000.0  # are enough
_JUDGED_SCORES = 4e7  # computed for it: seconds
_CAREFUL = 1  # which of them to take where nothing tells them apart, and pairs of items
_EVIDENCE = 2.5  # stand out of the noise together by so many deviations; else the first
_CLEARLY = 1.5  # noise scales by which another weight must be better
_LIST = 20
_LISTS = 8  # with other noise, that are compared with the list of the counts


_NOTHING = Directions(np.zeros((1, 0)), np.zeros(0), np.zeros(0))


class Route(NamedTuple):
    """How a moment is released, as far as its public sizes go.

    Attributes
    ----------
    name : {"gram", "one_shot", "popularity"}
    signal : callable
        (mean kept degree, kept items, share of the budget) -> users over the noise of one pair.
    most : callable
        share of the budget -> items that may be kept at most.
    doubt : callable
        share of a pure budget -> how much better a blend must be to stand clear of the noise of a
        choice.
    """

    name: str
    signal: Callable[[float, int, float], float]
    most: Callable[[float], int]
    doubt: Callable[[float], float] = lambda _: 0.0


class Fitted(NamedTuple):
    """What a fit releases: the filter, what it was made of, and how far it may be read."""

    filter: ItemFilter
    counts: Counts
    directions: Directions
    diagonal: FloatArray
    blend: float


class Counts(NamedTuple):
    """Noisy item counts.

    Attributes
    ----------
    value : ndarray of shape (n_items,)
    noise_scale : float
    spent : float
        Share of the budget that they took.
    readable : bool
        Whether the most popular items stand clearly above the noise, and the best are known.
    """

    value: FloatArray
    noise_scale: float
    spent: float
    readable: bool


def buy_counts(ask_counts: Callable[[float], Any], available: float, route: str) -> Counts:
    """Buy counts in rungs until they can be read; with all that is available if they cannot.

    Each rung is one release; they are averaged by precision. How far to go is decided on released
    values, and what is not spent here is spent on the moment: the total is the same. For pure
    noise the parts must be the same too, since they do not compose to their sum: one rung, then
    the share of the cells, and the judge's in any case.
    """
    value: Any = 0.0
    precision = spent = 0.0
    for share, level, loss in _rungs(route, available):
        answer = ask_counts(share)
        if answer.noise_scale == 0.0:
            return Counts(answer.value, 0.0, share, route != "popularity")
        weight = answer.noise_scale**-2
        value = (precision * value + weight * answer.value) / (precision + weight)
        precision, spent = precision + weight, spent + share
        scale = precision**-0.5
        rank = min(_READABLE, max(len(value) // 10, 1))
        clear = np.partition(value, -rank)[-rank] > level * scale
        if clear and list_loss(value, scale) <= loss:
            return Counts(value, scale, spent, True)
    return Counts(value, precision**-0.5, spent, False)


def _rungs(route: str, available: float) -> tuple[tuple[float, float, float], ...]:
    """Return shares of the counts, and when to stop.

    That is: how many noise scales they must reach, and what the best list may lose.
    """
    if route == "popularity":
        return ((available, math.inf, 0.0),)
    if route == "one_shot":
        return ((_PURE_COUNTS, 4.5, 0.02), (_PURE_CELLS, math.inf, 0.0))
    rungs = ((0.1, 5.0, 0.004), (0.2, 3.5, 0.004), (0.3, 3.5, 0.01), (0.4, math.inf, 0.0))
    return tuple((part * available, level, loss) for part, level, loss in rungs)


def list_loss(counts: FloatArray, noise_scale: float) -> float:
    """Return which share of the counts of the best 20 items as much noise again would lose.

    About what the first noise has lost. The second one is a fixed pattern: nothing is drawn.
    """
    best = min(_LIST, len(counts))
    total = float(np.partition(counts, -best)[-best:].sum())
    if total <= 0.0:
        return 1.0
    found = 0.0
    for j in range(1, _LISTS + 1):
        pattern = ndtri((np.arange(1, len(counts) + 1) * math.sqrt(j * j + 1)) % 1.0)
        noisy = counts + noise_scale * np.clip(pattern, -9.0, 9.0)
        found += float(counts[np.argpartition(noisy, -best)[-best:]].sum())
    return 1 - found / _LISTS / total


def kept_items(signal: float, n_items: int, most: int = _MOST_KEPT) -> int:
    """Return how many items to keep for a signal figure: users over the noise of one pair."""
    size = _SIZE * max(signal, _SLOW) ** (2 / 3)
    return int(np.clip(size, min(_FEWEST_KEPT, n_items), min(most, n_items)))


def kept_degree(ordered: FloatArray, n_kept: int, n_users: float) -> float:
    """Return the mean number of kept items of a user, from counts in descending order."""
    return max(float(np.maximum(ordered[:n_kept], 0.0).sum()) / max(n_users, 1.0), 1.0)


def _sized(route: Route, ordered: FloatArray, n_users: float, share: float) -> tuple[int, int]:
    """Solve n' = kept_items(signal(mean kept degree of n')) by iteration: (n', that degree)."""
    most = route.most(share)
    n_kept = min(1000, most, len(ordered))
    for _ in range(20):
        signal = route.signal(kept_degree(ordered, n_kept, n_users), n_kept, share)
        n_kept = kept_items(signal, len(ordered), most)
    return n_kept, max(1, round(kept_degree(ordered, n_kept, n_users)))


def _positive(counts: FloatArray) -> FloatArray:
    """Return counts at least 0, in their order also where noise made them negative."""
    spread = float(np.ptp(counts)) or 1.0
    order = (counts - counts.min() + spread / 2) / spread
    return np.asarray(np.maximum(counts, 0.0) + 1e-6 * order)


def item_filter(
    counts: Counts,
    kept: NDArray[np.intp],
    directions: Directions,
    n_components: int,
    exponent: float,
) -> ItemFilter:
    """Return the filter of the readable directions of a moment on the kept items."""
    popularity = _positive(counts.value)
    weights = np.maximum(popularity[kept], max(2 * counts.noise_scale, _SLOW)) ** -exponent
    first = popularity[kept] * weights
    length = float(np.linalg.norm(first))
    first = first / length
    tastes, gains = _tastes(directions, weights, first, n_components)
    inward = np.column_stack([first, tastes]) * weights[:, None]
    outward = (tastes * gains).T / weights
    return ItemFilter(kept, popularity, inward, outward, 1 / length)


def popularity_filter(counts: Counts) -> ItemFilter:
    """Return the filter that knows the counts alone."""
    top = np.argsort(-counts.value, kind="stable")[:1]
    return item_filter(counts, top, _NOTHING, 1, 0.0)


def _tastes(
    directions: Directions, weights: FloatArray, first: FloatArray, n_components: int
) -> tuple[FloatArray, FloatArray]:
    """Return orthonormal tastes off the popularity, and how far to trust each.

    The shrunk moment is brought to the metric of the weights; a taste counts by its reliability
    (the mean squared cosine of what it is made of) and slowly by its eigenvalue.
    """
    V, theta, cosines = directions
    if not V.shape[1] or n_components < 2:
        return np.zeros((len(first), 0)), np.zeros(0)
    U, s, M = np.linalg.svd(
        V * np.sqrt(theta * np.maximum(cosines, 0.0)) * weights[:, None], full_matrices=False
    )
    reliable = np.minimum((M**2) @ cosines, 1.0)
    U, s, M = np.linalg.svd((U - np.outer(first, first @ U)) * s, full_matrices=False)
    r = min(n_components - 1, int(np.count_nonzero(s > 1e-6 * s[0])))
    power = 0.5 if len(first) >= 10 * n_components else 1.0
    return U[:, :r], ((M[:r] ** 2) @ reliable) * (s[:r] / s[0]) ** power


def best_blend(
    totals: FloatArray, noise_scale: float, careful: int, blends: Sequence[float] = BLENDS
) -> float:
    """Return the weight of the tastes with the largest released recall.

    What the noise cannot tell apart goes to a careful weight: none where there is no evidence of
    tastes; else one that is near popularity where they mislead, and has most of their gain.
    """
    judged = np.array(totals, np.float64)
    judged[careful] += _CLEARLY * noise_scale
    return float(blends[int(np.argmax(judged))])


def fit_filter(
    ask: Any, route: Route, n_users: float, available: float, n_components: int, exponent: float
) -> Fitted:
    """Release counts, the moment of the most popular items, and how far its tastes help.

    Where the counts cannot be read, or nothing else is wanted, they take all that is available.
    """
    counts = buy_counts(lambda share: ask.counts(share=share), available, route.name)
    if not counts.readable:
        found = popularity_filter(counts).blended(0.0)
        if route.name == "one_shot":
            _chosen_blend(ask, route, found, min(_MOST_JUDGED, _JUDGED_ROWS / n_users), 0)
        return Fitted(found, counts, _NOTHING, counts.value, 0.0)
    rest = _PURE_CELLS if route.name == "one_shot" else available - counts.spent - _JUDGE
    order = np.argsort(-counts.value, kind="stable")
    n_kept, floor = _sized(route, counts.value[order], n_users, rest)
    kept = np.sort(order[:n_kept])
    judged = min(_MOST_JUDGED, _JUDGED_ROWS / n_users)
    moment = _moment(ask, route, kept, floor, judged, rest, n_components)
    tastes = item_filter(counts, kept, moment.directions, n_components, exponent)
    judged = min(judged, _JUDGED_SCORES / (n_users * n_kept))
    careful = _CAREFUL if moment.evidence > _EVIDENCE else 0
    chosen = _chosen_blend(ask, route, tastes, judged, careful)
    blend = chosen if tastes.rank else 0.0
    return Fitted(tastes.blended(blend), counts, moment.directions, moment.diagonal, blend)


def _chosen_blend(ask: Any, route: Route, tastes: ItemFilter, judged: float, careful: int) -> float:
    """Choose the weight of the tastes by the recall of hidden items; pure routes by one choice."""
    query = ask.judge(*tastes.arrays(), np.asarray(BLENDS), judged)
    if route.name != "one_shot":
        answer = query.recalls(share=_JUDGE)
        return best_blend(answer.value, answer.noise_scale, careful)
    bonus = np.zeros(len(BLENDS))
    bonus[careful] = route.doubt(_JUDGE)
    return float(BLENDS[query.best_recall(bonus, share=_JUDGE)])


class _Moment(NamedTuple):
    directions: Directions
    diagonal: FloatArray
    evidence: float  # of tastes, in deviations of the noise


def _moment(
    ask: Any,
    route: Route,
    kept: NDArray[np.intp],
    floor: int,
    judged: float,
    share: float,
    n_components: int,
) -> _Moment:
    """Release the moment on the kept items, or their flipped cells; return what can be read."""
    if route.name == "one_shot":
        cells = ask.cells(kept, judged, share=share)
        found = history_moment(cells.value, cells.noise_scale, floor, n_components)
        return _Moment(*found, math.inf)
    answer = ask.moment(kept, floor, judged, share=share)
    pairs = leading_pairs(answer.value, 4 * n_components)
    noise_scale = answer.noise_scale / math.sqrt(2)
    evidence = pair_evidence(answer.value, noise_scale)
    return _Moment(wigner(*pairs, noise_scale), np.diag(answer.value).copy(), evidence)
