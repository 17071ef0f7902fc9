"""Secure sums: equal to plain sums bit for bit, for every way in which clients drop out."""

import contextlib
import copy
import itertools
import os
import pickle
import threading
from collections import defaultdict
from functools import partial

import numpy as np
import pytest

from skdp._limits import CACHED
from skdp.exceptions import PrivacyError
from skdp.federated import (
    AggregationAbortedError,
    AggregationClient,
    AggregationConfig,
    AggregationServer,
    Ed25519Identity,
    InvalidMessageError,
    SecureAggregator,
    StateSum,
    UnmaskedAggregator,
    _crypto,
    simulated_aggregator,
)
from skdp.federated import _messages as wire
from skdp.federated._crypto import mask
from skdp.federated._messages import Keys, Kind
from skdp.federated.aggregation import self_key
from tools.federation import RUN, Scene, refuse
from tools.outcomes import refuses

NOBODY_COLLUDES = pytest.mark.filterwarnings("ignore:n_colluders=0:skdp.exceptions.PrivacyWarning")
STAGES = [None, Kind.KEYS, Kind.SHARES, Kind.MASKED, Kind.REVEAL]


def random_words(n_clients, size, seed=0):
    return np.random.default_rng(seed).integers(0, 2**64, (n_clients, size), dtype=np.uint64)


def callbacks(X):
    return [lambda request, row=row: row for row in X]


def plain_sum(X, rows):
    return X[sorted(rows)].sum(axis=0, dtype=np.uint64)


class SpyTransport:
    """Deliver messages in the process, lose those of the pattern, and record revealed secrets."""

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
    return SecureAggregator(transport, config, run_id), transport


def outcome(config, pattern):
    """The outcome by theory: (survivors of the sum or None, whether it was opened)."""
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
    """After any failure the next step is a new one, and absent clients may join it."""
    spy.pattern = [None] * len(X)
    result = aggregate(b"next", X.shape[1])
    np.testing.assert_array_equal(result.total, plain_sum(X, range(len(X))))


def configs(n):
    """Most and fewest colluders and drop-outs that n clients allow."""
    for colluders in {0, min(1, n - 2)}:
        for dropouts in {0, 1, n - 2 - colluders}:
            if 0 <= dropouts <= n - 2 - colluders:
                yield AggregationConfig(n, colluders, dropouts)


@pytest.mark.thorough
@NOBODY_COLLUDES
@pytest.mark.parametrize("n", [2, 3, 4, 5, 6])
def test_every_dropout_pattern(n):
    """From 5 clients on, up to order: in a complete graph only the number that leaves matters."""
    X, rng, choices = random_words(n, 3), np.random.default_rng(1), list(configs(n))
    every = itertools.product(STAGES, repeat=n)
    if n > 4:
        alike = itertools.combinations_with_replacement(STAGES, n)
        every = ([stages[i] for i in rng.permutation(n)] for stages in alike)
    for number, pattern in enumerate(every):
        for config in choices if n < 4 else [choices[number % len(choices)]]:
            played = check_pattern(config, pattern, X)
        check_step_after(*played, X)


@NOBODY_COLLUDES
@pytest.mark.slow
@pytest.mark.parametrize("first", STAGES)
@pytest.mark.parametrize("n", [5, 6])
def test_every_dropout_pattern_in_every_order(n, first):
    X, choices = random_words(n, 3), list(configs(n))
    for number, rest in enumerate(itertools.product(STAGES, repeat=n - 1)):
        check_pattern(choices[number % len(choices)], (first, *rest), X)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(6))
def test_dropouts_on_a_circulant_graph(seed):
    rng = np.random.default_rng(seed)
    config = AggregationConfig(60, 2, 5 + 2 * seed)
    assert 20 <= config.degree < 59
    pattern = [None] * 60
    for client in rng.choice(60, 5 + 2 * seed, replace=False):
        pattern[client] = STAGES[rng.integers(1, 5)]
    check_pattern(config, pattern, random_words(60, 5, seed))


