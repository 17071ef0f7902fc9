"""Hooks into the gate: what is read, and what noise is drawn."""

import numpy as np
import pytest

from skdp import DPPCA
from skdp.privacy.noise.words import make_source
from skdp.testing import fixed_noise, null_release, seeded_entropy

# Tiny fits show little; whether a fit says so is tested where the estimators are.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*(sees nothing of|could not see|a signal needs):UserWarning"
)

X = np.random.default_rng(0).standard_normal((40, 4))


def test_null_release_reads_or_not():
    touched = []

    def answer(step):
        touched.append(step)
        return np.ones(2, np.int64)

    from skdp.privacy import Bound, Bounded, PrivacyBudget, PrivacySession

    for run in (False, True):
        s = PrivacySession(
            PrivacyBudget(1.0, 1e-6), source=make_source(None), adjacency="replace", unit="row"
        )
        with null_release(run=run), fixed_noise(0):
            first = s.release(Bounded(Bound("a", (2,), 1.0), answer), 0.5).value
        assert len(touched) == run
        assert np.all(np.abs(first) > 0)


def test_fixed_noise_and_seeded_entropy():
    def noise():
        return DPPCA(clip_norm=1.0).fit(X).components_

    with fixed_noise(0):
        assert np.array_equal(noise(), noise())
    with seeded_entropy(0):
        a, b = noise(), noise()
    with seeded_entropy(0):
        assert np.array_equal(a, noise())
    assert not np.array_equal(a, b)
