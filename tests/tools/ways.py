"""Ways of a fit: those that somebody thought of, and a covering array of the parameters.

Any two values of the parameters below that go together are in one way at least, so that no axis (a
unit, an adjacency, an algorithm, a law, classes) is tested at its first value alone. What does not
go together stands under `REFUSED`, with the words of its error.
"""

import importlib
import inspect
import itertools
import re

import numpy as np
from sklearn.base import BaseEstimator

import skdp
from skdp.base import BaseDPEstimator
from skdp.papers import PersonalizedRegression, PowerDeflation, PowerMethod, SketchFactorizer
from skdp.preprocessing import DPStandardScaler
from skdp.recommend import DPRecommender

BETWEEN = {"privacy_unit": "entry", "adjacency": "replace", "unit_bound": (-1.0, 2.0)}
WORST_CASE = {"method": "two_sketch", "sensitivity_mode": "worst_case"}
# One line for each way that a fit can take.
ESTIMATORS = [
    PowerMethod(),
    PowerMethod(privacy_unit="edge", sensitivity="independent"),
    PowerDeflation(2, coherence=1e6, n_iter=2),
    SketchFactorizer(1),
    SketchFactorizer(1, method="three_sketch", sensitivity=2.0),
    skdp.DPPCA(),
    skdp.DPPCA(2, bounds=(-3.0, 4.0)),
    skdp.DPPCA(n_components=2, clip_norm=1.0),
    skdp.DPPCA(n_components=1, clip_norm=1.0, adjacency="replace", center="none"),
    skdp.DPPCA(n_components="auto", adjacency="replace", epsilon=16.0),
    skdp.DPPCA(n_components=0.9, center="none", whiten=True),
    skdp.DPPCA(n_components="mle", clip_norm=2.0, epsilon=8.0),
    skdp.DPPCA(center=np.arange(5.0), epsilon=0.1),
    skdp.DPPCA(epsilon=np.inf, clip_norm=np.inf),
    skdp.DPPCA(privacy_unit="group"),
    skdp.DPIncrementalPCA(),
    skdp.DPIncrementalPCA(n_components=2, clip_norm=1.0, adjacency="replace"),
    skdp.DPIncrementalPCA(n_components=1, clip_norm=1.0, center="none"),
    skdp.DPIncrementalPCA(privacy_unit="group"),
    skdp.DPTruncatedSVD(),
    skdp.DPTruncatedSVD(clip_norm=1.0, algorithm="power"),
    skdp.DPTruncatedSVD(clip_norm=1.0, algorithm="power", adjacency="replace", n_oversamples=0),
    skdp.DPTruncatedSVD(algorithm="screened"),
    skdp.DPTruncatedSVD(1, algorithm="gram", adjacency="replace"),
    skdp.DPTruncatedSVD(
        clip_norm=1.0, privacy_unit="group", adjacency="replace", algorithm="power"
    ),
    skdp.DPTruncatedSVD(1, privacy_unit="interaction", unit_bound=2, algorithm="screened"),
    skdp.DPTruncatedSVD(privacy_unit="interaction"),
    skdp.DPTruncatedSVD(privacy_unit="interaction", adjacency="replace", algorithm="power"),
    skdp.DPTruncatedSVD(privacy_unit="interaction", algorithm="gram", n_components=3),
    skdp.DPTruncatedSVD(privacy_unit="interaction", algorithm="one_shot", delta=0.0),
    skdp.DPTruncatedSVD(privacy_unit="entry"),
    skdp.DPTruncatedSVD(privacy_unit="entry", algorithm="alternating"),
    skdp.DPTruncatedSVD(privacy_unit="entry", algorithm="one_shot", delta=0.0, adjacency="replace"),
    skdp.DPTruncatedSVD(algorithm="deflation", delta=0.0, **BETWEEN),
    skdp.DPTruncatedSVD(1, privacy_unit="entry", delta=0.0, epsilon=4.0, algorithm="alternating"),
    skdp.DPTruncatedSVD(1, algorithm="gram", clip_norm=3.0, **BETWEEN),
    skdp.DPTruncatedSVD(privacy_unit="edge", algorithm="power", n_oversamples=1),
    skdp.DPTruncatedSVD(1, privacy_unit="edge", adjacency="replace", delta=0.0, algorithm="power"),
    skdp.DPTruncatedSVD(privacy_unit="edge", delta=0.0),
    skdp.DPTruncatedSVD(1, privacy_unit="edge", epsilon=30.0),
    skdp.DPTruncatedSVD(privacy_unit="entry_change"),
    skdp.DPTruncatedSVD(privacy_unit="entry_change", algorithm="alternating", unit_bound=2.0),
    skdp.DPTruncatedSVD(privacy_unit="edge_change"),
    skdp.DPTruncatedSVD(privacy_unit="mixed", epsilon=4.0),
    skdp.DPTruncatedSVD(privacy_unit="frobenius"),
    skdp.DPTruncatedSVD(privacy_unit="spectral", epsilon=8.0),
    skdp.DPSpectralEmbedding(),
    skdp.DPSpectralEmbedding(1, normalization="laplacian", delta=0.0, algorithm="power"),
    skdp.DPSpectralEmbedding(normalization="none", adjacency="replace", algorithm="power"),
    skdp.DPSpectralEmbedding(algorithm="power"),
    skdp.DPSpectralEmbedding(1, epsilon=30.0),
    skdp.DPSpectralEmbedding(1, epsilon=4.0, n_iter=1),
    skdp.DPSpectralEmbedding(privacy_unit="edge_change", unit_bound=2.0),
    skdp.DPSpectralEmbedding(1, privacy_unit="mixed", normalization="none", delta=0.0),
    skdp.DPSpectralEmbedding(
        normalization="laplacian", algorithm="one_shot", delta=0.0, adjacency="replace"
    ),
    skdp.DPLowRankFactorizer(),
    skdp.DPLowRankFactorizer(method="two_sketch", sketch_size=5, unit_bound=2.0),
    skdp.DPLowRankFactorizer(
        sketch_size=(5, 20), sketch="srht", privacy_unit="rank_one", **WORST_CASE
    ),
    skdp.DPLowRankFactorizer(privacy_unit="row", adjacency="zero_out"),
    skdp.DPLowRankFactorizer(privacy_unit="row", adjacency="replace", sketch_size=4, **WORST_CASE),
    skdp.DPLowRankFactorizer(privacy_unit="row", adjacency="zero_out", method="three_sketch"),
    skdp.DPLowRankFactorizer(privacy_unit="entry", unit_bound=(-0.5, 2.0)),
    skdp.DPLowRankFactorizer(privacy_unit="entry", adjacency="replace", unit_bound=(0.0, 2.0)),
    skdp.DPLowRankFactorizer(method="two_sketch", sketch="sparse", sketch_size=5, **BETWEEN),
    # DPTraceRegressor has its own instances in tests/regression/test_trace.py: it needs larger
    # budgets to learn anything from the few records of these checks.
    skdp.DPPersonalizedRegressor(),
    skdp.DPPersonalizedRegressor(1, adjacency="replace"),
    skdp.DPPersonalizedRegressor(1, epsilon=30.0, loss="absolute"),
    skdp.DPPersonalizedRegressor(1, fit_intercept=False),
    skdp.DPPersonalizedClassifier(classes=[0, 1]),
    skdp.DPPersonalizedClassifier(classes=[0, 1], fit_intercept=False),
    # At less, few rows leave nothing for the model.
    skdp.DPRidge(epsilon=30.0),
    skdp.DPRidge(bounds=(-3.0, 4.0), target_bounds=(-1.0, 2.0), epsilon=30.0),
    skdp.DPRidge(clip_norm=1.0, target_bounds=(-1.0, 2.0), adjacency="replace", epsilon=30.0),
    skdp.DPRidge(0.0, fit_intercept=False, clip_norm=2.0, adjacency="replace"),
    skdp.DPRidge(
        clip_norm=1.0,
        target_bounds=(-1.0, 2.0),
        adjacency="replace",
        privacy_unit="group",
        epsilon=100.0,
    ),
    skdp.DPRidgeClassifier(classes=[0, 1], privacy_unit="group"),
    skdp.DPRidgeClassifier(clip_norm=1.0, classes=[0, 1]),
    skdp.DPRidgeClassifier(classes=[0, 1, 2], fit_intercept=False, epsilon=30.0),
    skdp.DPRidgeClassifier(clip_norm=1.0, classes=[0, 1, 2], adjacency="replace"),
    skdp.DPRidgeClassifier(clip_norm=1.0, classes=[0, 1], class_weight="balanced"),
    skdp.DPRidgeClassifier(
        classes=[0, 1, 2], class_weight={0: 3.0}, fit_intercept=False, epsilon=30.0
    ),
    DPRecommender(),
    DPRecommender(2, epsilon=8.0, adjacency="replace"),
    DPRecommender(algorithm="popularity"),
    DPRecommender(delta=0.0),
    DPRecommender(2, value_cap=2.0, epsilon=8.0),
    DPRecommender(privacy_unit="interaction"),
    DPRecommender(privacy_unit="interaction", algorithm="gram", adjacency="replace", epsilon=8.0),
    DPRecommender(privacy_unit="interaction", epsilon=4.0, delta=0.0),
    skdp.DPScoreDensity(),
    skdp.DPScoreDensity(kind="density", limits=((-3.0, 3.0), (-2.0, 2.0)), n_bins=6, delta=0.0),
    skdp.DPScoreDensity(kind="density", limits=((-3.0, 3.0), (-2.0, 2.0)), adjacency="replace"),
    skdp.DPScoreDensity(np.eye(2, 5), kind="ellipse", classes=[0, 1], center=np.ones(5)),
    skdp.DPScoreDensity(kind="ellipse", limits=((-3.0, 3.0), (-2.0, 2.0)), adjacency="replace"),
    skdp.DPScoreDensity(classes=[0, 1], epsilon=8.0),
    DPStandardScaler(),
    DPStandardScaler(adjacency="replace"),
    DPStandardScaler(bounds=(-1.0, 2.0)),
    DPStandardScaler(privacy_unit="group", adjacency="replace", bounds=(-1.0, 2.0)),
    DPStandardScaler(bounds=(-1.0, 2.0), adjacency="replace", with_std=False),
    DPStandardScaler(with_mean=False),
]

