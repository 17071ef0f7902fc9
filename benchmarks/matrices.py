"""Every route for matrices next to what is trivial at the same guarantee.

Run ``python benchmarks/matrices.py [--quick] [section ...]``; no section means all. Data are seeded
and public, noise is fresh, cells are medians over fits. The last column says by how much the best
trivial baseline is ahead of the package, at the budget where that is worst; what is within the
noise of the medians (two standard errors) is not counted. "CPU" is the median over fits, in ms: old
routes, new ones and baselines in the same run.

"captured": share of the squared norm that the best subspace of k dimensions holds. "as planned"
is what `plan` says of data that it makes, told what a user may know: singular values or shares of
directions, the number of entries, how lengths spread.
"""

import math
import statistics
import time
import trace  # that of this folder

import baselines
import numpy as np
import personalization
import planned
import scipy.sparse as sp
from readout import adassp, r2, synthetic
from report import run_sections, show, sized, tables_of
from scipy.stats import skew
from sklearn.datasets import load_digits
from sklearn.linear_model import Ridge
from sklearn.preprocessing import normalize

from skdp import DPRidge, DPRidgeClassifier, DPTruncatedSVD
from skdp.datasets import make_interactions, make_user_items
from skdp.privacy import mu_from_epsilon_delta
from skdp.queries.interactions import gram_change

DELTA = 1e-6
EPSILONS = (0.3, 0.5, 1, 3, 10, 1000)
_LONGEST = (
    "What is lost at 1000 is noise: the longest row may be there or not, and has a hundred times "
    "the squared norm of the median one, and none of twelve levels was better by more than .0002 "
    "on rows like these. From epsilon 1200 on noise stays as it is (the error of its sampler)."
)
_PRODUCTS = (
    '"power", asked for by name, has noise in every column of each of its products, where '
    'popularity is one sum: of many columns it is behind, and "auto" does not take it.'
)


# -- tables --------------------------------------------------------------------------------------


def compare(
    title, methods, score, *, ours, aside=(), epsilons=EPSILONS, fits=None, notes=(), expect=None,
    perfect=1.0,
):  # fmt: skip
    """Show medians of ``score(fit(epsilon))``; the names in `ours` are held against others.

    Those in `aside` are shown alone. ``expect(epsilon)`` is the score that the plan of the first
    of `ours` expects, where `perfect` is that of a fit without noise.
    """
    fits = fits or sized(5, 3)
    seconds = {name: [] for name in methods}
    found = {
        name: [
            [score(timed(fit, epsilon, seconds[name])) for _ in range(fits)] for epsilon in epsilons
        ]
        for name, fit in methods.items()
    }
    trivial = [name for name in methods if name not in (*ours, *aside)]
    rows = []
    for name, cells in found.items():
        behind = lost(cells, [found[other] for other in trivial]) if name in ours else ""
        medians = [f"{statistics.median(cell):.3f}" for cell in cells]
        rows.append([name, *medians, behind, f"{1000 * statistics.median(seconds[name]):.0f}"])
    if expect:
        expected = [expect(epsilon) for epsilon in epsilons]
        rows.append([f"{ours[0]}, as planned", *(f"{value:.3f}" for value in expected), "", ""])
        notes = (*notes, planned.near(found[ours[0]], expected, perfect))
    show(f"{title}, median of {fits}", ["epsilon", *epsilons, "behind", "CPU (ms)"], rows, *notes)


def timed(fit, epsilon, seconds):
    """Return a fit, and note the CPU time that it took."""
    start = time.process_time()
    found = fit(epsilon)
    seconds.append(time.process_time() - start)
    return found


def lost(cells, others):
    """Say by how much the best of the others is ahead, beyond noise, where that is worst."""
    pairs = [pair for other in others for pair in zip(cells, other, strict=True)]
    return f"{max(0.0, *(ahead(*pair) for pair in pairs)):.3f}"


