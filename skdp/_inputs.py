"""Input checks: arrays, sparse matrices and blocks larger than memory, with targets and groups.

scikit-learn checks arrays and sparse matrices. Blocks (memory maps, files, Dask arrays,
user-defined sources) are not read before a release is paid for: only their number of columns and
dtype are checked, and a row that is not finite contributes nothing.
"""

import math
from functools import partial
from inspect import signature
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn import config_context
from sklearn.utils import assert_all_finite
from sklearn.utils.validation import check_array, check_X_y, column_or_1d, validate_data

from skdp import _validation
from skdp.data import blocks
from skdp.data.histories import binary_rows
from skdp.data.stored_rows import BlockFiles, DaskRows, map_rows, whole_rows
from skdp.data.units import GroupForm, GroupRows, Placed, groups_of, in_memory
from skdp.queries.entries import MatrixUnit
from skdp.queries.rows import RowQuery
from skdp.units import DEGREE, INTERVAL, NORM, UNITS, bound_of, offered, unit_of

# For checks that add up all entries: a floating-point warning would reveal that entries are large.
QUIET = partial(np.errstate, over="ignore", invalid="ignore")
_ENCODE = (
    "encode categories by a public list first, with OneHotEncoder(categories=[...], "
    "handle_unknown='ignore') in a ColumnTransformer."
)
_DATES = "subtract a public date from dates, and divide by a public unit, such as one day"
_NOT_ROWS = "Expected an array, a list or a data frame, and got None, one number, a dict or a set."
_MISSING = (
    "takes no missing values: fill them with public constants (ratings with 0), by SimpleImputer("
    "strategy='constant', fill_value=..., keep_empty_features=True). Means and medians of the "
    "data are private."
)


def checked(estimator, *data, **options):
    """Return the result of `validate_data`; error messages that would quote data are replaced."""
    return advised(estimator, partial(validate_data, estimator), *data, **options)


def advised(estimator: Any, check: Any, *data: Any, **options: Any) -> Any:
    """Run a check of scikit-learn, and replace its error messages by some that quote no data.

    scikit-learn quotes texts that are no numbers, and advises imputers, which learn from the data.
    `estimator` may also be the name of a function's argument.
    """
    name = estimator if isinstance(estimator, str) else type(estimator).__name__
    for part in data:
        _refuse_form(name, part)
    kinds = [_validation.columns_of(part, "OUST") for part in data]
    # Text in X comes first: a classifier takes text in y.
    texts = next((found or " in y" * i for i, found in enumerate(kinds) if found is not None), "")
    remedy = getattr(estimator, "_instead_of_text", _ENCODE)
    if name == "y" or (texts and kinds[0] is None):  # in y alone
        remedy = "pass numbers, or labels to a classifier."
    text = f"{name} needs numbers, and found text{texts}: {remedy}"
    advice = {
        # Categories in a frame cannot be cast; periods and intervals are objects.
        **dict.fromkeys(("could not convert string", "Cannot cast", "Period'", "Interval'"), text),
        "not compatible with arrays of bytes/strings": text,
        "int too large": f"{name} needs numbers that a float can hold, and found an integer beyond "
        "1.8e308: clip it by a public bound, or leave it out.",
        "Complex data": f"Complex data not supported by {name}: pass real and imaginary parts.",
        "got scalar": _NOT_ROWS,
        "got 1D array instead": "Expected 2D array, got 1D array instead. Reshape your data: one "
        "row is X.reshape(1, -1), one column X.reshape(-1, 1).",
        "Found array with dim 3": f"Found array with dim 3, and {name} takes one table: join a "
        "list of tables by pd.concat(tables) or np.vstack(tables).",
        "Expected unique column names": f"{name} needs distinct column names: rename columns of X.",
        "NAType'": f"Input has pd.NA among text or objects{texts}, and {name} {_MISSING}",
        "contains infinity": f"Input contains infinity, or a number beyond its dtype, and {name} "
        "takes finite numbers: clip it to public bounds first, with np.clip.",
        "y contains NaN": "Input y contains NaN: leave out rows that have no target.",
        "contains NaN": f"Input contains NaN, and {name} {_MISSING}",
    }
    try:
        with QUIET(), config_context(array_api_dispatch=False):  # arrays of numpy, whatever came
            return check(*map(blocks.in_64_bits, data), **{"dtype": _validation.FLOATS} | options)
    except (ValueError, TypeError, OverflowError) as error:
        message = f"{error}{error.__cause__}"  # which alone quotes bytes of no type
        if (said := next((a for cause, a in advice.items() if cause in message), None)) is None:
            raise
    raise ValueError(said)  # outside the except block: no context, which would hold the value


