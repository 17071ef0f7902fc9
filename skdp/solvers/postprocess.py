"""From released moments to attributes of components: all of it post-processing.

Notation: A is the released second moment X'X of d features, n the released (or public) number of
rows, s the standard deviation of the noise on A's diagonal (off the diagonal it is s / sqrt(2)).
"""

from __future__ import annotations

import math
from typing import NamedTuple, SupportsFloat

import numpy as np
from scipy.optimize import isotonic_regression
from scipy.special import gammaln

from skdp._limits import CLEAR, NEGLIGIBLE, FloatArray
from skdp.answer import NOTHING, Answer
from skdp.solvers import linalg
from skdp.solvers.verdict import nonnegative, on_their_own


def released_count(value: SupportsFloat, noise_scale: float) -> float:
    """Return a released number of rows, at least 1 and two deviations of its noise: a divisor."""
    return max(1.0, float(value), 2 * noise_scale)


def denoised(mean: FloatArray, noise: FloatArray | float) -> FloatArray:
    """Return released means about a centre, each shrunk to it as far as noise explains it."""
    clear = np.abs(mean) > noise
    noise_ratio = np.where(clear, noise, 0.0) / np.where(clear, mean, 1.0)
    return np.where(clear, mean * (1 - noise_ratio**2), 0.0)


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
    values: FloatArray, V: FloatArray, total: Answer, n: float, rank: float
) -> dict[str, FloatArray | float | int]:
    """Return the fitted attributes of PCA from Ritz pairs and the released total of squares.

    What the pairs leave of the total counts as at least its noise: rows are impossible in a model
    without variance there.
    """
    k = V.shape[1]
    degrees = max(1.0, n - 1)
    variances = values / degrees
    kept = float(variances.sum())
    variance = max(float(total.value) / degrees, kept)
    left = max(variance - kept, total.noise_scale / degrees)
    spare = max(rank - k, 1.0) if rank > k else math.inf
    return {
        "components_": linalg.components_of(V),
        "explained_variance_": variances,
        "explained_variance_ratio_": variances / variance if variance > 0 else np.zeros(k),
        "singular_values_": np.sqrt(values),
        "noise_variance_": left / spare,
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
    trace = Answer(np.asarray(degrees * total), math.sqrt(d) * released.noise_scale)
    attributes = subspace_attributes(*pairs, trace, released.n, rank)
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


def user_level_mu(mu: float, n_items: int, degree_floor: int, number_share: float) -> float:
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
    """Columns of a sketch for k components of d features."""
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
    return subspace_attributes(kept, V, Answer(np.asarray(total), 0.0), n, min(n, d))
