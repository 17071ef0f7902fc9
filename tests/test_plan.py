"""A plan fits synthetic data: it charges no budget, and estimates the error of a fit."""

import math
import pickle
import statistics

import numpy as np
import pytest
from scipy.stats import skew
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import accuracy_score, adjusted_rand_score, r2_score

import skdp
from skdp import datasets, theory
from skdp.exceptions import BudgetExceededError
from skdp.graph import DPSpectralEmbedding
from skdp.preprocessing import DPStandardScaler
from skdp.privacy.gate.bounds import PrivacyBudget
from skdp.privacy.ledger.routes import on_made_data
from skdp.privacy.noise import words
from skdp.recommend import DPRecommender
from skdp.regression._plans import linear_classes
from skdp.theory import _made, _plan
from skdp.theory._plan import thinned_budget
from tools.outcomes import messages_of
from tools.ways import ESTIMATORS

TRACE = [
    skdp.DPTraceRegressor(1, matrix_shape=(4, 3)),
    skdp.DPTraceRegressor(1, matrix_shape=(4, 3), solver="spectral_init",
                          measurement_covariance=(np.eye(4), np.eye(3))),
    skdp.DPTraceRegressor(1, matrix_shape=(2, 1), solver="spectral_init",
                          measurement_covariance=np.eye(2)),
    skdp.DPTraceRegressor(1, matrix_shape=(2, 1), solver="spectral_init",
                          measurement_covariance=2.0),
    skdp.DPTraceRegressor(1, matrix_shape=(4, 3), privacy_unit="label", adjacency="replace"),
]  # fmt: skip
STREAMS = [
    skdp.DPIncrementalPCA(2, max_releases=5, mechanism="tree"),
    skdp.DPLowRankFactorizer(2, max_releases=8, window=3, matrix_shape=(60, 8),
                             privacy_unit="entry"),
    skdp.DPLowRankFactorizer(2, max_releases=4, matrix_shape=(60, 8), privacy_unit="row",
                             adjacency="zero_out"),
]  # fmt: skip


def shape_for(estimator):
    center, unit = getattr(estimator, "center", None), getattr(estimator, "privacy_unit", "")
    if isinstance(estimator, skdp.DPTraceRegressor):
        return (3000, estimator.matrix_shape)
    if unit in ("edge", "edge_change", "mixed"):
        return (40, 40)
    users = getattr(estimator, "head_selection", None) is not None  # of ten rows each
    return (20 if users else 60, len(center) if isinstance(center, np.ndarray) else 8)


@pytest.mark.parametrize(
    "estimator",
    [
        pytest.param(
            e, marks=[pytest.mark.deep] * isinstance(e, skdp.DPPersonalizedClassifier), id=repr(e)
        )
        for e in ESTIMATORS + TRACE + STREAMS
    ],
)
def test_plan_spends_and_draws_nothing(estimator, monkeypatch):
    """In an open ledger of a tiny budget, without the system's entropy, equal each time."""

    def refuse(*_):
        raise AssertionError("a plan draws nothing from the system")

    monkeypatch.setattr(words, "_system_words", refuse)
    monkeypatch.setattr(_plan, "N_FITS", 1)
    generator = np.random.default_rng(0)
    state = generator.bit_generator.state
    params = estimator.get_params() | {"random_state": generator}
    if params.get("max_releases"):
        params["max_releases"] = min(params["max_releases"], 8)
    fresh = type(estimator)(**params)
    before = dict(vars(fresh))
    with skdp.PrivacyLedger(epsilon=1e-3, delta=1e-9) as ledger:
        plan = fresh.plan(*shape_for(estimator))
        assert ledger.spent.epsilon == 0 and not ledger.entries
    assert vars(fresh) == before
    assert generator.bit_generator.state == state
    assert str(plan) == str(pickle.loads(pickle.dumps(plan)))
    assert str(plan).startswith("Plan") and plan.releases
    assert plan.low <= plan.score <= plan.high
    assert plan.error >= 0 or math.isnan(plan.error)
    if estimator.epsilon == math.inf:
        assert plan.required_samples == plan.n_samples and plan.error < 0.01


