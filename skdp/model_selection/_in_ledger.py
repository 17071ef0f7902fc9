"""Searches of scikit-learn inside a `PrivacyLedger`: paid for, or refused, before the first fit.

A search clones its estimator before anything else. The clone of a private estimator made in a
ledger looks for the search that makes it, computes the cost of the whole search, and charges it;
fits of that clone then draw on what was paid.

The limit: a search that is not seen (it runs in a thread of its own, on an estimator that was made
outside the ledger; or scikit-learn has renamed what is looked for) has its fits charged one by one,
and neither its folds nor its scorers are looked at.
"""

import inspect
import weakref
from contextvars import ContextVar

from skdp.base import CLONE_HOOKS
from skdp.exceptions import PrivacyError
from skdp.model_selection._cost import search_cost
from skdp.model_selection._parts import dp_parts
from skdp.model_selection._rowwise import n_rows
from skdp.privacy.ledger.routes import PREPAID, FitList, LedgerFit, prepay

__all__ = ["pay_for_search"]


# Functions of scikit-learn that fit on folds, and have no fit of their own that could be met.
_LOOPS = (
    "cross_validate", "cross_val_predict", "validation_curve", "learning_curve",
    "permutation_test_score",
)  # fmt: skip


def _caller():
    """Return (kind, local names) of the search or cross-validation that makes a clone, or None."""
    frame = inspect.currentframe()
    while frame is not None:
        code, names = frame.f_code.co_name, frame.f_locals
        if code == "fit" and "X" in names and _is_search(names.get("self")):
            return "search", dict(names)
        module = frame.f_globals.get("__name__", "")
        if code in _LOOPS and module.startswith("sklearn.model_selection"):
            return code, dict(names)
        frame = frame.f_back
    return None


def _is_search(object_):
    return any(cls.__name__ == "BaseSearchCV" for cls in type(object_).__mro__)


def _groups(names):
    params = names.get("params") or {}
    return names["groups"] if names.get("groups") is not None else params.get("groups")


class _Paid:
    """The reservation of the search that is running, until its first fit."""

    def __init__(self):
        self.last = None

    def token(self, search, cost, stamp):
        if self.last is not None:
            known, reservation = self.last
            if known() is search and not reservation.started and reservation.token in PREPAID:
                return reservation.token
        reservation = FitList(cost.fits, cost.refits)
        name = f"{type(search).__name__} ({len(cost.candidates)} candidates)"
        fit = LedgerFit(
            name,
            cost.unit,
            cost.adjacency,
            cost.losses,
            cost.seeded,
            sessions=len(cost.fits) + len(cost.refits),
        )
        prepay(fit, stamp, reservation)
        self.last = weakref.ref(search), reservation
        return reservation.token


_PAID = _Paid()


_BUSY = ContextVar("skdp_counting_a_search", default=False)


def pay_for_search(stamp):
    """Return the stamp of a clone, with the reservation of the search that makes it."""
    if _BUSY.get() or any(token in PREPAID for token in stamp):
        return stamp
    found = _caller()
    if found is None:
        return stamp
    busy = _BUSY.set(True)  # counting makes clones of its own
    try:
        return _pay(*found, stamp)
    finally:
        _BUSY.reset(busy)


def _pay(kind, names, stamp):
    groups, n = _groups(names), _LazyCount(names["X"])
    if kind in _LOOPS:  # its fits are charged one by one: here folds must be countable
        estimator = names["estimator"]
        if hasattr(estimator, "cv"):  # a search: its own folds are counted when it is fitted
            estimator = dp_parts(estimator)[0]
        cost = search_cost(estimator, n, groups, cv=names["cv"])
        if kind == "learning_curve" and cost.adjacency == "add_remove":
            raise PrivacyError(
                "learning_curve cuts training sets by the number of rows, which is private with "
                "adjacency='add_remove'. Use adjacency='replace'."
            )
        return stamp
    search = names["self"]
    cost = search_cost(search, n, groups)
    if cost.exact_scores:
        raise PrivacyError(
            f"{type(search).__name__} inside a PrivacyLedger chooses by scores without privacy: "
            "what it chooses has no finite epsilon. Use scoring=make_private_scorer(...), or "
            "DPGridSearchCV, which costs less."
        )
    return (*stamp, _PAID.token(search, cost, stamp))


class _LazyCount:
    """The number of rows, looked at only where it is public."""

    def __init__(self, X):
        self.X = X

    def __int__(self):
        return int(n_rows(self.X) if hasattr(self.X, "shape") else len(self.X))


CLONE_HOOKS.append(pay_for_search)
