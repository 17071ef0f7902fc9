"""Leading subspaces from row-private answers, against toy answers."""

import math
from typing import NamedTuple

import numpy as np
import pytest

from skdp.solvers.linalg import orthonormal, top_eigenpairs
from skdp.solvers.spectral import (
    RowNoise,
    gram_subspace,
    moment_of_long_rows_pays,
    power_subspace,
    screened_subspace,
)


class Answer(NamedTuple):
    value: np.ndarray
    noise_scale: float


class Rows:
    """The answers of rows: exact where `noise` is 0, else as noisy as the gate would make them."""

    def __init__(self, X, clip_norm, noise=0.0, seed=0, log=None):
        self.X, self.clip_norm, self.noise = X, clip_norm, noise
        self.rng = np.random.default_rng(seed)
        self.log = [] if log is None else log

    def _narrow(self, X, clip_norm):
        other = Rows(X, clip_norm, self.noise, log=self.log)
        other.rng = self.rng
        return other

    def _rows(self):
        norms = np.linalg.norm(self.X, axis=1, keepdims=True)
        return self.X * np.minimum(1.0, self.clip_norm / np.maximum(norms, 1e-300))

    def answer(self, name, value, sensitivity, share, symmetric=False):
        self.log.append((name, share))
        scale = self.noise * sensitivity / math.sqrt(share) if self.noise else 0.0
        G = scale * self.rng.standard_normal(np.shape(value))
        return Answer(value + ((G + G.T) / 2 if symmetric else G), scale)

    def clipped(self, clip_norm):
        return self._narrow(self.X, clip_norm)

    def columns(self, kept):
        return self._narrow(self.X[:, kept], self.clip_norm)

    def norms_above(self, threshold, *, share):
        count = np.count_nonzero(np.linalg.norm(self.X, axis=1) > threshold)
        return self.answer("norms_above", float(count), 1.0, share)

    def gram(self, *, share):
        X = self._rows()
        return self.answer("gram", X.T @ X, self.clip_norm**2, share, symmetric=True)

    def sums(self, *, share):
        return self.answer("sums", self._rows().sum(axis=0), self.clip_norm, share)

    def tangent(self, V, scale, weights=None):
        return Tangent(self, V, scale, weights)

    def forfeit(self, share):
        self.log.append(("forfeit", share))

    def names(self):
        return [name for name, _ in self.log]

    def spent(self):
        return math.fsum(share for _, share in self.log)


class Tangent:
    def __init__(self, rows, V, scale, weights):
        self.rows, self.V = rows, V
        X = rows._rows()
        self.A = X @ V
        self.B = X - (1 - 1 / scale) * self.A @ V.T
        self.DA = self.A if weights is None else self.A * weights
        self.sizes = np.linalg.norm(self.DA, axis=1) * np.linalg.norm(self.B, axis=1)

    def sizes_above(self, threshold, *, share):
        count = float(np.count_nonzero(self.sizes > threshold))
        return self.rows.answer("sizes_above", count, 1.0, share)

    def product(self, clip, *, share):
        kept = np.minimum(1.0, clip / np.maximum(self.sizes, 1e-300))
        level = min(clip, self.rows.clip_norm**2)
        value = self.B.T @ (self.DA * kept[:, None])
        return self.rows.answer("product", value, level, share)


def spiked(n=4000, d=30, k=3, captured=0.7, seed=0):
    rng = np.random.default_rng(seed)
    Q = orthonormal(rng.standard_normal((d, d)))
    variances = np.full(d, (1 - captured) / (d - k))
    variances[:k] = captured / k * np.array([1.3, 1.0, 0.7])[:k]
    X = rng.standard_normal((n, d)) * np.sqrt(variances)
    return X @ Q.T / 1.5


def loss(X, V):
    """Share of the squares of the best subspace that V misses."""
    values = np.linalg.eigvalsh(X.T @ X)[::-1][: V.shape[1]]
    return 1 - np.sum((X @ V) ** 2) / values.sum()


def start(d, p, seed=9):
    return np.random.default_rng(seed).choice([-1.0, 1.0], (d, p))


EXACT = RowNoise(0.0, 0.0, 4000.0, math.inf)
X = spiked()


def noisy(multiplier, n=4000.0):
    return RowNoise(multiplier, multiplier, n, 1.0)


