"""How much of a subspace noise takes away, from the spectrum of the rows.

Model of a second moment: n rows, eigenvalues n p_i, where p are the shares of the squared length
that d orthogonal directions hold. A symmetric estimate whose off-diagonal entries have variance t
turns direction i towards j by sin^2 = t / (n p_i - n p_j)^2 each (first order), which costs the
difference of their shares; from a difference of 0 on it is one half at most, and all of them
together take at most the whole direction: for equal spikes on an even rest that is
t d / (p_i n)^2, and the edge at which they are lost (Benaych-Georges, Nadakuditi 2011).

Rows that are cut at a level count differently in the estimate than they count in X'X. With weights
w_i^2 and r_i^2 of directions that are drawn alike, the two normalised moments differ in entry
(i, j) by the variance p_i p_j sum (w^2 / sum w^2 - r^2 / sum r^2)^2: the `scatter`. It has no
noise, and the same effect.

No constant of these is fitted; those of iterations, below, are measured. Where spectrum and
lengths are known the expected loss is within a factor of two of fits where it is between 0.01 and
0.5 (tests compare).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from skdp.answer import Answer
from skdp.solvers.one_shot import flip_deviation, flip_probability
from skdp.solvers.spectral import (
    RowNoise,
    largest_term,
    power_subspace,
)
from skdp.theory._plan import PlannedRelease, sampled_normals, sampled_squares

FloatArray = NDArray[np.float64]
_ITERATION = 1.6
_STANDS_OUT = 1.7
# Laplace noise is averaged by its likelihood, which has more to say than the mean.
_ITERATION_LAPLACE, _STANDS_OUT_LAPLACE = 0.87, 1.15
_STEEPEST, _HALVINGS = 2.0, 40  # a spectrum that falls faster says nothing of its last components
_SELDOM = 1e-3  # chance of a clip level that counts
_SPREADS, _RANKS, _SINGLE = 33, 300, 32  # of lengths: the longest one by one, others in classes
_MEDIAN_RANK = 0.2  # the i-th of n has its median at about (i - 0.3)/n, i = 1, 2, ...


def power_law(d: int, k: int, captured: float) -> tuple[FloatArray, float]:
    """Return (shares of d directions, a): they fall like i^-a, and the first k hold `captured`.

    Where that would need a > 2 the first k and the others fall like i^-2, each among themselves.

    Examples
    --------
    >>> from skdp.theory import power_law
    >>> shares, exponent = power_law(20, 3, 0.5)
    >>> round(float(shares[:3].sum()), 3), round(exponent, 2)
    (0.5, 0.98)
    """
    places, low, high = np.arange(1, d + 1.0), 0.0, _STEEPEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        shares = places**-middle
        low, high = (low, middle) if shares[:k].sum() > captured * shares.sum() else (middle, high)
    shares = places**-high
    shares[:k] *= captured / shares[:k].sum()
    if k < d:
        shares[k:] *= (1 - captured) / shares[k:].sum()
    return shares, high


class SeenRows(NamedTuple):
    """Rows as a release sees them, along orthogonal directions.

    Attributes
    ----------
    n : float
        Number of rows.
    spectrum : array of shape (d,)
        Shares of their squared length, the largest first: what a subspace is judged by.
    seen : array of shape (d,)
        Their sums of squares after the cut, in squares of the level of the cut.
    scatter : float
        How far sums of cut rows differ from those of whole ones, see the module.
    sizes : array
        Sizes of a sample of terms a r', the products of what lies in the subspace and outside.
    """

    n: float
    spectrum: FloatArray
    seen: FloatArray
    scatter: float
    sizes: FloatArray


def whole_rows(n: float, spectrum: FloatArray, k: int) -> SeenRows:
    """Return n rows that are as long as the clip norm, all of them."""
    inside = _inside(sampled_squares(len(spectrum)) * spectrum, k)
    return SeenRows(n, spectrum, n * spectrum, 0.0, np.sqrt(inside * (1 - inside)))


def cut_rows(n: float, spectrum: FloatArray, k: int, *, spread: float, goal: float) -> SeenRows:
    """Return rows that are cut at the level above which `goal` of them lie.

    Rows are normal along the spectrum, and scaled so that their lengths spread as they are said to.
    A cut shortens what long rows have most of: strong directions.

    Parameters
    ----------
    n : float
        Number of rows.
    spectrum : array of shape (d,)
        Shares of their squared length, the largest first.
    k : int
        Number of components.
    spread : float
        Standard deviation of the logarithm of the lengths.
    goal : float
        How many rows are cut, at most three quarters.

    Returns
    -------
    SeenRows

    Examples
    --------
    >>> from skdp.theory import cut_rows, power_law
    >>> shares, _ = power_law(20, 2, 0.5)
    >>> few, many = (cut_rows(1000, shares, 2, spread=0.5, goal=goal) for goal in (10, 700))
    >>> bool(few.seen[0] / few.seen.sum() > many.seen[0] / many.seen.sum())
    True
    """
    squares = sampled_squares(len(spectrum)) * spectrum
    total = squares.sum(axis=1)
    natural = float(np.std(np.log(total))) / 2
    of_rows = total ** min(1.0, spread / natural) if natural else total
    more = math.sqrt(max(spread**2 - natural**2, 0.0))
    factors = np.exp(2 * more * ndtri((np.arange(_SPREADS) + 0.5) / _SPREADS))
    lengths = of_rows[:, None] * factors
    height = ndtri(1 - min(max(goal, 0.5) / n, 0.75)) if n > 1 else 0.0
    level = float(np.median(lengths)) * math.exp(2 * spread * height)
    cut = np.minimum(1.0, level / lengths)
    along = squares / total[:, None]
    seen = spectrum * ((cut * lengths).mean(axis=1) @ along) / np.maximum(of_rows @ along, 1e-300)
    weight, scatter = _weight_of_cut(n, spread, height)
    inside = _inside(squares, k)
    sizes = np.sqrt(inside * (1 - inside))[:, None] * np.minimum(1.0, lengths / level)
    return SeenRows(n, spectrum, weight * seen / seen.sum(), scatter, sizes.ravel())


def _inside(squares: FloatArray, k: int) -> FloatArray:
    return np.asarray(squares[:, :k].sum(axis=1) / squares.sum(axis=1))


def _weight_of_cut(n: float, spread: float, height: float) -> tuple[float, float]:
    """Return (sum of squares in squared levels, scatter) of lognormal lengths that are cut."""
    if n <= 1:
        return n, 0.0
    single = np.arange(min(_SINGLE, n))
    classes = np.geomspace(_SINGLE, n, _RANKS) if n > _SINGLE else np.array([n])
    ends = np.append(single, classes)
    counts, places = np.diff(ends), (ends[:-1] + ends[1:]) / 2
    places[: len(single)][counts[: len(single)] == 1] += _MEDIAN_RANK  # a part of a row has none
    squares = np.exp(-2 * spread * (ndtri(places / n) + height))
    cut, other = np.minimum(squares, 1.0), squares / float(counts @ squares)
    weight = float(counts @ cut)
    return weight, float(counts @ (cut / weight - other) ** 2)


def _turned(rows: SeenRows, k: int, noise: float) -> float:
    """Return the share of the best k that is lost; `noise` is the variance of an entry."""
    first, rest = rows.seen[:k, None], rows.seen[None, k:]
    variance = noise + rows.scatter * first * rest
    sines = variance / np.maximum(np.maximum(first - rest, 0.0) ** 2 + 2 * variance, 1e-300)
    most = 1 - k / len(rows.seen)  # by chance a direction keeps the rest
    whole = np.maximum(sines.sum(axis=1, keepdims=True) / most, 1.0)
    gap = np.maximum(rows.spectrum[:k, None] - rows.spectrum[None, k:], 0.0)
    return float(np.sum(sines / whole * gap) / np.sum(rows.spectrum[:k]))


def moment_edge(noise: float, d: int) -> float:
    """Edge of the spectrum of the noise of a released moment: noise sqrt(2 d)."""
    return noise * math.sqrt(2 * d)


def gram_loss(rows: SeenRows, k: int, *, moment: float) -> float:
    """Return the expected loss of the "gram" route: one moment.

    Parameters
    ----------
    rows : SeenRows
        What is assumed of the rows.
    k : int
        Number of components.
    moment : float
        Noise scale of the moment, in squares of the level of `rows`.

    Returns
    -------
    float
        Share of the best captured squared length that is lost.
    """
    d = len(rows.seen)
    if k >= d:
        return 0.0
    return _turned(rows, k, moment**2 / 2)


class _Eigenbasis:
    """What rows answer to power steps, along their eigenvectors, with noise that anyone can draw.

    The clip level of a step is the root mean square size of a term.
    """

    def __init__(self, weight: float, spectrum: FloatArray, noises: Sequence[float]) -> None:
        self._weight, self._spectrum, self._noises = weight, spectrum, list(noises)
        self._turn = 0

    def start(self, width: int) -> FloatArray:
        return sampled_normals((len(self._spectrum), width))

    def tangent(self, V: FloatArray, scale: float, _weights: Any) -> _Eigenbasis:
        self._V, self._core = V, scale
        inside = min(1.0, float(np.sum(self._spectrum[:, None] * V**2)))
        self._size = math.sqrt(inside * (1 - inside) + (inside / scale) ** 2)
        return self

    def sizes_above(self, threshold: float, *, share: float) -> Answer:
        return Answer(np.asarray(math.inf if threshold < self._size else -math.inf), share)

    def product(self, clip: float, *, share: float) -> Answer:
        product = self._spectrum[:, None] * self._V * self._weight
        core = self._V.T @ product
        noise = self._noises.pop(0) * min(clip, largest_term(1.0, self._core))
        value = product + self._V @ core * (1 / self._core - 1)
        self._turn += 1
        return Answer(value + noise * sampled_normals(value.shape, self._turn), noise)


def power_loss(rows: SeenRows, k: int, *, width: int, noises: Sequence[float]) -> float:
    """Return the expected loss of the "power" route: its steps, on the spectrum and noise alone.

    Parameters
    ----------
    rows : SeenRows
        What is assumed of the rows.
    k : int
        Number of components.
    width : int
        Columns of the iterate.
    noises : sequence of float
        Noise scale of each step, per unit of its clip level.

    Returns
    -------
    float
        Share of the best captured squared length that is lost.
    """
    if k >= len(rows.seen):
        return 0.0
    weight = float(rows.seen.sum())
    ask = _Eigenbasis(weight, rows.seen / weight, noises)
    facts = RowNoise(1.0, 1.0, weight, 1.0)
    V = power_subspace(ask, ask.start(width), k, [1.0] * len(noises), facts)
    found = float(np.sum(rows.spectrum[:, None] * V**2) / np.sum(rows.spectrum[:k]))
    return min(1.0, max(0.0, 1 - found) + _turned(rows, k, 0.0))


def iteration_error(
    noise_scale: float, n_answers: int, size: float, value: float, *, laplace: bool = False
) -> float:
    """Return sin^2 per direction after a back-projected iteration.

    All `n_answers` answers, each of `size` rows with noise `noise_scale`, average; a singular
    value below `iteration_threshold` is not found at all.

    Parameters
    ----------
    noise_scale : float
        Of an entry of one answer.
    n_answers : int
        Number of answers on this side.
    size : float
        Number of rows of an answer.
    value : float
        Singular value (eigenvalue) to be found.
    laplace : bool, default=False
        Laplace noise, for one eigenvector (pure differential privacy).

    Returns
    -------
    float
    """
    return IteratedSide(noise_scale, n_answers, size, laplace).error(value)


def iteration_threshold(noise_scale: float, size: float, *, laplace: bool = False) -> float:
    """Return the singular value from which the iteration rises out of the noise of one answer."""
    factor = _STANDS_OUT_LAPLACE if laplace else _STANDS_OUT
    return factor * noise_scale * math.sqrt(size)


@dataclass(frozen=True)
class IteratedSide:
    """One side of a rehearsed iteration: its answers average.

    Attributes
    ----------
    noise_scale : float
        Of an entry of one answer.
    n_answers : int
        Number of answers.
    size : int
        Number of rows of an answer.
    laplace : bool
        Laplace noise, for one eigenvector.

    Examples
    --------
    >>> from skdp.theory import IteratedSide
    >>> side = IteratedSide(noise_scale=5.0, n_answers=6, size=400)
    >>> side.threshold, side.error(150.0), round(side.error(300.0), 3)
    (170.0, 1.0, 0.03)
    """

    noise_scale: float
    n_answers: int
    size: int
    laplace: bool = False

    @classmethod
    def of(
        cls, answers: Sequence[PlannedRelease], size: int, *, laplace: bool = False
    ) -> IteratedSide:
        """Return the side of releases whose noise differs; of none, where nothing is found."""
        scales = [answer.noise_scale for answer in answers] or [math.inf]
        mean = math.sqrt(math.fsum(scale * scale for scale in scales) / len(scales))
        return cls(mean, len(scales), size, laplace)

    @property
    def threshold(self) -> float:
        """The smallest singular value that is found."""
        return iteration_threshold(self.noise_scale, self.size, laplace=self.laplace)

    def tilt(self, value: float) -> float:
        """Return the squared tangent per direction, of a singular value that is found."""
        factor = _ITERATION_LAPLACE if self.laplace else _ITERATION
        return factor * self.noise_scale**2 / self.n_answers * self.size / max(value, 1e-300) ** 2

    def error(self, value: float) -> float:
        """Return sin^2 per direction for a singular value."""
        return 1.0 if value < self.threshold else min(1.0, self.tilt(value))


# Products with noise, or one release of flipped cells: decided before any data are seen.


MOST_FLIPS = 1e7  # expected, by "auto": seconds
MOST_CELLS, MOST_WHOLE = 4_000_000, 2000  # of a matrix that is released whole; of its shorter side
_ENOUGH = 2.0  # cells, per root of a component: no need to round weights for less noise


def flipped_side(noise_scale: float, m: int, n: int) -> IteratedSide:
    """Return what one answer of m x n independent cells says, as a side of an iteration."""
    return IteratedSide(noise_scale * math.sqrt(math.sqrt(m) / math.sqrt(n)), 1, n)


def turned_by_cells(
    value: float, noise_scale: float, m: int, n: int, *, symmetric: bool = False
) -> float:
    """Return sin^2 of a right singular vector of m x n cells with independent noise.

    For large matrices, and an outlying singular value: 1 from the edge of the noise on
    (Benaych-Georges, Nadakuditi 2012); of a symmetric matrix (the same, 2011).
    """
    rows, columns, square = noise_scale**2 * m, noise_scale**2 * n, value**2
    if symmetric:
        return min(1.0, columns / square)
    if square * square <= rows * columns:
        return 1.0
    return columns * (square + rows) / (square * (square + columns))


def _iterated_threshold(session: Any, unit: Any, k: int, n_answers: int) -> float:
    """Return the singular value found by products with k columns that are spread over their rows.

    The sizes of the matrix cancel: shorter rows of the query against more numbers in the answer.
    """
    rows = 2 if unit.kind.pair else 1  # that a unit moves
    if session.budget.pure:
        scale = math.sqrt(2.0) * unit.alpha * rows * k * n_answers / session.budget.pure_epsilon
        return iteration_threshold(scale, 1.0, laplace=True)
    scale = session.noise_multiplier * unit.alpha * math.sqrt(rows * k * n_answers)
    return iteration_threshold(scale, 1.0)


def _flipped_threshold(session: Any, unit: Any, m: int, n: int) -> float:
    """Return the edge of the noise of flipped cells; inf where they are too many.

    A singular value at the edge is found with cosine .87: all there is of it, where iterations
    average more answers. So the edge is what compares with their threshold.
    """
    deviation = flip_deviation(session.budget.pure_epsilon)
    cells = m * (m - 1) // 2 if unit.kind.pair else m * n
    if cells * flip_probability(deviation) > MOST_FLIPS:
        return math.inf
    return 2 * unit.high * deviation * math.sqrt(math.sqrt(m) * math.sqrt(n))


def _whole_threshold(session: Any, unit: Any, m: int, n: int) -> float:
    """Return the edge of Laplace noise on all entries of a matrix; inf where they are too many."""
    if m * n > MOST_CELLS or min(m, n) > MOST_WHOLE:
        return math.inf
    scale = math.sqrt(2.0) * unit.alpha / session.budget.pure_epsilon
    return 2 * scale * math.sqrt(math.sqrt(m) * math.sqrt(n))


def choose_one_shot(
    estimator: Any,
    unit: Any,
    shape: tuple[int, int],
    n_answers: int,
    other: str,
    *,
    moments: Mapping[str, float] | None = None,
    no_products: bool = False,
) -> tuple[str, str]:
    """Return (name, reason) of a route: "one_shot", or another one that takes products.

    Parameters
    ----------
    estimator : estimator
        Its parameters.
    unit : MatrixUnit
        What one cell may change by.
    shape : tuple of int
        Public shape of the matrix.
    n_answers : int
        Number of answers of the other route.
    other : str
        Its name.
    moments : mapping or None
        Name -> threshold of routes by the moment of the rows.
    no_products : bool
        Whether the other route stands behind those.
    """
    name = estimator.algorithm
    if name not in ("auto", other):
        return name, f"{name}: as asked for"
    if name == other:
        return other, f"{other}: as asked for"
    pure = estimator._checked_session(pure=estimator._offers_pure_dp())
    if pure.budget.exact:
        return other, f"{other}: there is no noise"
    flips = unit.bounded and unit.low == 0 < unit.high
    whole = unit.kind.contract and unit.kind.single and not unit.kind.symmetric
    if not (flips or moments or whole):
        return other, f"{other}: no cells to flip"
    ours = math.inf
    if flips or whole:
        ours = (_whole_threshold if whole else _flipped_threshold)(pure, unit, *shape)
    theirs = math.inf
    session = estimator._checked_session()
    theirs = _iterated_threshold(session, unit, estimator.n_components, n_answers)
    rivals = {} if no_products else {other: theirs}
    other, theirs = min((rivals | dict(moments or {})).items(), key=itemgetter(1))
    enough = 0.0 if whole else _ENOUGH * unit.high * math.sqrt(estimator.n_components)
    name = "one_shot" if ours < theirs and theirs > enough else other
    mine, rival = (ours, theirs) if name == "one_shot" else (theirs, ours)
    return name, f"{name}: threshold {mine:.3g} against {rival:.3g}"
