"""What `PrivacyLedger.pay_for` charges: searches, cross-validations, and clones fitted whole."""

from skdp.exceptions import PrivacyError
from skdp.model_selection._cost import is_search, search_cost
from skdp.model_selection._parts import check_fitted_whole, dp_parts
from skdp.model_selection._scorers import PrivateScorer
from skdp.privacy.ledger.fits import LedgerFit
from skdp.privacy.ledger.routes import COUNTERS, Payment


def payment_for(fitted, n_samples=None, *, groups=None, cv=None, scoring=None):
    """Return what is charged for an object that clones private estimators, or refuse."""
    if not is_search(fitted) and cv is None:
        if scoring is not None:
            raise ValueError("'scoring' needs 'cv': both as given to cross_validate.")
        check_fitted_whole(fitted)
        return Payment(tuple(_private_parts(fitted)))
    cost = search_cost(fitted, n_samples, groups, cv=cv, scoring=scoring)
    scorers = _scorers(fitted.scoring if is_search(fitted) else scoring)
    if cost.exact_scores and is_search(fitted):
        raise PrivacyError(
            f"{type(fitted).__name__} inside a PrivacyLedger has scores without privacy: what is "
            "chosen by them has no finite epsilon. Use scoring=make_private_scorer(...), or "
            "DPGridSearchCV, which costs less."
        )
    parts = _private_parts(fitted.estimator if is_search(fitted) else fitted)
    for params, _ in cost.candidates:
        parts += [part for value in params.values() for part in dp_parts(value)]
    fit = LedgerFit(
        f"{type(fitted).__name__} ({len(cost.candidates)} candidates)"
        if is_search(fitted)
        else f"cross-validation of {type(fitted).__name__}",
        cost.unit,
        cost.adjacency,
        cost.losses,
        cost.seeded,
        sessions=len(cost.fits) + len(cost.refits),
    )
    return Payment((*parts, *scorers), fit, cost.fits, cost.refits)


def _private_parts(estimator):
    parts = dp_parts(estimator)
    if not parts:
        raise ValueError(f"there is no private estimator in {estimator!r}: nothing is charged.")
    return parts


def _scorers(scoring):
    values = scoring.values() if isinstance(scoring, dict) else scoring
    listed = list(values) if isinstance(values, list | tuple | type({}.values())) else [values]
    return [scorer for scorer in listed if isinstance(scorer, PrivateScorer)]


COUNTERS.append(payment_for)
