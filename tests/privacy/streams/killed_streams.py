"""Not a test: kill children while they advance a stream that is kept in files.

Run by test_checkpoint.py.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np

from skdp.privacy import PrivacyBudget, PrivacySession
from skdp.privacy.accounting.plain_data import pack
from skdp.privacy.gate.bounds import Bound
from skdp.privacy.noise.words import make_source
from skdp.privacy.streams.checkpoints import Journal, StreamGroup, checkpoint, close, restore
from skdp.privacy.streams.continual import paid_stream

HORIZON, SIZE = 24, 500
ACTS = 2 * HORIZON  # data, then (with more data) a release


def start(seed):
    source = make_source(seed, "test")
    session = PrivacySession(
        PrivacyBudget(1.0, 1e-6), source=source, adjacency="add_remove", unit="row"
    )
    bound = Bound("sums", (SIZE,), 1.0, slack=0.0)
    paid_stream(session, bound, 0.1, 1)  # so that serial numbers are not zero
    return StreamGroup(
        session,
        {
            "root": paid_stream(session, bound, 0.4, HORIZON, mechanism="sqrt"),
            "tree": paid_stream(session, bound, 0.5, HORIZON, mechanism="tree", window=6),
        },
    )


def act(group, i):
    """Do act i; return what became public."""
    X = np.random.default_rng(i).integers(-1000, 1000, (2, SIZE))
    if i % 2 == 0:
        group.add({"root": lambda step: X[0], "tree": lambda step: X[1]})
        return ""
    answers = group.advance({"tree": lambda step: X[0]})
    return "".join(answers[name].value.tobytes().hex() for name in ("root", "tree"))


def final_state(group):
    streams = {name: stream.state() for name, stream in group.streams.items()}
    if not group.session.source.seeded:  # then the exact parts alone are the same
        streams = [streams["root"]["memory"]["past"], streams["tree"]["memory"]["exact"]]
    ledger = [list(map(str, line)) for line in group.session.ledger]
    spent = repr(group.session.spent().losses)
    return pack({"streams": streams, "ledger": ledger, "spent": spent, "acts": group.acts}).hex()


def plant(rng):
    """Die at a random write or synchronisation, some of them cut in half; or at a random time."""
    left = [rng.randrange(40) if rng.random() < 0.7 else 10**9]
    write, fsync, replace = Journal._write, os.fsync, os.replace

    def strike():
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def cut_write(file, data):
        if left[0] == 0:
            file.write(data[: rng.randrange(len(data))])
        strike()
        write(file, data)

    Journal._write = staticmethod(cut_write)
    os.fsync = lambda descriptor: (strike(), fsync(descriptor), strike())
    os.replace = lambda a, b: (strike(), replace(a, b), strike())


def child(path, seed, noise, acknowledge):
    plant(random.Random(seed))
    if path.exists():
        group = restore(path)
    else:
        group = start(noise)
        checkpoint(group, path)
    for i in range(group.acts, ACTS):
        released = act(group, i)
        os.write(acknowledge, json.dumps([i, released]).encode() + b"\n")
        if i % 16 == 7:
            checkpoint(group, path)  # replaces the file
    os._exit(0)


def run_child(path, seed, noise):
    """Return (acknowledged acts, whether the child was killed)."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            child(path, seed, noise, writer)
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            os._exit(1)
    os.close(writer)
    delay = random.Random(-seed).uniform(0.0, 0.02)
    if seed % 3 == 0:
        time.sleep(delay)
        os.kill(pid, signal.SIGKILL)
    with os.fdopen(reader) as file:
        lines = file.read().splitlines(keepends=True)
    status = os.waitpid(pid, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise SystemExit("a child failed")
    return [json.loads(line) for line in lines if line.endswith("\n")], os.WIFSIGNALED(status)


def reference(noise):
    group = start(noise)
    released = [act(group, i) for i in range(ACTS)]
    return released, final_state(group)


def last_release(group):
    return "".join(group.answers()[n].value.tobytes().hex() for n in ("root", "tree"))


def main(folder, kills):
    """Runs in turn with seeded noise, equal to one that nobody killed, and with real noise."""
    references = {noise: reference(noise) for noise in (3, None)}
    seed = seen = runs = lost = wrong = repeated = 0
    acknowledged, encoded = {}, []
    while seen < kills or acknowledged:
        noise = (3, None)[runs % 2]
        expected, final = references[noise]
        path = Path(folder, f"stream{runs}")
        done, killed = run_child(path, seed := seed + 1, noise)
        seen += killed
        for i, released in done:
            wrong += noise is not None and released != expected[i]
            repeated += i in acknowledged
            acknowledged[i] = released
        if not path.exists():
            lost += len(acknowledged)
            continue
        group = restore(path)
        lost += group.acts <= max(acknowledged, default=-1)
        if group.steps:  # the last release is given out again, the same bytes
            last = acknowledged.get(2 * group.steps - 1, last_release(group))
            wrong += last != last_release(group)
        before, encoded = encoded, group.streams["root"].state()["memory"]["encoded"]
        wrong += any((a != b).any() for a, b in zip(before, encoded, strict=False))
        if group.acts == ACTS:
            wrong += final_state(group) != final
            acknowledged, encoded, runs = {}, [], runs + 1
        close(group)
    return {"kills": seen, "runs": runs, "lost": lost, "wrong": wrong, "repeated": repeated}
