"""Entries, pairs or sums of rows change by a contract: bounds that hold and are attained."""

import math

import numpy as np
import pytest
import scipy.sparse as sp

from skdp.exceptions import PrivacyError
from skdp.queries.entries import EntryQuery, MatrixUnit, NormQuery
from skdp.testing.sensitivity import mixed_sizes

RNG = np.random.default_rng(0)
M, N, K = 7, 6, 2
MATRICES = {
    "orthonormal": np.linalg.qr(RNG.standard_normal((N, K)))[0],
    "skewed": RNG.standard_normal((N, K)) * [2.0, 0.1],
    "one_heavy_row": np.vstack([[[3.0, 1.0]], 0.1 * RNG.standard_normal((N - 1, K))]),
    "one_row": np.eye(N, K),
    "parallel_rows": np.outer(RNG.uniform(1, 2, N), [1.0, 1.0]),
    "column": RNG.standard_normal((N, 1)),
    "ones": np.ones((N, 1)),
}
LEFT = np.linalg.qr(RNG.standard_normal((M, K)))[0]
UNITS = ["entry_change", "edge_change", "mixed"]
SQUARE = UNITS[1:]


def changes(name):
    """Every place, with the largest change; for sums of rows some more."""
    shape = (M, N) if name == "entry_change" else (N, N)
    for i in range(shape[0]):
        for j in range(shape[1]):
            change = np.zeros(shape)
            change[i, j] = 1.0
            if name != "entry_change":
                change[j, i] = 1.0
            if name == "mixed":
                change /= np.linalg.norm(np.abs(change).sum(axis=1))
            if name != "edge_change" or i != j:
                yield change
    if name == "mixed":
        for _ in range(30):
            change = RNG.standard_normal(shape) ** 3
            change = change + change.T
            yield change / np.linalg.norm(np.abs(change).sum(axis=1))


def worst_ratio(unit, pairs, ask, step):
    worst = worst_l1 = 0.0
    for a, b in pairs:
        left, right = ask(NormQuery(a, unit)), ask(NormQuery(sp.csr_array(b), unit))
        change = (left.answer(step) - right.answer(step)).astype(np.float64)
        if left.bound.symmetric:
            change = (change + change.T) / 2
        worst = max(worst, float(np.linalg.norm(change)) / left.bound.l2_steps(step))
        worst_l1 = max(worst_l1, float(np.abs(change).sum()) / left.bound.l1_steps(step))
    return worst, worst_l1


def pairs_of(name, sensitivity):
    shape = (M, N) if name == "entry_change" else (N, N)
    for base in (sensitivity * RNG.standard_normal(shape), mixed_sizes(*shape)):
        base = base if name == "entry_change" else base + base.T
        for change in changes(name):
            yield base, base + change * (sensitivity * (1 - 1e-12))


@pytest.mark.thorough
@pytest.mark.parametrize("name", UNITS)
@pytest.mark.parametrize("public", MATRICES)
@pytest.mark.parametrize("sensitivity", [0.7, 1e-200, 3e200])
def test_products_hold_their_bounds_and_attain_them(name, public, sensitivity):
    unit, X = MatrixUnit(name, sensitivity=sensitivity), MATRICES[public]
    pairs, step = list(pairs_of(name, sensitivity)), 1e-9 * sensitivity
    worst, worst_l1 = worst_ratio(unit, pairs, lambda q: q.right(X), step)
    assert 0.95 <= worst <= 1.0
    assert worst_l1 <= 1.0
    if name != "mixed":
        assert worst_l1 >= 0.95
    U = LEFT if name == "entry_change" else X
    worst, worst_l1 = worst_ratio(unit, pairs, lambda q: q.left(U), step)
    assert 0.95 <= worst <= 1.0
    if name == "entry_change":
        for both in worst_ratio(unit, pairs, lambda q: q.core(LEFT, X), step):
            assert 0.95 <= both <= 1.0


@pytest.mark.thorough
@pytest.mark.parametrize("name", SQUARE)
@pytest.mark.parametrize("public", MATRICES)
def test_ritz(name, public):
    unit, X = MatrixUnit(name, sensitivity=0.7), MATRICES[public]
    worst, worst_l1 = worst_ratio(unit, list(pairs_of(name, 0.7)), lambda q: q.ritz(X), 1e-9)
    assert worst <= 1.0
    assert worst_l1 <= 1.0
    if name == "edge_change" and public in ("parallel_rows", "column", "ones"):
        assert worst >= 0.95


@pytest.mark.thorough
@pytest.mark.parametrize("name", UNITS)
@pytest.mark.parametrize("scale", [1e3, 1e9, 1e15, 2.0**53, 1e17, 1e30, 1e300])
def test_entries_of_any_size_are_inside_the_guarantee(name, scale):
    """Also beside entries whose float neighbours are further away than the change."""
    unit, rng = MatrixUnit(name), np.random.default_rng(1)
    shape = (M, N) if name == "entry_change" else (N, N)
    pairs = {1.0: [], 0.3: []}
    for change in changes(name):
        base = rng.standard_normal(shape) * scale ** rng.uniform(0, 1, shape)
        base[rng.random(shape) < 0.3] = scale
        if name != "entry_change":
            base = np.triu(base) + np.triu(base, 1).T
        for size, of_size in pairs.items():
            moved = base + size * change
            exact = np.abs((moved - base).astype(np.longdouble)) <= np.abs(change)
            of_size.append((base, np.where(exact, moved, base)))  # where rounding kept the contract
    X = np.linalg.qr(rng.standard_normal((N, K)))[0]
    U = LEFT if name == "entry_change" else X
    asks = [lambda q: q.right(X), lambda q: q.left(U)]
    asks.append((lambda q: q.core(U, X)) if name == "entry_change" else lambda q: q.ritz(X))
    for ask in asks:
        for size, step in ((1.0, 1e-3), (0.3, 1.7)):
            assert max(worst_ratio(unit, pairs[size], ask, step)) <= 1.0


def test_a_change_is_seen_whole_beside_huge_entries():
    unit, X = MatrixUnit("entry_change"), np.full((N, 1), 1 / math.sqrt(N))
    base = np.full((M, N), 2.0**50)
    base[1:] = 1e25  # far beyond the cut: these cannot change
    other = base.copy()
    other[0, 2] += 1.0
    assert 0.95 <= worst_ratio(unit, [(base, other)], lambda q: q.right(X), 1e-3)[0] <= 1.0


def test_symmetric_units_are_their_upper_triangle():
    A, X = RNG.standard_normal((N, N)), MATRICES["orthonormal"]
    upper = np.triu(A, 1)
    for name, loops in (("edge_change", 0.0), ("mixed", np.diag(np.diag(A)))):
        expected = upper + upper.T + loops
        for form in (np.asarray, sp.csr_array):
            query = NormQuery(form(A), MatrixUnit(name))
            assert query.right(X).answer(0.0) == pytest.approx(expected @ X)
            assert query.ritz(X).answer(1e-7) * 1e-7 == pytest.approx(X.T @ expected @ X, abs=1e-5)


def test_who_bounds_what():
    A = np.zeros((M, N))
    for name in UNITS:
        with pytest.raises(PrivacyError, match="NormQuery"):
            EntryQuery(A, MatrixUnit(name))
    with pytest.raises(PrivacyError, match="EntryQuery"):
        NormQuery(A, MatrixUnit("entry"))
    for name in SQUARE:
        with pytest.raises(ValueError, match="square"):
            NormQuery(A, MatrixUnit(name))
