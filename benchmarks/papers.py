"""What the papers print, next to what is measured here: one section for each table or figure.

Run ``python benchmarks/papers.py [--quick] [section ...]``; no section means all. Data are drawn as
the papers say, noise is fresh, a cell is the median of a few fits. "printed" is the paper's own
algorithm through our gate (`skdp.papers`), "paper" the number that the paper prints. Three of the
five papers have no experiments; `docs/from_the_papers.md` says where each of their systems is.
"""

import math
import statistics

import numpy as np
from report import run_sections, show, sized, tables_of
from spectral import critical_signal, spread_vector

from skdp import DPLowRankFactorizer, DPSpectralEmbedding, DPTruncatedSVD
from skdp.decomposition import LocalAggregator, randomize_row
from skdp.papers import PowerDeflation, SketchFactorizer
from skdp.theory import prior_sensitivity, sensitivity_ratio, subspace_coherence
from tools.canaries import coherence_canary

RNG = np.random.default_rng(0)
K = 10
# rows x columns, then what the paper prints: its own method, Hardt-Roth, the optimum
TABLE_3 = {
    (535, 50): (223650, 552970, 190493),
    (1054, 70): (389357, 490379, 338605),
    (1137, 74): (413134, 528693, 364188),
    (1486, 145): (677119, 776009, 600585),
    (1848, 180): (836139, 884143, 755161),
}
# table, shape, alpha, k: the paper's own method, Hardt-Roth; against the padded matrix
TABLES_4_TO_6 = {
    ("4", (546, 50), 0.25, 10): (665.8, 13971),
    ("4", (1449, 140), 0.25, 10): (1392.1, 20835),
    ("5", (1800, 200), 0.1, 10): (8056.9, 18156),
    ("5", (1800, 200), 0.2, 10): (5044.7, 14124),
    ("6", (450, 50), 0.25, 10): (1898.5, 20017),
    ("6", (700, 50), 0.25, 15): (2948.8, 33654),
}
LARGEST = {"4": 4, "5": 19, "6": 19}  # integers from 0, in the first k columns
# table, shape, k: the paper's own method
TABLES_7_TO_10 = {
    ("7", (460, 50), 10): 26731,
    ("7", (924, 101), 10): 50377,
    ("8", (454, 50), 10): 1591.7,
    ("8", (1190, 131), 10): 4220.6,
    ("9", (450, 50), 10): 750.7,
    ("10", (450, 50), 19): 1033.8,
}


def median(error, fits=3):
    """Median of a few fits."""
    return statistics.median(error() for _ in range(fits))


def distance(A, model):
    """Frobenius distance of the released factors."""
    return float(
        np.linalg.norm(
            A - (model.left_singular_vectors_ * model.singular_values_) @ model.components_
        )
    )


def optimum(A, k):
    """Error of the best matrix of rank k."""
    return float(np.sqrt(np.sum(np.linalg.svd(A, compute_uv=False)[k:] ** 2)))


def table3():
    """Upadhyay, table 3: entries even in [0, 5000], k = 10, epsilon 1, delta 1/(m + n)."""
    table = []
    for (both, n), (own, older, best) in TABLE_3.items():
        A = RNG.uniform(0, 5000, (both - n, n))
        unit, delta = optimum(A, K), 1 / both
        fits = {
            "dense": DPLowRankFactorizer(K, delta=delta, method="dense"),
            "two": DPLowRankFactorizer(K, delta=delta, method="two_sketch"),
            "both": DPLowRankFactorizer(K, delta=delta, method="three_sketch"),
            "printed": SketchFactorizer(K, delta=delta),
            "three": SketchFactorizer(K, delta=delta, method="three_sketch"),
        }
        ours = [median(lambda m=m, A=A: distance(A, m.fit(A))) / unit for m in fits.values()]
        cells = [f"{value:.2f}" for value in (own / best, older / best, *ours)]
        table.append([f"{both - n} x {n}", *cells])
    head = ["shape", "paper", "paper, Hardt-Roth", "ours, dense", "ours, two_sketch",
            "ours, three_sketch", "printed, two sketches", "printed, three"]  # fmt: skip
    note = "Error over that of the best matrix of rank 10. The 'Rows' of the paper are m + n."
    show(table3.__doc__, head, table, note)


