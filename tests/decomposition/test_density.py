"""Densities and ellipses from released numbers."""

import numpy as np

from skdp.decomposition._score_density import _FEWEST, cells_per_side, class_shapes, smoothed
from skdp.plotting._released import mass_level
from skdp.queries.plane import COUNT, SQUARE, Frame

UNIT = Frame(np.zeros(2), np.ones(2))


def sums_of(places):
    x, y = places.T
    squares = [SQUARE * (x @ x), SQUARE * (y @ y), 2 * (x @ y)]
    return np.array([COUNT * len(places), x.sum(), y.sum(), *squares])


def test_noise_alone_looks_empty():
    """Of 200 pictures of nothing, few have any cell: the edge is that of the largest cell."""
    rng = np.random.default_rng(0)
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


def test_exact_moments_give_exact_shapes():
    rng = np.random.default_rng(0)
    groups = [rng.uniform(-0.5, 0.3, (50, 2)) @ np.diag([1.0, 0.5]), rng.uniform(-0.1, 0.6, (9, 2))]
    frame = Frame(np.array([5.0, -1.0]), np.array([2.0, 10.0]))
    shapes = class_shapes(np.concatenate([sums_of(g) for g in groups]), 0.0, frame)
    for i, places in enumerate(groups):
        rows = frame.center + frame.half * places
        np.testing.assert_allclose(shapes["means_"][i], rows.mean(axis=0))
        np.testing.assert_allclose(shapes["covariances_"][i], np.cov(rows.T, bias=True), rtol=1e-9)
    np.testing.assert_allclose(shapes["class_counts_"], [50, 9])


def test_noisy_covariances_are_those_that_classes_share():
    """With noise as large as the covariances, all classes get their mean; and none is thin."""
    rng = np.random.default_rng(0)
    groups = [c + 0.1 * rng.standard_normal((150, 2)) for c in rng.uniform(-0.5, 0.5, (10, 2))]
    sums = np.concatenate([sums_of(g) for g in groups])
    noisy = class_shapes(sums + 6.0 * rng.standard_normal(sums.size), 6.0, UNIT)
    raw = class_shapes(sums, 0.0, UNIT)
    assert noisy["seen_"].all()
    assert np.linalg.norm(noisy["covariances_"] - raw["covariances_"], axis=(1, 2)).max() < 0.09
    assert np.ptp(noisy["covariances_"], axis=0).max() < 1e-12
    assert np.linalg.eigvalsh(noisy["covariances_"]).min() > 0


def test_noise_does_not_make_classes_thin():
    """Where a variance is below its noise, a class is drawn about as wide as that may be."""
    rng = np.random.default_rng(0)
    groups = [c + 0.25 * rng.standard_normal((180, 2)) for c in rng.uniform(-0.4, 0.4, (10, 2))]
    sums = np.concatenate([sums_of(g) for g in groups])
    areas = []
    for _ in range(100):
        noisy = sums + 18.0 * rng.standard_normal(sums.size)
        shapes = class_shapes(noisy, 18.0, UNIT)
        areas.append(np.median(np.sqrt(np.linalg.det(shapes["covariances_"]))) / 0.25**2)
    assert 0.4 < min(areas) < max(areas) < 4


def test_small_classes_are_not_seen():
    shapes = class_shapes(np.zeros(6), 3.0, UNIT)
    assert not shapes["seen_"].any()
    assert np.isfinite(shapes["covariances_"]).all()


def test_level_holds_its_share():
    density = np.arange(1.0, 101.0).reshape(10, 10)
    level = mass_level(density, 0.5)
    assert density[density >= level].sum() >= 0.5 * density.sum() > density[density > level].sum()
    assert mass_level(np.zeros((3, 3)), 0.5) == np.inf