def test_many_rows_of_few_columns_keep_the_moment_for_products():
    """Where the noise leaves many rows long, or columns are many, another pass is quicker."""
    assert moment_of_long_rows_pays(100, noisy(4.0, 100_000.0))
    assert moment_of_long_rows_pays(1000, noisy(0.0, 10_000.0))
    assert not moment_of_long_rows_pays(1000, noisy(4.0, 10_000.0))
    assert not moment_of_long_rows_pays(100, noisy(4.0, 2000.0))


# -- without noise -----------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 3, 29, 30])
def test_gram_without_noise_is_exact(k):
    ask = Rows(X, math.inf)
    V = gram_subspace(ask, 30, k, 0.9, EXACT)
    assert np.allclose(V.T @ V, np.eye(k))
    assert loss(X, V) == pytest.approx(0.0, abs=1e-12)
    assert ask.log == [("gram", 0.9)]


@pytest.mark.thorough
@pytest.mark.parametrize("k", [1, 3])
def test_power_without_noise_converges(k):
    ask = Rows(X, math.inf)
    V = power_subspace(ask, start(30, 2 * k), k, [0.9 / 40] * 40, EXACT)
    assert V.shape == (30, k)
    assert np.allclose(V.T @ V, np.eye(k))
    assert loss(X, V) == pytest.approx(0.0, abs=1e-9)
    assert ask.names() == ["product"] * 40
    assert ask.spent() == pytest.approx(0.9)


# -- under noise -------------------------------------------------------------------------------


@pytest.mark.parametrize("multiplier", [1.0, 5.0, 20.0])
def test_gram_spends_its_share_exactly(multiplier):
    ask = Rows(X, 1.0, multiplier)
    V = gram_subspace(ask, 30, 3, 0.7, noisy(multiplier))
    assert np.allclose(V.T @ V, np.eye(3))
    assert ask.spent() == pytest.approx(0.7)
    assert ask.names().count("gram") == 1


def test_gram_leaves_out_a_refinement_that_is_not_worth_it_and_pays_for_it():
    easy, hard = Rows(X, 1.0, 0.5), Rows(X, 1.0, 20.0)
    gram_subspace(easy, 30, 3, 0.7, noisy(0.5))
    gram_subspace(hard, 30, 3, 0.7, noisy(20.0))
    assert "forfeit" in easy.names() and "product" not in easy.names()
    assert "forfeit" not in hard.names() and hard.names().count("product") == 2
    assert easy.spent() == pytest.approx(hard.spent()) == pytest.approx(0.7)


@pytest.mark.deep
def test_refinement_beats_one_release_of_the_moment():
    refined, plain = [], []
    for seed in range(8):
        V = gram_subspace(Rows(X, 1.0, 20.0, seed), 30, 3, 1.0, noisy(20.0))
        refined.append(loss(X, V))
        moment = Rows(X, 1.0, 20.0, seed).gram(share=1.0).value
        plain.append(loss(X, top_eigenpairs(moment, 3)[1]))
    assert np.mean(refined) < 0.9 * np.mean(plain)


@pytest.mark.parametrize("shares", [[0.8], [0.2, 0.6], [0.1, 0.1, 0.6]])
def test_power_spends_its_shares_exactly(shares):
    ask = Rows(X, 1.0, 5.0)
    V = power_subspace(ask, start(30, 5), 3, shares, noisy(5.0))
    assert V.shape == (30, 3)
    assert np.allclose(V.T @ V, np.eye(3))
    assert ask.names().count("product") == len(shares)
    assert ask.spent() == pytest.approx(sum(shares))


def test_power_under_noise_is_near():
    losses = [
        loss(
            X, power_subspace(Rows(X, 1.0, 5.0, s), start(30, 6, s), 3, [0.25, 0.25, 0.5], noisy(5))
        )
        for s in range(5)
    ]
    assert np.mean(losses) < 0.02


def test_clip_levels_follow_the_noise():
    """Rows are shortened in proportion to the noise, and three quarters of them at most."""
    assert noisy(0.0).goal(12.0, 0.0, 30, 0.5) == 0.0
    noise = noisy(2.0)
    assert noise.goal(12.0, noise.psd, 50, 0.5) == pytest.approx(12 * 2 * 10)
    assert noise.goal(12.0, noise.psd, 50, 0.5) < noise.goal(12.0, noise.psd, 50, 0.1)
    assert noisy(1e6).goal(12.0, 1e6, 50, 0.5) == 3000.0


# -- screening ---------------------------------------------------------------------------------