def ahead(mine, other):
    """Return the difference of the medians, less two of its standard errors."""
    spread = [1.25 * statistics.pstdev(cell) / math.sqrt(len(cell)) for cell in (mine, other)]
    return statistics.median(other) - statistics.median(mine) - 2 * math.hypot(*spread)


class Moment:
    """The second moment of rows, and what share of it a subspace captures."""

    def __init__(self, X, k):
        self.X, self.k = X, k
        self.best = self.squares(sp.linalg.svds(X.astype(float), k)[2])

    def squares(self, components):
        return float(np.sum(np.square(self.X @ components.T)))

    def __call__(self, components):
        return self.squares(np.linalg.qr(components.T)[0].T) / self.best


# -- rows ----------------------------------------------------------------------------------------


def wide_rows():
    """Sparse rows of length 1: few columns hold most, or nearly all hold something; few rows."""
    m, n = sized((16_000, 19_000), (3000, 1000))
    sets = {
        "few factors": make_interactions(m, n, 25 * m, 20, random_state=0),
        "histories": make_user_items(m, n, 20, random_state=0),
        "review site": review_site(m, n),
    }
    for name, R in sets.items():
        row_table(f"{name}, {m} x {n}", normalize(R), sized(16, 10), apart=name == "few factors")
    few = make_user_items(250, 60, 8, 4, random_state=0)
    row_table("few sparse rows, 250 x 60", normalize(few), 2)


def review_site(m, n):
    """Short histories, heavy tails, factors that overlap: little in the leading directions."""
    options = {"mean_length": 14, "n_factors": 60, "overlap": 0.7, "tail": 0.65}
    return make_user_items(m, n, **options, random_state=0)


def dense_rows():
    """Narrow dense rows: lengths that differ, and a mean."""
    rng = np.random.default_rng(0)
    lengths = np.exp(0.7 * rng.standard_normal(sized(6000, 2000)))
    shape = rng.standard_normal((len(lengths), 60)) * np.arange(1, 61) ** -0.7
    shape = shape @ np.linalg.qr(rng.standard_normal((60, 60)))[0]
    row_table("digits", load_digits().data, 10)
    title = f"lengths that differ, {len(lengths)} x 60"
    row_table(title, shape * lengths[:, None], 10, notes=[_LONGEST])


def row_table(title, X, k, *, apart=False, **notes):
    """The row unit: rows of any length, and no public bound on it."""
    moment, rng = Moment(X, k), np.random.default_rng()
    unit = sp.issparse(X)
    options = {"clip_norm": 1.0} if unit else {}
    if unit:
        facts = {"nnz": X.nnz, "signal": moment.best / float(np.sum(X.data**2)), "apart": apart}
    else:
        facts = {"spectrum": np.maximum(np.linalg.eigvalsh(X.T @ X), 0.0)}
        facts["skew"] = np.nan_to_num(skew(X))  # of constant columns too
    expect = planned.captured(DPTruncatedSVD(k, **options), X, **facts)
    methods = {
        f"{k} most popular columns": lambda e: baselines.popular(
            X, k, e, DELTA, rng, clipped=not unit
        ),
        "column sums, and the largest": lambda e: baselines.popular(
            X, k, e, DELTA, rng, clipped=not unit, sums_too=True
        ),
        "DPTruncatedSVD": lambda e: DPTruncatedSVD(k, epsilon=e, **options).fit(X).components_,
    }
    if X.shape[1] <= 1500:
        clips = (1.0,) if unit else baselines.clips(X)
        cuts = [X if unit else baselines.cut(X, c) / c for c in clips]
        methods["symmetric Gaussian, best clip of 6"] = lambda e: max(
            (baselines.symmetric_gaussian(Z, k, e, DELTA, "add_remove", rng) for Z in cuts),
            key=moment,
        )
    title = f"row unit, {title}, k={k}, captured"
    compare(title, methods, moment, ours=["DPTruncatedSVD"], expect=expect, **notes)


# -- interactions, entries -------------------------------------------------------------------------


