"""check_pipeline on right and wrong pipelines, and one that is private from end to end."""

import math
import pickle

import numpy as np
import pytest
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    BaggingRegressor,
    RandomForestClassifier,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer
from sklearn.feature_selection import SelectKBest
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline, make_union
from sklearn.preprocessing import (
    Binarizer,
    FunctionTransformer,
    Normalizer,
    OneHotEncoder,
    StandardScaler,
)

from skdp import (
    DPPCA,
    DPIncrementalPCA,
    DPLowRankFactorizer,
    DPPersonalizedRegressor,
    DPRidge,
    DPRidgeClassifier,
    DPTruncatedSVD,
    PrivacyLedger,
    check_pipeline,
)
from skdp.exceptions import BudgetExceededError, PrivacyError, PrivacyWarning
from skdp.model_selection import DPGridSearchCV, make_private_scorer, with_budget
from skdp.model_selection._cost import planned_fit, set_budget
from skdp.preprocessing import DPStandardScaler, RowClipper
from skdp.privacy.accounting.losses import compose
from skdp.privacy.accounting.receipts import PrivacySpent
from skdp.privacy.gate.bounds import SAMPLER_DISTANCE
from skdp.testing import FitData, seeded_entropy, transcript_audit
from tools.outcomes import refuses

# Tiny fits find little; the tests of the estimators cover their warnings.
pytestmark = pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")


class Mystery(TransformerMixin, BaseEstimator):
    """A transformer of unknown origin."""

    def fit(self, X, y=None):
        return self

    def transform(self, X):
        return X


class Resampling(Pipeline):
    """Stands for pipelines of other packages, which may change the rows."""


class SubclassedScaler(StandardScaler):
    """May do anything: not scikit-learn's own."""


def kinds(pipe, **options):
    return [(problem.step, problem.kind) for problem in check_pipeline(pipe, **options).problems]


def by_columns(*parts, **params):
    return ColumnTransformer(
        list(parts), **{"sparse_threshold": 0, "verbose_feature_names_out": False} | params
    )


