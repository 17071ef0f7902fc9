"""Secure sums: the client, the server, and both in one process."""

from __future__ import annotations

import hashlib
import operator
import os
import struct
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from skdp.federated import _crypto
from skdp.federated import _messages as wire
from skdp.federated._messages import SERVER, Header, Keys, Kind, LocalTransport, Question
from skdp.federated.config import AggregationAbortedError, AggregationConfig, InvalidMessageError
from skdp.privacy.noise.words import KEY_BYTES

# The client of a secure sum: it masks its contribution, and keeps its masks secret.


Respond: TypeAlias = Callable[[bytes], NDArray[np.uint64]]


def checked_words(values: NDArray[np.uint64], size: int) -> NDArray[np.uint64]:
    """Return the checked result of a client's `respond`, or refuse."""
    if values.dtype != np.uint64 or values.shape != (size,):
        raise TypeError(
            f"respond must return a uint64 array of shape ({size},). "
            f"Got {values.dtype} of shape {values.shape}."
        )
    return values


def pair_key(shared: bytes, context: bytes, one: int, other: int) -> bytes:
    """Key of the mask that two clients share; both of them derive the same."""
    return _crypto.derive(shared, context, b"pair" + struct.pack("<II", *sorted((one, other))))


def self_key(seed: bytes, context: bytes, client_id: int) -> bytes:
    """Key of a client's own mask (its self-mask)."""
    return _crypto.derive(seed, context, b"self" + struct.pack("<I", client_id))


def commitment(seed: bytes, context: bytes, client_id: int) -> bytes:
    """Digest of a self-mask's seed, by which the server checks the seed that it reconstructs.

    The seed has 256 bits of entropy, so its digest does not help to find it.
    """
    text = b"skdp.federated.seed/1" + context + struct.pack("<I", client_id) + seed
    return hashlib.sha256(text).digest()


def sealing_key(shared: bytes, context: bytes, sender: int, receiver: int) -> bytes:
    """Key of the one sealed message from a client to another."""
    return _crypto.derive(shared, context, b"seal" + struct.pack("<II", sender, receiver))


def signed_part(context: bytes, client_id: int, keys: Keys) -> bytes:
    """Return the bytes that a client signs, with its keys."""
    return b"skdp.federated.keys/1" + context + struct.pack("<I", client_id) + b"".join(keys[:2])


@dataclass
class _ClientStep:
    """Secrets of one step. They are dropped with it and never reused."""

    question: Question
    context: bytes
    expected: Kind | None = Kind.PEERS  # the next kind of message to answer; None: answer no more
    masking: _crypto.KeyPair = field(default_factory=_crypto.KeyPair)
    sealing: _crypto.KeyPair = field(default_factory=_crypto.KeyPair)
    seed: bytes = field(default_factory=lambda: os.urandom(KEY_BYTES), repr=False)
    peers: dict[int, Keys] = field(default_factory=dict)
    incoming: dict[int, bytes] = field(default_factory=dict, repr=False)  # keys of sealed shares
    held: dict[int, bytes] = field(default_factory=dict, repr=False)  # shares of others' secrets


