"""Factorisations of private units never fail, and a unit never changes the bits of another."""

import functools

import numpy as np
import pytest

from skdp.data import factorisations

RNG = np.random.default_rng(0)
GOOD = RNG.standard_normal((5, 3, 3))
GOOD = GOOD @ GOOD.transpose(0, 2, 1)
SIDE = RNG.standard_normal((5, 3, 2))
ROWS = np.array([[1.0, 0, 0], [1, 1e-154, 0], [1, -1e-154, 0]])  # some LAPACKs give up on these
BAD = {
    "NaN": np.full((3, 3), np.nan),
    "infinite": np.diag([np.inf, 1.0, 1.0]),
    "one infinity": np.array([[1.0, np.inf, 0], [np.inf, 1, 0], [0, 0, 1]]),
    "overflowing": np.full((3, 3), 1.7e308),
    "refused": np.full((3, 3), 77.0),  # by the stubs below
}
ROUTINES = {
    "eigh": (factorisations.eigh, lambda M: (M,)),
    "solve": (factorisations.solve, lambda M: (M, SIDE[: len(M)])),
}


@pytest.fixture(autouse=True)
def refusing(monkeypatch):
    """Fail on matrices of 77, as LAPACK does on others, for a whole batch."""

    def routine(true, A, *more):
        if (A == 77.0).all(axis=(1, 2)).any():
            raise np.linalg.LinAlgError("did not converge")
        return true(A, *more)

    for name in ROUTINES:
        monkeypatch.setattr(np.linalg, name, functools.partial(routine, getattr(np.linalg, name)))


def parts(found):
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", ROUTINES)
def test_a_bad_unit_gets_zeros_and_others_their_own_bits(name, bad):
    run, arguments = ROUTINES[name]
    mixed = GOOD.copy()
    mixed[2] = BAD[bad]
    expected = parts(run(*arguments(GOOD)))
    for found, true in zip(parts(run(*arguments(mixed))), expected, strict=True):
        assert not found[2].any()
        assert np.array_equal(np.delete(found, 2, 0), np.delete(true, 2, 0))
    for found in parts(run(*arguments(BAD[bad][None]))):
        assert not found.any()


@pytest.mark.parametrize("name", ROUTINES)
def test_singular_matrices_and_mixed_magnitudes_work(name):
    run, arguments = ROUTINES[name]
    hostile = [ROWS @ ROWS.T, ROWS.T @ ROWS, np.zeros((3, 3)), np.ones((3, 3))]
    hostile += [10.0**k * GOOD[0] for k in (-320, -200, 150, 307)]
    for M in hostile:
        for found in parts(run(*arguments(M[None]))):
            assert np.isfinite(found).all()
    assert all(found.shape[:2] == (0, 3) for found in parts(run(*arguments(GOOD[:0]))))


@pytest.mark.parametrize("width", [1, 8192, 8193, 20_000])
def test_squares_of_a_row_do_not_depend_on_the_rows_before(width):
    """They would with einsum alone, which splits rows beyond its buffer by their position."""
    rows = np.random.default_rng(0).standard_normal((9, 2, width + 1))[:, :, :width]
    whole = factorisations.row_squares(rows)
    np.testing.assert_allclose(whole, np.square(rows).sum(axis=2), rtol=1e-12)
    for i in range(9):
        assert np.array_equal(factorisations.row_squares(rows[i].copy()), whole[i])
        assert np.array_equal(factorisations.row_squares(rows[i:, 1]), whole[i:, 1])


def test_units_of_extreme_sizes_do_not_change_others():
    numbers, powers = np.array([1.0, 5e-324, 1e308]), np.array([3, 1060, -1060])
    assert np.array_equal(factorisations.times_powers(numbers, powers), np.ldexp(numbers, powers))
