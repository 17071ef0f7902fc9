"""Rows as public views show them: about a centre, or on some columns.

A view is a function of a pass, from blocks to blocks: each row becomes a row, from that row alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp.data.block_rows import finite_rows
from skdp.data.blocks import Block, RowSource, SparseRows, plain_block, rows_at_once
from skdp.data.scratch import Repeated, Scratch
from skdp.data.zipped import CHECKED, Zipped

FloatArray = NDArray[np.float64]
View: TypeAlias = Callable[[Iterable[Any]], Iterator[Any]]


_MOST_COPIED = 2**23  # entries of which a copy is kept between passes: 100 MB


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


class ColumnRows:
    """Some columns of CSR rows in memory: copied in the first pass, for all others.

    Unless there are too many entries: then they are looked up in each pass.
    """

    def __init__(self, source: SparseRows | ColumnRows, kept: NDArray[np.intp]) -> None:
        self._given, self._kept, self.n_features = source, kept, len(kept)

    @cached_property
    def _rows(self) -> RowSource:
        given: RowSource = self._given._rows if isinstance(self._given, ColumnRows) else self._given
        view = ViewedRows(given, partial(selected, kept=self._kept), self.n_features)
        if not isinstance(given, SparseRows) or given.n_stored() > _MOST_COPIED:
            return view
        copies = [sp.csr_array((0, self.n_features)), *view.blocks()]
        copied = sp.vstack(copies, format="csr")
        copied.sort_indices()  # once, or each pass would
        return SparseRows(copied)

    def n_rows(self) -> int:
        """Return the private number of rows."""
        return self._given.n_rows()

    def parts(self, n: int) -> list[RowSource]:
        """Cut the copy, or what stands for it."""
        return self._rows.parts(n)

    def blocks(self) -> Iterator[Block]:
        """Yield the rows on these columns."""
        return self._rows.blocks()


def columns_of(source: RowSource, kept: NDArray[np.intp]) -> RowSource:
    """Return a public selection of columns of rows that are here."""
    if isinstance(source, (SparseRows, ColumnRows)):
        return ColumnRows(source, kept)
    return ViewedRows(source, partial(selected, kept=kept), len(kept))


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
