"""Private searches: budgets, receipts, what is published, and audits of whole searches."""

import math
import pickle
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import randint
from sklearn import config_context
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler

from skdp import (
    DPPCA,
    BudgetExceededError,
    DPRidge,
    DPRidgeClassifier,
    DPTraceRegressor,
    DPTruncatedSVD,
    PrivacyError,
    PrivacyLedger,
)
from skdp.model_selection import DPGridSearchCV, DPRandomizedSearchCV, make_private_scorer
from skdp.model_selection._cost import budget_for
from skdp.model_selection._runs import Run, Runs
from skdp.model_selection.selection_laws import draw_runs, random_stopping_epsilon
from skdp.preprocessing import DPStandardScaler, RowClipper
from skdp.privacy.accounting import losses as accounting
from skdp.privacy.accounting.losses import Loss
from skdp.privacy.gate.bounds import SAMPLER_DISTANCE, PrivacyBudget
from skdp.privacy.noise.words import SeededSource
from skdp.testing import epsilon_lower_bound, record_transcript, seeded_entropy, transcript_audit
from tools.checks import parametrize_with_dp_checks
from tools.fit_checks import check_receipt
from tools.outcomes import fitted_attributes, messages_of, refuses
from tools.pairs import worst_case_pair

RNG = np.random.default_rng(0)
X = RNG.standard_normal((3000, 5)) * [1, 0.5, 0.3, 0.1, 0.1] / 2
Y = X @ [1.0, -1.0, 0.5, 0.0, 0.0] + 0.05 * RNG.standard_normal(3000)
RECONSTRUCTION = make_private_scorer("reconstruction", (0.0, 1.0))
SQUARED = make_private_scorer("squared_error", (0.0, 1.0))
GRID = {"n_components": [1, 2, 3]}
ALONE = make_pipeline(DPPCA(clip_norm=1.0))
FLIPPED = DPTruncatedSVD(1, privacy_unit="entry", algorithm="one_shot")


def pca_search(**params):
    given = {"estimator": DPPCA(clip_norm=1.0), "param_grid": GRID, "scoring": RECONSTRUCTION}
    return DPGridSearchCV(**given | params)


COMPOSED = pca_search(strategy="compose")
STOPPED = pca_search(strategy="random_stopping")
SEARCHES = [
    COMPOSED,
    STOPPED,
    pca_search(strategy="random_stopping", epsilon=8.0, mean_n_runs=9, score_budget_fraction=0.5),
    pca_search(estimator=DPPCA(clip_norm=1.0, adjacency="replace")),
    DPRandomizedSearchCV(
        DPTruncatedSVD(clip_norm=1.0), {"n_components": randint(1, 4)}, RECONSTRUCTION, n_iter=3
    ),
]
NAMES = ["compose", "stopped", "more runs", "replace", "randomized"]


# -- scikit-learn --------------------------------------------------------------------------------


def test_attributes_are_those_of_a_grid_search():
    search = pca_search(strategy="compose", epsilon=20.0).fit(X)
    results = search.cv_results_
    assert results["params"] == [{"n_components": k} for k in results["param_n_components"]]
    mu = search.selection_plan_.run[1] * (0.1 * 0.8) ** 0.5  # a fifth of a score is its count
    np.testing.assert_allclose(results["std_test_score"], 0.5 / (mu * len(X)), rtol=0.01)
    assert search.best_score_ == results["mean_test_score"][search.best_index_]
    assert results["rank_test_score"][search.best_index_] == 1
    assert results["mean_test_score"][search.best_index_] == max(results["mean_test_score"])
    assert search.best_params_ == results["params"][search.best_index_] == {"n_components": 3}
    assert search.transform(X[:2]).shape == (2, 3)
    assert search.inverse_transform(search.transform(X[:2])).shape == (2, 5)
    assert search.n_features_in_ == 5
    assert not hasattr(search, "predict")
    assert pickle.loads(pickle.dumps(search)).best_params_ == search.best_params_
    assert not fitted_attributes(clone(search))


# -- budgets and receipts ------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("search", SEARCHES, ids=NAMES)
def test_runs_stay_inside_the_plan(search):
    with seeded_entropy(0):  # unread shares vary from run to run
        check_receipt("search", search)


