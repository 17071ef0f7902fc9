"""From released moments to attributes: components, regression, classes: all of it post-processing.

Notation: A is the released second moment X'X of d features, n the released (or public) number of
rows, s the standard deviation of the noise on A's diagonal (off the diagonal it is s / sqrt(2)).
"""

from __future__ import annotations

import math
from typing import NamedTuple, SupportsFloat

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression
from scipy.special import gammaln, ndtr

from skdp._limits import CLEAR, NEGLIGIBLE, FloatArray
from skdp.answer import NOTHING, Answer
from skdp.solvers import linalg
from skdp.solvers.verdict import evidence, nonnegative, on_their_own


def released_count(value: SupportsFloat, noise_scale: float) -> float:
    """Return a released number of rows, at least 1 and two deviations of its noise: a divisor."""
    return max(1.0, float(value), 2 * noise_scale)


class ReleasedMoment(NamedTuple):
    """A released second moment about a public or released centre.

    Attributes
    ----------
    scatter : array of shape (d, d)
        Sum over rows of (x - mean)(x - mean)', noisy.
    mean : array of shape (d,)
        The centre.
    n : float
        Number of rows, public or released; at least 1.
    noise_scale : float
        Standard deviation of the noise on the diagonal of `scatter`.
    mean_noise_bias : Answer
        What the error of a released mean adds to `scatter` in one direction.
    """

    scatter: FloatArray
    mean: FloatArray
    n: float
    noise_scale: float
    mean_noise_bias: Answer = NOTHING


def split_moment(
    moment: FloatArray, bias: float, noise_scale: float, clip_norm: float, n: float | None
) -> ReleasedMoment:
    """Read X'X about its mean, the mean and n from a released [X, c]'[X, c].

    With few rows the noise on n and on the sums can exceed them: n is kept above two standard
    deviations of its noise and the mean inside the ball of the clip norm, both of them public.
    Noise on n and on the sums is noise along the mean m, 1 + |m|^2/c^2 times that elsewhere and
    |m|/c times that of products with it, which alone make an eigenvalue of half of the edge.
    """
    sums = moment[:-1, -1] / bias
    if n is None:
        n = released_count(moment[-1, -1] / bias**2, noise_scale / bias**2)
    mean = inside_ball(sums / n, clip_norm)
    scatter = moment[:-1, :-1] - n * np.outer(mean, mean)
    lever = float(np.linalg.norm(mean)) / bias
    error = mean_noise_bias(noise_scale / math.sqrt(2) / bias, n, len(mean))
    value = error.value + lever * linalg.symmetric_noise_edge(noise_scale, len(mean)) / 2
    noise = math.hypot(error.noise_scale, (1 + lever**2) * noise_scale)
    return ReleasedMoment(scatter, mean, n, noise_scale, Answer(value, noise))


def inside_ball(mean: FloatArray, radius: float) -> FloatArray:
    """Return a released mean, moved into the ball that holds all rows."""
    length = float(np.linalg.norm(mean))
    return mean * (radius / length) if length > radius else mean


def shrunk_mean(
    sums: FloatArray, noise_scale: float, n: float, radius: float
) -> tuple[FloatArray, float]:
    """Return the mean of n rows from noisy sums, and the factor by which entries were shrunk.

    Entries that differ mostly by noise are shrunk to their mean, or to 0 if that is noise (James
    and Stein), because a noisy centre increases the norms of the rows about it.
    """
    d, common = len(sums), float(np.mean(sums))
    common *= abs(common) * math.sqrt(d) > CLEAR * noise_scale
    deviations = sums - common
    square, noise = float(deviations @ deviations), max(d - 2, 0) * noise_scale**2
    shrinkage = linalg.signal_share(square, noise) if noise > 0.5 * square else 1.0
    return inside_ball((common + shrinkage * deviations) / n, radius), shrinkage


