"""Error, speed and memory of DPLowRankFactorizer next to its peers, one table per section.

Run ``python benchmarks/factorizer.py [--quick] [section ...]``; no section means all. Error is
Frobenius, over the reference sqrt(k) (sqrt(m) + sqrt(n)) / mu; delta = 1e-6. Data are seeded and
public, noise is fresh. The peers are here only: the zero matrix, A plus noise, the two-pass method
of Hardt and Roth (2012), and the algorithm of Upadhyay (2018) with its own constants.
"""

import math
import statistics
import time
from functools import partial

import numpy as np
from report import run_sections, show, sized, tables_of
from sklearn.datasets import load_digits

from skdp import DPLowRankFactorizer
from skdp.privacy import mu_from_epsilon_delta

DELTA = 1e-6
FITS = 5
RNG = np.random.default_rng(0)


def low_rank(m, n, k, values=None):
    """Return an m x n matrix of rank k with singular values 2e4..1e4, or those given."""
    U, V = (np.linalg.qr(RNG.standard_normal((side, k)))[0] for side in (m, n))
    return (U * (np.linspace(2e4, 1e4, k) if values is None else values)) @ V.T


def reference(A, k, epsilon=1.0):
    """Error that no method is much below."""
    mu = mu_from_epsilon_delta(epsilon, DELTA)
    return math.sqrt(k) * sum(math.sqrt(side) for side in A.shape) / mu


def skdp_error(A, k, **params):
    model = DPLowRankFactorizer(k, delta=DELTA, **params).fit(A)
    return np.linalg.norm(A - model.reconstruct())


def truncated(M, k):
    U, s, Vt = np.linalg.svd(M, full_matrices=False)
    return (U[:, :k] * s[:k]) @ Vt[:k]


def dense_error(A, k, epsilon=1.0):
    """A plus noise, truncated."""
    noise = RNG.standard_normal(A.shape) / mu_from_epsilon_delta(epsilon, DELTA)
    return np.linalg.norm(A - truncated(A + noise, k))


def two_pass_error(A, k, epsilon=1.0, t=40):
    """Hardt and Roth: Q spans A F + noise, then Q'A + noise; half of mu squared each."""
    m, n = A.shape
    scale = 1.03 * math.sqrt(2) / mu_from_epsilon_delta(epsilon, DELTA)
    F = RNG.standard_normal((n, t)) / math.sqrt(t)
    U = np.linalg.svd(A @ F + scale * RNG.standard_normal((m, t)), full_matrices=False)[0]
    Q = U[:, : 2 * k]
    B = Q.T @ A + scale * RNG.standard_normal((Q.shape[1], n))
    return np.linalg.norm(A - Q @ truncated(B, k))


def paper_error(A, k, epsilon=1.0, t=40, v=160, alpha=0.25):
    """Upadhyay's three sketches with padding and the printed constants."""
    m, n = A.shape
    log = math.log(1 / DELTA)
    kappa = (1 + alpha) / (1 - alpha)
    pad = 16 * log * math.sqrt(t * kappa * log) / epsilon
    rho1 = math.sqrt((1 + alpha) * log) / epsilon
    rho2 = math.sqrt(1 + alpha) * rho1
    padded = np.hstack([A, pad * np.eye(m)])

    def sketch(rows, columns, size):
        return RNG.standard_normal((rows, columns)) / math.sqrt(size)

    Yc = padded @ sketch(m + n, t, t)
    Yr = sketch(t, m, t) @ padded + rho1 * RNG.standard_normal((t, m + n))
    S, T = sketch(v, m, v), sketch(v, m + n, v)
    Z = S @ padded @ T.T + rho2 * RNG.standard_normal((v, v))
    U, Vt = np.linalg.qr(Yc)[0], np.linalg.qr(Yr.T)[0].T
    Us, s, Vs = np.linalg.svd(S @ U, full_matrices=False)
    Ut, r, Vr = np.linalg.svd(Vt @ T.T, full_matrices=False)
    X = (Vs.T / s) @ truncated(Us.T @ Z @ Vr.T, k) @ (Ut / r).T
    return np.linalg.norm(A - (U @ X @ Vt)[:, :n])


def typical(A, k, error, *args, epsilon=1.0, fits=FITS, **params):
    """Median error of some fits."""
    errors = [error(A, k, *args, epsilon=epsilon, **params) for _ in range(fits)]
    return statistics.median(errors)