ADJACENCIES = ["add_remove", "replace"]
LIMITS = ((-3.0, 3.0), (-2.0, 2.0))
CONTRACTS = ["entry_change", "edge_change", "mixed", "frobenius", "spectral"]
# class -> values of its parameters; what has one value only is given
AXES = {
    PowerMethod: {
        "privacy_unit": ["interaction", "edge"],
        "sensitivity": ["rows", "independent", "prior", "width"],
        "calibration": ["exact", "printed"],
    },
    skdp.DPPCA: {
        "privacy_unit": ["row", "group"], "adjacency": ADJACENCIES,
        "clip_norm": ["auto", 2.0], "center": ["private", "none"], "bounds": [None, (-3.0, 4.0)],
        "svd_solver": ["auto", "gram", "power", "screened"],
        "n_components": [2, "auto", 0.9, "mle"],
        "epsilon": [8.0],
    },
    skdp.DPIncrementalPCA: {
        "privacy_unit": ["row", "group"], "adjacency": ADJACENCIES, "clip_norm": ["auto", 2.0],
        "center": ["private", "none"],
    },
    skdp.DPTruncatedSVD: {
        "privacy_unit": ["row", "group", "interaction", "entry", "edge", *CONTRACTS],
        "algorithm": ["auto", "gram", "power", "screened", "alternating", "deflation", "one_shot"],
        "adjacency": ADJACENCIES, "delta": [1e-6, 0.0], "n_components": [2, 1],
        "unit_bound": [None, (-1.0, 2.0)],
    },
    skdp.DPSpectralEmbedding: {
        "privacy_unit": ["edge", "edge_change", "mixed"], "adjacency": ADJACENCIES,
        "algorithm": ["auto", "power", "one_shot"],
        "normalization": ["degree", "laplacian", "none"], "delta": [1e-6, 0.0],
        "n_components": [2, 1],
    },
    skdp.DPLowRankFactorizer: {
        "privacy_unit": ["frobenius", "rank_one", "row", "entry"],
        "adjacency": ["add_remove", "replace", "zero_out"],
        "method": ["auto", "two_sketch", "three_sketch"],
        "sketch": ["gaussian", "isometry", "srht", "sparse"],
        "sensitivity_mode": ["random", "oblivious", "worst_case"],
    },
    skdp.DPTraceRegressor: {
        "rank": [1], "matrix_shape": [(2, 2)], "epsilon": [25.0],
        "privacy_unit": ["row", "label"], "adjacency": ADJACENCIES,
        "measurement_covariance": ["private", 1.0], "solver": ["riemannian", "spectral_init"],
        "fit_intercept": [True, False],
    },
    skdp.DPPersonalizedRegressor: {
        "adjacency": ADJACENCIES, "whiten": [True, False],
        "head_selection": ["private_vote", "per_user", "subspace"],
        "loss": ["squared", "huber", "absolute"],
        "target_bounds": ["auto", (-2.0, 2.0)],
    },
    skdp.DPPersonalizedClassifier: {
        "classes": [[0, 1], [0, 1, 2]], "adjacency": ADJACENCIES,
        "head_selection": ["private_vote", "per_user", "subspace"],
    },
    skdp.DPRidge: {
        "privacy_unit": ["row", "group"], "adjacency": ADJACENCIES, "clip_norm": ["auto", 2.0],
        "target_bounds": ["auto", (-1.0, 2.0)], "bounds": [None, (-3.0, 4.0)],
        "fit_intercept": [True, False], "epsilon": [60.0],
    },
    skdp.DPRidgeClassifier: {
        "privacy_unit": ["row", "group"], "adjacency": ADJACENCIES, "clip_norm": ["auto", 2.0],
        "classes": [[0, 1], [0, 1, 2]], "class_weight": [None, "balanced", {0: 3.0}],
        "bounds": [None, (-3.0, 4.0)], "fit_intercept": [True, False],
        "epsilon": [30.0],
    },
    DPRecommender: {
        "privacy_unit": ["row", "interaction"], "adjacency": ADJACENCIES,
        "algorithm": ["auto", "gram", "popularity", "one_shot"], "delta": [1e-6, 0.0],
        "value_cap": ["binary", 2.0], "n_components": [2], "epsilon": [8.0],
    },
    skdp.DPScoreDensity: {
        "adjacency": ADJACENCIES, "kind": ["auto", "density", "ellipse"],
        "classes": [None, [0, 1]], "limits": ["auto", LIMITS], "delta": [1e-6, 0.0],
        "n_bins": ["auto", 6], "epsilon": [8.0],
    },
    DPStandardScaler: {
        "privacy_unit": ["row", "group"], "adjacency": ADJACENCIES,
        "bounds": ["auto", (-1.0, 2.0)],
        "with_mean": [True, False], "with_std": [True, False],
    },
}  # fmt: skip


