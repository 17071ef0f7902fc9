"""A linear regression, and its classes, from released moments: all of it post-processing.

Notation: A = X'X and B = X'Y (d x q) about the released means, both with noise of standard
deviation s on an entry (sqrt(2) s on the diagonal of A); lambda, W the eigenpairs of A.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from skdp._limits import CLEAR, NEGLIGIBLE, FloatArray
from skdp.answer import Answer
from skdp.solvers.postprocess import held_by_eigenvectors, inside_ball
from skdp.solvers.verdict import evidence


class NormalEquations(NamedTuple):
    """Released moments in the units of the data.

    Attributes
    ----------
    scatter : array of shape (d, d)
        X'X about the released mean (about 0 without an intercept).
    cross : array of shape (d, q)
        X'Y about the released means.
    row_mean, target_mean : array of shape (d,), (q,)
        Released means; zeros without an intercept.
    noise : float
        Standard deviation of the noise on an off-diagonal entry of `scatter`.
    cross_noise : array of shape (q,)
        Of an entry of each column of `cross`.
    weight, bias : float
        Released weight of all records, and the number in the bias column; zeros without an
        intercept.
    clip_norm : float
        Of the rows.
    sums_noise : float
        Deviation of products with the bias column; that with itself has at most sqrt(2) times it.
    share : array of shape (q,) or float
        About which fraction of what all columns explain the columns of `scatter` explain.
    directions : array of shape (k, q)
        The last k columns are directions, which are fitted first. What took them to products with
        the targets of all columns, up to one factor.
    square : array of shape (q,) or float
        Variance of the targets, which products with rows have by chance; 0 where it is not known.
    chance : array of shape (q,) or float
        About what products of the same records take of it by chance along `directions`.
    """

    scatter: FloatArray
    cross: FloatArray
    row_mean: FloatArray
    target_mean: FloatArray
    noise: float
    cross_noise: FloatArray
    weight: float = 0.0
    bias: float = 0.0
    clip_norm: float = math.inf
    sums_noise: float = 0.0
    share: FloatArray | float = 1.0
    directions: FloatArray = np.zeros((0, 1))
    square: FloatArray | float = 0.0
    chance: FloatArray | float = 0.0


def normal_equations(
    moment: FloatArray,
    noise_scale: float,
    target_size: FloatArray,
    *,
    bias: float,
    clip_norm: float,
    target_norm: float,
    products: Answer | None = None,
) -> NormalEquations:
    """Read the moments about the means from a released [X, Y, c]'[X, Y, c].

    `target_size` is the unit of each target in the release, `target_norm` the largest norm of the
    targets of a record there, `noise_scale` belongs to the diagonal.
    The weight of all records is kept above two deviations of its noise, the means inside the balls
    that hold all records.
    If [X, c]'[Y, c] was released apart (`products`), the moment has no bias and only X'X counts.
    """
    q, noise, weight = len(target_size), noise_scale / math.sqrt(2), 0.0
    d = len(moment) - q - (1 if bias and not products else 0)
    both = products or Answer(moment[[*range(d), -1], d:], noise)
    A, B = moment[:d, :d], both.value[:d, :q] * target_size
    mean, target_mean = np.zeros(d), np.zeros(q)
    if bias:
        weight = max(float(both.value[-1, -1]), math.sqrt(8) * both.noise_scale) / bias**2 or 1e-300
        mean = inside_ball(both.value[:-1, -1] / (bias * weight), clip_norm)
        target_mean = inside_ball(both.value[-1, :-1] / (bias * weight), target_norm) * target_size
        A = A - weight * np.outer(mean, mean)
        B = B - weight * np.outer(mean, target_mean)
    noises, row_facts = (noise, both.noise_scale * target_size), (clip_norm, both.noise_scale)
    return NormalEquations(A, B, mean, target_mean, *noises, weight, bias, *row_facts)


def steadied(released: NormalEquations, mean: Answer | None) -> NormalEquations:
    """Return the moments about a mean of the targets that uses wider bounds too, if released.

    Products and means of the moments are of the same targets, cut by narrow bounds. So products are
    taken about the mean that has less noise, and only the mean that is predicted makes up for what
    the cut takes away, as far as it exceeds the noise.
    """
    if mean is None or not released.bias or released.noise == 0.0:
        return released
    n, difference = released.weight, mean.value - released.target_mean
    unit = released.cross_noise / (n * released.bias)
    noise = (mean.noise_scale / unit) ** 2
    error = 1 + np.maximum((difference / unit) ** 2 - CLEAR**2 * (1 + noise), 0.0)
    cross = released.cross - n * np.outer(released.row_mean, difference / (1 + noise))
    shift = difference * error / (error + noise)
    return released._replace(cross=cross, target_mean=released.target_mean + shift)


class Solution(NamedTuple):
    """A linear map.

    Attributes
    ----------
    coefficients : array of shape (d, q)
        One column for each target.
    intercepts : array of shape (q,)
        What is predicted at 0.
    above_noise : array of bool, shape (q,)
        Whether the released moments show more of a target than noise and chance would.
    likely : array of bool, shape (q,)
        Whether a signal is likelier than none.
    lost : array of shape (q,)
        About what fraction of the linearly explained variance this map misses, or noise in the
        intercepts removes again. 0 for `flat` maps: classification uses the largest of several
        scores, which a common factor does not change.
    traces : array of shape (q,)
        Traces of the maps from released products with a target to its coefficients: they give the
        bias that `right_labels` subtracts. With directions, the last common factor is left out,
        because too many fits would warn with it.
    """

    coefficients: FloatArray
    intercepts: FloatArray
    above_noise: NDArray[np.bool_]
    likely: NDArray[np.bool_]
    lost: FloatArray
    traces: FloatArray


def solve_normal_equations(
    released: NormalEquations, alpha: float, *, flat: bool = False
) -> Solution:
    """Return the linear map from released moments.

    Without noise this is (A + alpha)^-1 B. With noise, the fit works in the eigenvectors of the
    noisy A. There m is alpha plus an estimate of the diagonal of the noiseless A (`true_forms`),
    and b = m w + e for a target of coefficients w. The error e is the noise on b, plus w times the
    entries off the diagonal, which are not known. For w drawn from N(0, rho^2 I) an entry of e has
    variance s_b^2 + rho^2 r^2 (r^2: `error_of_forms`), and the posterior mean of w has the filter
    m/(m^2 + var(e)/rho^2) in place of 1/m. It leaves what clearly exceeds the noise unchanged, and
    takes the rest to 0. rho has the largest likelihood given b.

    The posterior variance of w is rho^2 (1 - filter m). Its fraction of the sum of w^2 and itself,
    weighted by m, is the fraction of the explainable variance that is lost.

    Directions are fitted first; the columns explain what these leave.

    `flat` (classes) uses the filter 1/(lambda + alpha + s sqrt(2 d)) instead, with the noise level
    as penalty, because the other one removes directions of small variance, in which classes may
    differ. This penalty shrinks columns relative to intercepts and directions. So, if there is a
    signal, their coefficients are multiplied by the factor of least squares, w'b / w'Aw, if that is
    above 1. In it b is without its noise, and the larger of m and lambda stands for A, because w
    depends on the noise of A.
    """
    penalty = alpha + flat * released.noise * math.sqrt(2 * len(released.scatter))
    A, B, projection, dir_coef = _without_directions(released, alpha, penalty, flat)
    values, W = np.linalg.eigh(A)  # that of scipy 1.13 takes no matrix without columns
    g, dir_cross = W.T @ B, released.cross[len(A) :]
    forms = true_forms(values, released.noise)
    m, error = forms + alpha, error_of_forms(values, forms, released.noise)
    rho2, seen, likely = evidence(released, g, m, dir_cross, error, pooled=flat)
    noises = released.cross_noise**2
    prior_noise = noises / np.where(rho2, rho2, np.inf)
    filters = _filter(m[:, None], error + prior_noise)
    theta = filters * g
    lost = m @ (rho2 * np.maximum(1 - filters * m[:, None], 0.0))  # < 0 by rounding alone
    mean_error = noises + released.noise**2 * np.sum(theta**2, axis=0)
    mean_error /= released.weight * released.bias**2 or math.inf
    linear = m @ theta**2 + lost + np.sum(dir_coef * dir_cross, axis=0)
    linear = np.maximum(linear, np.maximum(lost, NEGLIGIBLE * mean_error) + 1e-300)
    # One normal number: three times its square on average is less than twice its deviation.
    lost = 1 - (1 - lost / linear) * released.share + 3 * mean_error / linear
    if flat:
        filters[:] = _filter(np.maximum(values, 0.0) + penalty, 0.0)[:, None]
        noises = noises + released.noise**2 * np.sum(dir_coef**2, axis=0)
        fitted = float(np.sum(filters * (g**2 - noises) * seen))
        square = float(np.maximum(m, values + alpha) @ np.sum((filters * g) ** 2, axis=1))
        factor = max(1.0, fitted / max(square, 1e-300))
        theta = factor * filters * g
        filters = filters * (1.0 if len(dir_cross) else factor)
        lost = np.zeros_like(lost)
    coefficients = W @ theta
    coefficients = np.vstack([coefficients, dir_coef - projection @ coefficients])
    intercepts = released.target_mean - released.row_mean @ coefficients
    return Solution(coefficients, intercepts, seen, likely, lost, filters.sum(axis=0))


def _without_directions(
    released: NormalEquations, alpha: float, penalty: float, flat: bool
) -> tuple[FloatArray, ...]:
    """Return scatter and cross of the columns without what the directions explain.

    Also return the regressions of columns and of targets on the directions. The noise edge is added
    to their moments, which bounds the inverse. Scores of labels start from a multiple of what the
    directions were made of: that had more of the budget, so the noise of the rest confuses no
    classes.
    """
    k, A, B = len(released.directions), released.scatter, released.cross
    m = len(A) - k
    values, V = np.linalg.eigh(A[m:, m:])
    center_norm = float(np.linalg.norm(released.row_mean[m:])) / (released.bias or math.inf)
    edge = released.noise * math.sqrt(2 * k) * (1 + center_norm**2)  # of squares about a noisy mean
    inverse = (V / (np.maximum(values + edge, edge) + penalty)) @ V.T
    P = flat * released.directions / max(float(np.linalg.norm(released.directions)), 1e-300)
    form = alpha + max(np.sum(P * (A[m:, m:] @ P)), edge, 1e-300)
    start = max(np.sum(P * B[m:]), 0.0) / form * P
    residual = B[m:] - A[m:, m:] @ start
    noises = k * (released.cross_noise**2 + released.noise**2 * np.sum(start**2, axis=0))
    # James and Stein
    shrinkage = 1 - noises / (np.maximum(np.sum(residual**2, axis=0), noises) + 1e-300)
    dir_coef = start + inverse @ residual * shrinkage
    projection = inverse @ A[m:, :m]
    return A[:m, :m] - A[:m, m:] @ projection, B[:m] - A[:m, m:] @ dir_coef, projection, dir_coef


def true_forms(values: FloatArray, noise: float) -> FloatArray:
    """Return estimates of w_i'A w_i, A without the noise, for the eigenvectors w_i of A with it.

    A is positive semidefinite, so they are kept above 0. No sum of them is used.
    """
    forms, _ = held_by_eigenvectors(values, len(values), math.sqrt(2) * noise, math.sqrt(0.5))
    return np.maximum(forms, NEGLIGIBLE * noise)


def error_of_forms(values: FloatArray, forms: FloatArray, noise: float) -> float:
    """Return the squared norm of a row of W'A W off the diagonal, with the error of the diagonal.

    |A|^2 is estimated by that of A with noise, less d (d + 1) s^2. A form, a diagonal entry, has an
    error of 1.4 s, which is doubled. Most is d s^2: that is noise alone. Columns of one length that
    hardly correlate have far less, as their A is known up to a factor.
    """
    d = len(values)
    excess = float(values @ values - forms @ forms) / max(d, 1) - (d + 1) * noise**2
    return min(max(excess, 0.0) + 3 * noise**2, d * noise**2)


def _filter(m: FloatArray, level: FloatArray | float) -> FloatArray:
    """Return m/(m^2 + level), and 0 where m is nothing but rounding."""
    real = m > len(m) * 1e-16 * float(np.max(m, initial=0.0))
    safe = np.where(real, m, 1.0)
    return np.where(real, 1.0 / (safe + level / safe), 0.0)


# Classes in a released regression: totals, means, other weights. All of it is post-processing.
#
# Notation: K classes with public codes (K x q), the targets of a regression with a bias column.


class ClassMoments(NamedTuple):
    """Released numbers of each class.

    Attributes
    ----------
    codes : array of shape (K, q)
        Their public codes.
    totals : array of shape (K,)
        Records, at least two deviations of their noise.
    means : array of shape (K, d)
        Mean rows, inside the ball that holds all rows.
    shown : array of bool, shape (K,)
        Whether a total clearly exceeds its noise.
    noise : array of shape (q + 1, K)
        Deviation of an entry of the class sums, for each released number that they are made of.
    """

    codes: FloatArray
    totals: FloatArray
    means: FloatArray
    shown: NDArray[np.bool_]
    noise: FloatArray

    def shares(self, weights: FloatArray) -> FloatArray:
        """Return the parts of all that classes have under weights of their records."""
        return np.asarray(weights * self.totals / (weights @ self.totals))

    def square(self, weights: FloatArray) -> FloatArray:
        """Return the variance of codes, as products have it by chance under these weights."""
        shares = self.shares(weights)
        squares = (self.codes - shares @ self.codes) ** 2
        return np.asarray(self.totals.sum() * (shares**2 / self.totals) @ squares)


def class_moments(released: NormalEquations, codes: FloatArray) -> ClassMoments:
    """Read totals and means of the classes off the sums over all records and over their codes.

    A code with a one next to it is a linear function of the class, and the other way round.
    """
    decode = np.linalg.pinv(np.column_stack([codes, np.ones(len(codes))]))  # (q + 1) x K
    n, bias, clip_norm = released.weight, released.bias, released.clip_norm
    counts = n * np.append(released.target_mean, 1.0) @ decode
    noises = np.append(released.cross_noise, math.sqrt(2) * released.sums_noise / bias) / bias
    floor = np.maximum(CLEAR * np.sqrt(noises**2 @ decode**2), NEGLIGIBLE * n)
    totals = np.maximum(counts, floor)
    cross = released.cross + n * np.outer(released.row_mean, released.target_mean)
    sums = np.column_stack([cross, n * released.row_mean]) @ decode
    means = np.array([inside_ball(mean, clip_norm) for mean in (sums / totals).T])
    longer = np.maximum(np.linalg.norm(sums / totals, axis=0) / clip_norm, 1.0)
    noise = np.append(released.cross_noise, released.sums_noise / bias)[:, None] * decode / longer
    return ClassMoments(codes, totals, means, counts > floor, noise)


def right_labels(
    released: NormalEquations, classes: ClassMoments, solution: Solution, weights: FloatArray
) -> FloatArray:
    """Return about the fraction of each class that is labelled right; 0 if its total is noise.

    Rows are taken as normal about the mean of their class, with one covariance for all classes, and
    scores as independent: the chance that the right score is the largest is then an integral over
    one number. The covariance is at least what noise alone would show (the root mean square of the
    eigenvalues of the noise). The coefficients come from the same noisy class means that are scored
    here, so that scores hold a product of the noise with itself: its mean is subtracted.
    """
    shares, W = classes.shares(weights), solution.coefficients
    codes = (released.weight * shares)[:, None] * (classes.codes - released.target_mean)
    noise = classes.noise / classes.totals
    product = noise.T @ noise @ codes * solution.traces
    scores = classes.means @ W + solution.intercepts - product
    if W.shape[1] == 1:
        W, scores = np.hstack([-W, W]), np.hstack([-scores, scores])
    apart = (classes.means - classes.totals @ classes.means / classes.totals.sum()) @ W
    squares = (W.T @ released.scatter @ W - apart.T * classes.totals @ apart) / released.weight
    noises = released.noise * math.sqrt(len(W)) / released.weight * W.T @ W
    spread, least = (np.diag(of)[:, None] + np.diag(of) - 2 * of for of in (squares, noises))
    margins = np.diag(scores)[:, None] - scores + np.diag(np.full(len(scores), math.inf))
    nodes, parts = np.polynomial.hermite_e.hermegauss(20)
    margins /= np.sqrt(np.maximum(spread, np.maximum(least, 1e-300)) / 2)
    right = ndtr(margins[..., None] + nodes).prod(axis=1)
    return np.asarray(right @ (parts / parts.sum()) * classes.shown)


def reweighted(
    released: NormalEquations, classes: ClassMoments, weights: FloatArray, *, centered: bool = True
) -> NormalEquations:
    """Return the moments as if each record of a class had its weight, for about as many records.

    Means and products with the codes are weighted exactly; the scatter is that of all records, as
    if classes had one covariance. All moments are about 0 if they are not `centered`.
    """
    n, shares, scatter = released.weight, classes.shares(weights), released.scatter
    row_mean, target_mean = shares @ classes.means, shares @ classes.codes
    if not centered:
        scatter = scatter + n * np.outer(released.row_mean, released.row_mean)
        row_mean, target_mean = np.zeros_like(row_mean), np.zeros_like(target_mean)
    codes = (n * shares)[:, None] * (classes.codes - target_mean)  # K x q
    rates = classes.noise @ (codes / classes.totals[:, None])
    noise = np.sqrt(np.sum(rates**2, axis=0))
    moved = released._replace(row_mean=row_mean, target_mean=target_mean, cross_noise=noise)
    return moved._replace(scatter=scatter, cross=classes.means.T @ codes)
