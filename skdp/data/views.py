"""Rows as public narrowings show them: about a centre, or on some columns."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp.data.block_rows import finite_rows
from skdp.data.blocks import Block, RowSource, Scratch, plain_block, rows_at_once

FloatArray = NDArray[np.float64]


class CenteredRows:
    """Rows minus a public centre (sparse blocks become dense one block at a time)."""

    def __init__(self, source: RowSource, center: FloatArray) -> None:
        self._source = source
        self._center = center
        self.n_features = source.n_features

    def n_rows(self) -> int:
        """Return the private number of rows."""
        return self._source.n_rows()

    def parts(self, n: int) -> list[RowSource]:
        """Cut as the source does."""
        return [CenteredRows(part, self._center) for part in self._source.parts(n)]

    def blocks(self) -> Iterator[FloatArray]:
        """Yield dense centred blocks of bounded memory."""
        rows = rows_at_once(self.n_features)
        scratch = Scratch()
        for block in self._source.blocks():
            for i in range(0, block.shape[0], rows):
                part = block[i : i + rows]
                part = part.toarray() if sp.issparse(part) else part
                yield np.subtract(part, self._center, out=scratch.shaped(part.shape))


class SelectedRows:
    """Rows on a public selection of columns; what is bad in the others stays bad in these."""

    def __init__(self, source: RowSource, kept: NDArray[np.intp]) -> None:
        self._source = source
        self._kept = kept
        self.n_features = len(kept)

    def n_rows(self) -> int:
        """Return the private number of rows."""
        return self._source.n_rows()

    def parts(self, n: int) -> list[RowSource]:
        """Cut as the source does."""
        return [SelectedRows(part, self._kept) for part in self._source.parts(n)]

    def blocks(self) -> Iterator[Block]:
        """Yield the kept columns of each block; a row with a bad value anywhere holds a NaN."""
        for given in self._source.blocks():
            block = plain_block(given)
            bad = np.flatnonzero(~finite_rows(block))
            yield _marked(block[:, self._kept], bad) if bad.size else block[:, self._kept]


def _marked(rows: Block, bad: NDArray[np.intp]) -> Block:
    """Put a NaN into the first column of some rows."""
    first = np.zeros(len(bad), np.intp)
    if sp.issparse(rows):
        return rows + sp.csr_array((np.full(len(bad), np.nan), (bad, first)), shape=rows.shape)
    rows[bad, first] = np.nan
    return rows
