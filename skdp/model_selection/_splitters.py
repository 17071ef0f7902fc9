"""Splitters: cutting the data with privacy in mind."""

import numbers

import numpy as np
from sklearn.model_selection import BaseCrossValidator
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import column_or_1d

__all__ = ["WithinGroupKFold"]


class WithinGroupKFold(BaseCrossValidator):
    """K-fold splitter that cuts the rows of each user, so that every user is in every fold.

    It measures personal heads: rows of known users that the fit has not seen.
    `~sklearn.model_selection.GroupKFold` keeps users together and measures the model for users
    who are new. All users are in every training set, so K fits cost K times the loss of one.

    Parameters
    ----------
    n_splits : int, default=5
        Number of folds. A user with fewer rows is missing from some test sets, never from more
        than one training set.
    shuffle : bool, default=False
        Shuffle the rows of each user before cutting.
    random_state : int, Generator or None, default=None
        Seed of the shuffling. It has nothing to do with privacy noise.

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

    # Groups are requested by default, so that routing needs no set_split_request.
    __metadata_request__split = {"groups": True}

    def __init__(self, n_splits=5, *, shuffle=False, random_state=None):
        self.n_splits = n_splits
        self.shuffle = shuffle
        self.random_state = random_state

    def get_n_splits(self, X=None, y=None, groups=None):
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
        if groups is None:
            raise ValueError("The 'groups' parameter should not be None: it holds the users.")
        n_splits = self.n_splits
        if not isinstance(n_splits, numbers.Integral) or isinstance(n_splits, bool) or n_splits < 2:
            raise ValueError(f"'n_splits' must be an int of at least 2. Got {n_splits!r} instead.")
        if not isinstance(self.shuffle, bool):
            raise ValueError(f"'shuffle' must be True or False. Got {self.shuffle!r} instead.")
        groups = column_or_1d(groups)
        check_consistent_length(X, groups)
        fold = self._folds(groups)
        for i in range(n_splits):
            yield np.flatnonzero(fold == i)

    def _folds(self, groups):
        """Deal the rows of each user to the folds in turn; users start at different folds."""
        codes = np.unique(groups, return_inverse=True)[1]
        n = len(codes)
        order = np.arange(n)
        if self.shuffle:
            order = np.random.default_rng(self.random_state).permutation(n)
        order = order[np.argsort(codes[order], kind="stable")]
        sizes = np.bincount(codes)
        rank = np.arange(n) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        fold = np.empty(n, dtype=int)
        fold[order] = (rank + codes[order]) % self.n_splits
        return fold
