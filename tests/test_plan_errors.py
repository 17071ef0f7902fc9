"""Expected errors of plans: near those that fits then make."""

import math
from functools import partial

import numpy as np
import pytest
from sklearn.datasets import load_digits

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
SMALL_FITS = pytest.mark.filterwarnings(
    "ignore:.*a signal needs|.*sees nothing of about|.*stand above the noise|.*may be noise"
    "|.*found no eigenvalue:skdp.exceptions.PrivacyWarning"
)


def captured(X, components):
    return np.sum((X @ components.T) ** 2) / np.sum(X**2)


def squares_of(rows):
    return np.maximum(np.linalg.eigvalsh(rows.T @ rows), 0.0)


def outside(V, components):
    """Share of the directions of V that components miss."""
    return 1 - np.sum((components @ V) ** 2) / V.shape[1]


def directions(m, n, k, signs=False):
    """Orthonormal factors of an m x n matrix of rank k."""
    rng = np.random.default_rng(0)
    normal = (rng.standard_normal((side, k)) for side in (m, n))
    return (np.linalg.qr(np.sign(Z) if signs else Z)[0] for Z in normal)


# -- components of rows --------------------------------------------------------------------------


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


def spiked(n, d, k, share):
    return make_spiked_rows(n, d, k, share, random_state=1)


def within_bounds(n):
    """Rows that are shorter than bounds allow."""
    rng = np.random.default_rng(0)
    V = np.linalg.qr(rng.standard_normal((10, 2)))[0]
    X = 0.6 * rng.standard_normal((n, 2)) @ V.T + 0.17 * rng.standard_normal((n, 10))
    return np.clip(0.3 * X / np.sqrt(np.mean(X**2)), -1, 1)


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
    "spiked": (lambda: spiked(2000, 80, 4, 0.7), 4, (0.6,)),
    "few spiked rows": (lambda: spiked(400, 8, 2, 0.5), 2, (0.5,)),
    "within bounds": (lambda: within_bounds(1000), 2, (1.0,)),
}
# Learnt clip norms, a mean that is 0 or taken off, directions that depend on lengths.
LEARNT = [*TABLES][:9]
UNIT_ROWS = {"clip_norm": 1.0, "center": "none"}
# (tables, estimator and its settings, what a plan is told)
KNOWN = [
    (LEARNT, DPTruncatedSVD, {}, "spectrum and spread"),
    (LEARNT, DPPCA, {}, "spectrum and spread"),
    (["few spiked rows"], DPPCA, {}, "signal"),
    (["few rows"], DPPCA, {}, "nothing"),
    (["within bounds"], DPPCA, {"bounds": (-1, 1)}, "signal"),
    # What random starts leave of other directions counts, where there is little noise.
    (["slow", "fast", "one-hot", "digits"], DPTruncatedSVD,
     {"clip_norm": 1.0, "algorithm": "power"}, "spectrum"),
    *(
        (["spiked"], DPPCA,
         {"svd_solver": solver, "adjacency": adjacency} | UNIT_ROWS, "spectrum")
        for solver in ("gram", "power") for adjacency in ("add_remove", "replace")
    ),
]  # fmt: skip
COMPONENTS = {
    f"{name}, {told}, {kind.__name__} {settings}": (name, kind, settings, told)
    for names, kind, settings, told in KNOWN
    for name in names
}


@SMALL_FITS
@pytest.mark.thorough
@pytest.mark.parametrize("case", COMPONENTS)
def test_expected_loss_of_components(case):
    """Within a factor of two of the median over fits, of what the best components capture."""
    name, kind, settings, told = COMPONENTS[case]
    make, k, budgets = TABLES[name]
    rows = make()
    if "clip_norm" in settings:
        rows /= np.linalg.norm(rows, axis=1)[:, None]
    centred = kind is DPPCA and "center" not in settings
    judged = rows - rows.mean(axis=0) if centred else rows
    squares = squares_of(judged)
    facts = {"spectrum": squares} if told.startswith("spectrum") else {}
    if told == "spectrum and spread":
        facts["spread"] = np.std(np.log(np.linalg.norm(judged, axis=1)))
    if told == "signal":
        facts = {"signal": squares[-k:].sum() / squares.sum()}
    best = captured(judged, np.linalg.svd(judged, full_matrices=False)[2][:k])
    for epsilon in budgets:
        model = kind(k, epsilon=epsilon, **settings)
        with seeded_entropy(0):
            losses = [1 - captured(judged, model.fit(rows).components_) / best for _ in range(8)]
        assert 0.5 < np.median(losses) / model.plan(*rows.shape, **facts).error < 2.0


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


