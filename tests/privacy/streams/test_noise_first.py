"""Groups of accumulators: data go into all of them or none, and they are opened once."""

import pickle

import numpy as np
import pytest

from skdp.exceptions import PrivacyError
from skdp.privacy.gate.bounds import Bound
from skdp.privacy.gate.session import Accumulator
from skdp.privacy.streams.sketches import NoisyGroup
from skdp.testing._transcripts import fixed_noise
from tools.gate import new_session

BOUNDS = {"a": Bound("a", (3,), 1.0, slack=0.0), "b": Bound("b", (2, 2), 1.0, slack=0.0)}


def ones(step):
    return np.full((3,), round(1 / step), np.int64)


def twos(step):
    return np.full((2, 2), round(2 / step), np.int64)


def new_group():
    session = new_session()
    return NoisyGroup(session, [session.grant(b, 0.5) for b in BOUNDS.values()], {"rows": 0})


def closed(additions):
    with fixed_noise(0):
        group = new_group()
        for answers in additions:
            group.add(answers, rows=group.notes["rows"] + 1)
        return group, group.close()


def test_the_state_is_the_noise_and_all_data():
    _, noise = closed([])
    group, total = closed([{"a": ones, "b": twos}, {"a": ones}])
    steps = [step for step, _ in group.steps()]
    assert all(np.any(array) for array in noise)
    assert np.array_equal(total[0] - noise[0], 2 * ones(steps[0]))
    assert np.array_equal(total[1] - noise[1], twos(steps[1]))
    assert group.notes["rows"] == 2
    for act in (group.close, lambda: group.add({"a": ones}), lambda: pickle.dumps(group)):
        with pytest.raises(PrivacyError):
            act()


def test_an_answer_that_fails_leaves_all_as_they_were():
    def fails(step):
        raise MemoryError

    _, once = closed([{"a": ones, "b": twos}])
    with fixed_noise(0):
        group = new_group()
        with pytest.raises(PrivacyError, match="memory enough"):
            group.add({"a": ones, "b": fails}, rows=1)
        assert group.notes["rows"] == 0
        group.add({"a": ones, "b": twos}, rows=1)
    for expected, got in zip(once, group.close(), strict=True):
        assert np.array_equal(expected, got)


def test_an_interrupted_addition_is_not_repeated(monkeypatch):
    group = new_group()
    real, calls = Accumulator.take, []

    def take(self, part):
        calls.append(part)
        if len(calls) == 2:
            raise KeyboardInterrupt
        real(self, part)

    monkeypatch.setattr(Accumulator, "take", take)
    with pytest.raises(KeyboardInterrupt):
        group.add({"a": ones, "b": twos})
    with pytest.raises(PrivacyError, match="may be included already"):
        group.add({"a": ones, "b": twos})
    assert len(group.close()) == 2
