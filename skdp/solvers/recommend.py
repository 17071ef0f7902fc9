"""Low-pass filters of a user-item matrix, from noisy counts and one noisy moment of its rows.

Notation: m users, n items, q the noisy count of each item, K the n' kept (most popular) items,
G a released moment of the rows on K. All arrays here are public.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from skdp.answer import Answer
from skdp.solvers.item_filter import ItemFilter, list_length
from skdp.solvers.one_shot import Flipped, history_pairs
from skdp.solvers.rungs import Bought, averaged, bought, ranked
from skdp.solvers.shrinkage import PairMoment, wigner
from skdp.solvers.tastes import Items, Way, Ways, energy_of, offered, own_of, tells

FloatArray = NDArray[np.float64]
_PURE_COUNTS, _PURE_CELLS, _PURE_CHOICE = 0.05, 0.87, 0.08  # shares of a pure budget
_FEWEST_KEPT, _MOST_KEPT = 100, 4000
_SIZE, _LARGE_SIZE = 2.0, 1.2  # kept items: SIZE x^(2/3) for a signal figure x
_LARGE = 1000  # items: beyond them time and memory count, and more help little
_LARGE_ROWS = 200  # the same for pairs off the popularity: more of them dilute tastes
_SLOW = 1e-300
_JUDGE = 0.05  # share of the budget that chooses among them
_LEAST_JUDGED, _MOST_JUDGED = 2500.0, 10_000.0  # rows of which some items are hidden
_VOTERS = 160.0  # for each noise scale of a vote: more would say little more
_DROWNED = 0.012  # of all rows: more noise than that hides all but the best ways
_JUDGED_SCORES = 2e7  # computed for it: seconds
# Half a moment then shows tastes of 7% of all: of made tables with less, none was better by tastes.
_LOOK_SHARE, _LEAST_LOOK = 0.8, 290.0
_FIRST_LOOK = 0.5  # of a moment's share, where what is left would serve the counts
_SLIGHT_LOSS = 0.0002  # of the best list: counts that lost no more need nothing
_UNLIKE = 0.06  # of the rows vote on a way that is about as good as popularity
_HIDDEN, _MOST_HIDDEN = 0.1, 2.0  # share of the items of a judged row, and how many in the mean
_SEEN, _MOST_SEEN = 0.2, 6.0  # the same where the moment is made with them
_LISTS = 8  # with other noise, that are compared with the list of the counts


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
        share of the budget -> the noise scale of one vote, or of a choice.
    pairs : bool
        Whether a moment is released without its diagonal.
    staged : bool
        Whether the first counts are pure, and say what the rest of the budget is.
    """

    name: str
    signal: Callable[[float, int, float], float]
    most: Callable[[float], int]
    doubt: Callable[[float], float] = lambda _: 0.0
    pairs: bool = False
    staged: bool = False


class Judged(NamedTuple):
    """What is hidden from a filter to judge it: all of it public.

    Attributes
    ----------
    rows : float
        Share of the rows.
    items : float
        Share of their items.
    apart : bool
        Whether the moment is made without them. Where votes drown in noise it is not: so much
        noise lets no row speak for itself, and the moment needs all pairs.
    """

    rows: float
    items: float
    apart: bool

    @property
    def left_out(self) -> tuple[float, float]:
        """Shares that the moment is made without."""
        return (self.rows if self.apart else 0.0), self.items


class Fitted(NamedTuple):
    """What a fit releases: the filter, the counts that it starts from, and flipped histories."""

    filter: ItemFilter
    counts: Bought
    flipped: Flipped | None = None


