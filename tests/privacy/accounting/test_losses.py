"""Accounting against 50-digit arithmetic, independent integration, and another library."""

import itertools
import math
import sys

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from skdp.privacy.accounting import losses as accounting
from skdp.privacy.accounting.losses import (
    Loss,
    SketchMixture,
    compose,
    delta_from_losses,
    delta_from_mu_epsilon,
    epsilon_from_losses,
    epsilon_from_mu_delta,
    mu_from_epsilon_delta,
    mu_with_pure,
)
from skdp.privacy.accounting.receipts import to_dp_event
from tools.outcomes import refuses

EPSILONS = [1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 25.0, 50.0, 100.0]
DELTAS = [1e-12, 1e-10, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.05, 0.1, 0.25, 0.4]
FEW = settings(max_examples=60, deadline=None, derandomize=True)

epsilons = st.floats(1e-3, 100.0)
deltas = st.floats(-12.0, math.log10(0.4)).map(lambda x: 10.0**x)
mus = st.floats(-6.0, 1.5).map(lambda x: 10.0**x)


def mp_delta(mu, epsilon):
    """The textbook formula, in 50 digits (more where it cancels)."""
    mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
    upper = mpmath.ncdf(mu / 2 - epsilon / mu)
    return upper - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


def mp_root(function, start):
    """Newton in log scale with exact digits: converges to the one root wherever it starts near."""
    return mpmath.exp(
        mpmath.findroot(lambda t: mpmath.log(function(mpmath.exp(t))), mpmath.log(start))
    )


@pytest.fixture(autouse=True)
def fifty_digits():
    with mpmath.workdps(60):
        yield


def relative(value, reference):
    return abs(float((mpmath.mpf(value) - reference) / reference))


# --- the curve and its two inverses ---------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_all_three_agree_with_exact_arithmetic_and_err_on_the_safe_side(epsilon):
    worst = dict.fromkeys(("mu", "delta", "epsilon"), 0.0)
    for delta in DELTAS:
        mu = mu_from_epsilon_delta(epsilon, delta)
        exact_mu = mp_root(lambda m, e=epsilon, d=delta: mp_delta(m, e) / d, mu)
        exact_delta = mp_delta(mu, epsilon)
        back = epsilon_from_mu_delta(mu, delta)
        exact_epsilon = mp_root(lambda e, m=mu, d=delta: mp_delta(m, e) / d, epsilon)
        assert exact_delta <= delta
        assert delta_from_mu_epsilon(mu, epsilon) <= delta
        assert mp_delta(mu, back) <= delta
        assert delta_from_mu_epsilon(mu, back) <= delta
        for name, value, reference in (
            ("mu", mu, exact_mu),
            ("delta", delta_from_mu_epsilon(mu, epsilon), exact_delta),
            ("epsilon", back, exact_epsilon),
        ):
            worst[name] = max(worst[name], relative(value, reference))
    assert worst["mu"] < 1e-11
    assert worst["delta"] < 1e-12
    assert worst["epsilon"] < 1e-9


@pytest.mark.thorough
@pytest.mark.parametrize("epsilon", [0.0, 1e-12, 1e-3, 1.0, 30.0, 100.0])
@pytest.mark.parametrize("mu", [1e-30, 1e-9, 1e-3, 0.3, 0.999, 1.001, 3.0, 30.0, 200.0])
def test_curve_far_from_the_grid(mu, epsilon):
    with mpmath.workdps(100):  # the textbook formula loses 30 digits at mu = 1e-30
        exact = mp_delta(mu, epsilon)
    if exact > 1e-300:
        assert relative(delta_from_mu_epsilon(mu, epsilon), exact) < 1e-12
        below = 1 - mpmath.exp(-epsilon) * (1 - exact)
        assert relative(delta_from_mu_epsilon(mu, -epsilon), below) < 1e-12
    else:
        assert delta_from_mu_epsilon(mu, epsilon) <= 1e-300


