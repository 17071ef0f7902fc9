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

from skdp._limits import CLEAR, NEGLIGIBLE, FloatArray
from skdp.answer import Answer
from skdp.solvers.linalg import is_small, largest_of_noise, leading_eigenvectors, shrink
from skdp.solvers.one_shot import LAPLACE_KURTOSIS

Sides = Sequence[FloatArray]


class Factors(NamedTuple):
    """A ~ left diag(values) right; `rank` counts the values that rise above the noise."""

    left: FloatArray
    values: FloatArray
    right: FloatArray
    rank: int


def rectangular_noise_edge(scale: float, shape: tuple[int, ...]) -> float:
    """Return what the singular values of a matrix of noise, Gaussian or Laplace, seldom exceed."""
    m, n = shape
    return scale * (math.sqrt(m) + math.sqrt(n)) * largest_of_noise((m, n), LAPLACE_KURTOSIS)


def _with_means(
    matrix: Answer, others: Factors, start: FloatArray, most: float, *sums: Answer
) -> Factors:
    """Return the leading factors of means of rows and columns, and of the remainder.

    The mean of the rows is a projection on a public direction. Its squared noise is n times that of
    an entry, against (sqrt(m) + sqrt(n))^2 times for a singular value. Of the centred matrix more
    than k components are kept, as the means hold a part of each. A sum of the rows that was
    released alone has less noise than the sum of the released rows.
    """
    M, noise = matrix
    u, v = (np.full(side, side**-0.5) for side in M.shape)
    row, column, row_noise = u @ M, M @ v, noise
    for (total,), noise_scale in sums:  # the mean of both, weighted by their squared noise
        weight = noise**2 / max(noise**2 + (u[0] * noise_scale) ** 2, 1e-300)
        row_noise = math.sqrt(weight) * u[0] * noise_scale
        row = weight * u[0] * total + (1 - weight) * row
    common = np.atleast_1d(row @ v)
    column_rest = column - common * u
    centred = Answer(M - np.outer(u, row) - np.outer(column_rest, v), noise)
    left_rest, sizes, right_rest, _ = _shrunk_svd(centred, start.shape[1], start, most)
    row = _denoised(common, row_noise, most) * v + _denoised(row - common * v, row_noise, most)
    left = np.column_stack([u, _denoised(column_rest, noise, most), left_rest * sizes])
    return _refactored(left, np.column_stack([row, v, right_rest.T]), others)


def _refactored(left: FloatArray, right: FloatArray, others: Factors) -> Factors:
    """Return the k leading factors of left right', filled up with directions of k others."""
    U, X = np.linalg.qr(np.hstack([left, others.left]))
    V, Y = np.linalg.qr(np.hstack([right, others.right.T]))
    r, k = left.shape[1], len(others.values)
    left, values, right = np.linalg.svd(X[:, :r] @ Y[:, :r].T)
    values = np.where(values > NEGLIGIBLE * values[0], values, 0.0)[:k]
    return Factors((U @ left)[:, :k], values, (right @ V.T)[:k], int(np.count_nonzero(values)))


def _denoised(values: FloatArray, noise_scale: float, most: float) -> FloatArray:
    """Return d noisy numbers without the noise (James and Stein); zeros where noise is likely."""
    d, square = len(values), float(values @ values)
    clear = min(math.sqrt(square), most) > math.sqrt(d + CLEAR**2 * math.sqrt(2 * d)) * noise_scale
    return values * (1 - d * noise_scale**2 / square) if clear else 0 * values