@pytest.mark.parametrize("size", [1, 7, CACHED, CACHED + 1])
def test_sum_wraps_and_sizes_fit(size):
    X = random_words(4, size)
    X[0] = 2**64 - 1
    aggregate = simulated_aggregator(callbacks(X), AggregationConfig(4))
    for step in range(2):
        result = aggregate(b"", size)
        np.testing.assert_array_equal(result.total, plain_sum(X, range(4)))
        assert (result.n_survivors, result.step) == (4, step)


@pytest.mark.parametrize("kind", [Kind.MASKED, Kind.REVEAL])
def test_a_step_that_failed_is_not_repeated(kind):
    """Each client is asked once; the next call is another step."""
    calls, lost_once = [], {0, 1}

    def respond(request):
        calls.append(request)
        return np.ones(3, dtype=np.uint64)

    def lost(client_id, sent):
        gone = sent is kind and client_id in lost_once
        lost_once.difference_update({client_id} if gone else ())
        return gone

    add = simulated_aggregator([respond] * 5, AggregationConfig(5, n_dropouts=1), lost=lost)
    with pytest.raises(AggregationAbortedError) as caught:
        add(b"q", 3)
    said = "Only 3 of 5 clients answered, and at most 1 may"
    assert (said in str(caught.value)) is (kind is Kind.MASKED)
    assert caught.value.opened is (kind is Kind.REVEAL) and isinstance(caught.value, PrivacyError)
    assert len(calls) == 5
    result = add(b"q", 3)
    assert result.total.tolist() == [5, 5, 5] and result.step == 1


@pytest.mark.parametrize(
    "values", [np.zeros(4, np.uint64), np.zeros(3, np.int64), np.zeros((3, 1), np.uint64)]
)
def test_contribution_of_another_form(values):
    config = AggregationConfig(3)
    for aggregate in (
        simulated_aggregator([lambda request: values] * 3, config),
        UnmaskedAggregator([lambda request: values]),
    ):
        refuses(TypeError, r"must return a uint64 array of shape \(3,\)", aggregate, b"q", 3)


def test_plain_aggregator_is_the_same_sum():
    X = random_words(6, 9)
    before, config = X.copy(), AggregationConfig(6, n_dropouts=1)
    secure = simulated_aggregator(callbacks(X), config)(b"q", 9)
    np.testing.assert_array_equal(X, before)  # the callers' arrays are not masked in place
    plain = UnmaskedAggregator(callbacks(X))
    np.testing.assert_array_equal(plain(b"q", 9).total, secure.total)
    second = plain(b"q", 9)
    assert (second.step, second.n_survivors) == (1, 6)
    chunks = [lambda request, k=k: plain_sum(X, range(k, k + 3)) for k in (0, 3)]
    chunked = UnmaskedAggregator(chunks, n_clients=6)(b"q", 9)
    np.testing.assert_array_equal(chunked.total, secure.total)
    assert chunked.n_survivors == 6


# -- the client keeps its masks secret: replays, overlaps, altered and unknown messages are refused


ASKED = (Kind.OPEN, Kind.PEERS, Kind.DELIVERY, Kind.UNMASK)


# Unmasking


BAD_UNMASK = {
    "overlap": ([0, 1, 2, 3, 4, 5], [5], "both in the sum and dropped out"),
    "overlap with itself": ([0, 1, 2, 3, 4, 5], [0], "both in the sum and dropped out"),
    "all dead": ([], [0, 1, 2, 3, 4, 5], "is not in the sum"),
    "itself dead": ([1, 2, 3, 4, 5], [0], "is not in the sum"),
    "itself left out": ([1, 2, 3, 4, 5], [], "is not in the sum"),
    "too many dead": ([0, 1, 2, 3], [4, 5], "More clients are missing"),
    "too few alive": ([0, 1], [], "More clients are missing"),
}


