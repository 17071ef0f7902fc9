"""Private PCA side by side: skdp, diffprivlib and OpenDP, time and utility, in one run.

Run: ``python -m benchmarks peers`` after ``benchmarks/install_peers.sh``. Peers run in their own
environments; a peer that is not there, does not import or does not finish is said so, with the
error. Each fit is timed (CPU seconds) next to scikit-learn's PCA in the same process: the ratio is
what to compare.
"""

import json
import os
import selectors
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
from report import show, shown
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.preprocessing import normalize

from skdp import DPPCA
from skdp.datasets import make_spiked_rows

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = ("latest", "older")
DELTA = 1e-6
PEERS = {"diffprivlib": "diffprivlib.models.PCA", "opendp": "opendp.extras.sklearn PCA"}


def folder():
    """Where install_peers.sh has put the environments."""
    return Path(os.environ.get("SKDP_PEERS", HERE / ".peers"))


def captured(X, components):
    """Share of the squares of X in the row space of the components."""
    return float(np.sum((X @ np.linalg.qr(np.asarray(components).T)[0]) ** 2) / np.sum(X**2))


# -- running a peer --------------------------------------------------------------------------------


class Run:
    """What one peer did: versions, fits by epsilon, and why others are missing."""

    def __init__(self):
        self.versions, self.error, self.rejected = {}, "", ""
        self.fits = {}  # epsilon -> list of (captured, seconds, seconds next to)
        self.faults = {}  # epsilon -> text

    def cell(self, epsilon):
        """Return the median captured share, or the reason why there is none."""
        if self.error:
            return self.error
        shares = [fit[0] for fit in self.fits.get(epsilon, [])]
        if not shares:
            return self.faults.get(epsilon, "not tried")
        return f"{statistics.median(shares):.4f}" + ("*" if epsilon in self.faults else "")

    def ratio(self):
        """Median CPU seconds over those of scikit-learn next to it."""
        fits = [fit for several in self.fits.values() for fit in several]
        if not fits:
            return "", ""
        seconds = statistics.median(fit[1] for fit in fits)
        ratio = statistics.median(fit[1] / fit[2] for fit in fits)
        return f"{1000 * seconds:.1f}", f"{ratio:.1f}"


def run_peer(peer, X, k, epsilons, n_fits, limit):
    """Fit a peer in the first environment where it imports; `limit` seconds for one fit."""
    run = Run()
    for name in ENVIRONMENTS:
        python = folder() / name / "bin" / "python"
        if not python.exists():
            run.error = "not installed"
            continue
        run.error = ""
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "X.npy"
            np.save(path, X)
            order = [epsilon for epsilon in epsilons for _ in range(n_fits)]
            command = [python, HERE / "peer_worker.py", peer, path, k, *order]
            _read_fits(run, list(map(str, command)), X, limit)
        if not run.error:
            break
        with_sklearn = f"with scikit-learn {run.versions.get('scikit-learn', '?')}"
        run.rejected = f"{peer} {run.versions.get(peer, '')} {with_sklearn}: {run.error}"
    return run


def _read_fits(run, command, X, limit):
    """Read the worker's lines; end it when one of its fits is late."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    epsilon = None
    try:
        for line in _lines(child, limit):
            if line is None and epsilon is None:
                run.error = "the import did not finish"
                return
            if line is None:
                run.faults[epsilon] = f"none in {limit:g} s"
                return
            if "versions" in line:
                run.versions, run.error = line["versions"], line.get("error", "")
            elif "epsilon" in line:
                epsilon = line["epsilon"]
            elif "error" in line:
                run.faults[epsilon] = line["error"]
            else:
                share = captured(X, line["components"])
                run.fits.setdefault(epsilon, []).append((share, line["seconds"], line["beside"]))
        if child.wait() and not run.versions:
            run.error = (child.stderr.read().decode().strip().splitlines() or ["?"])[-1]
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
        child.stderr.close()


def _lines(child, limit):
    """Yield the JSON lines of a child; None when the next one is late (imports get a minute)."""
    waited, pending = 60.0, b""
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        while True:
            while b"\n" in pending:
                text, _, pending = pending.partition(b"\n")
                if text.startswith(b"{"):
                    line = json.loads(text)
                    waited = limit if "epsilon" in line else 60.0
                    yield line
            if not selector.select(timeout=waited):
                yield None
                return
            chunk = os.read(child.stdout.fileno(), 1 << 16)
            if not chunk:
                return
            pending += chunk


# -- ours and scikit-learn -------------------------------------------------------------------------


def run_ours(X, k, epsilons, n_fits, **options):
    """Fit DPPCA and scikit-learn's PCA in turn."""
    run = Run()
    for epsilon in epsilons:
        for _ in range(n_fits):
            start = time.process_time()
            model = DPPCA(k, epsilon=epsilon, clip_norm=1.0, center="none", **options).fit(X)
            seconds = time.process_time() - start
            start = time.process_time()
            PCA(k, svd_solver="covariance_eigh").fit(X)
            beside = time.process_time() - start
            share = captured(X, model.components_)
            run.fits.setdefault(epsilon, []).append((share, seconds, beside))
    return run


