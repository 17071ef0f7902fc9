"""Other methods as their authors calibrate them, to compare with; none is offered by the package.

Noise here is numpy's floating-point noise and some calibrations protect less than their promise (a
docstring says so): use nothing of this on private data. Rows have norm at most 1 throughout.

Notation: n rows, d features, k components, V (d x p) an iterate, m = sigma the noise multiplier.
"""

import math

import numpy as np
import scipy.linalg
import scipy.sparse as sp

from skdp.privacy.accounting.losses import mu_from_epsilon_delta
from skdp.privacy.gate.bounds import PrivacyBudget
from skdp.privacy.gate.session import PrivacySession
from skdp.privacy.noise.words import make_source
from skdp.queries.interactions import InteractionQuery

POWER_STEPS, EXTRA = 3, 6


# -- noise multipliers ---------------------------------------------------------------------------


def textbook_multiplier(epsilon, delta):
    """sqrt(2 ln(1.25/delta))/epsilon: proved for epsilon <= 1 only, and loose there."""
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def paper_multiplier(epsilon, delta, n_steps):
    """sqrt(4 L ln(1/delta))/epsilon for each of L steps (Nicolas et al. 2024, Hardt-Price 2014).

    The proof needs epsilon <= 2.34 ln(1/delta); beyond that the noise is too small.
    """
    if epsilon > 8 * (1 - math.sqrt(0.5)) * math.log(1 / delta):
        raise ValueError(f"the calibration has no proof at epsilon={epsilon}")
    return math.sqrt(4 * n_steps * math.log(1 / delta)) / epsilon


def exact_multiplier(epsilon, delta, n_steps=1):
    """The smallest multiplier that n_steps Gaussian releases may have."""
    return math.sqrt(n_steps) / mu_from_epsilon_delta(epsilon, delta)


# -- moments with noise --------------------------------------------------------------------------


def _top_rows(M, k):
    d = len(M)
    return scipy.linalg.eigh(M, subset_by_index=(d - k, d - 1))[1].T[::-1]


def _dense_gram(X):
    G = X.T @ X
    return G.toarray() if sp.issparse(G) else G


def _factor(adjacency):
    return math.sqrt(2) if adjacency == "replace" else 1.0


def analyze_gauss(X, k, epsilon, delta, adjacency, rng):
    """Analyze-Gauss as in textbooks: noise on the upper triangle, copied; the classic sigma."""
    scale = textbook_multiplier(epsilon, delta) * _factor(adjacency)
    G = scale * rng.standard_normal((X.shape[1],) * 2)
    return _top_rows(_dense_gram(X) + np.triu(G) + np.triu(G, 1).T, k)


def symmetric_gaussian(X, k, epsilon, delta, adjacency, rng, share=1.0, change=1.0):
    """Exact accounting and (G + G')/2: the one-shot method at its best.

    `change`: of the moment, by one unit more.
    """
    scale = change * exact_multiplier(epsilon, delta) * _factor(adjacency) / math.sqrt(share)
    G = scale * rng.standard_normal((X.shape[1],) * 2)
    return _top_rows(_dense_gram(X) + (G + G.T) / 2, k)


def screened_gaussian(X, k, epsilon, delta, rng):
    """Columns above four noise scales (a tenth of the budget), then the symmetric Gaussian."""
    scale = exact_multiplier(epsilon, delta) / math.sqrt(0.1)
    sums = np.asarray(X.sum(axis=0)).ravel() + scale * rng.standard_normal(X.shape[1])
    n_kept = min(max(4 * k, int(np.count_nonzero(sums > 4 * scale))), 4000)
    kept = np.argsort(-sums)[:n_kept]
    narrow = X.tocsc()[:, kept].tocsr()
    components = np.zeros((k, X.shape[1]))
    args = (epsilon, delta, "add_remove", rng)
    components[:, kept] = symmetric_gaussian(narrow, k, *args, share=0.9)
    return components


