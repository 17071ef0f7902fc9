"""Queries of rows and groups: bounds hold and are attained, sums are exact in any order."""

import math

import numpy as np
import pytest
import scipy.sparse as sp

from skdp._limits import CORE_SCALE, LARGEST, tangent_bound
from skdp.data import blocks
from skdp.data import units as grouped_rows
from skdp.data.integers import FINEST_UNIT, ExactProduct, PublicMatrix
from skdp.data.units import GroupRows, in_memory
from skdp.data.views import GroupMap, RecordForm, RowScale, TargetScale
from skdp.exceptions import PrivacyError
from skdp.queries.columns import ColumnQuery
from skdp.queries.regression import RegressionQuery
from skdp.queries.rows import RowQuery
from skdp.units import ADJACENCIES
from tools.gate import change_over_bound
from tools.places import InBlocks

D, K = 5, 3
V = np.linalg.qr(np.random.default_rng(9).standard_normal((D, K)))[0]
SKEWED = V * np.array([3.0, 1.0, 0.2])
FLAT = V * [3.0, 1e-3, 0.7]
HALVES = np.eye(D)[:, :1] * np.full((1, 4), 0.5001)  # which round up for all columns at once
OUTSIDE = (np.eye(D) - V @ V.T)[:1] / np.linalg.norm((np.eye(D) - V @ V.T)[0])
CENTER, SIZE = np.zeros(D), np.ones(D)


def seen(q):
    """Return rows whose X'X was read before."""
    q.gram().answer(1e-9)
    return q


def recentered(q):
    return q.centered(np.ones(D)).recentered(np.full(D, 1 + 1e-7))


TWOS = RowScale(np.zeros(D), np.full(D, 2.0), -16.0, 16.0)
UNITS = RowScale(CENTER, np.full(D, 2.0), np.linspace(-16.0, -8.0, D), 16.0)
ROWS = {
    "gram": lambda q: q.gram(), "moment": lambda q: q.moment(0.5),
    "moment_wide": lambda q: q.moment(1.7), "projected_gram": lambda q: q.projected_gram(V),
    "projected_gram_skewed": lambda q: q.projected_gram(SKEWED),
    "projected_gram_line": lambda q: q.projected_gram(V[:, :1]),
    "projected_gram_seen": lambda q: seen(q).projected_gram(V),
    "gram_product": lambda q: q.gram_product(V),
    "gram_product_skewed": lambda q: q.gram_product(SKEWED),
    "gram_product_flat": lambda q: q.gram_product(FLAT),
    "gram_product_line": lambda q: q.gram_product(V[:, :1]),
    "gram_product_halves": lambda q: q.gram_product(HALVES),
    "tangent": lambda q: q.tangent(V).product(math.inf),
    "tangent_clipped": lambda q: q.tangent(V).product(0.2),
    "tangent_sizes": lambda q: q.tangent(V).sizes_above(0.2),
    "some_columns": lambda q: q.columns(np.array([0, 3])).gram(),
    "centered": lambda q: q.centered(np.ones(D)).gram(),
    "recentered": lambda q: recentered(q).gram(),
    "recentered_trace": lambda q: recentered(q).square_sum(), "sums": lambda q: q.sums(),
    "positive_sums": lambda q: q.positive_sums(), "kept_below": lambda q: q.kept_below(1.0),
    "norms_above": lambda q: q.norms_above(0.5),
    "negative": lambda q: q.negative().norms_above(0.1), "trace": lambda q: q.square_sum(),
    "trace_seen": lambda q: seen(q).square_sum(),
    "count": lambda q: q.count(),
}  # fmt: skip
ONCE = ("sums", "positive_sums")  # rounded to steps after the sum
COLUMNS = {
    "moments": lambda q: q.moments(CENTER, SIZE, 1.0),
    "distances": lambda q: q.distances(CENTER, np.ones((D, 1))).ranks(np.zeros(D, int)),
    "grid": lambda q: q.grid(np.stack([CENTER, SIZE], axis=1)).ranks(np.arange(D) % 2),
}
BOX = TargetScale.in_box(np.array([-1.0]), np.array([1.0]), centered=False)
REGRESSIONS = {
    "regression": lambda q: q.regression(0.3, 0.6),
    "regression_long_targets": lambda q: q.regression(0.3, 1.7),
    "regression_without_bias": lambda q: q.regression(0.0, 0.6),
    "regression_of_some_columns": lambda q: q.selected(np.array([0, 2])).regression(0.3, 0.6),
    "in_units": lambda q: q.scaled(UNITS).regression(0.3, 0.6),
    "measured": lambda q: q.measured(TWOS).selected(np.array([0, 2])).regression(0.3, 0.6),
    "targets": lambda q: q.targets().moments(np.zeros(1), np.ones(1), 1.0),
    "lengths": lambda q: q.lengths().kept_below(1.0),
}
RELEASES = {"row": ROWS | COLUMNS | REGRESSIONS, "group": ROWS | COLUMNS | REGRESSIONS}
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
    if name in REGRESSIONS:
        if not by_group:
            X = in_memory(X, y=y).joined(RecordForm(np.asarray, 1))
        return REGRESSIONS[name](RegressionQuery(X, clip_norm=1.0, scale=BOX, **kw))
    return RELEASES[unit][name](RowQuery(X, clip_norm=1.0, **kw))


