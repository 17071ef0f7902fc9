"""Low-rank fits of a matrix that is seen through noisy products, whatever the law of the noise.

Notation as in `skdp.solvers.iterate`. A `law` is public: "gaussian", "laplace" (pure differential
privacy, one column) or "exact" (no noise). `start` has more columns than the k that are wanted:
late ones, see there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp.solvers.iterate import (
    Project,
    half_steps,
    laplace_step,
    posterior_step,
    ritz_values,
    symmetric_power,
)
from skdp.solvers.linalg import leading_eigenvectors, orthonormal

FloatArray = NDArray[np.float64]
_STEPS = {"gaussian": posterior_step, "laplace": laplace_step}
_CORE_SHARE = {"gaussian": 0.02, "laplace": 0.1, "exact": 0.02}
N_PASSES = (6, 2)  # with a delta, without
_TOGETHER = 4  # passes of all components behind single ones, where answers are quiet
_QUIET = 0.03  # of the answers on the first of them is noise
_PASSES_EACH = 4  # of several pure components: two do not find one behind a stronger one
N_PRODUCTS = (16, 8)  # with a delta, without
_LATE, _FEW = 200, 10  # columns that may join those that are wanted, and how many always may
_CELLS = 250_000  # in them: each answer has as much noise
_EXACT_SHARE = 1e-5  # of a product without noise, of which there may be thousands


def late_columns(
    law: str, k: int, n_oversamples: int | str, n: int, most: int, *, symmetric: bool
) -> tuple[int, int]:
    """Return how many columns are sent at once, and how many wait until they cost little.

    Matrices have at most n rows or columns, queries at most `most` columns. A number of more
    columns is there from the first step; "auto" has them wait: few on symmetric matrices, whose
    noise goes both ways.
    """
    if law == "laplace":
        return k, 0
    if not isinstance(n_oversamples, str):
        return min(k + n_oversamples, max(k, most)), 0
    late = min(k, _FEW) if symmetric else min(_LATE, max(_CELLS // n, _FEW))
    return k, max(min(late, most - k), 0)


def alternate(
    ask: Any,
    start: FloatArray,
    k: int,
    share: float,
    *,
    law: str,
    n_iter: int | str,
    first: int | None = None,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Alternate A V and A'U, then take the SVD of a noisy core: (U, k singular values, V).

    `first` as in `half_steps`.
    """
    core = _CORE_SHARE[law]
    if law == "exact":
        U, V = _exact_pairs(ask, start[:, :k], _EXACT_SHARE * share)
    else:
        passes = N_PASSES[law == "laplace"] if isinstance(n_iter, str) else n_iter
        options: Any = {"wanted": k, "first": first, "step": _STEPS[law]}
        U, V, _ = half_steps(ask, start, passes, (1 - core) * share, **options)
    return _core_svd(ask, U, V, k, core * share)


def _exact_pairs(ask: Any, start: FloatArray, each: float) -> tuple[FloatArray, FloatArray]:
    def multiply(V: FloatArray) -> FloatArray:
        product: FloatArray = ask.left(ask.right(V, share=each).value, share=each).value
        return product

    V = leading_eigenvectors(multiply, start, start.shape[1])
    return orthonormal(ask.right(V, share=each).value), V


def passes_of_deflation(law: str, k: int) -> int:
    """Return how many passes each of k components has by default."""
    return _PASSES_EACH if law == "laplace" and k > 1 else N_PASSES[law == "laplace"]


def deflate(
    ask: Any, n_rows: int, starts: FloatArray, k: int, share: float, *, law: str, n_iter: int | str
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """One pair of vectors after the other, each across the ones before: (U, values, V)."""
    if k == 1 or law == "exact":  # the same pairs
        return alternate(ask, starts, k, share, law=law, n_iter=n_iter, first=k)
    U, V = np.zeros((n_rows, 0)), np.zeros((len(starts), 0))
    passes = passes_of_deflation(law, k) if isinstance(n_iter, str) else n_iter
    core = _CORE_SHARE[law]
    each, left = (1 - core) * share / k, 0.0
    for j in range(k):
        options: Any = {"across": (U, V), "step": _STEPS[law]}
        found = half_steps(ask, starts[:, [j]], passes, each, **options)
        U, V = np.hstack([U, found.left]), np.hstack([V, found.right])
        if j == 0 and found.noise < _QUIET and law == "gaussian":
            each, left = each / 2, (k - 1) * each / 2
    if left > 0:  # single vectors do not tell singular values that are near each other
        start = np.hstack([V, starts[:, k:]])
        U, V, _ = half_steps(ask, start, _TOGETHER, left, wanted=k, first=k)
    return _core_svd(ask, U, V, k, core * share)


def _core_svd(
    ask: Any, U: FloatArray, V: FloatArray, k: int, share: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    left, values, right = np.linalg.svd(ask.core(U, V, share=share).value)
    return U @ left[:, :k], values[:k], V @ right[:k].T


def iterate_symmetric(
    ask: Any,
    start: FloatArray,
    k: int,
    share: float,
    *,
    law: str,
    n_iter: int | str,
    first: int | None = None,
    project: Project | None = None,
    spread: bool = True,
) -> tuple[FloatArray, FloatArray]:
    """Power iteration on a symmetric matrix, then signed Ritz values: (k values, vectors).

    `spread` as in `symmetric_power`.
    """
    core = _CORE_SHARE[law]
    project = project or np.asarray
    if law == "exact":
        each = _EXACT_SHARE * share

        def multiply(Q: FloatArray) -> FloatArray:
            return project(ask.right(project(Q), share=each).value)

        X = leading_eigenvectors(multiply, project(start[:, :k]), k)
    else:
        steps = N_PRODUCTS[law == "laplace"] if isinstance(n_iter, str) else n_iter
        options: Any = {"wanted": k, "first": first, "project": project, "step": _STEPS[law]}
        options["spread"] = spread
        X = symmetric_power(ask, start, steps, (1 - core) * share, **options)
    return ritz_values(ask, X, k, core * share)