@pytest.mark.parametrize("case", BAD_UNMASK)
def test_bad_requests_to_unmask(case):
    alive, dead, match = BAD_UNMASK[case]
    scene = Scene(Kind.UNMASK)
    refuse(scene.client, scene.unmask(alive, dead), match)
    scene.client.handle(scene.messages[0])  # nothing was revealed, so the true request is answered


def test_two_requests_to_unmask_at_the_same_time():
    """Threads of a transport must not get a share of each secret of one client."""
    scene = Scene(Kind.UNMASK)
    check, meeting, answers = scene.client._check_survivors, threading.Barrier(2), []

    def slow_check(*arguments):
        check(*arguments)
        with contextlib.suppress(threading.BrokenBarrierError):
            meeting.wait(0.2)  # both threads are past the check, if both may get there

    def ask(message):
        with contextlib.suppress(InvalidMessageError):
            answers.append(scene.client.handle(message))

    scene.client._check_survivors = slow_check
    messages = scene.unmask(range(6)), scene.unmask(range(5), [5])
    threads = [threading.Thread(target=ask, args=(message,)) for message in messages]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 1


def test_a_client_that_does_not_exist():
    scene = Scene(Kind.UNMASK)
    body = bytes([0b1111111]) + bytes(1)
    refuse(scene.client, scene.forge(Kind.UNMASK, body), "do not exist")


def test_only_neighbours_shares_are_revealed():
    scene = Scene(Kind.UNMASK, n=60)
    for client in scene.clients:
        answer = client.handle(scene.messages[client.client_id])
        owners = wire.unpack_reveal(wire.unpack_message(answer)[1]).keys()
        assert owners == set(client._neighbours) and len(owners) == 20


def test_threshold_of_neighbours(monkeypatch):
    """The bound on all drop-outs implies it; it holds without that bound, too."""
    monkeypatch.setattr(AggregationConfig, "fewest_survivors", 0)
    needed, split = set(), _crypto.split
    monkeypatch.setattr(_crypto, "split", lambda *asked: needed.add(asked[2]) or split(*asked))
    scene = Scene(Kind.UNMASK, n=60, n_dropouts=4)
    assert needed == {16}  # of the shares of each secret
    far = set(range(60)) - set(scene.client._neighbours)
    for near in (0, 15):
        few = scene.unmask(far | {*scene.client._neighbours[:near]})
        refuse(scene.client, few, "Too few neighbours")
    scene.client.handle(scene.unmask(far | {*scene.client._neighbours[:16]}))


def test_shares_that_were_never_sent():
    """A client that dropped out before it shared cannot be named afterwards."""
    scene = Scene(Kind.DELIVERY)
    sealed = scene.rows()
    del sealed[5]
    scene.client.handle(scene.with_rows(sealed))
    refuse(scene.client, scene.unmask([0, 1, 2, 3, 4], [5]), "never sent")
    refuse(scene.client, scene.unmask([0, 1, 2, 3, 4, 5], []), "never sent")
    scene.client.handle(scene.unmask([0, 1, 2, 3, 4], []))


def test_a_drop_out_gets_its_key_opened_and_not_its_own_mask():
    scene = Scene(Kind.UNMASK, dropped=(3,))
    for client_id, message in scene.messages.items():
        answer = wire.unpack_reveal(
            wire.unpack_message(scene.clients[client_id].handle(message))[1]
        )
        kinds = {owner: which for owner, (which, _) in answer.items()}
        assert kinds == {i: int(i == 3) for i in range(6) if i != client_id}


# Replay


@pytest.mark.parametrize("stage", ASKED)
def test_an_identical_message_is_not_answered_twice(stage):
    scene = Scene(stage)
    scene.client.handle(scene.messages[0])
    refuse(scene.client, scene.messages[0])
    assert len(scene.calls) <= 6


def test_a_callback_that_failed_is_not_called_again():
    """It may have charged budget, or drawn noise, before it failed."""
    calls = []

    def respond(request):
        calls.append(request)
        raise RuntimeError("no data today")

    scene = Scene(Kind.DELIVERY)
    scene.client._respond = respond
    refuses(RuntimeError, "no data today", scene.client.handle, scene.messages[0])
    refuse(scene.client, scene.messages[0], "out of turn")
    refuse(scene.client, scene.unmask(range(6)), "out of turn")
    assert len(calls) == 1


