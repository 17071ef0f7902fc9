"""A recommender over clients: the central fit with more noise, and clients that check all."""

import math

import numpy as np
import pytest

from skdp.datasets import make_interactions
from skdp.federated import (
    AggregationConfig,
    FederatedPowerMethod,
    MessageRefused,
    PlainAggregator,
    RecommenderClient,
)
from skdp.federated._messages import Call, Facts, Request
from skdp.model_selection import leave_some_out
from skdp.recommend import DPRecommender, recall_at_n
from skdp.testing import seeded_entropy

CONFIG = AggregationConfig(n_clients=4, n_colluders=1, n_dropouts=1)


@pytest.fixture(scope="module")
def split():
    R = make_interactions(4000, 300, 80_000, 6, random_state=0)
    return leave_some_out(R, random_state=0)


def federated(R, adjacency="add_remove", **params):
    clients = [
        RecommenderClient(R[i::4], CONFIG, epsilon=16.0, adjacency=adjacency) for i in range(4)
    ]
    server = FederatedPowerMethod(
        DPRecommender(8, epsilon=16.0, adjacency=adjacency, **params), CONFIG
    )
    sums = PlainAggregator([client.respond for client in clients])
    public = {} if adjacency == "add_remove" else {"n_samples": R.shape[0]}
    with seeded_entropy(0):
        return server.fit(sums, n_features=R.shape[1], sparse=True, **public), clients


@pytest.mark.deep
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_the_fit_over_clients_is_the_central_one_with_more_noise(split, adjacency):
    train, test = split
    model, clients = federated(train, adjacency)
    with seeded_entropy(0):
        central = DPRecommender(8, epsilon=16.0, adjacency=adjacency).fit(train)
    assert recall_at_n(model.recommend(train)[0], test) > 0.9 * recall_at_n(
        central.recommend(train)[0], test
    )
    excess = math.sqrt(4 / (4 - 1 - 1))  # all answer; noise is sized for one curious, one absent
    assert model.counts_noise_scale_ == pytest.approx(
        excess * central.counts_noise_scale_, rel=1e-3
    )
    for ours, line in zip(model.ledger_, central.ledger_, strict=True):  # what protects is the same
        assert (ours.name, ours.sensitivity) == (line.name, pytest.approx(line.sensitivity))
        assert ours.noise_scale == pytest.approx(line.noise_scale, rel=1e-3)
    assert model.privacy_spent_.epsilon == pytest.approx(16.0)
    for client in clients:
        assert client.close().epsilon == pytest.approx(16.0)
        assert [line.name for line in client.ledger_][-1] == "votes"


def test_interactions_are_refused_over_clients():
    server = FederatedPowerMethod(DPRecommender(privacy_unit="interaction"), CONFIG)
    with pytest.raises(ValueError, match="whole users"):
        server.fit(lambda *_: None, n_features=300, n_samples=4000)


def test_pure_counts_are_not_offered_over_clients():
    server = FederatedPowerMethod(DPRecommender(delta=0.0), CONFIG)
    with pytest.raises(ValueError, match="'delta' above 0"):
        server.fit(lambda *_: None, n_features=300, n_samples=4000)


KEPT = np.arange(3)
JUDGE = (KEPT, np.ones(6), np.ones((3, 2)), np.ones((1, 3)), 1.0, np.ones((3, 1)), 0.5)


def asked(*calls, share=0.1):
    client = RecommenderClient(np.eye(6), AggregationConfig(4, 1, 1), epsilon=2.0)
    facts = Facts("row", "add_remove", 6, 4, 1, 1)
    client.respond(Request(0, facts, share, 1e-3, tuple(calls)).encode())
    return client


def changed(place, value):
    return (*JUDGE[:place], value, *JUDGE[place + 1 :])


@pytest.mark.parametrize(
    "call",
    [
        Call("moment", (np.array([1, 1]), 1.0, 0.5, np.zeros(2))),
        Call("moment", (np.array([1, 6]), 1.0, 0.5, np.zeros(2))),
        Call("moment", (KEPT, 1.0, 1.5, np.zeros(3))),
        Call("moment", (KEPT, 1.0, math.nan, np.zeros(3))),
        Call("moment", (KEPT, 1.0, 0.5)),
        Call("moment", (KEPT, 1.0, 0.5, np.ones(3))),
        Call("moment", (KEPT, 1.0, 0.5, np.zeros(4))),
        Call("moment", (KEPT, 1.0, 0.5, np.full(3, math.nan))),
        Call("judge", JUDGE),  # no release by itself
        Call("best", (np.zeros(3),)),
        Call("gram"),
    ],
)
def test_clients_refuse_what_is_unsound(call):
    with pytest.raises(MessageRefused):
        asked(call)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, np.array([0, 1, 1])), (1, np.ones(5)), (1, np.array([1, 1, 1, 1, 1, np.nan])),
        (2, np.ones((2, 2))), (2, np.ones((3, 3))), (3, np.ones((1, 4))),
        (3, np.full((1, 3), np.inf)),
        (4, -1.0), (5, np.array([[np.nan]])), (5, np.ones((17, 1))), (5, np.ones((3, 2))),
        (5, np.ones(3)), (5, None), (6, 2.0),
    ],
)  # fmt: skip
def test_clients_refuse_filters_that_fit_nothing(place, value):
    with pytest.raises(MessageRefused):
        asked(Call("judge", changed(place, value)), Call("votes"))
    client = RecommenderClient(np.eye(6), AggregationConfig(4, 1, 1), epsilon=2.0)
    assert client.privacy_spent_.epsilon == 0.0


@pytest.mark.parametrize(
    ("params", "message"),
    [({"adjacency": "swap"}, "adjacency"), ({"weights": -1.0}, "weights"),
     ({"weights": "stars"}, "weights"), ({"weights": True}, "weights")],
)  # fmt: skip
def test_bad_clients(params, message):
    with pytest.raises(ValueError, match=message):
        RecommenderClient(np.eye(6), CONFIG, **params)
