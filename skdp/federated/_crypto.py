"""Cryptography of a secure sum: primitives, secret shares, the graph of masks, masks.

All secrets are 256 bits of system entropy and live for one step.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import math
import os
from collections.abc import Mapping
from functools import lru_cache
from math import prod
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from skdp._limits import CACHED
from skdp.federated.config import InvalidMessageError
from skdp.privacy.noise.words import KEY_BYTES

SIGNATURE_BYTES: Final = 64
_NONCE: Final = bytes(12)  # every sealing key is derived for one message and used once


@functools.cache
def library(module: str) -> Any:
    """Import a module of `cryptography`, which only federated fits need."""
    try:
        return importlib.import_module(f"cryptography.{module}")
    except ImportError as error:
        raise ImportError(
            "Secure aggregation needs the package cryptography: pip install 'skdp[federated]'."
        ) from error


class KeyPair:
    """An X25519 key pair; its secret is known as bytes, because it will be shared."""

    __slots__ = ("_curve", "_key", "public", "secret")

    def __init__(self, secret: bytes | None = None) -> None:
        self.secret: bytes = os.urandom(KEY_BYTES) if secret is None else secret
        self._curve = library("hazmat.primitives.asymmetric.x25519")
        self._key = self._curve.X25519PrivateKey.from_private_bytes(self.secret)
        self.public: bytes = self._key.public_key().public_bytes_raw()

    def agree(self, peer: bytes) -> bytes:
        """Return the key that both owners can compute; refuse a public key of low order."""
        try:
            return bytes(self._key.exchange(self._curve.X25519PublicKey.from_public_bytes(peer)))
        except ValueError:
            raise InvalidMessageError("A public key is not valid.") from None


def derive(secret: bytes, context: bytes, label: bytes) -> bytes:
    """Return a 256-bit key for one purpose (`label`) in one step (`context`): HKDF-SHA256."""
    sha256 = library("hazmat.primitives.hashes").SHA256()
    hkdf = library("hazmat.primitives.kdf.hkdf").HKDF(sha256, KEY_BYTES, context, label)
    return bytes(hkdf.derive(secret))


def _cipher(key: bytes) -> Any:
    return library("hazmat.primitives.ciphers.aead").ChaCha20Poly1305(key)


def seal(key: bytes, message: bytes, associated: bytes) -> bytes:
    """Encrypt and authenticate the one message of a key."""
    return bytes(_cipher(key).encrypt(_NONCE, message, associated))


def unseal(key: bytes, sealed: bytes, associated: bytes) -> bytes:
    """Return the message, or refuse if anything was altered."""
    try:
        return bytes(_cipher(key).decrypt(_NONCE, sealed, associated))
    except library("exceptions").InvalidTag:
        raise InvalidMessageError("A share was altered on its way.") from None


class Identity(Protocol):
    """Signatures of a client that the other clients can check."""

    def sign(self, message: bytes, /) -> bytes:
        """Return 64 bytes."""

    def verify(self, client_id: int, message: bytes, signature: bytes, /) -> bool:
        """Return whether client `client_id` signed the message."""


class Ed25519Identity:
    """Long-term Ed25519 signature keys, known to all clients before the run.

    With them a server cannot substitute its own keys. They protect nothing else: all parties must
    still follow the protocol (see the user guide).

    Parameters
    ----------
    secret : bytes
        The 32 bytes of this client's private key.
    public_keys : mapping of int to bytes
        Public key of each client.
    """

    def __init__(self, secret: bytes, public_keys: Mapping[int, bytes]) -> None:
        curve = library("hazmat.primitives.asymmetric.ed25519")
        self._key = curve.Ed25519PrivateKey.from_private_bytes(secret)
        self._public = {
            client_id: curve.Ed25519PublicKey.from_public_bytes(key)
            for client_id, key in public_keys.items()
        }

    def sign(self, message: bytes) -> bytes:
        """Sign with this client's key."""
        return bytes(self._key.sign(message))

    def verify(self, client_id: int, message: bytes, signature: bytes) -> bool:
        """Check a signature of another client."""
        if client_id not in self._public:
            return False
        try:
            self._public[client_id].verify(signature, message)
        except library("exceptions").InvalidSignature:
            return False
        return True


# Shamir's secret sharing of 256-bit secrets over the integers modulo a prime.
#
# Fewer than `threshold` shares are independent of the secret; `threshold` shares determine it. All
# shares have the same length.


