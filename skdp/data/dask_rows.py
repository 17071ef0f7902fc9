"""Rows on Dask workers: one task for each block, an integer sum back, noise at home.

Clipping and rounding happen inside the block's task; tasks return one integer array each, which
tasks add up in a tree, so the driver receives the total alone. It draws the noise once, after the
total has come: a task that runs twice (a lost worker, a retry) makes the same integers again, and
is no second release.

What a task says is not private data either: a task never raises (Dask would log its arguments, and
send the message home), its key is random (Dask's own keys are hashes of data), and the block is
made inside the task wherever the graph allows it.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp.data.blocks import AnyRows, RowSource, is_source, row_source
from skdp.data.files import BlockFiles
from skdp.exceptions import PrivacyError

__all__ = [
    "DaskParts",
    "DaskRows",
    "Sealed",
    "checked_array",
    "is_dask_array",
    "lazy_blocks",
    "map_rows",
    "rows_of_block",
]

_FAN_IN = 8  # sums that one task of the tree adds
_ATTEMPTS = 3  # a public matrix that all its workers lost is sent again
_SMALL_BYTES = 2**14  # of a function that travels with each task: a broadcast is a round trip
_FILE_BYTES = 2**27  # of one task on an npy file: bounds what a worker has mapped
Work = Callable[[Any], Any]


def _dask() -> Any:
    import dask

    return dask


def is_dask_array(X: Any) -> bool:
    """Whether X is a Dask array; Dask is not imported to find out."""
    return type(X).__module__.partition(".")[0] == "dask" and hasattr(X, "rechunk")


class Sealed:
    """An argument that Dask neither looks into, nor hashes, nor prints."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "<sealed>"


class _Lazy(Sealed):
    """The graph of one block, run inside the task that uses the block."""

    def load(self) -> Any:

        graph, key = self.value
        return _dask().get(graph, key)


def _opened(item: Any) -> Any:
    if isinstance(item, _Lazy):
        return item.load()
    return item.value if isinstance(item, Sealed) else item


def _run(items: list[Any], build: Sealed, work: Sealed) -> Any:
    """Return what `work` makes of one part, or None if anything fails: the reason stays here."""
    try:
        with np.errstate(all="ignore"):
            part = build.value(*[_opened(item) for item in items])
            return None if part is None else work.value(part)
    except Exception:
        return None


def _combine(values: list[Any], combine: Sealed) -> Any:
    try:
        if any(value is None for value in values):
            return None
        total = values[0]
        for value in values[1:]:
            total = combine.value(total, value)
        return total
    except Exception:
        return None


