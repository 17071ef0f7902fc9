"""Inside a ledger, meta-estimators are charged by name, or refused before data are read."""

import copy
import math
import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace

import joblib
import numpy as np
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.ensemble import BaggingRegressor, StackingRegressor, VotingClassifier, VotingRegressor
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.feature_selection import RFECV, SequentialFeatureSelector
from sklearn.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    KFold,
    LeaveOneGroupOut,
    LeaveOneOut,
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
from skdp.privacy.gate.bounds import SAMPLER_DISTANCE
from skdp.testing import record_transcript
from tools.ledgers import REPLACE, SCORER, forgiving, grid, mu_of, pca
from tools.outcomes import messages_of, refuses

pytestmark = pytest.mark.filterwarnings(  # noise
    "ignore::skdp.exceptions.UtilityWarning"
)

X = np.random.default_rng(0).standard_normal((90, 4)) / 4
Y = X[:, 0]
LABELS = np.arange(90) % 2


def ridge(**params):
    return DPRidge(clip_norm=1.0, target_bounds=(-1.0, 1.0), **params)


NOT_PAID = "has ended|cannot know on which rows"
CHANGED = "changed after it was charged|cannot know on which rows"
PART = "another part|continues outside it|has ended"


class OwnSearch(GridSearchCV):
    """It may fit whatever it likes."""


# -- fits without a charge ------------------------------------------------------------------------

CLASSIFIER = DPRidgeClassifier(clip_norm=1.0, classes=[0, 1])
RAISING = {"scoring": SCORER, "error_score": "raise"}
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
    refused = pytest.raises((PrivacyError, ValueError), match="charge")
    with record_transcript() as transcript, refused, PrivacyLedger(50, 1e-5) as ledger:
        meta.fit(X, y)
    assert not len(transcript) and not ledger.entries
    with PrivacyLedger(50, 1e-5) as ledger:
        with pytest.raises(PrivacyError, match="privacy cost"), ledger.charge(meta):
            raise AssertionError
        assert not ledger.entries


@pytest.mark.parametrize(
    "loop",
    [
        lambda model, cv: cross_validate(model, X, cv=cv, **RAISING),
        lambda model, cv: cross_val_predict(ridge(), X, Y, cv=cv),
        lambda model, cv: validation_curve(
            model, X, None, param_name="n_components", param_range=[1, 2], cv=cv, **RAISING),
        lambda model, cv: learning_curve(model, X, None, cv=cv, **RAISING),
        lambda model, cv: permutation_test_score(
            model, X, Y, cv=cv, n_permutations=2, scoring=SCORER),
        lambda model, cv: grid(cv, model, **RAISING).fit(X),
    ],
    ids=["validate", "predict", "validation", "learning", "permutation", "search"],
)  # fmt: skip
def test_every_loop_over_folds_is_refused_unless_paid_for(loop):
    with record_transcript() as transcript, PrivacyLedger(100.0, 1e-3) as ledger:
        refuses(PrivacyError, r"with ledger.charge\(search", loop, pca(), IndependentKFold(3))
        assert len(ledger.rejected_fits) == 1
        ledger._refused.clear()
    assert not ledger.entries and not len(transcript)


@pytest.mark.parametrize("caught", [True, False])  # not caught: scikit-learn's error buries it
def test_whoever_swallows_the_refusal_meets_it_at_the_end(caught):
    def swallow():
        inside = pytest.raises(ValueError, match="fits failed") if caught else nullcontext()
        with PrivacyLedger(9, 1e-5), inside:
            grid(IndependentKFold(2), pca(), scoring=SCORER).fit(X)

    refuses(PrivacyError, r"(?s)hid.*the errors.*charge", swallow)


