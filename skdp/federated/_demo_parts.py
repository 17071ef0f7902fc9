"""What both programs of the demonstration use: a server that keeps all it gets, and its looks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess

import numpy as np

from skdp.federated._wire import Kind, message_kind
from skdp.federated.aggregation import Transport


class CuriousTransport:
    """What a server sees that follows the protocol and keeps all it gets."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.bytes_sent: Counter[Kind] = Counter()
        self.bytes_received: Counter[Kind] = Counter()
        self.masked: dict[int, bytes] = {}
        self.largest: dict[int, bytes] = {}

    def exchange(self, messages: Mapping[int, bytes], accept: Callable[[int, bytes], bool]) -> None:
        def note(client_id: int, answer: bytes) -> bool:
            kind = message_kind(answer)
            self.bytes_received[kind] += len(answer)
            if kind is Kind.MASKED:
                self.masked[client_id] = answer
                self.largest[client_id] = max(self.largest.get(client_id, b""), answer, key=len)
            return accept(client_id, answer)

        for message in messages.values():
            self.bytes_sent[message_kind(message)] += len(message)
        self._transport.exchange(messages, note)


def chi_square(body: bytes) -> float:
    """Return the chi-square statistic of bytes against uniform ones."""
    counts = np.bincount(np.frombuffer(body, dtype=np.uint8), minlength=256)
    expected = len(body) / 256
    return float(((counts - expected) ** 2 / expected).sum())


def stop(processes: list[BaseProcess]) -> None:
    """Wait for processes to end, and end those that do not."""
    for process in processes:
        process.join(10.0)
        if process.is_alive():
            process.kill()
            process.join()
