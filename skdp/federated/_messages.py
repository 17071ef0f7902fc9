"""Messages of a federated fit as bytes, and their transport within one process."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from skdp.exceptions import PrivacyError
from skdp.federated._crypto import SHARE_BYTES, SIGNATURE_BYTES
from skdp.federated.config import InvalidMessageError
from skdp.privacy.accounting.plain_data import pack, unpack
from skdp.privacy.noise.words import KEY_BYTES

# Messages as bytes: fixed layouts, strict parsing, nothing that could run code.
#
# Every message starts with the same 30 bytes: magic, version, kind, step, sender and a
# digest of the run's name. A body that is not exactly as long as its kind says is refused.


SERVER: Final = 0xFFFFFFFF  # sender of the server's messages
_MAGIC: Final = b"SKDP\x01"  # and the version
_HEADER: Final = struct.Struct("<5sBII16s")
_OPENING: Final = struct.Struct("<3IQ")
_KEYS: Final = struct.Struct(f"<{KEY_BYTES}s{KEY_BYTES}s{SIGNATURE_BYTES}s")
_PEER: Final = struct.Struct(f"<I{KEY_BYTES}s{KEY_BYTES}s{SIGNATURE_BYTES}s")
_SEALED: Final = struct.Struct(f"<I{2 * SHARE_BYTES + 16}s")  # two shares and a tag
_REVEALED: Final = struct.Struct(f"<IB{SHARE_BYTES}s")
T = TypeVar("T")


class Kind(IntEnum):
    """Kinds of messages; an even kind is a client's answer to the kind before."""

    OPEN = 1  # server: a step begins; what is asked
    KEYS = 2  # client: two public keys
    PEERS = 3  # server: the neighbours' keys
    SHARES = 4  # client: a sealed pair of shares for each neighbour
    DELIVERY = 5  # server: the sealed shares that are for this client
    MASKED = 6  # client: contribution + masks
    UNMASK = 7  # server: who is in the sum, who dropped out
    REVEAL = 8  # client: one share for each neighbour


class Header(NamedTuple):
    """Run, step and stated sender of a message."""

    kind: Kind
    step: int
    sender: int
    run: bytes


class Keys(NamedTuple):
    """Public keys of one client for one step: to agree on masks, and to seal shares."""

    mask: bytes
    sealing: bytes
    signature: bytes


class Question(bytes):
    """The public question of a step, as `AggregationClient` hands it to its callback.

    The bytes come from the server. The client's own part of the secure sum checked the rest.

    Parameters
    ----------
    request : bytes
        The public request of the server.
    counts : tuple of int
        Clients, colluders and drop-outs of the secure sum: how much noise it needs.
    size : int
        How many words the secure sum adds.
    """

    counts: tuple[int, ...]
    size: int

    def __new__(cls, request: bytes, counts: tuple[int, ...], size: int) -> Question:
        """Attach the configuration and the size of the secure sum to the request."""
        self = super().__new__(cls, request)
        self.counts, self.size = counts, size
        return self


def check_run_id(run_id: bytes) -> bytes:
    """Return the checked name of a run, which must not be used for another run."""
    if not isinstance(run_id, bytes) or not 1 <= len(run_id) <= 64:
        raise ValueError(f"run_id must be 1 to 64 bytes (use os.urandom(16)). Got {run_id!r}.")
    return run_id


def run_digest(run_id: bytes) -> bytes:
    """Return the digest of a run's name that headers contain."""
    return hashlib.sha256(b"skdp.federated.run/1" + run_id).digest()[:16]


def context(run_id: bytes, step: int, question: Question) -> bytes:
    """Return a digest of all public values of a step, from which every key and seal is derived.

    If a server sends different values to different clients, their masks do not cancel, and the sum
    stays masked.
    """
    head = struct.pack("<BI", len(run_id), step)
    text = b"skdp.federated.context/1" + head + run_id + pack_opening(question)
    return hashlib.sha256(text).digest()


def pack_message(header: Header, body: bytes) -> bytes:
    """Return a whole message."""
    return _HEADER.pack(_MAGIC, *header) + body


def unpack_message(message: bytes) -> tuple[Header, memoryview]:
    """Return header and body of a message of this version."""
    if not isinstance(message, bytes | bytearray | memoryview) or len(message) < _HEADER.size:
        raise InvalidMessageError("This is no message of a secure sum.")
    magic, kind, step, sender, run = _HEADER.unpack_from(message)
    if magic != _MAGIC or kind not in Kind.__members__.values():
        raise InvalidMessageError("This is no message of a secure sum of this version.")
    return Header(Kind(kind), step, sender, run), memoryview(message)[_HEADER.size :]


