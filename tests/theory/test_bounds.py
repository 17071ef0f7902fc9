"""Published bounds and sample sizes against simulation: right up to one constant, at all sizes."""

import math

import numpy as np
import pytest

from skdp import DPTraceRegressor, DPTruncatedSVD, theory
from skdp.privacy import mu_from_epsilon_delta
from tools.canaries import canary_report, coherence_canary, score_attack
from tools.outcomes import refuses

DELTA = 1e-6


def orthonormal(rng, n, k):
    return np.linalg.qr(rng.standard_normal((n, k)))[0]


def gap_of(U, V):
    """Spectral distance of two projectors."""
    return float(np.linalg.norm(U @ U.T - V @ V.T, 2))


# -- trace regression ------------------------------------------------------------------------------


def records(rng, n, d, r, noise_sd):
    M = orthonormal(rng, d, r) @ orthonormal(rng, d, r).T
    X = rng.standard_normal((n, d * d))
    return M, X, X @ M.ravel() + noise_sd * rng.standard_normal(n)


def start(X, y, d, r):
    U, s, Vt = np.linalg.svd((y @ X / len(y)).reshape(d, d))
    return U[:, :r], s[:r], Vt[:r].T


@pytest.mark.thorough
@pytest.mark.parametrize(("n", "d", "r"), [(4000, 10, 1), (4000, 20, 2), (16000, 20, 2)])
def test_start_without_privacy_follows_u1_and_e1(n, d, r, rng):
    """The spectral start without noise: a third to the whole of u1 and e1."""
    M, X, y = records(rng, n, d, r, 0.5)
    U, s, V = start(X, y, d, r)
    bounds = theory.start_bounds(n, (d, d), r, epsilon=math.inf, noise_sd=0.5)
    assert bounds.u2 == bounds.e2 == 0
    assert 0.3 < gap_of(U, np.linalg.svd(M)[0][:, :r]) / bounds.u1 < 1.0
    assert 0.3 < np.linalg.norm((U * s) @ V.T - M, 2) / bounds.e1 < 1.6


@pytest.mark.parametrize("n", [200_000, 800_000])
@pytest.mark.parametrize(("d", "r"), [(10, 1), (30, 3)])
def test_noise_of_the_printed_start_follows_u2_and_e2(n, d, r, rng):
    """Algorithm 1 on exact data, with its own noise (and the sqrt(d) of its sensitivity)."""
    U, V = orthonormal(rng, d, r), orthonormal(rng, d, r)
    size, epsilon = math.sqrt(r) + 0.5, 1.0
    change = size * math.sqrt(r) * math.log(n) / n * math.sqrt(2 * d)
    sd = math.sqrt(18 * math.log(3.75 / DELTA)) * change / epsilon
    bounds = theory.start_bounds(n, (d, d), r, epsilon=epsilon, delta=DELTA, noise_sd=0.5)

    def noisy(Q):
        noise = np.triu(sd * rng.standard_normal((d, d)))
        return np.linalg.eigh(Q @ Q.T + noise + np.triu(noise, 1).T)[1][:, -r:]

    left, right = noisy(U), noisy(V)
    core = left.T @ (U @ V.T) @ right + sd * rng.standard_normal((r, r))  # s_r = 1
    measured = gap_of(left, U), np.linalg.norm(left @ core @ right.T - U @ V.T, 2)
    assert measured[0] < 0.5  # far from lost
    assert 2 < measured[0] / bounds.u2 < 14  # sqrt(18) 2 sqrt(2) is 12: one constant for all
    assert 2 < measured[1] / bounds.e2 < 16


# -- power methods ---------------------------------------------------------------------------------


def power(A, k, p, n_iter, epsilon, rng, accounting):
    """Algorithm 1 as printed; returns (its subspace, the largest rows, the prior's rows)."""
    X, rows, prior = orthonormal(rng, len(A), p), [], []
    for _ in range(n_iter):
        rows.append(np.linalg.norm(X, axis=1).max())
        prior.append(theory.prior_sensitivity(X.T))
        scale = math.sqrt(4 * n_iter * math.log(1 / DELTA)) / epsilon * accounting(rows, prior)
        X = np.linalg.qr(A @ X + scale * rng.standard_normal(X.shape))[0]
    return X, rows, prior


