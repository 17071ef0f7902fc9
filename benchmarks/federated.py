"""The decentralised fit next to the central one, and next to the baselines of its paper.

Run ``python benchmarks/federated.py [--quick] [section ...]``; no section means all. Data are
seeded and public, noise is fresh in every fit but those of the figure.
"""

import math
import statistics
import time
import tracemalloc

import numpy as np
import scipy.optimize
import scipy.sparse as sp
import scipy.sparse.linalg
from report import run_sections, show, sized, tables_of
from sklearn.base import clone
from sklearn.preprocessing import normalize

from skdp import DPTruncatedSVD
from skdp.datasets import make_interactions, make_spiked_rows
from skdp.federated import (
    AggregationConfig,
    FederatedPowerMethod,
    PowerMethodClient,
    UnmaskedAggregator,
    simulated_aggregator,
)
from skdp.federated._messages import Request
from skdp.papers import PowerMethod
from skdp.privacy.gate.bounds import PrivacyBudget
from skdp.privacy.noise import integers as noise
from skdp.queries.rows import RowQuery

DELTA = 1e-5
STEPS, WIDTH = 3, 32  # L and p of the paper's figures


# -- one fit over clients --------------------------------------------------------------------------


def federated(estimator, parts, config, *, dropped=(), secure=False, n_samples=None):
    """Fit over clients that hold `parts`; those in `dropped` never answer."""
    names = ["epsilon", "delta", "privacy_unit"]
    names += ["unit_bound"] * (estimator.privacy_unit == "interaction")
    options = {name: getattr(estimator, name) for name in names}
    clients = [PowerMethodClient(part, config, **options) for part in parts]
    callbacks = [client.respond for i, client in enumerate(clients) if i not in dropped]
    sums = UnmaskedAggregator(callbacks)
    if secure:
        every = [client.respond for client in clients]
        sums = simulated_aggregator(every, config, lost=lambda i, kind: i in dropped)
    server = FederatedPowerMethod(estimator, config)
    return server.fit(sums, n_features=parts[0].shape[1], n_samples=n_samples)


def split_rows(X, n):
    """Cut rows into n parts of about equal size."""
    return [X[part] for part in np.array_split(np.arange(X.shape[0]), n)]


def degree_normalised(R, floor):
    """Rows over the root of their degree, at least `floor`."""
    degrees = np.diff(R.indptr)
    scale = np.repeat(1 / np.sqrt(np.maximum(degrees, floor)), degrees)
    return sp.csr_array((R.data * scale, R.indices, R.indptr), shape=R.shape)


# -- energy: central against federated -------------------------------------------------------------


def energy():
    """Captured energy on 24 clients, and what colluders and drop-outs cost.

    The cost in theory is that of a central fit with s / (s - T - F) times the noise variance.
    """
    R = make_interactions(943, 1682, 100_000, 12, random_state=0).tocsr()
    k, n_fits, parts = 10, sized(20, 3), split_rows(R, 24)
    normalised = degree_normalised(R, 1)
    gram = (normalised.T @ normalised).toarray()
    best = float(np.linalg.eigvalsh(gram)[-k:].sum())
    estimator = DPTruncatedSVD(
        k, privacy_unit="interaction", epsilon=10.0, delta=DELTA, algorithm="power"
    )
    flipped = clone(estimator).set_params(algorithm="auto").fit(R).components_
    weaker = epsilon_of(PrivacyBudget(10.0, DELTA).mu / math.sqrt(24 / 20))
    rows, first = [], None
    for title, epsilon, colluders, dropouts, dropped in (
        ("central", 10.0, None, 0, ()),
        ("24 clients, T = 0, F = 0", 10.0, 0, 0, ()),
        (f"central, 24/20 of the variance (epsilon {weaker:.2f})", weaker, None, 0, ()),
        ("24 clients, T = 4", 10.0, 4, 0, ()),
        ("24 clients, F = 4, nobody drops", 10.0, 0, 4, ()),
        ("24 clients, F = 4, 4 drop (with a sixth of the rows)", 10.0, 0, 4, (0, 5, 9, 20)),
    ):
        captured = []
        for _ in range(n_fits):
            svd = clone(estimator).set_params(epsilon=epsilon)
            if colluders is None:
                svd.fit(R)
            else:
                config = AggregationConfig(24, colluders, dropouts)
                svd = federated(svd, parts, config, dropped=dropped, secure=True, n_samples=943)
            V = svd.components_
            captured.append(float(np.trace(V @ gram @ V.T)) / best)
        error = statistics.stdev(captured) / math.sqrt(n_fits)
        middle = statistics.fmean(captured)
        first = first or middle
        rows.append((title, f"{middle:.4f} +- {error:.4f}", f"{middle / first:.3f}"))
    auto = float(np.trace(flipped @ gram @ flipped.T)) / best
    rows.append(("central, any route (flipped cells)", f"{auto:.4f}", f"{auto / first:.3f}"))
    head = ("fit", "captured energy (mean, its error)", "/ central")
    title = f"Interaction unit, power route, 943 x 1682, epsilon 10, k = 10, {n_fits} fits each"
    show(title, head, rows, "Energy is relative to the best ten directions.")