def query(X, adjacency, C=1.0, **kwargs):
    return RowQuery(X, clip_norm=C, adjacency=adjacency, **kwargs)


def rows_of_all_scales(seed, n):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, D)) * 10.0 ** rng.uniform(-7, 7, (n, 1))
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    return np.vstack([X, unit, V.T, -V.T, np.eye(D), 1e9 * V.T, np.zeros((1, D))])


def hostile(seed=0):
    """Groups of 1 to 200 rows of all scales, alike or not, and groups that attain each bound."""
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
    """Groups whose contributions may be the opposite of others'."""
    for rows in everybody[1::3]:
        yield -rows
        yield np.roll(rows, 1, axis=1) * np.where(np.arange(D) % 2, 1, -1)
    yield from (*few_units(1), *few_units(20))


def few_units(each):
    """Units that attain most bounds, and their partners: rows, each some times."""
    rows = [*V.T, *np.eye(D)[:2], np.ones(D), -np.ones(D), np.zeros(D), np.full(D, 1e300)]
    for t in (0.1, 0.3, 0.5, 0.53, 0.9):
        x = math.sqrt(t) * V[:, 0] + math.sqrt(1 - t) * OUTSIDE[0]
        rows += [x, 2 * math.sqrt(t) * V[:, 0] - x]
    for first, second in ((V[:, 0], V[:, 1]), (np.eye(D)[0], np.eye(D)[2])):
        turned = (math.cos(a) * first + math.sin(a) * second for a in np.linspace(0, math.pi, 5))
        rows += [length * x for x in turned for length in (1.0, 2.0)]
    return [np.tile(x, (each, 1)) for x in rows]


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
    """Norms of the contribution of each unit, and of the differences of all pairs."""
    pairs = (norm(answers - answer).max() for answer in answers)
    return {"add_remove": norm(answers).max(), "replace": max(pairs)}


def l2(changes):
    return np.linalg.norm(changes, axis=1)


def worst_ratios(unit, name, units, step, company=()):
    """Yield (adjacency, largest change over its bound) where a unit is added, removed or replaced.

    Next to `company`; of its own floors and roundings there are none.
    """
    sent = [bounded(unit, name, [*company, rows]) for rows in units]
    assert all(one.bound == sent[0].bound for one in sent)
    answers = np.array([one.answer(step).ravel() for one in sent], np.float64)
    if company:
        answers -= bounded(unit, name, company).answer(step).ravel()
    for adjacency in ADJACENCIES if name != "count" else ("add_remove",):
        bound = bounded(unit, name, [], adjacency).bound
        moved = largest_changes(answers, lambda changes: np.abs(changes).sum(axis=1))
        assert moved[adjacency] <= bound.l1_steps(step)
        yield adjacency, largest_changes(answers, l2)[adjacency] / bound.l2_steps(step)


def least_worst(name, adjacency):
    """Return what is attained: a replaced projection attains its bound for equal s1 and s2.

    Cores of groups that replace each other do not cancel: a tangent attains its own if it is cut.
    """
    replaced = {"gram_skewed": 0.5, "tangent": 0.94} if adjacency == "replace" else {}
    return next((least for end, least in replaced.items() if name.endswith(end)), 0.95)


