"""Data larger than memory: threads over files, a Dask cluster, and Dask's own compressed SVD.

Run: ``python benchmarks/scale.py`` (about 300 MB on disk) or ``--full`` (2.4 GB on disk, and two
workers of 700 MB each). CPU seconds are those of this process and of all workers. The ratios count,
not the seconds: both versions read the same files in the same run, in turn.
"""

import argparse
import logging
import os
import shutil
import tempfile
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from skdp import DPPCA, DPIncrementalPCA, DPRidge, DPTruncatedSVD
from skdp.preprocessing import DPStandardScaler
from skdp.queries.dask_rows import DaskRows
from skdp.testing import fixed_noise

COLUMNS, ROWS_OF_FILE = 1000, 25_000  # float32: 100 MB a file
K = 16


def write_files(folder, n_files, rows=ROWS_OF_FILE):
    """Write npy blocks of rows with 16 strong directions; return their paths."""
    rng = np.random.default_rng(0)
    directions = rng.standard_normal((K, COLUMNS), dtype=np.float32)
    paths = []
    for i in range(n_files):
        block = rng.standard_normal((rows, K), dtype=np.float32) @ directions
        block += rng.standard_normal((rows, COLUMNS), dtype=np.float32)
        block /= np.linalg.norm(block, axis=1, keepdims=True)
        paths.append(Path(folder, f"rows{i:03d}.npy"))
        np.save(paths[-1], block)
    return paths


def write_sparse(folder, n_files, density, rows=20_000, columns=20_000):
    """Write npz blocks of CSR rows; return their paths."""
    rng = np.random.default_rng(1)
    paths = []
    for i in range(n_files):
        block = sp.random_array((rows, columns), density=density, format="csr", rng=rng)
        paths.append(Path(folder, f"sparse{i:03d}.npz"))
        sp.save_npz(paths[-1], block, compressed=False)
    return paths


def processes():
    """This process and the processes that it started."""
    import psutil

    here = psutil.Process()
    return [here, *here.children(recursive=True)]


def cpu_seconds():
    """CPU seconds of all of them so far."""
    total = 0.0
    for process in processes():
        times = process.cpu_times()
        total += times.user + times.system
    return total


def anonymous_mb(process=None):
    """Memory of a process that is not a copy of a file: what mapping a file does not count in."""
    number = "self" if process is None else process.pid
    for line in Path(f"/proc/{number}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    return float("nan")


class Peak:
    """Largest memory of this process (MB, files aside) while the block runs, above the start."""

    def __enter__(self):
        self.start = self.largest = anonymous_mb()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self):
        while not self._stop.wait(0.02):
            self.largest = max(self.largest, anonymous_mb())

    def __exit__(self, *exc):
        self._stop.set()
        self._thread.join()
        self.extra = self.largest - self.start


def measured(fit):
    """Return (CPU seconds, wall seconds, extra MB of this process, result)."""
    cpu, wall = cpu_seconds(), time.perf_counter()
    with Peak() as peak:
        result = fit()
    return cpu_seconds() - cpu, time.perf_counter() - wall, peak.extra, result


def pca(n_jobs=None):
    """Return the estimator that all dense fits use."""
    return DPPCA(K, svd_solver="power", clip_norm=1.0, center="none", n_jobs=n_jobs)


def fitted(rows, n_jobs=None):
    """Fit with recorded noise; return the components."""
    with fixed_noise(0):
        return pca(n_jobs).fit(rows).components_


def line(name, result):
    """Print one measurement."""
    cpu, wall, extra, _ = result
    print(f"  {name:<44} CPU {cpu:6.1f} s  wall {wall:6.1f} s  driver +{extra:6.1f} MB", flush=True)
    return cpu


def cluster(memory_limit):
    """Start two workers of one thread each."""
    from distributed import Client, LocalCluster

    local = LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        dashboard_address=None,
        memory_limit=memory_limit,
        silence_logs=logging.CRITICAL,
    )
    return local, Client(local)


def against_threads(paths, memory_limit, repeats):
    """Interleave the same fit on threads and on a cluster; print CPU ratios."""
    n = len(paths) * ROWS_OF_FILE
    gigabytes = n * COLUMNS * 4 / 1e9
    print(f"\nDPPCA, {n} x {COLUMNS} float32 ({gigabytes:.1f} GB), workers of {memory_limit}")
    local, client = cluster(memory_limit)
    fitted(DaskRows(paths[:1]))  # workers import what they need
    before, start = cpu_seconds(), time.perf_counter()
    time.sleep(10)
    idle = (cpu_seconds() - before) / (time.perf_counter() - start)
    print(f"  the idle cluster takes {idle:.2f} CPU s a second (heartbeats, profiling)")
    ratios = []
    for _ in range(repeats):
        threads = measured(lambda: fitted(paths, n_jobs=2))
        workers = measured(lambda: fitted(DaskRows(paths)))
        ratios.append(line("Dask, 2 workers", workers) / line("threads, n_jobs=2", threads))
        assert np.array_equal(threads[3], workers[3])
    print(f"  same bits; CPU of Dask / threads: {', '.join(f'{r:.2f}' for r in ratios)}")
    client.close()
    local.close()