@pytest.mark.parametrize(
    ("search", "match"),
    [
        (grid(KFold(4), pca(), scoring=SCORER), "IndependentKFold"),
        (grid(KFold(3)), "selects by exact scores"),
        (OwnSearch(pca(), {}, cv=IndependentKFold(2), scoring=SCORER), "is unknown"),
        (GridSearchCV(BaggingRegressor(ridge()), {}, cv=IndependentKFold(2)), "how often"),
    ],
)
def test_what_cannot_be_counted_cannot_be_paid_for(search, match):
    with PrivacyLedger(50, 1e-5) as ledger:
        with pytest.raises(PrivacyError, match=match), ledger.charge(search, 90):
            raise AssertionError
        assert not ledger.entries


def test_what_pay_for_needs():
    ledger = PrivacyLedger(50, 1e-5)
    with pytest.raises(PrivacyError, match="open the PrivacyLedger first"), ledger.charge(pca()):
        raise AssertionError
    with ledger:
        for bad, params in (
            (FunctionTransformer(), {}),
            (pca(), {"scoring": SCORER}),
            (grid(KFold(3), scoring=REPLACE), {"cv": 3}),
        ):
            with pytest.raises(ValueError), ledger.charge(bad, 90, **params):
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
        with record_transcript() as transcript, ledger.charge(search, 90):
            assert [fit.state for fit in ledger.entries] == ["open"]
            search.fit(X)
        assert [fit.state for fit in ledger.entries] == ["fitted"]
    assert not transcript.faults
    cost = search_cost(search, 90)
    assert ledger.spent.losses == cost.losses
    drawn = (len(cost.fits) + len(cost.refits)) * SAMPLER_DISTANCE  # each draws noise of its own
    assert ledger.spent.sampler_tv_distance == drawn
    assert ledger.entries[0].estimator == "GridSearchCV (3 candidates)"
    assert np.all(np.isfinite(search.cv_results_["mean_test_score"]))


def test_search_that_is_too_dear_is_refused_before_it_starts():
    search = GridSearchCV(pca(), {"epsilon": [0.1, 2.0]}, cv=IndependentKFold(3), scoring=SCORER)
    ledger = PrivacyLedger(1, 1e-5)
    refused = pytest.raises(BudgetExceededError, match=r"GridSearchCV \(2 candidates\) asks for")
    with record_transcript() as transcript, refused, ledger, ledger.charge(search):
        search.fit(X)
    assert not len(transcript) and not ledger.entries


def test_cross_validation_is_paid_for_with_its_folds():
    cv, model = IndependentKFold(4), pca(epsilon=0.2)
    pipe = make_pipeline(FunctionTransformer(), model)
    with PrivacyLedger(9, 1e-5) as ledger:
        with ledger.charge(pipe, cv=cv):
            result = cross_validate(pipe, X, cv=cv, scoring=lambda *_: 0.0, return_estimator=True)
        assert ledger.spent.mu == pytest.approx(mu_of(0.2) * math.sqrt(3))
        with ledger.charge(model, cv=cv, scoring=SCORER):
            cross_validate(model, X, cv=cv, scoring=SCORER, error_score="raise")
    assert len(result["estimator"]) == 4
    exact = ["exact scores are not covered" in entry.estimator for entry in ledger.entries]
    assert exact == [True, False] and ledger.report().count("exact scores are not") == 1
    assert ledger.entries[1].losses == search_cost(model, cv=cv, scoring=SCORER).losses


@pytest.mark.parametrize("unit", ["group", "row"])
def test_groups_are_routed_to_the_fits_folds_and_scores_of_their_unit(unit):
    scorer = make_private_scorer("squared_error", (0.0, 1.0), privacy_unit=unit)
    model, cv, users = ridge(privacy_unit=unit), IndependentKFold(2), np.arange(90) // 3
    search = GridSearchCV(model, {"alpha": [1.0]}, cv=cv, scoring=scorer, error_score="raise")
    routed = config_context(enable_metadata_routing=True)
    with routed, PrivacyLedger(9, 1e-4) as ledger, ledger.charge(search, groups=users):
        search.fit(X, Y, groups=users)
    assert [entry.unit for entry in ledger.entries] == [unit]


