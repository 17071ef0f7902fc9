"""scikit-learn's own tests of TruncatedSVD and PCA, on our classes without noise and clipping.

The functions below are scikit-learn's, collected here under a prefix; a fixture puts our class in
the place of theirs. What cannot hold is listed with its reason. Functions that a version of
scikit-learn does not have are not missed.
"""

import functools
import math

import numpy as np
import pytest

from skdp import DPPCA, DPTruncatedSVD

MODULES = {
    "svd": pytest.importorskip("sklearn.decomposition.tests.test_truncated_svd"),
    "pca": pytest.importorskip("sklearn.decomposition.tests.test_pca"),
}
EXACT = {"epsilon": math.inf, "clip_norm": math.inf}
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*no noise|.*random_state:skdp.exceptions.PrivacyWarning"
)


class TruncatedSVD(DPTruncatedSVD):
    """Under scikit-learn's name, which is in the names of the output columns."""

    @functools.wraps(DPTruncatedSVD.__init__)
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **(EXACT | kwargs))


class PCA(DPPCA):
    """Under scikit-learn's name, which is in the names of the output columns."""

    @functools.wraps(DPPCA.__init__)
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **(EXACT | kwargs))


# Not run at all: they test something else than the class.
NOT_OURS = {
    "test_pca_array_api_compliance": "the array API tag is off",
    "test_pca_mle_array_api_compliance": "the array API tag is off",
    "test_array_api_error_and_warnings_on_unsupported_params": "the array API tag is off",
    "test_assess_dimension_bad_rank": "tests a private function of scikit-learn",
    "test_small_eigenvalues_mle": "tests a private function of scikit-learn",
    "test_assess_dimension_rank_one": "tests a private function of scikit-learn",
    "test_pca_svd_solver_auto": "reads the private attribute _fit_svd_solver",
    "test_sparse_pca_solver_error": "sparse rows are accepted by every solver here",
    "test_n_components_mle_error": "'mle' is decided on released values: every solver has it",
}


# Run but for some parameters: name -> (which ones, reason).
NOT_THESE = {
    "test_too_many_components": (
        lambda p: p["algorithm"] == "arpack" and p["n_components"] == 55,
        "arpack's limit: it cannot find all components, the moment can",
    ),
    "test_fit_transform": (
        lambda p: p.get("normalizer") in ("LU", "none"),
        "normalisers without a bounded sensitivity are refused by name",
    ),
    "test_n_components_none": (
        lambda p: p["solver"] == "arpack",
        "arpack's limit: it cannot find all components, the moment can",
    ),
    "test_pca_validation": (
        lambda p: p["svd_solver"] in ("arpack", "auto"),
        "the limit of arpack, and the name of the solver that their 'auto' takes",
    ),
}


def collect():
    """Put scikit-learn's test functions into this module: the first tier has the first ways."""
    for prefix, module in MODULES.items():
        for name, value in vars(module).items():
            if name.startswith("test_") and name not in NOT_OURS:
                test = f"test_{prefix}_{name.removeprefix('test_')}"
                globals()[test] = pytest.mark.thorough(value)


collect()
X_sparse = MODULES["svd"].X_sparse


@pytest.fixture
def global_random_seed():
    return 42


@pytest.fixture(params=[np.float64, np.float32], ids=["float64", "float32"])
def global_dtype(request):
    return request.param


@pytest.fixture(autouse=True)
def our_class_in_their_module(request, monkeypatch):
    for module in MODULES.values():
        for ours in (TruncatedSVD, PCA):
            if hasattr(module, ours.__name__):
                monkeypatch.setattr(module, ours.__name__, ours)
    name = getattr(request.function, "__name__", "")
    if name in NOT_THESE and hasattr(request.node, "callspec"):
        applies, reason = NOT_THESE[name]
        if applies(request.node.callspec.params):
            pytest.skip(reason)


def test_the_classes_are_replaced():
    assert MODULES["svd"].TruncatedSVD is TruncatedSVD
    assert MODULES["pca"].PCA is PCA


def test_most_of_their_tests_run():
    """A moved or renamed module must not turn this file into nothing."""
    adopted = [name for name in globals() if name.startswith(("test_svd_", "test_pca_"))]
    assert len(adopted) >= 35
    known = {name for module in MODULES.values() for name in vars(module)}
    assert set(NOT_THESE) <= known
