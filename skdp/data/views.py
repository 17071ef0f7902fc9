"""Rows as public views show them: about a centre, or on some columns.

A view is a function of a pass, from blocks to blocks: each row becomes a row, from that row alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp.data.block_rows import finite_rows
from skdp.data.blocks import Block, RowSource, plain_block, rows_at_once
from skdp.data.scratch import Repeated, Scratch
from skdp.data.zipped import CHECKED, Zipped

FloatArray = NDArray[np.float64]
View: TypeAlias = Callable[[Iterable[Any]], Iterator[Any]]


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.center = Repeated()


_OF_THREAD = _OfThread()


class ViewedRows:
    """A source of rows behind a public view."""

    def __init__(self, source: RowSource, view: View, n_features: int) -> None:
        self.source, self._view, self.n_features = source, view, n_features

    def n_rows(self) -> int:
        """Return the private number of rows."""
        return self.source.n_rows()

    def parts(self, n: int) -> list[RowSource]:
        """Cut as the source does."""
        return [self.over(part) for part in self.source.parts(n)]

    def over(self, source: RowSource) -> ViewedRows:
        """Return the view of other rows."""
        return ViewedRows(source, self._view, self.n_features)

    def blocks(self) -> Iterator[Block]:
        """Yield what the view makes of the blocks."""
        return self._view(self.source.blocks())


def centered(blocks: Iterable[Block], center: FloatArray) -> Iterator[FloatArray]:
    """Yield rows minus a centre, in dense blocks of bounded memory."""
    rows = rows_at_once(len(center))
    scratch = Scratch()  # of this pass: another one of the thread may be under way
    for block in blocks:
        for i in range(0, block.shape[0], rows):
            part = block[i : i + rows]
            part = part.toarray() if sp.issparse(part) else part
            about = _OF_THREAD.center.rows(center, len(part))
            yield np.subtract(part, about, out=scratch.shaped(part.shape))


def selected(blocks: Iterable[Block], kept: NDArray[np.intp]) -> Iterator[Block]:
    """Yield some columns; a row with a bad value anywhere holds a NaN."""
    for given in blocks:
        yield on_columns(plain_block(given), kept)


def rows_of_records(blocks: Iterable[Zipped], kept: NDArray[np.intp] | None) -> Iterator[Block]:
    """Yield the rows of records, on some columns; those of bad records hold a NaN."""
    for block in blocks:
        bad = np.flatnonzero(~good_records(block))
        rows = block.rows if kept is None else block.rows[:, kept]
        yield _marked(rows.copy(), bad) if bad.size else rows


def targets_of_records(blocks: Iterable[Zipped]) -> Iterator[FloatArray]:
    """Yield the targets of records; those of bad records are not numbers."""
    for block in blocks:
        yield np.where(good_records(block)[:, None], block.targets, np.nan)


def good_records(block: Zipped) -> NDArray[np.bool_]:
    """Whether row and targets are finite; looked at once, where a column remembers it."""
    seen = block.columns.get(CHECKED)
    if seen is None:
        return _finite_records(block)
    if not seen.all():  # each thread writes its own rows
        seen[:] = np.where(_finite_records(block), 1, -1)
    return np.asarray(seen > 0)


def _finite_records(block: Zipped) -> NDArray[np.bool_]:
    return np.asarray(finite_rows(block.rows) & finite_rows(block.targets))


def on_columns(rows: Block, kept: NDArray[np.intp]) -> Block:
    """Return rows on a public selection of columns; a bad value anywhere stays one."""
    bad = np.flatnonzero(~finite_rows(rows))
    return _marked(rows[:, kept], bad) if bad.size else rows[:, kept]


def _marked(rows: Block, bad: NDArray[np.intp]) -> Block:
    """Put a NaN into the first column of some rows."""
    first = np.zeros(len(bad), np.intp)
    if sp.issparse(rows):
        return rows + sp.csr_array((np.full(len(bad), np.nan), (bad, first)), shape=rows.shape)
    rows[bad, first] = np.nan
    return rows
