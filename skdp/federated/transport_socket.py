"""Clients in other processes: length-framed bytes over TCP, on loopback unless told otherwise.

A frame is a 4-byte length and that many bytes. The first frame of a connection is a greeting
(client number and token), the second says whether the client is let in, and if not why; then the
server's messages and the client's answers alternate. An empty answer says that the client refused,
an empty message is the good-bye. Frames carry bytes of the aggregation and nothing else.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from ssl import CERT_REQUIRED, SSLContext
from typing import Any, Final, TypeVar

from skdp.federated._errors import MessageRefused

T = TypeVar("T")
_LENGTH: Final = struct.Struct("<I")
_GREETING: Final = struct.Struct("<8sI")
_MAGIC: Final = b"SKDPsum1"
_MOST_BYTES: Final = 1 << 31
_GREETING_BYTES: Final = 256
_GREETING_SECONDS: Final = 5.0
_CLOSING_SECONDS: Final = 1.0
_WELCOME: Final = b"welcome"
_UNKNOWN: Final = "its number or token is wrong"
_TAKEN: Final = "its number is taken by a client that is connected"
_OTHER: Final = "the certificate that it showed is not the one of its number"


class _Connection:
    """One client's stream. A frame whose body is still missing survives a time-out."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._length: int | None = None
        self._unanswered = 0

    async def ask(self, message: bytes) -> bytes:
        """Return the answer to this message; late answers to older ones are thrown away."""
        self.send(message)
        self._unanswered += 1
        await self._writer.drain()
        answer = b""
        while self._unanswered:
            answer = await self.read()
            self._unanswered -= 1
        return answer

    async def read(self, most: int = _MOST_BYTES) -> bytes:
        if self._length is None:
            (self._length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
        if self._length > most:
            raise ConnectionError("A frame is too long.")
        body = await self._reader.readexactly(self._length)
        self._length = None
        return body

    def send(self, body: bytes) -> None:
        self._writer.writelines([_LENGTH.pack(len(body)), body])

    def certificate(self) -> bytes:
        """Return the SHA-256 of the certificate that the client showed; empty without one."""
        channel = self._writer.get_extra_info("ssl_object")
        shown = channel.getpeercert(binary_form=True) if channel is not None else None
        return hashlib.sha256(shown).digest() if shown else b""

    def close(self) -> None:
        self._writer.close()

    def abort(self) -> None:
        self._writer.transport.abort()

    async def until_closed(self) -> None:
        with suppress(OSError):
            await self._writer.wait_closed()


class SocketTransport:
    """Carry messages over TCP to clients that connected by `serve_client`.

    Without `ssl` it takes loopback only: whoever reads the wire sees what the server sees, and
    whoever alters it is a server that lies.

    Parameters
    ----------
    tokens : mapping of int to bytes
        A secret of each client, at most 200 bytes, by which it proves its number.
    host, port : str, int
        Where to listen; port 0 takes a free one, see `address`.
    timeout : float, default=60.0
        Seconds that clients have for one answer. Then they count as dropped out.
    ssl : ssl.SSLContext, optional
        For connections that leave the machine.
    certificates : mapping of int to bytes, optional
        SHA-256 of the certificate (DER) of each client: a client then needs its own, and its token.
        Demanded, and only of use, where `ssl` asks clients for certificates.
    """

    def __init__(
        self,
        tokens: Mapping[int, bytes],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        timeout: float = 60.0,
        ssl: SSLContext | None = None,
        certificates: Mapping[int, bytes] | None = None,
    ) -> None:
        if ssl is None and not (host and _loopback(host)):
            raise ValueError(f"without 'ssl' a server listens on loopback only. Got {host!r}.")
        if (ssl is not None and ssl.verify_mode == CERT_REQUIRED) != (certificates is not None):
            raise ValueError(
                "'certificates' says which certificate is whose: give it if, and only if, 'ssl' "
                "asks clients for one (verify_mode=CERT_REQUIRED)."
            )
        self._certificates = certificates
        self._tokens = dict(tokens)
        self._timeout = timeout
        self._connections: dict[int, _Connection] = {}
        self._open: set[_Connection] = set()
        self._changed = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        try:
            self._server = self._run(asyncio.start_server(self._greet, host, port, ssl=ssl))
        except BaseException:
            self._stop()
            raise
        self.address: tuple[str, int] = self._server.sockets[0].getsockname()[:2]

    def __enter__(self) -> SocketTransport:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait_for_clients(self, n_clients: int, timeout: float = 60.0) -> int:
        """Return how many clients are connected, when they are `n_clients` or time is over."""
        with suppress(TimeoutError):
            self._run(asyncio.wait_for(self._until(n_clients), timeout))
        return len(self._connections)

    def exchange(self, messages: Mapping[int, bytes], accept: Callable[[int, bytes], bool]) -> None:
        """Send each client its message; hand over what comes back until time is over."""
        self._run(self._exchange(messages, accept))

    def close(self) -> None:
        """Say good-bye and hang up: the clients' `serve_client` returns."""
        if not self._loop.is_closed():
            self._run(self._hang_up())
            self._stop()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _hang_up(self) -> None:
        self._server.close()
        for connection in self._connections.values():
            connection.send(b"")
        for connection in self._open:
            connection.close()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        if rest:
            await asyncio.wait(rest, timeout=_CLOSING_SECONDS)
        for connection in self._open:  # those that do not answer the good-bye
            connection.abort()
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        self._connections.clear()

    async def _until(self, n_clients: int) -> None:
        while len(self._connections) < n_clients:
            self._changed.clear()
            await self._changed.wait()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Let a client in that knows its token, and stay until the connection is closed."""
        connection = _Connection(reader, writer)
        self._open.add(connection)
        try:
            greeting = connection.read(_GREETING_BYTES)
            self._answer_greeting(connection, await asyncio.wait_for(greeting, _GREETING_SECONDS))
        except (OSError, EOFError, TimeoutError, struct.error):
            connection.close()
        await connection.until_closed()
        self._open.discard(connection)

    def _answer_greeting(self, connection: _Connection, greeting: bytes) -> None:
        magic, client_id = _GREETING.unpack_from(greeting)
        if magic != _MAGIC:
            raise ConnectionError("This is not a client.")
        refused = self._refusal(connection, client_id, greeting[_GREETING.size :])
        connection.send(refused.encode() or _WELCOME)
        if refused:
            connection.close()
        else:
            self._connections[client_id] = connection
            self._changed.set()

    def _refusal(self, connection: _Connection, client_id: int, token: bytes) -> str:
        """Say why a client is not let in; empty if it is."""
        expected = self._tokens.get(client_id, b"")
        if not hmac.compare_digest(expected, token) or not expected:
            return _UNKNOWN
        if self._certificates is not None:
            pinned = self._certificates.get(client_id, b"")
            if not hmac.compare_digest(pinned, connection.certificate()) or not pinned:
                return _OTHER
        return _TAKEN if client_id in self._connections else ""

    async def _exchange(
        self, messages: Mapping[int, bytes], accept: Callable[[int, bytes], bool]
    ) -> None:
        talks = [
            asyncio.ensure_future(self._talk(client_id, message, accept))
            for client_id, message in messages.items()
            if client_id in self._connections
        ]
        if not talks:
            return
        done, late = await asyncio.wait(talks, timeout=self._timeout)
        for talk in late:
            talk.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        for talk in done:
            talk.result()

    async def _talk(
        self, client_id: int, message: bytes, accept: Callable[[int, bytes], bool]
    ) -> None:
        """Hand over the answer; an empty one is a refusal, and a lost connection has none."""
        connection = self._connections[client_id]
        try:
            answer = await connection.ask(message)
        except (OSError, EOFError):
            connection.close()
            self._connections.pop(client_id, None)
        else:
            if answer:
                accept(client_id, answer)


def serve_client(
    handle: Callable[[bytes], bytes],
    client_id: int,
    address: tuple[str, int],
    token: bytes,
    *,
    ssl: SSLContext | None = None,
    timeout: float = 600.0,
) -> None:
    """Answer the server's messages with `handle` until the server says good-bye.

    Anything else raises: ConnectionRefusedError if the server does not let this client in (the
    message says why), TimeoutError if it is silent, ConnectionError if it vanishes.

    Parameters
    ----------
    handle : callable
        The `handle` of an `AggregationClient`. A message that it refuses gets an empty answer.
    client_id : int
        Number of this client.
    address : (host, port)
        Where the server listens: without `ssl` on loopback only.
    token : bytes
        Secret by which this client proves its number.
    ssl : ssl.SSLContext, optional
        For connections that leave the machine.
    timeout : float, default=600.0
        Seconds to wait for the server: for its greeting, and for each next message.
    """
    with socket.create_connection(address, timeout) as raw:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if ssl is None and not _loopback(raw.getpeername()[0]):
            raise ValueError(f"{address[0]} is another machine: give 'ssl'. Nothing was sent.")
        stream = raw if ssl is None else ssl.wrap_socket(raw, server_hostname=address[0])
        with stream:
            _enter(stream, client_id, token)
            while message := _receive(stream):
                _send(stream, _answer(handle, message))


def _enter(stream: socket.socket, client_id: int, token: bytes) -> None:
    """Greet the server, and raise unless it lets this client in."""
    try:
        _send(stream, _GREETING.pack(_MAGIC, client_id) + token)
        answer = _receive(stream, _GREETING_BYTES)
    except TimeoutError:
        raise
    except OSError as error:  # for instance a certificate that is missing
        raise ConnectionRefusedError(f"The server refused client {client_id}: {error}") from error
    if answer != _WELCOME:
        reason = answer.decode(errors="replace")
        raise ConnectionRefusedError(f"The server refused client {client_id}: {reason}.")


def _loopback(host: str) -> bool:
    """Whether all addresses of a host are of this machine."""
    found = [ipaddress.ip_address(info[4][0]) for info in socket.getaddrinfo(host, None)]
    return all((getattr(each, "ipv4_mapped", None) or each).is_loopback for each in found)


def _answer(handle: Callable[[bytes], bytes], message: bytes) -> bytes:
    try:
        return handle(message)
    except MessageRefused:
        return b""


def _send(stream: socket.socket, body: bytes) -> None:
    stream.sendall(_LENGTH.pack(len(body)) + body)


def _receive(stream: socket.socket, most: int = _MOST_BYTES) -> bytes:
    (length,) = _LENGTH.unpack(_read_exactly(stream, _LENGTH.size))
    if length > most:
        raise ConnectionError("A frame is too long.")
    return _read_exactly(stream, length)


def _read_exactly(stream: socket.socket, length: int) -> bytes:
    parts = []
    while length:
        part = stream.recv(min(length, 1 << 20))
        if not part:
            raise ConnectionError("The server hung up without a good-bye.")
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
