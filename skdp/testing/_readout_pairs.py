"""Worst-case pairs for linear read-outs: a record comes, or gives way to one at the worst angle."""

import math

import numpy as np
from sklearn.utils import get_tags

from skdp.regression._readout import ReadoutBase
from skdp.testing._data import FitData, settings_of
from skdp.testing._pairs import register_pairs

_HUGE = 1e15
_RECORDS = 40  # of a person whose weight is at its bound
_MEDIANS = 1.25  # a learnt clip norm, where half of the rows have length 1
# The release changes most where the rows, with their corner, have the inner product t^2 (and
# opposite targets) or -t^2 (and equal ones); see `skdp.queries.readout`.
_COSINES = (0.3024, 0.36, -0.4824, -0.36)


@register_pairs(ReadoutBase)
def _record_pairs(estimator):
    """Records as long as the clip norm (a longer one is weighted down), with huge targets."""
    rng = np.random.default_rng(0)
    n, d = 1000, settings_of(estimator).n_features
    X, order = rng.standard_normal((n, d)), rng.permutation(n)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    units = estimator._public_units(d)
    clip_norm = estimator.clip_norm
    if clip_norm == "auto":
        clip_norm = _MEDIANS
    row, other = clip_norm * np.eye(d)[:2]
    if estimator.bounds is not None:  # entries are cut to 1: the corners are the longest rows
        row, other = np.ones(d), (-1.0) ** np.arange(d)
    X, row, other = X * units.size, row * units.size, other * units.size
    X, row, other = (rows + units.center for rows in (X, row, other))
    if get_tags(estimator).estimator_type == "classifier":
        classes = np.asarray([0, 1] if estimator.classes is None else list(estimator.classes))
        y, low, high = classes[order % len(classes)], classes[:1], classes[-1:]
    else:
        y, low, high = rng.standard_normal(n), [-_HUGE], [_HUGE]
    if estimator.adjacency == "add_remove":
        yield "one record more", _owned(estimator, X, y), _with(estimator, X, y, row, high)
        return
    for cosine in _COSINES:
        turned = cosine * row + math.sqrt(1 - cosine**2) * other
        for name, target in (("opposite", low), ("equal", high)):
            first = _with(estimator, X, y, row, high)
            second = _with(estimator, X, y, turned, target)
            yield f"cosine {cosine}, {name} targets", first, second


def _with(estimator, X, y, row, target):
    """Add a record, or a person whose records are all like it."""
    more = _RECORDS if estimator.privacy_unit == "group" else 1
    X = np.vstack([X, np.tile(row, (more, 1))])
    return _owned(estimator, X, np.concatenate([y, np.repeat(target, more)]), more)


def _owned(estimator, X, y, last=1):
    """Return records with their persons, if the unit asks for them: the last have one together."""
    if estimator.privacy_unit != "group":
        return FitData(X, y)
    persons = np.append(np.arange(len(X) - last), np.full(last, len(X)))
    return FitData(X, y, {"groups": persons})
