"""Values that a parameter of some name may not have, in whatever estimator."""

import math

import numpy as np
import pytest
from sklearn import config_context

import skdp
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
    "class_weight": [
        "even", 2.0, {5: 1.0}, {0: 0.0}, {0: -1.0}, {0: "a"}, {0: True}, {0: 10**400}, {0: 1e99},
    ],
    "classes": [
        [], [0, math.nan], 3, [[0, 1], [2, 3]], [None, 1], [1, "a"], [2**53 + 1, 0.5],
    ],
    "clip_norm": [0.0, -1.0, 1e-61, 1e61, "median", None, 10**400],
    "delta": [1.0, math.nan, 10**400],
    "entry_bounds": NOT_BOUNDS[:-2],
    "epsilon": [0.0, 1e-13, math.nan, 10**400],
    "fit_biases": [*NO_SWITCHES, "auto"],
    "fit_intercept": NO_SWITCHES,
    "gradient_clip_factor": [math.inf, -1.0, 1e-16, 1e200],
    "group_column": [99],
    "head_selection": NO_WORDS,
    "item_exponent": [2.0],
    "iterated_power": [2.0],
    "kind": NO_WORDS,
    "limits": [((1.0, 1.0), (0.0, 1.0)), ((0.0, 1e61), (0.0, 1.0)), "wide"],
    "loss": [*NO_WORDS, "logistic"],
    "max_iter": [0],
    "max_releases": [0, None],
    "measurement_covariance": ["guess", -2.0, math.inf],
    "mechanism": NO_WORDS,
    "method": NO_WORDS,
    "n_bins": [1, 5000],
    "n_components": [0, 1.5, "all"],
    "n_iter": [0, 2.0],
    "n_jobs": [0, 0.5, math.inf, "two"],
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
    "tol": [-1.0, 10**400],
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
        X = data.X if name in BESIDE_DATA else "no table"
        fit = {} if name == "group_column" else data.fit_params
        match = "cannot be used to seed" if name == "random_state" else name
        for value in REFUSED[name]:
            assert_refused(cls(**given | {name: value}), match, X, data.y, **fit)


