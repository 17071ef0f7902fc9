"""The table of proven steps: any inserted row leaves the other rows equal bit for bit."""

import copy
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.base import BaseEstimator, RegressorMixin, TransformerMixin, clone
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import VotingClassifier, VotingRegressor
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (
    Binarizer,
    FunctionTransformer,
    Normalizer,
    OneHotEncoder,
    PolynomialFeatures,
    SplineTransformer,
    StandardScaler,
)

from skdp import (
    DPPCA,
    DPIncrementalPCA,
    DPPersonalizedClassifier,
    DPPersonalizedRegressor,
    DPRidge,
    DPRidgeClassifier,
    DPTraceRegressor,
    DPTruncatedSVD,
    check_pipeline,
)
from skdp.model_selection import PrivateScorer, _proven, _scorers
from skdp.preprocessing import DPStandardScaler, PublicScaler, RowClipper

WORDS = ["pain", "knee", "no", "Szymborska", "42", "🦵", "", " ", "É", "e\u0301"]
ONE_HOT = OneHotEncoder(categories=[["a", "b", "cc"], [0, 1]], handle_unknown="ignore")
IMPUTER = SimpleImputer(strategy="constant", fill_value=0.5, keep_empty_features=True)


# -- rows and hostile neighbours -----------------------------------------------------------------


def insert(table, at, row):
    """Return a table (array, CSR or list) with one row more."""
    if hasattr(table, "iloc"):
        return pd.concat([table[:at], row, table[at:]], ignore_index=True)
    if isinstance(table, list):
        return [*table[:at], row[0], *table[at:]]
    if sp.issparse(table):
        parts = [table[:at], sp.csr_array(row), table[at:]]
        return sp.vstack([part for part in parts if part.shape[0]], format="csr")
    return np.concatenate([table[:at], row, table[at:]])


def hostile_rows(d, dtype):
    """Rows that overflow, vanish, are missing or of one sign."""
    top, tiny = np.finfo(dtype).max, np.finfo(dtype).smallest_subnormal
    mixed = np.where(np.arange(d) % 2, 1e30, -1e-30)
    return [np.full(d, value, dtype) for value in (top, -top, tiny, 0, -1, np.nan)] + [
        mixed.astype(dtype)
    ]


def numbers(layout, *, missing=False, seed=0):
    """Yield (table, hostile row) of many shapes in one layout."""
    rng = np.random.default_rng(seed)
    for trial in range(42):
        dtype = (np.float64, np.float32)[trial % 2]
        n = 1 if trial % 3 == 0 else int(rng.integers(1, 40))  # one row is in both orders at once
        d = int(rng.integers(1, 40))
        X = (rng.standard_normal((n, d)) * 10.0 ** rng.integers(-3, 4)).astype(dtype)
        X[rng.random((n, d)) < 0.2] = np.nan if missing else 0
        hostile = hostile_rows(d, dtype)[trial % 7]
        row = (np.where(np.isnan(hostile), 7, hostile) if not missing else hostile)[None]
        yield (sp.csr_array(X) if layout == "csr" else X), row


def categories():
    rng = np.random.default_rng(1)
    for trial in range(20):
        n = int(rng.integers(1, 20))
        X = np.array([[rng.choice(["a", "b"]), int(rng.integers(0, 2))] for _ in range(n)], object)
        unknown = [["other", 5], ["cc", -1], [None, 0], [float("nan"), 1]][trial % 4]
        yield X, np.array([unknown], object)


def words():
    """As numpy keeps them: the longest one sets the type of all."""
    rng = np.random.default_rng(5)
    for trial in range(12):
        X = rng.choice(["a", "b", "cc"][: 1 + trial % 3], (int(rng.integers(1, 9)), 1))
        yield X, np.array([[["a long one", "", "cc"][trial % 3]]])


