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
    QUIET,
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
_PASSES_EACH = 4  # of several pure components: two do not find one behind a stronger one
N_PRODUCTS = (16, 8)  # with a delta, without
_LATE = 10  # columns beyond those that are wanted, at most
_EXACT_SHARE = 1e-5  # of a product without noise, of which there may be thousands


def late_columns(law: str, k: int, n_oversamples: int | str, most: int) -> tuple[int, float]:
    """Return how many columns join k others, and how quiet answers must be for them.

    "auto" has them wait until they cost little; a number of them is there from the first step.
    """
    if law == "laplace":
        return 0, QUIET
    extra = min(k, _LATE) if isinstance(n_oversamples, str) else n_oversamples
    return max(min(extra, most - k), 0), QUIET if isinstance(n_oversamples, str) else 1.0


def alternate(
    ask: Any,
    start: FloatArray,
    k: int,
    share: float,
    *,
    law: str,
    n_iter: int | str,
    quiet: float = QUIET,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Alternate A V and A'U, then take the SVD of a noisy core: (U, k singular values, V)."""
    core = _CORE_SHARE[law]
    if law == "exact":
        U, V = _exact_pairs(ask, start[:, :k], _EXACT_SHARE * share)
    else:
        passes = N_PASSES[law == "laplace"] if isinstance(n_iter, str) else n_iter
        options: Any = {"wanted": k, "quiet": quiet, "step": _STEPS[law]}
        U, V = half_steps(ask, start, passes, (1 - core) * share, **options)
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
    ask: Any, n_rows: int, starts: FloatArray, share: float, *, law: str, n_iter: int | str
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """One pair of vectors after the other, each across the ones before: (U, values, V)."""
    if law == "exact":  # the same pairs
        return alternate(ask, starts, starts.shape[1], share, law=law, n_iter=n_iter)
    n, k = starts.shape
    U, V = np.zeros((n_rows, 0)), np.zeros((n, 0))
    passes = passes_of_deflation(law, k) if isinstance(n_iter, str) else n_iter
    core = _CORE_SHARE[law]
    for j in range(k):
        each = (1 - core) * share / k
        u, v = half_steps(ask, starts[:, [j]], passes, each, across=(U, V), step=_STEPS[law])
        U, V = np.hstack([U, u]), np.hstack([V, v])
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
    quiet: float = QUIET,
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
        options: Any = {"wanted": k, "quiet": quiet, "project": project, "step": _STEPS[law]}
        options["spread"] = spread
        X = symmetric_power(ask, start, steps, (1 - core) * share, **options)
    return ritz_values(ask, X, k, core * share)
