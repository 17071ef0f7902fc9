"""Queries of rows, alone and by group: bounds that hold and are attained, exact sums, no order."""

import itertools
import math

import numpy as np
import pytest
import scipy.sparse as sp

from skdp.data import blocks
from skdp.data import units as grouped_rows
from skdp.data.integers import ExactProduct
from skdp.data.units import GroupRows, in_memory
from skdp.data.views import GroupMap, RecordForm, RowScale, TargetScale
from skdp.exceptions import PrivacyError
from skdp.queries.columns import ColumnQuery
from skdp.queries.readout import ReadoutQuery
from skdp.queries.rows import RowQuery

D, K = 5, 3
V = np.linalg.qr(np.random.default_rng(9).standard_normal((D, K)))[0]
SKEWED = V * np.array([3.0, 1.0, 0.2])
FLAT = V * [3.0, 1e-3, 0.7]
OUTSIDE = (np.eye(D) - V @ V.T)[:1] / np.linalg.norm((np.eye(D) - V @ V.T)[0])
CENTER, SIZE = np.zeros(D), np.ones(D)
ROWS = {
    "gram": lambda q: q.gram(),
    "moment": lambda q: q.moment(0.5),
    "moment_wide": lambda q: q.moment(1.7),
    "projected_gram": lambda q: q.projected_gram(V),
    "projected_gram_skewed": lambda q: q.projected_gram(SKEWED),
    "projected_gram_line": lambda q: q.projected_gram(V[:, :1]),
    "gram_product": lambda q: q.gram_product(V),
    "gram_product_skewed": lambda q: q.gram_product(SKEWED),
    "gram_product_flat": lambda q: q.gram_product(FLAT),
    "gram_product_line": lambda q: q.gram_product(V[:, :1]),
    "tangent": lambda q: q.tangent(V, math.inf).product(math.inf),
    "tangent_clipped": lambda q: q.tangent(V, math.inf, np.array([1.0, 0.5, 0.2])).product(0.2),
    "tangent_and_core": lambda q: q.tangent(V, 3.0).product(0.3),
    "tangent_sizes": lambda q: q.tangent(V, 3.0).sizes_above(0.2),
    "some_columns": lambda q: q.columns(np.array([0, 3])).gram(),
    "centered": lambda q: q.centered(np.ones(D)).gram(),
    "sums": lambda q: q.sums(),
    "positive_sums": lambda q: q.positive_sums(),
    "kept_below": lambda q: q.kept_below(1.0),
    "norms_above": lambda q: q.norms_above(0.5),
    "trace": lambda q: q.square_sum(),
    "count": lambda q: q.count(),
}
KEPT = {
    "kept_gram": lambda q: q.kept().gram(),
    "kept_gram_clipped": lambda q: q.kept().clipped(0.3 * q.clip_norm).gram(),
    "kept_projected_gram": lambda q: q.kept().projected_gram(V),
    "kept_projected_gram_skewed": lambda q: q.kept().projected_gram(SKEWED),
    "kept_projected_gram_clipped": lambda q: q.kept().clipped(0.9).projected_gram(V),
}
COLUMNS = {
    "moments": lambda q: q.moments(CENTER, SIZE, 1.0),
    "octaves": lambda q: q.octaves(CENTER).ranks(np.ones(D)),
    "places": lambda q: q.places(CENTER, SIZE).ranks(np.zeros(D)),
}
BOX = TargetScale.in_box(np.array([-1.0]), np.array([1.0]), centered=False)
READOUTS = {
    "readout": lambda q: q.readout(0.3, 0.6),
    "readout_long_targets": lambda q: q.readout(0.3, 1.7),
    "readout_without_corner": lambda q: q.readout(0.0, 0.6),
    "readout_of_some_columns": lambda q: q.selected(np.array([0, 2])).readout(0.3, 0.6),
    "in_units": lambda q: q.scaled(RowScale(CENTER, np.full(D, 2.0), 16.0)).readout(0.3, 0.6),
    "targets": lambda q: q.targets().moments(np.zeros(1), np.ones(1), 1.0),
    "lengths": lambda q: q.lengths().kept_below(1.0),
}
RELEASES = {
    "row": ROWS | KEPT | COLUMNS | READOUTS,
    "group": ROWS | COLUMNS | READOUTS,
}
each_release = pytest.mark.parametrize(
    ("unit", "name"), [(unit, name) for unit, names in RELEASES.items() for name in names]
)


