"""The gate: charge, then read, then add noise; steps, laws, receipts."""

import copy
import math
import os
import pickle
import signal
import threading
import warnings

import numpy as np
import pytest

from skdp import PrivacyLedger
from skdp.exceptions import HELD, BudgetExceededError, PrivacyError, warn_caller
from skdp.privacy.accounting.losses import Loss, SketchMixture, delta_from_losses
from skdp.privacy.accounting.receipts import LedgerEntry, PrivacyReport
from skdp.privacy.gate import session as gate
from skdp.privacy.gate.bounds import MAX_DRAWS, SAMPLER_DISTANCE, Ask, Bound, Bounded, PrivateQuery
from skdp.privacy.ledger import routes
from skdp.privacy.noise import integers as noise
from skdp.privacy.noise.words import SeededSource, SystemSource
from skdp.privacy.streams import sketches
from skdp.privacy.streams.checkpoints import StreamGroup
from skdp.privacy.streams.continual import paid_stream
from skdp.privacy.streams.sketches import SketchSource
from tools.gate import VECTOR, constant, new_session
from tools.gate import new_session as session
from tools.outcomes import refuses

# -- paying ----------------------------------------------------------------------------------


def test_nothing_is_read_when_the_budget_is_spent():
    gate = session()
    gate.release(constant(VECTOR), 0.9)
    touched = []
    with pytest.raises(BudgetExceededError, match=r"needs 0\.2 .* 0\.1 is left"):
        gate.release(Bounded(VECTOR, touched.append), 0.2)
    assert not touched and len(gate.ledger) == 1


def test_draws_are_capped():
    with pytest.raises(BudgetExceededError, match="noise"):
        session().grant(Bound("huge", (MAX_DRAWS + 1,), 1.0, slack=0.0), 0.1)
    gate = session()
    gate.charge_draws(MAX_DRAWS - 1)
    refuses(BudgetExceededError, "noise", gate.grant, VECTOR, 0.1)


@pytest.mark.parametrize("value", [0.0, math.nan, -1.0, 1.1, math.inf])
def test_bad_shares_and_sensitivities_are_refused(value):
    """Both by the check of the budget and by the ledger entry."""
    gate = session()
    refuses(BudgetExceededError, None, gate.grant, VECTOR, value)
    line = LedgerEntry("vector", "gaussian", 2.0, 1.0, Loss("gaussian", 0.1))
    refuses(PrivacyError, "not left", gate.pay, line, value)
    if value != 1.1:
        refuses(PrivacyError, "sensitivity", gate.grant, Bound("x", (), value), 0.1)
    assert not gate.ledger


def test_a_grant_opens_once():
    gate = session()
    grant = gate.grant(VECTOR, 0.5)
    grant.open(constant(VECTOR).answer)
    refuses(PrivacyError, "pays for one release", grant.open, constant(VECTOR).answer)


UNLIKE = [np.zeros(3, np.int64), np.zeros(4, np.int32), np.zeros(4), np.zeros((4, 1), np.int64)]


@pytest.mark.parametrize("answer", UNLIKE)
def test_an_answer_that_does_not_match_its_bound_is_refused(answer):
    with pytest.raises(PrivacyError, match="does not match"):
        session().release(Bounded(VECTOR, lambda step: answer), 0.5)


# -- scales ----------------------------------------------------------------------------------


def moments(values, scale):
    """Mean and variance in units of their own standard errors."""
    n = values.size
    z_mean = values.mean() / scale * math.sqrt(n)
    z_variance = (values.var() / scale**2 - 1) * math.sqrt(n / 2)
    return abs(z_mean), abs(z_variance)


