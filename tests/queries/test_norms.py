"""Changes by a contract, of a norm or of entries: bounds that hold and are attained beside any."""

import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp

from skdp import DPTruncatedSVD
from skdp.exceptions import PrivacyError
from skdp.queries.entries import EntryQuery, MatrixUnit, NormQuery
from skdp.testing.sensitivity import mixed_sizes

RNG = np.random.default_rng(0)
M, N, K = 7, 6, 2
NAMES = ["frobenius", "spectral"]
SQUARE = ["edge_change", "mixed"]
UNITS = ["entry_change", *SQUARE, *NAMES]
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


def fraction(values):
    return np.vectorize(Fraction, otypes=[object])(values)


def size_of(change, name):
    largest = float(np.abs(change).max()) or 1.0
    unit = (change / largest).astype(np.float64)
    return largest * float(np.linalg.norm(unit, None if name == "frobenius" else 2))


def changes_of_a_norm(name, X):
    """Directions that products with X show most, and some others."""
    left = np.linalg.svd(X)[0]
    k = 1 if name == "frobenius" else X.shape[1]
    yield np.eye(M)[:, :k] @ left[:, :k].T
    yield LEFT[:, :k] @ left[:, :k].T
    for _ in range(20):
        yield RNG.standard_normal((M, N))


def changes_of_entries(name):
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


def pairs_of(name, X, sensitivity):
    size = sensitivity * (1 - 1e-12)
    if name in NAMES:
        base = sensitivity * RNG.standard_normal((M, N))
        for change in changes_of_a_norm(name, X):
            yield base, base + change * (size / size_of(change, name))
        return
    shape = (N, N) if name in SQUARE else (M, N)
    for base in (sensitivity * RNG.standard_normal(shape), mixed_sizes(*shape)):
        base = base + base.T if name in SQUARE else base
        for change in changes_of_entries(name):
            yield base, base + change * size


def worst_ratio(unit, pairs, ask, step):
    worst = worst_l1 = 0.0
    for a, b in pairs:
        left, right = ask(NormQuery(a, unit)), ask(NormQuery(sp.csr_array(b), unit))
        change = (left.answer(step) - right.answer(step)).astype(np.float64)
        if left.bound.symmetric:
            change = (change + change.T) / 2
        worst = max(worst, float(np.linalg.norm(change)) / left.bound.l2_steps(step))
        if left.bound.l1 is not None:
            worst_l1 = max(worst_l1, float(np.abs(change).sum()) / left.bound.l1_steps(step))
    return worst, worst_l1


@pytest.mark.thorough
@pytest.mark.parametrize("name", UNITS)
@pytest.mark.parametrize("public", MATRICES)
@pytest.mark.parametrize("sensitivity", [0.7, 1e-200, 3e200])
def test_products_hold_their_bounds_and_attain_them(name, public, sensitivity):
    unit, X = MatrixUnit(name, sensitivity=sensitivity), MATRICES[public]
    pairs, step = list(pairs_of(name, X, sensitivity)), 1e-9 * sensitivity
    transposed = [(a.T, b.T) for a, b in pairs]
    found = [
        worst_ratio(unit, pairs, lambda q: q.right(X), step),
        worst_ratio(unit, transposed, lambda q: q.left(X), step),
    ]
    if name not in SQUARE:
        found.append(worst_ratio(unit, pairs, lambda q: q.core(LEFT, X), step))
    for worst, worst_l1 in found:
        assert 0.95 <= worst <= 1.0
        assert (0.95 if name in ("entry_change", "edge_change") else 0.0) <= worst_l1 <= 1.0


@pytest.mark.thorough
@pytest.mark.parametrize("name", SQUARE)
@pytest.mark.parametrize("public", MATRICES)
def test_ritz(name, public):
    unit, X = MatrixUnit(name, sensitivity=0.7), MATRICES[public]
    worst, worst_l1 = worst_ratio(unit, list(pairs_of(name, X, 0.7)), lambda q: q.ritz(X), 1e-9)
    assert worst <= 1.0
    assert worst_l1 <= 1.0
    if name == "edge_change" and public in ("parallel_rows", "column", "ones"):
        assert worst >= 0.95


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


