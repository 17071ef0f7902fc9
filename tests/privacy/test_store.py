"""Durable files: the same tests for ledgers and streams, which both use them."""

import contextlib
import copy
import errno
import gc
import json
import os
import pickle
import random
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from contextlib import closing
from functools import partial

import numpy as np
import pytest

from skdp.exceptions import PrivacyError
from skdp.privacy import store
from skdp.privacy.accounting.losses import Loss
from skdp.privacy.accounting.plain_data import pack
from skdp.privacy.gate.bounds import Bound
from skdp.privacy.ledger import books as ledgers
from skdp.privacy.ledger.balances import Terms
from skdp.privacy.ledger.books import FileBook
from skdp.privacy.ledger.fits import LedgerFit
from skdp.privacy.noise.words import make_source
from skdp.privacy.store import Store
from skdp.privacy.streams import checkpoints
from skdp.privacy.streams.checkpoints import StreamGroup, checkpoint, close, restore
from skdp.privacy.streams.continual import paid_stream
from tools.durable import recorded, stopping
from tools.gate import new_session
from tools.outcomes import refuses

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
STEPS, SIZE = 3, 40
SUFFIXES = ("", ".lock", "-journal")


# -- two users, step by step ----------------------------------------------------------------------


class Fits:
    """A ledger: each step charges a fit, and says its number."""

    slack = 0

    def __init__(self, path):
        self.book = FileBook(str(path), Terms(1.0, 1e-6))

    def step(self):
        fit = LedgerFit("Fit", "row", "replace", (Loss("gaussian", 0.01),), False)
        return str(self.book.reserve(fit))

    def done(self):
        return len(self.book.balance().entries)

    def state(self):
        return repr(self.book.balance().entries)

    def close(self):
        pass


class Acts:
    """A stream, with noise that is the same in every run: each step adds data, or closes a step."""

    slack = 2**20

    def __init__(self, path):
        try:
            self.group = restore(path)
        except FileNotFoundError:
            session = new_session(source=make_source(3, "test"))
            bound = Bound("sums", (SIZE,), 1.0, slack=0.0)
            paid_stream(session, bound, 0.1, 1)  # so that serial numbers are not zero
            streams = {
                "root": paid_stream(session, bound, 0.4, STEPS, mechanism="sqrt"),
                "tree": paid_stream(session, bound, 0.5, STEPS, mechanism="tree", window=3),
            }
            self.group = StreamGroup(session, streams)
            checkpoint(self.group, path)

    def step(self):
        X = np.random.default_rng(self.group.acts).integers(-1000, 1000, (2, SIZE))
        if self.group.acts % 2 == 0:
            self.group.add({"root": lambda step: X[0], "tree": lambda step: X[1]})
            return ""
        self.group.advance({"tree": lambda step: X[0]})
        return self.told()

    def told(self):
        return "".join(answer.value.tobytes().hex() for answer in self.group.answers().values())

    def done(self):
        return self.group.acts

    def state(self):
        group = self.group
        streams = {name: stream.state() for name, stream in group.streams.items()}
        spent = repr((group.session.ledger, group.session.spent().losses))
        released = self.told() if group.steps else ""
        return pack({"streams": streams, "spent": spent, "told": released}).hex()

    def close(self):
        close(self.group)


class Snapshots(Acts):
    """A stream whose acts are replaced by a snapshot at each act."""

    slack = -(2**40)


@pytest.fixture(params=[Fits, Acts, Snapshots])
def user(request, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "BLOCK", request.param.slack)
        patch.setattr(store, "WAIT", 5.0)
        yield request.param


@pytest.fixture
def path(tmp_path):
    return tmp_path / "kept"


def another_process(monkeypatch):
    """Forget what this process has seen."""
    monkeypatch.setattr(store, "_SEEN", {})
    monkeypatch.setattr(ledgers, "_KEPT", {})


def uninterrupted(user, path, steps=STEPS):
    """Return what each step told, and the last state."""
    this = user(path)
    told = [this.step() for _ in range(steps)]
    state = this.state()
    this.close()
    return told, state


# -- the order of durable events ------------------------------------------------------------------


