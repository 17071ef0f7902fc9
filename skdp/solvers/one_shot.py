"""Matrices that were released once, by flips of their cells: spectra and products, without cost.

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
from scipy.sparse.linalg import LinearOperator, eigsh

from skdp._limits import MOST_DENSE, FloatArray
from skdp.answer import Answer
from skdp.solvers import linalg
from skdp.solvers.iterate import AsksProducts, Project
from skdp.solvers.spectral import chosen_subspace

LAPLACE_KURTOSIS = 3.0  # of Laplace noise, in excess
LEAST_PURE = 1e-8  # epsilon of each item: below it rounding would exceed the noise of pure counts


def flip_probability(noise_scale: float) -> float:
    """Return p from the deviation s of an unbiased cell: 1 - 2p = 1/sqrt(1 + 4 s^2)."""
    root = math.sqrt(1 + 4 * noise_scale**2)
    return 2 * noise_scale**2 / (root * (root + 1))


def flip_kurtosis(noise_scale: float) -> float:
    """Return the excess kurtosis of a flip, 1/(p (1 - p)) - 6, from the deviation s."""
    return noise_scale**-2 - 2 if noise_scale else 0.0


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

    @property
    def counts(self) -> Answer:
        """Unbiased numbers of rows with each item."""
        gain, offset = self.unbiased
        ones = np.asarray(self.rows.sum(axis=0), dtype=float).ravel()
        m = self.rows.shape[0]
        return Answer(gain * ones - offset * m, self.noise_scale * math.sqrt(m))


def graded_pays(epsilon: float, rounding: float = 0.25) -> bool:
    """Whether Laplace noise is smaller than flips and the rounding of cells to 0 or 1.

    `rounding` is the variance of the rounding: 1/4 at most.
    """
    return 2 / epsilon**2 < flip_deviation(epsilon) ** 2 + max(rounding, 0.0)


def pair_deviation(noise_scale: float, n_rows: float, count: float) -> float:
    """Return the deviation of an entry of B'B: m s^4 + 2 s^2 q for columns of q ones."""
    return math.sqrt(n_rows * noise_scale**4 + 2 * noise_scale**2 * max(count, 0.0))


class _Moment(NamedTuple):
    """The moment of weighted rows (array or operator), and what is known of it and its noise."""

    value: Any
    diagonal: FloatArray
    sums: FloatArray
    rows: float
    variance: float
    kurtosis: float

    def directions(
        self, values: FloatArray, vectors: FloatArray, scale: float = 1.0
    ) -> linalg.Directions:
        """Shrink eigenpairs of the moment times a scale."""
        noise = self.rows, self.variance, self.kurtosis
        found = linalg.marchenko_pastur(values / scale, vectors, *noise)
        return found._replace(values=found.values * scale)


def history_pairs(Y: Any, noise_scale: float, floor: float) -> linalg.PairMoment:
    """Return the moment of normalised histories of few items, without its diagonal."""
    floor = max(floor, 2)
    moment = _weighted_moment(Y, noise_scale, floor)
    unit = math.sqrt(floor * (floor - 1))
    n, off = Y.shape[1], moment.value / unit
    np.fill_diagonal(off, 0.0)
    b = n / moment.rows
    edge = moment.rows * moment.variance * (b + 2 * math.sqrt(b)) / unit
    return linalg.PairMoment(off, partial(moment.directions, scale=1 / unit), edge)


def mean_degree(number: float, n_rows: int) -> int:
    """Return the mean number of ones of a row, at least 1, from a released number of all ones."""
    return max(1, round(number / n_rows))


def normalised_pairs(
    Y: Any, noise_scale: float, floor: int | None, k: int
) -> tuple[FloatArray, FloatArray, float, Answer]:
    """Return the k leading eigenpairs of the rows of B over sqrt(max(degree, floor)).

    Eigenvalues are without the noise, descending; 0 inside its edge. With them go the sum of the
    squared lengths of these rows, and the sums of the rows.

    Without a floor it is the mean degree. For a dense moment, thinning chooses the subspace, as
    with Gaussian noise. For it a part of the users is held out, whose flips are independent of the
    others: added noise would not be that of flips, which differs between counts and pairs. But if
    users differ by more than their flips, held-out users would measure these differences, so noise
    is added after all.
    """
    gain, offset = Flipped(Y, noise_scale).unbiased
    m, n = Y.shape
    floor = floor or mean_degree(gain * Y.nnz - offset * m * n, m)
    moment = _weighted_moment(Y, noise_scale, float(floor))
    if isinstance(moment.value, np.ndarray):
        entry = pair_deviation(moment.variance**0.5, moment.rows, float(moment.diagonal.mean()))
        alike = math.sqrt(2) * entry * (1 + math.sqrt(n / moment.rows) / 2)  # noise with this level

        def part(rng: Any, share: float) -> Any:
            users = rng.permutation(m) < share * m
            return _weighted_moment(Y[users], noise_scale, float(floor)).value

        scatters = entry**2 < moment.value.mean()  # users differ by more than flips
        V = chosen_subspace(moment.value, alike, k, part=None if scatters else part)
        values, Q = linalg.top_eigenpairs(V.T @ moment.value @ V)
        pairs = values, V @ Q
    else:
        pairs = linalg.leading_pairs(moment.value, 2 * k)
    found = moment.directions(*pairs).values[:k] / floor
    squares = np.concatenate([found, np.zeros(k - len(found))])
    total = max(float(moment.diagonal.sum()) / floor, float(squares.sum()))
    noise = math.sqrt(moment.rows * moment.variance / floor)
    return squares, pairs[1][:, :k], total, Answer(moment.sums, noise)


