"""The client's half of a secure sum: it masks its contribution, and guards its own masks."""

from __future__ import annotations

import hashlib
import os
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from skdp.federated import _wire as wire
from skdp.federated._crypto import SIGNATURE_BYTES, Identity, KeyPair, derive, seal, unseal
from skdp.federated._errors import MessageRefused
from skdp.federated._graph import circulant
from skdp.federated._masks import add_mask, subtract_mask
from skdp.federated._requests import Question
from skdp.federated._shamir import SECRET_BYTES, SHARE_BYTES, split
from skdp.federated._wire import Header, Keys, Kind
from skdp.federated.config import AggregationConfig

Respond: TypeAlias = Callable[[bytes], NDArray[np.uint64]]


def checked_words(values: NDArray[np.uint64], size: int) -> NDArray[np.uint64]:
    """Return what a client's `respond` gave, or refuse."""
    if values.dtype != np.uint64 or values.shape != (size,):
        raise TypeError(
            f"respond must return a uint64 array of shape ({size},). "
            f"Got {values.dtype} of shape {values.shape}."
        )
    return values


def pair_key(shared: bytes, context: bytes, one: int, other: int) -> bytes:
    """Key of the mask that two clients share; both of them derive the same."""
    return derive(shared, context, b"pair" + struct.pack("<II", *sorted((one, other))))


def self_key(seed: bytes, context: bytes, client_id: int) -> bytes:
    """Key of the mask that a client has for itself."""
    return derive(seed, context, b"self" + struct.pack("<I", client_id))


def commitment(seed: bytes, context: bytes, client_id: int) -> bytes:
    """Digest of a self-mask's seed: the server sees whether the shares it opened are the true ones.

    The seed has 256 bits of entropy, so its digest does not help to find it.
    """
    text = b"skdp.federated.seed/1" + context + struct.pack("<I", client_id) + seed
    return hashlib.sha256(text).digest()


def sealing_key(shared: bytes, context: bytes, sender: int, receiver: int) -> bytes:
    """Key of the one sealed message from a client to another."""
    return derive(shared, context, b"seal" + struct.pack("<II", sender, receiver))


def signed_part(context: bytes, client_id: int, keys: Keys) -> bytes:
    """What a client signs about its keys."""
    return b"skdp.federated.keys/1" + context + struct.pack("<I", client_id) + b"".join(keys[:2])


@dataclass
class _Attempt:
    """Secrets of one attempt of one step. They are dropped with it and never reused."""

    opening: wire.Opening
    context: bytes
    expected: Kind | None = Kind.PEERS  # the next kind that is answered; None: no more answers
    masking: KeyPair = field(default_factory=KeyPair)
    sealing: KeyPair = field(default_factory=KeyPair)
    seed: bytes = field(default_factory=lambda: os.urandom(SECRET_BYTES), repr=False)
    peers: dict[int, Keys] = field(default_factory=dict)
    incoming: dict[int, bytes] = field(default_factory=dict, repr=False)  # keys of sealed shares
    held: dict[int, bytes] = field(default_factory=dict, repr=False)  # shares of others' secrets


