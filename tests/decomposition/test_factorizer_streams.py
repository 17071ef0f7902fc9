"""DPLowRankFactorizer with many releases: limits, windows, audits, checkpoints, misuse."""

import math
import os
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import numpy as np
import pytest
import scipy.sparse as sp

from skdp import DPIncrementalPCA, DPLowRankFactorizer, PrivacyLedger, testing
from skdp.decomposition import _factorizer_state
from skdp.exceptions import BudgetExceededError, PrivacyError, PrivacyWarning
from skdp.privacy.gate.session import Accumulator
from skdp.privacy.streams.checkpoints import StreamGroup
from skdp.privacy.streams.continual import Stream
from skdp.privacy.streams.sketches import SketchSource
from tools.outcomes import difference, fitted_attributes, refuses

# Most streams here are short, and noise: other tests cover their warnings.
pytestmark = pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
NOT_PRIVATE = pytest.mark.filterwarnings(
    "ignore:.*(no noise|random_state):skdp.exceptions.PrivacyWarning"
)

M, N, T = 12, 9, 8
RNG = np.random.default_rng(0)
STEPS = [RNG.standard_normal((M, 2)) @ RNG.standard_normal((2, N)) for _ in range(T)]
WAYS = {
    "dense sqrt": {},
    "dense tree": {"mechanism": "tree"},
    "dense window": {"window": 3},
    "isometry": {"method": "two_sketch", "sensitivity_mode": "worst_case", "sketch": "isometry",
                 "sketch_size": (9, 12)},
    "gaussian": {"method": "two_sketch", "sensitivity_mode": "oblivious", "sketch_size": (8, 9)},
    "three": {"method": "three_sketch", "sensitivity_mode": "worst_case", "sketch_size": (8, 9),
              "mechanism": "tree"},
}  # fmt: skip


def new(n_components=2, **params):
    return DPLowRankFactorizer(
        n_components, **({"matrix_shape": (M, N), "max_releases": T} | params)
    )


def run(steps, **params):
    model = new(**params)
    for step in steps:
        model.update_matrix(step)
        model.release()
    return model


@NOT_PRIVATE
@pytest.mark.thorough
@pytest.mark.parametrize("way", ["dense sqrt", "dense tree", "dense window", "isometry"])
def test_without_noise_a_release_is_the_best_factorisation(way):
    model = new(9, epsilon=math.inf, **WAYS[way])
    for t, step in enumerate(STEPS, 1):
        model.update_matrix(step / 4).update_matrix(sp.csr_array(step / 4))
        i, j = np.indices((M, N)).reshape(2, -1)
        model.update(i, j, step.ravel() / 2)
        model.release()
        window = WAYS[way].get("window") or T
        exact = sum(STEPS[max(0, t - window) : t])
        if way == "isometry":  # a sketch of all columns finds all of the matrix
            assert np.linalg.norm(model.reconstruct() - exact) < 0.3 * np.linalg.norm(exact)
        else:
            assert np.allclose(model.reconstruct(), exact, atol=1e-8)
        assert model.n_stream_releases_ == t


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
def test_a_large_budget_finds_the_matrix(way):
    steps = [50.0 * STEPS[0]] * T
    with testing.seeded_entropy(0):
        model = run(steps, epsilon=20.0, **WAYS[way])
    exact = sum(steps[-WAYS[way].get("window", T) :])
    assert np.linalg.norm(model.reconstruct() - exact) < 0.1 * np.linalg.norm(exact)


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
def test_one_payment_for_all_releases(way):
    with testing.record_transcript() as transcript:
        model = run(STEPS, **WAYS[way])
    assert not transcript.faults
    assert len(model.releases_) == {"isometry": 2, "gaussian": 2, "three": 3}.get(way, 1)
    assert model.privacy_spent_.epsilon <= 1.0
    assert all("8 releases" in line.mechanism for line in model.releases_)
    refuses(PrivacyError, "released its state", model.update_matrix, STEPS[0])
    refuses(PrivacyError, "released its state", model.release)


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["dense sqrt", "dense tree", "dense window", "isometry"])
def test_audit_of_a_unit_that_comes_at_many_times(way, monkeypatch):
    place = np.zeros((M, N))
    place[2, 3] = 1.0
    weights = np.r_[0.97, np.full(T - 1, 0.03 / (T - 1))] * (1 - 1e-9)
    pair = [np.zeros((M, N))] * T, [w * place for w in weights]
    if way == "isometry":  # the same sketch for both: those that are known have exact norms
        draw = SketchSource.of
        monkeypatch.setattr(SketchSource, "of", lambda session, _seed=None: draw(session, 5))
    report = testing.transcript_audit(lambda steps: run(steps, **WAYS[way]), pair).check()
    ratio = report.realised_mu / report.claimed_mu
    assert ratio <= 1
    assert ratio > (0.95 if way != "isometry" else 0.6)  # this place is not the sketch's worst


