"""Synthetic data: low-rank rows, graphs, regressions, streams, tables."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.sparse as sp

from skdp._validation import check_count
from skdp.theory._made import drawn, drawn_histories, drawn_lengths, first_distinct


def _check_sizes(*few_and_many: str, **sizes: Any) -> None:
    """Refuse sizes that are no int of at least 1, and more of the first than of the second."""
    for name, size in sizes.items():
        check_count(name, size, 1)
    few, many = few_and_many or (next(iter(sizes)),) * 2
    if sizes[few] > sizes[many]:
        raise ValueError(f"{few!r} must be at most {many!r}={sizes[many]}. Got {sizes[few]}.")


# Synthetic rows, interactions and ratings.


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
    n_samples, n_features : int, default=20000, 100
        Shape of the rows.
    n_components : int, default=5
        Number of strong directions.
    captured : float, default=0.6
        Fraction of the variance that they hold together.
    random_state : int, Generator or None, default=None
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
    sizes = {"n_features": n_features, "n_components": n_components}
    _check_sizes("n_components", "n_features", n_samples=n_samples, **sizes)
    rng = np.random.default_rng(random_state)
    variances = np.full(n_features, (1 - captured) / max(n_features - n_components, 1))
    variances[:n_components] = (captured if n_components < n_features else 1.0) / n_components
    axes = np.linalg.qr(rng.standard_normal((n_features, n_features)))[0]
    return (rng.standard_normal((n_samples, n_features)) * np.sqrt(variances)) @ axes.T


def make_interactions(
    n_users: int = 30_000,
    n_items: int = 20_000,
    n_interactions: int = 730_000,
    n_factors: int = 20,
    *,
    popularity: float = 0.8,
    factor_fraction: float = 0.75,
    random_state: Any = None,
) -> Any:
    """Binary user-item matrix: Zipf popularity, planted factors, log-normal activity.

    Each user has one factor, which is a part of the catalogue. A fraction of the user's items is
    drawn from it, the others from the whole catalogue, always by popularity.

    Parameters
    ----------
    n_users, n_items, n_interactions, n_factors : int, default=30000, 20000, 730000, 20
        Sizes; the number of interactions is reached up to repeated draws.
    popularity : float, default=0.8
        Exponent of the popularity: item i is drawn with weight ``i ** -popularity``.
    factor_fraction : float, default=0.75
        Fraction of a user's items that comes from the user's factor.
    random_state : int, Generator or None, default=None
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
    sizes = {"n_users": n_users, "n_items": n_items, "n_interactions": n_interactions}
    _check_sizes("n_factors", "n_items", n_factors=n_factors, **sizes)
    rng = np.random.default_rng(random_state)
    weights = np.arange(1, n_items + 1.0) ** -popularity
    activity = np.exp(0.8 * rng.standard_normal(n_users))
    degrees = np.rint(activity * n_interactions / activity.sum())
    degrees = np.clip(degrees, 1, max(1, n_items // 4)).astype(np.int64)
    factor_of_item = rng.permutation(n_items) % n_factors
    factor_of_user = rng.integers(0, n_factors, n_users)
    users = np.repeat(np.arange(n_users), np.ceil(degrees * 1.35).astype(np.int64) + 2)
    items = drawn(weights, rng.random(len(users)))
    own = rng.random(len(users)) < factor_fraction
    for factor in range(n_factors):
        mine = np.flatnonzero(own & (factor_of_user[users] == factor))
        members = np.flatnonzero(factor_of_item == factor)
        items[mine] = members[drawn(weights[members], rng.random(len(mine)))]
    return first_distinct(users, items, degrees, (n_users, n_items))


def make_user_items(
    n_users: int = 10_000,
    n_items: int = 5_000,
    mean_length: int = 20,
    n_factors: int = 30,
    *,
    overlap: float = 0.5,
    spread: float = 2.0,
    tail: float = 1.0,
    random_state: Any = None,
) -> Any:
    """Binary user-item rows whose latent factors are as weak as those of real shops.

    Popularity is heavy-tailed, every factor contains every item, users mix a few factors, and most
    rows are short: the leading directions hold little of the matrix. `make_interactions` is the
    easy case, where most items of a user are in one part of the catalogue.

    Parameters
    ----------
    n_users, n_items : int, default=10000, 5000
        Shape of the matrix.
    mean_length : float, default=20
        Average number of items of a user; lengths are log-normal, at least 2 and at most a quarter
        of the items.
    n_factors : int, default=30
        Number of factors.
    overlap : float, default=0.5
        Fraction of the items that is drawn by popularity alone; with 1 there is nothing to learn.
    spread : float, default=2.0
        How far factors are apart: each weighs an item by its popularity times exp(spread z), z
        standard normal. With 0 all factors are the same.
    tail : float, default=1.0
        Exponent of the popularity: the item of rank i is drawn with weight ``i ** -tail``.
    random_state : int, Generator or None, default=None
        Seed of the data.

    Returns
    -------
    R : csr_array of shape (n_users, n_items)
        Histories, each item 1.0.

    Examples
    --------
    >>> from skdp.datasets import make_user_items
    >>> make_user_items(50, 40, 8, 4, random_state=0).shape
    (50, 40)
    """
    _check_sizes(n_users=n_users, n_items=n_items, n_factors=n_factors)
    rng = np.random.default_rng(random_state)
    popularity = rng.permutation(np.arange(1, n_items + 1.0) ** -tail)
    lengths = drawn_lengths(rng, n_users, mean_length, n_items // 4)
    return drawn_histories(rng, lengths, popularity, n_factors, overlap=overlap, spread=spread)


def make_ratings(
    n_users: int = 3000,
    n_items: int = 1500,
    n_ratings: int = 150_000,
    n_factors: int = 10,
    *,
    noise_sd: float = 0.5,
    popularity: float = 0.8,
    random_state: Any = None,
) -> Any:
    """Ratings from 1 to 5: Zipf popularity, planted factors, and items that some like better.

    What is rated comes from `make_interactions`. A rating is 3, plus the quality of the item, plus
    the product of the factors of user and item, plus noise, rounded and cut to 1 to 5.

    Parameters
    ----------
    n_users, n_items, n_ratings, n_factors : int, default=3000, 1500, 150000, 10
        Sizes; the number of ratings is reached up to repeated draws.
    noise_sd : float, default=0.5
        Standard deviation of the noise.
    popularity : float, default=0.8
        Exponent of the popularity of items.
    random_state : int, Generator or None, default=None
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
    sizes = (n_users, n_items, n_ratings, n_factors)
    R = make_interactions(*sizes, popularity=popularity, random_state=rng)
    users = np.repeat(np.arange(n_users), np.diff(R.indptr))
    of_users = rng.standard_normal((n_users, n_factors)) / n_factors**0.25
    of_items = rng.standard_normal((n_items, n_factors)) / n_factors**0.25
    scores = 3 + 0.5 * rng.standard_normal(n_items)[R.indices]
    scores += np.einsum("ij,ij->i", of_users[users], of_items[R.indices])
    scores += noise_sd * rng.standard_normal(len(scores))
    R.data = np.clip(np.rint(scores), 1.0, 5.0)
    return R


# Synthetic graphs.


def make_block_graph(
    n_nodes: int = 1000,
    n_blocks: int = 2,
    gap: float = 60.0,
    mean_degree: float = 150.0,
    *,
    random_state: Any = None,
) -> Any:
    """Stochastic block model with balanced blocks.

    Parameters
    ----------
    n_nodes, n_blocks : int, default=1000, 2
        Sizes.
    gap : float, default=60.0
        The second eigenvalue of the expected adjacency matrix: how far the blocks stand out.
    mean_degree : float, default=150.0
        Average degree.
    random_state : int, Generator or None, default=None
        Seed of the data.

    Returns
    -------
    A : csr_array of shape (n_nodes, n_nodes)
        Symmetric adjacency matrix without loops.
    labels : ndarray of shape (n_nodes,)
        Block of each node.

    Examples
    --------
    >>> from skdp.datasets import make_block_graph
    >>> A, labels = make_block_graph(40, 2, 10.0, 12.0, random_state=0)
    >>> A.shape, labels.shape
    ((40, 40), (40,))
    """
    _check_sizes("n_blocks", "n_nodes", n_nodes=n_nodes, n_blocks=n_blocks)
    rng = np.random.default_rng(random_state)
    labels = rng.permutation(np.arange(n_nodes) % n_blocks)
    outside = mean_degree / n_nodes - gap / n_nodes
    inside = outside + gap * n_blocks / n_nodes
    if not 0 <= outside <= inside <= 1:
        raise ValueError("'gap' must be at most 'mean_degree', and both far below 'n_nodes'.")
    rows, columns = [], []
    for i in range(n_nodes - 1):
        chance = np.where(labels[i + 1 :] == labels[i], inside, outside)
        linked = np.flatnonzero(rng.random(n_nodes - i - 1) < chance) + i + 1
        rows.append(np.full(len(linked), i))
        columns.append(linked)
    pairs = (np.concatenate(rows), np.concatenate(columns))
    upper = sp.csr_array((np.ones(len(pairs[0])), pairs), shape=(n_nodes, n_nodes))
    return sp.csr_array(upper + upper.T), labels


# Synthetic regressions: measurements of a low-rank matrix, and tasks of many users.


def make_trace_regression(
    n_samples: int = 5000,
    matrix_shape: Any = (20, 20),
    rank: int = 2,
    *,
    noise_sd: float = 0.5,
    design: str = "gaussian",
    coef: bool = False,
    random_state: Any = None,
) -> Any:
    """Measurements y_i = <X_i, M> + noise of a matrix M of low rank.

    All singular values of M are equal, and the variance of <X_i, M> is `rank`.

    Parameters
    ----------
    n_samples : int, default=5000
        Number of records.
    matrix_shape : tuple of int, default=(20, 20)
        Shape (d1, d2) of M.
    rank : int, default=2
        Rank of M.
    noise_sd : float, default=0.5
        Standard deviation of the noise of y.
    design : {"gaussian", "factored", "entries"}, default="gaussian"
        Dense Gaussian measurements; rank-one measurements as factors (A, B); or one entry a record,
        as rows of a CSR array (matrix completion).
    coef : bool, default=False
        Whether to return M.
    random_state : int, Generator or None, default=None
        Seed of the data.

    Returns
    -------
    X : array (n_samples, d1, d2), tuple of arrays (n_samples, d1) and (n_samples, d2), or csr_array
        Measurements, in a form that `DPTraceRegressor` takes.
    y : ndarray of shape (n_samples,)
        Targets.
    M : ndarray of shape (d1, d2)
        The matrix, if `coef`.

    Examples
    --------
    >>> from skdp.datasets import make_trace_regression
    >>> X, y = make_trace_regression(50, (4, 3), 1, random_state=0)
    >>> X.shape, y.shape
    ((50, 4, 3), (50,))
    """
    if design not in ("gaussian", "factored", "entries"):
        raise ValueError(
            "The 'design' parameter of make_trace_regression must be a str among 'gaussian', "
            f"'factored' and 'entries'. Got {design!r} instead."
        )
    rng = np.random.default_rng(random_state)
    d1, d2 = matrix_shape
    _check_sizes(n_samples=n_samples, rank=rank, d1=d1, d2=d2)
    left, right = (np.linalg.qr(rng.standard_normal((d, rank)))[0] for d in matrix_shape)
    M = left @ right.T
    if design == "gaussian":
        X = rng.standard_normal((n_samples, d1, d2))
        y = np.einsum("ijk,jk->i", X, M)
    elif design == "factored":
        X = rng.standard_normal((n_samples, d1)), rng.standard_normal((n_samples, d2))
        y = np.einsum("ij,ij->i", X[0] @ M, X[1])
    else:
        cells = rng.integers(0, d1 * d2, n_samples)
        values = np.full(n_samples, math.sqrt(d1 * d2))
        rows = (values, cells, np.arange(n_samples + 1))
        X = sp.csr_array(rows, shape=(n_samples, d1 * d2))
        y = values * M.ravel()[cells]
    y = y + noise_sd * rng.standard_normal(n_samples)
    return (X, y, M) if coef else (X, y)


def make_user_tasks(
    n_users: int = 1000,
    n_features: int = 20,
    n_components: int = 2,
    *,
    rows_per_user: int = 10,
    noise_sd: float = 0.5,
    classes: bool = False,
    coef: bool = False,
    random_state: Any = None,
) -> Any:
    """Linear tasks of many users whose coefficients lie in one small subspace.

    Parameters
    ----------
    n_users, n_features : int, default=1000, 20
        Sizes.
    n_components : int, default=2
        Dimension of the subspace.
    rows_per_user : int or tuple of int, default=10
        Rows of a user; (least, most) draws a number for each user.
    noise_sd : float, default=0.5
        Standard deviation of the noise of the targets.
    classes : bool, default=False
        Return the signs of the targets, 0 and 1, instead of the targets.
    coef : bool, default=False
        Whether to return the coefficients of the users.
    random_state : int, Generator or None, default=None
        Seed of the data.

    Returns
    -------
    X : ndarray of shape (n_rows, n_features)
        Rows.
    y : ndarray of shape (n_rows,)
        Targets.
    groups : ndarray of shape (n_rows,)
        The user of each row.
    coefs : ndarray of shape (n_users, n_features)
        Coefficients of each user, if `coef`.

    Examples
    --------
    >>> from skdp.datasets import make_user_tasks
    >>> X, y, groups = make_user_tasks(50, 6, rows_per_user=4, random_state=0)
    >>> X.shape, y.shape, groups[:5]
    ((200, 6), (200,), array([0, 0, 0, 0, 1]))
    """
    sizes = {"n_features": n_features, "n_components": n_components}
    _check_sizes("n_components", "n_features", n_users=n_users, **sizes)
    rng = np.random.default_rng(random_state)
    low, high = rows_per_user if isinstance(rows_per_user, tuple) else (rows_per_user,) * 2
    groups = np.repeat(np.arange(n_users), rng.integers(low, high + 1, n_users))
    shared = np.linalg.qr(rng.standard_normal((n_features, n_components)))[0]
    coefs = rng.standard_normal((n_users, n_components)) @ shared.T
    X = rng.standard_normal((len(groups), n_features))
    y = np.einsum("ij,ij->i", X, coefs[groups]) + noise_sd * rng.standard_normal(len(groups))
    if classes:
        y = (y > 0).astype(np.int64)
    return (X, y, groups, coefs) if coef else (X, y, groups)


# A table with the columns that real ones have: nothing is scaled, centred, or well behaved.


def make_table(
    n_samples: int = 1000, *, noise: float = 0.5, names: bool = False, random_state: Any = None
) -> Any:
    """Make dummies, counts, amounts with zeros, heavy tails, years, ids, constants and copies.

    The target is linear in the columns that an analyst would use, in very different units, and far
    from zero: 40,000 and a few thousand.

    Parameters
    ----------
    n_samples : int, default=1000
        Number of rows.
    noise : float, default=0.5
        Standard deviation of the noise of y, in units of that of the signal.
    names : bool, default=False
        Whether to return the names of the columns.
    random_state : int, Generator or None, default=None
        Seed of the data.

    Returns
    -------
    X : ndarray of shape (n_samples, 17)
        Columns in their own units.
    y : ndarray of shape (n_samples,)
        Targets.
    names : tuple of str
        Names of the columns, if `names`.

    Examples
    --------
    >>> from skdp.datasets import make_table
    >>> X, y, names = make_table(100, names=True, random_state=0)
    >>> X.shape, y.shape, names[:2]
    ((100, 17), (100,), ('dummy_50', 'dummy_20'))
    """
    _check_sizes(n_samples=n_samples)
    rng, n = np.random.default_rng(random_state), n_samples
    columns = {f"dummy_{share}": rng.random(n) < share / 100 for share in (50, 20, 5, 1)}
    columns["visits"] = rng.poisson(0.7, n)
    columns["parts"] = rng.poisson(40, n)
    columns["amount"] = np.where(rng.random(n) < 0.85, 0.0, rng.lognormal(7, 1, n))
    columns["income"] = rng.lognormal(10.4, 0.6, n)
    columns["tail"] = rng.standard_cauchy(n)
    columns["year"] = rng.integers(1950, 2020, n)
    columns["temperature"] = 50 + rng.standard_normal(n)
    columns["ppm"] = 1e-6 * rng.gamma(4.0, size=n)
    columns["id"] = 1e6 + rng.permutation(n)
    columns["constant"], columns["zero"] = np.full(n, 3.0), np.zeros(n)
    columns["year_copy"] = columns["year"] + rng.integers(-1, 2, n)
    columns["income_copy"] = columns["income"] / 12
    X = np.column_stack(list(columns.values())).astype(np.float64)
    signal = (
        columns["dummy_50"] - 0.8 * columns["dummy_20"] + 0.5 * columns["visits"]
        + 0.1 * (columns["parts"] - 40) + 0.04 * (columns["year"] - 1985)
        + 0.8 * (columns["temperature"] - 50) + 3e-5 * columns["income"] + 3e5 * columns["ppm"]
    )  # fmt: skip
    y = signal + noise * signal.std() * rng.standard_normal(n)
    y = 40_000 + 3_000 * y
    return (X, y, tuple(columns)) if names else (X, y)
