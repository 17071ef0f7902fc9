"""Dask arrays and files as rows on Dask workers, and lazy maps of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp.data.blocks import AnyRows, RowSource, is_dask_array, is_source, row_source
from skdp.data.dask_parts import DaskParts, Lazy, Sealed
from skdp.data.files import BlockFiles

_FILE_BYTES = 2**27  # of one task on an npy file: bounds what a worker has mapped


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
    return [Lazy((graph, block.key)) for graph, block in pairs]


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
