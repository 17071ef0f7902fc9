"""Rounds of a personalised model, and sums of states, over the same aggregation."""

import math
import warnings
from contextlib import suppress

import numpy as np
import pytest

from skdp import DPPCA, DPPersonalizedClassifier, DPPersonalizedRegressor, PrivacyLedger
from skdp.exceptions import BudgetExceededError, PrivacyWarning
from skdp.federated import (
    AggregationConfig,
    FederatedRounds,
    MessageRefused,
    PersonalizedClient,
    PlainAggregator,
)
from skdp.federated._messages import Call, Question, Request
from skdp.federated.noise_parts import PartGrant
from skdp.federated.personalized import _SIGNATURES, _Users
from skdp.privacy.gate.bounds import PrivacyBudget
from skdp.testing import record_transcript, seeded_entropy
from skdp.testing._transcripts import replaced
from tools.federation import change_over_bound, first_request, noise_of, plain_sum, secure_sum

S, D = 20, 6
CONFIG = AggregationConfig(S, 2, 1)


def people(n, seed, m=8):
    """Rows of n users whose models lie on the first axis."""
    rng = np.random.default_rng(seed)
    X, users = rng.standard_normal((m * n, D)), np.repeat(np.arange(n), m)
    taste = rng.standard_normal((n, 1)) * np.eye(D)[0]
    return X, np.sum(X * taste[users], axis=1) + 0.1 * rng.standard_normal(m * n), users


def pilot(cls=DPPersonalizedRegressor, y=lambda y: y, **options):
    X, target, users = people(400, 0)
    with warnings.catch_warnings(), seeded_entropy(0):
        warnings.filterwarnings("ignore", ".*could not see", PrivacyWarning)
        return cls(1, epsilon=1.0, **options).fit(X, y(target), groups=users).released()


PILOT = pilot()
HOUSES = [people(30, seed) for seed in range(1, S + 1)]


def clients_of(model=PILOT, houses=HOUSES, **options):
    return [PersonalizedClient(model, X, y, CONFIG, groups=g, **options) for X, y, g in houses]


def alignment(model):
    return float(abs(model.components_[0, 0]))


@pytest.mark.thorough
def test_round_is_the_round_of_the_paper_but_for_the_grid():
    """Without noise: the step of `server_update` on the sum of all users' own messages."""
    messages = [
        PILOT.client_update(X[users == u], y[users == u])
        for X, y, users in HOUSES
        for u in np.unique(users)
    ]
    seen = []

    def keep(original):
        def close(grant, total, n):
            answer = original(grant, total, n)
            seen.append(answer)
            return answer

        return close

    with noise_of(0), replaced(PartGrant, "close", keep):
        FederatedRounds(PILOT, CONFIG).fit(plain_sum(clients_of()))
    step = seen[0].noise_scale / 6750150 / math.sqrt(S)
    assert np.abs(seen[0].value - np.sum(messages, axis=0)).max() <= 0.51 * len(messages) * step


def test_rounds_over_secure_sums_improve_the_model():
    clients = clients_of(epsilon=2.0)
    sums = secure_sum(clients, CONFIG, lost=lambda i, kind: i == 0)
    rounds = FederatedRounds(PILOT, CONFIG, epsilon=2.0, n_rounds=2)
    with seeded_entropy(1):
        model = rounds.fit(sums)
    assert alignment(model) > alignment(PILOT)
    assert not hasattr(model, "privacy_spent_")  # a receipt without the rounds would be too small
    assert [line.name for line in rounds.ledger_] == ["round", "round"]
    assert rounds.privacy_spent_.epsilon == 2.0
    assert rounds.privacy_spent_.unit == "group"
    assert clients[1].ledger_ == rounds.ledger_
    assert clients[1].close() == rounds.privacy_spent_
    assert clients[0].ledger_ == ()


def test_rounds_are_charged_to_an_open_ledger():
    """The server's and, where they are in the same process, those of the clients."""
    rounds, clients = FederatedRounds(PILOT, CONFIG, epsilon=1.0), clients_of(epsilon=1.0)
    with PrivacyLedger(mu=9) as ledger:
        rounds.fit(plain_sum(clients))
    server, *others = ledger.entries
    assert (server.estimator, server.unit, server.state) == ("FederatedRounds", "group", "fitted")
    assert [(fit.estimator, fit.unit) for fit in others] == [("PersonalizedClient", "group")] * S
    sums = plain_sum(clients_of(epsilon=1.0))
    with pytest.raises(BudgetExceededError), PrivacyLedger(epsilon=0.5, delta=1e-5) as ledger:
        rounds.fit(sums)
    assert ledger.entries == ()