SCORER = make_private_scorer("squared_error", (0.0, 4.0))
NOT, AFTER = "not verified", "after"
ONE_HOT = OneHotEncoder(categories=[["a", "b"]], handle_unknown="ignore")
CLIPPED = ("a", Normalizer(), [0])
PIPES = {
    # -- right ones --
    "clip, reduce, read out": (
        make_pipeline(RowClipper(), DPTruncatedSVD(clip_norm=1.0), DPRidge()), [],
    ),
    "hash, normalise, classify": (
        make_pipeline(HashingVectorizer(n_features=64), Normalizer(), DPRidgeClassifier()), [],
    ),
    "private scaler, PCA": (make_pipeline(DPStandardScaler(), DPPCA(2)), []),
    "a single private step": (DPPCA(2), []),
    "ufunc": (make_pipeline(FunctionTransformer(np.arcsinh), DPRidge()), []),
    "passthrough": (Pipeline([("a", "passthrough"), ("b", None), ("c", DPRidge())]), []),
    "union of private steps": (make_pipeline(make_union(DPPCA(2), RowClipper()), DPRidge()), []),
    "columns": (
        make_pipeline(by_columns(("a", ONE_HOT, [0]), ("b", Normalizer(), [1, 2])), DPRidge()), [],
    ),
    "voting, private": (VotingRegressor([("a", DPRidge()), ("b", DPRidge(10.0))]), []),
    "rows by themselves at the end": (make_pipeline(DPPCA(2), Normalizer()), []),
    "a private search": (
        DPGridSearchCV(
            make_pipeline(RowClipper(), DPPCA(2), DPRidge()),
            {"dppca__n_components": [1, 2]},
            SCORER,
        ),
        [],
    ),
    # -- before a private step --
    "scaler from public data": (
        make_pipeline(FrozenEstimator(StandardScaler().fit(np.eye(3))), DPPCA(2), DPRidge()),
        [("frozenestimator", NOT)],
    ),
    "a search of a second grid": (
        DPGridSearchCV(
            make_pipeline(RowClipper(), DPRidge()), [{}, {"rowclipper": [StandardScaler()]}], SCORER
        ),
        [("DPGridSearchCV__rowclipper", NOT)],
    ),
    "users of a column that a step takes out": (
        make_pipeline(
            DPPCA(2, privacy_unit="group", group_column=0),
            DPRidge(privacy_unit="group", group_column=0),
        ),
        [("dpridge", "unit")],
    ),
    "rows on disk": (
        make_pipeline(RowClipper(), DPPCA(2), DPRidge(), memory="cache"), [("Pipeline", NOT)],
    ),
    "nested": (
        make_pipeline(make_pipeline(StandardScaler(), RowClipper()), DPRidge()),
        [("pipeline__standardscaler", NOT)],
    ),
    "predictions handed on": (
        make_pipeline(RowClipper(), VotingRegressor([("a", DPRidge())]), DPRidge()),
        [("Pipeline", NOT)],
    ),
    "nested, stored": (
        make_pipeline(Pipeline([("clip", RowClipper())], memory="cache"), DPRidge()),
        [("pipeline", NOT)],
    ),
    "union": (
        make_pipeline(make_union(DPPCA(2), PCA(2)), DPRidge()), [("featureunion__pca", NOT)],
    ),
    "the remainder": (
        make_pipeline(by_columns(CLIPPED, remainder=StandardScaler()), DPRidge()),
        [("columntransformer__remainder", NOT)],
    ),
    "target transformed": (
        TransformedTargetRegressor(DPRidge(), transformer=StandardScaler()),
        [("TransformedTargetRegressor", NOT), ("pipeline", "not private")],
    ),
    "a vote that codes labels anew": (
        VotingClassifier([("a", DPRidgeClassifier(classes=[0, 1]))]),
        [("VotingClassifier", NOT), ("pipeline", "not private")],
    ),
    "many outputs": (
        MultiOutputRegressor(DPRidge()),
        [("MultiOutputRegressor", NOT), ("pipeline", "not private")],
    ),
    "exact scores": (
        GridSearchCV(make_pipeline(RowClipper(), DPRidge()), {"dpridge__alpha": [1, 10]}),
        [("GridSearchCV", NOT), ("pipeline", "not private")],
    ),
    "a private search around a fitted scaler": (
        make_pipeline(
            RowClipper(),
            DPGridSearchCV(
                make_pipeline(StandardScaler(), DPRidge()), {"dpridge__alpha": [1, 2]}, SCORER
            ),
        ),
        [("dpgridsearchcv__estimator__standardscaler", NOT)],
    ),
    # -- behind a private step: exact projections of private rows --
    "vocabulary before, forest after": (
        make_pipeline(TfidfVectorizer(), DPTruncatedSVD(2), RandomForestClassifier()),
        [("tfidfvectorizer", NOT), ("randomforestclassifier", AFTER)],
    ),
    "learnt between two private steps": (
        make_pipeline(DPPCA(2), StandardScaler(), DPRidge()), [("standardscaler", AFTER)],
    ),
    "selection after": (make_pipeline(DPPCA(2), SelectKBest()), [("selectkbest", AFTER)]),
    "bags after": (
        make_pipeline(DPPCA(2), BaggingRegressor(DPRidge())), [("baggingregressor", AFTER)],
    ),
    # -- nothing private --
    "no private step": (
        make_pipeline(Normalizer(), Ridge()), [("ridge", NOT), ("pipeline", "not private")],
    ),
    "only stateless steps": (make_pipeline(Normalizer()), [("pipeline", "not private")]),
    "no noise": (make_pipeline(DPPCA(2, epsilon=np.inf)), [("dppca", "not private")]),
    "seeded": (make_pipeline(DPPCA(2, random_state=0)), [("dppca", "not private")]),
    "a pipeline of another make": (
        Resampling([("clip", RowClipper()), ("ridge", DPRidge())]),
        [("Resampling", NOT), ("pipeline", "not private")],
    ),
    "a search without a private step": (
        DPGridSearchCV(make_pipeline(RowClipper()), {}, SCORER),
        [("DPGridSearchCV", "not private"), ("pipeline", "not private")],
    ),
    # -- what is protected --
    "votes": (make_pipeline(VotingRegressor([("a", DPRidge())]), DPPCA()), [("Pipeline", NOT)]),
    "voting": (VotingRegressor([("a", DPRidge()), ("b", Ridge())]), [("b", NOT)]),
    "rows mixed before an entry unit": (
        make_pipeline(Normalizer(), DPTruncatedSVD(privacy_unit="entry")),
        [("dptruncatedsvd", "unit")],
    ),
    "entries mapped before an entry unit": (
        make_pipeline(Binarizer(threshold=-1.0), DPTruncatedSVD(privacy_unit="interaction")),
        [("dptruncatedsvd", "unit")],
    ),
    "an entry unit first": (make_pipeline(DPTruncatedSVD(privacy_unit="interaction")), []),
    "two units": (
        make_pipeline(DPTruncatedSVD(privacy_unit="interaction"), DPRidge()),
        [("pipeline", "unit")],
    ),
    "two adjacencies": (
        make_pipeline(DPPCA(2, adjacency="replace"), DPRidge()), [("pipeline", "unit")],
    ),
    "one adjacency": (make_pipeline(*(kind(adjacency="replace") for kind in (DPPCA, DPRidge))), []),
    "users rescaled": (
        make_pipeline(RowClipper(), DPPersonalizedRegressor(group_column=-1)),
        [("dppersonalizedregressor", "holds private"), ("dppersonalizedregressor", "unit")],
    ),
    "users in a column that was moved": (
        make_pipeline(
            by_columns(("a", "passthrough", [1, 0])), DPPersonalizedRegressor(group_column=1)
        ),
        [("dppersonalizedregressor", "holds private"), ("dppersonalizedregressor", "unit")],
    ),
    "heads of users": (
        DPPersonalizedRegressor(), [("DPPersonalizedRegressor", "holds private")],
    ),
}  # fmt: skip
# Steps that are not verified before a private one.
UNVERIFIED = {
    "unknown": Mystery(),
    "a function of all rows": FunctionTransformer(lambda X: X - X.mean(axis=0)),
    "a function dressed as a ufunc": FunctionTransformer(np.frompyfunc(float, 1, 1)),
    "columns by a function of rows": by_columns(("a", Normalizer(), lambda X: [int(X.sum()) % 2])),
}
PIPES |= {
    step: (make_pipeline(unverified, DPRidge()), [(type(unverified).__name__.lower(), NOT)])
    for step, unverified in UNVERIFIED.items()
}


