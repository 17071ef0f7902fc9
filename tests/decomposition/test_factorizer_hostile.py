"""DPLowRankFactorizer against a hostile or hurried caller: retries, forks, changed parameters."""

import os
import pickle

import numpy as np
import pytest

from skdp import DPLowRankFactorizer, PrivacyLedger
from skdp.decomposition import _factorizer_state
from skdp.exceptions import BudgetExceededError, PrivacyError, PrivacyWarning
from skdp.privacy.gate.session import Accumulator
from skdp.privacy.streams.checkpoints import StreamGroup
from skdp.queries.sketches import Updates

# Most streams here are short, and noise: what is said of that is tested by name.
pytestmark = pytest.mark.filterwarnings("ignore:.*may be noise:skdp.exceptions.PrivacyWarning")


def new(**params):
    defaults = {
        "matrix_shape": (30, 20),
        "sensitivity_mode": "worst_case",
        "method": "two_sketch",
        "sketch_size": 5,
    }
    return DPLowRankFactorizer(1, **(defaults | params))


def accumulators(model):
    return model._state.running.group.accumulators.values()


def test_a_failed_update_may_be_repeated(monkeypatch):
    """Before, the sketches ahead of the failure had the data of both attempts: twice the bound."""
    model = new(sketch="sparse").update([0], [0], [0.0])
    before = [accumulator._state.copy() for accumulator in accumulators(model)]
    real, calls = Updates.answer, []

    def answer(self, sketch):
        calls.append(sketch.name)
        if len(calls) == 2:
            raise MemoryError
        return real(self, sketch)

    monkeypatch.setattr(Updates, "answer", answer)
    with pytest.raises(MemoryError):
        model.update([3], [4], [1.0])
    model.update([3], [4], [1.0])
    for old, accumulator in zip(before, accumulators(model), strict=True):
        grant = accumulator.grant
        change = np.linalg.norm((accumulator._state - old).astype(np.float64))
        assert 0 < change <= grant.bound.l2_steps(grant.step)


@pytest.mark.parametrize(
    ("releases", "owner", "name"), [(1, Accumulator, "take"), (3, StreamGroup, "apply")]
)
def test_an_interrupted_update_is_not_repeated(releases, owner, name, monkeypatch):
    """After the first of two sketches was added to; after all of a step of a stream."""
    model = new(max_releases=releases).update([0], [0], [0.0])
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupted_after(getattr(owner, name)))
        with pytest.raises(KeyboardInterrupt):
            model.update([3], [4], [1.0])
    with pytest.raises(PrivacyError, match="count twice"):
        model.update([3], [4], [1.0])
    if releases == 1:
        model.release()


def test_a_forked_state_is_refused(monkeypatch):
    """A forked copy has the same noise: the difference of two messages would be exact data."""
    model = new().update([0], [0], [0.5])
    here = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: here + 1)
    for act in (lambda: model.update([1], [1], [0.5]), model.state_message):
        with pytest.raises(PrivacyError):
            act()
    monkeypatch.undo()
    assert model.state_message()


@pytest.mark.parametrize(
    ("old", "new_value"),
    [({"privacy_unit": "row", "adjacency": "zero_out"},
      {"privacy_unit": "entry", "adjacency": "add_remove"}),
     ({}, {"max_releases": 3}), ({"max_releases": 3}, {"max_releases": 1})],
)  # fmt: skip
def test_parameters_stay_while_a_state_runs(old, new_value):
    """Rows could go past the bound that was paid for, or many releases be made of one."""
    model = new(**old).partial_fit(np.zeros((1, 20)))
    model.set_params(**new_value)
    acts = (
        lambda: model.update([0], [0], [1e6]),
        lambda: model.partial_fit(np.ones((1, 20))),
        model.state_message,
        model.release,
    )
    for act in acts:
        with pytest.raises((ValueError, PrivacyError)):
            act()
    model.set_params(**{name: old.get(name, value) for name, value in _defaults(new_value).items()})
    model.release()


def _defaults(names):
    return {name: getattr(DPLowRankFactorizer(), name) for name in names}


