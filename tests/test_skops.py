"""Files of skops: they name the types of this package that fitted estimators hold, all of them."""

import numpy as np
import pytest

import skdp
from skdp.model_selection import DPGridSearchCV, make_private_scorer
from skdp.preprocessing import DPStandardScaler, PublicScaler
from skdp.recommend import DPRecommender

RNG = np.random.default_rng(0)
X = RNG.normal(0, 0.3, (90, 4))
ONES = (RNG.random((80, 12)) < 0.3) * 1.0
GROUPS = np.repeat(np.arange(30), 3)
SCORER = make_private_scorer("reconstruction", (0.0, 1.0))
MODELS = [
    skdp.DPPCA(2),
    skdp.DPTruncatedSVD(2, privacy_unit="interaction"),
    skdp.DPIncrementalPCA(2),
    skdp.DPLowRankFactorizer(1, method="two_sketch", sketch_size=4),
    skdp.DPRidge(),
    skdp.DPRidgeClassifier(),
    skdp.DPTraceRegressor(1),
    skdp.DPPersonalizedRegressor(1),
    DPStandardScaler(),
    PublicScaler(),
    DPRecommender(2),
    DPGridSearchCV(skdp.DPPCA(clip_norm=1.0), {"n_components": [1, 2]}, SCORER),
]


def fitted(model):
    name = type(model).__name__
    if getattr(model, "privacy_unit", None) == "interaction" or name == "DPRecommender":
        return model.fit(ONES)
    y = (X[:, 0] > 0) * 1 if "Classifier" in name else X[:, 0]
    params = {"groups": GROUPS} if "Personalized" in name else {}
    return model.fit(X, y, **params)


def types_in(value, seen):
    """Yield the names of our types in a value, and in all that it holds."""
    if id(value) in seen:
        return
    seen.add(id(value))
    kind = type(value)
    if kind.__module__.startswith("skdp."):
        yield f"{kind.__module__}.{kind.__qualname__}"
    held = list(value) if isinstance(value, list | tuple | set | frozenset) else []
    held += [*value, *value.values()] if isinstance(value, dict) else []
    for each in [*held, *vars(value).values()] if hasattr(value, "__dict__") else held:
        yield from types_in(each, seen)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::skdp.exceptions.PrivacyWarning")
@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_everything_that_a_model_holds_is_named(model):
    found = set(types_in(fitted(model), set()))
    assert found
    assert found <= set(skdp.skops_types())


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::skdp.exceptions.PrivacyWarning")
@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_skops_loads_what_it_wrote(model):
    skops = pytest.importorskip("skops.io")
    model = fitted(model)
    data = skops.dumps(model)
    assert set(skops.get_untrusted_types(data=data)) <= set(skdp.skops_types())
    back = skops.loads(data, trusted=skdp.skops_types())
    if hasattr(model, "privacy_spent_"):
        assert back.privacy_spent_ == model.privacy_spent_
        assert back.ledger_ == model.ledger_
