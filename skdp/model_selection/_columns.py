"""Which column of what a step hands on is a column of the input, untouched: for `user_column`.

A column is named by its name (in data frames) or its place, counted from either end. Decided on
public parameters alone; where they leave a doubt, it is none.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.preprocessing import Binarizer, FunctionTransformer, Normalizer

from skdp.model_selection._proven import doubts
from skdp.preprocessing import DPStandardScaler, PublicScaler, RowClipper

Keeps = Callable[[Any], bool]
# Steps of the proven table that hand on as many columns as they get.
_AS_MANY = (Binarizer, FunctionTransformer, Normalizer, PublicScaler, RowClipper)
COMMON_TYPE = (
    "values of the user_column survive the common type of all columns behind {name}: text, whole "
    "numbers below 2**53, or a data frame"
)


def every(_column: Any) -> bool:
    """Whether a column of the input of a pipeline is one."""
    return True


def none(_column: Any) -> bool:
    """Whether a column is one, behind a step that may touch all."""
    return False


def kept_by(step: Any, before: Keeps) -> Keeps:
    """Return which columns behind a step are untouched columns of the input."""
    if type(step) is ColumnTransformer:
        return partial(_kept_by_parts, step=step, before=before)
    if type(step) is DPStandardScaler and step.user_column is not None:
        return partial(_is_column, column=step.user_column, before=before)
    return none


def _is_column(given: Any, column: Any, before: Keeps) -> bool:
    return type(given) is type(column) and given == column and before(column)


def _listed(columns: Any) -> list[Any] | None:
    """Return the columns of a part one by one, or None where parameters do not tell them."""
    if isinstance(columns, (str, int, np.integer)) and not isinstance(columns, bool):
        return [columns]
    if isinstance(columns, (list, tuple, np.ndarray)):
        listed = list(columns)
        if all(isinstance(c, (str, int, np.integer)) and not isinstance(c, (bool, np.bool_))
               for c in listed):  # fmt: skip
            return listed
    return None


def _kept_by_parts(given: Any, step: Any, before: Keeps) -> bool:
    parts = [(name, part, _listed(columns)) for name, part, columns in step.transformers]
    source = (
        _by_name(given, step, parts) if isinstance(given, str) else _by_place(given, step, parts)
    )
    return source is not None and before(source)


def _by_name(given: str, step: Any, parts: list[Any]) -> Any:
    """Return the name of the input column that is handed on under a name."""
    prefix = (lambda name: f"{name}__") if step.verbose_feature_names_out is True else (
        lambda name: "")  # fmt: skip
    if step.verbose_feature_names_out not in (True, False):
        return None
    for name, part, columns in parts:
        if part == "passthrough" and columns is not None:
            found = [c for c in columns if isinstance(c, str) and prefix(name) + c == given]
            if found:
                return found[0]
    named = [c for *_, columns in parts for c in (columns or [None])]
    rest = given.removeprefix(prefix("remainder"))
    handed_on = step.remainder == "passthrough" and given.startswith(prefix("remainder"))
    if handed_on and rest not in named and all(isinstance(c, str) for c in named):
        return rest
    return None


def _by_place(given: Any, step: Any, parts: list[Any]) -> Any:
    """Return the input column that is handed on at a place, if the widths beside it are known."""
    if not isinstance(given, (int, np.integer)) or isinstance(given, bool):
        return None
    if given < 0 and step.remainder != "drop":
        return None
    at = int(given) if given >= 0 else -int(given) - 1
    for _, part, columns in parts if given >= 0 else parts[::-1]:
        width = _width(part, columns)
        if width is None:
            return None
        if at < width:
            inside = at if given >= 0 else width - 1 - at
            return columns[inside] if part == "passthrough" else None
        at -= width
    return None


def _width(part: Any, columns: list[Any] | None) -> int | None:
    if isinstance(part, str) and part == "drop":
        return 0
    if columns is None:
        return None
    proven = type(part) in _AS_MANY and not any(doubts(part))  # a trusted function may widen rows
    return len(columns) if proven or (isinstance(part, str) and part == "passthrough") else None