def _add(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(a + b)


def _same(value: Any) -> Any:
    return value


def _client() -> Any:
    """Return the client of the cluster in use, or None (threads, processes, synchronous)."""
    owner = getattr(_dask().base.get_scheduler(), "__self__", None)
    return owner if hasattr(owner, "scatter") else None


def _pickled(value: Any) -> bytes:
    cloudpickle: Any = importlib.import_module("cloudpickle")  # comes with Dask
    data: bytes = cloudpickle.dumps(value)
    return data


def _broadcast(work: Work) -> Any:
    """Send a function, and the public arrays in it, to all workers once; small ones by task."""
    sealed, client = Sealed(work), _client()
    if client is None or len(_pickled(sealed)) < _SMALL_BYTES:
        return sealed
    return client.scatter(sealed, broadcast=True, hash=False)


def _failure(kind: str) -> PrivacyError:
    reason = f" ({kind})" if kind else ""
    return PrivacyError(
        f"A block of rows could not be read or summed{reason}. Where and why is withheld: a "
        "worker's message may hold private values. Nothing was released by this step. Compute "
        "one block by hand to see what is wrong; if workers were killed, give them more memory "
        "or smaller blocks."
    )


def _computed(make: Callable[[], Any]) -> Any:
    """Compute a total; the error of a cluster becomes one that holds no task, key or value."""
    kind = ""
    for _ in range(_ATTEMPTS):
        total = None
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Sending large graph", UserWarning)
                (total,) = _dask().compute(make())
        except Exception as error:
            kind = type(error).__name__
        if total is not None:
            return total
        if "Cancelled" not in kind and "Timeout" not in kind:
            break  # only what was lost with a worker is worth sending again
    raise _failure(kind)  # outside the except block: no context, which would hold the message


def _tree(parts: list[Any], combine: Callable[[Any, Any], Any]) -> Any:

    join = _dask().delayed(_combine, pure=False)
    sealed = Sealed(combine)
    while len(parts) > 1:
        parts = [join(parts[i : i + _FAN_IN], sealed) for i in range(0, len(parts), _FAN_IN)]
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
        self, parts: list[list[Any]], build: Callable[..., RowSource], n_features: int
    ) -> None:
        self._parts = parts
        self._build = build
        self.n_features = n_features

    def __getstate__(self) -> None:
        """Refuse to travel: a task that carried this would carry the graph of all rows."""
        raise PrivacyError("a source of rows cannot be pickled")

    def n_rows(self) -> int:
        """Return the private number of rows (of users, where a part is made of users)."""
        return int(self.sum_parts(_count))

    def _tasks(self, work: Any) -> list[Any]:

        run, build = _dask().delayed(_run, pure=False), Sealed(self._build)
        return [run(items, build, work) for items in self._parts]

    def sum_parts(self, work: Work) -> NDArray[Any]:
        """Return the sum of ``work(part)``, made on the workers."""
        return np.asarray(_computed(lambda: _tree(self._tasks(_broadcast(work)), _add)))

    def reduce(self, work: Work, combine: Callable[[Any, Any], Any], finish: Work) -> Any:
        """Combine ``work(part)`` on the workers; only ``finish`` of the whole comes home."""

        def make() -> Any:
            return self._finished(_tree(self._tasks(_broadcast(work)), combine), finish)

        return _computed(make)

    @staticmethod
    def _finished(whole: Any, finish: Work) -> Any:

        return _dask().delayed(_run, pure=False)([whole], Sealed(_same), Sealed(finish))

    def keep(self, make: Work) -> _KeptThere:
        """Keep ``make(part)`` of each part on its worker."""
        return _KeptThere(self, make)


def _count(part: RowSource) -> NDArray[np.int64]:
    return np.asarray(part.n_rows(), np.int64)


class _KeptThere:
    """Arrays of single rows, on the workers: made once, made again only if they were lost."""

    def __init__(self, source: DaskParts, make: Work) -> None:
        self._source = source
        self._make = make
        self._held: list[Any] | None = None
        self._work: Any = None  # lost arrays are made again from it

    def _arrays(self) -> list[Any]:

        if self._held is None:
            self._work = _broadcast(self._make)
            self._held = list(_dask().persist(*self._source._tasks(self._work)))
        held, self._held = self._held, None
        return held

    def sum(self, work: Work) -> NDArray[Any]:
        """Return the sum of ``work(array)``."""
        held: list[Any] = []

        def total() -> Any:
            held[:] = self._arrays()  # taken: a failed attempt makes them again
            run, sent = _dask().delayed(_run, pure=False), _broadcast(work)
            return _tree([run([array], Sealed(_same), sent) for array in held], _add)

        answer = np.asarray(_computed(total))
        self._held = held
        return answer


# -- blocks ------------------------------------------------------------------------------------


def lazy_blocks(X: Any) -> list[Any]:
    """Return the blocks of a Dask array, each as a graph to be run inside one task.

    Where blocks share tasks, or lie on the workers already, they stay Dask objects.
    """
    blocks: list[Any] = X.to_delayed().ravel().tolist()
    whole = dict(blocks[0].dask)  # to_delayed gives all blocks one graph, optimised as arrays are
    graphs = [_needed(whole, block.key) for block in blocks]
    alone = len(set().union(*graphs)) == sum(map(len, graphs))
    if not alone or _holds_futures(X):
        return blocks
    pairs = zip(graphs, blocks, strict=True)
    return [_Lazy((graph, block.key)) for graph, block in pairs]


