"""Masks are a published keystream, and cancel."""

import numpy as np

from skdp.federated._crypto import add_mask, subtract_mask


def test_masks_are_chacha20_of_rfc_8439():
    total = np.zeros(8, dtype=np.uint64)
    add_mask(total, bytes(32))
    expected = (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    assert total.astype("<u8").tobytes().hex() == expected


def test_masks_cancel_in_pieces():
    for size in (1, 8191, 8192, 8193, 30000):
        total = np.arange(size, dtype=np.uint64)
        add_mask(total, b"k" * 32)
        whole = total.copy()
        subtract_mask(total, b"k" * 32)
        np.testing.assert_array_equal(total, np.arange(size, dtype=np.uint64))
        whole -= np.arange(size, dtype=np.uint64)
        assert len(np.unique(whole)) == size  # no piece of the stream comes twice
