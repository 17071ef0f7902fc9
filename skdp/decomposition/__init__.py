"""Private matrix decompositions."""

from skdp.decomposition._incremental_pca import DPIncrementalPCA
from skdp.decomposition._local_reports import (
    LocalAggregator,
    LocalRowRandomizer,
    RandomizedRow,
    randomize_row,
)
from skdp.decomposition._low_rank_factorizer import DPLowRankFactorizer
from skdp.decomposition._pca import DPPCA
from skdp.decomposition._score_density import DPScoreDensity
from skdp.decomposition._truncated_svd import DPTruncatedSVD

__all__ = [
    "DPPCA",
    "DPIncrementalPCA",
    "DPLowRankFactorizer",
    "DPScoreDensity",
    "DPTruncatedSVD",
    "LocalAggregator",
    "RandomizedRow",
    "LocalRowRandomizer",
    "randomize_row",
]
