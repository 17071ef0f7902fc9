"""How far entries count: those who have far ones say whether they mean them."""

import numpy as np
import pytest

from skdp.answer import Answer
from skdp.data.units import UserRows
from skdp.queries.users import UserQuery
from skdp.solvers.columns import Columns
from skdp.solvers.local_fits import ChangedUsers, TakenUsers, beyond
from skdp.solvers.personalization import GlobalModel, View
from skdp.solvers.user_heads import REACHES, ReachVotes, _left_out, elect_bounds, far_center

D, M, N = 4, 12, 200
ALL = np.ones(D, bool)
MODEL = GlobalModel(np.ones((D, 1)), np.zeros(1))


def columns(found=ALL):
    return Columns(np.zeros(D), np.ones(D), found, float(N), 1.0, 10, ALL)


class Exact:
    """Answers a message exactly, beside a public noise scale."""

    def __init__(self, X, y, noise):
        codes = np.repeat(np.arange(len(X) // M), M)
        users = UserRows(X, y[:, None], codes, True)
        self._query, self._noise = UserQuery(users, adjacency="add_remove"), noise

    def sums(self, name, local, parts, *, share):
        return Answer(self._query.sums(name, local, parts).answer(0.0), self._noise)


def elected(X, y, noise=1.0, found=ALL):
    return elect_bounds(Exact(X, y, noise), columns(found), MODEL, 1.0, intercept=True)


def rows(seed=0, n=N):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n * M, D))
    return rng, X


