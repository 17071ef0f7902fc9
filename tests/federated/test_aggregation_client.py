"""The client guards its own masks: replays, overlaps, altered and foreign messages are refused."""

import contextlib
import copy
import os
import pickle
import threading

import numpy as np
import pytest

from skdp.federated import (
    AggregationClient,
    AggregationConfig,
    AggregationServer,
    Ed25519Identity,
    InvalidMessageError,
    simulated_aggregator,
)
from skdp.federated import _messages as wire
from skdp.federated._messages import Keys, Kind
from tools.federation import RUN, Scene, refuse

STAGES = (Kind.OPEN, Kind.PEERS, Kind.DELIVERY, Kind.UNMASK)


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
    client = scene.clients[0]
    refuse(client, scene.unmask(alive, dead), match)
    client.handle(scene.messages[0])  # nothing was revealed, so the true request is answered


def test_two_requests_to_unmask_at_the_same_time():
    """Threads of a transport must not get a share of each secret of one client."""
    scene = Scene(Kind.UNMASK)
    client = scene.clients[0]
    check, meeting, answers = client._check_survivors, threading.Barrier(2), []

    def slow_check(*arguments):
        check(*arguments)
        with contextlib.suppress(threading.BrokenBarrierError):
            meeting.wait(0.2)  # both threads are past the check, if both may get there

    def ask(message):
        with contextlib.suppress(InvalidMessageError):
            answers.append(client.handle(message))

    client._check_survivors = slow_check
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
    refuse(scene.clients[0], scene.forge(Kind.UNMASK, body), "do not exist")


def test_only_neighbours_shares_are_revealed():
    scene = Scene(Kind.UNMASK, n=60, neighbours=10)
    for client in scene.clients:
        answer = client.handle(scene.messages[client.client_id])
        owners = wire.unpack_reveal(wire.unpack_message(answer)[1]).keys()
        assert owners == set(client._neighbours) and len(owners) == 10


def test_threshold_of_neighbours(monkeypatch):
    """The bound on all drop-outs implies it; it holds without that bound, too."""
    monkeypatch.setattr(AggregationConfig, "fewest_survivors", 0)
    scene = Scene(Kind.UNMASK, n=60, neighbours=10, n_dropouts=4, threshold=6)
    client = scene.clients[0]
    far = set(range(60)) - set(client._neighbours)
    for near in (0, 5):
        refuse(client, scene.unmask(far | {*client._neighbours[:near]}), "Too few neighbours")
    client.handle(scene.unmask(far | {*client._neighbours[:6]}))


def test_shares_that_were_never_sent():
    """A client that dropped out before it shared cannot be named afterwards."""
    scene = Scene(Kind.DELIVERY)
    client = scene.clients[0]
    sealed = scene.rows()
    del sealed[5]
    client.handle(scene.with_rows(sealed))
    refuse(client, scene.unmask([0, 1, 2, 3, 4], [5]), "never sent")
    refuse(client, scene.unmask([0, 1, 2, 3, 4, 5], []), "never sent")
    client.handle(scene.unmask([0, 1, 2, 3, 4], []))


def test_a_drop_out_gets_its_key_opened_and_not_its_own_mask():
    scene = Scene(Kind.UNMASK, dropped=(3,))
    for client_id, message in scene.messages.items():
        answer = wire.unpack_reveal(
            wire.unpack_message(scene.clients[client_id].handle(message))[1]
        )
        kinds = {owner: which for owner, (which, _) in answer.items()}
        assert kinds == {i: int(i == 3) for i in range(6) if i != client_id}


# Replay


@pytest.mark.parametrize("stage", STAGES)
def test_an_identical_message_is_not_answered_twice(stage):
    scene = Scene(stage)
    client = scene.clients[0]
    client.handle(scene.messages[0])
    refuse(client, scene.messages[0])
    assert len(scene.calls) <= 6


def test_a_callback_that_failed_is_not_called_again():
    """Until a new attempt: it may have paid, or drawn noise, before it failed."""
    calls = []

    def respond(request):
        calls.append(request)
        raise RuntimeError("no data today")

    scene = Scene(Kind.DELIVERY)
    client = scene.clients[0]
    client._respond = respond
    with pytest.raises(RuntimeError, match="no data today"):
        client.handle(scene.messages[0])
    refuse(client, scene.messages[0], "out of turn")
    refuse(client, scene.unmask(range(6)), "out of turn")
    assert len(calls) == 1


