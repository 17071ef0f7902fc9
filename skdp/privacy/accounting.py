"""Privacy accounting: (epsilon, delta) <-> mu of Gaussian DP, and what composes with it.

A mu-GDP mechanism is as private as one draw from N(0, 1) against N(mu, 1):
delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu).
Pure parts enter through their privacy loss distribution, never through that formula.
"""

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import erfcx, gammaln, log_expit, ndtr

FloatArray = NDArray[np.float64]
Atoms = tuple[FloatArray, FloatArray]  # privacy losses and their probabilities
Curve = Callable[[float], float]

KINDS = ("gaussian", "pure", "range", "delta")
_MAX_ATOMS = 16384  # a privacy loss distribution with more moves to a grid
_MAX_VALUE = 1e150  # epsilon of a larger mu is no float
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)


class Loss(NamedTuple):
    """One part of what a fit spent.

    Attributes
    ----------
    kind : {"gaussian", "pure", "range", "delta"}
        "range" is bounded range: the exponential mechanism. "delta" shows everything with that
        probability: beside "pure" it dominates any (epsilon, delta)-DP mechanism.
    value : float
        mu, epsilon, eta or delta: >= 0, inf for "not private".
    """

    kind: str
    value: float


def _number(name: str, value: object, low: float = 0.0, high: float = math.inf) -> float:
    """Return a real number in [low, high] as a float; anything else is a ValueError."""
    number = math.nan
    if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):
            number = float(value)
    if not low <= number <= high:
        raise ValueError(f"{name} must be a number in [{low:g}, {high:g}]. Got {value!r}.")
    return number


def _proper_delta(value: object) -> float:
    """Return delta in (0, 1)."""
    delta = _number("delta", value, high=1.0)
    if delta in (0.0, 1.0):
        raise ValueError(f"delta must lie strictly between 0 and 1. Got {value!r}.")
    return delta


def _mills(x: FloatArray) -> FloatArray:
    """Mills ratio R(x) = Phi(-x) / phi(x), for x > -25."""
    return np.asarray(math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2)))


def _forward_curve(mu: float, epsilon: FloatArray) -> FloatArray:
    """Delta at epsilons >= 0: phi(x) (R(x) - R(x + mu)) with x = epsilon/mu - mu/2."""
    with np.errstate(over="ignore"):
        x = np.minimum(epsilon / mu, mu / 2 + 40.0) - mu / 2  # phi(40) is 0 in floats
        density = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    if mu <= 1.0:  # R' = x R - 1: the integral of 1 - t R(t) > 0 does not cancel
        t = x[:, None] + 0.5 * mu * (_NODES + 1.0)
        return np.asarray(density * (0.5 * mu * ((1.0 - t * _mills(t)) @ _WEIGHTS)))
    near, far = _mills(np.maximum(x, 0.0)), _mills(x + mu)
    return np.where(x < 0.0, ndtr(-x) - density * far, density * (near - far))


def _gaussian_curve(mu: float, epsilon: FloatArray) -> FloatArray:
    """Delta at any epsilons; delta(-e) = (1 - e^-e) + e^-e delta(e) has no cancellation."""
    below = np.minimum(epsilon, 0.0)
    delta = -np.expm1(below)
    if mu > 0.0:
        delta = delta + np.exp(below) * _forward_curve(mu, np.abs(epsilon))
    return np.minimum(delta, 1.0)


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


def _target(delta: float) -> float:
    """Lower delta by more than the rounding error of its curve (1e-16 log(1/delta))."""
    return delta * (1.0 - 2.0**-48 * (4.0 - math.log(delta)))


def _log_ratio(delta: float, target: float) -> float:
    """log(delta / target), finite also where delta underflows."""
    return (math.log(delta) if delta > 0.0 else -1e4) - math.log(target)


def _nudge(curve: Curve, target: float, value: float, side: int) -> float:
    """Move value by ulps to the given side until the curve is at most target."""
    step = math.ulp(value)
    while curve(value) > target:
        value, step = value + side * step, 2.0 * step
    return value


def _largest_mu(curve: Curve, delta: float, low: float) -> float:
    """Largest mu, rounded down, at which an increasing curve is at most delta; low: a guess."""
    target = _target(delta)
    while curve(low) > target:
        low /= 2.0
    high = 2.0 * low
    while curve(high) <= target:
        low, high = high, 2.0 * high
    ends = math.log(low) - 1e-12, math.log(high) + 1e-12
    root = brentq(lambda t: _log_ratio(curve(math.exp(t)), target), *ends, xtol=1e-15)
    return _nudge(curve, target, math.exp(root), -1)


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
    epsilon, delta = _number("epsilon", epsilon), _proper_delta(delta)
    if epsilon == math.inf:
        return math.inf
    epsilon = min(epsilon, _MAX_VALUE)  # a smaller epsilon implies every larger one
    tail = math.sqrt(-2.0 * math.log(delta))
    # Either suffices: mu^2/2 + mu tail <= epsilon, mu <= sqrt(2 pi) delta.
    low = max(2.0 * epsilon / (math.hypot(tail, math.sqrt(2.0 * epsilon)) + tail), delta)
    return _largest_mu(lambda mu: delta_from_mu_epsilon(mu, epsilon), delta, low)


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


