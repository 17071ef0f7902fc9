"""Published algorithms: bounds that hold, receipts that say what is spent, and what they find."""

import math
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp

from skdp import DPLowRankFactorizer, DPPersonalizedRegressor, DPTruncatedSVD
from skdp.datasets import make_block_graph, make_interactions, make_user_tasks
from skdp.exceptions import PrivacyError
from skdp.papers import PersonalizedRegression, PowerDeflation, PowerMethod, SketchFactorizer
from skdp.papers._base import PublishedQuery, published_bound
from skdp.papers._jain_2021 import _blocks, _Equations, _pairs
from skdp.papers._upadhyay_2018 import published_factors
from skdp.privacy import mu_from_epsilon_delta
from skdp.queries.entries import EntryQuery, MatrixUnit
from skdp.queries.interactions import InteractionQuery
from skdp.testing import FitData, seeded_entropy, transcript_audit
from tools.outcomes import assert_refused, refuses
from tools.pairs import worst_case_pair

STEP = 1e-9
NO_NOISE = pytest.mark.filterwarnings("ignore:.*adds no noise")
N, K = 6, 2
RNG = np.random.default_rng(0)
MATRICES = {
    "orthonormal": np.linalg.qr(RNG.standard_normal((N, K)))[0],
    "one heavy row": np.vstack([[[0.9, 0.0]], 0.1 * RNG.standard_normal((N - 1, K))]),
    "column": RNG.standard_normal((N, 1)) / 3,
}
LITERAL = {
    "rows": lambda X: math.sqrt(2) * np.sqrt((X**2).sum(axis=1).max()),
    "prior": lambda X: math.sqrt(2 * X.shape[1]) * np.abs(X).max(),
    "width": lambda X: math.sqrt(2 * X.shape[1]),
    "independent": lambda X: math.sqrt(2),
    3.0: lambda X: math.sqrt(2 * 3.0 / len(X)),
}


def changes(ask, unit, step=STEP):
    """Largest change over all edges, and its claimed bound."""
    base, worst, claimed = RNG.uniform(0, 1, (N, N)), 0.0, 0.0
    for i in range(N):
        for j in range(i + 1, N):
            a, b = base.copy(), base.copy()
            a[i, j], b[i, j] = 0.0, 5.0
            first, second = ask(EntryQuery(a, unit)), ask(EntryQuery(sp.csr_array(b), unit))
            moved = (first.answer(step) - second.answer(step)).astype(np.float64)
            worst = max(worst, float(np.linalg.norm(moved)))
            claimed = first.bound.l2_steps(step)
    return worst, claimed


@pytest.mark.thorough
@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("rule", LITERAL)
def test_printed_bounds_are_literal_and_hold(name, rule):
    X, unit = MATRICES[name], MatrixUnit("edge", "add_remove", 0.0, 1.0)
    worst, claimed = changes(lambda q: PublishedQuery(q, rule).right(X), unit)
    own = EntryQuery(np.zeros((N, N)), unit).right(X).bound.l2
    assert published_bound(rule, X) == pytest.approx(LITERAL[rule](X))
    assert claimed * STEP == pytest.approx(max(own, LITERAL[rule](X)), rel=1e-6)
    assert worst <= claimed
    if published_bound(rule, X) <= own:
        assert worst > 0.95 * claimed  # the exact bound is attained


def test_length_is_bounded_and_the_bound_attained(rng):
    unit = MatrixUnit("edge", "add_remove", 0.0, 2.0)
    x = MATRICES["orthonormal"][:, 0]
    near = (np.zeros(N), rng.standard_normal(N), 1e9 * np.ones(N))
    far = [scale * x for scale in (1e16, 2e16, 3e16, 4e16)]  # floats lie farther apart than 2
    for removed, step in [*((each, STEP) for each in near), *((each, 1.0) for each in far)]:
        length = partial(PublishedQuery.length, x=x, removed=removed)
        worst, claimed = changes(lambda q, of=length: of(PublishedQuery(q, 1e-9)), unit, step)
        assert worst <= claimed
    first, second = np.argsort(-np.abs(x))[:2]
    edge = np.zeros((N, N))
    edge[first, second] = edge[second, first] = 2.0
    both = [
        PublishedQuery(EntryQuery(A, unit), 1e-9).length(x, np.zeros(N)) for A in (0 * edge, edge)
    ]
    moved = abs(float(both[0].answer(STEP)) - float(both[1].answer(STEP)))
    assert 0.95 < moved / both[0].bound.l2_steps(STEP) <= 1