@pytest.mark.thorough
@pytest.mark.parametrize("step", [1e-9, 0.03])
@each_release
def test_sensitivity_holds_and_is_attained(unit, name, step):
    """Every row, or group, is added, removed, and replaces every other one."""
    for adjacency, worst in worst_ratios(unit, name, everybody(unit), step):
        assert (0.3 if step > 0.01 else least_worst(name, adjacency)) <= worst <= 1.0


@each_release
def test_a_few_units_attain_each_bound(unit, name, rng):
    """What the test above asks, in less time; and of steps nearly as long as rows, in company."""
    few = few_units(1 if unit == "row" else 3)
    for adjacency, worst in worst_ratios(unit, name, few, 1e-9):
        assert least_worst(name, adjacency) <= worst <= 1.0
    company = list(0.4 * rng.standard_normal((3, 1, D)))
    assert all(worst <= 1 for _, worst in worst_ratios(unit, name, few, 0.9, company))
    assert_units_add_up(unit, name, company, 0.03)  # in steps that round much


@each_release
def test_a_single_column_is_no_special_case(unit, name, monkeypatch):
    if name in ("some_columns", "measured", "regression_of_some_columns"):
        return
    one = {"D": 1, "CENTER": np.zeros(1), "SIZE": np.ones(1), "HALVES": np.full((1, 4), 0.5001)}
    one |= dict.fromkeys(("V", "FLAT"), np.ones((1, 1))) | {"SKEWED": np.full((1, 1), 3.0)}
    one["UNITS"] = RowScale(one["CENTER"], np.full(1, 2.0), np.full(1, -16.0), 16.0)
    for key, value in one.items():
        monkeypatch.setitem(globals(), key, value)
    few = [np.array([[x]]) for x in (1.0, -1.0, 0.5, -0.5, 0.2, -0.2, 0.0, 1e9, -1e300, 2.0)]
    assert all(worst <= 1 for _, worst in worst_ratios(unit, name, few, 1e-9))


def test_rounding_is_paid_for_in_each_unit_that_changes():
    """Two units under replace: no pair attains the largest rounding, so the formula is compared."""
    for unit, names in RELEASES.items():
        for name in set(names) - {"count"}:
            one, two = (bounded(unit, name, [], adjacency).bound for adjacency in ADJACENCIES)
            assert two.cross == pytest.approx(2 * one.cross)
            if unit == "row" and name in ("gram_product", "tangent"):  # C = 1: floats stay exact
                assert one.min_step == two.min_step == FINEST_UNIT**2
            if not (one.symmetric or name.startswith(("tangent", "gram_product", *ONCE))):
                assert two.l2_slack >= 1.3 * one.l2_slack


@pytest.mark.thorough
@pytest.mark.parametrize("name", RELEASES["group"])
def test_a_huge_group_counts_once(name, rng):
    """A hundred thousand rows, spread over all scales, stay within the bound."""
    rows = rng.standard_normal((100_000, D)) * 10.0 ** rng.uniform(-2, 2, (100_000, 1))
    one = bounded("group", name, [rows])
    assert np.linalg.norm(one.answer(1e-6).astype(np.float64)) <= one.bound.l2_steps(1e-6)


def assert_units_add_up(unit, name, groups, step):
    """Return the answer of all, which is the sum of those of each alone."""
    alone = sum(bounded(unit, name, [rows]).answer(step) for rows in groups)
    whole = bounded(unit, name, groups).answer(step)
    exact = "gram_product" if unit == "group" else "tangent"  # and rounded once, after the sum
    once = name.startswith((exact, *ONCE)) and name != "tangent_sizes"
    floors = bounded(unit, name, []).bound.l2_slack if name.endswith("seen") else 0
    assert np.abs(whole - alone).max() <= len(groups) * max(once, floors)
    return whole


@pytest.mark.thorough
@each_release
def test_the_bits_of_a_unit_depend_on_no_other_unit_and_no_order(unit, name, monkeypatch):
    groups = everybody(unit)[::2]
    whole = assert_units_add_up(unit, name, groups, 1e-6)
    together = bounded(unit, name, groups, seed=1, n_jobs=2)
    assert np.array_equal(together.answer(1e-6), whole)
    monkeypatch.setattr(grouped_rows, "CACHED", 2**7)
    monkeypatch.setattr(blocks, "BLOCK", 2**7)
    together = bounded(unit, name, groups[::-1], seed=2)
    assert np.array_equal(together.answer(1e-6), whole)


