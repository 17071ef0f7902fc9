"""What a curious server sees of a sum: uniform words."""

import itertools
from functools import partial

import numpy as np
import pytest

from skdp.federated import (
    AggregationAbortedError,
    AggregationConfig,
    AggregationServer,
    InvalidMessageError,
)
from skdp.federated import _messages as wire
from skdp.federated._crypto import subtract_mask
from skdp.federated._messages import Kind
from skdp.federated.aggregation import self_key
from tools.federation import Scene


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
        attempt, words = client._attempt, words.copy()
        subtract_mask(words, self_key(attempt.seed, attempt.context, client.client_id))
        bare.append(words)
    for count in range(1, n):
        for group in itertools.combinations(bare, count):
            check_uniform(np.sum(group, axis=0, dtype=np.uint64).tobytes())
    assert not np.sum(bare, axis=0, dtype=np.uint64).any()


def test_masks_are_new_in_every_step(fixed_entropy, check_uniform):
    scene = Scene(Kind.DELIVERY, 3, value=0, size=1 << 12, n_dropouts=0)
    scene.deliver()
    for restart in (scene.server.retry, partial(scene.server.begin, b"question", 1 << 12)):
        scene.messages = restart()
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
    ("stage", "complaint"), [(Kind.PEERS, "each of them"), (Kind.UNMASK, "nothing else")]
)
def test_a_client_that_leaves_a_share_out_is_refused(stage, complaint):
    scene = Scene(stage, 4, value=0)
    for i, message in scene.messages.items():
        sent = scene.clients[i].handle(message)
        header, body = wire.unpack_message(sent)
        forged = wire.pack_message(header, without_one_share(header.kind, body))
        with pytest.raises(InvalidMessageError, match=complaint):
            scene.server.receive(i, forged)
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
        with pytest.raises(InvalidMessageError):
            server.receive(client_id, answer)
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
        answer[32 + 38 * place + 15 + client_id] ^= 1  # elsewhere for each: no two make up for it
        scene.server.receive(client_id, bytes(answer))
    with pytest.raises(AggregationAbortedError, match=r"altered|do not belong") as caught:
        scene.server.advance()
    assert caught.value.opened


def test_server_out_of_turn():
    server = AggregationServer(b"run", AggregationConfig(4))
    with pytest.raises(InvalidMessageError, match="No step is running"):
        server.advance()
    messages = server.begin(b"q", 2)
    with pytest.raises(InvalidMessageError, match="not finished"):
        _ = server.total
    with pytest.raises(InvalidMessageError):
        server.receive(0, messages[0])
    with pytest.raises(ValueError, match="size must be at least 1"):
        server.begin(b"q", 0)
    with pytest.raises(AggregationAbortedError, match="has a sum already"):
        Scene(Kind.UNMASK).server.retry()  # what it has opened