def tables4to6():
    """Upadhyay, tables 4 to 6: integers in the first k columns, zeros next to, epsilon 1."""
    table = []
    for (number, (m, n), alpha, k), (own, older) in TABLES_4_TO_6.items():
        A = np.zeros((m, n))
        A[:, :k] = RNG.integers(0, LARGEST[number] + 1, (m, k))
        delta = 1 / m if number == "4" else 1 / m**2
        ours = (
            DPLowRankFactorizer(k, delta=delta),
            DPLowRankFactorizer(k, delta=delta, method="two_sketch"),
            SketchFactorizer(k, delta=delta),
        )
        errors = [median(lambda f=f, A=A: distance(A, f.fit(A))) for f in ours]
        cells = [f"{value:.0f}" for value in (own, older, np.linalg.norm(A), *errors)]
        table.append([number, f"{m} x {n}", alpha, k, *cells])
    head = ["table", "shape", "alpha", "k", "paper", "paper, Hardt-Roth", "zero matrix",
            "ours, auto", "ours, two_sketch", "printed, two sketches"]  # fmt: skip
    show(
        tables4to6.__doc__, head, table,
        "The paper measures against the matrix with its padding: there a matrix of zeros scores as "
        "well as its method. Ours is against A itself, whose rank is k: the optimum is 0. The "
        "paper takes sketches of .05 k/alpha = 1 to 5 columns, fewer than k; ours are k/alpha "
        "('printed') or the defaults.",
    )  # fmt: skip


def tables7to10():
    """Upadhyay, tables 7 to 10: the local model, epsilon .1; error |A - U U'A|."""
    table = []
    for (number, (m, n), k), own in TABLES_7_TO_10.items():
        A, largest = RNG.uniform(0, 500, (m, n)), 500.0
        if number != "7":
            A, largest = np.zeros((m, n)), 19.0
            A[:, :k] = RNG.integers(1, 20, (m, k))
        delta = max(1e-20, float(m) ** (-10 if number == "7" else -2))

        def left_out(U, A=A):
            return float(np.linalg.norm(A - U @ (U.T @ A)))

        def near(A=A, k=k, delta=delta):
            model = DPLowRankFactorizer(k, epsilon=0.1, delta=delta, method="dense")
            return model.fit(A).left_singular_vectors_

        options = {"clip_norm": largest * math.sqrt(n), "epsilon": 0.1, "delta": delta}

        def whole(A=A, k=k, options=options):
            reports = np.vstack([randomize_row(row, **options).values for row in A])
            return np.linalg.svd(reports, full_matrices=False)[0][:, :k]

        chance = np.linalg.qr(RNG.standard_normal((m, k)))[0]
        errors = (own, optimum(A, k), np.linalg.norm(A), left_out(chance),
                  median(lambda f=near, g=left_out: g(f())),
                  median(lambda f=whole, g=left_out: g(f()), 1))  # fmt: skip
        table.append([number, f"{m} x {n}", k, *(f"{value:.0f}" for value in errors)])
    head = ["table", "shape", "k", "paper", "optimum", "zero matrix", "random U",
            "rows at distance 1", "whole rows"]  # fmt: skip
    show(
        tables7to10.__doc__, head, table,
        "'rows at distance 1' has the promise of the paper: a row may change by 1 in norm, however "
        "long it is (one noisy report for each row). 'whole rows' is local differential privacy of "
        "any two rows (`randomize_row`): at epsilon .1 no U can be seen through it. In table 7 the "
        "paper's U has 40 columns, not 10, and its delta m^-10 is 1e-20 here.",
    )  # fmt: skip


def covariance():
    """Upadhyay, figure 7: the covariance of rows of norm 1, k = 5, epsilon 1, by its error."""
    table = []
    for m, n in sized(((1000, 200), (10_000, 200), (20_000, 400)), ((1000, 200), (10_000, 200))):
        V = np.linalg.qr(RNG.standard_normal((n, 5)))[0]
        X = RNG.standard_normal((m, 5)) @ V.T + 0.02 * RNG.standard_normal((m, n))
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        C = X.T @ X

        def ours(X=X, C=C):
            svd = DPTruncatedSVD(5, clip_norm=1.0, algorithm="gram").fit(X)
            values = svd.singular_values_**2
            return float(np.linalg.norm(C - (svd.components_.T * values) @ svd.components_))

        def printed(C=C):
            return distance(C, SketchFactorizer(5).fit(C))

        def gauss(C=C, n=n):
            G = RNG.standard_normal((n, n)) * 4.2247
            values, W = np.linalg.eigh(C + (G + G.T) / 2)
            W, values = W[:, -5:], values[-5:]
            return float(np.linalg.norm(C - (W * values) @ W.T))

        errors = (np.linalg.norm(C), optimum(C, 5), median(printed), median(gauss), median(ours))
        table.append([f"{m} x {n}", *(f"{value:.0f}" for value in errors)])
    head = ["rows", "zero matrix", "optimum", "printed, two sketches", "analyze-Gauss, exact",
            "DPTruncatedSVD"]  # fmt: skip
    note = "One row of norm 1 changes the covariance by at most 1: the sensitivity of all of them."
    show(covariance.__doc__, head, table, note)


