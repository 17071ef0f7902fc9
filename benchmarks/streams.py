"""Streams: noise over time, memory, releases a second, and DPIncrementalPCA next to scikit-learn.

Run: ``OMP_NUM_THREADS=1 python benchmarks/streams.py [noise matrix state pca]`` (all by default).
Times are CPU seconds; the comparison with scikit-learn is interleaved, batch by batch.
"""

import math
import resource
import sys
import time

import numpy as np
from report import show, shown
from sklearn.decomposition import IncrementalPCA
from threadpoolctl import threadpool_limits

from skdp import DPIncrementalPCA
from skdp.privacy import PrivacyBudget, PrivacySession
from skdp.privacy.gate.bounds import Bound
from skdp.privacy.noise.words import SystemSource
from skdp.privacy.streams.continual import paid_stream, stream_schedule


def open_session(epsilon=1.0, delta=1e-6):
    """Open a session that draws private noise."""
    return PrivacySession(
        PrivacyBudget(epsilon, delta),
        source=SystemSource(),
        adjacency="add_remove",
        unit="frobenius",
    )


def noise(horizons=(4, 16, 64, 256, 1024, 4096)):
    """Noise against that of one release: root mean square over time, and at the end."""
    rows = []
    for horizon in horizons:
        row = [horizon]
        for options in (
            {"mechanism": "sqrt"},
            {"mechanism": "tree"},
            {"window": max(1, horizon // 8)},
        ):
            schedule = stream_schedule(1, horizon, **options)
            factors = [schedule.factor * schedule.noise_factor(t) for t in range(1, horizon + 1)]
            row += [math.sqrt(np.mean(np.square(factors))), factors[-1]]
        rows.append([row[0], *(f"{x:.2f}" for x in (*row[1:5], math.sqrt(horizon), *row[5:]))])
    title = "noise of the releases, in units of one release at the same budget"
    head = ["T", "sqrt: rms over time", "last", "tree: rms", "last", "T single fits",
            "window of T/8, tree: rms", "last"]  # fmt: skip
    show(title, head, rows, "Computed, not drawn.")


def truncated(noisy, edge, k):
    """Return the best rank-k part above the edge of the noise, with shrunken singular values."""
    left, sizes, right = np.linalg.svd(noisy, full_matrices=False)
    m, n = noisy.shape
    per = edge / (math.sqrt(m) + math.sqrt(n))
    y = sizes[:k] / (per * math.sqrt(n))
    beta = m / n
    inside = np.maximum((y**2 - beta - 1) ** 2 - 4 * beta, 0.0)
    shrunk = np.where(y > 1 + math.sqrt(beta), np.sqrt(inside) / y, 0.0) * per * math.sqrt(n)
    return (left[:, :k] * shrunk) @ right[:k]


def matrix(horizon=256, m=300, n=200, k=5):
    """rms error over time of A(t) = (t/T) A, one dense release a step (Frobenius unit 1)."""
    rng = np.random.default_rng(0)
    U = np.linalg.qr(rng.standard_normal((m, k)))[0]
    V = np.linalg.qr(rng.standard_normal((n, k)))[0]
    A = (U * np.linspace(2e4, 1e4, k)) @ V.T
    found = {}
    for mechanism in ("sqrt", "tree", "single runs"):
        session, errors = open_session(), []
        bound = Bound("matrix", (m, n), 1.0, slack=math.sqrt(m * n) / 2)
        single = mechanism == "single runs"
        stream = None if single else paid_stream(session, bound, 1.0, horizon, mechanism=mechanism)
        start = time.process_time()
        for t in range(1, horizon + 1):
            part = A * (t if single else 1) / horizon
            answer = lambda step, part=part: np.rint(part / step).astype(np.int64)  # noqa: E731
            if single:
                noisy, scale = session.grant(bound, 1 / horizon).open(answer)
            else:
                stream.add(answer)
                noisy, scale = stream.open()
            edge = scale * (math.sqrt(m) + math.sqrt(n))
            errors.append(np.linalg.norm(truncated(noisy, edge, k) - A * t / horizon))
        spent = time.process_time() - start
        rms = math.sqrt(np.mean(np.square(errors)))
        found[mechanism] = rms, spent / horizon * 1e3
    peer = found["single runs"]
    rows = [
        [name, f"{rms:.0f}", f"{rms / peer[0]:.2f}", f"{ms:.1f}", f"{ms / peer[1]:.2f}"]
        for name, (rms, ms) in found.items()
    ]
    show(
        f"error over {horizon} releases of a growing {m} x {n} matrix of rank {k}, epsilon 1",
        ["noise", "rms error", "/ single runs", "CPU (ms) a release", "/ single runs"],
        rows,
        "'single runs' are separate releases that share the budget.",
    )


def state():
    """Memory and releases a second of a 200 x 200 symmetric moment."""
    rows = []
    for mechanism, horizon in (("tree", 1000), ("tree", 100_000), ("sqrt", 250)):
        bound = Bound("moment", (200, 200), 1.0, symmetric=True, slack=0.0)
        stream = paid_stream(open_session(), bound, 1.0, horizon, mechanism=mechanism)
        steps = min(horizon, 250)
        start = time.process_time()
        for _ in range(steps):
            stream.open()
        rate = steps / (time.process_time() - start)
        size = stream.state_bytes / 2**20
        rows.append([mechanism, horizon, steps, f"{size:.1f}", f"{rate:.0f}"])
    title = "state of a stream of 200 x 200 moments, and releases a CPU second (no data added)"
    show(title, ["noise", "planned releases", "made", "state (MB)", "a second"], rows)


def pca(batches=1000, rows=1000, d=200, k=10):
    """Time of partial_fit with a release a batch, against IncrementalPCA; memory over time."""
    rng = np.random.default_rng(0)
    scales = np.linspace(2.0, 0.5, d)
    ours = DPIncrementalPCA(k, clip_norm=20.0, max_releases=batches)
    theirs = IncrementalPCA(k)
    times = np.zeros((batches, 2))
    table = []
    for i in range(batches):
        X = rng.standard_normal((rows, d)) * scales
        for j, model in enumerate((ours, theirs)):
            start = time.process_time()
            model.partial_fit(X)
            times[i, j] = time.process_time() - start
        if (i + 1) % (batches // 5) == 0:
            ms = 1e3 * np.median(times[max(0, i - 100) : i + 1], axis=0)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # kB on Linux
            cells = f"{ms[0]:.1f}", f"{ms[1]:.1f}", f"{ms[0] / ms[1]:.2f}", f"{peak:.0f}"
            table.append([i + 1, *cells])
    total = times.sum(axis=0)
    overlap = np.linalg.svd(ours.components_ @ theirs.components_.T, compute_uv=False)
    show(
        f"partial_fit of batches of {rows} rows, d={d}, k={k}, a release after each",
        ["batches", "DPIncrementalPCA (ms)", "IncrementalPCA (ms)", "CPU ratio", "peak (MB)"],
        table,
        "CPU of a batch, median of the last hundred, in turn with scikit-learn. Ratio of the sums: "
        f"{total[0] / total[1]:.2f}. Shared part of the two subspaces: {np.mean(overlap**2):.3f}.",
    )


def tables(full):
    """Tables for ``python -m benchmarks``; the quick ones are of shorter streams."""
    yield from shown(noise if full else lambda: noise((4, 16, 64, 256)))
    yield from shown(matrix if full else lambda: matrix(64))
    yield from shown(state)
    yield from shown(pca if full else lambda: pca(100))


def main():
    """Run the parts that are named, or all."""
    parts = {f.__name__: f for f in (noise, matrix, state, pca)}
    with threadpool_limits(1):
        for name in sys.argv[1:] or parts:
            parts[name]()


if __name__ == "__main__":
    main()
