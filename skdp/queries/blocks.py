"""Row blocks, and sums over rows that are exact whatever the order, block size or thread count.

A row becomes an array of integers that depends on that row alone, with an integer norm that is
checked exactly (`IntegerRows`). Sums of integers are exact in float64 below 2**53 inside a block
and in int64 across blocks, so nothing here depends on how the work was cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
from joblib import effective_n_jobs
from numpy.typing import NDArray
from sklearn.utils.parallel import Parallel, delayed
from threadpoolctl import threadpool_limits

__all__ = ["Block", "DenseRows", "IntegerRows", "RowSource", "SparseRows", "row_source", "sum_rows"]

FloatArray = NDArray[np.float64]
Block = Any  # a float64 ndarray, or a scipy CSR array: rows of one block

_BLOCK_BYTES = 2**21  # a block of dense rows stays in the cache of one core
_EXACT = 2.0**53
_MAX_ROWS = 2**18  # public cap on the rows of a block: sums in it stay below 2**53


class RowSource(Protocol):
    """Rows of a private matrix, handed out in blocks.

    A source of your own (Spark, Ray, a file format) needs these four members; `blocks` yields
    float64 arrays or canonical CSR arrays, and may be called many times.
    """

    n_features: int

    def n_rows(self) -> int:
        """Return the private number of rows (called inside the gate only)."""
        ...

    def parts(self, n: int) -> list[RowSource]:
        """Cut into about `n` sources that hold the same rows."""
        ...

    def blocks(self) -> Iterator[Block]:
        """Yield the rows as float64 blocks of at most ``_MAX_ROWS`` rows."""
        ...


def _cuts(start: int, stop: int, n: int) -> list[tuple[int, int]]:
    edges = np.linspace(start, stop, max(1, n) + 1).astype(int)
    return [(int(a), int(b)) for a, b in zip(edges[:-1], edges[1:], strict=True) if b > a]


class DenseRows:
    """Rows of a dense array or memory map; a map is never loaded whole."""

    def __init__(self, X: NDArray[Any], start: int = 0, stop: int | None = None) -> None:
        self._X = X
        self._range = (start, len(X) if stop is None else stop)
        self.n_features = int(X.shape[1])

    def n_rows(self) -> int:
        """Return the private number of rows."""
        return self._range[1] - self._range[0]

    def parts(self, n: int) -> list[RowSource]:
        """Cut into `n` ranges of rows."""
        return [DenseRows(self._X, a, b) for a, b in _cuts(*self._range, n)]

    def blocks(self) -> Iterator[FloatArray]:
        """Yield blocks that fit a cache; float64 rows are views, not copies."""
        rows = int(np.clip(_BLOCK_BYTES // (8 * max(1, self.n_features)), 16, _MAX_ROWS))
        for i in range(self._range[0], self._range[1], rows):
            yield np.asarray(self._X[i : min(i + rows, self._range[1])], dtype=np.float64)


def _is_canonical(block: Any) -> bool:
    """Whether indices increase strictly inside each row (computed: the flag may lie)."""
    rises = np.diff(block.indices) > 0
    ends = block.indptr[1:-1]
    rises[ends[(ends > 0) & (ends < block.indices.size)] - 1] = True  # a new row may start lower
    return bool(rises.all())


def _canonical(block: Any) -> Any:
    """Return the block without duplicate entries (explicit zeros are harmless to sums)."""
    if _is_canonical(block):
        return block
    block = block.copy()
    block.has_canonical_format = False
    block.has_sorted_indices = False
    block.sum_duplicates()
    return block


class SparseRows:
    """Rows of a CSR matrix or array; duplicates are summed before anything is computed."""

    def __init__(self, X: Any, start: int = 0, stop: int | None = None) -> None:
        self._X = X
        self._range = (start, X.shape[0] if stop is None else stop)
        self.n_features = int(X.shape[1])

    def n_rows(self) -> int:
        """Return the private number of rows."""
        return self._range[1] - self._range[0]

    def parts(self, n: int) -> list[RowSource]:
        """Cut into `n` ranges of rows with about equally many stored entries."""
        a, b = self._range
        stored = self._X.indptr[a : b + 1]
        marks = [_cut[0] for _cut in _cuts(int(stored[0]), int(stored[-1]), n)][1:]
        edges = [a, *(a + np.searchsorted(stored, marks)), b]
        pairs = zip(edges[:-1], edges[1:], strict=True)
        return [SparseRows(self._X, int(i), int(j)) for i, j in pairs if j > i]

    def blocks(self) -> Iterator[Any]:
        """Yield CSR blocks of bounded memory; results do not depend on where they are cut."""
        X, (start, stop) = self._X, self._range
        entries = _BLOCK_BYTES // 8
        while start < stop:
            last = int(np.searchsorted(X.indptr, X.indptr[start] + entries, side="right")) - 1
            end = min(max(last, start + 1), start + _MAX_ROWS, stop)
            yield _canonical(self._rows(start, end))
            start = end

    def _rows(self, i: int, j: int) -> Any:
        X = self._X
        a, b = X.indptr[i], X.indptr[j]
        data = X.data[a:b].astype(np.float64, copy=False)
        parts = (data, X.indices[a:b], X.indptr[i : j + 1] - a)
        return sp.csr_array(parts, shape=(j - i, self.n_features))


class CenteredRows:
    """Rows minus a public centre (sparse blocks become dense one block at a time)."""

    def __init__(self, source: RowSource, center: FloatArray) -> None:
        self._source = source
        self._center = center
        self.n_features = source.n_features

    def n_rows(self) -> int:
        """Return the private number of rows."""
        return self._source.n_rows()

    def parts(self, n: int) -> list[RowSource]:
        """Cut as the source does."""
        return [CenteredRows(part, self._center) for part in self._source.parts(n)]

    def blocks(self) -> Iterator[FloatArray]:
        """Yield dense centred blocks of bounded memory."""
        rows = max(16, _BLOCK_BYTES // (8 * max(1, self.n_features)))
        for block in self._source.blocks():
            for i in range(0, block.shape[0], rows):
                part = block[i : i + rows]
                yield (part.toarray() if sp.issparse(part) else part) - self._center


class SelectedRows:
    """Rows on a public selection of columns."""

    def __init__(self, source: RowSource, kept: NDArray[np.intp]) -> None:
        self._source = source
        self._kept = kept
        self.n_features = len(kept)

    def n_rows(self) -> int:
        """Return the private number of rows."""
        return self._source.n_rows()

    def parts(self, n: int) -> list[RowSource]:
        """Cut as the source does."""
        return [SelectedRows(part, self._kept) for part in self._source.parts(n)]

    def blocks(self) -> Iterator[Block]:
        """Yield the kept columns of each block."""
        for block in self._source.blocks():
            yield block[:, self._kept]


def row_source(X: Any) -> RowSource:
    """Wrap an array, memory map or CSR matrix as a source of row blocks."""
    if sp.issparse(X):
        return SparseRows(X)
    return DenseRows(X)


# -- one row -> integers ------------------------------------------------------------------------


def _square_norms(rows: Block) -> FloatArray:
    """Squared norm of each row. Exact, in any order, where entries are integers and it is < 2**53.

    Never through BLAS, whose bits depend on where a row stands in the block.
    """
    if not sp.issparse(rows):
        return np.asarray(np.einsum("ij,ij->i", rows, rows))
    return _sums_by_row(rows.data * rows.data, rows.indptr)


def _sums_by_row(values: FloatArray, indptr: NDArray[Any]) -> FloatArray:
    out = np.zeros(len(indptr) - 1)
    filled = np.flatnonzero(indptr[1:] > indptr[:-1])
    if filled.size:
        out[filled] = np.add.reduceat(values, indptr[filled])
    return out


def _take(rows: Block, which: NDArray[np.intp]) -> Block:
    return rows[which]


def _scale_rows(rows: Block, factors: FloatArray) -> Block:
    if not sp.issparse(rows):
        return rows * factors[:, None]
    spread = np.repeat(factors, np.diff(rows.indptr))
    return sp.csr_array((rows.data * spread, rows.indices, rows.indptr), shape=rows.shape)


def _apply(function: Callable[..., Any], rows: Block) -> Block:
    if not sp.issparse(rows):
        return function(rows)
    return sp.csr_array((function(rows.data), rows.indices, rows.indptr), shape=rows.shape)


def _largest(rows: Block) -> FloatArray:
    if not sp.issparse(rows):
        return np.asarray(np.abs(rows).max(axis=1, initial=0.0))
    out = np.zeros(rows.shape[0])
    filled = np.flatnonzero(rows.indptr[1:] > rows.indptr[:-1])
    if filled.size:
        out[filled] = np.maximum.reduceat(np.abs(rows.data), rows.indptr[filled])
    return out


def _mantissas(rows: Block) -> tuple[Block, FloatArray, NDArray[np.intc]]:
    """Write rows as 2**e times integers: (integers, exact squared norms, e). Bad rows become 0.

    The largest entry, the power of two and the integers depend on the row alone, and the squared
    norm of the integers stays below 2**53: nothing here depends on summation order.
    """
    bits = max(4, (51 - math.ceil(math.log2(max(2, rows.shape[1])))) // 2)
    largest = _largest(rows)
    good = np.isfinite(largest) & (largest > 0)
    exponents = np.where(good, np.frexp(np.where(good, largest, 1.0))[1], 0).astype(np.intc)
    shift = bits - exponents
    if sp.issparse(rows):
        counts = np.diff(rows.indptr)
        data = np.where(np.repeat(good, counts), rows.data, 0.0)
        data = np.rint(np.ldexp(data, np.repeat(shift, counts)))
        integers = sp.csr_array((data, rows.indices, rows.indptr), shape=rows.shape)
    else:
        integers = np.rint(np.ldexp(np.where(good[:, None], rows, 0.0), shift[:, None]))
    return integers, _square_norms(integers), exponents - bits


def row_norms(rows: Block) -> FloatArray:
    """Norm of each row to a relative 1e-4 or better, from that row alone; bad rows have norm 0."""
    _, squares, exponents = _mantissas(rows)
    return np.asarray(np.ldexp(np.sqrt(squares), exponents))


@dataclass(frozen=True)
class IntegerRows:
    """The row map: clip to `clip_norm`, write in units of `unit`, keep the integer norm in bound.

    A row x becomes z = rint(min(1, C/|x|) x / unit). If z.z exceeds (C/unit)**2 in exact integers,
    the row is scaled down a little and rounded again, then truncated, then dropped: each step is
    checked exactly and depends on that row alone. Rows that are not finite become zero.
    """

    clip_norm: float
    unit: float

    @property
    def square_bound(self) -> float:
        """Largest squared integer norm that a row may have."""
        return math.floor((self.clip_norm / self.unit) ** 2 * (1 - 1e-14))

    def __call__(self, rows: Block) -> Block:
        """Return the integer rows as float64 (a new array)."""
        bound = self.square_bound
        with np.errstate(over="ignore", invalid="ignore"):
            Z = _apply(self._rounded, rows)
            squares = _square_norms(Z)
        over = np.flatnonzero(~(squares <= bound))  # NaN counts as over
        if over.size:
            self._replace(Z, over, self._shrunk(_take(rows, over), rows.shape[1]))
        return Z

    def _rounded(self, x: FloatArray) -> FloatArray:
        scaled = x * (1.0 / self.unit)
        return np.asarray(np.rint(scaled, out=scaled))

    def _shrunk(self, rows: Block, n_features: int) -> Block:
        """Clip rows that are too long, by exact arithmetic from each row alone."""
        bound, radius = self.square_bound, math.sqrt(self.square_bound)
        integers, squares, exponents = _mantissas(rows)
        lengths = np.sqrt(np.maximum(squares, 1.0))
        # Rounding moves a norm by .58 of a unit and by d/24 in the square: aim below the bound,
        # so that few rows need truncation, which shrinks every entry.
        aim = max(radius - 1.25 - n_features / (24 * max(radius, 1.0)), 0.875 * radius)
        Z = _apply(np.rint, _scale_rows(integers, self._factors(lengths, exponents, aim)))
        squares = _square_norms(Z)
        over = np.flatnonzero(squares > bound)
        if over.size:
            smaller = radius / np.sqrt(squares[over]) * (1 - 2.0**-40)
            truncated = _apply(np.trunc, _scale_rows(_take(Z, over), smaller))
            kept = _square_norms(truncated) <= bound
            self._replace(Z, over, _scale_rows(truncated, kept.astype(np.float64)))
        return Z

    def _factors(
        self, lengths: FloatArray, exponents: NDArray[np.intc], aim: float
    ) -> FloatArray:
        """Scale to the aimed length, but never up: a row inside the ball keeps its length."""
        with np.errstate(over="ignore"):
            keep = np.ldexp(1.0 / self.unit, exponents)
        return np.minimum(keep, aim / lengths)

    @staticmethod
    def _replace(Z: Block, which: NDArray[np.intp], rows: Block) -> None:
        if not sp.issparse(Z):
            Z[which] = rows
            return
        counts = Z.indptr[which + 1] - Z.indptr[which]
        starts = np.repeat(Z.indptr[which] - rows.indptr[:-1], counts)
        Z.data[starts + np.arange(rows.data.size)] = rows.data


def clip_rows(rows: Block, clip_norm: float) -> Block:
    """Scale float rows to norm at most `clip_norm` (epsilon is infinite: nothing is protected)."""
    if math.isinf(clip_norm):
        return rows
    norms = np.sqrt(_square_norms(rows))
    return _scale_rows(rows, np.minimum(1.0, clip_norm / np.maximum(norms, 1e-300)))


# -- sums over rows -------------------------------------------------------------------------------


def _sum_part(
    part: RowSource, term: Callable[[Block], NDArray[Any]], total: NDArray[Any]
) -> NDArray[Any]:
    for block in part.blocks():
        value = term(block)
        total += value if total.dtype == value.dtype else value.astype(total.dtype)
    return total


def sum_rows(
    source: RowSource,
    term: Callable[[Block], NDArray[Any]],
    shape: tuple[int, ...],
    *,
    exact: bool,
    n_jobs: int | None,
) -> NDArray[Any]:
    """Add ``term(block)`` over all blocks, on `n_jobs` threads.

    With ``exact`` the terms are integers held in float64 below 2**53, and the sum is int64: the
    same bits for every order, block size and number of threads.
    """
    dtype: Any = np.int64 if exact else np.float64
    n_workers = effective_n_jobs(n_jobs)
    if n_workers == 1:
        return _sum_part(source, term, np.zeros(shape, dtype))
    with threadpool_limits(1, user_api="blas"):  # one thread a worker, or the cores fight
        parts = Parallel(n_jobs=n_workers, require="sharedmem")(
            delayed(_sum_part)(part, term, np.zeros(shape, dtype))
            for part in source.parts(n_workers)
        )
    return np.asarray(sum(parts, np.zeros(shape, dtype)))
