"""Displays of streams, factorizers, read-outs and scalers."""

import math

import numpy as np
import pytest

from skdp import DPIncrementalPCA, DPLowRankFactorizer, DPRidge, DPRidgeClassifier
from skdp.decomposition import _incremental_pca
from skdp.plotting import BudgetDisplay, PlanDisplay, SpectrumDisplay
from skdp.preprocessing import DPStandardScaler
from skdp.solvers.linalg import symmetric_noise_edge
from skdp.solvers.postprocess import debias_eigenvalues
from skdp.testing import seeded_entropy

ZEROS = np.zeros((60, 40))


@pytest.mark.filterwarnings("ignore:.*may be noise alone:skdp.exceptions.PrivacyWarning")
@pytest.mark.thorough
@pytest.mark.parametrize("mechanism", ["sqrt", "tree"])
@pytest.mark.parametrize("n_releases", [1, 16])
def test_the_edge_of_a_stream_is_where_its_noise_ends(n_releases, mechanism, monkeypatch):
    """Rows of zeros: the released spectrum is noise, of the last release and not of a line."""
    options = {"clip_norm": 1.0, "center": "none", "mechanism": mechanism}
    released, decoded = [], _incremental_pca.decoded

    def remember(*args):
        released.append(decoded(*args))
        return released[-1]

    monkeypatch.setattr(_incremental_pca, "decoded", remember)
    model = DPIncrementalPCA(5, max_releases=n_releases, **options)
    with seeded_entropy(0):
        for _ in range(n_releases):
            model.partial_fit(ZEROS)
    answer = released[-1]["gram"]
    edge = symmetric_noise_edge(answer.noise_scale, len(answer.value))
    least = debias_eigenvalues(np.array([edge]), edge)[0]
    shown = SpectrumDisplay.from_estimator(model)
    assert least < shown.noise_edge < 1.7 * least
    assert shown.n_above_noise == 0


@pytest.mark.filterwarnings("ignore:.*stand above the noise:skdp.exceptions.PrivacyWarning")
@pytest.mark.deep
@pytest.mark.parametrize(
    "params",
    [
        {"method": "dense"},
        {"method": "two_sketch"},
        {"method": "three_sketch"},
        {"method": "two_sketch", "matrix_shape": (60, 40), "max_releases": 6, "oblivious": True},
    ],
)
def test_the_edge_of_a_factorizer_separates_signal_from_noise(params, canvas, tmp_path):
    rng = np.random.default_rng(0)
    U, V = (np.linalg.qr(rng.standard_normal((side, 2)))[0] for side in ZEROS.shape)

    def edge_and_values(A):
        with seeded_entropy(1):
            model = DPLowRankFactorizer(3, **params)
            if model.max_releases > 1:
                model.update_matrix(A)
                for _ in range(6):
                    model.release()
            else:
                model.fit(A)
        display = SpectrumDisplay.from_estimator(model)
        display.figure_.savefig(tmp_path / "picture.png", dpi=40)
        shares = BudgetDisplay.from_estimator(model).shares
        assert all(math.isclose(sum(parts.values()), 1.0) for parts in shares.values())
        return display.noise_edge, display.values

    edge, values = edge_and_values(ZEROS)
    assert edge > 0 and values[0] < 1.2 * edge
    edge, values = edge_and_values(3 * edge * U @ V.T)
    assert values[1] > 2 * edge > values[2]


@pytest.mark.deep
@pytest.mark.parametrize(
    ("estimator", "options"),
    [
        (DPIncrementalPCA(2, clip_norm=1.0, max_releases=12), {}),
        (DPRidge(clip_norm=1.0), {"n_targets": 2}),
        (DPRidgeClassifier(), {}),
        (DPStandardScaler(), {}),
    ],
)
def test_plans_fall_with_the_number_of_samples(estimator, options, tmp_path):
    display = PlanDisplay.from_estimator(estimator, 20, **options)
    assert display.needed_[3.0] < display.needed_[1.0] < display.needed_[0.3] < 1e6
    assert np.all(np.diff(display.errors[1.0]) < 1e-12)
    display.figure_.savefig(tmp_path / "picture.png", dpi=40)


@pytest.mark.deep
def test_plan_of_a_factorizer_needs_a_signal():
    sizes = [50, 500, 5000]
    model = DPLowRankFactorizer(2, method="two_sketch")
    display = PlanDisplay.from_estimator(model, 40, n_samples=sizes, signal=1e3)
    assert np.all(np.diff(display.errors[1.0]) > 0)  # a taller matrix has more noise
    with pytest.raises(ValueError, match="pass 'signal'"):
        PlanDisplay.from_estimator(model, 40, n_samples=sizes)


@pytest.mark.deep
def test_budget_of_read_outs_and_scalers():
    X = np.random.default_rng(0).standard_normal((300, 4))
    ridge, scaler = DPRidge(epsilon=9.0).fit(X, X[:, 0]), DPStandardScaler(epsilon=9.0).fit(X)
    for model, last in ((ridge, "readout"), (scaler, "moments")):
        (parts,) = BudgetDisplay.from_estimator(model).shares.values()
        assert math.isclose(sum(parts.values()), 1.0)
        assert {"count", "column_ranks", last} <= set(parts)