def texts():
    rng = np.random.default_rng(2)
    for _ in range(20):
        n = int(rng.integers(1, 20))
        rows = [" ".join(rng.choice(WORDS, rng.integers(0, 9))) for _ in range(n + 1)]
        yield rows[1:], [rows[0] * 50]


def laid_out(table, layout):
    return np.asfortranarray(table) if layout == "F" else table


# -- what comes out --------------------------------------------------------------------------------


def seen(step, table, read=None):
    """Return what comes out: kind, columns, warnings, and the bytes of each row."""
    step = clone(step)
    with warnings.catch_warnings(record=True, action="always") as caught:
        out = step.fit_transform(table) if read is None else read(step, table)
    kind = (type(out).__name__, getattr(out, "format", ""), str(out.dtype), out.shape[1])
    if sp.issparse(out):
        out = out.tocsr()
        ends = zip(out.indptr[:-1], out.indptr[1:], strict=True)
        rows = [out.indices[a:b].tobytes() + out.data[a:b].tobytes() for a, b in ends]
    else:
        rows = [np.ascontiguousarray(row).tobytes() for row in out]
    return (kind, sorted(str(w.message) for w in caught)), rows


def differences(step, pairs, layout="C", read=None):
    """Return the pairs of neighbours whose other rows, or whose form, are not the same."""
    found = []
    for number, (table, row) in enumerate(pairs):
        n = table.shape[0] if sp.issparse(table) else len(table)
        if layout == "F" and n == 1 and isinstance(step, Normalizer):
            continue  # what the line says must be given
        at = number % (n + 1)
        form, rows = seen(step, laid_out(table, layout), read)
        other_form, others = seen(step, laid_out(insert(table, at, row), layout), read)
        del others[at]
        if form != other_form or rows != others:
            found.append((number, n, form, other_form))
    return found


NUMERIC = [
    RowClipper(), RowClipper(1e-3), PublicScaler(), PublicScaler((0.0, 2.0)),
    Normalizer(), Normalizer("max"), Binarizer(),
    Binarizer(threshold=0.3), FunctionTransformer(),
    *(FunctionTransformer(function) for function in _proven.FUNCTIONS),
    FunctionTransformer(np.abs, validate=True, accept_sparse=True, check_inverse=False),
]  # fmt: skip
FOR_CSR = [step for step in NUMERIC if getattr(step, "func", None) in (None, np.abs, np.tanh)]
CATEGORICAL = [ONE_HOT, clone(ONE_HOT).set_params(sparse_output=False, dtype=np.float32)]
TEXT = [
    HashingVectorizer(),
    HashingVectorizer(
        n_features=8, norm="l1", analyzer="char_wb", ngram_range=(1, 3), binary=True,
        strip_accents="unicode", lowercase=False, alternate_sign=False,
    ),
    HashingVectorizer(n_features=8, norm=None, stop_words=["no"], token_pattern=r"\S+"),
]  # fmt: skip


def frames():
    """Yield data frames of a column of words, with a missing one, and two of numbers."""
    for (X, row), (Z, other) in zip(numbers("C", seed=6), categories(), strict=False):
        n = min(len(X), len(Z))
        tables = [(X[:n], Z[:n]), (row, other)]
        yield tuple(
            pd.DataFrame({"w": z[:, 0], "x": x[:, 0].astype(float), "y": -x[:, 0].astype(float)})
            for x, z in tables
        )


class Recorder(TransformerMixin, BaseEstimator):
    """Records its input, and returns it."""

    def fit(self, X, y=None):
        self.X_, self.y_ = X, y
        return self

    def transform(self, X):
        return X


class Voter(RegressorMixin, Recorder):
    """The same, in a vote."""

    def predict(self, X):
        return np.zeros(X.shape[0])


