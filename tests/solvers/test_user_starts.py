"""The first whitener and subspace of users, from released votes."""

import numpy as np

from skdp.solvers import shared_subspace as starts


def test_components_are_counted_above_the_noise():
    values = np.array([90.0, 70.0, 12.0, *[5.0] * 12])
    assert starts.count_components(values, 3.0, 300.0) == 2
    assert starts.count_components(values, 1e3, 300.0) == 1