def test_the_size_of_a_long_group_term_does_not_depend_on_others(rng):
    """d p = 12,000 numbers: einsum splits more than 8,192 numbers by their position."""
    V = np.linalg.qr(rng.standard_normal((1000, 12)))[0]

    def sizes(rows):
        groups = GroupRows(rows, {}, np.arange(len(rows)) // 2)
        query = RowQuery(groups, clip_norm=30.0, by_group=True, adjacency="add_remove")
        (batch,) = groups.blocks()
        return query.tangent(V)._terms(30 * 2.0**-24).sizes(batch)

    rows = rng.standard_normal((10, 1000))
    assert np.array_equal(
        sizes(rows), np.concatenate([sizes(pair) for pair in rows.reshape(5, 2, -1)])
    )


@pytest.mark.thorough
@each_release
def test_integer_answers_approach_the_exact_ones(unit, name, rng):
    groups = [rng.standard_normal((m, D)) for m in ([1] * 500 if unit == "row" else (1, 4, 9) * 40)]
    release, step = bounded(unit, name, groups), 1e-9
    exact, value = release.answer(0.0), release.answer(step) * step
    assert exact.dtype == np.float64
    if release.decode is not None:
        value = release.decode(value, step)
    assert np.allclose(value, exact, rtol=2e-4, atol=0.05)


@each_release
def test_forms_and_types_of_rows_give_the_same_bits(unit, name, tmp_path, rng):
    groups = [np.maximum(rng.standard_normal((m, D)), 0.2) for m in (1, 4, 9) * 3]
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
     "moments", "distances", "grid", "targets", "regression_without_bias"],
)  # fmt: skip
def test_a_group_of_one_row_is_that_row(name):
    """The same integers, but where a group is bounded, or rounded, as a whole."""
    X = rows_of_all_scales(4, 40)[:, None]
    row, group = (bounded(unit, name, list(X)).answer(2.0**-10) for unit in RELEASES)
    np.testing.assert_array_equal(group, row)


def test_equal_groups_count_by_their_mean_moment(rng):
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
def test_products_are_exact_at_the_finest_step(size, rng):
    """Integers of any size agree: no product of limbs is rounded."""
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


def test_narrowed_queries():
    X = np.random.default_rng(7).standard_normal((50, D))
    center = np.arange(D) / 4
    kept = np.array([0, 3])
    full = query(X, "add_remove", C=math.inf)
    assert np.allclose(full.centered(center).gram().answer(0.0), (X - center).T @ (X - center))
    assert np.allclose(full.columns(kept).gram().answer(0.0), (X.T @ X)[np.ix_(kept, kept)])
    none = full.clipped(0.5).columns(kept[:0])
    assert none.gram().answer(0.1).shape == (0, 0) and none.sums().answer(0.1).shape == (0,)
    assert np.trace(full.clipped(0.5).gram().answer(0.0)) <= 50 * 0.25 + 1e-9
    assert seen(query(X, "add_remove", 9.0)).clipped(0.5).square_sum().answer(1e-6) <= 50 * 0.25e6


@pytest.mark.parametrize("by_group", [False, True])
def test_rows_about_another_centre_keep_their_lengths_and_nothing_else(by_group):
    X, (first, second) = np.random.default_rng(8).standard_normal((40, D)), np.eye(2, D)
    X = GroupRows(X, {}, np.repeat(np.arange(20), 2)) if by_group else X
    rows = RowQuery(X, clip_norm=1.0, by_group=by_group, adjacency="replace")
    before, after = rows.centered(first), rows.centered(second)
    of = {"gram": after, "sums": after, "kept_below": before, "square_sum": before}
    for name, like in of.items():
        about_first = seen(rows.centered(first))
        about_first.sums().answer(1e-6)
        moved = about_first.recentered(second)
        public = (1.5,) if name == "kept_below" else ()
        answers = (getattr(q, name)(*public).answer(1e-6) for q in (moved, like))
        np.testing.assert_array_equal(*answers, err_msg=name)


def test_sums_that_are_made_once_are_those_of_their_rows_and_unit():
    X = np.random.default_rng(0).standard_normal((50, 3))
    once, center = query(X, "add_remove"), np.ones(3)
    for step in (2.0**-20, 2.0**-12, 2.0**-20):
        for name in ("sums", "positive_sums"):
            found, like = (getattr(q, name)() for q in (once, query(X, "add_remove")))
            np.testing.assert_array_equal(found.answer(step), like.answer(step))
    anew = query(X - center, "add_remove"), query(X, "add_remove", C=0.1)
    for moved, like in zip((once.centered(center), once.clipped(0.1)), anew, strict=True):
        np.testing.assert_array_equal(*(q.sums().answer(2.0**-20) for q in (moved, like)))


