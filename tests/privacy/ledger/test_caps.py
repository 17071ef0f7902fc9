"""Budgets in mu and rho, and receipts in all three measures, at any delta."""

import math

import numpy as np
import pytest
from scipy.special import logsumexp

from skdp import BudgetExceededError, PrivacyError, PrivacyLedger
from skdp.privacy.accounting import losses as accounting
from skdp.privacy.accounting.losses import ORDERS, Loss, SketchMixture, renyi_divergence
from skdp.privacy.accounting.receipts import PrivacySpent, joint_epsilon, rho_of
from skdp.privacy.gate.bounds import SAMPLER_DISTANCE, PrivacyBudget
from skdp.privacy.ledger.filters import dominating_mu
from tools.ledgers import X, fit_of, forgiving, mu_of, pca
from tools.outcomes import refuses

# Few rows, or noise alone: warnings of fits are not the subject here.
pytestmark = pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")

DELTAS = (1e-9, 1e-6, 1e-3)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("budget", "measure"),
    [({"mu": 0.5}, lambda mu: mu / 0.5), ({"rho": 0.125}, lambda mu: mu**2 / 2 / 0.125)],
)
def test_gaussian_fits_take_exactly_what_is_there(budget, measure):
    with forgiving(**budget) as ledger:
        pca(0.5).fit(X)
        left = ledger.remaining()
        pca(left).fit(X)
        assert ledger.remaining() < 1e-4
        refuses(BudgetExceededError, "left, both at", pca(1e-3).fit, X)
    assert measure(ledger.spent.mu) == pytest.approx(1.0, rel=1e-6)
    assert repr(ledger) == f"PrivacyLedger({next(iter(budget))}={next(iter(budget.values()))})"


def test_remaining_is_for_a_delta():
    ledger = PrivacyLedger(mu=0.5)
    for delta in DELTAS:
        assert PrivacyBudget(ledger.remaining(delta), delta).mu == pytest.approx(0.5, rel=1e-9)
    pure = ledger.remaining(0)
    assert dominating_mu(Loss("pure", pure)) == pytest.approx(0.5, rel=1e-9)
    assert PrivacyLedger(rho=0.125).remaining(0) == pytest.approx(0.5, rel=1e-9)


def test_pure_and_bounded_range_fits():
    losses = (Loss("pure", 0.2), Loss("range", 0.6), Loss("gaussian", 0.1))
    mu = math.hypot(*map(dominating_mu, losses)) * math.sqrt(2)
    rho = 2 * (0.2**2 / 2 + 0.6**2 / 8 + 0.1**2 / 2)
    for factor, fits in ((1 - 1e-9, False), (1 + 1e-9, True)):
        both = PrivacyLedger(mu=mu * factor), PrivacyLedger(rho=rho * factor)
        for ledger in both:
            ledger._book.reserve(fit_of(*losses))
            assert ledger._book.balance().affords(fit_of(*losses)) is fits


@pytest.mark.parametrize("budget", [{"mu": 1.0}, {"rho": 1.0}])
@pytest.mark.parametrize(
    "loss", [Loss("delta", 1e-9), Loss("sketch", SketchMixture(((0.1, (40,)),), 0))]
)
def test_losses_that_have_no_mu_are_refused(budget, loss):
    ledger = PrivacyLedger(**budget)
    for before in range(2):  # they come first, or after a fit
        refuses(PrivacyError, "is not defined", ledger._book.reserve, fit_of(loss))
        assert len(ledger.entries) == before
        ledger._book.reserve(fit_of(Loss("gaussian", 0.1)))


def test_bad_budgets():
    assert PrivacyLedger(epsilon=1).delta == PrivacyLedger(1.0, 1e-6).delta == 1e-6
    for budget in ({}, {"delta": 1e-6}, {"epsilon": 1, "mu": 1}, {"mu": 1, "rho": 1}):
        refuses(ValueError, "PrivacyLedger needs one budget", PrivacyLedger, **budget)


def test_a_file_keeps_the_measure(tmp_path):
    path = tmp_path / "a.ledger"
    with PrivacyLedger(rho=0.2, path=path):
        pca(0.5).fit(X)
    again = PrivacyLedger.open(path)
    assert (again.rho, again.mu, again.epsilon, again.delta) == (0.2, None, None, None)
    assert again.spent.rho == pytest.approx(mu_of(0.5) ** 2 / 2)
    assert "Budget rho=0.2" in again.report()
    refuses(ValueError, "other terms", PrivacyLedger, mu=0.2, path=path)


