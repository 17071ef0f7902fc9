"""Pairs of items in one history: the bound by force, and what is released."""

import numpy as np
import pytest
import scipy.sparse as sp

from skdp.data.blocks import SparseRows
from skdp.queries.interactions import PairQuery
from skdp.testing import check_sensitivity
from tools.fit_checks import check_order_invariance


def query(X, adjacency="add_remove"):
    return PairQuery(SparseRows(sp.csr_array(np.abs(X))), adjacency=adjacency)


def popular(n, kind=1):
    """No direction, one that falls, or almost that of a single item."""
    v = (0.0, np.arange(1.0, n + 1) ** -0.7, np.eye(n)[0] + 1e-3)[kind] * np.ones(n)
    return v / (np.linalg.norm(v) or 1.0)


@pytest.mark.deep
@pytest.mark.parametrize("kind", [0, 1, 2])
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_the_bound_holds_and_is_tight(adjacency, kind):
    report = check_sensitivity(
        lambda X: query(X, adjacency), "moment", popular(4, kind), adjacency=adjacency,
        max_starts=80, n_climb=20,
    )  # fmt: skip
    assert report.ratio > 0.92  # a search in floats: the next test attains more


@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_histories_without_a_common_item_attain_the_bound(adjacency):
    """One of two items comes, or one of two others goes for it."""
    X = np.kron(np.eye(2), np.ones(2))
    X[1] *= adjacency == "replace"
    first, second = (query(row[None], adjacency).moment(popular(4, 0)) for row in X)
    change = np.linalg.norm(first.answer(1e-6) - second.answer(1e-6))
    assert 0.99 < change / first.bound.l2_steps(1e-6) <= 1


def rows_of(rng, n):
    """Rows of few and many items, equal or of very different sizes."""
    X = (rng.random((n, 30)) < rng.choice([0.05, 0.3, 1.0], n)[:, None]).astype(float)
    sizes = rng.choice([0, 1, 8, 150], n)[:, None] * rng.standard_normal((n, 30))
    return X * 10.0 ** np.clip(sizes, -300, 100)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [0, 1, 2])
@pytest.mark.parametrize("step", [0.0, 1e-9, 1e-6, 1e-3, 0.1])
def test_no_row_adds_more_than_one(step, kind):
    rng, norms = np.random.default_rng(0), []
    for row in rows_of(rng, 300):
        bounded = query(row[None]).moment(popular(30, kind))
        added = bounded.answer(step)
        np.testing.assert_allclose(added, added.T, rtol=0, atol=0.0 if step else 1e-12)
        norms.append(np.linalg.norm(added) / (bounded.bound.l2_steps(step) if step else 1.0))
    assert 0.97 * (step < 1e-4) < max(norms) <= 1 + 1e-12


@pytest.mark.parametrize("step", [0.0, 1e-9])
def test_what_is_released_is_the_projected_sum_of_the_pairs(step):
    """By the definition, in floats."""
    rng, v = np.random.default_rng(2), popular(30)
    X = (rng.random((50, 30)) < 0.2).astype(float)
    P, expected = np.eye(30) - np.outer(v, v), np.zeros((30, 30))
    for x in X:
        A = np.outer(x, x) - np.diag(x)
        size = max(np.linalg.norm(P @ A @ P), x.sum() / 2)
        expected += P @ A @ P / (size or 1.0)
    found = query(X).moment(v).answer(step) * (step or 1.0)
    np.testing.assert_allclose(found, expected, atol=2e-3)


def test_directions_that_fit_nothing_are_refused():
    for v in (np.ones(3) / 2, np.ones(4), np.full(4, np.nan)):
        with pytest.raises(ValueError, match="popular"):
            query(np.eye(4)).moment(v)


def test_equal_items_fill_the_bound_whatever_their_number():
    for d in (2, 3, 30):
        added = query(np.r_[np.ones(d), np.zeros(30 - d)][None]).moment(popular(30, 0)).answer(0.0)
        assert np.linalg.norm(added) == pytest.approx(1.0)
        assert added[0, 1] == pytest.approx((d * (d - 1)) ** -0.5)


def test_rows_count_by_themselves():
    X = rows_of(np.random.default_rng(1), 60)
    check_order_invariance(query, "moment", popular(30), data=X)


def test_a_single_item_and_an_empty_row_add_nothing():
    X = np.zeros((2, 5))
    X[0, 3] = 7.0
    assert not query(X).moment(popular(5)).answer(1e-6).any()
