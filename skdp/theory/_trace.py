"""What theory says of private low-rank regression: lower bounds, and how many records are needed.

Notation: M is d1 x d2 of rank r, d = max(d1, d2), q = r (d1 + d2 - r); entries of X_i have
variance lam, the noise of y has standard deviation `noise_sd`; mu is the Gaussian-DP parameter of
the budget. Bounds hold up to a constant that the papers do not give; it is 1 here.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from skdp.privacy.accounting.losses import mu_from_epsilon_delta
from skdp.queries.sums import Neighbours
from skdp.solvers.trace import READABLE, TraceFacts, bussgang, clip_multiplier

_RANK_SHARE = 0.0365 / 79  # of the budget, for each rank of the searches of a fit with defaults
_STANDS_OUT = 0.43  # of the edge of the start: from here on steps find the matrix (measured)
_Z = 0.6744897501960817  # median of |N(0, 1)|


class RecordsNeeded(NamedTuple):
    """Numbers of records for one fit of `DPTraceRegressor`.

    Attributes
    ----------
    readable : int
        From here on medians can be read; with fewer records the answer is the zero matrix.
    useful : int
        From about here on the relative error is below one half, if the matrix carries most of the
        variance of y.
    accurate : int
        From about here on the error is within 1.5 times that of a fit without privacy.
    """

    readable: int
    useful: int
    accurate: int


def records_needed(
    matrix_shape: tuple[int, int],
    rank: int,
    *,
    epsilon: float = 1.0,
    delta: float = 1e-6,
    adjacency: str = "add_remove",
    rank_share: float = _RANK_SHARE,
) -> RecordsNeeded:
    """Return how many records a private fit needs, from public numbers alone.

    `readable` is the rule of the estimator. The others are measured, d = 10 to 40, ranks 1 to 4:
    n mu of about 3 sqrt(r) d^1.5 and 20 q. "replace" needs twice as many.

    Parameters
    ----------
    matrix_shape : tuple of int
        (d1, d2).
    rank : int
        Rank of the matrix.
    epsilon, delta : float
        Budget of one fit.
    adjacency : {"add_remove", "replace"}, default="add_remove"
        What neighbours differ in.
    rank_share : float, optional
        Share of the budget that one rank has; that of a fit with defaults unless given.

    Returns
    -------
    RecordsNeeded

    Examples
    --------
    >>> from skdp.theory import records_needed
    >>> records_needed((20, 20), 2, epsilon=1.0)
    RecordsNeeded(readable=983, useful=1604, accurate=6422)
    """
    mu = mu_from_epsilon_delta(epsilon, delta)
    k = Neighbours(adjacency).units
    r = min(rank, *matrix_shape)
    q = r * (sum(matrix_shape) - r)
    size = math.sqrt(sum(matrix_shape) / 2)
    readable = READABLE * k / (mu * math.sqrt(rank_share))
    useful = 3 * k * math.sqrt(r) * size**3 / mu
    numbers = (readable, max(readable, useful), max(readable, 20 * k * q / mu))
    return RecordsNeeded(*(math.ceil(number) for number in numbers))


def minimax_error(
    n: float,
    matrix_shape: tuple[int, int],
    rank: int,
    *,
    epsilon: float,
    noise_sd: float,
    lam: float = 1.0,
    schatten: float = 2.0,
    smallest_value: float = math.inf,
) -> float:
    """Return the lower bound on the error in a Schatten norm (Zha 2024, theorem 2).

    (noise_sd / sqrt(lam)) (r^(1/s) sqrt(d/n) + r^(1/2 + 1/s) d / (n epsilon)), and at most
    r^(1/s) times the smallest singular value; delta is at most of the order e^-n there.

    Parameters
    ----------
    n : float
        Number of records.
    matrix_shape : tuple of int
        (d1, d2).
    rank : int
        Rank of the matrix.
    epsilon : float
        Budget; inf gives the bound without privacy.
    noise_sd : float
        Standard deviation of the noise of y.
    lam : float, default=1.0
        Variance of an entry of X.
    schatten : float, default=2.0
        Order s of the norm: 2 is Frobenius, inf spectral.
    smallest_value : float, default=inf
        Smallest singular value of the class.

    Returns
    -------
    float
    """
    d = max(matrix_shape)
    power = rank ** (1 / schatten)
    rate = power * math.sqrt(d / n) + math.sqrt(rank) * power * d / (n * epsilon)
    return min(noise_sd / math.sqrt(lam) * rate, power * smallest_value)


def minimax_risk(
    n: float, matrix_shape: tuple[int, int], rank: int, *, epsilon: float, noise_sd: float
) -> float:
    """Return the lower bound on the squared Frobenius error by score attacks (theorem 5).

    noise_sd^2 (r d / n + r^2 d^2 / (n epsilon)^2), for delta below 1/n and r d below n epsilon.

    Parameters
    ----------
    n : float
        Number of records.
    matrix_shape : tuple of int
        (d1, d2).
    rank : int
        Rank of the matrix.
    epsilon : float
        Budget.
    noise_sd : float
        Standard deviation of the noise of y.

    Returns
    -------
    float
    """
    d = max(matrix_shape)
    return noise_sd**2 * (rank * d / n + (rank * d / (n * epsilon)) ** 2)


def initialization_records(
    matrix_shape: tuple[int, int],
    rank: int,
    *,
    condition: float = 1.0,
    noise_ratio: float = 1.0,
    descent: bool = False,
) -> float:
    """Return the sample size at which the spectral start of Zha 2024 works without privacy.

    Theorem 1: r (noise_ratio + sqrt(r) condition)^2 d log(d1 + d2); `descent` (corollary 1) needs
    condition^2 times as many.

    Parameters
    ----------
    matrix_shape : tuple of int
        (d1, d2).
    rank : int
        Rank of the matrix.
    condition : float, default=1.0
        Largest over smallest singular value.
    noise_ratio : float, default=1.0
        Noise of y over the smallest singular value.
    descent : bool, default=False
        Whether gradient descent is to follow.

    Returns
    -------
    float
    """
    base = rank * (noise_ratio + math.sqrt(rank) * condition) ** 2
    base *= max(matrix_shape) * math.log(sum(matrix_shape))
    return base * (condition**2 if descent else 1.0)


def expected_error(facts: TraceFacts, *, noise_sd: float, signal_sd: float) -> float:
    """Return the expected relative error of a fit, ||M^ - M||_F / ||M||_F; 1 is the zero matrix.

    The start: clipped products y X with noise in all d1 d2 numbers, of which a rank-r part is kept.
    If it finds the matrix, steps follow whose residuals are the noise of y, averaged over the later
    half; noise and sampling act on the q numbers of the tangent space. Measured: within a factor of
    two of the median over fits, where it is below one half.

    Parameters
    ----------
    facts : TraceFacts
        Public numbers of the fit.
    noise_sd : float
        Standard deviation of the noise of y.
    signal_sd : float
        Standard deviation of <X_i, M>, ||M||_F sqrt(lam).

    Returns
    -------
    float
    """
    d1, d2 = facts.shape
    size = signal_sd / math.sqrt(facts.lam)
    start = _entry_noise(facts, d1 * d2, facts.init, math.hypot(noise_sd, signal_sd))
    value = size / math.sqrt(facts.rank)
    edge = start * (math.sqrt(d1) + math.sqrt(d2))
    if value < _STANDS_OUT * edge:
        return 1.0
    if not facts.max_iter:
        return min(1.0, start * math.sqrt(facts.tangent_size) / size)
    averaged = facts.gradients * (0.75 if facts.tail_average else 1 / facts.max_iter)
    rest = _entry_noise(facts, facts.tangent_size, averaged, noise_sd)
    return min(1.0, rest * math.sqrt(facts.tangent_size) / size)


def _entry_noise(facts: TraceFacts, size: int, share: float, sd: float) -> float:
    """Standard deviation of one number of an estimate: sampling, and noise of a clipped sum."""
    c = clip_multiplier(facts, size, share)
    b = bussgang(c)
    median = _Z * sd * math.sqrt(facts.lam * size)
    noise = facts.unit_noise * c * median / (b * facts.lam * facts.n * math.sqrt(share))
    sampling = 1.1 * sd / math.sqrt(facts.lam * facts.n)
    return math.hypot(noise, sampling)
