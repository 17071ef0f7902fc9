"""Accounting of random sketches: the change that noise must hide is random.

A Gaussian sketch multiplies the change E of the private matrix by a random matrix, so that given
the sketch the release is mu-GDP with mu^2 = m^2 X, X = chi2_d / d of mean one for one column of E.
The privacy of the release, sketch included, is an average over X:

delta(epsilon) <= E[f(sum_j m_j^2 X_j)],  f: a convex majorant of w -> delta(epsilon; sqrt(w)).

Why a convex f. For any E of Frobenius norm 1 the law of X is an average, with weights that E
chooses, of chi2_1's: smaller in convex order than chi2_d/d. The integer entries of our sketches
are smaller in convex order than normal ones (`skdp.privacy.streams.sketch_draws`), and the norm of
the change is convex in them. Both are therefore covered by f, and by nothing less.

f is delta up to its inflection in w, and the tangent there from then on (it is not cut at 1).
Numerics err upward: the mass of a cell goes to its two ends so that the mean is kept, which raises
the mean of every convex f; what lies beyond the last cell is charged the largest slope of f.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammainc, gammaincc, gammainccinv, gammaincinv

from skdp.privacy.accounting.curves import as_delta, as_number, forward_mus, largest_mu

FloatArray = NDArray[np.float64]
Terms = tuple[tuple[float, tuple[int, ...]], ...]

_TAIL = 1e-20  # probability beyond the cells of one chi-square
_CELLS = 400
_GRID = 2048  # points of the law of a sum or a product
_SLACK = 1 + 1e-9  # above all rounding of the sums here
_ORDERS = 1 + np.logspace(-3, 4, 400)  # Renyi orders: any of them gives a bound


class SketchLaw(NamedTuple):
    """Law of the squared norm of a random change, relative to its bound.

    At most, in convex order, the product of independent chi2_d / d over `degrees`.
    """

    degrees: tuple[int, ...]


@dataclass(frozen=True)
class SketchMixture:
    """What a group of sketches with independent noise loses: a value of kind "sketch".

    Attributes
    ----------
    terms : tuple of (mu, degrees)
        Given the sketches, the group is Gaussian DP with squared parameter
        ``sum(mu**2 * X)``, X a product of independent chi2_d / d (1 where there is none).
    part : int or None
        Index of the one term that a ledger line stands for; None is the whole group.
    """

    terms: Terms
    part: int | None = None

    def __float__(self) -> float:
        """Return the root mean square of the random mu: a size, not a guarantee."""
        if self.part is not None:
            return self.terms[self.part][0]
        return math.hypot(*(mu for mu, _ in self.terms))

    def __format__(self, spec: str) -> str:
        return f"{float(self):{spec}} (mean square)"

    def __str__(self) -> str:
        return f"{self:.6g}"

    def largest(self, tail: float = 1e-9) -> float:
        """Return a mu that a part exceeds with probability at most `tail`: for audits."""
        total = 0.0
        for i, (mu, degrees) in enumerate(self.terms):
            if self.part in (None, i):
                each = [2 / d * float(gammainccinv(d / 2, tail / len(degrees))) for d in degrees]
                total += mu**2 * math.prod(each)
        return math.sqrt(total)

    def times(self, factor: float) -> SketchMixture:
        """Return the loss for changes that are `factor` times as large."""
        terms = tuple((factor * mu, degrees) for mu, degrees in self.terms)
        return SketchMixture(terms, self.part)

    def delta(self, epsilon: float) -> float:
        """Return a delta for which the group alone is (epsilon, delta)-DP."""
        return _mixture_delta(self.terms, as_number("epsilon", epsilon, low=-math.inf))

    def renyi(self, orders: FloatArray) -> FloatArray:
        """Return the Renyi divergence of each order > 1 (inf where it does not exist).

        E exp(c chi2_d / d) = (1 - 2 c / d)^(-d/2); a product of two has no exponential moments.
        The exponential is convex, so this holds for every change, also one chosen adaptively.
        """
        total = np.zeros(orders.shape)
        for mu, degrees in self.terms:
            c = orders * (orders - 1) / 2 * mu**2
            if not degrees:
                total += c
            elif len(degrees) > 1:
                total += np.inf
            else:
                d = degrees[0]
                inside = 2 * c / d < 1
                logs = np.log1p(-np.where(inside, 2 * c / d, 0.0))
                total += np.where(inside, -d / 2 * logs, np.inf)
        return total / (orders - 1)


def whole_mixtures(values: Iterable[SketchMixture]) -> list[SketchMixture]:
    """Put the parts of a group together again; a part without its fellows counts as the whole."""
    values = list(values)
    groups = Counter(value.terms for value in values if value.part is None)
    parts = Counter((value.terms, value.part) for value in values if value.part is not None)
    for terms in dict.fromkeys(terms for terms, _ in parts):
        groups[terms] += max(n for (owner, _), n in parts.items() if owner == terms)
    whole = [SketchMixture(terms) for terms in groups.elements()]
    return sorted(whole, key=lambda mixture: (float(mixture), mixture.terms))


def renyi_delta(divergence: FloatArray, epsilon: float) -> float:
    """Return delta at epsilon from Renyi divergences at the `orders()`."""
    with np.errstate(over="ignore", invalid="ignore"):
        logs = (_ORDERS - 1) * (divergence - epsilon + np.log1p(-1 / _ORDERS)) - np.log(_ORDERS)
    best = float(np.min(logs[np.isfinite(divergence)], initial=0.0))
    return min(1.0, math.exp(best) * _SLACK)


def orders() -> FloatArray:
    """Return the Renyi orders at which divergences are added up."""
    return _ORDERS


def largest_mixture(
    shares: Iterable[tuple[float, tuple[int, ...]]], epsilon: float, delta: float
) -> SketchMixture:
    """Return the largest group with these shares of mean mu^2 that is (epsilon, delta)-DP.

    Parameters
    ----------
    shares : iterable of (share, degrees)
        Shares of the sum of mean squares, each > 0.
    epsilon, delta : float
        In (0, inf) and (0, 1).

    Returns
    -------
    SketchMixture
    """
    epsilon, delta = as_number("epsilon", epsilon, high=1e150), as_delta(delta)
    shares = [(math.sqrt(share), tuple(degrees)) for share, degrees in shares]

    def scaled(mu: float) -> SketchMixture:
        return SketchMixture(tuple((mu * root, degrees) for root, degrees in shares))

    def curve(mu: float) -> float:
        return scaled(mu).delta(epsilon)

    tail = math.sqrt(-2.0 * math.log(delta))
    guess = epsilon / (math.hypot(tail, math.sqrt(2.0 * epsilon)) + tail)
    return scaled(largest_mu(curve, delta, max(guess, delta)))


@lru_cache(maxsize=1024)  # many servers of one group ask the same
def _mixture_delta(terms: Terms, epsilon: float) -> float:
    if epsilon == math.inf:
        return 0.0
    total = math.fsum(mu**2 for mu, _ in terms)
    if total == 0.0:
        return 0.0 if epsilon >= 0 else -math.expm1(epsilon)
    if epsilon <= 0.0 or not total < 1e60:
        return 1.0
    # Rounded up, so that calibration, where only `total` moves, finds its atoms again.
    weights = tuple((math.ceil(1e12 * mu**2 / total) / 1e12, degrees) for mu, degrees in terms)
    points, mass, beyond = _law(weights)
    slope, inflection = _steepest(epsilon)
    with np.errstate(over="ignore", under="ignore"):
        w = points * total
        inner = np.maximum(np.minimum(w, inflection), 1e-290)
        below = forward_mus(np.sqrt(inner), epsilon)
        f = below + slope * np.maximum(w - inflection, 0.0)
        mean = float(f @ mass) + slope * total * beyond
    return min(1.0, mean * _SLACK)


@cache
def _steepest(epsilon: float) -> tuple[float, float]:
    """Return (slope, place) of the inflection of w -> delta(epsilon; sqrt(w)).

    d delta / d mu = phi(mu/2 - epsilon/mu), so d delta / d w = phi(...) / (2 sqrt(w)), which is
    largest where w^2 + 4 w = 4 epsilon^2.
    """
    place = 2 * epsilon**2 / (1 + math.hypot(1.0, epsilon))
    mu = math.sqrt(place)
    density = math.exp(-0.5 * (mu / 2 - epsilon / mu) ** 2) / math.sqrt(2 * math.pi)
    return density / (2 * mu) * (1 + 1e-12), place * (1 - 1e-12)


@lru_cache(maxsize=64)
def _law(
    weights: tuple[tuple[float, tuple[int, ...]], ...],
) -> tuple[FloatArray, FloatArray, float]:
    """Return points, masses and the mean beyond them of the sum of weight times product."""
    points, mass, beyond = np.zeros(1), np.ones(1), 0.0
    for weight, degrees in weights:
        values, chances, missing = np.ones(1), np.ones(1), 0.0
        for d in degrees:
            more, also, tail = _chi_square(d)
            values, chances = _gathered(np.multiply.outer(values, more), chances, also)
            missing += tail
        points, mass = _gathered(np.add.outer(points, weight * values), mass, chances)
        beyond += weight * missing
    return points, mass, beyond


def _gathered(
    values: FloatArray, first: FloatArray, second: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Move the atoms of a sum or product to an even grid, each to its two neighbours.

    The mean of each atom is kept, so the mean of a convex function can only grow.
    """
    flat, mass = values.ravel(), np.multiply.outer(first, second).ravel()
    if flat.size <= _GRID:
        return flat, mass
    low, high = float(flat.min()), float(flat.max())
    step = (high - low) / (_GRID - 1)
    place = (flat - low) / step
    index = np.minimum(place.astype(np.intp), _GRID - 2)
    upper = np.clip(place - index, 0.0, 1.0)
    grid = np.bincount(index, mass * (1 - upper), _GRID)
    grid += np.bincount(index + 1, mass * upper, _GRID)
    return np.asarray(low + step * np.arange(_GRID), np.float64), np.asarray(grid, np.float64)


