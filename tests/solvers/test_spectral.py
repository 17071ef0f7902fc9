"""Leading subspaces from row-private answers, against toy answers."""

import math

import numpy as np
import pytest

from skdp.answer import Answer
from skdp.queries.rows import RowQuery
from skdp.solvers import spectral
from skdp.solvers.linalg import orthonormal
from tools.gate import asked, shares_of


def rows(X, noise, seed=0):
    return asked(RowQuery(X, clip_norm=1.0, adjacency="add_remove"), noise, seed)


def spiked(n=4000, d=30, k=3, captured=0.7, seed=0):
    rng = np.random.default_rng(seed)
    Q = orthonormal(rng.standard_normal((d, d)))
    variances = np.full(d, (1 - captured) / (d - k))
    variances[:k] = captured / k * np.array([1.3, 1.0, 0.7])[:k]
    return rng.standard_normal((n, d)) * np.sqrt(variances) @ Q.T / 1.5


def loss(X, V):
    """Share of the squares of the best subspace that V misses."""
    values = np.linalg.eigvalsh(X.T @ X)[::-1][: V.shape[1]]
    return 1 - np.sum((X @ V) ** 2) / values.sum()


def start(d, p, seed=9):
    return np.random.default_rng(seed).choice([-1.0, 1.0], (d, p))


X = spiked()


def noisy(multiplier, n=4000.0):
    return spectral.RowNoise(multiplier, multiplier, n, 1.0)


def test_clip_levels_follow_the_noise():
    """Rows are shortened in proportion to the noise, and three quarters of them at most."""
    assert noisy(0.0).goal(12.0, 0.0, 30, 0.5) == 0.0
    noise = noisy(2.0)
    assert noise.goal(12.0, noise.psd, 50, 0.5) == pytest.approx(12 * 2 * 10)
    assert noise.goal(12.0, noise.psd, 50, 0.5) < noise.goal(12.0, noise.psd, 50, 0.1)
    assert noisy(1e6).goal(12.0, 1e6, 50, 0.5) == 4000.0


# -- screening ---------------------------------------------------------------------------------


def wide_rows(n=3000, d=400, used=60, k=3, seed=0):
    """Sparse non-negative unit rows of k factors on the first `used` columns, dust elsewhere."""
    rng = np.random.default_rng(seed)
    chance = np.full((n, d), 0.002)
    factor = rng.integers(0, k, n)
    for i in range(k):
        chance[np.ix_(factor == i, np.arange(i, used, k))] = 0.4
    X = (rng.random((n, d)) < chance).astype(float)
    return X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1.0)


@pytest.mark.thorough
def test_columns_of_both_signs_are_found_too(rng):
    """Their sums tell nothing, their moment does."""
    W = wide_rows(n=20_000, d=120) * rng.choice([-1.0, 1.0], (20_000, 1))
    ask, session = rows(W, 4.0)
    V, *_ = spectral.screened_subspace(ask, 120, 3, 1.0, noisy(4.0, 20_000.0))
    assert math.fsum(share for _, share in shares_of(session)) == pytest.approx(1.0)
    assert loss(W, V) < 0.05


@pytest.mark.deep
@pytest.mark.parametrize("scale", [20.0, 4.0, 0.5])
def test_screening_is_never_far_below_the_most_popular_columns(scale, rng):
    """Columns without a factor in common: popularity is all there is."""
    W = (rng.random((3000, 300)) < 0.3 * np.arange(1, 301.0) ** -0.6).astype(float)
    W /= np.maximum(np.linalg.norm(W, axis=1, keepdims=True), 1.0)
    asks = [rows(W, scale, seed)[0] for seed in range(16)]
    found = [spectral.screened_subspace(ask, 300, 5, 1.0, noisy(scale, 3000.0))[0] for ask in asks]
    popular = np.linalg.norm(W[:, :5]) ** 2
    kept = np.mean([np.linalg.norm(W @ V) ** 2 for V in found])
    assert kept > (0.85 if scale == 20.0 else 0.93) * popular  # single fits at 20: .92 +- .06


@pytest.mark.deep
@pytest.mark.parametrize("scale", [15.0, 5.0, 1.5])
def test_where_popularity_is_flat_the_mean_is_found(scale, rng):
    """No column stands out: the most popular ones alone hold next to nothing."""
    factor = rng.standard_normal((600, 3)) @ rng.standard_normal((3, 500))
    W = (rng.random((600, 500)) < 0.1 * np.exp(0.7 * factor / np.sqrt(3))).astype(float)
    C = np.median(np.linalg.norm(W, axis=1))
    W /= np.maximum(np.linalg.norm(W, axis=1, keepdims=True), C)
    lost, popular = [], []
    for seed in range(4):
        ask, _ = rows(W, scale, seed)
        lost.append(loss(W, spectral.screened_subspace(ask, 500, 4, 1.0, noisy(scale, 600.0))[0]))
        popular.append(loss(W, np.eye(500)[:, np.argsort(-W.sum(axis=0))[:4]]))
    assert np.mean(lost) < np.mean(popular) - 0.3


