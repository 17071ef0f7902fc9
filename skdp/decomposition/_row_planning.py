"""What plans take rows for, and the error that theory expects of their subspace."""

from __future__ import annotations

import math
import statistics
import warnings
from dataclasses import replace
from functools import partial
from numbers import Integral, Real

import numpy as np
import scipy.linalg
import scipy.sparse as sp
import scipy.sparse.linalg

from skdp._inputs import bound_of
from skdp.data.units import each_alone
from skdp.decomposition._base import DIRECTION_LEVEL, public_range
from skdp.decomposition._unit_fits import unit_route
from skdp.exceptions import PrivacyWarning
from skdp.queries.sums import Neighbours
from skdp.solvers.one_shot import flip_probability
from skdp.theory import (
    cut_rows,
    falling_spectrum,
    gram_loss,
    moment_edge,
    power_law,
    power_loss,
    searched_error,
    whole_rows,
)
from skdp.theory._plan import (
    BOUNDED_LENGTH,
    Expectation,
    check_entries,
    check_spectrum,
    constant_error,
)
from skdp.theory._rehearsal import TAIL, planned_histories, thinned_epsilon, without_names
from skdp.units import DEGREE, INTERVAL, unit_of

# What a plan expects of sparse data of a public size: the error of the fit on a made matrix.
#
# Formulas for directions that are spread evenly say little where a few columns hold most. So the
# fit itself is rehearsed, with its noise, on a matrix of that size that everyone can make again.


MOST_MADE = 400_000  # ones of a made matrix: more rows are thinned, and the noise with them
_SPARSE = 4  # from one in so many cells on rows count as dense
_MOST_WIDE = 2e7  # numbers of the components: more take too long to compare
_FEW_FEATURES = 1500  # whose moment is made whole
_DRAWS, _MANY_FEATURES = 3, 10_000  # fits, of which the median counts; one of wider rows
_APART = 20  # tastes, where they share no column
_SEEN = 1600  # most popular of wide columns, of which a rehearsal screens some
_TAILS = (0.0, 2.5)  # of columns, for an assumed share of the squared length
_HALVINGS, _MOST_TRIED = 7, 100_000  # of the search for one, and ones of a matrix tried
_MOST_REHEARSED = 1e6  # of a one shot that is rehearsed
_LOST = "share of the best captured squared length that is lost"


def check_nnz(estimator, nnz, n, d):
    """Refuse a number of entries that a matrix of this shape cannot have."""
    check_entries(estimator, nnz, n, d)
    if unit_of(estimator).contract:
        raise ValueError(
            "The 'nnz' parameter of plan is for entries that are there or not; "
            f"privacy_unit={estimator.privacy_unit!r} bounds changes of any matrix: use "
            f"'signal'. Got {nnz!r} instead."
        )


def seen_columns(estimator, n, d):
    """Return (estimator, number of columns) of a rehearsal that takes seconds.

    Of many columns the popular ones alone: which are kept depends on the noise, not on the others.
    """
    unit = unit_of(estimator)
    if d <= _MANY_FEATURES or not (unit.by_rows or unit.bound is DEGREE):
        return estimator, d
    seen = type(estimator)(**estimator.get_params(deep=False))
    if not unit.by_rows:
        seen.algorithm = unit_route(estimator, (n, d))[0]
    return seen, max(_SEEN, 10 * n_planned(estimator, d))


def made_sums(unit, nnz, n, d, seen):
    """Return what ordinary sparse rows answer to sums, of rows of length 1, and to counts."""
    X, behind = _made(n, d, nnz, TAIL)
    if unit.by_rows:
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
    if unit_of(estimator).bound is INTERVAL and signal is not None:
        return False  # a singular value
    if getattr(estimator, "bounds", None) is not None or not isinstance(
        getattr(estimator, "center", "none"), str | None
    ):
        return False  # which make rows dense
    if _by_rows(estimator) or (unit_of(estimator).bound is DEGREE and not cells):
        return True
    flips = n * d * flip_probability(cells[0].noise_scale) if cells else 0.0
    return nnz <= MOST_MADE and flips <= _MOST_REHEARSED  # their noise is not that of fewer rows


