"""What a fitted public filter is asked for: lists for users, popular items, similar items."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted

from skdp.recommend._ranking import best_items


class ListsMixin:
    """Lists from `filter_`, `counts_` and `kept_items_`; `_histories` brings rows to its form."""

    def recommend(
        self, R: Any, n: int = 20, *, exclude_known: bool = True, items: Any = None
    ) -> Any:
        """Recommend items to users, from their own histories.

        Each list is for its user alone: see the class for what is promised to whom.

        Parameters
        ----------
        R : {array-like, sparse matrix} of shape (n_users, n_items)
            Histories of the users who are served, whether they were in the fit or not.
        n : int, default=20
            Number of recommendations.
        exclude_known : bool, default=True
            Leave out the items of the history.
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
        return best_items(self.filter_.scorer(), rows, self._checked_number(n), **options)

    def popular(self, n: int = 20) -> Any:
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
        best = np.argsort(-self.counts_, kind="stable")[: self._checked_number(n)]
        return best, self.counts_[best]

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
            Item numbers and cosines of their tastes, largest first; an item in which no taste was
            read is similar to none.
        """
        check_is_fitted(self)
        self._checked_items([item])
        tastes = np.zeros((self.filter_.rank, self.n_features_in_))
        tastes[:, self.kept_items_] = self.filter_.item_tastes()
        lengths = np.linalg.norm(tastes, axis=0)
        cosines = (tastes[:, item] @ tastes) / np.maximum(lengths * lengths[item], 1e-300)
        cosines[item] = -np.inf
        best = np.argsort(-cosines, kind="stable")[: self._checked_number(n)]
        return best, cosines[best]

    def _checked_number(self, n):
        if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
            raise ValueError(f"n must be an int in the range [1, inf). Got {n!r} instead.")
        return int(n)

    def _checked_items(self, items):
        if items is None:
            return None
        items = check_array(items, ensure_2d=False, dtype=None, input_name="items")
        inside = items.ndim == 1 and items.dtype.kind in "iu"
        if not inside or items.min() < 0 or items.max() >= self.n_features_in_:
            raise ValueError(
                f"items must be item numbers from 0 to {self.n_features_in_ - 1}. Got {items!r}."
            )
        return items