@pytest.mark.deep
def test_directions_that_hold_no_more_than_chance_are_rarely_shown(rng):
    W = rng.standard_normal((1500, 40))
    W /= np.linalg.norm(W, axis=1, keepdims=True)
    found = 0
    for seed in range(40):
        ask, _ = rows(W, 40.0, seed)
        shown = spectral.gram_subspace(ask, 40, 12, 0.9, noisy(40.0, 1500.0))[1]
        found += shown.shares.any()
    assert found <= 3


def test_sums_alone_are_used_where_a_moment_shows_less(rng):
    """They have all of the budget then; not of rows with negative entries, nor at low noise."""
    W = (rng.random((300, 40)) < 0.1).astype(float)
    W /= np.maximum(np.linalg.norm(W, axis=1, keepdims=True), 2.0)
    signed = W * rng.choice([-1.0, 1.0], W.shape)
    for X, scale, alone in ((W, 8.0, True), (signed, 8.0, False), (W, 0.2, False)):
        ask, session = rows(X, scale)
        sums = ask.sums(share=0.1)
        found, left = spectral.by_sums(ask, sums, 40, 2, 0.9, noisy(scale, 300.0))
        spent = math.fsum(share for _, share in shares_of(session))
        assert spent == pytest.approx(1.0 if alone else 1.0 - left)
        assert bool(found) is alone and (0.85 < left < 0.9) is (scale == 8.0)
        if found:
            V, sums, (shares, inside, total) = found
            true = np.sum((W @ V) ** 2, axis=0)
            assert loss(W, V[:, :1]) < 0.1 and sums.noise_scale < 9 and total.value == 300
            assert shares.tolist() == [1.0, 0.0] and 4 * inside.noise_scale < true[0]
            assert np.all(abs(np.diag(inside.value) - true) < 4 * inside.noise_scale)


@pytest.mark.parametrize(("scale", "alone"), [(0.12, True), (0.075, False)])
def test_a_moment_shows_what_even_entries_scatter_by(scale, alone, rng):
    """The sums of even columns are small: other directions hold more, by chance alone."""
    X = np.eye(250)[rng.integers(0, 250, 300)]
    ask, _ = rows(X, scale)
    found, _ = spectral.by_sums(ask, ask.sums(share=0.1), 250, 3, 0.9, noisy(scale, 300.0))
    assert bool(found) is alone
    if not alone:
        assert loss(X, spectral.gram_subspace(ask, 250, 3, 0.9, noisy(scale, 300.0))[0]) < 0.4


def test_a_count_of_rows_leaves_a_part_for_the_last_step(rng):
    """However large the share is that sums alone may have too."""
    X = rng.standard_normal((300, 120)) / 12
    alone = []
    for seed in range(4):
        ask, session = rows(X, 8.0, seed)
        alone.append(spectral.screened_subspace(ask, 120, 2, 0.02, noisy(8.0, 300.0), 0.6)[2])
        spent = math.fsum(share for _, share in shares_of(session))
        assert spent == pytest.approx(0.62 if alone[-1] else 0.02)
    assert not all(alone)


def test_no_tangent_part_is_less_than_any_noise(monkeypatch):
    """All columns are in the subspace; a clip norm may be 1e60, and a noise scale its square."""
    monkeypatch.setattr(spectral, "_tangent_product", lambda ask, V, *_: (1e120 * V, 1e119))
    V = spectral.power_subspace(None, np.eye(2), 2, [1.0], None)
    np.testing.assert_allclose(np.abs(V).sum(axis=0), 1.0)


def test_noisy_numbers_are_drawn_to_their_mean_as_far_as_noise_scatters_them(rng):
    alike = spectral.about_common(5.0 + rng.standard_normal(1000), 1.0)
    assert alike @ np.full(1000, 1000**-0.5) > 0.999
    apart = 100.0 * rng.random(1000)
    found = spectral.about_common(apart + rng.standard_normal(1000), 1.0)
    assert found @ apart > 0.999 * np.linalg.norm(apart)
    assert np.linalg.norm(spectral.about_common(np.zeros(1), 3.0)) in (0.0, 1.0)


ROUTES = {
    "gram": lambda ask, share: spectral.gram_subspace(ask, 30, 3, share, noisy(5.0))[0],
    "screened": lambda ask, share: spectral.screened_subspace(ask, 30, 3, share, noisy(5.0))[0],
    "power": lambda ask, share: spectral.power_subspace(
        ask, start(30, 5), 3, [0.25 * share, 0.75 * share], noisy(5.0)
    ),
}


