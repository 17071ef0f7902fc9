"""Devices of a personalised model: which ledgers they charge, and what they refuse."""

import warnings
from contextlib import suppress
from functools import partial

import numpy as np
import pytest
from sklearn.base import clone

from skdp import DPPCA, DPPersonalizedRegressor, PrivacyLedger
from skdp.exceptions import BudgetExceededError
from skdp.federated import (
    AggregationConfig,
    FederatedRounds,
    InvalidMessageError,
    PersonalizedClient,
    UnmaskedAggregator,
)
from skdp.federated._messages import Question
from skdp.privacy.gate.bounds import PrivacyBudget
from skdp.testing import record_transcript
from tools.federation import first_request, plain_sum

S, D = 20, 6
pytestmark = pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
CONFIG = AggregationConfig(S, 2, 1)


def people(n, seed, m=8):
    """Rows of n users whose models lie on the first axis."""
    rng = np.random.default_rng(seed)
    X, users = rng.standard_normal((m * n, D)), np.repeat(np.arange(n), m)
    factor = rng.standard_normal((n, 1)) * np.eye(D)[0]
    return X, np.sum(X * factor[users], axis=1) + 0.1 * rng.standard_normal(m * n), users


MODEL = DPPersonalizedRegressor(1, target_bounds=(-10, 10))
HALF = clone(MODEL).set_params(epsilon=0.5)  # asks for a part of what clients may spend
HOUSES = [people(30, seed) for seed in range(1, S + 1)]


def clients_of(model=MODEL, houses=HOUSES, **options):
    return [PersonalizedClient(model, X, y, CONFIG, groups=g, **options) for X, y, g in houses]


def test_a_fit_is_charged_to_an_open_ledger():
    """The server's and, where they are in the same process, those of the clients."""
    server, clients = FederatedRounds(MODEL, CONFIG), clients_of(epsilon=1.0)
    with PrivacyLedger(mu=9) as ledger:
        server.fit(plain_sum(clients), n_features=D)
    mine, *others = ledger.entries
    assert (mine.estimator, mine.unit, mine.state) == ("DPPersonalizedRegressor", "group", "fitted")
    assert [(fit.estimator, fit.unit) for fit in others] == [("PersonalizedClient", "group")] * S
    sums = plain_sum(clients_of(epsilon=1.0))
    with pytest.raises(BudgetExceededError), PrivacyLedger(epsilon=0.5, delta=1e-5) as ledger:
        server.fit(sums, n_features=D)
    assert ledger.entries == ()


def test_a_client_charges_the_ledgers_of_its_house():
    """Its whole budget, once, where its rows are: when it is made, or before it answers."""
    small = [people(5, seed) for seed in range(S)]
    houses = [PrivacyLedger(mu=1.0) for _ in range(3)]
    clients = clients_of(houses=small[3:], epsilon=1.0)  # in no ledger
    for (X, y, groups), house in zip(small[:2], houses, strict=False):
        with house, house.partition("home", ["here"], whole_groups=True) as part, part("here"):
            clients.append(PersonalizedClient(MODEL, X, y, CONFIG, groups=groups, epsilon=1.0))
    clients += clients_of(houses=small[2:3], epsilon=1.0)
    full = PrivacyLedger(mu=0.1)
    with record_transcript() as transcript, pytest.raises(BudgetExceededError), full:
        clients_of(houses=small[:1], epsilon=1.0)
    server = FederatedRounds(HALF, CONFIG)

    def sums(request, size):
        with full, suppress(InvalidMessageError):
            clients[0].respond(request)

    with pytest.raises(BudgetExceededError, match="PersonalizedClient asks for"):
        server.fit(sums, n_features=D)
    assert not transcript
    assert not full.entries
    assert not clients[0].releases_

    def answered(request, size):
        with houses[2]:
            clients[-1].respond(request)
        with houses[1]:  # its rows are those of the part where it was made
            clients[-2].respond(request)
        raise ConnectionError

    with pytest.raises(ConnectionError):
        server.fit(answered, n_features=D)
    for house in houses:
        (entry,) = house.entries
        assert (entry.estimator, entry.state) == ("PersonalizedClient", "open")
        assert entry.losses == (("gaussian", PrivacyBudget(1.0, 1e-6).mu),)
    for client in clients:
        assert client.close().epsilon == 1.0
    for house in houses:
        (entry,) = house.entries
        assert entry.state == "fitted"
        assert entry.losses[0].value == pytest.approx(PrivacyBudget(1.0, 1e-6).mu, rel=1e-9)


def test_a_ledger_that_is_opened_between_two_answers_is_charged_for_all_that_may_follow():
    """Of what was granted so far alone, it would lack each answer that a client gives inside."""
    (client,) = clients_of(houses=[people(5, 0)], epsilon=1.0, n_retries=1)
    steps, late, full = [], PrivacyLedger(mu=1.0), PrivacyLedger(mu=0.1)

    def sums(request, size):
        steps.append(Question(request, b"a step", (S, 2, 1), size))
        if len(steps) == 1:
            client.respond(steps[0])
            for ledger in (late, full):  # the second answer of a step is one, too
                with ledger, suppress(InvalidMessageError):
                    client.respond(steps[0])
        raise ConnectionError

    with pytest.raises(BudgetExceededError), pytest.raises(ConnectionError):
        FederatedRounds(HALF, CONFIG).fit(sums, n_features=D)
    (entry,) = late.entries
    assert entry.losses[0].value == pytest.approx(PrivacyBudget(1.0, 1e-6).mu, rel=1e-9)
    assert full.entries == ()


def test_a_device_is_one_user():
    X, y, _ = people(1, 7)
    client = PersonalizedClient(MODEL, X, y, CONFIG)
    request = first_request(partial(FederatedRounds(MODEL, CONFIG).fit, n_features=D)).encode()
    assert client.respond(request).shape == (1,)  # of a column
    weaker = PersonalizedClient(MODEL, X, y, CONFIG, epsilon=0.5)
    with pytest.raises(InvalidMessageError, match="too fine"):
        weaker.respond(request)
    assert weaker.releases_ == ()


def test_what_is_not_a_personalised_model():
    """Nor one that is fitted, whose own users would be lost."""
    X, y, users = people(40, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        fitted = clone(MODEL).fit(X, y, groups=users)
    for model in (DPPCA(), fitted):
        with pytest.raises(ValueError, match="'model' must be an unfitted DPPersonalizedRegressor"):
            FederatedRounds(model, CONFIG).fit(UnmaskedAggregator([]), n_features=D)
