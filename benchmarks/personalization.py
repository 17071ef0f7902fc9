"""Personalised regression: error against the number of users and epsilon, all competitors.

Run: ``python benchmarks/personalization.py [table ...]``; without arguments all tables are printed.
The figure is the excess risk relative to the zero model (1 is useless): synthetic users whose
coefficients lie in a plane of 20 features, 10 rows each, noise of standard deviation .5, delta
1e-6, adjacency add_remove; medians over fresh data and fresh noise.
"""

import math
import sys
import time
import tracemalloc
import warnings

import numpy as np
from report import printed

from skdp.data.units import UserRows
from skdp.papers import PersonalizedRegression
from skdp.papers._jain_2021 import line_net
from skdp.privacy import mu_from_epsilon_delta
from skdp.queries.users import UserQuery
from skdp.regression import DPPersonalizedClassifier, DPPersonalizedRegressor
from skdp.solvers.local_fits import LOSSES, RidgePath
from skdp.solvers.personalization import PENALTIES

DELTA = 1e-6


class Users:
    """Synthetic users: x ~ N(0, covariance), y = x' U v + noise, v ~ N(mean, I)."""

    def __init__(self, n, d=20, k=2, m=10, *, noise=0.5, root=None, mean=0.0, seed=None):
        rng = np.random.default_rng(seed)
        self.n, self.d, self.k, self.m, self.noise = n, d, k, m, noise
        self.U = np.linalg.qr(rng.standard_normal((d, k)))[0]
        V = rng.standard_normal((n, k))
        V[:, 0] += mean
        self.theta = V @ self.U.T
        self.root = np.eye(d) if root is None else root
        self.X = rng.standard_normal((n, m, d)) @ self.root
        self.Y = np.einsum("nmd,nd->nm", self.X, self.theta)
        self.Y += noise * rng.standard_normal((n, m))
        self.groups = np.repeat(np.arange(n), m)

    def flat(self):
        """Rows, targets, users."""
        return self.X.reshape(-1, self.d), self.Y.ravel(), self.groups

    def risk(self, theta, intercept=0.0):
        """Excess risk of a model for each user, relative to the zero model."""
        change = (self.theta - theta) @ self.root
        size = np.mean(np.sum((self.theta @ self.root) ** 2, axis=1))
        return float((np.mean(np.sum(change**2, axis=1)) + np.mean(np.square(intercept))) / size)

    def subspace_error(self, U):
        """Spectral norm of what U misses."""
        U = np.linalg.qr(U)[0]
        return float(np.linalg.norm(self.U - U @ (U.T @ self.U), 2))


# -- competitors -----------------------------------------------------------------------------------


def ours(users, epsilon, **params):
    """Fit the estimator and return the risk of the users' heads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = DPPersonalizedRegressor(users.k, epsilon=epsilon, delta=DELTA, **params)
        model.fit(*users.flat())
    heads, d = model._private["heads"], users.X.shape[2]
    return users.risk(heads[:, :d], heads[:, d])


def alone(users, epsilon=None):
    """Ridge on the user's own rows, its penalty by leave-one-out."""
    path, Y = RidgePath.of(users.X), users.Y[:, :, None]
    zero, loss = np.zeros_like(Y), LOSSES["squared"]
    errors = []
    for penalty in PENALTIES:
        fit = path.fit(Y, zero, loss, np.full(users.n, penalty), 0.0)
        errors.append(loss.losses(Y, fit.left_out).sum(axis=1))
    best = PENALTIES[np.argmin(errors, axis=0)]
    return users.risk(path.coefficients(path.fit(Y, zero, loss, best, 0.0))[:, :, 0])


def heads_in(users, U, penalty=0.1):
    """Ridge heads inside a given subspace."""
    path, Y = RidgePath.of(users.X @ U), users.Y[:, :, None]
    fit = path.fit(Y, np.zeros_like(Y), LOSSES["squared"], np.full(users.n, penalty), 0.0)
    return users.risk((path.coefficients(fit).swapaxes(1, 2) @ U.T)[:, 0])


def oracle(users, epsilon=None):
    """Heads inside the true subspace."""
    return heads_in(users, users.U)


def altmin(users, epsilon=None, rounds=10):
    """Alternating minimisation without privacy, from the moments."""
    moments = np.einsum("nmd,nm->nd", users.X, users.Y)
    U = np.linalg.eigh(moments.T @ moments)[1][:, -users.k :]
    X, y, groups = users.flat()
    for _ in range(rounds):
        Z = users.X @ U
        G = Z.swapaxes(1, 2) @ Z + 1e-6 * np.eye(users.k)
        V = np.linalg.solve(G, Z.swapaxes(1, 2) @ users.Y[:, :, None])[:, :, 0]
        W = (V[groups][:, :, None] * X[:, None, :]).reshape(len(X), -1)
        U = np.linalg.qr(np.linalg.solve(W.T @ W, W.T @ y).reshape(users.k, users.d).T)[0]
    return heads_in(users, U)


