"""Recommendations with privacy next to popularity, other private filters, and filters without it.

Run ``python benchmarks/recommend.py [--quick]``. A fifth of each history is held out, and noise is
fresh in each fit. ``... time FILE UNIT EPSILON`` prints the cost of one fit.
"""

import functools
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import baselines
import numpy as np
import scipy.sparse as sp
from report import show, shown

from skdp import DPTruncatedSVD
from skdp.datasets import make_interactions, make_user_items
from skdp.model_selection import split_interactions
from skdp.recommend import DPRecommender, ndcg_at_n, recall_at_n
from skdp.recommend._lists import best_items

DELTA = 1e-6
EPSILONS = (0.3, 0.5, 1.0, 3.0, 10.0)
USERS = 1500  # that are scored
UNITS = ("row", "interaction")
SHORT, LONG = {"n_users": 6000, "n_items": 3000}, {"n_users": 2000, "n_items": 1500}
SETS = {
    "short, strong factors": lambda: make_user_items(
        **SHORT, mean_length=9, n_factors=5, overlap=0.1, spread=3.0, tail=0.7, random_state=0
    ),
    "short, weak factors": lambda: make_user_items(
        **SHORT, mean_length=9, overlap=0.6, spread=1.0, random_state=0
    ),
    "short, no factors": lambda: make_user_items(
        **SHORT, mean_length=9, overlap=1.0, random_state=0
    ),
    "short, disjoint factors": lambda: make_interactions(6000, 3000, 54_000, 20, random_state=0),
    "long, strong factors": lambda: make_user_items(
        **LONG, mean_length=100, n_factors=20, overlap=0.2, spread=2.5, tail=0.7, random_state=0
    ),
    "long, weak factors": lambda: make_user_items(
        **LONG, mean_length=100, overlap=0.6, spread=1.0, random_state=0
    ),
    "long, no factors": lambda: make_user_items(
        **LONG, mean_length=100, overlap=1.0, random_state=0
    ),
}


# -- scorers: rows -> scores of all items ----------------------------------------------------------


def degree_normalised(R, floor=1):
    """Rows over the square root of their degree, or of the floor."""
    return sp.diags_array(1 / np.sqrt(np.maximum(np.diff(R.indptr), floor))) @ R


def subspace_scores(components):
    """The plain filter r V V'."""
    return lambda rows: np.asarray(rows @ components.T) @ components


def plain_svd(R, k):
    return subspace_scores(sp.linalg.svds(degree_normalised(R), k)[2])


def graph_filter(R, k):
    """GF-CF, its ideal low pass: items over the square roots of their counts too."""
    roots = np.sqrt(np.maximum(np.asarray(R.sum(axis=0)).reshape(-1), 1.0))
    V = sp.linalg.svds(degree_normalised(R) @ sp.diags_array(1 / roots), k)[2]
    return lambda rows: (np.asarray((rows @ sp.diags_array(1 / roots)) @ V.T) @ V) * roots


def popular_scores(counts):
    return lambda rows: np.tile(counts, (rows.shape[0], 1))


def printed_power(R, k, unit, epsilon, rng):
    """Algorithm 1 of Nicolas et al. as printed, in its unit (interaction), or with row noise."""
    X = degree_normalised(R)
    if unit == "row":
        sensitivity = baselines.row_sensitivity("add_remove")
    else:
        sensitivity = baselines.interaction_sensitivity
    multiplier = baselines.paper_multiplier(epsilon, DELTA, baselines.POWER_STEPS)
    V = baselines.block_power(lambda V: X.T @ (X @ V), R.shape[1], k, multiplier, sensitivity, rng)
    return subspace_scores(V)


def private_svd(R, k, unit, epsilon):
    model = DPTruncatedSVD(
        k, epsilon=epsilon, delta=DELTA, privacy_unit=unit,
        **({"clip_norm": 1.0} if unit == "row" else {}),
    )  # fmt: skip
    return subspace_scores(model.fit(degree_normalised(R) if unit == "row" else R).components_)


def recommender(R, k, unit, epsilon, algorithm="auto"):
    model = DPRecommender(k, epsilon=epsilon, delta=DELTA, privacy_unit=unit, algorithm=algorithm)
    return model.fit(R).filter_.scores


# -- quality ---------------------------------------------------------------------------------------


class Split:
    """Known and held-out items, and how good scores are on the users that are looked at."""

    def __init__(self, R):
        self.known, held_out = split_interactions(R, random_state=0)
        users = np.flatnonzero(np.diff(held_out.indptr))[:USERS]
        self._rows, self._truth = self.known[users], held_out[users]

    def judged(self, scores):
        """Return (Recall@20, NDCG@20)."""
        items = best_items(scores, self._rows, 20, exclude_known=True)[0]
        return recall_at_n(items, self._truth), ndcg_at_n(items, self._truth)


