"""The recommender: never below popularity, near the exact filter, warnings without factors."""

import math

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.base import clone

from skdp import PrivacyLedger
from skdp.datasets import make_interactions
from skdp.exceptions import PrivacyWarning, UtilityWarning
from skdp.model_selection import split_interactions
from skdp.queries.interactions import pair_change
from skdp.recommend import DPRecommender, recall_at_n
from skdp.testing import fixed_noise, record_transcript, seeded_entropy
from tools.outcomes import refuses

# There are more cells than one over the usual delta, which an interaction unit is told.
pytestmark = pytest.mark.filterwarnings("ignore:delta=.*no less:skdp.exceptions.PrivacyWarning")

NO_FACTORS = "ignore::skdp.exceptions.UtilityWarning"


@pytest.fixture(scope="module")
def factors():
    R = make_interactions(4000, 400, 80_000, 8, random_state=0)
    return split_interactions(R, random_state=0)


@pytest.fixture(scope="module")
def plain():
    """Popularity is all there is."""
    R = make_interactions(4000, 400, 40_000, 2, factor_fraction=0.0, random_state=1)
    return split_interactions(R, random_state=0)


def popularity_recall(split):
    train, test = split
    scores = np.where(train.toarray() > 0, -np.inf, np.asarray(train.sum(axis=0)).reshape(-1))
    return recall_at_n(np.argsort(-scores, axis=1, kind="stable")[:, :20], test)


def recall(model, split):
    return recall_at_n(model.recommend(split[0])[0], split[1])


@pytest.mark.parametrize("unit", ["row", "interaction"])
def test_components_that_do_not_fit_into_memory_fail_before_payment(factors, unit):
    model = DPRecommender(10**15, privacy_unit=unit)
    with record_transcript() as transcript, PrivacyLedger(1.0, 1e-6) as ledger:
        refuses((MemoryError, ValueError), None, model.fit, factors[0])
    assert not len(transcript) and not ledger.entries


@pytest.mark.deep
@pytest.mark.parametrize("unit", ["row", "interaction"])
def test_factors_beat_popularity_and_come_near_the_exact_filter(factors, unit):
    def found(epsilon):
        return recall(DPRecommender(epsilon=epsilon, privacy_unit=unit).fit(factors[0]), factors)

    with seeded_entropy(0):
        few, more, most = map(found, (0.5, 3.0, 10.0))
    with pytest.warns(PrivacyWarning):
        exact = found(math.inf)
    popular = popularity_recall(factors)
    assert few > popular - 0.01
    assert more > popular + 0.05
    assert most > 0.9 * exact
    assert few - 0.01 < more < most + 0.01


@pytest.mark.filterwarnings(NO_FACTORS)
@pytest.mark.deep
@pytest.mark.parametrize("unit", ["row", "interaction"])
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 10.0])
def test_never_below_popularity(plain, unit, epsilon):
    """Next to the counts at the same budget, which are noisy too."""

    def mean_recall(**params):
        model = DPRecommender(epsilon=epsilon, privacy_unit=unit, **params)
        return np.mean([recall(model.fit(plain[0]), plain) for _ in range(6)])

    with seeded_entropy(0):
        assert mean_recall() > mean_recall(algorithm="popularity") - 0.008


def test_with_nothing_to_read_the_order_is_that_of_the_counts():
    R = sp.random_array((60, 40), density=0.1, rng=0, format="csr")
    with seeded_entropy(0), pytest.warns(UtilityWarning, match="no latent factor"):
        model = DPRecommender(epsilon=0.1).fit(R)
    assert model.rank_ == 0
    items, _ = model.recommend(sp.csr_array((1, 40)), n=40)
    np.testing.assert_array_equal(items[0], np.argsort(-model.item_counts_, kind="stable"))
    np.testing.assert_array_equal(model.popular_items(40)[0], items[0])


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
@pytest.mark.parametrize(
    ("params", "route", "delta"),
    [
        ({}, "gram", 1e-6),
        ({"privacy_unit": "interaction", "epsilon": 0.3}, "gram", 1e-6),
        ({"privacy_unit": "interaction", "epsilon": 10.0}, "one_shot", 0.0),
        ({"privacy_unit": "interaction", "delta": 0.0}, "one_shot", 0.0),
        ({"privacy_unit": "interaction", "algorithm": "popularity"}, "popularity", 0.0),
        ({"algorithm": "popularity"}, "popularity", 1e-6),
    ],
)
def test_routes_and_receipts(factors, params, route, delta):
    model = DPRecommender(**params).fit(factors[0])
    assert model.algorithm_reason_.startswith(route)
    assert model.privacy_spent_.delta == delta
    assert model.privacy_spent_.epsilon == pytest.approx(params.get("epsilon", 1.0))
    if route == "popularity":
        names = {line.name for line in model.releases_}
        assert names <= {"count", "item_counts", "row_sum"}


