"""The decentralised fit of row-partitioned data: clients hold the rows, and a server fits.

The solver is that of the central fit. The server passes it an `ask` whose answers are secure sums;
each client reads its own rows through its own gate.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_array

from skdp._inputs import advised, check_unit_bound, matrix_unit
from skdp._validation import check_count, check_size
from skdp.data.blocks import row_source, zero_rows
from skdp.exceptions import PrivacyError
from skdp.federated import _clients
from skdp.federated.aggregation import Aggregator
from skdp.federated.config import AggregationConfig
from skdp.privacy.gate.bounds import PrivateQuery
from skdp.privacy.gate.session import PrivacySession
from skdp.queries.entries import EntryQuery, NormQuery, matrix_query
from skdp.queries.interactions import InteractionQuery, RowHistories
from skdp.queries.rows import RowQuery
from skdp.queries.sums import TangentQuery
from skdp.units import DEGREE, UNITS, Unit, bound_of, unit_of

_UNITS = tuple(name for name, unit in UNITS.items() if unit.federated)
_PRODUCTS: _clients.Signatures = {
    "right": (_clients.is_matrix,),
    "left": (_clients.is_left_matrix,),
    "core": (_clients.is_left_matrix, _clients.is_matrix),
    "ritz": (_clients.is_matrix,),
}
_SIGNATURES: dict[type, _clients.Signatures] = {
    RowQuery: {
        "clipped": (_clients.is_scale,),
        "columns": (_clients.is_selection,),
        "centered": (_clients.is_center,),
        "recentered": (_clients.is_center,),
        "negative": (),
        "tangent": (_clients.is_subspace,),
        "count": (),
        "kept_below": (_clients.is_number,),
        "norms_above": (_clients.is_number,),
        "square_sum": (),
        "sums": (),
        "gram": (),
        "moment": (_clients.is_scale,),
        "projected_gram": (_clients.is_matrix,),
        "gram_product": (_clients.is_matrix,),
    },
    TangentQuery: {"sizes_above": (_clients.is_number,), "product": (_clients.is_positive,)},
    InteractionQuery: {
        "columns": (_clients.is_selection,),
        "counts": (),
        "gram": (),
        "right": (_clients.is_matrix,),
        "ritz": (_clients.is_matrix,),
        "square_sum": (),
    },
    EntryQuery: _PRODUCTS | {"square_sum": ()},
    NormQuery: _PRODUCTS,
    RowHistories: {
        "count": (),
        "counts": (),
        "moment": (_clients.is_selection, _clients.is_positive, _clients.is_direction),
    },
}


class PowerMethodClient(_clients.FederatedClient):
    """One holder of rows in a decentralised fit, with (epsilon, delta)-differential privacy.

    What leaves this client satisfies (`epsilon`, `delta`)-differential privacy for one unit of its
    rows, against the server and readers of the model. With ``config.n_colluders`` of at least 1
    this includes other clients. With 0, a client knows its own noise, and against it mu is
    ``config.against_clients`` times as large.

    Three conditions apply. Contributions are summed by secure aggregation, whose parties follow the
    protocol. At most ``config.n_colluders`` clients share what they know with the server. At most
    ``config.n_dropouts`` drop out of an opened step. A client accepts no bound from the server: it
    recomputes each one, and refuses what its own budget does not cover. The user guide says what a
    server that breaks the protocol can do.

    Parameters
    ----------
    X : {array-like, sparse matrix} of shape (n_rows, n_features)
        The client's private rows; there may be none. Units of entries and edges: the matrix of all
        clients, of the public shape, with zeros for what others hold; see the notes.
    config : AggregationConfig
        Public counts of clients, colluders and drop-outs; the same for all.
    epsilon : float, default=1.0
        What this client spends at most, in the whole fit.
    delta : float, default=1e-6
        Probability that the bound fails, above 0.
    adjacency : {"add_remove", "replace"}, default="add_remove"
        What neighbours differ in; the number of clients is public under both.
    privacy_unit : {"row", "interaction", "entry", "edge", "entry_change", "edge_change"}, \
