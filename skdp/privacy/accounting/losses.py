"""Privacy losses and what they cost together: Gaussian DP, pure parts, random sketches.

A mu-GDP mechanism is as private as one draw from N(0, 1) against N(mu, 1):
delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu).
Pure parts enter through their privacy loss distribution, never through that formula.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import (
    erfcx,
    gammainc,
    gammaincc,
    gammainccinv,
    gammaincinv,
    gammaln,
    log_expit,
    ndtr,
)

from skdp._limits import ROUNDING, WIDER, FloatArray

# The curve delta(epsilon) of Gaussian DP, and roots of curves rounded to the safe side.


Curve = Callable[[float], float]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)


def as_number(name: str, value: object, low: float = 0.0, high: float = math.inf) -> float:
    """Return a real number in [low, high] as a float; anything else is a ValueError."""
    real = isinstance(value, (float, int, np.integer, np.floating)) and not isinstance(value, bool)
    try:
        number = float(value) if real else math.nan  # type: ignore[arg-type]
    except OverflowError:
        number = math.nan
    if not low <= number <= high:
        raise ValueError(f"{name} must be a number in [{low:g}, {high:g}]. Got {value!r}.")
    return number


def as_delta(value: object) -> float:
    """Return delta in (0, 1)."""
    delta = as_number("delta", value, high=1.0)
    if delta in (0.0, 1.0):
        raise ValueError(f"delta must lie strictly between 0 and 1. Got {value!r}.")
    return delta


def mills(x: FloatArray) -> FloatArray:
    """Mills ratio R(x) = Phi(-x) / phi(x), for x > -25."""
    return np.asarray(math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2)))


def _place(mu: FloatArray, epsilon: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return x = epsilon/mu - mu/2 and the normal density at x."""
    with np.errstate(over="ignore"):
        x = np.minimum(epsilon / mu - mu / 2, 40.0)  # phi(40) is 0 in floats
        return x, np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def _narrow(mu: FloatArray, x: FloatArray, density: FloatArray) -> FloatArray:
    """Return delta for mu <= 1, as an integral that has no cancellation.

    R(x) - R(x + mu) is the integral of -R'(t) = 1 - t R(t), which is positive.
    """
    half = 0.5 * mu[:, None]
    t = x[:, None] + half * (_NODES + 1.0)
    return np.asarray(density * (half[:, 0] * ((1.0 - t * mills(t)) @ _WEIGHTS)))


def _wide(mu: FloatArray, x: FloatArray, density: FloatArray) -> FloatArray:
    near, far = mills(np.maximum(x, 0.0)), mills(x + mu)
    return np.where(x < 0.0, ndtr(-x) - density * far, density * (near - far))


def forward_curve(mu: FloatArray, epsilon: FloatArray) -> FloatArray:
    """Delta of mu > 0 at epsilon >= 0: phi(x) (R(x) - R(x + mu)) with x = epsilon/mu - mu/2."""
    delta = np.empty(mu.shape)
    for side, formula in ((mu <= 1.0, _narrow), (mu > 1.0, _wide)):
        if side.any():
            delta[side] = formula(mu[side], *_place(mu[side], epsilon[side]))
    return delta


def gaussian_curve(mu: float, epsilon: FloatArray) -> FloatArray:
    """Delta at any epsilons; delta(-e) = (1 - e^-e) + e^-e delta(e) has no cancellation."""
    below = np.minimum(epsilon, 0.0)
    delta = -np.expm1(below)
    if mu > 0.0:
        delta = delta + np.exp(below) * forward_curve(np.full(epsilon.shape, mu), np.abs(epsilon))
    return np.minimum(delta, 1.0)


def lowered(delta: float) -> float:
    """Lower delta by more than the rounding error of its curve (1e-16 log(1/delta))."""
    return delta * (1.0 - 2.0**-48 * (4.0 - math.log(delta)))


def log_ratio(delta: float, target: float) -> float:
    """log(delta / target), finite also where delta underflows."""
    return (math.log(delta) if delta > 0.0 else -1e4) - math.log(target)


def nudge(curve: Curve, target: float, value: float, side: int) -> float:
    """Move a value by units in the last place, up or down, until the curve is at most target."""
    step = math.ulp(value)
    while curve(value) > target:
        value, step = value + side * step, 2.0 * step
    return value


