"""DPTraceRegressor against non-private and private baselines, on the same data in one run.

Run: ``python benchmarks/trace.py [accuracy] [records] [ratings] [labels] [time]`` (by default the
first).
Errors are ||M^ - M||_F / ||M||_F, medians over fresh seeds; the zero matrix has error 1.

The systems called "paper" are Algorithms 1 and 2 of Zha (2024), "Near-optimal differentially
private low-rank trace regression with guaranteed private initialization", calibrated its way, where
sqrt(d1 + d2) is restored in the sensitivities and the noise of the core is a full matrix. They need
the true singular values and noise level, and their guarantee needs Gaussian data: they are here as
a reproduction, not as something to use. "weak" is the paper's notion where only y changes.
"""

import math
import sys
import time
import warnings

import numpy as np
import scipy.sparse as sp
from report import printed, show, shown
from threadpoolctl import threadpool_limits

from skdp.datasets import make_ratings
from skdp.privacy import mu_from_epsilon_delta
from skdp.regression import DPTraceRegressor
from skdp.solvers.trace import retract

DELTA = 1e-6


class Problem:
    """Gaussian measurements of a matrix with given singular values."""

    def __init__(self, n, seed, shape=(20, 20), values=(1.0, 1.0), noise=0.5):
        rng = np.random.default_rng(seed)
        U, V = (np.linalg.qr(rng.standard_normal((d, len(values))))[0] for d in shape)
        self.M = (U * np.array(values)) @ V.T
        self.X = rng.standard_normal((n, math.prod(shape)))
        self.y = self.X @ self.M.ravel() + noise * rng.standard_normal(n)
        self.shape, self.values, self.noise, self.rank = shape, values, noise, len(values)
        self.rng = rng

    def error(self, estimate):
        return float(np.linalg.norm(estimate - self.M) / np.linalg.norm(self.M))

    def gradient(self, M):
        return (self.X.T @ (self.X @ M.ravel() - self.y)).reshape(self.shape) / len(self.y)


def truncated(M, rank):
    U, s, Vt = np.linalg.svd(M)
    return U[:, :rank], s[:rank], Vt[:rank].T


def descend(problem, start, steps, noise=lambda: 0.0):
    """Riemannian gradient descent; `noise` draws a matrix, projected on the tangent space."""
    U, s, V = start
    for _ in range(steps):
        G = -(problem.gradient((U * s) @ V.T) + noise())
        left = U.T @ G
        U, s, V = retract(U, np.diag(s), V, G @ V, left - left @ V @ V.T)
    return (U * s) @ V.T


def riemannian(problem, epsilon=None):
    start = truncated(-problem.gradient(np.zeros(problem.shape)), problem.rank)
    return descend(problem, start, 15)


def burer_monteiro(problem, epsilon=None):
    U, s, V = truncated(-problem.gradient(np.zeros(problem.shape)), problem.rank)
    A, B = U * np.sqrt(s), V * np.sqrt(s)
    for _ in range(60):
        G = problem.gradient(A @ B.T)
        A, B = A - 0.5 * G @ B @ np.linalg.inv(B.T @ B), B - 0.5 * G.T @ A @ np.linalg.inv(A.T @ A)
    return A @ B.T


def nuclear(problem, epsilon=None):
    n, (d1, d2) = len(problem.y), problem.shape
    level = problem.noise * (math.sqrt(d1) + math.sqrt(d2)) / math.sqrt(n)
    rate, M = 1 / (1 + 2 * math.sqrt(d1 * d2 / n)) ** 2, np.zeros(problem.shape)
    for _ in range(200):
        U, s, Vt = np.linalg.svd(M - rate * problem.gradient(M), full_matrices=False)
        M = (U * np.maximum(s - rate * level, 0)) @ Vt
    return M


def ridge(problem, epsilon):
    """Private ridge regression by sufficient statistics (AdaSSP), rank truncated afterwards."""
    X, y = problem.X, problem.y
    d, mu = X.shape[1], mu_from_epsilon_delta(epsilon, DELTA)
    bx, by = math.sqrt(d) * 1.2, 3 * float(np.std(y))  # public bounds that somebody must know
    X = X * np.minimum(1, bx / np.linalg.norm(X, axis=1))[:, None]
    G = problem.rng.standard_normal((d, d)) * bx**2 * math.sqrt(3) / mu
    moment = X.T @ X + (G + G.T) / 2
    low = np.linalg.eigvalsh(moment)[0]
    strength = max(0.0, 2 * bx**2 * math.sqrt(3 * d) / mu - max(low, 0.0))
    noise = problem.rng.standard_normal(d) * bx * by * math.sqrt(3) / mu
    products = X.T @ np.clip(y, -by, by) + noise
    solved = np.linalg.solve(moment + strength * np.eye(d), products)
    U, s, V = truncated(solved.reshape(problem.shape), problem.rank)
    return (U * s) @ V.T


