"""What is refused before it is read as numbers, in words that tell nothing of it."""

import re
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.base import clone

import skdp
from skdp import federated
from skdp._inputs import checked, checked_updates, split_users
from skdp.data.blocks import DenseRows, as_array, in_64_bits, plain_block, row_source
from skdp.data.stored_rows import rows_of_block
from skdp.decomposition import randomize_row
from skdp.graph import DPSpectralEmbedding
from skdp.model_selection import make_private_scorer, split_interactions
from skdp.model_selection._proven import as_rows
from skdp.preprocessing import PublicScaler, RowClipper
from skdp.preprocessing._standard_scaler import Standardisation
from skdp.queries.interactions import InteractionQuery
from skdp.recommend import DPRecommender, recall_at_n
from skdp.regression._linear import LinearPredictor
from skdp.regression._personalized_base import within_bounds

SECRET, HUGE, DATE = "Rome", 10**400, np.datetime64("2020-02-29")
CONFIG = federated.AggregationConfig(n_clients=3)
DEVICE = partial(federated.PersonalizedClient, skdp.DPPersonalizedRegressor())
N, D = 40, 4
BOUNDS = np.array([[-1e20] * D, [1e20] * D])
ROWS = [
    skdp.DPPCA(2), skdp.DPTruncatedSVD(2), skdp.DPStandardScaler(), skdp.DPIncrementalPCA(2),
    DPRecommender(2),
]  # fmt: skip
WITH_Y = [
    skdp.DPRidge(), skdp.DPRidgeClassifier(classes=[0, 1]), skdp.DPPersonalizedRegressor(2),
    skdp.DPPersonalizedClassifier(2, classes=[0, 1]), skdp.DPTraceRegressor(1, matrix_shape=(2, 2)),
]  # fmt: skip
NUMERIC_Y = [model for model in WITH_Y if not type(model).__name__.endswith("Classifier")]


def with_one(value):
    """Return a function that puts this value in the first place."""

    def put(values):
        values = values.astype(object)
        values[(0,) * values.ndim] = value
        return values

    return put


TEXTS = {
    "objects": lambda values: np.full(values.shape, SECRET, object),
    "strings": lambda values: np.full(values.shape, SECRET),
    "one among numbers": with_one(SECRET),
    "bytes of no type": with_one(np.void(SECRET.encode())),
    "lists": lambda values: np.full(values.shape, SECRET).tolist(),
    "categories": lambda values: (
        pd.Series(pd.Categorical([SECRET] * N))
        if values.ndim == 1
        else pd.DataFrame(values).add_prefix("c").assign(c0=pd.Categorical([SECRET] * N))
    ),
}
TEXT = "encode categories by a public list first"
# form -> (values of that form, the remedy that is told of rows)
BAD = {form: (make, TEXT) for form, make in TEXTS.items()} | {
    "integer": (with_one(HUGE), "that a float can hold"),
    "dates": (lambda values: np.full(values.shape, DATE), "subtract a public date"),
    "a date": (with_one(DATE), "subtract a public date"),
    "infinity": (with_one(np.inf), "contains infinity"),
    "durations": (lambda values: [[DATE - DATE] * D] * N, "subtract a public date"),
    "masked": (lambda values: np.ma.masked_equal(values, values.ravel()[0]), "masked entries"),
}


def class_name(model):
    return type(model).__name__


def data(model):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((N, D)), rng.standard_normal(N)
    if model in ROWS:
        return X, [], {}
    y = (y > 0).astype(int) if "Classifier" in class_name(model) else y
    return X, [y], {"groups": np.repeat(np.arange(8), 5)} if "Personal" in class_name(model) else {}


def told(action):
    """Return all that a refusal tells: what it was raised from, too."""
    with pytest.raises((ValueError, TypeError)) as refused:
        action()
    text, error = "", refused.value
    while error is not None:
        text += f"{error}\n"
        error = error.__cause__ or error.__context__
    return text


def refusal(model, X, *y, **fit_params):
    """Return all that the refusal of a fit tells."""
    model = clone(model)
    text = told(lambda: model.fit(X, *y, **fit_params))
    assert not hasattr(model, "privacy_spent_")
    return text


