"""Parameter checks in scikit-learn's wording: numbers, bounds of columns, labels and classes.

They are always on, whatever scikit-learn's configuration.
"""

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from numbers import Integral, Real
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from sklearn import config_context
from sklearn.utils.validation import check_array

from skdp._limits import LARGEST_SIZE, SMALLEST_SIZE, FloatArray

__all__ = ["ColumnBounds", "Seed", "Split"]

FLOATS = [np.float64, np.float32]  # dtypes that a fit keeps


def refuse_value(estimator: Any, name: str, expected: str, value: Any) -> NoReturn:
    """Raise the error of a parameter that is not what is expected."""
    raise ValueError(
        f"The {name!r} parameter of {type(estimator).__name__} must be {expected}. "
        f"Got {value!r} instead."
    )


def is_real(value: Any) -> bool:
    """Whether this is a real number that a float can hold, no truth value."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        return not math.isnan(float(value))
    except OverflowError:  # an int beyond the largest float
        return False


def _is_int(value, low):
    return isinstance(value, Integral) and not isinstance(value, bool) and value >= low


def check_count(name: str, value: Any, low: int) -> int:
    """Return an integer argument of at least `low`."""
    if not _is_int(value, low):
        raise ValueError(f"{name!r} must be an int of at least {low}. Got {value!r} instead.")
    return int(value)


def check_real(estimator: Any, name: str, low, high, *, closed="neither", also=()) -> Any:
    """Return a float parameter in the interval (or one of the strings `also`).

    `closed` says which ends belong to it: "neither", "left", "right" or "both". NaN, booleans and
    strings are errors.
    """
    value = getattr(estimator, name)
    if isinstance(value, str) and value in also:
        return value
    left = "[" if closed in ("left", "both") else "("
    right = "]" if closed in ("right", "both") else ")"
    expected = f"a float in the range {left}{float(low)}, {float(high)}{right}"
    if also:
        expected += f" or a str among {sorted(also)}"
    number = float(value) if is_real(value) else math.nan  # a float32 would overflow near the ends
    above = number >= low if left == "[" else number > low
    below = number <= high if right == "]" else number < high
    if not (above and below):
        refuse_value(estimator, name, expected, value)
    return number


def check_size(estimator: Any, name: str, also: Any = ()) -> Any:
    """Return a bound on what a unit adds, whose powers are finite and not 0."""
    return check_real(estimator, name, SMALLEST_SIZE, LARGEST_SIZE, closed="both", also=also)


def check_int(estimator, name, low, *, also=(), none=False, parts=False):
    """Return an integer parameter of at least `low` (or None, or one of the strings `also`).

    An error mentions fractions too, if there may be `parts`.
    """
    value = getattr(estimator, name)
    if (none and value is None) or (isinstance(value, str) and value in also):
        return value
    if not _is_int(value, low):
        extra = " or a float in (0, 1)" * parts + " or None" * none
        extra += f" or a str among {sorted(also)}" if also else ""
        refuse_value(estimator, name, f"an int in the range [{low}, inf){extra}", value)
    return int(value)


def check_option(estimator, name, options, otherwise=""):
    """Return a string parameter among `options`; `otherwise` names other allowed values."""
    value = getattr(estimator, name)
    if not isinstance(value, str) or value not in options:
        refuse_value(estimator, name, f"a str among {sorted(options)}{otherwise}", value)
    return value


def check_bool(estimator, *names):
    """Check boolean parameters."""
    for name in names:
        value = getattr(estimator, name)
        if not isinstance(value, bool):
            refuse_value(estimator, name, "an instance of 'bool'", value)


def check_split(estimator, defaults):
    """Return shares that sum to 1: the defaults, or the caller's for exactly those releases."""
    name, value = "budget_split", estimator.budget_split
    if isinstance(value, str) and value == "auto":
        shares = dict(defaults)
    else:
        if not isinstance(value, Mapping) or set(value) != set(defaults):
            expected = f"'auto' or a dict of a fraction for each of the keys {sorted(defaults)}"
            refuse_value(estimator, name, expected, value)
        if not all(is_real(share) and 0 < share < math.inf for share in value.values()):
            refuse_value(estimator, name, "a dict of positive fractions", value)
        shares = {key: float(share) for key, share in value.items()}
    total = math.fsum(shares.values())
    return {key: share / total for key, share in shares.items()}


