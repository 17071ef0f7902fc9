"""DPTruncatedSVD: limits, utility, units, receipts, errors; what fits say of noise."""

import itertools
import math
from copy import copy
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_digits
from sklearn.decomposition import TruncatedSVD
from sklearn.preprocessing import normalize

from skdp import DPPCA, DPLowRankFactorizer, DPTruncatedSVD, PrivacyLedger, _choice
from skdp._choice import Entries, released_columns
from skdp.answer import Answer
from skdp.datasets import make_interactions, make_user_items
from skdp.decomposition._unit_fits import unit_route
from skdp.exceptions import PrivacyError, UtilityWarning
from skdp.privacy.accounting.losses import compose, delta_from_losses
from skdp.privacy.noise import integers
from skdp.queries.entries import MatrixUnit
from skdp.solvers.postprocess import user_level_mu
from skdp.testing import (
    fixed_noise,
    null_release,
    record_transcript,
    replay_answers,
    seeded_entropy,
    transcript_audit,
)
from tools.outcomes import fitted_attributes, messages_of, refuses

# Few rows, noise alone, seeds or no noise: warnings of fits are not the subject here.
pytestmark = [
    pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning"),
    pytest.mark.filterwarnings("ignore:.*(no noise|random_state):skdp.exceptions.PrivacyWarning"),
]

DIGITS = load_digits().data
X = DIGITS[:, 1:20]
ATTRIBUTES = ["components_", "singular_values_", "explained_variance_", "explained_variance_ratio_"]
ROUTES = ["auto", "arpack", "gram", "randomized", "power", "screened"]
ENTRY_UNITS = ["entry", "frobenius", "spectral"]
UNITS = ["row", "interaction", *ENTRY_UNITS]
PIXELS = {"unit_bound": (0.0, 16.0)}


def fit(data, n_components=2, **kwargs):
    """Fit with seeded noise (or none)."""
    return DPTruncatedSVD(n_components, **{"random_state": 0} | kwargs).fit(data)


def of_unit(unit, **bounds):
    """Options of a unit: those bounds that it reads."""
    read = {"row": ["clip_norm"], "entry": ["clip_norm", "unit_bound"], "edge": ["unit_bound"]}
    kept = read.get(unit, [])
    return {"privacy_unit": unit} | {key: bounds[key] for key in bounds if key in kept}


def exact(data, n_components=2, **kwargs):
    return fit(data, n_components, epsilon=math.inf, clip_norm=math.inf, **kwargs)


def share_of_best(svd, rows):
    best = TruncatedSVD(svd.n_components, algorithm="arpack", random_state=0).fit(rows)
    return np.sum((rows @ svd.components_.T) ** 2) / np.sum(best.singular_values_**2)


def assert_same(ours, theirs, tolerance=1e-6):
    for name in ATTRIBUTES:
        a, b = getattr(ours, name), getattr(theirs, name)
        assert np.allclose(a, b, rtol=tolerance, atol=tolerance), name


# -- without noise it is scikit-learn's --------------------------------------------------------


FLAT = np.random.default_rng(0).standard_normal((150, 40))


@pytest.mark.thorough
@pytest.mark.parametrize("rows", [FLAT, FLAT.T], ids=["tall", "wide"])
@pytest.mark.parametrize(
    "kwargs",
    [
        *({"algorithm": alg, "adjacency": a} for alg in ROUTES for a in ("add_remove", "replace")),
        *(
            {"algorithm": route, "delta": delta} | of_unit(unit, unit_bound=(-9.0, 9.0))
            for unit in (*ENTRY_UNITS, "entry_change")
            for route, delta in (("auto", 1e-6), ("alternating", 1e-6), ("deflation", 0.0))
        ),
        *(of_unit(unit) | {"algorithm": "one_shot"} for unit in ("frobenius", "entry_change")),
    ],
    ids=str,
)
@pytest.mark.parametrize("k", [1, 4])
def test_every_route_equals_scikit_learn(rows, kwargs, k):
    """Without gaps between the singular values, plain power steps would not get there."""
    ours, theirs = exact(rows, k, **kwargs), TruncatedSVD(k, algorithm="arpack").fit(rows)
    assert_same(ours, theirs)
    Z = theirs.transform(rows)
    assert np.allclose(ours.transform(rows), Z, atol=1e-6)
    assert np.allclose(ours.inverse_transform(Z), theirs.inverse_transform(Z), atol=1e-6)
    assert ours.n_samples_seen_ == len(rows)
    if "privacy_unit" in kwargs:
        assert np.allclose(ours.left_singular_vectors_, Z / theirs.singular_values_, atol=1e-6)
    else:
        assert ours.clip_norm_ == math.inf


def graph(n=60, seed=0):
    """Return a weighted graph with leading eigenvalues of both signs, as its upper triangle."""
    Q = np.linalg.qr(np.random.default_rng(seed).standard_normal((n, 4)))[0]
    A = (Q * [9.0, -7.0, 5.0, -3.0]) @ Q.T
    return np.triu(A, 1), np.triu(A, 1) + np.triu(A, 1).T


@pytest.mark.thorough("unit")
@pytest.mark.parametrize("unit", ["edge", "edge_change", "mixed"])
@pytest.mark.parametrize("container", [sp.csr_array, np.asarray, sp.csc_matrix])
def test_units_of_pairs_equal_scikit_learn_on_the_symmetric_matrix(container, unit):
    upper, A = graph()
    ours = exact(container(upper), 4, **of_unit(unit, unit_bound=(-9.0, 9.0)))
    theirs = TruncatedSVD(4, algorithm="arpack").fit(A)
    assert_same(ours, theirs)
    assert np.allclose(
        ours.left_singular_vectors_, theirs.transform(A) / theirs.singular_values_, atol=1e-6
    )