def paper(problem, epsilon, *, weak=False, descent=True):
    n, (d1, d2), r = len(problem.y), problem.shape, problem.rank
    largest, smallest, sx = max(problem.values), min(problem.values), problem.noise
    share = (epsilon / 2, DELTA / 2) if descent else (epsilon, DELTA)
    signal = sx if weak else math.sqrt(r) * largest + sx
    D1 = signal / smallest * math.sqrt(r) * math.log(n) / n * math.sqrt(d1 + d2)
    draw = problem.rng.standard_normal

    def scale(D):
        return D * math.sqrt(18 * math.log(3.75 / share[1])) / share[0]

    def leading(P, d):
        upper = np.triu(draw((d, d))) * scale(D1)
        return np.linalg.eigh(P + upper + np.triu(upper, 1).T)[1][:, -r:]

    L = -problem.gradient(np.zeros(problem.shape))
    U, _, V = truncated(L, r)
    U, V = leading(U @ U.T, d1), leading(V @ V.T, d2)
    core = U.T @ L @ V + draw((r, r)) * scale(smallest * D1)
    P, s, Qt = np.linalg.svd(core)
    start = U @ P, s, V @ Qt.T
    if not descent:
        return (start[0] * s) @ start[2].T
    steps = 5
    D = (sx + (0 if weak else smallest)) * math.sqrt(r * (d1 + d2) * math.log(n)) / n
    std = D * steps * math.sqrt(2 * math.log(1.25 * steps / share[1])) / share[0]
    return descend(problem, start, steps, lambda: -std * draw(problem.shape))


def ours(**params):
    def fit(problem, epsilon):
        model = DPTraceRegressor(problem.rank, matrix_shape=problem.shape, epsilon=epsilon)
        return model.set_params(**params).fit(problem.X, problem.y).coef_

    return fit


SYSTEMS = {
    "not private: Riemannian": riemannian,
    "not private: Burer-Monteiro": burer_monteiro,
    "not private: nuclear norm": nuclear,
    "DPTraceRegressor": ours(),
    "DPTraceRegressor, public design": ours(measurement_covariance=1.0),
    "DPTraceRegressor, replace": ours(adjacency="replace"),
    "DPTraceRegressor, label": ours(privacy_unit="label"),
    "DPTraceRegressor, spectral_init": ours(solver="spectral_init"),
    "ridge by sufficient statistics": ridge,
    "paper: start alone (assumes)": lambda p, e: paper(p, e, descent=False),
    "paper: start and descent (assumes)": paper,
    "paper: weak notion (assumes)": lambda p, e: paper(p, e, weak=True),
}


def accuracy(sizes=(2000, 5000, 10_000, 30_000), epsilons=(1.0, 4.0), seeds=5):
    for epsilon in epsilons:
        errors = {name: [] for name in SYSTEMS}
        for n in sizes:
            problems = [Problem(n, 900 + seed) for seed in range(seeds)]
            for name, system in SYSTEMS.items():
                found = [p.error(system(p, epsilon)) for p in problems]
                errors[name].append(float(np.median(found)))
        best = next(iter(errors.values()))[-1]  # not private: Riemannian
        rows = [
            [name, *(f"{value:.4f}" for value in row), f"{row[-1] / best:.2f}"]
            for name, row in errors.items()
        ]
        title = (
            f"relative error of the matrix, epsilon {epsilon:g}, 20 x 20, rank 2, noise .5, delta "
            f"1e-6: median of {seeds} seeds"
        )
        show(title, ["records", *sizes, "ratio to the first line"], rows)


def designed(name, n, seed, shape=(12, 12), rank=2, noise=0.5):
    """Records of a design, targets with a noise of `noise`, and the matrix."""
    rng = np.random.default_rng([seed, n, rank])
    U, V = (np.linalg.qr(rng.standard_normal((d, rank)))[0] for d in shape)
    M, size = U @ V.T, math.prod(shape)
    if name == "one entry":
        X = sp.csr_array((np.ones(n), rng.integers(size, size=n), np.arange(n + 1)), (n, size))
        noise *= float(np.linalg.norm(M)) / math.sqrt(size)
    elif name == "rank one":
        X = tuple(rng.standard_normal((n, d)) for d in shape)
    else:
        X = rng.standard_normal((n, *shape))
        if name == "correlated":
            roots = (np.linalg.cholesky(0.6 ** abs(np.subtract.outer(*2 * [range(d)])))
                     for d in shape)  # fmt: skip
            X = next(roots) @ X @ next(roots).T
        elif name == "t with 3 degrees":
            X *= np.sqrt(3 / rng.chisquare(3, n))[:, None, None]
        X = X.reshape(n, size)
    signal = np.einsum("ij,jk,ik->i", X[0], M, X[1]) if isinstance(X, tuple) else X @ M.ravel()
    return X, signal + noise * rng.standard_normal(n), M


