"""Personalised models over clients that keep their rows."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from sklearn.utils import check_X_y

from skdp._inputs import advised, check_numbers
from skdp._limits import FloatArray
from skdp._validation import check_count, complete_labels
from skdp.data.blocks import zero_rows
from skdp.data.units import UserRows
from skdp.exceptions import PrivacyError
from skdp.federated import _clients
from skdp.federated._messages import Argument
from skdp.federated.aggregation import Aggregator
from skdp.federated.config import AggregationConfig
from skdp.privacy.accounting.receipts import LedgerEntry, PrivacySpent
from skdp.privacy.gate.bounds import Ask, Bounded, PrivateQuery
from skdp.privacy.gate.session import PrivacySession
from skdp.queries.columns import ColumnQuery, RankQuery
from skdp.queries.users import UserQuery
from skdp.solvers.personalization import GlobalModel, Pooled, UserDirections, View
from skdp.solvers.user_heads import HeadRule, Heads, HeadVotes

# Federated fits of personalised models: the requests of the server and the answers of devices.
#
# The solver is that of the central fit. In a central fit, a message is a public function of one
# user's rows with public arrays as parameters. In a federated fit only the arrays are sent: the
# client builds the function from them and its own copy of the estimator, so that it need not trust
# bounds or code of the server.


_SKEW, _MOST_RULES, _MOST_POINTS = 1e-6, 1000, 1000
_MOST_CONDITION = 1e9  # largest condition number of a whitener; those of fits stay below 1e7
# Entries of trial users: their squares, products and sums overflow or underflow.
_SIZES: FloatArray = np.array([1.0, 1e-154, -1.0, 1e154, 1e-4, 1e150, 5e-324, -1e-162, 1e308, 0.0])


class FirstFitUsers(PrivateQuery):
    """The query over the users of one client (or over no users, on the server).

    Each method is a release of the solver. Its arrays come from the server, everything else from
    the estimator that the client holds. `UserQuery` bounds what a user adds, whatever the arrays
    are.

    Parameters
    ----------
    estimator : DPPersonalizedRegressor or DPPersonalizedClassifier
        Unfitted, with known classes.
    users : UserQuery
        The private rows, by user.
    """

    def __init__(self, estimator: Any, users: UserQuery) -> None:
        self._estimator, self._users = estimator, users
        self.n_features, self.n_outputs = users.n_features, users.n_outputs

    @property
    def n_rows(self) -> int:
        """Number of users, where it is public."""
        return self._users.n_rows

    def _view(self, whitener: Any, coef: Any, intercept: Any) -> View:
        base = None if coef is None else self._model(coef, intercept)
        return cast(View, self._estimator._view(whitener, base))

    def _model(self, coef: FloatArray, intercept: Any) -> GlobalModel:
        if intercept is None:  # of each user's own
            return GlobalModel(coef, np.zeros(self.n_outputs), own_means=True)
        return GlobalModel(coef, intercept)

    @staticmethod
    def sound_together(method: str, arguments: tuple[Argument, ...]) -> bool:
        """Whether a global intercept comes with global coefficients."""
        return method != "user_direction_gram" or arguments[1] is not None or arguments[2] is None

    def scaled(self, center: FloatArray, scale: FloatArray, limit: FloatArray) -> FirstFitUsers:
        """Return the query over rows that are centred, scaled and clipped by public numbers."""
        return FirstFitUsers(self._estimator, self._users.scaled(center, scale, limit))

    def columns(self) -> ColumnQuery:
        """Return the query over the columns of one row of each user."""
        return self._users.columns()

    def targets(self) -> ColumnQuery:
        """Return the query over the targets of one row of each user."""
        return self._users.targets()

    def target_means(self) -> ColumnQuery:
        """Return the query over the means of each user's targets."""
        return self._users.target_means()

    def pooled_regression_moments(
        self, weight: Any, target_center: Any, target_size: float
    ) -> Bounded:
        """Return the moments X'X and X'y for the global model; each user adds a bounded part."""
        intercept = self._estimator.fit_intercept
        return self._asked(Pooled(weight, target_center, target_size, intercept))

    def user_direction_gram(self, *view: Any) -> Bounded:
        """Return the sum of u u' over users, u the unit direction of a user's own fit."""
        return self._asked(UserDirections(self._view(*view), self.n_features))

    def head_rule_votes(self, *view_and_rules: Any) -> Bounded:
        """Return the users' unit votes for the rules by which heads are fitted."""
        whitener, coef, intercept, U, rules = view_and_rules
        model = self._model(coef, intercept)
        based = self._estimator._y_numeric
        view = self._view(whitener, coef if based else None, intercept if based else None)
        given = tuple(HeadRule(*rule) for rule in rules.tolist())
        return self._asked(HeadVotes(Heads(view, U, model), given))

    def _asked(self, message: Any) -> Bounded:
        return cast(Bounded, message.asked(self._users))


