"""Histories in blocks: what each entry counts."""

import numpy as np
import pytest

from skdp.data.histories import history_rows


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_adds_nothing(bad):
    X = np.array([[1.0, 0.0, 2.0], [bad, 1.0, 1.0]])
    (found,) = history_rows([X])
    np.testing.assert_allclose(found.toarray(), [[0.5**0.5, 0, 0.5**0.5], [0, 0, 0]])


def test_values_count_up_to_their_cap():
    X = np.array([[9.0, 0.0, 2.0], [1e-300, -4.0, 0.0], [0.0, 0.0, 4.0], [4.0, 8.0, 0.0]])
    (found,) = history_rows([X], cap=4.0)
    expected = [[2, 0, 1], [1, 0, 0], [0, 0, 1], [1, 1, 0]]
    lengths = np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(found.toarray(), expected / lengths)
    (same,) = history_rows([np.sign(X)], cap=1.0)
    (plain,) = history_rows([X])
    np.testing.assert_array_equal(same.toarray(), plain.toarray())
