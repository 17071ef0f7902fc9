"""Row blocks, and sums over rows that are exact whatever the order, block size or thread count.

Integer terms (see `skdp.data.integer_rows`) are exact in float64 below 2**53 inside a block and
in int64 across blocks, so nothing here depends on how the work was cut.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
from joblib import effective_n_jobs
from numpy.typing import NDArray

from skdp.data.scratch import Scratch
from skdp.data.threads import one_blas_thread
from skdp.exceptions import PrivacyError

FloatArray = NDArray[np.float64]
Block = Any  # a float64 ndarray, or a scipy CSR array: rows of one block

_BLOCK_BYTES = 2**23  # large enough for BLAS, small beside the data
_CACHE_BYTES = 2**22  # what a block of few columns may take: it is passed over several times
# Public caps: one row adds less than 2**36 to an entry (mu * sigma is below 2**33, and a tangent
# core below 9 times that), so float sums over this many rows stay below 2**53.
_MAX_ROWS = 2**16
_CELLS = 2**16
_EXACT_ROWS = 2**17


class RowSource(Protocol):
    """Rows of a private matrix, handed out in blocks.

    A source of your own (a file format, a database) needs these four members; `blocks` yields
    float64 arrays or CSR arrays, and is called once for each pass. Optional members: ``dtype``
    (of the fitted attributes; float64 if absent) and ``sparse`` (whether blocks are CSR arrays).
    """

    n_features: int

    def n_rows(self) -> int:
        """Return the private number of rows (called inside the gate only)."""
        ...

    def parts(self, n: int) -> list[RowSource]:
        """Cut into about `n` sources that hold the same rows."""
        ...

    def blocks(self) -> Iterator[Block]:
        """Yield the rows as blocks, in any order, cut anywhere; the next may overwrite the last."""
        ...


class RemoteRows(Protocol):
    """Rows that live elsewhere, in parts: only sums of integers come here.

    A source of your own (Spark, Ray) needs these three members. ``sum_parts(work)`` returns the sum
    of ``work(part)`` over all parts, computed where each part is; a part is a `RowSource`, `work`
    pickles with cloudpickle, and its values are integer arrays that add modulo 2**64. A part may be
    computed again after a fault: `work` is a function of the part alone.
    """

    n_features: int

    def n_rows(self) -> int:
        """Return the private number of rows (called inside the gate only)."""
        ...

    def sum_parts(self, work: Callable[[RowSource], NDArray[Any]]) -> NDArray[Any]:
        """Return the sum of ``work(part)``, and nothing else, from where the parts are."""
        ...


AnyRows = RowSource | RemoteRows


def is_source(X: Any) -> bool:
    """Whether X hands out (or sums) rows by itself. Dask arrays have `blocks`, not a method."""
    if not hasattr(X, "n_features"):
        return False
    return any(callable(getattr(X, name, None)) for name in ("blocks", "sum_parts"))


def is_dask_array(X: Any) -> bool:
    """Whether X is a Dask array; Dask is not imported to find out."""
    return type(X).__module__.partition(".")[0] == "dask" and hasattr(X, "rechunk")


def is_paths(X: Any) -> bool:
    """Whether X is a list (or tuple) of paths."""
    return (
        isinstance(X, (list, tuple))
        and len(X) > 0
        and all(isinstance(path, (str, os.PathLike)) for path in X)
    )


def cuts(start: int, stop: int, n: int) -> list[tuple[int, int]]:
    """Cut a range into about `n` ranges."""
    edges = np.linspace(start, stop, max(1, n) + 1).astype(int)
    return [(int(a), int(b)) for a, b in pairwise(edges) if b > a]


def rows_at_once(n_features: int) -> int:
    """Return how many dense rows make a block that fits a cache."""
    d = max(1, n_features)
    enough = min(d, _BLOCK_BYTES // (8 * d))  # beside the square moment that each block adds to
    fitting = min(_CACHE_BYTES, _BLOCK_BYTES) // (8 * d)
    return int(np.clip(fitting, max(16, enough), _MAX_ROWS))


class DenseRows:
    """Rows of a dense array or memory map; a map is never loaded whole."""

    def __init__(self, X: NDArray[Any], start: int = 0, stop: int | None = None) -> None:
        self._X = X
        self._range = (start, len(X) if stop is None else stop)
        self.n_features = int(X.shape[1])
        self.dtype = X.dtype
        self.sparse = False

    def n_rows(self) -> int:
        """Return the private number of rows."""
        return self._range[1] - self._range[0]

    def whole(self) -> Any:
        """Return the rows as one array or map."""
        return self._X[slice(*self._range)]

    def parts(self, n: int) -> list[RowSource]:
        """Cut into `n` ranges of rows."""
        return [DenseRows(self._X, a, b) for a, b in cuts(*self._range, n)]

    def blocks(self) -> Iterator[FloatArray]:
        """Yield blocks that fit a cache: views of float64 rows, else one array used again."""
        rows = rows_at_once(self.n_features)
        scratch = Scratch()
        for i in range(self._range[0], self._range[1], rows):
            block = np.asarray(self._rows(i, min(i + rows, self._range[1])))
            if block.dtype != np.float64:
                converted = scratch.shaped(block.shape)
                np.copyto(converted, block, casting="unsafe")
                block = converted
            yield block

    def _rows(self, i: int, j: int) -> NDArray[Any]:
        return self._X[i:j]

    def taken(self, which: NDArray[np.intp]) -> DenseRows:
        """Return some of these rows."""
        return _TakenRows(self._X, self._range[0] + which)


class _TakenRows(DenseRows):
    """Some rows of an array, copied block by block."""

    def __init__(self, X: NDArray[Any], which: NDArray[np.intp]) -> None:
        super().__init__(X, 0, len(which))
        self._which = which

    def whole(self) -> Any:
        """Return the rows as one array."""
        return self._X[self._which]

    def parts(self, n: int) -> list[RowSource]:
        """Cut into `n` ranges of rows."""
        return [_TakenRows(self._X, self._which[a:b]) for a, b in cuts(*self._range, n)]

    def taken(self, which: NDArray[np.intp]) -> DenseRows:
        """Return some of these rows."""
        return _TakenRows(self._X, self._which[which])

    def _rows(self, i: int, j: int) -> NDArray[Any]:
        return self._X[self._which[i:j]]


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


def plain_block(block: Any) -> Any:
    """Return rows as what the row maps take: a float64 array, or a CSR array without duplicates.

    A source of one's own may yield anything, and the norm of a row with an entry stored in parts
    is not the norm of these parts.
    """
    if isinstance(block, np.ndarray):
        return np.asarray(block, np.float64)
    if sp.issparse(block):
        return _canonical(sp.csr_array(block).astype(np.float64, copy=False))
    return block


class SparseRows:
    """Rows of a CSR matrix or array; duplicates are summed before anything is computed."""

    def __init__(self, X: Any, start: int = 0, stop: int | None = None) -> None:
        self._X = X
        self._range = (start, X.shape[0] if stop is None else stop)
        self.n_features = int(X.shape[1])
        self.dtype = X.dtype
        self.sparse = True

    def n_rows(self) -> int:
        """Return the private number of rows."""
        return self._range[1] - self._range[0]

    def n_stored(self) -> int:
        """Return the private number of stored entries."""
        start, stop = self._range
        return int(self._X.indptr[stop]) - int(self._X.indptr[start])

    def whole(self) -> Any:
        """Return the rows as one matrix."""
        return self._X if self._range == (0, self._X.shape[0]) else self._X[slice(*self._range)]

    def parts(self, n: int) -> list[RowSource]:
        """Cut into `n` ranges of rows with about equally many stored entries."""
        a, b = self._range
        stored = self._X.indptr[a : b + 1]
        marks = [cut[0] for cut in cuts(int(stored[0]), int(stored[-1]), n)][1:]
        edges = [a, *(a + np.searchsorted(stored, marks)), b]
        return [SparseRows(self._X, int(i), int(j)) for i, j in pairwise(edges) if j > i]

    def blocks(self) -> Iterator[Any]:
        """Yield CSR blocks of bounded memory; results do not depend on where they are cut."""
        X, (start, stop) = self._X, self._range
        entries = _BLOCK_BYTES // 16  # a value and its index, and what is computed from them
        while start < stop:
            last = int(np.searchsorted(X.indptr, int(X.indptr[start]) + entries, side="right")) - 1
            end = min(max(last, start + 1), start + _MAX_ROWS, stop)
            yield _canonical(self._rows(start, end))
            start = end

    def _rows(self, i: int, j: int) -> Any:
        X = self._X
        a, b = X.indptr[i], X.indptr[j]
        data = X.data[a:b].astype(np.float64, copy=False)
        parts = (data, X.indices[a:b], X.indptr[i : j + 1] - a)
        return sp.csr_array(parts, shape=(j - i, self.n_features))


def row_source(X: Any) -> RowSource:
    """Wrap an array, memory map or sparse matrix as a source of row blocks; a source stays."""
    if is_source(X):
        source: RowSource = X
        return source
    return SparseRows(X.tocsr()) if sp.issparse(X) else DenseRows(X)


def _pieces(part: RowSource) -> Iterator[Block]:
    """Blocks of at most _MAX_ROWS rows: a source of your own may not know the cap."""
    for given in part.blocks():
        block = plain_block(given)
        if block.shape[0] <= _MAX_ROWS:
            yield block
        else:
            for i in range(0, block.shape[0], _MAX_ROWS):
                yield block[i : i + _MAX_ROWS]


def _sum_part(
    part: RowSource, term: Callable[[Block], NDArray[Any]], total: NDArray[Any]
) -> NDArray[Any]:
    """Add the terms of one part. Floats that hold integers are added as floats while exact."""
    partial: NDArray[Any] | None = None
    rows = 0
    # Floating-point warnings would tell of the data; the gate's errstate does not reach threads.
    with np.errstate(all="ignore"):
        for block in _pieces(part):
            value = term(block)
            rows += block.shape[0]
            if value.dtype == total.dtype:
                total += value
            elif partial is None or rows > _EXACT_ROWS:
                if partial is not None:
                    _add_whole(total, partial)
                partial, rows = value, block.shape[0]
            else:
                partial += value
    if partial is not None:
        _add_whole(total, partial)
    return total


def _add_whole(total: NDArray[Any], part: NDArray[Any]) -> None:
    """Add floats that hold integers, some at a time: a copy of the whole may be large."""
    sums, values = total.reshape(-1), np.ravel(part)
    for start in range(0, len(values), _CELLS):
        piece = slice(start, start + _CELLS)
        sums[piece] += values[piece].astype(total.dtype)


@dataclass(frozen=True)
class PartSum:
    """Adds ``term(block)`` over the blocks of one part: what is sent to where the part is."""

    term: Callable[[Block], NDArray[Any]]
    shape: tuple[int, ...]
    dtype: str

    def __call__(self, part: RowSource) -> NDArray[Any]:
        """Return the sum over one part."""
        return _sum_part(part, self.term, np.zeros(self.shape, self.dtype))


def checked_total(total: Any, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """Return what a source of one's own added up, if it is what was asked for."""
    array: NDArray[Any] = np.asarray(total)
    if array.dtype != dtype or array.shape != shape:
        raise PrivacyError(
            f"sum_parts of a row source must return the sum of what `work` returned, {dtype} of "
            f"shape {shape}. Got {array.dtype} of shape {array.shape}."
        )
    return array


