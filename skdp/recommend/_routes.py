"""Which release reads most of a user-item matrix: decided before any data are seen."""

import math
from typing import NamedTuple

import numpy as np

from skdp.queries.interactions import gram_change
from skdp.solvers.one_shot import flip_deviation, flip_probability, pair_deviation
from skdp.solvers.recommend import Route, kept_items

_MOST_DENSE = 4000  # items of a dense moment
_MOST_FLIPS = 1e7  # expected: seconds
_FEWEST = 200  # items that flips must reach to be worth their cost
_CHOICE = 2.6  # deviation of the noise of a choice of range 2 at epsilon 1 (Gumbel)
# Below it half of a moment shows a tenth of all at best: counts alone, which are pure, tell more.
_LEAST_SIGNAL = 210.0
# Beyond it short histories show tastes too. Below it first counts, which are pure and cost about
# as much of the moment as Gaussian ones of their noise would, tell whether these are long enough.
_CERTAIN_SIGNAL, _FIRST_STAGE = 650.0, 0.11
_LEAST_PURE = 1e-6  # epsilon: below it rounding would exceed pure noise
_USUAL_DEGREE, _USUAL_SHARE = 25.0, 0.8  # stand for what is not known before the counts


def release_route(name, session, unit, n_users):
    """Return the public sizes of a route: a function of the budget and the number of users."""
    if name == "one_shot":
        return _flips(session, n_users)
    if name == "popularity":
        return Route(name, lambda *_: 0.0, lambda _: 1)
    return _moment(session, unit, n_users)


def _moment(session, unit, n_users):
    factor = math.sqrt(2.0) if session.adjacency == "replace" else 1.0

    def signal(degree, n_kept, share):
        floor = max(1, round(degree))
        change = factor
        if unit == "interaction":
            change = gram_change(max(n_kept, 2 * floor), floor, session.adjacency)
        noise = session.noise_multiplier * change / math.sqrt(share)
        return n_users / noise if noise else math.inf

    def doubt(share):
        # of one vote: an interaction turns a vote, a row brings or takes one
        moved = 1.0 if unit == "row" and session.adjacency == "add_remove" else 2.0
        return session.noise_multiplier * moved / math.sqrt(share)

    pairs, staged = unit == "row", session.stages is not None
    return Route("gram", signal, lambda _: _MOST_DENSE, doubt, pairs=pairs, staged=staged)


def _flips(session, n_users):
    cells = 2 if session.adjacency == "replace" else 1

    def deviation(share):
        return (
            0.0
            if session.budget.exact
            else flip_deviation(session.budget.pure_epsilon * share / cells)
        )

    def signal(degree, n_kept, share):
        noise = pair_deviation(deviation(share), n_users, n_users * degree / n_kept)
        return n_users * degree / (math.sqrt(2.0) * noise) if noise else math.inf

    def most(share):
        flips = n_users * flip_probability(deviation(share))
        return int(min(_MOST_FLIPS / max(flips, 1e-9), 2**31))

    def doubt(share):
        return 2 * _CHOICE / (session.budget.pure_epsilon * share)

    return Route("one_shot", signal, most, doubt)


def _usual_signal(route, n_items, degree):
    """Return the signal figure where users have a usual number of the kept items."""
    n_kept, most = n_items, route.most(_USUAL_SHARE)
    for _ in range(20):
        signal = route.signal(degree, n_kept, _USUAL_SHARE)
        n_kept = kept_items(signal, n_items, most)
    return signal


class Choice(NamedTuple):
    """A route, why, and the share of epsilon of a first stage: 0 where there is none."""

    name: str
    reason: str
    first: float = 0.0


def choose_route(estimator, shape):
    """Return the route for the settings of an estimator and a public shape.

    For interactions the larger signal at a usual history decides; nothing is read for it. Where
    long histories would show tastes and short ones none, first counts say which they are.
    """
    name = estimator.algorithm
    if estimator._is_pure_for_rows():
        return Choice("popularity", "popularity: delta is 0")
    if name != "auto":
        return Choice(name, f"{name}: as asked for")
    if estimator.privacy_unit == "row":
        return Choice("gram", "gram: rows have no other release of tastes")
    degree = min(estimator._floor or _USUAL_DEGREE, shape[1])
    flips = _flips(estimator._checked_session(pure=True), shape[0])
    enough = flips.most(_USUAL_SHARE) >= min(_FEWEST, shape[1])
    ours = _usual_signal(flips, shape[1], degree) if enough else 0.0
    if estimator.delta == 0:
        name = "one_shot" if ours else "popularity"
        return Choice(name, f"{name}: delta is 0")
    moment = _moment(estimator._checked_session(), "interaction", shape[0])
    other = _usual_signal(moment, shape[1], degree)
    if max(ours, other) < _LEAST_SIGNAL and estimator.epsilon > _LEAST_PURE:
        return Choice("popularity", "popularity: only a taste of a tenth of all could be read")
    name = "one_shot" if ours > other else "gram"
    reason = f"{name}: signal {max(ours, other):.3g} against {min(ours, other):.3g}"
    staged = name == "gram" and other < _CERTAIN_SIGNAL and estimator.epsilon > _LEAST_PURE
    return Choice(name, reason, _FIRST_STAGE if staged else 0.0)


def expected_counts(n_users, n_items, nnz, unit):
    """Return counts as ordinary histories give them: they fall like the rank to the power -.8."""
    falling = np.arange(1.0, n_items + 1) ** -0.8
    total = nnz
    if unit == "share":  # each history adds 1
        total = n_users
    elif unit == "row":  # a history of d items, scaled to length 1, adds sqrt(d) in all
        total = math.sqrt(n_users * nnz)
    return np.minimum(total * falling / falling.sum(), n_users)


def readable_tastes(edge, n_components):
    """Return how many tastes stand out of an edge, if the j-th holds 1/(10 j) of all."""
    if math.isnan(edge):
        return 0
    return n_components - 1 if edge == 0.0 else int(min(n_components - 1, 0.1 / edge))


def taste_edge(rehearsal, n_users):
    """Return the share of the squared length that a taste needs to stand out of the noise.

    nan where no taste is looked for.
    """
    if rehearsal.law == "exact":
        return 0.0
    lines = rehearsal.named("gram", "pairs", "cells")
    if not lines:
        return math.nan
    if lines[0].name != "cells":
        noise_scale = sum(line.noise_scale**-2 for line in lines) ** -0.5
        return math.sqrt(2.0 * math.sqrt(lines[0].size)) * noise_scale / n_users
    n_kept = lines[0].size / n_users
    noise = pair_deviation(lines[0].noise_scale, n_users, 0.0)
    return 2.0 * noise * math.sqrt(n_kept) / (n_users * _USUAL_DEGREE)


def clear_taste(_n, noise, kept, *_public):
    """Return a moment with one taste, beside popularity, that can be read for certain."""
    taste = np.where(np.arange(len(kept)) % 2, 1.0, -1.0)
    return 100 * noise.noise_scale * np.outer(taste, taste)