@pytest.mark.deep
@pytest.mark.filterwarnings("error")  # numpy's of a single row are not shown
@pytest.mark.parametrize("model", [skdp.DPRidgeClassifier(classes=[0, 1]), skdp.DPScoreDensity()])
def test_plan_is_the_same_each_time(model):
    assert str(model.plan(1, 8)) == str(model.plan(1, 8))


ROWS = np.random.default_rng(0).standard_normal((300, 3))


class FitsPrivateRows:
    """A public-looking parameter whose numbers are asked for in the middle of a planned fit."""

    def __init__(self, values):
        self.values = values
        self.model = skdp.DPPCA(1, clip_norm=1.0)

    def __array__(self, dtype=None, copy=None):
        self.model.fit(ROWS)
        return np.asarray(self.values, dtype)


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_others_pay_inside_a_plan():
    """Only one object may fit without a charge: the copy that the plan made."""
    copy, other = skdp.DPPCA(1, clip_norm=1.0), skdp.DPPCA(1, clip_norm=1.0, epsilon=0.5)
    with skdp.PrivacyLedger(epsilon=0.6, delta=1e-5) as ledger:
        with on_made_data(copy):
            copy.fit(ROWS)
            assert ledger.spent.epsilon == 0
            other.fit(ROWS)
        assert [entry.estimator for entry in ledger.entries] == ["DPPCA"]
    with pytest.raises(BudgetExceededError), skdp.PrivacyLedger(epsilon=0.6, delta=1e-5):
        copy.fit(ROWS)  # afterwards it may not


@pytest.mark.parametrize("kind", ["parameter", "fact"])
def test_parameters_cannot_fit_for_nothing(kind):
    """What a user's parameter fits while a plan runs is charged as any fit."""
    odd = FitsPrivateRows([1.0, 2.0, 3.0])
    model, facts = skdp.DPPCA(1, center=odd), {}
    if kind == "fact":
        model, facts = skdp.DPPCA(1), {"spectrum": odd}
    with pytest.raises(BudgetExceededError), skdp.PrivacyLedger(1e-3, 1e-9):
        model.plan(100, 3, **facts)
    assert not hasattr(odd.model, "components_")


def test_fewer_rows_have_less_noise_in_proportion():
    stated = PrivacyBudget(1.0, 1e-6)
    for behind in (2.0, 25.0, 30.0, 55.0, 100.0, 160.0):  # in one draw of noise as long as it can
        for split in (False, True)[behind > 60 :]:
            budget = PrivacyBudget(**thinned_budget(stated, behind, 40.0), split=split)
            assert 1 - 2e-3 < budget.mu / (behind * stated.mu) < (1.1 if behind > 60 else 1 + 2e-3)
            assert (budget.copies == 1) == (behind < 60)
    assert thinned_budget(PrivacyBudget(1.0, 0.0), 30.0, 14.0) == {"epsilon": 30.0, "delta": 0.0}
    assert PrivacyBudget(**thinned_budget(stated, 160.0, 14.0)).mu == pytest.approx(14, rel=2e-3)
    with skdp.PrivacyLedger(epsilon=1.0):  # which prices budgets that are not split
        inside = str(skdp.DPPCA(3, clip_norm=1.0).plan(400_000, 100))
    assert inside == str(skdp.DPPCA(3, clip_norm=1.0).plan(400_000, 100))
    few, many = (skdp.DPPCA(3, clip_norm=1.0).plan(n, 100, skew=[0] * 100) for n in (4000, 40000))
    assert few.releases[0].noise_scale == pytest.approx(many.releases[0].noise_scale, rel=1e-3)
    assert many.error < few.error / 5


# -- a plan against fits on data of other generators -----------------------------------------------


