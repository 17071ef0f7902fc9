"""Column moments, and ranks of the points of public grids among entries."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from skdp.data.blocks import DenseRows, row_source
from skdp.data.numbers import WHOLE, CountsIn, stored_columns
from skdp.data.units import GroupRows
from skdp.queries.columns import SQUARE_WEIGHT, ColumnQuery
from skdp.testing import check_sensitivity
from tools.outcomes import refuses
from tools.places import InBlocks

CENTER, SIZE = np.array([0.0, 1.0, -2.0, 0.5]), np.array([1.0, 2.0, 0.5, 1e3])
POINTS = np.array([[-3.0, 0.0, 1.0], [0.5, 1.0, 2.0], [-2.0, 0.5, 46.0], [-1e-9, 5.0, 2.0**40]])
WHICH, WEIGHTS = np.array([2, 2, 1, 0]), np.array([1.0, 5.5, 0.3, 2.0])
RELEASES = {
    "moments": lambda q: q.moments(CENTER, SIZE, 1.0),
    "distances": lambda q: q.distances(CENTER, POINTS).ranks(np.full(4, 2)),
    "grid": lambda q: q.grid(POINTS).ranks(WHICH),
    "weighted distances": lambda q: (
        q.weighted(WEIGHTS).distances(CENTER, POINTS).ranks(np.full(4, 2))
    ),
    "weighted grid": lambda q: q.weighted(WEIGHTS).grid(POINTS).ranks(WHICH),
}


def query(adjacency):
    return lambda X: ColumnQuery(X, adjacency=adjacency)


def numbers(keys):
    """Return the float32 numbers of keys and 1, at most infinity."""
    keys = np.clip(keys, -0x7F800000, 0x7F800000)
    return np.sign(keys).astype(np.float32) * np.abs(keys).view(np.float32)


def test_a_pass_that_fails_is_made_again(monkeypatch):
    """Ranks after a failure at either pass are those of all rows."""
    X = np.random.default_rng(0).standard_normal((50, 4))
    expected = query("replace")(X).grid(POINTS).ranks(WHICH).answer(1e-6)
    ranks = query("replace")(X).grid(POINTS)
    columns, made = ranks._columns(), []

    def fails_once(self, count):
        made.append(count)
        if len(made) == 2:
            raise MemoryError
        return whole(count)

    whole = columns.sum_parts
    monkeypatch.setattr(type(columns), "sum_parts", fails_once)
    refuses(MemoryError, None, ranks.ranks(WHICH).answer, 1e-6)
    assert np.array_equal(ranks.ranks(WHICH).answer(1e-6), expected)


def between(count, X):
    """Count the rows of X between the ends of a count (d, m), whatever moved these."""
    seen, low, high = X.astype(np.float32)[:, :, None], count.ends[:, 0], count.ends[:, 1]
    return ((seen <= numbers(high)) & (seen >= numbers(low + 1))).sum(axis=0)


@pytest.mark.thorough
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
@pytest.mark.parametrize("name", RELEASES)
def test_bound_holds_and_is_reached(name, adjacency):
    """Whatever the columns' centres and units are; ranks of all columns seldom move together."""
    bases = [np.random.default_rng(0).standard_normal((5, 4)) * s for s in (1e-8, 1.0, 1e13)]
    sums = name == "moments"
    report = check_sensitivity(
        query(adjacency), RELEASES[name], adjacency=adjacency,
        formats=["dense", "csr"] if sums else ["dense"],
        bases=[*bases, np.zeros((5, 4)), np.tile(CENTER, (5, 1))], n_climb=20, budgets=(0.02, 2.0),
    )  # fmt: skip
    assert report.ratio > (0.99 if sums or adjacency == "add_remove" else 0.8)


def test_the_weight_of_a_square():
    """(w - w')^2 + b^2 (w^2 - w'^2)^2 <= 4 for all values in [-1, 1], and b could not be larger."""
    w = np.linspace(-1, 1, 401)

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
    """Work is linear in the stored entries, for every centre; bad rows add nothing."""
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
    bound, answer, _ = query("replace")(X).moments(np.zeros(4), np.full(4, np.inf), 0.5)
    np.testing.assert_allclose(answer(0.0), expected)
    assert bound.slack >= 8**0.5  # half a step of eight numbers, in both rows


