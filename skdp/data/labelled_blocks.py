"""Records (x, y) in blocks: rows with their targets, in memory, in files, or on Dask workers.

A row and its target are one record: what joins them is their place. So rows must come in an order
that is known, which arrays, files and Dask arrays have and a `RowSource` in general has not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skdp.data.blocks import AnyRows, Block, RowSource, plain_block, row_source
from skdp.data.dask_rows import DaskParts, DaskRows, Sealed, lazy_blocks, rows_of_block
from skdp.data.files import BlockFiles

__all__ = [
    "Labelled",
    "LabelledRows",
    "RecordForm",
    "RecordSources",
    "records_in_files",
    "records_in_memory",
    "records_on_workers",
]

FloatArray = NDArray[np.float64]
_CHUNK_BYTES = 2**25  # of one npy file: enough chunks for all threads, few enough to open


class Labelled(NamedTuple):
    """Rows of one block with their targets."""

    rows: Block
    targets: FloatArray

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the rows, as `sum_rows` asks for it."""
        return tuple(self.rows.shape)

    def __getitem__(self, part: Any) -> Any:
        return Labelled(self.rows[part], self.targets[part])


class LabelledRows:
    """Rows and targets, cut at the same places; the source yields its rows in their order."""

    def __init__(self, source: RowSource, targets: NDArray[Any], start: int = 0) -> None:
        self._source, self._targets, self._start = source, targets, start
        self.n_features = source.n_features

    def n_rows(self) -> int:
        """Return the private number of rows."""
        return self._source.n_rows()

    def parts(self, n: int) -> list[RowSource]:
        """Cut as the rows are cut."""
        out: list[RowSource] = []
        start = self._start
        for part in self._source.parts(n):
            out.append(LabelledRows(part, self._targets, start))
            start += part.n_rows()
        return out

    def blocks(self) -> Iterator[Labelled]:
        """Yield blocks of rows with their targets as float64."""
        start = self._start
        for block in self._source.blocks():
            rows = plain_block(block)
            stop = start + rows.shape[0]
            targets = np.asarray(self._targets[start:stop], np.float64)
            if len(targets) != rows.shape[0]:  # a file that was changed: no sizes in the message
                raise ValueError("a block has more rows than targets")
            yield Labelled(rows, targets)
            start = stop


class _InTurn:
    """Sources one after the other; a part is some of them."""

    def __init__(self, sources: list[LabelledRows], n_features: int) -> None:
        self._sources, self.n_features = sources, n_features

    def n_rows(self) -> int:
        return sum(source.n_rows() for source in self._sources)

    def parts(self, n: int) -> list[RowSource]:
        n = min(n, len(self._sources))
        return [_InTurn(self._sources[i::n], self.n_features) for i in range(n)]

    def blocks(self) -> Iterator[Labelled]:
        for source in self._sources:
            yield from source.blocks()


class RecordSources(NamedTuple):
    """The same records three times: rows alone, targets alone, and both (blocks `Labelled`)."""

    rows: AnyRows
    targets: AnyRows
    both: AnyRows


def records_in_memory(rows: RowSource, targets: NDArray[Any]) -> RecordSources:
    """Return the records of an array, memory map or CSR matrix."""
    return RecordSources(rows, row_source(targets), LabelledRows(rows, targets))


def records_in_files(files: BlockFiles, targets: NDArray[Any]) -> RecordSources:
    """Return the records of files, whose targets come in the order of the files."""
    chunks = files.chunks(_CHUNK_BYTES)
    starts = np.cumsum([0, *(chunk.n_rows() for chunk in chunks)])
    both = [LabelledRows(c, targets, int(a)) for c, a in zip(chunks, starts[:-1], strict=True)]
    return RecordSources(files, row_source(targets), _InTurn(both, files.n_features))


@dataclass(frozen=True)
class RecordForm:
    """How the targets of a block are read; public, so that it can travel.

    Attributes
    ----------
    encode : callable
        From the targets of a block to float64 columns, each row from its target alone.
    n_features, n_targets : int
        Public shapes.
    """

    encode: Callable[[Any], FloatArray]
    n_features: int
    n_targets: int

    def rows(self, X: Any) -> RowSource:
        """Return the rows of one block."""
        return rows_of_block(X, self.n_features)

    def targets(self, y: Any) -> RowSource:
        """Return the targets of one block as rows."""
        return row_source(self._columns(y))

    def records(self, X: Any, y: Any) -> RowSource:
        """Return the records of one block."""
        rows, targets = self.rows(X), self._columns(y)
        if rows.n_rows() != len(targets):
            raise ValueError("a block and its targets differ in length")
        return LabelledRows(rows, targets)

    def _columns(self, y: Any) -> FloatArray:
        targets = np.asarray(self.encode(y), np.float64)
        if targets.ndim != 2 or targets.shape[1] != self.n_targets:
            raise ValueError("the targets of a block have another shape")
        return targets


def records_on_workers(rows: DaskRows, y: Any, form: RecordForm) -> RecordSources:
    """Return the records of Dask rows; y is a Dask array in the same blocks, or in memory."""
    items = rows.items()
    labels = lazy_blocks(y) if hasattr(y, "to_delayed") else _slices(y, rows.lengths)
    if len(labels) != len(items):
        raise ValueError(
            "X and y need the same blocks: rechunk y to the rows of X. How many each has is "
            "withheld: it may tell the number of rows."
        )
    d, q = form.n_features, form.n_targets
    pairs = [[x, label] for x, label in zip(items, labels, strict=True)]
    return RecordSources(
        rows,
        DaskParts([[label] for label in labels], form.targets, q),
        DaskParts(pairs, form.records, d),
    )


def _slices(y: Any, lengths: tuple[float, ...]) -> list[Any]:
    """Cut targets in memory as the rows are cut; each slice travels with its task."""
    ends = np.cumsum([0, *lengths]).astype(int)
    return [Sealed(y[a:b]) for a, b in pairwise(ends)]
