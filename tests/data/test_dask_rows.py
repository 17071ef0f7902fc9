"""Rows on Dask workers: the bits of the fit in memory; workers send only sums."""

import gc
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from importlib.util import find_spec

import numpy as np
import pytest
from sklearn.base import clone

import skdp
from skdp.data import stored_rows
from skdp.data.stored_rows import DaskRows, lazy_blocks
from skdp.exceptions import PrivacyError
from skdp.preprocessing import DPStandardScaler
from skdp.testing import record_transcript
from tools.outcomes import refuses
from tools.places import (
    CHUNKS,
    GROUPS,
    SECRET,
    SECRET_TARGET,
    D,
    N,
    X,
    Y,
    assert_same_bits,
    fitted,
    lazy,
    public,
    unknown,
)

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")
if find_spec("distributed") is None:
    pytest.skip("needs distributed", allow_module_level=True)  # whose import takes its time


@pytest.fixture(autouse=True)
def here():
    """Blocks are summed in this thread unless a test asks for the cluster."""
    with dask.config.set(scheduler="synchronous"):
        yield


@contextmanager
def started(processes):
    import distributed

    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=processes, dashboard_address=":0"
        ) as local,
        distributed.Client(local, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def local_cluster():
    with started(processes=True) as client:
        yield client


@pytest.fixture
def cluster(local_cluster):
    with dask.config.set(scheduler=local_cluster.get):
        yield local_cluster


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.deep)], ids=["here", "apart"])
def any_cluster(request):
    """Yield one in this process, which starts at once, and in the deep tier one of two others."""
    if request.param:
        yield request.getfixturevalue("cluster")
    else:
        with started(processes=False) as client, dask.config.set(scheduler=client.get):
            yield client


# -- the same bits ---------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*no noise:skdp.exceptions.PrivacyWarning")
def test_epsilon_inf_agrees():
    for model, name, y in ((skdp.DPPCA(2), "components_", ()), (skdp.DPRidge(), "coef_", (Y,))):
        model.set_params(epsilon=np.inf, clip_norm=np.inf)
        here, there = public(model.fit(X, *y)), public(model.fit(lazy(X), *map(lazy, y)))
        assert np.allclose(here[name], there[name], atol=1e-9)


FITS = {
    "pca": (skdp.DPPCA(2), ()),
    "increments": (skdp.DPIncrementalPCA(2), ()),
    "scaler": (DPStandardScaler(), ()),
    "ridge": (skdp.DPRidge(), (Y,)),
    "classes": (skdp.DPRidgeClassifier(classes=[-1, 1]), (np.where(Y > 0, 1, -1),)),
    "trace": (skdp.DPTraceRegressor(1, matrix_shape=(4, 2), epsilon=20.0), (Y,)),
}


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
@pytest.mark.parametrize("name", [name for name in FITS if name != "trace"])
def test_a_cluster_fits_every_kind_of_estimator(name, cluster):
    model, y = FITS[name]
    targets, expected = [lazy(values) for values in y], fitted(model, X, *y)
    assert_same_bits(expected, fitted(model, lazy(X), *targets))
    assert_same_bits(expected, fitted(model, lazy(X), *y))
    assert_same_bits(expected, fitted(model, cluster.persist(lazy(X)), *targets))


def test_blocks_are_made_inside_their_task_where_the_graph_allows_it():
    array = da.from_array(X, chunks=(CHUNKS, D), name=False)
    kinds = [
        type(b).__name__ for b in (*lazy_blocks(array * 2), *lazy_blocks(array - array.mean(0)))
    ]
    assert kinds == ["Lazy"] * 3 + ["Delayed"] * 3


# -- what workers send -----------------------------------------------------------------


