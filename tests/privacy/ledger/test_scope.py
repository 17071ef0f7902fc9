"""Other processes: fits that were charged are allowed there, all others are refused."""

import inspect
import multiprocessing
import os
import pickle
import shutil
import stat
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from skdp import PrivacyError, PrivacyLedger
from skdp.model_selection import IndependentKFold, search_cost
from skdp.privacy.ledger import scope
from tools.ledgers import SCORER, X, attempt, grid, pca

pytestmark = pytest.mark.filterwarnings(
    "ignore::skdp.exceptions.UtilityWarning",
    "ignore::DeprecationWarning",  # forking a process that has threads
)
LOKY = joblib.Parallel(2, backend="loky")


def tried(task):
    return attempt(task)  # a forked worker has this module; `attempt` is sent by value


@pytest.fixture
def in_workers():
    """Return the outcome of tasks in running workers, which an error would end."""
    if not hasattr(os, "fork"):
        pytest.skip("needs os.fork")
    with joblib.Parallel(2, backend=multiprocessing.get_context("fork")) as pool:
        yield lambda *tasks: pool(joblib.delayed(tried)(each) for each in tasks)


def test_workers_refuse_fits_without_a_charge(in_workers):
    model = pca().fit(X)
    assert in_workers(None, None) == ["fitted"] * 2  # the workers were there before
    with PrivacyLedger(3, 1e-5) as ledger:
        built, sent, scored = in_workers(None, pca().fit, partial(SCORER, model))
    assert ledger.entries == () and "another process" in built
    assert "charge" in sent and "charge" in scored
    assert in_workers(None, pca().fit, partial(SCORER, model)) == ["fitted"] * 3


@pytest.mark.deep
def test_workers_charge_the_file(tmp_path, in_workers):
    assert in_workers(None, None) == ["fitted"] * 2
    with PrivacyLedger(2, 1e-6, path=tmp_path / "a.ledger") as ledger:
        told = in_workers(*[None] * 8)
    assert len(ledger.entries) == told.count("fitted") == 3  # mu adds up in squares
    assert all("left, both at" in text for text in told if text != "fitted")
    assert ledger.spent.epsilon <= 2


@pytest.mark.deep  # workers start
def test_a_search_that_was_paid_for_runs_in_workers():
    """The ledger raises at its end for fits that they refused."""
    search = GridSearchCV(
        pca(), {"n_components": [1, 2]}, cv=IndependentKFold(2), scoring=SCORER, n_jobs=2
    )
    with PrivacyLedger(5, 1e-5) as ledger, joblib.parallel_config("loky"):
        with pytest.raises(ValueError, match="charge"):
            search.fit(X)
        assert ledger.entries == ()
        with ledger.charge(search):
            search.fit(X)
            tasks = search.best_estimator_.fit, partial(SCORER, search.best_estimator_)
            more = LOKY(joblib.delayed(attempt)(task) for task in tasks)
        assert "has ended" in more[0]  # with the fit, whatever its workers took
        assert "cannot know on which rows" in more[1]
    assert ledger.spent.losses == search_cost(search).losses
    assert np.all(np.isfinite(search.cv_results_["mean_test_score"]))
    search = grid(IndependentKFold(2), pca(), scoring=SCORER, n_jobs=2)
    with pytest.raises(PrivacyError, match=r"(?s)hid.*the errors.*charge"), PrivacyLedger(9, 1e-5):
        search.fit(X)


def fates(inside):
    """Return the outcome of a new estimator and of pickled ones (by value, as above)."""
    import pickle

    import numpy

    from skdp import DPPCA, PrivacyError

    found = []
    for model in (DPPCA(1, clip_norm=1.0), *pickle.loads(bytes.fromhex(inside))):
        try:
            model.fit(numpy.ones((50, 2)))
            found.append("fitted")
        except PrivacyError:
            found.append("refused")
    return found


SCRIPT = (
    inspect.getsource(fates)
    + """
import sys
for line in sys.stdin:
    print(*fates(line), flush=True)
"""
)
fates.__module__ = "__main__"


