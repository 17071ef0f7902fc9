"""The finder of private scales: what it misses, and whether it says so."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest

from skdp.answer import Answer
from skdp.solvers.place import (
    QUESTIONS,
    RAISING,
    Scale,
    find_scale,
    find_scales,
    finer_scale,
    private_clip_level,
    raised_level,
)

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


@pytest.mark.deep
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
            level, found, *_ = find_scale(Ranks(numbers[:, None], MU, rng), 1.0)
            off = math.log2(level / np.median(kept)) - 0.5 if kept.size else 0.0
            sure_and_wrong += bool(found) and abs(off) > 3
            doubts += not found
    assert doubts <= 6  # at the last size, where the signal suffices
    assert sure_and_wrong <= 10  # 1% of 240, and 5 deviations


@pytest.mark.thorough
def test_what_is_not_found_is_guessed_low():
    rng = np.random.default_rng(1)
    levels = [
        find_scale(Ranks(np.full((20, 1), 1.0), MU, rng), 1.0).value for _ in range(200)
    ]  # pure chance
    assert np.mean(np.array(levels) > 8) < 0.1


@pytest.mark.thorough
@pytest.mark.parametrize("d", [1, 3])
def test_the_number_of_questions_is_fixed(d):
    for signs in itertools.product([-1e9, 1e9], repeat=QUESTIONS):
        asked, answers = [], iter(signs)

        def ranks(thresholds, *, share, asked=asked, answers=answers):
            asked.append(share)
            return SimpleNamespace(value=np.full(d, next(answers)), noise_scale=1.0)

        level, found, *_ = find_scales(ranks, d, 0.7)
        assert asked == [0.7 / QUESTIONS] * QUESTIONS
        assert np.all(np.isfinite(level)) and np.all(level > 0)
        assert level.shape == found.shape == (d,)


def test_without_noise_and_with_a_guess():
    rng = np.random.default_rng(2)
    numbers = np.full((1, 1), 3e7)
    for near in (1.0, 1e6):
        level, found, *_ = find_scale(Ranks(numbers, 1e6, rng), 1.0, near=near)
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
    level, found, *_ = find_scales(Ranks(X, 0.075, rng), 100, 1.0)
    near = np.abs(np.log2(level / 674)) < 3
    assert near.mean() > 0.95
    assert not np.any(found & ~near)


def test_medians_are_found_in_their_octave():
    rng = np.random.default_rng(9)
    for median in (0.51, 0.7, 0.8, 0.9, 1.0):
        column = np.exp(np.log(median) + 0.3 * rng.standard_normal((4001, 1)))
        found = Scale(1.0, True, 0)
        fine = finer_scale(Ranks(column, 10.0, rng), found, 1.0)
        assert fine == pytest.approx(math.ceil(8 * median) / 8, abs=0.126)
        assert finer_scale(Ranks(column, 10.0, rng), found._replace(found=False), 1.0) == 1


# -- clip levels -----------------------------------------------------------------------------------


class Norms:
    """Counts of norms above a level, or what a script says; keeps the questions."""

    def __init__(self, norms, noise=0.0, script=()):
        self.norms, self.noise, self.asked = np.asarray(norms), noise, []
        self.script = list(script)

    def above(self, threshold, *, share):
        self.asked.append((threshold, share))
        exact = np.count_nonzero(self.norms > threshold)
        return Answer(np.asarray(self.script.pop() if self.script else exact), self.noise)


@pytest.mark.parametrize("goal", [0.0, 1.0, 30.0, 700.0])
def test_clip_level_leaves_about_the_goal_above(goal):
    norms = np.random.default_rng(2).uniform(0, 1, 1000) ** 2
    ask = Norms(norms)
    level = private_clip_level(ask.above, 1.0, goal, 0.1)
    assert np.count_nonzero(norms > level) <= goal
    next_lower = level * 2**-0.25
    assert np.count_nonzero(norms > next_lower) > goal
    assert math.fsum(share for _, share in ask.asked) == pytest.approx(0.1)


def test_clip_level_is_at_most_the_largest():
    assert private_clip_level(Norms(np.full(50, 5.0)).above, 2.0, 0.0, 1.0) == 2.0
    lowest = private_clip_level(Norms(np.zeros(50)).above, 2.0, 0.0, 1.0)
    assert lowest == pytest.approx(2.0 * 2**-20)
    everyone = private_clip_level(Norms(np.full(50, 1.0)).above, 2.0, 50.0, 1.0)
    assert everyone == pytest.approx(2.0 * 2**-20)  # the goal allows to shorten all


def test_clip_level_asks_a_fixed_number_of_questions():
    rng = np.random.default_rng(0)
    scripts = [np.full(7, -1e9), np.full(7, 1e9), *rng.choice([-1e9, 1e9], (200, 7))]
    asked = set()
    for signs in scripts:
        ask = Norms([], 1.0, signs)
        assert 0 < private_clip_level(ask.above, 3.0, 5.0, 0.7) <= 3.0
        asked.add(tuple(share for _, share in ask.asked))
    assert asked == {(0.7 / 7,) * 7}


@pytest.mark.parametrize(
    ("spread", "goal", "factor", "least"), [(1.0, 100, 1.5, 1.0), (1.8, 3, 3.0, 500.0)]
)
def test_levels_are_raised_to_where_few_lie_above_and_no_further(spread, goal, factor, least):
    """Also where few rows hold nearly all: half octaves ended at 181 times the lowest level."""
    norms = np.random.default_rng(3).lognormal(0.0, spread, size=20_000)
    raised = raised_level(Norms(norms).above, 1.0, goal, 0.1)
    assert raised > least
    assert np.count_nonzero(norms > raised) <= goal < np.count_nonzero(norms > raised / factor)
    assert raised_level(Norms(norms).above, 1.0, 11000.0, 0.1) == 1.0


def test_levels_that_noise_hides_stay():
    norms = np.random.default_rng(3).lognormal(size=300)
    hidden = Norms(norms, noise=100.0)  # no count stands clear of its noise
    assert raised_level(hidden.above, 1.0, 10.0, 0.1) == 1.0
    assert len(hidden.asked) == RAISING
    assert math.fsum(share for _, share in hidden.asked) == pytest.approx(0.1)


@pytest.mark.thorough
def test_a_level_is_hardly_ever_raised_far_by_mistake():
    """Noise grows with the square of a level; two counts in a hundred meant 16 times as much."""
    noise = np.random.default_rng(0)

    def nothing(threshold, *, share):
        return Answer(np.asarray(noise.standard_normal()), 1.0)

    raised = np.array([raised_level(nothing, 1.0, 0.0, 1.0) for _ in range(20_000)])
    assert np.mean(raised >= 16.0) < 0.0008
    assert np.mean(raised >= 4.0) < 0.004
    assert np.mean(raised > 1.0) < 0.05
