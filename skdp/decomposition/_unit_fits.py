"""Fits of DPTruncatedSVD whose unit is not a row: routes, releases, attributes.

A route is chosen from public numbers: the shape, and the noise that each would have.
"""

import math
from functools import partial

import numpy as np

from skdp import _choice
from skdp._inputs import matrix_unit
from skdp._limits import CLEAR, MOST_DENSE
from skdp.answer import Answer
from skdp.decomposition import _base
from skdp.privacy.ledger.scope import around
from skdp.queries.entries import EntryRowQuery, matrix_query, moment_change
from skdp.queries.interactions import InteractionQuery, gram_change
from skdp.queries.sums import Neighbours
from skdp.solvers import one_shot, spectral
from skdp.solvers.iterate import PASSES, alternate, iterate_symmetric, more_columns
from skdp.solvers.linalg import (
    components_of,
    detection_limit,
    shrunk,
    signal_share,
    symmetric_noise_edge,
    top_eigenpairs,
    with_signs,
)
from skdp.solvers.postprocess import shrunk_mean, svd_variances, user_level_mu
from skdp.units import DEGREE, unit_of

# Fits of DPTruncatedSVD whose unit is one interaction: the moment of degree-normalised rows.
#
# The moment of all items, or of those with the largest counts; products with it; or flipped cells.


# Parts of the budget. Interactions: their number, the moment, Ritz values of selected items. Then
# entries by rows: "sums" for their means, and the rest.
_SHARES = {
    "degree": 0.01, "moment": 0.95, "ritz": 0.03, "sums": 0.04, "total": 0.01,
    "subspace": 0.83, "left": 0.05, "clip_norm": 0.07,
}  # fmt: skip


def interaction_route(estimator, shape, degree=None):
    """Choose randomized response or the moment by the mean degree: given, released, or usual.

    Without one ("auto") it is released first, unless all degrees choose the same. A ledger knows
    what kind of a budget a fit has before it begins.
    """
    degree = estimator.unit_bound or degree or (any(around()) and round(math.sqrt(shape[1])))
    ends = {_best_at(estimator, shape, end) for end in (degree or 1, degree or shape[1])}
    if len(ends) > 1:
        return "auto", "auto: the released mean degree decides"
    (name,) = ends
    if name == "moment":
        return _moment_route(estimator, estimator._checked_session(), shape, degree or 1)[:2]
    hidden = "other directions are below the noise, or cells are too many for randomized response"
    said = "less noise" if name == "one_shot" else hidden
    return name, f"{name}: {said}, for {degree or 'any number of'} items per user"


def _best_at(estimator, shape, degree):
    """Name what captures most at a mean degree: the "moment", flips ("one_shot"), or "sums".

    Flips and the moment are compared on a direction of which the moment captures half: one whose
    squared norm is root 2 of half the noise level of the moment. If that is x times the noise of m
    flips, these capture (x^2 - b)/(x^2 + b x) of it, b = n/m.
    Sums of items need no delta, and have far less noise without. They get the whole budget if flips
    capture less than 0.9 of the mean of equally popular items: (y^4 - m n s^4) / (y^4 + y^2 n s^2)
    for its singular value y. If the moment captures more than flips do, it must hide other
    directions, too, which is so if it would leave the sums a third of the budget.
    """
    (m, n), session = shape, estimator._checked_session(pure=True)
    if session.budget.exact:
        return "moment"
    cells, pure = Neighbours(estimator.adjacency).units, session.budget.pure_epsilon
    s, few, small = one_shot.flip_deviation(pure / cells), False, False
    left = one_shot.flip_deviation((1 - _SHARES["degree"]) * pure / cells)
    many = m * n * one_shot.flip_probability(left) > _choice.MAX_FLIPS  # a grant would refuse them
    if estimator.delta > 0:
        *_, noise, columns = _moment_route(estimator, estimator._checked_session(), shape, degree)
        few = m * math.sqrt(estimator.n_components) < 2 * spectral.MOMENT_SIGNAL * noise
        length, unit = noise * math.sqrt(columns) * degree, s * s * n
        small = many or length * (length - unit) <= 2 * unit * m * s * s
    square, noise = m * degree**2 / n, n * s * s
    shown = (square**2 - m * noise * s * s) / (square * (square + noise))
    hidden = shown < 0.9 and pure > one_shot.LEAST_PURE * n
    if small and not (few and hidden):
        return "moment"
    return "sums" if hidden or many else "one_shot"


