"""Which columns are kept."""

import math

from skdp.solvers.spectral import kept_columns, moment_columns, shows_all_columns


def test_more_columns_are_kept_where_more_can_be_read():
    signals = [3000.0 / scale for scale in (150.0, 15.0, 1.5, 0.015)]
    kept = [kept_columns(signal, 10_000, 3) for signal in signals]
    assert kept == sorted(kept)
    assert kept[0] == 100
    assert kept[-1] == 4000
    assert kept_columns(signals[-1], 50, 3) == 50
    assert kept_columns(signals[0], 10_000, 60) == 240


def test_one_moment_is_of_all_columns_unless_most_are_spared():
    assert moment_columns(200.0, 300, 3) == 300
    assert moment_columns(200.0, 10_000, 3) == 3 * kept_columns(200.0, 10_000, 3)
    assert moment_columns(1e9, 10_000, 3) == 4000


def test_counts_are_left_out_where_a_moment_shows_all_columns():
    """Below about d/6 to the power 3/2 rows over the noise popularity may be better."""
    assert shows_all_columns(200.0, 200) and shows_all_columns(math.inf, 4000)
    assert not shows_all_columns(200.0, 210) and not shows_all_columns(1e9, 4001)
