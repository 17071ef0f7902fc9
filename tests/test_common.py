"""scikit-learn's own checks, with no expected failure."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from skdp import DPPCA

ESTIMATORS = [
    DPPCA(),
    DPPCA(n_components=1, clip_norm=1.0),
    DPPCA(n_components=1, clip_norm=1.0, adjacency="replace", center="none"),
    DPPCA(n_components="auto"),
]


@pytest.mark.filterwarnings("ignore::skdp.exceptions.PrivacyWarning")
@parametrize_with_checks(ESTIMATORS)
def test_sklearn_compatible(estimator, check):
    check(estimator)
