"""Many datasets in one file: a budget for each, and changes of lines are detected."""

import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from skdp import BudgetExceededError, PrivacyError, PrivacyLedger
from skdp.privacy import store
from skdp.privacy.ledger import books as ledgers
from skdp.privacy.ledger.balances import Terms
from skdp.privacy.ledger.books import FileBook, read_registry
from tools.ledgers import X, gaussian_fit, pca
from tools.outcomes import refuses

# Few rows, or noise alone: warnings of fits are not the subject here.
pytestmark = pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")


def a_fit():
    return gaussian_fit(0.1, adjacency="replace")


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "a.ledger")


@pytest.fixture
def both(path):
    """A file with two datasets; one fit to each, and one that cost nothing."""
    with PrivacyLedger(2, 1e-6, path=path, dataset="patients") as patients:
        pca(1.0).fit(X)
        refuses(ValueError, None, pca().fit, X[0])
    with PrivacyLedger(1, 1e-5, adjacency="replace", path=path, dataset="visits") as visits:
        pca(0.5, adjacency="replace").fit(X)
    return patients, visits


def test_each_dataset_has_its_own_budget(path, both):
    patients, visits = both
    assert patients.spent.epsilon == pytest.approx(1.0, rel=1e-9)
    assert visits.spent.adjacency == "replace"
    assert visits.spent.epsilon < 0.5
    again = PrivacyLedger.open(path, "visits")
    assert (again.epsilon, again.delta, again.dataset) == (1.0, 1e-5, "visits")
    assert again.entries == visits.entries
    with patients, again:  # rows that are in both
        pca(0.1).fit(X)
    assert [len(ledger.entries) for ledger in (patients, visits)] == [2, 2]
    with pytest.raises(BudgetExceededError), visits:
        pca(1.5, adjacency="replace").fit(X)
    assert patients.remaining() > 1.4


def test_a_dataset_is_named_wherever_it_could_be_another(path, both):
    refuses(PrivacyError, r"say which 'dataset'.*'patients', 'visits'", PrivacyLedger.open, path)
    with pytest.raises(PrivacyError, match="say which"):  # no third budget by accident
        PrivacyLedger(9, 1e-6, path=path)
    refuses(PrivacyError, "no dataset 'patient'", PrivacyLedger.open, path, "patient")
    (notes := Path(path).with_name("notes")).write_text("mine")
    refuses(PrivacyError, "no PrivacyLedger file", PrivacyLedger.open, notes)
    assert not notes.with_name("notes.lock").exists()
    refuses(ValueError, "other terms", PrivacyLedger, 3, 1e-6, path=path, dataset="patients")
    refuses(ValueError, "give its 'path'", PrivacyLedger, 3, 1e-6, dataset="patients")
    refuses(PrivacyError, "a parent process has opened", FileBook, path, token="another")


def test_one_dataset_needs_no_name(path):
    with PrivacyLedger(2, 1e-6, path=path, dataset="patients"):
        pca().fit(X)
    assert len(PrivacyLedger.open(path).entries) == 1
    assert len(PrivacyLedger(2, 1e-6, path=path).entries) == 1


def test_history_has_every_change(both):
    patients, visits = both
    history = patients.history()
    assert list(history.state) == ["open", "fitted", "open", "took nothing"]
    assert list(history.fit) == [1, 1, 2, 2]
    assert set(history.dataset) == {"patients"}
    assert (history["at"].str.len() == 25).all()  # UTC, to the second
    assert "took nothing" not in visits.history().to_html()
    refuses(ValueError, r"history: use report\(\)", PrivacyLedger(1, 1e-6).history)


def change(path, command, *values):
    with closing(sqlite3.connect(path)) as file:
        file.execute(command, values)
        file.commit()


TAMPERED = {
    "changed": "UPDATE lines SET line = replace(line, '0.2', '0.1') WHERE number = 3",
    "taken out": "DELETE FROM lines WHERE number = 3",
    "exchanged": "UPDATE lines SET number = CASE number WHEN 3 THEN -4 ELSE -3 END"
    " WHERE number IN (3, 4)",
    "hash made anew": "UPDATE lines SET hash = hash || 'a' WHERE number = 3",
}


