"""Plans of streams: what is encoded is decoded, at the noise that theory says."""

import itertools
import math

import numpy as np
import pytest

from skdp.privacy.streams.continual import dyadic_cover, stream_schedule


@pytest.mark.parametrize("horizon", [1, 2, 3, 7, 64, 1000, 4096])
def test_square_root_decodes_what_it_encodes(horizon):
    schedule = stream_schedule(1, horizon, "sqrt")
    product = np.convolve(schedule.coefficients, schedule.weights)[:horizon]
    assert np.allclose(product, 1.0, atol=1e-12)


def rms(schedule):
    factors = [schedule.total_factor(t) for t in range(1, schedule.horizon + 1)]
    return math.sqrt(np.mean(np.square(factors)))


def test_noise_factors_at_4096_releases():
    assert rms(stream_schedule(1, 4096, "sqrt")) <= 3.7
    assert rms(stream_schedule(1, 4096, "tree")) <= 9.0


@pytest.mark.parametrize("horizon", [2, 16, 256, 2000])
def test_integer_coefficients_cost_less_than_a_percent(horizon):
    j = np.arange(1, horizon)
    c = np.cumprod(np.append(1.0, (2 * j - 1) / (2 * j)))
    ideal = np.linalg.norm(c) * math.sqrt(np.mean(np.cumsum(c**2)))
    assert rms(stream_schedule(1, horizon, "sqrt")) <= 1.01 * ideal


def test_cover_is_a_partition_into_few_nodes():
    for start, stop, levels in itertools.product(range(40), range(1, 70), (3, 64)):
        nodes = list(dyadic_cover(start, stop, levels))
        steps = [s for lv, i in nodes for s in range(i << lv, (i + 1) << lv)]
        assert steps == list(range(start, stop))
        assert all(level < levels for level, _ in nodes)
        if levels == 64 and start == 0:
            assert len(nodes) == stop.bit_count()


def test_auto_looks_at_public_sizes():
    assert stream_schedule(1000, 100).mechanism == "sqrt"
    assert stream_schedule(1000, 100, window=7).mechanism == "tree"
    assert stream_schedule(40_000, 1000).mechanism == "tree"
    assert stream_schedule(1, 10**6).mechanism == "tree"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        *[({"horizon": value}, "horizon") for value in (0, True, 2.0, 2**60)],
        ({"mechanism": "toeplitz"}, "mechanism"),
        ({"window": 0}, "window"),
        ({"window": 9}, "window"),
        ({"window": 2, "mechanism": "sqrt"}, "no windows"),
    ],
)
def test_bad_plans(options, match):
    with pytest.raises(ValueError, match=match):
        stream_schedule(**({"size": 3, "horizon": 8} | options))