def test_ends_of_the_range():
    assert delta_from_mu_epsilon(0.0, 1.0) == 0.0
    assert delta_from_mu_epsilon(0.0, -1.0) == -math.expm1(-1.0)
    assert delta_from_mu_epsilon(math.inf, 5.0) == 1.0
    assert delta_from_mu_epsilon(1.0, math.inf) == delta_from_mu_epsilon(math.inf, math.inf) == 0.0
    assert delta_from_mu_epsilon(1.0, -math.inf) == 1.0
    assert delta_from_mu_epsilon(1e300, 1.0) == 1.0
    assert delta_from_mu_epsilon(1e-320, 1.0) == 0.0
    assert delta_from_mu_epsilon(1e-300, 0.0) == pytest.approx(
        1e-300 / math.sqrt(2 * math.pi), rel=1e-14, abs=0
    )
    assert mu_from_epsilon_delta(math.inf, 1e-6) == math.inf
    assert mu_from_epsilon_delta(0.0, 1e-6) == pytest.approx(math.sqrt(math.tau) * 1e-6, rel=1e-9)
    assert epsilon_from_mu_delta(math.inf, 0.5) == epsilon_from_mu_delta(1e200, 0.5) == math.inf
    assert epsilon_from_mu_delta(1e60, 1e-6) == pytest.approx(5e119)  # it once ran forever
    assert epsilon_from_mu_delta(0.5, 0.0) == math.inf
    assert epsilon_from_mu_delta(0.0, 0.0) == epsilon_from_mu_delta(0.0, 1e-9) == 0.0
    for mu in (1e-3, 0.5, 3.0):
        variation = 2 * norm.cdf(mu / 2) - 1
        assert epsilon_from_mu_delta(mu, variation * (1 + 1e-12)) == 0.0
        assert epsilon_from_mu_delta(mu, variation * (1 - 1e-9)) > 0.0
    for delta in (5e-324, 1e-300, 1 - 2**-53):
        found = delta_from_mu_epsilon(mu_from_epsilon_delta(1.0, delta), 1.0)
        assert 0 < found <= delta or delta < 1e-320


@FEW
@given(mus, st.floats(-20.0, 100.0), st.floats(1e-3, 1.0))
def test_delta_is_monotone_and_at_least_one_minus_e_epsilon(mu, epsilon, step):
    delta = delta_from_mu_epsilon(mu, epsilon)
    assert max(0.0, -math.expm1(epsilon)) <= delta <= 1.0
    assert delta_from_mu_epsilon(mu, epsilon + step) <= delta
    assert delta_from_mu_epsilon(mu * (1 + step), epsilon) >= delta


HOSTILE = [math.nan, True, False, np.True_, "1", None, 1j, [1.0], np.ones(1), 10**400]


@pytest.mark.parametrize("bad", [*HOSTILE, -1.0, -1e-300, -math.inf])
def test_extreme_numbers_raise(bad):
    calls = [
        lambda: delta_from_mu_epsilon(bad, 1.0), lambda: mu_from_epsilon_delta(bad, 1e-6),
        lambda: mu_from_epsilon_delta(1.0, bad), lambda: epsilon_from_mu_delta(bad, 1e-6),
        lambda: epsilon_from_mu_delta(1.0, bad), lambda: mu_with_pure(bad, 1e-6, 0.1),
        lambda: mu_with_pure(1.0, bad, 0.1), lambda: mu_with_pure(1.0, 1e-6, bad),
        lambda: compose([("gaussian", bad)]), lambda: compose([("pure", bad)]),
        lambda: delta_from_losses([("range", bad)], 1.0),
    ]  # fmt: skip
    if bad is not None and not (isinstance(bad, float) and bad < 0):
        calls.append(lambda: delta_from_mu_epsilon(1.0, bad))
        calls.append(lambda: delta_from_losses([], bad))
    for call in calls:
        refuses(ValueError, None, call)


@pytest.mark.parametrize("delta", [1.0, 1.5, math.inf])
def test_delta_of_one_or_more_raises(delta):
    for call in (mu_from_epsilon_delta, epsilon_from_mu_delta):
        for value in (1.0, math.inf):
            refuses(ValueError, "delta", call, value, delta)
    refuses(ValueError, "delta", mu_from_epsilon_delta, 1.0, 0.0)


# --- composition ----------------------------------------------------------------------------


