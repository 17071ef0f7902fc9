"""Power iteration on noisy products, where each step uses every answer so far.

Notation: A is the private m x n matrix, accessed only through `ask`; X (n x p) and U (m x p) are
public iterates with orthonormal columns; Q is the query that was sent (a shortened iterate); an
answer Y is A Q plus noise of standard deviation s.

Two ideas, both of them functions of public values:

- *Posterior mean* (`PosteriorMean`): with entries of A of variance t before anything is known, the
  mean of A X given all answers is Y (Q'Q + diag(s^2)/t)^-1 Q'X. Where noise is large this is
  proportional to sum_i Y_i Q_i'X / s_i^2, which averages the noise of all steps; where it is small
  it is exact on all that was asked, and the result is that of a Krylov space.
- *Shortened rows* (`shorten_rows`): the noise is set by the longest rows of the query, so rows
  longer than sqrt(c p / n) are cut; the query keeps most of its direction at less of the noise.
  c grows without bound as the noise vanishes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from skdp._limits import NEGLIGIBLE, FloatArray
from skdp.answer import Answer
from skdp.solvers.linalg import largest_of_noise, leading_eigenvectors, orthonormal

# Prior variance of an entry of A, which `PosteriorMean` calls t: so much of the signal in the last
# product, because directions that were not found yet are weaker. If no signal exceeds the noise, it
# is _LEAST of the variance of the noise: at 1e-12 one graph of four is lost.
_PRIOR = 0.03
_LEAST = 1e-3
_SHORTEN = 0.25  # rows of a query, in squared mean lengths, where all is noise


class AsksProducts(Protocol):
    """What the iterations ask for: noisy products with public matrices."""

    def right(self, X: FloatArray, *, share: float) -> Answer:
        """Return A X plus noise."""

    def left(self, U: FloatArray, *, share: float) -> Answer:
        """Return A'U plus noise."""


Project = Callable[[FloatArray], FloatArray]


def shorten_rows(X: FloatArray, c: float) -> FloatArray:
    """Cut rows of X longer than sqrt(c p / n), then rescale to the norm of X; inf leaves X."""
    if math.isinf(c):
        return X
    n, p = X.shape
    lengths = np.linalg.norm(X, axis=1, keepdims=True)
    Q = X * np.minimum(1.0, np.sqrt(c * p / n) / np.maximum(lengths, 1e-300))
    size = np.linalg.norm(Q)
    return np.asarray(Q * (np.sqrt(p) / size) if size > 0 else X)


