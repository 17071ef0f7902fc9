"""Expected errors of plans: near those that fits then make."""

import math

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import Ridge

from skdp import (
    DPPCA,
    DPIncrementalPCA,
    DPLowRankFactorizer,
    DPPersonalizedRegressor,
    DPRidge,
    DPRidgeClassifier,
    DPSpectralEmbedding,
    DPTraceRegressor,
    DPTruncatedSVD,
)
from skdp.datasets import make_block_graph, make_spiked_rows, make_trace_regression, make_user_tasks
from skdp.preprocessing import DPStandardScaler
from skdp.testing import seeded_entropy

ENTRY = {"privacy_unit": "entry", "sketch": "sparse", "matrix_shape": (400, 12)}


def captured(X, components):
    return np.sum((X @ components.T) ** 2) / np.sum(X**2)


@pytest.mark.filterwarnings("ignore:.*a signal needs:UserWarning")
@pytest.mark.deep
@pytest.mark.parametrize("solver", ["gram", "power"])
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
@pytest.mark.parametrize(
    ("n", "d", "k", "share", "epsilon"),
    [(3000, 40, 3, 0.5, 0.2), (2000, 80, 4, 0.7, 0.6), (8000, 30, 2, 0.3, 0.1)],
)
def test_expected_loss_of_components(solver, adjacency, n, d, k, share, epsilon):
    """Within a factor of two of the mean over fits, as `skdp.theory` states."""
    rows = make_spiked_rows(n, d, k, share, random_state=1)
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    best = captured(rows, np.linalg.svd(rows, full_matrices=False)[2][:k])
    options = {"clip_norm": 1.0, "center": "none", "svd_solver": solver, "adjacency": adjacency}
    estimator = DPPCA(k, epsilon=epsilon, **options)
    squares = np.maximum(np.linalg.eigvalsh(rows.T @ rows), 0.0)
    expected = estimator.plan(n, d, spectrum=squares).error
    with seeded_entropy(0):
        losses = [1 - captured(rows, estimator.fit(rows).components_) / best for _ in range(6)]
    assert 0.01 < expected < 0.5
    assert 0.5 < np.mean(losses) / expected < 2


def falling(n, d, fall, spread=0.0, mean=0.0, tail=None, seed=0):
    """Rows whose variances fall like a power, in any basis, of lengths that spread."""
    rng = np.random.default_rng(seed)
    Z = rng.standard_normal((n, d)) if tail is None else rng.standard_t(tail, (n, d))
    axes = np.linalg.qr(rng.standard_normal((d, d)))[0]
    lengths = np.exp(spread * rng.standard_normal(n))
    return (mean + Z) * np.arange(1, d + 1.0) ** -fall @ axes * lengths[:, None]


def one_hot(n, columns, levels, tastes=4, seed=0):
    """Columns of levels, whose frequencies depend on what one cannot see."""
    rng = np.random.default_rng(seed)
    frequencies = rng.dirichlet(np.full(levels, 0.5), (tastes, columns))
    taste, X = rng.integers(0, tastes, n), np.zeros((n, columns, levels))
    below = np.cumsum(frequencies[taste], axis=2) < rng.random((n, columns, 1))
    found = np.minimum(below.sum(axis=2), levels - 1)
    X[np.arange(n)[:, None], np.arange(columns), found] = 1.0
    return X.reshape(n, -1)


TABLES = {
    "nearly alike": (lambda: falling(4000, 50, 0.05), 5, (0.5, 1.0)),
    "slow": (lambda: falling(5000, 60, 0.5), 5, (0.5, 1.0)),
    "few rows": (lambda: falling(1000, 8, 0.5), 2, (0.5,)),
    "fast": (lambda: falling(2000, 30, 1.0), 5, (0.5, 1.0)),
    "spread 0.7": (lambda: falling(5000, 60, 0.7, 0.7), 10, (0.5, 3.0)),
    "spread 1.5": (lambda: falling(5000, 60, 0.7, 1.5), 10, (0.5, 3.0, 100.0)),
    "heavy entries": (lambda: falling(5000, 40, 0.7, tail=3), 4, (0.5,)),
    "one-hot": (lambda: one_hot(5000, 10, 8), 6, (0.5, 1.0, 3.0)),
    "digits": (lambda: load_digits().data, 10, (0.5, 1.0, 3.0)),
}