def _refuse_form(name, data):
    """Refuse input that a conversion to an array would hide: files, dates, masks, wrong indices."""
    _validation.refuse_files(name, data)
    if isinstance(data, dict | set) and not sp.issparse(data):  # DOK matrices were dicts
        raise ValueError(_NOT_ROWS)
    if isinstance(data, tuple) and sp.issparse(getattr(data, "matrix", None)):
        raise TypeError(f"{name} needs a matrix. Pass the attribute 'matrix' of this object.")
    if (dates := _validation.columns_of(data, "Mm")) is not None or _validation.holds_times(data):
        raise ValueError(f"{name} needs numbers, and found dates or times{dates or ''}: {_DATES}.")
    if isinstance(data, np.ma.MaskedArray) and np.ma.is_masked(data):
        raise ValueError(f"Input has masked entries, and {name} {_MISSING}")
    blocks.refuse_malformed(data, name)


def check_numbers(y: Any, name: str = "y") -> Any:
    """Return targets as an array; refuse text, which numpy's error would quote when casting it."""
    if sp.issparse(y):
        raise TypeError(f"{name} is sparse, but must be dense: use '.toarray()'.")
    y = blocks.in_64_bits(np.asarray(y))
    if y.dtype.kind not in "fiub":
        raise ValueError(
            f"{name} must hold numbers. Got values of type {y.dtype.type.__name__}: "
            + "pass labels to a classifier; " * (name == "y")
            + f"{_DATES}."
        )
    with QUIET():  # scikit-learn looks for NaN alone among objects
        assert_all_finite(y, input_name=name)
    return y


def check_targets(estimator, y, *, numbers=True, name="y"):
    """Return numbers next to the rows, one or several for each, or their labels, as an array."""
    if y is None:
        raise ValueError(f"{type(estimator).__name__} needs {name!r}. Got None.")
    check = partial(check_array, ensure_2d=False, input_name=name, estimator=estimator)
    _validation.refuse_files(type(estimator).__name__, y)
    y = advised(name, check, _validation.complete_labels(y), dtype="numeric" if numbers else None)
    return check_numbers(y, name) if numbers else y


def is_memory_map(X):
    """Whether X is a 2-D memory map of numbers (others are left to scikit-learn's checks)."""
    return isinstance(X, np.memmap) and X.ndim == 2 and X.dtype.kind in "fiub" and X.size > 0


def as_blocks(X):
    """Return the source of rows that come in blocks, or None for rows in memory."""
    if blocks.is_source(X):
        return X
    if blocks.is_dask_array(X):
        return DaskRows(X)
    if blocks.is_paths(X):
        return BlockFiles(X)
    return blocks.DenseRows(X) if is_memory_map(X) else None


def check_block_columns(estimator, n_features, *, reset=True, **options):
    """Check what is public of blocks as scikit-learn checks an array of that width."""
    stand_in = np.empty((0, n_features))
    validate_data(estimator, stand_in, reset=reset, **options | {"ensure_min_samples": 0})


def check_rows(estimator, X, *, accept_sparse, **options):
    """Return the rows to fit as a source, which has `n_features`, `dtype` and `sparse`."""
    blocks.check_source(type(estimator).__name__, X)
    source = as_blocks(X)
    if source is None:
        return blocks.row_source(checked(estimator, X, accept_sparse=accept_sparse, **options))
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
    if blocks.is_dask_array(X):
        return map_rows(X, compute, n_columns, dtype)
    if not hasattr(source, "blocks"):
        raise ValueError(
            f"{type(estimator).__name__} cannot transform the rows of a {type(X).__name__}, which "
            "has no 'blocks'. Transform each part on the machine that holds it, or pass an array, "
            "a memory map, a list of files or a Dask array."
        )
    found = (compute(block).astype(dtype, copy=False) for block in source.blocks())
    return np.concatenate(list(found)) if isinstance(X, np.memmap) else found


