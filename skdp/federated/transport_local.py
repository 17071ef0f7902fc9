"""Clients in the same process: for tests and simulations."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from skdp.federated._errors import MessageRefused
from skdp.federated._wire import Kind, message_kind


class LocalTransport:
    """Carry messages to clients of this process, one after the other.

    Parameters
    ----------
    handlers : mapping of int to callable
        What each client does with a message: the `handle` of an `AggregationClient`.
    lost : callable, optional
        ``lost(client_id, kind)``: whether the client's answer of this kind never arrives, as if
        the client had dropped out. To rehearse drop-outs.
    """

    def __init__(
        self,
        handlers: Mapping[int, Callable[[bytes], bytes]],
        *,
        lost: Callable[[int, Kind], bool] | None = None,
    ) -> None:
        self._handlers = handlers
        self._lost = lost

    def exchange(self, messages: Mapping[int, bytes], accept: Callable[[int, bytes], bool]) -> None:
        """Deliver each message and hand over its answer; a client that refuses is silent."""
        for client_id, message in messages.items():
            if client_id not in self._handlers:
                continue
            try:
                answer = self._handlers[client_id](message)
            except MessageRefused:
                continue
            if self._lost is None or not self._lost(client_id, message_kind(answer)):
                accept(client_id, answer)
