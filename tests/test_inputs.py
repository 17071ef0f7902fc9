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
from skdp.graph import DPSpectralEmbedding
from skdp.recommend import DPRecommender

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


def refusal(model, X, *y, **fit_params):
    """Return all that the refusal of a fit tells: what it was raised from, too."""
    with pytest.raises((ValueError, TypeError)) as refused:
        model.fit(X, *y, **fit_params)
    told, error = "", refused.value
    while error is not None:
        told += f"{error}\n"
        error = error.__cause__ or error.__context__
    assert not hasattr(model, "privacy_spent_")
    return told


@pytest.mark.parametrize("form", TEXTS)
@pytest.mark.parametrize("model", ROWS + WITH_Y, ids=lambda model: type(model).__name__)
def test_text_among_the_rows_is_refused_and_not_quoted(model, form):
    X, y, fit_params = data(model)
    told = refusal(model, TEXTS[form](X), *([y] if model in WITH_Y else []), **fit_params)
    assert SECRET not in told
    assert "encode categories by a public list first" in told


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
    svd = DPTruncatedSVD(2, privacy_unit="entry", entry_bounds=[(18, 90), (0, 2e5)])
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
    model = DPSpectralEmbedding(2, entry_bounds=(-1, 1)).fit(graph)
    assert model.embedding_.shape == (N, 2)
    with pytest.raises(ValueError, match="found text") as error:
        DPSpectralEmbedding(2).fit(one_text(np.zeros((N, N))))
    assert SECRET not in str(error.value) and error.value.__context__ is None