class PosteriorMean:
    """The queries and answers of one side so far, and the posterior mean of A.

    Parameters
    ----------
    wanted : int
        Number of directions that are wanted, and that the signal is judged by.
    sent, seen : callable
        Public linear maps (directions taken out) of what is sent, and of its answers.
    """

    def __init__(self, wanted: int, sent: Project = np.asarray, seen: Project = np.asarray) -> None:
        self.steps: list[tuple[FloatArray, Answer]] = []
        self._wanted, self._sent, self._seen = wanted, sent, seen
        self._noise = 1.0

    def ask(self, product: Callable[..., Answer], X: FloatArray, share: float) -> FloatArray:
        """Send X, and return a basis of its image.

        The noise follows the longest row of a query: the weaker the signal, the more rows are cut.
        """
        Q = self._sent(shorten_rows(X, _SHORTEN / math.sqrt(max(self._noise, 1e-15))))
        answer = product(Q, share=share)
        self.steps.append((Q, answer._replace(value=self._seen(answer.value))))
        self._noise = self.noise_fraction()
        return orthonormal(self._seen(self.times(X)))

    def signal(self) -> float:
        """Return the variance of an entry of the last answer beyond its noise.

        It is the mean over the wanted directions of what exceeds the noise level. The weakest may
        be noise at any budget, so it is no measure; nor is the strongest, next to which noise in
        the others would count as signal.
        """
        answer, scale = self.steps[-1][1]
        m, p = answer.shape
        powers = np.linalg.eigvalsh(answer.T @ answer)[-self._wanted :] / m
        return float(np.mean(np.maximum(powers - (scale * (1 + math.sqrt(p / m))) ** 2, 0.0)))

    def noise_fraction(self) -> float:
        """Return the share of the noise in the last answer: 1 without a signal."""
        noise = self.steps[-1][1].noise_scale ** 2
        return noise / (noise + self.signal()) if noise > 0 else 0.0

    def _posterior(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return queries Q, answers, and Q'Q + diag(s^2)/t."""
        Q = np.hstack([query for query, _ in self.steps])
        noise = np.concatenate([np.full(q.shape[1], a.noise_scale**2) for q, a in self.steps])
        ridge = noise / max(_PRIOR * self.signal(), _LEAST * float(noise.min()), 1e-300)
        gram = Q.T @ Q
        rounding = 1e-13 * max(float(np.trace(gram)), 1e-300)  # of queries that repeat each other
        gram += np.diag(ridge + rounding)
        return Q, np.hstack([answer.value for _, answer in self.steps]), gram

    def times(self, X: FloatArray) -> FloatArray:
        """Return the posterior mean of A X."""
        Q, answers, gram = self._posterior()
        return np.asarray(answers @ np.linalg.solve(gram, Q.T @ X))

    def leading(self) -> FloatArray:
        """Return the wanted leading left singular vectors of the posterior mean of A."""
        Q, answers, gram = self._posterior()
        R: FloatArray = np.linalg.qr(Q)[1]
        mean = answers @ np.linalg.solve(gram, R.T)
        return np.asarray(np.linalg.svd(mean, full_matrices=False)[0][:, : self._wanted])


def half_steps(
    ask: AsksProducts,
    start: FloatArray,
    n_passes: int,
    share: float,
    wanted: int,
    across: tuple[FloatArray, FloatArray],
) -> tuple[FloatArray, FloatArray]:
    """Find bases of the leading left and right subspaces of A by 2 `n_passes` releases.

    The result is orthogonal to the public bases U and V in `across` (deflation).
    """
    left, right = map(_across, across)
    forward, backward = PosteriorMean(wanted, right, left), PosteriorMean(wanted, left, right)
    V = orthonormal(right(start))
    U, each = V, share / (2 * n_passes)
    for _ in range(n_passes):
        U = forward.ask(ask.right, V, each)
        V = backward.ask(ask.left, U, each)
    return forward.leading(), backward.leading()


def _across(basis: FloatArray) -> Project:
    """Return the projection onto what is orthogonal to a public basis."""
    return (lambda Y: np.asarray(Y - basis @ (basis.T @ Y))) if basis.size else np.asarray


# Low-rank fits of a matrix that is seen through noisy products, whatever the law of the noise.
#
# Notation as above. A `law` is public: "gaussian", "laplace" (pure differential
# privacy, one column) or "exact" (no noise). `start` may have more columns than the k wanted ones.


_CORE_SHARE = 0.02, 0.1
# Passes under Gaussian noise, and under Laplace noise: with two of these, a component behind a
# stronger one is not found.
PASSES = {"power": (16, 8), "alternating": (6, 2), "deflation": (4, 4)}


def alternate(
    ask: Any, n_rows: int, start: FloatArray, k: int, share: float,
    *, law: str, n_iter: int | str, one_by_one: bool,
) -> tuple[FloatArray, FloatArray, FloatArray]:  # fmt: skip
    """Alternate A V and A'U, then take the SVD of a noisy core: (U, k singular values, V).

    Values that noise alone would reach are 0. Pairs of vectors are found `one_by_one`, each
    orthogonal to those before, for Laplace noise, which grows with the columns of one answer;
    Gaussian noise does not. Without noise these are the same pairs.
    """
    core = _CORE_SHARE[law == "laplace"]
    if law == "exact":
        U, V = _exact_pairs(ask, start[:, :k], NEGLIGIBLE * share)
    else:
        deflated = one_by_one and k > 1
        parts = [start[:, [j]] for j in range(k)] if deflated else [start]
        passes = PASSES["deflation" if deflated else "alternating"][law == "laplace"]
        passes, each = passes if isinstance(n_iter, str) else n_iter, (1 - core) * share
        U, V = np.zeros((n_rows, 0)), np.zeros((len(start), 0))
        for first in parts:
            wanted = k // len(parts)
            u, v = half_steps(ask, first, passes, each / len(parts), wanted, across=(U, V))
            U, V = np.hstack([U, u]), np.hstack([V, v])
    answer = ask.core(U, V, share=core * share)
    left, values, right = np.linalg.svd(answer.value)
    edge = 2 * math.sqrt(len(values)) * answer.noise_scale * largest_of_noise(answer.value.shape)
    return U @ left[:, :k], (values * (values > edge))[:k], V @ right[:k].T


def _exact_pairs(ask: Any, start: FloatArray, each: float) -> tuple[FloatArray, FloatArray]:
    def multiply(V: FloatArray) -> FloatArray:
        return np.asarray(ask.left(ask.right(V, share=each).value, share=each).value)

    V = leading_eigenvectors(multiply, start, start.shape[1])
    return orthonormal(ask.right(V, share=each).value), V


def more_columns(session: Any, k: int) -> int:
    """Return how many columns beyond k a random start has for a symmetric matrix.

    k columns may miss components. With noise below half of its edge, further ones cost nothing.
    """
    noise = math.inf if session.law == "laplace" else float(session.noise_multiplier)
    return min(10, round(0.5 * k / max(noise, NEGLIGIBLE)))


def iterate_symmetric(
    ask: Any,
    start: FloatArray,
    k: int,
    share: float,
    *,
    law: str,
    n_iter: int | str,
    project: Project = np.asarray,
) -> tuple[FloatArray, FloatArray, float]:
    """Power iteration on a symmetric matrix, then the k signed Ritz values largest in magnitude.

    With them their vectors, and the noise scale. If the start has more than k columns, all released
    products together decide which k lead. `project` is a public linear map of queries and products
    that removes a direction.
    """
    core = _CORE_SHARE[law == "laplace"]
    if law == "exact":
        each = NEGLIGIBLE * share

        def multiply(Q: FloatArray) -> FloatArray:
            return project(ask.right(project(Q), share=each).value)

        X = leading_eigenvectors(multiply, project(start[:, :k]), k)
    else:
        steps = PASSES["power"][law == "laplace"] if isinstance(n_iter, str) else n_iter
        side, X = PosteriorMean(k, project, project), project(start)
        # If the map removes the start, a unit vector replaces it, and not rounding errors.
        rounding = np.linalg.norm(X, axis=0) < NEGLIGIBLE * np.linalg.norm(start, axis=0)
        X = orthonormal(np.where(rounding, 0.0, X))
        for _ in range(steps):
            X = side.ask(ask.right, X, (1 - core) * share / steps)
        X = side.leading()
    answer = ask.ritz(X, share=core * share)  # X'A X plus symmetric noise
    values, vectors = np.linalg.eigh((answer.value + answer.value.T) / 2)
    order = np.argsort(-np.abs(values))[:k]
    return values[order], X @ vectors[:, order], answer.noise_scale