COMPOSITIONS = [
    Pipeline([("a", RowClipper()), ("b", "passthrough"), ("c", Recorder())], verbose=False),
    FeatureUnion([("a", Normalizer()), ("b", Recorder()), ("c", "drop")], n_jobs=1),
    ColumnTransformer(
        [("a", Binarizer(), [0]), ("b", Recorder(), slice(0, 1)), ("c", "drop", [0])],
        remainder=Normalizer("max"), sparse_threshold=0, verbose_feature_names_out=False,
    ),
]  # fmt: skip


VOTE = VotingRegressor([("a", Voter()), ("b", Voter())], weights=[1, 2])
TRIED = [*NUMERIC, IMPUTER, *CATEGORICAL, *TEXT, *COMPOSITIONS, VOTE]


WORD_COLUMN = OneHotEncoder(categories=[["a", "b", "cc"]], handle_unknown="ignore")
OF_FRAMES = ColumnTransformer(
    [("w", WORD_COLUMN, ["w"]), ("x", Normalizer("max"), ["x", "y"]), ("y", RowClipper(), ["y"])],
    sparse_threshold=0,
)
# (step, made pairs of neighbours, layouts)
OF_NUMBERS = [
    *((step, numbers, ["C", "F"]) for step in NUMERIC),
    *((step, numbers, ["csr"]) for step in FOR_CSR),
    (IMPUTER, partial(numbers, missing=True), ["C", "F", "csr"]),
    *((step, partial(numbers, seed=3), ["C", "csr"]) for step in COMPOSITIONS),
]
OF_WORDS = [
    *((step, lambda _: categories(), ["C"]) for step in CATEGORICAL),
    *((step, lambda _: texts(), ["C"]) for step in TEXT),
    (WORD_COLUMN, lambda _: words(), ["C"]),
    pytest.param(OF_FRAMES, lambda _: frames(), ["C"], marks=pytest.mark.deep),
]


@pytest.mark.parametrize(
    ("step", "pairs", "layouts"),
    [*(pytest.param(*case, marks=pytest.mark.thorough) for case in OF_NUMBERS), *OF_WORDS],
)
def test_the_other_rows_come_out_bit_for_bit(step, pairs, layouts):
    assert not list(_proven.concerns(step))
    for layout in layouts:
        assert differences(step, pairs(layout), layout) == []


def test_parts_of_a_vote_get_the_rows_and_targets_as_they_are():
    def reaches(step, table):
        step.fit(table[:, 1:], table[:, 0])
        return np.column_stack([step.estimators_[0].X_, step.estimators_[0].y_])

    assert not list(_proven.concerns(VOTE))
    wide = ((X, row) for X, row in numbers("C", seed=4) if X.shape[1] > 1)
    assert differences(VOTE, wide, read=reaches) == []


def test_every_line_is_tried():
    assert {type(step) for step in TRIED} == {line.step for line in _proven.TABLE}


# -- what is not in the table, or not with these parameters, moves other rows ----------------------