def interactions():
    """One interaction of a binary matrix, normalised by degrees that are floored at 5."""
    tall = make_interactions(54_906, 151, 1_170_000, 40, random_state=0)
    interaction_table(tall, 5, 1e-5, epsilons=(0.3, 1, 10, 1000))
    m, n = sized((16_000, 8000), (3000, 800))
    interaction_table(make_user_items(m, n, 20, random_state=0), sized(16, 10))
    interaction_table(review_site(m, n), sized(16, 10))
    interaction_table(make_user_items(200, 120, 12, 6, random_state=0), 2)


def floored(R, floor=5):
    """Binary rows over the square roots of their degrees, floored."""
    return sp.csr_array(sp.diags_array(1 / np.sqrt(np.maximum(np.diff(R.indptr), floor))) @ R)


def interaction_table(R, k, delta=DELTA, **options):
    rows, rng = floored(R), np.random.default_rng()
    unit = {"privacy_unit": "interaction", "delta": delta}
    change = {"change": gram_change(R.shape[1], 5, "add_remove")}

    def ours(route):
        return lambda e: DPTruncatedSVD(k, epsilon=e, algorithm=route, **unit).fit(R).components_

    methods = {
        f"{k} most popular columns": lambda e: baselines.popular(R, k, e, delta, rng, entry=True),
        "noisy item counts": lambda e: baselines.item_counts(R, k, e, rng),
        "randomised response": lambda e: baselines.flipped_rows(R, k, e, rng),
        "power method as published": lambda e: baselines.printed_interactions(R, k, e, delta, rng),
        "one symmetric moment": lambda e: baselines.symmetric_gaussian(
            rows, k, e, delta, "add_remove", rng, **change
        ),
        "row unit": lambda e: (
            DPTruncatedSVD(k, epsilon=e, delta=delta, clip_norm=1.0).fit(rows).components_
        ),
        "DPTruncatedSVD": ours("auto"),
        "DPTruncatedSVD, power": ours("power"),
    }
    title = f"interaction unit, {R.shape[0]} x {R.shape[1]}, {R.nnz} ones, k={k}, captured"
    ours_too = ["DPTruncatedSVD", "DPTruncatedSVD, power"]
    moment = Moment(rows, k)
    facts = {"nnz": R.nnz, "signal": moment.best / float(np.sum(rows.data**2))}
    expect = planned.captured(DPTruncatedSVD(k, **unit), R, **facts)
    compare(title, methods, moment, ours=ours_too, notes=[_PRODUCTS], expect=expect, **options)


def entries():
    """One entry: binary, anything from 0 to 1, or rare likes and dislikes by uneven users."""
    m, n = sized((3000, 400), (1200, 200))
    rng = np.random.default_rng(0)
    binary = make_user_items(m, n, 20, 10, overlap=0.3, spread=2.5, tail=0.7, random_state=0)
    entry_table("binary", binary, 5)
    factors = rng.gamma(0.3, size=(m, 5)) @ rng.gamma(0.3, size=(5, n))
    entry_table("bounded", np.minimum(factors + 0.2 * rng.random((m, n)), 1.0), 5)
    likes = np.sign(rng.standard_normal((m, 5)) @ rng.standard_normal((5, n)))
    rated = rng.random((m, n)) < rng.beta(0.5, 4.5, (m, 1))
    entry_table("signed", sp.csr_array(likes * rated), 5, (-1.0, 1.0))


