"""Histories of pairs, lists of the best items, and scores of lists."""

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.metrics import ndcg_score

from skdp.data.histories import hidden_cells
from skdp.datasets import make_interactions
from skdp.model_selection import DPGridSearchCV, make_private_scorer
from skdp.model_selection._proven import fast_map
from skdp.recommend import DPRecommender, interactions_from_pairs, ndcg_at_n, recall_at_n
from skdp.recommend._lists import best_items, missed_share
from skdp.solvers.item_filter import ItemFilter
from skdp.testing import record_transcript, seeded_entropy
from tools.outcomes import refuses

ITEMS = np.array(["jam", "tea", "ham", "oil"])


def test_each_pair_is_a_cell_whatever_the_order(rng):
    who, what = rng.integers(0, 30, 400) * 7, ITEMS[rng.integers(0, 4, 400)]
    found = interactions_from_pairs(who, what, items=ITEMS)
    expected = np.zeros((len(found.users), 4))
    for user, item in zip(who, what, strict=True):
        expected[np.flatnonzero(found.users == user)[0], np.flatnonzero(item == ITEMS)[0]] = 1.0
    assert np.array_equal(found.matrix.toarray(), expected)
    again = interactions_from_pairs(who[::-1], what[::-1], items=ITEMS, users=found.users).matrix
    assert np.array_equal(again.toarray(), expected)
    assert found.matrix.has_canonical_format
    refuses(TypeError, "attribute 'matrix'", DPRecommender().fit, found)
    refuses(TypeError, "item numbers", found.names, ([0, 1], [0.5, 0.2]))  # with their scores
    assert repr(found) == f"InteractionMatrix({len(found.users)} users x 4 items)"


def test_what_is_not_in_a_public_list_adds_nothing():
    who, what = ["ann", "bob", "eve"], ["tea", "pie", "jam"]
    found = interactions_from_pairs(who, what, items=ITEMS, users=["bob", "ann", "zoe"])
    assert found.matrix.toarray().tolist() == [[0.0] * 4, [0.0, 1.0, 0.0, 0.0], [0.0] * 4]
    assert found.users.tolist() == ["bob", "ann", "zoe"]


def test_the_largest_value_of_a_pair_counts_and_names_come_back():
    values = [1.0, 5.0, 3.0]
    found = interactions_from_pairs([1, 1, 2], ["tea"] * 3, items=ITEMS, values=values)
    assert found.matrix.toarray()[:, 1].tolist() == [5.0, 3.0]
    assert found.names([[1, -1]]).tolist() == [["tea", None]]


def test_one_strange_name_changes_no_other_pair():
    who, what = [1, 2, 2**53, 2**53 + 1], [7, 8, 7, 9]
    plain = interactions_from_pairs(who, what, items=[7, 8, 9])
    for name in ("1", 1.5, None, float("nan"), ["a"], ("a", 1)):
        one = interactions_from_pairs([*who, name], [*what, 8], items=[7, 8, 9]).matrix
        assert np.array_equal(one[:4].toarray(), plain.matrix.toarray())
        other = interactions_from_pairs([*who, 5], [*what, name], items=[7, 8, 9]).matrix
        assert np.array_equal(other[:4].toarray(), plain.matrix.toarray())


def test_a_pair_without_a_user_adds_nothing():
    """Names that are missing equal nothing: each pair of one person would be a row of its own."""
    pandas = pytest.importorskip("pandas")
    for missing in (None, float("nan"), pandas.NA, pandas.NaT):
        found = interactions_from_pairs([missing, 1, missing], ["tea", "jam", "jam"], items=ITEMS)
        assert found.users.tolist() == [1]
        assert found.matrix.toarray().tolist() == [[1.0, 0.0, 0.0, 0.0]]
    found = interactions_from_pairs(np.array([np.nan, 2.0, np.nan]), ["tea"] * 3, items=ITEMS)
    assert found.users.tolist() == [2.0] and found.matrix.sum() == 1
    hidden = np.ma.array([5.0], mask=[True])
    found = interactions_from_pairs([1], ["tea"], items=ITEMS, values=hidden)
    assert np.isnan(found.matrix.sum())  # which no fit takes


@pytest.mark.parametrize("users", [[2.0**53, 1.0], np.float32([2**24, 1])], ids=["list", "array"])
def test_users_that_floats_merge_are_refused(users):
    refuses(ValueError, "large floats", interactions_from_pairs, users, ["tea"] * 2, items=ITEMS)