def test_a_step_returns_after_its_commit_and_its_marker(user, path):
    """Also at the start: the marker is written before the file, which is useless without it."""
    events = []
    with recorded(lambda name, half: events.append(name)):
        this = user(path)
        begun = [name for name in events if name in ("sync done", "COMMIT done")]
        events.clear()
        this.step()
        durable = [name for name in events if name.split()[0] not in ("DELETE", "INSERT")]
    assert begun == (["COMMIT done", "sync done"] if user is Fits else [
        "sync done", "COMMIT done", "sync done"])  # fmt: skip
    commit = [f"{name}{done}" for name in ("COMMIT", "write", "sync") for done in ("", " done")]
    assert durable == ["BEGIN", "BEGIN done", *commit]
    with Store(path, ledgers._FORM)._connected() as file:  # a commit waits for the disk
        assert file.execute("PRAGMA synchronous").fetchone() == (3,)
        assert file.execute("PRAGMA journal_mode").fetchone() == ("persist",)
    this.close()


@pytest.mark.parametrize("struck", ["write", "sync", "COMMIT"])
def test_a_release_that_could_not_be_stored_is_not_published(user, path, struck):
    """On a full disk it is unknown how much was written; the next open of the file shows it."""
    this = user(path)
    told = [this.step()]

    def full(name, half):
        if name == struck:
            half()
            raise OSError("no space left")

    with recorded(full), pytest.raises(PrivacyError, match="no space left"):
        told.append(this.step())
    if user is not Fits:
        refuses(PrivacyError, "interrupted", this.step)
    this = user(path)
    assert this.done() == (1 if struck == "COMMIT" else 2)
    told = told[: this.done()] + [""] * (this.done() - 1)
    told += [this.step() for _ in range(STEPS - this.done())]
    ended, _ = uninterrupted(user, f"{path}2")
    assert told[2:] == ended[2:]
    assert this.state() == uninterrupted(user, f"{path}3")[1]
    this.close()


# -- killed ---------------------------------------------------------------------------------------


