"""What a plan expects of sparse data of a public size: the error of the fit on a made matrix.

Formulas for directions that are spread evenly say little where a few columns hold most. So the fit
itself is rehearsed, with its noise, on a matrix of that size that everyone can make again.
"""

from __future__ import annotations

import statistics
import warnings
from functools import partial
from numbers import Integral

import numpy as np
import scipy.linalg
import scipy.sparse as sp
import scipy.sparse.linalg

from skdp.data.persons import each_alone
from skdp.decomposition._unit_fits import unit_route
from skdp.exceptions import PrivacyWarning
from skdp.solvers.one_shot import flip_probability
from skdp.theory._histories import TAIL, planned_histories, thinned_epsilon
from skdp.theory._plan import Expectation, check_entries, constant_error

MOST_MADE = 400_000  # ones of a made matrix: more rows are thinned, and the noise with them
_SPARSE = 4  # from one in so many cells on rows count as dense
_MOST_WIDE = 2e7  # numbers of the components: more take too long to compare
_FEW_FEATURES = 1500  # whose moment is made whole
_DRAWS, _MANY_FEATURES = 3, 10_000  # fits, of which the median counts; one of wider rows
_APART = 20  # tastes, where they share no column
_SEEN = 1600  # most popular of wide columns, of which a rehearsal screens some
_TAILS = (0.0, 2.5)  # of columns, for an assumed share of the squared length
_HALVINGS, _MOST_TRIED = 7, 100_000  # of the search for one, and ones of a matrix tried
_MOST_FLIPS = 1e6  # of a one shot that is rehearsed
_LOST = "share of the best captured squared length that is lost"


def check_nnz(estimator, nnz, n, d):
    """Refuse a number of entries that a matrix of this shape cannot have."""
    check_entries(estimator, nnz, n, d)
    if getattr(estimator, "privacy_unit", "row") not in (*_BY_ROWS, "interaction", "entry", "edge"):
        raise ValueError(
            "The 'nnz' parameter of plan is for entries that are there or not; "
            f"privacy_unit={estimator.privacy_unit!r} bounds changes of any matrix: use "
            f"'signal'. Got {nnz!r} instead."
        )


_BY_ROWS = ("row", "group")


def seen_columns(estimator, n, d):
    """Return (estimator, number of columns) of a rehearsal that takes seconds.

    Of many columns the popular ones alone: which are kept depends on the noise, not on the others.
    """
    unit = getattr(estimator, "privacy_unit", "row")
    if d <= _MANY_FEATURES or unit not in (*_BY_ROWS, "interaction"):
        return estimator, d
    seen = type(estimator)(**estimator.get_params(deep=False))
    if unit == "interaction":
        seen.algorithm = unit_route(estimator, (n, d))[0]
    return seen, max(_SEEN, 10 * n_planned(estimator, d))


def made_sums(unit, nnz, n, d, seen):
    """Return what ordinary sparse rows answer to sums, of rows of length 1, and to counts."""
    X, behind = _made(n, d, nnz, TAIL)
    if unit in _BY_ROWS:
        X = _of_length(X)
    sums = np.asarray(X.sum(axis=0)).ravel() * behind
    sums = np.sort(sums)[::-1][:seen]
    return lambda _n, _noise, *_public: sums


def expect_made(estimator, rehearsal, expected, shape, nnz, signal, apart=False):
    """Return an expectation whose error is that of fits on a made matrix, where these are in reach.

    `expected` is that of the formulas; `apart` says whether tastes share no column.
    """
    k = n_planned(estimator, shape[1])
    if rehearsal.law == "exact" or not _in_reach(estimator, rehearsal, shape, k, nnz, signal):
        return expected
    tastes = (_APART, 0) if apart else (0, _APART)
    draws = (_DRAWS if shape[1] <= _MANY_FEATURES else 1, 1)  # the other kind is said in passing
    ways = [_made_fits(estimator, shape, k, nnz, signal, tastes[i], draws[i]) for i in range(2)]
    kinds = ["tastes that overlap", "tastes that share no column"]
    (error, tail, held), (other, *_) = ways
    made = (
        f"a made matrix of {nnz} ones: columns fall like the rank to the power -{tail:.2g}, and "
        f"{k} components hold {held:.2g} of the squared length; {kinds[apart]}",
        f"{kinds[not apart]} would lose about {other:.2g}",
    )
    route_said = expected.assumptions[:1] if not _by_rows(estimator) else ()
    return Expectation(
        error=partial(constant_error, error=error),
        meaning=_LOST,
        found=expected.found,
        signal=expected.signal,
        assumptions=(*route_said, *made),
        scales=False,
    )


def _made_fits(estimator, shape, k, nnz, signal, apart, draws):
    """Return (error of fits on a made matrix, its exponent, share that the components hold)."""
    n, d = shape
    tail = TAIL if signal is None else _tail_of(signal, n, d, nnz, k, apart)
    copy, seen = seen_columns(estimator, n, d)
    if not _by_rows(estimator):
        copy = type(estimator)(**estimator.get_params(deep=False))
        copy.algorithm = unit_route(estimator, shape)[0]
    errors, held = [], 0.0
    for seed in range(draws):
        X, thinned = _made(n, d, nnz, tail, seed, apart=apart)
        X, rows = _as_units(estimator, X)
        score = _Lost(rows, k, centred=hasattr(estimator, "center") and estimator._centers())
        errors.append(score(_fitted(copy, X, thinned, seed, seen)))
        held = held or score.held
    return statistics.median(errors), tail, held