class FirstFitSession(_clients.FederatedSession):
    """The session of the estimator's own fit, which sends the solver's requests to the clients."""

    def ask(self, query: object) -> Any:
        """Return the `Ask` that sends requests to the clients."""
        return _AskUsers(super().ask(query))


class _AskUsers:
    """An `Ask` over users that sends the public arrays of a message, not the function itself."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def grams(self, name: str, message: Any, *_: Any, **share: float) -> Any:
        """Return the clients' answer to a message: a noisy sum."""
        return getattr(self._ask, name)(*message.public, **share)

    sums = grams

    def scaled(self, *scaling: Any) -> Any:
        """Return the `Ask` over rows that are centred, scaled and clipped by public numbers."""
        return _AskUsers(self._ask.scaled(*scaling))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ask, name)


def trial_users(estimator: Any, d: int, p: int) -> FirstFitUsers:
    """Return synthetic users with few and with many rows, to test requests on before paying.

    A request that works for these users works for all, so that no error can follow a charge. Some
    have rows of zeros, others have entries of all sizes, beyond all bounds that a server may send.
    """
    codes = np.repeat(np.arange(6), [1, 3, d + 3, 1, 3, d + 3])
    X, Y = np.zeros((len(codes), d)), np.zeros((len(codes), p))
    mixed = codes > 2
    X[mixed] = _SIZES[np.add.outer(np.arange(d + 7), np.arange(d)) % len(_SIZES)]
    Y[mixed] = 1.0
    rows = UserRows(X, Y, codes, True)
    return FirstFitUsers(estimator, UserQuery(rows, adjacency=estimator.adjacency))


# -- checks of the arguments that a client accepts ---------------------------------------------


def is_whitener(query: Any, value: Argument) -> bool:
    """None, or a matrix of the features that is neither tiny, huge nor singular.

    Features may have any units, so the condition number is that of the matrix with scaled rows.
    """
    if value is None:
        return True
    d = query.n_features
    if not _clients.is_floats(value, 2) or value.shape != (d, d):
        return False
    largest = np.abs(value).max(axis=1, keepdims=True)
    if not (largest.min() > _clients.TINY and largest.max() < 1 / _clients.TINY):
        return False
    return bool(np.linalg.cond(value / largest) < _MOST_CONDITION)


def is_orthonormal(query: Any, value: Argument) -> bool:
    """Orthonormal columns."""
    if not _clients.is_floats(value, 2) or len(value) != query.n_features:
        return False
    k = value.shape[1]
    return bool(1 <= k <= len(value) and np.abs(value.T @ value - np.eye(k)).max() < _SKEW)


def is_units(query: Any, value: Argument) -> bool:
    """One positive number for each feature; infinity leaves a feature out."""
    return (
        _clients.is_array(value, 1)
        and len(value) == query.n_features
        and bool(np.all(value > _clients.TINY))
    )


def is_coef(query: Any, value: Argument) -> bool:
    """None, or finite coefficients."""
    shape = query.n_features, query.n_outputs
    return value is None or (_clients.is_floats(value, 2) and value.shape == shape)


def is_level(query: Any, value: Argument) -> bool:
    """None, or one finite number for each output."""
    return value is None or (_clients.is_floats(value, 1) and len(value) == query.n_outputs)


