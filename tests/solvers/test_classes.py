"""Totals and means of classes, and other weights, from released moments."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from skdp.regression._ridge_classifier import label_codes
from skdp.solvers.postprocess import class_moments, readout_moments, reweighted, solve_readout

CORNER, TARGET, CLIP = 0.5, 0.6, 10.0


def released(X, V, noise_scale=0.0, rng=None):
    """The release of rows X and codes V, with symmetric noise if there is any."""
    Z = np.column_stack([X, TARGET * V, np.full(len(X), CORNER)])
    M = Z.T @ Z
    if rng is not None:
        G = noise_scale * rng.standard_normal(M.shape)
        M = M + (G + G.T) / 2
    return readout_moments(
        M, noise_scale, np.full(V.shape[1], 1 / TARGET),
        corner=CORNER, clip_norm=CLIP, target_norm=TARGET,
    )  # fmt: skip


def data(n_classes, n=600, d=4):
    rng = np.random.default_rng(0)
    y = rng.choice(n_classes, n, p=np.arange(1, n_classes + 1) / sum(range(n_classes + 1)))
    return rng.standard_normal((n, d)) + 0.5 * y[:, None] * np.arange(d), y


@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("n_classes", [2, 3, 5])
def test_totals_and_means_are_those_of_the_classes(n_classes, centered):
    X, y = data(n_classes)
    codes, _ = label_codes(n_classes, centered=centered)
    found = class_moments(released(X, codes[y]), codes, CLIP)
    np.testing.assert_allclose(found.totals, np.bincount(y), rtol=1e-9)
    means = [X[y == k].mean(axis=0) for k in range(n_classes)]
    np.testing.assert_allclose(found.means, means, rtol=1e-9, atol=1e-12)
    assert found.shown.all()


@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_weighted_products_are_those_of_weighted_rows(n_classes, centered):
    X, y = data(n_classes)
    codes, _ = label_codes(n_classes, centered=centered)
    weights = np.array([5.0, 1.0, 0.5])[:n_classes]
    w = weights[y] * len(y) / weights[y].sum()
    plain = released(X, codes[y])
    got = reweighted(plain, class_moments(plain, codes, CLIP), weights, centered=centered)
    shift = (w @ X / len(y), w @ codes[y] / len(y)) if centered else (0.0, 0.0)
    expected = ((X - shift[0]) * w[:, None]).T @ (codes[y] - shift[1])
    np.testing.assert_allclose(got.cross, expected, rtol=1e-8, atol=1e-8)
    equal = reweighted(plain, class_moments(plain, codes, CLIP), np.ones(n_classes))
    ridge = Ridge(2.0).fit(X, codes[y])
    np.testing.assert_allclose(
        solve_readout(equal, 2.0, flat=True).coefficients, ridge.coef_.T.reshape(4, -1), rtol=1e-7
    )


@pytest.mark.deep
def test_noise_of_weighted_products_is_as_said():
    """Within 6 sigma, for classes of unlike size: the error of an entry over its deviation."""
    X, y = data(3, n=20_000)
    codes, _ = label_codes(3, centered=True)
    rng, errors = np.random.default_rng(1), []
    truth = reweighted(released(X, codes[y]), class_moments(released(X, codes[y]), codes, CLIP),
                       1.0 / np.bincount(y)).cross  # fmt: skip
    for _ in range(200):
        noisy = released(X, codes[y], 2.0, rng)
        got = reweighted(noisy, class_moments(noisy, codes, CLIP), 1.0 / np.bincount(y))
        errors.append((got.cross - truth)[0] / got.cross_noise)
    squares = np.mean(np.square(errors))
    assert squares == pytest.approx(1.0, abs=6 * np.sqrt(2 / 400))


def test_a_class_without_records_has_its_noise_as_total():
    X, y = data(3)
    codes, _ = label_codes(4, centered=True)
    noisy = released(X, codes[y], 1.0, np.random.default_rng(2))
    found = class_moments(noisy, codes, CLIP)
    assert found.shown.tolist() == [True, True, True, False]
    assert found.totals[3] > 1.0
    assert np.isfinite(reweighted(noisy, found, 1 / found.totals).cross).all()