@pytest.mark.thorough
@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("floor", [1, 5, 12])
def test_interactions_equal_scikit_learn_on_normalised_rows(floor, delta):
    R = make_interactions(300, 60, 2500, 4, random_state=0)
    rows = sp.csr_array(normalised(R.toarray(), floor))
    ours = exact(R, 3, privacy_unit="interaction", unit_bound=floor, delta=delta)
    assert_same(ours, TruncatedSVD(3, algorithm="arpack").fit(rows))
    assert ours.user_level_mu_ == math.inf and ours.n_samples_seen_ == 300
    flips = exact(R, 3, privacy_unit="interaction", unit_bound=floor, algorithm="one_shot")
    assert_same(flips, TruncatedSVD(3, algorithm="arpack").fit(rows))


@pytest.mark.thorough
@pytest.mark.parametrize("container", [np.asarray, sp.csr_array, sp.csc_matrix])
@pytest.mark.parametrize("unit", UNITS)
def test_float32_is_kept_and_used_only_at_the_end(container, unit):
    """Digits are exact in both types, so the same noise gives the same result, rounded once."""
    kwargs = of_unit(unit, clip_norm=64.0, **PIXELS)
    small = fit(container(X.astype(np.float32)), **kwargs)
    large = fit(container(X), **kwargs)
    for name in [*ATTRIBUTES, "left_singular_vectors_"]:
        if hasattr(large, name):
            assert getattr(small, name).dtype == np.float32
            assert np.array_equal(getattr(small, name), getattr(large, name).astype(np.float32))
    assert small.transform(X.astype(np.float32)).dtype == np.float32


# -- utility -----------------------------------------------------------------------------------

CENTRED = normalize(DIGITS) - normalize(DIGITS).mean(axis=0)
CENTRED /= np.linalg.norm(CENTRED, axis=1).max()
GOALS = {"add_remove": (0.475, 0.534, 0.551, 0.5545), "replace": (0.40, 0.500, 0.541, 0.553)}


@pytest.mark.deep
@pytest.mark.parametrize(
    ("algorithm", "adjacency", "goals"),
    [
        *((algorithm, *goals) for algorithm in ("gram", "auto") for goals in GOALS.items()),
        ("power", "add_remove", (0.0, 0.52, 0.0, 0.0)),
    ],
)
def test_captured_share_of_digits(algorithm, adjacency, goals):
    """Rows about 0 of a known length: searches that have next to nothing leave it as it is."""
    split = {"subspace": 94, "spectrum": 3, "total_variance": 2, "clip_norm": 0.1, "center": 0.1}
    split |= {"center_search": 0.1} | ({"count": 1} if adjacency == "add_remove" else {})
    for epsilon, goal in zip((0.5, 1.0, 2.0, 5.0), goals, strict=True):
        kwargs = {"epsilon": epsilon, "clip_norm": 1.0, "adjacency": adjacency}
        kwargs |= {"algorithm": algorithm, "budget_split": split}
        fits = [fit(CENTRED, 5, random_state=seed, **kwargs) for seed in range(8)]
        kept = np.mean([np.sum((CENTRED @ svd.components_.T) ** 2) for svd in fits])
        assert kept / np.sum(CENTRED**2) >= goal, epsilon


@pytest.fixture(scope="module")
def wide():
    return sp.csr_array(normalize(make_interactions(5000, 3000, 120_000, 10, random_state=0)))


@pytest.mark.thorough
def test_screening_wins_on_wide_sparse_rows(wide):
    kwargs = {"clip_norm": 1.0, "delta": 1e-5}
    screened = fit(wide, 5, algorithm="screened", **kwargs)
    assert share_of_best(screened, wide) >= 0.78
    assert share_of_best(fit(wide, 5, algorithm="power", **kwargs), wide) <= 0.6
    assert np.array_equal(fit(wide, 5, **kwargs).components_, screened.components_)


# -- routes of the units that are not rows -----------------------------------------------------


def binary(m, n, k, seed=0):
    """A binary matrix of k factors that differ in size: a spectrum with a gap behind k."""
    rng = np.random.default_rng(seed)
    users, items = rng.integers(0, k, m), np.arange(n) % k
    chance = np.where(users[:, None] == items, np.linspace(0.5, 0.3, k)[users][:, None], 0.03)
    return (rng.random((m, n)) < chance) * 1.0


def normalised(R, floor=None):
    """Rows over the roots of their degrees, or of a floor: their mean by default."""
    degrees = R.sum(axis=1)
    return R / np.sqrt(np.maximum(degrees, floor or round(degrees.mean())))[:, None]


def groups(n, k):
    rng = np.random.default_rng(1)
    labels = np.arange(n) % k
    chance = np.where(labels[:, None] == labels, 0.6, 0.05)
    upper = np.triu(rng.random((n, n)) < chance, 1) * 1.0
    return upper + upper.T


TO_THE_TRUTH = [
    *(("interaction", route, {}) for route in ("auto", "gram", "screened", "power", "one_shot")),
    *(("interaction", route, {"adjacency": "replace"}) for route in ("gram", "power", "one_shot")),
    *(("entry", route, {}) for route in ("auto", "gram", "alternating", "one_shot")),
    ("entry", "gram", {"adjacency": "replace", "clip_norm": 12.0}),
    ("frobenius", "one_shot", {"unit_bound": 1e-2}),
    *(("edge", route, {}) for route in ("auto", "power", "one_shot")),
    *((unit, "alternating", {"unit_bound": 1e-2}) for unit in ("frobenius", "spectral")),
    ("spectral", "deflation", {"unit_bound": 1e-3, "delta": 0.0}),
]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize(("unit", "route", "options"), TO_THE_TRUTH, ids=str)
def test_every_route_goes_to_the_truth(unit, route, options):
    """At epsilon 1000."""
    data = groups(600, 4) if unit == "edge" else binary(1200, 200, 4)
    rows = normalised(data) if unit == "interaction" else data
    svd = fit(data, 4, privacy_unit=unit, algorithm=route, epsilon=1000.0, **options)
    assert share_of_best(svd, rows) >= 0.999
    values = np.linalg.svd(rows, compute_uv=False)[:4]
    assert np.allclose(svd.singular_values_, values, rtol=0.02)


