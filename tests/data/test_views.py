"""Views of rows: what is bad stays bad."""

import numpy as np
import pytest
import scipy.sparse as sp

from skdp.data import blocks, views
from skdp.data.blocks import dense, finite_rows, row_source
from skdp.data.numbers import selected_columns
from skdp.data.views import selected


@pytest.mark.parametrize("sparse", [False, True])
def test_columns_keep_the_bad_rows_of_their_sources_bad(sparse):
    """Also where nothing of such a row is stored in the kept columns."""
    X = np.array([[1.0, 0.0, 0.0], [0.0, np.nan, 2.0], [3.0, np.inf, 0.0], [0.0, 0.0, 0.0]])
    (block,) = selected([sp.csr_array(X) if sparse else X], np.array([0, 2]))
    np.testing.assert_array_equal(finite_rows(block), [True, False, False, True])
    np.testing.assert_array_equal(dense(block)[[0, 3]], X[[0, 3]][:, [0, 2]])


@pytest.mark.parametrize("most", [2**26, 2])
def test_columns_of_sparse_rows_are_the_same_copied_or_looked_up(monkeypatch, most):
    """In their order, once more selected, cut into parts; entries stored twice, and bad ones."""
    monkeypatch.setattr(views, "_STORED_BYTES", most)
    monkeypatch.setattr(blocks, "BLOCK", 2**6)
    rng = np.random.default_rng(0)
    rows, columns = rng.integers(0, 200, 3000), rng.integers(0, 30, 3000)
    X = sp.csr_array(sp.coo_array((rng.integers(1, 4, 3000), (rows, columns)), shape=(200, 30)))
    twice = sp.csr_array((np.repeat(X.data / 2, 2), np.repeat(X.indices, 2), 2 * X.indptr))
    twice.data[40] = np.nan
    first, second = rng.permutation(30)[:12], np.array([5, 0, 7])
    some = selected_columns(row_source(twice), first)
    fewer = selected_columns(some, second)
    bad = np.flatnonzero(~finite_rows(twice))
    good = np.setdiff1d(np.arange(200), bad)
    for source, kept in ((some, first), (fewer, first[second])):
        for parts in ([source], source.parts(3)):
            seen = np.vstack([dense(block) for part in parts for block in part.blocks()])
            assert np.isnan(seen[bad]).any(axis=1).all()
            np.testing.assert_array_equal(seen[good], X.toarray()[good][:, kept])
        assert source.n_rows() == 200
