"""The share that a public subspace holds: unbiased, with its standard error."""

import math

import numpy as np
import pytest

from skdp.answer import Answer
from skdp.solvers.verdict import calibration, nonnegative, share_kept


@pytest.mark.parametrize("noise", [0.0, 0.5, 5.0])
def test_the_share_is_unbiased_and_its_error_is_that_of_the_noise(noise, rng):
    moment, total, shares, errors = np.diag([6.0, 3.0, 1.0]), 40.0, [], []
    for _ in range(4000):
        G = noise * rng.standard_normal((3, 3))
        held = Answer(np.trace(moment + G), noise * math.sqrt(3))
        kept = share_kept(held, Answer(total + 0.2 * rng.standard_normal(), 0.2))
        shares.append(kept.share)
        errors.append(kept.standard_error)
    spread = math.hypot(noise * math.sqrt(3), 0.25 * 0.2) / total
    assert np.mean(shares) == pytest.approx(0.25, abs=6 * spread / math.sqrt(4000) + 1e-4)
    assert np.std(shares) == pytest.approx(spread, rel=0.07)
    assert np.mean(errors) == pytest.approx(spread, rel=0.03)


def test_a_total_below_its_noise_tells_nothing():
    kept = share_kept(Answer(3.0, 1.0), Answer(-2.0, 4.0))
    assert math.isfinite(kept.share) and not kept.exceeds(0.0)


def test_a_line_that_is_not_clear_tells_the_mean_of_the_targets():
    """The mean square of the targets is .9: (40 - 2 * 37 + 124) / 100."""
    G = np.array([[40.0, -37.0, 0.0], [-37.0, 124.0, -60.0], [0.0, -60.0, 100.0]])
    _, _, kept, mean, sd = calibration(Answer(G, 5.0), 0.0)
    assert not kept.exceeds(0.0) and mean.noise_scale == pytest.approx(0.05)
    assert (*mean.value, sd) == pytest.approx((-0.6, math.sqrt(0.9 - 0.6**2)))


def test_values_that_are_not_negative_keep_their_sum(rng):
    for _ in range(200):
        values = rng.standard_normal(rng.integers(1, 8)) + 0.3
        found = nonnegative(values)
        assert (found >= 0).all()
        assert found.sum() == pytest.approx(max(values.sum(), 0.0))
        assert np.array_equal(np.argsort(found, kind="stable")[found[np.argsort(found)] > 0],
                              np.argsort(values)[np.sort(found) > 0])  # fmt: skip
        for other in rng.dirichlet(np.ones(len(values)), 50) * max(values.sum(), 0.0):
            assert np.sum((found - values) ** 2) <= np.sum((other - values) ** 2) + 1e-12
    whole = np.array([3.0, 1.0, 0.0])
    assert nonnegative(whole) is whole
