"""Changes by adjacency: bounds hold and are attained, and ranks omit zeros and bad numbers."""

import math
from functools import partial

import numpy as np
import pytest

from skdp._limits import LARGEST
from skdp.data.blocks import dense, row_source
from skdp.data.numbers import row_numbers
from skdp.data.units import GroupRows, UserRows, in_memory
from skdp.data.views import RecordForm, TargetScale
from skdp.queries.columns import ColumnQuery
from skdp.queries.records import RecordQuery
from skdp.queries.regression import RegressionQuery
from skdp.queries.rows import RowQuery
from skdp.queries.sums import Neighbours, NumberQuery, bias_units, to_grid, whole_steps
from skdp.queries.users import UserQuery
from skdp.testing import check_charge_before_read, check_sensitivity
from tools.outcomes import refuses

RNG = np.random.default_rng(0)
BOTH = ["add_remove", "replace"]


def pairs(adjacency, draw, n=4000):
    """Contributions that differ: one of a unit, or one of each of two units."""
    for _ in range(n):
        a = draw()
        yield a if adjacency == "add_remove" else a - draw()


def unit_vector():
    x = RNG.standard_normal(2)
    return x / np.linalg.norm(x)


DRAWS = {
    "number": (lambda q: q.number(-0.7, 0.3), lambda: RNG.choice([-0.7, 0.1, 0.3])),
    "array": (lambda q: q.array(1.0), unit_vector),
    "psd": (lambda q: q.positive(1.0, 2), lambda: np.outer(*[unit_vector()] * 2)),
    "non-negative": (lambda q: q.positive(1.0, 2), lambda: np.abs(unit_vector())),
    "one square": (lambda q: q.positive(1.0, 1), lambda: RNG.choice([0.0, 0.5, 1.0], 1)),
}


@pytest.mark.parametrize("adjacency", BOTH)
@pytest.mark.parametrize("kind", DRAWS)
def test_change_holds_and_is_reached(kind, adjacency):
    change, draw = DRAWS[kind]
    bound = change(Neighbours(adjacency))
    worst = max(float(np.linalg.norm(difference)) for difference in pairs(adjacency, draw))
    assert 0.99 * bound <= worst <= bound * (1 + 1e-12)


X = np.ones((3, 4))
COUNTED = {
    "rows": partial(RowQuery, X, clip_norm=1.0),
    "groups": partial(RowQuery, GroupRows(X, {}, np.arange(3)), clip_norm=1.0, by_group=True),
    "columns": partial(ColumnQuery, X),
    "users": partial(UserQuery, UserRows(X, X[:, :1], np.arange(3), False)),
    "records": partial(RecordQuery, in_memory(X, y=X[:, 0]), (2, 2)),
}


@pytest.mark.parametrize("kind", COUNTED)
def test_adjacency_is_checked_and_counts_are_public_or_private(kind):
    refuses(ValueError, "adjacency", COUNTED[kind], adjacency="neighbour")
    public, private = (COUNTED[kind](adjacency=each) for each in ("replace", "add_remove"))
    assert public.n_rows == 3
    with pytest.raises(ValueError, match="private"):
        _ = private.n_rows
    if kind != "columns":
        assert private.count().answer(0.0) == 3
        refuses(ValueError, "public here: `n_rows`", public.count)


def test_whole_steps_are_rounded_for_each_unit_and_saturate():
    assert whole_steps(0.3, (10, 1.0)) == 30  # 3 each, not rint(10 / .3)
    assert whole_steps(0.0, (3, 0.5), (1, -0.5)) == 1.0
    assert to_grid([1e300, -1e300, 0.7], 0.3).tolist() == [LARGEST, -LARGEST, 2]
    assert whole_steps(1e-12, (2**62, 1.0)) == 2**62
    assert whole_steps(1e-12, (2**62, -1.0)) == -(2**62)
    assert bias_units(1.0, 0.3) == 1  # a bias of 2 exceeds the bias of the bound


# -- kept_below: how many are below t, minus half of them, zeros left out --------------------------


def first_of(X):
    """The first number of each row."""
    return row_numbers(row_source(X), lambda block: dense(block)[:, 0])


KEPT = {
    "rows": lambda X, adjacency: RowQuery(X, clip_norm=math.inf, adjacency=adjacency),
    "numbers": lambda X, adjacency: NumberQuery(first_of(X), "number", adjacency=adjacency),
}


@pytest.mark.thorough
@pytest.mark.parametrize("adjacency", BOTH)
@pytest.mark.parametrize("kind", KEPT)
def test_kept_below_holds_and_is_reached(kind, adjacency):
    def make(X):
        return KEPT[kind](X, adjacency)

    report = check_sensitivity(
        make, "kept_below", 1.0, adjacency=adjacency, max_starts=60, n_climb=10,
        budgets=(0.02, 2.0),
    )  # fmt: skip
    print(report)
    assert set(report.ratios) == {"l2", "l1"}
    assert report.ratio > 0.99
    bound = make(np.zeros((0, 3))).kept_below(1.0).bound
    assert bound.l2 == bound.l1 == (0.5 if adjacency == "add_remove" else 1.0)


HOSTILE = np.array([[0.0], [0.5], [-0.5], [1.0], [3.0], [1e200], [np.nan], [np.inf], [1e-300]])


def test_zeros_and_what_is_not_finite_add_nothing():
    """Below 1: .5, -.5, 1 and 1e-300; above: 3 and 1e200.

    Below infinity are all of them, and none below -1: half of their number is a rank then.
    """
    X = np.hstack([HOSTILE, np.zeros((len(HOSTILE), 1))])
    query = KEPT["rows"](X, "add_remove")
    assert query.kept_below(1.0).answer(0.0) == 1.0
    assert query.kept_below(1.0).answer(2.0**-10) == 2**10
    for end, rank in ((math.inf, 3.0), (-1.0, -3.0)):
        assert query.kept_below(end).answer(0.0) == rank and query.kept_below(end).bound.l2 == 0.5
    kept = X[[1, 2, 3, 4, 5, 8]]
    assert KEPT["rows"](kept, "add_remove").kept_below(1.0).answer(0.0) == 1.0


def test_numbers_are_left_out_alone():
    query = KEPT["numbers"](HOSTILE, "add_remove")
    assert query.kept_below(0.7).answer(0.0) == (3 - 4) / 2  # inf is a number above everything
    assert query.kept_below(0.7).bound.name == "number_centered_rank"


columns_of = partial(ColumnQuery, adjacency="add_remove")
LAZY = {
    **{kind: lambda X, kind=kind: KEPT[kind](X, "add_remove").kept_below(1.0)
       for kind in ("rows", "numbers")},
    "moments": lambda X: columns_of(X).moments(np.zeros(3), np.ones(3), 1.0),
    "ranks": lambda X: columns_of(X).grid(np.ones((3, 1))).ranks(np.zeros(3, int)),
    "regression": lambda X: RegressionQuery(
        in_memory(X[:, :2], y=X[:, 2:]).joined(RecordForm(np.asarray, 1)),
        clip_norm=1.0, scale=TargetScale.in_ball(2.0, 1), adjacency="add_remove",
    ).regression(0.5, 1.0),
}  # fmt: skip


@pytest.mark.parametrize("kind", LAZY)
def test_nothing_is_computed_before_it_is_paid_for(kind):
    X = RNG.standard_normal((20, 3)) * 10.0 ** RNG.uniform(-6, 6, (20, 1))
    check_charge_before_read(lambda X: X, LAZY[kind], data=X)