def test_nothing_of_a_released_step_is_answered_again():
    scene = Scene(Kind.UNMASK)
    old = scene.history + [scene.messages]
    scene.client.handle(scene.messages[0])
    for messages in old:
        refuse(scene.client, messages[0])
    again = wire.unpack_message(scene.history[0][0])[1]
    refuse(scene.client, scene.forge(Kind.OPEN, bytes(again)), "already answered")
    assert len(scene.calls) == 6
    assert scene.client._state is None  # its secrets are gone


def test_steps_only_go_forward():
    scene = Scene(Kind.UNMASK)
    body = bytes(wire.unpack_message(scene.history[0][0])[1])
    scene.client.handle(scene.forge(Kind.OPEN, body, step=5))
    for step in (0, 4, 5):
        refuse(scene.client, scene.forge(Kind.OPEN, body, step=step), "already answered")
    refuse(scene.client, scene.messages[0], "another step")  # the old unmasking comes too late


def test_secrets_are_new_in_every_step():
    scene = Scene(Kind.PEERS)
    seen = set()
    for _ in range(4):
        for client in scene.clients:
            secrets = client._state
            seen |= {secrets.seed, secrets.masking.secret, secrets.sealing.secret}
            assert len({secrets.seed, secrets.masking.public, secrets.sealing.public} - seen) == 2
        scene.messages = scene.server.begin(b"q", 4)
        scene.step()
    assert len(seen) == 4 * 6 * 3


def test_shares_of_an_earlier_step_are_refused():
    scene = Scene(Kind.DELIVERY)
    old = scene.messages[0]
    scene.messages = scene.server.begin(b"question", 4)
    scene.go_on(Kind.DELIVERY)
    refuse(scene.client, old, "another step")
    header = wire.unpack_message(scene.messages[0])[0]
    replayed = wire.pack_message(header, bytes(wire.unpack_message(old)[1]))
    refuse(scene.client, replayed, "altered")
    scene.client.handle(scene.messages[0])


def test_messages_out_of_turn():
    for stage in ASKED:
        scene = Scene(stage)
        others = [Scene(other).messages[0] for other in ASKED if other is not stage]
        for message in others:
            if not (stage is Kind.OPEN or wire.message_kind(message) is Kind.OPEN):
                refuse(scene.client, message, "out of turn")
        if stage is Kind.OPEN:
            for message in others:
                refuse(scene.client, message, "another step")


def test_messages_of_others():
    scene = Scene(Kind.OPEN)
    other_run = AggregationServer(b"another run", scene.config).begin(b"question", 4)[0]
    refuse(scene.client, other_run, "server of this run")
    answer = scene.clients[1].handle(scene.messages[1])
    refuse(scene.client, answer, "server of this run")
    other = AggregationServer(RUN, AggregationConfig(6, n_dropouts=2)).begin(b"question", 4)[0]
    refuse(scene.client, other, "another configuration")


def test_a_client_cannot_be_copied():
    client = Scene(Kind.OPEN).clients[0]
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        refuses(TypeError, "cannot be copied", duplicate, client)


# Altered messages


def test_every_flipped_bit_of_a_delivery_is_refused():
    scene = Scene(Kind.DELIVERY)
    message = scene.messages[0]
    for place in range(len(message)):
        altered = bytearray(message)
        altered[place] ^= 1 << place % 8
        refuse(scene.client, bytes(altered))
    assert scene.calls == []
    scene.client.handle(message)


