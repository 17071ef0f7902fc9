"""Reservations: as many fits as were paid for, in any thread or process, and one refit."""

import copy
import math
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from contextvars import Context
from functools import partial

import numpy as np
import pytest
from sklearn.base import clone

from skdp import BudgetExceededError, PrivacyError, PrivacyLedger
from skdp.privacy.accounting.losses import Loss
from skdp.privacy.gate.bounds import Bound
from skdp.privacy.ledger import fits, routes
from skdp.privacy.ledger.routes import ReservationKey, RunLimit, SearchReservation
from skdp.privacy.ledger.scope import LedgerFile
from tools.gate import new_session
from tools.ledgers import X, fit_of, forgiving, pca
from tools.outcomes import refuses


def fit(mu, kind="gaussian", adjacency="replace", **parameters):
    return fit_of(Loss(kind, mu), adjacency=adjacency, **parameters)


def taken(reserved, *fits):
    """Return how many of the fits a reservation has room for."""
    done = 0
    for each in fits:
        try:
            reserved.reserve(each)
            done += 1
        except BudgetExceededError:
            pass
    return done


@pytest.fixture
def written():
    made = []

    def write(*lists):
        made.append(SearchReservation.write(*lists))
        return made[-1]

    yield write
    for reserved in made:
        if os.path.exists(reserved.path):
            reserved.end()


def test_each_fit_once_and_one_refit(written):
    reserved = written([fit(1.0), fit(1.0), fit(2.0)], [[fit(1.0)], [fit(2.0)]])
    assert taken(reserved, fit(1.0, unit="label"), fit(1.0, adjacency="add_remove"), fit(0.5)) == 0
    assert taken(reserved, *[fit(1.0)] * 9) == 3
    assert taken(reserved, *[fit(2.0)] * 9) == 1  # the refit was that of the other candidate
    assert reserved.end()


def test_a_refit_of_several_parts_is_that_of_one_candidate(written):
    reserved = written([], [[fit(1.0), fit(3.0)], [fit(3.0), fit(1.0)], [fit(1.0), fit(2.0)]])
    assert taken(reserved, fit(1.0), fit(2.0)) == 2
    assert taken(reserved, fit(3.0), fit(1.0)) == 0


def test_many_threads_take_no_more_than_there_is(written):
    reserved = written([fit(1.0)] * 20, [])
    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(lambda _: taken(reserved, fit(1.0)), range(60))) == 20


def test_a_reservation_ends_in_all_processes(written):
    reserved = written([fit(1.0)] * 3, [])
    other = SearchReservation(reserved.path)  # as another process sees it
    assert taken(other, fit(1.0)) == 1
    other.check_same_part(0)
    with closing(routes.connect(reserved.path)) as late:  # opened before the end
        reserved.end()
        assert not routes._take(late, routes._kind(fit(1.0)))
    for each in (reserved, other):
        refuses(PrivacyError, "has ended", each.reserve, fit(1.0))
        refuses(PrivacyError, "has ended", each.check_same_part, 0)  # of a stream that goes on
    assert not os.path.exists(reserved.path)
    assert not written([fit(1.0)], []).end()


def test_a_removed_reservation_counts_as_used(written):
    """Otherwise a program that deletes temporary files would refund released fits."""
    reserved = written([fit(1.0)], [])
    assert taken(reserved, fit(1.0)) == 1
    os.unlink(reserved.path)
    assert reserved.end()


def test_reservations_are_not_copied(written):
    for reservation in (written([], []), RunLimit("row", "replace", Loss("gaussian", 1.0))):
        for action in (copy.copy, copy.deepcopy, pickle.dumps):
            refuses(PrivacyError, "copied or pickled", action, reservation)
        refuses(PrivacyError, "secure sum", reservation.scale, 0, 2.0)
        with pytest.raises(PrivacyError, match="do not compose with other runs"):
            reservation.recharge(0, (Loss("sketch", math.inf),))