@pytest.mark.parametrize("value", ["secret", 10**400])
def test_values_that_are_no_numbers_are_not_quoted(value):
    with pytest.raises(ValueError, match="must hold numbers") as caught:
        interactions_from_pairs([1], ["tea"], items=ITEMS, values=[value])
    assert caught.value.__context__ is None and "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (([1, 2], ["tea"], {"items": ITEMS}), "same length"),
        (([1], ["tea"], {"items": ["tea", "tea"]}), "repetitions"),
        (([1], ["tea"], {"items": ITEMS, "users": []}), "'users'"),
        (([1], ["tea"], {"items": ITEMS, "values": [1, 2]}), "values"),
        ((np.ones((1, 1)), ["tea"], {"items": ITEMS}), "one dense column"),
        (([1], ["tea"], {"items": ITEMS, "users": sp.csc_array([[1], [2]])}), "one dense column"),
    ],
)
def test_refusals(given, message):
    who, what, options = given
    refuses(ValueError, message, interactions_from_pairs, who, what, **options)


def test_a_catalogue_without_an_order_is_refused():
    for given in ({"tea", "jam"}, frozenset(ITEMS), dict.fromkeys(ITEMS).keys() | {"pie"}):
        refuses(ValueError, r"sorted\(items\)", interactions_from_pairs, [1], ["tea"], items=given)
    assert interactions_from_pairs([1], ["b"], items={"b": 1, "a": 2}.keys()).items[0] == "b"


def test_a_catalogue_of_another_type_than_the_pairs_is_refused():
    """As for classes: the dtype of an array is public, that of a list is not looked at."""
    numbers, text = np.array([1, 2]), np.array(["1", "2"])
    for what, items, said in (
        (numbers, text, "text and pairs_items numbers"),
        (text, numbers, "numbers and pairs_items text"),
        (text.astype("S"), [1.0, 2], "numbers and pairs_items bytes"),
    ):
        refuses(ValueError, said, interactions_from_pairs, [1, 2], what, items=items)
        assert interactions_from_pairs([1, 2], what.tolist(), items=items).matrix.nnz == 0
    for what, items in ((numbers, [1.0, 2.0]), (numbers, ["1", 2]), (text, text)):
        assert interactions_from_pairs([1, 2], what, items=items).matrix.nnz > 0


# -- the best items --------------------------------------------------------------------------------


@pytest.mark.parametrize("n_items", [19, 64 * 20, 64 * 20 + 7, 3000])
@pytest.mark.parametrize("n", [1, 5, 30])
def test_lists_are_those_of_a_sort(n_items, n):
    """In wide tables the maxima of groups come first; known items are anywhere, also the last."""
    rng = np.random.default_rng(n_items + n)
    scores = rng.standard_normal((7, n_items))
    scores[1] = np.arange(n_items)
    scores[2] = -np.arange(n_items)
    known = rng.random((7, n_items)) < 0.3
    known[3, : n_items - 2] = True  # two items are left
    items, values = best_items(lambda _: scores.copy(), sp.csr_array(known), n, exclude_known=True)
    wanted = np.where(known, -np.inf, scores)
    order = np.argsort(-wanted, axis=1, kind="stable")[:, :n]
    top = np.take_along_axis(wanted, order, axis=1)
    m = order.shape[1]
    np.testing.assert_array_equal(values[:, :m], top)
    np.testing.assert_array_equal(items[:, :m], np.where(np.isfinite(top), order, -1))
    assert np.all(items[:, m:] == -1)


def test_scores_are_of_popularity_and_of_the_factors_of_kept_items(rng):
    kept = np.sort(rng.permutation(40)[:5])
    inward, outward = rng.standard_normal((5, 3)), rng.standard_normal((2, 5))
    factors = ItemFilter(kept, 1 + rng.random(40), inward, outward, 0.7)
    rows = (rng.random((9, 40)) < 0.3).astype(float)
    for flips in ((1.0, 0.0), (1.5, 0.2)):
        projected = (flips[0] * rows - flips[1])[:, kept] @ inward
        sizes = np.maximum((flips[0] * rows - flips[1])[:, kept].sum(axis=1, keepdims=True), 1.0)
        more = 0.7 * (1 + 1 / sizes)
        wanted = more * np.maximum(projected[:, :1], 1e-9) * factors.popularity
        wanted[:, kept] += projected[:, 1:] @ outward
        np.testing.assert_allclose(factors.scorer(flips)(sp.csr_array(rows)), wanted, atol=1e-12)


# -- scores of lists -------------------------------------------------------------------------------