@pytest.mark.thorough
@pytest.mark.parametrize("way", TAMPERED)
def test_a_changed_line_is_seen_and_nothing_is_charged(path, both, way):
    patients, _ = both
    head = patients.file_hash
    change(path, TAMPERED[way])
    refuses(PrivacyError, "was changed after it was written", patients.remaining)
    with pytest.raises(PrivacyError, match="was changed"), patients:
        pca(0.1).fit(X)
    refuses(PrivacyError, "was changed", PrivacyLedger.open, path, "visits")
    assert head


@pytest.mark.parametrize("way", ["last line", "older copy", "emptied", "written anew"])
@pytest.mark.parametrize("known", ["marker", "memory"])
def test_a_file_that_is_behind_is_refused(path, both, way, known, monkeypatch):
    """A restored backup: the lock file, and a process that read later lines, show it."""
    patients, visits = both
    head, older = patients.file_hash, path + ".older"
    shutil.copy(path, older)
    with patients:
        pca(0.1).fit(X)
    if way == "last line":
        change(path, "DELETE FROM lines WHERE number = (SELECT max(number) FROM lines)")
    elif way == "emptied":
        change(path, "DELETE FROM lines")
    elif way == "written anew":
        os.unlink(path)
        book = FileBook(path + " anew", Terms(2.0, 1e-6), "patients")
        for _ in range(10):  # as many lines as there were, and more
            book.reserve(a_fit())
        shutil.copy(path + " anew", path)
    else:
        shutil.copy(older, path)
    if known == "memory":
        os.unlink(path + ".lock")
    else:
        monkeypatch.setattr(store, "_SEEN", {})
        monkeypatch.setattr(ledgers, "_KEPT", {})
    key = max(patients._book._last, 1)
    for act in (
        lambda: patients._book.settle(key, (), "failed"),
        lambda: patients.remaining(),
        lambda: visits._book.reserve(a_fit()),
        lambda: PrivacyLedger.open(path, "patients"),
        lambda: PrivacyLedger(2, 1e-6, path=path, dataset="patients"),
        lambda: read_registry(path),
    ):
        refuses(PrivacyError, "which it had before", act)
    os.rename(path, older)  # if nothing else is known, a stored hash is compared
    assert (head in read_registry(older).hashes) is (way in ("last line", "older copy"))


def test_every_hash_is_over_all_lines_before(path, both):
    """A changed line with a new hash does not match the next line."""
    with closing(sqlite3.connect(path)) as file:
        ((line,),) = file.execute("SELECT line FROM lines WHERE number = 3")
    changed = line.replace(b"0.2", b"0.1")
    assert changed != line
    for before in read_registry(path).hashes[1], "":
        change(path, "UPDATE lines SET line = ?, hash = ? WHERE number = 3",
               changed, store.chained(before, changed))  # fmt: skip
        refuses(PrivacyError, r"line [34] of .* was changed", read_registry, path)


def test_numbers_of_lines_have_no_holes(path, both):
    change(path, "UPDATE lines SET number = 99 WHERE number = (SELECT max(number) FROM lines)")
    os.rename(path, path + " elsewhere")
    refuses(PrivacyError, r"line \d of .* was changed", read_registry, path + " elsewhere")


def test_an_export_is_verified_and_says_the_same(path, both, tmp_path):
    patients, _ = both
    exported = tmp_path / "all.json"
    exported.write_text(read_registry(path).export(), encoding="utf-8")
    read = read_registry(exported)
    assert read.file_hash == patients.file_hash
    assert tuple(read.choose("patients").now.entries.values()) == patients.entries
    state = json.loads(exported.read_text())
    assert state["format"] == "skdp ledger 3"
    state["lines"][2]["fit"]["losses"] = []
    exported.write_text(json.dumps(state), encoding="utf-8")
    refuses(PrivacyError, r"line 3 of .* was changed", read_registry, exported)
    exported.write_text("{}", encoding="utf-8")
    refuses(PrivacyError, "nor an export", read_registry, exported)


def test_two_datasets_of_a_file_are_two_payers(path):
    books = [FileBook(path, Terms(1.0, 1e-6), name) for name in (None, "")]
    assert books[0] != books[1]
    assert len({*books, FileBook(path, dataset="data")}) == 2
    shutil.copy(path, path + " copied")
    assert books[0] != FileBook(path + " copied", dataset="data")
    assert [book.reserve(a_fit()) for book in books] == [1, 1]
    books[0].settle(1, (), "failed")
    assert [len(book.balance().entries) for book in books] == [0, 1]
    assert books[0].reserve(a_fit()) == 2  # a number is not used again