SPLINES = SplineTransformer(knots=np.linspace(-9, 9, 5)[:, None], extrapolation="error")
MOVED = {
    "norms that overflow": (Normalizer("l1"), numbers("C")),
    "polynomials that overflow": (PolynomialFeatures(), numbers("C")),
    "logarithms of what has none": (FunctionTransformer(np.log1p), numbers("C")),
    "mean of the rows": (FunctionTransformer(lambda X: X - X.mean(0)), numbers("C")),
    "largest of the rows": (FunctionTransformer(lambda X: X / X.max(0)), numbers("C")),
    "a warning of unknown categories": (clone(ONE_HOT).set_params(drop="first"), categories()),
    "columns of missing values": (clone(IMPUTER).set_params(add_indicator=True),
                                  numbers("C", missing=True)),
    "format by the density of all rows": (
        ColumnTransformer([("a", Normalizer("max"), [0, 1, 2, 3])]),
        [(sp.csr_array(np.eye(4)[[0] * 10]), np.ones((1, 4)))],
    ),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("name", MOVED)
def test_what_moves_other_rows_is_not_verified(name):
    step, pairs = MOVED[name]
    assert list(_proven.concerns(step))
    assert differences(step, pairs)


def test_splines_that_refuse_what_lies_outside_tell_of_it():
    inside = np.linspace(-8, 8, 9)[:, None]
    SPLINES.fit_transform(inside)
    with pytest.raises(ValueError, match="beyond the limits"):
        clone(SPLINES).fit_transform(insert(inside, 0, [[9.5]]))
    assert list(_proven.concerns(SPLINES))


class LabelRecorder(DPRidgeClassifier):
    """Records its labels."""

    def fit(self, X, y):
        self.y_ = y
        return self


def test_one_new_label_recodes_those_of_all_others():
    X, y = np.zeros((20, 2)), np.repeat([1, 2], 10)
    vote = VotingClassifier([("a", LabelRecorder())])
    before = clone(vote).fit(X, y).estimators_[0].y_
    after = clone(vote).fit(np.zeros((21, 2)), np.append(y, 0)).estimators_[0].y_[:20]
    assert np.all(before != after)
    (problem,) = check_pipeline(
        VotingClassifier([("a", DPRidgeClassifier(classes=[1, 2]))])
    ).problems[:1]
    assert (problem.step, problem.kind) == ("VotingClassifier", "not verified")


# -- the table itself ----------------------------------------------------------------------------


class Derived(RowClipper):
    """May do anything."""


def test_a_line_holds_for_the_class_itself_and_the_named_parameters():
    assert _proven.line_of(Derived()) is None and list(_proven.concerns(Derived()))
    union = ColumnTransformer([("a", RowClipper(), [0])], sparse_threshold=0)
    for step, changes in (
        (ONE_HOT, ({"handle_unknown": "error"}, {"categories": "auto"}, {"max_categories": 2})),
        (IMPUTER, ({"strategy": "mean"}, {"missing_values": 0}, {"keep_empty_features": False})),
        (HashingVectorizer(), ({"analyzer": str.split}, {"strip_accents": str.lower})),
        (union, ({"sparse_threshold": 0.3}, {"transformers": [("a", RowClipper(), min)]})),
    ):
        assert not list(_proven.concerns(step))
        for change in changes:
            assert list(_proven.concerns(clone(step).set_params(**change))), change
    assert all(list(_proven.concerns(step)) for step, _ in MOVED.values())
    assert list(_proven.concerns(Pipeline([("a", RowClipper())], memory="cache")))
    assert list(
        _proven.concerns(FeatureUnion([("a", RowClipper())], transformer_weights={"a": 1e300}))
    )


@pytest.mark.parametrize("line", _proven.TABLE, ids=lambda line: line.step.__name__)
def test_an_unknown_parameter_is_not_verified(line, monkeypatch):
    """Of a later version of scikit-learn, for instance."""
    step = clone(next(step for step in TRIED if type(step) is line.step))
    assert set(line.allowed) <= set(step.get_params(deep=False))
    for parameter, value in step.get_params(deep=False).items():
        if parameter not in line.allowed:
            monkeypatch.setattr(step, parameter, ["something", value])
            assert list(_proven.concerns(step)), parameter
            monkeypatch.undo()
    assert not list(_proven.concerns(step))


def test_the_guide_shows_the_table():
    page = Path(__file__).parents[2] / "docs" / "user_guide" / "pipelines.md"
    rows = page.read_text(encoding="utf-8").splitlines()
    for line in _proven.TABLE:
        (row,) = (row for row in rows if row.startswith(f"| `{line.step.__name__}` |"))
        assert row.endswith(f"{line.given} | {line.reason} |")
        assert all(f"`{name}`" in row and it.words in row for name, it in line.allowed.items())


# -- predictions row by row: one row never changes another -----------------------------------------


@pytest.mark.parametrize("d", [1, 2, 7, 8, 9, 31, 64, 129, 1000])
def test_products_of_a_row_do_not_depend_on_the_others(d):
    rng = np.random.default_rng(d)
    X = rng.standard_normal((67, d)) * 10.0 ** rng.uniform(-9, 9, (67, 1))
    M = rng.standard_normal((d, 3))
    whole = _proven._products(X, M)
    alone = np.concatenate([_proven._products(X[i : i + 1], M) for i in range(len(X))])
    moved = _proven._products(np.ascontiguousarray(X[5:]), M)
    assert np.array_equal(whole, alone)
    assert np.array_equal(whole[5:], moved)
    assert np.all(np.abs(whole - X @ M) <= 1e-13 * (np.abs(X) @ np.abs(M)))


def test_rows_that_fail_are_nan_and_silent():
    def function(x, y):
        if x[0, 0] < 0:
            raise Exception(f"a private value: {x}")
        warnings.warn(f"a private value: {x}", stacklevel=1)
        return np.log(x[:, 0])

    found = _proven.each_row(function, np.array([[1.0], [-1.0], [0.0]]), None)
    assert np.array_equal(found, [0.0, np.nan, -np.inf], equal_nan=True)


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_unknown_models_have_no_fast_map():
    assert _proven.fast_map(object(), np.zeros((2, 2)), "predict") is None
    X = np.random.default_rng(0).standard_normal((40, 20))
    pca = DPPCA(1, epsilon=99.0, clip_norm=9.0)
    stepwise = DPIncrementalPCA(1, epsilon=99.0, clip_norm=9.0)
    models = (
        (RowClipper(2.0), "transform"), (pca, "reconstruct"), (stepwise, "transform"),
        (clone(pca).set_params(whiten=True), "transform"),
        (clone(pca).set_params(whiten=True), "reconstruct"),
        (DPRidge(epsilon=99.0, clip_norm=9.0, target_bounds=(-1, 1)), "predict"),
        (DPTraceRegressor(1, epsilon=99.0), "predict"),
    )  # fmt: skip
    for model, method in models:
        mapped = _proven.fast_map(model.fit(X, np.tanh(X[:, 0])), X, method)
        np.testing.assert_array_equal(mapped(np.asfortranarray(X)), mapped(X))
        far = 1e3 * X  # where predictions are truncated
        np.testing.assert_allclose(mapped(far), _proven.apply(model, method, far), rtol=1e-9)
        other = copy.copy(model)
        other.__class__ = type("Other", (type(model),), {})  # a subclass may do something else
        assert _proven.fast_map(other, X, method) is None
    unlike = make_pipeline(RowClipper(), clone(pca))
    assert _proven.fast_map(unlike.fit(X), X, "reconstruct") is None


def test_frames_are_scored_as_arrays_whatever_else_they_hold(monkeypatch):
    """One entry that is no number changes the type of its column, and the loss of its row alone."""
    A = np.random.default_rng(0).standard_normal((30, 3))
    X = pd.DataFrame(A, columns=list("abc"))
    model = DPPCA(1, epsilon=99.0, clip_norm=3.0, center=np.ones(3)).fit(X)
    scorer = PrivateScorer("share_lost", (0.0, 1.0))
    unnamed = copy.copy(model)
    del unnamed.feature_names_in_
    expected = scorer._losses_of(unnamed, A, None)()
    for form in (X, X.astype(pd.SparseDtype(float)), X.astype("Float64")):
        np.testing.assert_array_equal(scorer._losses_of(model, form, None)(), expected)
    assert not _proven.all_numbers(form)  # of which an entry may be missing
    with monkeypatch.context() as patch:
        patch.setattr(_scorers, "each_row", None)
        scorer._losses_of(model, X.astype(pd.SparseDtype(float)), None)()
    mixed = X.astype(object)
    mixed.iloc[4, 1] = "private"
    found = scorer._losses_of(model, mixed, None)()
    assert np.isnan(found[4])
    np.testing.assert_array_equal(np.delete(found, 4), np.delete(expected, 4))
    for other in (X[["b", "a", "c"]], X[["a"]]):
        assert _proven.fast_map(model, other, "reconstruct") is None
    assert _proven.fast_map(unnamed, X, "reconstruct") is None


@pytest.mark.thorough("step")
@pytest.mark.parametrize(
    "step", [RowClipper(2.0), PublicScaler((-3.0, 3.0)), DPStandardScaler(bounds=(-3, 3))]
)
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("frame", [False, True])
def test_steps_of_a_pipeline_are_mapped_together(step, frame):
    A = np.random.default_rng(0).standard_normal((50, 4))
    X = pd.DataFrame(A, columns=list("abcd")) if frame else A
    ridge = DPRidge(epsilon=9.0, clip_norm=2.0, target_bounds=(-5, 5))
    model = make_pipeline(step, ridge).set_output(transform="pandas" if frame else "default")
    mapped = _proven.fast_map(model.fit(X, A.sum(axis=1)), X, "predict")
    found = mapped(X)
    np.testing.assert_allclose(found, model.predict(X), rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(mapped(X[7:]), found[7:])


def mixed_frame(n, seed=0):
    rng = np.random.default_rng(seed)
    numbers = rng.standard_normal((n, 3)) * 10.0 ** rng.integers(-3, 4, (n, 3))
    X = pd.DataFrame(numbers, columns=list("abc"))
    X["b"] = X["b"].astype(np.float32)
    for column, top in (("a", 1e308), ("b", 3e38), ("c", -1e308)):
        for place, value in enumerate([np.nan, top, -top, top / 1e300 / 1e300, 0.0]):
            X.loc[rng.integers(1, n) if place else 0, column] = value
    X["n"], X["r"] = rng.integers(0, 9, n), rng.choice(["north", "south", "", "else"], n)
    X["t"] = [" ".join(rng.choice(WORDS, 4)) for _ in range(n)]
    return X


REGIONS = OneHotEncoder(categories=[["north", "south"]], handle_unknown="ignore")
ONE_HOT_FRAME = OneHotEncoder(
    categories=[["north", "south"], [0, 1]], handle_unknown="ignore", sparse_output=False
)
HEADS = [
    [("x", PublicScaler((-3.0, 3.0)), ["a", "b"]), ("r", REGIONS, ["r"])],
    [("x", make_pipeline(IMPUTER, FunctionTransformer(np.tanh)), ["c", "a"]),
     ("n", Binarizer(threshold=3), ["n"])],
    [("x", make_pipeline(IMPUTER, FunctionTransformer(np.cbrt), RowClipper(2.0)), list("abc"))],
    [("x", FeatureUnion([("i", IMPUTER), ("c", PublicScaler((-1, 1)))]), ["a", "n"]),
     ("r", REGIONS, ["r"])],
    [("t", HashingVectorizer(n_features=32), "t"), ("n", "passthrough", ["n"])],
    [("x", make_pipeline(IMPUTER, PublicScaler((-3, 3))), ["whole", "a", "coded"]),
     ("r", ONE_HOT_FRAME, ["region", "yes"])],
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("head", "output"),
    [(HEADS[0], None), (HEADS[-1], "pandas")]
    + [pytest.param(HEADS[i], None, marks=pytest.mark.deep) for i in range(1, 6)],
)
def test_proven_steps_before_a_model_are_scored_in_a_batch(head, output, monkeypatch):
    """Each loss is that of its row alone, bit for bit; a row that fails has none."""
    n = 12
    X = mixed_frame(n).assign(dropped=pd.Timestamp("2026-12-01"))
    X["region"], X["yes"] = X["r"].astype("category"), pd.array(X["n"] > 4, "boolean")
    X["whole"], X["coded"] = pd.array(X["n"], "Int64"), pd.Categorical(X["n"])
    X.loc[1:2, ["region", "yes", "whole", "coded"]] = None
    y = np.where(X["n"] > 4, "yes", "no")
    ridge = DPRidgeClassifier(classes=["no", "yes"], epsilon=9.0, clip_norm=2.0)
    fitted = X.copy()
    fitted[list("abc")] = np.clip(X[list("abc")].fillna(0.0), -9, 9)
    columns = ColumnTransformer(head, sparse_threshold=0)
    columns = columns.set_output(transform=output) if output else columns
    model = make_pipeline(columns, ridge).fit(fitted, y)
    mapped, scorer = _proven.fast_map(model, X, "predict"), PrivateScorer("zero_one", (0.0, 1.0))
    with np.errstate(all="ignore"):
        together = mapped(X)
        alone = np.concatenate([mapped(X[i : i + 1]) for i in range(n)])
    np.testing.assert_array_equal(alone, together)
    np.testing.assert_array_equal(mapped(fitted), model.predict(fitted))
    assert _proven.fast_map(model, X, "reconstruct") is None  # which is not of numbers
    losses = scorer._losses_of(model, X, y)
    bad = X.astype({"r": object, "t": object})  # the types of columns are public
    bad.at[7, "r"] = bad.at[7, "t"] = ["private"]
    found = scorer._losses_of(model, bad, y)()
    assert np.isnan(found[7]) == any(columns in (["r"], "t") for *_, columns in head)
    monkeypatch.setattr(_scorers, "each_row", None)
    np.testing.assert_array_equal(np.delete(losses(), 7), np.delete(found, 7))


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_other_steps_before_a_model_are_scored_row_by_row():
    X = mixed_frame(40).fillna(0.0)
    ridge = DPRidge(epsilon=9.0, clip_norm=2.0, target_bounds=(0, 9))
    for step in (
        Normalizer(),
        PolynomialFeatures(),
        StandardScaler(),
        FunctionTransformer(np.log1p),
    ):
        model = make_pipeline(ColumnTransformer([("n", step, ["n"])], sparse_threshold=0), ridge)
        assert _proven.fast_map(model.fit(X, X["n"]), X, "predict") is None


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
@pytest.mark.parametrize(("columns", "rest"), [(["n"], "passthrough"), ([0], "drop")])
def test_types_of_columns_count_unless_they_are_surely_dropped(columns, rest):
    X = pd.DataFrame({"n": np.resize([0.0, 9.0], 40), "other": 1.0})
    head = ColumnTransformer([("n", IMPUTER, columns)], remainder=rest, sparse_threshold=0)
    ridge = DPRidge(epsilon=9.0, clip_norm=2.0, target_bounds=(0, 9))
    model = make_pipeline(head, ridge).fit(X, X["n"])
    assert _proven.begins_proven(model, X) == 1
    assert _proven.begins_proven(model, X.assign(other=pd.Timestamp("2026-12-01"))) == 0


BIG = [2**53, 2**53 + 1]
TYPES = {
    "category": (FunctionTransformer(np.tanh, validate=True), "default",
                 pd.Categorical.from_codes([0, 1, -1], categories=np.array([1, 2], np.int8))),
    "nullable": (make_pipeline(
        FeatureUnion([("n", "passthrough")]),
        OneHotEncoder(categories=[BIG], handle_unknown="ignore"),
    ), "default", pd.array([*BIG, None], "Int64")),
    "objects in a frame": (IMPUTER, "pandas", np.array(
        [np.datetime64(1, "D"), 0.5, None], object)),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", TYPES)
def test_types_that_follow_from_all_rows_are_scored_row_by_row(kind):
    step, output, column = TYPES[kind]
    known = pd.array(BIG, "Int64") if kind == "nullable" else np.arange(2.0)
    X = pd.DataFrame({"n": known.repeat(20)})
    head = ColumnTransformer([("n", step, ["n"])], sparse_threshold=0)
    ridge = DPRidge(epsilon=9.0, clip_norm=2.0, target_bounds=(0, 9))
    model = make_pipeline(head.set_output(transform=output), ridge).fit(X, np.arange(40) // 20)
    scorer, X = PrivateScorer("squared_error", (0.0, 81.0)), pd.DataFrame({"n": column})
    losses = scorer._losses_of(model, X, np.zeros(3))()
    for i in range(3):
        for rows in ([i], [0, i], [1, i]):
            found = scorer._losses_of(model, X.iloc[rows], np.zeros(len(rows)))()
            np.testing.assert_array_equal(losses[rows], found)


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_rows_of_many_columns_are_not_joined_behind_proven_steps(monkeypatch):
    X = mixed_frame(40).fillna(0.0)
    head = ColumnTransformer([("x", PublicScaler((-1, 1)), list("abc"))], sparse_threshold=0)
    ridge = DPRidge(epsilon=9.0, clip_norm=2.0, target_bounds=(0, 9))
    model = make_pipeline(head, DPTruncatedSVD(1, clip_norm=1.0), ridge).fit(X, X["n"])
    assert _proven.fast_map(model, X, "predict").keywords == {"width": 3}
    monkeypatch.setattr(_proven, "GRAM_FEATURES", 2)
    assert _proven.fast_map(model, X, "predict") is None


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
@pytest.mark.parametrize("form", [pd.DataFrame, np.asarray])
def test_texts_between_steps_are_scored_as_they_are_predicted(form):
    X = form(np.resize(np.array([["north"], [np.nan], ["south"]], object), (40, 1)))
    y = np.resize([0.0, 1.0, 9.0], 40)
    ridge = DPRidge(epsilon=9.0, clip_norm=2.0, target_bounds=(0, 9))
    gaps = SimpleImputer(strategy="constant", fill_value="", keep_empty_features=True)
    model = make_pipeline(gaps, clone(REGIONS), ridge).fit(X, y)
    losses = PrivateScorer("squared_error", (0.0, 81.0))._losses_of(model, X, y)()
    np.testing.assert_allclose(losses, (y - model.predict(X)) ** 2)
    assert (_proven.fast_map(model, X, "predict") is None) == (form is np.asarray)


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
@pytest.mark.parametrize("public", [{}, {"clip_norm": 2.0}, {"bounds": (-4.0, 4.0)}])
def test_regressions_are_scored_as_they_predict_rows_that_lie_far_out(public, rng):
    """Predictions clip entries and scale rows down: so does the scored model."""
    X = rng.standard_t(1.5, (200, 4))
    y = X @ [1.0, 2.0, 0.0, 1.0]
    models = [
        DPRidge(epsilon=9.0, target_bounds=(-9, 9), **public).fit(X, y),
        DPRidge(epsilon=9.0, target_bounds=(-9, 9), **public).fit(X, np.column_stack([y, -y])),
        DPRidgeClassifier(classes=[0, 1], epsilon=9.0, **public).fit(X, y > 0),
    ]
    if not public:
        users = np.arange(200) // 4
        models += [
            DPPersonalizedRegressor(1, epsilon=9.0, target_bounds=(-9, 9))
            .fit(X, y, users)
            .public_copy(),
            DPPersonalizedClassifier(1, classes=[0, 1], epsilon=9.0)
            .fit(X, y > 0, users)
            .public_copy(),
        ]
        column = DPPersonalizedRegressor(1, epsilon=9.0, group_column=4)
        column.fit(rows := np.column_stack([X, users]), y)
        assert _proven.fast_map(column, rows, "predict") is None
    for model in models:
        mapped = _proven.fast_map(model, X, "predict")
        found = mapped(X)
        np.testing.assert_allclose(found, model.predict(X), rtol=1e-9, atol=1e-9)
        alone = [mapped(X[i : i + 1]) for i in range(10)]
        np.testing.assert_array_equal(np.concatenate(alone), found[:10])
