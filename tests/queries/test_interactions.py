"""Interaction unit: every degree, floors, random and adversarial public matrices."""

import itertools
from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp

from skdp.queries.interactions import InteractionQuery, product_change

N, K = 7, 2
STEP = 1e-9


def public_matrices():
    rng = np.random.default_rng(0)
    yield np.linalg.qr(rng.standard_normal((N, K)))[0]
    yield rng.standard_normal((N, K))
    yield np.ones((N, 1)) / np.sqrt(N)  # all rows point one way: sums add up
    yield np.eye(N)[:, :K]
    yield np.vstack([[[1.0, 0.0]], np.zeros((N - 2, K)), [[0.0, 1.0]]])
    yield np.vstack([[[1.0, 0.0], [0.9, 0.1]], 0.01 * rng.standard_normal((N - 2, K))])
    yield 1.0 * np.arange(N)[:, None] - 3
    # the worst swap: the two items point apart but for a sum of length ||m||/(d - 1) along the rest
    yield np.vstack([[[0.5, 0.75**0.5], [0.5, -(0.75**0.5)]], np.tile([1.0, 0.0], (N - 2, 1))])
    yield np.vstack([[[1.0, 0.0], [-1.0, 0.0]], np.tile([0.0, 1.0], (N - 2, 1))])
    yield np.vstack([[[1.0], [-1.0]], np.ones((N - 2, 1))])
    yield np.vstack([[[1.0, 0.0], [-1.0, 0.0]], np.tile([0.6, 0.8], (N - 2, 1))])


def rows(*sets, n=N):
    R = np.zeros((len(sets), n))
    for row, items in zip(R, sets, strict=True):
        row[list(items)] = 1
    return R


def pairs(adjacency, n=N):
    for d in range(1, n + 1):
        for items in itertools.combinations(range(n), d):
            others = set(range(n)) - set(items)
            for out in items:
                rest = set(items) - {out}
                if adjacency == "add_remove":
                    yield rows(items, n=n), rows(rest, n=n)
                else:
                    for new in others:
                        yield rows(items, n=n), rows(rest | {new}, n=n)


@cache
def numbered(adjacency, n=N):
    """Return all rows, and the numbers of those that are neighbours."""
    sets = np.array(list(itertools.product([0.0, 1.0], repeat=n)))
    number = {R.tobytes(): i for i, R in enumerate(sets)}
    return sets, np.array([[number[R.tobytes()] for R in pair] for pair in pairs(adjacency, n)]).T


def worst_ratio(ask, adjacency, floor, l1=False, n=N):
    sets, (one, other) = numbered(adjacency, n)
    asked = [ask(InteractionQuery(R[None], degree_floor=floor, adjacency=adjacency)) for R in sets]
    answers = np.array([each.answer(STEP).ravel() for each in asked], np.float64)
    changes, bound = answers[one] - answers[other], asked[0].bound
    moved = np.abs(changes).sum(axis=1).max() / bound.l1_steps(STEP)
    assert moved <= 1.0
    return moved if l1 else np.linalg.norm(changes, axis=1).max() / bound.l2_steps(STEP)


@pytest.mark.parametrize(
    "floor", [1, 2, 20, *(pytest.param(floor, marks=pytest.mark.deep) for floor in (3, 5))]
)
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_gram_pairs_and_counts(adjacency, floor):
    for name in ("gram", "pairs", "counts"):
        worst = worst_ratio(lambda q, name=name: getattr(q, name)(), adjacency, floor, n=6)
        assert (0.95 if floor < 6 or name == "gram" else 0.0) <= worst <= 1.0


def realised(X, adjacency, floor):
    """Exact changes of R'R X over all pairs, without the gate (faster)."""
    sets, (one, other) = numbered(adjacency)
    rows = sets / np.sqrt(np.maximum(sets.sum(axis=1, keepdims=True), floor))
    added = np.einsum("si,sk->sik", rows, rows @ X)
    return float(np.linalg.norm(added[one] - added[other], axis=(1, 2)).max())


@pytest.mark.parametrize("floor", [1, 2, 3, 5])
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_product(adjacency, floor):
    bounds = [(X, product_change(X, floor, adjacency)) for X in public_matrices()]
    assert 0.95 <= max(realised(X, adjacency, floor) / l2 for X, l2 in bounds) <= 1 + 1e-9


@pytest.mark.deep
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_ritz_product_and_trace(adjacency):
    for X in list(public_matrices())[:4]:
        assert worst_ratio(lambda q, X=X: q.ritz(X), adjacency, 2) <= 1.0
        assert worst_ratio(lambda q, X=X: q.right(X), adjacency, 2) <= 1.0
    reached = 0.95 if adjacency == "add_remove" else 0.0
    assert reached <= worst_ratio(lambda q: q.square_sum(), adjacency, 3) <= 1.0
    assert reached <= worst_ratio(lambda q: q.ritz(np.eye(N)), adjacency, 2) <= 1.0


