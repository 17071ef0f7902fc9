"""Changes of bounded norm: bounds that hold and are attained, beside entries of any size."""

import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp

from skdp import DPTruncatedSVD
from skdp.queries.entries import MatrixUnit, NormQuery

RNG = np.random.default_rng(0)
M, N, K = 7, 6, 2
NAMES = ["frobenius", "spectral"]
MATRICES = {
    "orthonormal": np.linalg.qr(RNG.standard_normal((N, K)))[0],
    "skewed": RNG.standard_normal((N, K)) * [2.0, 0.1],
    "one_heavy_row": np.vstack([[[3.0, 1.0]], 0.1 * RNG.standard_normal((N - 1, K))]),
    "column": RNG.standard_normal((N, 1)),
    "ones": np.ones((N, 1)),
}
LEFT = np.linalg.qr(RNG.standard_normal((M, K)))[0]


def fraction(values):
    return np.vectorize(Fraction, otypes=[object])(values)


def size_of(change, name):
    largest = float(np.abs(change).max()) or 1.0
    unit = (change / largest).astype(np.float64)
    return largest * float(np.linalg.norm(unit, None if name == "frobenius" else 2))


def changes(name, X):
    """Directions that products with X show most, and some others."""
    left = np.linalg.svd(X)[0]
    k = 1 if name == "frobenius" else X.shape[1]
    yield np.eye(M)[:, :k] @ left[:, :k].T
    yield LEFT[:, :k] @ left[:, :k].T
    for _ in range(20):
        yield RNG.standard_normal((M, N))


def worst_ratio(unit, pairs, ask, step):
    worst = 0.0
    for a, b in pairs:
        left, right = ask(NormQuery(a, unit)), ask(NormQuery(sp.csr_array(b), unit))
        change = (left.answer(step) - right.answer(step)).astype(np.float64)
        worst = max(worst, float(np.linalg.norm(change)) / left.bound.l2_steps(step))
    return worst


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("public", MATRICES)
@pytest.mark.parametrize("sensitivity", [0.7, 1.0, 1e-200, 3e200])
def test_bounds_hold_and_are_attained(name, public, sensitivity):
    unit, X = MatrixUnit(name, sensitivity=sensitivity), MATRICES[public]
    base = sensitivity * RNG.standard_normal((M, N))
    pairs = []
    for change in changes(name, X):
        change = change * (sensitivity * (1 - 1e-12) / size_of(change, name))
        pairs.append((base, base + change))
    step = 1e-9 * sensitivity
    for ask in (lambda q: q.right(X), lambda q: q.core(LEFT, X)):
        assert 0.95 <= worst_ratio(unit, pairs, ask, step) <= 1.0
    transposed = [(a.T, b.T) for a, b in pairs]
    assert 0.95 <= worst_ratio(unit, transposed, lambda q: q.left(X), step) <= 1.0


def huge_pairs(name, scale, rng):
    """Neighbours, by exact differences, around entries of up to `scale` times the sensitivity 1."""
    for _ in range(40):
        base = rng.standard_normal((M, N)) * scale ** rng.uniform(0, 1, (M, N))
        base[rng.random((M, N)) < 0.3] = scale
        change = rng.standard_normal((M, N)) / rng.choice([1, 8])
        other = base + change
        while size_of(fraction(other) - fraction(base), name) > 1:
            change /= 2
            other = base + change
        yield base, other
        flipped = np.where(rng.random((M, N)) < 0.1, np.nextafter(base, np.inf), base)
        if size_of(fraction(flipped) - fraction(base), name) <= 1:
            yield base, flipped


@pytest.mark.deep
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", [1e3, 1e9, 1e15, 2.0**53, 1e17, 1e30, 1e300])
def test_entries_of_any_size_are_inside_the_guarantee(name, scale):
    unit, rng = MatrixUnit(name), np.random.default_rng(1)
    pairs = list(huge_pairs(name, scale, rng))
    X = np.linalg.qr(rng.standard_normal((N, K)))[0]
    for ask in (lambda q: q.right(X), lambda q: q.left(LEFT), lambda q: q.core(LEFT, X)):
        for step in (1e-3, 1.7):
            assert worst_ratio(unit, pairs, ask, step) <= 1.0


