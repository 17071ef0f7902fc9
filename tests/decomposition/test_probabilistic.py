"""Synthetic rows follow the released model, and nothing else."""

import numpy as np
import pytest

from skdp import DPPCA, DPIncrementalPCA

N = 200_000


def rows(n=4000, d=4):
    return np.random.default_rng(0).standard_normal((n, d)) * [3.0, 2.0, 1.0, 0.5] + [5, 0, 0, 1]


@pytest.mark.thorough
@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("k", [None, 2])
def test_they_have_the_released_mean_and_covariance(k, whiten):
    pca = DPPCA(k, epsilon=3.0, clip_norm=15.0, whiten=whiten).fit(rows())
    X = pca.sample(N, random_state=0)
    plain = DPPCA(whiten=False)
    plain.__dict__.update({**vars(pca), "whiten": False})
    covariance = plain.get_covariance()
    deviation = np.sqrt(np.diag(covariance))
    assert np.all(np.abs(X.mean(axis=0) - pca.mean_) < 6 * deviation / np.sqrt(N))
    error = np.cov(X.T) - covariance
    assert np.all(np.abs(error) < 6 * np.sqrt(2) * np.outer(deviation, deviation) / np.sqrt(N))


def test_they_lie_in_public_bounds():
    bounds = [(0.0, 8.0), (-1.0, 1.0), (-2.0, 2.0), (0.0, 2.0)]
    X = DPPCA(epsilon=3.0, bounds=bounds).fit(rows()).sample(1000)
    low, high = np.array(bounds).T
    assert np.all(low <= X)
    assert np.all(high >= X)
    assert np.any(low == X)


def test_they_are_drawn_from_released_values_alone():
    pca = DPPCA(2, epsilon=3.0, clip_norm=15.0).fit(rows())
    first, again, other = (pca.sample(5, random_state=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.all(first != other)
    assert np.all(pca.sample(2) != pca.sample(2))
    assert not pca.privacy_spent_.seeded
    rng = np.random.default_rng(3)
    assert np.all(pca.sample(2, rng) != pca.sample(2, rng))


def test_their_dtype_and_shape():
    pca = DPIncrementalPCA(2, epsilon=3.0, clip_norm=15.0).fit(rows().astype(np.float32))
    assert pca.sample().shape == (1, 4)
    assert pca.sample(3).dtype == np.float32
    for bad in (0, 2.0, True, None):
        with pytest.raises(ValueError, match="'n_samples' must be an int"):
            pca.sample(bad)
