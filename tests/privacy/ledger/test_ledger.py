"""One budget for many fits: exact totals, nothing lost, nothing touched on refusal."""

import copy
import math
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from sklearn.base import clone

from skdp import DPPCA, BudgetExceededError, DPIncrementalPCA, PrivacyError, PrivacyLedger
from skdp.privacy.accounting import losses as accounting
from skdp.privacy.accounting.losses import Loss
from skdp.privacy.gate.bounds import MAX_DRAWS, Bound, PrivacyBudget
from skdp.privacy.gate.session import PrivacySession
from skdp.privacy.ledger.balances import Balance, Terms
from skdp.privacy.ledger.filters import dominating_mu
from skdp.privacy.ledger.fits import multiplied
from skdp.privacy.ledger.routes import Account, charge, settle
from skdp.privacy.noise import integers as noise
from tools.gate import new_session
from tools.ledgers import X, fit_of, forgiving, mu_of, pca
from tools.outcomes import refuses

# Tiny fits find little; the tests of the estimators cover their warnings.
pytestmark = pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")


def swallow(message=None):
    """Expect a refusal where it happens."""
    return pytest.raises(PrivacyError, match=message)


@pytest.fixture
def reads(monkeypatch):
    """Count the reads of private data."""
    count, read = [], PrivacySession._read
    monkeypatch.setattr(PrivacySession, "_read", lambda *a: (count.append(1), read(*a))[1])
    return count


# -- totals ---------------------------------------------------------------------------------------


def test_total_is_the_exact_composition():
    epsilons = [0.1, 0.5, 2.0]
    with PrivacyLedger(4, 1e-5) as ledger:
        fits = [pca(epsilon).fit(X) for epsilon in epsilons]
    mu = math.hypot(*(fit.privacy_spent_.mu for fit in fits))
    assert ledger.spent.mu == pytest.approx(mu, rel=1e-14)
    assert ledger.spent.mu == pytest.approx(math.hypot(*map(mu_of, epsilons)), rel=1e-12)
    epsilon = accounting.epsilon_from_mu_delta(mu, 1e-5)
    assert ledger.spent.epsilon == pytest.approx(epsilon, rel=1e-12)
    assert (ledger.spent.delta, ledger.spent.unit) == (1e-5, "row")
    assert [fit.state for fit in ledger.entries] == ["fitted"] * 3


@pytest.mark.thorough
@pytest.mark.parametrize("spent", [(), (0.5,), (0.5, 1.0, 1.0)])
def test_remaining_is_affordable_and_largest(spent):
    with forgiving(2, 1e-5) as ledger:
        for epsilon in spent:
            pca(epsilon).fit(X)
        left = ledger.remaining()
        if spent:
            mu = math.sqrt(mu_of(2, 1e-5) ** 2 - sum(mu_of(e) ** 2 for e in spent))
            assert left == pytest.approx(accounting.epsilon_from_mu_delta(mu, 1e-5), rel=1e-9)
        with swallow("left, both at"):
            pca(left * (1 + 1e-6), delta=1e-5).fit(X)
        pca(left, delta=1e-5).fit(X)
        assert ledger.remaining() < 1e-3


def test_sampler_is_paid_at_the_total_epsilon():
    """Total variations of fits add up, and cost (1 + e^epsilon) each at the ledger's epsilon."""
    ledger = PrivacyLedger(30, 1e-6)
    limit, left = ledger._book.terms.cap.limits(5)
    assert limit == 30
    assert left == pytest.approx(1e-6 - 5 * noise.sampler_delta(30, MAX_DRAWS), rel=1e-12, abs=0)
    assert left < 1e-6
    assert ledger._book.terms.cap.limits(0) == (30, 1e-6)
    limit, left = PrivacyLedger(1000, 1e-6)._book.terms.cap.limits(5)
    assert limit < 45
    assert left == pytest.approx(5e-7)


def charged(epsilon=0.1, delta=1e-6, name="Fit", sensitivity=None, **parameters):
    """Charge a session to the ledgers that are open."""
    session = new_session(epsilon, delta, observer=Account(), **parameters)
    charge(session, name, None, sensitivity)
    return session


def test_a_session_without_an_account_is_refused():
    gate = new_session(0.1)
    charge(gate, "Outside")  # no ledger is open
    with PrivacyLedger(1, 1e-5) as ledger:
        refuses(PrivacyError, "no account", charge, gate, "Inside")
        assert ledger.entries == ()


