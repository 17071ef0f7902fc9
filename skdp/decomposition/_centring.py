"""The released mean of rows, and the clip norm about it."""

import math

from skdp.solvers.likely import QUESTIONS
from skdp.solvers.postprocess import mean_push, shrunk_mean

_CLEAR = 6.0  # times the noise of a rank in half of the share: rows enough to ask twice
_NEAR = 0.003  # of the squared lengths about a mean may come from its error


def centred(ask, noise, d, shares, level_of):
    """Return the released mean, what its error adds, the rows about it and their clip norm.

    A mean that was shrunk adds less noise and as much bias: the second number has both.
    `level_of(ask, share, near)` learns a clip norm. The error of a mean is in proportion to the
    clip norm about zero: where rows are many a second one, about the first, makes up for that.
    """
    n, clip_norm = noise.n, noise.clip_norm
    if "spread" not in shares:
        mean, pushes = _mean(ask.sums(share=shares["mean"]), n, clip_norm, d)
        return mean, pushes, ask.centered(mean), clip_norm
    twice = n > _CLEAR * _rank_noise(noise, shares["spread"] / 2)
    part = 2 if twice else 1
    sums = ask.sums(share=shares["mean"] / part)
    mean, pushes = _mean(sums, n, clip_norm, d)
    about = ask.centered(mean)
    level = level_of(about, shares["spread"] / part, clip_norm)
    if not twice:
        return mean, pushes, about.clipped(level), level
    if pushes[1] > _NEAR * n * level**2:
        again = about.clipped(level).sums(share=shares["mean"] / 2)
        step, pushes = _mean(again, n, level, d)
        mean = mean + step
        about = ask.centered(mean)
        level = level_of(about, shares["spread"] / 2, level)
        return mean, pushes, about.clipped(level), level
    level = level_of(about, shares["spread"] / 2, level)  # of lengths that are known by now
    mean, pushes = _mean(_mean_of(sums, ask.sums(share=shares["mean"] / 2)), n, clip_norm, d)
    return mean, pushes, ask.centered(mean).clipped(level), level


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
