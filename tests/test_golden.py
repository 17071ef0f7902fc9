"""Every way of a fit under fixed noise, against a stored reference: nothing changes unnoticed.

Floats differ between processors, so the reference holds what is portable: receipts and ledger lines
(nine digits), answers of the gate, shapes. The integers of an answer are pinned bit by bit where
its public arguments are exact; where they come out of LAPACK, by two projections (a millionth of
the noise), or by name and shape where rounding is amplified. Which is which is measured:

    python tests/test_golden.py

fits everything on several kernels of OpenBLAS, writes what they agree on to ``golden.json``, and
says what changed. Whoever renews the reference says why in the commit.
"""

import hashlib
import json
import math
import os
import subprocess
import sys
import warnings
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg

import skdp
from skdp.decomposition import LocalAggregator, randomize_row
from skdp.federated import (
    AggregationConfig,
    FederatedPowerMethod,
    PowerMethodClient,
    UnmaskedAggregator,
)
from skdp.privacy.accounting.receipts import _PURPOSES
from skdp.testing import fixed_noise, record_transcript
from skdp.testing._transcripts import fresh, replaced
from tools.fit_checks import ordinary
from tools.outcomes import fitted_attributes
from tools.ways import ESTIMATORS, FURTHER

HERE = Path(__file__).parent
REFERENCE = HERE / "golden.json"
# (kernel of OpenBLAS, threads, whether the results of LAPACK are nudged: another one altogether)
RUNS = [("Haswell", 1, ""), ("SkylakeX", 2, ""), ("Zen", 4, ""), ("Nehalem", 1, ""),
        ("Haswell", 1, "--nudge")]  # fmt: skip
LINE, ROUGH, ANSWER = 1e-9, 1e-4, 1e-6  # relative, the same, in noise scales
ABOUT = "about "
CONFIG = AggregationConfig(4, 1, 1)


def fitted(estimator):
    return lambda: [ordinary(estimator).fit(fresh(estimator))]


X = np.random.default_rng(0).standard_normal((60, 6)) * np.linspace(2.0, 0.2, 6)


def batches(**params):
    def run():
        pca = skdp.DPIncrementalPCA(2, clip_norm=3.0, max_releases=3, **params)
        for rows in (X[:20], X[20:25], X[25:]):
            pca.partial_fit(rows)
        return [pca]

    return run


STREAM = {"matrix_shape": X.shape, "privacy_unit": "entry", "unit_bound": (-3.0, 3.0)}
SERVERS = {"matrix_shape": X.shape, "sensitivity_mode": "oblivious", "method": "two_sketch",
           "sketch_size": (5, 12)}  # fmt: skip


def updates(**params):
    def run():
        model = skdp.DPLowRankFactorizer(2, **(STREAM | params))
        model.update([1, 59, 1], [0, 5, 0], [0.5, -9.0, 0.25])
        return [model.update_matrix(X).release()]

    return run


def rows_in_blocks():
    params = {"privacy_unit": "row", "adjacency": "zero_out", "unit_bound": 3.0}
    model = skdp.DPLowRankFactorizer(2, matrix_shape=X.shape, **params)
    return [model.partial_fit(X[:25]).partial_fit(X[25:]).release()]


def servers():
    new = partial(skdp.DPLowRankFactorizer(2, **SERVERS).for_server, sketch_seed=7)
    parts = [new(n_honest_servers=3).update_matrix(X / 3) for _ in range(3)]
    return [new().merge_secure(parts, lambda arrays: sum(arrays[1:], arrays[0])).release()]


def local_rows():
    reports = [randomize_row(row, epsilon=8.0, delta=1e-6, clip_norm=3.0) for row in X]
    return [LocalAggregator(2).add(reports)]


def federated(estimator, **options):
    def run():
        names = ("epsilon", "delta", "adjacency")
        same = {name: getattr(estimator, name) for name in names}
        clients = [PowerMethodClient(part, CONFIG, **same) for part in np.array_split(X, 4)]
        server = FederatedPowerMethod(fresh(estimator), CONFIG)
        aggregator = UnmaskedAggregator([client.respond for client in clients])
        model = server.fit(aggregator, n_features=X.shape[1], **options)
        return [model, clients[0], clients[0].close()]

    return run


TRACE = {"matrix_shape": (2, 2), "epsilon": 25.0}
MORE = {
    "batches, add_remove": batches(),
    "batches, replace": batches(adjacency="replace"),
    "batches, tree": batches(mechanism="tree"),
    "updates, dense": updates(),
    "updates, two sketches": updates(
        method="two_sketch", sketch_size=4, sensitivity_mode="worst_case"
    ),
    "rows in blocks": rows_in_blocks,
    "servers": servers,
    "local rows": local_rows,
    "federated moment": federated(skdp.DPTruncatedSVD(2, clip_norm=1.5)),
    "federated power": federated(
        skdp.DPTruncatedSVD(2, algorithm="power", clip_norm=1.5, adjacency="replace"), n_samples=60
    ),
    "federated pca": federated(skdp.DPPCA(2)),
    "trace, public design": fitted(skdp.DPTraceRegressor(1, measurement_covariance=1.0, **TRACE)),
    "trace, private design": fitted(skdp.DPTraceRegressor(1, max_iter=3, **TRACE)),
    "trace, label": fitted(skdp.DPTraceRegressor(1, privacy_unit="label", **TRACE)),
}
ALL = {" ".join(repr(e).split()): e for e in ESTIMATORS + FURTHER}
WAYS = {name: fitted(estimator) for name, estimator in ALL.items()} | MORE