def bounded(unit, name, groups, adjacency="add_remove", seed=None, make=np.asarray, **kw):
    """Return a release of rows by group, mixed if there is a seed; a group is an array of its rows.

    Targets are at their bounds, those of groups with odd and even numbers of rows opposed.
    """
    X = np.vstack([np.zeros((0, D)), *groups])
    codes = np.repeat(np.arange(len(groups)), [len(rows) for rows in groups])
    order = np.arange(len(X)) if seed is None else np.random.default_rng(seed).permutation(len(X))
    signs = np.concatenate([np.zeros(0), *(np.full(len(x), (-1) ** len(x)) for x in groups)])
    y = ((X[:, 0] != 0) * signs)[order][:, None]
    X, by_group = make(X[order]), unit == "group"
    X = GroupRows(X, {"y": y}, codes[order]) if by_group else X
    kw |= {"adjacency": adjacency, "by_group": by_group}
    if name in COLUMNS:
        return COLUMNS[name](ColumnQuery(X, **kw))
    if name in READOUTS:
        if not by_group:
            X = in_memory(X, y=y).joined(RecordForm(np.asarray, 1))
        return READOUTS[name](ReadoutQuery(X, clip_norm=1.0, scale=BOX, **kw))
    return RELEASES[unit][name](RowQuery(X, clip_norm=1.0, **kw))


def query(X, adjacency, C=1.0, **kwargs):
    return RowQuery(X, clip_norm=C, adjacency=adjacency, **kwargs)


def rows_of_all_scales(seed, n):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, D)) * 10.0 ** rng.uniform(-7, 7, (n, 1))
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    return np.vstack([X, unit, V.T, -V.T, np.eye(D), 1e9 * V.T, np.zeros((1, D))])


def hostile(seed=0):
    """Groups of 1 to 200 rows of all scales, alike and unlike, and what attains each bound."""
    rng = np.random.default_rng(seed)
    for m in (1, 2, 8, 200):
        for scale in (0.0, 1e-300, 1.0, 1e300):
            yield scale * rng.standard_normal((m, D))
        mixed = rng.standard_normal((m, D)) * 10.0 ** rng.uniform(-9, 9, (m, 1))
        yield mixed
        for x in (*V.T, *np.eye(D)[:2], np.ones(D), -np.ones(D)):
            yield np.repeat(x[None], m, axis=0)
        yield 1e300 * np.repeat(rng.standard_normal((1, D)), m, axis=0)
        yield 1e9 * np.ones((m, D))
    yield np.vstack([1e300 * V[:, :1].T, np.zeros((9, D))])
    yield np.full((3, D), np.nan)
    yield np.vstack([np.ones((2, D)), np.full((1, D), np.nan)])
    yield np.full((2, D), np.finfo(float).max)
    yield np.vstack([np.eye(D)] * 40)
    for t in (0.1, 0.3, 0.5, 0.53, 0.9):
        yield np.tile(math.sqrt(t) * V[:, :1].T + math.sqrt(1 - t) * OUTSIDE, (4, 1))


def partners(everybody):
    """Groups that may send the opposite of what others send."""
    for rows in everybody[1::3]:
        yield -rows
        yield np.roll(rows, 1, axis=1) * np.where(np.arange(D) % 2, 1, -1)
    for t in (0.1, 0.5, 0.53):  # what attains the split, and its mirror image
        x = math.sqrt(t) * V[:, :1].T + math.sqrt(1 - t) * OUTSIDE
        yield 2 * math.sqrt(t) * V[:, :1].T - x
    for first, second in ((V[:, 0], V[:, 1]), (np.eye(D)[0], np.eye(D)[2])):
        for m, angle in itertools.product((1, 20), np.linspace(0, math.pi, 7)):
            turned = math.cos(angle) * first + math.sin(angle) * second
            for length in (1.0, 2.0):  # the bounds of rows, as they come and in units of 2
                yield np.tile(length * turned, (m, 1))


