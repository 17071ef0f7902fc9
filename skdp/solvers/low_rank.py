"""Low-rank fits of a matrix that is seen through noisy products, whatever the law of the noise.

Notation as in `skdp.solvers.iterate`. A `law` is public: "gaussian", "laplace" (pure differential
privacy, one column) or "exact" (no noise).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp.solvers.iterate import (
    Project,
    back_project,
    half_steps,
    laplace_step,
    last_answer,
    ritz_values,
    symmetric_power,
)

__all__ = ["alternate", "deflate", "iterate_symmetric"]

FloatArray = NDArray[np.float64]
_STEPS = {"gaussian": back_project, "laplace": laplace_step, "exact": last_answer}
_SHORTEN = {"gaussian": 0.25, "laplace": 0.25, "exact": None}
_CORE_SHARE = {"gaussian": 0.02, "laplace": 0.1, "exact": 0.02}
_PASSES = {"gaussian": 6, "laplace": 2}
_PRODUCTS = {"gaussian": 16, "laplace": 8}
_EXACT_PASSES, _EXACT_PRODUCTS = 60, 300


def _options(law: str) -> dict[str, Any]:
    return {"step": _STEPS[law], "shorten": _SHORTEN[law]}


def _count(n_iter: int | str, law: str, defaults: dict[str, int], exact: int) -> int:
    if law == "exact":
        return exact
    return defaults[law] if isinstance(n_iter, str) else n_iter


def alternate(
    ask: Any, start: FloatArray, share: float, *, law: str, n_iter: int | str
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Alternate A V and A'U, then take the SVD of a noisy core: (U, singular values, V)."""
    passes = _count(n_iter, law, _PASSES, _EXACT_PASSES)
    core = _CORE_SHARE[law]
    U, V = half_steps(ask, start, passes, (1 - core) * share, **_options(law))
    return _core_svd(ask, U, V, core * share)


def deflate(
    ask: Any, n_rows: int, starts: FloatArray, share: float, *, law: str, n_iter: int | str
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """One pair of vectors after the other, each across the ones before: (U, values, V)."""
    n, k = starts.shape
    U, V = np.zeros((n_rows, 0)), np.zeros((n, 0))
    passes = _count(n_iter, law, _PASSES, _EXACT_PASSES)
    core = _CORE_SHARE[law]
    for j in range(k):
        each = (1 - core) * share / k
        u, v = half_steps(ask, starts[:, [j]], passes, each, across=(U, V), **_options(law))
        U, V = np.hstack([U, u]), np.hstack([V, v])
    return _core_svd(ask, U, V, core * share)


def _core_svd(
    ask: Any, U: FloatArray, V: FloatArray, share: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    left, values, right = np.linalg.svd(ask.core(U, V, share=share).value)
    return U @ left, values, V @ right.T


def iterate_symmetric(
    ask: Any,
    start: FloatArray,
    share: float,
    *,
    law: str,
    n_iter: int | str,
    project: Project | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Power iteration on a symmetric matrix, then signed Ritz values: (values, vectors)."""
    options = _options(law)
    if project is not None:
        options["project"] = project
    core = _CORE_SHARE[law]
    steps = _count(n_iter, law, _PRODUCTS, _EXACT_PRODUCTS)
    X = symmetric_power(ask, start, steps, (1 - core) * share, **options)
    return ritz_values(ask, X, start.shape[1], core * share)
