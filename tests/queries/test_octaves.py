"""Ranks of powers of two among entries: bounds that hold and are reached."""

import math

import numpy as np
import pytest
import scipy.sparse as sp

from skdp.data.bins import OctavesOfBlock, PlacesOfBlock
from skdp.data.blocks import DenseRows
from skdp.queries.columns import ColumnQuery
from skdp.testing import check_lazy, check_sensitivity
from tools.fit_checks import check_order_invariance

CENTER, THRESHOLDS = np.array([0.0, 1.0, -2.0, 0.5]), np.array([1.0, 2.0, 0.5, 2.0**40])


def query(adjacency):
    return lambda X: ColumnQuery(X, adjacency=adjacency).octaves(CENTER[: np.shape(X)[1]])


@pytest.mark.thorough
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_bound_holds_and_is_reached(adjacency):
    bases = [np.random.default_rng(0).standard_normal((5, 4)) * s for s in (1e-8, 1.0, 1e13)]
    report = check_sensitivity(
        query(adjacency), "ranks", THRESHOLDS, adjacency=adjacency, formats=["dense"],
        bases=[*bases, np.zeros((5, 4)), np.tile(CENTER, (5, 1))], n_climb=20, budgets=(0.02, 2.0),
    )  # fmt: skip
    print(report)
    assert report.ratio > (0.99 if adjacency == "add_remove" else 0.8)


def test_opposite_rows_reach_the_bound():
    """Replacing a row below all thresholds by one above all of them."""
    low, high = CENTER + 1e-3, CENTER + 2.0**50
    ask = query("replace")
    change = ask(np.array([low])).ranks(THRESHOLDS).answer(0.0) - ask(np.array([high])).ranks(
        THRESHOLDS
    ).answer(0.0)
    assert np.linalg.norm(change) == ask(np.array([low])).ranks(THRESHOLDS).bound.l2 == 2.0


def test_answers_depend_on_no_order():
    def make(X):
        return query("add_remove")(X.toarray() if hasattr(X, "toarray") else X)

    X = np.random.default_rng(0).standard_normal((333, 4)) * 10.0
    check_order_invariance(make, "ranks", THRESHOLDS, data=X)
    check_lazy(make, "ranks", THRESHOLDS, data=X[:20])


def test_ranks_leave_out_what_equals_the_centre_and_bad_rows():
    X = np.array([[0.0, 1.0], [0.5, 3.0], [2.0, 3.1], [-8.0, np.inf], [1e300, -1e300]])
    ask = ColumnQuery(X, adjacency="add_remove").octaves(np.array([0.0, 1.0]))
    assert ask.ranks(np.array([0.5, 2.0])).answer(0.0).tolist() == [-0.5, -0.5]
    assert ask.ranks(np.array([2.0, 4.0])).answer(0.0).tolist() == [0.5, 0.5]
    assert ask.ranks(np.array([0.25, 1.0])).answer(0.0).tolist() == [-1.5, -1.5]
    assert ask.ranks(np.array([2.0, 4.0])).answer(0.25).tolist() == [2, 2]


def test_bound_by_adjacency():
    empty = np.zeros((0, 4))
    assert query("add_remove")(empty).ranks(THRESHOLDS).bound.l2 == math.sqrt(4) / 2
    assert query("replace")(empty).ranks(THRESHOLDS).bound.l2 == math.sqrt(4)


# -- places ----------------------------------------------------------------------------------------

STEP, STEPS = np.array([1.0, 0.25, 1e6, 1e-6]), np.array([0.0, -3.0, 46.0, 5.0])


def places(adjacency):
    return lambda X: ColumnQuery(X, adjacency=adjacency).places(
        CENTER[: np.shape(X)[1]], STEP[: np.shape(X)[1]]
    )


@pytest.mark.thorough
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_bound_of_places_holds_and_is_reached(adjacency):
    bases = [np.random.default_rng(0).standard_normal((5, 4)) * s for s in (1e-8, 1.0, 1e13)]
    report = check_sensitivity(
        places(adjacency), "ranks", STEPS, adjacency=adjacency, formats=["dense"],
        bases=[*bases, np.zeros((5, 4)), np.tile(CENTER, (5, 1))], n_climb=20, budgets=(0.02, 2.0),
    )  # fmt: skip
    assert report.ratio > (0.99 if adjacency == "add_remove" else 0.8)


def test_places_count_all_entries_of_good_rows():
    X = np.array([[0.0, 1.0], [0.5, 3.0], [2.0, -1e300], [-8.0, np.nan], [1e308, 1.0]])
    ask = ColumnQuery(X, adjacency="add_remove").places(np.array([0.0, 1.0]), np.array([0.5, 0.5]))
    assert ask.ranks(np.array([0.0, 0.0])).answer(0.0).tolist() == [-1.0, 1.0]
    assert ask.ranks(np.array([1.0, 4.0])).answer(0.0).tolist() == [0.0, 2.0]
    assert ask.ranks(np.array([-1.0, -1.0])).answer(0.25).tolist() == [-8, -4]
    low, high = np.full((1, 2), -1e9), np.full((1, 2), 1e9)
    change = [
        ColumnQuery(rows, adjacency="replace").places(np.zeros(2), np.ones(2)).ranks(np.zeros(2))
        for rows in (low, high)
    ]
    gap = np.linalg.norm(change[0].answer(0.0) - change[1].answer(0.0))
    assert gap == change[0].bound.l2 == math.sqrt(2)


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