@pytest.mark.parametrize("params", [{}, {"max_releases": 3, "sensitivity_mode": "oblivious"}])
def test_a_later_ledger_is_charged_what_was_granted(params):
    model = new(epsilon=5.0, **params).update([0], [0], [0.5])
    with pytest.raises(BudgetExceededError), PrivacyLedger(1.0, 1e-6):
        model.update([1], [1], [0.5])
    with PrivacyLedger(6.0, 1e-6) as ledger:
        model.update([1], [1], [0.5]).release()
    assert [fit.losses for fit in ledger.entries] == [model.privacy_spent_.losses]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("part", [{}, {"sketch_seed": 1}])
def test_a_ledger_refuses_random_sketches_that_are_shared(part, late):
    """It adds them up as independent: at 20 servers its delta can be 5 times too small."""
    first = new(sensitivity_mode="oblivious")
    first = first.for_server(**part) if part else first
    second = first.for_server()
    if late:
        second.update([0], [0], [0.0])

    def in_a_ledger():
        with PrivacyLedger(9.0, 1e-5):
            first.update([0], [0], [0.0])
            second.update([0], [0], [0.0])

    with pytest.raises(PrivacyError, match="shared"):
        in_a_ledger()
    second.update([0], [0], [0.0])


@pytest.mark.parametrize("releases", [1, 3])
def test_a_later_ledger_knows_the_sensitivity(releases):
    """What a neighbour is depends on it: two streams of different ones do not add up."""
    first, second = new(unit_bound=1.0), new(unit_bound=1e-3)
    for model in (first, second):
        model.set_params(max_releases=releases, mechanism="tree").update([0], [0], [0.0])
    ledger = PrivacyLedger(9.0, 1e-5)
    with ledger:
        first.update([0], [0], [0.0])
    assert "1.0" in ledger.entries[0].unit
    with pytest.raises(PrivacyError, match="do not add up"), ledger:
        second.update([0], [0], [0.0])


def test_an_interrupted_last_release_is_not_lost(monkeypatch):
    model = new(max_releases=2).update([0], [0], [1.0]).release()
    with monkeypatch.context() as patch:
        real = _factorizer_state.factorize
        patch.setattr(_factorizer_state, "factorize", interrupted_after(real))
        with pytest.raises(KeyboardInterrupt):
            model.release()
    assert model.n_releases_ == 1
    with pytest.raises(PrivacyError, match="n_acknowledged"):
        model.release()
    assert model.n_acknowledged() == 3
    assert model.n_releases_ == 2
    pickle.dumps(model)


def interrupted_after(function):
    def wrapper(*args, **kwargs):
        function(*args, **kwargs)
        raise KeyboardInterrupt

    return wrapper


def test_a_message_is_merged_once():
    """Twice, its data would count twice, and its noise would be 1.4 times what is stated."""
    model = new().update([0], [0], [1.0])
    message = model.for_server().update([1], [1], [1.0]).state_message()
    model.merge(message)
    with pytest.raises(ValueError, match="twice"):
        model.merge(message)
    model.release()


def test_a_release_that_lacks_a_server_may_be_repeated():
    first = new(matrix_shape=(5, 20), sketch_size=(5, 5)).update([0], [0], [1.0])
    later = first.for_server(matrix_shape=(10, 20), first_row=5).update([0], [0], [1.0])
    with pytest.raises(ValueError, match="one server each"):
        later.release()
    later.merge(first).release()
    assert later.left_.shape == (15, 1)


def test_a_stream_draws_its_sketches_once():
    """Charged again at each release, a long stream ended before its horizon, with data in it."""
    model = new(max_releases=9, sketch="gaussian").update([0], [0], [0.0])
    draws = model._private.session.spending.draws
    for _ in range(3):
        model.release()
    assert model._private.session.spending.draws == draws


@pytest.mark.parametrize("released", [False, True])
def test_other_sketches_than_those_paid_for_are_refused(released, tmp_path, monkeypatch):
    """Another LAPACK may turn the columns of an isometry; its norms were never checked."""
    model = new(max_releases=3, sketch="isometry").update([0], [0], [1.0])
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
        patch.setattr(np.linalg, "qr", lambda A: tuple(-part for part in real(A)))
        with pytest.raises(PrivacyError, match="drawn again"):
            go_on()
    go_on()


def test_servers_do_not_share_a_seed():
    """With one seed they would draw the same noise, and subtract it."""
    first = DPLowRankFactorizer(1, matrix_shape=(6, 5), random_state=0)
    with pytest.warns(PrivacyWarning):
        first.update([0], [0], [1.0])
    with pytest.raises(ValueError, match="random_state=None"):
        first.for_server()