def mapped(estimator, X, compute, n_columns, dtype=None, *, accept_sparse="csr"):
    """Apply a public map to checked rows in memory, or to blocks where they are."""
    source = as_blocks(X)
    if source is None:
        return compute(split_rows(estimator, X, None, reset=False, accept_sparse=accept_sparse)[0])
    refuse_column(estimator)
    return map_blocks(estimator, X, source, compute, n_columns, dtype)


def refuse_blocks(estimator, X, reason):
    """Raise if X comes in blocks that are no array: it would be loaded whole, or not at all."""
    if blocks.is_source(X) or blocks.is_dask_array(X) or blocks.is_paths(X):
        raise ValueError(
            f"{type(estimator).__name__} needs X in memory (an array or a sparse matrix) {reason}. "
            f"Got {type(X).__name__}."
        )


def stacked_rows(X):
    """Return rows that come in blocks as one CSR array in memory; an array as it is."""
    if blocks.is_dask_array(X):
        parts = (block.compute() for block in X.to_delayed().ravel())
    elif (source := as_blocks(X)) is None or is_memory_map(X):
        return X
    elif hasattr(source, "blocks"):
        parts = source.blocks()
    else:
        raise ValueError(f"rows of a {type(X).__name__} stay where they are.")
    # Copied one by one: the next block may overwrite the last, whose rows would count twice.
    return sp.vstack([sp.csr_array(blocks.plain_block(block), copy=True) for block in parts], "csr")


def check_matrix(estimator, X, reason, **options):
    """Return a matrix in memory, sparse ones as CSR, for units that are not rows."""
    refuse_blocks(estimator, X, reason)
    X = checked(estimator, X, **options)
    return X.tocsr() if sp.issparse(X) else X


def check_histories(R, name="R"):
    """Return a checked matrix of interactions as binary CSR rows."""
    options = {"accept_sparse": "csr", "ensure_all_finite": False, "dtype": np.float64}
    return binary_rows(advised(name, check_array, R, input_name=name, **options))


def checked_updates(rows, columns, deltas, shape):
    """Return row indices, column indices and values of updates, of equal length."""
    i, j = _indices("rows", rows, shape[0]), _indices("columns", columns, shape[1])
    options = {"dtype": np.float64, "ensure_2d": False, "ensure_min_samples": 0}
    deltas = advised("deltas", check_array, np.atleast_1d(deltas), **options)
    if not i.shape == j.shape == deltas.shape or deltas.ndim != 1:
        raise ValueError(
            "rows, columns and deltas must be one-dimensional and equally long. Got shapes "
            f"{i.shape}, {j.shape} and {deltas.shape}."
        )
    return i, j, deltas


def _indices(name, values, limit):
    """Return public places as int64; anything but integers in range is a ValueError."""
    index = np.atleast_1d(np.asanyarray(values))
    if index.size == 0:
        index = index.astype(np.int64)
    if index.dtype.kind not in "iu" or np.ma.is_masked(index):
        raise ValueError(f"{name} must be integers, and none masked. Got dtype {index.dtype}.")
    if index.size and not (index.min() >= 0 and index.max() < limit):
        raise ValueError(f"{name} must lie in [0, {limit}).")
    return np.asarray(index).astype(np.int64)


# Rows with targets and groups, in memory or in blocks: what of them is public, checked first.
# A record is a row with its target, so neighbours agree in whether X and y have equal length: an
# error may state that they do not. It may not state how many rows there are.


_UNEQUAL = "have inconsistent numbers of samples (how many is private)"


def as_columns(y):
    """Return targets as float64 columns."""
    y = blocks.as_array(y)
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
    y = _validation.complete_labels(y)
    check = partial(validate_data, estimator) if reset else partial(check_X_y, estimator=estimator)
    X, y = advised(estimator, check, X, y, accept_sparse="csr", **options)
    return in_memory(X, y=check_numbers(y) if numbers else np.asarray(y))


def in_blocks(estimator, X, y, groups=None, *, numbers, multi_output=False):
    """Return rows in blocks with targets (and groups), which are in memory or the same blocks."""
    if y is None:
        raise ValueError(
            f"This {type(estimator).__name__} estimator requires y to be passed, but the target y "
            "is None."
        )
    companions = _companions(estimator, X, "csr")
    several = numbers and multi_output

    def targets(y):
        y = check_targets(estimator, y, numbers=numbers)
        return y if several else column_or_1d(y, warn=True)

    columns = {"y": companions.column("y", y, targets, (1, 2) if several else (1,))}
    if numbers and columns["y"].dtype.kind not in "fiub":
        raise ValueError("y must hold numbers.")
    if groups is not None:
        columns["groups"] = companions.column("groups", groups, _validation.check_labels, (1,))
    return Placed(companions.source, columns)


