"""Steps before a private step: clipping and public bounds, which cost nothing; private scaling."""

from skdp.preprocessing._steps import DPStandardScaler, PublicScaler, RowClipper

__all__ = ["DPStandardScaler", "PublicScaler", "RowClipper"]