def test_seeded_scores_are_seeded_fits():
    cv, model, scorer = IndependentKFold(3), pca(epsilon=0.1), replace(SCORER)
    with forgiving(9, 1e-5) as ledger:
        with ledger.charge(model, cv=cv, scoring=scorer):
            scorer.random_state = 0
            with pytest.raises(BudgetExceededError, match="not among those"):
                cross_validate(model, X, cv=cv, scoring=scorer, error_score="raise")
        with pytest.raises(PrivacyError, match="was given a random_state"):
            ledger.charge(grid(cv, model, scoring=scorer)).__enter__()
    assert search_cost(model, cv=cv, scoring=scorer).seeded and not ledger.spent.seeded


def test_more_than_was_paid_for_is_refused():
    cv, model = IndependentKFold(3), pca()
    refused = pytest.raises(BudgetExceededError, match="not among those")
    at_the_end = pytest.raises(BudgetExceededError, match=r"hid .* outside .*not among those")
    ledger = PrivacyLedger(9, 1e-5)
    with at_the_end, ledger, ledger.charge(model, cv=cv, scoring=SCORER), refused:
        permutation_test_score(model, X, Y, cv=cv, scoring=SCORER, n_permutations=1)
    assert len(ledger.entries) == 1


def failing_search(**params):
    """Most of its candidates fail before they read: their fits were paid for."""
    return GridSearchCV(
        pca(epsilon=0.1), {"n_components": [1, *range(50, 60)]}, cv=IndependentKFold(3),
        scoring=SCORER, **params,
    )  # fmt: skip


@pytest.mark.thorough
@pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.FitFailedWarning", "ignore:One or more|.*a signal needs"
)
@pytest.mark.parametrize("error_score", ["raise", np.nan])
def test_what_a_search_left_over_ends_with_its_fit(error_score):
    """Inside the block too: charges for fits on folds do not cover later fits on all rows."""
    search, inside = failing_search(error_score=error_score), []
    other = failing_search()
    copied = clone(search)
    with PrivacyLedger(9, 1e-5) as ledger, ledger.charge(other), ledger.charge(search):
        paid = [entry.losses for entry in ledger.entries]
        search.estimator.__class__ = type(
            "Spy", (DPPCA,), {"__sklearn_clone__": spy(inside, search)}
        )
        with suppress(ValueError):  # in the middle
            search.fit(X)
        search.estimator.__class__ = DPPCA
        assert len(inside) > 3
        late = [clone(search.estimator), pickle.loads(pickle.dumps(search.estimator)), *inside]
        late += [getattr(search, "best_estimator_", late[0]), clone(inside[0])]
        for left in late:
            refuses(PrivacyError, NOT_PAID, left.fit, X)
        for again in (search, copied, pickle.loads(pickle.dumps(search)), copy.deepcopy(other)):
            refuses((PrivacyError, ValueError), NOT_PAID, again.fit, X)
        assert [entry.losses for entry in ledger.entries] == paid
        ledger._refused.clear()
        search.estimator.fit(X)  # a fit of its own
        assert len(ledger.entries) == 3
    assert len(ledger.entries) == 2  # the other search never ran
    assert "fit" not in vars(search) and "fit" not in vars(other)


def spy(made, search):
    within = []

    def clone_and_tell(self):
        if getattr(self._reservation_key, "reservation", "") and not within:  # or another thread
            within.append(self)
            refuses(PrivacyError, "charge it again", search.fit, X[:50])
        made.append(DPPCA.__sklearn_clone__(self))
        made[-1].__class__ = DPPCA
        return made[-1]

    return clone_and_tell


@pytest.mark.parametrize(
    "change",
    [
        lambda search: search.set_params(cv=[(np.arange(60), np.arange(60, 90))] * 3),
        lambda search: search.set_params(param_grid={"n_components": [1, 2, 3, 1]}),
        lambda search: search.set_params(refit=False),
        lambda search: search.estimator.set_params(epsilon=0.1),
        lambda search: search.set_params(estimator=clone(search.estimator)),
    ],
    ids=["folds", "candidates", "refit", "epsilon", "estimator"],
)
def test_a_search_that_changed_after_it_was_paid_for_is_refused(change):
    search = grid(cv=np.array_split(np.arange(90), 3), scoring=REPLACE, error_score="raise")
    search.set_params(cv=[(part, part) for part in search.cv])  # a row is in one training set
    refused = pytest.raises(PrivacyError, match=CHANGED)
    with record_transcript() as transcript, PrivacyLedger(9, 1e-5) as ledger:
        with ledger.charge(search, 90):
            change(search)
            with refused:
                search.fit(X)
            ledger._refused.clear()
        assert not len(transcript) and not ledger.entries


