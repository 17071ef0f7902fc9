"""What all estimators share: opening and closing a session, receipts, ledgers, atomic fits."""

import functools
import math
import os
import warnings
from collections.abc import Mapping
from contextvars import ContextVar

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from skdp._progress import CallbackMixin, ReleaseTasks, run_with_callbacks
from skdp._validation import check_n_jobs, check_option, check_real
from skdp.exceptions import PrivacyError, PrivacyWarning
from skdp.privacy.accounting.receipts import privacy_card
from skdp.privacy.gate.budget import PrivacyBudget
from skdp.privacy.gate.session import PrivacySession
from skdp.privacy.ledger import ledger
from skdp.privacy.ledger.routes import charge_parts
from skdp.privacy.noise.words import make_source
from skdp.privacy.streams import checkpoint
from skdp.privacy.streams.groups import StreamGroup
from skdp.privacy.streams.merged import merged_receipt, receipt_state

__all__ = ["BaseDPEstimator", "StreamingMixin", "atomic", "charge_parts", "merged_receipt",
           "receipt_state"]  # fmt: skip

_SMALLEST_EPSILON = 1e-12


# Functions stamp -> stamp of a clone made in a ledger: `skdp.model_selection` meets searches here.
CLONE_HOOKS = []
# Sessions opened by the fit that runs in this context.
_OPENED = ContextVar("skdp_opened", default=None)


def atomic(fit):
    """Decorate a fit: if it raises, the estimator is left exactly as it was.

    In a PrivacyLedger it then spends nothing, or what it had been granted before it failed.
    """

    @functools.wraps(fit)
    def wrapper(self, *args, **kwargs):
        return run_atomically(fit, self, args, kwargs)

    return wrapper


def run_atomically(fit, estimator, args, kwargs):
    """Run a fit; if it raises, restore the estimator and settle its sessions.

    Apart from the decorator, whose wrapper is pickled by value with classes of `__main__`.
    """
    before = vars(estimator).copy()
    opened = []
    outer = _OPENED.set(opened)
    stale = vars(estimator).pop("_released_names", ())
    try:
        fitted = run_with_callbacks(fit, estimator, args, kwargs)
        _drop_stale(estimator, stale)
        return fitted
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        for session in opened:
            ledger.settle(session, "failed")
        raise
    finally:
        _OPENED.reset(outer)


def _drop_stale(estimator, stale):
    """Take off what an earlier fit, with other parameters, released and this one did not."""
    now = vars(estimator).setdefault("_released_names", stale)
    for name in set(stale) - set(now):
        vars(estimator).pop(name, None)


def ledger_stamp(old, *, pickled=False):
    """Return the tokens that a clone (or a pickle) made here, of an estimator with `old`, carries.

    A clone is released from ledgers that are closed. Pickles are often made by a helper thread,
    hence with no context: they then carry every ledger that is open in the process.
    """
    kept = [t for t in old if ledger.is_open(t) or ledger.home(t) not in (os.getpid(), 0)]
    here = [t for t in ledger.ACTIVE.get() if ledger.is_open(t)]
    if pickled:
        here = here or ([] if kept else list(ledger.OPEN))
        here += ["0-" + t.partition("-")[2] for t in old if t not in kept]
    return tuple(dict.fromkeys([*kept, *here]))