def test_truncated_and_unknown_bytes_are_refused(rng):
    for stage in ASKED:
        scene = Scene(stage, n_dropouts=0)  # a list that lacks a record is not accepted either
        message = scene.messages[0]
        if stage is not Kind.OPEN:  # the end of an opening is the free text of the question
            for end in range(len(message)):
                refuse(scene.client, message[:end])
            refuse(scene.client, message + b"\0")
        for length in (0, 29, 30, 31, 500):
            refuse(scene.client, rng.bytes(length))
            refuse(scene.client, message[:30] + b"\xff" * length) if length else None
        for head in (b"skdp" + message[4:], message[:4] + b"\2" + message[5:]):
            refuse(scene.client, head)
        refuse(scene.client, message[:5] + b"\x09" + message[6:])
        refuse(scene.client, "no bytes")
        scene.client.handle(message)


def test_shares_for_another_client_are_refused():
    scene = Scene(Kind.DELIVERY)
    mine, other = scene.rows(), scene.rows(1)
    for swap in ({2: other[2]}, {2: mine[3], 3: mine[2]}):
        refuse(scene.client, scene.with_rows(mine | swap), "altered")


def test_too_few_neighbours_at_each_stage():
    for stage in (Kind.PEERS, Kind.DELIVERY):
        scene = Scene(stage)
        few = dict(list(scene.rows().items())[:3])
        refuse(scene.client, scene.with_rows(few), "may drop out")


def test_peers_that_are_no_neighbours():
    scene = Scene(Kind.PEERS)
    peers = scene.rows()
    for stranger in (0, 6):
        refuse(scene.client, scene.with_rows(peers | {stranger: peers[1]}), "no neighbours")
    header, body = wire.unpack_message(scene.messages[0])
    refuse(scene.client, wire.pack_message(header, bytes(body) + bytes(body)), "twice")


def test_keys_of_low_order_are_refused():
    scene = Scene(Kind.PEERS)
    peers = scene.rows()
    keys = peers[1]
    peers[1] = keys._replace(sealing=bytes(32))
    refuse(scene.client, scene.with_rows(peers), "not valid")
    peers[1] = keys._replace(mask=bytes(32))
    scene.messages[0] = scene.with_rows(peers)
    scene.step()
    refuse(scene.client, scene.messages[0], "not valid")  # no mask with a key of the server


def test_sums_over_different_questions_stay_masked():
    """The masks depend on the question: a sum of answers to two questions stays masked."""
    scene = Scene(Kind.OPEN)
    header, body = wire.unpack_message(scene.messages[0])
    other = wire.Question(b"another question", **vars(wire.unpack_opening(body)))
    scene.messages[0] = wire.pack_message(header, wire.pack_opening(other))
    scene.step()
    scene.step()  # client 0 seals its shares for another context ...
    for client in scene.clients:  # ... and no client can use them
        refuse(client, scene.messages[client.client_id], "altered")
    assert scene.calls == []


# Signed keys


def identities(n):
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    secrets = [os.urandom(32) for _ in range(n)]
    keys = [Ed25519PrivateKey.from_private_bytes(secret).public_key() for secret in secrets]
    public = {i: key.public_bytes_raw() for i, key in enumerate(keys)}
    return [Ed25519Identity(secret, public) for secret in secrets]


def test_signed_keys():
    scene = Scene(Kind.PEERS, identities=identities(6))
    peers = scene.rows()
    foreign = Scene(Kind.PEERS).rows()  # a server that substitutes its own keys
    for changed in (
        {1: foreign[1]},
        {1: foreign[1]._replace(signature=peers[1].signature)},
        {1: peers[2], 2: peers[1]},
        {1: peers[1]._replace(sealing=foreign[1].sealing)},
        {1: peers[1]._replace(mask=foreign[1].mask)},
        {1: Keys(peers[1].sealing, peers[1].mask, peers[1].signature)},
    ):
        refuse(scene.client, scene.with_rows(peers | changed), "no valid signature")
    scene.go_on()
    assert scene.server.total.tolist() == [42] * 4


def test_signatures_of_strangers_and_of_other_steps():
    known = identities(6)
    scene = Scene(Kind.PEERS, identities=known)
    peers = scene.rows()
    scene.messages = scene.server.begin(b"question", 4)
    scene.step()
    refuse(scene.client, scene.with_rows(peers), "no valid signature")
    assert not known[0].verify(17, b"text", bytes(64))


