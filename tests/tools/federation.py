"""Federated fits in one process: sums that remember, single requests, steps of a secure sum."""

from types import SimpleNamespace

import numpy as np
import pytest

from skdp import federated
from skdp.federated import _messages as wire
from skdp.federated._clients import checked_call, from_words
from skdp.federated._messages import SERVER, Header, Kind, Request
from skdp.federated.noise_parts import granted_step
from skdp.privacy.gate.session import Grant
from skdp.testing._transcripts import replaced

RUN = b"a run"
_RECORDS = {
    Kind.PEERS: (wire.pack_peers, wire.unpack_peers),
    Kind.DELIVERY: (wire.pack_delivery, wire.unpack_delivery),
}


def plain_sum(clients):
    return federated.UnmaskedAggregator([client.respond for client in clients])


def secure_sum(clients, config, **options):
    return federated.simulated_aggregator([client.respond for client in clients], config, **options)


def noise_of(value):
    """Let each client draw one number in place of its noise."""

    def make(_):
        return lambda grant, *index: np.full(grant.bound.shape, value, np.int64)

    return replaced(Grant, "draw", make)


class Wire:
    """A plain sum that keeps each request, each contribution and each part of the noise."""

    def __init__(self, clients, away=()):
        self.clients, self.away, self.steps = clients, away, []

    def __call__(self, request, size):
        drawn, sent = [], {}

        def recorded(original):
            def draw(grant):
                drawn.append(original(grant))
                return drawn[-1]

            return draw

        with replaced(Grant, "draw", recorded):
            for i, client in enumerate(self.clients):
                if i not in self.away:
                    sent[i] = client.respond(request)
        total = sum(sent.values(), np.zeros(size, np.uint64))
        self.steps.append(SimpleNamespace(request=Request.decode(request), sent=sent, drawn=drawn))
        return SimpleNamespace(total=total, n_survivors=len(sent))

    def gaps(self, whole):
        """Yield (bound, request, distance) of each total to the integers of one who holds all.

        The parts of the noise are added to these.
        """
        for step in self.steps:
            bounded = asked(whole, step.request.calls, self.clients[0]._signatures)
            bound, drawn = bounded.bound, sum(step.drawn)
            expected = bounded.answer(step.request.step) + drawn
            total = from_words(sum(step.sent.values()), bound)
            if bound.symmetric:
                expected, total = expected + expected.T, total + total.T
            yield bound, step.request, np.abs(total - expected).max()


def asked(query, calls, signatures):
    """Return what a query answers to the calls of a request, unread."""
    for call in calls:
        query = checked_call(query, call, signatures)
    return query


def first_request(fit):
    """Return the first request that ``fit(aggregator)`` sends."""
    seen = []

    def stop(request, size):
        seen.append(Request.decode(request))
        raise StopIteration

    with pytest.raises(StopIteration):
        fit(stop)
    return seen[0]


def request_of(client, *calls):
    """Return an honest request, at the finest step that the client's budget allows."""
    bound = asked(client._query, calls, client._signatures).bound
    step = granted_step(bound, client._session.mu(0.1), client._parts, None)
    return Request(0, client._facts, 0.1, step, calls).encode()


class Scene:
    """A server and its clients, stopped just before the server's message of kind `until`."""

    def __init__(
        self, until=Kind.OPEN, n=6, dropped=(), identities=None, value=7, size=4, **options
    ):
        self.config = federated.AggregationConfig(n, **({"n_dropouts": 1} | options))
        self.calls, self.answers, self.value, self.size = [], [], value, size
        self.server = federated.AggregationServer(RUN, self.config)
        self.clients = [
            federated.AggregationClient(
                RUN, i, self.config, self.respond, identity=identities[i] if identities else None
            )
            for i in range(n)
        ]
        self.client, self.history = self.clients[0], []
        self.messages = self.server.begin(b"question", size)
        self.go_on(until, dropped)

    def respond(self, request):
        self.calls.append(request)
        return np.full(self.size, self.value, dtype=np.uint64)

    def go_on(self, until=None, dropped=()):
        """Play to the server's message of a kind, or to the end."""
        while self.messages and wire.message_kind(self.messages[0]) is not until:
            self.step(dropped)

    def step(self, dropped=()):
        self.deliver(dropped)
        self.messages = self.server.advance()

    def deliver(self, dropped=()):
        """Deliver all messages; the answers of the dropped get lost at the masked stage."""
        self.history.append(self.messages)
        late = dropped if wire.message_kind(self.messages[0]) is Kind.DELIVERY else ()
        for client_id, message in self.messages.items():
            answer = self.clients[client_id].handle(message)
            self.answers.append((client_id, answer))
            if client_id not in late:
                self.server.receive(client_id, answer)

    def masked(self):
        """Return (client, words) of all masked contributions so far."""
        unpacked = [(i, *wire.unpack_message(answer)) for i, answer in self.answers]
        return [
            (i, np.frombuffer(body, dtype="<u8"))
            for i, header, body in unpacked
            if header.kind is Kind.MASKED
        ]

    def rows(self, client_id=0):
        """Return the records by client of a message that waits for one."""
        header, body = wire.unpack_message(self.messages[client_id])
        return _RECORDS[header.kind][1](body)

    def with_rows(self, rows, client_id=0):
        """Return that message with other records."""
        header, _ = wire.unpack_message(self.messages[client_id])
        return wire.pack_message(header, _RECORDS[header.kind][0](rows))

    def forge(self, kind, body, **changes):
        header = Header(kind, 0, SERVER, wire.run_digest(RUN))._replace(**changes)
        return wire.pack_message(header, body)

    def unmask(self, alive, dead=()):
        return self.forge(Kind.UNMASK, wire.pack_flags(self.config.n_clients, alive, dead))


def refuse(client, message, match=None):
    with pytest.raises(federated.InvalidMessageError, match=match):
        client.handle(message)