def run_child(user, path, event=None, seconds=None):
    """Run to the last step or the kill; return the completed calls, and whether it was killed."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        with contextlib.suppress(BaseException), recorded(event or (lambda name, half: None)):
            this = user(path)
            while this.done() < STEPS:
                os.writev(writer, [json.dumps([this.done(), this.step()]).encode(), b"\n"])
            this.close()
            os._exit(0)
        os._exit(1)
    os.close(writer)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    with os.fdopen(reader) as file:
        lines = file.read().splitlines(keepends=True)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return dict(json.loads(line) for line in lines if line.endswith("\n")), os.WIFSIGNALED(status)


def check(user, path, expected, acknowledged):
    """Nothing acknowledged is lost, and at most one step more was done; return how many."""
    this = user(path)
    done = this.done()
    assert len(acknowledged) <= done <= len(acknowledged) + 1
    assert all(told == expected[i] for i, told in acknowledged.items())
    if user is not Fits and done and expected[done - 1]:
        assert this.told() == expected[done - 1]  # given out again, the same bytes
    this.close()
    return done


@forks
@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forking a process that has threads
@pytest.mark.parametrize("every", [3, 1])
def test_killed_at_each_durable_event(user, every, tmp_path):
    """Also in the middle of a write; the next process ends like one that was never killed."""
    events = []

    def kill(half):
        half()
        os.kill(os.getpid(), signal.SIGKILL)

    with recorded(lambda name, half: events.append(name)):
        expected, state = uninterrupted(user, tmp_path / "whole")
    killed = 0
    for strike in range(0, len(events), every):
        path = tmp_path / str(strike)
        acknowledged, died = run_child(user, path, stopping(strike, kill))
        killed += died
        check(user, path, expected, acknowledged)
        this = user(path)
        told = {this.done(): this.step() for _ in range(STEPS - this.done())}
        assert told == {i: expected[i] for i in told}
        assert this.state() == state
        this.close()
    assert killed == len(range(0, len(events), every))


@forks
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.deep
@pytest.mark.parametrize("times", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_killed_at_random_moments(user, tmp_path, times):
    expected, state = uninterrupted(user, tmp_path / "whole")
    started = time.perf_counter()
    run_child(user, tmp_path / "timed")
    rng, runs, kills, acknowledged = random.Random(0), 0, 0, {}
    takes = time.perf_counter() - started
    while kills < times or acknowledged:
        path = tmp_path / str(runs)
        seconds = rng.uniform(0, takes) if kills < times else None
        more, died = run_child(user, path, seconds=seconds)
        if not died and not acknowledged:
            takes = seconds  # of a whole run: who outlives it took less
        assert not set(more) & set(acknowledged)  # no step is done twice
        kills += died
        done = check(user, path, expected, acknowledged | more)
        acknowledged = dict(enumerate(expected[:done]))
        if done == STEPS:
            this = user(path)
            assert this.state() == state
            this.close()
            runs, acknowledged = runs + 1, {}


# -- other copies, damage, other files ------------------------------------------------------------


@pytest.mark.parametrize("seen_here", [True, False])
def test_an_older_copy_is_refused(user, path, seen_here, monkeypatch):
    """By the marker, or by a process that read later lines if all files are older."""
    copies = []
    for _ in range(3):
        this = user(path)
        this.step()
        this.close()
        copies.append({end: path.with_name(f"kept{end}").read_bytes() for end in ("", ".lock")})
    for older in copies[:-1]:
        for end in ("", ".lock") if seen_here else ("",):
            path.with_name(f"kept{end}").write_bytes(older[end])
        if not seen_here:
            another_process(monkeypatch)
        for _ in range(2):
            refuses(PrivacyError, "lacks line", user, path)
    for end, whole in copies[-1].items():
        path.with_name(f"kept{end}").write_bytes(whole)
    assert user(path).done() == 3


def test_snapshots_of_another_process_are_no_older_copy(path, monkeypatch):
    """The lines that this process read are no longer there then."""
    monkeypatch.setattr(checkpoints, "BLOCK", Snapshots.slack)
    Acts(path).close()
    with monkeypatch.context() as patch:
        another_process(patch)
        uninterrupted(Acts, path)
    assert Acts(path).done() == STEPS


def test_a_stream_needs_its_marker(path):
    """A ledger without one may be current; a stream would release its steps again."""
    lock = path.with_name("kept.lock")
    for user, damage in ((Acts, b""), (Acts, b"1 a b"), (Acts, b"x" * 512), (Fits, b"x" * 512)):
        uninterrupted(user, path, 2)
        lock.write_bytes(damage)
        if user is Acts:
            refuses(PrivacyError, "missing or damaged", user, path)
        else:
            assert user(path).done() == 2
        for end in SUFFIXES:
            path.with_name(f"kept{end}").unlink(missing_ok=True)
        store._SEEN.clear()
        ledgers._KEPT.clear()


def test_damage_is_seen(user, path, monkeypatch):
    """Or it lies in unused bytes, and the content is complete."""
    _, state = uninterrupted(user, path, 3)
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    lock = path.with_name("kept.lock").read_bytes()
    refused = 0
    for where in [*range(0, 100, 9), *rng.integers(0, len(whole), 60)]:
        broken = bytearray(whole)
        broken[where] ^= 1 << int(rng.integers(8))
        refused += self_or_refused(user, path, broken, lock, state, monkeypatch)
    for length in (10, 100, len(whole) // 2, len(whole) - 1):
        refused += self_or_refused(user, path, whole[:length], lock, state, monkeypatch)
    assert refused >= 10


def self_or_refused(user, path, data, lock, state, monkeypatch):
    for end in SUFFIXES:
        path.with_name(f"kept{end}").unlink(missing_ok=True)
    path.write_bytes(data)
    path.with_name("kept.lock").write_bytes(lock)
    another_process(monkeypatch)
    try:
        this = user(path)
    except PrivacyError:
        return True
    assert this.state() == state
    this.close()
    return False


def test_files_of_others_are_left_alone(user, path):
    path.write_text("mine, and long enough to be read as a page of a database " * 50)
    before = path.read_bytes()
    refuses(PrivacyError, "cannot be read or written", user, path)
    assert path.read_bytes() == before
    path.unlink()
    with closing(sqlite3.connect(path)) as file:
        file.execute("CREATE TABLE others (a)")
    refuses(PrivacyError, "another version or program", user, path)
    other = Acts if user is Fits else Fits
    other(f"{path}2").close()
    refuses(PrivacyError, "another version or program", user, f"{path}2")


@pytest.mark.skipif(os.name != "posix", reason="looks at modes")
def test_files_are_secret(user, path):
    old = os.umask(0)
    try:
        this = user(path)
        this.step()
        files = list(path.parent.iterdir())
    finally:
        os.umask(old)
    assert {file.name for file in files} <= {f"kept{end}" for end in SUFFIXES}
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    this.close()


# -- locks ----------------------------------------------------------------------------------------


def test_a_folder_without_locks_raises_at_once(user, path, monkeypatch):
    """Waiting would not help, and an error about another holder would be wrong."""

    def refused(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    with monkeypatch.context() as patch:
        patch.setattr(store, "_apply", refused)
        refuses(PrivacyError, "No locks available", user, path)
    for module in ("fcntl", "msvcrt"):
        monkeypatch.setitem(sys.modules, module, None)
    refuses(PrivacyError, "no locks on files", user, path)


class Windows:
    """Locks by the rules of Windows: on one byte, which no other process may read."""

    LK_NBLCK, LK_UNLCK = 2, 0

    def __init__(self):
        self.held = {}

    def locking(self, descriptor, mode, n_bytes):
        assert n_bytes == 1
        at = os.lseek(descriptor, 0, os.SEEK_CUR)
        assert at >= 1024
        link = os.readlink(f"/proc/self/fd/{descriptor}")
        if mode == self.LK_UNLCK:
            assert self.held.pop(link) == descriptor
        elif link in self.held:
            raise PermissionError(errno.EACCES, "the byte is locked")
        else:
            self.held[link] = descriptor


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="looks at what is open")
def test_by_the_rules_of_windows(user, path, monkeypatch):
    expected, state = uninterrupted(user, f"{path}2")
    windows = Windows()
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setitem(sys.modules, "msvcrt", windows)
    assert uninterrupted(user, path) == (expected, state)
    assert not windows.held


# Another program, which has neither the lock of this one nor that of its database.
TAKE = """
import fcntl, sqlite3, sys
for take in (
    lambda: sqlite3.connect(sys.argv[1], timeout=0).execute("BEGIN IMMEDIATE"),
    lambda: fcntl.flock(open(sys.argv[1] + ".lock"), fcntl.LOCK_EX | fcntl.LOCK_NB),
):
    try:
        take()
        print("taken")
    except (sqlite3.OperationalError, BlockingIOError):
        print("held")
