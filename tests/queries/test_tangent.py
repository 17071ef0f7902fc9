"""The tangent split: bounds, exactness, and the identity with the plain product."""

import math

import numpy as np
import pytest
import scipy.sparse as sp

from skdp.queries.rows import RowQuery
from skdp.queries.sums import tangent_bound

D, P = 6, 2
V = np.linalg.qr(np.random.default_rng(0).standard_normal((D, P)))[0]


def tangent(X, scale, adjacency="add_remove", weights=None, **kwargs):
    """The query; scales named "kept" stand for an infinite one, from a kept moment."""
    rows = RowQuery(X, clip_norm=1.0, adjacency=adjacency, **kwargs)
    if scale == "kept, clipped":
        rows = RowQuery(X, clip_norm=1.3, adjacency=adjacency, **kwargs).kept().clipped(1.0)
    elif scale == "kept":
        rows = rows.kept()
    return rows.tangent(V, math.inf if isinstance(scale, str) else scale, weights)


KEPT = ["kept", "kept, clipped"]


def hard_rows():
    """Rows with a given share of their norm inside V, at many scales."""
    rng = np.random.default_rng(1)
    outside = np.linalg.qr(np.hstack([V, rng.standard_normal((D, D - P))]))[0][:, P:]
    for share in np.linspace(0, 1, 21):
        for _ in range(6):
            a = rng.standard_normal(P)
            r = rng.standard_normal(D - P)
            x = math.sqrt(share) * V @ (a / np.linalg.norm(a))
            x += math.sqrt(1 - share) * outside @ (r / np.linalg.norm(r))
            yield x * 10.0 ** rng.uniform(-7, 7)
            yield x


def mirrored(x):
    return 2 * V @ (V.T @ x) - x


@pytest.mark.thorough
@pytest.mark.parametrize("step", [1e-9, 1e-7])
@pytest.mark.parametrize("level", [0.03, 0.3, 9.0])
@pytest.mark.parametrize("scale", [1.0, 2.0, 3.0, math.inf, *KEPT])
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_sensitivity_holds_and_is_attained(adjacency, scale, level, step):
    worst = 0.0
    rows = list(hard_rows())
    for i, x in enumerate(rows):
        others = [None] if adjacency == "add_remove" else [mirrored(x), -x, rows[(5 * i + 2) % 200]]
        for y in others:
            pair = [np.zeros((0, D)) if row is None else row[None] for row in (x, y)]
            left, right = (tangent(row, scale, adjacency).product(level) for row in pair)
            change = (left.answer(step) - right.answer(step)).astype(np.float64)
            worst = max(worst, float(np.linalg.norm(change)) / left.bound.l2_steps(step))
    assert worst <= 1.0
    # Under replace with a kept core and hardly any clipping the factor 2 is not attained: two
    # cores never cancel.
    attained = (
        0.95 if adjacency == "add_remove" or scale in (math.inf, *KEPT) or level < 0.3 else 0.55
    )
    assert worst >= attained


@pytest.mark.thorough
def test_both_roundings_cost_no_more_than_each_alone():
    """The inequality of the proof, by force: at half-integers in the span of V it is reached."""
    rng = np.random.default_rng(2)
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
    for scale in (1.0, 1.2, 2.0, 3.0, 50.0):
        sizes = np.sqrt(t * (1 - t + t / scale**2))
        assert sizes.max() == pytest.approx(tangent_bound(1.0, scale), rel=1e-6)


@pytest.mark.parametrize("scale", [1.0, 3.0, math.inf, *KEPT])
@pytest.mark.parametrize("sparse", [False, True])
def test_matches_the_float_computation(scale, sparse):
    X = np.random.default_rng(2).standard_normal((400, D)) / 3
    rows = sp.csr_array(X) if sparse else X
    bounded = tangent(rows, scale).product(0.2)
    step = 1e-9
    assert np.allclose(bounded.answer(step) * step, bounded.answer(0.0), atol=1e-2)
    whole = tangent(rows, scale).product(math.inf).answer(0.0)
    clipped = X / np.maximum(1, np.linalg.norm(X, axis=1))[:, None]
    Y = clipped.T @ clipped @ V
    removed = 1.0 if isinstance(scale, str) else 1 - 1 / scale
    assert np.allclose(whole, Y - removed * V @ (V.T @ Y))


@pytest.mark.parametrize("scale", [3.0, *KEPT])
@pytest.mark.parametrize("sparse", [False, True])
def test_same_bits_in_any_order(sparse, scale):
    X = np.random.default_rng(3).standard_normal((3000, D))
    make = sp.csr_array if sparse else np.asarray
    permuted = make(X[np.random.default_rng(4).permutation(len(X))])
    for ask in (lambda q: q.product(0.1), lambda q: q.sizes_above(0.1)):
        a = ask(tangent(make(X), scale)).answer(1e-8)
        assert np.array_equal(a, ask(tangent(permuted, scale, n_jobs=2)).answer(1e-8))


class OwnSource:
    """Rows in blocks, of which none can be taken alone."""

    n_features = D

    def __init__(self, X):
        self.X = X

    def n_rows(self):
        return len(self.X)

    def parts(self, n):
        return [self]

    def blocks(self):
        yield from np.array_split(self.X, 7)