def _weighted_moment(Y: Any, noise_scale: float, floor: float) -> _Moment:
    """Return B'WB - s^2 sum(w) I.

    Rows of B are weighted by w = floor / max(degree, floor), from degrees of the same release,
    whose noise is s sqrt(n): a floor below it would follow the noise. Over `floor` it is the moment
    of rows over sqrt(max(degree, floor)).
    """
    n, (gain, offset) = Y.shape[1], Flipped(Y, noise_scale).unbiased
    degrees = gain * np.diff(Y.indptr) - offset * n
    weights = floor / np.maximum(degrees, floor + noise_scale * math.sqrt(n))
    total = float(weights.sum())
    rows = total**2 / float((weights**2).sum())
    variance = noise_scale**2 * float((weights**2).sum()) / total
    shift = noise_scale**2 * total
    sums = np.asarray(Y.T @ weights, np.float64)
    diagonal = (gain**2 - 2 * gain * offset) * sums + offset**2 * total - shift
    if n <= MOST_DENSE:
        outer = gain * offset * (sums[:, None] + sums[None])
        M: Any = gain**2 * _weighted_gram(Y, weights) - outer + offset**2 * total
        M[np.diag_indices(n)] -= shift
    else:
        M = _moment_operator(Y, weights, gain, offset, shift)
    lengths = np.sqrt(weights / floor)
    totals = gain * np.asarray(Y.T @ lengths, np.float64) - offset * lengths.sum()
    return _Moment(M, diagonal, totals, rows, variance, flip_kurtosis(noise_scale))


def _weighted_gram(Y: Any, weights: FloatArray) -> FloatArray:
    m, n = Y.shape
    if Y.nnz <= linalg.MOSTLY_ZERO * m * n:
        return np.asarray((Y.T @ (sp.diags_array(weights) @ Y)).toarray(), np.float64)
    roots = np.sqrt(weights)[:, None]
    M = np.zeros((n, n))
    for i in range(0, m, MOST_DENSE):
        block = Y[i : i + MOST_DENSE].toarray() * roots[i : i + MOST_DENSE]
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


# Products with such a matrix cost no budget. The pairs i < j of a graph are the cells of one row,
# counted along the upper triangle.


_PROBES, _ROUNDS = 8, 10  # products that estimate the norm of a matrix; until only noise remains


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


