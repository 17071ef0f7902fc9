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
from scipy.sparse.linalg import LinearOperator
from scipy.special import ndtri

from skdp.answer import Answer
from skdp.solvers.item_filter import ItemFilter, list_length
from skdp.solvers.linalg import (
    Directions,
    PairMoment,
    leading_pairs,
    off_direction,
    wigner,
    without_direction,
)
from skdp.solvers.one_shot import Flipped, history_pairs
from skdp.solvers.spectral import Bought, averaged, bought, ranked

# Tastes from a noisy moment of pairs of items: what can be read of them, and how far to trust it.
#
# Notation: m users, n' kept items, G the released moment on them without its diagonal; `own` is
# about what the diagonal would be, from the counts. All arrays here are public.
#
# Two kinds of noise, each shrunk in the metric in which its pairs are alike: that of privacy in G
# itself; that of the sample, as m users are not all there could be, where items are divided by the
# roots of `own` (a pair of independent items then has variance 1/m).


FloatArray = NDArray[np.float64]
_FLOOR = 0.3  # of the edge of the noise: the least that an item counts as
_TINY = 1e-300
# Deviations of the noise that the energy of pairs must have, how much more for each share of the
# best list that counts have lost so far (what goes to the pairs is missing from them), and at most.
_ENERGY, _ENERGY_OF_LOSS, _MOST_ENERGY = 0.5, 500.0, 2.0
_CLEAR = 4.0  # deviations that structure beside tastes does not reach
_ALIKE = 1e-3  # popularity and its square, where all items are about as popular
_BAND = 256
_MANY = 6  # tastes that stand out: where they were so many, twice the weight was mostly better


class Way(NamedTuple):
    """A way to recommend: a weight of one kind of tastes, and how far noise may speak for it.

    Attributes
    ----------
    kind : int
        0: what the pairs say together; 1: what single items say beside them, which reads more and
        errs more.
    weight : float
        Of the tastes beside popularity.
    doubts : tuple of float
        Deviations of the noise of privacy by which its votes must be more than none, where pairs
        say together nothing, one taste, a few, or many (`_MANY`). Tastes that stand out of a moment
        by themselves have helped in all tables tried: few votes under much noise are no reason
        against them.
        Infinite: never the best there, and not voted on, which leaves less noise to the others.
    drowned : float
        The same where votes drown in noise and something stands out: what the moment says beside
        it helped most of all, as nothing weak was read.
    told : float
        The same where nothing stands out: pairs whose energy is clearly beyond that of the noise
        hold tastes, which single items show a little.
    once : float
        How many deviations more where one choice is made in place of votes: its noise has a heavy
        tail, so that bold ways come by chance, which costs more than they gain over careful ones.
    """

    kind: int
    weight: float
    doubts: tuple[float, float, float, float]
    drowned: float
    told: float
    once: float


WAYS = (
    Way(0, 1.0, (math.inf, -0.5, -1.0, -0.6), -0.5, math.inf, 0.0),
    Way(0, 2.0, (math.inf, 1.0, -0.3, -1.0), 0.5, math.inf, 1.5),
    Way(1, 0.25, (2.0, math.inf, math.inf, math.inf), math.inf, -0.75, 0.0),
    Way(1, 1.0, (3.0, 0.5, 0.0, -0.25), -0.75, 0.5, 2.0),
)  # fmt: skip