def message_kind(message: bytes) -> Kind:
    """Return the kind of a message."""
    return unpack_message(message)[0].kind


def pack_opening(question: Question) -> bytes:
    """Write the public question."""
    return _OPENING.pack(*question.counts, question.size) + question


def unpack_opening(body: memoryview) -> Question:
    """Read the public question."""
    if len(body) < _OPENING.size:
        raise InvalidMessageError("The opening of a step is too short.")
    *counts, size = _OPENING.unpack_from(body)
    return Question(bytes(body[_OPENING.size :]), tuple(counts), size)


def unpack_keys(body: memoryview) -> Keys:
    """Read a client's public keys (`b"".join(keys)` writes them)."""
    _check_length(body, _KEYS.size)
    return Keys(*_KEYS.unpack(body))


def pack_peers(peers: Mapping[int, Keys]) -> bytes:
    """Write the keys of a client's neighbours."""
    return b"".join(_PEER.pack(peer, *keys) for peer, keys in peers.items())


def unpack_peers(body: memoryview) -> dict[int, Keys]:
    """Read the keys of neighbours."""
    return _distinct((peer, Keys(*keys)) for peer, *keys in _rows(_PEER, body))


def pack_shares(commitment: bytes, sealed: Mapping[int, bytes]) -> bytes:
    """Write sealed shares and the digest of the self-mask's seed."""
    return commitment + pack_delivery(sealed)


def unpack_shares(body: memoryview) -> tuple[bytes, dict[int, bytes]]:
    """Read sealed shares and the digest of the self-mask's seed."""
    if len(body) < KEY_BYTES:
        raise InvalidMessageError("A message of shares is too short.")
    return bytes(body[:KEY_BYTES]), unpack_delivery(body[KEY_BYTES:])


def pack_delivery(sealed: Mapping[int, bytes]) -> bytes:
    """Write sealed shares by client."""
    return b"".join(_SEALED.pack(client, text) for client, text in sealed.items())


def unpack_delivery(body: memoryview) -> dict[int, bytes]:
    """Read sealed shares by client."""
    return _distinct(_rows(_SEALED, body))


def pack_words(words: NDArray[np.uint64]) -> bytes:
    """Write a masked contribution."""
    return words.astype("<u8", copy=False).tobytes()


def unpack_words(body: memoryview, size: int) -> NDArray[np.uint64]:
    """Read a masked contribution of `size` words."""
    _check_length(body, 8 * size)
    return np.frombuffer(body, dtype="<u8").astype(np.uint64, copy=False)


def pack_flags(n_clients: int, *groups: Collection[int]) -> bytes:
    """Write sets of clients, one bit for each client."""
    flags = np.zeros((len(groups), n_clients), dtype=np.uint8)
    for row, group in zip(flags, groups, strict=True):
        row[list(group)] = 1
    return np.packbits(flags, axis=1, bitorder="little").tobytes()


def unpack_flags(body: memoryview, n_clients: int) -> tuple[set[int], set[int]]:
    """Read the two sets of clients of a request to unmask."""
    width = (n_clients + 7) // 8
    _check_length(body, 2 * width)
    rows = np.frombuffer(body, dtype=np.uint8).reshape(2, width)
    flags = np.unpackbits(rows, axis=1, bitorder="little")
    if flags[:, n_clients:].any():
        raise InvalidMessageError("A request to unmask names clients that do not exist.")
    first, second = (set(np.flatnonzero(row).tolist()) for row in flags)
    return first, second


def pack_reveal(shares: Iterable[tuple[int, int, bytes]]) -> bytes:
    """Write (owner, 0 for a self-mask or 1 for a key, share)."""
    return b"".join(_REVEALED.pack(*share) for share in shares)


def unpack_reveal(body: memoryview) -> dict[int, tuple[int, bytes]]:
    """Read shares by owner: (0 or 1, share)."""
    return _distinct((owner, (which, share)) for owner, which, share in _rows(_REVEALED, body))


def _check_length(body: memoryview, length: int) -> None:
    if len(body) != length:
        raise InvalidMessageError(
            f"The body of a message has {len(body)} bytes instead of {length}."
        )


def _rows(layout: struct.Struct, body: memoryview) -> list[tuple[Any, ...]]:
    if len(body) % layout.size:
        raise InvalidMessageError(f"A list of {layout.size}-byte records has {len(body)} bytes.")
    return list(layout.iter_unpack(body))


def _distinct(rows: Iterable[tuple[int, T]]) -> dict[int, T]:
    pairs = list(rows)
    result = dict(pairs)
    if len(result) != len(pairs):
        raise InvalidMessageError("A message names a client twice.")
    return result


