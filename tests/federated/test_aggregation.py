"""Secure sums: equal to plain sums bit for bit, for every way in which clients drop out."""

import itertools
from collections import defaultdict

import numpy as np
import pytest

from skdp.exceptions import PrivacyError
from skdp.federated import (
    AggregationAbortedError,
    AggregationClient,
    AggregationConfig,
    SecureAggregator,
    UnmaskedAggregator,
    simulated_aggregator,
)
from skdp.federated import _messages as wire
from skdp.federated._messages import Kind

NOBODY_COLLUDES = pytest.mark.filterwarnings("ignore:n_colluders=0:skdp.exceptions.PrivacyWarning")
STAGES = [None, Kind.KEYS, Kind.SHARES, Kind.MASKED, Kind.REVEAL]


def random_words(n_clients, size, seed=0):
    return np.random.default_rng(seed).integers(0, 2**64, (n_clients, size), dtype=np.uint64)


def callbacks(X):
    return [lambda request, row=row: row for row in X]


def plain_sum(X, rows):
    return X[sorted(rows)].sum(axis=0, dtype=np.uint64)


class SpyTransport:
    """Carry messages in the process, lose what the pattern says, and keep what was revealed."""

    def __init__(self, clients, pattern):
        self.clients, self.pattern = clients, pattern
        self.sent = []
        self.revealed = defaultdict(set)  # owner -> kinds of its secrets that were revealed

    def exchange(self, messages, accept):
        for client_id, message in messages.items():
            self.sent.append((wire.message_kind(message), client_id))
            answer = self.clients[client_id].handle(message)
            header, body = wire.unpack_message(answer)
            if header.kind is Kind.REVEAL:  # also what got lost on the way to the server
                for owner, (which, _) in wire.unpack_reveal(body).items():
                    self.revealed[owner].add(which)
            if self.pattern[client_id] is not header.kind:
                accept(client_id, answer)


def spied(X, config, pattern):
    run_id = b"a run"
    clients = [AggregationClient(run_id, i, config, call) for i, call in enumerate(callbacks(X))]
    transport = SpyTransport(clients, pattern)
    return SecureAggregator(transport, config, run_id, n_attempts=1), transport


def outcome(config, pattern):
    """What theory says: (survivors of the sum or None, whether it was opened)."""
    n = config.n_clients
    alive = [i for i in range(n) if pattern[i] in (None, Kind.REVEAL)]
    dead = [i for i in range(n) if pattern[i] is Kind.MASKED]
    if len(alive) < n - config.n_dropouts:
        return None, False
    helpers = [i for i in alive if pattern[i] is None]
    if any(len(set(helpers) - {i}) < config.shares_needed for i in alive + dead):
        return None, True
    return alive, True


def check_pattern(config, pattern, X):
    """Check one step against theory; return the aggregator and its transport."""
    aggregate, spy = spied(X, config, pattern)
    alive, opened = outcome(config, pattern)
    if alive is None:
        with pytest.raises(AggregationAbortedError) as caught:
            aggregate(b"question", X.shape[1])
        assert caught.value.opened is opened
    else:
        result = aggregate(b"question", X.shape[1])
        np.testing.assert_array_equal(result.total, plain_sum(X, alive))
        assert result.n_survivors == len(alive) and result.step == 0
    assert all(len(kinds) == 1 for kinds in spy.revealed.values())  # never both masks of a client
    assert (Kind.UNMASK in {kind for kind, _ in spy.sent}) is opened
    return aggregate, spy


def check_step_after(aggregate, spy, X):
    """Whatever happened, the next step is a new one, and clients that were away may join it."""
    spy.pattern = [None] * len(X)
    result = aggregate(b"next", X.shape[1])
    np.testing.assert_array_equal(result.total, plain_sum(X, range(len(X))))


def configs(n):
    """Most and fewest colluders and drop-outs that n clients allow, and thresholds between."""
    for colluders in {0, min(1, n - 2)}:
        for dropouts in {0, 1, n - 2 - colluders}:
            if 0 <= dropouts <= n - 2 - colluders:
                for threshold in {colluders + 1, n - 1 - dropouts}:
                    yield AggregationConfig(n, colluders, dropouts, threshold=threshold)


@pytest.mark.thorough
@NOBODY_COLLUDES
@pytest.mark.parametrize("n", [2, 3, 4])
def test_every_dropout_pattern(n):
    X = random_words(n, 3)
    for number, pattern in enumerate(itertools.product(STAGES, repeat=n)):
        choices = list(configs(n))
        for config in choices if n < 4 else [choices[number % len(choices)]]:
            played = check_pattern(config, pattern, X)
        check_step_after(*played, X)


@pytest.mark.deep
@NOBODY_COLLUDES
@pytest.mark.parametrize("n", [5, 6])
def test_dropout_patterns_up_to_order(n):
    """The graph is complete, so only how many leave at each stage matters, not who."""
    X, rng, choices = random_words(n, 3), np.random.default_rng(1), list(configs(n))
    for number, stages in enumerate(itertools.combinations_with_replacement(STAGES, n)):
        pattern = [stages[i] for i in rng.permutation(n)]
        played = check_pattern(choices[number % len(choices)], pattern, X)
        check_step_after(*played, X)