def lost_rows(model, X):
    X = X - X.mean(axis=0)
    best = np.sum(np.linalg.eigvalsh(X.T @ X)[-len(model.components_) :])
    return 1 - np.sum((X @ np.linalg.qr(model.components_.T)[0]) ** 2) / best


def of_rows(estimator, n, d, k, share):
    X = math.sqrt(d) * datasets.make_spiked_rows(n, d, k, share, random_state=5)
    X += X**2 / 3
    values = np.linalg.eigvalsh(np.cov(X.T))
    if estimator.clip_norm != "auto":
        estimator.clip_norm = float(np.median(np.linalg.norm(X - X.mean(axis=0), axis=1)))
    plan = estimator.plan(n, d, spectrum=values, skew=skew(X))
    return plan.error, lambda: lost_rows(clone(estimator).fit(X), X)


def of_interactions(estimator, n, d, nnz):
    R = datasets.make_interactions(n, d, nnz, 20, random_state=5)
    rows = R.toarray() / np.sqrt(np.maximum(np.diff(R.indptr), estimator.unit_bound or 5))[:, None]
    values = np.linalg.svd(rows, compute_uv=False) ** 2
    k = estimator.n_components
    signal = float(values[:k].sum() / values.sum())
    plan = estimator.plan(n, d, nnz=R.nnz, signal=signal, apart=True)

    def lost():
        V = clone(estimator).fit(R).components_
        return 1 - np.sum((rows @ V.T) ** 2) / values[:k].sum()

    return plan.error, lost


def of_likes(estimator, n, d, nnz):
    """Likes and dislikes by three factors, in cells that are known at random."""
    rng = np.random.default_rng(5)
    likes = np.sign(rng.standard_normal((n, 3)) @ rng.standard_normal((3, d)))
    X = likes * (rng.random((n, d)) < nnz / (n * d) * rng.gamma(1.0, size=(n, 1)))
    values = np.linalg.svd(X, compute_uv=False) ** 2
    signal = float(values[: estimator.n_components].sum() / values.sum())
    plan = estimator.plan(n, d, nnz=np.count_nonzero(X), signal=signal)

    def lost():
        V = clone(estimator).fit(X).components_
        return 1 - np.sum((X @ V.T) ** 2) / values[: len(V)].sum()

    return plan.error, lost


def of_table(estimator, n, d):
    """Correlated columns in units of their own, and a target of noisy factors."""
    rng = np.random.default_rng(5)
    Z = rng.standard_t(6, (n, 3))
    X = Z @ rng.standard_normal((3, d)) + rng.standard_normal((n, d))
    X = (X + 1.0) * np.exp(rng.standard_normal(d))
    f = Z @ [1.0, -1.0, 0.5]
    y = f + f.std() * rng.standard_normal(n)
    scaled = (X - X.mean(axis=0)) / X.std(axis=0)
    own = clone(estimator).set_params(epsilon=math.inf)
    classes = isinstance(estimator, skdp.DPRidgeClassifier)
    y = (y > np.median(y)).astype(int) if classes else y
    gauge = accuracy_score if classes else r2_score
    best, trivial = gauge(y, own.fit(X, y).predict(X)), 0.5 if classes else 0.0
    values, share = np.linalg.eigvalsh(np.cov(scaled.T)), LinearRegression().fit(X, y).score(X, y)
    plan = estimator.plan(n, d, spectrum=values, signal=share, skew=skew(X))

    def lost():
        found = gauge(y, clone(estimator).fit(X, y).predict(X))
        return (best - found) / (best - trivial)

    return plan.error, lost


def of_matrix(estimator, n, shape):
    X, y = datasets.make_trace_regression(n, shape, 1, noise_sd=1.0, random_state=5)
    plan = estimator.plan(n, shape, signal=1.0)
    own = clone(estimator).set_params(epsilon=math.inf)
    best = r2_score(y, own.fit(X, y).predict(X))
    return (plan.error, lambda: 1 - r2_score(y, clone(estimator).fit(X, y).predict(X)) / best)