def global_ridge(users, epsilon):
    """One DP ridge model for all: released unit moments of each user's [X, y]."""
    X, y, groups = users.flat()
    rows = UserRows(X, y[:, None], groups, False)
    query = UserQuery(rows, adjacency="add_remove")

    def both(batch):
        scale = np.ldexp(1.0, -batch.x_exponent)[:, None, None]
        return np.concatenate([batch.X, batch.Y * scale], axis=2)

    M = query.grams("moments", both, users.d + 1).answer(0.0)
    noise = np.random.default_rng().standard_normal(M.shape) / mu_from_epsilon_delta(epsilon, DELTA)
    M = M + (noise + noise.T) / 2
    values, vectors = np.linalg.eigh(M[:-1, :-1])
    floor = math.sqrt(2 * users.d) / mu_from_epsilon_delta(epsilon, DELTA)
    theta = vectors @ ((vectors.T @ M[:-1, -1]) / np.maximum(values, floor))
    return users.risk(theta)


def paper_noise(epsilon, parts):
    """Noise multiplier of the paper's stages: sqrt(8 parts log(1/delta)) / epsilon."""
    return math.sqrt(8 * parts * math.log(1 / DELTA)) / epsilon


def paper_start(users, multiplier, rng):
    """Algorithm 3 as printed (replacement neighbours, rows paired, upper triangle copied)."""
    zeta = 2.5 * users.Y.std()
    pairs = users.m // 2
    X = users.X / np.linalg.norm(users.X, axis=2, keepdims=True)
    y = np.clip(users.Y, -zeta, zeta)
    a = (X * y[:, :, None])[:, : 2 * pairs : 2].reshape(-1, users.d)
    b = (X * y[:, :, None])[:, 1 : 2 * pairs : 2].reshape(-1, users.d)
    M = np.triu(a.T @ b)
    M += np.triu(rng.standard_normal(M.shape)) * multiplier * zeta**2 * users.m
    M = M + np.triu(M, 1).T
    values, vectors = np.linalg.eigh(M)
    return vectors[:, np.argsort(values)[-users.k :]]


def paper_literal(users, epsilon, rounds=3):
    """Algorithms 1 to 3 as printed, with disjoint blocks of users and quarters of rows."""
    rng = np.random.default_rng()
    multiplier = paper_noise(epsilon, 2)
    U = paper_start(users, multiplier, rng)
    q, d, k = users.m // 4, users.d, users.k
    zeta = 2.5 * users.Y.std()
    eta = 2.5 * np.median(np.linalg.norm(users.theta, axis=1)) * math.sqrt(d)
    for block in np.array_split(rng.permutation(users.n), rounds):
        X1, y1 = users.X[block, :q] @ U, users.Y[block, :q]
        G = X1.swapaxes(1, 2) @ X1 + 1e-6 * np.eye(k)
        V = np.linalg.solve(G, X1.swapaxes(1, 2) @ y1[:, :, None])[:, :, 0]
        X2, y2 = users.X[block, q : 2 * q].reshape(-1, d), users.Y[block, q : 2 * q].ravel()
        W = (np.repeat(V, q, axis=0)[:, :, None] * X2[:, None, :]).reshape(len(X2), -1)
        W *= np.minimum(1, eta / np.linalg.norm(W, axis=1))[:, None]
        noise = np.triu(rng.standard_normal((d * k, d * k))) * users.m * eta**2 * multiplier / 2
        A = W.T @ W + noise + np.triu(noise, 1).T
        b = W.T @ np.clip(y2, -zeta, zeta)
        b += rng.standard_normal(d * k) * users.m * eta * zeta * multiplier / 2
        U = np.linalg.qr(np.linalg.lstsq(A, b)[0].reshape(k, d).T)[0]
    return heads_in(users, U)


METHODS = {
    "alone": alone,
    "global DP ridge": global_ridge,
    "AltMin, no privacy": altmin,
    "oracle subspace": oracle,
    "paper, literally": paper_literal,
    "ours": ours,
    "ours, no intercept": lambda users, epsilon: ours(users, epsilon, fit_intercept=False),
}


# -- tables ----------------------------------------------------------------------------------------


def line(name, values, width=24):
    """Print one line of a table."""
    cells = (f"{value:>9}" if isinstance(value, int) else f"{value:>9.3f}" for value in values)
    print(f"{name:<{width}}" + "".join(cells), flush=True)


