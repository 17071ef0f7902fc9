"""Queries of a trace regression: bounds that hold and are attained, sums exact in any order."""

import itertools
import math

import numpy as np
import pytest
import scipy.sparse as sp

from skdp.data import records
from skdp.data.records import DenseRecords, FactoredRecords, SparseRecords
from skdp.data.units import in_memory
from skdp.queries.records import RecordQuery
from skdp.units import ADJACENCIES
from tools.outcomes import refuses

D1, D2, R = 4, 3, 2
P = D1 * D2
RNG = np.random.default_rng(0)
U = np.linalg.qr(RNG.standard_normal((D1, R)))[0]
V = np.linalg.qr(RNG.standard_normal((D2, R)))[0]
S = np.array([[2.0, 0.1], [-0.3, 0.5]])
M = U @ S @ V.T


def positive(d, seed):
    G = np.random.default_rng(seed).standard_normal((d, d))
    A = G @ G.T + 0.1 * np.eye(d)
    return A / np.linalg.norm(A, 2)


W = (positive(D1, 1), positive(D2, 2))
DIAGONALS = tuple(np.random.default_rng(3).uniform(0.2, 1, d) for d in (D1, D2))
DIAGONAL = tuple(map(np.diag, DIAGONALS))
MIX = positive(P, 40) * (1 - 1e-6)
FORMS = ["dense", "float32", "csr", "factors", "whitened", "csr whitened", "factors whitened"]
CONTRIBUTING = [*FORMS, "mixed"]  # a mix is public: no fit uses moments of the design then
UNITS = [(unit, adjacency) for unit in ("row", "label") for adjacency in ("add_remove", "replace")]


NONE = np.zeros((0, D1)), np.zeros((0, D2))


def placed(X, y):
    if isinstance(X, tuple):
        return in_memory(X[0], y=y, factors=X[1])
    return in_memory(X, y=y)


def query(form, data, y, unit="row", adjacency="add_remove", bias=0.0, n_jobs=None):
    """`data` is (A, B) with X_i = a_i b_i' for factors, else rows."""
    X = data
    if "factors" not in form and isinstance(data, tuple):
        X = (data[0][:, :, None] * data[1][:, None, :]).reshape(len(data[0]), P)
    if form == "float32":
        X = X.astype(np.float32)
    if "csr" in form and not sp.issparse(X):
        X = sp.csr_array(X)
    out = RecordQuery(placed(X, y), (D1, D2), adjacency=adjacency, privacy_unit=unit, n_jobs=n_jobs)
    if "whitened" in form:
        out = out.whitened(*(DIAGONALS if "csr" in form else W))
    if form == "mixed":
        out = out.mixed(MIX)
    return out.augmented(0.3, bias) if bias else out


def factors(seed, n):
    """Factors of adversarial products: in the tangent space, outside it, over 14 decades."""
    rng = np.random.default_rng(seed)
    A, B = rng.standard_normal((n, D1)), rng.standard_normal((n, D2))
    A[::3] = U[:, rng.integers(R, size=len(A[::3]))].T
    B[1::3] = V[:, rng.integers(R, size=len(B[1::3]))].T
    A[::7] = np.eye(D1)[rng.integers(D1, size=len(A[::7]))]
    B[::7] = np.eye(D2)[rng.integers(D2, size=len(B[::7]))]
    outside = A - A @ U @ U.T
    A[::11] = outside[::11]
    return A * 10.0 ** rng.uniform(-7, 7, (n, 1)), B


def part(data, rows):
    return tuple(each[rows] for each in data) if isinstance(data, tuple) else data[rows]


def others(data, y, i, unit, adjacency):
    """Replacements of this record: none, its opposite, another one."""
    one, own = part(data, [i]), y[[i]]
    if unit == "label" and adjacency == "add_remove":
        return [(one, np.nan * own)]  # withheld
    if unit == "label":
        return [(one, -own), (one, 1e12 + 0 * own), (one, 0 * own)]
    if adjacency == "add_remove":
        return [(part(data, []), y[:0])]
    j = [(5 * i + 3) % len(y)]
    opposite = (-one[0], *one[1:]) if isinstance(one, tuple) else -one
    more = [(tuple(np.roll(each, 1, 1) for each in one), own)] if isinstance(one, tuple) else []
    return [(opposite, own), (part(data, j), y[j]), *more]


