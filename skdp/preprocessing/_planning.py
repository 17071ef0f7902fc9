"""Plan of the scaler, from shapes and parameters alone."""

import math
from numbers import Integral

import numpy as np

from skdp.queries.columns import SQUARE_WEIGHT, ColumnQuery
from skdp.solvers.scales import QUESTIONS
from skdp.theory import FitPlan, deviation_error, planned

__all__ = ["plan_scaler"]

_MANY = 1e12  # rows: so many that the error falls as one over them


def plan_scaler(estimator, session, n, d, shares, weight, signal):
    """Plan octave counts and sums of columns; `weight` is that of the count beside the sums."""
    for size in (n, d):
        if not isinstance(size, Integral) or isinstance(size, bool) or size < 1:
            raise ValueError(
                f"{type(estimator).__name__}.plan needs a positive number of samples and of "
                f"features. Got {(n, d)!r} instead."
            )
    if not 0 < signal <= 1:
        raise ValueError(f"'signal' must be in the range (0, 1]. Got {signal!r} instead.")
    query = ColumnQuery(np.zeros((0, d)), adjacency=session.adjacency)
    ranks = query.octaves(np.zeros(d)).ranks(np.ones(d)).bound
    sums = query.moments(np.zeros(d), np.ones(d), weight).bound
    searches = {"scales": "search of scales", "spreads": "search of scales about a mean"}
    names = searches | {"means": "first moments"}
    releases = tuple(
        planned(
            session,
            ranks if name in searches else sums,
            share,
            times=QUESTIONS if name in searches else 1,
            name=names.get(name, ""),
        )
        for name, share in shares.items()
    )
    noise = releases[-1].noise_scale
    replaced = session.adjacency == "replace"
    options = {"noise": noise / SQUARE_WEIGHT, "count_noise": 0.0 if replaced else noise / weight}
    spread = math.hypot(options["noise"], options["count_noise"] / 2)  # on a sum of squares

    def error(rows):
        return deviation_error(rows, deviation=float(signal), **options)

    budget = session.budget
    exact = budget.exact
    return FitPlan(
        estimator=type(estimator).__name__,
        n_samples=n,
        n_features=d,
        guarantee=f"epsilon={budget.epsilon:g}, delta={budget.delta:g}, unit {session.unit}, "
        f"{session.adjacency}",
        mu=budget.mu,
        unit="1",
        error=0.0 if exact else error(n),
        meaning="mean relative error of a standard deviation",
        found=0.0 if exact else min(1.0, math.sqrt(spread / n)),
        signal="standard deviation, in units of the half-width of the bounds",
        assumptions=(
            f"columns with a standard deviation of {signal:g} times the half-width of their bounds",
            "means in the middle of the bounds; all records are finite",
        ),
        releases=releases,
        needed=0 if exact else math.ceil(2 * _MANY * error(_MANY)),
    )