def compose(losses: Iterable[tuple[str, float]]) -> tuple[Loss, ...]:
    """Bring losses to their canonical form.

    Gaussian parts (adaptive, each mu fixed in advance) become one of root-sum-of-squares mu.
    Pure and range parts stay apart: how they compose depends on delta. Zeros are dropped.

    Returns
    -------
    tuple of Loss
        At most one "gaussian", then "pure", "range", each in ascending order, and one "delta".
    """
    parts: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for kind, value in losses:
        if not isinstance(kind, str) or kind not in parts:
            raise ValueError(f"The kind of a loss must be one of {list(KINDS)}. Got {kind!r}.")
        parts[kind].append(_number(f"{kind} loss", value))
    parts["gaussian"] = [math.hypot(*parts["gaussian"])]
    parts["delta"] = [math.fsum(parts["delta"])]
    return tuple(Loss(kind, v) for kind in KINDS for v in sorted(parts[kind]) if v > 0.0)


def _separate(losses: Iterable[tuple[str, float]]) -> tuple[float, list[float], float]:
    """Return mu, the pure values (eta-bounded range is eta-DP), and the sum of the deltas."""
    parts = compose(losses)
    mu, failure = (sum(p.value for p in parts if p.kind == kind) for kind in ("gaussian", "delta"))
    return mu, [part.value for part in parts if part.kind in ("pure", "range")], failure


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
    return min(1.0, float(_gaussian_curve(mu, epsilon - atoms[0]) @ atoms[1]))


def delta_from_losses(losses: Iterable[tuple[str, float]], epsilon: float) -> float:
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
    mu, values, failure = _separate(losses)
    epsilon = _number("epsilon", epsilon, low=-math.inf)
    if max(mu, *values, failure) > _MAX_VALUE or epsilon == math.inf:
        return min(1.0, failure) if epsilon == math.inf else 1.0
    return min(1.0, failure + _mean_curve(mu, _pure_atoms(values), epsilon))


def epsilon_from_losses(losses: Iterable[tuple[str, float]], delta: float) -> float:
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
    mu, values, failure = _separate(losses)
    delta = (_proper_delta(delta) if delta != 0.0 else _number("delta", delta)) - failure
    if max(mu, *values, 0.0) > _MAX_VALUE or delta < 0.0 or (delta == 0.0 and mu > 0.0):
        return math.inf
    total = math.fsum(values)
    if delta == 0.0:
        return total
    target, atoms = _target(delta), _pure_atoms(values)
    curve = partial(_mean_curve, mu, atoms)
    if curve(0.0) <= delta:
        return 0.0
    # mu-GDP has epsilon <= mu^2/2 + mu sqrt(2 log(1/delta)); pure parts add their sum at most.
    bound = total + mu * (mu / 2.0 + math.sqrt(-2.0 * math.log(target)))
    high = _nudge(curve, target, bound, 1)
    root = brentq(lambda e: _log_ratio(curve(e), target), 0.0, high, xtol=1e-300)
    epsilon = _nudge(curve, target, root, 1)
    return epsilon if mu > 0.0 else min(epsilon, total)


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
    epsilon, delta = _number("epsilon", epsilon), _proper_delta(delta)
    pure = _number("pure_epsilon", pure_epsilon)
    if pure == 0.0 or epsilon == math.inf:
        return mu_from_epsilon_delta(epsilon, delta)
    if delta_from_losses([Loss("pure", pure)], epsilon) >= _target(delta):
        raise ValueError(f"pure_epsilon must leave room in epsilon={epsilon!r}. Got {pure!r}.")
    split = mu_from_epsilon_delta(epsilon - pure, delta) if pure <= epsilon else 0.0
    atoms = _pure_atoms([pure])
    best = _largest_mu(lambda mu: _mean_curve(mu, atoms, epsilon), delta, split or delta)
    return max(split, best)


def normalise_shares(shares: Mapping[str, float]) -> dict[str, float]:
    """Scale positive shares to an exact sum of at most 1, and 1 up to rounding.

    Parameters
    ----------
    shares : mapping of str to float
        Finite and > 0.
    """
    if not isinstance(shares, Mapping) or not shares:
        raise ValueError(f"shares must be a non-empty mapping of names to numbers. Got {shares!r}.")
    limit = math.nextafter(math.inf, 0.0)
    exact = {k: Fraction(_number(f"share {k!r}", v, high=limit)) for k, v in shares.items()}
    total = sum(exact.values())
    scaled = {name: float(value / (total or 1)) for name, value in exact.items()}
    if min(scaled.values()) <= 0.0:
        raise ValueError(f"Each share must be > 0, also beside the others. Got {dict(shares)!r}.")
    largest = max(scaled, key=lambda name: scaled[name])
    while sum(map(Fraction, scaled.values())) > 1:
        scaled[largest] = math.nextafter(scaled[largest], 0.0)
    return scaled


def to_dp_event(losses: Iterable[tuple[str, float]]) -> Any:
    """Return losses as an event of ``dp_accounting`` (optional extra ``skdp[accounting]``).

    LaplaceDpEvent would be optimistic: Laplace noise loses less than the worst pure mechanism.
    Discrete Laplace noise of sensitivity 1 loses exactly +-epsilon, as randomised response
    (whose own event needs REPLACE_ONE, which doubles each mu). Range counts as pure eta.

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
        if loss.value == math.inf or loss.kind == "delta":  # it has no event for a delta
            return dp_event.NonPrivateDpEvent()
        if loss.kind == "gaussian":
            return dp_event.GaussianDpEvent(1.0 / loss.value)
        return dp_event.DiscreteLaplaceDpEvent(loss.value, 1)

    return dp_event.ComposedDpEvent([event(loss) for loss in compose(losses)])