def of_users(estimator, n, d, m):
    k, classes = estimator.n_components, not isinstance(estimator, skdp.DPPersonalizedRegressor)
    data = {"noise_sd": math.sqrt(k / 2), "rows_per_user": 2 * m, "random_state": 5}
    X, y, groups = datasets.make_user_tasks(n, d, k, **data)
    rng = np.random.default_rng(6)
    y += X @ rng.standard_normal(d) * math.sqrt(k / d)  # half of what is explained is common
    y += 2 * math.sqrt(k) * rng.standard_normal(n)[groups]
    y = y > 0 if classes else y
    shown = np.arange(len(y)) % (2 * m) < m
    gauge, trivial = (accuracy_score, 0.5) if classes else (r2_score, 0.0)

    def found(model):
        model.fit(X[shown], y[shown], groups=groups[shown])
        return gauge(y[~shown], model.predict(X[~shown], groups=groups[~shown]))

    best = found(clone(estimator).set_params(epsilon=math.inf))
    plan = estimator.plan(n, d, n_rows=m)
    return plan.error, lambda: (best - found(clone(estimator))) / (best - trivial)


def of_graph(estimator, n):
    A, labels = datasets.make_block_graph(n, 2, gap=30.0, mean_degree=60.0, random_state=5)
    plan = estimator.plan(n, signal=30.0)

    def lost():
        found = KMeans(2, n_init=3, random_state=0).fit_predict(clone(estimator).fit(A).embedding_)
        return 1 - adjusted_rand_score(labels, found)

    return plan.error, lost


def of_columns(estimator, n, d):
    X = np.random.default_rng(5).logistic(3.0, 2.0, (n, d))
    plan = estimator.plan(n, d, skew=skew(X))
    return plan.error, lambda: np.mean(np.abs(clone(estimator).fit(X).scale_ / X.std(axis=0) - 1))


def of_factors(estimator, shape, value):
    rng = np.random.default_rng(5)
    left, right = (np.linalg.qr(rng.standard_normal((s, estimator.n_components)))[0] for s in shape)
    A = value * left @ right.T
    plan = estimator.plan(*shape, signal=value)

    def lost():
        return np.linalg.norm(A - clone(estimator).fit(A).reconstruct()) / np.linalg.norm(A)

    return plan.error, lost


COMPARED = {
    "rows, learnt clip norm": lambda: of_rows(skdp.DPPCA(3, epsilon=0.5), 1500, 20, 3, 0.5),
    "rows, given clip norm": lambda: of_rows(skdp.DPPCA(4, clip_norm=1.0), 1500, 50, 4, 0.3),
    "rows, thinned": lambda: of_rows(skdp.DPPCA(5, epsilon=0.1), 20_000, 200, 5, 0.4),
    "rows, products": lambda: of_rows(
        skdp.DPPCA(3, svd_solver="power", clip_norm=1.0, epsilon=0.15), 3000, 40, 3, 0.5
    ),
    "interactions": lambda: of_interactions(
        skdp.DPTruncatedSVD(10, privacy_unit="interaction"), 3000, 300, 60_000
    ),
    "signed entries": lambda: of_likes(
        skdp.DPTruncatedSVD(3, privacy_unit="entry", unit_bound=(-1, 1), epsilon=3),
        1000,
        150,
        20_000,
    ),
    "ridge, small budget": lambda: of_table(skdp.DPRidge(epsilon=0.5), 3000, 8),
    "ridge classifier": lambda: of_table(
        skdp.DPRidgeClassifier(classes=[0, 1], epsilon=0.25), 2000, 8
    ),
    "trace": lambda: of_matrix(skdp.DPTraceRegressor(1, epsilon=0.8), 2000, (20, 15)),
    "users": lambda: of_users(skdp.DPPersonalizedRegressor(2), 300, 10, 8),
    "user classes": lambda: of_users(skdp.DPPersonalizedClassifier(1, epsilon=0.2), 400, 10, 10),
    "graph": lambda: of_graph(skdp.DPSpectralEmbedding(1, epsilon=1.2), 400),
    "scaler": lambda: of_columns(DPStandardScaler(epsilon=0.5), 2000, 10),
    "factors": lambda: of_factors(skdp.DPLowRankFactorizer(2), (100, 60), 400.0),
    "stream": lambda: of_stream(skdp.DPIncrementalPCA(3, max_releases=32, epsilon=0.3), 4000, 20),
}