@SMALL_FITS
@pytest.mark.thorough
@pytest.mark.parametrize("mechanism", ["sqrt", "tree"])
@pytest.mark.parametrize("n_releases", [1, 16])
@pytest.mark.parametrize("clip_norm", [1.0, "auto"])
def test_expected_loss_of_a_stream(n_releases, mechanism, clip_norm):
    """Within a factor of two of the mean over streams, at the last release."""
    rows = spiked(3200, 30, 3, 0.5)
    if clip_norm == 1.0:
        rows /= np.linalg.norm(rows, axis=1)[:, None]
    best = captured(rows, np.linalg.svd(rows, full_matrices=False)[2][:3])
    options = {"clip_norm": clip_norm, "max_releases": n_releases, "mechanism": mechanism}
    losses = []
    with seeded_entropy(0):
        for _ in range(4):
            model = DPIncrementalPCA(3, epsilon=0.3 if n_releases == 1 else 0.8, **options)
            for part in np.array_split(rows, n_releases):
                model.partial_fit(part)
            losses.append(1 - captured(rows, model.components_) / best)
    expected = model.plan(3200, 30, signal=0.5).error
    assert 0.005 < expected < 0.5
    assert 0.5 < np.mean(losses) / expected < 2


@pytest.mark.deep
def test_more_rows_and_more_budget_help():
    def error(n=3000, **params):
        return DPPCA(3, clip_norm=1.0, **params).plan(n, 40).error

    assert error(6000) < error() < error(adjacency="replace")
    assert error(epsilon=2.0) < error(epsilon=1.0)
    needed = DPPCA(3, clip_norm=1.0).plan(3000, 40).needed
    assert error(needed) < error(1) / 2 < error(int(needed * 0.95))
    for model in (DPRidge(clip_norm=1.0), DPStandardScaler(), DPIncrementalPCA(2, clip_norm=1.0)):
        plan = model.plan(1000, 20)
        assert model.plan(plan.needed, 20).error <= 0.51
        assert model.plan(round(0.9 * plan.needed), 20).error > model.plan(plan.needed, 20).error


@pytest.mark.deep
def test_too_few_rows_for_a_scale_are_too_few_for_a_fit():
    """The plan knows that a search in doubt brings nothing."""
    split = {"clip_norm": 1e-4, "count": 0.01, "subspace": 0.9, "ritz": 0.05, "trace": 0.04}
    model = DPPCA(1, epsilon=2.0, center="none", budget_split=split)
    assert model.plan(500, 8).error > 0.9 * model.plan(1, 8).error
    assert DPPCA(1, epsilon=2.0, center="none", clip_norm=1.0).plan(500, 8).error < 0.05
    assert DPRidge().plan(60, 4).error > 0.9


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


# -- matrices and graphs -------------------------------------------------------------------------


def entries(shape):
    U, V = directions(*shape, 2, signs=True)
    return lambda value: value * U @ V.T, V


def cells(n, k=4):
    """Blocks of ones, anew at each call."""
    rng, labels = np.random.default_rng(0), np.arange(n) % k
    alike = labels[:, None] == labels
    made = lambda value: (rng.random((n, n)) < alike * value * k / n) * 1.0  # noqa: E731
    return made, np.eye(k)[labels] / math.sqrt(n / k)


