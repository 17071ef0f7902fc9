"""From released moments to the attributes of PCA. Everything here is free post-processing.

Notation: A is the released second moment X'X of d features, n the released (or public) number of
rows, s the standard deviation of the noise on A's diagonal (off the diagonal it is s / sqrt(2)).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from skdp.answer import Answer, released_count
from skdp.solvers.linalg import fix_signs, symmetric_noise_edge, top_eigenpairs

FloatArray = NDArray[np.float64]
_ROUNDING = 1e-15  # of an eigenvalue, relative to the largest and the dimension
_NOTHING = 1e-15  # stands for a variance of zero in a logarithm


@dataclass(frozen=True)
class ReleasedMoment:
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
    mean_push : float
        What the error of a released mean may add to `scatter` in one direction.
    """

    scatter: FloatArray
    mean: FloatArray
    n: float
    noise_scale: float
    mean_push: float = 0.0


def split_moment(
    moment: FloatArray, corner: float, noise_scale: float, clip_norm: float, n: float | None
) -> ReleasedMoment:
    """Read X'X about its mean, the mean and n from a released [X, c]'[X, c].

    With few rows the noise on n and on the sums can exceed them: n is kept above two standard
    deviations of its noise and the mean inside the ball of the clip norm, both of them public.
    """
    sums = moment[:-1, -1] / corner
    if n is None:
        n = released_count(moment[-1, -1] / corner**2, noise_scale / corner**2)
    mean = inside_ball(sums / n, clip_norm)
    scatter = moment[:-1, :-1] - n * np.outer(mean, mean)
    push = mean_push(noise_scale / math.sqrt(2) / corner, n, len(mean))
    return ReleasedMoment(scatter, mean, n, noise_scale, push)


def inside_ball(mean: FloatArray, radius: float) -> FloatArray:
    """Return a released mean, moved into the ball that holds all rows."""
    length = float(np.linalg.norm(mean))
    return mean * (radius / length) if length > radius else mean


def shrunk_mean(
    sums: FloatArray, noise_scale: float, n: float, radius: float
) -> tuple[FloatArray, float]:
    """Return the mean of n rows from noisy sums, and by what factor it was shrunk towards zero.

    A mean that is mostly noise is shrunk by as much (James and Stein), down to nothing: rows about
    a centre of noise alone are longer than rows about zero.
    """
    square = float(sums @ sums)
    noise = max(len(sums) - 2, 0) * noise_scale**2
    kept = max(1 - noise / max(square, 1e-300), 0.0) if noise > 0.5 * square else 1.0
    return inside_ball(kept * sums / n, radius), kept


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
        "components_": fix_signs(np.ascontiguousarray(V.T)),
        "explained_variance_": variances,
        "explained_variance_ratio_": variances / variance if variance > 0 else np.zeros(k),
        "singular_values_": np.sqrt(values),
        "noise_variance_": (variance - kept) / spare,
        "n_components_": k,
    }


def debias_eigenvalues(values: FloatArray, edge: float) -> FloatArray:
    """Undo the push of symmetric noise with spectral edge R: t -> t + R^2/(4t), then floor at 0."""
    inside = np.maximum(values**2 - edge**2, 0.0)
    return np.asarray(np.maximum((values + np.sqrt(inside)) / 2, 0.0))


def infer_dimension(variances: FloatArray, n: float) -> int:
    """Minka's maximum-likelihood choice of the dimension (NIPS 2000), from released variances."""
    d = len(variances)
    largest = float(variances[0])
    if not largest > 0:
        return 1
    v = np.maximum(variances / largest, 0.0)  # the choice does not depend on the scale
    v[v < _ROUNDING * d] = 0.0
    most = int(np.count_nonzero(v))  # what is rounding is no component
    scores = [_minka_score(np.maximum(v, _NOTHING), k, n) for k in range(1, min(d - 1, most) + 1)]
    return 1 + int(np.argmax(scores)) if scores else 1


def _minka_score(v: FloatArray, k: int, n: float) -> float:
    d = len(v)
    i = np.arange(1, k + 1)
    log_volume = -k * math.log(2.0) + float(
        np.sum(gammaln((d - i + 1) / 2) - math.log(math.pi) * (d - i + 1) / 2)
    )
    rest = max(1e-300, float(v[k:].sum()) / (d - k))
    fit = -float(np.sum(np.log(v[:k]))) * n / 2 - math.log(rest) * n * (d - k) / 2
    m = d * k - k * (k + 1) / 2
    floored = np.where(np.arange(d) < k, v, rest)
    a, b = np.triu_indices(d, 1)
    used = a < k
    a, b = a[used], b[used]
    curvature = (1 / floored[b] - 1 / floored[a]) * (v[a] - v[b])
    log_hessian = float(np.sum(np.log(np.maximum(curvature, 1e-300)) + math.log(n)))
    laplace = math.log(2 * math.pi) * (m + k) / 2
    return log_volume + fit + laplace - log_hessian / 2 - k * math.log(n) / 2


def count_components(
    rule: int | float | str | None,
    variances: FloatArray,
    n: float,
    edge: float,
    limit: int,
    total: float = 0.0,
) -> int:
    """Turn an `n_components` rule into a number, from public numbers and released variances.

    A float is a share of the sum of the variances, or of a larger released `total`.
    """
    if rule is None:
        return limit
    if isinstance(rule, str):
        if rule == "mle":
            return min(limit, infer_dimension(variances, n))
        return min(limit, int(np.count_nonzero(variances > edge)))
    if isinstance(rule, float) and rule < 1.0:
        ratios = np.cumsum(variances / max(float(variances.sum()), total, 1e-300))
        return min(limit, int(np.searchsorted(ratios, rule, side="right")) + 1)
    return int(rule)