def test_random_stopping_has_no_mu_and_the_model_carries_the_receipt_of_the_search():
    search = clone(STOPPED).fit(X)
    assert search.privacy_spent_.mu is search.privacy_spent_.rho is None
    assert search.privacy_spent_.losses == (Loss("pure", 1.0), Loss("delta", 1e-6))
    assert tuple(line.loss for line in search.releases_) == search.privacy_spent_.losses
    assert search.best_estimator_.privacy_spent_ == search.privacy_spent_
    assert search.best_estimator_.epsilon < 0.7  # what a later fit of it would spend
    pipeline = make_pipeline("passthrough", DPTraceRegressor(1))
    grid = {"passthrough": [DPTruncatedSVD(1, clip_norm=1.0), DPTruncatedSVD(1, clip_norm=2.0)]}
    search = DPGridSearchCV(pipeline, grid, SQUARED, strategy="compose")
    assert DPGridSearchCV(search, {}, SQUARED).plan().sessions == 2 * 3 + 1
    some = {"passthrough": ["passthrough", *grid["passthrough"][:1]]}  # one part, or two
    assert clone(search).set_params(param_grid=some).plan().sessions == 2 * 3
    messages_of(search.fit, X, Y)
    assert search.privacy_spent_.sampler_tv_distance == 2 * 3 * SAMPLER_DISTANCE
    assert all(step.privacy_spent_ == search.privacy_spent_ for _, step in
               search.best_estimator_.steps)  # fmt: skip


@pytest.mark.parametrize("state", [0, np.random.default_rng(0), np.random.RandomState(0)])
def test_a_search_with_a_seed_says_so(state):
    search = pca_search(random_state=state)
    messages_of(search.fit, X[:50])
    assert search.privacy_spent_.seeded and search.best_estimator_.privacy_spent_.seeded


@pytest.mark.thorough
def test_parts_of_a_pipeline_share_a_run_as_their_budgets_compare():
    pipeline = make_pipeline(
        Normalizer(), DPTruncatedSVD(1, clip_norm=1.0, epsilon=4.0), DPTraceRegressor(1)
    )
    search = DPGridSearchCV(pipeline, {"dptraceregressor__max_iter": [1]}, SQUARED, epsilon=3.0)
    messages_of(search.fit, X[:300], Y[:300])
    ledgers = [step.releases_ for _, step in search.best_estimator_.steps[1:]]
    first, second = (sum(line.loss.value**2 for line in ledger) for ledger in ledgers)
    ratio = accounting.mu_from_epsilon_delta(4, 1e-6) / accounting.mu_from_epsilon_delta(1, 1e-6)
    assert first / second == pytest.approx(ratio**2, rel=1e-6)
    assert first + second == pytest.approx(0.9 * search.selection_plan_.run.value**2, rel=1e-6)


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")  # 60 rows show little
def test_pure_search():
    svd = DPTruncatedSVD(1, privacy_unit="entry")
    grid = {"unit_bound": [(-1.0, 1.0), (-0.5, 0.5)]}
    scorer = make_private_scorer("reconstruction", (0.0, 5.0))
    Z = np.clip(X[:60], -1, 1)
    search = DPGridSearchCV(svd, grid, scorer, epsilon=6.0, delta=0.0, strategy="random_stopping")
    with record_transcript() as transcript:
        search.fit(Z)
    assert search.selection_plan_.run == Loss("pure", 2.0)
    assert search.privacy_spent_.losses == (Loss("pure", 6.0),)
    scores = [o for o in transcript if o.bound.name == "loss_sum"]
    assert {o.mechanism for o in transcript} == {"laplace"}
    assert scores[0].loss.value == pytest.approx(0.2, rel=1e-8)
    assert sum(o.loss.value for o in transcript) <= 2.0 * len(scores)


