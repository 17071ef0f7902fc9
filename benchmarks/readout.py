"""DPRidge against ridge without privacy and against perturbed sufficient statistics, over epsilon.

Run: ``python benchmarks/readout.py`` (quality), ``python benchmarks/readout.py time``.

All private methods see the same rows (cut to norm 1) and targets (cut to the same bounds), protect
one record under add_remove, and are calibrated exactly for (epsilon, 1e-6):

- "textbook": X'X (with the intercept as a column of ones) and X'y get half of the budget each, by
  separate Gaussian releases; the upper triangle is copied; the normal equations are solved as they
  are, with scikit-learn's penalty of 1 (Vu and Slavkovic 2009).
- "adassp": a third each for the smallest eigenvalue, X'X and X'y, and a penalty from the noisy
  smallest eigenvalue (Wang 2018), with exact Gaussian noise in place of his constants.
- "one release": ours, solved plainly: what the joint release alone gives.

Texts are made: words of Zipf's law, of which each class has some more often. Beside the classifier
stand the nearest class means: noisy sums of the rows of each class (95% of the budget) over noisy
totals, the noise taken off the squares of the means.
"""

import math
import sys
import time
import warnings

import numpy as np
import scipy.sparse as sp
from report import show, shown
from sklearn.datasets import load_digits
from sklearn.linear_model import Ridge, RidgeClassifier
from sklearn.preprocessing import normalize

from skdp import DPRidge, DPRidgeClassifier
from skdp.privacy import mu_from_epsilon_delta

DELTA = 1e-6
EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


