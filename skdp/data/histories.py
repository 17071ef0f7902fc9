"""User-item rows: the items of each row, and which of them are hidden to score recommendations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp._limits import FloatArray
from skdp.data import blocks
from skdp.data.integers import mixed_words

_HIDDEN = 0.2  # share of the items of a row that are hidden to score a list


def weighted_rows(block: Any, cap: float | None) -> Any:
    """Return a CSR array of min(x, cap)/cap where a block is positive; without a cap, of ones.

    An entry that is not finite, or so small that x/cap rounds to 0, counts as no item.
    """
    rows = sp.csr_array(blocks.plain_block(block)).copy()
    weights = rows.data > 0 if cap is None else np.clip(rows.data, 0.0, cap) / cap
    rows.data = np.where(np.isfinite(rows.data), weights, 0.0)
    rows.eliminate_zeros()
    rows.sort_indices()
    return rows


binary_rows = partial(weighted_rows, cap=None)


def hidden_cells(rows: Any) -> NDArray[np.bool_]:
    """Mark the stored entries of binary rows to hide; the choice depends on that row alone."""
    degrees = np.diff(rows.indptr)
    items = mixed_words(rows.indices.astype(np.uint64))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(items, dtype=np.uint64)])
    salt = mixed_words(sums[rows.indptr[1:]] - sums[rows.indptr[:-1]])  # of the set of items
    words = mixed_words(items ^ np.repeat(salt, degrees))
    return np.asarray(words < np.uint64(_HIDDEN * 2.0**64))


def with_entries(rows: Any, entries: NDArray[Any]) -> Any:
    """Return a copy whose stored entries are others; zeros are not stored."""
    out = rows.copy()
    out.data = entries
    out.eliminate_zeros()
    return out


def history_rows(
    parts: Iterable[Any],
    kept: NDArray[np.intp] | None = None,
    cap: float | None = None,
    shares: bool = False,
) -> Iterator[Any]:
    """Yield histories on the kept items, as CSR blocks.

    Parameters
    ----------
    parts : iterable of blocks
        Rows whose positive entries are items.
    kept : ndarray of int or None
        A public selection of items; None keeps all.
    cap : float or None
        Entries count by min(x, cap); None: all alike.
    shares : bool
        Rows have sum 1, not norm 1.

    Yields
    ------
    CSR array
    """
    for block in parts:
        given = sp.csr_array(blocks.plain_block(block))  # a row with a bad entry adds nothing
        rows = weighted_rows(blocks.where_rows(blocks.finite_rows(given), given), cap)
        rows = rows if kept is None else rows[:, kept]
        yield _scaled(rows, shares)


def _scaled(rows: Any, shares: bool) -> Any:
    """Scale each row to norm 1, or to sum 1 for `shares`; the result depends on that row alone.

    A row is divided by its largest entry first, so that squares do not underflow.
    """
    owner = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    scaled = rows.data / blocks.largest_entries(rows)[owner]
    powers = np.bincount(owner, scaled if shares else scaled**2, rows.shape[0])
    rows.data = scaled / (powers if shares else np.sqrt(powers))[owner]
    return rows


# Rows whose pairs of entries have norm 1, in integers (see `skdp.queries.interactions.PairQuery`).


_LONGEST = 2.0  # largest squared norm of a row
MARGIN = 1 - 2.0**-20  # covers the rounding of v to its grid, and of a sum of 2**32 floats
_FRACTIONS = (1 - 2.0**-12, 1 - 2.0**-6, 0.5, 0.0)


def with_unit_pairs(rows: Any, unit: float, popular: FloatArray) -> Any:
    """Scale each row so that its matrix of pairs has norm 1 (see `PairQuery`).

    The result holds integers in multiples of `unit`, or floats if the unit is 0. A row is divided
    by its largest entry first, so that no square overflows; a row that is not finite becomes empty.
    If rounding raises a norm above 1, the row is scaled down by smaller and smaller factors, and
    finally to zero.
    """
    largest = blocks.largest_entries(rows)
    good = np.isfinite(largest) & (largest > 0)
    # Not its inverse, which may be beyond the largest float.
    each = blocks.per_row(np.where(good, largest, 1.0), rows)
    rows = blocks.entrywise(lambda x: np.maximum(x, 0.0) / each, blocks.where_rows(good, rows))
    squares, norms = _pair_lengths(rows, popular)
    least = np.maximum(norms, squares / _LONGEST)
    grown = 1 / np.sqrt(np.where(least > 0, least, 1.0))
    if unit == 0.0:
        return blocks.scale_rows(rows, grown)
    Z = blocks.entrywise(np.rint, blocks.scale_rows(rows, grown / unit))
    most = MARGIN / unit**2
    for less in _FRACTIONS:
        norms = _pair_lengths(Z, popular)[1]
        over = norms > most
        if not over.any():
            break
        shorter = np.sqrt(most / np.maximum(norms, most)) * less
        Z = blocks.entrywise(np.trunc, blocks.scale_rows(Z, np.where(over, shorter, 1.0)))
    return Z


def _pair_lengths(rows: Any, v: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the squared norm of each row x and the norm of P A P, added up in order.

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
