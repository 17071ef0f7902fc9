"""Detection limits of iterated noisy products and of randomized response, from public numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from skdp._limits import GRAM_FEATURES, MEMORY
from skdp.privacy.accounting.receipts import LedgerEntry
from skdp.privacy.noise.integers import MAX_FLIPS
from skdp.solvers.one_shot import flip_deviation, flip_probability

# Detection limit of power iteration over the noise, measured for six shapes; and mean degree of a
# graph over the eigenvalue of its groups, where they can just be seen.
_STANDS_OUT, _USUAL_DEGREE = 1.7, 3.5


def iteration_threshold(noise_scale: float, size: float) -> float:
    """Return the smallest singular value that power iteration finds under this noise."""
    return _STANDS_OUT * noise_scale * math.sqrt(size)


def products_threshold(answers: Sequence[LedgerEntry], size: int) -> float:
    """Return the smallest singular value that these noisy products find; inf without products."""
    scales = [answer.noise_scale for answer in answers] or [math.inf]
    mean = math.sqrt(math.fsum(scale * scale for scale in scales) / len(scales))
    return iteration_threshold(mean, size)


def is_small(shape: tuple[int, int]) -> bool:
    """Whether a whole matrix is released at once: a product with the identity."""
    return 8 * math.prod(shape) <= MEMORY and min(shape) <= GRAM_FEATURES


def _iterated_threshold(session: Any, unit: Any, k: int, n_answers: int) -> float:
    """Return the smallest singular value that products with k incoherent columns find.

    It does not depend on the size of the matrix: in a larger one the rows of the k columns are
    shorter, which lowers the sensitivity, but the product has more entries with noise.
    """
    rows = 2 if unit.kind.pair else 1  # rows of the product that a unit changes
    if session.budget.pure:
        scale = math.sqrt(2.0) * unit.alpha * rows * k * n_answers / session.budget.pure_epsilon
    else:
        scale = session.noise_multiplier * unit.alpha * math.sqrt(rows * k * n_answers)
    return iteration_threshold(scale, 1.0)


def _flipped_threshold(session: Any, unit: Any, m: int, n: int) -> float:
    """Return the noise level of randomized response; inf if too many cells would be flipped.

    A singular value at this level is found with a cosine of .87, which cannot be improved, while an
    iteration averages several releases. So this level is compared with their detection limit.
    """
    deviation = flip_deviation(session.budget.pure_epsilon)
    cells = m * (m - 1) // 2 if unit.kind.pair else m * n
    if cells * flip_probability(deviation) > MAX_FLIPS:
        return math.inf
    return 2 * unit.high * deviation * math.sqrt(math.sqrt(m) * math.sqrt(n))


def _whole_threshold(session: Any, unit: Any, m: int, n: int) -> float:
    """Return the noise level of Laplace noise on all entries; inf if the matrix is too large."""
    if not is_small((m, n)):
        return math.inf
    scale = math.sqrt(2.0) * unit.alpha / session.budget.pure_epsilon
    return 2 * scale * math.sqrt(math.sqrt(m) * math.sqrt(n))


def _next_to_edges(ours: float, theirs: float, weight: float) -> tuple[float, float]:
    """Return the thresholds of both routes for groups, next to the noise of the edges themselves.

    Edges of `weight` scatter about the chances that groups give them: in a graph of mean degree d
    up to E = 2 sqrt(d weight). A graph that shows groups has the more edges the larger their
    eigenvalue L is: d = _USUAL_DEGREE L. In one release both noises add, L^2 = ours^2 + E^2. All
    products share that of the edges; they find what stands out of the larger one, as E takes no
    less than their own noise does: L^4 = theirs^4 + (_STANDS_OUT E)^4.
    """
    edge = 4 * _USUAL_DEGREE * weight  # E^2 = edge L
    square = (_STANDS_OUT**2 * edge / theirs) ** 2
    products = theirs * math.sqrt((square + math.hypot(square, 2.0)) / 2)
    return edge / 2 + math.hypot(edge / 2, ours), products


def choose_one_shot(
    estimator: Any,
    unit: Any,
    shape: tuple[int, int],
    n_answers: int,
    other: str,
    *,
    moments: Mapping[str, float] | None = None,
    groups: bool = False,
) -> tuple[str, str]:
    """Choose an algorithm, "one_shot" or another one; return its name and the reason.

    Parameters
    ----------
    estimator : estimator
        Its parameters.
    unit : MatrixUnit
        What one cell may change by.
    shape : tuple of int
        Public shape of the matrix.
    n_answers : int
        Number of answers of the other route.
    other : str
        Its name.
    moments : mapping or None
        Name -> threshold of routes by the moment of the rows.
    groups : bool
        Whether groups of nodes are sought, and not the matrix itself.
    """
    name = estimator.algorithm
    if name != "auto":
        return name, f"{name}: as asked for"
    pure = estimator._checked_session(pure=estimator._offers_pure_dp())
    if pure.budget.exact:
        return other, f"{other}: there is no noise"
    flips = unit.bounded and unit.low == 0 < unit.high
    whole = unit.kind.contract and unit.kind.single and not unit.kind.symmetric
    threshold = _whole_threshold if whole else _flipped_threshold
    ours = threshold(pure, unit, *shape) if flips or whole else math.inf
    k, session = estimator.n_components, estimator._checked_session()
    theirs = _iterated_threshold(session, unit, k, n_answers)
    other, theirs = min({other: theirs, **(moments or {})}.items(), key=itemgetter(1))
    # With less noise than this, rounding weights to 0 and 1 (one_shot) costs more than noise. Small
    # matrices that are no graphs are not rounded then.
    enough = unit.high * math.sqrt(k) if unit.kind.symmetric or not is_small(shape) else 0.0
    if groups and theirs > enough:
        ours, theirs = _next_to_edges(ours, theirs, unit.high)
    name = "one_shot" if ours < theirs and theirs > enough else other
    return name, f"{name}: threshold {ours:.3g} at once, {theirs:.3g} by {other}"
