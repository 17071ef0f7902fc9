"""Numbers of rows: the same for dense and CSR rows, and independent of other rows."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import permutations

import numpy as np
import pytest
import scipy.sparse as sp

from skdp.data import blocks, units, views
from skdp.data.blocks import dense, finite_rows, row_source, without_duplicates
from skdp.data.histories import history_rows
from skdp.data.numbers import RowColumns, restricted
from skdp.data.units import UserRows
from skdp.data.views import Memory, selected
from skdp.queries.users import UserQuery
from skdp.solvers.personalization import GlobalModel, Shared, UserDirections, View
from skdp.solvers.user_heads import Heads, HeadVotes, all_rules
from tools.places import InBlocks

ROWS = np.array([
    [0.0, 0.0, 0.0], [3.0, -4.0, 0.0], [np.nan, 1.0, 0.0], [0.0, 0.0, np.inf], [0.0, 0.0, 0.0],
    [0.0, -2.5, 1e-300], [1.0, 2.0, 2.0], [0.0, 0.0, 0.0],
])  # fmt: skip
GOOD = np.isfinite(ROWS).all(axis=1)


@pytest.mark.parametrize("make", [np.array, sp.csr_array])
def test_numbers_of_rows(make):
    rows = make(ROWS)
    assert np.array_equal(blocks.finite_rows(rows), GOOD)
    kept = blocks.where_rows(GOOD, rows)
    plain = np.where(GOOD[:, None], ROWS, 0.0)
    assert np.array_equal(blocks.dense(kept), plain)
    assert np.array_equal(blocks.square_norms(kept), (plain**2).sum(axis=1))
    assert np.array_equal(blocks.largest_entries(kept), np.abs(plain).max(axis=1))
    factors = np.arange(8.0)
    scaled = blocks.scale_rows(kept, factors)
    assert np.array_equal(blocks.dense(scaled), plain * factors[:, None])
    assert np.array_equal(blocks.dense(kept), plain)  # the rows are as they were
    assert np.array_equal(blocks.column_sums(kept), plain.sum(axis=0))
    np.testing.assert_allclose(blocks.block_gram(kept), plain.T @ plain)
    rounded = blocks.scaled_to_integers(kept, 0.5)
    assert np.array_equal(blocks.dense(rounded), np.rint(plain / 2))


@pytest.mark.parametrize("make", [np.array, sp.csr_array])
def test_no_rows_and_empty_rows(make):
    for shape in ((0, 3), (4, 3)):
        rows = make(np.zeros(shape))
        assert blocks.finite_rows(rows).all()
        for numbers in (blocks.square_norms(rows), blocks.largest_entries(rows)):
            assert numbers.shape == shape[:1]
            assert not numbers.any()


def test_sums_of_many_blocks_stay_exact(monkeypatch):
    """Integers of blocks are added as floats below 2**53 only."""
    monkeypatch.setattr(blocks, "BLOCK_ROWS", 8)
    source, one = InBlocks(*[np.ones((8, 1))] * 100), 2**52 - 1
    total = blocks.sum_rows(source, lambda _: np.array([float(one)]), (1,), exact=True, n_jobs=1)
    assert total.tolist() == [100 * one]


def test_temporary_arrays_are_those_of_one_thread():
    """Two threads with one buffer would add the rows of each other, beyond any bound."""
    held = blocks.ScratchOfThread()
    with ThreadPoolExecutor(1) as pool:
        others = pool.submit(lambda: held.rows.shaped((3,))).result()
    assert not np.shares_memory(held.rows.shaped((3,)), others)


def test_entries_of_sparse_records_are_cut_in_their_units():
    rows = sp.csr_array([[8.0, 0.0], [-9.0, np.inf], [0.0, 1.0]])
    scale = views.RowScale(np.zeros(2), np.array([2.0, 1.0]), -3.0, 3.0)
    (block,) = views.records_in_units([views.Zipped(rows, {})], scale)
    np.testing.assert_array_equal(dense(block.rows), [[3.0, 0.0], [-3.0, np.nan], [0.0, 1.0]])


def test_duplicates_of_a_cell_have_one_sum_in_any_order():
    values = np.array([1e16, 1.0, -1e16, 1.0, 3.0])
    sums = {
        without_duplicates(sp.coo_array((values[list(order)], np.zeros((2, 5), int)))).data[0]
        for order in permutations(range(5))
    }
    assert len(sums) == 1


@pytest.mark.parametrize("block", [90, 2**20])
@pytest.mark.parametrize("full", [0, 2, 40])
def test_a_sparse_gram_is_that_of_the_rows(full, block, monkeypatch):
    """Wide or not; rows of all lengths, some without entries, cut into several pieces."""
    dense = np.rint(10 * sp.random_array((60, 40), density=0.04, rng=0).toarray())
    dense[:, :full] += 3
    dense[7:9] += 1
    rows = sp.csr_array(dense)[:, np.arange(40)[::-1]]  # indices that are not in order
    monkeypatch.setattr(blocks, "BLOCK", block)
    monkeypatch.setattr(blocks, "CACHED", 50)
    np.testing.assert_array_equal(blocks.block_gram(rows), (dense.T @ dense)[::-1, ::-1])


@pytest.mark.parametrize(
    "shape", [(0, 3, 2), (1, 3, 2), (900, 30, 40), (2500, 100, 2), (50, 4000, 9)]
)
def test_cross_products_of_all_layouts_are_the_same(shape, rng):
    """With integers, in which sums are exact."""
    n, d, k = shape
    rows, beside = rng.integers(-99, 99, (n, d)) * 1.0, rng.integers(-99, 99, (n, k)) * 1.0
    for block in (rows, np.asfortranarray(rows), sp.csr_array(rows)):
        assert np.array_equal(blocks.cross_product(block, beside), rows.T @ beside)


# -- views of rows: a bad row stays bad ------------------------------------------------------------


@pytest.mark.parametrize("sparse", [False, True])
def test_columns_keep_the_bad_rows_of_their_sources_bad(sparse):
    """Also where nothing of such a row is stored in the kept columns."""
    X = np.array([[1.0, 0.0, 0.0], [0.0, np.nan, 2.0], [3.0, np.inf, 0.0], [0.0, 0.0, 0.0]])
    (block,) = selected([sp.csr_array(X) if sparse else X], np.array([0, 2]))
    np.testing.assert_array_equal(finite_rows(block), [True, False, False, True])
    np.testing.assert_array_equal(dense(block)[[0, 3]], X[[0, 3]][:, [0, 2]])


def test_columns_of_sparse_rows_are_the_same_once_more_selected(monkeypatch, rng):
    """In their order, cut into parts; entries stored twice, and bad ones."""
    monkeypatch.setattr(blocks, "BLOCK", 2**6)
    rows, columns = rng.integers(0, 80, 1200), rng.integers(0, 30, 1200)
    X = sp.csr_array(sp.coo_array((rng.integers(1, 4, 1200), (rows, columns)), shape=(80, 30)))
    twice = sp.csr_array((np.repeat(X.data / 2, 2), np.repeat(X.indices, 2), 2 * X.indptr))
    twice.data[40] = np.nan
    first, second = rng.permutation(30)[:12], np.array([5, 0, 7])
    some = restricted(row_source(twice), partial(selected, kept=first), 12)
    fewer = restricted(some, partial(selected, kept=second), 3)
    bad = np.flatnonzero(~finite_rows(twice))
    good = np.setdiff1d(np.arange(80), bad)
    for source, kept in ((some, first), (fewer, first[second])):
        for parts in ([source], source.parts(3)):
            seen = np.vstack([dense(block) for part in parts for block in part.blocks()])
            assert np.isnan(seen[bad]).any(axis=1).all()
            np.testing.assert_array_equal(seen[good], X.toarray()[good][:, kept])
        assert source.n_rows() == 80


# -- numbers of rows that are cached on the machine of the rows ------------------------------------


def first(block):
    return (block[:, 0],)


def shifted(columns, by):
    return columns["first"] + np.sum(by)


def test_numbers_are_a_function_of_kept_columns():
    X = np.arange(12.0).reshape(6, 2)
    columns = RowColumns(row_source(X), first, "first")
    for by in (1.0, np.ones(3)):
        numbers = columns.numbers(partial(shifted, by=by))
        total = numbers(lambda values: np.asarray(values.sum(), np.int64))
        assert total == X[:, 0].sum() + 6 * np.sum(by)


# -- histories in blocks: what each entry counts ---------------------------------------------------


def test_values_count_up_to_their_cap():
    X = np.array([[9.0, 0.0, 2.0], [1e-300, -4.0, 0.0], [0.0, 0.0, 4.0], [4.0, 8.0, 0.0]])
    (found,) = history_rows([X], cap=4.0)
    expected = [[2, 0, 1], [1, 0, 0], [0, 0, 1], [1, 1, 0]]
    lengths = np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(found.toarray(), expected / lengths)
    (same,) = history_rows([np.sign(X)], cap=1.0)
    (plain,) = history_rows([X])
    np.testing.assert_array_equal(same.toarray(), plain.toarray())


# -- the cache of units between passes: within a public limit, without an effect on results --------


def test_arrays_that_do_not_fit_the_cache_are_computed_again(monkeypatch):
    monkeypatch.setattr(views, "MEMORY", 100)
    made = []

    def make(n):
        made.append(n)
        return (np.zeros(n),)

    keep = Memory()
    for n in (10, 2, 10, 2, 3, 3, 10):
        assert len(keep(n, lambda n=n: make(n))[0]) == n
    assert made == [10, 2, 3, 3]  # 8 bytes a number: 96 of 100 are taken by the first two


def messages(query):
    """Integers of one message after the other, as the passes of a fit ask for them."""
    rng = np.random.default_rng(2)
    U = np.linalg.qr(rng.standard_normal((5, 2)))[0]
    model = GlobalModel(rng.standard_normal((5, 1)), np.ones(1))
    query = query.scaled(np.ones(5), np.full(5, 2.0), np.ones(5))  # most users have entries beyond
    view = View(rng.standard_normal((5, 5)), True, "squared", model)
    rules = all_rules(Shared(U, 0.1, None), view)
    sent = [
        UserDirections(view, 5).asked(query),
        HeadVotes(Heads(view, U, model), rules).asked(query),
        query.columns().grid(np.full((5, 1), 0.5)).ranks(np.zeros(5, int)),  # of one row of each
    ]
    return [bounded.answer(1e-9) for bounded in sent]


@pytest.mark.parametrize("m", [3, 9])
@pytest.mark.parametrize("kind", ["numbers", "dummies", "one hash"])
def test_no_bit_depends_on_the_cache(m, kind, monkeypatch, rng):
    """Users with fewer rows than features, and with more; in any order, on threads.

    Sums of dummies are alike, and may be of -0; an attacker can make rows with equal hashes.
    """
    X, y = rng.standard_normal((8 * m, 5)), rng.standard_normal((8 * m, 1))
    if kind != "numbers":
        X = rng.integers(0, 2, (8 * m, 5)) * 1.0
    if kind == "one hash":
        monkeypatch.setattr(units, "_hashes", lambda rows, _: np.zeros(rows.shape[:2], np.uint64))
    codes = np.repeat(np.arange(8), m)
    y[5] = np.nan
    order = rng.permutation(len(X))
    found = []
    for limit, rows, jobs in ((2**20, order, None), (0, slice(None), None), (700, order, 2)):
        monkeypatch.setattr(views, "MEMORY", limit)
        rows_seen = np.where(X[rows] == 0, 0.0 if limit else -0.0, X[rows])
        users = UserRows(rows_seen, y[rows], codes[rows], True)
        found.append(messages(UserQuery(users, adjacency="add_remove", n_jobs=jobs)))
    for other in found[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(found[0], other, strict=True))
    assert all(answer.any() for answer in found[0])


def test_the_cache_of_one_user_is_not_used_for_others(rng):
    """A batch has the key of its first user, and is cached for that batch only."""
    X, y = rng.standard_normal((18, 2)), rng.standard_normal((18, 1))
    rows = UserRows(X, y, np.repeat(np.arange(6), 3), True)
    first, other = (units.Batch(rows, np.arange(i, i + 3)) for i in (0, 3))
    for each in (first.alone(0), first, other):
        (own,) = each.keep("k", lambda each=each: (each.users,))
        assert np.array_equal(own, each.users)
    seen, last = (first.good, first.X, first.Y), first.alone(2)
    mine = zip(seen, (last.good, last.X, last.Y), strict=True)
    assert all(np.array_equal(of_all[2:], own) for of_all, own in mine)


@pytest.mark.parametrize("form", [np.asarray, np.asfortranarray, lambda X: X[:, ::-1]])
def test_rows_of_users_lie_together_once_for_all_batches(form, rng):
    """Each `take` from an array in another order copies all of it, so that time is quadratic."""
    X, y = form(rng.standard_normal((18, 2))), rng.standard_normal((18, 1))
    rows = UserRows(X, y, np.repeat(np.arange(6), 3), True)
    parts = rows.parts(3)
    assert rows._X.flags.c_contiguous and all(part._X is rows._X for part in parts)
    np.testing.assert_array_equal(rows._X, X)


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_each_group_is_in_one_of_the_parts(n):
    """Of sizes 1 to 7: one of two parts would add its contribution twice."""
    codes = np.repeat(np.arange(7), np.arange(1, 8))
    source = units.GroupRows(codes[:, None].astype(float), {}, codes)
    shared = (block.rows[:, 0] for part in source.parts(n) for block in part.blocks())
    assert sorted(np.concatenate([*shared])) == codes.tolist()
