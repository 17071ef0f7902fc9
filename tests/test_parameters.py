"""Values that a parameter of some name may not have, in whatever estimator."""

import math

import numpy as np
import pytest

from skdp.recommend import DPRecommender
from tools.fit_checks import ordinary
from tools.outcomes import assert_refused
from tools.ways import ESTIMATORS, FURTHER

NOT_BOUNDS = [
    (1.0, 1.0), (2.0, 1.0), (0.0, math.inf), (math.nan, 1.0), "none", 3.0, (1.0,), (0, 1, 2),
    (True, 2.0), ("0", "1"), ([[0.0]], [[1.0]]), ([], []), (0.0, 1e-70), (0, 1e61),
]  # fmt: skip
NO_WORDS, NO_SWITCHES = ["magic", None, 1], [1, "yes", None]
REFUSED = {
    "adjacency": NO_WORDS,
    "affinity": NO_WORDS,
    "algorithm": NO_WORDS,
    "alpha": [-1.0, math.nan, "1", True, None, math.inf],
    "batch_size": [0],
    "bounds": NOT_BOUNDS[:-2],
    "budget_split": [{}, {"magic": 1.0}, 0.5],
    "center": [np.zeros(3)],
    "class_weight": ["even", 2.0, {5: 1.0}, {0: 0.0}, {0: -1.0}, {0: "a"}, {0: True}],
    "classes": [
        [], [0, math.nan], 3, [[0, 1], [2, 3]], [None, 1], [1, "a"], [2**53 + 1, 0.5],
    ],
    "clip_norm": [0.0, -1.0, "median", None],
    "coef_clip_norm": [0.0, "median"],
    "entry_bounds": NOT_BOUNDS[:-2],
    "fit_biases": [*NO_SWITCHES, "auto"],
    "fit_intercept": NO_SWITCHES,
    "gradient_clip_factor": [math.inf, -1.0],
    "group_column": [99],
    "head_selection": NO_WORDS,
    "item_exponent": [2.0],
    "iterated_power": [2.0],
    "kind": NO_WORDS,
    "limits": [((1.0, 1.0), (0.0, 1.0)), "wide"],
    "loss": [*NO_WORDS, "logistic"],
    "max_iter": [0],
    "max_releases": [0, None],
    "measurement_covariance": ["guess", -2.0],
    "mechanism": NO_WORDS,
    "method": NO_WORDS,
    "n_bins": [1, 5000],
    "n_components": [0, 1.5, "all"],
    "n_iter": [0, 2.0],
    "n_jobs": [0, 0.5],
    "n_oversamples": [-1],
    "normalization": NO_WORDS,
    "power_iteration_normalizer": [1],
    "privacy_unit": NO_WORDS,
    "random_state": ["seed"],
    "rank": [0],
    "require_groups": NO_SWITCHES,
    "sensitivity_mode": NO_WORDS,
    "sketch": NO_WORDS,
    "solver": NO_WORDS,
    "svd_solver": NO_WORDS,
    "target_bounds": [*NOT_BOUNDS, None],
    "tol": [-1.0],
    "value_cap": [0.0, "rating"],
    "whiten": [1, "full"],
    "window": [0],
    "with_mean": NO_SWITCHES,
    "with_std": NO_SWITCHES,
}  # fmt: skip
MODELS = {type(estimator): type(estimator)() for estimator in ESTIMATORS + FURTHER}


# What is checked next to a number of columns, labels, or the noise of a fit.
BESIDE_DATA = {
    "budget_split", "center", "class_weight", "classes", "measurement_covariance",
    "n_components", "random_state",
}  # fmt: skip


@pytest.mark.parametrize("cls", MODELS, ids=lambda cls: cls.__name__)
def test_values_that_no_parameter_has_are_refused_before_data_are_looked_at(cls):
    data, params = ordinary(MODELS[cls]), MODELS[cls].get_params()
    given = {"classes": [0, 1]} if "class_weight" in params else {}
    for name in params.keys() & REFUSED.keys():
        X = data.X if name in BESIDE_DATA or cls is DPRecommender else "no table"
        fit = {} if name == "group_column" else data.fit_params
        match = "cannot be used to seed" if name == "random_state" else name
        for value in REFUSED[name]:
            assert_refused(cls(**given | {name: value}), match, X, data.y, **fit)


def test_each_name_is_that_of_a_parameter():
    assert REFUSED.keys() | BESIDE_DATA <= {
        name for e in MODELS.values() for name in e.get_params()
    }
