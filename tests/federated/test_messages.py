"""Messages and requests: what is written is read, as bytes, and nothing runs."""

import contextlib
import json
import pickle
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skdp.exceptions import PrivacyError
from skdp.federated import InvalidMessageError
from skdp.federated import _messages as wire
from skdp.federated._messages import Call, Facts, Kind, Request
from tools.outcomes import refuses

FACTS = Facts("row", "add_remove", 5, 24, 2, 1)
MAGIC = b"skdp request 2\n"


def request(*calls):
    return Request(3, FACTS, 0.1, 2.0**-30, calls or (Call("gram"),))


def same(left, right):
    if isinstance(left, np.ndarray):
        return np.array_equal(left, right) and left.dtype == right.dtype
    return left == right


def test_everything_comes_back_bit_for_bit():
    V = np.random.default_rng(0).standard_normal((5, 2))
    kept, by_columns = np.array([4, 0, 2]), np.asfortranarray(V)
    calls = (
        Call("clipped", (0.1,)),
        Call("columns", (kept,)),
        Call("tangent", (V, float("inf"))),
        Call("product", (1 / 3,)),
        Call("gram_product", (by_columns,)),
    )
    got = Request.decode(request(*calls).encode())
    assert (got.serial, got.facts, got.share, got.step) == (3, FACTS, 0.1, 2.0**-30)
    for left, right in zip(calls, got.calls, strict=True):
        assert left.method == right.method
        assert all(same(a, b) for a, b in zip(left.arguments, right.arguments, strict=True))
    assert not got.calls[2].arguments[0].flags.writeable


def with_header(change, tail=b""):
    """Return request bytes whose header was changed."""
    data = request(Call("gram_product", (np.ones((2, 2)),))).encode()
    (length,) = struct.unpack_from("<Q", data, len(MAGIC))
    start = len(MAGIC) + 8
    header = json.loads(data[start : start + length])
    change(header)
    text = json.dumps(header).encode()
    return MAGIC + struct.pack("<Q", len(text)) + text + data[start + length :] + tail


BROKEN = {
    "pickle": pickle.dumps({"calls": []}),
    "magic": b"skdp request 1\n" + request().encode()[len(MAGIC) :],
    "more fields": with_header(lambda h: h.update(extra=1)),
    "fewer fields": with_header(lambda h: h.pop("step")),
    "no calls": Request(3, FACTS, 0.1, 2.0**-30, ()).encode(),
    "many calls": request(*[Call("gram")] * 9).encode(),
    "dtype": with_header(lambda h: h["calls"][0][1][0].update(dtype="|O")),
    "three axes": with_header(lambda h: h["calls"][0][1][0].update(shape=[2, 2, 1])),
    "method": with_header(lambda h: h["calls"][0].__setitem__(0, 7)),
    "serial": with_header(lambda h: h.update(serial=-1)),
    "flag": with_header(lambda h: h.update(serial=True)),
    "share": with_header(lambda h: h.update(share="0.5")),
    "step": with_header(lambda h: h.update(step=1)),
    "four bytes": with_header(lambda h: h["calls"][0][1][0].update(dtype="<f4", shape=[4, 2])),
    "argument": with_header(lambda h: h["calls"][0][1].append([1.0])),
    "facts": with_header(lambda h: h.update(facts=["row", "add_remove", 5])),
    "list": MAGIC + struct.pack("<Q", 2) + b"[]",
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_not_a_request_is_refused(name):
    refuses(PrivacyError, "not a request", Request.decode, BROKEN[name])


@pytest.mark.thorough
@settings(max_examples=200, deadline=None)
@given(st.data())
def test_random_bytes_and_damaged_requests_are_refused_or_read(data):
    """No bytes cause another error than `PrivacyError`."""
    good = request(Call("tangent", (np.ones((5, 1)),)), Call("product", (1.0,))).encode()
    at = data.draw(st.integers(0, len(good) - 1))
    noise = data.draw(st.binary(max_size=8))
    damaged = good[:at] + noise + good[at + len(noise) :]
    with contextlib.suppress(PrivacyError):
        Request.decode(damaged)


# Messages of a secure sum


def test_messages_read_as_they_were_written():
    header = wire.Header(Kind.PEERS, 2**31, wire.SERVER, b"r" * 16)
    assert wire.unpack_message(wire.pack_message(header, b"body")) == (header, b"body")
    other = b"SKDP\x02" + wire.pack_message(header, b"body")[5:]
    refuses(InvalidMessageError, "of this version", wire.unpack_message, other)
    opening = wire.Question(b"\0\xff", (2**32 - 1, 1, 0), 2**40)
    read = wire.unpack_opening(memoryview(wire.pack_opening(opening)))
    assert (read, vars(read)) == (opening, vars(opening))
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
    body = memoryview(wire.pack_reveal([(5, 0, b"s" * 33), (2, 1, b"t" * 33)]))
    assert wire.unpack_reveal(body) == {5: (0, b"s" * 33), 2: (1, b"t" * 33)}


@pytest.mark.parametrize("read", [wire.unpack_opening, wire.unpack_shares, wire.unpack_keys])
def test_a_message_that_is_cut_short_is_refused(read):
    for length in (0, 1, 15):
        refuses(InvalidMessageError, "too short|instead of 128", read, memoryview(bytes(length)))
