"""Steps before a private step: clipping and public bounds, which are free, and private scaling."""

from skdp.preprocessing._clipper import RowClipper
from skdp.preprocessing._public_scaler import PublicScaler
from skdp.preprocessing._scaler import DPStandardScaler

__all__ = ["DPStandardScaler", "PublicScaler", "RowClipper"]
