"""The table of the noise: committed weights, rebuilt and compared with the exact law."""

import itertools
from decimal import Decimal

import mpmath
import numpy as np
import pytest

from skdp.privacy.noise import integers as _table
from skdp.privacy.noise import integers as noise

BITS = 126


def thresholds():
    return _table.join_columns(np.load(_table.TABLE_PATH))


def table_weights():
    return [b - a for a, b in itertools.pairwise([0, *thresholds(), 2**BITS])]


@pytest.mark.thorough
def test_the_script_rebuilds_the_committed_table():
    columns = np.load(_table.TABLE_PATH)
    assert np.array_equal(_table.split_columns(_table.gaussian_thresholds()), columns)
    assert _table.table_digest(columns) == noise._TABLE_SHA256
    assert columns.dtype == np.uint64 and columns.max() < 2**63


@pytest.mark.thorough
def test_the_table_is_within_2_to_minus_116_of_the_discrete_gaussian():
    with mpmath.workprec(300):
        # Poisson summation gives the normaliser to e^-1776528; the script sums it instead
        half_mass = 300 * mpmath.sqrt(2 * mpmath.pi) / 2
        law = [mpmath.exp(-mpmath.mpf(k * k) / 180000) / half_mass for k in range(7000)]
        law[0] /= 2
        cumulative = list(itertools.accumulate(law))
        exact = [int(mpmath.floor(c * mpmath.mpf(2) ** BITS)) for c in cumulative[:3831]]
        assert exact == thresholds()
        padded = table_weights() + [0] * (7000 - 3832)
        gaps = [
            abs(mpmath.mpf(w) / mpmath.mpf(2) ** BITS - p) for w, p in zip(padded, law, strict=True)
        ]
        distance = mpmath.fsum(gaps) / 2
        assert mpmath.mpf(2) ** -117 < distance < mpmath.mpf(2) ** -116.6


def test_every_value_below_the_cut_is_possible():
    bounds = thresholds()
    assert len(bounds) == 3831  # 12.77 standard deviations
    assert all(a < b for a, b in itertools.pairwise([0, *bounds, 2**BITS]))


def test_the_alias_table_has_exactly_the_weights_of_the_table():
    table = noise._gaussian_table()
    bits, own = table._precise
    alias = dict(table._pairs)
    mass = [0] * _table.CELLS
    for cell, kept in enumerate(own):
        assert 0 <= kept <= 2**bits
        mass[cell] += kept
        mass[alias.get(cell, cell)] += 2**bits - kept
    weights = table_weights()
    assert mass == [w * _table.CELLS for w in weights] + [0] * (_table.CELLS - len(weights))


def test_real_weights_that_do_not_determine_a_pairing_are_refused():
    flat = [1 << 244] * 4096
    with pytest.raises(AssertionError, match="full"):
        _table.AliasTable(lambda bits: flat, 256, exact=False, signed=False)


def test_geometric_weights_sum_to_one_at_any_precision():
    for tail, bits in itertools.product((False, True), (256, 512)):
        assert sum(_table.geometric_weights(Decimal(1) / 64, tail, bits)) == 1 << bits
