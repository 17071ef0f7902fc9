"""Utility and cost of the spectral family next to its peers, one table per section.

Run ``python benchmarks/spectral.py [--quick] [section ...]``; no section means all. Data are seeded
and public, noise is fresh in every fit; a cell is "mean (sd)" over fits. The peers, among them the
papers' own calibrations, are in ``baselines.py``; none of them is an option of the package.
"""

import math
import statistics
import time
from dataclasses import dataclass
from functools import partial

import baselines
import numpy as np
import peers
import scipy.linalg
import scipy.sparse as sp
from report import run_sections, show, sized, tables_of
from rows import peak_mb
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.metrics import adjusted_rand_score
from sklearn.preprocessing import normalize

from skdp import DPPCA, DPSpectralEmbedding, DPTruncatedSVD
from skdp.datasets import make_block_graph, make_interactions, make_spiked_rows
from skdp.privacy.gate.bounds import PrivacyBudget
from skdp.privacy.gate.session import Grant, PrivacySession
from skdp.privacy.noise.words import make_source
from skdp.queries.entries import EntryQuery, MatrixUnit
from skdp.queries.interactions import InteractionQuery
from skdp.solvers.iterate import iterate_symmetric

DELTA = 1e-6
_BY_NAME = (
    '"power", asked for by name, has noise in every column of each product, where a moment or a '
    'sum is one release: "auto" does not take it here.'
)


# -- tables --------------------------------------------------------------------------------------


def cell(values, digits=3):
    """Return "mean (sd)" of several numbers; a string stays as it is."""
    if isinstance(values, str):
        return values
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.{digits}f} ({spread:.{digits}f})"


def captured(X, components):
    """Share of the squares of X in the row space of orthonormal components."""
    squares = X.multiply(X).sum() if sp.issparse(X) else np.sum(X**2)
    return float(np.sum(np.square(X @ components.T)) / squares)


def shorten(X, length=1.0):
    """Rows of at most this length."""
    return X * np.minimum(1.0, length / np.linalg.norm(X, axis=1))[:, None]


# -- rows ----------------------------------------------------------------------------------------


def power_fit(X, k, delta, rng, multiplier, sensitivity):
    """Return a fit of block power to X'X, as a function of epsilon."""

    def fit(epsilon):
        m = multiplier(epsilon, delta, baselines.POWER_STEPS)
        return baselines.block_power(lambda V: X.T @ (X @ V), X.shape[1], k, m, sensitivity, rng)

    return fit


def row_table(title, X, k, epsilons, adjacency, n_fits, *, routes=("gram", "power")):
    """Compare everything that protects a row (of norm at most 1) on dense X."""
    rng = np.random.default_rng()

    power = partial(power_fit, X, k, DELTA, rng)

    def moment(method):
        return lambda epsilon: method(X, k, epsilon, DELTA, adjacency, rng)

    def ours(route):
        options = {"clip_norm": 1, "center": "none", "adjacency": adjacency, "svd_solver": route}
        return lambda epsilon: DPPCA(k, epsilon=epsilon, **options).fit(X).components_

    paper, row = baselines.paper_multiplier, baselines.row_sensitivity(adjacency)
    methods = {
        "analyze-Gauss, textbook": moment(baselines.analyze_gauss),
        "symmetric Gaussian, exact accounting": moment(baselines.symmetric_gaussian),
        "block power, paper's constants": power(paper, row),
        "block power, exact accounting": power(baselines.exact_multiplier, row),
    }
    if adjacency == "add_remove":
        prior, norms = baselines.prior_sensitivity, baselines.row_norm_sensitivity
        methods["* Hardt-Price, sqrt(p) max|V|"] = power(paper, prior)
        methods["* paper 003 literal, max row norm"] = power(paper, norms)
    methods |= {f"DPPCA, {route}": ours(route) for route in routes}
    best = captured(X, np.linalg.svd(X, full_matrices=False)[2][:k])
    rows = [
        ["not private", *[f"{best:.4f}"] * len(epsilons)],
        *_libraries(X, k, epsilons, adjacency),
    ]
    for name, fit in methods.items():
        cells = [[captured(X, fit(epsilon)) for _ in range(n_fits)] for epsilon in epsilons]
        rows.append([name, *map(cell, cells)])
    notes = ["* protects one entry of X'X, not a row: a weaker promise"] * (adjacency != "replace")
    notes.append(_BY_NAME)
    title = f"{title}, {adjacency}, captured share, mean (sd) of {n_fits} fits"
    show(title, ["epsilon", *epsilons], rows, *notes)


