"""What the spectral estimators share: routes for row units, and fits for the other units.

A route is chosen from public shapes and parameters only.
"""

import math

import numpy as np

from skdp._validation import check_option
from skdp.solvers.iterate import (
    back_project,
    half_steps,
    laplace_step,
    last_answer,
    ritz_values,
    symmetric_power,
)
from skdp.solvers.linalg import fix_signs, symmetric_noise_edge, top_eigenpairs
from skdp.solvers.postprocess import debias_eigenvalues
from skdp.solvers.spectral import RowNoise, gram_subspace, power_subspace, screened_subspace

GRAM_FEATURES = 1500  # beyond it a d x d release costs more time and noise than it is worth
_EXACT_STEPS = 60  # power steps without noise


def row_route(name, d, k, sparse):
    """Return "gram", "power" or "screened" for a solver name of ours or of scikit-learn."""
    if name in ("gram", "power", "screened"):
        return name
    if name == "randomized":
        return "power"
    if name == "auto" and d > GRAM_FEATURES:
        return "screened" if sparse and d > 4 * max(k, 25) else "power"
    return "gram"


def row_noise(session, adjacency, n, clip_norm):
    """Public facts on the noise of a row-unit fit."""
    multiplier = session.noise_multiplier
    psd = math.sqrt(2.0) if adjacency == "replace" else 1.0
    rect = 2.0 if adjacency == "replace" else 1.0
    return RowNoise(multiplier * psd, multiplier * rect, n, clip_norm)


def step_shares(n_iter, share, exact):
    """Shares of the power steps: the last one gets half."""
    if exact:
        return [share / _EXACT_STEPS] * _EXACT_STEPS
    steps = 3 if n_iter == "auto" else n_iter
    if steps == 1:
        return [share]
    return [share / (2 * (steps - 1))] * (steps - 1) + [share / 2]


def row_subspace(session, ask, route, d, k, share, noise, *, n_iter, n_oversamples):
    """Return the leading subspace (d x k) by a route, and the column sums if it released them."""
    if route == "gram":
        return gram_subspace(ask, d, k, share, noise), None
    if route == "screened" and noise.psd:
        V, sums, _ = screened_subspace(ask, d, k, share, noise)
        return V, sums
    extra = min(k, 10) if n_oversamples == "auto" else n_oversamples
    start = session.random_signs((d, min(d, k + extra)))
    shares = step_shares(n_iter, share, noise.psd == 0.0)
    return power_subspace(ask, start, k, shares, noise), None


def rotate_by_ritz(ask, V, share):
    """Rotate a subspace to its Ritz vectors; return (values without the noise's push, vectors)."""
    answer = ask.projected_gram(V, share=share)
    values, Q = top_eigenpairs((answer.value + answer.value.T) / 2)
    edge = symmetric_noise_edge(answer.noise_scale, V.shape[1])
    return debias_eigenvalues(values, edge), V @ Q


def _step_options(session):
    """How the iterations use answers: by their noise."""
    if session.budget.exact:
        return {"step": last_answer, "shorten": None}
    return {"step": laplace_step if session.budget.pure else back_project}


def _steps(session, n_iter, default, pure_default):
    if session.budget.exact:
        return _EXACT_STEPS
    if n_iter == "auto":
        return pure_default if session.budget.pure else default
    return n_iter


def _core_share(session):
    return 0.1 if session.budget.pure else 0.02


def fit_entries(session, ask, n, k, *, n_iter, non_negative, share):
    """Alternate A V and A'U, then take the SVD of a noisy core: (U, singular values, V)."""
    start = session.random_signs((n, k))
    if non_negative:
        start[:, 0] = 1.0
    core = _core_share(session)
    passes = _steps(session, n_iter, 6, 2)
    U, V = half_steps(ask, start, passes, (1 - core) * share, **_step_options(session))
    return _core_svd(ask, U, V, core * share)


def deflate(session, ask, shape, k, *, n_iter, share):
    """One pair of vectors after the other, each across the ones before: (U, values, V)."""
    U, V = np.zeros((shape[0], 0)), np.zeros((shape[1], 0))
    core = _core_share(session)
    passes = _steps(session, n_iter, 6, 2)
    for _ in range(k):
        start = session.random_signs((shape[1], 1))
        each = (1 - core) * share / k
        u, v = half_steps(ask, start, passes, each, across=(U, V), **_step_options(session))
        U, V = np.hstack([U, u]), np.hstack([V, v])
    return _core_svd(ask, U, V, core * share)


def _core_svd(ask, U, V, share):
    left, values, right = np.linalg.svd(ask.core(U, V, share=share).value)
    return U @ left, values, V @ right.T


def fit_symmetric(session, ask, n, k, *, n_iter, non_negative, share, project=None):
    """Power iteration on a symmetric matrix, then signed Ritz values: (values, vectors)."""
    start = session.random_signs((n, k))
    if non_negative:
        start[:, 0] = 1.0
    options = _step_options(session)
    if project is not None:
        options["project"] = project
    ritz = _core_share(session)
    steps = _steps(session, n_iter, 16, 8)
    X = symmetric_power(ask, start, steps, (1 - ritz) * share, **options)
    return ritz_values(ask, X, k, ritz * share)


def components_of(V):
    """Rows with fixed signs, from the columns of V."""
    return fix_signs(np.ascontiguousarray(V.T))


def check_normalizer(estimator):
    """Refuse normalisers that leave the iterate without a bounded norm."""
    check_option(estimator, "power_iteration_normalizer", ("auto", "QR", "LU", "none"))
    value = estimator.power_iteration_normalizer
    if value in ("LU", "none"):
        raise ValueError(
            f"power_iteration_normalizer={value!r} has no bounded sensitivity; use 'QR' or 'auto'. "
            f"Got {value!r}."
        )
