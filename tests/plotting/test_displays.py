"""Displays, by the artists that they draw."""

from functools import cache

import numpy as np
import pytest
from sklearn.base import clone

import skdp
from skdp.datasets import make_block_graph, make_spiked_rows, make_trace_regression, make_user_tasks
from skdp.decomposition import _incremental_pca
from skdp.plotting import SpectrumDisplay
from skdp.plotting._released import COLORS, noise_edge, released_values
from skdp.preprocessing import DPStandardScaler
from skdp.solvers.linalg import symmetric_noise_edge
from skdp.testing import seeded_entropy

matplotlib = pytest.importorskip("matplotlib")
pytestmark = pytest.mark.deep
X = make_spiked_rows(800, 10, 2, 0.6, random_state=0)


def users(estimator):
    X, y, groups = make_user_tasks(500, 6, random_state=0)
    return estimator.fit(X, y, groups=groups)


def graph(estimator):
    return estimator.fit(make_block_graph(60, 2, 10.0, 20.0, random_state=0)[0])


def trace(estimator):
    return estimator.fit(*make_trace_regression(2000, (4, 3), 1, random_state=0))


MODELS = {
    "pca": lambda: skdp.DPPCA(2, clip_norm=1.5).fit(X),
    "pca all": lambda: skdp.DPPCA(clip_norm=1.5).fit(X),
    "power": lambda: skdp.DPTruncatedSVD(2, algorithm="power").fit(X),
    "screened": lambda: skdp.DPTruncatedSVD(2, algorithm="screened").fit(X),
    "entry": lambda: skdp.DPTruncatedSVD(
        2, epsilon=2.0, privacy_unit="entry", algorithm="gram"
    ).fit(X),
    "pure": lambda: skdp.DPTruncatedSVD(1, privacy_unit="entry", delta=0.0).fit(X),
    "graph": lambda: graph(skdp.DPSpectralEmbedding(2, epsilon=8.0)),
    "trace": lambda: trace(skdp.DPTraceRegressor(1)),
    "users": lambda: users(skdp.DPPersonalizedRegressor(2, epsilon=4.0)),
}
NAMES = list(MODELS)


@cache
def model(name):
    with seeded_entropy(0):  # the same in whichever test comes first
        return MODELS[name]()


@pytest.mark.parametrize("name", NAMES)
def test_spectrum(name, canvas, tmp_path):
    estimator = model(name)
    display = SpectrumDisplay.from_estimator(estimator)
    offsets = display.kept_.get_offsets()
    kept = display.n_kept
    assert np.allclose(offsets[:, 1], display.values[:kept])
    assert np.array_equal(offsets[:, 0], np.arange(1, kept + 1))
    assert (display.left_out_ is not None) == (name == "users")
    if display.left_out_ is not None:
        assert len(display.left_out_.get_offsets()) == len(display.values) - kept == 4
        assert np.allclose(display.left_out_.get_facecolor(), 1)  # white
    assert name != "entry" or np.allclose(display.values, estimator.singular_values_**2)
    if name == "pca all":
        assert 2 <= display.n_above_noise < 10
        assert f"{display.n_above_noise} of 10 above the noise" in display.ax_.get_title()
    if display.noise_edge:
        extent = display.band_.get_extents().transformed(display.ax_.transData.inverted())
        assert extent.y1 == pytest.approx(display.noise_edge)
    assert display.ax_.get_ylabel() and type(estimator).__name__ in display.ax_.get_title()
    display.figure_.savefig(tmp_path / "picture.png", dpi=40)
    assert canvas.imread(tmp_path / "picture.png").std() > 0.05


