"""Where rows and their columns are: in memory, in files, or on Dask workers; and one way to each.

A place is joined by a public function of its rows and columns, which runs where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from itertools import pairwise
from typing import Any

import numpy as np

from skdp.data.blocks import AnyRows, RowSource, is_dask_array, row_source
from skdp.data.dask_parts import DaskParts, Sealed
from skdp.data.dask_rows import (
    DaskRows,
    lazy_blocks,
    rows_of_block,
)
from skdp.data.files import BlockFiles
from skdp.data.zipped import InTurn

_CHUNK_BYTES = 2**25  # of one npy file: enough chunks for all threads, few enough to open
Build = Callable[..., RowSource]


@dataclass(frozen=True)
class _Built:
    """What joins the blocks of one place; it holds none of them, so that it can travel."""

    build: Build
    names: tuple[str, ...]
    n_features: int

    def __call__(self, rows: Any, *columns: Any) -> RowSource:
        source = rows_of_block(rows, self.n_features)
        if any(len(column) != source.n_rows() for column in columns):
            raise ValueError("a block and its columns differ in length")
        return self.build(source, **dict(zip(self.names, columns, strict=True)))


@dataclass(frozen=True)
class Placed:
    """Rows and columns of the same records, in memory, in files, or in blocks of Dask.

    Attributes
    ----------
    rows : DenseRows, SparseRows, BlockFiles or DaskRows
        The rows; their order is known.
    columns : dict
        What belongs to them, by name: arrays, or (beside DaskRows) Dask arrays in the same blocks.
    """

    rows: Any
    columns: Mapping[str, Any]

    def known_rows(self) -> float:
        """Return the number of records, NaN where it is not known before the rows are read."""
        known = getattr(self.rows, "known_rows", None)
        return float(self.rows.n_rows() if known is None else known)

    def joined(self, build: Build, *, whole_files: bool = False) -> AnyRows:
        """Return the source of ``build(rows, **columns)`` over all places.

        Files may be cut into ranges of rows unless they are to stay whole.
        """
        if isinstance(self.rows, DaskRows):
            parts = [list(part) for part in zip(*self._items(self.columns), strict=True)]
            items = [[rows, *part] for rows, part in zip(self.rows.items(), parts, strict=True)]
            built = _Built(build, tuple(self.columns), self.rows.n_features)
            return DaskParts(items, built, self.rows.n_features)
        if isinstance(self.rows, BlockFiles):
            return self._in_turn(build, whole_files)
        return build(self.rows, **self.columns)

    def column(self, name: str, build: Callable[[Any], RowSource], width: int) -> AnyRows:
        """Return the source of ``build(column)`` over all places, without the rows."""
        column = self.columns[name]
        if not isinstance(self.rows, DaskRows):
            return build(column)
        (items,) = self._items({name: column})
        return DaskParts([[item] for item in items], build, width)

    def reduced(
        self,
        name: str,
        work: Callable[[Any], Any],
        combine: Callable[[Any, Any], Any],
        finish: Callable[[Any], Any],
    ) -> Any:
        """Combine ``work(column)`` of all places; of the workers' only ``finish`` comes home."""
        column = self.columns[name]
        if isinstance(self.rows, DaskRows):
            (items,) = self._items({name: column})
            parts = DaskParts([[item] for item in items], _as_it_is, 0)
            return parts.reduce(work, combine, finish)
        files = self.rows.files() if isinstance(self.rows, BlockFiles) else [self.rows]
        return finish(reduce(combine, [work(column[a:b]) for a, b in _ranges(files)]))

    def _in_turn(self, build: Build, whole: bool) -> InTurn:
        files = self.rows.files() if whole else self.rows.chunks(_CHUNK_BYTES)
        opens = [
            partial(build, file, **{name: c[a:b] for name, c in self.columns.items()})
            for file, (a, b) in zip(files, _ranges(files), strict=True)
        ]
        return InTurn(opens, self.rows.n_features)

    def _items(self, columns: Mapping[str, Any]) -> list[list[Any]]:
        """Return the blocks of each column; those in memory are cut as the rows are."""
        out = []
        for name, column in columns.items():
            lazy = is_dask_array(column)
            items = lazy_blocks(column) if lazy else _slices(column, self.rows.lengths)
            if len(items) != len(self.rows.items()):
                raise ValueError(
                    f"X and {name} need the same blocks: rechunk {name} to the rows of X. How many "
                    "each has is withheld: it may tell the number of rows."
                )
            out.append(items)
        return out


def in_memory(rows: Any, **columns: Any) -> Placed:
    """Return the records of an array or CSR matrix, with their columns."""
    return Placed(row_source(rows), columns)


def _as_it_is(column: Any) -> Any:
    return column


def _ranges(sources: list[Any]) -> list[tuple[int, int]]:
    """Return which rows of all each source has."""
    ends = np.cumsum([0, *(source.n_rows() for source in sources)]).tolist()
    return list(pairwise(ends))


def _slices(column: Any, lengths: tuple[float, ...]) -> list[Any]:
    """Cut a column in memory; each slice travels, sealed, with its task."""
    ends = np.cumsum([0, *lengths]).astype(int)
    return [Sealed(column[a:b]) for a, b in pairwise(ends)]
