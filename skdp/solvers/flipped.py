"""Matrices that were released once by flips of their cells, as something to ask: answers are free.

Notation: Y is the released array of ones and zeros, each cell flipped with probability p;
B = (Y - p)/(1 - 2p) is unbiased, with deviation s in each cell: sparse plus a constant, and never
formed. The pairs i < j of a graph are the cells of one row, counted along the upper triangle.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, eigsh, svds

from skdp.answer import Answer
from skdp.solvers.iterate import AsksProducts, Project
from skdp.solvers.one_shot import flip_probability
from skdp.solvers.shrinkage import marchenko_pastur, shrunk

FloatArray = NDArray[np.float64]
_SMALL = 1000  # rows of a dense eigenproblem


def graph_of_pairs(Y: Any, n: int) -> Any:
    """Return the symmetric array (CSR) of a row of pairs."""
    first = np.arange(n, dtype=np.int64)
    starts = first * (2 * n - first - 1) // 2
    places = np.asarray(Y.indices, np.int64)
    i = np.searchsorted(starts, places, side="right") - 1
    i = np.minimum(i, n - 2)  # the last start is the end
    j = places - starts[i] + i + 1
    upper = sp.csr_array((np.ones(len(places)), (i, j)), shape=(n, n))
    return sp.csr_array(upper + upper.T)


class FlippedMatrix:
    """Products with the unbiased matrix high B, and with its transpose.

    Parameters
    ----------
    Y : CSR array
        The released ones.
    noise_scale : float
        Deviation s of a cell of B.
    high : float
        What a one stands for.
    loops : bool
        Whether the diagonal was released; without it, it is zero.
    coins : float
        Released sum of x (high - x): what rounding x to 0 or `high` adds to the squares, noise like
        that of the flips; 0 for entries that are 0 or `high`.
    """

    def __init__(
        self,
        Y: Any,
        noise_scale: float,
        *,
        high: float = 1.0,
        loops: bool = True,
        coins: float = 0.0,
    ) -> None:
        p = flip_probability(noise_scale)
        self._ones, self._transposed = Y, Y.T.tocsr()
        self._gain, self._offset = high / (1 - 2 * p), high * p / (1 - 2 * p)
        self._loops, self._high, self._coins = loops, high, coins
        self.shape: tuple[int, int] = Y.shape
        self.noise_scale = math.hypot(high * noise_scale, math.sqrt(coins / math.prod(Y.shape)))

    def _product(self, ones: Any, X: FloatArray) -> Answer:
        common = X.sum(axis=0) - (0.0 if self._loops else X)
        length = float(np.linalg.norm(X)) / math.sqrt(X.shape[1])
        value = np.asarray(self._gain * (ones @ X) - self._offset * common)
        return Answer(value, self.noise_scale * length)

    def right(self, X: FloatArray, *, share: float) -> Answer:
        """Return B X with the mean deviation of its noise."""
        return self._product(self._ones, X)

    def left(self, U: FloatArray, *, share: float) -> Answer:
        """Return B'U."""
        return self._product(self._transposed, U)

    def square_sum(self) -> float:
        """Return the sum of the squares of the entries, without noise and without the coins."""
        total = float(self._gain * self._ones.nnz - self._offset * math.prod(self.shape))
        return max(self._high * total - self._coins, 0.0)


class WholeMatrix:
    """Products with a matrix that was released entry by entry, and with its transpose."""

    def __init__(self, value: FloatArray, noise_scale: float) -> None:
        self.value, self.noise_scale = value, noise_scale

    def left(self, U: FloatArray, *, share: float) -> Answer:
        """Return the transpose times U, with the mean deviation of its noise."""
        length = float(np.linalg.norm(U)) / math.sqrt(U.shape[1])
        return Answer(np.asarray(self.value.T @ U), self.noise_scale * length)

    def square_sum(self) -> float:
        """Return the sum of the squares of the entries, without the noise."""
        noise = self.value.size * self.noise_scale**2
        return max(float((self.value**2).sum()) - noise, 0.0)


def singular_triplets(ask: FlippedMatrix, k: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the k leading (U, singular values without the noise, V)."""
    m, n = ask.shape
    if min(m, n) <= _SMALL or 10 * k >= min(m, n):
        return read_triplets(ask.right(np.eye(n), share=0.0).value, ask.noise_scale, k)
    operator = LinearOperator(
        ask.shape,
        lambda x: ask.right(x.reshape(n, -1), share=0.0).value,
        rmatvec=lambda y: ask.left(y.reshape(m, -1), share=0.0).value,
        matmat=lambda x: ask.right(x, share=0.0).value,
        rmatmat=lambda y: ask.left(y, share=0.0).value,
        dtype=np.float64,
    )
    U, values, Vt = svds(operator, k, tol=1e-4, v0=_start(min(m, n)))
    return _without_noise(U, values, Vt, ask.noise_scale, k)


def read_triplets(
    B: FloatArray, noise_scale: float, k: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the k leading (U, singular values without the noise, V) of a noisy matrix."""
    return _without_noise(*np.linalg.svd(B, full_matrices=False), noise_scale, k)


def _without_noise(
    U: FloatArray, values: FloatArray, Vt: FloatArray, noise_scale: float, k: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    m, variance = len(U), noise_scale**2
    order = np.argsort(-values, kind="stable")[:k]
    U, values, V = U[:, order], values[order], Vt[order].T
    squares = marchenko_pastur(values**2 - m * variance, V, m, variance).values
    return U, np.sqrt(np.concatenate([squares, np.zeros(k - len(squares))])), V


def symmetric_pairs(
    ask: AsksProducts, n: int, k: int, project: Project = np.asarray
) -> tuple[FloatArray, FloatArray]:
    """Return the k eigenpairs of largest magnitude: values without the noise, and vectors.

    `project` is a public symmetric projection, applied on both sides.
    """

    def multiply(X: FloatArray) -> FloatArray:
        columns = X.reshape(n, -1)
        return project(ask.right(project(columns), share=0.0).value)

    if n <= _SMALL or 10 * k >= n:
        M = multiply(np.eye(n))
        values, vectors = np.linalg.eigh((M + M.T) / 2)
    elif not multiply(_start(n)).any():  # a map of zeros
        return np.zeros(k), np.eye(n, k)
    else:
        operator = LinearOperator((n, n), multiply, matmat=multiply, dtype=np.float64)
        values, vectors = eigsh(operator, k, which="LM", tol=1e-4, v0=_start(n))
    order = np.argsort(-np.abs(values), kind="stable")[:k]
    values, vectors = values[order], vectors[:, order]
    return shrunk(values, vectors, ask.right(vectors, share=0.0).noise_scale), vectors


def _start(n: int) -> FloatArray:
    """Return a start that a projection leaves something of, the same for all data."""
    return np.asarray(np.cos(np.arange(n) * math.sqrt(2.0)), np.float64)