"""


def others(path):
    return subprocess.run(
        [sys.executable, "-c", TAKE, path], capture_output=True, text=True, check=True
    ).stdout.split()


@forks
def test_no_reader_of_this_process_ends_the_lock_of_a_change(path):
    """On POSIX all locks on a file end when any thread closes it: two charges would be one."""
    book = Fits(path).book
    with book.held():
        threads = [
            threading.Thread(target=work, args=(str(path),), daemon=True)
            for work in (store.is_database, ledgers.read_registry)
        ]
        for thread in threads:
            thread.start()
        threads[0].join()
        assert others(path) == ["held", "held"]
        assert threads[1].is_alive()  # it waits
        refuses(PrivacyError, "in use by this process already", book.balance)
    threads[1].join()
    assert others(path) == ["taken", "taken"]


@forks
def test_one_stream_at_a_time(path):
    this = Acts(path)
    this.step()
    assert others(path) == ["taken", "held"]  # SQLite has a lock of its own in a change alone
    refuses(PrivacyError, "in use", Acts, path)
    with open(f"{path}.lock") as file:  # as another process opens it
        assert not store._lock(file.fileno())
    for duplicate in (pickle.dumps, copy.copy, copy.deepcopy):
        refuses(PrivacyError, "cannot be copied or pickled", duplicate, this.group.keeper.store)
    this.close()
    again = Acts(path)
    refuses(PrivacyError, "closed", this.step)  # the first one has lost its file
    again.step()
    del again, this
    gc.collect()
    assert others(path) == ["taken", "taken"]  # a process that has ended holds nothing


def test_a_torn_marker_leaves_the_one_before(tmp_path, monkeypatch):
    lock, write = store._Lock(str(tmp_path / "file")), os.write

    def torn(descriptor, data):
        write(descriptor, data[:20])
        raise OSError

    with closing(lock):
        lock.take(0.0)
        for n in range(1, 6):
            monkeypatch.setattr(os, "write", write)
            lock.mark((n, "head"))
            monkeypatch.setattr(os, "write", torn)
            refuses(OSError, None, lock.mark, (n + 1, "longer" * 5))
            assert lock.marker() == (n, "head")


def test_a_lock_is_free_when_it_is_left_whoever_has_a_copy(user, path, monkeypatch):
    """A child that another library forks meanwhile has a copy of the descriptor."""
    take, copies = store._Lock.take, []

    def copied(lock, wait):
        take(lock, wait)
        copies.append(os.dup(lock.descriptor()))

    monkeypatch.setattr(store._Lock, "take", copied)
    monkeypatch.setattr(store, "WAIT", 0.0)
    for n in range(2):
        this = user(path)
        this.step()
        this.close()
        assert user is Fits or n + 1 == len(copies)
    for descriptor in copies:
        os.close(descriptor)


@forks
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_waits_for_a_change_in_another_thread(path):
    """Its child would have half of the change, and a lock that is never released."""
    this, inside = Fits(path), threading.Event()

    def change():
        with this.book.held():
            inside.set()
            time.sleep(0.2)

    thread = threading.Thread(target=change)
    thread.start()
    inside.wait()
    if (child := os.fork()) == 0:
        signal.alarm(20)  # where it waits for ever, it is killed
        this.step()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    thread.join()
    assert this.done() == 1


@forks
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_takes_nothing_from_the_stream_of_its_parent(path):
    """A database that is closed in a child would take the last acts out of the parent's file."""
    expected, state = uninterrupted(Acts, f"{path}2")
    this = Acts(path)
    told = [this.step()]
    for _ in range(STEPS - 1):
        if (child := os.fork()) == 0:
            signal.alarm(20)
            held = this.group.keeper.store._lock.descriptor
            for act in (this.step, this.close, partial(Acts, path), held):
                with contextlib.suppress(PrivacyError):
                    act()
                    os._exit(1)
            this.group.keeper.store.close()
            this = None
            gc.collect()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        refuses(PrivacyError, "in use", Acts, path)
        with open(f"{path}.lock") as file:
            assert not store._lock(file.fileno())
        told.append(this.step())
    assert (told, this.state()) == (expected, state)
    for end in SUFFIXES:  # as if the parent were killed now
        if os.path.exists(f"{path}{end}"):
            shutil.copy(f"{path}{end}", f"{path}3{end}")
    assert Acts(f"{path}3").state() == state
    this.close()