def n_planned(estimator, d):
    """Return the number of components that a plan is for."""
    k = estimator.n_components
    return min(max(int(k), 1), d) if isinstance(k, Integral) else max(1, d // 10)


def _in_reach(estimator, rehearsal, shape, k, nnz, signal):
    """Whether fits on a made matrix say more than the formulas, and take seconds."""
    (n, d), cells = shape, rehearsal.named("cells")
    if nnz * _SPARSE > n * d or k >= min(n, d) or d * k > _MOST_WIDE:
        return False
    if getattr(estimator, "privacy_unit", "row") in ("entry", "edge") and signal is not None:
        return False  # a singular value
    if getattr(estimator, "bounds", None) is not None or not isinstance(
        getattr(estimator, "center", "none"), str | None
    ):
        return False  # which make rows dense
    if _by_rows(estimator) or (estimator.privacy_unit == "interaction" and not cells):
        return True
    flips = n * d * flip_probability(cells[0].noise_scale) if cells else 0.0
    return nnz <= MOST_MADE and flips <= _MOST_FLIPS  # their noise is not that of fewer rows


def _by_rows(estimator):
    return getattr(estimator, "privacy_unit", "row") in _BY_ROWS


def _made(n, d, nnz, tail, seed=0, most=MOST_MADE, apart=0):
    """Return (made matrix, how many rows stand behind each of it)."""
    rows = n if nnz <= most else max(int(n * most / nnz), min(n, 500))
    ones = min(nnz * rows // n, 8 * most)
    return planned_histories(rows, d, max(ones, 1), tail, seed, apart=min(apart, d)), n / rows


def _tail_of(share, n, d, nnz, k, apart):
    """Return the exponent of the columns with which k components hold a share of the squares."""
    low, high = _TAILS
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        X, _ = _made(n, d, nnz, middle, most=_MOST_TRIED, apart=apart)
        low, high = (low, middle) if _Lost(_of_length(X), k).held > share else (middle, high)
    return (low + high) / 2


def _scaled(X, weights):
    return sp.csr_array(sp.diags_array(weights) @ X)


def _of_length(X, length=1.0):
    """Scale binary rows to a length."""
    return _scaled(X, length / np.sqrt(np.maximum(np.diff(X.indptr), 1)))


def _as_units(estimator, X):
    """Return (what a fit is handed, the rows that its components are judged by)."""
    unit = getattr(estimator, "privacy_unit", "row")
    degrees = np.diff(X.indptr)
    if unit == "interaction":
        return X, _scaled(X, 1 / np.sqrt(np.maximum(degrees, estimator.degree_floor)))
    if unit == "edge":
        X = sp.triu(X, 1)
        X = sp.csr_array(X + X.T)
    if unit in ("entry", "edge"):
        low, high = estimator.entry_bounds
        X = X * float(high if high > 0 else low)
        return X, X
    if estimator.clip_norm != "auto":
        X = _of_length(X, float(estimator.clip_norm))
    return X, X


def _fitted(estimator, X, thinned, seed, seen):
    """Return the components of a fit on a public matrix; nothing is charged for it."""
    copy = type(estimator)(**estimator.get_params(deep=False))
    if thinned > 1:  # fewer rows, and as much less noise: the spectrum keeps its place in it
        copy.epsilon = thinned_epsilon(copy.epsilon, copy.delta, thinned)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        kept = np.sort(np.argsort(-np.asarray(X.sum(axis=0)).ravel(), kind="stable")[:seen])
        shown = X if seen == X.shape[1] else X[:, kept]
        if getattr(copy, "privacy_unit", "row") == "group":
            shown = each_alone(shown)
        session = copy._checked_session(random_state=seed, pure=copy._is_pure(shown))
        found = copy._fit_session(session, shown)["components_"]
    components = np.zeros((len(found), X.shape[1]))
    components[:, kept] = found
    return components


class _Lost:
    """What share of the squares that the best subspace holds others lose."""

    def __init__(self, X, k, centred=False):
        self.X, self.k = X, k
        self.mean = np.asarray(X.mean(axis=0)).ravel() if centred else np.zeros(X.shape[1])
        total = float(np.sum(X.data**2)) - X.shape[0] * float(self.mean @ self.mean)
        self.best = self._best()
        self.held = self.best / max(total, 1e-300)

    def _best(self):
        m, d = self.X.shape
        if d <= _FEW_FEATURES:
            moment = (self.X.T @ self.X).toarray() - m * np.outer(self.mean, self.mean)
            values = scipy.linalg.eigh(
                moment, eigvals_only=True, subset_by_index=(d - self.k, d - 1)
            )
            return float(values.sum())
        X, mean = self.X, self.mean
        centred = sp.linalg.LinearOperator(
            X.shape, dtype=np.float64,
            matvec=lambda v: X @ np.ravel(v) - mean @ np.ravel(v),
            rmatvec=lambda u: X.T @ np.ravel(u) - mean * np.sum(u),
        )  # fmt: skip
        values = sp.linalg.svds(
            centred, self.k, v0=np.ones(min(m, d)), tol=1e-4, return_singular_vectors=False
        )
        return float(np.sum(values**2))

    def __call__(self, components):
        """Return the share that components lose."""
        basis = np.linalg.qr(components[: self.k].T)[0]
        captured = float(np.sum((self.X @ basis - self.mean @ basis) ** 2))
        return min(max(1 - captured / self.best, 0.0), 1.0)