def test_infinite_epsilon_is_exact():
    search = pca_search(epsilon=math.inf)
    with pytest.warns(UserWarning, match="adds no noise"):
        search.fit(X)
    assert search.best_params_ == {"n_components": 3}
    assert search.privacy_spent_.epsilon == math.inf


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"strategy": "best"}, "strategy"),
        ({"mean_n_runs": 0.5, "strategy": "random_stopping"}, "mean_n_runs"),
        ({"score_budget_fraction": 1.0}, "score_budget_fraction"),
        ({"scoring": "r2"}, "make_private_scorer"),
        ({"scoring": "accuracy"}, "make_private_scorer"),
        ({"scoring": SQUARED}, "predictions need 'predict'"),
        ({"scoring": None, "estimator": DPRidge()}, "public 'target_bounds'"),
        ({"scoring": None, "estimator": make_pipeline(RowClipper(), DPPCA())}, "of every step"),
        ({"cv": 5}, "has no folds"),
        ({"param_grid": []}, "the grid is empty"),
        ({"epsilon": 1e-8, "strategy": "random_stopping", "mean_n_runs": 9e5}, "is too little for"),
        ({"param_grid": {"n_components": [1, 1.5]}}, r"a float in \(0, 1\) or None"),
        ({"param_grid": {"n_components": [1, 6]}}, "between 1 and n_features=5"),
        ({"estimator": make_pipeline(DPStandardScaler(), DPPCA(6)), "param_grid": {}}, "=5"),
        ({"param_grid": {"epsilon": [1, 2]}}, "cannot be searched"),
        ({"param_grid": {"random_state": [1, 2]}}, "cannot be searched"),
        ({"param_grid": {"delta": [1e-6, 1e-7]}}, "cannot be searched"),
        ({"param_grid": {"adjacency": ["replace"]}}, "cannot be searched"),
        ({"estimator": ALONE, "param_grid": {"dppca__epsilon": [1]}}, "cannot be searched"),
        ({"estimator": StandardScaler()}, "neither a private estimator"),
        ({"estimator": make_pipeline(StandardScaler(), DPPCA())}, "standardscaler: .* proven"),
        ({"estimator": make_pipeline(DPPCA(), StandardScaler(), DPPCA())}, "exact projections"),
        ({"estimator": make_pipeline(DPPCA(), memory="x")}, r"memory=None[\s\S]*Set memory=None"),
        ({"estimator": DPPCA(random_state=0)}, "share their noise"),
        ({"estimator": DPTruncatedSVD(1, privacy_unit="spectral")}, "no private score"),
        ({"delta": 0.0}, "pure differential privacy"),
        ({"param_grid": {"privacy_unit": ["row", "group"]}}, "protects .* and the search one row"),
        ({"estimator": DPPCA(privacy_unit="group", group_column=0)}, "to fit, and no group_column"),
        # A pure part is no Gaussian: the bound for random stopping would not hold.
        ({"estimator": FLIPPED}, "for 'gaussian' ones only"),
    ],
)
def test_bad_parameters_touch_nothing(params, match):
    search = pca_search(**params)
    with (
        record_transcript() as transcript,
        pytest.raises((ValueError, PrivacyError), match=match),
        PrivacyLedger(9, 1e-5) as ledger,
    ):
        search.fit(X)
    assert not (len(transcript) or ledger.entries or hasattr(search, "best_estimator_"))


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_more_components_than_public_rows_touch_nothing():
    """Whether a run with too many comes first would follow from a secret draw."""
    search = pca_search(estimator=DPPCA(clip_norm=1.0, adjacency="replace"))
    with record_transcript() as transcript:
        refuses(ValueError, "n_features.=2", search.fit, X[:2])
    assert not len(transcript)
    search.estimator.set_params(privacy_unit="group")
    search.fit(X[:2], groups=[0, 1])  # the number of rows of groups is private


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_groups_are_routed_to_a_search_behind_other_steps():
    ridge = DPRidge(clip_norm=1.0, target_bounds=(-1.0, 1.0), privacy_unit="group")
    scaler = DPStandardScaler(privacy_unit="group", bounds=(-2.0, 2.0))
    pipe = make_pipeline(scaler, DPGridSearchCV(ridge, {"alpha": [1.0, 9.0]}))
    with config_context(enable_metadata_routing=True):
        pipe.fit(X, Y, groups=np.arange(len(X)) // 3)
    assert [step.privacy_spent_.unit for _, step in pipe.steps] == ["group", "group"]


@pytest.mark.deep
def test_estimators_have_a_score_of_their_own(rng):
    """Otherwise an error would ask for bounds of a loss that a new user does not know."""
    A = 50 + rng.standard_normal((4000, 3)) * [10.0, 3.0, 1.0]
    grid, settings = {"n_components": [1, 3]}, {"epsilon": 30.0, "strategy": "compose"}
    frame = pd.DataFrame(A, columns=list("abc"))  # scored as the array
    search = DPGridSearchCV(DPPCA(), grid, **settings).fit(frame)
    lost = np.sum((A - search.inverse_transform(search.transform(frame))) ** 2, axis=1)
    share = lost / np.sum((A - search.best_estimator_.mean_) ** 2, axis=1)
    assert search.best_params_ == {"n_components": 3} and list(search.feature_names_in_) == [*"abc"]
    assert search.best_score_ == pytest.approx(-np.mean(share), abs=0.01)
    y = A @ [0.1, 0.0, 0.0] - 5 + 0.1 * rng.standard_normal(4000)
    ridge = DPRidge(target_bounds=(-4.0, 4.0))
    search = DPGridSearchCV(ridge, {"alpha": [1e-3, 1e6]}, **settings).fit(A, y)
    error = np.mean((y - search.predict(A)) ** 2)
    assert search._scorer.bounds == (0.0, 16.0)  # no target is farther from the middle
    assert search.best_params_ == {"alpha": 1e-3}
    assert search.best_score_ == pytest.approx(-error, abs=0.2)


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", ["compose", "random_stopping"])
def test_a_choice_within_the_noise_says_so(strategy):
    """With bounds that are far too wide, all scores were -0.0, and ranks differed from them."""
    ridge = DPRidge(clip_norm=2.0, target_bounds=(0, 1e5))
    n, options = (1000, {}) if strategy == "compose" else (20, {"strategy": strategy})
    search = DPGridSearchCV(ridge, {"alpha": [0.1, 1, 10, 100]}, **options)
    with seeded_entropy(3):
        said = messages_of(search.fit, X[:n], Y[:n])
    assert sum("the choice among 4 candidates is nearly random" in each for each in said) == 1
    results = search.cv_results_
    if not options:
        assert "-0." not in str(results["mean_test_score"].tolist())
        assert set(results["rank_test_score"]) == {1, 4}  # three of them are clipped
        assert sum(results["mean_test_score"] == 0) == 3


@pytest.mark.parametrize("epsilon", ["1", None, math.nan, [1.0]])
def test_an_epsilon_of_an_estimator_is_a_number_even_if_it_is_not_used(epsilon):
    search = pca_search(estimator=DPPCA(clip_norm=1.0, epsilon=epsilon))
    refuses(ValueError, "The 'epsilon' parameter of DPPCA must be a float", search.fit, X)


def test_an_epsilon_that_is_not_used_is_named():
    """Searches spent ten times what their estimator said, in silence."""
    for stated in ({"epsilon": 0.1}, {"delta": 1e-9}, {"epsilon": 0.1, "delta": 1e-9}):
        search = pca_search(estimator=DPPCA(clip_norm=1.0, **stated))
        (said,) = messages_of(search.fit, X)
        assert f"takes the place of {next(iter(stated))}=" in said
        search.set_params(**stated)
        assert not messages_of(search._warn_of_other_budgets, [{}])
    both = make_pipeline(DPTruncatedSVD(epsilon=4.0), DPRidge())  # these set their ratio
    assert not messages_of(DPGridSearchCV(both, {})._warn_of_other_budgets, [{}])


# -- ledgers -------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("search", SEARCHES, ids=NAMES)
def test_search_pays_a_ledger_once_for_everything(search):
    inside, again = clone(search), clone(search)
    with PrivacyLedger(search.epsilon, search.delta) as ledger:
        inside.fit(X)
        assert [fit.state for fit in ledger.entries] == ["fitted"]
        assert ledger.spent.epsilon <= search.epsilon
        assert ledger.spent.losses == inside.selection_plan_.losses
        with pytest.raises(PrivacyError):  # no room, or it may fail and comes late
            again.fit(X)
        with pytest.raises(BudgetExceededError):
            inside.best_estimator_.fit(X)  # the model is a fit of its own again
        ledger._refused.clear()
    assert len(ledger.entries) == 1
    clone(inside.best_estimator_).fit(X)


def test_search_beside_other_fits():
    search = clone(STOPPED)
    with PrivacyLedger(3, 1e-5) as ledger:
        search.fit(X)
        DPPCA(1, clip_norm=1.0, epsilon=1.0).fit(X)
    mu = accounting.mu_from_epsilon_delta(1, 1e-6)
    losses = [Loss("pure", 1.0), Loss("delta", 1e-6), Loss("gaussian", mu)]
    assert ledger.spent.epsilon == pytest.approx(accounting.epsilon_from_losses(losses, 1e-5))
    assert 1.5 < ledger.spent.epsilon < 2
    # (e, d)-DP for a row more is (2 e, (1 + exp e) d)-DP for another row
    with PrivacyLedger(3, 1e-5, adjacency="replace") as ledger:
        search.fit(X)
    twice = Loss("delta", pytest.approx((1 + math.e) * 1e-6))
    assert ledger.spent.losses == (Loss("pure", 2.0), twice)


def test_failed_search_keeps_its_charge_only_if_something_was_granted():
    class Broken(DPPCA):
        def _close_session(self, session, attributes):
            raise RuntimeError("after a release")

    with PrivacyLedger(3, 1e-5) as ledger:
        refuses(RuntimeError, None, pca_search(estimator=Broken(clip_norm=1.0)).fit, X)
        assert [fit.state for fit in ledger.entries] == ["failed"]
        assert ledger.spent.mu == pytest.approx(accounting.mu_from_epsilon_delta(1, 1e-6))
        refuses(ValueError, None, pca_search().fit, X[0])
        refuses(ValueError, "in memory", pca_search().fit, ["rows.npy"])
        assert len(ledger.entries) == 1


@pytest.mark.thorough
def test_ledgers_that_are_opened_during_a_search():
    """One inside a run counts its fits; another thread may not learn how many runs there are."""
    inside, beside = [], PrivacyLedger(9, 1e-5)

    class Opening(DPPCA):
        def fit(self, X, y=None):
            if not inside:
                with ThreadPoolExecutor(1) as pool:
                    pool.submit(beside.__enter__).result()
            inside.append(PrivacyLedger(9, 1e-5))
            with inside[-1]:
                return super().fit(X, y)

    try:
        pca_search(estimator=Opening(clip_norm=1.0)).fit(X)
    finally:
        beside.__exit__(None)
    assert [len(ledger.entries) for ledger in inside] == [1] * len(inside)
    assert beside.entries == ()


# -- what is published ---------------------------------------------------------------------------


@pytest.mark.thorough
def test_only_the_winner_is_published():
    """Neither the other runs nor their number, which a ledger does not know either."""
    search, seen = clone(STOPPED).set_params(mean_n_runs=20), set()
    for _ in range(4):
        with PrivacyLedger(3, 1e-5) as ledger:
            search.fit(X)
        seen.add((len(ledger.entries), ledger.spent.losses, ledger.report()))
        assert {len(v) for v in search.cv_results_.values()} == {1}
        assert set(search.cv_results_) == {
            "param_n_components", "params", "mean_test_score", "std_test_score", "rank_test_score",
        }  # fmt: skip
        assert search.best_index_ == 0
    assert len(seen) == 1


def test_the_number_of_runs_and_their_candidates_are_drawn(monkeypatch):
    """Random stopping is private for a secret number of runs that are drawn alike."""
    search, runs, totals = clone(STOPPED), [], iter(np.sin(np.arange(1e4)))
    plan, candidates = search.plan(), [{"n_components": k} for k in (1, 2, 3)]

    def run(_, params, *data):
        runs[-1].append(Run(params, None, next(totals), 1.0, 1.0, []))
        return runs[-1][-1]

    monkeypatch.setattr(Runs, "_run", run)
    drawn = Runs(search, plan, candidates, SimpleNamespace(run=plan.run), (math.inf, math.inf))
    for _ in range(60):
        runs.append([])
        assert drawn.run(None, None, {})[0].total == max(run.total for run in runs[-1])
    assert len({len(each) for each in runs}) > 5
    assert {each[0].params["n_components"] for each in runs} == {1, 2, 3}


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_warnings_of_libraries_in_a_run_are_not_shown():
    class Loud(DPPCA):
        def fit(self, X, y=None):
            warnings.warn("of a row", RuntimeWarning, stacklevel=1)
            return super().fit(X, y)

    assert "of a row" not in messages_of(pca_search(estimator=Loud(clip_norm=1.0)).fit, X[:60])


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", ["random_stopping", "compose"])
def test_warnings_of_lost_runs_are_dropped(strategy):
    """A warning of a run that was not chosen reveals that it ran, or facts of its model."""
    runs = {"mean_n_runs": 30} if strategy == "random_stopping" else {}
    grid = {"max_iter": [1] if runs else [1, 2, 3]}
    search = DPGridSearchCV(DPTraceRegressor(1), grid, SQUARED, strategy=strategy, **runs)
    said, *of_choice = messages_of(search.fit, X[:50], Y[:50])
    assert said.startswith("DPTraceRegressor")
    assert all(each.startswith("the choice among 3") for each in of_choice[:1])
    assert not of_choice[1:]


def test_runs_of_two_threads_keep_their_warnings_to_themselves(monkeypatch):
    """Of two that overlap, the first to begin ends first: warnings were lost from there on."""
    checked, both = DPTraceRegressor._check_parameters, threading.Barrier(2)
    one = {"max_iter": [1]}, SQUARED

    def meet(model):
        time.sleep(0.3 * both.wait(10))  # the second to come goes on last
        checked(model)

    def search(_):
        DPGridSearchCV(DPTraceRegressor(1), *one, strategy="compose").fit(X[:50], Y[:50])

    def overlapping():
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(search, "12"))
        warnings.warn("heard", stacklevel=1)

    monkeypatch.setattr(DPTraceRegressor, "_check_parameters", meet)
    *runs, heard = messages_of(overlapping)
    assert len(runs) <= 2 and heard == "heard"