def test_a_release_of_copies_is_the_mean_of_releases():
    """An answer shifts it by itself; the deviation and the loss are those of all copies."""
    bound = Bound("vector", (20_000,), 2.0, slack=0.0)

    def released(value):
        gate = session(200.0, split=True, source=SeededSource(0, "x"))
        grant = gate.grant(bound, 1.0)
        return grant, grant.noised(constant(bound, value).answer), gate

    grant, none, gate = released(0)
    assert np.array_equal(released(12345)[1], none + 12345)
    assert np.std(none) * grant.step == pytest.approx(grant.noise_scale, rel=0.03)
    assert grant.noise_scale == pytest.approx(2.0 / gate.budget.mu, rel=1e-9)
    assert abs(np.mean(none)) * grant.step < 5 * grant.noise_scale / math.sqrt(none.size)
    assert gate.ledger[0].loss.value == gate.budget.mu
    spent = gate.spent()
    assert 0.9 * 200 < spent.epsilon <= 200
    r, copy = gate.budget.copies, Loss("gaussian", gate.budget.mu / math.sqrt(gate.budget.copies))
    assert r * delta_from_losses([copy], spent.epsilon / r) + gate.budget.sampler_delta <= 1e-6
    assert spent.sampler_tv_distance / SAMPLER_DISTANCE == gate.budget.copies > 4
    assert spent.epsilon_at(1e-6) == math.inf  # as one Gaussian its sampler has no price


def test_each_copy_has_a_draw_of_its_own(monkeypatch):
    """Draws at the end of the sampler's support have a mean there: a shift may go beyond less."""
    end = 4 * 10**9 * np.ones(VECTOR.shape, np.int64)
    monkeypatch.setattr(gate.noise, "integer_gaussian", lambda *_: end.copy())
    split = session(1000.0, split=True)
    assert split.budget.copies > 20 and np.array_equal(split.grant(VECTOR, 1.0).draw(), end)


@pytest.mark.parametrize("n", [0, 1, 3, 4, 7, 9])
def test_the_symmetric_part_in_tiles_is_that_of_the_whole(monkeypatch, n):
    monkeypatch.setattr(gate, "CACHED", 3)
    value = np.random.default_rng(n).standard_normal((n, n))
    expected = (value + value.T) / 2
    gate.symmetrise(value)
    np.testing.assert_array_equal(value, expected)


def test_symmetric_release_has_half_the_variance_off_the_diagonal():
    bound = Bound("x", (500, 500), 1.0, symmetric=True, slack=0.0)
    answer = session(source=SeededSource(2)).release(constant(bound), 1.0)
    assert np.array_equal(answer.value, answer.value.T)
    above = answer.value[np.triu_indices(500, 1)]
    assert max(moments(above, answer.noise_scale / math.sqrt(2))) < 6
    assert max(moments(np.diag(answer.value), answer.noise_scale)) < 6


def test_laplace_release_has_its_stated_law():
    bound = Bound("x", (200_000,), 0.5, l1=1.0, l1_slack=0.0)
    gate = session(delta=0.0, source=SeededSource(3))
    answer = gate.release(constant(bound), 1.0)
    assert answer.noise_scale == pytest.approx(math.sqrt(2)) and gate.ledger[0].sensitivity == 1.0
    z = (np.abs(answer.value).mean() - 1) * math.sqrt(answer.value.size)
    assert abs(z) < 6


def test_infinite_epsilon_is_exact():
    gate = session(math.inf)
    answer = gate.release(constant(VECTOR, 0.1), 0.7)
    assert np.array_equal(answer.value, np.full(4, 0.1))
    assert answer.noise_scale == 0
    accumulator = gate.accumulate(VECTOR, 0.3)
    for value in (0.25, 0.5):
        accumulator.add(constant(VECTOR, value).answer)
    assert np.array_equal(accumulator.open().value, np.full(4, 0.75))
    assert gate.spent().epsilon == math.inf


def test_overflow_wraps_in_silence():
    gate = session()
    answer = gate.release(constant(VECTOR, 2**63 - 1), 1.0)
    assert np.isfinite(answer.value).all()


# -- accumulate, choose ------------------------------------------------------------------------


def test_an_accumulator_is_noisy_from_birth_and_opens_once():
    gate = session(source=SeededSource(4))
    accumulator = gate.accumulate(VECTOR, 1.0)
    assert np.all(accumulator._state != 0)
    born = accumulator._state.copy()
    for value in (5, -2):
        accumulator.add(constant(VECTOR, value).answer)
    answer = accumulator.open()
    step = answer.noise_scale / noise.EFFECTIVE_SIGMA
    assert np.allclose(answer.value / step, born + 3, rtol=1e-12)
    refuses(PrivacyError, "pays for one release", accumulator.open)


