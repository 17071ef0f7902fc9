"""A recommender over clients: the central fit with more noise, and clients that check all."""

import math

import numpy as np
import pytest
import scipy.sparse as sp

from skdp.datasets import make_interactions
from skdp.exceptions import UtilityWarning
from skdp.federated import (
    AggregationConfig,
    FederatedPowerMethod,
    InvalidMessageError,
    RecommenderClient,
)
from skdp.federated._messages import Call, Request
from skdp.model_selection import split_interactions
from skdp.recommend import DPRecommender, recall_at_n
from skdp.testing import seeded_entropy
from tools.federation import plain_sum
from tools.outcomes import refuses

CONFIG = AggregationConfig(n_clients=4, n_colluders=1, n_dropouts=1)


@pytest.fixture(scope="module")
def split():
    R = make_interactions(4000, 300, 80_000, 6, random_state=0)
    return split_interactions(R, random_state=0)


def federated(R, adjacency="add_remove", **params):
    clients = [
        RecommenderClient(R[i::4], CONFIG, epsilon=16.0, adjacency=adjacency) for i in range(4)
    ]
    server = FederatedPowerMethod(
        DPRecommender(8, epsilon=16.0, adjacency=adjacency, **params), CONFIG
    )
    public = {} if adjacency == "add_remove" else {"n_samples": R.shape[0]}
    with seeded_entropy(0):
        return server.fit(plain_sum(clients), n_features=R.shape[1], sparse=True, **public), clients


@pytest.mark.thorough
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_the_fit_over_clients_is_the_central_one_with_more_noise(split, adjacency):
    train, test = split
    model, clients = federated(train, adjacency)
    with seeded_entropy(0):
        central = DPRecommender(8, epsilon=16.0, adjacency=adjacency).fit(train)
    recall, best = (recall_at_n(each.recommend(train)[0], test) for each in (model, central))
    assert recall > 0.9 * best
    excess = math.sqrt(4 / (4 - 1 - 1))  # all answer; noise is sized for one curious, one absent
    noise = excess * central.item_counts_noise_scale_
    assert model.item_counts_noise_scale_ == pytest.approx(noise, rel=1e-3)
    # What protects is the same.
    for ours, line in zip(model.releases_, central.releases_, strict=True):
        assert (ours.name, ours.sensitivity) == (line.name, pytest.approx(line.sensitivity))
        assert ours.noise_scale == pytest.approx(line.noise_scale, rel=1e-3)
    assert model.privacy_spent_.epsilon == pytest.approx(16.0)
    for client in clients:
        assert client.close().epsilon == pytest.approx(16.0)
        assert [line.name for line in client.releases_][-1] == "pairs"


def test_a_fit_over_clients_says_that_few_columns_may_be_pairs():
    with pytest.warns(UtilityWarning, match="no latent factor.* R has few columns"):
        federated(sp.csr_array(np.eye(4)[[0, 1, 2, 3] * 10]), algorithm="gram")


MOMENT = np.arange(3), 1.0, np.zeros(3)
LIES = {  # of a valid request: position -> values that do not fit
    0: (np.array([0, 1, 1]), np.array([0, 1, 6])), 1: (-1.0,),
    2: (np.zeros(4), np.ones(3), np.array([0, math.nan, 0])),
}  # fmt: skip


def ask(client, *calls):
    """Ask at a step that is coarse enough for any of these questions."""
    client.respond(Request(0, client._facts, 0.1, 1.0, calls).encode())


def test_clients_refuse_what_does_not_fit():
    """One argument after the other; the question itself is answered, and paid for."""
    client = RecommenderClient(np.eye(6), CONFIG, epsilon=2.0)
    for place, values in LIES.items():
        for value in values:
            lie = Call("moment", (*MOMENT[:place], value, *MOMENT[place + 1 :]))
            refuses(InvalidMessageError, r"not valid|must be a vector", ask, client, lie)
    refuses(InvalidMessageError, r"no release|does not answer", ask, client, Call("gram"))
    assert client.releases_ == ()
    ask(client, Call("moment", MOMENT))
    assert len(client.releases_) == 1