def epsilon_of(mu):
    """Return the epsilon whose budget has this mu."""
    return scipy.optimize.brentq(lambda e: PrivacyBudget(e, DELTA).mu - mu, 0.1, 60.0)


# -- the paper's first figure ----------------------------------------------------------------------


# The last two: every client, one for each user, adds all of the noise.
PRINTED = {
    "the paper, central = decentralised": {"sensitivity": "rows"},
    "Balcan, central": {"sensitivity": "prior"},
    "Balcan, decentralised": {"sensitivity": "prior", "n_parties": True},
    "FedPower": {"sensitivity": "width", "n_parties": True},
}


def printed_method(options, n_users):
    """A method of the figure as its paper prints it, for one interaction."""
    options = {"n_parties": 1, **options}
    options["n_parties"] = n_users if options["n_parties"] is True else 1
    return PowerMethod(WIDTH, n_iter=STEPS, delta=DELTA, calibration="printed", **options)


class FilterError:
    """Relative error of the ideal low-pass filter R I^-1/2 U U' I^1/2, from Gram matrices."""

    def __init__(self, R, reference):
        self._root = np.sqrt(np.maximum(np.asarray(R.sum(axis=0)).ravel(), 1.0))
        gram = (R.T @ R).toarray()
        self._gram = gram / self._root[:, None] / self._root[None, :]
        self._reference = reference
        self._size = self._norm(reference @ reference.T)

    def _norm(self, D):
        right = D * self._root[None, :]
        return math.sqrt(max(float(np.sum((self._gram @ right) * right)), 0.0))

    def __call__(self, U):
        return self._norm(U @ U.T - self._reference @ self._reference.T) / self._size


SHAPES = {
    "EachMovie-shaped (74,425 x 1,649)": ((74_425, 1_649, 2_380_000, 40), (1, 3, 5, 10, 25)),
    "Jester-shaped (54,906 x 151)": ((54_906, 151, 1_170_000, 40), (0.3, 1, 3, 10)),
}


def filter_errors(estimator, fit, R, seed):
    """Return epsilon -> R_p error of a fit, against the same estimator without noise.

    Seeded: both start from the same matrix, as in the paper.
    """
    exact = clone(estimator).set_params(epsilon=math.inf, random_state=seed).fit(R)
    error = FilterError(R, exact.components_.T)

    def at(epsilon):
        private = clone(estimator).set_params(epsilon=epsilon, random_state=seed)
        return error(fit(private).components_.T)

    return at