def _companions(estimator, X, accept_sparse):
    """Return the checked blocks of X, which other columns must match."""
    source, name = check_rows(estimator, X, accept_sparse=accept_sparse), type(estimator).__name__
    return _Companions(name, type(X).__name__, source, _lengths(name, X, source))


def _lengths(name, X, source):
    """Return the rows of each block, in their order; NaN where they are not known."""
    if isinstance(source, (BlockFiles, blocks.DenseRows, blocks.SparseRows)):
        return (source.n_rows(),)
    if isinstance(source, DaskRows) and getattr(source, "in_order", True):
        return source.lengths
    raise ValueError(
        f"{name} takes rows in memory, memory maps, lists of files, Dask arrays and DaskRows of "
        "files. A row source has no known order of rows, so y cannot be matched to them. Got "
        f"{type(X).__name__}."
    )


class _Companions(NamedTuple):
    """The blocks of X, with public or unknown numbers of rows, that other columns must match."""

    name: str
    kind: str
    source: Any
    lengths: tuple

    def column(self, what, column, check, dimensions):
        """Return a checked column of as many rows; Dask arrays are not read."""
        if blocks.is_dask_array(column):
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
                f"{self.name} takes a Dask array {what} with a Dask array X only. Got "
                f"{self.kind}: pass {what} in memory."
            )
        if column.ndim not in dimensions:
            raise ValueError(
                f"{what} should be a 1d array, got a Dask array of {column.ndim} dimensions."
            )
        column = whole_rows(column, what) if column.ndim == 2 else column
        # How many blocks there are is compared later, where both are cut.
        pairs = zip(self.lengths, column.chunks[0], strict=False)
        if any(a != b for a, b in pairs if a == a and b == b):
            raise ValueError(
                f"X and {what} {_UNEQUAL}. {what} needs the blocks of X: "
                f"{what}.rechunk((X.chunks[0],))."
            )
        return column


# The unit "group": all rows that `groups` or a column of X gives one name.


class GroupUnitMixin:
    """Protects one row, or all rows of one group (`privacy_unit`)."""

    __metadata_request__fit = {"groups": True}
    _privacy_units = offered("row", "group")

    def get_metadata_routing(self):
        """Return what metadata the methods take: `groups`, for the unit "group" without a column.

        Returns
        -------
        routing : MetadataRequest
            The requests of this estimator.
        """
        request = super().get_metadata_routing()
        if not self._by_group or self.group_column is not None:
            request.fit.add_request(param="groups", alias=False)
        return request

    @property
    def _by_group(self):
        return self._protects.of_groups

    # -- parameters ------------------------------------------------------------------------

    def _check_unit(self):
        """Check what belongs to the unit."""
        _validation.check_option(self, "privacy_unit", tuple(self._privacy_units))
        if self.group_column is not None and not self._by_group:
            raise ValueError(
                f"{type(self).__name__} takes 'group_column' with privacy_unit='group' only. Got "
                f"privacy_unit={self.privacy_unit!r}."
            )

    def _total_is_public(self):
        """Whether the number of rows, or of groups, is public."""
        return self.adjacency == "replace"

    # -- rows --------------------------------------------------------------------------------

    def _check_given(self, groups):
        """Refuse groups that do not go with the unit: a guarantee for rows is not one for them."""
        name = type(self).__name__
        if not self._by_group and groups is not None:
            raise ValueError(
                f"{name} was passed 'groups', but privacy_unit={self.privacy_unit!r} does not "
                "protect them: set privacy_unit='group', or leave them out."
            )
        if self._by_group and groups is None and self.group_column is None:
            raise ValueError(
                f"{name} with privacy_unit='group' needs the group of each row: pass 'groups' to "
                "fit. A Pipeline or GridSearchCV needs set_config(enable_metadata_routing=True)."
            )
        if groups is not None and self.group_column is not None:
            raise ValueError("Both 'groups' and 'group_column' were given. Use one of them.")

    def _checked_rows(self, X, groups, **options):
        """Return the rows to fit as a source, by group for the unit "group"."""
        self._check_given(groups)
        if not self._by_group:
            return check_rows(self, X, **options)
        if as_blocks(X) is not None and not is_memory_map(X):
            refuse_column(self)
            check = _validation.check_labels
            companions = _companions(self, X, options["accept_sparse"])
            columns = {"groups": companions.column("groups", groups, check, (1,))}
            return groups_of(Placed(companions.source, columns), GroupForm(check))
        X, groups = split_rows(self, X, groups, reset=True, **options)
        return GroupRows(X, {}, np.unique(labels_of(groups, X.shape[0]), return_inverse=True)[1])

    def _checked_records(self, X, y, groups, *, numbers):
        """Return checked rows and targets, and for the unit "group" the group of each row."""
        self._check_given(groups)
        if not self._by_group:
            return check_placed(self, X, y, numbers=numbers)
        if as_blocks(X) is not None:
            refuse_column(self)
            return in_blocks(self, X, y, groups, numbers=numbers, multi_output=True)
        if self.group_column is not None:
            X, groups = without_column(self, X, reset=True)
        placed = check_placed(self, X, y, numbers=numbers, reset=self.group_column is None)
        return Placed(
            placed.rows, {**placed.columns, "groups": labels_of(groups, placed.rows.n_rows())}
        )

    # -- queries -----------------------------------------------------------------------------

    def _unit_query(self, source):
        """Return the query over rows, alone or by group, as they came."""
        return self._asked(RowQuery, source, clip_norm=math.inf)

    def _asked(self, kind, source, **bounds):
        """Return a query of the unit; say if delta is too large for a public number of units."""
        unit = {"by_group": self._by_group, "adjacency": self.adjacency}
        query = kind(source, n_jobs=self.n_jobs, **unit, **bounds)
        if self._total_is_public():
            self._warn_of_delta(query.n_rows, self.privacy_unit)
        return query