@pytest.mark.filterwarnings("ignore:.*a signal needs:UserWarning")
@pytest.mark.deep
@pytest.mark.parametrize("kind", [DPTruncatedSVD, DPPCA])
@pytest.mark.parametrize("name", TABLES)
def test_expected_loss_of_tables(name, kind):
    """Within a factor of two where spectrum and lengths are known; more is said to be lost if not.

    Learnt clip norms, a mean that is 0 or taken off, directions that depend on lengths.
    """
    make, k, budgets = TABLES[name]
    rows = make()
    judged = rows if kind is DPTruncatedSVD else rows - rows.mean(axis=0)
    squares = np.maximum(np.linalg.eigvalsh(judged.T @ judged), 0.0)
    best = captured(judged, np.linalg.svd(judged, full_matrices=False)[2][:k])
    facts = {"spectrum": squares, "spread": np.std(np.log(np.linalg.norm(judged, axis=1)))}
    for epsilon in budgets:
        model = kind(k, epsilon=epsilon)
        with seeded_entropy(0):
            losses = [1 - captured(judged, model.fit(rows).components_) / best for _ in range(8)]
        assert 0.5 < np.median(losses) / model.plan(*rows.shape, **facts).error < 2.0


@pytest.mark.filterwarnings("ignore:.*a signal needs:UserWarning")
@pytest.mark.deep
@pytest.mark.parametrize("name", ["slow", "fast", "one-hot", "digits"])
def test_expected_loss_of_power_steps(name):
    """What random starts leave of other directions counts, where there is little noise."""
    make, k, budgets = TABLES[name]
    rows = make()
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    squares = np.maximum(np.linalg.eigvalsh(rows.T @ rows), 0.0)
    best = captured(rows, np.linalg.svd(rows, full_matrices=False)[2][:k])
    for epsilon in budgets:
        model = DPTruncatedSVD(k, epsilon=epsilon, clip_norm=1.0, algorithm="power")
        with seeded_entropy(0):
            losses = [1 - captured(rows, model.fit(rows).components_) / best for _ in range(4)]
        assert 0.5 < np.median(losses) / model.plan(*rows.shape, spectrum=squares).error < 2.0


@pytest.mark.parametrize("clip_norm", [0.1, 5.0])
def test_a_clip_norm_is_a_unit(clip_norm):
    """Rows that are as long as the clip norm lose the same, in any unit."""
    one = DPPCA(3, clip_norm=1.0).plan(3000, 12)
    other = DPPCA(3, clip_norm=clip_norm).plan(3000, 12)
    assert other.error == pytest.approx(one.error) and other.needed == one.needed


def test_a_plan_says_which_assumption_decides():
    model = DPTruncatedSVD(3)
    text = str(model.plan(3000, 16))
    assert "falls of 1/i^0.5 and 1/i^1.5 would lose" in text
    assert "lengths that spread by 1 would lose" in text
    assert "would lose" not in str(model.plan(3000, 16, signal=0.5))
    losses = [model.plan(3000, 16, spread=spread).error for spread in (0.1, 0.5, 1.0, 2.0)]
    assert losses == sorted(losses) and losses[3] > 10 * losses[0]
    flat, steep = (np.arange(1, 17.0) ** -fall for fall in (0.5, 1.5))
    losses = [model.plan(3000, 16, spectrum=shares).error for shares in (steep, None, flat)]
    assert losses == sorted(losses)


@pytest.mark.parametrize("spread", [-0.1, 6.0, "wide", True, math.nan])
def test_spreads_that_nothing_has(spread):
    with pytest.raises(ValueError, match="'spread' must be None or a number in the range"):
        DPPCA(2).plan(100, 5, spread=spread)


def test_spectra_that_nothing_has():
    with pytest.raises(ValueError, match="'spectrum' must be None or 5 numbers"):
        DPPCA(2).plan(100, 5, spectrum=[1.0, -1.0, 0, 0, 0])
    with pytest.raises(ValueError, match="'signal' or 'spectrum', not both"):
        DPPCA(2).plan(100, 5, spectrum=np.ones(5), signal=0.6)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("n", "shape", "epsilon"), [(3000, (10, 10), 1.0), (2000, (20, 20), 4.0), (6000, (20, 20), 1.0)]
)
def test_expected_error_of_a_matrix(n, shape, epsilon):
    X, y, M = make_trace_regression(n, shape, 2, coef=True, random_state=0)
    model = DPTraceRegressor(2, matrix_shape=shape, epsilon=epsilon)
    expected = model.plan(n, signal=math.sqrt(2) / 0.5).error
    with seeded_entropy(0):
        errors = [np.linalg.norm(model.fit(X, y).coef_ - M) for _ in range(3)]
    assert 0.5 < np.median(errors) / np.linalg.norm(M) / expected < 2


@pytest.mark.thorough
def test_expected_error_of_a_subspace():
    X, y, groups, coefs = make_user_tasks(1000, 12, 2, coef=True, random_state=0)
    basis = np.linalg.svd(coefs, full_matrices=False)[2][:2]
    split = {"init": 0.89, "head": 0.05, "columns": 0.02, "global": 0.03, "reach": 0.01}
    model = DPPersonalizedRegressor(
        2, n_rounds=0, whiten=False, budget_split=split, target_bounds=(-9, 9)
    )
    inside = []  # what users' own rows say
    for user in range(200):
        A = X[groups == user]
        own = np.linalg.solve(A.T @ A + np.eye(12), A.T @ y[groups == user])
        inside.append(np.sum((basis @ own) ** 2) / np.sum(own**2))
    expected = model.plan(1000, 12, signal=float(np.mean(inside))).error
    with seeded_entropy(0):
        errors = [
            1 - np.sum((basis @ model.fit(X, y, groups=groups).components_.T) ** 2) / 2
            for _ in range(3)
        ]
    assert 0.5 < np.mean(errors) / expected < 2


