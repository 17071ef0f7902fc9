"""Choices about a noisy moment, made on the moment itself at no cost: thinning.

Notation: A = M + noise is a released symmetric moment, s the deviation of its diagonal (s/sqrt(2)
off it). With Z of the same law, A + c Z and A - Z/c have uncorrelated noises: what is fitted on the
first is judged without bias on the second, tr(V'(A - Z/c)V) = tr(V'M V) + noise of mean zero. All
of it is post-processing: privacy does not depend on Z, which is the same in every fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from skdp.solvers.one_shot import leading_pairs
from skdp.solvers.shrinkage import wigner

FloatArray = NDArray[np.float64]
_SPLIT = 0.6  # c: most of the signal stays in the half that is fitted
# By which another must be better than the leading eigenvectors, or than what is known from
# elsewhere, in noise scales, where it is judged once: the best of several looks better than it is.
_MARGIN = 1.0
_MOST_SPLITS, _SPLIT_COLUMNS = 8, 1600  # of sparse rows; of so many columns together
_WIDER = 4  # times as many eigenpairs as are asked for: what the shrunk spectrum is made of
_ROUGH = 1e-4  # of the diagonal: noise beside which single precision is nothing
_LEVELS = (2.5, 3.5)  # of the noise off the diagonal, for soft thresholds


class Subspace(NamedTuple):
    """A subspace, and the estimate of the moment that it came from.

    Attributes
    ----------
    vectors : ndarray of shape (n, k)
        Orthonormal columns.
    moment : ndarray of shape (n, n)
        The released moment, or what is left of it after a threshold.
    axes : bool
        Whether it is spanned by single columns: nothing was read beside the diagonal.
    """

    vectors: FloatArray
    moment: FloatArray
    axes: bool


class _Noisy:
    """A moment with noise of known scale, and its leading eigenpairs.

    With `rough` eigenpairs are found in single precision, where that is far below the noise: they
    are judged, and not used.
    """

    def __init__(self, moment: FloatArray, noise_scale: float, *, rough: bool = False) -> None:
        self.moment, self.noise_scale = moment, noise_scale
        self._rough = rough and noise_scale > _ROUGH * float(np.abs(np.diag(moment)).max())
        self._pairs: tuple[FloatArray, FloatArray] | None = None

    def pairs(self, k: int) -> tuple[FloatArray, FloatArray]:
        """Return k eigenpairs, descending; what was found once is not looked for again."""
        if self._pairs is None or len(self._pairs[0]) < min(k, len(self.moment)):
            self._pairs = self.pairs_of(self.moment, k)
        values, vectors = self._pairs
        return values[:k], vectors[:, :k]

    def pairs_of(self, moment: FloatArray, k: int) -> tuple[FloatArray, FloatArray]:
        """Return k eigenpairs of another moment, in the same precision."""
        unit = _unit_of(moment)
        moment = moment if unit == 1.0 else moment / unit
        values, vectors = leading_pairs(moment.astype(np.float32) if self._rough else moment, k)
        return unit * values.astype(np.float64), vectors.astype(np.float64)


def _unit_of(moment: FloatArray) -> float:
    """Return a power of two that divides a moment before it is read: 1 unless it is extreme.

    Beyond it single precision overflows; below it the tolerance of ARPACK, which has a floor, is
    coarse.
    """
    largest = max(float(moment.max(initial=0.0)), -float(moment.min(initial=0.0)))
    exponent = math.frexp(largest)[1]
    return 1.0 if -20 <= exponent <= 100 else math.ldexp(1.0, min(max(exponent, -1000), 1000))


Way = Callable[[_Noisy, int], Subspace]


def soft_thresholded(A: FloatArray, level: float) -> FloatArray:
    """Shorten all entries off the diagonal by a level, down to zero."""
    out = np.clip(A, -level, level)
    np.subtract(A, out, out=out)
    np.fill_diagonal(out, np.diag(A))
    return out


def chosen_subspace(
    A: FloatArray,
    noise_scale: float,
    k: int,
    first: FloatArray | None = None,
    *,
    sparse: bool = False,
) -> Subspace:
    """Return the k-dimensional subspace that the other half of the noise likes best.

    Candidates: leading eigenvectors as they are, of the shrunk spectrum and the diagonal beside it,
    of two soft thresholds; for sparse rows, of what is read off the diagonal and the diagonal
    itself; the k largest entries of the diagonal, and of `first`, if it is given.
    That must be known from elsewhere (popularity): what holds the noise of A is judged too well.
    The moment of few columns of sparse rows, which popularity shows nearly as well, is split more
    than once: the mean of the scores has less of the noise that splits add.
    """
    released = _Noisy(A, noise_scale)
    if noise_scale == 0.0:
        return _leading(released, k)
    ways, rng = _ways(first, sparse), np.random.default_rng(20240229)
    splits = min(_MOST_SPLITS, max(1, _SPLIT_COLUMNS // len(A))) if sparse else 1
    scores = np.mean([_scores(released, ways, k, rng) for _ in range(splits)], axis=0)
    margin = _MARGIN * math.sqrt((1 + 1 / (splits * _SPLIT**2)) / (1 + 1 / _SPLIT**2))
    for simple in (0,) if first is None else (0, -1):
        scores[simple] += margin * noise_scale * math.sqrt(k)
    return ways[int(np.argmax(scores))](released, k)


def _scores(released: _Noisy, ways: list[Way], k: int, rng: np.random.Generator) -> FloatArray:
    """Return what each way makes of one half of the noise, judged by the other one."""
    A, noise_scale = released.moment, released.noise_scale
    Z = rng.standard_normal(A.shape) * noise_scale
    Z = (Z + Z.T) / 2
    half = _Noisy(A + _SPLIT * Z, noise_scale * math.sqrt(1 + _SPLIT**2), rough=True)
    half.pairs(_WIDER * k)
    other = A - Z / _SPLIT
    return np.array([_score(way(half, k).vectors, other) for way in ways])


def _score(V: FloatArray, moment: FloatArray) -> float:
    return float(np.sum(V * (moment @ V)))


def _ways(first: FloatArray | None, sparse: bool) -> list[Way]:
    """Return the candidates as functions of a noisy moment and k."""
    ways: list[Way] = [
        _leading,
        _with_diagonal,
        *(partial(_thresholded, level=level) for level in _LEVELS),
    ]
    ways.append(lambda A, k: Subspace(_axes(np.diag(A.moment), k), A.moment, True))
    if sparse:
        ways.append(_beside_diagonal)
    if first is not None:
        ways.append(lambda A, k: Subspace(_axes(first, k), A.moment, True))
    return ways


def _leading(A: _Noisy, k: int) -> Subspace:
    return Subspace(A.pairs(k)[1], A.moment, False)


def _thresholded(A: _Noisy, k: int, level: float) -> Subspace:
    B = soft_thresholded(A.moment, level * A.noise_scale / math.sqrt(2))
    return Subspace(A.pairs_of(B, k)[1], B, False)


def _with_diagonal(A: _Noisy, k: int) -> Subspace:
    """Leading subspace of the shrunk spectrum plus what the diagonal has beyond it."""
    shrunk = wigner(*A.pairs(_WIDER * k), A.noise_scale / math.sqrt(2))
    sizes = shrunk.values * np.maximum(shrunk.cosines, 0.0)
    rest = np.maximum(np.diag(A.moment) - (shrunk.vectors**2) @ sizes, 0.0)
    singles = _axes(rest, min(_WIDER * k, len(rest)))
    parts = [shrunk.vectors * np.sqrt(sizes), singles * np.sqrt(rest @ singles)]
    V = np.linalg.svd(np.hstack(parts), full_matrices=False)[0][:, :k]
    return Subspace(np.asarray(V), A.moment, False)


def _beside_diagonal(A: _Noisy, k: int) -> Subspace:
    """Leading subspace of the shrunk spectrum off the diagonal, and the diagonal as it is.

    Sums of squares of columns are large beside their products where rows are sparse; they are no
    direction, and their noise is that of one entry.
    """
    diagonal = np.maximum(np.diag(A.moment), 0.0)
    off = A.moment.copy()
    np.fill_diagonal(off, 0.0)
    found = wigner(*A.pairs_of(off, _WIDER * k), A.noise_scale / math.sqrt(2))
    sizes = found.values * np.maximum(found.cosines, 0.0)
    estimate = (found.vectors * sizes) @ found.vectors.T
    np.fill_diagonal(estimate, diagonal)
    return Subspace(A.pairs_of(estimate, k)[1], estimate, False)


def _axes(sizes: FloatArray, k: int) -> FloatArray:
    """Return the unit vectors of the k largest sizes, as columns."""
    V = np.zeros((len(sizes), k))
    V[np.argsort(-sizes, kind="stable")[:k], np.arange(k)] = 1.0
    return V