def change(release, a, b, step):
    left, right = release(a), release(b)
    return moved(left, left.answer(step), right, step)


def moved(left, answer, right, step):
    assert left.bound == right.bound
    difference = answer - right.answer(step)
    return float(np.linalg.norm(difference.astype(np.float64))) / left.bound.l2_steps(step)


SUMS = {
    "tangent": lambda q: q.tangent(U, S, V, 0.4).total(0.7),
    "products": lambda q: q.products().total(0.7),
}


def asked(release, form, unit="row", adjacency="add_remove", bias=0.0):
    return lambda record: release(query(form, *record, unit, adjacency, bias))


def targets(n, seed=8):
    rng = np.random.default_rng(seed)
    return rng.standard_normal(n) * 10.0 ** rng.uniform(-7, 7, n)


def worst_of(make, data, y, unit, adjacency, step=1e-8):
    worst = 0.0
    for i in range(len(y)):
        left = make((part(data, [i]), y[[i]]))
        answer = left.answer(step)
        for other in others(data, y, i, unit, adjacency):
            worst = max(worst, moved(left, answer, make(other), step))
    return worst


@pytest.mark.parametrize(
    ("name", "form"),
    [
        *itertools.product(["tangent"], ["dense", "csr whitened", "factors", "mixed"]),
        ("products", "dense"),
        ("products", "factors"),
    ],
)
def test_a_few_records_keep_to_each_bound(name, form):
    for i, (unit, adjacency) in enumerate(UNITS):
        make = asked(SUMS[name], form, unit, adjacency, bias=(0.0, 0.8)[i % 2])
        assert 0.8 <= worst_of(make, factors(7, 12), targets(12), unit, adjacency) <= 1 + 1e-9


@pytest.mark.thorough
@pytest.mark.parametrize("bias", [0.0, 0.8])
@pytest.mark.parametrize(("unit", "adjacency"), UNITS)
@pytest.mark.parametrize("form", CONTRIBUTING)
@pytest.mark.parametrize("name", SUMS)
def test_sensitivity_holds_and_is_attained(name, form, unit, adjacency, bias):
    make = asked(SUMS[name], form, unit, adjacency, bias)
    assert 0.997 <= worst_of(make, factors(7, 60), targets(60), unit, adjacency) <= 1 + 1e-9


@pytest.mark.thorough
@pytest.mark.parametrize(("unit", "adjacency"), UNITS)
@pytest.mark.parametrize("form", CONTRIBUTING)
def test_moments_of_predictions_hold_and_are_attained(form, unit, adjacency):
    """Rows of large targets are orthogonal to rows of clipped predictions that are true."""
    y = targets(24)
    y[::4], y[2::4] = 0.3 + 0.4, 0.3 - 0.4
    make = asked(
        lambda q: q.tangent(U, S, V, 0.4).prediction_moments(0.1, 4.0, 2.0), form, unit,
        adjacency, 0.8,
    )  # fmt: skip
    assert 0.99 <= worst_of(make, factors(7, 24), y, unit, adjacency) <= 1 + 1e-9


def test_predictions_are_clipped_predictions_of_the_model():
    X, y = np.random.default_rng(2).standard_normal((50, P)), targets(50)
    bad, y[4:6] = np.where(np.arange(50)[:, None] == 3, np.nan, X), (np.nan, 1e30)
    asked_of = query("dense", bad, y, bias=0.8).tangent(U, S, V, 0.4)
    f = np.clip((X @ M.ravel() + 0.8 * 0.4) / 0.5, -4, 4)
    rows = np.column_stack([f, (y - asked_of.query.center) / 0.5 - f, np.ones(50)])
    rows *= np.minimum(1, 2 / np.linalg.norm(rows, axis=1))[:, None]
    rows[3:6] = 0.0
    seen = 1e-9 * asked_of.prediction_moments(0.5, 4.0, 2.0).answer(1e-9)
    np.testing.assert_allclose(seen, rows.T @ rows, rtol=1e-4)


