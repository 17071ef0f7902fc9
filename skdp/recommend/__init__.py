"""Private recommenders."""

from skdp.recommend._lists import Histories, histories_of_pairs, ndcg_at_n, recall_at_n
from skdp.recommend._recommender import DPRecommender

__all__ = [
    "DPRecommender",
    "Histories",
    "histories_of_pairs",
    "ndcg_at_n",
    "recall_at_n",
]