FACADES = ("decomposition", "graph", "model_selection", "preprocessing", "recommend", "regression")
OTHERS = ("datasets", "exceptions", "federated", "papers", "plotting", "testing", "theory")
FACES = [f"skdp.{room}" for room in (*FACADES, *OTHERS)]  # modules whose names users type
SEARCHES = "model_selection"  # of estimators that they are given


def exported(rooms):
    """Return {name: class} of the estimators that rooms of the package hand out."""
    modules = [importlib.import_module(f"skdp.{room}") for room in rooms]
    handed_out = {name: getattr(module, name) for module in modules for name in module.__all__}
    return {
        name: value
        for name, value in handed_out.items()
        if inspect.isclass(value) and issubclass(value, BaseEstimator)
    }


def newcomers(known):
    """Return exported private estimators of other classes: defaults, and each documented option."""
    return [
        way
        for cls in exported(room for room in FACADES if room != SEARCHES).values()
        if issubclass(cls, BaseDPEstimator) and cls not in known
        for way in [cls(), *documented_ways(cls)]
    ]


def documented_options(cls):
    """Return (parameter, options in words) for each ``name : {"one", "other"}`` of a docstring."""
    return re.findall(r"^    (\w+) : \{([^}]*)\}", cls.__doc__, flags=re.MULTILINE)


