"""The best items of each user, in bounded memory."""

import numpy as np

_SCORES = 2**20  # computed at once: they stay in the cache, and in bounded memory
_GROUP = 64  # items, of which the largest is looked at first


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
        best, top = _largest(found, min(n, found.shape[1]))
        names = best if items is None else items[best]
        stop = start + block.shape[0]
        indices[start:stop, : best.shape[1]] = np.where(np.isfinite(top), names, -1)
        scores[start:stop, : best.shape[1]] = top
    return indices, scores


def _largest(scores, n):
    """Return (columns, values) of the n largest scores of each row, largest first."""
    best, among = _candidates(scores, n)
    if n < among.shape[1]:
        places = np.argpartition(among, among.shape[1] - n, axis=1)[:, -n:]
        best = np.take_along_axis(best, places, axis=1)
    best.sort(axis=1)  # equal scores: by number
    top = np.take_along_axis(scores, best, axis=1)
    order = np.argsort(-top, axis=1, kind="stable")
    return np.take_along_axis(best, order, axis=1), np.take_along_axis(top, order, axis=1)


def _candidates(scores, n):
    """Return (columns, values) that hold the n largest of each row.

    They are in the n groups with the largest maxima, or among the last items, which have no group:
    a pass for maxima is far cheaper than one that parts all scores. A group is every so manieth
    item, so that maxima are taken of whole stretches of memory.
    """
    count, width = scores.shape
    n_groups = width // _GROUP
    if n_groups < 4 * n:
        return np.broadcast_to(np.arange(width), scores.shape).copy(), scores
    inside = n_groups * _GROUP
    most = scores[:, :inside].reshape(count, _GROUP, n_groups).max(axis=1)
    groups = np.argpartition(most, n_groups - n, axis=1)[:, -n:]
    within = (groups[:, None, :] + np.arange(0, inside, n_groups)[:, None]).reshape(count, -1)
    rest = np.broadcast_to(np.arange(inside, width), (count, width - inside))
    best = np.hstack([within, rest])
    return best, np.take_along_axis(scores, best, axis=1)
