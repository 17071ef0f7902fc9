"""What a fit will cost and bring, said before any data are touched."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, repeat
from numbers import Integral
from operator import mul
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtri

from skdp.data.integers import ODD_BITS, mixed_words
from skdp.privacy.accounting.receipts import aligned, html_table

# What a fit will cost and bring, said before any data are touched.


_NUMBERS = tuple(accumulate(repeat(1.02, 1744), mul, initial=1.0))  # of samples, up to 1e15
_STRIDE = 32


@dataclass(frozen=True)
class PlannedRelease:
    """One kind of release of a planned fit.

    Attributes
    ----------
    name : str
        Name of the release, as the ledger of the fit will show it.
    times : int
        How many there are, at most.
    share : float
        Share of the budget that they take together.
    sensitivity, noise_scale : float
        Of one of them, in the unit of the plan, the largest if they differ; where the fit learns a
        clip level it is taken to be the largest of its search.
    size : int
        Numbers in one answer.
    """

    name: str
    times: int
    share: float
    sensitivity: float
    noise_scale: float
    size: int


@dataclass(frozen=True)
class Expectation:
    """What theory expects of a rehearsed fit: the part of a plan that is not the fit itself.

    Attributes
    ----------
    error : callable
        Expected error as a function of the number of samples; nan where theory has no value.
    meaning, signal : str
        What `error` is a share of, and what `found` measures.
    found : float
        The smallest signal that stands out of the noise.
    assumptions : tuple of str
        What is assumed of the data.
    goal : float
        Error at which there are enough samples; 0 where that is not asked.
    scales : bool
        Whether `error` holds for other numbers of samples than the planned one.

    Examples
    --------
    >>> from skdp import DPPCA
    >>> expected = DPPCA(3, clip_norm=1.0).plan(1000, 40).expected
    >>> expected.error(2000) < expected.error(1000) and expected.error(expected.needed()) < 0.5
    True
    """

    error: Callable[[float], float]
    meaning: str
    found: float
    signal: str
    assumptions: tuple[str, ...]
    goal: float = 0.0
    scales: bool = True

    def needed(self) -> int:
        """Return the number of samples at which the goal is reached; 0 if unknown."""
        return first_below(self.error, self.goal) if self.goal else 0


def constant_error(_n: float, error: float = math.nan) -> float:
    """Return an error that holds for the planned shape alone; nan where theory has none."""
    return error


def first_below(error: Callable[[float], float], goal: float) -> int:
    """Return the smallest number (to 2%) at which an error is at most the goal; 0 if none is.

    The error is taken to fall: it is looked at in strides, and inside the stride by halves.
    """

    def enough(place: int) -> bool:
        return error(_NUMBERS[place]) <= goal

    end = next((i for i in (*range(0, len(_NUMBERS), _STRIDE), len(_NUMBERS) - 1) if enough(i)), -1)
    if end < 0:
        return 0
    first = max(0, end - _STRIDE + 1)
    return math.ceil(_NUMBERS[first + bisect_left(range(first, end), True, key=enough)])


def check_counts(estimator: object, **counts: Any) -> None:
    """Refuse numbers of samples, features or targets that are none."""
    for what, size in counts.items():
        if not isinstance(size, Integral) or isinstance(size, bool) or size < 1:
            raise ValueError(
                f"{type(estimator).__name__}.plan needs a positive integer '{what}'. Got {size!r}."
            )


def check_entries(estimator: object, nnz: Any, n: int, d: int) -> None:
    """Refuse a number of entries that a matrix of n rows and d columns cannot have."""
    if not isinstance(nnz, Integral) or isinstance(nnz, bool) or not 1 <= nnz <= n * d:
        raise ValueError(
            f"The 'nnz' parameter of {type(estimator).__name__}.plan must be None or an int in the "
            f"range [1, {n * d}] (n_samples * n_features). Got {nnz!r} instead."
        )


@dataclass(frozen=True)
class FitPlan:
    """What a fit will add as noise and lose by it, from public numbers alone.

    Attributes
    ----------
    estimator : str
        Name of the class.
    n_samples, n_features : int
        The assumed shape of the data.
    guarantee : str
        What the fit would satisfy.
    cautions : tuple of str
        What is weak about it.
    mu : float
        Gaussian-DP parameter of the budget; 0 where the fit is not made of Gaussians.
    unit : str
        What noise scales are multiples of: "1", or the name of a length that the fit learns first.
    error : float
        Expected error, in the sense of `meaning`; nan where theory has nothing to say.
    meaning : str
        What `error` is a share of.
    found : float
        The smallest signal that stands out of the noise, in the sense of `signal`.
    signal : str
        What `found` measures.
    assumptions : tuple of str
        What was assumed of the data.
    releases : tuple of PlannedRelease
        What would be released.
    needed : int
        Number of samples from which `error` would be below one half of the worst; 0 if unknown.
    expected : Expectation
        The formulas behind `error`, `found` and `needed`.
    """

    estimator: str
    n_samples: int
    n_features: int
    guarantee: str
    cautions: tuple[str, ...]
    mu: float
    unit: str
    error: float
    meaning: str
    found: float
    signal: str
    assumptions: tuple[str, ...]
    releases: tuple[PlannedRelease, ...] = field(repr=False)
    needed: int = 0
    expected: Expectation | None = field(default=None, repr=False, compare=False)

    def error_at(self, n_samples: float) -> float:
        """Return the expected error for another number of samples; nan if it has another noise.

        Parameters
        ----------
        n_samples : float
            Number of samples, where the noise does not depend on it (see `expected`).

        Returns
        -------
        float
        """
        if self.expected is None or not self.expected.scales:
            return math.nan
        return self.expected.error(n_samples)

    def _facts(self) -> list[tuple[str, str]]:
        shape = f"{self.n_samples} samples, {self.n_features} features"
        error = "theory has no value" if math.isnan(self.error) else f"about {self.error:.2g}"
        facts = [
            ("Plan", f"{self.estimator}, {shape}; no data was touched"),
            ("Guarantee", self.guarantee),
            *(("Weak", text) for text in self.cautions),
            ("Expected error", f"{error} ({self.meaning})"),
            ("Found from", f"{self.found:.2g} ({self.signal})"),
        ]
        if self.needed:
            facts.append(("Samples needed", f"about {self.needed} for half of the signal"))
        return facts + [("Assumed", text) for text in self.assumptions]

    def _head(self) -> tuple[str, ...]:
        return ("release", "share", "sensitivity", f"noise scale (unit: {self.unit})")

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (
                r.name if r.times == 1 else f"{r.name} ({r.times} times)",
                f"{r.share:.1%}",
                f"{r.sensitivity:.4g}",
                f"{r.noise_scale:.4g}",
            )
            for r in self.releases
        ]

    def __str__(self) -> str:
        """Return the plan as aligned text."""
        return "\n".join([*aligned(self._facts()), *aligned([self._head(), *self._rows()])])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(self._facts()) + html_table(self._rows(), self._head())


# Errors of one-release fits: low-rank factors, linear read-outs, standard deviations.
#
# The constants `_FACTOR` and `_FOUND` are measured; tests compare all three with fits.


# Error over sqrt(k) (sqrt m + sqrt n) noise: of an exact rank.
_FACTOR = {"two_sketch": 1.15, "three_sketch": 1.3}
_FOUND = {"dense": 0.7, "two_sketch": 1.0, "three_sketch": 1.1}
BOUNDED_LENGTH = 0.3  # of the longest row that bounds allow: columns seldom fill theirs
_DRAWS, _MOST_NUMBERS = 64, 2**14  # of random coefficients; fewer where there are many directions


def factorization_error(method: str, m: int, n: int, noise_scale: float, value: float) -> float:
    """Return the relative Frobenius error of a rank-k matrix with equal singular values.

    Parameters
    ----------
    method : {"dense", "two_sketch", "three_sketch"}
        What is released.
    m, n : int
        Shape of the matrix.
    noise_scale : float
        Noise of a release that has the whole budget.
    value : float
        The singular values.
    """
    if value < factorization_threshold(method, m, n, noise_scale):
        return 1.0
    if method == "dense":  # noise inside the two tangent spaces
        return min(1.0, noise_scale * math.sqrt(m + n) / value)
    return min(1.0, _FACTOR[method] * noise_scale * (math.sqrt(m) + math.sqrt(n)) / value)


def factorization_threshold(method: str, m: int, n: int, noise_scale: float) -> float:
    """Return the singular value from which a component is found."""
    return _FOUND[method] * noise_scale * (math.sqrt(m) + math.sqrt(n))


def readout_loss(
    n: float,
    spectrum: NDArray[np.float64],
    *,
    length: float,
    target: float,
    noise: float,
    signal: float,
    cut: float = math.inf,
    seen: NDArray[np.float64] | None = None,
) -> float:
    """Return the share of the explainable variance that a noisy ridge loses.

    A has the eigenvalues m_i = n length^2 p_i, p the spectrum, or n times those `seen`. An entry of
    X'Y has noise s, and so has one of X'X: for coefficients w an entry of X'y is off by
    s^2 (1 + w'w), beside the scatter of the targets about their mean. In units of the mean square
    rho^2 of a coefficient, w = rho z, that is level = (s^2 (1 + w'w) + scatter) / rho^2, and a
    filter 1 - f = m^2 / (m^2 + level) loses f^2 z^2 + f (1 - f) of a direction. The mean over
    random z of the same explained variance is not its value at z = 1: where the strong directions
    hold little, the weak ones hold much.
    Normal targets that are cut shorten all coefficients, by the share of targets that is cut.

    Parameters
    ----------
    n : float
        Number of records.
    spectrum : array of shape (d,)
        Shares of the squared length of the rows in orthogonal directions; they sum to 1.
    length, target : float
        Root mean square length of a row, and of one target, in the units of the release.
    noise : float
        Standard deviation of the noise on an off-diagonal entry.
    signal : float
        Share of the variance of the target that is linear in the rows.
    cut : float
        Where targets are cut, in their standard deviations.
    seen : array of shape (d,) or None
        Mean squares of the rows along the directions, as they are weighted, in the units of the
        release; None if none is too long.
    """
    p = spectrum[spectrum > 0]
    m = n * (length**2 * spectrum if seen is None else seen)[spectrum > 0]
    z2 = sampled_squares(len(p))
    explained = z2 @ p
    rho2 = signal * target**2 / length**2 / explained
    scatter = (1 - signal) * target**2 * m
    noises = noise**2 * (1 + rho2 * z2.sum(axis=1))
    level = (noises[:, None] + scatter) / rho2[:, None]
    f = level / (m * m + level)
    lost = float(np.mean((f * (f * z2 + 1 - f)) @ p / explained))
    short = math.erfc(cut / math.sqrt(2)) ** 2
    return short + (1 - short) * min(1.0, lost)


def weighted_rows(spectrum: NDArray[np.float64], level: float) -> tuple[float, NDArray[np.float64]]:
    """Return the length of normal rows in clip norms, and mean squares as `readout_loss` sees them.

    Rows longer than the clip norm C are weighted by C^2 / x'x, which takes most from the strongest
    directions.

    Parameters
    ----------
    spectrum : array of shape (d,)
        Shares of the squared length in orthogonal directions; they sum to 1.
    level : float
        The clip norm in median lengths.
    """
    squares = sampled_squares(len(spectrum)) * spectrum
    total = squares.sum(axis=1)
    clip = level**2 * float(np.median(total))
    weights = np.minimum(1.0, clip / total)
    return 1 / math.sqrt(clip), np.asarray(weights @ squares / len(squares) / clip)


@lru_cache(maxsize=8)
def sampled_squares(d: int) -> NDArray[np.float64]:
    """Return squares of d normal numbers, a few times: the same ones always, in each column all."""
    times = min(_DRAWS, max(_DRAWS // 4, _MOST_NUMBERS // d))
    even = ndtri((np.arange(times) + 0.5) / times)
    order = np.argsort(_scattered(times * d).reshape(times, d), axis=0, kind="stable")
    return np.asarray(even[order] ** 2 / np.mean(even**2))


def sampled_normals(shape: tuple[int, int], turn: int = 0) -> NDArray[np.float64]:
    """Return numbers that look like normal ones, others in each turn: the same ones always."""
    size = math.prod(shape)
    places = _scattered(size, turn * size).astype(np.float64)
    return np.asarray(ndtri((places + 0.5) / 2.0**64).reshape(shape))


def _scattered(n: int, first: int = 0) -> NDArray[np.uint64]:
    """Return n numbers in an order that looks random (splitmix64)."""
    places = np.arange(first, first + n, dtype=np.uint64) * np.uint64(ODD_BITS)
    return mixed_words(places)


def falling_spectrum(d: int) -> NDArray[np.float64]:
    """Return shares of d directions that fall like 1/i: columns that are correlated, as most are.

    Examples
    --------
    >>> falling_spectrum(3).round(2).tolist()
    [0.55, 0.27, 0.18]
    """
    shares = 1.0 / np.arange(1, d + 1)
    return np.asarray(shares / shares.sum())


def check_spectrum(spectrum: Any, d: int) -> NDArray[np.float64]:
    """Return shares of the squared length in d orthogonal directions; None: they fall like 1/i."""
    if spectrum is None:
        return falling_spectrum(d)
    shares = np.asarray(spectrum, np.float64)
    fine = shares.shape == (d,) and np.isfinite(shares).all() and (shares >= 0).all()
    if not fine or shares.sum() == 0:
        raise ValueError(
            f"'spectrum' must be None or {d} numbers of at least 0 that are not all 0: the "
            f"variances along orthogonal directions. Got {spectrum!r} instead."
        )
    return np.asarray(shares / shares.sum())


def deviation_error(n: float, *, noise: float, count_noise: float, deviation: float) -> float:
    """Return the relative error of a standard deviation, in units of the half-width of its bounds.

    Parameters
    ----------
    n : float
        Number of rows.
    noise : float
        Of a sum of squares.
    count_noise : float
        Of the number of rows; squares are released about one half.
    deviation : float
        The standard deviation of a column.
    """
    spread = math.hypot(noise, count_noise * abs(0.5 - deviation**2)) / n
    return min(1.0, math.sqrt(2 / math.pi) * spread / (2 * deviation**2))


# What a plan says of learnt scales: how likely a search sees nothing, and what that costs.


_HALF, _WIDTH = 3.0, 0.45  # numbers in deviations of a rank's noise: measured, as is the curve


def scale_doubt(n: float, noise_scale: float) -> float:
    """Return how likely a search for the scale of n numbers ends in doubt.

    Measured, for numbers that spread by less than an octave about their median: one half at three
    deviations of the noise of one rank, one in a hundred at five.

    Examples
    --------
    >>> round(scale_doubt(300, 100.0), 2), round(scale_doubt(500, 100.0), 2)
    (0.5, 0.01)
    """
    return float(expit((_HALF - n / noise_scale) / _WIDTH)) if noise_scale > 0 else 0.0


def searched_error(
    n: float, error: Callable[[float], float], nothing: float, noise_scale: float
) -> float:
    """Return an error that becomes `nothing` (what no release gives) where the search doubts."""
    doubt = scale_doubt(n, noise_scale)
    return (1 - doubt) * error(n) + doubt * nothing


# What user-level votes can show of a shared subspace.


_START = 1.0


def vote_error(n_users: float, d: int, k: int, *, noise_scale: float, alignment: float) -> float:
    """Return sin^2 per direction of the subspace that unit votes show.

    Each user adds u u' with ||u|| = 1; a share `alignment` of its square lies in the subspace, the
    rest anywhere. Spike over bulk: theta = n (alignment / k - (1 - alignment) / (d - k)). Noise
    with off-diagonal deviation tau = noise_scale / sqrt(2) and the spread of the votes themselves
    give sin^2 = d (tau^2 + n alignment (1 - alignment) / (k d)) / theta^2.

    Parameters
    ----------
    n_users : float
        Number of users.
    d, k : int
        Features and components.
    noise_scale : float
        Noise of the diagonal of the released sum.
    alignment : float
        Share of a vote inside the subspace.

    Returns
    -------
    float
    """
    if k >= d:
        return 0.0
    theta = n_users * (alignment / k - (1 - alignment) / (d - k))
    if theta <= 0:
        return 1 - k / d
    variance = noise_scale**2 / 2 + n_users * alignment * (1 - alignment) / (k * d)
    return min(_START * d * variance / theta**2, 1 - k / d)


def vote_threshold(d: int, k: int, *, noise_scale: float, alignment: float) -> float:
    """Return the number of users from which the subspace stands out of the noise of the votes."""
    gap = alignment / k - (1 - alignment) / max(d - k, 1)
    return math.inf if gap <= 0 else noise_scale * math.sqrt(d) / gap


# Measured: with this part of the users from which a subspace stands out of the noise half of it is
# missed, and how fast that falls (three shapes, seven budgets).
_HALF_MISSED, _SHARP = 0.52, 3.2