def cells(A, k, error, *args, epsilon=1.0, **params):
    """Median error, and its ratio to the reference."""
    middle = typical(A, k, error, *args, epsilon=epsilon, **params)
    return [f"{middle:.0f}", f"{middle / reference(A, k, epsilon):.2f}"]


def sizes():
    """Error against n (rank 10, t=40, v=160, epsilon 1)."""
    two = {"method": "two_sketch", "sketch_size": (40, 160)}
    table = []
    for n in sized((250, 500, 1000, 2000), (250, 500)):
        A = low_rank(n, n, 10)
        errors = {
            "two_sketch": typical(A, 10, skdp_error, **two),
            "three_sketch": typical(A, 10, skdp_error, **(two | {"method": "three_sketch"})),
            "auto": typical(A, 10, skdp_error),
            "zero": float(np.linalg.norm(A)),
            "two-pass HR": typical(A, 10, two_pass_error),
        }
        if n <= 1000:  # an SVD of the whole matrix
            errors["dense, cut"] = typical(A, 10, dense_error, fits=1)
            errors["paper"] = typical(A, 10, paper_error, fits=1)
        peer, unit = errors["two-pass HR"], reference(A, 10)
        table += [
            [n, name, f"{error:.0f}", f"{error / unit:.2f}", f"{error / peer:.2f}"]
            for name, error in errors.items()
        ]
    note = (
        f"Median of {FITS} fits, one of the last two. 'zero' is the zero matrix, 'two-pass HR' the "
        "method of Hardt and Roth (2012), 'dense, cut' A plus noise, truncated, 'paper' the "
        "algorithm of Upadhyay (2018) with its own constants."
    )
    show(sizes.__doc__, ["n", "method", "error", "/ reference", "/ two-pass HR"], table, note)


def ranks():
    """Error against k (800 x 800, two sketches of default sizes, epsilon 1)."""
    table = [
        [k, *cells(low_rank(800, 800, k), k, skdp_error, method="two_sketch")]
        for k in sized((1, 2, 5, 10, 20, 50), (1, 5))
    ]
    show(ranks.__doc__, ["k", "error", "/ reference"], table)


def budgets():
    """Error against epsilon (1000 x 800, rank 10, t=80), next to two-pass Hardt and Roth."""
    A, table = low_rank(1000, 800, 10), []
    for epsilon in sized((0.25, 0.5, 1.0, 2.0, 4.0, 8.0), (1.0,)):
        options = {"method": "two_sketch", "sketch_size": 80}
        ours = typical(A, 10, skdp_error, epsilon=epsilon, **options)
        theirs = typical(A, 10, two_pass_error, epsilon=epsilon, t=80)
        unit = reference(A, 10, epsilon)
        row = [f"{ours / unit:.2f}", f"{theirs / unit:.2f}", f"{ours / theirs:.2f}"]
        table.append([epsilon, *row])
    head = ["epsilon", "two_sketch / reference", "two-pass HR / reference", "ratio"]
    show(budgets.__doc__, head, table)


def sketches():
    """Error against sketch sizes and kinds (1000 x 800, rank 10, epsilon 1)."""
    A, table = low_rank(1000, 800, 10), []
    for t, v in ((40, 80), (80, 80), (100, 200), (200, 200))[: sized(4, 2)]:
        options = {"method": "two_sketch", "sketch_size": (t, v)}
        table.append([f"t={t}, v={v}", *cells(A, 10, skdp_error, **options)])
    for kind in ("gaussian", "srht", "sparse", "isometry"):
        options = {"sketch": kind, "sensitivity_mode": "worst_case", "sketch_size": 80}
        errors = cells(A, 10, skdp_error, method="two_sketch", **options)
        table.append([f"worst case, {kind}", *errors])
    show(sketches.__doc__, ["sketch", "error", "/ reference"], table)


def seconds(update, batches):
    """CPU seconds of all updates."""
    start = time.process_time()
    for batch in batches:
        update(*batch)
    return time.process_time() - start