def check_clip_norm(estimator):
    """Check `clip_norm`: positive, finite unless epsilon is infinite, or "auto"."""
    value = check_real(estimator, "clip_norm", 0, math.inf, closed="right", also=("auto",))
    if value == "auto":
        return
    if not SMALLEST_SIZE <= value <= LARGEST_SIZE and value != math.inf:
        refuse_value(estimator, "clip_norm", "a float between 1e-60 and 1e60, 'auto' or inf", value)
    if value == math.inf and estimator.epsilon != math.inf:
        raise ValueError(
            "clip_norm=inf bounds no row, so no finite noise is enough: it needs epsilon=inf. Use "
            "clip_norm='auto', which learns one with a part of the budget."
        )


def check_rank(estimator, n_samples, n_features, *, least=1, where=""):
    """Refuse more components than features, or rows where their number is public (else inf)."""
    k, limit = estimator.n_components, min(n_samples, n_features)
    if not least <= k <= limit:
        what = "n_features" if n_samples == math.inf else "min(n_samples, n_features)"
        raise ValueError(f"n_components={k!r} must be between {least} and {what}={limit!r}{where}.")


def check_n_jobs(estimator):
    """Check `n_jobs`: None, or an int other than 0."""
    value = estimator.n_jobs
    fine = isinstance(value, Integral) and not isinstance(value, bool) and 0 < abs(value) <= 2**15
    if value is not None and not fine:
        refuse_value(estimator, "n_jobs", "None or an int from 1 to 32768, or minus that", value)


def check_center_option(estimator):
    """Check a `center` that is a string; True and False belong to other classes."""
    if estimator.center is None or isinstance(estimator.center, str | bool):
        check_option(estimator, "center", ("private", "none"), ", or an array of public centres")


def public_array(name, value, **options):
    """Return a parameter as an array of finite numbers."""
    with config_context(assume_finite=False, array_api_dispatch=False):
        return check_array(value, dtype=np.float64, input_name=name, **options)


def check_bounds(estimator: Any, name: str) -> tuple[float, float]:
    """Return public bounds (low, high) of an entry, which hold 0."""
    value = getattr(estimator, name)
    expected = (
        "a pair of floats (low, high) with low <= 0 <= high, of which the larger in magnitude is "
        "between 1e-60 and 1e60, one for all entries (columns of unlike ranges: map them by "
        "PublicScaler(bounds=[(low, high), ...]) first)"
    )
    try:  # floats, as narrow numbers of numpy overflow where they are compared
        low, high = (float(end) if is_real(end) else math.nan for end in value)
    except (TypeError, ValueError):
        low = high = math.nan
    if not (low <= 0 <= high and SMALLEST_SIZE <= max(-low, high) <= LARGEST_SIZE):
        refuse_value(estimator, name, expected, value)
    return low, high


def check_range(estimator):
    """Return public bounds (low, high), numbers or arrays, as float arrays; None for "auto"."""
    value = estimator.target_bounds
    if isinstance(value, str) and value == "auto":
        return None
    try:
        return _low_and_high(estimator, value)
    except (TypeError, ValueError, OverflowError):
        kind = "numbers" if estimator.epsilon == math.inf else "finite numbers"
        expected = (
            f"'auto' or a pair (low, high) of {kind}, or two arrays (lows, highs) with one of them "
            "for each column, with low < high"
        )
    return refuse_value(estimator, "target_bounds", expected, value)


def target_bounds(estimator, n_targets):
    """Return the public bounds of each target, or None."""
    bounds = check_range(estimator)
    if bounds is None:
        return None
    try:
        return tuple(np.broadcast_to(end, (n_targets,)).copy() for end in bounds)
    except ValueError:
        given = max(end.size for end in bounds)
        raise ValueError(
            f"The 'target_bounds' parameter of {type(estimator).__name__} has {given} bounds, but "
            f"there are {n_targets} targets."
        ) from None


def check_shape(estimator, name):
    """Return a public shape (n_rows, n_columns) of positive integers."""
    value = getattr(estimator, name)
    expected = "a pair of positive integers (n_rows, n_columns)"
    try:
        m, n = value
    except (TypeError, ValueError):
        refuse_value(estimator, name, expected, value)
    if not (_is_int(m, 1) and _is_int(n, 1)):
        refuse_value(estimator, name, expected, value)
    return int(m), int(n)


# Types of parameters that estimators share, for those who call them.