@pytest.mark.thorough
@pytest.mark.parametrize("n", [250, 750])
@pytest.mark.parametrize("which", ["rows", "prior", "independent"])
def test_power_bounds_follow_simulation(n, which):
    """Theorems 3.3, 2.2 and 4.1: one constant for all n, gaps and budgets."""
    rng, k, p, steps, ratios = np.random.default_rng(4), 2, 6, 6, []
    U = orthonormal(rng, n, k)
    fixed = theory.independent_sensitivity(n, p, np.abs(np.linalg.svd(U @ U.T)[0]).max())
    assert fixed <= 1
    choose = {
        "rows": lambda rows, prior: rows[-1],
        "prior": lambda rows, prior: prior[-1],
        "independent": lambda rows, prior: fixed,
    }[which]
    for gap, epsilon in ((4e3, 1.0), (1.6e4, 1.0), (4e3, 4.0)):
        X, rows, prior = power(gap * U @ U.T, k, p, steps, epsilon, rng, choose)
        error = np.linalg.norm(U - X @ (X.T @ U), 2)
        values = {"rows": rows, "prior": prior, "independent": fixed}[which]
        bound = theory.power_error_bound(n, gap, values, epsilon=epsilon, n_iter=steps)
        assert bound < 1
        ratios.append(error / bound)
    assert 0.2 < min(ratios) <= max(ratios) < 2
    assert max(ratios) / min(ratios) < 2.5


@pytest.mark.thorough
@pytest.mark.parametrize(("n", "k"), [(2000, 16), (2000, 64), (4000, 64)])
def test_ratio_of_a_random_start(n, k):
    """r(k, n) is cautious: measured ratios are 1.3 to 1.9 times the closed form."""
    rng, measured = np.random.default_rng(5), []
    for _ in range(5):
        Q = orthonormal(rng, n, k)
        measured.append(theory.prior_sensitivity(Q.T) / theory.subspace_coherence(Q.T).mu1)
    assert 1.2 < np.mean(measured) / theory.sensitivity_ratio(n, k) < 2.0


def test_coherence_of_a_subspace(rng):
    V = orthonormal(rng, 50, 3).T
    found = theory.subspace_coherence(V)
    assert found.mu0 == np.abs(V).max()
    assert found.relative == pytest.approx(50 / 3 * found.mu1**2)
    assert 1 <= found.relative <= 50 / 3
    assert theory.subspace_coherence(np.eye(3, 50)).relative == pytest.approx(50 / 3)
    # all eigenvectors: always 1
    assert theory.subspace_coherence(np.eye(50)).mu1 == pytest.approx(1)
    # a product with one changed entry moves by at most mu1
    E = np.zeros((50, 50))
    E[4, np.argmax(np.linalg.norm(V, axis=0))] = 1.0
    assert np.linalg.norm(E @ V.T) == pytest.approx(found.mu1)
    refuses(ValueError, "orthonormal", theory.subspace_coherence, [[1.0, 1.0]])


@pytest.mark.parametrize("gap", [1.0, 0.5, 0.2])
@pytest.mark.parametrize("value", [30.0, 300.0])
def test_predicted_steps_are_enough(gap, value):
    """After T steps a noisy iteration has .9 of the value; for any gap."""
    rng, n = np.random.default_rng(7), 200
    U = orthonormal(rng, n, 2)
    A = value * (np.outer(U[:, 0], U[:, 0]) + (1 - gap) * np.outer(U[:, 1], U[:, 1]))
    x = np.ones(n) / math.sqrt(n)
    for _ in range(theory.power_steps(value, gap=gap)):
        x = A @ x + 0.3 / math.sqrt(n) * rng.standard_normal(n)
        x /= np.linalg.norm(x)
    assert np.linalg.norm(A @ x) > 0.9 * value
    assert theory.power_steps(1.0) == 1 and theory.power_steps(1e9, gap=1e-9) == 1000


# -- canaries --------------------------------------------------------------------------------------


def test_recovery_bound_is_attained_by_one_gaussian_number():
    rng, mu, changes = np.random.default_rng(8), 0.3, 4
    bits = rng.integers(0, 2, 100_000)
    seen = changes * bits + rng.standard_normal(len(bits)) / mu
    right = np.mean((seen > changes / 2) == bits)
    assert right == pytest.approx(theory.recovery_bound(mu, changes), abs=0.006)


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
@pytest.mark.thorough
def test_coherence_canary_passes_private_fits_and_flags_others():
    """At epsilon C/n bits are safe; 100 times that may find them, within its own bound."""
    n, C = 100, 2.0
    svd = DPTruncatedSVD(1, privacy_unit="entry", epsilon=C / n, algorithm="alternating")
    safe = coherence_canary(svd, n, C, random_state=0).check()
    assert safe.bound < 0.8 and safe.success < 0.6
    more = DPTruncatedSVD(1, privacy_unit="entry", epsilon=100 * C / n, algorithm="alternating")
    larger = coherence_canary(more, n, C, random_state=0).check()
    assert larger.success > 0.9
    lying = canary_report([larger.success] * 20, mu_from_epsilon_delta(C / n, svd.delta), n / C)
    assert lying.bound == pytest.approx(safe.bound)
    refuses(AssertionError, "tells more", canary_report([1.0] * 60, 0.01, 1).check)


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_canary_needs_gaussian_receipts():
    svd = DPTruncatedSVD(1, privacy_unit="entry", epsilon=1.0, delta=0.0)
    refuses(ValueError, "mu", coherence_canary, svd, 20, 2.0, n_runs=1)


