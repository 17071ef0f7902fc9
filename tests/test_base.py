"""What every estimator inherits: atomic fits, and the stamp of a ledger."""

import pickle
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.utils.validation import has_fit_parameter

from skdp import (
    DPPCA,
    DPIncrementalPCA,
    DPRidge,
    DPRidgeClassifier,
    DPStandardScaler,
    DPTruncatedSVD,
    PrivacyLedger,
)
from skdp.base import BaseDPEstimator, atomic
from skdp.model_selection import make_private_scorer
from skdp.papers import PowerMethod
from tools.outcomes import messages_of, refuses

X = np.random.default_rng(0).standard_normal((50, 3))


class TwoFits(BaseDPEstimator):
    """Opens two sessions in one fit, and may fail in between or at the end."""

    def __init__(self, fail=None, epsilon=0.5, delta=1e-6, adjacency="add_remove"):
        self.fail = fail
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.random_state = None

    @atomic
    def fit(self, X, y=None):
        self.first_ = self._open_session()
        DPPCA(1, clip_norm=1.0).fit(X)
        self.second_ = self._open_session()
        if self.fail is not None:
            raise self.fail
        self._close_session(self.first_, {"value_": 1.0})
        return self._close_session(self.second_, {})


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_failed_fit_returns_its_own_charges_only():
    with PrivacyLedger(3, 1e-5) as ledger:
        refuses(KeyError, None, TwoFits(KeyError()).fit, X)
        assert [fit.estimator for fit in ledger.entries] == ["DPPCA"]  # the inner fit was released
        TwoFits().fit(X)
        names = [fit.estimator for fit in ledger.entries]
    assert names == ["DPPCA", "TwoFits", "DPPCA", "TwoFits"]
    assert {fit.state for fit in ledger.entries} == {"fitted"}


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_numbers_of_numpy_neither_overflow_nor_are_replaced():
    numbers = {"n_components": np.uint8(2), "delta": np.float16(1e-6)}
    narrow = {"n_iter": np.int8(65), "calibration": "printed"}
    for model in (PowerMethod(**narrow), DPTruncatedSVD(privacy_unit="entry")):
        model.set_params(**numbers).fit(np.ones((50, 3)))
        assert all(getattr(model, name) is value for name, value in numbers.items())
    assert len(PowerMethod(**narrow).fit(np.ones((50, 3))).releases_) == 65
    for bounds in ((np.float16(0), np.float16(2)), (np.int8(-128), np.int8(0))):
        DPTruncatedSVD(privacy_unit="entry", unit_bound=bounds).fit(np.ones((50, 3)))
        assert make_private_scorer("squared_error", bounds).bounds == tuple(map(float, bounds))
    weights = {0: np.float16(3.0)}
    DPRidgeClassifier(classes=[0, 1], class_weight=weights).fit(np.ones((50, 3)), np.arange(50) % 2)


def test_session_without_an_atomic_fit_stays_charged():
    """Nobody reports that it failed, so its whole budget counts."""
    with PrivacyLedger(3, 1e-5) as ledger:
        TwoFits()._open_session()
    assert [fit.state for fit in ledger.entries] == ["open"]
    assert ledger.spent.mu > 0


def test_a_class_of_main_can_be_pickled_by_value():
    """Notebooks send their classes to workers by value, with whatever the wrapper refers to."""
    cloudpickle = pytest.importorskip("cloudpickle")
    source = "class Own(DPPCA):\n    @atomic\n    def fit(self, X, y=None):\n        return self\n"
    namespace = {"DPPCA": DPPCA, "atomic": atomic, "__name__": "__main__"}
    exec(source, namespace)
    copy = pickle.loads(cloudpickle.dumps(namespace["Own"]()))
    assert copy.fit(None) is copy


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_weights_are_refused_with_the_reason():
    """Nothing is charged; None is what meta-estimators pass for none."""
    with PrivacyLedger(3, 1e-5) as ledger:
        with pytest.raises(TypeError, match="multiplies the sensitivity"):
            DPRidge().fit(X, X[:, 0], sample_weight=np.ones(50))
        assert ledger.entries == ()
    DPRidge(clip_norm=1.0, target_bounds=(-1.0, 1.0)).fit(X, X[:, 0], sample_weight=None)
    assert not has_fit_parameter(DPRidge(), "sample_weight")


MODELS = [DPPCA(1), DPTruncatedSVD(1), DPIncrementalPCA(1), DPStandardScaler(), DPRidge()]


@pytest.mark.parametrize("step", [False, True])
@pytest.mark.parametrize(
    "model", [*MODELS, DPRidgeClassifier(classes=[0, 1])], ids=lambda model: type(model).__name__
)
def test_warnings_point_at_the_line_that_called(model, step):
    """However many wrappers and solvers a fit has below it, and in a pipeline too."""
    model = make_pipeline(clone(model)) if step else clone(model)
    with warnings.catch_warnings(record=True, action="always") as caught:
        model.fit(np.eye(4)[:3], [0, 1, 0])
    assert caught and {one.filename for one in caught} == {__file__}


@pytest.mark.parametrize("weak", [{"epsilon": 2e4}, {"delta": 0.01}], ids=str)
def test_a_seed_is_said_next_to_what_else_is_weak(weak):
    model = DPPCA(1, clip_norm=1.0, random_state=0, **weak)
    assert any("knows 'random_state'" in said for said in messages_of(model.fit, X))