default="row"
        What is protected, as in `DPTruncatedSVD`.
    unit_bound : (low, high), int, float or None, default=None
        As in `DPTruncatedSVD`; must equal that of the server's estimator.
    n_jobs : int or None, default=None
        Threads for the passes over the rows.

    Attributes
    ----------
    privacy_spent_ : PrivacySpent
        The receipt of this client so far; ``close()`` gives the final one.
    releases_ : tuple of LedgerEntry
        Each answer with its sensitivity and the noise that protects it.

    See Also
    --------
    FederatedPowerMethod : The server.

    Notes
    -----
    Entries: the matrix is the sum of the clients' parts, so that one entry changes the sum by what
    it changes at its client. **Each entry must be at one client**: at two it would count twice.
    Edges: the upper triangle counts. The servers of both endpoints may hold an edge, each in the
    rows of its own nodes: that of the smaller node number counts it, and the other copy, below the
    diagonal, is not read.

    Errors about the client's own data are raised when the client is constructed, and may quote
    them: do not send these errors to others.

    Examples
    --------
    >>> import numpy as np
    >>> from skdp.federated import AggregationConfig, PowerMethodClient
    >>> config = AggregationConfig(n_clients=4, n_colluders=1)
    >>> client = PowerMethodClient(np.eye(3), config, epsilon=2.0)
    >>> client.privacy_spent_.epsilon  # nothing was asked yet
    0.0
    """

    def __init__(
        self,
        X: Any,
        config: AggregationConfig,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        adjacency: str = "add_remove",
        privacy_unit: str = "row",
        unit_bound: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        if privacy_unit not in _UNITS:
            raise ValueError(f"'privacy_unit' must be one of {_UNITS}. Got {privacy_unit!r}.")
        unit, self.privacy_unit, self.unit_bound = UNITS[privacy_unit], privacy_unit, unit_bound
        if adjacency not in unit.adjacencies:
            options = f"one of {unit.adjacencies} with privacy_unit={unit.name!r}"
            raise ValueError(f"'adjacency' must be {options}. Got {adjacency!r}.")
        self.adjacency, X = adjacency, _checked_rows(X)
        query: PrivateQuery
        if unit.by_rows:
            query = RowQuery(X, clip_norm=np.inf, adjacency=adjacency, n_jobs=n_jobs)
        elif unit.bound is DEGREE:
            query = InteractionQuery(X, degree_floor=bound_of(self), adjacency=adjacency)
        else:
            check_unit_bound(self)
            query = matrix_query(X, matrix_unit(self))
        super().__init__(
            query,
            config,
            _SIGNATURES,
            epsilon=epsilon,
            delta=delta,
            adjacency=adjacency,
            unit=privacy_unit,
            n_features=int(X.shape[1]),
            sensitivity=bound_of(self),
        )


class RecommenderClient(_clients.FederatedClient):
    """A holder of user-item rows, with (epsilon, delta)-differential privacy for each of its users.

    The guarantee and its conditions are those of `PowerMethodClient`: what leaves this client
    protects one row (one user with the whole history), under secure sums, and the client recomputes
    each bound. It only answers requests of a recommender: number of users, counts of items, and
    Gram matrix of the selected items.

    Parameters
    ----------
    R : {array-like, sparse matrix} of shape (n_users, n_items)
        The client's private histories; there may be none. Positive entries are items.
    config : AggregationConfig
        Public counts of clients, colluders and drop-outs; the same for all.
    value_cap : "binary" or float, default="binary"
        As in the server's `DPRecommender`.
    epsilon : float, default=1.0
        What this client spends at most, in the whole fit.
    delta : float, default=1e-6
        Probability that the bound fails, above 0.
    adjacency : {"add_remove", "replace"}, default="add_remove"
        What neighbours differ in.
    n_jobs : int or None, default=None
        Threads for the passes over the rows.

    See Also
    --------
    FederatedPowerMethod : The server.

    Examples
    --------
    >>> import numpy as np
    >>> from skdp.datasets import make_user_items
    >>> from skdp.federated import (
    ...     AggregationConfig, FederatedPowerMethod, UnmaskedAggregator, RecommenderClient
    ... )
    >>> from skdp.recommend import DPRecommender
    >>> R = make_user_items(1200, 60, 8, 3, random_state=0)
    >>> config = AggregationConfig(n_clients=4, n_colluders=1)
    >>> clients = [RecommenderClient(R[i::4], config, epsilon=8.0) for i in range(4)]
    >>> server = FederatedPowerMethod(DPRecommender(4, epsilon=8.0), config)
    >>> sums = UnmaskedAggregator([client.respond for client in clients])  # a simulation
    >>> model = server.fit(sums, n_features=60, sparse=True)
    >>> model.recommend(R[:2], n=5)[0].shape
    (2, 5)
    """

    def __init__(
        self,
        R: Any,
        config: AggregationConfig,
        *,
        value_cap: str | float = "binary",
        epsilon: float = 1.0,
        delta: float = 1e-6,
        adjacency: str = "add_remove",
        n_jobs: int | None = None,
    ) -> None:
        R, self.value_cap = _checked_rows(R), value_cap
        cap = check_size(self, "value_cap", ("binary",))
        cap = None if cap == "binary" else cap
        query = RowHistories(row_source(R), adjacency=adjacency, n_jobs=n_jobs, cap=cap)
        super().__init__(
            query, config, _SIGNATURES, epsilon=epsilon, delta=delta, adjacency=adjacency,
            unit="row", n_features=int(np.shape(R)[1]),
        )  # fmt: skip


class FederatedPowerMethod:
    """The server of a federated fit of a decomposition; rows stay with their holders.

    The fitted estimator satisfies its (`epsilon`, `delta`)-differential privacy for one unit of any
    client's rows, against all who see it. So does what the server receives, even together with
    ``config.n_colluders`` clients. (A client that reads the result counts as one of these.) Two
    conditions apply: contributions come through secure aggregation, and at most
    ``config.n_dropouts`` clients drop out of a step. Each client adds a part of the noise, and the
    honest parts alone make up the noise of the central fit. So the noise scale grows by
    ``sqrt(s / (s - T - F))`` if all of s clients answer, for T colluders and F drop-outs.

    Parameters
    ----------
    estimator : DPTruncatedSVD, DPPCA or DPRecommender
        Unfitted; says what is fitted and at which budget (finite `epsilon`, `delta` > 0). Units
        "row" and "interaction", and of `DPTruncatedSVD` "entry", "edge", "entry_change" and
        "edge_change". It is cloned, never changed.
    config : AggregationConfig
        Public counts of clients, colluders and drop-outs; each client holds the same.

    See Also
    --------
    PowerMethodClient : The other side.

    Notes
    -----
    The steps, noise and post-processing are those of the central estimator, whatever its options:
    screening of features, one Gram matrix where few features remain, power steps, a private clip
    norm. Only the integer grid is coarser: a part has fewer bits than a central draw.

    References
    ----------
    .. [1] Nicolas, Sabater, Maouche, Ben Mokhtar, Coates, "Differentially private and
       decentralized randomized power method", 2024.

    Examples
    --------
    >>> import numpy as np
    >>> from skdp import DPTruncatedSVD
    >>> from skdp.federated import (
    ...     AggregationConfig, FederatedPowerMethod, UnmaskedAggregator, PowerMethodClient
    ... )
    >>> X = np.random.default_rng(0).standard_normal((6000, 4)) * [3.0, 1.0, 0.3, 0.1]
    >>> config = AggregationConfig(n_clients=6, n_colluders=1)
    >>> clients = [PowerMethodClient(part, config) for part in np.array_split(X, 6)]
    >>> server = FederatedPowerMethod(DPTruncatedSVD(1, clip_norm=5.0), config)
    >>> sums = UnmaskedAggregator([client.respond for client in clients])  # a simulation
    >>> svd = server.fit(sums, n_features=4)
    >>> bool(abs(svd.components_[0, 0]) > 0.9)
    True
    >>> svd.releases_[0].mechanism
    'distributed gaussian'
    """

    def __init__(self, estimator: Any, config: AggregationConfig) -> None:
        self.estimator = estimator
        self.config = config

    def fit(
        self,
        aggregator: Aggregator,
        *,
        n_features: int,
        n_samples: int | None = None,
        sparse: bool = False,
    ) -> Any:
        """Fit through the secure sum; spends the estimator's budget once.

        Parameters
        ----------
        aggregator : callable
            ``aggregator(request, size)`` carries the request to the clients and returns the opened
            total (`SecureAggregator`; `UnmaskedAggregator` in simulations).
        n_features : int
            Number of features, public.
        n_samples : int or None, default=None
            Number of rows of all clients, where it is public: under ``adjacency="replace"`` and
            for units other than the row, which need it.
        sparse : bool, default=False
            Whether the rows are sparse: a hint for ``algorithm="auto"``.

        Returns
        -------
        estimator : object
            A fitted clone of `estimator`.
        """
        estimator = self.estimator._twin()
        unit = self._checked_unit(estimator)
        if not unit.by_rows:
            _as_sums(estimator, unit)
        n_features = check_count("n_features", n_features, 2)
        shape = (self._public_rows(estimator, unit, n_samples), n_features)

        def connect(session: PrivacySession) -> _clients.FederatedSession:
            return _clients.FederatedSession(session, aggregator, self.config, n_features)

        schema = zero_rows(*shape, sparse=sparse or not unit.by_rows)
        return estimator._fit_elsewhere(schema, n_features, connect)

    @staticmethod
    def _checked_unit(estimator: Any) -> Unit:
        """Return the privacy unit, or refuse an estimator that has no federated fit."""
        unit = unit_of(estimator)
        if not hasattr(estimator, "_fit_elsewhere") or unit.name not in _UNITS:
            raise ValueError(
                "'estimator' must be a DPTruncatedSVD, a DPPCA or a DPRecommender with "
                f"privacy_unit among {_UNITS}. Got {estimator!r} instead."
            )
        _clients.finite_budget(estimator.epsilon, estimator.delta)
        return unit

    @staticmethod
    def _public_rows(estimator: Any, unit: Unit, n_samples: int | None) -> int:
        """Return the number of rows that bounds may use: 0 where it is private."""
        public = not unit.by_rows or estimator.adjacency == "replace"
        if public and n_samples is None:
            raise ValueError(
                f"'n_samples' is public with privacy_unit={unit.name!r} and adjacency="
                f"{estimator.adjacency!r}, and is needed: pass the rows of all clients together."
            )
        if not public and n_samples is not None:
            raise PrivacyError(
                "'n_samples' is private under adjacency='add_remove': leave it out; the fit "
                "releases a noisy count."
            )
        return 0 if n_samples is None else check_count("n_samples", n_samples, 0)


def _as_sums(estimator: Any, unit: Unit) -> None:
    """Set an algorithm whose releases are sums over clients, or raise.

    Randomized response is not a sum over clients, nor is X'X if clients hold parts of one row.
    """
    routes = unit.federated
    if unit.bound is DEGREE and getattr(estimator, "unit_bound", 0) is None:
        estimator.set_params(unit_bound=DEGREE.default)  # the clients' default
    if estimator.algorithm in ("auto", "randomized"):
        estimator.set_params(algorithm=routes[0])
    elif estimator.algorithm not in routes:
        raise ValueError(
            f"algorithm={estimator.algorithm!r} cannot use sums over clients with privacy_unit="
            f"{unit.name!r}. Use 'auto' or one of {routes}."
        )


def _checked_rows(X: Any) -> Any:
    """Return the rows of a client as floats."""
    return advised("a client", check_array, X, accept_sparse="csr", ensure_min_samples=0)
