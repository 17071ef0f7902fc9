"""Power iteration on noisy products, where each step uses every answer so far.

Notation: A is the private m x n matrix, seen only through `ask`; X (n x p) and U (m x p) are public
iterates with orthonormal columns; Q is the query that was sent (a shortened iterate); an answer Y
is A Q plus noise of standard deviation s.

Three ideas, all of them functions of public values:

- *Shortened rows* (`shorten_rows`): the noise is set by the longest rows of the query, so rows
  longer than sqrt(c p / n) are cut; the query keeps most of its direction at less of the noise.
- *Back-projection* (`back_project`): sum_i Y_i Q_i' / s_i^2 is an estimate of A from all answers,
  so a power step on it averages the noise of all steps (free).
- *Agreement*: in symmetric iterations early answers share noise with the iterate they led to;
  answers whose column space does not agree with the last one are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from skdp.answer import Answer
from skdp.solvers.linalg import orthonormal

__all__ = [
    "AsksProducts",
    "Project",
    "back_project",
    "half_steps",
    "back_project_laplace",
    "ritz_values",
    "shorten_rows",
    "symmetric_power",
]

FloatArray = NDArray[np.float64]
_AGREEMENT = 0.1  # mean squared cosine above chance that an earlier answer needs


class AsksProducts(Protocol):
    """What the iterations ask for: noisy products with public matrices."""

    def right(self, X: FloatArray, *, share: float) -> Answer:
        """Return A X plus noise."""
        ...

    def left(self, U: FloatArray, *, share: float) -> Answer:
        """Return A'U plus noise."""
        ...


class AsksRitz(Protocol):
    """What Rayleigh-Ritz asks for."""

    def ritz(self, X: FloatArray, *, share: float) -> Answer:
        """Return X'A X plus symmetric noise."""
        ...


class Sent(NamedTuple):
    """One step of the transcript: query, answer, noise scale (1 where there is none)."""

    query: FloatArray
    answer: FloatArray
    noise_scale: float


Step = Callable[[list[Sent], FloatArray, float | None], FloatArray]
Project = Callable[[FloatArray], FloatArray]


def shorten_rows(X: FloatArray, c: float | None) -> FloatArray:
    """Cut rows of X longer than sqrt(c p / n), then rescale to the norm of X; None leaves X."""
    if c is None:
        return X
    n, p = X.shape
    lengths = np.linalg.norm(X, axis=1, keepdims=True)
    Q = X * np.minimum(1.0, np.sqrt(c * p / n) / np.maximum(lengths, 1e-300))
    size = np.linalg.norm(Q)
    return np.asarray(Q * (np.sqrt(p) / size) if size > 0 else X)


def _weights(
    sent: list[Sent], X: FloatArray, agreement: float | None
) -> list[tuple[Sent, FloatArray]]:
    """Return the answers worth using, each with the public weights Q'X."""
    last = sent[-1]
    p = X.shape[1]
    basis = orthonormal(last.answer)
    used = []
    for step in sent:
        if step is not last and agreement is not None:
            overlap = np.sum((orthonormal(step.answer).T @ basis) ** 2) / p
            if overlap <= agreement + p / len(step.answer):
                continue
        used.append((step, step.query.T @ X))
    return used


def back_project(sent: list[Sent], X: FloatArray, agreement: float | None) -> FloatArray:
    """Return the estimate of A from all answers, times X."""
    total = np.zeros((len(sent[-1].answer), X.shape[1]))
    for step, weights in _weights(sent, X, agreement):
        total += step.answer @ weights / step.noise_scale**2
    return total


