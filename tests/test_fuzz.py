"""Hostile input to every public entry point: a clear error or a right result, and nothing between.

The default run takes seconds. ``pytest -m slow tests/test_fuzz.py`` tries more than 10,000 hostile
inputs per estimator and prints what became of them.
"""

import contextlib
import math
import os
import time
import warnings
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn import config_context
from sklearn.base import clone, is_classifier
from sklearn.utils import get_tags

import skdp
from skdp.exceptions import PrivacyError
from skdp.preprocessing import DPStandardScaler
from skdp.privacy import PrivacyBudget
from skdp.privacy.accounting import losses as accounting
from skdp.recommend import DPRecommender
from skdp.testing import record_transcript, seeded_entropy
from tools.data import STORED
from tools.outcomes import difference, fitted_attributes
from tools.ways import newcomers

# With parameters that make a fit on a 5 x 3 matrix possible; a class that is missing adds itself.
ESTIMATORS = [
    skdp.DPPCA(),
    skdp.DPPCA(n_components=1, clip_norm=1.0, adjacency="replace", center="none"),
    skdp.DPIncrementalPCA(1),
    skdp.DPTruncatedSVD(1, clip_norm=1.0),
    skdp.DPTruncatedSVD(1, algorithm="power", adjacency="replace"),
    skdp.DPTruncatedSVD(1, privacy_unit="entry"),
    skdp.DPTruncatedSVD(1, privacy_unit="interaction"),
    skdp.DPSpectralEmbedding(1),
    skdp.DPScoreDensity(),
    skdp.DPTraceRegressor(1),
    skdp.DPPersonalizedRegressor(1),
    skdp.DPLowRankFactorizer(1),
    skdp.DPLowRankFactorizer(1, method="two_sketch", sketch_size=2),
    skdp.DPPersonalizedClassifier(1),
    skdp.DPRidge(),
    skdp.DPRidge(clip_norm=1.0, target_bounds=(-1.0, 2.0), adjacency="replace"),
    skdp.DPRidgeClassifier(clip_norm=1.0),
    DPRecommender(),
    DPRecommender(2, privacy_unit="interaction"),
    DPStandardScaler(),
]
ESTIMATORS += newcomers(set(map(type, ESTIMATORS)))
MINUTES = 4  # of one slow run

NUMBERS = [0.0, -0.0, 1.0, -1.0, 0.1, 3.0, 1e-320, 1e-160, 1e-9, 1e9, 1e160, -1e300, 1.7e308]
BAD = [math.nan, math.inf, -math.inf]
STRANGE = [None, True, "auto", "x", "", b"1", [], {}, (), [1.0], 1j, object, np.float32(1),
           np.array(1.0), np.array([1.0, 2.0]), {"gram": 1.0}, {"moment": -1.0}, 2, 3, 7, 0, -1,
           "none", "private", "mle", "replace", "add_remove", "LU", 0.5, np.int64(2), np.True_,
           np.nan, np.array("auto"), {"moment": math.nan, "clip_norm": 1.0}]  # fmt: skip
LATER = ("transform", "inverse_transform", "score_samples", "score", "predict", "get_covariance",
         "get_precision", "privacy_report", "get_feature_names_out", "public_copy")  # fmt: skip


