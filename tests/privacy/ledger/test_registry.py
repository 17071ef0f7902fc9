"""Many datasets in one file: a budget for each, and lines that nobody changes unseen."""

import json
import sqlite3
from contextlib import closing

import numpy as np
import pytest

from skdp import DPPCA, BudgetExceededError, PrivacyError, PrivacyLedger
from skdp.privacy.accounting.losses import Loss
from skdp.privacy.ledger.balances import Terms
from skdp.privacy.ledger.files import FileBook
from skdp.privacy.ledger.fits import LedgerFit
from skdp.privacy.ledger.registry import read_registry

# Few rows, or noise alone: that fits say so is not what these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore:.*a signal needs:UserWarning")

X = np.random.default_rng(0).standard_normal((200, 3)) / 3


def pca(epsilon=0.5, **params):
    return DPPCA(1, clip_norm=1.0, epsilon=epsilon, **params)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "a.ledger")


@pytest.fixture
def both(path):
    """A file with two datasets; one fit to each, and one that cost nothing."""
    with PrivacyLedger(2, 1e-6, path=path, dataset="patients") as patients:
        pca(1.0).fit(X)
        with pytest.raises(ValueError):
            pca().fit(X[0])
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
    with pytest.raises(PrivacyError, match=r"say which 'dataset'.*'patients', 'visits'"):
        PrivacyLedger.open(path)
    with pytest.raises(PrivacyError, match="say which"):  # no third budget by accident
        PrivacyLedger(9, 1e-6, path=path)
    with pytest.raises(PrivacyError, match="no dataset 'patient'"):
        PrivacyLedger.open(path, "patient")
    with pytest.raises(ValueError, match="other terms"):
        PrivacyLedger(3, 1e-6, path=path, dataset="patients")
    with pytest.raises(ValueError, match="give its 'path'"):
        PrivacyLedger(3, 1e-6, dataset="patients")
    with pytest.raises(PrivacyError, match="open around this process"):
        FileBook(path, token="another")


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
    with pytest.raises(ValueError, match="keeps its history"):
        PrivacyLedger(1, 1e-6).history()


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
    head = patients.head
    change(path, TAMPERED[way])
    with pytest.raises(PrivacyError, match="was changed after it was written"):
        patients.remaining()
    with pytest.raises(PrivacyError, match="was changed"), patients:
        pca(0.1).fit(X)
    with pytest.raises(PrivacyError, match="was changed"):
        PrivacyLedger.open(path, "visits")
    assert head


def test_lines_taken_from_the_end_are_seen_by_a_head(path, both):
    patients, _ = both
    head = patients.head
    assert head in read_registry(path).hashes
    change(path, "DELETE FROM lines WHERE number = (SELECT max(number) FROM lines)")
    assert head not in read_registry(path).hashes  # whole by itself, and older


def test_an_export_is_verified_and_says_the_same(path, both, tmp_path):
    patients, _ = both
    exported = tmp_path / "all.json"
    exported.write_text(read_registry(path).export(), encoding="utf-8")
    read = read_registry(exported)
    assert read.head == patients.head
    assert tuple(read.choose("patients").entries.values()) == patients.entries
    state = json.loads(exported.read_text())
    assert state["format"] == "skdp ledger 2"
    state["lines"][2]["fit"]["losses"] = []
    exported.write_text(json.dumps(state), encoding="utf-8")
    with pytest.raises(PrivacyError, match=r"line 3 of .* was changed"):
        read_registry(exported)
    exported.write_text("{}", encoding="utf-8")
    with pytest.raises(PrivacyError, match="no exported"):
        read_registry(exported)


def test_two_datasets_of_a_file_are_two_payers(path):
    books = [FileBook(path, Terms(1.0, 1e-6), name) for name in "ab"]
    assert books[0] != books[1]
    assert len({*books, FileBook(path, dataset="a")}) == 2
    fit = LedgerFit("Fit", "row", "replace", (Loss("gaussian", 0.1),), False)
    assert [book.reserve(fit) for book in books] == [1, 1]
    books[0].settle(1, (), "failed")
    assert [len(book.balance().entries) for book in books] == [0, 1]
