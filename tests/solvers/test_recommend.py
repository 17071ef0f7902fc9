"""What a recommender decides from released numbers."""

import numpy as np
import pytest
import scipy.sparse as sp

from skdp.answer import Answer
from skdp.solvers.item_filter import ItemFilter
from skdp.solvers.one_shot import Flipped, flip_deviation
from skdp.solvers.recommend import (
    WAYS,
    Route,
    Ways,
    best_way,
    buy_counts,
    fit_filter,
    judged_part,
    list_loss,
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


def test_much_noise_is_no_reason_against_tastes_that_stand_out():
    ways = ways_of(2, 6)
    none, against = np.zeros(3), np.full(3, -80.0)
    assert best_way(ways.there, none, ways.doubts(70.0, 5.0)) == WAYS[0]
    assert best_way(ways.there, against, ways.doubts(70.0, 5.0)) is None
    assert best_way(ways.there, none, ways.doubts(5.0, 5.0)) is None  # votes say enough
    assert best_way(ways.there, none, ways_of(8, 9).doubts(70.0, 5.0)) == WAYS[1]  # many: bolder


@pytest.mark.parametrize("rank", [1, 2, 8])
def test_where_votes_drown_what_stands_out_is_read_with_what_is_beside_it(rank):
    ways = ways_of(rank, 6)
    doubt = ways.doubts(70.0, 5.0, drowned=True)
    assert best_way(ways.there, np.zeros(3), doubt) == WAYS[3]
    assert best_way(ways.there, np.full(3, -80.0), doubt) is None


def test_energy_speaks_for_single_items():
    """Where nothing stands out: little is not voted on, and much is taken where votes drown."""
    assert not ways_of(0, 6)._replace(energy=3.0).there
    assert ways_of(1, 6)._replace(energy=3.0).there == ways_of(1, 6).there
    clear = ways_of(0, 6)._replace(energy=6.0)
    assert clear.there == [WAYS[2], WAYS[3]]
    doubt = clear.doubts(70.0, 5.0, drowned=True)
    assert best_way(clear.there, np.zeros(2), doubt) == WAYS[2]  # the careful way
    assert best_way(clear.there, np.full(2, -80.0), doubt) is None
    assert np.all(clear.doubts(9.0, 5.0) > 0)  # votes say it


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