def _libraries(X, k, epsilons, adjacency):
    """The other libraries, in their own environments; both protect a replaced row."""
    if adjacency != "replace":
        return []
    rows = []
    for peer in peers.PEERS:
        run = peers.run_peer(peer, X, k, epsilons, 1, sized(60.0, 5.0))
        cells = [run.cell(epsilon) for epsilon in epsilons]
        if set(cells) != {"not installed"}:  # the section of peers has them from where they were
            rows.append([f"{peer} (pure epsilon)", *cells])
    return rows


def digits():
    """Centred by the exact mean, which is taken as public; largest row of norm 1."""
    X = normalize(load_digits().data)
    X -= X.mean(axis=0)
    X /= np.linalg.norm(X, axis=1).max()
    for adjacency in ("add_remove", "replace"):
        row_table("digits, k=5", X, 5, [0.5, 1, 2, 5], adjacency, sized(20, 3))


def spiked():
    """Equal spikes; rows are brought to norm at most 1, which changes the optimum a little."""
    X = shorten(make_spiked_rows(20_000, 100, 5, 0.6, random_state=0) / 1.29)
    title = "spiked 60%, n=20000 d=100 k=5"
    row_table(title, X, 5, [0.5, 1], "replace", sized(10, 3))
    X = shorten(make_spiked_rows(2000, 300, 5, 0.9, random_state=0) * 2)
    title = "spiked 90%, n=2000 d=300 k=5"
    row_table(title, X, 5, [0.5, 1], "add_remove", sized(10, 3))


def wide():
    """Wide sparse interactions: screening against what fits in memory."""
    sizes = sized((), (5000, 3000, 120_000))
    R = make_interactions(*sizes, random_state=0)
    X, k, delta, epsilons = normalize(R), 10, 1e-5, [1, 3, 10]
    d, rng, n_fits = X.shape[1], np.random.default_rng(), sized(5, 2)
    best = captured(X, sp.linalg.svds(X, k)[2])

    power = partial(power_fit, X, k, delta, rng)

    def ours(algorithm):
        options = {"delta": delta, "clip_norm": 1, "algorithm": algorithm}
        return lambda epsilon: DPTruncatedSVD(k, epsilon=epsilon, **options).fit(X).components_

    paper, exact = baselines.paper_multiplier, baselines.exact_multiplier
    methods = {
        "block power, exact accounting": power(exact, lambda V: 1.0),
        "* Hardt-Price, sqrt(p) max|V|": power(paper, baselines.prior_sensitivity),
        "* paper 003 literal (interaction)": power(paper, baselines.interaction_sensitivity),
        "screening, symmetric Gaussian": lambda epsilon: baselines.screened_gaussian(
            X, k, epsilon, delta, rng
        ),
        "DPTruncatedSVD, power": ours("power"),
        "DPTruncatedSVD, screened (auto)": ours("auto"),
    }
    popular = np.argsort(-np.asarray(R.sum(axis=0)).ravel())[:k]
    trivial = captured(X, np.eye(d, dtype=np.float32)[popular]) / best
    rows = [["k most popular items, not private", *[f"{trivial:.3f}"] * 3, "", ""]]
    rows += [["analyze-Gauss, textbook", *[f"not run: {d * d * 8e-9:.1f} GB"] * 3, "", ""]]
    rows += [["diffprivlib, OpenDP", *["dense input only"] * 3, "", ""]]
    for name, fit in methods.items():
        cells, seconds, cpu = [], [], []
        for epsilon in epsilons:
            shares = []
            for _ in range(n_fits):
                wall, processor = time.perf_counter(), time.process_time()
                components = fit(epsilon)
                seconds.append(time.perf_counter() - wall)
                cpu.append(time.process_time() - processor)
                shares.append(captured(X, components) / best)
            cells.append(shares)
        rows.append([name, *map(cell, cells), f"{max(seconds):.2f}", f"{max(cpu):.2f}"])
    title = f"wide sparse, {X.shape[0]} x {d}, {X.nnz} ones, unit rows, row unit, k={k}, delta=1e-5"
    title += f": captured against the best ({n_fits} fits)"
    head = ["epsilon", *epsilons, "slowest fit (s)", "CPU (s)"]
    weaker = "* protects one entry of X'X, or one interaction: a weaker promise"
    show(title, head, rows, weaker, _BY_NAME)


