"""A holder of histories in a decentralised fit of a recommender for whole users.

The server is `FederatedPowerMethod` with a `DPRecommender`: counts and the moment are sums over
users, so that a secure sum is all it takes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from sklearn.utils.validation import check_array

from skdp._validation import FLOATS
from skdp.data.blocks import row_source
from skdp.federated._clients import (
    FederatedClient,
    Signatures,
    is_direction,
    is_positive,
    is_selection,
)
from skdp.federated.config import AggregationConfig
from skdp.queries.interactions import RowHistories
from skdp.units import ADJACENCIES

_SIGNATURES: dict[type, Signatures] = {
    RowHistories: {
        "count": (),
        "counts": (),
        "moment": (is_selection, is_positive, is_direction),
    },
}


class RecommenderClient(FederatedClient):
    """A holder of histories, with (epsilon, delta)-differential privacy for each of its users.

    The promise and its conditions are those of `PowerMethodClient`: what leaves this client
    protects one row (one user with the whole history), under secure sums, and the client believes
    no number of the server. It answers the questions of a recommender alone: number of users,
    counts of items, and the moment of the kept items.

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
    n_retries : int, default=0
        As in `PowerMethodClient`.
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
    >>> clients = [RecommenderClient(R[i::4], config, epsilon=3.0) for i in range(4)]
    >>> server = FederatedPowerMethod(DPRecommender(4, epsilon=3.0), config)
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
        n_retries: int = 0,
        n_jobs: int | None = None,
    ) -> None:
        if adjacency not in ADJACENCIES:
            raise ValueError(f"'adjacency' must be one of {ADJACENCIES}. Got {adjacency!r}.")
        with np.errstate(over="ignore", invalid="ignore"):  # one row near the largest float
            R = check_array(R, accept_sparse="csr", dtype=list(FLOATS), ensure_min_samples=0)
        query = RowHistories(
            row_source(R), adjacency=adjacency, n_jobs=n_jobs, cap=_checked_cap(value_cap)
        )
        super().__init__(
            query,
            config,
            _SIGNATURES,
            epsilon=epsilon,
            delta=delta,
            adjacency=adjacency,
            unit="row",
            n_features=int(np.shape(R)[1]),
            n_retries=n_retries,
        )


def _checked_cap(value_cap: str | float) -> float | None:
    """Return the public cap on values, None for binary histories."""
    if isinstance(value_cap, str) and value_cap == "binary":
        return None
    real = isinstance(value_cap, int | float) and not isinstance(value_cap, bool)
    if not (real and math.isfinite(float(value_cap)) and 1e-60 <= float(value_cap) <= 1e60):
        raise ValueError(f"'value_cap' must be 'binary' or a positive number. Got {value_cap!r}.")
    return float(value_cap)
