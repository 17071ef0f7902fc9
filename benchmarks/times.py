"""Times of all estimators next to scikit-learn's class, and how they grow with the data.

Run: ``python -m benchmarks times``, or ``--full`` for 100,000 x 100 dense rows and sparse ones of
1.4 million entries. Each fit is timed next to scikit-learn's in the same process, in turn: the
ratios of medians count, not the seconds. The last columns are ratios: CPU time with one thread,
and wall time of fits with two.
"""

import statistics
import time
from functools import partial
from unittest.mock import patch

import numpy as np
import scipy.sparse as sp
from report import Table, show, shown
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA, IncrementalPCA, TruncatedSVD
from sklearn.linear_model import LinearRegression, Ridge, RidgeClassifier
from sklearn.manifold import SpectralEmbedding
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from skdp import (
    DPPCA,
    DPIncrementalPCA,
    DPLowRankFactorizer,
    DPPersonalizedRegressor,
    DPRidge,
    DPRidgeClassifier,
    DPSpectralEmbedding,
    DPTraceRegressor,
    DPTruncatedSVD,
)
from skdp.data.blocks import DenseRows
from skdp.preprocessing import DPStandardScaler
from skdp.privacy.gate.session import PrivacySession

K = 10
METHODS = ("fit", "fit_transform", "transform")
HEAD = [
    "estimator",
    "compared with",
    "rows",
    "method",
    "CPU (ms)",
    "CPU, 1 thread",
    "wall, 2 threads",
]


def dense_rows(n, d):
    """Correlated rows about 0, targets that are linear in them, and their classes."""
    rng = np.random.default_rng(0)
    mixing = np.linalg.qr(rng.standard_normal((d, d)))[0]
    X = (rng.standard_normal((n, d)) * np.linspace(3.0, 0.3, d)) @ mixing
    y = X[:, 0] + rng.standard_normal(n)
    return X, y, (y > 0).astype(int)


def sparse_rows(n, d, entries):
    """Rows of counts, most of which are 0."""
    rng = np.random.default_rng(1)
    columns = np.minimum((rng.pareto(1.0, n * entries) * d / 100).astype(int), d - 1)
    rows = np.repeat(np.arange(n), entries)
    return sp.csr_matrix((np.ones(len(rows)), (rows, columns)), shape=(n, d))


def dense_pairs(threads, clip_norm):
    """Return (name, ours, scikit-learn's class) for dense rows."""
    eigh = {"svd_solver": "covariance_eigh"}
    return [
        ("DPPCA", DPPCA(K, n_jobs=threads), PCA(K, **eigh)),
        (
            "DPPCA, clip norm given, not centred",
            DPPCA(K, clip_norm=clip_norm, center="none", n_jobs=threads),
            PCA(K, **eigh),
        ),
        ("DPTruncatedSVD", DPTruncatedSVD(K, n_jobs=threads), TruncatedSVD(K)),
        (
            "DPIncrementalPCA",
            DPIncrementalPCA(K, clip_norm=clip_norm, n_jobs=threads),
            IncrementalPCA(K),
        ),
        ("DPStandardScaler", DPStandardScaler(n_jobs=threads), StandardScaler()),
        ("DPRidge", DPRidge(n_jobs=threads), Ridge()),
        ("DPRidgeClassifier", DPRidgeClassifier(n_jobs=threads), RidgeClassifier()),
    ]


def sparse_pairs(threads):
    """Return (name, ours, scikit-learn's class) for CSR rows."""
    return [
        ("DPTruncatedSVD", DPTruncatedSVD(K, n_jobs=threads), TruncatedSVD(K)),
        ("DPPCA, not centred", DPPCA(K, center="none", n_jobs=threads), TruncatedSVD(K)),
        (
            "DPStandardScaler",
            DPStandardScaler(with_mean=False, n_jobs=threads),
            StandardScaler(with_mean=False),
        ),
        ("DPLowRankFactorizer", DPLowRankFactorizer(K), TruncatedSVD(K)),
    ]


