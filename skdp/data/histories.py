"""Rows as histories: which items each row holds, which are hidden, which filter finds them.

To judge a filter, some items of some rows are hidden from it. Which ones is decided in one of two
ways, so that a neighbour differs in one row, or in one cell, also after hiding:

- by row: from the row's own items, whatever the other rows are and in whatever order they come;
- by cell: from the numbers of user and item, which are public where a unit is one cell.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp.data.blocks import (
    RowSource,
    entrywise,
    finite_rows,
    largest_entries,
    plain_block,
    row_source,
    scale_rows,
    where_rows,
)
from skdp.data.integers import mixed_words

Words = NDArray[np.uint64]
FloatArray = NDArray[np.float64]
HIDDEN = 0.2  # share of the items of a judged row that are hidden
_FEW = 8.0  # of a long row: the judge looks at four


def weighted_rows(block: Any, cap: float | None) -> Any:
    """Return a CSR array of min(x, cap)/cap where a block is positive; without a cap, of ones.

    An entry that is not finite, or too small for its share of the cap, is no item.
    """
    rows = sp.csr_array(plain_block(block)).copy()
    weights = rows.data > 0 if cap is None else np.clip(rows.data, 0.0, cap) / cap
    rows.data = np.where(np.isfinite(rows.data), weights, 0.0)
    rows.eliminate_zeros()
    rows.sort_indices()
    return rows


binary_rows = partial(weighted_rows, cap=None)


def hidden_cells(
    rows: Any, judged: float, share: float = HIDDEN, *, by_cell: bool, most: float = math.inf
) -> NDArray[np.bool_]:
    """Mark the stored cells of binary rows that are hidden: a share of some of the rows.

    Both shares are public. What is hidden at smaller ones is hidden at larger ones. By cell the
    rows are all users; by row about `most` items are hidden at most.
    """
    degrees = np.diff(rows.indptr)
    items = mixed_words(rows.indices.astype(np.uint64))
    salt = mixed_words(np.arange(len(degrees), dtype=np.uint64)) if by_cell else _salts(rows, items)
    chosen = mixed_words(salt) < _threshold(judged)
    words = mixed_words(items ^ np.repeat(salt, degrees))
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


def _salts(rows: Any, items: Words) -> Words:
    """Return a number of each row's set of items."""
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(items, dtype=np.uint64)])
    return np.asarray(mixed_words(sums[rows.indptr[1:]] - sums[rows.indptr[:-1]]), np.uint64)


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
        given = sp.csr_array(plain_block(block))  # a row with a bad entry adds nothing
        rows = weighted_rows(where_rows(finite_rows(given), given), cap)
        if form == "known":
            rows = without_hidden(rows, judged, share, by_cell=False, most=_FEW)
        elif form == "both":
            rows.data[hidden_cells(rows, judged, share, by_cell=False, most=_FEW)] *= -1
        rows = rows if kept is None else rows[:, kept]
        yield rows if form == "both" else _scaled(rows, whole=form == "share")


def _scaled(rows: Any, *, whole: bool = False) -> Any:
    """Scale each row, from itself alone, to length 1, or as a `whole` to sum 1.

    Its largest entry comes first, so that none vanishes.
    """
    owner = _owners(rows)
    largest = np.zeros(rows.shape[0])
    np.maximum.at(largest, owner, rows.data)
    scaled = rows.data / largest[owner]
    powers = np.bincount(owner, scaled if whole else scaled**2, rows.shape[0])
    rows.data = scaled / (powers if whole else np.sqrt(powers))[owner]
    return rows


def judged_cells(R: Any, kept: NDArray[np.intp], judged: float, share: float) -> RowSource:
    """Return all users of a matrix on some items: 1 for a known one, -1 for one hidden by cell.

    What is hidden depends on the number of a user: all of them are looked at together.
    """
    rows = binary_rows(R)
    rows.data[hidden_cells(rows, judged, share, by_cell=True)] = -1.0
    return row_source(rows[:, kept])


# Whether public filters find more hidden items of a history than popularity does, row by row.
#
# Some items of some histories are hidden, and a filter scores the others:
# how many of the hidden ones are in its list is a matter of the row alone.


_MOST_HIDDEN = 4  # items of a row that are judged at most
_BITS = 20  # of a public factor or a weight of a taste, in exact products
_CELLS = 2**18  # scored together: they stay in the cache, and in bounded memory


class Tastes(Protocol):
    """What is used of a public filter."""

    @property
    def kept(self) -> NDArray[np.intp]:
        """Numbers of the kept items."""
        ...

    @property
    def popularity(self) -> FloatArray:
        """Popularity of all items."""
        ...

    @property
    def outward(self) -> FloatArray:
        """What each taste adds to the kept items."""
        ...

    @property
    def list_length(self) -> int:
        """How many items a list has."""
        ...

    def coordinates(self, rows: Any) -> FloatArray:
        """Return the weight of popularity and of each taste, row by row."""
        ...


def votes(block: Any, *, tastes: Tastes, weights: FloatArray) -> FloatArray:
    """Return the sum of the votes of a block for each row of weights, against popularity alone.

    A row's vote is 1 where more of its hidden items are found, -1 where fewer are, else 0.
    """
    rows = sp.csr_array(block)
    rows.sort_indices()
    total = np.zeros(len(weights))
    if not rows.nnz:
        return total
    hidden = np.bincount(_owners(rows)[rows.data < 0], minlength=rows.shape[0])
    chosen = np.flatnonzero((hidden > 0) & (hidden < np.diff(rows.indptr)))
    n_rows = max(1, _CELLS // rows.shape[1])
    for i in range(0, len(chosen), n_rows):
        total += _votes(rows[chosen[i : i + n_rows]], tastes, weights)
    return total


def _owners(rows: Any) -> NDArray[np.intp]:
    return np.asarray(np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr)))


