"""A plan is a rehearsal: it has the ledger of the fit, and touches no data."""

import math
import pickle
from collections import Counter

import numpy as np
import pytest

from skdp import (
    DPPCA,
    DPIncrementalPCA,
    DPLowRankFactorizer,
    DPPersonalizedClassifier,
    DPPersonalizedRegressor,
    DPRidge,
    DPRidgeClassifier,
    DPSpectralEmbedding,
    DPTraceRegressor,
    DPTruncatedSVD,
    PrivacyLedger,
    theory,
)
from skdp.datasets import make_interactions, make_spiked_rows, make_table, make_trace_regression
from skdp.preprocessing import DPStandardScaler
from skdp.privacy.gate.session import PrivacySession
from skdp.privacy.noise import words
from skdp.recommend import DPRecommender
from skdp.solvers import iterate
from skdp.testing import seeded_entropy
from tools.data import contrasting_data
from tools.ways import ESTIMATORS

X = make_spiked_rows(400, 12, 2, 0.6, random_state=0)
RECORDS = make_trace_regression(3000, (4, 3), 1, random_state=0)
ENTRY = {"privacy_unit": "entry", "sketch": "sparse", "matrix_shape": X.shape}
ROW = {"privacy_unit": "row", "adjacency": "zero_out", "sensitivity_mode": "worst_case"}


def one_call(estimator):
    """Fit ordinary data; return (fitted, arguments of plan)."""
    data = contrasting_data(estimator)["dense"]["ordinary"]
    fitted = data.fit(type(estimator)(**estimator.get_params()))
    n = len(np.unique(data.fit_params.get("groups", np.arange(data.X.shape[0]))))
    once = {"stream": False} if isinstance(estimator, DPIncrementalPCA) else {}
    return fitted, (n, fitted.n_features_in_), once


def histories(estimator):
    """Counts that lose next to nothing at the first rung: how many there are is learnt."""
    R = make_interactions(20_000, 60, 240_000, 4, random_state=0)
    options = {"nnz": R.nnz} if isinstance(estimator, DPRecommender) else {"sparse": True}
    return estimator.fit(R), R.shape, options