def test_pure_parts_beside_earlier_fits_are_charged_as_gaussians():
    with PrivacyLedger(4, 1e-5) as ledger:
        mu = charged(1, pure=0.2).budget.mu
        assert ledger.entries[0].losses == (Loss("gaussian", mu), Loss("pure", 0.2))
        assert ledger.spent.losses == ledger.entries[0].losses
        charged(0.3, 0)
        pca().fit(X)
    late = dominating_mu(Loss("pure", 0.3))
    losses = [("gaussian", mu), ("pure", 0.2), ("gaussian", late), ("gaussian", mu_of(0.5))]
    assert ledger.spent.losses == accounting.compose(losses)
    assert ledger.spent.epsilon == pytest.approx(accounting.epsilon_from_losses(losses, 1e-5))
    left = PrivacyBudget(ledger.remaining(), 1e-5).mu
    total = accounting.epsilon_from_losses([*losses, ("gaussian", left)], 1e-5)
    assert total == pytest.approx(4, rel=1e-9)


def test_a_stream_is_charged_whole_before_other_fits_come_between():
    """Its later releases add nothing, because all noise was fixed before the first answer."""
    stream = DPIncrementalPCA(1, clip_norm=3.0, epsilon=1.0, max_releases=3)
    with PrivacyLedger(4, 1e-5) as ledger:
        stream.partial_fit(X[:60])
        charged = ledger.entries[0].losses
        assert charged == (Loss("gaussian", pytest.approx(mu_of(1.0))),)
        pca(0.5).fit(X)
        for rows in (X[60:120], X[120:]):
            stream.partial_fit(rows)
            assert ledger.entries[0].losses == charged
            assert len(ledger.entries) == 2
    assert ledger.spent.mu == pytest.approx(math.hypot(mu_of(1.0), mu_of(0.5)))


def test_delta_zero_takes_pure_fits_only():
    with forgiving(1, 0) as ledger:
        for _ in range(10):
            charged(0.1, 0)
        with swallow():
            charged(1e-6, 0)
        assert ledger.remaining() < 1e-9
    assert (ledger.spent.epsilon, ledger.spent.delta) == (pytest.approx(1), 0)


def test_partial_use_settles_to_what_was_granted():
    with forgiving(1, 1e-6) as ledger:
        half = charged(1)
        assert (ledger.entries[0].state, ledger.remaining()) == ("open", 0.0)
        half.grant(Bound("a", (2,), 1.0), 0.25)
        settle(half)
        assert ledger.spent.mu == mu_of(1) / 2
        half.grant(Bound("b", (2,), 1.0), 0.25)
        settle(half)  # late, but it is charged
        assert ledger.spent.mu == pytest.approx(mu_of(1) / math.sqrt(2))
        pca(ledger.remaining()).fit(X)
        half.grant(Bound("c", (2,), 1.0), 0.25)
        with swallow("after it was settled"):
            settle(half)
        assert ledger.spent.epsilon > 1


# -- refusals -------------------------------------------------------------------------------------


def test_refused_fit_touches_nothing_and_surfaces_at_the_end(reads):
    swallowed = pytest.raises(BudgetExceededError, match=r"1 fit.*hid.*errors.*asks for")
    with swallowed, PrivacyLedger(1, 1e-6) as ledger:
        pca(0.9).fit(X)
        n_reads, spent = len(reads), ledger.spent
        refuses(BudgetExceededError, r"has epsilon=0\.\d+ left", pca(0.9).fit, X)
        assert len(reads) == n_reads
        assert ledger.spent == spent
    assert len(ledger.entries) == len(ledger.rejected_fits) == 1
    with ledger:  # opened again: a new block, the same budget
        assert ledger.rejected_fits == ()
    assert ledger.spent == spent


def test_other_exceptions_are_not_masked():
    def swallow_and_stop():
        with PrivacyLedger(0.1, 1e-6):
            with swallow():
                pca(0.9).fit(X)
            raise KeyError

    refuses(KeyError, None, swallow_and_stop)
    with pytest.raises(BudgetExceededError, match=r"^DPPCA asks"), PrivacyLedger(0.1, 1e-6):
        pca(0.9).fit(X)