def huge_pairs_of_entries(name, scale, rng):
    """As above, for a change of entries or of sums of rows: where rounding kept the contract."""
    shape = (N, N) if name in SQUARE else (M, N)
    for change in changes_of_entries(name):
        base = rng.standard_normal(shape) * scale ** rng.uniform(0, 1, shape)
        base[rng.random(shape) < 0.3] = scale
        if name in SQUARE:
            base = np.triu(base) + np.triu(base, 1).T
        for size in (1.0, 0.3):
            moved = base + size * change
            exact = np.abs((moved - base).astype(np.longdouble)) <= np.abs(change)
            yield base, np.where(exact, moved, base)


@pytest.mark.thorough
@pytest.mark.parametrize("name", UNITS)
@pytest.mark.parametrize("scale", [1e3, 1e9, 1e15, 2.0**53, 1e17, 1e30, 1e300])
def test_entries_of_any_size_are_inside_the_guarantee(name, scale):
    """Also beside entries whose float neighbours are further away than the change."""
    unit, rng = MatrixUnit(name), np.random.default_rng(1)
    pairs = list((huge_pairs if name in NAMES else huge_pairs_of_entries)(name, scale, rng))
    X = np.linalg.qr(rng.standard_normal((N, K)))[0]
    U = X if name in SQUARE else LEFT
    last = (lambda q: q.ritz(X)) if name in SQUARE else (lambda q: q.core(U, X))
    for ask in (lambda q: q.right(X), lambda q: q.left(U), last):
        for step in (1e-3, 1.7):
            assert max(worst_ratio(unit, pairs, ask, step)) <= 1.0


@pytest.mark.parametrize("name", ["entry_change", *NAMES])
def test_a_change_is_seen_whole_beside_huge_entries(name):
    """The largest entries that can change still do, and the bound is attained there."""
    X = np.full((N, 1), 1 / math.sqrt(N))
    base = np.full((M, N), 2.0**50 if name == "entry_change" else 2.0**40)
    base[1:] = 1e25  # far beyond the cut: these cannot change
    other = base.copy()
    if name == "entry_change":
        other[0, 2] += 1.0
    else:
        other[0] += np.rint(2.0**10 / math.sqrt(N)) / 2.0**10 * (1 - 2.0**-9)
    found = worst_ratio(MatrixUnit(name), [(base, other)], lambda q: q.right(X), 1e-3)
    assert 0.95 <= found[0] <= 1.0


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


def test_symmetric_units_are_their_upper_triangle():
    A, X = RNG.standard_normal((N, N)), MATRICES["orthonormal"]
    upper = np.triu(A, 1)
    for name, loops in (("edge_change", 0.0), ("mixed", np.diag(np.diag(A)))):
        expected = upper + upper.T + loops
        for form in (np.asarray, sp.csr_array):
            query = NormQuery(form(A), MatrixUnit(name))
            assert query.right(X).answer(0.0) == pytest.approx(expected @ X)
            assert query.ritz(X).answer(1e-7) * 1e-7 == pytest.approx(X.T @ expected @ X, abs=1e-5)


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


@pytest.mark.parametrize("name", UNITS)
@pytest.mark.parametrize("algorithm", ["auto", "deflation"])
def test_a_fit_takes_huge_entries(name, algorithm):
    A = np.outer(RNG.standard_normal(30), RNG.standard_normal(30)) * 1e15
    delta = 1e-6 if algorithm == "auto" else 0.0
    svd = DPTruncatedSVD(1, epsilon=1.0, delta=delta, privacy_unit=name, algorithm=algorithm)
    svd.set_params(unit_bound=1.0, n_iter=2)
    assert np.isfinite(svd.fit(A).components_).all()


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
