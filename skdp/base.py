"""What all estimators share: sessions, receipts, ledgers, atomic fits, progress.

Scales that a fit learns, and the warnings about them, are here too: public words alone.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from contextvars import ContextVar
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import WeakKeyDictionary

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted

from skdp._limits import CLEAR, NEGLIGIBLE
from skdp._validation import (
    check_n_jobs,
    check_option,
    check_real,
    feature_names,
    is_real,
    refuse_value,
)
from skdp.data.blocks import is_paths, one_blas_thread
from skdp.data.products import in_dtype
from skdp.data.stored_rows import BlockFiles
from skdp.exceptions import PartialSignalWarning, PrivacyError, PrivacyWarning, warn_caller
from skdp.privacy.accounting.receipts import PrivacyReport, cautions
from skdp.privacy.gate.bounds import PrivacyBudget
from skdp.privacy.gate.session import PrivacySession
from skdp.privacy.gate.session import no_warnings as no_warnings
from skdp.privacy.ledger import routes
from skdp.privacy.ledger.balances import IS_SPENT
from skdp.privacy.ledger.routes import Account, handed_on
from skdp.privacy.ledger.scope import around
from skdp.privacy.noise.words import make_source
from skdp.solvers.median_search import find_scale
from skdp.units import bound_of, offered, unit_of

__all__ = ["DocLinkMixin"]

# The page of our documentation that the HTML of an estimator links to.


def _docs_version() -> str:
    """Return which documentation describes this code: that of a release, or of the source tree."""
    try:
        unreleased = "dev" in version("skdp")
    except PackageNotFoundError:  # run from the source tree
        unreleased = True
    return "latest" if unreleased else "stable"


class DocLinkMixin:
    """Link the name in scikit-learn's HTML display to the page of the class."""

    _doc_link_module = "skdp"
    _doc_link_template = (
        f"https://skdp.readthedocs.io/en/{_docs_version()}/api/"
        "{estimator_module}.{estimator_name}.html"
    )

    def _doc_link_url_param_generator(self) -> dict[str, str]:
        module = type(self).__module__.partition("._")[0]
        return {"estimator_module": module, "estimator_name": type(self).__name__}


# Progress of a fit, as the names of the releases that are paid for, one after the other.
#
# scikit-learn 1.9 and later have callbacks; before that there is no progress. Callbacks are handed
# the estimator and the task (a number and the name of a release), never X, y or an exact answer,
# and they cannot stop a fit. How long a step takes is not protected.


try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:  # scikit-learn before 1.9

    class CallbackSupportMixin:
        """Nothing: there are no callbacks."""


# What all estimators share: opening and closing a session, receipts, ledgers, atomic fits.


_Fit = TypeVar("_Fit", bound=Callable[..., Any])
_ABSURD_EPSILON, _ABSURD_DELTA = 1e4, 0.001  # whatever the number of units is
_NARROW = 256  # columns


# Sessions opened by the fit that runs in this context.
_OPENED = ContextVar("skdp_opened", default=None)

# Which budgets clones of one estimator were fitted with, outside of ledgers: one set for all.
_TRIED: WeakKeyDictionary[BaseEstimator, set[float]] = WeakKeyDictionary()

