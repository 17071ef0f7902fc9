"""What a spectrum says beside its noise: how far noise alone reaches, and cumulative shares."""

import math

import numpy as np

from skdp.privacy.streams.correlated import stream_schedule
from skdp.solvers.linalg import symmetric_noise_edge
from skdp.solvers.postprocess import clear_edge, debias_eigenvalues, mean_push

_SYMMETRIC = ("gram", "moment", "votes", "pairs")
_SKETCHES = ("matrix", "right_sketch", "left_sketch")
_PRODUCTS = ("tangent_product", "gram_product", "right_product", "left_product", "product")
# Of order k: where the values themselves were read. Edge over the noise scale times sqrt(k).
_READ_OFF = {"projected_gram": math.sqrt(2), "ritz": math.sqrt(2), "core": 2.0}


def released_values(estimator):
    """Return (values, what they are, whether `noise_edge` is in their unit)."""
    values = getattr(estimator, "eigenvalues_", None)
    if values is not None:
        return values, "eigenvalue (released)", True
    values = getattr(estimator, "singular_values_", None)
    if values is None:
        raise ValueError(
            f"{type(estimator).__name__} released no spectrum: it has neither 'eigenvalues_' nor "
            "'singular_values_'. Use SpectrumDisplay.from_values."
        )
    if hasattr(estimator, "left_") or hasattr(estimator, "coef_"):
        known = hasattr(estimator, "left_")
        return values, "singular value (released)", known
    return values**2, "squared singular value (unit of X, squared)", True


def noise_edge(estimator, n_values):
    """Return what noise alone shows at most (but once in a hundred fits); None if it is not known.

    All of it comes from the ledger, in the unit of the values that are shown: those of rows have
    the push of the noise taken off, and so has their edge.
    A released symmetric matrix of order d: sigma sqrt(2 d). Products of T releases with n rows:
    sigma sqrt(n / T), as far as they average. The smallest of them says which directions are found.
    Their values may come from a later release of order k, and its noise may be larger: then that
    counts. Noisy sketches (or the matrix itself) of shape m x n: sigma (sqrt(m) + sqrt(n)),
    and what is found rises above both.
    """
    lines = estimator.ledger_
    if {line.name for line in lines} & set(_SKETCHES):
        return max(sketch_edge(estimator, line) for line in lines) or None
    edges, push = [], _push_of_mean(estimator)
    for name in {line.name for line in lines}:
        scales = [release_noise(estimator, line) for line in lines if line.name == name]
        if name in _SYMMETRIC:
            d = estimator.n_features_in_ + (name == "moment")
            scale = min(scales) / math.sqrt(len(scales))
            edges.append(_shown(estimator, scale, d, push))
        elif name in _PRODUCTS:
            precision = sum(1 / scale**2 for scale in scales if scale > 0)
            size = estimator.n_features_in_
            if name == "right_product":
                size = len(
                    getattr(estimator, "left_", getattr(estimator, "embedding_", range(size)))
                )
            edge = math.sqrt(size / precision) if precision else 0.0
            edges.append(edge + push)
    read_off = [
        _shown(estimator, line.noise_scale * factor / math.sqrt(2), n_values, push)
        for line in lines
        if (factor := _READ_OFF.get(line.name))
    ]
    return max(min(edges, default=0.0), max(read_off, default=0.0)) or None


def _shown(estimator, scale, order, push):
    """Return what symmetric noise of an order shows, as the estimator shows its values."""
    edge = symmetric_noise_edge(scale, order)
    clear = clear_edge(edge, order) + push
    return float(debias_eigenvalues(np.array([clear]), edge)[0]) if _is_pca(estimator) else clear


def _is_pca(estimator):
    return hasattr(estimator, "components_") and not hasattr(estimator, "left_")


def _push_of_mean(estimator):
    """Return what the error of a mean that was released by itself adds to the moment about it.

    The last mean counts, with those before it that were pooled with it: sums of the same rows, so
    of the same noise.
    """
    sums = [line.noise_scale for line in estimator.ledger_ if line.name == "sums"]
    if not sums or not hasattr(estimator, "n_samples_") or not hasattr(estimator, "mean_"):
        return 0.0
    pooled = sums[-1] / math.sqrt(sums.count(sums[-1]))
    return mean_push(pooled, max(1, estimator.n_samples_), estimator.n_features_in_)


def release_noise(estimator, line):
    """Return the noise of the last release: a stream has more of it than its ledger line shows."""
    steps = getattr(estimator, "n_releases_", None)
    if steps is None or " stream of " not in line.mechanism:
        return line.noise_scale
    mechanism = "sqrt" if "square-root" in line.mechanism else "tree"
    window = getattr(estimator, "window", None)
    schedule = stream_schedule(1, estimator.max_releases, mechanism, window)
    return line.noise_scale * schedule.unit * schedule.noise_factor(steps)


def sketch_edge(estimator, line):
    """Return the edge of the noise of one sketch of a factorizer; 0 for other releases."""
    m, n = len(estimator.left_), estimator.n_features_in_
    shapes = {
        "matrix": (m, n),
        "right_sketch": (m, estimator.sketch_size_),
        "left_sketch": (estimator.core_size_, n),
    }
    a, b = shapes.get(line.name, (0, 0))
    return release_noise(estimator, line) * (math.sqrt(a) + math.sqrt(b))


def cumulative_share(estimator):
    """Return (shares, deviations): of the variance that the first components hold, from the ledger.

    A sum of j eigenvalues of a moment with noise s on its diagonal has the noise s sqrt(j), the
    other d - j directions have s sqrt(d - j); a total that was released by itself has its own. The
    push of the noise on an eigenvalue is known to half of itself. None where the total was not
    released.
    """
    ratios = getattr(estimator, "explained_variance_ratio_", None)
    if ratios is None or not hasattr(estimator, "noise_variance_") or not np.any(ratios > 0):
        return None
    values = np.square(np.asarray(estimator.singular_values_, np.float64))
    total = float(values.sum() / np.sum(ratios))
    shares, number = np.cumsum(values) / total, np.arange(1, len(values) + 1)
    noise = {line.name: release_noise(estimator, line) for line in estimator.ledger_}
    if "trace" in noise:
        scale, order = noise.get("projected_gram", math.nan), len(values)
        square = scale**2 * number + (shares * noise["trace"]) ** 2
    else:
        scale, order = noise.get("gram", noise.get("moment", math.nan)), estimator.n_features_in_
        square = scale**2 * ((1 - shares) ** 2 * number + shares**2 * np.maximum(order - number, 0))
    edge = symmetric_noise_edge(scale, order)
    push = edge**2 / (4 * np.maximum(values, max(edge / 2, 1e-300)))
    deviations = np.sqrt(square + np.square(np.cumsum(push) / 2)) / total
    return (shares, deviations) if np.isfinite(deviations).all() else None
