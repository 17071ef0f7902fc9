"""What becomes of a noisy total, which is public."""

import numpy as np
import pytest

from skdp.privacy.gate import session


@pytest.mark.parametrize("n", [0, 1, 3, 4, 7, 9])
def test_the_symmetric_part_in_tiles_is_that_of_the_whole(monkeypatch, n):
    monkeypatch.setattr(session, "_TILE", 3)
    value = np.random.default_rng(n).standard_normal((n, n))
    expected = (value + value.T) / 2
    session.symmetrise(value)
    np.testing.assert_array_equal(value, expected)
