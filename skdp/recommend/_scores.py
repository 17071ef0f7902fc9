"""How good recommendations are, on items that the recommender has not seen."""

from __future__ import annotations

from typing import Any

import numpy as np

from skdp._inputs import check_histories
from skdp.data.histories import hidden_cells, without_hidden
from skdp.recommend._ranking import best_items

_UNJUDGED = 0.5  # loss of a row with nothing to hide, or nothing to go by


def missed_share(model: Any, X: Any, _: Any = None) -> Any:
    """Share of the hidden items of each row that are not in the list for the others.

    It has 20 items, or a quarter of a small catalogue.
    A fifth of the items is hidden, by a rule of the row's own items. The loss of a private scorer:
    see `make_private_scorer`, whose "missed_items" it is.
    """
    rows = model._histories(X)
    hidden, known = rows.copy(), without_hidden(rows, 1.0, by_cell=False)
    hidden.data = hidden_cells(rows, 1.0, by_cell=False).astype(np.float64)
    hidden.eliminate_zeros()
    judged = (np.diff(hidden.indptr) > 0) & (np.diff(known.indptr) > 0)
    losses, length = np.full(rows.shape[0], _UNJUDGED), model.filter_.list_length
    for u in np.flatnonzero(judged):  # a row at a time: the bits of a product depend on its company
        row = known[[u]]
        lists, _ = best_items(model.filter_.scores, row, length, exclude_known=True)
        wanted = hidden.indices[hidden.indptr[u] : hidden.indptr[u + 1]]
        losses[u] = 1 - np.isin(wanted, lists[0]).mean()
    return losses


def _hits(recommended, truth):
    """Return (whether each recommended item is in the truth, sizes of the truth), users with any.

    An index of -1 stands for an item that was not recommended.
    """
    truth = check_histories(truth, "truth")
    recommended = np.asarray(recommended)
    if recommended.ndim != 2 or len(recommended) != truth.shape[0]:
        raise ValueError(
            f"recommended must have one row of item numbers for each of {truth.shape[0]} users. "
            f"Got shape {recommended.shape}."
        )
    users = np.repeat(np.arange(len(recommended)), recommended.shape[1])
    found = np.asarray(truth[users, np.maximum(recommended, 0).ravel()]).reshape(-1) > 0
    sizes = np.diff(truth.indptr)
    hits = found.reshape(recommended.shape) & (recommended >= 0)
    return hits[sizes > 0], sizes[sizes > 0]


def recall_at_n(recommended: Any, truth: Any) -> float:
    """Mean share of each user's held-out items that were recommended.

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
