"""Location and spread of columns, from released numbers."""

import math

import numpy as np
import pytest

from skdp.answer import Answer
from skdp.solvers.columns import find_columns, find_kinds, release_moments
from tools.gate import Noisy


class Entries(Noisy):
    """What `find_columns` asks, of known columns under known noise; wrong `part` about 0."""

    def __init__(self, X, noise, rng, part=1.0):
        super().__init__(noise, rng)
        self.X, self.weights, self.part = X, np.ones(X.shape[1]), part

    def weighted(self, weights):
        self.weights = weights
        return self

    def count(self, *, share):
        return self._noisy(np.array(float(len(self.X))), share)

    def grid(self, points):
        return _Ranks(self, self.X, np.ones(self.X.shape, bool), points)

    def distances(self, center, points):
        distance = np.abs(self.X * (1.0 if center.any() else self.part) - center)
        return _Ranks(self, distance, distance > 0, points)

    def _noisy(self, value, share):
        return self.noisy(value, share, self.noise / np.sqrt(share))


class _Ranks:
    def __init__(self, entries, numbers, seen, points):
        self.entries, self.numbers, self.seen, self.points = entries, numbers, seen, points

    def ranks(self, which, *, share):
        below = np.where(self.numbers <= self.points[np.arange(len(which)), which], 0.5, -0.5)
        ranks = self.entries.weights * (below * self.seen).sum(axis=0)
        length = np.linalg.norm(self.entries.weights) / np.sqrt(ranks.size)
        return self.entries.noisy(ranks, share, length * self.entries.noise / np.sqrt(share))


@pytest.mark.thorough
@pytest.mark.parametrize("n", [None, 2000.0])
@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("shares", [(0.2, 0.06), (0.1, 0.4)])
def test_kinds_that_are_searched_at_once_have_the_noise_of_their_own_searches(
    shares, centered, n, rng
):
    """And lie where they lie alone: none takes the scale of the other kind for its own."""
    X = rng.standard_normal((2000, 6)) * [1, 2, 1, 2, 3e5, 6e5]
    apart, asked = [X[:, :4], X[:, 4:]], Entries(X, math.sqrt(6), rng)
    joint = find_kinds(asked, (4, 2), shares, n, centered=centered)
    assert sum(asked.shares) == pytest.approx(sum(shares))
    for columns, part, share in zip(joint, apart, shares, strict=True):
        count = n or (2000.0 if columns is joint[1] else None)
        ask = Entries(part, math.sqrt(part.shape[1]), rng)
        alone = find_columns(ask, part.shape[1], share, count, centered=centered)
        assert columns.noise == pytest.approx(alone.noise)
        assert columns.needed == pytest.approx(alone.needed, abs=1)
        for one in (columns, alone):
            assert one.found.all()
            assert np.abs(np.log2(one.deviation / part.std(axis=0))).max() < 1
            assert np.abs(one.center).max() < part.std()


@pytest.mark.parametrize("distance", [2e3, 2e4, 2e5, 2e6])
def test_columns_are_found_however_far_from_zero(distance, rng):
    X = rng.standard_normal((2000, 3)) + [0.0, distance, -distance]
    found = find_columns(asked := Entries(X, 12.0, rng), 3, 1.0, None)
    np.testing.assert_allclose(found.center, [0.0, distance, -distance], atol=0.5)
    assert np.all(np.abs(np.log2(found.scale)) < 1.2) and sum(asked.shares) == pytest.approx(1)
    assert found.center_found.all()  # or targets there would have no model


@pytest.mark.thorough
@pytest.mark.parametrize("unit", [1e9, 1.0, 1e3, 1e6])
def test_times_since_1970_are_found_beside_other_columns(unit):
    """Up to nanoseconds, as pandas stores them: then all questions may lie below the median."""

    def table(rng):
        n, normal = 4500, rng.standard_normal((4500, 4))
        rare, dummy = (rng.random(n) < 0.1) * rng.exponential(5, n), rng.random(n) < 0.3
        others = 1e5 + normal[:, 1], rng.integers(1990, 2021, n), np.exp(1.5 * normal[:, 2])
        times = unit * 1e7 * (165 + 3 * normal[:, 3])
        return np.column_stack([normal[:, 0], dummy, rare, *others, times])

    for X, found in searched(table, 12.0, 5):
        assert found.center_found[6] and abs(np.log2(found.deviation[6] / X[:, 6].std())) < 1


