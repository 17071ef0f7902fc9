"""Plans of the regressions, from shapes and parameters alone.

Bounds come from the queries of the fits over no records and no users; clip levels are learnt by the
fits, so the noise of clipped sums is in units of the clip level.
"""

import math
from numbers import Integral

import numpy as np

from skdp._validation import check_split
from skdp.data.users import UserRows
from skdp.queries.groups import GroupQuery
from skdp.queries.records import RecordQuery
from skdp.solvers.trace import Plan, clip_multiplier, median_steps
from skdp.solvers.user_rounds import round_parts
from skdp.theory import FitPlan, expected_error, planned, records_needed, vote_error, vote_threshold

__all__ = ["facts_of", "first_below", "plan_trace", "plan_users", "shape_of"]


def shape_of(given, parameter):
    """Return (d1, d2) from what was given, or from the parameter `matrix_shape`."""
    if isinstance(given, Integral) and parameter is not None:
        if given != math.prod(parameter):
            raise ValueError(
                f"n_features={given} does not fit matrix_shape={parameter!r}; leave it out."
            )
        given = None
    shape = parameter if given is None else given
    if shape is None:
        raise ValueError("plan needs the shape of the matrix: set 'matrix_shape'. Got None.")
    return (int(shape), 1) if isinstance(shape, Integral) else tuple(map(int, shape))


def facts_of(estimator, session, n, d):
    budget = session.budget
    return {
        "estimator": type(estimator).__name__,
        "n_samples": n,
        "n_features": d,
        "guarantee": f"epsilon={budget.epsilon:g}, delta={budget.delta:g}, unit {session.unit}, "
        f"{session.adjacency}",
        "mu": budget.mu,
    }


# -- records -----------------------------------------------------------------------------------


def plan_trace(estimator, session, n, shape, signal):
    """Plan a trace regression: noise of y has standard deviation 1, <X, M> has `signal`."""
    shares = check_split(estimator, estimator._default_shares())
    rank = min(estimator.rank, *shape)
    max_iter = 0 if estimator.solver == "spectral_init" else estimator.max_iter
    steps = median_steps(
        max_iter, covariance=estimator._learns_design(), intercept=estimator.fit_intercept
    )
    size = math.prod(shape)
    query = RecordQuery(
        np.zeros((0, size)), np.zeros(0), shape, adjacency=session.adjacency,
        privacy_unit=session.unit,
    )  # fmt: skip
    basis = np.eye(shape[0], rank), np.eye(rank), np.eye(shape[1], rank)
    products, tangent = query.products(), query.tangent(*basis)
    releases = []
    if "count" in shares:
        releases.append(planned(session, query.count().bound, shares["count"]))
    if "covariance" in shares:
        releases.append(planned(session, query.moments(1.0).bound, shares["covariance"]))
    bound = products.scores_below(1.0).bound
    name = "median searches"
    releases.append(planned(session, bound, shares["medians"], times=steps, name=name))
    releases.append(planned(session, products.total(1.0).bound, shares["init"], name="start"))
    if max_iter:
        bound = tangent.total(1.0).bound
        releases.append(
            planned(session, bound, shares["gradients"], times=max_iter, name="gradient step")
        )
    mu = session.budget.mu
    options = {
        "shape": shape, "rank": rank, "lam": 1.0, "unit_noise": query.neighbours.units / mu,
        "init": shares["init"], "gradients": shares.get("gradients", 0.0),
        "rank_share": shares["medians"] / steps, "max_iter": max_iter,
        "clip_level": None if estimator.clip_level == "auto" else float(estimator.clip_level),
        "tail_average": estimator.tail_average, "shrink": estimator.shrink,
    }  # fmt: skip
    needed = records_needed(
        shape, rank, epsilon=estimator.epsilon, delta=estimator.delta, adjacency=session.adjacency
    ) if math.isfinite(mu) else None  # fmt: skip

    def error(records):
        if needed is not None and records < needed.readable:
            return 1.0
        return expected_error(Plan(n=records, **options), noise_sd=1.0, signal_sd=float(signal))

    plan = Plan(n=n, **options)
    level = clip_multiplier(plan, plan.tangent_size, plan.gradients or plan.init)
    return FitPlan(
        **facts_of(estimator, session, n, size),
        unit="1; sums: the clip level",
        error=error(n),
        meaning="relative error of the matrix, 1 is the zero matrix",
        found=float(needed.readable) if needed else 0.0,
        signal="records from which medians can be read",
        assumptions=(
            f"<X_i, M> has {signal:g} times the standard deviation of the noise of y",
            f"entries of X have equal variances; clip levels near {level:g} medians",
        ),
        releases=tuple(releases),
        needed=first_below(error, 0.5),
    )


