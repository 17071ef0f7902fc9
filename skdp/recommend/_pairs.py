"""From pairs of a user and an item to a matrix of histories, and back to names."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray


class Histories(NamedTuple):
    """A matrix of histories and what its rows and columns are called.

    Attributes
    ----------
    matrix : CSR array of shape (n_users, n_items)
        Ones, or the values of the pairs. Private.
    users : ndarray of shape (n_users,)
        Names of the rows. Private, unless they were given.
    items : ndarray of shape (n_items,)
        Names of the columns, as they were given: public.
    """

    matrix: Any
    users: NDArray[Any]
    items: NDArray[Any]

    def names(self, indices: Any) -> NDArray[Any]:
        """Return the names of items by number, as `DPRecommender.recommend` returns them.

        Parameters
        ----------
        indices : array-like of int
            Numbers of items; -1 stands for none.

        Returns
        -------
        names : ndarray of object
            In the shape of `indices`; None for -1.
        """
        places = np.asarray(indices)
        found = self.items[np.maximum(places, 0)]
        return np.asarray(np.where(places < 0, None, found))


def histories_of_pairs(
    pairs_users: Any, pairs_items: Any, *, items: Any, users: Any = None, values: Any = None
) -> Histories:
    """Return the sparse matrix of pairs (user, item), with the names of its rows and columns.

    Private: the matrix is the data. The catalogue `items` must be public, so that the columns tell
    of nobody: a pair with an item that is not in it adds nothing, nor does one without a user (None
    or NaN), who would be another row at each pair.

    Parameters
    ----------
    pairs_users, pairs_items : array-like of shape (n_pairs,)
        Who, and what: one pair for each interaction, such as two columns of a table. A pair that
        comes more than once counts once, with the largest of its values.
    items : array-like
        The public catalogue, without repetitions: the columns, in this order.
    users : array-like or None, default=None
        Names of the rows, without repetitions. None takes those of the pairs as they come, for
        ``privacy_unit="row"``: there the number of users is private. For "interaction" it is
        public, and so must be the list.
    values : array-like of shape (n_pairs,) or None, default=None
        Positive values such as ratings; None counts each pair as one.

    Returns
    -------
    histories : Histories
        ``histories.matrix`` is what `DPRecommender.fit` takes, and ``histories.names(indices)``
        brings its recommendations back to names.

    Examples
    --------
    >>> from skdp.recommend import histories_of_pairs
    >>> who, what = ["ann", "bob", "ann"], ["tea", "tea", "jam"]
    >>> histories = histories_of_pairs(who, what, items=["jam", "tea", "ham"])
    >>> histories.matrix.toarray().tolist()
    [[1.0, 1.0, 0.0], [0.0, 1.0, 0.0]]
    >>> histories.names([[1, -1]]).tolist()
    [['tea', None]]
    """
    who, what = _each(pairs_users), _each(pairs_items)
    if len(who) != len(what):
        raise ValueError(
            "pairs_users and pairs_items must be columns of the same length. Got "
            f"{len(who)} and {len(what)} names."
        )
    weights = np.ones(len(who)) if values is None else _numbers(values)
    if weights.shape != (len(who),):
        raise ValueError(f"values must have one number for each pair. Got {weights.shape}.")
    catalogue = _catalogue(items, "items")
    if users is None:
        seen = dict.fromkeys(filter(_is_name, who))
        names = {key: i for i, key in enumerate(seen)}
    else:
        names = _catalogue(users, "users")
    rows, columns = _places(who, names), _places(what, catalogue)
    known = (rows >= 0) & (columns >= 0)
    rows, columns, weights = rows[known], columns[known], weights[known]
    order = np.lexsort((-weights, columns, rows))  # the largest value of a pair comes first
    rows, columns, weights = rows[order], columns[order], weights[order]
    first = np.ones(len(rows), bool)
    first[1:] = (np.diff(rows) != 0) | (np.diff(columns) != 0)
    cells = (weights[first], (rows[first], columns[first]))
    matrix = sp.csr_array(cells, shape=(len(names), len(catalogue)))
    return Histories(matrix, _as_objects(names), _as_objects(catalogue))


def _each(values: Any) -> list[Any]:
    """Return names one by one: in an array of several types one would rename all others."""
    return list(values.tolist() if hasattr(values, "tolist") else values)


def _numbers(values: Any) -> NDArray[np.float64]:
    try:
        found = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        found = None
    if found is None:  # out here no context holds the value
        raise ValueError("values must hold numbers.")
    return found


def _is_name(key: Any) -> bool:
    """Whether a key tells who it is: one that is missing equals nothing, not even itself."""
    try:
        return key is not None and isinstance(key, Hashable) and bool(key == key)
    except TypeError:  # as pandas.NA
        return False


def _catalogue(given: Any, name: str) -> dict[Any, int]:
    names = _each(given)
    places = {key: i for i, key in enumerate(names)}
    if not names or len(places) < len(names):
        raise ValueError(f"{name!r} must be a list of names without repetitions.")
    return places


def _places(wanted: list[Any], names: dict[Any, int]) -> NDArray[np.int64]:
    """Return the number of each name, or -1."""
    found = (names.get(key, -1) if isinstance(key, Hashable) else -1 for key in wanted)
    return np.fromiter(found, np.int64, len(wanted))


def _as_objects(names: dict[Any, int]) -> NDArray[Any]:
    out = np.empty(len(names), object)
    out[:] = list(names)
    return out