def number(value):
    """Return a number as JSON has it: infinities are text."""
    return float(value) if math.isfinite(value) else repr(float(value))


def loss_value(loss):
    value = loss.value.largest() if hasattr(loss.value, "largest") else loss.value
    return number(value)


def ledger_line(line):
    return [line.name, line.mechanism, number(line.sensitivity), number(line.noise_scale),
            line.loss.kind, loss_value(line.loss)]  # fmt: skip


def answer_line(opening):
    """Name, shape, integers as a hash, and two projections in units of the noise."""
    shape = list(opening.bound.shape)
    if opening.total is None:
        return [opening.bound.name, shape, f"index {opening.value}", []]
    total = np.ascontiguousarray(opening.total)
    if total.dtype != np.int64:
        return [opening.bound.name, shape, str(total.dtype), []]
    steps = total.ravel() * (opening.step / opening.noise_scale)
    angles = np.arange(1.0, steps.size + 1) ** 2
    projections = [float(np.cos(k * angles) @ steps) / math.sqrt(steps.size or 1) for k in (1, 2)]
    return [opening.bound.name, shape, hashlib.sha256(total.tobytes()).hexdigest()[:12],
            projections]  # fmt: skip


def described(value):
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}"
    return (
        f"{type(value).__name__} {value}" if isinstance(value, int | str) else type(value).__name__
    )


def public(result):
    """Return what a fitted object, a client, a receipt or a plan says in portable words."""
    out = {}
    if hasattr(result, "releases"):
        out["releases"] = [
            [r.name, r.repeats, number(r.share), number(r.sensitivity), number(r.noise_scale)]
            for r in result.releases
        ]
    if hasattr(result, "needed"):
        out["verdict"] = [number(result.error), number(result.found), number(result.needed)]
    if hasattr(result, "releases_"):
        out["ledger"] = [ledger_line(line) for line in result.releases_]
    spent = getattr(result, "privacy_spent_", result)
    if hasattr(spent, "losses"):
        out["receipt"] = [number(spent.epsilon), number(spent.delta), spent.adjacency, spent.unit,
                          *([loss.kind, loss_value(loss)] for loss in spent.losses)]  # fmt: skip
    if hasattr(result, "get_params"):
        shown = sorted(fitted_attributes(result).items())
        out["attributes"] = {k: described(v) for k, v in shown if k.endswith("_")}
    return out


