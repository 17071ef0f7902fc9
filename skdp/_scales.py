"""Scales that a fit learns, and what it says of those it could not see: public words alone."""

import math
import warnings

import numpy as np

from skdp.exceptions import PrivacyWarning
from skdp.queries.columns import SQUARE_WEIGHT
from skdp.solvers.columns import MomentWeights
from skdp.solvers.scales import find_scale, finer_scale

_COUNT_WEIGHT = 0.5  # of sqrt(d): the count has its part of one joint release
_FINER = 0.25  # of the share of a scale: for its place in an octave
_SHOWN = 10  # column numbers in a warning


def learn_scale(estimator, rank, share, *, of, remedy, near=1.0):
    """Return about the median of what `rank` ranks, and no less, and if it was seen; warn of doubt.

    `of` says what of, `remedy` which public parameter takes its place.
    """
    found = find_scale(rank, (1 - _FINER) * share, near=near)
    if not found.found:
        warnings.warn(
            f"{type(estimator).__name__} could not see the scale of {of}, and took a low guess. At "
            f"this budget about {found.needed} of them must differ from 0: use more rows, a "
            f"larger 'epsilon', or a public {remedy}.",
            PrivacyWarning,
            stacklevel=6,
        )
    return found._replace(value=finer_scale(rank, found, _FINER * share))


def column_weights(d):
    """Return the weights of squares and of the count beside the sums of d columns."""
    return MomentWeights(SQUARE_WEIGHT, _COUNT_WEIGHT * math.sqrt(d))


def warn_unclear_columns(estimator, unclear, needed, *, outcome, remedy, of="columns"):
    """Say which columns did not show their scale, and what would do."""
    if not unclear.any():
        return
    columns = np.flatnonzero(unclear)
    shown = ", ".join(map(str, columns[:_SHOWN])) + (", ..." if len(columns) > _SHOWN else "")
    warnings.warn(
        f"{type(estimator).__name__} could not see the scale of {len(columns)} of {len(unclear)} "
        f"{of} ({shown}), {outcome}. At this budget each needs about "
        f"{needed} values other than 0 (or than its most frequent value): use more "
        f"rows, a larger 'epsilon', or public {remedy}.",
        PrivacyWarning,
        stacklevel=6,
    )