def compressed_svd(paths, memory_limit):
    """Run Dask's own compressed SVD on the same files and workers."""
    import dask
    import dask.array as da

    local, client = cluster(memory_limit)
    load = dask.delayed(np.load, pure=False)
    shape = (ROWS_OF_FILE, COLUMNS)
    X = da.concatenate([da.from_delayed(load(path), shape, np.float32) for path in paths])
    start = time.perf_counter()
    try:
        dask.compute(*da.linalg.svd_compressed(X, K, n_power_iter=2))
        outcome = "completes"
    except Exception as error:
        outcome = f"fails: {type(error).__name__}"
    print(f"  da.linalg.svd_compressed {outcome} after {time.perf_counter() - start:.0f} s")
    client.close()
    local.close()


def growth_of_rows(paths, memory_limit):
    """Fit n, 2n and 4n rows on threads and on a cluster."""
    print("\ngrowth with the rows (memory: this process, above its start, mapped files aside)")
    local, client = cluster(memory_limit)
    fitted(DaskRows(paths[:1]))
    for count in (len(paths) // 4, len(paths) // 2, len(paths)):
        some = paths[:count]
        line(f"{count * ROWS_OF_FILE:>8} rows, threads", measured(lambda s=some: fitted(s, 2)))
        line(f"{count * ROWS_OF_FILE:>8} rows, Dask", measured(lambda s=some: fitted(DaskRows(s))))
    client.close()
    local.close()


def growth_of_others(paths):
    """Fit n, 2n and 4n rows with the estimators of one release, on threads."""
    print("\nthe same for estimators of one release, on threads")
    fits = {
        "DPIncrementalPCA": lambda rows, y: DPIncrementalPCA(K, clip_norm=1.0, n_jobs=2).fit(rows),
        "DPRidge": lambda rows, y: DPRidge(clip_norm=1.0, target_bounds=(-3, 3), n_jobs=2).fit(
            rows, y
        ),
        "DPStandardScaler": lambda rows, y: DPStandardScaler(entry_bounds=(-1, 1), n_jobs=2).fit(
            rows
        ),
    }
    y = np.random.default_rng(2).standard_normal(len(paths) * ROWS_OF_FILE)
    for name, fit in fits.items():
        for count in (len(paths) // 4, len(paths) // 2, len(paths)):
            n = count * ROWS_OF_FILE
            result = measured(lambda f=fit, c=count, m=n: f(paths[:c], y[:m]))
            line(f"{n:>8} rows, {name}", result)


def growth_of_entries(folder, n_files):
    """Double the files of CSR rows, and the entries of each."""
    print("\ngrowth with the entries, CSR files (one file in memory at a time and thread)")

    def fit(paths):
        svd = DPTruncatedSVD(K, algorithm="power", clip_norm=1.0)
        with fixed_noise(0):
            return svd.fit(paths).components_

    for files, density in ((n_files, 1e-3), (2 * n_files, 1e-3), (n_files, 2e-3)):
        paths = write_sparse(folder, files, density)
        millions = files * 20_000 * 20_000 * density / 1e6
        result = measured(lambda p=paths: fit(p))
        line(f"{files:>3} files, {millions:5.1f} million entries", result)


def main():
    """Run everything in a temporary folder, which is deleted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="2.4 GB instead of 0.3 GB")
    parser.add_argument("--folder", default=None, help="where the files go for a while")
    parser.add_argument("--only", choices=["threads", "svd", "growth"], default=None)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    warnings.simplefilter("ignore")
    folder = tempfile.mkdtemp(dir=options.folder)
    try:
        paths = write_files(folder, 24 if options.full else 4)
        limit = "700MB" if options.full else "400MB"
        if options.only in (None, "threads"):
            against_threads(paths, limit, options.repeats)
        if options.only in (None, "svd"):
            compressed_svd(paths, limit)
        if options.only in (None, "growth"):
            growth_of_rows(paths, limit)
            growth_of_others(paths[: 12 if options.full else 4])
            growth_of_entries(folder, 8 if options.full else 2)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
