"""Private selection: bounds against exact laws and published tables, and exact samplers."""

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import ndtr

from skdp.model_selection import selection_laws as laws
from skdp.privacy import delta_from_mu_epsilon, epsilon_from_mu_delta
from skdp.privacy.accounting import losses as accounting
from skdp.privacy.accounting.losses import Loss, mu_from_epsilon_delta
from skdp.privacy.accounting.receipts import PrivacySpent
from skdp.privacy.gate.bounds import SAMPLER_DISTANCE
from skdp.privacy.noise.words import SeededSource

ONE = mu_from_epsilon_delta(1.0, 1e-6)  # a run that is exactly (1, 1e-6)-DP


def generating(mean):
    """Return E[t^K] and its derivative."""
    g = laws.last_chance(mean)
    return lambda t: g * t / (1 - (1 - g) * t), lambda t: g / (1 - (1 - g) * t) ** 2


# -- published numbers ---------------------------------------------------------------------------


# mean number of runs -> total epsilon, chance that the best of eight is run
PUBLISHED = {8: (2.09, 0.53), 16: (2.27, 0.70), 24: (2.37, 0.77), 64: (2.58, 0.90)}


def test_published_totals_and_chances():
    for mean, (total, chance) in PUBLISHED.items():
        found = laws.random_stopping_epsilon(ONE, mean, 1e-6)
        assert found == pytest.approx(total, abs=0.005)
        assert laws.chance_drawn(mean, 8) == pytest.approx(chance, abs=0.006)
        assert laws.chance_drawn(mean, 8) == pytest.approx(1 - generating(mean)[0](7 / 8))
    assert (1 - 1e-6) * ONE < laws.largest_run_mu(mean, found, 1e-6) <= ONE
    assert laws.random_stopping_epsilon(ONE, 1000, 1e-6) == pytest.approx(3.09, abs=0.005)


# -- exact laws ----------------------------------------------------------------------------------


def exact_renyi(mu, mean, order):
    """Renyi divergence of the best of K draws of N(mu, 1) from that of N(0, 1), by quadrature."""
    _, slope = generating(mean)

    def integrand(y):
        p = slope(ndtr(y - mu)) * math.exp(-((y - mu) ** 2) / 2)
        q = slope(ndtr(y)) * math.exp(-(y**2) / 2)
        return math.exp(order * math.log(p) - (order - 1) * math.log(q)) / math.sqrt(2 * math.pi)

    total = quad(integrand, -20, 30, limit=400, epsabs=1e-14)[0]
    return math.log(total) / (order - 1)


def exact_delta(mu, mean, epsilon):
    """Hockey-stick divergence of the same pair: the likelihood ratio grows with y."""
    pgf, slope = generating(mean)

    def log_ratio(y):
        gain = mu * y - mu * mu / 2
        return gain + math.log(slope(ndtr(y - mu)) / slope(ndtr(y)))

    grid = np.linspace(-12, 20, 6401)
    worst = 0.0
    values = np.array([log_ratio(y) for y in grid])
    for start in np.flatnonzero(np.diff(np.sign(values - epsilon)) > 0):
        t = grid[start + 1]
        p, q = 1 - pgf(ndtr(t - mu)), 1 - pgf(ndtr(t))
        worst = max(worst, p - math.exp(epsilon) * q)
    return worst


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("mu", "mean"), [(0.1, 8), (0.3, 30), (1.0, 3), (2.0, 100)])
def test_bound_is_above_the_exact_divergence(mu, mean, sign):
    for order in (1.5, 2.0, 4.0, 8.0):
        bound = laws.random_stopping_rdp(mu, mean, order)
        assert exact_renyi(sign * mu, mean, order) <= bound * (1 + 1e-9)
    tail = -math.log(laws.last_chance(mean))  # k = 1, where a run is worth more than the search
    assert laws.random_stopping_rdp(9.0, mean, 2.0) == pytest.approx(81 + 2 * tail + tail)


@pytest.mark.thorough
@pytest.mark.parametrize(("mu", "mean"), [(0.3, 8), (0.5, 64)])
def test_total_covers_the_exact_loss(mu, mean):
    for delta in (1e-3, 1e-5):
        epsilon = laws.random_stopping_epsilon(mu, mean, delta)
        reached = max(exact_delta(s * mu, mean, epsilon) for s in (1, -1))
        assert reached <= delta
        if mean == 8:  # and is no wild overestimate
            assert max(exact_delta(s * mu, mean, epsilon / 3) for s in (1, -1)) > delta