def _by_rows(estimator):
    return unit_of(estimator).by_rows


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
    unit = unit_of(estimator)
    degrees = np.diff(X.indptr)
    if unit.bound is DEGREE:
        return X, _scaled(X, 1 / np.sqrt(np.maximum(degrees, bound_of(estimator))))
    if unit.symmetric:
        X = sp.triu(X, 1)
        X = sp.csr_array(X + X.T)
    if unit.bound is INTERVAL:
        low, high = bound_of(estimator)
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
        if unit_of(copy).of_groups:
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


# What plans take rows for, and the error that theory expects of a subspace of them.


# Of the logarithms of lengths: as most tables have, and heavy tails.
_SPREAD, _WIDE_SPREAD, _MOST_SPREAD = 0.3, 1.0, 5.0
_FLAT, _STEEP = 0.5, 1.5  # falls of a spectrum of which nothing is said
LOST = "share of the best captured squared length that is lost"
DIRECTION = "share of the squared length that one direction must hold"


def check_share(estimator, signal, d):
    """Return the assumed share of the squared length; None: shares fall like 1/i."""
    k = n_planned(estimator, d)
    if signal is None:
        return float(falling_spectrum(d)[:k].sum())
    if not min(k / d, 0.999) < signal <= 1:
        raise ValueError(
            f"'signal' must be a share in the range ({k}/{d}, 1]: with less, {k} components "
            f"hold no more than chance. Got {signal!r} instead."
        )
    return float(signal)


def check_shares(estimator, signal, spectrum, d):
    """Return the assumed shares of the squared length in orthogonal directions, and in words."""
    k = n_planned(estimator, d)
    if spectrum is None:
        shares, exponent = power_law(d, k, check_share(estimator, signal, d))
        return shares, f"{_held(shares, k)}, in shares that fall like 1/i^{exponent:.2g}"
    if signal is not None:
        raise ValueError("plan takes 'signal' or 'spectrum', not both. Got both.")
    shares = np.sort(check_spectrum(spectrum, d))[::-1]
    return shares, f"{_held(shares, k)}, in the shares given"


def _held(shares, k):
    return f"{k} components hold {shares[:k].sum():.2g} of the squared length"


def check_spread(estimator, spread):
    """Return the assumed standard deviation of the logarithms of lengths."""
    if spread is None:
        return _SPREAD if estimator.clip_norm == "auto" else 0.0
    if isinstance(spread, bool) or not isinstance(spread, Real) or not 0 <= spread <= _MOST_SPREAD:
        raise ValueError(
            f"'spread' must be None or a number in the range [0, {_MOST_SPREAD:g}], the standard "
            f"deviation of the logarithms of lengths. Got {spread!r} instead."
        )
    return float(spread)


def length_of(estimator, d):
    """Return the assumed length of the rows, in the unit of the plan."""
    clip = estimator.clip_norm
    if clip == "auto":
        if not is_bounded(estimator):
            return 1.0
        reach = public_range(without_names(estimator), d, centers=estimator._centers())[1]
        return BOUNDED_LENGTH * reach
    return 1.0 if math.isinf(clip) else float(clip)


def is_bounded(estimator):
    """Whether public `bounds` of the columns stand for a clip norm."""
    return estimator.clip_norm == "auto" and getattr(estimator, "bounds", None) is not None