def entry_analyze_gauss(A, epsilon, delta, rng, *, symmetric):
    """A plus the textbook noise on each entry that may change by 1 (or on the upper triangle)."""
    G = textbook_multiplier(epsilon, delta) * rng.standard_normal(A.shape)
    A = A.toarray() if sp.issparse(A) else A
    return A + (np.triu(G, 1) + np.triu(G, 1).T if symmetric else G)


def clips(X):
    """Levels of the lengths of rows that an oracle chooses from."""
    return np.quantile(np.linalg.norm(X, axis=1), (0.1, 0.25, 0.5, 0.75, 0.9, 1.0))


def cut(X, length):
    """Rows of at most this length."""
    return X * np.minimum(1.0, length / np.maximum(np.linalg.norm(X, axis=1), 1e-300))[:, None]


def popular(X, k, epsilon, delta, rng, *, clipped=False, entry=False, sums_too=False):
    """The k columns of largest sum, or the sums and k - 1 of these, with the whole budget.

    A row of norm 1 (or one entry of 1) moves the sums by 1; `clipped` cuts rows at their median
    length first, which is taken as public.
    """
    if clipped:
        X = cut(X, float(np.median(np.linalg.norm(X, axis=1))))
    scale = float(np.median(np.linalg.norm(X, axis=1))) if clipped else 1.0
    scale *= exact_multiplier(epsilon, delta)
    sums = np.asarray(X.sum(axis=0)).ravel() + scale * rng.standard_normal(X.shape[1])
    columns = np.eye(X.shape[1], dtype=np.float32)[np.argsort(-sums)]
    return np.vstack([sums, columns[: k - 1]]) if sums_too else columns[:k]


def item_counts(R, k, epsilon, rng):
    """The direction of the item counts, and the most popular columns; one interaction moves one."""
    counts = np.asarray(R.sum(axis=0)).ravel() + rng.laplace(scale=1 / epsilon, size=R.shape[1])
    return np.vstack([counts, np.eye(R.shape[1])[np.argsort(-counts)[: k - 1]]])


# -- matrices with noise on each entry -------------------------------------------------------------


def noisy_matrix(A, k, epsilon, delta, rng, change=1.0):
    """The right singular vectors of A with exact Gaussian noise on every entry."""
    noise = change * exact_multiplier(epsilon, delta) * rng.standard_normal(A.shape)
    A = A + noise
    return _top_rows(A.T @ A, k)


def _unbiased(A, epsilon, rng):
    flip = 1 / (1 + math.exp(min(epsilon, 700)))
    flipped = np.where(rng.random(A.shape) < flip, 1 - A, A)
    return (flipped - flip) / (1 - 2 * flip), flip * (1 - flip) / (1 - 2 * flip) ** 2


def flipped_entries(A, k, epsilon, rng):
    """The right singular vectors of a binary A whose cells were flipped, with pure epsilon."""
    B = _unbiased(A, epsilon, rng)[0]
    return _top_rows(B.T @ B, k)


def flipped_rows(R, k, epsilon, rng, floor=5):
    """The same of rows over the square roots of their released degrees."""
    B, variance = _unbiased(R.toarray(), epsilon, rng)
    least = floor + math.sqrt(variance * R.shape[1])
    B /= np.sqrt(np.maximum(B.sum(axis=1, keepdims=True), least))
    return _top_rows(B.T @ B, k)


# -- block power ---------------------------------------------------------------------------------


def prior_sensitivity(V):
    """Hardt-Price: sqrt(p) max|V|, for one entry of the matrix that is multiplied."""
    return math.sqrt(V.shape[1]) * float(np.abs(V).max())


def row_norm_sensitivity(V):
    """Nicolas et al.: the largest row norm of V, for the same change."""
    return float(np.linalg.norm(V, axis=1).max())


def interaction_sensitivity(V):
    """Nicolas et al. for one interaction of degree-normalised rows (sqrt(2) is not needed)."""
    return math.sqrt(2) * row_norm_sensitivity(V)


def row_sensitivity(adjacency):
    """One row of norm 1, the row unit of the tables: ||x x'V||_F <= 1."""
    return lambda V: _factor(adjacency)


