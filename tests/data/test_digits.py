"""Wide integers in digits: the same numbers as Python's integers."""

import math

import numpy as np
import pytest
import scipy.sparse as sp

from skdp.data.integers import (
    digit_bits,
    digits_of,
    floored,
    on_column_grid,
    products,
    split,
    stored,
)

RNG = np.random.default_rng(0)
BITS = 21


def exact(array):
    return np.vectorize(int, otypes=[object])(array)


def joined(digits):
    return sum(exact(digit) * 2 ** (BITS * i) for i, digit in enumerate(digits))


def wide(shape):
    """Integers that floats hold, of all sizes, powers of two and their neighbours among them."""
    exponents = RNG.integers(0, 38, shape)
    values = RNG.integers(-(2**53), 2**53, shape) * 2.0**exponents
    values.flat[:6] = [0.0, 1.0, -(2.0**20), 2.0**20, -(2.0**90), np.nextafter(2.0**53, 0)]
    return values


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
def test_digits_are_small_and_are_the_number(form):
    Z = wide((7, 9))
    digits = split(form(Z), BITS)
    assert len(digits) == math.ceil(91 / BITS)
    assert all(np.abs(stored(digit)).max() <= 2 ** (BITS - 1) for digit in digits)
    parts = [digit.toarray() if sp.issparse(digit) else digit for digit in digits]
    assert np.array_equal(joined(parts), exact(Z))
    assert len(split(form(np.clip(Z, -1000, 1000)), BITS)) == 1


@pytest.mark.parametrize("longest", [2, 1000, 4096, 10**6])
def test_sums_of_products_stay_exact(longest):
    W, _ = on_column_grid(np.full((longest, 1), 1.9))
    assert float(np.abs(W).sum()) * 2 ** (digit_bits(longest) - 1) < 2**53
    assert digit_bits(longest) >= 17


def test_a_public_matrix_moves_by_less_than_its_bound():
    for scale in (1e-300, 1.0, 1e300):
        V = RNG.standard_normal((30, 4)) * [1, 1e-3, 1, 1] * scale
        W, g = on_column_grid(V)
        moved = np.linalg.norm((np.ldexp(W, -g) - V) / scale)
        assert moved <= 2.0**-25 * math.sqrt(V.size) * np.linalg.norm(V / scale, 2)
    assert not on_column_grid(np.zeros((3, 2)))[0].any()


@pytest.mark.parametrize("shift", [-70, -3, 0, 5, 20, 21, 42, 60, 95, 300])
def test_products_and_their_floor(shift):
    Z = wide((7, 9))
    W, _ = on_column_grid(RNG.standard_normal((9, 3)))
    parts = products(split(Z, BITS), W)
    product = exact(Z) @ exact(W)
    assert np.array_equal(joined(parts), product)
    assert np.array_equal(joined(digits_of(parts, BITS)), product)
    expected = [x >> shift if shift > 0 else x << -shift for x in product.ravel()]
    cut = np.array([max(-(2**62), min(2**62, x)) for x in expected]).reshape(7, 3)
    assert np.array_equal(floored(parts, BITS, shift), cut)


@pytest.mark.parametrize("shift", [0, 1, 25])
def test_the_floor_is_cut_at_two_to_the_62_exactly(shift):
    edge = 2 ** (62 + shift)
    for value in (edge - 1, edge, edge + 1, edge * 5 // 4 + 3, -edge - 1, -edge + 1, edge * 2**70):
        parts, rest = [], value
        while rest:
            parts.append(np.array([rest % 2**BITS]) if abs(rest) >= 2**40 else np.array([rest]))
            rest = (rest - int(parts[-1][0])) >> BITS
        expected = max(-(2**62), min(2**62, value >> shift))
        assert floored(parts, BITS, shift)[0] == expected
