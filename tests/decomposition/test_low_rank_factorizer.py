"""DPLowRankFactorizer: accuracy, streams, servers, local reports, and what is refused."""

import copy
import math
import pickle
import warnings
from functools import partial

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.decomposition import TruncatedSVD

from skdp import DPLowRankFactorizer, PrivacyLedger
from skdp.answer import Answer
from skdp.decomposition import LocalAggregator, LocalRowRandomizer, randomize_row
from skdp.exceptions import BudgetExceededError, PrivacyError, PrivacyWarning, UtilityWarning
from skdp.privacy import mu_from_epsilon_delta
from skdp.solvers.sketching import factorize
from skdp.testing import record_transcript
from tools.outcomes import refuses

# Most streams here are short, and noise: other tests cover their warnings.
pytestmark = pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")

MU = mu_from_epsilon_delta(1.0, 1e-6)


def low_rank(m, n, k, values=None, seed=0):
    rng = np.random.default_rng(seed)
    U, V = (np.linalg.qr(rng.standard_normal((side, k)))[0] for side in (m, n))
    return (U * (np.linspace(2e4, 1e4, k) if values is None else values)) @ V.T


def ratio(model, A):
    """Error over sqrt(k) (sqrt(m) + sqrt(n)) / mu."""
    m, n = A.shape
    reference = math.sqrt(model.n_components) * (math.sqrt(m) + math.sqrt(n)) / MU
    return np.linalg.norm(A - model.reconstruct()) / reference


modular_sum = partial(np.sum, axis=0)


# -- accuracy --------------------------------------------------------------------------------------


@pytest.mark.deep
@pytest.mark.parametrize(
    ("method", "size", "least", "most"),
    [
        ("two_sketch", (40, 160), 0.9, 1.35),
        ("two_sketch", (80, 80), 0.9, 1.35),  # v close to t does not explode
        ("two_sketch", (200, 200), 0.8, 1.2),
        ("three_sketch", (40, 160), 0.9, 1.25),
        ("dense", None, 0.6, 0.8),
    ],
)
def test_error_of_an_exact_rank(method, size, least, most):
    A = low_rank(400, 300, 10)
    model = DPLowRankFactorizer(10, method=method, sketch_size=size).fit(A)
    assert least < ratio(model, A) < most
    assert model.rank_ == 10
    np.testing.assert_allclose(
        model.left_singular_vectors_.T @ model.left_singular_vectors_, np.eye(10), atol=1e-9
    )
    np.testing.assert_allclose(model.components_ @ model.components_.T, np.eye(10), atol=1e-9)


@pytest.mark.filterwarnings("ignore:.*no noise:skdp.exceptions.PrivacyWarning")
def test_no_noise_is_truncated_svd():
    A = low_rank(80, 60, 6)
    expected = TruncatedSVD(3, algorithm="arpack", random_state=0).fit(A)
    model = DPLowRankFactorizer(3, epsilon=math.inf).fit(A)
    np.testing.assert_allclose(model.singular_values_, expected.singular_values_)
    dots = np.abs(np.sum(model.components_ * expected.components_, axis=1))
    np.testing.assert_allclose(dots, 1.0)
    sketched = DPLowRankFactorizer(6, epsilon=math.inf, method="two_sketch").fit(A)
    np.testing.assert_allclose(sketched.reconstruct(), A, atol=1e-6 * np.abs(A).max())
    core = DPLowRankFactorizer(6, epsilon=math.inf, method="three_sketch").fit(A)
    np.testing.assert_allclose(core.reconstruct(), A, atol=1e-6 * np.abs(A).max())
    for tiny in (1e-320, 1e-200):  # bounds in units of such entries are no floats
        model = DPLowRankFactorizer(1, epsilon=math.inf, privacy_unit="entry")
        np.testing.assert_allclose(model.fit(np.full((3, 2), tiny)).reconstruct(), tiny, rtol=0.01)


@pytest.mark.parametrize("blind", [0, 1])
def test_sketches_may_be_blind_to_a_mean(blind):
    sides = [np.array([[1.0], [-1.0 if side == blind else 1.0]]) for side in range(2)]
    noisy = [Answer(2 * np.ones((2, 1)), 0.1), Answer(2 * np.ones((1, 2)), 0.1)]
    assert factorize(noisy, sides, 1, np.ones((2, 1))).rank == 1