CLIENT = partial(AggregationClient, config=AggregationConfig(3), respond=None)
SIMULATED = partial(simulated_aggregator, config=AggregationConfig(3))
BAD_ARGUMENTS = [
    *[(partial(CLIENT, RUN, client_id), r"client_id must be in 0\.\.2") for client_id in (-1, 3)],
    *[
        (partial(CLIENT, run_id, 0), "run_id must be 1 to 64 bytes")
        for run_id in (b"", b"x" * 65, "run")
    ],
    (partial(SIMULATED, [None] * 2), "one for each of 3 clients"),
    (partial(AggregationServer(RUN, AggregationConfig(4)).begin, b"q", 0), "size must be at least"),
]


@pytest.mark.parametrize(("call", "message"), BAD_ARGUMENTS)
def test_bad_arguments(call, message):
    refuses(ValueError, message, call)


# -- what a curious server receives: uniform words -------------------------------------------------


@pytest.mark.parametrize("value", [0, 1, 2**64 - 1])
def test_a_masked_message_is_uniform(value, fixed_entropy, check_uniform):
    scene = Scene(None, 4, value=value, size=1 << 13)
    messages = [words for _, words in scene.masked()]
    assert len(messages) == 4
    for words in messages:
        check_uniform(words.tobytes())
        check_uniform(np.diff(words).tobytes())
    for one, other in itertools.combinations(messages, 2):
        check_uniform((one + other).tobytes())
        check_uniform((one - other).tobytes())


def test_without_self_masks_every_partial_sum_is_uniform(fixed_entropy, check_uniform):
    """The server opens all self-masks; then the pair masks hide all sums but the whole one."""
    n, bare = 6, []
    scene = Scene(Kind.DELIVERY, n, value=0, size=1 << 13)
    scene.deliver()
    for client, (_, words) in zip(scene.clients, scene.masked(), strict=True):
        attempt, words = client._state, words.copy()
        mask(np.subtract, words, self_key(attempt.seed, attempt.context, client.client_id))
        bare.append(words)
    for count in range(1, n):
        for group in itertools.combinations(bare, count):
            check_uniform(np.sum(group, axis=0, dtype=np.uint64).tobytes())
    assert not np.sum(bare, axis=0, dtype=np.uint64).any()


def test_masks_are_new_in_every_step(fixed_entropy, check_uniform):
    scene = Scene(Kind.DELIVERY, 3, value=0, size=1 << 12, n_dropouts=0)
    scene.deliver()
    for _ in range(2):
        scene.messages = scene.server.begin(b"question", 1 << 12)
        scene.go_on(Kind.DELIVERY)
        scene.deliver()
    for client_id in range(3):
        rows = [words for sender, words in scene.masked() if sender == client_id]
        assert len(rows) == 3
        for one, other in itertools.combinations(rows, 2):
            check_uniform((one - other).tobytes())


def test_sizes_depend_on_public_numbers_only():
    scenes = [Scene(None, 4, value=value, size=50) for value in (0, 2**64 - 1)]
    one, other = ([len(answer) for _, answer in scene.answers] for scene in scenes)
    assert one == other


def without_one_share(kind, body):
    """The body of a message that holds one share less."""
    if kind is Kind.SHARES:
        digest, sealed = wire.unpack_shares(body)
        return wire.pack_shares(digest, dict(list(sealed.items())[1:]))
    shares = list(wire.unpack_reveal(body).items())[1:]
    return wire.pack_reveal((owner, which, share) for owner, (which, share) in shares)


@pytest.mark.parametrize(
    ("stage", "complaint"), [(Kind.PEERS, "to nobody else"), (Kind.UNMASK, "exactly the requested")]
)
def test_a_client_that_leaves_a_share_out_is_refused(stage, complaint):
    scene = Scene(stage, 4, value=0)
    for i, message in scene.messages.items():
        sent = scene.clients[i].handle(message)
        header, body = wire.unpack_message(sent)
        forged = wire.pack_message(header, without_one_share(header.kind, body))
        refuses(InvalidMessageError, complaint, scene.server.receive, i, forged)
        scene.server.receive(i, sent)
    scene.messages = scene.server.advance()
    scene.go_on()
    assert not np.any(scene.server.total)