def everybody(unit):
    """Return hostile groups and their partners; of the unit "row" one row of each, and more."""
    groups = list(hostile())
    groups += partners(groups)
    if unit != "row":
        return groups
    X = rows_of_all_scales(0, 60)
    turned = np.roll(X, 1, axis=1) * np.where(np.arange(D) % 2, 1, -1)
    return [rows[:1] for rows in groups] + list(np.vstack([X, -X, turned])[:, None])


def largest_changes(answers, norm):
    """Norms of what each unit adds, and of what all pairs of them differ by."""
    pairs = (norm(answers - answer).max() for answer in answers)
    return {"add_remove": norm(answers).max(), "replace": max(pairs)}


def l1(changes):
    return np.abs(changes).sum(axis=1)


def l2(changes):
    return np.linalg.norm(changes, axis=1)


@pytest.mark.thorough
@pytest.mark.parametrize("step", [1e-9, 1e-5])
@each_release
def test_sensitivity_holds_and_is_attained(unit, name, step):
    """Every row, or group, comes, goes, and stands for every other one."""
    sent = [bounded(unit, name, [rows]) for rows in everybody(unit)]
    assert all(one.bound == sent[0].bound for one in sent)
    answers = np.array([one.answer(step).ravel() for one in sent], np.float64)
    for adjacency in ("add_remove", "replace") if name != "count" else ("add_remove",):
        bound = bounded(unit, name, [], adjacency).bound
        worst = largest_changes(answers, l2)[adjacency] / bound.l2_steps(step)
        # A replaced projection attains it for equal s1 and s2.
        unlike = name.endswith("gram_skewed") and adjacency == "replace"
        assert (0.5 if unlike else 0.95) <= worst <= 1.0
        assert largest_changes(answers, l1)[adjacency] <= bound.l1_steps(step)


@pytest.mark.thorough
@pytest.mark.parametrize("name", RELEASES["group"])
def test_a_huge_group_counts_once(name):
    """A hundred thousand rows, spread over all scales, stay within the bound."""
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((100_000, D)) * 10.0 ** rng.uniform(-2, 2, (100_000, 1))
    one = bounded("group", name, [rows])
    assert np.linalg.norm(one.answer(1e-6).astype(np.float64)) <= one.bound.l2_steps(1e-6)


@pytest.mark.thorough
@each_release
def test_a_unit_sends_the_same_bits_in_any_company_and_order(unit, name, monkeypatch):
    groups = everybody(unit)[::2]
    alone = sum(bounded(unit, name, [rows]).answer(1e-6) for rows in groups)
    whole = bounded(unit, name, groups).answer(1e-6)
    exact = "gram_product" if unit == "group" else "tangent"  # and rounded once, after the sum
    once = name in KEPT or (name.startswith(exact) and name != "tangent_sizes")
    assert np.abs(whole - alone).max() <= (len(groups) if once else 0)
    together = bounded(unit, name, groups, seed=1, n_jobs=2)
    assert np.array_equal(together.answer(1e-6), whole)
    monkeypatch.setattr(grouped_rows, "_BATCH_BYTES", 2**10)
    monkeypatch.setattr(blocks, "_BLOCK_BYTES", 2**10)
    together = bounded(unit, name, groups[::-1], seed=2)
    assert np.array_equal(together.answer(1e-6), whole)


def test_float_sums_are_not_the_same_bits():
    """The control: what the integers are for."""
    X = np.random.default_rng(2).standard_normal((3000, D))
    assert not np.array_equal(X.T @ X, X[::-1].T @ X[::-1])