ColumnBounds: TypeAlias = ArrayLike | Mapping[Any, tuple[float, float]]
Seed: TypeAlias = int | np.random.Generator | np.random.RandomState | None
Split: TypeAlias = Mapping[str, float] | str


# Public bounds of columns, in every form that people write them in.


_FORMS = (
    "a pair (low, high) for all columns, two arrays (lows, highs), a list of one tuple (low, high) "
    "for each column, or a dict of such tuples by column name, in [-1e60, 1e60] with low < high"
)


def check_column_bounds(estimator: Any) -> None:
    """Refuse values that are no bounds; `column_bounds` checks whether they fit the columns."""
    value = estimator.bounds
    try:
        by_name = isinstance(value, Mapping)
        pairs = [tuple(pair) for pair in value.values()] if by_name else value
        _low_and_high(estimator, pairs)
    except (TypeError, ValueError, OverflowError):
        refuse_value(estimator, "bounds", _FORMS, value)


def column_bounds(estimator: Any, d: int, names: Any = None) -> tuple[FloatArray, FloatArray]:
    """Return (lows, highs), one number for each of d columns.

    `names` are those of the columns, which a dict needs.
    """
    value = estimator.bounds
    check_column_bounds(estimator)
    if isinstance(value, Mapping):
        value = _by_name(estimator, value, names)
    low, high = _low_and_high(estimator, value)
    if any(end.ndim and end.size != d for end in (low, high)):
        refuse_value(estimator, "bounds", f"{_FORMS} for {d} columns", value)
    return np.broadcast_to(low, (d,)).copy(), np.broadcast_to(high, (d,)).copy()


def middle_and_radius(low: Any, high: Any, *, centered: bool = True) -> tuple[Any, Any]:
    """Return the midpoint of public bounds (or 0), and their largest distance from it."""
    middle = low + (high - low) / 2 if centered else np.zeros_like(low)
    return middle, np.maximum(high - middle, middle - low)


def _low_and_high(estimator: Any, value: Any) -> tuple[FloatArray, FloatArray]:
    """Read a pair, two arrays, or a list of tuples; without noise there is no largest bound."""
    widest = math.inf if getattr(estimator, "epsilon", None) == math.inf else LARGEST_SIZE
    if isinstance(value, list) and value and all(isinstance(pair, tuple) for pair in value):
        value = list(zip(*value, strict=True))
    low, high = (np.asarray(end) for end in value)
    if low.dtype.kind not in "iuf" or high.dtype.kind not in "iuf" or max(low.ndim, high.ndim) > 1:
        raise TypeError("not numbers")
    low, high = low.astype(np.float64), high.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        width, largest = high - low, np.maximum(np.abs(low), np.abs(high))
    if not (low.size and np.all(width >= SMALLEST_SIZE) and np.all(largest <= widest)):
        raise ValueError("not in order")
    return low, high


def _by_name(estimator: Any, value: Mapping[Any, Any], names: Any) -> list[Any]:
    title = f"The 'bounds' parameter of {type(estimator).__name__}"
    if names is None:
        raise ValueError(
            f"{title} is a dict by column name, but X has no column names. Give arrays (low, "
            "high), or let the previous step keep names: set_output(transform='pandas')."
        )
    columns = list(names)
    if set(columns) != set(value):
        missing = [column for column in columns if column not in value]
        unknown = [column for column in value if column not in columns]
        said = f"{title} must name the features. Without bounds: {missing}; no feature: {unknown}."
        if missing and hasattr(estimator, "epsilon"):  # it searches within wide bounds
            said += " Features without known bounds may have wide ones, such as (-1e6, 1e6)."
        raise ValueError(said)
    return [tuple(value[column]) for column in columns]


# Labels, classes and users: one conversion for all, in which no value changes another.
#
# numpy gives a list one common dtype: next to one string all numbers become strings, next to one
# float integers beyond 2**53 merge. One record could so take every other out of its class.


def as_labels(values: Any) -> Any:
    """Return labels as an array in which each keeps its value; arrays stay as they are."""
    if not isinstance(values, Sequence) or isinstance(values, str):
        return values
    given = [None if value is np.ma.masked else value for value in values]  # which numpy warns of
    try:
        found = np.asarray(given)
        if found.ndim != 1 or (found.dtype.kind in "biufUS" and _keeps(found, given)):
            return found
    except (TypeError, ValueError, OverflowError):  # of unlike shapes, or beyond all dtypes
        pass
    return np.fromiter(given, object, len(given))