@pytest.fixture
def totals(monkeypatch):
    """Record everything that `dask.compute` returns to the driver during a fit."""
    seen, true = [], dask.compute

    def compute(*args, **kwargs):
        out = true(*args, **kwargs)
        seen.extend(out)
        return out

    monkeypatch.setattr(dask, "compute", compute)
    return seen


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
@pytest.mark.parametrize("name", FITS)
def test_only_sums_of_integers_reach_the_driver(name, totals):
    model, y = FITS[name]
    with record_transcript() as transcript:
        model.fit(unknown(X), *map(unknown, y))
    assert all(isinstance(total, np.ndarray) for total in totals)
    assert {total.dtype for total in totals} == {np.dtype(np.int64)}
    counts = {(), (2,)}  # numbers of rows, and of rows on both sides of a threshold
    # Entries of columns in the cells of a public grid, counted once for all questions: log2 bins,
    # places, and parts of what these leave likely, at a few multiples or alone.
    columns = {(columns, cells) for columns in (1, D, D + 1) for cells in (112, 67, 131, 66)}
    # Two limbs, and the intercept's; and those of predictions, targets and 1.
    sums_of_records = {(2 * D + 1,), (2, 3, 3)}
    allowed = {opening.bound.shape for opening in transcript} | counts | columns | sums_of_records
    if name in ("pca", "increments"):
        allowed |= {(D + 2 * p, p) for p in range(1, D)}  # a product before its public map
        allowed |= {(2 * D, D + p) for p in range(D)}  # in two limbs, with products of long rows
        allowed |= {(2, D, D)}  # the moment in two limbs, for all that is asked of it
        assert len(totals) >= len(transcript) - 5  # of releases of one sum, or of what it serves
    assert {total.shape for total in totals} <= allowed
    searches = {opening.bound.shape for opening in transcript if "ranks" in opening.bound.name}
    assert bool(columns & {total.shape for total in totals}) == bool(searches)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_messages_to_workers_hold_no_rows_and_no_targets(monkeypatch):
    """A function that carried its query would carry the graph of all blocks."""
    import cloudpickle

    sent, true = [], stored_rows._broadcast

    def broadcast(work):
        sent.append(cloudpickle.dumps(work))
        return true(work)

    monkeypatch.setattr(stored_rows, "_broadcast", broadcast)
    y = np.where(np.arange(N) == 7, SECRET_TARGET, Y)
    for model in (skdp.DPPCA(2), skdp.DPPCA(), skdp.DPTruncatedSVD(2, algorithm="screened"),
                  DPStandardScaler(), skdp.DPIncrementalPCA(2)):  # fmt: skip
        model.fit(lazy(X))
    trace = FITS["trace"][0]
    for model, targets in ((skdp.DPRidge(), lazy(y)), (skdp.DPRidge(), y), (trace, lazy(y)),
                           (clone(trace).set_params(privacy_unit="label"), y)):  # fmt: skip
        model.fit(lazy(X), targets)
    assert len(sent) > 60
    secrets = [np.float64(value).tobytes() for value in (SECRET, SECRET_TARGET)]
    assert not any(secret in message for message in sent for secret in secrets)
    assert max(map(len, sent)) < 10_000


def test_a_source_does_not_pickle():
    refuses(PrivacyError, "cannot be pickled", pickle.dumps, DaskRows(lazy(X)))


def test_keys_are_random_and_no_hash_of_data(monkeypatch):
    keys, true = [], dask.compute

    def compute(*args, **kwargs):
        keys.append({str(key) for arg in args for key in arg.__dask_graph__()})
        return true(*args, **kwargs)

    monkeypatch.setattr(dask, "compute", compute)
    hashed = da.from_array(X, chunks=(CHUNKS, D))  # its name is a hash of X
    digest = hashed.name.rpartition("-")[2]
    skdp.DPPCA(2, clip_norm=1.0).fit(hashed)
    first = set().union(*keys)
    keys.clear()
    skdp.DPPCA(2, clip_norm=1.0).fit(hashed)
    assert first
    assert not first & set().union(*keys)
    assert not any(digest in key for key in first)


@pytest.mark.thorough
def test_nothing_stays_on_the_cluster(cluster):
    skdp.DPPCA(2, svd_solver="power").fit(lazy(X))
    assert_nothing_left(cluster)


def assert_nothing_left(cluster):
    gc.collect()  # errors of earlier tests refer to the data of their fits
    for _ in range(100):
        left = cluster.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))
        if not left:
            return
        time.sleep(0.1)
    raise AssertionError(f"{left} tasks are left")


# -- faults ----------------------------------------------------------------------------


def failing(text, error=ValueError):
    def fail(block):
        raise error(f"{text} {block[4, 2]}")

    return fail