def is_rules(_: Any, value: Argument) -> bool:
    """Rules for fitting heads, one in each row, as `HeadRule` has them."""
    if not _clients.is_array(value, 2) or value.shape[1] != 5 or not 1 <= len(value) <= _MOST_RULES:
        return False
    return bool((value >= 0).all() and (value[:, [0, 3, 4]] <= [2, 8, 8]).all())


def _given(check: Any) -> Any:
    """Refuse None, too."""
    return lambda query, value: value is not None and check(query, value)


def is_grid(query: Any, value: Argument) -> bool:
    """Some points for each feature, not NaN."""
    if not _clients.is_array(value, 2) or np.isnan(value).any():
        return False
    return bool(len(value) == query.n_features and value.shape[1] <= _MOST_POINTS)


def is_points(_: Any, value: Argument) -> bool:
    """Numbers of points."""
    return _clients.is_array(value, 1, "i")


_VIEW = (is_whitener, is_coef, is_level)
_LEVEL = _given(is_level)
SIGNATURES: dict[type, _clients.Signatures] = {
    FirstFitUsers: {
        "columns": (),
        "scaled": (_clients.is_center, is_units, is_units),
        "targets": (),
        "target_means": (),
        "pooled_regression_moments": (_clients.is_center, _LEVEL, _clients.is_positive),
        "user_direction_gram": _VIEW,
        "head_rule_votes": (is_whitener, _given(is_coef), is_level, is_orthonormal, is_rules),
    },
    ColumnQuery: {"count": (), "grid": (is_grid,), "distances": (_clients.is_center, is_grid)},
    RankQuery: {"ranks": (is_points,)},
}


def _unfitted(model: Any) -> tuple[Any, int]:
    """Return a copy for a fit, which knows its classes, and the number of its outputs."""
    if not hasattr(model, "make_head") or hasattr(model, "components_"):
        raise ValueError(
            "'model' must be an unfitted DPPersonalizedRegressor or DPPersonalizedClassifier. Got "
            f"a value of type {type(model).__name__} instead."  # it may be the rows
        )
    model = model._twin()
    model._check_parameters()
    _clients.finite_budget(float(model.epsilon), float(model.delta))
    if model.group_column is not None:
        raise ValueError("federated clients take users as 'groups'; leave 'group_column' at None.")
    model._decide_classes()
    return model, model._encoding()[1]


