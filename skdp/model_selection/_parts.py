"""The private parts of an estimator: which estimators inside it spend a budget, and on whom."""

import math
from functools import cache

from sklearn.base import clone
from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor

from skdp.base import BaseDPEstimator
from skdp.exceptions import PrivacyError
from skdp.model_selection._proven import fits_each_part_once, parts_of
from skdp.privacy.accounting import losses as accounting
from skdp.privacy.accounting.losses import Loss
from skdp.privacy.gate.budget import PrivacyBudget
from skdp.privacy.ledger.fits import LedgerFit, planned, unit_name
from skdp.privacy.ledger.scope import around


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


# Compositions that fit a clone on all rows for each target, and leave rows and targets as they are.
_FOR_EACH_TARGET = (MultiOutputRegressor, MultiOutputClassifier)


def check_fitted_once(estimator):
    """Refuse a composition that fits a private part more than once, or nobody knows how often."""
    if isinstance(estimator, BaseDPEstimator) or not dp_parts(estimator):
        return
    if not fits_each_part_once(estimator):
        raise PrivacyError(
            f"how often {type(estimator).__name__} fits a private estimator inside it, and on "
            "which rows, is not known: its cost cannot be counted. Use the private estimator "
            "itself."
        )
    for _, part in parts_of(estimator):
        check_fitted_once(part)


def check_fitted_whole(estimator):
    """Refuse a composition unless each clone of a private part gets all rows, as they are."""
    if type(estimator) in _FOR_EACH_TARGET:
        check_fitted_whole(estimator.estimator)
    elif fits_each_part_once(estimator):
        for _, part in parts_of(estimator):
            check_fitted_whole(part)
    else:
        check_fitted_once(estimator)


def planned_fit(part, with_groups=False):
    """Return the public ledger line of one fit of a private estimator, before it happens."""
    if hasattr(part, "planned_losses"):  # a private search
        losses = part.planned_losses()
    else:
        losses = _planned_losses(part)
    unit, adjacency = meaning_of(part, with_groups)
    seeded = part.random_state is not None
    return LedgerFit(type(part).__name__, unit, adjacency, losses, seeded)


def _planned_losses(part):
    """Return what one fit spends at most.

    Where its shape decides whether it is Gaussian or pure, or first answers do, and for random
    sketches, that is what every (epsilon, delta)-DP mechanism spends. In a ledger it is one that is
    Gaussian: another is refused there, as it was not paid for.
    """
    kinds = part._budget_kinds()
    delta = 0.0 if kinds == ("pure",) else part.delta
    budget = PrivacyBudget(part.epsilon, delta, part._pure_epsilon(), split=True)
    known = len(kinds) == 1 and "sketch" not in kinds
    if not known and budget.delta and not budget.exact and not any(around()):
        return (Loss("pure", budget.epsilon), Loss("delta", budget.delta))
    return planned(budget)


def meaning_of(part, with_groups=False):
    """Return what a fit of a private estimator protects: its unit and adjacency."""
    unit = getattr(part, "privacy_unit", "row")
    if with_groups and hasattr(part, "require_users"):  # whose unit shows in the fit
        unit = "group"
    return unit_name(unit, getattr(part, "sensitivity", None)), part.adjacency


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
        if epsilon > min(1e-6, value):  # below mu its rounding would weigh
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
