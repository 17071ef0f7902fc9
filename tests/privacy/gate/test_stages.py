"""Budgets in two stages: whatever the first answers decide, both ways cost what was asked for."""

import itertools
import math

import numpy as np
import pytest
from scipy.special import ndtr

from skdp.exceptions import BudgetExceededError, PrivacyError
from skdp.privacy.accounting.losses import Loss, delta_from_losses
from skdp.privacy.gate.bounds import Bound, Bounded
from skdp.privacy.gate.budget import PrivacyBudget
from skdp.privacy.gate.session import PrivacySession
from skdp.privacy.gate.stages import StagedBudget
from skdp.privacy.ledger import routes
from skdp.privacy.ledger.ledger import PrivacyLedger
from skdp.privacy.noise import integers as noise
from skdp.privacy.noise.words import SeededSource, SystemSource

BUDGETS = [(0.5, 1e-6, 0.1), (1.0, 1e-2, 0.3), (4.0, 1e-3, 0.2)]
NUMBER = Bound("number", (1,), 1.0, slack=0.0, l1=1.0, l1_slack=0.0)


def session(budget, source=None):
    source = source or SystemSource()
    return PrivacySession(budget, source=source, adjacency="add_remove", unit="interaction")


def nothing(bound=NUMBER):
    return Bounded(bound, lambda _: np.zeros(bound.shape, np.int64))


# -- every tree of choices -------------------------------------------------------------------------


def laplace_pair(epsilon, edge):
    """Probabilities of 0 and of 1 with discrete Laplace noise, cut at edges."""
    k = np.arange(-edge, edge + 1)
    weights = np.exp(-epsilon * np.abs(k)), np.exp(-epsilon * np.abs(k - 1))
    return [w * math.tanh(epsilon / 2) for w in weights]


def gaussian_pair(mu):
    """Probabilities of narrow cells under N(0, 1) and N(mu, 1)."""
    edges = np.linspace(-10, 10 + mu, 20_001)
    return [np.diff(ndtr(edges - mean)) for mean in (0.0, mu)]


def excess(first, second, epsilon):
    """The sum of P - e^epsilon Q where it is positive, for one first answer and all second ones."""
    (p, q), (P, Q) = first, second
    gaps = p * P - math.exp(epsilon) * q * Q, q * Q - math.exp(epsilon) * p * P
    return np.array([np.maximum(gap, 0.0).sum() for gap in gaps])


@pytest.mark.parametrize(("epsilon", "delta", "first"), BUDGETS[1:])
def test_no_tree_of_choices_costs_more_and_one_costs_as_much(epsilon, delta, first):
    """Real noise, cell by cell, both ways after each first answer; the best tree is built too."""
    stages = StagedBudget(epsilon, delta, first)
    opening = np.transpose(laplace_pair(stages.opening.pure_epsilon, 60))
    ways = laplace_pair(stages.pure.pure_epsilon, 200), gaussian_pair(stages.gaussian.mu)
    for at in (0.25 * epsilon, 0.6 * epsilon, epsilon, 1.5 * epsilon):
        costs = np.array([[excess(pair, way, at) for way in ways] for pair in opening])
        allowed = delta_from_losses(stages.losses, at)
        best = costs.max(axis=1).sum(axis=0)  # of every answer the way that costs more
        assert best.max() <= allowed * (1 + 1e-9)
        if at == epsilon:
            assert allowed == pytest.approx(delta)
            np.testing.assert_allclose(costs[:, 0], 0.0, atol=1e-12)
            assert costs[:, 1].sum(axis=0).max() == best.max() > 0.9 * delta


@pytest.mark.parametrize(("epsilon", "delta", "first"), BUDGETS)
def test_the_worst_first_stage_attains_delta(epsilon, delta, first):
    """Randomised response, or a part of it that says nothing, and each choice after each answer."""
    stages = StagedBudget(epsilon, delta, first)
    p, mu = stages.opening.pure_epsilon, stages.gaussian.mu
    kinds = (Loss("pure", stages.pure.pure_epsilon),), (Loss("gaussian", mu),)
    for silent in (0.0, 0.5):
        up = (1 - silent) / (1 + math.exp(-p))
        answers = [(up, p), (1 - silent - up, -p), (silent, 0.0)]
        costs = {}
        for tree in itertools.product((0, 1), repeat=3):
            costs[tree] = sum(
                mass * delta_from_losses(kinds[way], epsilon - loss)
                for (mass, loss), way in zip(answers, tree, strict=True)
            )
        assert max(costs.values()) == costs[1, 1, 1] <= delta
        assert costs[0, 0, 0] == pytest.approx(0.0, abs=1e-15)
        if not silent:
            assert costs[1, 1, 1] > 0.999 * (delta - stages.gaussian.sampler_delta)