def test_no_mean_of_sketches_shows_beyond_the_bounds():
    noisy = [Answer(np.zeros(shape), 0.1) for shape in ((2, 1), (1, 2))]
    noisy.append(Answer(10 * np.ones((1, 2)), 3.0))  # clear from 5.5 on
    for most, rank in ((math.inf, 1), (6.0, 1), (5.0, 0)):
        sides = [np.ones((2, 1))] * 2
        assert factorize(noisy, sides, 1, np.ones((2, 1)), most).rank == rank


def test_the_released_rows_and_entries():
    A = low_rank(60, 40, 2)
    model = DPLowRankFactorizer(2)
    rows = model.fit_transform(A)
    np.testing.assert_array_equal(rows, model.left_singular_vectors_ * model.singular_values_)
    whole = model.reconstruct()
    np.testing.assert_allclose(model.reconstruct([3, 5], [1, 0]), whole[[3, 5], [1, 0]])
    np.testing.assert_allclose(model.reconstruct(rows=[7]), whole[[7]])
    np.testing.assert_allclose(model.reconstruct(columns=[7]), whole[:, [7]])
    assert np.linalg.norm(A - whole) < 0.1 * np.linalg.norm(A)
    assert np.linalg.norm(A - model.inverse_transform(model.transform(A))) < 0.1 * np.linalg.norm(A)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("method", "name", "bound", "most"), [
    ("dense", "all", 6.0, 0.4), ("two_sketch", "all", 6.0, 0.5), ("three_sketch", "all", 6.0, 0.5),
    ("dense", "one side", 3.0, 0.85), ("dense", "both", 3.0, 0.9), ("dense", "centred", 2.0, 0.5),
    ("two_sketch", "centred", 2.0, 0.6),
])  # fmt: skip
@pytest.mark.deep
def test_means_are_seen_where_no_singular_value_is(method, name, bound, most, turned, rng):
    """Their noise is that of one number, a row or a column. Without any nothing is lost by it."""
    row, column, k = rng.standard_normal((300, 1)), rng.standard_normal(200), 1 + (name == "both")
    A = {"all": np.ones((300, 200)), "one side": np.tile(column, (300, 1)), "both": row + column,
         "centred": 3 * row * column}[name]  # fmt: skip
    edge = bound * (math.sqrt(300) + math.sqrt(200)) / MU
    assert (np.linalg.norm(A, 2) < edge) == (name != "centred")
    A = A.T if turned else A
    with warnings.catch_warnings(action="error", category=UtilityWarning):
        model = DPLowRankFactorizer(k, method=method, unit_bound=bound).fit(A)
    assert model.rank_ == k
    assert np.linalg.norm(A - model.reconstruct()) < most * np.linalg.norm(A)


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["dense", "two_sketch", "three_sketch"])
def test_the_sum_of_rows_shows_their_mean_where_no_row_shows_anything(method, rng):
    A = np.tile(rng.standard_normal(20), (400, 1)) + 0.1 * rng.standard_normal((400, 20))
    shape, lost = {"matrix_shape": A.shape, "privacy_unit": "row", "adjacency": "zero_out"}, []
    shape |= {"method": method, "unit_bound": 6.0, "sensitivity_mode": "worst_case"}
    for epsilon in (1.0, 10.0, 30.0):
        model = DPLowRankFactorizer(1, epsilon=epsilon, **shape).partial_fit(A)
        released = model.release().releases_
        lost.append(np.linalg.norm(A - model.reconstruct()) / np.linalg.norm(A))
    assert lost[0] < 0.2 and max(lost[1:]) < 0.12
    # The more the rows may show, the less their sum takes.
    assert released[-1].name == "row_sum"
    assert released[0].noise_scale < released[-1].noise_scale
    other = DPLowRankFactorizer(1, method=method, unit_bound=0.25).fit(A)  # no sum is released
    assert np.linalg.norm(A - other.reconstruct()) < 0.5 * np.linalg.norm(A)


# -- streams ---------------------------------------------------------------------------------------

STREAM = {"matrix_shape": (60, 40), "privacy_unit": "entry", "unit_bound": (-3.0, 3.0)}