class AggregationClient:
    """One client of a secure sum: bytes in, bytes out, over any transport.

    The server learns the sum of all contributions modulo 2^64 and nothing else about them, as
    long as all parties follow the protocol and at most `n_colluders` clients share what they
    know with it. The privacy of the sum is the business of the noise in the contributions.

    Parameters
    ----------
    run_id : bytes
        Name of the run, 1 to 64 bytes, never used for another run.
    client_id : int
        Number of this client, from 0 to n_clients - 1.
    config : AggregationConfig
        What all parties agreed on.
    respond : callable
        ``respond(request)`` returns this client's contribution, noise included, as a uint64
        array. It is called at most once in each attempt of a step. The request is a `bytes` that
        also knows its step: hand it on as it is.
    identity : Identity, optional
        Signatures for the public keys, and a check of the others'. See `Ed25519Identity`.

    Notes
    -----
    A message out of turn, from another run or step, repeated or altered raises `MessageRefused`
    and changes nothing. Steps only go forward. After it sent shares to unmask a step, the client
    answers nothing more about that step; an attempt that was never unmasked may be repeated.

    All keys are new in each attempt and live in this object only: a client that was restarted
    must not rejoin its run, because it would not know which steps it has answered.
    """

    def __init__(
        self,
        run_id: bytes,
        client_id: int,
        config: AggregationConfig,
        respond: Respond,
        *,
        identity: Identity | None = None,
    ) -> None:
        if not 0 <= client_id < config.n_clients:
            raise ValueError(f"client_id must be in 0..{config.n_clients - 1}. Got {client_id!r}.")
        self.client_id = int(client_id)
        self._run_id = wire.check_run_id(run_id)
        self._digest = wire.run_digest(run_id)
        self._config = config
        self._respond = respond
        self._identity = identity
        graph = circulant(int(config.n_clients), config.degree, run_id)
        self._neighbours = graph.neighbours[client_id]
        self._step, self._try, self._released = -1, -1, False
        self._attempt: _Attempt | None = None
        self._name = os.urandom(16)  # of this object: a restarted client repeats no step of it
        self._lock = threading.RLock()  # two answers at once could reveal both secrets of a client

    def __getstate__(self) -> None:
        """Refuse copies: two of them could answer a step twice."""
        raise TypeError("An AggregationClient cannot be copied or pickled: it answers only once.")

    def handle(self, message: bytes) -> bytes:
        """Return the answer to a message of the server, or raise `MessageRefused`."""
        header, body = wire.unpack(message)
        if header.run != self._digest or header.sender != wire.SERVER:
            raise MessageRefused("The message is not from the server of this run.")
        with self._lock:
            if header.kind is Kind.OPEN:
                return self._on_open(header, body)
            attempt = self._current(header)
            if header.kind is Kind.PEERS:
                return self._on_peers(attempt, body)
            if header.kind is Kind.DELIVERY:
                return self._on_delivery(attempt, body)
            return self._on_unmask(attempt, body)

    def _current(self, header: Header) -> _Attempt:
        attempt = self._attempt
        if attempt is None or (header.step, header.attempt) != (self._step, self._try):
            raise MessageRefused("The message belongs to another step or attempt.")
        if attempt.expected is None or header.kind is not attempt.expected:
            raise MessageRefused(f"A message of kind {header.kind.name} is out of turn.")
        return attempt

    def _answer(self, kind: Kind, body: bytes) -> bytes:
        header = Header(kind, self._step, self._try, self.client_id, self._digest)
        return wire.pack(header, body)

    def _on_open(self, header: Header, body: memoryview) -> bytes:
        """Begin a step (or repeat one that was never unmasked) with new keys."""
        again = header.step == self._step and header.attempt > self._try and not self._released
        if not (header.step > self._step or again):
            raise MessageRefused("This step was already answered.")
        opening = wire.unpack_opening(body)
        if opening.config != wire.config_numbers(self._config):
            raise MessageRefused("The server has another configuration than this client.")
        context = wire.context(self._run_id, header.step, header.attempt, opening)
        attempt = _Attempt(opening, context)
        self._step, self._try, self._released = header.step, header.attempt, False
        self._attempt = attempt
        keys = Keys(attempt.masking.public, attempt.sealing.public, bytes(SIGNATURE_BYTES))
        if self._identity is not None:
            signature = self._identity.sign(signed_part(context, self.client_id, keys))
            keys = keys._replace(signature=signature)
        return self._answer(Kind.KEYS, b"".join(keys))

    def _on_peers(self, attempt: _Attempt, body: memoryview) -> bytes:
        """Share the seed of the self-mask and the key of the pair masks among the neighbours."""
        peers = wire.unpack_peers(body)
        self._check_peers(attempt, peers)
        me, context = self.client_id, attempt.context
        shares = self._split(attempt)
        incoming, sealed = {}, {}
        for peer, keys in peers.items():
            shared = attempt.sealing.agree(keys.sealing)
            key = sealing_key(shared, context, me, peer)
            sealed[peer] = seal(key, shares[peer], _route(context, me, peer))
            incoming[peer] = sealing_key(shared, context, peer, me)
        attempt.peers, attempt.incoming = peers, incoming
        attempt.expected = Kind.DELIVERY
        return self._answer(
            Kind.SHARES, wire.pack_shares(commitment(attempt.seed, context, me), sealed)
        )

    def _check_peers(self, attempt: _Attempt, peers: dict[int, Keys]) -> None:
        if not peers.keys() <= set(self._neighbours):
            raise MessageRefused("The server names clients that are no neighbours.")
        if len(peers) < self._config.degree - self._config.n_dropouts:
            raise MessageRefused("More neighbours are missing than may drop out.")
        for peer, keys in peers.items():
            if self._identity is not None:
                text = signed_part(attempt.context, peer, keys)
                if not self._identity.verify(peer, text, keys.signature):
                    raise MessageRefused(f"The keys of client {peer} bear no valid signature.")

    def _split(self, attempt: _Attempt) -> dict[int, bytes]:
        """Return each neighbour's pair of shares; positions are fixed by the graph."""
        n, threshold = len(self._neighbours), self._config.shares_needed
        seeds = split(attempt.seed, n, threshold)
        keys = split(attempt.masking.secret, n, threshold)
        rows = zip(self._neighbours, seeds, keys, strict=True)
        return {neighbour: seed + key for neighbour, seed, key in rows}

    def _on_delivery(self, attempt: _Attempt, body: memoryview) -> bytes:
        """Keep the neighbours' shares, and send the masked contribution."""
        sealed = wire.unpack_delivery(body)
        if not sealed.keys() <= attempt.peers.keys():
            raise MessageRefused("The server delivers shares of clients that sent no keys.")
        if len(sealed) < self._config.degree - self._config.n_dropouts:
            raise MessageRefused("More neighbours are missing than may drop out.")
        me, context = self.client_id, attempt.context
        held = {
            peer: unseal(attempt.incoming[peer], text, _route(context, peer, me))
            for peer, text in sealed.items()
        }
        shared = {peer: attempt.masking.agree(attempt.peers[peer].mask) for peer in held}
        attempt.held = held
        attempt.expected = None  # whatever happens in the callback, it is not called again
        total = self._contribution(attempt)
        add_mask(total, self_key(attempt.seed, context, me))
        for peer, secret in shared.items():
            apply = add_mask if me < peer else subtract_mask
            apply(total, pair_key(secret, context, me, peer))
        attempt.expected = Kind.UNMASK
        return self._answer(Kind.MASKED, wire.pack_words(total))

    def _contribution(self, attempt: _Attempt) -> NDArray[np.uint64]:
        config, step = self._config, self._name + struct.pack("<I", self._step)
        counts = (int(config.n_clients), int(config.n_colluders), int(config.n_dropouts))
        values = self._respond(
            Question(attempt.opening.request, step, counts, attempt.opening.size)
        )
        return checked_words(values, attempt.opening.size).copy()

    def _on_unmask(self, attempt: _Attempt, body: memoryview) -> bytes:
        """Reveal one share of each neighbour: of its self-mask, or of its key if it dropped out."""
        alive, dead = wire.unpack_flags(body, int(self._config.n_clients))
        self._check_survivors(attempt, alive, dead)
        shares = []
        for owner, pair in attempt.held.items():
            if owner in alive:
                shares.append((owner, 0, pair[:SHARE_BYTES]))
            elif owner in dead:
                shares.append((owner, 1, pair[SHARE_BYTES:]))
        self._released, self._attempt = True, None  # before anything leaves; the secrets go too
        return self._answer(Kind.REVEAL, wire.pack_reveal(shares))

    def _check_survivors(self, attempt: _Attempt, alive: set[int], dead: set[int]) -> None:
        """Refuse whatever could open less than the sum of enough contributions."""
        neighbours = set(self._neighbours)
        if alive & dead:
            raise MessageRefused("A client cannot be both in the sum and dropped out.")
        if self.client_id not in alive:
            raise MessageRefused("This client sent its contribution, and is not in the sum.")
        if len(alive) < self._config.fewest_survivors:
            raise MessageRefused("More clients are missing than may drop out.")
        if not (alive | dead) & neighbours <= attempt.held.keys():
            raise MessageRefused("The server asks for shares that were never sent.")
        if len(alive & neighbours) < self._config.shares_needed:
            raise MessageRefused("Too few neighbours are in the sum.")


def _route(context: bytes, sender: int, receiver: int) -> bytes:
    return context + struct.pack("<II", sender, receiver)