def _shrunk_svd(matrix: Answer, k: int, start: FloatArray, most: float) -> Factors:
    """Return leading singular vectors, shrunken values. A large matrix is not decomposed.

    Values are 0 if the public bound `most` is below the noise edge.
    """
    M = matrix.value
    m, n = M.shape
    if is_small(min(m, n), start.shape[1]):
        left, values, right = np.linalg.svd(M, full_matrices=False)
        left, values, right = left[:, :k], values[:k], right[:k]
    elif m < n:
        transposed = _shrunk_svd(Answer(M.T, matrix.noise_scale), k, M @ start, most)
        return transposed._replace(left=transposed.right.T, right=transposed.left.T)
    else:
        # The Gram matrix M'M is formed once: the iteration makes about sixty products with it.
        V = leading_eigenvectors((M.T @ M).__matmul__, start, start.shape[1])
        U, values, small = np.linalg.svd(M @ V, full_matrices=False)
        left, values, right = U[:, :k], values[:k], (small @ V.T)[:k]
    edge = rectangular_noise_edge(matrix.noise_scale, (m, n))
    shrunk = shrink(values, matrix.noise_scale, (m, n))
    kept = np.where(np.minimum(values, most) > edge, shrunk, 0.0)
    rank = int(np.count_nonzero(kept > NEGLIGIBLE * max(float(kept[0]), 1e-300)))
    return Factors(left, kept, right, rank)


def _column_space(sketch: FloatArray, scale: float, k: int) -> tuple[FloatArray, int]:
    """Return leading left singular vectors of a tall sketch, and how many rise above the noise."""
    vectors, values, _ = np.linalg.svd(sketch, full_matrices=False)
    edge = max(rectangular_noise_edge(scale, sketch.shape), NEGLIGIBLE * float(values[0]))
    return vectors[:, : 2 * k], min(2 * k, int(np.count_nonzero(values > edge)))


def _from_sketches(noisy: Sequence[Answer], sides: Sides, k: int) -> Factors:
    """Solve for A ~ U X V' from Y and Z together, and a separate core C if there is one.

    U and V span the singular vectors of Y and Z above the known noise levels. X is computed from C
    if there is one. Otherwise it minimises ``|Y - U X V'F|^2 / sy^2 + |Z - S'U X V'|^2 / sz^2``, a
    Sylvester equation; unlike the inverse of S'U, this is stable for any sizes. One sweep of
    alternating least squares follows.
    """
    (right, left, *core), (F, S, *LT) = noisy, sides
    rows, p = _column_space(right.value, right.noise_scale, k)
    columns, q = _column_space(left.value.T, left.noise_scale, k)
    U, V = rows[:, :p], columns[:, :q]
    others = Factors(rows[:, :k], np.zeros(k), columns[:, :k].T, 0)
    if not (p and q):
        return others
    if LT:
        X = np.linalg.pinv(LT[0].T @ U) @ core[0].value @ np.linalg.pinv(V.T @ LT[1])
    else:
        sy, sz = right.noise_scale or 1.0, left.noise_scale or 1.0
        SU, VF = S.T @ U, V.T @ F
        P, Q = SU.T @ SU / sz**2, VF @ VF.T / sy**2
        R = SU.T @ left.value @ V / sz**2 + U.T @ right.value @ VF.T / sy**2
        size = max(float(np.trace(P)), float(np.trace(Q)))  # makes numbers near 1
        X = scipy.linalg.solve_sylvester(P / size, Q / size, R / size)
    return _als_step(_refactored(U @ X, V, others), right, left, F, S)