def subspace_attributes(
    values: FloatArray, V: FloatArray, total: float, n: float, rank: float
) -> dict[str, FloatArray | float | int]:
    """Return the fitted attributes of PCA from Ritz pairs and the released total of squares."""
    k = V.shape[1]
    degrees = max(1.0, n - 1)
    variances = values / degrees
    kept = float(variances.sum())
    variance = max(total / degrees, kept)
    spare = max(rank - k, 1.0) if rank > k else math.inf
    return {
        "components_": linalg.components_of(V),
        "explained_variance_": variances,
        "explained_variance_ratio_": variances / variance if variance > 0 else np.zeros(k),
        "singular_values_": np.sqrt(values),
        "noise_variance_": (variance - kept) / spare,
        "n_components_": k,
    }


def shares_shown(values: FloatArray, trace: float, noise_scale: float, d: int) -> FloatArray:
    """Return the fraction of a trace along each eigenvector, without the noise; 0 below its level.

    One of a value w beyond the edge E of the noise holds sqrt(w^2 - E^2), as in `wigner`.
    """
    edge, excess = linalg.symmetric_noise_edge(noise_scale, d), values - trace / d
    clear = excess > linalg.detection_limit(edge, d)
    signal = np.sqrt(np.maximum(excess**2 - edge**2, 0.0))
    return np.where(clear, signal / max(trace, edge, 1e-300), 0.0)


def held_by_eigenvectors(
    values: FloatArray, k: int, noise_scale: float, apart: float = 1 / 3
) -> tuple[FloatArray, float]:
    """Return the noiseless values along k leading eigenvectors of a noisy matrix, and the error.

    They follow the noise N: by E[<N, F>] = s^2 E[div F] (Stein) that of a value w holds
    s^2 sum 1/(w - w') less than w, over all other values w' (in the limit of large d: Bun, Allez,
    Bouchaud, Potters, IEEE Trans. Inf. Theory 2016). Differences below `apart` noise scales count
    less: with a larger one each has less error, and their sum more bias. The error is that of the
    sum, with about what these leave of the bias.
    """
    if noise_scale == 0.0:
        return values[:k], 0.0
    gaps = (values[:k, None] - values) / noise_scale
    slopes, left = gaps / (gaps**2 + apart**2), apart**2 * (gaps**2 + apart**2) ** -1.5
    error = math.sqrt(k + float(np.sum(slopes[:, k:] ** 2) + np.sum(left[:, k:]) ** 2))
    return values[:k] - noise_scale * slopes.sum(axis=1), noise_scale * error


def infer_dimension(variances: FloatArray, n: float) -> int:
    """Minka's maximum-likelihood choice of the dimension (NIPS 2000), from released variances."""
    d, largest = len(variances), float(variances[0])
    if not largest > 0:
        return 1
    v = np.maximum(variances / largest, 0.0)  # the choice does not depend on the scale
    most = int(np.count_nonzero(v >= NEGLIGIBLE))  # what is rounding is no component
    scores = [_minka_score(np.maximum(v, NEGLIGIBLE), k, n) for k in range(1, min(d - 1, most) + 1)]
    return 1 + int(np.argmax(scores)) if scores else 1


def _minka_score(v: FloatArray, k: int, n: float) -> float:
    d = len(v)
    half = np.arange(d, d - k, -1) / 2
    log_volume = float(np.sum(gammaln(half) - math.log(math.pi) * half)) - k * math.log(2.0)
    noise_variance = max(1e-300, float(v[k:].sum()) / (d - k))
    fit = -float(np.sum(np.log(v[:k]))) * n / 2 - math.log(noise_variance) * n * (d - k) / 2
    m = d * k - k * (k + 1) / 2
    floored = np.where(np.arange(d) < k, v, noise_variance)
    a, b = np.triu_indices(k, 1, d)
    curvature = (1 / floored[b] - 1 / floored[a]) * (v[a] - v[b])
    log_hessian = float(np.sum(np.log(np.maximum(curvature, 1e-300)) + math.log(n)))
    laplace = math.log(2 * math.pi) * (m + k) / 2
    return log_volume + fit + laplace - log_hessian / 2 - k * math.log(n) / 2


