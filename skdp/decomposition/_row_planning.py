"""What plans take rows for, and the error that theory expects of a subspace of them."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from numbers import Real

import numpy as np

from skdp.decomposition._base import public_range
from skdp.decomposition._sparse_planning import n_planned
from skdp.decomposition._spectral import DIRECTION_LEVEL
from skdp.queries.sums import Neighbours
from skdp.theory import (
    Expectation,
    constant_error,
    cut_rows,
    falling_spectrum,
    gram_loss,
    moment_edge,
    power_law,
    power_loss,
    searched_error,
    whole_rows,
)
from skdp.theory._fits import BOUNDED_LENGTH, check_spectrum
from skdp.theory._rehearsal import without_names

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
        return BOUNDED_LENGTH * _reach(estimator, d) if is_bounded(estimator) else 1.0
    return 1.0 if math.isinf(clip) else float(clip)


def is_bounded(estimator):
    """Whether public `bounds` of the columns stand for a clip norm."""
    return estimator.clip_norm == "auto" and getattr(estimator, "bounds", None) is not None


def _reach(estimator, d):
    """Return how long rows are at most by their `bounds`."""
    return public_range(without_names(estimator), d, centers=estimator._centers())[1]


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
    if getattr(estimator, "privacy_unit", "row") == "group":
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
        ranks = [line.noise_scale for line in rehearsal.named("size_rank")]
        facts["rank"] = ranks[0] / math.sqrt(len(products)) if ranks else 0.0
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
    n, spectrum, k, *, moment, tangents, spread, least, level=DIRECTION_LEVEL, rank=0.0, width=0
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
    return gram_loss(rows, k, moment=moment, tangents=tangents, rank=rank)


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
