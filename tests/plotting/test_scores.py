"""The score plot shows what was released, and no row."""

import numpy as np
import pytest

from skdp import DPScoreDensity
from skdp.exceptions import PrivacyWarning
from skdp.plotting import ScoreDisplay

pytestmark = pytest.mark.deep
LIMITS = ((-4.0, 6.0), (-4.0, 6.0))


def fitted(n=6000, classes=(0, 1), **params):
    rng = np.random.default_rng(0)
    y = np.arange(n) % 2
    X = rng.standard_normal((n, 3)) + 2.0 * y[:, None] * [1, 1, 0]
    return DPScoreDensity(classes=classes, limits=LIMITS, **params).fit(X, y if classes else None)


def test_density_with_a_contour_for_each_class():
    model = fitted(kind="density")
    display = ScoreDisplay.from_estimator(model, feature_names=["a", "b", "c"])
    shown = display.density_.get_array()
    assert np.ma.count_masked(shown) > 0  # cells below the noise are empty
    np.testing.assert_allclose(shown.sum(), model.density_.sum())
    assert len(display.contours_) == 2
    assert [text.get_text() for text in display.arrows_] == ["a", "b"]  # c has no loading
    assert [text.get_text() for text in display.ax_.get_legend().get_texts()] == ["0", "1"]
    title = " ".join(display.ax_.get_title().split())
    assert "epsilon=1, delta=1e-06 for one row; the axes cost more" in title


def test_ellipses_hold_half_and_nine_tenths():
    model = fitted(kind="ellipse")
    display = ScoreDisplay.from_estimator(model)
    assert display.density_ is None
    inner, outer = display.contours_[:2]
    rows = np.random.default_rng(1).multivariate_normal(
        model.means_[0], model.covariances_[0], 4000
    )
    for patch, share in ((inner, 0.5), (outer, 0.9)):
        held = patch.contains_points(patch.axes.transData.transform(rows)).mean()
        assert abs(held - share) < 6 * np.sqrt(share * (1 - share) / 4000)


def test_classes_below_the_noise_are_left_out():
    model = fitted(kind="ellipse", classes=(0, 1, 2), epsilon=0.3)
    display = ScoreDisplay.from_estimator(model)
    assert model.above_noise_.tolist() == [True, True, False]
    assert len(display.contours_) == 4
    assert "1 class(es) below the noise left out" in " ".join(display.ax_.get_title().split())


def test_without_classes_and_on_axes_of_ones_own(canvas):
    _, ax = canvas.subplots()
    display = ScoreDisplay.from_estimator(fitted(classes=None), ax=ax, n_loadings=1)
    assert display.ax_ is ax
    assert len(display.arrows_) == 1
    assert not display.contours_


def test_it_says_when_it_is_not_private():
    with pytest.warns(PrivacyWarning):
        model = fitted(epsilon=np.inf)
    assert ScoreDisplay.from_estimator(model).ax_.get_title() == "not private: epsilon is infinite"
    with pytest.warns(PrivacyWarning):
        model = fitted(random_state=0)
    title = ScoreDisplay.from_estimator(model).ax_.get_title()
    assert "seeded, so not private" in title.replace("\n", " ")
