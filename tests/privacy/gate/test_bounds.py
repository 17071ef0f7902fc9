"""Steps: the claimed change in steps is what the budget allows, and no more."""

import pytest

from skdp.privacy.gate.bounds import Bound, gaussian_step, laplace_step
from skdp.privacy.noise import integers as noise
from tools.gate import VECTOR


@pytest.mark.parametrize("mu", [1e-6, 0.03, 0.2367, 5.0])
@pytest.mark.parametrize(("l2", "cross", "slack"), [(1.0, 0, 0), (3e9, 7.0, 20.0), (1e-9, 1e-4, 0)])
def test_the_step_makes_the_claimed_change_equal_mu_sigmas(mu, l2, cross, slack):
    bound = Bound("x", (4,), l2, cross=cross, slack=slack)
    step = gaussian_step(bound, mu)
    assert bound.l2_steps(step) <= mu * noise.EFFECTIVE_SIGMA
    assert bound.l2_steps(step) == pytest.approx(mu * noise.EFFECTIVE_SIGMA, rel=1e-9)


def test_laplace_step_makes_the_claimed_change_equal_epsilon_scales():
    step = laplace_step(VECTOR, 0.3)
    assert VECTOR.l1_steps(step) == pytest.approx(0.3 * noise.LAPLACE_SCALE, rel=1e-9)
    assert VECTOR.l1_steps(step) <= 0.3 * noise.LAPLACE_SCALE


def test_rounding_beyond_the_budget_is_a_clear_error():
    with pytest.raises(ValueError, match="larger 'epsilon'"):
        gaussian_step(Bound("x", (10**6,), 1.0), 1e-6)
    with pytest.raises(ValueError, match="larger 'epsilon'"):
        laplace_step(Bound("x", (10**9,), 1.0, l1=1.0), 1e-3)
    with pytest.raises(ValueError, match="delta > 0"):
        laplace_step(Bound("x", (3,), 1.0), 1.0)


@pytest.mark.parametrize("cross", [0.7, 1e3])
def test_the_step_does_not_cancel(cross):
    bound = Bound("x", (), 1e-24, cross=cross, slack=0.0)
    assert bound.l2_steps(gaussian_step(bound, 1.0)) <= noise.EFFECTIVE_SIGMA
