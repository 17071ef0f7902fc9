"""What is said of values that are no numbers: no value is quoted, and no leaking step is named."""

import numpy as np
import pandas as pd
import pytest

from skdp import DPPCA, DPIncrementalPCA, DPRidge, DPRidgeClassifier, DPTruncatedSVD
from skdp.preprocessing import DPStandardScaler

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