def matrix_of_pairs(values: FloatArray, n: int) -> FloatArray:
    """Return the symmetric array without a diagonal of the values of its pairs i < j."""
    upper = np.zeros((n, n))
    upper[np.triu_indices(n, 1)] = values
    return upper + upper.T


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
    rounding : float
        Released variance of rounding an entry to 0 or `high`, in parts of high^2: noise like that
        of the flips; 0 for entries that are 0 or `high`.
    """

    def __init__(
        self,
        Y: Any,
        noise_scale: float,
        *,
        high: float = 1.0,
        loops: bool = True,
        rounding: float = 0.0,
    ) -> None:
        p = flip_probability(noise_scale)
        self._ones, self._transposed = Y, Y.T.tocsr()
        self._gain, self._offset = high / (1 - 2 * p), high * p / (1 - 2 * p)
        self._loops, self._high, self._rounding = loops, high, rounding
        self.shape: tuple[int, int] = Y.shape
        deviation = math.hypot(noise_scale, math.sqrt(rounding))
        self.noise_scale = high * deviation
        # Rounding counts as normal noise.
        self.kurtosis = flip_kurtosis(noise_scale) * (noise_scale / (deviation or 1.0)) ** 4

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

    @property
    def _cells(self) -> int:
        return math.prod(self.shape) - (0 if self._loops else self.shape[0])

    def square_sum(self) -> float:
        """Return the sum of squares of the entries, without the noise and the rounding."""
        total = float(self._gain * self._ones.nnz - self._offset * self._cells)
        return max(self._high * (total - self._high * self._rounding * self._cells), 0.0)


class WholeMatrix(FlippedMatrix):
    """Products with a matrix that was released entry by entry, with noise of one law."""

    def __init__(
        self, value: FloatArray, noise_scale: float, law: str, *, loops: bool = True
    ) -> None:
        self._ones, self._transposed, self.shape = value, value.T, value.shape
        self._gain, self._offset, self._loops = 1.0, 0.0, loops
        self.noise_scale, self.kurtosis = noise_scale, LAPLACE_KURTOSIS * (law == "laplace")

    def square_sum(self) -> float:
        """Return the sum of the squares of the entries, without the noise."""
        noise = self._cells * self.noise_scale**2
        return max(float((self._ones**2).sum()) - noise, 0.0)


def singular_triplets(ask: FlippedMatrix, k: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the k leading (U, singular values without the noise, V)."""
    m, n = ask.shape
    if linalg.is_small(min(m, n), k):
        U, values, Vt = np.linalg.svd(ask.right(np.eye(n), share=0.0).value, full_matrices=False)
    else:
        operator = LinearOperator(
            ask.shape,
            lambda x: ask.right(x.reshape(n, 1), share=0.0).value[:, 0],
            rmatvec=lambda y: ask.left(y.reshape(m, 1), share=0.0).value[:, 0],
            dtype=np.float64,
        )
        U, values, Vt = linalg.leading_triplets(operator, k, _start(min(m, n)), 1e-4)
    noise = m, ask.noise_scale**2, ask.kurtosis
    order = np.argsort(-values, kind="stable")[:k]
    U, values, V = U[:, order], values[order], Vt[order].T
    squares = linalg.marchenko_pastur(values**2 - m * ask.noise_scale**2, V, *noise).values
    return U, np.sqrt(np.concatenate([squares, np.zeros(k - len(squares))])), V


def symmetric_pairs(
    ask: AsksProducts, n: int, k: int, project: Project | None = None, kurtosis: float = 0.0
) -> tuple[FloatArray, FloatArray]:
    """Return k eigenpairs: values without the noise, and vectors.

    First those above the noise at either end, by magnitude; then the largest, because groups that
    the noise hides seldom have negative eigenvalues. `project` is a public symmetric projection,
    applied on both sides, where groups of nodes are sought: then edges are noise as well, a
    semicircle that ends at twice the root of the mean square of its eigenvalues. `kurtosis` is that
    of a cell.
    """
    groups, project = project is not None, project or np.asarray

    def multiply(X: FloatArray) -> FloatArray:
        columns = X.reshape(n, -1)
        return project(ask.right(project(columns), share=0.0).value).reshape(X.shape)

    if linalg.is_small(n, k):
        M = multiply(np.eye(n))
        values, vectors = np.linalg.eigh((M + M.T) / 2)
    elif not multiply(_start(n)).any():  # a map of zeros
        return np.zeros(k), np.eye(n, k)
    else:
        operator = LinearOperator((n, n), multiply, matmat=multiply, dtype=np.float64)
        values, vectors = eigsh(operator, 2 * k, which="BE", tol=1e-4, v0=_start(n))
    noise_scale = ask.right(vectors[:, :1], share=0.0).noise_scale
    least = linalg.detection_limit(2 * noise_scale * math.sqrt(n), n, kurtosis)
    if groups:
        ends = np.argsort(-np.abs(values), kind="stable")[: 2 * k]
        signs = np.sign(_start(n * _PROBES)).reshape(n, -1)
        rest = signs - vectors[:, ends] @ (vectors[:, ends].T @ signs)
        total = square = float((multiply(rest) ** 2).sum()) / _PROBES
        for _ in range(_ROUNDS):  # what stands out is no noise
            square = 4 * (total + float(np.minimum(values[ends] ** 2, square).sum())) / n
        least = max(least, linalg.detection_limit(math.sqrt(square), n))
    clear = np.abs(values) > least
    order = np.lexsort((-values, -np.abs(values) * clear))[:k]
    values, vectors = values[order], vectors[:, order]
    return linalg.shrunk(values, vectors, noise_scale) * clear[order], vectors


def _start(n: int) -> FloatArray:
    """Return a start that the projection does not remove, the same for all data."""
    return np.asarray(np.cos(np.arange(n) * math.sqrt(2.0)), np.float64)