def test_what_is_spent_does_not_depend_on_what_is_found():
    """Long and short histories, with both routes of interactions: equal losses."""
    strong = make_interactions(3000, 60, 40_000, 3, random_state=0)
    weak = sp.random_array((3000, 60), density=0.001, rng=0, format="csr")
    for params in ({"algorithm": "gram"}, {"delta": 0.0}):
        model = DPRecommender(privacy_unit="interaction", epsilon=1.0, **params)
        first = clone(model).fit(strong)
        with pytest.warns(UtilityWarning, match="no latent factor"):
            second = clone(model).fit(weak)
        names = [[line.name for line in model.releases_] for model in (first, second)]
        assert names[0] != names[1]
        assert first.privacy_spent_.losses == second.privacy_spent_.losses


def test_recommendations_leave_out_what_is_known_and_what_is_not_asked_for(factors):
    train, _ = factors
    model = DPRecommender(epsilon=3.0).fit(train)
    items, scores = model.recommend(train[:50], n=7)
    assert items.shape == scores.shape == (50, 7)
    assert np.all(np.diff(scores, axis=1) <= 0)
    assert not np.any(train[:50].toarray()[np.arange(50)[:, None], items])
    again, _ = model.recommend(train[:50].toarray(), n=7)
    np.testing.assert_array_equal(again, items)
    alone = np.vstack([model.recommend(row[None], n=7)[0] for row in train[:50:10].toarray()])
    np.testing.assert_array_equal(alone, items[::10])
    some, _ = model.recommend(train[:50], n=5, items=[3, 9, 11])
    assert set(np.unique(some)) <= {-1, 3, 9, 11}
    assert np.all(some[:, 3:] == -1)
    known, _ = model.recommend(train[:50], n=400, exclude_known=False)
    assert np.all(np.sort(known, axis=1) == np.arange(400))
    with pytest.warns(PrivacyWarning, match="no noise"):  # nor has a list an item without users
        exact = clone(model).set_params(epsilon=math.inf).fit(train * (np.arange(400) != 7))
    assert not np.isin(exact.recommend(train[:50])[0], (-1, 7)).any()
    refuses(ValueError, "item numbers", model.recommend, train[:2], items=[400])
    refuses(ValueError, "'n' must be", model.recommend, train[:2], n=0)
    refuses(ValueError, "use interactions_from_pairs", model.fit, pd.DataFrame({"item": [1]}))
    with pytest.warns(UtilityWarning, match="few columns: each must be one item"):
        clone(model).set_params(epsilon=1.0).fit(np.ones((9, 2)))


def test_an_item_without_factors_is_similar_to_none(factors):
    model = DPRecommender(epsilon=3.0, algorithm="popularity").fit(factors[0])
    near, cosines = model.item_similarity(7, n=3)
    assert near.tolist() == [-1] * 3 and np.all(cosines == -np.inf)


@pytest.mark.deep
def test_similar_items_share_a_factor(factors):
    with seeded_entropy(0):
        model = DPRecommender(epsilon=10.0, privacy_unit="interaction").fit(factors[0])
    co = np.asarray((factors[0].T @ factors[0]).todense())
    lift = len(factors[0].indptr) * co / np.outer(np.diag(co) + 1, np.diag(co) + 1)
    item = int(np.argmax(np.diag(co)))
    near, cosines = model.item_similarity(item, 10)
    assert item not in near
    assert np.all(np.diff(cosines) <= 0)
    assert np.median(lift[item, near]) > 1.5 * np.median(lift[item])


def test_the_map_is_the_filter(factors):
    model = DPRecommender(8, epsilon=3.0).fit(factors[0])
    mapped = model.transform(factors[0][:20])
    assert mapped.shape == (20, 8)
    raw = factors[0][:20][:, model.selected_items_] @ model.filter_.inward
    np.testing.assert_allclose(mapped[:, : raw.shape[1]], raw, atol=1e-12)
    assert list(model.get_feature_names_out()[:2]) == ["dprecommender0", "dprecommender1"]


@pytest.mark.deep
@pytest.mark.parametrize("unit", ["row", "interaction"])
def test_blocks_of_rows(factors, unit, tmp_path):
    """Files, dense or sparse, and arrays in memory give the same fit."""
    train, paths, found = factors[0][:500], [tmp_path / "0.npz", tmp_path / "1.npz"], []
    for path, part in zip(paths, (train[:200], train[200:]), strict=True):
        sp.save_npz(path, part)
    np.save(tmp_path / "2.npy", train.toarray())
    for R in (train, [str(path) for path in paths], [str(tmp_path / "2.npy")]):
        with fixed_noise(0):
            found.append(DPRecommender(epsilon=5.0, privacy_unit=unit).fit(R))
    for model in found[1:]:
        np.testing.assert_array_equal(model.item_counts_, found[0].item_counts_)
        np.testing.assert_allclose(model.components_, found[0].components_, atol=1e-12)


