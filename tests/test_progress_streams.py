"""Callbacks on streams, factorizers, read-outs and scalers, scikit-learn's bar among them."""

import numpy as np
import pytest

from skdp import DPIncrementalPCA, DPLowRankFactorizer, DPRidge, DPRidgeClassifier, PrintProgress
from skdp.preprocessing import DPStandardScaler

# Tiny fits show little; whether a fit says so is tested where the estimators are.
pytestmark = pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")

pytest.importorskip("sklearn.callback")
RNG = np.random.default_rng(0)
X = RNG.standard_normal((200, 5))
Y, LABELS = X[:, 0], np.arange(200) % 2
FITS = {
    "pca": (DPIncrementalPCA(2), (X,)),
    "dense": (DPLowRankFactorizer(2), (X,)),
    "sketches": (DPLowRankFactorizer(2, method="two_sketch"), (X,)),
    "ridge": (DPRidge(), (X, Y)),
    "classes": (DPRidgeClassifier(classes=[0, 1]), (X, LABELS)),
    "scaler": (DPStandardScaler(), (X,)),
}


@pytest.mark.parametrize("name", FITS)
def test_progress_bar_of_scikit_learn(name):
    callback = pytest.importorskip("sklearn.callback")
    pytest.importorskip("rich")
    estimator, data = FITS[name]
    estimator.set_callbacks(callback.ProgressBar()).fit(*data)
    assert estimator.releases_
    estimator.set_callbacks()


@pytest.mark.thorough
@pytest.mark.parametrize("name", FITS)
def test_every_release_is_printed(name, capsys):
    estimator, data = FITS[name]
    estimator.set_callbacks(PrintProgress(verbose=2)).fit(*data)
    text = capsys.readouterr().out + capsys.readouterr().err
    assert all(line.name in text for line in estimator.releases_)
    estimator.set_callbacks()


def test_a_stream_of_many_releases_works_with_a_callback():
    model = DPIncrementalPCA(2, clip_norm=1.0, max_releases=3).set_callbacks(PrintProgress())
    for part in np.array_split(X, 3):
        model.partial_fit(part)
    assert model.n_stream_releases_ == 3
    factorizer = DPLowRankFactorizer(
        2, privacy_unit="entry", sketch="sparse", matrix_shape=X.shape, max_releases=2
    ).set_callbacks(PrintProgress())
    for _ in range(2):
        factorizer.update_matrix(X / 2).release()
    assert factorizer.n_stream_releases_ == 2