def moment_of(shares, length):
    """Return the ordinary second moment of rows of a length: no direction is a single column.

    Each is turned half way to another one.
    """

    def gram(n, noise):
        values = n * length**2 * shares[0][: len(noise.value)]
        moment, half = np.diag(values), np.arange(len(values) // 2)
        beside = half + len(half)
        both, apart = (values[half] + values[beside]) / 2, (values[half] - values[beside]) / 2
        moment[half, half] = moment[beside, beside] = both
        moment[half, beside] = moment[beside, half] = apart
        return moment

    return gram


def expect_rows(estimator, rehearsal, n, shares, spread):
    """Expect the loss of a subspace of rows, from their spectrum and how their lengths spread."""
    (spectrum, said), exact = shares, rehearsal.law == "exact"
    d, k = len(spectrum), n_planned(estimator, len(spectrum))
    moments, products = rehearsal.named("gram", "moment"), rehearsal.named("tangent_product")
    assumed = [said]
    if unit_of(estimator).of_groups:
        assumed.append("samples are persons: groups of rows that count once each")
    assumed.append(_lengths_said(estimator, spread))
    facts = {"spectrum": spectrum, "k": k, "spread": spread}
    facts["least"] = 0.0 if estimator.clip_norm == "auto" else 0.5
    noises = [_relative(line, Neighbours(estimator.adjacency).array(1.0)) for line in products]
    if exact:
        loss, noise = partial(constant_error, error=0.0), 0.0
    elif moments:
        noise = _relative(moments[0], Neighbours(estimator.adjacency).positive(1.0))
        facts["level"] = getattr(estimator, "_level", lambda _: DIRECTION_LEVEL)(d)
        loss = partial(lost_of_rows, moment=noise, tangents=noises, **facts)
        if moments[0].size < d * d:
            assumed.append("the error of the screened route depends on how columns are spread")
            loss = constant_error
    elif not products:
        loss, noise = constant_error, math.inf
        assumed.append("column sums alone are released: those of a moment would be noise")
    else:
        noise = sum(scale**-2 for scale in noises) ** -0.5
        width = products[0].size // d
        loss = partial(lost_of_rows, moment=noise, tangents=noises, width=width, **facts)
    ranks = rehearsal.named("norm_median")
    if ranks and not exact and loss is not constant_error:
        facts = {"nothing": loss(1e-9), "noise_scale": ranks[-1].noise_scale}
        loss = partial(searched_error, error=loss, **facts)
    return Expectation(
        error=loss,
        meaning=LOST,
        found=min(1.0, moment_edge(noise, d) / n),
        signal=DIRECTION,
        assumptions=tuple(assumed),
        goal=0.0 if exact or loss is constant_error else loss(1.0) / 2,
    )


def _relative(line, change):
    """Return the noise of a release per unit of what a term may be, which neighbours change."""
    return line.noise_scale / line.sensitivity * change


def lost_of_rows(
    n, spectrum, k, *, moment, tangents, spread, least, level=DIRECTION_LEVEL, width=0
):
    """Return the expected loss of n rows, which are cut at a level that suits the noise.

    Noise counts in squares of that level, above which lies the share `least` of the rows at least.
    With a `width` products alone are released.
    """
    if spread == 0:
        rows = whole_rows(n, spectrum, k)
    else:
        goal = max(level * moment * math.sqrt(2 * len(spectrum)), least * n)
        rows = cut_rows(n, spectrum, k, spread=spread, goal=goal)
    if width:
        return power_loss(rows, k, width=width, noises=tangents)
    return gram_loss(rows, k, moment=moment)


def _lengths_said(estimator, spread):
    """Return what is assumed of the lengths of rows, in words."""
    if spread == 0:
        return "rows are about as long as the clip norm"
    spreads = f"their logarithms spread by {spread:g}"
    if is_bounded(estimator):
        return (
            f"rows are about {BOUNDED_LENGTH:g} times as long as 'bounds' allow at most; {spreads}"
        )
    if estimator.clip_norm != "auto":
        return f"rows have the clip norm as their median length; {spreads}"
    return f"rows are about as long as the clip norm that is learnt, if it is seen; {spreads}"


def with_range(expected, expect, d, spread, n):
    """Return an expectation that says what other data than are assumed would lose."""
    places = np.arange(1, d + 1.0)

    def lost(fall, spread):
        shares = places**-fall
        return expect((shares / shares.sum(), ""), spread).error(n)

    flat, steep = lost(_FLAT, spread), lost(_STEEP, spread)
    if math.isnan(flat) or not flat:
        return expected
    said = f"falls of 1/i^{_FLAT:g} and 1/i^{_STEEP:g} would lose {flat:.2g} and {steep:.2g}"
    wide = lost(1.0, _WIDE_SPREAD)
    if spread and wide > 1.01 * lost(1.0, spread):
        said += f"; lengths that spread by {_WIDE_SPREAD:g} would lose {wide:.2g}"
    return replace(expected, assumptions=(*expected.assumptions, said))
