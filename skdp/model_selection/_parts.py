"""The private parts of an estimator: which estimators inside it spend a budget, and on whom."""

import math
from functools import cache

from sklearn.base import clone
from sklearn.pipeline import Pipeline

from skdp.base import BaseDPEstimator
from skdp.exceptions import PrivacyError
from skdp.privacy.accounting import losses as accounting
from skdp.privacy.gate.budget import PrivacyBudget
from skdp.privacy.ledger.fits import LedgerFit, planned, unit_name

__all__ = [
    "check_fitted_once",
    "check_fitted_whole",
    "check_only_private",
    "dp_parts",
    "planned_fit",
]


def dp_parts(estimator):
    """Return the private estimators in an estimator, itself included, in order; not inside them."""
    if isinstance(estimator, BaseDPEstimator):
        return [estimator]
    if not hasattr(estimator, "get_params"):
        return []
    params = estimator.get_params(deep=True)
    found, inside = [], []
    for name in sorted(params):
        if any(name.startswith(prefix) for prefix in inside):
            continue
        if isinstance(params[name], BaseDPEstimator):
            found.append(params[name])
            inside.append(name + "__")
    return found


# Compositions of scikit-learn that fit each of their parts once, on all rows, one row for one row.
# Not here: VotingClassifier and OneVsRestClassifier, where the labels of all rows say what a clone
# is fitted on (one new label codes all others anew, or makes one more clone); whatever has folds.
_ONCE = (
    "Pipeline", "FeatureUnion", "ColumnTransformer", "TransformedTargetRegressor",
    "VotingRegressor", "SelectFromModel", "FrozenEstimator",
)  # fmt: skip
# The same, once for each target.
_FOR_EACH_TARGET = ("MultiOutputRegressor", "MultiOutputClassifier")


def check_fitted_once(estimator, allowed=_ONCE):
    """Refuse a composition that fits a private part more than once, or nobody knows how often."""
    if isinstance(estimator, BaseDPEstimator) or not dp_parts(estimator):
        return
    cls = type(estimator)
    if cls.__name__ not in allowed or not cls.__module__.startswith("sklearn."):
        raise PrivacyError(
            f"how often {cls.__name__} fits a private estimator inside it, and on which rows, is "
            "not known: its cost cannot be counted. Use the private estimator itself, or "
            "DPGridSearchCV to choose between settings."
        )
    for part in estimator.get_params(deep=False).values():
        for each in _estimators_in(part):
            check_fitted_once(each, allowed)


def check_fitted_whole(estimator):
    """Refuse a composition unless each clone of a private part gets all rows, as they are."""
    check_fitted_once(estimator, (*_ONCE, *_FOR_EACH_TARGET))


def _estimators_in(value):
    """Yield the estimators in a parameter, which may be a list of (name, estimator, ...)."""
    if isinstance(value, list | tuple):
        for each in value:
            yield from _estimators_in(each)
    elif hasattr(value, "get_params") and not isinstance(value, type):
        yield value


def planned_fit(part, with_groups=False):
    """Return the public ledger line of one fit of a private estimator, before it happens."""
    if hasattr(part, "planned_losses"):  # a private search
        losses = part.planned_losses()
    else:
        pure = part._pure_epsilon() if hasattr(part, "_pure_epsilon") else 0.0
        losses = planned(PrivacyBudget(part.epsilon, part.delta, pure))
    unit = getattr(part, "privacy_unit", "row")
    if with_groups and hasattr(part, "user_column"):
        unit = "group"
    adjacency = "replace" if unit == "label" else part.adjacency
    unit = unit_name(unit, getattr(part, "sensitivity", None))
    seeded = part.random_state is not None
    return LedgerFit(type(part).__name__, unit, adjacency, losses, seeded)


def check_only_private(estimator):
    """Refuse an estimator with a part that would be fitted on private rows without a guarantee."""
    if isinstance(estimator, BaseDPEstimator):
        return
    if not isinstance(estimator, Pipeline):
        raise PrivacyError(
            f"{type(estimator).__name__} is neither a private estimator nor a Pipeline that ends "
            "in one. Give the private estimator itself."
        )
    if not dp_parts(estimator):
        raise PrivacyError("a candidate is a Pipeline without a private step.")
    if estimator.memory is not None:
        raise PrivacyError("a Pipeline with a 'memory' would use one release twice; use None.")
    for name, step in estimator.steps:
        if step in (None, "passthrough") or isinstance(step, BaseDPEstimator):
            continue
        if step.__sklearn_tags__().requires_fit:
            raise PrivacyError(
                f"step {name!r}, {type(step).__name__}, is fitted on private rows and has no "
                "guarantee of its own. Use steps that fit nothing, or private ones."
            )


def weights_of(parts):
    """Return shares of a run for its parts, as the budgets that they were given compare."""
    spent = [planned_fit(part).losses for part in parts]
    sizes = [
        math.fsum(value**2 if kind == "gaussian" else value for kind, value in losses)
        for losses in spent
    ]
    if len(parts) == 1 or not all(0 < size < math.inf for size in sizes):
        return [1 / len(parts)] * len(parts)
    return [size / math.fsum(sizes) for size in sizes]


@cache
def budget_for(kind, value, delta):
    """Return (epsilon, delta) of a fit that spends at most a given mu, or a given epsilon.

    The noise of a Gaussian fit depends on mu alone: which (epsilon, delta) says it does not matter.
    """
    if kind == "pure" or value == math.inf:
        return value, delta
    while True:
        epsilon = accounting.epsilon_from_mu_delta(value, delta)
        if epsilon > 1e-6:
            break
        delta /= 16
    while PrivacyBudget(epsilon, delta).mu > value:
        epsilon *= 1 - 1e-12
    return epsilon, delta


def set_budget(parts, kind, value, delta):
    """Give the parts of a run what it may spend on fits, in proportion to their own budgets."""
    for part, weight in zip(parts, weights_of(parts), strict=True):
        size = value * (math.sqrt(weight) if kind == "gaussian" else weight) * (1 - 1e-9)
        epsilon, own_delta = budget_for(kind, size, delta)
        part.set_params(epsilon=epsilon, delta=own_delta)


def candidate_of(estimator, params):
    """Return a clone of an estimator with the parameters of one candidate."""
    return clone(estimator).set_params(**{k: clone(v, safe=False) for k, v in params.items()})