@pytest.mark.parametrize("way", ["dense sqrt", "dense window", "isometry"])
def test_only_releases_are_visible(way):
    seen = []
    for factor in (1.0, 1e9, 0.0):
        with testing.fixed_noise(1), testing.null_release(run=True):
            steps = [factor * step for step in STEPS]
            seen.append(fitted_attributes(run(steps, **WAYS[way])))
    assert difference(seen[0], seen[1]) is difference(seen[0], seen[2]) is None


@pytest.mark.parametrize("adjacency", ["zero_out", "replace"])
def test_rows_that_come_once(adjacency):
    rows = 0.1 * STEPS[0]

    def fit(first):
        model = new(privacy_unit="row", adjacency=adjacency, max_releases=3)
        model.partial_fit(np.vstack([first, rows[1:4]])).release()
        model.partial_fit(rows[4:8]).release()
        model.partial_fit(rows[8:]).release()
        return model

    spike = 1e15 * np.eye(N)[:1]
    other = -spike if adjacency == "replace" else 0 * spike
    report = testing.transcript_audit(fit, (spike, other)).check()
    assert 0.95 < report.realised_mu / report.claimed_mu <= 1


@NOT_PRIVATE
@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
def test_goes_on_from_a_checkpoint(way, tmp_path):
    whole = run(STEPS, random_state=3, **WAYS[way])
    path = tmp_path / "stream"
    model = new(random_state=3, **WAYS[way]).update_matrix(STEPS[0])
    model.checkpoint(path)
    model.release()
    assert model.n_committed_calls() == 2
    for step in STEPS[1:]:
        model.update_matrix(step)
        model._drop_stream()
        model = DPLowRankFactorizer.restore(path)
        before = fitted_attributes(model)
        model.release()
        model.public_copy()
        assert difference(before, fitted_attributes(model))
    kept = {k: v for k, v in fitted_attributes(model).items() if not k.startswith("_")}
    expected = fitted_attributes(whole)
    for name, value in kept.items():
        assert difference(value, expected[name]) is None, name


def test_rows_seen_survive_a_checkpoint(tmp_path):
    model = new(privacy_unit="row", adjacency="zero_out").partial_fit(STEPS[0][:5])
    refuses(AttributeError, "not fitted", model.transform, STEPS[0])
    model.checkpoint(tmp_path / "stream")
    model.partial_fit(STEPS[0][5:7])
    model._drop_stream()
    with PrivacyLedger(3.0, 1e-5) as ledger:
        model = DPLowRankFactorizer.restore(tmp_path / "stream")
        assert len(ledger.entries) == 1
    refuses(ValueError, "7 were added", model.partial_fit, STEPS[0])
    refuses(ValueError, "a stream is running", model.fit, STEPS[0])
    model.partial_fit(STEPS[0][7:]).release()


def test_a_restored_stream_says_again_that_it_is_seeded(tmp_path):
    with pytest.warns(PrivacyWarning, match="random_state"):
        model = new(random_state=0).update_matrix(STEPS[0])
    model.checkpoint(tmp_path / "stream")
    model._drop_stream()
    with pytest.warns(PrivacyWarning, match="random_state"):
        DPLowRankFactorizer.restore(tmp_path / "stream")._drop_stream()


