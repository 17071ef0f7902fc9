"""The server of a fit over clients: python server.py KEY_FILE MODEL_FILE; see client.py."""

import os
import sys
import time
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Listener, wait
from pathlib import Path

import numpy as np

from skdp import DPTruncatedSVD
from skdp.federated import AggregationConfig, FederatedPowerMethod, SecureAggregator

CONFIG = AggregationConfig(n_clients=3, n_colluders=1)
SECONDS = 60.0  # for the answers to one message: who is later has dropped out


def wait_for_clients(listener, run):
    """Return {number: connection} once all are there: the first exchange is with all of them."""
    clients = {}
    while len(clients) < CONFIG.n_clients:
        with suppress(AuthenticationError, EOFError, OSError):  # strangers have no key
            link = listener.accept()
            if (number := int.from_bytes(link.recv_bytes(4))) < CONFIG.n_clients:
                clients.setdefault(number, link).send_bytes(run)
    return clients


class Connections:
    """Carries bytes of the secure sum, and no objects: `recv` would run what a client sends."""

    def __init__(self, clients):
        self.clients = clients

    def exchange(self, messages, accept):
        """Send each client its message; hand over the answers that come in time."""
        late, end = {}, time.monotonic() + SECONDS
        for number in messages.keys() & self.clients.keys():
            late[self.clients[number]] = number
            with suppress(OSError):  # it is gone, which is seen below
                self.clients[number].send_bytes(messages[number])
        while late and (ready := wait(late, max(0.0, end - time.monotonic()))):
            for link in ready:
                answer = b""
                with suppress(EOFError, OSError):
                    answer = link.recv_bytes()
                if not answer or accept(late[link], answer):
                    del late[link]


if __name__ == "__main__":
    with Listener(("localhost", 0), authkey=Path(sys.argv[1]).read_bytes()) as listener:
        print(listener.address[1], flush=True)
        run = os.urandom(16)
        sums = SecureAggregator(Connections(wait_for_clients(listener, run)), CONFIG, run)
        svd = DPTruncatedSVD(2, algorithm="power", clip_norm=1.0)
        model = FederatedPowerMethod(svd, CONFIG).fit(sums, n_features=8)
        np.savez(sys.argv[2], model.components_, [line.noise_scale for line in model.releases_])