def documented_ways(cls):
    """Return an estimator for each option that is not the default of its parameter."""
    default = cls().get_params()
    return [
        cls(**{name: option})
        for name, options in documented_options(cls)
        for option in re.findall(r'"(\w+)"', options)
        if option != default[name]
    ]


ESTIMATORS += newcomers({*map(type, ESTIMATORS), *AXES})

NO_PURE = "no pure differential privacy"
NOT_OFFERED = "must be a str among"
UNREAD = None  # goes together, and makes no other way
UNIT, ALGORITHM = "privacy_unit", "algorithm"
# class -> (values that do not go together, words of the error)
REFUSED = {
    skdp.DPTruncatedSVD: [
        ({UNIT: ["row", "group", "interaction"], ALGORITHM: ["alternating"]}, NOT_OFFERED),
        ({UNIT: ["interaction"], ALGORITHM: ["deflation"]}, NOT_OFFERED),
        ({UNIT: ["row", "group"], ALGORITHM: ["deflation"]}, UNREAD),  # by any delta
        ({UNIT: ["row", "group"], ALGORITHM: ["one_shot"]}, NOT_OFFERED),
        ({UNIT: ["entry"], ALGORITHM: ["power"]}, NOT_OFFERED),
        ({UNIT: ["edge"], ALGORITHM: ["gram", "screened", "alternating"]}, NOT_OFFERED),
        ({UNIT: CONTRACTS, ALGORITHM: ["gram", "screened"]}, NOT_OFFERED),
        ({UNIT: ["entry_change", "frobenius", "spectral"], ALGORITHM: ["power"]}, NOT_OFFERED),
        ({UNIT: ["edge_change", "mixed"], ALGORITHM: ["alternating", "one_shot"]}, NOT_OFFERED),
        ({UNIT: ["spectral"], ALGORITHM: ["one_shot"]}, NOT_OFFERED),
        ({UNIT: CONTRACTS, "adjacency": ["replace"]}, NOT_OFFERED),
        ({UNIT: ["row", "group"], "delta": [0.0]}, NO_PURE),
        ({ALGORITHM: ["gram", "screened"], "delta": [0.0]}, NO_PURE),
        ({UNIT: ["interaction"], ALGORITHM: ["power"], "delta": [0.0]}, NO_PURE),
        ({ALGORITHM: ["power", "alternating"], "delta": [0.0], "n_components": [2]}, NO_PURE),
        ({ALGORITHM: ["deflation"], "delta": [1e-6]}, "is for delta=0"),
        ({UNIT: ["row", "group"], "unit_bound": [(-1.0, 2.0)]}, "bounds nothing"),
        ({UNIT: ["interaction", *CONTRACTS], "unit_bound": [(-1.0, 2.0)]}, "'unit_bound'"),
    ],
    skdp.DPSpectralEmbedding: [
        ({UNIT: ["edge_change", "mixed"], "adjacency": ["replace"]}, NOT_OFFERED),
        ({UNIT: ["edge_change", "mixed"], ALGORITHM: ["one_shot"]}, "one_shot' needs"),
        ({UNIT: ["edge_change", "mixed"], "delta": [0.0], "n_components": [2]}, NO_PURE),
        ({ALGORITHM: ["power"], "delta": [0.0], "n_components": [2]}, NO_PURE),
    ],
    skdp.DPLowRankFactorizer: [
        ({UNIT: ["frobenius", "rank_one"], "adjacency": ["replace", "zero_out"]}, NOT_OFFERED),
        ({UNIT: ["entry"], "adjacency": ["zero_out"]}, NOT_OFFERED),
        ({UNIT: ["row"], "adjacency": ["add_remove"]}, "needs adjacency"),
        ({"method": ["auto"], "sketch": ["isometry", "srht", "sparse"]}, UNREAD),
        ({"sensitivity_mode": ["oblivious"]}, UNREAD),  # of streams: fits draw after the data
        ({"method": ["auto"], "sensitivity_mode": ["worst_case"]}, UNREAD),
        ({"method": ["two_sketch", "three_sketch"], "sketch": ["isometry"],
          "sensitivity_mode": ["random"]}, "has no bound"),
        ({UNIT: ["frobenius", "rank_one", "row"], "method": ["two_sketch", "three_sketch"],
          "sketch": ["srht", "sparse"], "sensitivity_mode": ["random"]}, "has no bound"),
    ],
    DPRecommender: [
        ({UNIT: ["row"], ALGORITHM: ["one_shot"]}, "flips single interactions"),
        ({UNIT: ["interaction"], "value_cap": [2.0]}, "a cap on values"),
        ({ALGORITHM: ["gram"], "delta": [0.0]}, NO_PURE),
    ],
    skdp.DPScoreDensity: [
        ({"kind": ["auto", "ellipse"], "delta": [0.0]}, NO_PURE),
        ({"limits": ["auto"], "delta": [0.0]}, NO_PURE),
        ({"kind": ["ellipse"], "n_bins": [6]}, UNREAD),
    ],
}  # fmt: skip


