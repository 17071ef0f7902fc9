"""A ledger in a file: on disk before data are read, and shared by processes that may be killed."""

import json
import multiprocessing
import os
import signal
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from sklearn.base import clone

from skdp import BudgetExceededError, PrivacyError, PrivacyLedger
from skdp.privacy import store
from skdp.privacy.accounting.losses import Loss, SketchMixture
from skdp.privacy.gate.bounds import PrivacyBudget
from skdp.privacy.ledger import books as ledgers
from skdp.privacy.ledger.balances import Terms
from skdp.privacy.ledger.books import Book, FileBook
from skdp.privacy.ledger.filters import Sum
from tools.ledgers import X, attempt, fit_of, pca
from tools.outcomes import refuses

TERMS = Terms(1.0, 1e-6)
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
FORK = multiprocessing.get_context("fork") if hasattr(os, "fork") else None


fit = partial(fit_of, adjacency="replace")


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "a.ledger")


# -- what is kept ---------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_another_program_goes_on(path):
    with PrivacyLedger(2, 1e-6, path=path) as first:
        pca().fit(X)
    again = PrivacyLedger(2, 1e-6, path=path)
    assert again.entries == first.entries
    assert again.spent == first.spent
    assert again.remaining() == first.remaining() < 2
    with again:
        pca().fit(X)
    assert len(first.entries) == 2
    refuses(ValueError, "other terms", PrivacyLedger, 3, 1e-6, path=path)
    beside = PrivacyLedger(2, 1e-6, path=path)  # of the same data, and never open
    with again:
        refuses(PrivacyError, "open already", beside.__enter__)
        for block in (beside.charge(pca(), assume_all_rows=True), beside.partition("k", ["a"])):
            with pytest.raises(PrivacyError, match="open the PrivacyLedger first"), block:
                pass
        beside.__exit__(None, None, None)
        pca(0.01).fit(X)
    assert len(again.entries) == 3


def test_all_of_an_entry_is_kept(path):
    sketch = Loss("sketch", SketchMixture(((0.1, (40,)), (0.2, (3, 5))), 1))
    losses = tuple(Loss(kind, 0.1) for kind in ("gaussian", "pure", "range", "delta")) + (sketch,)
    entry = replace(fit(*losses), seeded=True, factor=2.0, sessions=3, parts=1.5, promised=())
    assert ledgers._fit_from_state(json.loads(json.dumps(ledgers.fit_state(entry)))) == entry


def test_refused_or_interrupted_changes_leave_nothing(path):
    for book in (FileBook(path, TERMS), Book(TERMS)):
        key = book.reserve(fit(Loss("gaussian", 0.1)))
        before = book.balance().entries
        refuses(BudgetExceededError, None, book.reserve, fit(Loss("gaussian", 9.0)))
        refuses(BudgetExceededError, None, book.scale, key, 90.0)
        book.scale(key, 2.0)
        book.scale(key, 1.0)
        with pytest.raises(ZeroDivisionError), book.held() as balance:
            any(
                balance.put(key, balance.put(key + 1, fit(Loss("pure", 0.1 / n))))
                for n in (1, 1, 0)
            )
        again = FileBook(path) if isinstance(book, FileBook) else book
        assert again.balance().entries == before
        assert len(book.refused) == 2


def test_a_file_that_cannot_be_used_pays_nothing(path):
    refuses(PrivacyError, "cannot be read or written", FileBook, path)
    with PrivacyLedger(2, 1e-6, path=path) as ledger:
        os.unlink(path)
        refuses(PrivacyError, "nothing may be fitted", pca().fit, X)
        ledger._refused.clear()
    path += " of another"
    open(path, "w").close()
    refuses(PrivacyError, "a PrivacyLedger", FileBook, path)


# -- before data are read -------------------------------------------------------------------------


def test_a_charge_reads_what_is_new_alone(path, monkeypatch):
    """It takes the same time after a thousand fits as after one."""
    checked, hashed, summed, plus = [], store.chained, [], Sum.plus

    def seen(before, record):
        checked.extend([record] * record.startswith(b"{"))  # and not the marker
        return hashed(before, record)

    monkeypatch.setattr(store, "chained", seen)
    monkeypatch.setattr(Sum, "plus", lambda *sums: summed.append(1) or plus(*sums))
    book, other = FileBook(path, TERMS), FileBook(path)
    sums = []
    for n in range(1, 5):
        checked.clear()
        summed.clear()
        key = book.reserve(fit(Loss("gaussian", 0.01)))
        assert len(checked) == 1
        sums.append(len(summed))
        other.settle(key, (Loss("gaussian", 0.01),), "fitted")
        assert len(checked) == 2
        assert book.balance().entries == other.balance().entries
        assert len(checked) == 2 + 2 * (2 + 2 * n)  # who looks, looks at all
    assert sums[1] == sums[2] == sums[3]


def charge_all_day(path, size, pipe):
    book = FileBook(path)
    while True:
        try:
            key = book.reserve(fit(Loss("gaussian", size)))
        except BudgetExceededError:
            os._exit(0)
        os.write(pipe, b".")  # only now would data be read
        book.settle(key, (Loss("gaussian", size),), "fitted")


@pytest.mark.deep
@forks
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_eight_processes_that_are_killed_never_exceed_the_budget(path):
    room = 60
    size = PrivacyBudget(1.0, 1e-6).mu / np.sqrt(room + 0.5)
    book, (heard, pipe) = FileBook(path, TERMS), os.pipe()
    rng, kills = np.random.default_rng(0), 0

    def start():
        child = FORK.Process(target=charge_all_day, args=(path, size, pipe))
        child.start()
        return child

    children = [start() for _ in range(8)]
    while kills < 10:
        i = rng.integers(8)
        time.sleep(rng.uniform(0, 0.03))
        if children[i].is_alive():
            os.kill(children[i].pid, signal.SIGKILL)
        children[i].join()
        children[i] = start()
        kills += 1
    for child in children:
        child.join()
    os.close(pipe)
    with os.fdopen(heard, "rb") as answers:
        released = len(answers.read())
    balance = book.balance()
    assert len(balance.entries) == room
    assert room - kills <= released <= room
    assert balance.affords()
    assert not balance.affords(fit(Loss("gaussian", size)))


# -- other processes ------------------------------------------------------------------------------


def outcome(queue, model=None):
    child = FORK.Process(target=lambda: queue.put(attempt((model or pca(0.1)).fit)))
    child.start()
    told = queue.get()
    child.join()
    return told


@forks
@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning", "ignore::DeprecationWarning")
def test_children_charge_the_file(path):
    queue = FORK.SimpleQueue()
    with PrivacyLedger(1, 1e-6, path=path, note="who") as ledger, PrivacyLedger(9, 1e-6) as other:
        assert "another process" in outcome(queue)  # the other ledger has no file
    assert ledger.entries == other.entries == ()
    model = pca(0.1)
    with ledger:
        with ledger.charge(model, assume_all_rows=True):
            copy = clone(model)
            told = [outcome(queue), outcome(queue, copy)]
        told += [outcome(queue, copy), outcome(queue, clone(model))]
        model.fit(X)
    child = FORK.Process(target=ledger._book.settle, args=(3, (), "failed"))  # goes on here
    child.start()
    child.join()
    assert told[:2] == ["fitted"] * 2
    assert "has ended" in told[2]
    assert "charge" in told[3]
    assert [(entry.state, entry.note) for entry in ledger.entries] == [("fitted", "who")] * 3
    refuses(ValueError, "'note' must be a text", PrivacyLedger, 1, 1e-6, note=3)
