"""Synthetic graphs: shapes, laws."""

import numpy as np
import pytest

from skdp.datasets import make_block_graph


@pytest.mark.thorough
@pytest.mark.parametrize("n_blocks", [1, 2, 3])
def test_block_graph(n_blocks):
    A, labels = make_block_graph(600, n_blocks, 40.0, 80.0, random_state=0)
    assert A.shape == (600, 600) and labels.shape == (600,)
    assert set(np.bincount(labels)) == {600 // n_blocks}
    assert (A - A.T).nnz == 0
    assert not A.diagonal().any()
    assert set(A.data) == {1.0}
    assert A.sum(axis=1).mean() == pytest.approx(80.0, rel=0.05)
    values = np.linalg.eigvalsh(A.toarray())[::-1]
    if n_blocks > 1:
        assert values[0] == pytest.approx(80.0, rel=0.06)
        assert values[1:n_blocks] == pytest.approx(np.full(n_blocks - 1, 40.0), rel=0.15)
        assert values[n_blocks] < 25


def test_impossible_block_graph():
    with pytest.raises(ValueError, match="outside \\[0, 1\\]"):
        make_block_graph(100, 2, 90.0, 20.0)