def test_interactions_are_printed_too_and_entries_are_not():
    R = make_interactions(200, N, 400, 2, random_state=0)
    query = InteractionQuery(R, degree_floor=1, adjacency="add_remove")
    X = MATRICES["orthonormal"]
    own = query.right(X).bound.l2
    printed = PublishedQuery(query, "rows").right(X).bound.l2
    assert PublishedQuery(query, "rows", 9).right(X).bound.l2 == pytest.approx(3 * printed)
    assert printed == pytest.approx(math.sqrt(2) * own, rel=1e-6)  # the paper's sqrt(2)
    with pytest.raises(PrivacyError, match="symmetric"):
        PublishedQuery(EntryQuery(np.zeros((3, 3)), MatrixUnit("entry")), "rows")


# -- power methods ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def interactions():
    R = make_interactions(4000, 60, 60_000, 3, random_state=0)
    degrees = np.asarray(R.sum(axis=1)).ravel()
    rows = sp.diags_array(1 / np.sqrt(np.maximum(degrees, 1))) @ R
    return R, (rows.T @ rows).toarray()


def captured(V, gram, k):
    return np.trace(V @ gram @ V.T) / np.linalg.eigvalsh(gram)[-k:].sum()


@NO_NOISE
def test_without_noise_it_is_the_power_method(interactions):
    R, gram = interactions
    model = PowerMethod(3, epsilon=math.inf, n_iter=30).fit(R)
    assert captured(model.components_, gram, 3) == pytest.approx(1, abs=1e-4)
    np.testing.assert_allclose(model.components_ @ model.components_.T, np.eye(3), atol=1e-10)


def test_printed_constants_cost_what_the_receipt_says(interactions):
    R, _ = interactions
    for epsilon, delta in ((0.5, 1e-5), (4.0, 1e-9)):
        params = {"epsilon": epsilon, "delta": delta, "n_iter": 4}
        model = PowerMethod(3, calibration="printed", **params).fit(R)
        multiplier = math.sqrt(4 * 4 * math.log(1 / delta)) / epsilon
        for line in model.releases_:
            assert line.noise_scale / line.sensitivity == pytest.approx(multiplier, rel=1e-4)
        assert model.privacy_spent_.mu == pytest.approx(2 / multiplier)
        assert 0.4 < model.privacy_spent_.epsilon / epsilon < 0.9
        exact = PowerMethod(3, **params).fit(R)
        assert exact.privacy_spent_.epsilon == epsilon
        assert len(model.releases_) == len(exact.releases_) == 4


def test_constants_that_protect_less_than_they_say_are_refused(interactions):
    """The paper's condition allows epsilon 46 at delta 1e-5, where the true delta is 2e-4."""
    R, _ = interactions
    model = PowerMethod(2, epsilon=46.0, delta=1e-5, calibration="printed")
    refuses(ValueError, "protects less than it says", model.fit, R)
    assert not hasattr(model, "components_")
    PowerMethod(2, epsilon=26.0, delta=1e-5, calibration="printed").fit(R)


@pytest.mark.thorough
def test_our_estimator_needs_less_than_the_print(interactions):
    """Same budget: the print, exact accounting of it, and the package."""
    R, gram = interactions
    means = []
    for model in (
        PowerMethod(3, epsilon=0.5, sensitivity="prior", calibration="printed"),
        PowerMethod(3, epsilon=0.5, calibration="printed"),
        PowerMethod(3, epsilon=0.5),
        DPTruncatedSVD(3, epsilon=0.5, privacy_unit="interaction"),
    ):
        values = [captured(model.fit(R).components_, gram, 3) for _ in range(9)]
        means.append(float(np.mean(values)))
    assert means == sorted(means)
    assert means[-1] > 0.98 > means[1]


