"""Blocks of rows, with targets and without, for the estimators next to PCA: the bits of memory."""

import inspect
import pickle
import warnings

import numpy as np
import pytest
from sklearn.base import clone

from skdp import (
    DPPCA,
    DPIncrementalPCA,
    DPLowRankFactorizer,
    DPRidge,
    DPRidgeClassifier,
    DPTraceRegressor,
    DPTruncatedSVD,
)
from skdp.data import blocks
from skdp.data import stored_rows as block_files
from skdp.data.stored_rows import DaskRows
from skdp.data.units import Placed
from skdp.data.views import RecordForm
from skdp.exceptions import PrivacyError, PrivacyWarning
from skdp.preprocessing import DPStandardScaler
from skdp.queries import records as record_queries
from skdp.queries.columns import ColumnQuery
from skdp.testing import null_release, record_transcript, seeded_entropy
from tools.outcomes import before_payment, refuses
from tools.places import (
    CHUNKS,
    DENSE,
    SECRET_TARGET,
    SPARSE,
    D,
    Elsewhere,
    N,
    S,
    Table,
    X,
    assert_same_bits,
    fitted,
    lazy,
    lazy_sparse,
    public,
    unknown,
)

# A few hundred records show little; the tests of the estimators cover their warnings.
pytestmark = pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")

RNG = np.random.default_rng(1)
Y = X[:, :1] * [1.0, -2.0] + RNG.standard_normal((N, 2))
Y[7, 0] = SECRET_TARGET
LABELS = np.array(["no", "yes", "perhaps"])[np.digitize(X[:, 0], [-0.5, 0.5])]
M = np.outer([1.0, 0.0, -1.0, 0.5], [0.3, -0.2])
TRACED = X @ M.ravel() + RNG.standard_normal(N)
WIDE = (-60.0, 60.0)

ROWS = DENSE | {
    "increments": DPIncrementalPCA(2),
    "increments-replace": DPIncrementalPCA(2, adjacency="replace", clip_norm=9.0),
    "increments-not-centred": DPIncrementalPCA(2, center="none", clip_norm=9.0),
    "scaler": DPStandardScaler(),
    "scaler-replace": DPStandardScaler(adjacency="replace"),
    "scaler-bounds": DPStandardScaler(bounds=WIDE),
}
RECORDS = {
    "ridge": (DPRidge(), Y[:, 0]),
    "ridge-two": (DPRidge(target_bounds=WIDE, adjacency="replace"), Y),
    "ridge-two-learnt": (DPRidge(clip_norm=9.0, fit_intercept=False), Y),
    "classes": (DPRidgeClassifier(classes=["no", "yes"]), LABELS),
    "classes-replace": (
        DPRidgeClassifier(classes=["no", "yes", "perhaps"], clip_norm=9.0, adjacency="replace"),
        LABELS,
    ),
}


TRACES = {
    "row": DPTraceRegressor(1, matrix_shape=(4, 2), epsilon=20.0),
    "replace-centred": DPTraceRegressor(
        1, matrix_shape=(4, 2), epsilon=20.0, adjacency="replace", fit_intercept=False
    ),
    "label": DPTraceRegressor(1, matrix_shape=(4, 2), epsilon=20.0, privacy_unit="label"),
    "start": DPTraceRegressor(1, epsilon=20.0, measurement_covariance=9.0, solver="spectral_init"),
}


IN_BLOCKS = RECORDS | {f"trace-{name}": (model, TRACED) for name, model in TRACES.items()}


@pytest.fixture(autouse=True)
def here():
    with dask.config.set(scheduler="synchronous"):
        yield


# -- rows alone ------------------------------------------------------------------------


