"""Ranks of powers of two among entries: bounds that hold and are reached."""

import math

import numpy as np
import pytest

from skdp.queries.columns import ColumnQuery
from skdp.testing import check_lazy, check_order_invariance, check_sensitivity

CENTER, THRESHOLDS = np.array([0.0, 1.0, -2.0, 0.5]), np.array([1.0, 2.0, 0.5, 2.0**40])


def query(adjacency):
    return lambda X: ColumnQuery(X, adjacency=adjacency).octaves(CENTER[: np.shape(X)[1]])


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
