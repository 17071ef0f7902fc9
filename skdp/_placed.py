"""Rows with targets and groups, in memory or in blocks: what of them is public, checked first.

A record is a row with its target, so that neighbours agree in whether X and y have equally many: it
may be said that they have not. How many they are may not.
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils.validation import check_array, check_X_y, column_or_1d

from skdp._inputs import QUIET, advised, as_blocks, check_numbers, check_rows, checked
from skdp._labels import as_labels, check_labels
from skdp.data.blocks import DenseRows, SparseRows, is_dask_array
from skdp.data.dask_rows import DaskRows
from skdp.data.files import BlockFiles
from skdp.data.places import Placed, in_memory

_UNEQUAL = "have inconsistent numbers of samples (withheld)"


def as_columns(y):
    """Return targets as float64 columns."""
    y = np.asarray(y)
    return y.astype(np.float64, copy=False).reshape(len(y), n_columns(y))


def n_columns(y):
    """Return the number of columns of targets."""
    return 1 if y.ndim == 1 else int(y.shape[1])


def check_placed(estimator, X, y, *, numbers, multi_output=True, reset=True):
    """Return checked rows and targets: numbers (of several outputs), or labels.

    Without `reset` the columns of X are not noted: they are what is left of those that were given.
    """
    if as_blocks(X) is not None:
        return in_blocks(estimator, X, y, numbers=numbers, multi_output=multi_output)
    options = {"multi_output": multi_output, "y_numeric": True} if numbers else {}
    y = y if numbers else as_labels(y)
    if reset:
        X, y = checked(estimator, X, y, accept_sparse="csr", **options)
    else:
        check = partial(check_X_y, estimator=estimator)
        X, y = advised(estimator, check, X, y, accept_sparse="csr", **options)
    return in_memory(X, y=check_numbers(y) if numbers else np.asarray(y))


def groups_in_blocks(estimator, X, groups, *, accept_sparse):
    """Return rows in blocks with their groups, in memory or in like blocks."""
    source = check_rows(estimator, X, accept_sparse=accept_sparse)
    name = type(estimator).__name__
    beside = _Beside(name, type(X).__name__, source, _lengths(name, X, source))
    return Placed(source, {"groups": beside.column("groups", groups, check_labels, (1,))})


def in_blocks(estimator, X, y, groups=None, *, numbers, multi_output=False):
    """Return rows in blocks with their targets (and groups), each in memory or in like blocks."""
    name = type(estimator).__name__
    if y is None:
        raise ValueError(
            f"This {name} estimator requires y to be passed, but the target y is None."
        )
    source = check_rows(estimator, X, accept_sparse="csr")
    beside = _Beside(name, type(X).__name__, source, _lengths(name, X, source))
    several = numbers and multi_output

    def targets(y):
        dtype, y = ("numeric", y) if numbers else (None, as_labels(y))
        with QUIET():
            y = check_array(y, ensure_2d=False, dtype=dtype, input_name="y", estimator=estimator)
        return y if several else column_or_1d(y, warn=True)

    columns = {"y": beside.column("y", y, targets, (1, 2) if several else (1,))}
    if numbers and columns["y"].dtype.kind not in "fiub":
        raise ValueError("y must hold numbers.")
    if groups is not None:
        columns["groups"] = beside.column("groups", groups, check_labels, (1,))
    return Placed(source, columns)


def _lengths(name, X, source):
    """Return the rows of each block, in their order; NaN where they are not known."""
    if isinstance(source, (BlockFiles, DenseRows, SparseRows)):
        return (source.n_rows(),)
    if isinstance(source, DaskRows):
        return source.lengths
    raise ValueError(
        f"{name} takes rows in memory, memory maps, lists of files, Dask arrays and DaskRows: y "
        "follows the order of the rows, which a row source does not promise. Got "
        f"{type(X).__name__}."
    )


class _Beside(NamedTuple):
    """What a column is compared with: rows in blocks of public (or unknown) lengths."""

    name: str
    kind: str
    source: Any
    lengths: tuple

    def column(self, what, column, check, dimensions):
        """Return a checked column of as many rows; Dask arrays are not read."""
        if is_dask_array(column):
            return self._lazy(what, column, dimensions)
        column = check(column)
        n = sum(self.lengths)
        if n != n:
            raise ValueError(
                f"{self.name} cannot tell which rows of {what} belong to which block: the blocks "
                f"of X have unknown sizes. Pass {what} as a Dask array in the same blocks, or call "
                "X.compute_chunk_sizes()."
            )
        if len(column) != n:
            raise ValueError(f"X and {what} {_UNEQUAL}.")
        return column

    def _lazy(self, what, column, dimensions):
        if not isinstance(self.source, DaskRows):
            raise ValueError(
                f"{self.name} takes a Dask array {what} beside a Dask array X only. Got "
                f"{self.kind}: pass {what} in memory."
            )
        if column.ndim not in dimensions:
            raise ValueError(
                f"{what} should be a 1d array, got a Dask array of {column.ndim} dimensions."
            )
        if column.ndim == 2:
            if column.shape[1] != column.shape[1]:
                raise ValueError(f"The number of columns of {what} must be known.")
            column = column.rechunk({1: -1})
        # How many blocks there are is compared later, where both are cut.
        pairs = zip(self.lengths, column.chunks[0], strict=False)
        if any(a != b for a, b in pairs if a == a and b == b):
            raise ValueError(
                f"X and {what} {_UNEQUAL}. {what} needs the blocks of X: "
                f"{what}.rechunk((X.chunks[0],))."
            )
        return column