def medians(function, n, epsilon, seeds, **data):
    """Median risk over fresh data."""
    return float(np.median([function(Users(n, **data), epsilon) for _ in range(seeds)]))


def table_users(sizes=(100, 300, 1000, 3000), seeds=9):
    """Error against the number of users, epsilon = 1."""
    print("\nrisk, epsilon = 1, by number of users")
    line("", sizes)
    for name, method in METHODS.items():
        line(name, [medians(method, n, 1.0, seeds) for n in sizes])


def table_epsilon(epsilons=(0.25, 0.5, 1.0, 2.0, 4.0, 8.0), n=1000, seeds=5):
    """Error against epsilon, 1000 users."""
    print(f"\nrisk, {n} users, by epsilon")
    line("", epsilons)
    for name, method in METHODS.items():
        line(name, [medians(method, n, epsilon, seeds) for epsilon in epsilons])


def table_crossover(seeds=7):
    """From which number of users is the DP fit better than each user alone?"""
    sizes = (50, 100, 150, 200, 300, 500)
    print("\nrisk of ours over risk of alone, by number of users")
    line("", sizes)
    for epsilon in (0.5, 1.0, 2.0):
        row = []
        for n in sizes:
            ratios = []
            for _ in range(seeds):
                users = Users(n)
                ratios.append(ours(users, epsilon) / alone(users))
            row.append(np.median(ratios))
        line(f"epsilon {epsilon}", row)


def rotated(d=20, seed=0):
    """Root of a covariance with variances 1 to .05 on random axes."""
    Q = np.linalg.qr(np.random.default_rng(seed).standard_normal((d, d)))[0]
    return (Q * np.sqrt(np.linspace(1, 0.05, d))) @ Q.T


def table_rotated(n=4000, seeds=3):
    """Features of unequal variances on rotated axes, 15 rows a user."""
    print(f"\nrotated features (variances 1 to .05), {n} users, epsilon = 1")
    data = {"m": 15, "root": rotated()}
    line("oracle subspace", [medians(oracle, n, 1.0, seeds, **data)])
    for whiten in (True, False):
        risk = medians(lambda u, e, w=whiten: ours(u, e, whiten=w), n, 1.0, seeds, **data)
        line(f"ours, whiten={whiten}", [risk])


def subspace_of(users, epsilon, **params):
    """Subspace error of the estimator."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = DPPersonalizedRegressor(users.k, epsilon=epsilon, **params).fit(*users.flat())
    whitener = np.eye(users.d) if model.whitening_ is None else model.whitening_
    return users.subspace_error(whitener @ model.components_.T)


def table_paper(sizes=(1000, 10_000, 100_000, 300_000)):
    """The paper's start needs hundreds of times more users (d=10, k=2, m=16, epsilon = 1)."""
    print("\nspectral error of the subspace, d=10 k=2 m=16, epsilon = 1, by number of users")
    line("", sizes, 28)
    rng, mu = np.random.default_rng(), mu_from_epsilon_delta(1.0, DELTA)
    rows = {"Alg. 3, paper's noise": [], "Alg. 3, exact accounting": [], "votes alone": []}
    votes = {"whiten": False, "head_selection": "subspace", "fit_intercept": False}
    split = {"subspace": 0.9, "targets": 0.08, "columns": 0.01, "global": 0.01}
    for n in sizes:
        users = Users(n, d=10, m=16)
        starts = (paper_start(users, paper_noise(1.0, 1), rng), paper_start(users, 0.5 / mu, rng))
        rows["Alg. 3, paper's noise"].append(users.subspace_error(starts[0]))
        rows["Alg. 3, exact accounting"].append(users.subspace_error(starts[1]))
        small = n <= 10_000
        error = subspace_of(users, 1.0, budget_split=split, **votes) if small else math.nan
        rows["votes alone"].append(error)
    for name, row in rows.items():
        line(name, row, 28)


def printed_scores(users, net, bound=3.0):
    """Algorithm 4's score: each user's smallest Huber loss over |v| <= bound, summed."""
    grid = np.linspace(-bound, bound, 31)
    total = np.zeros(len(net))
    for X, y in zip(users.X, users.Y, strict=True):
        residual = np.abs(y[:, None, None] - (X @ net.T)[:, :, None] * grid)
        huber = np.where(residual < 1, residual**2 / 2, residual - 0.5)
        total += huber.mean(axis=0).min(axis=1)
    return total


def exponential_by_hand(users, rate, rng, net):
    """Subspace error of one exact draw with weight exp(-rate * score)."""
    index = np.argmax(-rate * printed_scores(users, net) + rng.gumbel(size=len(net)))
    return users.subspace_error(net[index][:, None])


