"""Lists of all users of a fit that may be published: from flipped histories."""

from __future__ import annotations

from typing import Any

import scipy.sparse as sp
from sklearn.utils.validation import check_is_fitted

from skdp.recommend._ranking import best_items


class PublishedListsMixin:
    """Lists from `filter_` and `flipped_`, both of which are released."""

    def recommend_all(self, n: int = 20) -> Any:
        """Recommend to all users of the fit, from their flipped histories: publishable.

        Needs the "one_shot" release, whose pure epsilon covers these lists of all users together:
        no true history is used. Items that a flipped history holds are left out, others that the
        user knows may come. Lists from true histories (`recommend`) are better.

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
        if self.flipped_ is None:
            raise ValueError(
                "there are no flipped histories: this needs algorithm='one_shot', and counts that "
                f"can be read. The fit took {self.route_!r}."
            )
        rows = self.flipped_.rows
        columns, shape = self.kept_items_[rows.indices], (rows.shape[0], self.n_features_in_)
        rows = sp.csr_array((rows.data, columns, rows.indptr), shape=shape)
        score = self.filter_.scorer(self.flipped_.unbiased)
        return best_items(score, rows, self._checked_number(n), exclude_known=True)
