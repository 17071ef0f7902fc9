"""check_pipeline on right and wrong pipelines, and one that is private from end to end."""

from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.cluster import KMeans
from sklearn.compose import (
    ColumnTransformer,
    TransformedTargetRegressor,
    make_column_selector,
    make_column_transformer,
)
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    BaggingRegressor,
    RandomForestClassifier,
    StackingRegressor,
    VotingRegressor,
)
from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer
from sklearn.feature_selection import SelectFromModel, SelectKBest
from sklearn.frozen import FrozenEstimator
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import Pipeline, make_pipeline, make_union
from sklearn.preprocessing import (
    Binarizer,
    FunctionTransformer,
    Normalizer,
    OneHotEncoder,
    PolynomialFeatures,
    QuantileTransformer,
    SplineTransformer,
    StandardScaler,
)

import skdp
from skdp import DPPCA, DPRidge, DPRidgeClassifier, DPTruncatedSVD, PrivacyLedger, check_pipeline
from skdp.exceptions import PrivacyError
from skdp.model_selection import DPGridSearchCV, make_private_scorer
from skdp.preprocessing import DPStandardScaler, RowClipper
from skdp.privacy import epsilon_from_mu_delta
from skdp.testing import FitData, audit, seeded_entropy, transcript_audit


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


