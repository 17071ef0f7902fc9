"""Private recommenders."""

from skdp.recommend._recommender import DPRecommender
from skdp.recommend._scores import ndcg_at_n, recall_at_n

__all__ = ["DPRecommender", "ndcg_at_n", "recall_at_n"]