# What the server asks of its clients in one step, as bytes: public values only, never a pickle.
#
# A request is a magic line, and plain data with arrays (`skdp.privacy.accounting.plain_data`): both
# sides compute with the same bits. `Request.decode` refuses all unknown data, runs no code and
# imports nothing.


Argument: TypeAlias = "float | NDArray[Any] | None"

_REQUEST_MAGIC = b"skdp request 2\n"
_DTYPES = (np.dtype("<f8"), np.dtype("<i8"))


class Call(NamedTuple):
    """One method of a query, with public arguments."""

    method: str
    arguments: tuple[Argument, ...] = ()


class Facts(NamedTuple):
    """The settings that server and client must share; a client with other settings refuses."""

    unit: str
    adjacency: str
    n_features: int
    n_clients: int
    n_colluders: int
    n_dropouts: int


class Request(NamedTuple):
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
        Restrictions of the query, then the release.
    """

    serial: int
    facts: Facts
    share: float
    step: float
    calls: tuple[Call, ...]

    def encode(self) -> bytes:
        """Return the request as bytes."""
        calls = [[call.method, list(map(_packed, call.arguments))] for call in self.calls]
        numbers = {"share": float(self.share), "step": float(self.step)}
        header = self._asdict() | numbers | {"facts": list(self.facts), "calls": calls}
        return _REQUEST_MAGIC + pack(header)

    @classmethod
    def decode(cls, data: bytes) -> Request:
        """Return the request, or raise `PrivacyError`; nothing in it is run."""
        try:
            return _decoded(bytes(data))
        except (ValueError, TypeError):
            raise PrivacyError("not a request that this version of skdp knows.") from None


def _packed(argument: Argument) -> Any:
    """Return a value to send: None, a float, or an array of eight-byte numbers."""
    if argument is None:
        return None
    if isinstance(argument, np.ndarray):
        return argument.astype(_DTYPES[argument.dtype.kind != "f"])
    return float(argument)


@lru_cache(maxsize=2)  # clients of one process (a simulation) parse the same bytes
def _decoded(data: bytes) -> Request:
    if not data.startswith(_REQUEST_MAGIC):
        raise ValueError
    header = unpack(data[len(_REQUEST_MAGIC) :], longest_text=2**16)
    if not isinstance(header, dict) or set(header) != set(Request._fields):
        raise ValueError
    if not 1 <= len(header["calls"]) <= 8:  # more than any fit needs
        raise ValueError
    calls = tuple(
        Call(_typed(str, name), tuple(map(_argument, args))) for name, args in header["calls"]
    )
    serial = header["serial"]
    if type(serial) is not int or serial < 0:
        raise ValueError
    facts = Facts(*header["facts"])  # which a client compares with its own
    share, step = (_typed(float, header[name]) for name in ("share", "step"))
    return Request(serial, facts, share, step, calls)


def _argument(value: Any) -> Argument:
    if value is None:
        return None
    if not isinstance(value, np.ndarray):
        return _typed(float, value)
    if value.dtype not in _DTYPES or value.ndim > 2:
        raise ValueError
    value.flags.writeable = False  # clients of one process share it
    return value


def _typed(kind: type[T], value: Any) -> T:
    if not isinstance(value, kind):
        raise ValueError
    return value


# Clients in the same process: for tests and simulations.


class LocalTransport:
    """Carry messages to clients of this process, one after the other.

    Parameters
    ----------
    handlers : mapping of int to callable
        What each client does with a message: the `handle` of an `AggregationClient`.
    lost : callable, default=None
        ``lost(client_id, kind)``: whether the client's answer of this kind never arrives, as if the
        client had dropped out. For tests of drop-outs.
    """

    def __init__(
        self,
        handlers: Mapping[int, Callable[[bytes], bytes]],
        *,
        lost: Callable[[int, Kind], bool] | None = None,
    ) -> None:
        self._handlers = handlers
        self._lost = lost
        self.refusals: dict[str, int] = {}  # why, and the first client that said so

    def exchange(self, messages: Mapping[int, bytes], accept: Callable[[int, bytes], bool]) -> None:
        """Deliver each message and its answer; a client that refuses sends none."""
        for client_id, message in messages.items():
            if client_id not in self._handlers:
                continue
            try:
                answer = self._handlers[client_id](message)
            except InvalidMessageError as error:
                self.refusals.setdefault(str(error), client_id)
                continue
            if self._lost is None or not self._lost(client_id, message_kind(answer)):
                accept(client_id, answer)