@pytest.mark.deep
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0, 10.0])
def test_interactions_do_not_lose_to_popularity(epsilon):
    """Short histories with a heavy tail, where little but popularity can be read."""
    R = make_user_items(3000, 400, 12, 30, overlap=0.7, tail=0.65, random_state=0)
    rows = normalised(R.toarray())
    svd = fit(R, 8, privacy_unit="interaction", epsilon=epsilon)
    popular, counts = copy(svd), R.sum(axis=0)
    known = [counts, *np.eye(400)[np.argsort(-counts)[:7]]]  # their mean, and popular items
    popular.components_ = np.linalg.qr(np.transpose(known))[0].T
    assert share_of_best(svd, rows) >= share_of_best(popular, rows) - 0.05
    products = fit(R, 8, privacy_unit="interaction", epsilon=epsilon, algorithm="power")
    assert share_of_best(svd, rows) > share_of_best(products, rows)


@pytest.mark.deep
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_the_route_of_interactions_is_near_the_best(epsilon, rng):
    """Long histories of few items: the usual number of items is released, and sets the floor."""
    factors = rng.standard_normal((400, 4)) @ rng.standard_normal((4, 400))
    R = (rng.random((400, 400)) < 1 / (1 + np.exp(1.6 - 1.2 * factors))).astype(float)
    options = {"privacy_unit": "interaction", "epsilon": epsilon}

    def median(route):
        fits = [fit(R, 10, algorithm=route, random_state=seed, **options) for seed in range(11)]
        return np.median([share_of_best(svd, R) for svd in fits])

    found = {route: median(route) for route in ("auto", "gram", "screened", "one_shot")}
    assert found["auto"] > max(found.values()) - 0.03
    assert found["auto"] > {0.5: 0.7, 1.0: 0.87, 3.0: 0.97}[epsilon]


def test_the_floor_of_interactions_is_their_released_mean_number():
    R = make_interactions(300, 60, 9000, 4, random_state=0)
    options = {"privacy_unit": "interaction", "algorithm": "gram"}
    lines = fit(R, epsilon=50.0, **options).releases_
    names = ["squared_norm_sum", "gram", "squared_norm_sum", "item_counts"]
    assert [line.name for line in lines] == names and lines[0].sensitivity == pytest.approx(1 / 60)
    assert lines[3].sensitivity == pytest.approx(1.0)
    assert exact(R, 3, **options).user_level_mu_ == math.inf
    given = fit(R, unit_bound=7, **options)
    assert len(given.releases_) == 3
    assert given.releases_[0].sensitivity == pytest.approx(math.sqrt(13) / 7, rel=1e-3)


@pytest.mark.parametrize(("delta", "epsilon"), [(1e-6, 0.5), (0.0, 1.0)])
def test_few_users_have_their_budget_on_item_counts(rng, delta, epsilon):
    """The noise of counts needs no delta. More users, or a larger budget, show other directions."""
    R = np.asarray(rng.random((1400, 40)) < rng.beta(0.5, 3, 40), float)
    options = {"privacy_unit": "interaction", "delta": delta}
    few, many = (fit(R[:n], 2, epsilon=epsilon, **options) for n in (100, 1400))
    assert [line.name for line in few.releases_] == ["squared_norm_sum", "item_counts"]
    assert share_of_best(few, normalised(R[:100])) > 0.75
    kinds = [line.mechanism for line in (*few.releases_, *many.releases_)]
    assert kinds == ["laplace"] * 3 + (["gaussian"] * 6 if delta else ["randomised response"])
    assert all(
        (svd.privacy_spent_.epsilon, svd.privacy_spent_.delta) == (pytest.approx(epsilon), delta)
        for svd in (few, many)
    )
    more = fit(R[:100], 2, epsilon=20.0, **options)
    assert more.releases_[-1].name == "randomized_entries"
    with fixed_noise(0), null_release():  # the route follows from a released number
        first, second = (fit(data, epsilon=1.0, **options) for data in (R[:100], 1 - R[:100]))
    assert first.releases_ == second.releases_ and first.releases_[-1].name == "item_counts"


@pytest.mark.parametrize("unit", ["entry", "interaction"])
def test_facts_leave_a_budget_for_which_cells_are_few_enough_to_flip(monkeypatch, rng, unit):
    """Once they are paid no grant is refused: so many flips take all of the budget at least."""
    most = 80 * 80 / (1 + math.exp(1.4))
    X, names = (rng.random((80, 80)) < 0.3).astype(float), []
    for factor in (1.001, 2.0):
        for module in (_choice, integers):
            monkeypatch.setattr(module, "MAX_FLIPS", factor * most)
        svd = fit(X, 8, privacy_unit=unit, epsilon=1.4, delta=0.0)
        names.append(svd.releases_[-1].name)
    assert names[0] != names[1] == "randomized_entries"


@pytest.mark.parametrize(("algorithm", "route"), [("auto", "alternating"), ("one_shot",) * 2])
def test_rounding_of_graded_entries_counts_as_noise(algorithm, route):
    """It has a variance of .21 here, of which nothing may be left in the second component."""
    X = np.full((300, 200), 0.3)
    svd = fit(X, epsilon=2.0, privacy_unit="entry", algorithm=algorithm)
    assert svd.algorithm_reason_.startswith(route)
    assert "rounding_variance" in [line.name for line in svd.releases_[:2]]
    assert 70 < svd.singular_values_[0] < 77 and svd.singular_values_[1] == 0


