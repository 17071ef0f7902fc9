"""Units of a matrix, with bounds of entries or a contract: bounds hold and are attained."""

import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp

from skdp import DPTruncatedSVD
from skdp.exceptions import PrivacyError
from skdp.queries.entries import EntryQuery, EntryRowQuery, MatrixUnit, NormQuery
from skdp.solvers.one_shot import matrix_of_pairs
from skdp.testing import check_sensitivity
from skdp.testing.sensitivity import mixed_sizes
from tools.gate import change_over_bound
from tools.outcomes import refuses

RNG = np.random.default_rng(0)
M, N, K = 7, 6, 2
STEP = 1e-9
MATRICES = {
    "orthonormal": np.linalg.qr(RNG.standard_normal((N, K)))[0],
    "skewed": RNG.standard_normal((N, K)) * [2.0, 0.1],
    "one_heavy_row": np.vstack([[[3.0, 1.0]], 0.1 * RNG.standard_normal((N - 1, K))]),
    "one_row": np.eye(N, K),
    "parallel_rows": np.outer([0.9, 0.8, 0.1, 0.1, 0.1, 0.1], [1.0, 2.0]),
    "column": RNG.standard_normal((N, 1)),
    "ones": np.ones((N, 1)),
}
LEFT = 1.7 * np.linalg.qr(RNG.standard_normal((M, K)))[0]
UNITS = [
    MatrixUnit("entry", "add_remove", -0.5, 2.0),
    MatrixUnit("entry", "replace", -2.0, 0.5),
    MatrixUnit("edge", "add_remove", 0.0, 1.0),
    MatrixUnit("edge", "replace", -1.0, 3.0),
]


def all_pairs(unit):
    """Every position, between the extreme values that the adjacency allows."""
    shape = (N, N) if unit.name == "edge" else (M, N)
    base = RNG.uniform(unit.low, unit.high, shape)
    against = [(0, unit.low), (0, unit.high)]
    values = {"add_remove": against, "replace": [*against, (unit.low, unit.high)]}
    for i in range(shape[0]):
        for j in range(i + 1 if unit.name == "edge" else 0, shape[1]):
            for low, high in values[unit.adjacency]:
                pair = [base.copy(), base.copy()]
                pair[0][i, j], pair[1][i, j] = low, high * 1e9 if abs(high) == unit.alpha else high
                yield pair


def queries(unit, pairs):
    """Make the queries of pairs, which clean their matrices once for all that is asked of them."""
    query = EntryQuery if unit.name in ("entry", "edge") else NormQuery
    return [(query(a, unit), query(sp.csr_array(b), unit)) for a, b in pairs]


def worst_ratio(neighbours, ask, step=STEP):
    """Largest change over its bound, by both norms."""
    worst = worst_l1 = 0.0
    for a, b in neighbours:
        left, right = ask(a), ask(b)
        change = (left.answer(step) - right.answer(step)).astype(np.float64)
        if left.bound.symmetric:
            change = (change + change.T) / 2
        worst = max(worst, float(np.linalg.norm(change)) / left.bound.l2_steps(step))
        if left.bound.l1 is not None:
            worst_l1 = max(worst_l1, float(np.abs(change).sum()) / left.bound.l1_steps(step))
    return worst, worst_l1


