"""Synthetic data for plans: rows, interactions, graphs and matrices from facts and a seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.fft import dct
from scipy.optimize import brentq
from scipy.special import ndtri
from sklearn.preprocessing import scale

from skdp._limits import FloatArray
from skdp._validation import column_bounds
from skdp.data.blocks import dense
from skdp.solvers.linalg import leading_pairs, leading_triplets

# Synthetic columns: standard deviation in half-widths of public bounds, and that of the logarithms.
FILLED, _SKEW = 0.3, 0.6
# Synthetic user-item rows, between the extremes of disjoint factors and of popularity alone.
_FACTORS, _OVERLAP, _SPREAD, TAIL = 40, 0.25, 3.0, 0.65


def bare_copy(estimator: Any) -> Any:
    """Return a copy whose `bounds` are a list instead of a dict: synthetic data have no names."""
    copy = type(estimator)(**estimator.get_params(deep=False))
    if isinstance(bounds := getattr(copy, "bounds", None), Mapping):
        copy.bounds = [tuple(np.ravel(pair).tolist()) for pair in bounds.values()]
    return copy


def fill_bounds(estimator: Any, X: Any) -> Any:
    """Scale dense rows so that they fill a typical part of the public bounds, if there are any."""
    if getattr(estimator, "bounds", None) is None:
        return X
    low, high = column_bounds(bare_copy(estimator), X.shape[1])
    part = FILLED * X / np.maximum(X.std(axis=0), 1e-300)
    return low + (high - low) / 2 * (1 + np.clip(part, -1, 1))


def shares_of(d: int, k: int, signal: Any, spectrum: Any) -> FloatArray:
    """Return the variance fractions of d directions, the largest first.

    They are given by `spectrum`, or decay as the power of 1/i with which the first k hold the
    fraction `signal`; as 1/i if neither is given.
    """
    if signal is not None and spectrum is not None:
        raise ValueError("plan takes 'signal' or 'spectrum', not both. Got both.")
    places = np.arange(1, d + 1.0)
    if spectrum is not None:
        shares = np.sort(check_weights("spectrum", spectrum, d, "variances, not all 0"))[::-1]
        return np.asarray(shares / shares.sum())
    fall = 1.0
    if signal is not None:
        if isinstance(signal, bool) or not k / d < signal <= 1:
            raise ValueError(
                f"'signal' must be a fraction in the range ({k}/{d}, 1]: with less, {k} components "
                f"hold no more than chance. Got {signal!r} instead."
            )
        fall = exponent(lambda a: float(np.sum(places[:k] ** -a) / np.sum(places**-a)), signal, 9)
    shares = places**-fall
    return np.asarray(shares / shares.sum())


def check_weights(name: str, given: Any, size: int, what: str) -> FloatArray:
    """Return `size` numbers of at least 0, not all 0; `what` names them in the refusal."""
    numbers = np.asarray(given, np.float64)
    fine = numbers.shape == (size,) and np.isfinite(numbers).all()
    if not fine or not numbers.min() >= 0 < numbers.max():
        raise ValueError(f"'{name}' must be None or {size} {what}. Got {given!r} instead.")
    return numbers


def exponent(held: Callable[[float], float], share: float, most: float) -> float:
    """Return the exponent in [0, most] at which increasing `held` comes nearest to `share`."""
    if not held(0.0) < share < held(most):
        return 0.0 if held(0.0) >= share else most
    return float(brentq(lambda a: held(a) - share, 0.0, most, xtol=0.01))


def drawn_normal(rng: np.random.Generator, *shape: int) -> FloatArray:
    """Draw normal numbers by a generator of their own, so that more rows begin with the same ones.

    What is common to all rows comes from `rng`: plans of several sizes are then comparable.
    """
    return rng.spawn(1)[0].standard_normal(shape)


def made_rows(rng: np.random.Generator, n: int, shares: FloatArray) -> FloatArray:
    """Draw normal rows of mean squared norm 1 with a given spectrum.

    Random signs and cosine transforms rotate the directions, so that they have no zero entries.
    """
    X = drawn_normal(rng, n, len(shares)) * np.sqrt(rng.permutation(shares))
    for _ in range(2):
        X = dct(X * rng.choice([-1.0, 1.0], len(shares)), norm="ortho")
    return np.asarray(X)


def skewed(rng: np.random.Generator, X: FloatArray, skew: Any) -> FloatArray:
    """Turn normal columns into log-normal ones of the same deviation, and of a stated skewness.

    In real tables a few rows hold much of some columns, so that clipping has a cost. Where no
    skewness is stated, the columns have those of half-normal deviations of the logarithms.
    """
    logs = rng.permutation(_SKEW * ndtri(1 - (np.arange(X.shape[1]) + 0.5) / (2 * X.shape[1])))
    if skew is not None:
        skew = np.full(X.shape[1], skew) if np.ndim(skew) == 0 else skew
        third = check_weights("skew", np.maximum(np.abs(skew), 1e-3), X.shape[1], "numbers, or one")
        # The skewness g of a log-normal is (v + 2) sqrt(v - 1), for v = exp(logs**2): a cubic.
        root = np.cbrt(1 + third**2 / 2 + third * np.sqrt(1 + third**2 / 4))
        logs = np.sqrt(np.log(root + 1 / root - 1))
    return np.asarray(scale(np.expm1(scale(X) * logs)) * X.std(axis=0))


def skewed_rows(rng: np.random.Generator, n: int, shares: FloatArray, skew: Any) -> FloatArray:
    """Draw skewed rows that have a given spectrum all the same.

    Columns that are skewed one by one spread over all directions what a few of them held. Their
    long tails point to one end of the leading direction, or they would cancel in it.
    """
    X, wide = made_rows(rng, n, shares), n < len(shares)
    goal, axes = np.linalg.eigh(X @ X.T if wide else X.T @ X)
    ends = np.sign(X.T @ axes[:, -1] if wide else axes[:, -1])
    Y = skewed(rng, X * ends, skew) * ends
    found, axes = np.linalg.eigh(Y @ Y.T if wide else Y.T @ Y)
    ratio = goal / np.maximum(found, 1e-12 * found[-1] + 1e-300)
    change = axes * np.sqrt(np.maximum(ratio, 0.0)) @ axes.T
    return np.asarray(change @ Y if wide else Y @ change)


def made_histories(
    rng: np.random.Generator, n: int, d: int, nnz: int, tail: float = TAIL, *, apart: bool = False
) -> Any:
    """Draw histories as a CSR array of n x d with about `nnz` ones.

    The column of rank i is drawn with weight ``i ** -tail``. Factors that lie `apart` share no
    column, and a row has one of them; else they overlap, and rows mix them.
    """
    popularity = rng.permutation(np.arange(1, d + 1.0) ** -tail)
    activity, most, size = _activity(rng, n), max(1, d // 2), 0.0
    for _ in range(8):  # items that the longest rows cannot hold are given to other rows
        lengths = np.minimum(np.rint((size or nnz / n) * activity), most)
        size = (size or nnz / n) * nnz / max(float(lengths.sum()), 1.0)
    facts = {"overlap": _OVERLAP, "spread": None if apart else _SPREAD}
    return drawn_histories(rng, lengths.astype(np.int64), popularity, _FACTORS, **facts)


def made_signs(rng: np.random.Generator, *, k: int, clear: float, **facts: Any) -> Any:
    """Draw histories whose numbers are 1 or -1, by k factors `clear` times as large as chance."""
    X = made_histories(rng, **facts).tocoo()
    left, right = (rng.standard_normal((size, k)) for size in X.shape)
    mean = np.sum(left[X.row] * right[X.col], axis=1) * (clear / math.sqrt(k))
    X.data = np.sign(mean + rng.standard_normal(X.nnz))
    return X.tocsr()


def of_length(X: Any, length: float = 1.0) -> Any:
    """Scale binary rows to a length."""
    return sp.csr_array(sp.diags_array(length / np.sqrt(np.maximum(np.diff(X.indptr), 1))) @ X)


def made_blocks(
    rng: np.random.Generator, shape: tuple[int, int], values: FloatArray, *,
    ends: tuple[float, float] | None, symmetric: bool,
) -> FloatArray:  # fmt: skip
    """Draw a matrix whose blocks have these singular values (up to the ends).

    Each block of rows and columns has random signs if an end is negative or there is none; between
    ends an entry is one of them, or 0.
    """
    k = len(values)
    rows, columns = (rng.permutation(np.arange(size) % k) for size in shape)
    signed = ends is None or ends[0] < 0
    left, right = (rng.choice([-1.0, 1.0], s) if signed else np.ones(s) for s in shape)
    if symmetric:
        columns, right = rows, left
    A = np.zeros(shape)
    for block, value in enumerate(values):
        inside = np.flatnonzero(rows == block), np.flatnonzero(columns == block)
        size = value / math.sqrt(max(len(inside[0]) * len(inside[1]), 1))
        A[np.ix_(*inside)] = size * np.outer(left[inside[0]], right[inside[1]])
    if ends is not None:
        end = np.where(A < 0, ends[0], ends[1] or ends[0])
        A = np.where(rng.random(shape) * np.abs(end) < np.abs(A), end, 0.0)
    if symmetric:
        A = np.triu(A, 1) + np.triu(A, 1).T
    return A


def captured(X: Any, k: int, *, centred: bool = False) -> Callable[[Any], float]:
    """Return the score of components: the variance they capture over the largest possible.

    Components in all directions capture everything, however noisy they are: the first k count.
    """
    X = X - X.mean(axis=0) if centred else X
    smaller = min(X.shape)

    @cache  # that of all models of these rows
    def most(k: int) -> float:
        if smaller > 2000:
            squares = leading_triplets(X, k, np.ones(smaller), 1e-4)[1] ** 2
        else:
            moment = dense(X @ X.T if smaller < X.shape[1] else X.T @ X)
            squares = leading_pairs(moment, k)[0]
        return max(float(np.sum(squares)), 1e-300)

    def score(model: Any) -> float:
        found = np.asarray(model.components_, np.float64)
        found = found[:k] if len(found) == found.shape[1] else found
        basis = np.linalg.qr(found.T)[0]
        return float(np.sum((X @ basis) ** 2)) / most(min(max(len(found), 1), smaller))

    return score


def _activity(rng: np.random.Generator, n: int) -> FloatArray:
    activity = np.exp(rng.standard_normal(n))
    return np.asarray(activity / activity.mean())


def drawn_lengths(
    rng: np.random.Generator, n: int, mean_length: float, most: int
) -> NDArray[np.int64]:
    """Draw log-normal numbers of items about a mean, from 2 to `most`."""
    return np.clip(np.rint(mean_length * _activity(rng, n)), 2, max(2, most)).astype(np.int64)


def drawn_histories(
    rng: np.random.Generator,
    lengths: NDArray[np.int64],
    popularity: FloatArray,
    n_factors: int,
    *,
    overlap: float,
    spread: float | None,
) -> Any:
    """Draw a share `overlap` of the items of users by popularity alone, the others by factors.

    Users mix factors of all items, which `spread` says how far apart they lie (see
    `make_user_items`). Without a `spread` a factor is a part of the items, and a user has one.
    """
    # A user gets more draws than items, as some items repeat.
    users = np.repeat(np.arange(len(lengths)), np.ceil(lengths * 1.6).astype(np.int64) + 3)
    if spread is None:
        factor_of_item = rng.permutation(len(popularity)) % n_factors
        factors = rng.integers(0, n_factors, len(lengths))[users]
    else:
        mixes = rng.gamma(0.2, size=(len(lengths), n_factors)) + 1e-9
        edges = np.cumsum(mixes / mixes.sum(axis=1, keepdims=True), axis=1)
        factors = _factor_of_draw(edges, users, rng)
    words, own = rng.random(len(users)), rng.random(len(users)) >= overlap
    items = np.empty(len(users), np.int64)
    items[~own] = drawn(popularity, words[~own])
    for factor in range(int(factors.max(initial=-1)) + 1):
        mine = np.flatnonzero(own & (factors == factor))
        if spread is None:
            weights = popularity * (factor_of_item == factor)
        else:
            weights = popularity * np.exp(spread * rng.standard_normal(len(popularity)))
        items[mine] = drawn(weights, rng.random(len(mine)))
    return first_distinct(users, items, lengths, (len(lengths), len(popularity)))


def _factor_of_draw(
    edges: FloatArray, users: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw a factor for each draw of a user, from the user's mix (cumulative shares)."""
    words, last = rng.random(len(users)), edges.shape[1] - 1
    factors, step = np.zeros(len(users), np.int64), 1 << last.bit_length()
    while step := step // 2:  # edges below the word, by bisection
        factor = np.minimum(factors + step, last)
        factors = np.where(words > edges[users, factor - 1], factor, factors)
    return factors


def drawn(weights: FloatArray, words: FloatArray) -> NDArray[np.int64]:
    """Return the indices that uniform numbers draw, with probability as the weights."""
    edges = np.cumsum(weights)
    return np.minimum(np.searchsorted(edges, words * edges[-1]), len(weights) - 1)


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
    R = sp.csr_array((np.ones(kept.sum()), (users[kept], items[kept])), shape=shape)
    R.sort_indices()
    return R
