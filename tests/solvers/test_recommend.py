"""What a recommender decides from released numbers."""

from functools import partial

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import aslinearoperator

from skdp.answer import Answer
from skdp.solvers.item_filter import ItemFilter
from skdp.solvers.linalg import PairMoment, wigner
from skdp.solvers.one_shot import Flipped, flip_deviation
from skdp.solvers.recommend import (
    WAYS,
    Items,
    Route,
    Ways,
    beside_popularity,
    best_way,
    buy_counts,
    energy,
    fit_filter,
    judged_part,
    list_loss,
    offered,
    own_of,
    tells,
    with_flips,
)
from skdp.solvers.spectral import Bought


@pytest.mark.thorough
@pytest.mark.parametrize("tail", [0.5, 1.0])
@pytest.mark.parametrize("noise_scale", [3.0, 10.0, 40.0])
def test_the_loss_of_a_list_is_what_noise_took_from_it(tail, noise_scale):
    """Estimated from noisy counts alone; the true loss is known here."""
    rng = np.random.default_rng(0)
    counts = 1000 * np.arange(1, 801.0) ** -tail
    best, true, found = counts[:40].sum(), [], []
    for _ in range(60):
        noisy = counts + noise_scale * rng.standard_normal(800)
        true.append(1 - counts[np.argsort(-noisy)[:40]].sum() / best)
        found.append(list_loss(noisy, noise_scale))
    assert np.mean(true) / 3 - 1e-3 < np.mean(found) < 3 * np.mean(true) + 1e-3


def test_a_list_of_nothing_is_lost_and_a_list_of_everything_is_not():
    assert list_loss(np.full(100, -1.0), 1.0) == 1.0
    assert list_loss(np.array([3.0]), 5.0) == pytest.approx(0.0)
    assert list_loss(np.arange(100.0), 0.0) == pytest.approx(0.0)


def test_counts_are_bought_until_they_are_known():
    counts = 2000 * np.arange(1, 501.0) ** -0.8
    spent = {}
    for noise_scale in (1.0, 8.0, 40.0, 400.0):  # of the whole budget
        rng = np.random.default_rng(0)

        def ask(share, rng=rng, noise_scale=noise_scale):
            scale = noise_scale / share**0.5
            return Answer(counts + scale * rng.standard_normal(500), scale)

        found = buy_counts(ask, 0.9, "gram")
        spent[noise_scale] = found.spent
        assert found.noise_scale == pytest.approx(noise_scale / found.spent**0.5)
        assert found.readable == (found.spent < 0.89)
    assert list(spent.values()) == sorted(spent.values())
    assert spent[1.0] == pytest.approx(0.036)
    assert spent[400.0] == pytest.approx(0.9)


def ways_of(*ranks):
    """Ways whose kinds have so many tastes."""
    nothing = np.zeros((4, 1))
    kinds = (
        ItemFilter(np.arange(4), np.ones(4), np.hstack([nothing] * (1 + r)), np.zeros((r, 4)), 1.0)
        for r in ranks
    )
    return Ways(tuple(kinds))


def test_a_way_must_be_clearly_better_than_popularity():
    ways = ways_of(0, 3)
    there = ways.there
    assert [way.kind for way in there] == [1, 1]
    assert best_way(there, np.zeros(2), ways.doubts(1.0, 1.0)) is None
    for i, way in enumerate(there):
        votes = (np.arange(2) == i) * 10.0
        assert best_way(there, votes, ways.doubts(0.1, 0.1)) == way
        assert best_way(there, votes, ways.doubts(0.0, 10.1)) is None
        assert best_way(there, votes, ways.doubts(10.1 / way.doubts[0], 0.0)) is None


CLEAR = ways_of(0, 6)._replace(energy=6.0)  # nothing stands out, but single items say much
CHOICES = {
    "votes say enough": (ways_of(2, 6), 0.0, (5.0, 5.0), None),
    "much noise is no reason against tastes": (ways_of(2, 6), 0.0, (70.0, 5.0), WAYS[0]),
    "votes against them are": (ways_of(2, 6), -80.0, (70.0, 5.0), None),
    "many tastes: bolder": (ways_of(8, 9), 0.0, (70.0, 5.0), WAYS[1]),
    **{f"{rank} beside others": (ways_of(rank, 6), 0.0, (70.0, 5.0, True), WAYS[3])
       for rank in (1, 2, 8)},
    "votes against all": (ways_of(2, 6), -80.0, (70.0, 5.0, True), None),
    "the careful way": (CLEAR, 0.0, (70.0, 5.0, True), WAYS[2]),
    "votes against energy": (CLEAR, -80.0, (70.0, 5.0, True), None),
}  # fmt: skip