PLACE = np.random.default_rng(12).standard_normal(P)


@pytest.mark.thorough
@pytest.mark.parametrize("bias", [0.0, 0.8])
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
@pytest.mark.parametrize("form", FORMS)
def test_sums_of_records_hold_and_are_attained(form, adjacency, bias):
    """For all targets, also those that are not finite."""
    make = asked(lambda q: q.records().total(0.7), form, "row", adjacency, bias)
    for y in (targets(60), np.full(60, np.nan)):
        assert 0.95 <= worst_of(make, factors(7, 60), y, "row", adjacency) <= 1 + 1e-9


@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
@pytest.mark.parametrize("form", ["dense", "factors"])
@pytest.mark.parametrize("n", [12, pytest.param(60, marks=pytest.mark.deep)])
def test_ranks_of_entries_hold_and_are_attained(n, form, adjacency):
    """A record moves the rank of each entry by half; its opposite lies on the other side."""
    size = P if form == "dense" else D1 + D2
    points, at = np.tile([-1.0, 0.1, 1.0], (size, 1)), np.ones(size, int)
    make = asked(lambda q: q.entries().grid(points).ranks(at), form, "row", adjacency)
    data, y, tiny = factors(7, n), np.full(n, np.nan), (np.ones(D1), np.full(D2, 1e-309))
    with np.errstate(all="raise"):  # nothing is computed before it is paid for
        query(form, data, y).about(0 * PLACE, tiny)
    worst = max(worst_of(make, data, t, "row", adjacency) for t in (targets(n), y))
    pairs = [(one, tuple(-each for each in one)) for one in (part(data, [i]) for i in range(n))]
    if adjacency == "replace" and form == "factors":  # both factors change
        worst = max(worst, *(change(make, (a, y[:1]), (b, y[:1]), 1e-8) for a, b in pairs))
    assert 0.95 <= worst <= 1 + 1e-9


@pytest.mark.thorough
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_sums_of_records_about_a_place_hold_and_are_attained(adjacency):
    """The opposite of a record is its mirror image about the place."""
    X, y = np.random.default_rng(13).standard_normal((40, P)) + PLACE, targets(40)
    for name in ("tangent", "products", "records"):
        release = SUMS.get(name, lambda q: q.records().total(0.7))
        make = asked(lambda q, release=release: release(q.about(PLACE)), "dense", "row", adjacency)
        pairs = [((X[[i]], y[[i]]), (2 * PLACE - X[[i]], y[[i]])) for i in range(40)]
        none = (X[:0], y[:0])
        worst = max(change(make, a, b if adjacency == "replace" else none, 1e-8) for a, b in pairs)
        assert 0.95 <= worst <= 1 + 1e-9


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("form", ["dense", "csr", "factors"])
def test_moments_of_records_without_a_common_direction_attain_their_bound(form, adjacency):
    """One comes, or goes for one that is orthogonal to it on both sides."""
    first, other = (
        (3.0 * np.eye(D1)[[i]], np.eye(D2)[[i]]) if i or adjacency == "replace" else NONE
        for i in (1, 0)
    )
    make = asked(lambda q: q.measurement_covariance_moments(1.0), form, adjacency=adjacency)
    pair = [(data, np.ones(len(data[0]))) for data in (first, other)]
    assert 0.99 < change(make, *pair, 1e-9) <= 1 >= change(make, *pair, 0.15)  # coarse steps too


@pytest.mark.parametrize(("form", "unit"), [("dense", 1.99), ("factors", 3.46)])
def test_all_numbers_of_a_record_may_be_rounded_up(form, unit):
    halves = np.full((1, D1), 2049.5)  # of a factor in 12 bits
    Z, _, units, margin = FactoredRecords((D1, D2))._integers(halves, 0)
    assert np.linalg.norm(halves / units - Z) == margin
    ones = (np.ones((1, D1)), np.ones((1, D2))), np.ones(1)
    make = asked(lambda q: q.measurement_covariance_moments(P), form)
    assert 0.85 < change(make, ones, (NONE, np.zeros(0)), unit**2) <= 1