def many_records(estimator):
    """Targets that the first search sees: how many searches there are is learnt."""
    X, y = make_table(20_000, random_state=0)
    groups = {"groups": np.arange(len(y)) // 2} if estimator.privacy_unit == "group" else {}
    shape = len(y) // 2 if groups else len(y), X.shape[1]
    return estimator.fit(X, y, **groups), shape, {}


def way_of(estimator):
    if isinstance(estimator, DPRidge):
        return many_records
    return histories if learns_rungs(estimator) else one_call


def learns_rungs(estimator):
    screened = getattr(estimator, "algorithm", "") == "screened"
    return screened or isinstance(estimator, DPRecommender)


def records(estimator):
    return estimator.fit(*RECORDS), (len(RECORDS[1]), (4, 3)), {}


def stream(estimator):
    if isinstance(estimator, DPIncrementalPCA):
        fitted = estimator.partial_fit(X)
    elif estimator.privacy_unit == "row":
        fitted = estimator.partial_fit(X).release()
    else:
        fitted = estimator.update_matrix(X).release()
    return fitted, X.shape, {"stream": True}


WAYS = [(estimator, way_of(estimator)) for estimator in ESTIMATORS]
WAYS += [
    (estimator, one_call)
    for estimator in [
        DPPCA(2, svd_solver="power", adjacency="replace"),
        DPTruncatedSVD(2, privacy_unit="edge", n_iter=3),
        DPPersonalizedRegressor(2, whiten=False),
        DPPersonalizedRegressor(1, head="hybrid", adjacency="replace"),
        DPLowRankFactorizer(2, method="two_sketch", sketch="srht", sketch_size=8, **ROW),
        DPLowRankFactorizer(2, method="two_sketch", sketch_size=8, **ROW),
        DPLowRankFactorizer(2, method="two_sketch", sketch="isometry", sketch_size=8,
                            sensitivity_mode="worst_case"),
    ]
]  # fmt: skip
WAYS += [
    (estimator, records)
    for estimator in [
        DPTraceRegressor(1),
        DPTraceRegressor(1, adjacency="replace", fit_intercept=False),
        DPTraceRegressor(1, design=1.0, max_iter=3),
        DPTraceRegressor(1, design=(np.eye(4), np.eye(3)), solver="spectral_init"),
        DPTraceRegressor(1, privacy_unit="label"),
        DPTraceRegressor(1, privacy_unit="label", design=1.0),
    ]
]
WAYS += [
    (estimator, stream)
    for estimator in [
        DPIncrementalPCA(2, clip_norm=1.5, max_releases=16),
        DPIncrementalPCA(2, max_releases=5, adjacency="replace"),
        DPIncrementalPCA(2, center="none", max_releases=9, mechanism="tree"),
        DPIncrementalPCA(2, clip_norm=1.0, max_releases=1),
        DPLowRankFactorizer(2, method="two_sketch", **ENTRY),
        DPLowRankFactorizer(2, method="two_sketch", max_releases=8, **ENTRY),
        DPLowRankFactorizer(2, max_releases=8, window=3, **ENTRY),
        DPLowRankFactorizer(
            2, method="three_sketch", matrix_shape=X.shape, sensitivity_mode="oblivious"
        ),
        DPLowRankFactorizer(2, matrix_shape=X.shape, max_releases=4, **ROW),
    ]
]
SHAPES = {
    one_call: (60, 8),
    many_records: (60, 8),
    histories: (60, 8),
    records: (3000, (4, 3)),
    stream: X.shape,
}
CASES = {f"{way.__name__} {' '.join(repr(e).split())}": (e, way) for e, way in WAYS}


def public_arguments(case):
    """Return (estimator, shape, options) of a plan of this case that needs no data."""
    estimator, way = CASES[case]
    shape, center = SHAPES[way], getattr(estimator, "center", None)
    if getattr(estimator, "privacy_unit", "") in ("edge", "edge_change", "mixed"):
        shape = (40, 40)
    if isinstance(center, np.ndarray):
        shape = (60, len(center))
    return estimator, shape, {"stream": True} if way is stream else {}


# Sensitivities that the released iterates and clip levels decide; public in all other lines.
LEARNT = {"gram", "tangent_product", "right_product", "left_product", "core", "ritz",
          "gram_product", "spectral_sum", "gradient_sum", "design_moments"}  # fmt: skip
IN_CLIP_NORMS = {"sums", "projected_gram", "trace", "moment", "gram", "readout", "gram_product"}


def part_of(line, ledger):
    """Share of the budget of a ledger line; nan where losses of two kinds compose."""
    kinds = {other.loss.kind for other in ledger}
    if kinds not in ({"gaussian"}, {"pure"}) or line.loss.value == math.inf:
        return math.nan
    power = 2 if kinds == {"gaussian"} else 1
    return line.loss.value**power / math.fsum(other.loss.value**power for other in ledger)


def is_public(line, estimator):
    """Whether the sensitivity of a line is the same for all data."""
    if getattr(estimator, "clip_norm", None) == "auto" and line.name in IN_CLIP_NORMS:
        return False
    drawn = getattr(estimator, "sensitivity_mode", "random") == "worst_case"
    if drawn and estimator.sketch in ("gaussian", "isometry"):
        return False  # norms of another draw
    return line.name not in LEARNT


# Few rows show nothing, and say so.
@pytest.mark.filterwarnings(
    "ignore:.*could not see|.*sees nothing|.*shows nothing|.*outside the limits|.*users are too few"
    "|.*a signal needs|.*no noise|.*predicts one class"
    ":skdp.exceptions.PrivacyWarning"
)
@pytest.mark.parametrize("case", CASES)
def test_plan_has_the_lines_of_the_ledger(case):
    """Names, numbers, shares; noise scales where they are public."""
    estimator, way = CASES[case]
    fitted, shape, options = way(type(estimator)(**estimator.get_params()))
    plan = estimator.plan(*shape, **options)
    ledger = fitted.ledger_
    planned = Counter({r.name: 0 for r in plan.releases})
    for release in plan.releases:
        planned[release.name] += release.times
    assert planned == Counter(line.name for line in ledger)
    shares = sorted((r.name, r.share / r.times) for r in plan.releases for _ in range(r.times))
    lines = sorted((line.name, part_of(line, ledger)) for line in ledger)
    if not math.isnan(lines[0][1]):
        assert math.fsum(r.share for r in plan.releases) == pytest.approx(1.0, abs=1e-9)
        for (name, share), (_, part) in zip(shares, lines, strict=True):
            assert share == pytest.approx(part, rel=1e-6), name
    for release in plan.releases:
        noises = {
            round(line.noise_scale / release.noise_scale, 6) if release.noise_scale else 0.0
            for line in ledger
            if line.name == release.name and is_public(line, estimator)
        }
        assert not noises or 1.0 in noises or release.noise_scale == 0.0, release
    if hasattr(fitted, "_drop_stream"):
        fitted._drop_stream()


@pytest.mark.filterwarnings("ignore:.*a signal needs:UserWarning")
@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES)
def test_plan_spends_draws_and_reads_nothing(case, monkeypatch):
    estimator, shape, options = public_arguments(case)

    def refuse(*_):
        raise AssertionError("a plan reads nothing, and draws nothing from the system")

    monkeypatch.setattr(PrivacySession, "_read", refuse)
    monkeypatch.setattr(words, "_system_words", refuse)
    generator = np.random.default_rng(0)
    state = generator.bit_generator.state
    fresh = type(estimator)(**estimator.get_params() | {"random_state": generator})
    before = dict(vars(fresh))
    with PrivacyLedger(epsilon=1e-3, delta=1e-9) as ledger:
        plan = fresh.plan(*shape, **options)
        assert ledger.spent.epsilon == 0
    assert vars(fresh) == before
    assert generator.bit_generator.state == state
    assert str(fresh.plan(*shape, **options)) == str(plan) == str(pickle.loads(pickle.dumps(plan)))
    assert str(plan).startswith("Plan") and (plan.found >= 0 or math.isnan(plan.error))