# -- receipts -------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("budget", [{"epsilon": 3, "delta": 1e-5}, {"mu": 1.0}, {"rho": 1.0}])
def test_epsilon_at_any_delta(budget):
    with PrivacyLedger(**budget) as ledger:
        fits = [pca(epsilon).fit(X) for epsilon in (0.5, 1.0)]
    mu = math.hypot(*(fitted.privacy_spent_.mu for fitted in fits))
    assert ledger.spent.rho == pytest.approx(mu**2 / 2)
    for delta in DELTAS:
        exact = accounting.epsilon_from_mu_delta(mu, delta)
        for epsilon in (ledger.spent_at(delta).epsilon, ledger.spent.epsilon_at(delta)):
            assert exact <= epsilon <= exact * (1 + 1e-9)
    for delta in (0, 2 * SAMPLER_DISTANCE):  # which the samplers of both take
        assert ledger.spent_at(delta).epsilon == math.inf
    assert f"({ledger.spent_at(1e-9).epsilon:.4g}, 1e-09)" in ledger.report(1e-9)
    refuses(ValueError, "delta", ledger.spent_at, -1.0)


def test_the_receipt_of_a_fit_in_three_measures():
    spent = pca(0.5).fit(X).privacy_spent_
    assert spent.rho == spent.mu**2 / 2
    assert spent.epsilon_at(1e-6) == pytest.approx(0.5, rel=1e-9)
    assert spent.epsilon_at(1e-9) > 0.5 > spent.epsilon_at(1e-3)
    assert spent.sampler_tv_distance == SAMPLER_DISTANCE
    # The sampler alone takes that much.
    assert spent.epsilon_at(spent.sampler_tv_distance) == math.inf
    lines = str(pca(0.5).fit(X).privacy_report()).splitlines()
    assert [line.split()[1] for line in lines if line[:3] == "rho"] == [f"{spent.rho:.6g}"]


def test_the_sampler_is_paid_at_the_epsilon_that_it_leads_to():
    for mu, delta, distance in ((1.0, 1e-6, 1e-9), (5.0, 1e-12, 1e-36)):
        found = joint_epsilon(
            lambda left, mu=mu: accounting.epsilon_from_mu_delta(mu, left), delta, distance
        )
        left = delta - (1 + math.exp(found)) * distance
        assert found > accounting.epsilon_from_mu_delta(mu, delta)
        assert accounting.epsilon_from_mu_delta(mu, left) <= found * (1 + 1e-12)
    pure = PrivacySpent(1.0, 0.0, (Loss("pure", 1.0),), "add_remove", "row", False)
    assert (pure.epsilon_at(0), pure.rho, pure.mu) == (1.0, 0.5, None)


def renyi(p, q, alpha):
    return float(logsumexp(alpha * np.log(p) + (1 - alpha) * np.log(q))) / (alpha - 1)


def test_rho_covers_every_order_and_is_attained():
    """Randomised response is the worst pure mechanism, exponential ones have two ratios."""
    ratios = []
    for i, alpha in list(enumerate(ORDERS))[::57]:
        for size in (0.001, 0.1, 1.0, 4.0):
            top = 1 / (1 + math.exp(-size))
            p = np.array([top, 1 - top])
            loss = [Loss("pure", size)]
            pure = min(rho_of(loss) * alpha, renyi_divergence(loss)[i])
            ratios.append(renyi(p, p[::-1], alpha) / pure)
            for share in (0.1, 0.5, 0.9):  # ratios e^(size share) and e^(size (share - 1))
                up, down = math.exp(size * share), math.exp(size * (share - 1))
                weight = (1 - down) / (up - down)
                q = np.array([weight, 1 - weight])
                p = q * [up, down]
                ranged = rho_of([Loss("range", size)]) * alpha
                ratios.append(renyi(p, q, alpha) / ranged)
    assert max(ratios) <= 1 + 1e-6
    assert max(ratios[:7]) >= 0.99
    assert rho_of([Loss("delta", 1e-9)]) is None
