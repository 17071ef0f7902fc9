"""Plans of streams, factorizers, read-outs and scalers: the ledger's noise, an error that fits."""

import math

import numpy as np
import pytest

from skdp import (
    DPIncrementalPCA,
    DPLowRankFactorizer,
    DPRidge,
    DPRidgeClassifier,
    DPSpectralEmbedding,
    PrivacyLedger,
)
from skdp.datasets import make_block_graph, make_spiked_rows
from skdp.preprocessing import DPStandardScaler
from skdp.privacy.gate.session import PrivacySession
from skdp.testing import seeded_entropy

X = make_spiked_rows(400, 12, 2, 0.6, random_state=0)
Y = X[:, 0]
LABELS = np.arange(400) % 3
ENTRY = {"privacy_unit": "entry", "sketch": "sparse", "matrix_shape": X.shape}
ROW = {"privacy_unit": "row", "adjacency": "zero_out", "sensitivity_mode": "worst_case"}


def fitted(estimator):
    """Release once: by a stream where there is a shape or a number of releases."""
    if isinstance(estimator, DPIncrementalPCA):
        if estimator.max_releases == 1:
            return estimator.fit(X)
        return estimator.partial_fit(X)
    if isinstance(estimator, DPLowRankFactorizer):
        if estimator.matrix_shape is None:
            return estimator.fit(X)
        return estimator.update_matrix(X).release()
    if isinstance(estimator, DPStandardScaler):
        return estimator.fit(X)
    return estimator.fit(X, LABELS if isinstance(estimator, DPRidgeClassifier) else Y)


CASES = {
    "pca": (DPIncrementalPCA(2, clip_norm=1.5, max_releases=16), {}),
    "pca auto": (DPIncrementalPCA(2, max_releases=5, adjacency="replace"), {}),
    "pca tree": (DPIncrementalPCA(2, center="none", max_releases=9, mechanism="tree"), {}),
    "pca once": (DPIncrementalPCA(2, clip_norm=1.5, max_releases=1), {"stream": False}),
    "dense": (DPLowRankFactorizer(2), {}),
    "two": (DPLowRankFactorizer(2, method="two_sketch"), {}),
    "three": (DPLowRankFactorizer(2, method="three_sketch"), {}),
    "rows": (DPLowRankFactorizer(2, method="two_sketch", sketch="srht", **ROW), {}),
    "seed": (DPLowRankFactorizer(2, method="two_sketch", sketch_seed=3, **ROW), {}),
    "stream": (DPLowRankFactorizer(2, method="two_sketch", **ENTRY), {}),
    "sqrt": (DPLowRankFactorizer(2, method="two_sketch", max_releases=8, **ENTRY), {}),
    "window": (DPLowRankFactorizer(2, max_releases=8, window=3, **ENTRY), {}),
    "ridge": (DPRidge(), {}),
    "ridge bounds": (DPRidge(clip_norm=1.5, target_bounds=(-1, 1), adjacency="replace"), {}),
    "ridge origin": (DPRidge(fit_intercept=False), {}),
    "classes": (DPRidgeClassifier(classes=[0, 1, 2]), {}),
    "classes bounds": (DPRidgeClassifier(classes=[0, 1, 2], clip_norm=1.0), {"n_classes": 3}),
    "scaler": (DPStandardScaler(), {}),
    "scaler bounds": (DPStandardScaler(entry_bounds=(-1, 1), adjacency="replace"), {}),
}


@pytest.mark.parametrize("case", CASES)
def test_plan_has_the_noise_of_the_fit(case):
    estimator, options = CASES[case]
    plan = estimator.plan(*X.shape, **options)
    assert sum(release.share for release in plan.releases) == pytest.approx(1.0, abs=1e-9)
    model = fitted(estimator)
    unit = model.clip_norm_ if plan.unit == "clip_norm" else 1.0
    planned = [r for r in plan.releases if "search" not in r.name]
    lines = [line for line in model.ledger_ if line.name not in ("norm_quantile", "column_ranks")]
    assert len(lines) == len(planned) and sum(r.times for r in plan.releases) == len(model.ledger_)
    for release, line in zip(planned, lines, strict=True):
        power = 0 if line.name == "count" else 2
        assert line.noise_scale == pytest.approx(release.noise_scale * unit**power, rel=1e-6)
        assert line.sensitivity == pytest.approx(release.sensitivity * unit**power, rel=1e-6)
    assert str(plan).startswith("Plan") and plan.found >= 0
    if getattr(model, "n_releases_", None):
        model._drop_stream()


