"""The same sums over sockets: threads here, and processes of their own (slow)."""

import datetime
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
    demo,
    serve_client,
)
from skdp.federated._wire import Kind, message_kind

RUN = b"run"
TOKENS = {i: b"secret %d" % i for i in range(5)}


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
        threads.append(threading.Thread(target=serve_client, args=arguments, kwargs=options))
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
                raise EOFError
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
    "greeting",
    [
        b"SKDPsum1" + (0).to_bytes(4, "little") + b"wrong",
        b"SKDPsum1" + (1).to_bytes(4, "little") + TOKENS[0],
        b"SKDPsum1" + (9).to_bytes(4, "little"),
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
    frame = len(greeting).to_bytes(4, "little") + greeting
    with SocketTransport(TOKENS) as transport:
        with socket.create_connection(transport.address) as first:
            first.sendall(frame)
            assert transport.wait_for_clients(1) == 1
            with socket.create_connection(transport.address) as second:
                second.sendall(frame)
                assert second.recv(1) == b""
        assert transport.wait_for_clients(2, timeout=0.01) == 1


def test_closing_twice_and_ports_in_use():
    transport = SocketTransport(TOKENS)
    with pytest.raises(OSError, match="address"):
        SocketTransport(TOKENS, port=transport.address[1])
    transport.close()
    transport.close()


def certificate(folder):
    """Write a key and a self-signed certificate for 127.0.0.1."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
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
    path = folder / "server.pem"
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


@pytest.mark.slow
def test_demo_of_separate_processes():
    lines = []
    seconds = demo.run(4, 100, 3, 1, lines.append)
    assert len(seconds) == 3
    text = "".join(lines)
    assert text.count("equal to the plain sum bit for bit") == 3
    assert "sum of 3 contributions" in text and "chi-square" in text


def test_demo_is_bounded():
    with pytest.raises(ValueError, match="at most 40"):
        demo.run(41)
