"""Synthetic rows, interactions and ratings."""

from __future__ import annotations

from typing import Any

import numpy as np

from skdp.theory._histories import drawn, drawn_histories, drawn_lengths, first_distinct


def make_spiked_rows(
    n_samples: int = 20_000,
    n_features: int = 100,
    n_components: int = 5,
    captured: float = 0.6,
    *,
    random_state: Any = None,
) -> Any:
    """Gaussian rows of norm near 1, with a few strong directions of equal variance.

    Parameters
    ----------
    n_samples, n_features : int
        Shape of the rows.
    n_components : int
        Number of strong directions.
    captured : float
        Share of the variance that they hold together.
    random_state : int, Generator or None
        Seed of the data.

    Returns
    -------
    X : ndarray of shape (n_samples, n_features)
        Rows with expected squared norm 1.

    Examples
    --------
    >>> from skdp.datasets import make_spiked_rows
    >>> make_spiked_rows(100, 8, 2, random_state=0).shape
    (100, 8)
    """
    rng = np.random.default_rng(random_state)
    variances = np.full(n_features, (1 - captured) / (n_features - n_components))
    variances[:n_components] = captured / n_components
    axes = np.linalg.qr(rng.standard_normal((n_features, n_features)))[0]
    return (rng.standard_normal((n_samples, n_features)) * np.sqrt(variances)) @ axes.T


def make_interactions(
    n_users: int = 30_000,
    n_items: int = 20_000,
    n_interactions: int = 730_000,
    n_tastes: int = 20,
    *,
    popularity: float = 0.8,
    taste_share: float = 0.75,
    random_state: Any = None,
) -> Any:
    """Binary user-item matrix: Zipf popularity, planted tastes, log-normal activity.

    Each user has one taste, a part of the catalogue; a share of the user's items is drawn from it,
    the rest from the whole catalogue, always by popularity.

    Parameters
    ----------
    n_users, n_items, n_interactions, n_tastes : int
        Sizes; the number of interactions is reached up to repeated draws.
    popularity : float
        Exponent of the popularity: item i is drawn with weight ``i ** -popularity``.
    taste_share : float
        Share of a user's items that comes from the user's taste.
    random_state : int, Generator or None
        Seed of the data.

    Returns
    -------
    R : csr_array of shape (n_users, n_items)
        Interactions, each 1.0.

    Examples
    --------
    >>> from skdp.datasets import make_interactions
    >>> make_interactions(50, 40, 300, 4, random_state=0).shape
    (50, 40)
    """
    rng = np.random.default_rng(random_state)
    weights = np.arange(1, n_items + 1.0) ** -popularity
    activity = np.exp(0.8 * rng.standard_normal(n_users))
    degrees = np.rint(activity * n_interactions / activity.sum())
    degrees = np.clip(degrees, 1, max(1, n_items // 4)).astype(np.int64)
    taste_of_item = rng.permutation(n_items) % n_tastes
    taste_of_user = rng.integers(0, n_tastes, n_users)
    users = np.repeat(np.arange(n_users), np.ceil(degrees * 1.35).astype(np.int64) + 2)
    items = drawn(weights, len(users), rng)
    own = rng.random(len(users)) < taste_share
    for taste in range(n_tastes):
        mine = np.flatnonzero(own & (taste_of_user[users] == taste))
        members = np.flatnonzero(taste_of_item == taste)
        items[mine] = members[drawn(weights[members], len(mine), rng)]
    return first_distinct(users, items, degrees, (n_users, n_items))


def make_histories(
    n_users: int = 10_000,
    n_items: int = 5_000,
    mean_length: int = 20,
    n_tastes: int = 30,
    *,
    overlap: float = 0.5,
    spread: float = 2.0,
    tail: float = 1.0,
    random_state: Any = None,
) -> Any:
    """Binary histories that are as hard to tell apart as those of real shops.

    Popularity is heavy-tailed, every taste reaches every item, users mix a few tastes, and most
    histories are short: little of the matrix lies in its leading directions. `make_interactions`
    is the easy case, where each user keeps to one part of the catalogue.

    Parameters
    ----------
    n_users, n_items : int
        Shape of the matrix.
    mean_length : float
        Average number of items of a user; lengths are log-normal, at least 2 and at most a quarter
        of the items.
    n_tastes : int
        Number of tastes.
    overlap : float
        Share of the items that is drawn by popularity alone; with 1 there is nothing to learn.
    spread : float
        How far tastes are apart: each weighs an item by its popularity times exp(spread z), z
        standard normal. With 0 all tastes are the same.
    tail : float
        Exponent of the popularity: the item of rank i is drawn with weight ``i ** -tail``.
    random_state : int, Generator or None
        Seed of the data.

    Returns
    -------
    R : csr_array of shape (n_users, n_items)
        Histories, each item 1.0.

    Examples
    --------
    >>> from skdp.datasets import make_histories
    >>> make_histories(50, 40, 8, 4, random_state=0).shape
    (50, 40)
    """
    rng = np.random.default_rng(random_state)
    popularity = rng.permutation(np.arange(1, n_items + 1.0) ** -tail)
    lengths = drawn_lengths(rng, n_users, mean_length, n_items // 4)
    return drawn_histories(rng, lengths, popularity, n_tastes, overlap=overlap, spread=spread)


def make_ratings(
    n_users: int = 3000,
    n_items: int = 1500,
    n_ratings: int = 150_000,
    n_tastes: int = 10,
    *,
    noise_sd: float = 0.5,
    popularity: float = 0.8,
    random_state: Any = None,
) -> Any:
    """Ratings from 1 to 5: Zipf popularity, planted tastes, and items that some like better.

    What is rated comes from `make_interactions`. A rating is 3, plus the quality of the item, plus
    the product of the tastes of user and item, plus noise, rounded and cut to 1 to 5.

    Parameters
    ----------
    n_users, n_items, n_ratings, n_tastes : int
        Sizes; the number of ratings is reached up to repeated draws.
    noise_sd : float
        Standard deviation of the noise.
    popularity : float
        Exponent of the popularity of items.
    random_state : int, Generator or None
        Seed of the data.

    Returns
    -------
    R : csr_array of shape (n_users, n_items)
        Ratings, 0 where there is none.

    Examples
    --------
    >>> from skdp.datasets import make_ratings
    >>> R = make_ratings(50, 40, 300, 4, random_state=0)
    >>> sorted({float(value) for value in R.data})
    [1.0, 2.0, 3.0, 4.0, 5.0]
    """
    rng = np.random.default_rng(random_state)
    sizes = (n_users, n_items, n_ratings, n_tastes)
    R = make_interactions(*sizes, popularity=popularity, random_state=rng)
    users = np.repeat(np.arange(n_users), np.diff(R.indptr))
    of_users = rng.standard_normal((n_users, n_tastes)) / n_tastes**0.25
    of_items = rng.standard_normal((n_items, n_tastes)) / n_tastes**0.25
    scores = 3 + 0.5 * rng.standard_normal(n_items)[R.indices]
    scores += np.einsum("ij,ij->i", of_users[users], of_items[R.indices])
    scores += noise_sd * rng.standard_normal(len(scores))
    R.data = np.clip(np.rint(scores), 1.0, 5.0)
    return R
