"""Noise in parts: the law of their sum, its cost in delta, and who may open it."""

import math

import numpy as np
import pytest
from scipy.stats import chi2

from skdp.exceptions import BudgetExceededError, PrivacyError
from skdp.federated import AggregationConfig
from skdp.federated.noise_parts import distribute
from skdp.privacy.gate.bounds import MAX_DRAWS, Bound, gaussian_step
from skdp.privacy.noise import integers as noise
from skdp.privacy.noise.words import SeededSource
from tools.gate import new_session as session
from tools.outcomes import refuses


def discrete_gaussian(sigma, width):
    x = np.arange(-width, width + 1)
    weights = np.exp(-(x**2) / (2 * sigma**2))
    return weights / weights.sum()


@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (1.0, 2.0), (0.8, 1.5)])
def test_sum_of_two_discrete_gaussians_is_one_within_the_lemma(a, b):
    """Relative error at most about twice 2.01 exp(-2 pi^2 t^2), and of that order."""
    width = 60
    joint = np.convolve(discrete_gaussian(a, width), discrete_gaussian(b, width), "same")
    wanted = discrete_gaussian(math.hypot(a, b), width)
    middle = slice(width - 5, width + 6)
    error = float(np.abs(joint[middle] / wanted[middle] - 1).max())
    t = a * b / math.hypot(a, b)
    lemma = 2.01 * math.exp(-2 * math.pi**2 * t**2)
    assert 0.05 * lemma < error < 2.1 * lemma


def test_the_lemma_is_negligible_for_parts():
    assert 2 * math.pi**2 * (noise.PART_SIGMA_INT / math.sqrt(2)) ** 2 > 1000 * math.log(2)


@pytest.mark.parametrize(
    ("s", "colluders", "dropouts"), [(3, 1, 0), (24, 4, 4), (10_000, 100, 500)]
)
def test_charge_in_delta_covers_every_client(s, colluders, dropouts):
    parts = AggregationConfig(s, colluders, dropouts)
    rounding = 4.9e-4 / (parts.n_honest**2 * noise.PART_SIGMA_INT**4)
    true = s * (3 * 2.0**-116 + 2 * 2.0**-112 + 2.0**-1000) + rounding
    assert true <= parts.draws * noise.DELTA_PER_DRAW < true + noise.DELTA_PER_DRAW
    assert parts.effective_sigma**2 == pytest.approx(
        parts.n_honest * noise.PART_SIGMA_INT**2 - 1 / 12, rel=1e-14
    )
    assert parts.excess == math.sqrt(s / (s - colluders - dropouts))


def test_shared_draws_count_towards_the_cap():
    parts = AggregationConfig(24)
    width = MAX_DRAWS // parts.draws + 1
    with pytest.raises(BudgetExceededError, match="more noise than a fit may draw"):
        distribute(session(), Bound("wide", (width,), 1.0), 1.0, parts)


def test_step_covers_the_change_exactly():
    """The honest parts alone are the noise of the charge; a finer step would exceed it."""
    parts, gate = AggregationConfig(24, 3, 2), session()
    bound = Bound("product", (50, 4), 2.0, slack=0.0, cross=1.5)
    grant = distribute(gate, bound, 0.5, parts)
    mu = gate.ledger[0].loss.value
    assert mu == gate.budget.mu * math.sqrt(0.5)
    assert 1 - 1e-9 < (bound.l2_steps(grant.step) / parts.effective_sigma / mu) <= 1
    assert grant.step == gaussian_step(bound, mu, parts.effective_sigma)
    assert gate.ledger[0].noise_scale == grant.step * parts.effective_sigma
    assert gate.ledger[0].mechanism == "distributed gaussian"
    assert gate.draws == parts.draws * bound.size


def test_proposed_step():
    parts = AggregationConfig(24, 3, 2)
    bound = Bound("sum", (), 1.0, slack=50.0)  # more steps than a finer one gains below
    right = distribute(session(), bound, 0.5, parts).step
    for step in (right, 2 * right):
        assert distribute(session(), bound, 0.5, parts, step=step).step == step
    for step in (0.999999 * right, 0.0, -1.0, math.nan, math.inf, 5e-324):
        gate = session()
        refuses(PrivacyError, "too fine", distribute, gate, bound, 0.5, parts, step=step)
        assert gate.ledger == ()
    weaker, coarser = session(0.9), bound._replace(min_step=2 * right)
    for gate, asked in ((weaker, bound), (session(), coarser)):  # no budget; no exact integers
        refuses(PrivacyError, "too fine", distribute, gate, asked, 0.5, parts, step=right)


@pytest.mark.parametrize("budget", [(math.inf, 1e-6), (1.0, 0.0), (200.0, 1e-6)])
def test_only_gaussian_noise_is_shared(budget):
    with pytest.raises(PrivacyError, match="distributed noise is Gaussian"):
        distribute(session(*budget, split=True), Bound("sum", (), 1.0), 1.0, AggregationConfig(3))


def test_a_grant_of_parts_contributes_once_and_is_never_opened_alone():
    grant = distribute(session(), Bound("sum", (2,), 1.0), 0.5, AggregationConfig(3))
    refuses(PrivacyError, "secure sum", grant.open, lambda step: np.zeros(2, np.int64))
    grant.noised(lambda step: np.zeros(2, np.int64))
    for again in (lambda: grant.noised(lambda step: 1 / 0), lambda: grant.close(None, 3)):
        refuses(PrivacyError, "already released", again)


def test_parts_have_their_law():
    """Chi-square of one client's 4000 numbers, and of the sum of 20 clients', at 6 sigma."""
    parts, size, total = AggregationConfig(20, 1, 0), 4000, np.zeros(4000)
    limits = chi2.ppf([1e-9, 1 - 1e-9], size)
    for client in range(20):
        gate = session(source=SeededSource(client))
        grant = distribute(gate, Bound("sum", (size,), 1.0), 1.0, parts)
        part = grant.noised(lambda step: np.zeros(size, np.int64)).astype(float)
        assert limits[0] < float(np.sum((part / noise.PART_SIGMA_INT) ** 2)) < limits[1]
        total += part
    server = distribute(session(), Bound("sum", (size,), 1.0), 1.0, parts)
    answer = server.close(total.astype(np.int64), 20)
    assert limits[0] < float(np.sum((answer.value / answer.noise_scale) ** 2)) < limits[1]


def test_the_rest_can_be_given_up():
    gate = session()
    distribute(gate, Bound("sum", (), 1.0), 0.25, AggregationConfig(3))
    gate.charge_unused()
    gate.charge_unused()
    assert len(gate.ledger) == 2
    assert gate.spent().epsilon == 1.0
    assert gate.spent().mu == pytest.approx(gate.budget.mu, rel=1e-12)


def test_huge_changes_are_refused():
    """A change of 2**33 steps could not be computed in exact integers."""
    with pytest.raises(PrivacyError, match="exact integers"):
        distribute(session(60.0), Bound("sum", (), 1.0), 1.0, AggregationConfig(10**7))
