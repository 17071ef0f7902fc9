"""Wide rows of the linear read-outs: few columns are kept, by noisy sums."""

import math

import numpy as np

from skdp.answer import released_count
from skdp.solvers.screening import bought_sums

GRAM_FEATURES = 1500  # beyond it a d x d release costs more time and noise than it is worth
_SUMS, _COUNT = 0.2, 0.01  # the sums are bought in rungs; what they leave goes to the read-out
_SIZE, _FEWEST_KEPT, _MOST_KEPT = 0.6, 30, 4000


def wide_shares(count_is_public):
    """Return the shares of what screening releases: column sums, and a count if it is private."""
    return {"sums": _SUMS} | ({} if count_is_public else {"count": _COUNT})


def kept_of(ask, clip_norm, shares, n, unit_noise):
    """Return (kept columns, the share of the read-out), from public and released numbers alone.

    A column costs noise whether it holds anything or not: how many are kept follows from the count
    over the noise of an entry, those with the largest sums are. `unit_noise` is the noise of second
    moments of rows of norm 1 at the whole budget.
    """
    if n is None:
        n = released_count(*ask.count(share=shares["count"]))
    sums = bought_sums(ask.rows(clip_norm).sums, shares["sums"])
    left = shares["readout"] + shares["sums"] - sums.spent
    signal = n * math.sqrt(left) / unit_noise
    size = min(max(_SIZE * signal ** (2 / 3), _FEWEST_KEPT), _MOST_KEPT)
    order = np.argsort(-np.abs(sums.value), kind="stable")
    return np.sort(order[: int(size)]), left


def every_column(coefficients, kept, d):
    """Return coefficients of all columns, zeros where they are not kept."""
    whole = np.zeros((d, coefficients.shape[1]))
    whole[kept] = coefficients
    return whole
