"""Column moments: bounds that hold and are reached."""

import math

import numpy as np
import pytest
import scipy.sparse as sp

from skdp.queries.columns import SQUARE_WEIGHT, ColumnQuery
from skdp.testing import check_lazy, check_sensitivity
from tools.fit_checks import check_order_invariance

CENTER, SIZE = np.array([0.0, 1.0, -2.0, 0.5]), np.array([1.0, 2.0, 0.5, 1e3])
RELEASES = {"moments": (CENTER, SIZE, 1.0)}


def query(adjacency):
    return lambda X: ColumnQuery(X, adjacency=adjacency)


@pytest.mark.thorough
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
@pytest.mark.parametrize("release", RELEASES)
def test_bound_holds_and_is_reached(release, adjacency):
    report = check_sensitivity(
        query(adjacency), release, *RELEASES[release], adjacency=adjacency,
        formats=["dense", "csr"], max_starts=150, n_climb=20, budgets=(0.02, 2.0),
    )  # fmt: skip
    print(report)
    assert report.ratio > 0.99


def test_the_weight_of_a_square():
    """(w - w')^2 + b^2 (w^2 - w'^2)^2 <= 4 for all values in [-1, 1], and b could not be larger."""
    w = np.linspace(-1, 1, 2001)

    def largest(b):
        p, s = w[:, None] - w[None, :], w[:, None] + w[None, :]
        return float(np.max(p**2 * (1 + b**2 * s**2)))

    assert largest(SQUARE_WEIGHT) <= 4 + 1e-12
    assert largest(1.01 * SQUARE_WEIGHT) > 4


def rows(n=333):
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, 4)) * 10.0 ** rng.uniform(-6, 6, (n, 1))


@pytest.mark.parametrize("release", RELEASES)
def test_answers_depend_on_no_order(release):
    dense = query("add_remove")

    def make(X):
        return dense(X.toarray() if hasattr(X, "toarray") else X)

    check_order_invariance(make, release, *RELEASES[release], data=rows())
    check_lazy(make, release, *RELEASES[release], data=rows(20))


@pytest.mark.parametrize("step", [0.0, 1e-8, 0.3])
def test_what_is_not_stored_adds_what_zero_adds(step):
    """A CSR block costs as much as its entries, whatever the centre is; bad rows add nothing."""
    X = rows(60) * (np.random.default_rng(2).random((60, 4)) < 0.4)
    X[3, 1], X[7, 2], X[11] = np.nan, -np.inf, 0.0
    X[5] = [1e300, 0.0, 0.0, -1e-300]
    for some in (X, X[:0], X[3:4], np.zeros((2, 4))):
        dense, stored = (
            query("add_remove")(A).moments(CENTER, SIZE, 1.0).answer(step)
            for A in (some, sp.csr_array(some))
        )
        assert dense.dtype == stored.dtype
        np.testing.assert_allclose(stored, dense, rtol=0.0 if step else 1e-12)


def test_moments_are_the_sums():
    X = np.random.default_rng(1).uniform(-1, 1, (50, 4))
    sums = query("add_remove")(X).moments(np.zeros(4), np.ones(4), 0.5).answer(0.0)
    expected = [*X.sum(axis=0), *(SQUARE_WEIGHT * (X**2 - 0.5)).sum(axis=0), 25.0]
    np.testing.assert_allclose(sums, expected)
    expected[4:8] = SQUARE_WEIGHT * (X**2).sum(axis=0)
    exact = query("replace")(X).moments(np.zeros(4), np.full(4, np.inf), 0.5).answer(0.0)
    np.testing.assert_allclose(exact, expected)


def test_number_of_rows_is_public_under_replace_only():
    assert query("replace")(np.zeros((7, 2))).n_rows == 7
    with pytest.raises(ValueError, match="private"):
        query("add_remove")(np.zeros((7, 2))).n_rows  # noqa: B018
    with pytest.raises(ValueError, match="adjacency"):
        query("swap")(np.zeros((7, 2)))


def test_bounds():
    bound = query("add_remove")(np.zeros((0, 4))).moments(CENTER, SIZE, 1.0).bound
    assert bound.l2 == pytest.approx(math.sqrt(4 * (1 + SQUARE_WEIGHT**2 / 4) + 1))
    assert query("replace")(np.zeros((0, 4))).moments(CENTER, SIZE, 1.0).bound.l2 == 4.0
