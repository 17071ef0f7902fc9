"""Rules of the heads of users."""

import math

import numpy as np

from skdp.solvers import personalization as shared
from skdp.solvers import user_heads as heads


def test_number_of_rules_is_public():
    view = shared.View(None, True, "squared")
    few = heads.all_rules(shared.Shared(np.eye(5)[:, :2], 0.9, shared.Count()), view)
    many = heads.all_rules(shared.Shared(np.eye(5)[:, :2], 0.0, shared.Count()), view)
    assert len(few) == len(many) == 64
    for rule in heads.usable(few, 0.9, 0.0):
        assert rule.outside > 0 or math.isinf(rule.penalty)
    assert not any(rule.toward_global for rule in heads.usable(few, 0.0, 0.9))
    assert heads.usable(few, 0.9, 0.9)


def test_prior_outside_the_subspace_follows_its_error():
    U = np.eye(10)[:, :2]
    ratios = [
        heads.outside_variance(shared.Shared(U, error, shared.Count()))
        for error in (0.0, 3e-5, 4e-5, 0.1, 0.8)
    ]
    assert ratios[0] == ratios[1] == 0.0 < ratios[2] < ratios[3] < ratios[4] <= 1.0
    assert ratios[2] < 1e-4  # a smaller share of all coefficients is not fitted
    assert heads.outside_variance(shared.Shared(np.eye(3), 0.5, shared.Count())) == 0.0