def local():
    """Upadhyay, figure 9: what reports of epsilon 8 show of shared directions, by their number."""
    table, n, k = [], 20, 2
    for m in sized((1000, 4000, 16_000), (2000,)):
        V = np.linalg.qr(RNG.standard_normal((n, k)))[0]
        X = RNG.standard_normal((m, k)) @ V.T + 0.1 * RNG.standard_normal((m, n))
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        reports = [randomize_row(x, clip_norm=1.0, epsilon=8.0, delta=1e-6) for x in X]
        W = LocalAggregator(k).add(reports).components_
        best = float(np.sum((X @ np.linalg.svd(X, full_matrices=False)[2][:k].T) ** 2)) / m
        table.append([m, f"{best:.2f}", f"{np.sum((X @ W.T) ** 2) / m:.2f}", f"{k / n:.2f}"])
    note = "Captured share of the squared norm; one fit. The paper has no such table."
    show(local.__doc__, ["reports", "best", "ours", "chance"], table, note)


def ratio():
    """Nicolas et al., figure 3: r(k, n), how much less noise a random start needs; 5 draws."""
    table = []
    for n in sized((2000, 8000), (2000,)):
        for k in (16, 64, 256):
            draws = [np.linalg.qr(RNG.standard_normal((n, k)))[0].T for _ in range(5)]
            seen = statistics.fmean(prior_sensitivity(Q) / subspace_coherence(Q).mu1 for Q in draws)
            table.append([n, k, f"{seen:.2f}", f"{sensitivity_ratio(n, k):.2f}"])
    note = "The paper draws n = 8000 and 12,000; its closed form is cautious, as it says."
    show(ratio.__doc__, ["n", "k", "measured", "closed form of the paper"], table, note)


def critical():
    """Hardt and Roth, figure 2: smallest eigenvalue found (cosine .9), rank one, epsilon 1."""
    table = []
    for n in sized((500, 2000), (500,)):
        u = spread_vector(n, 2.0, RNG)
        wide = 16 * 2 * math.log(n)

        def cosine(model, u=u):
            printed = isinstance(model, PowerDeflation)
            model.set_params(**{"entry_bounds" if printed else "unit_bound": (-1.0, 1.0)})

            def of(value):
                signs = np.sign(np.outer(u, u)) * np.minimum(value * np.abs(np.outer(u, u)), 1.0)
                found = model.fit(signs)
                x = (
                    found.components_[0]
                    if hasattr(found, "components_")
                    else found.embedding_[:, 0]
                )
                return abs(float(x @ u)) / max(float(np.linalg.norm(x)), 1e-300)

            return of

        models = {
            "printed, its constants, C = 16 mu log n": PowerDeflation(
                coherence=wide, calibration="printed"
            ),
            "printed, exact accounting, C = 16 mu log n": PowerDeflation(coherence=wide),
            "printed, exact accounting, C = 40": PowerDeflation(coherence=40.0),
            "DPSpectralEmbedding, power": DPSpectralEmbedding(
                1, normalization="none", algorithm="power"
            ),
        }
        fits = sized(7, 3)
        for name, model in models.items():
            found = critical_signal(cosine(model), 5.0, 0.9 * n / 2.0, fits, 1.15)
            beyond = found > 0.9 * n / 2.0 / 1.2
            table.append([n, name, f"more than {found:.0f}" if beyond else f"{found:.0f}"])
    note = "One edge may change by 1. Entries are at most 1, which ends the search at .45 n."
    show(critical.__doc__, ["n", "method", "smallest eigenvalue"], table, note)


def canary():
    """Hardt and Roth, theorem 6.1: bits of the family M_C that a fit gives away, n = 200."""
    n, table = 200, []
    for coherence in (2.0, 20.0):
        for times in (1, 10, 100):
            svd = DPTruncatedSVD(
                1, privacy_unit="entry", epsilon=times * coherence / n, algorithm="alternating"
            )
            report = coherence_canary(svd, n, coherence, n_runs=sized(20, 5)).check()
            row = [f"{report.success:.2f}", f"{report.bound:.2f}"]
            table.append([f"{coherence:g}", f"{times} C/n", *row])
    note = "The theorem: at epsilon C/n no private fit finds the vector. .5 is guessing."
    show(canary.__doc__, ["C", "epsilon", "bits guessed", "bound for its mu"], table, note)


SECTIONS = (table3, tables4to6, tables7to10, covariance, local, ratio, critical, canary)


def tables(full):
    """Tables for ``python -m benchmarks``."""
    return tables_of(SECTIONS, full)


if __name__ == "__main__":
    run_sections(__doc__, SECTIONS)