@pytest.mark.deep
def test_graded_entries_get_noise_in_place_of_flips(rng):
    """Where their rounding to coins is worse, by a released number; pure, and up to the truth."""
    A = np.minimum(rng.gamma(0.3, size=(600, 4)) @ rng.gamma(0.3, size=(4, 150)), 1.0)
    shares = []
    for epsilon in (1.0, 3.0, 10.0, 30.0, 1000.0):
        svd = fit(A, 4, privacy_unit="entry", algorithm="one_shot", epsilon=epsilon)
        shares.append(share_of_best(svd, A))
        names = ["rounding_variance", "full_matrix" if epsilon > 3 else "randomized_entries"]
        assert [line.name for line in svd.releases_] == names
        assert (svd.privacy_spent_.epsilon, svd.privacy_spent_.delta) == (min(epsilon, 64.0), 0.0)
    assert all(low < high + 1e-4 for low, high in itertools.pairwise(shares))
    assert shares[2] > 0.997 and shares[-1] > 0.9999 and svd.explained_variance_ratio_.sum() <= 1.0
    assert np.allclose(svd.singular_values_, np.linalg.svd(A, compute_uv=False)[:4], rtol=0.01)
    coins = fit(binary(600, 150, 4), 4, privacy_unit="entry", algorithm="one_shot", epsilon=10.0)
    assert [line.name for line in coins.releases_] == ["rounding_variance", "randomized_entries"]


@pytest.mark.parametrize("low", [0.0, -1.0])
def test_small_weighted_graphs_are_known_as_epsilon_grows(rng, low):
    """No gap is needed, unlike for products; each pair has noise once, whatever its sign."""
    A = np.triu(rng.uniform(low, 1.0, (60, 60)), 1)
    A += A.T
    options = {"privacy_unit": "edge", "unit_bound": (low, 1.0)}
    fits = [fit(A, 2, epsilon=epsilon, **options) for epsilon in (10.0, 64.0, 1000.0)]
    shares = [share_of_best(svd, A) for svd in fits]
    assert shares[0] > 0.9 and min(shares[1:]) > 0.995
    for svd, epsilon in zip(fits[:2], (10.0, 64.0), strict=True):
        *_, line = svd.releases_
        assert (line.name, line.mechanism) == ("full_matrix", "laplace")
        assert line.noise_scale == pytest.approx(math.sqrt(2) / line.loss.value)
        assert line.loss.value == pytest.approx(epsilon * (1.0 if low else 0.98))


@pytest.mark.parametrize(("epsilon", "k", "least"), [(0.5, 3, 0.89), (1.5, 1, 0.995)])
def test_wide_tables_lose_nothing_to_their_column_sums(rng, epsilon, k, least):
    """They have the whole budget where little else can be seen; the rest are popular columns."""
    A = np.asarray(rng.random((100, 1000)) < rng.beta(0.5, 3, 1000), float)
    svd = fit(A, k, privacy_unit="entry", epsilon=epsilon)
    assert share_of_best(svd, A) > least
    variances = [np.linalg.norm(B - B.mean(axis=0)) ** 2 for B in (A @ svd.components_.T, A)]
    assert 0.5 < svd.explained_variance_ratio_.sum() / (variances[0] / variances[1]) < 2
    rows = svd.left_singular_vectors_ * svd.singular_values_  # the mean alone is known of them
    assert np.linalg.norm(A - rows @ svd.components_) < np.linalg.norm(A)


@pytest.mark.parametrize(("k", "epsilon", "least"), [(1, 6.0, 0.82), (3, 5.0, 0.7)])
def test_entries_with_more_scatter_than_noise_are_not_left_to_column_sums(k, epsilon, least, rng):
    """In sparse blocks all columns are alike, so that sums hold .77 and .54 of the best."""
    A = np.kron(np.eye(20), np.ones((12, 9))) * (rng.random((240, 180)) < 0.3)
    assert share_of_best(fit(A, k, privacy_unit="entry", epsilon=epsilon), A) > least


def test_signed_entries_of_uneven_rows_are_released_whole(rng):
    """A moment of rows that are cut at their median length shows .75 of the best."""
    filled = np.where(rng.random(120) < 0.1, 0.5, 0.04)[:, None]
    signs = np.outer(*(rng.choice([-1.0, 1.0], size) for size in (120, 45)))
    A = signs * (rng.random((120, 45)) < filled)
    svd = fit(A, 2, privacy_unit="entry", unit_bound=(-1, 1), epsilon=4.0)
    assert share_of_best(svd, A) > 0.85
    spent = [(line.name, line.loss.value) for line in svd.releases_]
    assert spent == [("squared_norm_sum", 0.16), ("full_matrix", pytest.approx(3.84))]
    ask = SimpleNamespace(square_sum=lambda share: Answer(np.array(7000.0), 1600.0))
    known = released_columns(ask, MatrixUnit("entry", low=-2.0, high=1.0), A.shape)
    assert known == Entries(0.0, 0.25)  # 5400 entries, in parts of the larger bound, less the noise


@pytest.mark.parametrize("unit", ["entry", "edge"])
def test_left_vectors_of_column_sums_that_are_noise_are_not_long(unit):
    for seed in range(4):
        options = {"privacy_unit": unit, "epsilon": 0.05, "random_state": seed}
        svd = DPTruncatedSVD(2, **options).fit(np.zeros((300, 300)))
        assert svd.algorithm_reason_.startswith("sums")
        assert np.linalg.norm(svd.left_singular_vectors_, axis=0).max() <= 1 + 1e-9