def sum_rows(
    source: AnyRows,
    term: Callable[[Block], NDArray[Any]],
    shape: tuple[int, ...],
    *,
    exact: bool,
    n_jobs: int | None,
) -> NDArray[Any]:
    """Add ``term(block)`` over all blocks, on `n_jobs` threads.

    With ``exact`` the terms are integers held in float64 below 2**53, and the sum is int64: the
    same bits for every order, block size and number of threads. Remote rows are added where they
    are, whatever `n_jobs` is.
    """
    work = PartSum(term, shape, "int64" if exact else "float64")
    if hasattr(source, "sum_parts"):
        return checked_total(source.sum_parts(work), shape, work.dtype)
    totals = [total for _, total in each_part(source, work, n_jobs)]
    return np.asarray(totals[0] if len(totals) == 1 else sum(totals, np.zeros(shape, work.dtype)))


def each_part(
    source: RowSource, work: Callable[[RowSource], Any], n_jobs: int | None
) -> list[tuple[RowSource, Any]]:
    """Return parts of the source and ``work(part)`` of each, made on `n_jobs` threads."""
    n_workers = effective_n_jobs(n_jobs)
    if n_workers == 1:
        return [(source, work(source))]
    parts = source.parts(n_workers) or [source]
    # One BLAS thread a worker, or the cores fight. Threads of joblib are looked after every 10 ms,
    # which is longer than many a pass.
    with one_blas_thread(), ThreadPoolExecutor(n_workers) as pool:
        made = [pool.submit(copy_context().run, work, part) for part in parts]
    return [(part, one.result()) for part, one in zip(parts, made, strict=True)]
