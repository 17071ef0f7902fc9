"""Data larger than memory: threads over files, a Dask cluster, and Dask's own compressed SVD.

Run: ``python benchmarks/scale.py`` (about 300 MB on disk) or ``--full`` (2.4 GB on disk, and two
workers of 700 MB each). CPU seconds are those of this process and of all workers. The ratios count,
not the seconds: both versions read the same files in the same run, in turn.
"""

import argparse
import contextlib
import importlib.util
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
from report import Table, show, shown

from skdp import DPPCA, DPIncrementalPCA, DPRidge, DPTruncatedSVD
from skdp.data.stored_rows import DaskRows
from skdp.preprocessing import DPStandardScaler
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


HEAD = ["CPU (s)", "wall (s)", "driver beyond its start (MB)"]


def line(*names, result):
    """One row of a table."""
    return [*names, *(f"{value:.1f}" for value in result[:3])]


@contextlib.contextmanager
def cluster(memory_limit):
    """Two workers of one thread each, for a while."""
    from distributed import Client, LocalCluster

    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True}
    options |= {"dashboard_address": None, "silence_logs": logging.CRITICAL}
    with LocalCluster(memory_limit=memory_limit, **options) as local, Client(local) as client:
        yield client


def idle_load(seconds=10):
    """CPU seconds a second of a cluster that has nothing to do."""
    before, start = cpu_seconds(), time.perf_counter()
    time.sleep(seconds)
    return (cpu_seconds() - before) / (time.perf_counter() - start)


def against_threads(paths, memory_limit, repeats):
    """Interleave the same fit on threads and on a cluster; show CPU ratios."""
    n = len(paths) * ROWS_OF_FILE
    gigabytes = n * COLUMNS * 4 / 1e9
    found = {"threads, n_jobs=2": [], "Dask, 2 workers": []}
    with cluster(memory_limit):
        fitted(DaskRows(paths[:1]))  # workers import what they need
        idle = idle_load()
        for _ in range(repeats):
            threads = measured(lambda: fitted(paths, n_jobs=2))
            workers = measured(lambda: fitted(DaskRows(paths)))
            assert np.array_equal(threads[3], workers[3])
            for results, result in zip(found.values(), (threads, workers), strict=True):
                results.append(result[:3])
    threads, workers = (np.array(results) for results in found.values())
    ratios = workers[:, 0] / threads[:, 0]
    rows = [
        line(name, f"{ratio:.2f}", result=np.median(found[name], axis=0))
        for name, ratio in zip(found, (1.0, np.median(ratios)), strict=True)
    ]
    show(
        f"DPPCA, {n} x {COLUMNS} float32 ({gigabytes:.1f} GB), workers of {memory_limit}: "
        f"median of {repeats} fits in turn",
        ["", "CPU / threads", *HEAD],
        rows,
        f"CPU of all processes. Both give the same bits. All ratios: "
        f"{', '.join(f'{r:.2f}' for r in ratios)}; driver memory with Dask: "
        f"{', '.join(f'{mb:.1f}' for mb in workers[:, 2])} MB. The idle cluster takes "
        f"{idle:.2f} CPU s a second (heartbeats, profiling).",
    )


def svd_run(paths, memory_limit, patience):
    """Run Dask's own compressed SVD on new workers; return outcome, CPU and wall seconds."""
    import dask
    import dask.array as da

    def factors(client):
        load = dask.delayed(np.load, pure=False)
        shape = (ROWS_OF_FILE, COLUMNS)
        X = da.concatenate([da.from_delayed(load(path), shape, np.float32) for path in paths])
        futures = client.compute(list(da.linalg.svd_compressed(X, K, n_power_iter=2)))
        return [future.result(timeout=patience) for future in futures]

    with cluster(memory_limit) as client:
        cpu, start, spent, before = cpu_seconds(), time.perf_counter(), "", processes()
        try:
            factors(client)
            if lost := set(before) - set(processes()):
                outcome = f"completes, {len(lost)} workers were killed"
            else:
                outcome, spent = "completes", f"{cpu_seconds() - cpu:.1f}"
        except Exception as error:
            outcome = f"fails: {type(error).__name__}"
        return outcome, spent, f"{time.perf_counter() - start:.0f}"


def compressed_svd(paths, memory_limit, patience, runs=3):
    """Dask's own compressed SVD on the same files and workers, all three factors."""
    rows = [[i + 1, *svd_run(paths, memory_limit, patience)] for i in range(runs)]
    show(
        f"da.linalg.svd_compressed, k={K}, 2 power iterations, the same files, {memory_limit} each",
        ["run", "outcome", "CPU (s)", "wall (s)"],
        rows,
        f"All three factors; not private. Each run has new workers and {patience} s.",
    )


