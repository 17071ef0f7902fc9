"""Location and spread of columns, from released numbers."""

import numpy as np
import pytest

from skdp.solvers.columns import MomentWeights, column_moments


def test_moments_of_columns():
    n, b, c = 100.0, 1.66, 0.5
    sums = np.array([50.0, b * (40.0 - n / 2), c * n])
    found = column_moments(
        sums, 0.0, np.array([3.0]), np.array([2.0]), weights=MomentWeights(b, c), n=None
    )
    assert found.mean == pytest.approx(4.0)
    assert found.variance == pytest.approx(4 * (0.4 - 0.25))
    assert found.n == pytest.approx(100.0)
    lost = column_moments(
        np.zeros(3), 10.0, np.zeros(1), np.ones(1), weights=MomentWeights(b, c), n=None
    )
    assert lost.n == 40.0
    assert lost.variance > 0