@pytest.mark.parametrize("size", [1.7e308, np.inf])
@pytest.mark.parametrize("step", [2.0**-10, 1e3])
def test_no_overflow_becomes_a_moment(step, size):
    """An overflowing distance from the centre is clipped, for every size and step."""
    X, at = np.full((2, 1), -1.7e308), (np.array([1.7e308]), np.array([size]), 0.5)
    for rows in (X[:1], sp.csr_array(X[:1]), GroupRows(X, {}, np.zeros(2, int))):
        asked = ColumnQuery(rows, by_group=isinstance(rows, GroupRows), adjacency="add_remove")
        bounded = asked.moments(*at)
        assert np.linalg.norm(bounded.answer(step)) <= bounded.bound.l2 / step + bounded.bound.slack


def test_distances_leave_out_what_equals_the_centre_and_bad_rows():
    X = np.array([[0.0, 1.0], [0.5, 3.0], [2.0, 3.1], [-8.0, np.inf], [1e300, -1e300]])
    points = np.array([[0.5, 2.0, 0.25, -1.0], [2.0, 4.0, 1.0, -1.0]])
    ask = ColumnQuery(X, adjacency="add_remove").distances(np.array([0.0, 1.0]), points)
    answers = [ask.ranks(np.full(2, i)).answer(0.0).tolist() for i in range(4)]
    assert answers == [[-0.5, -0.5], [0.5, 0.5], [-1.5, -1.5], [-1.5, -1.5]]
    assert ask.ranks(np.array([1, 1])).answer(0.25).tolist() == [2, 2]


@pytest.mark.parametrize("step", [0.0, 2.0**-10])
def test_ranks_are_multiplied_by_public_weights(step):
    rows = np.random.default_rng(0).standard_normal((60, 4))
    plain = query("add_remove")(rows)
    for ask in (lambda q: q.grid(POINTS), lambda q: q.distances(CENTER, POINTS)):
        ranks, weighted = (
            ask(q).ranks(WHICH).answer(step) * (step or 1.0)
            for q in (plain, plain.weighted(WEIGHTS))
        )
        np.testing.assert_allclose(weighted, WEIGHTS * ranks, atol=0.51 * step * len(rows))
    ends = [query("replace")(np.full((1, 4), x)).grid(POINTS).ranks(WHICH) for x in (-1e30, 1e30)]
    moved = np.abs(ends[1].answer(1e-6) - ends[0].answer(1e-6)).sum()
    assert 0.99 < moved / ends[0].bound.l1_steps(1e-6) <= 1


def test_weights_that_are_rounded_up_in_all_columns_are_in_the_bound():
    """Half of a weight is a step and a half, which counts as two."""
    empty, row = (query("add_remove")(np.zeros((n, 100))).grid(np.ones((100, 1))) for n in (0, 1))
    bound, moved = row.ranks(np.zeros(100, int)).bound, np.full(100, 2)
    one, other = (ask.ranks(np.zeros(100, int)).answer(1 / 3) for ask in (empty, row))
    assert np.array_equal(other - one, moved)
    assert bound.l2_steps(1 / 3) >= np.linalg.norm(moved) and bound.l1_steps(1 / 3) >= moved.sum()