@st.composite
def arrays(draw, square=False):
    n = draw(st.sampled_from([0, 1, 2, 3, 5, 6, 9]))
    d = draw(st.sampled_from([0, 1, 2, 3, 3, 3, 5]))
    if square and draw(st.integers(0, 9)):  # a graph: nearly always
        n = d = draw(st.sampled_from([2, 3, 5, 6, 9]))
    pool = NUMBERS + (BAD if draw(st.integers(0, 3)) == 0 else [])
    kind = draw(st.sampled_from(["gaussian", "pool", "row", "integers"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**20)))
    if kind == "gaussian":
        with np.errstate(over="ignore"):
            X = rng.standard_normal((n, d)) * draw(st.sampled_from(NUMBERS))
    elif kind == "pool":
        X = rng.choice(pool, (n, d))
    elif kind == "integers":
        X = rng.integers(-3, 4, (n, d)).astype(float)
    else:
        X = rng.standard_normal((n, d))
        X[: n // 2] = draw(st.sampled_from(pool))
    return X


def lying(X):
    """CSR with unsorted indices that says it is canonical, and with stored zeros."""
    n, d = X.shape
    indices = np.tile(np.arange(d)[::-1], n)
    S = sp.csr_array((X[:, ::-1].ravel(), indices, d * np.arange(n + 1)), shape=(n, d))
    S.has_canonical_format = True
    return S


def frozen(X):
    X = X.copy()
    X.flags.writeable = False
    return X


FORMS = [
    lambda X: X, lambda X: X.astype(np.float32), np.asfortranarray, frozen, lambda X: X[:, ::-1],
    lambda X: np.nan_to_num(X, posinf=9, neginf=-9).clip(-9, 9).astype(np.int8), lambda X: X > 0,
    lambda X: X.astype(object), lambda X: X.astype(complex), lambda X: X.astype(str),
    lambda X: X.astype(np.longdouble), lambda X: X.tolist(),
    lambda X: X[0] if len(X) else X.ravel(), lambda X: X[None], lambda X: pd.DataFrame(X),
    lambda X: pd.DataFrame(X, columns=[f"c{i}" for i in range(X.shape[1])]),
    lambda X: np.ma.masked_invalid(X), sp.csr_array, sp.csc_matrix, sp.coo_matrix,
    lambda X: sp.csr_matrix(X).astype(np.float32), sp.lil_array, STORED["duplicates"], lying,
    lambda X: None, lambda X: "rows", lambda X: 3.0, lambda X: [[1.0], [1.0, 2.0]],
    lambda X: {"a": 1}, lambda X: object(), lambda X: np.array([[1.0, None]], object),
    lambda X: np.array([["a", "b"]]),
]  # fmt: skip
PLAIN = FORMS[:5] + FORMS[17:18] + FORMS[22:24]


@st.composite
def cases(draw, estimator):
    """Draw (parameters, X, assume_finite): half of them with sane parameters, half with sane X."""
    names = sorted(set(estimator.get_params(deep=False)) - {"n_jobs"})
    params = {}
    count = draw(st.sampled_from([0, 0, 1, 1, 2]))
    for name in draw(st.lists(st.sampled_from(names), min_size=count, max_size=count)):
        params[name] = draw(st.sampled_from([*NUMBERS, *BAD, *STRANGE]))
    form = draw(st.sampled_from(FORMS if draw(st.integers(0, 2)) == 0 else PLAIN))
    X = draw(arrays(square=get_tags(estimator).input_tags.pairwise))
    with warnings.catch_warnings(action="ignore"):
        return params, form(X), draw(st.booleans())


def is_finite(value):
    if isinstance(value, np.ndarray) and value.dtype.kind in "fc":
        return bool(np.all(np.isfinite(value)))
    return not isinstance(value, float) or math.isfinite(value)


@contextlib.contextmanager
def quiet():
    """Our own warnings are allowed, scikit-learn's on strange names too; numpy's are errors."""
    with warnings.catch_warnings(action="error"):
        for kind in (FutureWarning, UserWarning, DeprecationWarning):
            warnings.simplefilter("ignore", kind)
        yield


def use_everything(fitted, X):
    """Call every method on X: errors are ValueError or TypeError."""
    for name in LATER:
        method = getattr(fitted, name, None)
        takes_data = name in ("transform", "inverse_transform", "score", "score_samples", "predict")
        if method is None:
            continue
        allowed = (ValueError, TypeError, PrivacyError)  # public_copy() of a seeded fit
        with contextlib.suppress(*allowed), np.errstate(all="ignore"):
            method(X) if takes_data else method()


def target_for(estimator, X):
    """A target with ordinary and hostile values, where one is needed."""
    if not get_tags(estimator).target_tags.required:
        return None
    n = (*(X.shape if hasattr(X, "shape") else np.shape(X)), 1)[0]
    return np.arange(n) % 2 if is_classifier(estimator) else np.resize(NUMBERS, n)


def try_case(estimator, case):
    """Fit; return what became of it. Anything but the two allowed ends raises."""
    params, X, assume_finite = case
    subject = clone(estimator)
    with quiet(), config_context(assume_finite=assume_finite), seeded_entropy(0):
        subject.set_params(**params)
        state = fitted_attributes(subject)
        with record_transcript() as transcript:
            try:
                subject.fit(X, target_for(estimator, X))
            except (ValueError, TypeError, PrivacyError) as error:
                message = str(error)
                assert difference(state, fitted_attributes(subject)) is None
                assert not hasattr(subject, "privacy_spent_")
                assert not len(transcript), "refused after a release"
                assert message, "an error must say what is wrong"
                return "refused"
        check_result(subject, transcript)
        use_everything(subject, X)
    return "fitted"


def check_result(fitted, transcript):
    spent = fitted.privacy_spent_
    assert spent.epsilon <= fitted.epsilon and spent.delta <= max(fitted.delta, 0)
    read = [line for line in fitted.releases_ if line.mechanism != "charged, nothing released"]
    assert len(transcript) == len(read) and not transcript.faults
    assert np.shape(fitted.n_features_in_) == ()
    if fitted.epsilon == math.inf:
        return
    for name, value in fitted_attributes(fitted).items():
        # Bounds of a column that users show no scale of are infinite, both of them.
        if name == "feature_bounds_" and hasattr(fitted, "feature_scale_"):
            value = value[:, ~np.all(value == np.array([[-math.inf], [math.inf]]), axis=0)]
        # Predictions that nothing was compared with are not cut.
        unseen = name == "prediction_bounds_" and not fitted.fit_intercept
        assert is_finite(value) or unseen, f"{name} = {value}"


def run(estimator, count, seconds):
    outcomes, stop = Counter(), time.monotonic() + seconds

    @settings(
        max_examples=count, deadline=None, database=None, derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=cases(estimator))
    def attack(case):
        if time.monotonic() < stop:
            outcomes[try_case(estimator, case)] += 1

    attack()
    return outcomes


# Part of the ten thousand inputs that is tried: .ci/run takes a fifth of them, to stay bounded.
SHARE = float(os.environ.get("SKDP_FUZZ_SHARE", "1"))


@pytest.mark.deep
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
def test_fit_survives(estimator):
    outcomes = run(estimator, 250, 60)
    assert outcomes["fitted"] > 20 and outcomes["refused"] > 20, outcomes


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
def test_fit_survives_ten_thousand(estimator):
    alike = sum(type(other) is type(estimator) for other in ESTIMATORS)  # they share the inputs
    wanted = SHARE * 10_000 / alike
    outcomes = run(estimator, int(1.02 * wanted), 60 * MINUTES)
    print(f"\n{estimator!r}: {dict(outcomes)}")
    assert sum(outcomes.values()) >= wanted, f"too slow: {outcomes}"
    assert min(outcomes["fitted"], outcomes["refused"]) > 0.08 * wanted


# -- budgets and accounting ------------------------------------------------------------------------

anything = st.sampled_from([*NUMBERS[:-1], *BAD, *STRANGE]) | st.floats(-1e300, 1e300)


@pytest.mark.thorough
@given(epsilon=anything, delta=anything, pure=anything)
@settings(max_examples=300)
def test_budget_survives(epsilon, delta, pure):
    for part in (0.0, pure):
        try:
            budget = PrivacyBudget(epsilon, delta, part)
        except (ValueError, TypeError):
            continue
        assert budget.epsilon > 0 and 0 <= budget.delta < 1
        assert budget.mu >= 0 and budget.sampler_delta <= budget.delta / 2


def test_losses_beyond_floats():
    assert accounting.delta_from_losses([("range", 1.7e308)], 0.0) == 1.0