@pytest.mark.parametrize("unit", UNITS, ids=str)
def test_products_whole_and_core(unit):
    U = MATRICES["orthonormal"] if unit.name == "edge" else LEFT
    asks = [lambda q, X=X: q.right(X) for X in MATRICES.values()]
    asks += [lambda q: q.left(U), lambda q: q.whole()]
    asks.append(lambda q: q.left(np.full((q.shape[0], 1), 1 / q.shape[0])))  # means of columns
    asks.append(lambda q: q.core(U, MATRICES["skewed"]))
    asks.append(lambda q: q.square_sum())
    neighbours = queries(unit, all_pairs(unit))
    for ask in asks:
        for worst in worst_ratio(neighbours, ask):
            assert 0.95 <= worst <= 1.0
    # The largest change lies between one step and two, and is rounded up.
    assert max(worst_ratio(neighbours, lambda q: q.whole(), 0.65 * unit.alpha)) <= 1.0


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
def test_graph_is_its_upper_triangle_without_loops(form):
    A = RNG.uniform(size=(N, N))
    unit = MatrixUnit("edge", low=0.0, high=0.5)
    expected = np.triu(np.clip(A, 0, 0.5), 1)
    query = EntryQuery(form(A), unit)
    assert np.allclose(query.right(np.eye(N)).answer(0.0), expected + expected.T)
    pairs = query.whole()
    assert pairs.bound.shape == (N * (N - 1) // 2,)  # each of them once
    assert np.allclose(matrix_of_pairs(pairs.answer(0.0), N), expected + expected.T)


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_entries_that_are_not_numbers_count_as_zero_one_by_one(form):
    A, expected = np.ones((M, N)), np.ones((M, N))
    A[2, 3], A[0, 0], expected[2, 3] = math.nan, math.inf, 0.0
    unit = MatrixUnit("entry", low=0.0, high=1.0)
    assert np.array_equal(EntryQuery(form(A), unit).whole().answer(0.0), expected)


def test_duplicates_are_summed_before_clipping():
    A = sp.csr_array((np.full(4, 0.5), np.zeros(4, int), [0, 4]), shape=(1, N))
    A.has_canonical_format = True
    unit = MatrixUnit("entry", low=0.0, high=1.0)
    assert EntryQuery(A, unit).whole().answer(0.0)[0, 0] == 1.0
    assert A.nnz == 4


@pytest.mark.thorough
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
@pytest.mark.parametrize("name", ["entry", "edge"])
def test_one_cell_differs_between_neighbours(name, adjacency):
    """Every position, next to random weights: one cell, whatever the thresholds are."""
    unit = MatrixUnit(name, adjacency, 0.0, 2.0)
    for seed, (a, b) in enumerate(all_pairs(unit)):
        left, right = (EntryQuery(side, unit).cells(seed) for side in (a, sp.csc_array(b)))
        assert left.bound == right.bound
        assert left.bound.cells == 1
        assert left.bound.shape == ((1, N * (N - 1) // 2) if name == "edge" else (M, N))
        differs = np.clip(a, 0, 2).sum() != np.clip(b, 0, 2).sum()
        assert np.setxor1d(left.answer(1.0), right.answer(1.0)).size == differs


@pytest.mark.parametrize(("name", "adjacency"), [("entry", "add_remove"), ("edge", "replace")])
def test_both_sums_of_the_spread_move_by_one_at_most(name, adjacency):
    """The largest change is that of 0 against the upper bound; one alone moves by less."""
    unit, worst = MatrixUnit(name, adjacency, 0.0, 3.0), 0.0
    base = RNG.uniform(-1.0, 5.0, (M, N))[: N if name == "edge" else M]
    for value in (*np.linspace(-1.0, 4.0, 41), np.nan):
        for other in (0.0, 3.0, 1e9):
            a, b = base.copy(), base.copy()
            a[2, 3], b[2, 3] = value, other
            left, right = (EntryQuery(x, unit).rounding_variance() for x in (a, sp.csr_array(b)))
            change = float(np.abs(left.answer(STEP) - right.answer(STEP)).sum())
            worst = max(worst, change / left.bound.l1_steps(STEP))
            assert change <= left.bound.l2_steps(STEP)  # the l2 norm is no larger
    assert 0.95 <= worst <= 1.0
    clipped = np.clip(base if name == "entry" else np.triu(base, 1), 0.0, 3.0)
    expected = (clipped * (3.0 - clipped)).sum(), 3.0 * clipped.sum()
    assert EntryQuery(base, unit).rounding_variance().answer(0.0) == pytest.approx(expected)
    query = EntryQuery(base, MatrixUnit("entry", low=-1.0))
    refuses(ValueError, "rounding", query.rounding_variance)


def test_cells_are_the_places_of_the_ones():
    """Sorted, whatever the storage is; others are ones as often as their size says."""
    A, unit = (RNG.random((M, N)) < 0.4) * 3.0, MatrixUnit("entry", high=3.0)
    for form in (np.asarray, sp.csc_array):
        assert np.array_equal(EntryQuery(form(A), unit).cells(5).answer(1.0), np.flatnonzero(A))
    ones = EntryQuery(np.full((60, 60), 0.6), unit).cells(5).answer(1.0).size
    assert abs(ones - 720) < 6 * 24  # a fifth of them, and the standard deviation is 24
    graph = np.triu(RNG.random((N, N)) < 0.4, 1) * 1.0
    pairs = EntryQuery(graph, MatrixUnit("edge")).cells(5).answer(1.0)
    assert np.array_equal(pairs, np.flatnonzero(graph[np.triu_indices(N, 1)]))
    for bounds in ((-1.0, 1.0), (-1.0, 0.0)):
        with pytest.raises(ValueError, match="bounds"):
            EntryQuery(A, MatrixUnit("entry", "add_remove", *bounds)).cells(0)


@pytest.mark.thorough
def test_weights_keep_their_mean_over_public_thresholds():
    A = RNG.uniform(0.0, 2.0, (30, 20))
    query, n = EntryQuery(A, MatrixUnit("entry", high=2.0)), 4000
    ones = np.zeros(A.size)
    for dither in range(n):
        ones[query.cells(dither * 0x1234567).answer(1.0)] += 1
    share = A.ravel() / 2
    score = (ones - n * share) / np.sqrt(n * share * (1 - share))
    assert np.abs(score).max() < 6
    assert np.std(score) == pytest.approx(1.0, abs=6 / math.sqrt(2 * A.size))


# release of rows of entries -> (rows that are clipped, or None; public arguments, least ratio)
ROW_RELEASES = {
    "counts": (None, (), 0.95),
    "ritz": (None, (4 * np.eye(4)[:, :3],), 0.75),
    "kept_below": (None, (1.5,), 0.45),
    "norms_above": (None, (1.5,), 0.95),
    "gram": ((3.0, (7, 4)), (), 0.95),
    "sparse gram": ((1.5, (2, 2)), (), 0.95),  # one entry exceeds the clip norm
}


@pytest.mark.deep
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
@pytest.mark.parametrize("name", ROW_RELEASES)
def test_rows_of_entries_hold_their_bounds(name, adjacency):
    clipped, public, least = ROW_RELEASES[name]
    clip_norm, shape = clipped or (math.inf, (7, 4))
    starts, climb = (80, 60) if name == "gram" else (20, 5)

    def rows(A):
        A = sp.csr_array(A) if "sparse" in name else A
        query = EntryRowQuery(A, MatrixUnit("entry", adjacency, -0.5, 2.0))
        return query.clipped(clip_norm) if clipped else query

    report = check_sensitivity(
        rows, name.split()[-1], *public, adjacency=adjacency, unit="entry", shape=shape,
        entry_bounds=(-0.5, 2.0), max_starts=starts, n_climb=climb,
    )  # fmt: skip
    assert report.ratio > least


@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
@pytest.mark.parametrize(
    ("low", "high", "clip_norm"),
    [(-1.0, 1.0, 1.0), (-0.5, 2.0, 3.0), (-0.1, 2.0, 3.0), (-1.8, 2.0, 2.0), (-0.5, 2.0, 1.5),
     (0.0, 1.0, 4.0), (-5.0, 1.0, 4.0), (-0.01, 1.0, 1.3)],
)  # fmt: skip
def test_a_moment_attains_its_bound_beside_the_right_entries(low, high, clip_norm, adjacency):
    """One or both rows are as long as the clip norm, or they are orthogonal; others change less."""
    ends = {"add_remove": [(0.0, low), (0.0, high)], "replace": [(low, high)]}[adjacency]
    squares = [clip_norm**2 - end**2 for end in (0.0, low, high)] + [-low * high]
    squares += [*np.linspace(0, 2 * clip_norm**2, 41)]
    unit, worst = MatrixUnit("entry", adjacency, low, high), 0.0
    for square in squares:
        others = np.full(40, math.sqrt(max(square, 0.0) / 40)).clip(low, high)
        for pair in [[np.append(others, end)[None] for end in two] for two in ends]:
            asked = (EntryRowQuery(A, unit).clipped(clip_norm).gram() for A in pair)
            worst = max(worst, change_over_bound(*asked))
    assert 0.999 < worst <= 1


@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_a_projected_moment_attains_its_bound_beside_a_long_row(adjacency):
    """By an entry that turns a row away from a flat direction."""
    rows, V = np.ones((2, 1, 101)), np.full((101, 1), 101**-0.5)
    rows[0, 0, 0], V[0] = 0.0, -V[0]
    asked = [EntryRowQuery(A, MatrixUnit("entry", adjacency)).clipped(10.0).ritz(V) for A in rows]
    assert 0.95 < change_over_bound(*asked) <= 1


def test_an_entry_moves_the_norm_of_its_row_from_one_side_to_the_other():
    """Under add_remove, too: a row is there before and after."""
    unit = MatrixUnit("entry", "add_remove", -0.5, 2.0)
    rows = (np.array([[0.1, entry]]) for entry in (0.0, 2.0))
    asked = (EntryRowQuery(A, unit).kept_below(1.0) for A in rows)
    assert 0.999 < change_over_bound(*asked) <= 1


def test_a_pair_moves_a_core_from_both_sides():
    A = np.zeros((2, N, N))
    A[1, 0, 1] = 1.0
    one, other = (EntryQuery(each, UNITS[2]).core(*2 * [np.ones((N, 1))]) for each in A)
    moved = np.abs(one.answer(STEP) - other.answer(STEP)).sum()
    assert 0.999 < moved / one.bound.l1_steps(STEP) <= 1


def test_the_float_errors_of_long_sums_are_in_the_bound():
    """Sums of a million products; another entry may change the bits of each."""
    query = EntryQuery(sp.csr_array((10**6, 10**6)), MatrixUnit("entry"))
    bound = query.right(np.ones((10**6, 1))).bound
    error = 2 * 10**6 * 2.0**-53 * 10**9  # of both neighbours, in a million sums
    assert bound.l2 >= 1 + error and bound.l1 >= 1 + 1000 * error


def test_the_float_errors_of_sums_over_a_matrix_are_in_the_bound():
    """Of a million rows, or of all entries; a norm of a moment is one of its clipped rows."""
    query = EntryQuery(sp.csr_array((10**6, 10**6)), MatrixUnit("entry"))
    error = 2 * 10**12 * 2.0**-53 * 10**12  # of both neighbours, in one sum
    squares, spread = query.square_sum().bound, query.rounding_variance().bound
    assert min(squares.l2, squares.l1) >= 1 + error and min(spread.l2, spread.l1) >= 1 + 2 * error
    rows = EntryRowQuery(sp.csr_array((10**6, 10)), MatrixUnit("entry")).clipped(1.0)
    error = 2 * 10**6 * 2.0**-53 * 10**6
    assert min(rows.counts().bound.l2, rows.gram().bound.l2) >= 1 + error
    assert rows.ritz(4 * np.eye(10, 1)).bound.l2 >= 16 * (1 + error)


def test_what_rounding_adds_to_a_large_public_matrix_is_in_the_bound():
    """26 bits of a million numbers; in a row of a hundred they add up."""
    X = np.zeros((10**4, 100))
    X[0] = 1.0
    bound = NormQuery(sp.csr_array((2, 10**4)), MatrixUnit("entry_change")).right(X).bound
    assert bound.l2 >= 10 * (1 + 2.0**-13) * (1 + 2.0**-25 * 10**3)
    assert bound.l1 >= 100 * (1 + 2.0**-13) * (1 + 2.0**-25 * 10**4)


def test_kept_columns_of_entries_are_clipped_after_the_selection():
    A = RNG.uniform(0.0, 1.0, (M, N))
    query = EntryRowQuery(A, MatrixUnit("entry")).columns(np.array([5, 1, 3])).clipped(0.8)
    gram = query.columns(np.array([1, 2])).gram()  # of what was kept before
    rows = A[:, [1, 3]]
    rows = rows * np.minimum(1.0, 0.8 / np.linalg.norm(rows, axis=1))[:, None]
    assert gram.bound.shape == (2, 2) and np.allclose(gram.answer(0.0), rows.T @ rows)


# -- changes by a contract, of a norm or of entries, with entries of any size --------------------

NAMES = ["frobenius", "spectral"]
SQUARE = ["edge_change", "mixed"]
CONTRACTS = ["entry_change", *SQUARE, *NAMES]


def fraction(values):
    return np.vectorize(Fraction, otypes=[object])(values)


def size_of(change, name):
    largest = float(np.abs(change).max()) or 1.0
    unit = (change / largest).astype(np.float64)
    return largest * float(np.linalg.norm(unit, None if name == "frobenius" else 2))


def changes_of_a_norm(name, X):
    """The changes that products with X amplify most, and some others."""
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


@pytest.mark.thorough
@pytest.mark.parametrize("name", CONTRACTS)
@pytest.mark.parametrize("public", MATRICES)
@pytest.mark.parametrize("sensitivity", [0.7, 1e-200, 3e200])
def test_products_hold_their_bounds_and_attain_them(name, public, sensitivity):
    unit, X = MatrixUnit(name, sensitivity=sensitivity), MATRICES[public]
    pairs, step = list(pairs_of(name, X, sensitivity)), 1e-9 * sensitivity
    transposed = [(a.T, b.T) for a, b in pairs]
    found = [
        worst_ratio(queries(unit, pairs), lambda q: q.right(X), step),
        worst_ratio(queries(unit, transposed), lambda q: q.left(X), step),
    ]
    if name != "mixed":
        left = MATRICES["orthonormal"] if name in SQUARE else LEFT
        for U in (left, [0.1, 0.001] * left):  # no side is always shorter
            found.append(worst_ratio(queries(unit, pairs), lambda q, U=U: q.core(U, X), step))
    for worst, worst_l1 in found:
        assert 0.95 <= worst <= 1.0
        assert (0.95 if name in ("entry_change", "edge_change") else 0.0) <= worst_l1 <= 1.0


@pytest.mark.thorough
@pytest.mark.parametrize(
    "unit", [*UNITS[2:], *(MatrixUnit(name, sensitivity=0.7) for name in SQUARE)], ids=str
)
@pytest.mark.parametrize("public", MATRICES)
def test_ritz(unit, public):
    X = MATRICES[public]
    pairs = all_pairs(unit) if unit.name == "edge" else pairs_of(unit.name, X, 0.7)
    worst, worst_l1 = worst_ratio(queries(unit, pairs), lambda q: q.ritz(X))
    least = 0.0 if unit.name == "mixed" else 0.95
    assert least <= worst <= 1.0 and least <= worst_l1 <= 1.0


@pytest.mark.parametrize("order", [1, 2])
def test_all_pairs_of_rows_are_in_their_bound(order):
    """Those of short rows too, which are not tried one by one."""
    U, X = (RNG.standard_normal((700, 3)) * RNG.exponential(size=(700, 1)) for _ in range(2))
    worst = 0.0
    for i in range(700):
        both = U[i][:, None] * X[i + 1 :, None, :] + U[i + 1 :, :, None] * X[i]
        norms = np.abs(both).sum(axis=(1, 2)) if order == 1 else np.linalg.norm(both, axis=(1, 2))
        worst = max(worst, norms.max(initial=0.0))
    assert 0.99 <= worst / MatrixUnit("edge").core(U, X, order) <= 1
    equal = np.eye(600)
    equal[-1] = equal[-2]  # parallel rows behind many that are orthogonal
    assert MatrixUnit("edge").core(equal, equal, order) == pytest.approx(2.0)
    apart = np.array([[1.0], [-1.0]])  # two terms that cancel leave their rounding
    assert 0 < MatrixUnit("edge").core(np.abs(apart), apart, order) < 1e-5


def test_rounding_of_all_entries_is_in_the_bound_of_a_mixed_change():
    """If all are rounded up in one of two neighbours, each sum of n entries moves n times that."""
    n, unit = 100, MatrixUnit("mixed")
    worst = 0.0
    for place in np.linspace(0.0, 2.0**-19, 17):
        before, after = (np.full((n, n), place + more) for more in (0.0, n**-1.5 * (1 - 1e-9)))
        asks = [NormQuery(A, unit).right(np.ones((n, 1))) for A in (before, after)]
        worst = max(worst, change_over_bound(*asks))
    assert 1 - 2.0**-13 <= worst <= 1


def test_rounding_of_a_short_second_row_is_in_the_bound_of_a_pair():
    X = np.eye(N, K) * [[1.0, 1e-8]]  # of which a third more is left after rounding
    unit, pairs = MatrixUnit("edge_change", sensitivity=0.7), pairs_of("edge_change", X, 0.7)
    assert max(worst_ratio(queries(unit, pairs), lambda q: q.ritz(X))) <= 1.0


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


@pytest.mark.deep
@pytest.mark.parametrize("name", CONTRACTS)
@pytest.mark.parametrize("scale", [1e3, 1e9, 1e15, 2.0**53, 1e17, 1e30, 1e300])
def test_entries_of_any_size_are_inside_the_guarantee(name, scale):
    """Also next to entries whose float neighbours are further away than the change."""
    unit, rng = MatrixUnit(name), np.random.default_rng(1)
    pairs = list((huge_pairs if name in NAMES else huge_pairs_of_entries)(name, scale, rng))
    X = np.linalg.qr(rng.standard_normal((N, K)))[0]
    U = X if name in SQUARE else LEFT
    last = (lambda q: q.ritz(X)) if name in SQUARE else (lambda q: q.core(U, X))
    for ask in (lambda q: q.right(X), lambda q: q.left(U), last):
        for step in (1e-3, 1.7):
            assert max(worst_ratio(queries(unit, pairs), ask, step)) <= 1.0


@pytest.mark.parametrize("name", ["entry_change", *NAMES])
def test_a_change_is_exact_next_to_huge_entries(name):
    """The largest entries that can change still do, and the bound is attained there."""
    X = np.full((N, 1), 1 / math.sqrt(N))
    base = np.full((M, N), 2.0**50 if name == "entry_change" else 2.0**40)
    base[1:] = 1e25  # far beyond the cut: these cannot change
    other = base.copy()
    if name == "entry_change":
        other[0, 2] += 1.0
    else:
        other[0] += np.rint(2.0**10 / math.sqrt(N)) / 2.0**10 * (1 - 2.0**-9)
    found = worst_ratio(queries(MatrixUnit(name), [(base, other)]), lambda q: q.right(X), 1e-3)
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
            assert query.ritz(X).answer(1e-7) * 1e-7 == pytest.approx(X.T @ expected @ X, abs=1e-4)


def test_long_sums_are_exact():
    """Numbers without rounding errors, whose sums one float cannot hold."""
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


@pytest.mark.parametrize("name", CONTRACTS)
@pytest.mark.parametrize("algorithm", ["auto", "deflation"])
def test_a_fit_takes_huge_entries(name, algorithm):
    A = np.outer(RNG.standard_normal(30), RNG.standard_normal(30)) * 1e15
    delta = 1e-6 if algorithm == "auto" else 0.0
    svd = DPTruncatedSVD(1, epsilon=1.0, delta=delta, privacy_unit=name, algorithm=algorithm)
    svd.set_params(unit_bound=1.0, n_iter=2)
    assert np.isfinite(svd.fit(A).components_).all()


def test_each_query_accepts_its_own_units():
    A = np.zeros((M, N))
    for name in CONTRACTS:
        refuses(PrivacyError, "NormQuery", EntryQuery, A, MatrixUnit(name))
    refuses(PrivacyError, "EntryQuery", NormQuery, A, MatrixUnit("entry"))
    for name in SQUARE:
        refuses(ValueError, "square", NormQuery, A, MatrixUnit(name))
    refuses(ValueError, "square", EntryQuery, A, UNITS[2])
