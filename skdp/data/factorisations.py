"""Factorisations of private matrices, one matrix for each privacy unit, that never raise or warn.

LAPACK fails on some finite matrices (entries 1 next to 1e-154, say), and numpy then raises for the
whole batch. Here a unit whose matrix is not finite, is singular, or does not converge gets zeros,
and the results of all other units are the same bit by bit as if each were computed alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from skdp._limits import FloatArray

Result = TypeVar("Result")
_BUFFER = 2**13  # size of einsum's internal buffer, in numbers


def of_public(routine: Callable[..., Result], *public: Any, **options: Any) -> Result:
    """Run a routine of `numpy.linalg` on arguments that the caller guarantees to be public."""
    return routine(*public, **options)


def eigh(M: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Eigenvalues (n, q), ascending, and eigenvectors (n, q, q) of one matrix of each unit."""
    values, vectors = _by_unit(np.linalg.eigh, M)
    return values, vectors


def solve(A: FloatArray, B: FloatArray) -> FloatArray:
    """Solutions (n, q, p) of one system of each unit."""
    (solution,) = _by_unit(lambda A, B: (np.linalg.solve(A, B),), A, B)
    return solution


def times_powers(
    A: FloatArray, exponents: NDArray[np.intc], out: FloatArray | None = None
) -> FloatArray:
    """Multiply each unit's array by its power of two: as `ldexp`, in a fraction of the time."""
    each = exponents.reshape(-1, *[1] * (A.ndim - 1))
    if np.all(np.abs(exponents) < 1022):  # products with normal floats are rounded once, as there
        return np.asarray(np.multiply(A, np.ldexp(1.0, each), out=out))
    return np.asarray(np.ldexp(A, each, out=out))


def row_squares(A: NDArray[Any]) -> NDArray[Any]:
    """Return the sum of squares along the last axis; its bits depend on that row alone.

    einsum splits rows of more numbers than its buffer, at points that depend on earlier rows.
    """
    parts = (A[..., i : i + _BUFFER] for i in range(0, max(1, A.shape[-1]), _BUFFER))
    return np.asarray(sum(np.einsum("...j,...j->...", part, part) for part in parts))


def largest_entries(A: FloatArray) -> FloatArray:
    """Return the largest absolute value of an entry of each unit."""
    flat = A.reshape(len(A), -1)
    return np.asarray(np.maximum(flat.max(axis=1, initial=0), -flat.min(axis=1, initial=0)))


def exponents(A: FloatArray) -> NDArray[np.intc]:
    """Return the power of two of each unit, which brings its largest entry to [1/2, 1)."""
    largest = largest_entries(A)
    return np.where(largest > 0, np.frexp(largest)[1], 0).astype(np.intc)


def _by_unit(routine: Callable[..., Any], *given: FloatArray) -> tuple[FloatArray, ...]:
    """Run a routine on batches of units; zeros for a unit where it fails."""
    with np.errstate(all="ignore"):
        good = np.logical_and.reduce([_finite(A) for A in given])
        if not good.all():
            given = tuple(np.where(good[:, None, None], A, 0.0) for A in given)
        try:
            found = tuple(routine(*given))
        except np.linalg.LinAlgError:
            found = _one_by_one(routine, *given)
        good = np.logical_and.reduce([good, *map(_finite, found)])
    if good.all():
        return found
    return tuple(np.where(good.reshape(-1, *[1] * (A.ndim - 1)), A, 0.0) for A in found)


def _one_by_one(routine: Callable[..., Any], *given: FloatArray) -> tuple[FloatArray, ...]:
    """Run a routine on one unit after the other; each result equals that of the batch."""
    identity = np.broadcast_to(np.eye(given[0].shape[1]), given[0][:1].shape)
    shapes = routine(identity, *(np.zeros_like(A[:1]) for A in given[1:]))
    out = tuple(np.zeros((len(given[0]), *A.shape[1:])) for A in shapes)
    for i in range(len(given[0])):
        try:
            one = routine(*(A[i : i + 1] for A in given))
        except np.linalg.LinAlgError:
            continue
        for whole, part in zip(out, one, strict=True):
            whole[i] = part[0]
    return out


def _finite(A: FloatArray) -> NDArray[np.bool_]:
    return np.asarray(np.isfinite(A).all(axis=tuple(range(1, A.ndim))))
