"""What all estimators share: opening and closing a session, receipts, ledgers, atomic fits."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from contextlib import nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar, cast

from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted

from skdp._links import DocLinkMixin
from skdp._progress import CallbackMixin, ReleaseTasks, run_with_callbacks
from skdp._threads import one_blas_thread
from skdp._validation import check_n_jobs, check_option, check_real
from skdp.exceptions import PrivacyWarning, warn_caller
from skdp.privacy.accounting.receipts import cautions, privacy_card
from skdp.privacy.gate.budget import PrivacyBudget
from skdp.privacy.gate.session import PrivacySession
from skdp.privacy.gate.stages import StagedBudget
from skdp.privacy.ledger import routes
from skdp.privacy.ledger.reservations import handed_on
from skdp.privacy.ledger.routes import Account
from skdp.privacy.ledger.scope import around
from skdp.privacy.noise.words import make_source

_Fit = TypeVar("_Fit", bound=Callable[..., Any])
_SMALLEST_EPSILON = 1e-12
_ABSURD_EPSILON = 1e4
_NARROW = 256  # columns


# Sessions opened by the fit that runs in this context.
_OPENED = ContextVar("skdp_opened", default=None)


def atomic(fit: _Fit) -> _Fit:
    """Decorate a fit: if it raises, the estimator is left exactly as it was.

    In a PrivacyLedger it then spends nothing, or what it had been granted before it failed.
    """

    @functools.wraps(fit)
    def wrapper(self, *args, **kwargs):
        return run_atomically(fit, self, args, kwargs)

    return cast(_Fit, wrapper)


def run_atomically(fit, estimator, args, kwargs):
    """Run a fit; if it raises, restore the estimator and settle its sessions.

    Apart from the decorator, whose wrapper is pickled by value with classes of `__main__`.
    """
    _refuse_weights(type(estimator).__name__, kwargs)
    before = vars(estimator).copy()
    opened = []
    outer = _OPENED.set(opened)
    stale = vars(estimator).pop("_released_names", ())
    try:
        with one_blas_thread() if _is_narrow(args, kwargs) else nullcontext():
            fitted = run_with_callbacks(fit, estimator, args, kwargs)
        _drop_stale(estimator, stale)
        return fitted
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        for session in opened:
            routes.settle(session, "failed")
        raise
    finally:
        _OPENED.reset(outer)


def _is_narrow(args, kwargs):
    """Whether rows have so few columns, by a public number, that BLAS loses more by threads.

    A decomposition of 64 columns takes ten times as long with two threads as with one.
    """
    X = args[0] if args else kwargs.get("X")
    width = getattr(X, "n_features", None)
    shape = getattr(X, "shape", ()) if width is None else (0, width)
    return len(shape) == 2 and isinstance(shape[1], int) and shape[1] <= _NARROW


def _refuse_weights(name, kwargs):
    """Say why there are no weights, where people look for them."""
    if kwargs.pop("sample_weight", None) is not None:
        raise TypeError(
            f"{name} takes no 'sample_weight': a weight multiplies what one row can change, and "
            "the noise is made for rows that count once; weights that follow from private rows "
            "would be released without noise. Choose rows by a public rule, or, for classes of "
            "unequal size, use class_weight='balanced' where it is offered."
        )


def _drop_stale(estimator, stale):
    """Take off what an earlier fit, with other parameters, released and this one did not."""
    now = vars(estimator).setdefault("_released_names", stale)
    for name in set(stale) - set(now):
        vars(estimator).pop(name, None)


class FitObserver(Account):
    """Hears what a fit pays: for the ledgers that it is charged to, and for its callbacks."""

    tasks = None

    def paid(self, name: Any) -> Any:
        """Tell the callbacks the name of a release."""
        if self.tasks is not None:
            self.tasks(name)

    def close(self) -> Any:
        """Tell the callbacks that the fit has ended."""
        if self.tasks is not None:
            self.tasks.close()


class BaseDPEstimator(DocLinkMixin, CallbackMixin, BaseEstimator):
    """Base of the estimators: a budget, a session, a receipt.

    Subclasses list the privacy units they have in ``_privacy_units`` (unit -> adjacencies) and have
    the parameters ``epsilon``, ``delta``, ``adjacency`` and ``random_state``.
    """

    if TYPE_CHECKING:  # a fit sets its attributes by name

        def __getattr__(self, name: str) -> Any: ...

    _privacy_units = {"row": ("add_remove", "replace")}
    _pure_dp = False  # whether delta=0 is offered
    _splits_budget = False  # whether a huge epsilon is split into copies
    _ledger_ticket = None  # of clones and pickles made inside a PrivacyLedger
    _publish = "Publish what its released() returns."
    _fit_keeps = ""  # what of private data a fit leaves on the estimator, in words

    def _checked_session(
        self, *, random_state=None, kind=PrivacySession, pure=False, split=True, first=0.0
    ):
        """Check the privacy parameters; return a session that nobody was charged for.

        With `first` it has a first stage of that share of epsilon, unless somebody counts the fit.
        """
        name = type(self).__name__
        epsilon = check_real(self, "epsilon", 0, math.inf, closed="right")
        delta = check_real(self, "delta", 0, 1, closed="left")
        if epsilon < _SMALLEST_EPSILON:
            raise ValueError(
                f"The 'epsilon' parameter of {name} must be at least {_SMALLEST_EPSILON:g}: with "
                f"less there is nothing but noise. Got {self.epsilon!r} instead."
            )
        if delta == 0 and epsilon != math.inf and not self._offers_pure_dp():
            raise ValueError(
                f"The 'delta' parameter of {name} must be a float in the range (0, 1): these "
                "settings have no pure differential privacy. Got 0 instead."
            )
        if hasattr(self, "n_jobs"):
            check_n_jobs(self)
        unit = getattr(self, "privacy_unit", "row")
        adjacency = check_option(self, "adjacency", self._privacy_units[unit])
        source = make_source(random_state, name)
        delta = 0.0 if pure else delta
        split = split and self._splits_budget and not any(around())  # a ledger prices all fits
        if first and StagedBudget.offered(epsilon, delta) and not self._is_counted():
            budget = StagedBudget(epsilon, delta, first)
        else:
            budget = PrivacyBudget(epsilon, delta, self._pure_epsilon(), split)
        observer = FitObserver()
        return kind(budget, source=source, adjacency=adjacency, unit=unit, observer=observer)

    def _is_counted(self):
        """Whether a ledger, or a search, charges for this fit."""
        return any(around()) or routes.RUN.get() is not None or self._ledger_ticket is not None

    def _open_session(self, *, pure=False, split=True, first=0.0):
        """Check the privacy parameters and open the session of one fit; nothing is read.

        With `pure` it spends no delta, whatever the parameter says. Inside a PrivacyLedger the
        whole budget is charged here, or refused.
        """
        session = self._checked_session(
            random_state=self.random_state, pure=pure, split=split, first=first
        )
        name = type(self).__name__
        routes.charge(session, name, self._ledger_ticket, getattr(self, "sensitivity", None))
        if (opened := _OPENED.get()) is not None:
            opened.append(session)
            if len(opened) == 1 and vars(self).get("_skl_callbacks"):
                context = self._init_callback_context(max_subtasks=None)
                session.observer.tasks = ReleaseTasks(self, context)
        self._warn_if_weak(session.whole.epsilon, session.source.seeded)
        return session

    def _offers_pure_dp(self):
        return self._pure_dp

    def _pure_epsilon(self):
        return 0.0  # set aside for exponential mechanisms beside Gaussian releases

    def _budget_kinds(self):
        """Return the kinds of budgets that fits may have where delta is not 0, by their shape.

        "gaussian", "pure", or "sketch": random ones, which are Gaussian DP for no mu.
        """
        return ("gaussian",)

    def _warn_if_weak(self, epsilon, seeded):
        name = type(self).__name__
        if epsilon == math.inf:
            message = f"{name} adds no noise with epsilon=inf: the result is not private."
            warn_caller(message, PrivacyWarning)
        elif epsilon > _ABSURD_EPSILON:
            warn_caller(cautions(epsilon, 0, "unit")[0], PrivacyWarning)
        elif seeded:
            message = (
                f"{name} was given a random_state: whoever knows it can remove the noise. The "
                "result is not private; use random_state=None."
            )
            warn_caller(message, PrivacyWarning)

    def _warn_of_delta(self, n_units, unit="row"):
        """Say that delta is too large for this public number of units: callers know it is one."""
        if self.epsilon != math.inf:
            for said in cautions(0.0, float(self.delta), unit, int(n_units)):
                warn_caller(said, PrivacyWarning)

    def _close_session(self, session, attributes):
        """Set the fitted attributes (all of them public) and the receipt."""
        self._released_names = (*getattr(self, "_released_names", ()), *attributes)
        for name, value in attributes.items():
            setattr(self, name, value)
        self.privacy_spent_ = session.spent()
        self.ledger_ = session.ledger
        session.observer.close()
        routes.settle(session)
        return self

    def __sklearn_clone__(self):
        copy = super().__sklearn_clone__()
        if callbacks := vars(self).get("_skl_callbacks"):  # scikit-learn before 1.9 drops them
            copy._skl_callbacks = callbacks
        if ticket := handed_on(self._ledger_ticket):
            copy._ledger_ticket = ticket
        return copy

    def _twin(self):
        """Return a clone that our own code fits once, on all rows, in place of this estimator."""
        copy = clone(self)
        vars(copy).pop("_ledger_ticket", None)
        if self._ledger_ticket is not None:
            copy._ledger_ticket = self._ledger_ticket
        return copy

    @property
    def holds_private(self) -> Any:
        """What of private data this object holds, in words; empty if it may be published."""
        return (self._fit_keeps or "the state of a running stream") if self._holds() else ""

    def _holds(self):
        """Whether anything is held that was not released: heads of users, or a running stream."""
        return vars(self).get("_private") is not None

    def __getstate__(self):
        if self._fit_keeps and self.holds_private:  # a running stream refuses by itself
            message = (
                f"this pickle or copy of {type(self).__name__} holds {self.holds_private}: keep it "
                f"like the data. {self._publish}"
            )
            warn_caller(message, PrivacyWarning)
        state = {k: v for k, v in super().__getstate__().items() if k != "_ledger_ticket"}
        ticket = handed_on(self._ledger_ticket)
        return dict(state, _ledger_ticket=ticket) if ticket else state

    def privacy_card(self) -> privacy_card:
        """Return the receipt and its ledger, to print or to show in a notebook.

        Returns
        -------
        card : privacy_card
            ``str(card)`` is text; notebooks show a table.
        """
        check_is_fitted(self, "privacy_spent_")
        held = self.holds_private
        held = held and f"{held}: not covered. {self._publish}"
        return privacy_card(type(self).__name__, self.privacy_spent_, self.ledger_, held)


class FitsElsewhereMixin:
    """Fit the same releases to rows that are not here: all that is needed is their public shape.

    Classes make all their releases in ``_fit_session(session, X)``, which uses X for its shape and
    hands it to a query that only the session reads.
    """

    @atomic
    def _fit_elsewhere(self, schema, connect):
        """Fit from rows of zeros of a public shape; ``connect(session)`` asks where the data are.

        A private number of rows is 0 in the schema.
        """
        self._check_parameters()
        session = self._open_session(pure=self._is_pure(schema), split=False)
        attributes = self._fit_session(connect(session), schema)
        vars(self).pop("feature_names_in_", None)
        self.n_features_in_ = schema.shape[1]
        return self._close_session(session, attributes)

    def _is_pure(self, _X):
        """Whether the fit spends no delta: a function of settings and of a public shape."""
        return False
