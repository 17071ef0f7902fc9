"""What is refused before it is read as numbers, in words that tell nothing of it."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from skdp import (
    DPPCA,
    DPIncrementalPCA,
    DPPersonalizedClassifier,
    DPPersonalizedRegressor,
    DPRidge,
    DPRidgeClassifier,
    DPScoreDensity,
    DPStandardScaler,
    DPTraceRegressor,
    DPTruncatedSVD,
)
from skdp._inputs import checked_updates
from skdp.graph import DPSpectralEmbedding
from skdp.model_selection import leave_some_out
from skdp.recommend import DPRecommender, recall_at_n

SECRET = "Rome"
N, D = 40, 4
ROWS = [DPPCA(2), DPTruncatedSVD(2), DPStandardScaler(), DPIncrementalPCA(2), DPRecommender(2)]
WITH_Y = [
    DPRidge(),
    DPRidgeClassifier(classes=[0, 1]),
    DPPersonalizedRegressor(2),
    DPPersonalizedClassifier(2, classes=[0, 1]),
    DPTraceRegressor(1, matrix_shape=(2, 2)),
]
NUMERIC_Y = [model for model in WITH_Y if not type(model).__name__.endswith("Classifier")]


def one_text(values):
    values = values.astype(object)
    values[(0,) * values.ndim] = SECRET
    return values


TEXTS = {
    "objects": lambda values: np.full(values.shape, SECRET, object),
    "strings": lambda values: np.full(values.shape, SECRET),
    "one among numbers": one_text,
    "lists": lambda values: np.full(values.shape, SECRET).tolist(),
    "categories": lambda values: (
        pd.Series([SECRET] * N, dtype="category")
        if values.ndim == 1
        else pd.DataFrame(values, columns=[*"abcd"]).assign(d=pd.Categorical([SECRET] * N))
    ),
}


def dates(values):
    return np.full(values.shape, np.datetime64("2020-02-29"))


def data(model):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((N, D)), rng.standard_normal(N)
    y = (y > 0).astype(int) if "Classifier" in type(model).__name__ else y
    fit_params = (
        {"groups": np.repeat(np.arange(8), 5)} if "Personal" in type(model).__name__ else {}
    )
    return X, y, fit_params


def told(action):
    """Return all that a refusal tells: what it was raised from, too."""
    with pytest.raises((ValueError, TypeError)) as refused:
        action()
    text, error = "", refused.value
    while error is not None:
        text += f"{error}\n"
        error = error.__cause__ or error.__context__
    return text


def refusal(model, X, *y, **fit_params):
    """Return all that the refusal of a fit tells."""
    text = told(lambda: model.fit(X, *y, **fit_params))
    assert not hasattr(model, "privacy_spent_")
    return text


@pytest.mark.parametrize("form", TEXTS)
@pytest.mark.parametrize("model", ROWS + WITH_Y, ids=lambda model: type(model).__name__)
def test_text_among_the_rows_is_refused_and_not_quoted(model, form):
    X, y, fit_params = data(model)
    text = refusal(model, TEXTS[form](X), *([y] if model in WITH_Y else []), **fit_params)
    assert SECRET not in text
    assert "encode categories by a public list first" in text


@pytest.mark.parametrize("model", [*ROWS[:4], *NUMERIC_Y], ids=lambda model: type(model).__name__)
def test_an_integer_beyond_all_floats_is_refused(model):
    X, y, fit_params = data(model)
    huge = X.astype(object)
    huge[0, 0] = 10**400
    targets = [y] if model in WITH_Y else []
    assert "that a float can hold" in refusal(model, huge, *targets, **fit_params)
    if targets:
        y = y.astype(object)
        y[0] = 10**400
        assert "that a float can hold" in refusal(model, X, y, **fit_params)


@pytest.mark.filterwarnings("ignore::UserWarning")  # noise
@pytest.mark.parametrize("model", WITH_Y, ids=lambda model: type(model).__name__)
def test_scores_quote_no_target(model):
    """Labels that are no classes are missed; all else is refused as `fit` refuses it."""
    X, y, params = data(model)
    model = clone(model).fit(X, y, **params)
    huge = y.astype(object)
    huge[0] = 10**400
    bad = [(form(y), "encode categories") for form in TEXTS.values()]
    bad += [(form, "that a float can hold") for form in (huge, huge.tolist())]
    for given, remedy in bad:
        if not hasattr(model, "classes_"):
            refused = told(lambda given=given: model.score(X, given, **params))
            assert remedy in refused and SECRET not in refused
        refused = told(lambda given=given: model.score(X, y, sample_weight=given, **params))
        assert remedy in refused and SECRET not in refused
    if hasattr(model, "classes_"):
        y = model.predict(X, **params).astype(object)
        y[:2] = SECRET, 10**400
        assert model.score(X, y, **params) == model.score(X, y.tolist(), **params) == 1 - 2 / N


@pytest.mark.parametrize("action", [
    lambda truth: recall_at_n(np.zeros((len(truth), 2), int), truth),
    lambda R: leave_some_out(R, random_state=0),
    lambda R: checked_updates([0], [0], R[0][:1], (2, 2)),
], ids=["truth", "histories", "updates"])  # fmt: skip
def test_functions_quote_no_entry(action):
    X, _, _ = data(ROWS[0])
    refused = told(lambda: action(one_text(X)))
    assert "encode categories" in refused and SECRET not in refused


@pytest.mark.parametrize("text", [one_text, TEXTS["strings"]])
def test_targets_beside_a_memory_map_are_not_quoted(text, tmp_path):
    X, y, _ = data(DPRidge())
    mapped = np.memmap(tmp_path / "rows", dtype=X.dtype, mode="w+", shape=X.shape)
    refused = refusal(DPRidge(), mapped, text(y))
    assert "encode categories" in refused and SECRET not in refused


class Table:
    """As that of pyarrow: columns, and no dtypes."""

    def __init__(self, X):
        self.shape, self.columns, self._X = X.shape, list(X.T), X

    def __array__(self, dtype=None, copy=None):
        return np.array(self._X, dtype=dtype)


def test_a_table_that_becomes_an_array_is_one():
    X, _, _ = data(ROWS[0])
    assert DPPCA(2, clip_norm=1.0, epsilon=9.0).fit(Table(X)).n_features_in_ == D


def test_users_that_floats_merge_are_refused():
    X, y, _ = data(DPRidge())
    groups = np.repeat(np.arange(8), 5) + 2.0**53
    first = np.repeat([0.0, 2.0**53], 20)  # 2^53 + 1 is the same float
    for users in (groups, groups.astype(np.float32), pd.Series(groups), -groups, first):
        told = refusal(DPPersonalizedRegressor(2), X, y, groups=users)
        assert "floats beyond which integers merge" in told


@pytest.mark.parametrize("form", TEXTS)
@pytest.mark.parametrize("model", NUMERIC_Y, ids=lambda model: type(model).__name__)
def test_text_as_a_target_is_refused_and_not_quoted(model, form):
    X, y, fit_params = data(model)
    told = refusal(model, X, TEXTS[form](y), **fit_params)
    assert SECRET not in told
    assert "encode categories by a public list first" in told


@pytest.mark.parametrize("model", ROWS + WITH_Y, ids=lambda model: type(model).__name__)
def test_dates_are_no_numbers(model):
    X, y, fit_params = data(model)
    told = refusal(model, dates(X), *([y] if model in WITH_Y else []), **fit_params)
    assert "subtract a public date first" in told
    if model in WITH_Y:
        frame = pd.DataFrame(X, columns=[*"abcd"]).assign(c=pd.Timestamp("2020-02-29"))
        assert "2020" not in refusal(model, frame, y, **fit_params)
    if model in NUMERIC_Y:
        assert "subtract a public date first" in refusal(model, X, dates(y), **fit_params)


def test_classes_of_another_kind_than_the_labels_are_refused():
    """No label would be one of them; the dtype of an array is public, that of a list is not."""
    X, y = np.zeros((N, D)), np.arange(N) % 2
    with pytest.raises(ValueError, match=r"classes.* are text and y is not"):
        DPRidgeClassifier(classes=["a", "b"]).fit(X, y)
    with pytest.raises(ValueError, match=r"classes.* are numbers and y is not"):
        DPPersonalizedClassifier(1, classes=[0, 1]).fit(X, y.astype(str), groups=y)
    with pytest.raises(ValueError, match="are text and y is not"):
        DPScoreDensity(np.eye(D)[:2], classes=["a", "b"]).fit(X, pd.Series(y))


@pytest.mark.filterwarnings("ignore::skdp.exceptions.PrivacyWarning")
def test_labels_of_other_libraries_are_no_kind_of_numpy():
    """Columns whose dtype is not numpy's, or none of its numbers, are looked up label by label."""
    X, y = np.ones((N, D)), np.arange(N) % 2

    class Column(list):
        dtype = "Int64 of another library"

    for labels in (Column(y.tolist()), y.tolist(), pd.Series(y, dtype="Int64").astype("category")):
        DPRidgeClassifier(classes=[0, 1], clip_norm=2.0).fit(X, labels)
    polars = pytest.importorskip("polars")
    DPRidgeClassifier(classes=[0, 1], clip_norm=2.0).fit(X, polars.Series(y))