def figure():
    """R_p error against epsilon, as in the paper's first figure (delta = 1e-5, p = 32)."""
    n_fits = sized(3, 1)
    config = AggregationConfig(50, 1, 2)
    shapes = list(SHAPES.items())
    for title, (shape, epsilons) in sized(shapes, shapes[-1:]):
        R = make_interactions(*shape, random_state=0).tocsr()
        parts = split_rows(R, 50)
        ours = DPTruncatedSVD(WIDTH, privacy_unit="interaction", delta=DELTA)
        power = clone(ours).set_params(algorithm="power", unit_bound=10)
        methods = {
            "DPTruncatedSVD": (ours, lambda svd, R=R: svd.fit(R)),
            "its power route": (power, lambda svd, R=R: svd.fit(R)),
            "the same, 50 clients": (power, lambda svd, parts=parts: shared(svd, parts, config)),
        } | {
            name: (printed_method(options, R.shape[0]), lambda model, R=R: model.fit(R))
            for name, options in PRINTED.items()
        }
        rows = []
        for name, (estimator, fit) in methods.items():
            at = [filter_errors(estimator, fit, R, seed) for seed in range(n_fits)]
            cells = [statistics.fmean(error(e) for error in at) for e in epsilons]
            rows.append((name, *(f"{value:.2f}" for value in cells)))
        show(
            f"R_p error, {title}, {R.nnz} interactions, by epsilon, {n_fits} fits",
            ("method", *epsilons),
            rows,
            "Relative error of the ideal low-pass filter, against the same estimator without "
            "noise, from the same start. Those of the paper take three equal steps with printed "
            "constants. 'Balcan, decentralised' and "
            "FedPower have a client for each user, who adds all of the noise.",
        )


def shared(svd, parts, config):
    """Fit over clients; their noise is theirs, whatever the seed of the estimator."""
    model = clone(svd).set_params(random_state=None)
    return federated(model, parts, config, n_samples=sum(part.shape[0] for part in parts))


# -- many clients ----------------------------------------------------------------------------------


WIDE = 400


