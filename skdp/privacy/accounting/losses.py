"""Privacy accounting: (epsilon, delta) <-> mu of Gaussian DP, and what composes with it.

A mu-GDP mechanism is as private as one draw from N(0, 1) against N(mu, 1):
delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu).
Pure parts enter through their privacy loss distribution, never through that formula.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import gammaln, log_expit

from skdp.privacy.accounting.curves import (
    as_delta,
    as_number,
    gaussian_curve,
    largest_mu,
    log_ratio,
    lowered,
    nudge,
)
from skdp.privacy.accounting.sketch_laws import SketchMixture, orders, renyi_delta, whole_mixtures

FloatArray = NDArray[np.float64]
Curve = Callable[[float], float]
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
        probability: beside "pure" it dominates any (epsilon, delta)-DP mechanism. "sketch" is a
        group of random sketches, which is Gaussian DP for no mu.
    value : float or SketchMixture
        mu, epsilon, eta or delta: >= 0, inf for "not private". For "sketch", the law of a random
        mu; ``float(value)`` is its root mean square.
    """

    kind: str
    value: Any

    def times(self, factor: float) -> "Loss":
        """Return the loss for data sets `factor` neighbours apart: all parameters add up."""
        if isinstance(self.value, SketchMixture):
            return Loss(self.kind, self.value.times(factor))
        return Loss(self.kind, factor * self.value)


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
    if epsilon == math.inf:
        return math.inf
    # A smaller epsilon implies every larger one.
    return _largest_mu_of(min(epsilon, _MAX_VALUE), delta)


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
        mixed = isinstance(value, SketchMixture)
        parts[kind].append(value if mixed else as_number(f"{kind} loss", value))
    parted = parts.pop("sketch")
    sketches = whole_mixtures(parted) if parted else []
    parts["gaussian"] = [math.hypot(*parts["gaussian"])]
    parts["delta"] = [math.fsum(parts["delta"])]
    plain = [Loss(kind, v) for kind in parts for v in sorted(parts[kind]) if v > 0.0]
    return (*plain, *(Loss("sketch", value) for value in sketches if float(value) > 0.0))


def _separate(losses: Iterable[tuple[str, Any]]) -> tuple[float, list[float], float]:
    """Return mu, the pure values (eta-bounded range is eta-DP), and the sum of the deltas."""
    parts = compose(losses)
    mu, failure = (
        math.fsum(part.value for part in parts if part.kind == kind)
        for kind in ("gaussian", "delta")
    )
    return mu, [part.value for part in parts if part.kind in ("pure", "range")], failure


def _sketch_curve(losses: tuple[Loss, ...]) -> Curve | None:
    """Return epsilon -> delta where there are sketches: theirs alone, else by Renyi divergences.

    A change may depend on earlier releases, and then a later sketch on them too: only bounds that
    hold for every change, as the Renyi divergence of each order does, can be added up. Deltas are
    left out: they are added to the result.
    """
    sketches = [part.value for part in losses if part.kind == "sketch"]
    mu, values, _ = _separate(losses)
    if not sketches:
        return None
    if len(sketches) == 1 and not mu and not values:
        return partial(_alone, sketches[0])
    alpha = orders()
    total = sum((sketch.renyi(alpha) for sketch in sketches), alpha * (mu**2 / 2))
    for value in values:  # epsilon-DP: at most epsilon, and at most alpha epsilon^2 / 2
        total = total + np.minimum(value, alpha * (value**2 / 2))
    return partial(renyi_delta, total)


def _alone(sketch: SketchMixture, epsilon: float) -> float:
    return sketch.delta(epsilon)


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


def _pure_atoms(values: list[float]) -> Atoms:
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
    return atoms


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
        return math.fsum(values)
    return _epsilon_of(mu, values, delta) if values else _gaussian_epsilon(mu, delta)


@lru_cache(maxsize=256)  # the fits of a search are alike
def _gaussian_epsilon(mu: float, delta: float) -> float:
    return _epsilon_of(mu, [], delta)


def _epsilon_of(mu: float, values: list[float], delta: float) -> float:
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


def mu_beside_pure(epsilon: float, delta: float, pure_epsilon: float) -> float:
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
        mu > 0, on the safe side; ``mu_from_epsilon_delta(epsilon, delta)`` beside 0.
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


def to_dp_event(losses: Iterable[tuple[str, Any]]) -> Any:
    """Return losses as an event of ``dp_accounting`` (optional extra ``skdp[accounting]``).

    LaplaceDpEvent would be optimistic: Laplace noise loses less than the worst pure mechanism.
    Discrete Laplace noise of sensitivity 1 loses exactly +-epsilon, as randomised response
    (whose own event needs REPLACE_ONE, which doubles each mu). Range counts as pure eta. A group
    of sketches becomes UnsupportedDpEvent: no event is as private, and all accountants refuse it.

    Parameters
    ----------
    losses : iterable of Loss

    Returns
    -------
    dp_accounting.ComposedDpEvent
        For a PLDAccountant under ADD_OR_REMOVE_ONE whatever the adjacency of the fit, which
        the losses contain already. Its RDP accountant refuses pure parts.
    """
    try:
        from dp_accounting import dp_event
    except ImportError as error:
        raise ImportError("dp-accounting is missing; pip install 'skdp[accounting]'.") from error

    def event(loss: Loss) -> Any:
        if loss.kind == "sketch":
            return dp_event.UnsupportedDpEvent()
        if loss.value == math.inf or loss.kind == "delta":  # it has no event for a delta
            return dp_event.NonPrivateDpEvent()
        if loss.kind == "gaussian":
            return dp_event.GaussianDpEvent(1.0 / loss.value)
        return dp_event.DiscreteLaplaceDpEvent(loss.value, 1)

    return dp_event.ComposedDpEvent([event(loss) for loss in compose(losses)])
