"""Factorisation of a matrix from noisy sketches, as post-processing of released numbers.

Notation: A is m x n; Y = A F + noise (m x t), Z = S'A + noise (v x n), C = L'A T + noise, where
F (n x t), S (m x v), L and T are known. A noisy sketch is an `Answer`. The part of A beyond its
leading components acts as further noise in the sketches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from skdp._limits import NEGLIGIBLE
from skdp.answer import Answer
from skdp.solvers.linalg import is_small, largest_of_noise, leading_eigenvectors, shrink
from skdp.solvers.one_shot import LAPLACE_KURTOSIS

FloatArray = NDArray[np.float64]


class Factors(NamedTuple):
    """A ~ left diag(values) right; `rank` counts the values that rise above the noise."""

    left: FloatArray
    values: FloatArray
    right: FloatArray
    rank: int


def noise_edge(scale: float, shape: tuple[int, ...]) -> float:
    """Return what the singular values of a matrix of noise, Gaussian or Laplace, seldom exceed."""
    m, n = shape
    return scale * (math.sqrt(m) + math.sqrt(n)) * largest_of_noise((m, n), LAPLACE_KURTOSIS)


def from_matrix(matrix: Answer, k: int, start: FloatArray) -> Factors:
    """Factor a noisy matrix: leading singular vectors, shrunken values.

    `start` (n x more than k columns) is public. A large matrix is not decomposed.
    """
    M = matrix.value
    m, n = M.shape
    if is_small(min(m, n), start.shape[1]):
        left, values, right = np.linalg.svd(M, full_matrices=False)
        left, values, right = left[:, :k], values[:k], right[:k]
    elif m < n:
        turned = from_matrix(Answer(M.T, matrix.noise_scale), k, M @ start)
        return turned._replace(left=turned.right.T, right=turned.left.T)
    else:
        # The Gram matrix M'M is formed once: the iteration makes about sixty products with it.
        V = leading_eigenvectors((M.T @ M).__matmul__, start, start.shape[1])
        U, values, small = np.linalg.svd(M @ V, full_matrices=False)
        left, values, right = U[:, :k], values[:k], (small @ V.T)[:k]
    edge = noise_edge(matrix.noise_scale, (m, n))
    kept = np.where(values > edge, shrink(values, matrix.noise_scale, (m, n)), 0.0)
    rank = int(np.count_nonzero(kept > NEGLIGIBLE * max(float(kept[0]), 1e-300)))
    return Factors(left, kept, right, rank)


class _Side(NamedTuple):
    """Singular vectors of a sketch; `rank` of them rise above the noise."""

    vectors: FloatArray
    rank: int

    @property
    def kept(self) -> FloatArray:
        return self.vectors[:, : self.rank]


def _side(sketch: FloatArray, scale: float, k: int) -> _Side:
    """Return the leading left singular vectors of a tall sketch."""
    vectors, values, _ = np.linalg.svd(sketch, full_matrices=False)
    edge = max(noise_edge(scale, sketch.shape), NEGLIGIBLE * float(values[0]))
    rank = min(2 * k, int(np.count_nonzero(values > edge)))
    return _Side(vectors[:, : 2 * k], rank)


def _finish(U: _Side, X: FloatArray, V: _Side, k: int) -> Factors:
    """Return the k leading factors of U X V', filled up with noise directions if fewer."""
    left, values, right = np.linalg.svd(X)
    largest = max(float(values[0]), 1e-300) if values.size else 0.0
    rank = min(k, int(np.count_nonzero(values > NEGLIGIBLE * largest)))
    kept = np.zeros(k)
    kept[:rank] = values[:rank]
    rows = np.hstack([U.kept @ left, U.vectors[:, U.rank :]])
    columns = np.hstack([V.kept @ right.T, V.vectors[:, V.rank :]])
    return Factors(rows[:, :k], kept, columns[:, :k].T, rank)


def from_sketches(noisy: Sequence[Answer], sides: Sequence[FloatArray], k: int) -> Factors:
    """Solve for A ~ U X V' from Y and Z together, and a separate core C if there is one.

    U and V span the singular vectors of Y and Z above the known noise levels. X is computed from C
    if there is one. Otherwise it minimises ``|Y - U X V'F|^2 / sy^2 + |Z - S'U X V'|^2 / sz^2``, a
    Sylvester equation; unlike the inverse of S'U, this is stable for any sizes. One sweep of
    alternating least squares follows.
    """
    (right, left, *core), (F, S, *of_core) = noisy, sides
    U, V = _side(right.value, right.noise_scale, k), _side(left.value.T, left.noise_scale, k)
    if not (U.rank and V.rank):
        return _finish(U, np.zeros((U.rank, V.rank)), V, k)
    if core:
        before, after = np.linalg.pinv(of_core[0].T @ U.kept), np.linalg.pinv(V.kept.T @ of_core[1])
        X = before @ core[0].value @ after
        return _refined(_finish(U, X, V, k), right, left, F, S)
    sy, sz = right.noise_scale or 1.0, left.noise_scale or 1.0
    SU, VF = S.T @ U.kept, V.kept.T @ F
    P, Q = SU.T @ SU / sz**2, VF @ VF.T / sy**2
    R = SU.T @ left.value @ V.kept / sz**2 + U.kept.T @ right.value @ VF.T / sy**2
    size = max(float(np.trace(P)), float(np.trace(Q)))  # scales the equation to numbers near 1
    X = scipy.linalg.solve_sylvester(P / size, Q / size, R / size)
    return _refined(_finish(U, X, V, k), right, left, F, S)