def test_memory_does_not_grow_and_one_release_is_all():
    model = DPLowRankFactorizer(2, sketch="sparse", method="two_sketch", **STREAM)
    sizes = []
    for _ in range(3):
        model.update([1, 2], [3, 4], [1.0, -1.0])
        sizes.append(sum(a._state.nbytes for a in model._state.running.group.accumulators.values()))
    assert len(set(sizes)) == 1
    model.release()
    assert sizes[0] == model.state_bytes_ == 8 * (60 * 32 + 40 * 60)
    for late in (lambda: model.update([1], [1], [1.0]), model.release,
                 lambda: model.partial_fit(np.ones((1, 40)))):  # fmt: skip
        refuses(PrivacyError, None, late)
    clone(model).update([1], [1], [1.0])


def test_a_running_state_is_not_copied():
    model = DPLowRankFactorizer(2, method="dense", **STREAM).update([0], [0], [1.0])
    for copier in (pickle.dumps, copy.copy, copy.deepcopy):
        refuses(PrivacyError, "two releases", copier, model)
    assert "_state" not in vars(clone(model))
    server = model.for_server()
    assert server._state.running is None and "noise" not in repr(vars(server))
    released = model.release()
    assert released._state.source is None  # the next stream draws another sketch
    assert "_state" not in server.__getstate__()  # the key of the sketch stays here
    copied = pickle.loads(pickle.dumps(released))
    np.testing.assert_array_equal(copied.left_singular_vectors_, released.left_singular_vectors_)


def test_rows_arrive_in_blocks():
    A = low_rank(60, 40, 2, values=[900.0, 500.0])
    params = {"privacy_unit": "row", "adjacency": "zero_out", "unit_bound": 250.0}
    model = DPLowRankFactorizer(2, matrix_shape=(60, 40), epsilon=60.0, **params)
    for block in (A[:25], sp.csr_array(A[25:26]), A[26:]):
        model.partial_fit(block)
    refuses(ValueError, "60 rows, and 60 were added", model.partial_fit, A[:1])
    model.release()
    assert np.linalg.norm(A - model.reconstruct()) < 0.9 * np.linalg.norm(A)
    model = DPLowRankFactorizer(2, matrix_shape=(60, 40), **params)
    refuses(ValueError, "must have 40 columns", model.partial_fit, A[:1, :3])
    refuses(ValueError, "0 were added", model.partial_fit, np.zeros((61, 40)))
    with pytest.raises(BudgetExceededError), PrivacyLedger(epsilon=0.5):
        model.partial_fit(A)
    assert vars(model).keys() == model.get_params().keys()  # nothing is half fitted
    for update in (lambda: model.update([0], [0], [1.0]), lambda: model.update_matrix(A)):
        refuses(ValueError, "use partial_fit", update)


def test_updates_beyond_the_bounds_count_as_the_bound(tmp_path):
    with record_transcript() as transcript:
        model = DPLowRankFactorizer(2, method="dense", **STREAM)
        model.update([0, 1, 2], [0, 1, 2], [1e9, -1e9, 1.5]).release()
    opening = transcript.openings[0]
    values = opening.exact * opening.step
    np.testing.assert_allclose(values[[0, 1, 2], [0, 1, 2]], [3.0, -3.0, 1.5], atol=1e-6)
    assert not transcript.faults
    twice = sp.csr_array((np.full(2, 2.0), np.zeros(2, int), np.array([0, 2, 2])), shape=(2, 3))
    sp.save_npz(tmp_path / "twice.npz", twice)  # one entry of 4 in two parts
    with record_transcript() as transcript:
        DPLowRankFactorizer(1, method="dense", privacy_unit="entry", unit_bound=(-3.0, 3.0)).fit(
            [tmp_path / "twice.npz"]
        )
    assert np.abs(transcript.openings[0].exact * transcript.openings[0].step).max() <= 3.0


@pytest.mark.parametrize(
    ("rows", "columns", "deltas", "message"),
    [
        ([60], [0], [1.0], "rows must lie"),
        ([0], [-1], [1.0], "columns must lie"),
        ([0.5], [0], [1.0], "rows must be integers"),
        (np.ma.masked_equal([1], 1), [0], [1.0], "none masked"),
        ([0], [0, 1], [1.0], "equally long"),
        ([0], [0], [np.nan], "NaN"),
    ],
)
def test_bad_updates(rows, columns, deltas, message):
    model = DPLowRankFactorizer(2, method="dense", **STREAM)
    refuses(ValueError, message, model.update, rows, columns, deltas)
    refuses(ValueError, "D must have the shape", model.update_matrix, np.ones((2, 2)))
    assert model._state.running is None  # nothing was paid