def test_pure_factor_is_the_theorem_and_is_reached():
    """A good result is rare: it is e^epsilon times as likely on one side, all else alike."""
    epsilon, worst = 0.5, 0.0
    for mean in (10.0, 1000.0, 1e5):
        pgf = generating(mean)[0]
        for good in np.geomspace(1e-6, 0.5, 30):
            for middle in np.geomspace(1e-6, 1.0, 30):
                if good * math.exp(epsilon) + middle * math.exp(epsilon) > 1:
                    continue
                # three results: bad < middle < good; the middle one is published
                for a, b in ((1, 1), (-1, 1), (1, -1)):
                    g, m = good * math.exp(a * epsilon), middle * math.exp(b * epsilon)
                    if g + m > 1:
                        continue
                    p = pgf(1 - g) - pgf(1 - g - m)
                    q = pgf(1 - good) - pgf(1 - good - middle)
                    # only pairs whose rest is within epsilon too are neighbours
                    if abs(math.log((1 - g - m) / (1 - good - middle))) <= epsilon:
                        worst = max(worst, abs(math.log(p / q)))
    assert 0.9 * 3 * epsilon < worst <= 3 * epsilon


def test_conversion_is_near_the_gaussian():
    for mu in (0.1, 1.0):
        epsilon = laws.epsilon_from_rdp(lambda order, mu=mu: order * mu * mu / 2, 1e-6)
        exact = epsilon_from_mu_delta(mu, 1e-6)
        assert exact <= epsilon < 1.1 * exact


# -- plans ---------------------------------------------------------------------------------------


@pytest.mark.deep
def test_plan_changes_with_the_number_of_candidates():
    plans = [(3, None), (5, None), (6, None), (100, None), (100, 1.5), (3, 99), (4, 12)]
    stopped = [(n > 5 and m is None) or n == 4 for n, m in plans]
    for epsilon, delta in ((0.5, 1e-6), (20.0, 1e-6), (1.0, 0.0)):
        found = (laws.plan_selection(epsilon, delta, n, mean_n_runs=m).strategy for n, m in plans)
        assert [strategy == "random_stopping" for strategy in found] == stopped
    few, many = (laws.plan_selection(1, 1e-6, n, strategy="compose") for n in (8, 100))
    assert epsilon_from_mu_delta(few.run.value, 1e-6) == pytest.approx(0.328, abs=6e-4)
    assert few.losses == (Loss("gaussian", pytest.approx(ONE)),)
    assert many.run.value == pytest.approx(ONE / 10)
    auto = laws.plan_selection(1, 1e-6, 100)
    assert (auto.strategy, auto.chance) == ("random_stopping", pytest.approx(0.5, abs=0.01))
    assert auto.run.value > 3.5 * many.run.value
    most, less = (laws.plan_selection(epsilon, 1e-6, 3).run.value for epsilon in (1000, 34))
    assert less < most < 1.02 * less  # the pages say that a search stops at about 35


@pytest.mark.thorough
@pytest.mark.parametrize("epsilon", [100.0, 0.01, 1.0, 8.0])
def test_plan_keeps_its_total(epsilon):
    plan = laws.plan_selection(epsilon, 1e-6, 20, strategy="random_stopping")
    assert plan.losses == (Loss("pure", epsilon), Loss("delta", 1e-6))
    assert accounting.epsilon_from_losses(plan.losses, 1e-6) == epsilon
    limit, left = laws.ideal_budget(epsilon, 1e-6, 20, 2)
    assert limit == min(epsilon, math.log(1e-6 / (80 * SAMPLER_DISTANCE) - 1))
    assert left <= 1e-6 - (1 + math.exp(limit)) * 40 * SAMPLER_DISTANCE
    assert laws.random_stopping_epsilon(plan.run.value, 20, left) <= limit <= epsilon


def test_pure_plans():
    assert laws.plan_selection(3, 0, 8, strategy="random_stopping").run.value == 1
    plan = laws.plan_selection(4, 0, 8, strategy="compose")
    assert plan.run == Loss("pure", 0.5) and plan.losses == (Loss("pure", 0.5),) * 8


def test_all_runs_together_cover_their_samplers():
    """At a delta of which the samplers' errors take a part that counts."""
    delta = 100 * 12 * SAMPLER_DISTANCE
    plan = laws.plan_selection(1.0, delta, 4, strategy="compose", sessions=3)
    distance = plan.sessions * SAMPLER_DISTANCE
    spent = PrivacySpent(1.0, delta, plan.losses, "add_remove", "row", False, distance)
    assert 0.999 < spent.epsilon_at(delta) <= 1.0 + 1e-9
    assert laws.plan_selection(1.0, 1e-6, 4, strategy="random_stopping", sessions=3).sessions == 12


