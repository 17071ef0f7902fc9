"""Losses of rows: the sensitivity is attained, and no row depends on another."""

from functools import partial

import numpy as np
import pytest

from skdp.queries.regression import LossQuery
from skdp.testing import check_charge_before_read, check_sensitivity
from tools.fit_checks import check_order_invariance
from tools.outcomes import refuses

BOUNDS = [(0.0, 1.0), (-1.0, 3.0), (5.0, 5.001), (-1e-12, 1e-12), (1e6, 1e12)]


def query(bounds, adjacency, X):
    X = X.toarray() if hasattr(X, "toarray") else X

    def losses():
        with np.errstate(all="ignore"):
            return np.maximum(X[:, 0], 0) + X[:, 1]

    return LossQuery(losses, lambda: len(X), bounds, adjacency=adjacency)


def bases(bounds):
    low, high = bounds
    rng = np.random.default_rng(0)
    for values in (np.full(6, (low + high) / 2), rng.uniform(low, high, 6), np.full(6, low)):
        yield np.column_stack([np.zeros(6), values])


@pytest.mark.thorough
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
@pytest.mark.parametrize("bounds", BOUNDS)
def test_sum_changes_by_its_bound_and_no_more(bounds, adjacency):
    report = check_sensitivity(
        partial(query, bounds, adjacency), "total", adjacency=adjacency, bases=bases(bounds),
        scale=max(map(abs, bounds)), max_starts=60, n_climb=30,
    )  # fmt: skip
    print(report)
    assert set(report.ratios) == {"l2", "l1"}
    assert report.ratio > 0.95


def test_infinite_losses_are_cut_and_nan_is_the_middle():
    losses = np.array([np.nan, np.inf, -np.inf, 0.25])
    rows = LossQuery(lambda: losses, lambda: 4, (0.0, 1.0), adjacency="add_remove")
    assert rows.total().answer(0.0) == -0.25
    assert rows.total().answer(2.0**-10) == -256
    more = LossQuery(lambda: np.zeros((4, 2)), lambda: 4, (0.0, 1.0), adjacency="add_remove")
    refuses(ValueError, "one number for each row", more.total().answer, 2.0**-10)


def test_each_loss_is_rounded_by_itself():
    """A sum of floats would have errors in proportion to the number of rows."""
    step = 2.0**-10
    rows = LossQuery(
        lambda: np.full(1001, 0.5 + 0.4 * step), lambda: 1001, (0.0, 1.0), adjacency="add_remove"
    )
    assert rows.total().answer(step) == 0


def test_users_count_once():
    losses, owners = np.array([0.0, 1.0, 1.0, 9.0]), np.array([0, 0, 2, 2])
    rows = LossQuery(lambda: losses, lambda: 4, (0.0, 1.0), adjacency="add_remove", owners=owners)
    assert rows.total().answer(0.0) == 0.0 + 0.5  # means .5 and 5, cut to 1
    assert rows.count().answer(0.0) == 2
    assert rows.count().bound.l2 == 1.0


@pytest.mark.parametrize("release", ["total", "count"])
def test_order_and_laziness(release):
    X = np.random.default_rng(0).random((333, 3))
    make = partial(query, (0.0, 1.0), "add_remove")
    check_order_invariance(make, release, data=X)
    if release == "total":
        check_charge_before_read(make, release, data=X)