# -- entries and edges ---------------------------------------------------------------------------


@dataclass(frozen=True)
class UnitChange(MatrixUnit):
    """The papers' neighbours: one pair of entries changes by at most 1, whatever it was.

    A promise about the data that no estimator of the package makes: `MatrixUnit` clips.
    """

    low: float = -1e6
    high: float = 1e6

    @property
    def alpha(self):
        """Largest change of one entry."""
        return 1.0


def interactions():
    """One interaction of a tall binary matrix: routes, the row unit, the method as printed."""
    shape = sized((54_906, 151, 1_170_000, 40), (20_000, 100, 300_000, 20))
    R, k, floor, n_fits = make_interactions(*shape, random_state=0), 5, 5, sized(5, 3)
    rows = normalised_rows(R, floor)
    moment = (rows.T @ rows).toarray()
    best = np.linalg.eigvalsh(moment)[-k:].sum()
    epsilons = [0.3, 1, 3, 10, 1000]

    def printed(epsilon):
        source, unit = make_source(None, "benchmark"), "interaction"
        session = PrivacySession(
            PrivacyBudget(epsilon, 1e-5), source=source, adjacency="add_remove", unit=unit
        )
        ask = session.ask(InteractionQuery(R, degree_floor=floor, adjacency="add_remove"))
        X = baselines.printed_power(ask, session.random_signs((R.shape[1], 13)), 6)
        vectors = np.linalg.eigh(X.T @ moment @ X)[1]  # exact, and for nothing
        return (X @ vectors[:, -k:]).T

    def ours(route):
        options = {"privacy_unit": "interaction", "unit_bound": floor, "delta": 1e-5}
        svd = DPTruncatedSVD(k, algorithm=route, **options)
        return lambda epsilon: svd.set_params(epsilon=epsilon).fit(R).components_

    def by_row(epsilon):
        return DPTruncatedSVD(k, epsilon=epsilon, delta=1e-5, clip_norm=1.0).fit(rows).components_

    methods = {"power method as published, 6 steps, 13 columns": printed, "row unit": by_row}
    methods |= {f"DPTruncatedSVD, {name}": ours(name) for name in ("auto", "gram", "power")}
    table = []
    for name, fit in methods.items():
        cells = [
            [float(np.sum(V * (V @ moment)) / best) for V in (fit(e) for _ in range(n_fits))]
            for e in epsilons
        ]
        table.append([name, *map(cell, cells)])
    title = f"interaction unit, {R.shape[0]} x {R.shape[1]}, k={k}, captured of the best"
    show(f"{title}, mean (sd) of {n_fits} fits", ["epsilon", *epsilons], table)


def normalised_rows(R, floor):
    """Binary rows over the square roots of their degrees, floored."""
    degrees = np.asarray(R.sum(axis=1)).reshape(-1)
    return sp.csr_array(sp.diags_array(1 / np.sqrt(np.maximum(degrees, floor))) @ R)


