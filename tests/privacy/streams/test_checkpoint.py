"""Checkpoints: no completed call is lost, nothing is released twice, no old state is resumed."""

import contextlib
import itertools

import numpy as np
import pytest

from skdp.exceptions import PrivacyError
from skdp.privacy.accounting.plain_data import pack
from skdp.privacy.gate.bounds import Bound
from skdp.privacy.streams import checkpoints
from skdp.privacy.streams.checkpoints import StreamGroup, checkpoint, close, restore
from tools.durable import recorded, stopping
from tools.gate import new_session
from tools.outcomes import refuses

KINDS = {"sqrt": ("sqrt", None), "tree": ("tree", None), "window": ("tree", 3)}


def new_group(kind="tree", horizon=9, epsilon=1.0):
    mechanism, window = KINDS[kind]
    bounds = {n: Bound(n, (3,), 2.0, slack=0.5) for n in "ab"}
    options = {"mechanism": mechanism, "window": window, "touches": 1}
    session = new_session(epsilon, adjacency="replace", unit="group")  # not what others default to
    return StreamGroup.paid(session, bounds, {"a": 0.3, "b": 0.7}, horizon, **options)


def values(i):
    return lambda step: (
        np.arange(i, i + 3, dtype=np.int64) * 1000 if step else np.arange(i, i + 3.0)
    )


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
        sessions = [group.session]
        close(group)
        group = restore(path)
        again = group.answers()
        assert all(np.array_equal(released[n].value, again[n].value) for n in "ab")
        assert all(released[n].noise_scale == again[n].noise_scale for n in "ab")
        assert pack({n: s.state() for n, s in group.streams.items()}) == before
        sessions.append(group.session)
        now, then = ((s.ledger, s.spent(), s.shares, s.draws, s.starts) for s in sessions)
        assert now == then and then[3] > 0
        assert (group.acts, group.steps, group.notes) == (2 * i + 3, i + 1, {"n": i})
    refuses(PrivacyError, "all 9 releases", group.open)
    refuses(PrivacyError, "of the gaussian budget", group.session.charge_skipped, 0.1)


@pytest.mark.deep
@pytest.mark.parametrize("asked", [True, False])
def test_files_are_bounded(asked, tmp_path, monkeypatch):
    """A snapshot, requested or due to the size of the acts, replaces the acts before it."""
    monkeypatch.setattr(checkpoints, "BLOCK", 0)
    path, group, sizes = tmp_path / "stream", new_group(horizon=60), []
    checkpoint(group, path)
    for i in range(59):
        released = group.advance({"a": values(i)})
        if asked:
            checkpoint(group, path)
        sizes.append(sum(file.stat().st_size for file in path.parent.iterdir()))
    assert max(sizes) < 2.5 * max(sizes[:9])
    close(group)
    assert np.array_equal(restore(path).answers()["a"].value, released["a"].value)


def test_a_second_path_takes_over(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    group = new_group()
    checkpoint(group, first)
    group.open()
    checkpoint(group, second)
    refuses(PrivacyError, "another path", restore, first)
    released = group.open()
    close(group)
    assert np.array_equal(restore(second).answers()["a"].value, released["a"].value)
    refuses(FileNotFoundError, "no checkpoint", restore, tmp_path / "c")


@pytest.mark.parametrize("kept", [True, False])
def test_interrupted_while_a_path_takes_over(kept, tmp_path):
    """At no moment may two copies of a stream be resumable, and release a step twice."""
    strikes, again = itertools.count(), True
    while again:
        strike = next(strikes)
        first, second, third = (tmp_path / f"{name}{strike}" for name in "abc")
        group = new_group()
        if kept:
            checkpoint(group, first)
        group.open()
        try:
            with recorded(stopping(strike)):
                checkpoint(group, second)
            again = False
        except KeyboardInterrupt:
            pass
        going_on = []
        with contextlib.suppress(PrivacyError):
            going_on.append(group.open())
        with contextlib.suppress(PrivacyError):
            checkpoint(group, third)
        close(group)
        for path in (first, second, third):
            with contextlib.suppress(PrivacyError, FileNotFoundError):
                restored = restore(path)
                assert restored.steps == 1 + len(going_on)
                going_on += [restored] * (not going_on)
                close(restored)
        assert len(going_on) <= 1
    assert strike > 10


def test_an_interrupted_stream_releases_its_file(tmp_path, monkeypatch):
    group, path = new_group(), tmp_path / "stream"
    checkpoint(group, path)
    stream = group.streams["a"]
    monkeypatch.setattr(stream, "close", lambda _: setattr(stream, "_whole", False) or 1 / 0)
    for error in (ZeroDivisionError, PrivacyError):
        refuses(error, None, group.open)
    assert restore(path).steps == 1


def test_interrupted_while_a_snapshot_is_written(tmp_path):
    """Nothing is lost: the stream goes on."""
    path, group = tmp_path / "stream", new_group(horizon=64)
    checkpoint(group, path)
    for strike in range(8):
        group.open()
        with recorded(stopping(strike)), contextlib.suppress(KeyboardInterrupt):
            checkpoint(group, path)
        released = group.open()
    close(group)
    assert np.array_equal(restore(path).answers()["a"].value, released["a"].value)


def test_nothing_that_exists_is_overwritten(tmp_path):
    """Another stream's file could not be resumed afterwards."""
    first, second = new_group(), new_group()
    checkpoint(first, tmp_path / "first")
    released = first.open()
    close(first)
    refuses(PrivacyError, "has other content", checkpoint, second, tmp_path / "first")
    assert second.open()  # it goes on without a checkpoint
    assert np.array_equal(restore(tmp_path / "first").answers()["a"].value, released["a"].value)