@pytest.mark.parametrize("scale", KEPT)
def test_rows_that_are_taken_and_rows_that_are_passed_over_give_the_same_bits(scale):
    """Also with sizes measured before the product, and with a view between."""
    X = np.random.default_rng(5).standard_normal((3000, D))
    center = np.linspace(-1, 1, D)
    source = OwnSource(X)
    expected = tangent(source, scale).product(0.1).answer(1e-8)
    query = tangent(X, scale)
    assert np.array_equal(query.product(0.1).answer(1e-8), expected)
    query.sizes_above(0.1).answer(1e-8)
    assert np.array_equal(query.product(0.1).answer(1e-8), expected)
    about = [
        RowQuery(rows, clip_norm=1.0, adjacency="replace")
        .centered(center)
        .kept()
        .tangent(V, math.inf)
        for rows in (X, source)
    ]
    left, right = (query.product(0.2).answer(1e-8) for query in about)
    assert np.array_equal(left, right)


def test_a_kept_moment_makes_products_at_a_subspace_only_where_they_are_asked_of_it():
    X = np.random.default_rng(6).standard_normal((300, D))
    rows = RowQuery(X, clip_norm=1.0, adjacency="add_remove")
    plain = rows.tangent(V, math.inf).product(0.1)
    passed = rows.kept(False).clipped(0.9).clipped(1.0).tangent(V, math.inf).product(0.1)
    kept = rows.kept().tangent(V, math.inf).product(0.1)
    assert np.array_equal(passed.answer(1e-8), plain.answer(1e-8))
    assert passed.bound == plain.bound != kept.bound


@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_rank_bound(adjacency):
    worst = 0.0
    for x in hard_rows():
        y = np.zeros((0, D)) if adjacency == "add_remove" else V[:, :1].T
        a = tangent(x[None], 3.0, adjacency).sizes_above(0.2)
        b = tangent(y, 3.0, adjacency).sizes_above(0.2)
        worst = max(worst, abs(int(a.answer(1e-6)) - int(b.answer(1e-6))) / a.bound.l2_steps(1e-6))
    assert 0.95 <= worst <= 1.0


@pytest.mark.thorough
@pytest.mark.parametrize("scale", [math.inf, *KEPT])
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_column_weights_stay_inside_the_bound(adjacency, scale):
    weights = np.array([1.0, 0.2])
    for level in (0.05, 0.4):
        worst = 0.0
        for x in hard_rows():
            y = np.zeros((0, D)) if adjacency == "add_remove" else mirrored(x)[None]
            pair = [tangent(rows, scale, adjacency, weights) for rows in (x[None], y)]
            left, right = (query.product(level) for query in pair)
            change = (left.answer(1e-9) - right.answer(1e-9)).astype(np.float64)
            worst = max(worst, float(np.linalg.norm(change)) / left.bound.l2_steps(1e-9))
        assert 0.95 <= worst <= 1.0
    X = np.random.default_rng(6).standard_normal((300, D)) / 4
    query = RowQuery(X, clip_norm=9.0, adjacency=adjacency).tangent(V, math.inf, weights)
    T = X.T @ X @ V
    expected = (T - V @ (V.T @ T)) * weights
    assert np.allclose(query.product(99.0).answer(0.0), expected)
    assert np.allclose(query.product(99.0).answer(1e-8) * 1e-8, expected, atol=1e-2)


def test_flat_directions_round_badly_and_the_bound_knows():
    """Rows almost inside the span of V see how far its grid is from orthonormal."""
    d = 13124
    flat = np.full((d, 1), d**-0.5)
    grid = np.rint(flat * 2**26) / 2**26
    gap = float((grid.T @ grid)[0, 0] - 1)
    r = np.zeros(d)
    r[:2] = 0.5**0.5, -(0.5**0.5)
    x = flat[:, 0] + math.sqrt(abs(gap)) * r
    bounded = RowQuery(x[None] / np.linalg.norm(x), clip_norm=1.0, adjacency="add_remove")
    for scale in (3.0, math.inf):
        product = bounded.tangent(flat, scale).product(1e-3)
        change = np.linalg.norm(product.answer(1e-11).astype(float))
        assert change <= product.bound.l2_steps(1e-11)


@pytest.mark.parametrize("V", [2 * V, 1.001 * V, np.ones((D, 2)), np.full((D, 1), math.nan)])
def test_columns_must_be_orthonormal(V):
    with pytest.raises(ValueError, match="orthonormal"):
        RowQuery(np.eye(D), clip_norm=1.0, adjacency="replace").tangent(V, 3.0)


class Copies:
    """Very many copies of one row, never held in memory."""

    n_features = D

    def __init__(self, row, n):
        self.row, self.n = row, n

    def n_rows(self):
        return self.n

    def parts(self, _):
        return [self]

    def blocks(self):
        block = np.tile(self.row, (min(self.n, 2**15), 1))
        for start in range(0, self.n, len(block)):
            yield block[: self.n - start]


def test_core_sums_do_not_overflow():
    """Six million rows inside the span of V, at a large budget: one row more is one row more."""
    step = 1e-3 / 8e9
    answers = [
        RowQuery(Copies(V[:, 0], n), clip_norm=1.0, adjacency="add_remove")
        .tangent(V[:, :1], math.inf)
        .product(1e-3)
        for n in (1, 200_000, 200_001)
    ]
    one, many, more = (query.answer(step).astype(float) for query in answers)
    assert np.linalg.norm(more - many) <= answers[0].bound.l2_steps(step)
    assert np.allclose(many, 200_000 * one, atol=200_000)
