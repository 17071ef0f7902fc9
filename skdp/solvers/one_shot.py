"""Spectra of a binary array that was released once, by flips of its cells.

Notation: Y is the released m x n array of ones and zeros, each cell flipped with probability p;
B = (Y - p)/(1 - 2p) is unbiased, with deviation s = sqrt(p (1 - p))/(1 - 2p) in each cell. B is
sparse plus rank one, and is never formed.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, eigsh

from skdp.solvers.linalg import top_eigenpairs
from skdp.solvers.shrinkage import Directions, PairMoment, marchenko_pastur

FloatArray = NDArray[np.float64]
_MOST_DENSE = 4000  # columns of a dense moment
_DENSE_ROWS = 4000
_FULL = 0.03  # of the cells stored: dense products are then faster
# A decomposition is faster than products below so many columns, and for more eigenpairs than one in
# so many columns: of few, of many.
_SMALL, _FEW, _LARGE, _MANY = 500, 25, 1500, 10
_EMPTY = 0.1  # of the entries of a moment


def flip_probability(noise_scale: float) -> float:
    """Return p from the deviation s of an unbiased cell: 1 - 2p = 1/sqrt(1 + 4 s^2)."""
    root = math.sqrt(1 + 4 * noise_scale**2)
    return 2 * noise_scale**2 / (root * (root + 1))


def flip_deviation(epsilon: float) -> float:
    """Return the deviation s of an unbiased cell where a cell costs `epsilon`."""
    return 0.5 / math.sinh(min(epsilon, 1400.0) / 2)


class Flipped(NamedTuple):
    """Released histories: each cell was flipped by itself.

    Attributes
    ----------
    rows : CSR array
        Ones where the flipped cell is one.
    noise_scale : float
        Deviation of the unbiased cell (y - p)/(1 - 2p).
    """

    rows: Any
    noise_scale: float

    @property
    def unbiased(self) -> tuple[float, float]:
        """(gain, offset) of the unbiased cell gain y - offset."""
        p = flip_probability(self.noise_scale)
        return 1 / (1 - 2 * p), p / (1 - 2 * p)


def graded_may_pay(epsilon: float) -> bool:
    """Whether Laplace noise could be smaller than flips and the rounding of cells, of 1/4."""
    return 2 / epsilon**2 < flip_deviation(epsilon) ** 2 + 0.25


def graded_pays(epsilon: float, spread: float) -> bool:
    """Whether it is, where the rounding of a cell to 0 or 1 has this variance."""
    return 2 / epsilon**2 < flip_deviation(epsilon) ** 2 + max(spread, 0.0)


def pair_deviation(noise_scale: float, n_rows: float, count: float) -> float:
    """Return the deviation of an entry of B'B: m s^4 + 2 s^2 q for columns of q ones."""
    return math.sqrt(n_rows * noise_scale**4 + 2 * noise_scale**2 * max(count, 0.0))


def leading_pairs(M: Any, k: int, *, rough: bool = False) -> tuple[FloatArray, FloatArray]:
    """Return the k largest eigenpairs of a symmetric array or operator, from a fixed start.

    `rough`: a large one is read in single precision, which takes half of the time.
    """
    n = M.shape[0]
    k = min(k, n)
    if isinstance(M, np.ndarray) and (_is_dense_work(n, k) or not M.any()):
        return top_eigenpairs(M, k)
    M = M.astype(np.float32) if rough and isinstance(M, np.ndarray) else M
    if isinstance(M, np.ndarray) and np.count_nonzero(M) < _EMPTY * M.size:
        M = sp.csr_array(M)  # most of it is zero: a product reads less
    values, vectors = eigsh(M, min(k, n - 1), which="LA", tol=1e-4, v0=np.ones(n, M.dtype))
    order = np.argsort(-values, kind="stable")
    return values[order].astype(np.float64), vectors[:, order].astype(np.float64)


def _is_dense_work(n: int, k: int) -> bool:
    return n < _SMALL or k * (_FEW if n < _LARGE else _MANY) >= n


class _Moment(NamedTuple):
    """The moment of weighted rows (array or operator), and what is known of it and its noise."""

    value: Any
    diagonal: FloatArray
    sums: FloatArray
    rows: float
    variance: float

    def directions(self, values: FloatArray, vectors: FloatArray, scale: float = 1.0) -> Directions:
        """Shrink eigenpairs of the moment times a scale."""
        found = marchenko_pastur(values / scale, vectors, self.rows, self.variance)
        return found._replace(values=found.values * scale)