class AggregationClient:
    """One client of a secure sum: bytes in, bytes out, over any transport.

    The server learns the sum of all contributions modulo 2^64 and nothing else about them, as long
    as all parties follow the protocol and at most `n_colluders` clients share what they know with
    it. Only the noise in the contributions makes the sum itself private.

    Parameters
    ----------
    run_id : bytes
        Name of the run, 1 to 64 bytes, never used for another run.
    client_id : int
        Number of this client, from 0 to n_clients - 1.
    config : AggregationConfig
        What all parties agreed on.
    respond : callable
        ``respond(request)`` returns this client's contribution, noise included, as a uint64 array.
        It is called at most once in each step. Pass the request on unchanged: this `bytes` object
        also holds the counts of the sum.
    identity : Identity, default=None
        Signs the public keys, and checks those of others. See `Ed25519Identity`.

    Notes
    -----
    A message out of turn, from another run or step, repeated or altered changes nothing and raises
    `InvalidMessageError`. Steps only go forward, and each message of a step is answered once.

    All keys are new in each step and live in this object only: a client that was restarted
    must not rejoin its run, because it would not know which steps it has answered.
    """

    def __init__(
        self,
        run_id: bytes,
        client_id: int,
        config: AggregationConfig,
        respond: Respond,
        *,
        identity: _crypto.Identity | None = None,
    ) -> None:
        if not 0 <= client_id < config.n_clients:
            raise ValueError(f"client_id must be in 0..{config.n_clients - 1}. Got {client_id!r}.")
        self.client_id = int(client_id)
        self._run_id = wire.check_run_id(run_id)
        self._digest = wire.run_digest(run_id)
        self._config = config
        self._respond = respond
        self._identity = identity
        graph = _crypto.circulant(int(config.n_clients), config.degree, run_id)
        self._neighbours = graph.neighbours[client_id]
        self._step = -1
        self._state: _ClientStep | None = None
        self._lock = threading.RLock()  # two answers at once could reveal both secrets of a client

    def __getstate__(self) -> None:
        """Refuse copies: two of them could answer a step twice."""
        raise TypeError("An AggregationClient cannot be copied or pickled: it answers only once.")

    def handle(self, message: bytes) -> bytes:
        """Return the answer to a message of the server, or raise `InvalidMessageError`."""
        header, body = wire.unpack_message(message)
        if header.run != self._digest or header.sender != wire.SERVER:
            raise InvalidMessageError("The message is not from the server of this run.")
        with self._lock:
            if header.kind is Kind.OPEN:
                return self._on_open(header, body)
            state = self._current(header)
            if header.kind is Kind.PEERS:
                return self._on_peers(state, body)
            if header.kind is Kind.DELIVERY:
                return self._on_delivery(state, body)
            return self._on_unmask(state, body)

    def _current(self, header: Header) -> _ClientStep:
        state = self._state
        if state is None or header.step != self._step:
            raise InvalidMessageError("The message belongs to another step.")
        if state.expected is None or header.kind is not state.expected:
            raise InvalidMessageError(f"A message of kind {header.kind.name} is out of turn.")
        return state

    def _answer(self, kind: Kind, body: bytes) -> bytes:
        header = Header(kind, self._step, self.client_id, self._digest)
        return wire.pack_message(header, body)

    def _on_open(self, header: Header, body: memoryview) -> bytes:
        """Begin a step with new keys."""
        if header.step <= self._step:
            raise InvalidMessageError("This step was already answered.")
        question = wire.unpack_opening(body)
        if question.counts != self._config.counts:
            raise InvalidMessageError("The server has another configuration than this client.")
        context = wire.context(self._run_id, header.step, question)
        state = _ClientStep(question, context)
        self._step, self._state = header.step, state
        keys = Keys(state.masking.public, state.sealing.public, bytes(_crypto.SIGNATURE_BYTES))
        if self._identity is not None:
            signature = self._identity.sign(signed_part(context, self.client_id, keys))
            keys = keys._replace(signature=signature)
        return self._answer(Kind.KEYS, b"".join(keys))

    def _on_peers(self, state: _ClientStep, body: memoryview) -> bytes:
        """Share the seed of the self-mask and the key of the pair masks among the neighbours."""
        peers = wire.unpack_peers(body)
        self._check_peers(state, peers)
        me, context = self.client_id, state.context
        shares = self._split(state)
        incoming, sealed = {}, {}
        for peer, keys in peers.items():
            shared = state.sealing.agree(keys.sealing)
            key = sealing_key(shared, context, me, peer)
            sealed[peer] = _crypto.seal(key, shares[peer], _route(context, me, peer))
            incoming[peer] = sealing_key(shared, context, peer, me)
        state.peers, state.incoming = peers, incoming
        state.expected = Kind.DELIVERY
        return self._answer(
            Kind.SHARES, wire.pack_shares(commitment(state.seed, context, me), sealed)
        )

    def _check_peers(self, state: _ClientStep, peers: dict[int, Keys]) -> None:
        if not peers.keys() <= set(self._neighbours):
            raise InvalidMessageError("The server names clients that are no neighbours.")
        if len(peers) < self._config.shares_needed:
            raise InvalidMessageError("More neighbours are missing than may drop out.")
        for peer, keys in peers.items():
            if self._identity is not None:
                text = signed_part(state.context, peer, keys)
                if not self._identity.verify(peer, text, keys.signature):
                    raise InvalidMessageError(f"The keys of client {peer} bear no valid signature.")

    def _split(self, state: _ClientStep) -> dict[int, bytes]:
        """Return each neighbour's pair of shares; positions are fixed by the graph."""
        n, threshold = len(self._neighbours), self._config.shares_needed
        seeds = _crypto.split(state.seed, n, threshold)
        keys = _crypto.split(state.masking.secret, n, threshold)
        rows = zip(self._neighbours, seeds, keys, strict=True)
        return {neighbour: seed + key for neighbour, seed, key in rows}

    def _on_delivery(self, state: _ClientStep, body: memoryview) -> bytes:
        """Keep the neighbours' shares, and send the masked contribution."""
        sealed = wire.unpack_delivery(body)
        if not sealed.keys() <= state.peers.keys():
            raise InvalidMessageError("The server delivers shares of clients that sent no keys.")
        if len(sealed) < self._config.shares_needed:
            raise InvalidMessageError("More neighbours are missing than may drop out.")
        me, context = self.client_id, state.context
        held = {
            peer: _crypto.unseal(state.incoming[peer], text, _route(context, peer, me))
            for peer, text in sealed.items()
        }
        shared = {peer: state.masking.agree(state.peers[peer].mask) for peer in held}
        state.held = held
        state.expected = None  # the callback is not called again, even if it fails
        total = checked_words(self._respond(state.question), state.question.size).copy()
        _crypto.mask(np.add, total, self_key(state.seed, context, me))
        for peer, secret in shared.items():
            operation = np.add if me < peer else np.subtract
            _crypto.mask(operation, total, pair_key(secret, context, me, peer))
        state.expected = Kind.UNMASK
        return self._answer(Kind.MASKED, wire.pack_words(total))

    def _on_unmask(self, state: _ClientStep, body: memoryview) -> bytes:
        """Reveal one share of each neighbour: of its self-mask, or of its key if it dropped out."""
        alive, dead = wire.unpack_flags(body, int(self._config.n_clients))
        self._check_survivors(state, alive, dead)
        shares = []
        for owner, pair in state.held.items():
            if owner in alive:
                shares.append((owner, 0, pair[: _crypto.SHARE_BYTES]))
            elif owner in dead:
                shares.append((owner, 1, pair[_crypto.SHARE_BYTES :]))
        self._state = None  # before anything is sent; this deletes the secrets too
        return self._answer(Kind.REVEAL, wire.pack_reveal(shares))

    def _check_survivors(self, state: _ClientStep, alive: set[int], dead: set[int]) -> None:
        """Refuse a request that could open a sum of too few contributions."""
        neighbours = set(self._neighbours)
        if alive & dead:
            raise InvalidMessageError("A client cannot be both in the sum and dropped out.")
        if self.client_id not in alive:
            raise InvalidMessageError("This client sent its contribution, and is not in the sum.")
        if len(alive) < self._config.fewest_survivors:
            raise InvalidMessageError("More clients are missing than may drop out.")
        if not (alive | dead) & neighbours <= state.held.keys():
            raise InvalidMessageError("The server asks for shares that were never sent.")
        if len(alive & neighbours) < self._config.shares_needed:
            raise InvalidMessageError("Too few neighbours are in the sum.")