def spread_vector(n, coherence, rng):
    """A random unit vector with n max(v^2) = coherence."""
    v = rng.standard_normal(n)
    for _ in range(200):
        limit = math.sqrt(coherence * np.mean(v**2))
        v = np.clip(v, -limit, limit)
    return v / np.linalg.norm(v)


def critical_signal(cosine, low, high, n_fits, ratio=1.06):
    """Smallest sigma (to 6%) at which the median of |cosine(sigma)| reaches .9, by bisection."""
    while high / low > ratio:
        middle = math.sqrt(low * high)
        if statistics.median(cosine(middle) for _ in range(n_fits)) >= 0.9:
            high = middle
        else:
            low = middle
    return high


def critical():
    """Rank one, entries that change by 1: the smallest signal that is found."""
    n, coherence = 2000, 2.0
    data, rng = np.random.default_rng(0), np.random.default_rng()
    u, v = (spread_vector(n, coherence, data) for _ in range(2))
    n_fits = sized(11, 3)

    def power(steps_of, coherence_bound, multiplier):
        def cosine(sigma):
            steps = steps_of(sigma)
            m = multiplier(1.0, DELTA, steps)
            args = (n, steps, coherence_bound(steps), m, rng)
            x = baselines.fixed_coherence(lambda x: sigma * u * (u @ x), *args)
            return 0.0 if x is None else abs(float(x @ u))

        return cosine

    def gauss(sigma):
        A = baselines.entry_analyze_gauss(sigma * np.outer(u, v), 1.0, DELTA, rng, symmetric=False)
        x = rng.standard_normal(n)
        for _ in range(40):
            x = A.T @ (A @ x)
            x /= np.linalg.norm(x)
        return abs(float(x @ v))

    def ours(delta):
        bounds = {"privacy_unit": "entry", "unit_bound": (-1.0, 1.0)}  # add_remove: alpha = 1

        def cosine(sigma):
            svd = DPTruncatedSVD(1, epsilon=1, delta=delta, **bounds)
            return abs(float(svd.fit(sigma * np.outer(u, v)).components_[0] @ v))

        return cosine

    four, wide = (lambda sigma: 4), lambda steps: 16 * coherence * math.log(n)
    tight = lambda steps: 2 * coherence * math.log(2 * n * steps / 0.05)  # noqa: E731
    literal = lambda sigma: math.ceil(4 * math.log(sigma))  # noqa: E731
    exact = baselines.exact_multiplier
    cases = [
        ("paper 004 literal, T = 4 ln sigma", power(literal, wide, baselines.coherence_multiplier),
         500, 9000),
        ("C = 16 mu ln n, exact accounting, T = 4", power(four, wide, exact), 100, 3000),
        ("C = 2 mu ln(2nT/.05), exact accounting", power(four, tight, exact), 50, 1000),
        ("analyze-Gauss, textbook", gauss, 100, 1500),
        ("DPTruncatedSVD, delta=1e-6", ours(DELTA), 8, 200),
        ("DPTruncatedSVD, delta=0", ours(0), 8, 200),
    ]  # fmt: skip
    rows = []
    for name, cosine, low, high in cases:
        few = min(n_fits, 5) if cosine is gauss else n_fits
        rows.append([name, f"{critical_signal(cosine, low, high, few):.0f}", few])
    title = f"critical signal: rank 1, n={n}, coherence 2, entry unit, epsilon=1, median cosine .9"
    show(title, ["method", "sigma", "fits"], rows)