@pytest.mark.deep
@pytest.mark.parametrize("name", ROWS)
def test_blocks_of_rows_give_the_bits_of_the_array(name, npy, mapped):
    model, tables = ROWS[name], [X[:1], X[1:500], X[500:]]
    expected = fitted(model, X)
    for rows in (npy, mapped, lazy(X), unknown(X), DaskRows(npy), Table(tables), Elsewhere(tables)):
        assert_same_bits(expected, fitted(model, rows))
    if "n_jobs" in model.get_params():
        for rows in (Table(tables), Elsewhere(tables)):
            assert_same_bits(expected, fitted(clone(model).set_params(n_jobs=2), rows))


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*SPARSE, "ridge", "classes"])
def test_sparse_blocks_give_the_bits_of_the_matrix(name, npz):
    model, *y = RECORDS.get(name) or (SPARSE[name],)
    expected = fitted(model, S, *y)
    for rows in (npz, lazy_sparse(), DaskRows(npz)):
        assert_same_bits(expected, fitted(model, rows, *y))
        refuses(TypeError, "dense data", DPStandardScaler().fit, rows)
    assert_same_bits(expected, fitted(model, lazy_sparse(), *map(lazy, y)))


@pytest.mark.thorough
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_a_stream_of_blocks_is_the_stream_of_arrays(adjacency, npy):
    def stream(*batches):
        model = DPIncrementalPCA(2, max_releases=3, adjacency=adjacency)
        with seeded_entropy(0):
            for batch in batches:
                model.partial_fit(batch)
        return public(model)

    batches = [X[:300], X[300:306], X[306:]]
    expected = stream(*batches)
    assert_same_bits(expected, stream(npy[:1], da.from_array(batches[1], name=False), npy[2:]))
    assert_same_bits(stream(X, X[:0]), stream(lazy(X), da.zeros((0, D))))


def test_a_failed_block_of_a_stream_can_be_sent_again():
    """Nothing was added and nothing released: the step is still open."""

    def broken(block):
        raise OSError("31415 is here")

    bad = lazy(X).map_blocks(broken, meta=np.empty((0, 0)))
    with seeded_entropy(0):
        model = DPIncrementalPCA(2, clip_norm=9.0, max_releases=2).partial_fit(X)
        before = public(model)
        refuses(PrivacyError, "withheld", model.partial_fit, bad)
        assert_same_bits(before, public(model))
        model.partial_fit(lazy(X))
    assert model.n_stream_releases_ == 2
    with seeded_entropy(0):
        plain = DPIncrementalPCA(2, clip_norm=9.0, max_releases=2).partial_fit(X).partial_fit(X)
    assert_same_bits(public(plain), public(model))


def test_a_row_that_is_not_finite_moves_a_scaler_by_no_more_than_the_bound():
    """Under replace it may replace the row with the largest contribution."""
    far = np.array([[1.0] * D, [np.nan] * D])
    for weight in (0.1, 1.0, 50.0):
        for adjacency, rows in (("add_remove", far[:0]), ("replace", far[1:])):
            one, other = (
                ColumnQuery(part, adjacency=adjacency).moments(np.zeros(D), np.ones(D), weight)
                for part in (far[:1], rows)
            )
            change = np.linalg.norm(one.answer(0.0) - other.answer(0.0))
            assert 0.5 * one.bound.l2 < change <= one.bound.l2 * (1 + 1e-12)


# -- rows with targets -----------------------------------------------------------------


@pytest.mark.deep
@pytest.mark.parametrize("name", IN_BLOCKS)
def test_records_in_blocks_give_the_bits_of_the_array(name, npy, mapped, monkeypatch):
    model, y = IN_BLOCKS[name]
    expected = fitted(model, X, y)
    assert np.any(expected["coef_"])
    single = fitted(model, X.astype(np.float32), y)
    assert single["coef_"].dtype == (np.float64 if "trace" in name else np.float32)
    assert_same_bits(single, fitted(model, lazy(X.astype(np.float32)), y))
    if name == "ridge":  # the control: targets in another order fit otherwise
        wrong = fitted(model, npy, np.roll(y, 300))
        assert not np.allclose(expected["coef_"], wrong["coef_"], atol=1e-3)
    for rows in (npy, mapped, lazy(X), DaskRows(npy)):
        assert_same_bits(expected, fitted(model, rows, y))
    assert_same_bits(expected, fitted(model, lazy(X), lazy(y)))
    assert_same_bits(expected, fitted(model, unknown(X), unknown(y)))
    monkeypatch.setattr(blocks, "BLOCK", 2**7)  # 16 rows
    monkeypatch.setattr(block_files, "BLOCK", 2**9)
    assert_same_bits(expected, fitted(model, npy, y))
    model.set_params(n_jobs=2)
    assert_same_bits(expected, fitted(model, npy, y))
    assert_same_bits(expected, fitted(model, mapped, list(y)))
    model.set_params(n_jobs=None)


