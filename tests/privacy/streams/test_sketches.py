"""Charges of sketches: calibrated together, in parts of the noise, inside ledgers."""

import math
import pickle

import mpmath as mp
import numpy as np
import pytest
from scipy.stats import norm

from skdp import PrivacyLedger
from skdp.exceptions import BudgetExceededError, PrivacyError
from skdp.privacy.accounting.losses import SketchLaw, mu_from_epsilon_delta
from skdp.privacy.accounting.receipts import PrivacyReport
from skdp.privacy.gate.bounds import Bound
from skdp.privacy.ledger.routes import Account, charge, settle
from skdp.privacy.noise.integers import DELTA_PER_DRAW, PART_DELTA_PER_DRAW
from skdp.privacy.streams import sketches
from skdp.privacy.streams.continual import paid_stream
from skdp.privacy.streams.sketches import COARSE, FINE, NoisyGroup, gaussian_scale, grant_sketches
from skdp.testing import seeded_entropy
from skdp.testing._transcripts import fixed_noise
from tools.gate import new_session
from tools.outcomes import refuses


def session(epsilon=1.0, delta=1e-6):
    return new_session(epsilon, delta, unit="frobenius", observer=Account())


BOUNDS = [
    Bound("right", (5, 20), 1.0, slack=0.0, law=SketchLaw((20,))),
    Bound("left", (40, 6), 1.0, slack=0.0, law=SketchLaw((40,))),
]


@pytest.mark.parametrize(("epsilon", "last"), [(1.0, (40,)), (1.0, ()), (30.0, (40, 60))])
def test_a_group_is_calibrated_together_and_spends_the_budget(epsilon, last):
    gate = session(epsilon)
    bounds = [BOUNDS[0], BOUNDS[1]._replace(law=SketchLaw(last) if last else None)]
    grants = grant_sketches(gate, bounds, [0.5, 0.5])
    spent = gate.spent()
    assert 0.999 < spent.epsilon / epsilon <= 1.0 and spent.mu is None
    assert [degrees for _, degrees in spent.losses[0].value.terms] == [(20,), last]
    assert gate.draws == sum(bound.size for bound in BOUNDS)
    assert [line.loss.kind for line in gate.ledger] == ["sketch", "sketch"]
    assert grants[0].noise_scale > math.sqrt(2) / mu_from_epsilon_delta(epsilon, 1e-6)
    assert "sketch" in PrivacyReport("X", spent, gate.ledger).details()
    refuses(BudgetExceededError, None, grant_sketches, gate, bounds, [0.5, 0.5])


def test_a_random_sketch_takes_the_whole_budget():
    gate = session()
    gate.grant(Bound("first", (2,), 1.0), 0.5)
    refuses(PrivacyError, "whole budget", grant_sketches, gate, BOUNDS, [0.25, 0.25])
    refuses(PrivacyError, "whole budget", grant_sketches, session(), BOUNDS, [0.25, 0.25])
    choosing = new_session(1.0, pure=0.5)  # a choice would add its part of epsilon
    refuses(PrivacyError, "whole budget", grant_sketches, choosing, BOUNDS, [0.5, 0.5])


def test_sketches_are_refused_where_no_law_is_known():
    with pytest.raises(PrivacyError, match=r"no pure differential privacy.*delta > 0"):
        grant_sketches(session(delta=0.0), BOUNDS, [0.5, 0.5])
    for bounds in (BOUNDS, [Bound("a", (), 1.0)] * 2):
        copies = new_session(200.0, split=True)
        refuses(PrivacyError, "not split into copies", grant_sketches, copies, bounds, [0.5, 0.5])
    refuses(PrivacyError, "paid_sketches", paid_stream, session(), BOUNDS[0], 1.0, 3)


@pytest.mark.parametrize("shares", [[0.6, 0.6], [1.0, 0.0], [1.2, -0.2]])
def test_shares_are_positive_and_within_the_budget(shares):
    for law in (None, SketchLaw((20,))):
        bounds = [Bound(name, (3, 2), 1.0, law=law) for name in "ab"]
        gate = session()
        refuses(BudgetExceededError, "is left", grant_sketches, gate, bounds, shares)
        assert gate.ledger == ()


def test_a_budget_too_small_for_the_second_sketch_pays_for_none():
    gate, rough = session(), Bound("rough", (3, 2), 1.0, slack=1e15)
    refuses(ValueError, "'rough'", grant_sketches, gate, [BOUNDS[0], rough], [0.5, 0.5])
    assert gate.ledger == () and gate.draws == 0


def test_sketches_of_known_norm_are_gaussian():
    gate = session()
    bounds = [Bound(name, (3, 2), 1.0) for name in "ab"]
    grant_sketches(gate, bounds, [0.5, 0.5])
    assert gate.spent().mu == pytest.approx(gate.budget.mu)


def test_shares_of_the_noise_add_up_to_it():
    with seeded_entropy(0):
        whole = grant_sketches(session(), BOUNDS, [0.5, 0.5])[0]
        gate = session()
        grants = grant_sketches(gate, BOUNDS, [0.5, 0.5], parties=16)
        total = sum(grants[0].draw() for _ in range(16)) * grants[0].step
    assert grants[0].noise_scale == pytest.approx(whole.noise_scale, rel=1e-6)
    ratio = np.mean(total**2) / whole.noise_scale**2  # 100 values
    assert abs(ratio - 1) < 6 * math.sqrt(2 / 100)
    error = 16 * sum(bound.size for bound in BOUNDS) * PART_DELTA_PER_DRAW  # of all of them
    assert gate.draws * DELTA_PER_DRAW >= error