@pytest.fixture(scope="module")
def graph():
    A, labels = make_block_graph(400, 2, gap=120.0, mean_degree=150.0, random_state=0)
    return A.toarray(), labels


@NO_NOISE
def test_deflation_returns_the_rank_one_terms(graph):
    A, labels = graph
    values, vectors = np.linalg.eigh(A)
    model = PowerDeflation(2, epsilon=math.inf, coherence=400.0, n_iter=60).fit(A)
    assert not model.failed_
    np.testing.assert_allclose(model.eigenvalues_, values[::-1][:2], rtol=1e-3)
    assert abs(model.components_[0] @ vectors[:, -1]) > 0.999
    private = PowerDeflation(2, epsilon=8.0, coherence=30.0, n_iter=4).fit(A)
    assert not private.failed_
    right = np.mean((private.components_[1] > 0) == (labels == labels[0]))
    assert max(right, 1 - right) > 0.9
    assert private.privacy_spent_.epsilon == 8.0


@pytest.mark.parametrize("k", [1, 3])
def test_printed_deflation_wastes_what_was_measured(graph, k):
    """k = 1: the noise is about 3.5 times too large at epsilon 1; k = 3: far more."""
    model = PowerDeflation(k, calibration="printed", coherence=400.0).fit(graph[0])
    steps = [line for line in model.releases_ if line.name == "right_product"]
    exact = math.sqrt(4 * k) / mu_from_epsilon_delta(1.0, 1e-6)
    waste = steps[0].noise_scale / steps[0].sensitivity / exact
    assert 3.3 < waste < 3.7 if k == 1 else waste > 10
    assert model.privacy_spent_.epsilon < (0.3 if k == 1 else 0.1)
    length = 1 if k == 1 else 3
    assert [line.name for line in model.releases_].count("vector_norm") == length


@pytest.mark.parametrize(
    "model",
    [
        PowerMethod(sensitivity="prior", calibration="printed", n_iter=2),
        PowerMethod(sensitivity="independent", calibration="printed"),
        PowerDeflation(2, calibration="printed", coherence=1e6),
    ],
    ids=repr,
)
def test_printed_constants_keep_the_promise_of_the_receipt(model):
    report = transcript_audit(model, worst_case_pair(model)).check()
    assert 0 < report.realised_mu <= report.claimed_mu


def test_a_run_that_fails_spends_the_same(graph):
    """FAIL is public: an iterate beyond the coherence; and what is left is paid for."""
    model = PowerDeflation(3, coherence=1.5, epsilon=2.0, n_iter=3).fit(graph[0])
    assert model.failed_
    assert not model.components_.any() and not model.eigenvalues_.any()
    assert model.privacy_spent_.epsilon == 2.0
    assert any(line.name == "unused_budget" for line in model.releases_)