def test_a_change_that_was_not_committed_is_not_remembered(user, path, monkeypatch):
    """A disk that was full for a moment must not make the file an older copy for ever."""
    this = user(path)
    this.step()

    def full(name, half):
        if name == "COMMIT":
            raise sqlite3.OperationalError("database or disk is full")

    with recorded(full), pytest.raises(PrivacyError, match="nothing more is charged"):
        (this if user is Fits else user(f"{path}2")).step()
    assert user(path if user is Fits else f"{path}2").step() is not None
    this.close()


def test_a_stream_whose_write_was_interrupted_ends_here(path):
    """Nobody knows how much was written: who opens the file again reads it."""
    this = Acts(path)

    def struck(name, half):
        if name == "COMMIT":
            raise KeyboardInterrupt

    with recorded(struck), pytest.raises(KeyboardInterrupt):
        this.step()
    assert this.group.keeper.store._lock._descriptor is None
    again = Acts(path)
    assert again.done() == 0
    again.close()


def test_a_change_that_is_not_in_the_file_is_refused(path, monkeypatch):
    """If a backup is restored just after the write, the data are not read."""
    this, remember = Fits(path), Store._remember
    shutil.copy(path, f"{path}.older")

    def replaced(*args):
        os.replace(f"{path}.older", path)
        return remember(*args)

    monkeypatch.setattr(Store, "_remember", replaced)
    refuses(PrivacyError, "does not contain what was just written", this.step)