def test_each_state_that_is_opened_adds_the_error_of_its_sampler():
    gate = session(30.0)  # where that can be seen
    grant_sketches(gate, [Bound("a", (3,), 1.0)], [1.0])
    state = [sketches.receipt_state(gate.spent(), gate.ledger)]
    one, two = (sketches.merged_receipt([[state] * n], clipped_rows=False)[0] for n in (1, 2))
    assert one.epsilon == 30.0 and two.epsilon > 30.0 * (1 + 1e-9)
    assert two.epsilon == pytest.approx(two.epsilon_at(1e-6), rel=1e-12)
    state += [state[0] | {"seeded": True, "delta": 1e-5}]
    merged = sketches.merged_receipt([[state]], clipped_rows=False)[0]
    assert merged.seeded and merged.delta == 1e-5


def spend(number, epsilon):
    with PrivacyLedger(1.0, 1e-6) as outer, PrivacyLedger(1.0, 1e-6) as ledger:
        for i in range(number):
            gate = session(epsilon)
            charge(gate, str(i))
            grant_sketches(gate, BOUNDS, [0.5, 0.5])
            assert ledger.entries == outer.entries
            settle(gate)
    return ledger.spent


def test_ledger_charges_the_law_before_data_are_touched():
    spent = spend(2, 0.4)
    assert 0.4 < spent.epsilon <= 1.0 and spent.mu is None
    refuses(BudgetExceededError, None, spend, 6, 0.45)


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
        refuses(PrivacyError, "this sketch is shared", charge, shared, "granted before")


# -- entries of random sketches, as they are drawn -------------------------------------------------


def coarse_law(divisor):
    """Exact probabilities of |round(K / divisor)|, K a discrete Gaussian of deviation 300."""
    weights = [mp.e ** (-((mp.mpf(k) / 300) ** 2) / 2) for k in range(4000)]
    total = weights[0] + 2 * sum(weights[1:])
    law = [mp.mpf(0)] * (4000 // divisor + 2)
    for k, w in enumerate(weights):
        law[(2 * k + divisor) // (2 * divisor)] += (w if k == 0 else 2 * w) / total
    return law


def least_margin(divisor, scale):
    """Smallest relative gap of the stop-loss functions over all thresholds.

    That of the integers is linear in each cell, that of the normal variable convex with slope
    -2 Phi(-a/s): the gap is smallest where the slopes agree, or at an end.
    """
    law, least = coarse_law(divisor), mp.inf
    above = excess = mp.mpf(0)
    for i in range(len(law) - 2, -1, -1):
        above += law[i + 1]
        excess += above
        turn = min(max(-scale * mp.mpf(math.sqrt(2)) * mp.erfinv(above - 1), i), i + 1)
        for a in (mp.mpf(i), mp.mpf(i + 1), turn):
            normal = 2 * (scale * mp.npdf(a / scale) - a * mp.ncdf(-a / scale))
            if normal > mp.mpf(10) ** -40:  # beyond the cut of the table
                least = min(least, (normal - (excess - (a - i) * above)) / normal)
    return least


def test_floats_show_that_coarse_entries_are_smaller_in_convex_order():
    """Coarse entries have more room at each threshold than the error of floats."""
    drawn, a = np.arange(-4000, 4001), np.linspace(0.0, 36.0, 200)
    chances = norm.pdf(drawn / 300) / norm.pdf(drawn / 300).sum()
    excess = np.maximum(np.abs(np.rint(drawn / COARSE)) - a[:, None], 0.0) @ chances
    scales = np.array([gaussian_scale(COARSE), math.hypot(300 / COARSE, math.sqrt(0.1))])
    at = a / scales[:, None]
    normal = 2 * scales[:, None] * (norm.pdf(at) - at * norm.sf(at))
    right, small = ((normal - excess) / normal).min(axis=1)
    assert right > 1e-4
    assert small < -0.1  # the test can fail


@pytest.mark.deep
@pytest.mark.parametrize("divisor", [FINE, COARSE])
def test_integer_entries_are_smaller_in_convex_order(divisor):
    with mp.workdps(60):
        assert least_margin(divisor, mp.mpf(gaussian_scale(divisor))) > 0
        small = mp.sqrt((mp.mpf(300) / divisor) ** 2 + mp.mpf("0.1"))
        assert least_margin(divisor, small) < 0  # the test can fail


# -- groups of accumulators: all or none receive data, and they are opened once --------------------


GROUPED = {"a": Bound("a", (3,), 1.0, slack=0.0), "b": Bound("b", (2, 2), 1.0, slack=0.0)}


def ones(step):
    return np.full((3,), round(1 / step), np.int64)


def twos(step):
    return np.full((2, 2), round(2 / step), np.int64)


def new_group():
    session = new_session()
    return NoisyGroup(session, [session.grant(b, 0.5) for b in GROUPED.values()], {"rows": 0})


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
        refuses(PrivacyError, None, act)


def test_an_answer_that_fails_leaves_all_as_they_were():
    def fails(step):
        raise MemoryError

    _, once = closed([{"a": ones, "b": twos}])
    with fixed_noise(0):
        group = new_group()
        refuses(PrivacyError, "enough memory", group.add, {"a": ones, "b": fails}, rows=1)
        assert group.notes["rows"] == 0
        group.add({"a": ones, "b": twos}, rows=1)
    for expected, got in zip(once, group.close(), strict=True):
        assert np.array_equal(expected, got)
