"""Private recommenders."""

from skdp.recommend._local import LocalHistory, LocalRecommender, LocalReporter
from skdp.recommend._pairs import Histories, histories_of_pairs
from skdp.recommend._recommender import DPRecommender
from skdp.recommend._scores import ndcg_at_n, recall_at_n

__all__ = [
    "DPRecommender",
    "Histories",
    "LocalHistory",
    "LocalRecommender",
    "LocalReporter",
    "histories_of_pairs",
    "ndcg_at_n",
    "recall_at_n",
]
