"""Tastes from a noisy moment of pairs of items: what can be read of them, and how far to trust it.

Notation: m users, n' kept items, G the released moment on them without its diagonal; `own` is about
what the diagonal would be, from the counts. All arrays here are public.

Two kinds of noise, each shrunk in the metric in which its pairs are alike: that of privacy in G
itself; that of the sample, as m users are not all there could be, where items are divided by the
roots of `own` (a pair of independent items then has variance 1/m).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator

from skdp.solvers.item_filter import ItemFilter
from skdp.solvers.one_shot import leading_pairs
from skdp.solvers.shrinkage import Directions, PairMoment, wigner

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
    beside = _projected(moment.off, v)
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


def _projected(M: Any, v: FloatArray) -> Any:
    """Return P M P for P = I - vv' and a symmetric array or operator M."""
    if isinstance(M, np.ndarray):
        image = M @ v
        return M - np.outer(v, image) - np.outer(image, v) + float(v @ image) * np.outer(v, v)

    def multiply(x: FloatArray) -> FloatArray:
        y = M @ _off(x.reshape(-1), v)
        return _off(y, v)

    return LinearOperator(M.shape, matvec=multiply, dtype=np.float32)


def _off(x: FloatArray, v: FloatArray) -> FloatArray:
    return np.asarray(x - v * (v @ x))


def _with_diagonal(M: Any, diagonal: FloatArray, v: FloatArray) -> Any:
    """Return M + P D P for a diagonal D."""
    if isinstance(M, np.ndarray):
        out = _projected(np.diag(diagonal), v)
        out += M
        return out

    def multiply(x: FloatArray) -> FloatArray:
        x = x.reshape(-1)
        return np.asarray(M @ x + _off(diagonal * _off(x, v), v))

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
