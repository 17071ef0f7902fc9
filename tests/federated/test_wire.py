"""Messages: what is written is read, and sizes are public."""

import numpy as np
import pytest

from skdp.federated import MessageRefused
from skdp.federated import _messages as wire
from skdp.federated._messages import Kind


def test_messages_read_as_they_were_written():
    header = wire.Header(Kind.PEERS, 2**31, 65535, wire.SERVER, b"r" * 16)
    assert wire.unpack_message(wire.pack_message(header, b"body")) == (header, b"body")
    opening = wire.Opening((2**32 - 1, 1, 0, 3, 2), 2**40, b"\0\xff")
    assert wire.unpack_opening(memoryview(wire.pack_opening(opening))) == opening
    keys = wire.Keys(b"a" * 32, b"b" * 32, b"c" * 64)
    assert wire.unpack_keys(memoryview(b"".join(keys))) == keys
    assert wire.unpack_peers(memoryview(wire.pack_peers({7: keys, 1: keys}))) == {7: keys, 1: keys}
    sealed = {3: b"x" * 82, 0: b"y" * 82}
    body = memoryview(wire.pack_shares(b"d" * 32, sealed))
    assert wire.unpack_shares(body) == (b"d" * 32, sealed)
    words = np.array([0, 1, 2**64 - 1], dtype=np.uint64)
    np.testing.assert_array_equal(wire.unpack_words(memoryview(wire.pack_words(words)), 3), words)
    for n in (1, 8, 9, 100):
        body = memoryview(wire.pack_flags(n, {0, n - 1}, set()))
        assert wire.unpack_flags(body, n) == ({0, n - 1}, set())
    shares = [(5, 0, b"s" * 33), (2, 1, b"t" * 33)]
    body = memoryview(wire.pack_reveal(shares))
    assert wire.unpack_reveal(body) == {5: (0, b"s" * 33), 2: (1, b"t" * 33)}


@pytest.mark.parametrize("read", [wire.unpack_opening, wire.unpack_shares])
def test_a_message_that_is_cut_short_is_refused(read):
    for length in (0, 1, 15):
        with pytest.raises(MessageRefused, match="too short"):
            read(memoryview(bytes(length)))