def _moment_route(estimator, session, shape, floor):
    """Return the part of the moment to release, as a name and in words, its noise and items."""
    m, n = shape
    noise = _item_noise(estimator, session, n, floor)
    signal = m / noise if noise else math.inf
    columns = spectral.moment_columns(signal, n, estimator.n_components)
    said = f"screened: Gram matrix of {columns} columns{' (or all)' * (columns < n)}"
    return "screened", f"{said}, for {floor} items per user", noise, columns


def _item_noise(estimator, session, n, floor):
    """Return the noise scale of a moment of n items with all of the share of the subspace."""
    change = gram_change(n, floor, estimator.adjacency)
    return session.noise_multiplier * change / math.sqrt(_SHARES["moment"])


def fit_interactions(estimator, session, X, route):
    """Release the moment of degree-normalised rows, products with it, flipped cells, or sums alone.

    Rows with fewer interactions than the released mean have weights as if they had the mean number,
    unless a floor is given.
    """
    (m, n), k, floor = X.shape, estimator.n_components, estimator.unit_bound
    query, extra = InteractionQuery(X, degree_floor=n, adjacency=estimator.adjacency), {}
    learnt = floor is None and route not in ("one_shot", "sums")
    if learnt:  # with a degree floor of n, squares sum to the number of interactions over n
        total = session.ask(query).square_sum(share=_SHARES["degree"])
        floor = one_shot.mean_degree(total.value * n, m)
    if route == "auto":
        route, extra["algorithm_reason_"] = interaction_route(estimator, X.shape, floor)
        if route == "screened":
            session.take_delta()
    elif estimator.algorithm == "auto" and route == "screened":  # now that the floor is known
        route, extra["algorithm_reason_"] = _moment_route(estimator, session, X.shape, floor)[:2]
    if route == "one_shot":
        cells = session.ask(query).cells(share=session.remaining(session.budget.kind))
        squares, V, total, (sums, noise) = one_shot.normalised_pairs(*cells, floor, k)
    elif route == "sums":
        sums, noise = session.ask(query).counts(share=session.remaining(session.budget.kind))
        high = max(floor or 1, one_shot.mean_degree(sums.sum(), m)) ** -0.5
        sums, noise = high * sums, high * noise
        found, whole = _by_sums(sums, noise, m, high, k)
        (squares, V), total = found[:2], float(whole.value)
    else:
        ask = session.ask(query.floored(floor))
        paid = _SHARES["degree"] * (learnt and not session.open)
        found = _moment_pairs(estimator, session, ask, X.shape, route, floor, paid)
        (squares, V), whole = found[:2], ask.square_sum(share=_SHARES["total"])
        sums, noise = (part / math.sqrt(floor) for part in ask.counts(share=_SHARES["sums"]))
        total = max(float(whole.value), whole.noise_scale)
        if session.budget.mu and not session.open:
            extra["user_level_mu_"] = user_level_mu(session.budget.mu, n, floor, paid)
    verdict = _base.found_of(squares)
    if route in ("screened", "power", "sums"):
        verdict = _base.verdict_of_ritz(found, whole, n)
    squares = squares * _base.warn_of_verdict(estimator, *verdict)
    attributes = svd_variances(squares, components_of(V), sums / m, total / m, m, noise / m)
    return attributes | extra | {"n_samples_seen_": m}


def _by_sums(sums, noise, m, high, k, graph=False):
    """Return the Ritz pairs that the sums of m rows show, and the total."""
    mean = np.maximum(shrunk_mean(sums, noise, m, math.inf)[0], 0.0)
    V = spectral.mean_and_axes(sums, noise, k)
    values, error = spectral.held_by_sums(mean, noise, m, high, V, graph=graph)
    order = np.argsort(-values, kind="stable")
    total = Answer(np.asarray(m * high * mean.sum()), high * noise * math.sqrt(len(mean)))
    return _base.ritz_of(values[order], V[:, order], error), total


