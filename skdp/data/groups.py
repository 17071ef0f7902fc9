"""Private rows by group, handed out in batches of groups with equally many rows.

Which batch a group is in, and beside whom, never changes what is computed for it.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skdp.data.blocks import RowSource, row_source
from skdp.data.places import Placed

IntArray = NDArray[np.int64]
_BATCH_BYTES = 2**21  # what is made of a batch stays in a cache
_MAX_GROUPS = 2**14  # public cap: integer products of one batch stay below 2**53


@dataclass(frozen=True)
class _Sorted:
    """Rows in the order of their groups: group i owns ``rows[ends[i] - sizes[i]:ends[i]]``."""

    rows: NDArray[np.intp]
    sizes: IntArray
    ends: IntArray


class GroupedRows(ABC):
    """Rows, and columns beside them, by group: a `RowSource` of batches (see `_batch`).

    Parameters
    ----------
    X : array or CSR matrix of shape (n_rows, n_features), or a source of one
        The private rows.
    columns : mapping of arrays
        What belongs to the rows, by name.
    codes : int array of shape (n_rows,)
        Number of the group of each row, 0, 1, 2, ...
    """

    def __init__(self, X: Any, columns: Mapping[str, Any], codes: NDArray[Any]) -> None:
        self._source: Any = row_source(X)
        self._columns, self._codes = columns, codes
        self._sorted: _Sorted | None = None
        self._chosen: list[IntArray] | None = None
        self.n_features: int = self._source.n_features

    @cached_property
    def _X(self) -> Any:
        return self._source.whole()  # of a file: read when a batch is asked for

    def _sort(self) -> _Sorted:
        """Sort rows by group; done once, inside the gate, and shared by all parts."""
        codes = self._codes  # taken first: another thread lets go of them once rows are sorted
        if self._sorted is None:
            sizes = np.bincount(codes)
            rows = np.argsort(codes, kind="stable")
            self._sorted = _Sorted(rows, sizes, np.cumsum(sizes))
            self._codes = np.zeros(0, np.intp)  # not needed again
        return self._sorted

    def _bytes_of_row(self) -> int:
        """Return about what a row takes in a batch."""
        return 8 * self.n_features

    def _batches(self) -> list[IntArray]:
        """Groups in batches of equal size; which batch one is in never changes a result."""
        if self._chosen is None:
            sizes = self._sort().sizes
            by_size = np.argsort(sizes, kind="stable")
            edges = np.flatnonzero(np.diff(sizes[by_size])) + 1
            self._chosen = []
            for groups in np.split(by_size, edges):
                if groups.size == 0 or sizes[groups[0]] == 0:
                    continue
                bytes_each = int(sizes[groups[0]]) * self._bytes_of_row()
                n = int(np.clip(_BATCH_BYTES // bytes_each, 1, _MAX_GROUPS))
                self._chosen += [groups[i : i + n] for i in range(0, groups.size, n)]
        return self._chosen

    def n_rows(self) -> int:
        """Return the private number of groups."""
        return sum(groups.size for groups in self._batches())

    def parts(self, n: int) -> list[RowSource]:
        """Cut into `n` sources of the same groups."""
        batches, out = self._batches(), []
        for i in range(n):
            part = copy.copy(self)
            part._chosen = batches[i::n]
            out.append(part)
        return list(out)

    def blocks(self) -> Iterator[Any]:
        """Yield the batches."""
        for groups in self._batches():
            yield self._batch(groups)

    @abstractmethod
    def _batch(self, groups: IntArray) -> Any:
        """Return some groups with equally many rows, as one block."""

    def _gathered(self, groups: IntArray) -> tuple[int, Any, dict[str, Any]]:
        """Return the number of rows of each group, their rows, and what is beside them."""
        places = self._places_of(groups)
        rows = self._sort().rows[places.ravel()]
        return places.shape[1], self._X[rows], {name: c[rows] for name, c in self._columns.items()}

    def _places_of(self, groups: IntArray) -> IntArray:
        """Return where the rows of some groups with equally many stand among the sorted rows."""
        order = self._sort()
        m = int(order.sizes[groups[0]])
        return np.asarray((order.ends[groups] - m)[:, None] + np.arange(m))


_SPREAD = (
    "The rows of a group lie in more than one block, where they would count as two. Sort the "
    "rows by group and cut the blocks between groups."
)


class _Seen(NamedTuple):
    """The groups of some blocks, sorted, and whether no two of these blocks share one."""

    labels: NDArray[Any]
    apart: bool


def _seen(labels: Any, check: Callable[[Any], NDArray[Any]]) -> _Seen:
    return _Seen(np.unique(check(labels)), True)


def _both(a: _Seen, b: _Seen) -> _Seen:
    """Labels of unlike kinds may be cast to equal ones: then we refuse what would be right."""
    labels = np.unique(np.concatenate([a.labels, b.labels]))
    return _Seen(labels, a.apart and b.apart and len(labels) == len(a.labels) + len(b.labels))


def _is_apart(seen: _Seen) -> bool:
    return bool(seen.apart)


def check_apart(placed: Placed, check: Callable[[Any], NDArray[Any]]) -> None:
    """Raise unless all rows of a group lie in one place; no label comes to the driver.

    A group in two would send two contributions, each clipped alone, and count twice.
    """
    if not placed.reduced("groups", partial(_seen, check=check), _both, _is_apart):
        raise ValueError(_SPREAD)