def test_secrets_stay_and_released_models_go():
    model = run(STEPS[:3])
    refuses(PrivacyError, "copied or pickled", pickle.dumps, model)
    public = pickle.loads(pickle.dumps(model.public_copy()))
    assert np.array_equal(public.left_singular_vectors_, model.left_singular_vectors_)
    assert not {"_private", "_state", "_acknowledged"} & set(vars(public))
    refuses(PrivacyError, None, public.update_matrix, STEPS[0])
    assert pickle.loads(pickle.dumps(run(STEPS))).n_stream_releases_ == T


def test_servers_are_for_one_release():
    late = new(max_releases=1).for_server(sketch_seed=5).set_params(max_releases=T)
    # of sketches that a ledger would take for independent ones
    refuses(ValueError, "single release", late.update_matrix, STEPS[0])
    model = new().update_matrix(STEPS[0])
    for call in (model.state_message, model.for_server, lambda: model.merge(b"")):
        refuses(PrivacyError, "max_releases=1", call)
    with PrivacyLedger(3.0, 1e-5) as ledger:
        refuses(PrivacyError, "max_releases=1", new(max_releases=1).merge, new())
        assert not ledger.entries
    one = new(max_releases=1).update_matrix(STEPS[0])
    refuses(ValueError, "a stream is running", one.fit, STEPS[0])


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"window": 9}, "window"),
        ({"window": 3, "mechanism": "sqrt"}, "window|mechanism"),
        ({"method": "two_sketch"}, "sensitivity_mode='oblivious'"),
        ({"method": "two_sketch", "max_releases": 1}, "after it is drawn"),
        ({"method": "two_sketch", "privacy_unit": "entry"}, "after it is drawn"),
    ],
)
def test_bad_parameters(params, match):
    refuses(ValueError, match, new(**params).update_matrix, STEPS[0])


# -- a hostile or hurried caller: retries, forks, changed parameters -------------------------------


def two_sketches(**params):
    sketches = {"sensitivity_mode": "worst_case", "method": "two_sketch", "sketch_size": 5}
    return DPLowRankFactorizer(1, **({"matrix_shape": (30, 20)} | sketches | params))


@pytest.mark.parametrize(
    ("releases", "owner", "name"), [(1, Accumulator, "take"), (3, StreamGroup, "apply")]
)
def test_an_interrupted_update_is_not_repeated(releases, owner, name, monkeypatch):
    """After the first of two sketches was added to; after all of a step of a stream."""
    model = two_sketches(max_releases=releases).update([], [], [])
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupted_after(getattr(owner, name)))
        refuses(KeyboardInterrupt, None, model.update, [3], [4], [1.0])
    refuses(PrivacyError, "may be included", model.update, [3], [4], [1.0])
    if releases == 1:
        model.release()


@pytest.mark.parametrize("releases", [1, 3])
def test_two_threads_begin_one_stream(releases, monkeypatch):
    """Else updates of the first one are lost, and two budgets are spent."""
    model, check = two_sketches(max_releases=releases), DPLowRankFactorizer._checked_running

    def slowly(self):
        return (check(self), time.sleep(0.1))[0]

    with monkeypatch.context() as patch, PrivacyLedger(1.0, 1e-6), ThreadPoolExecutor(2) as pool:
        patch.setattr(DPLowRankFactorizer, "_checked_running", slowly)
        made = [pool.submit(copy_context().run, model.update, [i], [i], [1.0]) for i in range(2)]
    assert not any(one.exception() for one in made)


def test_a_signal_handler_that_uses_a_stream_ends_the_call_it_came_in(monkeypatch):
    """Else noise that was drawn for an earlier step would be that of a later one."""
    model, ending = new().update([0], [0], [1.0]), Stream.ending

    def interrupted(*step):
        return (model.update([1], [1], [1.0]), ending(*step))[1]

    with monkeypatch.context() as patch:
        patch.setattr(Stream, "ending", interrupted)
        refuses(PrivacyError, "signal handler", model.release)
    assert model.n_committed_calls() == 2 and model.release().n_stream_releases_ == 1