def _moment_pairs(estimator, session, ask, shape, route, floor, paid):
    """Return the k leading eigenpairs of a noisy moment: of all items, or the Ritz pairs of it."""
    k, (m, n), share = estimator.n_components, shape, _SHARES["moment"] - paid
    if route == "gram":
        return chosen_pairs(ask.gram(share=share), k)
    if route == "screened":
        signal = m / max(_item_noise(estimator, session, n, floor), 1e-150)
        share, alike = share - _SHARES["ritz"], ask.floored(n)  # all users have one weight
        V = spectral.screened_moment(
            ask, alike.counts, k, share, signal, math.inf
        )  # counts are never dense
        return _base.rotated(ask.ritz(V, share=_SHARES["ritz"]), V, k)
    start = _start(estimator, session, n, n, _base.default_oversamples(k), ones_first=True)
    options = {"law": session.law, "n_iter": estimator.n_iter}
    squares, V, noise = iterate_symmetric(ask, start, k, share, **options)
    order = np.argsort(-squares, kind="stable")  # a negative Ritz value is noise: last
    return _base.ritz_of(squares[order], V[:, order], noise)


def chosen_pairs(moment, k):
    """Return eigenpairs in the subspace with the best thinning score, values without the noise."""
    V = spectral.chosen_subspace(moment.value, moment.noise_scale, k)
    values, Q = top_eigenpairs(V.T @ moment.value @ V)
    return shrunk(np.maximum(values, 0.0), V @ Q, moment.noise_scale / math.sqrt(2)), V @ Q


# Entry fits of DPTruncatedSVD by the second moment of the rows, and of a whole matrix at once.
#
# A row moves little of the moment by one entry: where the matrix is thin this beats products.


def moment_thresholds(estimator, session, unit, shape, entries):
    """Return {route: singular value at the edge of its noise}, from public numbers.

    Sums of entries with both signs select no columns, so the moment is of all columns.
    """
    (m, n), k = shape, estimator.n_components
    length = usual_length(estimator, unit, n, entries.mean)
    noise = _moment_noise(session, unit, length)
    kept = n if unit.low < 0 else spectral.moment_columns(m * length**2 / noise, n, k)
    if kept > MOST_DENSE:
        return {}
    return {"gram" if unit.low < 0 else "screened": math.sqrt(symmetric_noise_edge(noise, kept))}


def usual_length(estimator, unit, n, mean=None):
    """Return the given clip norm, or a guess: the norm of n entries that are 0 or the largest.

    `mean` is theirs, in parts of the largest; without it one entry is not 0.
    """
    if estimator.clip_norm != "auto":
        return float(estimator.clip_norm)
    return unit.largest * max(1.0, math.sqrt(n * (mean or 0.0)))


def _moment_noise(session, unit, clip_norm):
    change = moment_change(unit, clip_norm) / math.sqrt(_SHARES["subspace"])
    return session.noise_multiplier * change


def moment_triplets(estimator, session, X, unit, route, products):
    """Return (U, singular values, V, Ritz, most): V from the moment, U from a product with it.

    No Ritz pairs where the moment is of all columns: its values are cut at the noise. `most` is the
    largest total of the clipped rows.
    """
    k, (m, n) = estimator.n_components, X.shape
    rows, exact = session.ask(EntryRowQuery(X, unit)), session.budget.exact
    near = usual_length(estimator, unit, n)
    level = spectral.DIRECTION_LEVEL * min(1.0, moment_change(unit, near) / near**2)
    clip_norm = _base.row_clip_norm(
        estimator, session, rows, _SHARES["clip_norm"], n, level=level, near=near
    )
    rows = rows.clipped(clip_norm)
    share = _SHARES["subspace"]
    ritz = None
    if route == "gram" or exact:
        squares, V = chosen_pairs(rows.gram(share=share + (0.0 if exact else _SHARES["ritz"])), k)
    else:
        signal = m * clip_norm**2 / _moment_noise(session, unit, clip_norm)
        V = spectral.screened_moment(rows, rows.counts, k, share, signal, m * unit.alpha)
        ritz = _base.rotated(rows.ritz(V, share=_SHARES["ritz"]), V, k)
        squares, V = ritz[:2]
    left = products.right(V, share=_SHARES["left"]).value
    U, _, W = np.linalg.svd(left, full_matrices=False)
    return U @ W, np.sqrt(squares), V, ritz, m * clip_norm**2


