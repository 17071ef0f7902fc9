"""Every constant of the package stands in one table: value, what it trades, what measures it.

``constants.txt`` has a line for each: where it is, its value, its kind, why it is there, and for
tuned ones the benchmark that shows what it trades. Kinds:

- *tuned*: decides what is released or said. Half and twice of it must change some fit below.
- *size*: trades time against memory, or is the size from which another routine takes less of them.
- *fact*: follows from mathematics, a processor or a format: no other value is right.
- *proof*: a slack or a range that the proof of a bound names.
- *limit*: where a parameter is refused, or a text is cut short.

``python tests/test_constants.py`` prints the lines that the table lacks.
"""

import ast
import contextlib
import functools
import hashlib
import importlib
import math
import pkgutil
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from sklearn.base import clone

import skdp
from skdp.datasets import make_user_items
from skdp.model_selection import DPGridSearchCV
from skdp.preprocessing import DPStandardScaler
from skdp.recommend import DPRecommender
from skdp.testing import fixed_noise
from skdp.theory import required_samples
from test_golden import WAYS
from tools.outcomes import fitted_attributes

HERE = Path(__file__).parent
PACKAGE = Path(skdp.__file__).parent
NUMBERS = (int, float)
KINDS = {"tuned", "size", "fact", "proof", "limit"}


def constants():
    """Yield module, names and value, as text, of assignments of numbers to upper-case names."""
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
                continue
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            names, parts = ast.unparse(target).strip("()"), list(ast.walk(node.value))
            numbers = [p for p in parts if isinstance(p, ast.Constant) and type(p.value) in NUMBERS]
            made = isinstance(node.value, ast.Call) or any(isinstance(p, ast.Lambda) for p in parts)
            if names.upper() == names and numbers and not made:
                value = ast.unparse(node.value)
                yield module, names, value if len(value) < 60 else "..."


def rows():
    """Return the lines of the table, in parts: place, value, kind, reason, command."""
    lines = (HERE / "constants.txt").read_text().splitlines()
    return [[part.strip() for part in line.split(" | ")] for line in lines if " | " in line]


TUNED = [(*row[0].split(" ", 1), row[4]) for row in rows() if row[2] == "tuned"]


def test_each_constant_stands_in_the_table_with_its_value():
    assert [[f"{module} {names}", value] for module, names, value in constants()] == [
        row[:2] for row in rows()
    ]


def test_the_table_says_what_each_is_for():
    benchmarks = {path.stem for path in (HERE.parent / "benchmarks").glob("*.py")}
    for place, _, kind, reason, *command in rows():
        assert kind in KINDS, place
        assert len(reason.split()) > 2, place
        assert [name in benchmarks for name in command] == [True] * (kind == "tuned"), place


# -- half and twice of what is tuned ---------------------------------------------------------------


def table(n=900):
    """Counts with a common factor, years, rare amounts, a heavy tail, dummies: and two targets."""
    rng = np.random.default_rng(11)
    factor = rng.gamma(2.0, size=(n, 1))
    counts = rng.poisson(factor * rng.uniform(0.5, 4, 4)).astype(float)
    years = 1970 + np.cumsum(rng.integers(0, 2, n))[:, None] % 50
    rare = np.where(rng.random((n, 2)) < 0.1, np.exp(rng.standard_normal((n, 2)) + 5), 0.0)
    tail = rng.standard_t(2, (n, 2)) + 0.1 * factor
    dummies = (rng.random((n, 3)) < [0.02, 0.3, 0.6]).astype(float)
    X = np.hstack([counts, years, rare, tail, dummies])
    y = counts @ [1.0, -0.5, 0.3, 0.0] + 0.05 * years[:, 0] + rng.laplace(size=n)
    return X, y, np.digitize(y, np.quantile(y, [0.3, 0.9])), np.arange(n) // 7


def histories(n=700, d=260):
    """Sessions of a walk: neighbouring items go together, some are popular."""
    rng = np.random.default_rng(12)
    start = rng.choice(d, n, p=np.arange(1, d + 1) ** -0.5 / np.sum(np.arange(1, d + 1) ** -0.5))
    X = np.zeros((n, d))
    for i in range(n):
        X[i, (start[i] + rng.integers(-6, 7, rng.integers(3, 25))) % d] = 1.0
    return scipy.sparse.csr_array(X)