def test_the_floor_of_a_trace_moves_by_a_step_more_than_a_row():
    X = np.sqrt([[1.0], [0.989]]) * np.eye(D)[:1]
    both = (seen(query(rows, "add_remove")).square_sum() for rows in (X, X[1:]))
    assert 0.99 < change_over_bound(*both, 1 / 1.006) <= 1
    assert seen(query(np.eye(D), "add_remove")).square_sum().answer(1e-30) == LARGEST


def test_a_known_moment_is_projected_within_its_bound(monkeypatch):
    """What its floors add is in the bound, and it is told how large the moment of a row is."""
    q, grid, given = query(np.eye(D), "add_remove", C=2.0), PublicMatrix(V), []
    monkeypatch.setattr(PublicMatrix, "projected", lambda _, *known: given.append(known[1:]))
    bounded = seen(q).projected_gram(V)
    bounded.answer(1e-6)
    assert given == [pytest.approx((1e-3, 4e9))]
    wider, slack = grid.rounding
    assert bounded.bound.l2 >= 4 * grid.norms[0] ** 2 * (1 + wider) > 4 * (1 + 1e-7)
    assert bounded.bound.slack == slack == K


def test_floors_of_sums_move_all_columns_by_a_step():
    """Rows of a group that are all rounded up exceed the clip norm."""
    sums, fewer = (query(np.full((n, 4), 0.5), "add_remove").sums() for n in (201, 200))
    moved = sums.answer(100.0) - fewer.answer(100.0)
    assert 0.99 < np.linalg.norm(moved) / sums.bound.l2_steps(100.0) <= 1
    assert 0.99 < np.abs(moved).sum() / sums.bound.l1_steps(100.0) <= 1
    groups = GroupRows(np.full((5, 45), 5**0.5 * 1118481 * 2.0**-24), {}, np.zeros(5, int))
    longer = RowQuery(groups, clip_norm=1.0, by_group=True, adjacency="add_remove").sums()
    assert 1 + 1e-7 < np.linalg.norm(longer.answer(2.0**-34)) * 2.0**-34 <= longer.bound.l2


def test_rows_by_group_are_not_taken_for_rows():
    groups = GroupRows(np.ones((4, D)), {}, np.array([0, 0, 1, 1]))
    with pytest.raises(PrivacyError, match="bounds of single rows"):
        query(groups, "add_remove")


def test_no_rows_give_zeros():
    for release in ROWS.values():
        for rows in (np.zeros((0, D)), sp.csr_array((0, D))):
            nothing = release(query(rows, "add_remove"))
            assert not nothing.answer(1e-8).any()


def in_parts(A, times=64):
    """A CSR array, each entry stored in so many equal parts."""
    A = sp.csr_array(A)
    data, columns = np.repeat(A.data / times, times), np.repeat(A.indices, times)
    return sp.csr_array((data, columns, A.indptr * times), shape=A.shape)


FORMS = {
    "stored in parts": in_parts,
    "by columns": sp.csc_array,
    "coordinates": sp.coo_array,
    "masked": lambda A: np.ma.masked_array(A, mask=A > 1),
    "float32": lambda A: A.astype(np.float32),
}


@pytest.mark.thorough
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ROWS)
def test_a_row_counts_the_same_in_each_form_that_a_source_may_yield(name, form):
    """The norm that is clipped is that of the row: 64 parts of an entry are one entry."""
    A = np.array([[3.0, 0, 0, 0, 0], [0, 0.5, 0, -0.25, 0], [0, 2, 2, 0, 0.1], [8, 0, 0, 0, 0]])

    def bounded(rows):
        return ROWS[name](query(rows, "add_remove"))

    block = FORMS[form](A)
    plain = np.where(A > 1, np.nan, A) if form == "masked" else A  # a masked entry is unknown
    expected, step = bounded(plain).answer(1e-8), 1e-6
    assert np.array_equal(bounded(InBlocks(block)).answer(1e-8), expected)
    one = bounded(InBlocks(FORMS[form](A[3:])))
    assert np.linalg.norm(one.answer(step).astype(float)) <= one.bound.l2_steps(step)
    if form == "stored in parts":
        block.has_canonical_format = True  # a claim that is not true
        assert np.array_equal(bounded(block).answer(1e-8), expected)
        assert block.data.size == 64 * sp.csr_array(A).data.size  # the input is left as it was


