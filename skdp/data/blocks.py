"""Row blocks, and sums over rows that are exact whatever the order, block size or thread count.

Every object that holds private rows satisfies one protocol, `RowSource`: `n_features`, `n_rows()`,
`parts(n)`, `blocks()`. Rows on other machines (`RemoteRows`) have `sum_parts(work)` in place of the
last two: `work` gets a `RowSource` there, and only the sum returns. A block is one of

- a float64 array or a CSR array: rows alone;
- `views.Zipped`: rows with columns next to them (targets, numbers of each row);
- `views.Groups`: rows of groups with equally many rows, and columns next to them;
- `units.Batch`: the rows of users with equally many rows; a power of two scales each user's rows.

The sources are `DenseRows` (arrays and memory maps) and `SparseRows` in memory,
`stored_rows.BlockFiles`, `stored_rows.DaskParts`, and `views.InTurn` (several sources one after the
other). `units.GroupRows` and `units.UserRows` hand out the rows of one privacy unit together.
`views.ViewedRows` (a public function of the blocks) and `views.ZippedRows` wrap another source;
`numbers.RemoteView` wraps remote rows. `units.Placed` joins rows with their targets or labels.
`numbers.RowColumns` caches a few numbers of each row on the machine that holds the row. The cache
of users' numbers has a limit of memory (`views.Memory`).

Integer terms (see `skdp.data.integers`) are exact in float64 below 2**53 inside a block and
in int64 across blocks, so no result depends on how the rows were divided into blocks.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import cache, partial
from itertools import pairwise
from typing import Any, Protocol, cast

import numpy as np
import scipy.sparse as sp
from joblib import effective_n_jobs
from numpy.typing import NDArray
from threadpoolctl import OpenBLASController, ThreadpoolController

from skdp._limits import BLOCK, CACHED, FloatArray
from skdp.data.factorisations import row_squares, times_powers
from skdp.exceptions import PrivacyError

__all__ = ["one_blas_thread", "quietly"]

# Limiting BLAS to one thread: results are then the same bit for bit, and small products are faster.
_state: dict[str, Any] = {}
_blas = cache(ThreadpoolController)
# Since threadpoolctl 3.8, a thread that changed the number is the only one that may, until then.
_anyone_may = getattr(OpenBLASController, "clear_controlling_thread", lambda force: None)


def _start_anew() -> None:
    """Make a new lock, also in a forked process: who held the old one may not exist there."""
    _state.update(lock=threading.RLock(), running=set(), limit=None)


_start_anew()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit all BLAS libraries to one thread, until the last of overlapping callers has left.

    The number is a setting of the whole process, which other code changes, too: each caller sets
    it. If the first one restored it when it leaves, the others would round differently.
    """
    caller, running = object(), _state["running"]
    try:
        with _state["lock"]:
            running.add(caller)
            _anyone_may(force=True)
            limit = _blas().limit(limits=1, user_api="blas")
            _state["limit"] = _state["limit"] or limit
        yield
    finally:
        with _state["lock"]:
            running.discard(caller)
            if not running and _state["limit"] is not None:
                _anyone_may(force=True)
                _state["limit"] = _state["limit"].restore_original_limits()  # None
                _anyone_may(force=True)


# Arrays that are allocated once and used for one block after the other.


class Scratch:
    """A buffer for temporary arrays: allocating memory can take as long as the arithmetic on it.

    Each call of `shaped` overwrites the array that the call before returned.
    """

    def __init__(self) -> None:
        self._buffer = np.empty(0)

    def shaped(self, shape: tuple[int, ...]) -> FloatArray:
        """Return an uninitialised array of this shape."""
        size = math.prod(shape)
        if size > 2 * BLOCK:
            return np.empty(shape)
        if size > self._buffer.size:
            self._buffer = np.empty(size)
        return self._buffer[:size].reshape(shape)


class ScratchOfThread(threading.local):
    """Buffers for the temporary arrays of a block of rows, one set for each thread."""

    def __init__(self) -> None:
        self.rows, self.values, self.squares = Scratch(), Scratch(), Scratch()


