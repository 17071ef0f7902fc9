"""Inside a ledger, whatever fits clones is paid for by name, or refused before anything is read."""

import math
import warnings
from concurrent.futures import ThreadPoolExecutor

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.ensemble import (
    BaggingRegressor,
    StackingRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.feature_selection import RFECV, SequentialFeatureSelector
from sklearn.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    KFold,
    StratifiedKFold,
    TunedThresholdClassifierCV,
    cross_val_predict,
    cross_validate,
    learning_curve,
    permutation_test_score,
    validation_curve,
)
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from skdp import (
    DPPCA,
    BudgetExceededError,
    DPRidge,
    DPRidgeClassifier,
    DPTraceRegressor,
    PrivacyError,
    PrivacyLedger,
)
from skdp.model_selection import DPGridSearchCV, IndependentKFold, make_private_scorer, search_cost
from skdp.privacy.gate.budget import PrivacyBudget
from skdp.testing import record_transcript

pytestmark = pytest.mark.filterwarnings(  # noise
    "ignore:DPRidge|.*a signal needs:skdp.exceptions.PrivacyWarning"
)

X = np.random.default_rng(0).standard_normal((90, 4)) / 4
Y = X[:, 0]
LABELS = np.arange(90) % 2
SCORER = make_private_scorer("reconstruction", (0.0, 1.0), epsilon=0.3)
REPLACE = make_private_scorer("reconstruction", (0.0, 1.0), epsilon=0.3, adjacency="replace")


def mu_of(epsilon, delta=1e-6):
    return PrivacyBudget(epsilon, delta).mu


def pca(**params):
    return DPPCA(**{"n_components": 1, "clip_norm": 1.0, "epsilon": 0.5} | params)


def ridge(**params):
    return DPRidge(clip_norm=1.0, target_bounds=(-1.0, 1.0), **params)


def grid(cv, estimator=None, **params):
    estimator = pca(adjacency="replace") if estimator is None else estimator
    return GridSearchCV(estimator, {"n_components": [1, 2, 3]}, cv=cv, **params)


class OwnSearch(GridSearchCV):
    """It may fit whatever it likes."""


# -- what nobody paid for -------------------------------------------------------------------------

CLASSIFIER = DPRidgeClassifier(clip_norm=1.0, classes=[0, 1])
UNKNOWN = [
    RFECV(ridge(), cv=KFold(5, shuffle=True, random_state=0)),
    CalibratedClassifierCV(CLASSIFIER, cv=KFold(5, shuffle=True, random_state=0)),
    SequentialFeatureSelector(ridge(), n_features_to_select=1, cv=3),
    TunedThresholdClassifierCV(CLASSIFIER, cv=3),
    HalvingGridSearchCV(ridge(), {"alpha": [1.0, 2.0]}, cv=3, error_score="raise"),
    StackingRegressor([("a", ridge())], final_estimator=ridge()),
    BaggingRegressor(ridge(), n_estimators=3),
    OneVsRestClassifier(CLASSIFIER),
    TransformedTargetRegressor(ridge()),
    VotingClassifier([("a", CLASSIFIER)]),
]


@pytest.mark.parametrize("meta", UNKNOWN, ids=lambda meta: type(meta).__name__)
def test_whoever_fits_clones_on_unknown_rows_is_refused(meta):
    y = LABELS if hasattr(meta, "predict_proba") or "Class" in type(meta).__name__ else Y
    with (
        record_transcript() as transcript,
        pytest.raises((PrivacyError, ValueError), match="pay_for"),
        PrivacyLedger(50, 1e-5) as ledger,
    ):
        meta.fit(X, y)
    assert not len(transcript) and not ledger.entries
    with PrivacyLedger(50, 1e-5) as ledger:
        with pytest.raises(PrivacyError, match=r"its cost cannot be counted"), ledger.pay_for(meta):
            raise AssertionError
        assert not ledger.entries


@pytest.mark.parametrize(
    "loop",
    [
        lambda model, cv: cross_validate(model, X, cv=cv, scoring=SCORER, error_score="raise"),
        lambda model, cv: cross_val_predict(ridge(), X, Y, cv=cv),
        lambda model, cv: validation_curve(
            model, X, None, param_name="n_components", param_range=[1, 2], cv=cv, scoring=SCORER,
            error_score="raise",
        ),
        lambda model, cv: learning_curve(
            model, X, None, cv=cv, scoring=SCORER, error_score="raise"
        ),
        lambda model, cv: permutation_test_score(
            model, X, Y, cv=cv, n_permutations=2, scoring=SCORER
        ),
        lambda model, cv: grid(cv, model, scoring=SCORER, error_score="raise").fit(X),
    ],
    ids=["validate", "predict", "validation", "learning", "permutation", "search"],
)  # fmt: skip
def test_every_loop_over_folds_is_refused_unless_paid_for(loop):
    with record_transcript() as transcript, PrivacyLedger(100.0, 1e-3) as ledger:
        with pytest.raises(PrivacyError, match=r"with ledger.pay_for\(search"):
            loop(pca(), IndependentKFold(3))
        assert len(ledger.refusals) == 1
        ledger._refused.clear()
    assert not ledger.entries and not len(transcript)