class BaseDPEstimator(CallbackMixin, BaseEstimator):
    """Base of the estimators: a budget, a session, a receipt.

    Subclasses list the privacy units they have in ``_privacy_units`` (unit -> adjacencies) and have
    the parameters ``epsilon``, ``delta``, ``adjacency`` and ``random_state``.
    """

    _doc_link_module = "skdp"
    _doc_link_template = (
        "https://skdp.readthedocs.io/en/stable/api/{estimator_module}.{estimator_name}.html"
    )
    _privacy_units = {"row": ("add_remove", "replace")}
    _pure_dp = False  # whether delta=0 is offered
    _ledger_stamp = ()  # set on clones and pickles made inside a PrivacyLedger

    def _doc_link_url_param_generator(self):
        module = type(self).__module__.rpartition("._")[0] or type(self).__module__
        return {"estimator_module": module, "estimator_name": type(self).__name__}

    def _checked_session(self, *, random_state=None, kind=PrivacySession):
        """Check the privacy parameters; return a session that nobody was charged for."""
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
        offered = ("add_remove", "replace") if unit == "label" else self._privacy_units[unit]
        adjacency = check_option(self, "adjacency", offered)
        if unit == "label":  # the number of labels is public, so it has one adjacency
            adjacency = "replace"
        source = make_source(random_state, name)
        budget = PrivacyBudget(epsilon, delta, self._pure_epsilon())
        return kind(budget, source=source, adjacency=adjacency, unit=unit)

    def _open_session(self):
        """Check the privacy parameters and open the session of one fit; nothing is read.

        Inside a PrivacyLedger the whole budget is charged here, or refused.
        """
        session = self._checked_session(random_state=self.random_state)
        name = type(self).__name__
        ledger.charge(session, name, self._ledger_stamp, getattr(self, "sensitivity", None))
        if (opened := _OPENED.get()) is not None:
            opened.append(session)
            if len(opened) == 1 and vars(self).get("_skl_callbacks"):
                session.watch = ReleaseTasks(self, self._init_callback_context(max_subtasks=None))
        self._warn_if_weak(session.budget.epsilon, session.source.seeded)
        return session

    def _offers_pure_dp(self):
        return self._pure_dp

    def _pure_epsilon(self):
        return 0.0  # set aside for exponential mechanisms beside Gaussian releases

    def _warn_if_weak(self, epsilon, seeded):
        name = type(self).__name__
        if epsilon == math.inf:
            message = f"{name} adds no noise with epsilon=inf: the result is not private."
            warnings.warn(message, PrivacyWarning, stacklevel=4)
        elif seeded:
            message = (
                f"{name} was given a random_state: whoever knows it can remove the noise. The "
                "result is not private; use random_state=None."
            )
            warnings.warn(message, PrivacyWarning, stacklevel=4)

    def _close_session(self, session, attributes):
        """Set the fitted attributes (all of them public) and the receipt."""
        self._released_names = (*getattr(self, "_released_names", ()), *attributes)
        for name, value in attributes.items():
            setattr(self, name, value)
        self.privacy_spent_ = session.spent()
        self.ledger_ = session.ledger
        if session.watch is not None:
            session.watch.close()
        ledger.settle(session)
        return self

    def __sklearn_clone__(self):
        copy = super().__sklearn_clone__()
        if callbacks := vars(self).get("_skl_callbacks"):  # scikit-learn before 1.9 drops them
            copy._skl_callbacks = callbacks
        if stamp := ledger_stamp(self._ledger_stamp):
            for hook in CLONE_HOOKS:
                stamp = hook(stamp)
            copy._ledger_stamp = stamp
        return copy

    def __getstate__(self):
        state = super().__getstate__()
        stamp = ledger_stamp(self._ledger_stamp, pickled=True)
        return dict(state, _ledger_stamp=stamp) if stamp else state

    def privacy_card(self):
        """Return the receipt and its ledger, to print or to show in a notebook.

        Returns
        -------
        card : privacy_card
            ``str(card)`` is text; notebooks show a table.
        """
        check_is_fitted(self, "privacy_spent_")
        return privacy_card(type(self).__name__, self.privacy_spent_, self.ledger_)


_STREAM = (
    "_private"  # holds the running stream: secret, never pickled, not part of what is released
)
# How many acts of the stream its estimator knows to be done: fewer, if a call was interrupted.
_ACTS = "_acknowledged"
_NO_VALUE = "not kept"


def _plain(value):
    """Return a parameter as numbers, strings and lists, for comparison and for a checkpoint."""
    if isinstance(value, np.ndarray):
        return {"array": value.tolist()}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else _NO_VALUE


def _parameter(plain):
    """Undo `_plain`; a random generator is not kept (its stream of noise is)."""
    if isinstance(plain, Mapping) and list(plain) == ["array"]:
        return np.asarray(plain["array"])
    return None if plain == _NO_VALUE else plain