@pytest.mark.deep
@pytest.mark.parametrize(
    ("n", "epsilon"), [(300, 0.4), (500, 0.3), (300, 1.0), (500, 1.0), (1000, 1.0), (1000, 4.0)]
)
@pytest.mark.parametrize("m", [10, 20])
def test_expected_risk_of_heads(n, epsilon, m):
    """Within a factor of two, of heads inside the subspace without intercepts."""
    X, y, groups, coefs = make_user_tasks(
        n, 12, 2, rows_per_user=m, noise_sd=0.7, coef=True, random_state=0
    )
    basis, power = np.linalg.svd(coefs, full_matrices=False)[2][:2], np.mean(np.sum(coefs**2, 1))
    inside = []
    for user in range(200):
        A = X[groups == user]
        own = np.linalg.solve(A.T @ A + np.eye(12), A.T @ y[groups == user])
        inside.append(np.sum((basis @ own) ** 2) / np.sum(own**2))
    model = DPPersonalizedRegressor(2, epsilon=epsilon, head="subspace", fit_intercept=False)
    facts = {"signal": float(np.mean(inside)), "n_rows": m, "noise": 0.49 / power}
    expected = model.plan(n, 12, **facts).error
    with seeded_entropy(0):
        risks = [
            np.mean((model.fit(X, y, groups=groups)._private["heads"][:, :-1] - coefs) ** 2)
            for _ in range(4)
        ]
    assert 0.5 < 12 * np.mean(risks) / power / expected < 2


@pytest.mark.filterwarnings("ignore:.*a signal needs:UserWarning")
@pytest.mark.thorough
@pytest.mark.parametrize(("n", "epsilon"), [(1000, 1.0), (2000, 0.5)])
def test_expected_error_within_public_bounds(n, epsilon):
    """Rows are shorter than bounds allow, and the level that is found follows them."""
    rng = np.random.default_rng(0)
    V = np.linalg.qr(rng.standard_normal((10, 2)))[0]
    X = 0.6 * rng.standard_normal((n, 2)) @ V.T + 0.17 * rng.standard_normal((n, 10))
    X = np.clip(0.3 * X / np.sqrt(np.mean(X**2)), -1, 1)
    squares, W = np.linalg.eigh(X.T @ X)
    signal = squares[-2:].sum() / squares.sum()
    model = DPPCA(2, epsilon=epsilon, bounds=(-1, 1))
    with seeded_entropy(0):
        fits = [model.fit(X).components_ for _ in range(8)]
    lost = [1 - np.sum((V @ W) ** 2 * squares) / squares[-2:].sum() for V in fits]
    assert 0.4 < np.mean(lost) / model.plan(n, 10, signal=signal).error < 2.5


@pytest.mark.thorough
@pytest.mark.parametrize("times", [1.3, 2.0])
def test_expected_error_of_the_moment_of_entries(times):
    """Within a factor of two, where rows are about as long as a public clip norm."""
    rng = np.random.default_rng(0)
    U, V = (np.linalg.qr(np.sign(rng.standard_normal((n, 2))))[0] for n in (2000, 60))
    options = {"algorithm": "gram", "unit_bound": (-2, 2), "clip_norm": 4.0}
    model = DPTruncatedSVD(2, privacy_unit="entry", epsilon=1.0, **options)
    found = model.plan(2000, 60).found
    with seeded_entropy(0):
        fits = [model.fit(times * found * U @ V.T).components_ for _ in range(6)]
    lost = np.mean([1 - np.sum((components @ V) ** 2) / 2 for components in fits])
    assert 0.5 < lost / model.plan(2000, 60, signal=times * found).error < 2


@pytest.mark.deep
@pytest.mark.parametrize("shape", [(1000, 40), (40, 1000), (300, 200)])
@pytest.mark.parametrize("times", [1.2, 2.0])
def test_expected_error_of_entries(shape, times):
    """Within a factor of two, for tall and wide matrices; well below there is next to nothing."""
    rng = np.random.default_rng(0)
    U, V = (np.linalg.qr(np.sign(rng.standard_normal((n, 2))))[0] for n in shape)
    products = {"algorithm": "alternating", "unit_bound": (-2, 2)}
    model = DPTruncatedSVD(2, privacy_unit="entry", epsilon=8.0, **products)
    found = model.plan(*shape).found

    def error(value):
        fits = [model.fit(value * U @ V.T).components_ for _ in range(6)]
        return np.mean([1 - np.sum((components @ V) ** 2) / 2 for components in fits])

    with seeded_entropy(0):
        lost, nothing = error(times * found), error(0.4 * found)
    assert 0.5 < lost / model.plan(*shape, signal=times * found).error < 2
    assert nothing > 0.6 and model.plan(*shape, signal=0.4 * found).error > 0.9


