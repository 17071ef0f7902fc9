"""Splitters whose folds are functions of public sizes or of one unit each, and what folds cost."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np
from sklearn import model_selection
from sklearn.base import is_classifier
from sklearn.utils import check_consistent_length

from skdp._inputs import check_histories
from skdp._validation import check_count, check_labels
from skdp.data.histories import with_entries
from skdp.exceptions import PrivacyError
from skdp.privacy.noise.words import make_source
from skdp.units import unit_named

# Splitters: cutting the data with privacy in mind.


class _Folds(model_selection.BaseCrossValidator):
    """`n_splits` folds, of rows or of users."""

    # Groups are requested by default, so that routing needs no set_split_request.
    __metadata_request__split = {"groups": True}

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        """Return the number of folds.

        Parameters
        ----------
        X, y, groups : object
            Ignored.

        Returns
        -------
        n_splits : int
            The number of folds.
        """
        return self.n_splits

    def _iter_test_indices(self, X=None, y=None, groups=None):
        K, codes = check_count("n_splits", self.n_splits, 2), None
        if groups is not None:
            codes = np.unique(check_labels(groups), return_inverse=True)[1]
            check_consistent_length(X, codes)
        fold = self._folds(X, codes)
        for i in range(K):
            yield np.flatnonzero(fold == i)


class WithinGroupKFold(_Folds):
    """K-fold splitter that divides the rows of each user, so that every user is in every fold.

    It measures the models of users on new rows of known users;
    `~sklearn.model_selection.GroupKFold` measures the model for new users. All users are in every
    training set, so mu^2 of K fits is K times that of one.

    Parameters
    ----------
    n_splits : int, default=5
        Number of folds. A user with fewer rows is missing from some test sets, never from more
        than one training set.

    Examples
    --------
    >>> import numpy as np
    >>> from skdp.model_selection import WithinGroupKFold
    >>> users = np.array([7, 7, 7, 7, 9, 9])
    >>> for train, test in WithinGroupKFold(2).split(users, groups=users):
    ...     print(users[train], users[test])
    [7 7 9] [7 7 9]
    [7 7 9] [7 7 9]
    """

    def __init__(self, n_splits=5):
        self.n_splits = n_splits

    def _folds(self, X, codes):
        """Deal the rows of each user to the folds in turn; users start at different folds."""
        if codes is None:
            raise ValueError("The 'groups' parameter should not be None: it holds the users.")
        order = np.argsort(codes, kind="stable")
        sizes = np.bincount(codes)
        rank = np.arange(len(codes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        fold = np.empty(len(codes), dtype=int)
        fold[order] = (rank + codes[order]) % self.n_splits
        return fold


class IndependentKFold(_Folds):
    """K-fold splitter that draws the fold of each unit at random, independently of the others.

    `~sklearn.model_selection.KFold` assigns rows by position. One more row moves others between
    folds, so under ``adjacency="add_remove"`` the cost of K fits has no useful bound. Here an added
    row (or group) changes no other fold. It is in K - 1 training sets, and mu^2 of K fits is K - 1
    times that of one.

    Folds differ in size and may be empty. A score on an empty fold is noise alone with a private
    scorer, and nan with others. A training set without rows raises an error; for n units this
    happens with probability K^(1 - n).

    Parameters
    ----------
    n_splits : int, default=5
        Number of folds.
    random_state : int, Generator, RandomState or None, default=None
        None draws folds from the operating system. With a known seed, the fold of a row depends
        on its position, so the cost under "add_remove" is unknown (see `search_cost`).

    Examples
    --------
    >>> import numpy as np
    >>> from skdp.model_selection import IndependentKFold
    >>> folds = [test for _, test in IndependentKFold(3).split(np.zeros((100, 2)))]
    >>> sorted(np.concatenate(folds).tolist()) == list(range(100))
    True
    """

    def __init__(self, n_splits=5, *, random_state=None):
        self.n_splits = n_splits
        self.random_state = random_state

    def _folds(self, X, codes):
        words = make_source(self.random_state, "IndependentKFold").words("folds")
        n_rows = X.shape[0] if hasattr(X, "shape") else len(X)
        units = np.arange(n_rows) if codes is None else codes
        n_units = int(units.max(initial=-1)) + 1
        return (words(n_units) % np.uint64(self.n_splits)).astype(int)[units]


def split_interactions(R: Any, test_size: float = 0.2, *, random_state: Any = None) -> Any:
    """Split the items of each user into two matrices of the same shape.

    Each item goes to the second matrix by itself, with probability `test_size`. The second matrix
    holds private data as the first does.

    Parameters
    ----------
    R : {array-like, sparse matrix} of shape (n_users, n_items)
        Interactions: positive entries.
    test_size : float, default=0.2
        Probability that an item is held out.
    random_state : int, Generator, RandomState or None, default=None
        Seed of the split; None draws it from the operating system.

    Returns
    -------
    train, test : csr_array of shape (n_users, n_items)
        Interactions, each 1.0.

    Examples
    --------
    >>> from skdp.datasets import make_interactions
    >>> from skdp.model_selection import split_interactions
    >>> R = make_interactions(50, 40, 300, 4, random_state=0)
    >>> train, test = split_interactions(R, random_state=0)
    >>> int(train.nnz + test.nnz) == R.nnz
    True
    """
    if isinstance(test_size, bool) or not 0 < test_size < 1:
        raise ValueError(
            f"test_size must be a float in the range (0, 1). Got {test_size!r} instead."
        )
    R = check_histories(R)
    words = make_source(random_state, "split_interactions").words()(R.nnz)
    held = words < np.uint64(test_size * 2.0**64)
    return tuple(with_entries(R, chosen.astype(np.float64)) for chosen in (~held, held))


# The numbers of training and test sets that contain one unit, from public shapes alone.


# Splitters whose folds are a function of the number of rows (and of public randomness) alone.
_BY_POSITION = (
    model_selection.KFold,
    model_selection.LeaveOneOut,
    model_selection.LeavePOut,
    model_selection.PredefinedSplit,
    model_selection.RepeatedKFold,
    model_selection.ShuffleSplit,
    model_selection.TimeSeriesSplit,
)
_BY_GROUP = (
    model_selection.GroupKFold,
    model_selection.GroupShuffleSplit,
    model_selection.LeaveOneGroupOut,
    WithinGroupKFold,
)


def resolved_splitter(cv, estimator):
    """Return the splitter that scikit-learn makes of `cv`."""
    if cv is None or isinstance(cv, int):
        if is_classifier(estimator):
            raise PrivacyError(
                "An integer 'cv' of a classifier is a StratifiedKFold: a label changes folds of "
                "other rows. Use IndependentKFold, or KFold with adjacency='replace'."
            )
        return model_selection.KFold(5 if cv is None else cv)
    if not hasattr(cv, "split") and type(cv) not in (list, tuple):
        _refuse(cv, "it may give other sets each time that it is asked; make a list of them")
    return cv if hasattr(cv, "split") else PredefinedSplits(cv)


def _refuse(cv, why):
    raise PrivacyError(
        f"the privacy cost of {type(cv).__name__} is unknown: {why}. Use "
        "skdp.model_selection.IndependentKFold."
    )


def sets_of(cv, n_samples, groups, unit, adjacency):
    """Return (t, s): the largest numbers of training and of test sets that hold one unit.

    Refused where one unit can move others between folds: with "add_remove" all folds cut by
    position; stratified folds always; folds by group where groups change with the data.
    """
    kind = unit_named(unit)
    if type(cv) is IndependentKFold:
        if cv.random_state is not None and adjacency == "add_remove" and kind.by_rows:
            raise PrivacyError(
                f"with a known 'random_state' the fold of a {unit} depends on its position, so "
                "that adding one changes the folds of all later ones. Use "
                "IndependentKFold(random_state=None)."
            )
        # A unit that may touch many rows (an edge, a change of some norm) has parts in all folds.
        whole = kind.in_one_row or (kind.of_groups and groups is not None)
        return (cv.n_splits - 1, 1) if whole else (cv.n_splits, cv.n_splits)
    if adjacency == "add_remove" and kind.by_rows:
        _refuse(cv, f"with adjacency='add_remove', adding one {unit} changes the folds of others")
    allowed = (*_BY_POSITION, PredefinedSplits)
    if kind.of_targets:
        allowed += _BY_GROUP
    if kind.of_groups:
        allowed = (model_selection.LeaveOneGroupOut, WithinGroupKFold)
    if type(cv) not in allowed:
        _refuse(cv, f"its folds may depend on the data of others (unit {unit!r})")
    return _count(cv, n_samples, groups, kind)


class PredefinedSplits:
    """An iterable of (train, test) index sets, which the caller guarantees to be public."""

    def __init__(self, splits):
        self.splits = list(splits)
        for rows in (np.asarray(part) for split in self.splits for part in split):
            again = len(np.unique(rows)) < len(rows) or rows.min(initial=0) < 0
            if rows.dtype != bool and again:
                raise PrivacyError(
                    "a set of 'cv' has a row more than once, or counts from the end: a fit "
                    "protects rows, and this one would count several times. Give each row once."
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
    # With a random generator the search draws other folds than we would here: assume the worst.
    drawn = isinstance(
        cv, model_selection.ShuffleSplit | model_selection.GroupShuffleSplit
    ) and not isinstance(cv.random_state, numbers.Integral)
    # A user who replaces another may have more rows than folds, and so be in all of them.
    within = isinstance(cv, WithinGroupKFold) and unit.of_groups
    if drawn or within or not (unit.in_one_row or unit.of_groups):
        return K, K
    if isinstance(cv, model_selection.LeaveOneOut):
        return K - 1, 1
    trained, tested = np.zeros(len(X), int), np.zeros(len(X), int)
    for train, test in cv.split(X, None, groups):  # rows of a group stay together in all that
        trained[train] += 1  # may come here
        tested[test] += 1
    return int(trained.max()), int(tested.max())
