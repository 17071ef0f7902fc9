"""Queries of persons: bounds that hold for any rows of one group and are attained; no order."""

import itertools
import math

import numpy as np
import pytest
import scipy.sparse as sp

from skdp.data import groups as grouped_rows
from skdp.data.exact import ExactProduct
from skdp.data.persons import PersonRows
from skdp.data.record_scales import RowScale, TargetScale
from skdp.queries.person_columns import PersonColumns
from skdp.queries.person_maps import PersonMap, PersonWeight
from skdp.queries.person_readout import PersonReadoutQuery
from skdp.queries.persons import PersonQuery

D, K = 5, 3
V = np.linalg.qr(np.random.default_rng(9).standard_normal((D, K)))[0]
SKEW = V * [3.0, 1e-3, 0.7]
OUTSIDE = (np.eye(D) - V @ V.T)[:1] / np.linalg.norm((np.eye(D) - V @ V.T)[0])
CENTER, SIZE = np.zeros(D), np.ones(D)
WEIGHTS = {"equal": PersonWeight(), "rows": PersonWeight(8.0)}
ROWS = {
    "gram": lambda q: q.gram(),
    "moment": lambda q: q.moment(0.5),
    "projected_gram": lambda q: q.projected_gram(V),
    "gram_product": lambda q: q.gram_product(V),
    "gram_product, not orthonormal": lambda q: q.gram_product(SKEW),
    "tangent": lambda q: q.tangent(V, math.inf).product(math.inf),
    "tangent, clipped": lambda q: q.tangent(V, math.inf, np.array([1.0, 0.5, 0.2])).product(0.2),
    "tangent and core": lambda q: q.tangent(V, 3.0).product(0.3),
    "tangent_sizes": lambda q: q.tangent(V, 3.0).sizes_above(0.2),
    "some columns": lambda q: q.columns(np.array([0, 3])).gram(),
    "sums": lambda q: q.sums(),
    "positive_sums": lambda q: q.positive_sums(),
    "kept_below": lambda q: q.kept_below(1.0),
    "rows_below": lambda q: q.rows_below(7.0),
    "norms_above": lambda q: q.norms_above(0.5),
    "trace": lambda q: q.square_sum(),
    "count": lambda q: q.count(),
    "centered": lambda q: q.centered(np.ones(D)).gram(),
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
    "some_columns": lambda q: q.selected(np.array([0, 2])).readout(0.3, 0.6),
    "in_units": lambda q: q.scaled(RowScale(CENTER, np.full(D, 2.0), 16.0)).readout(0.3, 0.6),
    "targets": lambda q: q.targets().moments(np.zeros(1), np.ones(1), 1.0),
    "lengths": lambda q: q.lengths().kept_below(1.0),
}
RELEASES = ROWS | COLUMNS | READOUTS


def persons(groups, make=np.asarray, seed=None):
    """Return rows by person, mixed if there is a seed; a person is an array of its rows.

    Targets are at their bounds, those of persons with odd and even numbers of rows opposed.
    """
    X = np.vstack([np.zeros((0, D)), *groups])
    codes = np.repeat(np.arange(len(groups)), [len(rows) for rows in groups])
    order = np.arange(len(X)) if seed is None else np.random.default_rng(seed).permutation(len(X))
    signs = np.concatenate([np.zeros(0), *(np.full(len(x), (-1) ** len(x)) for x in groups)])
    y = ((X[:, 0] != 0) * signs)[:, None]
    return PersonRows(make(X[order]), {"y": y[order]}, codes[order])


def bounded(name, groups, adjacency="add_remove", weight="equal", seed=None, make=np.asarray, **kw):
    rows, weight = persons(groups, make, seed), WEIGHTS[weight]
    if name in COLUMNS:
        return COLUMNS[name](PersonColumns(rows, weight=weight, adjacency=adjacency, **kw))
    if name in READOUTS:
        bounds = {"clip_norm": 1.0, "scale": BOX}
        query = PersonReadoutQuery(rows, weight=weight, adjacency=adjacency, **bounds, **kw)
        return READOUTS[name](query)
    query = PersonQuery(rows, clip_norm=1.0, weight=weight, adjacency=adjacency, **kw)
    return ROWS[name](query)


def hostile(seed=0):
    """Persons of 1 to 200 rows of all scales, alike and unlike, and what attains each bound."""
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
    yield np.full((2, D), np.finfo(float).max)
    yield np.vstack([np.eye(D)] * 40)
    for t in (0.1, 0.3, 0.5, 0.53, 0.9):
        yield np.tile(math.sqrt(t) * V[:, :1].T + math.sqrt(1 - t) * OUTSIDE, (4, 1))


def partners(everybody):
    """Persons that may send the opposite of what others send."""
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


def largest_changes(answers):
    """Norms of what each unit adds, and of what all pairs of them differ by."""
    answers = np.array([answer.ravel() for answer in answers], np.float64)
    pairs = (np.linalg.norm(answers - answer, axis=1).max() for answer in answers)
    return np.linalg.norm(answers, axis=1).max(), max(pairs)


@pytest.mark.thorough
@pytest.mark.parametrize("name", RELEASES)
def test_sensitivity_holds_and_is_attained(name):
    """Every person comes, goes, and stands for every other one."""
    everybody = list(hostile())
    everybody += partners(everybody)
    steps = {"add_remove": 1e-8, "replace": 1e-5}
    if name == "count":
        del steps["replace"]  # the number of persons is public
    for adjacency, step in steps.items():
        worst = 0.0
        for weight in WEIGHTS:
            sent = [bounded(name, [rows], adjacency, weight) for rows in everybody]
            change = largest_changes(one.answer(step) for one in sent)[adjacency == "replace"]
            worst = max(worst, change / sent[0].bound.l2_steps(step))
            assert all(one.bound == sent[0].bound for one in sent)
        assert 0.95 <= worst <= 1.0