REFUSED = {  # terms of a ledger, what is refused there, and why
    "no noise": ({}, lambda: pca(math.inf).fit(X), "epsilon=inf"),
    "a seed": ({}, lambda: pca(random_state=0).fit(X), "random_state=None"),
    "another unit": (
        {"unit": "group"},
        lambda: pca().fit(X),
        "row, and this .* one group.*='group' in all fits",
    ),
    "a norm": ({"adjacency": "replace"}, lambda: charged(unit="mixed"), "Use one adjacency"),
    "a row of zeros": (
        {"adjacency": "add_remove"},
        lambda: charged(adjacency="zero_out"),
        "Use one adjacency",
    ),
    "too much": ({}, lambda: pca(2.0).fit(X), "left, both at .* Use a smaller 'epsilon'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_not_read(case, reads):
    terms, act, why = REFUSED[case]
    with forgiving(**{"epsilon": 1, "delta": 1e-6} | terms) as ledger, swallow(why):
        act()
    assert not reads and not ledger.entries


def test_what_is_spent_is_called_spent():
    with forgiving(1, 1e-5) as ledger:
        pca(1.0, delta=1e-5).fit(X)
        for late, kind in ((0.5, BudgetExceededError), (ledger.remaining(), ValueError)):
            with pytest.raises(kind, match="The budget is spent: give earlier fits less"):
                pca(late).fit(X)
    assert len(ledger.entries) == 1


def test_seeded_fits_may_be_allowed():
    ledger = PrivacyLedger(1, 1e-6, allow_seeded=True)
    with ledger, pytest.warns(UserWarning, match="random_state"):
        pca(0.3, random_state=0).fit(X)
    with ledger:
        pca(0.3).fit(X)
    assert ledger.spent.seeded
    assert "SEEDED" in ledger.report()


def test_first_fit_fixes_unit_and_adjacency():
    with forgiving(3, 1e-6) as ledger:
        with pytest.raises(ValueError):
            pca(adjacency="replace").fit(X[0])  # it spends nothing, so it fixes nothing
        pca().fit(X)
        with swallow(r"adjacency='replace'\), which"):
            pca(adjacency="replace").fit(X)
        with swallow("one label"):
            charged(unit="label", adjacency="replace")
    assert (ledger.spent.unit, ledger.spent.adjacency) == ("row", "add_remove")
    for unit in (None, "frobenius"):  # a change of another norm is another unit
        with forgiving(3, 1e-6, unit=unit), swallow("norm at most 1.0"):
            assert all(charged(unit="frobenius", sensitivity=norm) for norm in (1.0, 1.0001))


def test_add_remove_costs_twice_under_replace():
    """A replacement is a removal and an addition: mu_replace <= 2 mu."""
    with forgiving(3, 1e-6, adjacency="replace") as ledger:
        pca().fit(X)
        pca(adjacency="replace").fit(X)
        with swallow("one label"):
            charged(unit="label", adjacency="replace")
        with swallow("costs twice"):
            pca(1.5).fit(X)
    assert ledger.spent.mu == pytest.approx(math.hypot(2, 1) * mu_of(0.5))
    assert ledger.spent.adjacency == "replace"
    assert "add_remove (twice)" in ledger.report()
    with PrivacyLedger(3, 1e-6) as ledger:  # the meaning stays when the fit that fixed it fails
        first = charged(0.5, adjacency="replace")
        pca().fit(X)
        settle(first, "failed")
    assert ledger.spent.mu == pytest.approx(2 * mu_of(0.5))
    assert ledger.spent.adjacency == "replace"


BAD = {
    "epsilon": (0, -1, math.nan, math.inf, True, "1", None), "rho": (1, -1.0, math.nan),
    "delta": (1, -1e-9, 1e-30, math.nan), "mu": (1, 0, math.inf, "1"),
    "adjacency": ("both",), "unit": ("rows",), "allow_seeded": (1,),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name):
    """A budget has one measure, and is a number that bounds something."""
    for value in BAD[name]:
        for budget in [{"epsilon": 1, "delta": 1e-6}] + [{}] * (name in ("mu", "rho")):
            if (budget, value) != ({}, 1):
                refuses(ValueError, name, PrivacyLedger, **budget | {name: value})


def test_between_two_neighbours_a_failure_grows_by_what_lies_between():
    """(epsilon, delta) to a neighbour, and from there on: (2 epsilon, (1 + e^epsilon) delta)."""
    losses = Loss("pure", 0.5), Loss("range", 0.25), Loss("delta", 1e-6)
    found = dict(multiplied(losses, 2.0))
    assert found == {"pure": 1.0, "range": 0.5, "delta": pytest.approx((1 + math.exp(0.75)) * 1e-6)}
    assert dict(multiplied([Loss("gaussian", 0.5), losses[2]], 2.0))["delta"] == math.inf


# -- failed fits ----------------------------------------------------------------------------------


def test_fit_that_fails_after_a_release_keeps_what_was_granted(monkeypatch):
    def broken(self, *args):
        raise RuntimeError("late")

    monkeypatch.setattr("skdp.solvers.postprocess.pca_attributes", broken)
    with PrivacyLedger(1, 1e-6) as ledger:
        estimator = DPPCA(clip_norm="auto")
        refuses(RuntimeError, None, estimator.fit, X)
        monkeypatch.setattr("skdp.queries.rows.RowQuery.count", broken)
        assert ledger.spent.mu == pytest.approx(mu_of(1.0))
        assert not hasattr(estimator, "privacy_spent_")
    assert [fit.state for fit in ledger.entries] == ["failed"]
    with PrivacyLedger(1, 1e-6) as ledger, pytest.raises(RuntimeError):
        DPPCA(clip_norm="auto").fit(X)  # only the clip norm was granted
    assert ledger.spent.mu == pytest.approx(mu_of(1.0) * math.sqrt(0.06))


# -- threads and nesting ---------------------------------------------------------------------------


def test_check_and_charge_are_one_step(monkeypatch):
    affords = Balance.affords

    def slow(self, *more):
        answer = affords(self, *more)
        time.sleep(0.05 * answer)  # all threads could pass the check before one is charged
        return answer

    monkeypatch.setattr(Balance, "affords", slow)
    monkeypatch.setattr(Balance, "remaining", lambda *_, **__: 0.0)
    pool = ThreadPoolExecutor(6)
    pool.submit(int).result()  # a thread that is there before the ledger is open
    with forgiving(1, 1e-6) as ledger, pool:
        futures = [pool.submit(pca(0.6).fit, X) for _ in range(6)]
        errors = [future.exception() for future in futures]
        assert [type(error) for error in errors if error] == [BudgetExceededError] * 4
        assert len(ledger.entries) == 2 and len(ledger.rejected_fits) == 4
    assert ledger.spent.epsilon <= 1


def test_an_interrupted_change_takes_back_itself_alone():
    """Also while its traceback is kept, and after other charges."""
    balance, fit = Balance(Terms(3, 1e-5), {}), fit_of(Loss("gaussian", 0.1))
    change = balance.changing()
    change.__enter__()
    balance.put(1, fit)
    balance.put(2, fit)
    with balance.changing():
        balance.put(3, fit)
    change.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert list(balance.entries) == [3]
    assert balance.spent().mu == pytest.approx(0.1)


def test_a_signal_between_check_and_charge_does_not_exceed_the_budget(monkeypatch):
    affords, fits = Balance.affords, [pca(0.9)]

    def signalled(self, *more):
        answer = affords(self, *more)
        if fits:
            with suppress(BudgetExceededError):
                fits.pop().fit(X)
        return answer

    monkeypatch.setattr(Balance, "affords", signalled)
    with forgiving(1, 1e-6) as ledger:
        pca(0.9).fit(X)
    assert ledger.spent.epsilon <= 1


def test_nested_ledgers_are_both_charged():
    with PrivacyLedger(3, 1e-5) as outer:
        pca().fit(X)
        with PrivacyLedger(1, 1e-5) as inner:
            pca().fit(X)
            with swallow("left, both at"):  # refused by the inner one: the outer one is not charged
                pca(2.0).fit(X)
            assert (len(outer.entries), len(inner.entries)) == (2, 1)
            inner._refused.clear()
    assert outer.rejected_fits == ()


# -- the object -----------------------------------------------------------------------------------


def test_ledger_does_not_fork(monkeypatch):
    ledger = PrivacyLedger(1, 1e-6)
    for action in (copy.copy, copy.deepcopy, pickle.dumps, lambda x: clone(x, safe=False)):
        with swallow("copied or pickled"):
            action(ledger)
    with ledger, swallow("open already"), ledger:
        pass
    with ledger:  # the failed attempt left nothing behind
        with monkeypatch.context() as patch:
            patch.setattr("os.getpid", lambda: 0)  # a child leaves it
            ledger.__exit__(None)
        pca().fit(X)
    assert len(ledger.entries) == 1
    pca().fit(X)
    assert len(ledger.entries) == 1


def test_report():
    ledger = PrivacyLedger(2, 1e-6)
    assert "Left for one more fit: epsilon=2. No fit was charged: only" in ledger.report()
    assert (ledger.spent.epsilon, ledger.spent.losses) == (0, ())
    with ledger:
        pca().fit(X)
    head, line, summary = ledger.report().splitlines()
    assert head.split() == ["fit", "estimator", "unit", "adjacency", "epsilon", "loss", "state"]
    assert line.split() == ["1", "DPPCA", "row", "add_remove", "0.5", "mu=0.1241", "fitted"]
    assert "spent (0.5, 1e-06)-differential privacy" in summary
    assert "Refused" not in summary  # unknown facts of a file are not stated
    assert ledger._repr_html_().count("<tr>") == 2
    with PrivacyLedger(2, 1e-6, note="who") as noted:
        pca().fit(X)
    assert [line.split()[-1] for line in noted.report().splitlines()[:2]] == ["note", "who"]
    assert repr(ledger) == "PrivacyLedger(epsilon=2.0, delta=1e-06)"