def block_power(product, d, k, multiplier, sensitivity, rng, n_steps=POWER_STEPS):
    """V <- qr(A V + noise), from a Gaussian start, with p = k + 6; the leading k at the end."""
    V = np.linalg.qr(rng.standard_normal((d, min(d, k + EXTRA))))[0]
    for _ in range(n_steps):
        Y = product(V) + multiplier * sensitivity(V) * rng.standard_normal(V.shape)
        V = np.linalg.svd(Y, full_matrices=False)[0]
    return V[:, :k].T


def printed_interactions(R, k, epsilon, delta, rng, floor=5, n_steps=6, extra=8):
    """Algorithm 1 of Nicolas et al. on floored rows: exact accounting and sensitivity at each step.

    Its last subspace is rotated by the exact moment, for nothing.
    """
    query = InteractionQuery(R, degree_floor=floor, adjacency="add_remove")
    budget = PrivacyBudget(epsilon, delta)
    session = PrivacySession(
        budget, source=make_source(None, "benchmark"), adjacency="add_remove", unit="interaction"
    )
    n = R.shape[1]
    start = rng.standard_normal((n, min(k + extra, n)))
    X = printed_power(session.ask(query), start, n_steps)
    exact = query.right(X).answer(0.0)
    return (X @ _top_rows(X.T @ exact, k).T).T


# -- Hardt and Roth 2013 -------------------------------------------------------------------------


def printed_power(ask, start, n_steps):
    """Return the subspace of the published power method: the last of `n_steps` noisy products."""
    X = np.linalg.qr(start)[0]
    for _ in range(n_steps):
        X = np.linalg.qr(ask.right(X, share=1.0 / n_steps).value)[0]
    return X


def fixed_coherence(product, n, n_steps, coherence, multiplier, rng):
    """Power iteration with noise for coherence C; None where an iterate is beyond it (FAIL).

    As printed, the multiplier is (2/epsilon) sqrt(4 T ln(1/delta)) and x_0 is not normalised.
    """
    x = rng.standard_normal(n) / math.sqrt(n)
    for _ in range(n_steps):
        if np.max(x**2) > coherence / n:
            return None
        x = product(x) + multiplier * math.sqrt(coherence / n) * rng.standard_normal(n)
        x /= np.linalg.norm(x)
    return x


def coherence_multiplier(epsilon, delta, n_steps):
    """The multiplier of `fixed_coherence` as printed."""
    return 2 / epsilon * math.sqrt(4 * n_steps * math.log(1 / delta))


def deflation(A, k, epsilon, delta, n_steps, coherence, rng, *, exact=False):
    """Rank k, one vector after the other: returns B_k (the figure prints the private residual).

    As printed, each vector gets epsilon / sqrt(4 k ln(1/delta)) and delta/k, and its eigenvalue is
    ||A v|| plus Laplace noise. With `exact`, the k runs share the budget by exact accounting. The
    factor sqrt(2) for symmetric changes, which the paper lacks, is included in both.
    """
    n = len(A)
    each = epsilon / math.sqrt(4 * k * math.log(1 / delta))
    multiplier = coherence_multiplier(each, delta / k, n_steps)
    if exact:
        multiplier = exact_multiplier(epsilon, delta, k * n_steps)
    B = np.zeros_like(A)
    for _ in range(k):
        residual = A - B
        args = (n, n_steps, coherence, math.sqrt(2) * multiplier, rng)
        v = fixed_coherence(lambda x, M=residual: M @ x, *args)
        if v is None:
            return B
        value = float(np.linalg.norm(residual @ v)) + rng.laplace(0, 1 / each)
        B = B + value * np.outer(v, v)
    return B


# -- graphs --------------------------------------------------------------------------------------


def randomised_response(A, epsilon, rng):
    """Each possible edge is flipped with chance 1/(1 + e^epsilon), then unbiased: n x n, dense."""
    n = A.shape[0]
    flip = 1 / (1 + math.exp(epsilon))
    upper = np.triu(A.toarray(), 1)
    upper = np.where(rng.random((n, n)) < flip, 1 - upper, upper)
    upper = np.triu((upper - flip) / (1 - 2 * flip), 1)
    return upper + upper.T