# -- audits --------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("search", SEARCHES, ids=NAMES)
def test_transcript_of_a_search(search):
    """The worst pair of the estimator, in every run: no release changes beyond its charge."""
    pair = worst_case_pair(search.estimator)
    with seeded_entropy(1):
        report = transcript_audit(search, pair).check()
    assert report.ratio > 0.9
    if search.strategy == "compose":
        assert report.realised_mu <= search.plan().run.value * math.sqrt(3) * (1 + 1e-9)


MU, MEAN = 0.3, 64.0


def simulated(publish, n=4000):
    """Bound epsilon from below for ideal runs N(0, 1) against N(mu, 1), with the real law of K."""
    rng = np.random.default_rng(0)
    words = SeededSource(0, "audit").words("runs")
    numbers = [draw_runs(words, MEAN) for _ in range(2 * n)]
    sides = [
        [publish(rng.standard_normal(k) + shift) for k in numbers[i * n : (i + 1) * n]]
        for i, shift in enumerate((0.0, MU))
    ]
    return max(epsilon_lower_bound(*pair, 1e-6, 1e-3) for pair in (sides, sides[::-1]))


@pytest.mark.thorough
def test_audit_of_the_selection_and_of_one_that_publishes_its_runs():
    """Publishing all runs, and so their number, costs far more than the best run alone."""
    claim = random_stopping_epsilon(MU, MEAN, 1e-6)
    best, everything = simulated(np.max), simulated(lambda scores: np.sum(scores - MU / 2))
    print(f"best alone >= {best:.3f}, all runs >= {everything:.3f}, claimed {claim:.3f}")
    assert 0.2 < best < claim < everything


