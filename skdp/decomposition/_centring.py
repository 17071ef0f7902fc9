"""The released mean of rows, and the clip norm about it."""

import math
from typing import Any, NamedTuple

from skdp.solvers.likely import QUESTIONS
from skdp.solvers.postprocess import mean_push, shrunk_mean

_CLEAR = 6.0  # times the noise of a rank in half of the share: rows enough to ask twice
_NEAR = 0.003  # of the squared lengths about a mean may come from its error
_LOOKS = 3  # means before a stream begins, each about the one before
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
    clip norm about zero: where rows are many a second one, about the first, makes up for that.
    """
    n, clip_norm = noise.n, noise.clip_norm
    if "spread" not in shares:
        mean, pushes = _mean(ask.sums(share=shares["mean"]), n, clip_norm, d)
        return Centre(mean, pushes, ask.centered(mean), clip_norm, beyond)
    twice = n > _CLEAR * _rank_noise(noise, shares["spread"] / 2)
    part = 2 if twice else 1
    sums = ask.sums(share=shares["mean"] / part)
    mean, pushes = _mean(sums, n, clip_norm, d)
    about = ask.centered(mean)
    search = shares["spread"] / part
    level = level_of(about, search, clip_norm)
    if not twice:
        return Centre(mean, pushes, about.clipped(level.value), *level)
    if pushes[1] > _NEAR * n * level.value**2:
        again = about.clipped(level.value).sums(share=shares["mean"] / 2)
        step, pushes = _mean(again, n, level.value, d)
        mean = mean + step
        about = ask.centered(mean)
        level = level_of(about, search, level.value)
        return Centre(mean, pushes, about.clipped(level.value), *level)
    level = level_of(about, search, level.value)  # of lengths that are known by now
    mean, pushes = _mean(_mean_of(sums, ask.sums(share=shares["mean"] / 2)), n, clip_norm, d)
    return Centre(mean, pushes, ask.centered(mean).clipped(level.value), *level)


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
    looks = _LOOKS
    while looks and n <= _CLEAR * _rank_noise(noise, shares["spread"] / looks):
        looks -= 1
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


def _mean_of(first, second):
    """Return the mean of two answers to one question, with as much noise each."""
    middle = (first.value + second.value) / 2
    return first._replace(value=middle, noise_scale=first.noise_scale / math.sqrt(2))


def _rank_noise(noise, share):
    """Return the noise of one question of a search for a scale."""
    return noise.rect / 2 * math.sqrt(QUESTIONS / share)