def buy_counts(
    ask_counts: Callable[..., Answer], available: float, route: str, start: Answer | None = None
) -> Bought:
    """Buy counts in rungs until they can be read; with all that is available if they cannot.

    What is not spent here is spent on the moment: the total is the same. For pure noise the parts
    must be the same too, since they do not compose to their sum: one rung, then the share of the
    cells, and the judge's in any case. A `start` was paid for elsewhere.
    """

    def clear(value: FloatArray, scale: float, level: float, loss: float) -> bool:
        return ranked(value) > level * scale and list_loss(value, scale) <= loss

    found = bought(ask_counts, _rungs(route, available, start is not None), clear, start)
    return found._replace(readable=found.readable and route != "popularity")


def _counts(ask: Any, route: Route, n_users: float, available: float) -> Bought:
    """Buy counts; of a staged budget first ones, which say what all of the rest is for."""
    if not route.staged:
        return buy_counts(ask.counts, available, route.name)
    first = ask.counts(share=1.0)
    looks = worth_a_look(route, first, n_users)
    ask.turn("gaussian" if looks else "pure")
    if looks:
        return buy_counts(ask.counts, available, route.name, first)
    counts = Bought(first.value, first.noise_scale, 0.0, readable=False)
    return counts.with_more(ask.counts(share=1.0), 1.0)


def _rungs(
    route: str, available: float, started: bool = False
) -> tuple[tuple[float, float, float], ...]:
    """Return shares of the counts, and when to stop.

    That is: how many noise scales they must reach, and what the best list may lose. Counts of a
    first stage are about as good as the first two rungs.
    """
    if route == "popularity":
        return ((available, math.inf, 0.0),)
    if route == "one_shot":
        return ((_PURE_COUNTS, 4.5, 0.015), (_PURE_CELLS, math.inf, 0.0))
    begin = (
        ((0.0, 5.0, 0.01), (0.2, 3.5, 0.025)) if started
        else ((0.04, 5.0, 0.0015), (0.06, 5.0, 0.01), (0.2, 3.5, 0.025))
    )  # fmt: skip
    rungs = (*begin, (0.3, 3.5, 0.02), (0.4, math.inf, 0.0))
    return tuple((part * available, level, loss) for part, level, loss in rungs)


