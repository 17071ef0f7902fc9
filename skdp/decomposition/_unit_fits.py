"""Fits of DPTruncatedSVD whose unit is not a row: routes, releases, attributes.

A route is chosen from public numbers: the shape, and the noise that each would have.
"""

import math

import numpy as np

from skdp.decomposition._spectral import components_of
from skdp.queries.entries import EntryQuery, EntryUnit
from skdp.queries.interactions import InteractionQuery, gram_change, product_change
from skdp.queries.norms import NormQuery
from skdp.solvers.flipped import (
    FlippedMatrix,
    graph_of_pairs,
    singular_triplets,
    symmetric_pairs,
)
from skdp.solvers.linalg import symmetric_noise_edge
from skdp.solvers.low_rank import (
    N_PASSES,
    N_PRODUCTS,
    alternate,
    deflate,
    iterate_symmetric,
    late_columns,
)
from skdp.solvers.one_shot import flip_deviation, flip_probability, normalised_pairs, pair_deviation
from skdp.solvers.postprocess import svd_variances, user_level_mu
from skdp.solvers.shrinkage import leading_shrunk
from skdp.theory import iteration_threshold
from skdp.theory._one_shot import MOST_FLIPS, choose_one_shot

UNIT_SOLVERS = {
    "interaction": ("auto", "randomized", "arpack", "gram", "power", "one_shot"),
    "entry": ("auto", "randomized", "arpack", "alternating", "deflation", "one_shot"),
    "edge": ("auto", "randomized", "arpack", "alternating", "power", "one_shot"),
    "frobenius": ("auto", "randomized", "arpack", "alternating", "deflation"),
    "spectral": ("auto", "randomized", "arpack", "alternating", "deflation"),
}
_SKLEARN = {"interaction": {"randomized": "power", "arpack": "gram"}}
MOST_DENSE = 4000  # items of a dense moment
_QUIET_MOMENT = 0.01  # of the users at the edge of the noise: then a moment, which has no steps
_NO_STEPS = 1.5  # that need to converge, is as good as products with so much less noise
_REST = 0.95  # of the budget of interactions; the others show sums and the total


def entry_unit(estimator):
    """Return what neighbours differ in, for the units with entries."""
    low, high = (-math.inf, math.inf)
    if estimator.privacy_unit in ("entry", "edge"):
        low, high = map(float, estimator.entry_bounds)
    sensitivity = float(estimator.sensitivity)
    return EntryUnit(estimator.privacy_unit, estimator.adjacency, low, high, sensitivity)


def unit_route(estimator, shape):
    """Return (name, reason) of the route of a fit: a function of settings and a public shape."""
    unit, name = estimator.privacy_unit, estimator.algorithm
    if unit == "interaction":
        name = _SKLEARN[unit].get(name, name)
        return _interaction_route(estimator, shape) if name == "auto" else (name, f"{name}: given")
    iterated = "power" if unit == "edge" else "alternating"
    if name in ("randomized", "arpack") or (unit == "edge" and name == "alternating"):
        return iterated, f"{iterated}: given"
    each = N_PRODUCTS if unit == "edge" else N_PASSES
    n_answers = each[estimator.delta == 0] if estimator.n_iter == "auto" else estimator.n_iter
    n_answers *= 1 if unit == "edge" else 2
    return choose_one_shot(estimator, entry_unit(estimator), shape, n_answers, iterated)


def pure_units(estimator):
    """Whether the settings have a route without delta."""
    unit, name = estimator.privacy_unit, estimator.algorithm
    flips = name in ("auto", "one_shot")
    if unit == "interaction":
        return flips
    bounded = unit in ("entry", "edge")
    return bounded and (estimator.n_components == 1 or (flips and estimator.entry_bounds[0] == 0))


# -- interactions ------------------------------------------------------------------------------


def _interaction_route(estimator, shape):
    """Choose by the edge of the noise in the spectrum of the moment."""
    edges = {"one_shot": _flipped_edge(estimator, shape)}
    if estimator.delta > 0:
        session = estimator._checked_session()
        multiplier = session.noise_multiplier / math.sqrt(_REST)
        edges |= _moment_edges(estimator, shape, multiplier)
    if math.isinf(estimator.epsilon):
        edges.pop("one_shot")
    quiet = edges.get("gram", math.inf) < _QUIET_MOMENT * shape[0]
    handicap = {"power": _NO_STEPS if quiet else 1.0}
    ordered = sorted(edges, key=lambda name: edges[name] * handicap.get(name, 1.0))
    figures = ", ".join(f"{name} {edges[name]:.3g}" for name in ordered)
    return ordered[0], f"{ordered[0]}: predicted edge of the noise {figures}"


def _moment_edges(estimator, shape, multiplier):
    n, k = shape[1], min(estimator.n_components, shape[1])
    floor, adjacency = estimator.degree_floor, estimator.adjacency
    change = gram_change(n, floor, adjacency)
    gram = symmetric_noise_edge(multiplier * change, n) if n <= MOST_DENSE else math.inf
    spread = np.eye(k)[np.arange(n) % k] * math.sqrt(k / n)  # a query without long rows
    noise = multiplier * product_change(spread, floor, adjacency)
    steps = interaction_steps(estimator)
    return {"gram": gram, "power": iteration_threshold(noise * math.sqrt(steps), n)}