def test_compose_is_canonical():
    parts = [("range", 0.2), ("gaussian", 3.0), ("pure", 0.5), ("gaussian", 4.0), ("pure", 0.1)]
    expected = (Loss("gaussian", 5.0), Loss("pure", 0.1), Loss("pure", 0.5), Loss("range", 0.2))
    assert compose(parts) == compose(reversed(parts)) == compose(compose(parts)) == expected
    assert compose([("gaussian", 0.0), ("pure", 0)]) == compose([]) == ()
    assert compose([("gaussian", 0.3)]) == (Loss("gaussian", 0.3),)
    assert compose([("gaussian", 1.0), ("gaussian", math.inf)])[0].value == math.inf


@pytest.mark.parametrize(
    "beside",
    [[], [("gaussian", 0.5)], [("pure", 0.5), ("range", 0.1)],
     [("sketch", SketchMixture(((0.02, (40,)),)))]],
    ids=["nothing", "gaussian", "pure", "sketch"],
)  # fmt: skip
def test_deltas_of_fits_add_to_that_of_all_else(beside):
    """A mechanism that may fail completely does so next to any other mechanism."""
    expected = delta_from_losses(beside, 0.3) + 3e-4
    found = delta_from_losses([*beside, ("delta", 1e-4), ("delta", 2e-4)], 0.3)
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("kind", ["sketch", "Gaussian", "", None, 3, ["pure"]])
def test_unknown_kinds_raise_with_the_list(kind):
    of_losses = lambda x: delta_from_losses(x, 1.0), lambda x: epsilon_from_losses(x, 0.1)
    for call in (compose, *of_losses):
        refuses(ValueError, r"gaussian.*pure.*range", call, [(kind, 0.5)])


def test_no_delta_and_gaussians_alone():
    both = [Loss("gaussian", 0.3), Loss("gaussian", 0.4)]
    assert delta_from_losses(both, 1.0) == delta_from_mu_epsilon(0.5, 1.0)
    assert epsilon_from_losses(both, 1e-6) == epsilon_from_mu_delta(0.5, 1e-6)
    assert epsilon_from_losses([("pure", 0.25), ("range", 0.5), ("pure", 0.25)], 0.0) == 1.0
    assert epsilon_from_losses([("pure", 0.25), ("gaussian", 1e-9)], 0.0) == math.inf
    assert epsilon_from_losses([("pure", math.inf)], 0.1) == math.inf
    assert epsilon_from_losses([], 0.0) == epsilon_from_losses([], 0.1) == 0.0
    assert delta_from_losses([("pure", math.inf)], 1.0) == 1.0
    assert delta_from_losses([("pure", math.inf)], math.inf) == 0.0


@pytest.mark.parametrize("values", [[0.4], [0.4] * 7, [0.1, 0.25, 0.7], [0.3, 0.3, 1.1, 1.1, 2.0]])
def test_pure_composition_is_the_enumerated_one(values):
    for epsilon in (0.0, 0.05, 0.3, 1.0, 0.9 * sum(values)):
        exact = 0.0
        for signs in itertools.product([1, -1], repeat=len(values)):
            loss = sum(s * v for s, v in zip(signs, values, strict=True))
            mass = math.prod(1 / (1 + math.exp(-s * v)) for s, v in zip(signs, values, strict=True))
            exact += mass * max(0.0, -math.expm1(epsilon - loss))
        got = delta_from_losses([("pure", v) for v in values], epsilon)
        assert got == pytest.approx(exact, rel=1e-12, abs=1e-16)
    assert delta_from_losses([("pure", v) for v in values], sum(values) + 1e-12) == 0.0


