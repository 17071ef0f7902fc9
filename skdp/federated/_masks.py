"""Masks: ChaCha20 keystreams read as integers modulo 2^64, which cancel in the sum."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from skdp.federated._crypto import library

_CHUNK: Final = 8192  # words: a piece of the stream stays in the cache of the processor
_ZEROS: Final = bytes(8 * _CHUNK)
_NONCE: Final = bytes(16)  # every key makes one stream


def add_mask(total: NDArray[np.uint64], key: bytes) -> None:
    """Add the stream of a 256-bit key to `total`, in place, modulo 2^64."""
    _apply(np.add, total, key)


def subtract_mask(total: NDArray[np.uint64], key: bytes) -> None:
    """Subtract the stream of a 256-bit key from `total`, in place, modulo 2^64."""
    _apply(np.subtract, total, key)


def _apply(operation: np.ufunc, total: NDArray[np.uint64], key: bytes) -> None:
    crypto = library()
    stream = crypto.Cipher(crypto.ChaCha20(key, _NONCE), None).encryptor()
    for start in range(0, total.size, _CHUNK):
        piece = total[start : start + _CHUNK]
        words = np.frombuffer(stream.update(_ZEROS[: 8 * piece.size]), dtype="<u8")
        operation(piece, words, out=piece)