@pytest.mark.parametrize("params", [{"center": True}, {"center": False}])
def test_a_centre_that_is_no_word_says_what_is_one(params):
    for model in (DPPCA(2, **params), DPIncrementalPCA(2, **params)):
        with pytest.raises(ValueError, match=r"'dp'.*or an array of public centres"):
            model.fit(np.ones((N, D)))


def test_bounds_for_each_column_point_to_the_scaler():
    svd = DPTruncatedSVD(2, privacy_unit="entry", unit_bound=[(18, 90), (0, 2e5)])
    with pytest.raises(ValueError, match=r"one for all entries .*PublicScaler\(bounds="):
        svd.fit(np.ones((N, D)))


def test_categories_and_one_dimension_are_told_without_values():
    frame = pd.DataFrame({"age": [1.0, 2.0], "city": pd.Categorical(["Rome", "Oslo"])})
    with pytest.raises(ValueError, match="encode categories by a public list") as error:
        DPPCA(1).fit(frame)
    assert "Rome" not in str(error.value) and error.value.__context__ is None
    with pytest.raises(ValueError, match="got 1D array instead") as error:
        DPPCA(1).fit(np.full(5, 123.25))
    assert "123" not in str(error.value)


HUGE = np.repeat([1.7e308, -1.7e308], N // 2)


@pytest.mark.parametrize(
    "model",
    [*ROWS, *NUMERIC_Y, DPTruncatedSVD(2, privacy_unit="entry")],
    ids=lambda model: f"{type(model).__name__}-{getattr(model, 'privacy_unit', 'row')}",
)
def test_no_warning_tells_that_a_sum_of_entries_overflows(model):
    """scikit-learn adds up all entries; infinity minus itself is a warning, or an error."""
    rows = np.tile(HUGE[:, None], D)
    for X, y in ((rows, np.zeros(N)), (np.ones((N, D)), HUGE), (rows, HUGE)):
        fitted = clone(model)
        more = {"groups": np.arange(N) % 4} if "Personalized" in type(model).__name__ else {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", RuntimeWarning)
            fitted.fit(X, y, **more)


@pytest.mark.filterwarnings("ignore::skdp.exceptions.PrivacyWarning")
def test_graphs_are_checked_as_rows_are():
    graph = np.sign(np.add.outer(np.arange(N), np.arange(N)) - N + 0.5) * 1.7e308
    model = DPSpectralEmbedding(2, unit_bound=(-1, 1)).fit(graph)
    assert model.embedding_.shape == (N, 2)
    with pytest.raises(ValueError, match="found text") as error:
        DPSpectralEmbedding(2).fit(one_text(np.zeros((N, N))))
    assert SECRET not in str(error.value) and error.value.__context__ is None