def calls(model, X, targets):
    """Return what is timed, by name: each call fits, or uses, one model."""

    def fit():
        model.fit(X, *targets)

    out = {"fit": fit}
    if hasattr(model, "transform"):
        out["fit_transform"] = lambda: model.fit_transform(X, *targets)
        out["transform"] = lambda: model.transform(X)
    return out


def in_turn(ours, theirs, n_times, clock):
    """Return the medians of two functions that run in turn, and that of their ratios."""
    times = []
    for _ in range(n_times):
        pair = []
        for function in (ours, theirs):
            start = clock()
            function()
            pair.append(max(clock() - start, 1e-9))
        times.append(pair)
    first, second = map(statistics.median, zip(*times, strict=True))
    return first, first / second


def compared(pairs_of, X, targets_of, form, n_times):
    """Return the lines of one set of rows: CPU time with one thread, wall time with two."""
    lines = []
    for one, two in zip(pairs_of(1), pairs_of(2), strict=True):
        name, ours, theirs = one
        targets = targets_of(name)
        single, beside = calls(ours, X, targets), calls(theirs, X, targets)
        double = calls(two[1], X, targets)
        with threadpool_limits(1):
            ours.fit(X, *targets)
            theirs.fit(X, *targets)
            cpu = {
                method: in_turn(single[method], beside[method], n_times, time.process_time)
                for method in METHODS
                if method in single and method in beside
            }
        with threadpool_limits(2):
            two[1].fit(X, *targets)
            wall = in_turn(double["fit"], beside["fit"], n_times, time.perf_counter)[1]
        for method, (seconds, ratio) in cpu.items():
            threads = f"{wall:.2f}" if method == "fit" else ""
            line = [name, type(theirs).__name__, form, method, f"{1000 * seconds:.1f}"]
            lines.append([*line, f"{ratio:.2f}", threads])
    return lines


def row_estimators(X, y, classes, form, n_times):
    """Lines of the estimators that take rows."""
    clip_norm = float(np.median(np.linalg.norm(X, axis=1)))

    def targets_of(name):
        return {"DPRidge": (y,), "DPRidgeClassifier": (classes,)}.get(name, ())

    return compared(lambda jobs: dense_pairs(jobs, clip_norm), X, targets_of, form, n_times)


def other_units(full, n_times):
    """Lines of the estimators of users, records and graphs, whose input has another form."""
    rng = np.random.default_rng(2)
    n_users = 10_000 if full else 1000
    X, y, _ = dense_rows(20 * n_users, 50)
    users = np.repeat(np.arange(n_users), 20)
    pairs = [
        (
            "DPPersonalizedRegressor",
            lambda: DPPersonalizedRegressor(3).fit(X, y, groups=users),
            lambda: Ridge().fit(X, y),
            "Ridge",
            f"{n_users} users x 20 x 50",
        )
    ]
    n = 40_000 if full else 10_000
    measurements = rng.standard_normal((n, 64))
    responses = measurements @ rng.standard_normal(64) + rng.standard_normal(n)
    pairs.append(
        (
            "DPTraceRegressor",
            lambda: DPTraceRegressor(2, matrix_shape=(8, 8)).fit(measurements, responses),
            lambda: LinearRegression().fit(measurements, responses),
            "LinearRegression",
            f"{n} x (8 x 8)",
        )
    )
    m = 2000 if full else 500
    graph = sp.random_array((m, m), density=20 / m, rng=rng)
    graph = sp.csr_matrix(((graph + graph.T) > 0).astype(float))
    pairs.append(
        (
            "DPSpectralEmbedding",
            lambda: DPSpectralEmbedding(2, epsilon=8.0).fit(graph),
            lambda: SpectralEmbedding(2, affinity="precomputed").fit(graph),
            "SpectralEmbedding",
            f"{m} nodes",
        )
    )
    lines = []
    for name, ours, theirs, beside, form in pairs:
        with threadpool_limits(1):
            seconds, ratio = in_turn(ours, theirs, n_times, time.process_time)
        lines.append([name, beside, form, "fit", f"{1000 * seconds:.1f}", f"{ratio:.2f}", ""])
    return lines