@pytest.mark.thorough
def test_score_attack_tells_records_of_a_plain_fit_and_not_of_a_private_one():
    rng, d, plain, private = np.random.default_rng(9), 10, [], []
    for _ in range(40):
        M, X, y = records(rng, 100, d, 2, 1.0)
        inside, outside = (X[:50], y[:50]), (X[50:], y[50:])
        U, s, V = start(*inside, d, 2)
        plain.append(score_attack((U * s) @ V.T, inside, outside, M))
    for _ in range(8):
        M, X, y = records(rng, 4000, d, 1, 1.0)
        model = DPTraceRegressor(1, epsilon=2.0, matrix_shape=(d, d), measurement_covariance=1.0)
        model.fit(X[:2000], y[:2000])
        assert np.linalg.norm(model.coef_ - M) < 0.5  # it finds the matrix
        halves = (X[:2000], y[:2000]), (X[2000:], y[2000:])
        private.append(score_attack(model.coef_, *halves, M))
    report = canary_report(private, model.privacy_spent_.mu, 2).check()
    assert abs(report.success - 0.5) < 0.05 < report.bound - 0.5
    allowed = theory.recovery_bound(mu_from_epsilon_delta(0.5, DELTA), 2)
    assert np.mean(plain) > allowed + 0.02  # five standard errors: the attack sees plain fits


# -- values ----------------------------------------------------------------------------------------

SHAPE, BUDGET = (30, 20), {"epsilon": 0.5, "delta": 1e-6}
FRAME = orthonormal(np.random.default_rng(0), 6, 2).T
SIZES = {"largest_value": 2.0, "smallest_value": 0.5, "noise_sd": 0.7}
# (function, its arguments, what it says): a factor, a root or a square that changes is seen here.
VALUES = [
    ("start_bounds", (1e6, SHAPE, 3), BUDGET | SIZES, [0.0841255, 0.0465215, 0.168251, 0.100399]),
    ("private_start_records", (SHAPE, 3), BUDGET | {"condition": 2.0, "noise_ratio": 0.7},
     [75902.7]),
    ("descent_error_bound", (1e6, SHAPE, 3), BUDGET | {"smallest_value": 0.5, "noise_sd": 0.7},
     [0.0902879]),
    ("descent_error_bound", (1e6, SHAPE, 3), BUDGET | {"noise_sd": 0.7, "label_only": True},
     [0.0590551]),
    ("descent_records", (SHAPE, 3), BUDGET | {"noise_ratio": 0.7}, [586.803, 234.989, 77646.7]),
    ("descent_records", (SHAPE, 3), {"epsilon": math.inf}, [586.803, 479.569, 0.0]),
    ("private_start_records", (SHAPE, 3), {"epsilon": math.inf}, [0.0]),
    ("descent_error_bound", (1e6, SHAPE, 3), {"epsilon": math.inf, "noise_sd": 0.7}, [0.0153293]),
    ("required_samples", (SHAPE, 3), BUDGET | {"rank_share": 0.2}, [37.0, 5234.0, 22723.0]),
    ("required_samples", (SHAPE, 3), BUDGET | {"adjacency": "replace"}, [1181.0, 10468.0, 45445.0]),
    ("minimax_error", (1e4, SHAPE, 3),
     {"epsilon": 0.5, "noise_sd": 0.7, "lam": 2.0, "schatten": 3.0}, [0.0465195]),
    ("minimax_risk", (1e4, SHAPE, 3), {"epsilon": 0.5, "noise_sd": 0.7}, [0.00456876]),
    ("initialization_records", (SHAPE, 3), {"condition": 2.0, "noise_ratio": 0.7, "descent": True},
     [24420.0]),
    ("subspace_coherence", (FRAME,), {}, [0.718153, 0.793733, 1.89004]),
    ("prior_sensitivity", (FRAME,), {}, [1.01562]),
    ("independent_sensitivity", (500, 4, 0.1), {}, [0.498582]),
    ("sensitivity_ratio", (20, 4), {}, [1.38826]),
    ("power_steps", (30.0,), {"gap": 0.3}, [46.0]),
    ("recovery_bound", (0.7, 2.0), {}, [0.758036]),
    ("power_error_bound", (500, 300.0, [0.2, 0.3]), BUDGET | {"n_iter": 5}, [0.564016]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments", "options", "values"), VALUES)
def test_formulas_keep_their_values(name, arguments, options, values):
    found = getattr(theory, name)(*arguments, **options)
    assert np.ravel(np.asarray(found, float)) == pytest.approx(values, rel=1e-4)
