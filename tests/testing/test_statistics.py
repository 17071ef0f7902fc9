"""Bounds of the privacy parameter from many runs."""

import math

import numpy as np
import pytest

from skdp.testing import distribution_free_mu, epsilon_lower_bound, gaussian_mu, runs_needed

# Tiny fits show little; whether a fit says so is tested where the estimators are.
pytestmark = pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")


@pytest.mark.deep
@pytest.mark.parametrize("mu", [0.0, 1.0, 3.0])
def test_bounds_hold_on_gaussian_scores(mu):
    """400 audits at confidence .99: at most 4 + 6 sqrt(4) = 16 may exceed the truth."""
    rng = np.random.default_rng(5)
    over = np.zeros(2)
    for _ in range(400):
        low, high = rng.standard_normal(250), rng.standard_normal(250) + mu
        over += gaussian_mu(low, high, 0.01)[1] > mu, distribution_free_mu(low, high, 0.01) > mu
    assert np.all(over <= 16)


@pytest.mark.deep
@pytest.mark.parametrize("law", ["cauchy", "ties", "constant"])
def test_bounds_are_silent_on_equal_laws(law):
    """On equal distributions the truth is 0, whatever the law: nothing may be certified."""
    rng = np.random.default_rng(6)
    over = np.zeros(2)
    for _ in range(300):
        pair = rng.standard_cauchy((2, 300))
        pair = {"cauchy": pair, "ties": np.rint(pair), "constant": np.ones((2, 300))}[law]
        over += distribution_free_mu(*pair, 0.01) > 0, epsilon_lower_bound(*pair, 0.0, 0.01) > 0
    assert np.all(over <= 3 + 6 * 3**0.5)


def test_negative_shift_certifies_nothing():
    rng = np.random.default_rng(7)
    low, high = rng.standard_normal(500) + 5, rng.standard_normal(500)
    assert gaussian_mu(low, high)[1] < 0 and distribution_free_mu(low, high) < 0


def test_epsilon_bound_on_randomised_response():
    rng = np.random.default_rng(8)
    p = math.exp(1.0) / (1 + math.exp(1.0))
    low, high = rng.random(5000) < 1 - p, rng.random(5000) < p
    assert 0.7 < epsilon_lower_bound(low, high, 0.0) <= 1.0


def test_runs_needed():
    assert runs_needed(1.0, 2**0.5) == 279
    assert runs_needed(0.5, 2**0.5) > 850
    assert runs_needed(1.0, 2.0) < 70