def history_pairs(Y: Any, noise_scale: float, floor: float) -> PairMoment:
    """Return the moment of normalised histories without its diagonal."""
    moment = _weighted_moment(Y, noise_scale, floor)
    M: Any = moment.value
    n = Y.shape[1]
    if isinstance(M, np.ndarray):
        off: Any = M / floor
        np.fill_diagonal(off, 0.0)
    else:

        def multiply(v: FloatArray) -> FloatArray:
            return np.asarray((M @ v - moment.diagonal * v.reshape(-1)) / floor)

        off = LinearOperator((n, n), matvec=multiply, dtype=np.float64)
    b = n / moment.rows
    edge = moment.rows * moment.variance * (b + 2 * math.sqrt(b)) / floor
    shrink = partial(moment.directions, scale=1 / floor)
    return PairMoment(off, shrink, edge, moment.diagonal / floor)


class NormalisedPairs(NamedTuple):
    """The k leading eigenpairs of the moment of normalised rows, and what goes with them.

    Attributes
    ----------
    squares : ndarray of shape (k,)
        Eigenvalues without the noise, descending; 0 inside its edge.
    vectors : ndarray of shape (n, k)
    total : float
        Sum of the squared lengths of the rows.
    sums : ndarray of shape (n,)
        Sums of the rows, with noise of deviation `noise_scale`.
    noise_scale : float
    """

    squares: FloatArray
    vectors: FloatArray
    total: float
    sums: FloatArray
    noise_scale: float


def normalised_pairs(Y: Any, noise_scale: float, floor: float, k: int) -> NormalisedPairs:
    """Return the k leading eigenpairs of the rows of B over sqrt(max(degree, floor))."""
    moment = _weighted_moment(Y, noise_scale, floor)
    pairs = leading_pairs(moment.value, (4 if isinstance(moment.value, np.ndarray) else 2) * k)
    found = moment.directions(*pairs).values[:k] / floor
    squares = np.concatenate([found, np.zeros(k - len(found))])
    vectors = pairs[1][:, :k]
    total = max(float(moment.diagonal.sum()) / floor, float(squares.sum()))
    noise = math.sqrt(moment.rows * moment.variance / floor)
    return NormalisedPairs(squares, vectors, total, moment.sums, noise)


def _weighted_moment(Y: Any, noise_scale: float, floor: float) -> _Moment:
    """Return B'WB - s^2 sum(w) I.

    Rows of B are weighted by w = floor / max(degree, floor), from degrees of the same release,
    whose noise is s sqrt(n): a floor below it would follow the noise. Over `floor` it is the moment
    of rows over sqrt(max(degree, floor)).
    """
    n = Y.shape[1]
    p = flip_probability(noise_scale)
    gain, offset = 1 / (1 - 2 * p), p / (1 - 2 * p)
    degrees = gain * np.diff(Y.indptr) - offset * n
    weights = floor / np.maximum(degrees, floor + noise_scale * math.sqrt(n))
    total = float(weights.sum())
    rows = total**2 / float((weights**2).sum())
    variance = noise_scale**2 * float((weights**2).sum()) / total
    shift = noise_scale**2 * total
    sums = np.asarray(Y.T @ weights, np.float64)
    diagonal = (gain**2 - 2 * gain * offset) * sums + offset**2 * total - shift
    if n <= _MOST_DENSE:
        outer = gain * offset * (sums[:, None] + sums[None])
        M: Any = gain**2 * _weighted_gram(Y, weights) - outer + offset**2 * total
        M[np.diag_indices(n)] -= shift
    else:
        M = _moment_operator(Y, weights, gain, offset, shift)
    lengths = np.sqrt(weights / floor)
    totals = gain * np.asarray(Y.T @ lengths, np.float64) - offset * lengths.sum()
    return _Moment(M, diagonal, totals, rows, variance)


def _weighted_gram(Y: Any, weights: FloatArray) -> FloatArray:
    m, n = Y.shape
    if Y.nnz <= _FULL * m * n:
        return np.asarray((Y.T @ (sp.diags_array(weights) @ Y)).toarray(), np.float64)
    roots = np.sqrt(weights)[:, None]
    M = np.zeros((n, n))
    for i in range(0, m, _DENSE_ROWS):
        block = Y[i : i + _DENSE_ROWS].toarray() * roots[i : i + _DENSE_ROWS]
        M += block.T @ block
    return M


def _moment_operator(
    Y: Any, weights: FloatArray, gain: float, offset: float, shift: float
) -> LinearOperator:
    transposed = (sp.diags_array(weights) @ Y).T.tocsr()

    def multiply(v: FloatArray) -> FloatArray:
        v = v.reshape(-1)
        image = gain * (Y @ v) - offset * v.sum()
        return np.asarray(gain * (transposed @ image) - offset * (weights @ image) - shift * v)

    n = Y.shape[1]
    return LinearOperator((n, n), matvec=multiply, dtype=np.float64)