def _route(context: bytes, sender: int, receiver: int) -> bytes:
    return context + struct.pack("<II", sender, receiver)


# The server of a secure sum: it forwards messages, and opens only the sum.


@dataclass
class _ServerStep:
    """The state of the server in one step."""

    question: Question
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

    `begin` returns the first messages, by client. Hand the answers to `receive`;
    when no more come, `advance` returns the next messages, and in the end an empty dict: then
    `total` holds the sum. A client that has not answered before `advance` has dropped out.

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
        self._graph = _crypto.circulant(int(config.n_clients), config.degree, run_id)
        self.step = -1
        self._state: _ServerStep | None = None
        self._result: NDArray[np.uint64] | None = None

    def begin(self, request: bytes, size: int) -> dict[int, bytes]:
        """Begin the next step: a public question whose answer has `size` words."""
        question = Question(bytes(request), self._config.counts, operator.index(size))
        if question.size < 1:
            raise ValueError(f"size must be at least 1. Got {size!r}.")
        self.step += 1
        context = wire.context(self._run_id, self.step, question)
        self._state = _ServerStep(question, context, np.zeros(question.size, dtype=np.uint64))
        self._result = None
        clients = range(self._config.n_clients)
        return self._ask(Kind.OPEN, dict.fromkeys(clients, wire.pack_opening(question)))

    def _ask(self, kind: Kind, bodies: dict[int, bytes]) -> dict[int, bytes]:
        """Write one message for each client, and wait for their answers."""
        state = self._running()
        state.expected, state.waiting = Kind(kind + 1), set(bodies)
        header = Header(kind, self.step, SERVER, self._digest)
        return {client: wire.pack_message(header, body) for client, body in bodies.items()}

    def _running(self) -> _ServerStep:
        if self._state is None:
            raise InvalidMessageError("No step is running.")
        return self._state

    @property
    def waiting(self) -> frozenset[int]:
        """Clients that have not answered the last messages."""
        return frozenset(self._state.waiting if self._state else ())

    @property
    def n_survivors(self) -> int:
        """Number of contributions in the sum."""
        return len(self._running().alive)

    @property
    def total(self) -> NDArray[np.uint64]:
        """The sum of a finished step, modulo 2^64."""
        if self._result is None:
            raise InvalidMessageError("The step is not finished.")
        return self._result

    def receive(self, client_id: int, message: bytes) -> None:
        """Take the answer that came from client `client_id`; refuse what is out of turn."""
        state = self._running()
        header, body = wire.unpack_message(message)
        if header.run != self._digest or header.sender != client_id:
            raise InvalidMessageError("The message is not from this client of this run.")
        turn = (header.step, header.kind)
        if turn != (self.step, state.expected) or client_id not in state.waiting:
            raise InvalidMessageError("The message is late, early or repeated.")
        if header.kind is Kind.KEYS:
            state.keys[client_id] = wire.unpack_keys(body)
        elif header.kind is Kind.SHARES:
            self._take_shares(state, client_id, body)
        elif header.kind is Kind.MASKED:
            state.total += wire.unpack_words(body, state.question.size)
        else:
            self._take_reveal(state, client_id, body)
        state.waiting.discard(client_id)

    def _take_shares(self, state: _ServerStep, sender: int, body: memoryview) -> None:
        digest, sealed = wire.unpack_shares(body)
        if sealed.keys() != self._linked(sender, state.keys):
            raise InvalidMessageError(
                "A client must send shares to each of its neighbours, and to nobody else."
            )
        state.commitments[sender] = digest
        for receiver, text in sealed.items():
            state.mail[receiver][sender] = text

    def _take_reveal(self, state: _ServerStep, sender: int, body: memoryview) -> None:
        shares = wire.unpack_reveal(body)
        wanted = dict.fromkeys(self._linked(sender, state.alive), 0)
        wanted |= dict.fromkeys(self._linked(sender, state.dead), 1)
        if {owner: which for owner, (which, _) in shares.items()} != wanted:
            raise InvalidMessageError("A client must reveal exactly the requested shares.")
        for owner, (_, share) in shares.items():
            state.shares[owner][self._graph.slots[owner][sender]] = share

    def advance(self) -> dict[int, bytes]:
        """Return the next messages, or an empty dict when the sum is ready."""
        state = self._running()
        if state.expected is Kind.KEYS:
            self._check_enough(state.keys)
            bodies = {}
            for client in state.keys:
                peers = self._linked(client, state.keys)
                bodies[client] = wire.pack_peers({peer: state.keys[peer] for peer in peers})
            return self._ask(Kind.PEERS, bodies)
        if state.expected is Kind.SHARES:
            self._check_enough(state.commitments)
            mail = {c: wire.pack_delivery(state.mail[c]) for c in state.commitments}
            return self._ask(Kind.DELIVERY, mail)
        if state.expected is Kind.MASKED:
            alive = state.commitments.keys() - state.waiting
            self._check_enough(alive)
            state.alive, state.dead = alive, state.commitments.keys() - alive
            # At most `n_dropouts` clients are missing: each has enough neighbours to be unmasked.
            flags = wire.pack_flags(int(self._config.n_clients), alive, state.dead)
            return self._ask(Kind.UNMASK, dict.fromkeys(sorted(alive), flags))
        if self._result is None:
            self._result = self._unmask(state)
        return {}

    def _check_enough(self, clients: Collection[int]) -> None:
        if len(clients) < self._config.fewest_survivors:
            raise AggregationAbortedError(
                f"Only {len(clients)} of {self._config.n_clients} clients answered, and at most "
                f"{self._config.n_dropouts} may drop out. No sum was computed. Call "
                "wait_for_clients() of the transport before the fit; clients that refuse say why.",
                opened=False,
            )

    def _linked(self, client: int, others: Collection[int]) -> set[int]:
        return {peer for peer in self._graph.neighbours[client] if peer in others}

    def _unmask(self, state: _ServerStep) -> NDArray[np.uint64]:
        """Subtract the self-masks of the survivors and the pair masks of the others."""
        try:
            for client in state.alive:
                seed = _crypto.combine(state.shares[client], self._config.shares_needed)
                if commitment(seed, state.context, client) != state.commitments[client]:
                    raise InvalidMessageError("A revealed share was altered.")
                _crypto.mask(np.subtract, state.total, self_key(seed, state.context, client))
            for client in state.dead:
                self._unlink(state, client)
        except InvalidMessageError as error:
            self._state = None  # a partly unmasked sum must not be kept
            raise AggregationAbortedError(
                f"The sum could not be opened: {error}", opened=True
            ) from None
        return state.total

    def _unlink(self, state: _ServerStep, dead: int) -> None:
        """Remove the masks that the survivors share with a client that dropped out."""
        pair = _crypto.KeyPair(_crypto.combine(state.shares[dead], self._config.shares_needed))
        if pair.public != state.keys[dead].mask:
            raise InvalidMessageError("A revealed share was altered.")
        for peer in self._linked(dead, state.alive):
            key = pair_key(pair.agree(state.keys[peer].mask), state.context, dead, peer)
            undo = np.subtract if peer < dead else np.add
            _crypto.mask(undo, state.total, key)