def entry_table(title, A, k, bounds=(0.0, 1.0)):
    """Neighbours differ in one entry within the bounds; a row has at most its norm."""
    X, rng = A.toarray() if sp.issparse(A) else A, np.random.default_rng()
    unit = {"privacy_unit": "entry", "unit_bound": bounds}
    length = float(np.linalg.norm(X, axis=1).max())

    def ours(route):
        return lambda e: DPTruncatedSVD(k, epsilon=e, algorithm=route, **unit).fit(A).components_

    popular = {
        f"{k} most popular columns": lambda e: baselines.popular(A, k, e, DELTA, rng, entry=True),
        "column sums, and the largest": lambda e: baselines.popular(
            A, k, e, DELTA, rng, entry=True, sums_too=True
        ),
    }
    methods = (popular if bounds[0] == 0 else {}) | {
        "all entries with noise": lambda e: baselines.noisy_matrix(X, k, e, DELTA, rng),
        "row unit": lambda e: DPTruncatedSVD(k, epsilon=e, clip_norm=length).fit(A).components_,
        "DPTruncatedSVD": ours("auto"),
        "DPTruncatedSVD, alternating": ours("alternating"),
    }
    if sp.issparse(A) and bounds[0] == 0:
        methods["randomised response"] = lambda e: baselines.flipped_entries(X, k, e, rng)
    spectrum = planned.leading_values(X, k)
    compare(
        f"entry unit, {title}, {X.shape[0]} x {X.shape[1]}, k={k}, captured", methods, Moment(X, k),
        ours=["DPTruncatedSVD"],
        expect=planned.captured(DPTruncatedSVD(k, **unit), X, spectrum=spectrum),
    )  # fmt: skip


def norms():
    """Any change of a bounded norm: all entries with noise protect it too."""
    m, n = sized((2000, 400), (600, 150))
    rng, k = np.random.default_rng(0), 5
    X = rng.standard_normal((m, k)) * 30 @ rng.standard_normal((k, n)) / math.sqrt(n)
    X += 0.3 * rng.standard_normal((m, n))
    for unit in ("frobenius", "spectral"):
        svd = DPTruncatedSVD(k, privacy_unit=unit)
        wide = math.sqrt(n) if unit == "spectral" else 1.0  # ||E||_F <= sqrt(n) ||E||_2
        methods = {
            "all entries with noise": lambda e, w=wide: baselines.noisy_matrix(
                X, k, e, DELTA, rng, w
            ),
            "DPTruncatedSVD": lambda e, s=svd: s.set_params(epsilon=e).fit(X).components_,
        }
        title = f"{unit} unit, change 1, {m} x {n}, k={k}, captured"
        expect = planned.captured(svd, X, spectrum=planned.leading_values(X, k))
        compare(title, methods, Moment(X, k), ours=["DPTruncatedSVD"], expect=expect)


def contracts():
    """Counts of mean 50 of which one changes by 1: squared cosine with what they differ in."""
    m, n = sized((2000, 400), (600, 150))
    rng = np.random.default_rng(0)
    u, v = rng.choice([-1.0, 1.0], m), rng.choice([-1.0, 1.0], n)
    X = rng.poisson(50 * (1 + 0.035 * np.outer(u, v))).astype(float)

    def cosine(V):
        return float(np.sum((V @ v) ** 2)) / n

    def ours(**options):
        return lambda e: DPTruncatedSVD(2, epsilon=e, **options).fit(X).components_

    methods = {
        "without privacy": lambda _: np.linalg.svd(X, full_matrices=False)[2][:2],
        "clipped to (0, 1)": ours(privacy_unit="entry"),
        "frobenius": ours(privacy_unit="frobenius"),
        "all entries with Laplace noise": ours(privacy_unit="entry_change", algorithm="one_shot"),
        "deflation, pure epsilon": ours(
            privacy_unit="entry_change", algorithm="deflation", delta=0.0
        ),
        "entry_change": ours(privacy_unit="entry_change"),
    }
    title = f"counts of mean 50, one changes by 1, {m} x {n}, squared cosine"
    compare(title, methods, cosine, ours=["entry_change"])


# -- regression -----------------------------------------------------------------------------------


