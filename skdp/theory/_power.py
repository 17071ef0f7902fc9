"""Bounds and diagnostics of private power methods (Hardt, Roth 2013; Nicolas et al. 2024).

Notation: A is n x n with leading eigenvectors U (n x k), the iterate X is n x p, B the largest norm
of a row of X, L the number of steps, gap the distance of eigenvalue k from the one that the iterate
leaves out. Bounds hold up to a constant that the papers do not give; it is 1 here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr


class Coherence(NamedTuple):
    """How much a subspace is concentrated on single coordinates.

    Attributes
    ----------
    mu0 : float
        Largest entry of the vectors, in [1/sqrt(n), 1] (mu0 of Nicolas et al.).
    mu1 : float
        Largest norm of a row, in [sqrt(k/n), 1] (their mu1; for all n eigenvectors it is 1).
    relative : float
        n/k times the square of mu1, in [1, n/k]: the coherence of Hardt and Roth.
    """

    mu0: float
    mu1: float
    relative: float


def subspace_coherence(components: Any) -> Coherence:
    """Return the coherence of a released subspace; it costs no budget.

    A function of what was released, so it costs nothing and may be published; that of the private
    matrix itself may not. The noise of a step for one entry is proportional to `mu1`.

    Parameters
    ----------
    components : array-like of shape (k, n)
        Orthonormal rows: `components_`, or ``left_singular_vectors_.T``.

    Returns
    -------
    Coherence

    Examples
    --------
    >>> from skdp.theory import subspace_coherence
    >>> subspace_coherence([[0.5, 0.5, -0.5, 0.5]])
    Coherence(mu0=0.5, mu1=0.5, relative=1.0)
    """
    V = np.atleast_2d(np.asarray(components, np.float64))
    if not np.allclose(V @ V.T, np.eye(len(V)), atol=1e-6):
        raise ValueError("'components' must have orthonormal rows, as components_ has.")
    k, n = V.shape
    longest = float(np.linalg.norm(V, axis=0).max())
    return Coherence(float(np.abs(V).max()), longest, n / k * longest**2)


def power_error_bound(
    n: int,
    gap: float,
    sensitivities: float | Sequence[float],
    *,
    epsilon: float,
    delta: float = 1e-6,
    n_iter: int = 3,
) -> float:
    """Return the subspace error after noisy power steps (Nicolas et al. 2024, theorem 3.3).

    ||(I - X X')U||_2 is at most of the order max(B) sqrt(L n log(1/delta) log(2 L)) / (epsilon
    gap), for p at least 2 k. With sqrt(p) max|X| in place of the largest rows B it is theorem 2.2
    (Hardt, Price), with `independent_sensitivity` theorem 4.1. (The paper has log(L), which is 0
    for one step.) The bound is for the noise of the paper, sqrt(4 L log(1/delta)) B / epsilon, and
    at most 1.

    Parameters
    ----------
    n : int
        Number of rows of the matrix.
    gap : float
        Distance of eigenvalue k from eigenvalue p + 1.
    sensitivities : float or sequence of float
        Largest norm of a row of the iterate: one number, or one for each step.
    epsilon, delta : float
        Budget.
    n_iter : int, default=3
        Number of steps L.

    Returns
    -------
    float

    Examples
    --------
    >>> from skdp.theory import power_error_bound
    >>> round(power_error_bound(1000, 20_000.0, 0.2, epsilon=1.0, n_iter=4), 4)
    0.0034
    """
    largest = float(np.max(np.asarray(sensitivities, np.float64)))
    noise = math.sqrt(n_iter * n * math.log(1 / delta) * math.log(2 * n_iter))
    return min(1.0, largest * noise / (epsilon * gap))


def prior_sensitivity(components: Any) -> float:
    """Return sqrt(p) max|X|, the bound of theorem 2.2 on the largest row norm (Hardt, Price).

    Parameters
    ----------
    components : array-like of shape (p, n)
        Orthonormal rows.

    Returns
    -------
    float
    """
    V = np.atleast_2d(np.asarray(components, np.float64))
    return math.sqrt(len(V)) * float(np.abs(V).max())


def independent_sensitivity(n: int, width: int, mu0: float, mu1: float = 1.0) -> float:
    """Return min(mu0 sqrt(p log n), mu1): a bound before any step (Nicolas et al., theorem 4.1).

    Parameters
    ----------
    n : int
        Number of rows of the matrix.
    width : int
        Columns of the iterate.
    mu0 : float
        Largest entry of the eigenvectors.
    mu1 : float, default=1.0
        Largest norm of a row of the matrix of all eigenvectors: 1 for every matrix.

    Returns
    -------
    float
    """
    return min(mu0 * math.sqrt(width * math.log(n)), mu1)


def sensitivity_ratio(n: int, k: int) -> float:
    """Return r(k, n): sqrt(k) max|X| over the largest row, at a random start (appendix C).

    By this factor the row norm of Nicolas et al. 2024 needs less noise than the bound of Hardt and
    Price (their closed form). It is a lower estimate: measured ratios are 1.3 to 1.9 times as
    large.

    Parameters
    ----------
    n : int
        Number of rows; more than 4.
    k : int
        Columns of the iterate.

    Returns
    -------
    float

    Examples
    --------
    >>> from skdp.theory import sensitivity_ratio
    >>> round(sensitivity_ratio(8000, 256), 2)
    2.5
    """
    mean = k / (n - 2)
    spread = 2 * n**2 * (n - 1) / ((n - 2) ** 2 * (n - 4))
    entries = math.sqrt(2 * spread * math.log(k * n)) * k / n + mean
    rows = math.sqrt(2 * spread * k * math.log(n)) / n + mean
    return math.sqrt(entries / rows)


def power_steps(value: float, *, gap: float = 1.0) -> int:
    """Return how many steps a power iteration needs (Hardt, Roth 2013, lemma 3.1).

    (4 / gap) log(value), between 1 and 1000, where the next singular value is (1 - gap) times the
    wanted one. The paper's remark 4.5 leaves 1/gap out. `value` counts in units of what one entry
    may change; it is private: take a public guess or a released number.

    Parameters
    ----------
    value : float
        The singular value.
    gap : float, default=1.0
        Relative gap, in (0, 1].

    Returns
    -------
    int

    Examples
    --------
    >>> from skdp.theory import power_steps
    >>> power_steps(100.0), power_steps(100.0, gap=0.5)
    (19, 37)
    """
    return max(1, min(1000, math.ceil(4 / gap * math.log(max(value, 1.0)))))


def recovery_bound(mu: float, changes: float = 1.0) -> float:
    """Return how well a secret fair bit of the data can be guessed from a private fit.

    The bit decides `changes` units. The best guess is right with probability Phi(changes mu / 2) at
    most, by group privacy and the trade-off curve of mu. The bit that says which of two records is
    in the data decides two units under "add_remove", one under "replace".

    Parameters
    ----------
    mu : float
        Gaussian-DP parameter of the fit, ``privacy_spent_.mu``.
    changes : float, default=1.0
        How many units the bit decides.

    Returns
    -------
    float

    Examples
    --------
    >>> from skdp.theory import recovery_bound
    >>> round(recovery_bound(0.2367, 2), 3)
    0.594
    """
    return float(ndtr(changes * mu / 2))