def groups_of_batch(X, groups, seen):
    """Return the rows of a batch by group, and the labels of all batches so far.

    A group that came in an earlier batch is an error. The error depends on the label of that group
    alone, and reveals nothing about other groups.
    """
    labels, codes = np.unique(groups, return_inverse=True)
    if (kind := labels.dtype.kind) in "mM":  # the next batch may have another unit of time
        labels = labels.astype(f"{kind}8[us]")
    names = [name_of_label(label) for label in labels.tolist()]
    if names and seen and names[0][0] != seen[0][0]:
        raise ValueError("Groups are text in one batch and numbers in another: use astype(str).")
    if not set(seen).isdisjoint(names):
        raise ValueError(
            "A group of this batch came in an earlier one, and would count twice. (This message "
            "does not name it.) This batch was not used. Put all rows of a group into one batch."
        )
    return GroupRows(X, {}, codes), sorted({*seen, *names})


def name_of_label(label):
    """Return a text of the label of a group, the same for equal numbers of any type."""
    if isinstance(label, str):
        return "s" + label
    if isinstance(label, (bool, int)) or (isinstance(label, float) and label.is_integer()):
        return f"n{int(label)}"
    return f"{'b' if isinstance(label, bytes) else 'n'}{label!r}"


def refuse_column(estimator):
    """Refuse a column of groups in rows that come in blocks."""
    if getattr(estimator, "group_column", None) is not None:
        raise ValueError(
            f"{type(estimator).__name__} takes 'group_column' only for X in memory. For blocks, "
            "files and Dask arrays pass 'groups' to fit."
        )


def split_rows(estimator, X, groups, *, reset, **options):
    """Return checked rows in memory without the column of groups, and the groups."""
    if getattr(estimator, "group_column", None) is not None:
        rows, groups = without_column(estimator, X, reset=reset)
        return advised(estimator, check_array, rows, input_name="X", **options), groups
    if is_memory_map(X):
        return check_rows(estimator, X, reset=reset, **options).whole(), groups
    return checked(estimator, X, reset=reset, **options), groups


def without_column(estimator, X, *, reset):
    """Return rows as they came without the column of groups, and that column."""
    if not hasattr(X, "shape"):
        X = np.asarray(X, dtype=object)  # ids keep their digits; features are cast later
    if len(X.shape) != 2:
        raise ValueError(
            f"Expected 2D array, got {len(X.shape)}D array instead: 'group_column' names a "
            "column of X."
        )
    validate_data(estimator, X, skip_check_array=True, reset=reset)
    return split_users(X, estimator.group_column)


