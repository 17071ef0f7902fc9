"""Synthetic data: shapes, laws, seeds. Nothing here is private."""

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

from skdp.datasets import (
    make_block_graph,
    make_interactions,
    make_ratings,
    make_spiked_rows,
    make_table,
    make_trace_regression,
    make_user_items,
    make_user_tasks,
)


def test_spiked_rows_have_the_stated_spectrum():
    X = make_spiked_rows(20_000, 40, 4, captured=0.6, random_state=0)
    assert X.shape == (20_000, 40)
    assert np.mean(np.sum(X**2, axis=1)) == pytest.approx(1.0, rel=0.02)
    values = np.linalg.eigvalsh(X.T @ X / len(X))[::-1]
    assert values[:4] == pytest.approx(np.full(4, 0.15), rel=0.06)
    assert values[4:] == pytest.approx(np.full(36, 0.4 / 36), rel=0.15)
    assert values[:4].sum() / values.sum() == pytest.approx(0.6, abs=0.01)


MADE = {
    make_spiked_rows: (60, 8, 2), make_interactions: (60, 40, 400, 3),
    make_user_items: (60, 40, 8, 3), make_ratings: (60, 40, 400, 3),
    make_block_graph: (60, 2, 10.0, 20.0), make_trace_regression: (60, (3, 2)),
    make_user_tasks: (20, 4), make_table: (60,),
}  # fmt: skip


@pytest.mark.parametrize("make", MADE)
def test_seeds(make):
    def dense(seed):
        out = make(*MADE[make], random_state=seed)
        out = out[0] if isinstance(out, tuple) else out
        return out.toarray() if sp.issparse(out) else out

    assert np.array_equal(dense(1), dense(1))
    assert not np.array_equal(dense(1), dense(2))
    assert np.array_equal(dense(np.random.default_rng(3)), dense(3))
    assert not np.array_equal(dense(None), dense(None))


@pytest.mark.parametrize(
    ("make", "sizes", "match"),
    [
        (make_block_graph, {"n_nodes": 100, "n_blocks": 2, "gap": 90.0, "mean_degree": 20.0},
         "at most 'mean_degree'"),
        (make_trace_regression, {"n_samples": 10, "design": "sparse"}, "'design' parameter"),
        (make_trace_regression, {"matrix_shape": (3, 0)}, "'d2' must be an int of at least 1"),
        (make_spiked_rows, {"n_components": 0}, "'n_components' must be an int of at least 1"),
        (make_interactions, {"n_items": 5}, "'n_factors' must be at most 'n_items'=5"),
        (make_user_items, {"n_users": 0}, "'n_users' must be an int"),
        (make_ratings, {"n_users": 0}, "'n_users' must be an int"),
        (make_block_graph, {"n_nodes": 0}, "'n_nodes' must be an int"),
        (make_user_tasks, {"n_features": 1}, "'n_components' must be at most 'n_features'=1"),
        (make_table, {"n_samples": 0}, "'n_samples' must be an int"),
    ],
)  # fmt: skip
def test_what_cannot_be_made(make, sizes, match):
    with pytest.raises(ValueError, match=match):
        make(**sizes)


@pytest.mark.parametrize(("make", "length"), [(make_interactions, 15), (make_user_items, 12)])
def test_histories_are_binary_canonical_and_of_the_stated_length(make, length):
    R = make(4000, 600, length * 4000 if make is make_interactions else length, 5, random_state=0)
    assert R.format == "csr" and R.shape == (4000, 600)
    assert (R.data == 1.0).all()
    lengths = np.diff(R.indptr)
    assert lengths.min() >= 1 and lengths.max() <= 150
    assert lengths.mean() == pytest.approx(length, rel=0.1)
    assert np.median(lengths) < 0.8 * lengths.mean()  # activity is skewed
    R.has_canonical_format = False
    copy = R.copy()
    copy.sum_duplicates()
    assert copy.nnz == R.nnz


def test_popularity_follows_zipf():
    R = make_interactions(5000, 1000, 60_000, 10, popularity=0.8, random_state=0)
    popularity = np.asarray(R.sum(axis=0)).reshape(-1)
    assert popularity[:10].mean() > 5 * popularity[90:110].mean()
    assert popularity[100:200].mean() > 2 * popularity[800:900].mean()
    flat = make_interactions(5000, 1000, 60_000, 10, popularity=0.0, random_state=0).sum(axis=0)
    assert flat[:100].mean() == pytest.approx(flat[-100:].mean(), rel=0.1)


