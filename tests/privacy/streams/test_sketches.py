"""Paying for sketches: calibrated together, in parts of the noise, inside ledgers."""

import math

import numpy as np
import pytest

from skdp import PrivacyLedger
from skdp.exceptions import BudgetExceededError, PrivacyError
from skdp.privacy.accounting.losses import SketchLaw, mu_from_epsilon_delta
from skdp.privacy.accounting.receipts import PrivacyReport
from skdp.privacy.gate.bounds import Bound
from skdp.privacy.ledger.routes import Account, charge, settle
from skdp.privacy.streams.continual import paid_stream
from skdp.privacy.streams.sketches import grant_sketches
from skdp.testing import seeded_entropy
from tools.gate import new_session


def session(epsilon=1.0, delta=1e-6):
    return new_session(epsilon, delta, unit="frobenius", observer=Account())


BOUNDS = [
    Bound("right", (5, 20), 1.0, slack=0.0, law=SketchLaw((20,))),
    Bound("left", (40, 6), 1.0, slack=0.0, law=SketchLaw((40,))),
]


def test_a_group_is_calibrated_together_and_spends_the_budget():
    gate = session()
    grants = grant_sketches(gate, BOUNDS, [0.5, 0.5])
    spent = gate.spent()
    assert 0.999 < spent.epsilon <= 1.0 and spent.mu is None
    assert [line.loss.kind for line in gate.ledger] == ["sketch", "sketch"]
    assert grants[0].noise_scale > math.sqrt(2) / mu_from_epsilon_delta(1.0, 1e-6)
    assert "sketch" in PrivacyReport("X", spent, gate.ledger).details()
    with pytest.raises(BudgetExceededError):
        grant_sketches(gate, BOUNDS, [0.5, 0.5])


def test_a_random_sketch_takes_the_whole_budget():
    gate = session()
    gate.grant(Bound("first", (2,), 1.0), 0.5)
    with pytest.raises(PrivacyError, match="whole budget"):
        grant_sketches(gate, BOUNDS, [0.25, 0.25])
    with pytest.raises(PrivacyError, match="whole budget"):
        grant_sketches(session(), BOUNDS, [0.25, 0.25])


def test_sketches_are_refused_where_no_law_is_known():
    with pytest.raises(PrivacyError, match=r"no pure differential privacy.*delta > 0"):
        grant_sketches(session(delta=0.0), BOUNDS, [0.5, 0.5])
    with pytest.raises(PrivacyError, match="paid_sketches"):
        paid_stream(session(), BOUNDS[0], 1.0, 3)


@pytest.mark.parametrize("shares", [[0.6, 0.6], [1.0, 0.0], [1.2, -0.2]])
def test_shares_are_positive_and_within_the_budget(shares):
    for law in (None, SketchLaw((20,))):
        bounds = [Bound(name, (3, 2), 1.0, law=law) for name in "ab"]
        gate = session()
        with pytest.raises(BudgetExceededError, match="is left"):
            grant_sketches(gate, bounds, shares)
        assert gate.ledger == ()


def test_sketches_of_known_norm_are_gaussian():
    gate = session()
    bounds = [Bound(name, (3, 2), 1.0) for name in "ab"]
    grant_sketches(gate, bounds, [0.5, 0.5])
    assert gate.spent().mu == pytest.approx(gate.budget.mu)


def test_shares_of_the_noise_add_up_to_it():
    with seeded_entropy(0):
        whole = grant_sketches(session(), BOUNDS, [0.5, 0.5])[0]
        gate = session()
        grants = grant_sketches(gate, BOUNDS, [0.5, 0.5], parties=4)
        total = sum(grants[0].draw() for _ in range(4)) * grants[0].step
    assert grants[0].noise_scale == pytest.approx(whole.noise_scale, rel=1e-6)
    ratio = np.mean(total**2) / whole.noise_scale**2  # 100 values
    assert abs(ratio - 1) < 6 * math.sqrt(2 / 100)


def spend(number, epsilon):
    with PrivacyLedger(1.0, 1e-6) as ledger:
        for i in range(number):
            gate = session(epsilon)
            charge(gate, str(i))
            grant_sketches(gate, BOUNDS, [0.5, 0.5])
            settle(gate)
    return ledger.spent


def test_ledger_charges_the_law_before_data_are_touched():
    spent = spend(2, 0.4)
    assert 0.4 < spent.epsilon <= 1.0 and spent.mu is None
    with pytest.raises(BudgetExceededError):
        spend(6, 0.45)


def test_a_sketch_that_others_have_too_is_refused_in_a_ledger():
    shared = session(0.4)
    grant_sketches(shared, BOUNDS, [0.5, 0.5], shared=True)
    refused = pytest.raises(
        PrivacyError, match=r"2 fit\(s\) inside this PrivacyLedger were rejected"
    )
    with refused, PrivacyLedger(1.0, 1e-6):
        charged = session(0.4)
        charge(charged, "charged first")
        with pytest.raises(PrivacyError, match="this sketch is shared"):
            grant_sketches(charged, BOUNDS, [0.5, 0.5], shared=True)
        assert charged.ledger == ()
        with pytest.raises(PrivacyError, match="this sketch is shared"):
            charge(shared, "granted before")
