"""Hooks into the gate: what is read, what noise is drawn, and what is handed out again."""

import numpy as np
import pytest

from skdp import DPPCA, testing
from skdp.privacy import Bound, Bounded
from skdp.privacy.gate import session as gate
from tools.gate import new_session

# Tiny fits show little; whether a fit says so is tested where the estimators are.
pytestmark = pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")


X = np.random.default_rng(0).standard_normal((60, 5))


def test_record_is_complete():
    with testing.record_transcript() as transcript:
        pca = DPPCA(clip_norm="auto").fit(X)
    assert [o.bound.name for o in transcript] == [line.name for line in pca.releases_]
    assert [o.noise_scale for o in transcript] == [line.noise_scale for line in pca.releases_]
    assert not transcript.faults
    for opening in transcript:
        assert opening.n_reads == 1
        assert opening.exact.dtype == np.int64
        assert np.all(np.abs(opening.residual()) < 8)


def test_record_changes_nothing():
    original = gate.PrivacySession._read, gate.Grant.finish, gate.Grant.draw
    with testing.fixed_noise(3):
        plain = DPPCA(clip_norm=1.0).fit(X)
        with testing.record_transcript():
            recorded = DPPCA(clip_norm=1.0).fit(X)
    assert np.array_equal(plain.components_, recorded.components_)
    with pytest.raises(ZeroDivisionError), testing.record_transcript():
        raise ZeroDivisionError
    assert original == (gate.PrivacySession._read, gate.Grant.finish, gate.Grant.draw)


def test_replay_hands_out_the_first_answers():
    with testing.record_transcript() as first:
        a = DPPCA(clip_norm=1.0).fit(X)
    with testing.replay_answers(first) as second:
        b = DPPCA(clip_norm=1.0).fit(0.1 * X)
    assert np.array_equal(a.components_, b.components_)
    assert len(first) == len(second)
    assert not np.array_equal(first.openings[-1].exact, second.openings[-1].exact)


def test_a_start_of_another_size_on_a_neighbour_is_seen():
    with testing.record_transcript() as first:
        new_session().random_signs((100, 2))
    with testing.replay_answers(first), pytest.raises(AssertionError, match="random start"):
        new_session().random_signs((900, 2))


def test_null_release_reads_or_not():
    touched = []

    def answer(step):
        touched.append(step)
        return np.ones(2, np.int64)

    for run in (False, True):
        s = new_session()
        with testing.null_release(run=run), testing.fixed_noise(0):
            first = s.release(Bounded(Bound("a", (2,), 1.0), answer), 0.5).value
        assert len(touched) == run
        assert np.all(np.abs(first) > 0)


def test_fixed_noise_and_seeded_entropy():
    def noise():
        return DPPCA(clip_norm=1.0).fit(X).components_

    with testing.fixed_noise(0):
        assert np.array_equal(noise(), noise())
    with testing.seeded_entropy(0):
        a, b = noise(), noise()
    with testing.seeded_entropy(0):
        assert np.array_equal(a, noise())
    assert not np.array_equal(a, b)