@pytest.mark.parametrize("case", CHOICES)
def test_what_is_chosen_where_votes_say_little(case):
    """Where votes drown in noise, what stands out is read with what is beside it."""
    ways, vote, (noise, step, *drowned), expected = CHOICES[case]
    doubts = ways.doubts(noise, step, drowned=bool(drowned))
    assert best_way(ways.there, np.full(len(ways.there), vote), doubts) == expected


def test_energy_speaks_for_single_items():
    """Where nothing stands out: little is not voted on, and much is taken where votes drown."""
    assert not ways_of(0, 6)._replace(energy=3.0).there
    assert ways_of(1, 6)._replace(energy=3.0).there == ways_of(1, 6).there
    assert CLEAR.there == [WAYS[2], WAYS[3]]
    assert np.all(CLEAR.doubts(9.0, 5.0) > 0)  # votes say it


def test_one_choice_is_slower_to_be_bold():
    """Its noise has a heavier tail than that of votes."""
    for ways in (ways_of(0, 6), ways_of(1, 6), ways_of(8, 9)):
        more = ways.doubts(10.0, 3.0, once=True) - ways.doubts(10.0, 3.0)
        slower = {WAYS[1]: 15.0, WAYS[3]: 20.0}
        np.testing.assert_allclose(more, [slower.get(way, 0.0) for way in ways.there])


@pytest.mark.parametrize("name", ["gram", "one_shot"])
def test_nothing_is_hidden_from_a_moment_where_votes_drown(name):
    """Few users vote on a moment with all pairs; many have a part of theirs hidden from it."""
    route = Route(name, lambda *_: 300.0, lambda _: 4000, lambda _: 40.0)
    few, some, many = (judged_part(route, m, 20) for m in (1000.0, 4000.0, 1e6))
    assert few.rows == 1.0
    assert few.apart == (name == "one_shot")
    assert few.left_out == ((1.0, 0.1) if few.apart else (0.0, 0.2))
    assert some.apart and many.apart
    assert some.left_out == (1.0, 0.1)
    assert many.rows == pytest.approx(0.0064)
    assert judged_part(route, 1e6, 200).items == pytest.approx(0.01)


class Public:
    """An `ask` that answers by given arrays, and says what was bought."""

    def __init__(self, counts, moment, votes):
        self._counts, self._moment, self._vote = counts, moment, votes
        self.bought = []

    def counts(self, *, share):
        self.bought.append(("counts", share))
        return Answer(self._counts.copy(), share**-0.5)

    def moment(self, kept, *_, share):
        self.bought.append(("moment", share))
        return Answer(self._moment[np.ix_(kept, kept)], share**-0.5)

    def judge(self, *public):
        self._votes = np.full(len(public[5]), self._vote)
        return self

    def votes(self, *, share):
        self.bought.append(("votes", share))
        return Answer(self._votes, share**-0.5)


def bought_by_fit(slope, taste, votes):
    counts = 400 - slope * np.arange(60.0)
    signs = np.where(np.arange(60) % 2, 1.0, -1.0)
    ask = Public(counts, taste * (np.outer(signs, signs) - np.eye(60)), votes)
    route = Route("gram", lambda *_: 300.0, lambda _: 4000, pairs=True)
    fitted = fit_filter(ask, route, 1000.0, 0.99, 8, 0.5)
    shares = {name: sum(s for n, s in ask.bought if n == name) for name, _ in ask.bought}
    assert sum(shares.values()) == pytest.approx(0.99)
    return fitted, [name for name, _ in ask.bought], shares


def test_what_no_taste_is_read_with_goes_to_the_counts():
    """The look at half of a moment that shows nothing is the last one."""
    fitted, names, shares = bought_by_fit(0.3, 0.0, 0.0)
    rungs = names.index("moment")
    assert rungs > 1
    assert names == ["counts"] * rungs + ["moment", "counts"]
    assert shares["moment"] < 0.5 * 0.9
    assert fitted.counts.spent == pytest.approx(shares["counts"])
    assert fitted.counts.noise_scale == pytest.approx(shares["counts"] ** -0.5)
    assert fitted.filter.rank == fitted.filter.blend == 0


def test_a_taste_that_is_seen_is_looked_at_again():
    fitted, names, shares = bought_by_fit(0.3, 20.0, 600.0)
    rungs = names.index("moment")
    assert names == ["counts"] * rungs + ["moment"] * 2 + ["votes"]
    assert shares["votes"] == pytest.approx(0.05)
    assert fitted.filter.rank > 0 and fitted.filter.blend > 0
    assert bought_by_fit(0.3, 20.0, -600.0)[0].filter.blend == 0