UNEVEN = {
    "norm, tall": ((600, 150), {"privacy_unit": "frobenius"}, (0.3, 1.0), 300.0),
    "norm, wide": ((100, 500), {"privacy_unit": "frobenius"}, (0.3, 1.0), 300.0),
    "spectral norm": ((600, 150), {"privacy_unit": "spectral"}, (1.0, 3.0), 600.0),
    "entries": ((1200, 100), {"privacy_unit": "entry", "unit_bound": (-1, 1)}, (0.5, 1.0), 45.0),
    "one change": ((400, 200), {"privacy_unit": "entry_change"}, (0.3, 1.0), 200.0),
}


@pytest.mark.filterwarnings("ignore:.*stand above the noise:skdp.exceptions.PrivacyWarning")
@pytest.mark.deep
@pytest.mark.parametrize("name", UNEVEN)
def test_expected_loss_where_singular_values_are_known(name):
    """Within a factor of two, also where some are found and others are not."""
    (m, n), unit, budgets, largest = UNEVEN[name]
    rng = np.random.default_rng(0)
    U, V = (np.linalg.qr(rng.standard_normal((side, 4)))[0] for side in (m, n))
    values = largest * np.array([1.0, 0.7, 0.5, 0.35])
    A = U * values @ V.T
    for epsilon in budgets:
        model = DPTruncatedSVD(4, epsilon=epsilon, **unit)
        plan = model.plan(m, n, spectrum=values)
        with seeded_entropy(0):
            fits = [model.fit(A).components_ for _ in range(5)]
        lost = [1 - captured(A, np.linalg.qr(V.T)[0].T) for V in fits]
        assert 0.5 < np.median(lost) / plan.error < 2
        assert f"singular values from {values[0]:.3g}" in str(plan)


def test_the_rounding_of_entries_is_planned():
    """Flipped cells are 0 or 1: what lies between is rounded first."""
    rng = np.random.default_rng(0)
    A = np.minimum(rng.gamma(0.3, size=(600, 3)) @ rng.gamma(0.3, size=(3, 100)), 1.0)
    values = np.linalg.svd(A, compute_uv=False)[:3]
    model = DPTruncatedSVD(3, privacy_unit="entry", epsilon=4.0, algorithm="one_shot")
    plan = model.plan(600, 100, spectrum=values)
    between = float(str(plan).split("between them they would lose ")[1].split()[0])
    with seeded_entropy(0):
        fits = [model.fit(A).components_ for _ in range(5)]
    best = np.sum(values**2) / np.sum(A**2)
    lost = np.median([1 - captured(A, np.linalg.qr(V.T)[0].T) / best for V in fits])
    assert plan.error < lost < 2 * between


def test_singular_values_that_nothing_has():
    model = DPTruncatedSVD(2, privacy_unit="entry")
    for wrong in (-1.0, math.nan, [2.0], True):
        with pytest.raises(ValueError, match="'signal' must be a positive number, a singular"):
            model.plan(100, 20, signal=wrong)
    for wrong in (3.0, [], [1.0, 0.0], [math.inf]):
        with pytest.raises(ValueError, match="'spectrum' must be a list of positive numbers"):
            model.plan(100, 20, spectrum=wrong)
    with pytest.raises(ValueError, match="'signal' or 'spectrum', not both"):
        model.plan(100, 20, signal=3.0, spectrum=[3.0])
    with pytest.raises(ValueError, match="takes 'signal', not 'spectrum'"):
        DPTruncatedSVD(2, privacy_unit="interaction").plan(100, 20, spectrum=[3.0])


@pytest.mark.filterwarnings("ignore:.*sees nothing of about:UserWarning")
@pytest.mark.deep
@pytest.mark.parametrize("length", [0.3, 0.6])
def test_expected_loss_of_a_ridge_on_short_rows(length):
    """Within a factor of two of the mean over tables whose rows are shorter than the clip norm."""
    lost, planned = [], []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((9000, 12)) * np.arange(1, 13) ** -0.5
        X *= length / np.linalg.norm(X, axis=1)[:, None]
        X -= X.mean(axis=0)
        w = rng.standard_normal(12)
        y = 0.28 * (X @ w / np.std(X @ w) + 0.5 * rng.standard_normal(9000))
        X, y, rest, values = X[:5000], y[:5000], X[5000:], y[5000:]
        best = Ridge(1e-6).fit(X, y).score(rest, values)
        model = DPRidge(epsilon=0.5, clip_norm=1.0, target_bounds=(-1, 1))
        facts = {"signal": best, "spectrum": np.linalg.eigvalsh(X.T @ X)}
        planned.append(model.plan(5000, 12, length=length, **facts).error)
        with seeded_entropy(0):
            lost += [1 - model.fit(X, y).score(rest, values) / best for _ in range(4)]
    assert 0.5 < np.mean(lost) / np.mean(planned) < 2
    assert model.plan(5000, 12, length=2.0, **facts).error == model.plan(5000, 12, **facts).error


