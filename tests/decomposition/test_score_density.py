"""A picture of private rows: what it releases, chooses and says."""

import numpy as np
import pytest
from sklearn.decomposition import PCA

from skdp import DPPCA, DPScoreDensity, PrivacyLedger
from skdp._limits import COUNT_WEIGHT
from skdp.decomposition._score_density import _FEWEST, cells_per_side, class_shapes, smoothed
from skdp.exceptions import (
    NoSignalWarning,
    PartialSignalWarning,
    PrivacyUnitWarning,
    PrivacyWarning,
    UtilityWarning,
)
from skdp.plotting._released import mass_level
from skdp.queries.plane import SQUARE, Frame
from skdp.testing import fixed_noise, null_release

LIMITS = ((-4.0, 4.0), (-3.0, 3.0))


def rows(n=3000, d=4, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


@pytest.mark.filterwarnings("ignore::skdp.exceptions.PartialSignalWarning")
def test_the_plane_is_that_of_a_model():
    X = rows() @ np.diag([5.0, 3.0, 0.1, 0.1])
    pca = DPPCA(3, epsilon=4.0, clip_norm=20.0).fit(X)
    picture = DPScoreDensity.from_model(pca, (1, 0), epsilon=4.0).fit(X)
    np.testing.assert_array_equal(picture.axes_, pca.components_[[1, 0]])
    np.testing.assert_allclose(picture.limits_, [[-9, 9], [-15, 15]], atol=2.5)
    for bad in ((0,), (0, 3), (0, 1, 2), (-1, 0)):
        with pytest.raises(ValueError, match="'components' must be two of the 3"):
            DPScoreDensity.from_model(pca, bad)
    with pytest.raises(TypeError, match="from_model"):
        DPScoreDensity(pca).fit(X)


@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_cells_are_those_of_the_rows(adjacency):
    X = rows(20000)
    picture = DPScoreDensity(limits=LIMITS, n_bins=8, adjacency=adjacency, kind="density").fit(X)
    exact = np.histogram2d(*X[:, :2].T, bins=8, range=LIMITS)[0]
    assert np.abs(picture.histogram_[0] - exact).max() < 6 * picture.noise_scale_
    assert abs(picture.n_outside_ - (20000 - exact.sum())) < 6 * picture.noise_scale_
    assert picture.n_features_in_ == 4
    assert [line.name for line in picture.releases_] == ["score_histogram"]


def test_learnt_limits_are_three_deviations():
    X = rows(20000) * [2.0, 0.01, 1, 1] + [100.0, -3.0, 0, 0]
    limits = DPScoreDensity(epsilon=3.0).fit(X).limits_
    np.testing.assert_allclose(limits.mean(axis=1), [100.0, -3.0], atol=0.2)
    np.testing.assert_allclose(np.diff(limits, axis=1).ravel(), [12.0, 0.06], rtol=0.15)


@pytest.mark.parametrize(("n", "kind"), [(200, "ellipse"), (30000, "density")])
def test_auto_chooses_by_released_sizes(n, kind):
    y = np.arange(n) % 2
    X = rows(n) + 2.0 * y[:, None]
    picture = DPScoreDensity(classes=[0, 1], limits=((-4.0, 6.0), (-4.0, 6.0))).fit(X, y)
    assert picture.kind_ == kind
    assert picture.above_noise_.all()
    if kind == "ellipse":
        np.testing.assert_allclose(picture.means_, [[0, 0], [2, 2]], atol=2.0)
    else:
        assert picture.density_.shape[0] == 2


def test_other_labels_are_left_out():
    X, y = rows(3000), np.array(["a", "b", "c"] * 1000)
    params = {"kind": "ellipse", "limits": LIMITS, "epsilon": 5.0}
    picture = DPScoreDensity(classes=["a", "b"], **params).fit(X, y)
    np.testing.assert_allclose(picture.class_counts_, [1000, 1000], atol=60)
    with pytest.raises(ValueError, match="requires y"):
        DPScoreDensity(classes=["a", "b"], **params).fit(X)
    ledger = PrivacyLedger(epsilon=5.0, delta=1e-6)
    with pytest.raises(PartialSignalWarning, match="y was given without 'classes'"), ledger:
        DPScoreDensity(**params).fit(X, y)  # an error here: it comes before the budget is spent
    assert ledger.entries == ()
    with pytest.warns(PartialSignalWarning, match="rows are drawn alike"):
        assert not hasattr(DPScoreDensity(**params).fit(X, y), "classes_")


def test_a_plane_of_noise_or_of_groups_warns():
    with pytest.warns(NoSignalWarning):
        pca = DPPCA(2, epsilon=0.01, clip_norm=1.0).fit(rows(200))
    with pytest.warns(NoSignalWarning, match="the axes are noise"):
        DPScoreDensity.from_model(pca)
    pca.explained_variance_ratio_ = np.array([0.5, 0.0])
    DPScoreDensity.from_model(pca)
    pca.privacy_unit = "group"
    with pytest.warns(PrivacyUnitWarning, match="DPPCA protects groups"):
        DPScoreDensity.from_model(pca)
    with pytest.warns(PrivacyWarning, match="PCA has no guarantee: .*DPPCA for private"):
        DPScoreDensity.from_model(PCA(2).fit(rows(200)))


def test_without_noise_it_is_the_exact_picture():
    X = rows(500)
    with pytest.warns(PrivacyWarning, match="not private"):
        picture = DPScoreDensity(kind="ellipse", epsilon=np.inf).fit(X)
    np.testing.assert_allclose(picture.limits_.mean(axis=1), X[:, :2].mean(axis=0), atol=0.01)
    np.testing.assert_allclose(picture.class_counts_, [500])


@pytest.mark.parametrize("epsilon", [1.0, 100.0])
def test_few_far_rows_do_not_widen_the_picture(epsilon):
    X = np.where(np.arange(3000)[:, None] < 30, 1e4, 1.0) * rows()
    assert np.abs(DPScoreDensity(epsilon=epsilon).fit(X).limits_).max() < 5


def test_it_says_when_there_is_nothing_to_see():
    with pytest.warns(UtilityWarning, match="learnt nothing"):
        DPScoreDensity(limits=LIMITS, epsilon=0.01).fit(rows(100))
    with pytest.warns(UtilityWarning, match=r"of the rows: they lie outside"):
        DPScoreDensity(limits=((-0.3, 0.3), (-9.0, 9.0)), kind="density").fit(rows())


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_the_number_of_bins_follows_from_released_sizes_alone():
    picture, sides = DPScoreDensity(limits=LIMITS, kind="density", epsilon=50.0), set()
    for n in (100, 10_000):
        with fixed_noise(0), null_release():
            sides.add(picture.fit(rows(n)).histogram_.shape)
    assert len(sides) == 1


# -- densities and ellipses from released numbers --------------------------------------------------

UNIT = Frame(np.zeros(2), np.ones(2))


def sums_of(places):
    x, y = places.T
    squares = [SQUARE * (x @ x), SQUARE * (y @ y), 2 * (x @ y)]
    return np.array([COUNT_WEIGHT * len(places), x.sum(), y.sum(), *squares])


def test_noise_alone_looks_empty(rng):
    """Of 200 pictures of nothing, few have any cell: the edge is that of the largest cell."""
    shown = [smoothed(5.0 * rng.standard_normal((1, 20, 20)), 5.0).any() for _ in range(200)]
    assert np.mean(shown) < 0.2


def test_a_crowd_is_shown_where_it_is():
    counts = np.zeros((1, 12, 12))
    counts[0, 3:5, 7:9] = 100.0
    density = smoothed(counts, 3.0)[0]
    assert density[3, 7] > 20
    assert density[9, 2] == 0


def test_cells_follow_rows_and_noise():
    assert cells_per_side(100, 5.0) < _FEWEST < cells_per_side(2000, 5.0)
    assert cells_per_side(2000, 5.0) < cells_per_side(2000, 2.0) < cells_per_side(1e9, 2.0)
    assert cells_per_side(-5.0, 5.0) == 0
    assert cells_per_side(10, 0.0) == cells_per_side(1e9, 2.0)


def test_exact_moments_give_exact_shapes(rng):
    groups = [rng.uniform(-0.5, 0.3, (50, 2)) @ np.diag([1.0, 0.5]), rng.uniform(-0.1, 0.6, (9, 2))]
    frame = Frame(np.array([5.0, -1.0]), np.array([2.0, 10.0]))
    shapes = class_shapes(np.concatenate([sums_of(g) for g in groups]), 0.0, frame)
    for i, places in enumerate(groups):
        rows = frame.center + frame.half_width * places
        np.testing.assert_allclose(shapes["means_"][i], rows.mean(axis=0))
        np.testing.assert_allclose(shapes["covariances_"][i], np.cov(rows.T, bias=True), rtol=1e-9)
    np.testing.assert_allclose(shapes["class_counts_"], [50, 9])


def test_noise_does_not_make_classes_thin(rng):
    """Where a variance is below its noise, a class is drawn about as wide as that may be."""
    groups = [c + 0.25 * rng.standard_normal((180, 2)) for c in rng.uniform(-0.4, 0.4, (10, 2))]
    sums = np.concatenate([sums_of(g) for g in groups])
    areas = []
    for _ in range(100):
        shapes = class_shapes(sums + 18.0 * rng.standard_normal(sums.size), 18.0, UNIT)
        areas.append(np.median(np.sqrt(np.linalg.det(shapes["covariances_"]))) / 0.25**2)
    assert 0.4 < min(areas) < max(areas) < 4


def test_level_holds_its_share():
    density = np.arange(1.0, 101.0).reshape(10, 10)
    level = mass_level(density, 0.5)
    assert density[density >= level].sum() >= 0.5 * density.sum() > density[density > level].sum()
