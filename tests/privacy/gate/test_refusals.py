"""Guards that no ordinary call meets: each refuses, and nothing is read or paid."""

import math
import os
import pickle

import numpy as np
import pytest

from skdp import DPPCA, PrivacyLedger
from skdp.exceptions import BudgetExceededError, PrivacyError
from skdp.federated._clients import narrowed
from skdp.federated._messages import Call
from skdp.privacy.accounting.losses import Loss, SketchLaw, SketchMixture
from skdp.privacy.accounting.receipts import LedgerEntry
from skdp.privacy.gate.bounds import Bound, Bounded, PrivacyBudget
from skdp.privacy.gate.session import PrivacySession
from skdp.privacy.noise.words import SystemSource
from skdp.privacy.streams import sketches
from skdp.privacy.streams.continual import paid_stream
from skdp.privacy.streams.sketches import SketchSource, grant_sketches
from skdp.queries.rows import RowQuery

VECTOR = Bound("vector", (4,), 2.0, slack=0.0)


def session(epsilon=1.0, delta=1e-6):
    return PrivacySession(
        PrivacyBudget(epsilon, delta), source=SystemSource(), adjacency="add_remove", unit="row"
    )


@pytest.fixture
def touched():
    """Answers that were read."""
    return []


@pytest.fixture
def bounded(touched):
    def answer(step):
        touched.append(step)
        return np.zeros(4, np.int64)

    return Bounded(VECTOR, answer)


@pytest.fixture
def elsewhere(monkeypatch):
    """Go on as if this were a forked child."""
    here = os.getpid()
    return lambda: monkeypatch.setattr(os, "getpid", lambda: here + 1)


def test_a_fork_neither_opens_nor_pays(bounded, touched, elsewhere):
    gate = session()
    grant = gate.grant(VECTOR, 0.5)
    elsewhere()
    with pytest.raises(PrivacyError, match="another process"):
        grant.open(bounded.answer)
    with pytest.raises(PrivacyError, match="budget of another process"):
        gate.release(bounded, 0.1)
    assert not touched and len(gate.ledger) == 1


@pytest.mark.parametrize(("epsilon", "step"), [(1.0, 0.0), (math.inf, 0.5)])
def test_a_grant_without_noise_reads_nothing_of_a_private_session(bounded, touched, epsilon, step):
    grant = session(epsilon).grant(VECTOR, 0.5)
    grant.step = step
    with pytest.raises(PrivacyError, match="no noise scale"):
        grant.open(bounded.answer)
    assert not touched


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5, math.nan])
def test_no_line_is_written_for_a_share_that_is_not_there(share):
    gate = session()
    line = LedgerEntry("vector", "gaussian", 2.0, 1.0, Loss("gaussian", 0.1))
    with pytest.raises(PrivacyError, match="not left"):
        gate.pay(line, share)
    assert not gate.ledger


def test_a_receipt_never_exceeds_its_budget():
    gate = session()
    gate.pay(LedgerEntry("vector", "gaussian", 2.0, 1.0, Loss("gaussian", 5.0)), 0.1)
    with pytest.raises(PrivacyError, match="more was granted"):
        gate.spent()


def test_sketches_need_a_gaussian_budget_and_a_gate_of_their_own():
    random = Bound("sketch", (4,), 1.0, law=SketchLaw((5,)))
    with pytest.raises(PrivacyError, match="no pure differential privacy"):
        grant_sketches(session(delta=0.0), [VECTOR], [1.0])
    with pytest.raises(PrivacyError, match="paid_sketches"):
        paid_stream(session(), random, 1.0, 3)
    gate = session()
    gate.release(Bounded(VECTOR, lambda step: np.zeros(4, np.int64)), 0.1)
    with pytest.raises((PrivacyError, BudgetExceededError)):
        grant_sketches(gate, [random], [1.0])
    with pytest.raises(PrivacyError, match="whole budget"):
        grant_sketches(gate, [random], [0.5])


def test_sketches_of_the_system_have_no_key():
    with pytest.raises(PrivacyError, match="no key"):
        SketchSource(session(), SystemSource()).secret()
    with pytest.raises(PrivacyError, match="secret sketch cannot be copied or pickled"):
        pickle.dumps(SketchSource(session(), SystemSource()))


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
    with pytest.raises(PrivacyError, match="open the PrivacyLedger first"), ledger.pay_for(DPPCA()):
        pass


def test_a_ledger_is_of_its_process(elsewhere):
    ledger = PrivacyLedger(epsilon=1.0, delta=1e-6)
    elsewhere()
    with pytest.raises(PrivacyError, match="process that made it"), ledger:
        pass


def test_a_client_answers_what_is_listed():
    query = RowQuery(np.zeros((3, 2)), clip_norm=1.0, adjacency="add_remove")
    signatures = {RowQuery: {"gram": (), "clipped": (lambda query, value: value > 0,)}}
    assert narrowed(query, Call("gram", ()), signatures).bound.name == "gram"
    for call in (Call("sums", ()), Call("gram", (1.0,)), Call("clipped", ()), Call("n_rows", ())):
        with pytest.raises(PrivacyError, match="does not answer"):
            narrowed(query, call, signatures)
    with pytest.raises(PrivacyError, match="does not answer"):
        narrowed(object(), Call("gram", ()), signatures)
    with pytest.raises(PrivacyError, match="not sound"):
        narrowed(query, Call("clipped", (-1.0,)), signatures)