def test_a_search_is_paid_for_its_rows_and_groups():
    for cv, unit, n in ((LeaveOneOut(), "row", 10), (LeaveOneGroupOut(), "group", len(X))):
        scorer, model = replace(REPLACE, privacy_unit=unit), pca(privacy_unit=unit)
        search = grid(cv, model.set_params(adjacency="replace"), scoring=scorer)
        users = np.arange(len(X)) % 3
        with PrivacyLedger(90, 1e-3) as ledger, ledger.charge(search, n, groups=users):
            with pytest.raises(PrivacyError, match="number of rows, or with other 'groups'"):
                search.fit(X, groups=np.arange(len(X)) % 4)
            ledger._refused.clear()


def test_a_search_is_fitted_in_the_part_where_it_was_paid():
    model, search = pca(epsilon=0.2), grid(IndependentKFold(2), pca(epsilon=0.2), scoring=SCORER)
    with PrivacyLedger(9, 1e-5) as ledger, ExitStack() as stack:
        with ledger.partition("region", ["north", "south"]) as part:
            with part("north"):
                stack.enter_context(ledger.charge(search))
                stack.enter_context(ledger.charge(model, cv=IndependentKFold(2)))
                with ThreadPoolExecutor(1) as pool:  # which is in no part
                    refuses(PrivacyError, PART, pool.submit(search.fit, X).result)
            spent = ledger.spent
            for name in ("south", None):
                for fit in (search.fit, clone(model).fit):  # the latter in a loop over folds
                    refused = pytest.raises(PrivacyError, match=PART)
                    with part(name) if name else nullcontext(), refused:
                        fit(X)
        ledger._refused.clear()
        assert ledger.spent == spent
    assert not ledger.entries


# -- who fits the clones --------------------------------------------------------------------------


def test_a_private_part_is_paid_for_by_a_word_that_shows():
    """Its user may do what is refused otherwise: the ledger records this assumption."""
    model, meta = ridge(), VotingRegressor([("a", ridge())])
    with PrivacyLedger(9, 1e-5) as ledger:
        with pytest.raises(PrivacyError, match="assume_all_rows=True"), ledger.charge(model):
            raise AssertionError
        for wrong in ({"cv": 3}, {"scoring": SCORER}):
            with pytest.raises(ValueError), ledger.charge(model, assume_all_rows=True, **wrong):
                raise AssertionError
        with pytest.raises(ValueError), ledger.charge(meta, assume_all_rows=True):
            raise AssertionError
        assert not ledger.entries
        with ledger.charge(model, assume_all_rows=True):
            fitted = clone(model).fit(X, Y)
        with ledger.charge(meta):
            (known,) = meta.fit(X, Y).estimators_
        model.fit(X, Y)
    words = ["as the caller states" in entry.estimator for entry in ledger.entries]
    assert words == [True, False, False]
    said = [each.privacy_spent_.statement() for each in (fitted, known, model)]
    assert ["the caller states" in each for each in said] == [True, False, False]