@pytest.mark.parametrize("form", BAD)
@pytest.mark.parametrize("model", ROWS + WITH_Y, ids=class_name)
def test_what_is_no_number_is_refused_and_not_quoted(model, form):
    X, y, fit_params = data(model)
    make, remedy = BAD[form]
    if isinstance(model, DPRecommender) and form in TEXTS:
        remedy = "of pairs use interactions_from_pairs"
    refused = []
    if class_name(model) != "DPRecommender" or form not in ("integer", "categories"):  # few columns
        refused.append((refusal(model, make(X), *y, **fit_params), remedy))
    if model in NUMERIC_Y:
        remedy = "labels to a classifier" if form in TEXTS else remedy
        refused.append((refusal(model, X, make(y[0]), **fit_params), remedy))
    for text, remedy in refused:
        assert remedy in text and SECRET not in text and "2020" not in text


@pytest.mark.parametrize("model", ROWS + WITH_Y, ids=class_name)
def test_missing_and_complex_numbers_get_advice_that_does_not_leak(model):
    X, y, fit_params = data(model)
    X[0, 0] = np.nan
    text = refusal(model, X, *y, **fit_params)
    assert re.search(r"NaN.*public constants.*strategy='constant'", text)
    assert "HistGradient" not in text
    X[0, 0] = np.inf
    assert "clip it to public bounds" in refusal(model, X, *y, **fit_params)
    text = refusal(model, np.ones((N, D)) + 37.25j, *y, **fit_params)
    assert re.search(r"Complex data not supported .*imaginary", text) and "37.25" not in text
    scalars = [refusal(model, x, *y, **fit_params) for x in (37.25, {"a": [37.25]})]
    if model in NUMERIC_Y:
        scalars.append(refusal(model, np.ones((N, D)), {37.25}, **fit_params))
    for text in scalars:
        assert re.search(r"one number, a dict or a set|shape \(\)", text) and "37.25" not in text
    assert "public constants" in refusal(model, with_one(pd.NA)(np.ones((N, D))), *y, **fit_params)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::UserWarning")  # noise
@pytest.mark.parametrize(
    "model", [*ROWS[:4], *WITH_Y, PublicScaler((0, 9)), RowClipper(1.0)], ids=class_name
)
def test_text_is_not_quoted_after_the_fit(model):
    X, y, fit_params = data(model)
    for rows, forms in ((X, [*TEXTS][:4]), (pd.DataFrame(X).add_prefix("c"), ["categories"])):
        fitted = clone(model).fit(rows, *(y or [None]), **fit_params)
        use = fitted.predict if hasattr(fitted, "predict") else fitted.transform
        for form in forms:
            text = told(lambda use=use, form=form: use(TEXTS[form](X)))
            assert TEXT in text and SECRET not in text


@pytest.mark.filterwarnings("ignore::UserWarning")  # noise
@pytest.mark.parametrize("model", WITH_Y, ids=class_name)
def test_scores_quote_no_target(model):
    """Labels that are no classes are missed; all else is refused as `fit` refuses it."""
    X, (y,), params = data(model)
    model = clone(model).fit(X, y, **params)
    bad = [(make(y), remedy) for form, (make, remedy) in BAD.items() if form != "dates"]
    bad.append((with_one(HUGE)(y).tolist(), "that a float can hold"))
    for given, remedy in bad:
        calls = [lambda given=given: model.score(X, y, sample_weight=given, **params)]
        if not hasattr(model, "classes_"):
            calls.append(lambda given=given: model.score(X, given, **params))
        for text in map(told, calls):
            of_y = "must hold numbers" in text or "numbers, or labels to a classifier" in text
            assert remedy in text or (remedy == TEXT and of_y)
            assert SECRET not in text
    assert "needs 'y'. Got None" in told(lambda: model.score(X, None, **params))
    if hasattr(model, "classes_"):
        y = model.predict(X, **params).astype(object)
        y[:2] = SECRET, HUGE
        assert model.score(X, y, **params) == model.score(X, y.tolist(), **params) == 1 - 2 / N