def test_a_client_charges_the_ledgers_of_its_house():
    """Its whole budget, once, where its rows are: when it is made, or before it answers."""
    small = [people(5, seed) for seed in range(S)]
    houses = [PrivacyLedger(mu=1.0) for _ in range(3)]
    clients = clients_of(houses=small[3:], epsilon=1.0)  # in no ledger
    for (X, y, groups), house in zip(small[:2], houses, strict=False):
        with house, house.disjoint("home", ["here"], whole_groups=True) as part, part("here"):
            clients.append(PersonalizedClient(PILOT, X, y, CONFIG, groups=groups, epsilon=1.0))
    clients += clients_of(houses=small[2:3], epsilon=1.0)
    full = PrivacyLedger(mu=0.1)
    with record_transcript() as transcript, pytest.raises(BudgetExceededError), full:
        clients_of(houses=small[:1], epsilon=1.0)
    rounds = FederatedRounds(PILOT, CONFIG, epsilon=0.5, n_rounds=2)  # asks for a part of it

    def sums(request, size):
        with full, suppress(MessageRefused):
            clients[0].respond(request)

    with pytest.raises(BudgetExceededError, match="PersonalizedClient asks for"):
        rounds.fit(sums)
    assert not transcript
    assert not full.entries
    assert not clients[0].ledger_

    def answered(request, size):
        with houses[2]:
            clients[-1].respond(request)
        with houses[1]:  # its rows are those of the part where it was made
            clients[-2].respond(request)
        raise ConnectionError

    with pytest.raises(ConnectionError):
        rounds.fit(answered)
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
                with ledger, suppress(MessageRefused):
                    client.respond(steps[0])
        raise ConnectionError

    with pytest.raises(BudgetExceededError), pytest.raises(ConnectionError):
        FederatedRounds(PILOT, CONFIG, epsilon=0.5, n_rounds=2).fit(sums)  # asks for a part of it
    (entry,) = late.entries
    assert entry.losses[0].value == pytest.approx(PrivacyBudget(1.0, 1e-6).mu, rel=1e-9)
    assert full.entries == ()


def test_the_receipt_of_rounds_that_failed_is_theirs():
    """What a sum opened before the abort stays spent; an older receipt would claim less."""
    clients = clients_of(epsilon=2.0)
    sums, calls = plain_sum(clients), []

    def interrupted(request, size):
        calls.append(request)
        if len(calls) == 2:
            raise ConnectionError
        return sums(request, size)

    rounds = FederatedRounds(PILOT, CONFIG, epsilon=2.0, n_rounds=3)
    with PrivacyLedger(mu=9) as ledger, pytest.raises(ConnectionError):
        rounds.fit(interrupted)
    assert [line.name for line in rounds.ledger_] == ["round", "round"]
    assert [fit.state for fit in ledger.entries] == ["failed", *["open"] * S]  # and its clients
    assert ledger.entries[0].losses == rounds.privacy_spent_.losses


def test_a_device_is_one_user():
    X, y, _ = people(1, 7)
    client = PersonalizedClient(PILOT, X, y, CONFIG)
    words = client.respond(first_request(FederatedRounds(PILOT, CONFIG).fit).encode())
    assert words.shape == (D + 1,)


@pytest.mark.thorough
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
@pytest.mark.parametrize("size", [1e-12, 1.0, 1e12])
def test_one_user_moves_a_message_no_further_than_its_bound(adjacency, size):
    """Any components that a server may send, any rows; the bound is attained within a tenth."""
    model = pilot(adjacency=adjacency)
    X, y, users = people(3, 5)
    largest = 0.0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        components = size * rng.standard_normal((1, D))
        theirs, target = X.copy(), y.copy()
        theirs[users == 1] *= 10.0 ** rng.integers(-12, 13)
        target[users == 1] = -(10.0 ** rng.integers(-3, 13)) * y[users == 1]
        first = users < 2
        second = first if adjacency == "replace" else users < 1  # another second user, or none
        pair = (
            _Users(model, A[kept], b[kept, None], users[kept]).round(components)
            for A, b, kept in ((X, y, first), (theirs, target, second))
        )
        largest = max(largest, change_over_bound(*pair))
    assert largest <= 1
    if size == 1.0 and adjacency == "add_remove":
        assert largest > 0.9


def test_clients_refuse_other_requests():
    honest = first_request(FederatedRounds(PILOT, CONFIG).fit)
    lies = [
        Call("round", (np.ones((D, 1)),)),
        Call("round", (np.full((1, D), np.nan),)),
        Call("round", (np.ones((D + 1, D)),)),
        Call("round", (np.full((1, D), 1e300),)),
        Call("round"),
        Call("sums", ()),
        Call("kept_local", ()),
    ]
    client = clients_of()[0]
    for call in lies:
        lie = Request(0, honest.facts, honest.share, honest.step, (call,))
        with pytest.raises(MessageRefused):
            client.respond(lie.encode())
    assert client.ledger_ == ()
    weaker = clients_of(epsilon=0.5)[0]
    with pytest.raises(MessageRefused, match="too fine"):
        weaker.respond(honest.encode())
    assert _SIGNATURES[_Users].keys() == {"round"}


def test_classifier_has_rounds_too():
    model = pilot(
        DPPersonalizedClassifier, lambda y: np.where(y > 0, "yes", "no"), classes=["no", "yes"]
    )
    houses = [(X, np.where(y > 0, "yes", "no"), g) for X, y, g in HOUSES]
    clients = clients_of(model, houses, epsilon=2.0)
    with seeded_entropy(2):
        after = FederatedRounds(model, CONFIG, epsilon=2.0).fit(plain_sum(clients))
    assert after.components_.shape == (1, D)


def test_what_is_not_a_personalised_model():
    with pytest.raises(ValueError, match="'model' must be a DPPersonalizedRegressor"):
        FederatedRounds(DPPCA(), CONFIG).fit(PlainAggregator([]))
    with pytest.raises(ValueError, match="n_rounds"):
        FederatedRounds(PILOT, CONFIG, n_rounds=0).fit(PlainAggregator([]))
