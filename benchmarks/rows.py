"""Time and memory of the row queries against plain numpy and scipy, in one run.

Run: ``python benchmarks/rows.py``. Ratios are what counts; seconds depend on the machine.
"""

import time
import tracemalloc

import numpy as np
import scipy.sparse as sp
from threadpoolctl import threadpool_limits

from skdp.queries.rows import RowQuery


def best(function, repeats=5):
    """Shortest of several runs, interleaving is left to the caller."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def peak_mb(function):
    """Peak of traced allocations during one call, in MB."""
    tracemalloc.start()
    function()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 2**20


def report(name, plain, ours):
    """Print one line: seconds of the peer, of ours, and their ratio."""
    a, b = best(plain), best(ours)
    print(f"{name:<44} plain {a:7.3f} s   skdp {b:7.3f} s   ratio {b / a:5.2f}")


def main():
    """Run the two cases of the package's goals: dense Gram, sparse product."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((100_000, 500))
    step = 500.0 / 2.4e8
    with threadpool_limits(1):
        for n_jobs in (1, 2):
            query = RowQuery(X, clip_norm=22.36, adjacency="add_remove", n_jobs=n_jobs)
            gram = query.gram().answer
            report(f"dense 100000 x 500 Gram, n_jobs={n_jobs}", lambda: X.T @ X, lambda: gram(step))
            extra = peak_mb(lambda: gram(step)) - 500 * 500 * 8 / 2**20
            print(f"    peak beyond X and the result: {extra:.1f} MB")

        S = sp.random_array((100_000, 20_000), density=2.5e-3, format="csr", rng=rng)
        S.data = rng.standard_normal(S.nnz)
        V = np.linalg.qr(rng.standard_normal((20_000, 32)))[0]
        for n_jobs in (1, 2):
            query = RowQuery(S, clip_norm=7.0, adjacency="add_remove", n_jobs=n_jobs)
            product = query.gram_product(V).answer
            report(
                f"CSR 100000 x 20000, {S.nnz} nnz, k=32, n_jobs={n_jobs}",
                lambda: S.T @ (S @ V),
                lambda: product(50 / 2.4e8),
            )
            extra = peak_mb(lambda: product(50 / 2.4e8)) - V.nbytes / 2**20
            print(f"    peak beyond X and the result: {extra:.1f} MB")


if __name__ == "__main__":
    main()
