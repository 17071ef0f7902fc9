"""What the server asks of its clients in one step, as bytes: public values only, never a pickle.

A request is a magic line, the length of a JSON header, the header, and the arrays that it names, in
little-endian order. Floats travel as hexadecimal text, so that both sides compute with the same
bits. `Request.decode` refuses whatever it does not know; it runs no code and imports nothing.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from skdp.exceptions import PrivacyError

__all__ = ["Argument", "Call", "Request"]

Argument: TypeAlias = "float | NDArray[Any] | None"

_MAGIC = b"skdp request 1\n"
_LENGTH = struct.Struct("<I")
_MAX_HEADER = 2**16
_MAX_CALLS = 8
_DTYPES = {"f8": np.dtype("<f8"), "i8": np.dtype("<i8")}
_FIELDS = {"serial", "facts", "share", "step", "calls"}


class Call(NamedTuple):
    """One method of a query, with public arguments."""

    method: str
    arguments: tuple[Argument, ...] = ()


class Facts(NamedTuple):
    """What both sides must agree on: a client that was set up otherwise refuses."""

    unit: str
    adjacency: str
    n_features: int
    n_clients: int
    n_colluders: int
    n_dropouts: int


@dataclass(frozen=True, eq=False)
class Request:
    """One step of a federated fit.

    Attributes
    ----------
    serial : int
        Number of the release in its fit.
    facts : Facts
        What both sides must agree on.
    share : float
        Share of the budget (of mu squared) that the release takes.
    step : float
        Unit of the integers in which clients answer.
    calls : tuple of Call
        Narrowings of the query, then the release.
    """

    serial: int
    facts: Facts
    share: float
    step: float
    calls: tuple[Call, ...]

    def encode(self) -> bytes:
        """Return the request as bytes."""
        arrays: list[NDArray[Any]] = []
        header = {
            "serial": self.serial,
            "facts": list(self.facts),
            "share": float(self.share).hex(),
            "step": float(self.step).hex(),
            "calls": [
                [call.method, [_packed(argument, arrays) for argument in call.arguments]]
                for call in self.calls
            ],
        }
        text = json.dumps(header, separators=(",", ":")).encode()
        return b"".join([_MAGIC, _LENGTH.pack(len(text)), text, *(a.tobytes() for a in arrays)])

    @classmethod
    def decode(cls, data: bytes) -> Request:
        """Return the request, or raise `PrivacyError`; nothing in it is run."""
        try:
            return _decoded(bytes(data))
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError, struct.error):
            raise PrivacyError("not a request that this version of skdp knows.") from None


def _packed(argument: Argument, arrays: list[NDArray[Any]]) -> Any:
    """Return a JSON value; an array goes into `arrays` and leaves its dtype and shape."""
    if argument is None:
        return None
    if isinstance(argument, np.ndarray):
        kind = "f8" if argument.dtype.kind == "f" else "i8"
        arrays.append(np.ascontiguousarray(argument, _DTYPES[kind]))
        return [kind, list(argument.shape)]
    return float(argument).hex()


@lru_cache(maxsize=2)  # clients of one process (a simulation) parse the same bytes
def _decoded(data: bytes) -> Request:
    start = len(_MAGIC) + _LENGTH.size
    (length,) = _LENGTH.unpack_from(data, len(_MAGIC))
    if data[: len(_MAGIC)] != _MAGIC or length > _MAX_HEADER or len(data) < start + length:
        raise ValueError
    header = json.loads(data[start : start + length])
    if not isinstance(header, dict) or set(header) != _FIELDS:
        raise ValueError
    reader = _Arrays(data, start + length)
    calls = header["calls"]
    if not 1 <= len(calls) <= _MAX_CALLS:
        raise ValueError
    unpacked = tuple(
        Call(_text(name), tuple(reader.unpacked(argument) for argument in arguments))
        for name, arguments in calls
    )
    reader.check_end()
    return Request(
        _integer(header["serial"]),
        _facts(header["facts"]),
        float.fromhex(header["share"]),
        float.fromhex(header["step"]),
        unpacked,
    )


class _Arrays:
    """Reads the arrays of a request in order, as read-only views."""

    def __init__(self, data: bytes, start: int) -> None:
        self._data, self._at = data, start

    def unpacked(self, argument: Any) -> Argument:
        if argument is None:
            return None
        if isinstance(argument, str):
            return float.fromhex(argument)
        kind, shape = argument
        sizes = tuple(_integer(n) for n in shape)
        if len(sizes) > 2:
            raise ValueError
        count = math.prod(sizes)
        if 8 * count > len(self._data) - self._at:
            raise ValueError
        flat = np.frombuffer(self._data, _DTYPES[kind], count, self._at)
        self._at += 8 * count
        return flat.reshape(sizes)

    def check_end(self) -> None:
        if self._at != len(self._data):
            raise ValueError


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError
    return value


def _facts(values: Any) -> Facts:
    unit, adjacency, *counts = values
    n_features, n_clients, n_colluders, n_dropouts = (_integer(count) for count in counts)
    return Facts(_text(unit), _text(adjacency), n_features, n_clients, n_colluders, n_dropouts)