def test_a_forked_state_is_refused(monkeypatch):
    """A forked copy has the same noise: the difference of two messages would be exact data."""
    model = two_sketches().update([0], [0], [0.5])
    here = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: here + 1)
    for act in (lambda: model.update([1], [1], [0.5]), model.state_message):
        refuses(PrivacyError, None, act)
    monkeypatch.undo()
    assert model.state_message()


@pytest.mark.parametrize(
    ("old", "new_value"),
    [({"privacy_unit": "row", "adjacency": "zero_out"},
      {"privacy_unit": "entry", "adjacency": "add_remove"}),
     ({}, {"max_releases": 3}), ({"max_releases": 3}, {"max_releases": 1}),
     ({}, {"unit_bound": 2.0}), ({"max_releases": 3}, {"epsilon": 2.0})],
)  # fmt: skip
def test_parameters_stay_while_a_state_runs(old, new_value):
    """Rows could go past the bound that was paid for, or many releases be made of one."""
    model = two_sketches(**old).partial_fit(np.zeros((1, 20)))
    model.set_params(**new_value)
    acts = (
        lambda: model.update([0], [0], [1e6]),
        lambda: model.partial_fit(np.ones((1, 20))),
        model.state_message,
        model.release,
    )
    for act in acts:
        refuses((ValueError, PrivacyError), None, act)
    defaults = DPLowRankFactorizer().get_params()
    model.set_params(**{name: old.get(name, defaults[name]) for name in new_value}).release()


@pytest.mark.parametrize("params", [{}, {"max_releases": 3, "sensitivity_mode": "oblivious"}])
def test_a_later_ledger_is_charged_what_was_granted(params):
    model = two_sketches(epsilon=5.0, **params).update([0], [0], [0.5])
    with pytest.raises(BudgetExceededError), PrivacyLedger(1.0, 1e-6):
        model.update([1], [1], [0.5])
    with PrivacyLedger(6.0, 1e-6) as ledger:
        model.update([1], [1], [0.5]).release()
    assert [fit.losses for fit in ledger.entries] == [model.privacy_spent_.losses]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("part", [{}, {"sketch_seed": 1}])
def test_a_ledger_refuses_random_sketches_that_are_shared(part, late):
    """It adds them up as independent: at 20 servers its delta can be 5 times too small."""
    first = two_sketches(sensitivity_mode="oblivious")
    first = first.for_server(**part) if part else first
    second = first.for_server()
    assert (first._state.running is None) == bool(part)
    assert second._state.source is first._state.source
    if late:
        second.update([0], [0], [0.0])

    def in_a_ledger():
        with PrivacyLedger(9.0, 1e-5):
            first.update([0], [0], [0.0])
            second.update([0], [0], [0.0])

    refuses(PrivacyError, "shared", in_a_ledger)
    second.update([0], [0], [0.0])


@pytest.mark.parametrize("releases", [1, 3])
def test_a_later_ledger_compares_the_sensitivity(releases):
    """Neighbours depend on it: the losses of streams of different sensitivity do not add up."""
    first, second = two_sketches(unit_bound=1.0), two_sketches(unit_bound=1e-3)
    for model in (first, second):
        model.set_params(max_releases=releases, mechanism="tree").update([0], [0], [0.0])
    ledger = PrivacyLedger(9.0, 1e-5)
    with ledger:
        first.update([0], [0], [0.0])
    assert "1.0" in ledger.entries[0].unit
    with pytest.raises(PrivacyError, match="do not compose"), ledger:
        second.update([0], [0], [0.0])


def test_an_interrupted_last_release_is_not_lost(monkeypatch):
    model = two_sketches(max_releases=2).update([0], [0], [1.0]).release()
    with monkeypatch.context() as patch:
        real = _factorizer_state.factorize
        patch.setattr(_factorizer_state, "factorize", interrupted_after(real))
        refuses(KeyboardInterrupt, None, model.release)
    assert model.n_stream_releases_ == 1
    refuses(PrivacyError, "n_committed_calls", model.release)
    assert model.n_committed_calls() == 3
    assert model.n_stream_releases_ == 2
    pickle.dumps(model)


