"""Rows with targets, in memory or in blocks: what of them is public, checked before a release.

A record is a row with its target, so that neighbours agree in whether X and y have equally many: it
may be said that they have not. How many they are may not.
"""

from typing import Any, NamedTuple

import numpy as np
from sklearn.utils.validation import check_array, column_or_1d, validate_data

from skdp._inputs import as_blocks, check_rows, float_dtype
from skdp._validation import FLOATS
from skdp.data.blocks import DenseRows, SparseRows, row_source
from skdp.data.dask_rows import DaskRows, is_dask_array
from skdp.data.files import BlockFiles
from skdp.data.labelled_blocks import (
    RecordForm,
    records_in_files,
    records_in_memory,
    records_on_workers,
)

__all__ = ["CheckedRecords", "as_columns", "check_records"]


class CheckedRecords(NamedTuple):
    """Rows as a source, and their targets: in memory, or a Dask array in the same blocks."""

    source: Any
    y: Any

    @property
    def dtype(self):
        """Dtype of the coefficients."""
        return float_dtype(self.source)

    @property
    def n_targets(self):
        """Columns of y."""
        return 1 if self.y.ndim == 1 else int(self.y.shape[1])

    def encoded(self, encode, n_targets):
        """Return the records, whose targets are ``encode(y)``, made where they are."""
        if isinstance(self.source, DaskRows):
            form = RecordForm(encode, self.source.n_features, n_targets)
            return records_on_workers(self.source, self.y, form)
        if isinstance(self.source, BlockFiles):
            return records_in_files(self.source, encode(self.y))
        return records_in_memory(self.source, encode(self.y))


def as_columns(y):
    """Return targets as float64 columns."""
    y = np.asarray(y)
    return y.astype(np.float64, copy=False).reshape(len(y), -1)


def check_records(estimator, X, y, *, numbers):
    """Return checked rows and targets: numbers (of several outputs), or labels."""
    source = as_blocks(X)
    if source is None:
        options = {"multi_output": True, "y_numeric": True} if numbers else {}
        X, y = validate_data(estimator, X, y, accept_sparse="csr", dtype=FLOATS, **options)
        return CheckedRecords(row_source(X), np.asarray(y))
    name = type(estimator).__name__
    if y is None:
        raise ValueError(
            f"This {name} estimator requires y to be passed, but the target y is None."
        )
    source = check_rows(estimator, source, accept_sparse="csr")
    lengths = _lengths(name, X, source)
    if is_dask_array(y):
        return CheckedRecords(source, _lazy_targets(name, X, source, lengths, y, numbers))
    y = _targets(estimator, y, numbers)
    n = sum(lengths)
    if n != n:
        raise ValueError(
            f"{name} cannot tell which targets belong to which block: the blocks of X have unknown "
            "sizes. Pass y as a Dask array in the same blocks, or call X.compute_chunk_sizes()."
        )
    if len(y) != n:
        raise ValueError(_UNEQUAL)
    return CheckedRecords(source, y)


_UNEQUAL = "X and y have inconsistent numbers of samples (withheld)."


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


def _targets(estimator, y, numbers):
    dtype = "numeric" if numbers else None
    y = check_array(y, ensure_2d=False, dtype=dtype, input_name="y", estimator=estimator)
    return y if numbers else column_or_1d(y, warn=True)


def _lazy_targets(name, X, source, lengths, y, numbers):
    if not isinstance(source, DaskRows):
        raise ValueError(
            f"{name} takes a Dask array y beside a Dask array X only. Got {type(X).__name__}: pass "
            "y in memory."
        )
    if y.ndim not in ((1, 2) if numbers else (1,)):
        raise ValueError(f"y should be a 1d array, got a Dask array of {y.ndim} dimensions.")
    if numbers and y.dtype.kind not in "fiub":
        raise ValueError(f"y must hold numbers. Got dtype {y.dtype}.")
    if y.ndim == 2:
        if y.shape[1] != y.shape[1]:
            raise ValueError("The number of columns of y must be known.")
        y = y.rechunk({1: -1})
    pairs = zip(lengths, y.chunks[0], strict=False)  # how many blocks there are: checked later
    if any(a != b for a, b in pairs if a == a and b == b):
        raise ValueError(f"{_UNEQUAL} y needs the blocks of X: y.rechunk((X.chunks[0],)).")
    return y