PRIME: Final = 2**256 + 297  # the smallest prime above all secrets
SHARE_BYTES: Final = math.ceil(PRIME.bit_length() / 8)
_DRAW_BYTES: Final = math.ceil((PRIME.bit_length() + 127) / 8)  # uniform but for 2^-127


def split(secret: bytes, n_parts: int, threshold: int) -> list[bytes]:
    """Return the shares at 1..n_parts; any `threshold` of them determine the secret."""
    if len(secret) != KEY_BYTES or not 1 <= threshold <= n_parts:
        raise ValueError("A secret has 32 bytes, and a threshold lies in 1..n_parts.")
    draws = os.urandom(_DRAW_BYTES * (threshold - 1))
    coefficients = [
        int.from_bytes(draws[i : i + _DRAW_BYTES], "little") % PRIME
        for i in range(0, len(draws), _DRAW_BYTES)
    ]
    coefficients.append(int.from_bytes(secret, "little"))  # the constant term comes last
    return [_evaluate(coefficients, x) for x in range(1, n_parts + 1)]


def _evaluate(coefficients: list[int], x: int) -> bytes:
    value = 0
    for coefficient in coefficients:  # x is small: one reduction at the end is enough
        value = value * x + coefficient
    return (value % PRIME).to_bytes(SHARE_BYTES, "little")


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """Return the secret from the first `threshold` of the shares, by their positions."""
    points = tuple(sorted(shares)[:threshold])
    if len(points) < threshold:
        raise InvalidMessageError(f"{len(points)} shares of {threshold} are not enough.")
    values = [int.from_bytes(shares[x], "little") for x in points]
    value = sum(w * v for w, v in zip(_weights(points), values, strict=True)) % PRIME
    if max(values) >= PRIME or value >> (8 * KEY_BYTES):
        raise InvalidMessageError("The shares do not belong together.")
    return value.to_bytes(KEY_BYTES, "little")


@lru_cache(maxsize=4096)
def _weights(points: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange weights at zero: the product over the others of x_j / (x_j - x_i)."""
    weights = []
    for i in points:
        others = [j for j in points if j != i]
        below = prod(j - i for j in others)
        weights.append(prod(others) * pow(below, -1, PRIME) % PRIME)
    return tuple(weights)


# Who masks with whom: a circulant graph on a public random order of the clients.


class Graph(NamedTuple):
    """Neighbours of each client, and the position of each neighbour's share (1..degree)."""

    neighbours: list[tuple[int, ...]]
    slots: list[dict[int, int]]


@lru_cache(maxsize=8)
def circulant(n_clients: int, degree: int, run_id: bytes) -> Graph:
    """Link each client with the `degree`/2 next and previous ones on a circle.

    Such a graph stays connected without any degree - 1 clients (Harary 1962). The order is drawn
    from the run's name, so that nobody chooses the neighbours of a client. With degree
    n_clients - 1 all clients are linked.
    """
    stream = hashlib.shake_256(b"skdp.federated.graph/1" + run_id).digest(8 * n_clients)
    order = np.argsort(np.frombuffer(stream, dtype="<u8"), kind="stable").tolist()
    near = range(1, degree // 2 + 1)
    both = [*near, *(-offset for offset in near)]
    offsets = range(1, n_clients) if degree == n_clients - 1 else both
    neighbours: list[tuple[int, ...]] = [()] * n_clients
    for place, client in enumerate(order):
        neighbours[client] = tuple(order[(place + offset) % n_clients] for offset in offsets)
    slots = [{j: slot for slot, j in enumerate(row, 1)} for row in neighbours]
    return Graph(neighbours, slots)


# Masks: ChaCha20 keystreams read as integers modulo 2^64, which cancel in the sum.


_ZEROS: Final = bytes(8 * CACHED)
_STREAM_NONCE: Final = bytes(16)  # every key makes one stream


def mask(operation: np.ufunc, total: NDArray[np.uint64], key: bytes) -> None:
    """Add or subtract the stream of a 256-bit key, in place, modulo 2^64."""
    stream_cipher = library("hazmat.primitives.ciphers.algorithms").ChaCha20(key, _STREAM_NONCE)
    stream = library("hazmat.primitives.ciphers").Cipher(stream_cipher, None).encryptor()
    for start in range(0, total.size, CACHED):
        piece = total[start : start + CACHED]
        words = np.frombuffer(stream.update(_ZEROS[: 8 * piece.size]), dtype="<u8")
        operation(piece, words, out=piece)
