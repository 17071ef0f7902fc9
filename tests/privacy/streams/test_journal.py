"""What is durable before an act is acknowledged, and in which order: recorded call by call."""

import copy
import os
import pickle

import numpy as np
import pytest

from skdp import PrivacyError
from skdp.privacy.gate.bounds import Bound
from skdp.privacy.streams import checkpoints
from skdp.privacy.streams.checkpoints import StreamGroup, checkpoint, close
from tools.gate import new_session

RECORD, COUNT = "stream", "stream.count"


class Recorded:
    """A file that notes what is written to it."""

    def __init__(self, file, name, log, closed):
        self._file, self._name, self._log, self._closed = file, name, log, closed

    def close(self):
        if not self._file.closed:
            self._closed(self._file.fileno(), None)
        self._file.close()

    def __getattr__(self, name):
        return getattr(self._file, name)

    def write(self, data):
        self._log.append(("write", self._name))
        return self._file.write(data)


@pytest.fixture
def log(monkeypatch):
    """Writes, synchronisations and replacements of a journal, in their order."""
    seen, names = [], {}
    opened, fsync, rename = checkpoints._open_secret, os.fsync, os.replace

    def open_secret(path, mode):
        file = opened(path, mode)
        names[file.fileno()] = path.name
        return Recorded(file, path.name, seen, names.pop)

    def synchronise(descriptor):
        seen.append(("sync", names.get(descriptor, "folder")))
        fsync(descriptor)

    def replace(source, target):
        seen.append(("replace", target.name))
        rename(source, target)

    monkeypatch.setattr(checkpoints, "_open_secret", open_secret)
    monkeypatch.setattr(os, "fsync", synchronise)
    monkeypatch.setattr(os, "replace", replace)
    return seen


def runs(log):
    """Join neighbours that are equal: one record may take several writes."""
    return [item for i, item in enumerate(log) if i == 0 or item != log[i - 1]]


def new_group():
    bounds = {"a": Bound("a", (3,), 2.0, slack=0.5)}
    return StreamGroup.paid(new_session(), bounds, {"a": 1.0}, 5, mechanism="tree", touches=1)


DURABLE = [("write", RECORD), ("sync", RECORD), ("write", COUNT), ("sync", COUNT)]


def test_a_release_returns_after_its_record_and_then_its_count_are_durable(tmp_path, log):
    group = new_group()
    checkpoint(group, tmp_path / RECORD)
    for act in (
        lambda: group.add({"a": lambda step: np.zeros(3, np.int64)}),
        lambda: group.advance({"a": lambda step: np.zeros(3, np.int64)}),
    ):
        log.clear()
        act()
        assert runs(log) == DURABLE
    close(group)


def test_a_snapshot_is_durable_before_it_takes_the_name(tmp_path, log):
    group = new_group()
    checkpoint(group, tmp_path / RECORD)
    written = runs(log)
    temporary = RECORD + ".tmp"
    assert written.index(("sync", COUNT)) < written.index(("replace", RECORD))
    assert written.index(("sync", temporary)) == written.index(("write", temporary)) + 1
    assert written.index(("sync", temporary)) < written.index(("replace", RECORD))
    if os.name == "posix":
        assert written[-1] == ("sync", "folder")
    close(group)


def test_nothing_is_returned_of_an_act_that_could_not_be_made_durable(tmp_path, monkeypatch):
    group = new_group()
    checkpoint(group, tmp_path / RECORD)

    def fails(descriptor):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="no space"):
        group.advance({"a": lambda step: np.zeros(3, np.int64)})


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_checkpoint_in_use_is_not_copied(tmp_path, duplicate):
    """Two of them would go on from one count."""
    opened = checkpoints.Journal(tmp_path / RECORD, create=True)
    with pytest.raises(PrivacyError, match="in use cannot be copied or pickled"):
        duplicate(opened)
    opened.close()
