"""Plain data and arrays as bytes: decoding gives the same bits, and reads nothing else."""

import json
import struct

import numpy as np
import pytest

from skdp.exceptions import PrivacyError
from skdp.privacy.accounting.plain_data import pack, unpack
from tools.outcomes import refuses

ITEM = {
    "numbers": [0.1, -0.0, float("inf"), 2**60, True, None, np.float64(1 / 3)],
    "words": {"a": "ü", "b": []},
    "arrays": [np.arange(6.0).reshape(2, 3).T, np.zeros((0, 2), np.int64), np.array(2.5)],
}


def test_the_same_bits_come_back():
    back = unpack(pack(ITEM))
    assert back["words"] == ITEM["words"]
    assert repr(back["numbers"]) == repr([*ITEM["numbers"][:-1], 1 / 3])
    for sent, got in zip(ITEM["arrays"], back["arrays"], strict=True):
        assert (sent.dtype, sent.shape) == (got.dtype, got.shape)
        assert sent.tobytes() == got.tobytes()
    assert pack(back) == pack(ITEM)


@pytest.mark.parametrize("item", [object(), np.array([None]), np.array(["a"]), {1, 2}, 1j])
def test_other_things_are_not_packed(item):
    refuses(PrivacyError, "cannot pack", pack, {"item": item})


def with_text(text, tail=b"\0" * 16):
    return struct.pack("<Q", len(text)) + text + tail


def array(**changes):
    part = {"__array__": 0, "dtype": "<f8", "shape": [2]} | changes
    return with_text(json.dumps({key: v for key, v in part.items() if v is not None}).encode())


DAMAGED = {
    "nothing": b"", "cut": pack(ITEM)[:-1], "more": pack(ITEM) + b"\0", "text": pack(ITEM)[:20],
    "length": struct.pack("<Q", 2**62) + b"{}", "no json": with_text(b"\xff", b""),
    "deep": with_text(b"[" * 100_000, b""), "object": array(dtype="|O"),
    "string": array(dtype="<U2"), "unknown": array(dtype="zz"), "no dtype": array(dtype=None),
    "second": array(__array__=1), "negative": array(shape=[-2, -1]), "float": array(shape=[2.0]),
    "large": array(shape=[2**40, 2**40]), "short": array(shape=[1]),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_bytes_are_refused(name):
    refuses(ValueError, "damaged", unpack, DAMAGED[name])


def test_the_text_may_be_bounded():
    assert unpack(array(), longest_text=100).tolist() == [0.0, 0.0]
    refuses(ValueError, "damaged", unpack, array(), longest_text=10)