@pytest.mark.thorough
def test_routes_are_chosen_by_predicted_noise():
    def route(shape, known=None, **options):
        return unit_route(DPTruncatedSVD(4, **options), shape, known)[0]

    unit = {"privacy_unit": "interaction"}
    assert route((50_000, 150), **unit) == "screened"
    with PrivacyLedger(1.0):  # which knows the kind of a budget
        assert route((3000, 9000), **unit) == "screened"
    assert route((3000, 9000), **unit) == "auto"
    assert {route((3000, 500), epsilon=8.0, delta=d, **unit) for d in (1e-6, 0.0)} == {"one_shot"}
    few = unit | {"unit_bound": 3, "delta": 0.0}  # flips of few items in many do not show the mean
    assert [route((16_000, 32), epsilon=e, **few) for e in (0.5, 2.0)] == ["sums", "one_shot"]
    assert route((2000, 2000), Entries(0.0, 0.1), privacy_unit="entry") == "alternating"
    half = Entries(0.0, 0.5)
    for each in (4, 200):
        assert route((300, 200), half, privacy_unit="entry", epsilon=each) == "one_shot"
    large = {"privacy_unit": "entry", "epsilon": 10.0}  # no budget takes rounding away
    found = [route((1700, 1600), each, **large) for each in (None, half, Entries(0.2, 0.5))]
    assert found == ["auto", "one_shot", "alternating"]
    for shape, unit, other in (((300, 200), "entry", "screened"), ((200, 200), "edge", "one_shot")):
        found = [route(shape, Entries(0.0, p), privacy_unit=unit) for p in (0.08, 0.16)]
        assert found == ["sums", other]  # by the mean, which a first release tells
    alike = Entries(0.0196, 0.02)  # a constant scatters by its rounding alone
    found = [route((60, 40), each, privacy_unit="entry", epsilon=4) for each in (alike, half)]
    assert found == ["sums", "one_shot"]
    assert route((300, 200), Entries(0.0, 0.08, 4.0), privacy_unit="entry") == "screened"
    assert route((2000, 2000), Entries(0.0, 0.006, 12.0), privacy_unit="entry") == "screened"
    for square, name in ((0.001, "gram"), (0.3, "one_shot")):  # long rows have more noise in it
        known, signed = Entries(0.0, square), {"unit_bound": (-1, 1), "epsilon": 2.0}
        assert route((60, 400), known, privacy_unit="entry", **signed) == name
    signed = {"privacy_unit": "entry", "unit_bound": (-1, 1)}
    assert route((120, 45), Entries(0.0, 0.1), epsilon=2.0, adjacency="replace", **signed) == "gram"
    # Products do not tell what entries scatter by apart: ratings, and entries of both signs.
    rated = {"privacy_unit": "entry", "unit_bound": (0, 5)}
    for epsilon, name in ((30.0, "one_shot"), (1000.0, "screened")):
        assert route((2200, 1800), Entries(0.0065, 0.018), epsilon=epsilon, **rated) == name
    assert route((3000, 200), Entries(0.0, 0.067), epsilon=7.0, **signed) == "one_shot"
    unknown = {"privacy_unit": "entry_change"}  # entries scatter by a part of what may change
    for bound in (1.0, 50.0):
        found = [route((3000, 1400), unit_bound=bound, epsilon=e, **unknown) for e in (3.0, 10.0)]
        assert found == ["alternating", "one_shot"]
    shapes = ((500, 120), (5000, 4000))
    assert [route(each, privacy_unit="frobenius") for each in shapes] == ["one_shot", "alternating"]


@pytest.mark.thorough
@pytest.mark.parametrize("unit", ["entry", "frobenius", "interaction", "edge"])
def test_oversampling_is_honoured(unit):
    """Columns that are asked for are there from the first product."""
    route = "power" if unit in ("interaction", "edge") else "alternating"
    A = groups(40, 2)
    for extra, width in ((0, 2), (5, 7)):
        with record_transcript() as openings:
            fit(A, 2, privacy_unit=unit, algorithm=route, n_oversamples=extra)
        products = [opened.bound.shape for opened in openings if "product" in opened.bound.name]
        assert products[0][1] == width


@pytest.mark.thorough
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("seed", range(4))
def test_attributes_are_consistent(unit, seed):
    svd = fit(X, 3, privacy_unit=unit, epsilon=0.05, random_state=seed)
    assert np.allclose(svd.components_ @ svd.components_.T, np.eye(3), atol=1e-10)
    largest = np.argmax(np.abs(svd.components_), axis=1)
    assert (svd.components_[np.arange(3), largest] > 0).all()
    assert (np.diff(svd.singular_values_) <= 0).all()
    for name in ATTRIBUTES[1:]:
        assert np.isfinite(getattr(svd, name)).all() and (getattr(svd, name) >= 0).all()
    assert svd.explained_variance_ratio_.sum() <= 1 + 1e-12


# -- the implied guarantee for a user ----------------------------------------------------------


@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
@pytest.mark.parametrize("floor", [None, 1, 4, 30])
def test_user_level_mu(adjacency, floor):
    R = make_interactions(200, 40, 1500, 4, random_state=0)
    options = {"unit_bound": floor, "adjacency": adjacency, "algorithm": "gram"}
    svd = fit(R, privacy_unit="interaction", **options)
    totals = [line.sensitivity for line in svd.releases_ if line.name == "squared_norm_sum"]
    facts = svd.privacy_spent_.mu, 40, round(1 / totals[-1]), 0.01 * (len(totals) - 1)
    assert svd.user_level_mu_ == pytest.approx(user_level_mu(*facts))
    assert facts[2] == floor or (floor is None and len(totals) == 2)
    assert svd.user_level_mu_ >= svd.privacy_spent_.mu


