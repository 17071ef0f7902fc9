"""Scores of recommendations against their definitions."""

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.metrics import ndcg_score

from skdp.data.histories import hidden_cells
from skdp.datasets import make_interactions
from skdp.model_selection import DPGridSearchCV, make_private_scorer
from skdp.recommend import DPRecommender, ndcg_at_n, recall_at_n
from skdp.recommend._lists import missed_share
from skdp.testing import record_transcript, seeded_entropy


def test_scores_are_those_of_the_definition():
    rng = np.random.default_rng(0)
    truth = (rng.random((40, 15)) < 0.2).astype(float)
    truth[3] = 0
    lists = np.argsort(rng.random((40, 15)), axis=1)[:, :6]
    users = truth.sum(axis=1) > 0
    hits = [truth[u, lists[u]].sum() / truth[u].sum() for u in np.flatnonzero(users)]
    assert recall_at_n(lists, truth) == pytest.approx(np.mean(hits))
    scores = np.zeros_like(truth)
    np.put_along_axis(scores, lists, np.arange(6, 0, -1.0)[None].repeat(40, 0), axis=1)
    expected = ndcg_score(truth[users], scores[users], k=6)
    assert ndcg_at_n(lists, truth) == pytest.approx(expected)


def test_places_without_an_item_are_no_hits():
    truth = np.array([[1.0, 0.0]])
    assert recall_at_n(np.array([[-1, -1]]), truth) == 0.0
    assert ndcg_at_n(np.array([[-1, 0]]), truth) == pytest.approx(1 / np.log2(3))
    assert recall_at_n(np.array([[0, 1]]), np.zeros((1, 2))) == 0.0


def test_lists_and_users_must_match():
    with pytest.raises(ValueError, match="each of 2 users"):
        recall_at_n(np.zeros((3, 2), int), np.eye(2))


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
    hidden.data = hidden_cells(R, 1.0, by_cell=False).astype(float)
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


@pytest.mark.thorough
def test_a_search_over_recommenders_pays_for_lists():
    R = make_interactions(800, 120, 16_000, 4, random_state=0)
    scorer = make_private_scorer("missed_items", (0.0, 1.0))
    search = DPGridSearchCV(
        DPRecommender(4), {"algorithm": ["popularity", "gram"]}, scoring=scorer, epsilon=30.0,
        strategy="compose",
    )  # fmt: skip
    with seeded_entropy(0):
        search.fit(R)
    assert search.best_params_ == {"algorithm": "gram"}
    assert search.privacy_spent_.epsilon == pytest.approx(30.0)
    assert search.best_estimator_.recommend(R[:3])[0].shape == (3, 20)
