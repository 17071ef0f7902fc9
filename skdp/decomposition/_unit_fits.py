"""Fits of DPTruncatedSVD whose unit is not a row: routes, releases, attributes.

A route is chosen from public numbers: the shape, and the noise that each would have.
"""

import math

import numpy as np

from skdp._entry_units import check_bounds_read, entry_unit
from skdp.decomposition._base import warn_below_noise
from skdp.decomposition._entry_moments import (
    is_small,
    moment_thresholds,
    moment_triplets,
    whole_triplets,
)
from skdp.decomposition._interaction_fits import interaction_route
from skdp.decomposition._spectral import components_of
from skdp.exceptions import warn_caller
from skdp.queries.entries import EntryQuery
from skdp.queries.norms import NormQuery
from skdp.solvers.flipped import (
    FlippedMatrix,
    WholeMatrix,
    graph_of_pairs,
    read_triplets,
    singular_triplets,
    symmetric_pairs,
)
from skdp.solvers.low_rank import (
    N_PASSES,
    N_PRODUCTS,
    alternate,
    deflate,
    iterate_symmetric,
    late_columns,
    passes_of_deflation,
)
from skdp.solvers.one_shot import graded_may_pay, graded_pays
from skdp.solvers.postprocess import svd_variances
from skdp.theory import IteratedSide
from skdp.theory._one_shot import choose_one_shot

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
_SKLEARN = {
    "interaction": {"randomized": "power", "arpack": "gram"},
    "entry": {"randomized": "alternating", "arpack": "gram"},
    "edge": {"randomized": "power"},
    "entry_change": {"randomized": "alternating"},
    "edge_change": {"randomized": "power"},
    "mixed": {"randomized": "power"},
    "frobenius": {"randomized": "alternating"},
    "spectral": {"randomized": "alternating"},
}
_OF_NOISE = 0.3  # of the smallest singular value that is found: more is seldom noise alone
_SPREAD = 0.02  # of a pure budget, for how far entries are from their bounds
_OF_ROWS = ("auto", "arpack", "gram", "screened")  # routes of entries that shorten rows
_ITERATED = ("auto", "randomized", "power", "alternating")  # routes of products


def check_used(estimator):
    """Refuse bounds that the unit does not read; warn of steps that a named route does not take.

    Decided from parameters alone.
    """
    check_bounds_read(estimator)
    unit, name = estimator.privacy_unit, estimator.algorithm
    steps = ("n_oversamples",) if name == "deflation" else ("n_iter", "n_oversamples")
    ignored = [key for key in steps if getattr(estimator, key) != "auto"]
    ignored = ignored if name not in _ITERATED else []
    if unit == "entry" and name not in _OF_ROWS and estimator.clip_norm not in ("auto", math.inf):
        ignored.append("clip_norm")
    sklearn_like = unit in ("row", "group")  # where the words of scikit-learn are taken in silence
    if ignored and not sklearn_like:
        warn_caller(
            f"algorithm={name!r} of privacy_unit={unit!r} does not read {' and '.join(ignored)}.",
            UserWarning,
        )


def unit_route(estimator, shape):
    """Return (name, reason) of the route of a fit: a function of settings and a public shape."""
    unit, name = estimator.privacy_unit, estimator.algorithm
    name = _SKLEARN.get(unit, {}).get(name, name)
    if unit == "interaction":
        return interaction_route(estimator, shape) if name == "auto" else (name, f"{name}: given")
    changed = entry_unit(estimator)
    iterated, pure = "power" if changed.symmetric else "alternating", estimator.delta == 0
    n_answers = (N_PRODUCTS if iterated == "power" else N_PASSES)[pure]
    if pure and estimator.n_components > 1:
        iterated = "deflation"  # answers of one column have a bound on their l1 norm that is near
        n_answers = passes_of_deflation("laplace", estimator.n_components)
    n_answers = n_answers if estimator.n_iter == "auto" else estimator.n_iter
    n_answers *= 1 if iterated == "power" else 2
    if name == "one_shot" and not changed.bounded:
        _check_whole(shape)
    if unit == "frobenius" and name in ("auto", "one_shot") and estimator.delta > 0:
        return _whole_route(estimator, shape)
    if name != "auto":
        return name, f"{name}: as asked for"
    moments, quiet = {}, False
    if estimator.delta > 0 and not math.isinf(estimator.epsilon):
        session = estimator._checked_session()
        moments, quiet = moment_thresholds(estimator, session, changed, shape)
    return choose_one_shot(
        estimator, changed, shape, n_answers, iterated, moments=moments, no_products=quiet
    )


def _whole_route(estimator, shape):
    """Choose between one release of all entries, which is as good as all products, and products."""
    name, small = estimator.algorithm, is_small(shape)
    if name == "one_shot" or (name == "auto" and small and not math.isinf(estimator.epsilon)):
        return "one_shot", "one_shot: one release of all entries holds every product with them"
    return "alternating", "alternating: there is no noise, or there are too many entries"


def _check_whole(shape):
    if not is_small(shape):
        raise ValueError(
            f"algorithm='one_shot' would release {shape[0]} x {shape[1]} numbers; use "
            "'alternating' or 'auto'. Got 'one_shot'."
        )


def pure_units(estimator):
    """Whether the settings have a route without delta."""
    unit, name = estimator.privacy_unit, estimator.algorithm
    flips = name in ("auto", "one_shot")
    if unit == "interaction":
        return flips
    if unit not in UNIT_SOLVERS:
        return False
    flips = flips and unit in ("entry", "edge") and estimator.entry_bounds[0] == 0
    moments = name in ("gram", "arpack", "screened")  # of matrices: no near bound on an l1 norm
    one = estimator.n_components == 1 and not moments
    return flips or one or name in ("auto", "deflation", "one_shot")


