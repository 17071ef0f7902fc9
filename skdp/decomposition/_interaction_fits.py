"""Fits of DPTruncatedSVD whose unit is one interaction: the moment of degree-normalised rows.

The moment of all items, or of those with the largest counts; products with it; or flipped cells.
"""

import math

import numpy as np

from skdp.decomposition._base import warn_below_noise
from skdp.decomposition._spectral import components_of, rotate_by_ritz
from skdp.queries.interactions import InteractionQuery, gram_change
from skdp.solvers.linalg import symmetric_noise_edge, top_eigenpairs
from skdp.solvers.low_rank import iterate_symmetric, late_columns
from skdp.solvers.one_shot import flip_deviation, flip_probability, normalised_pairs, pair_deviation
from skdp.solvers.postprocess import svd_variances, user_level_mu
from skdp.solvers.screening import moment_columns, screened_moment, shows_all_columns
from skdp.solvers.shrinkage import shrunk
from skdp.solvers.thinning import chosen_subspace
from skdp.theory._one_shot import MOST_FLIPS

_REST = 0.95  # of the budget of interactions; the others show sums and the total
_UNREAD = 3.3  # edges of flipped cells, whose choice of directions has no floor
_MANY = 400  # columns: of more a moment is read on the popular ones, flips are on all alike
_EXTRA = 10  # columns of products: popular items come first, tastes after them
# Where m exceeds the noise of a moment (its edge, for each component) so many times, and noise is
# not next to nothing either: more columns and steps, since all answers are used together.
_SEEN, _NEXT_TO_NONE, _MORE, _STEPS_MORE = 20.0, 30.0, 20, 8
_RITZ = 0.03  # of the budget, for the Ritz values of items that were chosen


def interaction_route(estimator, shape):
    """Choose by the edge of the noise in the spectrum of the moment."""
    unread = _UNREAD * math.sqrt(max(1.0, shape[1] / _MANY))
    edges = {"one_shot": unread * _flipped_edge(estimator, shape)}
    if estimator.delta > 0 or math.isinf(estimator.epsilon):
        edges |= _moment_edge(estimator, shape)
    if math.isinf(estimator.epsilon):
        edges.pop("one_shot")
    ordered = sorted(edges, key=edges.get)
    figures = ", ".join(f"{name} {edges[name]:.3g}" for name in ordered)
    return ordered[0], f"{ordered[0]}: predicted edge of the noise {figures}"


def _moment_edge(estimator, shape):
    """Return the edge of the moment of all items, or of those that screening would keep."""
    m, n = shape
    noise = _moment_noise(estimator, estimator._checked_session(), n)
    signal = m / noise if noise else math.inf
    if shows_all_columns(signal, n):
        return {"gram": symmetric_noise_edge(noise, n)}
    kept = moment_columns(signal, n, estimator.n_components)
    return {"screened": symmetric_noise_edge(noise, kept)}


def _moment_noise(estimator, session, n):
    """Return the noise scale of a moment of n items with all of the share of the subspace."""
    change = gram_change(n, estimator.degree_floor, estimator.adjacency)
    return session.noise_multiplier * change / math.sqrt(_REST)


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


def interaction_products(estimator, session, shape):
    """Return the columns of products beyond the components, and how many products there are."""
    (m, n), epsilon = shape, estimator.epsilon
    more, steps = _EXTRA, 6 if epsilon < 3 else 10 if epsilon < 30 else 20
    if session.law == "gaussian" and epsilon < _NEXT_TO_NONE:
        edge = _moment_noise(estimator, session, n) * math.sqrt(n)
        if m > _SEEN * edge * estimator.n_components:
            more, steps = _MORE, max(steps, _STEPS_MORE)
    more = more if estimator.n_oversamples == "auto" else estimator.n_oversamples
    return more, steps if estimator.n_iter == "auto" else estimator.n_iter


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
        squares, V = _moment_pairs(estimator, session, ask, X.shape, route)
        total = float(ask.square_sum(share=0.01).value)
        sums, noise = ask.sums(share=0.04)
    warn_below_noise(estimator, squares)
    attributes = svd_variances(squares, components_of(V), sums / m, total / m, m, noise / m)
    extra = {"n_samples_seen_": m}
    if session.budget.mu:
        extra["user_level_mu_"] = user_level_mu(session.budget.mu, n, floor)
    return attributes | extra


def _moment_pairs(estimator, session, ask, shape, route):
    """Return the k leading eigenpairs of a noisy moment, descending."""
    k, (m, n) = estimator.n_components, shape
    if route == "gram":
        return chosen_pairs(ask.gram(share=_REST), k)
    if route == "screened":
        signal = m / max(_moment_noise(estimator, session, n), 1e-150)
        V = screened_moment(ask, n, k, _REST - _RITZ, signal)
        return rotate_by_ritz(ask.ritz, V, _RITZ)
    more, steps = interaction_products(estimator, session, shape)
    first, _ = late_columns(session.law, k, more, n, n, symmetric=True)
    start = session.random_start(n, k, late=first - k, ones_first=True)
    options = {"law": session.law, "n_iter": steps}
    options |= {"first": first, "spread": False}  # popular items hold most of the signal
    squares, V = iterate_symmetric(ask, start, k, _REST, **options)
    order = np.argsort(-squares, kind="stable")  # a negative Ritz value is noise: last
    return np.maximum(squares[order], 0.0), V[:, order]


def chosen_pairs(moment, k):
    """Return eigenpairs in the subspace that thinning likes best, values without the noise."""
    found = chosen_subspace(moment.value, moment.noise_scale, k, sparse=True)
    values, Q = top_eigenpairs(found.vectors.T @ moment.value @ found.vectors)
    values, V = np.maximum(values, 0.0), found.vectors @ Q
    if not found.axes:  # which were not turned towards the noise
        values = shrunk(values, V, moment.noise_scale / math.sqrt(2))
    return values, V