def test_a_stream_without_a_shape_has_no_methods():
    for name in ("update", "partial_fit", "update_matrix", "release"):
        assert not hasattr(DPLowRankFactorizer(), name)


# -- what a worst case costs ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gaussian", "srht", "sparse", "isometry"])
def test_worst_case_pays_the_spectral_norm(kind):
    model = DPLowRankFactorizer(
        2, method="two_sketch", sketch=kind, sensitivity_mode="worst_case", sketch_size=10
    ).fit(low_rank(90, 80, 2))
    assert [line.loss.kind for line in model.releases_] == ["gaussian", "gaussian"]
    assert model.privacy_spent_.mu == pytest.approx(MU, rel=1e-6)
    assert 1 < model.releases_[0].sensitivity < 6
    assert model.releases_[0].sensitivity >= math.sqrt(80 / 10) * 0.95


@pytest.mark.parametrize("mode", ["random", "oblivious", "worst_case"])
def test_the_kind_of_a_budget_is_known_before_a_fit(mode):
    """Else a search would add up random sketches as independent Gaussian noise."""
    model = DPLowRankFactorizer(
        1, method="two_sketch", sketch_size=4, sensitivity_mode=mode, privacy_unit="entry"
    )
    assert not model._offers_pure_dp()
    model.fit(np.ones((9, 8)))
    kind = model.privacy_spent_.losses[0].kind
    assert model._budget_kinds() == (kind,)
    whole = clone(model).set_params(method="auto")
    assert whole._offers_pure_dp() and set(whole._budget_kinds()) == {"pure", kind}


@pytest.mark.thorough
def test_a_ledger_adds_up_sketches():
    A = low_rank(60, 50, 2)
    with PrivacyLedger(2.0, 1e-6) as ledger:
        for _ in range(2):
            DPLowRankFactorizer(method="two_sketch", epsilon=0.8).fit(A)
        assert 0.8 < ledger.spent.epsilon <= 2.0
        assert "mean square" in ledger.report()


# -- servers ---------------------------------------------------------------------------------------

SERVERS = {"sensitivity_mode": "oblivious", "method": "two_sketch", "sketch_size": (40, 80)}


def server_of(k=2, *, sketch_seed=7, row_offset=0, n_honest_servers=None, **params):
    """A factorizer that shares its sketches with all others of the same seed."""
    part = {"row_offset": row_offset, "n_honest_servers": n_honest_servers}
    return DPLowRankFactorizer(k, **SERVERS | params).for_server(sketch_seed=sketch_seed, **part)


def parts_of(A, p):
    """Split a matrix into p summands."""
    weights = np.random.default_rng(0).random((p, *A.shape))
    return A * weights / weights.sum(axis=0)


@pytest.mark.thorough
def test_a_secure_sum_of_sixteen_servers_is_the_central_model():
    A, p = low_rank(200, 150, 4), 16
    new = partial(server_of, 4, matrix_shape=A.shape)

    def central():
        return new().update_matrix(A).release()

    def secure():
        servers = [new(n_honest_servers=p).update_matrix(part) for part in parts_of(A, p)]
        return new().merge_secure(servers, modular_sum).release()

    def independent():
        model = new()
        for part in parts_of(A, p):
            model.merge(new().update_matrix(part).state_message())
        return model.release()

    ways = (central, secure, independent)
    one, same, more = (np.sqrt(np.mean([ratio(f(), A) ** 2 for _ in range(3)])) for f in ways)
    assert same == pytest.approx(one, rel=0.05 + 0.1)  # 5%, and 6 sigma of three fits
    assert more / one == pytest.approx(math.sqrt(p), rel=0.15)


