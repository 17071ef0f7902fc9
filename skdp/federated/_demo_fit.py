"""A decentralised fit over separate processes: ``python -m skdp.federated.demo --fit``.

Every client is a process that makes its own rows (this program can make them again, to compare
with the central fit). The server has none: `FederatedPowerMethod` asks through a `SocketTransport`
on 127.0.0.1, and secure sums open totals only.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from skdp.decomposition import DPTruncatedSVD
from skdp.federated._ask import Opened
from skdp.federated._demo_parts import CuriousTransport, chi_square, stop
from skdp.federated._wire import Kind
from skdp.federated.aggregation import SecureAggregator
from skdp.federated.aggregation_client import AggregationClient
from skdp.federated.config import AggregationConfig
from skdp.federated.power_method import FederatedPowerMethod, PowerMethodClient
from skdp.federated.transport_socket import SocketTransport, serve_client

FloatArray = NDArray[np.float64]
Say = Callable[[str], object]

_COMPONENTS: Final = 3
_SHARE: Final = 0.6  # of the squared length, in the common directions
_MOST_CLIENTS: Final = 20
_START_SECONDS: Final = 120.0  # until all processes have imported what they need
_SECONDS: Final = 30.0  # for one message
_ALL_SECONDS: Final = 240.0  # for the fit


def rows_of(client_id: int, n_rows: int, n_features: int) -> FloatArray:
    """Return made-up rows of length 1: a few common directions, and noise of their own."""
    # Made-up rows of a demonstration, the same in every run: data, not noise.
    common = np.random.default_rng(0).standard_normal((n_features, _COMPONENTS))
    directions = np.linalg.qr(common)[0].T
    rng = np.random.default_rng([1, client_id])
    inside = rng.standard_normal((n_rows, _COMPONENTS)) @ directions
    outside = rng.standard_normal((n_rows, n_features))
    inside *= np.sqrt(_SHARE / _COMPONENTS)
    outside *= np.sqrt((1 - _SHARE) / n_features)
    rows = inside + outside
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def client_process(
    address: tuple[str, int],
    run_id: bytes,
    client_id: int,
    token: bytes,
    config: AggregationConfig,
    size: tuple[int, int],
    epsilon: float,
    leaves_at: int,
    receipts: Any,
) -> None:
    """Answer for the rows of one client; in round `leaves_at` it is gone when asked."""
    holder = PowerMethodClient(rows_of(client_id, *size), config, epsilon=epsilon)
    rounds = 0

    def respond(request: bytes) -> NDArray[np.uint64]:
        nonlocal rounds
        rounds += 1
        if rounds > leaves_at:
            os._exit(0)
        return holder.respond(request)

    client = AggregationClient(run_id, client_id, config, respond)
    serve_client(client.handle, client_id, address, token)
    receipts.put((client_id, holder.close().epsilon, rounds))


class _TimedRounds:
    """The secure sum of each round, with its time; a fit that takes too long ends."""

    def __init__(self, aggregator: SecureAggregator, say: Say) -> None:
        self._aggregator = aggregator
        self._say = say
        self._end = time.monotonic() + _ALL_SECONDS
        self.seconds: list[float] = []
        self.sizes: list[int] = []
        self.total = np.zeros(0, np.uint64)

    def __call__(self, request: bytes, size: int) -> Opened:
        if time.monotonic() > self._end:
            raise TimeoutError(f"The fit took more than {_ALL_SECONDS:.0f} seconds.")
        start = time.perf_counter()
        opened = self._aggregator(request, size)
        self.seconds.append(time.perf_counter() - start)
        self.sizes.append(size)
        self.total = opened.total
        self._say(
            f"round {len(self.seconds):2d}: {self.seconds[-1]:.3f} s, {size} numbers, "
            f"{opened.n_survivors} clients in the sum\n"
        )
        return opened


def run_fit(
    n_clients: int = 6,
    n_rows: int = 500,
    n_features: int = 24,
    n_dropouts: int = 1,
    epsilon: float = 1.0,
    say: Say = sys.stdout.write,
) -> dict[str, Any]:
    """Fit `DPTruncatedSVD` over `n_clients` processes, of which `n_dropouts` leave on the way.

    Returns the seconds of each round, the captured shares, and the clients' receipts.
    """
    if not n_clients <= _MOST_CLIENTS:
        raise ValueError(f"n_clients must be at most {_MOST_CLIENTS}. Got {n_clients!r}.")
    config = AggregationConfig(n_clients, n_colluders=1, n_dropouts=n_dropouts)
    run_id = os.urandom(16)
    tokens = {client_id: os.urandom(16) for client_id in range(n_clients)}
    context = multiprocessing.get_context("spawn")
    receipts = context.Queue()
    make: Any = DPTruncatedSVD
    processes: list[BaseProcess] = []
    with SocketTransport(tokens, timeout=_SECONDS) as transport:
        try:
            for client_id, token in tokens.items():
                leaves_at = 5 if client_id < n_dropouts else sys.maxsize
                arguments = (
                    transport.address, run_id, client_id, token, config,
                    (n_rows, n_features), epsilon, leaves_at, receipts,
                )  # fmt: skip
                process = context.Process(target=client_process, args=arguments, daemon=True)
                process.start()
                processes.append(process)
            connected = transport.wait_for_clients(n_clients, _START_SECONDS)
            say(f"{connected} client processes connected to {transport.address}\n")
            curious = CuriousTransport(transport)
            rounds = _TimedRounds(SecureAggregator(curious, config, run_id), say)
            estimator = make(_COMPONENTS, epsilon=epsilon, clip_norm=1.0, algorithm="power")
            model = FederatedPowerMethod(estimator, config).fit(rounds, n_features=n_features)
            transport.close()
            spent = sorted(receipts.get(timeout=_SECONDS) for _ in range(n_clients - n_dropouts))
        finally:
            transport.close()
            stop(processes)
    rows = np.concatenate([rows_of(c, n_rows, n_features) for c in range(n_clients)])
    captured = _compare(model, estimator, rows, say)
    _tell_receipts(model, spent, n_dropouts, say)
    _tell_view(curious, rounds, say)
    return {"seconds": rounds.seconds, "captured": captured, "receipts": spent}


def _compare(model: Any, estimator: Any, rows: FloatArray, say: Say) -> dict[str, float]:
    """Say which share of the squared length of all rows each fit captures."""
    best = np.linalg.svd(rows, full_matrices=False)[2][:_COMPONENTS]
    bases = {
        "no privacy": best,
        "central fit": estimator.fit(rows).components_,
        "these processes": model.components_,
    }
    say("\nCaptured share of the squared length of all rows\n")
    captured = {}
    for name, basis in bases.items():
        captured[name] = float(np.sum((rows @ basis.T) ** 2) / np.sum(rows**2))
        say(f"  {name:16s}{captured[name]:.4f}\n")
    return captured


def _tell_receipts(
    model: Any, spent: list[tuple[int, float, int]], n_dropouts: int, say: Say
) -> None:
    say(f"\nReceipt of the model: {model.privacy_spent_!r}\n")
    for client_id, epsilon, rounds in spent:
        say(f"  client {client_id}: epsilon {epsilon:g}, answered {rounds} rounds\n")
    if n_dropouts:
        say(f"  {n_dropouts} left after round 5 and took their receipts along\n")


def _tell_view(curious: CuriousTransport, rounds: _TimedRounds, say: Say) -> None:
    """Print what a server that keeps everything has of one client."""
    client_id = max(curious.masked)
    body = max(curious.largest.values(), key=len)[-8 * max(rounds.sizes) :]
    last = np.frombuffer(curious.masked[client_id][-8 * rounds.total.size :], dtype="<u8")
    say(f"\nWhat a curious server has of client {client_id}\n")
    say(f"  its last message, masked           {last[:3]}\n")
    say(f"  bytes of a longest one: chi-square {chi_square(body):.0f}; uniform is 255 +- 23\n")
    opened = rounds.total.view(np.int64)
    say(f"What it opens: sums, which hold noise {opened[:3]}\n\nBytes of all rounds and clients\n")
    for kind in Kind:
        count = curious.bytes_sent[kind] + curious.bytes_received[kind]
        say(f"  {'server' if kind % 2 else 'client'} {kind.name:9s}{count:>12,}\n")