# A lock for each estimator that fits; a forked process makes its own, as those who hold these may
# not exist there.
_AT_WORK: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_AT_WORK.clear)


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

    It is separate from the decorator, whose wrapper is pickled by value with classes of `__main__`.
    Fits of one estimator wait for each other: they would restore each other's attributes, and
    batches of a stream would not see each other's groups.
    """
    if kwargs.pop("sample_weight", None) is not None:
        raise TypeError(
            f"{type(estimator).__name__} takes no 'sample_weight': a weight multiplies the "
            "sensitivity, and the noise is calibrated for a weight of 1. For classes of unequal "
            "size use class_weight='balanced', where it is offered."
        )
    with _AT_WORK.setdefault(estimator, threading.RLock()):
        before = vars(estimator).copy()
        if _is_running(fit, estimator):
            raise PrivacyError("the same call is still running: call again after it has ended.")
        opened = []
        outer = _OPENED.set(opened)
        try:
            given = {name: before.get(name) for name in _parameters(type(estimator))}
            # Numbers of numpy become those of Python, which do not overflow.
            plain = {k: v.item() for k, v in given.items() if isinstance(v, np.number)}
            vars(estimator).update(plain)
            stale = vars(estimator).pop("_released_names", ())
            with one_blas_thread() if _is_narrow(args, kwargs) else nullcontext():
                run = with_callbacks(fit) if vars(estimator).get("_skl_callbacks") else fit
                fitted = run(estimator, *args, **kwargs)
            _check_unchanged(estimator, given | plain)
            vars(estimator).update({name: before[name] for name in plain})
            # Attributes that an earlier fit released and this one did not are removed.
            now = vars(estimator).setdefault("_released_names", stale)
            for name in set(stale) - set(now):
                vars(estimator).pop(name, None)
            return fitted
        except BaseException:
            vars(estimator).clear()
            vars(estimator).update(before)
            for session in opened:
                routes.settle(session, "failed")
            raise
        finally:
            _OPENED.reset(outer)


@functools.lru_cache  # of public classes; inspection takes as long as some releases
def _parameters(kind):
    return tuple(inspect.signature(kind.__init__).parameters)


def _check_unchanged(estimator, given):
    """Raise if a callback, or another thread, changed parameters."""
    for name, value in given.items():
        if vars(estimator).get(name) is not value:
            raise PrivacyError(f"The parameter {name!r} was changed during the fit. Fit again.")


def _is_running(fit, estimator):
    """Return whether the same call runs already: a signal handler must not start it again.

    The stack is inspected, because a flag of our own might remain set if a signal ends a call.
    """
    frame = inspect.currentframe().f_back.f_back
    while frame is not None:
        if frame.f_code is run_atomically.__code__:
            outer = frame.f_locals
            if outer["fit"] is fit and outer["estimator"] is estimator:
                return True
        frame = frame.f_back
    return False


def _is_narrow(args, kwargs):
    """Return whether X has so few columns (a public number) that one BLAS thread is faster.

    A decomposition of 64 columns takes ten times as long with two threads as with one.
    """
    X = args[0] if args else kwargs.get("X")
    with suppress(Exception):  # what is no matrix gets its error from the fit
        if is_paths(X):
            X = BlockFiles(X[:1])
        elif isinstance(X, list) and np.ndim(X[0]) == 1:
            X = np.empty((0, len(X[0])))
    width = getattr(X, "n_features", None)
    shape = getattr(X, "shape", ()) if width is None else (0, width)
    return len(shape) == 2 and isinstance(shape[1], int) and shape[1] <= _NARROW


def as_input_dtype(attributes, dtype):
    """Cast released float arrays to the dtype of the input where it holds them."""
    if dtype != np.float32:
        return attributes
    return {
        name: in_dtype(value, np.float32) if isinstance(value, np.ndarray) else value
        for name, value in attributes.items()
    }


class FitObserver(Account):
    """Observes the charges of a fit, for its ledgers and its callbacks."""

    rows_needed = 0  # for a scale that no search has found
    # Of a fit with callbacks: the estimator, as it was, the task of the fit, that of a release.
    _estimator = _given = _root = _task = None

    def call_back(self, estimator: Any) -> None:
        """Tell the callbacks of an estimator that its fit begins, and of all releases from here."""
        self._estimator, self._given = estimator, estimator.get_params(deep=False)
        self._root = estimator._init_callback_context(max_subtasks=None)
        self._root.call_on_fit_task_begin(estimator=estimator)

    def paid(self, name: Any) -> Any:
        """Tell the callbacks the name of a release: its task follows the one before."""
        if self._root is not None:
            _check_unchanged(self._estimator, self._given)  # before a callback may change it back
            self._end(self._task)
            self._task = self._root.subcontext(task_name=name)
            self._task.call_on_fit_task_begin(estimator=self._estimator)

    def close(self) -> Any:
        """Tell the callbacks that the last release and the fit have ended."""
        self._end(self._task)
        self._task = None  # a stream closes more than once
        self._end(self._root)

    def _end(self, task: Any) -> None:
        if task is not None:
            task.call_on_fit_task_end(estimator=self._estimator)


class BaseDPEstimator(DocLinkMixin, CallbackSupportMixin, BaseEstimator):
    """Base of the estimators: a budget, a session, a receipt.

    Subclasses list the privacy units they have in ``_privacy_units`` (unit -> adjacencies) and have
    the parameters ``epsilon``, ``delta``, ``adjacency`` and ``random_state``.
    """

    if TYPE_CHECKING:  # a fit sets its attributes by name

        def __getattr__(self, name: str) -> Any: ...

    _privacy_units = offered("row")
    _pure_dp = False  # whether delta=0 is offered
    _splits_budget = True  # whether a huge epsilon is split into copies: not that of a stream
    _reservation_key = None  # of clones and pickles made inside a PrivacyLedger
    _publish = "Publish what its public_copy() returns."
    _fit_keeps = ""  # what of private data a fit leaves on the estimator, in words

    def _checked_session(self, *, random_state=None, pure=False, split=True):
        """Check the privacy parameters; return a session that nobody was charged for."""
        name = type(self).__name__
        if is_real(self.epsilon) and 0 <= self.epsilon < NEGLIGIBLE and any(around()):
            said = "a float in the range [1e-12, inf]. If it is what remains in a ledger: "
            refuse_value(self, "epsilon", said + IS_SPENT[:-1], self.epsilon)
        epsilon = check_real(self, "epsilon", NEGLIGIBLE, math.inf, closed="both")
        delta = check_real(self, "delta", 0, 1, closed="left")
        if delta == 0 and epsilon != math.inf and not self._offers_pure_dp():
            raise ValueError(
                f"delta=0: {name} has no pure differential privacy with these parameters. Use "
                "delta > 0, such as 1e-6."
            )
        if hasattr(self, "n_jobs"):
            check_n_jobs(self)
        unit = getattr(self, "privacy_unit", "row")
        adjacency = check_option(self, "adjacency", self._privacy_units[unit])
        source = make_source(random_state, name)
        budget = PrivacyBudget(epsilon, 0.0 if pure else delta, split=split and self._splits_budget)
        if budget.copies > 1 and any(around()) and not routes.is_on_made_data(self):
            budget = PrivacyBudget(epsilon, budget.delta)  # a ledger prices all fits
        return PrivacySession(
            budget, source=source, adjacency=adjacency, unit=unit, observer=FitObserver()
        )

    def _check_parameters(self):
        """Raise an error if a parameter is not valid, whatever the data are."""

    def _open_session(self, *, pure=False, split=True):
        """Check the privacy parameters and open the session of one fit; nothing is read.

        With `pure` it spends no delta, whatever the parameter says. Inside a PrivacyLedger the
        whole budget is charged here, or refused.
        """
        session = self._checked_session(random_state=self.random_state, pure=pure, split=split)
        name = type(self).__name__
        if (opened := _OPENED.get()) is not None:
            opened.append(session)  # before the charge, so that an interrupted one is settled
        session.observer.of_made_data = routes.is_on_made_data(self)
        routes.charge(session, name, self._reservation_key, bound_of(self))
        if opened is not None and len(opened) == 1 and vars(self).get("_skl_callbacks"):
            session.observer.call_back(self)
        self._warn_if_weak(session.budget, session.source.seeded)
        if not session.source.seeded and not session.observer.of_made_data:
            self._warn_of_search(session.budget.epsilon)
        return session

    @property
    def _protects(self):
        """What one neighbour differs in: the registered object."""
        return unit_of(self)

    def _offers_pure_dp(self):
        return self._pure_dp

    def _budget_kinds(self):
        """Return the kinds of budgets that fits may have where delta is not 0, by their shape.

        "gaussian", "pure", or "sketch": random ones, which are Gaussian DP for no mu.
        """
        return ("gaussian",)

    def _warn_if_weak(self, spent, seeded):
        name, epsilon = type(self).__name__, spent.epsilon
        if epsilon == math.inf:
            warn_caller(f"{name} is not private: epsilon=inf adds no noise.", PrivacyWarning)
        elif epsilon > _ABSURD_EPSILON:
            warn_caller(cautions(epsilon, 0, "unit")[0], PrivacyWarning)
        elif spent.delta >= _ABSURD_DELTA:
            self._warn_of_delta(1 / _ABSURD_DELTA)
        if seeded and epsilon != math.inf:
            said = f"{name} is not private: anyone who knows 'random_state' can subtract the noise."
            warn_caller(f"{said} Use random_state=None.", PrivacyWarning)

    def _warn_of_search(self, epsilon):
        """Warn once that fits of a search over epsilon add up; its clones indicate a search."""
        tried = _TRIED.get(self)
        paid = epsilon == math.inf or routes.RUN.get()  # a private search pays for its runs
        if tried is None or epsilon in tried or paid or any(around()):
            return
        tried.add(epsilon)
        if len(tried) == 2:
            message = (
                f"clones of one {type(self).__name__} were fitted with different values of epsilon "
                "outside a PrivacyLedger. Each receipt covers one fit. Fits to the same rows add "
                "up: search_cost(search, n_samples=len(X)) gives the sum for GridSearchCV. Choose "
                "epsilon before the data are read, for example with plan()."
            )
            warn_caller(message, PrivacyWarning)

    def _warn_of_delta(self, n_units, unit="row"):
        """Warn if delta is too large for this number of units, which must be public."""
        if self.epsilon != math.inf:
            for said in cautions(0.0, float(self.delta), unit, int(n_units)):
                warn_caller(said, PrivacyWarning)

    def _close_session(self, session, attributes):
        """Set the fitted attributes (all of them public) and the receipt."""
        self._released_names = (*getattr(self, "_released_names", ()), *attributes)
        vars(self).update(attributes)
        self.privacy_spent_ = routes.receipt(session)
        self.releases_ = session.ledger
        if session.observer.rows_needed:  # said once, however many searches there were
            warn_unseen(self, f"the {units_of(self)}", session.observer.rows_needed, "'clip_norm'")
            session.observer.rows_needed = 0
        session.observer.close()
        routes.settle(session)
        return self

    def __sklearn_clone__(self):
        copy = super().__sklearn_clone__()
        _TRIED[copy] = _TRIED.setdefault(self, set())
        if key := handed_on(self._reservation_key):
            copy._reservation_key = key
        return copy

    def _twin(self):
        """Return a clone that our own code fits once, on all rows, in place of this estimator."""
        copy = clone(self)
        copy._reservation_key = self._reservation_key
        return copy

    @property
    def private_state(self) -> Any:
        """Description of the private data that this object holds; empty if it may be published."""
        return (self._fit_keeps or "the state of a running stream") if self._holds() else ""

    def _holds(self):
        """Whether anything is held that was not released: models of users, or a running stream."""
        return vars(self).get("_private") is not None

    def __getstate__(self):
        vars(self).get("_private").__getstate__()  # a running stream refuses to be copied
        if self._fit_keeps and self.private_state:
            message = (
                f"this pickle or copy of {type(self).__name__} holds {self.private_state}: keep it "
                f"like the data. {self._publish}"
            )
            warn_caller(message, PrivacyWarning)
        if isinstance(self.epsilon, int | float) and not hasattr(self, "privacy_spent_"):
            _TRIED.get(self, set()).add(self.epsilon)  # a clone that is sent is fitted elsewhere
        state = {k: v for k, v in super().__getstate__().items() if k != "_reservation_key"}
        key = handed_on(self._reservation_key)
        return dict(state, _reservation_key=key) if key else state

    def privacy_report(self) -> PrivacyReport:
        """Return the receipt with all releases, to print or to show in a notebook.

        Returns
        -------
        report : PrivacyReport
            Its string is text; notebooks show a table.
        """
        check_is_fitted(self, "privacy_spent_")
        held = self.private_state
        held = held and f"{held}: not covered. {self._publish}"
        return PrivacyReport(type(self).__name__, self.privacy_spent_, self.releases_, held)


class FitsElsewhereMixin:
    """Mixin for fits to rows on other machines, of which only the public shape is known here.

    Classes make all their releases in ``_fit_session(session, X)``, which uses only the shape of X
    and passes X on to a query that only the session reads, or takes that query for X.
    """

    @atomic
    def _fit_elsewhere(self, schema, n_features, connect):
        """Fit to rows or users on other machines, which ``connect(session)`` queries.

        A private number of rows is 0 in the schema.
        """
        self._check_parameters()
        session = self._open_session(split=False)
        attributes = self._fit_session(connect(session), schema)
        self.n_features_in_ = n_features
        return self._close_session(session, attributes)


# Scales that a fit learns, and warnings about those that it could not find: public values alone.


_SHOWN = 10  # column numbers in a warning


def units_of(estimator, rows="rows"):
    """Return the name of the units of which a fit needs more."""
    return "groups" if getattr(estimator, "privacy_unit", "row") == "group" else rows


def warn_unseen(estimator, of, needed, remedy):
    """Say that a scale was not found; `remedy` is the public parameter that takes its place."""
    warn_caller(
        f"{type(estimator).__name__} could not find the scale of {of}, and used a guess. About "
        f"{needed} of them must differ from 0 and from their centre. Give a public {remedy}.",
        PartialSignalWarning,
    )


def check_given(estimator):
    """Return a hint to check the public bounds, if there are any, for a warning of no signal."""
    values = {k: getattr(estimator, k, None) for k in ("bounds", "clip_norm", "target_bounds")}
    given = [repr(k) for k, v in values.items() if v is not None and not isinstance(v, str)]
    said = f" Also check {' and '.join(given)}: bounds far too small or too large hide the data."
    return said if given else ""


def clip_norm_of(estimator, session, ask, share, near=1.0):
    """Return about the median norm of some rows, or a low guess: a given one may be far too large.

    Without noise nothing is protected, so no row is clipped.
    """
    learnt = estimator.clip_norm == "auto"
    given = math.inf if learnt else float(estimator.clip_norm)
    if not share or session.budget.exact:
        return given
    found = find_scale(ask.kept_below, share, near=near if learnt else given)
    if learnt and not found.found:
        session.observer.rows_needed = max(session.observer.rows_needed, found.needed)
    return found.value


def warn_undetected_columns(
    estimator, undetected, needed, *, outcome, remedy, of="columns", category=PartialSignalWarning
):
    """Warn of columns whose scale was not found; state how many values the search needs.

    `undetected` says which; `outcome`, `remedy` and `of` (what they are) are words of the warning.
    """
    if not undetected.any():
        return
    warn_caller(
        f"{type(estimator).__name__} could not find the scale of "
        f"{listed(estimator, undetected, of)}, {outcome}. {needed} to {2 * needed} "
        f"{units_of(estimator)} must differ from the most frequent value. Give public {remedy}.",
        category,
    )


def warn_unresolved_scales(estimator, columns, moments):
    """Warn of columns whose scale may come from noise, or from their distance to the centre.

    `columns` are the learnt ones, or None if bounds are public. In public bounds a column may hold
    rare values only, or the bounds may be far too wide. A variance well above its noise shows that
    the scale is real.
    """
    unresolved = moments.variance < CLEAR * moments.noise
    least = len(unresolved) / 2
    if columns is not None:
        unresolved, least = unresolved & columns.found & ~columns.center_found, 1
    if np.count_nonzero(unresolved) < least:
        return
    warn_caller(
        f"{type(estimator).__name__} released a scale of {listed(estimator, unresolved)} that may "
        f"be noise, and far too large. Use more {units_of(estimator)}, a larger 'epsilon', or "
        "narrow public 'bounds'.",
        PartialSignalWarning,
    )


def listed(estimator, which, of="columns"):
    """Return a text: the number of selected columns, of all, and the names of the first."""
    if np.all(which):
        return f"all {len(which)} {of}" if len(which) > 1 else f"the {of[:-1]}"
    columns = np.flatnonzero(which)
    names = np.arange(len(which))
    if of == "columns":
        names = feature_names(estimator, np.arange(estimator.n_features_in_))
    shown = [repr(name) for name in names[columns[:_SHOWN]].tolist()]
    more = f" and {len(columns) - _SHOWN} more" if len(columns) > _SHOWN else ""
    return f"{len(columns)} of {len(which)} {of} ({', '.join(shown)}{more})"