SCORES = Bound("scores", (3,), 0.0, linf=1.0)


def scores(values):
    def answer(step):
        return np.rint(np.array(values) / step).astype(np.int64) if step else np.array(values)

    return Bounded(SCORES, answer)


@pytest.mark.thorough
def test_choice_has_the_law_of_the_exponential_mechanism():
    counts, n = np.zeros(3), 3000
    for seed in range(n):
        gate = session(pure=0.5, source=SeededSource(seed))
        counts[gate.choose(scores([0.0, 2.0, 4.0]), 1.0)] += 1
    weights = np.exp(0.5 * np.array([0.0, 2.0, 4.0]))
    expected = n * weights / weights.sum()
    assert ((counts - expected) ** 2 / expected).sum() < 30  # chi-square, 2 degrees: 3e-7
    assert gate.ledger[0].loss.kind == "range" and gate.ledger[0].loss.value == pytest.approx(0.5)


def test_choice_needs_epsilon_set_aside():
    refuses(PrivacyError, "set no epsilon aside", session().choose, scores([1.0, 2.0, 3.0]), 1.0)
    refuses(PrivacyError, "range", session(pure=0.5).choose, constant(VECTOR), 1.0)
    assert session(math.inf).choose(scores([1.0, 5.0, 3.0]), 0.5) == 1


def test_pure_and_gaussian_parts_share_one_budget(monkeypatch):
    gate, rates = session(pure=0.2), []
    monkeypatch.setattr(noise, "gumbel_choice", lambda *asked: rates.append(asked[2]))
    gate.choose(scores([1.0, 2.0, 3.0]), 1.0)
    assert [gate.ledger[0].noise_scale * rate for rate in rates] == pytest.approx([2.0**-32], abs=0)
    gate.release(constant(VECTOR), 1.0)
    assert gate.ledger[0].noise_scale * 0.2 > 1 + 2.0**-32  # two scores are rounded
    spent = gate.spent()
    assert spent.mu is None and 1 - 1e-6 <= spent.epsilon <= 1.0
    refuses(BudgetExceededError, None, gate.choose, scores([1.0, 2.0, 3.0]), 0.1)


# -- receipts ----------------------------------------------------------------------------------


def test_the_receipt_adds_up():
    gate = session()
    for share in (0.25, 0.25, 0.5):
        gate.release(constant(VECTOR), share)
    spent = gate.spent()
    assert spent.mu == pytest.approx(gate.budget.mu, rel=1e-12)
    assert spent.epsilon <= 1.0 and spent.epsilon == pytest.approx(1.0, rel=1e-6)
    half = session()
    half.release(constant(VECTOR), 0.5)
    assert half.spent().epsilon < 0.75
    half.pay(LedgerEntry("vector", "gaussian", 2.0, 1.0, Loss("gaussian", half.budget.mu)), 0.1)
    refuses(PrivacyError, "more was granted", half.spent)


@pytest.mark.parametrize(("epsilon", "delta"), [(1e-6, 0.999), (1e-8, 0.5), (1e-10, 1e-4)])
def test_a_tiny_epsilon_has_a_receipt(epsilon, delta):
    """The last bit of mu moves it by more than its own last bits."""
    gate = session(epsilon=epsilon, delta=delta)
    for share in (0.3, 0.3, 0.4):
        gate.release(constant(VECTOR), share)
    assert 0.99 * epsilon < gate.spent().epsilon <= epsilon


@pytest.mark.parametrize(("delta", "kind"), [(0.0, "pure"), (1e-6, "gaussian")])
def test_what_is_left_out_is_paid_all_the_same(delta, kind):
    gate = session(delta=delta)
    for share in (0.25, 0.15):
        gate.release(constant(VECTOR), share)
    gate.charge_skipped(0.5)
    gate.charge_unused()
    assert gate.spent().epsilon == pytest.approx(1.0, rel=1e-6)
    assert gate.spent().delta == delta and {entry.loss.kind for entry in gate.ledger} == {kind}
    refuses(BudgetExceededError, None, gate.charge_skipped, 0.1)


