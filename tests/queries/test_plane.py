"""Rows in a public plane: the largest change by one row with its class."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp

from skdp._limits import COUNT_WEIGHT
from skdp.data.blocks import row_source
from skdp.data.views import ZippedRows
from skdp.privacy.gate.bounds import gaussian_step, laplace_step
from skdp.queries.plane import SQUARE, Frame, PlaneQuery, plane_rows

FRAME = Frame(np.array([0.25, -0.125]), np.array([2.0, 1.0]))
AXES = np.array([[1.0, 0.5, 0.0], [0.0, -2.0, 2.0]])
CENTER = np.array([0.5, 0.0, -1.0])
STEP = 2.0**-12
CELLS = ("cells", (FRAME, 5))
SHAPES = ("shapes", (FRAME,))


def query(X, numbers=None, adjacency="add_remove", n_classes=2):
    rows = row_source(X)
    if numbers is None:
        return PlaneQuery(rows, AXES, CENTER, adjacency=adjacency)
    rows = ZippedRows(rows, {"y": np.asarray(numbers, float)[:, None]})
    return PlaneQuery(rows, AXES, CENTER, n_classes, adjacency=adjacency)


def exact(query, name, public):
    return getattr(query, name)(*public).answer(0.0)


def at(place):
    """A row whose place in the frame is given."""
    return CENTER + np.linalg.pinv(AXES) @ (FRAME.center + FRAME.half_width * np.asarray(place))


def hostile_rows(rng):
    """Places at every angle on the rim and inside, far outside, and rows that are not finite."""
    angles = np.linspace(0, 2 * np.pi, 37)
    rim = np.column_stack([np.cos(angles), np.sin(angles)])
    places = np.vstack([np.zeros((1, 2)), 0.5 * rim[::4], rim, 1e6 * rim[::4]])
    rows = [at(place) for place in places]
    rows += [rng.standard_normal(3) * 10.0**e for e in range(-6, 9, 2)]
    corner = np.array([2.75, 0.0, -0.5625])  # it lies at (1, 1)
    return [*rows, corner, np.full(3, np.nan), np.array([1.0, np.inf, 0.0]), np.full(3, 1.7e308)]


@pytest.mark.parametrize(("name", "public"), [CELLS, SHAPES, ("class_counts", ())])
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_no_row_changes_more_than_its_bound(name, public, adjacency, rng):
    """All pairs of hostile rows and classes, in integers: at most the bound, and at least .98."""
    X = rng.standard_normal((30, 3))
    make = sp.csr_array if adjacency == "replace" else np.asarray  # sparse sums may be inf - inf
    rows, numbers = hostile_rows(rng), (0, 1, -1)
    ends = []
    for row in rows:
        for number in numbers:
            q = query(make(np.vstack([X, row])), [*rng.integers(0, 2, 30) * 0, number], adjacency)
            bounded = getattr(q, name)(*public)
            ends.append(bounded.answer(STEP))
    base = getattr(query(make(X), np.zeros(30), adjacency), name)(*public)
    answers = np.array([base.answer(STEP), *ends]).astype(float)
    away = answers - answers[0] if adjacency == "add_remove" else answers[:, None] - answers[None]
    for norm, allowed in ((2, base.bound.l2_steps(STEP)), (1, base.bound.l1_steps(STEP))):
        if math.isfinite(allowed):
            change = np.linalg.norm(away, norm, axis=-1).max()
            assert 0.98 * allowed < change <= allowed, norm


@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_a_row_that_is_rounded_up_to_whole_steps_is_in_the_bound(adjacency):
    """A row is a step and a half, which counts as two."""
    rows, step = np.array([at((-0.9, -0.9)), at((0.9, 0.9))]), 2 / 3
    kept = rows[1:] if adjacency == "replace" else rows[:0]
    asked = [query(X, adjacency=adjacency).cells(FRAME, 2) for X in (rows[:1], kept)]
    moved, bound = asked[0].answer(step) - asked[1].answer(step), asked[0].bound
    assert np.abs(moved).max() == 2
    assert np.linalg.norm(moved) <= bound.l2_steps(step)
    assert np.abs(moved).sum() <= bound.l1_steps(step)


def test_counts_equal_plain_counts():
    X = np.array([at(p) for p in [(-0.9, -0.9), (0.9, 0.9), (0.9, 0.9), (3.0, 0.0), (0.0, 0.0)]])
    X = np.vstack([X, np.full(3, np.nan), [0.0, np.inf, 0.0]])  # whose place is (inf, -inf)
    X = np.vstack([X, [2.75, 0.0, -0.5625]])  # at (1, 1): the upper corner belongs to the last cell
    numbers = [0, 1, 1, 0, -1, 1, 1, 0]
    for make in (np.asarray, sp.csr_array):
        cells = exact(query(make(X), numbers), "cells", (FRAME, 2))
        assert cells.tolist() == [1, 0, 0, 1, 0, 0, 0, 2, 1]
    assert exact(query(X, numbers), "class_counts", ()).tolist() == [3, 2]
    assert exact(query(X), "class_counts", ()).tolist() == [6]


def test_a_frame_without_width_has_places():
    bounded = query(CENTER[None]).shapes(Frame(np.zeros(2), np.zeros(2)))
    assert bounded.answer(0.5).tolist() == [1, 0, 0, 0, 0, 0]


def test_moments_equal_plain_moments():
    places = np.array([(0.3, -0.4), (-0.6, 0.1), (3.0, 4.0)])
    sums = exact(query(np.array([at(p) for p in places]), [1, 1, 0]), "shapes", (FRAME,))
    first, second = sums.reshape(2, 6)
    x, y = places[:2].T
    square = [SQUARE * (x @ x), SQUARE * (y @ y), 2 * (x @ y)]
    np.testing.assert_allclose(second, [2 * COUNT_WEIGHT, x.sum(), y.sum(), *square], atol=1e-9)
    np.testing.assert_allclose(first[:3], [COUNT_WEIGHT, 0.6, 0.8], atol=1e-9)  # on the rim
    slack = [
        query(np.zeros((0, 3)), [], a).shapes(FRAME).bound.slack for a in ("add_remove", "replace")
    ]
    assert slack == [math.sqrt(6) / 2, math.sqrt(6)]  # six numbers of each row that changes


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr"])
def test_dense_and_sparse_rows_give_the_same_answers(form):
    """Also from a user-defined source: a bad row is left out, and no other one."""
    X = np.random.default_rng(1).standard_normal((200, 3)) * 2
    X[np.abs(X) < 1] = 0
    X[150] = np.nan
    own = SimpleNamespace(n_features=3, blocks=lambda: [sp.csr_array(X).asformat(form)])
    own.parts = lambda n: [own]
    for rows in (sp.csr_array(X), own):
        np.testing.assert_array_equal(exact(query(rows), *CELLS), exact(query(X), *CELLS))


def test_the_place_of_a_row_does_not_depend_on_other_rows(rng):
    X, axes, center = rng.standard_normal((9, 200)), *np.split(rng.standard_normal((3, 200)), [2])
    whole, *alone = plane_rows([X, *X[:, None]], axes, center[0])
    assert np.array_equal(whole, np.vstack(alone))


@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 50.0])
def test_many_rows_do_not_overflow(epsilon):
    X = np.tile(at((0.1, 0.1)), (1000, 1))
    bounded = query(X).cells(FRAME, 3)
    for step in (gaussian_step(bounded.bound, epsilon), laplace_step(bounded.bound, epsilon)):
        counts = bounded.answer(step) * step
        assert counts.sum() == pytest.approx(1000, abs=501 * step)