def synthetic(n, d, seed, decay=0.7, noise=0.3):
    """Rows with a decaying spectrum and a small mean; targets in [-1, 1] but for a few."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n + 4000, d)) * np.arange(1, d + 1) ** -decay
    X = X @ np.linalg.qr(rng.standard_normal((d, d)))[0] + 0.3 * rng.standard_normal(d) / d**0.5
    y = X @ rng.standard_normal(d)
    y = (y - y.mean()) / y.std() + noise * rng.standard_normal(len(y))
    X /= np.quantile(np.linalg.norm(X, axis=1), 0.95)
    X /= np.maximum(1.0, np.linalg.norm(X, axis=1, keepdims=True))
    return (X[:n], y[:n] / 3.2), (X[n:], y[n:] / 3.2)


def symmetric_copy(rng, d, scale):
    G = np.triu(scale * rng.standard_normal((d, d)))
    return G + np.triu(G, 1).T


def moments(X, y):
    Z = np.column_stack([X, np.ones(len(X))])
    y = np.clip(y, -1, 1)
    return Z.T @ Z, Z.T @ y


def solved(A, b, penalty):
    ridge = penalty * np.eye(len(A))
    ridge[-1, -1] = 0.0
    w = np.linalg.lstsq(A + ridge, b, rcond=None)[0]
    return lambda X: X @ w[:-1] + w[-1]


def textbook(X, y, epsilon, rng):
    mu = mu_from_epsilon_delta(epsilon, DELTA) / math.sqrt(2)
    A, b = moments(X, y)
    # |z|^2 <= 2 with the column of ones, and |z y| <= sqrt(2). Each copied entry counts once.
    A = A + symmetric_copy(rng, len(A), 2 / mu)
    return solved(A, b + math.sqrt(2) / mu * rng.standard_normal(len(b)), 1.0)


def adassp(X, y, epsilon, rng):
    mu = mu_from_epsilon_delta(epsilon, DELTA) / math.sqrt(3)
    A, b = moments(X, y)
    scale, d = 2 / mu, len(A)
    smallest = max(0.0, np.linalg.eigvalsh(A)[0] + scale * rng.standard_normal() - 1.65 * scale)
    penalty = max(0.0, math.sqrt(d * math.log(2 * d * d / 0.05)) * scale - smallest)
    A = A + symmetric_copy(rng, d, scale)
    b = b + math.sqrt(2) / mu * rng.standard_normal(b.shape)
    w = np.linalg.lstsq(A + penalty * np.eye(d), b, rcond=None)[0]
    return lambda X: X @ w[:-1] + w[-1]


def one_release(X, y, epsilon, rng):
    """The joint release of DPRidge, with the normal equations solved plainly."""
    U, t = math.hypot(1, 0.3), 0.6 * math.hypot(1, 0.3)
    Z = np.column_stack([X, 0.3 * np.ones(len(X)), t * np.clip(y, -1, 1)])
    scale = U * math.sqrt(U**2 + 2 * t**2) / mu_from_epsilon_delta(epsilon, DELTA)
    G = scale * rng.standard_normal((Z.shape[1],) * 2)
    M = Z.T @ Z + (G + G.T) / 2
    A, b = M[:-1, :-1], M[:-1, -1] / t
    ridge = np.diag([1.0] * X.shape[1] + [0.0])
    w = np.linalg.lstsq(A + ridge, b, rcond=None)[0]
    return lambda X: X @ w[:-1] + 0.3 * w[-1]


def ours(X, y, epsilon, rng):
    return DPRidge(epsilon=epsilon, clip_norm=1.0, target_bounds=(-1.0, 1.0)).fit(X, y).predict


def r2(predict, test):
    X, y = test
    return 1 - np.mean((y - predict(X)) ** 2) / np.var(y)


METHODS = {"textbook": textbook, "adassp": adassp, "one release": one_release, "DPRidge": ours}


def regression_table(name, problem, repeats=9, epsilons=EPSILONS):
    scores = {method: [] for method in METHODS}
    plain = np.median([
        r2(Ridge().fit(*problem(s)[0]).predict, problem(s)[1]) for s in range(repeats)
    ])  # fmt: skip
    for epsilon in epsilons:
        found = {method: [] for method in METHODS}
        for seed in range(repeats):
            train, test = problem(seed)
            for method, fit in METHODS.items():
                predict = fit(*train, epsilon, np.random.default_rng(1000 + seed))
                found[method].append(r2(predict, test))
        for method, values in found.items():
            scores[method].append(f"{max(np.median(values), -9.99):.3f}")
    rows = [["Ridge, not private", *[f"{plain:.3f}"] * len(epsilons)]]
    rows += [[method, *values] for method, values in scores.items()]
    title = f"{name}: R2 on fresh rows, median of {repeats} data sets and noises"
    show(title, ["epsilon", *epsilons], rows, COMPARED)


COMPARED = (
    "All private methods see the same clipped data, protect one record under add_remove and are "
    "calibrated exactly for (epsilon, 1e-6). 'textbook': separate releases of X'X and X'y (Vu and "
    "Slavkovic 2009); 'adassp': Wang (2018) with exact Gaussian noise; 'one release': the joint "
    "release of DPRidge, solved plainly. -9.990 stands for anything below."
)


def digits_table(repeats=9, epsilons=EPSILONS):
    X, y = load_digits(return_X_y=True)
    X = X / np.linalg.norm(X, axis=1, keepdims=True)
    plain, found = [], {epsilon: [] for epsilon in epsilons}
    for seed in range(repeats):
        order = np.random.default_rng(seed).permutation(len(X))
        train, test = order[:1297], order[1297:]
        peer = RidgeClassifier().fit(X[train], y[train])
        plain.append(peer.score(X[test], y[test]))
        for epsilon in epsilons:
            model = DPRidgeClassifier(epsilon=epsilon, clip_norm=1.0, classes=range(10))
            found[epsilon].append(model.fit(X[train], y[train]).score(X[test], y[test]))
    rows = [
        ["RidgeClassifier, not private", *[f"{np.median(plain):.3f}"] * len(epsilons)],
        ["DPRidgeClassifier", *(f"{np.median(scores):.3f}" for scores in found.values())],
    ]
    title = f"digits, 1297 rows, 64 features, 10 classes: accuracy, median of {repeats}"
    show(title, ["epsilon", *epsilons], rows)


def texts(n, d, n_classes, seed, lift=2.5, words=60):
    """Rows of norm 1, labels, and targets: how many words a text has, as a logarithm."""
    rng = np.random.default_rng(seed)
    labels, own = rng.integers(0, n_classes, n), rng.integers(0, n_classes, d)
    tilted = (rng.random(d) < 0.3) & (np.arange(d) >= 20)
    laws = np.where(tilted & (own == np.arange(n_classes)[:, None]), lift, 1.0)
    laws /= np.arange(2, d + 2)
    counts = np.maximum(rng.lognormal(math.log(words) - 0.2, 0.6, n), 3).astype(int)
    drawn = [
        rng.choice(d, m, p=laws[label] / laws[label].sum())
        for label, m in zip(labels, counts, strict=True)
    ]
    places = (np.repeat(np.arange(n), counts), np.concatenate(drawn))
    X = sp.csr_array((np.ones(counts.sum()), places), shape=(n, d))
    return normalize(X), labels, np.log(counts)


def class_means(X, y, n_classes, epsilon, rng):
    """Nearest class means from noisy sums of rows of norm 1 and noisy totals."""
    mu, d = mu_from_epsilon_delta(epsilon, DELTA), X.shape[1]
    scale = 1 / (mu * math.sqrt(0.95))
    sums = np.stack([X[y == label].sum(axis=0) for label in range(n_classes)])
    sums = sums + scale * rng.standard_normal(sums.shape)
    totals = np.bincount(y, minlength=n_classes) + rng.standard_normal(n_classes) / (
        mu * math.sqrt(0.05)
    )
    means = sums / np.maximum(totals, 10)[:, None]
    squares = np.sum(means**2, axis=1) - d * (scale / np.maximum(totals, 10)) ** 2
    return lambda X: np.argmax(X @ means.T - squares / 2, axis=1)


def texts_table(n, d, n_classes, repeats=9, epsilons=EPSILONS):
    def classifier(X, y, n_classes, epsilon, rng):
        return DPRidgeClassifier(epsilon=epsilon, classes=range(n_classes)).fit(X, y).predict

    methods = {"nearest class means": class_means, "DPRidgeClassifier": classifier}
    rows = {"RidgeClassifier, not private": [], **{name: [] for name in methods}, "DPRidge, R2": []}
    train, test = slice(0, n), slice(n, None)
    problems = [texts(n + 2000, d, n_classes, seed) for seed in range(repeats)]
    plain = np.median(
        [RidgeClassifier().fit(X[train], y[train]).score(X[test], y[test]) for X, y, _ in problems]
    )
    for epsilon in epsilons:
        rows["RidgeClassifier, not private"].append(f"{plain:.3f}")
        for name, fit in methods.items():
            rows[name].append([])
            for seed, (X, y, _) in enumerate(problems):
                rng = np.random.default_rng(1000 + seed)
                predict = fit(X[train], y[train], n_classes, epsilon, rng)
                rows[name][-1].append(np.mean(predict(X[test]) == y[test]))
        rows["DPRidge, R2"].append(
            [
                r2(DPRidge(epsilon=epsilon).fit(X[train], z[train]).predict, (X[test], z[test]))
                for X, _, z in problems
            ]
        )
    shown = [
        [name, *(v if isinstance(v, str) else f"{max(np.median(v), -9.99):.3f}" for v in values)]
        for name, values in rows.items()
    ]
    title = f"{n} made texts, {d} columns, {n_classes} classes: accuracy, median of {repeats}"
    note = "Last line: R2 of the logarithm of the number of words."
    show(title, ["epsilon", *epsilons], shown, note)


PROBLEMS = ((5000, 10), (20000, 20), (20000, 50), (100000, 50))
TEXTS = ((2000, 300, 2), (4000, 4000, 2), (8000, 8000, 4))


def quality(problems=PROBLEMS, **options):
    for n, d in problems:
        regression_table(f"n={n}, d={d}", lambda seed, n=n, d=d: synthetic(n, d, seed), **options)
    digits_table(**options)
    for n, d, n_classes in TEXTS:
        texts_table(n, d, n_classes, **options)


def seconds(functions, repeats=7):
    """Median CPU seconds of functions that take turns."""
    found = np.zeros((repeats, len(functions)))
    for row in found:
        for i, function in enumerate(functions):
            start = time.process_time()
            function()
            row[i] = time.process_time() - start
    return np.median(found, axis=0)


def timing(shapes=((20000, 20), (100000, 50), (20000, 300))):
    """CPU time next to scikit-learn's in the same run: the ratio is what counts."""
    rows = []
    for n, d in shapes:
        X, y = synthetic(n, d, 0)[0]
        private = DPRidge(clip_norm=1.0, target_bounds=(-1.0, 1.0))
        models = Ridge(), private, DPRidge()
        plain, one, auto = seconds([lambda m=m: m.fit(X, y) for m in models])  # noqa: B023
        rows.append([f"{n} x {d}", f"{plain:.3f}", f"{one / plain:.1f}", f"{auto / plain:.1f}"])
    head = ["data", "Ridge, CPU (s)", "DPRidge / Ridge", "with learnt bounds / Ridge"]
    show("time of a fit, median of 7 in turn", head, rows)


def tables(full):
    """Tables for ``python -m benchmarks``."""
    few = {} if full else {"problems": PROBLEMS[:2], "repeats": 5, "epsilons": (0.5, 1.0, 4.0)}
    yield from shown(lambda: quality(**few))
    yield from shown(timing if full else lambda: timing(((20000, 20), (20000, 100))))


if __name__ == "__main__":
    warnings.simplefilter("ignore", UserWarning)
    timing() if sys.argv[1:] == ["time"] else quality()