def largest_mu(curve: Curve, delta: float, low: float) -> float:
    """Largest mu, rounded down, at which an increasing curve is at most delta; low: a guess."""
    target = lowered(delta)
    while curve(low) > target:
        low /= 2.0
    high = 2.0 * low
    while curve(high) <= target:
        low, high = high, 2.0 * high
    ends = math.log(low) - 1e-12, math.log(high) + 1e-12
    root = brentq(lambda t: log_ratio(curve(math.exp(t)), target), *ends, xtol=1e-15)
    return nudge(curve, target, math.exp(root), -1)


# Accounting of random sketches: the change that noise must hide is random.
#
# A Gaussian sketch multiplies the change E of the private matrix by a random matrix, so that given
# the sketch the release is mu-GDP with mu^2 = m^2 X, X = chi2_d / d of mean one for one column of
# E. The privacy of the release, sketch included, is an average over X:
#
# delta(epsilon) <= E[f(sum_j m_j^2 X_j)],  f: a convex majorant of w -> delta(epsilon; sqrt(w)).
#
# Why a convex f. For any E of Frobenius norm 1 the law of X is an average, with weights that E
# chooses, of chi2_1's: smaller in convex order than chi2_d/d. The integer entries of our sketches
# are smaller in convex order than normal ones (`skdp.privacy.streams.sketches`), and the norm of
# the change is convex in them. Both are therefore covered by f, and by nothing less.
#
# f is delta up to its inflection in w, and the tangent there from then on (it is not cut at 1).
# Numerics err upward: the mass of a cell goes to its two ends so that the mean is kept, which
# raises the mean of every convex f; what lies beyond the last cell is charged the largest slope of
# f.


SketchParts = tuple[tuple[float, tuple[int, ...]], ...]

_TAIL = 1e-20  # probability beyond the cells of one chi-square
_CELLS = 400
_GRID = 2048  # points of the law of a sum or a product
ORDERS = 1 + np.logspace(-3, 4, 400)  # Renyi orders: any of them gives a bound


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

    terms: SketchParts
    part: int | None = None

    def __float__(self) -> float:
        """Return the root mean square of the random mu: a size, not a guarantee."""
        if self.part is not None:
            return self.terms[self.part][0]
        return math.hypot(*(mu for mu, _ in self.terms))

    def __format__(self, spec: str) -> str:
        return f"{float(self):{spec}} (mean square)"

    def largest(self) -> float:
        """Return a mu that a part exceeds with probability at most 1e-9: for audits."""
        total = 0.0
        for i, (mu, degrees) in enumerate(self.terms):
            if self.part in (None, i):
                each = [2 / d * float(gammainccinv(d / 2, 1e-9 / len(degrees))) for d in degrees]
                total += mu**2 * math.prod(each)
        return math.sqrt(total)

    def __rmul__(self, factor: float) -> SketchMixture:
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
    """Merge the parts of each group of sketches; an incomplete group counts as a whole one."""
    values = list(values)
    groups = Counter(value.terms for value in values if value.part is None)
    parts = Counter((value.terms, value.part) for value in values if value.part is not None)
    for terms in dict.fromkeys(terms for terms, _ in parts):
        groups[terms] += max(n for (owner, _), n in parts.items() if owner == terms)
    whole = [SketchMixture(terms) for terms in groups.elements()]
    return sorted(whole, key=lambda mixture: (float(mixture), mixture.terms))


def renyi_delta(divergence: FloatArray, epsilon: float) -> float:
    """Return delta at epsilon from Renyi divergences at the `ORDERS`."""
    with np.errstate(over="ignore", invalid="ignore"):
        logs = (ORDERS - 1) * (divergence - epsilon + np.log1p(-1 / ORDERS)) - np.log(ORDERS)
    best = float(np.min(logs[np.isfinite(divergence)], initial=0.0))
    return min(1.0, math.exp(best) * WIDER)