def test_an_error_of_a_task_shows_no_value(any_cluster):
    """Neither where it is raised, nor in the logs of workers and scheduler."""
    model = skdp.DPPCA(2, clip_norm=1.0)
    with pytest.raises(PrivacyError, match="withheld") as raised:
        model.fit(lazy(X).map_blocks(failing("broken at", IndexError), meta=np.empty((0, 0))))
    assert not [name for name in vars(model) if name.endswith("_")]
    story = [str(raised.value), repr(raised.value.__context__), repr(raised.value.__cause__)]
    story += [str(logs) for logs in any_cluster.get_worker_logs().values()]
    story.append(str(any_cluster.get_scheduler_logs()))
    assert not any(re.search(r"31415|broken at", text) for text in story)


@pytest.mark.deep
def test_the_control_an_error_of_plain_dask_shows_a_value(any_cluster):
    with pytest.raises(ValueError, match=r"broken at -?\d"):
        dask.compute(lazy(X).map_blocks(failing("broken at"), meta=np.empty((0, 0))))


CancelledOf31415 = type("CancelledOf31415", (OSError,), {})


@pytest.mark.parametrize("error", [ValueError, FileNotFoundError, TimeoutError, CancelledOf31415])
def test_an_error_among_shared_tasks_shows_neither_value_nor_type(error):
    broken = lazy(X).map_blocks(failing("broken at", error), meta=np.empty((0, 0)))
    shared = lazy(X) - broken.sum(axis=0)
    assert type(lazy_blocks(shared.rechunk({1: -1}))[0]).__name__ == "Delayed"
    with pytest.raises(PrivacyError, match=r"summed\. Where and why") as raised:
        skdp.DPPCA(2, clip_norm=1.0).fit(shared)
    assert raised.value.__context__ is None
    assert "31415" not in str(raised.value)


def test_an_error_of_the_cluster_is_named_without_its_text(monkeypatch):
    from distributed import KilledWorker

    def compute(*args, **kwargs):
        raise KilledWorker("a task of 31415", None, 3)

    monkeypatch.setattr(dask, "compute", compute)
    with pytest.raises(PrivacyError, match=r"summed \(KilledWorker\)\. Where") as raised:
        skdp.DPPCA(2, clip_norm=1.0).fit(lazy(X))
    assert raised.value.__context__ is None
    assert "31415" not in str(raised.value)


def killing(flag):
    def kill(block):
        try:  # only the first worker is killed: without any worker the fit would wait for ever
            os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return block
        os.kill(os.getpid(), signal.SIGKILL)
        return None

    return kill


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_a_killed_worker_causes_no_second_release(cluster, tmp_path):
    model = skdp.DPPCA(2, svd_solver="power", clip_norm=9.0)
    expected = fitted(model, X)
    with record_transcript() as transcript:
        model.fit(X)
    blocks = lazy(X).map_blocks(killing(str(tmp_path / "killed")), meta=np.empty((0, 0)))
    with record_transcript() as after:
        got = fitted(model, blocks)
    assert (tmp_path / "killed").exists()
    assert_same_bits(expected, got)
    assert [o.bound.name for o in after] == [o.bound.name for o in transcript]
    assert after.faults == []


def lost():
    from distributed.client import FutureCancelledError

    return FutureCancelledError("key", "lost dependencies")


def late():
    from distributed import TimeoutError

    return TimeoutError()


# A trace regression caches numbers of records on the workers: they are computed again.
LOSSES = {
    "lost": (skdp.DPPCA(2), (), (3, 12), lost),
    "late": (skdp.DPPCA(2), (), (3, 12), late),
    "of records": (
        skdp.DPTraceRegressor(1, matrix_shape=(4, 2), epsilon=20.0, max_iter=3),
        (Y,), (8, 30, 45), lost,
    ),
}  # fmt: skip


@pytest.mark.deep
@pytest.mark.parametrize("what", LOSSES)
def test_data_that_all_workers_lost_are_sent_again(what, monkeypatch):
    """The public matrix of a step cannot be computed again by Dask: the step is, before noise."""
    model, y, lost_at, error_of = LOSSES[what]
    true, persist, calls, made = dask.compute, dask.persist, [], []

    def compute(*args, **kwargs):
        calls.append(1)
        if len(calls) in lost_at:
            raise error_of()
        return true(*args, **kwargs)

    expected = fitted(model, X, *y)
    monkeypatch.setattr(dask, "compute", compute)
    monkeypatch.setattr(dask, "persist", lambda *a: (made.append(len(calls)), persist(*a))[1])
    with record_transcript() as transcript:
        assert_same_bits(expected, fitted(model, lazy(X), *y))
    assert transcript.faults == []
    assert len(calls) > max(lost_at)
    assert not y or set(lost_at) <= set(made)