@pytest.mark.parametrize("share", [0.7, 0.02, 1e-4])
@pytest.mark.parametrize("route", ROUTES)
def test_shares_are_spent_exactly(route, share):
    """A share below that of a clip level must not turn negative."""
    ask, session = rows(X, 5.0)
    V = ROUTES[route](ask, share)
    assert np.allclose(V.T @ V, np.eye(3))
    names, parts = zip(*shares_of(session), strict=True)
    assert math.fsum(parts) == pytest.approx(share) and all(part > 0 for part in parts)
    assert route != "gram" or names.count("gram") == 1
    assert names.count("tangent_product") == {"power": 2, "screened": 1}.get(route, 0)


def test_more_columns_are_kept_where_more_can_be_read():
    signals = [3000.0 / scale for scale in (150.0, 15.0, 1.5, 0.015)]
    kept = [spectral.n_kept_columns(signal, 10_000, 3) for signal in signals]
    assert kept == sorted(kept) and kept[0] == 100 and kept[-1] == 4000
    assert spectral.n_kept_columns(signals[-1], 50, 3) == 50
    assert spectral.n_kept_columns(signals[0], 10_000, 60) == 240


def test_one_moment_is_of_all_columns_unless_most_are_spared():
    assert spectral.moment_columns(200.0, 300, 3) == 300
    assert spectral.moment_columns(200.0, 10_000, 3) == 3 * spectral.n_kept_columns(
        200.0, 10_000, 3
    )
    assert spectral.moment_columns(1e9, 10_000, 3) == 4000


# -- thinning: choices on a noisy moment, judged on noise that they have not seen ----------------


def with_noise(M, scale, rng):
    G = scale * rng.standard_normal(M.shape)
    return M + (G + G.T) / 2


def captured(M, V, k):
    return float(np.sum(V * (M @ V)) / np.linalg.eigvalsh(M)[-k:].sum())


def sparse_moment(rng):
    factor = rng.gamma(0.3, size=(10, 150)) * (rng.random((10, 150)) < 0.08)
    X = rng.poisson(rng.gamma(0.3, size=(3000, 10)) @ factor)
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
            A = with_noise(M, scale, rng)
            V = spectral.chosen_subspace(A, scale, 5)
            assert np.allclose(V.T @ V, np.eye(5), atol=1e-9)
            gain.append(captured(M, V, 5) - captured(M, np.linalg.eigh(A)[1][:, -5:], 5))
        gains.append(np.mean(gain))
    assert min(gains) > -0.06 and gains[0] > -0.005
    if make is sparse_moment:
        assert max(gains) > 0.05


def test_axes_are_chosen_where_nothing_but_the_diagonal_can_be_read(rng):
    sizes = 40 * np.arange(1, 201.0) ** -0.3
    A, known = with_noise(np.diag(sizes), 10.0, rng), spectral.axes(sizes, 4)
    found = spectral.chosen_subspace(A, 10.0, 4, known)
    assert set(np.flatnonzero(found.any(axis=1))) == {0, 1, 2, 3}


@pytest.mark.thorough("size")
@pytest.mark.parametrize("size", [2.0**140, 2.0**-140])
@pytest.mark.parametrize("n", [150, 700])
def test_moments_of_any_size_are_read(n, size, rng):
    """Rows in units of 1e21 have moments that are no single-precision numbers."""
    A = with_noise(np.diag(np.r_[900.0, 400.0, np.ones(n - 2)]), 3.0, rng)
    V, W = (spectral.chosen_subspace(f * A, f * 3.0, 2) for f in (1.0, size))
    np.testing.assert_allclose(np.abs(V.T @ W), np.eye(2), atol=1e-6)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("power", "read", "most", "part"),
    [(0.0, 700, 1e9, 0.2444), (-0.8, 300, 1e9, 0.2444), (0.0, 700, 5e4, 0.1017)],
)
def test_all_columns_are_read_where_they_are_about_as_popular(power, read, most, part):
    """The noise of more columns has a higher edge, but they may hold the more.

    Where rows hold a fifth of the largest entries the moment shows the mean: counts have little.
    """
    sizes, shares = [], []

    class Ask:
        def counts(self, *, share):
            shares.append(share)
            return Answer(1e4 * np.arange(1, 701) ** power, 1.0)

        def columns(self, kept):
            sizes.append(len(kept))
            return self

        def gram(self, *, share):
            return Answer(np.eye(sizes[-1]), 1.0)

    spectral.screened_moment(Ask(), Ask().counts, 2, 1.0, 328.0, most)
    assert sizes == [read] and sum(shares) == pytest.approx(part, abs=1e-4)
