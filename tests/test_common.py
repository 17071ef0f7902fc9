"""scikit-learn's own checks, with no expected failure."""

import numpy as np
import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator

import skdp
from skdp.decomposition import LocalRowRandomizer
from skdp.model_selection import DPGridSearchCV, DPRandomizedSearchCV, make_private_scorer
from skdp.papers import PowerDeflation, PowerMethod, SketchFactorizer
from skdp.preprocessing import DPStandardScaler, PublicScaler, RowClipper
from skdp.recommend import DPRecommender
from skdp.regression import QuantileLoss
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
ESTIMATORS = [
    skdp.DPPCA(),
    skdp.DPPCA(n_components=1, clip_norm=1.0),
    skdp.DPPCA(n_components=1, clip_norm=1.0, adjacency="replace", center="none"),
    skdp.DPPCA(n_components="auto"),
    skdp.DPPCA(n_components=1, svd_solver="power", center="none"),
    PersonsPCA(privacy_unit="group"),
    PersonsRidge(privacy_unit="group"),
    skdp.DPIncrementalPCA(),
    skdp.DPIncrementalPCA(n_components=1, clip_norm=1.0, max_releases=1),
    skdp.DPIncrementalPCA(n_components=1, adjacency="replace", center="none", mechanism="tree"),
    skdp.DPTruncatedSVD(n_components=1),
    skdp.DPTruncatedSVD(n_components=1, algorithm="power", adjacency="replace", clip_norm=1.0),
    skdp.DPTruncatedSVD(n_components=1, algorithm="screened"),
    skdp.DPTruncatedSVD(n_components=1, privacy_unit="entry"),
    skdp.DPTruncatedSVD(n_components=1, privacy_unit="entry", algorithm="deflation", delta=0.0),
    skdp.DPTruncatedSVD(n_components=1, privacy_unit="interaction"),
    skdp.DPTruncatedSVD(n_components=1, privacy_unit="interaction", algorithm="gram"),
    skdp.DPTruncatedSVD(n_components=1, privacy_unit="entry", algorithm="one_shot"),
    skdp.DPTruncatedSVD(n_components=1, privacy_unit="spectral"),
    PowerMethod(n_components=1),
    PowerDeflation(),
    SketchFactorizer(1),
    skdp.DPSpectralEmbedding(n_components=1),
    skdp.DPSpectralEmbedding(n_components=1, normalization="laplacian", delta=0.0),
    skdp.DPSpectralEmbedding(n_components=1, normalization="none", adjacency="replace"),
    skdp.DPSpectralEmbedding(n_components=1, algorithm="one_shot"),
    skdp.DPSpectralEmbedding(n_components=1, privacy_unit="edge_change"),
    skdp.DPTraceRegressor(),
    skdp.DPTraceRegressor(measurement_covariance=1.0, fit_intercept=False, adjacency="replace"),
    skdp.DPTraceRegressor(privacy_unit="label", solver="spectral_init"),
    skdp.DPPersonalizedRegressor(),
    skdp.DPPersonalizedRegressor(1, loss="huber", adjacency="replace", head_selection="per_user"),
    skdp.DPPersonalizedRegressor(1, loss=QuantileLoss(0.8)),
    skdp.DPPersonalizedRegressor(1, whiten=False),
    skdp.DPPersonalizedClassifier(),
    skdp.DPLowRankFactorizer(n_components=1),
    skdp.DPLowRankFactorizer(n_components=1, method="two_sketch", sketch_size=4),
    skdp.DPLowRankFactorizer(
        n_components=1, privacy_unit="row", adjacency="zero_out", method="three_sketch"
    ),
    skdp.DPLowRankFactorizer(
        n_components=1, privacy_unit="entry", method="two_sketch", sketch="sparse"
    ),
    skdp.DPPersonalizedClassifier(1, head_selection="subspace", fit_intercept=False),
    skdp.DPRidge(),
    skdp.DPRidge(
        fit_intercept=False, clip_norm=1.0, target_bounds=(-1.0, 2.0), adjacency="replace"
    ),
    skdp.DPRidgeClassifier(),
    skdp.DPRidgeClassifier(clip_norm=1.0, fit_intercept=False, adjacency="replace"),
    DPRecommender(),
    DPRecommender(2, privacy_unit="interaction"),
    LocalRowRandomizer(),
    LocalRowRandomizer(sketch_size=2, sketch_seed=0),
    skdp.DPScoreDensity(),
    skdp.DPScoreDensity(kind="ellipse", limits=((-1, 1), (0, 2)), adjacency="replace"),
    DPStandardScaler(),
    DPStandardScaler(with_mean=False),
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