@pytest.mark.parametrize("action", [
    lambda truth, _: recall_at_n(np.zeros((len(truth), 2), int), truth),
    lambda R, _: split_interactions(R, random_state=0),
    lambda R, _: checked_updates([0], [0], R[0][:1], (2, 2)),
    lambda R, mapped: skdp.DPRidge().fit(mapped, R[:, 0]),
    lambda R, _: randomize_row(R[0], clip_norm=1.0, epsilon=1.0, delta=1e-6),
    lambda R, _: federated.PowerMethodClient(R, CONFIG),
    lambda R, X: DEVICE(R, X[:, 0], CONFIG),
    lambda R, X: DEVICE(X, R[:, 0].tolist(), CONFIG),
], ids=["truth", "hits", "updates", "memory map", "report", "client", "device", "y"])  # fmt: skip
def test_functions_quote_no_entry(action, tmp_path):
    mapped = np.memmap(tmp_path / "rows", dtype=float, mode="w+", shape=(N, D))
    refused = told(lambda: action(with_one(SECRET)(np.zeros((N, D))), mapped))
    assert re.search("encode categories|to a classifier", refused) and SECRET not in refused


class Table:
    """As that of pyarrow: its columns are values with names, and it has no dtypes."""

    column_names = property(lambda self: [f"c{i}" for i in range(self.shape[1])])

    def __init__(self, X):
        self.shape, self.columns, self._X = X.shape, list(X.T), X

    def __getitem__(self, name):
        return self.columns[self.column_names.index(name)]

    def select(self, names):
        return Table(np.column_stack([self[name] for name in names]))

    def __array__(self, dtype=None, copy=None):
        return np.array(self._X, dtype=dtype)


def test_a_table_that_becomes_an_array_is_one():
    table = Table(data(ROWS[0])[0])
    assert skdp.DPPCA(2, clip_norm=1.0, epsilon=9.0).fit(table).n_features_in_ == D
    model = skdp.DPPCA(2, clip_norm=1.0, epsilon=9.0, privacy_unit="group", group_column="c0")
    assert model.fit(Table(np.column_stack([np.arange(N), table]))).components_.shape == (2, D)
    scaler = PublicScaler(dict.fromkeys(table.column_names, (-1, 1)))
    assert scaler.fit(table).transform(table).shape == (N, D)
    assert "columns ['c0', 'c1']" in told(partial(DPRecommender().fit, Table(np.ones((N, 2)))))


def test_users_that_floats_merge_are_refused():
    X, y, _ = data(WITH_Y[0])
    groups = np.repeat(np.arange(8), 5) + 2.0**53
    first = np.repeat([0.0, 2.0**53], 20)  # 2^53 + 1 is the same float
    listed = (groups.tolist(), groups.astype(object))
    for users in (groups, groups.astype(np.float32), pd.Series(groups), -groups, first, *listed):
        assert "such large floats" in refusal(WITH_Y[2], X, *y, groups=users)


def test_classes_of_another_kind_than_the_labels_are_refused():
    """No label would be one of them; the dtype of an array is public, that of a list is not."""
    X, y = np.zeros((N, D)), np.arange(N) % 2
    for labels, kind in ((y, "numbers"), (pd.Series(y), "numbers"), (y.astype("S"), "bytes")):
        for model in (skdp.DPRidgeClassifier(), skdp.DPScoreDensity(np.eye(D)[:2])):
            with pytest.raises(ValueError, match=f"'classes'.* are text and y is {kind}"):
                model.set_params(classes=["a", "b"]).fit(X, labels)
    for labels in (y.astype(str), pd.Series(y.astype(str), dtype="string")):
        with pytest.raises(ValueError, match=r"classes.* are numbers and y is text"):
            skdp.DPPersonalizedClassifier(1, classes=[0, 1]).fit(X, labels, groups=y)
    with pytest.raises(ValueError, match="at least 2 distinct"):
        skdp.DPRidgeClassifier(classes=["a", "a"]).fit(X, y.astype(str))