def test_the_weight_by_rows_is_private_under_replace_too():
    """Persons of unlike weight stand for each other: the total moves by 1, as `count` says."""
    step, one, many = 1e-6, [np.ones((1, D))], [np.ones((9, D))]
    left, right = (bounded("count", g, "replace", "rows") for g in (one, many))
    assert left.bound.l2 == 1.0
    assert abs(left.answer(step) - right.answer(step)) * step == pytest.approx(7 / 8, abs=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("name", RELEASES)
def test_a_huge_person_counts_once(name):
    """A hundred thousand rows, spread over all scales, stay within the bound."""
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((100_000, D)) * 10.0 ** rng.uniform(-2, 2, (100_000, 1))
    for weight in WEIGHTS:
        one = bounded(name, [rows], weight=weight)
        change = np.linalg.norm(one.answer(1e-6).astype(np.float64))
        assert change <= one.bound.l2_steps(1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("name", RELEASES)
def test_a_person_sends_the_same_bits_in_any_company_and_order(name, weight, monkeypatch):
    everybody = list(hostile())[::2]
    alone = sum(bounded(name, [rows], weight=weight).answer(1e-6) for rows in everybody)
    if name.startswith("gram_product"):  # the sum is exact, and rounded down once
        whole = bounded(name, everybody, weight=weight).answer(1e-6)
        assert np.all((alone <= whole) & (whole <= alone + len(everybody)))
        alone = whole
    for seed, jobs in ((None, None), (1, 2)):
        together = bounded(name, everybody, weight=weight, seed=seed, n_jobs=jobs)
        assert np.array_equal(together.answer(1e-6), alone)
    monkeypatch.setattr(grouped_rows, "_BATCH_BYTES", 2**10)
    together = bounded(name, everybody[::-1], weight=weight, seed=2)
    assert np.array_equal(together.answer(1e-6), alone)


def test_float_sums_are_not_the_same_bits():
    """The control: what the integers are for."""
    X = np.random.default_rng(2).standard_normal((3000, D))
    assert not np.array_equal(X.T @ X, X[::-1].T @ X[::-1])


@pytest.mark.thorough
@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("name", RELEASES)
def test_integer_answers_approach_the_exact_ones(name, weight):
    rng = np.random.default_rng(4)
    groups = [rng.standard_normal((m, D)) for m in (1, 4, 9) * 40]
    answer = bounded(name, groups, weight=weight).answer
    exact = answer(0.0)
    assert exact.dtype == np.float64
    assert np.allclose(answer(1e-8) * 1e-8, exact, rtol=1e-3, atol=0.05)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ROWS | READOUTS)
def test_sparse_rows_give_the_same_bits(name):
    rng = np.random.default_rng(5)
    groups = [np.where(rng.random((m, D)) < 0.5, 0.0, 1.5) for m in (1, 4, 30) * 5]
    dense = bounded(name, groups, seed=3).answer(1e-6)
    assert np.array_equal(bounded(name, groups, seed=3, make=sp.csr_array).answer(1e-6), dense)


def test_equal_persons_count_by_their_mean_moment():
    rng = np.random.default_rng(6)
    groups = [0.1 * rng.standard_normal((m, D)) for m in (1, 5, 20)]
    means = sum(rows.T @ rows / len(rows) for rows in groups)
    np.testing.assert_allclose(bounded("gram", groups).answer(0.0), means)
    weighted = sum(rows.T @ rows * min(1 / len(rows), 1 / 8) for rows in groups)
    np.testing.assert_allclose(bounded("gram", groups, weight="rows").answer(0.0), weighted)
    sums = sum(rows.sum(axis=0) * min(1 / len(rows), 1 / 8) for rows in groups)
    np.testing.assert_allclose(bounded("sums", groups, weight="rows").answer(0.0), sums)
    assert bounded("count", groups, weight="rows").answer(0.0) == 1 / 8 + 5 / 8 + 1


def test_a_person_beyond_the_clip_is_scaled_as_a_whole():
    rows = np.random.default_rng(7).standard_normal((6, D))
    short = rows / math.sqrt(np.square(rows).sum() / 6)
    for name in ("gram", "sums", "trace"):
        long, at_the_edge = (bounded(name, [x]).answer(1e-8) for x in (100 * short, short))
        assert np.allclose(long, at_the_edge, atol=1e-3 / 1e-8)


@pytest.mark.thorough
@pytest.mark.parametrize("size", [1e-3, 1.0, 50.0])
def test_products_are_exact_at_the_finest_step(size):
    """Whole numbers of any length say the same: no product of limbs is rounded."""
    rng = np.random.default_rng(8)
    groups = [rng.standard_normal((m, D)) for m in [1] * 300 + [2000, 50, 7]]
    query = PersonQuery(persons(groups), clip_norm=1.0, adjacency="replace")
    release = query.gram_product(size * V)
    step = max(release.bound.l2 / 2**33, release.bound.min_step)
    product = ExactProduct(size * V)
    rows = PersonMap(1.0, math.sqrt(step / product.scale), WEIGHTS["equal"])
    grid = np.rint(size * V / product.scale * 2.0**26).astype(np.int64).astype(object)
    exact = 0
    for batch in persons(groups).blocks():
        Z = rows(batch).astype(np.int64).astype(object)
        exact = exact + Z.T.dot(Z.dot(grid))
    assert np.array_equal(release.answer(step), (exact // 2**26).astype(np.int64))