def test_a_run_takes_fits_of_its_meaning_and_size_only(monkeypatch):
    """A fit that protects something else would be published under the receipt of the search."""
    limit = RunLimit("row", "replace", Loss("gaussian", 1.0))
    for other in ({"unit": "label"}, {"unit": "group"}, {"adjacency": "add_remove"}):
        with pytest.raises(PrivacyError, match="Use one privacy unit and adjacency"):
            limit.reserve(fit(0.1, **other))
    mixed = fit_of(Loss("gaussian", 0.1), Loss("pure", 0.1), adjacency="replace")
    refuses(PrivacyError, "'gaussian' ones only", limit.reserve, mixed)
    limit.reserve(fit(0.1))
    monkeypatch.setattr(os, "getpid", lambda: 0)  # a forked child has a copy of what is left
    refuses(PrivacyError, "another process than its search", limit.reserve, fit(0.1))


@pytest.mark.parametrize(("kind", "sizes"), [("gaussian", (0.6, 0.8)), ("pure", (0.5, 0.5))])
def test_a_run_adds_up_its_fits(kind, sizes):
    """Squares of mu add up, and epsilons."""
    limit = RunLimit("row", "replace", Loss(kind, 1.0))
    for size in sizes:
        limit.reserve(fit(size, kind))
    refuses(BudgetExceededError, None, limit.reserve, fit(0.01, kind))
    limit.next_run()
    limit.reserve(fit(1.0, kind))


# -- ledgers that open late ------------------------------------------------------------------------


@pytest.mark.parametrize(("delta", "total"), [(1e-6, math.hypot), (0.0, lambda *parts: sum(parts))])
def test_a_ledger_that_opens_late_pays_for_what_was_granted_and_all_that_is_left(delta, total):
    """For every composition of its shares: together they are the budget."""
    session = new_session(1.0, delta, observer=routes.Account())
    session.grant(Bound("sum", (), 1.0, l1=1.0), 0.3)
    with PrivacyLedger(20, 1e-5) as ledger:
        routes.charge(session, "Stream")
        (entry,) = ledger.entries
    budget = session.budget.mu or session.budget.pure_epsilon
    assert total(*(loss.value for loss in entry.losses)) == pytest.approx(budget)


def test_a_payment_covers_only_the_charged_ledgers(monkeypatch):
    """Not one that was opened meanwhile. It ends with any part; a used one stays charged."""
    model, late, charge_all, ends = pca(), PrivacyLedger(3, 1e-5), routes._charge_all, []
    with PrivacyLedger(3, 1e-5) as ledger, PrivacyLedger(3, 1e-5) as inner, ExitStack() as stack:
        both = lambda *args: [charge_all(*args), stack.enter_context(late)]  # noqa: E731
        monkeypatch.setattr(routes, "_charge_all", both)
        monkeypatch.setattr(routes, "at_end_of_part", lambda token, _: ends.append(token))
        with suppress(KeyError), routes.charged(routes.Payment((model,), fit(0.1), (fit(0.1),))):
            key = model._reservation_key
            assert {*key.ledgers} == {*ends} == {ledger._token, inner._token}
            routes._RESERVATIONS[key.reservation].reserve(fit(0.1))
            raise KeyError
        assert len(ledger.entries) == 1


def test_a_ledger_that_opens_during_a_paid_fit_is_charged(written):
    """A charge in advance covers the ledgers that were charged, and no other."""
    session = new_session(observer=routes.Account())
    session.observer.charges.append((written([fit(1.0)], [], ["who paid"]), 0))
    with PrivacyLedger(3, 1e-5) as ledger:
        for _ in range(2):  # once
            routes.charge(session, "Stream")
        assert [entry.estimator for entry in ledger.entries] == ["Stream"]


# -- keys -----------------------------------------------------------------------------------------


