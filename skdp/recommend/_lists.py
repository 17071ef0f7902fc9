"""Pairs of a user and an item, lists for users, and how good they are."""

from __future__ import annotations

from collections.abc import Hashable
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted

from skdp._inputs import check_histories
from skdp._limits import BLOCK
from skdp._validation import check_count, kind_of, refuse_merged
from skdp.data.histories import hidden_cells, with_entries

# From pairs of a user and an item to a matrix of histories, and back to names.


class InteractionMatrix(NamedTuple):
    """A matrix of users x items, and the names of its rows and columns.

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

    def __repr__(self) -> str:
        """Return the shape alone: the names of users are private, and would fill a notebook."""
        return f"InteractionMatrix({len(self.users)} users x {len(self.items)} items)"

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
        if (places := np.asarray(indices)).dtype.kind not in "iu":
            raise TypeError("names takes item numbers: the first of the arrays of recommend.")
        found = self.items[np.maximum(places, 0)]
        return np.asarray(np.where(places < 0, None, found))


def interactions_from_pairs(
    pairs_users: Any, pairs_items: Any, *, items: Any, users: Any = None, values: Any = None
) -> InteractionMatrix:
    """Return the sparse matrix of pairs (user, item), with the names of its rows and columns.

    The result is private data. The catalogue `items` must be public. A pair with an item outside
    the catalogue, or without a user (None or NaN), adds nothing.

    Parameters
    ----------
    pairs_users, pairs_items : array-like of shape (n_pairs,)
        Who, and what: one pair for each interaction, such as two columns of a table. A pair that
        comes more than once counts once, with the largest of its values.
    items : array-like
        The public catalogue, without repetitions: the columns, in this order. Sets, which have no
        fixed order, are refused. So are numbers for an array of text, and text for numbers.
    users : array-like or None, default=None
        Names of the rows, without repetitions. None takes the users of the pairs, in their order,
        for ``privacy_unit="row"``. For "interaction" the users are public, and so must be the list.
    values : array-like of shape (n_pairs,) or None, default=None
        Positive values such as ratings; None counts each pair as one.

    Returns
    -------
    histories : InteractionMatrix
        ``histories.matrix`` is the input of `DPRecommender.fit`, and ``histories.names(indices)``
        returns the names of its recommendations.

    Examples
    --------
    >>> from skdp.recommend import interactions_from_pairs
    >>> who, what = ["ann", "bob", "ann"], ["tea", "tea", "jam"]
    >>> histories = interactions_from_pairs(who, what, items=["jam", "tea", "ham"])
    >>> histories.matrix.toarray().tolist()
    [[1.0, 1.0, 0.0], [0.0, 1.0, 0.0]]
    >>> histories.names([[1, -1]]).tolist()
    [['tea', None]]
    """
    who, what = _each(pairs_users), _each(pairs_items)
    refuse_merged(np.array([name for name in who if isinstance(name, float | np.floating)]))
    if hasattr(pairs_users, "dtype"):  # narrower floats merge earlier
        refuse_merged(np.asarray(pairs_users))
    if len(who) != len(what):
        raise ValueError(
            f"pairs_users and pairs_items need the same length. Got {len(who)} and {len(what)}."
        )
    weights = np.ones(len(who)) if values is None else _numbers(values)
    if weights.shape != (len(who),):
        raise ValueError(f"values must have one number for each pair. Got {weights.shape}.")
    catalogue, kind = _catalogue(items, "items"), kind_of(pairs_items)
    for other, its in (("text", str), ("bytes", bytes), ("numbers", Real)):
        if kind not in (None, other) and all(isinstance(key, its) for key in catalogue):
            raise ValueError(f"'items' are {other} and pairs_items {kind}: no pair would match.")
    if users is None:
        names = {key: i for i, key in enumerate(dict.fromkeys(filter(_is_name, who)))}
    else:
        names = _catalogue(users, "users")
    rows, columns = _places(who, names), _places(what, catalogue)
    known = (rows >= 0) & (columns >= 0)
    shape, pairs = (len(names), len(catalogue)), rows * len(catalogue) + columns
    order = np.flatnonzero(known)[np.argsort(-weights[known], kind="stable")]
    cells, first = np.unique(pairs[order], return_index=True)  # the largest value comes first
    matrix = sp.csr_array((weights[order][first], np.divmod(cells, shape[1])), shape=shape)
    users, items = (np.fromiter(given, object, len(given)) for given in (names, catalogue))
    return InteractionMatrix(matrix, users, items)


def _each(values: Any) -> list[Any]:
    """Return names one by one: in an array of several types one would rename all others."""
    if sp.issparse(values) or getattr(values, "ndim", 1) != 1:  # its rows would be names
        raise ValueError("names must be a list or one dense column: frame['user'], array.ravel().")
    return list(values.tolist() if hasattr(values, "tolist") else values)


def _numbers(values: Any) -> NDArray[np.float64]:
    try:
        found = np.asarray(np.ma.filled(values, np.nan), np.float64)
    except (TypeError, ValueError, OverflowError):
        found = None
    if found is None:  # out here no context holds the value
        raise ValueError("values must hold numbers.")
    return found


def _is_name(key: Any) -> bool:
    """Whether a key identifies somebody: a missing one equals nothing, not even itself."""
    try:
        return key is not None and isinstance(key, Hashable) and bool(key == key)
    except TypeError:  # as pandas.NA
        return False


def _catalogue(given: Any, name: str) -> dict[Any, int]:
    if isinstance(given, set | frozenset):  # a saved model would have other names
        raise ValueError(f"{name!r} is a set, whose order changes: use sorted({name}).")
    names = _each(given)
    places = {key: i for i, key in enumerate(names)}
    if not names or len(places) < len(names):
        raise ValueError(f"{name!r} must be a list of names without repetitions.")
    return places


def _places(wanted: list[Any], names: dict[Any, int]) -> NDArray[np.int64]:
    """Return the number of each name, or -1."""
    found = (names.get(key, -1) if isinstance(key, Hashable) else -1 for key in wanted)
    return np.fromiter(found, np.int64, len(wanted))


# The best items of each user, in bounded memory.


def best_items(score, rows, n, *, exclude_known, items=None):
    """Return (item numbers, scores), best first, for each row of a CSR array.

    ``score(rows)`` gives the scores of all items. Where fewer than `n` items may be recommended
    the number is -1 and the score -inf.
    """
    count = rows.shape[0]
    indices = np.full((count, n), -1, np.int64)
    scores = np.full((count, n), -np.inf)
    for start in range(0, count, max(1, BLOCK // rows.shape[1])):
        block = rows[start : start + max(1, BLOCK // rows.shape[1])]
        found = score(block)
        if exclude_known:
            known = block.tocoo()
            found[known.row, known.col] = -np.inf
        found = found if items is None else found[:, items]
        best, top = _largest(found, min(n, found.shape[1]))
        names = best if items is None else items[best]
        stop = start + block.shape[0]
        indices[start:stop, : best.shape[1]] = np.where(np.isfinite(top), names, -1)
        scores[start:stop, : best.shape[1]] = top
    return indices, scores


def _largest(scores, n):
    """Return (columns, values) of the n largest scores of each row, largest first."""
    best = np.sort(np.argpartition(scores, -n, axis=1)[:, -n:], axis=1)  # equal scores: by number
    top = np.take_along_axis(scores, best, axis=1)
    order = np.argsort(-top, axis=1, kind="stable")
    return np.take_along_axis(best, order, axis=1), np.take_along_axis(top, order, axis=1)


# Uses of a fitted public filter: lists for users, popular items, similar items.


class ListsMixin:
    """Lists from `filter_`, `item_counts_`, `selected_items_`; `_histories` gives rows its form.

    Those of all users of a fit, from `randomized_interactions_`, may be published.
    """

    def recommend_all(self, n: int = 20) -> Any:
        """Recommend to all users of the fit, from their randomized rows; this may be published.

        This needs the "one_shot" release, whose pure epsilon covers these lists together, because
        they use no exact row. Items of the randomized row are omitted; items that the user has may
        occur. Lists from exact rows (`recommend`) are better.

        Parameters
        ----------
        n : int, default=20
            Number of recommendations.

        Returns
        -------
        indices, scores : ndarray of shape (n_users, n)
            As of `recommend`.
        """
        check_is_fitted(self)
        if self.randomized_interactions_ is None:
            raise ValueError(
                "recommend_all needs a fit with algorithm='one_shot', privacy_unit='interaction' "
                "and item counts above the noise; else use recommend, for one user at a time. The "
                f"fit used {self.algorithm_reason_!r}."
            )
        rows = self.randomized_interactions_.rows
        columns, shape = self.selected_items_[rows.indices], (rows.shape[0], self.n_features_in_)
        rows = sp.csr_array((rows.data, columns, rows.indptr), shape=shape)
        score = self.filter_.scorer(self.randomized_interactions_.unbiased)
        return best_items(score, rows, check_count("n", n, 1), exclude_known=True)

    def recommend(
        self, R: Any, n: int = 20, *, exclude_known: bool = True, items: Any = None
    ) -> Any:
        """Recommend items to users, from their own exact rows. Each list is for its user alone.

        Parameters
        ----------
        R : {array-like, sparse matrix} of shape (n_users, n_items)
            Rows of the users, who may be in the fit or not.
        n : int, default=20
            Number of recommendations.
        exclude_known : bool, default=True
            Whether to omit the items of the row.
        items : array-like of int, default=None
            Recommend only among these.

        Returns
        -------
        indices : ndarray of shape (n_users, n)
            Item numbers, best first; -1 where too few items are left.
        scores : ndarray of shape (n_users, n)
            Their scores.
        """
        check_is_fitted(self)
        rows = self._histories(R)
        options = {"exclude_known": exclude_known, "items": self._checked_items(items)}
        return best_items(self.filter_.scorer(), rows, check_count("n", n, 1), **options)

    def popular_items(self, n: int = 20) -> Any:
        """Return the most popular items by the released counts.

        Parameters
        ----------
        n : int, default=20
            Number of items.

        Returns
        -------
        indices, counts : ndarray of shape (n,)
            Item numbers and noisy counts, largest first.
        """
        check_is_fitted(self)
        best = np.argsort(-self.item_counts_, kind="stable")[: check_count("n", n, 1)]
        return best, self.item_counts_[best]

    def item_similarity(self, item: Any, n: int = 20) -> Any:
        """Return the items that are liked by the same users, by the public filter.

        Parameters
        ----------
        item : int
            Item number.
        n : int, default=20
            Number of items.

        Returns
        -------
        indices, similarities : ndarray of shape (n,)
            Item numbers and cosines of their factors, largest first. An item without factors above
            the noise is similar to none: the number is -1 and the cosine -inf, as in `recommend`.
        """
        check_is_fitted(self)
        self._checked_items([item])
        factors = np.zeros((self.filter_.rank, self.n_features_in_))
        factors[:, self.selected_items_] = self.filter_.item_factors()
        lengths = np.linalg.norm(factors, axis=0)
        cosines = (factors[:, item] @ factors) / np.maximum(lengths * lengths[item], 1e-300)
        cosines[(lengths * lengths[item] == 0) | (np.arange(len(cosines)) == item)] = -np.inf
        best = np.argsort(-cosines, kind="stable")[: check_count("n", n, 1)]
        return np.where(np.isfinite(cosines[best]), best, -1), cosines[best]

    def _checked_items(self, items):
        if items is None:
            return None
        items = check_array(items, ensure_2d=False, dtype=None, input_name="items")
        inside = items.ndim == 1 and items.dtype.kind in "iu"
        if not inside or items.min() < 0 or items.max() >= self.n_features_in_:
            raise ValueError(
                f"items must be item numbers from 0 to {self.n_features_in_ - 1}. Got {items!r}."
            )
        return np.unique(items)


# Quality of recommendations, on items that the recommender did not get.


def parted(rows):
    """Return the items of histories that are hidden, as ones, and the others as they are."""
    hidden = hidden_cells(rows)
    others = np.where(hidden, 0.0, rows.data)
    return with_entries(rows, hidden.astype(np.float64)), with_entries(rows, others)


def missed_share(model: Any, X: Any) -> Any:
    """Share of the hidden items of each row that are not in the list for the others.

    It has 20 items, or a quarter of a small catalogue.
    A fifth of the items is hidden, by a rule of the row's own items. The loss of a private scorer:
    see `make_private_scorer`, whose "missed_items" it is.
    """
    rows = model._histories(X)
    hidden, known = parted(rows)
    judged = (np.diff(hidden.indptr) > 0) & (np.diff(known.indptr) > 0)
    # A row with nothing to hide, or nothing to go by, counts as half of a loss.
    losses, length = np.full(rows.shape[0], 0.5), model.filter_.list_length
    score = model.filter_.scorer()
    for u in np.flatnonzero(judged):  # one at a time: bits of a product depend on other rows
        lists, _ = best_items(score, known[[u]], length, exclude_known=True)
        wanted = hidden.indices[hidden.indptr[u] : hidden.indptr[u + 1]]
        losses[u] = 1 - np.isin(wanted, lists[0]).mean()
    return losses


def _hits(recommended, truth):
    """Return (whether each recommended item is in the truth, sizes of the truth), users with any.

    An index of -1 stands for an item that was not recommended.
    """
    truth = check_histories(truth, "truth")
    recommended, sizes = np.asarray(recommended), np.diff(truth.indptr)
    lists = recommended.ndim == 2 and recommended.dtype.kind in "iu"
    if not lists or recommended.max(initial=-1) >= truth.shape[1] or len(recommended) != len(sizes):
        raise ValueError(
            f"recommended must have one row of item numbers below {truth.shape[1]} for each of "
            f"{len(sizes)} users. Got {recommended.dtype} of shape {recommended.shape}."
        )
    users = np.repeat(np.arange(len(recommended)), recommended.shape[1])
    found = np.asarray(truth[users, np.maximum(recommended, 0).ravel()]).reshape(-1) > 0
    hits = found.reshape(recommended.shape) & (recommended >= 0)
    return hits[sizes > 0], sizes[sizes > 0]


def recall_at_n(recommended: Any, truth: Any) -> float:
    """Mean fraction of each user's held-out items that were recommended.

    Computed on private data without noise: not covered by epsilon.

    Parameters
    ----------
    recommended : array of shape (n_users, n)
        Item numbers, as `DPRecommender.recommend` returns them.
    truth : {array-like, sparse matrix} of shape (n_users, n_items)
        Held-out interactions; users without any are left out.

    Returns
    -------
    recall : float
        In [0, 1].

    Examples
    --------
    >>> import numpy as np
    >>> from skdp.recommend import recall_at_n
    >>> recall_at_n(np.array([[0, 1], [2, 0]]), np.array([[1, 0, 1], [0, 0, 1]]))
    0.75
    """
    hits, sizes = _hits(recommended, truth)
    return float(np.mean(hits.sum(axis=1) / sizes)) if len(sizes) else 0.0


def ndcg_at_n(recommended: Any, truth: Any) -> float:
    """Mean normalised discounted cumulative gain: earlier hits count more.

    Computed on private data without noise: not covered by epsilon.

    Parameters
    ----------
    recommended : array of shape (n_users, n)
        Item numbers, best first.
    truth : {array-like, sparse matrix} of shape (n_users, n_items)
        Held-out interactions; users without any are left out.

    Returns
    -------
    ndcg : float
        In [0, 1].

    Examples
    --------
    >>> import numpy as np
    >>> from skdp.recommend import ndcg_at_n
    >>> ndcg_at_n(np.array([[0, 1]]), np.array([[1, 0, 0]]))
    1.0
    """
    hits, sizes = _hits(recommended, truth)
    if not len(sizes):
        return 0.0
    discounts = 1 / np.log2(np.arange(2, hits.shape[1] + 2))
    best = np.cumsum(discounts)[np.minimum(sizes, hits.shape[1]) - 1]
    return float(np.mean(hits @ discounts / best))