def wide_rows(n=3000, d=400, used=60, k=3, seed=0):
    """Sparse non-negative unit rows of k tastes on the first `used` columns, dust elsewhere."""
    rng = np.random.default_rng(seed)
    chance = np.full((n, d), 0.002)
    taste = rng.integers(0, k, n)
    for i in range(k):
        chance[np.ix_(taste == i, np.arange(i, used, k))] = 0.4
    X = (rng.random((n, d)) < chance).astype(float)
    return X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1.0)


@pytest.mark.deep
def test_screening_keeps_the_columns_that_hold_something():
    W = wide_rows()
    ask = Rows(W, 1.0, 4.0)
    V, sums, kept = screened_subspace(ask, 400, 3, 0.8, noisy(4.0, 3000.0))
    assert V.shape == (400, 3)
    assert np.allclose(V.T @ V, np.eye(3))
    assert sums.shape == (400,)
    assert set(range(60)) <= set(kept)
    assert not np.delete(V, kept, axis=0).any()
    assert ask.spent() == pytest.approx(0.8)
    assert loss(W, V) < 0.05


@pytest.mark.thorough
def test_few_columns_of_both_signs_are_all_kept():
    """Their sums tell nothing, their moment would."""
    rng = np.random.default_rng(0)
    W = wide_rows(n=20_000, d=120) * rng.choice([-1.0, 1.0], (20_000, 1))
    ask = Rows(W, 1.0, 4.0)
    V, _, kept = screened_subspace(ask, 120, 3, 1.0, noisy(4.0, 20_000.0))
    assert len(kept) == 120
    assert ask.spent() == pytest.approx(1.0)
    assert loss(W, V) < 0.05


def test_with_sums_that_cannot_be_read_the_most_popular_columns_are_kept():
    ask = Rows(np.zeros((50, 40)), 1.0, 4.0)
    V, sums, kept = screened_subspace(ask, 40, 3, 1.0, noisy(4.0, 50.0))
    assert set(ask.names()) == {"sums"}
    assert ask.spent() == pytest.approx(1.0)
    assert set(kept) == set(np.argsort(-np.abs(sums))[:3])
    assert np.array_equal(np.abs(V).sum(axis=1) > 0, np.isin(np.arange(40), kept))


@pytest.mark.thorough
@pytest.mark.parametrize("scale", [20.0, 4.0, 0.5])
def test_screening_is_never_far_below_the_most_popular_columns(scale):
    """Columns without a taste in common: popularity is all there is."""
    rng = np.random.default_rng(0)
    P = 0.3 * np.arange(1, 301.0) ** -0.6
    W = (rng.random((3000, 300)) < P).astype(float)
    W /= np.maximum(np.linalg.norm(W, axis=1, keepdims=True), 1.0)
    V = screened_subspace(Rows(W, 1.0, scale), 300, 5, 1.0, noisy(scale, 3000.0))[0]
    popular = np.linalg.norm(W[:, :5]) ** 2
    assert np.linalg.norm(W @ V) ** 2 > 0.93 * popular


def test_what_is_kept_is_a_function_of_the_noisy_sums():
    """The same answers on other data: the same columns."""
    W = wide_rows()

    class Replayed(Rows):
        def sums(self, *, share):
            self.log.append(("sums", share))
            return Answer(np.linspace(1000.0, 0.0, 400), 10.0)

    kept = [screened_subspace(Replayed(rows, 1.0, 4.0), 400, 3, 0.8, noisy(4.0, 3000.0))[2]
            for rows in (W, np.zeros_like(W))]  # fmt: skip
    assert np.array_equal(*kept)
    assert np.array_equal(kept[0], np.arange(len(kept[0])))


def test_routes_do_not_read_the_rows():
    """Solvers see public answers alone: data behind the toy can change without a trace."""
    answers = []
    for _ in range(2):
        ask = Rows(X, 1.0, 5.0, seed=4)
        answers.append(gram_subspace(ask, 30, 3, 0.7, noisy(5.0)))
        assert set(ask.names()) <= {"gram", "norms_above", "sizes_above", "product", "forfeit"}
    assert np.array_equal(*answers)


@pytest.mark.parametrize("share", [0.7, 0.02, 1e-4])
def test_small_shares_are_spent_too(share):
    """A share below that of a clip level must not turn negative."""
    for route in (gram_subspace, screened_subspace):
        ask = Rows(X, 1.0, 5.0)
        route(ask, 30, 3, share, noisy(5.0))
        assert ask.spent() == pytest.approx(share)
        assert all(part > 0 for _, part in ask.log)