def _keeps(found: Any, given: list[Any]) -> bool:
    """Whether an array has the values of a list; scalars of numpy would be cast to be compared."""
    plain = [value.item() if isinstance(value, np.generic) else value for value in given]
    return found.dtype.char not in "gGO" and bool(found.tolist() == plain)


def complete_labels(y: Any) -> Any:
    """Return labels as an array; None, NaN, or the NA of pandas among them are an error."""
    y = as_labels(y)
    if y is not None and np.asarray(y).dtype.kind == "O" and any(map(_is_missing, np.ravel(y))):
        raise ValueError("Input y contains NaN: leave out rows that have no target.")
    return y


def _is_missing(label: object) -> bool:
    nan = isinstance(label, Real) and label != label
    return nan or label is None or type(label).__name__ == "NAType"


def class_numbers(y, classes):
    """Return the number of each label's class, -1 for a label that is none of them."""
    number = {label: i for i, label in enumerate(classes.tolist())}

    def look_up(label):
        try:
            return number.get(label, -1)
        except TypeError:  # not hashable: no class either
            return -1

    given = np.asanyarray(as_labels(y))
    y, places = np.asarray(given), slice(None)
    if y.dtype.kind in "biuf" and y.ndim == 1:  # few labels, of many rows
        y, places = np.unique(y, return_inverse=True)
    found = np.array([look_up(label) for label in y.tolist()], dtype=np.intp)[places]
    return np.where(np.ma.getmask(given), -1, found)


def kind_of(values):
    """Return whether an array has text, bytes or numbers, by its dtype; None where that is private.

    The dtype of an array is public; that of a list would follow its values, and is not looked at.
    Nor are dtypes that are not numpy's, but for the text of pandas.
    """
    dtype = getattr(values, "dtype", None)
    kind = "U" if getattr(dtype, "type", None) is str else getattr(dtype, "kind", None)
    return (dict.fromkeys("biuf", "numbers") | {"S": "bytes", "U": "text"}).get(kind)


def check_kind(estimator, y, *, least=2):
    """Refuse text, bytes or numbers for another of these: no row would count."""
    kind = kind_of(y)
    if getattr(estimator, "classes", None) is None or not kind or np.ndim(y) != 1:
        return
    if (known := kind_of(check_classes(estimator, least=least))) != kind:
        raise ValueError(
            f"The 'classes' of {type(estimator).__name__} are {known} and y is {kind}: no "
            f"label would be one of them. Got classes={estimator.classes!r}."
        )


def check_classes(estimator, *, least=2):
    """Return the distinct public classes; labels that are not numbers equal nothing."""
    try:
        given = list(estimator.classes)
        classes = np.asarray(given)
        bad = classes.dtype.kind in "fc" and not np.all(np.isfinite(classes))
        fine = classes.ndim == 1 and not bad and classes.dtype.kind in "biufUS"
        fine = fine and _keeps(classes, given)  # a cast may have merged labels
        fine = fine and not isinstance(estimator.classes, str) and len(set(given)) == len(given)
        classes = np.unique(classes) if fine else classes
    except (TypeError, ValueError):
        fine, classes = False, ()
    if not fine or len(classes) < least:
        raise ValueError(
            f"The 'classes' parameter of {type(estimator).__name__} must be None or a list of at "
            f"least {least} distinct finite labels, all numbers or all strings. Got "
            f"{estimator.classes!r} instead."
        )
    return classes


def refuse_files(name, *data):
    """Refuse files and row sources: only X may be a list of files, which is read elsewhere."""
    for part in data:
        if any(callable(getattr(part, method, None)) for method in ("blocks", "parts")):
            raise TypeError(
                f"{name} does not accept a row source here: only the X of an estimator that reads "
                "blocks, without a step before it, may have n_features, n_rows, parts and blocks."
            )
        listed = isinstance(part, list | tuple)
        if (listed and not part) or hasattr(part, "__next__"):
            raise ValueError(
                f"{name} takes no empty list or generator: pass sorted(files), or rows. Steps of a "
                "Pipeline do not pass on files."
            )
        path = part[0] if listed else part
        text = isinstance(path, str) and (not listed or path.endswith(".npy"))
        if text or isinstance(path, os.PathLike):
            arrays = "np.concatenate([np.load(path) for path in paths])"
            raise ValueError(
                f"{name} was passed a text or a path in place of rows. Pass rows; or a list of "
                f".npy files, [path], as X of an estimator that reads blocks. For y pass {arrays}."
            )