def test_methods_are_those_of_the_best_model():
    search = pca_search()
    methods = ("predict", "predict_proba", "decision_function", "transform", "inverse_transform")
    search.best_estimator_ = SimpleNamespace(**{name: lambda X, n=name: (n, X) for name in methods})
    assert [getattr(search, name)(7) for name in methods] == [(name, 7) for name in methods]
    refuses(ValueError, "must be a private", lambda: DPGridSearchCV(StandardScaler(), {}).adjacency)


def test_a_plan_of_random_stopping_says_that_one_run_is_published():
    plan = str(pca_search(strategy="random_stopping", mean_n_runs=7.5).plan())
    assert "7.5 on average (geometric); the best one is published" in plan


def ridge_search(step, params, **options):
    pipe = Pipeline([("scale", step), ("ridge", DPRidge(clip_norm=1.0, target_bounds=(-3, 3)))])
    return DPGridSearchCV(pipe, params, scoring=SQUARED, **options)


class Printing:
    """A callback that prints all its arguments."""

    def setup(self, *heard):
        print(*heard)

    on_fit_task_begin = on_fit_task_end = teardown = setup


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
@pytest.mark.parametrize("who", ["pipeline", "step"])
def test_callbacks_and_printing_do_not_count_the_runs(who, capsys):
    step = ColumnTransformer([("c", RowClipper(), slice(0, 5))], sparse_threshold=0, verbose=True)
    search = ridge_search(step, {"ridge__alpha": [1.0, 2.0]}, strategy="random_stopping")
    search.estimator.set_params(verbose=True)
    told = search.estimator if who == "pipeline" else search.estimator["ridge"]
    if hasattr(told, "set_callbacks"):
        told.set_callbacks(Printing())
    search.fit(X[:60], X[:60, 0])
    assert capsys.readouterr().out == ""


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_a_search_in_a_search_carries_the_receipt_of_the_outer_one():
    inner = ridge_search(RowClipper(), {"ridge__alpha": [1.0, 2.0]}, strategy="compose")
    grid = {"score_budget_fraction": [0.1, 0.2]}
    outer = DPGridSearchCV(inner, grid, inner.scoring, strategy="random_stopping")
    pipe = outer.fit(X[:20], X[:20, 0]).best_estimator_.best_estimator_
    for part in (outer.best_estimator_, pipe, pipe[-1]):
        assert part.privacy_spent_ == outer.privacy_spent_