PRODUCTS = {"algorithm": "alternating", "unit_bound": (-2, 2), "epsilon": 8.0}
MOMENT = {"algorithm": "gram", "unit_bound": (-2, 2), "clip_norm": 4.0}
# name -> (shape, components, settings, made matrix and its directions, times what is found)
FOUND = {
    "the moment": ((2000, 60), 2, MOMENT, entries, (1.3, 2.0)),
    "tall": ((1000, 40), 2, PRODUCTS, entries, (1.2, 2.0)),
    "wide": ((40, 1000), 2, PRODUCTS, entries, (1.2, 2.0)),
    "neither": ((300, 200), 2, PRODUCTS, entries, (1.2, 2.0)),
    "flipped cells": ((320, 320), 4, {"epsilon": 2.0, "algorithm": "one_shot"},
                      lambda shape: cells(shape[0]), (1.2, 3.0)),
}  # fmt: skip


@SMALL_FITS
@pytest.mark.thorough
@pytest.mark.parametrize("name", FOUND)
def test_expected_error_of_entries(name):
    """Within a factor of two, above what is found; well below there is next to nothing."""
    shape, k, settings, make, all_times = FOUND[name]
    made, V = make(shape)
    model = DPTruncatedSVD(k, privacy_unit="entry", **settings)
    found = model.plan(*shape).found

    def error(value):
        with seeded_entropy(0):
            return np.mean([outside(V, model.fit(made(value)).components_) for _ in range(6)])

    for times in all_times:
        expected = model.plan(*shape, signal=times * found).error
        assert 0.5 < error(times * found) / expected < 2
    if name != "the moment":
        assert error(0.4 * found) > 0.6 and model.plan(*shape, signal=0.4 * found).error > 0.9


UNEVEN = {
    "norm, tall": ((600, 150), {"privacy_unit": "frobenius"}, (0.3, 1.0), 300.0),
    "norm, wide": ((100, 500), {"privacy_unit": "frobenius"}, (0.3, 1.0), 300.0),
    "spectral norm": ((600, 150), {"privacy_unit": "spectral"}, (1.0, 3.0), 600.0),
    "entries": ((1200, 100), {"privacy_unit": "entry", "unit_bound": (-1, 1)}, (0.5, 1.0), 45.0),
    "one change": ((400, 200), {"privacy_unit": "entry_change"}, (0.3, 1.0), 200.0),
}


@SMALL_FITS
@pytest.mark.deep
@pytest.mark.parametrize("name", UNEVEN)
def test_expected_loss_where_singular_values_are_known(name):
    """Within a factor of two, also where some are found and others are not."""
    (m, n), unit, budgets, largest = UNEVEN[name]
    values = largest * np.array([1.0, 0.7, 0.5, 0.35])
    U, V = directions(m, n, 4)
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
    U, V = directions(*shape, k)
    A = value * U @ V.T
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


@SMALL_FITS
@pytest.mark.deep
@pytest.mark.parametrize("method", ["dense", "two_sketch", "three_sketch"])
def test_what_is_below_the_noise_is_not_found(method):
    model = DPLowRankFactorizer(2, method=method)
    plan = model.plan(300, 200)
    assert math.isnan(plan.error)
    assert model.plan(300, 200, signal=0.9 * plan.found).error == 1.0
    U, V = directions(300, 200, 2)
    with seeded_entropy(0):
        below, above = (
            [model.fit(times * plan.found * U @ V.T).rank_ for _ in range(4)]
            for times in (0.4, 1.5)
        )
    assert sum(below) <= 3 and above == [2] * 4


@pytest.mark.deep
def test_a_graph_below_the_threshold_is_not_found():
    model = DPSpectralEmbedding(1)
    plan = model.plan(1000, signal=20)
    assert plan.error == 1.0 and plan.found > 20
    assert model.plan(1000, signal=60).error < 0.05
    assert math.isnan(model.plan(1000).error)


@pytest.mark.deep
@SMALL_FITS
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


# -- regression ------------------------------------------------------------------------------------


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


def users(n, **settings):
    """Return tasks, their common subspace, and how much of it each user's own rows hold."""
    X, y, groups, coefs = make_user_tasks(n, 12, 2, coef=True, random_state=0, **settings)
    basis, inside = np.linalg.svd(coefs, full_matrices=False)[2][:2], []
    for user in range(200):
        A = X[groups == user]
        own = np.linalg.solve(A.T @ A + np.eye(12), A.T @ y[groups == user])
        inside.append(np.sum((basis @ own) ** 2) / np.sum(own**2))
    return (X, y), groups, coefs, basis, float(np.mean(inside))