def column_names(data):
    """Return the names of the columns of a frame, or of an Arrow table; None for an array.

    The attribute `columns` of an Arrow table is its values.
    """
    arrow = hasattr(type(data), "column_names")  # of the type: a column may have this name
    names = data.column_names if arrow else getattr(data, "columns", None)
    return None if names is None else list(names)


def column_number(estimator):
    """Return the index of the column of groups among the columns that were fitted."""
    column = estimator.group_column
    names = list(getattr(estimator, "feature_names_in_", ()))
    return names.index(column) if column in names else column % estimator.n_features_in_


def feature_names(estimator, names=None):
    """Return the names of the features, if there are any: without the column of groups.

    Columns without names have those that are given.
    """
    names = getattr(estimator, "feature_names_in_", names)
    if names is None or getattr(estimator, "group_column", None) is None:
        return names
    return np.delete(names, column_number(estimator))


def columns_of(data, kinds):
    """Name columns of a frame that are of these kinds: "" for an array of them, None for none."""
    if not (hasattr(data, "columns") and hasattr(data, "dtypes")):
        return "" if _kind(getattr(data, "dtype", None)) in kinds else None
    columns = zip(data.columns, data.dtypes, strict=True)
    found = [repr(name) for name, dtype in columns if _kind(dtype) in kinds]
    return " in " + ", ".join(found) if found else None


def _kind(dtype):
    """Return the kind of a dtype as numpy names it, also of one of polars."""
    return "M" if getattr(dtype, "is_temporal", bool)() else getattr(dtype, "kind", " ")


def holds_times(data):
    """Whether objects, or what has no dtype, hold dates of numpy, which a cast makes numbers."""
    if columns_of(data, "O") is None and (hasattr(data, "dtype") or hasattr(data, "dtypes")):
        return False
    with suppress(Exception):  # what is no table is left to scikit-learn
        found = np.asarray(data)
        kinds = set(map(type, found.flat)) if found.dtype.kind == "O" else {found.dtype.type}
        return not kinds.isdisjoint((np.datetime64, np.timedelta64))
    return False


def check_labels(labels):
    """Return the users of rows as an array of one kind; a missing user is an error."""
    if isinstance(labels, str):
        raise ValueError("'groups' must be an array: of a column of X set 'group_column'.")
    if np.ma.is_masked(labels):
        raise ValueError("A group label is missing (masked): give such rows labels of their own.")
    if not hasattr(labels, "dtype"):
        labels = np.asarray(labels, dtype=object)  # a common dtype could merge two users
    labels = np.asarray(labels)
    if labels.dtype.kind == "c" or labels.dtype.char == "g":  # whose text differs
        raise ValueError(f"'groups' must be text or reals of at most 64 bits. Got {labels.dtype}.")
    if labels.shape[:1] != (labels.size,):
        raise ValueError("'groups' must have one dimension: one label for each row.")
    labels = labels.ravel()
    if labels.dtype.kind in "OTV":  # numpy's strings of any length may miss some, which it sorts in
        values = labels.tolist()
        if any(map(_is_missing, values)):
            raise ValueError("A group label is missing: give such rows labels of their own.")
        if all(isinstance(value, str) for value in values):
            if any(value.endswith("\0") for value in values):  # numpy would strip it
                raise ValueError("Group labels may not end with a null character.")
            return np.asarray(values, str)
        if not all(isinstance(value, (int, float, np.number)) for value in values):
            raise ValueError("Group labels must be all strings or all numbers: use astype(str).")
        if not _keeps(labels := np.asarray(values), values):
            raise ValueError("Group labels are not exact in one numeric type; use strings.")
    if labels.dtype.kind in "fmM" and not np.isfinite(labels).all():
        raise ValueError("A group label is missing (NaN): give such rows labels of their own.")
    refuse_merged(labels)
    return labels


def refuse_merged(labels):
    """Refuse floats so large that neighbouring integers are one: two persons would be one."""
    floats = labels if labels.dtype.kind == "f" else np.zeros(0)
    if (np.abs(floats) >= 2.0 ** (np.finfo(floats.dtype).nmant + 1)).any():
        raise ValueError(
            "Labels of groups or users are such large floats that two integers may be one float: "
            "they may merge (pandas turns integers with a missing value into floats). Read them as "
            "strings or as Int64."
        )