def test_a_place_is_subtracted_from_each_record():
    X, y = np.random.default_rng(14).standard_normal((50, P)), targets(50)
    y[7] = np.nan
    about, moved = query("dense", X, y).about(PLACE), query("dense", X - PLACE, y)
    asks = lambda q: q.records().total(3.0), lambda q: q.measurement_covariance_moments(9.0)
    units, (a, b) = (np.linspace(1, 3, D1), np.linspace(0.5, 2, D2)), factors(15, 50)
    own = query("factors", (a, b), y).about(PLACE, units)  # the place is that of dense records
    divided = query("factors", (a / units[0], b / units[1]), y)
    both = query("dense", X, y).about(PLACE, units)
    scaled = query("dense", (X - PLACE) / np.outer(*units).ravel(), y)
    pairs = (about, moved), (own, divided), (both, scaled)
    for ask, pair in itertools.product((*SUMS.values(), *asks), pairs):
        assert np.array_equal(*(ask(each).answer(1e-8) for each in pair))
    floors = [query(form, X, y).products().total(3.0).bound.slack for form in ("dense", "mixed")]
    assert floors == pytest.approx([1.01 * (m * P**0.5 + 1) for m in (3, 4)])  # A of a sum is, too
    bad = np.where(np.arange(50) < 30, np.nan, y)
    means = [query("dense", X, t, "label", "add_remove").public_mean() for t in (y, bad)]
    assert np.array_equal(*means) and np.allclose(means[0], X.mean(axis=0), atol=0.05)
    for adjacency in ADJACENCIES:
        refuses(ValueError, "private unless", query("dense", X, y, adjacency=adjacency).public_mean)


@pytest.mark.thorough
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
@pytest.mark.parametrize("form", FORMS)
def test_design_moments_hold_and_are_attained(form, adjacency):
    make = asked(lambda q: q.measurement_covariance_moments(0.7), form, "row", adjacency)
    worst = worst_of(make, factors(4, 90), np.ones(90), "row", adjacency)
    if adjacency == "replace":  # orthogonal after whitening
        left, right = DIAGONAL if "csr" in form else W
        left, right = (np.linalg.inv(w) if "whitened" in form else w * 0 + np.eye(len(w))
                       for w in (left, right))  # fmt: skip
        pair = [((1e3 * left[[i]], right[[i]]), np.ones(1)) for i in (0, 1)]
        worst = max(worst, change(make, *pair, 1e-8))
    assert 0.95 <= worst <= 1


# -- single entries, for means of rows and columns -------------------------------------------------

MEANS = np.linspace(-1, 1, D1), np.linspace(2, -3, D2)
MARGINALS = {
    f"{side}, {name}": lambda q, by_column=by_column, clear=clear: (
        (q if clear else q.about_means(*MEANS)).single_entries(by_column).products().total(0.7)
    )
    for side, by_column in (("columns", True), ("rows", False))
    for name, clear in (("first", True), ("beside means", False))
}


def singles(seed, n):
    """Ratings of 14 decades; some records have more entries, stored zeros, or none."""
    rng = np.random.default_rng(seed)
    X = np.zeros((n, P))
    sizes = rng.choice([-1.0, 1.0], n) * 10.0 ** rng.uniform(-7, 7, n)
    X[np.arange(n), rng.integers(P, size=n)] = sizes
    X[::5, 3] += 1.0
    X[4::10] = 0.0
    y = rng.standard_normal(n) * 10.0 ** rng.uniform(-7, 7, n)
    rows = sp.csr_array(X)
    padded = sp.csr_array(np.where(X == 0, 1e-5, X))
    padded.data[padded.data == 1e-5] = 0.0  # stored zeros are no entries
    return (padded if seed % 2 else rows), y


@pytest.mark.thorough
@pytest.mark.parametrize(("unit", "adjacency"), UNITS)
@pytest.mark.parametrize("name", MARGINALS)
def test_sums_for_means_hold_the_bound_and_attain_it(name, unit, adjacency):
    make = asked(MARGINALS[name], "csr", unit, adjacency)
    worst = max(worst_of(make, *singles(seed, 80), unit, adjacency) for seed in range(2))
    assert 0.95 <= worst <= 1 + 1e-9


