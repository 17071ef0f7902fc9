"""Entry, edge, frobenius and spectral units: bounds that hold and are attained."""

import itertools
import math

import numpy as np
import pytest
import scipy.sparse as sp

from skdp.queries.entries import EntryQuery, EntryRowQuery, MatrixUnit
from skdp.testing import check_sensitivity

RNG = np.random.default_rng(0)
M, N, K = 7, 6, 2
STEP = 1e-9
MATRICES = {
    "orthonormal": np.linalg.qr(RNG.standard_normal((N, K)))[0],
    "skewed": RNG.standard_normal((N, K)) * [2.0, 0.1],
    "one_heavy_row": np.vstack([[[3.0, 1.0]], 0.1 * RNG.standard_normal((N - 1, K))]),
    "parallel_rows": np.outer([0.9, 0.8, 0.1, 0.1, 0.1, 0.1], [1.0, 2.0]),
    "column": RNG.standard_normal((N, 1)),
    "ones": np.ones((N, 1)),
}
LEFT = np.linalg.qr(RNG.standard_normal((M, K)))[0]
UNITS = [
    MatrixUnit("entry", "add_remove", -0.5, 2.0),
    MatrixUnit("entry", "replace", -0.5, 2.0),
    MatrixUnit("edge", "add_remove", 0.0, 1.0),
    MatrixUnit("edge", "replace", -1.0, 3.0),
]


def all_pairs(unit):
    """Every position, between the extreme values that the adjacency allows."""
    shape = (N, N) if unit.name == "edge" else (M, N)
    base = RNG.uniform(unit.low, unit.high, shape)
    values = {"add_remove": [(0, unit.low), (0, unit.high)], "replace": [(unit.low, unit.high)]}
    for i in range(shape[0]):
        for j in range(i + 1 if unit.name == "edge" else 0, shape[1]):
            for low, high in values[unit.adjacency]:
                pair = [base.copy(), base.copy()]
                pair[0][i, j], pair[1][i, j] = low, high * 1e9 if abs(high) == unit.alpha else high
                yield pair


def ratio(unit, ask):
    worst = worst_l1 = 0.0
    for a, b in all_pairs(unit):
        left, right = ask(EntryQuery(a, unit)), ask(EntryQuery(sp.csr_array(b), unit))
        change = (left.answer(STEP) - right.answer(STEP)).astype(np.float64)
        worst = max(worst, float(np.linalg.norm(change)) / left.bound.l2_steps(STEP))
        if left.bound.l1 is not None:
            worst_l1 = max(worst_l1, float(np.abs(change).sum()) / left.bound.l1_steps(STEP))
    return worst, worst_l1


@pytest.mark.thorough
@pytest.mark.parametrize("unit", UNITS, ids=str)
@pytest.mark.parametrize("name", MATRICES)
def test_right_product(unit, name):
    worst, worst_l1 = ratio(unit, lambda q: q.right(MATRICES[name]))
    assert 0.95 <= worst <= 1.0
    assert 0.95 <= worst_l1 <= 1.0


@pytest.mark.parametrize("unit", UNITS, ids=str)
def test_one_entry_of_a_whole_matrix_attains_both_bounds(unit):
    changes = []
    for pair in itertools.islice(all_pairs(unit), 2):  # one place; the extreme values
        answers = [EntryQuery(A, unit).whole().answer(STEP) for A in pair]
        changes.append(np.subtract(*answers).astype(np.float64))
    bound = EntryQuery(pair[0], unit).whole().bound
    assert 0.99 < max(map(np.linalg.norm, changes)) / bound.l2_steps(STEP) <= 1
    assert 0.99 < max(np.abs(change).sum() for change in changes) / bound.l1_steps(STEP) <= 1


@pytest.mark.thorough
@pytest.mark.parametrize("unit", UNITS, ids=str)
def test_left_product_whole_and_core(unit):
    U = MATRICES["orthonormal"] if unit.name == "edge" else LEFT
    asks = [lambda q: q.left(U), lambda q: q.whole()]
    if unit.name == "entry":
        asks.append(lambda q: q.core(U, MATRICES["skewed"]))
    for ask in asks:
        for both in ratio(unit, ask):
            assert 0.95 <= both <= 1.0
    worst = ratio(unit, lambda q: q.square_sum())[0]
    assert (0.95 if unit.adjacency == "add_remove" else 0.0) <= worst <= 1.0


@pytest.mark.thorough
@pytest.mark.parametrize("unit", UNITS[2:], ids=str)
@pytest.mark.parametrize("name", MATRICES)
def test_ritz(unit, name):
    worst, _ = ratio(unit, lambda q: q.ritz(MATRICES[name]))
    attained = name in ("parallel_rows", "column", "ones")  # where the two rows are parallel
    assert (0.95 if attained else 0.0) <= worst <= 1.0


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
def test_graph_is_its_upper_triangle_without_loops(form):
    A = RNG.uniform(size=(N, N))
    unit = MatrixUnit("edge", low=0.0, high=0.5)
    expected = np.triu(np.clip(A, 0, 0.5), 1)
    found = EntryQuery(form(A), unit).whole().answer(0.0)
    assert np.allclose(found, expected + expected.T)


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_entries_that_are_not_numbers_count_as_zero_one_by_one(form):
    A, expected = np.ones((M, N)), np.ones((M, N))
    A[2, 3], A[0, 0], expected[2, 3] = math.nan, math.inf, 0.0
    unit = MatrixUnit("entry", low=0.0, high=1.0)
    assert np.array_equal(EntryQuery(form(A), unit).whole().answer(0.0), expected)