def back_project_laplace(sent: list[Sent], X: FloatArray, agreement: float | None) -> FloatArray:
    """Back-projection of one column under Laplace noise: most of the information is in the signs.

    For each coordinate u it returns the minimum of u^2/2 + sum_i |y_i - a_i u| / b_i, with b_i the
    Laplace scales and a_i the amplitudes, the last of them from the released answer.
    """
    last = sent[-1]
    used = _weights(sent, X, agreement)
    b = np.array([step.noise_scale / np.sqrt(2) for step, _ in used])
    power = float(np.mean(last.answer**2)) - 2 * b[-1] ** 2
    overlaps = np.array([weights[0, 0] for _, weights in used])
    a = np.sqrt(max(power, 1e-3 * b[-1] ** 2)) * overlaps / overlaps[-1]
    return _laplace_mode(np.hstack([step.answer for step, _ in used]), a, b)[:, None]


def _laplace_mode(Y: FloatArray, a: FloatArray, b: FloatArray) -> FloatArray:
    """Minimise u^2/2 + sum_i |y_i - a_i u| / b_i for each row of Y, by bisection."""
    high = np.full(len(Y), float(np.sum(np.abs(a) / b)))
    low = -high
    for _ in range(50):
        u = (low + high) / 2
        rising = u - np.sign(Y - u[:, None] * a) @ (a / b) > 0
        high = np.where(rising, u, high)
        low = np.where(rising, low, u)
    return np.asarray((low + high) / 2)


def _unchanged(Y: FloatArray) -> FloatArray:
    return Y


def _scale(answer: Answer) -> float:
    return answer.noise_scale or 1.0


def symmetric_power(
    ask: AsksProducts,
    start: FloatArray,
    n_iter: int,
    share: float,
    *,
    shorten: float | None = 0.25,
    project: Project = _unchanged,
    step: Step = back_project,
) -> FloatArray:
    """Return a basis of the leading subspace of a symmetric A, from `n_iter` equal releases.

    `project` is a public linear map (a direction taken out), applied to queries and answers.
    """
    X = orthonormal(project(start))
    sent: list[Sent] = []
    for _ in range(n_iter):
        Q = project(shorten_rows(X, shorten))
        answer = ask.right(Q, share=share / n_iter)
        sent.append(Sent(Q, project(answer.value), _scale(answer)))
        X = orthonormal(project(step(sent, X, _AGREEMENT)))
    return X


def half_steps(
    ask: AsksProducts,
    start: FloatArray,
    n_passes: int,
    share: float,
    *,
    shorten: float | None = 0.25,
    step: Step = back_project,
    across: tuple[FloatArray, FloatArray] | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Return bases of the leading left and right subspaces of A, from 2 `n_passes` releases.

    Answers of A and of A' share no noise, so every answer is used. With ``across=(U, V)``, public
    with orthonormal columns, the result lies across them (deflation).
    """
    left = _across(across[0]) if across else _unchanged
    right = _across(across[1]) if across else _unchanged
    V = orthonormal(right(start))
    U = V
    forward: list[Sent] = []
    backward: list[Sent] = []
    each = share / (2 * n_passes)
    for _ in range(n_passes):
        Q = right(shorten_rows(V, shorten))
        answer = ask.right(Q, share=each)
        forward.append(Sent(Q, left(answer.value), _scale(answer)))
        U = orthonormal(step(forward, V, None))
        P = left(shorten_rows(U, shorten))
        answer = ask.left(P, share=each)
        backward.append(Sent(P, right(answer.value), _scale(answer)))
        V = orthonormal(step(backward, U, None))
    return U, V


def _across(basis: FloatArray) -> Project:
    """Return the projection onto what is orthogonal to a public basis."""
    return lambda Y: np.asarray(Y - basis @ (basis.T @ Y))


def ritz_values(
    ask: AsksRitz, X: FloatArray, k: int, share: float
) -> tuple[FloatArray, FloatArray]:
    """Return the k signed Ritz values largest in magnitude, and their vectors in the span of X."""
    M = ask.ritz(X, share=share).value
    values, vectors = np.linalg.eigh((M + M.T) / 2)
    order = np.argsort(-np.abs(values))[:k]
    return values[order], X @ vectors[:, order]
