"""Files of skops: they name the types of this package that fitted estimators hold, all of them."""

import pytest
from sklearn.base import clone

import skdp
from skdp.model_selection import DPGridSearchCV, make_private_scorer
from skdp.preprocessing import PublicScaler
from tools.data import null_release_data
from tools.ways import ESTIMATORS

SCORER = make_private_scorer("reconstruction", (0.0, 1.0))
FIRST = {type(way): way for way in reversed(ESTIMATORS) if "papers" not in type(way).__module__}
MODELS = [
    *FIRST.values(),
    PublicScaler(),
    skdp.DPTraceRegressor(1, matrix_shape=(2, 2)),
    skdp.DPLowRankFactorizer(1, method="two_sketch", sketch_size=4),
    DPGridSearchCV(skdp.DPPCA(clip_norm=1.0), {"n_components": [1, 2]}, SCORER),
]


def fitted(model):
    return null_release_data(model)["dense"]["ordinary"].fit(clone(model))


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
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_everything_that_a_model_holds_is_named(model):
    found = set(types_in(fitted(model), set()))
    assert found
    assert found <= set(skdp.skops_types())


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_skops_loads_what_it_wrote(model):
    skops = pytest.importorskip("skops.io")
    model = fitted(model)
    data = skops.dumps(model)
    assert set(skops.get_untrusted_types(data=data)) <= set(skdp.skops_types())
    back = skops.loads(data, trusted=skdp.skops_types())
    if hasattr(model, "privacy_spent_"):
        assert back.privacy_spent_ == model.privacy_spent_
        assert back.releases_ == model.releases_
