"""Scores of recommendations against their definitions."""

import numpy as np
import pytest
from sklearn.metrics import ndcg_score

from skdp.recommend import ndcg_at_n, recall_at_n


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