def fates_elsewhere(inside, program):
    """In a worker that was started before, and in a program that is started inside."""
    program.stdin.write(f"{inside}\n")
    program.stdin.flush()
    return [*LOKY([joblib.delayed(fates)(inside)]), program.stdout.readline().split()]


@pytest.mark.deep  # a program starts
def test_what_was_pickled_inside_stays_inside():
    run, pipe = [sys.executable, "-W", "ignore", "-c", SCRIPT], subprocess.PIPE
    with PrivacyLedger(3, 1e-5):
        inside = pickle.dumps([pca(), clone(pca())]).hex()
        program = subprocess.Popen(run, stdin=pipe, stdout=pipe, text=True)
        assert fates_elsewhere(inside, program) == [["refused"] * 3] * 2
    with program:
        assert fates_elsewhere(inside, program) == [["fitted", "refused", "refused"]] * 2


def refused_in_child(queue, estimator, closed):
    candidates = (pca(), estimator, clone(estimator), pickle.loads(pickle.dumps(pca())))
    fits = [candidate.fit for candidate in candidates]
    queue.put([attempt(task) for task in (*fits, lambda X: closed.__enter__())])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.parametrize("announced", [True, False])
def test_forked_child_refuses_everything(announced, monkeypatch):
    if not announced:
        monkeypatch.setattr(scope, "_announced", lambda: ())  # its copy of the ledger is enough
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    with PrivacyLedger(3, 1e-5) as ledger:
        closed = PrivacyLedger(3, 1e-5)  # the child has a copy of its whole budget
        child = context.Process(target=refused_in_child, args=(queue, clone(pca()), closed))
        child.start()
        results = queue.get()
        child.join()
    assert len(results) == 5
    assert "process that made it only" in results.pop()
    assert "another process" in results[0]
    assert all("charge" in text for text in results)
    assert ledger.entries == ()


def test_a_copy_of_a_file_pays_for_itself_alone(tmp_path, monkeypatch):
    """The copy has the token of the file that this process has open."""
    ledger = PrivacyLedger(3, 1e-5, path=tmp_path / "a")
    file = ledger._token, scope.LedgerFile(ledger.path)
    monkeypatch.setattr(scope, "_announced", lambda: [file])
    with PrivacyLedger.open(shutil.copy(ledger.path, tmp_path / "b")) as copy:
        pca().fit(X)
    assert len(ledger.entries) == len(copy.entries) == 1


@pytest.mark.parametrize("way", ["descends", "environment"])
def test_what_a_killed_process_left_counts_for_those_that_it_started(monkeypatch, way):
    here = os.getpid()
    withdraw = scope.announce("feed", scope.LedgerFile("somewhere"))
    dead = scope._own_folder() / f"{here}-dead"
    dead.write_text("lost")  # nobody holds it
    inside = {"fork": "the parent's", "feed": ("somewhere", "")}
    inside |= {} if way == "descends" else {"dead": ("lost", "")}
    assert dict(scope._announced()) == {}  # its own
    named = os.environ["SKDP_LEDGERS"]

    def elsewhere():
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: here + 1)
            patch.setattr(scope, "_SEEN", {})
            patch.setattr(scope, "_ancestors", lambda: {str(here)} if way == "descends" else {})
            both = "" if way == "descends" else os.pathsep.join([named, str(dead)])
            patch.setenv("SKDP_LEDGERS", both)
            patch.setitem(scope.OPEN, "fork", Mock(process=here, file="the parent's"))
            return scope.around()[1]

    assert elsewhere() == inside
    withdraw()
    inside.pop("feed")
    assert elsewhere() == inside
    dead.unlink()
    assert elsewhere() == {"fork": "the parent's"}
    assert "feed" not in os.environ["SKDP_LEDGERS"]
    ends = {name: scope.announce(name, scope.LedgerFile("")) for name in ("one", "two", "three")}
    assert [end() or len(scope._named()) for end in ends.values()] == [2, 1, 0]