def scale():
    """Ten thousand clients of one process: CPU time of a round, and memory next to the data."""
    rows = []
    for n_clients in sized((100, 1000, 10_000), (50, 200)):
        X = make_spiked_rows(20_000, WIDE, 5, random_state=0)
        config = AggregationConfig(n_clients, n_clients // 100, n_clients // 20)
        estimator = DPTruncatedSVD(5, algorithm="power", clip_norm=1.5)
        start = time.process_time()
        clone(estimator).fit(X)
        central = time.process_time() - start
        clients = [PowerMethodClient(part, config) for part in split_rows(X, n_clients)]
        sums = UnmaskedAggregator([client.respond for client in clients])
        start = time.process_time()
        svd = FederatedPowerMethod(estimator, config).fit(sums, n_features=WIDE)
        spent = time.process_time() - start
        clients = [PowerMethodClient(part, config) for part in split_rows(X, n_clients)]
        sums = UnmaskedAggregator([client.respond for client in clients])
        tracemalloc.start()
        FederatedPowerMethod(estimator, config).fit(sums, n_features=WIDE)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        together = 8 * n_clients * svd.n_features_in_ * 10
        captured = float(np.sum((X @ svd.components_.T) ** 2) / np.sum(X**2))
        rows.append(
            (
                n_clients,
                f"{captured:.4f}",
                len(svd.releases_),
                f"{spent / central:.1f}",
                f"{1e3 * spent / len(svd.releases_):.0f} ms",
                f"{1e6 * spent / len(svd.releases_) / n_clients:.0f} us",
                f"{peak / 1e6:.1f} MB",
                f"{together / 1e6:.1f} MB",
            )
        )
    head = ("clients", "captured", "rounds", "CPU / central fit", "CPU a round", "a client",
            "peak", "s x n x p")  # fmt: skip
    show(f"20,000 rows, {WIDE} features, power route, T = 1%, F = 5%", head, rows)


# -- wide data -------------------------------------------------------------------------------------


class Traffic:
    """Counts what a sum carries: words up from each client, bytes of requests down."""

    def __init__(self, aggregate):
        self._aggregate = aggregate
        self.up, self.down, self.rounds = 0, 0, 0

    def __call__(self, request, size):
        self.up += 8 * size
        self.down += len(request)
        self.rounds += 1
        return self._aggregate(request, size)


def traffic():
    """Screening of features first, next to power steps on all of them."""
    X = normalize(make_interactions(30_000, 40_000, 800_000, 20, random_state=0).tocsr())
    best = float(np.sum(scipy.sparse.linalg.svds(X, k=10, return_singular_vectors=False) ** 2))
    config, parts, rows = AggregationConfig(24, 1, 1), split_rows(X, 24), []
    for epsilon in sized((1.0, 3.0), (1.0,)):
        for algorithm in ("power", "screened"):
            estimator = DPTruncatedSVD(10, algorithm=algorithm, clip_norm=1.0, epsilon=epsilon)
            clients = [PowerMethodClient(part, config, epsilon=epsilon) for part in parts]
            sums = Traffic(UnmaskedAggregator([client.respond for client in clients]))
            svd = FederatedPowerMethod(estimator, config).fit(sums, n_features=40_000)
            captured = float(np.sum(np.square(X @ svd.components_.T))) / best
            amounts = (f"{sums.up / 1e6:.1f} MB", f"{sums.down / 1e6:.1f} MB", sums.rounds)
            rows.append((algorithm, epsilon, f"{captured:.3f}", *amounts))
    head = ("route", "epsilon", "captured", "up, a client", "down, a client", "rounds")
    show("Row unit, 30,000 x 40,000 sparse rows of length 1, k = 10, 24 clients", head, rows)


# -- the audit -------------------------------------------------------------------------------------


def audit():
    """What T colluders and the server learn of a worst-case row, with F clients away.

    They subtract what the colluders sent. The neighbour is evaluated at the same requests.
    """
    rows = []
    for colluders, dropouts in ((1, 0), (4, 2), (10, 5)):
        config = AggregationConfig(24, colluders, dropouts)
        for adjacency in ("add_remove", "replace"):
            for algorithm in ("gram", "power"):
                data, other = np.zeros((48, 4)), np.zeros((48, 4))
                other[0, 3] = 1.0
                data[0, 2] = float(adjacency == "replace")
                seen = []
                options = {"epsilon": 1.0, "delta": DELTA, "adjacency": adjacency}
                estimator = DPTruncatedSVD(4, clip_norm=1.0, algorithm=algorithm, **options)
                clients = [PowerMethodClient(p, config, **options) for p in split_rows(data, 24)]
                answers = [client.respond for client in clients[: 24 - dropouts]]

                def keep(request, size, answers=answers, seen=seen):
                    seen.append(Request.decode(request))
                    return UnmaskedAggregator(answers)(request, size)

                n_samples = None if adjacency == "add_remove" else 48
                FederatedPowerMethod(estimator, config).fit(keep, n_features=4, n_samples=n_samples)
                unknown = math.sqrt(24 - colluders - dropouts) * noise.PART_EFFECTIVE_SIGMA
                squares = 0.0
                for request in seen:
                    pair = []
                    for part in (data[:2], other[:2]):
                        query = RowQuery(part, clip_norm=math.inf, adjacency=adjacency)
                        for call in request.calls:
                            query = getattr(query, call.method)(*call.arguments)
                        pair.append(query.answer(request.step).astype(float))
                    squares += float(np.sum((pair[1] - pair[0]) ** 2)) / unknown**2
                claimed = clients[0].privacy_spent_.mu
                ratio = f"{math.sqrt(squares) / claimed:.4f}"
                rows.append((colluders, dropouts, adjacency, algorithm, ratio))
    note = (
        "What T colluders and the server learn of a worst-case row when F clients are away, over "
        "what the clients' ledgers claim: at most 1."
    )
    show("Realised mu / claimed mu", ("T", "F", "adjacency", "route", "ratio"), rows, note)


SECTIONS = (energy, figure, scale, traffic, audit)


def tables(full):
    """Tables for ``python -m benchmarks``."""
    return tables_of(SECTIONS, full)


if __name__ == "__main__":
    run_sections(__doc__, SECTIONS)
