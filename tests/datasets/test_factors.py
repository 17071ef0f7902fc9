"""Synthetic data: shapes, laws, seeds. Nothing here is private."""

import numpy as np
import pytest
import scipy.sparse as sp

from skdp.datasets import (
    make_block_graph,
    make_histories,
    make_interactions,
    make_ratings,
    make_spiked_rows,
)


def test_spiked_rows_have_the_stated_spectrum():
    X = make_spiked_rows(20_000, 40, 4, captured=0.6, random_state=0)
    assert X.shape == (20_000, 40)
    assert np.mean(np.sum(X**2, axis=1)) == pytest.approx(1.0, rel=0.02)
    values = np.linalg.eigvalsh(X.T @ X / len(X))[::-1]
    assert values[:4] == pytest.approx(np.full(4, 0.15), rel=0.06)
    assert values[4:] == pytest.approx(np.full(36, 0.4 / 36), rel=0.15)
    assert values[:4].sum() / values.sum() == pytest.approx(0.6, abs=0.01)


@pytest.mark.parametrize(
    "make", [make_spiked_rows, make_interactions, make_histories, make_block_graph]
)
def test_seeds(make):
    sizes = {"make_spiked_rows": (60, 8, 2), "make_interactions": (60, 40, 400, 3),
             "make_histories": (60, 40, 8, 3),
             "make_block_graph": (60, 2, 10.0, 20.0)}[make.__name__]  # fmt: skip

    def dense(seed):
        out = make(*sizes, random_state=seed)
        out = out[0] if isinstance(out, tuple) else out
        return out.toarray() if sp.issparse(out) else out

    assert np.array_equal(dense(1), dense(1))
    assert not np.array_equal(dense(1), dense(2))
    assert np.array_equal(dense(np.random.default_rng(3)), dense(3))
    assert not np.array_equal(dense(None), dense(None))


def test_interactions_are_binary_and_canonical():
    R = make_interactions(2000, 500, 30_000, 5, random_state=0)
    assert sp.issparse(R) and R.format == "csr"
    assert R.shape == (2000, 500)
    assert (R.data == 1.0).all()
    assert (np.diff(R.indptr) >= 1).all()  # nobody is empty
    R.has_canonical_format = False
    copy = R.copy()
    copy.sum_duplicates()
    assert copy.nnz == R.nnz
    assert R.nnz == pytest.approx(30_000, rel=0.1)


def test_popularity_follows_zipf():
    R = make_interactions(5000, 1000, 60_000, 10, popularity=0.8, random_state=0)
    popularity = np.asarray(R.sum(axis=0)).reshape(-1)
    assert popularity[:10].mean() > 5 * popularity[90:110].mean()
    assert popularity[100:200].mean() > 2 * popularity[800:900].mean()
    flat = make_interactions(5000, 1000, 60_000, 10, popularity=0.0, random_state=0).sum(axis=0)
    assert flat[:100].mean() == pytest.approx(flat[-100:].mean(), rel=0.1)


def taste_share(R, k):
    """Share of the squared length of rows of length 1 in directions 2 to k: behind popularity."""
    values = np.linalg.svd(R.toarray() / np.sqrt(np.diff(R.indptr))[:, None], compute_uv=False) ** 2
    return values[1:k].sum() / values.sum()


def test_histories_are_binary_canonical_and_of_the_stated_length():
    R = make_histories(4000, 600, 12, 5, random_state=0)
    assert (R.data == 1.0).all()
    lengths = np.diff(R.indptr)
    assert lengths.min() >= 2 and lengths.max() <= 150
    assert lengths.mean() == pytest.approx(12, rel=0.1)
    assert np.median(lengths) < 0.8 * lengths.mean()
    R.has_canonical_format = False
    copy = R.copy()
    copy.sum_duplicates()
    assert copy.nnz == R.nnz


@pytest.mark.thorough
def test_histories_are_harder_to_tell_apart_than_interactions():
    hard = make_histories(2000, 500, 20, 8, random_state=0)
    easy = make_interactions(2000, 500, 40_000, 8, random_state=0)
    assert taste_share(hard, 8) < 0.75 * taste_share(easy, 8)


@pytest.mark.deep
def test_spread_and_overlap_say_how_much_there_is_to_learn():
    def share(**options):
        return taste_share(make_histories(3000, 200, 20, 4, random_state=0, **options), 4)

    apart, nothing = share(overlap=0.0), share(overlap=1.0)
    assert share(overlap=0.0, spread=0.0) == pytest.approx(nothing, rel=0.05)
    for options in ({"overlap": 0.0, "spread": 1.0}, {"overlap": 0.3}):
        assert 1.15 * nothing < share(**options) < apart / 1.15


def test_the_tail_of_histories_is_its_exponent():
    ratios = []
    for tail in (0.0, 0.6, 1.2):
        R = make_histories(3000, 400, 10, 3, overlap=1.0, tail=tail, random_state=0)
        counts = np.sort(R.sum(axis=0))
        ratios.append(counts[-20:].mean() / counts[:200].mean())
    assert ratios[0] < 2 < ratios[1] < 10 < ratios[2]


def test_activity_is_skewed():
    degrees = np.diff(make_interactions(5000, 1000, 60_000, 10, random_state=0).indptr)
    assert degrees.max() > 5 * np.median(degrees)
    assert degrees.max() <= 1000 // 4


@pytest.mark.deep
def test_tastes_are_planted():
    """Users of one taste share a part of the catalogue: the spectrum has a gap after the tastes."""
    sizes = (4000, 600, 80_000, 5)
    planted = make_interactions(*sizes, popularity=0.0, taste_share=0.75, random_state=0)
    mixed = make_interactions(*sizes, popularity=0.0, taste_share=0.0, random_state=0)
    values, nothing = (np.linalg.eigvalsh((R.T @ R).toarray())[::-1] for R in (planted, mixed))
    assert values[4] > 3 * values[5]
    assert nothing[1] < 1.5 * nothing[5]


def test_ratings():
    R = make_ratings(2000, 500, 40_000, 5, random_state=0)
    assert set(R.data) == {1.0, 2.0, 3.0, 4.0, 5.0}
    assert R.data.mean() == pytest.approx(3.0, abs=0.15)
    again = make_ratings(2000, 500, 40_000, 5, random_state=0)
    assert (again != R).nnz == 0