def count_components(
    rule: int | float | str | None, variances: FloatArray, n: float, limit: int, total: float = 0.0
) -> int:
    """Turn an `n_components` rule into a number, from public numbers and released variances.

    A float is a share of the sum of the variances, or of a larger released `total`; "auto" counts
    those that are not 0.
    """
    if rule is None:
        return limit
    if isinstance(rule, str):
        found = infer_dimension(variances, n) if rule == "mle" else np.count_nonzero(variances)
        return min(limit, int(found))
    if isinstance(rule, float) and rule < 1.0:
        ratios = np.cumsum(variances / max(float(variances.sum()), total, 1e-300))
        return min(limit, int(np.searchsorted(ratios, rule, side="right")) + 1)
    return int(rule)


def mean_noise_bias(noise_scale: float, n: float, d: float, count_noise: float = 0.0) -> Answer:
    """Return the squared norm that the error of a released mean adds to n rows about it.

    `noise_scale` is that of the sums, `count_noise` what noise on n adds to n times the mean: the
    result is a sum of d squares of normal numbers and one more. A mean that was shrunk has fewer
    (Stein). Such sums have heavy tails, so the returned noise scale is 1.5 times the standard
    deviation: about one sum in a hundred lies beyond twice that.
    """
    spread = 3 / math.sqrt(2) * math.hypot(math.sqrt(d) * noise_scale**2, count_noise**2)
    return Answer(np.asarray(d * noise_scale**2 + count_noise**2) / n, spread / n)


def pca_attributes(
    released: ReleasedMoment, rule: int | float | str | None, limit: int, rank: float
) -> tuple[dict[str, FloatArray | float | int], int]:
    """Return the fitted attributes of PCA, and how many components exceed the noise.

    `limit` is the largest number of components, `rank` the smaller of n and d: scikit-learn
    averages the remaining variance over ``rank - n_components`` directions.
    """
    d = len(released.mean)
    edge, bias = linalg.symmetric_noise_edge(released.noise_scale, d), released.mean_noise_bias
    values, vectors = linalg.top_eigenpairs(released.scatter)
    degrees = max(1.0, released.n - 1)
    held = held_by_eigenvectors(values, d, released.noise_scale)[0]
    variances = nonnegative(isotonic_regression(held, increasing=False).x) / degrees
    total = float(np.trace(released.scatter)) / degrees
    clear = np.where(values > linalg.detection_limit(edge, d), variances, 0.0)
    clear[on_their_own(clear, Answer(np.asarray(degrees), 0.0), bias) :] = 0.0
    k = count_components(rule, clear if rule == "auto" else variances, released.n, limit, total)
    found = np.count_nonzero(clear[:k])
    pairs = degrees * variances[:k] * (found > 0), vectors[:, :k]
    attributes = subspace_attributes(*pairs, degrees * total, released.n, rank)
    return attributes | {"mean_": released.mean}, int(found)


def svd_variances(
    squares: FloatArray, components: FloatArray, means: FloatArray, mean_square: float, n: float,
    noise: float,
) -> dict[str, FloatArray]:  # fmt: skip
    """Return the fitted attributes of TruncatedSVD.

    `squares` are squared singular values, `means` the released column means with noise of standard
    deviation `noise`, `mean_square` the mean of ||x||^2. The variance of a projected row v.x is
    lambda/n - (v.mean)^2; the noise adds its own square to each of these, which is taken off.
    """
    variances = nonnegative(squares / n - np.maximum((components @ means) ** 2 - noise**2, 0.0))
    length = max(float(means @ means) - len(means) * noise**2, 0.0)
    total = max(mean_square - length, float(variances.sum()), 1e-300)
    return {
        "components_": components,
        "singular_values_": np.sqrt(squares),
        "explained_variance_": variances,
        "explained_variance_ratio_": variances / total,
    }