def _flipped_edge(estimator, shape):
    m, n = shape
    session = estimator._checked_session(pure=True)
    if session.budget.exact:
        return 0.0
    cells = 2 if estimator.adjacency == "replace" else 1
    s = flip_deviation(session.budget.pure_epsilon / cells)
    if m * n * flip_probability(s) > MOST_FLIPS:
        return math.inf
    degree = float(estimator.degree_floor)
    noise = pair_deviation(s, m, m * degree / n) / (degree + s * math.sqrt(n))
    return 2 * noise * math.sqrt(n)


def interaction_steps(estimator):
    """Return the number of products of the power route."""
    if estimator.n_iter != "auto":
        return estimator.n_iter
    return 6 if estimator.epsilon < 3 else 10 if estimator.epsilon < 30 else 20


def fit_interactions(estimator, session, X, route):
    """Release the moment of degree-normalised rows, products with it, or flipped interactions."""
    floor, k = estimator.degree_floor, estimator.n_components
    query = InteractionQuery(X, degree_floor=floor, adjacency=estimator.adjacency)
    ask, (m, n) = session.ask(query), X.shape
    if route == "one_shot":
        cells = ask.cells(share=1.0)
        found = normalised_pairs(cells.value, cells.noise_scale, float(floor), k)
        squares, V, total, sums, noise = found
    else:
        squares, V = _moment_pairs(estimator, session, ask, n, route)
        total = float(ask.square_sum(share=0.01).value)
        sums, noise = ask.sums(share=0.04)
    attributes = svd_variances(squares, components_of(V), sums / m, total / m, m, noise / m)
    extra = {"n_samples_seen_": m}
    if session.budget.mu:
        extra["user_level_mu_"] = user_level_mu(session.budget.mu, n, floor)
    return attributes | extra


def _moment_pairs(estimator, session, ask, n, route):
    """Return the k leading eigenpairs of a noisy moment, descending."""
    k = estimator.n_components
    if route == "gram":
        moment = ask.gram(share=_REST)
        return leading_shrunk(moment.value, k, moment.noise_scale / math.sqrt(2))
    late, quiet = late_columns(session.law, k, estimator.n_oversamples, n)
    start = session.random_start(n, k, late=late, ones_first=True)
    options = {"law": session.law, "n_iter": interaction_steps(estimator), "quiet": quiet}
    squares, V = iterate_symmetric(ask, start, k, _REST, **options)
    order = np.argsort(-squares, kind="stable")  # a negative Ritz value is noise: last
    return np.maximum(squares[order], 0.0), V[:, order]


# -- entries and edges -------------------------------------------------------------------------


def fit_entries(estimator, session, X, route):
    """Release products with the matrix, or its flipped cells."""
    unit, k, (m, n) = entry_unit(estimator), estimator.n_components, X.shape
    ask = session.ask((EntryQuery if unit.single else NormQuery)(X, unit))
    if route == "one_shot":
        cells = ask.cells(session.random_number(), share=1.0)
        Y = graph_of_pairs(cells.value, n) if unit.name == "edge" else cells.value
        graph = unit.name == "edge"
        ask = FlippedMatrix(Y, cells.noise_scale, high=unit.high, loops=not graph)
        U, values, V = _flipped_triplets(ask, k, graph)
    else:
        U, values, V = _iterated_triplets(estimator, session, ask, unit, X.shape, route)
    components = components_of(V)
    signs = np.sign(np.sum(components.T * V, axis=0))
    means, noise, total = _means(session, ask, unit, m, n, values, route)
    attributes = svd_variances(values**2, components, means, total / m, m, noise)
    return attributes | {"left_": U * signs, "n_samples_seen_": m}


def _flipped_triplets(ask, k, graph):
    if not graph:
        return singular_triplets(ask, k)
    values, V = symmetric_pairs(ask, ask.shape[0], k)
    return V * np.where(values < 0, -1.0, 1.0), np.abs(values), V


def _iterated_triplets(estimator, session, ask, unit, shape, route):
    """Half steps A V and A'U, one component after the other, or steps on a symmetric A."""
    (m, n), k = shape, estimator.n_components
    bounded = session.budget.exact or unit.single
    rest = 1.0 if session.budget.pure else 0.98 if bounded else 0.99
    options = {"law": session.law, "n_iter": estimator.n_iter}
    if route == "deflation":
        return deflate(ask, m, session.random_signs((n, k)), rest, **options)
    late, quiet = late_columns(session.law, k, estimator.n_oversamples, min(shape))
    start = session.random_start(n, k, late=late, ones_first=unit.low >= 0)
    if unit.name != "edge":
        return alternate(ask, start, k, rest, quiet=quiet, **options)
    values, V = iterate_symmetric(ask, start, k, rest, quiet=quiet, **options)
    return V * np.sign(values), np.abs(values), V


def _means(session, ask, unit, m, n, values, route):
    """Return the column means, which are one more product, their noise, and the total."""
    exact, pure = session.budget.exact, session.budget.pure
    if route == "one_shot":
        answer = ask.left(np.full((m, 1), 1 / m), share=0.0)
        return answer.value[:, 0], answer.noise_scale, ask.square_sum()
    if pure:
        return np.zeros(n), 0.0, float(np.sum(values**2))
    answer = ask.left(np.full((m, 1), 1 / m), share=0.01)
    total = float(np.sum(values**2))
    if exact or unit.single:
        total = float(ask.square_sum(share=0.01).value)
    return answer.value[:, 0], answer.noise_scale, total
