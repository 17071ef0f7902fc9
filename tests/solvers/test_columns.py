"""Location and spread of columns, from released numbers."""

import numpy as np
import pytest

from skdp.answer import Answer
from skdp.solvers.columns import MomentWeights, column_moments, find_columns


class Entries:
    """What `find_columns` asks, of known columns under known noise; it keeps what was spent."""

    def __init__(self, X, noise, rng):
        self.X, self.noise, self.rng, self.spent = X, noise, rng, []

    def count(self, *, share):
        return self._noisy(np.array(float(len(self.X))), share)

    def octaves(self, center):
        distance = np.abs(self.X - center)
        return _Ranks(self, distance, distance > 0)

    def places(self, center, step):
        return _Ranks(self, np.ceil((self.X - center) / step), np.ones(self.X.shape, bool))

    def _noisy(self, value, share):
        self.spent.append(share)
        scale = self.noise / np.sqrt(share)
        return Answer(value + scale * self.rng.standard_normal(value.shape), scale)


class _Ranks:
    def __init__(self, entries, numbers, seen):
        self.entries, self.numbers, self.seen = entries, numbers, seen

    def ranks(self, thresholds, *, share):
        below = np.where(self.numbers <= thresholds, 0.5, -0.5)
        return self.entries._noisy((below * self.seen).sum(axis=0), share)


@pytest.mark.thorough
@pytest.mark.parametrize("n", [2_000, 20_000])
@pytest.mark.parametrize("shift", [2_000.0, 0.0, 300.0, -5_000.0])
def test_columns_far_from_zero_are_found_where_they_are(shift, n):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 4)) * [1, 1, 50, 0.01] + [shift, 0, shift, 0]
    near = 0
    for _ in range(20):
        ask = Entries(X, 5.0, rng)
        found = find_columns(ask, 4, 1.0, None)
        assert sum(ask.spent) == pytest.approx(1.0)  # one more look takes of later questions
        scale = np.array([1, 1, 50, 0.01])
        centred = np.abs(found.center - [shift, 0, shift, 0]) < 5 * scale
        near += (centred & (found.spread < 5 * scale) & (found.spread > scale / 8)).all()
    assert near >= 17


def test_moments_of_columns():
    n, b, c = 100.0, 1.66, 0.5
    sums = np.array([50.0, b * (40.0 - n / 2), c * n])
    found = column_moments(
        sums, 0.0, np.array([3.0]), np.array([2.0]), weights=MomentWeights(b, c), n=None
    )
    assert found.mean == pytest.approx(4.0)
    assert found.variance == pytest.approx(4 * (0.4 - 0.25))
    assert found.n == pytest.approx(100.0)
    lost = column_moments(
        np.zeros(3), 10.0, np.zeros(1), np.ones(1), weights=MomentWeights(b, c), n=None
    )
    assert lost.n == 40.0
    assert lost.variance > 0
