"""The number of runs of a search follows its law exactly."""

import math

import numpy as np
import pytest

from skdp.model_selection.selection_laws import LAWS, draw_below, draw_runs, exact_gamma, true_mean
from skdp.privacy.noise.words import SeededSource


def probabilities(law, mean, top):
    k = np.arange(top)
    if law == "poisson":
        return np.exp(k * math.log(mean) - mean - np.array([math.lgamma(i + 1) for i in k]))
    g = exact_gamma(law, mean)
    with np.errstate(divide="ignore"):
        p = g * (1 - g) ** (k - 1.0) if law == "geometric" else -((1 - g) ** k) / k / math.log(g)
    p[0] = 0.0
    return p


@pytest.mark.thorough
@pytest.mark.parametrize("law", LAWS)
def test_number_of_runs_follows_its_law(law):
    n, mean = 4000, 6.0
    words = SeededSource(0, law).words("runs")
    drawn = np.array([draw_runs(words, law, mean) for _ in range(n)])
    expected = n * probabilities(law, mean, 200)
    seen = np.bincount(np.minimum(drawn, 199), minlength=200)
    kept = expected > 20
    chi2 = np.sum((seen[kept] - expected[kept]) ** 2 / expected[kept])
    assert chi2 < kept.sum() + 6 * math.sqrt(2 * kept.sum())
    spread = drawn.std() / math.sqrt(n)
    assert abs(drawn.mean() - true_mean(law, mean)) < 6 * spread
    assert drawn.min() == (0 if law == "poisson" else 1)


@pytest.mark.thorough
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("mean", [1.0001, 8.0, 1e5])
def test_any_mean_can_be_drawn(law, mean):
    assert true_mean(law, mean) == pytest.approx(mean, rel=1e-9)
    words = SeededSource(1, law).words("runs")
    assert draw_runs(words, law, mean) >= 0


def test_a_tie_asks_for_more_bits():
    """At 1/2 the law of mean 2 steps from one run to two: 256 bits that say 1/2 cannot tell."""
    ones, half = 2**64 - 1, 2**63
    for first, runs in (([half, 0, 0, 0], 2), ([half - 1, ones, ones, ones], 1)):
        script = iter([first, [half, 0, 0, 0]])
        words = lambda n, script=script: np.array(next(script), np.uint64)  # noqa: E731
        assert draw_runs(words, "geometric", 2.0) == runs
        assert not list(script)


@pytest.mark.thorough
def test_poisson_with_a_large_mean():
    words = SeededSource(0, "large").words("runs")
    drawn = [draw_runs(words, "poisson", 2000.0) for _ in range(200)]
    assert abs(np.mean(drawn) - 2000) < 6 * math.sqrt(2000 / 200)


def test_draw_below_is_uniform_and_rejects():
    words = SeededSource(0, "below").words("x")
    seen = np.bincount([draw_below(words, 5) for _ in range(5000)], minlength=5)
    assert np.all(np.abs(seen - 1000) < 6 * math.sqrt(800))
    script = iter([2**64 - 1, 7])
    assert draw_below(lambda n: np.array([next(script)], np.uint64), 5) == 2
