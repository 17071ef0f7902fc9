"""Rows of one block, dense or CSR alike: norms, largest entries, scaling, rows that are not finite.

Each number is of one row alone, bit by bit: nothing goes through BLAS, whose bits depend on where a
row stands in its block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp.data.blocks import Block

FloatArray = NDArray[np.float64]
_BAND = 1024  # columns of a product at a time
_SMALL_PRODUCT = 10**6  # multiplications: beyond them OpenBLAS copies both factors first
_SHORT_PIECE = 400  # rows: in shorter pieces nothing is gained


def dense(matrix: Any) -> FloatArray:
    """Return a matrix as an array."""
    return np.asarray(matrix.toarray() if sp.issparse(matrix) else matrix)


def rint(x: FloatArray) -> FloatArray:
    """Round in place."""
    return np.asarray(np.rint(x, out=x))


def entrywise(function: Callable[..., Any], rows: Block) -> Block:
    """Apply a function that maps 0 to 0 to the entries."""
    if isinstance(rows, np.ndarray):
        return function(rows)
    return sp.csr_array((function(rows.data), rows.indices, rows.indptr), shape=rows.shape)


def spread(numbers: NDArray[Any], rows: Block) -> NDArray[Any]:
    """Return a number of each row beside its entries, as `entrywise` hands them out."""
    if isinstance(rows, np.ndarray):
        return numbers[:, None]
    return np.repeat(numbers, np.diff(rows.indptr))


def _over_rows(ufunc: np.ufunc, values: NDArray[Any], indptr: NDArray[Any], out: Any) -> Any:
    """Reduce the stored entries of each CSR row that has any."""
    filled = np.flatnonzero(indptr[1:] > indptr[:-1])
    if filled.size:
        out[filled] = ufunc.reduceat(values, indptr[filled])
    return out


def square_norms(rows: Block) -> FloatArray:
    """Squared norm of each row. Exact, in any order, where entries are integers and it is < 2**53.

    Never through BLAS, whose bits depend on where a row stands in the block.
    """
    if isinstance(rows, np.ndarray):
        return np.asarray(np.einsum("ij,ij->i", rows, rows))
    out = np.zeros(rows.shape[0])
    return np.asarray(_over_rows(np.add, rows.data * rows.data, rows.indptr, out))


def largest_entries(rows: Block, out: Any = None) -> FloatArray:
    """Largest absolute value of each row; `out` is memory for dense ones."""
    if isinstance(rows, np.ndarray):
        return np.asarray(np.abs(rows, out=out).max(axis=1, initial=0.0))
    out = np.zeros(rows.shape[0])
    return np.asarray(_over_rows(np.maximum, np.abs(rows.data), rows.indptr, out))


def finite_rows(rows: Block) -> NDArray[np.bool_]:
    """Whether all entries of a row are finite."""
    if isinstance(rows, np.ndarray):
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(rows.sum()):  # a bad entry would show; large good ones are looked at
                return np.ones(rows.shape[0], bool)
        return np.asarray(np.isfinite(rows).all(axis=1))
    out = np.ones(rows.shape[0], bool)
    return np.asarray(_over_rows(np.logical_and, np.isfinite(rows.data), rows.indptr, out))


def finite_only(rows: Block) -> Block:
    """Return the rows that have finite values only."""
    good = finite_rows(rows)
    return rows if good.all() else rows[good]


def where_rows(good: NDArray[np.bool_], rows: Block) -> Block:
    """Return rows with zeros in place of the bad ones."""
    if good.all():
        return rows
    return entrywise(lambda x: np.where(spread(good, rows), x, 0.0), rows)


def scale_rows(rows: Block, factors: FloatArray) -> Block:
    """Multiply each row by its factor."""
    return entrywise(lambda x: x * spread(factors, rows), rows)


def times_powers(rows: Block, exponents: NDArray[Any], out: Any = None) -> Block:
    """Multiply each row by its power of two: what `ldexp` returns, in a fraction of the time.

    `out` is memory for dense rows.
    """
    if np.all(np.abs(exponents) < 1022):  # products with normal floats are rounded once, as there
        powers = np.ldexp(1.0, exponents)
        if out is not None and not sp.issparse(rows):
            return np.multiply(rows, powers[:, None], out=out)
        return scale_rows(rows, powers)
    return entrywise(lambda x: np.ldexp(x, spread(exponents, rows)), rows)


def scaled_to_integers(rows: Block, scale: float | FloatArray) -> Block:
    """Scale rows and round them, in place."""
    values = rows.data if sp.issparse(rows) else rows
    values *= scale
    rint(values)
    return rows


def column_sums(rows: Block) -> FloatArray:
    """Sum over rows."""
    return np.asarray(rows.sum(axis=0), dtype=np.float64).reshape(-1)


def unpacked(rows: Block) -> Block:
    """Return nearly full CSR rows as an array, whose products are faster."""
    if sp.issparse(rows) and rows.nnz > 0.1 * rows.shape[0] * rows.shape[1]:
        return rows.toarray()
    return rows


def block_gram(rows: Block) -> FloatArray:
    """Z'Z of one block; of a sparse one in bands, as sparse products take more than arrays."""
    rows = unpacked(rows)
    if not sp.issparse(rows) or rows.shape[1] <= _BAND:
        return dense(rows.T @ rows)
    gram = np.empty((rows.shape[1], rows.shape[1]), rows.dtype)
    columns = rows.tocsc()
    for start in range(0, len(gram), _BAND):
        band = slice(start, start + _BAND)
        gram[band] = dense(columns[:, band].T @ rows)
    return gram


def cross_product(rows: Block, few: FloatArray) -> FloatArray:
    """Z'P of one block, for an exact product with a P of few columns.

    Dense ones as (P'Z)': BLAS takes up to twice as long where the narrow factor comes last.
    """
    if sp.issparse(rows):
        return dense(rows.T @ few)
    first, *rest = _for_small_products(rows, few.shape[1])
    total = few[first].T @ rows[first]
    for piece in rest:
        total += few[piece].T @ rows[piece]
    return np.asarray(total.T)


def narrow_product(rows: Block, few: FloatArray) -> FloatArray:
    """Z P of one block, for an exact product with a P of few columns."""
    if sp.issparse(rows):
        return dense(rows @ few)
    out, few = np.empty((len(rows), few.shape[1])), np.ascontiguousarray(few)
    for piece in _for_small_products(rows, few.shape[1]):
        np.matmul(rows[piece], few, out=out[piece])
    return out


def _for_small_products(rows: FloatArray, k: int) -> list[slice]:
    """Return pieces of the rows whose products with k columns BLAS makes without copies."""
    n, d = rows.shape
    size = _SMALL_PRODUCT // max(1, d * k)
    if size < _SHORT_PIECE:
        return [slice(0, n)]
    return [slice(i, i + size) for i in range(0, max(n, 1), size)]


def without_duplicates(A: Any) -> Any:
    """Sum duplicate entries, each cell by itself in the order of its values.

    In the order of storage an entry of one cell could change the rounding of another's sum.
    """
    entries = sp.coo_array(A)
    rows, columns = entries.coords
    data = entries.data.astype(np.float64)
    order = np.lexsort((data, columns, rows))
    rows, columns, data = rows[order], columns[order], data[order]
    first = np.ones(len(data), dtype=bool)
    first[1:] = (rows[1:] != rows[:-1]) | (columns[1:] != columns[:-1])
    starts = np.flatnonzero(first)
    sums = np.add.reduceat(data, starts) if starts.size else data
    return sp.csr_array((sums, (rows[starts], columns[starts])), shape=A.shape)
