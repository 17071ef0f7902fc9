"""Made histories: binary rows with heavy-tailed columns and lengths, drawn from public numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp.privacy.accounting.losses import epsilon_from_mu_delta, mu_from_epsilon_delta

_SPREAD_OF_LENGTHS = 0.9  # deviation of their logarithm
# Of matrices that plans are made with: between blocks of tastes and popularity alone.
_TASTES, _OVERLAP, _SPREAD, TAIL = 40, 0.25, 3.0, 0.65


def planned_histories(
    n: int, d: int, nnz: int, tail: float = TAIL, seed: int = 0, *, apart: int = 0
) -> Any:
    """Return the matrix of 0 and 1 that stands for sparse data of a public size.

    Parameters
    ----------
    n, d : int
        Its shape.
    nnz : int
        Number of its ones, which is reached up to repeated draws.
    tail : float
        The column of rank i is drawn with weight ``i ** -tail``.
    seed : int
        Which of such matrices.
    apart : int
        So many tastes that share no column, of which a row has one; 0 are tastes that overlap, and
        rows that mix them.

    Returns
    -------
    X : csr_array of shape (n, d)
        The same for the same arguments.
    """
    rng = np.random.default_rng(seed)
    popularity = rng.permutation(np.arange(1, d + 1.0) ** -tail)
    activity, most, size = _activity(rng, n), max(1, d // 2), 0.0
    for _ in range(8):  # what the longest rows cannot hold goes to the others
        lengths = np.minimum(np.rint((size or nnz / n) * activity), most)
        size = (size or nnz / n) * nnz / max(float(lengths.sum()), 1.0)
    if apart:
        return apart_histories(rng, lengths.astype(np.int64), popularity, apart, overlap=_OVERLAP)
    options = {"overlap": _OVERLAP, "spread": _SPREAD}
    return drawn_histories(rng, lengths.astype(np.int64), popularity, _TASTES, **options)


def thinned_epsilon(epsilon: float, delta: float, behind: float) -> float:
    """Return the epsilon at which noise is smaller by so much as there are fewer rows."""
    mu = mu_from_epsilon_delta(float(epsilon), float(delta))
    return epsilon_from_mu_delta(mu * behind, float(delta))


def _activity(rng: np.random.Generator, n: int) -> NDArray[np.float64]:
    activity = np.exp(_SPREAD_OF_LENGTHS * rng.standard_normal(n))
    return np.asarray(activity / activity.mean())


def drawn_lengths(
    rng: np.random.Generator, n: int, mean_length: float, most: int
) -> NDArray[np.int64]:
    """Draw log-normal numbers of items about a mean, from 2 to `most`."""
    lengths = np.rint(mean_length * _activity(rng, n))
    return np.clip(lengths, 2, max(2, most)).astype(np.int64)


def drawn_histories(
    rng: np.random.Generator,
    lengths: NDArray[np.int64],
    popularity: NDArray[np.float64],
    n_tastes: int,
    *,
    overlap: float,
    spread: float,
) -> Any:
    """Draw the items of histories: popularity, and tastes that users mix (see `make_histories`)."""
    users = _users_of_draws(lengths)
    mixes = rng.gamma(0.2, size=(len(lengths), n_tastes)) + 1e-9
    edges = np.cumsum(mixes / mixes.sum(axis=1, keepdims=True), axis=1)
    tastes = _taste_of_draw(edges, users, rng)

    def items_of(_: int, n: int) -> NDArray[np.int64]:
        return drawn(popularity * np.exp(spread * rng.standard_normal(len(popularity))), n, rng)

    return _of_tastes(rng, lengths, popularity, overlap, tastes, items_of)


def apart_histories(
    rng: np.random.Generator,
    lengths: NDArray[np.int64],
    popularity: NDArray[np.float64],
    n_tastes: int,
    *,
    overlap: float,
) -> Any:
    """Draw the items of histories of one taste each, which is a part of the items."""
    taste_of_item = rng.permutation(len(popularity)) % n_tastes
    tastes = rng.integers(0, n_tastes, len(lengths))[_users_of_draws(lengths)]

    def items_of(taste: int, n: int) -> NDArray[np.int64]:
        members = np.flatnonzero(taste_of_item == taste)
        return np.asarray(members[drawn(popularity[members], n, rng)])

    return _of_tastes(rng, lengths, popularity, overlap, tastes, items_of)


def _users_of_draws(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the user of each draw: more than a history has, as some items are drawn again."""
    return np.repeat(np.arange(len(lengths)), np.ceil(lengths * 1.6).astype(np.int64) + 3)


def _of_tastes(
    rng: np.random.Generator,
    lengths: NDArray[np.int64],
    popularity: NDArray[np.float64],
    overlap: float,
    tastes: NDArray[np.int64],
    items_of: Callable[[int, int], NDArray[np.int64]],
) -> Any:
    """Draw a share `overlap` of the items by popularity alone, the others by the draw's taste."""
    users = _users_of_draws(lengths)
    items = drawn(popularity, len(users), rng)
    own = rng.random(len(users)) >= overlap
    for taste in range(int(tastes.max(initial=-1)) + 1):
        mine = np.flatnonzero(own & (tastes == taste))
        items[mine] = items_of(taste, len(mine))
    return first_distinct(users, items, lengths, (len(lengths), len(popularity)))


def _taste_of_draw(
    edges: NDArray[np.float64], users: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw a taste for each draw of a user, from the user's mix (cumulative shares)."""
    words = rng.random(len(users))
    tastes = np.zeros(len(users), np.int64)
    for edge in edges[:, :-1].T:
        tastes += words > edge[users]
    return tastes


def drawn(weights: NDArray[np.float64], size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return indices drawn with probability proportional to the weights."""
    edges = np.cumsum(weights)
    found = np.searchsorted(edges, rng.random(size) * edges[-1])
    return np.minimum(found, len(weights) - 1)


def first_distinct(
    users: NDArray[np.int64],
    items: NDArray[np.int64],
    degrees: NDArray[np.int64],
    shape: tuple[int, int],
) -> Any:
    """Return binary rows of each user's first distinct items, up to the user's degree."""
    _, first = np.unique(users * shape[1] + items, return_index=True)
    first.sort()
    users, items = users[first], items[first]
    rank = np.arange(len(users)) - np.searchsorted(users, users, "left")
    kept = rank < degrees[users]
    ones = np.ones(np.count_nonzero(kept))
    R = sp.csr_array((ones, (users[kept], items[kept])), shape=shape)
    R.sort_indices()
    return R
