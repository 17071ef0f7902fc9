"""Checkpoints: nothing acknowledged is lost, nothing released twice, nothing stale resumed."""

import contextlib
import errno
import importlib.util
import os
import shutil
import stat
import sys
from pathlib import Path

import numpy as np
import pytest

from skdp.exceptions import PrivacyError
from skdp.privacy import PrivacyBudget, PrivacySession
from skdp.privacy.accounting.plain_data import pack, unpack
from skdp.privacy.gate.bounds import Bound
from skdp.privacy.noise.words import SystemSource
from skdp.privacy.streams import checkpoints
from skdp.privacy.streams.checkpoints import Journal, StreamGroup, checkpoint, close, restore

POSIX = pytest.mark.skipif(os.name != "posix", reason="kills and locks are those of POSIX")
KINDS = {"sqrt": ("sqrt", None), "tree": ("tree", None), "window": ("tree", 3)}


def new_group(kind="tree", horizon=9, epsilon=1.0):
    session = PrivacySession(
        PrivacyBudget(epsilon, 1e-6), source=SystemSource(), adjacency="replace", unit="row"
    )
    mechanism, window = KINDS[kind]
    bounds = {n: Bound(n, (3,), 2.0, slack=0.5) for n in "ab"}
    return StreamGroup.paid(
        session, bounds, {"a": 0.3, "b": 0.7}, horizon,
        mechanism=mechanism, window=window, touches=1,
    )  # fmt: skip


def values(i):
    return lambda step: (
        np.arange(i, i + 3, dtype=np.int64) * 1000 if step else np.arange(i, i + 3.0)
    )


def test_pack_keeps_every_bit():
    item = {
        "floats": [0.1, float("inf"), -0.0, 5e-324],
        "arrays": [np.arange(6).reshape(2, 3), np.array(2.5), np.zeros((0, 4))],
        "nested": {"a": {"b": np.array([-(2**63), 2**63 - 1])}, "c": None, "d": "é"},
        "scalar": np.int64(3),
    }
    back = unpack(pack(item))
    assert back["floats"] == item["floats"]
    for a, b in zip(back["arrays"], item["arrays"], strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b)
    assert np.array_equal(back["nested"]["a"]["b"], item["nested"]["a"]["b"])
    assert back["scalar"] == 3
    with pytest.raises(PrivacyError, match="cannot pack"):
        pack({"x": object()})


@pytest.mark.thorough
@pytest.mark.parametrize("epsilon", [1.0, float("inf")])
@pytest.mark.parametrize("kind", KINDS)
def test_goes_on_where_it_was(kind, epsilon, tmp_path):
    group, path = new_group(kind, epsilon=epsilon), tmp_path / "stream"
    group.notes = {"n": 0}
    group.add({"a": values(0)})
    checkpoint(group, path)
    for i in range(9):
        group.add({"b": values(i)})
        released = group.advance({"a": values(i)}, n=i)
        before = pack({n: s.state() for n, s in group.streams.items()})
        ledger, spent = group.session.ledger, group.session.spent()
        close(group)
        group = restore(path)
        again = group.answers()
        assert all(np.array_equal(released[n].value, again[n].value) for n in "ab")
        assert all(released[n].noise_scale == again[n].noise_scale for n in "ab")
        assert pack({n: s.state() for n, s in group.streams.items()}) == before
        assert (group.session.ledger, group.session.spent()) == (ledger, spent)
        assert (group.acts, group.steps, group.notes) == (2 * i + 3, i + 1, {"n": i})
    with pytest.raises(PrivacyError, match="all 9 releases"):
        group.open()
    with pytest.raises(PrivacyError, match="of the gaussian budget"):
        group.session.forfeit(0.1)


def test_files_are_secret_and_bounded(tmp_path):
    path = tmp_path / "stream"
    group = new_group(horizon=64)
    old = os.umask(0)
    try:
        checkpoint(group, path)
    finally:
        os.umask(old)
    assert {p.name for p in tmp_path.iterdir()} == {"stream", "stream.count"}
    if os.name == "posix":
        assert {stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir()} == {0o600}
    sizes = []
    for i in range(40):
        group.advance({"a": values(i)})
        checkpoint(group, path)  # a snapshot: the acts before it are gone
        sizes.append(path.stat().st_size)
    assert max(sizes) < 1.5 * sizes[6]


def test_acts_are_replaced_by_a_snapshot_when_they_take_room(tmp_path, monkeypatch):
    monkeypatch.setattr("skdp.privacy.streams.checkpoints._SLACK", 0)
    path, group = tmp_path / "stream", new_group(horizon=60)
    checkpoint(group, path)
    size = path.stat().st_size
    for i in range(59):
        released = group.advance({"a": values(i)})
        assert path.stat().st_size < 8 * size
    close(group)
    assert np.array_equal(restore(path).answers()["a"].value, released["a"].value)


