"""What one user adds is cut to its norm, whatever its scale: exactly, where it is integers."""

import numpy as np
import pytest

from skdp.data.integers import clipped, unit_factors


def test_norms_of_contributions():
    rng = np.random.default_rng(5)
    for scale in (1e-300, 1e-200, 1e-8, 1.0, 1e8, 1e200, 1e308):
        values = rng.uniform(-1, 1, (50, 17)) * scale
        with np.errstate(over="ignore"):
            norms = np.linalg.norm(clipped(values, 0.7) / 0.7, axis=1)
        assert (norms <= 1 + 1e-12).all()
        if scale >= 1:
            assert norms.min() > 1 - 1e-12
    assert not clipped(np.array([[np.nan, 1.0], [np.inf, 0.0], [0.0, 0.0]]), 1.0).any()
    assert np.array_equal(clipped(np.array([[0.3, 0.4]]), 1.0), [[0.3, 0.4]])


@pytest.mark.thorough
@pytest.mark.parametrize("step", [1e-10, 1e-7, 1e-4, 1e-2, 0.3])
def test_integer_factors_are_exactly_bounded(step):
    """The exact norm, in Python integers, of factors of every shape and scale."""
    rng = np.random.default_rng(6)
    for p, d in ((2, 1), (2, 5), (6, 5), (4, 30), (10, 2)):
        F = rng.standard_normal((30, p, d)) * 10.0 ** rng.uniform(-9, 9, (30, 1, 1))
        F[2] = 0
        F[3] = F[3, :1, :1]
        for Z in unit_factors(F, step):
            rows = [[int(z) for z in row] for row in Z]
            G = [[sum(a * b for a, b in zip(r, s, strict=True)) for s in rows] for r in rows]
            square = sum(entry**2 for row in G for entry in row)
            assert square <= 1 / step**2