class Items(NamedTuple):
    """What is known of the kept items beside their pairs.

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
        """The direction of popularity on the kept items, of length 1."""
        counts = self.popularity[self.kept]
        return np.asarray(counts / np.linalg.norm(counts))


class Ways(NamedTuple):
    """Filters of one release that differ in their tastes: see `WAYS`; and the `energy` of it.

    Where no taste stands out, and the energy is not clearly beyond that of the noise (`_CLEAR`),
    nothing is offered: in made tables single items were of no use there.
    """

    kinds: tuple[ItemFilter, ...]
    energy: float = math.inf

    @property
    def clear(self) -> int:
        """How many tastes stand out by themselves: none, one, a few, many."""
        rank = self.kinds[0].rank
        return 3 if rank >= _MANY else min(rank, 2)

    @property
    def there(self) -> list[Way]:
        """Ways whose tastes are not empty, and which may be the best."""
        if not self.clear and self.energy <= _CLEAR:
            return []
        return [
            way
            for way in WAYS
            if self.kinds[way.kind].rank and math.isfinite(way.doubts[self.clear])
        ]

    def doubts(
        self, noise_scale: float, sampled: float, *, drowned: bool = False, once: bool = False
    ) -> FloatArray:
        """Return how many votes each way needs: for privacy's noise, and for the luck of the rows.

        Where noise may speak for a way, the luck of the rows may not: it counts twice.
        """
        needed = np.array([self._doubt(way, drowned) for way in self.there])
        needed_once = np.array([way.once if once else 0.0 for way in self.there])
        luck = sampled * np.where(needed > 0, 1.0, 2.0)
        return np.asarray((needed + needed_once) * noise_scale + luck)

    def _doubt(self, way: Way, drowned: bool) -> float:
        if drowned:
            return way.drowned if self.clear else way.told
        return way.doubts[self.clear]

    def together(self) -> tuple[ItemFilter, FloatArray]:
        """Return one filter of all tastes, and the weights of them that make each way."""
        first, *others = self.kinds
        inward = [first.inward, *(kind.inward[:, 1:] for kind in others)]
        outward = [kind.outward for kind in self.kinds]
        both = ItemFilter(
            first.kept, first.popularity, np.hstack(inward), np.vstack(outward), first.scale
        )
        ranks = [kind.rank for kind in self.kinds]
        starts = np.concatenate([[0], np.cumsum(ranks)])
        weights = np.zeros((len(self.there), both.rank))
        for row, way in zip(weights, self.there, strict=True):
            row[starts[way.kind] : starts[way.kind + 1]] = way.weight
        return both, weights

    def chosen(self, way: Way | None) -> ItemFilter:
        """Return the filter of one way; None is popularity alone."""
        return (
            self.kinds[0].blended(0.0) if way is None else self.kinds[way.kind].blended(way.weight)
        )


def own_of(counts: FloatArray, n_users: float) -> FloatArray:
    """Return about what each item has with itself where no user has more than 1 in all."""
    return counts * min(1.0, n_users / max(float(counts.sum()), _TINY))


def offered(moment: PairMoment | None, items: Items, n_components: int, exponent: float) -> Ways:
    """Return the filters of the directions that can be read of a moment; None reads nothing."""
    weights = (items.own + (_FLOOR * moment.edge if moment else 0.0)) ** -exponent
    found = [_NOTHING] * 2 if moment is None else _readings(moment, items, n_components)
    options = (items, weights, n_components)
    return Ways(tuple(_filter(directions, *options) for directions in found))


def energy_of(moment: PairMoment, items: Items) -> float:
    """Return the `energy` of a dense moment beside popularity."""
    return energy(*beside_popularity(moment, items), items, moment.edge)


def tells(moment: PairMoment, items: Items, loss: float = 0.0) -> bool:
    """Return whether a dense moment says more of its pairs than popularity explains.

    Either their energy is beyond that of the noise, or a direction stands out of it. Energy alone
    does not say whether any direction will, so it must be more where the counts need the rest of
    the budget: where their best list has lost a share `loss` by their noise.
    """
    left, basis = beside_popularity(moment, items)
    needed = min(_ENERGY + _ENERGY_OF_LOSS * loss, _MOST_ENERGY)
    if energy(left, basis, items, moment.edge) > needed:
        return True
    return bool(moment.shrink(*leading_pairs(left, 1, rough=True)).vectors.shape[1])


def energy(left: FloatArray, basis: FloatArray, items: Items, edge: float) -> float:
    """Return how many deviations of the noise the energy of pairs is above its mean.

    The noise Z is alike for all pairs, and what is left of it is P Z P for P = I - `basis` basis'.
    An entry has variance P_ii P_jj + P_ij^2, and its square twice the square of that, about. Pairs
    of popular items say most.
    """
    if edge == 0.0:
        return math.inf
    variance = (edge / 2) ** 2 / len(left)
    length = 1 - (basis**2).sum(axis=1)
    beyond = squares = 0.0
    for rows in _bands(len(left)):
        expected = np.outer(length[rows], length) + (basis[rows] @ basis.T) ** 2
        weights = np.outer(items.own[rows], items.own)
        _clear_diagonal(weights, rows)
        beyond += float((weights * (left[rows] ** 2 / variance - expected)).sum())
        squares += float(((weights * expected) ** 2).sum())
    return beyond / max(2 * math.sqrt(squares), _TINY)


def beside_popularity(moment: PairMoment, items: Items) -> tuple[FloatArray, FloatArray]:
    """Return (pairs without what follows from popularity, an orthonormal basis of that).

    Items of independent histories, some long and some short, have pairs in the span of functions
    of their popularity q, for which q and q^2 stand; and the diagonal that is missing there shows
    as P D P off the diagonal, for D as popularity has it.
    """
    v = items.popular
    basis, sizes, _ = np.linalg.svd(np.column_stack([v, v**2 / v.max()]), full_matrices=False)
    basis = basis[:, sizes > _ALIKE]
    image = moment.off @ basis
    left = moment.off - image @ basis.T
    left -= basis @ (image.T - (basis.T @ image) @ basis.T)
    scaled = basis * (v**2)[:, None]
    sides = np.hstack([basis @ (basis.T @ scaled) - scaled, -basis]), np.hstack([basis, scaled])
    shared = squares = 0.0
    for rows in _bands(len(v)):
        absent = _clear_diagonal(sides[0][rows] @ sides[1].T, rows)
        shared += float((left[rows] * absent).sum())
        squares += float((absent**2).sum())
    for rows in _bands(len(v)):
        absent = _clear_diagonal(sides[0][rows] @ sides[1].T, rows)
        left[rows] -= shared / max(squares, _TINY) * absent
    return left, basis


def _bands(n: int) -> list[slice]:
    """Return rows of a square array in parts, so that what is made of them stays small."""
    return [slice(i, min(i + _BAND, n)) for i in range(0, n, _BAND)]


def _clear_diagonal(part: FloatArray, rows: slice) -> FloatArray:
    """Set the diagonal of the array of which these are rows to zero, in place."""
    numbers = np.arange(rows.start, rows.stop)
    part[numbers - rows.start, numbers] = 0.0
    return part


_NOTHING = Directions(np.zeros((1, 0)), np.zeros(0), np.zeros(0))


def _readings(moment: PairMoment, items: Items, k: int) -> list[Directions]:
    """Return what pairs say, with a diagonal that fits them, and with the released one or `own`.

    Popularity is known from the counts: all is read beside it. The fitted diagonal follows the k
    first directions, once: more rounds change little.
    """
    own, v, released = items.own, items.popular, moment.diagonal
    beside = without_direction(moment.off, v)
    dense = isinstance(beside, np.ndarray)

    def read(diagonal: FloatArray) -> Directions:
        M = _with_diagonal(beside, diagonal, v)
        return moment.shrink(*leading_pairs(M, 2 * k if dense else k, rough=True))

    second = read(own if released is None else released)
    found = (
        moment.shrink(*leading_pairs(beside, k, rough=True)) if dense else second
    )  # which takes long
    share = (found.vectors**2) @ (found.values * found.cosines)
    return [read(np.minimum(share, own)), second]


def _with_diagonal(M: Any, diagonal: FloatArray, v: FloatArray) -> Any:
    """Return M + P D P for a diagonal D."""
    if isinstance(M, np.ndarray):
        out = without_direction(np.diag(diagonal), v)
        out += M
        return out

    def multiply(x: FloatArray) -> FloatArray:
        x = x.reshape(-1)
        return np.asarray(M @ x + off_direction(diagonal * off_direction(x, v), v))

    return LinearOperator(M.shape, matvec=multiply, dtype=np.float32)


def _filter(
    directions: Directions, items: Items, weights: FloatArray, n_components: int
) -> ItemFilter:
    popularity, kept = items.popularity, items.kept
    first = popularity[kept] * weights
    length = float(np.linalg.norm(first))
    first = first / length
    sizes = items.own * weights**2
    sampled = 2 * math.sqrt(float((sizes**2).sum()) / items.n_users)
    tastes, gains = _tastes(directions, weights, first, n_components, sampled)
    inward = np.ascontiguousarray(np.column_stack([first, tastes]) * weights[:, None])
    return ItemFilter(kept, popularity, inward, (tastes * gains).T / weights, 1 / length)


def _tastes(
    directions: Directions, weights: FloatArray, first: FloatArray, n_components: int, edge: float
) -> tuple[FloatArray, FloatArray]:
    """Return orthonormal tastes off the popularity, and how far to trust each.

    The shrunk moment is brought to the metric of the weights, and shrunk by the noise of sampling,
    whose spectrum ends at `edge`. A taste counts by its reliability (the mean squared cosine of
    what it is made of) and slowly by its eigenvalue.
    """
    V, theta, cosines = directions
    if not V.shape[1] or n_components < 2:
        return np.zeros((len(first), 0)), np.zeros(0)
    U, s, M = np.linalg.svd(
        V * np.sqrt(theta * np.maximum(cosines, 0.0)) * weights[:, None], full_matrices=False
    )
    reliable = np.minimum((M**2) @ cosines, 1.0)
    U, s, M = np.linalg.svd((U - np.outer(first, first @ U)) * s, full_matrices=False)
    U = U[:, s > 1e-6 * s[0]]
    own = (M[: U.shape[1]] ** 2) @ reliable
    U, values, clear = wigner(s[: U.shape[1]] ** 2, U, edge / (2 * math.sqrt(len(first))))
    r = min(n_components - 1, len(values))
    return U[:, :r], own[:r] * clear[:r] * (values[:r] / max(values[:1].sum(), _TINY)) ** 0.25


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
    """

    name: str
    signal: Callable[[float, int, float], float]
    most: Callable[[float], int]
    doubt: Callable[[float], float] = lambda _: 0.0
    pairs: bool = False


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


