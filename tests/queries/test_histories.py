"""Histories and their pairs: bounds by search, hidden items, independence of rows."""

import numpy as np
import pytest
import scipy.sparse as sp

from skdp.data.blocks import SparseRows
from skdp.data.histories import binary_rows, hidden_cells, with_unit_pairs
from skdp.queries.interactions import InteractionHistories, PairQuery, RowHistories
from skdp.testing import check_sensitivity
from tools.fit_checks import check_order_invariance

RNG = np.random.default_rng(0)
KEPT = np.array([0, 2, 3, 5])
POPULAR = np.array([0.8, 0.5, 0.3, 0.0])  # of the kept items
# 41 meet all four partners of a replaced row: one start in 12 would meet one of them alone
SMALL = {"max_starts": 41, "n_climb": 6, "budgets": (0.3,)}  # one step: rounding is that of rows
BINARY = [(RNG.random((8, 6)) < p).astype(float) for p in (0.0, 0.4, 1.0)]


def rows(adjacency, cap=None, **options):
    return lambda X: RowHistories(
        SparseRows(sp.csr_array(X)), adjacency=adjacency, cap=cap, **options
    )


def interactions(adjacency, usual=1):
    return lambda R: InteractionHistories(R, adjacency=adjacency, usual=usual)


@pytest.mark.deep
@pytest.mark.parametrize("cap", [None, 3.0])
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
@pytest.mark.parametrize("release", ["counts", "counts for pure noise", "moment"])
def test_row_bounds_hold_and_are_tight(release, adjacency, cap):
    name, _, pure = release.partition(" for ")
    public = (np.arange(4), 1, POPULAR) if name == "moment" else ()
    make = rows(adjacency, cap, pure=bool(pure))
    report = check_sensitivity(make, name, *public, adjacency=adjacency, **SMALL)
    assert report.ratio > 0.98
    assert not pure or report.ratios["l1"] > 0.98


@pytest.mark.parametrize("step", [1.0, 1e-3, 2.0**-20, 2.0**-40, 0.0])
def test_a_history_adds_no_more_than_one_to_counts_for_pure_noise(step, rng):
    """In whole units, however its numbers round; nearly all of it where units are small."""
    cases = [np.ones(d) for d in (1, 3, 49, 10_000)]
    cases += [rng.exponential(size=500), 5e-324 * np.ones(7), 1e300 * np.ones(3)]
    cases += [np.array([1.0, 1e-300]), -np.ones(4), np.array([np.nan, 1.0])]
    for x, cap in [(x, cap) for x in cases for cap in (None, 3.0)]:
        added = rows("add_remove", cap, pure=True)(x[None]).counts().answer(step)
        total = float(added.sum()) * (step or 1.0)
        assert added.min() >= 0
        assert total <= (1.0 if step else 1 + 1e-12)
        if np.isfinite(x).all() and x.max() >= 0.01 and step < 1e-6:
            assert total > 0.97


def test_pairs_that_stay_too_long_are_left_out(monkeypatch):
    """Cutting entries may make a projection longer; no number of cuts is known to be enough."""
    seen = iter([1.0])  # as floats, and then at any step of the integers

    def too_long(rows, _):
        return np.ones(rows.shape[0]), np.full(rows.shape[0], next(seen, 2e6))

    monkeypatch.setattr("skdp.data.histories._pair_lengths", too_long)
    assert not with_unit_pairs(sp.csr_array(np.ones((2, 4))), 1e-3, POPULAR).data.any()


@pytest.mark.thorough
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
@pytest.mark.parametrize(
    ("release", "public"),
    [("counts", 1), ("counts", 2), ("counts", 4), ("counts", 9), ("moment", (KEPT, 1, POPULAR)),
     ("moment", (KEPT, 2, POPULAR)), ("moment", (np.arange(6), 3, np.zeros(6)))],
)  # fmt: skip
def test_interaction_bounds_hold_and_are_tight(release, public, adjacency):
    usual, public = (public, ()) if release == "counts" else (1, public)
    report = check_sensitivity(
        interactions(adjacency, usual), release, *public, unit="interaction", adjacency=adjacency,
        bases=BINARY, **SMALL,
    )  # fmt: skip
    assert report.ratio > 0.95 and report.ratios.get("l1", 1.0) > 0.95


