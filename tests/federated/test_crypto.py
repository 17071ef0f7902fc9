"""Keys and masks, against published vectors."""

import pytest

from skdp.federated import _crypto as crypto
from skdp.federated import _messages as wire
from skdp.federated.aggregation import commitment, pair_key, sealing_key, self_key


def test_hkdf_is_the_one_of_rfc_5869():
    key = crypto.derive(b"\x0b" * 22, bytes(range(13)), bytes(range(0xF0, 0xFA)))
    assert key.hex() == "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"


def test_x25519_is_the_one_of_rfc_7748():
    alice = crypto.KeyPair(
        bytes.fromhex(
            "77076d0a7318a57d3c16c17251b26645df4c2f92ebc099ac4a4c9c5f3f1d2f2a"[:-2] + "2a"
        )
    )
    bob = crypto.KeyPair(
        bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    )
    assert bob.public.hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    assert alice.agree(bob.public) == bob.agree(alice.public)
    assert alice.secret.hex() not in repr(alice)


def test_keys_are_bound_to_everything():
    opening = wire.Opening((6, 1, 1, 5, 4), 10, b"question")
    contexts = [
        wire.context(b"run", 0, 0, opening),
        wire.context(b"rum", 0, 0, opening),
        wire.context(b"ru", 0, 0, opening),
        wire.context(b"run", 1, 0, opening),
        wire.context(b"run", 0, 1, opening),
        wire.context(b"run", 0, 0, opening._replace(size=11)),
        wire.context(b"run", 0, 0, opening._replace(request=b"question?")),
        wire.context(b"run", 0, 0, opening._replace(config=(6, 1, 1, 5, 3))),
    ]
    keys = [
        key
        for context in contexts
        for key in (
            *(pair_key(b"s" * 32, context, 1, other) for other in (2, 3)),
            *(sealing_key(b"s" * 32, context, *pair) for pair in ((1, 2), (2, 1), (1, 3))),
            *(self_key(b"s" * 32, context, client) for client in (1, 2)),
            *(commitment(b"s" * 32, context, client) for client in (1, 2)),
        )
    ]
    assert len(set(keys)) == len(keys) == 72
    assert pair_key(b"s" * 32, contexts[0], 1, 2) == pair_key(b"s" * 32, contexts[0], 2, 1)


def test_missing_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cryptography.exceptions", None)
    crypto.library.cache_clear()
    with pytest.raises(ImportError, match=r"pip install 'skdp\[federated\]'"):
        crypto.library()
