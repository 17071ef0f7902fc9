"""Plans: the noise that a fit then has, an error near the one it then makes, and no data."""

import math

import numpy as np
import pytest

from skdp import (
    DPPCA,
    DPPersonalizedClassifier,
    DPPersonalizedRegressor,
    DPSpectralEmbedding,
    DPTraceRegressor,
    DPTruncatedSVD,
    PrivacyLedger,
    theory,
)
from skdp.datasets import (
    make_block_graph,
    make_interactions,
    make_spiked_rows,
    make_trace_regression,
    make_user_tasks,
)
from skdp.privacy.gate.session import PrivacySession
from skdp.testing import seeded_entropy

X = make_spiked_rows(400, 12, 2, 0.6, random_state=0)
TASKS = make_user_tasks(500, 6, random_state=0)
RECORDS = make_trace_regression(2000, (4, 3), 1, random_state=0)
GRAPH = make_block_graph(60, 2, 10.0, 20.0, random_state=0)[0]
LIKES = make_interactions(60, 30, 600, 3, random_state=0)

# estimator, data, shape; names in the ledger -> names in the plan, where they differ.
CASES = {
    "pca": (DPPCA(2, clip_norm=1.5), (X,), X.shape),
    "pca auto": (DPPCA(2), (X,), X.shape),
    "pca all": (DPPCA(clip_norm=1.0, adjacency="replace"), (X,), X.shape),
    "pca power": (DPPCA(2, clip_norm=1.0, svd_solver="power"), (X,), X.shape),
    "svd": (DPTruncatedSVD(2, clip_norm=1.0, adjacency="replace"), (X,), X.shape),
    "svd screened": (DPTruncatedSVD(2, clip_norm=1.0, algorithm="screened"), (X,), X.shape),
    "interactions": (DPTruncatedSVD(2, privacy_unit="interaction"), (LIKES,), LIKES.shape),
    "entries": (DPTruncatedSVD(2, privacy_unit="entry"), (X,), X.shape),
    "pure entries": (DPTruncatedSVD(1, privacy_unit="entry", delta=0.0), (X,), X.shape),
    "spectral": (DPTruncatedSVD(2, privacy_unit="spectral"), (X,), X.shape),
    "graph": (DPSpectralEmbedding(1), (GRAPH,), (60, 60)),
    "graph plain": (DPSpectralEmbedding(2, normalization="none"), (GRAPH,), (60, 60)),
    "trace": (DPTraceRegressor(1), RECORDS, (2000, (4, 3))),
    "trace label": (DPTraceRegressor(1, privacy_unit="label", design=1.0), RECORDS, (2000, (4, 3))),
    "users": (DPPersonalizedRegressor(2), TASKS, (500, 6)),
    "users replace": (DPPersonalizedRegressor(2, adjacency="replace"), TASKS, (500, 6)),
    "users random": (
        DPPersonalizedRegressor(2, init="random", whiten="diag", refine="cross"), TASKS, (500, 6),
    ),
    "users gram": (DPPersonalizedRegressor(1, init="pairs", refine="gram"), TASKS, (500, 6)),
}  # fmt: skip
# Releases whose sensitivity is public and does not move: plan and ledger agree.
FIXED = {
    "count", "mean", "projected_gram", "trace", "sums", "moment", "second_moment", "votes",
    "mean_head", "round", "cross_round", "gram_round", "variances", "pairs", "users",
}  # fmt: skip


def loss_of(line):
    """Square of a Gaussian loss, or a pure loss."""
    return line.loss.value ** (2 if line.loss.kind == "gaussian" else 1)


@pytest.mark.parametrize("case", CASES)
def test_plan_has_the_noise_of_the_fit(case):
    estimator, data, shape = CASES[case]
    plan = estimator.plan(*shape)
    assert sum(release.share for release in plan.releases) == pytest.approx(1.0, abs=1e-9)
    fitted = estimator.fit(*data)
    total = sum(map(loss_of, fitted.ledger_))
    unit = getattr(fitted, "clip_norm_", 1.0) if plan.unit == "clip_norm" else 1.0
    seen = set()
    for line in fitted.ledger_:
        name = "mean" if line.name == "sums" and "mean" in {r.name for r in plan.releases} else ""
        for release in plan.releases:
            if release.name == (name or line.name) and release.name in FIXED:
                noise = release.noise_scale * (
                    1.0 if release.name == "count" else unit ** (2 - (release.name == "mean"))
                )
                assert line.noise_scale == pytest.approx(noise, rel=1e-6), release
                assert loss_of(line) * release.times == pytest.approx(release.share * total)
                seen.add(release.name)
    assert seen or case in ("interactions", "entries", "pure entries", "spectral", "graph",
                            "graph plain", "trace label")  # fmt: skip
    assert str(plan).startswith("Plan")


@pytest.mark.parametrize("case", ["interactions", "entries", "spectral", "graph", "graph plain"])
def test_planned_products_have_about_the_noise_of_the_fit(case):
    """Their sensitivity depends on the released iterate: a spread one is assumed."""
    estimator, data, shape = CASES[case]
    plan = estimator.plan(*shape)
    name, noise = next((r.name, r.noise_scale) for r in plan.releases if "product" in r.name)
    lines = [line.noise_scale for line in estimator.fit(*data).ledger_ if line.name == name]
    assert 0.5 < np.median(lines) / noise < 2


