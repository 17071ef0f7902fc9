"""Random sketches: the law of their integer entries, mixtures, and how they compose."""

import itertools
import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import chi2

from skdp.privacy.accounting import losses as accounting
from skdp.privacy.accounting import receipts
from skdp.privacy.accounting.losses import (
    ORDERS,
    Loss,
    SketchMixture,
    delta_from_mu_epsilon,
    mu_from_epsilon_delta,
    whole_mixtures,
)
from skdp.privacy.streams.sketches import largest_mixture


@pytest.mark.thorough
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("d", [4, 20, 200])
def test_one_sketch_is_the_integral_over_its_law(d, epsilon):
    mixture = largest_mixture([(1.0, (d,))], epsilon, 1e-6)
    mu = float(mixture)
    scale = 1 / d

    def integrand(x):
        return delta_from_mu_epsilon(mu * math.sqrt(x), epsilon) * chi2.pdf(x, d, scale=scale)

    edges = [0, 0.5, 1, 2, 4, 8, 16, 64]
    exact = sum(quad(integrand, a, b, limit=200)[0] for a, b in itertools.pairwise(edges))
    assert exact <= mixture.delta(epsilon) <= 1e-6
    # The majorant leaves delta where mu is large: it costs something for few degrees only.
    assert mixture.delta(epsilon) <= exact * (1.01 if d > 4 else 1.5)
    assert mu < mu_from_epsilon_delta(epsilon, 1e-6)


def test_known_inflation_of_the_noise():
    for (t, v), most in {(20, 40): 1.074, (40, 160): 1.033, (400, 800): 1.0045}.items():
        mixture = largest_mixture([(0.5, (t,)), (0.5, (v,))], 1.0, 1e-6)
        assert 1.0 < mu_from_epsilon_delta(1.0, 1e-6) / float(mixture) < most
    mixture = largest_mixture([(0.25, ()), (0.75, ())], 1.0, 1e-6)  # Gaussian mechanisms
    assert float(mixture) == pytest.approx(mu_from_epsilon_delta(1.0, 1e-6), rel=1e-6)
    mixture = largest_mixture([(1.0, (40,))], 0.01, 1e-6)  # its inflection is below the law
    assert 1.01 < mu_from_epsilon_delta(0.01, 1e-6) / float(mixture) < 1.1
    for mu in (0.5, 4.0, 20.0):  # a change may also have one length, whatever the sketch
        assert SketchMixture(((mu, (1,)),)).delta(1.0) >= delta_from_mu_epsilon(mu, 1.0)
    for epsilon in (0.1, 1.0, 4.0):  # beyond its inflection the curve lies below this tangent
        slope, place = accounting._steepest(epsilon)
        assert place**2 + 4 * place == pytest.approx(4 * epsilon**2)  # to it the curve is convex
        near = [delta_from_mu_epsilon(math.sqrt(place * (1 + h)), epsilon) for h in (-1e-4, 1e-4)]
        assert slope == pytest.approx((near[1] - near[0]) / (2e-4 * place), rel=1e-6)


def test_a_law_on_a_grid_keeps_means_and_loses_no_variance():
    sums, product = ((0.5, (4,)), (0.5, (5,))), ((1.0, (4, 5)),)
    for weights, square in ((sums, 1 + 0.25 * (2 / 4 + 2 / 5)), (product, 1.5 * 1.4)):
        points, mass, beyond = accounting._law(weights)
        assert points @ mass + beyond == pytest.approx(1.0, rel=1e-9)
        assert points**2 @ mass > square


def test_delta_falls_and_ends_well():
    mixture = SketchMixture(((0.3, (20,)), (0.2, ())))
    deltas = [mixture.delta(e) for e in (0.0, 0.1, 0.5, 1.0, 3.0, 10.0, math.inf)]
    assert deltas == sorted(deltas, reverse=True) and deltas[0] == 1.0 and deltas[-1] == 0.0
    assert SketchMixture(((1e-170, (5,)),)).delta(1e-9) < 1e-30  # its square is no float
    edges, atoms, _ = accounting._chi_square(5)
    assert atoms[-1] > chi2.sf(5 * edges[-1], 5)  # what is beyond the cells, and of the last one


