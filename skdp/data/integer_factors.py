"""What one user adds, cut to a norm: arrays of shape (users, ...), each user's by itself.

A bad user (rows that are not finite, or degenerate) gives zeros.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
_TAME = 2.0**-120  # fourth powers of what lies between it and its inverse are normal floats


def _finite(values: FloatArray) -> FloatArray:
    """Set the contribution of a user to zero unless all of it is finite."""
    good = np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
    if good.all():
        return values
    return np.where(good.reshape(-1, *[1] * (values.ndim - 1)), values, 0.0)


def clipped(values: FloatArray, level: float) -> FloatArray:
    """Scale each user's flat contribution to norm at most `level`; bad ones become zero."""
    values = _finite(values)
    largest = np.abs(values).max(axis=1, initial=0.0)
    safe = np.where(largest > 0, largest, 1.0)
    shape = values / safe[:, None]
    norms = np.sqrt((shape * shape).sum(axis=1))  # of entries at most 1: nothing overflows
    with np.errstate(over="ignore", divide="ignore"):
        factors = np.where(largest > 0, np.minimum(level / np.maximum(norms, 1e-300), safe), 0.0)
    return np.asarray(shape * factors[:, None])


def signs(p: int) -> FloatArray:
    """Signs of signed factors: the first half counts plus, the second minus."""
    return np.where(np.arange(p) < p // 2, 1.0, -1.0)


def _squares(F: FloatArray, signed: bool) -> FloatArray:
    """||F'JF||_F^2 of each user, through the smaller Gram matrix."""
    n, p, d = F.shape
    if p > d:  # memory for one user grows with its rows, not with their square
        left = F.swapaxes(1, 2)
        G = np.matmul(left * signs(p) if signed else left, F)
    else:
        G = np.matmul(F, F.copy().swapaxes(1, 2))  # by itself it takes half as long again
    squares = np.multiply(G, G, out=G).reshape(n, G.shape[1] * G.shape[2])
    if signed and p <= d:
        squares = squares * np.outer(signs(p), signs(p)).ravel()
    return np.asarray(np.maximum(squares.sum(axis=1), 0.0))


def unit_factors(F: FloatArray, step: float, signed: bool = False) -> FloatArray:
    """Return integer factors Z with ||Z'JZ||_F <= 1/step for each user; 0 where that fails.

    Z is F in units of sqrt(step), scaled so that F'JF has norm 1 (or less, if it nearly cancels);
    at step 0 it is these floats.
    Gram entries are exact, and their squares are compared with less than the bound by more than
    the rounding of their sum: the check is exact.
    """
    if step == 0.0:
        lengths = np.sqrt(np.sqrt(_squares(F, signed)))
        return np.asarray(_finite(F) / np.where(lengths > 0, lengths, np.inf)[:, None, None])
    n, p, d = F.shape
    flat = np.ascontiguousarray(F).reshape(n, p * d)
    largest = np.maximum(flat.max(axis=1, initial=0.0), -flat.min(axis=1, initial=0.0))
    if not np.isfinite(largest).all():  # a bad entry is the largest
        F, largest = _finite(F), np.where(np.isfinite(largest), largest, 0.0)
    extreme = (largest > 0) & ~((largest > _TAME) & (largest < 1 / _TAME))
    if extreme.any():  # of others no product leaves the range of floats
        F = F / np.where(extreme, largest, 1.0)[:, None, None]
    sizes = np.sqrt(_squares(F, signed))
    if signed:  # what nearly cancels is left short: its integers would be long
        sizes = np.maximum(sizes, 0.02 * (F * F).reshape(n, p * d).sum(axis=1))
    bound = 1.0 / step
    radius = math.sqrt(bound)
    aim = max(radius - 1.5 - math.sqrt(p) * d / (24 * radius), 0.9 * radius)
    factors = np.where(sizes > 0, aim / np.sqrt(np.where(sizes > 0, sizes, 1.0)), 0.0)
    Z = F * factors[:, None, None]
    np.rint(Z, out=Z)
    terms = min(p, d) ** 2
    cancels = signed and p <= d  # then squares are added with both signs
    mass = (Z * Z).reshape(n, p * d).sum(axis=1) ** 2 if cancels else 0.0
    rounding = 4e-16 * (terms + 4)

    def too_long() -> NDArray[np.intp]:
        return np.flatnonzero(_squares(Z, signed) + rounding * (mass + bound**2) > bound**2)

    for shrink in (0.99, 0.9, 0.0):
        over = too_long()
        if not over.size:
            break
        Z[over] = np.rint(F[over] * (shrink * factors[over])[:, None, None])
    return Z