def test_a_secret_sketch_is_shared_inside_one_process():
    A = low_rank(100, 60, 2)
    first = DPLowRankFactorizer(2, matrix_shape=A.shape, **SERVERS).update_matrix(A / 2)
    second = first.for_server().update_matrix(A / 2)
    assert np.array_equal(
        first._state.running.maps[0].right.matrix, second._state.running.maps[0].right.matrix
    )
    noise = [
        model._state.running.group.accumulators["right_sketch"]._state for model in (first, second)
    ]
    assert not np.array_equal(*noise)  # the noise is its own
    draws = [model._state.running.session.draws for model in (first, second)]
    assert draws[0] == draws[1] > sum(part.size for part in noise[0])  # coins of sketches count
    model = first.merge(second).release()
    assert ratio(model, A) < 2.2
    assert second.privacy_spent_.epsilon <= 1.0
    refuses(PrivacyError, None, second.update, [0], [0], [1.0])


def test_states_that_do_not_match_are_refused():
    params = {"matrix_shape": (30, 50), "sketch_size": (8, 16)}

    def message(**other):
        return server_of(**params | other).update([0], [0], [1.0]).state_message()

    good = message()
    model = server_of(**params).merge(good)
    for other, what in (
        ({"sketch_seed": 8}, "digest"), ({"sketch_size": 9}, "digest"),
        ({"method": "dense"}, "method"),
        ({"matrix_shape": (31, 50)}, "shapes"), ({"matrix_shape": (30, 49)}, "digest"),
    ):  # fmt: skip
        refuses(ValueError, what, model.merge, message(**other))
    for bad in (good[:-1], good[:-40] + b"\0" + good[-39:], b"", b"x" * 100):
        refuses(ValueError, "damaged", model.merge, bad)
    gap = server_of(**params).merge(good).merge(message(row_offset=60))
    refuses(ValueError, "rows 30 to 59", gap.release)
    refuses(ValueError, "shapes", gap.merge, message(row_offset=60, matrix_shape=(20, 50)))
    assert gap.merge(message(row_offset=30)).release().left_singular_vectors_.shape == (90, 2)
    refuses(ValueError, "other sketches", server_of(**params, sketch_seed=8).merge(good).release)
    flat = server_of(**params, method="dense").merge(message(method="dense"))
    narrow = message(method="dense", row_offset=30, matrix_shape=(30, 49))
    refuses(ValueError, "shapes", flat.merge, narrow)


def test_a_share_of_the_noise_is_never_shown():
    model = server_of(matrix_shape=(30, 50), n_honest_servers=2).update([0], [0], [1.0])
    into = partial(server_of(matrix_shape=(30, 50)).merge, model)
    for show in (model.release, model.state_message, lambda: model.merge(b""), into):
        refuses(PrivacyError, "part of the noise", show)


# -- local reports ---------------------------------------------------------------------------------


@pytest.mark.thorough
def test_local_reports_show_what_rows_share(rng):
    V = np.linalg.qr(rng.standard_normal((6, 2)))[0]
    rows = rng.standard_normal((1500, 2)) * [1.0, 0.7] @ V.T
    reports = [randomize_row(x, clip_norm=2.0, epsilon=16.0, delta=1e-6) for x in rows]
    model = LocalAggregator(2).add(reports[0]).add(reports[1:])
    assert np.linalg.norm(model.components_ @ V) ** 2 > 1.8
    assert model.explained_variance_[0] == pytest.approx(1.0, abs=0.4)
    assert model.left_singular_vectors_.shape == (1500, 2)
    mu = mu_from_epsilon_delta(16.0, 1e-6)
    assert reports[0].noise_scale == pytest.approx(4.0 / mu, rel=1e-3)  # any two rows: 2 C
    assert reports[0].privacy_spent.adjacency == "replace"