@pytest.mark.filterwarnings(NO_FACTORS)
@pytest.mark.deep
def test_lists_of_flipped_histories_need_no_true_one(factors):
    """They are what is released: worse than lists of true histories, better than popularity."""
    with seeded_entropy(0):
        model = DPRecommender(epsilon=6.0, privacy_unit="interaction", delta=0.0).fit(factors[0])
    assert model.privacy_spent_.delta == 0.0
    published, scores = model.recommend_all()
    assert published.shape == scores.shape == (4000, 20)
    reported = model.randomized_interactions_.rows.toarray()[
        :, np.searchsorted(model.selected_items_, published[0])
    ]
    assert not reported[0].any()
    found = recall_at_n(published, factors[1])
    assert popularity_recall(factors) + 0.05 < found < recall(model, factors) + 0.01
    refuses(ValueError, "one_shot", DPRecommender().fit(factors[0][:300]).recommend_all)


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_flipped_histories_tell_counts_too(rng):
    R = 1.0 * (rng.random((60, 100)) < 0.2)
    with seeded_entropy(0):
        options = {"privacy_unit": "interaction", "algorithm": "one_shot"}
        model = DPRecommender(epsilon=10.0, **options).fit(R)
    error = (model.item_counts_ - R.sum(axis=0))[model.selected_items_]
    assert len(error) > 50 and np.abs(error).max() < model.item_counts_noise_scale_


@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_counts_of_whole_users_may_be_pure(factors, adjacency):
    """They are all that is released: each history adds 1 in all, as for n_users users."""
    R = factors[0][:1500]
    with fixed_noise(0), pytest.warns(UtilityWarning, match="no latent factor"):
        model = DPRecommender(delta=0.0, epsilon=20.0, adjacency=adjacency).fit(R)
    assert model.privacy_spent_.delta == 0.0
    assert {line.mechanism for line in model.releases_} == {"laplace"}
    assert model.algorithm_reason_ == "popularity: delta is 0"
    assert model.rank_ == 0
    shares = R.T @ (1 / np.maximum(np.diff(R.indptr), 1))
    np.testing.assert_allclose(model.item_counts_, shares, atol=2.0)
    assert DPRecommender(delta=0.0, epsilon=math.inf)._route(None)[0] == "gram"  # no noise


@pytest.mark.deep
def test_plans_of_one_item_and_of_factors_that_share_none():
    plan = DPRecommender().plan
    assert plan(50, 1).n_features == 1
    assert plan(900, 300).error < 0.3 < plan(900, 300, apart=True).error


@pytest.mark.parametrize("nnz", [0, 5.5, True])
def test_a_plan_refuses_interactions_that_no_matrix_of_its_shape_has(nnz):
    refuses(ValueError, "integer 'nnz'. Got", DPRecommender().plan, 10, 10, nnz=nnz)


@pytest.mark.deep
def test_values_below_their_cap_weigh_less(rng):
    """Ones with a cap give the binary fit; high ratings count more."""
    R = make_interactions(3000, 60, 40_000, 3, random_state=0)
    ratings = R.copy()
    ratings.data = rng.choice([0.2, 5.0, 50.0], R.nnz)
    fits = []
    for weights, data in (("binary", ratings), (1.0, R), (5.0, ratings)):
        with fixed_noise(0):
            fits.append(DPRecommender(4, value_cap=weights, epsilon=20.0).fit(data))
    binary, ones, capped = fits
    np.testing.assert_array_equal(binary.components_, ones.components_)
    np.testing.assert_array_equal(binary.recommend(ratings[:20])[0], ones.recommend(R[:20])[0])
    assert not np.array_equal(capped.item_counts_, binary.item_counts_)
    low = ratings.copy()
    low.data = np.minimum(low.data, 5.0)
    np.testing.assert_array_equal(capped.recommend(ratings[:20])[1], capped.recommend(low[:20])[1])


def test_splits_are_disjoint_and_fair():
    R = make_interactions(500, 100, 8000, 4, random_state=0)
    train, test = split_interactions(R, 0.3, random_state=1)
    assert (train + test != R).nnz == train.multiply(test).nnz == 0
    assert abs(test.nnz / R.nnz - 0.3) < 6 * math.sqrt(0.21 / R.nnz)
    refuses(ValueError, "test_size", split_interactions, R, 1.5)


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
@pytest.mark.parametrize("floor", [1, 3, 9])
def test_a_given_floor_is_that_of_the_bound(floor):
    R = make_interactions(60, 12, 240, 2, random_state=0)
    params = {"privacy_unit": "interaction", "algorithm": "gram", "epsilon": 1e3}
    model = DPRecommender(2, degree_floor=floor, **params).fit(R)
    (line,) = [line for line in model.releases_ if line.name == "pairs"]
    assert line.sensitivity == pytest.approx(pair_change(floor, "add_remove"), rel=1e-6)
