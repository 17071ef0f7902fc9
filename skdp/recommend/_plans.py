"""Made histories of which some items are hidden: what a recommender finds of them."""

import math

import numpy as np
import scipy.sparse as sp

from skdp.recommend._lists import recall_at_n
from skdp.theory import Made, PlansMixin
from skdp.theory._made import made_histories
from skdp.theory._plan import check_entries

_MOST_ONES, _USUAL_ONES = 400_000, 10  # of made histories; of each
_HIDDEN, _N_ITEMS, _JUDGED = 0.2, 20, 1000  # share of items; of a list; histories that are judged


class RecommenderPlans(PlansMixin):
    """Plans of recommenders.

    Fact: `nnz`, the number of interactions (None: ten of each user).
    """

    _measure = f"share of hidden items in lists of {_N_ITEMS}"

    def _made(self, rng, n, d, nnz=None):
        nnz = min(_USUAL_ONES, d) * n if nnz is None else nnz
        check_entries(self, nnz, n, d)
        rows = n if nnz <= _MOST_ONES else max(n * _MOST_ONES // nnz, 500)
        whole = made_histories(rng, rows, d, max(nnz * rows // n, 1))
        users, hides = np.repeat(np.arange(rows), np.diff(whole.indptr)), rng.random(whole.nnz)
        shown, hidden = (
            sp.csr_array((whole.data[part], (users[part], whole.indices[part])), shape=whole.shape)
            for part in (hides >= _HIDDEN, hides < _HIDDEN)
        )
        judged, size = slice(0, _JUDGED), min(_N_ITEMS, d)
        known = shown[judged].toarray() > 0
        order = np.argsort(np.where(known, -1.0, shown.sum(axis=0)), axis=1)[:, ::-1]

        def score(model):
            return recall_at_n(model.recommend(shown[judged], size)[0], hidden[judged])

        popular = recall_at_n(order[:, :size], hidden[judged])
        said = (
            f"{rows} histories with {nnz / n:.3g} items each, popular ones and those of factors; "
        )
        said += f"the most popular items, without noise, would find {popular:.2g}"
        return Made(lambda model: model.fit(shown), score, (said,), n / rows, best=math.nan)
