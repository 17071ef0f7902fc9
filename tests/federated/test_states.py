"""Sums of states of several servers."""

import numpy as np
import pytest

from skdp.exceptions import PrivacyError
from skdp.federated import AggregationConfig, StateSum, UnmaskedAggregator, simulated_aggregator

S, LOSSY = 20, AggregationConfig(20, 2, 1)


def test_states_add_up_modulo_two_to_the_64():
    rng = np.random.default_rng(0)
    info = np.iinfo(np.int64)
    states = [rng.integers(info.min, info.max, (4, 3)) for _ in range(S)]
    with np.errstate(over="ignore"):
        expected = np.sum(states, axis=0)
    complete = AggregationConfig(S)
    for connect in (
        UnmaskedAggregator,
        lambda callbacks: simulated_aggregator(callbacks, complete),
    ):
        assert np.array_equal(StateSum(connect)(states), expected)


def test_sums_without_some_states_are_not_opened():
    """Each state brings its part of the noise: a sum without one has too little."""
    asked = []

    def connect(callbacks):
        sums = simulated_aggregator(
            callbacks, AggregationConfig(S, 2, 1), lost=lambda i, kind: i == 0
        )
        original = sums._finish
        sums._finish = lambda messages: asked.append(messages) or original(messages)
        return sums

    with pytest.raises(PrivacyError, match="n_dropouts=0"):
        StateSum(connect)([np.ones(2, np.int64)] * S)
    assert not asked


def test_a_lost_state_is_an_error():
    lossy = StateSum(lambda callbacks: UnmaskedAggregator(callbacks[1:]))
    with pytest.raises(PrivacyError, match="2 of 3 states"):
        lossy([np.ones(2, np.int64)] * 3)


@pytest.mark.parametrize("states", [[], [np.ones(2)], [np.ones(2, np.int64), np.ones(3, np.int64)]])
def test_states_are_checked(states):
    with pytest.raises(ValueError, match="state"):
        StateSum(UnmaskedAggregator)(states)