def test_a_cut_off_record_was_not_acknowledged(tmp_path):
    path, group = tmp_path / "stream", new_group()
    checkpoint(group, path)
    group.advance({"a": values(1)})
    close(group)
    whole = path.read_bytes()
    for tail in (b"x", b"\0" * 40, b"\0" * 39, whole[-60:], b"\xff" * 500):
        path.write_bytes(whole + tail)
        group = restore(path)
        assert group.acts == 1
        close(group)
        assert path.read_bytes() == whole


def test_damage_is_seen(tmp_path):
    path, group = tmp_path / "stream", new_group()
    checkpoint(group, path)
    for i in range(3):
        group.advance({"a": values(i)})
    close(group)
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    for where in [0, 5, 16, 33, 40, 48, 60, len(whole) - 1, *rng.integers(0, len(whole), 60)]:
        broken = bytearray(whole)
        broken[where] ^= 1 << int(rng.integers(8))
        path.write_bytes(broken)
        with pytest.raises(PrivacyError):
            restore(path)
    for length in (0, 10, 100, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(PrivacyError):
            restore(path)
    path.write_bytes(whole)
    close(restore(path))


def test_an_older_copy_is_refused(tmp_path):
    path, group = tmp_path / "stream", new_group()
    checkpoint(group, path)
    copies = []
    for i in range(3):
        group.add({"a": values(i)})
        copies.append(path.read_bytes())
        group.open()
    close(group)
    for copy in copies:
        path.write_bytes(copy)
        with pytest.raises(PrivacyError, match="is behind"):
            restore(path)


def test_the_count_must_be_there_and_belong(tmp_path):
    paths = [tmp_path / name for name in "ab"]
    for path in paths:
        group = new_group()
        checkpoint(group, path)
        group.open()
        close(group)
    counts = [Path(f"{path}.count") for path in paths]
    shutil.copy(counts[1], counts[0])
    with pytest.raises(PrivacyError, match="different streams"):
        restore(paths[0])
    counts[0].write_bytes(b"")
    with pytest.raises(PrivacyError, match="damaged"):
        restore(paths[0])
    counts[0].unlink()
    with pytest.raises(PrivacyError, match="missing"):
        restore(paths[0])
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        restore(tmp_path / "c")


def test_a_second_path_takes_over(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    group = new_group()
    checkpoint(group, first)
    group.open()
    checkpoint(group, second)
    with pytest.raises(PrivacyError, match="another path"):
        restore(first)
    released = group.open()
    close(group)
    assert np.array_equal(restore(second).answers()["a"].value, released["a"].value)


@pytest.mark.parametrize("last", ["retire", "replace"])
def test_killed_while_a_second_path_takes_over(last, tmp_path, monkeypatch):
    """At no moment may both files be resumed: they would release the same steps twice."""
    first, second = tmp_path / "a", tmp_path / "b"
    group = new_group()
    checkpoint(group, first)

    def killed(*args):
        raise KeyboardInterrupt

    owner = Journal if last == "retire" else os
    monkeypatch.setattr(owner, last, killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoint(group, second)
    monkeypatch.undo()
    close(group)
    resumed = []
    for path in (first, second):
        with contextlib.suppress(PrivacyError, FileNotFoundError):
            resumed.append(restore(path))
    assert len(resumed) <= 1


def test_another_file_is_not_overwritten(tmp_path):
    path = tmp_path / "precious"
    path.write_text("mine")
    with pytest.raises(PrivacyError, match="not this stream's"):
        checkpoint(new_group(), path)
    assert path.read_text() == "mine"
    with pytest.raises(PrivacyError, match="missing"):
        restore(path)
    path.with_name("precious.count").write_bytes(b"")
    with pytest.raises(PrivacyError, match="not a checkpoint"):
        restore(path)


@POSIX
def test_one_stream_at_a_time(tmp_path):
    path, group = tmp_path / "stream", new_group()
    checkpoint(group, path)
    with pytest.raises(PrivacyError, match="in use"):
        restore(path)
    close(group)
    again = restore(path)
    with pytest.raises(PrivacyError, match="closed"):
        group.open()  # the first one has lost its file
    again.open()


class Windows:
    """Its rules in the place of this system's: no file that is open is replaced or removed."""

    LK_NBLCK = 2

    def __init__(self, monkeypatch):
        self.held = {}
        replace, unlink = os.replace, Path.unlink
        monkeypatch.setitem(sys.modules, "fcntl", None)
        monkeypatch.setitem(sys.modules, "msvcrt", self)
        monkeypatch.setattr(os, "replace", self.guarded(replace))
        monkeypatch.setattr(Path, "unlink", self.guarded(unlink))

    def guarded(self, change):
        def guarded_change(*paths, **options):
            opened = {os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}
            if opened & {os.path.realpath(path) for path in paths}:
                raise PermissionError("it is used by another process")
            return change(*paths, **options)

        return guarded_change

    def locking(self, descriptor, mode, n_bytes):
        assert mode == self.LK_NBLCK and n_bytes == 1
        at = os.lseek(descriptor, 0, os.SEEK_CUR)
        assert at >= 1024  # a locked byte cannot be read, not even by its owner's other file
        link = os.readlink(f"/proc/self/fd/{descriptor}")
        holder = self.held.get(link)
        alive = holder is not None and os.path.exists(f"/proc/self/fd/{holder}")
        if alive and holder != descriptor and os.readlink(f"/proc/self/fd/{holder}") == link:
            raise PermissionError(errno.EACCES, "the byte is locked")
        self.held[link] = descriptor


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="looks at what is open")
def test_by_the_rules_of_windows(tmp_path, monkeypatch):
    Windows(monkeypatch)
    monkeypatch.setattr(checkpoints, "_SLACK", -(2**40))  # a snapshot replaces the file at each act
    path, group = tmp_path / "stream", new_group()
    checkpoint(group, path)
    with pytest.raises(PrivacyError, match="in use"):
        restore(path)
    for i in range(5):
        group.add({"a": values(i)}, seen=i)
    released = group.open()
    checkpoint(group, tmp_path / "other")
    close(group)
    with pytest.raises(PrivacyError, match="another path"):
        restore(path)
    again = restore(tmp_path / "other")
    assert np.array_equal(again.answers()["a"].value, released["a"].value)
    close(again)


def test_a_system_without_locks_is_refused(tmp_path, monkeypatch):
    for module in ("fcntl", "msvcrt"):
        monkeypatch.setitem(sys.modules, module, None)
    group = new_group()
    with pytest.raises(PrivacyError, match="no locks on files"):
        checkpoint(group, tmp_path / "stream")
    assert group.open()  # it goes on without a checkpoint


def test_a_replacement_that_fails_stops_the_stream(tmp_path, monkeypatch):
    path, group = tmp_path / "stream", new_group()
    checkpoint(group, path)

    def refused(*args):
        raise PermissionError

    monkeypatch.setattr(checkpoints, "_SLACK", -(2**40))
    monkeypatch.setattr(os, "replace", refused)
    with pytest.raises(PermissionError):
        group.open()
    monkeypatch.undo()
    with pytest.raises(PrivacyError):
        group.open()
    close(group)
    again = restore(path)
    assert again.acts == 0 and again.open()


def test_a_full_disk_stops_the_stream(tmp_path, monkeypatch):
    path, group = tmp_path / "stream", new_group()
    checkpoint(group, path)
    first = group.advance({"a": values(0)})

    def full(file, data):
        file.write(data[: len(data) // 2])
        raise OSError("disk full")

    monkeypatch.setattr(Journal, "_write", staticmethod(full))
    with pytest.raises(OSError, match="disk full"):
        group.advance({"a": values(1)})
    monkeypatch.undo()
    with pytest.raises(PrivacyError, match="interrupted"):
        group.open()
    group = restore(path)
    assert group.steps == 1
    assert np.array_equal(group.answers()["a"].value, first["a"].value)
    group.open()


def test_another_version_is_refused(tmp_path):
    path, group = tmp_path / "stream", new_group()
    checkpoint(group, path)
    close(group)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"skdp stream 00001", b"skdp stream 00002"))
    with pytest.raises(PrivacyError, match="another version"):
        restore(path)


def killed_streams():
    path = Path(__file__).with_name("killed_streams.py")
    spec = importlib.util.spec_from_file_location("killed_streams", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@POSIX
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forking a process that has threads
@pytest.mark.system_entropy
@pytest.mark.parametrize("times", [15, pytest.param(100, marks=pytest.mark.slow)])
def test_killed_at_random_moments(tmp_path, times):
    """State after restore equals an uninterrupted run; no release is lost, changed or repeated."""
    found = killed_streams().main(tmp_path, times)
    print(found)
    assert found.pop("kills") >= times
    assert found.pop("runs") >= 1
    assert found == {"lost": 0, "wrong": 0, "repeated": 0}