def test_whoever_swallows_the_refusal_meets_it_at_the_end():
    def swallow():
        with PrivacyLedger(9, 1e-5), pytest.raises(ValueError, match="fits failed"):
            grid(IndependentKFold(2), pca(), scoring=SCORER).fit(X)

    with pytest.raises(PrivacyError, match=r"(?s)swallowed.*pay_for"):
        swallow()


@pytest.mark.parametrize(
    ("search", "match"),
    [
        (grid(KFold(4), pca(), scoring=SCORER), "IndependentKFold"),
        (grid(StratifiedKFold(4), scoring=SCORER), "IndependentKFold"),
        (grid(KFold(3)), "scores without privacy"),
        (grid(KFold(3), scoring=lambda model, X, y=None: 0.0), "scores without privacy"),
        (grid(KFold(3), scoring=SCORER), "do not add up"),
        (OwnSearch(pca(), {}, cv=IndependentKFold(2), scoring=SCORER), "cannot be counted"),
        (GridSearchCV(BaggingRegressor(ridge()), {}, cv=IndependentKFold(2)), "how often"),
    ],
)
def test_what_cannot_be_counted_cannot_be_paid_for(search, match):
    with PrivacyLedger(50, 1e-5) as ledger:
        with pytest.raises(PrivacyError, match=match), ledger.pay_for(search, 90):
            raise AssertionError
        assert not ledger.entries


def test_what_pay_for_needs():
    ledger = PrivacyLedger(50, 1e-5)
    with pytest.raises(PrivacyError, match="open the PrivacyLedger first"), ledger.pay_for(pca()):
        raise AssertionError
    with ledger:
        for bad, params in (
            (FunctionTransformer(), {}),
            (pca(), {"scoring": SCORER}),
            (grid(KFold(3), scoring=REPLACE), {"cv": 3}),
        ):
            with pytest.raises(ValueError), ledger.pay_for(bad, 90, **params):
                raise AssertionError
    assert not ledger.entries


# -- searches -------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["sequential", "threading"])
@pytest.mark.parametrize("cv", [KFold(3), IndependentKFold(3)])
def test_search_is_charged_as_counted(cv, backend):
    adjacency = "replace" if isinstance(cv, KFold) else "add_remove"
    scorer = REPLACE if isinstance(cv, KFold) else SCORER
    search = grid(cv, pca(adjacency=adjacency), scoring=scorer)
    with PrivacyLedger(5, 1e-5) as ledger, joblib.parallel_config(backend, n_jobs=2):
        with record_transcript() as transcript, ledger.pay_for(search, 90):
            assert [fit.state for fit in ledger.entries] == ["open"]
            search.fit(X)
        assert [fit.state for fit in ledger.entries] == ["fitted"]
    assert not transcript.faults
    assert ledger.spent.losses == search_cost(search, 90).losses
    assert ledger.entries[0].estimator == "GridSearchCV (3 candidates)"
    assert np.all(np.isfinite(search.cv_results_["mean_test_score"]))


def test_search_that_is_too_dear_is_refused_before_it_starts():
    search = GridSearchCV(pca(), {"epsilon": [0.1, 2.0]}, cv=IndependentKFold(3), scoring=SCORER)
    ledger = PrivacyLedger(1, 1e-5)
    refused = pytest.raises(BudgetExceededError, match=r"GridSearchCV \(2 candidates\) asks for")
    with record_transcript() as transcript, refused, ledger, ledger.pay_for(search):
        search.fit(X)
    assert not len(transcript) and not ledger.entries


def test_cross_validation_is_paid_for_with_its_folds():
    cv, model = IndependentKFold(4), pca(epsilon=0.2)
    pipe = make_pipeline(FunctionTransformer(), model)
    with PrivacyLedger(9, 1e-5) as ledger:
        with ledger.pay_for(pipe, cv=cv):
            result = cross_validate(pipe, X, cv=cv, scoring=lambda *_: 0.0, return_estimator=True)
        assert ledger.spent.mu == pytest.approx(mu_of(0.2) * math.sqrt(3))
        with ledger.pay_for(model, cv=cv, scoring=SCORER):
            cross_validate(model, X, cv=cv, scoring=SCORER, error_score="raise")
    assert len(result["estimator"]) == 4
    assert ledger.entries[1].losses == search_cost(model, cv=cv, scoring=SCORER).losses


def test_more_than_was_paid_for_is_refused():
    cv, model = IndependentKFold(3), pca()
    refused = pytest.raises(BudgetExceededError, match="not among those")
    ledger = PrivacyLedger(9, 1e-5)
    with refused, ledger, ledger.pay_for(model, cv=cv, scoring=SCORER):
        permutation_test_score(model, X, Y, cv=cv, scoring=SCORER, n_permutations=1)
    assert len(ledger.entries) == 1


