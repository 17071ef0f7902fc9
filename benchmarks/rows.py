"""Time and memory of the row queries against plain numpy and scipy, in one run.

Run: ``python benchmarks/rows.py``. BLAS uses one thread, so that ``n_jobs`` alone decides. The
ratios count: CPU seconds for one thread, wall seconds for two (on a machine that is not busy).
"""

import time
import tracemalloc

import numpy as np
import scipy.sparse as sp
from report import show, shown
from threadpoolctl import threadpool_limits

from skdp.queries.rows import RowQuery

MU_SIGMA = 2.4e8  # noise of epsilon = 1, delta = 1e-6 in integer units


def best(function, repeats=4):
    """Shortest (wall, CPU) seconds of several runs."""
    walls, cpus = [], []
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        function()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return min(walls), min(cpus)


def peak_mb(function):
    """Peak of traced allocations during one call, in MB."""
    tracemalloc.start()
    function()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 2**20


def compare(name, plain, ours, result_mb):
    """One row: the peer, ours, their ratios, and the memory beyond X and the result."""
    (wall, cpu), (our_wall, our_cpu) = best(plain), best(ours)
    ratios = f"{our_cpu / cpu:.2f}", f"{our_wall / wall:.2f}"
    return [name, f"{cpu:.3f}", f"{our_cpu:.3f}", *ratios, f"{peak_mb(ours) - result_mb:.1f}"]


def dense(n_jobs, n=100_000):
    """Gram matrix of n x 500 dense rows; few of them, or half, beyond the clip norm."""
    X = np.random.default_rng(0).standard_normal((n, 500))
    for clip_norm in (26.0, 22.36):
        query = RowQuery(X, clip_norm=clip_norm, adjacency="add_remove", n_jobs=n_jobs)
        answer, step = query.gram().answer, clip_norm**2 / MU_SIGMA
        name = f"dense Gram, clip {clip_norm}, n_jobs={n_jobs}"
        yield compare(name, lambda: X.T @ X, lambda f=answer, s=step: f(s), 500 * 500 * 8 / 2**20)


def sparse(n_jobs, n=100_000):
    """X'(X V) of n x 20,000 CSR rows with 50 entries each, k = 32."""
    rng = np.random.default_rng(0)
    X = sp.random_array((n, 20_000), density=2.5e-3, format="csr", rng=rng)
    X.data = rng.standard_normal(X.nnz)
    V = np.linalg.qr(rng.standard_normal((20_000, 32)))[0]
    query = RowQuery(X, clip_norm=9.0, adjacency="add_remove", n_jobs=n_jobs)
    answer, step = query.gram_product(V).answer, 81 / MU_SIGMA
    name = f"CSR product, {X.nnz} nnz, n_jobs={n_jobs}"
    yield compare(name, lambda: X.T @ (X @ V), lambda: answer(step), V.nbytes / 2**20)


def main(n=100_000):
    """Run both cases with one thread and with two."""
    rows = []
    with threadpool_limits(1):
        for n_jobs in (1, 2):
            rows += [*dense(n_jobs, n), *sparse(n_jobs, n)]
    title = f"row queries against numpy and scipy, {n} rows, best of 4"
    head = ["query", "plain, CPU (s)", "skdp, CPU (s)", "CPU ratio", "wall ratio", "extra (MB)"]
    show(title, head, rows, "'extra' is memory beyond X and the result.")


def tables(full):
    """Tables for ``python -m benchmarks``."""
    n = 100_000 if full else 20_000
    return shown(lambda: main(n))


if __name__ == "__main__":
    main()