def updates():
    """Updates in batches of 50,000 (5000 x 3000, t=60, v=120), next to a matrix in memory."""
    m, n, size = 5000, 3000, 50_000
    matrix, table = np.zeros((m, n)), []

    def add(i, j, x):
        np.add.at(matrix, (i, j), x)

    for kind, mode in (("sparse", "random"), ("gaussian", "worst_case")):
        model = DPLowRankFactorizer(
            10, privacy_unit="entry", matrix_shape=(m, n), method="two_sketch", sketch=kind,
            sensitivity_mode=mode, sketch_size=(60, 120),
        )  # fmt: skip
        batches = [
            (RNG.integers(0, m, size), RNG.integers(0, n, size), RNG.random(size))
            for _ in range(sized(20, 3))
        ]
        model.update(*batches[0]), add(*batches[0])
        ours, plain = seconds(model.update, batches), seconds(add, batches)
        rate = size * len(batches) / ours / 1e6
        model.release()
        sizes = f"{model.state_bytes_ / 1e6:.1f}", f"{8 * m * n / 1e6:.0f}"
        table.append([kind, f"{rate:.2f}", f"{ours / plain:.2f}", *sizes])
    head = ["sketch", "million a CPU second", "CPU / np.add.at", "state (MB)", "matrix (MB)"]
    show(updates.__doc__, head, table)


def servers():
    """Error over the reference: independent noise of p servers, and shares under a secure sum."""
    A = low_rank(*sized((1000, 800), (500, 400)), 10)
    model = DPLowRankFactorizer(
        10, method="two_sketch", sensitivity_mode="oblivious", sketch_size=80, matrix_shape=A.shape
    )
    new = partial(model.for_server, sketch_seed=1)
    table = []

    def error(model):
        return np.linalg.norm(A - model.release().reconstruct()) / reference(A, 10)

    for p in sized((1, 4, 16), (1, 4)):
        single, shared = new(), new()
        for _ in range(p):
            single.merge(new().update_matrix(A / p).state_message())
        parts = [new(n_honest_servers=p).update_matrix(A / p) for _ in range(p)]
        shared.merge_secure(parts, lambda arrays: np.sum(arrays, axis=0, dtype=np.int64))
        table.append([p, f"{error(single):.2f}", f"{error(shared):.2f}"])
    note = f"One fit each, {A.shape[0]} x {A.shape[1]}, rank 10, epsilon 1."
    show(servers.__doc__, ["p", "independent", "secure sum"], table, note)


def means():
    """Relative error on digits (600 x 64, rank 3) by unit and epsilon, and of trivial baselines."""
    A = load_digits().data[:600]
    m, n = A.shape
    longest = float(np.linalg.norm(A, axis=1).max())
    units = {
        "row": ({"adjacency": "zero_out", "unit_bound": longest}, longest),
        "entry": ({"unit_bound": (0, 16)}, 16.0),
        "frobenius": ({"unit_bound": 16.0}, 16.0),
    }
    table = []
    for unit, (params, change) in units.items():
        for epsilon in (0.5, 1, 3, 10):
            mu = mu_from_epsilon_delta(epsilon, DELTA)
            # A change of norm 16 moves sums of m equal parts, or of m n, by more.
            one, column = (math.sqrt(m * n), math.sqrt(m)) if unit == "frobenius" else (1, 1)
            one *= math.sqrt(n) if unit == "row" else 1
            errors = []
            for _ in range(sized(9, 2)):
                ours = skdp_error(A, 3, epsilon=epsilon, privacy_unit=unit, **params)
                total = A.sum() + change * one / mu * RNG.standard_normal()
                sums = A.sum(axis=0) + change * column / mu * RNG.standard_normal(n)
                noisy = A + change / mu * RNG.standard_normal(A.shape)
                guesses = total / (m * n), sums / m, truncated(noisy, 3)
                errors.append([ours, *(np.linalg.norm(A - guess) for guess in guesses)])
            middle = np.median(errors, axis=0) / np.linalg.norm(A)
            table.append([unit, epsilon, *(f"{error:.2f}" for error in middle)])
    head = ["unit", "epsilon", "DPLowRankFactorizer", "one mean", "column means", "A plus noise"]
    show(
        means.__doc__, head, table, "Zeros have the error 1. Each baseline spends the whole budget."
    )


SECTIONS = (sizes, ranks, budgets, sketches, updates, servers, means)


def tables(full):
    """Tables for ``python -m benchmarks``."""
    return tables_of(SECTIONS, full)


if __name__ == "__main__":
    run_sections(__doc__, SECTIONS)
