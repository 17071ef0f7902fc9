"""Rows that are larger than memory: files, and Dask arrays on workers."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple, cast

import numpy as np
import scipy.sparse as sp
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from skdp._limits import BLOCK
from skdp.data import blocks
from skdp.data.views import ZippedRows
from skdp.exceptions import PrivacyError

# Rows in files: npy blocks, memory-mapped one at a time, and npz blocks of CSR matrices.


_FORMS = "npy files of 2-D arrays of numbers, or npz files of CSR matrices (scipy.sparse.save_npz)"
_PARSER = threading.Lock()  # for headers: Python 3.11's parser may fail in several threads


class _Piece(NamedTuple):
    """Rows start to stop of one file."""

    path: str
    start: int
    stop: int
    sparse: bool


class _Header(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    sparse: bool


def _opened_file(path: str) -> Any:
    """Map an npy file, or open an archive; nothing is unpickled."""
    with _PARSER:
        return np.load(path, mmap_mode="r", allow_pickle=False)


def _read_header(path: str) -> _Header:
    """Return shape and dtype of a file; its rows are not read, and never unpickled."""
    found = _opened_file(path)
    if not isinstance(found, NpzFile):
        return _Header(found.shape, found.dtype, False)
    with found as archive:
        if "format" not in archive or archive["format"].item() not in (b"csr", "csr"):
            raise ValueError("not a CSR matrix")
        shape, form = tuple(int(size) for size in archive["shape"]), np.lib.format
        assert archive.zip is not None
        with archive.zip.open("data.npy") as member:  # of which only the header is read
            old = form.read_magic(member) == (1, 0)
            read = form.read_array_header_1_0 if old else form.read_array_header_2_0
            return _Header(shape, read(member)[2], True)


def _checked_header(path: str) -> _Header:
    if not os.path.exists(path):  # if it is no path, it may be a private text
        shown = repr(path) if path.endswith((".npy", ".npz")) else "a text in X"
        raise ValueError(f"{shown} is no existing npy or npz file. Map texts by HashingVectorizer.")
    try:
        header = _read_header(path)
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise ValueError(f"The block {path!r} cannot be read. Blocks are {_FORMS}.") from error
    if len(header.shape) != 2 or header.dtype.kind not in "fiub":
        raise ValueError(
            f"The block {path!r} has {len(header.shape)} dimensions of dtype {header.dtype}. "
            f"Blocks are {_FORMS}."
        )
    return header


class BlockFiles:
    """Rows in a list of files, read block by block in each pass; never all at once.

    A file of a 2-D array (npy) is memory-mapped; one of a CSR matrix (npz) is loaded whole, one
    file at a time and thread. Files of one list are all of one kind.

    Parameters
    ----------
    paths : list of path
        The files. Only their headers are read here.
    """

    def __init__(self, paths: Sequence[str | os.PathLike[str]]) -> None:
        names = [os.fspath(path) for path in paths]
        headers = [_checked_header(name) for name in names]
        first = headers[0]
        for name, header in zip(names, headers, strict=True):
            if header.shape[1] != first.shape[1] or header.sparse != first.sparse:
                raise ValueError(
                    f"The block {name!r} has {header.shape[1]} columns (sparse: {header.sparse}), "
                    f"{names[0]!r} has {first.shape[1]} (sparse: {first.sparse}). All blocks need "
                    "the same columns and kind."
                )
        self._pieces = [
            _Piece(name, 0, header.shape[0], header.sparse)
            for name, header in zip(names, headers, strict=True)
        ]
        self.n_features = int(first.shape[1])
        self.dtype = np.result_type(*(header.dtype for header in headers))
        self.sparse = first.sparse
        self.known_rows = self.n_rows()

    def _holding(self, pieces: list[_Piece]) -> BlockFiles:
        part = object.__new__(BlockFiles)
        part._pieces = pieces
        part.n_features, part.dtype, part.sparse = self.n_features, self.dtype, self.sparse
        return part

    def n_rows(self) -> int:
        """Return the private number of rows."""
        return sum(piece.stop - piece.start for piece in self._pieces)

    def files(self) -> list[BlockFiles]:
        """Return one source for each file."""
        return [self._holding([piece]) for piece in self._pieces]

    def whole(self) -> Any:
        """Return the rows of one file: a memory map, or a CSR matrix."""
        (piece,) = self._pieces
        return _loaded(piece)[piece.start : piece.stop]

    def chunks(self) -> list[BlockFiles]:
        """Cut into sources of bounded size (CSR files are not cut)."""
        row = self.n_features * self.dtype.itemsize
        out = []
        for piece in self._pieces:
            n = -(-(piece.stop - piece.start) * row // (8 * BLOCK))
            out += self._ranges(piece, 1 if piece.sparse else n)
        return [self._holding([piece]) for piece in out]

    @staticmethod
    def _ranges(piece: _Piece, n: int) -> list[_Piece]:
        return [
            piece._replace(start=start, stop=stop)
            for start, stop in blocks.cuts(piece.start, piece.stop, n)
        ]

    def parts(self, n: int) -> list[blocks.RowSource]:
        """Cut into about `n` sources: npy files by rows, npz files as they are."""
        held: list[list[_Piece]] = [[] for _ in range(n)]
        for i, piece in enumerate(self._pieces):
            for j, cut in enumerate(self._ranges(piece, 1 if piece.sparse else n)):
                held[(i + j) % n].append(cut)
        return [self._holding(pieces) for pieces in held if pieces]

    def blocks(self) -> Iterator[blocks.Block]:
        """Yield the rows of one file after the other, in blocks of bounded memory."""
        for piece in self._pieces:
            make = blocks.SparseRows if piece.sparse else blocks.DenseRows
            yield from make(_loaded(piece), piece.start, piece.stop).blocks()


def _loaded(piece: _Piece) -> Any:
    """Map an npy file, or load a CSR matrix."""
    if not piece.sparse:
        return _opened_file(piece.path)
    matrix = sp.load_npz(piece.path)
    matrix.check_format(full_check=True)  # a bad index would read other memory
    return matrix


# Rows on Dask workers: a task returns the integer sum of a part, and the driver adds the noise.
#
# A task clips and rounds the rows of its block and returns one integer array. Further tasks add
# these arrays in a tree, so the driver receives the total alone. It draws the noise once, after it
# has the total: a task that runs twice (a lost worker, a retry) returns the same integers again,
# which is no second release.
#
# Logs and task names must not reveal private data either. So a task never raises (Dask would log
# its arguments and send the message to the driver), its key is random (Dask's own keys are hashes
# of data), and the block is loaded inside the task wherever the graph allows it.


_FAN_IN = 8  # sums that one task of the tree adds
Work = Callable[[Any], Any]


def _dask() -> Any:
    import dask

    return dask


class Sealed:
    """A wrapper around an argument, so that Dask neither traverses, nor hashes, nor prints it."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "<sealed>"


