"""Which release shows most of a matrix of private entries, by public and released numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from skdp._limits import GRAM_FEATURES, MEMORY
from skdp.privacy.ledger.scope import around
from skdp.privacy.noise.integers import MAX_FLIPS
from skdp.solvers import one_shot
from skdp.solvers.one_shot import flip_deviation, flip_probability
from skdp.solvers.spectral import SUMS_ALONE

# _STANDS_OUT: the detection limit of power iteration, over the noise (measured for six shapes).
# _USUAL_DEGREE: the mean degree of a graph, over the eigenvalue of groups that can just be seen.
# _SPREAD: the part of the budget that says how large entries are, and how far from their bounds.
# _ABOVE_MOMENT: with entries of both signs, one release is chosen even if its detection limit lies
# above that of others by this factor: it shows more below its limit, and cuts no row.
_STANDS_OUT, _USUAL_DEGREE, _SPREAD, _ABOVE_MOMENT = 1.7, 3.5, 0.04, 1.3


def iteration_threshold(noise_scale: float, size: float) -> float:
    """Return the smallest singular value that power iteration finds under this noise."""
    return _STANDS_OUT * noise_scale * math.sqrt(size)


def fits_whole(shape: tuple[int, int]) -> bool:
    """Whether a whole matrix is released at once: a product with the identity."""
    return 8 * math.prod(shape) <= MEMORY and min(shape) <= GRAM_FEATURES


def _iterated_threshold(session: Any, unit: Any, k: int, n_answers: int) -> float:
    """Return the smallest singular value that products with k incoherent columns find.

    It does not depend on the size of the matrix: in a larger one the rows of the k columns are
    shorter, which lowers the sensitivity, but the product has more entries with noise.
    """
    changed = k * (2 if unit.kind.pair else 1)  # entries of the product that a unit changes
    sensitivities = unit.alpha * changed, unit.alpha * math.sqrt(changed)
    return iteration_threshold(session.noise_scale(*sensitivities, 1 / n_answers), 1.0)


def _one_shot_threshold(session: Any, unit: Any, m: int, n: int, rounding: float) -> float:
    """Return the noise level of all entries released once; inf if there are too many.

    Cells in (0, high) are flipped, and rounding them to 0 or `high` has a variance of `rounding`
    high^2. Or small matrices have Laplace noise. A singular value at this level is found with a
    cosine of .87, which cannot be improved, while an iteration averages several releases. So this
    level is compared with their detection limit.
    """
    epsilon, scale = session.budget.pure_epsilon, math.inf
    if unit.bounded and unit.low == 0 < unit.high:
        deviation = flip_deviation(epsilon)
        left = flip_deviation((1 - 1.5 * _SPREAD) * epsilon)  # after facts, which raise no error
        if cells_of(unit, (m, n)) * flip_probability(left) <= MAX_FLIPS:
            scale = unit.high * math.hypot(deviation, math.sqrt(rounding))
    whole = unit.kind.single and (unit.bounded or not unit.kind.pair)
    if session.budget.pure and whole and fits_whole((m, n)):
        scale = min(scale, math.sqrt(2.0) * unit.alpha / epsilon)
    return _entries_limit(scale, (m, n))


def _entries_limit(scale: float, shape: tuple[int, int]) -> float:
    """Return the noise level of a matrix whose entries have noise of this scale."""
    return 2 * scale * math.sqrt(math.sqrt(shape[0]) * math.sqrt(shape[1]))


def cells_of(unit: Any, shape: tuple[int, int]) -> int:
    """Return the number of entries of a matrix, or of pairs of a graph."""
    return math.comb(shape[0], 2) if unit.kind.pair else math.prod(shape)


class Entries(NamedTuple):
    """What is known of entries, in parts of high: their mean, and their variance when rounded.

    `uneven` is the mean square of the sums of columns, over their squared mean.
    """

    rounding: float = 0.0
    mean: float | None = None
    uneven: float = 1.0


def released_entries(ask: Any, unit: Any, shape: tuple[int, int]) -> Entries:
    """Release the mean of all entries, and the variance of rounding one to 0 or `high`."""
    sums = ask.rounding_variance(share=_SPREAD / 2).value / (cells_of(unit, shape) * unit.high**2)
    return Entries(*np.clip(sums, 0.0, 1.0).tolist())


def released_columns(ask: Any, unit: Any, shape: tuple[int, int]) -> Entries:
    """Release how large entries are: means of columns in (0, high), which also say how uneven.

    Entries of both signs may have a mean of 0, so that their mean square takes its place.
    """
    if unit.low < 0:
        total = ask.square_sum(share=_SPREAD)
        square = max(float(total.value) - total.noise_scale, total.noise_scale)
        return Entries(0.0, min(square / (math.prod(shape) * unit.largest**2), 1.0))
    means, noise = ask.left(np.full((shape[0], 1), 1 / shape[0] / unit.high), share=_SPREAD)
    # Less one and two standard errors, so that noise counts as no sums: squares of Laplace noise
    # have a variance of 5 noise^4.
    n, error = means.size, noise / math.sqrt(means.size)
    mean = min(max(float(means.mean()) - error, error), 1.0)
    square = float(np.mean(means**2)) - noise**2 * (1 + 2 * math.sqrt(5 / n))
    return Entries(0.0, mean, max(square / mean**2, 1.0))


def most_of_facts(unit: Any) -> float:
    """Return the largest share of facts before a route: entries to be flipped may have two."""
    return 1.5 * _SPREAD if unit.low == 0 and not unit.kind.symmetric else 0.0


def released_whole(
    session: Any, ask: Any, unit: Any, shape: tuple[int, int], rounding: float | None
) -> one_shot.FlippedMatrix:
    """Return one release of all entries, with which products cost nothing.

    All entries with noise; or, in (0, high), their flipped cells, unless Laplace noise is less than
    what rounding cells to 0 or `high` adds, by a released number: `rounding`.
    """
    (m, n), epsilon, graph = shape, session.budget.pure_epsilon, unit.kind.symmetric
    if not unit.bounded:
        answer = ask.right(np.eye(n), share=1.0) if n <= m else ask.left(np.eye(m), share=1.0)
        value = answer.value if n <= m else answer.value.T
        return one_shot.WholeMatrix(value, answer.noise_scale, session.law)
    graded, flips = not session.budget.exact and fits_whole(shape), unit.low == 0
    # Groups of a graph are compared with all of its noise, so there it need not be known.
    if graded and flips and rounding is None and (not graph or one_shot.graded_pays(epsilon)):
        rounding = released_entries(ask, unit, shape).rounding
    rounding = rounding or 0.0
    if not flips or (graded and one_shot.graded_pays(epsilon, rounding)):
        answer = ask.whole(share=session.remaining("pure"))
        value = one_shot.matrix_of_pairs(answer.value, n) if graph else answer.value
        return one_shot.WholeMatrix(value, answer.noise_scale, "laplace", loops=not graph)
    cells = ask.cells(session.random_number(), share=session.remaining("pure"))
    Y = one_shot.graph_of_pairs(cells.value, n) if graph else cells.value
    return one_shot.FlippedMatrix(
        Y, cells.noise_scale, high=unit.high, loops=not graph, rounding=rounding
    )


def _next_to_edges(ours: float, theirs: float, weight: float) -> tuple[float, float]:
    """Return the detection limits L of both routes for groups, with the noise of the edges.

    Edges are drawn with the probabilities that groups give them. In a graph of mean degree d this
    adds noise of spectral norm E = 2 sqrt(d weight). A larger eigenvalue L of the groups takes more
    edges: d = _USUAL_DEGREE L. In one release the squares of both noises add: L^2 = ours^2 + E^2.
    In products they do not, because all products have the same noise of the edges: the larger of
    both decides, about L^4 = theirs^4 + (_STANDS_OUT E)^4.
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
    moments: Callable[[Entries], Mapping[str, float]] | None = None,
    groups: bool = False,
    entries: Entries | None,
) -> tuple[str, str]:
    """Choose an algorithm, "one_shot" or another one; return its name and the reason.

    The lowest detection limit wins. "sums" releases column sums only, if no algorithm detects much
    else: without negative entries they are near the first direction, with little noise. (Their
    Laplace noise must not be larger than Gaussian noise with the delta.)

    Some limits depend on private entries. Rounding them to 0 and `high` adds noise at any budget. A
    moment has less noise if rows are shorter, and products have more if few columns hold most
    entries. If the entries vary by more than their noise, other directions are found, too. So the
    choice is made for the ends of what entries may be. If it differs between these, "auto" is
    returned, and the caller releases what decides. In a ledger the kind of a budget is fixed before
    a fit begins; there entries are taken as 0 or `high`, with a guessed mean.

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
    moments : callable or None
        Entries -> {name: threshold} of routes by the moment of the rows.
    groups : bool
        Whether groups of nodes are sought, and not the matrix itself.
    entries : Entries or None
        What was released of them.
    """
    name = estimator.algorithm
    if name != "auto":
        return name, f"{name}: set by the parameter"
    pure = estimator._checked_session(pure=estimator._offers_pure_dp())
    if pure.budget.exact:
        return other, f"{other}: there is no noise"
    # Products and moments split a huge budget into copies, which one release cannot. Of entries of
    # both signs it shows more even so, and budgets are compared without.
    k, session = int(estimator.n_components), estimator._checked_session(split=unit.low == 0)
    guess = Entries(mean=None if groups else 0.1)
    ends, graph = [entries or guess], unit.kind.symmetric
    products = _iterated_threshold(session, unit, k, n_answers)
    if not entries and not any(around()):
        if unit.low == 0:
            both = [Entries(0.0, 0.0, shape[1]), Entries(0.0, 0.5), Entries(0.25, 1.0)]
            ends = [*ends, Entries(0.25)] if groups else both
        elif moments:
            ends = [Entries(0.0, 0.0), Entries(0.0, 1.0)]
    found, pays = {}, session.law == "laplace"
    pays = pays or pure.budget.pure_epsilon * session.noise_multiplier > 2**0.5
    for end in ends:
        mean, signed = end.mean or 0.0, unit.low < 0
        # With less noise than what entries scatter by, directions beside the sums are seen; but
        # those below it are too alike for products with few columns, whatever their noise.
        variance = mean if signed else max(mean * (1 - mean) - end.rounding, 0.0)
        size = min(unit.largest, unit.alpha)  # of an entry without bounds, about what may change
        scatter = _entries_limit(size * math.sqrt(variance), shape) * (not groups)
        limit = products * end.uneven**0.25
        routes = {other: limit if signed else max(limit, scatter)}
        name, theirs = min((routes | (moments(end) if moments else {})).items(), key=itemgetter(1))
        theirs = max(theirs, scatter) if name == other else theirs
        ours, theirs = _limits(pure, unit, shape, theirs, groups, end)
        said = f"detection limit {ours:.3g} by one_shot, {theirs:.3g} by {name}"
        wider = _ABOVE_MOMENT if moments and signed else 1.0
        name = "one_shot" if ours < wider * theirs else name
        sums = mean * unit.high * math.sqrt(math.prod(shape) * end.uneven)  # their singular value
        limit = min(ours, theirs)
        # Right singular vectors of a wide table have more noise; an edge of a graph is in two sums.
        least = limit * max(shape[1] / shape[0], 1.0) ** 0.25 / (2 if graph else 1)
        hidden = limit > scatter and least > SUMS_ALONE[k > 1] * sums
        if pays and unit.low == 0 and not groups and hidden:
            known = f"singular value {sums:.3g} of column sums; " * (entries is not None)
            name, said = "sums", known + said
        found.setdefault(name, f"{name}: {said}")
    if len(found) > 1:
        return "auto", "auto: a release shows how large entries are"
    return next(iter(found.items()))


def _limits(
    session: Any, unit: Any, shape: tuple[int, int], theirs: float, groups: bool, entries: Entries
) -> tuple[float, float]:
    """Return the detection limits of one release and of the other route.

    Edges scatter about the chances that groups give them: with a variance of mean (1 - mean) once
    they are rounded, and less by that of the rounding before.
    """
    ours = _one_shot_threshold(session, unit, *shape, entries.rounding)
    if not groups or not unit.bounded:
        return ours, theirs
    if entries.mean is None:
        usual = _next_to_edges(ours, theirs, unit.high)
        return (ours, theirs) if entries.rounding else usual
    left = max(entries.mean * (1 - entries.mean) - entries.rounding, 0.0)
    edges = 4 * shape[0] * unit.high**2 * left
    products = math.sqrt(math.hypot(theirs**2, _STANDS_OUT**2 * edges))
    return math.hypot(ours, math.sqrt(edges)), products