def goes_together(cls, params):
    """Tell whether no rule refuses values of some parameters, whatever the others are."""
    return not any(breaks(params, rule) for rule, _ in REFUSED.get(cls, ()))


def breaks(params, rule):
    """Tell whether parameters have values that a rule refuses together."""
    return all(name in params and params[name] in values for name, values in rule.items())


def pairs_of(params):
    """Return all pairs of values, in a form that has a hash."""
    values = ((name, repr(value)) for name, value in params.items())
    return {frozenset(pair) for pair in itertools.combinations(values, 2)}


def completed(cls, params, missing):
    """Give the other parameters values: those that cover most, as far as rules allow; or None."""
    free = [name for name in AXES[cls] if name not in params]
    if not free:
        return params
    options = [params | {free[0]: value} for value in AXES[cls][free[0]]]
    for option in sorted(options, key=lambda option: -len(pairs_of(option) & missing)):
        if goes_together(cls, option) and (whole := completed(cls, option, missing)):
            return whole
    return None


def taken(estimator):
    """Return the values of an estimator's parameters, in the order of its axes."""
    given = estimator.get_params()
    return {name: given[name] for name in AXES[type(estimator)]}


def covering(cls, known):
    """Yield parameters of further ways, until each pair that goes together is in one."""
    missing = {}
    axes = [(name, values) for name, values in AXES[cls].items() if len(values) > 1]
    for (one, firsts), (other, seconds) in itertools.combinations(axes, 2):
        for params in ({one: a, other: b} for a, b in itertools.product(firsts, seconds)):
            missing |= dict.fromkeys(pairs_of(params), params)
    for estimator in known:
        for pair in pairs_of(taken(estimator)):
            missing.pop(pair, None)
    while missing:
        pair, params = next(iter(missing.items()))
        del missing[pair]
        ordered = completed(cls, params, set(missing)) if goes_together(cls, params) else None
        if ordered:
            way = {name: ordered[name] for name in AXES[cls]}
            for found in pairs_of(way):
                missing.pop(found, None)
            yield way


