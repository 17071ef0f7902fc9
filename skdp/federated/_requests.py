"""What the server asks of its clients in one step, as bytes: public values only, never a pickle.

A request is a magic line, and plain data with arrays (`skdp._packing`): both sides compute with the
same bits. `Request.decode` refuses whatever it does not know; it runs no code and imports nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from skdp._packing import pack, unpack
from skdp.exceptions import PrivacyError

Argument: TypeAlias = "float | NDArray[Any] | None"

_MAGIC = b"skdp request 2\n"
_MAX_HEADER = 2**16
_MAX_CALLS = 8
_DTYPES = (np.dtype("<f8"), np.dtype("<i8"))
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


class Question(bytes):
    """A request as `AggregationClient` hands it to its callback.

    The bytes are the server's. The rest comes from the client's own half of the secure sum, which
    knows what it has answered: so a second answer within one step is one to an attempt that this
    client never helped to unmask, and in any other step it would be a second release.

    Parameters
    ----------
    request : bytes
        The public request of the server.
    step : bytes
        Names the step; the same in each of its attempts, and in no other step of any run.
    counts : tuple of int
        Clients, colluders and drop-outs of the secure sum: how much noise it needs.
    size : int
        How many words the secure sum adds.
    """

    step: bytes
    counts: tuple[int, int, int]
    size: int

    def __new__(
        cls, request: bytes, step: bytes, counts: tuple[int, int, int], size: int
    ) -> Question:
        """Attach the step to the request."""
        self = super().__new__(cls, request)
        self.step = step
        self.counts = counts
        self.size = size
        return self


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
        calls = [[call.method, list(map(_packed, call.arguments))] for call in self.calls]
        header = {
            "serial": self.serial,
            "facts": list(self.facts),
            "share": float(self.share),
            "step": float(self.step),
            "calls": calls,
        }
        return _MAGIC + pack(header)

    @classmethod
    def decode(cls, data: bytes) -> Request:
        """Return the request, or raise `PrivacyError`; nothing in it is run."""
        try:
            return _decoded(bytes(data))
        except (ValueError, TypeError):
            raise PrivacyError("not a request that this version of skdp knows.") from None


def _packed(argument: Argument) -> Any:
    """Return what travels: None, a float, or an array of eight-byte numbers."""
    if argument is None:
        return None
    if isinstance(argument, np.ndarray):
        return argument.astype(_DTYPES[argument.dtype.kind != "f"])
    return float(argument)


@lru_cache(maxsize=2)  # clients of one process (a simulation) parse the same bytes
def _decoded(data: bytes) -> Request:
    if not data.startswith(_MAGIC):
        raise ValueError
    header = unpack(data[len(_MAGIC) :], longest_text=_MAX_HEADER)
    if not isinstance(header, dict) or set(header) != _FIELDS:
        raise ValueError
    if not 1 <= len(header["calls"]) <= _MAX_CALLS:
        raise ValueError
    calls = tuple(Call(_text(name), tuple(map(_argument, args))) for name, args in header["calls"])
    return Request(
        _integer(header["serial"]),
        _facts(header["facts"]),
        _number(header["share"]),
        _number(header["step"]),
        calls,
    )


def _argument(value: Any) -> Argument:
    if value is None:
        return None
    if not isinstance(value, np.ndarray):
        return _number(value)
    if value.dtype not in _DTYPES or value.ndim > 2:
        raise ValueError
    value.flags.writeable = False  # clients of one process share it
    return value


def _number(value: Any) -> float:
    if not isinstance(value, float):
        raise ValueError
    return value


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