NO_PURE = "no pure differential privacy"
NO_NOISE = r"clip_norm=inf .* needs epsilon=inf.* Use clip_norm='auto'"
NO_PLANE = r"two directions and 'center' a point of 5 feature\(s\)"
NO_CENTRE = "'private'.*or an array of public centres"
NORMALIZER = "no bounded sensitivity; use 'QR' or 'auto'"
SHARES = {"subspace": 2, "spectrum": 1, "total_variance": 1, "count": 1, "clip_norm": 2}
CENTRES = {"count": 1, "center": 1, "center_search": 1}
SKETCHED = {"method": "two_sketch"}
# Values that do not go together, or with five columns; those of axes are in tests/tools/ways.py.
SAID = {
    skdp.DPPCA: [
        ({"delta": 0}, "pure differential privacy"),
        ({"clip_norm": math.inf}, "epsilon=inf"),
        ({"n_components": 20}, "n_components=20 must be between 1 and n_features=5"),
        ({"power_iteration_normalizer": "LU"}, "no bounded sensitivity"),
        ({"center": None}, r"or an array of public .* Got None"),
        ({"bounds": (0, 1), "center": np.zeros(5)}, "not both"),
        ({"budget_split": {"gram": 1}}, "clip_norm"),
        ({"budget_split": CENTRES | {"gram": 1, "clip_norm": 0}}, "positive"),
        ({"center": True}, NO_CENTRE),
        ({"center": False}, NO_CENTRE),
        ({"center": np.full(5, math.nan)}, "center contains NaN"),
    ],
    skdp.DPIncrementalPCA: [
        ({"n_components": 8}, "between 1 and n_features=5"),
        ({"n_components": 2.0}, "n_components"),
        ({"delta": 0.0, "clip_norm": 1.0}, "pure differential privacy"),
        ({"clip_norm": math.inf}, "clip_norm=inf"),
        ({"center": True}, NO_CENTRE),
    ],
    skdp.DPTruncatedSVD: [
        ({"privacy_unit": "edge"}, "needs a square symmetric matrix; use 'entry'"),
        ({"privacy_unit": "edge_change"}, "square symmetric matrix"),
        ({"privacy_unit": "entry_change", "unit_bound": (0.0, 2.0)}, "is a number"),
        ({"privacy_unit": "entry_change", "clip_norm": 2.0}, "bounds nothing"),
        ({"clip_norm": math.inf}, NO_NOISE),
        ({"n_components": 20}, "n_components=20 must be between 1 and n_features=5"),
        ({"n_components": 20, "privacy_unit": "entry"}, r"1 and min\(n_samples, n_features\)=5"),
        ({"clip_norm": 2.0, "privacy_unit": "interaction"}, "bounds nothing .*'group' and 'entry'"),
        ({"unit_bound": 2, "privacy_unit": "entry"}, "a pair of floats"),
        ({"unit_bound": "auto", "privacy_unit": "edge"}, "a pair of floats"),
        ({"unit_bound": [1.0], "privacy_unit": "frobenius"}, "'unit_bound'"),
        ({"power_iteration_normalizer": "LU"}, NORMALIZER),
        ({"unit_bound": 0, "privacy_unit": "interaction"}, "unit_bound"),
        ({"unit_bound": 2.5, "privacy_unit": "interaction"}, "unit_bound"),
        ({"unit_bound": (1.0, 2.0), "privacy_unit": "entry"}, "low <= 0 <= high"),
        ({"unit_bound": (-1e-99, 0.0), "privacy_unit": "entry"}, "between 1e-60 and 1e60"),
        ({"unit_bound": (0.0, 1e155), "privacy_unit": "edge"}, "between 1e-60 and 1e60"),
        ({"unit_bound": (0.0, math.nan), "privacy_unit": "entry"}, "unit_bound"),
        ({"unit_bound": 1e-200, "privacy_unit": "frobenius"}, "unit_bound"),
        ({"unit_bound": [(18, 90), (0, 2e5)], "privacy_unit": "entry"},
         r"one for all entries .*PublicScaler\(bounds="),
        ({"unit_bound": 1e155, "privacy_unit": "spectral"}, "unit_bound"),
        ({"budget_split": {"gram": 1}}, "keys .*'count', 'spectrum', 'subspace'"),
        ({"budget_split": {"subspace": 1}, "privacy_unit": "entry"}, "'auto' unless .*'row'"),
        ({"budget_split": SHARES | CENTRES | {"spectrum": 0}}, "positive"),
    ],
    skdp.DPLowRankFactorizer: [
        (SKETCHED | {"sketch": "sparse"}, "worst direction"),
        (SKETCHED | {"sketch": "sparse", "privacy_unit": "row", "adjacency": "zero_out"},
         "one row"),
        (SKETCHED | {"sketch_size": 1}, "at least n_components"),
        (SKETCHED | {"sketch_size": (8, 0)}, "pair of positive integers"),
        (SKETCHED | {"matrix_shape": (3, 3)}, "must have the shape"),
        (SKETCHED | {"n_components": 30}, "must be between 1 and min"),
        (SKETCHED | {"delta": 0.0}, "delta"),
    ],
    skdp.DPScoreDensity: [
        ({"delta": 0.0}, NO_PURE),
        ({"classes": ["a", 1]}, "'classes' parameter"),
        ({"axes": np.eye(2, 3)}, NO_PLANE),
        ({"axes": np.zeros((2, 5))}, NO_PLANE),
        ({"center": "mean"}, "the mean of X is private"),
        ({"center": np.zeros(3)}, NO_PLANE),
        ({"axes": np.full((2, 5), math.inf)}, "axes contains infinity"),
    ],
    DPRecommender: [
        ({"degree_floor": 5}, "privacy_unit='interaction'"),
        ({"degree_floor": 0, "privacy_unit": "interaction"}, "degree_floor"),
        ({"degree_floor": 2.5, "privacy_unit": "interaction"}, "degree_floor"),
    ],
    skdp.DPTraceRegressor: [
        ({"matrix_shape": (4, 4)}, "matrix_shape"),
        ({"matrix_shape": "12"}, "matrix_shape"),
        ({"delta": 0}, "delta"),
        ({"measurement_covariance": np.eye(11)}, "5 x 5|measurement_covariance"),
        ({"measurement_covariance": (np.eye(2), np.eye(3))}, "measurement_covariance"),
        ({"measurement_covariance": np.diag([0.0, *[1.0] * 4])}, "positive definite"),
        ({"measurement_covariance": np.triu(np.ones((5, 5)))}, "symmetric"),
    ],
    skdp.DPPersonalizedRegressor: [
        ({"delta": 0.0}, "pure differential privacy"),
        ({"budget_split": {"subspace": 1}}, "columns"),
        ({"group_column": "who"}, "group_column"),
    ],
    skdp.DPStandardScaler: [
        ({"bounds": ([0, 0], [1, 1])}, "low < high for 5 columns"),
        ({"bounds": (-1e300, 1e300)}, r"in \[-1e60, 1e60\] with low < high"),
    ],
}  # fmt: skip
CASES = [(cls, *case) for cls, cases in SAID.items() for case in cases]
TINY = {"epsilon": 1e-7, "delta": 1e-10}  # rounding would use it up, once a part is paid
CASES += [(cls, TINY, "budget is too small") for cls in (*SAID, skdp.DPRidge)]


@pytest.mark.parametrize(("cls", "params", "match"), CASES)
def test_values_that_do_not_go_together_are_refused_before_anything_is_read(cls, params, match):
    data, estimator = ordinary(MODELS[cls]), cls(**params)
    fit = {} if "group_column" in params else data.fit_params
    with config_context(assume_finite=True, skip_parameter_validation=True):  # of X alone
        assert_refused(estimator, match, data.X, data.y, **fit)
        if cls is skdp.DPIncrementalPCA:
            assert_refused(estimator, match, data.X, method="partial_fit")


def test_each_name_is_that_of_a_parameter():
    assert REFUSED.keys() | BESIDE_DATA <= {
        name for e in MODELS.values() for name in e.get_params()
    }