# -- composition -----------------------------------------------------------------------------------


def test_renyi_is_the_moment_of_the_chi_square():
    mixture = SketchMixture(((0.4, (20,)), (0.1, ())))
    alpha = np.array([2.0, 5.0, 12.0, 20.0])
    c = alpha * (alpha - 1) / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        inside = 1 - 2 * c * 0.16 / 20
        expected = (np.where(inside > 0, -10 * np.log(inside), np.inf) + c * 0.01) / (alpha - 1)
    np.testing.assert_allclose(mixture.renyi(alpha), expected, rtol=1e-12)
    assert np.isinf(SketchMixture(((0.1, (20, 20)),)).renyi(ORDERS)).all()


def test_compositions_cost_more_than_one_and_less_than_the_sum_of_epsilons():
    loss = Loss("sketch", largest_mixture([(1.0, (60,))], 1.0, 1e-6))
    one = accounting.epsilon_from_losses([loss], 1e-6)
    two = accounting.epsilon_from_losses([loss, loss], 1e-6)
    assert one <= 1.0 < 1.4 < two < 2.0
    assert two > accounting.epsilon_from_losses([Loss("gaussian", float(loss.value))] * 2, 1e-6)
    pure = [Loss("pure", 1.0)] * 4
    beside = [Loss("sketch", SketchMixture(((1e-9, (60,)),))), *pure]
    for at in (0.5, 2.0, 3.0):
        assert accounting.delta_from_losses(beside, at) >= accounting.delta_from_losses(pure, at)
    few = [loss, Loss("pure", 0.1)]
    more = few, [*few, ("range", 0.1)], [*few, ("range", 0.1), ("gaussian", 0.1)]
    beside = [accounting.epsilon_from_losses(all_, 1e-6) for all_ in more]
    assert one < beside[0] < beside[1] < beside[2] - 0.05 < 1.7
    product = Loss("sketch", SketchMixture(((0.1, (20, 20)),)))
    assert accounting.epsilon_from_losses([product], 1e-6) < 1.0
    assert accounting.epsilon_from_losses([product, loss], 1e-6) == math.inf
    assert accounting.epsilon_from_losses([loss], 0.0) == math.inf


def test_parts_of_a_group_count_once():
    whole = largest_mixture([(0.5, (20,)), (0.5, (40,))], 1.0, 1e-6)
    parts = [SketchMixture(whole.terms, i) for i in range(2)]
    assert whole_mixtures(parts) == [whole]
    for more in (parts, parts[:1], parts[1:]):  # a line alone counts as the group
        assert whole_mixtures(more) == [whole]
        assert whole_mixtures([*parts, *more]) == [whole, whole]
    assert whole_mixtures([*parts, whole]) == [whole, whole]
    assert accounting.compose(Loss("sketch", p) for p in parts) == (Loss("sketch", whole),)
    assert float(parts[0]) == whole.terms[0][0]
    assert float(2 * whole) == pytest.approx(2 * float(whole))


@pytest.mark.parametrize("loss", [("sketch", 0.5), ("gaussian", SketchMixture(((1.0, ()),)))])
def test_a_law_and_its_kind_belong_together(loss):
    with pytest.raises(ValueError, match="sketch"):
        accounting.compose([loss])


def test_accountants_that_do_not_know_the_law_refuse_it():
    dp_event = pytest.importorskip("dp_accounting").dp_event
    loss = Loss("sketch", largest_mixture([(1.0, (60,))], 1.0, 1e-6))
    assert isinstance(receipts.to_dp_event([loss]).events[0], dp_event.UnsupportedDpEvent)