def test_sums_for_means_are_those_of_single_entries():
    X, y = singles(1, 300)
    X.data = np.clip(X.data, -3, 3)
    dense, y = X.toarray().reshape(-1, D1, D2), np.clip(y, -2, 2)
    single = (np.count_nonzero(dense, axis=(1, 2)) == 1).astype(float)
    beside = y - np.einsum("ijk,jk->i", dense, MEANS[0][:, None] + MEANS[1])
    order = np.random.default_rng(0).permutation(300)
    for by_column, axes in ((True, "ijk,i->k"), (False, "ijk,i->j")):
        found, again = (
            q.about_means(*MEANS).single_entries(by_column).products().total(80.0)
            for q in (query("csr", X, y), query("csr", X[order], y[order], n_jobs=2))
        )
        expected = np.einsum(axes, dense, single * beside)
        assert found.bound.name == ("column_sums" if by_column else "row_sums")
        assert np.allclose(found.answer(0.0), expected, atol=1e-3)
        assert np.allclose(found.answer(1e-8) * 1e-8, expected, atol=0.2)
        assert np.array_equal(again.answer(1e-8), found.answer(1e-8))
    for ask in (
        lambda q: q.tangent(U, S, V).total(1e9),
        lambda q: q.whitened(*DIAGONALS).products().total(1.3),
        lambda q: q.single_entries(True).products().scores_below(0.5),
    ):
        first, shifted = query("csr", X, y).about_means(*MEANS), query("csr", X, beside)
        assert np.allclose(ask(first).answer(0.0), ask(shifted).answer(0.0), atol=1e-3)
    for form in ("dense", "factors", "csr whitened"):
        data = factors(1, 5) if form == "factors" else dense[:5].reshape(5, P)
        for narrow in (lambda q: q.about_means(*MEANS), lambda q: q.single_entries(True)):
            refuses(ValueError, "CSR", narrow, query(form, data, y[:5]))


# -- records so large that tangent coordinates are cached between the search and the sum ----------

WIDE = (16, 12)
U1 = np.linalg.qr(np.random.default_rng(20).standard_normal((16, 1)))[0]
V1 = np.linalg.qr(np.random.default_rng(21).standard_normal((12, 1)))[0]
WIDE_W = (positive(16, 22), positive(12, 23))
WIDE_MIX = positive(192, 41) * (1 - 1e-6)


def wide(X, y, adjacency="add_remove", whitened=False, bias=0.0, n_jobs=None):
    out = RecordQuery(placed(X, y), WIDE, adjacency=adjacency, n_jobs=n_jobs)
    if whitened == "mixed":
        out = out.mixed(WIDE_MIX)
    elif whitened:
        out = out.whitened(*WIDE_W)
    out = out.augmented(0.3, bias) if bias else out
    return out.tangent(U1, np.array([[1.7]]), V1, 0.4).total(0.7)


@pytest.mark.thorough
@pytest.mark.parametrize("whitened", [False, True, "mixed"])
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_kept_coordinates_hold_the_bound_and_attain_it(adjacency, whitened, rng):
    worst = 0.0
    for i in range(150):
        x = rng.standard_normal((1, 192)) * 10.0 ** rng.uniform(-7, 7)
        if i % 3 == 0:
            x = (U1 @ rng.standard_normal((1, 12))).reshape(1, -1) * 10.0 ** rng.uniform(-7, 7)
        if i % 5 == 0:
            x = x.astype(np.float32)
        y = 10.0 ** rng.uniform(-7, 7, 1)
        bias = 0.8 * (i % 2)
        make = lambda p, c=bias: wide(p[0], p[1], adjacency, whitened, c)  # noqa: E731
        other = (x[:0], y[:0]) if adjacency == "add_remove" else (-x, y)
        worst = max(worst, change(make, (x, y), other, 1e-8))
    assert 0.999 <= worst <= 1 + 1e-9


