"""The best items of each user, in bounded memory."""

import numpy as np

_SCORES = 2**20  # computed at once: they stay in the cache, and in bounded memory


def best_items(score, rows, n, *, exclude_known, items=None):
    """Return (item numbers, scores), best first, for each row of a CSR array.

    ``score(rows)`` gives the scores of all items. Where fewer than `n` items may be recommended
    the number is -1 and the score -inf.
    """
    count = rows.shape[0]
    indices = np.full((count, n), -1, np.int64)
    scores = np.full((count, n), -np.inf)
    for start in range(0, count, max(1, _SCORES // rows.shape[1])):
        block = rows[start : start + max(1, _SCORES // rows.shape[1])]
        found = score(block)
        if exclude_known:
            found[
                np.repeat(np.arange(block.shape[0]), np.diff(block.indptr)), block.indices
            ] = -np.inf
        found = found if items is None else found[:, items]
        best = _largest(found, min(n, found.shape[1]))
        top = np.take_along_axis(found, best, axis=1)
        names = best if items is None else items[best]
        stop = start + block.shape[0]
        indices[start:stop, : best.shape[1]] = np.where(np.isfinite(top), names, -1)
        scores[start:stop, : best.shape[1]] = top
    return indices, scores


def _largest(scores, n):
    """Return the columns of the n largest scores of each row, largest first."""
    if n < scores.shape[1]:
        best = np.argpartition(scores, scores.shape[1] - n, axis=1)[:, -n:]
    else:
        best = np.broadcast_to(np.arange(n), scores.shape).copy()
    best.sort(axis=1)  # equal scores: by number
    order = np.argsort(-np.take_along_axis(scores, best, axis=1), axis=1, kind="stable")
    return np.take_along_axis(best, order, axis=1)