def test_a_composition_opens_its_parts_to_itself_alone():
    """Its parts have no reservation while something else is fitted in its block, or afterwards."""
    part = ridge()
    meta = VotingRegressor([("a", part)])
    with PrivacyLedger(50, 1e-5) as ledger, ledger.charge(meta):
        kept = meta.fit(X, Y).estimators_
        for other in (RFECV(part, cv=3), BaggingRegressor(part), RFECV(kept[0], cv=3), *kept):
            refuses((PrivacyError, ValueError), NOT_PAID, other.fit, X, Y)
        meta.set_params(a=make_pipeline(BaggingRegressor(part)))
        refuses(PrivacyError, "is unknown", meta.fit, X, Y)
        ledger._refused.clear()
        several = type("Several", (MultiOutputRegressor,), {})(part)  # a subclass may do anything
        parts = (BaggingRegressor(part), part)
        votes = [
            VotingRegressor([*zip("ab", order, strict=True)]) for order in (parts, parts[::-1])
        ]
        for many in (several, *votes):
            with pytest.raises(PrivacyError, match="cost is unknown"), ledger.charge(many):
                raise AssertionError
    assert len(ledger.entries) == 1


@pytest.mark.thorough
def test_a_search_that_never_ran_costs_nothing():
    search = grid(IndependentKFold(3), pca(), scoring=SCORER)
    with PrivacyLedger(9, 1e-5) as ledger:
        with ledger.charge(search):
            assert ledger.remaining() < 8.9
        assert ledger.entries == ()
        with pytest.raises(KeyError), ledger.charge(search):
            {}[search.fit(X)]
        assert [fit.state for fit in ledger.entries] == ["failed"]  # after it was paid for
    assert ledger.spent.losses == search_cost(search).losses
    assert SCORER._reservation_key is None and search.estimator._reservation_key is None


def searches():
    squared = make_private_scorer("squared_error", (0.0, 1.0))
    pipe = make_pipeline(pca(), DPTraceRegressor(1))
    inner = DPGridSearchCV(pca(), {"n_components": [1, 2]}, SCORER)
    return {
        "pipeline": (pipe, {"dptraceregressor__max_iter": [1, 2]}, squared),
        "private search": (inner, {"score_budget_fraction": [0.1]}, SCORER),
        "candidates": (make_pipeline(ridge()), {"dpridge": [ridge(), ridge(epsilon=0.5)]}, squared),
    }


@pytest.mark.thorough
@pytest.mark.parametrize("what", searches())
def test_what_a_search_searches_is_counted(what):
    model, params, scorer = searches()[what]
    cv = IndependentKFold(2)
    search = GridSearchCV(model, params, cv=cv, scoring=scorer, error_score="raise")
    with PrivacyLedger(40, 1e-5) as ledger, ledger.charge(search):
        messages_of(search.fit, X, Y)
    assert ledger.spent.losses == search_cost(search).losses


def test_scorer_alone_pays_the_ledger():
    model = pca().fit(X)
    with PrivacyLedger(5, 1e-5) as ledger:
        score = SCORER(model, X)
        copied = pickle.loads(pickle.dumps(SCORER))  # it may be sent to where no ledger is
        refuses(PrivacyError, NOT_PAID, copied, model, X)
        ledger._refused.clear()
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
        refuses(PrivacyError, "charge", meta.fit, X, y)
        ledger._refused.clear()
        before = len(ledger.entries)  # a part that is no clone may have been fitted
        with ledger.charge(meta), joblib.parallel_config("threading", n_jobs=2):
            meta.fit(X, y)
        assert len(ledger.entries) - before == fits


def test_threads_inside_two_ledgers_pay_both():
    meta = VotingRegressor([(f"m{i}", ridge(epsilon=0.1)) for i in range(4)], n_jobs=2)
    outer, inner = PrivacyLedger(9, 1e-5), PrivacyLedger(9, 1e-5)
    with outer, outer.charge(meta), inner, joblib.parallel_config("threading"):
        meta.fit(X, Y)
    assert len(inner.entries) == len(outer.entries) == 4


def test_each_ledger_around_a_paid_search_is_charged():
    search = grid(IndependentKFold(2), pca(), scoring=SCORER)
    with PrivacyLedger(9, 1e-5) as outer, PrivacyLedger(9, 1e-5) as inner, inner.charge(search):
        search.fit(X)
    expected = [search_cost(search).losses]
    assert [[fit.losses for fit in each.entries] for each in (outer, inner)] == [expected] * 2


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
