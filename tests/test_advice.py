"""What is said of values that are no numbers: no value is quoted, and no leaking step is named."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

from skdp import (
    DPPCA,
    DPIncrementalPCA,
    DPRidge,
    DPRidgeClassifier,
    DPTraceRegressor,
    DPTruncatedSVD,
)
from skdp.preprocessing import DPStandardScaler, PublicScaler, RowClipper

MODELS = [
    DPPCA(1), DPTruncatedSVD(1), DPIncrementalPCA(1), DPStandardScaler(), DPRidge(),
    DPRidgeClassifier(classes=[0, 1]),
]  # fmt: skip
CITIES = pd.DataFrame({"age": [1.0, 2.0, 3.0], "city": ["Rome", "Oslo", "Rome"]})


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
@pytest.mark.parametrize("X", [CITIES, CITIES.to_numpy(), CITIES.astype({"city": "category"})])
def test_text_is_not_quoted(model, X):
    with pytest.raises(ValueError, match=r"found text: .* public list") as caught:
        model.fit(X, [0, 1, 0])
    assert "Rome" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_missing_values_get_advice_that_does_not_leak(model):
    X = np.array([[1.0, np.nan], [2.0, 3.0], [0.0, 1.0]])
    with pytest.raises(ValueError, match=r"NaN.*public constants.*strategy='constant'") as caught:
        model.fit(X, [0, 1, 0])
    assert "HistGradient" not in str(caught.value)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_complex_numbers_are_not_quoted(model):
    with pytest.raises(ValueError, match=r"Complex data not supported .*imaginary") as caught:
        model.fit(np.array([[1.0, 37.25j], [2.0, 3.0], [0.0, 1.0]]), [0, 1, 0])
    assert "37.25" not in str(caught.value) and caught.value.__context__ is None


@pytest.mark.parametrize("step", [False, True])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_warnings_point_at_the_line_that_called(model, step):
    """However many wrappers and solvers a fit has below it, and in a pipeline too."""
    model = make_pipeline(clone(model)) if step else clone(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(np.eye(4)[:3], [0, 1, 0])
    assert caught and {one.filename for one in caught} == {__file__}


@pytest.mark.filterwarnings("ignore:.*a signal needs:UserWarning")
@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:DPRidgeClassifier predicts one class:UserWarning")
@pytest.mark.filterwarnings(
    "ignore:.*could not see the scale|.*sees nothing|.*zero matrix:skdp.exceptions.PrivacyWarning"
)
@pytest.mark.parametrize(
    "model",
    [*MODELS, DPTraceRegressor(1), PublicScaler((0, 9)), RowClipper(1.0)],
    ids=lambda model: type(model).__name__,
)
@pytest.mark.parametrize("X", [CITIES, CITIES.to_numpy(), CITIES.astype({"city": "category"})])
def test_text_is_not_quoted_after_the_fit(model, X):
    numbers = CITIES.assign(city=[1.0, 0.0, 1.0])
    model = clone(model).fit(
        numbers if isinstance(X, pd.DataFrame) else numbers.to_numpy(), [0, 1, 0]
    )
    use = model.predict if hasattr(model, "predict") else model.transform
    with pytest.raises(ValueError, match=r"found text: .* public list") as caught:
        use(X)
    assert "Rome" not in str(caught.value) and caught.value.__context__ is None


@pytest.mark.parametrize("center", [True, False])
def test_a_flag_is_no_center(center):
    with pytest.raises(ValueError, match=r"'center'.*a str among .*'dp'.*Got (True|False)"):
        DPPCA(1, center=center).fit(np.ones((5, 2)))
