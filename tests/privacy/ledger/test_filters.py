"""A ledger bounds every adaptive tree, also if answers choose the kind of the next fit."""

import math
from functools import reduce

import numpy as np
import pytest
from scipy.special import expit, ndtr, ndtri

from skdp import BudgetExceededError, PrivacyError, PrivacyLedger
from skdp.privacy.accounting.losses import Loss, SketchMixture, delta_from_losses
from skdp.privacy.gate.bounds import PrivacyBudget
from skdp.privacy.ledger import filters
from skdp.privacy.ledger.filters import Sum, dominating_mu
from tools.ledgers import fit_of, gaussian_fit
from tools.outcomes import refuses

SKETCH = (Loss("sketch", SketchMixture(((0.1, (40,)),))),)


def of_lists(add):
    """Let a filter take later fits as a list of their losses."""
    return lambda first, later, *rest: add(
        first, reduce(Sum.plus, map(Sum.of, later), Sum()), *rest
    )


spent_delta, spent_epsilon, spent_losses = map(
    of_lists, (filters.spent_delta, filters.spent_epsilon, filters.spent_losses)
)


# -- what dominates a part ------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [1e-9, 1e-3, 0.3, 1.0, 1.999, 2.001, 8.0, 40.0])
def test_a_gaussian_below_the_corner_dominates_a_pure_part(epsilon):
    mu = dominating_mu(Loss("pure", epsilon))
    exact = -2 * ndtri(expit(-epsilon)) if epsilon > 1e-4 else epsilon * math.sqrt(math.pi / 2)
    assert exact * (1 - 1e-9) <= mu <= exact * (1 + 1e-6)
    sizes = np.linspace(1e-6, 1 - 1e-6, 2001)
    pure = np.maximum(1 - np.exp(epsilon) * sizes, np.exp(-epsilon) * (1 - sizes))
    assert np.all(ndtr(ndtri(1 - sizes) - mu) <= np.maximum(pure, 0) + 1e-9)


@pytest.mark.parametrize("eta", [0.1, 1.0, 6.0])
def test_a_range_needs_most_in_its_middle(eta):
    """Losses of a bounded-range part lie in [t - eta, t]; each t has its bias column."""
    top = eta * np.linspace(0.001, 0.999, 999)
    mass = np.expm1(eta - top) / (np.exp(eta - top) - np.exp(-top))
    needed = ndtri(mass) - ndtri(mass * np.exp(-top))
    mu = dominating_mu(Loss("range", eta))
    assert needed.max() <= mu <= needed.max() * (1 + 1e-5)
    assert mu < dominating_mu(Loss("pure", eta))


# -- trees ----------------------------------------------------------------------------------------


def largest(enough, high):
    """Return the largest number below `high` that is enough."""
    low = 0.0
    for _ in range(45):
        middle = (low + high) / 2
        low, high = (middle, high) if enough(middle) else (low, middle)
    return low


def affordable(ledger, kind):
    """Return the largest further fit of a kind that the ledger would take."""
    low = largest(lambda x: ledger._book.balance().affords(fit_of(Loss(kind, x))), 20.0)
    return [Loss(kind, low)] if low > 1e-9 else []


def true_delta(first, options, epsilon):
    """Return delta of a tree whose second fit is, for each first answer, the worst of some."""
    kind, value = first
    if kind == "gaussian":
        lucks = np.linspace(-7, 7, 701) * value + value**2 / 2
        mass = np.exp(-((lucks - value**2 / 2) ** 2) / (2 * value**2))
        mass /= mass.sum()
    else:
        lucks, mass = np.array([value, -value]), expit([value, -value])
    curves = [[delta_from_losses(option, epsilon - luck) for luck in lucks] for option in options]
    return float(np.max(curves, axis=0) @ mass)


@pytest.mark.thorough
@pytest.mark.parametrize("first", [Loss("gaussian", 0.15), Loss("pure", 0.1)])
def test_no_tree_of_two_kinds_exceeds_the_ledger(first):
    epsilon, delta = 1.0, 1e-3
    ledger = PrivacyLedger(epsilon, delta)
    ledger._book.reserve(fit_of(first))
    options = [affordable(ledger, kind) for kind in ("gaussian", "pure")]
    assert all(options)
    each = [true_delta(first, [option], epsilon) for option in options]
    assert true_delta(first, options, epsilon) <= delta * (1 + 1e-6)
    assert max(each) >= 0.98 * delta  # it is no weaker than it has to be