SCORER = make_private_scorer("squared_error", (0.0, 4.0))
TEN = {
    # the ten of the issue: four right ones, six wrong ones
    "clip, reduce, read out": (
        make_pipeline(RowClipper(), DPTruncatedSVD(clip_norm=1.0), DPRidge()), [],
    ),
    "hash, normalise, classify": (
        make_pipeline(HashingVectorizer(n_features=64), Normalizer(), DPRidgeClassifier()), [],
    ),
    "private scaler, PCA": (make_pipeline(DPStandardScaler(), DPPCA(2)), []),
    "scaler from public data": (
        make_pipeline(FrozenEstimator(StandardScaler().fit(np.eye(3))), DPPCA(2), DPRidge()), [],
    ),
    "fitted scaler before": (
        make_pipeline(StandardScaler(), DPPCA(2), DPRidge()), [("standardscaler", "before")],
    ),
    "classifier after": (
        make_pipeline(Normalizer(), DPPCA(2), LogisticRegression()),
        [("logisticregression", "after")],
    ),
    "vocabulary before, forest after": (
        make_pipeline(TfidfVectorizer(), DPTruncatedSVD(2), RandomForestClassifier()),
        [("tfidfvectorizer", "before"), ("randomforestclassifier", "after")],
    ),
    "rows coupled by neighbours": (
        make_pipeline(KNNImputer(), QuantileTransformer(), DPRidge()),
        [("knnimputer", "before"), ("quantiletransformer", "before")],
    ),
    "rows on disk": (
        make_pipeline(RowClipper(), DPPCA(2), DPRidge(), memory="cache"), [("pipeline", "stored")],
    ),
    "exact scores": (
        GridSearchCV(make_pipeline(RowClipper(), DPRidge()), {"dpridge__alpha": [1, 10]}),
        [("GridSearchCV", "scores")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TEN)
def test_ten_pipelines(name):
    pipe, expected = TEN[name]
    report = check_pipeline(pipe)
    print(report)
    assert kinds(pipe) == expected
    assert report.ok == bool(report) == (not expected)
    assert all(problem.message and problem.remedy for problem in report.problems)


def columns(*branches, **options):
    return ColumnTransformer(list(branches), sparse_threshold=0, **options)


MORE = {
    "nothing private": (make_pipeline(Normalizer(), Ridge()), [("ridge", "not private")]),
    "only stateless steps": (make_pipeline(Normalizer()), [("pipeline", "not private")]),
    "a single private step": (DPPCA(2), []),
    "a single other step": (Ridge(), [("Ridge", "not private")]),
    "PCA in place of DPPCA": (make_pipeline(PCA(2), DPRidge()), [("pca", "before")]),
    "learnt between two private steps": (
        make_pipeline(DPPCA(2), StandardScaler(), DPRidge()), [("standardscaler", "before")],
    ),
    "clusters after": (make_pipeline(DPPCA(2), KMeans()), [("kmeans", "after")]),
    "selection after": (
        make_pipeline(DPPCA(2), SelectKBest()), [("selectkbest", "after")],
    ),
    "no noise": (make_pipeline(DPPCA(2, epsilon=np.inf)), [("dppca", "not private")]),
    "seeded": (make_pipeline(DPPCA(2, random_state=0)), [("dppca", "not private")]),
    "unknown step": (make_pipeline(Mystery(), DPRidge()), [("mystery", "unknown")]),
    "subclass of a known step": (
        make_pipeline(SubclassedScaler(), DPRidge()), [("subclassedscaler", "unknown")],
    ),
    "unknown function": (
        make_pipeline(FunctionTransformer(lambda X: X - X.mean(axis=0)), DPRidge()),
        [("functiontransformer", "unknown")],
    ),
    "a function dressed as a ufunc": (
        make_pipeline(FunctionTransformer(np.frompyfunc(float, 1, 1)), DPRidge()),
        [("functiontransformer", "unknown")],
    ),
    "ufunc": (make_pipeline(FunctionTransformer(np.log1p), DPRidge()), []),
    "ufunc with a check that warns": (
        make_pipeline(FunctionTransformer(np.log1p, inverse_func=np.expm1), DPRidge()),
        [("functiontransformer", "before")],
    ),
    "texts by an unknown function": (
        make_pipeline(HashingVectorizer(tokenizer=str.split, token_pattern=None), DPRidge()),
        [("hashingvectorizer", "unknown")],
    ),
    "selection by a function of the rows": (
        make_pipeline(SelectFromModel(DPRidge(), max_features=len), DPRidge()),
        [("selectfrommodel", "before")],
    ),
    "passthrough": (Pipeline([("a", "passthrough"), ("b", None), ("c", DPRidge())]), []),
    "nested": (
        make_pipeline(make_pipeline(StandardScaler(), RowClipper()), DPRidge()),
        [("pipeline__standardscaler", "before")],
    ),
    "nested, stored": (
        make_pipeline(Pipeline([("clip", RowClipper())], memory="cache"), DPRidge()),
        [("pipeline", "stored")],
    ),
    "union": (
        make_pipeline(make_union(DPPCA(2), PCA(2)), DPRidge()), [("featureunion__pca", "before")],
    ),
    "union of private steps": (make_pipeline(make_union(DPPCA(2), RowClipper()), DPRidge()), []),
    "columns": (
        make_pipeline(
            columns(("a", StandardScaler(), [0]), ("b", Normalizer(), [1, 2])), DPRidge()
        ),
        [("columntransformer__a", "before")],
    ),
    "columns by dtype": (
        make_pipeline(columns(("a", Normalizer(), make_column_selector())), DPRidge()), [],
    ),
    "columns by a function of the rows": (
        make_pipeline(columns(("a", Normalizer(), lambda X: [int(X.sum()) % 2])), DPRidge()),
        [("columntransformer__a", "unknown")],
    ),
    "the remainder": (
        make_pipeline(columns(("a", Normalizer(), [0]), remainder=StandardScaler()), DPRidge()),
        [("columntransformer__remainder", "before")],
    ),
    "sparse by density": (
        make_pipeline(
            make_column_transformer((OneHotEncoder(categories=[["a", "b"]]), [0])), DPRidge()
        ),
        [("columntransformer", "format")],
    ),
    "categories learnt": (
        make_pipeline(OneHotEncoder(), DPRidge()), [("onehotencoder", "before")],
    ),
    "categories given": (make_pipeline(OneHotEncoder(categories=[["a", "b"]]), DPRidge()), []),
    "rare categories": (
        make_pipeline(OneHotEncoder(categories=[["a", "b"]], min_frequency=5), DPRidge()),
        [("onehotencoder", "before")],
    ),
    "mean imputer": (make_pipeline(SimpleImputer(), DPRidge()), [("simpleimputer", "before")]),
    "constant imputer": (
        make_pipeline(SimpleImputer(strategy="constant", keep_empty_features=True), DPRidge()), [],
    ),
    "kernel of the variance": (
        make_pipeline(RBFSampler(gamma="scale"), DPRidge()), [("rbfsampler", "before")],
    ),
    "kernel": (make_pipeline(RBFSampler(gamma=1.0), DPRidge()), []),
    "polynomials": (make_pipeline(PolynomialFeatures(), RowClipper(), DPRidge()), []),
    "knots learnt": (
        make_pipeline(SplineTransformer(), DPRidge()), [("splinetransformer", "before")],
    ),
    "knots given": (
        make_pipeline(SplineTransformer(knots=np.linspace(0, 1, 5)[:, None]), DPRidge()), [],
    ),
    "target scaled by itself": (
        TransformedTargetRegressor(DPRidge(), transformer=StandardScaler()),
        [("transformer", "before")],
    ),
    "target by an unknown function": (
        TransformedTargetRegressor(DPRidge(), func=lambda y: y, inverse_func=lambda y: y),
        [("transformer", "unknown")],
    ),
    "target by ufuncs": (
        TransformedTargetRegressor(
            DPRidge(), func=np.log1p, inverse_func=np.expm1, check_inverse=False
        ),
        [],
    ),
    "target of a default": (
        TransformedTargetRegressor(), [("TransformedTargetRegressor", "not private")],
    ),
    "bags of a default": (
        make_pipeline(DPPCA(2), BaggingRegressor()), [("baggingregressor", "after")],
    ),
    "a pipeline of another make": (
        Resampling([("clip", RowClipper()), ("ridge", DPRidge())]), [("Resampling", "unknown")],
    ),
    "voting": (
        VotingRegressor([("a", DPRidge()), ("b", Ridge())]), [("b", "not private")],
    ),
    "voting, private": (VotingRegressor([("a", DPRidge()), ("b", DPRidge(10.0))]), []),
    "stacking": (
        StackingRegressor([("a", DPRidge())], DPRidge()), [("StackingRegressor", "not private")],
    ),
    "many outputs": (MultiOutputRegressor(DPRidge()), [("pipeline", "repeated")]),
    "selection by a private model": (
        make_pipeline(SelectFromModel(DPRidge(), threshold=0.1), DPRidge()), [],
    ),
    "selection by another model": (
        make_pipeline(SelectFromModel(Ridge()), DPRidge()), [("selectfrommodel", "before")],
    ),
    "rows mixed before an entry unit": (
        make_pipeline(Normalizer(), DPTruncatedSVD(privacy_unit="entry")),
        [("dptruncatedsvd", "unit")],
    ),
    "entries before an entry unit": (
        make_pipeline(Binarizer(), DPTruncatedSVD(privacy_unit="interaction")), [],
    ),
    "a private search": (
        DPGridSearchCV(
            make_pipeline(RowClipper(), DPPCA(2), DPRidge()),
            {"dppca__n_components": [1, 2]},
            SCORER,
        ),
        [],
    ),
    "a private search around a fitted scaler": (
        make_pipeline(
            RowClipper(),
            DPGridSearchCV(
                make_pipeline(StandardScaler(), DPRidge()), {"dpridge__alpha": [1, 2]}, SCORER
            ),
        ),
        [("dpgridsearchcv__estimator__standardscaler", "before")],
    ),
    "two units": (
        make_pipeline(DPTruncatedSVD(privacy_unit="interaction"), DPRidge()),
        [("pipeline", "unit")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MORE)
def test_more_pipelines(name):
    pipe, expected = MORE[name]
    assert kinds(pipe) == expected, str(check_pipeline(pipe))


def test_a_step_may_be_vouched_for():
    pipe = make_pipeline(Mystery(), DPRidge())
    for trusted in (["mystery"], [Mystery]):
        report = check_pipeline(pipe, trusted=trusted)
        assert report.ok
        assert "mystery" in report.assumptions[0]
    assert not check_pipeline(
        make_pipeline(SubclassedScaler(), DPRidge()), trusted=[StandardScaler]
    )


@pytest.mark.parametrize(
    ("pipe", "text"),
    [
        (DPRidgeClassifier(), "labels occur in y"),
        (DPTruncatedSVD(privacy_unit="frobenius"), "norm 'sensitivity'"),
        (make_pipeline(RBFSampler(gamma=1.0), DPRidge()), "to the last bit"),
        (make_pipeline(FrozenEstimator(StandardScaler()), DPRidge()), "public data"),
        (
            make_pipeline(columns(("a", Normalizer(), make_column_selector())), DPRidge()),
            "types of the columns",
        ),
    ],
)
def test_what_is_taken_on_trust_is_said(pipe, text):
    report = check_pipeline(pipe)
    assert report.ok
    assert text in report.assumptions[0]
    assert text in str(report)


def test_it_can_raise():
    with pytest.raises(PrivacyError, match=r"standardscaler \[before\][\s\S]*Remedy"):
        check_pipeline(make_pipeline(StandardScaler(), DPPCA(2)), raise_error=True)
    for bad in (None, "pipeline", DPPCA, 3):
        with pytest.raises(TypeError, match="check_pipeline needs"):
            check_pipeline(bad)


def test_every_transformer_of_scikit_learn_is_judged():
    """What learns from rows is never called harmless: only these fit nothing but the width."""
    from sklearn.utils.discovery import all_estimators

    harmless = set()
    for name, cls in all_estimators(type_filter="transformer"):
        try:
            step = cls()
        except TypeError:
            continue  # compositions need arguments
        if check_pipeline(Pipeline([("step", step), ("ridge", DPRidge())])).ok:
            harmless.add(name)
    assert harmless == {
        "AdditiveChi2Sampler", "Binarizer", "FeatureHasher", "FunctionTransformer",
        "HashingVectorizer", "Normalizer", "PolynomialCountSketch", "PolynomialFeatures",
        "RBFSampler", "SkewedChi2Sampler",
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore::FutureWarning")  # deprecated classes count too
def test_every_predictor_of_scikit_learn_is_reported():
    from sklearn.utils.discovery import all_estimators

    for kind in ("classifier", "regressor", "cluster"):
        for name, cls in all_estimators(type_filter=kind):
            try:
                step = cls()
            except TypeError:
                continue
            found = kinds(Pipeline([("pca", DPPCA(2)), ("step", step)]))
            assert ("step", "after") in found, name


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


def test_a_private_pipeline_and_its_ledger():
    X, y = data()
    pipe = private_pipeline()
    assert check_pipeline(pipe, raise_error=True).ok
    with PrivacyLedger(epsilon=1.5, delta=1e-6) as ledger:
        pipe.fit(X, y)
    receipts = [pipe[name].privacy_spent_ for name in ("dptruncatedsvd", "dpridge")]
    assert [fit.estimator for fit in ledger.entries] == ["DPTruncatedSVD", "DPRidge"]
    composed = np.hypot(*(receipt.mu for receipt in receipts))
    assert ledger.spent.mu == pytest.approx(composed)
    assert 1.0 < ledger.spent.epsilon < 1.5
    assert "spent (ε" not in str(check_pipeline(private_pipeline()))
    assert "spent (1, 1e-06)" in str(check_pipeline(pipe))
    print(ledger.report())


def test_a_ledger_that_is_too_small_refuses_the_second_step():
    X, y = data(200)
    with pytest.raises(skdp.BudgetExceededError), PrivacyLedger(epsilon=1.2, delta=1e-6):
        private_pipeline().fit(X, y)


def neighbours(adjacency):
    """Rows on one side, and a record as long as the clip norm along or across them."""
    X, y = data(300)
    row = np.linalg.svd(X)[2][0]
    records = (row, 1e9), (-row, 1e9)
    first, second = (FitData(np.vstack([X, r]), np.append(y, t)) for r, t in records)
    return (FitData(X, y), first) if adjacency == "add_remove" else (first, second)


@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_the_whole_pipeline_moves_by_no_more_than_its_receipts(adjacency):
    with seeded_entropy(0):
        report = transcript_audit(
            lambda d: d.fit(private_pipeline(adjacency=adjacency)), neighbours(adjacency)
        ).check()
    print(report)
    assert len(report.steps) > 3 and "readout" in str(report)
    assert 0.4 < report.realised_mu / report.claimed_mu <= 1


@pytest.mark.slow
def test_audit_of_the_whole_pipeline():
    """All releases of all steps of 300 runs, against one receipt for the pipeline."""
    mu = float(
        np.hypot(*[DPRidge(epsilon=4.0, clip_norm=1.0).fit(*data(50)).privacy_spent_.mu] * 2)
    )
    spent = SimpleNamespace(mu=mu, epsilon=epsilon_from_mu_delta(mu, 1e-6), delta=1e-6)

    def fit(rows):
        rows.fit(private_pipeline(epsilon=4.0))
        return SimpleNamespace(privacy_spent_=spent)

    report = audit(fit, neighbours("add_remove"), n_runs=300).check()
    print(report)
    assert 0.4 * report.claimed_mu < report.mu_hat


def test_scaled_private_pipeline_learns():
    """The remedy works: private scaling, reduction and read-out on columns of unequal units."""
    X, y = data(20000)
    units = 10.0 ** np.arange(-3, 5)
    pipe = make_pipeline(
        DPStandardScaler(epsilon=1.0),
        DPTruncatedSVD(2, epsilon=1.0, clip_norm=4.0),
        DPRidge(epsilon=1.0, clip_norm=4.0, target_bounds=(-1.0, 1.0)),
    )
    assert check_pipeline(pipe).ok
    with seeded_entropy(0):
        assert pipe.fit(X * units, y).score(X * units, y) > 0.8


class _OwnRidge(DPRidge):
    """Someone's own class, which may do anything."""


class _OwnSearch(DPGridSearchCV):
    """Derived from a search."""


def test_what_a_search_may_put_in_the_place_of_a_step():
    pipe = Pipeline([("scale", RowClipper()), ("ridge", DPRidge())])
    scorer = make_private_scorer("squared_error", (0.0, 1.0))
    steps = {"scale": [RowClipper(), StandardScaler()], "ridge__alpha": [1.0]}
    report = check_pipeline(DPGridSearchCV(pipe, steps, scoring=scorer))
    assert [problem.step for problem in report.problems] == ["scale"]
    steps = {"scale": [RowClipper(), "passthrough"]}
    assert check_pipeline(DPGridSearchCV(pipe, steps, scoring=scorer)).ok


def test_a_search_that_is_derived_from_ours_is_looked_into():
    pipe = make_pipeline(StandardScaler(), DPRidge())
    scorer = make_private_scorer("squared_error", (0.0, 1.0))
    assert not check_pipeline(_OwnSearch(pipe, {}, scoring=scorer)).ok


def test_your_own_private_class_is_taken_on_trust():
    assert any("_OwnRidge" in text for text in check_pipeline(_OwnRidge()).assumptions)


def test_steps_of_different_adjacencies_do_not_add_up():
    pipe = make_pipeline(DPPCA(2, adjacency="replace"), DPRidge())
    assert [problem.kind for problem in check_pipeline(pipe).problems] == ["unit"]
    assert check_pipeline(pipe.set_params(dpridge__adjacency="replace")).ok


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    "first",
    [DPStandardScaler(entry_bounds=(-1e-3, 1e-3)), DPTruncatedSVD(1, clip_norm=1.0), DPPCA(1)],
)
def test_a_finite_row_that_overflows_is_no_error(first, dtype):
    X = np.full((2000, 4), 0.5, dtype)
    X[0] = np.finfo(dtype).max
    pipe = make_pipeline(first, DPRidge(clip_norm=1.0, target_bounds=(-1, 1), epsilon=50.0))
    assert np.all(np.isfinite(pipe.fit(X, X[:, 1] / 2)[-1].coef_))


def test_a_ledger_is_no_remedy_for_rows_that_are_drawn_several_times():
    (problem,) = check_pipeline(BaggingRegressor(DPRidge())).problems
    assert "cannot count" in problem.remedy
    (problem,) = check_pipeline(BaggingRegressor(DPRidge(), bootstrap=False)).problems
    assert "count the fits" in problem.remedy


def test_an_unknown_category_is_an_error_that_names_it():
    encoder = OneHotEncoder(categories=[[0, 1]])
    assert any("public list" in text for text in check_pipeline(
        make_pipeline(encoder, DPRidge())
    ).assumptions)  # fmt: skip
    encoder.set_params(handle_unknown="ignore")
    assert not check_pipeline(make_pipeline(encoder, DPRidge())).assumptions


def test_a_method_that_was_replaced_is_unknown():
    step = Normalizer()
    step.transform = lambda X: X - X.mean(axis=0)
    assert kinds(make_pipeline(step, DPRidge())) == [("normalizer", "unknown")]
