"""One person, many rows: what protecting persons costs, by four ways of doing it.

Run: ``python benchmarks/persons.py``.

Persons have 1 to 200 rows, by rounded log-normal counts, and rows about a mean of their own. All
ways protect all rows of one person under add_remove, at (epsilon, 1e-6):

- "row unit": the row unit at the mu of epsilon divided by 200, the largest count, which is public:
  exact group privacy, better than dividing epsilon.
- "m rows": m random rows of each person (all, if it has fewer), and the row unit at mu / m.
- "ours": ``privacy_unit="group"``, with both weights.

Clip norms, scales and bounds are learnt by all ways. Figures are medians over repetitions, with
fresh data each time, which all ways share: the last columns are the mean differences from the best
of the other ways, with their standard errors.
"""

import math
import sys
import warnings

import numpy as np
from report import Table

from skdp import DPPCA, DPRidge
from skdp.privacy import mu_from_epsilon_delta
from skdp.privacy.accounting.losses import epsilon_from_mu_delta

DELTA, MOST = 1e-6, 200
EPSILONS = (1.0, 3.0)
D, K = 20, 3
ROWS = (1, 5, 20)


def counts(n, rng):
    """Return the rows of each person: median 5, one in forty beyond 50."""
    return np.clip(np.rint(np.exp(rng.normal(math.log(5), 1.2, n))), 1, MOST).astype(int)


def table(n, seed):
    """Return rows, targets and persons; a fifth of the variance is between persons."""
    rng = np.random.default_rng(seed)
    persons = np.repeat(np.arange(n), counts(n, rng))
    scale = np.arange(1, D + 1) ** -0.8
    X = math.sqrt(0.2) * rng.standard_normal((n, D))[persons]
    X = (X + math.sqrt(0.8) * rng.standard_normal((len(persons), D))) * scale
    X = X @ np.linalg.qr(rng.standard_normal((D, D)))[0] + 0.5 * rng.standard_normal(D)
    y = X @ rng.standard_normal(D)
    y = (y - y.mean()) / y.std()
    noise = 0.3 * rng.standard_normal(n)[persons] + 0.5 * rng.standard_normal(len(y))
    return X, y + noise, persons


def some_rows(persons, m, rng):
    """Return m random rows of each person, or all."""
    order = rng.permutation(len(persons))
    order = order[np.argsort(persons[order], kind="stable")]
    owner = persons[order]
    first = np.searchsorted(owner, owner)
    return order[np.arange(len(owner)) - first < m]


def shared(epsilon, m):
    """Return the epsilon of the row unit that protects m rows together."""
    return epsilon_from_mu_delta(mu_from_epsilon_delta(epsilon, DELTA) / m, DELTA)


def ways(epsilon, persons, rng):
    """Yield (name, rows, parameters, arguments of fit)."""
    everything = np.arange(len(persons))
    yield "row unit", everything, {"epsilon": shared(epsilon, MOST)}, {}
    for m in ROWS:
        name = f"{m} row" + "s" * (m > 1)
        yield name, some_rows(persons, m, rng), {"epsilon": shared(epsilon, m)}, {}
    group = {"epsilon": epsilon, "privacy_unit": "group"}
    yield "ours", everything, group, {"groups": persons}


def captured(X, components):
    """Return the variance that components capture, as a share of the most that K can."""
    S = np.cov(X.T)
    best = np.linalg.eigvalsh(S)[-K:].sum()
    return float(np.trace(components @ S @ components.T) / best)


def scores(n, epsilon, seed):
    """Return (captured share, R2) of each way."""
    X, y, persons = table(n, seed)
    rng = np.random.default_rng(seed + 10**6)
    out = {}
    for name, rows, params, fit in ways(epsilon, persons, rng):
        pca = DPPCA(K, delta=DELTA, **params).fit(X[rows], **fit)
        ridge = DPRidge(delta=DELTA, **params).fit(X[rows], y[rows], **fit)
        out[name] = captured(X, pca.components_), max(0.0, ridge.score(X, y))
    return out


def paired(by_name, i):
    """Return mean differences of ours from the best of the other ways, with standard errors."""
    others = [name for name in by_name if not name.startswith("ours")]
    best = max(others, key=lambda name: np.median(by_name[name][:, i]))
    cells = []
    for name in by_name.keys() - set(others):
        gain = by_name[name][:, i] - by_name[best][:, i]
        cells.append((name, f"{gain.mean():+.3f} ± {gain.std() / math.sqrt(len(gain)):.3f}"))
    return [cell for _, cell in sorted(cells)]


def tables(full):
    """Yield a table for each figure."""
    repetitions = 41 if full else 21
    sizes = (1000, 4000, 16000) if full else (1000, 4000)
    found = {}
    for n in sizes:
        for epsilon in EPSILONS:
            runs = [scores(n, epsilon, seed) for seed in range(repetitions)]
            found[n, epsilon] = {name: np.array([run[name] for run in runs]) for name in runs[0]}
    names = list(next(iter(found.values())))
    for i, (title, what) in enumerate(
        [("DPPCA", "captured variance over the best"), ("DPRidge", "R2, 0 at least")]
    ):
        rows = [
            [
                n, f"{epsilon:g}",
                *(f"{np.median(by_name[name][:, i]):.3f}" for name in names),
                *paired(by_name, i),
            ]
            for (n, epsilon), by_name in found.items()
        ]  # fmt: skip
        yield Table(
            f"{title}, persons of 1 to {MOST} rows: {what}",
            ["persons", "epsilon", *names, "ours - best other"],
            rows,
            [f"{D} features, {K} components; medians of {repetitions}."],
        )


def main():
    """Print the tables."""
    warnings.simplefilter("ignore")
    for found in tables("--full" in sys.argv):
        print(found.as_text())


if __name__ == "__main__":
    main()