@pytest.mark.thorough
@pytest.mark.parametrize("whitened", [False, True, "mixed"])
def test_kept_coordinates_change_nothing(whitened, monkeypatch, rng):
    monkeypatch.setattr("skdp.queries.records.MAX_ROWS", 2**8)  # they are read in several parts
    X, y = rng.standard_normal((900, 192)), rng.standard_normal(900)
    kept = wide(X, y, whitened=whitened, bias=0.5).answer(1e-8)
    order = rng.permutation(900)
    permuted = wide(X[order], y[order], whitened=whitened, bias=0.5, n_jobs=2).answer(1e-8)
    assert np.array_equal(kept, permuted)
    monkeypatch.setattr(DenseRecords, "coordinates", lambda self, rank: 0)
    streamed = wide(X, y, whitened=whitened, bias=0.5).answer(1e-8)
    assert not np.array_equal(kept, streamed)
    assert np.allclose(kept, streamed, atol=2e-3 * np.abs(kept).max())


RANKS = {
    "moment sizes": lambda q: q.moment_sizes_below(0.5),
    "scores": lambda q: q.tangent(U, S, V).scores_below(0.5),
    "first scores": lambda q: q.products().scores_below(0.5),
    "norms": lambda q: q.records().scores_below(0.5),
}


@pytest.mark.thorough
@pytest.mark.parametrize(("unit", "adjacency"), UNITS[:3])
@pytest.mark.parametrize("name", RANKS)
def test_ranks_hold_and_are_attained(name, unit, adjacency):
    """A record whose label is withheld stays, as X is public, but counts on neither side."""
    if name in ("moment sizes", "norms") and unit == "label":
        pytest.skip("public")
    make = asked(RANKS[name], "dense", unit, adjacency)
    assert 0.999 <= worst_of(make, factors(5, 60), np.linspace(-3, 3, 60), unit, adjacency) <= 1


def test_what_is_public_of_the_label_unit_alone():
    data, y = factors(1, 5), np.ones(5)
    for adjacency in ADJACENCIES:
        with pytest.raises(ValueError, match="private unless"):
            query("dense", data, y, adjacency=adjacency).public_moments()
    withheld = query("dense", data, y, "label", "add_remove")
    assert withheld.n_rows == 5
    refuses(ValueError, "public", withheld.count)
    y = np.array([-2.0, np.nan, 0.9, -1.5, -1.5])
    data[0][4] = np.nan  # a record that contributes nothing has no target either
    for targets, rank in ((y, 1.5), (np.full(5, np.nan), 0.0)):  # half of those that have a target
        q = query("dense", data, targets, "label", "add_remove", bias=0.8)
        assert q.products().scores_below(1e9).answer(0.0) == rank
    assert not SUMS["tangent"](q).answer(1e-8).any()  # all are withheld: no intercept either
    assert q.tangent(U, S, V, 0.4).scores_below(1e9).answer(0.0) == 0.0
    refuses(ValueError, "adjacency", query, "dense", data, y, "label", "zero_out")


BAD = [math.nan, math.inf, -math.inf, 1e200, 1e308, 1e-320]


@pytest.mark.parametrize("form", ["dense", "csr", "factors", "whitened"])
@pytest.mark.parametrize("bad", BAD)
def test_bad_records_contribute_nothing_and_change_no_others(form, bad):
    A, B = factors(2, 20)
    y = np.ones(20)
    clean = query(form, (A, B), y)
    without = query(form, (np.delete(A, 3, 0), np.delete(B, 3, 0)), np.delete(y, 3))
    asks = SUMS | {"moments": lambda q: q.measurement_covariance_moments(0.7)}
    expected = {name: release(without).answer(1e-8) for name, release in asks.items()}
    dirty = A.copy()
    dirty[3] = bad
    for name, release in asks.items():
        seen = release(query(form, (dirty, B), y)).answer(1e-8)
        moved = np.linalg.norm((seen - expected[name]).astype(float))
        assert moved <= release(clean).bound.l2_steps(1e-8)
        if not math.isfinite(bad):
            assert np.array_equal(seen, expected[name])
    targets = y.copy()
    targets[3] = bad
    seen = SUMS["tangent"](query(form, (A, B), targets)).answer(1e-8)
    assert np.linalg.norm((seen - expected["tangent"]).astype(float)) <= clean.tangent(
        U, S, V
    ).total(0.7).bound.l2_steps(1e-8)