def test_wide_dense_rows_are_screened_where_their_sums_show_one_sign(rng):
    rows = rng.standard_normal((2000, 150))
    for X, screened in ((rows, False), ((rows > 1.5) * 1.0, True)):
        names = [line.name for line in fit(X, clip_norm=20.0).releases_]
        assert ("tangent_product" in names) is screened
        assert names.count("row_sum") == 2 + screened
    for X, alone in ((rows[:200, :40], False), ((rows[:200, :40] > 1) * 1.0, True)):
        names = [line.name for line in fit(X).releases_]
        assert ("gram" in names) is not alone


@pytest.mark.deep
def test_dense_rows_far_from_0_are_measured_about_their_mean(rng):
    """Their distance from 0 costs no accuracy, also where a clip norm is given."""
    few = rng.standard_normal((2000, 3)) @ rng.standard_normal((3, 10))
    X = few + rng.standard_normal((2000, 10)) + 10
    best, unit = exact(X, 3), {"privacy_unit": "group"}
    given, large = {"clip_norm": 60.0}, {"epsilon": 1e4}
    for options, error in (({}, 0.1), (unit, 0.1), (given, 0.1), (large, 0.003)):
        groups = {"groups": np.arange(2000)} if "privacy_unit" in options else {}
        svd = DPTruncatedSVD(3, random_state=0, **options).fit(sp.csr_matrix(X), **groups)
        ratios = svd.explained_variance_ratio_, best.explained_variance_ratio_
        np.testing.assert_allclose(*ratios, atol=error)
        assert svd.clip_norm_ < 15 and share_of_best(svd, X) > 1 - error / 20
    steps = fit(X, 3, algorithm="power", epsilon=1e4)  # products with columns, from the mean on
    assert share_of_best(steps, X) > 0.9999 and steps.clip_norm_ < 15
    free = DPTruncatedSVD(3, algorithm="power", epsilon=math.inf).fit(X)
    np.testing.assert_allclose(free.singular_values_, best.singular_values_)


@pytest.mark.parametrize("algorithm", ["gram", "power"])
def test_dense_rows_far_from_0_keep_to_what_they_pay(algorithm, rng):
    """All attributes follow from releases; one more row changes no release beyond its bound."""
    X = np.vstack([np.full(6, 1e6), 9 + rng.standard_normal((400, 6))])
    for kind, solver in ((DPTruncatedSVD, "algorithm"), (DPPCA, "svd_solver")):
        model = kind(2, epsilon=3, **{solver: algorithm})
        with fixed_noise(1), record_transcript() as answers:
            seen = fitted_attributes(model.fit(X[1:]))
        with fixed_noise(1), replay_answers(answers):
            again = fitted_attributes(model.fit(3 - 9 * X))
        for name in ATTRIBUTES:
            assert np.array_equal(seen[name], again[name]), name
        assert seen["clip_norm_"] < 9
        report = transcript_audit(model, (X[1:], X), answers).check()
        assert 0.7 < report.realised_mu / report.claimed_mu <= 1


@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
@pytest.mark.parametrize("algorithm", ["screened", "power"])
def test_a_row_beside_the_subspace_moves_a_tangent_round_by_its_bound(algorithm, adjacency):
    """A quarter of it lies in what others show; what replaces it is its mirror image."""
    X, row = np.eye(3, 9)[[0, 0, 0, 1, 1, 2] * 99], 1e3 * np.eye(9)[0] + 1.7e3 * np.eye(9)[6]
    other = [row * (-1.0) ** (np.arange(9) == 6)] if adjacency == "replace" else []
    svd = DPTruncatedSVD(2, algorithm=algorithm, adjacency=adjacency, clip_norm=1.0, epsilon=300.0)
    with seeded_entropy(1):
        report = transcript_audit(svd, (np.vstack([X, *other]), np.vstack([X, row]))).check()
    last = [step for step in report.steps if step.name == "tangent_product"][-1]
    assert 0.95 < last.realised / last.claimed <= 1 + 1e-9


# -- receipts ----------------------------------------------------------------------------------

SHARES = {"subspace": 2, "spectrum": 1, "total_variance": 1, "count": 1, "clip_norm": 2}
SHARES["row_sum"] = 3


def test_budget_split():
    svd = fit(sp.csr_matrix(np.tile(X, 6)), algorithm="gram", budget_split=SHARES)
    total = svd.privacy_spent_.mu**2
    parts = {"row_sum": 0.3, "count": 0.1, "norm_centered_rank": 0.16, "squared_norm_sum": 0.1}
    for name, share in parts.items():
        spent = sum(entry.loss.value**2 for entry in svd.releases_ if entry.name == name)
        assert spent == pytest.approx(share * total), name


@pytest.mark.parametrize(
    ("shape", "density", "route", "kind"),
    [
        ((150, 100), 0.6, "one_shot", "pure"), ((60, 40), 0.3, "sums", "pure"),
        ((1500, 40), 0.1, "screened", "gaussian"), ((300, 500), 0.3, "alternating", "gaussian"),
        ((200, 200), 0.3, "one_shot", "pure"), ((200, 200), 0.05, "sums", "pure"),
    ],
)  # fmt: skip
def test_means_that_choose_a_route_are_paid_with_what_follows(shape, density, route, kind, rng):
    """They come first, without delta; what follows has all of the rest, and no more."""
    unit, paid = ("edge", [0.02]) if shape[0] == shape[1] else ("entry", [0.04])
    paid += [0.02] * ((unit, route) == ("entry", "one_shot"))  # which rounds entries
    svd = fit((rng.random(shape) < density) * 1.0, privacy_unit=unit)
    assert svd.algorithm_reason_.startswith(route)
    losses = [line.loss for line in svd.releases_]
    assert losses[: len(paid)] == [("pure", share) for share in paid]
    assert {loss.kind for loss in losses[len(paid) :]} == {kind}
    assert svd.privacy_spent_.losses == (("pure", 1.0), ("delta", 1e-6))
    if (unit, kind) == ("entry", "gaussian"):  # their rounding would have been paid, too
        losses[0] = losses[0]._replace(value=0.06)
    added, delta = sum(loss.value for loss in losses), delta_from_losses(compose(losses), 1.0)
    assert 0.99 < (added if kind == "pure" else delta / 1e-6) <= 1.0 + 1e-12