def test_classes_of_targets_in_memory_may_be_taken_from_them(npy):
    with pytest.warns(PrivacyWarning, match="makes the set of labels public"):
        model = DPRidgeClassifier(clip_norm=9.0).fit(npy, LABELS)
    assert model.classes_.tolist() == ["no", "perhaps", "yes"]
    with pytest.raises(ValueError, match="needs 'classes' for a Dask"):
        DPRidgeClassifier(clip_norm=9.0).fit(lazy(X), lazy(LABELS))


def test_a_record_that_is_not_finite_contributes_nothing():
    bad_rows, bad_targets = X.copy(), Y.copy()
    bad_rows[5, 3], bad_targets[6, 1] = np.nan, np.inf
    kept = np.delete(np.arange(N), [5, 6])
    model = DPRidge(clip_norm=9.0, target_bounds=WIDE, fit_intercept=False)
    here = fitted(model, X[kept], Y[kept])
    assert_same_bits(here, fitted(model, lazy(bad_rows), lazy(bad_targets)))


# what a fitted model makes of rows: (model, target, name of the method)
CLASSES = DPRidgeClassifier(classes=["no", "perhaps", "yes"], clip_norm=9.0)
MAPS = {
    "pca": (DPPCA(2, whiten=True), None, "transform"),
    "scaler": (DPStandardScaler(bounds=WIDE), None, "transform"),
    "ridge": (DPRidge(clip_norm=9.0), Y[:, 0], "predict"),
    "ridge-two": (DPRidge(clip_norm=9.0), Y, "predict"), "classes": (CLASSES, LABELS, "predict"),
    "scores-of-three": (CLASSES, LABELS, "decision_function"),
    "scores-of-two": (RECORDS["classes"][0], LABELS, "decision_function"),
    "trace": (TRACES["row"], TRACED, "predict"),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("name", MAPS)
def test_results_of_dask_blocks_stay_lazy(name, npy, mapped):
    model, y, method = MAPS[name]
    method = getattr(clone(model).fit(X, y), method)
    expected = method(X)
    with dask.config.set(scheduler=lambda *a, **k: pytest.fail("computed")):
        arrays = [method(lazy(X)), method(unknown(X))]
    assert arrays[0].chunks[0] == CHUNKS and np.isnan(arrays[1].shape[0])
    files = method(npy)
    assert inspect.isgenerator(files)
    for found in (*arrays, np.concatenate(list(files)), method(mapped)):
        assert (found.ndim, found.dtype) == (expected.ndim, expected.dtype)
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(np.asarray(found), expected, atol=1e-9)
        else:
            np.testing.assert_array_equal(np.asarray(found), expected)
    refuses(ValueError, "cannot transform", method, DaskRows(npy))
    refuses(ValueError, "is expecting 8 features", method, lazy(X)[:, :5])


def test_sparse_and_single_rows_are_mapped_as_they_are(npz):
    single, svd = X.astype(np.float32), DPTruncatedSVD(2).fit(S)
    pca = DPPCA(2).fit(single)
    for model, rows, there in ((svd, S, lazy_sparse()), (pca, single, lazy(single))):
        found, expected = model.transform(there), model.transform(rows)
        assert found.dtype == expected.dtype == found.compute().dtype
        np.testing.assert_allclose(found.compute(), expected, atol=1e-4 * np.abs(expected).max())
    found = np.concatenate(list(svd.transform(npz)))
    np.testing.assert_allclose(found, svd.transform(S), atol=1e-12)


# -- records of a trace regression: numbers of single records stay where they are --------


@pytest.mark.thorough
def test_sparse_and_wide_traces(npz, monkeypatch):
    """Wide records keep coordinates next to the rows, in small blocks too."""
    model = DPTraceRegressor(1, matrix_shape=(12, 10), epsilon=1e3)
    expected = fitted(model, S, TRACED)
    for rows in (npz, DaskRows(npz)):
        assert_same_bits(expected, fitted(model, rows, TRACED))
    wide = np.random.default_rng(1).standard_normal((N, 256))
    model = DPTraceRegressor(1, matrix_shape=(16, 16), epsilon=1e3, max_iter=2)
    expected = fitted(model, wide, wide[:, 0])
    matrices = fitted(model, wide.reshape(N, 16, 16), wide[:, 0])
    assert_same_bits(expected, matrices)
    rows = da.from_array(wide, chunks=(CHUNKS, -1), name=False)
    assert_same_bits(expected, fitted(model, rows, lazy(wide[:, 0])))
    monkeypatch.setattr(blocks, "BLOCK", 2**12)  # 16 rows
    assert_same_bits(expected, fitted(model.set_params(n_jobs=2), wide, wide[:, 0]))


def test_too_many_records_are_refused_when_they_can_be_counted(monkeypatch):
    monkeypatch.setattr(record_queries, "_MOST_RECORDS", N - 1)
    model = TRACES["row"]
    known, counted = (X, TRACED, ValueError), (lazy(X), lazy(TRACED), ValueError)
    for rows, y, kind in (known, counted, (unknown(X), unknown(TRACED), PrivacyError)):
        refuses(kind, "at most 899 records", fitted, model, rows, y)


# -- what workers send, and messages ---------------------------------------------------


def test_targets_in_memory_are_split_between_tasks():
    """A task has the targets of its own block, sealed."""
    records = Placed(DaskRows(lazy(X)), {"y": Y}).joined(RecordForm(np.asarray, 2))
    slices = [pair[1] for pair in records._parts]
    assert [len(part.value) for part in slices] == list(CHUNKS)
    assert {repr(part) for part in slices} == {"<sealed>"}
    refuses(PrivacyError, "cannot be pickled", pickle.dumps, records)


def test_errors_of_tasks_show_nothing():
    def broken(block):
        raise ValueError(f"27182 at {block[0]}")

    short = unknown(Y).map_blocks(lambda block: block[5:], meta=np.empty((0, 0)))
    for y in (lazy(Y).map_blocks(broken, meta=np.empty((0, 0))), short):
        model = DPRidge(clip_norm=9.0, target_bounds=WIDE)
        with pytest.raises(PrivacyError, match="withheld") as raised:
            model.fit(unknown(X), y)
        story = f"{raised.value} {raised.value.__context__} {raised.value.__cause__}"
        assert not any(word in story for word in ("27182", "900", "895", "300"))
        assert not public(model)


def test_bad_records_are_refused_before_any_cost(npy, mapped):
    model, y = DPRidge(), Y[:, 0]
    classifier = DPRidgeClassifier(classes=["no", "yes"])
    bad = y.copy()
    bad[3] = np.nan
    cases = [
        (model, npy, y[:-1], "inconsistent numbers of samples"),
        (model, mapped, y[:-1], "inconsistent numbers of samples"),
        (model, lazy(X), y[:-1], "inconsistent numbers of samples"),
        (model, lazy(X), da.from_array(y, chunks=((299, 7, 594),), name=False), "rechunk"),
        (model, lazy(X), da.from_array(y, chunks=450, name=False), "blocks"),
        (model, unknown(X), y, "unknown sizes"),
        (model, npy, lazy(y), "with a Dask array X only"),
        (model, npy, bad, "y contains NaN"),
        (model, npy, None, "requires y to be passed"),
        (model, lazy(X), lazy(LABELS), "must hold numbers"),
        (model, lazy(X), lazy(Y)[:, :, None], "1d array"),
        (classifier, lazy(X), lazy(Y), "1d array"),
        (classifier, npy, Y, "1d array"),
        (model, Table([X]), y, "no known order of rows"),
        (model, Elsewhere([X]), y, "no known order of rows"),
        (model, DaskRows([Table([X])]), lazy(y), "no known order of rows"),
    ]
    with record_transcript() as transcript:
        for estimator, rows, targets, message in cases:
            with pytest.raises(ValueError, match=message) as raised:
                estimator.fit(rows, targets)
            if "inconsistent" in message:
                assert not any(word in str(raised.value) for word in ("900", "899"))
    assert len(transcript) == 0


@pytest.mark.thorough
def test_nothing_is_read_before_it_is_paid_for(npy, monkeypatch):
    reads, paid, true = [], [], block_files._loaded
    monkeypatch.setattr(
        block_files, "_loaded", lambda piece: (reads.append(len(paid)), true(piece))[1]
    )
    fits = (
        lambda: DPPCA(2).fit(npy),
        lambda: DPRidge().fit(npy, Y),
        lambda: TRACES["row"].fit(npy, TRACED),
        lambda: DPStandardScaler().fit(npy),
        lambda: DPIncrementalPCA(2).fit(npy),
        lambda: DPIncrementalPCA(2).partial_fit(npy),
        lambda: DPLowRankFactorizer(2, privacy_unit="row", adjacency="zero_out").fit(npy),
    )
    for fit in fits:
        reads.clear()
        paid.clear()
        with before_payment(paid.append):
            fit()
        assert min(reads) >= 1


@pytest.mark.thorough
def test_null_release_depends_on_public_sizes_alone(npy, tmp_path):
    """Without reads, fits to other rows, and to another number of rows, are equal."""
    np.save(tmp_path / "other.npy", np.full((3, D), 1e9))
    other = [tmp_path / "other.npy"]
    with null_release():
        for model in (DPPCA(2), DPStandardScaler(), DPIncrementalPCA(2)):
            with warnings.catch_warnings(action="ignore", category=UserWarning):
                here, *there = (fitted(model, rows) for rows in (npy, other, unknown(X)))
            for found in there:
                assert_same_bits(here, found)
        here = fitted(DPRidge(), npy, Y)
        for rows, y in ((other, np.zeros((3, 2))), (unknown(X), unknown(Y))):
            assert_same_bits(here, fitted(DPRidge(), rows, y))


# -- factorisations and trace regressions ----------------------------------------------

FACTORIZERS = {
    "row": {"privacy_unit": "row", "adjacency": "zero_out", "unit_bound": 5.0},
    "row-replace": {"privacy_unit": "row", "adjacency": "replace", "unit_bound": 5.0},
    "frobenius": {},
    "entry": {"privacy_unit": "entry", "unit_bound": (-3.0, 3.0)},
}


@pytest.mark.deep
@pytest.mark.parametrize(
    ("name", "method"),
    [*((name, "two_sketch") for name in FACTORIZERS), ("row", "dense"), ("entry", "three_sketch")],
)
def test_a_factorizer_reads_files_and_maps(name, method, npy, npz, mapped, monkeypatch):
    model = DPLowRankFactorizer(2, method=method, sketch_size=6, **FACTORIZERS[name])
    expected, sparse = fitted(model, X), fitted(model, S)
    monkeypatch.setattr(blocks, "BLOCK", 2**7)  # 16 rows
    for rows in (X, npy, mapped):
        assert_same_bits(expected, fitted(model, rows))
    assert_same_bits(sparse, fitted(model, npz))


def test_fits_that_need_arrays_in_memory_state_the_remedy(npy):
    row = {"privacy_unit": "row", "adjacency": "zero_out"}
    for rows in (lazy(X), DaskRows(npy), Table([X])):
        refuses(ValueError, "partial_fit with each block", DPLowRankFactorizer(2, **row).fit, rows)
    stream = DPLowRankFactorizer(2, matrix_shape=(N, D), **row)
    refuses(ValueError, "partial_fit with each block", stream.partial_fit, npy)
    for path in npy:  # the remedy
        stream.partial_fit(np.load(path))
    assert stream.release().left_singular_vectors_.shape == (N, 2)


def test_unequal_blocks_are_refused_without_their_number():
    """With one row in each block, the number of blocks is the private number of rows."""

    def refusal(n):
        rows = da.from_array(X[:n], chunks=(1, D))
        targets = da.from_array(np.append(Y[:n, 0], 1.0), chunks=1)
        with pytest.raises(ValueError, match="need the same blocks") as caught:
            DPRidge(clip_norm=1.0, target_bounds=(-1.0, 1.0)).fit(rows, targets)
        return str(caught.value)

    assert refusal(5) == refusal(6)