def of_stream(estimator, n, d):
    X = datasets.make_spiked_rows(n, d, 3, 0.5, random_state=5)
    values = np.linalg.eigvalsh(np.cov(X.T))
    plan = estimator.plan(n, d, signal=float(values[-3:].sum() / values.sum()), skew=skew(X))

    def lost():
        model = clone(estimator)
        for part in np.array_split(X, estimator.max_releases):
            model.partial_fit(part)
        return lost_rows(model, X)

    return plan.error, lost


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("case", COMPARED)
def test_plan_is_within_two_of_fits(case):
    planned, lost = COMPARED[case]()
    measured = statistics.median(lost() for _ in range(9))
    assert 0.01 < measured < 0.9, "nothing can be compared"
    assert 0.5 < measured / planned < 2, (planned, measured)


@pytest.mark.thorough
def test_what_is_needed_halves_the_loss():
    pca, even = skdp.DPPCA(3, clip_norm=1.0), np.zeros(40)
    plan = pca.plan(1000, 40, skew=even)
    assert 0.35 < pca.plan(plan.required_samples, 40, skew=even).error / plan.error < 0.7
    assert math.isinf(skdp.DPRidge(epsilon=0.1).plan(100, 30).required_samples)
    for model, n, d in ((skdp.DPRidge(), 5000, 30), (skdp.DPRidgeClassifier(), 3000, 20)):
        plan = model.plan(n, d)  # the rows of larger data begin with the same ones
        assert 0.35 < model.plan(plan.required_samples, d).error / plan.error < 0.7


def test_more_rows_are_not_asked_for_where_they_add_noise():
    plan = DPSpectralEmbedding(2, epsilon=0.1).plan(20)
    assert plan.error > 0.5 and math.isnan(plan.required_samples)
    assert "Half" not in str(pickle.loads(pickle.dumps(plan)))
    for unit, more in (("row", True), ("frobenius", False)):
        svd = skdp.DPTruncatedSVD(1, privacy_unit=unit, epsilon=0.1)
        (said,) = (x for x in messages_of(svd.fit, np.zeros((9, 4))) if "learnt nothing" in x)
        assert ("more rows" in said) == more


@pytest.mark.thorough
def test_personal_plans_have_values_where_fits_work():
    plan = skdp.DPPersonalizedRegressor(2).plan(5000, 4, n_rows=10)
    assert plan.error < 0.05
    assert all(math.isfinite(value) for value in (plan.error, plan.score, plan.best))


@pytest.mark.deep
@pytest.mark.parametrize("facts", [{"levels": 0, "noise": 9}, {"levels": 30, "noise": 2}])
def test_personal_plans_explain_what_is_stated(facts):
    """Slopes have 1, levels what is stated; the rest of the variance is noise."""
    plan = skdp.DPPersonalizedRegressor(2, epsilon=math.inf).plan(300, 3, n_rows=60, **facts)
    explained = (1 + facts["levels"]) / (1 + facts["levels"] + facts["noise"])
    assert plan.best == pytest.approx(explained, abs=0.06)