def edge_spectrum():
    """Rank 10 of a dense symmetric matrix whose pairs change by 1."""
    n, k = 1000, 10
    data, rng, n_fits = np.random.default_rng(1), np.random.default_rng(), sized(12, 3)
    axes = np.linalg.qr(data.standard_normal((n, n)))[0]
    weights = np.concatenate([np.linspace(1, 0.5, k), 0.1 * np.linspace(1, -1, n - k)])

    def error(A, B):
        return float(np.abs(scipy.linalg.eigvalsh(A - B)).max())

    def rank_k(values, V):
        kept = np.argsort(-np.abs(values))[:k]
        return (V[:, kept] * values[kept]) @ V[:, kept].T

    def ritz(A, V):  # with the exact Rayleigh quotients: kinder than private
        values, Q = np.linalg.eigh(V.T @ A @ V)
        return rank_k(values, V @ Q)

    def block(A, sensitivity):
        m = baselines.paper_multiplier(1.0, DELTA, 4)
        shape = (n, k, math.sqrt(2) * m, sensitivity, rng, 4)
        return ritz(A, baselines.block_power(lambda V: A @ V, *shape).T)

    def ours(A):
        budget = PrivacyBudget(1.0, DELTA)
        source = make_source(None, "benchmark")
        session = PrivacySession(budget, source=source, adjacency="add_remove", unit="edge")
        ask = session.ask(EntryQuery(A, UnitChange("edge")))
        start = session.random_signs((n, k))
        return rank_k(*iterate_symmetric(ask, start, k, 1.0, law="gaussian", n_iter="auto"))

    def deflation(A, exact):
        steps = (4, 4 * math.log(n)) if exact else (math.ceil(4 * math.log(500)), 64 * math.log(n))
        return baselines.deflation(A, k, 1.0, DELTA, *steps, rng, exact=exact)

    methods = {
        "paper 004 literal, deflation": lambda A: deflation(A, False),
        "deflation, exact accounting, C = 4 ln n": lambda A: deflation(A, True),
        "analyze-Gauss, textbook": lambda A: rank_k(
            *np.linalg.eigh(baselines.entry_analyze_gauss(A, 1.0, DELTA, rng, symmetric=True))
        ),
        "Hardt-Price, sqrt(p) max|V|, T=4": lambda A: block(A, baselines.prior_sensitivity),
        "paper 003 literal, max row norm, T=4": lambda A: block(A, baselines.row_norm_sensitivity),
        "ours, 16 back-projected steps": ours,
    }
    rows = [["zero matrix"], ["not private, rank 10"]] + [[name] for name in methods]
    sizes = sized([200, 500, 2000], [500])
    for size in sizes:
        A = (axes * (size * weights)) @ axes.T
        np.fill_diagonal(A, 0.0)
        A = (A + A.T) / 2
        best = rank_k(*np.linalg.eigh(A))
        rows[0].append(f"{error(A, 0 * A) / size:.3f}")
        rows[1].append(f"{error(A, best) / size:.3f}")
        for row, fit in zip(rows[2:], methods.values(), strict=True):
            errors = [error(A, fit(A)) / size for _ in range(n_fits)]
            row.append(f"{statistics.median(errors):.3f} ({max(errors):.3f})")
    title = f"rank 10, edge unit, n={n}, epsilon=1: spectral error / lambda, median (worst)"
    title += f" of {n_fits} fits"
    note = "block power peers get their eigenvalues exactly, for nothing"
    show(title, ["lambda", *sizes], rows, note)