def test_infinite_weight_times_zero_does_not_pass_the_clip():
    """A zero record with a huge target: inf * 0 is NaN in floats, and NaN passes every minimum."""
    squares = np.zeros(1), np.ones(1), np.full(1, 2.0)  # rounding may raise those of the core
    assert records.tangent_sizes(squares, np.ones(1), 3.0) == 3.0
    X = np.zeros((3, P))
    X[1, 0] = 1e-300
    for y in (np.full(3, 1e308), np.full(3, 1e199), np.zeros(3)):
        for bias in (0.0, 0.5):
            bounded = SUMS["tangent"](query("dense", X[:1], y[:1], bias=bias))
            assert np.linalg.norm(bounded.answer(1e-8).astype(float)) <= bounded.bound.l2_steps(
                1e-8
            )
            assert np.isfinite(SUMS["products"](query("dense", X, y)).answer(0.0)).all()


def test_hundred_duplicates_do_not_pass_the_clip():
    X = sp.csr_array((np.ones(100), np.zeros(100, int), [0, 100]), shape=(1, P))
    X.has_canonical_format = True
    y = np.array([0.01])
    expected = SUMS["tangent"](query("dense", 100 * np.eye(P)[:1], y))
    bounded = SUMS["tangent"](query("csr", X, y))
    assert np.linalg.norm(bounded.answer(1e-6).astype(float)) <= bounded.bound.l2_steps(1e-6)
    assert np.allclose(bounded.answer(1e-8), expected.answer(1e-8), rtol=1e-4, atol=100)
    assert X.data.size == 100


def reference(X, y, C, bias, intercept):
    Z = X.reshape(len(X), D1, D2)
    projected = U @ U.T @ Z + Z @ V @ V.T - U @ U.T @ Z @ V @ V.T
    residuals = np.einsum("ijk,jk->i", Z, M) + bias * intercept - y
    sizes = np.sqrt((projected**2).sum((1, 2)) + bias**2)
    weights = residuals * np.minimum(1, C / (np.abs(residuals) * sizes))
    G = np.einsum("i,ijk->jk", weights, projected)
    parts = [(G @ V).ravel(), (U.T @ G @ (np.eye(D2) - V @ V.T)).ravel()]
    return np.concatenate([*parts, [bias * weights.sum()]] if bias else parts)


@pytest.mark.thorough
@pytest.mark.parametrize("bias", [0.7, 0.0])
@pytest.mark.parametrize("form", FORMS[4:] + FORMS[:4])
def test_matches_the_float_computation(form, bias, monkeypatch, rng):
    A, B = rng.standard_normal((500, D1)), rng.standard_normal((500, D2))
    y = rng.standard_normal(500)
    dense = (A[:, :, None] * B[:, None, :]).reshape(500, P)
    if "whitened" in form:
        left, right = DIAGONAL if "csr" in form else W
        dense = (left @ dense.reshape(-1, D1, D2) @ right).reshape(500, P)
    expected = reference(dense, y - (0.3 if bias else 0), 1.3, bias, 0.4)
    bounded = query(form, (A, B), y, bias=bias).tangent(U, S, V, 0.4).total(1.3)
    scale = np.abs(expected).max()
    assert np.allclose(bounded.answer(0.0), expected, atol=5e-3 * scale)
    assert np.allclose(bounded.answer(1e-9) * 1e-9, expected, atol=5e-3 * scale)
    assert query(form, (A, B), y).measurement_covariance_moments(2.0).answer(1e-9).shape == (
        (D1 + D2,) if "csr" in form else (D1 * D1 + D2 * D2,)
    )
    monkeypatch.setattr(DenseRecords, "coordinates", lambda self, rank: rank * sum(self.shape))
    monkeypatch.setattr(records, "_SMALL", 1)  # as whitening of large records
    kept = query(form, (A, B), y, bias=bias).tangent(U, S, V, 0.4).total(1.3)
    assert np.allclose(kept.answer(1e-9) * 1e-9, expected, atol=5e-3 * scale)