def table_exponential(sizes=(100, 300, 1000, 3000), seeds=5):
    """The exponential mechanism on d=3, k=1, m=8, noise .3, net of 1000 lines."""
    print("\nmean subspace error, d=3 k=1, pure epsilon = 1 for the choice, by number of users")
    line("", sizes)
    common = {"whiten": False, "head_selection": "subspace", "fit_intercept": False}
    data = {"d": 3, "k": 1, "m": 8, "noise": 0.3}
    split = {"subspace": 0.9, "targets": 0.08, "columns": 0.01, "global": 0.01}

    def chosen(users, adjacency):
        model = PersonalizedRegression(1, start="exponential", delta=0.0, adjacency=adjacency)
        return users.subspace_error(model.fit(*users.flat()).components_.T)

    for name, error in (
        ("R2 score, replace", lambda users: chosen(users, "replace")),
        ("R2 score, add_remove", lambda users: chosen(users, "add_remove")),
        ("Gaussian votes", lambda users: subspace_of(users, 1.0, budget_split=split, **common)),
    ):
        line(name, [np.mean([error(Users(n, **data)) for _ in range(seeds)]) for n in sizes])
    rng, net = np.random.default_rng(), line_net(3, 1000)[:, :, 0]
    for name, rate in (
        ("constants of the proof", 1 / (8 * 3 * 3)),
        ("tight constant, add_remove", 1 / (3 * 3)),
    ):
        row = [
            np.mean([exponential_by_hand(Users(n, **data), rate, rng, net) for _ in range(seeds)])
            for n in sizes[:3]
        ]
        line(name, row, 28)


def table_labels(sizes=(300, 1000, 3000), seeds=3):
    """Accuracy of the classifier, d=20 k=2 m=20, coefficients of scale 3 (Bayes about .79)."""
    print("\ntest accuracy of labels, epsilon = 1, by number of users")
    line("", sizes)
    rows = {"ours": [], "ours, global model": []}
    for n in sizes:
        scores = []
        for _ in range(seeds):
            users = Users(n, m=30, noise=0.0)
            chance = 1 / (1 + np.exp(-3 * users.Y / math.sqrt(2)))
            labels = np.random.default_rng().random(chance.shape) < chance
            train, test = slice(0, 20), slice(20, 30)
            model = DPPersonalizedClassifier(epsilon=1.0, classes=[False, True])
            X, d = users.X, users.d
            groups = np.repeat(np.arange(n), 20)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model.fit(X[:, train].reshape(-1, d), labels[:, train].ravel(), groups)
            rest = X[:, test].reshape(-1, d), labels[:, test].ravel()
            own = np.repeat(np.arange(n), 10)
            scores.append([model.score(*rest, groups=own), model.public_copy().score(*rest)])
        for row, value in zip(rows.values(), np.median(scores, axis=0), strict=True):
            row.append(value)
    for name, row in rows.items():
        line(name, row)


def table_speed(n=100_000, m=20, d=50, n_jobs=2):
    """Seconds and memory of one fit with default parameters."""
    users = Users(n, d=d, k=2, m=m, seed=0)
    X, y, groups = users.flat()
    print(f"\n{n} users x {m} rows x {d} features ({X.nbytes / 2**20:.0f} MB), n_jobs={n_jobs}")
    start = time.perf_counter()
    DPPersonalizedRegressor(n_jobs=n_jobs).fit(X, y, groups)
    print(f"fit: {time.perf_counter() - start:.1f} s")
    few = slice(0, len(X) // 5)
    for rows in (slice(0, len(X) // 10), few):
        tracemalloc.start()
        DPPersonalizedRegressor().fit(X[rows], y[rows], groups[rows])
        peak = tracemalloc.get_traced_memory()[1] / 2**20
        tracemalloc.stop()
        print(f"peak beyond {X[rows].nbytes / 2**20:.0f} MB of rows: {peak:.0f} MB")


TABLES = {
    "users": table_users,
    "epsilon": table_epsilon,
    "crossover": table_crossover,
    "rotated": table_rotated,
    "paper": table_paper,
    "exponential": table_exponential,
    "labels": table_labels,
    "speed": table_speed,
}


def tables(full):
    """Tables for ``python -m benchmarks``."""
    quick = {
        "users": lambda: table_users((300, 1000), 3),
        "epsilon": lambda: table_epsilon((0.5, 1.0, 4.0), 500, 3),
        "labels": lambda: table_labels((300,), 1),
    }
    for name, table in (TABLES if full else quick).items():
        yield from printed(TABLES[name].__doc__.splitlines()[0], table)


def main():
    """Print the tables named on the command line, or all."""
    for name in sys.argv[1:] or TABLES:
        TABLES[name]()


if __name__ == "__main__":
    main()