def first_below(error, goal):
    """Smallest number (to 2%) from which the error is below the goal; 0 if there is none."""
    n = 10.0
    while error(n) > goal:
        n *= 1.02
        if n > 1e12:
            return 0
    return math.ceil(n)


# -- users -------------------------------------------------------------------------------------


def round_bound(query, local, estimator, d, k):
    """Return the bound of the message of a round."""
    clip = float(estimator.clip_level)
    if estimator.refine == "residual":
        return query.sums("round", local, round_parts(d, k, clip)).bound
    if estimator.refine == "cross":
        return query.sums("cross_round", local, (((d, k), 1.0, False),)).bound
    return query.grams("gram_round", local, d * k + 1).bound


def plan_users(estimator, session, n_users, d, alignment, shares):
    """Plan a personalised fit; the error is that of the start, which rounds improve."""
    k = 1 if estimator.n_components == "auto" else min(estimator.n_components, d)
    outputs = 1  # for more than two classes messages are wider, their norms are the same
    rows = UserRows(np.zeros((0, d)), np.zeros((0, outputs)), np.zeros(0, np.intp), True)
    query = GroupQuery(rows, adjacency=session.adjacency)

    def local(batch):
        return batch.X  # never called

    def sums(name, *parts):
        return query.sums(name, local, parts).bound

    level = 1.0 if estimator.coef_bound == "auto" else float(estimator.coef_bound)
    bounds = {
        "whitener": lambda: (
            query.grams("second_moment", local, d).bound
            if estimator.whiten is True
            else sums("variances", ((d,), 1.0, True))
        ),
        "init": lambda: query.grams(estimator.init, local, d, estimator.init == "pairs").bound,
        "rounds": lambda: round_bound(query, local, estimator, d, k),
        "head": lambda: sums("head_votes", ((16,), 1.0, False)),
        "global": lambda: sums("mean_head", ((d + 1,), level, False)),
        "count": lambda: query.count().bound,
    }
    releases, votes = [], None
    for name, share in shares.items():
        if name == "init" and estimator.init == "exponential":
            continue  # a choice: it adds no noise
        times = max(estimator.n_rounds, 1) if name == "rounds" else 1
        releases.append(planned(session, bounds[name](), share, times=times))
        votes = releases[-1] if name == "init" else votes
    known = votes is not None and estimator.init == "votes" and math.isfinite(session.budget.mu)
    scale = votes.noise_scale if votes else math.nan
    options = {"noise_scale": scale, "alignment": alignment}

    def error(users):
        return vote_error(users, d, k, **options)

    threshold = vote_threshold(d, k, **options) if known else 0.0
    return FitPlan(
        **facts_of(estimator, session, n_users, d),
        unit="1",
        error=error(n_users) if known else math.nan,
        meaning="squared sine between released and true subspace after the start",
        found=threshold,
        signal="users from which the subspace stands out",
        assumptions=(
            f"{alignment:g} of the square of a user's own direction lies in the subspace",
            f"{k} components of equal weight; rounds improve on the start",
        ),
        releases=tuple(releases),
        needed=first_below(error, 0.5 * (1 - k / d)) if known and k < d else 0,
    )