def test_first_answers_may_take_a_delta():
    """At e^epsilon nothing diverges more than if Gaussian noise always followed, which is tight."""
    for first in (0.01, 0.3, 0.6):
        gate = session(delta=0.0, source=SeededSource(0))
        gate.leave_open(1e-6)
        drawn = (grant := gate.grant(VECTOR, first)).draw()
        for late in (gate, session()):  # one has spent, the other is not pure
            refuses(PrivacyError, "has spent nothing", late.leave_open, 1e-6)
        spent = gate.spent()  # of all that may follow
        assert (spent.losses, spent.delta) == ((("pure", 1.0), ("delta", 1e-6)), 1e-6)
        gate.take_delta()
        assert gate.remaining("pure") == 0 and np.array_equal(
            grant.draw(), drawn
        )  # it stays Laplace
        gate.release(constant(VECTOR), 1.0)
        spent, either = gate.spent(), ([gate.ledger[1].loss], [Loss("pure", 1.0 - first)])
        assert (spent.epsilon, spent.delta, spent.epsilon_at(1e-6)) == (1.0, 1e-6, 1.0)
        worst = 0.0
        for loss in (first, -first):
            diverged = max(delta_from_losses(kind, 1.0 - loss) for kind in either)
            worst += diverged / (1 + math.exp(-loss))
        assert (0.99e-6 if first < 0.5 else 0.6e-6) < worst <= 1e-6
        refuses(BudgetExceededError, None, gate.release, constant(VECTOR), 0.1)
        less = session(delta=0.0)
        less.leave_open(1e-6)
        less.grant(VECTOR, first / 2)
        less.take_delta(most=first)  # another way would have spent as much as this one
        assert (less.budget.mu, less.remaining("pure")) == (gate.budget.mu, 0)


@pytest.mark.parametrize("delta", [1e-9, 1e-6])
def test_noise_after_pure_answers_falls_as_epsilon_grows(delta):
    """Also beyond what one sample may be calibrated to: the copies and the pure part add up."""
    last = 0.0
    for epsilon in (1.0, 30.0, 60.0, 100.0, 1000.0):
        gate = session(epsilon, delta=0.0)
        gate.leave_open(delta)
        gate.release(constant(VECTOR), 0.06)
        used = gate.ledger[0].loss.value
        gate.take_delta()
        answer, budget = gate.release(constant(VECTOR), 1.0), gate.budget
        copies, mu = budget.copies, VECTOR.l2 / answer.noise_scale
        assert mu > last and (copies > 1) == (epsilon > 50)
        assert mu <= budget.mu * (1 + 1e-9)
        of_copy = delta_from_losses([("gaussian", mu / copies**0.5)], (epsilon - used) / copies)
        if copies > 1:
            assert copies * of_copy + budget.sampler_delta <= delta
        assert gate.spent().epsilon == epsilon and gate.spent().delta == delta
        last = mu


@pytest.mark.parametrize("epsilon", [60.0, 1000.0])
def test_a_tiny_delta_may_be_taken_after_any_pure_answers(epsilon):
    """Its sampler covers a small epsilon, and they may have spent more than that."""
    gate = session(epsilon, delta=0.0)
    gate.leave_open(1e-21)
    gate.release(constant(VECTOR), 0.06)
    gate.take_delta()
    mu = VECTOR.l2 / gate.release(constant(VECTOR), 1.0).noise_scale
    assert gate.ledger[0].loss.value > (covered := gate.budget.calibration[0]) > 2
    assert delta_from_losses([("gaussian", mu)], covered) + gate.budget.sampler_delta <= 1e-21