@lru_cache(maxsize=1024)  # all servers of a group compute the same
def _mixture_delta(terms: SketchParts, epsilon: float) -> float:
    if epsilon == math.inf:
        return 0.0
    total = math.fsum(mu**2 for mu, _ in terms)
    if total == 0.0:  # squares of tiny mu vanish
        return 0.0 if epsilon >= 0 else -math.expm1(epsilon)
    if epsilon <= 0.0 or not total < 1e60:
        return 1.0
    # Rounded up, so that calibration, where only `total` moves, finds its atoms again: by half a
    # step or more, as simple ratios lie at whole steps.
    weights = tuple(((round(1e12 * mu**2 / total) + 1) / 1e12, degrees) for mu, degrees in terms)
    points, mass, beyond = _law(weights)
    slope, inflection = _steepest(epsilon)
    with np.errstate(over="ignore", under="ignore"):
        w = points * total
        inner = np.maximum(np.minimum(w, inflection), 1e-290)
        below = forward_curve(np.sqrt(inner), np.full(inner.shape, epsilon))
        f = below + slope * np.maximum(w - inflection, 0.0)
        mean = float(f @ mass) + slope * total * beyond
    return min(1.0, mean * WIDER)


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
def _law(weights: SketchParts) -> tuple[FloatArray, FloatArray, float]:
    """Return points, masses and the mean beyond them of the sum of weight times product."""
    points, mass, beyond = np.zeros(1), np.ones(1), 0.0
    for weight, degrees in weights:
        values, chances, missing = np.ones(1), np.ones(1), 0.0
        for d in degrees:
            more, also, tail = _chi_square(d)
            values, chances = _gathered(np.multiply, values, more, chances, also)
            missing += tail
        points, mass = _gathered(np.add, points, weight * values, mass, chances)
        beyond += weight * missing
    return points, mass, beyond