def budget_kinds(estimator):
    """Return the kinds of budgets that fits may have where delta is not 0, by their shape."""
    unit, both = estimator.privacy_unit, ("pure", "gaussian")
    if unit not in UNIT_SOLVERS or unit == "frobenius" or not pure_units(estimator):
        return ("gaussian",)
    return {"one_shot": ("pure",), "auto": both}.get(estimator.algorithm, ("gaussian",))


# -- entries and edges -------------------------------------------------------------------------


def fit_entries(estimator, session, X, route):
    """Release products with the matrix, its flipped cells, or all of it."""
    unit, k, (m, n) = entry_unit(estimator), estimator.n_components, X.shape
    ask = session.ask((EntryQuery if unit.bounded else NormQuery)(X, unit))
    if route in ("gram", "screened"):
        U, values, V = moment_triplets(estimator, session, X, unit, route, ask)
    elif route == "one_shot" and not unit.bounded:
        share = 1.0 if session.budget.pure else 0.99
        U, values, V = whole_triplets(ask, X.shape, k, share)
    elif route == "one_shot":
        (U, values, V), ask = _pure_triplets(session, ask, unit, X.shape, k)
    else:
        U, values, V = _iterated_triplets(estimator, session, ask, unit, X.shape, route)
    warn_below_noise(estimator, values, _edge_of_products(session, unit, n))
    components = components_of(V)
    signs = np.sign(np.sum(components.T * V, axis=0))
    means, noise, total = _means(session, ask, unit, m, n, values, route)
    attributes = svd_variances(values**2, components, means, total / m, m, noise)
    return attributes | {"left_": U * signs, "n_samples_seen_": m}


def _pure_triplets(session, ask, unit, shape, k):
    """Return ((U, singular values, V), what answers products) of one pure release of all entries.

    Its cells, flipped; or all entries with Laplace noise, where that is less than what rounding
    cells to 0 or `high` adds, by a released number.
    """
    budget, graph, share, coins = session.budget, unit.name == "edge", 1.0, 0.0
    graded = not graph and is_small(shape)
    if graded and not budget.exact:
        share = 1.0 - _SPREAD
        graded = graded_may_pay(share * budget.pure_epsilon)
        share = share if graded else 1.0
    if graded and not budget.exact:
        coins = max(float(ask.spread(share=_SPREAD).value), 0.0)
        spread = coins / (math.prod(shape) * unit.high**2)
        graded = graded_pays(share * budget.pure_epsilon, spread)
    if graded:
        answer = ask.whole(share=share)
        found = read_triplets(answer.value, answer.noise_scale, k)
        return found, WholeMatrix(answer.value, answer.noise_scale)
    cells = ask.cells(session.random_number(), share=share)
    Y = graph_of_pairs(cells.value, shape[1]) if graph else cells.value
    flipped = FlippedMatrix(Y, cells.noise_scale, high=unit.high, loops=not graph, coins=coins)
    return _flipped_triplets(flipped, k, graph), flipped


def _flipped_triplets(ask, k, graph):
    if not graph:
        return singular_triplets(ask, k)
    values, V = symmetric_pairs(ask, ask.shape[0], k)
    return V * np.where(values < 0, -1.0, 1.0), np.abs(values), V


def _iterated_triplets(estimator, session, ask, unit, shape, route):
    """Half steps A V and A'U, one component after the other, or steps on a symmetric A."""
    (m, n), k = shape, estimator.n_components
    bounded = session.budget.exact or unit.bounded
    rest = 1.0 if session.budget.pure else 0.98 if bounded else 0.99
    options = {"law": session.law, "n_iter": estimator.n_iter}
    one_by_one = route == "deflation"
    more = "auto" if one_by_one else estimator.n_oversamples
    options["first"], late = late_columns(
        session.law, k, more, max(shape), min(shape), symmetric=unit.symmetric
    )
    ones, late = unit.low >= 0 and not one_by_one, options["first"] - k + late
    start = session.random_start(n, k, late=late, ones_first=ones)
    if one_by_one:
        return deflate(ask, m, start, k, rest, law=session.law, n_iter=estimator.n_iter)
    if not unit.symmetric:
        return alternate(ask, start, k, rest, **options)
    values, V = iterate_symmetric(ask, start, k, rest, **options)
    return V * np.sign(values), np.abs(values), V


def _edge_of_products(session, unit, n):
    """Return how large a Ritz value along directions of noise may be; 0 where they are cut to 0.

    Released anew, it is a part of the smallest that steps on a symmetric matrix find.
    """
    products = [line for line in session.ledger if line.name == "right_product"]
    if not unit.symmetric or not products:
        return 0.0
    return _OF_NOISE * IteratedSide.of(products, n, laplace=session.law == "laplace").threshold


def _means(session, ask, unit, m, n, values, route):
    """Return the column means, which are one more product, their noise, and the total."""
    exact, pure = session.budget.exact, session.budget.pure
    if route == "one_shot" and unit.bounded:
        answer = ask.left(np.full((m, 1), 1 / m), share=0.0)
        return answer.value[:, 0], answer.noise_scale, ask.square_sum()
    if pure:
        return np.zeros(n), 0.0, float(np.sum(values**2))
    answer = ask.left(np.full((m, 1), 1 / m), share=0.01)
    total = float(np.sum(values**2))
    if exact or unit.bounded:
        total = float(ask.square_sum(share=0.01).value)
    return answer.value[:, 0], answer.noise_scale, total
