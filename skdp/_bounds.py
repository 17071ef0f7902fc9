"""Public bounds of columns, in every form that people write them in."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
_NARROWEST, _LARGEST = 1e-60, 1e60
_FORMS = (
    "a pair (low, high) for all columns, two arrays (lows, highs), a list of one tuple (low, high) "
    "for each column, or a dict of such tuples by column name, with finite low < high"
)


def check_column_bounds(estimator: Any, name: str) -> None:
    """Refuse bounds that are none; whether they fit the columns is seen with these."""
    value = getattr(estimator, name)
    try:
        by_name = isinstance(value, Mapping)
        _low_and_high([tuple(pair) for pair in value.values()] if by_name else value)
    except (TypeError, ValueError, OverflowError):
        _refuse(estimator, name, value)


def column_bounds(
    estimator: Any, name: str, n_features: int, names: Any = None
) -> tuple[FloatArray, FloatArray]:
    """Return (lows, highs), one number for each column.

    `names` are those of the columns, which a dict needs.
    """
    value = getattr(estimator, name)
    check_column_bounds(estimator, name)
    if isinstance(value, Mapping):
        value = _by_name(estimator, name, value, names)
    low, high = _low_and_high(value)
    if any(end.ndim and end.size != n_features for end in (low, high)):
        _refuse(estimator, name, value, f" for {n_features} columns")
    return (
        np.broadcast_to(low, (n_features,)).copy(),
        np.broadcast_to(high, (n_features,)).copy(),
    )


def _low_and_high(value: Any) -> tuple[FloatArray, FloatArray]:
    """Read a pair, two arrays, or a list of tuples."""
    if isinstance(value, list) and value and all(isinstance(pair, tuple) for pair in value):
        value = list(zip(*value, strict=True))
    low, high = (np.asarray(end) for end in value)
    if low.dtype.kind not in "iuf" or high.dtype.kind not in "iuf" or max(low.ndim, high.ndim) > 1:
        raise TypeError("not numbers")
    low, high = low.astype(np.float64), high.astype(np.float64)
    largest = np.maximum(np.abs(low), np.abs(high))
    if not (low.size and np.all(high - low >= _NARROWEST) and np.all(largest <= _LARGEST)):
        raise ValueError("not in order")
    return low, high


def _by_name(estimator: Any, name: str, value: Mapping[Any, Any], names: Any) -> list[Any]:
    title = f"The {name!r} parameter of {type(estimator).__name__}"
    if names is None:
        raise ValueError(f"{title} is a dict by column name, but X has no column names.")
    columns = list(names)
    if set(columns) != set(value):
        missing = [column for column in columns if column not in value]
        unknown = [column for column in value if column not in columns]
        raise ValueError(
            f"{title} must have the columns of X. Without bounds: {missing}; not in X: {unknown}."
        )
    return [tuple(value[column]) for column in columns]


def _refuse(estimator: Any, name: str, value: Any, more: str = "") -> None:
    raise ValueError(
        f"The {name!r} parameter of {type(estimator).__name__} must be {_FORMS}{more}. "
        f"Got {value!r} instead."
    )
