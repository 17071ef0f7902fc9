"""A picture of private rows: what it releases, chooses and says."""

import numpy as np
import pytest

from skdp import DPPCA, DPScoreDensity
from skdp.exceptions import PrivacyWarning
from skdp.testing import seeded_entropy
from tools.outcomes import assert_refused

LIMITS = ((-4.0, 4.0), (-3.0, 3.0))


@pytest.fixture(autouse=True)
def fixed():
    with seeded_entropy(0):
        yield


def rows(n=3000, d=4, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


def test_the_plane_is_that_of_a_model():
    X = rows() @ np.diag([5.0, 3.0, 0.1, 0.1])
    pca = DPPCA(3, epsilon=4.0, clip_norm=20.0).fit(X)
    picture = DPScoreDensity.from_model(pca, (1, 0), epsilon=4.0).fit(X)
    np.testing.assert_array_equal(picture.axes_, pca.components_[[1, 0]])
    np.testing.assert_allclose(picture.limits_, [[-9, 9], [-15, 15]], atol=2.5)
    for bad in ((0,), (0, 3), (0, 1, 2), (-1, 0)):
        with pytest.raises(ValueError, match="'components' must be two of the 3"):
            DPScoreDensity.from_model(pca, bad)


@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_cells_are_those_of_the_rows(adjacency):
    X = rows(20000)
    picture = DPScoreDensity(limits=LIMITS, n_bins=8, adjacency=adjacency, kind="density").fit(X)
    exact = np.histogram2d(*X[:, :2].T, bins=8, range=LIMITS)[0]
    assert np.abs(picture.counts_[0] - exact).max() < 6 * picture.noise_scale_
    assert abs(picture.outside_ - (20000 - exact.sum())) < 6 * picture.noise_scale_
    assert picture.n_features_in_ == 4
    assert [line.name for line in picture.ledger_] == ["cells"]


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
    assert picture.seen_.all()
    if kind == "ellipse":
        np.testing.assert_allclose(picture.means_, [[0, 0], [2, 2]], atol=2.0)
    else:
        assert picture.density_.shape[0] == 2


def test_a_finer_picture_for_more_rows_and_budget():
    sides = [
        len(DPScoreDensity(limits=LIMITS, kind="density", epsilon=epsilon).fit(rows(n)).counts_[0])
        for n, epsilon in ((1000, 1.0), (4000, 1.0), (4000, 4.0))
    ]
    assert sides[0] < sides[1] < sides[2]


def test_other_labels_are_left_out():
    X, y = rows(3000), np.array(["a", "b", "c"] * 1000)
    params = {"kind": "ellipse", "limits": LIMITS, "epsilon": 5.0}
    picture = DPScoreDensity(classes=["a", "b"], **params).fit(X, y)
    np.testing.assert_allclose(picture.class_counts_, [1000, 1000], atol=60)
    with pytest.raises(ValueError, match="requires y"):
        DPScoreDensity(classes=["a", "b"], **params).fit(X)
    assert not hasattr(DPScoreDensity(**params).fit(X, y), "classes_")  # y plays no part


def test_without_noise_it_is_the_exact_picture():
    X = rows(500)
    with pytest.warns(PrivacyWarning, match="not private"):
        picture = DPScoreDensity(kind="ellipse", epsilon=np.inf).fit(X)
    np.testing.assert_allclose(picture.limits_.mean(axis=1), X[:, :2].mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(picture.class_counts_, [500])


def test_it_says_when_there_is_nothing_to_see():
    with pytest.warns(PrivacyWarning, match="shows nothing"):
        DPScoreDensity(limits=LIMITS, epsilon=0.01).fit(rows(100))
    with pytest.warns(PrivacyWarning, match=r"of the rows lie outside the limits"):
        DPScoreDensity(limits=((-0.3, 0.3), (-9.0, 9.0)), kind="density").fit(rows())


NO_PLANE = r"two directions and 'center' a point of 4 feature\(s\)"


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"kind": "dots"}, "'kind' parameter"),
        ({"limits": ((1.0, 1.0), (0.0, 1.0))}, "'limits' parameter"),
        ({"limits": "wide"}, "'limits' parameter"),
        ({"n_bins": 1}, "'n_bins' parameter"),
        ({"n_bins": 5000}, "'n_bins' must be at most"),
        ({"delta": 0.0}, "no pure differential privacy"),
        ({"classes": ["a", 1]}, "'classes' parameter"),
        ({"axes": np.eye(2, 3)}, NO_PLANE),
        ({"axes": np.zeros((2, 4))}, NO_PLANE),
        ({"center": np.zeros(3)}, NO_PLANE),
    ],
)
def test_bad_parameters_cost_nothing(params, match):
    assert_refused(DPScoreDensity(**params), match, rows(50))
