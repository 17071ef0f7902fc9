"""Sums over clients: masked ones over a transport, and plain ones for simulations."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from skdp.federated import _wire as wire
from skdp.federated._errors import AggregationAborted, MessageRefused
from skdp.federated.aggregation_client import AggregationClient, Respond, checked_words
from skdp.federated.aggregation_server import AggregationServer
from skdp.federated.config import AggregationConfig
from skdp.federated.transport_local import LocalTransport


@dataclass(frozen=True)
class AggregationResult:
    """What a step opened: the sum modulo 2^64, and how many contributions it holds."""

    total: NDArray[np.uint64]
    n_survivors: int
    step: int


class Aggregator(Protocol):
    """Answers a public question with the sum of all clients' answers."""

    def __call__(self, request: bytes, size: int) -> AggregationResult:
        """Return the sum of `size` words, or raise `AggregationAborted`."""
        ...


class Transport(Protocol):
    """Carries messages of the server to clients, and their answers back."""

    def exchange(self, messages: Mapping[int, bytes], accept: Callable[[int, bytes], bool]) -> None:
        """Send each client its message; call ``accept(client_id, answer)`` for what comes back.

        It returns when `accept` was True for every client, or no more answers are to be expected.
        An answer that is not accepted (a late one) does not count.
        """
        ...


class SecureAggregator:
    """The server of secure sums: call it with a public question, get the sum of the answers.

    The sum of a step is all that is opened. Fewer than ``n_clients - n_dropouts`` contributions
    open nothing: the call raises `AggregationAborted`, after as many attempts as are allowed.
    An attempt that clients were asked to unmask is never repeated.

    Secure against parties that follow the protocol and pool what they see (the server and at
    most `n_colluders` clients), not against a server that lies. Not externally reviewed.

    Parameters
    ----------
    transport : Transport
        How messages travel: `LocalTransport`, `SocketTransport`, or your own.
    config : AggregationConfig
        What all parties agreed on.
    run_id : bytes, optional
        Name of the run, the one that the clients know; by default 16 random bytes.
    n_attempts : int, default=2
        How often a step is tried while nothing of it was opened.

    Examples
    --------
    >>> import numpy as np
    >>> from skdp.federated import AggregationConfig, simulated_aggregator
    >>> def hospital(value):
    ...     return lambda request: np.full(2, value, dtype=np.uint64)
    >>> config = AggregationConfig(n_clients=4, n_dropouts=1)
    >>> add = simulated_aggregator([hospital(value) for value in (1, 2, 3, 4)], config)
    >>> add(b"how many?", 2).total
    array([10, 10], dtype=uint64)
    """

    def __init__(
        self,
        transport: Transport,
        config: AggregationConfig,
        run_id: bytes | None = None,
        *,
        n_attempts: int = 2,
    ) -> None:
        if n_attempts < 1:
            raise ValueError(f"n_attempts must be at least 1. Got {n_attempts!r}.")
        self.run_id = os.urandom(16) if run_id is None else wire.check_run_id(run_id)
        self.config = config
        self._transport = transport
        self._n_attempts = n_attempts
        self._server = AggregationServer(self.run_id, config)

    def __call__(self, request: bytes, size: int) -> AggregationResult:
        """Open the sum of all clients' answers to a public question of `size` words."""
        messages = self._server.begin(request, size)
        for left in reversed(range(self._n_attempts)):
            try:
                return self._finish(messages)
            except AggregationAborted as error:
                if error.opened or not left:
                    raise
            messages = self._server.retry()
        raise AssertionError  # the last attempt returns or raises

    def _finish(self, messages: dict[int, bytes]) -> AggregationResult:
        while messages:
            self._transport.exchange(messages, self._accept)
            messages = self._server.advance()
        return AggregationResult(self._server.total, self._server.n_survivors, self._server.step)

    def _accept(self, client_id: int, answer: bytes) -> bool:
        try:
            self._server.receive(client_id, answer)
        except MessageRefused:
            return False
        return True


class PlainAggregator:
    """The same sums without masks: for tests and simulations, where one process holds all data.

    Contributions are added as they come, so memory holds one at a time. A callback may stand for
    a whole chunk of clients and return the sum of their contributions.

    Parameters
    ----------
    callbacks : iterable of callable
        ``respond(request)`` of each client, or of each chunk; iterated over at each step.
    n_clients : int, optional
        Number of clients, if callbacks stand for chunks; by default one for each callback.
    """

    def __init__(self, callbacks: Iterable[Respond], n_clients: int | None = None) -> None:
        self._callbacks = callbacks
        self._n_clients = n_clients
        self._step = -1

    def __call__(self, request: bytes, size: int) -> AggregationResult:
        """Add up all clients' answers to a public question of `size` words."""
        self._step += 1
        total = np.zeros(size, dtype=np.uint64)
        count = 0
        for respond in self._callbacks:
            total += checked_words(respond(request), size)
            count += 1
        return AggregationResult(total, self._n_clients or count, self._step)


def simulated_aggregator(
    callbacks: Sequence[Respond],
    config: AggregationConfig,
    *,
    lost: Callable[[int, wire.Kind], bool] | None = None,
    n_attempts: int = 2,
) -> SecureAggregator:
    """Return a `SecureAggregator` whose clients, one for each callback, live in this process.

    ``lost(client_id, kind)`` tells which answers never arrive, to rehearse drop-outs.
    """
    if len(callbacks) != config.n_clients:
        raise ValueError(
            f"callbacks must be one for each of {config.n_clients} clients. Got {len(callbacks)}."
        )
    run_id = os.urandom(16)
    clients = [
        AggregationClient(run_id, number, config, respond)
        for number, respond in enumerate(callbacks)
    ]
    handlers = {client.client_id: client.handle for client in clients}
    transport = LocalTransport(handlers, lost=lost)
    return SecureAggregator(transport, config, run_id, n_attempts=n_attempts)
