"""The finder of private scales: what it misses, and whether it says so."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest

from skdp.answer import Answer
from skdp.solvers.median_search import (
    QUESTIONS,
    clip_levels,
    find_between,
    find_scale,
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


ROWS = {
    "normal": lambda n, rng: np.linalg.norm(rng.standard_normal((n, 8)), axis=1),
    "cauchy": lambda n, rng: np.abs(rng.standard_cauchy(n)),
    "lognormal": lambda n, rng: np.exp(2 * rng.standard_normal(n)),
    "discrete": lambda n, rng: rng.integers(1, 6, n).astype(float),
    "mostly zero": lambda n, rng: np.abs(rng.standard_normal(n)) * (rng.random(n) < 0.1),
}
ENOUGH = {"normal": 400, "cauchy": 400, "lognormal": 800, "discrete": 400, "mostly zero": 5000}


@pytest.mark.deep
@pytest.mark.parametrize("kind", ENOUGH)
def test_scales_are_found_or_doubt_is_shown(kind):
    """Hardly any search is more than 8 times off and sure of itself.

    The chance of one such search is below 1%.
    """
    rng, sure_and_wrong = np.random.default_rng(0), 0
    for n, tries in ((50, 60), (200, 60), (1000, 60), (ENOUGH[kind], 240)):
        doubts = 0
        for _ in range(tries):
            numbers = ROWS[kind](n, rng) * 2.0 ** rng.uniform(-40, 40)
            kept = numbers[numbers > 0]
            level, found, *_ = find_scale(Ranks(numbers[:, None], MU, rng), 1.0)
            off = math.log2(level / np.median(kept)) - 0.5 if kept.size else 0.0
            sure_and_wrong += bool(found) and abs(off) > 3
            doubts += not found
    assert doubts <= 24  # of 240 at the last size, where the signal suffices
    assert sure_and_wrong <= 10  # of 420


@pytest.mark.thorough
def test_what_is_not_found_is_guessed_low(rng):
    levels = [
        find_scale(Ranks(np.full((20, 1), 1.0), MU, rng), 1.0).value for _ in range(200)
    ]  # pure chance
    assert np.mean(np.array(levels) > 8) < 0.1


@pytest.mark.thorough
def test_the_number_of_questions_is_fixed():
    for signs in itertools.product([-1e9, 0.0, 1e9], repeat=QUESTIONS):
        asked, answers = [], iter(signs)

        def rank(threshold, *, share, asked=asked, answers=answers):
            asked.append(share)
            return Answer(np.asarray(next(answers)), 1.0)

        level, _, needed = find_scale(rank, 0.7)
        assert asked == pytest.approx([0.7 / QUESTIONS] * QUESTIONS)
        assert 0 < level < math.inf and needed > 0


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("bins", "most"), [(range(-10, 10), 0.15), (range(-20, 39), 0.53), (range(-43, 63), 0.85)]
)
def test_without_noise_and_with_a_guess(bins, most, rng):
    """Near the guess half of a log2 bin is left, and its middle is taken; farther off, two."""
    for b in bins:
        numbers = Ranks(np.full((1, 1), 3e7 * 2.0**b), 1e6, rng)
        level, found, _ = find_scale(numbers, 1.0, near=3e7)
        assert found and abs(math.log2(level / 3e7) - b) < most


@pytest.mark.thorough
def test_one_far_number_in_a_hundred_does_nothing(rng):
    for n in (60, 300, 3000):
        numbers = np.linalg.norm(rng.standard_normal((n, 8)), axis=1)
        numbers[:: min(100, n - 1)] = 1e8
        levels = [find_scale(Ranks(numbers[:, None], 0.2, rng), 1.0).value for _ in range(40)]
        off = np.abs(np.log2(np.array(levels) / np.median(numbers)))
        assert np.quantile(off, 0.9) < 0.5


def test_two_heaps_far_apart_show_the_one_with_the_median(rng):
    """A search by the slope of ranks ended between the two, eight times too low, and was sure."""
    numbers = np.where(np.arange(3000) % 20 < 9, 1e-3, 1) * np.exp(0.2 * rng.standard_normal(3000))
    for _ in range(40):
        level, found, _ = find_scale(Ranks(numbers[:, None], 0.028, rng), 1.0)
        assert not found or abs(math.log2(level / np.median(numbers))) < 3


@pytest.mark.parametrize("questions", [3, 6])
def test_a_median_between_two_numbers(questions, rng):
    for median in (0.4, 0.7, 1.3, 2.9):
        column = np.exp(np.log(median) + 0.1 * rng.standard_normal((4001, 1)))
        ask = Ranks(column, 10.0, rng)
        level = find_between(ask, (1 / 3, 3.0), questions, 1.0)
        assert abs(math.log2(level / median)) < math.log2(9) / 2**questions + 0.1
        assert [share for _, share in ask.asked] == pytest.approx([1 / questions] * questions)
    assert 1 / 3 < find_between(Ranks(np.full((9, 1), 50.0), 10.0, rng), (1 / 3, 3.0), 6, 1.0) < 3


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
    assert np.count_nonzero(norms > level * np.divide(*clip_levels(1.0)[:2])) > goal
    assert math.fsum(share for _, share in ask.asked) == pytest.approx(0.1)


def test_clip_level_is_at_most_the_largest():
    assert private_clip_level(Norms(np.full(50, 5.0)).above, 2.0, 0.0, 1.0) == 2.0
    lowest = private_clip_level(Norms(np.zeros(50)).above, 2.0, 0.0, 1.0)
    assert lowest == clip_levels(2.0)[0]
    everyone = private_clip_level(Norms(np.full(50, 1.0)).above, 2.0, 50.0, 1.0)
    assert everyone == clip_levels(2.0)[0]  # the goal allows to shorten all


def test_clip_level_asks_a_fixed_number_of_questions(rng):
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
    """Also where few rows hold nearly all: half log2 bins ended at 181 times the lowest level."""
    norms = np.random.default_rng(3).lognormal(0.0, spread, size=20_000)
    raised = raised_level(Norms(norms).above, 1.0, goal, 0.1)
    assert raised > least
    assert np.count_nonzero(norms > raised) <= goal < np.count_nonzero(norms > raised / factor)
    assert raised_level(Norms(norms).above, 1.0, 11000.0, 0.1) == 1.0


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
