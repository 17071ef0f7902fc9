"""Estimators whose streams go on over calls: checkpoints, what may be published."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from skdp.base import FitObserver
from skdp.exceptions import PrivacyError
from skdp.privacy.ledger import routes
from skdp.privacy.streams import checkpoints
from skdp.privacy.streams.checkpoints import StreamGroup
from skdp.units import bound_of

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

    Subclasses have ``_set_last_release(group)``, which sets the fitted attributes from the last
    releases, list in ``_free`` the parameters that may change while a stream runs, and in
    ``_secrets`` what a copy must not have.
    """

    _splits_budget = False

    _private = None  # the running stream: secret, never pickled, not part of what is released
    _acknowledged = 0  # calls of it that are known to be complete: fewer after an interruption
    _free = ("n_jobs",)
    _secrets = ("_private", "_acknowledged")  # never copied

    def _start_stream(self, session, bounds, shares, notes, **options):
        """Pay for all streams (dict of bounds) or sketches (list); nothing is read."""
        pay = StreamGroup.paid if isinstance(bounds, Mapping) else StreamGroup.paid_sketches
        group = pay(session, bounds, shares, self.max_releases, **options)
        group.notes = notes | {"class": type(self).__name__, "params": self._plain_params()}
        return group

    def _running_stream(self):
        """Return the running group, charged to all ledgers that are open now; None if none runs."""
        group = self._private
        if group is None:
            return None
        self._check_stream(group.session, group.notes["params"])
        if self._acknowledged != group.acts:
            raise PrivacyError(
                "an earlier call was interrupted, and its batch may be included. Continue after as "
                "many calls as n_committed_calls() returns."
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
                "Set them back, or start a new stream with sklearn.base.clone."
            )
        routes.charge(session, type(self).__name__, sensitivity=bound_of(self))

    def _keep_stream(self, group):
        """Set what was released; after the end of a stream nothing secret remains."""
        self._set_last_release(group)
        self._private, self._acknowledged = group, group.acts  # undone by `atomic` if a call fails
        if group.left <= 0:
            self._drop_stream()
        return self

    def _name_features(self, names, d):
        """Set what is public of the columns, which an estimator does not know after a restore."""
        if names and not hasattr(self, "feature_names_in_"):
            self.feature_names_in_ = np.asarray(names, dtype=object)
        self.n_features_in_ = d

    def _drop_stream(self):
        group = vars(self).pop("_private", None)
        vars(self).pop("_acknowledged", None)
        if group is not None:
            checkpoints.close(group)

    def checkpoint(self, path: Any) -> Any:
        """Write the running stream to a file from now on, so that it survives a crash.

        Each later call of ``partial_fit``, ``update`` or ``release`` is on the disk when it
        returns, and `restore` gives the same releases again. A call that was killed is either done
        completely or not at all: `n_committed_calls` of the restored estimator says which.

        Parameters
        ----------
        path : str or path-like
            A new file with mode 0600, next to `path` + ".lock" and `path` + "-journal". They
            hold exact sums of private data: keep them together, and protect them like the data. A
            second call with another path replaces the first file.
        """
        if self._private is None:
            raise PrivacyError(
                "no stream is running, so there is nothing secret to keep: pickle the estimator."
            )
        checkpoints.checkpoint(self._private, path)

    @classmethod
    def restore(cls, path: Any) -> Any:
        """Return the estimator whose stream was written to a path; its stream continues.

        Raises PrivacyError if the file is damaged, in use by another process, or older than its
        lock file (an old copy would release the same steps again, with other noise). An old copy of
        all files cannot be detected.

        Parameters
        ----------
        path : str or path-like
            As given to `checkpoint`.

        Returns
        -------
        estimator : object
            Fitted if anything was released.
        """
        group = checkpoints.restore(path, FitObserver())
        try:
            if group.notes["class"] != cls.__name__:
                raise ValueError(f"{path} holds a stream of {group.notes['class']}.")
            params = {name: _parameter(value) for name, value in group.notes["params"].items()}
            estimator = cls(**params)
            group.notes["params"] = estimator._plain_params()
            estimator._check_stream(group.session, group.notes["params"])
            estimator._warn_if_weak(group.session.budget, group.session.source.seeded)
            if group.steps:
                return estimator._keep_stream(group)
            estimator._private, estimator._acknowledged = group, group.acts
            return estimator
        except BaseException:
            checkpoints.close(group)
            raise

    def n_committed_calls(self) -> int:
        """Return how many calls the stream has completed; continue after the last of them.

        Calls are those of ``partial_fit``, ``update``, ``update_matrix`` and ``release``. Call this
        method after a restore, and after an interrupted call: later calls may raise an error until
        then. The number is for the owner of the data, and not covered.

        Returns
        -------
        n_calls : int
        """
        group = self._private
        if group is None:
            raise PrivacyError("no stream is running: none was started, or it has ended.")
        if self._acknowledged != group.acts and group.steps:
            self._keep_stream(group)
        else:
            self._acknowledged = group.acts
        return group.acts

    def public_copy(self) -> Any:
        """Return a copy that holds released values only: it may be pickled and published.

        Returns
        -------
        public : object
            A fitted estimator of the same class, whose stream has ended.
        """
        check_is_fitted(self, "privacy_spent_")
        copy = type(self)(**self.get_params(deep=False))
        vars(copy).update({k: v for k, v in vars(self).items() if k not in self._secrets})
        return copy
