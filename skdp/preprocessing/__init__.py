"""Steps before a private step: clipping, which costs nothing, and private scaling."""

from skdp.preprocessing._clipper import RowClipper
from skdp.preprocessing._scaler import DPStandardScaler

__all__ = ["DPStandardScaler", "RowClipper"]