def ratings(n=4000, shape=(20, 13)):
    """One entry of a matrix a record, with means of rows and of columns."""
    rng = np.random.default_rng(13)
    at = rng.integers(0, math.prod(shape), n)
    i, j = np.unravel_index(at, shape)
    y = 3 + np.sin(i) + 0.3 * j + np.cos(i * j / 3) + 0.3 * rng.standard_normal(n)
    return scipy.sparse.csr_array((np.ones(n), (np.arange(n), at)), shape=(n, math.prod(shape))), y


def larger_fits():
    """Return fits of tables that no constant was chosen on, by name."""
    X, y, labels, owners = table()
    few, groups, sizes = X[:, :8], {"groups": owners}, {"n_components": [1, 2]}
    Z, made = histories(), make_user_items(600, 60, 12, random_state=0)
    model = skdp.DPPersonalizedClassifier(2, classes=[0, 1, 2])
    of_rows = {
        "pca": (skdp.DPPCA(3), (X,), {}),
        "pca of groups": (skdp.DPPCA(3, privacy_unit="group"), (X,), groups),
        "pca of batches": (skdp.DPIncrementalPCA(2), (X,), {}),
        "ridge": (skdp.DPRidge(), (X, y), {}),
        "two targets": (skdp.DPRidge(), (X, np.column_stack([np.exp(y / 4), 500 - y])), {}),
        "classifier": (skdp.DPRidgeClassifier(classes=[0, 1, 2]), (X, labels), {}),
        "scaler": (DPStandardScaler(), (X,), {}),
        "svd": (skdp.DPTruncatedSVD(3), (Z,), {}),
        "svd of interactions": (skdp.DPTruncatedSVD(3, privacy_unit="interaction"), (Z,), {}),
        "svd of popular items": (skdp.DPTruncatedSVD(3, privacy_unit="interaction"), (made,), {}),
        "svd of entries": (skdp.DPTruncatedSVD(3, privacy_unit="entry"), (Z.toarray(),), {}),
        "svd of sums": (skdp.DPTruncatedSVD(1, privacy_unit="entry", epsilon=0.5), (made,), {}),
        "recommender": (DPRecommender(3), (Z,), {}),
        "recommender of ones": (DPRecommender(3, privacy_unit="interaction"), (Z,), {}),
        "users": (skdp.DPPersonalizedRegressor(2), (few, y), groups),
        "users, auto": (skdp.DPPersonalizedRegressor("auto"), (few, y), groups),
        "robust users": (skdp.DPPersonalizedRegressor(2, loss="huber"), (few, y), groups),
        "classes of users": (model, (few, labels), groups),
        "trace": (skdp.DPTraceRegressor(1, matrix_shape=(4, 3)), (X, y), {}),
        "rare": (skdp.DPTraceRegressor(1, matrix_shape=(4, 3)), (X, y > np.quantile(y, 0.95)), {}),
        "density": (skdp.DPScoreDensity(classes=[0, 1, 2]), (X[:, :2], labels), {}),
        "ridge of many columns": (skdp.DPRidge(), (histories(900, 4500), y), {}),
        "ridge of some columns": (skdp.DPRidge(), (histories(900, 120), y), {}),
        "ridge of few rows": (skdp.DPRidge(), (X[:60], y[:60] + 1e4), {}),
        "ridge of too few rows": (skdp.DPRidge(), (X[:200], y[:200]), {}),
        "ratings": (skdp.DPTraceRegressor(1, matrix_shape=(20, 13)), ratings(), {}),
        "search of recommenders": (DPGridSearchCV(DPRecommender(), sizes), (Z,), {}),
        "search": (DPGridSearchCV(skdp.DPPCA(clip_norm=50.0), sizes), (X,), {}),
    }  # fmt: skip
    fits = {}
    for epsilon in (0.4, 3.0, 30.0):
        for name, (model, data, more) in of_rows.items():
            fitted = clone(model).set_params(epsilon=epsilon)
            fits[f"{name} {epsilon}"] = functools.partial(shown, fitted, data, more)
        for model, shape in PLANS:
            planned = clone(model).set_params(epsilon=epsilon)
            fits[f"plan of {type(model).__name__} {shape} {epsilon}"] = functools.partial(
                lambda planned, shape: [str(planned.plan(*shape))], planned, shape
            )
    fits["records"] = lambda: [str(required_samples((30, 20), 2))]
    return fits


