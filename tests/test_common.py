"""scikit-learn's own checks, with no expected failure."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import estimator_checks_generator

import skdp
from skdp.decomposition import LocalRowRandomizer
from skdp.model_selection import DPGridSearchCV, DPRandomizedSearchCV, make_private_scorer
from skdp.preprocessing import DPStandardScaler, PublicScaler, RowClipper
from skdp.regression import QuantileLoss
from skdp.units import unit_of
from tools.ways import ESTIMATORS as WAYS
from tools.ways import newcomers


class PersonsPCA(skdp.DPPCA):
    """Rows as persons of one row each: scikit-learn's checks pass no groups."""

    def fit(self, X, y=None):
        return super().fit(X, groups=alone(X))

    def fit_transform(self, X, y=None):
        return self.fit(X).transform(X)


class PersonsRidge(skdp.DPRidge):
    """The same of records."""

    def fit(self, X, y):
        return super().fit(X, y, groups=alone(X))


def alone(X):
    """Return a person for each row."""
    return np.arange(X.shape[0] if hasattr(X, "shape") else len(np.asarray(X)))


SQUARED = make_private_scorer("squared_error", (0.0, 4.0))
DISTANCE = make_private_scorer("reconstruction", (0.0, 1.0))


def takes_any_table(way):
    """Whether a way has no labels, groups or widths of its own: these checks have others."""
    given, unit = way.get_params(), unit_of(way)
    own = ("classes", "matrix_shape", "axes", "bounds")
    square = unit.symmetric and not get_tags(way).input_tags.pairwise
    shaped = isinstance(given.get("center"), np.ndarray) or square or unit.of_groups
    return way.epsilon < np.inf and not shaped and all(given.get(name) is None for name in own)


def kind_of(way):
    """Return what a fit depends on most: class, unit, adjacency, algorithm."""
    names = ("privacy_unit", "adjacency", "algorithm", "method", "svd_solver", "normalization")
    return (type(way), *(getattr(way, name, "") for name in names))


KINDS = {kind_of(way): clone(way) for way in reversed(WAYS) if takes_any_table(way)}
for way in KINDS.values():
    if "n_components" in way.get_params():
        way.set_params(n_components=1)
ESTIMATORS = [
    *KINDS.values(),
    skdp.DPPCA(),
    skdp.DPPCA(n_components="auto"),
    PersonsPCA(privacy_unit="group"),
    PersonsRidge(privacy_unit="group"),
    skdp.DPIncrementalPCA(n_components=1, clip_norm=1.0, max_releases=1),
    skdp.DPTraceRegressor(),
    skdp.DPTraceRegressor(measurement_covariance=1.0, fit_intercept=False, adjacency="replace"),
    skdp.DPTraceRegressor(privacy_unit="label", solver="spectral_init"),
    skdp.DPPersonalizedRegressor(1, loss=QuantileLoss(0.8)),
    skdp.DPPersonalizedRegressor(1, whiten=False),
    skdp.DPPersonalizedRegressor(1, loss="huber", adjacency="replace", head_selection="per_user"),
    skdp.DPPersonalizedClassifier(),
    skdp.DPPersonalizedClassifier(1, head_selection="subspace", fit_intercept=False),
    skdp.DPRidgeClassifier(),
    skdp.DPRidgeClassifier(clip_norm=1.0, fit_intercept=False, adjacency="replace"),
    LocalRowRandomizer(),
    LocalRowRandomizer(sketch_size=2, sketch_seed=0),
    DPStandardScaler(bounds=(-1.0, 2.0), adjacency="replace", with_std=False),
    PublicScaler(),
    PublicScaler(bounds=(0, 3)),
    RowClipper(),
    RowClipper(clip_norm=0.1),
    DPGridSearchCV(skdp.DPTraceRegressor(1), {"max_iter": [1, 2]}, SQUARED),
    DPGridSearchCV(
        skdp.DPPCA(clip_norm=1.0), {"n_components": [1]}, DISTANCE, strategy="random_stopping"
    ),
    DPRandomizedSearchCV(skdp.DPTruncatedSVD(1, clip_norm=1.0), {"tol": [0.0]}, DISTANCE, n_iter=1),
]
ESTIMATORS += newcomers(set(map(type, ESTIMATORS)))


def cases():
    """Pair each estimator with its checks, each once: old scikit-learn has one of them twice."""
    for number, estimator in enumerate(ESTIMATORS):
        found = {}
        for subject, check in estimator_checks_generator(estimator):
            words = [check.func.__name__, *map(str, check.keywords.values())]
            found.setdefault(
                "-".join([type(subject).__name__, str(number), *words]), (subject, check)
            )
        yield from (pytest.param(*case, id=name) for name, case in found.items())


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("estimator", "check"), list(cases()))
def test_sklearn_compatible(estimator, check):
    check(estimator)