@pytest.mark.parametrize("name", PIPES)
def test_pipelines(name):
    pipe, expected = PIPES[name]
    report = check_pipeline(pipe)
    assert kinds(pipe) == expected, str(report)
    assert report.ok == bool(report) == (not expected)
    assert all(problem.message and problem.remedy for problem in report.problems)


def test_a_step_may_be_vouched_for():
    pipe = make_pipeline(Mystery(), DPRidge())
    for assume_rowwise in (["mystery"], [Mystery], "mystery", Mystery):
        report = check_pipeline(pipe, assume_rowwise=assume_rowwise)
        assert report.ok
        assert "mystery" in report.assumptions[0]
    assert not check_pipeline(
        make_pipeline(SubclassedScaler(), DPRidge()), assume_rowwise=[StandardScaler]
    )


@pytest.mark.parametrize(
    ("pipe", "text"),
    [
        (DPRidgeClassifier(), "set of labels in y"),
        (DPTruncatedSVD(privacy_unit="frobenius"), "of at most 'unit_bound'"),
        (make_pipeline(Normalizer(), DPRidge()), "at least two rows"),
    ],
)
def test_assumptions_of_the_caller_are_reported(pipe, text):
    report = check_pipeline(pipe)
    assert report.ok
    assert text in report.assumptions[0]
    assert text in str(report)