@pytest.mark.parametrize(
    ("model", "match", "rows"),
    [
        (PowerDeflation(), "square adjacency", 10),
        (PowerMethod(privacy_unit="edge"), "square adjacency", 10),
        (PowerMethod(500), "1 and n_features=", 400),
        (PowerDeflation(coherence=0.5), "coherence", 400),
        (SketchFactorizer(500), "1 and min", 400),
        (PersonalizedRegression(900), "n_features", 400),
        (PersonalizedRegression(2, max_rows=1), "max_rows", 400),
        (PersonalizedRegression(2, max_rows=3, n_rounds=1), "max_rows", 400),
        (PersonalizedRegression(2, target_bound=0.0), "target_bound", 400),
        (PersonalizedRegression(2, calibration="loose"), "calibration", 400),
        (PersonalizedRegression(2, adjacency="swap"), "adjacency", 400),
        (PersonalizedRegression(start="exponential", n_rounds=1), "has no rounds", 400),
        (PersonalizedRegression(2, calibration="printed", epsilon=200.0), "protects less", 400),
        (PowerDeflation(calibration="printed", epsilon=73.0), "protects less", 400),  # by values
    ],
)
def test_wrong_parameters_are_refused(graph, model, match, rows):
    A = graph[0][:rows]
    of_users = {"groups": np.arange(rows) // 8} if isinstance(model, PersonalizedRegression) else {}
    assert_refused(model, match, A, A[:, 0], **of_users)


# -- factors ---------------------------------------------------------------------------------------


def low_rank(m, n, k):
    rng = np.random.default_rng(0)
    U, V = (np.linalg.qr(rng.standard_normal((side, k)))[0] for side in (m, n))
    return (U * np.linspace(2e4, 1e4, k)) @ V.T


@NO_NOISE
@pytest.mark.parametrize("method", ["two_sketch", "three_sketch"])
def test_factors_are_exact_without_noise(method):
    A = low_rank(120, 90, 3)
    model = SketchFactorizer(3, method=method, epsilon=math.inf).fit(A)
    approximation = (model.left_singular_vectors_ * model.singular_values_) @ model.components_
    np.testing.assert_allclose(approximation, A, atol=1e-6 * np.abs(A).max())


@pytest.mark.filterwarnings("ignore::skdp.exceptions.PrivacyWarning")
def test_sketches_are_drawn_once_however_large_epsilon_is():
    assert SketchFactorizer(2, epsilon=1000.0).fit(low_rank(40, 30, 2)).privacy_spent_.epsilon < 64


def test_printed_core_solves_its_least_squares(rng):
    """min over rank k of |C X R - F| is C [C'F R']_k R for orthonormal C and R: no better X."""
    Y, Z, S = (rng.standard_normal(shape) for shape in ((40, 6), (20, 30), (40, 20)))
    left, values, right = published_factors([Y, Z], S, None, 3)
    best = np.linalg.norm(Z - S.T @ (left * values) @ right)
    Q = np.linalg.qr(Y)[0]
    for _ in range(30):
        X = rng.standard_normal((6, 3)) @ rng.standard_normal((3, 30)) / 3
        nearby = Q.T @ (left * values) @ right + 0.01 * X
        U, s, Vt = np.linalg.svd(nearby, full_matrices=False)
        other = (U[:, :3] * s[:3]) @ Vt[:3]
        assert np.linalg.norm(Z - S.T @ Q @ other) >= best


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
@pytest.mark.thorough
def test_factors_beside_ours():
    """Same sizes, same noise: the print costs more, most for noise alone where v is near t."""
    A = low_rank(300, 240, 5)

    def error(model):
        model.fit(A)
        return np.linalg.norm(
            A - (model.left_singular_vectors_ * model.singular_values_) @ model.components_
        )

    def median(model):
        return float(np.median([error(model) for _ in range(5)]))

    ours = DPLowRankFactorizer(5, method="two_sketch", sketch_size=(20, 80))
    printed = median(SketchFactorizer(5))
    assert median(ours) < printed < 2 * median(ours)
    assert printed < median(SketchFactorizer(5, method="three_sketch"))
    narrow = median(SketchFactorizer(20, alpha=0.9))  # 22 and 24 columns; A has rank 5
    ours.set_params(n_components=20, sketch_size=(22, 24))
    assert narrow > 3 * median(ours)
    spent = SketchFactorizer(5).fit(A).privacy_spent_
    assert spent.epsilon == 1.0 and spent.mu is None  # a random sketch is part of the noise


# -- personalised models ---------------------------------------------------------------------------


def users_of(n, d=8, m=8, seed=0, k=2):
    """Users with heads in a subspace of k dimensions; rows, targets, users, and the subspace."""
    options = {"rows_per_user": m, "noise_sd": 0.3, "coef": True, "random_state": seed}
    *data, heads = make_user_tasks(n, d, k, **options)
    return *data, np.linalg.svd(heads, full_matrices=False)[2][:k].T


def missed(model, U):
    return float(np.linalg.norm(U - model.components_.T @ (model.components_ @ U), 2))


@pytest.mark.thorough
@NO_NOISE
@pytest.mark.parametrize(("n_rounds", "limit"), [(0, 0.08), (2, 0.05)])
def test_personal_subspace_without_noise(n_rounds, limit):
    X, y, groups, U = users_of(9000, m=16)
    model = PersonalizedRegression(
        2, epsilon=math.inf, max_rows=16, target_bound=5.0, product_bound=30.0, n_rounds=n_rounds
    )
    assert missed(model.fit(X, y, groups), U) < limit


def test_targets_are_cut_as_printed(rng):
    """One by one, before they are multiplied: what a user adds is not only scaled down."""
    X, Y = rng.standard_normal((6, 8, 3)), 10 * rng.standard_normal((6, 8, 2))
    Y[:, :, 1] = 0  # the block of the user
    equations = _Equations(np.eye(3)[:, :2], 0, 2, zeta=2.0, eta=1e3)
    for added in (lambda batch: _pairs(batch, 8, 2.0), equations.matrix, equations.vector):
        of = [
            added(SimpleNamespace(X=X, Y=T, x_exponent=np.zeros(6, int)))
            for T in (Y, np.clip(Y, -2.0, 2.0))
        ]
        np.testing.assert_array_equal(*of)


def test_a_block_follows_from_a_label_whatever_the_others_are():
    found = [_blocks(np.array(users), 4, 77)[:9] for users in (range(9), [*range(9), 9.5])]
    np.testing.assert_array_equal(*found)


def test_printed_sensitivities_of_personal_models():
    """m zeta^2 for pairs, m eta^2/2 and m eta zeta/2 for the equations; half of each add_remove."""
    X, y, groups, _ = users_of(50)
    m, zeta, eta = 8, 2.0, 3.0
    printed = {"pairs": m * zeta**2, "matrix": m * eta**2 / 2, "vector": m * eta * zeta / 2}
    for adjacency, factor in (("replace", 1.0), ("add_remove", 0.5)):
        model = PersonalizedRegression(
            2, max_rows=m, target_bound=zeta, product_bound=eta, n_rounds=2, adjacency=adjacency
        ).fit(X, y, groups)
        assert [line.name for line in model.releases_] == ["pairs", *["matrix", "vector"] * 2]
        for line in model.releases_:
            assert line.sensitivity == pytest.approx(factor * printed[line.name], rel=1e-6)
        assert model.privacy_spent_.unit == "group"
        assert "pairs of items or rows" in str(model.privacy_report())
        spent = math.fsum(line.loss.value**2 for line in model.releases_)
        assert spent == pytest.approx(mu_from_epsilon_delta(1.0, 1e-6) ** 2)


def test_printed_constants_of_personal_models_spend_less_than_they_say():
    X, y, groups, _ = users_of(50)
    for n_rounds, log in ((0, 8), (2, 16)):
        model = PersonalizedRegression(2, max_rows=8, n_rounds=n_rounds, calibration="printed")
        model.fit(X, y, groups)
        multiplier = math.sqrt(log * math.log(1e6))
        for line in model.releases_:
            assert line.noise_scale == pytest.approx(multiplier * line.sensitivity, rel=1e-6)
        assert model.privacy_spent_.epsilon < 1.0


def pair_of_users(data, user, other, adjacency):
    """Add a user to data, before all others; the neighbour has none, or another one."""
    X, y, groups = data

    def with_one(rows, targets):
        codes = np.append(groups, [-1] * len(rows))
        return FitData(np.vstack([X, rows]), np.append(y, targets), {"groups": codes})

    first, second = (with_one(*each) for each in (user, other))
    return first, second if adjacency == "replace" else FitData(X, y, {"groups": groups})


@pytest.mark.parametrize("adjacency", ["replace", "add_remove"])
def test_worst_users_of_the_printed_start_attain_the_bound(adjacency, rng):
    """One user with equal rows and largest targets; another with targets of both signs."""
    data = rng.standard_normal((20, 3)), rng.standard_normal(20), np.repeat(np.arange(5), 4)
    rows = np.tile([1.0, 0.0, 0.0], (2, 1))
    pair = pair_of_users(data, (rows, [9.0, 9.0]), (rows, [9.0, -9.0]), adjacency)
    model = PersonalizedRegression(1, max_rows=2, adjacency=adjacency)
    report = transcript_audit(model, pair).check()
    assert 0.97 <= report.realised_mu / report.claimed_mu <= 1 + 1e-9


@pytest.mark.thorough
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_adversarial_users_stay_within_the_published_bounds(adjacency, rng):
    """Users of any size and number of rows, in any block: what they add is cut to the bound."""
    data = users_of(20, d=3, m=4, seed=3)[:3]
    model = PersonalizedRegression(1, max_rows=8, n_rounds=2, adjacency=adjacency, epsilon=4.0)
    for i in range(12):
        rows = rng.standard_normal((3 * i + 1, 3)) * 10.0 ** rng.uniform(-6, 6)
        targets = rng.standard_normal(len(rows)) * 10.0 ** rng.uniform(-6, 6)
        pair = pair_of_users(data, (rows, targets), (rows[::-1, ::-1], -targets), adjacency)
        transcript_audit(model, pair).check()


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_order_of_exponential_mechanism_and_votes():
    """d=3, k=1: the choice with the scale-free score learns; Gaussian votes learn faster."""
    errors = {}
    with seeded_entropy(5):
        for name in ("subspace", "add_remove", "replace"):
            found = []
            for seed in range(12):
                X, y, groups, U = users_of(300, d=3, seed=seed, k=1)
                model = PersonalizedRegression(1, start="exponential", delta=0.0, adjacency=name)
                if name == "subspace":
                    split = {"subspace": 0.9, "targets": 0.098, "columns": 0.001, "global": 0.001}
                    model = DPPersonalizedRegressor(
                        1, whiten=False, head_selection="subspace", fit_intercept=False,
                        target_bounds=(-9, 9), budget_split=split,
                    )  # fmt: skip
                u = model.fit(X, y, groups=groups).components_[0]
                found.append(np.linalg.norm(U[:, 0] - u * (u @ U[:, 0])))
            errors[name] = np.mean(found)
    assert errors["subspace"] < errors["add_remove"] < errors["replace"] * 1.5
    assert errors["add_remove"] < 0.15 < 0.78  # random: .78
    assert model.privacy_spent_.delta == 0


def test_public_candidates_are_chosen_among():
    X, y, groups, _ = users_of(100, d=5)
    chosen = PersonalizedRegression(2, start="exponential", candidates=np.eye(5)[None, :, :2])
    assert np.allclose(np.abs(chosen.fit(X, y, groups).components_), np.eye(5)[:2])
    for given in (None, np.ones((3, 4, 2)), np.full((3, 5, 2), np.nan)):
        with pytest.raises(ValueError, match="'candidates'"):
            chosen.set_params(candidates=given).fit(X, y, groups)


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_fewer_users_do_for_our_estimator():
    """The paper's table asks for a hundred times as many; single fits, .05 against .3 to 1."""
    X, y, groups, U = users_of(3000, seed=5)
    ours = DPPersonalizedRegressor(2, epsilon=1.0).fit(X, y, groups=groups)
    theirs = PersonalizedRegression(2, max_rows=8, target_bound=3.5, calibration="printed")
    basis = np.linalg.qr(ours.components_.T)[0]
    near = float(np.linalg.norm(U - basis @ (basis.T @ U), 2))
    assert near < 0.5 * missed(theirs.fit(X, y, groups), U)


@pytest.mark.parametrize(
    "groups", [np.ma.masked_less(np.arange(40) // 8, 1), [None, *range(39)], np.arange(39) // 8]
)
def test_users_of_each_row_are_known(groups):
    """What is under a mask, or missing, would make one person several."""
    X = np.random.default_rng(0).standard_normal((40, 4))
    assert_refused(PersonalizedRegression(1), "group", X, X[:, 0], groups=groups)