def test_lengths_that_no_rows_have():
    for kind in (DPRidge, DPRidgeClassifier):
        with pytest.raises(ValueError, match="with a finite 'clip_norm'"):
            kind().plan(100, 5, length=0.5)
        for wrong in (0.0, -1.0, "long", True):
            with pytest.raises(ValueError, match="'length' must be None or a positive number"):
                kind(clip_norm=1.0).plan(100, 5, length=wrong)


@pytest.mark.filterwarnings("ignore:.*stand above the noise:skdp.exceptions.PrivacyWarning")
@pytest.mark.thorough
@pytest.mark.parametrize("times", [1.2, 3.0])
def test_expected_error_of_flipped_cells(times):
    """Within a factor of two, for many components; well below there is little."""
    rng, n, k = np.random.default_rng(0), 320, 4
    labels = np.arange(n) % k
    model = DPTruncatedSVD(k, privacy_unit="entry", epsilon=2.0, algorithm="one_shot")
    found = model.plan(n, n).found

    def error(value):
        A = np.where(labels[:, None] == labels, value * k / n, 0.0)
        with seeded_entropy(0):
            fits = [model.fit((rng.random((n, n)) < A) * 1.0).components_ for _ in range(3)]
        V = np.eye(k)[labels] / math.sqrt(n / k)
        return np.mean([1 - np.sum((components @ V) ** 2) / k for components in fits])

    expected = model.plan(n, n, signal=times * found).error
    assert 0.5 < error(times * found) / expected < 2
    assert error(0.4 * found) > 0.6 and model.plan(n, n, signal=0.4 * found).error == 1.0


@pytest.mark.deep
def test_a_graph_below_the_threshold_is_not_found():
    model = DPSpectralEmbedding(1)
    plan = model.plan(1000, signal=20)
    assert plan.error == 1.0 and plan.found > 20
    assert model.plan(1000, signal=60).error < 0.05
    assert math.isnan(model.plan(1000).error)


@pytest.mark.deep
def test_more_rows_and_more_budget_help():
    def error(n=3000, **params):
        return DPPCA(3, clip_norm=1.0, **params).plan(n, 40).error

    assert error(6000) < error() < error(adjacency="replace")
    assert error(epsilon=2.0) < error(epsilon=1.0)
    needed = DPPCA(3, clip_norm=1.0).plan(3000, 40).needed
    assert error(needed) < error(1) / 2 < error(int(needed * 0.95))


@pytest.mark.filterwarnings("ignore:.*may be noise:skdp.exceptions.PrivacyWarning")  # early steps
@pytest.mark.thorough
@pytest.mark.parametrize("mechanism", ["sqrt", "tree"])
@pytest.mark.parametrize("n_releases", [1, 16])
@pytest.mark.parametrize("clip_norm", [1.0, "auto"])
def test_expected_loss_of_a_stream(n_releases, mechanism, clip_norm):
    """Within a factor of two of the mean over streams, at the last release."""
    rows = make_spiked_rows(3200, 30, 3, 0.5, random_state=1)
    if clip_norm == 1.0:
        rows /= np.linalg.norm(rows, axis=1)[:, None]
    best = captured(rows, np.linalg.svd(rows, full_matrices=False)[2][:3])
    epsilon = 0.3 if n_releases == 1 else 0.8
    options = {"clip_norm": clip_norm, "max_releases": n_releases, "mechanism": mechanism}
    losses = []
    with seeded_entropy(0):
        for _ in range(4):
            model = DPIncrementalPCA(3, epsilon=epsilon, **options)
            for part in np.array_split(rows, n_releases):
                model.partial_fit(part)
            losses.append(1 - captured(rows, model.components_) / best)
    expected = model.plan(3200, 30, signal=0.5).error
    assert 0.005 < expected < 0.5
    assert 0.5 < np.mean(losses) / expected < 2


def test_more_releases_cost_more():
    def error(**params):
        return DPIncrementalPCA(2, clip_norm=1.0, **params).plan(3000, 20).error

    assert error(max_releases=1) < error(max_releases=10) < error(max_releases=1000)
    assert error(max_releases=100) < error(max_releases=100, mechanism="tree")
    once = DPIncrementalPCA(2, clip_norm=1.0).plan(3000, 20, stream=False)
    assert once.error == pytest.approx(error(max_releases=1))
    found = [DPLowRankFactorizer(2, max_releases=t, **ENTRY).plan().found for t in (1, 10, 100)]
    assert found == sorted(found) and found[2] > 1.5 * found[0]


