"""The example in two files: processes fit what one process fits, and refuse unknown clients."""

import importlib.util
import subprocess
import sys
from contextlib import ExitStack
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from pathlib import Path

import numpy as np
import pytest

from skdp import DPTruncatedSVD
from skdp.datasets import make_spiked_rows
from skdp.federated import FederatedPowerMethod, PowerMethodClient, UnmaskedAggregator
from tools.outcomes import refuses

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "federated"
KEY = b"what the parties know"
X = make_spiked_rows(1800, 8, 2, random_state=0)
PARTS = np.array_split(X, 3)


def example(name, *arguments):
    command = [sys.executable, FOLDER / name, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def server_file():
    spec = importlib.util.spec_from_file_location("server", FOLDER / "server.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.thorough
@pytest.mark.system_entropy
def test_processes_fit_what_one_process_fits(tmp_path, server_file):
    """The server starts first and waits, but not for a client without a key."""
    (tmp_path / "key").write_bytes(KEY)
    with ExitStack() as stack:
        server = stack.enter_context(example("server.py", tmp_path / "key", tmp_path / "m.npz"))
        stack.callback(server.kill)
        port = int(server.stdout.readline())
        refuses(AuthenticationError, None, Client, ("localhost", port), authkey=b"another key")
        clients = []
        for i, rows in enumerate(PARTS):
            np.save(tmp_path / f"{i}.npy", rows)
            arguments = (tmp_path / "key", port, i, tmp_path / f"{i}.npy")
            clients.append(stack.enter_context(example("client.py", *arguments)))
            stack.callback(clients[-1].kill)
        receipts = [client.communicate()[0] for client in clients]
        assert [server.wait(), *(client.returncode for client in clients)] == [0] * 4
    with np.load(tmp_path / "m.npz") as found:
        components, noise_scales = found["arr_0"], found["arr_1"]
    config = server_file.CONFIG
    holders = [PowerMethodClient(rows, config) for rows in PARTS]
    svd = DPTruncatedSVD(2, algorithm="power", clip_norm=1.0)
    sums = UnmaskedAggregator([holder.respond for holder in holders])
    model = FederatedPowerMethod(svd, config).fit(sums, n_features=8)
    expected = [line.noise_scale for line in model.releases_]
    np.testing.assert_allclose(noise_scales[:8], expected[:8])  # what follows depends on them
    assert receipts == [f"{holder.close()}\n" for holder in holders]
    assert np.sum((X @ components.T) ** 2) > 0.9 * np.sum((X @ model.components_.T) ** 2)


class Link:
    """A connection that sends some bytes and closes."""

    def __init__(self, *said):
        self.said, self.sent = list(said), []

    def send_bytes(self, message):
        self.sent.append(message)

    def recv_bytes(self, _=None):
        if not self.said:
            raise EOFError
        return self.said.pop(0)


def test_the_first_exchange_waits_for_all_clients(server_file):
    """An unknown client, a number in use and a number without a client are not counted."""
    links = [Link(bytes([0, 0, 0, n])) for n in (1, 1, 7, 0, 2)] + [Link()]

    class Listener:
        came = iter([AuthenticationError(), links[5], *links[:5]])

        def accept(self):
            link = next(self.came)
            if isinstance(link, Exception):
                raise link
            return link

    clients = server_file.wait_for_clients(Listener(), b"a run")
    assert clients == {1: links[0], 0: links[3], 2: links[4]}
    assert links[3].sent == [b"a run"] and links[2].sent == []


def test_an_answer_that_is_late_is_not_that_of_the_next_message(server_file, monkeypatch):
    """Two messages: one client has left, one is late, one never answers."""
    links = {0: Link(), 1: Link(b"to the one before", b"to this one"), 2: Link(b"?")}
    waits = iter([[links[0], links[1]], [links[1]], []])
    monkeypatch.setattr(server_file, "wait", lambda late, seconds: next(waits))
    taken = []

    def accept(number, answer):
        taken.append((number, answer))
        return answer == b"to this one"

    server_file.Connections(links).exchange(dict.fromkeys(links, b"!"), accept)
    assert taken == [(1, b"to the one before"), (1, b"to this one")]
    assert all(link.sent == [b"!"] for link in links.values())


def test_no_object_is_unpickled():
    text = "".join((FOLDER / name).read_text() for name in ("server.py", "client.py"))
    assert ".recv(" not in text and ".send(" not in text
    assert len(text.splitlines()) <= 80