def graph():
    """Two groups in a stochastic block model, found from the released embedding."""
    cases = [(1000, 60.0, 150.0, sized(20, 5)), (20_000, 80.0, 215.0, 5)][: sized(2, 1)]
    rng = np.random.default_rng()

    def score(labels, embedding):
        found = KMeans(2, n_init=4, random_state=0).fit(embedding.reshape(-1, 1)).labels_
        return adjusted_rand_score(labels, found)

    def centred(A):
        return lambda x: A @ (x - x.mean()) - np.mean(A @ (x - x.mean()))

    def second(A):  # leading eigenvector across the constant, by power iteration
        return sp.linalg.eigsh(sp.linalg.LinearOperator(A.shape, centred(A)), 1, which="LA")[1]

    def literal(A):
        n, steps = A.shape[0], math.ceil(4 * math.log(80))
        m = math.sqrt(2) * baselines.coherence_multiplier(1.0, DELTA, steps)
        x = baselines.fixed_coherence(centred(A), n, steps, 16 * math.log(n), m, rng)
        return np.zeros(n) if x is None else x

    for n, gap, degree, n_fits in cases:
        A, labels = make_block_graph(n, 2, gap, degree, random_state=0)
        noisy = dict.fromkeys(["randomised response (pure epsilon)", "analyze-Gauss, textbook"])
        small = n <= 2000

        def respond(A=A):
            return second(baselines.randomised_response(A, 1.0, rng))

        def gauss(A=A):
            return second(baselines.entry_analyze_gauss(A, 1.0, DELTA, rng, symmetric=True))

        for name, fit in zip(noisy, (respond, gauss), strict=True):
            noisy[name] = fit if small else f"not run: {n * n * 8e-9:.1f} GB"
        methods = {
            "not private": lambda A=A: second(A),
            **noisy,
            "paper 004 literal, C = 16 ln n": lambda A=A: literal(A),
            "DPSpectralEmbedding": lambda A=A: DPSpectralEmbedding(1, epsilon=1.0).fit_transform(A),
        }
        rows = []
        for name, fit in methods.items():
            if isinstance(fit, str):
                rows.append([name, fit, "", ""])
                continue
            scores, seconds = [], []
            for _ in range(1 if name == "not private" else n_fits):
                start = time.perf_counter()
                embedding = fit()
                seconds.append(time.perf_counter() - start)
                scores.append(score(labels, embedding))
            rows.append([name, cell(scores), f"{min(scores):.3f}", f"{min(seconds):.2f}"])
        title = (
            f"block model, n={n}, K=2, gap {gap:g}, mean degree {degree:g}, edge unit, epsilon=1"
        )
        show(f"{title} ({n_fits} fits)", ["method", "adjusted Rand", "worst", "fit (s)"], rows)


# -- cost ----------------------------------------------------------------------------------------


@dataclass
class Cost:
    """Best wall time, its CPU time, and the part of it that draws noise."""

    wall: float = math.inf
    cpu: float = math.inf
    noise: float = 0.0


def measure(fits, n_runs):
    """Run several fits in turn; keep the best wall and CPU time of each."""
    costs = [Cost() for _ in fits]
    drawn = [0.0]
    draw = Grant.draw

    def timed(self):
        start = time.process_time()
        noise = draw(self)
        drawn[0] += time.process_time() - start
        return noise

    Grant.draw = timed
    try:
        for _ in range(n_runs):
            for cost, fit in zip(costs, fits, strict=True):
                drawn[0] = 0.0
                wall, cpu = time.perf_counter(), time.process_time()
                fit()
                cpu = time.process_time() - cpu
                cost.wall = min(cost.wall, time.perf_counter() - wall)
                if cpu < cost.cpu:
                    cost.cpu, cost.noise = cpu, drawn[0]
    finally:
        Grant.draw = draw
    return costs


def time_table(title, names, fits, n_runs):
    """Print times and their ratio to the first line."""
    costs = measure(fits, n_runs)
    rows = []
    for name, cost in zip(names, costs, strict=True):
        ratios = (f"{cost.wall / costs[0].wall:.2f}", f"{cost.cpu / costs[0].cpu:.2f}")
        noise = f"{cost.noise / cost.cpu:.0%}" if cost.noise else ""
        rows.append([name, f"{cost.wall:.2f}", f"{cost.cpu:.2f}", *ratios, noise])
    head = ["", "wall (s)", "CPU (s)", "wall ratio", "CPU ratio", "noise / CPU"]
    show(f"{title} (best of {n_runs}; ratios to the first line)", head, rows)