def test_it_can_raise():
    with pytest.raises(PrivacyError, match=r"standardscaler \[not verified\][\s\S]*Remedy"):
        check_pipeline(make_pipeline(StandardScaler(), DPPCA(2)), raise_error=True)
    for bad in (None, "pipeline", DPPCA, 3):
        refuses(TypeError, "check_pipeline needs", check_pipeline, bad)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # deprecated classes count too
@pytest.mark.parametrize("kind", ["transformer", "classifier", "regressor", "cluster"])
def test_every_estimator_of_scikit_learn_is_judged(kind):
    """What learns from rows is never called harmless: only these fit nothing but the width."""
    from sklearn.utils.discovery import all_estimators

    harmless = set()
    for name, cls in all_estimators(type_filter=kind):
        try:
            step = cls()
        except TypeError:
            continue  # compositions need arguments
        if kind != "transformer":
            assert ("step", "after") in kinds(Pipeline([("pca", DPPCA(2)), ("step", step)])), name
        elif check_pipeline(Pipeline([("step", step), ("ridge", DPRidge())])).ok:
            harmless.add(name)
    known = {"Binarizer", "FunctionTransformer", "HashingVectorizer", "Normalizer"}
    assert harmless == (known if kind == "transformer" else set())


# -- private from end to end ---------------------------------------------------------------------


def data(n=4000, d=8, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 2)) @ rng.standard_normal((2, d)) + 0.2 * rng.standard_normal(
        (n, d)
    )
    X /= np.linalg.norm(X, axis=1).max() / 1.2
    y = X @ rng.standard_normal(d)
    return X, y / np.abs(y).max()


def private_pipeline(epsilon=1.0, adjacency="add_remove"):
    return make_pipeline(
        RowClipper(),
        DPTruncatedSVD(2, epsilon=epsilon, clip_norm=1.0, adjacency=adjacency),
        DPRidge(
            epsilon=epsilon, clip_norm=1.0, target_bounds=(-1.0, 1.0), adjacency=adjacency
        ),
    )  # fmt: skip


def neighbours(adjacency):
    """Rows with about the clip norm, and a record of that norm in their direction."""
    X, y = data(300)
    X = 3 * X
    row = np.linalg.svd(X)[2][0]
    records = (row, 1e9), (-row, 1e9)
    first, second = (FitData(np.vstack([X, r]), np.append(y, t)) for r, t in records)
    return (FitData(X, y), first) if adjacency == "add_remove" else (first, second)


@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_the_whole_pipeline_moves_by_no_more_than_its_receipts(adjacency):
    with seeded_entropy(0):
        report = transcript_audit(
            lambda d: d.fit(private_pipeline(8.0, adjacency)), neighbours(adjacency)
        ).check()
    assert len(report.steps) > 3 and "regression_moments" in str(report)
    assert 0.6 < report.realised_mu / report.claimed_mu <= 1


class _OwnRidge(DPRidge):
    """Someone's own class, which may do anything."""


class _OwnSearch(DPGridSearchCV):
    """Derived from a search."""


def test_what_a_search_may_put_in_the_place_of_a_step():
    pipe = Pipeline([("scale", RowClipper()), ("ridge", DPRidge())])
    steps = {"scale": [RowClipper(), StandardScaler()], "ridge__alpha": [1.0]}
    assert kinds(DPGridSearchCV(pipe, steps, SCORER)) == [("DPGridSearchCV__scale", NOT)]
    assert not kinds(DPGridSearchCV(pipe, {"scale": [RowClipper(), "passthrough"]}, SCORER))


@pytest.mark.parametrize(
    ("params", "remedy"),
    [({"scoring": None}, "public 'target_bounds'"), ({"cv": 3}, "Leave 'cv' at None")],
)
def test_a_search_that_fit_refuses_is_no_private_pipeline(params, remedy):
    search = DPGridSearchCV(make_pipeline(RowClipper(), DPRidge()), {}, SCORER)
    assert not kinds(search)
    assert kinds(search.set_params(**params)) == [("DPGridSearchCV", "refused")]
    assert remedy in check_pipeline(search).problems[0].remedy
    inner = make_pipeline(RowClipper(), search)
    assert kinds(inner) == [("dpgridsearchcv", "refused")]