# Sums over clients: masked ones over a transport, and plain ones for simulations.


@dataclass(frozen=True)
class AggregationResult:
    """The opened sum of a step, modulo 2^64, and its number of contributions."""

    total: NDArray[np.uint64]
    n_survivors: int
    step: int


class Aggregator(Protocol):
    """Answers a public question with the sum of all clients' answers."""

    def __call__(self, request: bytes, size: int) -> AggregationResult:
        """Return the sum of `size` words, or raise `AggregationAbortedError`."""


class Transport(Protocol):
    """Delivers messages of the server to clients, and their answers to the server."""

    def exchange(self, messages: Mapping[int, bytes], accept: Callable[[int, bytes], bool]) -> None:
        """Send each client its message; call ``accept(client_id, answer)`` for each answer.

        It returns when `accept` was True for every client, or no more answers are to be expected.
        An answer that is not accepted (a late one) does not count.
        """


class SecureAggregator:
    """The server of secure sums: call it with a public question, get the sum of the answers.

    The sum of a step is all that is opened. Fewer than ``n_clients - n_dropouts`` contributions
    open nothing: the call raises `AggregationAbortedError`. No step is repeated.

    Secure against parties that follow the protocol and share what they receive (the server and
    at most `n_colluders` clients), not against a server that deviates. Not externally reviewed.

    Parameters
    ----------
    transport : Transport
        Delivers the messages: `LocalTransport`, or your own (`examples/federated`).
    config : AggregationConfig
        What all parties agreed on.
    run_id : bytes, default=None
        Name of the run, the one that the clients know; by default 16 random bytes.

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
        self, transport: Transport, config: AggregationConfig, run_id: bytes | None = None
    ) -> None:
        self.run_id = os.urandom(16) if run_id is None else wire.check_run_id(run_id)
        self.config = config
        self._transport = transport
        self._server = AggregationServer(self.run_id, config)

    def __call__(self, request: bytes, size: int) -> AggregationResult:
        """Open the sum of all clients' answers to a public question of `size` words."""
        messages = self._server.begin(request, size)
        try:
            while messages:
                self._transport.exchange(messages, self._accept)
                messages = self._server.advance()
        except AggregationAbortedError as error:
            for why, client in getattr(self._transport, "refusals", {}).items():
                error.add_note(f"Client {client} refused: {why}")
            raise
        return AggregationResult(self._server.total, self._server.n_survivors, self._server.step)

    def _accept(self, client_id: int, answer: bytes) -> bool:
        try:
            self._server.receive(client_id, answer)
        except InvalidMessageError:
            return False
        return True


class UnmaskedAggregator:
    """Sums without masks, for tests and simulations in which one process holds all data.

    Contributions are added one at a time, to save memory. A callback may also represent many
    clients, and return the sum of their contributions.

    Parameters
    ----------
    callbacks : iterable of callable
        ``respond(request)`` of each client, or of each chunk; iterated over at each step.
    n_clients : int, default=None
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
) -> SecureAggregator:
    """Return a `SecureAggregator` whose clients, one for each callback, live in this process.

    Parameters
    ----------
    callbacks : sequence of callable
        What each client answers: the method ``respond`` of a `PowerMethodClient`, for example.
    config : AggregationConfig
        Public counts of clients, colluders and drop-outs.
    lost : callable or None, default=None
        ``lost(client_id, kind)`` says which answers never arrive, for tests of drop-outs.
    """
    if len(callbacks) != config.n_clients:
        raise ValueError(
            f"callbacks must be one for each of {config.n_clients} clients. Got {len(callbacks)}."
        )
    run_id = os.urandom(16)
    handlers = {
        number: AggregationClient(run_id, number, config, respond).handle
        for number, respond in enumerate(callbacks)
    }
    return SecureAggregator(LocalTransport(handlers, lost=lost), config, run_id)