def further_ways():
    """Return an estimator for each further way of all classes."""
    known = {cls: [e for e in ESTIMATORS if type(e) is cls] for cls in AXES}
    return [cls(**params) for cls in AXES for params in covering(cls, known[cls])]


def _even(names):
    return dict.fromkeys(names.split(), 1.0)


# Values of the parameters that no axis has: all that go together in one way of each class.
_RARE = {"delta": 1e-3, "n_jobs": 2}
SELDOM = [
    PowerMethod(1, privacy_unit="edge", n_parties=3, n_iter=1, entry_bounds=(-1.0, 2.0)),
    PowerDeflation(1, coherence=3.0, n_iter=1, entry_bounds=(-1.0, 2.0), delta=1e-3),
    SketchFactorizer(2, alpha=0.9, delta=1e-3),
    PersonalizedRegression(1, n_rounds=2, max_rows=4, target_bound=2.0, product_bound=0.5),
    PersonalizedRegression(1, adjacency="add_remove"),
    skdp.DPPCA(2, svd_solver="power", iterated_power=1, n_oversamples=3, copy=False, whiten=True,
               power_iteration_normalizer="QR", tol=0.1, **_RARE),
    skdp.DPPCA(center="none", budget_split=_even("clip_norm count gram")),
    skdp.DPIncrementalPCA(
        center="none", budget_split=_even("clip_norm count gram"), whiten=True, copy=False,
        batch_size=7, max_releases=3, mechanism="tree", epsilon=4.0, **_RARE,
    ),
    skdp.DPTruncatedSVD(algorithm="power", n_iter=1, n_oversamples=4, tol=0.1,
                        power_iteration_normalizer="QR", **_RARE),
    skdp.DPTruncatedSVD(
        algorithm="screened",
        budget_split=_even("clip_norm count subspace spectrum total_variance"),
    ),
    skdp.DPSpectralEmbedding(3, n_iter=2, unit_bound=(-1.0, 2.0), delta=1e-3, algorithm="power"),
    skdp.DPLowRankFactorizer(3, max_releases=3, mechanism="tree", window=2, method="two_sketch",
                             sketch_size=4, epsilon=4.0, **_RARE),
    skdp.DPPersonalizedRegressor(
        1, whiten=False, require_groups=True, head_selection="subspace", target_bounds=(0.0, 1.0),
        budget_split=_even("columns targets subspace global"), **_RARE,
    ),
    skdp.DPPersonalizedClassifier(
        1, classes=[1, 0], whiten=False, require_groups=True, epsilon=8.0,
        head_selection="subspace", fit_intercept=False,
        budget_split=_even("columns logits subspace global"), **_RARE,
    ),
    skdp.DPRidge(100.0, target_bounds=(0.0, 3.0), bounds=(0.0, 1.0), fit_intercept=False, **_RARE),
    skdp.DPRidgeClassifier(100.0, classes=[1, 0], bounds=(0.0, 1.0), **_RARE),
    DPRecommender(1, item_exponent=1.0, degree_floor=3, privacy_unit="interaction", **_RARE),
    DPRecommender(1, item_exponent=0.0, value_cap=0.1),
    skdp.DPScoreDensity(np.ones((2, 5)) - np.eye(2, 5), center=np.ones(5), n_bins=40,
                        kind="density", budget_split=_even("limits density"), **_RARE),
    DPStandardScaler(bounds=(0.0, 5.0), epsilon=4.0, **_RARE),
    DPStandardScaler(budget_split=_even("columns moments")),
]  # fmt: skip
FURTHER = further_ways() + SELDOM
