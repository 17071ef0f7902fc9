"""Rows as histories: which items each row holds, and which of them are hidden from the fit.

To judge a filter, some items of some rows are hidden from it. Which ones is decided in one of two
ways, so that a neighbour differs in one row, or in one cell, also after hiding:

- by row: from the row's own items, whatever the other rows are and in whatever order they come;
- by cell: from the numbers of user and item, which are public where a unit is one cell.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp.data.blocks import RowSource, plain_block

Words = NDArray[np.uint64]
FloatArray = NDArray[np.float64]
HIDDEN = 0.2  # share of the items of a judged row that are hidden
_FEW = 8.0  # of a long row: the judge looks at four


def binary_rows(block: Any) -> Any:
    """Return a CSR array of ones where a block is positive and finite."""
    rows = sp.csr_array(plain_block(block)).copy()
    rows.data = np.where(np.isfinite(rows.data) & (rows.data > 0), 1.0, 0.0)
    rows.eliminate_zeros()
    rows.sort_indices()
    return rows


def weighted_rows(block: Any, cap: float | None) -> Any:
    """Return a CSR array of min(x, cap)/cap where a block is positive; without a cap, of ones.

    An entry that is too small for its share of the cap is no item.
    """
    if cap is None:
        return binary_rows(block)
    rows = sp.csr_array(plain_block(block)).astype(np.float64)
    rows.data = np.where(np.isfinite(rows.data), np.clip(rows.data, 0.0, cap) / cap, 0.0)
    rows.eliminate_zeros()
    rows.sort_indices()
    return rows


def hidden_cells(
    rows: Any, judged: float, share: float = HIDDEN, *, by_cell: bool, most: float = math.inf
) -> NDArray[np.bool_]:
    """Mark the stored cells of binary rows that are hidden: a share of some of the rows.

    Both shares are public. What is hidden at smaller ones is hidden at larger ones. By cell the
    rows are all users; by row about `most` items are hidden at most.
    """
    degrees = np.diff(rows.indptr)
    items = _mixed(rows.indices.astype(np.uint64))
    salt = _mixed(np.arange(len(degrees), dtype=np.uint64)) if by_cell else _salts(rows, items)
    chosen = _mixed(salt) < _threshold(judged)
    words = _mixed(items ^ np.repeat(salt, degrees))
    shares = np.minimum(share, most / np.maximum(degrees, 1))
    limits = np.repeat(chosen, degrees) * np.repeat(_threshold(shares), degrees)
    return np.asarray(words < limits)


def without_hidden(
    rows: Any, judged: float, share: float = HIDDEN, *, by_cell: bool, most: float = math.inf
) -> Any:
    """Return binary rows without their hidden cells."""
    part = rows.copy()
    hidden = hidden_cells(rows, judged, share, by_cell=by_cell, most=most)
    part.data = np.where(hidden, 0.0, rows.data)
    part.eliminate_zeros()
    return part


def _threshold(share: float | FloatArray) -> Words:
    return np.asarray(np.minimum(share * 2.0**64, 2.0**64 - 2.0**12)).astype(np.uint64)


def _mixed(words: Words) -> Words:
    """Spread 64-bit words over all words, always the same way (a fixed public permutation)."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(words ^ (words >> np.uint64(31)), np.uint64)


def _salts(rows: Any, items: Words) -> Words:
    """Return a number of each row's set of items."""
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(items, dtype=np.uint64)])
    return np.asarray(_mixed(sums[rows.indptr[1:]] - sums[rows.indptr[:-1]]), np.uint64)


def history_rows(
    blocks: Iterable[Any],
    kept: NDArray[np.intp] | None = None,
    form: str = "unit",
    judged: float = 0.0,
    share: float = HIDDEN,
    cap: float | None = None,
) -> Iterator[Any]:
    """Yield histories on the kept items, as CSR blocks.

    Parameters
    ----------
    blocks : iterable of blocks
        Rows whose positive entries are items.
    kept : ndarray of int or None
        A public selection of items; None keeps all.
    form : {"unit", "share", "known", "both"}
        Rows of length 1, or of sum 1; rows of length 1 without what is hidden by row; or, for the
        judge, rows whose hidden entries are negative.
    judged, share : float
        Share of the rows of which items are hidden, and of their items.
    cap : float or None
        Entries count by min(x, cap); None: all alike.

    Yields
    ------
    CSR array
    """
    for block in blocks:
        rows = weighted_rows(_finite_rows(block), cap)
        if form == "known":
            rows = without_hidden(rows, judged, share, by_cell=False, most=_FEW)
        elif form == "both":
            rows.data[hidden_cells(rows, judged, share, by_cell=False, most=_FEW)] *= -1
        rows = rows if kept is None else rows[:, kept]
        yield rows if form == "both" else _scaled(rows, whole=form == "share")


def _finite_rows(block: Any) -> Any:
    """Empty the rows that hold anything but numbers: such a row adds nothing."""
    rows = sp.csr_array(plain_block(block)).copy()
    owner = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    broken = np.bincount(owner[~np.isfinite(rows.data)], minlength=rows.shape[0]) > 0
    rows.data = np.where(broken[owner], 0.0, rows.data)
    return rows


def _scaled(rows: Any, *, whole: bool = False) -> Any:
    """Scale each row, from itself alone, to length 1, or as a `whole` to sum 1.

    Its largest entry comes first, so that none vanishes.
    """
    degrees = np.diff(rows.indptr)
    owner = np.repeat(np.arange(rows.shape[0]), degrees)
    largest = np.zeros(rows.shape[0])
    np.maximum.at(largest, owner, rows.data)
    scaled = rows.data / largest[owner]
    powers = np.bincount(owner, scaled if whole else scaled**2, rows.shape[0])
    rows.data = scaled / (powers if whole else np.sqrt(powers))[owner]
    return rows


class JudgedCells:
    """All users of a matrix in blocks: 1 for a known item, -1 for one that is hidden by cell."""

    def __init__(self, R: Any, kept: NDArray[np.intp], judged: float, share: float) -> None:
        self._R = R
        self._kept = kept
        self._hidden = judged, share
        self.n_features = len(kept)

    def n_rows(self) -> int:
        """Return the public number of users."""
        return int(self._R.shape[0])

    def parts(self, n: int) -> list[RowSource]:
        """Return one part: what is hidden depends on the number of a user."""
        return [self]

    def blocks(self) -> Iterator[Any]:
        """Yield one CSR block of the kept items."""
        rows = binary_rows(self._R)
        rows.data[hidden_cells(rows, *self._hidden, by_cell=True)] = -1.0
        yield rows[:, self._kept]