def regressions():
    """Linear models next to AdaSSP and the released mean, at the same clip and Gaussian DP."""
    rng = np.random.default_rng()
    for n, d in sized(((5000, 10), (20_000, 50)), ((5000, 10),)):
        train, test = synthetic(n, d, 0)
        given = {"clip_norm": 1.0, "target_bounds": (-1.0, 1.0)}
        methods = {
            "released mean": lambda e, y=train[1]: mean_of(y, e, rng),
            "AdaSSP": lambda e, train=train: adassp(*train, e, rng),
            "DPRidge": lambda e, train=train, given=given: (
                DPRidge(epsilon=e, **given).fit(*train).predict
            ),
        }
        score = lambda predict, test=test: max(r2(predict, test), -1.0)  # noqa: E731
        best = r2(Ridge(1e-6).fit(*train).predict, test)
        expect = planned.r2(DPRidge(**given), train[0], best)
        options = {"ours": ["DPRidge"], "expect": expect, "perfect": best}
        compare(f"regression, {n} x {d}, R2 (-1: below)", methods, score, **options)
    digits_table(rng)


def mean_of(y, epsilon, rng):
    """Return a constant model: the mean of targets in [-1, 1]."""
    noise = rng.standard_normal() / mu_from_epsilon_delta(epsilon, DELTA)
    mean = (np.clip(y, -1, 1).sum() + noise) / len(y)
    return lambda X: np.full(len(X), mean)


def digits_table(rng):
    X, y = load_digits(return_X_y=True)
    X = X / np.linalg.norm(X, axis=1, keepdims=True)
    order = np.random.default_rng(0).permutation(len(X))
    train, test = order[:1297], order[1297:]
    Y = np.eye(10)[y]

    def classes(epsilon):
        predict = adassp(X[train], Y[train], epsilon, rng)
        return lambda rows: predict(rows).argmax(axis=1)

    def ours(epsilon):
        model = DPRidgeClassifier(epsilon=epsilon, clip_norm=1.0, classes=range(10))
        return model.fit(X[train], y[train]).predict

    methods = {"AdaSSP": classes, "DPRidgeClassifier": ours}
    score = lambda predict: float(np.mean(predict(X[test]) == y[test]))  # noqa: E731
    compare("digits, 1297 rows, accuracy", methods, score, ours=["DPRidgeClassifier"])


# -- users, low-rank regressions -------------------------------------------------------------------


def users():
    """Personal models next to one private model for all, and the zero model; minus the risk."""
    n = sized(3000, 600)
    for name, mean in (("factors of their own", 0.0), ("much in common", 2.0)):
        people = personalization.Users(n, mean=mean, seed=0)
        methods = {
            "zero model": lambda epsilon: -1.0,
            "pooled private model": lambda e, p=people: -personalization.global_ridge(p, e),
            "DPPersonalizedRegressor": lambda e, p=people: -personalization.ours(p, e),
        }
        title = f"{n} users of 10 rows, {name}: minus the risk relative to the zero model"
        compare(
            title, methods, float, ours=["DPPersonalizedRegressor"], perfect=0.0,
        )  # fmt: skip


def traces():
    """Low-rank regressions, the zero matrix and private ridge regression; minus the error."""
    for n in sized((2000, 20_000), (2000,)):
        problem = trace.Problem(n, 0, shape=(10, 10))
        methods = {
            "zero matrix": lambda epsilon: -1.0,
            "AdaSSP, truncated": lambda e, p=problem: -p.error(trace.ridge(p, e)),
            "DPTraceRegressor": lambda e, p=problem: -p.error(trace.ours()(p, e)),
        }
        title = f"trace regression, {n} records of a 10 x 10 matrix of rank 2: minus the error"
        compare(
            title, methods, float, ours=["DPTraceRegressor"], perfect=0.0,
        )  # fmt: skip


SECTIONS = (
    wide_rows,
    dense_rows,
    interactions,
    entries,
    norms,
    contracts,
    regressions,
    users,
    traces,
)


def tables(full):
    """Tables for ``python -m benchmarks``."""
    return tables_of(SECTIONS, full)


if __name__ == "__main__":
    run_sections(__doc__, SECTIONS)
