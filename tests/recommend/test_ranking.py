"""Lists of the best items: those of a full sort, however few scores are looked at."""

import numpy as np
import pytest
import scipy.sparse as sp

from skdp.recommend._lists import best_items
from skdp.solvers.item_filter import ItemFilter


@pytest.mark.parametrize("n_items", [19, 64 * 20, 64 * 20 + 7, 3000])
@pytest.mark.parametrize("n", [1, 5, 30])
def test_lists_are_those_of_a_sort(n_items, n):
    """In wide tables the maxima of groups come first; known items are anywhere, also the last."""
    rng = np.random.default_rng(n_items + n)
    scores = rng.standard_normal((7, n_items))
    scores[1] = np.arange(n_items)
    scores[2] = -np.arange(n_items)
    known = rng.random((7, n_items)) < 0.3
    known[3, : n_items - 2] = True  # two items are left
    items, values = best_items(lambda _: scores.copy(), sp.csr_array(known), n, exclude_known=True)
    wanted = np.where(known, -np.inf, scores)
    order = np.argsort(-wanted, axis=1, kind="stable")[:, :n]
    top = np.take_along_axis(wanted, order, axis=1)
    m = order.shape[1]
    np.testing.assert_array_equal(values[:, :m], top)
    np.testing.assert_array_equal(items[:, :m], np.where(np.isfinite(top), order, -1))
    assert np.all(items[:, m:] == -1)


@pytest.mark.parametrize("n_kept", [5, 30])
@pytest.mark.parametrize("blend", [0.0, 0.5])
def test_scores_of_blocks_are_the_scores(n_kept, blend):
    """Whether tastes are added to the kept items alone, or come with zeros for the others."""
    rng = np.random.default_rng(0)
    kept = np.sort(rng.permutation(40)[:n_kept])
    inward, outward = rng.standard_normal((n_kept, 3)), rng.standard_normal((2, n_kept))
    tastes = ItemFilter(kept, 1 + rng.random(40), inward, outward, 0.7, blend)
    rows = sp.csr_array((rng.random((9, 40)) < 0.3).astype(float))
    np.testing.assert_allclose(tastes.scorer()(rows), tastes.scores(rows), atol=1e-12)
    flips = (1.5, 0.2)
    wanted = tastes.flipped_scores(rows, *flips)
    np.testing.assert_allclose(tastes.scorer(flips)(rows), wanted, atol=1e-12)