@pytest.mark.filterwarnings("ignore::UserWarning")  # noise
def test_text_in_targets_is_told_from_text_in_rows():
    for rows, y in (([[1.0]], ["a"]), ([["a"]], [1.0])):
        text = told(partial(skdp.DPRidge().fit, np.array(rows), pd.Series(y)))
        assert "found text" in text and ("in y" in text) == ("a" in y)
        assert ("OneHotEncoder" in text) == ("a" not in y) != ("classifier" in text)
    for rows in (np.array([["a"], ["b"]]), pd.DataFrame({"city": ["a", "b"]})):  # y may be text
        text = told(partial(skdp.DPRidgeClassifier(classes=["n", "y"]).fit, rows, ["n", "y"]))
        assert "found text" in text and "in y" not in text and "OneHotEncoder" in text
    X, y = np.linspace(-1, 1, 40).reshape(20, 2), np.arange(20) % 2
    for model in (skdp.DPRidge(target_bounds=(0, 1)), skdp.DPPersonalizedRegressor(1)):
        text = told(lambda model=model: model.fit(X, y).score(X, y.astype(str)))
        assert "y needs numbers" in text and "OneHotEncoder" not in text


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_labels_of_other_libraries_are_no_kind_of_numpy():
    """Columns whose dtype is not numpy's, or none of its numbers, are looked up label by label."""
    X, y = np.ones((N, D)), np.arange(N) % 2

    class Column(list):
        dtype = "Int64 of another library"

    for labels in (Column(y.tolist()), y.tolist(), pd.Series(y, dtype="Int64").astype("category")):
        skdp.DPRidgeClassifier(classes=[0, 1], clip_norm=2.0).fit(X, labels)


TABLE = np.random.default_rng(0).standard_normal((N, D))


def test_a_source_that_is_no_table_of_its_width_is_refused_before_it_is_charged():
    class Rows(DenseRows):
        def __init__(self, made):
            super().__init__(TABLE)
            self.blocks = lambda: iter([made])

    for made in (TABLE[:, :2], TABLE.tolist(), TABLE.astype(str)):
        with skdp.PrivacyLedger(epsilon=2.0) as ledger, pytest.raises(ValueError, match="to_numpy"):
            skdp.DPPCA(1).fit(Rows(made))
        assert ledger.entries == ()
    rows = Rows(TABLE)
    rows.blocks = lambda: iter([{}[SECRET]])
    with pytest.raises(skdp.PrivacyError, match="not shown"):
        skdp.DPPCA(1).fit(rows)
    rows = SimpleNamespace(n_features=D, blocks=lambda: iter([TABLE]))
    with pytest.raises(TypeError, match=r"needs the methods \['n_rows', 'parts'\] too"):
        skdp.DPPCA(1).fit(rows)
    with pytest.raises(TypeError, match="may have n_features, n_rows, parts and blocks"):
        PublicScaler().fit(rows)


def test_indices_outside_of_a_shape_are_refused():
    by_row = sp.csr_array((np.ones(1), [D], [0] + [1] * N), shape=(N, D))  # foreign memory
    by_column = sp.csc_array((np.ones(1), [N], [0] + [1] * D), shape=(N, D))
    lists, unequal = sp.lil_array(TABLE), sp.lil_array(TABLE)
    lists.rows[0], unequal.data[0] = [0, 1, 2, D], [1.0]
    for read in (skdp.DPPCA(1).fit, plain_block):
        for X in (by_row, by_column, lists, unequal):
            assert "indices outside" in told(partial(read, X))
    of_groups = skdp.DPPCA(1, privacy_unit="group", group_column=0)
    model = skdp.DPPCA(1, epsilon=1e3).fit(TABLE)
    for read in (of_groups.fit, partial(make_private_scorer("reconstruction", (0, 1)), model)):
        assert "indices outside" in told(partial(read, by_row))


def test_masked_and_non_numeric_entries_of_blocks_are_left_out():
    for block in (np.ma.masked_equal([1, 2], 2), [1, None], [1, HUGE], np.array([1, DATE], object)):
        np.testing.assert_array_equal(as_array(block), [1.0, np.nan])


def test_duplicates_are_summed_as_64_bit_floats():
    """In eight bits 127 + 1 is -128, and a change of 1 would be one of 255."""
    X = sp.coo_array((np.ones(128, np.int8), (np.zeros(128, int),) * 2), shape=(N, D))
    rows = checked(skdp.DPPCA(), X, accept_sparse="csr"), plain_block(X), split_users(X, 1)[0]
    assert [float(each[0, 0]) for each in rows] == [128.0] * 3


