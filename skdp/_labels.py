"""Labels, classes and users: one conversion for all, in which no value changes another.

numpy gives a list one common dtype: beside one string all numbers become strings, beside one float
integers beyond 2**53 merge. One record could so take every other out of its class.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.utils.validation import column_or_1d


def as_labels(values: Any) -> Any:
    """Return labels as an array in which each keeps its value; arrays stay as they are."""
    if not isinstance(values, Sequence) or isinstance(values, str):
        return values
    given = list(values)
    try:
        found = np.asarray(given)
        if found.ndim != 1 or (found.dtype.kind in "biufUS" and found.tolist() == given):
            return found
    except (TypeError, ValueError, OverflowError):  # of unlike shapes, or beyond all dtypes
        pass
    found = np.empty(len(given), dtype=object)
    for i, value in enumerate(given):
        found[i] = value
    return found


def class_numbers(y, classes):
    """Return the number of each label's class, -1 for a label that is none of them."""
    number = {label: i for i, label in enumerate(classes.tolist())}

    def look_up(label):
        try:
            return number.get(label, -1)
        except TypeError:  # not hashable: no class either
            return -1

    return np.array([look_up(label) for label in np.asarray(as_labels(y)).tolist()], dtype=np.intp)


def check_kind(estimator, y):
    """Refuse text for numbers, or numbers for text: no row would count.

    The dtype of an array is public; that of a list would follow its values, and is not looked at.
    Nor are dtypes that are not numpy's.
    """
    kind = getattr(getattr(y, "dtype", None), "kind", None)
    if getattr(estimator, "classes", None) is None or kind is None or np.ndim(y) != 1:
        return
    text = {"y": kind, "classes": check_classes(estimator, least=1).dtype.kind}
    if set(text.values()) <= set("biufU") and (text["y"] == "U") != (text["classes"] == "U"):
        raise ValueError(
            f"The 'classes' of {type(estimator).__name__} are "
            f"{'text' if text['classes'] == 'U' else 'numbers'} and y is not: no label would be "
            f"one of them. Got classes={estimator.classes!r}."
        )


def check_classes(estimator, *, least=2):
    """Return the distinct public classes; labels that are not numbers equal nothing."""
    try:
        given = list(estimator.classes)
        classes = np.asarray(given)
        bad = classes.dtype.kind in "fc" and not np.all(np.isfinite(classes))
        fine = classes.ndim == 1 and not bad and classes.dtype.kind in "biufUS"
        fine = fine and classes.tolist() == given  # a cast may have merged labels
        classes = np.unique(classes) if fine else classes
    except (TypeError, ValueError):
        fine, classes = False, ()
    if not fine or len(classes) < least:
        raise ValueError(
            f"The 'classes' parameter of {type(estimator).__name__} must be None or a list of at "
            f"least {least} finite labels, all numbers or all strings. Got {estimator.classes!r} "
            "instead."
        )
    return classes


def check_labels(labels):
    """Return the users of rows as an array of one kind; a missing user is an error."""
    if not hasattr(labels, "dtype"):
        labels = np.asarray(labels, dtype=object)  # a common dtype could merge two users
    labels = column_or_1d(np.asarray(labels))
    if labels.dtype.kind in "fc" and not np.isfinite(labels).all():
        raise ValueError("The user of a row is missing (NaN); every row needs its user.")
    if labels.dtype.kind in "mM" and np.isnat(labels).any():
        raise ValueError("The user of a row is missing; every row needs its user.")
    if labels.dtype.kind == "O":
        values = labels.tolist()
        if any(value is None or value != value for value in values):
            raise ValueError("The user of a row is missing; every row needs its user.")
        if all(isinstance(value, str) for value in values):
            if any(value.endswith("\0") for value in values):  # numpy would strip it
                raise ValueError("User labels may not end with a null character.")
            return labels.astype(str)
        if not all(isinstance(value, (int, float, np.number)) for value in values):
            raise ValueError("User labels must be all strings or all numbers.")
        labels = np.asarray(values)
        exact = labels.dtype.kind != "O" and labels.tolist() == values
        if not exact:
            raise ValueError("User labels are not exact in one numeric type; use strings.")
    return labels
