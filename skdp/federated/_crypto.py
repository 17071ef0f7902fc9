"""The primitives, from the `cryptography` package: X25519, HKDF, ChaCha20-Poly1305, Ed25519.

All secrets are 256 bits of system entropy and live for one attempt of one step.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Final, Protocol

from skdp.federated._errors import MessageRefused

KEY_BYTES: Final = 32
TAG_BYTES: Final = 16
SIGNATURE_BYTES: Final = 64
_NONCE: Final = bytes(12)  # every sealing key is derived for one message and used once


@functools.cache
def library() -> SimpleNamespace:
    """Import what is used of `cryptography`, which only federated fits need."""
    try:
        from cryptography.exceptions import InvalidSignature, InvalidTag
        from cryptography.hazmat.primitives import ciphers, hashes
        from cryptography.hazmat.primitives.asymmetric import ed25519, x25519
        from cryptography.hazmat.primitives.ciphers import aead, algorithms
        from cryptography.hazmat.primitives.kdf import hkdf
    except ImportError as error:
        raise ImportError(
            "Secure aggregation needs the package cryptography: pip install 'skdp[federated]'."
        ) from error
    return SimpleNamespace(
        X25519PrivateKey=x25519.X25519PrivateKey,
        X25519PublicKey=x25519.X25519PublicKey,
        Ed25519PrivateKey=ed25519.Ed25519PrivateKey,
        Ed25519PublicKey=ed25519.Ed25519PublicKey,
        ChaCha20=algorithms.ChaCha20,
        ChaCha20Poly1305=aead.ChaCha20Poly1305,
        Cipher=ciphers.Cipher,
        HKDF=hkdf.HKDF,
        SHA256=hashes.SHA256,
        InvalidSignature=InvalidSignature,
        InvalidTag=InvalidTag,
    )


class KeyPair:
    """An X25519 key pair; its secret is known as bytes, because it will be shared."""

    __slots__ = ("_key", "public", "secret")

    def __init__(self, secret: bytes | None = None) -> None:
        self.secret: bytes = os.urandom(KEY_BYTES) if secret is None else secret
        self._key = library().X25519PrivateKey.from_private_bytes(self.secret)
        self.public: bytes = self._key.public_key().public_bytes_raw()

    def agree(self, peer: bytes) -> bytes:
        """Return what both owners can compute; a peer of low order is refused."""
        try:
            shared: bytes = self._key.exchange(library().X25519PublicKey.from_public_bytes(peer))
        except ValueError:
            raise MessageRefused("A public key is not valid.") from None
        return shared

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public.hex()})"


def derive(secret: bytes, context: bytes, label: bytes) -> bytes:
    """Return a 256-bit key for one purpose (`label`) in one attempt (`context`): HKDF-SHA256."""
    crypto = library()
    key: bytes = crypto.HKDF(crypto.SHA256(), KEY_BYTES, context, label).derive(secret)
    return key


def seal(key: bytes, message: bytes, associated: bytes) -> bytes:
    """Encrypt and authenticate the one message of a key."""
    sealed: bytes = library().ChaCha20Poly1305(key).encrypt(_NONCE, message, associated)
    return sealed


def unseal(key: bytes, sealed: bytes, associated: bytes) -> bytes:
    """Return the message, or refuse if anything was altered."""
    crypto = library()
    try:
        message: bytes = crypto.ChaCha20Poly1305(key).decrypt(_NONCE, sealed, associated)
    except crypto.InvalidTag:
        raise MessageRefused("A share was altered on its way.") from None
    return message


class Identity(Protocol):
    """What a key infrastructure gives a client: signatures that the other clients can check."""

    def sign(self, message: bytes, /) -> bytes:
        """Return 64 bytes."""
        ...

    def verify(self, client_id: int, message: bytes, signature: bytes, /) -> bool:
        """Return whether client `client_id` signed the message."""
        ...


class Ed25519Identity:
    """Long-term Ed25519 signature keys, known to all clients before the run.

    With them a server cannot slip in keys of its own. They protect the keys and nothing else:
    the protocol stays one for parties that follow it (see the user guide).

    Parameters
    ----------
    secret : bytes
        The 32 bytes of this client's private key.
    public_keys : mapping of int to bytes
        Public key of each client.
    """

    def __init__(self, secret: bytes, public_keys: Mapping[int, bytes]) -> None:
        crypto = library()
        self._key = crypto.Ed25519PrivateKey.from_private_bytes(secret)
        self._public = {
            client_id: crypto.Ed25519PublicKey.from_public_bytes(key)
            for client_id, key in public_keys.items()
        }

    def sign(self, message: bytes) -> bytes:
        """Sign with this client's key."""
        signature: bytes = self._key.sign(message)
        return signature

    def verify(self, client_id: int, message: bytes, signature: bytes) -> bool:
        """Check a signature of another client."""
        if client_id not in self._public:
            return False
        try:
            self._public[client_id].verify(signature, message)
        except library().InvalidSignature:
            return False
        return True
