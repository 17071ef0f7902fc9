"""Private matrix decompositions."""

from skdp.decomposition._pca import DPPCA
from skdp.decomposition._truncated_svd import DPTruncatedSVD

__all__ = ["DPPCA", "DPTruncatedSVD"]
