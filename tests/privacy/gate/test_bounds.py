"""Steps: the claimed change in steps is what the budget allows, and no more."""

import itertools
import math

import numpy as np
import pytest

from skdp.privacy.accounting.losses import mu_from_epsilon_delta, mu_with_pure
from skdp.privacy.gate.bounds import MAX_DRAWS, Bound, PrivacyBudget, gaussian_step, laplace_step
from skdp.privacy.noise import integers as noise
from tools.gate import VECTOR, new_session
from tools.outcomes import refuses


@pytest.mark.parametrize("mu", [1e-6, 0.03, 0.2367, 5.0])
@pytest.mark.parametrize(("l2", "cross", "slack"), [(1.0, 0, 0), (3e9, 7.0, 20.0), (1e-9, 1e-4, 0)])
def test_the_step_makes_the_claimed_change_equal_mu_sigmas(mu, l2, cross, slack):
    bound = Bound("x", (4,), l2, cross=cross, slack=slack)
    step = gaussian_step(bound, mu)
    assert bound.l2_steps(step) <= mu * noise.EFFECTIVE_SIGMA
    assert bound.l2_steps(step) == pytest.approx(mu * noise.EFFECTIVE_SIGMA, rel=1e-9)
    assert gaussian_step(bound._replace(min_step=2 * step), mu) == 2 * step  # integers are exact


def test_laplace_step_makes_the_claimed_change_equal_epsilon_scales():
    step = laplace_step(VECTOR, 0.3)
    loss = VECTOR.l1_steps(step) / (0.3 * noise.LAPLACE_SCALE)
    assert 1 - 1e-9 <= loss <= 1 - 7e-13  # so sums of epsilons may be rounded
    assert laplace_step(VECTOR._replace(min_step=2 * step), 0.3) == 2 * step


def test_rounding_beyond_the_budget_is_a_clear_error():
    refuses(ValueError, "larger 'epsilon'", gaussian_step, Bound("x", (10**6,), 1.0), 1e-6)
    refuses(ValueError, "larger 'epsilon'", laplace_step, Bound("x", (10**9,), 1.0, l1=1.0), 1e-3)
    refuses(ValueError, "delta > 0", laplace_step, Bound("x", (3,), 1.0), 1.0)


@pytest.mark.parametrize("cross", [0.7, 1e3])
def test_the_step_does_not_cancel(cross):
    bound = Bound("x", (), 1e-24, cross=cross, slack=0.0)
    assert bound.l2_steps(gaussian_step(bound, 1.0)) <= noise.EFFECTIVE_SIGMA


def test_rounding_of_an_answer_is_in_its_change():
    """Two answers on the two sides of a half: each number moves by a whole step."""
    bound = Bound("x", (3, 3), 1e-9, l1=1e-9)
    moved = np.subtract(*(np.rint(np.full(bound.shape, 0.5 + d)) for d in (1e-12, -1e-12)))
    assert np.linalg.norm(moved) == 3.0 <= bound.l2_steps(1.0)
    assert np.abs(moved).sum() == 9.0 <= bound.l1_steps(1.0)


# -- budgets: what is refused, and what the sampler of the noise takes off them --------------------


def test_the_sampler_is_charged_before_calibrating():
    budget = PrivacyBudget(1.0, 1e-6)
    assert 0 < budget.sampler_delta < 1e-18
    assert budget.mu <= mu_from_epsilon_delta(1.0, 1e-6 - budget.sampler_delta)
    assert PrivacyBudget(1.0, 3e-22).mu < mu_from_epsilon_delta(1.0, 3e-22)
    for budget in (PrivacyBudget(1.0, 3e-22), PrivacyBudget(100.0, 1e-6)):
        epsilon, delta = budget.calibration
        assert delta + noise.sampler_delta(epsilon, MAX_DRAWS) == pytest.approx(budget.delta, abs=0)


def test_huge_epsilon_is_no_error():
    gate = new_session(100.0)
    assert math.isfinite(gate.budget.mu)
    assert gate.budget.sampler_delta <= 0.5e-6 * (1 + 1e-9)
    gate.grant(VECTOR, 1.0)
    assert gate.spent().epsilon < 50


def test_a_huge_epsilon_is_split_into_copies():
    """Each copy has its part of epsilon and delta, with the sampler's error; mu grows with them."""
    budgets = [PrivacyBudget(e, 1e-6, split=True) for e in (1, 37, 38, 50, 64, 100, 1000, 1e4)]
    assert [b.copies for b in budgets[:2]] == [1, 1] and budgets[-2].copies > 20
    assert all(a.mu <= b.mu for a, b in itertools.pairwise(budgets))
    for budget in budgets:
        r = budget.copies
        copy = PrivacyBudget(budget.epsilon / r, 1e-6 / r)
        assert budget.mu == pytest.approx(math.sqrt(r) * copy.mu, rel=1e-12)
        assert budget.sampler_delta == pytest.approx(r * copy.sampler_delta, rel=1e-9, abs=0)
        assert budget.mu <= mu_from_epsilon_delta(budget.epsilon, 1e-6)
    assert PrivacyBudget(1000.0, 1e-6).copies == 1  # nobody asked for it
    pure = [PrivacyBudget(e, 1e-6, 1.0, split=split) for e in (30.0, 1000.0) for split in (0, 1)]
    assert pure[0].mu == pure[1].mu  # a pure part is paid once; what is left is split
    assert pure[3].mu == PrivacyBudget(999.0, 1e-6, split=True).mu > 4 * pure[2].mu


@pytest.mark.parametrize("delta", [3e-22, 1e-21, 1e-20, 1e-18])
def test_copies_have_a_delta_that_covers_the_sampler(delta):
    """A tiny delta is split as far as each part of it goes, and mu never falls with epsilon."""
    budgets = [PrivacyBudget(e, delta, split=True) for e in (1, 3, 10, 40, 100, 1e6)]
    assert all(a.mu <= b.mu for a, b in itertools.pairwise(budgets))
    for budget in budgets:
        assert budget.mu >= PrivacyBudget(budget.epsilon, delta).mu
        assert budget.sampler_delta < delta
        mixed = PrivacyBudget(budget.epsilon, delta, 0.4 * budget.epsilon, split=True)
        pure, copies = mixed.pure_epsilon, mixed.copies
        assert pure == 0.4 * budget.epsilon  # it was spent, and what is left holds beside it
        each = PrivacyBudget((mixed.epsilon - pure) / copies, delta / copies)
        if mixed.mu != math.sqrt(copies) * each.mu:  # or their losses are averaged
            assert mixed.mu == mu_with_pure(*PrivacyBudget(mixed.epsilon, delta).calibration, pure)


BAD = {
    "epsilon": (math.nan, 0, -1, -math.inf, True, "1", None, 1j),
    "delta": (math.nan, 1.0, -1e-9, True, "0", None, math.inf, 1e-25),
    "pure_epsilon": (math.nan, -0.1, 1.0, 2.0, "0", None),
}


@pytest.mark.parametrize(("name", "value"), [(k, v) for k, each in BAD.items() for v in each])
def test_bad_budgets(name, value):
    refuses(ValueError, name, PrivacyBudget, **{"epsilon": 1.0, "delta": 1e-6} | {name: value})


def test_limits():
    exact, pure = PrivacyBudget(math.inf, 0.0), PrivacyBudget(2, 0)
    assert exact.exact and not exact.pure and exact.mu == exact.pure_epsilon == math.inf
    assert pure.pure and not pure.exact and (pure.mu, pure.pure_epsilon) == (0.0, 2.0)