def test_scores_are_those_of_the_definition(rng):
    truth = (rng.random((40, 15)) < 0.2).astype(float)
    truth[3] = 0
    lists = np.argsort(rng.random((40, 15)), axis=1)[:, :6]
    users = truth.sum(axis=1) > 0
    hits = [truth[u, lists[u]].sum() / truth[u].sum() for u in np.flatnonzero(users)]
    assert recall_at_n(lists, truth) == pytest.approx(np.mean(hits))
    scores = np.zeros_like(truth)
    np.put_along_axis(scores, lists, np.arange(6, 0, -1.0)[None].repeat(40, 0), axis=1)
    assert ndcg_at_n(lists, truth) == pytest.approx(ndcg_score(truth[users], scores[users], k=6))


def test_places_without_an_item_are_no_hits():
    truth = np.array([[1.0, 0.0]])
    assert recall_at_n(np.array([[-1, -1]]), truth) == 0.0
    assert ndcg_at_n(np.array([[-1, 0]]), truth) == pytest.approx(1 / np.log2(3))
    assert recall_at_n(np.array([[0, 1]]), np.zeros((1, 2))) == 0.0
    assert ndcg_at_n(np.array([[0, 1]]), np.zeros((1, 2))) == 0.0


def test_lists_and_users_must_match():
    for wrong in (np.zeros((3, 2), int), np.zeros((2, 2)), np.full((2, 2), 2)):
        refuses(ValueError, "numbers below 2 for each of 2 users", recall_at_n, wrong, np.eye(2))


def test_an_item_that_is_named_twice_is_recommended_once():
    model = DPRecommender()
    model.n_features_in_ = 4
    assert model._checked_items([3, 1, 1]).tolist() == [1, 3]


@pytest.fixture(scope="module")
def fitted():
    R = make_interactions(800, 120, 16_000, 4, random_state=0)
    with seeded_entropy(0):
        return R, DPRecommender(4, epsilon=20.0).fit(R)


@pytest.mark.deep
def test_missed_items_are_those_of_the_definition(fitted):
    R, model = fitted
    R = R[:60]
    hidden = R.copy()
    hidden.data = hidden_cells(R).astype(float)
    hidden.eliminate_zeros()
    lists, _ = model.recommend(R - hidden, n=20)
    recalls = [
        np.isin(hidden[[u]].indices, lists[u]).mean() if hidden[[u]].nnz else 0.5 for u in range(60)
    ]
    np.testing.assert_allclose(missed_share(model, R), 1 - np.array(recalls))
    order = np.random.default_rng(0).permutation(60)
    np.testing.assert_array_equal(missed_share(model, R[order]), missed_share(model, R)[order])
    one = sp.csr_array((np.ones(1), ([0], [3])), shape=(2, 120))  # nothing to hide, or to go by
    np.testing.assert_array_equal(missed_share(model, one), [0.5, 0.5])


def test_a_list_that_is_scored_is_made_of_one_row(rng):
    """Bits of a product depend on the other rows, and so might the length of a list."""
    asked, mixing = [], rng.standard_normal((40, 40))

    def scores(rows):
        asked.append(rows.shape[0])
        return rows.toarray() @ mixing

    public = SimpleNamespace(list_length=10, scorer=lambda: scores)
    model = SimpleNamespace(filter_=public, _histories=sp.csr_array)
    R = (rng.random((30, 40)) < 0.5).astype(float)
    losses = missed_share(model, R)
    assert losses.shape == (30,) and set(asked) == {1}
    assert losses.tolist() == [missed_share(model, row[None])[0] for row in R]


@pytest.mark.thorough
def test_a_private_score_of_lists_is_their_recall_up_to_its_noise(fitted):
    R, model = fitted
    scorer = make_private_scorer("missed_items", (0.0, 1.0), epsilon=2.0, adjacency="replace")
    with seeded_entropy(0), record_transcript() as transcript:
        score = scorer(model, R)
    scale = transcript.openings[0].noise_scale / 800
    assert abs(score + missed_share(model, R).mean()) < 6 * scale
    assert transcript.openings[0].bound.l2 == pytest.approx(1.0)
    with pytest.raises(AttributeError):  # before anything is read
        scorer(object(), R)
    mapped, some = fast_map(model, R, "recommend"), R[:9]
    alone = np.concatenate([mapped(some[[i]]) for i in range(9)])
    np.testing.assert_array_equal(mapped(some.toarray()), alone)


@pytest.mark.thorough
def test_a_search_over_recommenders_pays_for_lists(fitted):
    R, _ = fitted
    grid = {"algorithm": ["popularity", "gram"]}  # scored by missed items, if nothing is stated
    search = DPGridSearchCV(DPRecommender(4), grid, epsilon=30.0, strategy="compose")
    with seeded_entropy(0):
        search.fit(R)
    assert search.best_params_ == {"algorithm": "gram"}
    assert search.privacy_spent_.epsilon == pytest.approx(30.0)
    assert search.best_estimator_.recommend(R[:3])[0].shape == (3, 20)