# -- refits ------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("first", ["row", "interaction", "entry"])
@pytest.mark.parametrize("second", ["row", "interaction", "entry"])
def test_a_refit_starts_from_nothing(first, second):
    """The receipt of the second fit does not cover what the first one released."""
    again = fit(X[:, :8], privacy_unit=first).set_params(privacy_unit=second).fit(X)
    once = fit(X, privacy_unit=second)
    assert set(vars(again)) == set(vars(once))
    assert np.array_equal(again.components_, once.components_)
    assert again.releases_ == once.releases_


# -- errors ---------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_shares_of_the_automatic_route(wide):
    """Which releases there are depends on the public shape; the error names them."""
    shares = {"subspace": 8, "spectrum": 1, "total_variance": 1, "count": 1, "clip_norm": 1}
    svd = fit(wide, 5, budget_split=shares, clip_norm=1.0)
    assert "gram" in {entry.name for entry in svd.releases_}
    more, words = shares | {"row_sum": 1}, r"keys .*'clip_norm', 'count', 'spectrum', 'subspace'"
    refuses(ValueError, words, fit, wide, 5, budget_split=more, clip_norm=1.0)
    assert exact(wide, 2, budget_split=shares, algorithm="screened").components_.any()


def test_a_small_clip_norm_of_entries_is_compared_with_clipped_rows(rng):
    """The total is that of whole rows: a component of clipped ones would seem to be chance."""
    svd = DPTruncatedSVD(1, privacy_unit="entry", clip_norm=1.0).fit(rng.random((3000, 10)) < 0.8)
    assert 40 < svd.singular_values_[0] < 3000**0.5


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("options", "ignored"),
    [
        ({"algorithm": "gram", "clip_norm": 20.0, "privacy_unit": "entry"}, {"n_iter": 3}),
        ({"algorithm": "gram", "privacy_unit": "interaction"}, {"n_oversamples": 2}),
        ({"algorithm": "one_shot", "privacy_unit": "entry"}, {"n_iter": 2}),
        ({"algorithm": "deflation", "privacy_unit": "frobenius", "delta": 0}, {"n_oversamples": 2}),
        ({"algorithm": "alternating", "privacy_unit": "entry"}, {"clip_norm": 20.0}),
    ],
)
def test_steps_that_a_named_route_does_not_take_are_warned_of(options, ignored):
    """And change nothing; routes that take them do not warn."""
    plain = fit(X, 2, **options)
    with pytest.warns(UserWarning, match=f"ignores {next(iter(ignored))}"):
        other = fit(X, 2, **options, **ignored)
    assert np.array_equal(plain.components_, other.components_)


# -- what is said of components below the noise ----------------------------------------------------

SAID = "exceed.? the noise level"


@pytest.mark.parametrize(
    "estimator",
    [
        DPTruncatedSVD(3, privacy_unit="interaction", epsilon=0.1),
        DPTruncatedSVD(3, privacy_unit="entry", epsilon=0.1),
        DPLowRankFactorizer(3, epsilon=0.1),
    ],
)
def test_components_below_the_noise_are_said(estimator):
    clicks = sp.random(300, 60, density=0.02, random_state=0, data_rvs=np.ones, format="csr")
    with pytest.warns(UtilityWarning, match=SAID):
        estimator.fit(clicks)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("unit", "algorithm"),
    [
        *(("interaction", name) for name in ("screened", "auto", "gram", "power", "one_shot")),
        *(("entry", name) for name in ("auto", "gram", "screened", "alternating", "one_shot")),
        *(("edge", name) for name in ("auto", "power", "one_shot")),
        ("row", "auto"),
    ],
)
def test_a_matrix_of_zeros_shows_nothing(unit, algorithm):
    """One fit in fifty may take its noise for a component: 7 of 100 are four deviations."""
    zeros, claims = sp.csr_matrix((60, 60 if unit == "edge" else 40)), 0
    given = {"privacy_unit": unit, "algorithm": algorithm}
    for epsilon in (0.1, 0.5, 1.0, 3.0):
        before, ratios = claims, []
        for seed in range(25):
            svd = DPTruncatedSVD(5, epsilon=epsilon, random_state=seed, **given)
            claims += not any("learnt nothing" in text for text in messages_of(svd.fit, zeros))
            ratios.append(svd.explained_variance_ratio_.sum())
        assert claims <= before + 4, epsilon
        assert np.mean(ratios) <= 0.05 + 2 * np.std(ratios) / 5, epsilon
    assert claims <= 6


