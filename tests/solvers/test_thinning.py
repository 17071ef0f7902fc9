"""Thinning: choices on a noisy moment, judged on noise that they have not seen."""

import numpy as np
import pytest

from skdp.solvers import spectral
from skdp.solvers.spectral import chosen_subspace, soft_thresholded


def noisy(M, scale, rng):
    G = scale * rng.standard_normal(M.shape)
    return M + (G + G.T) / 2


def captured(M, V, k):
    return float(np.sum(V * (M @ V)) / np.linalg.eigvalsh(M)[-k:].sum())


def leading(A, k):
    return np.linalg.eigh(A)[1][:, -k:]


def sparse_moment(rng):
    taste = rng.gamma(0.3, size=(10, 150)) * (rng.random((10, 150)) < 0.08)
    X = rng.poisson(rng.gamma(0.3, size=(3000, 10)) @ taste)
    return X.T @ X / 10.0


def dense_moment(rng):
    Q = np.linalg.qr(rng.standard_normal((150, 150)))[0]
    return (Q * (300.0 / np.arange(1, 151))) @ Q.T


@pytest.mark.deep
@pytest.mark.parametrize("make", [sparse_moment, dense_moment])
def test_what_is_chosen_is_about_as_good_as_the_leading_vectors_or_better(make):
    """On average over noises. Where nearly all is noise, directions off the axes lose a little."""
    rng, gains = np.random.default_rng(0), []
    M = make(rng)
    M *= 300 / np.linalg.eigvalsh(M)[-1]
    for scale in (3.0, 10.0, 30.0):
        gain = []
        for _ in range(8):
            A = noisy(M, scale, rng)
            V = chosen_subspace(A, scale, 5).vectors
            assert np.allclose(V.T @ V, np.eye(5), atol=1e-9)
            gain.append(captured(M, V, 5) - captured(M, leading(A, 5), 5))
        gains.append(np.mean(gain))
    assert min(gains) > -0.06
    assert gains[0] > -0.005
    if make is sparse_moment:
        assert max(gains) > 0.05


@pytest.mark.parametrize("make", [sparse_moment, dense_moment])
def test_single_precision_judges_and_is_not_used(make, monkeypatch):
    """The same is chosen, to the last bit; beside noise that is next to nothing it is not used."""
    rng = np.random.default_rng(3)
    M = make(rng)
    M *= 300 / np.linalg.eigvalsh(M)[-1]
    seen = []
    pairs = spectral.leading_pairs
    monkeypatch.setattr(spectral, "leading_pairs", lambda A, k: seen.append(A.dtype) or pairs(A, k))
    for scale in (1e-6, 1.0, 10.0):
        A = noisy(M, scale, rng)
        seen.clear()
        rough = chosen_subspace(A, scale, 5, sparse=True).vectors
        assert (np.float32 in seen) == (scale > 1e-3)
        with monkeypatch.context() as patch:
            patch.setattr(spectral, "_ROUGH", np.inf)
            seen.clear()
            assert np.array_equal(chosen_subspace(A, scale, 5, sparse=True).vectors, rough)
            assert set(seen) == {np.dtype(float)}


def test_axes_are_chosen_where_nothing_but_the_diagonal_can_be_read():
    rng = np.random.default_rng(1)
    sizes = 40 * np.arange(1, 201.0) ** -0.3
    found = chosen_subspace(noisy(np.diag(sizes), 10.0, rng), 10.0, 4, sizes)
    assert found.axes
    assert set(np.flatnonzero(found.vectors.any(axis=1))) == {0, 1, 2, 3}


def test_without_noise_the_leading_vectors_are_taken():
    M = dense_moment(np.random.default_rng(2))
    found = chosen_subspace(M, 0.0, 3)
    assert captured(M, found.vectors, 3) == pytest.approx(1.0)
    assert found.moment is M


def test_choices_are_functions_of_the_release_alone():
    rng = np.random.default_rng(3)
    A = noisy(dense_moment(rng), 5.0, rng)
    one, two = (chosen_subspace(A.copy(), 5.0, 3) for _ in range(2))
    assert np.array_equal(one.vectors, two.vectors)


def test_soft_thresholds_leave_the_diagonal():
    A = np.array([[1.0, -3.0], [-3.0, 0.5]])
    np.testing.assert_array_equal(soft_thresholded(A, 2.0), [[1.0, -1.0], [-1.0, 0.5]])
    np.testing.assert_array_equal(soft_thresholded(A, 5.0), np.diag([1.0, 0.5]))


def test_a_large_diagonal_is_no_direction():
    """Sparse rows: products are read beside the sums of squares, and the better of all is kept."""
    rng = np.random.default_rng(0)
    n, k = 300, 4
    U = np.linalg.qr(rng.standard_normal((n, k)))[0]
    M = (U * [60.0, 55.0, 50.0, 45.0]) @ U.T + np.diag(80.0 * np.arange(1, n + 1) ** -0.7)
    Z = rng.standard_normal((n, n))
    A, best = M + (Z + Z.T) / 2, np.linalg.eigvalsh(M)[-k:].sum()
    shares = [
        np.trace(V.T @ M @ V) / best
        for V in (chosen_subspace(A, 1.0, k, sparse=sparse).vectors for sparse in (False, True))
    ]
    assert shares[1] > 0.95
    assert shares[1] >= shares[0] - 0.01


@pytest.mark.thorough
def test_popularity_is_hardly_ever_lost_to_directions_of_noise(monkeypatch):
    """Of few columns of sparse rows: many splits of the noise tell what one cannot."""
    rng = np.random.default_rng(0)
    M, k = sparse_moment(rng), 10
    M *= 300 / np.linalg.eigvalsh(M)[-1]
    counts = np.diag(M)
    popular = spectral._axes(counts, k)
    lost = {}
    for most in (spectral._MOST_SPLITS, 1):
        monkeypatch.setattr(spectral, "_MOST_SPLITS", most)
        noises = (noisy(M, 15.0, np.random.default_rng(seed)) for seed in range(40))
        found = [chosen_subspace(A, 15.0, k, counts, sparse=True).vectors for A in noises]
        lost[most] = [captured(M, popular, k) - captured(M, V, k) for V in found]
    many, once = lost.values()
    assert np.mean(many) < 0.01
    assert np.mean(many) < np.mean(once)
    assert np.quantile(many, 0.9) < 0.05


@pytest.mark.parametrize("size", [2.0**140, 2.0**-140])
@pytest.mark.parametrize("n", [150, 700])
def test_moments_of_any_size_are_read(n, size):
    """Rows in units of 1e21 have moments that are no single-precision numbers."""
    rng = np.random.default_rng(0)
    M = np.diag(np.r_[900.0, 400.0, np.ones(n - 2)])
    A = noisy(M, 3.0, rng)
    V, W = (chosen_subspace(f * A, f * 3.0, 2).vectors for f in (1.0, size))
    np.testing.assert_allclose(np.abs(V.T @ W), np.eye(2), atol=1e-6)