@pytest.mark.parametrize("step", [0.0, 2.0**-10])
def test_a_group_adds_the_mean_of_its_rows(step, rng):
    """Groups of 3 and of 7 rows: if all rows of a group are on one side, it adds 1/2 in total."""
    X, groups = rng.standard_normal((13, 2)), np.repeat([0, 1, 2], [3, 7, 3])
    X[:3] = -1.0
    source = GroupRows(X, {}, groups)
    ask = ColumnQuery(source, by_group=True, adjacency="add_remove").grid(np.zeros((2, 1)))
    sides = np.where(X <= 0, 0.5, -0.5)
    expected = np.array([sides[groups == g].mean(axis=0) for g in range(3)])
    assert expected[0].tolist() == [0.5, 0.5]
    answer = ask.ranks(np.zeros(2, int)).answer(step) * (step or 1.0)
    np.testing.assert_allclose(answer, expected.sum(axis=0), atol=0.51 * step + 1e-8)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_group_with_a_bad_row_adds_nothing(bad, rng):
    """Its other rows do not, either: their mean would be no mean of the group."""
    X, groups = rng.standard_normal((8, 4)), np.repeat([0, 1, 2, 3], 2)
    X[3, 1] = bad
    whole, others = (
        ColumnQuery(GroupRows(*rows), by_group=True, adjacency="add_remove")
        for rows in ((X, {}, groups), (X[[0, 1, 4, 5, 6, 7]], {}, np.repeat([0, 1, 2], 2)))
    )
    for name in ("moments", "distances", "grid"):
        one, other = (RELEASES[name](ask).answer(2.0**-10) for ask in (whole, others))
        assert np.array_equal(one, other), name


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("center", [np.zeros(7), np.linspace(-1.0, 2.0, 7)])
@pytest.mark.parametrize("distances", [False, True])
def test_stored_entries_are_counted_like_all_entries(distances, center, dtype, rng):
    """What is not stored is 0; a row with one value that is not finite counts in no column."""
    X = sp.random(300, 7, density=0.3, format="csr", random_state=0).astype(dtype)
    X.data *= (10.0 ** rng.integers(-30, 30, X.nnz) * rng.choice([-1, 1], X.nnz)).astype(dtype)
    X.data[[3, 9, 20]] = 0.0, np.nan, -np.inf
    small, large = np.finfo(dtype).smallest_subnormal, np.finfo(dtype).max
    X.data[100:102] = small, large
    points = 10.0 ** rng.uniform(-30, 39, (7, 9)) * (1 if distances else rng.choice([-1, 1], 9))
    points[:, 0] = 0.0
    count = CountsIn.of(points, center if distances else None)
    stored, full = (stored_columns(row_source(rows), 1) for rows in (X, X.toarray()))
    expected = stored.sum_parts(count)
    assert np.array_equal(full.sum_parts(count), expected)
    for which in rng.integers(0, 9, (3, 7, 2)):  # compared, where all points are looked up
        some = full.sum_parts(count.at(which))
        assert np.array_equal(some, np.take_along_axis(expected, which, axis=1))
        assert np.array_equal(stored.sum_parts(count.at(which)), some)


@pytest.mark.parametrize("distances", [False, True])
@pytest.mark.parametrize("center", [0.0, -0.0, 1.0, -1999.5, 1e-30, 1e30])
@pytest.mark.parametrize("table", [2, 10**9])
def test_entries_count_up_to_a_point_or_a_distance(monkeypatch, center, distances, table, rng):
    """Those on it count, also of numbers that float32 does not hold; ends move by little."""
    monkeypatch.setattr("skdp.data.numbers._TABLE", table)
    near = rng.uniform(0.5, 1.0, 400) * 2.0 ** rng.integers(-120, 100, 400)
    X = np.concatenate([center + near, center - near, center * (1 + near), [0.0, 1e300, -1e300]])
    points = np.sort(np.concatenate([near[::7], [0.0]]) if distances else X[::7])
    count = CountsIn.of(points[None], np.array([center]) if distances else None)
    with np.errstate(over="ignore"):
        expected = between(count, X[:, None])[0]
        found = stored_columns(DenseRows(X[:, None]), 1).sum_parts(count)[0] // WHOLE
        assert np.array_equal(found, expected)
        assert found[-2] == len(X)
        assert not distances or found[-1] == (X.astype(np.float32) == np.float32(center)).sum()
        low, high = count.ends[:, 0], count.ends[:, 1]
        moved = [(numbers(high), center + points if distances else points)]
        moved += [(-numbers(low + 1), points - center)] if distances else []
        for end, meant in moved:
            least, high = meant.astype(np.float32), end[0, :-2].astype(np.float64)
            assert (high >= least).all()
            most = np.minimum(points / 16, np.abs(meant) / 128) * distances
            assert ((high == least) | (high - meant <= most + 1e-40)).all()