def test_a_plan_of_many_features_has_no_error():
    plan = DPIncrementalPCA(2, clip_norm=1.0).plan(10**6, 4000)
    assert math.isnan(plan.error) and {r.name for r in plan.releases} == {
        "gram_product", "trace", "sums", "count"
    }  # fmt: skip


def low_rank(m, n, k, value):
    rng = np.random.default_rng(0)
    U, V = (np.linalg.qr(rng.standard_normal((side, k)))[0] for side in (m, n))
    return value * U @ V.T


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["dense", "two_sketch", "three_sketch"])
@pytest.mark.parametrize(("shape", "k"), [((200, 150), 4), ((400, 60), 2)])
@pytest.mark.parametrize("n_releases", [1, 6])
def test_expected_error_of_a_factorization(method, shape, k, n_releases):
    """Within 40% of the mean of three, of one release and of the last of six."""
    params = {"method": method, "sensitivity_mode": "oblivious"}
    if n_releases > 1:
        params |= {"matrix_shape": shape, "max_releases": n_releases}
    value = 8 * DPLowRankFactorizer(k, **params).plan(*shape).found
    A = low_rank(*shape, k, value)
    errors = []
    with seeded_entropy(0):
        for _ in range(3):
            model = DPLowRankFactorizer(k, **params)
            if n_releases == 1:
                model.fit(A)
            else:
                for _ in range(n_releases):
                    model.update_matrix(A / n_releases).release()
            errors.append(np.linalg.norm(A - model.reconstruct()) / np.linalg.norm(A))
    expected = model.plan(*shape, signal=value).error
    assert 0.01 < expected < 0.5
    assert 0.6 < np.mean(errors) / expected < 1.4


@pytest.mark.filterwarnings("ignore:.*stand above the noise:skdp.exceptions.PrivacyWarning")
@pytest.mark.deep
@pytest.mark.parametrize("method", ["dense", "two_sketch", "three_sketch"])
def test_what_is_below_the_noise_is_not_found(method):
    model = DPLowRankFactorizer(2, method=method)
    plan = model.plan(300, 200)
    assert math.isnan(plan.error)
    assert model.plan(300, 200, signal=0.9 * plan.found).error == 1.0
    with seeded_entropy(0):
        low, high = (low_rank(300, 200, 2, f * plan.found) for f in (0.4, 1.5))
        assert sum(model.fit(low).rank_ for _ in range(4)) <= 3
        assert [model.fit(high).rank_ for _ in range(4)] == [2] * 4


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*sees nothing of about:UserWarning")
@pytest.mark.parametrize(
    ("n", "d", "adjacency", "intercept", "q", "signal"),
    [
        (400, 10, "add_remove", True, 1, 0.5),
        (1500, 30, "add_remove", False, 1, 0.8),
        (1000, 8, "replace", True, 1, 0.3),
        (2000, 20, "add_remove", True, 3, 0.5),
    ],
)
def test_expected_loss_of_a_ridge(n, d, adjacency, intercept, q, signal):
    """Within a factor of two of the mean over data and fits."""
    rng = np.random.default_rng(0)
    edge = 1 / math.sqrt(q)
    model = DPRidge(
        clip_norm=1.0, adjacency=adjacency, fit_intercept=intercept, target_bounds=(-edge, edge),
        alpha=1e-3,
    )  # fmt: skip
    losses = []
    with seeded_entropy(0):
        for _ in range(8):
            rows = rng.standard_normal((n, d))
            rows /= np.linalg.norm(rows, axis=1)[:, None]
            W = np.linalg.qr(rng.standard_normal((d, q)))[0] * math.sqrt(d * signal) * edge / 2
            y = rows @ W + math.sqrt(1 - signal) * edge / 2 * rng.standard_normal((n, q))
            coef = np.reshape(model.fit(rows, y).coef_, (q, d)).T
            losses.append(np.sum((coef - W) ** 2) / np.sum(W**2))
    expected = model.plan(n, d, n_targets=q, signal=signal, spectrum=np.ones(d)).error
    assert 0.05 < expected < 0.5
    assert 0.5 < np.mean(losses) / expected < 2


@pytest.mark.thorough
@pytest.mark.parametrize(("n", "d", "epsilon"), [(2000, 10, 1.0), (1000, 5, 2.0)])
def test_expected_loss_of_a_ridge_within_public_bounds(n, d, epsilon):
    """Columns fill a third of their bounds, on either side of a centre."""
    rng = np.random.default_rng(0)
    model = DPRidge(bounds=(5, 7), target_bounds=(-3, 3), epsilon=epsilon)
    losses = []
    with seeded_entropy(0):
        for _ in range(10):
            X = 6 + np.clip(0.3 * rng.standard_normal((n, d)), -1, 1)
            linear = (X - 6) @ rng.standard_normal(d)
            linear /= math.sqrt(2) * linear.std()
            model.fit(X, linear + math.sqrt(0.5) * rng.standard_normal(n))
            losses.append(np.mean((model.predict(X) - linear) ** 2) / np.mean(linear**2))
    plan = model.plan(n, d, signal=0.5, spectrum=np.ones(d))
    assert plan.unit == "half the widths of 'bounds'"
    assert 0.4 < np.mean(losses) / plan.error < 2.5


