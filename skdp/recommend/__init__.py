"""Private recommenders."""

from skdp.recommend._lists import InteractionMatrix, interactions_from_pairs, ndcg_at_n, recall_at_n
from skdp.recommend._recommender import DPRecommender

__all__ = [
    "DPRecommender",
    "InteractionMatrix",
    "interactions_from_pairs",
    "ndcg_at_n",
    "recall_at_n",
]