@pytest.mark.thorough
def test_expected_error_of_a_subspace():
    rows, groups, _, basis, inside = users(1000)
    split = {"votes": 0.9, "head": 0.05, "columns": 0.02, "global": 0.03}
    bounds = {"target_bounds": (-9, 9)}
    model = DPPersonalizedRegressor(2, whiten=False, budget_split=split, **bounds)
    with seeded_entropy(0):
        fits = [model.fit(*rows, groups=groups).components_ for _ in range(3)]
    errors = [outside(basis.T, components) for components in fits]
    assert 0.5 < np.mean(errors) / model.plan(1000, 12, signal=inside).error < 2


@pytest.mark.deep
@pytest.mark.parametrize(
    ("n", "epsilon"), [(300, 0.4), (500, 0.3), (300, 1.0), (500, 1.0), (1000, 1.0), (1000, 4.0)]
)
@pytest.mark.parametrize("m", [10, 20])
def test_expected_risk_of_heads(n, epsilon, m):
    """Within a factor of two, of heads inside the subspace without intercepts."""
    rows, groups, coefs, _, inside = users(n, rows_per_user=m, noise_sd=0.7)
    power = np.mean(np.sum(coefs**2, 1))
    model = DPPersonalizedRegressor(2, epsilon=epsilon, head="subspace", fit_intercept=False)
    expected = model.plan(n, 12, signal=inside, n_rows=m, noise=0.49 / power).error
    with seeded_entropy(0):
        heads = [model.fit(*rows, groups=groups)._private["heads"][:, :-1] for _ in range(4)]
    risks = [np.mean((head - coefs) ** 2) for head in heads]
    assert 0.5 < 12 * np.mean(risks) / power / expected < 2


def of_length(length, rng, n, d):
    rows = rng.standard_normal((n, d))
    return length * rows / np.linalg.norm(rows, axis=1)[:, None]


def inside_bounds(rng, n, d):
    """Columns that fill a third of the bounds (5, 7)."""
    return 6 + np.clip(0.3 * rng.standard_normal((n, d)), -1, 1)


def correlated(root, rng, n, d):
    """Columns far from 0 that have a covariance with this root."""
    return 5 + rng.standard_normal((n, d)) @ root.T


def alike(part):
    """Covariance of columns that have a part in common."""
    return lambda d: (1 - part) * np.eye(d) + part


def falling_spectrum(d):
    """Covariance of columns of variance 1 whose common spectrum falls."""
    Q = np.linalg.qr(np.random.default_rng(1).standard_normal((d, d)))[0]
    C = (Q / np.arange(1, d + 1)) @ Q.T
    return C / np.sqrt(np.outer(np.diag(C), np.diag(C)))


BOUNDED = {"clip_norm": 1.0, "target_bounds": (-1, 1)}


def ridges():
    """Yield (rows of a generator, n, d, targets, signal, deviation of y, settings, facts)."""
    for n, d, q, signal, more in (
        (400, 10, 1, 0.5, {}),
        (1500, 30, 1, 0.8, {"fit_intercept": False}),
        (1000, 8, 1, 0.3, {"adjacency": "replace"}),
        (2000, 20, 3, 0.5, {}),
    ):
        edge = 1 / math.sqrt(q)
        more = {"clip_norm": 1.0, "target_bounds": (-edge, edge)} | more
        yield partial(of_length, 1.0), n, d, q, signal, edge / 2, more, {"spectrum": np.ones(d)}
    for length in (0.3, 0.6):
        more, facts = {"epsilon": 0.5} | BOUNDED, {"spectrum": np.ones(12), "length": length}
        yield partial(of_length, length), 5000, 12, 1, 0.8, 0.3, more, facts
    for n, d, epsilon in ((2000, 10, 1.0), (1000, 5, 2.0)):
        more = {"bounds": (5, 7), "target_bounds": (-3, 3), "epsilon": epsilon}
        yield inside_bounds, n, d, 1, 0.5, 1.0, more, {"spectrum": np.ones(d)}
    for covariance in (alike(0.0), alike(0.5), alike(0.9), falling_spectrum):
        for n, d, epsilon in ((2000, 10, 1.0), (1500, 6, 2.0), (20_000, 20, 0.3)):
            C = covariance(d)
            known = {} if covariance is falling_spectrum else {"spectrum": np.linalg.eigvalsh(C)}
            make = partial(correlated, np.linalg.cholesky(C))
            yield make, n, d, 1, 0.5, 1.0, {"epsilon": epsilon}, known