def test_nothing_of_a_released_step_is_answered_again():
    scene = Scene(Kind.UNMASK)
    old = scene.history + [scene.messages]
    client = scene.clients[0]
    client.handle(scene.messages[0])
    for messages in old:
        refuse(client, messages[0])
    again = wire.unpack_message(scene.history[0][0])[1]
    refuse(client, scene.forge(Kind.OPEN, bytes(again), attempt=1), "already answered")
    assert len(scene.calls) == 6
    assert client._attempt is None  # its secrets are gone


def test_steps_only_go_forward():
    scene = Scene(Kind.UNMASK)
    body = bytes(wire.unpack_message(scene.history[0][0])[1])
    client = scene.clients[0]
    client.handle(scene.forge(Kind.OPEN, body, step=5))
    for step in (0, 4, 5):
        refuse(client, scene.forge(Kind.OPEN, body, step=step), "already answered")
    refuse(client, scene.messages[0], "another step")  # the old step's unmasking comes too late
    client.handle(scene.forge(Kind.OPEN, body, step=5, attempt=1))
    refuse(client, scene.forge(Kind.OPEN, body, step=5, attempt=1), "already answered")


def test_secrets_are_new_in_every_attempt():
    scene = Scene(Kind.PEERS)
    seen = set()
    for attempt in range(4):
        for client in scene.clients:
            secrets = client._attempt
            seen |= {secrets.seed, secrets.masking.secret, secrets.sealing.secret}
            assert len({secrets.seed, secrets.masking.public, secrets.sealing.public} - seen) == 2
        scene.messages = scene.server.retry() if attempt < 2 else scene.server.begin(b"q", 4)
        scene.step()
    assert len(seen) == 4 * 6 * 3


def test_shares_of_an_earlier_attempt_are_refused():
    scene = Scene(Kind.DELIVERY)
    old = scene.messages[0]
    scene.messages = scene.server.retry()
    scene.go_on(Kind.DELIVERY)
    refuse(scene.clients[0], old, "another step or attempt")
    header = wire.unpack_message(scene.messages[0])[0]
    replayed = wire.pack_message(header, bytes(wire.unpack_message(old)[1]))
    refuse(scene.clients[0], replayed, "altered")
    scene.clients[0].handle(scene.messages[0])


def test_messages_out_of_turn():
    for stage in STAGES:
        scene = Scene(stage)
        others = [Scene(other).messages[0] for other in STAGES if other is not stage]
        for message in others:
            if not (stage is Kind.OPEN or wire.message_kind(message) is Kind.OPEN):
                refuse(scene.clients[0], message, "out of turn")
        if stage is Kind.OPEN:
            for message in others:
                refuse(scene.clients[0], message, "another step")


def test_messages_of_others():
    scene = Scene(Kind.OPEN)
    client = scene.clients[0]
    other_run = AggregationServer(b"another run", scene.config).begin(b"question", 4)[0]
    refuse(client, other_run, "server of this run")
    answer = scene.clients[1].handle(scene.messages[1])
    refuse(client, answer, "server of this run")
    other = AggregationServer(RUN, AggregationConfig(6, n_dropouts=2)).begin(b"question", 4)[0]
    refuse(client, other, "another configuration")
    weaker = AggregationServer(RUN, AggregationConfig(6, n_dropouts=1, threshold=2))
    refuse(client, weaker.begin(b"question", 4)[0], "another configuration")


def test_a_client_cannot_be_copied():
    client = Scene(Kind.OPEN).clients[0]
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied"):
            duplicate(client)


# Altered messages


def test_every_flipped_bit_of_a_delivery_is_refused():
    scene = Scene(Kind.DELIVERY)
    message, client = scene.messages[0], scene.clients[0]
    for place in range(len(message)):
        altered = bytearray(message)
        altered[place] ^= 1 << place % 8
        refuse(client, bytes(altered))
    assert scene.calls == []
    client.handle(message)


