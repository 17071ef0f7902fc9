"""Steps before a private step: clipping and public bounds, which cost nothing; private scaling."""

from skdp.preprocessing._public_steps import PublicScaler, RowClipper
from skdp.preprocessing._standard_scaler import DPStandardScaler

__all__ = ["DPStandardScaler", "PublicScaler", "RowClipper"]