@pytest.mark.thorough("memory")
@pytest.mark.parametrize("n_jobs", [3, 1])
@pytest.mark.parametrize("memory", [0, 2_000, 12_000, 10**9])
def test_rows_beyond_the_memory_are_made_again_and_counted_alike(monkeypatch, memory, n_jobs):
    monkeypatch.setattr("skdp.data.numbers.MEMORY", memory)
    monkeypatch.setattr("skdp.data.blocks.BLOCK_ROWS", 250)
    monkeypatch.setattr("skdp.data.numbers._JOINED", 600)
    X = np.random.default_rng(0).standard_normal((3000, 4))
    center = np.array([0.0, 0.5, 3.0, X[5, 3]])
    kept = stored_columns(DenseRows(X), n_jobs)
    points, which = np.array([0.0, 0.125, 1.0, np.inf]), np.tile(np.arange(4), (4, 1))
    count = CountsIn.of(np.tile(points, (4, 1)), center).at(which)
    expected, count = WHOLE * between(count, X), replace(count, kept=None)
    ask = ColumnQuery(DenseRows(X), adjacency="add_remove", n_jobs=n_jobs)
    ask, near = ask.distances(center, np.tile(points, (4, 1))), expected / WHOLE
    for i in range(4):
        assert np.array_equal(kept.sum_parts(count), expected)
        parts = (kept.sum_parts(one) for one in (count.at(which), replace(count, kept=False)))
        assert np.array_equal(sum(parts), expected)
        ranks = near[:, i] - (near[:, 0] + near[:, 3]) / 2
        assert np.array_equal(ask.ranks(np.full(4, i)).answer(0.0), ranks)


def test_each_row_counts_once_where_blocks_are_empty_sparse_or_arrays():
    one = np.full((1, 2), 1.0)
    blocks = one[:0], sp.csr_array(2 * one), one[:0], one, sp.csr_array(3 * one), 4 * one, one[:0]
    ask = ColumnQuery(InBlocks(*blocks), adjacency="add_remove")
    ask = ask.grid(np.tile([1.0, 2.0, 3.0, 4.0], (2, 1)))
    answers = [ask.ranks(np.full(2, i)).answer(0.0).tolist() for i in range(4)]
    assert answers == [[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]


@pytest.mark.parametrize("fits", [True, False])
def test_all_rows_of_groups_take_memory(monkeypatch, fits):
    monkeypatch.setattr("skdp.data.numbers.MEMORY", 6 * (1000 if fits else 300))
    source = GroupRows(np.ones((400, 2)), {}, np.repeat(np.arange(8), 50))
    (part,) = (part for _, part in stored_columns(source, 1).made)
    assert sum(kept.keys.size for kept in part._kept) == 800 * fits
    assert bool(part._others) is not fits


@pytest.mark.parametrize("numbers", [0, 2, 4, 8])
def test_each_row_counts_once_where_passes_are_in_other_orders(monkeypatch, numbers):
    """A row source has no fixed order: another pass may yield the rows in other places."""
    monkeypatch.setattr("skdp.data.numbers.MEMORY", 8 * numbers)
    source = InBlocks(*np.arange(1.0, 5.0).reshape(4, 1, 1), order=-1)
    ask = ColumnQuery(source, adjacency="add_remove").grid(np.array([[1.0, 2.0, 3.0, 4.0]]))
    answers = [ask.ranks(np.array([i])).answer(0.0).tolist() for i in range(4)]
    assert answers == [[-1.0], [0.0], [1.0], [2.0]]


def test_one_pass_answers_all_questions_of_a_grid():
    class Counted(DenseRows):
        passes = 0

        def blocks(self):
            Counted.passes += 1
            return super().blocks()

    X = np.random.default_rng(0).standard_normal((500, 4), np.float32).astype(float)
    X[7, 2], X[30, 0], X[31:33, 1] = np.nan, np.inf, (-1e300, 1e308)
    points = np.hstack([POINTS, X[:3].T])  # ends of codes, and others
    good = X[np.isfinite(X).all(axis=1)]
    ask = ColumnQuery(Counted(X), adjacency="add_remove").grid(points)
    for i in range(6):
        exact = (good <= points[:, i]).sum(axis=0) - len(good) / 2
        np.testing.assert_array_equal(ask.ranks(np.full(4, i)).answer(0.0), exact)
        np.testing.assert_array_equal(ask.ranks(np.full(4, i)).answer(0.25), 4 * exact)
    assert Counted.passes == 1