def test_neither_way_alone_says_what_both_cost():
    """Hence the receipt of an (epsilon, delta): each way has the larger curve somewhere."""
    stages = StagedBudget(0.5, 1e-6, 0.1)
    before = [Loss("pure", stages.opening.pure_epsilon)]
    pure = [*before, Loss("pure", stages.pure.pure_epsilon)]
    gaussian = [*before, Loss("gaussian", stages.gaussian.mu)]
    assert delta_from_losses(pure, 0.25) > 10 * delta_from_losses(gaussian, 0.25)
    assert delta_from_losses(gaussian, 0.5) > 0.9e-6 > delta_from_losses(pure, 0.5)
    for at in np.linspace(0, 2, 21):
        allowed = delta_from_losses(stages.losses, at)
        assert max(delta_from_losses(way, at) for way in (pure, gaussian)) <= allowed


# -- the session -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "delta", "first"), BUDGETS)
def test_noise_of_each_stage(epsilon, delta, first):
    stages = StagedBudget(epsilon, delta, first)
    rest = {"pure": math.sqrt(2) / ((1 - first) * epsilon), "gaussian": 1 / stages.gaussian.mu}
    for kind, scale in rest.items():
        gate = session(stages)
        assert gate.release(nothing(), 1.0).noise_scale == pytest.approx(
            math.sqrt(2) / (first * epsilon), rel=1e-6
        )
        with pytest.raises(BudgetExceededError):
            gate.release(nothing(), 0.01)
        gate.turn(kind)
        assert gate.release(nothing(), 1.0).noise_scale == pytest.approx(scale, rel=1e-6)
        with pytest.raises(BudgetExceededError):
            gate.release(nothing(), 0.01)
        assert [line.mechanism for line in gate.ledger] == [
            "laplace", "laplace" if kind == "pure" else "gaussian",
        ]  # fmt: skip


def test_a_receipt_does_not_tell_the_way():
    receipts = []
    for kind in ("pure", "gaussian"):
        gate = session(StagedBudget(0.5, 1e-6, 0.1))
        assert gate.spent().losses == () and gate.spent().epsilon == 0.0
        gate.release(nothing(), 1.0)
        receipts.append(gate.spent())
        gate.turn(kind)
        gate.release(nothing(), 0.7)
        receipts.append(gate.spent())
    assert all(receipt == receipts[0] for receipt in receipts)
    assert (receipts[0].epsilon, receipts[0].delta) == (0.5, 1e-6)
    assert receipts[0].epsilon_at(1e-6) == pytest.approx(0.5, rel=1e-9)
    assert receipts[0].epsilon_at(1e-7) == math.inf
    assert receipts[0].mu is None


def test_a_session_turns_once_and_only_if_it_has_stages():
    with pytest.raises(PrivacyError, match="no first stage"):
        session(PrivacyBudget(1.0, 1e-6)).turn("pure")
    gate = session(StagedBudget(1.0, 1e-6, 0.1))
    with pytest.raises(PrivacyError, match="pure or gaussian"):
        gate.turn("laplace")
    gate.ask(None).turn("gaussian")
    for kind in ("pure", "gaussian"):
        with pytest.raises(PrivacyError, match="or it is over"):
            gate.turn(kind)


def test_the_first_stage_is_no_budget_of_choices_beside_gaussians():
    gate = session(StagedBudget(1.0, 1e-6, 0.1))
    gate.turn("gaussian")
    with pytest.raises(BudgetExceededError, match="of the pure budget; 0 is left"):
        gate.choose(nothing(Bound("choice", (2,), 1.0, linf=1.0)), 0.1)


def test_what_was_paid_in_the_first_stage_keeps_its_noise():
    opened = []
    for turns in (False, True):
        gate = session(StagedBudget(1.0, 1e-6, 0.1), SeededSource(0, "stages"))
        grant = gate.grant(NUMBER, 1.0)
        if turns:
            gate.turn("gaussian")
        opened.append(grant.open(nothing().answer))
    assert opened[0] == opened[1]
    assert opened[0].noise_scale == grant.step * math.sqrt(2) * noise.LAPLACE_SCALE


@pytest.mark.parametrize(
    ("epsilon", "delta", "first"),
    [
        (1.0, 0.0, 0.1), (math.inf, 1e-6, 0.1), (100.0, 1e-6, 0.1), (1.0, 1e-6, 0.0),
        (1.0, 1e-6, 0.5), (1.0, 1e-6, math.nan), (math.nan, 1e-6, 0.1), (20.0, 1e-18, 0.1),
    ],
)  # fmt: skip
def test_budgets_without_stages(epsilon, delta, first):
    with pytest.raises(ValueError, match="staged budget"):
        StagedBudget(epsilon, delta, first)


def test_no_ledger_adds_up_stages():
    gate = session(StagedBudget(1.0, 1e-6, 0.1))
    with pytest.raises(PrivacyError, match="in stages"), PrivacyLedger(2.0, 1e-5):
        routes.charge(gate, "DPRecommender")