@pytest.mark.parametrize("form", [sp.csr_array, sp.coo_array])
def test_what_else_is_stored_changes_no_sum_of_duplicates(form, rng):
    """Scipy sorts all rows if one is not sorted, and shuffles the duplicates of each."""
    parts = rng.permutation(np.tile([1e16, 1.0, -1e16, 0.25], 10))

    def read(others):
        values, columns = np.append(parts, np.zeros(3)), np.append(np.ones(40, int), others)
        X = sp.csr_array((values, columns, [0, 41, 43]), shape=(2, D))
        if form is sp.coo_array:
            X = form((values, (np.repeat([0, 1], [41, 2]), columns)), shape=(2, D))
        csr, rows = checked(skdp.DPPCA(), X, accept_sparse="csr"), as_rows(X)
        sums = [*map(plain_block, (X, csr, rows)), *row_source(csr).blocks()]
        sums += rows_of_block(X, D).blocks()
        sums += [RowClipper(np.inf).fit_transform(X), within_bounds(csr, BOUNDS)]
        sums += [InteractionQuery(csr, degree_floor=1, adjacency="add_remove")._normalised()]
        return [float(each[0, 1]) for each in sums]

    assert read([3, 0, 2]) == read([0, 2, 0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_of_duplicates_beyond_all_floats_warn_of_no_row(dtype):
    parts = np.full(2, np.finfo(dtype).max)
    X = sp.csr_matrix((parts, [0, 0], [0, 2]), shape=(1, D))
    RowClipper().fit(TABLE).transform(X)
    alone = sp.coo_matrix(([1.0], ([0], [0])), shape=(1, D))
    assert type(in_64_bits(X.tocoo())) is type(in_64_bits(alone))


def test_public_maps_sum_duplicates_before_they_truncate():
    X, bounds = sp.csr_array(([1.0, 1.0], [0, 0], [0, 2]), shape=(1, 1)), np.array([[-1.5], [1.5]])
    assert Standardisation(bounds, None, None)(X).toarray().tolist() == [[1.5]]
    assert LinearPredictor(np.ones(1), 0.0, np.asarray, bounds)(X).tolist() == [1.5]
    assert LinearPredictor(np.ones(1), 0.0, np.asarray, longest=1.0)(X).tolist() == [1.0]
    assert X.nnz == 2


@pytest.mark.parametrize("model", NUMERIC_Y, ids=lambda model: type(model).__name__)
def test_targets_beyond_64_bits_are_refused_as_infinity_is(model):
    X, (y,), more = data(model)
    assert "infinity" in told(partial(model.fit, X, y * np.longdouble("1e400"), **more))


def test_the_error_for_one_dimension_shows_no_values():
    text = told(lambda: skdp.DPPCA(1).fit(np.full(5, 123.25)))
    assert "got 1D array instead" in text and "123" not in text
    assert "pd.concat" in told(lambda: skdp.DPPCA(1).fit([np.zeros((5, 2))] * 3))
    for path in (SECRET, Path(SECRET)):
        text = told(lambda path=path: skdp.DPPCA(1).fit(path))
        assert "a list of .npy files, [path]" in text and SECRET not in text


@pytest.mark.parametrize(
    "model",
    [*ROWS, *NUMERIC_Y, skdp.DPTruncatedSVD(2, privacy_unit="entry")],
    ids=lambda model: f"{type(model).__name__}-{getattr(model, 'privacy_unit', 'row')}",
)
def test_no_warning_reveals_that_a_sum_overflows(model):
    """scikit-learn adds up all entries; infinity minus itself is a warning, or an error."""
    column = np.repeat([1.7e308, -1.7e308], N // 2)
    rows = np.tile(column[:, None], D)
    for X, y in ((rows, np.zeros(N)), (np.ones((N, D)), column), (rows, column)):
        more = {"groups": np.arange(N) % 4} if "Personalized" in type(model).__name__ else {}
        with warnings.catch_warnings(action="ignore"):
            warnings.simplefilter("error", RuntimeWarning)
            clone(model).fit(X, y, **more)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_graphs_are_checked_as_rows_are():
    graph = np.sign(np.add.outer(np.arange(N), np.arange(N)) - N + 0.5) * 1.7e308
    model = DPSpectralEmbedding(2, unit_bound=(-1, 1)).fit(graph)
    assert model.embedding_.shape == (N, 2)
    text = told(lambda: DPSpectralEmbedding(2).fit(with_one(SECRET)(np.zeros((N, N)))))
    assert "found text" in text and SECRET not in text
