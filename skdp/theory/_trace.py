"""Theory of private low-rank regression (Zha 2024): bounds, and how many records are needed.

Notation: M is d1 x d2 of rank r with singular values s_1 >= ... >= s_r, d = max(d1, d2), q = r (d1
+ d2 - r); y has noise of standard deviation sx (`noise_sd`), entries of X_i have variance lam, 1 if
not stated; mu is the Gaussian-DP parameter of the budget. Bounds hold up to a constant that the
paper does not give; it is 1 here. The sensitivities of the paper lack a factor sqrt(d1 + d2) (its
lemma 5), which is put back in all that follows from them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from skdp._limits import CLEAR
from skdp.privacy.accounting.losses import mu_from_epsilon_delta
from skdp.queries.sums import Neighbours
from skdp.solvers.trace import median_steps


class StartBounds(NamedTuple):
    """Error bounds of the private initialization (Zha 2024, theorem 1).

    Attributes
    ----------
    u1, u2 : float
        Of the singular subspaces, in the spectral norm: from sampling, and from the privacy noise.
    e1, e2 : float
        Of the matrix, in the spectral norm: from sampling, and from the privacy noise. Times sqrt(2
        r) they bound the Frobenius norm.

    Notes
    -----
    e1 and e2 are the two parts of theorem 1 for the matrix, with sqrt(d1 + d2) put back. u1 and u2
    are derived here, in the order of the proof: u1 is e1 over s_1. u2 is the noise of algorithm 1,
    whose entries have the corrected sensitivity (a/s_r) sqrt(r d) log(n)/n times
    sqrt(log(3.75/delta))/epsilon, times sqrt(d) for the norm of a matrix of noise; the second part
    of e2 is that of its core, s_r times the same sensitivity, times sqrt(r). Constants are 1.
    """

    u1: float
    u2: float
    e1: float
    e2: float


class DescentRecords(NamedTuple):
    """Numbers of records that theorem 3 of Zha 2024 asks for; the largest counts.

    Attributes
    ----------
    n3 : float
        For measurements that preserve the norms of all matrices of low rank: r (d1 + d2) log(d1 +
        d2).
    n4 : float
        For sampling noise below s_r: (sx/s_r)^2 q log(d1 + d2).
    n5 : float
        For the noise of privacy below s_r.

    Notes
    -----
    All three are derived here from what the proof of theorem 3 needs, not copied from it: n3 from
    the count of numbers of a matrix of low rank, n4 and n5 from the two parts of its error bound.
    Constants are 1.
    """

    n3: float
    n4: float
    n5: float


def start_bounds(
    n: float,
    matrix_shape: tuple[int, int],
    rank: int,
    *,
    epsilon: float,
    delta: float = 1e-6,
    largest_value: float = 1.0,
    smallest_value: float = 1.0,
    noise_sd: float = 1.0,
) -> StartBounds:
    """Return the error bounds of the private initialization (Zha 2024, theorem 1).

    With d = max(d1, d2), s_1 and s_r the largest and smallest singular values of M, sx the noise of
    y, a = sqrt(r) s_1 + sx, L = log(n) sqrt(log(3.75/delta)): u1 = (a/s_r) sqrt(d log d / n), u2 =
    (a/s_r) sqrt(r) d L / (n epsilon), e1 = s_1 u1, e2 = s_1 u2 + a r sqrt(d) L / (n epsilon).

    Parameters
    ----------
    n : float
        Number of records.
    matrix_shape : tuple of int
        (d1, d2).
    rank : int
        Rank of the matrix.
    epsilon, delta : float
        Budget; ``epsilon=inf`` leaves u1 and e1 alone.
    largest_value, smallest_value : float, default=1.0
        s_1 and s_r.
    noise_sd : float, default=1.0
        Standard deviation of the noise of y.

    Returns
    -------
    StartBounds

    Examples
    --------
    >>> from skdp.theory import start_bounds
    >>> bounds = start_bounds(100_000, (20, 20), 2, epsilon=1.0, noise_sd=0.5)
    >>> round(bounds.e1, 3), round(bounds.e2, 3)
    (0.047, 0.032)
    """
    d = max(matrix_shape)
    size = math.sqrt(rank) * largest_value + noise_sd
    logs = math.log(n) * math.sqrt(math.log(3.75 / delta))
    u1 = size / smallest_value * math.sqrt(d * math.log(d) / n)
    u2 = size / smallest_value * math.sqrt(rank) * d * logs / (n * epsilon)
    values = size * rank * math.sqrt(d) * logs / (n * epsilon)
    return StartBounds(u1, u2, largest_value * u1, largest_value * u2 + values)


def private_start_records(
    matrix_shape: tuple[int, int],
    rank: int,
    *,
    epsilon: float,
    delta: float = 1e-6,
    condition: float = 1.0,
    noise_ratio: float = 1.0,
) -> float:
    """Return the sample size n2 that the private initialization needs (Zha 2024, corollary 1).

    (sqrt(r) condition + noise_ratio) (condition r d + r^(3/2) sqrt(d)) L / epsilon, with the names
    of `start_bounds`, L at n2 itself, and the factor sqrt(d1 + d2) that the paper omits: at n2 the
    privacy noise, sqrt(r) e2, is as large as s_r. `initialization_records` has the samples that the
    start needs without privacy.

    Parameters
    ----------
    matrix_shape : tuple of int
        (d1, d2).
    rank : int
        Rank of the matrix.
    epsilon, delta : float
        Budget; ``epsilon=inf`` needs no records for privacy.
    condition : float, default=1.0
        s_1 over s_r.
    noise_ratio : float, default=1.0
        sx over s_r.

    Returns
    -------
    float

    Examples
    --------
    >>> from skdp.theory import private_start_records
    >>> round(private_start_records((20, 20), 2, epsilon=1.0, noise_ratio=0.5))
    3160
    """
    if math.isinf(epsilon):
        return 0.0
    d, n = max(matrix_shape), math.e**2
    base = condition * rank * d + rank**1.5 * math.sqrt(d)
    base *= (math.sqrt(rank) * condition + noise_ratio) * math.sqrt(math.log(3.75 / delta))
    for _ in range(100):  # a contraction, as for n5
        n = max(base / epsilon * math.log(n), math.e**2)
    return n


def descent_error_bound(
    n: float,
    matrix_shape: tuple[int, int],
    rank: int,
    *,
    epsilon: float,
    delta: float = 1e-6,
    smallest_value: float = 1.0,
    noise_sd: float = 1.0,
    label_only: bool = False,
) -> float:
    """Return the Frobenius error of private Riemannian descent (Zha 2024, theorems 3 and 7).

    sx sqrt(q log(d) / n) + (sx + s_r) r (d1 + d2) log(n)^(3/2) sqrt(log(log(n)/delta)) / (n
    epsilon). The names are those of `start_bounds`, and q = r (d1 + d2 - r). `label_only` (theorem
    7: neighbours differ in y alone) has no s_r. The error of `DPTraceRegressor` has none for
    records either, because its clip norm follows the residuals.

    Parameters
    ----------
    n : float
        Number of records.
    matrix_shape : tuple of int
        (d1, d2).
    rank : int
        Rank of the matrix.
    epsilon, delta : float
        Budget; ``epsilon=inf`` leaves the sampling error.
    smallest_value : float, default=1.0
        s_r.
    noise_sd : float, default=1.0
        Standard deviation of the noise of y.
    label_only : bool, default=False
        Whether neighbours differ in y alone.

    Returns
    -------
    float
    """
    d, q = max(matrix_shape), rank * (sum(matrix_shape) - rank)
    logs = math.log(n) ** 1.5 * math.sqrt(math.log(math.log(n) / delta))
    size = noise_sd + (0.0 if label_only else smallest_value)
    private = size * rank * sum(matrix_shape) * logs / (n * epsilon)
    return noise_sd * math.sqrt(q * math.log(d) / n) + private


def descent_records(
    matrix_shape: tuple[int, int],
    rank: int,
    *,
    epsilon: float,
    delta: float = 1e-6,
    noise_ratio: float = 1.0,
) -> DescentRecords:
    """Return the sample sizes n3, n4, n5 that theorem 3 of Zha 2024 needs.

    At n4 and n5 the two parts of `descent_error_bound` equal s_r; n5 solves an equation, because
    its logarithms contain n.

    Parameters
    ----------
    matrix_shape : tuple of int
        (d1, d2).
    rank : int
        Rank of the matrix.
    epsilon, delta : float
        Budget; ``epsilon=inf`` needs no records for privacy.
    noise_ratio : float, default=1.0
        sx over s_r.

    Returns
    -------
    DescentRecords

    Examples
    --------
    >>> from skdp.theory import descent_records
    >>> [round(number) for number in descent_records((20, 20), 2, epsilon=1.0, noise_ratio=0.5)]
    [295, 57, 14227]
    """
    total, d = sum(matrix_shape), max(matrix_shape)
    q = rank * (total - rank)
    numbers = (rank * total * math.log(total), noise_ratio**2 * q * math.log(d))
    if math.isinf(epsilon):
        return DescentRecords(*numbers, 0.0)
    base, n = (1 + noise_ratio) * rank * total / epsilon, math.e**2
    for _ in range(100):  # a contraction: logarithms grow slower than n
        n = base * math.log(n) ** 1.5 * math.sqrt(math.log(math.log(n) / delta))
        n = max(n, math.e**2)
    return DescentRecords(*numbers, n)


# Of a fit with defaults: its `gradient_clip`, over the ranks of so many steps as few records take.
_RANK_SHARE = 0.0365 / median_steps(8, centered=True, searches_covariance=True)


class RequiredSamples(NamedTuple):
    """Numbers of records for one fit of `DPTraceRegressor`.

    Attributes
    ----------
    bounds_found : int
        From here on medians exceed the noise; with fewer records the fit returns the zero matrix.
    error_below_half : int
        From about here on the relative error is below one half, if the matrix carries most of the
        variance of y.
    accurate : int
        From about here on the error is within 1.5 times that of a fit without privacy.
    """

    bounds_found: int
    error_below_half: int
    accurate: int


def required_samples(
    matrix_shape: tuple[int, int],
    rank: int,
    *,
    epsilon: float = 1.0,
    delta: float = 1e-6,
    adjacency: str = "add_remove",
    rank_share: float | None = None,
) -> RequiredSamples:
    """Return how many records a private fit needs, from public numbers alone.

    `bounds_found` is the rule of the estimator. The others are measured, d = 10 to 40, ranks 1 to
    4: n mu of about 3 sqrt(r) d^1.5 and 20 q. "replace" needs twice as many.

    Parameters
    ----------
    matrix_shape : tuple of int
        (d1, d2).
    rank : int
        Rank of the matrix.
    epsilon, delta : float, default=1.0, 1e-6
        Budget of one fit.
    adjacency : {"add_remove", "replace"}, default="add_remove"
        What neighbours differ in.
    rank_share : float, default=None
        Budget fraction of one centred rank; None: that of a fit with default parameters.

    Returns
    -------
    RequiredSamples

    Examples
    --------
    >>> from skdp.theory import required_samples
    >>> required_samples((20, 20), 2, epsilon=1.0)
    RequiredSamples(bounds_found=310, error_below_half=1604, accurate=6422)
    """
    mu = math.inf if epsilon == math.inf else mu_from_epsilon_delta(epsilon, delta)
    k = Neighbours(adjacency).units
    r = min(rank, *matrix_shape)
    q = r * (sum(matrix_shape) - r)
    size = math.sqrt(sum(matrix_shape) / 2)
    found = CLEAR * k / (mu * math.sqrt(rank_share or _RANK_SHARE))
    useful = 3 * k * math.sqrt(r) * size**3 / mu
    numbers = (found, max(found, useful), max(found, 20 * k * q / mu))
    return RequiredSamples(*(math.ceil(number) for number in numbers))


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
    """Return the sample size that the initialization of Zha 2024 needs without privacy.

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
        Whether gradient descent follows.

    Returns
    -------
    float
    """
    base = rank * (noise_ratio + math.sqrt(rank) * condition) ** 2
    base *= max(matrix_shape) * math.log(sum(matrix_shape))
    return base * (condition**2 if descent else 1.0)