@pytest.mark.parametrize("scoring", [{}, {"scoring": "accuracy"}])
def test_a_classifier_is_scored_by_its_labels(scoring, rng):
    X = rng.uniform(-1, 1, (4000, 3))
    y = np.where(X[:, 0] > 0, "b", "a")
    model = DPRidgeClassifier(clip_norm=1.8, classes=["a", "b"])
    search = DPGridSearchCV(model, {"alpha": [1.0, 10.0]}, epsilon=4.0, **scoring).fit(X, y)
    assert -0.2 < search.best_score_ < 0.1
    with pytest.raises(ValueError, match="is for classifiers alone"):
        DPGridSearchCV(DPRidge(), {"alpha": [1.0]}, **scoring).fit(X, X[:, 0])


@pytest.mark.parametrize("delta", [1e-12, 1e-6, 1e-2])
@pytest.mark.parametrize("mu", [1e-12, 1e-9, 2.7e-7, 1e-6, 1e-3, 1.0])
def test_a_run_gets_what_it_may_spend_and_no_less(mu, delta):
    """Even if that is little: tiny searches were refused, with a delta that was never set."""
    assert (1 - 1e-7) * mu <= PrivacyBudget(*budget_for("gaussian", mu, delta)).mu <= mu


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_a_search_of_next_to_nothing_is_a_search():
    assert clone(STOPPED).set_params(epsilon=1e-9).fit(X[:60]).privacy_spent_.epsilon == 1e-9


# -- our own checks on private searches: slow, since each fit is a search --------------------------


# It has no scale, as an estimator has that learns its own.
SHARE = make_private_scorer("share_lost", (0.0, 1.0))
# Large enough that scores are seldom cut to an end of their bounds; 2.5 times as much is below
# the epsilon where noise stays as it is.
PROMISED = [
    DPGridSearchCV(
        DPPCA(clip_norm=1.0), {"n_components": [1, 2]}, SHARE, strategy=strategy, epsilon=15.0
    )
    for strategy in ("compose", "random_stopping")
]


@pytest.mark.slow
@parametrize_with_dp_checks(PROMISED)
def test_keeps_its_promise(estimator, check):
    check(estimator)