DRIVER = """
import sys, dask, numpy as np, dask.array as da
from distributed import Client
from skdp import DPPCA

def slow(flag):
    def wait(block):
        import pathlib, time
        path = pathlib.Path(flag)
        if path.exists():  # the second step
            pathlib.Path(flag + ".now").touch()
            time.sleep(2)
        path.touch()
        return block
    return wait

with Client(sys.argv[1], timeout=60):
    X = da.random.default_rng(0).standard_normal((400, 6), chunks=(400, 6))
    model = DPPCA(2, clip_norm=3.0).fit(X.map_blocks(slow(sys.argv[2]), meta=np.empty((0, 0))))
    print(model.components_)
"""


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_a_killed_driver_publishes_nothing(cluster, tmp_path):
    flag = str(tmp_path / "flag")
    command = [sys.executable, "-c", DRIVER, cluster.scheduler.address, flag]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        while not os.path.exists(flag + ".now"):
            assert driver.poll() is None, driver.stderr.read()
            time.sleep(0.05)
    finally:
        driver.kill()
    out, _ = driver.communicate()
    assert out == b""
    assert_nothing_left(cluster)  # its sums are dropped with it
    assert cluster.list_datasets() == ()


# -- checks ----------------------------------------------------------------------------


BAD = [
    (skdp.DPPCA(2), lazy(X)[:, 0], "Expected 2D array, got 1D"),
    (skdp.DPPCA(2), lazy(X).astype(str), "must hold numbers"),
    (skdp.DPPCA(2), da.zeros((0, 3)), r"0 sample\(s\)"),
    (skdp.DPPCA(D + 1), lazy(X), "n_features"),
    (skdp.DPTruncatedSVD(2, privacy_unit="entry"), lazy(X), "in memory"),
]


@pytest.mark.parametrize(("model", "rows", "message"), BAD)
def test_bad_arrays_are_refused_before_any_cost(model, rows, message):
    with record_transcript() as transcript, pytest.raises(ValueError, match=message):
        model.fit(rows)
    assert len(transcript) == 0
    refuses(ValueError, "at least one block", DaskRows, [])


# -- users -----------------------------------------------------------------------------


def labels_with(place, label, kind=object):
    out = np.array([f"ann{i}@example.org" for i in GROUPS]) if kind is str else GROUPS.astype(kind)
    out[place] = label
    return out


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [(labels_with(0, f"ann{GROUPS[-1]}@example.org", str), ValueError, "Sort the rows by group"),
     (labels_with(slice(300, 306), "7"), ValueError, "Sort the rows by group"),
     (labels_with(7, np.nan, float), PrivacyError, "withheld")],
    ids=["in two blocks", "the number 7 here and its digit there", "missing"],
)  # fmt: skip
def test_bad_labels_are_refused_and_none_reaches_the_driver(labels, error, message, totals):
    with pytest.raises(error, match=message) as raised:
        skdp.DPPersonalizedRegressor(2).fit(lazy(X), lazy(Y), groups=lazy(labels))
    assert "ann" not in str(raised.value)
    assert totals == ([False] if error is ValueError else [None])


def test_columns_of_users_are_checked():
    model = skdp.DPPersonalizedRegressor(2)
    for y, groups, message in (
        (Y[:-1], GROUPS, "X and y have inconsistent"),
        (Y, GROUPS[:-1], "X and groups have inconsistent"),
        (lazy(Y)[:, None], GROUPS, "y should be a 1d array"),
        (Y, lazy(GROUPS)[:, None], "groups should be a 1d array"),
    ):
        refuses(ValueError, message, model.fit, lazy(X), y, groups=groups)
    short = da.from_array(GROUPS, chunks=450, name=False)
    refuses(ValueError, "needs the blocks of X", model.fit, lazy(X), lazy(Y), groups=short)