def times():
    """Fit time against scikit-learn, one BLAS thread."""
    small, n_runs = sized(1, 10), sized(3, 1)
    rng = np.random.default_rng(0)
    shape = (100_000 // small, 20_000 // small)
    X = sp.random_array(shape, density=2.5e-3 * small, format="csr", rng=rng)
    X.data = rng.standard_normal(X.nnz)
    k = 32

    def svd(n_jobs):
        options = {"algorithm": "power", "clip_norm": 7.0, "n_iter": 3, "n_jobs": n_jobs}
        return lambda: DPTruncatedSVD(k, **options).fit(X)

    peers = [lambda n=n: TruncatedSVD(k, n_iter=n, random_state=0).fit(X) for n in (4, 2)]
    names = [f"TruncatedSVD, {n} iterations: {2 * n + 2} products" for n in (4, 2)]
    names += [f"DPTruncatedSVD, 3 steps: 10 products, n_jobs={n}" for n in (1, 2)]
    time_table(f"CSR {shape}, {X.nnz} non-zeros, k={k}", names, [*peers, svd(1), svd(2)], n_runs)
    X = rng.standard_normal((100_000 // small, 500))

    def pca(**options):
        return lambda: DPPCA(5, svd_solver="gram", clip_norm=22.4, **options).fit(X)

    names = ["PCA, covariance_eigh", "DPPCA, gram", "DPPCA, gram, n_jobs=2",
             "DPPCA, gram, center='none'"]  # fmt: skip
    peer = lambda: PCA(5, svd_solver="covariance_eigh").fit(X)  # noqa: E731
    fits = [peer, pca(), pca(n_jobs=2), pca(center="none")]
    time_table(f"dense {X.shape}, k=5", names, fits, n_runs)


def growth():
    """Time and memory as the data grow."""
    small, n_runs = sized(1, 10), sized(3, 1)
    rng = np.random.default_rng(0)
    rows = []
    for n in (50_000, 100_000, 200_000):
        X = rng.standard_normal((n // small, 100))
        cases = {
            "DPPCA, gram, d=100": lambda X=X: DPPCA(5, clip_norm=10.0).fit(X),
            "DPPCA, power, d=100": lambda X=X: DPPCA(5, clip_norm=10.0, svd_solver="power").fit(X),
        }
        for name, fit in cases.items():
            cost = measure([fit], n_runs)[0]
            size = X.nbytes / 2**20
            rows.append([name, len(X), f"{size:.0f}", f"{cost.cpu:.2f}", f"{peak_mb(fit):.1f}"])
    for nnz in (1_000_000, 2_000_000, 4_000_000):
        n = 50_000 // small
        X = sp.random_array((n, 10_000), density=nnz / small / (n * 10_000), format="csr", rng=rng)
        for algorithm in ("power", "screened"):
            options = {"clip_norm": 4.0, "algorithm": algorithm}
            fit = lambda X=X, o=options: DPTruncatedSVD(10, **o).fit(X)  # noqa: E731
            cost = measure([fit], n_runs)[0]
            size = (X.data.nbytes + X.indices.nbytes) / 2**20
            name = f"DPTruncatedSVD, {algorithm}, {n} x 10000"
            rows.append([name, X.nnz, f"{size:.0f}", f"{cost.cpu:.2f}", f"{peak_mb(fit):.1f}"])
    head = ["", "rows or non-zeros", "X (MB)", "CPU (s)", "peak beyond X (MB)"]
    rows.sort(key=lambda row: row[0])
    show(f"growth, n_jobs=1 (best of {n_runs})", head, rows)


SECTIONS = (digits, spiked, wide, interactions, critical, edge_spectrum, graph, times, growth)
_SLOW = (critical, edge_spectrum)  # not in a quick run of all


def tables(full):
    """Tables for ``python -m benchmarks``; the quick ones leave the slowest sections out."""
    return tables_of([part for part in SECTIONS if full or part not in _SLOW], full)


if __name__ == "__main__":
    run_sections(__doc__, SECTIONS)