UNIT_SOLVERS = {
    "interaction": ("auto", "randomized", "arpack", "gram", "screened", "power", "one_shot"),
    "entry": (
        "auto", "randomized", "arpack", "gram", "screened", "alternating", "deflation", "one_shot",
    ),
    "edge": ("auto", "randomized", "power", "deflation", "one_shot"),
    "entry_change": ("auto", "randomized", "alternating", "deflation", "one_shot"),
    "edge_change": ("auto", "randomized", "power", "deflation"),
    "mixed": ("auto", "randomized", "power", "deflation"),
    "frobenius": ("auto", "randomized", "alternating", "deflation", "one_shot"),
    "spectral": ("auto", "randomized", "alternating", "deflation"),
}  # fmt: skip
_SKLEARN = {"randomized": ("power", "alternating"), "arpack": ("gram",)}  # the one that it has
_OF_ROWS = ("auto", "arpack", "gram", "screened")  # routes of entries that shorten rows
_ITERATED = ("auto", "randomized", "power", "alternating")  # routes of products


def unit_route(estimator, shape, entries=None):
    """Return (name, reason) of the route of a fit: of settings, a public shape, released facts."""
    unit, name = unit_of(estimator), estimator.algorithm
    name = next((each for each in _SKLEARN.get(name, ()) if each in UNIT_SOLVERS[unit.name]), name)
    if unit.bound is DEGREE:
        if name == "auto":
            return interaction_route(estimator, shape)
        return name, f"{name}: set by the parameter"
    changed = matrix_unit(estimator)
    iterated, pure = "power" if unit.symmetric else "alternating", bool(estimator.delta == 0)
    if pure and estimator.n_components > 1:
        iterated = "deflation"  # answers of one column have a bound on their l1 norm that is near
    n_answers = PASSES[iterated][pure] if estimator.n_iter == "auto" else estimator.n_iter
    n_answers *= 1 if iterated == "power" else 2
    cells = changed.bounded and changed.low == 0  # which are flipped
    if name == "one_shot" and not cells and not _choice.fits_whole(shape):
        raise ValueError(
            f"algorithm='one_shot' would release {shape[0]} x {shape[1]} numbers; use "
            "'auto', or for entries that are not negative unit_bound=(0, high). Got 'one_shot'."
        )
    if whole_at_once(unit) and name in ("auto", "one_shot") and estimator.delta > 0:
        if name == "one_shot" or (_choice.fits_whole(shape) and not math.isinf(estimator.epsilon)):
            return "one_shot", "one_shot: one release of all entries holds every product with them"
        return "alternating", "alternating: there is no noise, or there are too many entries"
    if name != "auto":
        return name, f"{name}: set by the parameter"
    moments, session = None, estimator._checked_session(split=changed.low == 0)
    if unit.reads_clip_norm and not (pure or session.budget.exact):
        moments = partial(moment_thresholds, estimator, session, changed, shape)
    return _choice.choose_one_shot(
        estimator, changed, shape, n_answers, iterated, moments=moments, entries=entries
    )


def whole_at_once(unit):
    """Whether all entries, a product with the identity, change by as little as any product."""
    return unit.dual == "spectral"


def pure_units(estimator):
    """Whether the settings have a route without delta."""
    unit, name = unit_of(estimator), estimator.algorithm
    if unit.by_rows:
        return False
    if unit.bound is DEGREE:
        return name in ("auto", "one_shot")
    # Moments of matrices have no near bound on an l1 norm.
    one = estimator.n_components == 1 and name not in ("gram", "arpack", "screened")
    return one or name in ("auto", "deflation", "one_shot")


def budget_kinds(estimator):
    """Return the kinds of budgets that fits may have where delta is not 0, by their shape."""
    unit, both = unit_of(estimator), ("pure", "gaussian")
    if unit.by_rows or whole_at_once(unit) or not pure_units(estimator):
        return ("gaussian",)
    return {"one_shot": ("pure",), "auto": both}.get(estimator.algorithm, ("gaussian",))


# -- entries and edges -------------------------------------------------------------------------


