"""Column moments, and ranks of powers of two and of places among entries."""

import numpy as np
import pytest
import scipy.sparse as sp

from skdp.data.blocks import DenseRows
from skdp.data.numbers import OctavesOfBlock, PlacesOfBlock
from skdp.queries.columns import SQUARE_WEIGHT, ColumnQuery
from skdp.testing import check_sensitivity

CENTER, SIZE = np.array([0.0, 1.0, -2.0, 0.5]), np.array([1.0, 2.0, 0.5, 1e3])
THRESHOLDS, STEPS = np.array([1.0, 2.0, 0.5, 2.0**40]), np.array([0.0, -3.0, 46.0, 5.0])
RELEASES = {
    "moments": lambda q: q.moments(CENTER, SIZE, 1.0),
    "octaves": lambda q: q.octaves(CENTER).ranks(THRESHOLDS),
    "places": lambda q: q.places(CENTER, np.array([1.0, 0.25, 1e6, 1e-6])).ranks(STEPS),
}


def query(adjacency):
    return lambda X: ColumnQuery(X, adjacency=adjacency)


@pytest.mark.thorough
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
@pytest.mark.parametrize("name", RELEASES)
def test_bound_holds_and_is_reached(name, adjacency):
    """Whatever the columns' centres and units are; ranks of all columns seldom move together."""
    bases = [np.random.default_rng(0).standard_normal((5, 4)) * s for s in (1e-8, 1.0, 1e13)]
    report = check_sensitivity(
        query(adjacency), RELEASES[name], adjacency=adjacency,
        formats=["dense", "csr"] if name == "moments" else ["dense"],
        bases=[*bases, np.zeros((5, 4)), np.tile(CENTER, (5, 1))], n_climb=20, budgets=(0.02, 2.0),
    )  # fmt: skip
    assert report.ratio > (0.99 if name == "moments" or adjacency == "add_remove" else 0.8)


def test_the_weight_of_a_square():
    """(w - w')^2 + b^2 (w^2 - w'^2)^2 <= 4 for all values in [-1, 1], and b could not be larger."""
    w = np.linspace(-1, 1, 2001)

    def largest(b):
        p, s = w[:, None] - w[None, :], w[:, None] + w[None, :]
        return float(np.max(p**2 * (1 + b**2 * s**2)))

    assert largest(SQUARE_WEIGHT) <= 4 + 1e-12
    assert largest(1.01 * SQUARE_WEIGHT) > 4


def rows(n):
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, 4)) * 10.0 ** rng.uniform(-6, 6, (n, 1))


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


def test_ranks_leave_out_what_equals_the_centre_and_bad_rows():
    X = np.array([[0.0, 1.0], [0.5, 3.0], [2.0, 3.1], [-8.0, np.inf], [1e300, -1e300]])
    ask = ColumnQuery(X, adjacency="add_remove").octaves(np.array([0.0, 1.0]))
    assert ask.ranks(np.array([0.5, 2.0])).answer(0.0).tolist() == [-0.5, -0.5]
    assert ask.ranks(np.array([2.0, 4.0])).answer(0.0).tolist() == [0.5, 0.5]
    assert ask.ranks(np.array([0.25, 1.0])).answer(0.0).tolist() == [-1.5, -1.5]
    assert ask.ranks(np.array([2.0, 4.0])).answer(0.25).tolist() == [2, 2]


def test_places_count_all_entries_of_good_rows():
    X = np.array([[0.0, 1.0], [0.5, 3.0], [2.0, -1e300], [-8.0, np.nan], [1e308, 1.0]])
    ask = ColumnQuery(X, adjacency="add_remove").places(np.array([0.0, 1.0]), np.array([0.5, 0.5]))
    assert ask.ranks(np.array([0.0, 0.0])).answer(0.0).tolist() == [-1.0, 1.0]
    assert ask.ranks(np.array([1.0, 4.0])).answer(0.0).tolist() == [0.0, 2.0]
    assert ask.ranks(np.array([-1.0, -1.0])).answer(0.25).tolist() == [-8, -4]


def test_quarters_of_octaves_are_told_apart():
    X = np.random.default_rng(0).standard_normal((999, 3)) * [1.0, 1e-9, 1e9]
    X[1] = [1.25, 0.75, 2.0**30]
    ask = ColumnQuery(X, adjacency="add_remove").octaves(np.zeros(3))
    for t in ([1.25, 0.75, 2.0**30], [1.0, 2.0**-30 * 1.5, 2.0**30 * 1.75]):
        exact = (np.abs(X) <= t).sum(axis=0) - len(X) / 2
        np.testing.assert_array_equal(ask.ranks(np.array(t)).answer(0.0), exact)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("center", [np.zeros(7), np.linspace(-1.0, 2.0, 7)])
def test_stored_entries_are_counted_like_all_entries(center, dtype):
    """What is not stored is 0; a row with one value that is not finite counts in no column."""
    rng = np.random.default_rng(0)
    X = sp.random(300, 7, density=0.3, format="csr", random_state=0).astype(dtype)
    X.data *= (10.0 ** rng.integers(-30, 30, X.nnz) * rng.choice([-1, 1], X.nnz)).astype(dtype)
    X.data[[3, 9, 20]] = 0.0, np.nan, -np.inf
    ends = [2.0**-61, 2.0**-60, np.nextafter(2.0**-60, 1.0), 2.0**60, 2.0**61]
    small, large = np.finfo(dtype).smallest_subnormal, np.finfo(dtype).max
    X.data[100:107] = *ends, small, large
    steps = [np.full(7, 0.01), 2.0 ** np.arange(-3, 4), np.full(7, 2.0**-1022)]
    for count in (OctavesOfBlock(center), *(PlacesOfBlock(center, step) for step in steps)):
        assert np.array_equal(count(X), count(X.toarray()))


class _Blocks(DenseRows):
    """Counts how often its rows are read."""

    passes = 0

    def blocks(self):
        type(self).passes += 1
        return super().blocks()


@pytest.mark.parametrize(("changed", "passes"), [([], 1), ([2], 2), ([0, 1, 3], 2)])
def test_columns_that_were_counted_are_not_counted_again(changed, passes):
    """Their ranks are those of a query of its own, and a bad row adds nothing anywhere."""
    rng = np.random.default_rng(0)
    X, step = 3 * rng.standard_normal((500, 4)), np.array([0.25, 0.5, 1.0, 2.0])
    X[7, 2], X[30, 0] = np.nan, np.inf
    there, finer = CENTER.copy(), step.copy()
    there[changed] += 0.3
    finer[changed] /= 32
    moved = np.where(np.isin(np.arange(4), changed), 0.0, [3, -64, 0, 1])
    last = [("octaves", (there,), THRESHOLDS), ("places", (there + step * moved, finer), -moved)]
    first = {"octaves": (CENTER,), "places": (CENTER, step)}
    for method, public, thresholds in last:
        source = type("Counted", (_Blocks,), {})(X)
        ask = ColumnQuery(source, adjacency="add_remove")
        getattr(ask, method)(*first[method]).ranks(thresholds).answer(0.0)
        again = getattr(ask, method)(*public).ranks(thresholds).answer(0.25)
        own = getattr(ColumnQuery(X, adjacency="add_remove"), method)(*public)
        np.testing.assert_array_equal(again, own.ranks(thresholds).answer(0.25))
        assert source.passes == passes