DESIGNS = ("normal", "correlated", "one entry", "rank one", "t with 3 degrees")


def labels(sizes=(1000, 3000, 10_000), epsilons=(0.3, 1.0, 3.0, 10.0), ranks=(1, 3), seeds=5):
    """Error under the unit "label", in units of that under "row", on the same data."""
    for adjacency in ("add_remove", "replace"):
        table, lost = [], 0
        for name in DESIGNS:
            cells = []
            for epsilon in epsilons:
                logs = []
                for n, rank in ((n, rank) for n in sizes for rank in ranks):
                    ratios = [_label_ratio(name, n, rank, epsilon, adjacency, s)
                              for s in range(seeds)]  # fmt: skip
                    logs += ratios
                    error = np.std(ratios, ddof=1) / math.sqrt(seeds)
                    lost += bool(np.mean(ratios) > 3 * error + 1e-9)
                cells.append(f"{math.exp(np.mean(logs)):.3f}")
            table.append([name, *cells])
        count = len(DESIGNS) * len(epsilons) * len(sizes) * len(ranks)
        title = (
            f"error of the label unit over that of the row unit, {adjacency}, 12 x 12, ranks "
            f"{ranks}, n {sizes}: geometric mean of {seeds} seeds"
        )
        note = f"{lost} of {count} cells are worse by more than three standard errors."
        show(title, ["design, epsilon", *epsilons], table, note)


def _label_ratio(name, n, rank, epsilon, adjacency, seed):
    X, y, M = designed(name, n, seed, rank=rank)
    model = DPTraceRegressor(rank, matrix_shape=M.shape, epsilon=epsilon, adjacency=adjacency)
    errors = [
        np.linalg.norm(model.set_params(privacy_unit=unit).fit(X, y).coef_ - M)
        for unit in ("label", "row")
    ]
    return math.log(errors[0] / errors[1])


TABLES = {"1000 x 100": 18_000, "300 x 300": 50_000, "2000 x 50": 40_000}


def drawn_ratings(shape, number, seed):
    """Ratings as CSR records, their columns, and which are held out."""
    R = make_ratings(*shape, number, 4, random_state=seed).tocoo()
    n, cells = R.nnz, R.row * R.shape[1] + R.col
    X = sp.csr_array((np.ones(n), cells, np.arange(n + 1)), shape=(n, math.prod(shape)))
    return X, R.col, R.data, np.random.default_rng([seed, 1]).random(n) < 0.2


def released_means(column, y, d, mu, rng, *, shrunk=False):
    """Counts and sums about 3 of ratings from 1 to 5, half of the budget each; d predictions."""
    scale = math.sqrt(2) / mu
    counts = np.bincount(column, minlength=d) + scale * rng.standard_normal(d)
    sums = np.bincount(column, y - 3, d) + 2 * scale * rng.standard_normal(d)
    counts = np.maximum(counts, 1.0)
    if not shrunk:
        return 3 + np.clip(sums / counts, -2, 2)
    pooled = float(np.clip(sums.sum() / counts.sum(), -2, 2))
    beside, noise = sums - pooled * counts, 4 * scale**2 + counts  # ratings vary by about 1
    varies = max(0.0, float(np.mean(beside**2 - noise) / np.mean(counts**2)))
    return 3 + pooled + beside * counts * varies / (counts**2 * varies + noise)


def guessed(name, epsilon, seed):
    """Return held-out ratings, and what each system predicts of them."""
    shape = tuple(map(int, name.split(" x ")))
    X, column, y, out = drawn_ratings(shape, TABLES[name], seed)
    known, own, asked = column[~out], y[~out], column[out]
    mu, rng = mu_from_epsilon_delta(epsilon, DELTA), np.random.default_rng([seed, 2])
    model = DPTraceRegressor(2, matrix_shape=shape, epsilon=epsilon).fit(X[~out], own)
    high = DPTraceRegressor(8, matrix_shape=shape, epsilon=epsilon).fit(X[~out], own)
    alone = DPTraceRegressor(2, matrix_shape=shape, epsilon=epsilon, fit_biases=False)
    exact = np.bincount(known, own, shape[1]) / np.maximum(np.bincount(known, None, shape[1]), 1)
    return y[out], {
        "DPTraceRegressor": model.predict(X[out]),
        "a rank of 8": high.predict(X[out]),
        "without means of rows and columns": alone.fit(X[~out], own).predict(X[out]),
        "released means of columns": released_means(known, own, shape[1], mu, rng)[asked],
        "the same, shrunk": released_means(known, own, shape[1], mu, rng, shrunk=True)[asked],
        "one mean, not private": np.mean(own),
        "means of columns, not private": exact[asked],
    }