@SMALL_FITS
@pytest.mark.thorough
@pytest.mark.parametrize("case", range(20))
def test_expected_loss_of_a_ridge(case):
    """Within a factor of two of the mean over data and fits: public bounds, and learnt scales."""
    make, n, d, q, signal, deviation, settings, facts = [*ridges()][case]
    model, rng, losses = DPRidge(1e-3, **settings), np.random.default_rng(0), []
    far = 0.0 if "target_bounds" in settings else 9.0
    with seeded_entropy(5):
        for _ in range(8):
            X = make(rng, n, d)
            linear = (X - X.mean(axis=0)) @ rng.standard_normal((d, q))
            linear *= deviation * math.sqrt(signal) / linear.std(axis=0)
            noise = deviation * math.sqrt(1 - signal) * rng.standard_normal((n, q))
            found = model.fit(X, np.squeeze(far + linear + noise)).predict(X).reshape(n, q)
            losses.append(np.mean((found - found.mean(axis=0) - linear) ** 2) / np.mean(linear**2))
    plan = model.plan(n, d, n_targets=q, signal=signal, **facts)
    assert 0.005 < plan.error < 0.5
    assert 0.5 < np.mean(losses) / plan.error < 2
    assert (plan.unit == "half the widths of 'bounds'") == ("bounds" in settings)


def test_rows_longer_than_the_clip_norm_are_as_long():
    model, facts = DPRidge(epsilon=0.5, **BOUNDED), {"signal": 0.5, "spectrum": np.ones(12)}
    assert model.plan(5000, 12, length=2.0, **facts).error == model.plan(5000, 12, **facts).error


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


# -- what nothing has ------------------------------------------------------------------------------

MATRIX, HISTORIES = (DPTruncatedSVD(2, privacy_unit=unit) for unit in ("entry", "interaction"))
CLIPPED, CLASSES = DPRidge(clip_norm=1.0), DPRidgeClassifier(clip_norm=1.0)
# (estimator, argument of its plan for 100 rows of 5 columns, values that nothing has, the words)
WRONG = [
    (DPPCA(2), "spread", [-0.1, 6.0, "wide", True, math.nan], "'spread' must be None or a number"),
    (DPPCA(2), "spectrum", [[1.0, -1.0, 0, 0, 0]], "'spectrum' must be None or 5 numbers"),
    (MATRIX, "signal", [-1.0, math.nan, [2.0], True], "'signal' must be a positive number"),
    (MATRIX, "spectrum", [3.0, [], [1.0, 0.0], [math.inf]], "a list of positive numbers"),
    (HISTORIES, "spectrum", [[3.0]], "takes 'signal', not 'spectrum'"),
    (DPRidge(), "spectrum", [[1.0], np.arange(-1.0, 4), 5 * [0.0], 5 * [math.nan]], "spectrum"),
    (CLIPPED, "length", [0.0, -1.0, "long", True], "'length' must be None or a positive number"),
    (CLASSES, "length", [0.0, -1.0, "long", True], "'length' must be None or a positive number"),
    (DPRidge(), "length", [0.5], "with a finite 'clip_norm'"),
    (DPRidgeClassifier(), "length", [0.5], "with a finite 'clip_norm'"),
]


@pytest.mark.parametrize(
    ("model", "fact", "value", "match"),
    [(model, fact, value, match) for model, fact, values, match in WRONG for value in values],
)
def test_facts_that_nothing_has(model, fact, value, match):
    with pytest.raises(ValueError, match=match):
        model.plan(100, 5, **{fact: value})


@pytest.mark.parametrize("model", [DPPCA(2), MATRIX], ids=repr)
def test_one_of_two_facts(model):
    with pytest.raises(ValueError, match="'signal' or 'spectrum', not both"):
        model.plan(100, 5, spectrum=np.ones(5), signal=0.6)