def labels_of(groups, n):
    """Return the checked group of each of n rows."""
    groups = _validation.check_labels(groups)
    if len(groups) != n:
        raise ValueError(f"X and groups {_UNEQUAL}.")
    return groups


def _is_index(column):
    return isinstance(column, (int, np.integer)) and not isinstance(column, bool)


def split_users(X, column):
    """Return (X without the user column, users); X may be a data frame."""
    if (names := _validation.column_names(X)) is not None:
        select = X.select if hasattr(type(X), "select") else X.__getitem__
        name = column
        if column not in names and _is_index(column) and -len(names) <= column < len(names):
            name = names[column]
        if name not in names:
            raise ValueError(f"'group_column' {column!r} is not a column of X.")
        return select([other for other in names if other != name]), np.asarray(X[name])
    if not _is_index(column):
        raise ValueError(
            f"'group_column' is {column!r}, and X is no data frame: give the index of a column, or "
            "let the previous step keep names, with set_output(transform='pandas')."
        )
    if X.ndim != 2 or not -X.shape[1] <= column < X.shape[1]:
        raise ValueError(f"'group_column' {column!r} is not a column of X.")
    kept = np.delete(np.arange(X.shape[1]), column)
    if sp.issparse(X):
        blocks.refuse_malformed(X)
        X = blocks.in_64_bits(X).tocsc()
        return X[:, kept].tocsr(), X[:, [column]].toarray().ravel()
    return X[:, kept], X[:, column]


# What neighbours differ in under the units of entries, and the bound of each unit.


def matrix_unit(estimator: Any, kind: Any = MatrixUnit, **more: Any) -> Any:
    """Return what neighbours differ in, for the units of a matrix of a public shape."""
    name, bound = estimator.privacy_unit, unit_of(estimator).bound
    if bound is NORM:
        more["sensitivity"] = float(bound_of(estimator))
    elif bound is INTERVAL:
        more["low"], more["high"] = map(float, bound_of(estimator))
    return kind(name, estimator.adjacency, **more)


def has_cells(estimator):
    """Whether entries are there or not, up to their weight: cells that can be flipped."""
    return unit_of(estimator).bound is INTERVAL and bound_of(estimator)[0] == 0


def check_unit_bound(estimator: Any) -> None:
    """Check that the bound is of the kind that the unit has; its square must not overflow."""
    unit, given = estimator.privacy_unit, estimator.unit_bound
    bound = unit_of(estimator).bound
    if given is None:
        return
    if bound is None and hasattr(estimator, "clip_norm"):
        raise ValueError(
            f"'unit_bound' bounds nothing under privacy_unit={unit!r}, whose rows are bounded by "
            f"'clip_norm'. Leave it out. Got {given!r}."
        )
    bound = bound or NORM  # of the longest row, where it has no parameter of its own
    if bound is INTERVAL:
        _validation.check_bounds(estimator, "unit_bound")
        return
    if np.ndim(given):
        raise ValueError(f"'unit_bound' of privacy_unit={unit!r} is {bound.said}. Got {given!r}.")
    if bound is DEGREE:
        _validation.check_int(estimator, "unit_bound", 1)
    else:
        _validation.check_size(estimator, "unit_bound")


def public_units(estimator, shape, session):
    """Return the public number and name of the units that delta is compared with.

    For entries and edges it is the number of rows: most entries are empty, and the number of
    nonempty ones is private. Units that bound a norm have no number of units, and the comparison
    does not matter for delta=0.
    """
    counted = unit_of(estimator).counted if session.budget.delta or session.open else ""
    return shape[0] if counted else 0, counted


def check_clip_norm_read(estimator):
    """Refuse a `clip_norm` that the privacy unit does not use: it would bound nothing."""
    unit = estimator._protects
    default = signature(type(estimator)).parameters["clip_norm"].default
    if not unit.reads_clip_norm and estimator.clip_norm not in (default, math.inf):
        readers = [name for name in estimator._privacy_units if UNITS[name].reads_clip_norm]
        units = " and ".join(map(repr, readers)).replace(" and ", ", ", len(readers) - 2)
        raise ValueError(
            f"'clip_norm' bounds nothing under privacy_unit={unit.name!r}; it is read by "
            f"{units}. Leave it out. Got {estimator.clip_norm!r}."
        )
