"""Tastes from pairs of items: what is read, what chance alone would show, and ways to use them."""

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import aslinearoperator

from skdp.solvers.shrinkage import PairMoment, wigner
from skdp.solvers.tastes import WAYS, Items, offered, own_of

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