def test_a_private_search_is_a_fit_and_its_runs_end_with_it(monkeypatch):
    limit, unpaid = RunLimit("row", "replace", Loss("gaussian", 1.0)), ReservationKey(("a ledger",))
    refuses(PrivacyError, "was cloned", routes.prepaid(fit(1.0), unpaid, limit).__enter__)
    with routes.prepaid(fit(1.0), None, limit):
        key = routes.handed_on(None)
        assert routes._reservation(unpaid, "Fit") is routes._RESERVATIONS[key.reservation] is limit
        with PrivacyLedger(3, 1e-5) as ledger, ExitStack() as stack:
            Context().run(stack.enter_context, PrivacyLedger(3, 1e-5))  # it would count the runs
            own, late = routes.around()[0], {"late": LedgerFile("")}  # of an ancestor process
            monkeypatch.setattr(routes, "around", lambda: (own, late))
            assert routes._payers(None, "Fit") == [limit, ledger._book]
            monkeypatch.undo()
        for granted, state in (((Loss("gaussian", 0.1),), "fitted"), ((), "failed")):
            limit.settle(0, granted, state)
    assert limit.granted and not routes.RUN.get() and limit.token not in routes._RESERVATIONS
    monkeypatch.setattr(fits, "_MADE", {})  # of another process
    assert routes.handed_on(key) is key


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_clones_and_pickles_of_a_ledger_are_refused():
    before = clone(pca())
    with forgiving(3, 1e-5) as ledger:
        copies = clone(pca()), copy.deepcopy(pca()), pickle.loads(pickle.dumps(pca()))
        for each in (*copies, clone(copies[0]), pickle.loads(pickle.dumps(copies[0]))):
            refuses(PrivacyError, r"with ledger\.charge", each.fit, X)
        before.fit(X)
        assert len(ledger.entries) == 1
    for each in copies:  # the ledger is closed, and they are still its own
        refuses(PrivacyError, r"sklearn\.base\.clone", each.fit, X)
        clone(each).fit(X)
    before.fit(X)


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_a_reservation_key_does_not_show():
    plain = pca()
    with PrivacyLedger(3, 1e-5) as ledger, ledger.charge(plain, assume_all_rows=True):
        keyed = clone(plain).fit(X)
    plain.fit(X)
    assert keyed.get_params() == plain.get_params()
    assert repr(keyed) == repr(plain)
    assert "_reservation_key" not in keyed._repr_html_()
    assert "_reservation_key" not in vars(clone(keyed))
    assert "_reservation_key" not in keyed.__getstate__()  # of a ledger that is closed
    assert "_reservation_key" not in vars(plain)
    loaded = pickle.loads(pickle.dumps(keyed))
    np.testing.assert_array_equal(loaded.transform(X), keyed.transform(X))


def test_a_fit_beside_a_ledger_that_cannot_be_charged_is_refused(monkeypatch):
    """An ancestor process announced a ledger in memory, which has no file to charge."""
    monkeypatch.setattr(routes, "around", lambda: ({}, {"elsewhere": LedgerFile("")}))
    session = new_session(observer=routes.Account())
    session.observer.charges.append((PrivacyLedger(3, 1e-5)._book, 0))  # before that one opened
    stream = partial(routes.charge, session, "Stream", in_any_part=True)
    for charged, *given in ((pca().fit, X), (stream,)):
        refuses(PrivacyError, "runs in another process than the PrivacyLedger", charged, *given)
    assert routes.handed_on(None) == ReservationKey(("elsewhere",))  # of a clone made here


@pytest.mark.parametrize("reserved", ["", "gone"])
def test_what_was_paid_for_ends_with_its_reservation(tmp_path, monkeypatch, reserved):
    """In another process too, which knows it from its file alone."""
    key = ReservationKey((), "of another process", str(tmp_path / reserved) if reserved else "")
    refuses(PrivacyError, "this charge has ended", routes._reservation, key, "Fit")
    whole = ReservationKey(("one", "two"), "of another process", str(tmp_path), "whole")
    for known in ({}, {"one": LedgerFile("a file")}):  # a worker that was not started from there
        monkeypatch.setattr(routes, "around", lambda known=known: ({}, known))
        refuses(PrivacyError, "runs in another process", routes._reservation, whole, "Fit")
        with monkeypatch.context() as patch:  # or a ledger that was closed before its charge
            patch.setitem(routes._RESERVATIONS, whole.reservation, routes.Reservation())
            refuses(PrivacyError, "runs in another process", routes._reservation, whole, "Fit")
    monkeypatch.setattr(routes, "around", lambda: ({"one": None}, {"two": None}))
    assert not routes._reservation(whole, "Fit").covers  # each fit is charged