def test_a_session_that_may_take_a_delta_owes_all_of_it(monkeypatch):
    """For all its ledger lines: by themselves they do not compose with other fits."""
    gate, settled, told = session(delta=0.0), [], []
    gate.observer.unplanned = lambda losses, shared: told.append(losses)
    monkeypatch.setattr(routes, "_charges", lambda session: [("a ledger", 0)])
    monkeypatch.setattr(routes, "settle_charges", lambda *told: settled.append(told[1]))
    gate.leave_open(1e-6)
    assert told == [gate.open]  # before anything is granted
    routes.settle(gate)
    gate.release(constant(VECTOR), 0.01)
    routes.settle(gate)
    assert settled == [(), gate.open] and routes._owed(gate) == gate.open


def test_seeded_noise_differs_between_budgets():
    """One seed at two epsilons must not let the noise be subtracted."""
    drawn = [
        session(epsilon, source=SeededSource(0)).release(constant(VECTOR), 1.0)
        for epsilon in (1.0, 2.0)
    ]
    a, b = (answer.value / answer.noise_scale for answer in drawn)
    assert np.abs(a - b).max() > 0.1
    again = session(1.0, source=SeededSource(0)).release(constant(VECTOR), 1.0)
    assert np.array_equal(again.value, drawn[0].value)


def test_seeded_noise_differs_between_releases():
    """Of one name and scale: the difference of two answers would be exact."""
    gate = session(pure=0.5, source=SeededSource(0))
    first, second = (gate.release(constant(VECTOR), 0.5) for _ in range(2))
    assert first.noise_scale == second.noise_scale and not np.any(first.value == second.value)
    assert len({gate.choose(scores([0.0, 0.0, 0.0]), 0.05) for _ in range(20)}) == 3
    pure, cells = session(delta=0.0, source=SeededSource(0)), Bound("cells", (50, 50), 1.0, cells=1)
    drawn = [pure.grant(cells, 0.25).draw() for _ in range(2)]
    assert pure.remaining("pure") == 0.5
    assert not np.array_equal(*drawn)


def test_card_says_seeded_first():
    gate = session(source=SeededSource(0))
    gate.release(constant(VECTOR), 1.0)
    card = PrivacyReport("DPThing", gate.spent(), gate.ledger)
    assert str(card).startswith("SEEDED")
    assert card._repr_html_().index("SEEDED") < card._repr_html_().index("Guarantee")
    assert "vector" in str(card)
    assert repr(gate.spent()).startswith("SEEDED") and len(repr(gate.spent())) <= 32


# -- faults that an adversarial review once found --------------------------------------------------


@pytest.mark.parametrize("l2", [1e-316, 1e-312])
def test_a_scale_beyond_floats_is_refused_before_paying(l2):
    gate = session()
    refuses(PrivacyError, "floating point", gate.grant, Bound("tiny", (), l2, slack=0.0), 1.0)
    assert gate.ledger == ()


def test_huge_scales_get_their_noise():
    grant = session().grant(Bound("huge", (), 3e300, slack=0.0), 1.0)
    assert grant.step > 0 and grant.noise_scale == pytest.approx(4.225 * 3e300, rel=1e-3)
    small = session(0.1).grant(Bound("x", (), 1.0, slack=0.0), 1.0)
    assert small.noise_scale == pytest.approx(36.305, abs=6e-4)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_what_holds_a_budget_or_noise_is_not_copied(copied):
    gate = session()
    stream = paid_stream(gate, VECTOR, 0.1, 4)
    secrets = [gate, gate.grant(VECTOR, 0.1), gate.accumulate(VECTOR, 0.1), stream]
    group = StreamGroup(gate, {"a": stream})
    for secret in (*secrets, group, SketchSource(gate, SystemSource())):
        refuses(PrivacyError, "copied or pickled", copied, secret)
    if copied is not copy.copy:  # the same stream in another list
        refuses(PrivacyError, "copied or pickled", copied, [stream])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes of this system do not fork")
