"""The unit "group": all rows of one person, in every linear model, in memory, files and Dask."""

import math

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import sklearn
from scipy.stats import multivariate_normal
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from skdp import DPPCA, DPIncrementalPCA, DPRidge, DPRidgeClassifier, DPTruncatedSVD
from skdp._inputs import split_users
from skdp.data.blocks import dense
from skdp.data.dask_groups import _place, _stacked, blocks_by_group
from skdp.exceptions import PrivacyError, PrivacyWarning
from skdp.model_selection import DPGridSearchCV, IndependentKFold, search_cost
from skdp.preprocessing import DPStandardScaler
from skdp.testing import fixed_noise, record_transcript, transcript_audit
from skdp.testing.audit import FitData
from tools.outcomes import refuses
from tools.places import GROUP, PERSONS, assert_same_bits

# Tiny fits show little, and some have no noise; whether a fit says so is tested elsewhere.
pytestmark = pytest.mark.filterwarnings(
    "ignore::skdp.exceptions.UtilityWarning", "ignore:.*adds no noise:UserWarning"
)

models = pytest.mark.parametrize("model", PERSONS, ids=repr)


def table(n_persons=60, d=6, seed=0):
    """Return rows of persons of 1 to 12 rows, mixed, their targets and their persons."""
    rng = np.random.default_rng(seed)
    persons = np.repeat(np.arange(n_persons), rng.integers(1, 13, n_persons))
    persons = 7 * rng.permutation(persons) + 3
    X = rng.standard_normal((len(persons), d)) * np.linspace(2, 0.5, d)
    return X, X @ np.linspace(1, -1, d), persons


def fitted(model, X, y=None, **fit):
    """Return the released attributes of a fit under fixed noise."""
    with fixed_noise(0):
        model = sklearn.clone(model).fit(X, y, **fit)
    return released(model)


def released(model):
    names = ("components_", "mean_", "var_", "scale_", "coef_", "intercept_", "n_samples_")
    return {name: getattr(model, name) for name in names if hasattr(model, name)}


@pytest.mark.deep
@models
def test_groups_and_a_column_are_one(model):
    X, y, groups = table()
    expected = fitted(model, X, y, groups=groups)
    if isinstance(model, DPStandardScaler):  # which hands the column on
        expected = {k: np.insert(v, 2, 0.0 if k == "mean_" else 1.0) for k, v in expected.items()}
    whole = np.insert(X, 2, groups, axis=1)
    by_column = sklearn.clone(model).set_params(group_column=2)
    assert_same_bits(fitted(by_column, whole, y), expected)
    frame = pd.DataFrame(whole, columns=[f"c{i}" for i in range(whole.shape[1])])
    assert_same_bits(fitted(by_column.set_params(group_column="c2"), frame, y), expected)


@pytest.mark.thorough
@models
def test_neither_the_order_of_rows_nor_the_names_of_persons_change_a_bit(model):
    X, y, groups = table()
    order = np.random.default_rng(1).permutation(len(X))
    expected = fitted(model, X, y, groups=groups)
    names = np.array([f"person {g}" for g in groups])
    assert_same_bits(fitted(model, X[order], y[order], groups=names[order]), expected)
    assert_same_bits(fitted(sklearn.clone(model), X, y, groups=list(groups)), expected)