def list_loss(counts: FloatArray, noise_scale: float) -> float:
    """Return which share of the counts of the best items as much noise again would lose.

    About what the first noise has lost. The second one is a fixed pattern: nothing is drawn. Twice
    as many items as a list has: those that a user knows are not in it.
    """
    best = min(2 * list_length(len(counts)), max(1, len(counts) // 2))
    total = float(np.partition(counts, -best)[-best:].sum())
    if total <= 0.0:
        return 1.0
    found = 0.0
    for j in range(1, _LISTS + 1):
        pattern = ndtri((np.arange(1, len(counts) + 1) * math.sqrt(j * j + 1)) % 1.0)
        noisy = counts + noise_scale * np.clip(pattern, -9.0, 9.0)
        found += float(counts[np.argpartition(noisy, -best)[-best:]].sum())
    return 1 - found / _LISTS / total


def kept_items(signal: float, n_items: int, most: int = _MOST_KEPT, large: int = _LARGE) -> int:
    """Return how many items to keep for a signal figure: users over the noise of one pair."""
    power = max(signal, _SLOW) ** (2 / 3)
    size = min(_SIZE * power, max(_LARGE_SIZE * power, large))
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
        n_kept = kept_items(signal, len(ordered), most, _LARGE_ROWS if route.pairs else _LARGE)
    return n_kept, max(1, round(kept_degree(ordered, n_kept, n_users)))


def worth_a_look(route: Route, counts: Answer, n_users: float) -> bool:
    """Return whether a moment can show any taste, by what first counts say of usual histories."""
    ordered = -np.sort(-counts.value)
    n_kept, usual = _sized(route, ordered, n_users, _LOOK_SHARE)
    # The largest of noisy counts are too large together; all of them have no such bias.
    degree = min(float(usual), max(float(ordered.sum()) / n_users, 1.0))
    return route.signal(degree, n_kept, _LOOK_SHARE) >= _LEAST_LOOK


def _positive(counts: FloatArray) -> FloatArray:
    """Return counts at least 0, in their order also where noise made them negative."""
    spread = float(np.ptp(counts)) or 1.0
    order = (counts - counts.min() + spread / 2) / spread
    return np.asarray(np.maximum(counts, 0.0) + 1e-6 * order)


def known_items(counts: Bought, kept: NDArray[np.intp], n_users: float) -> Items:
    """Return what the counts say of the kept items."""
    clear = np.maximum(counts.value[kept], max(2 * counts.noise_scale, _SLOW))
    return Items(kept, _positive(counts.value), own_of(clear, n_users), n_users)


def with_flips(
    counts: Bought, flipped: Flipped, kept: NDArray[np.intp], hidden: float, n_users: float
) -> Bought:
    """Average the counts of the kept items with the sums of their flipped cells, by precision.

    A share `hidden` of the cells was left out, whatever is in them: of q ones about so many are
    missing, with a variance of q hidden (1 - hidden). The noise scale is that of the other items.
    """
    if counts.noise_scale == 0.0:
        return counts
    gain, offset = flipped.unbiased
    cells = np.asarray(flipped.rows.sum(axis=0), np.float64).reshape(-1)
    sums = (gain * cells - offset * n_users) / (1 - hidden)
    first = counts.value[kept]
    luck = np.maximum(first, 0.0) * hidden / (1 - hidden)
    variance = n_users * flipped.noise_scale**2 / (1 - hidden) ** 2 + luck
    weight = counts.noise_scale**2 / (counts.noise_scale**2 + variance)
    value = counts.value.copy()
    value[kept] = first + weight * (sums - first)
    return counts._replace(value=value)


def popularity_ways(counts: Bought, n_users: float) -> Ways:
    """Return the filters that know the counts alone."""
    top = np.argsort(-counts.value, kind="stable")[:1]
    return offered(None, known_items(counts, top, n_users), 1, 0.0)


def best_way(ways: Sequence[Way], votes: FloatArray, doubt: FloatArray) -> Way | None:
    """Return the way with most votes beyond its doubt; popularity where none has any."""
    beyond = votes - doubt
    best = int(np.argmax(beyond))
    return ways[best] if beyond[best] > 0 else None


def fit_filter(
    ask: Any,
    route: Route,
    n_users: float,
    available: float,
    n_components: int,
    exponent: float,
    floor: int | None = None,
) -> Fitted:
    """Release counts, the moment of the most popular items, and how far its tastes help.

    Where the counts cannot be read, or nothing else is wanted, they take all that is available;
    where no tastes can be read they take what is left.
    """
    counts = _counts(ask, route, n_users, available)
    if not counts.readable:
        ways = popularity_ways(counts, n_users)
        if route.name == "one_shot":
            _chosen_way(ask, route, ways, n_users, judged_part(route, n_users, 1))
        return Fitted(ways.chosen(None), counts)
    rest = _PURE_CELLS if route.name == "one_shot" else available - counts.spent - _JUDGE
    order = np.argsort(-counts.value, kind="stable")
    n_kept, usual = _sized(route, counts.value[order], n_users, rest)
    kept = np.sort(order[:n_kept])
    judged = judged_part(route, n_users, usual)
    items = known_items(counts, kept, n_users)
    release = partial(_released, ask, route, items, floor or usual, judged.left_out)
    loss = list_loss(counts.value, counts.noise_scale)
    look = _first_look(route, loss)
    answer = release(rest * look)
    moment, flipped = _moment(route, answer, items, floor or usual)
    if look < 1.0 and tells(moment, items, loss):
        answer, look = averaged(answer, release(rest * (1 - look))), 1.0
        moment, _ = _moment(route, answer, items, floor or usual)
    del answer  # large, as is the moment
    if flipped is not None:
        counts = with_flips(counts, flipped, kept, judged.rows * judged.items, n_users)
        items = known_items(counts, kept, n_users)
    ways = offered(moment if look == 1.0 else None, items, n_components, exponent)
    if route.name == "gram" and not ways.clear and ways.there:
        ways = ways._replace(energy=energy_of(moment, items))
    del moment
    left = rest * (1 - look) + _JUDGE
    if route.name != "one_shot" and (look < 1.0 or not ways.there):
        counts = counts.with_more(ask.counts(share=left), left)
        items = known_items(counts, kept, n_users)
        return Fitted(offered(None, items, n_components, exponent).chosen(None), counts)
    judged = judged._replace(rows=min(judged.rows, _JUDGED_SCORES / (n_users * n_kept)))
    way = _chosen_way(ask, route, ways, n_users, judged)
    return Fitted(ways.chosen(way), counts, flipped)


def judged_part(route: Route, n_users: float, usual: int) -> Judged:
    """Return what is hidden, where users usually have so many of the kept items."""
    noise = route.doubt(_PURE_CHOICE if route.name == "one_shot" else _JUDGE)
    rows = min(1.0, float(np.clip(_VOTERS * noise, _LEAST_JUDGED, _MOST_JUDGED)) / n_users)
    if route.name != "one_shot" and noise > _DROWNED * n_users:
        return Judged(rows, min(_SEEN, _MOST_SEEN / usual), False)
    return Judged(rows, min(_HIDDEN, _MOST_HIDDEN / usual), True)


def _first_look(route: Route, loss: float) -> float:
    """Return the part of a moment that is bought at first.

    All of it where counts that have lost such a share need no more; flips are made once.
    """
    return 1.0 if loss <= _SLIGHT_LOSS or route.name == "one_shot" else _FIRST_LOOK


def _chosen_way(ask: Any, route: Route, ways: Ways, n_users: float, judged: Judged) -> Way | None:
    """Choose the way by the votes of judged rows; pure routes by one choice, in any case."""
    together, weights = ways.together()
    offers = ways.there
    hidden = judged.rows, judged.items
    sampled = math.sqrt(_UNLIKE * n_users * judged.rows)
    if route.name != "one_shot":
        query = ask.judge(*together.arrays(), weights, *hidden)
        answer = query.votes(share=_JUDGE)
        doubt = ways.doubts(answer.noise_scale, sampled, drowned=not judged.apart)
        return best_way(offers, answer.value, doubt)
    weights = weights if len(offers) else np.zeros((1, together.rank))
    bonus = np.zeros(1 + len(weights))
    bonus[1 : 1 + len(offers)] = -ways.doubts(route.doubt(_PURE_CHOICE), sampled, once=True)
    best = int(ask.judge(*together.arrays(), weights, *hidden).best(bonus, share=_PURE_CHOICE))
    return offers[best - 1] if 0 < best <= len(offers) else None


def _released(
    ask: Any, route: Route, items: Items, floor: int, judged: tuple[float, float], share: float
) -> Answer:
    """Release the moment on the kept items, or their flipped cells."""
    if route.name == "one_shot":
        return cast(Answer, ask.cells(items.kept, *judged, share=share))
    return cast(Answer, ask.moment(items.kept, floor, *judged, items.popular, share=share))


def _moment(
    route: Route, answer: Answer, items: Items, floor: int
) -> tuple[PairMoment, Flipped | None]:
    """Return the moment without its diagonal, and flipped histories."""
    if route.name == "one_shot":
        flipped = Flipped(answer.value, answer.noise_scale)
        return history_pairs(flipped.rows, flipped.noise_scale, floor), flipped
    off, diagonal = answer.value, None
    if not route.pairs:
        off, diagonal = off.copy(), np.diag(off).copy()
        np.fill_diagonal(off, 0.0)
    noise_scale = answer.noise_scale / math.sqrt(2)
    edge = 2 * noise_scale * math.sqrt(len(items.kept))
    return PairMoment(off, partial(wigner, noise_scale=noise_scale), edge, diagonal), None
