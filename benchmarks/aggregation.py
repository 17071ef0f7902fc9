"""What a secure sum costs, all parties in one process: ``python benchmarks/aggregation.py``.

CPU time of one step, median of some repeats; the drop-outs leave when their contribution is due,
which is the most expensive moment. Key agreements are the floor: their share is measured next to.
"""

import time
from collections import Counter

import numpy as np
from report import show, shown

from skdp.federated import (
    AggregationClient,
    AggregationConfig,
    SecureAggregator,
    UnmaskedAggregator,
)
from skdp.federated._crypto import KeyPair
from skdp.federated._messages import Kind, message_kind

REPEATS = 5
WORDS = 1600  # d x k of the usual example: 100 features, 16 components
CASES = [  # clients, colluders, drop-outs planned, drop-outs that happen, words
    (6, 1, 1, 0, WORDS),
    (20, 1, 5, 0, WORDS),
    (20, 1, 5, 5, WORDS),
    (50, 1, 5, 5, WORDS),
    (100, 1, 10, 0, WORDS),
    (100, 1, 10, 10, WORDS),
    (500, 1, 25, 25, WORDS),
    (500, 5, 25, 25, WORDS),
    (100, 1, 10, 10, 100_000),
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


def measure(repeats, n, colluders, planned, leaving, words):
    config = AggregationConfig(n, colluders, planned)
    rng = np.random.default_rng(0)
    row = rng.integers(0, 2**64, words, dtype=np.uint64)
    clients = [AggregationClient(b"run", i, config, lambda request: row) for i in range(n)]
    transport = MeteredTransport(clients, set(range(leaving)))
    aggregate = SecureAggregator(transport, config, b"run")
    expected = UnmaskedAggregator([lambda request: row] * (n - leaving))(b"", words).total
    found = []
    for _ in range(repeats):
        transport.up.clear(), transport.down.clear()
        transport.seconds = 0.0
        floor = agreement_seconds() * (2 * n * config.degree + leaving * config.degree)
        start = time.process_time()
        result = aggregate(b"question", words)
        total = time.process_time() - start
        assert np.array_equal(result.total, expected)
        found.append((total, transport.seconds / n, total / floor))
    up, down = (sum(counts.values()) / n for counts in (transport.up, transport.down))
    return config, *sorted(found)[repeats // 2], up, down


def costs(cases=CASES, repeats=REPEATS):
    """One table of all cases."""
    rows = []
    for case in cases:
        config, total, client, ratio, up, down = measure(repeats, *case)
        sizes = [case[0], config.degree, config.shares_needed, *case[3:]]
        times = [f"{total:.3f}", f"{ratio:.2f}", f"{1e3 * client:.2f}"]
        rows.append([*sizes, *times, f"{up / 1e3:.1f}", f"{down / 1e3:.1f}"])
    head = ["clients", "neighbours", "threshold", "left", "words", "CPU (s) a step",
            "/ key agreements", "a client (ms)", "up (kB)", "down (kB)"]  # fmt: skip
    show(
        f"a secure sum, all parties in one process, median of {repeats}",
        head,
        rows,
        "'left': clients that drop out after they were expected to answer. 'key agreements' is the "
        "CPU of the X25519 agreements alone, in the same run: the floor. Traffic is that of one "
        "client.",
    )


def tables(full):
    """Tables for ``python -m benchmarks``; the quick ones have up to 100 clients."""
    yield from shown(costs if full else lambda: costs(CASES[:3] + CASES[4:6], 3))


if __name__ == "__main__":
    costs()