def fit_entries(estimator, session, X, route):
    """Release products with the matrix, its flipped cells, or all of it."""
    unit, k, (m, n) = matrix_unit(estimator), estimator.n_components, X.shape
    ask = session.ask(matrix_query(X, unit))
    U, values, ritz, most, reason = np.eye(m, k), np.zeros(k), None, math.inf, {}
    graph, rounding = unit.kind.symmetric, None
    if route == "auto":
        facts = _choice.released_entries if graph else _choice.released_columns
        known = facts(ask, unit, X.shape)
        route, why = unit_route(estimator, X.shape, known)
        if route == "one_shot" and not graph and unit.low == 0:  # it may round entries
            known = known._replace(rounding=_choice.released_entries(ask, unit, X.shape).rounding)
            route, why = unit_route(estimator, X.shape, known)
        rounding, reason["algorithm_reason_"] = known.rounding, why
        if route not in ("one_shot", "sums") and estimator.delta > 0:
            session.take_delta(most=_choice.most_of_facts(unit))
    if route in ("gram", "screened"):
        U, values, V, ritz, most = moment_triplets(estimator, session, X, unit, route, ask)
    elif route == "one_shot":
        ask = _choice.released_whole(session, ask, unit, X.shape, rounding)
        if graph:
            U, values, V = _of_pairs(*one_shot.symmetric_pairs(ask, n, k, kurtosis=ask.kurtosis))
        else:
            U, values, V = one_shot.singular_triplets(ask, k)
    elif route != "sums":
        U, values, V = _iterated_triplets(estimator, session, ask, unit, X.shape, route)
    means, noise, total = _means(session, ask, unit, m, n, values, route)
    if route == "sums":
        ritz, total = _by_sums(m * means, m * noise, m, unit.high, k, graph)
        values, V = np.sqrt(ritz.values), ritz.vectors
        known = means @ V
        least = np.maximum(values, math.sqrt(m) * np.abs(known))  # no column is longer than 1
        known = np.divide(known, least, out=np.zeros(k), where=least > 0)
        # What all rows have in common; that of a graph is in proportion to degrees.
        rows = math.sqrt(m) * spectral.about_common(means, noise) if graph else np.ones(m)
        U = np.outer(rows, known)
    if ritz is None and noise:
        of_cells = ask.noise_scale if route == "one_shot" else 0.0
        U, values, V = _with_mean(U, values, V, means, noise, of_cells, ask if graph else None)
        total = total._replace(value=max(float(total.value), float(np.sum(values**2))))
    U, components = with_signs(U, V)
    held = total._replace(value=min(float(total.value), most))  # Ritz values are of clipped rows
    verdict = _base.found_of(values) if ritz is None else _base.verdict_of_ritz(ritz, held, n)
    values = values * _base.warn_of_verdict(estimator, *verdict)
    mean_square = max(float(total.value), total.noise_scale) / m
    attributes = svd_variances(values**2, components, means, mean_square, m, noise)
    return attributes | reason | {"left_singular_vectors_": U, "n_samples_seen_": m}


def _with_mean(U, values, V, means, noise, of_cells, graph=None):
    """Return triplets that begin with the mean of the rows, if it explains more than the first.

    If neither is found, the mean is the better guess, with the value 0, if the total exceeds the
    noise. Without negative entries, the largest singular value is near the norm of the sum of rows
    over sqrt(m), which has less noise. From a square x^2 and noise e on each of n columns its
    direction shows x^4/(x^2 + n e^2). A singular vector shows (y^4 - m n s^4)/(y^2 + n s^2) of the
    square y^2, with noise of s on each of m x n cells. In a `graph` the mean of flips is that of
    degrees, of products the constant; values along both directions are compared.
    """
    (m, k), n, error = U.shape, len(V), math.sqrt(len(U)) * noise
    # In units of that noise, so that no square of a square overflows.
    first, mean = np.full((m, 1), m**-0.5), spectral.about_common(means / noise, 1.0)[:, None]
    x, y, s = float(np.linalg.norm(means)) / noise, float(values[0]) / error, of_cells / error
    square = max(x**2 - n, 0.0)
    shown = max(square - CLEAR**2 * math.sqrt(2 * n), 0.0) ** 2 / x**2
    other = max((y**4 - m * n * s**4) / max(y**2 + n * s**2, 1e-300), 0.0)
    if graph is not None:
        mean, value = _by_degrees(graph, means, noise) if s else (first, float(means.sum()))
        first, square = mean, max(value / error, 0.0) ** 2
        shown, other = square * (square > CLEAR**4), other**2 / max(y**2, 1e-300)
    if shown <= other and (y or float(means.sum()) <= CLEAR * math.sqrt(n) * noise):
        return U, values, V
    apart = np.abs(mean.T @ V)[0] < 0.5  # both are of length 1
    order = np.argsort(~apart, kind="stable")[: k - 1]
    U, V = (_beginning_with(*each, order) for each in ((first, U), (mean, V)))
    return U, np.append(math.sqrt(square) * error * (shown > 0), (values * apart)[order]), V