def _needed(graph: dict[Any, Any], key: Any) -> dict[Any, Any]:
    """Return the tasks that one key needs."""
    from dask import optimization

    tools: Any = optimization
    return dict(tools.cull(graph, [key])[0])


def _holds_futures(X: Any) -> bool:
    distributed: Any = sys.modules.get("distributed")  # else there can be no futures
    return distributed is not None and bool(distributed.futures_of(X))


def rows_of_block(block: Any, n_features: int) -> RowSource:
    """Return the rows of one block, an array or sparse matrix, on its worker."""
    if is_source(block):
        source: RowSource = block
        return source
    rows = block if sp.issparse(block) else np.asarray(block)
    if rows.ndim != 2 or rows.shape[1] != n_features:
        raise ValueError("a block has another shape than its array")
    return row_source(rows)


class _RowsOfBlock:
    def __init__(self, n_features: int) -> None:
        self.n_features = n_features

    def __call__(self, block: Any) -> RowSource:
        return rows_of_block(block, self.n_features)


def checked_array(X: Any) -> Any:
    """Return a Dask array of rows, whole in each block; raise if it is none."""
    if X.ndim != 2:
        raise ValueError(f"Expected 2D array, got {X.ndim}D array instead: a Dask array of rows.")
    if X.dtype.kind not in "fiub":
        raise ValueError(f"A Dask array of rows must hold numbers. Got dtype {X.dtype}.")
    if X.shape[1] != X.shape[1]:
        raise ValueError("The number of columns of a Dask array must be known.")
    return X.rechunk({1: -1}) if X.numblocks[1] > 1 else X


class DaskRows(DaskParts):
    """Rows on Dask workers, for the row-query estimators.

    Estimators make one of a Dask array by themselves. Of files it is made by hand: a list of paths
    alone is read by threads of this process.

    Parameters
    ----------
    rows : dask.array.Array, list of paths or list of RowSource
        A Dask array of rows (chunk sizes may be unknown); or npy and npz files that every worker
        can read under these paths; or sources that pickle, one for each task.
    """

    def __init__(self, rows: Any) -> None:
        if is_dask_array(rows):
            X = checked_array(rows)
            items, self.dtype = lazy_blocks(X), X.dtype
            self.sparse = sp.issparse(X._meta)
            self.known_rows = X.shape[0]
            self.lengths: tuple[float, ...] = tuple(X.chunks[0])  # of the blocks; NaN: not known
            n_features = int(X.shape[1])
        else:
            sources = _sources(rows)
            items = [Sealed(source) for source in sources]
            self.dtype = getattr(sources[0], "dtype", np.dtype(np.float64))
            self.sparse = getattr(sources[0], "sparse", False)
            self.lengths = tuple(_length(source) for source in sources)
            self.known_rows = sum(self.lengths)
            n_features = sources[0].n_features
        super().__init__([[item] for item in items], _RowsOfBlock(n_features), n_features)

    def items(self) -> list[Any]:
        """Return the block of each part."""
        return [item for (item,) in self._parts]

    def n_rows(self) -> int:
        """Return the private number of rows; counted on the workers where it is not known."""
        return int(self.known_rows) if self.known_rows == self.known_rows else super().n_rows()


def _length(source: Any) -> float:
    """Return the rows of a file; those of other sources are counted when that is paid for."""
    return source.n_rows() if isinstance(source, BlockFiles) else float("nan")


def _sources(rows: Sequence[Any]) -> list[Any]:
    sources: list[AnyRows]
    if all(is_source(part) for part in rows):
        sources = list(rows)
    else:
        sources = list(BlockFiles(rows).chunks(_FILE_BYTES))
    if not sources:
        raise ValueError("DaskRows needs at least one block. Got none.")
    return sources


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
