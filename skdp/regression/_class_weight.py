"""Weights of classes, checked and made numbers."""

import math
from collections.abc import Mapping
from numbers import Real

import numpy as np


def check_class_weight(estimator, classes):
    """Refuse weights that are neither "balanced" nor positive numbers of public classes."""
    given = estimator.class_weight
    if given is None or (isinstance(given, str) and given == "balanced"):
        return
    known = isinstance(given, Mapping) and set(given) <= set(classes.tolist())
    if not known or not all(_is_weight(weight) for weight in given.values()):
        raise ValueError(
            f"The 'class_weight' parameter of {type(estimator).__name__} must be None, 'balanced' "
            "or a dict of positive numbers whose keys are among the classes. "
            f"Got {given!r} instead."
        )


def _is_weight(value):
    return isinstance(value, Real) and not isinstance(value, bool) and 0 < value < math.inf


def class_weights(given, classes, totals):
    """Return the weight of a record of each class: given, or from released totals."""
    if isinstance(given, str):
        return 1 / totals
    return np.array([float(given.get(label, 1.0)) for label in classes.tolist()])