@pytest.mark.thorough
def test_what_a_search_left_over_ends_with_it():
    """Candidates that fail before they read were paid for: their fits are free for nobody."""
    search = GridSearchCV(
        pca(epsilon=0.1), {"n_components": [1, *range(50, 60)]}, cv=IndependentKFold(3),
        scoring=SCORER,
    )  # fmt: skip
    with PrivacyLedger(9, 1e-5) as ledger, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with ledger.pay_for(search):
            search.fit(X)
            clones = [clone(search.estimator) for _ in range(3)]
        spent = ledger.spent
        for left in (search.best_estimator_, *clones, clone(search.best_estimator_)):
            with pytest.raises(PrivacyError, match="has ended"):
                left.fit(X)
        assert ledger.spent == spent
        ledger._refused.clear()
        search.estimator.fit(X)  # a fit of its own
        assert len(ledger.entries) == 2


@pytest.mark.thorough
def test_a_search_that_never_ran_costs_nothing():
    search = grid(IndependentKFold(3), pca(), scoring=SCORER)
    with PrivacyLedger(9, 1e-5) as ledger:
        with ledger.pay_for(search):
            assert ledger.remaining() < 8.9
        assert ledger.entries == ()
        with pytest.raises(KeyError), ledger.pay_for(search):
            {}[search.fit(X)]
        assert [fit.state for fit in ledger.entries] == ["failed"]  # after it was paid for
    assert ledger.spent.losses == search_cost(search).losses
    assert SCORER._ledger_ticket is None and search.estimator._ledger_ticket is None


@pytest.mark.thorough
def test_pipeline_and_private_search_inside_a_search():
    scorer = make_private_scorer("squared_error", (0.0, 1.0))
    pipe = make_pipeline(pca(), DPTraceRegressor(1))
    params = {"dptraceregressor__max_iter": [1, 2]}
    search = GridSearchCV(pipe, params, cv=IndependentKFold(2), scoring=scorer)
    inner = DPGridSearchCV(pca(), {"n_components": [1, 2]}, SCORER)
    outer = GridSearchCV(inner, {"score_share": [0.1]}, cv=IndependentKFold(2), scoring=SCORER)
    with PrivacyLedger(40, 1e-5) as ledger, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with ledger.pay_for(search):
            search.fit(X, Y)
        with ledger.pay_for(outer):
            outer.fit(X)
    assert [fit.losses for fit in ledger.entries] == [
        search_cost(search).losses,
        search_cost(outer).losses,
    ]


def test_candidates_may_be_estimators():
    scorer = make_private_scorer("squared_error", (0.0, 1.0))
    search = GridSearchCV(
        make_pipeline(ridge()), {"dpridge": [ridge(), ridge(epsilon=0.5)]},
        cv=IndependentKFold(2), scoring=scorer, error_score="raise",
    )  # fmt: skip
    with PrivacyLedger(40, 1e-5) as ledger, ledger.pay_for(search):
        search.fit(X, Y)
    assert ledger.spent.losses == search_cost(search).losses


def test_scorer_alone_pays_the_ledger():
    model = pca().fit(X)
    with PrivacyLedger(5, 1e-5) as ledger:
        score = SCORER(model, X)
    assert -1 <= score <= 0
    assert ledger.spent.mu == pytest.approx(mu_of(0.3))


# -- one full fit each ----------------------------------------------------------------------------

WHOLE = [
    (VotingRegressor([("a", ridge()), ("b", make_pipeline(ridge()))]), Y, 2),
    (MultiOutputRegressor(ridge()), X[:, :3], 3),
    (make_pipeline(ColumnTransformer([("a", pca(), [0, 1]), ("b", pca(), [2, 3])]), ridge()), Y, 3),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("meta", "y", "fits"), WHOLE)
def test_clones_on_all_rows_are_charged_as_a_fit_each(meta, y, fits):
    with PrivacyLedger(50, 1e-5) as ledger:
        with pytest.raises(PrivacyError, match="pay_for"):
            meta.fit(X, y)
        ledger._refused.clear()
        before = len(ledger.entries)  # a part that is no clone may have been fitted
        with ledger.pay_for(meta), joblib.parallel_config("threading", n_jobs=2):
            meta.fit(X, y)
        assert len(ledger.entries) - before == fits
        model = clone(ridge())
        with pytest.raises(PrivacyError, match="pay_for"):
            model.fit(X, Y)
        with ledger.pay_for(model):
            model.fit(X, Y)
        ledger._refused.clear()
    assert len(ledger.entries) - before == fits + 1


def test_threads_inside_two_ledgers_pay_both():
    meta = VotingRegressor([(f"m{i}", ridge(epsilon=0.1)) for i in range(4)], n_jobs=2)
    outer, inner = PrivacyLedger(9, 1e-5), PrivacyLedger(9, 1e-5)
    with outer, outer.pay_for(meta), inner, joblib.parallel_config("threading"):
        meta.fit(X, Y)
    assert len(inner.entries) == len(outer.entries) == 4


def test_a_ledger_that_a_thread_opens_is_inside_those_that_are_open():
    def in_thread():
        with PrivacyLedger(3, 1e-6) as own:
            pca().fit(X)
        return own

    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()  # a thread from before: it inherits nothing
        with PrivacyLedger(3, 1e-6) as outer:
            inner = pool.submit(in_thread).result()
    assert len(inner.entries) == len(outer.entries) == 1