def test_plan_follows_the_solver(monkeypatch):
    """No number of the fit is written twice."""
    monkeypatch.setattr(iterate, "N_PASSES", (3, 2))
    monkeypatch.setitem(iterate._CORE_SHARE, "gaussian", 0.3)
    model = DPTruncatedSVD(2, privacy_unit="entry", algorithm="alternating")
    releases = model.plan(*X.shape).releases
    assert [(r.name, r.times) for r in releases[:3]] == [
        ("right_product", 3), ("left_product", 3), ("core", 1)
    ]  # fmt: skip
    assert releases[2].share == pytest.approx(0.3 * 0.98)


@pytest.mark.parametrize(
    "estimator", [DPTruncatedSVD(2, privacy_unit="entry"), DPTruncatedSVD(2, algorithm="power")]
)
def test_products_have_about_the_noise_of_the_fit(estimator):
    """Their sensitivity depends on released iterates: those of noise are spread like them."""
    plan = estimator.set_params(clip_norm=1.0).plan(*X.shape)
    with seeded_entropy(0):
        ledger = estimator.fit(X).ledger_
    for release in plan.releases[:3]:
        lines = [line.noise_scale for line in ledger if line.name == release.name]
        assert 0.4 < np.median(lines) / release.noise_scale < 1.5, release


@pytest.mark.parametrize(("n", "left_out"), [(400, False), (60_000, True)])
def test_plan_stops_where_the_fit_stops(n, left_out):
    """With many rows the refinement is not worth its passes: it is paid and left out."""
    pca = DPPCA(2, clip_norm=1.0, center="none")
    rows = make_spiked_rows(n, 12, 2, 0.5, random_state=0)
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    with seeded_entropy(0):
        names = {line.name for line in pca.fit(rows).ledger_}
    plan = pca.plan(n, 12, signal=0.5)
    assert names == {release.name for release in plan.releases}
    assert ("left_out" in names) == left_out
    assert plan.needed == pca.plan(1000, 12, signal=0.5).needed