def test_derived_classes():
    """A search is looked into; a private estimator is taken on trust."""
    assert kinds(_OwnSearch(make_pipeline(StandardScaler(), DPRidge()), {}, SCORER))
    assert any("_OwnRidge" in text for text in check_pipeline(_OwnRidge()).assumptions)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    "first", [DPStandardScaler(bounds=(-1e-3, 1e-3)), DPTruncatedSVD(1, clip_norm=1.0), DPPCA(1)]
)
def test_a_finite_row_that_overflows_is_no_error(first, dtype):
    X = np.full((2000, 4), 0.5, dtype)
    X[0] = np.finfo(dtype).max
    pipe = make_pipeline(first, DPRidge(clip_norm=1.0, target_bounds=(-1, 1), epsilon=50.0))
    assert np.all(np.isfinite(pipe.fit(X, X[:, 1] / 2)[-1].coef_))


def test_a_method_that_was_replaced_is_unknown():
    step = Normalizer()
    step.transform = lambda X: X - X.mean(axis=0)
    assert kinds(make_pipeline(step, DPRidge())) == [("normalizer", NOT)]
    model = DPRidge()
    model.fit = lambda X, y: model
    assert kinds(model) == [("DPRidge", NOT)]


# -- users ---------------------------------------------------------------------------------------


def users_first(n_users=100, m=20):
    """Rows of users, whose number is the last column, and targets."""
    rng = np.random.default_rng(3)
    users = np.repeat(np.arange(n_users), m)
    X = rng.standard_normal((len(users), 4))
    return np.column_stack([X, users]), np.tanh(X[:, 0] * (1 + users % 3)), users


SCALER = DPStandardScaler(privacy_unit="group", group_column=0)


@pytest.mark.parametrize(
    ("steps", "column", "kept"),
    [([SCALER], 0, True), ([SCALER, SCALER], 0, True), ([make_pipeline(SCALER)], 0, True),
     ([SCALER], 1, False), ([SCALER], False, False), ([SCALER, RowClipper()], 0, False),
     ([RowClipper(), SCALER], 0, False),
     *(([SCALER, clone(SCALER).set_params(group_column=1)], i, False) for i in (0, 1)),
     ([by_columns(("ids", "passthrough", [0]))], 0, False),
     ([SCALER, by_columns(("ids", "passthrough", [1, 0]))], 0, False),
     ([FeatureUnion([("ids", SCALER)])], 0, False)],
)  # fmt: skip
def test_a_column_of_users_may_pass_through_untouched(steps, column, kept):
    model = DPRidge(privacy_unit="group", group_column=column)
    report = check_pipeline(make_pipeline(*steps, model))
    mine = [fault for fault in report.problems if (fault.step, fault.kind) == ("dpridge", "unit")]
    assert (not mine) == kept, str(report)
    if kept:
        assert any("whole numbers below 2**53" in text for text in report.assumptions)
    else:
        assert "pass 'groups'" in mine[0].remedy