@pytest.mark.deep
@pytest.mark.parametrize("noise", [6.0, 40.0])
def test_a_median_between_clear_ranks_may_be_in_the_last_log2_bin(noise, rng):
    """Beside dummies the first questions leave several bins, however many rows there are."""
    dummies = rng.random((6000, 90)) < rng.beta(0.5, 3, 90)
    medians = np.array([20, 40, 70, 150, 300, 530, 560, 590, 616, 650, 700, 800, 900])
    X = np.column_stack([dummies, medians * (1 + 0.06 * rng.standard_normal((6000, 13)))])
    found = find_columns(Entries(X, noise, rng), X.shape[1], 1.0, 6000.0)
    assert np.all(np.abs(found.center[90:] / medians - 1) < 0.06)
    assert np.all(np.abs(np.log2(found.scale[90:] / medians / 0.06)) < 1)


@pytest.mark.parametrize("part", [0.01, 0.25])
def test_a_median_beyond_what_was_searched_is_not_seen(part, rng):
    """As if noise had cut the first range short: a search that goes on looks farther."""
    ask = Entries(294 + rng.standard_normal((150, 4)), 4.0, rng, part)
    found = find_columns(ask, 4, 1.0, 150.0)
    assert not found.center_found.any() and np.all(found.within > 250)


@pytest.mark.deep
@pytest.mark.parametrize(("noise", "n"), [(8.0, 400), (16.0, 100)])
def test_a_centre_that_many_rows_leave_uncertain_is_near_enough_for_a_model(noise, n):
    """With few rows it is not: the scale may be the distance of the entries from it."""
    found = [f for _, f in searched(lambda rng: 30 + rng.standard_normal((n, 2)), noise)]
    center, centered, located = np.hstack([(f.center, f.center_found, f.located) for f in found])
    uncertain = located > centered
    assert uncertain.any() == (n > found[0].needed)
    assert np.all(np.abs(center[uncertain] - 30) < 2)


def searched(make, noise, tables=20):
    """Yield tables and what a search of their columns found."""
    for rng in map(np.random.default_rng, range(tables)):
        X = make(rng)
        yield X, find_columns(Entries(X, noise, rng), X.shape[1], 1.0, float(len(X)))


@pytest.mark.deep
def test_narrow_columns_and_those_of_few_rows_far_from_zero_are_found():
    """All points may lie above a scale; the mean of the ranks of a stage has less noise."""
    narrow = searched(lambda rng: 1e-3 * rng.standard_normal((2000, 3)) + [0.1, 1, -0.5], 12.0)
    assert all(found.found.all() for _, found in narrow)
    far = searched(lambda rng: rng.standard_normal((800, 6)) + 2e4 * rng.uniform(1, 4, 6), 20.0)
    assert np.mean([np.abs(found.center - X.mean(axis=0)) > 2 for X, found in far]) < 0.2


@pytest.mark.thorough
def test_seconds_are_found_next_to_columns_of_real_tables():
    """By these they would lie in the lower one of the bins that the questions leave."""
    seconds = searched(lambda rng: np.c_[real_columns(3000, rng), rng.normal(1.7e9, 3e4, 3000)], 12)
    assert max(abs(found.center[7] - 1.7e9) for _, found in seconds) < 3e4


@pytest.mark.deep
@pytest.mark.parametrize("ones", [0.7, 0.9])
def test_dummies_of_which_most_are_one_lie_at_one(ones):
    """A point below 1 whose rank is small by chance, or a closer look at 1, loses more of them."""
    dummies = searched(lambda rng: (rng.random((500, 10)) < ones) * 1.0, 12.0)
    assert np.mean([np.abs(np.log2(found.scale)) > 3 for _, found in dummies]) < 0.2


def real_columns(n, rng):
    """A shift, an amount with zeros, dummies, a sentinel, a frequent price, ratings, years."""
    return np.column_stack([
        50 + rng.standard_normal(n),
        np.where(rng.random(n) < 0.9, 0.0, rng.exponential(5.0, n)),
        rng.random(n) < 0.3,
        np.where(rng.random(n) < 0.7, -999.0, rng.normal(50, 10, n)),
        np.where(rng.random(n) < 0.6, 9.99, rng.normal(10, 3, n)),
        rng.choice([1, 2, 3, 4, 5], n, p=[0.1, 0.1, 0.1, 0.1, 0.6]),
        rng.integers(1950, 2020, n),
    ]).astype(float)  # fmt: skip