@pytest.mark.thorough
def test_plans_of_balanced_weights_are_judged_by_balanced_accuracy():
    """Such weights lower the accuracy on purpose: by it, they would lose more than there is."""
    model = skdp.DPRidgeClassifier(classes=[*"abc"], class_weight="balanced", epsilon=8.0)
    plan = model.plan(3000, 5, priors=[0.79, 0.17, 0.04])
    assert plan.trivial == pytest.approx(1 / 3) and plan.error < 0.3
    assert plan.metric.startswith("balanced accuracy")


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_rows_without_entries_have_a_plan():
    plan = skdp.DPRidgeClassifier(classes=[0, 1]).plan(100, 20, nnz=1)
    assert 0 < plan.score < 1


POSITIVE, SIGNAL = "positive integer 'n_samples'", "'signal'"
MESSAGES = [
    (skdp.DPPCA(), (0, 5), {}, POSITIVE),
    (skdp.DPLowRankFactorizer(), (10.5, 5), {}, POSITIVE),
    (skdp.DPRidge(), (10, 5), {"n_targets": 0}, "positive integer 'n_targets'"),
    (skdp.DPRidge(), (10, 5), {"signal": np.ones((10, 5))}, "public. Got a ndarray"),
    (skdp.DPPCA(1), (10, 5), {"signal": 0.1}, "fraction in the range"),
    (skdp.DPPCA(1), (10, 2), {"signal": 0.7, "spectrum": [1, 2]}, "not both"),
    (skdp.DPPCA(1), (10, 2), {"spectrum": [1, -2]}, "'spectrum'"),
    (skdp.DPPersonalizedClassifier(), (10, 9), {"levels": [1, 2]}, "'levels' must be a number"),
    (skdp.DPPersonalizedRegressor(), (10, 9), {"noise": math.nan}, "'noise' must be a number"),
    (skdp.DPRidge(), (10, 5), {"signal": 2.0}, SIGNAL),
    (DPStandardScaler(), (10, 5), {"signal": 2.0}, SIGNAL),
    (skdp.DPRidgeClassifier(), (10, 5), {"signal": 2.0}, SIGNAL),
    (skdp.DPRidge(), (10, 5), {"skew": [0.5, 1]}, "'skew' must be None or 5"),
    (skdp.DPRidgeClassifier(), (10, 5), {"priors": [1, -1]}, "'priors' must be None or 2"),
    (skdp.DPPCA(epsilon=-1), (10, 5), {}, "'epsilon'"),
    (skdp.DPTraceRegressor(), (100,), {}, "set 'matrix_shape'"),
    (skdp.DPTraceRegressor(matrix_shape=(3, 3)), (100, 10), {}, "does not fit matrix_shape"),
    (skdp.DPTraceRegressor(matrix_shape=(3000, 1100)), (9000,), {}, "nnz=1"),
    (skdp.DPSpectralEmbedding(), (10, 9), {}, "as many features as nodes"),
    (skdp.DPTruncatedSVD(privacy_unit="edge"), (2, 5), {}, "needs a square symmetric matrix"),
    (skdp.DPLowRankFactorizer(matrix_shape=(5, 5)), (5, 6), {}, "must have the shape"),
    (skdp.DPPCA(bounds={"age": (0, 100), "height": (1, 2)}), (1000, 3), {}, "for 3 columns"),
    (skdp.DPRidge(), (10, 5), {"signal": [0.5]}, SIGNAL),
    (DPRecommender(), (np.int8(100), np.int8(100)), {"nnz": 10_001}, r"range \[1, 10000\]"),
    (skdp.DPTruncatedSVD(privacy_unit="frobenius"), (10, 10), {"nnz": 5}, "use 'signal'"),
]


@pytest.mark.parametrize(("model", "shape", "facts", "match"), MESSAGES)
def test_messages(model, shape, facts, match):
    with pytest.raises(ValueError, match=match):
        model.plan(*shape, **facts)


def test_unknown_facts_are_named():
    with pytest.raises(TypeError, match=r"takes the facts \['signal', .*Got \['decay'\]"):
        skdp.DPPCA().plan(100, 3, decay=1.0)