class Lazy(Sealed):
    """The graph of one block, run inside the task that uses the block."""

    def load(self) -> Any:
        """Return the block."""
        graph, key = self.value
        return _dask().get(graph, key)


def _opened(item: Any) -> Any:
    if isinstance(item, Lazy):
        return item.load()
    return item.value if isinstance(item, Sealed) else item


def _run(items: list[Any], build: Sealed, work: Sealed) -> Any:
    """Return ``work(part)`` of one part, or None if anything fails.

    The error stays in the task, as its message could hold private values.
    """
    try:
        with np.errstate(all="ignore"):
            part = build.value(*[_opened(item) for item in items])
            return None if part is None else work.value(part)
    except Exception:
        return None


def _if_all(*values: Any) -> tuple[Any, ...] | None:
    """Return values, or None if any of them could not be computed."""
    return None if any(value is None for value in values) else values


def _add(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(a + b)  # also of two numbers: a task must return an array


def same(value: Any) -> Any:
    """Return it as it is."""
    return value


def _broadcast(work: Work) -> Any:
    """Send a function, and the public arrays in it, to all workers once, if a cluster is in use."""
    sealed, owner = Sealed(work), getattr(_dask().base.get_scheduler(), "__self__", None)
    send = getattr(owner, "scatter", None)
    return send(sealed, broadcast=True, hash=False) if send else sealed


def _failure(kind: str) -> PrivacyError:
    reason = f" ({kind})" if kind else ""
    return PrivacyError(
        f"A block of rows could not be read or summed{reason}. Where and why is withheld: a "
        "worker's message may hold private values. Nothing was released by this step. Compute "
        "one block by hand to see what is wrong; if workers were killed, give them more memory "
        "or smaller blocks."
    )


def _kind_of_cluster(error: Exception) -> str:
    """Return the class name of an error of Dask; other errors ("") may depend on the data."""
    home = type(error).__module__.partition(".")[0]
    return type(error).__name__ if home in ("dask", "distributed", "asyncio", "concurrent") else ""


def _computed(make: Callable[[], Any], forget: Callable[[], None]) -> Any:
    """Compute a total; replace an error of the cluster by one without tasks, keys or values.

    Before a second attempt the caches are dropped: they may have been lost with a worker.
    """
    kind, late = "", False
    for _ in range(2):  # a public matrix that all its workers lost is sent again
        total = None
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Sending large graph", UserWarning)
                (total,) = _dask().compute(make())
        except Exception as error:
            kind = _kind_of_cluster(error)
            late = isinstance(error, TimeoutError)  # since Python 3.11 clusters raise the built-in
        if total is not None:
            return total
        forget()
        if not late and "Cancelled" not in kind and "Timeout" not in kind:
            break  # only what was lost with a worker is worth sending again
    raise _failure(kind)  # outside the except block: no context, which would hold the message


def _tree(parts: list[Any], combine: Callable[[Any, Any], Any]) -> Any:
    run = _dask().delayed(_run, pure=False)
    join = Sealed(_if_all), Sealed(partial(reduce, combine))
    while len(parts) > 1:
        parts = [run(parts[i : i + _FAN_IN], *join) for i in range(0, len(parts), _FAN_IN)]
    return parts[0]


class DaskParts:
    """Parts on workers, each made of some blocks; sums over them (a `RemoteRows`).

    Parameters
    ----------
    parts : list of lists
        The blocks of each part: Dask objects, or what `lazy_blocks` returns.
    build : callable
        Makes a `RowSource` of the blocks of one part, on the worker.
    n_features : int
        Number of columns, public.
    """

    def __init__(
        self, parts: list[list[Any]], build: Callable[..., blocks.RowSource], n_features: int
    ) -> None:
        self._parts = parts
        self._build = build
        self.n_features = n_features

    def __getstate__(self) -> None:
        """Refuse to be pickled: a task with this object would contain the graph of all rows."""
        raise PrivacyError("a source of rows cannot be pickled")

    def n_rows(self) -> int:
        """Return the private number of rows (of users, where a part is made of users)."""
        return int(self.sum_parts(_count))

    def _tasks(self, work: Any) -> list[Any]:
        run, build = _dask().delayed(_run, pure=False), Sealed(self._build)
        return [run(items, build, work) for items in self._blocks()]

    def _blocks(self) -> list[list[Any]]:
        return self._parts

    def forget(self) -> None:
        """Drop what is cached on workers: it is computed again when it is needed."""

    def sum_parts(self, work: Work) -> NDArray[Any]:
        """Return the sum of ``work(part)``, made on the workers."""
        return np.asarray(
            _computed(lambda: _tree(self._tasks(_broadcast(work)), _add), self.forget)
        )

    def reduce(self, work: Work, combine: Callable[[Any, Any], Any], finish: Work) -> Any:
        """Combine ``work(part)`` on the workers; only ``finish`` of the result is sent back."""

        def make() -> Any:
            whole = _tree(self._tasks(_broadcast(work)), combine)
            return _dask().delayed(_run, pure=False)([whole], Sealed(same), Sealed(finish))

        return _computed(make, self.forget)

    def keep(self, make: Work) -> _CachedThere:
        """Cache ``make(part)`` of each part on its worker."""
        return _CachedThere(self, make)

    def zipped(self, kept: _CachedThere) -> DaskParts:
        """Return the parts with columns that were cached for them."""
        return _DaskZipped(self, kept)


def _count(part: blocks.RowSource) -> NDArray[np.int64]:
    return np.asarray(part.n_rows(), np.int64)


class _CachedThere(DaskParts):
    """Numbers of single rows, cached on the workers; computed again only if they were lost."""

    def __init__(self, source: DaskParts, make: Work) -> None:
        super().__init__([], same, source.n_features)
        self._source = source
        self._make = make
        self._held: list[list[Any]] | None = None
        self._work: Any = None  # lost numbers are made again from it

    def _blocks(self) -> list[list[Any]]:
        if self._held is None:
            self._work = _broadcast(self._make)
            self._held = [[kept] for kept in _dask().persist(*self._source._tasks(self._work))]
        return self._held

    def forget(self) -> None:
        """Compute all of it again from the rows."""
        self._held = None
        self._source.forget()


def _side_by_side(*items: Any, build: Callable[..., blocks.RowSource]) -> blocks.RowSource:
    """Join one part and its columns, on its worker."""
    return ZippedRows(build(*items[:-1]), items[-1])


class _DaskZipped(DaskParts):
    """Parts with columns that are cached on the workers."""

    def __init__(self, source: DaskParts, kept: _CachedThere) -> None:
        super().__init__([], partial(_side_by_side, build=source._build), source.n_features)
        self._source, self._kept = source, kept

    def _blocks(self) -> list[list[Any]]:
        return [
            [*items, *kept]
            for items, kept in zip(self._source._blocks(), self._kept._blocks(), strict=True)
        ]

    def forget(self) -> None:
        """Drop what is cached on workers."""
        self._kept.forget()


# Dask arrays and files as rows on Dask workers, and lazy maps of them.


def lazy_blocks(X: Any) -> list[Any]:
    """Return the blocks of a Dask array, each as a graph to be run inside one task.

    Where blocks share tasks, or lie on the workers already, they stay Dask objects.
    """
    delayed: list[Any] = X.to_delayed().ravel().tolist()
    whole = dict(delayed[0].dask)  # to_delayed gives all blocks one graph, optimised as arrays are
    graphs = [_needed(whole, block.key) for block in delayed]
    alone = len(set().union(*graphs)) == sum(map(len, graphs))
    distributed: Any = sys.modules.get("distributed")  # else there can be no futures
    if not alone or (distributed is not None and distributed.futures_of(X)):
        return delayed
    return [Lazy((graph, block.key)) for graph, block in zip(graphs, delayed, strict=True)]


def _needed(graph: dict[Any, Any], key: Any) -> dict[Any, Any]:
    """Return the tasks that one key needs."""
    from dask import optimization

    tools: Any = optimization
    return dict(tools.cull(graph, [key])[0])


def rows_of_block(block: Any, n_features: int) -> blocks.RowSource:
    """Return the rows of one block, an array or sparse matrix, on its worker."""
    if blocks.is_source(block):
        return cast(blocks.RowSource, block)
    rows = block if sp.issparse(block) else blocks.as_array(block)
    bad = rows.ndim != 2 or rows.shape[1] != n_features
    if bad or (sp.issparse(rows) and not blocks.well_formed(rows)):
        raise ValueError("a block has another shape than its array")
    return blocks.row_source(rows)


def checked_array(X: Any) -> Any:
    """Return a Dask array of rows, whole in each block; raise if it is none."""
    if X.ndim != 2:
        raise ValueError(f"Expected 2D array, got {X.ndim}D array instead: a Dask array of rows.")
    if X.dtype.kind not in "fiub":
        raise ValueError(f"A Dask array of rows must hold numbers. Got dtype {X.dtype}.")
    return whole_rows(X, "a Dask array")


def whole_rows(X: Any, what: str) -> Any:
    """Return a Dask array whose rows are whole in each block."""
    if X.shape[1] != X.shape[1]:
        raise ValueError(f"The number of columns of {what} must be known.")
    return X.rechunk({1: -1}) if X.numblocks[1] > 1 else X


class DaskRows(DaskParts):
    """Rows on Dask workers, for the row-query estimators.

    Estimators convert a Dask array to it. For files, construct it yourself: a plain list of paths
    is read by threads of this process.

    Parameters
    ----------
    rows : dask.array.Array, list of paths or list of RowSource
        A Dask array of rows (chunk sizes may be unknown); or npy and npz files that every worker
        can read under these paths; or sources that pickle, one for each task.
    """

    def __init__(self, rows: Any) -> None:
        if blocks.is_dask_array(rows):
            X = checked_array(rows)
            items, self.dtype = lazy_blocks(X), X.dtype
            self.sparse = sp.issparse(X._meta)
            self.known_rows = X.shape[0]
            self.lengths: tuple[float, ...] = tuple(X.chunks[0])  # of the blocks; NaN: not known
            n_features = int(X.shape[1])
        else:
            sources = list(rows) if all(map(blocks.is_source, rows)) else BlockFiles(rows).chunks()
            if not sources:
                raise ValueError("DaskRows needs at least one block. Got none.")
            items = [Sealed(source) for source in sources]
            self.dtype = getattr(sources[0], "dtype", np.dtype(np.float64))
            self.sparse = getattr(sources[0], "sparse", False)
            self.in_order = all(isinstance(s, BlockFiles) for s in sources)  # in every pass
            # Rows of other sources than files are counted after the charge.
            self.lengths = tuple(s.n_rows() if type(s) is BlockFiles else np.nan for s in sources)
            self.known_rows = sum(self.lengths)
            n_features = sources[0].n_features
        build = partial(rows_of_block, n_features=n_features)
        super().__init__([[item] for item in items], build, n_features)

    def items(self) -> list[Any]:
        """Return the block of each part."""
        return [item for (item,) in self._parts]

    def n_rows(self) -> int:
        """Return the private number of rows; counted on the workers where it is not known."""
        return int(self.known_rows) if self.known_rows == self.known_rows else super().n_rows()


def _apply(block: Any, project: Sealed) -> NDArray[Any]:
    return np.asarray(project.value(block))


def map_rows(
    X: Any, project: Callable[[Any], NDArray[Any]], n_columns: int | None, dtype: Any
) -> Any:
    """Return the Dask array of ``project(block)``, lazily; chunk sizes may be unknown.

    Without `n_columns` there is one number for each row.
    """
    X = checked_array(X)
    columns = () if n_columns is None else (n_columns,)
    return X.map_blocks(
        _apply,
        Sealed(project),
        dtype=dtype,
        chunks=(X.chunks[0], *((width,) for width in columns)),
        drop_axis=[] if columns else [1],
        meta=np.empty((0, *columns), dtype),
    )