def _gathered(
    combine: np.ufunc, a: FloatArray, b: FloatArray, first: FloatArray, second: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Move the atoms of a sum, or of a product of sizes, to an even grid: to their two neighbours.

    The mean of each atom is kept, so the mean of a convex function can only grow.
    """
    if a.size * b.size <= _GRID:
        return combine.outer(a, b).ravel(), np.multiply.outer(first, second).ravel()
    low, high = (float(combine(end(a), end(b))) for end in (np.min, np.max))
    step, grid = (high - low) / (_GRID - 1), np.zeros(_GRID)
    rows = max(1, 4 * _GRID // b.size)  # a few at a time, which stay in the processor's cache
    for i in range(0, a.size, rows):
        place = (combine.outer(a[i : i + rows], b).ravel() - low) / step
        mass = np.multiply.outer(first[i : i + rows], second).ravel()
        index = np.minimum(place.astype(np.intp), _GRID - 2)
        upper = np.clip(place - index, 0.0, 1.0)
        grid += np.bincount(index, mass * (1 - upper), _GRID)
        grid += np.bincount(index + 1, mass * upper, _GRID)
    return np.asarray(low + step * np.arange(_GRID), np.float64), grid


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


Atoms = tuple[FloatArray, FloatArray]  # privacy losses and their probabilities

KINDS = ("gaussian", "pure", "range", "delta", "sketch")
_MAX_ATOMS = 16384  # a privacy loss distribution with more moves to a grid
_MAX_VALUE = 1e150  # epsilon of a larger mu is no float


class Loss(NamedTuple):
    """One part of what a fit spent.

    Attributes
    ----------
    kind : {"gaussian", "pure", "range", "delta", "sketch"}
        "range" is bounded range: the exponential mechanism. "delta" shows everything with that
        probability: next to "pure" it dominates any (epsilon, delta)-DP mechanism. "sketch" is a
        group of random sketches, which is Gaussian DP for no mu.
    value : float or SketchMixture
        mu, epsilon, eta or delta: >= 0, inf for "not private". For "sketch", the law of a random
        mu; ``float(value)`` is its root mean square.
    """

    kind: str
    value: Any

    def times(self, factor: float) -> Loss:
        """Return the loss for data sets `factor` neighbours apart: all parameters add up."""
        return Loss(self.kind, factor * self.value)


Losses = tuple[Loss, ...]


def delta_from_mu_epsilon(mu: float, epsilon: float) -> float:
    """Smallest delta for which mu-GDP implies (epsilon, delta)-DP.

    Parameters
    ----------
    mu : float
        Gaussian DP parameter, >= 0; inf is not private.
    epsilon : float
        Any real number; below 0 the hockey-stick divergence of order e^epsilon. inf gives 0.

    Returns
    -------
    float
        delta in [0, 1].
    """
    return delta_from_losses([Loss("gaussian", mu)], epsilon)


@lru_cache(maxsize=256)  # the fits of a search have few budgets
def _largest_mu_of(epsilon: float, delta: float) -> float:
    tail = math.sqrt(-2.0 * math.log(delta))
    # Either suffices: mu^2/2 + mu tail <= epsilon, mu <= sqrt(2 pi) delta.
    low = max(2.0 * epsilon / (math.hypot(tail, math.sqrt(2.0 * epsilon)) + tail), delta)
    return largest_mu(lambda mu: delta_from_mu_epsilon(mu, epsilon), delta, low)


def mu_from_epsilon_delta(epsilon: float, delta: float) -> float:
    """Largest mu for which mu-GDP implies (epsilon, delta)-DP, rounded to the safe side.

    Parameters
    ----------
    epsilon : float
        >= 0; inf gives inf.
    delta : float
        In (0, 1).

    Returns
    -------
    float
        mu with ``delta_from_mu_epsilon(mu, epsilon) <= delta`` (epsilon <= 100: exactly so).
    """
    epsilon, delta = as_number("epsilon", epsilon), as_delta(delta)
    # A smaller epsilon implies every larger one.
    return math.inf if epsilon == math.inf else _largest_mu_of(min(epsilon, _MAX_VALUE), delta)


def epsilon_from_mu_delta(mu: float, delta: float) -> float:
    """Smallest epsilon >= 0 for which mu-GDP implies (epsilon, delta)-DP, on the safe side.

    Parameters
    ----------
    mu : float
        Gaussian DP parameter, >= 0; inf gives inf.
    delta : float
        In [0, 1); 0 gives inf for every mu > 0.

    Returns
    -------
    float
        0.0 where delta covers the total variation 2 Phi(mu/2) - 1.
    """
    return epsilon_from_losses((Loss("gaussian", mu),), delta)


def compose(losses: Iterable[tuple[str, Any]]) -> tuple[Loss, ...]:
    """Bring losses to their canonical form.

    Gaussian parts (adaptive, each mu fixed in advance) become one of root-sum-of-squares mu.
    Pure and range parts stay apart: how they compose depends on delta. So do groups of sketches.
    Zeros are dropped.

    Returns
    -------
    tuple of Loss
        At most one "gaussian", then "pure", "range" in ascending order, one "delta", "sketch".
    """
    parts: dict[str, list[Any]] = {kind: [] for kind in KINDS}
    for kind, value in losses:
        if not isinstance(kind, str) or kind not in parts:
            raise ValueError(f"The kind of a loss must be one of {list(KINDS)}. Got {kind!r}.")
        if (kind == "sketch") != isinstance(value, SketchMixture):
            raise ValueError(
                f"A SketchMixture is the value of kind 'sketch' among {list(KINDS)}, and of no "
                f"other. Got {value!r} for {kind!r}."
            )
        parts[kind].append(value if kind == "sketch" else as_number(f"{kind} loss", value))
    parted = parts.pop("sketch")
    sketches = whole_mixtures(parted) if parted else []
    parts["gaussian"] = [math.hypot(*parts["gaussian"])]
    parts["delta"] = [math.fsum(parts["delta"])]
    plain = [Loss(kind, v) for kind in parts for v in sorted(parts[kind]) if v > 0.0]
    return (*plain, *(Loss("sketch", value) for value in sketches if float(value) > 0.0))


def _separate(parts: tuple[Loss, ...]) -> tuple[float, list[float], float]:
    """Return mu, the pure values (eta-bounded range is eta-DP), and the sum of the deltas."""
    mu, failure = (
        math.fsum(part.value for part in parts if part.kind == kind)
        for kind in ("gaussian", "delta")
    )
    return mu, [part.value for part in parts if part.kind in ("pure", "range")], failure


def _sketch_curve(losses: tuple[Loss, ...]) -> Curve | None:
    """Return the function epsilon -> delta of losses that contain sketches; None if there are none.

    A single group of sketches has its own curve. In a composition the change that a sketch has to
    hide may depend on earlier releases. Only bounds that hold for every change can be added up
    then, such as Renyi divergences. Losses of kind "delta" are not included: callers add them.
    """
    parts = [part for part in losses if part.kind != "delta"]
    if not any(part.kind == "sketch" for part in parts):
        return None
    if len(parts) == 1:
        delta: Curve = parts[0].value.delta
        return delta
    return partial(renyi_delta, renyi_divergence(parts))


def renyi_divergence(losses: Iterable[Loss]) -> FloatArray:
    """Return the sum of Renyi divergences at the `ORDERS`; deltas are left out."""
    total = np.zeros(ORDERS.shape)
    for kind, value in compose(losses):
        if kind == "sketch":
            total = total + value.renyi(ORDERS)
        elif kind == "gaussian":
            total = total + ORDERS * (value**2 / 2)
        elif kind != "delta":  # epsilon-DP: at most epsilon, and at most alpha epsilon^2 / 2
            total = total + np.minimum(value, ORDERS * (value**2 / 2))
    return total


def _to_grid(atoms: Atoms, step: float) -> Atoms:
    """Split each atom over two grid neighbours, keeping its mass under both data sets.

    Merging the halves is post-processing, so the split pair dominates; its error is O(step^2).
    """
    loss, mass = atoms
    start = float(loss.min())
    index = np.floor((loss - start) / step).astype(np.intp)
    offset = np.clip(loss - start - index * step, 0.0, step)
    upper = np.expm1(-offset) / math.expm1(-step)
    lower = np.exp(-offset) * np.expm1(offset - step) / math.expm1(-step)
    both = np.concatenate([index, index + 1]), np.concatenate([mass * lower, mass * upper])
    grid = np.asarray(np.bincount(*both), dtype=np.float64)
    return step * np.arange(grid.size, dtype=np.float64) + start, grid


def _convolve(first: Atoms, second: Atoms) -> Atoms:
    """Sum of two independent losses: exact while small, else on a grid (bounded work)."""
    step = float(np.ptp(first[0]) + np.ptp(second[0])) / _MAX_ATOMS
    if first[0].size * second[0].size > 64 * _MAX_ATOMS:
        first, second = _to_grid(first, step), _to_grid(second, step)
        mass = np.convolve(first[1], second[1])  # direct sums: an FFT would lose the tails
        return first[0][0] + second[0][0] + step * np.arange(mass.size), mass
    loss = np.add.outer(first[0], second[0]).ravel()
    atoms = loss, np.multiply.outer(first[1], second[1]).ravel()
    return _to_grid(atoms, step) if loss.size > _MAX_ATOMS else atoms


def _pure_atoms(values: Sequence[float]) -> Atoms:
    """Losses of a pair that dominates pure parts of the given finite values.

    Randomised response dominates each: +epsilon with probability e^epsilon / (1 + e^epsilon),
    else -epsilon. Equal values are binomial.
    """
    atoms: Atoms = (np.zeros(1), np.ones(1))
    for value, count in sorted(Counter(values).items()):
        ups = np.arange(count + 1.0)
        ways = gammaln(count + 1.0) - gammaln(ups + 1.0) - gammaln(count - ups + 1.0)
        mass = np.exp(ways + ups * log_expit(value) + (count - ups) * log_expit(-value))
        atoms = _convolve(atoms, (value * (2.0 * ups - count), mass))
    if (n := len(values)) < 2:
        return atoms
    # Sums of losses round, and logarithms of chances: upwards here, and not beyond the largest.
    (loss, mass), total, unit = atoms, math.fsum(values), 8 * ROUNDING
    most = max(total, float(loss.max()))
    return np.minimum(loss + unit * total, most), mass * (1 + unit * n * math.log(n))


def _mean_curve(mu: float, atoms: Atoms, epsilon: float) -> float:
    """Delta of mu-GDP composed with atoms: E[delta(mu, epsilon - loss)]."""
    return min(1.0, float(gaussian_curve(mu, epsilon - atoms[0]) @ atoms[1]))


def delta_from_losses(losses: Iterable[tuple[str, Any]], epsilon: float) -> float:
    """Smallest delta for which the composition of all losses is (epsilon, delta)-DP.

    Exact for Gaussian and worst-case pure parts (an upper bound beyond 16384 distinct total
    losses); conservative for range parts, which count as pure eta.

    Parameters
    ----------
    losses : iterable of Loss
    epsilon : float
        Any real number; inf gives 0.

    Returns
    -------
    float
        delta in [0, 1].
    """
    losses = compose(losses)
    mu, values, failure = _separate(losses)
    epsilon = as_number("epsilon", epsilon, low=-math.inf)
    if max(mu, *values, failure) > _MAX_VALUE or epsilon == math.inf:
        return min(1.0, failure) if epsilon == math.inf else 1.0
    curve = _sketch_curve(losses) or partial(_mean_curve, mu, _pure_atoms(values))
    return min(1.0, failure + curve(epsilon))


def as_text(losses: Iterable[tuple[str, Any]]) -> str:
    """Return losses as text for messages, such as "mu=0.5" or "epsilon=1"."""
    names = {"gaussian": "mu=", "pure": "epsilon="}
    said = (names.get(kind, f"{kind} ") + f"{value:.4g}" for kind, value in losses)
    return ", ".join(said) or "nothing"


def epsilon_from_losses(losses: Iterable[tuple[str, Any]], delta: float) -> float:
    """Smallest epsilon >= 0 of the composition of all losses at delta, on the safe side.

    Parameters
    ----------
    losses : iterable of Loss
    delta : float
        In [0, 1). At 0 pure and range parts add up, and Gaussian or delta parts give inf.

    Returns
    -------
    float
        epsilon with ``delta_from_losses(losses, epsilon) <= delta``; inf if not private.
    """
    losses = compose(losses)
    mu, values, failure = _separate(losses)
    delta = (as_delta(delta) if delta != 0.0 else as_number("delta", delta)) - failure
    if max(mu, *values, 0.0) > _MAX_VALUE or delta < 0.0 or (delta == 0.0 and mu > 0.0):
        return math.inf
    if (sketched := _sketch_curve(losses)) is not None:
        return _sketch_epsilon(sketched, delta) if delta > 0.0 else math.inf
    if delta == 0.0:
        return math.fsum(values)  # its half ulp is less than the 7e-13 that each release leaves
    return _epsilon_of(mu, tuple(values), delta)


@lru_cache(maxsize=256)  # the fits of a search have the same losses
def _epsilon_of(mu: float, values: tuple[float, ...], delta: float) -> float:
    total, target, atoms = math.fsum(values), lowered(delta), _pure_atoms(values)
    curve = partial(_mean_curve, mu, atoms)
    if curve(0.0) <= delta:
        return 0.0
    # mu-GDP has epsilon <= mu^2/2 + mu sqrt(2 log(1/delta)); pure parts add their sum at most.
    bound = total + mu * (mu / 2.0 + math.sqrt(-2.0 * math.log(target)))
    high = nudge(curve, target, bound, 1)
    root = brentq(lambda e: log_ratio(curve(e), target), 0.0, high, xtol=1e-300)
    epsilon = nudge(curve, target, root, 1)
    return epsilon if mu > 0.0 else min(epsilon, total)


def _sketch_epsilon(curve: Curve, delta: float) -> float:
    """Return an epsilon at which a curve that falls is at most delta; inf if it never is."""
    target, high = lowered(delta), 1.0
    while curve(high) > target:
        high *= 2.0
        if high > 1e9:
            return math.inf
    low = high / 2.0
    while curve(low) <= target:
        low, high = low / 2.0, low
        if low < 1e-12:
            return high
    root = brentq(lambda e: log_ratio(curve(e), target), low, high, xtol=1e-300, rtol=1e-13)
    return nudge(curve, target, root, 1)


def mu_with_pure(epsilon: float, delta: float, pure_epsilon: float) -> float:
    """Largest mu for which mu-GDP composed with a pure_epsilon-DP part is (epsilon, delta)-DP.

    Never below simple splitting, ``mu_from_epsilon_delta(epsilon - pure_epsilon, delta)``,
    which charges the pure part its worst loss always; here its two losses are averaged.

    Parameters
    ----------
    epsilon, delta : float
        Total budget: >= 0 (inf gives inf), and in (0, 1).
    pure_epsilon : float
        Share of the pure or range part, >= 0; a share beyond the budget is a ValueError.

    Returns
    -------
    float
        mu > 0, on the safe side; ``mu_from_epsilon_delta(epsilon, delta)`` next to 0.
    """
    epsilon, delta = as_number("epsilon", epsilon), as_delta(delta)
    pure = as_number("pure_epsilon", pure_epsilon)
    if pure == 0.0 or epsilon == math.inf:
        return mu_from_epsilon_delta(epsilon, delta)
    if delta_from_losses([Loss("pure", pure)], epsilon) >= lowered(delta):
        raise ValueError(f"pure_epsilon must leave room in epsilon={epsilon!r}. Got {pure!r}.")
    split = mu_from_epsilon_delta(epsilon - pure, delta) if pure <= epsilon else 0.0
    atoms = _pure_atoms([pure])
    best = largest_mu(lambda mu: _mean_curve(mu, atoms, epsilon), delta, split or delta)
    return max(split, best)
