"""Whether public filters find more hidden items of a history than popularity does, row by row.

Some items of some histories are hidden (`skdp.data.histories`), and a filter scores the others: how
many of the hidden ones are in its list is a matter of the row alone.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
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