OURS = {"DPPCA, add_remove": {}, "DPPCA, replace": {"adjacency": "replace"}}


# -- data ------------------------------------------------------------------------------------------


def shortened(X):
    """Rows divided by the longest one."""
    return X / np.linalg.norm(X, axis=1).max()


def digits():
    """Unit rows, centred by their mean, which is taken as public."""
    X = normalize(load_digits().data)
    return shortened(X - X.mean(axis=0))


def spiked(n, d, k):
    """Equal strong directions; rows are cut to norm 1."""
    X = make_spiked_rows(n, d, k, 0.6, random_state=0) / 1.2
    return X * np.minimum(1, 1 / np.linalg.norm(X, axis=1))[:, None]


CASES = {
    "spiked rows, n=5000 d=6 k=2": (lambda: spiked(5000, 6, 2), 2),
    "digits, n=1797 d=64 k=5": (digits, 5),
    "spiked rows, n=20000 d=100 k=5": (lambda: spiked(20_000, 100, 5), 5),
}
EPSILONS = [0.1, 0.5, 1.0, 2.0, 5.0]


def side_by_side(title, X, k, epsilons, n_fits, limit):
    """One table: captured share by epsilon, CPU time and its ratio to scikit-learn."""
    best = captured(X, PCA(k, svd_solver="covariance_eigh").fit(X).components_)
    chance = k / X.shape[1]
    runs = {name: run_ours(X, k, epsilons, n_fits, **options) for name, options in OURS.items()}
    few = min(n_fits, 5)
    runs |= {PEERS[peer]: run_peer(peer, X, k, epsilons, few, limit) for peer in PEERS}
    rows = [["PCA of scikit-learn, not private", *[f"{best:.4f}"] * len(epsilons), "", "1.0"]]
    rows += [
        [name, *(run.cell(epsilon) for epsilon in epsilons), *run.ratio()]
        for name, run in runs.items()
    ]
    notes = [
        f"Captured share of the squared norm, median of {n_fits} fits ({few} of the peers); a "
        f"random subspace has {chance:.4f}. Times are medians over all epsilons, ratios to "
        "scikit-learn's PCA in the same process. An asterisk: later fits at this epsilon did not "
        f"finish in {limit:g} s. 'not tried': a smaller epsilon had not finished, and the peers' "
        "rejection sampling slows down as epsilon grows.",
        *(f"Does not import: {run.rejected}." for run in runs.values() if run.rejected),
    ]
    used = [", ".join(f"{k} {v}" for k, v in run.versions.items()) for run in runs.values()]
    if any(used):
        notes.append("Peers ran with " + "; ".join(filter(None, used)) + ".")
    curves = {name: {str(e): f for e, f in run.fits.items()} for name, run in runs.items()}
    head = ["epsilon", *map(str, epsilons), "CPU (ms)", "CPU / PCA"]
    show(title, head, rows, *notes, curves=curves, best=best, chance=chance, epsilons=epsilons)


PROMISES = (
    "What each row promises: DPPCA (epsilon, 1e-6) for one row added or removed, or replaced; "
    "diffprivlib pure epsilon for one replaced row; OpenDP pure epsilon, called with epsilon/2, "
    "because its own map charges 2 epsilon for a replaced row. Pure epsilon is the stronger "
    "promise. In the versions named above both peers divide, where the published rejection "
    "sampler multiplies, by the density of the envelope: their draws do not follow the law that "
    "their proof needs, and acceptance becomes rare as epsilon or the number of features grows."
)


def tables(full):
    """The side-by-side tables."""
    n_fits, limit = (20, 60.0) if full else (5, 10.0)
    first = True
    for title, (make, k) in CASES.items():
        options = (make(), k, EPSILONS, n_fits, limit)
        for table in shown(lambda t=title, o=options: side_by_side(t, *o)):
            table.notes += [PROMISES] * first
            first = False
            yield table


if __name__ == "__main__":
    list(tables(full=False))
