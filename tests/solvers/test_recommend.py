"""What a recommender decides from released numbers."""

import math

import numpy as np
import pytest

from skdp.answer import Answer
from skdp.solvers.linalg import PairMoment, wigner
from skdp.solvers.recommend import Items, Route, _chance, fit_filter, own_of, residual_factors


def signal_of(size):
    return lambda *_: size


KINDS = ("gram", 0.2, True), ("gram", 0.05, False), ("one_shot", 0.05, False)
ROWS, CELLS, FLIPS = (
    Route(name, signal_of(300.0), lambda _: 4000, least, pairs) for name, least, pairs in KINDS
)
POPULARITY = Route("popularity", signal_of(0.0), lambda _: 1)
SHARES = {  # route, mean count of a user, deviations of noise between neighbours in order, share
    "rows": (ROWS, 2.0, 2.0, 0.2),
    "noisy counts of rows": (ROWS, 2.0, 0.1, 0.583),
    "noise alone": (ROWS, 2.0, 1e-3, 1.0),
    "interactions": (CELLS, 5.0, 2.0, 0.05),
    "no interactions": (FLIPS, 0.0, 2.0, 1.0),
    "no noise": (FLIPS, 5.0, math.inf, 0.05),
    "popularity": (POPULARITY, 5.0, 2.0, 1.0),
}


def falling(of_a_user, steps):
    """Counts of 100 items and 400 users that fall evenly, and noise of 1/steps of a step."""
    mean = 4 * of_a_user
    step = mean / 100
    return Answer(mean + step * (49.5 - np.arange(100.0)), step / steps)


@pytest.mark.parametrize("case", SHARES)
def test_the_share_of_the_counts_keeps_the_list_clear(case):
    """All of it where the list is noise."""
    route, of_a_user, steps, share = SHARES[case]
    assert route.counts(falling(of_a_user, steps)) == pytest.approx(share, rel=0.01)


@pytest.mark.parametrize("steps", [0.3, 1.0])
def test_what_noise_costs_the_list_of_popular_items(steps):
    """Next to draws: how much of all counts the 20 items have that are taken for the first."""
    rng, (exact, noise) = np.random.default_rng(0), falling(5.0, steps)
    lost = []
    for _ in range(2000):
        taken = np.argsort(-(exact + noise * rng.standard_normal(100)))[:20]
        lost.append(exact[:20].sum() - exact[taken].sum())
    whole = POPULARITY._unresolved(Answer(exact, noise), exact.sum())
    held = exact[:20].sum() / exact.sum()
    assert whole == pytest.approx(held * np.mean(lost) / exact.sum(), rel=0.2)
    assert ROWS._unresolved(Answer(exact, noise), exact.sum()) == pytest.approx(0.2 * whole)


class Public:
    """An `ask` that answers by given arrays, and says what was bought."""

    def __init__(self, counts, moment):
        self._counts, self._moment = counts, moment
        self.staged = []

    def _answer(self, name, value, share):
        self.staged.append((name, share))
        return Answer(value, share**-0.5)

    def counts(self, *, share):
        return self._answer("counts", self._counts.copy(), share)

    def moment(self, kept, *_, share):
        return self._answer("moment", self._moment[np.ix_(kept, kept)], share)


def fitted(ask, route):
    found, counts, _ = fit_filter(ask, route, 1000.0, 0.9, 8, 0.5)
    assert sum(share for _, share in ask.staged) == pytest.approx(0.9)
    names, shares = zip(*ask.staged, strict=True)
    return found.rank, counts.noise_scale, list(names), [share / 0.9 for share in shares]


@pytest.mark.parametrize("factor", [0.0, 20.0])
def test_what_is_bought_does_not_depend_on_factors(factor):
    signs = np.where(np.arange(60) % 2, 1.0, -1.0)
    ask = Public(400 - 3 * np.arange(60.0), factor * (np.outer(signs, signs) - np.eye(60)))
    rank, _, names, shares = fitted(ask, CELLS)
    assert names == ["counts", "moment"]
    assert shares == pytest.approx([0.05, 0.95])
    assert bool(rank) == bool(factor)


def test_counts_are_bought_twice_where_the_first_are_noise():
    """For a pure budget in the two parts that counts and cells would have, whatever the total."""
    ask = Public(40 - np.arange(60.0) / 2, np.zeros((60, 60)))  # the first have noise 4.7
    _, noise, names, shares = fitted(ask, ROWS._replace(least=0.05))
    assert names == ["counts", "counts", "moment"]
    assert shares == pytest.approx([0.05, 0.52, 0.43], abs=0.01)
    assert noise == pytest.approx((0.9 * 0.57) ** -0.5, rel=1e-2)
    _, noise, names, shares = fitted(Public(np.zeros(60), np.zeros((60, 60))), FLIPS)
    assert names == ["counts", "counts"]
    assert shares == pytest.approx([0.05, 0.95])
    assert noise == pytest.approx(0.9**-0.5)


# -- factors from pairs of items: what is read, what chance alone would show ---------------------

K = 6


def histories(m, n, n_factors, rng):
    """Popularity that falls, and groups of items that are liked together; 0 groups: none."""
    rates = 0.5 * np.arange(1, n + 1.0) ** -0.4
    if n_factors:
        mine = np.arange(n) % n_factors == rng.integers(0, n_factors, m)[:, None]
        rates = rates * np.where(mine, 1.6, 0.4)
    return (rng.random((m, n)) < rates).astype(float)


def exact_moment(R):
    X = R / np.sqrt(np.maximum(R.sum(axis=1, keepdims=True), 1))
    off = X.T @ X
    np.fill_diagonal(off, 0.0)
    return PairMoment(off, lambda w, V: wigner(w, V, 0.0), 0.0)


def items_of(R):
    counts = R.sum(axis=0)
    return Items(np.arange(R.shape[1]), counts, own_of(counts, R.shape[0]), R.shape[0])


def factors_of(R):
    return residual_factors(exact_moment(R), items_of(R), K, 0.5)


def test_factors_are_those_that_were_planted():
    pairs = factors_of(histories(4000, 90, 3, np.random.default_rng(0)))
    assert pairs.rank >= 2
    likeness = pairs.inward[:, 1:3] @ pairs.outward[:2]
    same = np.arange(90)[:, None] % 3 == np.arange(90) % 3
    np.fill_diagonal(likeness, 0.0)
    assert likeness[same].mean() > 0 > likeness[~same].mean()


@pytest.mark.parametrize("seed", range(3))
def test_what_a_sample_shows_by_chance_is_left_out(seed):
    """Without noise every eigenvalue can be read; almost none of them is more than chance."""
    assert factors_of(histories(400, 90, 0, np.random.default_rng(seed))).rank <= 2
    assert factors_of(histories(400, 90, 3, np.random.default_rng(seed))).rank >= 2


@pytest.mark.deep
def test_chance_ends_where_pairs_of_independent_items_do():
    """Of items from 1 in 2 to 1 in 40."""
    n, p, rng = 20_000, 0.5 / np.sqrt(np.arange(1, 401)), np.random.default_rng(0)
    X = (rng.random((n, 400)) < p) - p
    edge = _chance(Items(np.arange(400), p, n * p * (1 - p), n))
    assert np.linalg.eigvalsh(X.T @ X - np.diag((X**2).sum(axis=0)))[-1] == pytest.approx(
        edge, rel=0.05
    )