def growth_of_rows(paths, memory_limit):
    """Fit n, 2n and 4n rows on threads and on a cluster."""
    rows = []
    with cluster(memory_limit):
        fitted(DaskRows(paths[:1]))
        for count in (len(paths) // 4, len(paths) // 2, len(paths)):
            some, n = paths[:count], count * ROWS_OF_FILE
            threads = measured(lambda: fitted(some, 2))  # noqa: B023
            workers = measured(lambda: fitted(DaskRows(some)))  # noqa: B023
            rows += [line(n, "threads", result=threads), line(n, "Dask", result=workers)]
    title = "growth with the rows (memory of this process, mapped files aside)"
    show(title, ["rows", "DPPCA", *HEAD], rows)


def growth_of_others(paths):
    """Fit n, 2n and 4n rows with the estimators of one release, on threads."""
    fits = {
        "DPIncrementalPCA": lambda rows, y: DPIncrementalPCA(K, clip_norm=1.0, n_jobs=2).fit(rows),
        "DPRidge": lambda rows, y: DPRidge(clip_norm=1.0, target_bounds=(-3, 3), n_jobs=2).fit(
            rows, y
        ),
        "DPStandardScaler": lambda rows, y: DPStandardScaler(bounds=(-1, 1), n_jobs=2).fit(rows),
    }
    y = np.random.default_rng(2).standard_normal(len(paths) * ROWS_OF_FILE)
    rows = []
    for name, fit in fits.items():
        for count in (len(paths) // 4, len(paths) // 2, len(paths)):
            n = count * ROWS_OF_FILE
            result = measured(lambda f=fit, c=count, m=n: f(paths[:c], y[:m]))
            rows.append(line(n, name, result=result))
    title = "growth with the rows, estimators of one release, on threads"
    show(title, ["rows", "estimator", *HEAD], rows)


def growth_of_entries(folder, n_files):
    """Double the files of CSR rows, and the entries of each."""

    def fit(paths):
        svd = DPTruncatedSVD(K, algorithm="power", clip_norm=1.0)
        with fixed_noise(0):
            return svd.fit(paths).components_

    rows = []
    for files, density in ((n_files, 1e-3), (2 * n_files, 1e-3), (n_files, 2e-3)):
        paths = write_sparse(folder, files, density)
        millions = files * 20_000 * 20_000 * density / 1e6
        rows.append(line(files, f"{millions:.1f}", result=measured(lambda p=paths: fit(p))))
    title = "growth with the entries, DPTruncatedSVD on CSR files of 20,000 rows"
    show(title, ["files", "million entries", *HEAD], rows)


@contextlib.contextmanager
def files(n_files, folder=None):
    """Dense files in a temporary folder, which is deleted."""
    scratch = tempfile.mkdtemp(dir=folder)
    try:
        yield scratch, write_files(scratch, n_files)
    finally:
        shutil.rmtree(scratch)


def tables(full):
    """Tables for ``python -m benchmarks``; the quick ones without the growth with the rows."""
    if missing := [x for x in ("distributed", "psutil") if importlib.util.find_spec(x) is None]:
        yield Table("scale", notes=[f"Not run: {', '.join(missing)} not installed."])
        return
    n_files, limit = (24, "700MB") if full else (4, "400MB")
    with files(n_files) as (scratch, paths):
        yield from shown(lambda: against_threads(paths, limit, 3))
        if full:
            yield from shown(lambda: growth_of_rows(paths, limit))
            yield from shown(lambda: growth_of_others(paths[:12]))
        yield from shown(lambda: growth_of_entries(scratch, 8 if full else 2))
        yield from shown(lambda: compressed_svd(paths, limit, 600 if full else 60))


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
    limit = "700MB" if options.full else "400MB"
    with files(24 if options.full else 4, options.folder) as (scratch, paths):
        if options.only in (None, "threads"):
            against_threads(paths, limit, options.repeats)
        if options.only in (None, "svd"):
            compressed_svd(paths, limit, 600, options.repeats)
        if options.only in (None, "growth"):
            growth_of_rows(paths, limit)
            growth_of_others(paths[: 12 if options.full else 4])
            growth_of_entries(scratch, 8 if options.full else 2)


if __name__ == "__main__":
    main()