NOISE = {
    "whole": (skdp.DPPCA(clip_norm=1.0), np.zeros((200, 20))),
    "learnt": (skdp.DPPCA(), np.zeros((200, 20))),
    "few": (skdp.DPPCA(3, clip_norm=1.0), np.zeros((200, 20))),
    "power": (skdp.DPPCA(3, clip_norm=1.0, svd_solver="power"), np.zeros((200, 20))),
    "not centred": (skdp.DPTruncatedSVD(3, clip_norm=1.0), np.zeros((200, 20))),
    "batches": (skdp.DPIncrementalPCA(3, clip_norm=1.0), np.zeros((200, 20))),
    "alike": (skdp.DPPCA(clip_norm=1.0), np.random.default_rng(0).standard_normal((300, 20)) / 5),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", NOISE)
def test_pure_noise_has_no_component(name):
    """In 95 of 100 fits (99 are meant; 300 tell). The edge is not much wider than it must be."""
    estimator, rows = NOISE[name]
    displays = []
    with seeded_entropy(0):
        for _ in range(300):
            fitted = clone(estimator).fit(rows)
            values = released_values(fitted)[0]
            displays.append(SpectrumDisplay(values, noise_edge=noise_edge(fitted, len(values))))
    assert np.mean([display.n_above_noise == 0 for display in displays]) >= 0.95
    if name == "alike":  # the others report values of 0 where they learnt nothing
        assert max(d.values.max() / d.noise_edge for d in displays) > 0.6


@pytest.mark.parametrize("shift", [0.5, 300.0])
def test_the_edge_has_the_noise_of_the_last_mean(shift):
    """Means before it, of rows far from 0, have more noise: nothing would come above theirs."""
    rows = np.random.default_rng(0).standard_normal((2000, 5)) * [4.0, 3.0, 1.0, 1.0, 1.0]
    fitted = skdp.DPPCA(epsilon=3.0).fit(rows + shift)
    edge = noise_edge(fitted, 5)
    scales = [line.noise_scale for line in fitted.releases_ if line.name == "gram"]
    assert symmetric_noise_edge(scales[0], 5) / 2 < edge < 4 * symmetric_noise_edge(scales[0], 5)
    assert SpectrumDisplay.from_estimator(fitted).n_above_noise == 5


def test_spectrum_of_values_on_given_axes(canvas):
    ax = canvas.figure().add_subplot()
    display = SpectrumDisplay([5.0, -2.0], noise_edge=3.0, n_kept=1).plot(ax)
    assert display.ax_ is ax and display.figure_ is ax.figure
    assert display.left_out_.get_offsets()[0, 1] == -2.0
    assert ax.get_ylim()[0] < -2
    assert SpectrumDisplay([2.0, 1.0]).n_above_noise is None
    assert SpectrumDisplay([3.0, -4.0, 1.0], noise_edge=2.0).n_above_noise == 2


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_what_released_no_spectrum_cannot_be_drawn():
    with pytest.raises(ValueError, match="released no spectrum"):
        SpectrumDisplay.from_estimator(DPStandardScaler(bounds=(-9, 9)).fit(X))


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"skdp\[plot\]"):
        SpectrumDisplay([1.0]).plot()


def test_colours_differ_in_lightness():
    """Neighbouring colours can be told apart in grey, by at least a little."""
    rgb = np.array([matplotlib.colors.to_rgb(color) for color in COLORS[:6]])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    assert np.abs(np.diff(linear @ [0.2126, 0.7152, 0.0722])).min() > 0.02


# -- streams and factorizers -----------------------------------------------------------------------

ZEROS = np.zeros((60, 40))


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
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
    model = skdp.DPIncrementalPCA(5, max_releases=n_releases, **options)
    with seeded_entropy(0):
        for _ in range(n_releases):
            model.partial_fit(ZEROS)
    answer = released[-1]["gram"]
    edge = symmetric_noise_edge(answer.noise_scale, len(answer.value))
    shown = SpectrumDisplay.from_estimator(model)
    assert 0.3 * edge < shown.noise_edge < edge
    assert shown.n_above_noise == 0


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
@pytest.mark.parametrize("n_releases", [0, 6])
@pytest.mark.parametrize("method", ["dense", "two_sketch", "three_sketch"])
def test_what_a_factorizer_found_is_above_the_noise(method, n_releases, rng):
    """A mean is found where singular vectors of its length would not be, and is counted."""
    U, V = (np.linalg.qr(rng.standard_normal((side, 2)))[0] for side in ZEROS.shape)
    stream = {"matrix_shape": ZEROS.shape, "max_releases": 6, "sensitivity_mode": "oblivious"}

    def shown(A):
        model = skdp.DPLowRankFactorizer(3, method=method, **stream if n_releases else {})
        with seeded_entropy(1):
            model = model.update_matrix(A) if n_releases else model.fit(A)
            for _ in range(n_releases):
                model.release()
        return SpectrumDisplay.from_estimator(model).n_above_noise

    assert shown(ZEROS) == 0
    assert shown(ZEROS + 1) == 1
    assert shown(500 * U @ V.T) == 2