@cache
def _chi_square(d: int) -> tuple[FloatArray, FloatArray, float]:
    """Return atoms that dominate chi2_d / d cut at its last cell, and the mean beyond it."""
    shape = d / 2
    last = float(gammainccinv(shape, _TAIL)) / shape
    first = float(gammaincinv(shape, _TAIL)) / shape
    edges = np.concatenate([[0.0], np.linspace(first, last, _CELLS)])
    mass, part = _cell_masses(shape, edges), _cell_masses(shape + 1, edges, shape)
    share = np.clip((part - mass * edges[:-1]) / np.diff(edges), 0.0, mass)
    atoms = np.zeros(edges.size)
    atoms[1:] += share
    atoms[:-1] += mass - share
    tail = float(gammaincc(shape, shape * last))
    atoms[-1] += tail
    beyond = float(gammaincc(shape + 1, shape * last)) - last * tail
    return edges, atoms, max(beyond, 0.0) + _TAIL


def _cell_masses(shape: float, edges: FloatArray, scale: float | None = None) -> FloatArray:
    """Return the gamma probabilities of cells, from the tail that has no cancellation."""
    x = edges * (shape if scale is None else scale)
    upper = -np.diff(gammaincc(shape, x))
    return np.asarray(np.where(edges[:-1] < 1.0, np.diff(gammainc(shape, x)), upper))
