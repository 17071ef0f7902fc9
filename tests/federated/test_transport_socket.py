"""The same sums over sockets: threads here, and processes of their own (slow)."""

import datetime
import hashlib
import ipaddress
import socket
import ssl
import threading
from contextlib import contextmanager, suppress

import numpy as np
import pytest

from skdp.federated import (
    AggregationAborted,
    AggregationClient,
    AggregationConfig,
    SecureAggregator,
    SocketTransport,
    serve_client,
    transport_socket,
)
from skdp.federated._wire import Kind, message_kind

RUN = b"run"
TOKENS = {i: b"secret %d" % i for i in range(5)}


def serve_or_leave(*arguments, **options):
    with suppress(Leaves):
        serve_client(*arguments, **options)


class Leaves(Exception):
    """A client's process ends."""


@contextmanager
def clients_in_threads(transport, config, wrap=None, **options):
    """Connect all clients; on exit the server hangs up and every thread ends."""

    def respond(client_id):
        return lambda request: np.full(1000, 10**client_id, dtype=np.uint64)

    threads = []
    for i in range(config.n_clients):
        client = AggregationClient(RUN, i, config, respond(i))
        handle = wrap(i, client.handle) if wrap else client.handle
        arguments = (handle, i, transport.address, TOKENS[i])
        threads.append(threading.Thread(target=serve_or_leave, args=arguments, kwargs=options))
        threads[-1].start()
    try:
        assert transport.wait_for_clients(config.n_clients) == config.n_clients
        yield SecureAggregator(transport, config, RUN)
    finally:
        transport.close()
        for thread in threads:
            thread.join()


def test_sums_over_sockets():
    config = AggregationConfig(5, n_dropouts=1)
    with clients_in_threads(SocketTransport(TOKENS), config) as aggregate:
        for step in range(3):
            result = aggregate(b"q", 1000)
            assert (result.total == 11111).all() and (result.step, result.n_survivors) == (step, 5)


def test_a_client_that_hangs_up_has_dropped_out():
    config = AggregationConfig(5, n_dropouts=1)

    def wrap(client_id, handle):
        def leave(message):
            if client_id == 2 and message_kind(message) is Kind.DELIVERY:
                raise Leaves
            return handle(message)

        return leave

    with clients_in_threads(SocketTransport(TOKENS), config, wrap) as aggregate:
        for _ in range(2):
            assert (aggregate(b"q", 1000).total == 11011).all()


def test_a_client_that_refuses_has_dropped_out():
    config = AggregationConfig(5, n_dropouts=1)

    def wrap(client_id, handle):
        return lambda message: handle(b"nonsense" if client_id == 4 else message)

    with clients_in_threads(SocketTransport(TOKENS), config, wrap) as aggregate:
        assert (aggregate(b"q", 1000).total == 1111).all()


def test_a_late_answer_is_thrown_away():
    config = AggregationConfig(5, n_dropouts=1)
    go_on = threading.Event()

    def wrap(client_id, handle):
        def wait(message):
            answer = handle(message)
            if client_id == 1 and message_kind(message) is Kind.DELIVERY:
                go_on.wait()
            return answer

        return wait

    with clients_in_threads(SocketTransport(TOKENS, timeout=2.0), config, wrap) as aggregate:
        assert (aggregate(b"q", 1000).total == 11101).all()
        go_on.set()  # its masked contribution arrives now, when nobody wants it any more
        assert (aggregate(b"q", 1000).total == 11111).all()


def test_too_few_clients():
    config = AggregationConfig(5)
    with SocketTransport(TOKENS) as transport:
        assert transport.wait_for_clients(5, timeout=0.01) == 0
        with pytest.raises(AggregationAborted, match="Only 0 of 5") as caught:
            SecureAggregator(transport, config, RUN)(b"q", 3)
        assert not caught.value.opened


@pytest.mark.parametrize(
    ("client_id", "token"), [(0, b"wrong"), (1, TOKENS[0]), (9, b""), (9, TOKENS[0]), (0, b"")]
)
def test_a_client_that_is_not_let_in_is_told(client_id, token):
    with SocketTransport(TOKENS) as transport:
        with pytest.raises(ConnectionRefusedError, match="number or token is wrong"):
            serve_client(bytes, client_id, transport.address, token)
        assert transport.wait_for_clients(1, timeout=0.01) == 0


@pytest.mark.parametrize(
    "greeting",
    [
        b"SKDPsum0" + (0).to_bytes(4, "little") + TOKENS[0],
        b"short",
        b"",
        b"x" * 300,
    ],
)
def test_strangers_are_not_let_in(greeting):
    with SocketTransport(TOKENS) as transport, socket.create_connection(transport.address) as wire:
        wire.sendall(len(greeting).to_bytes(4, "little") + greeting)
        with suppress(ConnectionError):
            assert wire.recv(1) == b""  # hung up
        assert transport.wait_for_clients(1, timeout=0.01) == 0


def test_a_connected_clients_number_is_taken():
    greeting = b"SKDPsum1" + (0).to_bytes(4, "little") + TOKENS[0]
    with SocketTransport(TOKENS) as transport:
        with socket.create_connection(transport.address) as first:
            first.sendall(len(greeting).to_bytes(4, "little") + greeting)
            assert transport.wait_for_clients(1) == 1
            with pytest.raises(ConnectionRefusedError, match="number is taken"):
                serve_client(bytes, 0, transport.address, TOKENS[0])
        assert transport.wait_for_clients(2, timeout=0.01) == 1