@pytest.mark.thorough
@each_release
def test_integer_answers_approach_the_exact_ones(unit, name):
    rng = np.random.default_rng(4)
    groups = [rng.standard_normal((m, D)) for m in ([1] * 500 if unit == "row" else (1, 4, 9) * 40)]
    release, step = bounded(unit, name, groups), 1e-9
    exact, value = release.answer(0.0), release.answer(step) * step
    assert exact.dtype == np.float64
    if release.decode is not None:
        value = release.decode(value, step)
    assert np.allclose(value, exact, rtol=2e-4, atol=0.05)


@pytest.mark.thorough
@each_release
def test_forms_and_types_of_rows_give_the_same_bits(unit, name, tmp_path):
    rng = np.random.default_rng(5)
    groups = [np.maximum(rng.standard_normal((m, D)), 0.2) for m in (1, 4, 30) * 5]
    groups = [np.where(rows > 0.2, rows, 0.0).astype(np.float32) for rows in groups]

    def mapped(X):
        np.save(tmp_path / "rows.npy", X)
        return np.load(tmp_path / "rows.npy", mmap_mode="r")

    makes = [np.float64, np.float32, np.asfortranarray, sp.csr_array, sp.csr_matrix, mapped]
    answers = [bounded(unit, name, groups, seed=3, make=make).answer(1e-8) for make in makes]
    assert all(np.array_equal(answer, answers[0]) for answer in answers)


@pytest.mark.parametrize(
    "name",
    ["gram", "projected_gram", "some_columns", "centered", "sums", "positive_sums", "count",
     "moments", "octaves", "places", "targets", "readout_without_corner"],
)  # fmt: skip
def test_a_group_of_one_row_is_that_row(name):
    """The same integers, but where a group is bounded, or rounded, as a whole."""
    X = rows_of_all_scales(4, 40)[:, None]
    row, group = (bounded(unit, name, list(X)).answer(2.0**-10) for unit in RELEASES)
    np.testing.assert_array_equal(group, row)


def test_equal_groups_count_by_their_mean_moment():
    rng = np.random.default_rng(6)
    groups = [0.1 * rng.standard_normal((m, D)) for m in (1, 5, 20)]
    means = sum(rows.T @ rows / len(rows) for rows in groups)
    np.testing.assert_allclose(bounded("group", "gram", groups).answer(0.0), means)
    sums = sum(rows.mean(axis=0) for rows in groups)
    np.testing.assert_allclose(bounded("group", "sums", groups).answer(0.0), sums)


def test_a_group_beyond_the_clip_is_scaled_as_a_whole():
    rows = np.random.default_rng(7).standard_normal((6, D))
    short = rows / math.sqrt(np.square(rows).sum() / 6)
    for name in ("gram", "sums", "trace"):
        long, at_the_edge = (bounded("group", name, [x]).answer(1e-8) for x in (100 * short, short))
        assert np.allclose(long, at_the_edge, atol=1e-3 / 1e-8)