def test_a_grant_is_opened_in_the_process_that_paid():
    """A fork has a copy of everything: a release with one charge would be read in both."""
    gate = session()
    grant, state = gate.grant(VECTOR, 0.1), gate.accumulate(VECTOR, 0.1)
    stream = paid_stream(gate, VECTOR, 0.1, 4)
    acts = (
        lambda: gate.release(constant(VECTOR), 0.5), lambda: gate.grant(VECTOR, 0.1),
        lambda: gate.charge_skipped(0.1), lambda: gate.charge_draws(1),
        lambda: grant.open(constant(VECTOR).answer), lambda: state.add(constant(VECTOR).answer),
        state.open, stream.open,
    )  # fmt: skip
    held, over = threading.Event(), threading.Event()

    def hold():
        with gate.lock:
            held.set()
            over.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)  # a wait for a thread that does not exist here ends with an alarm
        refused = 0
        for act in acts:
            try:
                act()
            except PrivacyError as error:
                refused += "both processes" in str(error)
        os._exit(refused)
    told = os.waitpid(child, 0)[1]
    over.set()
    thread.join()
    assert os.waitstatus_to_exitcode(told) == len(acts)
    for act in acts:
        act()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes of this system do not fork")
def test_a_read_that_forks_is_answered_once():
    here, children, refused = os.getpid(), [], False
    forks = Bounded(VECTOR, lambda _: children.append(os.fork()) or np.zeros(4, np.int64))
    try:
        session().release(forks, 0.1)
    except PrivacyError:
        refused = True
    if os.getpid() != here:
        os._exit(refused)
    assert not refused and os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 1


def test_warnings_stay_inside_the_gate():
    """Those of numpy, which a trap may make errors, and all others. Filters are as they were,
    however fits in two threads overlap.
    """
    inside, other = threading.Event(), threading.Event()

    def answer(_):
        np.array([1e308]) * np.array([1e308])
        warnings.warn("row 7 is 3.1", stacklevel=1)
        inside.set()
        assert other.wait(60)
        return np.zeros(4, np.int64)

    before = list(warnings.filters)
    late = threading.Thread(target=session().release, args=(Bounded(VECTOR, answer), 0.5))

    def start_another(_):
        late.start()
        assert inside.wait(60) and np.float64(1e308) * 1e308 == math.inf
        return np.zeros(4, np.int64)

    with np.errstate(all="raise"):
        session().release(Bounded(VECTOR, start_another), 0.5)
    other.set()
    late.join()
    assert warnings.filters == before


@pytest.mark.parametrize(
    "error",
    [ValueError("row 7 is 3.1"), MemoryError("(7, 31)"), np.linalg.LinAlgError(), UserWarning()],
    ids=repr,
)
@pytest.mark.parametrize("verb", ["release", "accumulate", "choose"])
def test_a_failed_answer_reveals_nothing(error, verb):
    """For every failure one text, one type and no context; the charge stays."""

    def fails(_):
        raise error

    def run(gate):
        bounded = Bounded(Bound("vector", (4,), 2.0, slack=0.0, linf=1.0), fails)
        if verb == "accumulate":
            return gate.accumulate(VECTOR, 0.5).add(fails)
        return getattr(gate, verb)(bounded, 0.5)

    gate = session(pure=0.5)
    with pytest.raises(PrivacyError, match="the answer of 'vector' could not") as raised:
        run(gate)
    assert raised.value.__context__ is None and "31" not in str(raised.value)
    assert len(gate.ledger) == 1
    with pytest.raises(type(error)):  # without a guarantee, the error may be shown
        run(session(math.inf, pure=math.inf))


def test_who_ends_the_program_ends_it():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # nohup ignores Ctrl-C
    try:
        with pytest.raises(KeyboardInterrupt):
            session().release(Bounded(VECTOR, lambda _: signal.raise_signal(signal.SIGINT)), 0.5)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_text_of_our_own_about_rows_passes():
    def fails(_):
        try:
            int("row 31415")
        except ValueError:
            raise PrivacyError("a block could not be read.") from None

    with pytest.raises(PrivacyError, match="a block could not be read") as raised:
        session().release(Bounded(VECTOR, fails), 0.5)
    assert raised.value.__context__ is None


def test_warnings_are_away_until_the_last_has_read():
    # Two threads leave in any order; here, in one, that mixes up numpy's state of the thread.
    with np.errstate(), warnings.catch_warnings(record=True, action="always") as told:
        first, last = gate.no_warnings(), gate.no_warnings()
        first.__enter__()
        last.__enter__()
        first.__exit__(None, None, None)
        warnings.warn("row 7 is 3.1", stacklevel=1)
        last.__exit__(None, None, None)
        assert not told
        warnings.warn("public", stacklevel=1)
    assert [str(warning.message) for warning in told] == ["public"]