def cell(values):
    """Mean of (recall, NDCG) over fits."""
    recall, ndcg = np.mean(values, axis=0)
    return f"{recall:.3f} / {ndcg:.3f}"


def quality_table(name, split, k, epsilons, repeats):
    """Compare at each budget, in both units."""
    exact = {
        "popularity, not private": popular_scores(np.asarray(split.known.sum(axis=0)).reshape(-1)),
        "SVD, not private": plain_svd(split.known, k),
        "GF-CF, not private": graph_filter(split.known, k),
    }
    rows = [
        [text, *[cell([split.judged(scores)])] * len(epsilons)] for text, scores in exact.items()
    ]
    rng = np.random.default_rng()
    for unit in UNITS:
        methods = {
            "popularity, whole budget": functools.partial(recommender, algorithm="popularity"),
            "power method, as published": functools.partial(printed_power, rng=rng),
            "DPTruncatedSVD": private_svd,
            "DPRecommender": recommender,
        }
        for text, fit in methods.items():
            cells = []
            for epsilon in epsilons:
                fits = [fit(split.known, k, unit, epsilon) for _ in range(repeats)]
                cells.append(cell([split.judged(scores) for scores in fits]))
            rows.append([f"{unit}: {text}", *cells])
    R = split.known
    title = (
        f"{name}: {R.shape[0]} x {R.shape[1]}, {R.nnz} known, k = {k}: Recall@20 / NDCG@20, "
        f"mean of {repeats} fits"
    )
    show(title, ["epsilon", *epsilons], rows)


def quality(sets=SETS, k=16, epsilons=EPSILONS, repeats=3):
    for name, make in sets.items():
        quality_table(name, Split(make()), k, epsilons, repeats)


# -- cost ------------------------------------------------------------------------------------------


def megabytes():
    """Peak memory of this process; getrusage would count the parent's before it was started."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def one_fit(path, unit, epsilon):
    """Measure one fit and the lists of all users; run in a process of its own."""
    R = sp.csr_array(sp.load_npz(path))
    before, found = megabytes(), {"nnz": int(R.nnz)}
    wall, cpu = time.perf_counter(), time.process_time()
    model = DPRecommender(32, privacy_unit=unit, epsilon=epsilon, n_jobs=2).fit(R)
    found["fit"] = time.perf_counter() - wall
    found["fit_cpu"] = time.process_time() - cpu
    found["peak"], found["before"] = megabytes(), before
    wall, cpu = time.perf_counter(), time.process_time()
    model.recommend(R, 20)
    found["lists"] = time.perf_counter() - wall
    found["lists_cpu"] = time.process_time() - cpu
    found |= {"peak_lists": megabytes(), "kept": len(model.selected_items_), "rank": model.rank_}
    return found | {"route": model.algorithm_reason_.split(":")[0]}


def cost(cases=tuple((unit, epsilon) for unit in UNITS for epsilon in (1.0, 10.0))):
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "R.npz")
        sp.save_npz(path, make_user_items(30_000, 41_000, 27, 40, tail=0.8, random_state=0))
        cost_table(path, cases)


def cost_table(path, cases):
    rows, nnz = [], 0
    for unit, epsilon in cases:
        command = [sys.executable, __file__, "time", path, unit, str(epsilon)]
        environment = dict(os.environ, PYTHONPATH=str(Path(__file__).resolve().parents[1]))
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        found = json.loads(done.stdout)
        nnz = found["nnz"]
        rows.append([
            f"{unit}, epsilon {epsilon:g}", found["route"], found["kept"],
            f"{found['fit']:.1f} ({found['fit_cpu']:.1f})",
            f"{found['peak']:.0f} ({found['before']:.0f})",
            f"{found['lists']:.1f} ({found['lists_cpu']:.1f})", f"{found['peak_lists']:.0f}",
        ])  # fmt: skip
    head = ["fit", "route", "kept items", "fit: s (CPU s)", "peak MB (before)",
            "lists of all users: s (CPU s)", "peak MB"]  # fmt: skip
    show(f"cost: 30000 users x 41000 items, {nnz} interactions, k = 32, two cores", head, rows)


def tables(full):
    """Tables for ``python -m benchmarks``."""
    few = {} if full else {"repeats": 1, "epsilons": (0.5, 1.0, 3.0, 10.0)}
    yield from shown(lambda: quality(**few))
    yield from shown(cost)


def main():
    if sys.argv[1:2] == ["time"]:
        found = one_fit(*sys.argv[2:4], float(sys.argv[4]))
        print(json.dumps({k: v if isinstance(v, str) else round(v, 3) for k, v in found.items()}))
        return
    for _ in tables("--quick" not in sys.argv[1:]):
        pass


if __name__ == "__main__":
    warnings.simplefilter("ignore", UserWarning)
    main()