@pytest.mark.thorough
@pytest.mark.parametrize("size", [1e-3, 1.0, 50.0])
def test_products_are_exact_at_the_finest_step(size):
    """Whole numbers of any length say the same: no product of limbs is rounded."""
    rng = np.random.default_rng(8)
    groups = [rng.standard_normal((m, D)) for m in [1] * 300 + [2000, 50, 7]]
    codes = np.repeat(np.arange(len(groups)), [len(rows) for rows in groups])
    source = GroupRows(np.vstack(groups), {}, codes)
    release = query(source, "replace", by_group=True).gram_product(size * V)
    step = max(release.bound.l2 / 2**33, release.bound.min_step)
    product = ExactProduct(size * V)
    rows = GroupMap(1.0, math.sqrt(step / product.scale))
    grid = np.rint(size * V / product.scale * 2.0**26).astype(np.int64).astype(object)
    exact = 0
    for batch in source.blocks():
        Z = rows(batch).astype(np.int64).astype(object)
        exact = exact + Z.T.dot(Z.dot(grid))
    assert np.array_equal(release.answer(step), (exact // 2**26).astype(np.int64))


def duplicated(X, times):
    """A CSR array that stores each entry in `times` equal parts, and claims it does not."""
    csr = sp.csr_array(X)
    data = np.repeat(csr.data / times, times)
    indices = np.repeat(csr.indices, times)
    out = sp.csr_array((data, indices, csr.indptr * times), shape=csr.shape)
    out.has_canonical_format = True
    return out


@pytest.mark.thorough
@pytest.mark.parametrize("name", ROWS | KEPT)
def test_duplicate_entries_are_summed_first(name):
    X = np.where(rows_of_all_scales(6, 10) > 0, 1.0, 0.0)
    expected = (ROWS | KEPT)[name](query(sp.csr_array(X), "add_remove")).answer(1e-8)
    sneaky = duplicated(X, 4)
    assert np.array_equal((ROWS | KEPT)[name](query(sneaky, "add_remove")).answer(1e-8), expected)
    assert sneaky.data.size == 4 * sp.csr_array(X).data.size  # the input is left as it was


def test_hundred_duplicates_do_not_pass_the_clip():
    X = sp.csr_array((np.ones(100), np.zeros(100, int), [0, 100]), shape=(1, D))
    X.has_canonical_format = True
    gram = query(X, "add_remove").gram()
    assert np.linalg.norm(gram.answer(1e-6).astype(float)) <= gram.bound.l2_steps(1e-6)


def test_narrowed_queries():
    X = np.random.default_rng(7).standard_normal((50, D))
    center = np.arange(D) / 4
    kept = np.array([0, 3])
    full = query(X, "add_remove", C=math.inf)
    assert np.allclose(full.centered(center).gram().answer(0.0), (X - center).T @ (X - center))
    sparse = query(sp.csr_array(X), "add_remove", C=math.inf).centered(center)
    assert np.allclose(sparse.gram().answer(0.0), (X - center).T @ (X - center))
    assert np.allclose(full.columns(kept).gram().answer(0.0), (X.T @ X)[np.ix_(kept, kept)])
    clipped = full.clipped(0.5).gram().answer(0.0)
    assert np.trace(clipped) <= 50 * 0.25 + 1e-9


def test_sums_that_are_made_once_are_those_of_their_rows_and_unit():
    X = np.random.default_rng(0).standard_normal((50, 3))
    once, center = query(X, "add_remove"), np.ones(3)
    for step in (2.0**-20, 2.0**-12, 2.0**-20):
        for _ in range(2):
            found = once.sums().answer(step)
            np.testing.assert_array_equal(found, query(X, "add_remove").sums().answer(step))
            found += 1  # noise is added to a copy
    moved = once.centered(center).sums().answer(2.0**-20)
    np.testing.assert_array_equal(moved, query(X - center, "add_remove").sums().answer(2.0**-20))
    shorter = once.clipped(0.1).sums().answer(2.0**-20)
    assert np.abs(shorter).sum() < np.abs(once.sums().answer(2.0**-20)).sum()


class _Passes(blocks.DenseRows):
    """Rows that count how often they are passed over."""

    def __init__(self, X):
        super().__init__(X)
        self.passes = 0

    def blocks(self):
        self.passes += 1
        return super().blocks()


@pytest.mark.parametrize("first", ["norms", "gram"])
@pytest.mark.parametrize("n_jobs", [1, 3])
def test_kept_rows_are_passed_over_once_for_norms_and_moment(first, n_jobs, monkeypatch):
    monkeypatch.setattr(blocks, "_CACHE_BYTES", 8 * D * 20)
    X, level, step = rows_of_all_scales(3, 100), 0.4, 1e-9
    rows = _Passes(X) if n_jobs == 1 else X
    kept = query(rows, "add_remove", n_jobs=n_jobs).kept()
    asked = {"norms": lambda q: q.norms_above(level), "gram": lambda q: q.gram()}
    answers = {name: asked[name](kept).answer(step) for name in sorted(asked, key=first.__ne__)}
    if n_jobs == 1:
        assert rows.passes == 1
    np.testing.assert_array_equal(
        answers["norms"], query(X, "add_remove").norms_above(level).answer(step)
    )
    np.testing.assert_array_equal(
        answers["gram"], query(X, "add_remove").kept().gram().answer(step)
    )
    assert answers["norms"] > 0


def test_number_of_rows_is_public_only_under_replace():
    X = np.ones((4, D))
    assert query(X, "replace").n_rows == 4
    with pytest.raises(ValueError, match="private"):
        _ = query(X, "add_remove").n_rows
    with pytest.raises(ValueError, match="public"):
        query(X, "replace").count()
    with pytest.raises(ValueError, match="adjacency"):
        query(X, "neighbour")


def test_rows_by_group_are_not_taken_for_rows():
    groups = GroupRows(np.ones((4, D)), {}, np.array([0, 0, 1, 1]))
    with pytest.raises(PrivacyError, match="bounds of single rows"):
        query(groups, "add_remove")
    assert query(groups, "replace", by_group=True).n_rows == 2


def test_no_rows_is_no_trouble():
    for release in (ROWS | KEPT).values():
        for rows in (np.zeros((0, D)), sp.csr_array((0, D))):
            nothing = release(query(rows, "add_remove"))
            assert not nothing.answer(1e-8).any()


class OneBlock:
    """A source of one's own that yields one block of any form."""

    n_features = 4
    sparse = True

    def __init__(self, block):
        self.block = block

    def n_rows(self):
        return self.block.shape[0]

    def parts(self, n):
        return [self]

    def blocks(self):
        yield self.block


def in_parts(A, times):
    """A CSR matrix, each entry stored in so many equal parts."""
    A = sp.csr_array(A)
    data, columns = np.repeat(A.data / times, times), np.repeat(A.indices, times)
    return sp.csr_array((data, columns, A.indptr * times), shape=A.shape)


FORMS = {
    "stored in parts": lambda A: in_parts(A, 64),
    "by columns": sp.csc_array,
    "coordinates": sp.coo_array,
    "masked": lambda A: np.ma.masked_array(A, mask=A > 1),
    "float32": lambda A: A.astype(np.float32),
}


@pytest.mark.thorough
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("method", ["sums", "gram", "gram_product", "square_sum", "norms"])
def test_a_row_counts_the_same_in_each_form_that_a_source_may_yield(method, form):
    """The norm that is clipped is that of the row: 64 parts of an entry are one entry."""
    A = np.array([[3.0, 0, 0, 0], [0, 0.5, 0, -0.25], [0, 2, 2, 0], [8, 0, 0, 0]])

    def answer(block):
        asked = query(OneBlock(block), "add_remove")
        if method == "norms":
            return asked.norms_above(1.5).answer(1.0)
        public = (np.eye(4),) if method == "gram_product" else ()
        return getattr(asked, method)(*public).answer(2.0**-20)

    assert np.array_equal(answer(A), answer(FORMS[form](A)))
    one = answer(FORMS[form](A[3:]))
    assert np.linalg.norm(one) <= (1 if method == "norms" else 2.0**20 * (1 + 1e-9))


SCREENED = {name: ask for name, ask in (ROWS | KEPT).items() if name not in ("count", "centered")}


@pytest.mark.thorough
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", SCREENED)
def test_a_bad_value_in_a_column_that_is_left_out_counts_too(name, bad, sparse):
    """A bad row of a screened query is what a row of zeros is, however often it is narrowed."""
    X = np.random.default_rng(6).standard_normal((7, 2 * D + 1))
    X[3, 0], X[5, 2 * D] = bad, bad
    zeros = np.where(np.isfinite(X).all(axis=1, keepdims=True), X, 0.0)
    make = sp.csr_array if sparse else np.asarray
    kept, whole = np.arange(1, 2 * D), 2 * np.arange(D)[::-1]
    for narrowed in (
        lambda A: query(make(A), "replace", 3.0).columns(1 + whole),
        lambda A: query(make(A), "replace", 3.0).columns(kept).columns(whole),
        lambda A: query(make(A), "replace").clipped(3.0).columns(kept).columns(whole),
    ):
        found, expected = (SCREENED[name](narrowed(A)) for A in (X, zeros))
        assert expected.answer(1e-8).any()
        np.testing.assert_array_equal(found.answer(1e-8), expected.answer(1e-8))