@pytest.mark.parametrize("epsilon", [1.5, 3.5])
def test_pure_composition_rounds_upwards(epsilon):
    with mpmath.workdps(40):
        n, value, exact = 100, mpmath.mpf(0.1), mpmath.mpf(0)
        chance = 1 / (1 + mpmath.exp(-value))
        for ups in range(math.floor((epsilon / value + n) / 2) + 1, n + 1):
            mass = mpmath.binomial(n, ups) * chance**ups * (1 - chance) ** (n - ups)
            exact -= mass * mpmath.expm1(epsilon - value * (2 * ups - n))
        assert exact < delta_from_losses([("pure", 0.1)] * n, epsilon) < exact * (1 + 1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize("mu", [0.1, 0.7, 2.0])
@pytest.mark.parametrize("pure", [0.05, 0.5, 2.0])
@pytest.mark.parametrize("epsilon", [0.2, 1.0, 3.0])
def test_gaussian_beside_pure_by_integration(mu, pure, epsilon):
    """N(mu, 1) x randomised response against N(0, 1) x its mirror, by quadrature."""
    truth, lie = 1 / (1 + math.exp(-pure)), 1 / (1 + math.exp(pure))
    exact = 0.0
    for p, q in ((truth, lie), (lie, truth)):
        start = (epsilon - math.log(p / q)) / mu + mu / 2  # where p N(mu) exceeds e^eps q N(0)

        def excess(z, p=p, q=q):
            return p * norm.pdf(z, mu) - math.exp(epsilon) * q * norm.pdf(z)

        exact += quad(excess, start, max(start, mu) + 15, epsabs=0, epsrel=1e-10, limit=200)[0]
    got = delta_from_losses([("gaussian", mu), ("pure", pure)], epsilon)
    assert got == pytest.approx(exact, rel=1e-7, abs=1e-30)


@FEW
@given(
    st.floats(0.0, 3.0),
    st.lists(st.sampled_from([0.01, 0.05, 0.3, 0.3001, 1.0]), max_size=8),
    deltas,
)
def test_epsilon_of_losses_is_safe_tight_and_within_basic_composition(mu, values, delta):
    losses = [("gaussian", mu), *(("pure", v) for v in values)]
    epsilon = epsilon_from_losses(losses, delta)
    assert delta_from_losses(losses, epsilon) <= delta
    assert epsilon <= (epsilon_from_mu_delta(mu, delta) + sum(values)) * (1 + 1e-12)
    assert epsilon >= epsilon_from_mu_delta(mu, delta) * (1 - 1e-12)
    if epsilon > 1e-6:
        assert delta_from_losses(losses, epsilon * (1 - 1e-8)) > delta * (1 - 1e-10)


def test_many_different_pure_parts_stay_safe_tight_and_small(monkeypatch):
    values = np.linspace(0.05, 0.3, 13).tolist()  # 8192 exact losses
    losses = [("gaussian", 0.4), *(("pure", v) for v in values)]
    exact_epsilon, exact_delta = epsilon_from_losses(losses, 1e-6), delta_from_losses(losses, 2.0)
    for size in (256, 1024):
        monkeypatch.setattr(accounting, "_MAX_ATOMS", size)
        accounting._epsilon_of.cache_clear()
        assert accounting._pure_atoms(values)[0].size <= size + 2
        assert exact_delta < delta_from_losses(losses, 2.0) < exact_delta * (1 + (150 / size) ** 2)
        assert 1 < (epsilon_from_losses(losses, 1e-6) / exact_epsilon) < 1 + (30 / size) ** 2


def test_grid_convolution_is_safe_and_tight(monkeypatch):
    values = [0.01] * 400 + [0.013] * 300  # 120,701 exact losses
    losses = [("gaussian", 0.2), *(("pure", v) for v in values)]
    exact = delta_from_losses(losses, 1.5)
    sizes, convolve = [], np.convolve
    monkeypatch.setattr(
        np, "convolve", lambda a, b: sizes.append(a.size + b.size) or convolve(a, b)
    )
    monkeypatch.setattr(accounting, "_MAX_ATOMS", 1200)  # both go to a common grid
    assert exact < delta_from_losses(losses, 1.5) < exact * 1.05
    assert max(sizes) <= 1206


def test_half_eta_gdp_would_be_wrong_for_bounded_range():
    """The exponential mechanism over two candidates whose scores move by +-eta/4 has range eta.

    Its log ratios are eta/2 and -eta/2, its total variation is tanh(eta/4). The shortcut "an
    eta-bounded-range mechanism is (eta/2)-GDP" would promise 2 Phi(eta/4) - 1, which is smaller.
    """
    for eta in (0.01, 0.1, 0.5, 1.0, 2.0):
        assert delta_from_mu_epsilon(eta / 2, 0.0) < 0.85 * math.tanh(eta / 4)
        assert delta_from_losses([("range", eta)], 0.0) >= math.tanh(eta / 4)
        assert epsilon_from_losses([("range", eta)], 0.0) >= eta / 2


# --- a pure part next to a Gaussian ----------------------------------------------------------


def test_mu_beside_nothing_is_mu():
    for epsilon, delta in [(0.1, 1e-9), (1.0, 1e-6), (8.0, 0.1), (math.inf, 1e-6)]:
        mu, beside = (mu_with_pure(epsilon, delta, pure) for pure in (0.0, 1e-3))
        assert (beside < mu or epsilon == math.inf) and mu == mu_from_epsilon_delta(epsilon, delta)
    assert mu_with_pure(math.inf, 1e-6, 1.0) == math.inf


@pytest.mark.thorough
@FEW
@given(epsilons, deltas, st.floats(0.001, 0.999))
def test_mu_beside_pure_is_safe_tight_and_never_worse_than_splitting(epsilon, delta, share):
    pure = share * epsilon
    mu = mu_with_pure(epsilon, delta, pure)
    losses = [("gaussian", mu), ("pure", pure)]
    assert mu_from_epsilon_delta(epsilon - pure, delta) <= mu  # what splitting would leave
    assert mu <= mu_from_epsilon_delta(epsilon, delta)
    assert delta * (1 - 1e-9) < delta_from_losses(losses, epsilon) <= delta * (1 + 1e-13)


def test_pure_part_beyond_the_budget():
    assert mu_with_pure(1.0, 1e-6, 1.0) > mu_from_epsilon_delta(0.0, 1e-6)
    assert 0 < mu_with_pure(1.0, 1e-6, 1.0 + 1e-7) < mu_with_pure(1.0, 1e-6, 1.0)
    for pure in (1.1, 50.0, math.inf):
        refuses(ValueError, "pure_epsilon must leave room", mu_with_pure, 1.0, 1e-6, pure)


# --- another library ------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    "losses",
    [
        [("gaussian", 0.2367)],
        [("gaussian", 0.3), ("gaussian", 0.5), ("gaussian", 0.1)],
        [("gaussian", 0.4), ("pure", 0.05)],
        [("gaussian", 0.8), ("pure", 0.5), ("pure", 0.5), ("range", 0.3)],
        [("pure", 0.1)] * 20,
    ],
)
def test_against_the_pld_accountant(losses):
    dpa = pytest.importorskip("dp_accounting")
    pld = pytest.importorskip("dp_accounting.pld")
    empty = pld.PLDAccountant(dpa.NeighboringRelation.ADD_OR_REMOVE_ONE, 1e-4)
    other = empty.compose(to_dp_event(losses))
    for delta in (1e-3, 1e-6, 1e-9):
        ours = epsilon_from_losses(losses, delta)
        assert ours - 1e-9 <= other.get_epsilon(delta) <= ours + 2e-4
        assert other.get_delta(0.8 * ours) == pytest.approx(
            delta_from_losses(losses, 0.8 * ours), rel=2e-3
        )


def test_events_of_the_ends():
    dpa = pytest.importorskip("dp_accounting")
    assert to_dp_event([("gaussian", 0.0), ("pure", 0.0)]) == dpa.ComposedDpEvent([])
    for bare in (("range", math.inf), ("delta", 1e-3)):
        assert to_dp_event([bare]) == dpa.ComposedDpEvent([dpa.NonPrivateDpEvent()])
    event = dpa.dp_event.DiscreteLaplaceDpEvent(0.5, 1)  # as randomised response
    for kind in ("pure", "range"):
        assert to_dp_event([(kind, 0.5)] * 2) == dpa.ComposedDpEvent([event] * 2)
    assert to_dp_event([("gaussian", 0.25)]) == dpa.ComposedDpEvent([dpa.GaussianDpEvent(4.0)])


def test_missing_library_says_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    refuses(ImportError, r"skdp\[accounting\]", to_dp_event, [("gaussian", 1.0)])