@pytest.mark.thorough
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_one_interaction_moves_so_many_cells(adjacency):
    rng, most, bound = np.random.default_rng(1), 0, None
    for _ in range(300):
        R = (rng.random((5, 6)) < 0.5).astype(float)
        S = R.copy()
        u, i = rng.integers(5), rng.integers(6)
        if adjacency == "add_remove":
            S[u, i] = 1 - S[u, i]
        else:
            ones, zeros = np.flatnonzero(R[u]), np.flatnonzero(R[u] == 0)
            if not len(ones) or not len(zeros):
                continue
            S[u, rng.choice(ones)], S[u, rng.choice(zeros)] = 0, 1
        first, second = (interactions(adjacency)(A).cells(KEPT) for A in (R, S))
        bound = first.bound.cells
        most = max(most, np.setxor1d(first.answer(1.0), second.answer(1.0)).size)
    assert most == bound


def histories(rng, n_users=4, n_items=40):
    density = rng.choice([0.05, 0.2, 0.5, 0.9], n_users)[:, None]
    return (rng.random((n_users, n_items)) < density).astype(float)


@pytest.mark.thorough
@pytest.mark.parametrize("cap", [None, 2.0])
def test_rows_count_by_themselves(cap):
    """The same bits in every order of the rows."""
    R = histories(np.random.default_rng(3), 60)
    R = R * np.random.default_rng(4).gamma(0.3, size=R.shape) if cap else R
    for release in ("counts", lambda q: q.moment(KEPT, 1, POPULAR)):
        check_order_invariance(rows("add_remove", cap), release, data=R)


def test_hidden_items_depend_on_the_row_alone():
    R = binary_rows(histories(np.random.default_rng(5), 200))
    order = np.random.default_rng(6).permutation(200)
    hidden, again = R.copy(), R[order].copy()
    hidden.data = hidden_cells(R).astype(float)
    again.sort_indices()
    again.data = hidden_cells(binary_rows(R[order])).astype(float)
    np.testing.assert_array_equal(hidden.toarray()[order], again.toarray())
    assert 0.1 < hidden.data.mean() < 0.3  # a fifth


def test_only_positive_entries_are_interactions():
    """In the counts as in the moment and in the flipped cells."""
    R = np.array([[2.0, -1.0, np.nan], [np.inf, 0.5, -np.inf], [0.0, 1e-300, 1.0]])
    query = InteractionHistories(sp.csr_array(R), adjacency="add_remove", usual=2)
    np.testing.assert_array_equal(query.counts().answer(0.0), [1, 2, 1])
    np.testing.assert_array_equal(query.cells(np.arange(3)).answer(1.0), [0, 4, 7, 8])
    moment = query.moment(np.arange(3), 2, np.zeros(3)).answer(0.0)
    np.testing.assert_allclose(moment * 2**0.5, [[0, 0, 0], [0, 0, 1], [0, 1, 0]], atol=1e-12)


def test_factors_of_ratings_are_those_of_capped_ratings(rng):
    R = rng.exponential(2.0, (50, 6))
    found = rows("add_remove", 3.0)(R).moment(KEPT, 1, POPULAR)
    expected = pairs(np.minimum(R, 3.0)[:, KEPT]).moment(POPULAR)
    np.testing.assert_allclose(found.answer(0.0), expected.answer(0.0), atol=1e-9)
    # Two maps and a mean of both triangles, each of 4 x 4 floors; and the root of 4 for each map.
    assert found.bound.slack == 5.0 * 4 > 2 * (4 + 2) + 4


# -- pairs of items in one history -----------------------------------------------------------------


def pairs(X, adjacency="add_remove"):
    return PairQuery(SparseRows(sp.csr_array(np.abs(X))), adjacency=adjacency)


def popular(n, kind=1):
    """No direction, one that falls, or almost that of a single item."""
    v = (0.0, np.arange(1.0, n + 1) ** -0.7, np.eye(n)[0] + 1e-3)[kind] * np.ones(n)
    return v / (np.linalg.norm(v) or 1.0)


