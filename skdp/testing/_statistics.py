"""Bounds and tests for the audit. Every bound is valid for finite samples, or says what it assumes.

Notation: scores of N runs on each of two data sets; a is the chance of a false alarm.
"""

import math

import numpy as np
from scipy.special import betaincinv, ndtri
from scipy.stats import chi2, norm, t

SIX_SIGMA = 2 * float(norm.sf(6.0))


def gaussian_mu(low, high, alpha: float = 0.001) -> tuple[float, float]:
    """Return (mu_hat, G): G is below mu with probability 1 - alpha if the scores are Gaussian.

    mu_hat is the difference of means over the pooled standard deviation, and
    G = mu_hat - z_alpha sqrt(2/N + mu_hat^2/(4N)), the delta method. There is no absolute value: a
    negative mu_hat says nothing, and taking abs() would make a bound out of noise.
    """
    n = min(len(low), len(high))
    pooled = math.sqrt((np.var(low, ddof=1) + np.var(high, ddof=1)) / 2)
    gap = float(np.mean(high) - np.mean(low))
    if pooled == 0.0:
        return (math.inf, math.inf) if gap > 0 else (0.0, 0.0)
    mu = gap / pooled
    return mu, mu + float(ndtri(alpha)) * math.sqrt(2 / n + mu * mu / (4 * n))


def _upper(counts, n: int, alpha: float):
    """Clopper-Pearson: upper bounds of a probability, from counts out of n."""
    counts = np.asarray(counts, float)
    inside = counts < n
    bound = betaincinv(counts + 1, np.where(inside, n - counts, 1.0), 1 - alpha)
    return np.where(inside, bound, 1.0)


def _error_bounds(low, high, alpha: float):
    """Return upper bounds of (false positive, false negative) rates at every threshold at once.

    Between two order statistics the count is constant and the probability is at most its value at
    the next one, which has the Beta law that Clopper-Pearson inverts: with alpha / (2 (N + 1)) a
    count, all thresholds hold together, also those chosen after looking.
    """
    low, high = np.sort(low), np.sort(high)
    cuts = np.unique(np.concatenate([low, high]))
    false_positives = len(low) - np.searchsorted(low, cuts, side="right")
    false_negatives = np.searchsorted(high, cuts, side="right")
    fpr = _upper(false_positives, len(low), alpha / (2 * (len(low) + 1)))
    fnr = _upper(false_negatives, len(high), alpha / (2 * (len(high) + 1)))
    return fpr, fnr


def distribution_free_mu(low, high, alpha: float = 0.001) -> float:
    """Return B: below mu with probability 1 - alpha, whatever the law of the scores.

    mu-GDP says Phi^-1(1 - FPR) - Phi^-1(FNR) <= mu for every test; Clopper-Pearson bounds both
    error rates from above at every threshold.
    """
    fpr, fnr = _error_bounds(low, high, alpha)
    with np.errstate(invalid="ignore"):
        mu = -ndtri(fpr) - ndtri(fnr)
    return float(np.max(mu[np.isfinite(mu)], initial=-math.inf))


def epsilon_lower_bound(low, high, delta: float, alpha: float = 0.001) -> float:
    """Return a lower bound of epsilon at this delta, whatever the law of the scores.

    1 - FNR <= e^epsilon FPR + delta for every test. It certifies log(N/4) at most: useful for pure
    mechanisms, nearly blind for Gaussian ones.
    """
    fpr, fnr = _error_bounds(low, high, alpha)
    power = np.maximum(1 - fnr - delta, 0.0)
    with np.errstate(divide="ignore"):
        return float(np.max(np.log(power / fpr), initial=0.0))


def runs_needed(mu: float, excess: float, alpha: float = 0.001, power: float = 0.9) -> int:
    """Return the runs per data set that the Gaussian bound needs to see mu inflated by `excess`.

    N = (z_alpha + z_beta)^2 (2 + excess^2 mu^2 / 4) / ((excess - 1) mu)^2.

    Parameters
    ----------
    mu : float
        Claimed Gaussian-DP parameter.
    excess : float
        Factor by which the true parameter is larger; sqrt(2) for half the noise variance.
    alpha, power : float
        Chance of a false alarm, and of seeing the fault.

    Returns
    -------
    int

    Examples
    --------
    >>> runs_needed(1.0, 2**0.5)
    279
    """
    z = -float(ndtri(alpha)) + float(ndtri(power))
    return math.ceil(z * z * (2 + (excess * mu) ** 2 / 4) / ((excess - 1) * mu) ** 2)


def scale_pvalue(squares: float, degrees: float) -> float:
    """Two-sided p-value of a sum of squares that should be chi-square with these degrees."""
    tail = min(chi2.sf(squares, degrees), chi2.cdf(squares, degrees))
    return min(1.0, 2 * float(tail))


def cosine_pvalue(a, b) -> float:
    """Two-sided p-value of the cosine of two vectors, exact if one of them is iid normal."""
    sizes = float(np.linalg.norm(a) * np.linalg.norm(b))
    if len(a) < 2 or sizes == 0.0:
        return 1.0
    cosine = min(1.0, max(-1.0, float(np.dot(a, b)) / sizes))
    rest = 1 - cosine * cosine
    if rest <= 0.0:
        return 0.0
    degrees = len(a) - 1
    return min(1.0, 2 * float(t.sf(abs(cosine) * math.sqrt(degrees / rest), degrees)))
