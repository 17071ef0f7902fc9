"""The released mean of rows, and the clip norm about it."""

import math
from typing import Any, NamedTuple

import numpy as np

from skdp.solvers.likely import QUESTIONS
from skdp.solvers.postprocess import mean_push, shrunk_mean

_CLEAR = 6.0  # times the noise of a rank: rows enough to ask about another mean
_LOOKS = 3  # means, each about the one before
_ASIDE = 0.1  # of the squared lengths: a mean that holds less is not worth another search


class Centre(NamedTuple):
    """Rows about a released mean.

    Attributes
    ----------
    mean : ndarray
        The mean.
    pushes : tuple of two floats
        What its error adds to the moment: noise, and noise with bias (a mean that was shrunk adds
        less of the one and as much of both).
    rows : Ask
        The rows about it, clipped.
    clip_norm : float
        How long they may be.
    beyond : float
        How many rows may be several times longer.
    """

    mean: Any
    pushes: tuple[float, float]
    rows: Any
    clip_norm: float
    beyond: float


def centred(ask, noise, beyond, d, shares, level_of):
    """Return the rows about their released mean, and how long they may be.

    `level_of(ask, share, near)` learns a clip norm. The error of a mean is in proportion to the
    clip norm that its rows had: means of rows far from 0 are taken one about the other, each of
    rows that were found shorter about the one before. Where a mean is near, those that follow are
    of the same rows, and are pooled with it: the releases are the same.
    """
    n, level = noise.n, noise.clip_norm
    clipped = rows = ask.clipped(level)
    if "spread" not in shares:
        mean, pushes = _mean(rows.sums(share=shares["mean"]), n, level, d)
        return Centre(mean, pushes, rows.centered(mean), level, beyond)
    searches = _halved(shares["spread"], _looks(noise, shares["spread"]))
    part = shares["mean"] / (len(searches) + 1)  # alike: sums of the same rows are made once
    place, here, clip_norm = np.zeros(d), ask, level
    pooled = step = None
    for search in searches:
        pooled = _pooled(pooled, rows.sums(share=part), part)
        if step is None:
            step, _ = shrunk_mean(*pooled.sums, n, level)
            near = step @ step <= _ASIDE * level**2
            there = here if near else clipped.centered(place + step)  # from here they are known
        clip_norm, beyond = level_of(there, search, clip_norm)
        if not near and clip_norm < level:
            place, here, rows = place + step, there, there.clipped(clip_norm)
            level, pooled, step = clip_norm, None, None
    step, pushes = _mean(_pooled(pooled, rows.sums(share=part), part).sums, n, level, d)
    mean = place + step
    return Centre(mean, pushes, clipped.centered(mean).clipped(clip_norm), clip_norm, beyond)


class Start(NamedTuple):
    """Where the rows of a stream lie, as far as it was learnt before the stream began.

    Attributes
    ----------
    about : ndarray or None
        A released point near their mean; None is zero.
    clip_norm : float
        For rows about that point.
    beyond : float
        How many rows may be several times longer.
    left : float
        What share was not used.
    """

    about: Any
    clip_norm: float
    beyond: float
    left: float


def started(ask, noise, level, shares, level_of):
    """Return where rows lie, by means of which each is taken about the one before.

    Few looks where rows are few. None follows where the last mean was near: the rest of the shares
    is left for better use.
    """
    n, left, about = noise.n, shares["mean"] + shares["spread"], None
    looks = _looks(noise, shares["spread"])
    mean_share, search_share = (shares[name] / max(1, looks) for name in ("mean", "spread"))
    rows = ask.clipped(level.value)
    for _ in range(looks):
        sums = rows.sums(share=mean_share)
        left -= mean_share
        mean, _ = shrunk_mean(sums.value, sums.noise_scale, n, level.value)
        if mean @ mean <= _ASIDE * level.value**2:
            break
        place = mean if about is None else about + mean
        nearer = ask.centered(place)
        found = level_of(nearer, search_share, level.value)
        left -= search_share
        if found.value >= level.value:  # a search that saw nothing better
            break
        about, level = place, found
        rows = nearer.clipped(level.value)
    return Start(about, *level, left)


def _mean(sums, n, radius, d):
    mean, kept = shrunk_mean(sums.value, sums.noise_scale, n, radius)
    push = mean_push(sums.noise_scale, n, d)
    return mean, (kept * push, push)


class _Pooled(NamedTuple):
    """Sums of the same rows, released more than once, and what share they had."""

    sums: Any
    share: float


def _pooled(first, sums, share):
    if first is None:
        return _Pooled(sums, share)
    both = first.share + share
    value = (first.share * first.sums.value + share * sums.value) / both
    scale = sums.noise_scale * math.sqrt(share / both)
    return _Pooled(sums._replace(value=value, noise_scale=scale), both)


def _looks(noise, share):
    """Return how many means are taken one about the other: few where rows are few."""
    looks = _LOOKS
    while looks and noise.n <= _CLEAR * _rank_noise(noise, _halved(share, looks)[0]):
        looks -= 1
    return looks


def _halved(share, looks):
    """Return shares of the searches: the last one, whose answer stays, has at least half."""
    if looks <= 1:
        return [share]
    return [share / (2 * (looks - 1))] * (looks - 1) + [share / 2]


def _rank_noise(noise, share):
    """Return the noise of one question of a search for a scale."""
    return noise.rect / 2 * math.sqrt(QUESTIONS / share)
