"""Guards that no ordinary call meets: each refuses, and nothing is read or paid."""

import math
import os
import pickle

import pytest

from skdp import DPPCA, PrivacyLedger
from skdp.exceptions import PrivacyError
from skdp.privacy.accounting.losses import Loss, SketchMixture
from skdp.privacy.noise.words import SystemSource
from skdp.privacy.streams import sketches
from skdp.privacy.streams.sketches import SketchSource
from tools.gate import VECTOR, new_session


@pytest.mark.parametrize(("epsilon", "step"), [(1.0, 0.0), (math.inf, 0.5)])
def test_a_grant_without_noise_reads_nothing_of_a_private_session(epsilon, step):
    touched, grant = [], new_session(epsilon).grant(VECTOR, 0.5)
    grant.step = step
    with pytest.raises(PrivacyError, match="no noise scale"):
        grant.open(touched.append)
    assert not touched


def test_sketches_of_the_system_have_no_key():
    with pytest.raises(PrivacyError, match="no key"):
        SketchSource(new_session(), SystemSource()).secret()
    with pytest.raises(PrivacyError, match="secret sketch cannot be copied or pickled"):
        pickle.dumps(SketchSource(new_session(), SystemSource()))


def mixture(*degrees):
    return (Loss("sketch", SketchMixture(((0.5, degrees),))),)


def test_merged_receipts_are_of_one_kind():
    gaussian = (Loss("gaussian", 0.5),)
    for other in (mixture(5), (Loss("pure", 0.5),)):
        with pytest.raises(PrivacyError):
            sketches._largest([gaussian, other])
    with pytest.raises(PrivacyError):
        sketches._largest([mixture(5), mixture(6, 6)])
    assert sketches._largest([gaussian, (Loss("gaussian", 0.7),)]) == (Loss("gaussian", 0.7),)


def test_a_ledger_pays_for_nothing_before_it_is_open():
    ledger = PrivacyLedger(epsilon=1.0, delta=1e-6)
    with pytest.raises(PrivacyError, match="open the PrivacyLedger first"), ledger.charge(DPPCA()):
        pass


def test_a_ledger_is_of_its_process(monkeypatch):
    ledger, here = PrivacyLedger(epsilon=1.0, delta=1e-6), os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: here + 1)  # as if this were a forked child
    with pytest.raises(PrivacyError, match="process that made it"), ledger:
        pass