def ratings(epsilons=(0.3, 1.0, 3.0, 10.0), seeds=5):
    """Squared error on held-out ratings, next to what is trivial at the same guarantee."""
    lost = cells = 0
    for name in TABLES:
        found = {}
        for epsilon, seed in ((e, s) for e in epsilons for s in range(seeds)):
            y, guesses = guessed(name, epsilon, seed)
            for system, guess in guesses.items():
                error = float(np.mean((guess - y) ** 2))
                found.setdefault(system, {}).setdefault(epsilon, []).append(error)
        for epsilon in epsilons:
            for trivial in ("released means of columns", "the same, shrunk"):
                behind = np.subtract(found["DPTraceRegressor"][epsilon], found[trivial][epsilon])
                error = float(np.std(behind, ddof=1)) / math.sqrt(seeds)
                lost, cells = lost + (behind.mean() > max(0.01, 2 * error)), cells + 1
        rows = [
            [system, *(f"{np.median(errors[e]):.3f}" for e in epsilons)]
            for system, errors in found.items()
        ]
        title = f"squared error of held-out ratings, {name}, rank 2: median of {seeds} seeds"
        note = (
            f"So far released means are ahead by more than .01 and two standard errors in {lost} "
            f"of {cells} cells. Where a matrix would take more records than there are, the fit is "
            "means of rows and columns."
        )
        show(title, ["epsilon", *epsilons], rows, note)


def seconds(function, repeats=3):
    times = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)


def plain_passes(X, b, y):
    """Seconds of the passes that a fit of 8 steps makes, by numpy."""

    def passes():
        for _ in range(8):
            residual = X @ b - y
            X.T @ residual
        X.T @ y

    return seconds(passes)


def timing(n=100_000, d=40, d_sparse=500, n_sparse=1_000_000):
    rng = np.random.default_rng(0)
    with threadpool_limits(1):
        X = rng.standard_normal((n, d * d), dtype=np.float32)
        b = Problem(10, 0, (d, d)).M.ravel()
        y = X @ b.astype(np.float32) + 0.5 * rng.standard_normal(n)
        plain = plain_passes(X.astype(np.float64), b, y)
        for design in (1.0, "private"):
            model = DPTraceRegressor(matrix_shape=(d, d), measurement_covariance=design)
            fit = seconds(lambda model=model: model.fit(X, y))
            print(
                f"dense {n} x {d}^2 float32, design={design}: {fit:.2f} s of one core; "
                f"17 float64 passes of numpy {plain:.2f} s; ratio {fit / plain:.2f}"
            )
        cells = rng.integers(d_sparse**2, size=n_sparse)
        shape = (n_sparse, d_sparse**2)
        S = sp.csr_array((np.ones(n_sparse), cells, np.arange(n_sparse + 1)), shape=shape)
        y = rng.standard_normal(n_sparse)
        model = DPTraceRegressor(matrix_shape=(d_sparse, d_sparse), n_jobs=2)
        start = time.perf_counter()
        model.fit(S, y)
        print(
            f"one-hot CSR {n_sparse} x {d_sparse}^2: {time.perf_counter() - start:.1f} s, 2 threads"
        )


def tables(full):
    """Tables for ``python -m benchmarks``."""
    warnings.simplefilter("ignore", UserWarning)
    few = {} if full else {"sizes": (2000, 10_000), "epsilons": (1.0,), "seeds": 3}
    yield from shown(lambda: accuracy(**few))
    yield from shown(lambda: ratings(seeds=10 if full else 5))
    yield from shown(lambda: labels(**({} if full else {"ranks": (2,), "seeds": 4})))
    small = {} if full else {"n": 20_000, "d": 20, "d_sparse": 200, "n_sparse": 100_000}
    yield from printed("time", lambda: timing(**small))


if __name__ == "__main__":
    warnings.simplefilter("ignore", UserWarning)
    sections = {"time": timing, "labels": labels, "ratings": ratings, "accuracy": accuracy}
    for name in sys.argv[1:] or ["accuracy"]:
        sections[name]()