def test_cut_and_foreign_bytes_are_refused():
    rng = np.random.default_rng(0)
    for stage in STAGES:
        scene = Scene(stage, n_dropouts=0)  # a list that lacks a record is not accepted either
        message, client = scene.messages[0], scene.clients[0]
        if stage is not Kind.OPEN:  # the end of an opening is the free text of the question
            for end in range(len(message)):
                refuse(client, message[:end])
            refuse(client, message + b"\0")
        for length in (0, 31, 32, 33, 500):
            refuse(client, rng.bytes(length))
            refuse(client, message[:32] + b"\xff" * length) if length else None
        for head in (b"skdp" + message[4:], message[:4] + b"\2" + message[5:]):
            refuse(client, head)
        refuse(client, message[:5] + b"\x09" + message[6:])
        refuse(client, "no bytes")
        client.handle(message)


def test_shares_for_somebody_else_are_refused():
    scene = Scene(Kind.DELIVERY)
    mine, other = scene.rows(), scene.rows(1)
    for swap in ({2: other[2]}, {2: mine[3], 3: mine[2]}):
        refuse(scene.clients[0], scene.with_rows(mine | swap), "altered")


def test_too_few_neighbours_at_each_stage():
    for stage in (Kind.PEERS, Kind.DELIVERY):
        scene = Scene(stage)
        few = dict(list(scene.rows().items())[:3])
        refuse(scene.clients[0], scene.with_rows(few), "may drop out")


def test_peers_that_are_no_neighbours():
    scene = Scene(Kind.PEERS)
    peers = scene.rows()
    for stranger in (0, 6):
        refuse(scene.clients[0], scene.with_rows(peers | {stranger: peers[1]}), "no neighbours")
    header, body = wire.unpack_message(scene.messages[0])
    refuse(scene.clients[0], wire.pack_message(header, bytes(body) + bytes(body)), "twice")


def test_keys_of_low_order_are_refused():
    scene = Scene(Kind.PEERS)
    peers = scene.rows()
    keys = peers[1]
    peers[1] = keys._replace(sealing=bytes(32))
    refuse(scene.clients[0], scene.with_rows(peers), "not valid")
    peers[1] = keys._replace(mask=bytes(32))
    scene.messages[0] = scene.with_rows(peers)
    scene.step()
    refuse(scene.clients[0], scene.messages[0], "not valid")  # no mask with a key of the server


def test_clients_that_were_asked_different_things_do_not_add_up():
    """The question is bound into the masks: answers to two questions stay masked."""
    scene = Scene(Kind.OPEN)
    header, body = wire.unpack_message(scene.messages[0])
    opening = wire.unpack_opening(body)._replace(request=b"another question")
    scene.messages[0] = wire.pack_message(header, wire.pack_opening(opening))
    scene.step()
    scene.step()  # client 0 seals its shares for another context ...
    for client in scene.clients:  # ... and nobody can use them
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
    foreign = Scene(Kind.PEERS).rows()  # a server that slips in keys of its own
    for changed in (
        {1: foreign[1]},
        {1: foreign[1]._replace(signature=peers[1].signature)},
        {1: peers[2], 2: peers[1]},
        {1: peers[1]._replace(sealing=foreign[1].sealing)},
        {1: peers[1]._replace(mask=foreign[1].mask)},
        {1: Keys(peers[1].sealing, peers[1].mask, peers[1].signature)},
    ):
        refuse(scene.clients[0], scene.with_rows(peers | changed), "no valid signature")
    scene.go_on()
    assert scene.server.total.tolist() == [42] * 4


def test_signatures_of_strangers_and_of_other_steps():
    known = identities(6)
    scene = Scene(Kind.PEERS, identities=known)
    peers = scene.rows()
    scene.messages = scene.server.retry()
    scene.step()
    refuse(scene.clients[0], scene.with_rows(peers), "no valid signature")
    assert not known[0].verify(17, b"text", bytes(64))


def test_parameters():
    config = AggregationConfig(3)
    for client_id in (-1, 3):
        with pytest.raises(ValueError, match=r"client_id must be in 0\.\.2"):
            AggregationClient(RUN, client_id, config, lambda request: None)
    for run_id in (b"", b"x" * 65, "run"):
        with pytest.raises(ValueError, match="run_id must be 1 to 64 bytes"):
            AggregationClient(run_id, 0, config, lambda request: None)
    assert simulated_aggregator([lambda r: np.ones(1, np.uint64)] * 3, config)(b"", 1).total[0] == 3
