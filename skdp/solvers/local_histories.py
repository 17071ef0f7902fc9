"""A recommender from histories whose cells were flipped before anybody saw them: all is free.

Notation: Y is the m x n array of reported ones, each cell flipped with probability p; B =
(Y - p)/(1 - 2p) is unbiased, with deviation s in each cell. Flips of different cells are
independent, so a filter that scores a user from one half of a report may be judged on the other.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skdp.solvers.item_filter import ItemFilter
from skdp.solvers.one_shot import Flipped, history_pairs
from skdp.solvers.recommend import (
    best_way,
    kept_degree,
    known_items,
)
from skdp.solvers.rungs import Bought
from skdp.solvers.tastes import Way, Ways, offered

FloatArray = NDArray[np.float64]
_JUDGED = 5  # every so many reports are kept for the choice of the blend
_DIFFERENCE = 0.5  # variance of how far the hits of two ways differ for one half of a report
_CELLS = 2**20  # scored at once


class LocalFit(NamedTuple):
    """What can be read of reports: the filter, and noisy counts of all items."""

    filter: ItemFilter
    counts: Bought


def fit_reports(
    Y: Any,
    noise_scale: float,
    items: NDArray[np.intp],
    n_items: int,
    n_components: int,
    exponent: float,
) -> LocalFit:
    """Return the filter of reports (CSR) on the given items of a catalogue.

    The weight of its tastes is that of a filter of most reports which finds most of the others.
    """
    judged = np.arange(Y.shape[0]) % _JUDGED == 0
    options = (noise_scale, items, n_items, n_components, exponent)
    way = None
    if judged.any() and not judged.all():
        way = _chosen_way(_ways(Y[~judged], *options)[0], Y[judged], noise_scale)
    ways, counts = _ways(Y, *options)
    return LocalFit(ways.chosen(way), counts)


def _ways(
    Y: Any,
    noise_scale: float,
    items: NDArray[np.intp],
    n_items: int,
    n_components: int,
    exponent: float,
) -> tuple[Ways, Bought]:
    gain, offset = Flipped(Y, noise_scale).unbiased
    m = Y.shape[0]
    value = np.zeros(n_items)
    value[items] = gain * np.bincount(Y.indices, minlength=len(items)) - offset * m
    counts = Bought(value, noise_scale * math.sqrt(m), 1.0, True)
    floor = max(1, round(kept_degree(np.sort(value[items])[::-1], len(items), m)))
    moment = history_pairs(Y, noise_scale, floor)
    return offered(moment, known_items(counts, items, m), n_components, exponent), counts


def _chosen_way(ways: Ways, Y: Any, noise_scale: float) -> Way | None:
    """Choose among the ways by what they find of one half of the items from the other.

    Hits are sums of unbiased cells: those of the list of each report, with deviation s each.
    """
    if not ways.there:
        return None
    together, weights = ways.together()
    weights = np.vstack([np.zeros(together.rank), weights])  # popularity first
    totals = np.zeros(len(weights))
    for half in (0, 1):
        known = np.arange(Y.shape[1]) % 2 == half
        totals += _hits(together, weights, Y.tocsc(), known, noise_scale)
    noise = math.sqrt(2 * Y.shape[0] * 2 * together.list_length) * noise_scale
    doubt = ways.doubts(noise, math.sqrt(2 * Y.shape[0] * _DIFFERENCE))
    return best_way(ways.there, totals[1:] - totals[0], doubt)


def _hits(
    tastes: ItemFilter,
    weights: FloatArray,
    Y: Any,
    known: NDArray[np.bool_],
    noise_scale: float,
) -> FloatArray:
    """Return the unbiased number of hits among the best other items, by rows of weights."""
    gain, offset = Flipped(Y, noise_scale).unbiased
    given, hidden = Y[:, known].tocsr(), Y[:, ~known].tocsr()
    best, totals = min(tastes.list_length, hidden.shape[1]), np.zeros(len(weights))
    if best == 0:
        return totals
    inward = tastes.inward[known]
    n_rows = max(1, _CELLS // hidden.shape[1])
    for start in range(0, given.shape[0], n_rows):
        rows, truth = given[start : start + n_rows], hidden[start : start + n_rows]
        coordinates = tastes.flipped_coordinates(rows, inward, gain, offset)
        popular = coordinates[:, :1] * tastes.popularity[tastes.kept[~known]]
        outward = tastes.outward[:, ~known]
        cells = gain * truth.toarray() - offset
        for j, weight in enumerate(weights):
            scores = popular + (coordinates[:, 1:] * weight) @ outward
            top = np.argpartition(scores, scores.shape[1] - best, axis=1)[:, -best:]
            totals[j] += np.take_along_axis(cells, top, axis=1).sum()
    return totals