PLANS = [
    (skdp.DPPCA(2), (400, 10)), (skdp.DPPCA(2), (200_000, 90)), (skdp.DPRidge(), (400, 6)),
    (skdp.DPRidge(bounds=(-1.0, 3.0), target_bounds=(0.0, 9.0)), (400, 6)),
    (skdp.DPRidgeClassifier(classes=[0, 1]), (400, 6)), (skdp.DPTruncatedSVD(2), (300, 40)),
    (skdp.DPTruncatedSVD(2, privacy_unit="interaction"), (3000, 400)),
    (DPStandardScaler(), (300, 4)), (skdp.DPPersonalizedRegressor(1), (300, 4)),
]  # fmt: skip


def shown(model, data, more):
    """Fit; return what is released, what users hold, and what is predicted of a few rows."""
    model = clone(model).fit(*data, **more)
    found = [fitted_attributes(model), getattr(model, "_private", None)]
    if hasattr(model, "recommend"):
        found.append(model.recommend(data[0][:50], 5))
    if isinstance(model, skdp.DPRidge):
        found.append(model.predict(5.0 * data[0][:50]))  # rows that the fit has hardly seen
    return found


def digest(value, into):
    """Add all numbers and texts of a result to a hash."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        into.update(value.tobytes())
    elif scipy.sparse.issparse(value):
        into.update(value.data.tobytes() + value.indices.tobytes())
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            into.update(str(key).encode())
            digest(value[key], into)
    elif isinstance(value, list | tuple):
        for part in value:
            digest(part, into)
    elif isinstance(value, float | int | str | bytes | np.generic | None):
        into.update(repr(value).encode())


def outcome(run):
    """Return a hash of what one way gives under fixed noise, its warnings and errors with it."""
    into = hashlib.sha256()
    with warnings.catch_warnings(record=True, action="always") as said:
        try:
            with fixed_noise(0, scale_free=True):
                for result in run():
                    known = hasattr(result, "get_params")
                    digest(fitted_attributes(result) if known else result, into)
        except Exception as error:
            into.update(repr(error).encode())
    into.update(repr([str(text.message) for text in said]).encode())
    return into.hexdigest()


@functools.cache
def references():
    """Return all ways, the cheapest first, and what each gives: those that give it twice."""
    for found in pkgutil.walk_packages(skdp.__path__, "skdp."):
        with contextlib.suppress(ImportError):
            importlib.import_module(found.name)
    ways = larger_fits() | WAYS
    known = {name: outcome(run) for name, run in ways.items()}
    assert [name for name, run in ways.items() if outcome(run) != known[name]] == []
    return ways, known


def scaled(value, factor):
    if isinstance(value, tuple | list):
        return type(value)(scaled(part, factor) for part in value)
    if isinstance(value, dict):
        return {key: scaled(part, factor) for key, part in value.items()}
    if isinstance(value, int) and not isinstance(value, bool):
        return max(1, round(value * factor)) if value > 0 else value
    return value * factor if isinstance(value, float | np.ndarray) else value


def modules():
    return [module for name, module in list(sys.modules.items()) if name.startswith("skdp")]


def forget():
    """Empty all caches of the package: they hold what followed from a constant."""
    for module in modules():
        for held in list(vars(module).values()):
            with contextlib.suppress(Exception):
                held.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize(("module", "names", "benchmark"), TUNED)
def test_half_and_twice_of_a_tuned_constant_change_a_fit(module, names, benchmark, monkeypatch):
    ways, known = references()
    for name in names.split(", "):
        old = getattr(sys.modules[f"skdp.{module}"], name)
        changed = []
        for factor in (2.0, 0.5):
            with monkeypatch.context() as patch:
                for holder in modules():
                    if vars(holder).get(name) is old:
                        patch.setattr(holder, name, scaled(old, factor))
                forget()
                changed.append(any(outcome(ways[way]) != known[way] for way in known))
        forget()
        assert any(changed), f"{name}: nothing changes with half or twice of it: it may go"


if __name__ == "__main__":
    table_of = {row[0]: row for row in rows()}
    for module, names, value in constants():
        row = table_of.get(f"{module} {names}", ["", "", "?", "?"])
        print(" | ".join([f"{module} {names}", value, *row[2:]]))
