"""The finder of private scales: what it misses, and whether it says so."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest

from skdp.solvers.columns import MomentWeights, find_columns
from skdp.solvers.scales import QUESTIONS, find_scale, find_scales, numbers_needed

MU = 0.02774  # of a twentieth of (epsilon, delta) = (0.5, 1e-6)


class Ranks:
    """Noisy ranks among the entries of columns that are not zero."""

    def __init__(self, X, mu, rng, center=0.0):
        self.columns = [np.sort(np.abs(column[column != 0])) for column in (X - center).T]
        self.mu, self.rng, self.asked = mu, rng, []

    def __call__(self, thresholds, *, share):
        self.asked.append((thresholds, share))
        thresholds = np.atleast_1d(thresholds)
        d = len(thresholds)
        scale = 0.5 * math.sqrt(d / share) / self.mu
        pairs = zip(self.columns, thresholds, strict=True)
        below = [np.searchsorted(column, threshold, "right") for column, threshold in pairs]
        exact = np.array(below) - [len(column) / 2 for column in self.columns]
        return SimpleNamespace(value=exact + scale * self.rng.standard_normal(d), noise_scale=scale)


def rows_of(kind, n, rng):
    return {
        "normal": lambda: np.linalg.norm(rng.standard_normal((n, 8)), axis=1),
        "cauchy": lambda: np.abs(rng.standard_cauchy(n)),
        "lognormal": lambda: np.exp(2 * rng.standard_normal(n)),
        "discrete": lambda: rng.integers(1, 6, n).astype(float),
        "mostly zero": lambda: np.abs(rng.standard_normal(n)) * (rng.random(n) < 0.1),
    }[kind]()


ENOUGH = {"normal": 400, "cauchy": 400, "lognormal": 800, "discrete": 400, "mostly zero": 5000}


@pytest.mark.parametrize("kind", ENOUGH)
def test_scales_are_found_or_doubt_is_shown(kind):
    """Hardly any search is more than 8 times off and sure of itself.

    The chance of one such search is below 1%.
    """
    rng, sure_and_wrong = np.random.default_rng(0), 0
    for n in (50, 200, 1000, ENOUGH[kind]):
        doubts = 0
        for _ in range(60):
            numbers = rows_of(kind, n, rng) * 2.0 ** rng.uniform(-40, 40)
            kept = numbers[numbers > 0]
            level, found = find_scale(Ranks(numbers[:, None], MU, rng), 1.0)
            off = math.log2(level / np.median(kept)) - 0.5 if kept.size else 0.0
            sure_and_wrong += bool(found) and abs(off) > 3
            doubts += not found
    assert doubts <= 6  # at the last size, where the signal suffices
    assert sure_and_wrong <= 10  # 1% of 240, and 5 deviations


def test_what_is_not_found_is_guessed_low():
    rng = np.random.default_rng(1)
    levels = [
        find_scale(Ranks(np.full((20, 1), 1.0), MU, rng), 1.0).value for _ in range(200)
    ]  # pure chance
    assert np.mean(np.array(levels) > 8) < 0.1


@pytest.mark.parametrize("d", [1, 3])
def test_the_number_of_questions_is_fixed(d):
    for signs in itertools.product([-1e9, 1e9], repeat=QUESTIONS):
        asked, answers = [], iter(signs)

        def ranks(thresholds, *, share, asked=asked, answers=answers):
            asked.append(share)
            return SimpleNamespace(value=np.full(d, next(answers)), noise_scale=1.0)

        level, found = find_scales(ranks, d, 0.7)
        assert asked == [0.7 / QUESTIONS] * QUESTIONS
        assert np.all(np.isfinite(level)) and np.all(level > 0)
        assert level.shape == found.shape == (d,)


def test_without_noise_and_with_a_guess():
    rng = np.random.default_rng(2)
    numbers = np.full((1, 1), 3e7)
    for near in (1.0, 1e6):
        level, found = find_scale(Ranks(numbers, 1e6, rng), 1.0, near=near)
        assert found
        assert 0.5 < level / 3e7 < 4


def test_thresholds_are_powers_of_two():
    ranks = Ranks(np.ones((9, 4)), 1.0, np.random.default_rng(0))
    find_scales(ranks, 4, 1.0, near=np.array([1.0, 3.0, 1e-5, 1e9]))
    assert all(np.all(np.frexp(thresholds)[0] == 0.5) for thresholds, _ in ranks.asked)


def test_columns_share_what_they_show():
    """A hundred columns of one scale, none of which shows it alone (numbers times mu: 2.2)."""
    rng = np.random.default_rng(3)
    X = 1000 * rng.standard_normal((300, 100))
    level, found = find_scales(Ranks(X, 0.075, rng), 100, 1.0)
    near = np.abs(np.log2(level / 674)) < 3
    assert near.mean() > 0.95
    assert not np.any(found & ~near)


def test_columns_keep_their_own_scale():
    rng = np.random.default_rng(4)
    units = 2.0 ** rng.uniform(-30, 30, 30)
    level, found = find_scales(Ranks(units * rng.standard_normal((3000, 30)), 0.1, rng), 30, 1.0)
    assert found.all()
    assert np.all(np.abs(np.log2(level / (0.674 * units)) - 0.5) < 2)


def test_enough_numbers_are_enough():
    rng = np.random.default_rng(5)
    n = numbers_needed(MU)
    found = [find_scale(Ranks(rows_of("normal", n, rng)[:, None], MU, rng), 1.0)[1]
             for _ in range(100)]  # fmt: skip
    assert np.mean(found) > 0.5


class Columns:
    """Noiseless columns, as `find_columns` asks for them."""

    def __init__(self, X):
        self.X, self.rng = X, np.random.default_rng(0)

    def octaves(self, center):
        return SimpleNamespace(ranks=Ranks(self.X, 10.0, self.rng, center))

    def moments(self, center, size, weight, *, share):
        w = np.clip((self.X - center) / size, -1, 1)
        sums = [*w.sum(axis=0), *(w * w - 0.5).sum(axis=0), len(w) * weight]
        return SimpleNamespace(value=np.array(sums), noise_scale=1e-3)


def test_columns_far_from_zero_and_mostly_zero():
    rng = np.random.default_rng(6)
    X = np.column_stack([
        1e6 + rng.standard_normal(4000),
        np.where(rng.random(4000) < 0.9, 0.0, rng.exponential(5.0, 4000)),
    ])  # fmt: skip
    shares = {"scales": 0.3, "means": 0.4, "spreads": 0.3}
    found = find_columns(Columns(X), 2, shares, MomentWeights(1.0, 1.0), None)
    assert found.found.all()
    np.testing.assert_allclose(found.center, X.mean(axis=0), atol=0.5)
    assert 0.5 < found.spread[0] < 2.1
    assert np.all(found.reach(1.0) > 2 * X.std(axis=0))
    assert found.reach(1e9)[0] == 4 * found.spread[0]
