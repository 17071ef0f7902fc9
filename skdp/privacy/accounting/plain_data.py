"""Losses and arrays as bytes without executable content (unlike pickles): JSON, then raw arrays.

The bytes are the length of the JSON text (eight bytes, little-endian), the text, and the data of
the arrays in order. The text holds the dtype and the shape of each array. Floats are restored
exactly.
"""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp.exceptions import PrivacyError
from skdp.privacy.accounting.losses import Loss, SketchMixture

_LENGTH = struct.Struct("<Q")
_NUMBERS = "biuf"  # kinds of dtypes: flags, integers and floats
_DAMAGE = (ValueError, TypeError, KeyError, OverflowError, RecursionError, struct.error)


def pack(item: Any) -> bytes:
    """Write nested dicts and lists of numbers, strings and arrays."""
    arrays: list[NDArray[Any]] = []

    def encode(value: Any) -> Any:
        if isinstance(value, np.generic):
            return value.item()
        if not isinstance(value, np.ndarray) or value.dtype.kind not in _NUMBERS:
            raise PrivacyError(f"cannot pack {type(value).__name__}: only numbers and arrays")
        arrays.append(np.asarray(value, order="C"))
        return {"__array__": len(arrays) - 1, "dtype": value.dtype.str, "shape": value.shape}

    text = json.dumps(item, default=encode).encode()
    return b"".join([_LENGTH.pack(len(text)), text, *(array.tobytes() for array in arrays)])


def unpack(data: bytes, *, longest_text: int | None = None) -> Any:
    """Undo `pack`; whatever `pack` does not write is a ValueError. No code runs."""
    at, count = 0, 0  # how far the arrays were read

    def decoded(value: dict[str, Any]) -> Any:
        """Return the array that a JSON object stands for, or the object if it stands for none."""
        nonlocal at, count
        if "__array__" not in value:
            return value
        dtype, shape = np.dtype(value["dtype"]), tuple(value["shape"])
        plain = all(type(side) is int and side >= 0 for side in shape)
        if value["__array__"] != count or dtype.kind not in _NUMBERS or not plain:
            raise ValueError
        size = math.prod(shape)
        if size * dtype.itemsize > len(data) - at:
            raise ValueError
        array = np.frombuffer(data, dtype, size, at).reshape(shape).copy()
        at, count = at + array.nbytes, count + 1
        return array

    try:
        (length,) = _LENGTH.unpack_from(data)
        at = _LENGTH.size + length
        if at > len(data) or (longest_text is not None and length > longest_text):
            raise ValueError
        item = json.loads(data[_LENGTH.size : at], object_hook=decoded)
        if at != len(data):
            raise ValueError
    except _DAMAGE:
        raise ValueError("these bytes are damaged, or of another version.") from None
    return item


# Losses as plain data, for files and messages.


def loss_state(loss: Loss) -> tuple[str, Any]:
    """Return a loss as plain data."""
    if isinstance(loss.value, SketchMixture):
        terms = [[mu, list(degrees)] for mu, degrees in loss.value.terms]
        return loss.kind, {"terms": terms, "part": loss.value.part}
    return loss.kind, loss.value


def loss_from_state(kind: str, value: Any) -> Loss:
    """Undo `loss_state`."""
    if isinstance(value, dict):
        terms = tuple((mu, tuple(degrees)) for mu, degrees in value["terms"])
        value = SketchMixture(terms, value["part"])
    return Loss(kind, value)
