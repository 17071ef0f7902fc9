"""Rows with what belongs to them (targets, groups, numbers), cut at the same places.

What joins a row and its target is their place. So rows must come in an order that is known, which
arrays, files and Dask arrays have and a `RowSource` in general has not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skdp.data.blocks import Block, RowSource, cuts, plain_block

Columns = Mapping[str, NDArray[Any]]
# A column that remembers which records are finite: 0 not looked at yet, 1 finite, -1 not.
CHECKED = "checked"


class Zipped(NamedTuple):
    """Rows of one block, and the columns beside them by name."""

    rows: Block
    columns: Columns

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the rows, as `sum_rows` asks for it."""
        return tuple(self.rows.shape)

    @property
    def targets(self) -> NDArray[np.float64]:
        """The targets of the rows."""
        return self.columns["y"]

    def beside(self, **columns: NDArray[Any]) -> Zipped:
        """Return the same rows with more columns."""
        return Zipped(self.rows, {**self.columns, **columns})

    def __getitem__(self, part: Any) -> Any:
        return Zipped(self.rows[part], {name: c[part] for name, c in self.columns.items()})


class ZippedRows:
    """A source that yields its rows in their order, and columns in that order beside it.

    Parameters
    ----------
    source : RowSource
        Rows, or rows that have columns already.
    columns : dict of arrays
        One entry for each row.
    start : int
        Place of the first row of the source in the columns.
    at_once : int or None
        Public: blocks of more rows are cut.
    """

    def __init__(
        self, source: RowSource, columns: Columns, start: int = 0, at_once: int | None = None
    ) -> None:
        self._source, self._columns = source, columns
        self._start, self._at_once = start, at_once
        self.n_features = source.n_features

    def n_rows(self) -> int:
        """Return the private number of rows."""
        return self._source.n_rows()

    def parts(self, n: int) -> list[RowSource]:
        """Cut as the rows are cut."""
        out: list[RowSource] = []
        start = self._start
        for part in self._source.parts(n):
            out.append(ZippedRows(part, self._columns, start, self._at_once))
            start += part.n_rows()
        return out

    def blocks(self) -> Iterator[Zipped]:
        """Yield blocks of rows with their columns."""
        start = self._start
        for given in self._source.blocks():
            block = given if isinstance(given, Zipped) else Zipped(plain_block(given), {})
            stop = start + block.shape[0]
            here = {name: column[start:stop] for name, column in self._columns.items()}
            if any(len(column) != block.shape[0] for column in here.values()):
                # a file that was changed: no sizes in the message
                raise ValueError("a block has more rows than targets")
            yield from _cut(block.beside(**here), self._at_once)
            start = stop


def _cut(block: Zipped, at_once: int | None) -> Iterator[Zipped]:
    rows = at_once or max(1, block.shape[0])
    for i in range(0, block.shape[0], rows):
        piece: Any = block if rows >= block.shape[0] else block[i : i + rows]
        yield piece


class InTurn:
    """Sources one after the other, each opened when it is read; a part is some that follow."""

    def __init__(self, opens: Sequence[Callable[[], RowSource]], n_features: int) -> None:
        self._opens, self.n_features = opens, n_features

    def n_rows(self) -> int:
        """Return the private number of rows."""
        return sum(open_one().n_rows() for open_one in self._opens)

    def parts(self, n: int) -> list[RowSource]:
        """Cut between sources."""
        return [InTurn(self._opens[a:b], self.n_features) for a, b in cuts(0, len(self._opens), n)]

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks of one source after the other."""
        for open_one in self._opens:
            yield from open_one().blocks()


def sources_in_turn(sources: Sequence[RowSource], n_features: int) -> RowSource:
    """Return open sources as one."""
    return InTurn([lambda source=source: source for source in sources], n_features)  # type: ignore[misc]