def test_what_a_fitted_object_holds_is_said_by_one_attribute():
    X, y, _ = users_first()
    model = DPPersonalizedRegressor(1, group_column=4, epsilon=4.0)
    assert not model.private_state  # nothing yet, but a fit will leave heads
    model.fit(X, y)
    assert "model for each user" in model.private_state
    assert kinds(model) == [("DPPersonalizedRegressor", "holds private")]
    for best in (model, make_pipeline(DPPCA(2), model)):
        search = DPGridSearchCV(clone(best), {}, SCORER)
        search.best_estimator_ = best
        assert search.private_state == model.private_state
        assert search._fit_keeps == model._fit_keeps  # else its pickle holds it without a word
    said = str(model.privacy_report())
    assert "PRIVATE STATE" in said and "public_copy()" in said
    with pytest.warns(PrivacyWarning, match="holds an exact model for each user"):
        pickle.dumps(model)
    public = model.public_copy()
    assert not public.private_state
    assert check_pipeline(public).ok and "PRIVATE STATE" not in str(public.privacy_report())
    assert not pickle.loads(pickle.dumps(public)).private_state


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*too few:UserWarning")
def test_the_best_model_of_a_search_says_what_it_holds():
    X, y, users = users_first()
    search = DPGridSearchCV(
        DPPersonalizedRegressor(1), {"n_components": [1, 2]}, SCORER, epsilon=9.0
    )
    assert ("DPGridSearchCV__estimator", "holds private") in kinds(search)
    search.fit(X[:, :4], y, groups=users)
    assert "in best_estimator_" in str(search.privacy_report())
    for fitted in (search, search.best_estimator_):
        assert "model for each user" in fitted.private_state
        assert "PRIVATE STATE" in str(fitted.privacy_report())
        with pytest.warns(PrivacyWarning, match="holds an exact model"):
            pickle.dumps(fitted)
    public = search.best_estimator_.public_copy()
    assert not public.private_state and public.privacy_spent_ == search.privacy_spent_
    assert not DPGridSearchCV(DPRidge(), {}, SCORER).fit(X[:, :4], y).private_state


def test_a_running_stream_is_held_too():
    pca = DPIncrementalPCA(1, max_releases=3, clip_norm=1.0).partial_fit(np.eye(4))
    assert pca.private_state == "the state of a running stream"
    assert kinds(pca) == [("DPIncrementalPCA", "holds private")]
    for said in (check_pipeline(pca), pca.privacy_report()):
        assert "Publish what its public_copy() returns." in str(said)
    assert not pca.public_copy().private_state
    sketch = DPLowRankFactorizer(1, matrix_shape=(6, 5))
    assert not sketch.private_state
    sketch.update([0, 1], [2, 3], [0.5, 0.5])
    assert sketch.private_state and "state of a running" in str(check_pipeline(sketch))
    assert not sketch.release().private_state and "PRIVATE STATE" not in str(
        sketch.privacy_report()
    )


# -- private searches ------------------------------------------------------------------------------

BY_COLUMN = FunctionTransformer(lambda X: X / X.max(0))
BY_ROW = FunctionTransformer(lambda X: X / 2)


@pytest.mark.parametrize(
    ("step", "grid", "match"),
    [
        (BY_COLUMN, {"ridge__alpha": [1.0]}, "proven only with func"),
        (RowClipper(), {"scale": [RowClipper(), BY_COLUMN]}, "proven only with func"),
        (RowClipper(), {"scale": [RowClipper(), StandardScaler()]}, "scale: StandardScaler"),
        (RowClipper(), {"ridge": [Ridge()]}, "no step is private"),
        (RowClipper(), {"ridge": [DPRidge(privacy_unit="group", group_column=0)]}, "may rename"),
        (RowClipper(), {"memory": [None, "nowhere"]}, "proven only with memory=None"),
    ],
)
def test_a_private_search_refuses_what_is_not_verified(step, grid, match):
    X, y = data(300)
    search = DPGridSearchCV(Pipeline([("scale", step), ("ridge", DPRidge())]), grid, SCORER)
    for act in (lambda: search.fit(X, y), search.plan):
        refuses(PrivacyError, match, act)
    assert not hasattr(search, "best_estimator_")


@pytest.mark.deep
@pytest.mark.parametrize("assume_rowwise", [["scale"], (FunctionTransformer,)])
def test_a_caller_may_vouch_for_a_function(assume_rowwise):
    X, y = data(300)
    pipe = Pipeline([("scale", BY_ROW), ("ridge", DPRidge())])
    search = DPGridSearchCV(
        pipe, {"ridge__alpha": [1.0, 2.0]}, SCORER, assume_rowwise=assume_rowwise
    )
    assert clone(search).fit(X, y).best_estimator_[0] is not BY_ROW
    report = check_pipeline(search)
    assert report.ok and "scale treats each row by itself" in str(report)