def clear_edge(edge: float, d: int) -> float:
    """Return what noise alone exceeds once in a hundred: the edge, and its spread for small d."""
    return float(edge * (1 + d ** (-2 / 3)))


def mean_push(noise_scale: float, n: float, d: int) -> float:
    """Return the squared length that the error of a released mean adds to n rows about it.

    `noise_scale` is that of the sums; a chi square of d degrees is less but once in a hundred.
    """
    return noise_scale**2 / n * (d + 3 * math.sqrt(2 * d))


def variance_doubt(variances: FloatArray, n: Answer, noise_scale: float, push: float) -> float:
    """Return about how far known noise moves the largest variance, relative to it.

    `n` is the number of rows and the noise in it, `noise_scale` that of the diagonal of the
    moment, `push` what the error of a released mean may add to it: half of that is ordinary.
    """
    total = float(n.value) * max(float(np.max(variances, initial=0.0)), 1e-300)
    parts = n.noise_scale / float(n.value), noise_scale / total, push / (2 * total)
    return math.hypot(*parts)


def pca_attributes(
    released: ReleasedMoment, rule: int | float | str | None, limit: int, rank: float
) -> dict[str, FloatArray | float | int]:
    """Return the fitted attributes of PCA.

    `limit` is the largest number of components, `rank` the smaller of n and d: scikit-learn
    averages the remaining variance over ``rank - n_components`` directions.
    """
    d = len(released.mean)
    edge = symmetric_noise_edge(released.noise_scale, d)
    few = rule if isinstance(rule, int) and rule > 0 else None
    values, vectors = top_eigenpairs(released.scatter, few)
    degrees = max(1.0, released.n - 1)
    variances = debias_eigenvalues(values, edge) / degrees
    counted = values / degrees if rule == "auto" else variances
    total = float(np.trace(released.scatter)) / degrees
    clear = clear_edge(edge, d) + released.mean_push
    k = count_components(rule, counted, released.n, clear / degrees, limit, total)
    variances = variances[:k]
    kept = float(variances.sum())
    total = max(total, kept)
    spare = max(rank - k, 1.0) if rank > k else math.inf
    return {
        "components_": fix_signs(vectors[:, :k].T),
        "explained_variance_": variances,
        "explained_variance_ratio_": variances / total if total > 0 else np.zeros(k),
        "singular_values_": np.sqrt(variances * degrees),
        "noise_variance_": (total - kept) / spare,
        "mean_": released.mean,
        "n_components_": k,
    }


def svd_variances(
    squares: FloatArray,
    components: FloatArray,
    means: FloatArray,
    mean_square: float,
    n: float,
    noise: float,
) -> dict[str, FloatArray]:
    """Return the fitted attributes of TruncatedSVD.

    `squares` are squared singular values, `means` the released column means with noise of standard
    deviation `noise`, `mean_square` the mean of ||x||^2. The variance of a projected row v.x is
    lambda/n - (v.mean)^2; the noise adds its own square to ||mean||^2, which is taken off.
    """
    variances = np.maximum(squares / n - (components @ means) ** 2, 0.0)
    length = max(float(means @ means) - len(means) * noise**2, 0.0)
    total = max(mean_square - length, float(variances.sum()), 1e-300)
    return {
        "components_": components,
        "singular_values_": np.sqrt(squares),
        "explained_variance_": variances,
        "explained_variance_ratio_": variances / total,
    }


def user_level_mu(mu: float, n_items: int, degree_floor: int) -> float:
    """Return the Gaussian-DP parameter for all interactions of a user, in the worst case.

    A user's row has norm at most 1, so it moves a product with Q by at most ||Q||_2 <= sqrt(p), for
    queries with ||Q||_F^2 = p. The noise was sized for one interaction, which with e = min(d0, n)
    moves it by at least sqrt((2e - 1) p / (n d0^2)). The trace moves by e/d0, for 1/d0.
    """
    e = min(degree_floor, n_items)
    product = degree_floor * math.sqrt(n_items / (2 * e - 1))
    return mu * max(product, float(e))


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
    if k == 0:
        return np.asarray(np.eye(d) / noise_variance)
    if noise_variance == 0.0 or k == d:
        covariance = model_covariance(components, variances, noise_variance)
        return np.asarray(np.linalg.pinv(covariance, hermitian=True))
    excess = np.maximum(variances - noise_variance, 0.0)
    scaled = components * np.sqrt(excess)[:, None]
    inner = scaled @ scaled.T + noise_variance * np.eye(k)
    return np.asarray((np.eye(d) - scaled.T @ np.linalg.solve(inner, scaled)) / noise_variance)


def log_likelihood_rows(centred: FloatArray, precision: FloatArray) -> FloatArray:
    """Return the Gaussian log-likelihood of each centred row."""
    d = centred.shape[1]
    quadratic = np.einsum("ij,ij->i", centred, centred @ precision)
    log_det = float(np.linalg.slogdet(precision)[1])
    return np.asarray(-0.5 * (quadratic + d * math.log(2.0 * math.pi) - log_det))
