"""Entry fits of DPTruncatedSVD by the second moment of the rows, and of a whole matrix at once.

A row moves little of the moment by one entry: where the matrix is thin this beats products.
"""

import math

import numpy as np

from skdp.decomposition._interaction_fits import chosen_pairs
from skdp.decomposition._spectral import DIRECTION_LEVEL, rotate_by_ritz, row_clip_norm
from skdp.queries.entry_rows import EntryRowQuery, moment_change
from skdp.solvers.flipped import read_triplets
from skdp.solvers.linalg import symmetric_noise_edge
from skdp.solvers.screening import moment_columns, screened_moment
from skdp.theory._one_shot import MOST_CELLS, MOST_WHOLE

MOST_DENSE = 4000  # columns of a dense moment
_USUAL_LENGTH = 0.25  # of the longest that a row may be, where nothing is known
_SUBSPACE, _LEFT, _RITZ, _CLIP = 0.83, 0.05, 0.03, 0.07  # of the budget; 0.02 show means and total
_ENOUGH = 60.0  # rows, in deviations of noise, for a learnt clip norm
_QUIET = 0.01  # of the squares of all rows


def moment_thresholds(estimator, session, unit, shape):
    """Return ({route: singular value at the edge of its noise}, whether that is small).

    From public numbers. Where it is small, products would still have to converge.
    """
    seen = estimator.clip_norm != "auto" or shape[0] > _ENOUGH * session.noise_multiplier
    if unit.name != "entry" or not seen:
        return {}, False
    length = usual_length(estimator, unit, shape[1])
    noise = _moment_noise(session, unit, length)
    kept = moment_columns(shape[0] * length**2 / noise, shape[1], estimator.n_components)
    if kept < shape[1] and unit.low < 0:  # sums show nothing of entries with both signs
        kept = shape[1]
    if kept > MOST_DENSE:
        return {}, False
    name, edge = "gram" if kept == shape[1] else "screened", symmetric_noise_edge(noise, kept)
    return {name: math.sqrt(edge)}, edge < _QUIET * shape[0] * length**2


def usual_length(estimator, unit, n):
    """Return the clip norm that is given, or a guess of the one that is learnt."""
    if estimator.clip_norm != "auto":
        return float(estimator.clip_norm)
    return unit.alpha * max(1.0, _USUAL_LENGTH * math.sqrt(n))


def _moment_noise(session, unit, clip_norm):
    return session.noise_multiplier * moment_change(unit, clip_norm) / math.sqrt(_SUBSPACE)


def moment_triplets(estimator, session, X, unit, route, products):
    """Return (U, singular values, V): V from the moment, U from a product with it."""
    k, (m, n) = estimator.n_components, X.shape
    rows, exact = session.ask(EntryRowQuery(X, unit)), session.budget.exact
    near = usual_length(estimator, unit, n)
    level = DIRECTION_LEVEL * min(1.0, moment_change(unit, near) / near**2)
    clip_norm = row_clip_norm(estimator, session, rows, _CLIP, n, level=level, near=near).value
    rows = rows.clipped(clip_norm)
    share = _SUBSPACE + (0.0 if estimator.clip_norm == "auto" else _CLIP)
    if route == "gram" or exact:
        squares, V = chosen_pairs(rows.gram(share=share + (0.0 if exact else _RITZ)), k)
    else:
        signal = m * clip_norm**2 / _moment_noise(session, unit, clip_norm)
        V = screened_moment(rows, n, k, share, signal)
        squares, V = rotate_by_ritz(rows.ritz, V, _RITZ)
    left = products.right(V, share=_LEFT).value
    U, _, W = np.linalg.svd(left, full_matrices=False)
    return U @ W, np.sqrt(squares), V


def is_small(shape):
    """Whether a whole matrix is released at once: a product with the identity."""
    return math.prod(shape) <= MOST_CELLS and min(shape) <= MOST_WHOLE


def whole_triplets(ask, shape, k, share):
    """Return the k leading (U, singular values, V) of a matrix that is released whole."""
    m, n = shape
    answer = ask.right(np.eye(n), share=share) if n <= m else ask.left(np.eye(m), share=share)
    return read_triplets(answer.value if n <= m else answer.value.T, answer.noise_scale, k)
