"""Private estimators on graphs."""

from skdp.graph._spectral_embedding import DPSpectralEmbedding

__all__ = ["DPSpectralEmbedding"]