@pytest.mark.thorough
@pytest.mark.parametrize("form", CONTRIBUTING)
def test_answers_are_the_same_bits_in_any_order(form, monkeypatch, rng):
    A, B = rng.standard_normal((1500, D1)), rng.standard_normal((1500, D2))
    y = rng.standard_normal(1500)
    order = rng.permutation(1500)
    releases = [*SUMS.values(), *RANKS.values(), lambda q: q.measurement_covariance_moments(0.5)]
    expected = [release(query(form, (A, B), y, bias=0.5)).answer(1e-8) for release in releases]
    for n_jobs in (None, 3):
        for release, value in zip(releases, expected, strict=True):
            permuted = query(form, (A[order], B[order]), y[order], bias=0.5, n_jobs=n_jobs)
            assert np.array_equal(release(permuted).answer(1e-8), value)
        monkeypatch.setattr(records, "CACHED", 200)
        monkeypatch.setattr(SparseRecords, "at_once", 37)
        monkeypatch.setattr(FactoredRecords, "at_once", 37)


def test_dense_and_sparse_are_the_same_numbers():
    X = np.random.default_rng(13).standard_normal((300, P))
    X[X < 0.5] = 0
    y = np.ones(300)
    for name in ("scores", "first scores"):
        a, b = (RANKS[name](query(form, X, y)).answer(1e-8) for form in ("dense", "csr"))
        assert np.array_equal(a, b)


def test_public_moments_of_the_label_unit(rng):
    A, B = rng.standard_normal((200, D1)), rng.standard_normal((200, D2))
    A, B = (part / np.linalg.norm(part, axis=1, keepdims=True) for part in (A, B))
    X = (A[:, :, None] * B[:, None, :]).reshape(200, P)  # all of one size: none is cut
    Z = X.reshape(-1, D1, D2)
    found = query("dense", X, np.ones(200), "label", "replace").public_moments()
    expected = np.einsum("ijk,ilk->jl", Z, Z), np.einsum("ijk,ijl->kl", Z, Z)
    assert np.allclose(found, np.concatenate([part.ravel() for part in expected]), atol=0.1)


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["dense", "csr", "factors"])
def test_records_outside_the_tangent_space_keep_sums_exact(form, rng):
    """Their projection is nearly 0, so that only the least size limits their weights."""
    A, B = rng.standard_normal((4000, D1)), rng.standard_normal((4000, D2))
    A, B = A - A @ U @ U.T, B - B @ V @ V.T
    y = np.full(4000, 1e9)
    expected = SUMS["tangent"](query(form, (A, B), y)).answer(1e-9)
    for order in (rng.permutation(4000), np.arange(4000)[::-1]):
        seen = SUMS["tangent"](query(form, (A[order], B[order]), y)).answer(1e-9)
        assert np.array_equal(seen, expected)


def test_a_mix_is_applied_to_contributions_and_not_to_residuals(rng):
    X, y = rng.standard_normal((300, P)), rng.standard_normal(300)
    tangent = query("mixed", X, y).tangent(U, S, V).total(1e9).answer(0.0)
    gradient = (MIX @ (X.T @ (X @ M.ravel() - y))).reshape(D1, D2)
    left = U.T @ gradient
    expected = np.concatenate([(gradient @ V).ravel(), (left - left @ V @ V.T).ravel()])
    assert np.allclose(tangent, expected, atol=1e-3 * np.abs(expected).max())
    products = query("mixed", X, y).products().total(1e9).answer(0.0)
    assert np.allclose(products, MIX @ (X.T @ y), atol=1e-3 * np.abs(products).max())
    for form in ("csr", "factors", "whitened"):
        data = factors(1, 5) if form == "factors" else X
        with pytest.raises(ValueError, match="dense rows"):
            query(form, data, y[: len(data[0])] if form == "factors" else y).mixed(MIX)