@pytest.mark.parametrize("n_kept", [1, 2, pytest.param(3, marks=pytest.mark.deep)])
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_kept_items(adjacency, n_kept):
    """A swap with an item that is not kept is one interaction more or less among the kept ones.

    Two items that are not kept are enough: each is as good as another.
    """
    kept = np.arange(n_kept)
    asks = [lambda q, name=name: getattr(q.columns(kept), name)() for name in
            ("gram", "pairs", "counts", "square_sum")]  # fmt: skip
    X = np.linspace(0.5, 1.0, n_kept)[:, None]
    asks += [lambda q, name=name: getattr(q.columns(kept), name)(X) for name in ("right", "ritz")]
    worst = [
        worst_ratio(ask, adjacency, floor, n=n_kept + 2) for ask in asks for floor in (1, 2, 3, 5)
    ]
    assert 0.95 <= max(worst) <= 1.0


@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_so_many_cells_differ(adjacency):
    """Randomized response is charged for so many cells: a swap changes two."""
    found = {}
    for items in itertools.chain(*(itertools.combinations(range(N), d) for d in (0, 1, 3))):
        bounded = InteractionQuery(rows(items), degree_floor=2, adjacency=adjacency).cells()
        assert set(bounded.answer(1.0)) == set(items)
        found[rows(items).tobytes()] = bounded
    moved = [
        len(np.setxor1d(*(found[R.tobytes()].answer(1.0) for R in pair)))
        for pair in pairs(adjacency)
        if all(R.tobytes() in found for R in pair)
    ]
    assert max(moved) == bounded.bound.cells


@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_under_a_floor_of_all_items_the_total_is_the_number_of_interactions(adjacency):
    """Whatever the floor was before: one interaction moves it by all of the bound, a swap not."""

    def number(query):
        return query.floored(N).square_sum()

    worst = worst_ratio(number, adjacency, 2)
    assert 0.95 <= worst <= 1.0 if adjacency == "add_remove" else worst <= 1e-6
    assert 0.95 <= worst_ratio(InteractionQuery.counts, adjacency, 2) <= 1.0
    pure = worst_ratio(InteractionQuery.counts, adjacency, N, l1=True)  # released without delta
    assert pure >= 0.95
    R = rows({0, 2, 3}, set(), set(range(N)))
    query = InteractionQuery(R, degree_floor=2, adjacency=adjacency)
    query.counts().answer(STEP)  # rows of one floor are not those of another
    assert number(query).answer(STEP) * STEP * N == pytest.approx(3 + N)
    assert query.degree_floor == 2


def test_degree_counts_what_is_there_once():
    data = np.array([1.0, 1.0, 0.0, 3.0, np.nan])
    R = sp.csr_array((data, [1, 1, 2, 4, 5], [0, 5]), shape=(1, N))
    R.has_canonical_format = True
    clean = rows({1, 4})
    first, *others = (
        InteractionQuery(X, degree_floor=1, adjacency="add_remove").gram().answer(STEP)
        for X in (R, clean, sp.csr_matrix(clean))
    )
    assert all(np.array_equal(first, other) for other in others)


def test_kept_columns_are_normalised_by_what_is_kept():
    query = InteractionQuery(rows({0, 1, 2}), degree_floor=1, adjacency="add_remove")
    kept = query.columns(np.array([0, 5]))
    assert np.array_equal(kept.gram().answer(0.0), [[1.0, 0.0], [0.0, 0.0]])
    assert np.array_equal(query.columns(np.array([2, 5, 0])).cells().answer(1.0), [0, 2])  # sorted
    again = kept.columns(np.array([1, 0])).columns(np.array([0]))  # of what was kept before
    assert np.array_equal(again.gram().answer(0.0), [[0.0]])


@pytest.mark.parametrize("floor", [1.5, True, "2", None])
def test_floor_is_an_integer(floor):
    with pytest.raises(TypeError, match="integer"):
        InteractionQuery(rows({0}), degree_floor=floor, adjacency="add_remove")
    with pytest.raises(ValueError, match="at least 1"):
        InteractionQuery(rows({0}), degree_floor=0, adjacency="add_remove")


def test_the_float_errors_of_a_million_users_are_in_the_bounds():
    query, V = sp.csr_array((10**6, 10)), 4 * np.eye(10, 1)
    query = InteractionQuery(query, degree_floor=1, adjacency="add_remove")
    error, product = 2 * 10**6 * 2.0**-53 * 10**6, product_change(V, 1, "add_remove")
    for each in (query.counts(), query.gram(), query.square_sum()):
        assert each.bound.l2 >= 1 + error
    assert query.pairs().bound.l2 >= 1 + 2 * error
    assert query.right(V).bound.l2 >= product + 4 * error
    assert query.ritz(V).bound.l2 >= 4 * product + 16 * error