@pytest.mark.parametrize("case", CASES)
def test_plan_spends_and_reads_nothing(case, monkeypatch):
    estimator, options = CASES[case]

    def refuse(*args):
        raise AssertionError("a plan reads nothing")

    monkeypatch.setattr(PrivacySession, "_read", refuse)
    generator = np.random.default_rng(0)
    state = generator.bit_generator.state
    fresh = type(estimator)(**estimator.get_params() | {"random_state": generator})
    before = dict(vars(fresh))
    with PrivacyLedger(epsilon=1e-3, delta=1e-9) as ledger:
        fresh.plan(*X.shape, **options)
        assert ledger.spent.epsilon == 0
    assert vars(fresh) == before
    assert generator.bit_generator.state == state


@pytest.mark.parametrize("case", CASES)
def test_no_noise(case):
    estimator, options = CASES[case]
    exact = type(estimator)(**estimator.get_params() | {"epsilon": math.inf})
    if isinstance(exact, DPLowRankFactorizer):
        options = options | {"signal": 5.0}
    plan = exact.plan(*X.shape, **options)
    assert plan.needed == 0 and plan.found == 0
    assert plan.error <= (0.04 if isinstance(exact, DPRidge | DPRidgeClassifier) else 0)


def captured(rows, components):
    return np.sum((rows @ components.T) ** 2) / np.sum(rows**2)


@pytest.mark.parametrize("mechanism", ["sqrt", "tree"])
@pytest.mark.parametrize("n_releases", [1, 16])
def test_expected_loss_of_a_stream(n_releases, mechanism):
    """Within a factor of two of the mean over streams, at the last release."""
    rows = make_spiked_rows(3200, 30, 3, 0.5, random_state=1)
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    best = captured(rows, np.linalg.svd(rows, full_matrices=False)[2][:3])
    epsilon = 0.3 if n_releases == 1 else 0.8
    options = {"clip_norm": 1.0, "max_releases": n_releases, "mechanism": mechanism}
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


@pytest.mark.parametrize("method", ["dense", "two_sketch", "three_sketch"])
@pytest.mark.parametrize(("shape", "k"), [((200, 150), 4), ((400, 60), 2)])
@pytest.mark.parametrize("n_releases", [1, 6])
def test_expected_error_of_a_factorization(method, shape, k, n_releases):
    """Within 40% of the mean of three, of one release and of the last of six."""
    params = {"method": method, "oblivious": True}
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
    expected = model.plan(n, d, n_targets=q, signal=signal).error
    assert 0.05 < expected < 0.5
    assert 0.5 < np.mean(losses) / expected < 2


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


def test_samples_needed():
    for model in (DPRidge(clip_norm=1.0), DPStandardScaler(), DPIncrementalPCA(2, clip_norm=1.0)):
        plan = model.plan(1000, 20)
        assert model.plan(plan.needed, 20).error <= 0.51
        assert model.plan(round(0.9 * plan.needed), 20).error > model.plan(plan.needed, 20).error


def test_messages():
    with pytest.raises(ValueError, match="positive number of samples"):
        DPIncrementalPCA().plan(0, 5)
    with pytest.raises(ValueError, match="positive number of samples"):
        DPLowRankFactorizer().plan()
    with pytest.raises(ValueError, match="positive number of samples"):
        DPStandardScaler().plan(5, 0)
    with pytest.raises(ValueError, match="positive n_samples"):
        DPRidge().plan(0, 5)
    with pytest.raises(ValueError, match="positive columns"):
        DPRidge().plan(10, 5, n_targets=0)
    for model in (DPRidge(), DPStandardScaler(), DPRidgeClassifier()):
        with pytest.raises(ValueError, match="'signal'"):
            model.plan(10, 5, signal=2.0)
    with pytest.raises(ValueError, match="must have the shape"):
        DPLowRankFactorizer(matrix_shape=(5, 5)).plan(5, 6)


@pytest.mark.parametrize(("n", "epsilon"), [(400, 1.0), (200, 4.0)])
@pytest.mark.parametrize("times", [1.2, 2.0, 5.0])
def test_expected_error_of_a_pure_graph(n, epsilon, times):
    """delta=0: within a factor of two, also near the threshold; nothing is found well below it."""
    model = DPSpectralEmbedding(1, normalization="none", epsilon=epsilon, delta=0.0)
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
    assert 0 < expected < 0.2
    assert 0.5 < lost / expected < 2
    lost, expected = error(0.5 * found / n)
    assert lost > 0.7 and expected == 1.0


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