def test_gradient_noise_is_in_units_of_the_clip_level():
    estimator, data, shape = CASES["trace"]
    step = next(r for r in estimator.plan(*shape).releases if r.name == "gradient step")
    lines = [line for line in estimator.fit(*data).ledger_ if line.name == "gradient_sum"]
    assert lines
    for line in lines:
        ratio = line.noise_scale / line.sensitivity
        assert ratio == pytest.approx(step.noise_scale / step.sensitivity, rel=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_plan_spends_and_reads_nothing(case, monkeypatch):
    estimator, _, shape = CASES[case]

    def refuse(*args):
        raise AssertionError("a plan reads nothing")

    monkeypatch.setattr(PrivacySession, "_read", refuse)
    before = {k: v for k, v in vars(estimator).items() if not k.endswith("_")}
    with PrivacyLedger(epsilon=1e-3, delta=1e-9) as ledger:
        estimator.plan(*shape)
        assert ledger.spent.epsilon == 0
    assert {k: v for k, v in vars(estimator).items() if not k.endswith("_")} == before
    generator = np.random.default_rng(0)
    state = generator.bit_generator.state
    type(estimator)(**estimator.get_params() | {"random_state": generator}).plan(*shape)
    assert generator.bit_generator.state == state


def captured(X, components):
    return np.sum((X @ components.T) ** 2) / np.sum(X**2)


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
    expected = estimator.plan(n, d, signal=share).error
    with seeded_entropy(0):
        losses = [1 - captured(rows, estimator.fit(rows).components_) / best for _ in range(6)]
    assert 0.01 < expected < 0.5
    assert 0.5 < np.mean(losses) / expected < 2


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


def test_expected_error_of_a_subspace():
    X, y, groups, coefs = make_user_tasks(1000, 12, 2, coef=True, random_state=0)
    basis = np.linalg.svd(coefs, full_matrices=False)[2][:2]
    split = {"init": 0.9, "head": 0.05, "global": 0.05}
    model = DPPersonalizedRegressor(2, n_rounds=0, whiten=False, budget_split=split)
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


def test_expected_error_of_entries():
    rng = np.random.default_rng(0)
    U, V = (np.linalg.qr(rng.standard_normal((n, 2)))[0] for n in (300, 200))
    model = DPTruncatedSVD(2, privacy_unit="entry", entry_bounds=(-1, 1))
    expected = model.plan(300, 200, signal=80).error
    with seeded_entropy(0):
        A = 80 * np.clip(U @ V.T, -1 / 80, 1 / 80)  # entries within the bounds
        right = np.linalg.svd(A)[2][:2]
        value = np.linalg.svd(A, compute_uv=False)[1]
        expected *= (80 / value) ** 2
        errors = [1 - np.sum((model.fit(A).components_ @ right.T) ** 2) / 2 for _ in range(4)]
    assert 0.4 < np.mean(errors) / expected < 2.5


def test_a_graph_below_the_threshold_is_not_found():
    model = DPSpectralEmbedding(1)
    plan = model.plan(1000, signal=20)
    assert plan.error == 1.0 and plan.found > 20
    assert model.plan(1000, signal=60).error < 0.05
    assert math.isnan(model.plan(1000).error)


def test_more_rows_and_more_budget_help():
    def error(n=3000, **params):
        return DPPCA(3, clip_norm=1.0, **params).plan(n, 40).error

    assert error(6000) < error() < error(adjacency="replace")
    assert error(epsilon=2.0) < error(epsilon=1.0)
    needed = DPPCA(3, clip_norm=1.0).plan(3000, 40).needed
    assert error(needed) < error(1) / 2 < error(int(needed * 0.95))


def test_many_components_of_few():
    assert 0 < DPTruncatedSVD(2).plan(1000, 3).error < 1
    assert DPTruncatedSVD(3).plan(1000, 3).error == 0


def test_no_noise():
    plan = DPPCA(2, epsilon=math.inf).plan(100, 10)
    assert plan.error == 0 and plan.needed == 0
    assert DPPCA(10, clip_norm=1.0).plan(100, 10).error == 0  # everything is kept


def test_messages():
    with pytest.raises(ValueError, match="positive number of samples"):
        DPPCA().plan(0, 5)
    for signal in (2, 0.1):
        with pytest.raises(ValueError, match="share in the range"):
            DPPCA(1).plan(10, 5, signal=signal)
    with pytest.raises(ValueError, match="'epsilon'"):
        DPPCA(epsilon=-1).plan(10, 5)
    with pytest.raises(ValueError, match="set 'matrix_shape'"):
        DPTraceRegressor().plan(100)
    with pytest.raises(ValueError, match="does not fit matrix_shape"):
        DPTraceRegressor(matrix_shape=(3, 3)).plan(100, 10)
    with pytest.raises(ValueError, match="as many features as nodes"):
        DPSpectralEmbedding().plan(10, 9)
    with pytest.raises(ValueError, match="'signal'"):
        DPPersonalizedClassifier().plan(10, 9, signal=0)


def test_plan_text():
    text = str(DPTruncatedSVD(2).plan(1000, 20))
    assert "no data was touched" in text and "unit: clip_norm" in text
    assert "clip norm search (8 times)" in text
    assert isinstance(DPTruncatedSVD(2).plan(1000, 20), theory.FitPlan)
