"""What a curious server sees of a sum: uniform words."""

import itertools

import numpy as np
import pytest

from skdp.federated import AggregationClient, AggregationConfig, AggregationServer, MessageRefused
from skdp.federated import _messages as wire
from skdp.federated._crypto import subtract_mask
from skdp.federated._messages import Kind
from skdp.federated.aggregation import self_key


def run_step(respond, n, size, **options):
    """Run a step and return all answers of all clients."""
    config = AggregationConfig(n, **options)
    server = AggregationServer(b"run", config)
    clients = [AggregationClient(b"run", i, config, respond) for i in range(n)]
    answers, messages = [], server.begin(b"q", size)
    while messages:
        for client_id, message in messages.items():
            answers.append(clients[client_id].handle(message))
            server.receive(client_id, answers[-1])
        messages = server.advance()
    return answers


def masked(answers):
    return [
        np.frombuffer(body, dtype="<u8")
        for header, body in map(wire.unpack_message, answers)
        if header.kind is Kind.MASKED
    ]


@pytest.mark.parametrize("value", [0, 1, 2**64 - 1])
def test_a_masked_message_is_uniform(value, fixed_entropy, check_uniform):
    size = 1 << 13
    messages = masked(run_step(lambda request: np.full(size, value, np.uint64), 4, size))
    for words in messages:
        check_uniform(words.tobytes())
        check_uniform(np.diff(words).tobytes())
    for one, other in itertools.combinations(messages, 2):
        check_uniform((one + other).tobytes())
        check_uniform((one - other).tobytes())


def test_without_self_masks_every_partial_sum_is_uniform(fixed_entropy, check_uniform):
    """The server opens all self-masks; then the pair masks hide all sums but the whole one."""
    n, size = 6, 1 << 13
    config = AggregationConfig(n)
    server = AggregationServer(b"run", config)
    clients = [
        AggregationClient(b"run", i, config, lambda request: np.zeros(size, np.uint64))
        for i in range(n)
    ]
    messages, bare = server.begin(b"q", size), []
    for _ in range(2):
        for client_id, message in messages.items():
            server.receive(client_id, clients[client_id].handle(message))
        messages = server.advance()
    for client in clients:
        words = masked([client.handle(messages[client.client_id])])[0].copy()
        attempt = client._attempt
        subtract_mask(words, self_key(attempt.seed, attempt.context, client.client_id))
        bare.append(words)
    for count in range(1, n):
        for group in itertools.combinations(bare, count):
            check_uniform(np.sum(group, axis=0, dtype=np.uint64).tobytes())
    assert not np.sum(bare, axis=0, dtype=np.uint64).any()


def test_masks_are_new_in_every_step(fixed_entropy, check_uniform):
    size = 1 << 12
    config = AggregationConfig(3)
    server = AggregationServer(b"run", config)
    clients = [
        AggregationClient(b"run", i, config, lambda request: np.zeros(size, np.uint64))
        for i in range(3)
    ]
    seen = []
    for attempt in range(3):
        messages = server.retry() if attempt == 1 else server.begin(b"q", size)
        for _ in range(3):
            for client_id, message in messages.items():
                answer = clients[client_id].handle(message)
                seen.append((client_id, answer))
                server.receive(client_id, answer)
            messages = (
                server.advance() if wire.unpack_message(answer)[0].kind is not Kind.MASKED else {}
            )
    words = {0: [], 1: [], 2: []}
    for client_id, answer in seen:
        words[client_id] += masked([answer])
    for rows in words.values():
        for one, other in itertools.combinations(rows, 2):
            check_uniform((one - other).tobytes())


def test_sizes_depend_on_public_numbers_only():
    sizes = []
    for value in (0, 2**64 - 1):
        messages = run_step(lambda request, v=value: np.full(50, v, dtype=np.uint64), 4, 50)
        sizes.append([len(message) for message in messages])
    assert sizes[0] == sizes[1]


def without_one_share(kind, body):
    """The body of a message that holds one share less."""
    if kind is Kind.SHARES:
        digest, sealed = wire.unpack_shares(body)
        return wire.pack_shares(digest, dict(list(sealed.items())[1:]))
    shares = list(wire.unpack_reveal(body).items())[1:]
    return wire.pack_reveal((owner, which, share) for owner, (which, share) in shares)


@pytest.mark.parametrize(
    ("kind", "complaint"), [(Kind.SHARES, "each of them"), (Kind.REVEAL, "nothing else")]
)
def test_a_client_that_leaves_a_share_out_is_refused(kind, complaint):
    config = AggregationConfig(4)
    server = AggregationServer(b"run", config)
    clients = [
        AggregationClient(b"run", i, config, lambda request: np.zeros(3, np.uint64))
        for i in range(4)
    ]
    messages, forged = server.begin(b"q", 3), 0
    while messages:
        for i, message in messages.items():
            sent = clients[i].handle(message)
            header, body = wire.unpack_message(sent)
            if header.kind is kind:
                with pytest.raises(MessageRefused, match=complaint):
                    server.receive(i, wire.pack_message(header, without_one_share(kind, body)))
                forged += 1
            server.receive(i, sent)
        messages = server.advance()
    assert forged == 4
    assert not np.any(server.total)
