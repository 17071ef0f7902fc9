"""What a recommender decides from released numbers."""

import numpy as np
import pytest

from skdp.answer import Answer
from skdp.solvers.recommend import best_way, buy_counts, list_loss
from skdp.solvers.tastes import WAYS, Way


@pytest.mark.thorough
@pytest.mark.parametrize("tail", [0.5, 1.0])
@pytest.mark.parametrize("noise_scale", [3.0, 10.0, 40.0])
def test_the_loss_of_a_list_is_what_noise_took_from_it(tail, noise_scale):
    """Estimated from noisy counts alone; the true loss is known here."""
    rng = np.random.default_rng(0)
    counts = 1000 * np.arange(1, 801.0) ** -tail
    best, true, found = counts[:40].sum(), [], []
    for _ in range(60):
        noisy = counts + noise_scale * rng.standard_normal(800)
        true.append(1 - counts[np.argsort(-noisy)[:40]].sum() / best)
        found.append(list_loss(noisy, noise_scale))
    assert np.mean(true) / 3 - 1e-3 < np.mean(found) < 3 * np.mean(true) + 1e-3


def test_a_list_of_nothing_is_lost_and_a_list_of_everything_is_not():
    assert list_loss(np.full(100, -1.0), 1.0) == 1.0
    assert list_loss(np.array([3.0]), 5.0) == pytest.approx(0.0)
    assert list_loss(np.arange(100.0), 0.0) == pytest.approx(0.0)


def test_counts_are_bought_until_they_are_known():
    counts = 2000 * np.arange(1, 501.0) ** -0.8
    spent = {}
    for noise_scale in (1.0, 8.0, 40.0, 400.0):  # of the whole budget
        rng = np.random.default_rng(0)

        def ask(share, rng=rng, noise_scale=noise_scale):
            scale = noise_scale / share**0.5
            return Answer(counts + scale * rng.standard_normal(500), scale)

        found = buy_counts(ask, 0.9, "gram")
        spent[noise_scale] = found.spent
        assert found.noise_scale == pytest.approx(noise_scale / found.spent**0.5)
        assert found.readable == (found.spent < 0.89)
    assert list(spent.values()) == sorted(spent.values())
    assert spent[1.0] == pytest.approx(0.036)
    assert spent[400.0] == pytest.approx(0.9)


def test_a_way_must_be_clearly_better_than_popularity():
    assert WAYS[0] == Way(0, 0.0, 0.0, 0.0)
    assert best_way(np.zeros(len(WAYS)), 1.0, 1.0) == 0
    for way, (_, _, doubt, luck) in enumerate(WAYS[1:], 1):
        gains = (np.arange(len(WAYS)) == way) * 10.0
        assert best_way(gains, 0.1, 0.1) == way
        assert best_way(gains, 0.0, 10.1 / luck) == 0
        assert best_way(gains, 10.1 / max(doubt, 1e-9), 0.0) == (0 if doubt else way)
