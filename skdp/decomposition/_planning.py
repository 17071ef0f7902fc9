"""Plans of the decompositions: the releases of a fit and what they bring, from shapes alone.

Bounds come from the queries of the fit over no rows, shares from its own split; noise scales are
granted by a session that nobody is charged for, and nothing is ever opened.
"""

import math
from numbers import Integral

import numpy as np
import scipy.sparse as sp

from skdp._validation import check_split
from skdp.decomposition._spectral import row_noise, row_route, step_shares
from skdp.queries.entries import EntryQuery, EntryUnit
from skdp.queries.interactions import InteractionQuery
from skdp.queries.rows import RowQuery
from skdp.solvers.scales import QUESTIONS
from skdp.theory import (
    FitPlan,
    gram_loss,
    iteration_error,
    iteration_threshold,
    moment_edge,
    planned,
    power_loss,
)

_LOST = "share of the best captured squared length that is lost"
_TURNED = "squared sine between released and exact subspace"
_SEARCH, _SEARCH_STEPS = 0.03, 7  # for a clip level: share of a release, and steps


class PlansMixin:
    """The method `plan` of the decompositions."""

    def plan(self, n_samples, n_features, *, signal=None, sparse=False):
        """Say what a fit would release, and what error to expect; no data is touched.

        Costs nothing: it is computed from the parameters and the shape alone. Pass a guess for a
        number of samples that is private.

        Parameters
        ----------
        n_samples, n_features : int
            Shape of the data.
        signal : float or None, default=None
            What is assumed of the data. Row and interaction units: the share of the squared length
            that the components hold, None is 0.5 (more if they are many). Other units: the
            smallest singular value that shall be found; None gives the threshold alone.
        sparse : bool, default=False
            Whether X would be sparse, which decides the route of wide data.

        Returns
        -------
        plan : FitPlan
            ``print(plan)`` shows it; ``plan.error`` and ``plan.releases`` are numbers.
        """
        check_shape(type(self).__name__, n_samples, n_features)
        self._check_parameters()
        session = self._checked_session()
        unit = getattr(self, "privacy_unit", "row")
        if unit == "row":
            return plan_rows(self, session, n_samples, n_features, signal, sparse)
        if unit == "interaction":
            return plan_interactions(self, session, n_samples, n_features, signal)
        return plan_entries(self, session, n_samples, n_features, signal)


def check_shape(name, n_samples, n_features):
    """Refuse a shape that is none."""
    for size in (n_samples, n_features):
        if not isinstance(size, Integral) or isinstance(size, bool) or size < 1:
            raise ValueError(
                f"{name}.plan needs a positive number of samples and of features. "
                f"Got {(n_samples, n_features)!r} instead."
            )


def check_share(signal, k, d):
    """Return the assumed share of the squared length: more than k directions have by chance."""
    if signal is None:
        return 0.5 if 4 * k < d else (1 + k / d) / 2
    if not min(k / d, 0.999) < signal <= 1:
        raise ValueError(
            f"'signal' must be a share in the range ({k}/{d}, 1]: with less, {k} components "
            f"hold no more than chance. Got {signal!r} instead."
        )
    return float(signal)


def samples_needed(error, worst):
    """Smallest number of samples (to 2%) at which the error is below half of the worst."""
    n = 1.0
    while error(n) > worst / 2:
        n *= 1.02
        if n > 1e15:
            return 0
    return math.ceil(n)


def guarantee_of(session):
    """The promise in a few words."""
    budget = session.budget
    return (
        f"epsilon={budget.epsilon:g}, delta={budget.delta:g}, unit {session.unit}, "
        f"{session.adjacency}"
    )


# -- rows --------------------------------------------------------------------------------------