def user_level_mu(mu: float, n_items: int, degree_floor: int, number_share: float = 0.0) -> float:
    """Return the Gaussian-DP parameter for all interactions of a user, in the worst case.

    A user's row has norm at most 1, so it moves a product with Q by at most ||Q||_2 <= sqrt(p), for
    queries with ||Q||_F^2 = p. The noise was sized for one interaction, which with e = min(d0, n)
    moves it by at least sqrt((2e - 1) p / (n d0^2)). The trace moves by e/d0, for 1/d0; the number
    of all interactions, with a share of its own, by n, for 1.
    """
    e = min(degree_floor, n_items)
    product = degree_floor * math.sqrt(n_items / (2 * e - 1))
    others = max(product, float(e)) * math.sqrt(1 - number_share)
    return mu * math.hypot(others, n_items * math.sqrt(number_share))


def model_covariance(
    components: FloatArray, variances: FloatArray, noise_variance: float
) -> FloatArray:
    """Return the covariance of the probabilistic PCA model."""
    excess = np.maximum(variances - noise_variance, 0.0)
    covariance = (components.T * excess) @ components
    covariance.flat[:: len(covariance) + 1] += noise_variance
    return np.asarray(covariance)


def model_precision(
    components: FloatArray, variances: FloatArray, noise_variance: float
) -> FloatArray:
    """Return the inverse of `model_covariance`, through the small k x k system where it exists."""
    k, d = components.shape
    if noise_variance == 0.0 or k == d:
        covariance = model_covariance(components, variances, noise_variance)
        return np.asarray(np.linalg.pinv(covariance, hermitian=True))
    excess = np.maximum(variances - noise_variance, 0.0)
    scaled = components * np.sqrt(excess)[:, None]
    inner = scaled @ scaled.T + noise_variance * np.eye(k)
    return np.asarray((np.eye(d) - scaled.T @ np.linalg.solve(inner, scaled)) / noise_variance)


# Principal components from one sketch of the second moment, where d x d numbers are too many.
#
# Notation: Y = A Q + N is the released sketch of A = sum over rows of (x - mean)(x - mean)', Q is
# d x t with orthonormal columns, N has standard deviation s.


def sketch_size(k: int, d: int) -> int:
    """Columns of a sketch for k components of d features (spec: 20 each)."""
    return min(d, max(20 * k, 50))


def sketch_attributes(
    Y: FloatArray, Q: FloatArray, noise_scale: float, total: float, n: float, k: int
) -> dict[str, FloatArray | float | int]:
    """Return the fitted attributes of PCA from a sketch and the released total of squares.

    U are the left singular vectors of Y above the edge s (sqrt d + sqrt t) of the noise, at least k
    and at most 2k; A is fitted as U M U' by M = (U'Y) (U'Q)^+, made symmetric and positive.
    """
    d, t = Q.shape
    left, sizes, _ = np.linalg.svd(Y, full_matrices=False)
    above = int(np.count_nonzero(sizes > noise_scale * (math.sqrt(d) + math.sqrt(t))))
    U = left[:, : min(t, max(k, min(above, 2 * k)))]
    M = (U.T @ Y) @ np.linalg.pinv(U.T @ Q)
    values, vectors = np.linalg.eigh((M + M.T) / 2)
    order = np.argsort(-values, kind="stable")[:k]
    V = U @ vectors[:, order]
    kept = np.maximum(values[order], 0.0)
    return subspace_attributes(kept, V, max(total, float(kept.sum())), n, min(n, d))


# A linear regression from released moments. Everything here is free post-processing.
#
# Notation: A = X'X and B = X'Y (d x q) about the released means, both with noise of standard
# deviation s on an entry (sqrt(2) s on the diagonal of A); lambda, W the eigenpairs of A.


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
    weight, bias column : float
        Released weight of all records, and the bias column that it was read with; zeros without an
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


def drawn(mean: FloatArray, noise: FloatArray | float) -> FloatArray:
    """Return released means about a centre, each shrunk to it as far as noise explains it."""
    clear = np.abs(mean) > noise
    noise_ratio = np.where(clear, noise, 0.0) / np.where(clear, mean, 1.0)
    return np.where(clear, mean * (1 - noise_ratio**2), 0.0)


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
    seen : array of bool, shape (q,)
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
    seen: NDArray[np.bool_]
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