@pytest.mark.filterwarnings("ignore:.*a signal needs:UserWarning")
@pytest.mark.deep
@pytest.mark.parametrize(
    ("n", "d", "k", "epsilon"), [(400, 8, 2, 0.5), (1000, 8, 2, 0.5), (1000, 20, 2, 0.5)]
)
@pytest.mark.parametrize("signal", [0.5, None])
def test_expected_loss_of_components_by_default(n, d, k, epsilon, signal):
    """Learnt clip norms and means, rows of unequal length: within a factor of two."""
    if signal is None:
        rng = np.random.default_rng(3)
        axes = np.linalg.qr(rng.standard_normal((d, d)))[0]
        rows = rng.standard_normal((n, d)) / np.sqrt(np.arange(1, d + 1)) @ axes
    else:
        rows = make_spiked_rows(n, d, k, signal, random_state=1)
    centred = rows - rows.mean(axis=0)
    best = captured(centred, np.linalg.svd(centred, full_matrices=False)[2][:k])
    model = DPPCA(k, epsilon=epsilon)
    with seeded_entropy(0):
        losses = [1 - captured(centred, model.fit(rows).components_) / best for _ in range(12)]
    assert 0.5 < np.mean(losses) / model.plan(n, d, signal=signal).error < 2


@pytest.mark.deep
def test_too_few_rows_for_a_scale_are_too_few_for_a_fit():
    """The plan knows that a search in doubt brings nothing."""
    split = {"clip_norm": 1e-4, "count": 0.01, "subspace": 0.9, "ritz": 0.05, "trace": 0.04}
    model = DPPCA(1, epsilon=2.0, center="none", budget_split=split)
    assert model.plan(500, 8).error > 0.9 * model.plan(1, 8).error
    assert DPPCA(1, epsilon=2.0, center="none", clip_norm=1.0).plan(500, 8).error < 0.05
    assert DPRidge().plan(60, 4).error > 0.9


def columns_with(spectrum):
    """A root of the covariance of columns of variance 1 whose common spectrum is about this one."""
    d = len(spectrum)
    Q = np.linalg.qr(np.random.default_rng(1).standard_normal((d, d)))[0]
    C = (Q * spectrum) @ Q.T
    deviations = np.sqrt(np.diag(C))
    return np.linalg.cholesky(C / np.outer(deviations, deviations))


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["even", "one factor", "strong factor", "falling"])
@pytest.mark.parametrize(
    ("n", "d", "epsilon"), [(2000, 10, 1.0), (1500, 6, 2.0), (20_000, 20, 0.3)]
)
def test_expected_loss_of_a_ridge_by_default(n, d, epsilon, kind):
    """Learnt scales, columns far from 0 and correlated: within a factor of two."""
    roots = {
        kind: np.linalg.cholesky((1 - part) * np.eye(d) + part)
        for kind, part in {"even": 0.0, "one factor": 0.5, "strong factor": 0.9}.items()
    }
    roots["falling"] = columns_with(1 / np.arange(1, d + 1))
    root, rng, losses = roots[kind], np.random.default_rng(0), []
    C = root @ root.T
    model = DPRidge(1e-3, epsilon=epsilon)
    with seeded_entropy(5):
        for _ in range(8):
            X, w = rng.standard_normal((n, d)) @ root.T, rng.standard_normal(d)
            w *= math.sqrt(0.5 / (w @ C @ w))
            y = X @ w + math.sqrt(0.5) * rng.standard_normal(n)
            change = model.fit(X + 5, y + 9).coef_ - w
            losses.append(change @ C @ change / 0.5)
    spectrum = None if kind == "falling" else np.linalg.eigvalsh(C)
    expected = model.plan(n, d, signal=0.5, spectrum=spectrum).error
    assert 0.005 < expected < 0.5
    assert 0.5 < np.mean(losses) / expected < 2


def test_a_plan_without_a_spectrum_says_how_far_correlation_takes_it():
    """Its two ends are plans for columns without correlation, and for columns alike."""
    for model in (DPRidge(), DPRidgeClassifier(), DPRidge(bounds=(-1, 1), target_bounds=(-1, 1))):
        middle = model.plan(2000, 8)
        (said,) = [text for text in middle.assumptions if "correlation" in text]
        ends = [
            model.plan(2000, 8, spectrum=np.linalg.eigvalsh((1 - by) * np.eye(8) + by)).error
            for by in (0.0, 0.9)
        ]
        assert f"correlation of the columns {ends[0]:.2g} would" in said
        assert f"0.9 of all of them {ends[1]:.2g}:" in said
        assert ends[0] < middle.error < ends[1]
    given = DPRidge().plan(2000, 8, spectrum=np.ones(8))
    assert not any("correlation" in text for text in given.assumptions)