class PersonalizedClient(_clients.FederatedClient):
    """A client (the device of one user, or a site with several) of a personalised fit.

    What it sends satisfies (`epsilon`, `delta`)-differential privacy for all rows of one user,
    against the server and, with ``config.n_colluders`` of at least 1, everybody else, under the
    conditions of `PowerMethodClient`. All rows of a user must be at one client, because a user at
    two clients would count twice.

    Parameters
    ----------
    model : DPPersonalizedRegressor or DPPersonalizedClassifier
        Unfitted, the same on all sides; a classifier with `classes`. The client computes with its
        own copy; only arrays come from the server.
    X : array-like of shape (n_rows, n_features)
        The private rows.
    y : array-like of shape (n_rows,)
        Their targets.
    config : AggregationConfig
        Public counts of clients, colluders and drop-outs.
    groups : array-like of shape (n_rows,), default=None
        The user of each row; None: one user owns all of them.
    epsilon, delta : float, default=1.0, 1e-6
        What this client spends at most.

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
    ) -> None:
        model, n_outputs = _unfitted(model)
        y = complete_labels(y)
        X, y = advised(model, check_X_y, X, y, accept_sparse="csr", y_numeric=model._y_numeric)
        y = check_numbers(y) if model._y_numeric else y
        codes = np.zeros(X.shape[0], int)
        if groups is not None:
            codes = np.unique(model._checked_labels(groups, X), return_inverse=True)[1]
        d = int(X.shape[1])
        super().__init__(
            FirstFitUsers(model, model._query(X, y, codes)),
            config,
            SIGNATURES,
            epsilon=epsilon,
            delta=delta,
            adjacency=model.adjacency,
            unit="group",
            n_features=d,
            trial=trial_users(model, d, n_outputs),
        )


class FederatedRounds:
    """The server of the fit of a personalised model over devices.

    It satisfies the (`epsilon`, `delta`)-differential privacy of the estimator for all rows of one
    user. See `FederatedPowerMethod` for the conditions.

    Parameters
    ----------
    model : DPPersonalizedRegressor or DPPersonalizedClassifier
        Unfitted: it is fitted over the clients, by the releases and with the receipt of its own
        ``fit``. It is not changed.
    config : AggregationConfig
        Public counts of clients, colluders and drop-outs.

    Attributes
    ----------
    privacy_spent_ : PrivacySpent
        The receipt of this fit, of one that failed too. An open `PrivacyLedger` is charged as with
        any fit.
    releases_ : tuple of LedgerEntry
        One line for each release.

    Notes
    -----
    The steps are those of a central fit, but each release is a secure sum. With default parameters
    there are about 70 releases, most of them for the location and scale of targets and columns.

    Examples
    --------
    A fit over 8 clients with 250 users each.

    >>> import numpy as np
    >>> from skdp import DPPersonalizedRegressor
    >>> from skdp.federated import (
    ...     AggregationConfig, FederatedRounds, PersonalizedClient, UnmaskedAggregator
    ... )
    >>> rng = np.random.default_rng(0)
    >>> def people(n):
    ...     X, users = rng.standard_normal((10 * n, 6)), np.repeat(np.arange(n), 10)
    ...     factor = (1 + rng.standard_normal((n, 1))) * np.eye(6)[0]
    ...     return X, np.sum(X * factor[users], axis=1), users
    >>> config = AggregationConfig(n_clients=4, n_colluders=1)
    >>> sites = [people(120) for _ in range(4)]
    >>> estimator = DPPersonalizedRegressor(1, epsilon=2.0, target_bounds=(-3, 3))
    >>> clients = [
    ...     PersonalizedClient(estimator, X, y, config, groups=g, epsilon=2.0) for X, y, g in sites
    ... ]
    >>> sums = UnmaskedAggregator([client.respond for client in clients])
    >>> model = FederatedRounds(estimator, config).fit(sums, n_features=6)
    >>> bool(abs(model.components_[0, 0]) > 0.9), model.privacy_spent_
    (True, (epsilon=2, delta=1e-06) group)
    """

    privacy_spent_: PrivacySpent
    releases_: tuple[LedgerEntry, ...]

    def __init__(self, model: Any, config: AggregationConfig) -> None:
        self.model = model
        self.config = config

    def fit(self, aggregator: Aggregator, *, n_features: int, n_users: int | None = None) -> Any:
        """Fit through the secure sum.

        Parameters
        ----------
        aggregator : callable
            As in `FederatedPowerMethod.fit`.
        n_features : int
            Number of features, public.
        n_users : int or None, default=None
            Number of users of all clients: under ``adjacency="replace"``, where it is public.

        Returns
        -------
        model : object
            The fitted estimator, with its receipt and without models of users.
        """
        estimator, p = _unfitted(self.model)
        n_features = check_count("n_features", n_features, 1)
        n = _public_users(estimator, n_users)
        rows = UserRows(zero_rows(n, n_features), zero_rows(n, p), np.arange(n), True)
        schema = FirstFitUsers(estimator, UserQuery(rows, adjacency=estimator.adjacency))
        opened: list[PrivacySession] = []

        def connect(session: PrivacySession) -> FirstFitSession:
            opened.append(session)
            return FirstFitSession(session, aggregator, self.config, n_features)

        try:
            return estimator._fit_elsewhere(schema, n_features, connect)
        finally:  # what was granted before an abort stays spent
            for session in opened:
                self.privacy_spent_, self.releases_ = session.spent(), session.ledger


def _public_users(estimator: Any, n_users: Any) -> int:
    """Return the number of users, 0 where it is private."""
    public = estimator.adjacency == "replace"
    if public != (n_users is not None):
        raise PrivacyError(
            "'n_users' is public under adjacency='replace', which needs it, and private under "
            f"'add_remove', where it is left out. Got {n_users!r} under {estimator.adjacency!r}."
        )
    return check_count("n_users", n_users, 0) if public else 0
