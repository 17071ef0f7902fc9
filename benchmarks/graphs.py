"""Embeddings of graphs next to what is trivial at the same guarantee: one edge.

Run ``python benchmarks/graphs.py [--quick]``. Block models with balanced groups, and with degrees
that differ; cells are medians of the adjusted Rand index of k-means over fits, noise is fresh. The
last two columns are those of ``benchmarks/matrices.py``.
"""

import sys
import warnings
from functools import partial

import baselines
import matrices
import numpy as np
import scipy.sparse as sp
from report import tables_of
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score
from threadpoolctl import threadpool_limits

from skdp import DPSpectralEmbedding, DPTruncatedSVD
from skdp.datasets import make_block_graph
from skdp.privacy import mu_from_epsilon_delta

DELTA = 1e-6
# nodes, groups, gap, mean degree, how far degrees differ
FULL = ((600, 6, 23.0, 35.0, 0.0), (1000, 20, 19.5, 29.5, 0.0), (1500, 5, 24.0, 54.0, 0.0),
        (1000, 2, 60.0, 150.0, 0.0), (1000, 4, 60.0, 90.0, 0.5))  # fmt: skip
QUICK = ((300, 4, 40.0, 55.0, 0.0), (400, 10, 24.0, 32.0, 0.0), (400, 4, 50.0, 70.0, 0.5))


def uneven(n, k, gap, degree, spread):
    """A block model; each edge is kept with the product of the propensities of its nodes."""
    A, labels = make_block_graph(n, k, gap, degree, random_state=0)
    rng = np.random.default_rng(1)
    keep = np.exp(-spread * np.abs(rng.standard_normal(n)))
    upper = sp.triu(A, 1).tocoo()
    kept = rng.random(upper.nnz) < keep[upper.row] * keep[upper.col]
    pairs = (upper.row[kept], upper.col[kept])
    upper = sp.csr_array((np.ones(kept.sum()), pairs), shape=(n, n))
    return sp.csr_array(upper + upper.T), labels


def leading(A, k):
    """Embed by the leading eigenvectors across the degrees."""
    degrees = np.maximum(A.sum(axis=1), 0.0)
    direction = degrees / max(np.linalg.norm(degrees), 1e-12)
    A = A - np.outer(direction, direction @ A)
    A = A - np.outer(A @ direction, direction)
    values, vectors = np.linalg.eigh((A + A.T) / 2)
    return vectors[:, np.argsort(-np.abs(values))[:k]]


def table(n, k, gap, degree, spread):
    A, labels = uneven(n, k, gap, degree, spread)
    rng, dense = np.random.default_rng(), A.toarray()

    def score(embedding):
        found = KMeans(k, n_init=3, random_state=0).fit_predict(embedding)
        return adjusted_rand_score(labels, found)

    def symmetric(epsilon):
        noise = np.sqrt(2) / mu_from_epsilon_delta(epsilon, DELTA) * rng.standard_normal((n, n))
        return leading(dense + (noise + noise.T) / 2, k - 1)

    def printed(epsilon):  # the first vector across the degrees, by the method as printed
        m = np.sqrt(2) * baselines.coherence_multiplier(epsilon, DELTA, 6)
        centred = lambda x: A @ (x - x.mean()) - np.mean(A @ (x - x.mean()))  # noqa: E731
        x = baselines.fixed_coherence(centred, n, 6, 16 * np.log(n), m, rng)
        return np.zeros((n, 1)) if x is None else x[:, None]

    def by_degree(epsilon):
        scale = np.sqrt(2) / mu_from_epsilon_delta(epsilon, DELTA)
        return (A.sum(axis=1) + scale * rng.standard_normal(n))[:, None]

    def ours(algorithm):
        return lambda e: DPSpectralEmbedding(k - 1, epsilon=e, algorithm=algorithm).fit_transform(A)

    def edges(epsilon):
        return DPTruncatedSVD(k, epsilon=epsilon, privacy_unit="edge").fit(A).left_singular_vectors_

    methods = {
        "not private": lambda epsilon: leading(dense, k - 1),
        "released degrees": by_degree,
        "all pairs with noise": symmetric,
        "randomised response": lambda e: leading(
            baselines.randomised_response(A, min(e, 700.0), rng), k - 1
        ),
        "power method as published": printed,
        "DPSpectralEmbedding": ours("auto"),
        "DPSpectralEmbedding, power": ours("power"),
        "DPTruncatedSVD, edge": edges,
    }
    kind = f", degrees differ ({spread:g})" if spread else ""
    title = f"edge unit, {n} nodes, {k} groups, gap {gap:g}, mean degree {degree:g}{kind}"
    aside = ("not private",)  # not held against it
    matrices.compare(
        f"{title}, adjusted Rand index", methods, score, ours=["DPSpectralEmbedding"], aside=aside
    )