@pytest.mark.deep
@pytest.mark.parametrize("kind", [0, 1, 2])
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_the_bound_of_pairs_holds_and_is_tight(adjacency, kind):
    report = check_sensitivity(
        lambda X: pairs(X, adjacency), "moment", popular(4, kind), adjacency=adjacency,
        max_starts=80, n_climb=20,
    )  # fmt: skip
    assert report.ratio > 0.92  # a search in floats: the next test attains more


@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_histories_without_a_common_item_attain_the_bound(adjacency):
    """A history of two items is added, or replaces one of two other items."""
    X = np.kron(np.eye(2), np.ones(2))
    X[1] *= adjacency == "replace"
    step = (1 + 5e-7) / 841**2 / 2**0.5  # the norm of a pair of 841 units exceeds 1 by that
    first, second = (pairs(row[None], adjacency).moment(popular(4, 0)) for row in X)
    change = np.linalg.norm(first.answer(step) - second.answer(step))
    assert 0.99 < change / first.bound.l2_steps(step) <= 1


def rows_of_pairs(rng, n):
    """Rows of few and many items, equal or of very different sizes."""
    X = (rng.random((n, 30)) < rng.choice([0.05, 0.3, 1.0], n)[:, None]).astype(float)
    sizes = rng.choice([0, 1, 8, 150], n)[:, None] * rng.standard_normal((n, 30))
    return X * 10.0 ** np.clip(sizes, -300, 100)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [1, 0, 2])
@pytest.mark.parametrize("step", [0.1, 0.0, 1e-9, 1e-6, 1e-3])
def test_no_row_of_pairs_adds_more_than_one(step, kind):
    rng, norms = np.random.default_rng(0), []
    for row in [*rows_of_pairs(rng, 300), np.full(30, 5e-324)]:
        bounded = pairs(row[None]).moment(popular(30, kind))
        added = bounded.answer(step)
        np.testing.assert_allclose(added, added.T, rtol=0, atol=0.0 if step else 1e-12)
        norms.append(np.linalg.norm(added) / (bounded.bound.l2_steps(step) if step else 1.0))
    assert 0.97 * (step < 1e-4) < max(norms) <= 1 + 1e-12


@pytest.mark.parametrize("step", [0.0, 1e-9])
def test_what_is_released_is_the_projected_sum_of_the_pairs(step, monkeypatch):
    """By the definition, in floats."""
    rng, v = np.random.default_rng(2), np.append(popular(29), 0.0)
    X = (rng.random((50, 30)) < 0.2).astype(float)
    P, expected = np.eye(30) - np.outer(v, v), np.zeros((30, 30))
    for x in X:
        A = np.outer(x, x) - np.diag(x)
        size = max(np.linalg.norm(P @ A @ P), x.sum() / 2)
        expected += P @ A @ P / (size or 1.0)
    found = pairs(X).moment(v).answer(step) * (step or 1.0)
    np.testing.assert_allclose(found, expected, atol=2e-3)
    monkeypatch.setattr("skdp.queries.interactions.BLOCK", 128)  # it is projected in many bands
    np.testing.assert_array_equal(pairs(X).moment(v).answer(step) * (step or 1.0), found)


def test_directions_that_fit_nothing_are_refused():
    for v in (np.ones(3) / 2, np.ones(4), np.full(4, np.nan)):
        with pytest.raises(ValueError, match="popular"):
            pairs(np.eye(4)).moment(v)


def test_equal_items_fill_the_bound_whatever_their_number():
    for d in (2, 3, 30):
        added = pairs(np.r_[np.ones(d), np.zeros(30 - d)][None]).moment(popular(30, 0)).answer(0.0)
        assert np.linalg.norm(added) == pytest.approx(1.0)
        assert added[0, 1] == pytest.approx((d * (d - 1)) ** -0.5)


def test_rows_of_pairs_count_by_themselves():
    X = rows_of_pairs(np.random.default_rng(1), 60)
    check_order_invariance(pairs, "moment", popular(30), data=X)


def test_a_single_item_a_bad_row_and_an_empty_row_add_nothing():
    X = np.zeros((4, 5))
    X[0, 3] = 7.0
    X[1:3, :2] = [[np.inf, 1.0], [np.nan, 1.0]]
    assert not pairs(X).moment(popular(5)).answer(1e-6).any()
