"""The released model of all users that a personalised regression starts from."""

from typing import Any, NamedTuple

import numpy as np

from skdp._validation import check_range, spread_range
from skdp.exceptions import PrivacyWarning, warn_caller
from skdp.solvers.columns import columns_about_zero, find_columns
from skdp.solvers.global_models import GlobalModel
from skdp.solvers.user_base import (
    TargetUnit,
    column_units,
    find_target_unit,
    level_model,
    pooled_model,
)
from skdp.solvers.user_reach import elect_bounds, far_center

_SHARES = {"targets": 0.08, "columns": 0.1, "global": 0.1, "reach": 0.02}
_SCALES = 4.0  # half the width of public bounds, in scales of the targets


class Base(NamedTuple):
    """The model, and what was seen of the targets and columns on the way to it."""

    model: GlobalModel
    unit: TargetUnit
    columns: Any
    sight: Any


def base_shares(estimator):
    """Return the shares of the model of all.

    It has coefficients where other matrices of order n_features are released too; elsewhere it is
    the mean of the targets.
    """
    shares = _SHARES if _sees_columns(estimator) else {"targets": _SHARES["targets"]}
    given = not isinstance(estimator.target_bounds, str)
    return {name: share for name, share in shares.items() if not (given and name == "targets")}


def sight_shares(estimator):
    """Return the shares of where columns lie and how far they count, without a model of all."""
    names = ("columns", "reach") if _sees_columns(estimator) else ()
    return {name: _SHARES[name] for name in names}


def _sees_columns(estimator):
    square = estimator.whiten is True or estimator.init in ("votes", "pairs")
    return square and estimator.delta > 0


class Sight(NamedTuple):
    """Units of columns, how far their entries count, and where they are seen from."""

    units: np.ndarray
    bounds: Any = None
    center: Any = None


def learn_sight(estimator, ask, query, shares):
    """Release where columns lie, and how far their entries count."""
    if "columns" not in shares:
        return Sight(np.ones(query.n_features))
    columns = _columns(estimator, ask, query, shares["columns"])
    return _sight(estimator, ask, columns, None, shares["reach"])


def _sight(estimator, ask, columns, model, share):
    bounds = elect_bounds(
        ask, columns, model, share,
        intercept=estimator.fit_intercept, loss=estimator._loss_of_reach(),
    )  # fmt: skip
    spread = np.where(columns.found, columns.spread, np.inf)
    return Sight(column_units(columns), bounds, far_center(columns.center, spread))


def learn_base(estimator, ask, query, shares):
    """Release where targets lie and, where the mechanism allows it, the linear model of all."""
    d, p = query.n_features, query.n_outputs
    unit = _target_unit(estimator, ask, p, shares)
    if "columns" not in shares:
        return Base(level_model(unit, d), unit, None, Sight(np.ones(d)))
    columns = _columns(estimator, ask, query, shares["columns"])
    model = pooled_model(ask, columns, unit, shares["global"], intercept=estimator.fit_intercept)
    return Base(model, unit, columns, _sight(estimator, ask, columns, model, shares["reach"]))


def _target_unit(estimator, ask, p, shares):
    bounds = spread_range(
        estimator, "target_bounds", check_range(estimator, "target_bounds"), p, "targets"
    )
    if bounds is None:
        return find_target_unit(ask, shares["targets"], centered=estimator.fit_intercept)
    low, high = bounds
    center = low + (high - low) / 2 if estimator.fit_intercept else np.zeros(p)
    reach = float(np.max(np.maximum(high - center, center - low)))
    return TargetUnit(center, reach / _SCALES, True, 0)


def _columns(estimator, ask, query, share):
    d = query.n_features
    n = float(query.n_rows) if estimator.adjacency == "replace" else None
    if estimator.fit_intercept:
        return find_columns(ask.columns(), d, share, n)
    return columns_about_zero(ask.columns(), d, share)


def warn_unseen(estimator, base):
    """Say what the model of all could not see, from released numbers."""
    name, needed = type(estimator).__name__, base.unit.needed
    if not base.unit.found:
        warn_caller(
            f"{name} could not see where targets lie: the released model may be worse than their "
            f"mean. At this budget it takes about {needed} users with targets other than 0: use "
            "more users, a larger 'epsilon', or public 'target_bounds'.",
            PrivacyWarning,
        )
    elif base.unit.far:
        warn_caller(
            f"{name} saw that targets lie far from 0, and not how far they spread about there: the "
            "released model and heads may be worse than the mean of the targets. Subtract a public "
            "number from them, or give public 'target_bounds'.",
            PrivacyWarning,
        )
    elif base.columns is not None and not base.columns.found.any():
        warn_caller(
            f"{name} could not see the scale of any column: the released model is the mean of the "
            f"targets. At this budget it takes about {base.columns.needed} users: use more, or a "
            "larger 'epsilon'.",
            PrivacyWarning,
        )
