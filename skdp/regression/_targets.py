"""Where targets lie: searched for with the budget of the model, until it is seen."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from skdp._scales import warn_unclear_columns
from skdp.data.record_scales import TargetScale
from skdp.solvers.columns import Columns

_MODEL = ("readout", "sums", "count")  # shares that a longer search takes from
_AGAIN = 2.0  # times as clear must the next search be, at least
_MOST = 0.5  # of what is left may a search take if a model is to follow


class Targets(NamedTuple):
    """Where targets were found.

    Attributes
    ----------
    columns : Columns
        Of the last search.
    share : float
        That search had.
    left : float
        Of the budget of the model; 0 where all of it went into the search.
    first_needed : int
        Records that the first search needed.
    """

    columns: Columns
    share: float
    left: float
    first_needed: int


def find_targets(
    find: Callable[[float], Columns],
    middle: Callable[[float], Columns] | None,
    share: float,
    rest: float,
) -> Targets:
    """Search until most targets are seen; `rest` is what the model would have.

    A model about a centre that nobody saw is worse than the mean of the targets, so the search goes
    on at its expense: with four times the share, or what this number of records needs. If less than
    half would be left for the model all of it goes to `middle`, which is predicted alone; None is
    for models without an intercept, which keep it.
    """
    found = find(share)
    first_needed, left = found.needed, rest
    while left and 2 * np.count_nonzero(_unclear(found)) > len(found.found):
        wanted = share * max(_AGAIN, found.needed / found.n) ** 2
        if wanted > _MOST * left and middle is None:
            break
        share = wanted if wanted <= _MOST * left else left
        left -= share
        found = find(share) if left else middle(share)
    return Targets(found, share, left, first_needed)


def _unclear(columns):
    return ~(columns.found & columns.placed) | columns.coarse


def model_share(shares):
    """Return what the shares leave for the model."""
    return sum(shares[name] for name in _MODEL if name in shares)


def left_for_model(shares, left):
    """Return the shares with the model's cut down to what is left of them."""
    part = left / model_share(shares)
    return shares | {name: part * shares[name] for name in _MODEL if name in shares}


def target_scale(targets, reach, *, centered):
    """Return the box of the targets about their centres."""
    center = targets.columns.center
    return TargetScale.in_box(center - reach, center + reach, centered=centered)


def warn_unclear_targets(estimator, targets):
    """Say which targets were not seen, and what that made of the fit; from released numbers."""
    unclear, needed, outcome = (
        _unclear(targets.columns),
        targets.columns.needed,
        "and took a low guess",
    )
    if not targets.left:
        unclear, needed = np.ones_like(unclear), targets.first_needed
        outcome = "so that all budget went into where they lie: that is predicted for every row"
    warn_unclear_columns(estimator, unclear, needed,
        outcome=outcome, remedy="'target_bounds'", of="targets",
    )  # fmt: skip