def test_no_tree_of_pure_fits_exceeds_the_ledger():
    """Many small epsilons and one large one have different tails; answers choose between them."""
    epsilon, delta, first = 2.0, 1e-3, Loss("pure", 0.1)
    options = []
    for n in (1, 2, 3, 5, 8, 12, 20, 50, 100):

        def enough(size, n=n):
            later = [(Loss("pure", size),)] * n
            return spent_delta((first,), later, epsilon, (epsilon, delta)) <= delta

        low = largest(enough, epsilon)
        options.append([Loss("pure", low)] * n)
    assert true_delta(first, options, epsilon) <= delta
    by_path = [delta_from_losses([first, *option], epsilon) for option in options]
    assert max(by_path) <= delta


# -- what is exact, and what is refused -----------------------------------------------------------


def test_one_fit_and_gaussian_fits_keep_their_curve():
    one = (Loss("gaussian", 0.2), Loss("pure", 0.3), Loss("range", 0.1), Loss("delta", 1e-7))
    assert spent_delta(one, [], 1.0, (1.0, 1e-6)) == delta_from_losses(one, 1.0)
    many = [(Loss("gaussian", mu),) for mu in (0.1, 0.2, 0.3)]
    flat = [loss for fit in many for loss in fit]
    assert spent_delta(many[0], many[1:], 1.0, (1.0, 1e-6)) == delta_from_losses(flat, 1.0)
    # what is not Gaussian in the first fit keeps its own curve too
    assert spent_delta(one, many, 1.0, (1.0, 1e-6)) == delta_from_losses([*one, *flat], 1.0)
    assert [Sum.of(fit, 3).drawn for fit in (one, SKETCH, one[1:])] == [3, 3, 0]


def test_pure_fits_cost_no_more_than_their_sum():
    fits = [(Loss("pure", 0.25),)] * 4
    failing = (*fits[0], Loss("delta", 1e-7))
    cases = (fits[0], 1e-9, 1.0), (failing, 1e-7, 1.0), (failing, 1e-9, math.inf)
    for first, delta, epsilon in cases:
        assert spent_epsilon(first, fits[1:], delta, (1.0, 1e-9)) == epsilon
    assert spent_delta(failing, fits[1:], 1.0, (1.0, 1e-9)) == 1e-7
    many = [(Loss("pure", 0.01),)] * 1000  # here Gaussians are far less
    assert spent_epsilon(many[0], many[1:], 1e-6, (3.0, 1e-6)) < 2.5


def test_epsilon_and_delta_agree():
    cases = [
        ((Loss("gaussian", 0.2),), [(Loss("pure", 0.1),), (Loss("range", 0.1),)]),
        ((Loss("pure", 0.1),), [(Loss("gaussian", 0.2),)]),
        (SKETCH, [(Loss("gaussian", 0.1),), (Loss("pure", 0.05),)]),
    ]
    for first, later in cases:
        epsilon = spent_epsilon(first, later, 1e-6, (2.0, 1e-6))
        assert spent_delta(first, later, epsilon, (2.0, 1e-6)) <= 1e-6
        assert spent_delta(first, later, epsilon * 0.999, (2.0, 1e-6)) > 1e-6


def test_the_order_of_renyi_divergences_is_fixed_by_the_first_fit():
    """A path that chose its order would pay too little: the best order changes with the sum."""
    budget = (4.0, 1e-6)
    small = (Loss("gaussian", 0.01),)
    own = delta_from_losses([*SKETCH, *small], 1.0)
    assert spent_delta(SKETCH, [small], 1.0, budget) > 1.5 * own
    mu = PrivacyBudget(*budget).mu  # where the budget ends, the order is the best one
    assert spent_delta(SKETCH, [(Loss("gaussian", 0.7 * mu),)], 4.0, budget) <= 1e-6


