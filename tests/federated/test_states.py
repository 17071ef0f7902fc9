"""Sums of states of several servers."""

import numpy as np
import pytest

from skdp.federated import PlainAggregator, StateSum


@pytest.mark.parametrize("states", [[], [np.ones(2)], [np.ones(2, np.int64), np.ones(3, np.int64)]])
def test_states_are_checked(states):
    with pytest.raises(ValueError, match="state"):
        StateSum(PlainAggregator)(states)
