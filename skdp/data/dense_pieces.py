"""Sparse blocks as dense ones that fit a cache: for statistics that every entry has a part in."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp.data.blocks import Block, rows_at_once


def dense_pieces(block: Block) -> Iterator[NDArray[np.float64]]:
    """Yield the rows of a block as dense blocks; a dense block as it is."""
    if not sp.issparse(block):
        yield block
        return
    at_once = rows_at_once(block.shape[1])
    for start in range(0, max(1, block.shape[0]), at_once):
        yield block[start : start + at_once].toarray()