@pytest.mark.deep
@pytest.mark.parametrize("unit", ["edge", "edge_change", "mixed"])
def test_a_graph_that_noise_hides_shows_the_mean_of_its_nodes(unit, rng):
    """Its leading direction is near the mean, which has hardly any noise."""
    graph = np.triu(rng.uniform(0.0, 0.3, (300, 300)), 1)
    graph += graph.T
    kept, values = [], np.linalg.eigvalsh(graph)
    for seed in range(5):
        svd = DPTruncatedSVD(2, privacy_unit=unit, epsilon=0.5, random_state=seed).fit(graph)
        assert svd.algorithm_reason_.startswith("one_shot" if unit == "edge" else "power")
        kept.append(np.linalg.norm(graph @ svd.components_[0]) ** 2 / values[-1] ** 2)
        assert svd.components_ @ svd.components_.T == pytest.approx(np.eye(2), abs=1e-6)
        assert svd.singular_values_[0] == pytest.approx(values[-1], rel=0.2)
    assert np.mean(kept) > 0.95
    assert not DPTruncatedSVD(2, privacy_unit=unit).fit(0 * graph).singular_values_.any()
    small = np.where(np.eye(20), 0.0, 0.7)
    for seed in range(3):  # with nearly all components, of which one across the mean is the mean
        svd = DPTruncatedSVD(19, privacy_unit="edge", epsilon=1.0, random_state=seed).fit(small)
        assert svd.components_ @ svd.components_.T == pytest.approx(np.eye(19), abs=1e-6)
    alternating = np.where(np.arange(300) % 2 == np.arange(300)[:, None] % 2, 0.0, 1.0)
    # Its leading eigenvalues are 150 and -150.
    svd = fit(alternating, 2, privacy_unit="edge", algorithm="one_shot", epsilon=60.0)
    assert np.linalg.norm(alternating @ svd.components_.T) ** 2 == pytest.approx(2 * 150**2)


@pytest.mark.thorough
def test_degrees_show_what_the_noise_of_flips_takes_from_the_leading_vector(rng):
    """The leading vector holds .66 of its value here, the degrees .78; neither is said to be 1."""
    size = rng.lognormal(0, 0.8, 400)
    graph = np.triu(rng.random((400, 400)) < np.minimum(0.06 * np.outer(size, size), 1.0), 1)
    graph = (graph + graph.T).astype(float)
    found = []
    for seed in range(6):
        svd = DPTruncatedSVD(1, privacy_unit="edge", epsilon=0.5, algorithm="one_shot",
                             random_state=seed).fit(graph)  # fmt: skip
        (u,), top = svd.components_, np.linalg.eigvalsh(graph)[-1]
        found.append((u @ graph @ u / top, svd.singular_values_[0] / top))
    held, said = np.mean(found, axis=0)
    assert held > 0.72 and abs(said - held) < 0.1


@pytest.mark.deep
@pytest.mark.parametrize("unit", ["entry", "interaction", "edge"])
def test_what_stands_above_the_noise_needs_no_word(unit):
    half = np.arange(200) < 100
    graph = (half[:, None] == half).astype(float)
    DPTruncatedSVD(2, privacy_unit=unit, epsilon=3.0).fit(sp.csr_matrix(graph))
    DPLowRankFactorizer(2, epsilon=3.0).fit(50 * graph)


# -- units of a contract: one entry changes by at most s -------------------------------------------

CONTRACTS = ["entry_change", "edge_change", "mixed"]


def spread_evenly(m, n, values, seed=0):
    """Singular vectors whose entries are spread evenly."""
    rng = np.random.default_rng(seed)
    U, V = (np.linalg.qr(rng.choice([-1.0, 1.0], (size, len(values))))[0] for size in (m, n))
    if m == n:
        U = V
    return (U * values) @ V.T, V


def overlap(svd, V):
    return float(np.sum((svd.components_ @ V) ** 2)) / len(svd.components_)


@pytest.mark.thorough
@pytest.mark.parametrize("unit", CONTRACTS)
def test_the_receipt_says_that_it_is_a_contract(unit):
    X = spread_evenly(30, 30, [300.0, 200.0])[0]
    svd = fit(X, 1, privacy_unit=unit, unit_bound=2.0)
    assert "the caller's contract" in str(svd.privacy_report())
    assert ("any symmetric change" in svd.privacy_spent_.statement()) == (unit == "mixed")
    assert svd.privacy_spent_.unit == unit
    scale = fit(X, 1, privacy_unit=unit, unit_bound=4.0).releases_[0].noise_scale
    assert scale == pytest.approx(2 * svd.releases_[0].noise_scale, rel=1e-6)


def test_a_ledger_does_not_add_up_contracts_of_different_size():
    X = spread_evenly(30, 20, [300.0])[0]
    same = {"privacy_unit": "entry_change", "algorithm": "alternating"}

    def two_fits():
        with PrivacyLedger(epsilon=3.0, delta=1e-5):
            DPTruncatedSVD(1, **same).fit(X)
            DPTruncatedSVD(1, unit_bound=2.0, **same).fit(X)

    refuses(PrivacyError, r"norm at most 2\.0", two_fits)


# -- pure epsilon ----------------------------------------------------------------------------------

PURE = [
    ("entry", {"unit_bound": (-1.0, 1.0), "algorithm": "deflation"}, "deflation"),
    ("entry_change", {"algorithm": "deflation"}, "deflation"), ("entry_change", {}, "one_shot"),
    ("edge", {"unit_bound": (-3.0, 3.0)}, "one_shot"), ("edge_change", {}, "deflation"),
    ("mixed", {"unit_bound": 0.1}, "deflation"), ("frobenius", {"unit_bound": 0.05}, "deflation"),
    ("spectral", {"unit_bound": 0.05}, "deflation"),
]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize(("unit", "options", "route"), PURE, ids=str)
def test_two_components_with_pure_epsilon(unit, options, route):
    square = unit in ("edge", "edge_change", "mixed")
    X, V = spread_evenly(300 if square else 400, 300, [400.0, 300.0])
    svd = fit(X, 2, privacy_unit=unit, delta=0.0, epsilon=8.0, **options)
    assert svd.algorithm_reason_.startswith(route)
    assert {entry.mechanism for entry in svd.releases_} == {"laplace"}
    assert svd.privacy_spent_.delta == 0.0 and svd.privacy_spent_.epsilon == 8.0
    assert math.fsum(entry.loss.value for entry in svd.releases_) == pytest.approx(8.0)
    assert overlap(svd, V) > 0.95
