"""Further rounds of a personalised model over devices: each sends one bounded, noisy message."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_X_y

from skdp._labels import as_labels
from skdp.federated._ask import Aggregate, Federation
from skdp.federated._clients import (
    FederatedClient,
    Signatures,
    check_count,
    finite_budget,
    is_components,
)
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


def _checked_model(model: Any) -> Any:
    if not hasattr(model, "server_update") or not hasattr(model, "components_"):
        raise ValueError(
            "'model' must be a fitted DPPersonalizedRegressor or DPPersonalizedClassifier, as "
            f"released() returns it. Got {model!r} instead."
        )
    return model._copy()


_SIGNATURES: dict[type, Signatures] = {_Users: {"round": (is_components,)}}


class PersonalizedClient(FederatedClient):
    """A device (or a house of several users) in rounds of a personalised model.

    What it sends satisfies (`epsilon`, `delta`)-differential privacy for all rows of one user,
    against the server and, with ``config.n_colluders`` of at least 1, everybody else, under the
    conditions of `PowerMethodClient`.

    Parameters
    ----------
    model : DPPersonalizedRegressor or DPPersonalizedClassifier
        The published model (``released()``), the same on all sides.
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
        model = _checked_model(model)
        y = y if model._y_numeric else as_labels(y)
        X, y = check_X_y(
            X, y, accept_sparse="csr", dtype=[np.float64, np.float32],
            y_numeric=bool(model._y_numeric),
        )  # fmt: skip
        codes = np.zeros(X.shape[0], int)
        if groups is not None:
            codes = np.unique(model._checked_labels(groups, X), return_inverse=True)[1]
        super().__init__(
            _Users(model, X, model._encoded(y, reset=False), codes),
            config,
            _SIGNATURES,
            epsilon=epsilon,
            delta=delta,
            adjacency=model.adjacency,
            unit="group",
            n_features=int(X.shape[1]),
            n_retries=n_retries,
        )


class FederatedRounds:
    """The server of further rounds of a personalised model.

    The rounds satisfy (`epsilon`, `delta`)-differential privacy for all rows of one user, in
    addition to what the model itself has spent; see `FederatedPowerMethod` for the conditions.

    Parameters
    ----------
    model : DPPersonalizedRegressor or DPPersonalizedClassifier
        The published model to start from; it is not changed.
    config : AggregationConfig
        Public counts of clients, colluders and drop-outs.
    epsilon, delta : float
        Budget of all rounds together.
    n_rounds : int, default=1
        Rounds, each with the same part of the budget.

    Attributes
    ----------
    privacy_spent_ : PrivacySpent
        The receipt of the rounds alone, of a fit that failed too: compose it with that of `model`.
        An open `PrivacyLedger` is charged with the rounds as with any fit.
    ledger_ : tuple of LedgerEntry
        One line for each round.

    Examples
    --------
    A model of 500 pilot users gets a further round from 40 houses of 50 new users each.

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
    >>> X, y, users = people(500)
    >>> pilot = DPPersonalizedRegressor(1, epsilon=1.0).fit(X, y, groups=users).released()
    >>> config = AggregationConfig(n_clients=40, n_colluders=2)
    >>> houses = [people(50) for _ in range(40)]
    >>> clients = [PersonalizedClient(pilot, X, y, config, groups=g) for X, y, g in houses]
    >>> rounds = FederatedRounds(pilot, config)
    >>> model = rounds.fit(PlainAggregator([client.respond for client in clients]))
    >>> bool(abs(model.components_[0, 0]) > abs(pilot.components_[0, 0]))
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

    def fit(self, aggregator: Aggregate) -> Any:
        """Run the rounds through the secure sum.

        Parameters
        ----------
        aggregator : callable
            As in `FederatedPowerMethod.fit`.

        Returns
        -------
        model : object
            A public copy with new `components_`, without heads and without a receipt.
        """
        model = _checked_model(self.model)
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

    def _improved(self, model: Any, federation: Federation) -> Any:
        """Run the rounds; each starts from the components that the one before released."""
        d = model.components_.shape[1]
        for _ in range(self.n_rounds):
            schema = _Users(model, np.zeros((0, d)), np.zeros((0, 1)), np.zeros(0, int))
            ask = Ask(federation, schema)
            answer = ask.round(model.components_, share=1 / self.n_rounds)
            model = model.server_update(answer.value, answer.noise_scale)
        return model