def uneven_degrees(n, k):
    """Log-normal propensities, no groups: the graph itself, which its degrees nearly are."""
    rng = np.random.default_rng(0)
    size = rng.lognormal(0, 0.8, n)
    upper = np.triu(rng.random((n, n)) < np.minimum(24 / n * np.outer(size, size), 1.0), 1)
    A = sp.csr_array((upper + upper.T).astype(float))

    def by_degree(epsilon):  # and the nodes with the most edges
        scale = np.sqrt(2) / mu_from_epsilon_delta(epsilon, DELTA)
        degrees = A.sum(axis=1) + scale * rng.standard_normal(n)
        return np.vstack([degrees, np.eye(n)[np.argsort(-degrees)[: k - 1]]])

    def flips(epsilon):
        flipped = baselines.randomised_response(A, min(epsilon, 700.0), rng)
        values, vectors = np.linalg.eigh(flipped)
        return vectors[:, np.argsort(-np.abs(values))[:k]].T

    methods = {"released degrees": by_degree, "randomised response": flips}
    said = f"{n} nodes of mean degree {A.nnz / n:.0f}, which differ"
    captured(said, A, k, methods)


def captured(said, A, k, methods):
    """Show the share that components of a graph hold, beside trivial methods."""

    def ours(route):
        options = {"privacy_unit": "edge", "algorithm": route}
        return lambda e: DPTruncatedSVD(k, epsilon=e, **options).fit(A).components_

    methods |= {"DPTruncatedSVD": ours("auto"), "DPTruncatedSVD, power": ours("power")}
    title = f"edge unit, {said}, k={k}, captured"
    matrices.compare(title, methods, matrices.Moment(A, k), ours=["DPTruncatedSVD"])


def similarities(n, k):
    """Weights in (0, 1) that fall with distance: most are small, and no gap follows the first."""
    rng = np.random.default_rng(0)
    places = rng.random((n, 3))
    A = np.exp(-4 * np.linalg.norm(places[:, None] - places[None], axis=2))
    np.fill_diagonal(A, 0.0)

    def by_degree(epsilon):
        scale = np.sqrt(2) / mu_from_epsilon_delta(epsilon, DELTA)
        return (A.sum(axis=1) + scale * rng.standard_normal(n))[None]

    def pairs(epsilon):  # each with Laplace noise
        upper = np.triu(A + rng.laplace(scale=1 / epsilon, size=(n, n)), 1)
        values, vectors = np.linalg.eigh(upper + upper.T)
        return vectors[:, np.argsort(-np.abs(values))[:k]].T

    methods = {"released degrees": by_degree, "Laplace noise in all pairs": pairs}
    captured(f"weights of {n} nodes", sp.csr_array(A), k, methods)


def tables(full):
    """Tables for ``python -m benchmarks``."""
    cases = [partial(table, *case) for case in (FULL if full else QUICK)]
    whole = [partial(uneven_degrees, 1500 if full else 400, 3), partial(similarities, 400, 3)]
    return tables_of([*whole, *cases], full)


def main():
    warnings.simplefilter("ignore")
    with threadpool_limits(1):
        for _ in tables("--quick" not in sys.argv[1:]):
            pass


if __name__ == "__main__":
    main()