def _with_row_mean(noisy: Sequence[Answer], sides: Sides, others: Factors, most: float) -> Factors:
    """Return the factors of the mean of the rows and of the centred rest, if the mean is clear.

    The mean follows from the released sum of the rows, the last of `noisy`. Without one it is
    estimated from S'A, where the centred part of A is further noise, and the mean of all entries
    from A F, too.
    """
    (right, left, *_), (F, S, *LT) = noisy, sides
    u, v = (np.full(len(side), len(side) ** -0.5) for side in (S, F))
    a, b = v @ F, u @ S
    if left.noise_scale == 0.0 or not (a.any() and b.any()):  # narrow sketches may miss a mean
        return others
    row = b @ left.value / (b @ b)
    noise = _with_residual_noise(left, np.outer(b, row), 1).noise_scale / float(np.linalg.norm(b))
    right_noise = right.noise_scale / float(np.linalg.norm(a))
    weight = noise**2 / max(noise**2 + right_noise**2, 1e-300)
    for (total,), noise_scale in noisy[1 + len(sides) // 2 :]:
        row, noise, weight = u[0] * total, u[0] * noise_scale, 0.0
    common = row @ v + weight * (u @ right.value @ a / (a @ a) - row @ v)
    common_part = _denoised(np.atleast_1d(common), noise * math.sqrt(1 - weight), most) * v
    row = common_part + _denoised(row - (row @ v) * v, noise, most)
    if not row.any():
        return others
    fitted = [(u, row @ F), (b, row), *([(u @ LT[0], row @ LT[1])] if LT else [])]
    diffs = [s._replace(value=s.value - np.outer(*x)) for s, x in zip(noisy, fitted, strict=False)]
    rest = _from_sketches(diffs, sides, len(others.values))
    means = np.column_stack([u, rest.left * rest.values])
    return _refactored(means, np.column_stack([row, rest.right.T]), others)


def _with_residual_noise(sketch: Answer, fitted: FloatArray, rank: int) -> Answer:
    """Return the sketch with its noise scale raised to the residual of a fit of this rank.

    The residual contains the part of A beyond the fit. It is larger in the entries of a narrow
    sketch, which then gets less weight.
    """
    m, t = sketch.value.shape
    rest = float(np.linalg.norm(sketch.value - fitted)) / math.sqrt(m * max(t - rank, t / 4))
    least = NEGLIGIBLE * float(np.abs(sketch.value).max())
    return sketch._replace(noise_scale=max(sketch.noise_scale, rest, least))


def _als_step(start: Factors, right: Answer, left: Answer, F: FloatArray, S: FloatArray) -> Factors:
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
    y = _with_residual_noise(right, U * values @ (V.T @ F), r)
    z = _with_residual_noise(left._replace(value=left.value.T), V * values @ (U.T @ S), r)
    W = _least_squares(y, z, F, S, V, len(y.value) / values**2)
    U, values, turn = np.linalg.svd(W, full_matrices=False)
    V = V @ turn.T
    weights = len(z.value) / np.maximum(values, NEGLIGIBLE * values[0]) ** 2
    return _refactored(U, _least_squares(z, y, S, F, U, weights), start)


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


def factorize(
    noisy: Sequence[Answer], sides: Sides, k: int, start: FloatArray, most: float = math.inf
) -> Factors:
    """Factor what was released of A, of public norm at most `most`: A, Y and Z, or a core, too.

    `sides` are what they were multiplied by: nothing, F and S, or these, L and T. There are two
    estimates; one treats means alone, as their direction is public. An estimate that is shrunk to
    the least expected squared error has an error of |A|^2 less its own squared norm, so the one of
    larger norm is chosen. If a sum of the rows was released, it is always used with sketches.
    `start` (n x more than k columns) is public. Whatever the size of the matrix, numbers of order
    one are factored, so that no square of them overflows.
    """
    power = math.frexp(max(float(np.abs(a.value).max(initial=0.0)) for a in noisy))[1]
    scaled = [Answer(np.ldexp(a.value, -power), math.ldexp(a.noise_scale, -power)) for a in noisy]
    most = most / 2 / math.ldexp(0.5, power)  # infinite where that is beyond floats
    if sides:
        found = _from_sketches(scaled, sides, k)
        means = _with_row_mean(scaled, sides, found, most)
        found = means if len(scaled) > 1 + len(sides) // 2 else found
    else:
        found = _shrunk_svd(scaled[0], k, start, most)
        means = _with_means(scaled[0], found, start, most, *scaled[1:])
    factors = max(found, means, key=lambda each: float(each.values @ each.values))
    with np.errstate(over="ignore"):
        values = np.minimum(np.ldexp(factors.values, power), np.finfo(np.float64).max)
    return factors._replace(values=values)