def _with_rest(sketch: Answer, fitted: FloatArray, rank: int) -> Answer:
    """Return the sketch with its noise scale raised to the residual of a fit of this rank.

    The residual contains the part of A beyond the fit. It is larger in the entries of a narrow
    sketch, which then gets less weight.
    """
    m, t = sketch.value.shape
    rest = float(np.linalg.norm(sketch.value - fitted)) / math.sqrt(m * max(t - rank, t / 4))
    least = NEGLIGIBLE * float(np.abs(sketch.value).max())
    return sketch._replace(noise_scale=max(sketch.noise_scale, rest, least))


def _refined(start: Factors, right: Answer, left: Answer, F: FloatArray, S: FloatArray) -> Factors:
    """Make one sweep of alternating least squares, in which each factor uses both sketches.

    Given V, ``W = argmin |Y - W V'F|^2 / sy^2 + |Z - S'W V'|^2 / sz^2 + ridge`` over all W, not
    only those in the range of Y, and then the same for the other side. It takes 5 to 40% off the
    excess error of the core solve. The ridge, what noise of that size would have left, keeps weak
    components from growing.
    """
    r = start.rank
    if r == 0:
        return start
    values, U, V = start.values[:r], start.left[:, :r], start.right[:r].T
    y = _with_rest(right, U * values @ (V.T @ F), r)
    z = _with_rest(left._replace(value=left.value.T), V * values @ (U.T @ S), r)
    W = _least_squares(y, z, F, S, V, len(y.value) / values**2)
    U, values, turn = np.linalg.svd(W, full_matrices=False)
    V = V @ turn.T
    weights = len(z.value) / np.maximum(values, NEGLIGIBLE * values[0]) ** 2
    H = _least_squares(z, y, S, F, U, weights)
    V, values, turn = np.linalg.svd(H, full_matrices=False)
    U = U @ turn.T
    return Factors(
        np.hstack([U, _others(start.left, U)]),
        np.concatenate([values, start.values[r:]]),
        np.vstack([V.T, _others(start.right.T, V).T]),
        r,
    )


def _least_squares(
    y: Answer, z: Answer, F: FloatArray, S: FloatArray, V: FloatArray, ridge: FloatArray
) -> FloatArray:
    """Solve for W in ``W (G + ridge) + S S'W / sz^2 = Y F'V / sy^2 + S Z V / sz^2``.

    G = V'F F'V / sy^2, y = A F and z = A'S, noisy. Diagonal in the eigenvectors of G + ridge and
    in the range of S.
    """
    VF = V.T @ F
    g, turn = np.linalg.eigh(VF @ VF.T / y.noise_scale**2 + np.diag(ridge))
    g = np.maximum(g, NEGLIGIBLE * g[-1])
    target = (y.value @ VF.T / y.noise_scale**2 + S @ (z.value.T @ V) / z.noise_scale**2) @ turn
    squares, right = np.linalg.eigh(S.T @ S)
    kept = squares > NEGLIGIBLE * squares[-1]
    squares = squares[kept]
    Q = S @ (right[:, kept] / np.sqrt(squares))  # an orthonormal basis of the range of S
    inside = Q.T @ target
    W = (target - Q @ inside) / g + Q @ (inside / (squares[:, None] / z.noise_scale**2 + g))
    return np.asarray(W @ turn.T)


def _others(columns: FloatArray, kept: FloatArray) -> FloatArray:
    """Return the later columns of an orthonormal set, made orthogonal to the kept ones."""
    rest = columns[:, kept.shape[1] :]
    if rest.shape[1] == 0:
        return rest
    return np.asarray(np.linalg.qr(np.hstack([kept, rest]))[0][:, kept.shape[1] :])


def factorize(
    noisy: Sequence[Answer], sides: Sequence[FloatArray], k: int, start: FloatArray
) -> Factors:
    """Factor what was released: A itself, Y and Z, or these and a core.

    `sides` are what they were multiplied by: nothing, F and S, or these, L and T. Whatever the size
    of the matrix, numbers of order one are factored, so that no square of them overflows.
    """
    largest = max(float(np.abs(answer.value).max(initial=0.0)) for answer in noisy)
    power = math.frexp(largest)[1]
    scaled = [Answer(np.ldexp(a.value, -power), math.ldexp(a.noise_scale, -power)) for a in noisy]
    if len(noisy) == 1:
        factors = from_matrix(scaled[0], k, start)
    else:
        factors = from_sketches(scaled, sides, k)
    with np.errstate(over="ignore"):
        values = np.minimum(np.ldexp(factors.values, power), np.finfo(np.float64).max)
    return factors._replace(values=values)


def gram_factors(reports: FloatArray, scale: float, k: int) -> tuple[FloatArray, FloatArray]:
    """Return the k leading eigenpairs of Y'Y - m scale^2 I: the noise of m reports taken off."""
    m, n = reports.shape
    values, vectors = np.linalg.eigh(reports.T @ reports - m * scale**2 * np.eye(n))
    return np.maximum(values[::-1][:k], 0.0), vectors[:, ::-1][:, :k]