def interrupted_after(function):
    def wrapper(*args, **kwargs):
        function(*args, **kwargs)
        raise KeyboardInterrupt

    return wrapper


def test_a_message_is_merged_once():
    """Twice, its data would count twice, and its noise would be 1.4 times what is stated."""
    model = two_sketches().update([0], [0], [1.0])
    message = model.for_server().update([1], [1], [1.0]).state_message()
    model.merge(message)
    refuses(ValueError, "twice", model.merge, message)
    model.release()


def test_a_release_that_lacks_a_server_may_be_repeated():
    first = two_sketches(matrix_shape=(5, 20), sketch_size=(5, 5)).update([0], [0], [1.0])
    later = first.for_server(matrix_shape=(10, 20), row_offset=5).update([0], [0], [1.0])
    refuses(ValueError, "are missing, or at several servers", later.release)
    left, below = (model._state.running.maps[1].left.matrix for model in (first, later))
    assert not np.array_equal(left, below[:5])
    other = two_sketches(matrix_shape=(5, 20), sketch_size=(4, 5))
    other = other.for_server(sketch_seed=0).update([0], [0], [1.0])
    refuses(ValueError, "different digest", other.merge(first.for_server().state_message()).release)
    assert other._state.running is not None
    later.merge(first).release()
    assert later.left_singular_vectors_.shape == (15, 1)


def test_a_stream_draws_its_sketches_once():
    """Charged again at each release, a long stream ended before its horizon, with data in it."""
    model = two_sketches(max_releases=9, sketch="gaussian").update([0], [0], [0.0])
    draws = model._private.session.draws
    plain = two_sketches(max_releases=9, sketch="sparse").update([0], [0], [0.0])
    assert draws > plain._private.session.draws  # its coins are draws as well
    for _ in range(3):
        model.release()
    assert model._private.session.draws == draws


@pytest.mark.parametrize("released", [False, True])
def test_other_sketches_than_those_paid_for_are_refused(released, tmp_path, monkeypatch):
    """Another LAPACK may turn the columns of an isometry; its norms were never checked."""
    side = 20 if released else 30  # that of the right sketch, or of the left one
    model = two_sketches(max_releases=3, sketch="isometry").update([0], [0], [1.0])
    model.checkpoint(tmp_path / "stream")
    if released:
        model.release()
    model._drop_stream()

    def go_on():
        restored = DPLowRankFactorizer.restore(tmp_path / "stream")
        try:
            restored.update([0], [0], [1.0])
        finally:
            restored._drop_stream()

    real = np.linalg.qr
    with monkeypatch.context() as patch:
        patch.setattr(
            np.linalg, "qr", lambda A: [part if len(A) != side else -part for part in real(A)]
        )
        refuses(PrivacyError, "drawn again", go_on)
    refuses(ValueError, "holds a stream", DPIncrementalPCA.restore, tmp_path / "stream")
    go_on()


def test_servers_do_not_share_a_seed():
    """With one seed they would draw the same noise, and subtract it."""
    first = DPLowRankFactorizer(1, matrix_shape=(6, 5), random_state=0)
    with pytest.warns(PrivacyWarning):
        first.update([0], [0], [1.0])
    refuses(ValueError, "random_state=None", first.for_server)
    refuses(ValueError, "row_offset", two_sketches().for_server, row_offset=-1)
    refuses(ValueError, "sketch_seed", two_sketches().for_server, sketch_seed=-1)
    refuses(ValueError, "n_honest_servers", two_sketches().for_server, n_honest_servers=0)
    whole = two_sketches().update([0], [0], [1.0]).for_server(sketch_seed=1)
    assert whole._state.source is None  # the sketches are those of the seed
    stream = two_sketches(max_releases=2)
    for model, server in ((stream, whole), (whole, stream)):
        refuses(PrivacyError, "a state only once", model.merge_secure, [server], None)