@pytest.mark.deep
@pytest.mark.parametrize("labels", ["numbers", "strings"])
def test_one_shuffle_makes_blocks_of_whole_persons(labels):
    da = pytest.importorskip("dask.array")
    X, y, groups = table()
    if labels == "strings":
        groups = np.array([f"person {g}" for g in groups])
    model = DPRidge(clip_norm=3.0, target_bounds=(-4.0, 4.0), **GROUP)
    expected = fitted(model, X, y, groups=groups)
    blocks = (len(X) // 3, len(X) // 3, len(X) - 2 * (len(X) // 3))
    lazy = [da.from_array(part, chunks=(blocks, *part.shape[1:])) for part in (groups, X, y)]
    refuses(ValueError, "more than one block", fitted, model, lazy[1], lazy[2], groups=lazy[0])
    for n_blocks in (None, 1, 40):  # some of 40 hold nobody
        persons, rows, targets = blocks_by_group(*lazy, n_blocks=n_blocks)
        assert rows.numblocks[0] == (n_blocks or 3)
        assert_same_bits(fitted(model, rows, targets, groups=persons), expected)
    if labels == "numbers":  # of other types: the same places
        kinds = lazy[0], lazy[0].astype(float), da.ma.masked_equal(lazy[0], groups[0])
        ints, floats, hidden = (blocks_by_group(g, *lazy[1:])[0].compute() for g in kinds)
        assert np.array_equal(floats, ints) and np.ma.is_masked(hidden)
    refuses(ValueError, "need the blocks of X", blocks_by_group, lazy[0].rechunk(7), *lazy[1:])
    refuses(ValueError, "must be Dask arrays", blocks_by_group, groups, *lazy[1:])


def test_persons_that_are_masked_stay_so_where_blocks_are_joined():
    parts = np.ma.masked_equal([1, 2], 1), np.array([3])
    assert _stacked(parts).mask.tolist() == [True, False, False]


@pytest.mark.parametrize(
    "labels",
    [np.array([b"alice", b"bob"]), np.array([1.0, math.inf]), np.array([7, "bob"], object),
     np.array([1, 2], np.longdouble), np.array([10**5000, 2], object)],
    ids=["bytes", "inf", "mixed", "extended", "huge"],
)  # fmt: skip
def test_a_shuffle_reveals_no_labels(labels):
    """No task raises, whatever the labels are: Dask logs the arguments of one that does."""
    da = pytest.importorskip("dask.array")
    groups, X = np.tile(labels, 2), da.zeros((4, 1), chunks=(2, 1))
    for n_blocks in (1, 5):
        lazy = da.from_array(groups, chunks=2)
        found, again = (blocks_by_group(lazy, X, n_blocks=n_blocks)[0] for _ in range(2))
        assert found.name != again.name  # neither hashes the labels
        assert sorted(found.compute().tolist(), key=hash) == sorted(groups.tolist(), key=hash)
        assert len({_place(same, n_blocks) for same in (7, 7.0, np.int64(7))}) == 1


def test_a_shuffle_loses_no_rows_of_unequal_blocks():
    da = pytest.importorskip("dask.array")
    X, fewer = da.zeros((4, 1), chunks=(2, 1)), da.zeros(3, chunks=((2, 1),))
    refuses(ValueError, "need the blocks of X", blocks_by_group, fewer, X)
    unknown = fewer.map_blocks(np.asarray, chunks=((math.nan, math.nan),))
    for groups, rows in ((unknown, X), (X[:, 0], unknown[:, None])):
        persons, found = blocks_by_group(groups, rows)
        assert None in persons.compute()
        model = DPPCA(1, clip_norm=1.0, privacy_unit="group")
        refuses(PrivacyError, "could not be read", model.fit, found, groups=persons)


@pytest.mark.thorough
@pytest.mark.parametrize("unit", ["row", "group"])
@pytest.mark.parametrize("model", [DPRidge, DPRidgeClassifier])
def test_a_block_without_rows_is_a_block(model, unit):
    """How many of the blocks hold nobody is private, as who is in which."""
    da = pytest.importorskip("dask.array")
    X, y, groups = table()
    bounds = {"clip_norm": 3.0}
    if model is DPRidge:
        bounds |= {"target_bounds": (-4.0, 4.0)}
    else:
        y, bounds = (y > 0).astype(int), bounds | {"classes": [0, 1]}
    whole = {"groups": groups} if unit == "group" else {}
    expected = fitted(model(privacy_unit=unit, **bounds), X, y, **whole)
    blocks = (0, len(X), 0)
    lazy = {name: da.from_array(column, chunks=(blocks,)) for name, column in whole.items()}
    rows = da.from_array(X, chunks=(blocks, X.shape[1]))
    targets = da.from_array(y, chunks=(blocks,))
    assert_same_bits(fitted(model(privacy_unit=unit, **bounds), rows, targets, **lazy), expected)


@models
def test_what_does_not_protect_persons_is_refused(model):
    X, y, groups = table()
    both, strange = {"group_column": 0}, ["a", *groups[1:].tolist()]
    for params, given, match in (
        ({}, None, f"{type(model).__name__}.*needs the group of each row"),
        ({"privacy_unit": "row"}, groups, "does not protect them"),
        ({"privacy_unit": "row"} | both, None, "'group_column' with privacy_unit='group' only"),
        (both, groups, "Both 'groups' and"),
        ({}, groups[1:], r"\(how many is private\)\.$"),
        ({}, [None, *groups[1:]], "missing"),
        ({}, np.zeros(len(groups), "i8,f8"), "all strings or all numbers"),
        ({}, strange, "strings or all numbers"),
    ):
        with pytest.raises(ValueError, match=match):
            sklearn.clone(model).set_params(**params).fit(X, y, groups=given)
    with pytest.raises(ValueError, match="does not protect them"):
        DPTruncatedSVD(privacy_unit="entry").fit(X, groups=groups)


def test_groups_are_routed_through_a_pipeline():
    X, _, groups = table(400)
    with sklearn.config_context(enable_metadata_routing=True):
        pipe = make_pipeline(
            DPStandardScaler(privacy_unit="group"), DPPCA(2, privacy_unit="group", clip_norm=3.0)
        )
        pipe.fit(X, groups=groups)
        alone = make_pipeline(DPStandardScaler(), DPPCA(2, privacy_unit="group", clip_norm=3.0))
        alone.fit(X, groups=groups)  # the first step protects rows, and asks for no groups
    assert pipe[0].privacy_spent_.unit == pipe[1].privacy_spent_.unit == "group"
    assert alone[0].privacy_spent_.unit == "row"


def test_the_scaler_hands_the_column_on():
    X, _, groups = table(300)
    whole = np.insert(X, 0, groups, axis=1)
    column = {"privacy_unit": "group", "group_column": 0}
    pipe = make_pipeline(DPStandardScaler(**column), DPPCA(2, clip_norm=3.0, **column))
    pipe.fit(whole)
    scaled = pipe[0].transform(whole)
    assert np.array_equal(scaled[:, 0], groups)
    assert {step.privacy_spent_.unit for _, step in pipe.steps} == {"group"}
    assert pipe.transform(whole).shape == (len(X), 2)
    assert pipe[1].components_.shape == (2, X.shape[1])
    np.testing.assert_allclose(pipe[0].inverse_transform(scaled)[:, 0], groups)


@pytest.mark.parametrize("form", [sp.csr_array, sp.coo_array, np.asarray])
def test_the_column_of_persons_is_no_feature(form):
    X, _, groups = table(5)
    rows, persons = split_users(form(np.insert(X, 2, groups, axis=1)), 2)
    assert np.array_equal(dense(rows), X) and np.array_equal(persons, groups)


def test_a_person_with_many_rows_does_not_pull_the_mean(rng):
    """A thousand rows far away count as one row would."""
    X, groups = rng.standard_normal((3000, 3)), np.arange(3000)
    far, owner = np.full((1000, 3), 3.0), np.full(1000, 3000)
    settings = {"privacy_unit": "group", "clip_norm": 6.0, "epsilon": 4.0}
    with fixed_noise(0):
        without = DPPCA(1, **settings).fit(X, groups=groups)
    with fixed_noise(0):
        more = DPPCA(1, **settings).fit(np.vstack([X, far]), groups=np.append(groups, owner))
    assert np.abs(more.mean_ - without.mean_).max() < 0.01
    assert more.n_samples_ == without.n_samples_ + 1


def neighbours(size, adjacency):
    """Return few persons and one of so many rows of all scales; then what may be without it.

    In place of that person comes one row, opposite to its first, which moves sums the most, or at
    right angles to it, which moves squares the most: they are blind to a sign.
    """
    X, y, groups = table(9)
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((size, X.shape[1])) * 10.0 ** rng.uniform(-9, 9, (size, 1))
    turned = rows[:1, ::-1] * np.repeat([1.0, -1.0], 3)
    data = []
    for one in (rows, -rows[:1], turned) if adjacency == "replace" else (rows, rows[:0]):
        more = np.vstack([X, one]), np.append(y, 1e9 * one[:, 0]), np.append(groups, [1] * len(one))
        data.append(FitData(more[0], more[1], {"groups": more[2]}))
    return data


@pytest.mark.thorough
@pytest.mark.parametrize("size", [100_000, 1, 2])
@models
def test_every_release_holds_for_a_person_of_any_size(model, size):
    """At the answers that were released a person moves none by more than it was given noise for."""
    data, *others = neighbours(size, model.adjacency)
    reports = [transcript_audit(model, (data, other)).check() for other in others]
    assert all(report.realised_mu <= report.claimed_mu * (1 + 1e-9) for report in reports)
    assert max(report.realised_mu for report in reports) > 0.0


def streamed(batches, **params):
    """Return what a stream of (rows, persons) released under fixed noise."""
    params = {"clip_norm": 4.0, "max_releases": len(batches)} | GROUP | params
    with fixed_noise(0):
        model = DPIncrementalPCA(2, **params)
        for X, groups in batches:
            model.partial_fit(X, groups=groups)
    return released(model) | {"n_samples_": model.n_samples_seen_}


def test_a_delta_is_compared_with_the_number_of_persons_where_that_is_public():
    X, persons = np.ones((1200, 1)), np.arange(1200)
    scaler = DPStandardScaler(delta=9e-4, bounds=(0, 1), **GROUP)
    scaler.fit(X, groups=persons)  # warnings are errors
    with pytest.warns(PrivacyWarning, match=r"delta=0.0009 is too large"):
        scaler.set_params(adjacency="replace").fit(X, groups=persons)


@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_a_person_in_a_second_batch_is_an_error_without_charge(adjacency):
    X, _, groups = table(40)
    early = groups < np.median(groups)
    once = [(X[early], groups[early]), (X[~early], groups[~early])]
    expected = streamed(once, adjacency=adjacency)
    again = groups[~early].astype(float)
    again[-1] = groups[early][0]
    with fixed_noise(0):
        model = DPIncrementalPCA(2, clip_norm=4.0, max_releases=2, adjacency=adjacency, **GROUP)
        model.partial_fit(once[0][0], groups=once[0][1])
        with pytest.raises(ValueError, match="came in an earlier one") as error:
            model.partial_fit(X[~early], groups=again)
        assert not any(character.isdigit() for character in str(error.value))
        assert model.n_stream_releases_ == 1
        model.partial_fit(once[1][0], groups=once[1][1])  # neither the rows nor the step are lost
    assert_same_bits(released(model) | {"n_samples_": model.n_samples_seen_}, expected)
    if adjacency == "replace":
        assert model.n_samples_seen_ == len(np.unique(groups))


def test_batches_and_scores_may_have_a_column_of_persons(tmp_path):
    X, _, groups = table(40)
    batches = [(X[rows], groups[rows]) for rows in (groups < 99, groups >= 99)]
    expected, column = streamed(batches), {"group_column": 2} | GROUP
    with fixed_noise(0):
        model = DPIncrementalPCA(2, clip_norm=4.0, max_releases=2, **column)
        for rows, persons in batches:
            frame = pd.DataFrame(np.insert(rows, 2, persons, axis=1)).add_prefix("c")
            model.partial_fit(frame)
            if model._private is not None:
                model.checkpoint(tmp_path / "stream")
    assert_same_bits(released(model) | {"n_samples_": model.n_samples_seen_}, expected)
    law = multivariate_normal(model.mean_, model.get_covariance())
    for same in (model, DPIncrementalPCA.restore(tmp_path / "stream")):
        assert same.score(frame) == pytest.approx(law.logpdf(rows).mean())


@pytest.mark.parametrize(
    ("first", "again", "said"),
    [("M8[D]", "M8[ns]", "came in an earlier one"), ("S1", "i8", "text in one batch"),
     ("i8", "g", "at most 64 bits"), ("?", "i8", "came in an earlier one")],
)  # fmt: skip
def test_a_person_comes_again_in_any_type(first, again, said):
    """Dates have any unit; bytes are text; long floats have a text of their own."""
    model, person = DPIncrementalPCA(1, clip_norm=1.0, max_releases=3, **GROUP), np.ones(1, first)
    model.partial_fit(np.eye(3)[:1], groups=person)
    model.partial_fit(np.eye(3)[:0], groups=person[:0])  # whoever came in between
    refuses(ValueError, said, model.partial_fit, np.eye(3)[:1], groups=person.astype(again))


def test_a_name_of_a_person_refuses_no_other_batch():
    model, row = DPIncrementalPCA(1, clip_norm=1.0, max_releases=3, **GROUP), np.eye(3)[:1]
    for name in ("ada", "n5"):
        model.partial_fit(row, groups=[name])
    refuses(ValueError, "text in one batch", model.partial_fit, row, groups=[5])


@pytest.mark.parametrize("labels", [[5.0, "x", 5], [5, 5, 6], [5, 6, 5], [6, 5, 5]])
def test_a_person_in_two_blocks_is_detected(labels):
    """As text 5 and 5.0 differ: text between numbers hides nobody."""
    da = pytest.importorskip("dask.array")
    groups = da.from_array(np.array(labels, object), chunks=1)
    X, model = da.zeros((3, 2), chunks=(1, 2)), DPPCA(1, clip_norm=1.0, **GROUP)
    refuses(ValueError, "more than one block", model.fit, X, groups=groups)


def test_a_batch_may_be_empty():
    X, _, groups = table(40)
    nobody = (np.zeros((0, X.shape[1])), np.zeros(0))
    assert streamed([(X, groups), nobody])["n_samples_"] > 0


def test_a_stream_of_persons_goes_on_from_a_checkpoint(tmp_path):
    X, _, groups = table(40)
    batches = [(X[groups % 3 == i], groups[groups % 3 == i]) for i in range(3)]
    model = DPIncrementalPCA(2, clip_norm=4.0, max_releases=3, **GROUP)
    model.partial_fit(batches[0][0], groups=batches[0][1])
    model.checkpoint(tmp_path / "stream")
    model._drop_stream()
    again = DPIncrementalPCA.restore(tmp_path / "stream")
    for seen, match in (
        (batches[0][1], "came in an earlier one"),
        (batches[0][1].astype(str), "text in one batch"),
    ):
        refuses(ValueError, match, again.partial_fit, batches[0][0], groups=seen)
    for X, groups in batches[1:]:
        again.partial_fit(X, groups=groups)
    assert again.n_stream_releases_ == 3


def test_searches_count_a_person_once():
    X, y, groups = table(400)
    bounded = {"clip_norm": 3.0, "privacy_unit": "group"}
    classifier = DPRidgeClassifier(classes=[0, 1], **bounded)
    search = DPGridSearchCV(classifier, {"alpha": [1.0, 1e6]}, epsilon=4.0)
    with record_transcript() as transcript:
        search.fit(X, (y > 0).astype(int), groups=groups)
    counts = [o.exact * o.step for o in transcript if o.bound.name == "loss_count"]
    np.testing.assert_allclose(counts, 400)
    assert search.privacy_spent_.unit == "group"
    plain = GridSearchCV(DPRidge(**bounded), {"alpha": [1.0]}, cv=IndependentKFold(3))
    cost = search_cost(plain, n_samples=len(X), groups=groups)
    assert (cost.unit, cost.held) == ("group", 2)