def test_server_takes_one_answer_of_each_client():
    scene = Scene(Kind.DELIVERY, 4, n_dropouts=0)
    server, clients = scene.server, scene.clients
    answers = {c: clients[c].handle(message) for c, message in scene.messages.items()}
    server.receive(0, answers[0])
    for client_id, answer in [(0, answers[0]), (2, answers[1]), (1, answers[1][:-1])]:
        refuses(InvalidMessageError, None, server.receive, client_id, answer)
    assert server.waiting == {1, 2, 3}
    for client_id in (1, 2, 3):
        server.receive(client_id, answers[client_id])
    scene.messages = server.advance()
    with pytest.raises(InvalidMessageError, match="late, early or repeated"):
        server.receive(1, answers[1])  # too late: its masks are already being opened
    scene.step()
    assert scene.messages == server.advance() == {}
    assert server.total.tolist() == [28] * 4


@pytest.mark.parametrize("which", [0, 1], ids=["self-mask of a survivor", "key of a drop-out"])
def test_server_notices_an_altered_share(which):
    scene = Scene(Kind.UNMASK, 5, dropped=[4] * which)
    for client_id, message in scene.messages.items():
        answer = bytearray(scene.clients[client_id].handle(message))
        _, body = wire.unpack_message(bytes(answer))
        owners = list(wire.unpack_reveal(body).items())
        place = next(k for k, (_, (kind, _)) in enumerate(owners) if kind == which)
        answer[30 + 38 * place + 15 + client_id] ^= 1  # elsewhere for each: no two make up for it
        scene.server.receive(client_id, bytes(answer))
    with pytest.raises(AggregationAbortedError, match=r"altered|do not belong") as caught:
        scene.server.advance()
    assert caught.value.opened
    refuses(InvalidMessageError, "No step is running", scene.server.advance)


def test_server_out_of_turn():
    server = AggregationServer(b"run", AggregationConfig(4))
    refuses(InvalidMessageError, "No step is running", server.advance)
    messages = server.begin(b"q", 2)
    with pytest.raises(InvalidMessageError, match="not finished"):
        _ = server.total
    refuses(InvalidMessageError, None, server.receive, 0, messages[0])


# -- sums of states of several servers -------------------------------------------------------------


S, LOSSY = 20, AggregationConfig(20, 2, 1)


def test_states_add_up_modulo_two_to_the_64(rng):
    info = np.iinfo(np.int64)
    states = [rng.integers(info.min, info.max, (4, 3)) for _ in range(S)]
    with np.errstate(over="ignore"):
        expected = np.sum(states, axis=0)
    complete = AggregationConfig(S)
    for connect in (UnmaskedAggregator, lambda clients: simulated_aggregator(clients, complete)):
        assert np.array_equal(StateSum(connect)(states), expected)


def test_sums_without_some_states_are_not_opened():
    """Each state brings its part of the noise: a sum without one has too little."""
    asked = []

    def connect(callbacks):
        sums = simulated_aggregator(callbacks, LOSSY, lost=lambda i, kind: i == 0)
        sums._server.begin = lambda *question: asked.append(question)
        return sums

    refuses(PrivacyError, "n_dropouts=0", StateSum(connect), [np.ones(2, np.int64)] * S)
    assert not asked


def test_a_lost_state_is_an_error():
    lossy = StateSum(lambda callbacks: UnmaskedAggregator(callbacks[1:]))
    refuses(PrivacyError, "2 of 3 states", lossy, [np.ones(2, np.int64)] * 3)


@pytest.mark.parametrize("states", [[], [np.ones(2)], [np.ones(2, np.int64), np.ones(3, np.int64)]])
def test_states_are_checked(states):
    refuses(ValueError, "state", StateSum(UnmaskedAggregator), states)
