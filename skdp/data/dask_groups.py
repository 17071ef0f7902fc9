"""Dask arrays in blocks of whole groups: one shuffle, before a fit that protects groups."""

from __future__ import annotations

import importlib
import zlib
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp.data.blocks import is_dask_array
from skdp.data.stored_rows import checked_array, whole_rows


def blocks_by_group(
    groups: Any, X: Any, *columns: Any, n_blocks: int | None = None
) -> tuple[Any, ...]:
    """Return Dask arrays in which all rows of a group lie in one block, on the workers.

    Nothing is computed before the arrays are used, and no label comes to the driver. Which block a
    group goes to follows from its label alone; sizes of blocks are unknown. Nothing is released:
    the arrays are as private as those that were given.

    Parameters
    ----------
    groups : dask.array.Array of shape (n_samples,)
        The group of each row, numbers or strings, in the blocks of X.
    X : dask.array.Array of shape (n_samples, n_features)
        The rows.
    *columns : dask.array.Array of shape (n_samples,) or (n_samples, n_targets)
        What else belongs to the rows, such as targets, in the same blocks.
    n_blocks : int or None, default=None
        How many blocks to make; None: as many as X has.

    Returns
    -------
    arrays : tuple of dask.array.Array
        The groups, X and the columns, in new blocks.

    Examples
    --------
    >>> import dask.array as da, numpy as np
    >>> from skdp import DPPCA
    >>> from skdp.data.dask_groups import blocks_by_group
    >>> rng = np.random.default_rng(0)
    >>> X = da.from_array(rng.standard_normal((4000, 3)), chunks=(500, 3))
    >>> groups = da.from_array(rng.integers(0, 900, 4000), chunks=500)
    >>> groups, X = blocks_by_group(groups, X)
    >>> pca = DPPCA(1, epsilon=4, privacy_unit="group", clip_norm=3.0)
    >>> pca.fit(X, groups=groups).components_.shape
    (1, 3)
    """
    arrays = (groups, checked_array(X), *columns)
    if not all(is_dask_array(array) for array in arrays):
        raise ValueError("'groups', X and the columns must be Dask arrays.")
    sizes = list(zip(*(array.chunks[0] for array in arrays), strict=False))
    unlike = any(len({size for size in row if size == size}) > 1 for row in sizes)
    if groups.ndim != 1 or unlike or any(array.numblocks[0] != len(sizes) for array in arrays):
        raise ValueError("'groups' (one label a row) and the columns need the blocks of X.")
    arrays = tuple(whole_rows(a, "an array") if a.ndim == 2 else a for a in arrays)
    n = arrays[1].numblocks[0] if n_blocks is None else int(n_blocks)
    dask: Any = importlib.import_module("dask")
    # With pure=False the keys of tasks are random, not hashes of private data.
    split, joined = (dask.delayed(f, pure=False) for f in (_split, _joined))
    blocks = zip(*(array.to_delayed().ravel().tolist() for array in arrays), strict=True)
    pieces = [split(n, *block) for block in blocks]
    moved = [joined([piece[i] for piece in pieces]) for i in range(n)]
    return tuple(_array(moved, i, array) for i, array in enumerate(arrays))


def _split(n: int, groups: Any, *columns: Any) -> list[tuple[Any, ...]]:
    """Split the rows of a block by the output block of their groups, whatever they are."""
    groups = np.asanyarray(groups)  # not asarray: masked labels have to stay masked
    if any(column.shape[0] != len(groups) for column in columns):  # a label that `fit` refuses
        none = tuple(column[:0] for column in (groups, *columns))
        return [(np.array([None]), *none[1:]), *[none] * (n - 1)]
    labels, codes = np.asarray(groups), np.arange(len(groups))
    if labels.dtype.kind != "O":  # objects of several types have no order
        labels, codes = np.unique(labels, return_inverse=True)
    goes = np.array([_place(label, n) for label in labels.tolist()], np.intp)[codes]
    rows = [np.flatnonzero(goes == i) for i in range(n)]
    return [(groups[r], *(column[r] for column in columns)) for r in rows]


def _place(label: Any, n: int) -> int:
    """Return the output block of a group; equal numbers of any type go to the same block."""
    label = label.item() if isinstance(label, np.generic) else label
    # What `fit` refuses (NaN, infinity, extended floats, huge integers) may raise in no task.
    if isinstance(label, int) or (isinstance(label, float) and label.is_integer()):
        label = hex(int(label))
    return zlib.crc32(repr(label).encode()) % n


def _joined(pieces: list[tuple[Any, ...]]) -> list[Any]:
    return [_stacked(parts) for parts in zip(*pieces, strict=True)]


def _stacked(parts: tuple[Any, ...]) -> Any:
    if sp.issparse(parts[0]):
        return sp.vstack(parts, format="csr")
    join: Any = np.ma.concatenate if any(map(np.ma.isMaskedArray, parts)) else np.concatenate
    return join([np.asanyarray(part) for part in parts])


def _array(moved: list[Any], place: int, like: Any) -> NDArray[Any]:
    da: Any = importlib.import_module("dask.array")
    blocks = [da.from_delayed(m[place], (np.nan, *like.shape[1:]), meta=like._meta) for m in moved]
    return da.concatenate(blocks, allow_unknown_chunksizes=True)  # type: ignore[no-any-return]