def test_a_later_sketch_does_not_choose_the_order():
    """Its divergence is infinite at the order that was fixed, though small at lower ones."""
    wild = (Loss("sketch", SketchMixture(((0.5, (4,)),))),)
    assert delta_from_losses([*SKETCH, *wild], 4.0) < 0.5
    assert spent_delta(SKETCH, [wild], 4.0, (4.0, 1e-6)) == 1.0


def test_a_plan_becomes_a_sketch_before_there_are_answers_or_never():
    ledger = PrivacyLedger(3.0, 1e-5)
    keys = [ledger._book.reserve(gaussian_fit(0.1)) for _ in range(2)]
    refuses(PrivacyError, "Fit it first", ledger._book.recharge, keys[1], SKETCH)
    ledger._book.recharge(keys[0], SKETCH)
    ledger._book.recharge(keys[1], SKETCH)
    ledger = PrivacyLedger(3.0, 1e-5)
    first, second = (ledger._book.reserve(gaussian_fit(0.1)) for _ in range(2))
    ledger._book.settle(second, (Loss("gaussian", 0.1),), "fitted")
    before = ledger.entries
    refuses(PrivacyError, "Fit it first", ledger._book.recharge, first, SKETCH)
    assert ledger.entries == before


@pytest.mark.parametrize("late", [(Loss("pure", 0.1), Loss("delta", 1e-9)), SKETCH])
def test_what_may_fail_or_has_no_mu_comes_first(late):
    ledger = PrivacyLedger(3.0, 1e-5)
    ledger._book.reserve(gaussian_fit(0.1))
    refuses(PrivacyError, "Fit it first", ledger._book.reserve, fit_of(*late))
    assert len(ledger.entries) == len(ledger.rejected_fits) == 1
    ledger = PrivacyLedger(3.0, 1e-5)
    ledger._book.reserve(fit_of(*late))
    ledger._book.reserve(gaussian_fit(0.1))


def test_a_sketch_costs_more_than_the_plan_that_it_replaces_or_is_refused():
    ledger = PrivacyLedger(3.0, 1e-5)
    key = ledger._book.reserve(gaussian_fit(0.1))
    before = ledger.entries
    wild = (Loss("sketch", SketchMixture(((40.0, (4,)),))),)
    refuses(BudgetExceededError, "costs more than a Gaussian", ledger._book.recharge, key, wild)
    assert ledger.entries == before


def test_parts_that_came_too_late_have_no_sum():
    """A book refuses them; a direct sum of the losses is refused here."""
    gaussian = (Loss("gaussian", 0.1),)
    for late in ((Loss("delta", 1e-9),), SKETCH):
        for add in (spent_delta, spent_epsilon):
            with pytest.raises(PrivacyError, match="Fit it first"):
                add(gaussian, [gaussian, late], 1e-6, (2.0, 1e-6))
    with pytest.raises(PrivacyError, match="Fit it first"):
        spent_delta(SKETCH, [(Loss("delta", 1e-9),)], 1.0, (2.0, 1e-6))


def test_the_unused_part_of_a_failed_fit_is_not_returned():
    """The unused pure part of the first fit may depend on the data, so it is not exchanged."""
    ledger = PrivacyLedger(2.0, 1e-5)
    key = ledger._book.reserve(fit_of(Loss("gaussian", 0.1), Loss("pure", 1.0)))
    planned = affordable(ledger, "gaussian")
    ledger._book.settle(key, (Loss("gaussian", 0.1),), "failed")
    assert affordable(ledger, "gaussian") == planned
    assert ledger.spent.losses == (Loss("gaussian", 0.1),)


def test_losses_of_a_receipt():
    first, later = (Loss("pure", 0.1),), [(Loss("pure", 0.2),)]
    assert spent_losses(first, later) == (Loss("pure", 0.1), Loss("pure", 0.2))
    mixed = [(Loss("gaussian", 0.3),), (Loss("pure", 0.2),)]
    mu = math.hypot(0.3, dominating_mu(Loss("pure", 0.2)))
    assert spent_losses(first, mixed) == (Loss("gaussian", mu), Loss("pure", 0.1))