@pytest.mark.deep
def test_few_records_are_not_read():
    """Below the threshold of the medians the rest of the budget looks for the centre of y."""
    model = DPTraceRegressor(1, matrix_shape=(4, 3))
    found = model.plan(3000).found
    names = [{r.name for r in model.plan(int(f * found)).releases} for f in (0.5, 1.5)]
    assert "spectral_sum" not in names[0] and "spectral_sum" in names[1]
    for params in ({}, {"privacy_unit": "label"}, {"design": 1.0, "fit_intercept": False}):
        fewest = DPTraceRegressor(1, matrix_shape=(4, 3), **params).plan(1)
        assert fewest.error == 1.0 and fewest.found > 100
    for params in ({}, {"max_iter": 3}, {"fit_intercept": False}, {"privacy_unit": "label"}):
        other = DPTraceRegressor(1, matrix_shape=(4, 3), **params)
        assert other.records_needed().readable == pytest.approx(other.plan(10).found, rel=1e-3)
    assert theory.records_needed((4, 3), 1) == model.records_needed()
    assert 0 < model.plan(10**9).error < 0.01  # their number is private: no rows are made for it


@pytest.mark.filterwarnings("ignore:.*a signal needs:UserWarning")
@pytest.mark.thorough
@pytest.mark.parametrize("case", [case for case in CASES if "delta=0" not in case])
def test_no_noise(case):
    estimator, shape, options = public_arguments(case)
    exact = type(estimator)(**estimator.get_params() | {"epsilon": math.inf})
    if isinstance(exact, DPLowRankFactorizer):
        options["signal"] = 5.0
    plan = exact.plan(*shape, **options)
    assert plan.needed == 0 and plan.found == 0
    noiseless = (DPRidge, DPRidgeClassifier, DPTraceRegressor)  # their records still vary
    assert math.isnan(plan.error) or plan.error <= (0.6 if isinstance(exact, noiseless) else 0)


def test_many_components_of_few():
    assert 0 < DPTruncatedSVD(2).plan(1000, 3).error < 1
    assert DPTruncatedSVD(3).plan(1000, 3).error == 0


POSITIVE, SIGNAL = "positive integer 'n_samples'", "'signal'"
MESSAGES = [
    (DPPCA(), (0, 5), {}, POSITIVE),
    (DPIncrementalPCA(), (0, 5), {}, POSITIVE),
    (DPStandardScaler(), (0, 5), {}, POSITIVE),
    (DPRidge(), (0, 5), {}, POSITIVE),
    (DPLowRankFactorizer(), (), {}, POSITIVE),
    (DPRidge(), (10, 5), {"n_targets": 0}, "positive integer 'columns'"),
    (DPPCA(1), (10, 5), {"signal": 2}, "share in the range"),
    (DPPCA(1), (10, 5), {"signal": 0.1}, "share in the range"),
    (DPPersonalizedClassifier(), (10, 9), {"signal": 0}, SIGNAL),
    (DPRidge(), (10, 5), {"signal": 2.0}, SIGNAL),
    (DPStandardScaler(), (10, 5), {"signal": 2.0}, SIGNAL),
    (DPRidgeClassifier(), (10, 5), {"signal": 2.0}, SIGNAL),
    (DPPCA(epsilon=-1), (10, 5), {}, "'epsilon'"),
    (DPTraceRegressor(), (100,), {}, "set 'matrix_shape'"),
    (DPTraceRegressor(matrix_shape=(3, 3)), (100, 10), {}, "does not fit matrix_shape"),
    (DPSpectralEmbedding(), (10, 9), {}, "as many features as nodes"),
    (DPLowRankFactorizer(matrix_shape=(5, 5)), (5, 6), {}, "must have the shape"),
    (DPPCA(bounds={"age": (0, 100), "height": (1, 2)}), (1000, 3), {}, "for 3 columns"),
]


@pytest.mark.parametrize(("model", "shape", "facts", "match"), MESSAGES)
def test_messages(model, shape, facts, match):
    with pytest.raises(ValueError, match=match):
        model.plan(*shape, **facts)


def test_plan_text():
    plan = DPTruncatedSVD(2).plan(1000, 20)
    text = str(plan)
    assert "no data was touched" in text and "unit: clip_norm" in text
    assert "norm_median (7 times)" in text
    assert isinstance(plan, theory.FitPlan)


def test_bounds_by_column_name_need_no_columns():
    for kind in (DPPCA, DPRidge):
        by_name = kind(bounds={"age": (0, 100), "height": (1, 2)}).plan(1000, 2)
        in_order = kind(bounds=[(0, 100), (1, 2)]).plan(1000, 2)
        assert str(by_name) == str(in_order)