@pytest.mark.parametrize(
    ("delta", "options", "match"),
    [
        *((1e-6, {"mean_n_runs": mean}, "expected number of runs") for mean in (1, 0.5, math.nan)),
        (1e-6, {"mean_n_runs": 2e6}, "expected number of runs"),
        (1e-22, {}, "'delta' must be 0 or at least"),
    ],
)
def test_bad_plans(delta, options, match):
    with pytest.raises(ValueError, match=match):
        laws.plan_selection(1, delta, 100, **options)


# -- a loss for any (epsilon, delta) -------------------------------------------------------------


def test_delta_losses_compose():
    one = [Loss("pure", 1.0), Loss("delta", 1e-6)]
    assert accounting.epsilon_from_losses(one, 1e-6) == 1.0
    assert accounting.epsilon_from_losses(one, 9e-7) == math.inf
    assert accounting.delta_from_losses(one, 1.0) == 1e-6
    assert accounting.delta_from_losses(one, math.inf) == 1e-6
    assert accounting.delta_from_losses(one, 0.5) > 1e-6
    assert accounting.compose(one + one)[-1] == Loss("delta", 2e-6)
    assert accounting.epsilon_from_losses(one + one, 2e-6) == 2.0
    mixed = [*one, Loss("gaussian", 0.1)]
    alone = accounting.epsilon_from_losses([Loss("pure", 1.0), Loss("gaussian", 0.1)], 1e-6)
    assert accounting.epsilon_from_losses(mixed, 2e-6) == pytest.approx(alone, rel=1e-12)


def test_pair_dominates_a_gaussian_mechanism():
    """A mu-GDP mechanism is (epsilon, delta)-DP: next to others the pair must cost at least it."""
    for mu, others in ((0.24, 0.3), (1.0, 0.5)):
        epsilon = epsilon_from_mu_delta(mu, 1e-6)
        pair = [Loss("pure", epsilon), Loss("delta", 1e-6), Loss("gaussian", others)]
        for total in np.linspace(0, 3 * epsilon, 13):
            exact = delta_from_mu_epsilon(math.hypot(mu, others), total)
            assert accounting.delta_from_losses(pair, total) >= exact


# -- samplers ------------------------------------------------------------------------------------


# -- the number of runs of a search follows its law exactly ----------------------------------------


@pytest.mark.parametrize("mean", [1.5, 6.0])
def test_number_of_runs_follows_its_law(mean):
    n, chance = 4000, laws.last_chance(mean)
    words = SeededSource(0, "law").words("runs")
    drawn = np.array([laws.draw_runs(words, mean) for _ in range(n)])
    expected = n * chance * (1 - chance) ** np.arange(-1.0, 199)
    seen = np.bincount(np.minimum(drawn, 199), minlength=200)
    kept = (expected > 20) & (np.arange(200) > 0)
    chi2 = np.sum((seen[kept] - expected[kept]) ** 2 / expected[kept])
    assert chi2 < kept.sum() + 6 * math.sqrt(2 * kept.sum())
    assert abs(drawn.mean() - 1 / chance) < 6 * drawn.std() / math.sqrt(n)
    assert drawn.min() == 1


@pytest.mark.parametrize(
    "mean", [1 + 1e-12, 1.0001, 8.0, 1e4, pytest.param(1e6, marks=pytest.mark.deep)]
)
def test_any_mean_can_be_drawn(mean):
    assert 1 / laws.last_chance(mean) == pytest.approx(mean, rel=1e-9)
    assert laws.draw_runs(SeededSource(1, "law").words("runs"), mean) >= 1


def test_a_run_is_the_last_for_exactly_so_many_words():
    """At mean 3 the chance is a third, rounded to 2^-53: its last word stops, the next goes on."""
    last = round(2**53 / 3)
    for first, runs in ((last - 1, 1), (last, 2)):
        script = iter([(first << 11) + 2047, 0])
        assert laws.draw_runs(lambda n, s=script: np.array([next(s)], np.uint64), 3.0) == runs


def test_draw_below_is_uniform_and_rejects():
    words = SeededSource(0, "below").words("x")
    seen = np.bincount([laws.draw_below(words, 5) for _ in range(5000)], minlength=5)
    assert np.all(np.abs(seen - 1000) < 6 * math.sqrt(800))
    script = iter([2**64 - 1, 7])
    assert laws.draw_below(lambda n: np.array([next(script)], np.uint64), 5) == 2