def test_local_reports_of_a_sketch_pay_its_exact_norm():
    options = {"clip_norm": 1.0, "epsilon": 1.0, "delta": 1e-6}
    row = np.ones(40)
    whole = randomize_row(row, **options)
    part = randomize_row(row, sketch_size=10, sketch_seed=1, **options)
    assert part.values.shape == (10,)
    assert whole.noise_scale * mu_from_epsilon_delta(1.0, 1e-6) == pytest.approx(2.0, rel=1e-3)
    assert part.noise_scale == pytest.approx(2.0 * whole.noise_scale, rel=0.02)  # sqrt(40 / 10)
    assert randomize_row(sp.coo_array(row), **options).values.shape == (40,)
    for unlike in ({"sketch_seed": 2}, {"epsilon": 2.0}):
        other = randomize_row(row, **{"sketch_size": 10, "sketch_seed": 1, **options} | unlike)
        refuses(ValueError, "cannot be mixed", LocalAggregator(1).add(part).add, other)
    refuses(ValueError, "cannot be mixed", LocalAggregator(1).add, [whole, part])
    refuses(TypeError, "what randomize_row", LocalAggregator(1).add, [row])
    refuses(ValueError, "'n_components' must be an int", LocalAggregator, 0.5)
    refuses(ValueError, "NaN, and randomize_row takes", randomize_row, row * np.nan, **options)
    refuses(ValueError, "come together", randomize_row, row, sketch_size=10, **options)
    refuses(ValueError, "one row", randomize_row, np.ones((2, 3)), **options)
    for bad in (*({"clip_norm": norm} for norm in (0.0, math.inf, math.nan)),
                {"sketch_size": 0, "sketch_seed": 1},
                {"sketch_seed": -1, "sketch_size": 1}):  # fmt: skip
        refuses(ValueError, next(iter(bad)), randomize_row, row, **options | bad)
    refuses(ValueError, "masked", randomize_row, np.ma.masked_equal([1.0, 9.0], 9), **options)
    sketched = {"sketch_size": 10, "sketch_seed": 1, "clip_norm": 1.0, "delta": 1e-6}
    with pytest.warns(PrivacyWarning, match="no noise"):
        exact = [randomize_row(row, epsilon=math.inf, **sketched).values for _ in range(2)]
    assert np.array_equal(*exact)  # one public sketch
    with pytest.raises(ValueError, match="no report"):
        LocalAggregator(1).components_  # noqa: B018


@pytest.mark.filterwarnings("ignore::UserWarning")  # of seeds
def test_a_reporter_reports_each_row_by_itself():
    rows = np.random.default_rng(0).standard_normal((6, 8)) * 3
    reporter = LocalRowRandomizer(clip_norm=2.0, epsilon=3.0, random_state=1)
    found = reporter.fit_transform(rows)
    alone = [
        randomize_row(row, clip_norm=2.0, epsilon=3.0, delta=1e-6, random_state=1 + i)
        for i, row in enumerate(rows)
    ]
    assert np.array_equal(found, [report.values for report in alone])
    assert np.array_equal(found, reporter.transform(sp.csr_array(rows)))
    assert len({tuple(row) for row in reporter.transform(0 * rows)}) == 6  # the noise alone
    part = LocalRowRandomizer(sketch_size=3, sketch_seed=1).fit(rows)
    assert part.transform(rows).shape == (6, 3)
    assert list(part.get_feature_names_out())[-1] == "localrowrandomizer2"
    report = LocalRowRandomizer(epsilon=3.0).report(rows[0])
    assert (report.privacy_spent.epsilon, report.privacy_spent.adjacency) == (3.0, "replace")
    refuses(ValueError, "random_state", LocalRowRandomizer(random_state=-1).fit, rows)


def test_every_call_of_a_reporter_spends():
    rows = np.ones((3, 2))
    with PrivacyLedger(20.0, 1e-5) as ledger:
        reporter = LocalRowRandomizer(epsilon=1.0).fit(rows)
        assert ledger.entries == ()
        first, second = reporter.transform(rows), reporter.transform(rows)
    assert len(ledger.entries) == 6
    assert not np.array_equal(first, second)


def test_a_core_that_rounding_exceeds_says_why():
    model = DPLowRankFactorizer(
        2, method="three_sketch", sensitivity_mode="worst_case", epsilon=0.01
    )
    with pytest.raises(ValueError, match=r"core sketch truncates.*method='two_sketch'"):
        model.fit(np.zeros((300, 300)))


@pytest.mark.parametrize("max_releases", [1, 2])
def test_a_release_of_noise_is_said(max_releases):
    """As `fit` says it, of the zeros that were released."""
    options = {"matrix_shape": (30, 20), "privacy_unit": "entry",
               "sensitivity_mode": "oblivious"}  # fmt: skip
    model = DPLowRankFactorizer(2, max_releases=max_releases, **options)
    model.update([1], [2], [1.0])
    with pytest.warns(UtilityWarning, match="learnt nothing"):
        model.release()
    assert not model.singular_values_.any()
