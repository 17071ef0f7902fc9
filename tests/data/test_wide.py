"""Wide integers against Python's own."""

import numpy as np
import pytest

from skdp.data.integers import Wide, on_grid


def numbers(wide):
    """The numbers as Python integers."""
    total = sum(limb.astype(object) * 2 ** (20 * i) for i, limb in enumerate(wide.limbs))
    return np.asarray(total, object)


def modulo(values):
    """Python integers as int64, modulo 2**64."""
    return ((values + 2**63) % 2**64 - 2**63).astype(np.int64)


def random_wide(shape, seed=0, bits=63):
    rng = np.random.default_rng(seed)
    high, low = (rng.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), shape) for _ in range(2))
    return Wide.joined(high, low), high.astype(object) * 2**20 + low.astype(object)


@pytest.mark.parametrize("bits", [3, 30, 60, 63])
def test_sums_products_and_shifts_are_those_of_python(bits):
    a, exact_a = random_wide((6, 4), 1, bits)
    b, exact_b = random_wide((6, 4), 2, bits)
    grid = on_grid(np.linalg.qr(np.random.default_rng(3).standard_normal((6, 6)))[0])
    whole = np.vectorize(int, otypes=[object])(grid)
    assert (numbers(a) == exact_a).all()
    assert (numbers(a - b) == exact_a - exact_b).all()
    assert (numbers(a + b.shifted(33)) == exact_a + exact_b * 2**33).all()
    twice = a.mapped(grid).mapped(grid)
    assert (numbers(twice) == whole @ (whole @ exact_a)).all()
    assert (numbers(twice.T) == (whole @ (whole @ exact_a)).T).all()


@pytest.mark.parametrize("scale", [2.0**-12, 2.0**7, 0.75])
def test_steps_are_rounded_down_once_modulo_two_to_the_64(scale):
    a, exact = random_wide((5, 3), 4)
    for bits in (0, 26, 52):
        expected = exact * int(scale * 2**40) // 2 ** (bits + 40)
        assert np.array_equal(a.in_steps(scale, bits), modulo(expected))


def test_scales_of_columns_are_never_rounded_up():
    a = Wide.joined(*np.array([[[1, 1, 1]], [[0, 0, 0]]], np.int64)).shifted(60)
    scales = np.array([1 / 3, 1e-5 / 3, 1e-12])
    steps = a.in_steps(scales, 80)
    exact = scales * 2.0**0
    assert (steps <= exact).all()
    fine = a.in_steps(scales, 30)
    assert (fine <= scales * 2.0**50).all()
    assert np.allclose(fine[0, :2], scales[:2] * 2.0**50, rtol=1e-6)
