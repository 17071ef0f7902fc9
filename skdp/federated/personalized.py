"""A personalised model over devices, from its first fit on: bounded, noisy messages alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_X_y

from skdp._labels import as_labels
from skdp.data.users import UserRows
from skdp.exceptions import PrivacyError
from skdp.federated._ask import Aggregate, Federation
from skdp.federated._clients import (
    FederatedClient,
    Signatures,
    check_count,
    finite_budget,
    is_components,
)
from skdp.federated._first_fit import SIGNATURES, FirstFitSession, FirstFitUsers, trial_users
from skdp.federated._requests import Facts
from skdp.federated.config import AggregationConfig
from skdp.federated.noise_parts import NoiseParts
from skdp.privacy.accounting.receipts import LedgerEntry, PrivacySpent
from skdp.privacy.gate.ask import Ask
from skdp.privacy.gate.bounds import Bounded, PrivateQuery
from skdp.privacy.gate.session import PrivacySession
from skdp.privacy.ledger import routes
from skdp.privacy.ledger.routes import Account
from skdp.privacy.noise.words import SystemSource
from skdp.queries.users import UserQuery


class _Users(PrivateQuery):
    """The users of one client, as a public model sees them."""

    def __init__(self, public: Any, X: Any, Y: NDArray[Any], codes: NDArray[Any]) -> None:
        self._public = public
        self._query = public._query(X, Y, codes)
        self.n_features = int(X.shape[1])

    def round(self, components: NDArray[np.float64]) -> Bounded:
        """Return the sum of the users' messages of one round, at public components.

        Each message is clipped to its public norm, whatever the components are.
        """
        bounded: Bounded = self._public._round(self._query, components)
        return bounded


def _is_fitted(model: Any) -> bool:
    """Whether further rounds are asked for; an unfitted model is for a first fit."""
    if not hasattr(model, "server_update"):
        raise ValueError(
            "'model' must be a DPPersonalizedRegressor or DPPersonalizedClassifier: unfitted, or "
            f"as released() returns it. Got {model!r} instead."
        )
    return hasattr(model, "components_")


def _unfitted(model: Any) -> tuple[Any, int]:
    """Return a copy for a first fit, which knows its classes, and the number of its outputs."""
    model = model._twin()
    model._check_parameters()
    finite_budget(float(model.epsilon), float(model.delta))
    if model.init == "exponential":
        raise PrivacyError(
            "init='exponential' is a private choice, which no sum over clients can make. Use "
            "'votes', 'pairs' or 'random'."
        )
    if model.user_column is not None:
        raise ValueError("over clients users are given by 'groups'; leave 'user_column' out.")
    return model, model._block_encoding()[1]


_SIGNATURES: dict[type, Signatures] = {_Users: {"round": (is_components,)}, **SIGNATURES}


class PersonalizedClient(FederatedClient):
    """A device (or a house of several users) in the fit or in rounds of a personalised model.

    What it sends satisfies (`epsilon`, `delta`)-differential privacy for all rows of one user,
    against the server and, with ``config.n_colluders`` of at least 1, everybody else, under the
    conditions of `PowerMethodClient`. All rows of a user must be at one client: a user in two would
    count twice.

    Parameters
    ----------
    model : DPPersonalizedRegressor or DPPersonalizedClassifier
        The same on all sides: unfitted (a classifier with `classes`) for a first fit, or the
        published model (``released()``) for further rounds. The client computes with its own copy;
        only arrays come from the server.
    X : array-like of shape (n_rows, n_features)
        The private rows.
    y : array-like of shape (n_rows,)
        Their targets.
    config : AggregationConfig
        Public counts of clients, colluders and drop-outs.
    groups : array-like of shape (n_rows,), default=None
        The user of each row; None: one user owns all of them.
    epsilon, delta : float
        What this client spends at most, over all rounds.
    n_retries : int, default=0
        As in `PowerMethodClient`.

    See Also
    --------
    FederatedRounds : The server, with an example.
    """

    def __init__(
        self,
        model: Any,
        X: Any,
        y: Any,
        config: AggregationConfig,
        *,
        groups: Any = None,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        n_retries: int = 0,
    ) -> None:
        first = not _is_fitted(model)
        model, n_outputs = _unfitted(model) if first else (model._copy(), 0)
        y = y if model._y_numeric else as_labels(y)
        X, y = check_X_y(
            X, y, accept_sparse="csr", dtype=[np.float64, np.float32],
            y_numeric=bool(model._y_numeric),
        )  # fmt: skip
        codes = np.zeros(X.shape[0], int)
        if groups is not None:
            codes = np.unique(model._checked_labels(groups, X), return_inverse=True)[1]
        Y, d = model._encoded(y, reset=False), int(X.shape[1])
        query: PrivateQuery
        if first:
            query = FirstFitUsers(model, model._query(X, Y, codes))
        else:
            query = _Users(model, X, Y, codes)
        super().__init__(
            query,
            config,
            _SIGNATURES,
            epsilon=epsilon,
            delta=delta,
            adjacency=model.adjacency,
            unit="group",
            n_features=d,
            n_retries=n_retries,
            trial=trial_users(model, d, n_outputs) if first else None,
        )


class FederatedRounds:
    """The server of a personalised model over devices: its first fit, or further rounds of it.

    A first fit satisfies the (`epsilon`, `delta`)-differential privacy of the estimator for all
    rows of one user. Further rounds satisfy that of their own parameters, in addition to what the
    model itself has spent. See `FederatedPowerMethod` for the conditions.

    Parameters
    ----------
    model : DPPersonalizedRegressor or DPPersonalizedClassifier
        Unfitted: it is fitted over the clients, by the releases and with the receipt of its own
        ``fit``. Or the published model (``released()``) that further rounds start from. It is not
        changed.
    config : AggregationConfig
        Public counts of clients, colluders and drop-outs.
    epsilon, delta : float
        Budget of all further rounds together. A first fit has the budget of its estimator.
    n_rounds : int, default=1
        Further rounds, each with the same part of the budget. A first fit has those of its
        estimator.

    Attributes
    ----------
    privacy_spent_ : PrivacySpent
        The receipt of this fit, of one that failed too; that of further rounds is for the rounds
        alone: compose it with that of `model`. An open `PrivacyLedger` is charged as with any fit.
    ledger_ : tuple of LedgerEntry
        One line for each release.

    Notes
    -----
    A first fit is the solver of the central one, with another `ask`: the model of all, whitener,
    votes, rounds and the vote for a rule of heads come through secure sums. Each release is a step
    of its own: with default parameters about 70, most of them for where targets and columns lie.
    Public `target_bounds` save half of these; ``whiten=False, init="random"`` and 10 rounds or
    more need no matrix of order n_features.

    Examples
    --------
    A first fit over 8 houses of 250 users each.

    >>> import numpy as np
    >>> from skdp import DPPersonalizedRegressor
    >>> from skdp.federated import (
    ...     AggregationConfig, FederatedRounds, PersonalizedClient, PlainAggregator
    ... )
    >>> rng = np.random.default_rng(0)
    >>> def people(n):
    ...     X, users = rng.standard_normal((10 * n, 6)), np.repeat(np.arange(n), 10)
    ...     taste = rng.standard_normal((n, 1)) * np.eye(6)[0]
    ...     return X, np.sum(X * taste[users], axis=1), users
    >>> config = AggregationConfig(n_clients=8, n_colluders=2)
    >>> houses = [people(250) for _ in range(8)]
    >>> estimator = DPPersonalizedRegressor(1, epsilon=2.0, target_bounds=(-3, 3))
    >>> clients = [
    ...     PersonalizedClient(estimator, X, y, config, groups=g, epsilon=2.0) for X, y, g in houses
    ... ]
    >>> sums = PlainAggregator([client.respond for client in clients])
    >>> model = FederatedRounds(estimator, config).fit(sums, n_features=6)
    >>> bool(abs(model.components_[0, 0]) > 0.9), model.privacy_spent_
    (True, (ε=2, δ=1e-06) group)

    A model of 1000 pilot users gets a further round from 8 houses of 250 new users each.

    >>> X, y, users = people(1000)
    >>> pilot = DPPersonalizedRegressor(1, epsilon=1.0, target_bounds=(-3, 3))
    >>> pilot = pilot.fit(X, y, groups=users).released()
    >>> clients = [PersonalizedClient(pilot, X, y, config, groups=g) for X, y, g in houses]
    >>> rounds = FederatedRounds(pilot, config)
    >>> model = rounds.fit(PlainAggregator([client.respond for client in clients]))
    >>> bool(abs(model.components_[0, 0]) > 0.99)
    True
    >>> rounds.privacy_spent_
    (ε=1, δ=1e-06) group
    """

    privacy_spent_: PrivacySpent
    ledger_: tuple[LedgerEntry, ...]

    def __init__(
        self,
        model: Any,
        config: AggregationConfig,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        n_rounds: int = 1,
    ) -> None:
        self.model = model
        self.config = config
        self.epsilon = epsilon
        self.delta = delta
        self.n_rounds = n_rounds

    def fit(
        self, aggregator: Aggregate, *, n_features: int | None = None, n_users: int | None = None
    ) -> Any:
        """Fit, or run the rounds, through the secure sum.

        Parameters
        ----------
        aggregator : callable
            As in `FederatedPowerMethod.fit`.
        n_features : int or None, default=None
            Number of features, public: for a first fit, which needs it.
        n_users : int or None, default=None
            Number of users of all clients: for a first fit under ``adjacency="replace"``, where it
            is public.

        Returns
        -------
        model : object
            After a first fit: the fitted estimator, with its receipt and without heads. After
            further rounds: a public copy with new `components_` and without a receipt.
        """
        if not _is_fitted(self.model):
            return self._first_fit(aggregator, n_features, n_users)
        if n_features is not None or n_users is not None:
            raise ValueError("'n_features' and 'n_users' are for a first fit; leave them out.")
        model = self.model._copy()
        if check_count("n_rounds", self.n_rounds) < 1:
            raise ValueError(f"'n_rounds' must be at least 1. Got {self.n_rounds!r} instead.")
        d = model.components_.shape[1]
        session = PrivacySession(
            finite_budget(float(self.epsilon), float(self.delta)),
            source=SystemSource(),
            adjacency=model.adjacency,
            unit="group",
            observer=Account(),
        )
        counts = NoiseParts.of(self.config).counts
        federation = Federation(session, aggregator, Facts("group", model.adjacency, d, *counts))
        routes.charge(session, type(self).__name__)
        state = "failed"
        try:
            model = self._improved(model, federation)
            state = "fitted"
        finally:  # what was granted before an abort stays spent
            self.privacy_spent_, self.ledger_ = session.spent(), session.ledger
            routes.settle(session, state)
        return model

    def _first_fit(self, aggregator: Aggregate, n_features: Any, n_users: Any) -> Any:
        """Run the fit of the estimator, with an `ask` that goes to the clients."""
        given = (self.epsilon, self.delta, self.n_rounds)
        if given != (1.0, 1e-6, 1):
            raise ValueError(
                "A first fit has the 'epsilon', 'delta' and 'n_rounds' of its estimator; leave "
                f"them out here. Got {given}."
            )
        estimator, p = _unfitted(self.model)
        if n_features is None or check_count("n_features", n_features) < 1:
            raise ValueError(f"A first fit needs 'n_features'. Got {n_features!r} instead.")
        n = _public_users(estimator, n_users)
        rows = UserRows(_zeros(n, n_features), _zeros(n, p), np.arange(n), True)
        schema = FirstFitUsers(estimator, UserQuery(rows, adjacency=estimator.adjacency))
        counts, opened = NoiseParts.of(self.config).counts, []

        def connect(session: PrivacySession) -> FirstFitSession:
            opened.append(session)
            facts = Facts("group", session.adjacency, n_features, *counts)
            return FirstFitSession(Federation(session, aggregator, facts))

        try:
            return estimator._fit_elsewhere(schema, connect)
        finally:  # what was granted before an abort stays spent
            for session in opened:
                self.privacy_spent_, self.ledger_ = session.spent(), session.ledger

    def _improved(self, model: Any, federation: Federation) -> Any:
        """Run the rounds; each starts from the components that the one before released."""
        d = model.components_.shape[1]
        for _ in range(self.n_rounds):
            schema = _Users(model, np.zeros((0, d)), np.zeros((0, 1)), np.zeros(0, int))
            ask = Ask(federation, schema)
            answer = ask.round(model.components_, share=1 / self.n_rounds)
            model = model.server_update(answer.value, answer.noise_scale)
        return model


def _zeros(n: int, d: int) -> NDArray[np.float64]:
    """Return rows that take no memory: a bound needs only their shape."""
    return np.broadcast_to(np.zeros(()), (n, d))


def _public_users(estimator: Any, n_users: Any) -> int:
    """Return the number of users, 0 where it is private."""
    public = estimator.adjacency == "replace"
    if public != (n_users is not None):
        raise PrivacyError(
            "'n_users' is public under adjacency='replace', which needs it, and private under "
            f"'add_remove', where it is left out. Got {n_users!r} under {estimator.adjacency!r}."
        )
    return check_count("n_users", n_users) if public else 0
