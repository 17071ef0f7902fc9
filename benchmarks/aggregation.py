"""What a secure sum costs, all parties in one process: ``python benchmarks/aggregation.py``.

CPU time of one step, best of some repeats; the drop-outs leave when their contribution is due,
which is the most expensive moment. Key agreements are the floor: their share is measured beside.
"""

import time
from collections import Counter

import numpy as np

from skdp.federated import (
    AggregationClient,
    AggregationConfig,
    PlainAggregator,
    SecureAggregator,
)
from skdp.federated._crypto import KeyPair
from skdp.federated._wire import Kind, message_kind

REPEATS = 5
WORDS = 1600  # d x k of the usual example: 100 features, 16 components
CASES = [  # clients, colluders, drop-outs planned, neighbours, drop-outs that happen, words
    (6, 1, 1, "auto", 0, WORDS),
    (20, 1, 5, "auto", 0, WORDS),
    (20, 1, 5, "auto", 5, WORDS),
    (50, 1, 5, "auto", 5, WORDS),
    (100, 1, 10, 20, 0, WORDS),
    (100, 1, 10, 20, 10, WORDS),
    (100, 1, 10, 99, 0, WORDS),
    (500, 1, 20, 24, 20, WORDS),
    (500, 1, 25, 28, 25, WORDS),
    (500, 5, 25, "auto", 25, WORDS),
    (100, 1, 10, 20, 10, 100_000),
]


class MeteredTransport:
    """Carry messages in the process; count bytes, and seconds of the clients."""

    def __init__(self, clients, leaving):
        self.clients, self.leaving = clients, leaving
        self.up, self.down, self.seconds = Counter(), Counter(), 0.0

    def exchange(self, messages, accept):
        for client_id, message in messages.items():
            start = time.process_time()
            answer = self.clients[client_id].handle(message)
            self.seconds += time.process_time() - start
            self.down[message_kind(message)] += len(message)
            if client_id not in self.leaving or message_kind(answer) is not Kind.MASKED:
                self.up[message_kind(answer)] += len(answer)
                accept(client_id, answer)


def agreement_seconds(n=400):
    """CPU of one X25519 key agreement, here and now."""
    one, other = KeyPair(), KeyPair().public
    start = time.process_time()
    for _ in range(n):
        one.agree(other)
    return (time.process_time() - start) / n


def measure(n, colluders, planned, neighbours, leaving, words):
    config = AggregationConfig(n, colluders, planned, neighbours)
    rng = np.random.default_rng(0)
    row = rng.integers(0, 2**64, words, dtype=np.uint64)
    clients = [AggregationClient(b"run", i, config, lambda request: row) for i in range(n)]
    transport = MeteredTransport(clients, set(range(leaving)))
    aggregate = SecureAggregator(transport, config, b"run")
    expected = PlainAggregator([lambda request: row] * (n - leaving))(b"", words).total
    best = (float("inf"), 0.0, 0.0)
    for _ in range(REPEATS):
        transport.up.clear(), transport.down.clear()
        transport.seconds = 0.0
        floor = agreement_seconds() * (2 * n * config.degree + leaving * config.degree)
        start = time.process_time()
        result = aggregate(b"question", words)
        total = time.process_time() - start
        assert np.array_equal(result.total, expected)
        best = min(best, (total, transport.seconds / n, floor / total))
    up, down = (sum(counts.values()) / n for counts in (transport.up, transport.down))
    return config, *best, up, down


def main():
    print(
        "clients neighbours threshold left  words   s/step  ms/client  agreements  up kB  down kB"
    )
    for case in CASES:
        config, total, client, floor, up, down = measure(*case)
        print(
            f"{case[0]:7d} {config.degree:10d} {config.shares_needed:9d} {case[4]:4d} {case[5]:6d} "
            f"{total:8.3f} {1e3 * client:10.2f} {floor:11.0%} {up / 1e3:6.1f} {down / 1e3:8.1f}"
        )


if __name__ == "__main__":
    main()