def _by_degrees(graph, means, noise):
    """Return the direction of noisy degrees as a column, and a graph's value along it."""
    sizes = means / noise
    deviations = sizes - sizes.mean()
    kept = signal_share(float(deviations @ deviations), len(sizes) - 3)
    sizes = (sizes.mean() + kept * deviations)[:, None]
    length = max(float(np.linalg.norm(sizes)), 1e-300)
    mean = sizes / length
    value = float(np.sum(mean * graph.right(mean, share=0.0).value))
    # The degrees have the noise of the same release.
    return mean, value - 2 * kept * noise * len(mean) / length * float(mean.sum())


def _beginning_with(first, W, order):
    """Return an orthonormal basis of one column, and of columns of W in an order."""
    Q, R = np.linalg.qr(np.hstack([first, W[:, order]]))
    return Q * np.where(np.diag(R) < 0, -1.0, 1.0)


def _of_pairs(values, V):
    """Return the singular triplets of a symmetric matrix."""
    order = np.argsort(-np.abs(values), kind="stable")
    values, V = values[order], V[:, order]
    return V * np.where(values < 0, -1.0, 1.0), np.abs(values), V


def _iterated_triplets(estimator, session, ask, unit, shape, route):
    """Half steps A V and A'U, one component after the other, or steps on a symmetric A."""
    (m, n), k = shape, estimator.n_components
    bounded = session.budget.exact or unit.bounded
    rest = session.remaining("pure") if session.budget.pure else 0.98 if bounded else 0.99
    options = {"law": session.law, "n_iter": estimator.n_iter}
    one_by_one = route == "deflation"
    ones = unit.low >= 0 and not one_by_one
    usual = more_columns(session, k) if unit.kind.symmetric else 0
    start = _start(estimator, session, n, min(shape), usual, ones_first=ones)
    if one_by_one or not unit.kind.symmetric:
        return alternate(ask, m, start, k, rest, one_by_one=one_by_one, **options)
    values, V, noise = iterate_symmetric(ask, start, k, rest, **options)
    clear = np.abs(values) > detection_limit(symmetric_noise_edge(noise, k), k)
    U, sizes, V = _of_pairs(values, V)
    return U, sizes * clear, V


def _start(estimator, session, n, most, usual, *, ones_first):
    """Return a public start with columns beyond those that are wanted, `most` in all.

    `usual` is how many "auto" adds; with `ones_first` the first column is constant.
    """
    k, more = estimator.n_components, estimator.n_oversamples
    more = 0 if session.law == "laplace" else usual if more == "auto" else more
    return session.random_start(n, min(k + more, max(k, most)), ones_first=ones_first)


def _means(session, ask, unit, m, n, values, route):
    """Return the column means, which are one more product, their noise, and the total.

    Of sums alone that is at most what they add up to: no square of an entry in (0, high) is larger
    than high times the entry.
    """
    pure, total = session.budget.pure, Answer(np.sum(values**2), 0.0)
    if pure and route not in ("one_shot", "sums"):
        return np.zeros(n), 0.0, total
    answer = ask.left(np.full((m, 1), 1 / m), share=session.remaining("pure") if pure else 0.01)
    if route == "one_shot":
        total = Answer(ask.square_sum(), 0.0)
    elif route == "sums":
        total = Answer(m * unit.high * max(float(answer.value.sum()), 0.0), 0.0)
    elif session.budget.exact or unit.bounded:
        total = ask.square_sum(share=0.01)
    return answer.value[:, 0], answer.noise_scale, total
