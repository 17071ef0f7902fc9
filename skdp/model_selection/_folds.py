"""How many training and test sets of a splitter hold one unit, from public shapes alone."""

import numbers

import numpy as np
from sklearn.base import is_classifier
from sklearn.model_selection import (
    GroupKFold,
    GroupShuffleSplit,
    KFold,
    LeaveOneGroupOut,
    LeaveOneOut,
    LeavePOut,
    PredefinedSplit,
    RepeatedKFold,
    ShuffleSplit,
    TimeSeriesSplit,
)

from skdp._labels import check_labels
from skdp.exceptions import PrivacyError
from skdp.model_selection._splitters import IndependentKFold, WithinGroupKFold

# Splitters whose folds are a function of the number of rows (and of public randomness) alone.
_BY_POSITION = (
    KFold,
    LeaveOneOut,
    LeavePOut,
    PredefinedSplit,
    RepeatedKFold,
    ShuffleSplit,
    TimeSeriesSplit,
)
_IN_ONE_ROW = ("row", "label", "entry", "interaction")  # units that one row holds
_BY_GROUP = (GroupKFold, GroupShuffleSplit, LeaveOneGroupOut, WithinGroupKFold)


def resolved_splitter(cv, estimator):
    """Return the splitter that scikit-learn makes of `cv`."""
    if cv is None or isinstance(cv, int):
        if is_classifier(estimator):
            raise PrivacyError(
                "for a classifier an integer 'cv' is a StratifiedKFold, whose folds depend on the "
                "labels of others. Use IndependentKFold, or KFold with adjacency='replace'."
            )
        return KFold(5 if cv is None else cv)
    return cv


def _refuse(cv, why):
    raise PrivacyError(
        f"the cost of {type(cv).__name__} cannot be counted: {why}. Use "
        "skdp.model_selection.IndependentKFold."
    )


def held_by(cv, n_samples, groups, unit, adjacency):
    """Return (t, s): the largest numbers of training and of test sets that hold one unit.

    Refused where one unit can move others between folds: with "add_remove" all folds cut by
    position; stratified folds always; folds by group where groups change with the data.
    """
    if not hasattr(cv, "split"):
        cv = PredefinedSplits(cv)
    unit_of_rows = unit in ("row", "group")
    if type(cv) is IndependentKFold:
        if cv.random_state is not None and adjacency == "add_remove" and unit_of_rows:
            raise PrivacyError(
                f"with a known 'random_state' the fold of a {unit} depends on its place, and one "
                "more moves all behind it: use IndependentKFold with random_state=None."
            )
        # A unit that may touch many rows (an edge, a change of some norm) has parts in all folds.
        whole = unit in _IN_ONE_ROW or (unit == "group" and groups is not None)
        return (cv.n_splits - 1, 1) if whole else (cv.n_splits, cv.n_splits)
    if adjacency == "add_remove" and unit_of_rows:
        _refuse(cv, f"with adjacency='add_remove' one {unit} more moves others between its folds")
    allowed = (*_BY_POSITION, PredefinedSplits)
    if unit == "label":
        allowed += _BY_GROUP
    if unit == "group":
        allowed = (LeaveOneGroupOut, WithinGroupKFold)
        if isinstance(cv, WithinGroupKFold) and cv.shuffle:
            _refuse(cv, "its shuffling depends on how many rows the other users have")
    if type(cv) not in allowed:
        _refuse(cv, f"its folds may depend on the data of others (unit {unit!r})")
    return _count(cv, n_samples, groups, unit)


class PredefinedSplits:
    """An iterable of (train, test) that the caller vouches for."""

    def __init__(self, splits):
        self.splits = list(splits)
        for part in (rows for split in self.splits for rows in split):
            if np.asarray(part).dtype != bool and len(np.unique(part)) < len(part):
                raise PrivacyError(
                    "a set of 'cv' has a row more than once: a fit protects rows, and this one "
                    "would count several times. Give each row once."
                )

    def get_n_splits(self, X=None, y=None, groups=None):
        """Return the number of splits."""
        return len(self.splits)

    def split(self, X=None, y=None, groups=None):
        """Return the splits."""
        return iter(self.splits)


def _count(cv, n_samples, groups, unit):
    if n_samples is None:
        raise ValueError(f"the folds of {type(cv).__name__} depend on 'n_samples': give it.")
    X = np.zeros((int(n_samples), 1))
    K = cv.get_n_splits(X, None, groups)
    if isinstance(cv, LeaveOneOut):
        return K - 1, 1
    # A generator draws other folds in the search than here.
    drawn = isinstance(cv, ShuffleSplit | GroupShuffleSplit) and not isinstance(
        cv.random_state, numbers.Integral
    )
    # Another user may have more rows than there are folds, whoever is replaced.
    within = isinstance(cv, WithinGroupKFold) and unit == "group"
    if drawn or within or unit not in (*_IN_ONE_ROW, "group"):
        return K, K
    owners = np.arange(len(X))
    if unit == "group":
        owners = np.unique(check_labels(groups), return_inverse=True)[1]
    trained, tested = np.zeros(owners.max() + 1, int), np.zeros(owners.max() + 1, int)
    for train, test in cv.split(X, None, groups):
        trained[np.unique(owners[train])] += 1
        tested[np.unique(owners[test])] += 1
    return int(trained.max()), int(tested.max())
