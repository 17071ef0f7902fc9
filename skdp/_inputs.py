"""Rows as users hand them over: in memory, or in blocks larger than it.

Arrays and sparse matrices are checked by scikit-learn. Blocks (memory maps, files, Dask arrays,
sources of one's own) are not read before a release is paid for: their columns and dtype are
checked, and a row that is not finite contributes nothing.
"""

from functools import partial

import numpy as np
import scipy.sparse as sp
from sklearn.utils.validation import check_array, validate_data

from skdp._validation import FLOATS
from skdp.data.blocks import (
    DenseRows,
    is_dask_array,
    is_paths,
    is_source,
    plain_block,
    row_source,
)
from skdp.data.dask_rows import DaskRows, map_rows
from skdp.data.files import BlockFiles
from skdp.data.histories import binary_rows

# Of checks that add up all entries: a floating-point warning would tell of large ones.
QUIET = partial(np.errstate, over="ignore", invalid="ignore")
_DATES = "subtract a public date first and divide by a public unit, such as one day"


def checked(estimator, *data, **options):
    """Return what `validate_data` makes of data, with advice of our own where that would leak."""
    return advised(estimator, partial(validate_data, estimator), *data, **options)


def advised(estimator, check, *data, **options):
    """Return what a check of scikit-learn makes of data, in words that quote nothing.

    scikit-learn quotes a text that is no number, and names imputers that learn.
    """
    name = type(estimator).__name__
    if any(_holds_dates(part) for part in data):
        raise ValueError(f"{name} needs numbers, and found dates: {_DATES}.")
    text = (
        f"{name} needs numbers, and found text: encode categories by a public list first, with "
        "OneHotEncoder(categories=[...], handle_unknown='ignore') in a ColumnTransformer, beside "
        "PublicScaler for the numbers."
    )
    advice = {
        "could not convert string": text,
        "Cannot cast": text,  # of categories in a frame
        "Complex data not supported": f"Complex data not supported by {name}: pass real and "
        "imaginary parts as columns of their own.",
        "got 1D array instead": "Expected 2D array, got 1D array instead. Reshape your data: one "
        "row is X.reshape(1, -1), one column X.reshape(-1, 1).",
        "contains NaN": f"Input contains NaN, and {name} takes no missing values: fill them with "
        "public constants, with SimpleImputer(strategy='constant', fill_value=..., "
        "keep_empty_features=True). Means and medians of the data are private.",
    }
    try:
        with QUIET():
            return check(*data, **{"dtype": FLOATS} | options)
    except ValueError as error:
        said = next((words for cause, words in advice.items() if cause in str(error)), None)
        if said is None:
            raise
    raise ValueError(said)  # outside the except block: no context, which would hold the value


def _holds_dates(data):
    """Whether an array or a column of a frame has dates, which numpy would cast to numbers."""
    kinds = data.dtypes if hasattr(data, "columns") else [getattr(data, "dtype", None)]
    return any(getattr(kind, "kind", None) in ("M", "m") for kind in kinds)


def check_numbers(y, name="y"):
    """Return targets as an array; text would be quoted where it is cast, and its length told."""
    y = np.asarray(y)
    if y.dtype.kind not in "fiub":
        raise ValueError(
            f"{name} must hold numbers. Got values of type {y.dtype.type.__name__}: encode "
            f"categories by a public list first; of dates, {_DATES}."
        )
    return y


def is_memory_map(X):
    """Whether X is a 2-D memory map of numbers (others are left to scikit-learn's checks)."""
    return isinstance(X, np.memmap) and X.ndim == 2 and X.dtype.kind in "fiub" and X.size > 0


def as_blocks(X):
    """Return the source of rows that come in blocks, or None for rows in memory."""
    if is_source(X):
        return X
    if is_dask_array(X):
        return DaskRows(X)
    if is_paths(X):
        return BlockFiles(X)
    return DenseRows(X) if is_memory_map(X) else None


def check_block_columns(estimator, n_features, *, reset=True, **options):
    """Check what is public of blocks as scikit-learn checks an array of that width."""
    stand_in = np.empty((0, n_features))
    validate_data(estimator, stand_in, reset=reset, **options | {"ensure_min_samples": 0})