def test_the_list_of_processes_is_read_again_only_for_an_ancestor(monkeypatch, tmp_path):
    """Files of others, of killed processes and of this one cause no second read."""
    monkeypatch.setattr(scope, "_PLACES", (str(tmp_path),))
    monkeypatch.setattr(scope, "_SEEN", {})
    with monkeypatch.context() as patch:  # where /proc is closed parents are known
        patch.setattr("builtins.open", Mock(side_effect=PermissionError))
        assert str(os.getppid()) in scope._ancestors()
    assert scope._ancestors() & {"0", "1"} or not os.path.exists("/proc")  # up to the first
    read, ancestors = [], {"41", "42"}
    monkeypatch.setattr(scope, "_ancestors", lambda: read.append(1) or set(ancestors))
    withdraw = scope.announce("own", scope.LedgerFile("here"))
    assert dict(scope._announced()) == {} and not read
    held = []
    for name in ("77-dead", "78-other", "42-held", "41-gone"):
        held.append((scope._own_folder() / name).open("x+"))
        held[-1].write(name)
        held[-1].flush()
        if name != "77-dead":
            scope._lock(held[-1], exclusive=True)
        assert dict(scope._announced()) == ({"held": ("42-held", "")} if len(held) > 2 else {}) | (
            {"gone": ("41-gone", "")} if len(held) > 3 else {}
        )
        assert len(read) == {1: 1, 2: 1, 3: 2, 4: 3}[len(held)]
    ancestors.discard("41")  # it ended, and its number went to another process
    assert dict(scope._announced()) == {"held": ("42-held", "")}
    for file in held:
        file.close()
    withdraw()


def test_what_a_child_learns_of_its_parent_counts(monkeypatch, tmp_path):
    """A fork server starts it, so that the parent is known once the child has begun."""
    monkeypatch.setattr(scope, "_PLACES", (str(tmp_path),))
    monkeypatch.setattr(scope, "_SEEN", {})
    monkeypatch.setattr(scope, "_ancestors", set)
    parent = None
    monkeypatch.setattr(scope.multiprocessing, "parent_process", lambda: parent)
    with (scope._own_folder() / "42-held").open("x+") as file:
        file.write("here")
        file.flush()
        scope._lock(file, exclusive=True)
        assert dict(scope._announced()) == {}
        parent = Mock(pid=42)
        monkeypatch.setattr(scope, "_ancestors", lambda: {"42"})
        assert dict(scope._announced()) == {"held": ("here", "")}


def told_later(queue, go):
    go.get()
    queue.put(attempt())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_workers_learn_of_a_ledger_whatever_tmpdir_is(monkeypatch, tmp_path):
    """A program, or a worker, may change it after the other has started."""
    context = multiprocessing.get_context("fork")
    queue, go = context.SimpleQueue(), context.SimpleQueue()
    child = context.Process(target=told_later, args=(queue, go))
    child.start()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with PrivacyLedger(3, 1e-5) as ledger:
        go.put(None)
        assert "another process" in queue.get()
    child.join()
    assert ledger.entries == ()
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="needs owners of files")
@pytest.mark.parametrize("way", ["somebody else's", "a link", 0o770, 0o707])
def test_a_folder_of_another_user_is_ignored(tmp_path, monkeypatch, way):
    """That user could delete the announcement, and workers would fit without a charge."""
    places = [tmp_path / "first", tmp_path / "second"]
    monkeypatch.setattr(scope, "_PLACES", places)
    for place in places:
        place.mkdir()
    first, second = map(Path, scope._folders())
    if way == "a link":
        tmp_path.joinpath("mine").mkdir(mode=0o700)
        first.symlink_to(tmp_path / "mine")
    else:
        first.mkdir()
        first.chmod(way if isinstance(way, int) else 0o700)  # or open to the group, or to others
    if way == "somebody else's":
        found = os.lstat

        def theirs(path):
            fields = list(found(path))
            fields[stat.ST_UID] += str(path) == str(first)
            return os.stat_result(fields)

        monkeypatch.setattr(scope.os, "lstat", theirs)
    with PrivacyLedger(1.0, 1e-6) as ledger:
        assert len(os.listdir(second)) == 1
        assert os.listdir(first) == []
    assert os.listdir(second) == []
    monkeypatch.setattr(scope, "_PLACES", places[:1])
    with pytest.raises(PrivacyError, match="folder of that name of another user"), ledger:
        pass