def factor_fraction(R, k):
    """Share of the squared length of rows of length 1 in directions 2 to k: behind popularity."""
    values = np.linalg.svd(R.toarray() / np.sqrt(np.diff(R.indptr))[:, None], compute_uv=False) ** 2
    return values[1:k].sum() / values.sum()


@pytest.mark.deep
def test_spread_and_overlap_say_how_much_there_is_to_learn():
    def share(**options):
        return factor_fraction(make_user_items(3000, 200, 20, 4, random_state=0, **options), 4)

    apart, nothing = share(overlap=0.0), share(overlap=1.0)
    assert share(overlap=0.0, spread=0.0) == pytest.approx(nothing, rel=0.05)
    for options in ({"overlap": 0.0, "spread": 1.0}, {"overlap": 0.3}):
        assert 1.15 * nothing < share(**options) < apart / 1.15


def test_the_tail_of_histories_is_its_exponent():
    ratios = []
    for tail in (0.0, 0.6, 1.2):
        R = make_user_items(3000, 400, 10, 3, overlap=1.0, tail=tail, random_state=0)
        counts = np.sort(R.sum(axis=0))
        ratios.append(counts[-20:].mean() / counts[:200].mean())
    assert ratios[0] < 2 < ratios[1] < 10 < ratios[2]


def test_ratings_are_one_to_five():
    R = make_ratings(2000, 500, 40_000, 5, random_state=0)
    assert set(R.data) == {1.0, 2.0, 3.0, 4.0, 5.0}
    assert R.data.mean() == pytest.approx(3.0, abs=0.15)


@pytest.mark.deep
def test_factors_are_planted():
    """Users of one factor share a part of the catalogue: the spectrum has a gap after them."""
    sizes = (4000, 600, 80_000, 5)
    planted = make_interactions(*sizes, popularity=0.0, factor_fraction=0.75, random_state=0)
    mixed = make_interactions(*sizes, popularity=0.0, factor_fraction=0.0, random_state=0)
    values, nothing = (np.linalg.eigvalsh((R.T @ R).toarray())[::-1] for R in (planted, mixed))
    assert values[4] > 3 * values[5]
    assert nothing[1] < 1.5 * nothing[5]


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


@pytest.mark.parametrize("design", ["gaussian", "factored", "entries"])
def test_trace_regression(design):
    X, y, M = make_trace_regression(
        20_000, (6, 4), 2, noise_sd=0.1, design=design, coef=True, random_state=0
    )
    assert np.linalg.matrix_rank(M) == 2
    assert y.var() == pytest.approx(2.01, rel=0.2)
    if design == "factored":
        products = np.einsum("ij,ik->ijk", *X)
    else:
        products = (X if design == "gaussian" else X.toarray()).reshape(-1, 6, 4)
    assert (y - np.einsum("ijk,jk->i", products, M)).std() == pytest.approx(0.1, rel=0.05)
    assert np.einsum("ijk,i->jk", products, y) / len(y) == pytest.approx(M, abs=0.15)


def test_user_tasks():
    X, y, groups, coefs = make_user_tasks(
        500, 8, 2, rows_per_user=(3, 5), noise_sd=0.1, coef=True, random_state=0
    )
    counts = np.bincount(groups)
    assert len(counts) == 500 and set(counts) == {3, 4, 5}
    assert np.linalg.matrix_rank(coefs) == 2
    assert (y - np.sum(X * coefs[groups], axis=1)).std() == pytest.approx(0.1, rel=0.05)
    labels = make_user_tasks(20, 8, classes=True, random_state=0)[1]
    assert set(labels) == {0, 1}


def test_columns_of_a_real_table():
    X, y, names = make_table(5000, names=True, random_state=0)
    column = dict(zip(names, X.T, strict=True))
    assert X.shape == (5000, len(names))
    for share in (50, 20, 5, 1):
        assert set(np.unique(column[f"dummy_{share}"])) == {0.0, 1.0}
        assert abs(column[f"dummy_{share}"].mean() - share / 100) < 0.03
    assert np.mean(column["amount"] == 0) > 0.8
    assert np.ptp(column["constant"]) == np.ptp(column["zero"]) == 0
    assert len(np.unique(column["id"])) == 5000
    assert np.corrcoef(column["income"], column["income_copy"])[0, 1] > 0.999
    assert np.std(column["ppm"]) < 1e-5 < 1e3 < np.std(column["income"])
    Z = StandardScaler().fit_transform(X)
    assert 0.7 < Ridge().fit(Z, y).score(Z, y) < 0.9