@pytest.mark.parametrize("k", [None, 5, "auto"])
def test_noise_in_all_directions_is_no_gain(k):
    """Components in all directions capture everything, and "auto" may keep none of them."""
    plan = skdp.DPPCA(k).plan(30, 5)
    assert plan.error > 0.2 and plan.required_samples > 30 and "the first 1 of 5" in str(plan)


def test_the_measure_is_that_of_the_parameters():
    assert "of the scales" in DPStandardScaler()._measure
    assert "of the means" in DPStandardScaler(with_std=False)._measure
    assert "a quarter of a small catalogue" in DPRecommender()._measure


def test_plan_text():
    plan = skdp.DPTruncatedSVD(2).plan(1e3, 20)  # a whole number
    assert "no data was touched" in (text := str(plan)) and "of the gain" in text
    assert isinstance(plan, theory.FitPlan) and "norm_centered_rank (" in text


@pytest.mark.thorough
def test_bounds_by_column_name_need_no_columns():
    for kind in (skdp.DPPCA, skdp.DPRidge, DPStandardScaler):
        names, order = {"age": (0, 100), "height": (1, 2)}, [(0, 100), (1, 2)]
        assert str(kind(bounds=names).plan(1000, 2)) == str(kind(bounds=order).plan(1000, 2))


def test_made_rows_have_the_stated_facts():
    rng, shares = np.random.default_rng(0), np.array([0.5, 0.3, 0.15, 0.05])
    X = _made.made_rows(rng, 20_000, shares)
    assert np.linalg.eigvalsh(np.cov(X.T))[::-1] == pytest.approx(shares, rel=0.05)
    assert skew(_made.skewed(rng, X, [0, -0.5, 1, 2])) == pytest.approx([0, 0.5, 1, 2], abs=0.2)


@pytest.mark.parametrize(("priors", "share"), [([7, 3], 0.4), ([97, 1, 2], 0.05), ([1, 1, 1], 0.2)])
def test_made_classes_have_the_stated_facts(priors, share):
    """Where rows are skewed too; beyond what scores can explain, classes are separable."""
    rng = np.random.default_rng(0)
    X = _made.skewed(rng, _made.made_rows(rng, 2000, np.full(5, 0.2)), 3.0)
    labels = linear_classes(rng, X, np.array(priors), share)
    ones = np.eye(len(priors))[labels]
    assert np.bincount(labels) / 2000 == pytest.approx(np.array(priors) / sum(priors), abs=1e-3)
    found = r2_score(
        ones, LinearRegression().fit(X, ones).predict(X), multioutput="variance_weighted"
    )
    assert found == pytest.approx(share, abs=0.03)
    most = linear_classes(rng, X, np.array([1, 1]), 1.0)
    assert LogisticRegression(C=1e6).fit(X, most).score(X, most) > 0.99


@pytest.mark.parametrize(("n", "d"), [(1000, 6), (40, 60)])
def test_skewed_rows_have_the_stated_spectrum(n, d):
    """Also where one direction holds nearly all: skewed columns alone would add others."""
    shares = np.full(d, 1e-4 / d)
    shares[0] = 1 - 1e-4
    skews = []
    for seed in range(5):
        X = _made.skewed_rows(np.random.default_rng(seed), n, shares, np.linspace(1, 4, d))
        squares = np.linalg.svd(X, compute_uv=False) ** 2
        assert 0.5 * n < squares[0] < 1.5 * n
        assert np.sum(squares[1:]) < 2e-4 * squares[0]
        skews.append(np.median(np.abs(skew(X))))
    assert np.median(skews) > 1  # long tails do not cancel


def test_a_loss_is_a_share_of_what_can_be_gained():
    data = theory.PlanData(None, None, (), trivial=0.3, best=0.8)
    assert data.lost_fraction(0.55) == pytest.approx(0.5)
    assert math.isnan(data._replace(best=0.3).lost_fraction(0.3))