SCREENED = {name: ask for name, ask in ROWS.items() if "center" not in name and name != "count"}


@pytest.mark.thorough
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", SCREENED)
def test_a_bad_value_in_a_column_that_is_left_out_counts_too(name, bad, sparse):
    """A bad row of a screened query is what a row of zeros is, however often it is restricted."""
    X = np.random.default_rng(6).standard_normal((7, 2 * D + 1))
    X[3, 0], X[5, 2 * D] = bad, bad
    zeros = np.where(np.isfinite(X).all(axis=1, keepdims=True), X, 0.0)
    make = sp.csr_array if sparse else np.asarray
    kept, whole = np.arange(1, 2 * D), 2 * np.arange(D)[::-1]
    for restricted in (
        lambda A: query(make(A), "replace", 3.0).columns(1 + whole),
        lambda A: query(make(A), "replace", 3.0).columns(kept).columns(whole),
        lambda A: query(make(A), "replace").clipped(3.0).columns(kept).columns(whole),
    ):
        found, expected = (SCREENED[name](restricted(A)) for A in (X, zeros))
        assert expected.answer(1e-8).any()
        np.testing.assert_array_equal(found.answer(1e-8), expected.answer(1e-8))


# -- the tangent split: bounds, exactness, and the identity with the plain product ----------------

P = 2
T = V[:, :P]


def tangent(X, adjacency="add_remove"):
    return RowQuery(X, clip_norm=1.0, adjacency=adjacency).tangent(T)


def hard_rows():
    """Rows with a given share of their norm inside V, at many scales."""
    rng = np.random.default_rng(1)
    outside = np.linalg.qr(np.hstack([T, rng.standard_normal((D, D - P))]))[0][:, P:]
    for share in np.linspace(0, 1, 21):
        for _ in range(6):
            a = rng.standard_normal(P)
            r = rng.standard_normal(D - P)
            x = math.sqrt(share) * T @ (a / np.linalg.norm(a))
            x += math.sqrt(1 - share) * outside @ (r / np.linalg.norm(r))
            yield x * 10.0 ** rng.uniform(-7, 7)
            yield x


@pytest.mark.thorough
@pytest.mark.parametrize("level", [0.03, 0.3, 9.0])
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_sensitivity_of_a_tangent_holds_and_is_attained(adjacency, level):
    worst, step = 0.0, 1e-9
    rows = list(hard_rows())
    for i, x in enumerate(rows):
        mirrored = 2 * T @ (T.T @ x) - x
        others = [None] if adjacency == "add_remove" else [mirrored, -x, rows[(5 * i + 2) % 200]]
        for y in others:
            pair = [np.zeros((0, D)) if row is None else row[None] for row in (x, y)]
            left, right = (tangent(row, adjacency).product(level) for row in pair)
            worst = max(worst, change_over_bound(left, right, step))
    assert 0.95 <= worst <= 1.0


@pytest.mark.parametrize("C", [1e-140, 1e-90, 1.0, 1e90, 1e140])
@pytest.mark.parametrize("unit", ["row", "group"])
def test_a_tangent_is_clipped_at_any_scale(unit, C):
    """Squares of sizes, which are fourth powers of C, may underflow or overflow."""
    x, by_group = C * (T[:, :1].T + OUTSIDE), unit == "group"
    pair = [GroupRows(rows, {}, np.zeros(len(rows), int)) if by_group else rows for rows in
            (x, x[:0])]  # fmt: skip
    options = {"clip_norm": C, "adjacency": "add_remove", "by_group": by_group}
    queries = [RowQuery(rows, **options).tangent(T) for rows in pair]
    for level in (C * C / 50, math.inf):
        assert 0.9 < change_over_bound(*(q.product(level) for q in queries)) <= 1
    assert queries[0].sizes_above(C * C / 4).answer(1.0) == 1


def test_sizes_count_what_is_not_orthonormal():
    """A row in the span of columns longer than 1: more of the core is removed."""
    rows = (query(X, "add_remove", C=2.0) for X in (V[:, :1].T, np.zeros((1, D))))
    asked = (q.tangent((1 + 2e-4) * V).product(0.3) for q in rows)
    assert 0.95 < change_over_bound(*asked) <= 1


