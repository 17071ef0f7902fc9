"""Numbers of rows: the same for dense and CSR rows, whatever stands next to them."""

import numpy as np
import pytest
import scipy.sparse as sp

from skdp.data import blocks

ROWS = np.array([
    [0.0, 0.0, 0.0], [3.0, -4.0, 0.0], [np.nan, 1.0, 0.0], [0.0, 0.0, np.inf], [0.0, 0.0, 0.0],
    [0.0, -2.5, 1e-300], [1.0, 2.0, 2.0], [0.0, 0.0, 0.0],
])  # fmt: skip
GOOD = np.isfinite(ROWS).all(axis=1)


@pytest.mark.parametrize("make", [np.array, sp.csr_array])
def test_numbers_of_rows(make):
    rows = make(ROWS)
    assert np.array_equal(blocks.finite_rows(rows), GOOD)
    kept = blocks.where_rows(GOOD, rows)
    plain = np.where(GOOD[:, None], ROWS, 0.0)
    assert np.array_equal(blocks.dense(kept), plain)
    assert np.array_equal(blocks.square_norms(kept), (plain**2).sum(axis=1))
    assert np.array_equal(blocks.largest_entries(kept), np.abs(plain).max(axis=1))
    factors = np.arange(8.0)
    scaled = blocks.scale_rows(kept, factors)
    assert np.array_equal(blocks.dense(scaled), plain * factors[:, None])
    assert np.array_equal(blocks.dense(kept), plain)  # the rows are as they were
    assert np.array_equal(blocks.column_sums(kept), plain.sum(axis=0))
    np.testing.assert_allclose(blocks.block_gram(kept), plain.T @ plain)
    rounded = blocks.scaled_to_integers(kept, 0.5)
    assert np.array_equal(blocks.dense(rounded), np.rint(plain / 2))


@pytest.mark.parametrize("make", [np.array, sp.csr_array])
def test_no_rows_and_empty_rows(make):
    for shape in ((0, 3), (4, 3)):
        rows = make(np.zeros(shape))
        assert blocks.finite_rows(rows).all()
        for numbers in (blocks.square_norms(rows), blocks.largest_entries(rows)):
            assert numbers.shape == shape[:1]
            assert not numbers.any()


def test_a_wide_sparse_gram_is_that_of_the_rows(monkeypatch):
    rows = sp.random_array((60, 23), density=0.2, rng=0, format="csr")
    rows.data = np.rint(10 * rows.data)
    monkeypatch.setattr(blocks, "BLOCK", 90)
    dense = rows.toarray()
    np.testing.assert_array_equal(blocks.block_gram(rows), dense.T @ dense)


@pytest.mark.parametrize(
    "shape", [(0, 3, 2), (1, 3, 2), (900, 30, 40), (2500, 100, 2), (50, 4000, 9)]
)
def test_products_in_pieces_are_those_of_whole_blocks(shape):
    """With integers, in which sums are exact."""
    n, d, k = shape
    rng = np.random.default_rng(0)
    rows, few = rng.integers(-99, 99, (n, d)) * 1.0, rng.integers(-99, 99, (k, d)).T * 1.0
    beside = rng.integers(-99, 99, (n, k)) * 1.0
    for block in (rows, np.asfortranarray(rows), sp.csr_array(rows)):
        assert np.array_equal(blocks.narrow_product(block, few), rows @ few)
        assert np.array_equal(blocks.cross_product(block, beside), rows.T @ beside)
