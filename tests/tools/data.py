"""Data for the checks: contrasting data sets that only private values tell apart."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.utils import get_tags

from skdp.solvers.spectral import FEWEST_KEPT
from skdp.testing.audit import FitData
from skdp.testing.sensitivity import _csr_with_duplicates, _csr_with_zeros, mixed_sizes
from skdp.units import bound_of


def _csr_unsorted(X):
    """CSR whose indices fall within each row."""
    rows = sp.csr_array(X)
    order = np.concatenate(
        [np.arange(a, b)[::-1] for a, b in pairwise(rows.indptr)], dtype=np.intp, casting="unsafe"
    )
    return sp.csr_array((rows.data[order], rows.indices[order], rows.indptr), shape=X.shape)


# The same matrix as CSR, stored otherwise: which entries are stored is as private as they are.
STORED: dict[str, Callable[[np.ndarray], Any]] = {
    "duplicates": _csr_with_duplicates,
    "every entry stored": _csr_with_zeros,
    "unsorted indices": _csr_unsorted,
}


ROWS, COLUMNS = 40, 5  # of test data at least; twice as many rows as columns


class Settings(NamedTuple):
    """What the tools need to know of an estimator, all of it public."""

    unit: str
    adjacency: str
    n_features: int
    n_rows: int


def settings_of(estimator) -> Settings:
    """Read unit, adjacency and a fitting size of test data off an estimator."""
    k = getattr(estimator, "n_components", None) or getattr(estimator, "rank", None)
    k = k if isinstance(k, int) and not isinstance(k, bool) else 1
    shape = getattr(estimator, "matrix_shape", None)
    d = math.prod(shape) if shape is not None else max(COLUMNS, k + 2)
    unit = getattr(estimator, "privacy_unit", "row")
    adjacency = getattr(estimator, "adjacency", "add_remove")
    return Settings(unit, adjacency, d, max(ROWS, 2 * d))


CONTRASTS: dict[str, Callable[..., dict[str, dict[str, FitData]]]] = {}


def register_data(unit: str):
    """Decorate a function (estimator, rng) -> {family: {name: FitData}} as the data of a unit.

    Within a family the data differ in private values alone (under row and group add_remove the
    number of rows is one of them), and the first member is finite and ordinary.
    """

    def register(function):
        CONTRASTS[unit] = function
        return function

    return register


def null_release_data(estimator, seed: int = 0) -> dict[str, dict[str, FitData]]:
    """Return families of data sets among which a null release must see no difference.

    Parameters
    ----------
    estimator : estimator
        Its privacy unit and adjacency decide what is private.
    seed : int, default=0
        Seed of the data.

    Returns
    -------
    families : dict of dict of FitData
    """
    unit = settings_of(estimator).unit
    if unit not in CONTRASTS:
        raise ValueError(
            f"No test data for privacy_unit={unit!r}; register some with `register_data`. "
            f"Known units: {sorted(CONTRASTS)}."
        )
    return CONTRASTS[unit](estimator, np.random.default_rng(seed))


def _target(estimator, X, rng):
    """Return y where the estimator needs one (scale and all of it are private)."""
    if not get_tags(estimator).target_tags.required:
        return None
    if takes_labels(estimator):
        return np.arange(X.shape[0]) % 2
    return rng.standard_normal(X.shape[0]) * (1 + np.nanmax(np.abs(X)) / 10)


def takes_labels(estimator) -> bool:
    """Whether y holds labels: of a classifier, or of public classes."""
    is_classifier = get_tags(estimator).estimator_type == "classifier"
    return is_classifier or getattr(estimator, "classes", None) is not None


def _in_units(X, constant=1.0):
    """Return a matrix, or labels, in small and large units, and what says nothing."""
    return {
        "ordinary": X,
        "zeros": np.zeros_like(X),
        "x1e6": 1e6 * X,
        "x1e-6": 1e-6 * X,
        "constant": np.full_like(X, constant),
    }


def _with(X, value, where):
    """Return a copy with a value in some places."""
    X = X.copy()
    X[where] = value
    return X


def _stored_forms(X):
    """One CSR matrix in all forms, and with one entry that is not stored."""
    forms = {name: form(X) for name, form in STORED.items()}
    full = forms["every entry stored"]
    left = np.arange(full.nnz) != full.nnz // 2
    ends = np.concatenate([[0], np.cumsum(left)])[full.indptr]
    forms["all entries but one"] = sp.csr_array(
        (full.data[left], full.indices[left], ends), shape=X.shape
    )
    return forms


def normal_rows(rng, n, d):
    """Rows about 0; those that may be screened have one sign, which their sums show."""
    X = rng.standard_normal((n, d))
    return np.abs(X) if d > FEWEST_KEPT else X


@register_data("row")
def _row_data(estimator, rng):
    _, adjacency, d, n = settings_of(estimator)
    X = normal_rows(rng, n, d) * np.linspace(2.0, 0.2, d)
    matrices = _in_units(X) | {
        "x1e150": 1e150 * X, "x1e-200": 1e-200 * X, "largest floats": np.full_like(X, 1.7e308),
        "smallest floats": np.full_like(X, 5e-324), "rank one": np.outer(X[:, 0], X[0]),
        "one huge row": _with(X, 1e12, 0),
    }  # fmt: skip
    if adjacency == "add_remove":
        matrices["n + 1 rows"] = np.vstack([X, X[:1]])
        matrices["a single row"] = 3 * X[:1]
    matrices["one row of mixed sizes"] = np.vstack([mixed_sizes(2, d)[1:], X[1:]])
    matrices["mixed sizes"] = mixed_sizes(n, d)
    dense = {name: FitData(M, _target(estimator, M, rng)) for name, M in matrices.items()}
    y = dense["ordinary"].y
    for name, value in (("NaN row", np.nan), ("infinite row", np.inf)):
        dense[name] = FitData(_with(X, value, n // 2), y, assume_finite=True)
    families = {"dense": dense}
    if get_tags(estimator).input_tags.sparse:
        S = sp.csr_array(rng.standard_normal((n, d)) * (rng.random((n, d)) < 0.4))
        hole = sp.csr_array(S.multiply(np.arange(n)[:, None] % 2))
        empty = sp.csr_array((n, d))
        rows = {"ordinary": S, "empty rows": hole, "empty": empty, "x1e6": 1e6 * S}
        told = np.column_stack([(-1.0) ** np.arange(n), S.toarray()[:, 1:]])  # tells of labels
        rows |= {"alternating column": sp.csr_array(told)} | _stored_forms(S.toarray())
        families["csr"] = {name: FitData(M, y) for name, M in rows.items()}
        if adjacency == "add_remove":
            for name, kept in (("n + 1 rows", np.arange(n + 1) % n), ("a single row", [0])):
                families["csr"][name] = FitData(S[kept], None if y is None else y[kept])
    return families


@register_data("label")
def _label_data(estimator, rng):
    _, _, d, n = settings_of(estimator)
    X, y = rng.standard_normal((n, d)), rng.standard_normal(n)
    targets = _in_units(y) | {"one huge label": np.where(np.arange(n) == 3, 1e12, y)}
    dense = {name: FitData(X, target) for name, target in targets.items()}
    for size in (1e-154, 1e162, 5e-324):
        dense[f"one label {size}"] = FitData(X, np.where(np.arange(n) == 3, size, y))
    for name, value in (("largest label", 1e300), ("NaN label", np.nan), ("inf label", np.inf)):
        target = np.where(np.arange(n) == 3, value, y)
        dense[name] = FitData(X, target, assume_finite=True)
    return {"dense": dense}


@register_data("group")
def _group_data(estimator, rng):
    _, adjacency, d, n = settings_of(estimator)
    X, groups = rng.standard_normal((n, d)), np.arange(n) % 8
    data = {name: (M, groups) for name, M in _in_units(X).items()}
    data["one large user"] = (X, np.where(np.arange(n) < n - 7, 0, groups))
    data["a row less"] = (X[1:], groups[1:])  # which is private where the number of groups is not
    if adjacency == "add_remove":
        data["one more user"] = (X, np.where(np.arange(n) == 0, 99, groups))
        data["more rows"] = (np.vstack([X, X[:1]]), np.append(groups, 99))
    for name, first, m in (("one direction", 0, 3), ("mixed sizes", 3, 5), ("a row", 5, 1)):
        rows = np.vstack([mixed_sizes(first + m, d)[first:], X[m:]])
        data[f"a user of {name}"] = (rows, np.append(np.full(m, 0), 1 + groups[m:] % 7))
    dense = {
        name: FitData(M, _target(estimator, M, rng), {"groups": g}) for name, (M, g) in data.items()
    }
    families = {"dense": dense}
    if get_tags(estimator).input_tags.sparse:
        S = X * (rng.random((n, d)) < 0.4)
        rows = {"ordinary": sp.csr_array(S), "empty": sp.csr_array((n, d))} | _stored_forms(S)
        y, last = dense["ordinary"].y, slice(1, None)
        csr = {name: FitData(M, y, {"groups": groups}) for name, M in rows.items()}
        fewer = None if y is None else y[last]
        csr["a row less"] = FitData(rows["ordinary"][last], fewer, {"groups": groups[last]})
        families["csr"] = csr
    return families


def entry_bounds_of(estimator):
    """Return what entries are clipped to."""
    if hasattr(estimator, "unit_bound"):
        return bound_of(estimator)
    return getattr(estimator, "entry_bounds", None) or (-1.0, 1.0)


def _as_families(estimator, matrices, bad=None):
    dense = {name: FitData(M) for name, M in matrices.items()}
    if bad is not None:
        dense["NaN entry"] = FitData(bad, assume_finite=True)
    families = {"dense": dense}
    if get_tags(estimator).input_tags.sparse:
        csr = {name: sp.csr_array(M) for name, M in matrices.items()}
        csr |= _stored_forms(matrices["ordinary"])
        families["csr"] = {name: FitData(M) for name, M in csr.items()}
    return families


@register_data("entry")
def _entry_data(estimator, rng):
    _, _, d, n = settings_of(estimator)
    low, high = entry_bounds_of(estimator)
    X = rng.uniform(low, high, (n, d))
    matrices = _in_units(X, high) | {
        "one row": X * (np.arange(n) == 3)[:, None],
        "mixed sizes": mixed_sizes(n, d),
        "one row of mixed sizes": np.vstack([mixed_sizes(2, d)[1:], X[1:]]),
    }
    return _as_families(estimator, matrices, _with(X, np.nan, (2, 1)))


@register_data("edge")
def _edge_data(estimator, rng):
    n = settings_of(estimator).n_rows
    low, high = entry_bounds_of(estimator)
    A = np.triu((rng.random((n, n)) < 0.2) * rng.uniform(low, high, (n, n)), 1)
    A = A + A.T
    star = np.zeros((n, n))
    star[0, 1:] = star[1:, 0] = high
    full = np.full((n, n), float(high))
    np.fill_diagonal(full, 0.0)
    mixed = mixed_sizes(n, n)
    matrices = {"ordinary": A, "empty": np.zeros((n, n)), "star": star, "complete": full}
    matrices["mixed sizes"] = np.triu(mixed, 1) + np.triu(mixed, 1).T
    return _as_families(estimator, matrices, _with(A, np.nan, ([1, 2], [2, 1])))


@register_data("interaction")
def _interaction_data(estimator, rng):
    _, _, d, n = settings_of(estimator)
    A = (rng.random((n, d)) < 0.3).astype(float)
    one = _with(np.zeros((n, d)), 1.0, 0)
    matrices = {"ordinary": A, "empty": np.zeros((n, d)), "full": np.ones((n, d)), "one row": one}
    matrices["mixed sizes"] = mixed_sizes(n, d)
    return _as_families(estimator, matrices, _with(A, np.nan, (1, 2)))


@register_data("edge_change")
@register_data("mixed")
def _symmetric_data(estimator, rng):
    n = settings_of(estimator).n_rows
    A = rng.standard_normal((n, n))
    A = A + A.T
    mixed = mixed_sizes(n, n)
    matrices = _in_units(A) | {"identity": np.eye(n), "mixed sizes": np.maximum(mixed, mixed.T)}
    return _as_families(estimator, matrices)


@register_data("entry_change")
@register_data("rank_one")
@register_data("frobenius")
@register_data("spectral")
def _norm_data(estimator, rng):
    _, _, d, n = settings_of(estimator)
    X = rng.standard_normal((n, d))
    matrices = _in_units(X) | {
        "rank one": np.outer(X[:, 0], X[0]),
        "mixed sizes": mixed_sizes(n, d),
    }
    return _as_families(estimator, matrices)


def _user_targets(rng, m, p):
    if p == 1:
        return rng.standard_normal((m, 1))
    return np.eye(p)[rng.integers(0, p, m)]


def hostile_users(U, p=1, seed=0):
    """Return (rows, targets) of users of every size and scale, with a basis U of some features.

    With p > 1 targets are p columns, of which each row has one.
    """
    rng, D = np.random.default_rng(seed), len(U)
    users = []
    for m in (1, 2, 6, 30) if p == 1 else (1, 2, 4, 9):
        X, y = rng.standard_normal((m, D)), _user_targets(rng, m, p)
        users.append((X, y))
        users.append((X, X[:, :1].repeat(p, 1) if p == 1 else y))
        users.append((X, (X @ U)[:, :1] if p == 1 else y))
        for scale in (1e-200, 1e3, 1e200):
            users.append((X * scale, y))
            if p == 1:
                users.append((X, y * scale))
                users.append((X / 1e150, y * scale))
        users.append((np.outer(np.ones(m), X[0]), y))  # equal rows
        users.append((np.outer(X[:, 0], X[0]), y))  # rank one
        users.append((np.outer(X[:, 0], U[:, 0]), X[:, :1] if p == 1 else y))  # inside the subspace
        users.append((X, 0 * y))
        users.append((0 * X, y))
        users.append((X * 10.0 ** rng.uniform(-150, 150, (m, 1)), y))
        users.append((_unlike(X), y))  # sizes inside one user, whose products leave all floats
        users.append((_unlike(X[:, :1]) + 0 * X, _unlike(y) if p == 1 else y))
        users.append((X * np.nan, y))
        users.append((np.where(np.arange(D) == 1, np.inf, X), y))
        users.append((X, np.full_like(y, np.inf)))
    return users


def _unlike(A):
    """Entries of sizes at which LAPACK gives up, squares vanish or overflow."""
    sizes = np.array([1, 1e-154, 1, -1e-154, 1e150, 1e-4, 5e-324, 1e162, 1e-162, 0])
    return sizes[np.add.outer(np.arange(len(A)), np.arange(A.shape[1])) % len(sizes)]
