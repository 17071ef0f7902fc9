"""How far entries count, and where rows are seen from."""

import numpy as np

from skdp.data.units import UserRows
from skdp.regression._personalized_base import within_bounds
from skdp.solvers.columns import FARTHEST, FoundColumns
from skdp.solvers.personalization import scaling_of, target_unit
from skdp.solvers.scaling import ScaledUsers, Scaling

D, M, N = 4, 12, 200


def rows(seed=0, n=N):
    rng = np.random.default_rng(seed)
    return rng, rng.uniform(-2, 2, (n * M, D))


def test_far_entries_are_folded():
    """A little beyond the limit they are large, far beyond it small, and predictions fold too."""
    scaling = Scaling(
        np.array([1.0, 0.0, 0.0, 5.0]), np.full(D, 2.0), np.array([3.0, 3.0, np.inf, 3.0])
    )
    X = np.array([[7.0, -12.0, 1e300, -1e300], [7.1, 6.0, -12.0, np.finfo(float).max]])
    expected = np.array([[3.0, -1.5, 5e299, 0.0], [9 / 3.05, 3.0, -6.0, 0.0]])
    assert np.allclose(scaling(X.copy(), lambda make: make())[0], expected)
    coef, intercept = np.arange(1.0, 5.0)[:, None], np.array([0.5])
    raw, level = scaling.of_raw(coef, intercept)
    moderate = np.clip(X, -50, 50)
    found = within_bounds(moderate, scaling.bounds) @ raw + level
    assert np.allclose(found, scaling(moderate, lambda make: make())[0] @ coef + intercept)
    for there, back in zip(scaling.of_scaled(raw, level), (coef, intercept), strict=True):
        assert np.allclose(there, back)


def test_a_column_without_a_scale_has_that_of_the_others():
    def seen(found, n=9.0):
        return FoundColumns(np.zeros(D), 2.0 * np.ones(D), found, n, 1.0, 10, found, np.ones(D))

    none = scaling_of(seen(np.zeros(D, bool)))
    assert np.isinf(none.limit).all() and (none.scale == 1).all()
    some = scaling_of(seen(np.arange(D) > 0))
    assert (some.scale == 2).all() and np.array_equal(some.limit, [np.inf] + 3 * [FARTHEST])
    rare = scaling_of(seen(np.arange(D) > 0, n=10.0))  # enough users: it is mostly 0
    assert np.array_equal(rare.scale, [1, 2, 2, 2]) and (rare.limit == FARTHEST).all()


def test_columns_are_seen_from_zero_unless_they_lie_elsewhere():
    """Scales that fewer users found than show one are noise, and centres next to 0 may be."""
    center, spread = np.array([0.5, -1.9, 2.1, 2000.0]), np.ones(D)
    found = np.ones(D, bool)
    seen = scaling_of(FoundColumns(center, spread, found, 50.0, 1.0, 100, found, spread))
    assert np.array_equal(seen.center, [0, -1.9, 2.1, 2000]) and np.isfinite(seen.limit).all()
    few = scaling_of(FoundColumns(center, 2.0**-40 * spread, found, 49.0, 1.0, 100, found, spread))
    assert (few.scale == 1).all() and np.isinf(few.limit).all()
    assert np.array_equal(few.center, seen.center)
    # A dummy of about as many zeros as ones, and narrow columns of more rows or farther from 0.
    for n, place, scale in ((799.0, 0.02, 1.0), (800.0, 0.02, 0.02), (799.0, 0.06, 0.02)):
        center, spread = place * (np.arange(D) == 1), np.array([1.0, 0.02, 1.0, 1.0])
        seen = scaling_of(FoundColumns(center, spread, found, n, 1.0, 100, found, spread))
        assert np.array_equal(seen.scale, [1, scale, 1, 1])


def test_targets_are_found_by_enough_users():
    def unit(*values, n=30.0, noise=0.0):
        center, spread, found, centered = np.array(values)[:, None]
        columns = FoundColumns(center, spread, found > 0, n, 1.0, 30, centered > 0, spread)
        return target_unit(columns, noise)

    assert unit(3.0, 2.0, True, True)[1:] == (2.0, True)
    assert not unit(3.0, 2.0, True, True, n=29.0).found
    assert unit(3.0, 2.0, True, True, n=50.0, noise=20.0).found
    assert not unit(3.0, 2.0, True, True, n=50.0, noise=21.0).found  # fewer may have answered


def test_users_as_they_are_seen_keep_what_their_rows_say():
    """Also of rows whose difference from it overflows; each user from its own rows alone."""
    rng, X = rows(n=20)
    # targets that each user has by a model of its own
    coef = 1 + np.repeat(rng.standard_normal((len(X) // M, D)), M, axis=0)
    y = np.sum(X * coef, axis=1) + 0.3 * rng.standard_normal(len(X))
    X[5 * M : 6 * M] *= 8e307 * np.where(np.arange(M) % 2, 1.0, -1.0)[:, None]
    center = np.array([1.7e308, 0.0, 1e3, -1.0])
    batch = next(UserRows(X, y[:, None], np.repeat(np.arange(20), M), True).blocks())
    scaling = Scaling(center, np.ones(D), np.full(D, np.inf))
    largest = np.finfo(float).max
    with np.errstate(over="ignore"):
        moved = ScaledUsers.of(batch, scaling)
        true = np.ldexp(batch.X, batch.x_exponent[:, None, None])
        expected = np.clip(true - center, -largest, largest)
        alone = ScaledUsers.of(batch.alone(5), scaling)
    assert np.allclose(np.ldexp(moved.X, moved.x_exponent[:, None, None]), expected, atol=0.0)
    sizes = np.abs(moved.X).max(axis=(1, 2))
    assert (sizes >= 0.5).all() and (sizes < 1).all()
    assert np.array_equal(alone.X, moved.X[5:6])