@pytest.mark.deep
@pytest.mark.parametrize("n", [None, 20_000.0])
def test_columns_of_real_tables(n):
    """The centre lies among the entries, most within the spread, hardly any outside the reach."""
    rng = np.random.default_rng(6)
    X = real_columns(20_000, rng)
    found = find_columns(Entries(X, 5 * math.sqrt(7), rng), 7, 1.0, n)
    assert np.count_nonzero(found.found) >= 5  # a sentinel in seven of ten now and then is not
    assert found.n == (n or pytest.approx(len(X), rel=0.1))
    ratio = found.scale / X.std(axis=0)
    assert np.all(ratio > 0.2) and np.all(ratio < 6)
    assert np.all(np.abs(found.center - np.median(X, axis=0)) < 2 * X.std(axis=0))
    np.testing.assert_array_equal(found.center[[1, 2, 5]], [0, 0, 5])  # what most entries are
    np.testing.assert_array_equal(found.radius(1e9), 4 * found.scale)


@pytest.mark.deep
def test_a_half_that_is_alike_does_not_hide_how_far_the_others_lie():
    """Half of the dummies are 1, and three in ten amounts thousands of times as far as the others.

    With factors of up to 256, and none between it and 16, dummies are told 2.75, and amounts a
    thirtieth of their deviation.
    """
    rng = np.random.default_rng(8)
    dummies = np.tile(np.repeat([[0.0], [1.0]], 1000, axis=0), 200)
    assert find_columns(Entries(dummies, 2.0, rng), 200, 1.0, 2000.0).scale.max() < 1.5
    far = np.exp(rng.normal(8, 1, (2000, 50)))
    amounts = np.where(rng.random(far.shape) < 0.3, far, rng.random(far.shape))
    found = find_columns(Entries(amounts, 2.0, rng), 50, 1.0, 2000.0)
    assert (np.abs(np.log2(found.deviation / amounts.std(axis=0))) < 2).all()
    # Three in a hundred far away are cut where noise is as large as they are, and count without it.
    few = np.where(rng.random((2000, 50)) < 0.03, 40.0, rng.standard_normal((2000, 50)))
    for noise, least, most in ((20.0, 0.1, 0.2), (0.5, 0.5, 2.0)):
        told = find_columns(Entries(few, noise, rng), 50, 1.0, 2000.0).deviation / few.std(axis=0)
        assert least < np.median(told) < most


@pytest.mark.thorough
def test_noise_raises_no_scale_and_finds_none():
    """With a released total beyond the number of rows, it raised one in 300, by up to 4^7."""
    tables = searched(lambda rng: rng.standard_normal((400, 60)), 12.0, 100)
    assert np.mean([found.scale / X.std(axis=0) > 8 for X, found in tables]) < 1e-3
    rare = searched(lambda rng: 1.0 * (rng.random((400, 60)) < 0.03), 1.0, 100)
    assert np.mean([found.scale > 8 for _, found in rare]) < 1e-3  # 3 in 1,000 had 64 and more
    few = [found for _, found in searched(lambda rng: 5 + rng.standard_normal((60, 6)), 12.0)]
    assert np.mean([found.found for found in few]) < 0.2
    assert len({found.noise for found in few}) == 1  # nothing is spent on a closer look


def test_moments_of_columns():
    Sums = type("Sums", (Answer,), {"moments": lambda self, *_, share: self})
    sums = np.array([50.0, 1.66 * (40.0 - 100.0 / 2), 0.5 * 100.0])
    found = release_moments(Sums(sums, 0.0), np.array([3.0]), np.array([2.0]), None, 1.0)
    np.testing.assert_allclose([*found.mean, *found.variance, found.n], [4.0, 4 * 0.15, 100.0])
    lost = release_moments(Sums(np.zeros(3), 10.0), np.zeros(1), np.ones(1), None, 1.0)
    assert lost.n == 40.0 and lost.variance > 0