def test_clear_counts_leave_the_moment_whole():
    fitted, names, _ = bought_by_fit(6.0, 20.0, 600.0)
    assert names == ["counts", "moment", "votes"]
    assert fitted.filter.blend > 0


@pytest.mark.thorough
@pytest.mark.parametrize("epsilon", [9.0, 2.5])
@pytest.mark.parametrize("hidden", [0.1, 0.0])
def test_flipped_cells_make_counts_better(epsilon, hidden):
    """Means and squares of the errors of the kept items, over draws; others are as they were."""
    rng, m, n = np.random.default_rng(0), 2000, 40
    rates, kept, scale = 0.4 * np.arange(1, n + 1.0) ** -0.8, np.arange(0, n, 2), 8.0
    cells, chance = rng.random((m, n)) < rates, 1 / (1 + np.exp(epsilon))
    exact, errors, noise = cells.sum(axis=0), [], []
    for _ in range(60):
        counts = Bought(exact + scale * rng.standard_normal(n), scale, 0.05, True)
        known = cells[:, kept] & (rng.random((m, len(kept))) >= hidden)
        flips = known ^ (rng.random(known.shape) < chance)
        flipped = Flipped(sp.csr_array(flips.astype(float)), flip_deviation(epsilon))
        found = with_flips(counts, flipped, kept, hidden, m)
        assert found.noise_scale == scale
        np.testing.assert_array_equal(found.value[1::2], counts.value[1::2])
        errors.append(found.value[kept] - exact[kept])
        noise.append(counts.value[kept] - exact[kept])
    errors = np.array(errors)
    flips = m * flip_deviation(epsilon) ** 2 / (1 - hidden) ** 2
    variance = 1 / (scale**-2 + 1 / (flips + exact[kept] * hidden / (1 - hidden)))
    assert np.abs(errors.mean(axis=0) / np.sqrt(variance / 60)).max() < 6
    assert (errors**2).mean() == pytest.approx(variance.mean(), rel=0.2)
    assert (errors**2).mean() < (np.array(noise) ** 2).mean()


def test_exact_counts_need_no_flips():
    counts = Bought(np.arange(4.0), 0.0, 1.0, True)
    assert with_flips(counts, Flipped(sp.csr_array((3, 4)), 0.1), np.arange(4), 0.0, 3) is counts


# -- tastes from pairs of items: what is read, what chance alone would show, ways to use them -----

K = 6


def histories(m, n, n_tastes, rng):
    """Popularity that falls, and groups of items that are liked together; 0 groups: none."""
    rates = 0.5 * np.arange(1, n + 1.0) ** -0.4
    if n_tastes:
        mine = np.arange(n) % n_tastes == rng.integers(0, n_tastes, m)[:, None]
        rates = rates * np.where(mine, 1.6, 0.4)
    return (rng.random((m, n)) < rates).astype(float)


def exact_moment(R, operator=False):
    X = R / np.sqrt(np.maximum(R.sum(axis=1, keepdims=True), 1))
    off = X.T @ X
    np.fill_diagonal(off, 0.0)
    off = aslinearoperator(off) if operator else off
    return PairMoment(off, lambda w, V: wigner(w, V, 0.0), 0.0)


def items_of(R):
    counts = R.sum(axis=0)
    return Items(np.arange(R.shape[1]), counts, own_of(counts, R.shape[0]), R.shape[0])


def ways_from(R, **options):
    return offered(exact_moment(R, **options), items_of(R), K, 0.5)


@pytest.mark.parametrize("operator", [False, True])
def test_tastes_are_those_that_were_planted(operator):
    R = histories(4000, 90, 3, np.random.default_rng(0))
    pairs = ways_from(R, operator=operator).kinds[0]
    assert pairs.rank >= 2
    likeness = pairs.inward[:, 1:3] @ pairs.outward[:2]
    same = np.arange(90)[:, None] % 3 == np.arange(90) % 3
    np.fill_diagonal(likeness, 0.0)
    assert likeness[same].mean() > 0 > likeness[~same].mean()


@pytest.mark.parametrize("seed", range(3))
def test_what_a_sample_shows_by_chance_is_left_out(seed):
    """Without noise every eigenvalue can be read; almost none of them is more than chance."""
    R = histories(400, 90, 0, np.random.default_rng(seed))
    assert ways_from(R).kinds[0].rank <= 2
    assert ways_from(histories(400, 90, 3, np.random.default_rng(seed))).kinds[0].rank >= 2


