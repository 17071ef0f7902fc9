"""A secure sum over separate processes: ``python -m skdp.federated.demo``.

With ``--fit`` a whole decentralised fit: `skdp.federated._demo_fit`.

Every client is a process of its own; they talk to the server over TCP on 127.0.0.1. The
contributions are made-up numbers that this program can make again, so it checks the sums bit for
bit. It adds no noise: it shows what masking hides, not what noise protects.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from skdp.federated._demo_parts import CuriousTransport, chi_square, stop
from skdp.federated._wire import Kind
from skdp.federated.aggregation import SecureAggregator, Transport
from skdp.federated.aggregation_client import AggregationClient
from skdp.federated.config import AggregationConfig
from skdp.federated.transport_socket import SocketTransport, serve_client

_MOST_CLIENTS: Final = 40
_SECONDS: Final = 60.0


def contribution(client_id: int, request: bytes, size: int) -> NDArray[np.uint64]:
    """Return made-up numbers: small ones, so that a look at the wire would show them."""
    digest = hashlib.shake_128(request + bytes([client_id])).digest(size)
    return np.frombuffer(digest, dtype=np.uint8).astype(np.uint64)


def client_process(
    address: tuple[str, int],
    run_id: bytes,
    client_id: int,
    token: bytes,
    config: AggregationConfig,
    size: int,
    leaves_at: int,
) -> None:
    """Run one client; in step `leaves_at` it is gone when its contribution is due."""
    steps = 0

    def respond(request: bytes) -> NDArray[np.uint64]:
        nonlocal steps
        steps += 1
        if steps > leaves_at:
            os._exit(0)
        return contribution(client_id, request, size)

    client = AggregationClient(run_id, client_id, config, respond)
    serve_client(client.handle, client_id, address, token)


def run(
    n_clients: int = 8,
    size: int = 1600,
    n_steps: int = 4,
    n_dropouts: int = 2,
    say: Callable[[str], object] = sys.stdout.write,
) -> list[float]:
    """Sum over `n_clients` processes, of which `n_dropouts` leave during the second step.

    Returns the seconds of each step. A wrong sum raises ValueError.
    """
    if not n_clients <= _MOST_CLIENTS:
        raise ValueError(f"n_clients must be at most {_MOST_CLIENTS}. Got {n_clients!r}.")
    config = AggregationConfig(n_clients, n_dropouts=n_dropouts)
    run_id = os.urandom(16)
    tokens = {client_id: os.urandom(16) for client_id in range(n_clients)}
    with SocketTransport(tokens, timeout=_SECONDS) as transport:
        processes = _start(transport.address, run_id, tokens, config, size)
        try:
            connected = transport.wait_for_clients(n_clients, _SECONDS)
            say(f"{connected} client processes connected to {transport.address}\n")
            return _sum_steps(transport, config, run_id, size, n_steps, say)
        finally:
            transport.close()
            stop(processes)


def _start(
    address: tuple[str, int],
    run_id: bytes,
    tokens: dict[int, bytes],
    config: AggregationConfig,
    size: int,
) -> list[multiprocessing.process.BaseProcess]:
    context = multiprocessing.get_context("spawn")
    processes: list[multiprocessing.process.BaseProcess] = []
    for client_id, token in tokens.items():
        leaves_at = 1 if client_id < config.n_dropouts else sys.maxsize
        arguments = (address, run_id, client_id, token, config, size, leaves_at)
        processes.append(context.Process(target=client_process, args=arguments, daemon=True))
        processes[-1].start()
    return processes


def _sum_steps(
    transport: Transport,
    config: AggregationConfig,
    run_id: bytes,
    size: int,
    n_steps: int,
    say: Callable[[str], object],
) -> list[float]:
    curious = CuriousTransport(transport)
    aggregator = SecureAggregator(curious, config, run_id)
    seconds = []
    for step in range(n_steps):
        request = b"demo step %d" % step
        start = time.perf_counter()
        result = aggregator(request, size)
        seconds.append(time.perf_counter() - start)
        first = config.n_dropouts if step else 0
        plain = [contribution(c, request, size) for c in range(first, config.n_clients)]
        if not np.array_equal(result.total, np.sum(plain, axis=0, dtype=np.uint64)):
            raise ValueError("The masked sum is not the plain sum.")
        say(
            f"step {step}: {seconds[-1]:.3f} s, sum of {result.n_survivors} contributions, "
            "equal to the plain sum bit for bit\n"
        )
    _tell(curious, request, result.total, say)
    return seconds


def _tell(
    curious: CuriousTransport,
    request: bytes,
    total: NDArray[np.uint64],
    say: Callable[[str], object],
) -> None:
    """Print what the server holds of one client after the last step."""
    client_id = max(curious.masked)
    body = curious.masked[client_id][-8 * total.size :]
    words = np.frombuffer(body, dtype="<u8")
    true = contribution(client_id, request, total.size)
    say(f"\nWhat the server has of client {client_id} in the last step\n")
    say(f"  its contribution (it stays there)  {true[:4]}\n")
    say(f"  its masked message (on the wire)   {words[:4]}\n")
    say(f"  bytes of that message: chi-square {chi_square(body):.0f}; uniform is 255 +- 23\n")
    say(f"What it opens: the sum               {total[:4]}\n\nBytes of all steps and clients\n")
    for kind in Kind:
        count = curious.bytes_sent[kind] + curious.bytes_received[kind]
        say(f"  {'server' if kind % 2 else 'client'} {kind.name:9s}{count:>12,}\n")


def main(arguments: list[str] | None = None) -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m skdp.federated.demo", description=__doc__)
    parser.add_argument("--fit", action="store_true", help="a decentralised fit, not plain sums")
    parser.add_argument("--clients", type=int, help="processes (default 8, at most 40; fit: 6, 20)")
    parser.add_argument("--size", type=int, default=1600, help="numbers in a sum (default 1600)")
    parser.add_argument("--steps", type=int, default=4, help="steps (default 4)")
    parser.add_argument("--dropouts", type=int, help="clients that leave (default 2; fit: 1)")
    parser.add_argument("--rows", type=int, default=500, help="fit: rows of a client (default 500)")
    parser.add_argument("--features", type=int, default=24, help="fit: features (default 24)")
    parser.add_argument("--epsilon", type=float, default=1.0, help="fit: budget (default 1.0)")
    chosen = parser.parse_args(arguments)
    clients, dropouts = chosen.clients, chosen.dropouts
    if not chosen.fit:
        toy = (8 if clients is None else clients, 2 if dropouts is None else dropouts)
        run(toy[0], chosen.size, chosen.steps, toy[1])
        return
    from skdp.federated._demo_fit import run_fit

    sizes = (6 if clients is None else clients, chosen.rows, chosen.features)
    run_fit(*sizes, 1 if dropouts is None else dropouts, chosen.epsilon)


if __name__ == "__main__":
    main()