def quietly(local: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return `local` on one BLAS thread and without warnings, which would reveal private rows."""

    def run(batch: Any) -> Any:
        with np.errstate(all="ignore"), one_blas_thread():
            return local(batch)

    return run


Block = Any  # a float64 ndarray, or a scipy CSR array: rows of one block

# Public caps: one row adds less than 2**36 to an entry (mu * sigma is below 2**33, and a tangent
# core below 9 times that), so float sums over twice as many rows stay below 2**53.
LIMB = 20  # bits of a limb: large integers are split into limbs, whose products are exact
BLOCK_ROWS = 2**14  # most rows of a block: integer products of a block then stay below 2**53


class RowSource(Protocol):
    """Rows of a private matrix, handed out in blocks.

    A source of your own (a file format, a database) needs these four members; `blocks` yields
    float64 arrays or CSR arrays, and is called once for each pass. Optional members: ``dtype``
    (of the fitted attributes; float64 if absent) and ``sparse`` (whether blocks are CSR arrays).
    """

    n_features: int

    def n_rows(self) -> int:
        """Return the private number of rows (called inside the gate only)."""

    def parts(self, n: int) -> list[RowSource]:
        """Split into about `n` sources that hold the same rows together."""

    def blocks(self) -> Iterator[Block]:
        """Yield the rows as blocks, in any order and of any size; a block may reuse memory."""


class RemoteRows(Protocol):
    """Rows in parts on other machines, which send only sums of integers.

    A source of your own (Spark, Ray) needs these three members. ``sum_parts(work)`` returns the sum
    of ``work(part)`` over all parts, computed where each part is; a part is a `RowSource`, `work`
    pickles with cloudpickle, and its values are integer arrays that add modulo 2**64. A part may be
    computed again after a fault: `work` is a function of the part alone.
    """

    n_features: int

    def n_rows(self) -> int:
        """Return the private number of rows (called inside the gate only)."""

    def sum_parts(self, work: Callable[[RowSource], NDArray[Any]]) -> NDArray[Any]:
        """Return the sum of ``work(part)``, and nothing else, from the machines of the parts."""


AnyRows = RowSource | RemoteRows


def is_source(X: Any) -> bool:
    """Whether X hands out (or sums) rows by itself. Dask arrays have `blocks`, not a method."""
    if not hasattr(X, "n_features"):
        return False
    return any(callable(getattr(X, name, None)) for name in ("blocks", "sum_parts"))


def check_source(name: str, X: Any) -> None:
    """Raise if a user-defined row source lacks a method or its first block is no numeric table.

    The type and the number of columns of a block are public. An error inside a block is not: it is
    ignored here, and the gate handles it when it reads the rows.
    """
    own = hasattr(X, "n_features") and not hasattr(X, "shape") and not hasattr(X, "predict")
    if not own or hasattr(X, "sum_parts") or type(X).__module__.startswith("skdp."):
        return
    missing = [m for m in ("n_rows", "parts", "blocks") if not callable(getattr(X, m, None))]
    if missing:
        raise TypeError(f"A row source for {name} needs the methods {missing} too.")
    block = None
    with suppress(Exception):
        blocks = iter(X.blocks())
        block = next(blocks, None)
        getattr(blocks, "close", bool)()  # a generator may hold an open file
    shape, kind = getattr(block, "shape", ()), getattr(getattr(block, "dtype", None), "kind", "")
    if block is not None and (shape[1:] != (X.n_features,) or kind not in {*"fiub"}):
        raise ValueError(
            f"Blocks of a row source for {name} must be arrays or CSR arrays of numbers with "
            f"n_features={X.n_features!r} columns. Got a {type(block).__name__} of width "
            f"{list(shape[1:])}. For a data frame, yield frame.to_numpy()."
        )


def is_dask_array(X: Any) -> bool:
    """Whether X is a Dask array; Dask is not imported to find out."""
    return type(X).__module__.partition(".")[0] == "dask" and hasattr(X, "rechunk")


def is_paths(X: Any) -> bool:
    """Whether X is a list (or tuple) of paths."""
    listed = isinstance(X, (list, tuple)) and len(X) > 0
    return listed and all(isinstance(path, (str, os.PathLike)) for path in X)


def cuts(start: int, stop: int, n: int) -> list[tuple[int, int]]:
    """Cut a range into about `n` ranges."""
    edges = np.linspace(start, stop, max(1, n) + 1).astype(int)
    return [(int(a), int(b)) for a, b in pairwise(edges) if b > a]


def rows_at_once(n_features: int) -> int:
    """Return how many dense rows make a block that fits a cache."""
    d = max(1, n_features)
    enough = min(d, BLOCK // d)  # the d x d Gram matrix has to fit into the cache too
    return min(max(2 * CACHED // d, 16, enough), BLOCK_ROWS)


class _RangeOfRows:
    """Rows start to stop of a matrix."""

    def __init__(self, X: Any, start: int = 0, stop: int | None = None) -> None:
        self._X, self._range = X, (start, X.shape[0] if stop is None else stop)
        self.n_features = int(X.shape[1])
        self.dtype = X.dtype

    def n_rows(self) -> int:
        """Return the private number of rows."""
        return self._range[1] - self._range[0]


class DenseRows(_RangeOfRows):
    """Rows of a dense array or memory map; a map is never loaded whole."""

    sparse = False

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
            block = np.asarray(self._X[i : min(i + rows, self._range[1])])
            if block.dtype != np.float64:
                converted = scratch.shaped(block.shape)
                np.copyto(converted, block, casting="unsafe")
                block = converted
            yield block


def well_formed(matrix: Any) -> bool:
    """Whether the indices of a sparse matrix lie in its shape: others would read other memory."""
    if matrix.format == "lil":
        sizes = [list(map(len, lists)) for lists in (matrix.rows, matrix.data)]
        if sizes[0] != sizes[1] or len(sizes[0]) != matrix.shape[0]:
            return False
        matrix = matrix.tocsr()
    if matrix.format not in ("csr", "csc", "bsr", "coo"):
        return True
    coo = matrix.format == "coo"
    places = (matrix.coords,) if coo else (matrix.indices, matrix.indptr)
    values = np.broadcast_to(np.int8(0), matrix.data.shape)
    try:  # a new object, because the check may change its object
        getattr(type(matrix)((values, *places), shape=matrix.shape), "check_format", bool)()
    except ValueError:
        return False
    return True


def refuse_malformed(data: Any, name: str = "an estimator") -> None:
    """Raise if data are a sparse matrix that is not well formed."""
    if sp.issparse(data) and not well_formed(data):
        raise ValueError(f"{name} was passed a sparse matrix with indices outside of its shape.")


def in_64_bits(data: Any) -> Any:
    """Return a COO matrix, whose duplicates a check sums, or extended floats as 64-bit floats."""
    if sp.issparse(data) and data.format == "coo" and data.dtype.kind in "fiub" and data.ndim == 2:
        summed = data.astype(np.float64).tocsr()
        return summed if summed.nnz == data.nnz else type(summed)(without_duplicates(data))
    with np.errstate(over="ignore"):
        extended = isinstance(data, np.ndarray) and data.dtype.char == "g"
        return data.astype(np.float64, copy=False) if extended else data


def as_array(block: Any) -> NDArray[Any]:
    """Return numbers as an array; masked entries, and objects that are no numbers, become NaN.

    Their rows add nothing then: the content of one row must not end a fit or change other rows.
    """
    mask, values = np.ma.getmask(np.asanyarray(block)), np.asarray(block)
    if values.dtype.kind in "mM":  # which would become integers
        values = np.full(values.shape, math.nan)
    elif values.dtype.kind not in "fiub":  # one row can make all entries complex, or text
        values = np.asarray(np.frompyfunc(_as_number, 1, 1)(values.astype(object)), np.float64)
    return values if mask is np.ma.nomask else np.where(mask, np.nan, values)


def _as_number(value: Any) -> float:
    with suppress(Exception):
        if not isinstance(value, np.datetime64 | np.timedelta64):  # numpy casts them to numbers
            return float(value if not isinstance(value, complex) or value.imag else value.real)
    return math.nan


def _afresh(X: Any) -> Any:
    """Return the CSR rows as a new object without flags: those of a user's matrix may be wrong."""
    return sp.csr_array((X.data, X.indices, X.indptr), shape=X.shape)


def canonical(block: Any) -> Any:
    """Return the block without duplicate entries (explicit zeros are harmless to sums)."""
    block = _afresh(block)
    if not block.has_canonical_format:
        ordered = block.sorted_indices()
        block = ordered if ordered.has_canonical_format else without_duplicates(block, block.dtype)
    return block


def plain_block(block: Any) -> Any:
    """Return rows in a form for the row maps: a float64 array, or a CSR array without duplicates.

    A user-defined source may yield any format. Duplicate entries have to be summed before norms
    are computed: the norm of the stored parts is not the norm of the row.
    """
    if isinstance(block, np.ndarray):
        return as_array(block).astype(np.float64, copy=False)
    if sp.issparse(block):
        refuse_malformed(block, "a block")
        return canonical(sp.csr_array(in_64_bits(block).astype(np.float64, copy=False)))
    return block


class SparseRows(_RangeOfRows):
    """Rows of a CSR array whose flags are its own; duplicates are summed before all else."""

    sparse = _plain = True

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
        entries = BLOCK // 2  # a value and its index, and what is computed from them
        while start < stop:
            last = int(np.searchsorted(X.indptr, int(X.indptr[start]) + entries, side="right")) - 1
            end = min(max(last, start + 1), start + BLOCK_ROWS, stop)
            block = self._rows(start, end)
            yield block if X.has_canonical_format else canonical(block)
            start = end

    def _rows(self, i: int, j: int) -> Any:
        X, rows = self._X, sp.csr_array((j - i, self.n_features))
        a, b = X.indptr[i], X.indptr[j]
        # The constructor copies parts of larger arrays: numbers too, and indices of each new block.
        rows.data, rows.indices = X.data[a:b].astype(np.float64, copy=False), X.indices[a:b].copy()
        rows.indptr = X.indptr[i : j + 1] - a
        return rows


def row_source(X: Any) -> RowSource:
    """Wrap an array, memory map or sparse matrix as a source of row blocks; a source stays."""
    if is_source(X):
        return cast(RowSource, X)
    return SparseRows(_afresh(in_64_bits(X).tocsr())) if sp.issparse(X) else DenseRows(X)


def zero_rows(n: int, d: int, *, sparse: bool = False) -> Any:
    """Return a matrix of zeros that takes no memory: a query needs its shape alone."""
    return sp.csr_array((n, d)) if sparse else np.broadcast_to(np.zeros(()), (n, d))


def plain_blocks(source: RowSource) -> Iterator[Block]:
    """Yield the blocks of a source in a form for the row maps, whatever a user's source yields."""
    plain = "_plain" in vars(type(source))  # ours; a subclass may yield anything
    return source.blocks() if plain else map(plain_block, source.blocks())


def pieces_of(part: RowSource) -> Iterator[Block]:
    """Yield blocks of at most BLOCK_ROWS rows, a limit that user-defined sources need not know."""
    for block in plain_blocks(part):
        n = block.shape[0]
        for i in range(0, max(1, n), BLOCK_ROWS):
            yield block if n <= BLOCK_ROWS else block[i : i + BLOCK_ROWS]


def limbs_of(exact: FloatArray) -> FloatArray:
    """Return the two limbs of integers x, floor(x / 2**20) and the rest: sums of each fit int64."""
    high = np.floor(exact * 2.0**-LIMB)
    return np.stack([high, exact - high * 2.0**LIMB])


def _add_whole(total: NDArray[Any], part: NDArray[Any]) -> None:
    """Add integers held in floats to an integer total, slice by slice to save memory.

    If the total has twice as many numbers as the part, it holds the two limbs of each integer.
    """
    sums, values = total.reshape(-1, max(1, part.size)), np.ravel(part)  # there may be none
    for start in range(0, part.size, CACHED):
        piece = slice(start, start + CACHED)
        limbs = limbs_of(values[piece]) if len(sums) > 1 else values[piece]
        sums[:, piece] += limbs.astype(total.dtype)


def sum_of_part(
    part: RowSource, term: Callable[[Block], NDArray[Any]], shape: tuple[int, ...], dtype: str
) -> NDArray[Any]:
    """Return the sum of ``term(block)`` over one part, on the machine that holds it.

    Integers held in floats are added as floats while exact.
    """
    total: NDArray[Any] = np.zeros(shape, dtype)
    floats: NDArray[Any] | None = None
    rows = 0
    # A float warning would reveal private data; the gate's errstate does not apply to threads.
    with np.errstate(all="ignore"):
        for block in pieces_of(part):
            value = term(block)
            rows += block.shape[0]
            if value.dtype == total.dtype:
                total += value
            elif floats is None or rows > 2 * BLOCK_ROWS:
                if floats is not None:
                    _add_whole(total, floats)
                floats, rows = value, block.shape[0]
            else:
                floats += value
    if floats is not None:
        _add_whole(total, floats)
    return total


def checked_total(total: Any, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """Return the sum that a user-defined source made, or raise if its dtype or shape is wrong."""
    array: NDArray[Any] = np.asarray(total)
    if array.dtype != dtype or array.shape != shape:
        raise PrivacyError(
            f"sum_parts of a row source must return the sum of what `work` returned, {dtype} of "
            f"shape {shape}."
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
    dtype = "int64" if exact else "float64"
    work = partial(sum_of_part, term=term, shape=shape, dtype=dtype)
    if hasattr(source, "sum_parts"):
        return checked_total(source.sum_parts(work), shape, dtype)
    totals = [total for _, total in each_part(source, work, n_jobs)]
    return np.asarray(totals[0] if len(totals) == 1 else sum(totals, np.zeros(shape, dtype)))


def each_part(
    source: RowSource, work: Callable[[RowSource], Any], n_jobs: int | None
) -> list[tuple[RowSource, Any]]:
    """Return parts of the source and ``work(part)`` of each, made on `n_jobs` threads."""
    n_workers = effective_n_jobs(n_jobs)
    parts = [source] if n_workers == 1 else source.parts(n_workers) or [source]
    return list(zip(parts, in_threads(work, parts), strict=True))


def in_threads(work: Callable[[Any], Any], parts: Sequence[Any]) -> list[Any]:
    """Return ``work(part)`` of each, a thread for each."""
    if len(parts) == 1:
        return [work(parts[0])]
    # With more BLAS threads than one for each worker the workers would slow each other down. We do
    # not use joblib's threads, as joblib polls them every 10 ms: many passes take less than that.
    with one_blas_thread(), ThreadPoolExecutor(len(parts)) as pool:
        made = [pool.submit(copy_context().run, work, part) for part in parts]
    return [one.result() for one in made]


# Operations on the rows of one block, dense or CSR: norms, largest entries, scaling, finite rows.
#
# The result for a row depends on that row alone, bit by bit. So BLAS is not used: its rounding
# depends on the position of a row in its block.


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


def per_row(numbers: NDArray[Any], rows: Block) -> NDArray[Any]:
    """Repeat one number per row so that it broadcasts against the entries in `entrywise`."""
    if isinstance(rows, np.ndarray):
        return numbers[:, None]
    return np.repeat(numbers, np.diff(rows.indptr))


def _over_rows(ufunc: np.ufunc, values: NDArray[Any], rows: Any, of_none: Any) -> NDArray[Any]:
    """Reduce the stored entries of each CSR row, if it has any."""
    out, filled = np.full(rows.shape[0], of_none), np.flatnonzero(np.diff(rows.indptr))
    if filled.size:
        out[filled] = ufunc.reduceat(values, rows.indptr[filled])
    return out


def square_norms(rows: Block) -> FloatArray:
    """Return the squared norm of each row; it is exact for integer entries while below 2**53."""
    if isinstance(rows, np.ndarray):
        return row_squares(rows)
    return _over_rows(np.add, rows.data * rows.data, rows, 0.0)


def largest_entries(rows: Block, out: Any = None) -> FloatArray:
    """Largest absolute value of each row; `out` is memory for dense ones."""
    if isinstance(rows, np.ndarray):
        return np.asarray(np.abs(rows, out=out).max(axis=1, initial=0.0))
    return _over_rows(np.maximum, np.abs(rows.data), rows, 0.0)


def finite_rows(rows: Block) -> NDArray[np.bool_]:
    """Whether all entries of a row are finite."""
    if isinstance(rows, np.ndarray):
        finite = np.isfinite(rows)
        return np.ones(len(rows), bool) if finite.all() else np.asarray(finite.all(axis=1))
    return _over_rows(np.logical_and, np.isfinite(rows.data), rows, True)


def finite_only(rows: Block) -> Block:
    """Return the rows that have finite values only."""
    good = finite_rows(rows)
    return rows if good.all() else rows[good]


def where_rows(good: NDArray[np.bool_], rows: Block) -> Block:
    """Return rows with zeros in place of the bad ones."""
    if good.all():
        return rows
    return entrywise(lambda x: np.where(per_row(good, rows), x, 0.0), rows)


def scale_rows(rows: Block, factors: FloatArray) -> Block:
    """Multiply each row by its factor."""
    return entrywise(lambda x: x * per_row(factors, rows), rows)


def rows_times_powers(rows: Block, exponents: NDArray[Any], out: Any) -> Block:
    """Multiply each row by its power of two: what `ldexp` returns, in a fraction of the time.

    `out` is memory for dense rows.
    """
    if isinstance(rows, np.ndarray):
        return times_powers(rows, exponents, out)
    if np.all(np.abs(exponents) < 1022):
        return scale_rows(rows, np.ldexp(1.0, exponents))
    return entrywise(lambda x: np.ldexp(x, per_row(exponents, rows)), rows)


def scaled_to_integers(rows: Block, scale: float | FloatArray) -> Block:
    """Scale rows and round them, in place."""
    values = rows.data if sp.issparse(rows) else rows
    values *= scale
    rint(values)
    return rows


def column_sums(rows: Block) -> FloatArray:
    """Return the sum over rows, which is exact for the integer rows of a release."""
    return np.asarray(np.ones(rows.shape[0]) @ rows, np.float64)


def unpacked(rows: Block) -> Block:
    """Return nearly full CSR rows as an array, whose products are faster."""
    return rows.toarray() if sp.issparse(rows) and _full(rows.nnz, math.prod(rows.shape)) else rows


def _full(stored: Any, size: int) -> Any:
    return stored > 0.1 * size


def block_gram(rows: Block) -> FloatArray:
    """Return Z'Z of one block; a wide sparse one is multiplied in bands of columns, to save memory.

    Leading columns that are nearly full (columns may be sorted by their sums) are made dense first.
    A band is multiplied only with itself and later bands: Z'Z is symmetric.
    """
    rows = unpacked(rows)
    if not sp.issparse(rows):
        return np.asarray(rows.T @ rows)
    n, d = rows.shape
    gram = np.empty((d, d), rows.dtype)
    first = int(np.argmin(_full(np.bincount(rows.indices, minlength=d + 1), n)))
    if first:
        gram[:first] = rows[:, :first].toarray().T @ rows
        gram[first:, :first] = gram[:first, first:].T
        rows = rows[:, first:]
    if (d - first) ** 2 <= BLOCK // 2:
        gram[first:, first:] = _gram_of_pairs(rows)
        return gram
    columns, rest = rows.tocsc(), gram[first:, first:]
    width = max(1, min(BLOCK // max(1, d), (d - first) // 4))
    for start in range(0, d - first, width):
        band = slice(start, start + width)
        rest[band, start:] = dense(columns[:, band].T @ rows)
        rest[start:, band] = rest[band, start:].T
        rows = rows[:, width:]
    return gram


def _gram_of_pairs(rows: Block) -> FloatArray:
    """Return Z'Z of CSR rows by pairs of entries; zeros stand where a row ends before others."""
    d, lengths = rows.shape[1], np.diff(rows.indptr)
    data, columns = np.append(rows.data, 0.0), np.append(rows.indices, 0).astype(np.intp)
    which, sums = np.argsort(-lengths, kind="stable"), np.zeros((d, d))
    while which.size and lengths[which[0]]:
        place = np.arange(lengths[which[0]])[:, None]
        some, which = np.split(which, [max(1, CACHED // place.size**2)])
        at = np.where(place < lengths[some], rows.indptr[some] + place, -1)
        z, i, (a, b) = data[at], columns[at], np.tril_indices(len(at))
        np.add.at(sums.reshape(-1), (i[a] * d + i[b]).ravel(), (z[a] * z[b]).ravel())
    np.fill_diagonal(sums, sums.diagonal() / 2)
    return sums + sums.T


def cross_product(rows: Block, few: FloatArray) -> FloatArray:
    """Return Z'P of one block, for a matrix P of few columns.

    Dense blocks compute (P'Z)', or one column at a time: BLAS takes up to twice as long otherwise.
    """
    if sp.issparse(rows):
        return dense(rows.T @ few)
    if few.shape[1] < 4:
        return np.stack([column @ rows for column in few.T], axis=1)
    return np.asarray((few.T @ rows).T)


def without_duplicates(A: Any, dtype: Any = np.float64) -> Any:
    """Sum the duplicate entries of each matrix cell, in the order of their values.

    If they were summed in storage order, or in the order in which scipy sorts them, an entry of one
    cell could change the sum of another cell: 1e16 + 1 - 1e16 is 0 or 1.
    """
    rows, columns = (entries := sp.coo_array(A)).coords
    data, cells = entries.data.astype(np.float64), rows.astype(np.int64) * A.shape[1] + columns
    order = slice(None) if (np.diff(cells) > 0).all() else np.lexsort((data, cells))
    data, cells = data[order], cells[order]
    starts = np.flatnonzero(np.diff(cells, prepend=-1))
    with np.errstate(over="ignore", invalid="ignore"):  # a warning would reveal a cell
        sums = (np.add.reduceat(data, starts) if starts.size else data).astype(dtype)
    return sp.csr_array((sums, np.divmod(cells[starts], max(1, A.shape[1]))), shape=A.shape)