def test_a_private_search_takes_private_steps_at_the_top_only():
    union = make_pipeline(make_union(RowClipper(), Normalizer()), DPRidge())
    DPGridSearchCV(union, {}, SCORER).plan()
    nested = make_pipeline(make_union(RowClipper(), DPPCA(2)), DPRidge())
    refuses(PrivacyError, "private inside another step", DPGridSearchCV(nested, {}, SCORER).plan)


def test_what_is_private_inside_a_step_is_not_said_to_be_missing():
    told = str(check_pipeline(MultiOutputRegressor(DPRidge())))
    assert "fitted by a step that is not verified" in told and "no step is private" not in told


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0), (0.5, 1.0, 2.0)])
def test_one_budget_for_all_steps(weights):
    """The total is reached, and never exceeded: a ledger of it takes the fit and no other."""
    X, y = data(300)
    scaler, pca, ridge = weights
    pipe = make_pipeline(
        DPStandardScaler(epsilon=scaler), DPPCA(2, epsilon=pca), DPRidge(epsilon=ridge)
    )
    model = with_budget(pipe, epsilon=1.0, delta=1e-6)
    assert [step.epsilon for _, step in pipe.steps] == list(weights)  # a clone has the budget
    given = [step.epsilon for _, step in model.steps]
    assert given == sorted(given) and math.fsum(given) > 1.4
    before, now = ([planned_fit(step).losses[0].value for _, step in each.steps]
                   for each in (pipe, model))  # fmt: skip
    assert np.ptp(np.divide(now, before)) < 1e-9  # in proportion
    assert "spent (epsilon" not in str(check_pipeline(model))
    with PrivacyLedger(epsilon=1.0) as ledger:
        model.fit(X, y)
        assert 0.999 < ledger.spent.epsilon <= 1.0
    assert [fit.estimator for fit in ledger.entries] == ["DPStandardScaler", "DPPCA", "DPRidge"]
    assert f"spent ({model[-1].epsilon:.4g}, 1e-06)" in str(check_pipeline(model))
    again = with_budget(pipe, epsilon=1.0)
    with pytest.raises(BudgetExceededError), PrivacyLedger(epsilon=0.99):
        again.fit(X, y)


def test_one_budget_refuses_what_it_cannot_count():
    refuses(PrivacyError, "verified", with_budget, make_pipeline(StandardScaler(), DPRidge()))
    refuses(PrivacyError, "of another kind", with_budget, DPTruncatedSVD(privacy_unit="entry"))
    refuses(PrivacyError, "needs pure fits", with_budget, DPRidge(), delta=0.0)
    refuses(PrivacyError, "of another kind", with_budget, DPGridSearchCV(DPRidge(), {}, SCORER))
    refuses(PrivacyError, "needs? verified", with_budget, make_pipeline(RowClipper()))
    pure = with_budget(DPTruncatedSVD(1, privacy_unit="entry"), 2.0, delta=0.0)
    assert pure.epsilon == pytest.approx(2.0) and pure.delta == 0.0
    delta = 100 * SAMPLER_DISTANCE  # of which three samplers' errors take a part that counts
    steps = with_budget(make_pipeline(DPStandardScaler(), DPPCA(), DPRidge()), delta=delta)
    losses = [loss for step in steps for loss in planned_fit(step).losses]
    spent = PrivacySpent(
        1.0, delta, compose(losses), "add_remove", "row", False, 3 * SAMPLER_DISTANCE
    )
    assert 0.99 < spent.epsilon_at(delta) <= 1.0
    assert with_budget(DPRidge(), epsilon=0.5).epsilon == pytest.approx(0.5, rel=1e-3)
    parts = [DPTruncatedSVD(privacy_unit="entry", epsilon=epsilon, delta=0.0) for epsilon in (1, 3)]
    set_budget(parts, "pure", 2.0, 0.0)
    assert [part.epsilon for part in parts] == pytest.approx([0.5, 1.5])