@pytest.mark.deep
@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_what_a_default_ridge_loses_lies_between_the_ends_of_its_plan(correlation):
    """Whatever all columns have in common, up to a factor of two at each end."""
    n, d, rng, losses = 2000, 8, np.random.default_rng(0), []
    C = (1 - correlation) * np.eye(d) + correlation
    with seeded_entropy(4):
        for _ in range(8):
            X = rng.standard_normal((n, d)) @ np.linalg.cholesky(C).T
            w = rng.standard_normal(d)
            w *= math.sqrt(0.5 / (w @ C @ w))
            change = DPRidge().fit(X, X @ w + math.sqrt(0.5) * rng.standard_normal(n)).coef_ - w
            losses.append(change @ C @ change / 0.5)
    low, high = (
        DPRidge().plan(n, d, spectrum=np.linalg.eigvalsh((1 - by) * np.eye(d) + by)).error
        for by in (0.0, 0.9)
    )
    assert low / 2 < np.mean(losses) < 2 * high


@pytest.mark.thorough
@pytest.mark.parametrize("spectrum", [[1.0], [1.0, -1.0], [0.0, 0.0], [1.0, math.nan]])
def test_a_spectrum_is_a_number_for_each_direction(spectrum):
    with pytest.raises(ValueError, match="spectrum"):
        DPRidge().plan(100, 2, spectrum=spectrum)


@pytest.mark.thorough
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
@pytest.mark.parametrize(("n", "d", "deviation"), [(500, 5, 0.25), (2000, 20, 0.3), (300, 3, 0.4)])
def test_expected_error_of_a_scale(n, d, deviation, adjacency):
    """Within 30% of the mean over fits."""
    rows = np.clip(deviation * np.random.default_rng(0).standard_normal((n, d)), -1, 1)
    model = DPStandardScaler(entry_bounds=(-1, 1), adjacency=adjacency)
    expected = model.plan(n, d, signal=float(rows.std(axis=0).mean())).error
    with seeded_entropy(0):
        errors = [np.abs(model.fit(rows).scale_ / rows.std(axis=0) - 1).mean() for _ in range(40)]
    assert np.mean(errors) == pytest.approx(expected, rel=0.3)


@pytest.mark.deep
def test_samples_needed():
    for model in (DPRidge(clip_norm=1.0), DPStandardScaler(), DPIncrementalPCA(2, clip_norm=1.0)):
        plan = model.plan(1000, 20)
        assert model.plan(plan.needed, 20).error <= 0.51
        assert model.plan(round(0.9 * plan.needed), 20).error > model.plan(plan.needed, 20).error


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore:.*found no eigenvalue:skdp.exceptions.PrivacyWarning")
@pytest.mark.parametrize(
    ("n", "epsilon", "algorithm", "most"),
    [(400, 1.0, "power", 0.1), (200, 4.0, "power", 0.1), (200, 4.0, "one_shot", 0.3)],
)
@pytest.mark.parametrize("times", [1.2, 2.0, 5.0])
def test_expected_error_of_a_pure_graph(n, epsilon, algorithm, most, times):
    """delta=0: within a factor of two, also near the threshold; nothing is found well below it."""
    model = DPSpectralEmbedding(
        1, normalization="none", epsilon=epsilon, delta=0.0, algorithm=algorithm
    )
    found = model.plan(n).found

    def error(density):
        links = np.triu(np.random.default_rng(0).random((n, n)) < density, 1).astype(float)
        links += links.T
        values, vectors = np.linalg.eigh(links)
        lost = []
        with seeded_entropy(0):
            for _ in range(4):
                embedding = model.fit(links).embedding_[:, 0]
                cosine = embedding @ vectors[:, -1] / np.linalg.norm(embedding)
                lost.append(1 - cosine**2)
        return np.mean(lost), model.plan(n, signal=values[-1]).error

    lost, expected = error(times * found / n)
    assert 0 < expected < most
    assert 0.5 < lost / expected < 2
    lost, expected = error(0.5 * found / n)
    assert lost > 0.7 and expected == 1.0


@pytest.mark.deep
def test_expected_error_of_a_pure_graph_with_degrees():
    graph, blocks = make_block_graph(300, 2, 60.0, 90.0, random_state=0)
    dense = graph.toarray()
    second = np.linalg.eigvalsh(dense)[-2]
    model = DPSpectralEmbedding(1, epsilon=2.0, delta=0.0)
    expected = model.plan(300, signal=second).error
    with seeded_entropy(0):
        signs = [np.sign(model.fit(graph).embedding_[:, 0]) for _ in range(3)]
    wrong = [min(np.mean(s == 2 * blocks - 1), np.mean(s == 1 - 2 * blocks)) for s in signs]
    assert 0 < expected < 0.1 and max(wrong) < 0.05