def test_all_ways_come_from_one_filter():
    R = histories(1000, 60, 3, np.random.default_rng(1))
    ways, rows = ways_from(R), sp.csr_array(R[:20])
    together, weights = ways.together()
    there = ways.there
    assert there == [WAYS[0], WAYS[1], WAYS[3]]  # tastes stand out: WAYS[2] is for where none does
    assert weights.shape == (len(there), together.rank)
    coordinates = together.coordinates(rows)
    popular = coordinates[:, :1] * together.popularity
    for way, weight in zip(there, weights, strict=True):
        expected = popular + (coordinates[:, 1:] * weight) @ together.outward
        np.testing.assert_allclose(ways.chosen(way).scores(rows), expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(ways.chosen(None).scores(rows), popular)


def test_nothing_to_read_is_popularity():
    ways = offered(None, items_of(np.ones((10, 1))), 1, 0.0)
    assert [kind.rank for kind in ways.kinds] == [0, 0]
    assert not ways.there
    assert len(ways.together()[1]) == 0
    assert ways.chosen(None).blend == 0.0


def noisy_moment(off, noise_scale, rng):
    """A moment with symmetric noise, alike for all pairs."""
    noise = noise_scale * rng.standard_normal(off.shape)
    noise = np.triu(noise, 1)
    edge = 2 * noise_scale * np.sqrt(len(off))
    return PairMoment(off + noise + noise.T, partial(wigner, noise_scale=noise_scale), edge)


def falling_items(n):
    counts = 1000 * np.arange(1, n + 1.0) ** -0.9
    return Items(np.arange(n), counts, own_of(counts, 2000.0), 2000.0)


@pytest.mark.thorough
def test_noise_alone_tells_nothing():
    """Deviations of the noise: mean 0, length 1; more than a band of rows at once."""
    rng, items = np.random.default_rng(0), falling_items(300)
    found, told = [], 0
    for _ in range(60):
        moment = noisy_moment(np.zeros((300, 300)), 3.0, rng)
        beside = beside_popularity(moment, items)
        found.append(energy(*beside, items, moment.edge))
        told += tells(moment, items)
    assert abs(np.mean(found)) < 6 / np.sqrt(60)
    assert 0.5 < np.std(found) < 1.6
    assert told < 35


def test_what_popularity_explains_is_taken_away():
    """Pairs of a function of popularity, and their missing diagonal."""
    items = falling_items(300)
    v = items.popular
    off = 5.0 * np.outer(v, v) + 3.0 * np.outer(v**2, v**2) - 2.0 * (np.outer(v**2, v) + v**3)
    off = (off + off.T) / 2 - 0.7 * np.diag(v**2)
    moment = PairMoment(off, partial(wigner, noise_scale=1.0), 1.0)
    left, basis = beside_popularity(moment, items)
    assert np.abs(basis.T @ basis - np.eye(2)).max() < 1e-12
    P = np.eye(300) - basis @ basis.T
    absent = P @ np.diag(v**2) @ P
    np.fill_diagonal(absent, 0.0)
    expected = P @ off @ P
    expected -= (expected * absent).sum() / (absent**2).sum() * absent
    np.testing.assert_allclose(left, expected, atol=1e-12)


@pytest.mark.parametrize("n_tastes", [0, 3])
def test_tastes_tell_and_long_histories_do_not(n_tastes):
    """Some histories are four times as long as others: a second direction that is no taste."""
    rng, told, found = np.random.default_rng(1), 0, []
    for _ in range(8):
        R = histories(2000, 90, n_tastes, rng)
        R *= rng.random(R.shape) < np.where(rng.random(2000) < 0.5, 0.25, 1.0)[:, None]
        moment, items = noisy_moment(exact_moment(R).off, 3.0, rng), items_of(R)
        found.append(energy(*beside_popularity(moment, items), items, moment.edge))
        told += tells(moment, items)
    assert np.mean(found) < 1.5 if n_tastes == 0 else np.mean(found) > 2.5
    assert told <= 6 if n_tastes == 0 else told == 8


def test_the_worse_the_counts_the_more_must_be_told():
    """Many weak tastes: each energy that tells beside bad counts tells beside good ones."""
    rng, items, told = np.random.default_rng(3), falling_items(120), []
    many = noisy_moment(np.zeros((120, 120)), 1.0, rng).off
    for weak in np.linspace(0.0, 0.7, 30):
        moment = noisy_moment(weak * many, 1.0, rng)
        told.append([tells(moment, items, loss) for loss in (0.0, 0.002, 0.01, 1.0)])
    found = np.sum(told, axis=0)
    assert np.all(np.diff(np.array(told, int), axis=1) <= 0)
    assert found[0] > found[1] > found[2] == found[3] > 0


def test_exact_pairs_always_tell():
    R = histories(200, 30, 0, np.random.default_rng(2))
    assert tells(exact_moment(R), items_of(R))
