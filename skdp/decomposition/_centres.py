"""Rows about their released mean, and a clip norm about it."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from skdp._limits import CLEAR, CORE_SCALE
from skdp.answer import Answer
from skdp.decomposition._base import RAISING, lengthened
from skdp.solvers import postprocess, spectral
from skdp.solvers.median_search import find_between

_MOMENT_CUT = 0.15  # of the share of a moment, for a mean of few rows


def located(session, ask, noise, shares, d, level):
    """Return a point near the mean, a clip norm about it, the shares left, the rows, and sums.

    The error of a mean is in proportion to the clip norm of its rows. So for rows far from 0, up to
    three more means are released, each about the one before. Each gets the budget for an error of a
    sixth of the clip norm, if the moment can spare it. They end if the mean is near the point about
    which rows were measured, if sums are noise, or if rows are much longer than the error. About
    each point, three rank queries (for the last points, two) find the median norm between the error
    of the mean and the norm about the point before; counts then adjust it. `level` is how many rows
    may be shortened, as in `row_clip_norm`. The sums are those of the returned rows, unless these
    were centred again.
    """
    last = RAISING * shares["center_search"]
    searches, place, clip_norm = shares["center_search"] - last, np.zeros(d), noise.clip_norm
    rows, least_share, wanted = ask.clipped(clip_norm), shares["center"] / 2, 0.0
    for questions in (3, 3, 2, 2):
        share, shares = share_of_mean(shares, least_share, wanted)
        sums = rows.sums(share=share)
        step = postprocess.shrunk_mean(*sums, noise.n, clip_norm)[0]
        noise_square = (d + CLEAR * math.sqrt(2 * d)) * sums.noise_scale**2
        if is_near(step, clip_norm) or float(sums.value @ sums.value) <= noise_square:
            break
        least_share, wanted = least_share / 4, d * (6 * noise.rect / noise.n) ** 2
        place, last_norm, searches = place + step, clip_norm, searches / 2
        centred_rows = ask.centered(place)  # one query: its norms are measured once
        error = math.sqrt(d) * sums.noise_scale + float(np.linalg.norm(step)) * noise.n_noise
        interval = min(error / (2 * noise.n), last_norm / 4), last_norm
        clip_norm = find_between(centred_rows.kept_below, interval, questions, searches)
        rows = centred_rows.clipped(clip_norm)
        if clip_norm > min(last_norm / 2, 4 * error / noise.n):
            break
    if place.any():
        clip_norm = min(lengthened(session, rows, clip_norm, last, d, level=level), noise.clip_norm)
        rows, last = rows.clipped(clip_norm), 0.0
    shares = shares | {"center": shares["center"] + searches + last}
    return place, clip_norm, shares, rows, sums


def share_of_mean(shares, least, wanted):
    """Return the share of a mean, and what is left.

    It is the least, or more where that is wanted and a moment can spare it.
    """
    name = "gram" if "gram" in shares else "subspace"
    share = max(least, min(wanted, _MOMENT_CUT * shares[name]))
    paid = min(share, shares["center"])
    return share, shares | {"center": shares["center"] - paid, name: shares[name] + paid - share}


def is_near(step, clip_norm):
    """Whether norms measured from the earlier point are valid for a point so near to it."""
    return float(np.linalg.norm(step)) < clip_norm / 4


class Centre(NamedTuple):
    """Rows about a released mean.

    Attributes
    ----------
    mean : ndarray
        The mean.
    rows : Ask
        The rows about it, clipped.
    noise : RowNoise
        With their clip norm.
    shares : dict
        What is left of the budget.
    beyond : float
        By how much the released sum of squares of these rows exceeds that about the mean.
    """

    mean: Any
    rows: Any
    noise: spectral.RowNoise
    shares: dict
    beyond: float = 0.0


def centred(session, ask, noise, shares, d, level):
    """Return the rows about their released mean, with a clip norm; `level` as in `located`."""
    place, clip_norm, shares, about, sums = located(session, ask, noise, shares, d, level)
    noise, moved = replace(noise, clip_norm=clip_norm), bool(place.any())
    wanted = moved * math.sqrt(d) * noise.rect / noise.n
    share, shares = share_of_mean(shares, shares["center"], wanted)
    more = about.sums(share=share)  # of the same rows, unless a place was found
    sums, noise_scale = more if moved else spectral.averaged(sums, more)
    step, kept = postprocess.shrunk_mean(sums, noise_scale, noise.n, noise.clip_norm)
    count_noise = float(np.linalg.norm(step)) * noise.n_noise
    noise_bias = postprocess.mean_noise_bias(noise_scale, noise.n, 2 + kept * (d - 2), count_noise)
    noise, mean = replace(noise, mean_noise_bias=noise_bias), place + step
    if noise_scale == 0.0 or not is_near(step, noise.clip_norm):
        return Centre(mean, ask.centered(mean).clipped(noise.clip_norm), noise, shares)
    # Norms were measured about the point. They do not include the square of the noise in `sums`.
    beyond = float(step @ (2 * sums - noise.n * step)) - 2 * kept * d * noise_scale**2 / noise.n
    return Centre(mean, about.recentered(mean), noise, shares, beyond)


class AboutZero(NamedTuple):
    """Rows about a released point c near their mean m, with releases about 0.

    Their moment about 0 is n (c m' + m c' - c c') larger than that about c, whose noise follows
    from the norms about c.
    """

    rows: Any
    place: Any
    mean: Any
    n: float

    @property
    def norms_above(self):
        """What counts the rows farther from the point than a threshold."""
        return self.rows.norms_above

    def clipped(self, clip_norm):
        """Return the rows moved to within this distance of the point."""
        return self._replace(rows=self.rows.clipped(clip_norm))

    def gram(self, *, share):
        """Release the moment."""
        return self.rows.gram(share=share).plus(self.beyond())

    def projected_gram(self, V, *, share):
        """Release the moment in a subspace."""
        return self.rows.projected_gram(V, share=share).plus(self.beyond(V, V))

    def tangent(self, V):
        """Return what releases the product with V, its part in V divided by CORE_SCALE."""
        query, added = self.rows.tangent(V), self.beyond(V=V)
        added = added - (1 - 1 / CORE_SCALE) * V @ (V.T @ added)

        def product(clip_level, *, share):
            return query.product(clip_level, share=share).plus(added)

        return SimpleNamespace(sizes_above=query.sizes_above, product=product)

    def square_sum(self, *, share):
        """Release the sum of squares."""
        return self.rows.square_sum(share=share).plus(self.more)

    @property
    def more(self):
        """By how much the sum of squares about 0 is larger."""
        return self.n * float(self.place @ (2 * self.mean - self.place))

    def beyond(self, U=None, V=None):
        """Return by how much U'X'XV about 0 is larger; None is the identity."""
        pair = np.vstack([self.place, self.mean])
        (c, m), (a, b) = (pair if W is None else pair @ W for W in (U, V))
        return self.n * (np.outer(c, b) + np.outer(m - c, a))


def about_zero(session, ask, noise, shares, d):
    """Return rows with releases about 0 through a point near their mean; noise, fractions, sums.

    Where the mean holds less than a quarter of the squares, or there is no noise, they stay as
    they are. Sums and moment share what is left, as variances need both.
    """
    level = spectral.DIRECTION_LEVEL
    place, clip_norm, shares, rows, sums = located(session, ask, noise, shares, d, level)
    unspent = shares["center"]
    if session.budget.exact or clip_norm**2 > 0.75 * noise.clip_norm**2:
        more = ask.sums(share=unspent / 2)  # of the same rows, unless a place was found
        shares = shares | {"subspace": shares["subspace"] + unspent / 2}
        return ask, noise, shares, more if place.any() else spectral.averaged(sums, more)
    share, shares = share_of_mean(shares, unspent, math.sqrt(d) * noise.rect / noise.n)
    step, scale = rows.sums(share=share)
    mean = place + postprocess.shrunk_mean(step, scale, noise.n, clip_norm)[0]
    rows, noise = AboutZero(rows, place, mean, noise.n), replace(noise, clip_norm=clip_norm)
    return rows, noise, shares, Answer(noise.n * mean, scale)