def behaviour(run):
    """Run one way under fixed noise: everything that can be seen of it, in portable form."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with fixed_noise(0, scale_free=True), record_transcript() as transcript:
            results = run()
    if transcript.faults:
        raise AssertionError(transcript.faults)
    seen = {"answers": [answer_line(opening) for opening in transcript.openings]}
    for i, result in enumerate(results):
        seen |= {f"{key} {i}" if i else key: value for key, value in public(result).items()}
    seen["warnings"] = [w.category.__name__ for w in caught]
    return seen


def close(a, b, relative=LINE):
    return isinstance(a, float) and isinstance(b, float) and math.isclose(a, b, rel_tol=relative)


def differences(expected, seen, where=""):
    """Yield what differs; "about" stands before numbers that two processors round otherwise."""
    rough = isinstance(expected, str) and expected.startswith(ABOUT)
    if rough and close(float(expected.removeprefix(ABOUT)), seen, ROUGH):
        return
    if expected == seen or close(expected, seen):
        return
    if isinstance(expected, dict) and isinstance(seen, dict) and list(expected) == list(seen):
        for key in expected:
            yield from differences(expected[key], seen[key], f"{where} {key}")
    elif isinstance(expected, list) and isinstance(seen, list) and len(expected) == len(seen):
        compare = answer_differences if where.endswith(" answers") else differences
        for i, (a, b) in enumerate(zip(expected, seen, strict=True)):
            yield from compare(a, b, f"{where} {i}")
    else:
        yield f"{where.strip()}: {expected} was {seen}"


def answer_differences(expected, seen, where):
    """The hash where the reference has one, else the projections, else name and shape."""
    digest, projections = expected[2:]
    same = expected[:2] == seen[:2]
    if digest is not None:
        same = same and digest == seen[2]
    elif projections is not None:
        same = same and seen[3] is not None
        same = same and np.allclose(projections, seen[3], rtol=0.0, atol=ANSWER)
    if not same:
        yield f"{where.strip()}: {expected} was {seen}"


@cache
def reference():
    return json.loads(REFERENCE.read_text())


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_nothing_has_changed(way):
    found = list(differences(reference()[way], json.loads(json.dumps(behaviour(WAYS[way])))))
    assert not found, "\n".join([*found, "If this is meant: python tests/test_golden.py"])


def test_the_reference_is_of_these_ways():
    assert set(reference()) == set(WAYS)


def test_reports_say_what_each_release_is_for():
    made = {line[0] for way in reference().values() for line in way.get("ledger", [])}
    assert not made - set(_PURPOSES)


def test_the_kind_of_a_budget_is_known_before_a_fit():
    """A search plans with it; "delta" is of a fit that decides after its first releases."""
    for way, estimator in ALL.items():
        if estimator.delta and estimator.epsilon < math.inf:
            known, losses = estimator._budget_kinds(), reference()[way]["receipt"][4:]
            assert {k for k, _ in losses} <= {*known, *["delta"] * (len(known) > 1)}, way


def test_a_change_is_seen():
    """One bit of an integer, one line, a tenth digit of a noise scale more or less."""
    seen = behaviour(WAYS["DPPCA()"])
    assert not list(differences(seen, seen))
    for change in (
        lambda s: s["answers"][0].__setitem__(2, "0"),
        lambda s: s["ledger"].pop(),
        lambda s: s["ledger"][0].__setitem__(3, s["ledger"][0][3] * (1 + 1e-8)),
        lambda s: s["attributes"].pop("components_"),
        lambda s: s["receipt"].__setitem__(2, "replace"),
    ):
        other = json.loads(json.dumps(seen))
        change(other)
        assert list(differences(seen, other))


# -- renewal ---------------------------------------------------------------------------------------


def agreed(values, key=""):
    """Keep what all kernels agree on."""
    first = values[0]
    if isinstance(first, dict):
        return {key: agreed([value[key] for value in values], key) for key in first}
    if key == "answers":
        return [agreed_answer(parts) for parts in zip(*values, strict=True)]
    if all(value == first for value in values):
        return first
    if isinstance(first, list):
        return [agreed(parts) for parts in zip(*values, strict=True)]
    if all(close(value, first, LINE / 100) for value in values):
        return first
    assert all(close(value, first, ROUGH / 100) for value in values), values
    return f"{ABOUT}{first:.6g}"


def agreed_answer(values):
    name, shape, digest, projections = values[0]
    if all(value[2] == digest for value in values):
        return [name, shape, digest, None]
    spread = np.ptp([value[3] for value in values], axis=0).max()
    return [name, shape, None, projections if spread < ANSWER / 100 else None]


def pretty(value, depth=0):
    """JSON with one release on a line."""
    if isinstance(value, dict):
        inner = (f"{json.dumps(k)}: {pretty(v, depth + 1)}" for k, v in value.items())
        return "{\n" + ",\n".join(inner) + "\n}" if value else "{}"
    if isinstance(value, list) and any(isinstance(item, list) for item in value) and depth == 2:
        return "[\n" + ",\n".join(json.dumps(item) for item in value) + "\n]"
    return json.dumps(value)


@contextmanager
def nudged_lapack():
    """Change each result of LAPACK by a few units in the last place, as another one would."""

    def nudge(value):
        if isinstance(value, np.ndarray):
            return value * (1 + 4e-16 * np.cos(np.arange(value.size)).reshape(value.shape))
        if not isinstance(value, tuple):
            return value
        nudged = map(nudge, value)
        return type(value)(*nudged) if hasattr(value, "_fields") else tuple(nudged)

    def make(original):
        return lambda *args, **kwargs: nudge(original(*args, **kwargs))

    routines = [(np.linalg, name) for name in ("eigh", "pinv", "qr", "solve", "svd")]
    with ExitStack() as stack:
        for owner, name in [*routines, (scipy.linalg, "eigh"), (scipy.linalg, "solve_sylvester")]:
            stack.enter_context(replaced(owner, name, make))
        yield


def fits_on(kernel, threads, *flags):
    """Fit all ways in a process of its own, on one kernel of OpenBLAS (elsewhere: on the only)."""
    environment = os.environ | {
        "OPENBLAS_CORETYPE": kernel, "OPENBLAS_NUM_THREADS": str(threads),
        "OMP_NUM_THREADS": str(threads),
    }  # fmt: skip
    command = [sys.executable, __file__, "--print", *filter(None, flags)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def renew():
    runs = [fits_on(*run) for run in RUNS]
    new = {way: agreed([run[way] for run in runs]) for way in runs[0]}
    old = json.loads(REFERENCE.read_text()) if REFERENCE.exists() else {}
    for way in sorted(set(old) ^ set(new)):
        print("new" if way in new else "gone", way)
    for way in sorted(set(old) & set(new)):
        for found in differences(old[way], new[way]):
            print(f"{way}: {found}")
    REFERENCE.write_text(pretty(new) + "\n")


if __name__ == "__main__":
    warnings.simplefilter("ignore", UserWarning)
    if "--print" in sys.argv:
        with nudged_lapack() if "--nudge" in sys.argv else nullcontext():
            json.dump({way: behaviour(run) for way, run in WAYS.items()}, sys.stdout)
    else:
        renew()