def line(rng, X):
    """Targets that each user has by a model of its own."""
    coef = 1 + np.repeat(rng.standard_normal((len(X) // M, D)), M, axis=0)
    return np.sum(X * coef, axis=1) + 0.3 * rng.standard_normal(len(X))


@pytest.mark.parametrize("value", [-999.0, 1e8, 1e300])
def test_a_value_that_means_nothing_is_cut(value):
    rng, X = rows()
    y = line(rng, X)
    X[rng.random(X.shape) < 0.002] = value
    bounds = elected(X, y)
    assert np.array_equal(bounds, np.outer([-REACHES[0], REACHES[0]], np.ones(D)))


def test_values_that_mean_what_they_say_are_not():
    rng, X = rows()
    X[rng.random(X.shape) < 0.03] *= 40.0
    bounds = elected(X, line(rng, X))
    assert (bounds[1] >= REACHES[2]).all()
    few = elected(X[: 4 * M], line(rng, X[: 4 * M]), noise=9.0)  # too few to be heard
    assert (few[1] == REACHES[0]).all()


def test_nobody_is_far():
    """All votes are zero; noise decides, and no row is cut by it."""
    rng, X = rows()
    ask = Exact(X, line(rng, X), 0.0)
    votes = ReachVotes(np.zeros(D), np.ones(D), MODEL, True).asked(ask, share=1.0)
    assert not votes.value.any()


def test_a_column_without_a_scale_is_not_cut():
    rng, X = rows()
    y = line(rng, X)
    X[rng.random(X.shape) < 0.002] = 1e8
    assert elected(X, y, found=~ALL) is None
    bounds = elected(X, y, found=np.arange(D) > 0)
    assert np.isinf(bounds[:, 0]).all() and np.isfinite(bounds[:, 1:]).all()


def test_cutting_changes_nobody_else():
    """Who has nothing beyond the bounds keeps every bit; who has, has rows cut and scaled anew."""
    rng, X = rows(n=20)
    X[5 * M + 3, 1] = 1e200
    source = UserRows(X, line(rng, X)[:, None], np.repeat(np.arange(20), M), True)
    _, batch = next(iter(source.labelled_blocks()))
    bounds = np.outer([-6.0, 6.0], np.ones(D))
    cut = View(None, True, "squared", bounds=bounds).within(batch)
    assert isinstance(cut, ChangedUsers)
    others = np.arange(20) != 5
    assert np.array_equal(cut.X[others], batch.X[others])
    assert np.array_equal(cut.x_exponent[others], batch.x_exponent[others])
    true = np.ldexp(batch.X[5], batch.x_exponent[5])
    assert np.array_equal(np.ldexp(cut.X[5], cut.x_exponent[5]), np.clip(true, -6.0, 6.0))
    assert 0.5 <= np.abs(cut.X[5]).max() < 1
    assert View(None, True, "squared", bounds=10 * bounds * 1e200).within(batch) is batch
    again = View(None, True, "squared", bounds=bounds).within(cut)
    assert np.array_equal(again.X, cut.X)


def test_users_beyond_any_bounds_whatever_was_asked_before():
    """Wider bounds look at fewer users, narrower ones at all of them."""
    rng, X = rows(n=40)
    X[rng.random(X.shape) < 0.01] *= 40.0
    y = line(rng, X)[:, None]
    widths = (6.0, 30.0, 2.0, 6.0)

    def asked(batch, width):
        return beyond(batch, np.outer([-width, width], np.ones(D)))

    source = UserRows(X, y, np.repeat(np.arange(40), M), True)
    found = [asked(next(source.blocks()), width) for width in widths]
    for width, users in zip(widths, found, strict=True):
        alone = UserRows(X, y, np.repeat(np.arange(40), M), True)
        assert np.array_equal(users, asked(next(alone.blocks()), width))
    assert 0 < len(found[1]) < len(found[0]) < len(found[2])


def test_rows_that_were_handed_over_are_gathered_again():
    rng, X = rows(n=5)
    batch = next(UserRows(X, line(rng, X)[:, None], np.repeat(np.arange(5), M), True).blocks())
    before = batch.X.copy()
    batch.own_rows()[:] = 0.0
    assert np.array_equal(batch.X, before)


def test_who_reaches_little_further_says_nothing():
    """What is left out costs passes over nearly all users of normal rows."""
    rng, X = rows(n=1)
    y = line(rng, X)
    message = ReachVotes(np.zeros(D), np.ones(D), MODEL, True)
    for value, says in ((7.4, False), (7.6, True)):
        X[3, 1] = value
        votes = message.asked(Exact(X, y, 0.0), share=1.0).value
        assert votes.any() == says


def test_columns_far_from_zero_are_seen_from_their_centres():
    center, spread = np.array([3.0, -5.0, 1e9, 1e9]), np.array([1.0, 1.0, 1e9, np.inf])
    assert far_center(center, spread).tolist() == [0, -5, 0, 0]
    assert far_center(center[:1], spread[:1]) is None


def test_a_batch_about_a_centre_keeps_what_its_rows_say():
    """Also of rows whose difference from it overflows; each user from its own rows alone."""
    rng, X = rows(n=20)
    y = line(rng, X)
    X[5 * M : 6 * M] *= 8e307 * np.where(np.arange(M) % 2, 1.0, -1.0)[:, None]
    center = np.array([1.7e308, 0.0, 1e3, -1.0])
    source = UserRows(X, y[:, None], np.repeat(np.arange(20), M), True)
    batch = next(source.blocks())
    view = View(None, True, "squared", center=center)
    largest = np.finfo(float).max
    with np.errstate(over="ignore"):
        moved = view.about(batch)
        true = np.ldexp(batch.X, batch.x_exponent[:, None, None])
        expected = np.clip(true - center, -largest, largest)
        alone = view.about(TakenUsers.of(batch, np.array([5, 7])))
    assert np.allclose(np.ldexp(moved.X, moved.x_exponent[:, None, None]), expected, atol=0.0)
    sizes = np.abs(moved.X).max(axis=(1, 2))
    assert (sizes >= 0.5).all() and (sizes < 1).all()
    assert np.array_equal(alone.X, moved.X[[5, 7]])


def test_losses_are_those_of_each_reach_alone():
    rng, X = rows(n=30)
    X[rng.random(X.shape) < 0.03] *= 40.0
    source = UserRows(X, line(rng, X)[:, None], np.repeat(np.arange(30), M), True)
    batch = next(source.blocks())
    message = ReachVotes(np.zeros(D), np.ones(D), MODEL, True)
    alone = np.stack([_left_out(message._view(reach), batch) for reach in REACHES], axis=1)
    assert len(np.unique(alone)) > 60
    assert np.array_equal(message._losses(batch), alone)