@pytest.mark.thorough
def test_both_roundings_cost_no_more_than_each_alone(rng):
    """The inequality of the proof, by search: half-integers in the span of V attain it."""
    worst = 0.0
    for trial in range(4000):
        p = int(rng.integers(1, 9))
        d = p + int(rng.integers(0, 4))
        basis = np.eye(d)[:, :p] if trial % 3 else np.linalg.qr(rng.standard_normal((d, p)))[0]
        halves = (rng.integers(0, 2, p) + 0.5 + 1e-9) * rng.choice([-1, 1], p)
        a = halves if trial % 2 else rng.standard_normal(p) * rng.choice([0.3, 1, 3])
        beside = rng.standard_normal(d) * rng.choice([0, 0.1, 0.5, 3])
        z = basis @ a + beside - basis @ (basis.T @ beside)
        a, r = basis.T @ z, rng.choice([0.0, 0.5, 0.9, 1.0])
        weighted = a * (rng.uniform(0.1, 1, p) if trial % 5 == 0 else 1.0)
        left, right = z - r * basis @ np.rint(a), np.rint(weighted)
        exact = np.linalg.norm(z - r * basis @ a) * np.linalg.norm(weighted)
        change = np.linalg.norm(left) * np.linalg.norm(right)
        worst = max(worst, change / (exact + math.sqrt(p) * np.linalg.norm(z)))
    assert 0.99 <= worst <= 1


def test_bound_on_sizes_is_attained():
    t = np.linspace(0, 1, 100_001)
    sizes = np.sqrt(t * (1 - t + t / CORE_SCALE**2))
    assert sizes.max() == pytest.approx(tangent_bound(1.0), rel=1e-6)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_tangent_matches_the_float_computation(sparse):
    X = np.random.default_rng(2).standard_normal((400, D)) / 3
    rows = sp.csr_array(X) if sparse else X
    bounded = tangent(rows).product(0.2)
    step = 1e-9
    assert np.allclose(bounded.answer(step) * step, bounded.answer(0.0), atol=1e-2)
    whole = tangent(rows).product(math.inf).answer(0.0)
    clipped = X / np.maximum(1, np.linalg.norm(X, axis=1))[:, None]
    Y = clipped.T @ clipped @ T
    expected = Y - (1 - 1 / CORE_SCALE) * T @ (T.T @ Y)
    assert np.allclose(whole, expected)


def test_the_bound_covers_rounding_in_flat_directions():
    """Rows nearly inside the span of V show how far its grid is from orthonormal."""
    d = 13124
    flat = np.full((d, 1), d**-0.5)
    grid = np.rint(flat * 2**26) / 2**26
    gap = float((grid.T @ grid)[0, 0] - 1)
    r = np.zeros(d)
    r[:2] = 0.5**0.5, -(0.5**0.5)
    x = flat[:, 0] + math.sqrt(abs(gap)) * r
    bounded = RowQuery(x[None] / np.linalg.norm(x), clip_norm=1.0, adjacency="add_remove")
    product = bounded.tangent(flat).product(1e-3)
    change = np.linalg.norm(product.answer(1e-11).astype(float))
    assert change <= product.bound.l2_steps(1e-11)


@pytest.mark.parametrize("V", [2 * V, 1.001 * V, np.ones((D, 2)), np.full((D, 1), math.nan)])
def test_columns_must_be_orthonormal(V):
    with pytest.raises(ValueError, match="orthonormal"):
        RowQuery(np.eye(D), clip_norm=1.0, adjacency="replace").tangent(V)


def test_core_sums_do_not_overflow():
    """Six million rows inside the span of V, at a large budget: one more row adds its own term."""
    step = 1e-3 / 8e9
    rows = np.tile(V[:, 0], (20_000, 1))
    answers = [
        query(source, "add_remove").tangent(V[:, :1]).product(1e-3)
        for source in (InBlocks(rows[:1]), InBlocks(*[rows] * 10), InBlocks(*[rows] * 10, rows[:1]))
    ]
    one, many, more = (bounded.answer(step).astype(float) for bounded in answers)
    assert np.linalg.norm(more - many) <= answers[0].bound.l2_steps(step)
    assert np.allclose(many, 200_000 * one, atol=200_000)
