"""Tastes from pairs of items: what is read, what chance alone would show, and ways to use them."""

from functools import partial

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import aslinearoperator

from skdp.solvers.linalg import PairMoment, wigner
from skdp.solvers.recommend import WAYS, Items, beside_popularity, energy, offered, own_of, tells

K = 6


def histories(m, n, n_tastes, rng):
    """Popularity that falls, and groups of items that are liked together; 0 groups: none."""
    rates = 0.5 * np.arange(1, n + 1.0) ** -0.4
    if n_tastes:
        mine = np.arange(n) % n_tastes == rng.integers(0, n_tastes, m)[:, None]
        rates = rates * np.where(mine, 1.6, 0.4)
    return (rng.random((m, n)) < rates).astype(float)


def exact_moment(R, operator=False):
    X = R / np.sqrt(np.maximum(R.sum(axis=1, keepdims=True), 1))
    off = X.T @ X
    np.fill_diagonal(off, 0.0)
    off = aslinearoperator(off) if operator else off
    return PairMoment(off, lambda w, V: wigner(w, V, 0.0), 0.0)


def items_of(R):
    counts = R.sum(axis=0)
    return Items(np.arange(R.shape[1]), counts, own_of(counts, R.shape[0]), R.shape[0])


def ways_of(R, **options):
    return offered(exact_moment(R, **options), items_of(R), K, 0.5)


@pytest.mark.parametrize("operator", [False, True])
def test_tastes_are_those_that_were_planted(operator):
    R = histories(4000, 90, 3, np.random.default_rng(0))
    pairs = ways_of(R, operator=operator).kinds[0]
    assert pairs.rank >= 2
    likeness = pairs.inward[:, 1:3] @ pairs.outward[:2]
    same = np.arange(90)[:, None] % 3 == np.arange(90) % 3
    np.fill_diagonal(likeness, 0.0)
    assert likeness[same].mean() > 0 > likeness[~same].mean()


@pytest.mark.parametrize("seed", range(3))
def test_what_a_sample_shows_by_chance_is_left_out(seed):
    """Without noise every eigenvalue can be read; almost none of them is more than chance."""
    R = histories(400, 90, 0, np.random.default_rng(seed))
    assert ways_of(R).kinds[0].rank <= 2
    assert ways_of(histories(400, 90, 3, np.random.default_rng(seed))).kinds[0].rank >= 2


def test_all_ways_come_from_one_filter():
    R = histories(1000, 60, 3, np.random.default_rng(1))
    ways, rows = ways_of(R), sp.csr_array(R[:20])
    together, weights = ways.together()
    there = ways.there
    assert there == [WAYS[0], WAYS[1], WAYS[3]]  # tastes stand out: WAYS[2] is for where none does
    assert weights.shape == (len(there), together.rank)
    coordinates = together.coordinates(rows)
    popular = coordinates[:, :1] * together.popularity
    for way, weight in zip(there, weights, strict=True):
        expected = popular + (coordinates[:, 1:] * weight) @ together.outward
        np.testing.assert_allclose(ways.chosen(way).scores(rows), expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(ways.chosen(None).scores(rows), popular)


def test_nothing_to_read_is_popularity():
    ways = offered(None, items_of(np.ones((10, 1))), 1, 0.0)
    assert [kind.rank for kind in ways.kinds] == [0, 0]
    assert not ways.there
    assert len(ways.together()[1]) == 0
    assert ways.chosen(None).blend == 0.0


def noisy_moment(off, noise_scale, rng):
    """A moment with symmetric noise, alike for all pairs."""
    noise = noise_scale * rng.standard_normal(off.shape)
    noise = np.triu(noise, 1)
    edge = 2 * noise_scale * np.sqrt(len(off))
    return PairMoment(off + noise + noise.T, partial(wigner, noise_scale=noise_scale), edge)


def falling_items(n):
    counts = 1000 * np.arange(1, n + 1.0) ** -0.9
    return Items(np.arange(n), counts, own_of(counts, 2000.0), 2000.0)


@pytest.mark.thorough
def test_noise_alone_tells_nothing():
    """Deviations of the noise: mean 0, length 1; more than a band of rows at once."""
    rng, items = np.random.default_rng(0), falling_items(300)
    found, told = [], 0
    for _ in range(60):
        moment = noisy_moment(np.zeros((300, 300)), 3.0, rng)
        beside = beside_popularity(moment, items)
        found.append(energy(*beside, items, moment.edge))
        told += tells(moment, items)
    assert abs(np.mean(found)) < 6 / np.sqrt(60)
    assert 0.5 < np.std(found) < 1.6
    assert told < 35


def test_what_popularity_explains_is_taken_away():
    """Pairs of a function of popularity, and their missing diagonal."""
    items = falling_items(300)
    v = items.popular
    off = 5.0 * np.outer(v, v) + 3.0 * np.outer(v**2, v**2) - 2.0 * (np.outer(v**2, v) + v**3)
    off = (off + off.T) / 2 - 0.7 * np.diag(v**2)
    moment = PairMoment(off, partial(wigner, noise_scale=1.0), 1.0)
    left, basis = beside_popularity(moment, items)
    assert np.abs(basis.T @ basis - np.eye(2)).max() < 1e-12
    P = np.eye(300) - basis @ basis.T
    absent = P @ np.diag(v**2) @ P
    np.fill_diagonal(absent, 0.0)
    expected = P @ off @ P
    expected -= (expected * absent).sum() / (absent**2).sum() * absent
    np.testing.assert_allclose(left, expected, atol=1e-12)


@pytest.mark.parametrize("n_tastes", [0, 3])
def test_tastes_tell_and_long_histories_do_not(n_tastes):
    """Some histories are four times as long as others: a second direction that is no taste."""
    rng, told, found = np.random.default_rng(1), 0, []
    for _ in range(8):
        R = histories(2000, 90, n_tastes, rng)
        R *= rng.random(R.shape) < np.where(rng.random(2000) < 0.5, 0.25, 1.0)[:, None]
        moment, items = noisy_moment(exact_moment(R).off, 3.0, rng), items_of(R)
        found.append(energy(*beside_popularity(moment, items), items, moment.edge))
        told += tells(moment, items)
    assert np.mean(found) < 1.5 if n_tastes == 0 else np.mean(found) > 2.5
    assert told <= 6 if n_tastes == 0 else told == 8


def test_the_worse_the_counts_the_more_must_be_told():
    """Many weak tastes: each energy that tells beside bad counts tells beside good ones."""
    rng, items, told = np.random.default_rng(3), falling_items(120), []
    many = noisy_moment(np.zeros((120, 120)), 1.0, rng).off
    for weak in np.linspace(0.0, 0.7, 30):
        moment = noisy_moment(weak * many, 1.0, rng)
        told.append([tells(moment, items, loss) for loss in (0.0, 0.002, 0.01, 1.0)])
    found = np.sum(told, axis=0)
    assert np.all(np.diff(np.array(told, int), axis=1) <= 0)
    assert found[0] > found[1] > found[2] == found[3] > 0


def test_exact_pairs_always_tell():
    R = histories(200, 30, 0, np.random.default_rng(2))
    assert tells(exact_moment(R), items_of(R))