@contextmanager
def a_server_that(behaves):
    """Listen for one client, let it in, and behave."""
    listening = socket.create_server(("127.0.0.1", 0))

    def meet():
        wire = listening.accept()[0]
        with wire:
            wire.recv(256)
            behaves(wire)

    thread = threading.Thread(target=meet)
    thread.start()
    try:
        yield listening.getsockname()
    finally:
        thread.join()
        listening.close()


WELCOME = (7).to_bytes(4, "little") + b"welcome"


@pytest.mark.parametrize("let_in", [False, True])
def test_a_silent_server_is_not_waited_for_without_end(let_in):
    done = threading.Event()

    def silent(wire):
        if let_in:
            wire.sendall(WELCOME)
        done.wait()

    with a_server_that(silent) as address:
        try:
            with pytest.raises(TimeoutError):
                serve_client(bytes, 0, address, TOKENS[0], timeout=0.05)
        finally:
            done.set()


@pytest.mark.parametrize(
    ("sent", "error", "match"),
    [
        (b"", ConnectionRefusedError, "refused client 0"),
        (b"\xff" * 4, ConnectionRefusedError, "too long"),
        (WELCOME, ConnectionError, "without a good-bye"),
        (WELCOME + b"\x05\0\0\0half", ConnectionError, "without a good-bye"),
    ],
)
def test_a_server_that_vanishes_is_an_error(sent, error, match):
    with (
        a_server_that(lambda wire: wire.sendall(sent)) as address,
        pytest.raises(error, match=match),
    ):
        serve_client(bytes, 0, address, TOKENS[0])


def test_what_leaves_the_machine_needs_tls(monkeypatch):
    for host in ("0.0.0.0", "", "::", "192.0.2.1"):
        with pytest.raises(ValueError, match="loopback only"):
            SocketTransport(TOKENS, host=host)
    heard = []
    with a_server_that(lambda wire: heard.append(wire.recv(1))) as address:
        monkeypatch.setattr(transport_socket, "_loopback", lambda host: False)
        with pytest.raises(ValueError, match="give 'ssl'"):
            serve_client(bytes, 0, address, TOKENS[0])
    assert heard == [b""]  # the token was not sent


@pytest.mark.parametrize(
    ("host", "own"),
    [("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("::ffff:127.0.0.1", True),
     ("localhost", True), ("10.0.0.1", False), ("::", False), ("::ffff:10.0.0.1", False)],
)  # fmt: skip
def test_what_is_loopback(host, own):
    assert transport_socket._loopback(host) is own


def test_closing_twice_and_ports_in_use():
    transport = SocketTransport(TOKENS)
    with pytest.raises(OSError, match="address"):
        SocketTransport(TOKENS, port=transport.address[1])
    transport.close()
    transport.close()


def certificate(folder, file="server.pem"):
    """Write a key and a self-signed certificate for 127.0.0.1."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, file)])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + datetime.timedelta(1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .sign(key, hashes.SHA256())
    )
    text = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path = folder / file
    path.write_bytes(text + signed.public_bytes(serialization.Encoding.PEM))
    return path


def test_sums_over_tls(tmp_path):
    path = certificate(tmp_path)
    server, client = (
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH),
        ssl.create_default_context(),
    )
    server.load_cert_chain(path)
    client.load_verify_locations(path)
    config = AggregationConfig(3)
    transport = SocketTransport(TOKENS, ssl=server)
    with clients_in_threads(transport, config, ssl=client) as aggregate:
        assert (aggregate(b"q", 1000).total == 111).all()


@pytest.mark.thorough
def test_a_certificate_belongs_to_one_client(tmp_path):
    """Client 1 knows its token; with the certificate of client 0, or none, it is not let in."""
    paths = [certificate(tmp_path, name) for name in ("server.pem", "c0.pem", "c1.pem")]
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(paths[0])
    for path in paths[1:]:
        server.load_verify_locations(path)
    server.verify_mode = ssl.CERT_REQUIRED
    texts = [path.read_text().partition("-----BEGIN CERT") for path in paths[1:]]
    ders = [ssl.PEM_cert_to_DER_cert(begin + rest) for _, begin, rest in texts]
    pinned = {i: hashlib.sha256(der).digest() for i, der in enumerate(ders)}

    def context(path=None):
        client = ssl.create_default_context()
        client.load_verify_locations(paths[0])
        if path is not None:
            client.load_cert_chain(path)
        return client

    with pytest.raises(ValueError, match="whose"):
        SocketTransport(TOKENS, ssl=server)
    with pytest.raises(ValueError, match="whose"):
        SocketTransport(TOKENS, certificates=pinned)
    with SocketTransport(TOKENS, ssl=server, certificates=pinned) as transport:
        for client_id, own, match in [
            (1, context(paths[1]), "not the one of its number"),
            (2, context(paths[2]), "not the one of its number"),
            (1, context(), "refused client 1"),
        ]:
            with pytest.raises(ConnectionRefusedError, match=match):
                serve_client(bytes, client_id, transport.address, TOKENS[client_id], ssl=own)
        assert transport.wait_for_clients(1, timeout=0.01) == 0
        arguments = (bytes, 1, transport.address, TOKENS[1])
        thread = threading.Thread(
            target=serve_client, args=arguments, kwargs={"ssl": context(paths[2])}
        )
        thread.start()
        assert transport.wait_for_clients(1) == 1
    thread.join()