def plan_rows(estimator, session, n, d, signal, sparse):
    """Plan a fit whose unit is a row."""
    solver = getattr(estimator, "svd_solver", None) or estimator.algorithm
    is_pca = hasattr(estimator, "svd_solver")
    spectrum = is_pca and estimator._wants_spectrum(d)
    k = estimator.n_components
    k = max(1, d // 10) if not isinstance(k, Integral) else min(max(int(k), 1), d)
    captured = check_share(signal, k, d)
    route = "spectrum" if spectrum else row_route(solver, d, k, sparse)
    shares = estimator._default_shares(d, sparse) if is_pca else estimator._default_shares(route)
    shares = check_split(estimator, shares)
    auto = estimator.clip_norm == "auto"
    clip = 1.0 if auto or math.isinf(estimator.clip_norm) else float(estimator.clip_norm)
    query = RowQuery(np.zeros((0, d)), clip_norm=clip, adjacency=session.adjacency)
    releases = row_releases(session, query, route, shares, d, k, clip, estimator)
    noise = row_noise(session, session.adjacency, n, 1.0)
    share = shares.get("subspace", shares.get("gram", shares.get("moment")))
    steps = step_shares(_steps_of(estimator), share)

    def loss(rows):
        if route == "power":
            options = {"rect": noise.rect, "shares": steps, "extra": _extra(estimator, k)}
            return power_loss(rows, d, k, captured, **options)
        options = {"psd": noise.psd, "rect": noise.rect, "share": share}
        return gram_loss(rows, d, k, captured, **options, refined=route == "gram")

    exact = session.budget.exact
    known = route != "screened"
    worst = loss(1e-9) if known and not exact else 0.0
    assumed = [f"{k} components hold {captured:g} of the squared length, in equal parts"]
    assumed.append("rows are about as long as the clip norm")
    if route == "screened":
        assumed.append("the error of the screened route depends on how columns are spread")
    return FitPlan(
        estimator=type(estimator).__name__,
        n_samples=n,
        n_features=d,
        guarantee=guarantee_of(session),
        mu=session.budget.mu,
        unit="clip_norm" if auto else "1",
        error=0.0 if exact else loss(n) if known else math.nan,
        meaning=_LOST,
        found=0.0 if exact else min(1.0, moment_edge(noise.psd, d, share) / n),
        signal="share of the squared length that one direction must hold",
        assumptions=tuple(assumed),
        releases=releases,
        needed=samples_needed(loss, worst) if worst else 0,
    )


def _steps_of(estimator):
    return getattr(estimator, "iterated_power", None) or getattr(estimator, "n_iter", "auto")


def _extra(estimator, k):
    """Extra columns of the power route, as the fit takes them."""
    if hasattr(estimator, "svd_solver") or estimator.n_oversamples == "auto":
        return min(k, 10)
    return estimator.n_oversamples


def row_releases(session, query, route, shares, d, k, clip, estimator):
    """List the releases of a row-unit fit."""
    basis = np.eye(d, k)

    def tangent(scale):
        largest = clip**2 / (2 * math.sqrt(1 - scale**-2))
        return query.tangent(basis, scale).product(largest).bound

    out = []

    def add(bound, share, times=1, name=""):
        out.append(planned(session, bound, share, times=times, name=name))

    def search(share):
        add(query.norms_above(1.0).bound, share, _SEARCH_STEPS, "clip level search")
        return share

    def gram(share, of=query):
        add(of.gram().bound, share - search(min(_SEARCH, 0.1 * share)))

    def tangent_rounds(number):
        each = 0.2 * shares["subspace"]
        add(tangent(math.inf), each - search(_SEARCH * each), name="tangent round 1")
        add(tangent(math.inf), (number - 1) * each, number - 1, "tangent round")

    if "clip_norm" in shares:
        add(query.kept_below(1.0).bound, shares["clip_norm"], QUESTIONS, "clip norm search")
    if "count" in shares:
        add(query.count().bound, shares["count"])
    if "mean" in shares:
        add(query.sums().bound, shares["mean"], name="mean")
    if "spread" in shares:
        add(query.kept_below(1.0).bound, shares["spread"], QUESTIONS, "search about the mean")
    if "moment" in shares:
        add(query.moment(0.5 * clip).bound, shares["moment"])
    if "gram" in shares:
        gram(shares["gram"])
    if "subspace" in shares:
        share = shares["subspace"]
        if route == "power":
            steps = step_shares(_steps_of(estimator), share)
            for number, each in enumerate(steps, 1):
                add(tangent(3.0), each - search(_SEARCH * each), name=f"power step {number}")
        elif route == "screened":
            add(query.sums().bound, 0.1 * share, name="screening")
            block = RowQuery(np.zeros((0, min(d, 1500))), clip_norm=clip, adjacency=query.adjacency)
            gram(0.3 * share, block)
            tangent_rounds(3)
        else:
            gram(0.6 * share)
            tangent_rounds(2)
    if "ritz" in shares:
        add(query.projected_gram(basis).bound, shares["ritz"])
    if "trace" in shares:
        add(query.square_sum().bound, shares["trace"])
    if "sums" in shares:
        add(query.sums().bound, shares["sums"])
    return tuple(out)


# -- interactions, entries, edges --------------------------------------------------------------


def spread(n, k):
    """Orthonormal columns with equal row norms: where shortened iterates are on average."""
    basis = np.zeros((n, k))
    basis[np.arange(n), np.arange(n) % k] = 1.0
    return basis / np.sqrt(basis.sum(axis=0))


def plan_interactions(estimator, session, m, n, signal):
    """Plan a fit whose unit is an interaction: power steps on the Gram matrix of unit rows."""
    k, floor = min(estimator.n_components, n), estimator.degree_floor
    captured = check_share(signal, k, n)
    query = InteractionQuery(sp.csr_array((m, n)), degree_floor=floor, adjacency=session.adjacency)
    steps = estimator.n_iter
    steps = (10 if estimator.epsilon >= 3 else 6) if steps == "auto" else steps
    X = spread(n, k)
    product = planned(session, query.right(X).bound, 0.931, times=steps)
    releases = (
        product,
        planned(session, query.ritz(X).bound, 0.019),
        planned(session, query.square_sum().bound, 0.01),
        planned(session, query.sums().bound, 0.04),
    )
    value = captured * m / k

    def error(users):
        return iteration_error(product.noise_scale, steps, n, captured * users / k)

    return FitPlan(
        estimator=type(estimator).__name__,
        n_samples=m,
        n_features=n,
        guarantee=guarantee_of(session),
        mu=session.budget.mu,
        unit="1",
        error=iteration_error(product.noise_scale, steps, n, value),
        meaning=_TURNED,
        found=min(1.0, iteration_threshold(product.noise_scale, n) / m),
        signal="share of the squared length that one direction must hold",
        assumptions=(
            f"{k} components hold {captured:g} of the squared length, in equal parts",
            f"users have at least {floor} items; components are spread over the items",
        ),
        releases=releases,
        needed=0 if session.budget.exact else samples_needed(error, 1.0),
    )


def plan_entries(estimator, session, m, n, signal):
    """Plan a fit whose unit is an entry, an edge, or a change of bounded norm."""
    k, low, high = min(estimator.n_components, m, n), *map(float, estimator.entry_bounds)
    unit = EntryUnit(
        estimator.privacy_unit, session.adjacency, low, high, float(estimator.sensitivity)
    )
    query = EntryQuery(sp.csr_array((m, n)), unit)
    pure = session.budget.pure
    edge = unit.name == "edge"
    bounded = session.budget.exact or unit.name in ("entry", "edge")
    rest = 1.0 if pure else 0.98 if bounded else 0.99
    core = 0.1 if pure else 0.02
    steps = estimator.n_iter
    if steps == "auto":
        steps = (8 if edge else 2) if pure else (16 if edge else 6)
    answers = steps if edge else 2 * steps
    share = (1 - core) * rest
    right = planned(session, query.right(spread(n, k)).bound, share, times=answers)
    X, U = spread(n, k), spread(m, k)
    small = query.ritz(X) if edge else query.core(U, X)
    releases = [right, planned(session, small.bound, core * rest)]
    if not pure:
        releases.append(planned(session, query.left(np.full((m, 1), 1 / m)).bound, 0.01))
        if bounded:
            releases.append(planned(session, query.square_sum().bound, 0.01))
    return entry_plan(
        estimator, session, (m, n), right.noise_scale, steps, m, signal, tuple(releases)
    )


def entry_plan(estimator, session, shape, noise_scale, steps, size, signal, releases):
    """Put the plan of an iteration together; used for graphs too."""
    value = None if signal is None else float(signal)
    assumed = "components are spread over rows and columns (low coherence)"
    known = value is not None and not session.budget.pure
    return FitPlan(
        estimator=type(estimator).__name__,
        n_samples=shape[0],
        n_features=shape[1],
        guarantee=guarantee_of(session),
        mu=session.budget.mu,
        unit="1",
        error=iteration_error(noise_scale, steps, size, value) if known else math.nan,
        meaning=_TURNED,
        found=iteration_threshold(noise_scale, size),
        signal="singular value",
        assumptions=(assumed,) + ((f"singular values of {value:g}",) if value else ()),
        releases=releases,
    )
