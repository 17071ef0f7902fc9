"""Splitters: every user in every fold, and folds that are drawn one unit at a time."""

import numpy as np
import pytest

from skdp.model_selection import IndependentKFold, WithinGroupKFold


def folds_of(cv, X, **groups):
    return [test.tolist() for _, test in cv.split(X, **groups)]


def test_every_user_is_in_every_fold(rng):
    users = rng.permutation(np.repeat(["a", "b", "c", "d"], [5, 9, 12, 30]))
    cv = WithinGroupKFold(4)
    seen = np.zeros(len(users), int)
    for train, test in cv.split(users[:, None], groups=users):
        assert set(users[train]) == set(users[test]) == set(users)
        assert not set(train) & set(test)
        assert len(train) + len(test) == len(users)
        for user in set(users):
            n = np.count_nonzero(users == user)
            assert np.count_nonzero(users[test] == user) in (n // 4, n // 4 + 1)
        seen[test] += 1
    assert (seen == 1).all()
    assert cv.get_n_splits() == 4


@pytest.mark.parametrize(
    ("cv", "groups", "match"),
    [
        (WithinGroupKFold(), None, "groups"),
        *((WithinGroupKFold(n_splits), np.zeros(4), "n_splits") for n_splits in (1, 2.5, True)),
        (WithinGroupKFold(), np.zeros(3), "inconsistent"),
        *((IndependentKFold(n_splits), None, "n_splits") for n_splits in (1, 2.5, True, "3")),
    ],
)
def test_bad_arguments(cv, groups, match):
    with pytest.raises(ValueError, match=match):
        list(cv.split(np.zeros((4, 1)), groups=groups))
    assert type(cv).__name__ in repr(cv)


# -- IndependentKFold ----------------------------------------------------------------------------


def test_independent_folds_cover_every_row_once():
    X = np.zeros((500, 2))
    cv = IndependentKFold(4)
    seen = np.zeros(500, int)
    for train, test in cv.split(X):
        assert len(train) + len(test) == 500
        assert not set(train) & set(test)
        seen[test] += 1
        assert abs(len(test) - 125) < 6 * np.sqrt(500 * 3 / 16)
    assert (seen == 1).all()
    assert folds_of(cv, X) != folds_of(cv, X)


def test_one_row_more_moves_no_other_row():
    """The words of a unit are its own: the folds of the others are the same, whoever is added."""
    X = np.zeros((60, 1))
    folds = []
    for n in (59, 60):
        fold = np.zeros(n, int)
        for i, (_, test) in enumerate(IndependentKFold(3, random_state=5).split(X[:n])):
            fold[test] = i
        folds.append(fold)
    assert np.array_equal(folds[0], folds[1][:59])


def test_users_stay_together(rng):
    users = rng.permutation(np.repeat(["a", "b", "c", "d", "e"], [1, 5, 9, 2, 4]))
    for train, test in IndependentKFold(3).split(users, groups=users):
        assert not set(users[train]) & set(users[test])


def test_empty_folds_are_allowed():
    tests = folds_of(IndependentKFold(50, random_state=0), np.zeros((3, 1)))
    assert len(tests) == 50
    assert tests.count([]) >= 47
