"""Private matrix decompositions."""

from skdp.decomposition._incremental_pca import DPIncrementalPCA
from skdp.decomposition._pca import DPPCA
from skdp.decomposition._truncated_svd import DPTruncatedSVD

__all__ = ["DPPCA", "DPIncrementalPCA", "DPTruncatedSVD"]