class StreamingMixin:
    """An estimator with running streams: they go on over calls, checkpoints and crashes.

    Subclasses have ``_publish(group)``, which sets the fitted attributes from the last releases,
    list in ``_free`` the parameters that may change while a stream runs, and in ``_secrets`` what
    a copy must not have.
    """

    _free = ("n_jobs",)
    _secrets = (_STREAM, _ACTS)  # never copied

    def _start_stream(self, session, bounds, shares, notes, **options):
        """Pay for all streams (dict of bounds) or sketches (list); nothing is read."""
        pay = StreamGroup.paid if isinstance(bounds, Mapping) else StreamGroup.paid_sketches
        group = pay(session, bounds, shares, self.max_releases, **options)
        group.notes = notes | {
            "class": type(self).__name__,
            "params": self._plain_params(),
        }
        return group

    def _running_stream(self):
        """Return the running group, charged to all ledgers that are open now; None if none runs."""
        group = vars(self).get(_STREAM)
        if group is None:
            return None
        self._check_stream(group.session, group.notes["params"])
        if vars(self).get(_ACTS, 0) != group.acts:
            raise PrivacyError(
                "an earlier call was interrupted after its data were taken: again, they would "
                "count twice. n_acknowledged() tells how many calls were done, and lets the stream "
                "go on after them."
            )
        return group

    def _plain_params(self):
        return _plain(self.get_params(deep=False))

    def _check_stream(self, session, before):
        """Refuse parameters that changed; charge the stream to all ledgers that are open now."""
        now = self._plain_params()
        changed = [name for name in now if now[name] != before[name] and name not in self._free]
        if changed:
            raise ValueError(
                f"The parameters {changed} of {type(self).__name__} changed while its stream runs. "
                "Set them back, or start anew with sklearn.base.clone."
            )
        sensitivity = getattr(self, "sensitivity", None)
        ledger.charge(session, type(self).__name__, sensitivity=sensitivity)

    def _keep_stream(self, group):
        """Set what was released; a stream that has ended leaves nothing secret behind."""
        self._publish(group)
        setattr(self, _ACTS, group.acts)  # undone by `atomic`, if the call fails after all
        if group.left > 0:
            setattr(self, _STREAM, group)
            return self
        self._drop_stream()
        checkpoint.close(group)
        return self

    def _drop_stream(self):
        group = vars(self).pop(_STREAM, None)
        vars(self).pop(_ACTS, None)
        if group is not None:
            checkpoint.close(group)

    def checkpoint(self, path):
        """Keep the running stream in a file, from now on: a crash then loses nothing.

        Each later call (of ``partial_fit``, ``update`` or ``release``) is made durable before it
        returns. What has returned is acknowledged: `restore` has it, and gives out the same bytes
        for what was released. A call that was killed may or may not have been done:
        `n_acknowledged` of the restored estimator tells where to go on.

        Parameters
        ----------
        path : str or path-like
            A file to make, mode 0600, with a second one, `path` + ".count", beside it. Both hold
            exact sums of private data: keep them like the data. A second path takes over from the
            first.
        """
        group = vars(self).get(_STREAM)
        if group is None:
            raise PrivacyError(
                "no stream is running, so there is nothing secret to keep: pickle the estimator."
            )
        checkpoint.checkpoint(group, path)

    @classmethod
    def restore(cls, path):
        """Return the estimator whose stream was kept at a path, to go on with it.

        Raises PrivacyError if the file is damaged, in use by another process, or older than what
        was acknowledged (an old copy would release the same steps again, with other noise). A copy
        of both files from an earlier time cannot be told from the true ones.

        Parameters
        ----------
        path : str or path-like
            As given to `checkpoint`.

        Returns
        -------
        estimator : object
            Fitted if anything was released.
        """
        group = checkpoint.restore(path)
        try:
            if group.notes["class"] != cls.__name__:
                raise ValueError(f"{path} holds a stream of {group.notes['class']}.")
            params = {name: _parameter(value) for name, value in group.notes["params"].items()}
            estimator = cls(**params)
            group.notes["params"] = estimator._plain_params()
            estimator._check_stream(group.session, group.notes["params"])
            estimator._warn_if_weak(group.session.budget.epsilon, group.session.source.seeded)
            if group.steps:
                return estimator._keep_stream(group)
            setattr(estimator, _STREAM, group)
            setattr(estimator, _ACTS, group.acts)
            return estimator
        except BaseException:
            checkpoint.close(group)
            raise

    def n_acknowledged(self):
        """Return how many calls the running stream has done, and go on after the last of them.

        Of ``partial_fit``, ``update``, ``update_matrix`` and ``release``. Ask it after a restore,
        and after a call that was interrupted: where its data were taken all later calls raise until
        it is asked, and what was released is then set. For the owner of the data: how often there
        was data may tell more than was released.

        Returns
        -------
        n_calls : int
        """
        group = vars(self).get(_STREAM)
        if group is None:
            raise PrivacyError("no stream is running.")
        if vars(self).get(_ACTS, 0) != group.acts and group.steps:
            self._keep_stream(group)
        else:
            setattr(self, _ACTS, group.acts)
        return group.acts

    def released(self):
        """Return a copy with what was released and nothing else: it can be pickled and published.

        Returns
        -------
        public : object
            A fitted estimator of the same class, whose stream does not go on.
        """
        check_is_fitted(self, "privacy_spent_")
        copy = type(self)(**self.get_params(deep=False))
        vars(copy).update({k: v for k, v in vars(self).items() if k not in self._secrets})
        return copy