def test_a_search_publishes_no_warning_of_single_rows():
    held = []
    HELD.set(held)
    gate.answered(lambda step: warn_caller("row 7 is 3.1", UserWarning) or np.zeros(1), 1.0, "sum")
    warn_caller("public", UserWarning)
    HELD.set(None)
    assert held == [("public", UserWarning)]


def test_an_interrupt_at_the_end_of_a_read_leaves_warnings_as_they_were(monkeypatch):
    before, leave, faults = list(warnings.filters), gate.no_warnings.__exit__, [KeyboardInterrupt]

    def struck(self, *_):
        if faults:
            raise faults.pop()
        leave(self)

    monkeypatch.setattr(gate.no_warnings, "__exit__", struck)
    refuses(KeyboardInterrupt, None, session().release, constant(VECTOR), 0.1)
    assert list(warnings.filters) == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_fork_has_no_part_in_what_another_thread_reads():
    """Neither filters that no thread would restore, nor a lock that no thread would release."""
    before = list(warnings.filters)
    with gate.no_warnings(), gate._state["lock"]:
        child = os.fork()
        if not child:
            free = gate._state["lock"].acquire(blocking=False)
            os._exit(0 if free and list(warnings.filters) == before else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# -- checks that no ordinary call reaches: each refuses, and nothing is read or charged ------------


@pytest.mark.parametrize(("epsilon", "step"), [(1.0, 0.0), (math.inf, 0.5)])
def test_a_grant_without_noise_reads_nothing_of_a_private_session(epsilon, step):
    touched, grant = [], new_session(epsilon).grant(VECTOR, 0.5)
    grant.step = step
    refuses(PrivacyError, "no noise scale", grant.open, touched.append)
    assert not touched


def test_sketches_of_the_system_have_no_key():
    refuses(PrivacyError, "no key", SketchSource(new_session(), SystemSource()).secret)


def mixture(*degrees):
    return (Loss("sketch", SketchMixture(((0.5, degrees),))),)


def test_merged_receipts_are_of_one_kind():
    gaussian = (Loss("gaussian", 0.5),)
    for other in (mixture(5), (Loss("pure", 0.5),)):
        refuses(PrivacyError, None, sketches._largest, [gaussian, other])
    refuses(PrivacyError, None, sketches._largest, [mixture(5), mixture(6, 6)])
    assert sketches._largest([gaussian, (Loss("gaussian", 0.7),)]) == (Loss("gaussian", 0.7),)


def test_a_ledger_is_of_its_process(monkeypatch):
    ledger, here = PrivacyLedger(epsilon=1.0, delta=1e-6), os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: here + 1)  # as if this were a forked child
    with pytest.raises(PrivacyError, match="process that made it"), ledger:
        pass


# -- the public interface of a query: releases, restricted queries, and nothing else ---------------


ANSWERED = Bound("vector", (4,), 2.0)


class Echo:
    """A session that answers with what it was asked for."""

    def answer(self, path, bounded, share):
        return path, bounded.bound, share


class Counted(PrivateQuery):
    _rows = 3

    def size(self):
        return self._rows

    def total(self, factor=1):
        return Bounded(ANSWERED, None)

    def restricted(self, level):
        return Counted()


def test_an_ask_returns_releases_only():
    ask = Ask(Echo(), Counted())
    assert ask.total(2, share=0.1) == ((("total", (2,)),), ANSWERED, 0.1)
    path, _, _ = ask.restricted(3.0).restricted(2.0).total(share=0.1)
    assert path == (("restricted", (3.0,)), ("restricted", (2.0,)), ("total", ()))
    for name in ("_rows", "_with", "nothing"):
        refuses(AttributeError, "no release", getattr, ask, name)
    refuses(PrivacyError, "neither a release", ask.size)
    refuses(TypeError, "share", ask.total)
