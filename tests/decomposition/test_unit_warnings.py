"""What fits of units other than rows say of components that lie below their noise."""

import numpy as np
import pytest
import scipy.sparse as sp

from skdp import DPLowRankFactorizer, DPTruncatedSVD
from skdp.exceptions import PrivacyWarning

SAID = "singular values that do not stand above the noise"


def clicks(m=300, n=60, density=0.02):
    return sp.random(m, n, density=density, random_state=0, data_rvs=np.ones, format="csr")


@pytest.mark.parametrize(
    "estimator",
    [
        DPTruncatedSVD(3, privacy_unit="interaction", epsilon=0.1),
        DPTruncatedSVD(3, privacy_unit="entry", epsilon=0.1),
        DPLowRankFactorizer(3, epsilon=0.1),
    ],
    ids=["interaction", "entry", "factorizer"],
)
def test_components_below_the_noise_are_said(estimator):
    with pytest.warns(PrivacyWarning, match=SAID):
        estimator.fit(clicks())


@pytest.mark.parametrize("algorithm", ["power", "one_shot"])
def test_a_graph_that_noise_hides_is_said(algorithm):
    graph = clicks(200, 200)
    graph = ((graph + graph.T) > 0).astype(float)
    svd = DPTruncatedSVD(2, privacy_unit="edge", epsilon=0.5, algorithm=algorithm)
    with pytest.warns(PrivacyWarning, match="of 2 " + SAID):
        svd.fit(graph)


@pytest.mark.parametrize("unit", ["entry", "interaction", "edge"])
def test_what_stands_above_the_noise_needs_no_word(unit):
    half = np.arange(200) < 100
    graph = (half[:, None] == half).astype(float)
    DPTruncatedSVD(2, privacy_unit=unit, epsilon=3.0).fit(sp.csr_matrix(graph))
    DPLowRankFactorizer(2, epsilon=3.0).fit(50 * graph)
