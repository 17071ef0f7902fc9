"""
Can a PCA be private on data that do not fit into memory?
=========================================================

A matrix is written to disk, a block at a time, and fitted from there: first by threads of this
process, then, if Dask is installed, by two workers. Both get the same bits, and need memory for a
few blocks. ``--full`` writes 2 GB instead of 20 MB (and takes minutes).
"""

# %%
# Rows of norm 1 with five strong directions, in a memory map. Nothing here holds all rows.
import importlib.util
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from skdp import DPPCA

D, K, BLOCK = 200, 5, 2_500
N_BLOCKS = 1000 if "--full" in sys.argv else 10


def write_map(path):
    """Write unit rows; return the memory map and the directions that are in them."""
    rng = np.random.default_rng(0)
    directions = np.linalg.qr(rng.standard_normal((D, K)))[0].T
    rows = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(N_BLOCKS * BLOCK, D))
    for start in range(0, len(rows), BLOCK):
        scores = rng.standard_normal((BLOCK, K)) * [3, 2.5, 2, 1.6, 1.3]
        block = scores @ directions + 0.15 * rng.standard_normal((BLOCK, D))
        rows[start : start + BLOCK] = block / np.linalg.norm(block, axis=1, keepdims=True)
    rows.flush()
    return rows, directions


def found(components, directions):
    """Share of the true directions inside the fitted ones (public here: we made the data)."""
    return np.linalg.norm(components @ directions.T) ** 2 / K


# %% Pass the map to `fit`. It is read block by block, and never copied.
def fit_on_threads(X, epsilon):
    """Fit by two threads of this process."""
    return DPPCA(K, epsilon=epsilon, clip_norm=1, center="none", n_jobs=2).fit(X)


# %%
# The same on Dask workers: each maps the file, adds up integers, and sends one sum.
def fit_on_workers(path, epsilon):
    """Fit by two worker processes."""
    from distributed import Client, LocalCluster

    from skdp.data.stored_rows import DaskRows

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster),
    ):
        return DPPCA(K, epsilon=epsilon, clip_norm=1, center="none").fit(DaskRows([path]))


def draw(epsilons, shares):
    """Draw the share found against the budget."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    axes.semilogx(epsilons, shares, "o-", label="private, from disk")
    axes.axhline(1, color="0.4", linestyle="--", label="all of them")
    axes.axhline(K / D, color="0.4", linestyle=":", label="a random subspace")
    axes.set_ylim(0, 1.1)
    axes.set_xticks(epsilons, [str(epsilon) for epsilon in epsilons])
    axes.minorticks_off()
    axes.set_xlabel("privacy budget epsilon (delta = 1e-6)")
    axes.set_ylabel("share of the true directions found")
    axes.set_title(f"{N_BLOCKS * BLOCK} rows on disk, {D} columns, {K} components")
    axes.legend(loc="center right")
    figure.savefig("out_of_core.png", dpi=150)
    print("wrote out_of_core.png")


def main():
    """Write, fit twice, compare."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.npy")
        X, directions = write_map(path)
        print(f"{len(X)} x {D} rows, {path.stat().st_size / 1e6:.0f} MB on disk")
        epsilons, shares = [0.01, 0.05, 0.2, 1.0], []
        for epsilon in epsilons:
            start = time.perf_counter()
            shares.append(found(fit_on_threads(X, epsilon).components_, directions))
            seconds = time.perf_counter() - start
            print(f"threads, epsilon {epsilon:>5}: {shares[-1]:.3f} found, {seconds:.1f} s")
        if importlib.util.find_spec("matplotlib"):
            draw(epsilons, shares)
        if importlib.util.find_spec("distributed"):
            start = time.perf_counter()
            share = found(fit_on_workers(path, 1.0).components_, directions)
            print(f"workers, epsilon   1.0: {share:.3f} found, {time.perf_counter() - start:.1f} s")
        else:
            print('with "skdp[dask]" installed this also fits on a cluster')
        del X


# %%
# Workers start a Python of their own and import this file, hence the guard.
if __name__ == "__main__":
    main()