def check_rows(estimator, X, *, accept_sparse, **options):
    """Return the rows to fit as a source, which has `n_features`, `dtype` and `sparse`."""
    source = as_blocks(X)
    if source is None:
        return row_source(checked(estimator, X, accept_sparse=accept_sparse, **options))
    check_block_columns(estimator, source.n_features, **options)
    if getattr(source, "sparse", False) and not accept_sparse:
        raise TypeError(
            f"{type(estimator).__name__} needs dense data, and was passed sparse blocks. Use "
            "'.toarray()' on each block."
        )
    if getattr(source, "known_rows", None) == 0 and options.get("ensure_min_samples", 1):
        raise ValueError(
            f"Found array with 0 sample(s) while a minimum of 1 is required by "
            f"{type(estimator).__name__}."
        )
    return source


def float_dtype(source):
    """Return the dtype of what is computed from rows: float32 for float32, else float64."""
    return np.dtype(np.float32 if getattr(source, "dtype", None) == np.float32 else np.float64)


def map_blocks(estimator, X, source, compute, n_columns, dtype=None):
    """Apply a map of single rows to blocks; without `n_columns` it gives one value a row.

    A Dask array gives a lazy Dask array, a memory map an array, other blocks a generator.
    """
    check_block_columns(estimator, source.n_features, reset=False)
    dtype = float_dtype(source) if dtype is None else dtype
    if is_dask_array(X):
        return map_rows(X, compute, n_columns, dtype)
    if not hasattr(source, "blocks"):
        raise ValueError(
            f"{type(estimator).__name__} maps arrays, memory maps, lists of files, Dask arrays "
            f"and sources that have 'blocks': rows of a {type(X).__name__} stay where they are. "
            "Map each of its parts there."
        )
    found = (compute(block).astype(dtype, copy=False) for block in source.blocks())
    return np.concatenate(list(found)) if isinstance(X, np.memmap) else found


def refuse_blocks(estimator, X, reason):
    """Raise if X comes in blocks that are no array: it would be loaded whole, or not at all."""
    if is_source(X) or is_dask_array(X) or is_paths(X):
        raise ValueError(
            f"{type(estimator).__name__} needs X in memory (an array or a sparse matrix) {reason}. "
            f"Got {type(X).__name__}."
        )


def stacked_rows(X):
    """Return rows that come in blocks as one CSR array in memory; an array as it is."""
    if is_dask_array(X):
        blocks = [block.compute() for block in X.to_delayed().ravel()]
    elif (source := as_blocks(X)) is None or is_memory_map(X):
        return X
    elif hasattr(source, "blocks"):
        blocks = list(source.blocks())
    else:
        raise ValueError(f"rows of a {type(X).__name__} stay where they are.")
    return sp.vstack([sp.csr_array(plain_block(block)) for block in blocks], format="csr")


def check_matrix(estimator, X, reason, **options):
    """Return a matrix in memory, sparse ones as CSR, for units that are not rows."""
    refuse_blocks(estimator, X, reason)
    X = checked(estimator, X, **options)
    return X.tocsr() if sp.issparse(X) else X


def check_histories(R, name="R"):
    """Return a checked matrix of interactions as binary CSR rows."""
    R = check_array(R, accept_sparse="csr", ensure_all_finite=False, input_name=name)
    return binary_rows(R.astype(np.float64))


def checked_updates(rows, columns, deltas, shape):
    """Return places and numbers of updates, equally long."""
    i, j = _indices("rows", rows, shape[0]), _indices("columns", columns, shape[1])
    with QUIET():
        deltas = check_array(deltas, dtype=np.float64, ensure_2d=False, ensure_min_samples=0)
    deltas = np.atleast_1d(deltas)
    if not i.shape == j.shape == deltas.shape or deltas.ndim != 1:
        raise ValueError(
            "rows, columns and deltas must be one-dimensional and equally long. Got shapes "
            f"{i.shape}, {j.shape} and {deltas.shape}."
        )
    return i, j, deltas


def _indices(name, values, limit):
    """Return public places as int64; anything but integers in range is a ValueError."""
    index = np.atleast_1d(np.asarray(values))
    if index.size == 0:
        index = index.astype(np.int64)
    if index.dtype.kind not in "iu":
        raise ValueError(f"{name} must be integers. Got dtype {index.dtype}.")
    if index.size and not (index.min() >= 0 and index.max() < limit):
        raise ValueError(f"{name} must lie in [0, {limit}).")
    return index.astype(np.int64)
