"""How far entries count, and where rows are seen from."""

import numpy as np

from skdp.data.units import UserRows
from skdp.regression._users import within_bounds
from skdp.solvers.columns import Columns
from skdp.solvers.local_fits import ChangedUsers, TakenUsers
from skdp.solvers.personalization import View
from skdp.solvers.user_heads import REACH, entry_bounds, far_center

D, M, N = 4, 12, 200


def rows(seed=0, n=N):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n * M, D))
    return rng, X


def line(rng, X):
    """Targets that each user has by a model of its own."""
    coef = 1 + np.repeat(rng.standard_normal((len(X) // M, D)), M, axis=0)
    return np.sum(X * coef, axis=1) + 0.3 * rng.standard_normal(len(X))


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
    assert np.array_equal(np.ldexp(cut.X[5], cut.x_exponent[5]), within_bounds(true, bounds))
    assert 0.5 <= np.abs(cut.X[5]).max() < 1 and np.abs(true).max() > 1e199
    assert View(None, True, "squared", bounds=10 * bounds * 1e200).within(batch) is batch
    again = View(None, True, "squared", bounds=bounds).within(cut)
    assert np.array_equal(again.X, cut.X)


def test_rows_that_were_handed_over_are_gathered_again():
    rng, X = rows(n=5)
    batch = next(UserRows(X, line(rng, X)[:, None], np.repeat(np.arange(5), M), True).blocks())
    before = batch.X.copy()
    batch.own_rows()[:] = 0.0
    assert np.array_equal(batch.X, before)


def test_a_column_without_a_scale_is_not_cut():
    def seen(found):
        return Columns(np.zeros(D), np.ones(D), found, float(N), 1.0, 10, found, ~found)

    assert entry_bounds(seen(np.zeros(D, bool))) is None
    bounds = entry_bounds(seen(np.arange(D) > 0))
    assert np.isinf(bounds[:, 0]).all() and (np.abs(bounds[:, 1:]) == REACH).all()


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
