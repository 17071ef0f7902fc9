"""Splitting, searching and checking with privacy in mind."""

from skdp.model_selection._splitters import WithinGroupKFold

__all__ = ["WithinGroupKFold"]