def fastest(function, repeats=7):
    """Return the least time of some calls, in seconds of CPU time."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return max(min(times), 1e-9)


def growth_of(data, fit, sizes):
    """Return the exponents of the CPU time: over all sizes, and over the last two."""
    seconds = [fastest(partial(fit, data(size)), 3) for size in sizes]
    logs, sizes = np.log(seconds), np.log(sizes)
    return [f"{(logs[-1] - logs[i]) / (sizes[-1] - sizes[i]):.2f}" for i in (0, len(sizes) - 2)]


def growth():
    """Return how the time of a fit grows with rows, columns, users and entries."""
    column = DPTraceRegressor(2, matrix_shape=(15, 10))
    rows, wide = (20_000, 40_000, 80_000), (250, 500, 1000)

    def tall(n):
        return dense_rows(n, 50)

    def broad(d):
        return dense_rows(5000, d)

    def users(n):
        X, y, _ = dense_rows(10 * n, 10)
        return X, y, np.repeat(np.arange(n), 10)

    cases = [
        ("DPPCA(5)", "rows", tall, lambda t: DPPCA(5).fit(t[0]), rows),
        ("DPPCA(5)", "columns", broad, lambda t: DPPCA(5).fit(t[0]), wide),
        ("DPRidge()", "rows", tall, lambda t: DPRidge().fit(*t[:2]), rows),
        ("DPRidge()", "columns", broad, lambda t: DPRidge().fit(*t[:2]), wide),
        ("DPStandardScaler()", "rows", tall, lambda t: DPStandardScaler().fit(t[0]), rows),
        ("DPStandardScaler()", "columns", broad, lambda t: DPStandardScaler().fit(t[0]), wide),
        ("DPRidgeClassifier()", "rows", tall,
         lambda t: DPRidgeClassifier(classes=[0, 1]).fit(t[0], t[2]), rows),
        ("DPTruncatedSVD(10), sparse", "rows", lambda n: sparse_rows(n, 4000, 20),
         lambda X: DPTruncatedSVD(10).fit(X), rows),
        ("DPTruncatedSVD(10), sparse", "columns", lambda d: sparse_rows(20_000, d, 20),
         lambda X: DPTruncatedSVD(10).fit(X), (5000, 10_000, 20_000)),
        ("DPPersonalizedRegressor(2)", "users", users,
         lambda t: DPPersonalizedRegressor(2).fit(*t[:2], groups=t[2]), (2500, 5000, 10_000)),
        ("DPTraceRegressor(2)", "records", lambda n: dense_rows(n, 150),
         lambda t: column.fit(*t[:2]), (5000, 10_000, 20_000)),
    ]  # fmt: skip
    return [
        [name, of, " ".join(map(str, sizes)), *growth_of(data, fit, sizes)]
        for name, of, data, fit, sizes in cases
    ]


REASONS = {
    "column_centered_ranks": "columns as integers, for all questions of where they lie",
    "column_moments": "means and variances, in the units that were told",
    "norm_centered_rank": "lengths of rows, for all questions about a clip norm",
    "norm_count_above": "lengths of rows, for the count of long ones",
    "row_sum": "a mean, of rows clipped to the norm that the lengths told",
    "gram": "the moment of clipped rows, about a mean if one was released",
    "augmented_gram": "sums and moments at once, of rows clipped to a given norm",
    "regression_moments": "products of records in the units, clip norm and cut that were told",
    "regression_products": "products of the same rows with labels",
    "target_count_above": "distances of targets from their centre, for the count of far ones",
    "cut_gain": "what predictions gain if entries are cut farther out",
    "target_sums": "the mean of the targets, of records as the moments weigh them",
}


def passes_of(fit):
    """Return how often a fit passes over its rows, for which releases, in order, and why."""
    passes, names = [], []
    blocks, read = DenseRows.blocks, PrivacySession._read

    def counted(rows):
        passes.append(rows)
        return blocks(rows)

    def named(session, answer, grant):
        before = len(passes)
        exact = read(session, answer, grant)
        names.extend([grant.bound.name] * (len(passes) - before))
        return exact

    with patch.object(DenseRows, "blocks", counted), patch.object(PrivacySession, "_read", named):
        fit()
    return [str(len(names)), ", ".join(names), "; ".join(REASONS[name] for name in names)]


def passes():
    """Return the passes of default fits of dense rows: each costs about as much as a copy."""
    X, y, classes = dense_rows(20_000, 100)
    clip_norm = float(np.median(np.linalg.norm(X, axis=1)))
    fits = []
    for name, model, _ in dense_pairs(1, clip_norm):
        targets = {"DPRidge": (y,), "DPRidgeClassifier": (classes,)}.get(name, ())
        fits.append([name, *passes_of(partial(model.fit, X, *targets))])
    return [*fits, ["DPPCA, rows far from 0", *passes_of(partial(DPPCA(K).fit, X + 20.0))]]


def of_this_machine():
    """Say how fast one thread copies, multiplies numbers in cache, and multiplies matrices.

    Fits are many short passes over rows, scikit-learn's are few products: ratios follow from these.
    """
    rng = np.random.default_rng(3)
    far, near, A = rng.random(10_000_000), rng.random(65_536), rng.random((1500, 1500))
    there, here = np.empty_like(far), np.empty_like(near)
    with threadpool_limits(1):
        copied = 2 * far.nbytes / fastest(lambda: np.copyto(there, far))
        passes = fastest(lambda: [np.multiply(near, near, out=here) for _ in range(100)])
        passed = 200 * near.nbytes / passes
        products = 2 * 1500**3 / fastest(lambda: A @ A)
    return (
        f"One thread here copies {copied / 1e9:.0f} GB a second from memory to memory, passes over "
        f"numbers in cache at {passed / 1e9:.0f} GB a second, and does {products / 1e9:.0f} "
        "billion operations of a matrix product. Where passes are slow compared to products, "
        "ratios are larger."
    )


def tables(full):
    """Yield the tables: small and large dense rows, sparse rows, other units."""
    n_times = 5 if full else 3
    n, d = (100_000, 100) if full else (20_000, 100)
    sparse_shape = (60_000, 12_000, 23) if full else (10_000, 4000, 20)
    note = (
        f"Medians of {n_times}, in turn with scikit-learn's class in one process, on all defaults "
        "but those named. Reported, never asserted: ratios move with the load of a machine. "
        + of_this_machine()
    )

    def small():
        X, y = load_digits(return_X_y=True)
        show("digits", HEAD, row_estimators(X, y.astype(float), y, "1797 x 64", n_times), note)

    def large():
        X, y, classes = dense_rows(n, d)
        show("dense rows", HEAD, row_estimators(X, y, classes, f"{n} x {d}", n_times))

    def sparse():
        X = sparse_rows(*sparse_shape)
        form = f"CSR, {X.shape[0]} x {X.shape[1]}, {X.nnz} entries"
        show("sparse rows", HEAD, compared(sparse_pairs, X, lambda _: (), form, n_times))

    def others():
        show("other units", HEAD, other_units(full, n_times))

    def growing():
        with threadpool_limits(1):
            lines = growth()
        head = ["estimator", "grows by", "sizes", "exponent", "of the last doubling"]
        show("how fits grow: exponents of the CPU time, one thread", head, lines, note)

    def passing():
        note = (
            "A release that is not listed reads what an earlier one kept. A pass needs what those "
            "before it released: a clip norm, a mean, units. A norm is measured again "
            "where the centre of the rows is another one; columns are kept, and seen about all "
            "centres from there."
        )
        head = ["estimator", "passes", "for", "why"]
        show("passes over the rows of a default fit", head, passes(), note)

    for part in (small, large, sparse, others, growing, passing):
        found: list[Table] = shown(part)
        yield from found


if __name__ == "__main__":
    list(tables(full=False))
