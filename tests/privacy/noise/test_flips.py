"""Flips of cells: their law, their price, and what the gate makes of them."""

import math

import numpy as np
import pytest
import scipy.sparse as sp
from scipy import stats

from skdp.exceptions import BudgetExceededError, PrivacyError
from skdp.privacy.gate.bounds import Bound, Bounded
from skdp.privacy.noise.integers import (
    LAPLACE_SCALE,
    chance_of_flip,
    draw_flips,
    flip_rate,
    flipped,
    integer_geometric,
    unbiased_deviation,
)
from skdp.privacy.noise.words import SeededSource
from tools.gate import new_session


def words(seed):
    return SeededSource(seed, "flips").words()


@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 1.0, 3.0, 10.0, 20.0, 60.0])
def test_a_flip_is_as_likely_as_epsilon_asks(epsilon):
    """(1 - p)/p <= e^epsilon, and one step less would not do (where steps are fine enough)."""
    rate = flip_rate(epsilon)
    p = chance_of_flip(rate)
    assert p >= 1 / (1 + math.exp(epsilon)) * (1 - 1e-12)
    assert p < 0.5
    if rate > 1:
        finer = chance_of_flip(rate - 1)
        assert finer <= 1 / (1 + math.exp(epsilon)) * (1 + 1e-9)
    expected = 0.5 / math.sinh(epsilon / 2)
    assert unbiased_deviation(p) == pytest.approx(expected, rel=1e-2) or rate < 1000


def test_geometrics_have_their_law():
    n = 200_000
    drawn = integer_geometric(words(0), n)
    uniform = np.exp(-drawn / LAPLACE_SCALE)
    assert drawn.min() >= 0
    assert stats.kstest(uniform, "uniform").pvalue > 1e-6


@pytest.mark.thorough
@pytest.mark.parametrize("epsilon", [0.2, 1.0, 3.0, 6.0])
def test_flips_are_bernoulli(epsilon):
    """Number, places and gaps of the flips of 400,000 cells."""
    n, rate = 400_000, flip_rate(epsilon)
    p, places = chance_of_flip(rate), draw_flips(words(1), 400_000, rate)
    assert places.dtype == np.int64
    assert np.all(np.diff(places) > 0)
    assert places[0] >= 0
    assert places[-1] < n
    assert all(np.all(draw_flips(words(3), few, rate) < max(few, 1)) for few in (0, 1, 5))
    assert abs(len(places) - n * p) < 6 * math.sqrt(n * p * (1 - p))
    assert stats.kstest(places / n, "uniform").pvalue > 1e-6
    gaps = np.diff(places)
    expected = p * (1 - p) ** np.arange(20) * len(gaps)
    found = np.bincount(gaps - 1, minlength=20)[:20]
    assert np.all(np.abs(found - expected) < 6 * np.sqrt(expected) + 3)


def test_neighbouring_cells_are_flipped_independently():
    n, rate = 300_000, flip_rate(1.0)
    flags = np.zeros(n)
    flags[draw_flips(words(2), n, rate)] = 1
    flags -= chance_of_flip(rate)
    for lag in (1, 2, 7, 100):
        product = flags[lag:] * flags[:-lag]
        assert abs(product.mean()) < 6 * product.std() / math.sqrt(len(product))


def test_flipping_twice_undoes_it():
    rng = np.random.default_rng(0)
    for _ in range(20):
        ones, flips = (np.flatnonzero(rng.random(50) < p).astype(np.int64) for p in (0.3, 0.5))
        once = flipped(ones, flips)
        expected = np.flatnonzero(np.isin(np.arange(50), ones) ^ np.isin(np.arange(50), flips))
        np.testing.assert_array_equal(once, expected)
        np.testing.assert_array_equal(flipped(once, flips), ones)


# -- the gate --------------------------------------------------------------------------------------


def session(epsilon=2.0, delta=0.0):
    return new_session(epsilon, delta, source=SeededSource(0, "gate"), unit="interaction")


def cells(shape, places, moved=1):
    places = np.asarray(places, np.int64)
    return Bounded(Bound("cells", shape, 1.0, cells=moved), lambda _: places)


def test_a_release_of_cells_is_charged_and_unbiased():
    gate = session(3.0)
    answer = gate.release(cells((200, 100), np.arange(0, 20_000, 4)), 0.5)
    (line,) = gate.ledger
    assert line.mechanism == "randomised response"
    assert tuple(line.loss) == ("pure", 1.5)
    assert gate.spent().epsilon == 1.5
    p = chance_of_flip(flip_rate(1.5))
    assert answer.noise_scale == unbiased_deviation(p)
    assert sp.issparse(answer.value)
    unbiased = (answer.value.toarray() - p) / (1 - 2 * p)
    assert abs(unbiased.mean() - 0.25) < 6 * answer.noise_scale / math.sqrt(20_000)


def test_more_cells_cost_more_noise():
    one, two = session(), session()
    a = one.release(cells((50, 50), [3]), 1.0)
    b = two.release(cells((50, 50), [3], moved=2), 1.0)
    assert b.noise_scale == pytest.approx(unbiased_deviation(chance_of_flip(flip_rate(1.0))))
    assert b.noise_scale > a.noise_scale


def test_the_odds_of_each_outcome_change_by_no_more_than_epsilon():
    """Two cells, all outcomes by simulation: log odds of neighbours within epsilon, and near it."""
    epsilon, n = 1.0, 40_000
    rate = flip_rate(epsilon)
    flips = np.zeros(2 * n, np.int64)
    flips[draw_flips(words(5), 2 * n, rate)] = 1
    flips = flips.reshape(n, 2)
    counts = [np.bincount((flips ^ cell) @ [1, 2], minlength=4) / n for cell in ([0, 0], [1, 0])]
    losses = np.abs(np.log(counts[0] / counts[1]))
    assert losses.max() < epsilon + 0.12
    assert losses.max() > epsilon - 0.12


def test_refusals():
    with pytest.raises(ValueError, match="too small"):
        flip_rate(1e-12)
    with pytest.raises(PrivacyError, match="delta=0"):
        session(1.0, 1e-6).release(cells((5, 5), []), 0.5)
    with pytest.raises(BudgetExceededError):
        session().release(cells((5, 5), []), 1.5)
    with pytest.raises(ValueError, match="larger 'epsilon'"):
        session(0.1).release(cells((20_000, 20_000), []), 1.0)
    for wrong in ([3, 2], [1, 1], [-1], [25]):
        with pytest.raises(PrivacyError, match="does not match"):
            session().release(cells((5, 5), wrong), 1.0)


def test_without_privacy_nothing_is_flipped():
    answer = session(math.inf).release(cells((5, 5), [0, 7]), 1.0)
    assert answer.noise_scale == 0.0
    assert answer.value.toarray().nonzero()[1].tolist() == [0, 2]