def test_duplicates_are_summed_before_clipping():
    A = sp.csr_array((np.full(4, 0.5), np.zeros(4, int), [0, 4]), shape=(1, N))
    A.has_canonical_format = True
    unit = MatrixUnit("entry", low=0.0, high=1.0)
    assert EntryQuery(A, unit).whole().answer(0.0)[0, 0] == 1.0
    assert A.nnz == 4


def test_edge_needs_a_square_matrix():
    with pytest.raises(ValueError, match="square"):
        EntryQuery(np.zeros((3, 4)), UNITS[2])


@pytest.mark.thorough
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
@pytest.mark.parametrize("name", ["entry", "edge"])
def test_one_cell_differs_between_neighbours(name, adjacency):
    """Every position, beside random weights: one cell, whatever the thresholds are."""
    unit = MatrixUnit(name, adjacency, 0.0, 2.0)
    for seed, (a, b) in enumerate(all_pairs(unit)):
        left, right = (EntryQuery(side, unit).cells(seed) for side in (a, sp.csc_array(b)))
        assert left.bound == right.bound
        assert left.bound.cells == 1
        assert left.bound.shape == ((1, N * (N - 1) // 2) if name == "edge" else (M, N))
        differs = np.clip(a, 0, 2).sum() != np.clip(b, 0, 2).sum()
        assert np.setxor1d(left.answer(1.0), right.answer(1.0)).size == differs


@pytest.mark.thorough
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_the_spread_moves_by_a_quarter_at_most(adjacency):
    """The largest change is that of a cell half way, against one at a bound."""
    unit, worst = MatrixUnit("entry", adjacency, 0.0, 3.0), 0.0
    base = RNG.uniform(-1.0, 5.0, (M, N))
    for value in (*np.linspace(-1.0, 4.0, 41), np.nan):
        for other in (0.0, 3.0, 1e9):
            a, b = base.copy(), base.copy()
            a[2, 3], b[2, 3] = value, other
            left, right = (EntryQuery(x, unit).spread() for x in (a, sp.csr_array(b)))
            change = abs(int(left.answer(STEP)) - int(right.answer(STEP)))
            worst = max(worst, change / left.bound.l1_steps(STEP))
            assert change <= left.bound.l2_steps(STEP)
    assert 0.95 <= worst <= 1.0
    clipped = np.clip(base, 0.0, 3.0)
    expected = (clipped * (3.0 - clipped)).sum()
    assert EntryQuery(base, unit).spread().answer(0.0) == pytest.approx(expected)
    with pytest.raises(ValueError, match="spread"):
        EntryQuery(base, MatrixUnit("entry", low=-1.0)).spread()


def test_cells_are_the_places_of_the_ones():
    A = (RNG.random((M, N)) < 0.4) * 3.0
    entries = EntryQuery(A, MatrixUnit("entry", high=3.0)).cells(5).answer(1.0)
    assert np.array_equal(entries, np.flatnonzero(A))
    graph = np.triu(RNG.random((N, N)) < 0.4, 1) * 1.0
    pairs = EntryQuery(graph, MatrixUnit("edge")).cells(5).answer(1.0)
    assert np.array_equal(pairs, np.flatnonzero(graph[np.triu_indices(N, 1)]))
    for bounds in ((-1.0, 1.0), (-1.0, 0.0)):
        with pytest.raises(ValueError, match="bounds"):
            EntryQuery(A, MatrixUnit("entry", "add_remove", *bounds)).cells(0)


@pytest.mark.thorough
def test_weights_keep_their_mean_over_public_thresholds():
    A = RNG.uniform(0.0, 2.0, (30, 20))
    query, n = EntryQuery(A, MatrixUnit("entry", high=2.0)), 4000
    ones = np.zeros(A.size)
    for dither in range(n):
        ones[query.cells(dither * 0x1234567).answer(1.0)] += 1
    share = A.ravel() / 2
    score = (ones - n * share) / np.sqrt(n * share * (1 - share))
    assert np.abs(score).max() < 6
    assert np.std(score) == pytest.approx(1.0, abs=6 / math.sqrt(2 * A.size))


# release of rows of entries -> (rows that are clipped, or None; public arguments, least ratio)
ROW_RELEASES = {
    "counts": (None, (), 0.95),
    "ritz": (None, (np.eye(4)[:, :3],), 0.3),
    "kept_below": (None, (1.5,), 0.45),
    "norms_above": (None, (1.5,), 0.95),
    "gram": ((3.0, (7, 4)), (), 0.9),
    "gram of one column": ((2.0, (4, 1)), (), 0.6),
}


@pytest.mark.deep
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
@pytest.mark.parametrize("name", ROW_RELEASES)
def test_rows_of_entries_hold_their_bounds(name, adjacency):
    clipped, public, least = ROW_RELEASES[name]
    clip_norm, shape = clipped or (math.inf, (7, 4))

    def rows(A):
        query = EntryRowQuery(A, MatrixUnit("entry", adjacency, -0.5, 2.0))
        return query.clipped(clip_norm) if clipped else query

    report = check_sensitivity(
        rows, name.partition(" ")[0], *public, adjacency=adjacency, unit="entry", shape=shape,
        entry_bounds=(-0.5, 2.0), max_starts=80, n_climb=60 if clipped else 15,
    )  # fmt: skip
    assert report.ratio > least