@pytest.mark.parametrize("name", NAMES)
def test_a_change_is_seen_whole_beside_huge_entries(name):
    """The largest entries that can change still do, and the bound is attained there."""
    unit = MatrixUnit(name)
    X = np.full((N, 1), 1 / math.sqrt(N))
    base = np.full((M, N), 2.0**40)
    base[1:] = 1e25  # far beyond the cut: these cannot change
    other = base.copy()
    other[0] += np.rint(2.0**10 / math.sqrt(N)) / 2.0**10 * (1 - 2.0**-9)
    assert 0.95 <= worst_ratio(unit, [(base, other)], lambda q: q.right(X), 1e-3) <= 1.0


def test_numbers_are_those_of_plain_products():
    A, X = RNG.standard_normal((M, N)), MATRICES["orthonormal"]
    for form in (np.asarray, sp.csr_array, sp.csc_array):
        query = NormQuery(form(A), MatrixUnit("spectral"))
        for bounded, expected in (
            (query.right(X), A @ X), (query.left(LEFT), A.T @ LEFT),
            (query.core(LEFT, X), LEFT.T @ A @ X),
        ):  # fmt: skip
            assert bounded.answer(0.0) == pytest.approx(expected, abs=1e-12)
            assert bounded.answer(1e-6) * 1e-6 == pytest.approx(expected, abs=1e-4)
        assert query.square_sum().answer(0.0) == pytest.approx(np.sum(A**2))
        assert query.square_sum().bound.l2 == math.inf


def test_long_sums_are_exact():
    """Numbers that no rounding touches, whose sums are beyond what one float holds."""
    n = 4096
    Z, W = RNG.integers(2**26, 2**27, (2, n)), RNG.integers(2**18, 2**19, (n, 2))
    query = NormQuery(Z * 2.0**-20, MatrixUnit("spectral"))
    expected = Z.astype(object) @ W.astype(object) * 2
    assert np.array_equal(query.right(W * 2.0**-19).answer(2.0**-40), expected)
    query = NormQuery(Z.T * 2.0**-20, MatrixUnit("spectral"))
    assert np.array_equal(query.left(W * 2.0**-19).answer(2.0**-40), expected)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_entries_that_are_not_numbers_move_nothing_else(bad):
    A = RNG.standard_normal((M, N))
    B = A.copy()
    B[2, 3] = bad
    X, unit = MATRICES["orthonormal"], MatrixUnit("frobenius")
    moved = NormQuery(A, unit).right(X).answer(1e-3) != NormQuery(B, unit).right(X).answer(1e-3)
    assert not np.delete(moved, 2, axis=0).any()


@pytest.mark.parametrize("name", NAMES)
def test_bits_depend_on_no_order(name):
    A = RNG.standard_normal((300, 40)) * 10.0 ** RNG.integers(-5, 16, (300, 40))
    X, rows, columns = RNG.standard_normal((40, 3)), RNG.permutation(300), RNG.permutation(40)
    unit = MatrixUnit(name)
    whole = NormQuery(A, unit).right(X).answer(0.01)
    permuted = NormQuery(A[rows][:, columns], unit).right(X[columns]).answer(0.01)
    assert np.array_equal(whole[rows], permuted)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("algorithm", ["auto", "deflation"])
def test_a_fit_takes_huge_entries(name, algorithm):
    A = np.outer(RNG.standard_normal(30), RNG.standard_normal(8)) * 1e15
    svd = DPTruncatedSVD(
        1,
        epsilon=1.0,
        privacy_unit=name,
        unit_bound=1.0,
        algorithm=algorithm,
        n_iter=2,
        delta=1e-6 if algorithm == "auto" else 0.0,
    )
    assert np.isfinite(svd.fit(A).components_).all()
