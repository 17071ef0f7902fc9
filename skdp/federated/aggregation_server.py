"""The server's half of a secure sum: it carries messages, and opens nothing but the sum."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from skdp.federated import _wire as wire
from skdp.federated._crypto import KeyPair
from skdp.federated._errors import AggregationAborted, MessageRefused
from skdp.federated._graph import circulant
from skdp.federated._masks import add_mask, subtract_mask
from skdp.federated._shamir import combine
from skdp.federated._wire import SERVER, Header, Keys, Kind
from skdp.federated.aggregation_client import commitment, pair_key, self_key
from skdp.federated.config import AggregationConfig


@dataclass
class _Attempt:
    """What the server collected in one attempt of one step."""

    opening: wire.Opening
    context: bytes
    total: NDArray[np.uint64]  # sum of the masked contributions; unmasked at the end
    expected: Kind = Kind.KEYS
    waiting: set[int] = field(default_factory=set)
    keys: dict[int, Keys] = field(default_factory=dict)
    commitments: dict[int, bytes] = field(default_factory=dict)
    mail: defaultdict[int, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    alive: set[int] = field(default_factory=set)
    dead: set[int] = field(default_factory=set)
    shares: defaultdict[int, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))


class AggregationServer:
    """The server of a secure sum: it asks, collects and opens the sum of a step.

    `begin` (or `retry`) returns the first messages, by client. Hand the answers to `receive`;
    when no more come, `advance` returns the next messages, and in the end an empty dict: then
    `total` holds the sum. Whoever has not answered until `advance` has dropped out of the step.

    Parameters
    ----------
    run_id : bytes
        Name of the run, 1 to 64 bytes, never used for another run: ``os.urandom(16)``.
    config : AggregationConfig
        What all parties agreed on.
    """

    def __init__(self, run_id: bytes, config: AggregationConfig) -> None:
        self._run_id = wire.check_run_id(run_id)
        self._digest = wire.run_digest(run_id)
        self._config = config
        self._graph = circulant(int(config.n_clients), config.degree, run_id)
        self.step, self._try = -1, 0
        self.opened = False
        self._attempt: _Attempt | None = None
        self._result: NDArray[np.uint64] | None = None

    def begin(self, request: bytes, size: int) -> dict[int, bytes]:
        """Begin the next step: a public question whose answer has `size` words."""
        numbers = wire.config_numbers(self._config)
        opening = wire.Opening(numbers, operator.index(size), bytes(request))
        if opening.size < 1:
            raise ValueError(f"size must be at least 1. Got {size!r}.")
        self.step, self._try, self.opened = self.step + 1, 0, False
        return self._open(opening)

    def retry(self) -> dict[int, bytes]:
        """Ask again what no client was asked to unmask."""
        if self._attempt is None or self.opened:
            raise AggregationAborted("An opened step is not repeated.", opened=self.opened)
        self._try += 1
        return self._open(self._attempt.opening)

    def _open(self, opening: wire.Opening) -> dict[int, bytes]:
        context = wire.context(self._run_id, self.step, self._try, opening)
        self._attempt = _Attempt(opening, context, np.zeros(opening.size, dtype=np.uint64))
        self._result = None
        clients = range(self._config.n_clients)
        return self._ask(Kind.OPEN, dict.fromkeys(clients, wire.pack_opening(opening)))

    def _ask(self, kind: Kind, bodies: dict[int, bytes]) -> dict[int, bytes]:
        """Write one message for each client, and wait for their answers."""
        attempt = self._running()
        attempt.expected, attempt.waiting = Kind(kind + 1), set(bodies)
        header = Header(kind, self.step, self._try, SERVER, self._digest)
        return {client: wire.pack(header, body) for client, body in bodies.items()}

    def _running(self) -> _Attempt:
        if self._attempt is None:
            raise MessageRefused("No step is running.")
        return self._attempt

    @property
    def waiting(self) -> frozenset[int]:
        """Clients that have not answered the last messages."""
        return frozenset(self._attempt.waiting if self._attempt else ())

    @property
    def n_survivors(self) -> int:
        """Number of contributions in the sum."""
        return len(self._running().alive)

    @property
    def total(self) -> NDArray[np.uint64]:
        """The sum of a finished step, modulo 2^64."""
        if self._result is None:
            raise MessageRefused("The step is not finished.")
        return self._result

    def receive(self, client_id: int, message: bytes) -> None:
        """Take the answer that came from client `client_id`; refuse what is out of turn."""
        attempt = self._running()
        header, body = wire.unpack(message)
        if header.run != self._digest or header.sender != client_id:
            raise MessageRefused("The message is not from this client of this run.")
        turn = (header.step, header.attempt, header.kind)
        if turn != (self.step, self._try, attempt.expected) or client_id not in attempt.waiting:
            raise MessageRefused("The message is late, early or repeated.")
        if header.kind is Kind.KEYS:
            attempt.keys[client_id] = wire.unpack_keys(body)
        elif header.kind is Kind.SHARES:
            self._take_shares(attempt, client_id, body)
        elif header.kind is Kind.MASKED:
            attempt.total += wire.unpack_words(body, attempt.opening.size)
        else:
            self._take_reveal(attempt, client_id, body)
        attempt.waiting.discard(client_id)

    def _take_shares(self, attempt: _Attempt, sender: int, body: memoryview) -> None:
        digest, sealed = wire.unpack_shares(body)
        if sealed.keys() != self._linked(sender, attempt.keys):
            raise MessageRefused("A client shares its secrets with its neighbours, each of them.")
        attempt.commitments[sender] = digest
        for receiver, text in sealed.items():
            attempt.mail[receiver][sender] = text

    def _take_reveal(self, attempt: _Attempt, sender: int, body: memoryview) -> None:
        shares = wire.unpack_reveal(body)
        wanted = dict.fromkeys(self._linked(sender, attempt.alive), 0)
        wanted |= dict.fromkeys(self._linked(sender, attempt.dead), 1)
        if {owner: which for owner, (which, _) in shares.items()} != wanted:
            raise MessageRefused("A client reveals what was asked for, and nothing else.")
        for owner, (_, share) in shares.items():
            attempt.shares[owner][self._graph.slots[owner][sender]] = share

    def advance(self) -> dict[int, bytes]:
        """Return the next messages, or an empty dict when the sum is ready."""
        attempt = self._running()
        if attempt.expected is Kind.KEYS:
            return self._send_peers(attempt)
        if attempt.expected is Kind.SHARES:
            return self._send_mail(attempt)
        if attempt.expected is Kind.MASKED:
            return self._ask_to_unmask(attempt)
        if self._result is None:
            self._result = self._unmask(attempt)
        return {}

    def _send_peers(self, attempt: _Attempt) -> dict[int, bytes]:
        self._check_enough(attempt.keys)
        bodies = {}
        for client in attempt.keys:
            peers = self._linked(client, attempt.keys)
            bodies[client] = wire.pack_peers({peer: attempt.keys[peer] for peer in peers})
        return self._ask(Kind.PEERS, bodies)

    def _send_mail(self, attempt: _Attempt) -> dict[int, bytes]:
        self._check_enough(attempt.commitments)
        bodies = {c: wire.pack_delivery(attempt.mail[c]) for c in attempt.commitments}
        return self._ask(Kind.DELIVERY, bodies)

    def _ask_to_unmask(self, attempt: _Attempt) -> dict[int, bytes]:
        alive = attempt.commitments.keys() - attempt.waiting
        self._check_enough(alive)
        attempt.alive, attempt.dead = alive, attempt.commitments.keys() - alive
        # `n_dropouts` are gone at most: threshold <= neighbours - n_dropouts are left to everybody
        flags = wire.pack_flags(int(self._config.n_clients), alive, attempt.dead)
        self.opened = True
        return self._ask(Kind.UNMASK, dict.fromkeys(sorted(alive), flags))

    def _check_enough(self, clients: Collection[int]) -> None:
        if len(clients) < self._config.fewest_survivors:
            raise AggregationAborted(
                f"Only {len(clients)} of {self._config.n_clients} clients are left, and at most "
                f"{self._config.n_dropouts} may drop out. Nothing was opened.",
                opened=False,
            )

    def _linked(self, client: int, others: Collection[int]) -> set[int]:
        return {peer for peer in self._graph.neighbours[client] if peer in others}

    def _unmask(self, attempt: _Attempt) -> NDArray[np.uint64]:
        """Take off the self-masks of the survivors and the pair masks of the others."""
        try:
            for client in attempt.alive:
                seed = combine(attempt.shares[client], self._config.shares_needed)
                if commitment(seed, attempt.context, client) != attempt.commitments[client]:
                    raise MessageRefused("A revealed share was altered.")
                subtract_mask(attempt.total, self_key(seed, attempt.context, client))
            for client in attempt.dead:
                self._unlink(attempt, client)
        except MessageRefused as error:
            self._attempt = None  # half-unmasked sums are of no use to anybody
            raise AggregationAborted(f"The sum could not be opened: {error}", opened=True) from None
        return attempt.total

    def _unlink(self, attempt: _Attempt, dead: int) -> None:
        """Remove the masks that the survivors share with a client that dropped out."""
        pair = KeyPair(combine(attempt.shares[dead], self._config.shares_needed))
        if pair.public != attempt.keys[dead].mask:
            raise MessageRefused("A revealed share was altered.")
        for peer in self._linked(dead, attempt.alive):
            key = pair_key(pair.agree(attempt.keys[peer].mask), attempt.context, dead, peer)
            undo = subtract_mask if peer < dead else add_mask
            undo(attempt.total, key)