@NOBODY_COLLUDES
@pytest.mark.slow
@pytest.mark.parametrize("first", STAGES)
@pytest.mark.parametrize("n", [5, 6])
def test_every_dropout_pattern_in_every_order(n, first):
    X, choices = random_words(n, 3), list(configs(n))
    for number, rest in enumerate(itertools.product(STAGES, repeat=n - 1)):
        check_pattern(choices[number % len(choices)], (first, *rest), X)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(6))
def test_dropouts_on_a_circulant_graph(seed):
    rng = np.random.default_rng(seed)
    config = AggregationConfig(60, 2, 5, neighbours=8 + 2 * seed)
    X = random_words(60, 5, seed)
    pattern = [None] * 60
    for client in rng.choice(60, 5, replace=False):
        pattern[client] = STAGES[rng.integers(1, 5)]
    aggregate, spy = spied(X, config, pattern)
    alive = [i for i in range(60) if pattern[i] in (None, Kind.REVEAL)]
    np.testing.assert_array_equal(aggregate(b"q", 5).total, plain_sum(X, alive))
    assert all(len(kinds) == 1 for kinds in spy.revealed.values())


@pytest.mark.parametrize("size", [1, 7, 8192, 8193, 20000])
def test_sum_wraps_and_sizes_fit(size):
    X = random_words(4, size)
    X[0] = 2**64 - 1
    aggregate = simulated_aggregator(callbacks(X), AggregationConfig(4))
    for step in range(2):
        result = aggregate(b"", size)
        np.testing.assert_array_equal(result.total, plain_sum(X, range(4)))
        assert (result.n_survivors, result.step) == (4, step)


def test_retry_when_nothing_was_opened():
    """The second attempt asks each client again: fresh noise, fresh keys, the same step."""
    calls, lost_once = [], {0, 1}

    def respond(request):
        calls.append(request)
        return np.ones(3, dtype=np.uint64)

    def lost(client_id, kind):
        if kind is Kind.MASKED and client_id in lost_once:
            lost_once.remove(client_id)
            return True
        return False

    config = AggregationConfig(5, n_dropouts=1)
    result = simulated_aggregator([respond] * 5, config, lost=lost)(b"q", 3)
    assert result.total.tolist() == [5, 5, 5] and result.step == 0
    assert len(calls) == 10


def test_no_retry_after_unmasking_began():
    X, config = random_words(5, 3), AggregationConfig(5, n_dropouts=1)
    opened = []

    def lost(client_id, kind):
        if kind is Kind.KEYS:
            opened.append(client_id)
        return kind is Kind.REVEAL and client_id < 3

    aggregate = simulated_aggregator(callbacks(X), config, lost=lost, n_attempts=3)
    with pytest.raises(AggregationAbortedError) as caught:
        aggregate(b"q", 3)
    assert caught.value.opened and isinstance(caught.value, PrivacyError)
    assert opened == [0, 1, 2, 3, 4]  # one attempt


def test_attempts_end():
    X, config = random_words(4, 3), AggregationConfig(4)
    aggregate = simulated_aggregator(
        callbacks(X), config, lost=lambda client_id, kind: client_id == 2, n_attempts=3
    )
    with pytest.raises(
        AggregationAbortedError, match="Only 3 of 4 clients answered, and at most 0 may"
    ):
        aggregate(b"q", 3)
    with pytest.raises(ValueError, match="n_attempts must be at least 1"):
        simulated_aggregator(callbacks(X), config, n_attempts=0)


@pytest.mark.parametrize(
    "values", [np.zeros(4, np.uint64), np.zeros(3, np.int64), np.zeros((3, 1), np.uint64)]
)
def test_contribution_of_another_form(values):
    config = AggregationConfig(3)
    for aggregate in (
        simulated_aggregator([lambda request: values] * 3, config),
        UnmaskedAggregator([lambda request: values]),
    ):
        with pytest.raises(TypeError, match=r"must return a uint64 array of shape \(3,\)"):
            aggregate(b"q", 3)


def test_the_callers_array_is_not_masked_in_place():
    X = random_words(3, 4)
    before = X.copy()
    simulated_aggregator(callbacks(X), AggregationConfig(3))(b"q", 4)
    np.testing.assert_array_equal(X, before)


def test_plain_aggregator_is_the_same_sum():
    X = random_words(6, 9)
    config = AggregationConfig(6, n_dropouts=1)
    secure = simulated_aggregator(callbacks(X), config)(b"q", 9)
    plain = UnmaskedAggregator(callbacks(X))
    np.testing.assert_array_equal(plain(b"q", 9).total, secure.total)
    second = plain(b"q", 9)
    assert (second.step, second.n_survivors) == (1, 6)
    chunks = [lambda request, k=k: plain_sum(X, range(k, k + 3)) for k in (0, 3)]
    chunked = UnmaskedAggregator(chunks, n_clients=6)(b"q", 9)
    np.testing.assert_array_equal(chunked.total, secure.total)
    assert chunked.n_survivors == 6


def test_simulation_needs_all_clients():
    with pytest.raises(ValueError, match="one for each of 3 clients"):
        simulated_aggregator(callbacks(random_words(2, 1)), AggregationConfig(3))