def _votes(rows: Any, tastes: Tastes, weights: FloatArray) -> FloatArray:
    hidden, owner = rows.data < 0, _owners(rows)
    rank = np.cumsum(hidden) - (np.cumsum(hidden) - hidden)[rows.indptr[:-1]][owner]
    judged = hidden & (rank <= _MOST_HIDDEN)
    users, items = owner[judged], rows.indices[judged]
    known = rows.copy()
    known.data = np.where(hidden, 0.0, rows.data)
    known.eliminate_zeros()
    seen = _owners(known), known.indices
    coordinates = tastes.coordinates(known)
    popular = coordinates[:, :1] * tastes.popularity[tastes.kept]

    def found(scores: FloatArray) -> NDArray[np.intp]:
        scores[seen] = -np.inf
        listed = _listed(scores, users, items, tastes.list_length)
        return np.bincount(users[listed], minlength=rows.shape[0])

    usual = found(popular.copy())
    total = np.zeros(len(weights))
    for j, weight in enumerate(weights):
        used = weight != 0.0
        personal = coordinates[:, 1:][:, used] * weight[used]
        others = found(popular + _exact_product(personal, tastes.outward[used]))
        total[j] = np.sign(others - usual).sum()
    return total


def _listed(
    scores: FloatArray, users: NDArray[np.intp], items: NDArray[np.intp], n: int
) -> NDArray[np.bool_]:
    """Return whether each (user, item) is among the n best of the user, ties by number."""
    if n >= scores.shape[1]:
        return np.ones(len(users), bool)
    last = np.partition(scores, scores.shape[1] - n, axis=1)[:, -n]
    own = scores[users, items]
    found = np.asarray(own > last[users])
    for i in np.flatnonzero(own == last[users]):
        row = scores[users[i]]
        before = np.count_nonzero(row > own[i]) + np.count_nonzero(row[: items[i]] == own[i])
        found[i] = before < n
    return found


def _exact_product(weights: FloatArray, factors: FloatArray) -> FloatArray:
    """Return weights @ factors, each row from itself alone: both on grids of 20 bits.

    Products of so many bits add up below 2^53, so that the order of BLAS does not matter.
    """
    if not weights.shape[1]:
        return np.zeros((len(weights), factors.shape[1]))
    unit = np.ldexp(1.0, np.frexp(np.abs(weights).max(axis=1, keepdims=True))[1] - _BITS)
    step = math.ldexp(1.0, math.frexp(float(np.abs(factors).max()))[1] - _BITS)
    products = np.rint(weights / unit) @ np.rint(factors / step)
    return np.asarray(products * (unit * step))


# Rows whose pairs of entries have norm 1, in integers (see `skdp.queries.interactions.PairQuery`).


_LONGEST = 2.0  # squared length of a row at most
_MARGIN = 1 - 2.0**-20  # v on its grid has length 1 to 2**-24, sums of a row are nearer
_FRACTIONS = (1 - 2.0**-12, 1 - 2.0**-6, 0.5, 0.0)


def with_unit_pairs(rows: Any, unit: float, popular: FloatArray) -> Any:
    """Scale each row, from itself alone, to pairs of norm 1; in whole units, or floats at 0.

    Its largest entry comes first, so that no square is too large; a row that is not finite is
    empty. What rounding made too long is shortened, a little more each time, or left out.
    """
    largest = largest_entries(rows)
    good = np.isfinite(largest) & (largest > 0)
    rows = scale_rows(where_rows(good, rows), 1 / np.where(good, largest, 1.0))
    rows = entrywise(lambda x: np.maximum(x, 0.0), rows)
    squares, norms = _pair_lengths(rows, popular)
    least = np.maximum(norms, squares / _LONGEST)
    grown = 1 / np.sqrt(np.where(least > 0, least, 1.0))
    if unit == 0.0:
        return scale_rows(rows, grown)
    Z = entrywise(np.rint, scale_rows(rows, grown / unit))
    most = _MARGIN / unit**2
    for less in _FRACTIONS:
        norms = _pair_lengths(Z, popular)[1]
        over = norms > most
        if not over.any():
            break
        shorter = np.sqrt(most / np.maximum(norms, most)) * less
        Z = entrywise(np.trunc, scale_rows(Z, np.where(over, shorter, 1.0)))
    return Z


def _pair_lengths(rows: Any, v: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the squared length of each row x and the norm of P A P, added up in order.

    With c = v'x, A v has the entries y_i = x_i (c - x_i v_i) on the row, and the squared norm is
    |A|^2 - 2 |y|^2 + (v'y)^2, where |A|^2 is the sum of x_i^2 (|x|^2 - x_i^2). For s = |v|^2 < 1 it
    is smaller by (1 - s)^2 (2 - s) |y|^2 at least.
    """
    m, x, own = rows.shape[0], rows.data, v[rows.indices]
    owner = np.repeat(np.arange(m), np.diff(rows.indptr))

    def total(values: FloatArray) -> FloatArray:
        return np.asarray(np.bincount(owner, values, m))

    squares = total(x**2)
    pairs = total(x**2 * np.maximum(squares[owner] - x**2, 0.0))
    image = x * (total(x * own)[owner] - x * own)
    left = pairs - 2 * total(image**2) + total(image * own) ** 2
    return squares, np.sqrt(np.maximum(left, 0.0))
