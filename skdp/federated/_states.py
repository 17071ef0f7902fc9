"""Sums of integer states of several servers, through the same aggregation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from skdp.exceptions import PrivacyError
from skdp.federated._ask import Aggregate, Words

IntArray = NDArray[np.int64]
Respond = Callable[[bytes], Words]

_REQUEST = b"skdp states 1\n"


class StateSum:
    """Add noisy int64 states modulo 2**64 by an aggregation: what merging of sketches needs.

    Each state already holds the noise of its own server. Nothing is released here but the sum, if
    the aggregation is a secure one.

    Parameters
    ----------
    connect : callable
        ``connect(callbacks)`` returns the aggregator of these clients, for example
        ``lambda callbacks: simulated_aggregator(callbacks, config)`` or `PlainAggregator`.

    Examples
    --------
    >>> import numpy as np
    >>> from skdp.federated import PlainAggregator, StateSum
    >>> add = StateSum(PlainAggregator)
    >>> add([np.array([1, -2]), np.array([3, 4])])
    array([4, 2])
    """

    def __init__(self, connect: Callable[[list[Respond]], Aggregate]) -> None:
        self._connect = connect

    def __call__(self, states: Sequence[IntArray]) -> IntArray:
        """Return the sum; a missing state is an error: its data and noise would be missing."""
        if not states:
            raise ValueError("there is no state to add")
        first = states[0]
        for state in states:
            if state.dtype != np.int64 or state.shape != first.shape:
                raise ValueError("states must be int64 arrays of one shape.")
        aggregate = self._connect([_held(state) for state in states])
        if getattr(getattr(aggregate, "config", None), "n_dropouts", 0):
            raise PrivacyError(
                "the aggregation would open a sum from which states are missing, and their noise "
                "with them; use n_dropouts=0."
            )
        opened = aggregate(_REQUEST, first.size)
        if opened.n_survivors != len(states):
            raise PrivacyError(f"{opened.n_survivors} of {len(states)} states arrived.")
        total = np.ascontiguousarray(opened.total, np.uint64)
        return total.view(np.int64).reshape(first.shape)


def _held(state: IntArray) -> Respond:
    words = np.ascontiguousarray(state).view(np.uint64).reshape(-1)
    return lambda request: words.copy()