def buy_counts(ask_counts: Callable[..., Answer], available: float, route: str) -> Bought:
    """Buy counts in rungs until they can be read; with all that is available if they cannot.

    What is not spent here is spent on the moment: the total is the same. For pure noise the parts
    must be the same too, since they do not compose to their sum: one rung, then the share of the
    cells, and the judge's in any case.
    """

    def clear(value: FloatArray, scale: float, level: float, loss: float) -> bool:
        return ranked(value) > level * scale and list_loss(value, scale) <= loss

    found = bought(ask_counts, _rungs(route, available), clear)
    return found._replace(readable=found.readable and route != "popularity")


def _rungs(route: str, available: float) -> tuple[tuple[float, float, float], ...]:
    """Return shares of the counts, and when to stop.

    That is: how many noise scales they must reach, and what the best list may lose.
    """
    if route == "popularity":
        return ((available, math.inf, 0.0),)
    if route == "one_shot":
        return ((_PURE_COUNTS, 4.5, 0.015), (_PURE_CELLS, math.inf, 0.0))
    rungs = (
        (0.04, 5.0, 0.0015), (0.06, 5.0, 0.01), (0.2, 3.5, 0.025), (0.3, 3.5, 0.02),
        (0.4, math.inf, 0.0),
    )  # fmt: skip
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
    counts = buy_counts(ask.counts, available, route.name)
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
