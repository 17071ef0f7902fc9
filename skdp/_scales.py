"""Scales that a fit learns, and what it says of those it could not see: public words alone."""

import math

import numpy as np

from skdp.exceptions import PrivacyWarning, warn_caller
from skdp.queries.columns import SQUARE_WEIGHT
from skdp.solvers.columns import MomentWeights
from skdp.solvers.scales import find_scale, finer_scale

_COUNT_WEIGHT = 0.5  # of sqrt(d): the count has its part of one joint release
_FINER = 0.25  # of the share of a scale: for its place in an octave
_BLURRED = 3.0  # times the noise of a variance: below it nothing says that a scale is right
_SHOWN = 10  # column numbers in a warning


def learn_scale(estimator, rank, share, *, of, remedy, near=1.0):
    """Return about the median of what `rank` ranks, and no less, and if it was seen; warn of doubt.

    `of` says what of, `remedy` which public parameter takes its place.
    """
    found = find_scale(rank, (1 - _FINER) * share, near=near)
    if not found.found:
        warn_caller(
            f"{type(estimator).__name__} could not see the scale of {of}, and took a low guess. At "
            f"this budget about {found.needed} of them must differ from 0: use more rows, a "
            f"larger 'epsilon', or a public {remedy}.",
            PrivacyWarning,
        )
    return found._replace(value=finer_scale(rank, found, _FINER * share))


def column_weights(d):
    """Return the weights of squares and of the count beside the sums of d columns."""
    return MomentWeights(SQUARE_WEIGHT, _COUNT_WEIGHT * math.sqrt(d))


def warn_unclear_columns(estimator, unclear, needed, *, outcome, remedy, of="columns"):
    """Say which columns did not show their scale, and what would do."""
    if not unclear.any():
        return
    warn_caller(
        f"{type(estimator).__name__} could not see the scale of {_listed(unclear, of)}, "
        f"{outcome}. At this budget each needs about {needed} values other than 0 (or than its "
        f"most frequent value): use more rows, a larger 'epsilon', or public {remedy}.",
        PrivacyWarning,
    )


def warn_blurred_columns(estimator, found, moments):
    """Say of which columns a scale may be that of their distance from 0, or of noise.

    Where no clear ranks enclose a median, the centre may lie anywhere between it and 0. A variance
    that stands clear of its noise shows that it does not matter.
    """
    blurred = found.found & ~found.placed & (moments.variance < _BLURRED * moments.noise)
    if not blurred.any():
        return
    warn_caller(
        f"{type(estimator).__name__} released scales of {_listed(blurred)} that may be noise, and "
        "several times too large: their middle was not seen, and their variances do not stand "
        "clear of the noise. Use more rows, a larger 'epsilon', or public 'entry_bounds'.",
        PrivacyWarning,
    )


def warn_far_columns(estimator, found, *, remedy):
    """Say of which columns a scale may be that of their distance from a centre.

    They lie thousands of deviations from 0, and the noise leaves no room for finer steps.
    """
    if not found.coarse.any():
        return
    warn_caller(
        f"{type(estimator).__name__} released scales of {_listed(found.coarse)} that may be "
        "several times too large: for their spread they lie far from 0. Subtract a public number, "
        f"or use more rows, a larger 'epsilon', or public {remedy}.",
        PrivacyWarning,
    )


def _listed(which, of="columns"):
    """Return how many there are, of how many, and their first numbers."""
    columns = np.flatnonzero(which)
    shown = ", ".join(map(str, columns[:_SHOWN])) + (", ..." if len(columns) > _SHOWN else "")
    return f"{len(columns)} of {len(which)} {of} ({shown})"
